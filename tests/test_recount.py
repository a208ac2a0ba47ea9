"""Epsilons of reports, by an accountant that is not of this package."""

import json

import pytest
import torch
from auditing import (
    DELTA,
    HISTORY,
    LAM,
    RATE,
    STEPS,
    failures,
    forged,
    privacy,
    saved,
)
from guarantees import unlearner
from procedures import classifier, cycle, dataset
from recount import gaussian_again, poisson_again, wor_again
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_trust.check import FAILS, check_report
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.poisson import poisson_epsilon
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import NodeClassifier

pytest.importorskip('dp_accounting')

# Noise over the clipping norm, rate, steps; what reports of this package have.
HISTORIES = [
    [(4.0, 0.05, 6)],
    [(1.2, 0.01, 40)],
    [(8.0, 0.4, 50)],
    [(24.0, 1 / 6, 40)],
    [(6.0, 1.0, 5)],
    [(4.0, 0.1, 20), (3.0, 0.3, 7), (18.0, 1.0, 1)],
]


@pytest.mark.parametrize('history', HISTORIES)
@pytest.mark.parametrize('delta', [1e-4, 1e-7])
def test_two_packages_agree_without_replacement(history, delta):
    ours = wor_epsilon(history, delta, 'pld_wor')
    assert wor_again(history, delta) == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize('history', HISTORIES)
@pytest.mark.parametrize('form', ['replace', 'withdraw'])
def test_two_packages_agree_on_coins(history, form):
    ours = poisson_epsilon(history, DELTA, form)
    assert poisson_again(history, DELTA, form) == pytest.approx(ours, rel=1e-3)


def test_the_step_is_not_the_one_that_is_withdrawn():
    # The same steps by dp-accounting's own pair for withdrawing: less.
    assert wor_again(HISTORY, DELTA) > 1.001 * poisson_again(
        HISTORY, DELTA, 'withdraw'
    )


def coins(**changes):
    lines = [(2 * LAM, RATE, STEPS)]
    relation = changes.get('neighboring', 'replace-one-graph')
    form = 'withdraw' if relation.startswith('add') else 'replace'
    fields = {
        'mechanism': 'pld_poisson',
        'sampling': 'poisson',
        'neighboring': relation,
        'unit': 'whole graphs',
        'sensitivity': 1.0 if form == 'withdraw' else 2.0,
        'epsilon': 1.02 * poisson_epsilon(lines, DELTA, form),
        'noise_multiplier': 2 * LAM,
    }
    return privacy(**{**fields, **changes})


ADD = 'add-or-remove-one-graph'


def test_coins_of_one_relation_do_not_pay_for_another(tmp_path):
    assert not failures(saved(tmp_path, coins(neighboring=ADD)))
    low = coins(neighboring=ADD).values['epsilon']
    assert failures(saved(tmp_path, coins(epsilon=low)))


def graph():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(300, (2, 900), generator=generator)
    return Data(
        x=torch.rand(300, 4, generator=generator),
        y=torch.arange(300) % 3,
        edge_index=to_undirected(remove_self_loops(edges)[0]),
        train_mask=torch.arange(300) < 200,
    )


def trained(folder, steps=2, release=0.0, **options):
    engine = PrivacyEngine(ledger=folder / 'run.ledger')
    net = torch.nn.Linear(4, 3)
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(graph(), batch_size=8, walk_length=1),
        noise_multiplier=4.0,
        max_grad_norm=0.5,
        target_epsilon=30.0,
        target_delta=1e-5,
        **options,
    )
    if release:
        engine.spend_gaussian(release)
    for _, batch in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        out = model(batch.x)[: batch.batch_size]
        cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    return engine, net


def test_a_release_beside_the_steps_is_not_called_a_lie(tmp_path):
    # It was weighed as a step of training that draws everybody.
    engine, _ = trained(tmp_path, release=0.05)
    report = engine.report()
    engine.close()
    path = tmp_path / 'trust.json'
    TrustReport.of(report).save(path)
    found = check_report(path, ledger=tmp_path / 'run.ledger')
    assert FAILS not in {each.status for each in found}, found
    whole = json.loads(path.read_text())
    fields = whole['guarantees'][0]['values']
    # More noise on the steps than the training had.
    fields['account'] = [
        [9 * z if q < 1 else z, q, n] for z, q, n in fields['account']
    ]
    path.write_text(forged(whole))
    assert any('noise_multiplier: ' in text for text in failures(path))


@pytest.mark.parametrize('mu', [0.0, 1e-6, 0.3, 4.0])
def test_two_packages_agree_on_one_release(mu):
    ours = gaussian_epsilon(mu, DELTA) if mu else 0.0
    assert gaussian_again(mu, DELTA) == pytest.approx(ours, abs=1e-6)


def forgotten():
    model = NodeClassifier(weight_decay=0.1, release_std=1e-3, epsilon=3.0)
    model.fit(cycle(16))
    return model, model.remove(RemovalRequest(nodes=[3]))


# How it was checked ##########################################################


def test_a_training_says_how_it_was_checked(tmp_path):
    engine, net = trained(tmp_path)
    said = ' '.join(engine.report().guarantee().checked)
    for fact in ('random features', 'on the ledger', 'two ways', 'finite'):
        assert fact in said
    assert 'nothing else has changed them' in said
    with torch.no_grad():
        net.weight.add_(1.0)
    said = ' '.join(engine.report().guarantee().checked)
    assert 'nothing else has changed them' not in said
    engine.close()


def test_what_was_not_checked_is_not_said(tmp_path):
    engine, _ = trained(tmp_path, steps=0)
    first, taken = engine.report().guarantee().checked
    assert 'before the first step' in first
    assert 'no private step' in taken
    engine.close()


def test_two_ways_to_count_are_two(tmp_path):
    engine, _ = trained(tmp_path)
    report = engine.report()
    engine.close()
    most = wor_epsilon(report.account, 1e-5, 'rdp_wor')
    assert report.epsilon < report.epsilon_renyi <= 1.05 * most


def test_a_removal_says_how_it_was_checked():
    model, report = forgotten()
    plain = report.guarantee().checked
    assert 'measured on the' in plain[1]
    found = model.verify()
    assert found.ok
    (*_, said) = report.verified(found).guarantee().checked
    assert 'verify() found' in said
    assert 'nothing that was removed' in said
    # The findings of another release are none of this one.
    model.remove(RemovalRequest(nodes=[5]))
    with pytest.raises(ValueError, match='the weights of this report'):
        report.verified(model.verify())
    with pytest.raises(TypeError, match="'found'"):
        report.verified(report)


SHARDS = [RemovalRequest(nodes=[n]) for n in (3, 5)]
GRAPHS = [RemovalRequest(nodes={n: [0]}) for n in (3, 5)]


@pytest.mark.parametrize(
    ('make', 'data', 'requests', 'said'),
    [
        (unlearner, cycle(40), SHARDS, '3 of 3 shards equal, to the bit'),
        (classifier, dataset(), GRAPHS, 'exact retraining'),
    ],
)
def test_other_removals_say_what_was_verified(make, data, requests, said):
    # Adam's first step is a sign: of other seeds, the weights may be equal.
    model = make(seed=0).fit(data)
    report = model.remove(requests[0])
    assert 'verify()' not in ' '.join(report.guarantee().checked)
    found = model.verify()
    assert found.ok
    (*_, line) = report.verified(found).guarantee().checked
    assert 'verify() found' in line
    assert said in line
    bad = found.replace(ok=False, leftovers=('node 3 in a file',))
    (*_, line) = report.verified(bad).guarantee().checked
    assert 'FAILED' in line
    assert 'node 3 in a file' in line
    model.remove(requests[1])
    with pytest.raises(ValueError, match='the weights of this report'):
        report.verified(model.verify())


def test_a_verification_that_fails_says_so():
    model, report = forgotten()
    found = model.verify()
    assert found.ok
    found = found.replace(ok=False, leftovers=('node 3',))
    (*_, said) = report.verified(found).guarantee().checked
    assert 'FAILED' in said
    assert 'node 3' in said
