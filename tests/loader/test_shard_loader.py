import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust import rng
from pyg_trust.loader import ShardLoader
from pyg_trust.transforms import Shards

NODES, SHARDS = 60, 5


def make_data(**kwargs):
    gen = rng.generator(0)
    edge_index = torch.randint(NODES, (2, 5 * NODES), generator=gen)
    data = Data(
        x=torch.randn(NODES, 3, generator=gen),
        edge_index=edge_index,
        edge_attr=torch.rand(5 * NODES, 2, generator=gen),
        y=torch.arange(NODES),
        train_mask=torch.rand(NODES, generator=gen) < 0.8,
        name='graph',
        **kwargs,
    )
    return Shards(SHARDS, 'random', seed=1)(data)


def same(a, b):
    assert a.keys() == b.keys()
    for key, value in a:
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, b[key]), key
        else:
            assert value == b[key]


def test_shards_are_induced_subgraphs():
    data = make_data()
    loader = ShardLoader(data)
    assert len(loader) == SHARDS
    seen = []
    for i, batch in enumerate(loader):
        assert batch.shard_id.tolist() == [i]
        n_id = batch.n_id
        seen += n_id.tolist()
        assert bool((data.shard[n_id] == i).all())
        for key in ('x', 'y', 'train_mask', 'shard'):
            assert torch.equal(batch[key], data[key][n_id])
        # Every edge inside, with its attributes, and no other.
        wanted = [
            (u, v, *data.edge_attr[e].tolist())
            for e, (u, v) in enumerate(data.edge_index.t().tolist())
            if data.shard[u] == data.shard[v] == i
        ]
        found = [
            (u, v, *batch.edge_attr[e].tolist())
            for e, (u, v) in enumerate(n_id[batch.edge_index].t().tolist())
        ]
        assert found == wanted
        assert batch.num_nodes == n_id.numel()
        assert batch.name == ['graph']
    assert sorted(seen) == data.train_mask.nonzero().view(-1).tolist()


def test_several_shards_are_block_diagonal():
    data = make_data()
    single = list(ShardLoader(data))
    batches = list(ShardLoader(data, batch_size=2))
    assert [b.shard_id.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    for batch in batches:
        parts = [single[i] for i in batch.shard_id.tolist()]
        assert batch.num_graphs == len(parts)
        assert torch.equal(batch.n_id, torch.cat([p.n_id for p in parts]))
        assert torch.equal(batch.x, torch.cat([p.x for p in parts]))
        ends = [p.num_nodes for p in parts]
        shifts = [sum(ends[:k]) for k in range(len(parts))]
        wanted = [
            p.edge_index + shift
            for p, shift in zip(parts, shifts, strict=True)
        ]
        assert torch.equal(batch.edge_index, torch.cat(wanted, 1))
        assert batch.ptr.tolist() == [*shifts, sum(ends)]
    # A network sees in the stack what it sees one by one.
    model = GCN(3, 8, 2, 4)
    together = [model(b.x, b.edge_index) for b in batches]
    alone = [model(b.x, b.edge_index) for b in single]
    torch.testing.assert_close(torch.cat(together), torch.cat(alone))


def test_workers_bring_the_same():
    data = make_data()
    for a, b in zip(
        ShardLoader(data, batch_size=2),
        ShardLoader(data, batch_size=2, num_workers=2),
        strict=True,
    ):
        same(a, b)


def test_shuffling_follows_the_seed():
    data = make_data()

    def order(seed):
        loader = ShardLoader(data, shuffle=True, seed=seed)
        return [int(b.shard_id) for _ in range(2) for b in loader]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)[:SHARDS]) == list(range(SHARDS))
    some = ShardLoader(data, sampler=[3, 1])
    assert [int(b.shard_id) for b in some] == [3, 1]


def test_names_survive_renumbering():
    names = torch.arange(NODES) * 10
    data = make_data(n_id=names)
    for batch in ShardLoader(data):
        assert torch.equal(batch.y * 10, batch.n_id)


def test_a_shard_of_its_own():
    # Given beside the data, with isolated nodes and no edges at all.
    data = Data(x=torch.eye(4), edge_index=torch.empty(2, 0).long())
    shard = torch.tensor([1, -1, 0, 1])
    found = list(ShardLoader(data, shard))
    assert [b.n_id.tolist() for b in found] == [[2], [0, 3]]
    assert all(b.edge_index.shape == (2, 0) for b in found)
    assert str(ShardLoader(data, shard)) == (
        'ShardLoader(2 shards, batch_size=1)'
    )


class Transposed(Data):
    def __cat_dim__(self, key, value, *args, **kwargs):
        if key == 'xt':
            return 1
        return super().__cat_dim__(key, value, *args, **kwargs)


def test_attributes_follow_their_nodes_edges_and_pairs():
    # As PyG says it: the right rows come from Data.subgraph and from sets.
    gen = torch.Generator().manual_seed(3)
    n = 20
    edge_index = torch.randint(n, (2, 60), generator=gen)
    pairs = torch.randint(n, (2, 60), generator=gen)
    adj = torch.sparse_coo_tensor(edge_index, torch.rand(60), (n, n))
    data = Transposed(
        x=torch.rand(n, 3),
        xt=torch.rand(5, n),
        names=[f'node {i}' for i in range(n)],
        edge_index=edge_index,
        edge_attr=torch.rand(60, 2),
        kinds=[f'edge {i}' for i in range(60)],
        edge_label_index=pairs,
        edge_label=torch.arange(60),
        neg_edge_index=pairs[:, :7],
        face=torch.randint(n, (3, 9), generator=gen),
        adj=adj.coalesce().to_sparse_csr(),
        title='a graph',
    )
    shard = torch.arange(n) % 3 - 1
    loader = ShardLoader(data, shard)
    for batch in loader:
        inside = shard == int(batch.shard_id)
        wanted = data.subgraph(inside)
        assert type(wanted) is Transposed
        for key in ('x', 'xt', 'edge_index', 'edge_attr'):
            assert torch.equal(batch[key], wanted[key]), key
        names = [f'node {i}' for i in inside.nonzero().view(-1).tolist()]
        assert batch.names[0] == names
        both = inside[edge_index].all(0).nonzero().view(-1).tolist()
        assert batch.kinds[0] == [f'edge {i}' for i in both]
        for key, label in (('edge_label_index', 'edge_label'), ('face', '')):
            kept = inside[data[key]].all(0)
            assert torch.equal(batch.n_id[batch[key]], data[key][:, kept])
            if label:
                assert torch.equal(batch[label], data[label][kept])
        assert batch.neg_edge_index.size(1) == int(
            inside[data.neg_edge_index].all(0).sum()
        )
        part = data.adj.to_dense()[inside][:, inside]
        assert torch.equal(batch.adj.to_dense(), part)
        assert batch.title == ['a graph']
