"""Worst cases of symmetric normalization and K steps, by brute force."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from exhaustive import admissible, csr, random_perturbations, random_problem

from pyg_trust.certificates.policy import Horizon, policy_iteration
from pyg_trust.certificates.threat import Perturbations

ALPHA = 0.2


def scores(graphs, r, steps, normalization):
    """D^-1/2 z ('sym') or z ('rw') of a batch of graphs, densely."""
    adj = graphs.double()
    degree = adj.sum(-1).clamp(min=1)
    step = adj / degree[..., None]
    signal = r.expand(adj.shape[:2])
    if normalization == 'sym':
        signal = signal / degree.sqrt()
    if steps is None:
        eye = torch.eye(adj.size(-1), dtype=torch.float64)
        inverse = torch.linalg.inv(eye - (1 - ALPHA) * step)
        return ALPHA * (inverse @ signal[..., None])[..., 0]
    z = signal
    for _ in range(steps):
        z = (1 - ALPHA) * (step @ z[..., None])[..., 0] + ALPHA * signal
    return z


@pytest.mark.parametrize('steps', [0, 1, 40])
@pytest.mark.parametrize('seed', range(3))
def test_roundoff_of_every_step_is_in_the_bound(seed, steps):
    # The exact V of K steps, in fractions: that of the computed ones is off by
    # what the last steps round, long after the first is forgotten.
    adj, logits = random_problem(seed, 6)
    graph, alpha = csr(adj), 0.3
    none = torch.zeros(graph.num_edges, dtype=torch.bool)
    made = Perturbations(graph, none, torch.zeros(6, dtype=torch.int64))
    signal = torch.stack([logits[:, 0], -logits[:, 0], 1e3 + logits[:, 1]])
    horizon = Horizon(alpha, steps)
    for found in (
        horizon.maximize(made, signal),
        horizon.evaluate(made.clean_policy(3), signal),
    ):
        for c, r in enumerate(signal.tolist()):
            reward = [Fraction(x) for x in r]
            value = [x / Fraction(alpha) for x in reward]
            for _ in range(steps):
                mean = [
                    sum(value[j] for j in row.nonzero().view(-1).tolist())
                    / int(row.sum())
                    for row in adj
                ]
                value = [
                    x + (1 - Fraction(alpha)) * v
                    for x, v in zip(reward, mean, strict=True)
                ]
            low, high = float(found.low[c]), float(found.high[c])
            for mine, exact in zip(
                found.value[c].tolist(), value, strict=True
            ):
                assert Fraction(mine) + Fraction(low) <= exact
                assert exact <= Fraction(mine) + Fraction(high)


@pytest.mark.parametrize('kind', ['removals', 'additions', 'both', 'explicit'])
@pytest.mark.parametrize('normalization', ['rw', 'sym'])
@pytest.mark.parametrize('steps', [None, 0, 1, 2, 7])
@pytest.mark.parametrize('seed', range(4))
def test_no_admissible_graph_scores_more(kind, normalization, steps, seed):
    adj, logits = random_problem(seed, 5, directed=seed % 2 == 1)
    made, fragile, budget = random_perturbations(adj, seed, kind)
    r = logits[:, 1] - logits[:, 0]
    most = scores(
        admissible(adj, fragile, budget), r, steps, normalization
    ).amax(0)
    horizon = Horizon(ALPHA, steps, normalization)
    found = horizon.maximize(made, r[None].contiguous())
    top = ALPHA * (found.value + found.high[:, None])[0]
    assert bool((top >= most).all())
    if steps in (None, 1) and (normalization == 'rw' or steps is None):
        # Nothing was given away.
        assert torch.allclose(top, most, atol=1e-9)
    graph = adj.clone()
    flips = found.policy.edges(0)
    graph[flips[0], flips[1]] ^= True
    value = horizon.evaluate(found.policy, r[None].contiguous())
    exact = scores(graph[None], r, steps, normalization)[0]
    assert bool((ALPHA * (value.value + value.low[:, None]) <= exact).all())
    assert bool((ALPHA * (value.value + value.high[:, None]) >= exact).all())
    assert float((value.high - value.low).max()) < 1e-9


@pytest.mark.parametrize('normalization', ['rw', 'sym'])
@pytest.mark.parametrize('seed', range(6))
def test_rows_may_be_emptied(normalization, seed):
    # All edges are fragile, and some nodes have none from the start.
    generator = torch.Generator().manual_seed(seed)
    adj = torch.rand((5, 5), generator=generator) < 0.3
    adj.fill_diagonal_(False)
    logits = torch.randn((5, 2), generator=generator, dtype=torch.float64)
    graph = csr(adj)
    budget = torch.full((5,), 2)
    off = ~torch.eye(5, dtype=torch.bool)
    for additions in (False, True):
        made = Perturbations(
            graph,
            torch.ones(graph.num_edges, dtype=torch.bool),
            budget,
            all_pairs=additions,
        )
        fragile = off if additions else adj
        r = logits[:, 1] - logits[:, 0] - 1
        for sign in (1, -1):
            most = scores(
                admissible(adj, fragile, budget), sign * r, None, normalization
            ).amax(0)
            found = Horizon(ALPHA, None, normalization).maximize(
                made, sign * r[None].contiguous()
            )
            top = ALPHA * (found.value + found.high[:, None])[0]
            assert torch.allclose(top, most, atol=1e-9)
            assert bool((top >= most).all())


@pytest.mark.parametrize('kind', ['removals', 'explicit', 'additions'])
@pytest.mark.parametrize('seed', range(6))
def test_prices_of_edges_enter_the_step_as_documented(kind, seed):
    adj, _ = random_problem(seed, 5)
    made, fragile, budget = random_perturbations(adj, seed, kind)
    if made.all_pairs:
        made.all_pairs = False
        made = Perturbations(
            made.graph, made.removable, budget, (fragile & ~adj).nonzero().t()
        )
    generator = torch.Generator().manual_seed(seed)
    value, root = torch.randn((2, 1, 5), generator=generator).double()
    price = 0.3 * torch.rand((5, 5), generator=generator).double()
    graph, pairs = made.graph, made.pairs
    found = policy_iteration(
        made,
        torch.zeros_like(value),
        ALPHA,
        root=root,
        removal_cost=price[graph.row, graph.col][None],
        addition_cost=price[pairs[0], pairs[1]][None],
        start=value,
        max_iter=1,
    )
    for i in range(5):
        free = fragile[i].nonzero().view(-1).tolist()
        best = -math.inf
        for k in range(min(len(free), int(budget[i])) + 1):
            for chosen in itertools.combinations(free, k):
                row = adj[i].clone()
                row[list(chosen)] ^= True
                size = max(int(row.sum()), 1)
                worth = (1 - ALPHA) * float((value[0] * row).sum()) / size
                worth += float(root[0, i]) / math.sqrt(size)
                best = max(best, worth - float(price[i, list(chosen)].sum()))
        step = float(value[0, i] + found.gap[0, i])
        assert step == pytest.approx(best, abs=1e-13)
    # The graph that attains it, with what it pays.
    flips = found.policy.edges(0)
    changed = adj.clone()
    changed[flips[0], flips[1]] ^= True
    size = changed.sum(1).clamp(min=1).double()
    paid = torch.zeros(5, dtype=torch.float64)
    paid.index_add_(0, flips[0], price[flips[0], flips[1]])
    attained = (1 - ALPHA) * (changed.double() @ value[0]) / size
    attained += root[0] / size.sqrt() - paid
    assert torch.allclose(attained, (value + found.gap)[0], atol=1e-13)
    again = found.policy.total(
        price[graph.row, graph.col][None], price[pairs[0], pairs[1]][None]
    )
    assert float(again) == pytest.approx(float(paid.sum()), abs=1e-12)
