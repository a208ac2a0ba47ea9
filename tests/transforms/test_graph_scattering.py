import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import one_hot

from pyg_trust.graph import CSRGraph
from pyg_trust.scattering.transform import scattering_transform
from pyg_trust.transforms import GFT, GraphScattering


def ring(n, d=2, seed=0):
    nodes = torch.arange(n)
    edge_index = torch.stack([nodes, (nodes + 1) % n])
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    x = torch.rand(n, d, generator=torch.Generator().manual_seed(seed))
    return Data(x=x, edge_index=edge_index, num_nodes=n)


def test_writes_a_vector_per_graph():
    data = ring(5)
    transform = GraphScattering(J=3, Q=2, L=2)
    out = transform(data)
    assert 'z' not in data
    assert out.z.shape == (1, 16)
    assert out.z.dtype == torch.float32
    graph = CSRGraph.from_data(data)
    expected = scattering_transform(graph, data.x, J=3, Q=2, L=2)
    assert torch.equal(out.z, expected)


def test_batches_with_isolated_nodes_at_the_end():
    graphs = [ring(4), ring(6, seed=1)]
    graphs[0].x = torch.rand(6, 2)
    graphs[0].num_nodes = 6
    for graph in graphs:
        graph.x = graph.x.double()
    transform = GraphScattering(J=3, Q=2, L=3)
    batch = transform(Batch.from_data_list(graphs))
    single = torch.cat([transform(g).z for g in graphs])
    torch.testing.assert_close(batch.z, single, rtol=0, atol=1e-14)
    listed = transform.embed(graphs, torch.float64)
    torch.testing.assert_close(listed, single, rtol=0, atol=1e-14)
    # A batch vector without pointers will do.
    bare = Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch)
    torch.testing.assert_close(transform(bare).z, single, rtol=0, atol=1e-14)


def test_composes():
    data = T.Compose(
        [T.ToUndirected(), GraphScattering(J=3, L=2, attr='phi'), T.Constant()]
    )(ring(7))
    assert data.phi.dim() == 2


def test_degrees_are_one_hot_of_a_fixed_width():
    data = Data(
        edge_index=torch.tensor([[0, 1, 0, 2, 0, 3], [1, 0, 2, 0, 3, 0]]),
        num_nodes=5,
    )
    for max_degree in (2, 4, 9):
        transform = GraphScattering(J=3, Q=2, L=3, max_degree=max_degree)
        degree = torch.tensor([3, 1, 1, 1, 0]).clamp(max=max_degree)
        x = one_hot(degree, max_degree + 1)
        expected = scattering_transform(
            CSRGraph.from_data(data), x, J=3, Q=2, L=3
        )
        torch.testing.assert_close(transform(data).z, expected)
        z = transform.embed(data, sparse=True)
        assert z.layout == torch.sparse_csr
        torch.testing.assert_close(z.to_dense(), expected)
    with pytest.raises(ValueError, match="'max_degree'"):
        GraphScattering()(data)


def test_other_graphs_do_not_matter():
    small, large = ring(4), ring(9)
    transform = GraphScattering(J=3, Q=2, L=3, max_degree=5)
    alone = transform.embed(small, torch.float64)
    together = transform.embed([large, small], torch.float64)[1:]
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-14)


def test_features_need_to_be_bounded():
    data = ring(5)
    data.x = data.x * 3
    with pytest.raises(ValueError, match=r"'x' needs to be in \[-1, 1\]"):
        GraphScattering()(data)
    clipped = GraphScattering(clip=True)(data).z
    data.x = data.x.clamp(-1, 1)
    assert torch.equal(clipped, GraphScattering()(data).z)
    data.x[0, 0] = float('nan')
    with pytest.raises(ValueError, match="'x'"):
        GraphScattering()(data)


def test_one_feature_may_be_a_vector():
    data = ring(5, 1)
    expected = GraphScattering()(data).z
    data.x = data.x.view(-1)
    assert torch.equal(GraphScattering()(data).z, expected)


def test_bad_graphs():
    directed = Data(
        x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]])
    )
    with pytest.raises(ValueError, match='undirected'):
        GraphScattering(wavelet='diffusion')(directed)
    with pytest.raises(TypeError, match="'data'"):
        GraphScattering()(HeteroData())
    with pytest.raises(ValueError, match='at least one'):
        GraphScattering().embed([])


def test_the_graph_fourier_embedding_is_its_formula():
    # Eigenvectors (1, 1) / sqrt 2 at 0 and (1, -1) / sqrt 2 at 2.
    x = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    edge = Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]))
    z = GFT(num_bands=2)(edge).z
    expected = torch.tensor([[1.5**2 / 4, 0.5**2 / 4]], dtype=torch.float64)
    torch.testing.assert_close(z, expected)
    # By Parseval all bands together have the energy of the signal; a graph is
    # embedded alone as it is in a batch, and a node without edges lies at 0.
    lonely = Data(x=x[[0, 1, 1]], edge_index=torch.tensor([[0, 1], [1, 0]]))
    both = GFT(num_bands=4).embed([edge, lonely]).view(2, 4)
    assert both.sum(1).tolist() == pytest.approx([1.25 / 2, 1.5 / 3])
    assert float(both[1, 0]) == pytest.approx((1.5**2 / 2 + 0.25) / 3)
    assert GFT()(edge).z.shape == (1, 1)
    with pytest.raises(ValueError, match='undirected'):
        GFT()(Data(x=x, edge_index=torch.tensor([[0], [1]])))
