"""Sentences of a private classifier and its report, attacked one by one."""

import math

import pytest
import torch
from graphs import homes

from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.privacy import propagation as private_propagation
from pyg_trust.transforms import PrivateAGP

QUICK = {'epsilon': 8.0, 'delta': 1e-4, 'steps': 3, 'num_classes': 3}
n = 40


def graph(directed=False):
    return homes(n, directed=directed, columns=5)


def test_a_graph_that_is_too_large_costs_nothing(monkeypatch, tmp_path):
    # The encoder was paid for, then the graph refused.
    monkeypatch.setattr(private_propagation, 'MAX_COLUMNS', n - 1)
    ledger = tmp_path / 'ledger'
    model = PrivateNodeClassifier('feature', **QUICK, ledger=ledger)
    with pytest.raises(ValueError, match="'graph'"):
        model.fit(graph())
    assert model.account.lines == ()
    model.close()
    monkeypatch.undo()
    model = PrivateNodeClassifier('feature', **QUICK, ledger=ledger)
    assert model.fit(graph()).report().epsilon == pytest.approx(8.0)
    model.close()


def test_other_validation_labels_are_other_data():
    # They choose an epoch; the model was that of the labels before.
    data = graph()
    model = PrivateNodeClassifier('edge', **QUICK, epochs=3).fit(data)
    for name in ('y', 'val_mask'):
        other = data.clone()
        if name == 'y':
            other.y[data.val_mask] = (data.y[data.val_mask] + 1) % 3
        else:
            other.val_mask = ~data.train_mask
        with pytest.raises(BudgetExceededError):
            model.fit(other)
    # Labels that nobody reads change nothing.
    rest = ~(data.train_mask | data.val_mask)
    data.y[rest] = 0
    assert model.fit(data) is model
    assert len(model.account.lines) == 1


def test_sums_of_another_on_the_ledger_are_not_taken_for_an_encoder(tmp_path):
    # Sums of mu 'a' were taken for an encoder of the same mu, and an edge's
    # mu lacked them.
    ledger, data = tmp_path / 'ledger', graph()
    blank = {**QUICK, 'neighboring': 'add_remove'}
    first = PrivateNodeClassifier(
        'node', **blank, shares=(0.05, 0.9, 0.05), ledger=ledger
    )
    first.fit(data).close()
    a = first.mus[1]
    large = {**blank, 'epsilon': 30.0}
    limit = PrivateNodeClassifier('node', **large).limit
    e = (a / limit) ** 2
    second = PrivateNodeClassifier(
        'node', **large, shares=(e, 0.3, 0.7 - e), ledger=ledger
    )
    assert second.mus[0] == pytest.approx(a, rel=1e-12)
    with pytest.raises(BudgetExceededError):
        second.fit(data)
    # Nothing of its own is on the account: there is no report to make.
    with pytest.raises(RuntimeError, match='fit data first'):
        second.report()
    second.close()


def test_what_others_spent_of_more_classes_counts_for_an_edge(tmp_path):
    # Replaced, messages of classes move sums less than any of norm 1, so
    # that their noise is smaller for the same mu: an edge sees more of it.
    ledger, data = tmp_path / 'ledger', graph()
    first = PrivateNodeClassifier(
        'node',
        **{**QUICK, 'num_classes': 30},
        shares=(0.01, 0.98, 0.01),
        neighboring='replace',
        ledger=ledger,
    ).fit(data)
    first.close()
    alone = first.report().mu_edge
    (std,) = first.noise_stds
    assert alone == pytest.approx(math.sqrt(2) / std)
    transform = PrivateAGP(
        adjacency='node',
        neighboring='replace',
        mu=0.1,
        delta=QUICK['delta'],
        ledger=ledger,
    )
    transform(data)
    (std,) = transform.noise_stds
    report = transform.report()
    assert report.mu_edge >= math.hypot(alone, math.sqrt(2) / std)
    transform.account.close()


@pytest.mark.parametrize('form', ['add_remove', 'replace'])
@pytest.mark.parametrize('hops', [1, 2])
def test_parts_of_ones_own_account_are_exact(form, hops):
    # Also where encoder, sums and head cost the same.
    arguments = {**QUICK, 'neighboring': form, 'K': hops}
    for shares in ((0.4, 0.5, 0.1), (0.25, 0.5, 0.25)):
        model = PrivateNodeClassifier('node', **arguments, shares=shares)
        fresh = PrivateNodeClassifier('node', **arguments, shares=shares)
        fresh.load_state_dict(model.fit(graph()).state_dict())
        for report in (model.report(), fresh.report()):
            found = (report.mu_encoder, report.mu_aggregation, report.mu_head)
            assert found == pytest.approx(model.mus)
            std = model.noise_stds[0]
            edge = math.sqrt(2 * hops) / std
            assert report.mu_edge == pytest.approx(edge)


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
@pytest.mark.parametrize('sparse', [False, True])
def test_predictions_are_of_the_features_that_were_fitted(relation, sparse):
    # They read the caller's tensor, also after the rows of neighbours had
    # been written into it.
    data = graph()
    kept = data.x.clone()
    if sparse:
        data.x = data.x.to_sparse()
    model = PrivateNodeClassifier(relation, **QUICK, epochs=3).fit(data)
    before = model.logits()
    held = data.x._values() if sparse else data.x
    held.copy_(held.flip(0) * 3)
    assert torch.equal(model.logits(), before)
    assert torch.allclose(model.logits(x=kept), before, atol=1e-6)
    assert not torch.allclose(model.logits(x=held.view(n, 5)), before)
    # It is another release for `fit`, which the budget does not have.
    with pytest.raises(BudgetExceededError):
        model.fit(data)
    assert torch.equal(model.logits(), before)
