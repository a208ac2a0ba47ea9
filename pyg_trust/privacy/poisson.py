"""Accounts of Poisson sampling, where each unit is drawn independently.

The pairs of distributions that dominate a step, and the proof, are in the
documentation, "Private training".
"""

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy

from pyg_trust._checks import (
    Count,
    Finite,
    Positive,
    Rate,
    check_choice,
    check_integer,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.privacy import pld
from pyg_trust.privacy.accounting import History, check_history
from pyg_trust.privacy.mechanisms import Orders, check_multiplier, check_orders

__all__ = ['poisson_epsilon', 'poisson_profile', 'rdp_poisson']

# The last is what ledgers call 'add_remove'.
FORMS = ('replace', 'add_remove', 'withdraw')
# The width of a grid in deviations of the noise: less than 1e-23 is outside.
_REACH = 10
# A weight that is counted as an infinite loss.
_LEAST = 1e-22


@renamed(form='neighboring')
@validated
def poisson_profile(
    epsilon: Finite,
    q: Rate,
    noise_multiplier: Positive,
    neighboring: str = 'replace',
    *,
    occurrences: Count = 1,
) -> float:
    r"""Compute :math:`\delta(\epsilon)` of one step, exactly.

    Args:
        epsilon (float): any finite number.
        q (float): the sampling rate.
        noise_multiplier (float): :math:`z = \sigma / C`.
        neighboring (str): how neighbours differ. :obj:`'replace'`: one
            subgraph is exchanged for any other; :obj:`'add_remove'`: one is
            added or removed, the worse of the two. (default: :obj:`'replace'`)
        occurrences (int): :math:`k`, in how many subgraphs a record is at
            most; more than one for 'replace' alone. (default: :obj:`1`)

    Example:
        >>> poisson_profile(1.0, 0.1, 1.0) < poisson_profile(1.0, 1.0, 1.0)
        True
    """
    k = check_occurrences(occurrences, neighboring)
    z = check_multiplier(noise_multiplier, k)
    delta = 0.0
    for direction in _directions(neighboring):
        x = _outcome(np.array([epsilon]), q, z, direction, k)[0]
        p, r, lost = _pair(q, direction, k)
        above = _tail(x, z, p), _tail(x, z, r)
        delta = max(delta, above[0] - math.exp(epsilon) * above[1] + lost)
    return float(min(1.0, max(0.0, -math.expm1(epsilon), delta)))


@renamed(form='neighboring')
def poisson_epsilon(
    history: History,
    delta: float,
    neighboring: str = 'replace',
    *,
    occurrences: int = 1,
) -> float:
    r"""Compute an upper bound of :math:`\epsilon` for Poisson sampling.

    Args:
        history (iterable): of :obj:`(noise_multiplier, sample_rate, steps)`,
            with the noise multiplier :math:`\sigma / C`. Write a Gaussian
            release of sensitivity :math:`\Delta` and noise :math:`s` (standard
            deviation) as :obj:`(z, 1, 1)`: :math:`z = s / \Delta` for
            'add_remove', :math:`z = 2 k s / \Delta` for 'replace'.
        delta (float): in :math:`[10^{-10}, 1)`.
        neighboring (str): how neighbours differ. :obj:`'replace'`: one
            subgraph is exchanged for another; :obj:`'add_remove'`: one is
            added or removed. (default: :obj:`'replace'`)
        occurrences (int): the most subgraphs :math:`k` that share one record,
            such as a node; above 1 for 'replace' alone. (default: :obj:`1`)

    Example:
        >>> history = [(2.0, 0.05, 100)]  # sigma / C, rate, steps
        >>> 0 < poisson_epsilon(history, 1e-5) < 2.1
        True
        >>> history = [(8.2, 0.05, 100)]  # a record in five units
        >>> 2.4 < poisson_epsilon(history, 1e-5, occurrences=5) < 2.5
        True
    """
    k = check_occurrences(occurrences, neighboring)
    delta = pld.check_least_delta(delta)
    phases = check_history(history, k)
    if not phases:
        return 0.0
    step = min(1e-3, *(k * q / z / 50 for z, q in phases))

    def found(step: float) -> float:
        return max(
            pld.epsilon(
                phases,
                partial(_masses, direction=direction, k=k),
                delta,
                step,
                max(_ends(q, z, direction, k)[1] for z, q in phases),
            )
            for direction in _directions(neighboring)
        )

    # Losses are rounded up, by a cell at most in each step. A thousandth in
    # all is little of an epsilon above 1, and much faster for few steps.
    coarse = 1e-3 / sum(phases.values())
    if coarse > 2 * step:
        epsilon = found(coarse)
        if epsilon >= 1:
            return epsilon
    return found(step)


@renamed(form='neighboring')
@validated
def rdp_poisson(
    orders: Orders,
    q: Rate,
    noise_multiplier: Positive,
    neighboring: str = 'replace',
    *,
    occurrences: Count = 1,
) -> np.ndarray:
    r"""Compute Rényi DP of a step: the divergence of the pair, by quadrature.

    At the orders :math:`a > 1`; arguments as of :func:`poisson_profile`.
    """
    a, k = check_orders(orders), check_occurrences(occurrences, neighboring)
    z = check_multiplier(noise_multiplier, k)
    node, weight = np.polynomial.legendre.leggauss(16)
    divergences = np.zeros(len(a))
    for direction in _directions(neighboring):
        p, r, _ = _pair(q, direction, k, 0.0)
        for i, order in enumerate(a):
            # The integrand is a sum of Gaussians around at most 2ak.
            reach = 2 * order * k + 14 * z
            pieces = math.ceil(2 * reach / z)
            width = 2 * reach / pieces
            total = -np.inf
            for first in range(0, pieces, 4096):
                part = np.arange(first, min(pieces, first + 4096))
                x = width * (part[:, None] + (node + 1) / 2) - reach
                log_term = order * _log_density(x, z, p)
                log_term += (1 - order) * _log_density(x, z, r)
                some = scipy.special.logsumexp(
                    log_term, b=np.broadcast_to(weight, x.shape)
                )
                total = np.logaddexp(total, some)
            divergences[i] = max(divergences[i], total + math.log(width / 2))
    return np.maximum(divergences, 0) / (a - 1)


def check_occurrences(occurrences: Any, neighboring: str = 'replace') -> int:
    """Check that a record is in one unit, unless replacing allows several."""
    check_choice('neighboring', neighboring, FORMS)
    k = check_integer('occurrences', occurrences, 1, numpy=True)
    if k > 1 and neighboring != 'replace':
        raise ValueError(
            f"'occurrences' needs to be 1 for {neighboring!r}: a record that "
            f'is removed changes all {k} gradients (got {k})'
        )
    return k


# A direction is where the unit's Gaussian is under P and under Q: +1, -1, or
# None for a unit that is not there. Losses increase with the outcome.
_Direction = tuple[int | None, int | None]
# A mixture of Gaussians: their weights and means.
_Mixture = tuple[np.ndarray, np.ndarray]


def _directions(neighboring: str) -> tuple[_Direction, ...]:
    if neighboring == 'replace':
        # Its own mirror image.
        return ((1, -1),)
    return ((1, None), (None, -1))


@lru_cache(maxsize=64)
def _pair(
    q: float, direction: _Direction, k: int, least: float = _LEAST
) -> tuple[_Mixture, _Mixture, float]:
    # P and Q, and the weight of all that is lighter than the least: left out
    # of both, it is at most what H grows by (joint convexity).
    i = np.arange(k + 1.0)
    log_w = (
        -scipy.special.betaln(k - i + 1, i + 1)
        - math.log(k + 1)
        + scipy.special.xlogy(i, q)
        + scipy.special.xlog1py(k - i, -q)
    )
    w = np.exp(log_w - scipy.special.logsumexp(log_w))
    keep = w > least
    lost = float(w[~keep].sum())
    p, r = ((w[keep], (side or 0) * i[keep]) for side in direction)
    return p, r, lost


def _log_density(x: np.ndarray, z: float, mixture: _Mixture) -> np.ndarray:
    base = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))
    return base + _log_ratio(x, z, mixture)[0]


def _log_ratio(
    x: np.ndarray, z: float, mixture: _Mixture
) -> tuple[np.ndarray, np.ndarray]:
    # The log ratio of a mixture to N(0, z^2), and its derivative.
    w, at = (part.reshape(-1, *[1] * x.ndim) for part in mixture)
    exponent = np.log(w) + at * (2 * x - at) / (2 * z**2)
    top = exponent.max(axis=0)
    part = np.exp(exponent - top)
    total = part.sum(axis=0)
    return top + np.log(total), (at * part).sum(axis=0) / total / z**2


def _tail(x: Any, z: float, mixture: _Mixture) -> Any:
    found = 0.0
    for w, at in zip(*mixture, strict=True):
        found = found + w * scipy.special.ndtr((at - x) / z)
    return found


def _loss(
    x: np.ndarray, q: float, z: float, direction: _Direction, k: int
) -> tuple[np.ndarray, np.ndarray]:
    # The log ratio of both mixtures, and its derivative.
    p, r, _ = _pair(q, direction, k)
    (one, up), (two, down) = _log_ratio(x, z, p), _log_ratio(x, z, r)
    return one - two, up - down


def _outcome(
    loss: np.ndarray, q: float, z: float, direction: _Direction, k: int
) -> np.ndarray:
    # The outcome at which the loss has a value; infinite if none has.
    size = np.abs(loss)
    if k > 1:
        return np.sign(loss) * _group_outcome(size, q, z, k)
    if direction == (1, -1):
        # u = e^(x / z^2) solves q k u^2 - (1-q)(e^l - 1) u - q k e^l = 0.
        log_k = -1 / (2 * z**2)
        half = -(1 - q) * np.expm1(-size) / 2
        root = np.hypot(half, q * np.exp(log_k - size / 2))
        log_u = size + np.log(half + root) - math.log(q) - log_k
        return np.sign(loss) * z**2 * log_u
    sign = 1 if direction[1] is None else -1
    with np.errstate(divide='ignore', invalid='ignore'):
        inner = (np.expm1(sign * loss) + q) / q
        x = z**2 * np.log(np.maximum(inner, 0)) + 0.5
    return sign * x


def _group_outcome(size: np.ndarray, q: float, z: float, k: int) -> np.ndarray:
    # The loss grows, and is at least that of the last Gaussian alone against
    # one: Newton's steps from a table, halving where they leave the bracket.
    (w, at), _, _ = _pair(q, (1, -1), k)
    far = z**2 * (size.max() - math.log(w[-1])) / at[-1] + at[-1] / 2
    table = np.linspace(0.0, max(far, z), 2048)
    known = _loss(table, q, z, (1, -1), k)[0]
    place = np.searchsorted(known, size).clip(1, len(table) - 1)
    low, high = table[place - 1], table[place]
    x = np.interp(size, known, table)
    for _ in range(60):
        value, slope = _loss(x, q, z, (1, -1), k)
        gap = size - value
        if np.all(np.abs(gap) <= 1e-14 + 1e-13 * size):
            break
        low, high = np.where(gap >= 0, x, low), np.where(gap <= 0, x, high)
        step = x + gap / slope
        x = np.where((low < step) & (step < high), step, (low + high) / 2)
    return x


def _ends(
    q: float, z: float, direction: _Direction, k: int
) -> tuple[float, float]:
    (_, at), _, _ = _pair(q, (1, -1), k)
    reach = at[-1] + _REACH * z
    x = np.array([-reach, reach])
    low, high = _loss(x, q, z, direction, k)[0]
    return float(low), float(high)


@lru_cache(maxsize=64)
def _masses(
    z: float, q: float, step: float, direction: _Direction, k: int = 1
) -> pld.Masses:
    # The pessimistic masses of one step and that of an infinite loss.
    low, high = _ends(q, z, direction, k)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))
    edge = step * np.arange(first, last + 1)
    x = _outcome(edge, q, z, direction, k)
    p, r, lost = _pair(q, direction, k)
    inside = []
    for w, at in (p, r):
        # Take differences on the side of the tail, where they do not cancel.
        above = -np.diff(_tail(x, z, (w, at)))
        below = np.diff(_tail(-x, z, (w, -at)))
        inside.append(np.where(x[:-1] > 0, above, below))
    mass = pld.connect(edge, inside[0], inside[1], float(edge[1] - edge[0]))
    mass[0] += _tail(-x[0], z, (p[0], -p[1]))
    return pld.Masses(mass, first, float(_tail(x[-1], z, p)) + lost)
