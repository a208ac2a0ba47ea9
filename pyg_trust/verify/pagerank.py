"""Worst cases of personalized PageRank, proved from any vector.

An operator T that takes the best flips of every row bounds the scores of all
admissible graphs, from any vector in the limit and by iteration in K steps.
Numbers are int64 in units of 2^-p, rounded up.
See docs/theory/proofs.rst.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .arrays import divides

NORMALIZATIONS = ('rw', 'sym', 'visits')
Roots = tuple[np.ndarray, np.ndarray]
# Bits of the factors a, alpha, 1 / sqrt(s), in two limbs of 26.
BITS = 52


class Graphs(NamedTuple):
    """The graphs of an attacker: rows are sources.

    Args:
        rowptr (ndarray): int64, ``[n + 1]``.
        col (ndarray): int64, ``[num_edges]``, rising in every row.
        removable (ndarray): bool, ``[num_edges]``.
        budget (ndarray): int64, ``[n]``: flips of a row.
        pairs (ndarray): int64, ``[2, num_pairs]``: addable edges.
        all_pairs (bool): whether any pair of distinct nodes is addable.
    """

    rowptr: np.ndarray
    col: np.ndarray
    removable: np.ndarray
    budget: np.ndarray
    pairs: np.ndarray
    all_pairs: bool


class Model(NamedTuple):
    """Map from signals to scores.

    Args:
        alpha (float): the teleport probability.
        K (int, optional): the number of steps, None for the limit.
        normalization (str): ``'rw'`` or ``'sym'``.
    """

    alpha: float
    K: int | None = None
    normalization: str = 'rw'


def check(graphs: Graphs) -> int:
    """Check a graph; return the number of nodes."""
    rowptr, col, removable, budget, pairs, _ = graphs
    n = len(rowptr) - 1
    sound = (
        0 < n < 2**31
        and divides(rowptr, n, len(col))
        and len(col) == len(removable)
        and len(budget) == n
        and len(pairs) == 2
    )
    if not sound:
        raise ValueError('the witness holds no rows of a graph')
    edge, pair = rows(graphs) * n + col, pairs[0] * n + pairs[1]
    sound = (
        removable.dtype == bool
        and bool(((budget >= 0) & (budget < 2**31)).all())
        and all(((x >= 0) & (x < n)).all() for x in (col, *pairs))
        and bool((np.diff(edge) > 0).all())
        and len(np.unique(pair)) == len(pair)
        and not np.isin(pair, edge).any()
    )
    if not sound:
        raise ValueError('the witness holds no graph with fragile edges')
    if int(sizes(graphs)[1].max()) >= 2**15:
        raise ValueError('sums over 2^15 neighbours are not exact')
    return n


def rows(graphs: Graphs) -> np.ndarray:
    """Return the source of every edge."""
    return np.repeat(np.arange(len(graphs.budget)), np.diff(graphs.rowptr))


def sizes(graphs: Graphs) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest size of every row."""
    n, row, degree = len(graphs.budget), rows(graphs), np.diff(graphs.rowptr)
    gone = np.bincount(row[graphs.removable], minlength=n)
    if graphs.all_pairs:
        free = n - 1 - degree
        free += np.bincount(row[row == graphs.col], minlength=n)
    else:
        free = np.bincount(graphs.pairs[0], minlength=n)
    budget = graphs.budget
    return degree - np.minimum(budget, gone), degree + np.minimum(budget, free)


# Arithmetic #################################################################


def up(x: np.ndarray, shift: int) -> np.ndarray:
    """Divide by ``2^shift``, rounded up."""
    return -((-x) >> shift)


def limbs(factor: Fraction) -> tuple[int, int]:
    """Return a factor in [0, 1] in units of 2^-52, rounded down and up."""
    num, den = factor.numerator << BITS, factor.denominator
    return num // den, -(-num // den)


def scaled(
    x: np.ndarray, low: np.ndarray | int, high: np.ndarray | int
) -> np.ndarray:
    """Multiply ``x`` by a factor between two of :func:`limbs`, rounded up."""
    factor = np.where(x >= 0, high, low)
    f1, f0 = factor >> 26, factor & (2**26 - 1)
    x1, x0 = x >> 24, x & (2**24 - 1)
    # (x1 2^24 + x0) (f1 2^26 + f0) 2^-52, every product below 2^51.
    part = up(x1 * f1, 2) + up(x1 * f0, 28)
    return part + up(x0 * f1, 26) + (x0 * f0 > 0)


def roots(most: int) -> Roots:
    """Compute ``1 / sqrt(s)`` for s = max(1, 0), ..., most: down and up."""
    square = [(1 << 2 * BITS) // max(s, 1) for s in range(most + 1)]
    low = np.array([math.isqrt(x) for x in square])
    return low, low + 1


def places(*values: np.ndarray) -> int:
    """Choose p, so that all values are below 2^45 units of 2^-p."""
    if not all(np.isfinite(v).all() for v in values):
        raise ValueError('the witness holds NaN or infinity')
    top = max(float(np.abs(v).max()) for v in values)
    return 45 - math.frexp(top)[1]


def units(values: np.ndarray, p: int) -> np.ndarray:
    """Convert values to units of 2^-p, rounded up, also what underflows."""
    made = np.ceil(np.ldexp(values, p)).astype(np.int64)
    return made + ((made == 0) & (values > 0))


# The operator ###############################################################


class Flips(NamedTuple):
    """Values of fragile neighbours, by row, in the order of their use."""

    ptr: np.ndarray
    value: np.ndarray


def leaving(graphs: Graphs, z: np.ndarray) -> Flips:
    """List values of the neighbours a row can lose, the least first."""
    which = np.flatnonzero(graphs.removable)
    row, value = rows(graphs)[which], z[graphs.col[which]]
    return ragged(row, value, value, len(z))


def coming(graphs: Graphs, z: np.ndarray) -> Flips:
    """List values of neighbours a row can win, the largest first."""
    if not graphs.all_pairs:
        row, value = graphs.pairs[0], z[graphs.pairs[1]]
        return ragged(row, value, -value, len(z))
    at, best_values = [], []
    order = np.argsort(-z, kind='stable')
    for i in np.flatnonzero(graphs.budget):
        own = graphs.col[graphs.rowptr[i] : graphs.rowptr[i + 1]]
        best = order[: graphs.budget[i] + len(own) + 1]
        best = best[(best != i) & ~np.isin(best, own)][: graphs.budget[i]]
        at.append(np.full(len(best), i))
        best_values.append(z[best])
    row = np.concatenate([np.zeros(0, np.int64), *at])
    value = np.concatenate([np.zeros(0, np.int64), *best_values])
    return ragged(row, value, -value, len(z))


def ragged(
    row: np.ndarray, value: np.ndarray, key: np.ndarray, n: int
) -> Flips:
    """Sort values by row, and within a row by key."""
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))])
    return Flips(ptr, value[np.lexsort((key, row))])


class Prices(NamedTuple):
    """Prices of flips, as floats or in the units of scores.

    Args:
        row (ndarray): the price of a flip in each row, ``[n]``.
        visits (bool): whether a row's price is divided by its size.
        edge (ndarray, optional): the price of each removal, in place of its
            row's, ``[num_edges]``.
        pair (ndarray, optional): the price of each addition, ``[num_pairs]``.
    """

    row: np.ndarray
    visits: bool = False
    edge: np.ndarray | None = None
    pair: np.ndarray | None = None


def sized(graphs: Graphs, model: Model) -> Roots:
    """Compute 1 / sqrt(s) of every size of a row, for 'sym'."""
    most = int(sizes(graphs)[1].max())
    return roots(most if model.normalization == 'sym' else 0)


def own(
    model: Model, root: Roots, signal: np.ndarray, full: np.ndarray
) -> np.ndarray:
    """Return the signal of rows of a size, rounded up."""
    if model.normalization == 'sym':
        return scaled(signal, root[0][full], root[1][full])
    return signal if model.normalization == 'rw' else -((-signal) // full)


def operator(
    graphs: Graphs,
    model: Model,
    signal: np.ndarray,
    z: np.ndarray,
    price: Prices,
) -> np.ndarray:
    """Compute T z, rounded up; ``signal`` is alpha r."""
    if price.edge is not None and price.pair is not None:
        return apart(graphs, model, signal, z, price.edge, price.pair)
    n, degree = len(z), np.diff(graphs.rowptr)
    base = np.zeros(n, np.int64)
    np.add.at(base, rows(graphs), z[graphs.col])
    lose, win = leaving(graphs, z), coming(graphs, z)
    lost, won = np.diff(lose.ptr), np.diff(win.ptr)
    root = sized(graphs, model)
    low, high = limbs(1 - Fraction(model.alpha))
    best = np.full(n, -(2**62))
    come = np.arange(n)
    for added in range(int(graphs.budget.max()) + 1):
        go, left = come, base.copy()
        for removed in range(int(graphs.budget.max()) - added + 1):
            full = np.maximum(degree[go] + added - removed, 1)
            mean = -((-left[go]) // full)
            # Rows without neighbours have the mean 0.
            reached = own(model, root, signal[go], full)
            reached = reached + scaled(mean, low, high)
            cost = price.row[go] * (added + removed)
            reached -= cost // full if price.visits else cost
            best[go] = np.maximum(best[go], reached)
            more = added + removed < graphs.budget[go]
            go = go[more & (lost[go] > removed)]
            if not len(go):
                break
            left[go] -= lose.value[lose.ptr[go] + removed]
        more = added < graphs.budget[come]
        come = come[more & (won[come] > added)]
        if not len(come):
            return best
        base[come] += win.value[win.ptr[come] + added]
    return best


def apart(
    graphs: Graphs,
    model: Model,
    signal: np.ndarray,
    z: np.ndarray,
    edge: np.ndarray,
    pair: np.ndarray,
) -> np.ndarray:
    r"""Compute T z with a price for every flip, rounded up flip by flip.

    In a row of size s a flip adds :math:`\pm a z_j / s` less its price, so
    that for each size the best flips come first.
    """
    n, degree, budget = len(z), np.diff(graphs.rowptr), graphs.budget
    low, high = limbs(1 - Fraction(model.alpha))
    part, total = scaled(z, low, high), np.zeros(n, np.int64)
    np.add.at(total, rows(graphs), part[graphs.col])
    root, top = sized(graphs, model), sizes(graphs)[1]
    which = np.flatnonzero(graphs.removable)
    row, into = rows(graphs)[which], graphs.pairs
    lose = row, scaled(-z[graphs.col[which]], low, high), edge[which]
    win = into[0], part[into[1]], pair
    lost, won = (np.bincount(side[0], minlength=n) for side in (lose, win))
    go, come = (int(np.minimum(x, budget).max()) for x in (lost, won))
    best = np.full(n, -(2**62))
    for more in range(-go, come + 1):
        # A row reaches no size above its largest: there nothing is used.
        full = np.maximum(np.minimum(degree + more, top), 1)
        base = own(model, root, signal, full) - (-total) // full
        (l_ptr, l_sum), (w_ptr, w_sum) = (
            sums(side, full, n) for side in (lose, win)
        )
        for added in range(max(0, more), min(come, go + more) + 1):
            removed = added - more
            fits = (added <= won) & (removed <= lost)
            i = np.flatnonzero(fits & (added + removed <= budget))
            reached = base[i] + l_sum[l_ptr[i] + removed] - l_sum[l_ptr[i]]
            reached += w_sum[w_ptr[i] + added] - w_sum[w_ptr[i]]
            best[i] = np.maximum(best[i], reached)
    return best


def sums(
    side: tuple[np.ndarray, np.ndarray, np.ndarray], full: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the best flips of every row, as differences of a table.

    The table may wrap, as no difference does.
    """
    row, value, price = side
    gain = -((-value) // full[row]) - price
    flips = ragged(row, gain, -gain, n)
    return flips.ptr, np.concatenate([[0], np.cumsum(flips.value)])


def first(graphs: Graphs, model: Model, r: np.ndarray) -> np.ndarray:
    """Bound scores before any step from above, in all admissible graphs."""
    if model.normalization == 'rw':
        return r
    small, large = sizes(graphs)
    low, high = roots(int(large.max()))
    return np.maximum(
        scaled(r, low[small], high[small]), scaled(r, low[large], high[large])
    )


def bound(
    graphs: Graphs,
    model: Model,
    plus: np.ndarray,
    minus: np.ndarray,
    witness: np.ndarray | None,
    price: Prices | None = None,
) -> tuple[list[int], int]:
    """Bound the scores of a signal from above, in all admissible graphs.

    Args:
        graphs (Graphs): checked by :func:`check`.
        model (Model): how scores are made.
        plus (ndarray): float64, ``[n]``: the signal is r = plus - minus.
        minus (ndarray): float64, ``[n]``.
        witness (ndarray, optional): float64, ``[n]``: any numbers, best the
            largest scores. Not used for K steps.
        price (Prices, optional): float64, taken down.

    Returns:
        tuple: a bound for every node and p: they are in units of 2^-p.
    """
    if not 0 < model.alpha < 1 or model.normalization not in NORMALIZATIONS:
        raise ValueError('the witness holds no model of PageRank')
    p = places(*(2 * x for x in (plus, minus, witness) if x is not None))
    r = units(plus, p) + units(-minus, p)
    low, high = limbs(Fraction(model.alpha))
    signal = scaled(r, low, high)
    row, visits, *each = price or Prices(np.zeros(len(r)))
    known = [down(x, p) for x in each if x is not None]
    cost = Prices(down(row, p), visits, *known)
    if model.K is not None:
        z = first(graphs, model, r)
        for _ in range(model.K):
            z = operator(graphs, model, signal, z, cost)
        return z.tolist(), p
    if witness is None:
        raise ValueError('the limit is proved from a witness alone')
    z = units(witness, p)
    gain = int(max(0, (operator(graphs, model, signal, z, cost) - z).max()))
    rate = Fraction(model.alpha)
    extra = -(-gain * rate.denominator // rate.numerator)
    return [v + extra for v in z.tolist()], p


def down(price: np.ndarray, p: int) -> np.ndarray:
    """Convert prices to units of 2^-p, rounded down and cut at 2^44."""
    if not (price >= 0).all():
        raise ValueError('the witness holds a price below zero')
    # Below 2^-900, where a product may be off by more than 2^-53, they are 0.
    price = np.where(price < 2.0**-900, 0, price)
    return -units(-np.minimum(price, 2.0 ** (44 - p)), p)


def reach(
    graphs: Graphs, alpha: float, node: int, witness: np.ndarray, visits: bool
) -> tuple[list[int], int]:
    r"""Bound :math:`\pi_u(i)`, or visits, from above, for every u."""
    e = np.zeros(len(witness))
    e[node] = 1.0
    kind = Model(alpha, None, 'visits' if visits else 'rw')
    return bound(graphs, kind, e, 0 * e, witness)


def bound_within(
    graphs: Graphs,
    model: Model,
    plus: np.ndarray,
    minus: np.ndarray,
    witness: np.ndarray | None,
    target: int,
    price: float,
    reached: np.ndarray,
    budget: int,
    visits: bool = False,
    shares: np.ndarray | None = None,
) -> Fraction:
    r"""Bound one target's score from above, under a global budget.

    Args:
        graphs (Graphs): with no row's budget above the global one.
        model (Model): as in :func:`bound`, as the next three.
        plus (ndarray): float64, ``[n]``.
        minus (ndarray): float64, ``[n]``.
        witness (ndarray, optional): float64, ``[n]``: best the largest
            scores with prices.
        target (int): u.
        price (float): :math:`\lambda \ge 0`, any.
        reached (ndarray): float64, ``[n]``: :math:`\bar\pi_u(i)` proved by
            :func:`reach`, infinite where the price is zero.
        budget (int): B.
        visits (bool): whether :obj:`reached` bounds visits.
        shares (ndarray, optional): float64, ``[num_edges + num_pairs]``, of
            :func:`split`: then B is of undirected edges.
    """
    if not (0 <= price < 2.0**100 and (reached > 2.0**-900).all()):
        raise ValueError('the witness holds no price, or a bound of zero')
    # Four roundings of 2^-53, that of a share too: below the real product.
    step = price / reached * model.alpha * (1 - 2.0**-50)
    each = Prices(step, visits)
    if shares is not None:
        part = split(graphs, shares)
        row = np.concatenate([rows(graphs), graphs.pairs[0]])
        cost = step[row] * part
        many = len(graphs.col)
        each = Prices(step, False, cost[:many], cost[many:])
    bounds, p = bound(graphs, model, plus, minus, witness, each)
    return (
        Fraction(bounds[target]) / Fraction(2) ** p + Fraction(price) * budget
    )


def split(graphs: Graphs, shares: np.ndarray) -> np.ndarray:
    """Check shares of an edge's price: at most 1 for both directions."""
    n = len(graphs.budget)
    row = np.concatenate([rows(graphs), graphs.pairs[0]])
    col = np.concatenate([graphs.col, graphs.pairs[1]])
    if shares.shape != row.shape or graphs.all_pairs:
        raise ValueError('the witness holds shares of other edges')
    part = shares.copy()
    part[: len(graphs.col)] *= graphs.removable
    order = np.argsort(row * n + col)
    key, back = (row * n + col)[order], col * n + row
    place = np.minimum(np.searchsorted(key, back), len(key) - 1)
    paired = (key[place] == back) & (row != col)
    both = part + np.where(paired, part[order[place]], 0)
    # Rounding once, by 2^-53, can't turn a smaller sum into 1.
    if not ((part >= 0) & (both <= 1 - 2.0**-51)).all():
        raise ValueError('the witness holds shares of more than a price')
    return part


# What is deployed ###########################################################

# Unit roundoff, smallest normal number, tolerance of the solver in the limit.
KINDS = {
    'bfloat16': (Fraction(1, 2**8), Fraction(1, 2**126)),
    'float32': (Fraction(1, 2**24), Fraction(1, 2**126)),
    'float64': (Fraction(1, 2**53), Fraction(1, 2**1022)),
}
TOLERANCE = {'float32': 1e-8, 'float64': 1e-12}


def slack(kind: str, model: Model, degree: int, top: float) -> Fraction:
    r"""Bound the error of a computed score, for one class.

    With unit roundoff u, :math:`\gamma_m = m u / (1 - m u)` and :math:`h =
    \max |r|`: a step has at most d + 8 roundings on the way of any number, so
    K steps are off by :math:`\gamma_{d+8} h \sum_{k<K} (a + \gamma_{d+8})^k`
    at most. In the limit the residual is checked in float64: the tolerance,
    :math:`8 \gamma_{d+8} / \alpha` of float64, and two units of rounding to
    the dtype. What underflows is below the smallest normal number.
    """
    if kind == 'exact arithmetic':
        return Fraction(0)
    unit, tiny = KINDS[kind]
    rate, d = Fraction(model.alpha), degree + 8
    if model.K is None:
        u = KINDS['float64'][0]
        part = d * u / (1 - d * u)
        relative = Fraction(TOLERANCE[kind]) + 8 * part / rate + 2 * unit
    else:
        if 10 * d * unit > 1:
            raise OverflowError('sums round by more than a tenth')
        part = d * unit / (1 - d * unit)
        kept = 1 - rate + part
        few = min(model.K, 64)
        total = sum((kept**k for k in range(few)), Fraction(0))
        if few < model.K:
            if kept >= 1:
                raise OverflowError('roundoff grows with every step')
            total += kept**few / (1 - kept)
        relative = part * total
    return (
        relative * Fraction(top) * (1 + Fraction(1, 10**6)) + tiny * d / rate
    )
