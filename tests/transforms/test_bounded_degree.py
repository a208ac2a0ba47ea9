import pytest
import torch
from scipy.stats import chi2
from torch_geometric.data import Data

from pyg_trust.testing import UNDIRECTED, make_graph
from pyg_trust.transforms import BoundedDegree


def data_of(name):
    graph = make_graph(name)
    edge_index, _ = graph.to_edge_index()
    count = edge_index.size(1)
    return Data(
        x=torch.randn(graph.num_nodes, 2),
        edge_index=edge_index,
        edge_attr=torch.arange(count),
        edge_weight=torch.rand(count),
    )


def receivers(data, along=True):
    keep = data.edge_index[0] != data.edge_index[1]
    side = data.edge_index[0 if along else 1][keep]
    return side.bincount(minlength=data.num_nodes)


@pytest.mark.parametrize('K', [1, 2, 3, 100])
@pytest.mark.parametrize('name', [*UNDIRECTED, 'directed', 'random'])
@pytest.mark.parametrize('along', [True, False])
def test_receivers_are_few(name, K, along):
    data = data_of(name)
    before = data.clone()
    out = BoundedDegree(K, along=along, seed=0)(data)
    # As many as there were, or K.
    want = receivers(data, along).clamp(max=K)
    assert receivers(out, along).equal(want)
    assert out.num_nodes == data.num_nodes
    # All are edges of the graph, with what belonged to them.
    index = out.edge_attr
    assert index.unique().numel() == index.numel()
    assert out.edge_index.equal(data.edge_index[:, index])
    assert out.edge_weight.equal(data.edge_weight[index])
    loops = (data.edge_index[0] == data.edge_index[1]).sum()
    assert (out.edge_index[0] == out.edge_index[1]).sum() == loops
    assert data.edge_index.equal(before.edge_index)
    assert data.edge_attr.equal(before.edge_attr)


def test_choice_is_uniform_and_blind_to_features():
    data = data_of('star')
    count = torch.zeros(6)
    for seed in range(600):
        out = BoundedDegree(2, seed=seed)(data)
        kept = out.edge_index[1][out.edge_index[0] == 5]
        assert kept.numel() == 2
        count[kept] += 1
    statistic = ((count[:5] - 240) ** 2 / 240).sum() * 4 / 3
    assert chi2(4).sf(statistic) > 1e-3
    other = data.clone()
    other.x = torch.randn(6, 2)
    assert BoundedDegree(2, seed=1)(data).edge_index.equal(
        BoundedDegree(2, seed=1)(other).edge_index
    )


def test_in_edges_alone_would_not_do():
    # A hub that everybody listens to: bounding what each node *hears* leaves
    # it in everybody's neighbourhood.
    edge_index = torch.tensor([[0] * 9, list(range(1, 10))])
    data = Data(edge_index=edge_index, num_nodes=10)
    assert receivers(BoundedDegree(3, seed=0)(data))[0] == 3
    assert receivers(BoundedDegree(3, along=False, seed=0)(data))[0] == 9
