"""Shifted Gaussian noise: the privacy loss of a residual.

``docs/theory/certified_removal.rst`` has the proof.
"""

import math
from collections.abc import Callable

import scipy

from pyg_trust._checks import (
    Count,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    validated,
)

__all__ = ['gaussian_budget', 'grid_shift', 'largest_weights', 'shift_epsilon']

# Beyond this shift, noise gives no privacy.
_LARGEST_SHIFT = 20.0


def _profile_above(epsilon: float, m: float) -> float:
    # The profile is a difference of two numbers of the size of the first,
    # each of which rounds by what its argument does, times that argument.
    # Arguments were checked: this is what a search spends its time with.
    t = epsilon / m
    high = float(scipy.special.log_ndtr(m / 2 - t))
    low = epsilon + float(scipy.special.log_ndtr(-m / 2 - t))
    first = math.exp(high)
    hidden = 2**-50 * (1 + t * t) * first
    return hidden - first * math.expm1(min(low - high, 0.0))


@validated
def gaussian_budget(epsilon: Positive, delta: Fraction) -> float:
    r"""Return the largest sensitivity-to-noise ratio of a release.

    It is the largest :math:`m` (sensitivity over standard deviation) at which
    the Gaussian mechanism is (epsilon, delta)-private,

    .. math::
        \Phi(\tfrac{m}{2} - \tfrac{\varepsilon}{m}) - e^\varepsilon\,
        \Phi(-\tfrac{m}{2} - \tfrac{\varepsilon}{m}) \le \delta

    (`Balle and Wang 2018 <https://arxiv.org/abs/1805.06530>`_, Theorem 8),
    rounded down; at most 20.

    Args:
        epsilon (float): positive, in nats.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> round(gaussian_budget(1.0, 1e-4), 4)
        0.3139
    """
    # The profile is at most m / sqrt(2 pi).
    low = min(delta, _LARGEST_SHIFT / 2)
    high = 2 * low
    while _profile_above(epsilon, high) <= delta:
        low, high = high, 2 * high
        if high > _LARGEST_SHIFT:
            return low
    return _last(lambda m: _profile_above(epsilon, m) <= delta, low, high)


def _last(holds: Callable[[float], bool], yes: float, no: float) -> float:
    # Bisect to the last float at which it holds, from one at which it does.
    for _ in range(200):
        middle = (yes + no) / 2
        if middle in (yes, no):
            break
        yes, no = (middle, no) if holds(middle) else (yes, middle)
    return yes


@validated
def shift_epsilon(m: NotNegative, delta: Fraction) -> float:
    r"""Bound the epsilon of Gaussian noise from above, at a given delta.

    It is the smallest :math:`\varepsilon \ge 0` at which noise that is shifted
    by :math:`m` is (epsilon, delta)-indistinguishable.

    Args:
        m (float): the norm of the shift over the standard deviation of the
            noise, non-negative.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> round(shift_epsilon(0.3139, 1e-4), 3), shift_epsilon(1e-5, 1e-4)
        (1.0, 0.0)
    """
    if m / math.sqrt(2 * math.pi) <= delta:
        return 0.0
    # Here the first term alone is below delta.
    high = m * math.sqrt(2 * math.log(1 / delta)) + m * m / 2
    if m > _LARGEST_SHIFT:
        return high
    if _profile_above(0.0, m) <= delta:
        return 0.0
    return _last(lambda e: _profile_above(e, m) <= delta, high, 0.0)


@validated
def largest_weights(outputs: Count, lam: Positive) -> float:
    r"""Bound :math:`\lVert W^* \rVert_F` independently of the data.

    :math:`\frac{\lambda n}{2} \lVert W^* \rVert^2 \le L(W^*) \le L(0)`, which
    is :math:`n \log 2` for every output.
    """
    return math.sqrt(2 * outputs * math.log(2) / lam) * (1 + 2**-40)


@validated
def grid_shift(count: Natural, size: NotNegative, std: Positive) -> float:
    r"""Bound the shift over the noise that the grid of a release adds.

    A release is :math:`g (k + N)` with :math:`g = 2^{-32} s`, :math:`k =
    \operatorname{rint}(W / g)` and exact noise :math:`N`: that of :math:`W`
    moved by at most :math:`\sqrt{p}\, g / 2 + 2 u \lVert W \rVert_F`.
    """
    moved = math.sqrt(count) * 2**-33 + 2**-52 * size / std
    return moved * (1 + 2**-40)
