"""Fusions and losses, against loops and numbers worked out by hand."""

import math

import pytest
import torch

from pyg_trust import rng
from pyg_trust import unlearning as F
from pyg_trust.unlearning.aggregate import (
    fuse,
    info_nce,
    mean_probability,
    on_simplex,
    reconstruction_loss,
)


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
