"""Removals that the noise of a release covers."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from auditing import lied
from graphs import Pooled
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.check import check_report
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.loader import DisjointWalkLoader, GraphLoader
from pyg_trust.privacy import (
    PrivacyEngine,
    PrivateLinkPredictor,
    PrivateNodeClassifier,
)
from pyg_trust.privacy.gaussian import gaussian_epsilon, gaussian_mu_for
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport, save_tensors
from pyg_trust.verify.removal import node_shift

N = 30


def ring(n=N, chords=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    at = torch.arange(n)
    edges = torch.stack([at, at.roll(-1)])
    more = torch.stack([at[:chords], (at[:chords] + n // 2) % n])
    edges = torch.cat([edges, more], 1)
    return Data(
        x=torch.rand(n, 5, generator=generator),
        y=at % 3,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        train_mask=at % 2 == 0,
    )


def model(relation='node', data=None, epsilon=0.2, **kwargs):
    kwargs = {'delta': 1e-3, 'steps': 2, 'epochs': 2} | kwargs
    made = PrivateNodeClassifier(relation, epsilon, num_classes=3, **kwargs)
    return made.fit(ring() if data is None else data)


def nodes(*names):
    return RemovalRequest(nodes=list(names))


def test_a_node_is_covered_at_the_epsilon_of_all_that_it_moves():
    data, made = ring(chords=4), None
    made = model(data=data, train_receivers=1.0)
    report = made.remove(nodes(3), data)
    ends = CSRGraph.from_data(data).to_edge_index()[0].numpy()
    kappa = float(node_shift(ends, np.arange(data.num_nodes) == 3, 1))
    assert report.shift == math.ceil(4 * kappa) / 4
    assert report.units == 1
    # Encoder and head by one blank record, half of a replaced one.
    encoder, _sums, head = made.mus
    mu = math.hypot(encoder / 2, report.shift / made.noise_stds[0], head / 2)
    assert report.mu == pytest.approx(mu)
    assert report.epsilon == gaussian_epsilon(report.mu, 1e-3)
    assert made.removals.spent == report.mu
    assert made.removals.entries[-1].request == {'0': {'nodes': [3]}}


def test_rows_of_who_was_removed_are_gone_and_nobody_elses():
    data = ring()
    made = model(data=data)
    before = made.released[0]
    scores = made.logits()
    made.remove(nodes(3, 8), data)
    keep = torch.ones(N, dtype=torch.bool)
    keep[[3, 8]] = False
    assert not made.released[0][~keep].any()
    assert torch.equal(made.released[0][keep], before[keep])
    # Nor what the encoder says of them, which no noise covers.
    assert (made._own[~keep] == 1 / 3).all()
    assert (made._own[keep] != 1 / 3).any(1).all()
    for x in (None, data.x):
        assert made.logits(x)[~keep].isnan().all()
        assert torch.equal(made.logits(x)[keep], scores[keep])
        assert made.predict(x=x)[~keep].tolist() == [-1, -1]
    assert made.predict(torch.tensor([3])).tolist() == [-1]


def test_one_by_one_costs_what_it_costs_at_once():
    """Nobody lists the first ten, so no list is shared."""
    data = ring(n=40)
    edges = data.edge_index
    listed = ~torch.isin(edges[1], torch.arange(10))
    data.edge_index = edges[:, listed]
    one, other = (
        model(data=data, directed=True, forget_epsilon=8.0) for _ in range(2)
    )
    for name in range(3):
        last = one.remove(nodes(name), data)
    whole = other.remove(nodes(0, 1, 2), data)
    assert (last.units, last.shift, last.mu) == (3, whole.shift, whole.mu)


def test_several_people_add_up_and_the_budget_ends_it():
    data, made = ring(60), None
    made = model(data=data, forget_epsilon=0.8)
    shift, k = 0.0, 0
    while made.removals.spent < 0.2:
        report = made.remove(nodes(2 * k), data)
        assert report.units == k + 1
        assert report.shift >= shift + 1
        # Not k times the epsilon of one, which is less.
        assert report.epsilon == gaussian_epsilon(report.mu, 1e-3) <= 0.8
        k, shift = report.units, report.shift
    with pytest.raises(BudgetExceededError, match='fit again'):
        made.remove(nodes(*range(2 * k, 40, 2)), data)
    assert k >= 2
    assert made.removals.spent <= gaussian_mu_for(0.8, 1e-3)
    assert len(made.removals.entries) == k + 1
    found = made.predict()
    there, y = found >= 0, torch.arange(len(found)) % 2
    assert (~there).sum() == k
    right = (found == y)[there].double().mean()
    assert made.score(range(len(y)), y) == float(right)
    with pytest.raises(ValueError, match='node that is there'):
        made.score(~there, y)


def test_the_graph_may_be_given_with_or_without_who_was_removed():
    data, made = ring(), None
    made = model(data=data)
    made.remove(nodes(3), data)
    keep = (data.edge_index != 3).all(0)
    less = Data(edge_index=data.edge_index[:, keep], num_nodes=N)
    reports = [made.plan(nodes(4), given) for given in (data, less)]
    assert reports[0] == reports[1]
    # By lists of two, two of which name 3 and one 4 then: 1.59 and 1.29,
    # rounded up once.
    assert reports[0].shift == 3.0
    other = Data(edge_index=data.edge_index[:, 2:], num_nodes=N)
    with pytest.raises(ValueError, match="'data' needs to have the edges"):
        made.remove(nodes(4), other)


@pytest.mark.parametrize(
    ('relation', 'request_', 'what'),
    [
        ('node', RemovalRequest(edges=[(0, 1)]), 'nodes'),
        ('node', RemovalRequest(features=[1]), 'nodes'),
        ('node_incident', RemovalRequest(edges=[(0, 1)]), 'nodes'),
        ('feature', nodes(1), 'edges are public'),
        ('feature', RemovalRequest(edges=[(0, 1)]), 'features or labels'),
        ('edge', nodes(1), 'without noise'),
        ('edge', RemovalRequest(features=[1]), 'edges'),
        ('edge', RemovalRequest(edges=[(0, 1)], directed=True), 'edges'),
        ('node', RemovalRequest(graphs=[0]), 'nodes'),
        ('node', RemovalRequest(nodes={1: [0]}), 'nodes of graph 0'),
    ],
)
def test_a_relation_covers_its_units_alone(relation, request_, what):
    more = {'max_degree': 2} if relation == 'node_incident' else {}
    data = ring()
    made = model(relation, data, **more)
    before = made.state_dict()
    with pytest.raises(ValueError, match=what) as error:
        made.remove(request_, data)
    assert 'Fit again without them' in str(error.value)
    assert made.removals.spent == 0
    after = made.state_dict()
    assert torch.equal(after['released'][0], before['released'][0])


def test_features_count_by_person_and_their_smoothed_rows_are_made_anew():
    data = ring()
    made = model('feature', data)
    report = made.remove(RemovalRequest(features=[2, 3], labels=[3]), data)
    assert report.units == 2
    assert 2 <= report.shift < 2.001
    assert not made.released[0][[2, 3]].any()
    smoothed = made.state_dict()['smoothed']
    again = made._smooth(CSRGraph.from_data(data), [*made.released])
    assert all(map(torch.equal, smoothed, again))


def test_edges_cost_by_the_rows_that_they_share():
    data = ring()
    made = model('edge', data)
    apart = RemovalRequest(edges=[(0, 1), (10, 11)])
    report = made.plan(apart, data)
    assert report.shift == pytest.approx(2.0)
    assert report.mu == pytest.approx(made.limit * math.sqrt(2))
    beside = made.remove(RemovalRequest(edges=[(0, 1), (2, 1)]), data)
    assert beside.shift == pytest.approx(math.sqrt(6))
    assert beside.deleted == ()
    with pytest.raises(ValueError, match='removed before'):
        made.remove(RemovalRequest(edges=[(1, 0)]), data)
    with pytest.raises(ValueError, match='not there'):
        made.remove(RemovalRequest(edges=[(0, 9)]), data)


def test_of_links_every_edge_is_a_message_an_example_and_a_count():
    data = ring()
    made = PrivateLinkPredictor(epsilon=0.2, delta=1e-3, steps=2).fit(data)
    one = made.plan(edges=[(0, 1)], data=data)
    with pytest.raises(ValueError, match='a plan guarantees nothing'):
        one.guarantee()
    assert one.mu == pytest.approx(made.limit)
    apart = made.remove(RemovalRequest(edges=[(0, 1), (10, 11)]), data)
    rows, count, scorer = made.mus
    want = math.hypot(math.sqrt(2) * rows, 2 * count, 2 * scorer)
    assert apart.mu == pytest.approx(want)
    with pytest.raises(TypeError, match='mu = '):
        made.update(RemovalRequest(nodes=[1]))


def test_a_hub_is_refused_and_so_is_a_model_of_a_seed():
    hub = torch.arange(1, 40)
    edges = torch.stack([torch.zeros_like(hub), hub])
    chain = torch.stack([hub, hub.roll(1)])
    edges = torch.cat([edges, chain], 1)
    data = Data(
        x=torch.rand(40, 4),
        y=torch.arange(40) % 3,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        train_mask=torch.arange(40) < 9,
    )
    made = model(data=data)
    with pytest.raises(ValueError, match="'max_units' = 4"):
        made.remove(nodes(0), data)
    made = model(insecure_seed=1)
    with pytest.raises(ValueError, match='it covers nothing'):
        made.remove(nodes(0), ring())


def test_who_was_removed_is_refused_again_and_in_the_next_release():
    data, made = ring(), None
    made = model(data=data)
    made.remove(nodes(3), data)
    for gone in (3, N):
        with pytest.raises(ValueError, match='removed before'):
            made.remove(nodes(gone), data)
    made.account.limit = 10.0
    with pytest.raises(ValueError, match='without what was removed'):
        made.fit(data)
    blank = data.clone()
    blank.edge_index = data.edge_index[:, (data.edge_index != 3).all(0)]
    spent = made.account.mu
    made.fit(blank)
    # Everybody else pays again, and the count starts anew.
    assert made.account.mu == pytest.approx(math.hypot(spent, made.limit))
    assert made.removals.entries[-1].action == 'retrain'
    assert made.removals.spent == 0
    assert made.predict()[3] == -1
    assert made.remove(nodes(9), blank).units == 1


def test_the_same_data_again_cost_nothing_until_somebody_leaves():
    data = ring()
    made = model(data=data)
    lines = made.account.lines
    assert made.fit(data).account.lines == lines
    held = repr(vars(made))
    assert made._task_seal.digest in held
    from pyg_trust._checks.fingerprints import fingerprint

    task = made._read(data)
    assert task.key not in held
    assert fingerprint(task.x) not in held


def test_a_saved_model_goes_on_and_does_not_go_back(tmp_path):
    data, path = ring(), tmp_path / 'model.pt'
    made = model(data=data)
    plain = made.state_dict()
    made.save(path)
    made.remove(nodes(3), data)
    with pytest.raises(ValueError, match='continue'):
        made.load_state_dict(plain)
    with pytest.raises(ValueError, match='continue'):
        made.load(path)
    made.save(path)

    def other():
        return PrivateNodeClassifier(
            'node', 0.2, 1e-3, num_classes=3, steps=2, epochs=2
        )

    again = other()
    again.load(path)
    assert again.removals.head == made.removals.head
    assert again.predict(x=data.x)[3] == -1
    assert again.remove(nodes(9), data).units == 2
    again.save(path)
    assert not again.released[0][[3, 9]].any()
    with pytest.raises(Exception, match='has changed'):
        made.save(path)
    # Without the secret file nothing is known of the release's edges.
    fresh = other()
    fresh.load_state_dict(plain)
    with pytest.raises(RuntimeError, match='fit data first'):
        fresh.remove(nodes(3), data)


def test_a_file_whose_units_were_changed_is_refused(tmp_path):
    data = ring()
    made = model(data=data)
    made.remove(nodes(3), data)
    made.save(tmp_path / 'a')
    from pyg_trust import files

    state = files.load(tmp_path / 'a')
    for key, value in (
        ('held', [1]),
        ('held', 'a'),
        ('seal', ['00' * 32, '00' * 32]),
        ('seal', ['x', 'y']),
        ('removals', {}),
    ):
        fresh = PrivateNodeClassifier(
            'node', 0.2, 1e-3, num_classes=3, steps=2, epochs=2
        )
        with pytest.raises(ValueError, match=r"'state'|budget"):
            fresh.load_state_dict({**state, key: value})
        assert fresh.account is None
    fresh.load_state_dict({**state, 'held': [0, 0.0]})
    with pytest.raises(ValueError, match='edges of the release'):
        fresh.remove(nodes(4), data)


def test_what_can_be_published_confirms_no_guess_and_names_nobody():
    data = ring()
    made = model(data=data)
    made.remove(nodes(3), data)
    names = set(made.state_dict())
    assert not names & {'seal', 'removals', 'held'}


def test_an_interrupt_leaves_everything_as_it_was(monkeypatch):
    data = ring()
    made = model(data=data)
    before, rows = made.removals.head, made.released[0]

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(made), '_reported_of', stop)
    with pytest.raises(KeyboardInterrupt):
        made.remove(nodes(3), data)
    assert made.removals.head == before
    assert torch.equal(made.released[0], rows)
    assert not made.predict().eq(-1).any()


def test_the_report_says_whom_it_does_not_cover():
    data = ring()
    made = model(data=data)
    told = made.remove(nodes(3), data).guarantee()
    assert 'did not decide by looking at this release' in str(told)
    assert 'logs, saved states and backups' in str(told)
    assert told.kind == 'removal'
    json.dumps(told.to_dict())


CASES = {
    'node': (nodes(8, 9), nodes(3)),
    'node_incident': (nodes(8), nodes(3, 4)),
    'feature': (RemovalRequest(features=[8]), RemovalRequest(features=[3, 4])),
    'edge': (
        RemovalRequest(edges=[(0, 1)]),
        RemovalRequest(edges=[(4, 3), (4, 5)]),
    ),
}


def proved(relation, path):
    """A model, the report of its second removal, and the files to check it."""
    data = ring(chords=4)
    more = {'max_degree': 2} if relation == 'node_incident' else {}
    made = model(relation, data, **more)
    for asked in CASES[relation]:
        report = made.remove(asked, data, proof=path / 'proof.npz')
    (path / 'ledger.json').write_text(json.dumps(made.removals.state_dict()))
    return made, report


def found(path, report, values=(), data='proof.npz'):
    """The statuses and texts of a check, of a report with other fields."""
    told = report.guarantee()
    told = lied(
        told.procedure,
        {**told.values, **dict(values)},
        data_sha256=report.data_sha256,
        origin=report.provenance,
    )
    TrustReport((told,)).save(path / 'trust.json')
    return check_report(
        path / 'trust.json',
        ledger=path / 'ledger.json',
        data=None if data is None else path / data,
    )


@pytest.mark.parametrize('relation', CASES)
def test_the_shift_is_recomputed_from_the_lists(relation, tmp_path):
    _, report = proved(relation, tmp_path)
    checks = found(tmp_path, report)
    assert {f.status for f in checks} == {'holds'}, checks
    (shift,) = [f.text for f in checks if ' shift: ' in f.text]
    assert f'{report.shift:.6g} is claimed of {report.units}' in shift


def test_the_shift_of_links_is_recomputed_too(tmp_path):
    data = ring()
    made = PrivateLinkPredictor(epsilon=0.2, delta=1e-3, steps=2).fit(data)
    asked = RemovalRequest(edges=[(0, 1), (2, 1)])
    report = made.remove(asked, data, proof=tmp_path / 'proof.npz')
    ledger = json.dumps(made.removals.state_dict())
    (tmp_path / 'ledger.json').write_text(ledger)
    checks = found(tmp_path, report)
    assert {f.status for f in checks} == {'holds'}, checks


def test_without_the_lists_the_shift_is_not_checked(tmp_path):
    _, report = proved('node', tmp_path)
    for data in (None, 'plain.safetensors'):
        if data is not None:
            edges = torch.tensor([[0, 1], [1, 0]])
            names = torch.tensor([0, 1])
            save_tensors(tmp_path / data, {'edge_index': edges, 'n_id': names})
        checks = found(tmp_path, report, data=data)
        assert {f.status for f in checks} == {'holds', 'not checked'}


@pytest.mark.parametrize('relation', CASES)
def test_less_than_the_lists_move_is_refused(relation, tmp_path):
    made, report = proved(relation, tmp_path)
    for change in (
        {'shift': report.shift - 0.25},
        {'units': report.units - 1},
        {'mu_units': report.mu_units / 2, 'mu_shift': report.mu_shift / 2},
        {'before': '0' * 64},
        {'before': made.removals.entries[0].data},
        {'adjacency': 'edge' if relation != 'edge' else 'node'},
        {'request': CASES[relation][0].to_dict()},
    ):
        checks = found(tmp_path, report, change)
        assert 'FAILS' in {f.status for f in checks}, change
    # All that follows from it made anew, but for the seals.
    for shift, units in (
        (report.shift - 0.5, report.units),
        (report.shift, 1),
    ):
        mu = math.hypot(units * report.mu_units, shift * report.mu_shift)
        lower = {'shift': shift, 'units': units, 'mu': mu}
        lower |= {'history': [*report.history[:-1], mu]}
        lower |= {'epsilon': gaussian_epsilon(mu, 1e-3)}
        checks = found(tmp_path, report, lower)
        failed = [f.text for f in checks if f.status == 'FAILS']
        sealed = any('data: the lists are not' in text for text in failed)
        assert sealed == (units != report.units)
        assert any(' shift: ' in text for text in failed)


def test_a_proof_that_cant_be_written_leaves_everything(tmp_path):
    data = ring()
    made = model(data=data)
    head, rows = made.removals.head, made.released[0]
    with pytest.raises(FileNotFoundError):
        made.remove(nodes(3), data, proof=tmp_path / 'no' / 'proof.npz')
    with pytest.raises(TypeError, match="'proof'"):
        made.remove(nodes(3), data, proof=3)
    assert made.removals.head == head
    assert torch.equal(made.released[0], rows)


def training(loader, **options):
    """An engine, and the parts of its training."""
    engine, net = PrivacyEngine(**options), GCN(2, 4, 1, 2)
    parts = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=8.0,
        max_grad_norm=1.0,
    )
    return engine, *parts


def taken(net, optimizer, batch):
    """Take the step of a batch."""
    out = net(batch.x, batch.edge_index)[: batch.batch_size]
    cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()
    optimizer.zero_grad()


def trained_engine(loader, **options):
    engine, net, optimizer, batches = training(loader, **options)
    for batch in batches:
        taken(net, optimizer, batch)
    return engine


def rows_loader(batch_size=12, steps=2):
    edges = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])
    data = Data(
        x=torch.rand(12, 2),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.arange(12) % 2,
    )
    return DisjointWalkLoader(
        data, batch_size, walk_length=0, num_steps=steps, seed=None
    )


def test_weights_cover_as_many_rows_as_their_noise_hides():
    # All rows are in every step: k of them move two sums by 2 k of 8 / 2.
    engine = trained_engine(rows_loader())
    (z, rate, steps), *_ = engine.accountant.history
    assert (rate, steps) == (1.0, 2)
    last = 0.0
    for k in (1, 2, 5):
        found = engine.covers(RemovalRequest(features=range(k)), 1e-5)
        truth = gaussian_epsilon(k * math.sqrt(steps) * 2 / z, 1e-5)
        assert truth <= found * (1 + 1e-9)
        assert found <= 1.03 * truth
        # More than so many times the epsilon of one.
        assert found > k * last / max(k - 1, 1)
        last = found
    one = engine.covers(RemovalRequest(features=[3]), 1e-5)
    assert one == pytest.approx(engine.accountant.get_epsilon(1e-5), rel=0.02)


def test_a_loader_that_holds_what_was_erased_is_refused(tmp_path):
    asked, ledger = RemovalRequest(features=[3]), tmp_path / 'ledger'
    plain = rows_loader(steps=5)
    shallow = copy.copy(plain)
    engine, net, optimizer, batches = training(plain, ledger=ledger)
    batches = iter(batches)
    taken(net, optimizer, next(batches))
    # What is refused erases nothing.
    with pytest.raises(ValueError, match='features alone'):
        engine.covers(RemovalRequest(nodes=[1]), 1e-5)
    taken(net, optimizer, next(batches))
    waits = next(batches)
    assert engine.covers(asked, 1e-5) > 0
    lines = ledger.read_bytes()
    weights = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(ValueError, match='new loader of the data that remain'):
        taken(net, optimizer, waits)
    for private in (batches, engine._training.loader):
        with pytest.raises((ValueError, StopIteration, RuntimeError)):
            next(iter(private))
    assert engine.steps == 2
    assert ledger.read_bytes() == lines
    assert all(map(torch.equal, weights, net.parameters()))
    assert engine.report(1e-5).steps == 2
    # Copies and pickles say so to other engines and other processes.
    for other in (
        copy.copy(plain),
        shallow,
        copy.deepcopy(plain),
        pickle.loads(pickle.dumps(plain)),
    ):
        with pytest.raises(ValueError, match="'data_loader'"):
            training(other, ledger=ledger)
        with pytest.raises(ValueError, match="'data_loader' holds what"):
            other.batch_sampler.index(0)
    # And the way on.
    engine.close()
    left = plain.data.clone()
    left.x[3] = 0
    left = DisjointWalkLoader(left, 12, walk_length=0, num_steps=5, seed=None)
    again, net, optimizer, batches = training(left, ledger=ledger)
    taken(net, optimizer, next(iter(batches)))
    assert again.steps == 3


def test_weights_cover_nothing_else():
    engine = trained_engine(rows_loader())
    for asked in (
        RemovalRequest(nodes=[1]),
        RemovalRequest(labels=[1]),
        RemovalRequest(edges=[(0, 1)]),
        RemovalRequest(graphs=[0]),
        RemovalRequest(features={1: [0]}),
        RemovalRequest(features=[1], labels=[2]),
    ):
        with pytest.raises(ValueError, match=r"'request' .*features alone"):
            engine.covers(asked, 1e-5)
    with pytest.raises(ValueError, match="'delta'"):
        engine.covers(RemovalRequest(features=[1]))
    with pytest.raises(TypeError, match="'request'"):
        engine.covers([1], 1e-5)
    most = int(10 * engine.accountant.history[0][0])
    loud = RemovalRequest(features=range(most + 1))
    with pytest.raises(ValueError, match=f"'request' .* at most {most}"):
        engine.covers(loud, 1e-5)
    seeded = trained_engine(rows_loader(), insecure_seed=0)
    with pytest.raises(ValueError, match='covers nothing'):
        seeded.covers(RemovalRequest(features=[1]), 1e-5)


@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_weights_cover_graphs_where_graphs_are_private(relation):
    graphs = [
        Data(
            x=torch.rand(3, 2),
            edge_index=torch.tensor([[0, 1], [1, 0]]),
            y=torch.tensor([i % 2]),
        )
        for i in range(20)
    ]
    law = {'batch_size': 5}
    if relation == 'add_remove':
        law |= {'sampling': 'poisson', 'sample_rate': 0.25}
    loader = GraphLoader(graphs, neighboring=relation, num_steps=3, **law)
    engine, model = PrivacyEngine(), Pooled(2)
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=8.0,
        max_grad_norm=1.0,
        forward=lambda model, b: model(b.x, b.edge_index, b.batch),
    )
    for _ in range(3):
        engine.accountant.step(noise_multiplier=8.0, sample_rate=0.25)
    one, two = (
        engine.covers(RemovalRequest(graphs=range(k)), 1e-5) for k in (1, 2)
    )
    assert 0 < 2 * one < two
    with pytest.raises(ValueError, match=r"'request' .*graphs alone"):
        engine.covers(RemovalRequest(nodes=[0]), 1e-5)
