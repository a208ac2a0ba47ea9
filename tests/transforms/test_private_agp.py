"""PrivateAGP: once, on an account, and nothing that has no bound."""

import copy
import hashlib
import math
import pickle

import pytest
import torch
from auditing import above
from racing import paid_by_two
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

from pyg_trust import account, noise
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine, PrivateNodeClassifier
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon, gaussian_mu_for
from pyg_trust.privacy.propagation import messages
from pyg_trust.report import fingerprint
from pyg_trust.transforms import PrivateAGP, release_checks

RELATIONS = [
    {'adjacency': 'edge'},
    {'adjacency': 'node'},
    {'adjacency': 'node', 'neighboring': 'replace'},
    {'adjacency': 'node_incident', 'max_degree': 3},
    {'adjacency': 'feature'},
]


def path(n=12, columns=3):
    row = torch.arange(n - 1)
    edges = torch.stack([row, row + 1])
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(n, columns, generator=generator),
        y=torch.arange(n) % 2,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
    )


def lines(transform):
    return len(transform.account.lines)


@pytest.mark.parametrize('arguments', RELATIONS)
def test_the_same_data_get_the_same_rows_and_another_edge_pays(arguments):
    data = path()
    transform = PrivateAGP(epsilon=1.0, delta=1e-3, **arguments)
    before = copy.deepcopy(data)
    first = transform(data)
    assert torch.equal(data.x, before.x)
    assert torch.equal(data.edge_index, before.edge_index)
    order = torch.randperm(data.num_edges)
    shuffled = Data(x=data.x, edge_index=data.edge_index[:, order])
    assert torch.equal(transform(shuffled).x, first.x)
    assert lines(transform) == 1
    assert transform.report().epsilon <= 1.0
    other = Data(x=data.x, edge_index=data.edge_index[:, 1:-1])
    keep = ~((data.edge_index == 0).any(0))
    other = Data(x=data.x, edge_index=data.edge_index[:, keep])
    with pytest.raises(BudgetExceededError, match='nothing was spent'):
        transform(other)
    assert lines(transform) == 1
    # What was released is still there, and still free.
    assert torch.equal(transform(data).x, first.x)


def test_with_a_price_another_graph_is_another_line():
    data, mu = path(), gaussian_mu_for(1.0, 1e-3)
    transform = PrivateAGP(epsilon=1.0, delta=1e-3, mu=0.7 * mu)
    first = transform(data).x
    data.x = data.x.flip(0)
    second = transform(data).x
    assert lines(transform) == 2
    assert transform.report().epsilon == pytest.approx(
        gaussian_epsilon(math.sqrt(2) * 0.7 * mu, 1e-3)
    )
    assert not torch.equal(first[:, 3:], second[:, 3:])
    data.x = data.x * 2  # the same messages: nothing new to be told
    transform(data)
    assert lines(transform) == 2
    data.x = data.x + 1
    with pytest.raises(BudgetExceededError):
        transform(data)


def test_a_fresh_process_draws_other_noise_or_none(tmp_path):
    data, file = path(), tmp_path / 'ledger'
    arguments = {'mu': 0.5, 'delta': 1e-3, 'ledger': file, 'insecure_seed': 1}
    transform = PrivateAGP(**arguments)
    first = transform(data).x
    transform.account.close()
    again = PrivateAGP(**arguments)
    second = again(data).x
    assert lines(again) == 2
    assert not torch.equal(first, second), 'the same seed, but not the noise'
    again.account.close()
    spent = PrivateAGP(epsilon=0.1, delta=1e-3, ledger=file, insecure_seed=1)
    with pytest.raises(BudgetExceededError):
        spent(data)
    spent.account.close()
    other = PrivateAGP(adjacency='node', mu=0.5, delta=1e-3, ledger=file)
    with pytest.raises(ValueError, match='another mechanism'):
        other(data)


def test_what_is_released_is_the_sum_and_noise_of_its_deviation():
    data = path(3000, 4)
    for arguments in RELATIONS[:4]:
        transform = PrivateAGP(2, mu=2.0, delta=1e-5, cat=False, **arguments)
        rows = transform.released(data)
        n = data.num_nodes
        A = torch.sparse_coo_tensor(
            data.edge_index.flip(0),
            torch.ones(data.num_edges).double(),
            (n, n),
        )
        sent = messages(data.x)
        for row, std in zip(rows, transform.noise_stds, strict=True):
            if arguments['adjacency'] == 'node':
                degree = torch.bincount(data.edge_index[0], minlength=n)
                sent = sent / degree.double().sqrt()[:, None]
            drawn = (row - A @ sent) / std
            assert noise.p_value(drawn) > noise.LEAST_P_VALUE
            sent = messages(row)
        # mu of both hops together, by what neighbours move.
        each = transform.relation.sensitivity / transform.noise_stds[0]
        assert math.sqrt(2) * each == pytest.approx(2.0)
        assert transform.report().mu == pytest.approx(2.0)


@pytest.mark.parametrize('arguments', RELATIONS)
def test_raw_rows_are_in_the_output_where_they_are_known(arguments):
    made = PrivateAGP(mu=1.0, delta=1e-3, **arguments)(path()).x
    wide = arguments['adjacency'] == 'edge'
    assert made.shape == (12, 6 if wide else 3)
    transform = PrivateAGP(mu=1.0, delta=1e-3, cat=True, **arguments)
    transform(path())
    said = ' '.join(transform.report().not_covered)
    assert ('raw rows' in said) == (not wide)


def bad_graphs():
    edges = path().edge_index
    loop = torch.tensor([[3], [3]])
    yield 'directed', {'edge_index': edges[:, :5]}, {}
    yield 'directed', {}, {'directed': True}
    yield 'self-loops', {'edge_index': torch.cat([edges, loop], 1)}, {}
    yield 'duplicate', {'edge_index': torch.cat([edges, edges], 1)}, {}
    yield 'weight', {'edge_weight': torch.ones(22)}, {}
    yield 'own', {'propagated': ('x',)}, {}


@pytest.mark.parametrize('relation', ['edge', 'node'])
@pytest.mark.parametrize('case', bad_graphs(), ids=lambda c: c[0])
def test_what_can_not_be_accounted_for_spends_nothing(relation, case):
    said, changes, arguments = case
    data = path()
    for name, value in changes.items():
        data[name] = value
    transform = PrivateAGP(adjacency=relation, mu=1.0, delta=1e-3, **arguments)
    with pytest.raises(ValueError, match=said):
        transform(data)
    assert transform.account is None


def test_other_data_and_copies():
    transform = PrivateAGP(mu=1.0, delta=1e-3)
    with pytest.raises(TypeError, match='homogeneous'):
        transform(HeteroData())
    transform(path())
    with pytest.raises(ValueError, match='12 nodes'):
        transform(path(13))
    assert copy.deepcopy(transform) is transform
    with pytest.raises(TypeError, match='pickled'):
        pickle.dumps(transform)
    transform._owner += 1  # as a worker that was forked finds it
    with pytest.raises(RuntimeError, match='another process'):
        transform(path())


def test_reports_of_blanks_say_what_replacing_costs():
    transform = PrivateAGP(
        adjacency='node', neighboring='add_remove', epsilon=8.0, delta=1e-5
    )
    transform(path())
    report = transform.report()
    # Two steps by way of a blank: the specification has 19.1 for 8.
    assert report.epsilon_replace == pytest.approx(19.1, abs=0.05)
    assert 'any other record' in report.explain()
    assert above(report.epsilon_replace) in report.explain()
    other = PrivateAGP(adjacency='node', epsilon=8.0, delta=1e-5)
    other(path())
    assert other.report().epsilon_replace is None
    assert 'any other record' not in other.report().explain()


@pytest.mark.parametrize('form', ['add_remove', 'replace'])
def test_reports_say_what_holds(form):
    transform = PrivateAGP(
        adjacency='node', neighboring=form, epsilon=8.0, delta=1e-5
    )
    transform(path())
    report = transform.report()
    assert report.epsilon == pytest.approx(8.0, rel=1e-9)
    # An edge moves sums by the root of 2, a record by 1 or 2.
    moved = math.sqrt(2) / (1 if form == 'add_remove' else 2)
    assert report.mu_edge == pytest.approx(moved * report.mu)
    assert (report.arithmetic, report.grid_exponent) == ('exact', -32)
    assert report.rho == 0
    assert not any('floating' in line for line in report.assumptions)
    assert 'All rows may be published' in report.explain()
    for said in ('ids', 'train mask', "'feature'", 'others name'):
        assert any(said in line for line in report.not_covered)
    assert report.guarantee().kind == 'privacy'
    report.to_json()
    incident = PrivateAGP(
        adjacency='node_incident', max_degree=16, epsilon=4.0, delta=1e-5
    )
    incident(path())
    report = incident.report()
    assert report.rows == 'others'
    curve = dict(report.degree_curve)
    # Of the specification, by another program.
    for degree, epsilon in ((4, 1.83), (32, 5.99), (64, 9.08), (128, 14.0)):
        assert curve[degree] == pytest.approx(epsilon, abs=0.02)


def trained(ledger=None, loader=None, **target):
    torch.manual_seed(0)
    net, data = GCNConv(3, 2), path(60)
    engine = PrivacyEngine(ledger=ledger)
    loader = {'batch_size': 4, 'walk_length': 1, **(loader or {})}
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(data, num_steps=3, seed=0, **loader),
        noise_multiplier=8.0,
        max_grad_norm=1.0,
        **target,
    )

    def epoch():
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()

    return engine, data, epoch, loader


def test_walks_and_a_release_have_one_account(tmp_path):
    engine, data, epoch, loader = trained(tmp_path / 'ledger')
    epoch()
    transform = PrivateAGP(adjacency='feature', mu=0.5, engine=engine)
    first = transform(data).x
    assert torch.equal(transform(data).x, first)
    rate = loader.sample_rate_at(0)
    joint = wor_epsilon([(8.0, rate, 3), (4.0, 1.0, 1)], 1e-3)
    apart = wor_epsilon([(8.0, rate, 3)], 1e-3) + gaussian_epsilon(0.5, 1e-3)
    assert engine.get_epsilon(1e-3) == pytest.approx(joint)
    assert transform.report(1e-3).epsilon == pytest.approx(joint)
    assert joint < apart
    epoch()  # and training goes on
    assert engine.steps == 7
    engine.close()
    again, *_ = trained(tmp_path / 'ledger')
    assert again.get_epsilon(1e-3) > joint
    again.close()


def test_walks_by_coins_and_a_release_have_one_account(tmp_path):
    # Coins that always fall on heads: all is Gaussian, with a closed form.
    size = DisjointWalkLoader(path(60), 1, 1, seed=0).num_subgraphs
    coins = {'batch_size': size, 'sampling': 'poisson'}
    engine, data, epoch, _ = trained(tmp_path / 'ledger', coins)
    epoch()
    PrivateAGP(adjacency='feature', mu=0.5, engine=engine)(data)
    want = gaussian_epsilon(math.sqrt(3 * (2 / 8) ** 2 + 0.5**2), 1e-3)
    found = engine.get_epsilon(1e-3)
    assert 0 <= found / want - 1 < 1e-4
    said = str(engine.report(1e-3).assumptions)
    assert 'a noisy release of mu 0.5' in said
    engine.close()
    # What was spent is on the disk, the release too.
    again, *_ = trained(tmp_path / 'ledger', coins)
    assert again.get_epsilon(1e-3) == found
    again.close()


@pytest.mark.parametrize('sampling', ['without_replacement', 'poisson'])
def test_a_release_does_not_exceed_the_budget_of_training(sampling):
    engine, data, epoch, loader = trained(
        loader={'sampling': sampling}, target_epsilon=1.0, target_delta=1e-3
    )
    epoch()
    steps = engine.steps
    with pytest.raises(BudgetExceededError, match='nothing was spent'):
        PrivateAGP(adjacency='feature', mu=0.5, engine=engine)(data)
    assert engine.steps == steps
    next(iter(loader))
    with pytest.raises(RuntimeError, match='step was not taken'):
        PrivateAGP(adjacency='feature', mu=0.01, engine=engine)(data)


def test_two_threads_have_one_account(monkeypatch):
    transform = PrivateAGP(adjacency='edge', epsilon=1.0, delta=1e-3)

    def release(seed):
        data = path()
        data.x = torch.randn(data.x.shape)
        transform(data)

    assert paid_by_two(monkeypatch, release) == 1
    assert transform.report().releases == 1


def test_a_cell_that_is_run_again_warns_of_what_it_spends(tmp_path):
    data, asked = path(), {'epsilon': 1.0, 'delta': 1e-5}
    first = PrivateAGP(**asked)
    first(data)
    # The same transform, or another with the same ledger, is one account.
    first(data)
    mu = first.report().mu
    for number in (2, 3):
        both = gaussian_epsilon(math.sqrt(number) * mu, 1e-5)
        with pytest.warns(UserWarning, match=f'epsilon {above(both)}') as seen:
            PrivateAGP(**asked)(data)
        assert seen[0].filename == __file__
    # So with a classifier, whose edges these are as well.
    data.y = torch.arange(12) % 2
    data.train_mask = torch.ones(12, dtype=torch.bool)
    with pytest.warns(UserWarning, match='released before') as seen:
        PrivateNodeClassifier('edge', 1.0, 1e-5, epochs=1).fit(data)
    assert seen[0].filename == __file__


def test_who_guesses_data_finds_no_digest_of_them():
    PrivateAGP(mu=0.1, delta=1e-5)(path())
    (digest,) = account._RELEASED
    graph = CSRGraph.from_data(path())
    plain = fingerprint(graph.rowptr, graph.col)
    for text in (plain, f'edges {plain}', f'edge either edges {plain}'):
        assert digest != hashlib.blake2b(text.encode()).digest()


def test_one_of_several_processes_releases_nothing(monkeypatch):
    # Under torchrun each would release, and claim to be the only one.
    transform = PrivateAGP(mu=0.1, delta=1e-5)
    kept = PrivateAGP(mu=0.1, delta=1e-5)
    kept(path())
    data = path()
    data.y = torch.arange(12) % 2
    data.train_mask = torch.ones(12, dtype=torch.bool)
    model = PrivateNodeClassifier('node', 1.0, 1e-5)
    monkeypatch.setattr(release_checks, 'rank_and_size', lambda: (1, 2))
    with pytest.raises(RuntimeError, match=r'made once.*rank 1 of 2'):
        transform(path())
    with pytest.raises(RuntimeError, match=r'made once.*rank 1 of 2'):
        model.fit(data)
    assert transform.account is model.account is None
    # What was released before is there for all.
    assert kept(path()).x.shape == (12, 6)
