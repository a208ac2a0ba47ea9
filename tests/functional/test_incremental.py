"""Features of a graph that changes: the bits of a computation from scratch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_trust import ops
from pyg_trust.functional import (
    Measure,
    appnp,
    dynamic_graph,
    heat,
    ppr,
    propagate,
    sgc,
    single_target,
    transition,
)
from pyg_trust.functional import incremental as module
from pyg_trust.functional.dynamic_graph import DynamicGraph, Edit, Journal
from pyg_trust.functional.incremental import LevelState, SeriesState
from pyg_trust.graph import CSRGraph

NONE = torch.empty((2, 0), dtype=torch.int64)


def geometric(alpha, levels):
    follow = 1 - alpha
    return (*(alpha * follow**i for i in range(levels)), follow**levels)


MEASURES = {
    'sgc2': sgc(2),
    'appnp': appnp(0.2, levels=6),
    'gbp': Measure(0.3, 0.7, geometric(0.15, 4), True, True),
    'ppr': ppr(0.2, levels=6),
    'reverse': single_target(0.2, levels=6),
}


class Model:
    """A graph, its features and the same thing from scratch."""

    def __init__(self, edge_index, x, measure):
        graph = CSRGraph.from_edge_index(edge_index, x.size(0))
        self.measure = measure
        self.graph = DynamicGraph(graph, measure.self_loops, measure.along)
        self.state = LevelState(self.graph, x, measure)
        self.x = x.clone()
        self.journal = Journal()

    def remove(self, nodes=(), edges=(), features=()):
        nodes = torch.tensor(sorted(nodes), dtype=torch.int64)
        edges = torch.tensor(list(edges), dtype=torch.int64).view(-1, 2).t()
        changed = torch.tensor(
            sorted({*nodes.tolist(), *features}), dtype=torch.int64
        )
        structure = self.graph.remove(nodes, edges, self.journal)
        self.x[changed] = 0
        return self.state.update(Edit(structure, changed))

    def insert(self, edges):
        edges = torch.tensor(list(edges), dtype=torch.int64).view(-1, 2).t()
        structure = self.graph.insert(edges, self.journal)
        return self.state.update(
            Edit(structure, torch.empty(0, dtype=torch.int64))
        )

    def scratch(self):
        """All rows of a new state of what is there, and their names."""
        ids = self.graph.alive.nonzero().view(-1)
        place = torch.full((self.graph.num_nodes,), -1)
        place[ids] = torch.arange(ids.numel())
        graph = CSRGraph.from_edge_index(
            place[self.graph.edge_index()], ids.numel()
        )
        fresh = DynamicGraph(
            graph, self.measure.self_loops, self.measure.along
        )
        return LevelState(fresh, self.x[ids], self.measure), ids, graph

    def check(self):
        fresh, ids, graph = self.scratch()
        z = self.state.rows()
        assert torch.equal(z[ids], fresh.rows())
        assert not z[~self.graph.alive].any()
        for mine, other in zip(self.state.sent, fresh.sent, strict=True):
            assert torch.equal(mine[ids], other)
        public = propagate(graph, self.x[ids], self.measure)
        torch.testing.assert_close(
            z[ids],
            public,
            rtol=0,
            atol=1e-13 * (1 + float(self.x.abs().max())),
        )


def random_graph(n, m, seed, loops=0, directed=False):
    random = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n, (2, m), generator=random)
    # A hub, and isolated nodes at both ends.
    pairs = torch.cat([pairs, torch.stack([pairs[0], torch.full((m,), 3)])], 1)
    pairs = pairs[:, (pairs > 0).all(0) & (pairs < n - 1).all(0)]
    pairs = pairs[:, pairs[0] != pairs[1]]
    if not directed:
        pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    ring = torch.arange(1, 1 + loops)
    pairs = torch.cat([pairs, torch.stack([ring, ring])], dim=1)
    return torch.unique(pairs, dim=1)


@pytest.fixture(scope='module')
def oracle(shared):
    held = np.load(shared / 'oracles/node_unlearning/propagation.npz')
    return {name: torch.from_numpy(held[name]) for name in held.files}


@pytest.mark.parametrize('name', MEASURES)
@pytest.mark.parametrize(
    'request_name',
    ['edge', 'edge_to_leaf', 'node_hub', 'node_isolated', 'feature', 'batch'],
)
def test_rows_after_a_request_are_those_of_dense_matrices(
    oracle, name, request_name
):
    model = Model(oracle['edge_index'], oracle['x'], MEASURES[name])
    before = model.state.rows()
    torch.testing.assert_close(
        before, oracle[f'before/{name}'], rtol=0, atol=1e-12
    )
    named = {0: [], 1: [], 2: []}
    for kind, u, v in oracle[f'{request_name}/request'].tolist():
        named[kind].append((u, v) if kind == 1 else u)
    gone = set(named[0])
    edges = [edge for edge in named[1] if gone.isdisjoint(edge)]
    touched = model.remove(named[0], edges, named[2])
    z = model.state.rows()
    torch.testing.assert_close(
        z, oracle[f'{request_name}/{name}'], rtol=0, atol=1e-12
    )
    model.check()
    changed = set((z != before).any(1).nonzero().view(-1).tolist())
    if touched.nodes is not None:
        assert changed <= set(touched.nodes.tolist())
    model.state.undo()
    model.journal.undo()
    assert torch.equal(model.state.rows(), before)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*MEASURES, 'float32', 'loops', 'directed'])
def test_two_hundred_requests_leave_the_bits_of_a_fresh_computation(name):
    measure = MEASURES.get(name, sgc(2))
    loops, directed = 5 if name == 'loops' else 0, name == 'directed'
    if directed:
        measure = Measure(0.5, 0.5, geometric(0.2, 3))
    n = 120
    edge_index = random_graph(n, 200, 0, loops, directed)
    x = torch.randn((n, 5), generator=torch.Generator().manual_seed(1))
    model = Model(edge_index, x if name == 'float32' else x.double(), measure)
    if name == 'float32':
        model.check = lambda: (
            torch.equal(
                model.state.rows()[model.scratch()[1]],
                model.scratch()[0].rows(),
            )
            or pytest.fail('rows differ')
        )
    random = torch.Generator().manual_seed(2)

    def draw(count):
        return int(torch.randint(count, (), generator=random))

    counts = [0, 0, 0]
    for step in range(200):
        edges = model.graph.edge_index().t().tolist()
        alive = model.graph.alive.nonzero().view(-1).tolist()
        kind = draw(10)
        if step == 20:
            model.remove([3])  # the hub
        elif step == 30:
            model.remove([0], features=[n - 1])  # isolated
        elif kind < 2 and len(alive) > 40:
            gone = {alive[draw(len(alive))] for _ in range(1 + draw(2))}
            model.remove(gone)
            counts[0] += 1
        elif kind < 6 and edges:
            some = {tuple(edges[draw(len(edges))]) for _ in range(1 + draw(3))}
            some |= {edge[::-1] for edge in some} if not directed else set()
            model.remove(edges=some)
            counts[1] += 1
        elif kind < 8:
            u, v = alive[draw(len(alive))], alive[draw(len(alive))]
            if [u, v] not in edges and (u != v or loops):
                model.insert([(u, v)])
        else:
            model.remove(features=[alive[draw(len(alive))]])
            counts[2] += 1
        if step % 5 == 0 or step < 20:
            model.check()
    model.check()
    assert min(counts) > 10
    model.state.undo()
    model.journal.undo()
    first = Model(edge_index, model.state.x, measure)
    assert torch.equal(model.graph.edge_index(), first.graph.edge_index())
    assert torch.equal(model.state.rows(), first.state.rows())


def test_parts_of_a_batch_commute_to_the_bit():
    edge_index = random_graph(40, 60, 3)
    x = torch.randn((40, 3), dtype=torch.float64)
    edges = edge_index.t().tolist()
    u, v = next(edge for edge in edges if 3 not in edge)
    first, second, third = (Model(edge_index, x, sgc(2)) for _ in range(3))
    first.remove([3], [(u, v)], [7])
    second.remove([3])
    second.remove(edges=[(v, u)])
    second.remove(features=[7])
    third.remove(features=[7])
    third.remove(edges=[(u, v), (v, u)])
    third.remove([3])
    assert torch.equal(first.state.rows(), second.state.rows())
    assert torch.equal(first.state.rows(), third.state.rows())


def test_neighbours_of_a_changed_degree_change_at_the_first_level():
    # 0 - 1, 0 - 2: without the edge 0 - 1 node 2 gets more of node 0.
    edge_index = torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
    x = torch.eye(3, dtype=torch.float64)
    model = Model(edge_index, x, sgc(1))
    before = model.state.rows()
    touched = model.remove(edges=[(0, 1)])
    after = model.state.rows()
    assert before[2, 0] == pytest.approx(1 / math.sqrt(6))
    assert after[2, 0] == pytest.approx(1 / 2)
    assert touched.nodes is None or 2 in touched.nodes.tolist()


def test_an_update_of_the_ends_alone_is_found_out(monkeypatch):
    # The planted fault: what S sends is not computed again.
    monkeypatch.setattr(module, 'WHOLE_ABOVE', 2.0)
    model = Model(random_graph(60, 50, 4), torch.randn(60, 2).double(), sgc(2))
    edge = model.graph.edge_index()[:, 0].tolist()
    structure = model.graph.remove(
        torch.empty(0, dtype=torch.int64),
        torch.tensor([edge]).t(),
        model.journal,
    )
    take = model.state._take

    def forgets(edit, x):
        take(edit, x)
        before = model.state.sent[0].clone()
        model.state.sent[0] = before
        model.state.send[edit.structure] = old

    old = model.state.send[structure].clone()
    monkeypatch.setattr(model.state, '_take', forgets)
    model.state.update(Edit(structure, torch.empty(0, dtype=torch.int64)))
    fresh, ids, _ = model.scratch()
    assert not torch.equal(model.state.rows()[ids], fresh.rows())


def test_a_level_as_a_whole_has_the_bits_of_its_rows(monkeypatch):
    edge_index, x = random_graph(80, 150, 5), torch.randn(80, 35).double()
    found = []
    for share in (0.0, 2.0):
        monkeypatch.setattr(module, 'WHOLE_ABOVE', share)
        model = Model(edge_index, x, heat(2.0, levels=3))
        touched = model.remove([5], features=[9])
        assert (touched.nodes is None) == (share == 0)
        found.append(model.state.rows())
    assert torch.equal(*found)


@pytest.mark.parametrize('columns', [1, 2, 3, 7, 8, 31, 33, 70])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rows_do_not_depend_on_their_company(columns, dtype, threads):
    edge_index = random_graph(600, 3000, 6)
    x = torch.randn((600, columns), dtype=dtype)
    model = Model(edge_index, x, appnp(0.1, levels=3))
    whole = model.state.rows()
    threads(2)
    assert torch.equal(model.state.rows(), whole)
    some = torch.randperm(600)[:100]
    assert torch.equal(model.state.rows(some), whole[some])
    assert torch.equal(model.state.rows(some[:1]), whole[some[:1]])


@pytest.mark.parametrize('columns', [*range(1, 34), 47, 63, 64, 71])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rows_of_every_width_are_those_of_dense_algebra(columns, dtype):
    # No column is left as it was, of those that fill no vector either.
    n = 25
    graph = CSRGraph.from_edge_index(random_graph(n, 40, 7), n)
    rows = DynamicGraph(graph, True).receiving
    dense = torch.zeros((n, n), dtype=torch.float64)
    for v in range(n):
        first = int(rows.start[v])
        dense[v, rows.col[first : first + int(rows.length[v])].long()] = 1
    random = torch.Generator().manual_seed(columns)
    x = torch.randn((n, columns), generator=random, dtype=torch.float64)
    recv, send = torch.rand((2, n), generator=random).to(dtype)
    y = recv.double()[:, None] * (dense @ x)
    out = torch.full((n, columns), math.nan, dtype=dtype)
    nodes = torch.tensor([n - 1, 3, 0])
    z = torch.ones((3, columns), dtype=dtype)
    x = x.to(dtype)
    ops.pull_rows(rows, None, x, recv, send, out=out)
    ops.pull_rows(rows, nodes, x, recv, send, z=z, weight=0.5)
    close = {'rtol': 0, 'atol': 1e-4 if dtype == torch.float32 else 1e-13}
    torch.testing.assert_close(
        out.double(), send.double()[:, None] * y, **close
    )
    torch.testing.assert_close(z.double(), 1 + 0.5 * y[nodes], **close)


def test_nodes_that_are_added_count_from_then_on():
    edge_index, x = random_graph(30, 40, 7), torch.randn(30, 3).double()
    for measure in (sgc(2), single_target(0.2, levels=2), transition(2)):
        model = Model(edge_index, x, measure)
        before = model.state.rows()
        names = model.graph.grow(2, model.journal)
        model.state.grow(2)
        structure = model.graph.insert(
            torch.tensor([[30, 30, 31], [2, 31, 4]]), model.journal
        )
        new = torch.randn(2, 3).double()
        model.x = torch.cat([x, new])
        model.state.update(
            Edit(torch.cat([structure, names]).unique(), names), new
        )
        model.check()
        model.state.undo()
        model.journal.undo()
        assert model.graph.num_nodes == 30
        assert torch.equal(model.state.rows(), before)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_editing_is_the_inverse_of_editing(data):
    n = data.draw(st.integers(2, 12))
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    edges = data.draw(st.sets(pair, max_size=30))
    directed = data.draw(st.booleans())
    if not directed:
        edges |= {edge[::-1] for edge in edges}
    edge_index = torch.tensor(sorted(edges), dtype=torch.int64).view(-1, 2)
    graph = CSRGraph.from_edge_index(edge_index.t(), n)
    loops = data.draw(st.booleans())
    dynamic = DynamicGraph(graph, loops)
    held = set(edges)
    for _ in range(6):
        journal = Journal()
        before = dynamic.edge_index()
        some = {
            e
            for e in data.draw(st.sets(pair, min_size=1, max_size=5))
            if dynamic.alive[list(e)].all()
        }
        if not dynamic.undirected:
            out, into = some & held, some - held
        else:
            both = some | {e[::-1] for e in some}
            out, into = both & held, both - held
        for kind, chosen in ((dynamic.remove, out), (dynamic.insert, into)):
            pairs = torch.tensor(sorted(chosen), dtype=torch.int64)
            pairs = pairs.view(-1, 2).t()
            none = torch.empty(0, dtype=torch.int64)
            if kind == dynamic.remove:
                kind(none, pairs, journal)
            else:
                kind(pairs, journal)
        after = {*(held - out), *into}
        assert {tuple(e) for e in dynamic.edge_index().t().tolist()} == after
        journal.undo()
        assert torch.equal(dynamic.edge_index(), before)
        dynamic.remove(
            none, torch.tensor(sorted(out)).view(-1, 2).t().long(), journal
        )
        held -= out
        assert {tuple(e) for e in dynamic.edge_index().t().tolist()} == held


@pytest.mark.parametrize('few', [0, 10**6])
@pytest.mark.parametrize('self_loops', [False, True])
def test_edges_are_found_one_by_one_or_together(few, self_loops, monkeypatch):
    monkeypatch.setattr(dynamic_graph, 'FEW', few)
    edges = random_graph(20, 40, 21, loops=4, directed=True)
    there = set(map(tuple, edges.t().tolist()))
    graph = DynamicGraph(CSRGraph.from_edge_index(edges, 20), self_loops)
    asked = torch.cartesian_prod(torch.arange(-2, 23), torch.arange(-2, 23))
    for _ in range(2):
        found = graph.has_edges(asked.t())
        wanted = [pair in there for pair in map(tuple, asked.tolist())]
        assert found.tolist() == wanted
        gone = edges[:, :15]
        nodes = torch.empty(0, dtype=torch.int64)
        graph.remove(nodes, gone, Journal())
        assert graph.num_entries == int(graph.degree.sum())
        there -= set(map(tuple, gone.t().tolist()))
        edges = edges[:, 15:]


def test_the_number_of_entries_goes_back_with_the_edit(monkeypatch):
    edges = random_graph(20, 40, 22)
    graph = DynamicGraph(CSRGraph.from_edge_index(edges, 20), True)
    before, journal = graph.num_entries, Journal()
    nodes = torch.tensor([3, 5])
    graph.remove(nodes, edges[:, :0], journal)
    assert graph.num_entries == int(graph.degree.sum()) < before
    journal.undo()
    assert graph.num_entries == int(graph.degree.sum()) == before
    edit = ops.edit_rows

    def interrupted(*args):
        edit(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, 'edit_rows', interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph.remove(nodes, edges[:, :0], journal)
    monkeypatch.undo()
    journal.undo()
    assert graph.num_entries == int(graph.degree.sum()) == before


def test_edits_that_do_not_fit_change_nothing():
    graph = CSRGraph.from_edge_index(random_graph(20, 20, 8), 20)
    dynamic = DynamicGraph(graph, True)
    before = dynamic.edge_index()
    journal = Journal()
    for nodes, edges, message in (
        ([20], [], 'node 20 is not there'),
        ([], [(0, 19)], 'edge 0 -> 19 is not there'),
        ([1], [(4, 4)], 'edge 4 -> 4 is not there'),
    ):
        with pytest.raises(ValueError, match=message):
            dynamic.remove(
                torch.tensor(nodes, dtype=torch.int64),
                torch.tensor(edges, dtype=torch.int64).view(-1, 2).t(),
                journal,
            )
    with pytest.raises(ValueError, match='is there already'):
        dynamic.insert(before[:, :1], journal)
    assert torch.equal(dynamic.edge_index(), before)
    assert journal.empty


def test_rows_that_were_removed_are_nowhere():
    model = Model(random_graph(50, 80, 9), torch.randn(50, 3).double(), sgc(3))
    model.remove([3, 8])
    model.state.commit()
    gone = torch.tensor([3, 8])
    for array in (model.state.x, *model.state.sent, model.state.recv):
        assert not array[gone].any()
    assert not torch.isin(model.graph.out.view.col, gone.int()).any()
    assert model.state.journal.empty


# Infinite series #############################################################


def dense(model, alpha, a):
    edges = model.graph.edge_index()
    n = model.graph.num_nodes
    adj = torch.zeros((n, n), dtype=torch.float64)
    adj[edges[1], edges[0]] = 1
    if model.measure.self_loops:
        alive = model.graph.alive.nonzero().view(-1)
        adj[alive, alive] = 1
    degree = adj.sum(0)
    left, right = degree**-a, degree ** (a - 1)
    left[degree == 0] = right[degree == 0] = 0
    P = left.unsqueeze(1) * adj * right
    return torch.linalg.inv(torch.eye(n).double() - (1 - alpha) * P) * alpha


class Series(Model):
    def __init__(self, edge_index, x, a, alpha, theta):
        measure = Measure(a, 1 - a, (1.0,), a == 0.5)
        graph = CSRGraph.from_edge_index(edge_index, x.size(0))
        self.measure, self.x = measure, x.clone()
        self.graph = DynamicGraph(graph, measure.self_loops)
        self.state = SeriesState(self.graph, x, measure, alpha, theta)
        self.journal = Journal()


@pytest.mark.parametrize('a', [0.0, 0.3, 0.5, 1.0])
def test_the_error_of_a_series_stays_within_its_bound(a):
    alpha = 0.15
    x = torch.randn((70, 4), generator=torch.Generator().manual_seed(0))
    model = Series(random_graph(70, 90, 10), x.double(), a, alpha, 1e-3)
    for step in range(12):
        edges = model.graph.edge_index().t().tolist()
        if step % 3 == 0:
            model.remove([int(model.graph.alive.nonzero()[step])])
        elif step % 3 == 1:
            model.remove(edges=[edges[7 * step]])
        else:
            model.remove(features=[60 - step])
        M = dense(model, alpha, a)
        exact = M @ model.x
        error = float((model.state.rows() - exact).norm())
        assert error <= model.state.error_bound
        assert model.state.error_bound <= 40 * error
        alive = model.graph.alive
        size = model.state.residue.norm(dim=1)
        assert bool((size <= model.state.limit).all())
        assert not model.state.z[~alive].any()
        # The residual is that of the definition, and not what pushes left.
        inverse = torch.linalg.inv(M) * alpha
        residue = alpha * model.x - inverse @ model.state.z
        torch.testing.assert_close(
            model.state.residue, residue, rtol=0, atol=1e-12
        )
        for adjoint in (False, True):
            solved = model.state.solve(model.x, 1e-12, adjoint)
            wanted = (M.t() if adjoint else M) @ model.x
            torch.testing.assert_close(solved, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize('a', [0.0, 0.25, 0.5, 1.0])
def test_the_bound_holds_for_any_estimate(a):
    # Not only for what pushes leave; +r and -r do not cancel.
    model = Series(
        random_graph(40, 60, 11), torch.randn(40, 3).double(), a, 0.2, 1e-9
    )
    exact = dense(model, 0.2, a) @ model.x
    nodes = torch.arange(40)
    random = torch.Generator().manual_seed(3)
    for trial in range(60):
        noise = torch.randn(exact.shape, generator=random).double()
        if trial % 3 == 1:
            noise *= (torch.rand((40, 1), generator=random) < 0.1).double()
        elif trial % 3 == 2:
            rho = torch.zeros_like(noise)
            rho[5], rho[6] = 1.0, -1.0
            noise = dense(model, 0.2, a) / 0.2 @ rho
        model.state.z.copy_(exact - noise)
        model.state.residue.copy_(model.state._residue(nodes))
        assert float(noise.norm()) <= model.state.error_bound * (1 + 1e-9)


def test_a_series_goes_back_to_the_bit():
    model = Series(
        random_graph(60, 90, 12), torch.randn(60, 3).double(), 0.5, 0.2, 1e-4
    )
    z, residue = model.state.z.clone(), model.state.residue.clone()
    model.remove([3], features=[9])
    assert not torch.equal(model.state.z, z)
    model.state.undo()
    model.journal.undo()
    assert torch.equal(model.state.z, z)
    assert torch.equal(model.state.residue, residue)


def test_an_interrupted_push_leaves_a_residual_that_is_true(monkeypatch):
    model = Series(
        random_graph(60, 90, 13), torch.randn(60, 3).double(), 0.5, 0.2, 1e-4
    )
    push = ops.push_rows

    def interrupted(*args):
        push(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, 'push_rows', interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.remove([3])
    monkeypatch.undo()
    model.state.undo()
    model.journal.undo()
    x = model.state.x
    error = float((model.state.rows() - dense(model, 0.2, 0.5) @ x).norm())
    assert 0 < error <= model.state.error_bound


def test_series_need_a_plus_b_one_and_an_undirected_graph():
    path = torch.tensor([[0, 1], [1, 2]])
    for edge_index, b in (
        (path, 0.5),
        (torch.cat([path, path.flip(0)], 1), 1),
    ):
        graph = DynamicGraph(CSRGraph.from_edge_index(edge_index, 3), False)
        with pytest.raises(ValueError, match='infinite series'):
            SeriesState(
                graph, torch.ones(3, 1).double(), Measure(0.5, b, (1,)), 0.2, 1
            )


def test_katz_is_refused():
    graph = CSRGraph.from_edge_index(random_graph(20, 20, 8), 20)
    measure = Measure(0, 0, (1.0, 0.1), spectral_radius=5.0)
    with pytest.raises(ValueError, match='spectral radius'):
        LevelState(DynamicGraph(graph, False), torch.ones(20, 1), measure)


# Ops #########################################################################


def test_the_ops_of_rows_are_registered_as_they_are():
    graph = CSRGraph.from_edge_index(random_graph(20, 30, 14), 20)
    rows = DynamicGraph(graph, True).receiving
    x, ones = torch.randn(20, 3).double(), torch.ones(20).double()
    check = torch.library.opcheck
    seeds = torch.tensor([3, 4])
    check(
        torch.ops.pyg_trust.pull_rows,
        (*rows, seeds, x, ones, ones, torch.zeros_like(x), x[:2].clone(), 1.0),
    )
    stamp = torch.zeros(20, dtype=torch.int32)
    check(
        torch.ops.pyg_trust.touched_rows,
        (*rows, rows.length, seeds, seeds[:1], stamp, 7, 2, math.inf),
        test_utils=('test_schema', 'test_faketensor'),
    )
    check(
        torch.ops.pyg_trust.entries_at,
        (*rows, *rows, seeds, torch.stack([seeds, seeds]), True),
        test_utils=('test_schema',),
    )
    u = int(rows.start[3])
    check(
        torch.ops.pyg_trust.edit_rows,
        (*rows, seeds[:1], rows.col[u : u + 1].long(), False),
        test_utils=('test_schema',),
    )
    check(
        torch.ops.pyg_trust.push_rows,
        (
            *rows,
            seeds,
            ones,
            ones / 9,
            ones / 9,
            0.5,
            x * 0,
            x.clone(),
            x,
            0.5,
        ),
        test_utils=('test_schema',),
    )


@pytest.mark.parametrize('directed', [False, True])
def test_entries_and_reach_are_those_of_sets(directed):
    # Against sets of pairs: hubs, loops, edges named twice or both ways, and
    # nodes whose edges are named too.
    n = 40
    edge_index = random_graph(n, 60, 15, loops=4, directed=directed)
    graph = DynamicGraph(CSRGraph.from_edge_index(edge_index, n), False)
    assert graph.undirected != directed
    held = set(map(tuple, edge_index.t().tolist()))
    pairs = [*sorted(held)[:3], (1, 1), (7, 30), (30, 7), (7, 30)]
    for nodes in ([], [3], [3, 1, 38]):
        row, target, changed = ops.entries_at(
            graph.out.view,
            graph.into.view,
            torch.tensor(nodes, dtype=torch.int64),
            torch.tensor(pairs).t(),
            not directed,
        )
        wanted = {e for e in held if e[0] in nodes or e[1] in nodes}
        wanted |= set(pairs)
        if not directed:
            wanted |= {edge[::-1] for edge in pairs}
        found = list(zip(row.tolist(), target.tolist(), strict=True))
        assert found == sorted(wanted)
        ends = {*nodes, *(v for edge in wanted for v in edge)}
        assert changed.tolist() == sorted(ends)
    # What each level reaches, until one would cost too much.
    sends = {v: {b for a, b in held if a == v} for v in range(n)}
    seeds, extra = torch.tensor([5, 5, 9]), torch.tensor([20, 0])
    lengths = set()
    for most in (math.inf, 120, 40, 20, 0):
        levels, cost = graph.receivers(seeds, extra, 4, most)
        reached, known, costs = {5, 9}, [], []
        for _ in range(4):
            reached = {20, 0}.union(*(sends[v] for v in reached))
            price = sum(len([1 for e in held if e[1] == v]) for v in reached)
            if price > most:
                break
            known.append(reached)
            costs.append(price)
        assert cost == costs
        assert [set(level.tolist()) for level in levels] == known
        assert [level.numel() for level in levels] == list(map(len, known))
        lengths.add(len(levels))
    assert lengths & {1, 2, 3}


def test_rows_are_written_where_they_belong():
    # Into places in no order, over what was there, and nowhere else.
    n = 30
    graph = CSRGraph.from_edge_index(random_graph(n, 40, 16), n)
    x = torch.randn((n, 5), dtype=torch.float64)
    for measure in (sgc(2), appnp(0.3, levels=3)):
        state = LevelState(DynamicGraph(graph, True), x, measure)
        whole = state.rows()
        nodes, place = torch.tensor([4, 0, 29]), torch.tensor([6, 2, 3])
        z = torch.full((8, 5), math.nan, dtype=torch.float64)
        state.write_rows(nodes, z, place)
        assert torch.equal(z[place], whole[nodes])
        assert z[[0, 1, 4, 5, 7]].isnan().all()


def test_weights_that_vanish_while_powers_grow_are_refused():
    # On a triangle A^i is 2^i: w_i = .49^i is 0 in float32 from i = 146 on,
    # where .98^i = .05, and small features hide that A^i leaves the range.
    triangle = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    graph = CSRGraph.from_edge_index(triangle, 3)
    series = Measure(0, 0, tuple(0.49**i for i in range(181)))
    x = torch.full((3, 1), 1e-20, dtype=torch.float64)

    def state(measure, x):
        return LevelState(DynamicGraph(graph, measure.self_loops), x, measure)

    wanted = 1e-20 * math.fsum(0.98**i for i in range(181))
    found = state(series, x).rows(None)
    torch.testing.assert_close(found, torch.full_like(found, wanted))
    with pytest.raises(ValueError, match='vanish in torch'):
        state(series, x.float())
    with pytest.raises(ValueError, match='beyond the range'):
        state(Measure(0, 0, (1.0,) * 1100), x.double())
    # Here what vanishes stays as small.
    halves = Measure(0.5, 0.5, tuple(0.5**i for i in range(200)))
    found = state(halves, x.float()).rows(None)
    torch.testing.assert_close(found.double(), 2 * x, rtol=1e-6, atol=0)


@pytest.mark.parametrize(('a', 'b'), [(0.5, 0.5), (0.9, 0.1), (0.3, 1.0)])
def test_what_vanishes_stays_small_on_directed_graphs(a, b):
    # A hub that all send to, on a cycle: degrees differ as much as they can.
    n = 60
    row = torch.arange(n)
    hub = torch.stack([row[2:], torch.zeros(n - 2, dtype=torch.int64)])
    cycle = torch.stack([row, (row + 1) % n])
    graph = CSRGraph.from_edge_index(
        torch.cat([hub, cycle], 1).unique(dim=1), n
    )
    assert not graph.is_undirected
    series = Measure(a, b, tuple(0.9 * 0.5**i for i in range(200)))
    x = torch.rand((n, 2), generator=torch.Generator().manual_seed(3)).double()
    exact, rounded = (
        LevelState(DynamicGraph(graph, False), signal, series).rows(None)
        for signal in (x, x.float())
    )
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-5, atol=0)


def test_what_is_written_has_to_be_contiguous():
    graph = CSRGraph.from_edge_index(random_graph(20, 30, 15), 20)
    rows = DynamicGraph(graph, True).receiving
    x, ones = torch.randn(20, 3), torch.ones(20)
    out = torch.zeros(3, 20).t()
    with pytest.raises(ValueError, match="'out' needs to be contiguous"):
        ops.pull_rows(rows, None, x, ones, ones, out=out)
