"""Training noise: the law, what is left alone, and seeds."""

import copy

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.utils import is_undirected

from pyg_trust.testing import UNDIRECTED, make_graph
from pyg_trust.transforms import FlipBits


def data_of(name):
    graph = make_graph(name)
    edge_index, _ = graph.to_edge_index()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(graph.num_nodes, 5, generator=generator) < 0.4
    return Data(x=x.float(), edge_index=edge_index)


@pytest.mark.parametrize('name', [*UNDIRECTED, 'random'])
def test_graphs_stay_graphs_and_the_input_stays_as_it_was(name):
    data = data_of(name)
    before = copy.deepcopy(data)
    flip = FlipBits(edges=(0.2, 0.3), features=(0.1, 0.2))
    made = T.Compose([flip])(data)
    assert made.num_nodes == data.num_nodes
    assert is_undirected(made.edge_index, num_nodes=made.num_nodes)
    assert set(made.x.unique().tolist()) <= {0.0, 1.0}
    assert made.x.dtype == data.x.dtype
    assert torch.equal(data.x, before.x)
    assert torch.equal(data.edge_index, before.edge_index)
    loops = made.edge_index[0] == made.edge_index[1]
    old = data.edge_index[0] == data.edge_index[1]
    assert int(loops.sum()) == int(old.sum())


def test_each_call_draws_anew_and_torch_decides_what():
    data, flip = data_of('random'), FlipBits(edges=(0.01, 0.3))
    torch.manual_seed(0)
    one, two = flip(data), flip(data)
    assert not torch.equal(one.edge_index, two.edge_index)
    torch.manual_seed(0)
    assert torch.equal(flip(data).edge_index, one.edge_index)
    fixed = FlipBits(edges=(0.01, 0.3), seed=3)
    assert torch.equal(fixed(data).edge_index, fixed(data).edge_index)
    assert torch.equal(one.x, data.x)


def test_the_share_of_flips_is_that_of_the_noise():
    data = data_of('random')
    data.x = (torch.rand(40, 500) < 0.3).float()
    made = FlipBits(features=(0.05, 0.4), seed=0)(data)
    for bit, p in ((0, 0.05), (1, 0.4)):
        moved = (made.x != data.x)[data.x == bit].double()
        error = (p * (1 - p) / moved.numel()) ** 0.5
        assert abs(float(moved.mean()) - p) < 5 * error


def test_edges_and_features_are_flipped_by_noise_of_their_own():
    # A joint certificate multiplies both laws. Two nodes have one edge to
    # add, and x one bit to set: all that one number could decide of both.
    data = Data(
        x=torch.zeros(2, 1), edge_index=torch.empty(2, 0, dtype=torch.int64)
    )
    made = [
        FlipBits(edges=(0.4, 0.4), features=(0.4, 0.4), seed=seed)(data)
        for seed in range(400)
    ]
    edge = torch.tensor([view.edge_index.numel() > 0 for view in made])
    for bit in range(2):
        agree = edge == torch.tensor([bool(view.x[bit]) for view in made])
        # They agree with probability .52: five standard errors about it.
        assert abs(float(agree.double().mean()) - 0.52) < 0.125


def test_directed_graphs_flip_each_direction():
    made = FlipBits(edges=(0.0, 0.5), directed=True, seed=1)(data_of('random'))
    assert not is_undirected(made.edge_index)
    directed = data_of('directed')
    with pytest.raises(ValueError, match='both directions'):
        FlipBits(edges=(0.0, 0.5))(directed)


def test_labelled_pairs_are_no_attributes_of_edges():
    split = T.RandomLinkSplit(0.1, 0.1, True)
    train = split(KarateClub()[0])[0]
    train.y = torch.rand(train.num_edges)  # targets of the graph
    flip = FlipBits(edges=(0.0, 0.5), seed=0)
    assert flip(train.clone()).num_edges < train.num_edges
    train.edge_time = torch.arange(train.num_edges)
    with pytest.raises(ValueError, match=r'del data\.edge_time'):
        flip(train)
    del train.edge_time
    flip(train)
