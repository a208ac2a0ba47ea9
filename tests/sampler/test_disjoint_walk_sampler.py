from itertools import pairwise

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput
from torch_geometric.utils import subgraph

from pyg_trust.sampler import DisjointWalkSampler
from pyg_trust.testing import make_graph


def make_data(name='random', shuffle=True):
    graph = make_graph(name)
    edge_index, _ = graph.to_edge_index()
    if shuffle:
        order = torch.randperm(
            edge_index.size(1), generator=torch.Generator().manual_seed(0)
        )
        edge_index = edge_index[:, order]
    return Data(
        x=torch.arange(graph.num_nodes).view(-1, 1).float(),
        edge_index=edge_index,
        edge_attr=torch.arange(edge_index.size(1)),
        num_nodes=graph.num_nodes,
    )


@pytest.mark.parametrize(
    'name', ['random', 'star', 'self_loop', 'isolated', 'directed', 'no_edges']
)
def test_edges_are_those_inside_each_subgraph(name):
    data = make_data(name)
    for seed in range(10):
        sampler = DisjointWalkSampler(data, 2, 2, seed=seed)
        walks = sampler.partition()
        out = sampler.sample_walks(walks)
        assert out.node[: walks.num_subgraphs].equal(walks.roots)
        bounds = walks.ptr.tolist()
        wanted = set()
        for i, (a, b) in enumerate(pairwise(bounds)):
            nodes = walks.node[a:b]
            assert out.node[out.batch == i].tolist() == nodes.tolist()
            inner, _ = subgraph(nodes, data.edge_index, num_nodes=40)
            wanted |= set(map(tuple, inner.t().tolist()))
        got = torch.stack([out.node[out.row], out.node[out.col]])
        assert set(map(tuple, got.t().tolist())) == wanted
        assert got.size(1) == len(wanted)
        assert got.equal(
            data.edge_index[:, sampler.edge_permutation[out.edge]]
        )


def test_partitions_depend_on_seed_and_number_alone():
    data = make_data()
    one = DisjointWalkSampler(data, 2, seed=4)
    two = DisjointWalkSampler(data, 2, seed=4)
    assert one.partition(3).node.equal(two.partition(3).node)
    assert not one.partition(0).node.equal(two.partition(3).node)
    assert one.partition(3).node.equal(two.partition(3).node)
    assert one.partition(3) is one.partition(3)
    other = DisjointWalkSampler(data, 2, seed=5)
    assert not one.partition(3).node.equal(other.partition(3).node)


def test_in_a_plain_node_loader():
    data = make_data()
    sampler = DisjointWalkSampler(data, 1, seed=1)
    walks = sampler.partition()
    loader = NodeLoader(data, sampler, walks.roots, batch_size=5)
    seen = []
    for batch in loader:
        count = batch.batch_size
        assert batch.n_id[:count].equal(walks.roots[batch.input_id])
        assert batch.x.view(-1).equal(batch.n_id.float())
        seen += batch.n_id.tolist()
    assert sorted(seen) == list(range(40))


def test_sampling_refuses_what_is_no_root():
    sampler = DisjointWalkSampler(make_data('star'), 1, seed=1)
    assert isinstance(sampler, BaseSampler)
    walks = sampler.partition()
    inner = walks.node[~torch.isin(walks.node, walks.roots)]
    for node, match in (
        (walks.roots[[0, 0]], 'once'),
        (torch.tensor([6]), 'number of nodes'),
    ):
        with pytest.raises(ValueError, match=match):
            sampler.sample_from_nodes(NodeSamplerInput(None, node))
    with pytest.raises(NotImplementedError, match='not from edges'):
        sampler.sample_from_edges(None)
    # Of others, too, each is the root of a subgraph, disjoint from the rest.
    for node in (walks.roots, inner, torch.arange(5)):
        out = sampler.sample_from_nodes(NodeSamplerInput(None, node))
        assert out.metadata[0].equal(node)
        assert out.node[: len(node)].equal(node)
        assert out.node.unique().numel() == out.node.numel()
        assert out.batch[: len(node)].equal(torch.arange(len(node)))
