import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub

from pyg_trust.graph.attributes import (
    edge_attributes,
    node_attributes,
    subgraph,
)
from pyg_trust.loader import ShardLoader
from pyg_trust.transforms import BoundedDegree, Division, FlipBits

N, E = 5, 8


class Mine(Data):
    # Two attributes that PyG knows nothing about.
    def __cat_dim__(self, key, value, *args, **kwargs):
        if key == 'wide':
            return 1
        return super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key, value, *args, **kwargs):
        if key == 'friends':
            return self.num_nodes
        return super().__inc__(key, value, *args, **kwargs)


def graph(cls=Data, **more):
    ends = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 4], [1, 2, 3, 0, 2, 1, 0, 4]])
    return cls(x=torch.arange(N).float()[:, None], edge_index=ends, **more)


def test_names_say_what_is_an_edge():
    rows = torch.arange(E)
    edges = {
        'edge_weight': rows.double(),
        'edge_attr': rows[:, None],
        'time': rows,
        'names': [str(i) for i in range(E)],
        'array': np.arange(E),
    }
    nodes = {'n_id': torch.arange(N), 'who': list('abcde')}
    others = {
        'y': torch.rand(E),  # targets of the graph
        'propagated': tuple('abcdefgh'),
        'edge_label_index': torch.zeros(2, E).long(),
        'edge_label': torch.ones(E),
        'neg_edge_index': torch.ones(2, E).long(),
        'neg_edge_attr': rows,
        'friends': rows[:, None] % N,
        'scalar': torch.tensor(3.0),
    }
    data = graph(Mine, **edges, **nodes, **others)
    data.wide = torch.rand(3, E)
    want = dict.fromkeys(edges, 0) | {'edge_index': 1, 'wide': 1}
    assert edge_attributes(data) == want
    assert node_attributes(data) == {'x': 0, **dict.fromkeys(nodes, 0)}
    out = BoundedDegree(1, seed=0)(data.clone())
    kept = out.edge_attr.view(-1)
    assert kept.numel() == 5  # one of each node, and the loop
    for name, value in edges.items():
        want = np.asarray(value)[kept.numpy()]
        assert (np.asarray(out[name]) == want).all()
    assert out.wide.equal(data.wide[:, kept])
    for name, value in (nodes | others).items():
        assert np.array_equal(np.asarray(out[name]), np.asarray(value))


def test_as_many_edges_as_nodes():
    ring = torch.arange(4)
    data = Data(
        edge_index=torch.stack([ring, (ring + 1) % 4]),
        x=torch.rand(4, 2),
        mine=ring,
        edge_time=ring,
        train_mask=ring > 2,
    )
    assert list(edge_attributes(data)) == ['edge_index', 'edge_time']
    assert list(node_attributes(data)) == ['x', 'mine', 'train_mask']


@pytest.mark.parametrize('labels', [False, True])
def test_labelled_pairs_are_no_edges(labels):
    # Fails if as many pairs as edges are taken for edges.
    split = T.RandomLinkSplit(0.1, 0.1, True, split_labels=labels)
    train = split(KarateClub()[0])[0]
    out = BoundedDegree(3, seed=0)(train.clone())
    assert out.num_edges < train.num_edges
    pairs = [name for name in train.to_dict() if 'label' in name]
    assert len(pairs) == 2 + 2 * labels
    assert all(out[name].equal(train[name]) for name in pairs)
    node = torch.arange(3, 20).flip(0)
    sub = subgraph(train, node)
    for name in pairs:
        if 'index' not in name:
            continue
        inside = torch.isin(train[name], node).all(0)
        assert 0 < inside.sum() < inside.numel()
        assert node[sub[name]].equal(train[name][:, inside])
        label = name.removesuffix('_index')
        assert sub[label].equal(train[label][inside])


def test_subgraph_as_pyg():
    data = KarateClub()[0]
    data.edge_attr = torch.rand(data.num_edges, 2)
    data.names = [str(i) for i in range(34)]
    node = torch.arange(0, 34, 3)
    want, out = data.subgraph(node), subgraph(data, node)
    for name, value in want.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert out[name].equal(value)
    assert out.names == [str(i) for i in node.tolist()]
    for layout in (torch.sparse_csr, torch.sparse_coo):
        adj = data.clone()
        made = T.ToSparseTensor(layout=layout)(data.clone()).adj_t
        adj.adj_t = made
        cut = made.to_dense()[node][:, node]
        got = subgraph(adj, node).adj_t
        assert got.layout == layout
        assert got.to_dense().equal(cut)


def test_adjacency_beside_the_edges_is_refused():
    data = graph()
    data.adj_t = torch.eye(N).to_sparse()
    with pytest.raises(ValueError, match=r'del data.adj_t'):
        BoundedDegree(1)(data)
    del data.adj_t
    BoundedDegree(1)(data)


def test_edge_index_of_any_type():
    want = BoundedDegree(1, seed=0)(graph()).edge_index
    size = (N, N)
    for ends in (
        graph().edge_index.int(),
        EdgeIndex(graph().edge_index, sparse_size=size, sort_order='row'),
        EdgeIndex(graph().edge_index.int(), sparse_size=size),
    ):
        data = Data(x=torch.rand(N, 1), edge_index=ends)
        out = BoundedDegree(1, seed=0)(data)
        assert torch.as_tensor(out.edge_index).long().equal(want)
        assert out.edge_index.dtype == ends.dtype
        assert torch.equal(subgraph(data, torch.arange(N)).edge_index, ends)
        half = (torch.arange(N) > 1).long()
        plain = Data(x=data.x, edge_index=graph().edge_index)
        for one, two in zip(
            ShardLoader(data, half), ShardLoader(plain, half), strict=True
        ):
            assert one.edge_index.equal(two.edge_index)
        for by in ('nodes', 'subgraphs'):
            views = [
                Division(2, by, seed=0).view(given, 0)
                for given in (data, plain)
            ]
            assert torch.equal(views[0].edge_index, views[1].edge_index)


def test_transforms_of_edges_take_adj_t():
    data = graph()
    adj = T.ToSparseTensor(layout=torch.sparse_csr)(data.clone())
    want = BoundedDegree(100)(data).edge_index
    got = BoundedDegree(100)(adj.clone()).edge_index
    assert sorted(got.t().tolist()) == sorted(want.t().tolist())
    flip = FlipBits(edges=(0.0, 0.5), directed=True, seed=0)
    assert flip(adj).edge_index.equal(flip(data).edge_index)
    half = (torch.arange(N) > 1).long()
    for one, two in zip(
        ShardLoader(adj, half), ShardLoader(data, half), strict=True
    ):
        assert sorted(one.edge_index.t().tolist()) == sorted(
            two.edge_index.t().tolist()
        )
    weight = torch.arange(1.0, E + 1)
    data.edge_weight = weight
    weighted = T.ToSparseTensor(layout=torch.sparse_csr, attr='edge_weight')(
        data.clone()
    )
    got = BoundedDegree(100)(weighted)
    assert dict(
        zip(
            map(tuple, got.edge_index.t().tolist()),
            got.edge_weight.tolist(),
            strict=True,
        )
    ) == dict(
        zip(
            map(tuple, data.edge_index.t().tolist()),
            weight.tolist(),
            strict=True,
        )
    )
