"""Pairs: what one edge moves, its own row left out, and public negatives."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from pyg_trust.graph import CSRGraph
from pyg_trust.privacy import link_sums as links
from pyg_trust.privacy.link_sums import (
    BLOCK,
    clipped_pair_sum,
    moments,
    on_grid,
    pair_features,
    pairs_of,
    principal_rows,
    private_pairs,
    public_pairs,
    scaled_features,
)
from pyg_trust.privacy.propagation import MARGIN, messages, private_propagate
from pyg_trust.verify.release import grid


def blocks_of(phi):
    """Rows as blocks: the same numbers, zeros behind them."""
    phi = np.asarray(phi, dtype=np.float64)
    made = np.zeros((max(1, -(-len(phi) // BLOCK)) * BLOCK, phi.shape[1]))
    made[: len(phi)] = phi
    return made.reshape(-1, BLOCK, phi.shape[1]).transpose(0, 2, 1).copy()


def graph_of(pairs, n, directed=False):
    ends = torch.tensor(list(pairs), dtype=torch.int64).view(-1, 2).t()
    if not directed:
        ends = torch.cat([ends, ends.flip(0)], 1)
    return CSRGraph.from_edge_index(ends, num_nodes=n)


# What one edge moves ########################################################


def test_clipped_sums_are_those_of_the_oracle(shared):
    cases = json.loads(
        (shared / 'oracles' / 'links' / 'clipped_sums.json').read_text()
    )
    std = 1e-6
    for case in cases:
        m, S = np.array(case['messages']), np.array(case['released'])
        phi = []
        for u, w in case['positives']:
            a, b = S[u] - m[w], S[w] - m[u]
            phi.append(np.concatenate([m[u] * b + m[w] * a, a * b]))
        wanted = np.array(case['clipped_sum'])
        for order in (slice(None), slice(None, None, -1)):
            found = clipped_pair_sum(
                blocks_of(phi[order]),
                np.array(case['weights']),
                case['max_grad_norm'],
                std,
            )
            found = found * grid(std) / (1 - MARGIN)
            assert np.abs(found - wanted).max() < 1e-12


def largest_move(n, directed, sums):
    """Over all graphs on n nodes, and all their edges, in units of C."""
    every = [
        (u, w)
        for u, w in itertools.product(range(n), repeat=2)
        if (u != w if directed else u < w)
    ]
    made, worst = {}, 0.0
    for bits in range(1 << len(every)):
        edges = [p for k, p in enumerate(every) if bits >> k & 1]
        made[bits] = sums(edges)
    for bits, total in made.items():
        for k in range(len(every)):
            if bits >> k & 1:
                moved = total - made[bits & ~(1 << k)]
                # In integers of the grid, where all is exact.
                squares = sum(int(v) ** 2 for v in moved)
                worst = max(worst, math.sqrt(squares) * grid(1.0))
    return worst


def summed(n, directed, listed, seed, spread):
    """Sums of clipped gradients of a graph's pairs; C = 1, noise of 1."""
    source = np.random.default_rng(seed)
    phi = np.tile([spread, 0.0], (n * n, 1))
    if seed:
        phi = source.standard_normal((n * n, 2)) * spread
    weight = -1e3 * np.ones(2) if not seed else source.standard_normal(2)

    def sums(edges):
        pairs = listed(graph_of(edges, n, directed), directed).numpy()
        rows = phi[np.minimum(*pairs) * n + np.maximum(*pairs)]
        if directed:
            rows = phi[pairs[0] * n + pairs[1]]
        return clipped_pair_sum(blocks_of(rows), weight, 1.0, 1.0)

    return sums


@pytest.mark.parametrize('seed', [0, 1, 2])
def test_an_edge_moves_a_sum_by_at_most_the_clipping_norm(seed):
    for n in (2, 3, 4):
        moved = largest_move(n, False, summed(n, False, pairs_of, seed, 3.0))
        assert 0 < moved <= 1
        if not seed:
            assert moved > 1 - 2e-6  # attained


@pytest.mark.parametrize(
    ('n', 'seed'),
    [(3, 0), (3, 1), (3, 2), (4, 0)],
)
def test_an_arc_moves_a_sum_by_at_most_the_clipping_norm(n, seed):
    # All digraphs on up to four nodes.
    moved = largest_move(n, True, summed(n, True, pairs_of, seed, 3.0))
    assert 0 < moved <= 1
    assert seed or moved > 1 - 2e-6


EVERY = [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ('negatives', 'sign', 'least'),
    [
        # Pairs that are no edges, and as many pairs as there are edges.
        (lambda edges: [p for p in EVERY if p not in edges], -1, 2),
        (lambda edges: EVERY[: len(edges)], 1, 2),
        (lambda edges: EVERY, 1, 1),
    ],
)
def test_negatives_that_look_at_edges_move_a_sum_twice(negatives, sign, least):
    # The largest gradients that negatives can have, along those of edges.
    plus = summed(3, False, pairs_of, 0, 3.0)
    unit = plus(EVERY[:1])

    def sums(edges):
        return plus(edges) + sign * len(negatives(edges)) * unit

    assert least - 1e-5 < largest_move(3, False, sums) <= least


def test_what_a_pair_adds_is_the_same_to_the_bit_beside_any_others():
    # At every place of a block, and in every number of blocks.
    source = np.random.default_rng(0)
    n, std = 40, 0.7
    x = messages(torch.from_numpy(source.standard_normal((n, 5))))
    m = on_grid(messages(x[:, :3]), std)
    S = torch.from_numpy(source.standard_normal((n, 3)) * 9)
    pairs = public_pairs(n, 3 * BLOCK // 2 + 5)
    raw = pair_features(pairs, x, m, S, std, 'both')
    mean, deviation = moments(raw, pairs.size(1))
    weight = source.standard_normal(raw.shape[1] + 1)

    def add(chosen):
        part = pairs[:, chosen]
        made = pair_features(part, x, m, S, std, 'both')
        made = scaled_features(made, mean, deviation, part.size(1))
        return clipped_pair_sum(made, weight, 1.0, std)

    everything = torch.arange(pairs.size(1))
    whole = add(everything)
    for gone in (0, 1, 7, BLOCK - 1, BLOCK, pairs.size(1) - 1):
        left = everything[everything != gone]
        alone = add(torch.tensor([gone]))
        assert np.array_equal(whole - add(left), alone)
        assert np.abs(alone).sum() > 0
    assert np.array_equal(whole, add(everything.flip(0)))


def test_a_gradient_is_no_longer_on_the_grid_than_before():
    # Rounded to the nearest, seven tenths of a step would be a whole one.
    C = 0.7 * grid(1.0)
    found = clipped_pair_sum(blocks_of([[1.0, 0.0]]), np.zeros(2), C, 1.0)
    assert not found.any()


# A pair's own edge ##########################################################


class Fixed:
    """The same noise for every graph."""

    def cells(self, shape):
        source = np.random.default_rng(3)
        cells = source.integers(-(2**33), 2**33, shape)
        return torch.from_numpy(cells)


@pytest.mark.parametrize('directed', [False, True])
def test_a_left_out_edge_is_the_release_without_it_to_the_bit(directed):
    source = np.random.default_rng(1)
    n, std = 6, 1.3
    x = torch.from_numpy(source.standard_normal((n, 4)))
    sent = on_grid(messages(x), std)
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 4)]
    left_out = 'target' if directed else 'both'

    def rows(pairs):
        graph = graph_of(pairs, n, directed)
        return private_propagate(graph, x, [std], Fixed())[0]

    for pair in edges:
        index = torch.tensor(pair)[:, None]
        known = pair_features(index, x, sent, rows(edges), std, left_out)
        less = [p for p in edges if p != pair]
        without = pair_features(index, x, sent, rows(less), std)
        seen = pair_features(index, x, sent, rows(edges), std)
        assert np.array_equal(known, without)
        assert not np.array_equal(known, seen)


def test_features_are_those_of_the_formula():
    source = np.random.default_rng(2)
    n, d, D, s = 7, 4, 3, 0.6
    h, m, S = (
        torch.from_numpy(source.standard_normal((n, k))) for k in (d, D, D)
    )
    pairs = public_pairs(n, 30)
    m, S = on_grid(m, s), on_grid(S, s)
    made = pair_features(pairs, h, m, S, s, 'both')
    h, m, S = h.numpy(), m.numpy(), S.numpy()
    for k, (u, w) in enumerate(pairs.t().tolist()):
        a, b = S[u] - m[w], S[w] - m[u]
        nu, nw = (math.sqrt(v @ v + s * s * D + 1e-3) for v in (a, b))
        phi = np.concatenate(
            [
                h[u] * h[w],
                m[u] * b / nw + m[w] * a / nu,
                a / nu * b / nw,
                [a @ b / math.sqrt(nu * nw), math.log(nu * nw)],
            ]
        )
        assert np.allclose(made[0, :, k], phi, rtol=1e-12, atol=1e-12)
    assert not made[0, :, 30:].any()
    mean, deviation = moments(made, 30)
    flat = made[0, :, :30].T.copy()
    assert np.allclose(mean, flat.mean(0))
    assert np.allclose(deviation, flat.std(0))
    scaled = scaled_features(made, mean, deviation, 30)[0, :, :30].T
    norms = np.linalg.norm(scaled, axis=1)
    assert (norms <= 1).all()
    assert norms.max() > 0.99
    z = np.clip((flat - mean) / deviation, -8, 8)
    z = np.c_[z, np.ones(30)]
    root = math.sqrt(z.shape[1])
    wanted = z / np.maximum(root, np.linalg.norm(z, axis=1))[:, None]
    assert np.allclose(scaled, wanted * (1 - 1e-6), atol=1e-8)


# Negatives, features, training ##############################################


def test_public_pairs_are_uniform_pairs_of_two_ids():
    pairs = public_pairs(5, 20_000)
    assert pairs.shape == (2, 20_000)
    assert (pairs[0] != pairs[1]).all()
    counts = torch.bincount(pairs[0] * 5 + pairs[1], minlength=25)
    free = counts[counts > 0]
    assert len(free) == 20
    # Chi-squared with 19 degrees of freedom: above 60 once in 10^5.
    assert float(((free - 1000.0) ** 2 / 1000).sum()) < 60
    assert torch.equal(pairs, public_pairs(5, 20_000))
    assert not torch.equal(pairs, public_pairs(5, 20_000, seed=1))


def test_principal_rows_keep_products_of_rows():
    source = torch.Generator().manual_seed(0)
    low = torch.rand(30, 3, generator=source) @ torch.rand(
        3, 12, generator=source
    )
    made = principal_rows(low, 8)
    assert made.shape == (30, 8)
    # Dense columns all have the same weight: products of unit rows stay.
    unit = low.double() / low.double().norm(dim=1, keepdim=True)
    made = made / made.norm(dim=1, keepdim=True)
    assert torch.allclose(made @ made.T, unit @ unit.T, atol=1e-5)
    lengths = principal_rows(low, 8).norm(dim=0)
    assert (lengths[:-1] >= lengths[1:] - 1e-9).all()
    assert torch.equal(principal_rows(torch.zeros(4, 3), 2), torch.zeros(4, 2))
    sparse = low.clone()
    sparse[sparse < sparse.quantile(0.95)] = 0
    one = principal_rows(sparse, 2)
    two = principal_rows(sparse.to_sparse_coo(), 2)
    assert torch.allclose(one @ one.T, two @ two.T, atol=1e-9)


def test_without_noise_the_scorer_separates_pairs():
    source = np.random.default_rng(0)
    plus = blocks_of(np.c_[source.random((200, 2)), np.ones(200)] / 2)
    minus = blocks_of(np.c_[-source.random((900, 2)), np.ones(900)] / 2)
    cells = torch.zeros(40, 3, dtype=torch.int64)
    weight = private_pairs(plus, minus, 200.0, 900, cells, 1.0, 0.2)
    assert links.logits(plus, weight)[:200].min() > 0
    assert links.logits(minus, weight)[:900].max() < 0
