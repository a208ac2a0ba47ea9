r"""Accounting of Gaussian releases: one number, :math:`\mu`, for all of them.

Releases add up in squares (`Dong, Roth and Su 2022, Corollary 3.3
<https://arxiv.org/abs/1905.02383>`_).
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from pyg_trust._checks import Fraction, NotNegative, Positive, validated

__all__ = ['gaussian_epsilon', 'gaussian_mu_for']

# Below this the first tail is so near to 1 that no ratio is needed.
_DIRECT = -20.0
# Below this a difference is computed as an integral with these points.
_CLOSE = 1e-2
_NODES, _SHARES = np.polynomial.legendre.leggauss(8)
_NODES, _SHARES = (_NODES + 1) / 2, _SHARES / 2
_ROUNDS = 200
# A bound of the rounding of logarithms.
_ROUNDED = 1e-13


@validated
def gaussian_epsilon(mu: NotNegative, delta: Fraction) -> float:
    r"""Compute :math:`\epsilon` of a Gaussian release, exactly.

    The formula is Theorem 8 of `Balle and Wang 2018
    <https://arxiv.org/abs/1805.06530>`_. The result is rounded up.

    Args:
        mu (float): the sensitivity over the standard deviation of the noise; 0
            is a release that reveals nothing.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 6)
        4.377178
    """
    if mu == 0 or _log_delta(0.0, mu) <= math.log(delta) - _ROUNDED:
        return 0.0
    # A loss is N(mu^2 / 2, mu^2), so this leaves less than delta.
    high = mu * mu / 2 + mu * (math.sqrt(-2 * math.log(delta)) + 1)
    _, found = _bisect(
        lambda epsilon: _log_delta(epsilon, mu) > math.log(delta), 0.0, high
    )
    return found + _ROUNDED * (5 * found + delta)


@validated
def gaussian_mu_for(epsilon: Positive, delta: Fraction) -> float:
    r"""Return the largest :math:`\mu` of a Gaussian release within a budget.

    :math:`\mu` is the sensitivity over the standard deviation of the noise.
    This is the inverse of :func:`gaussian_epsilon`, rounded down.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> mu = gaussian_mu_for(8.0, 1e-5)
        >>> gaussian_epsilon(mu, 1e-5) <= 8.0
        True
    """
    limit = math.log(delta)
    high = 1.0
    while _log_delta(epsilon, high) <= limit:
        high *= 2
    low, _ = _bisect(
        lambda mu: mu == 0 or _log_delta(epsilon, mu) <= limit, 0.0, high
    )
    return low * (1 - 1e-12)


def _log_delta(epsilon: float, mu: float) -> float:
    # The logarithm of delta at an epsilon from 0 up, which is phi(t) (R(t) -
    # R(t + mu)) with Mills' ratio R = (1 - Phi) / phi: nothing cancels.
    t = epsilon / mu - mu / 2
    if t < _DIRECT:
        taken = epsilon + float(scipy.special.log_ndtr(-t - mu))
        kept = float(scipy.special.log_ndtr(-t))
        return kept + math.log(-math.expm1(min(taken - kept, -5e-324)))
    root = math.sqrt(2)
    # sqrt(pi / 2) erfcx(t / sqrt(2)) is Mills' ratio.
    if mu < _CLOSE:
        # Nearly equal terms: the integral of -R'(s) = 1 - s R(s).
        s = t + mu * _NODES
        slope = 1 - s * math.sqrt(math.pi / 2) * scipy.special.erfcx(s / root)
        apart = mu * float(_SHARES @ slope) / math.sqrt(2 * math.pi)
    else:
        one, two = scipy.special.erfcx((np.array([t, t + mu])) / root)
        apart = float(one - two) / 2
    return -t * t / 2 + (math.log(apart) if apart > 0 else -math.inf)


def _bisect(
    below: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    # The last number of which a condition holds, and the next.
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-13 * high:
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high
