"""Worst ranks by PageRank under one flip, proved from the graph.

Any approximate inverse, with its residual, bounds the scores of the graph
after each flip of two rows. All bounds are widened by what floats may hide.
See docs/theory/proofs.rst.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from .accounting import FAILS, HOLDS, NOT_PROVED
from .pagerank import Graphs, check

_EPS = 2.0**-52
# The name, dimensions and dtype of each array of a witness.
ARRAYS = {
    **dict.fromkeys(('rowptr', 'col', 'users', 'items'), (1, 'i8')),
    **dict.fromkeys(('pairs', 'best', 'worst', 'flips'), (2, 'i8')),
    **dict.fromkeys(('alpha', 'tolerance'), (0, 'f8')),
}


class Inverse(NamedTuple):
    """Approximate X, with bounds of its error.

    Args:
        X (ndarray): float64, ``[n, n]``.
        sums (ndarray): A X.
        degree (ndarray): float64, ``[n]``.
        alpha (float): the teleport probability.
        eta (float): no entry of X is off by more.
        kappa (float): no entry of Delta X is off by more.
        most (float): the largest entry of X, at least 1.
    """

    X: np.ndarray
    sums: np.ndarray
    degree: np.ndarray
    alpha: float
    eta: float
    kappa: float
    most: float


def invert(adjacency: scipy.sparse.csr_array, alpha: float) -> Inverse:
    """Invert I - a P in floats, and bound the error."""
    n, degree = adjacency.shape[0], np.diff(adjacency.indptr).astype(float)
    step = (1 - alpha) / np.maximum(degree, 1)
    X = np.linalg.inv(np.eye(n) - step[:, None] * adjacency.toarray())
    sums = adjacency @ X
    most = max(1.0, float(np.abs(X).max()))
    rounding = 8 * (float(degree.max()) + 16) * _EPS * most
    with np.errstate(invalid='ignore'):
        residual = step[:, None] * sums - X
    residual[np.diag_indices(n)] += 1
    eta = (float(np.abs(residual).max()) + rounding) / alpha
    return Inverse(X, sums, degree, alpha, eta, 2 * eta + rounding, most)


def flip(
    made: Inverse,
    users: np.ndarray,
    items: np.ndarray,
    ends: list[int],
    gone: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y and Delta X of the scores t after a flip, and t's error."""
    sign, a = (-1.0 if gone else 1.0), 1 - made.alpha
    old, size = made.degree[ends], made.degree[ends] + sign
    sums = made.sums[ends]
    # Sums over no neighbours are 0.
    moved = (sums + sign * made.X[ends[::-1]]) / np.maximum(size, 1)[:, None]
    moved -= sums / np.maximum(old, 1)[:, None]
    (p, q), (r, s) = np.eye(2) - a * moved[:, ends]
    reach = a * made.alpha * made.X[users[:, None], ends]
    with np.errstate(divide='ignore', invalid='ignore'):
        y = reach @ (np.array([[s, -q], [-r, p]]) / (p * s - q * r))
    rho = y @ np.array([[p, q], [r, s]]) - reach
    long, part = np.abs(y).sum(1), moved[:, items]
    each = made.eta + long * made.kappa
    each += 16 * _EPS * (made.most + long * (1 + np.abs(moved).max()))
    off = (np.abs(rho).sum(1) + 2 * each) / made.alpha + each
    return y, part, off * (1 + 2.0**-20)


def clean(made: Inverse) -> float:
    """Bound the error of scores of the graph without a flip."""
    return 2 * (made.eta + 16 * _EPS * made.most)


def beside(t: np.ndarray, mine: np.ndarray, bar: float) -> np.ndarray:
    """Count scores that may tie with or exceed an item's; NaN counts, too."""
    return (~(t < mine[..., None] - bar)).sum(-1)


def prove(
    arrays: Mapping[str, np.ndarray], most: float = math.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Prove worst ranks, and who leaves the first k places.

    Args:
        arrays (dict): the graph (``rowptr``, ``col``), the ``pairs`` of which
            one may flip, unless it is of the user, ``alpha`` and the
            ``tolerance``; ``users``, all ``items``, and by user and place
            the ``best`` items, their ``worst`` ranks and the number of the
            pair in ``flips`` that takes an item furthest, -1 for none.
        most (float): the work to be done; OverflowError if it is more.

    Returns:
        tuple: bool, ``[num_users, k]`` each: whether no admissible graph has
        a larger rank, and whether the named flip has one above k.
    """
    adjacency = read(arrays)
    pairs, users, items, worst, flips = (
        arrays[name] for name in ('pairs', 'users', 'items', 'worst', 'flips')
    )
    n, each = adjacency.shape[0], 2 * len(items) + 8 * len(users) + 500
    if n**3 / 32 + len(adjacency.data) * n + pairs.shape[1] * each > most:
        raise OverflowError(
            'the proof takes minutes: prove it by report.verify(witness)'
        )
    made = invert(adjacency, float(arrays['alpha']))
    free = adjacency[users].toarray()[:, items] == 0
    free &= users[:, None] != items
    scores = made.alpha * made.X[np.ix_(users, items)]
    scores = np.where(free, scores, -np.inf)
    at = np.searchsorted(items, arrays['best'])
    mine, off = np.take_along_axis(scores, at, 1), clean(made)
    tolerance = float(arrays['tolerance'])
    proved = beside(scores[:, None], mine, tolerance + 2 * off) <= worst
    above = (scores[:, None] > mine[:, :, None] + 2 * off).sum(-1)
    if not np.isfinite(mine).all() or (above >= at.shape[1]).any():
        raise ValueError('the witness holds other items than the best ones')
    lost = np.zeros_like(proved)
    # All but `worst` scores are at least `gap` below the item's.
    rising = np.insert(np.sort(scores, 1), 0, -np.inf, 1)
    gap = mine - np.take_along_axis(rising, len(items) - worst, 1)
    for number, (v, j) in enumerate(pairs.T.tolist()):
        gone = bool(adjacency[v, j])
        y, part, errors = flip(made, users, items, [v, j], gone)
        spread = np.abs(y) @ np.ptp(part, axis=1) + 2 * errors + tolerance
        look = ~(gap > spread[:, None]) | (flips == number)
        look &= ((users != v) & (users != j))[:, None]
        for u in np.flatnonzero(look.any(1)).tolist():
            t, wide = scores[u] + y[u] @ part, 2 * float(errors[u])
            bar = t[at[u]]
            proved[u] &= beside(t, bar, tolerance + wide) <= worst[u]
            higher = (t > bar[:, None] + wide).sum(-1) >= at.shape[1]
            lost[u] |= (flips[u] == number) & higher
    return proved, lost


def read(arrays: Mapping[str, np.ndarray]) -> scipy.sparse.csr_array:
    """Return the graph of a witness; raise ValueError if it is none."""
    if set(arrays) != set(ARRAYS) or any(
        (x.ndim, x.dtype.str[1:]) != ARRAYS[name] for name, x in arrays.items()
    ):
        raise ValueError('the witness has other arrays than those of ranks')
    rowptr, col, pairs = (arrays[x] for x in ('rowptr', 'col', 'pairs'))
    none = np.zeros((2, 0), np.int64)
    fixed, budget = np.zeros(len(col), bool), np.zeros(len(rowptr) - 1, int)
    n = check(Graphs(rowptr, col, fixed, budget, none, False))
    adjacency = scipy.sparse.csr_array(
        (np.ones(len(col)), col, rowptr), shape=(n, n)
    )
    users, items, best = (arrays[x] for x in ('users', 'items', 'best'))
    alpha, tolerance = float(arrays['alpha']), float(arrays['tolerance'])
    size = len(users), best.shape[1]
    limits = (
        *((pairs, 0, n), (users, 0, n), (items, 0, n)),
        (arrays['worst'], 1, len(items) + 1),
        (arrays['flips'], -1, pairs.shape[1]),
    )
    sound = (
        all(arrays[x].shape == size for x in ('best', 'worst', 'flips'))
        and all(((x >= low) & (x < top)).all() for x, low, top in limits)
        and len(pairs) == 2
        and (pairs[0] < pairs[1]).all()
        and (np.diff(pairs[0] * n + pairs[1]) > 0).all()
        and (np.diff(items) > 0).all()
        and len(np.unique(users)) == len(users)
        and np.isin(best, items).all()
        and (np.diff(np.sort(best, 1), axis=1) > 0).all()
        and size[1] > 0
        and 0 < alpha < 1
        and 0 <= tolerance < math.inf
        and not adjacency.diagonal().any()
        and not (adjacency != adjacency.T).nnz
    )
    if not sound:
        raise ValueError('the witness holds no ranks of a graph')
    return adjacency


def judge(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], most: float
) -> Iterator[tuple[str, str]]:
    """Prove the fields of a certificate: yield a status and a text each."""
    proved, lost = prove(arrays, most)
    sure = proved.all() and values['num_lost'] <= lost.sum()
    text = f'{proved.sum()} of {proved.size} ranks are proved, and that '
    text += f'{lost.sum()} of {values["num_lost"]} are above k in some graph'
    yield HOLDS if sure else NOT_PROVED, f'witness: {text}'
    for text in differences(arrays, values):
        yield FAILS, f'witness: {text}'
    yield 'not checked', 'witness: that its edges are those of the data'


def differences(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]
) -> Iterator[str]:
    """List the fields of a certificate that differ from its witness."""
    ranks, counts = np.unique(arrays['worst'], return_counts=True)
    for name, found in (
        ('num_users', len(arrays['users'])),
        ('num_items', len(arrays['items'])),
        ('k', arrays['best'].shape[1]),
        ('num_flips', arrays['pairs'].shape[1]),
        ('alpha', float(arrays['alpha'])),
        ('tolerance', float(arrays['tolerance'])),
        ('global_budget', min(values['global_budget'], 1)),
        ('ranks', np.stack([ranks, counts], 1).tolist()),
    ):
        if values[name] != found:
            yield f'{name} is {found!r}, {values[name]!r} is claimed'


def contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    """List the contradictions between a certificate's fields."""
    k, ranks = values['k'], values['ranks']
    names = ('num_kept', 'num_lost', 'num_unknown')
    kept, lost, unknown = (values[name] for name in names)
    counts = dict(ranks)
    few = sum(n for rank, n in counts.items() if rank <= k)
    total, parts = sum(counts.values()), kept + lost + unknown
    if not values['num_users'] * k == total == parts:
        yield f'ranks: {total} of them, and {parts} items, are claimed'
    if kept != few or len(counts) < len(ranks):
        yield f'num_kept: {kept} is claimed, {few} have ranks of {k} or less'
    if max(counts, default=0) > values['num_items']:
        yield 'ranks: there are not as many items'
