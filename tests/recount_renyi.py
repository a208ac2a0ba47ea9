r"""Rényi divergences once more, by sums that are not of this package.

What :mod:`pyg_trust.privacy` has in closed forms and recursions is
integrated here from the definition. dp-accounting of Google makes epsilon of
the divergences, and says what a choice among runs costs.
"""

import math
from collections.abc import Sequence

import numpy as np

Lines = Sequence[tuple[float, float, int]]

# Orders above 1, denser than those that reports were made with.
_ORDERS = np.concatenate(
    [1 + np.geomspace(0.05, 10, 240), np.geomspace(11.1, 1100, 200)]
)
_POINTS = 20_001


def fdp_again(
    lines: Lines, batch_size: int, terms: int, delta: float
) -> float:
    r""":math:`\epsilon` of steps that draw ego graphs of bounded degree.

    Args:
        lines (sequence): of :obj:`(noise_multiplier, rate, steps)`.
        batch_size (int): how many ego graphs a step draws.
        terms (int): in how many of them a row can be.
        delta (float): in :math:`(0, 1)`.

    Raises:
        ImportError: without dp-accounting.
    """
    return _epsilon(_fdp(lines, batch_size, terms), delta)


def select_again(
    mechanism: str,
    lines: Lines,
    pure: float,
    law: tuple[float, float],
    delta: float,
    *,
    form: str = 'replace',
    batch_size: int = 0,
    terms: int = 1,
) -> float:
    r""":math:`\epsilon` of the best of a random number of runs.

    Args:
        mechanism (str): the accountant of a run.
        lines (sequence): of :obj:`(noise_multiplier, rate, steps)`.
        pure (float): what is :math:`\epsilon`-DP beside.
        law (tuple[float, float]): the expected number of runs, and the shape
            of its distribution.
        delta (float): in :math:`(0, 1)`.
        form (str): ``'replace'`` or ``'withdraw'``, of coins.
            (default: :obj:`'replace'`)
        batch_size (int): as in :func:`fdp_again`. (default: :obj:`0`)
        terms (int): the same. (default: :obj:`1`)

    Raises:
        ImportError: without dp-accounting, or with one that has no such
            choice.
    """
    try:
        from dp_accounting.rdp.rdp_privacy_accountant import (
            _compute_rdp_repeat_and_select,
        )
    except ImportError:
        raise ImportError('dp-accounting') from None
    if mechanism == 'rdp_fdp':
        rdp = _fdp(lines, batch_size, terms)
    elif mechanism == 'pld_poisson':
        rdp = sum((n * _coins(z, q, form) for z, q, n in lines), _NOTHING)
    else:
        rdp = sum((n * _drawn(z / 2, q) for z, q, n in lines), _NOTHING)
    rdp = rdp + np.minimum(pure, _ORDERS * pure**2 / 2)
    mean, shape = law
    if mean > 1:
        rdp = _compute_rdp_repeat_and_select(_ORDERS, rdp, mean, shape)
    return _epsilon(rdp, delta)


_NOTHING = np.zeros_like(_ORDERS)


def _epsilon(rdp: np.ndarray, delta: float) -> float:
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(_ORDERS, rdp, delta)[0])


def _fdp(lines: Lines, batch_size: int, terms: int) -> np.ndarray:
    # Of the drawn graphs a hypergeometric number has the row, each of which
    # moves by at most 2 C. Given the number k, a Gaussian is shifted by
    # 2 C k; exp((a - 1) D_a) of a mixture is at most the mean of these.
    from scipy.stats import hypergeom

    total = _NOTHING
    for z, rate, steps in lines:
        k = np.arange(min(batch_size, terms) + 1)
        mass = hypergeom.logpmf(k, round(batch_size / rate), terms, batch_size)
        shift = (2 * k / z) ** 2 / 2
        log = mass + np.multiply.outer(_ORDERS * (_ORDERS - 1), shift)
        total = total + steps * _log_sum(log) / (_ORDERS - 1)
    return total


def _drawn(lam: float, q: float) -> np.ndarray:
    # A step without replacement has the profile h(g) = q d(1 + (g - 1) / q)
    # for g >= 1, d that of a Gaussian with noise lam, and is symmetric. With
    # E_g the hockey stick, sum f(dP/dQ) dQ = int f''(g) E_g dg, so that
    # exp((a - 1) D_a) = 1 + a (a - 1) int_1^oo (g^(a-2) + g^(-a-1)) h(g) dg.
    from scipy.stats import norm

    top = _tail(lam)
    # log g, densest where a typical loss is.
    s = np.linspace(0, 1, _POINTS)
    t = top * s**3
    inner = np.log1p(np.expm1(np.minimum(t, 1)) / q)
    far = t > 1
    inner[far] = t[far] - math.log(q) + np.log1p((q - 1) * np.exp(-t[far]))
    x = inner * lam
    first = norm.logcdf(0.5 / lam - x)
    second = inner + norm.logcdf(-0.5 / lam - x)
    with np.errstate(divide='ignore', invalid='ignore'):
        profile = np.log(q) + first + np.log(-np.expm1(second - first))
    profile = np.where(np.isfinite(profile), profile, -np.inf)
    with np.errstate(divide='ignore'):
        weight = np.log(_simpson(s) * 3 * top * s**2)
    a = _ORDERS[:, None]
    log = np.logaddexp((a - 1) * t, -a * t) + profile + weight
    moment = np.log(_ORDERS * (_ORDERS - 1)) + _log_sum(log)
    return np.logaddexp(0, moment) / (_ORDERS - 1)


def _tail(lam: float) -> float:
    # The loss of a Gaussian, far beyond where the highest order looks.
    return (_ORDERS[-1] + 40 * lam + 1) / lam**2


def _coins(z: float, q: float, form: str) -> np.ndarray:
    # P and Q: each unit's coin moves the sum to one side, or to the other,
    # by z-ths of the noise; the worse direction of the two.
    reach = 2 * _ORDERS[-1] / z + 40
    x = np.linspace(-reach, reach, 4 * _POINTS - 3)
    weight = np.log(_simpson(x))

    def density(shift: float) -> np.ndarray:
        base = -(x**2) / 2 - math.log(2 * math.pi) / 2
        if shift == 0 or q == 0:
            return base
        moved = -((x - shift / z) ** 2) / 2 - math.log(2 * math.pi) / 2
        if q == 1:
            return moved
        return np.logaddexp(math.log1p(-q) + base, math.log(q) + moved)

    one, other = density(1), density(-1 if form == 'replace' else 0)
    found = []
    for p, r in ((one, other), (other, one)):
        values = [_log_sum(a * p + (1 - a) * r + weight) for a in _ORDERS]
        found.append(np.maximum(np.array(values), 0) / (_ORDERS - 1))
    return np.maximum(*found)


def _simpson(x: np.ndarray) -> np.ndarray:
    weight = np.full(x.size, 2.0)
    weight[1::2] = 4
    weight[[0, -1]] = 1
    return weight * (x[1] - x[0]) / 3


def _log_sum(log: np.ndarray) -> np.ndarray:
    # scipy's logsumexp is what the package itself takes.
    top = log.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide='ignore'):
        return np.log(np.exp(log - top).sum(-1)) + top[..., 0]
