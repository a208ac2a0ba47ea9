"""Link classifiers that forget, against a solver in numpy from scratch."""

import copy

import numpy as np
import pytest
import torch
from graphs import blocks
from living import World
from states import same
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from pyg_trust import rng
from pyg_trust.erasure import ErasureDesk
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ForgetReport, LinkClassifier
from pyg_trust.unlearning.links import PairState
from pyg_trust.unlearning.sums import Sums
from pyg_trust.update import NewNodes, Update

N, D, LAM, NAMES, PARTNERS, SEED, SCALE = 40, 5, 0.02, 48, 3, 7, 4.0


def graph(seed=0, n=N):
    random = torch.Generator().manual_seed(seed)
    ends = torch.randint(n, (2, 3 * n), generator=random)
    # A self-loop is a message and no example.
    ends = torch.cat(
        [ends[:, ends[0] != ends[1]], torch.tensor([[4], [4]])], 1
    )
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.randn(n, D, generator=random, dtype=torch.float64) / 2
    return Data(x=x, edge_index=ends)


def fitted(data=None, **kwargs):
    given = {'K': 2, 'weight_decay': LAM, 'scale': SCALE, 'seed': 0, **kwargs}
    model = LinkClassifier(partners=PARTNERS, pair_seed=SEED, **given)
    return model.fit(graph() if data is None else data, num_names=NAMES)


PARTNER = rng.derive_each(SEED, torch.arange(NAMES * PARTNERS)) % NAMES
PARTNER = PARTNER.tolist()


class Linked(World):
    """A graph, and the pairs of its present nodes."""

    def pairs(self):
        """Ends and signs, by definition."""
        made = [(u, v, 1) for u, v in sorted(self.edges) if u < v]
        for u in sorted(self.x):
            for j in range(PARTNERS):
                v = PARTNER[u * PARTNERS + j]
                if v in self.x and v != u:
                    made.append((u, v, -1))
        return made

    def rows(self):
        """Pairs as rows of a dense matrix, and their signs."""
        names = sorted(self.x)
        place = {v: i for i, v in enumerate(names)}
        matrix = np.eye(len(names))
        for u, v in self.edges:
            matrix[place[u], place[v]] = 1
        root = 1 / np.sqrt(matrix.sum(1))
        step = root[:, None] * matrix * root
        z = step @ step @ np.stack([self.x[v].numpy() for v in names])
        pairs = self.pairs()
        made = [
            [*(SCALE * z[place[u]] * z[place[v]]), 1.0] for u, v, _ in pairs
        ]
        return np.array(made), np.array([sign for *_, sign in pairs])


def gradient(rows, signs, w):
    slope = -signs / (1 + np.exp(signs * (rows @ w)))
    return rows.T @ slope + LAM * len(rows) * w


def solved(rows, signs):
    """Newton's method."""
    w = np.zeros(rows.shape[1])
    for _ in range(15):
        p = 1 / (1 + np.exp(-(rows @ w)))
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows
        hessian += LAM * len(rows) * np.eye(len(w))
        w = w - np.linalg.solve(hessian, gradient(rows, signs, w))
    assert np.linalg.norm(gradient(rows, signs, w)) < 1e-9
    return w


def ordered(data):
    """Rows with their signs, in an order of their own."""
    there = data.names >= 0
    made = torch.cat([data.Z[there], data.Y[there]], 1).numpy()
    return made[np.lexsort(np.round(made, 9).T)]


def check(model, world, report):
    """Compare a state with what it should be from scratch."""
    data, W = model._model.data, model._model.W.numpy()[:, 0]
    rows, signs = world.rows()
    wanted = np.column_stack([rows, signs])
    wanted = wanted[np.lexsort(np.round(wanted, 9).T)]
    assert np.allclose(ordered(data), wanted, atol=1e-9)
    assert report.num_train == len(rows) == model.num_train
    # What rounding of features hides here is far below the bound.
    assert np.linalg.norm(gradient(rows, signs, W)) <= report.bound
    far = np.linalg.norm(W - solved(rows, signs))
    assert far <= report.distance_bound
    assert report.distance_bound == pytest.approx(
        report.bound / (LAM * len(rows)), rel=1e-12
    )


@pytest.mark.parametrize('seed', range(2))
def test_mixed_updates_leave_the_pairs_of_what_is_there(seed):
    data = graph(seed)
    model, world = fitted(data), Linked(data, seed, most=NAMES)
    for step in range(40):
        report = model.update(world.draw(), release=True)
        assert isinstance(report, ForgetReport)
        check(model, world, report)
        if step % 5 == 0:
            found = model.verify()
            assert found.ok, found
            assert found.feature_error == 0


def test_several_updates_wait_and_are_one_release():
    data = graph()
    model, world = fitted(data), Linked(data, 3, most=NAMES)
    given = [world.draw() for _ in range(12)]
    check(model, world, model.update(given, release=True))
    # Edges that leave and come again, in either direction, in one update.
    u, v = sorted(next((u, v) for u, v in world.edges if u < v))
    again = Update(edges=torch.tensor([[v], [u]]))
    gone = RemovalRequest(edges=[(u, v)])
    check(model, world, model.update([gone, again]))
    check(model, world, model.update([gone, again, gone, again]))
    before = model.decision_function(torch.tensor([[u], [v]]))
    model.update([gone])
    model.update(again)
    assert model.pending == 1
    waits = copy.deepcopy(model)
    assert waits.verify().ok
    check(model, world, model.release())
    assert model.decision_function(torch.tensor([[u], [v]])) == pytest.approx(
        before.item(), abs=0.01
    )


def test_two_ways_to_a_graph_end_with_one_file(tmp_path):
    one, two = fitted(), fitted()
    edge = tuple(graph().edge_index[:, 0].tolist())
    one.remove(RemovalRequest(nodes=[20, 30], edges=[edge]))
    for each in ({'nodes': [30]}, {'edges': [edge]}, {'nodes': [20]}):
        two.remove(RemovalRequest(**each))
    held = [model.state_dict()['data'] for model in (one, two)]
    assert same(*held)
    path = tmp_path / 'links.pt'
    one.save(path)
    other = LinkClassifier(
        K=2, weight_decay=LAM, scale=SCALE, partners=PARTNERS, pair_seed=SEED
    )
    other.load(path)
    one.flush()
    two.flush()
    assert torch.equal(one._model.data.Z, two._model.data.Z)
    for model in (two, other):
        assert torch.equal(model._model.W, one._model.W)
    assert same(other.state_dict(), one.state_dict())
    assert other.verify().ok
    with pytest.raises(ValueError, match='pairs'):
        LinkClassifier(K=2, weight_decay=LAM).load(path)


ENDS = PairState._ends


def drawn_anew(self, keys):
    seed = self.pairs.seed + int((~self.graph.alive).sum())
    self.pairs = self.pairs._replace(seed=seed)
    found = ENDS(self, keys)
    self.pairs = self.pairs._replace(seed=SEED)
    return found


FAULTS = {
    # Rows that a message changed stay as they were.
    'rows': (Sums, 'touched', lambda self, *_: torch.tensor([0])),
    # The message goes, and the example stays.
    'example': (Sums, 'has_edges', lambda self, e: torch.ones(e.size(1)) > 0),
    # Partners depend on how many have left.
    'names': (PairState, '_ends', drawn_anew),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_planted_faults_are_found(fault, monkeypatch):
    model = fitted()
    model.remove(RemovalRequest(nodes=[7]))
    assert model.verify().ok
    where, name, instead = FAULTS[fault]
    u, v = model._model.data.ends[:, 0].tolist()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, instead)
        request = {'nodes': [9]} if fault == 'names' else {'edges': [(u, v)]}
        model.remove(RemovalRequest(**request))
        # A fault that the computation from scratch shares is found as well.
        if fault == 'names':
            assert not model.verify().ok
    if fault != 'names':
        found = model.verify()
        assert not found.ok
        assert found.feature_error > 0


@pytest.mark.parametrize('part', ['Z', 'W', 'names'])
def test_verification_finds_what_is_changed(part):
    model = fitted()
    model.remove(RemovalRequest(nodes=[7]))
    held = model._model
    if part == 'W':
        model._model = held._replace(W=held.W + 1e-3)
    else:
        tensor = getattr(held.data, part)
        tensor[0] += 1e-9 if part == 'Z' else 1
    assert not model.verify().ok


@pytest.mark.parametrize('stage', ['_write', '_append', 'follow'])
def test_what_fails_is_undone(stage, monkeypatch):
    model = fitted()
    model.remove(RemovalRequest(nodes=[7]))

    def seen():
        data = model._model.data
        held = [data.names, data.ends, data.y, data.Y, data.Z, data.cuts]
        return copy.deepcopy([held, model.state_dict()])

    before, way = seen(), getattr(PairState, stage)

    def fails(self, *args):
        way(self, *args)
        raise KeyboardInterrupt

    update = Update(
        remove=RemovalRequest(nodes=[3]),
        nodes=NewNodes(torch.ones(1, D)),
        edges=torch.tensor([[N], [5]]),
    )
    with monkeypatch.context() as patch:
        patch.setattr(PairState, stage, fails)
        with pytest.raises(KeyboardInterrupt):
            model.update(update, release=True)
    assert same(seen(), before)
    model.plan(update)
    assert same(seen(), before)
    assert model.update(update, release=True).bound
    assert model.verify().ok


def test_rows_that_are_deleted_go_at_once(monkeypatch):
    model = fitted()
    model.remove(RemovalRequest(nodes=[7]))
    data = model._model.data

    class Full:
        def __getitem__(self, rows):
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(data, 'Z', Full())
        with pytest.raises(MemoryError):
            data.compact()
    assert data.ends.size(1) == data.names.numel() == data.Z.size(0)
    assert model.verify().ok
    data.compact()
    assert data.ends.size(1) == data.Z.size(0) == int((data.names >= 0).sum())
    assert model.verify().ok


def test_data_of_pyg_are_taken_and_a_desk_removes(tmp_path):
    data = blocks()
    torch.manual_seed(0)
    split = RandomLinkSplit(
        num_test=0.2, is_undirected=True, add_negative_train_samples=False
    )
    train, _, test = split(Data(x=data.x, edge_index=data.edge_index))
    model = LinkClassifier(K=1, weight_decay=1e-2, seed=0).fit(train)
    scores = model.decision_function(test.edge_label_index)
    assert scores.shape == test.edge_label.shape
    assert torch.equal(model.predict(test.edge_label_index), (scores > 0) * 1)
    chance = model.predict_proba(test.edge_label_index)
    assert torch.allclose(chance[:, 1], scores.sigmoid())
    assert model.decision_function(torch.empty(2, 0).long()).shape == (0,)
    path = tmp_path / 'links.pt'
    model.save(path)
    desk = ErasureDesk(tmp_path / 'desk.db')
    desk.register('links', model, save=path)
    desk.add(RemovalRequest(nodes=[4]), immediately=True)
    assert len(desk.run(confirm=True)) == 1
    desk.close()
    late = LinkClassifier(K=1, weight_decay=1e-2, seed=0)
    late.load(path)
    assert 4 not in late.nodes.tolist()
    # Pairs of somebody who was removed keep their place.
    pairs = torch.tensor([[4, 5], [5, 6]])
    assert late.decision_function(pairs).isnan().tolist() == [True, False]
    found = late.predict(pairs)
    assert found[0] == -1
    assert late.score(pairs, found) == 1
    with pytest.raises(ValueError, match='a pair that is there'):
        late.score(pairs[:, :1], found[:1])


def test_a_newcomer_costs_as_much_however_many_may_come(monkeypatch):
    counted, derive = [], rng.derive_each
    monkeypatch.setattr(
        rng,
        'derive_each',
        lambda seed, i: counted.append(i.numel()) or derive(seed, i),
    )
    spent = []
    for most in (100, 100_000):
        model = LinkClassifier(K=1, weight_decay=0.1, seed=0, partners=3)
        model.fit(graph(), num_names=most)
        counted.clear()
        model.update(Update(nodes=torch.rand(2, D).double()), release=True)
        spent.append(sum(counted))
        # The pairs are those of a fit of the present graph.
        assert model.verify().ok
    assert max(spent) < 60


def test_links_have_the_ids_of_their_data():
    one, two = fitted(), graph()
    two.n_id = torch.randperm(300)[:N]
    ids, two = two.n_id.tolist(), fitted(two)
    u, v = next((u, v) for u, v in two.graph.to_edge_index()[0].t() if u < v)
    one.remove(nodes=[3], edges=[(int(u), int(v))])
    two.remove(nodes=[ids[3]], edges=[(ids[u], ids[v])])
    assert torch.equal(one.weight, two.weight)
    assert two.verify().ok


def test_links_are_learnt_and_the_own_edge_is_not_needed():
    # Two communities: pairs inside score above pairs across.
    n = 60
    random = torch.Generator().manual_seed(1)
    same_side = (torch.arange(n)[:, None] // 30) == (torch.arange(n) // 30)
    chance = torch.rand(n, n, generator=random)
    table = ((chance < 0.3) & same_side).triu(1)
    ends = table.nonzero().t()
    x = torch.randn(n, 8, generator=random) / 3
    x[:30, 0] += 1
    x[30:, 0] -= 1
    data = Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1))
    model = LinkClassifier(K=1, weight_decay=1e-3, scale=4.0, seed=0).fit(data)
    pairs = torch.combinations(torch.arange(n)).t()
    pairs = pairs[:, ~table[pairs[0], pairs[1]]]
    inside = same_side[pairs[0], pairs[1]]
    scores = model.decision_function(pairs)
    assert scores[inside].mean() > scores[~inside].mean() + 1


def test_what_can_not_be_fitted_is_refused():
    data = graph()
    bad = {
        'edge_label': torch.tensor([1.0, 0.0]),
        'edge_label_index': torch.tensor([[0], [0]]),
    }
    for name, value in (*bad.items(), ('edge_label', [1, 0])):
        other = data.clone()
        other[name] = value
        with pytest.raises(ValueError, match=f"'{name}'"):
            fitted(other)
    with pytest.raises(ValueError, match='undirected'):
        fitted(Data(x=data.x, edge_index=data.edge_index[:, :3]))
    weighted = data.clone()
    weighted.edge_weight = torch.rand(data.num_edges)
    with pytest.raises(ValueError, match='unweighted'):
        fitted(weighted)
    with pytest.raises(ValueError, match='an edge'):
        fitted(Data(x=data.x, edge_index=torch.tensor([[4], [4]])))
    with pytest.raises(ValueError, match="'num_names'"):
        LinkClassifier().fit(data, num_names=N - 1)
    with pytest.raises(ValueError, match=r"'num_names'.*'partners'"):
        LinkClassifier(partners=2**60).fit(data, num_names=2**32)
    for x in (data.x.to_sparse_csr(), data.x.to_sparse_coo()):
        with pytest.raises(TypeError, match="'x' needs to be dense"):
            fitted(Data(x=x, edge_index=data.edge_index))
    # Their squares were no numbers, and no matrix was positive definite.
    for more in ({'scale': 1e160}, {'bound': 1e12, 'scale': 1e77}):
        with pytest.raises(ValueError, match=r"'scale'.*'bound'"):
            LinkClassifier(**more)
    ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    model = LinkClassifier(K=1, weight_decay=0.1, seed=0).fit(ring)
    before = model.state_dict()
    with pytest.raises(ValueError, match='no edge to train on'):
        model.remove(RemovalRequest(nodes=[1]))
    with pytest.raises(ValueError, match="'num_names'"):
        model.update(Update(nodes=torch.ones(1, 4)))
    with pytest.raises(ValueError, match="'labels'"):
        model.update(Update(labels=(torch.tensor([1]), torch.tensor([1]))))
    with pytest.raises(ValueError, match='training label of node 1'):
        model.remove(RemovalRequest(labels=[1]))
    assert same(model.state_dict(), before)
    assert model.verify().ok
