"""Accounts of steps that draw units without replacement.

Proofs are in the documentation, "Private training".
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

import numpy as np
import scipy

from pyg_trust._checks import (
    Count,
    Fraction,
    check_choice,
    check_integer,
    check_rate,
    validated,
)
from pyg_trust.privacy import pld
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.mechanisms import (
    MIN_NOISE,
    Orders,
    amplify,
    check_delta,
    check_multiplier,
    check_orders,
    check_rdp,
    rdp_wor,
    rdp_wor_profile,
    unamplify,
)

__all__ = [
    'group_wor_epsilon',
    'rdp_epsilon',
    'rdp_group_wor',
    'wor_epsilon',
]

METHODS = ('pld_wor', 'rdp_wor')
# Heavier weights count for how far a grid reaches.
_LEAST = 1e-22
_check_int = partial(check_integer, numpy=True)
ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *map(float, range(11, 64)),
    *(128.0, 256.0, 512.0, 1024.0),
)
History = Iterable[tuple[float, float, int]]


@validated
def rdp_epsilon(
    orders: Orders, rdp: Sequence[float] | np.ndarray, delta: Fraction
) -> float:
    r"""Convert Rényi DP to the least :math:`\epsilon` of a :math:`\delta`.

    .. math::
        \epsilon = \min_a\; g(a) + \log\frac{a-1}{a}
        - \frac{\log \delta + \log a}{a - 1}

    (`Balle et al. 2020, Theorem 21 <https://arxiv.org/abs/1905.09982>`_).

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        rdp (sequence of float): :math:`g(a)` of all steps together.
        delta (float): in :math:`(0, 1)`.
    """
    a, g = check_rdp(orders, rdp)
    epsilon = g + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(epsilon.min()))


def wor_epsilon(
    history: History, delta: float, method: str = 'pld_wor'
) -> float:
    r"""Compute :math:`\epsilon` of steps that sample without replacement.

    A step draws a fixed number of disjoint subgraphs. Each row of the features
    is in one subgraph, and neighbouring data differ in one row. ``'pld_wor'``
    composes privacy loss distributions; ``'rdp_wor'`` is the Rényi bound of
    Ayle et al. 2023, which is larger.

    Args:
        history (iterable): of :obj:`(noise_multiplier, sample_rate, steps)`,
            with the noise multiplier :math:`\sigma / C`.
        delta (float): in :math:`(0, 1)`; not below :obj:`1e-10` for
            ``'pld_wor'`` with a rate below 1.
        method (str): :obj:`'pld_wor'` or :obj:`'rdp_wor'`.

    Example:
        >>> history = [(8.0, 0.4, 50)]  # sigma / C, m / M, steps
        >>> 3.4 < wor_epsilon(history, 1e-6) < 4.1
        True
    """
    check_choice('method', method, METHODS)
    phases, delta = check_history(history), check_delta(delta)
    if method == 'pld_wor':
        return _spent(phases, delta, 0, 1)
    rdp = np.zeros(len(ORDERS))
    for (z, q), steps in phases.items():
        rdp += steps * _rdp_of_step(q, z)
    return rdp_epsilon(ORDERS, rdp, delta) if phases else 0.0


@validated
def group_wor_epsilon(
    history: History, delta: Fraction, num_roots: Count, occurrences: Count
) -> float:
    r"""Bound :math:`\epsilon` of steps on ego graphs that share nodes.

    A step draws :math:`m` of :math:`N` ego graphs uniformly without
    replacement. A node is in at most :math:`k` of the :math:`N`. How many of
    its :math:`k` a step draws has to stay secret.

    Args:
        history (iterable): of :obj:`(noise_multiplier, q, steps)`, with the
            noise multiplier :math:`\sigma / C`, at least :math:`k / 10`, and
            the sampling rate :math:`q = m / N`.
        delta (float): in :math:`[10^{-10}, 1)`.
        num_roots (int): :math:`N`, the number of ego graphs.
        occurrences (int): :math:`k`, the most ego graphs that share a node.

    Example:
        >>> history = [(8.2, 674 / 13482, 100)]
        >>> 3.1 < group_wor_epsilon(history, 1e-5, 13482, 5) < 3.2
        True
    """
    n, k = check_group(num_roots, occurrences)
    phases = check_history(history, k)
    for _, q in phases:
        check_share(q, n)
    return _spent(phases, delta, n, k)


def rdp_group_wor(
    orders: Orders,
    q: float,
    noise_multiplier: float,
    num_roots: int,
    occurrences: int,
) -> np.ndarray:
    r"""Compute Rényi DP of one step on ego graphs, at each order.

    A step draws :math:`m` of :math:`N` = ``num_roots`` ego graphs without
    replacement, at the rate ``q`` :math:`= m / N`; a node is in at most
    ``occurrences`` of them. ``noise_multiplier`` is :math:`\sigma / C`.
    ``orders`` are above 1; the result has one value in nats for each.
    """
    a, (n, k) = check_orders(orders), check_group(num_roots, occurrences)
    z = check_multiplier(noise_multiplier, k)
    i, w = _drawn(check_share(q, n), n, k)
    rate = min(1.0, float(w.sum()))
    log_w = np.log(w / w.sum())[:, None]
    # Round large counts up, so that few distinct ones are composed.
    most = np.where(i <= 16, i, np.minimum(-(-i // 8) * 8, i[-1])).tolist()
    each = {
        j: rdp_wor_profile(a, rate, noise_multiplier=z / j) for j in set(most)
    }
    found = np.array([each[j] for j in most]) * (a - 1)
    return scipy.special.logsumexp(log_w + found, axis=0) / (a - 1)


def check_history(
    history: History, occurrences: int = 1
) -> dict[tuple[float, float], int]:
    """Check a history and count the steps of each noise and rate."""
    phases: dict[tuple[float, float], int] = {}
    try:
        lines = [(z, q, steps) for z, q, steps in history]
    except (TypeError, ValueError):
        raise TypeError(
            "'history' needs to be a list of (noise_multiplier, q, steps) "
            f'(got {history!r})'
        ) from None
    for z, q, steps in lines:
        key = (check_multiplier(z, occurrences), check_rate('q', q))
        count = _check_int('steps', steps, 0)
        if count:
            phases[key] = phases.get(key, 0) + count
    return phases


def check_group(num_roots: int, occurrences: int) -> tuple[int, int]:
    """Check that a record occurs in at most all units."""
    n = _check_int('num_roots', num_roots, 1)
    k = _check_int('occurrences', occurrences, 1)
    if k > n:
        raise ValueError(
            f"'occurrences' needs to be at most the {n} roots (got {k})"
        )
    return n, k


def check_share(q: float, num_roots: int, name: str = 'q') -> float:
    """Refuse a rate that is no share of whole units."""
    q = check_rate(name, q)
    m = round(q * num_roots)
    if m < 1 or not math.isclose(m / num_roots, q, rel_tol=1e-9):
        raise ValueError(
            f'{name!r} needs to be a number of units over the {num_roots} '
            f'roots (got {q})'
        )
    return q


@lru_cache(maxsize=512)
def _rdp_of_step(q: float, z: float) -> np.ndarray:
    return rdp_wor(ORDERS, q, noise_multiplier=z)


@lru_cache(maxsize=64)
def _drawn(q: float, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    # How many of a record's units are drawn, if any, with probabilities.
    m = round(q * n)
    if k == 1:
        return np.ones(1), np.array([q])
    i = np.arange(max(0, m + k - n), min(m, k) + 1.0)
    up = (k - i) * (m - i) / ((i + 1) * (n - k - m + i + 1))
    log_w = np.concatenate([[0.0], np.cumsum(np.log(up[:-1]))])
    w = np.exp(log_w - scipy.special.logsumexp(log_w))
    return i[i > 0], w[i > 0]


def _spent(
    phases: dict[tuple[float, float], int], delta: float, n: int, k: int
) -> float:
    if all(q == 1 for _, q in phases):
        mu = math.hypot(
            *(k * c**0.5 / (z / 2) for (z, _), c in phases.items())
        )
        return gaussian_epsilon(mu, delta)
    delta = pld.check_least_delta(delta)
    groups = [(z / 2, *_drawn(q, n, k)) for z, q in phases]
    # A fiftieth of a step's loss: its variance grows by less than 1e-4.
    step = min(1e-3, *(w.sum() / lam / 50 for lam, _, w in groups))
    widest = max(_top(*group) for group in groups)
    pair = partial(_pair, n=n, k=k)
    return pld.epsilon(phases, pair, delta, step, widest)


def _top(lam: float, i: np.ndarray, w: np.ndarray) -> float:
    # Above this loss there is less than Phi(-10) < 1e-23 of each weight.
    reach = np.where(w == 1, 10.0, -scipy.special.ndtri(1e-23 / w))
    far = (i / lam * (reach + i / lam / 2))[w > _LEAST].max()
    return float(amplify(np.array(far), min(1.0, float(w.sum()))))


@lru_cache(maxsize=64)
def _pair(z: float, q: float, step: float, n: int, k: int) -> pld.Masses:
    # The masses are those at -count * step, ..., count * step.
    i, w = _drawn(q, n, k)
    lam, q = z / 2, min(1.0, float(w.sum()))
    count = max(1, math.ceil(_top(lam, i, w) / step))
    edge = step * np.arange(count + 1)
    loss = unamplify(edge, q)
    tail_p, tail_q, even = np.zeros_like(loss), np.zeros_like(loss), 0.0
    for j, share in zip(i, w / w.sum(), strict=True):
        mu = j / lam
        tail_p += share * scipy.special.ndtr(-loss / mu + mu / 2)
        tail_q += share * scipy.special.ndtr(-loss / mu - mu / 2)
        even += share * (2 * scipy.special.ndtr(mu / 2) - 1)
    tail_p = q * tail_p + (1 - q) * tail_q
    in_p, in_q = -np.diff(tail_p), -np.diff(tail_q)
    mass = np.zeros(2 * count + 1)
    # Below zero is the mirror image, with P and Q exchanged.
    mass[count:] += pld.connect(edge, in_p, in_q, step)
    back = -edge[::-1], in_q[::-1], in_p[::-1]
    mass[: count + 1] += pld.connect(*back, step)
    mass[0] += tail_q[-1]
    mass[count] += (1 - q) * even
    return pld.Masses(mass, -count, float(tail_p[-1]))


# Searches ####################################################################


def least_noise(
    spent: Callable[[float], float],
    epsilon: float,
    tol: float,
    what: str,
    occurrences: int = 1,
) -> float:
    r"""Search the least noise multiplier within a budget, up to a tolerance.

    ``what`` names the accountant in a message.
    """
    unit = 2 * occurrences
    # The cost of the noise at both ends of the bracket.
    low, high = (0.0, math.inf), (math.inf, 0.0)
    at = 1.0
    while True:
        loss = spent(unit * at)
        if loss > epsilon:
            low = at, loss
            if at > 1e6:
                raise ValueError(
                    f"'epsilon' can't be reached by {what}, however large "
                    f'the noise (got {epsilon})'
                )
        else:
            high = at, loss
        near = max(low[0] * (1 + 1e-9), MIN_NOISE)
        if high[1] >= (1 - tol) * epsilon or high[0] <= near:
            return unit * high[0]
        at = _next_noise(low, high, (1 - tol / 2) * epsilon)


def _next_noise(
    low: tuple[float, float], high: tuple[float, float], goal: float
) -> float:
    # Costs fall about as a power of the noise: a secant of the logarithms.
    # Where one end costs nothing or too much, the middle.
    if not math.isfinite(high[0]):
        return low[0] * min(max(low[1] / goal, 1.1), 4.0)
    if low[0] == 0:
        return max(high[0] * min(max(high[1] / goal, 0.25), 0.9), MIN_NOISE)
    share = 0.5
    if high[1] > 0 and math.isfinite(low[1]):
        share = math.log(low[1] / goal) / math.log(low[1] / high[1])
    return low[0] * (high[0] / low[0]) ** min(max(share, 0.05), 0.95)
