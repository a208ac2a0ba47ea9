"""What a release forgets: brute force and planted faults.

Kappa is written out here by hand a second time, and never exceeded by the
largest shift that a search finds.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyg_trust.graph import CSRGraph
from pyg_trust.verify import removal


def node_shift(graph, nodes, receivers=None, max_degree=1):
    ends = graph.to_edge_index()[0].numpy()
    if receivers is not None:
        ends = ends[:, receivers.numpy()[ends[1]]]
    gone = np.isin(np.arange(graph.num_nodes), nodes)
    return float(removal.node_shift(ends, gone, max_degree))


def edge_shift(edges, directed=False):
    rows = edges[1] if directed else edges.reshape(-1)
    return float(removal.edge_shift(rows.numpy()))


def drawn_lists(rng, n):
    others = [[y for y in range(n) if y != w] for w in range(n)]
    return [
        sorted(rng.choice(o, int(rng.integers(0, 8)), False).tolist())
        for o in others
    ]


def graph_of(lists):
    pairs = [(w, y) for w, list_ in enumerate(lists) for y in list_]
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    return CSRGraph.from_edge_index(edges, len(lists))


def matrix(lists, receivers, max_degree=1):
    """``W[y, w]``: energy weights of the lists, cut to receivers."""
    made = np.zeros((len(lists), len(lists)))
    for w, list_ in enumerate(lists):
        cut = [y for y in list_ if receivers[y]]
        made[cut, w] = min(1, math.sqrt(max_degree / max(1, len(cut))))
    return made


def largest(D, rng):
    """The largest shifts by unit messages that alternation finds."""
    D, best = np.atleast_3d(D.T).T, np.zeros(1)
    for _ in range(3):
        M = rng.standard_normal((len(D), D.shape[2], 3))
        for _ in range(25):
            M = M / np.maximum(np.linalg.norm(M, axis=2, keepdims=True), 1e-99)
            best = np.maximum(best, np.linalg.norm(D @ M, axis=(1, 2)))
            M = D.transpose(0, 2, 1) @ (D @ M)
    return best


@pytest.mark.parametrize('max_degree', [1, 3])
def test_no_erasure_moves_sums_further_than_kappa(max_degree):
    rng, bounds, moved, kept, records = (
        np.random.default_rng(3),
        [],
        [],
        [],
        [],
    )
    for _ in range(500):
        lists = drawn_lists(rng, 12)
        gone = set(rng.choice(12, int(rng.integers(1, 4)), False).tolist())
        receivers = torch.from_numpy(rng.random(12) < 0.7)
        left = [
            [] if w in gone else [y for y in list_ if y not in gone]
            for w, list_ in enumerate(lists)
        ]
        graph, nodes = graph_of(lists), torch.tensor(sorted(gone))
        bounds.append(node_shift(graph, nodes, receivers, max_degree))
        records.append(len(gone) * math.sqrt(max_degree))
        D = matrix(lists, receivers, max_degree)
        D -= matrix(left, receivers, max_degree)
        kept.append(D.copy())
        D[sorted(gone)] = 0
        moved.append(D)
    found = largest(np.stack(moved), rng)
    assert (found <= np.array(bounds) * (1 + 1e-9)).all()
    assert (found / bounds).max() > 0.8
    # Two planted faults: a person is a record; rows of the erased are kept.
    assert max_degree > 1 or (found > np.array(records) + 1e-9).sum() > 20
    with_rows = largest(np.stack(kept), rng)
    assert (with_rows > np.array(bounds) + 1e-9).sum() > 100


def test_kappas_add_up_one_after_the_other_and_not_on_one_graph():
    # Nine of a list of ten: at once, one by one, and each on the first list.
    lists = [list(range(1, 11)), *([[]] * 10)]
    whole = node_shift(graph_of(lists), torch.arange(1, 10)) - 9
    alone, after = 0.0, 0.0
    for v in range(1, 10):
        node = torch.tensor([v])
        alone += node_shift(graph_of(lists), node) - 1
        left = [list(range(v, 11)), *([[]] * 10)]
        after += node_shift(graph_of(left), node) - 1
    assert (round(alone, 2), round(whole, 2)) == (0.46, 0.68)
    assert after >= whole


@pytest.mark.parametrize('directed', [False, True])
def test_edges_move_sums_as_far_as_their_rows_say(directed):
    rng, cheap = np.random.default_rng(1), 0
    pairs = [(u, v) for u in range(10) for v in range(u)]
    for _ in range(60):
        k = int(rng.integers(1, 7))
        chosen = [pairs[i] for i in rng.choice(len(pairs), k, False)]
        D = np.zeros((10, 10))
        for u, v in chosen:
            D[v, u] = 1
            if not directed:
                D[u, v] = 1
        shift = edge_shift(torch.tensor(chosen).T, directed)
        assert shift == pytest.approx(np.linalg.norm(D @ np.ones((10, 1))))
        assert largest(D, rng) <= shift * (1 + 1e-9)
        cheap += shift < k * (1 if directed else math.sqrt(2)) - 1e-9
    assert cheap > 20
    # Ten that share no end cost the root of ten.
    apart = torch.arange(20).view(2, 10)
    assert edge_shift(apart) / math.sqrt(2) == pytest.approx(math.sqrt(10))


def test_roots_are_bounded_from_both_sides():
    for x in (0, 1, 2, 10**30, Fraction(1, 3), Fraction(1, 10**40)):
        low, high = removal.root(x, False), removal.root(x)
        assert low**2 <= x < high**2
        assert high - low == Fraction(1, 2**80)
    assert removal.edge_shift(np.array([3, 3, 0])) ** 2 > 5
