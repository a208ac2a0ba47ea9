"""Partitions, against brute force and dense definitions."""

import sys
import types

import pytest
import torch

from pyg_trust import rng
from pyg_trust import unlearning as F
from pyg_trust.unlearning.partition import (
    _moved,
    check_partition,
    partition_from_lists,
    partition_losses,
    round_partition,
    shard_limits,
    shard_sizes,
    training_graph,
)

GRAPHS = ('random', 'star', 'isolated', 'no_edges', 'blocks')
NODES, SHARDS = 120, 6


def make(name, num_nodes=NODES):
    """Edges between training nodes."""
    gen = rng.generator(1)
    if name == 'random':
        pairs = torch.randint(num_nodes, (2, 3 * num_nodes), generator=gen)
    elif name == 'star':
        others = torch.arange(1, num_nodes)
        pairs = torch.stack([torch.zeros_like(others), others])
    elif name == 'isolated':
        pairs = torch.randint(num_nodes // 2, (2, num_nodes), generator=gen)
    elif name == 'no_edges':
        pairs = torch.empty(2, 0, dtype=torch.int64)
    else:
        size = num_nodes // SHARDS
        start = torch.arange(SHARDS).repeat_interleave(6 * size) * size
        pairs = torch.randint(size, (2, start.numel()), generator=gen) + start
        bridge = torch.arange(SHARDS - 1) * size
        pairs = torch.cat([pairs, torch.stack([bridge, bridge + size])], 1)
    return training_graph(pairs, torch.arange(num_nodes), num_nodes)


def check_balance(shard, num_shards, slack=0.1):
    sizes = check_partition(shard, num_shards, shard.numel())
    low, high = shard_limits(shard.numel(), num_shards, slack)
    assert low <= int(sizes.min())
    assert int(sizes.max()) <= high
    return sizes


# Limits and checks ###########################################################


def test_limits():
    # The cap of GraphEraser for Cora: 94.75 + 0.005 (1895 - 94.75) = 103.75,
    # rounded up there and down here.
    assert shard_limits(1895, 20, 0.095) == (86, 103)
    assert shard_limits(1895, 20, 0.0) == (94, 95)
    assert shard_limits(5, 5) == (1, 1)
    assert shard_limits(7, 5, 0.99) == (1, 2)
    assert shard_limits(9, 1) == (9, 9)
    for num_nodes in range(1, 300, 7):
        for num_shards in range(1, min(num_nodes, 40) + 1):
            low, high = shard_limits(num_nodes, num_shards)
            # Every size between them can be met.
            assert 1 <= low <= num_nodes / num_shards <= high
            if num_nodes >= 7 * num_shards:
                assert high * num_shards <= 1.15 * num_nodes


def test_partition_from_lists():
    index = torch.tensor([9, 4, 7])
    a, b = torch.tensor([7]), torch.tensor([4, 9])
    for shards in ([a, b], [[7], [4, 9]]):
        assert partition_from_lists(shards, index).tolist() == [1, 1, 0]
    for match, shards in [
        ('node 4 is left out', [a, b[1:]]),
        ('node 7 is named twice', [a, torch.tensor([4, 7, 9])]),
        ('node 5 is no training', [a, torch.tensor([4, 9, 5])]),
    ]:
        with pytest.raises((TypeError, ValueError), match=match):
            partition_from_lists(shards, index)


def test_training_graph_is_induced_and_simple():
    edge_index = torch.tensor([[0, 5, 5, 2, 2, 3], [5, 0, 2, 2, 1, 3]])
    found = training_graph(edge_index, torch.tensor([5, 2, 0]), 6)
    assert sorted(found.t().tolist()) == [[0, 1], [0, 2], [1, 0], [2, 0]]


# Random and hash #############################################################


def test_random_partition_is_equal_and_uniform():
    shard = F.random_partition(1895, 20, seed=3)
    assert torch.equal(shard, F.random_partition(1895, 20, seed=3))
    assert not torch.equal(shard, F.random_partition(1895, 20, seed=4))
    sizes = check_partition(shard, 20, 1895)
    assert int(sizes.max()) - int(sizes.min()) == 1
    # Every node falls anywhere, and larger shards are no fixed ones.
    count = torch.zeros(7, 3)
    nodes = torch.arange(7)
    for seed in range(600):
        count[nodes, F.random_partition(7, 3, seed=seed)] += 1
    assert float((count - 200).abs().max()) < 5 * (600 * 2 / 9) ** 0.5


def test_hash_depends_on_key_and_name_alone():
    n_id = torch.tensor([2**40 + 5, 3, 0, 77, 1234567, 8, 9])
    shard = F.hash_partition(n_id, 2, seed=5)
    wanted = [rng.derive(5, name) % 2 for name in n_id.tolist()]
    assert shard.tolist() == wanted
    n_id = torch.arange(2000)
    shard = F.hash_partition(n_id, 20, seed=1)
    # Whoever goes, the others stay where they are.
    keep = torch.rand(2000, generator=rng.generator(0)) < 0.7
    assert torch.equal(F.hash_partition(n_id[keep], 20, seed=1), shard[keep])
    order = torch.randperm(2000, generator=rng.generator(0))
    assert torch.equal(F.hash_partition(n_id[order], 20, seed=1), shard[order])
    assert not torch.equal(F.hash_partition(n_id, 20, seed=2), shard)


def test_the_key_of_the_hash_is_secret_unless_given():
    # Who knows what seeded torch would know the shard of every name.
    names, made = torch.arange(200), []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(F.hash_partition(names, 4))
    assert not torch.equal(*made)


def test_hash_is_uniform():
    sizes = shard_sizes(F.hash_partition(torch.arange(20000), 20, seed=9), 20)
    # Chi squared with 19 degrees of freedom: 43.8 at 0.001.
    assert float((sizes - 1000).square().sum() / 1000) < 43.8


# Rounding ####################################################################


def greedy(score, slack):
    """The definition, pair by pair, then node by node."""
    num_nodes, num_shards = score.shape
    low, high = shard_limits(num_nodes, num_shards, slack)
    pairs = [
        (-float(score[u, i]), u, i)
        for u in range(num_nodes)
        for i in range(num_shards)
    ]
    shard, sizes = [None] * num_nodes, [0] * num_shards
    for _, u, i in sorted(pairs):
        if shard[u] is None and sizes[i] < high:
            shard[u] = i
            sizes[i] += 1
    for poor in [i for i in range(num_shards) if sizes[i] < low]:
        while sizes[poor] < low:
            loss = [
                (float(score[u, shard[u]] - score[u, poor]), u)
                for u in range(num_nodes)
                if shard[u] != poor and sizes[shard[u]] > low
            ]
            _, u = min(loss)
            sizes[shard[u]] -= 1
            shard[u] = poor
            sizes[poor] += 1
    return shard


@pytest.mark.parametrize('kind', ['plain', 'ties', 'peaked', 'skewed'])
def test_rounding_is_greedy(kind):
    gen = rng.generator(4)
    for num_nodes, num_shards, slack in [
        (40, 5, 0.1),
        (23, 4, 0.5),
        (30, 30, 0.1),
        (31, 7, 0.0),
        (12, 1, 0.2),
    ]:
        score = torch.randn(
            num_nodes, num_shards, generator=gen, dtype=torch.float64
        )
        if kind == 'ties':
            score = score.round()
        elif kind == 'peaked':
            score = (20 * score).softmax(1)
        elif kind == 'skewed':
            # argmax would put all nodes into one shard.
            score[:, -1] += 10
        shard = round_partition(score, slack=slack)
        assert shard.tolist() == greedy(score, slack)
        check_balance(shard, num_shards, slack)


def test_rounding_of_uniform_scores_leaves_no_shard_empty():
    shard = round_partition(torch.full((100, 20), 0.05))
    check_balance(shard, 20)


# METIS, BLPA, BEKM ###########################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_metis(name):
    pytest.importorskip('pymetis')
    edge_index = make(name)
    shard = F.metis_partition(edge_index, NODES, SHARDS)
    check_balance(shard, SHARDS)
    assert torch.equal(shard, F.metis_partition(edge_index, NODES, SHARDS))
    if name == 'blocks':
        row, col = edge_index
        assert float((shard[row] != shard[col]).double().mean()) < 0.02


def test_metis_is_asked_for_a_simple_graph_and_repaired(monkeypatch):
    edge_index, nodes = make('random'), torch.arange(NODES)
    answer = nodes % SHARDS

    def part_graph(num_parts, adjacency, options):
        assert (num_parts, options) == (SHARDS, {'seed': 0})
        ptr, col = map(torch.tensor, adjacency)
        row = nodes.repeat_interleave(ptr.diff())
        assert torch.equal(torch.stack([row, col]), edge_index)
        return 0, answer.tolist()

    fake = types.SimpleNamespace(
        Options=dict,
        CSRAdjacency=lambda ptr, col: (ptr, col),
        part_graph=part_graph,
    )
    monkeypatch.setitem(sys.modules, 'pymetis', fake)
    # A good one is kept.
    shard = F.metis_partition(edge_index, NODES, SHARDS)
    assert torch.equal(shard, answer)
    # Shard 5 is empty and shard 0 has nearly everyone: who can stay, stays.
    answer = (nodes % 60 // 12).where(nodes > 60, 0)
    shard = F.metis_partition(edge_index, NODES, SHARDS)
    check_balance(shard, SHARDS)
    others = (answer > 0) & (answer < 5)
    assert torch.equal(shard[others], answer[others])


def test_without_metis(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pymetis', None)
    with pytest.raises(ImportError, match='pip install pymetis'):
        F.metis_partition(make('random'), NODES, SHARDS)
    # One shard needs no METIS.
    shard = F.metis_partition(make('random'), NODES, 1)
    assert torch.equal(shard, torch.zeros(NODES, dtype=torch.int64))


@pytest.mark.parametrize('name', GRAPHS)
def test_blpa(name):
    edge_index = make(name)
    shard = F.blpa(edge_index, NODES, SHARDS, seed=2)
    check_balance(shard, SHARDS, 0.095)
    assert torch.equal(shard, F.blpa(edge_index, NODES, SHARDS, seed=2))
    row, col = edge_index
    start = F.random_partition(NODES, SHARDS, seed=rng.derive(2, 0))
    if name in ('random', 'blocks'):
        before = int((start[row] != start[col]).sum())
        after = int((shard[row] != shard[col]).sum())
        assert after < 0.8 * before
    # A node without neighbours wants nothing.
    alone = torch.ones(NODES, dtype=torch.bool)
    alone[row] = False
    assert torch.equal(shard[alone], start[alone])


@pytest.mark.parametrize(
    ('shard', 'order', 'wanted', 'sizes', 'limits', 'after'),
    [
        # Node 0 waits at the full shard 0 until node 1 leaves it for shard 1.
        ([1, 0, 0, 0, 1], [0, 1], [0, 1, 0, 0, 1], [3, 2], (1, 3), '01001'),
        # Both shards are full: nobody moves.
        ([0, 0, 1, 1], [0, 2], [1, 0, 0, 1], [2, 2], (1, 2), '0011'),
        # The first in the order takes the last place.
        ([0, 0, 0, 1, 1], [2, 0], [1, 0, 1, 1, 1], [3, 2], (1, 3), '00111'),
        # Nobody leaves a shard of the smallest size.
        ([0, 1, 1], [0], [1, 1, 1], [1, 2], (1, 3), '011'),
    ],
)
def test_blpa_moves_and_waits(shard, order, wanted, sizes, limits, after):
    found = _moved(shard, order, wanted, sizes, limits)
    assert ''.join(map(str, found)) == after


def test_blpa_stops_where_nobody_wants_to_move():
    # One clique per shard, but for the start: found, and then kept.
    edge_index = make('blocks')
    long = F.blpa(edge_index, NODES, SHARDS, seed=3, max_rounds=100)
    longer = F.blpa(edge_index, NODES, SHARDS, seed=3, max_rounds=1000)
    assert torch.equal(long, longer)
    none = F.blpa(edge_index, NODES, SHARDS, seed=3, max_rounds=0)
    start = F.random_partition(NODES, SHARDS, seed=rng.derive(3, 0))
    assert torch.equal(none, start)


def test_bekm_finds_clusters():
    gen = rng.generator(0)
    centre = torch.arange(4).repeat_interleave(25)
    embedding = 100 * torch.eye(4)[centre] + torch.randn(100, 4, generator=gen)
    # Of several starts (one may put two centroids into one cluster).
    found = 0
    for seed in range(8):
        shard = F.bekm(embedding, 4, seed=seed)
        check_balance(shard, 4, 0.095)
        assert torch.equal(shard, F.bekm(embedding, 4, seed=seed))
        groups = {
            tuple(shard[centre == c].unique().tolist()) for c in range(4)
        }
        found += len(groups) == 4 and all(len(group) == 1 for group in groups)
    assert found >= 4


def test_bekm_balances_what_does_not_differ():
    check_balance(F.bekm(torch.zeros(50, 3), 6, seed=0), 6, 0.095)
    shard = F.bekm(torch.randn(50, 3).double(), 50, seed=0)
    assert shard.unique().numel() == 50


def test_bekm_is_a_fixed_point():
    # At the end, shards are the greedy ones of their own means.
    embedding = torch.randn(60, 3, generator=rng.generator(3)).double()
    shard = F.bekm(embedding, 4, seed=0, max_rounds=1000)
    centroid = torch.stack([embedding[shard == i].mean(0) for i in range(4)])
    distance = torch.cdist(embedding, centroid)
    assert greedy(-distance, 0.095) == shard.tolist()


# Objectives ##################################################################


def dense_losses(P, A, Y):
    """Equations 5, 6 and 3 as they are, on dense matrices."""
    N, S = P.shape
    D = torch.diag(A.sum(1))
    one = torch.ones(N, dtype=P.dtype)
    time = sum(
        (one @ P[:, i]) * (torch.outer(P[:, i], P[:, i]) * A).sum()
        for i in range(S)
    )
    struct = ((P @ torch.diag(1 / (one @ D @ P)) @ (1 - P.t())) * A).sum()
    law = (P.t() @ Y) / P.sum(0)[:, None]
    entropy = sum(-q * q.log() for q in law.flatten() if q > 0)
    return time / N, struct, -entropy / S


def soft(num_nodes, num_shards, seed=0):
    gen = rng.generator(seed)
    score = torch.randn(num_nodes, num_shards, generator=gen).double()
    return score.softmax(1)


@pytest.mark.parametrize('name', ['random', 'star', 'isolated', 'blocks'])
def test_losses_are_those_of_the_dense_definitions(name):
    edge_index = make(name, 30)
    P = soft(30, SHARDS)
    y = torch.arange(30) % 4
    A = torch.zeros(30, 30, dtype=torch.float64)
    A[edge_index[0], edge_index[1]] = 1
    wanted = dense_losses(P, A, torch.eye(4, dtype=torch.float64)[y])
    found = partition_losses(P, edge_index, y, 4)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_losses_have_gradients_everywhere():
    edge_index = make('isolated', 12)
    y = torch.arange(12) % 2  # classes 2 and 3 are absent
    score = torch.randn(12, 3, generator=rng.generator(0)).double()

    def losses(score):
        return partition_losses(score.softmax(1), edge_index, y, 4)

    assert torch.autograd.gradcheck(losses, score.requires_grad_())
    # An empty shard, edges nowhere: numbers, no NaN.
    hard = torch.zeros(12, 3, dtype=torch.float64)
    hard[:, 0] = 1
    hard.requires_grad_()
    found = partition_losses(hard, make('no_edges', 12), y, 4)
    sum(found).backward()
    assert bool(hard.grad.isfinite().all())
    assert found.struct.item() == 0
    assert found.time.item() == 0


def test_entropy_has_the_sign_of_the_text():
    # Balanced labels are better than one class per shard.
    y = torch.arange(20) % 2
    mixed = torch.eye(2)[torch.arange(20) // 10]
    pure = torch.eye(2)[y]
    edges = make('no_edges', 20)
    good = partition_losses(mixed, edges, y, 2).sem
    bad = partition_losses(pure, edges, y, 2).sem
    assert float(good) == pytest.approx(-torch.tensor(2.0).log())
    assert float(bad) == pytest.approx(0, abs=1e-6)
