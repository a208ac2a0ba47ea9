"""GraphRevoker's partition network."""

import pytest
import torch

from pyg_trust import rng
from pyg_trust import unlearning as F
from pyg_trust.nn import (
    ShardPartitioner,
    learned_partition,
    partition_embedding,
)
from pyg_trust.unlearning.partition import (
    check_partition,
    partition_losses,
    shard_limits,
    training_graph,
)

NODES, SHARDS = 160, 4


def make():
    """Four communities; labels are spread over all of them."""
    gen = rng.generator(0)
    group = torch.arange(NODES) // (NODES // SHARDS)
    pairs = torch.randint(NODES, (2, 9000), generator=gen)
    inside = group[pairs[0]] == group[pairs[1]]
    keep = inside | (torch.rand(9000, generator=gen) < 0.03)
    edge_index = training_graph(pairs[:, keep], torch.arange(NODES), NODES)
    x = torch.eye(SHARDS)[group] + torch.randn(NODES, SHARDS, generator=gen)
    return x, edge_index, group


def cut_of(shard, edge_index):
    row, col = edge_index
    return float((shard[row] != shard[col]).double().mean())


def entropy_of(shard, edge_index, y):
    hard = torch.eye(SHARDS)[shard]
    return -float(partition_losses(hard, edge_index, y, SHARDS).sem)


@pytest.fixture(scope='module')
def data():
    return make()


def test_it_is_a_soft_assignment(data):
    x, edge_index, _ = data
    model = ShardPartitioner(SHARDS, 6)
    P = model(x, edge_index)
    assert P.shape == (NODES, 6)
    torch.testing.assert_close(P.sum(1), torch.ones(NODES))
    before = model.lin.weight.clone()
    model.reset_parameters()
    assert not torch.equal(model.lin.weight, before)


def test_it_cuts_few_edges(data):
    x, edge_index, _ = data
    y = torch.arange(NODES) % 3
    shard = learned_partition(x, edge_index, y, SHARDS, seed=0)
    random = F.random_partition(NODES, SHARDS, seed=0)
    assert cut_of(shard, edge_index) < cut_of(random, edge_index) / 2
    sizes = check_partition(shard, SHARDS)
    assert int(sizes.max()) * SHARDS <= 1.15 * NODES
    assert torch.equal(
        learned_partition(x, edge_index, y, SHARDS, seed=0), shard
    )


def test_a_strong_weight_raises_the_entropy_of_labels(data):
    # Labels are the communities: few cuts and mixed labels are at odds.
    x, edge_index, y = data

    shards = [
        learned_partition(x, edge_index, y, SHARDS, sem_weight=weight, seed=1)
        for weight in (-20.0, 0.0, 20.0)
    ]
    *others, right = [entropy_of(s, edge_index, y) for s in shards]
    assert right > max(others) + 0.3
    assert cut_of(shards[2], edge_index) > cut_of(shards[1], edge_index)


def test_a_strong_weight_of_time_leaves_few_edges_in_a_shard(data):
    # What a shard takes to train falls with its edges: with this weight it is
    # worth more than the edges that are cut.
    x, edge_index, _ = data
    y = torch.arange(NODES) % 3

    def cut(weight):
        shard = learned_partition(
            x, edge_index, y, SHARDS, time_weight=weight, seed=1
        )
        return cut_of(shard, edge_index)

    assert cut(1.0) > cut(0.0) + 0.2


def test_it_trains_until_it_stands_still(data):
    x, edge_index, y = data
    args = x, edge_index, y, SHARDS
    long = learned_partition(*args, seed=2, max_epochs=2000)
    longer = learned_partition(*args, seed=2, max_epochs=4000)
    assert torch.equal(long, longer)
    short = learned_partition(*args, seed=2, max_epochs=1)
    assert not torch.equal(short, long)


def test_the_scale_of_features_does_not_matter(data):
    x, edge_index, y = data
    args = edge_index, y, SHARDS
    shard = learned_partition(x, *args, seed=2)
    # A power of two changes no digit.
    tiny = learned_partition(x / 2**12, *args, seed=2)
    assert torch.equal(tiny, shard)
    check_partition(learned_partition(0 * x, *args, seed=2), SHARDS)


def test_one_shard_is_everyone():
    one = torch.zeros(1, dtype=torch.int64)
    shard = learned_partition(
        torch.ones(1, 2), torch.empty(2, 0).long(), one, 1, seed=0
    )
    assert torch.equal(shard, one)


@pytest.mark.parametrize('name', ['star', 'no_edges'])
def test_it_balances_any_graph(name):
    others = torch.arange(1, 50)
    pairs = torch.stack([torch.zeros_like(others), others])
    pairs = pairs[:, : 0 if name == 'no_edges' else None]
    edge_index = training_graph(pairs, torch.arange(50), 50)
    shard = learned_partition(
        torch.ones(50, 2), edge_index, torch.arange(50) % 2, 7, seed=0
    )
    sizes = check_partition(shard, 7, 50)
    assert int(sizes.max()) <= shard_limits(50, 7)[1]


def test_embeddings_know_the_labels(data):
    x, edge_index, y = data
    logits = partition_embedding(x, edge_index, y, seed=0)
    assert logits.shape == (NODES, SHARDS)
    assert not logits.requires_grad
    assert float((logits.argmax(1) == y).double().mean()) > 0.9
    assert torch.equal(partition_embedding(x, edge_index, y, seed=0), logits)
