"""Sentences of a private classifier and its report, attacked one by one."""

import copy

import pytest
import torch
from torch_geometric.data import Data

from pyg_trust.functional import Measure, private_propagation
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy import PrivateNodeClassifier

QUICK = {'epsilon': 8.0, 'delta': 1e-4, 'steps': 3, 'num_classes': 3}
n = 40


def graph(directed=False):
    generator = torch.Generator().manual_seed(0)
    dense = (torch.rand(n, n, generator=generator) < 0.2).triu(1)
    dense = dense if directed else dense | dense.t()
    mask = torch.rand(n, generator=generator)
    return Data(
        x=torch.randn(n, 5, generator=generator),
        y=torch.arange(n) % 3,
        edge_index=dense.nonzero().t().contiguous(),
        train_mask=mask < 0.6,
        val_mask=mask >= 0.8,
    )


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
def test_a_checkpoint_does_not_wash_the_seed_off(relation):
    # The report said that the noise of a seed was the operating system's.
    arguments = {'relation': relation, **QUICK, 'epochs': 3}
    state = PrivateNodeClassifier(**arguments, seed=0).fit(graph())
    state = state.state_dict()
    old = copy.deepcopy(state)
    del old['setting']['seeded']
    for each in (state, old):
        fresh = PrivateNodeClassifier(**arguments)
        with pytest.raises(ValueError, match="'seeded': True"):
            fresh.load_state_dict(each)
        assert fresh.account is None
        fresh = PrivateNodeClassifier(**arguments, seed=1)
        fresh.load_state_dict(each)
        assert fresh.report().seeded
    # Secret noise stays secret noise, and is none of a seed either.
    secret = PrivateNodeClassifier(**arguments).fit(graph()).state_dict()
    with pytest.raises(ValueError, match="'seeded': False"):
        PrivateNodeClassifier(**arguments, seed=0).load_state_dict(secret)
    fresh = PrivateNodeClassifier(**arguments)
    fresh.load_state_dict(secret)
    assert not fresh.report().seeded


@pytest.mark.parametrize('case', ['size', 'directions'])
def test_graphs_that_a_measure_is_not_for_cost_nothing(
    case, monkeypatch, tmp_path
):
    # The encoder was paid for, then the graph refused.
    arguments, data = {}, graph(directed=case == 'directions')
    if case == 'size':
        monkeypatch.setattr(private_propagation, 'MAX_COLUMNS', n - 1)
    else:
        arguments['measure'] = Measure(0.5, 0.5, (0.0, 1.0), undirected=True)
    ledger = tmp_path / 'ledger'
    model = PrivateNodeClassifier(
        'feature', **QUICK, **arguments, ledger=ledger
    )
    with pytest.raises(ValueError, match="'graph'"):
        model.fit(data)
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
