import pytest
import torch

from pyg_trust.functional import Measure, appnp, propagate, sgc, single_target
from pyg_trust.functional.dynamic_graph import DynamicGraph
from pyg_trust.functional.incremental import LevelState, SeriesState
from pyg_trust.graph import CSRGraph
from pyg_trust.transforms import PropagatedFeatures


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
    """Against a propagation of what is there, under new names."""
    ids = features.nodes
    place = torch.full((features.num_nodes,), -1)
    place[ids] = torch.arange(ids.numel())
    edges = place[features.graph.to_edge_index()[0]]
    graph = CSRGraph.from_edge_index(edges, ids.numel())
    fresh = LevelState(
        DynamicGraph(graph, measure.self_loops, measure.along),
        x[ids],
        measure,
    )
    assert torch.equal(features.rows(ids), fresh.rows())
    torch.testing.assert_close(
        features.rows(ids),
        propagate(graph, x[ids], measure),
        rtol=0,
        atol=1e-12,
    )
    assert features.stale_rows == 0


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('measure', [sgc(2), appnp(0.2, levels=3), 'reverse'])
def test_features_follow_a_graph_that_grows_and_shrinks(measure, directed):
    if measure == 'reverse':
        measure = single_target(0.3, levels=2)
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
    assert features.error_bound == 0
    gone = features.num_nodes - features.nodes.numel()
    assert gone > 5
    assert 'PropagatedFeatures(' in repr(features)


def test_only_what_is_touched_is_computed_again():
    path = torch.stack([torch.arange(99), torch.arange(1, 100)])
    graph = CSRGraph.from_edge_index(torch.cat([path, path.flip(0)], 1), 100)
    x = torch.randn(100, 3)
    features = PropagatedFeatures(graph, x, sgc(2))
    assert features.stale_rows == 100
    features.rows()
    assert features.stale_rows == 0
    # Ends 50 and 51, and all within two hops.
    assert features.remove_edges(torch.tensor([[50], [51]])) == 6
    assert features.stale_rows == 6
    features.rows(torch.tensor([50]))
    assert features.stale_rows == 5


def test_a_series_stays_within_its_bound():
    graph, x, _ = growing(60, 200)
    measure = appnp(0.2)
    features = PropagatedFeatures(graph, x, measure, alpha=0.2, theta=1e-3)
    exact = appnp(0.2, levels=150)
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
        (DynamicGraph, 'grow'),
        (DynamicGraph, 'insert'),
        (DynamicGraph, 'remove'),
        (LevelState, 'grow'),
        (LevelState, 'update'),
        (LevelState, '_pull'),
    ],
)
def test_an_edit_that_fails_changes_nothing(owner, name, late, monkeypatch):
    graph, x, _ = growing()
    features = PropagatedFeatures(graph, x, sgc(3))
    before, edges = features.rows(), features.graph.to_edge_index()[0]
    honest = getattr(owner, name)

    def fails(*args, **kwargs):
        if late:
            honest(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, fails)
    new = torch.ones(1, 4).double(), torch.tensor([[50], [2]])
    with pytest.raises(KeyboardInterrupt):
        features.remove_nodes(torch.tensor([3])) if (
            name == 'remove'
        ) else features.insert_nodes(*new)
    monkeypatch.undo()
    assert features.num_nodes == 50
    assert torch.equal(features.graph.to_edge_index()[0], edges)
    assert torch.equal(features.rows(), before)
    features._stale[:] = True
    assert torch.equal(features.rows(), before)
    features.insert_nodes(torch.ones(1, 4).double(), torch.tensor([[50], [2]]))
    check(features, torch.cat([x, torch.ones(1, 4).double()]), sgc(3))


def test_what_does_not_fit_is_refused():
    graph, x, _ = growing()
    features = PropagatedFeatures(graph, x, sgc(2))
    features.remove_nodes(torch.tensor([7]))
    before = features.rows()
    edge = features.graph.to_edge_index()[0][:, :1]
    for call, message in (
        (lambda: features.rows(torch.tensor([7])), '7, which was removed'),
        (lambda: features.insert_edges(edge), 'is there already'),
        (lambda: features.insert_edges(torch.tensor([[7], [1]])), 'node 7'),
        (lambda: features.remove_edges(torch.tensor([[7], [1]])), 'edge 7'),
        (
            lambda: features.update_features(
                torch.tensor([1, 1]), torch.ones(2, 4).double()
            ),
            'each node once',
        ),
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
    with pytest.raises(ValueError, match='need each other'):
        PropagatedFeatures(graph, x, sgc(2), alpha=0.2)
    with pytest.raises(ValueError, match='spectral radius'):
        PropagatedFeatures(graph, x, Measure(0, 0, (1,), spectral_radius=9.0))
    with pytest.raises(TypeError, match='float64'):
        PropagatedFeatures(graph, x.float(), sgc(2), alpha=0.2, theta=0.1)
    assert isinstance(
        PropagatedFeatures(graph, x, sgc(2), alpha=0.2, theta=0.1)._state,
        SeriesState,
    )
