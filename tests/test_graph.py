import itertools
import warnings

import networkx as nx
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust.graph import CSRGraph
from pyg_trust.testing import UNDIRECTED, make_graph

EDGES = torch.tensor([[3, 0, 0, 2], [0, 2, 1, 2]])
WEIGHTS = torch.tensor([1.5, 2.0, 3.0, 4.0])
ADJ = torch.tensor(
    [
        [0.0, 3.0, 2.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 4.0, 0.0, 0.0],
        [1.5, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


def dense(graph):
    return graph.to_torch_sparse(torch.sparse_coo).to_dense()


# Converters ##################################################################


def test_from_edge_index():
    graph = CSRGraph.from_edge_index(EDGES, 5, WEIGHTS, perm=True)
    assert graph.rowptr.tolist() == [0, 2, 2, 3, 4, 4]
    assert graph.col.tolist() == [1, 2, 2, 0]
    assert graph.weight.tolist() == [3.0, 2.0, 4.0, 1.5]
    assert graph.perm.tolist() == [2, 1, 3, 0]
    assert torch.equal(dense(graph), ADJ)
    edge_index, weight = graph.to_edge_index()
    assert torch.equal(edge_index, EDGES[:, graph.perm])
    assert torch.equal(weight, WEIGHTS[graph.perm])


def sources():
    yield 'edge_index', EDGES, {'num_nodes': 5, 'edge_weight': WEIGHTS}
    yield (
        'EdgeIndex',
        EdgeIndex(EDGES, sparse_size=(5, 5)),
        {'edge_weight': WEIGHTS},
    )
    data = Data(edge_index=EDGES, edge_weight=WEIGHTS, num_nodes=5)
    yield 'Data', data, {}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for layout in LAYOUTS:
            name = str(layout).removeprefix('torch.')
            yield name, ADJ.to_sparse(layout=layout), {'transposed': False}
            adj_t = ADJ.t().contiguous().to_sparse(layout=layout)
            yield f'{name} transposed', adj_t, {}  # as in PyG
            yield f'Data with {name}', Data(adj_t=adj_t, num_nodes=5), {}
    yield 'CSRGraph', CSRGraph.from_edge_index(EDGES, 5, WEIGHTS), {}


@pytest.mark.parametrize(
    ('source', 'kwargs'),
    [pytest.param(*case[1:], id=case[0]) for case in sources()],
)
def test_convert_every_form(source, kwargs):
    graph = CSRGraph.convert(source, **kwargs)
    assert graph.num_nodes == 5
    assert graph.is_weighted
    assert torch.equal(dense(graph), ADJ)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('weighted', [False, True])
def test_round_trip_through_torch_sparse(layout, weighted):
    weight = WEIGHTS if weighted else None
    graph = CSRGraph.from_edge_index(EDGES, 5, weight)
    adj = graph.to_torch_sparse(layout)
    assert adj.layout == layout
    again = CSRGraph.convert(adj, transposed=False)
    assert again.is_weighted == weighted
    assert torch.equal(again.rowptr, graph.rowptr)
    assert torch.equal(again.col, graph.col)
    assert not weighted or torch.equal(again.weight, graph.weight)
    assert graph.to_torch_sparse(layout, torch.float64).dtype == torch.float64


@pytest.mark.skipif(not WITH_TORCH_SPARSE, reason='torch-sparse is missing')
def test_round_trip_through_sparse_tensor():
    graph = CSRGraph.from_edge_index(EDGES, 5, WEIGHTS)
    adj = graph.to_sparse_tensor()
    assert torch.equal(adj.to_dense(), ADJ)
    assert torch.equal(dense(CSRGraph.convert(adj.t())), ADJ)
    again = CSRGraph.convert(adj, transposed=False)
    assert torch.equal(dense(again), ADJ)
    unweighted = CSRGraph.convert(adj.t().set_value(None))
    assert not unweighted.is_weighted
    assert torch.equal(unweighted.col, graph.col)
    data = Data(adj_t=adj.t(), num_nodes=5)
    assert torch.equal(dense(CSRGraph.from_data(data)), ADJ)


def test_sparse_tensor_without_torch_sparse(monkeypatch):
    class SparseTensor:
        pass

    monkeypatch.setattr('pyg_trust.graph.WITH_TORCH_SPARSE', False)
    with pytest.raises(ImportError, match='torch-sparse'):
        CSRGraph.convert(SparseTensor())
    with pytest.raises(ImportError, match='torch-sparse'):
        make_graph('path').to_sparse_tensor()


# Properties ##################################################################


def test_undirected():
    assert all(make_graph(name).is_undirected for name in UNDIRECTED)
    # The same number of edges in and out of every node, yet directed.
    ring = CSRGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    assert not ring.is_undirected


def test_transpose():
    graph = CSRGraph.from_edge_index(EDGES, 5, WEIGHTS, perm=True)
    other = graph.transpose()
    assert torch.equal(dense(other), ADJ.t())
    assert torch.equal(EDGES[:, other.perm].flip(0), other.to_edge_index()[0])
    assert other.transpose() is graph
    path = make_graph('path')
    assert path.transpose() is path


def test_with_self_loops():
    graph = CSRGraph.from_edge_index(EDGES, 5, WEIGHTS, perm=True)
    assert CSRGraph.from_edge_index(EDGES, 5, WEIGHTS).perm is None
    graph = graph.with_self_loops()
    expected = ADJ + torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))
    assert torch.equal(dense(graph), expected)
    assert graph.perm.tolist() == [-1, 2, 1, -1, 3, 0, -1, -1]
    assert graph.with_self_loops() is graph
    assert graph.has_self_loops


@pytest.mark.parametrize('along', [True, False])
@pytest.mark.parametrize('name', ['random', 'directed', 'duplicate'])
def test_push_graph_is_sorted_and_grouped_by_degree(name, along):
    graph = make_graph(name)
    laid = graph.push_graph(0.5, torch.float64, along)
    source = graph if along else graph.transpose()
    assert torch.equal(laid.rowptr, source.rowptr)
    for u in range(graph.num_nodes):
        begin, end = laid.rowptr[u : u + 2].tolist()
        entries = laid.col[begin:end].long()
        assert entries.sort().values.tolist() == source.col[begin:end].tolist()
        degree = graph.degree[entries].double()
        wanted = torch.where(degree > 0, degree.pow(-0.5), 0.0)
        assert torch.equal(laid.scale[begin:end], wanted)
        assert (wanted.diff() <= 0).all()
        ends = laid.group_end[laid.group_ptr[u] : laid.group_ptr[u + 1]]
        starts = [begin, *ends.tolist()]
        assert starts[-1] == end
        buckets = [
            set(degree[i - begin : j - begin].log2().floor().tolist())
            for i, j in itertools.pairwise(starts)
        ]
        assert all(len(bucket) == 1 for bucket in buckets)
        assert len(set().union(*buckets)) == len(buckets)


def test_spectral_radius():
    assert make_graph('no_edges').spectral_radius == 0
    cycle = make_graph('cycle')
    assert cycle.spectral_radius == pytest.approx(2, abs=1e-12)
    star = make_graph('star')
    assert star.spectral_radius == pytest.approx(5**0.5, abs=1e-12)
    # More than 500 nodes: the sparse solver, against numpy's dense one.
    graph = nx.gnp_random_graph(600, 0.01, seed=1, directed=True)
    edges = torch.tensor(list(graph.edges)).t()
    wanted = abs(
        torch.linalg.eigvals(
            torch.tensor(nx.to_numpy_array(graph), dtype=torch.float64)
        )
    ).max()
    made = CSRGraph.from_edge_index(edges, 600)
    assert made.spectral_radius == pytest.approx(wanted.item(), rel=1e-10)
    both = CSRGraph.from_edge_index(
        torch.cat([edges, edges.flip(0)], 1), 600, duplicates='merge'
    )
    adj = both.to_torch_sparse(torch.sparse_coo, torch.float64).to_dense()
    wanted = torch.linalg.eigvalsh(adj).abs().max()
    assert both.spectral_radius == pytest.approx(wanted.item(), rel=1e-10)


# Bad input ###################################################################


def test_constructor_takes_falls_between_rows():
    rowptr, col = torch.tensor([0, 0, 2, 2, 3, 3]), torch.tensor([1, 4, 0])
    assert CSRGraph(rowptr, col).degree.tolist() == [0, 2, 0, 1, 0]


def test_uncoalesced_duplicates_are_refused():
    index = torch.tensor([[0, 0], [1, 1]])
    adj = torch.sparse_coo_tensor(
        index, torch.ones(2), (2, 2), check_invariants=True
    )
    with pytest.raises(ValueError, match='more than once'):
        CSRGraph.convert(adj)


def test_an_edge_index_of_unknown_size_is_refused():
    pairs = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match='num_nodes'):
        CSRGraph.from_edge_index(EdgeIndex(pairs))
    assert CSRGraph.from_edge_index(EdgeIndex(pairs), 3).num_nodes == 3


def test_too_many_nodes_are_refused_before_memory_is_asked_for():
    with pytest.raises(ValueError, match=r'below 2\*\*31'):
        CSRGraph.from_edge_index(torch.tensor([[0], [1]]), 2**40)
