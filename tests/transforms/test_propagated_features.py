import contextlib
import pickle
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from pyg_trust.agp.measures import Measure, appnp, sgc, single_target
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import NotThere, RemovalRequest
from pyg_trust.transforms import PropagatedFeatures
from pyg_trust.unlearning import sums
from pyg_trust.unlearning.incremental import SeriesState
from pyg_trust.unlearning.sums import Sums
from pyg_trust.update import Update


def growing(n=50, m=120, seed=0, directed=False):
    random = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n, (2, m), generator=random)
    pairs = pairs[:, pairs[0] != pairs[1]]
    if not directed:
        pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    pairs = torch.unique(pairs, dim=1)
    x = torch.randn((n, 4), generator=random, dtype=torch.float64)
    return CSRGraph.from_edge_index(pairs, n), x, random


def check(features, x, measure):
    """Against a fresh start, and a propagation, of what is there."""
    ids = features.nodes
    place = torch.full((features.num_nodes,), -1)
    place[ids] = torch.arange(ids.numel())
    edges = place[features.graph.to_edge_index()[0]]
    graph = CSRGraph.from_edge_index(edges, ids.numel())
    fresh = PropagatedFeatures(graph, x[ids], measure)
    assert torch.equal(features.rows(ids), fresh.rows())
    error = features.rows(ids) - propagate(graph, x[ids], measure)
    assert float(error.norm()) <= features.error_bound < 1e-6


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('measure', [sgc(2), appnp(0.2, K=3), 'reverse'])
def test_features_follow_a_graph_that_grows_and_shrinks(measure, directed):
    if measure == 'reverse':
        measure = single_target(0.3, K=2)
    elif directed:
        measure = Measure(0.5, 0.5, measure.weights)
    graph, x, random = growing(directed=directed)
    features = PropagatedFeatures(graph, x, measure)
    before = features.rows()

    def draw(count):
        return int(torch.randint(count, (), generator=random))

    for step in range(60):
        edges = features.graph.to_edge_index()[0]
        alive = features.nodes
        kind = step % 5
        if kind == 0:
            u, v = (alive[draw(alive.numel())] for _ in range(2))
            if u != v and not bool(((edges[0] == u) & (edges[1] == v)).any()):
                features.insert_edges(torch.tensor([[u], [v]]))
        elif kind == 1:
            features.remove_edges(edges[:, [draw(edges.size(1))]])
        elif kind == 2:
            new = torch.randn((2, 4), generator=random, dtype=torch.float64)
            n = features.num_nodes
            ends = torch.tensor([[n, n, n + 1], [alive[0], n + 1, alive[3]]])
            names = features.insert_nodes(new, ends)
            assert names.tolist() == [n, n + 1]
            x = torch.cat([x, new])
        elif kind == 3:
            gone = alive[[draw(alive.numel())]]
            features.remove_nodes(gone)
        else:
            some = alive[[draw(alive.numel())]]
            x[some] = torch.randn((1, 4), generator=random).double()
            features.update_features(some, x[some])
        if step % 2:
            check(features, x, measure)
    check(features, x, measure)
    assert not torch.equal(features.rows()[:50], before)
    gone = features.num_nodes - features.nodes.numel()
    assert gone > 5
    assert 'PropagatedFeatures(' in repr(features)


def test_a_series_stays_within_its_bound():
    graph, x, _ = growing(60, 200)
    measure = appnp(0.2)
    features = PropagatedFeatures(graph, x, measure, alpha=0.2, theta=1e-3)
    exact = appnp(0.2, K=150)
    features.insert_edges(_missing(graph))
    features.insert_nodes(torch.ones(1, 4).double(), torch.tensor([[60], [2]]))
    x = torch.cat([x, torch.ones(1, 4).double()])
    features.remove_nodes(torch.tensor([5]))
    x[5] = 0
    wanted = propagate(features.graph, x, exact)
    ids = features.nodes
    error = float((features.rows(ids) - wanted[ids]).norm())
    assert 0 < error <= features.error_bound < 0.5


def _edge(graph, u, v):
    return v in graph.col[graph.rowptr[u] : graph.rowptr[u + 1]].tolist()


def _missing(graph):
    for v in range(1, graph.num_nodes):
        if not _edge(graph, 0, v):
            return torch.tensor([[0], [v]])
    raise AssertionError


@pytest.mark.parametrize('late', [False, True])
@pytest.mark.parametrize(
    ('owner', 'name'),
    [
        (sums, '_LIVE_NET'),
        (sums, '_LIVE_EDIT'),
        (Sums, '_grow'),
        (Sums, '_edit'),
        (Sums, '_check_features'),
        (Sums, '_widen'),
        (Sums, '_follow'),
    ],
)
@pytest.mark.parametrize('kind', ['insert', 'remove', 'change', 'edge'])
def test_an_edit_that_fails_changes_nothing(
    owner, name, late, kind, monkeypatch
):
    graph, x, _ = growing()
    features = PropagatedFeatures(graph, x, sgc(3))
    before, edges = features.rows(), features.graph.to_edge_index()[0]
    honest = getattr(owner, name)
    calls = []

    def fails(*args, **kwargs):
        calls.append(name)
        if len(calls) == 1:
            if late:
                honest(*args, **kwargs)
            raise KeyboardInterrupt
        return honest(*args, **kwargs)

    def edit():
        if kind == 'remove':
            features.remove_nodes(torch.tensor([3]))
        elif kind == 'insert':
            new = torch.tensor([[50, 50, 50], [2, 3, 4]])
            features.insert_nodes(torch.ones(1, 4).double(), new)
        elif kind == 'change':
            features.update_features(torch.tensor([3]), x[[4]])
        else:
            features.insert_edges(_missing(graph))

    monkeypatch.setattr(owner, name, fails)
    with contextlib.suppress(KeyboardInterrupt):
        edit()
        assert not calls
        return
    monkeypatch.undo()
    assert features.num_nodes == 50
    assert torch.equal(features.graph.to_edge_index()[0], edges)
    assert torch.equal(features.rows(), before)
    edit()
    if kind == 'insert':
        x = torch.cat([x, torch.ones(1, 4).double()])
    elif kind == 'change':
        x[3] = x[4]
    check(features, x, sgc(3))


def test_sums_that_broke_off_are_computed_anew():
    graph, x, _ = growing()
    features = PropagatedFeatures(graph, x, sgc(2))
    before = features.rows()
    state = features._live._state
    state[9].add_(7)
    assert not torch.equal(features.rows(), before)
    state[6][2] = 1
    assert torch.equal(features.rows(), before)


def test_what_does_not_fit_is_refused():
    graph, x, _ = growing()
    features = PropagatedFeatures(graph, x, sgc(2))
    features.remove_nodes(torch.tensor([7]))
    before = features.rows()
    twice, two = torch.tensor([1, 1]), torch.ones(2, 4).double()
    for call, message in (
        (lambda: features.update_features(twice, two), 'each node once'),
        (lambda: features.rows(torch.tensor([7])), '7, which was removed'),
        (lambda: features.rows(torch.arange(50)), '7, which was removed'),
        (lambda: features.rows(torch.arange(49, 51)), r'in \[0, 50\)'),
        (lambda: features.rows(torch.tensor([-1])), r'in \[0, 50\)'),
        (lambda: features.rows(torch.tensor([[1]])), 'the shape'),
        (lambda: features.insert_edges(torch.tensor([[7], [1]])), 'node 7'),
        (lambda: features.remove_edges(torch.tensor([[7], [1]])), 'edge 7'),
        (
            lambda: features.insert_nodes(
                torch.ones(1, 3).double(), torch.empty((2, 0)).long()
            ),
            "'x' needs to have the shape",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert torch.equal(features.rows(), before)
    with pytest.raises(ValueError, match='spectral radius'):
        PropagatedFeatures(graph, x, Measure(0, 0, (1,), spectral_radius=9.0))
    assert isinstance(
        PropagatedFeatures(graph, x, sgc(2), alpha=0.2, theta=0.1)._live,
        SeriesState,
    )


@pytest.mark.parametrize('directed', [None, False, True])
def test_a_graph_without_edges_has_the_directions_that_are_said(directed):
    measure = Measure(0.0, 1.0, (0.5, 0.5), False, False, along=True)
    empty = CSRGraph.from_edge_index(torch.empty(2, 0).long(), 3)
    made = PropagatedFeatures(empty, torch.eye(3), measure, directed=directed)
    made.insert_edges(torch.tensor([[0], [1]]))
    arcs = made.graph.to_edge_index()[0].t().tolist()
    assert arcs == ([[0, 1]] if directed else [[0, 1], [1, 0]])
    copied = pickle.loads(pickle.dumps(made))
    copied.insert_edges(torch.tensor([[0], [2]]))
    assert copied.graph.num_edges == 2 * len(arcs)
    undirected = replace(measure, undirected=True)
    with pytest.raises(ValueError, match='is of undirected graphs'):
        PropagatedFeatures(empty, torch.eye(3), undirected, directed=True)
    arrow = CSRGraph.from_edge_index(torch.tensor([[0], [1]]), 3)
    with pytest.raises(ValueError, match='to_undirected'):
        PropagatedFeatures(arrow, torch.eye(3), measure, directed=False)


def test_data_and_the_name_of_a_measure_are_taken():
    ends = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    data = Data(x=torch.rand(4, 2), edge_index=ends, n_id=torch.arange(4) + 7)
    plain = PropagatedFeatures(CSRGraph.from_data(data), data.x, sgc(2))
    made = PropagatedFeatures(data, 'sgc')
    assert torch.equal(made.rows(), plain.rows())
    assert torch.equal(made.rows([8, 10]), plain.rows([1, 3]))
    # The same edits in ids and in rows.
    x = torch.rand(1, 2)
    for each, first in ((plain, 0), (made, 7)):
        edge = torch.tensor([[4], [0]]) + first
        assert each.insert_nodes(x, edge.int()).tolist() == [4 + first]
        each.update(RemovalRequest(nodes=[1 + first]))
        each.remove_edges(torch.tensor([[2], [3]]) + first)
        each.update_features([3 + first], x)
        with pytest.raises(NotThere) as refused:
            each.update(RemovalRequest(edges=[(2 + first, 3 + first)]))
        gone = RemovalRequest(edges=[(2 + first, 3 + first)])
        assert refused.value.missing == gone
        skips = Update(remove=gone, features=(torch.tensor([first]), x))
        with pytest.raises(NotThere):
            each.update(skips)
        each.update(
            Update(
                remove=gone,
                features=(torch.tensor([first]), x),
                missing='skip',
            )
        )
        with pytest.raises(NotThere, match=f'node {1 + first} is not there'):
            each.rows([1 + first])
        with pytest.raises(ValueError, match=f'edge {4 + first} -> {first}'):
            each.insert_edges(edge)
    assert torch.equal(made.rows(), plain.rows())
    assert made.n_id.tolist() == (plain.nodes + 7).tolist()
    with pytest.raises(ValueError, match="'x' needs to be given"):
        PropagatedFeatures(CSRGraph.from_data(data))
