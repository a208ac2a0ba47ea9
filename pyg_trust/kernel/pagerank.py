r"""Worst cases of personalized PageRank, proved from any vector.

**Graphs.** Admissible is every graph that differs from the clean one by
fragile directed edges, at most :math:`b_i` in row :math:`i`: removable ones
that leave, addable ones that come. :math:`S` is a row's set of out-neighbours,
:math:`k` the number of its flips. An undirected attacker has fewer graphs.

**Scores.** A model scores :math:`z = \alpha r + a P z` (in the limit), or
:math:`z^{(k+1)} = \alpha r + a P z^{(k)}` from :math:`z^{(0)} = r` (K steps),
:math:`a = 1 - \alpha`, :math:`P = D^{-1} A`; a row without edges counts as one
edge that leads nowhere. For 'sym' all is of :math:`D^{-1/2} z`: row i has the
signal :math:`r_i / \sqrt{|S|}` in place of :math:`r_i`. Let

.. math::
    (T z)_i = \max_{S, k \le b_i} \left[ \alpha r_i(S) + \frac{a}{|S|}
    \sum_{j \in S} z_j - p_i k \right],   \quad p_i \ge 0.

**Limit.** T is monotone and :math:`T(z + c) \le T z + a c` for a constant
:math:`c \ge 0`. For ANY vector :math:`z`, with :math:`g = \max(0, \max_i (T z
- z)_i)`, :math:`z + g / \alpha` is at least its image under T, hence at least
the score of every admissible graph (without prices), at every node.

**K steps.** By induction :math:`z^{(K)} \le T^K z^{(0)}`, where for 'sym'
:math:`z^{(0)}` is the largest of all sizes of a row. No vector is needed.

**A global budget B.** For a target u let :math:`\bar\pi_i \ge \pi_u(i)` in
every admissible graph: :math:`\pi(i)` is the score for the signal
:math:`e_i`, so the limit's bound of it at u, from any vector. For
:math:`\lambda \ge 0` and :math:`p_i = \alpha \lambda / \bar\pi_i`, a graph
with the flips :math:`k_i` has :math:`z_u \le (\text{bound with prices})_u +
\lambda \sum_i k_i \pi_u(i) / \bar\pi_i` and the sum is at most
:math:`\lambda B`. (In K steps a walk pays no more than in the limit.) Rows
that have no vector have the price 0.

**Arithmetic.** int64 numbers in units of :math:`2^{-p}`, magnitudes below
:math:`2^{46}`, degrees below :math:`2^{15}`: sums of neighbours are exact,
means, products with :math:`a`, :math:`\alpha` and :math:`1 / \sqrt{s}` in two
limbs are rounded up. A float of the vector is rounded up to a unit: a vector
may be anything, so that loses, but proves nothing false.
"""

import hashlib
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

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
    """How scores are made of signals.

    Args:
        alpha (float): the teleport probability.
        K (int, optional): the number of steps, None for the limit.
        normalization (str): ``'rw'`` or ``'sym'``.
    """

    alpha: float
    K: int | None = None
    normalization: str = 'rw'


def check(graphs: Graphs) -> int:
    """Refuse what is no graph; return the number of nodes."""
    rowptr, col, removable, budget, pairs, _ = graphs
    n = len(rowptr) - 1
    sound = (
        0 < n < 2**31
        and rowptr[0] == 0
        and rowptr[-1] == len(col) == len(removable)
        and bool((np.diff(rowptr) >= 0).all())
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
    """The source of every edge."""
    sizes = np.maximum(np.diff(graphs.rowptr), 0)
    return np.repeat(np.arange(len(sizes)), sizes)


def sizes(graphs: Graphs) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest size of every row of admissible graphs."""
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
    """A factor in [0, 1] in units of 2^-52, rounded down and up."""
    num, den = factor.numerator << BITS, factor.denominator
    return num // den, -(-num // den)


def scaled(
    x: np.ndarray, low: np.ndarray | int, high: np.ndarray | int
) -> np.ndarray:
    """``x`` times a factor between two of :func:`limbs`, rounded up."""
    factor = np.where(x >= 0, high, low)
    f1, f0 = factor >> 26, factor & (2**26 - 1)
    x1, x0 = x >> 24, x & (2**24 - 1)
    # (x1 2^24 + x0) (f1 2^26 + f0) 2^-52, every product below 2^51.
    part = up(x1 * f1, 2) + up(x1 * f0, 28)
    return part + up(x0 * f1, 26) + up(x0 * f0, 52)


def roots(most: int) -> tuple[np.ndarray, np.ndarray]:
    """``1 / sqrt(s)`` for s = max(1, 0), ..., most: down and up."""
    square = [(1 << 2 * BITS) // max(s, 1) for s in range(most + 1)]
    low = np.array([math.isqrt(x) for x in square])
    exact = [
        int(f) ** 2 * max(s, 1) == 1 << 2 * BITS for s, f in enumerate(low)
    ]
    return low, low + ~np.array(exact)


def places(*values: np.ndarray) -> int:
    """The p of units 2^-p: all values are below 2^45 of them."""
    if not all(np.isfinite(v).all() for v in values):
        raise ValueError('the witness holds what is no number')
    top = max(float(np.abs(v).max(initial=0)) for v in values)
    return 45 - max(math.frexp(top)[1], -500)


def units(values: np.ndarray, p: int) -> np.ndarray:
    """Values in units of 2^-p, rounded up."""
    return np.ceil(np.ldexp(values, p)).astype(np.int64)


# The operator ###############################################################


class Flips(NamedTuple):
    """Values of fragile neighbours, by row, in the order of their use."""

    ptr: np.ndarray
    value: np.ndarray


def leaving(graphs: Graphs, z: np.ndarray) -> Flips:
    """What a row can lose, the least first."""
    which = np.flatnonzero(graphs.removable)
    row, value = rows(graphs)[which], z[graphs.col[which]]
    return ragged(row, value, value, len(z))


def coming(graphs: Graphs, z: np.ndarray) -> Flips:
    """What a row can win, the largest first."""
    if not graphs.all_pairs:
        row, value = graphs.pairs[0], z[graphs.pairs[1]]
        return ragged(row, value, -value, len(z))
    found_row, found = [], []
    order = np.argsort(-z, kind='stable')
    for i in np.flatnonzero(graphs.budget):
        own = graphs.col[graphs.rowptr[i] : graphs.rowptr[i + 1]]
        best = order[: graphs.budget[i] + len(own) + 1]
        best = best[(best != i) & ~np.isin(best, own)][: graphs.budget[i]]
        found_row.append(np.full(len(best), i))
        found.append(z[best])
    row = np.concatenate([np.zeros(0, np.int64), *found_row])
    value = np.concatenate([np.zeros(0, np.int64), *found])
    return ragged(row, value, -value, len(z))


def ragged(
    row: np.ndarray, value: np.ndarray, key: np.ndarray, n: int
) -> Flips:
    """Values by row, and by key in it."""
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))])
    return Flips(ptr, value[np.lexsort((key, row))])


def operator(
    graphs: Graphs,
    model: Model,
    signal: np.ndarray,
    z: np.ndarray,
    price: np.ndarray,
) -> np.ndarray:
    """T z, rounded up; ``signal`` is alpha r, ``price`` a flip's, in units."""
    n, degree = len(z), np.diff(graphs.rowptr)
    total = np.zeros(n, np.int64)
    np.add.at(total, rows(graphs), z[graphs.col])
    lose, win = leaving(graphs, z), coming(graphs, z)
    lost, won = np.diff(lose.ptr), np.diff(win.ptr)
    low, high = limbs(1 - Fraction(model.alpha))
    root = roots(int(sizes(graphs)[1].max()))
    best = np.full(n, -(2**62))
    come, base = np.arange(n), total
    for added in range(int(graphs.budget.max()) + 1):
        go, left = come, base.copy()
        for removed in range(int(graphs.budget.max()) - added + 1):
            size = degree[go] + added - removed
            full = np.maximum(size, 1)
            mean = -((-left[go]) // full)
            own = signal[go]
            if model.normalization == 'sym':
                own = scaled(own, root[0][full], root[1][full])
            found = own + np.where(size > 0, scaled(mean, low, high), 0)
            found -= price[go] * (added + removed)
            best[go] = np.maximum(best[go], found)
            more = added + removed < graphs.budget[go]
            go = go[more & (lost[go] > removed)]
            if not len(go):
                break
            left[go] -= lose.value[lose.ptr[go] + removed]
        more = added < graphs.budget[come]
        come = come[more & (won[come] > added)]
        if not len(come):
            return best
        base = base.copy()
        base[come] += win.value[win.ptr[come] + added]
    return best


def first(graphs: Graphs, model: Model, r: np.ndarray) -> np.ndarray:
    """The scores before any step, in every admissible graph at most."""
    if model.normalization == 'rw':
        return r
    small, large = (np.maximum(size, 1) for size in sizes(graphs))
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
    price: np.ndarray | None = None,
) -> tuple[list[int], int]:
    """Upper bounds of the scores of a signal in all admissible graphs.

    Args:
        graphs (Graphs): checked by :func:`check`.
        model (Model): how scores are made.
        plus (ndarray): float64, ``[n]``: the signal is r = plus - minus.
        minus (ndarray): float64, ``[n]``.
        witness (ndarray, optional): float64, ``[n]``: any numbers, best the
            largest scores. Not used for K steps.
        price (ndarray, optional): float64, ``[n]``: of a flip, taken down.

    Returns:
        tuple: a bound for every node and p: they are in units of 2^-p.
    """
    if not 0 < model.alpha < 1 or model.normalization not in ('rw', 'sym'):
        raise ValueError('the witness holds no model of PageRank')
    p = places(*(2 * x for x in (plus, minus, witness) if x is not None))
    r = units(plus, p) + units(-minus, p)
    low, high = limbs(Fraction(model.alpha))
    signal = scaled(r, low, high)
    cost = np.zeros(len(r), np.int64)
    if price is not None:
        if not (price >= 0).all():
            raise ValueError('the witness holds a price below zero')
        cost = -units(-np.minimum(price, 2.0 ** (44 - p)), p)
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


def reach(
    graphs: Graphs, alpha: float, node: int, witness: np.ndarray
) -> list[Fraction]:
    r"""Upper bounds of :math:`\pi_u(i)` of a node i, for every u."""
    e = np.zeros(len(witness))
    e[node] = 1.0
    found, p = bound(graphs, Model(alpha), e, 0 * e, witness)
    return [Fraction(v) / Fraction(2) ** p for v in found]


def bound_within(
    graphs: Graphs,
    model: Model,
    plus: np.ndarray,
    minus: np.ndarray,
    witness: np.ndarray | None,
    target: int,
    price: float,
    reached: dict[int, Fraction],
    budget: int,
) -> Fraction:
    r"""Upper bound of one target's score under a global budget.

    Args:
        graphs (Graphs): with no row's budget above the global one.
        model (Model): as in :func:`bound`, as the next three.
        plus (ndarray): float64, ``[n]``.
        minus (ndarray): float64, ``[n]``.
        witness (ndarray, optional): float64, ``[n]``: best the largest
            scores with prices.
        target (int): u.
        price (float): :math:`\lambda \ge 0`, any.
        reached (dict): :math:`\bar\pi_u(i)` of some rows i, by :func:`reach`.
        budget (int): B.
    """
    step = np.zeros(len(plus))
    rate = Fraction(model.alpha) * Fraction(price)
    for node, most in reached.items():
        if most > 0:
            # A float below the quotient.
            step[node] = float(rate / most) * (1 - 2.0**-50)
    found, p = bound(graphs, model, plus, minus, witness, step)
    return (
        Fraction(found[target]) / Fraction(2) ** p + Fraction(price) * budget
    )


# What is deployed ###########################################################

# Unit roundoff, smallest normal number, tolerance of the solver in the limit.
KINDS = {
    'float32': (Fraction(1, 2**24), Fraction(1, 2**126)),
    'float64': (Fraction(1, 2**53), Fraction(1, 2**1022)),
}
TOLERANCE = {'float32': 1e-8, 'float64': 1e-12}


def slack(kind: str, model: Model, degree: int, top: float) -> Fraction:
    r"""How far a computed score may be from the exact one, for one class.

    With unit roundoff u, :math:`\gamma_m = m u / (1 - m u)` and :math:`h =
    \max |r|`: a step has at most d + 8 roundings on the way of any number, so
    K steps are off by :math:`\gamma_{d+8} h \sum_{k<K} (a + \gamma_{d+8})^k`
    at most. In the limit the residual is checked in float64: the tolerance,
    :math:`8 \gamma_{d+8} / \alpha` of float64, and two units of rounding to
    the dtype. What underflows is below the smallest normal number.

    Args:
        kind (str): ``'float32'``, ``'float64'`` or ``'exact arithmetic'``.
        model (Model): how scores are made.
        degree (int): d, the largest of any admissible graph.
        top (float): h.
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
        part = d * unit / (1 - d * unit)
        kept = 1 - rate + part
        if kept < 1:
            # The sum of all powers, and not above K terms of at most 1.
            relative = part * min(1 / (1 - kept), Fraction(model.K))
        else:
            relative = part * model.K * kept**model.K
    return (
        relative * Fraction(top) * (1 + Fraction(1, 10**6)) + tiny * d / rate
    )


def margins(
    graphs: Graphs,
    model: Model,
    kind: str,
    logits: np.ndarray,
    classes: np.ndarray,
    witness: np.ndarray | None,
) -> list[list[Fraction]]:
    """Lower bounds of margins of class pairs at all nodes, slack included.

    Args:
        graphs (Graphs): the attacker's.
        model (Model): how scores are made.
        kind (str): in which it computes, as in :func:`slack`.
        logits (ndarray): float64, ``[n, num_classes]``.
        classes (ndarray): int64, ``[2, num_pairs]``: the class that is
            defended, and the other.
        witness (ndarray, optional): float64, ``[num_pairs, n]``: any numbers,
            best the largest scores of the other class less the defended one.

    Raises:
        ValueError: if these do not fit together.
    """
    n, degree = check(graphs), int(sizes(graphs)[1].max())
    if (
        logits.ndim != 2
        or len(logits) != n
        or logits.shape[1] < 2
        or (logits.shape[1] <= classes).any()
        or (classes < 0).any()
        or (witness is not None and witness.shape != (classes.shape[1], n))
    ):
        raise ValueError('the witness is not of these logits and classes')
    off = [
        slack(kind, model, degree, float(np.abs(h).max())) for h in logits.T
    ]
    made = []
    for i, (own, other) in enumerate(classes.T.tolist()):
        value = None if witness is None else witness[i]
        found, p = bound(
            graphs, model, logits[:, other], logits[:, own], value
        )
        unit, lost = Fraction(2) ** -p, off[own] + off[other]
        made.append([-v * unit - lost for v in found])
    return made


def robust(
    margins: list[list[Fraction]],
    classes: np.ndarray,
    num_classes: int,
    targets: np.ndarray,
    reference: np.ndarray,
    tolerance: float,
) -> list[bool]:
    """Whether the reference class of each target stays ahead of all others.

    Args:
        margins (list): of :func:`margins`.
        classes (ndarray): as there.
        num_classes (int): of the logits.
        targets (ndarray): int64, ``[num_targets]``.
        reference (ndarray): int64, ``[num_targets]``.
        tolerance (float): what margins have to exceed.
    """
    place = {pair: i for i, pair in enumerate(map(tuple, classes.T.tolist()))}
    need = Fraction(tolerance)
    made = []
    for u, own in zip(targets.tolist(), reference.tolist(), strict=True):
        others = [(own, c) for c in range(num_classes) if c != own]
        made.append(
            all(
                pair in place and margins[place[pair]][u] > need
                for pair in others
            )
        )
    return made


# The witness of a certificate ###############################################

# What a witness holds: the name of each array and how many dimensions it has.
ARRAYS = {
    **dict.fromkeys(('rowptr', 'col', 'removable', 'budget'), 1),
    **dict.fromkeys(('targets', 'reference'), 1),
    **dict.fromkeys(('pairs', 'logits', 'classes', 'scores'), 2),
    **dict.fromkeys(('all_pairs', 'alpha', 'K', 'tolerance'), 0),
    **dict.fromkeys(('normalization', 'dtype'), 0),
}


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of names, kinds, shapes and bytes."""
    made = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        made.update(f'{name} {value.dtype.str} {value.shape} '.encode())
        made.update(value.tobytes())
    return made.hexdigest()


def prove(arrays: dict[str, np.ndarray]) -> list[bool]:
    """Whether each target of a witness is proved to be robust.

    Args:
        arrays (dict): the attacker (``rowptr``, ``col``, ``removable``,
            ``budget``, ``pairs``, ``all_pairs``), the model (``alpha``,
            ``K``, -1 for the limit, ``normalization``, ``dtype``, ``logits``)
            and what is claimed (``targets``, ``reference``, ``tolerance``),
            with ``scores`` of ``classes``, empty for K steps.

    Raises:
        ValueError: if it is no witness.
    """
    if set(arrays) != set(ARRAYS) or any(
        arrays[name].ndim != dim or arrays[name].dtype.hasobject
        for name, dim in ARRAYS.items()
    ):
        raise ValueError('the witness has other arrays than a certificate')
    graphs = Graphs(
        arrays['rowptr'],
        arrays['col'],
        arrays['removable'],
        arrays['budget'],
        arrays['pairs'],
        bool(arrays['all_pairs']),
    )
    K = int(arrays['K'])
    model = Model(
        float(arrays['alpha']),
        None if K < 0 else K,
        str(arrays['normalization']),
    )
    kind, logits = str(arrays['dtype']), arrays['logits']
    n, classes = check(graphs), arrays['classes']
    targets, reference = arrays['targets'], arrays['reference']
    whole = ('rowptr', 'col', 'budget', 'pairs', 'classes', 'targets')
    if (
        (kind != 'exact arithmetic' and kind not in KINDS)
        or any(arrays[x].dtype != np.int64 for x in (*whole, 'reference'))
        or any(arrays[x].dtype != np.float64 for x in ('logits', 'scores'))
        or len(targets) != len(reference)
        or ((targets < 0) | (targets >= n)).any()
        or not 0 <= float(arrays['tolerance']) < math.inf
    ):
        raise ValueError('the witness holds no targets of a model')
    found = margins(
        *(graphs, model, kind, logits, classes),
        arrays['scores'] if model.K is None else None,
    )
    return robust(
        *(found, classes, logits.shape[1], targets, reference),
        float(arrays['tolerance']),
    )


def additions(arrays: dict[str, np.ndarray]) -> tuple[int, int]:
    """How many edges between distinct nodes are absent, and may be added.

    Args:
        arrays (dict): as :func:`prove` has accepted them.
    """
    n = len(arrays['budget'])
    row = np.repeat(np.arange(n), np.diff(arrays['rowptr']))
    absent = n * (n - 1) - int((row != arrays['col']).sum())
    if bool(arrays['all_pairs']):
        return absent, absent
    return absent, int((arrays['pairs'][0] != arrays['pairs'][1]).sum())
