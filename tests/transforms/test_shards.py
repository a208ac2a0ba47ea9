import shutil

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.data.datapipes import DatasetAdapter
from torch_geometric.datasets import Planetoid

from pyg_trust import rng
from pyg_trust import unlearning as F
from pyg_trust.nn import learned_partition, partition_embedding
from pyg_trust.transforms import Shards
from pyg_trust.transforms.shards import PARTITIONS
from pyg_trust.unlearning.partition import (
    check_partition,
    partition_losses,
    shard_limits,
    training_graph,
)

NODES, SHARDS = 90, 4
WITHOUT_METIS = [method for method in PARTITIONS if method != 'metis']


def make_data(**kwargs):
    gen = rng.generator(0)
    edge_index = torch.randint(NODES, (2, 4 * NODES), generator=gen)
    return Data(
        x=torch.randn(NODES, 6, generator=gen),
        edge_index=torch.cat([edge_index, edge_index.flip(0)], 1),
        y=torch.randint(3, (NODES,), generator=gen),
        train_mask=torch.rand(NODES, generator=gen) < 0.7,
        **kwargs,
    )


@pytest.mark.parametrize('method', WITHOUT_METIS)
def test_shards_are_those_of_the_training_nodes(method):
    data = make_data()
    before = data.clone()
    transform = Shards(SHARDS, method, seed=3)
    out = transform(data)
    assert 'shard' not in data
    for key, value in before:
        assert torch.equal(data[key], value)
        assert torch.equal(out[key], value)
    assert bool((out.shard[~data.train_mask] == -1).all())
    sizes = check_partition(out.shard[data.train_mask], SHARDS)
    if method != 'hash':
        low, high = shard_limits(int(data.train_mask.sum()), SHARDS)
        assert low <= int(sizes.min()) <= int(sizes.max()) <= high
        assert float(sizes.max() / sizes.double().mean()) <= 1.15
    assert torch.equal(transform(data).shard, out.shard)
    again = Shards(SHARDS, method, seed=3)(data)
    assert torch.equal(again.shard, out.shard)
    other = Shards(SHARDS, method, seed=4)(data)
    assert not torch.equal(other.shard, out.shard)
    assert str(transform) == f"Shards(4, '{method}', seed=3)"


def test_shards_are_the_functions():
    data = make_data()
    index = data.train_mask.nonzero().view(-1)
    edge_index = training_graph(data.edge_index, index, NODES)
    x, y = data.x[index], data.y[index]
    embedding = partition_embedding(x, edge_index, y, seed=rng.derive(7, 0))
    wanted = {
        'random': F.random_partition(len(index), SHARDS, seed=7),
        'hash': F.hash_partition(index, SHARDS, seed=7),
        'blpa': F.blpa(edge_index, len(index), SHARDS, seed=7),
        'bekm': F.bekm(embedding, SHARDS, seed=7),
        'learned': learned_partition(x, edge_index, y, SHARDS, seed=7),
    }
    for method, shard in wanted.items():
        out = Shards(SHARDS, method, seed=7)(data)
        assert torch.equal(out.shard[index], shard)
    out = Shards(SHARDS, 'bekm', seed=7, embedding='x', slack=0.5)(data)
    assert torch.equal(out.shard[index], F.bekm(x, SHARDS, seed=7, slack=0.5))


@pytest.mark.parametrize('method', WITHOUT_METIS)
def test_nothing_outside_of_training_is_seen(method):
    data = make_data()
    out = Shards(SHARDS, method, seed=1)(data)
    other = data.clone()
    test = ~data.train_mask
    other.x[test] = torch.nan
    other.y[test] = -1
    # Edges at test nodes lead elsewhere.
    row, col = data.edge_index
    loose = test[row] | test[col]
    nodes = test.nonzero().view(-1)
    other.edge_index[:, loose] = nodes[0]
    found = Shards(SHARDS, method, seed=1)(other)
    assert torch.equal(found.shard, out.shard)


def test_hash_follows_names_where_nodes_are_renumbered():
    data = make_data(n_id=torch.arange(NODES))
    transform = Shards(SHARDS, 'hash')  # one key for all calls
    shard = transform(data).shard
    assert torch.equal(transform(make_data()).shard, shard)
    keep = torch.arange(NODES) % 5 > 0
    out = transform(data.subgraph(keep))
    assert torch.equal(out.shard, shard[keep])
    assert transform.exact
    assert not any(
        Shards(SHARDS, method).exact
        for method in PARTITIONS
        if method != 'hash'
    )


def test_every_method_says_what_it_has_seen():
    assert all(PARTITIONS.fact(name, 'sees') for name in PARTITIONS)
    assert 'id of the node' in Shards(2, 'hash').seen
    assert 'labels' in Shards(2, 'learned').seen


def test_in_a_pipeline():
    data = make_data()
    pipeline = T.Compose([T.NormalizeFeatures(), Shards(SHARDS, seed=2)])
    wanted = Shards(SHARDS, seed=2)(data).shard
    assert torch.equal(pipeline(data).shard, wanted)
    (out,) = list(DatasetAdapter([data]).shards(SHARDS, seed=2))
    assert torch.equal(out.shard, wanted)


@pytest.mark.parametrize('method', ['blpa', 'bekm', 'learned'])
def test_on_the_real_thing(method, shared, tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    shutil.copytree(shared / 'data/Planetoid/Cora', root / 'Cora')
    data = Planetoid(root, 'Cora')[0]
    data.train_mask = torch.rand(data.num_nodes, generator=rng.generator(0))
    data.train_mask = data.train_mask < 0.7
    kwargs = {'max_epochs': 10} if method == 'learned' else {}
    shard = Shards(20, method, seed=0, **kwargs)(data).shard
    sizes = check_partition(shard[data.train_mask], 20).double()
    assert float(sizes.max() / sizes.mean()) <= 1.15
    index = data.train_mask.nonzero().view(-1)
    edge_index = training_graph(data.edge_index, index, data.num_nodes)
    random = F.random_partition(index.numel(), 20, seed=0)
    # All of them cut fewer edges than chance does.
    cut, chance = (
        float((home[edge_index[0]] != home[edge_index[1]]).double().mean())
        for home in (shard[index], random)
    )
    assert cut < chance - 0.1
    if method == 'bekm':
        # The trap: logits cluster by class.
        hard = torch.eye(20)[shard[index]]
        assert partition_losses(hard, edge_index, data.y[index], 7).sem > -0.7
