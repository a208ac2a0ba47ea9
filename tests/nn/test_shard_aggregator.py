"""Aggregators learn what they are for; their losses, worked out by hand."""

import copy
import math

import pytest
import torch

from pyg_trust import rng
from pyg_trust import unlearning as F
from pyg_trust.nn import AttentiveAggregator, LBAggregator, make_aggregator
from pyg_trust.unlearning.aggregate import (
    AGGREGATORS,
    _CutEdges,
    fuse,
    info_nce,
    mean_probability,
    on_simplex,
    reconstruction_loss,
    weighted_log_probability,
)

SHARDS, NODES, CLASSES = 5, 400, 3
LEARNING = [name for name in AGGREGATORS if name not in ('mean', 'majority')]


def make(seed=0):
    """Each sub-model knows one region, and raises its voice there."""
    gen = rng.generator(seed)
    y = torch.randint(CLASSES, (NODES,), generator=gen)
    region = torch.randint(SHARDS, (NODES,), generator=gen)
    outputs = torch.randn(SHARDS, NODES, CLASSES, generator=gen)
    wrong = torch.randint(CLASSES, (SHARDS, NODES), generator=gen)
    outputs = outputs + 3 * torch.eye(CLASSES)[wrong]
    nodes = torch.arange(NODES)
    outputs[region, nodes] = 6 * torch.eye(CLASSES)[y]
    edge_index = torch.randint(NODES, (2, 3 * NODES), generator=gen)
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    shard = torch.randint(-1, SHARDS, (NODES,), generator=gen)
    index = (shard >= 0).nonzero().view(-1)[:200]
    return outputs, y, index, edge_index, shard


def accuracy(aggregator, data):
    outputs, y, index = data[:3]
    rest = torch.ones(NODES, dtype=torch.bool)
    rest[index] = False
    with torch.no_grad():
        right = aggregator(outputs)[rest].argmax(1) == y[rest]
    return float(right.double().mean())


@pytest.mark.parametrize('name', AGGREGATORS)
def test_probabilities_seeds_and_state(name):
    data = make()
    torch.manual_seed(8)
    before = torch.get_rng_state()
    first = make_aggregator(name).fit(*data, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        p = first(data[0])
    assert p.shape == (NODES, CLASSES)
    torch.testing.assert_close(p.sum(1), torch.ones(NODES))
    assert bool((p >= 0).all())
    again = make_aggregator(name).fit(*data, seed=3)
    with torch.no_grad():
        assert torch.equal(again(data[0]), p)
        # From scratch: what was learned before leaves no trace.
        other = make_aggregator(name).fit(*make(1), seed=9)
        assert torch.equal(other.fit(*data, seed=3)(data[0]), p)
        loaded = make_aggregator(name)
        loaded.load_state_dict(copy.deepcopy(first.state_dict()))
        assert torch.equal(loaded(data[0]), p)
        assert torch.equal(copy.deepcopy(first)(data[0]), p)
    if name in LEARNING:
        assert len(first.state_dict()) > 0
        different = make_aggregator(name).fit(*data, seed=4).state_dict()
        assert not torch.equal(different['weight'], first.weight)
        with pytest.raises(ValueError, match='fitted first'):
            make_aggregator(name)(data[0])


@pytest.mark.parametrize('name', LEARNING)
def test_threads_do_not_matter(name, threads):
    data = make()
    states = []
    for number in (1, 2):
        threads(number)
        fitted = make_aggregator(name, epochs=2).fit(*data, seed=3)
        states.append(fitted.state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value)


def test_attention_finds_who_knows():
    data = make()
    mean = accuracy(make_aggregator('mean').fit(*data), data)
    for name in ('attentive', 'contrastive'):
        fitted = make_aggregator(name).fit(*data, seed=0)
        assert accuracy(fitted, data) > mean + 0.05
        assert accuracy(fitted, data) > 0.75


@pytest.mark.parametrize(('shards', 'lr'), [(20, 0.1), (50, 0.03)])
def test_lbaggr_learns_where_a_step_is_longer_than_its_weights(shards, lr):
    gen = rng.generator(0)
    y = torch.randint(CLASSES, (NODES,), generator=gen)
    outputs = torch.randn(shards, NODES, CLASSES, generator=gen)
    outputs[0] = 10 * torch.eye(CLASSES)[y]
    fitted = LBAggregator(lr=lr).fit(outputs, y, torch.arange(NODES), seed=0)
    assert float(fitted.weight.sum()) == pytest.approx(1)
    assert int(fitted.weight.argmax()) == 0
    assert float(fitted.weight[0]) > 2 / shards


def test_lbaggr_keeps_its_best_epoch():
    # A rate that overshoots: what is kept is no worse than the start.
    outputs, y, index = make()[:3]

    def objective(weight):
        logits = weighted_log_probability(outputs[:, index], weight)
        loss = torch.nn.functional.cross_entropy(logits, y[index])
        return float(loss + weight.norm())

    fitted = LBAggregator(lr=0.9, epochs=8).fit(outputs, y, index, seed=0)
    losses = []
    for epochs in range(1, 9):
        part = LBAggregator(lr=0.9, epochs=epochs)
        losses.append(objective(part.fit(outputs, y, index, seed=0).weight))
    assert objective(fitted.weight) == min(losses)
    assert losses == sorted(losses, reverse=True)


def test_fused_is_the_formula():
    outputs, y, index = make()[:3]
    fitted = AttentiveAggregator(epochs=1).fit(outputs, y, index, seed=0)
    u = 17
    hidden = [
        outputs[i, u] @ fitted.weight[i] + fitted.bias[i]
        for i in range(SHARDS)
    ]
    score = torch.stack([h.relu() @ fitted.vector for h in hidden])
    weight = score.softmax(0)
    wanted = sum(weight[i] * hidden[i] for i in range(SHARDS))
    torch.testing.assert_close(fitted.fused(outputs)[u], wanted)
    logits = fitted.head(wanted)
    torch.testing.assert_close(fitted(outputs)[u], logits.softmax(0))


def test_reconstruction_brings_cut_neighbours_together():
    _, y, index, _, shard = make()
    # Neighbours share a class that the labels do not tell.
    gen = rng.generator(3)
    hidden = torch.randn(SHARDS, NODES, 8, generator=gen)
    group = torch.arange(NODES) % 2
    hidden[:, :, 0] += 2 * group
    pairs = torch.randint(NODES, (2, 4000), generator=gen)
    edge_index = pairs[:, group[pairs[0]] == group[pairs[1]]]
    cosine = torch.nn.functional.cosine_similarity

    def gap(weight):
        fitted = AttentiveAggregator(recon_weight=weight).fit(
            hidden, y, index, edge_index, shard, seed=0
        )
        with torch.no_grad():
            e = fitted.fused(hidden)
            u, v = edge_index
            w = torch.randint(NODES, u.shape, generator=rng.generator(5))
            return float((cosine(e[u], e[v]) - cosine(e[u], e[w])).mean())

    assert gap(10.0) > gap(0.0) + 0.1


def test_contrast_brings_views_of_a_node_together():
    outputs, y, index = make()[:3]

    def loss(weight, seed):
        fitted = AttentiveAggregator(contra_weight=weight).fit(
            outputs, y, index, seed=seed
        )
        mask = torch.rand(NODES, SHARDS, generator=rng.generator(1)) < 0.5
        mask[:, 0] = True
        with torch.no_grad():
            whole, part = fitted.fused(outputs), fitted.fused(outputs, mask)
        return float(
            info_nce(whole, part, whole.roll(7, 0), part.roll(7, 0)).mean()
        )

    # The mean of four fits: a single one moves by as much.
    gains = [loss(0.0, seed) - loss(1.0, seed) for seed in range(4)]
    assert sum(gains) / 4 > 0.05


def test_pairs_are_what_they_claim():
    *_, edge_index, shard = make()
    pairs = _CutEdges(edge_index, shard)
    edges = set(map(tuple, edge_index.t().tolist()))
    edges |= {(v, u) for u, v in edges}
    training = set((shard >= 0).nonzero().view(-1).tolist())
    cut = {
        u: {v for v in training if (u, v) in edges and shard[u] != shard[v]}
        for u in training
    }
    nodes = torch.tensor(sorted(training))
    draws = rng.generator(0)
    seen = {u: set() for u in training}
    for _ in range(200):
        place, neighbor, stranger = pairs.draw(nodes, draws)
        for u, v, w in zip(
            nodes[place].tolist(),
            neighbor.tolist(),
            stranger.tolist(),
            strict=True,
        ):
            assert v in cut[u]
            assert w in training
            assert w != u
            assert (u, w) not in edges
            seen[u].add(v)
    # Every neighbour in another shard turns up, and nobody else does.
    assert seen == cut
    assert any(not others for others in cut.values())


def test_pairs_where_there_are_none():
    # One node has no stranger, one no neighbour in another shard.
    edge_index = torch.tensor([[0, 0, 1, 2], [1, 2, 0, 0]])
    shard = torch.tensor([0, 1, 0, -1])
    pairs = _CutEdges(edge_index, shard)
    draws, nodes = rng.generator(0), torch.tensor([0, 1, 2])
    found = [pairs.draw(nodes, draws)[0].tolist() for _ in range(20)]
    # Where the random stranger is a neighbour, nobody is drawn.
    assert [1] in found
    assert [] in found
    assert len({*map(tuple, found)}) == 2
    nothing = _CutEdges(torch.empty(2, 0).long(), shard)
    assert nothing.draw(torch.tensor([0]), rng.generator(0))[0].numel() == 0
    outputs, y = torch.randn(2, 4, 3), torch.tensor([0, 1, 2, 0])
    fitted = make_aggregator('contrastive').fit(
        outputs, y, torch.tensor([0]), torch.empty(2, 0).long(), shard, seed=0
    )
    assert bool(fitted(outputs).isfinite().all())


def test_make_aggregator():
    made = make_aggregator('contrastive', epochs=3, recon_weight=0.5)
    assert (made.epochs, made.recon_weight) == (3, 0.5)
    assert made.contra_weight == 1e-4
    assert make_aggregator(made) is made


def test_state_of_another_aggregator_is_refused():
    data = make()
    states = {
        name: make_aggregator(name, epochs=1).fit(*data, seed=0).state_dict()
        for name in ('lbaggr', 'attentive')
    }
    for name in states:
        for other, state in states.items():
            if other != name:
                with pytest.raises(RuntimeError, match='loading state_dict'):
                    make_aggregator(name).load_state_dict(state)


def test_another_number_of_shards_is_refused():
    data = make()
    for name in LEARNING:
        fitted = make_aggregator(name, epochs=1).fit(*data, seed=0)
        with pytest.raises(ValueError, match="'outputs' needs"):
            fitted(data[0][1:])


# Fusions and losses, by hand #################################################


def logits(shards=5, num_nodes=30, classes=4, seed=0):
    gen = rng.generator(seed)
    return torch.randn(shards, num_nodes, classes, generator=gen).double()


def test_mean_is_that_of_probabilities():
    outputs = logits()
    found = mean_probability(outputs)
    for u in range(30):
        for c in range(4):
            shares = [
                math.exp(outputs[i, u, c]) / outputs[i, u].exp().sum().item()
                for i in range(5)
            ]
            assert float(found[u, c]) == pytest.approx(sum(shares) / 5)
    # A confident shard against two that are not: no geometric mean.
    outputs = torch.tensor([[[0.0, 50.0]], [[0.5, 0.0]], [[0.5, 0.0]]])
    assert int(mean_probability(outputs).argmax()) == 1


def test_majority_counts_votes_first():
    outputs = logits(6, 200, 3)
    found = F.majority_vote(outputs)
    torch.testing.assert_close(found.sum(1), torch.ones(200).double())
    mean = mean_probability(outputs)
    ties = 0
    for u in range(200):
        votes = [int(row.argmax()) for row in outputs[:, u]]
        most = max(votes.count(c) for c in range(3))
        best = [c for c in range(3) if votes.count(c) == most]
        ties += len(best) > 1
        wanted = max(best, key=lambda c: float(mean[u, c]))
        assert int(found[u].argmax()) == wanted
    assert ties > 20


def test_majority_breaks_exact_ties_by_the_first_class():
    # Two votes each, and the same mean.
    outputs = torch.tensor([[[2.0, 1.0, 0.0]], [[1.0, 2.0, 0.0]]])
    assert int(F.majority_vote(outputs).argmax()) == 0
    # A sub-model that cannot decide votes for the first class.
    assert int(F.majority_vote(torch.zeros(1, 1, 3)).argmax()) == 0
    # However confident the minority, whole votes win.
    outputs = torch.tensor([[[0.0, 90.0]], [[0.1, 0.0]], [[0.1, 0.0]]])
    assert int(F.majority_vote(outputs).argmax()) == 0


def test_fuse():
    values = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[5.0, 5.0]]])
    score = torch.tensor([[0.0, math.log(3), -50.0]])
    found = fuse(values, score)
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75]]))
    # Weights sum to one under a mask as well.
    mask = torch.tensor([[True, False, False]])
    assert fuse(values, score, mask).tolist() == [[1, 0]]
    outputs, score = logits(), torch.randn(30, 5).double()
    mask = torch.rand(30, 5, generator=rng.generator(1)) < 0.5
    mask[:, 2] = True
    found = fuse(outputs, score, mask)
    for u in range(30):
        some = mask[u]
        wanted = score[u, some].softmax(0) @ outputs[some, u]
        torch.testing.assert_close(found[u], wanted)


def test_info_nce_by_hand():
    # Cosines 0.6, 0 and -1, temperature 1/2.
    found = info_nce(
        torch.tensor([[2.0, 0.0]]),
        torch.tensor([[3.0, 4.0]]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[-7.0, 0.0]]),
    )
    top = math.exp(0.6 / 0.5)
    wanted = -math.log(top / (top + 1 + math.exp(-1 / 0.5)))
    assert found.shape == (1,)
    assert float(found) == pytest.approx(wanted)


def test_reconstruction_by_hand():
    # Cosines with the neighbour 0.6 and with the stranger 0.8.
    found = reconstruction_loss(
        torch.tensor([[2.0, 0.0]]),
        torch.tensor([[3.0, 4.0]]),
        torch.tensor([[8.0, 6.0]]),
    )
    assert float(found) == pytest.approx(0.8 - 0.6 + 1)
    # A neighbour at 1 and a stranger at -1: 1 - 2 < 0.
    found = reconstruction_loss(
        torch.tensor([[2.0, 0.0]]),
        torch.tensor([[3.0, 0.0]]),
        torch.tensor([[-1.0, 0.0]]),
    )
    assert float(found) == 0


def test_projection_is_the_closest_point_of_the_simplex():
    gen = rng.generator(4)
    for shards, scale in ((1, 1.0), (4, 0.1), (9, 10.0), (50, 1.0)):
        weight = scale * torch.randn(shards, generator=gen).double()
        found = on_simplex(weight)
        assert bool((found >= 0).all())
        assert float(found.sum()) == pytest.approx(1)
        # The shift by bisection: a second way to the same point.
        low, high = float(weight.min()) - 1, float(weight.max())
        for _ in range(100):
            middle = (low + high) / 2
            over = float((weight - middle).clamp(min=0).sum()) > 1
            low, high = (middle, high) if over else (low, middle)
        torch.testing.assert_close(found, (weight - low).clamp(min=0))
