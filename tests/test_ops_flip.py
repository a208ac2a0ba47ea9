"""Noisy copies of bits: the law, the streams, and the edges of the domain."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from pyg_trust import ops
from pyg_trust.graph import CSRGraph
from pyg_trust.testing import make_graph

SAMPLES = 40_000


def csr(rows):
    """The CSR of a list of lists."""
    sizes = torch.tensor([0] + [len(row) for row in rows])
    col = torch.tensor([j for row in rows for j in row], dtype=torch.int32)
    return sizes.cumsum(0), col


def outcomes(rowptr, col, num_rows, num_cols, count, blocks):
    """The bits of every sample: bool, [count, num_rows, num_cols]."""
    row = torch.arange(count * num_rows).repeat_interleave(rowptr.diff())
    sample, node = row // num_rows, row % num_rows
    at = col.long() - sample * num_cols if blocks else col.long()
    assert bool(((at >= 0) & (at < num_cols)).all())
    made = torch.zeros(count, num_rows, num_cols, dtype=torch.bool)
    made[sample, node, at] = True
    assert int(made.sum()) == col.numel(), 'an entry is there twice'
    key = row * (count * num_cols + 1) + col.long()
    assert bool((key.diff() > 0).all()), 'not sorted'
    return made


def law(clean, plus, minus):
    """The probability of each outcome of some bits."""
    for z in itertools.product([0, 1], repeat=len(clean)):
        p = 1.0
        for before, after in zip(clean, z, strict=True):
            flip = minus if before else plus
            p *= flip if before != after else 1 - flip
        yield p


def chi_square(code, expected):
    """The p-value, cells below 10 pooled."""
    counts = np.bincount(code, minlength=len(expected)).astype(float)
    expected = np.array(expected) * len(code)
    assert (counts[expected == 0] == 0).all()
    small = (expected < 10) & (expected > 0)
    keep = expected >= 10
    seen, want = counts[keep], expected[keep]
    if expected[small].sum() > 0:
        seen = np.append(seen, counts[small].sum())
        want = np.append(want, expected[small].sum())
    return scipy.stats.chisquare(seen, want).pvalue


NOISE = [(0.1, 0.3), (0.0, 0.6), (0.4, 0.0), (0.45, 0.5)]
# A false alarm in one of all these runs has a chance of about 1e-5.
LEVEL = 1e-6


# Rows of a graph, and the cells that are decided alone.
CELLS = {
    'undirected': (
        [[1], [0, 2], [1, 3], [2]],
        [*itertools.combinations(range(4), 2)],
    ),
    'directed': ([[1, 2], [0], []], [*itertools.permutations(range(3), 2)]),
    'all': ([[0, 2], [1]], [*itertools.product(range(2), range(3))]),
}


@pytest.mark.parametrize('noise', NOISE)
@pytest.mark.parametrize('cells', CELLS)
def test_bits_have_the_product_law(cells, noise):
    rows, pairs = CELLS[cells]
    n, m = len(rows), 3 if cells == 'all' else len(rows)
    out = ops.flip_bits(*csr(rows), m, *noise, cells, 5, 0, SAMPLES)
    bits = outcomes(*out, n, m, SAMPLES, cells != 'all')
    if cells == 'undirected':
        assert torch.equal(bits, bits.transpose(1, 2))
    clean = [int(j in rows[i]) for i, j in pairs]
    code = sum(
        bits[:, i, j].long() << (len(pairs) - 1 - k)
        for k, (i, j) in enumerate(pairs)
    )
    assert chi_square(code.numpy(), list(law(clean, *noise))) > LEVEL


def added_with_replacement(generator, cells, p, count):
    """What published code draws: some cells, and some of them twice."""
    m = generator.binomial(cells, p, count)
    draws = np.round(np.log1p(-m / cells) / np.log1p(-1 / cells)).astype(int)
    return np.array(
        [np.unique(generator.integers(0, cells, k)).size for k in draws]
    )


def test_the_number_of_added_edges_is_binomial_and_not_as_published():
    n, p = 10, 0.1
    cells, count = n * (n - 1) // 2, 20_000
    rowptr, col = csr([[]] * n)
    ptr, _ = ops.flip_bits(rowptr, col, n, p, 0.0, 'undirected', 1, 0, count)
    added = ptr[::n].diff() // 2
    want = scipy.stats.binom.pmf(np.arange(cells + 1), cells, p)
    assert chi_square(added.numpy(), want) > LEVEL
    other = added_with_replacement(np.random.default_rng(0), cells, p, count)
    assert chi_square(other, want) < LEVEL


@pytest.mark.parametrize('cells', ops.CELLS)
def test_samples_depend_on_seed_and_number_alone(cells, threads):
    graph = make_graph('random')
    args = (graph.rowptr, graph.col.int(), graph.num_nodes, 0.05, 0.4, cells)
    n = graph.num_nodes
    whole = ops.flip_bits(*args, 2**62 + 3, 10, 6000)
    threads(4)
    again = ops.flip_bits(*args, 2**62 + 3, 10, 6000)
    assert all(map(torch.equal, whole, again))
    ptr, col = ops.flip_bits(*args, 2**62 + 3, 14, 1)
    start, end = whole[0][4 * n], whole[0][5 * n]
    block = 4 * n if cells != 'all' else 0
    assert torch.equal(col, whole[1][start:end] - block)
    assert torch.equal(ptr, whole[0][4 * n : 5 * n + 1] - start)


def test_every_bit_of_a_seed_counts():
    graph = make_graph('random')
    args = (
        graph.rowptr,
        graph.col.int(),
        graph.num_nodes,
        0.1,
        0.4,
        'undirected',
    )
    seen = set()
    for bit in range(63):
        ptr, col = ops.flip_bits(*args, 2**bit, 0, 1)
        seen.add((*ptr.tolist(), *col.tolist()))
    assert len(seen) == 63


def test_copies_are_independent():
    # Bit by bit between two numbers, and between two seeds: correlations
    # over the copies stay within five standard errors.
    rowptr, col = csr([[0, 1], [2]])
    count = 20_000
    one = ops.flip_bits(rowptr, col, 3, 0.3, 0.5, 'all', 1, 0, count)
    two = ops.flip_bits(rowptr, col, 3, 0.3, 0.5, 'all', 2, 0, count)
    bits = [
        outcomes(*out, 2, 3, count, False).view(count, 6).double()
        for out in (one, two)
    ]
    for a, b in ((bits[0][1:], bits[0][:-1]), (bits[0], bits[1])):
        a, b = a - a.mean(0), b - b.mean(0)
        apart = (a.t() @ b) / len(a) / torch.outer(a.std(0), b.std(0))
        assert float(apart.abs().max()) < 5 / count**0.5


@pytest.mark.parametrize('name', ['self_loop', 'no_edges', 'isolated'])
@pytest.mark.parametrize('cells', ['directed', 'undirected'])
def test_self_loops_stay_and_none_comes(name, cells):
    graph = make_graph(name)
    n = graph.num_nodes
    out = ops.flip_bits(
        graph.rowptr, graph.col.int(), n, 0.5, 0.49, cells, 0, 0, 50
    )
    bits = outcomes(*out, n, n, 50, True)
    loops = torch.zeros(n, dtype=torch.bool)
    loops[graph.row[graph.row == graph.col.long()]] = True
    diagonal = bits.diagonal(dim1=1, dim2=2)
    assert torch.equal(diagonal, loops.expand(50, n))


def test_the_smallest_graphs():
    for cells in ops.CELLS:
        lone = ops.flip_bits(*csr([[]]), 1, 0.4, 0.4, cells, 0, 0, 8)
        assert lone[0].numel() == 9
        if cells != 'all':
            assert lone[1].numel() == 0
    none = ops.flip_bits(*csr([[], []]), 0, 0.4, 0.4, 'all', 0, 0, 3)
    assert none[0].tolist() == [0] * 7


def test_without_noise_copies_are_copies():
    graph = make_graph('random')
    n = graph.num_nodes
    for cells in ops.CELLS:
        ptr, col = ops.flip_bits(
            graph.rowptr, graph.col.int(), n, 0.0, 0.0, cells, 3, 0, 2
        )
        assert torch.equal(ptr[: n + 1], graph.rowptr)
        assert torch.equal(col[: graph.num_edges], graph.col.int())
        shift = n if cells != 'all' else 0
        assert torch.equal(col[graph.num_edges :], graph.col.int() + shift)


def test_a_complete_graph_loses_the_right_share():
    n = 60
    full = [[j for j in range(n) if j != i] for i in range(n)]
    ptr, _ = ops.flip_bits(*csr(full), n, 0.1, 0.7, 'undirected', 0, 0, 200)
    pairs = n * (n - 1) / 2
    kept = ptr[::n].diff().double().mean() / 2
    error = (pairs * 0.3 * 0.7 / 200) ** 0.5
    assert abs(float(kept) - 0.3 * pairs) < 5 * error


def test_a_graph_with_more_pairs_than_doubles_can_tell_apart():
    # 8e9 pairs: gaps in extended precision, and no memory for the pairs.
    n = 127_000
    graph = CSRGraph.from_edge_index(torch.tensor([[0, n - 1], [n - 1, 0]]), n)
    p = 1e-5
    ptr, col = ops.flip_bits(
        graph.rowptr, graph.col.int(), n, p, 0.0, 'undirected', 0, 0, 1
    )
    mean = n * (n - 1) / 2 * p
    assert abs(col.numel() / 2 - mean) < 6 * mean**0.5
    row = torch.arange(n).repeat_interleave(ptr.diff())
    upper = row < col
    # Rows and columns of pairs: 1/6, not 1/4 as of independent ones.
    place = (row[upper].double() / n).mean()
    assert abs(float(place) - 1 / 3) < 5 * (1 / 18 / mean) ** 0.5


def test_the_op_is_a_proper_one():
    graph = make_graph('random')
    torch.library.opcheck(
        torch.ops.pyg_trust.flip_bits.default,
        (graph.rowptr, graph.col.int(), graph.num_nodes, 0.1, 0.2, 2, 0, 0, 2),
        test_utils='test_schema',
    )
