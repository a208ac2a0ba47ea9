"""Where the exact path takes another way, its bits and checks stay."""

import numpy as np
import pytest
import torch

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import sparse_rows
from pyg_trust.testing import dense_operator


def graph_of(n, pairs, both=True):
    edges = torch.as_tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    edges = torch.cat([edges, edges.flip(0)], 1) if both else edges
    return CSRGraph.from_edge_index(edges, n, duplicates='merge')


def graphs():
    numbers = np.random.default_rng(0)
    hub = [(k, 20) for k in range(41) if k != 20]
    own = [(0, 0), (40, 40), (20, 20), (7, 7)]
    return {
        'no edges': graph_of(5, []),
        'only loops': graph_of(5, [(1, 1), (4, 4)]),
        'hub': graph_of(41, hub),
        'hub and loops': graph_of(41, hub + own),
        'last has none': graph_of(6, [(0, 1), (2, 3)]),
        'directed': graph_of(60, numbers.integers(0, 60, (400, 2)), False),
        'random': graph_of(300, numbers.integers(0, 300, (3000, 2))),
    }


def signal(n, columns, seed=0):
    numbers = np.random.default_rng(seed)
    return torch.from_numpy(
        numbers.standard_normal((n, columns)).astype(np.float32)
    )


def words(n, columns, each, seed=0):
    # In no order, and rows without any.
    numbers = np.random.default_rng(seed)
    rows = [
        numbers.choice(columns, min(columns, k), replace=False)
        for k in numbers.integers(0, each + 1, n)
    ]
    counts = np.array([len(row) for row in rows])
    ptr = torch.from_numpy(np.concatenate([[0], counts.cumsum()]))
    column = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    value = torch.from_numpy(
        numbers.standard_normal(counts.sum()).astype(np.float32)
    )
    return sparse_rows(ptr, column, value, (n, columns))


@pytest.mark.parametrize('name', list(graphs()))
@pytest.mark.parametrize('half', [False, True])
def test_added_loops_have_the_bits_of_stored_ones(name, half):
    graph = graphs()[name]
    n = graph.num_nodes
    stored = graph.with_self_loops()
    x = signal(n, 20)
    few = words(n, 20, 2)
    rows = torch.tensor([n - 1, 0, 2])
    for levels in (1, 2, 3):
        weights = tuple(np.linspace(0.2, 0.5, levels + 1))
        added = Measure(0.4, 0.6, weights, self_loops=True)
        plain = Measure(0.4, 0.6, weights)
        for given in (x, few):
            for kwargs in ({}, {'rows': rows}):
                wanted = F.propagate(stored, given, plain, half=half, **kwargs)
                got = F.propagate(graph, given, added, half=half, **kwargs)
                assert torch.equal(got, wanted)
        exact = dense_operator(stored, plain).float() @ x
        z = F.propagate(graph, x, added, half=half)
        tolerance = 1e-2 if half else 1e-5
        torch.testing.assert_close(z, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize('columns', [1, 3, 16, 50, 63, 64])
@pytest.mark.parametrize('half', [False, True])
def test_levels_that_lie_in_the_result_are_not_read_from_it(columns, half):
    # Of 130 columns no level lies there.
    graph = graphs()['random']
    x = signal(300, 130)
    for levels in range(7):
        for measure, tol in (
            (Measure(0.5, 0.5, (0.3,) * levels + (0.7,)), 0.0),
            (Measure(0.5, 0.5, (0.0,) * levels + (1.0,)), 0.0),
            (F.heat(3.0, K=levels + 4), 1e-2),
        ):
            kwargs = {'half': half, 'tol': tol}
            wanted = F.propagate(graph, x, measure, **kwargs)
            part = x[:, :columns].contiguous()
            got = F.propagate(graph, part, measure, **kwargs)
            assert torch.equal(got, wanted[:, :columns])
            assert torch.equal(part, x[:, :columns])


@pytest.mark.parametrize('columns', [1, 70, 300, 5000])
@pytest.mark.parametrize('half', [False, True])
def test_one_level_of_words_has_the_bits_of_a_dense_one(columns, half):
    for name in ('random', 'directed', 'hub and loops', 'no edges'):
        graph = graphs()[name]
        n = graph.num_nodes
        x = words(n, columns, 14)
        dense = x.to_dense()
        for measure in (
            F.sgc(1),
            Measure(0.5, 0.5, (0.3, 0.7)),
            Measure(0.0, 1.0, (0.3, 0.7), along=False),
        ):
            if measure.undirected and not graph.is_undirected:
                continue
            for rows in (None, torch.tensor([n - 1, 1, 1])):
                kwargs = {'rows': rows, 'half': half}
                got = F.propagate(graph, x, measure, **kwargs)
                wanted = F.propagate(graph, dense, measure, **kwargs)
                assert torch.equal(got, wanted)


def test_one_level_of_words_adds_what_is_there_twice():
    graph = graphs()['random']
    one, two = words(300, 500, 5, seed=1), words(300, 500, 5, seed=2)
    both = [[], []]
    ptr = [0]
    for v in range(300):
        for x in (one, two):
            begin, end = x.crow_indices()[v : v + 2].tolist()
            both[0] += x.col_indices()[begin:end].tolist()
            both[1] += x.values()[begin:end].tolist()
        ptr.append(len(both[0]))
    x = sparse_rows(
        torch.tensor(ptr),
        torch.tensor(both[0]),
        torch.tensor(both[1]),
        (300, 500),
    )
    measure = Measure(0.5, 0.5, (0.3, 0.7))
    wanted = dense_operator(graph, measure).float() @ (
        one.to_dense() + two.to_dense()
    )
    z = F.propagate(graph, x, measure)
    torch.testing.assert_close(z, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('size', [1e30, 1e36, 1e37, 1e38])
@pytest.mark.parametrize('half', [False, True])
@pytest.mark.parametrize('sparse', [False, True])
def test_what_overflows_is_refused_and_nothing_else(size, half, sparse):
    # Whoever skips reading z has to know that nothing overflowed: of 400
    # leaves a hub gets the sum, of a hub each leaf a 400th part.
    star = graph_of(401, [(0, k) for k in range(1, 401)])
    x = torch.full((401, 2), size)
    given = x.to_sparse_csr() if sparse else x
    for measure in (
        Measure(0.0, 1.0, (0.0, 1.0)),
        Measure(0.0, 1.0, (0.5, 0.5)),
        Measure(0.0, 0.0, (0.0, 0.0, 1.0)),
        Measure(0.5, 0.5, (0.0, 0.0, 0.0, 1.0)),
        Measure(1.0, 0.0, (0.0, 1.0)),
        Measure(0.0, 1.0, (50.0, 0.0)),
        Measure(0.0, 1.0, (1e-3, 2.0), shrink=100.0),
    ):
        exact = dense_operator(star, measure) @ x.double()
        if float(exact.abs().max()) > torch.finfo(torch.float32).max:
            with pytest.raises(ValueError, match='overflows'):
                F.propagate(star, given, measure, half=half)
            continue
        try:
            z = F.propagate(star, given, measure, half=half)
        except ValueError as error:
            # A sum on the way may, or float16.
            if size == 1e30 or 'overflows' not in str(error):
                raise
            continue
        error = (z - exact).abs().max() / exact.abs().max()
        assert error < (2e-3 if half else 1e-5)


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), -float('inf')])
@pytest.mark.parametrize('half', [False, True])
@pytest.mark.parametrize('place', [0, 299])
def test_what_is_not_finite_is_refused_wherever_it_stands(bad, half, place):
    graph = graphs()['random']
    # So large that their squares overflow, or so small that they vanish.
    for scale in (1.0, 1e30, 1e-30):
        x = signal(300, 3) * scale
        F.propagate(graph, x, F.sgc(2), half=half)
        x[place, 1] = bad
        for given in (x, x.to_sparse_csr()):
            with pytest.raises(ValueError, match="'x' needs to be finite"):
                F.propagate(graph, given, F.sgc(2), half=half)


def test_many_rows_keep_the_scale_of_half():
    # The largest of each column is looked for some rows at a time.
    n = 3000
    pairs = np.random.default_rng(1).integers(0, n, (6000, 2))
    graph = graph_of(n, pairs)
    x = signal(n, 200)
    x[n - 1, 7] = 3e30
    x[1, 8] = -3e30
    z = F.propagate(graph, x, F.sgc(2), half=True).double()
    exact = F.propagate(graph, x, F.sgc(2)).double()
    error = (z - exact).norm(dim=0) / exact.norm(dim=0)
    assert float(error.max()) < 1e-3


# One entry after the other ###################################################

# Around what a vector holds and what is copied, and far beyond.
LENGTHS = (0, 1, 2, 15, 16, 17, 30, 31, 32, 33, 47, 48, 49, 63, 64, 65, 90)


def lists(last):
    # Rows of these lengths, in turn, without an entry of their own before all
    # others, behind them, in the midst, and with one; the last row as asked.
    numbers = np.random.default_rng(len(LENGTHS) + last)
    n = 8 * len(LENGTHS)
    rows = []
    for v in range(n):
        length = last if v == n - 1 else LENGTHS[v // 2 % len(LENGTHS)]
        others = np.delete(np.arange(n), v)
        if v % 5 == 1 and v >= length:
            others = np.arange(v)
        elif v % 5 == 2 and n - 1 - v >= length:
            others = np.arange(v + 1, n)
        row = numbers.choice(others, length, replace=False)
        if v % 5 == 3 and length > 0:
            row[0] = v
        rows.append(np.sort(row))
    return rows


def looped(rows):
    # With an entry of their own.
    return [
        row if v in row else np.sort(np.append(row, v))
        for v, row in enumerate(rows)
    ]


def summed(rows, x, recv, send, weights, half):
    # Horner's levels, one rounding after the other.
    kind = x.dtype.type

    def stored(y):
        if half:
            y = y.astype(np.float16).astype(np.float32)
        return y

    def level(y):
        total = np.zeros_like(x)
        for v, row in enumerate(rows):
            for u in row:
                total[v] += y[u]
        return recv[:, None] * total

    y = stored(send[:, None] * (kind(weights[-1]) * x))
    for w in weights[-2:0:-1]:
        y = stored(send[:, None] * (kind(w) * x + level(y)))
    return kind(weights[0]) * x + level(y)


@pytest.mark.parametrize('last', [0, 5, 40, 100])
@pytest.mark.parametrize('kind', ['float32', 'float64', 'half'])
@pytest.mark.parametrize('levels', [2, 9])
def test_rows_are_summed_one_entry_after_the_other(last, kind, levels):
    half, dtype = kind == 'half', np.float64 if kind == 'float64' else 'f4'
    stored = lists(last)
    n = len(stored)
    numbers = np.random.default_rng(levels)
    x = numbers.standard_normal((n, 130)).astype(dtype)
    recv, send = (numbers.random(n).astype(dtype) / 4 for _ in range(2))
    weights = numbers.random(levels + 1) + 0.1
    ptr = torch.tensor([0, *np.cumsum([len(row) for row in stored])])
    col = torch.from_numpy(np.concatenate(stored).astype(np.int32))
    ends = torch.from_numpy(recv), torch.from_numpy(send)
    for loops in (False, True):
        rows = looped(stored) if loops else stored
        wanted = torch.from_numpy(summed(rows, x, recv, send, weights, half))
        for columns in (*range(1, 9), 12, 16, 24, 32, 33, 48, 63, 64, 65, 130):
            part = torch.from_numpy(x[:, :columns].copy())
            rest = (*ends, torch.from_numpy(weights), half)
            for asked in (None, torch.tensor([n - 1, 0, 33, n - 2, 33])):
                got = ops.propagate(
                    ptr, col, part, *rest, rows=asked, loops=loops
                )
                some = wanted if asked is None else wanted[asked]
                assert torch.equal(got, some[:, :columns])
            few = part.to_sparse_csr()
            got = ops.propagate(ptr, col, few, *rest, loops=loops)
            assert torch.equal(got, wanted[:, :columns])
            got = ops.propagate(
                ptr, col, part, *rest, loops=loops, in_place=True
            )
            assert torch.equal(got, wanted[:, :columns])
