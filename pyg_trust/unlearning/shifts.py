r"""Shifted Gaussian noise: the privacy loss of a residual.

The objective :math:`L_b` is that of
:func:`~pyg_trust.unlearning.newton.minimize`.

**The certificate** (``noise='output'``). Minimise with :math:`b = 0`, keep the
result secret, and release it with *fresh* Gaussian noise, :math:`W + s\, \Xi`,
:math:`\Xi \sim \mathcal{N}(0, I)`. Let :math:`W^*` be the exact minimiser on
the remaining data :math:`D'`. As :math:`L` is :math:`\lambda n`-strongly
convex and :math:`\nabla L(W^*, D') = 0`,

.. math::
    \lambda n \lVert W - W^* \rVert_F^2 \le \langle \nabla L(W, D') -
    \nabla L(W^*, D'), W - W^* \rangle \quad \Rightarrow \quad
    \lVert W - W^* \rVert_F \le \frac{\lVert \nabla L(W, D') \rVert_F}
    {\lambda n} \le \frac{\beta}{\lambda n} = \Delta .

On the grid of a release rounding adds a little (:func:`grid_shift`), and no
bit of it tells anything else.

So the release is that of retraining exactly, :math:`W^* + s\, \Xi`, shifted by
at most :math:`\Delta`, and the two are :math:`(\varepsilon,
\delta)`-indistinguishable, both ways, with the profile of the Gaussian
mechanism at :math:`m = \Delta / s` (:func:`shift_epsilon`;
:func:`gaussian_budget` is the largest such :math:`m`). The shift does not
depend on :math:`\Xi`, so any :math:`\varepsilon > 0` will do; all classes are
one vector, with ONE budget (the paper's code gives each its own). Releases
compose to :math:`\sqrt{\sum_j m_j^2}` (``together`` in
:mod:`pyg_trust.verify.removal`), also when a request was chosen by looking at
earlier releases: given those, the next
is again a shift, of at most :math:`\Delta_j`, of what exact retraining would
release under the same transcript.

**Objective perturbation** (of
:mod:`pyg_trust.unlearning.baselines`, for comparison): :math:`b` is drawn
once, kept secret, and the release is the approximate minimiser itself. `Guo et
al. 2020 <https://arxiv.org/abs/1911.03030>`_, Theorem 3: if :math:`\lVert
\nabla L_b(W', D') \rVert_F` is at most :func:`removal_budget`, the release is
:math:`(\varepsilon, \delta)`-indistinguishable from the exact minimiser. *It
does not hold in general.* The release is the exact minimiser for the noise
:math:`T(b) = b - u(b)`, whose residual :math:`u` depends on :math:`b`. The
proof compares densities as if :math:`u` were fixed, and leaves out the
Jacobian of :math:`T`. With one feature, two points of which one is removed,
and a promised :math:`(1, 10^{-4})`, one Newton step has :math:`\delta = 0.069`
(``tests/unlearning/test_shifts.py`` computes it).
"""

import math
import sys

import scipy

from pyg_trust._checks import (
    Count,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Rate,
    check_choice,
    validated,
)

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
def removal_budget(
    epsilon: Rate, delta: Fraction, noise_std: NotNegative
) -> float:
    r"""Return the largest residual by Theorem 3 of Guo et al., which may fail.

    For objective perturbation; see the text of this module.

    .. math::
        \sigma \varepsilon / \sqrt{2 \log(1.5 / \delta)}

    Args:
        epsilon (float): in :math:`(0, 1]`: the proof is that of the classical
            Gaussian mechanism, which does not hold beyond.
        delta (float): in :math:`(0, 1)`.
        noise_std (float): the standard deviation :math:`\sigma` of
            :math:`b`, at least 0.
    """
    return noise_std * epsilon / math.sqrt(2 * math.log(1.5 / delta))


@validated
def gaussian_budget(epsilon: Positive, delta: Fraction) -> float:
    r"""Return the largest shift over noise that is certified for a release.

    The largest :math:`m` with

    .. math::
        \Phi(\tfrac{m}{2} - \tfrac{\varepsilon}{m}) - e^\varepsilon\,
        \Phi(-\tfrac{m}{2} - \tfrac{\varepsilon}{m}) \le \delta,

    the exact profile of the Gaussian mechanism (`Balle and Wang 2018
    <https://arxiv.org/abs/1805.06530>`_, Theorem 8), from below; at most 20.

    Args:
        epsilon (float): positive.
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
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _profile_above(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


@validated
def shift_epsilon(m: NotNegative, delta: Fraction) -> float:
    r"""Bound from above the :math:`\varepsilon` of noise under a shift.

    The smallest :math:`\varepsilon \ge 0` at which the profile of
    :func:`gaussian_budget` is at most :math:`\delta`.

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
    # At `high` the first term alone is below delta.
    low, high = 0.0, m * math.sqrt(2 * math.log(1 / delta)) + m * m / 2
    if m > _LARGEST_SHIFT:
        return high
    if _profile_above(0.0, m) <= delta:
        return 0.0

    def beyond(epsilon: float) -> float:
        # A logarithm, which secants follow well.
        return math.log(max(_profile_above(epsilon, m), least) / delta)

    least = sys.float_info.min
    above, below, last = beyond(low), min(beyond(high), 0.0), 0
    for _ in range(200):
        # Return the upper end, correct to twelve digits.
        if high - low <= 2**-40 * high:
            break
        # The rule of Illinois: an end that stays counts half. The smallest
        # move closes the gap where a secant has found the zero.
        middle = low + (high - low) * above / ((above - below) or 1.0)
        room = 2**-42 * high
        middle = min(max(middle, low + room), high - room)
        value = beyond(middle)
        if value <= 0:
            high, below = middle, value
            above /= 1 + (last < 0)
            last = -1
        else:
            low, above = middle, value
            below /= 1 + (last > 0)
            last = 1
    return high


@validated
def largest_weights(outputs: Count, lam: Positive, loss: str) -> float:
    r"""Bound :math:`\lVert W^* \rVert_F` independently of the data.

    :math:`\frac{\lambda n}{2} \lVert W^* \rVert^2 \le L(W^*) \le L(0)`, which
    is :math:`n \log 2` for every output of a logistic loss, :math:`n` of a
    squared one, and :math:`n \log` of their number for ``'softmax'``.
    """
    at_zero = {
        'logistic': outputs * math.log(2),
        'squared': float(outputs),
        'softmax': math.log(outputs),
    }
    check_choice('loss', loss, at_zero)
    return math.sqrt(2 * at_zero[loss] / lam) * (1 + 2**-40)


@validated
def grid_shift(count: Natural, size: NotNegative, std: Positive) -> float:
    r"""Bound the shift over the noise that the grid of a release adds.

    A release is :math:`g (k + N)` with :math:`g = 2^{-32} s`, :math:`k =
    \operatorname{rint}(W / g)` and the exact noise :math:`N` of
    :mod:`pyg_trust.verify.noise`: that of :math:`W` moved by at most
    :math:`\sqrt{p}\, g / 2 + 2 u \lVert W \rVert_F`
    (:mod:`pyg_trust.verify.release`).

    Args:
        count (int): the number :math:`p` of weights.
        size (float): a bound of :math:`\lVert W \rVert_F`, as
            :func:`largest_weights` gives it.
        std (float): the standard deviation :math:`s` of the noise.
    """
    moved = math.sqrt(count) * 2**-33 + 2**-52 * size / std
    return moved * (1 + 2**-40)
