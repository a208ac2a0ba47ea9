"""Features of a graph that changes: the bits of a computation from scratch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from states import level_of

from pyg_trust import ops
from pyg_trust.agp.measures import Measure, appnp, ppr, sgc, single_target
from pyg_trust.graph import CSRGraph
from pyg_trust.unlearning import sums as module
from pyg_trust.unlearning.incremental import SeriesState, bare
from pyg_trust.unlearning.sums import Step, Sums, put_back


def geometric(alpha, levels):
    follow = 1 - alpha
    return (*(alpha * follow**i for i in range(levels)), follow**levels)


MEASURES = {
    'sgc2': sgc(2),
    'appnp': appnp(0.2, K=6),
    'gbp': Measure(0.3, 0.7, geometric(0.15, 4), True, True),
    'ppr': ppr(0.2, K=6),
    'reverse': single_target(0.2, K=6),
}


class Model:
    """A graph and its features, with a way back."""

    def __init__(self, edge_index, x, measure):
        graph = CSRGraph.from_edge_index(edge_index, x.size(0))
        self.measure = measure
        self.graph = self.state = Sums(graph, x, measure)
        self.x = x.clone()
        self.undo = []

    def remove(self, nodes=(), edges=(), features=()):
        nodes = torch.tensor(sorted(nodes), dtype=torch.int64)
        edges = torch.tensor(list(edges), dtype=torch.int64).view(-1, 2)
        if self.graph.undirected:
            edges = edges.sort(dim=1).values.unique(dim=0)
        changed = torch.tensor(sorted(features), dtype=torch.int64)
        zeros = self.graph.x.new_zeros(len(changed), self.graph.num_columns)
        step = Step(nodes, edges.t(), nodes=changed, x=zeros)
        named, _ = self.graph.play([step], self.undo)
        changed = torch.cat([nodes, changed])
        self.x[changed] = 0
        return self.touched(named, changed)

    def touched(self, named, changed):
        return self.state.touched(named, changed)


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
        before, oracle[f'before/{name}'], rtol=0, atol=1e-11
    )
    named = {0: [], 1: [], 2: []}
    for kind, u, v in oracle[f'{request_name}/request'].tolist():
        named[kind].append((u, v) if kind == 1 else u)
    gone = set(named[0])
    edges = [edge for edge in named[1] if gone.isdisjoint(edge)]
    touched = model.remove(named[0], edges, named[2])
    z = model.state.rows()
    torch.testing.assert_close(
        z, oracle[f'{request_name}/{name}'], rtol=0, atol=1e-11
    )
    changed = set((z != before).any(1).nonzero().view(-1).tolist())
    if touched is not None:
        assert changed <= set(touched.tolist())
    put_back(model.undo)
    assert torch.equal(model.state.rows(), before)


@pytest.mark.parametrize('columns', [*range(1, 34), 47, 63, 64, 71])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rows_of_every_width_are_those_of_dense_algebra(columns, dtype):
    # No column is left as it was, of those that fill no vector either.
    n = 25
    graph = CSRGraph.from_edge_index(random_graph(n, 40, 7), n)
    rows = bare(graph, sgc(1)).receiving
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


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('name', MEASURES)
def test_the_rows_that_an_edit_touches_are_those_within_reach(
    name, directed, monkeypatch
):
    # Against sets of pairs, and none that changed is left out.
    monkeypatch.setattr(module, 'WHOLE_ABOVE', 2.0)
    measure = MEASURES[name]
    directed &= not measure.undirected
    n, x = 40, torch.rand(40, 3).double()
    edges = random_graph(n, 25, 15, loops=4, directed=directed)
    for nodes, features in (([], [3]), ([3], []), ([5, 9], [7]), ([38], [])):
        model = Model(edges, x, measure)
        some = [e for e in edges.t().tolist() if e[0] == 11]
        some = [e for e in some if not set(e) & {*nodes}][:1]
        before = model.state.rows()
        touched = set(model.remove(nodes, some, features).tolist())
        held = set(map(tuple, model.graph.edge_index().t().tolist()))
        loops = range(n) if measure.self_loops else ()
        held |= {(v, v) for v in loops if model.graph.alive[v]}
        if not measure.along:
            held = {(v, u) for u, v in held}
        near = {v for e in edges.t().tolist() for v in e if set(e) & {*nodes}}
        named = {*nodes, *features, *near, *(v for e in some for v in e)}
        seeds, wanted = {*nodes, *features}, set()
        if measure.weights[0]:
            wanted |= seeds
        seeds = named if measure.b > 0 else seeds
        for weight in measure.weights[1:]:
            seeds = named | {v for u, v in held if u in seeds}
            wanted |= seeds if weight else set()
        assert touched == wanted
        changed = (before != model.state.rows()).any(1).nonzero().view(-1)
        assert set(changed.tolist()) <= wanted
        assert (not changed.numel()) == (nodes == [38] and not some)
    monkeypatch.setattr(module, 'WHOLE_ABOVE', 0.0)
    assert Model(edges, x, measure).remove([3]) is None


@given(st.data())
def test_an_edit_is_undone_to_the_bit(data):
    n = data.draw(st.integers(2, 12))
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    edges = data.draw(st.sets(pair, max_size=30))
    directed = data.draw(st.booleans())
    if not directed:
        edges |= {edge[::-1] for edge in edges}
    edge_index = torch.tensor(sorted(edges), dtype=torch.int64).view(-1, 2)
    graph = CSRGraph.from_edge_index(edge_index.t(), n)
    measure = data.draw(st.sampled_from([sgc(2), ppr(0.2, K=3)]))
    reads = data.draw(st.sampled_from([0.1, 0.5, math.inf]))
    live = Sums(graph, torch.rand(n, 2), measure, reads=reads)
    for _ in range(3):
        undo = []
        before = live.edge_index(), live.alive.clone(), live.x.clone()
        levels = [level_of(live, k) for k in range(measure.K - 1)]
        for _ in range(data.draw(st.integers(1, 3))):
            alive = live.alive.nonzero().view(-1).tolist()
            held = live.edge_index().t().tolist()
            cut = [e for e in held if e[0] <= e[1]]
            cut = [e for e in cut if data.draw(st.booleans())]
            gone = [v for v in alive if not data.draw(st.integers(0, 4))]
            some = [v for v in alive if v not in gone]
            step = Step(
                cut=torch.tensor(cut, dtype=torch.int64).view(-1, 2).t(),
                new=torch.rand(data.draw(st.integers(0, 2)), 2),
                nodes=torch.tensor(some, dtype=torch.int64),
                x=torch.rand(len(some), 2),
            )
            rest = Step(gone=torch.tensor(gone, dtype=torch.int64))
            live.play([step, rest], undo)
        put_back(undo)
        after = live.edge_index(), live.alive, live.x
        assert all(map(torch.equal, before, after))
        assert not undo
        for k, level in enumerate(levels):
            assert torch.equal(level_of(live, k), level)
        step = Step(nodes=torch.arange(n), x=torch.rand(n, 2))
        live.play([step])


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
        self.graph = bare(graph, measure)
        self.state = SeriesState(self.graph, x, measure, alpha, theta)
        self.undo = self.state._undo

    def touched(self, named, changed):
        return self.state.update(named, changed)


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
        limit = 1e-3 * model.graph.degree.clamp(min=1).sqrt()
        assert bool((size <= limit * (1 + 1e-12)).all())
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
    put_back(model.undo)
    x = model.state.x
    error = float((model.state.rows() - dense(model, 0.2, 0.5) @ x).norm())
    assert 0 < error <= model.state.error_bound


@pytest.mark.parametrize('columns', [1, 7, 8, 31, 64, 77])
@pytest.mark.parametrize('signal', [False, True])
def test_pushes_of_every_width_are_those_of_dense_algebra(columns, signal):
    # And what they return is what was there, of more nodes than fit at first.
    n, theta, follow = 9000, 1e-2, 0.8
    random = torch.Generator().manual_seed(columns)
    ring = torch.arange(n)
    some = torch.randint(n, (2, n), generator=random)
    pairs = torch.stack([ring, (ring + 1) % n])
    pairs = torch.cat([pairs, some[:, some[0] != some[1]]], 1)
    pairs = torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)
    rows = bare(CSRGraph.from_edge_index(pairs, n), sgc(1)).sending
    recv = 0.5 / rows.length.double()
    send = torch.rand(n, generator=random, dtype=torch.float64)
    x = torch.randn((n, columns), generator=random).double()
    z = 0.1 * x.flip(0) if signal else torch.zeros_like(x)

    def residue_at(z):
        loops = torch.stack([ring, ring])
        at = torch.cat([pairs, loops], 1)
        sums = torch.zeros_like(z).index_add_(
            0, at[1], (send[:, None] * z)[at[0]]
        )
        return (1 - follow) * x + follow * recv[:, None] * sums - z

    left = torch.zeros_like(x) if signal else residue_at(z)
    old_z, old_left = z.clone(), left.clone()
    nodes, before, pushed, estimate, count = ops.push_rows(
        rows, ring, recv, send, theta, follow, z, left, x if signal else None
    )
    torch.testing.assert_close(left, residue_at(z), rtol=0, atol=1e-13)
    limit = theta * rows.length.sqrt()
    assert bool((left.norm(dim=1) <= limit * (1 + 1e-12)).all())
    assert nodes.unique().numel() == nodes.numel() > 4096
    assert pushed.unique().numel() == pushed.numel() > 4096
    assert count >= pushed.numel()
    assert torch.equal(before, old_left[nodes])
    assert torch.equal(estimate, old_z[pushed])
    left[nodes], z[pushed] = before, estimate
    assert torch.equal(left, old_left)
    assert torch.equal(z, old_z)


def test_series_need_a_plus_b_one_and_an_undirected_graph():
    path = torch.tensor([[0, 1], [1, 2]])
    for edge_index, b in (
        (path, 0.5),
        (torch.cat([path, path.flip(0)], 1), 1),
    ):
        measure, x = Measure(0.5, b, (1,)), torch.ones(3, 1).double()
        graph = bare(CSRGraph.from_edge_index(edge_index, 3), measure)
        with pytest.raises(ValueError, match='infinite series'):
            SeriesState(graph, x, measure, 0.2, 1)


# Ops #########################################################################


def test_the_ops_of_rows_are_registered_as_they_are():
    graph = CSRGraph.from_edge_index(random_graph(20, 30, 14), 20)
    rows = bare(graph, sgc(1)).receiving
    x, ones = torch.randn(20, 3).double(), torch.ones(20).double()
    check = torch.library.opcheck
    seeds = torch.tensor([3, 4])
    check(
        torch.ops.pyg_trust.pull_rows,
        (*rows, seeds, x, ones, ones, torch.zeros_like(x), x[:2].clone(), 1.0),
        test_utils='test_schema',
    )
    check(
        torch.ops.pyg_trust.push_rows,
        (
            *rows,
            seeds,
            ones,
            ones / 9,
            1 / 9,
            0.5,
            x * 0,
            x.clone(),
            x,
            0.5,
        ),
        test_utils=('test_schema',),
    )


def test_what_is_written_has_to_be_contiguous():
    graph = CSRGraph.from_edge_index(random_graph(20, 30, 15), 20)
    rows = bare(graph, sgc(1)).receiving
    x, ones = torch.randn(20, 3), torch.ones(20)
    out = torch.zeros(3, 20).t()
    with pytest.raises(ValueError, match="'out' needs to be contiguous"):
        ops.pull_rows(rows, None, x, ones, ones, out=out)
