r"""Sums of clipped gradients in integers, and their release on a grid.

**Statement.** Unit :math:`i` has the gradient :math:`\sum_r \gamma_r
a_r^\top` (rows :math:`r`; :math:`\gamma_r` by the outputs, :math:`a_r` the
inputs of a linear map), given as floats. What a unit adds to a sum is a matrix
of integers, a function of its own floats alone, and times the grid
:math:`g' = 2^{-43} C` it is at most :math:`C` long. Sums of integers don't
depend on order, threads or processes. Neighbours that differ in one unit
therefore differ by at most :math:`2C` (one replaced) or :math:`C` (one more).

**What is added.** :math:`\sum_r \alpha_r a'^\top_r` with

.. math::
    a'_r = \mathrm{rint}(2^{k_r} a_r), \quad \max |a'_r| \in [2^{21},
    2^{22}], \qquad
    \alpha_r = \mathrm{rint}\!\left(\frac{c\, \gamma_r}{2^{k_r} g'}\right),

and :math:`c = \max(0, \min(1, (C - \kappa) / (n + \tau), \text{cap}))`, where
:math:`n` is at least the norm of the gradient, :math:`|\cdot|` are upper
bounds of norms, and the sums are over the unit's rows with :math:`\gamma_r
\ne 0`,

.. math::
    \kappa = g' \sum_r \left(.51 \sqrt{out}\, 2^{k_r} |a_r| + \tfrac{1}{3}
    \sqrt{out \cdot in}\right), \qquad
    \tau = \tfrac{1}{2} \sqrt{in} \sum_r 2^{-k_r} |\gamma_r|, \qquad
    \text{cap} = \frac{2^{22} g'}{\max_r 2^{-k_r} |\gamma_r|_\infty}.

**Proof of the length.** :math:`\alpha_r = c \gamma_r / (2^{k_r} g') + e`
and :math:`a'_r = 2^{k_r} a_r + f`, entries of :math:`f` at most 1/2, those of
:math:`e` at most :math:`1/2 + 2^{-27}` (numbers up to :math:`2^{22}` are
computed to :math:`2^{-50}` of themselves). So :math:`g' \alpha a'^\top - c
\gamma a^\top = c\, 2^{-k} \gamma f^\top + g' e (2^k a + f)^\top`, of which the
first is at most :math:`c\, 2^{-k} |\gamma| \sqrt{in} / 2` long and the second
:math:`g' (1/2 + 2^{-27}) \sqrt{out}\, (2^k |a| + \sqrt{in} / 2)`. The sum over
rows is at most :math:`c\, \tau + \kappa`, hence what is added at most :math:`c
(n + \tau) + \kappa \le C`. The last digits of :math:`c` itself are given away:
it is multiplied by :math:`1 - 2^{-40}`.

**Proof of exactness.** By the cap :math:`|\alpha| \le 2^{22}`, so that a
product is at most :math:`2^{44}` and 256 of them at most :math:`2^{52}`:
float64 adds them without error in any order, with or without fused
multiply-adds. Blocks are added in int64, modulo :math:`2^{64}`: partial sums
may wrap, the total of :math:`m \le 2^{18}` units is below :math:`m\, 2^{43}`.

A row of a bias is rounded to :math:`\mathrm{rint}(c\, \gamma / g')`:
:math:`\kappa = .51 \sqrt{out}\, g'` a row, :math:`\tau = 0` and the cap
:math:`2^{44} g' / |\gamma|_\infty`. A gradient that is there as such is
truncated toward zero, and gets no longer: :math:`\kappa = \tau = 0`.

**Release.** :math:`k = \mathrm{rint}(\text{total} \cdot g' / g)` on the grid
:math:`g = 2^{-32} \sigma` plus independent integers :math:`N` (``noise.py``),
which together are a rounding of the ideal Gaussian mechanism. With :math:`m /
z \le 2^{18}`, :math:`|k| \le 2^{50}` and :math:`k` is off by less than 1, so
that neighbours are at most :math:`2 \sqrt{d}\, g` further apart. With
:math:`\sigma = z C (1 + \rho)` that is :math:`a (1 + \rho)\, C`, :math:`a =
\sqrt{d}\, z\, 2^{-31}`, and paid if it is at most :math:`\rho\, C`: with
:math:`s = 1.001\, a < 1/2` and :math:`\rho = s / (1 - s)` the account keeps
:math:`z`.
For norms from :math:`2^{-200}` to :math:`2^{200}` and gradients below
:math:`2^{800}` all factors have 53 bits; others count as not finite.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Bits of the grid of sums below C, and of the inputs of linear maps.
GRID_BITS, INPUT_BITS = 43, 22
#: So many rows are added up in float64 without error.
BLOCK = 256
#: The most units of a sum, and the most units over the noise multiplier.
MOST_UNITS = 2**18
#: Rows with larger numbers count as not finite; smaller ones lose digits.
HUGE, TINY = 2.0**400, 2.0**-300
NORMS = 2.0**-200, 2.0**200  #: clipping norms are between these
_NOISE_BITS = 32


def grid(norm: float) -> float:
    """Return the grid :math:`g'` of sums."""
    return math.ldexp(norm, -GRID_BITS)


def scales(tops: Floats) -> Floats:
    r"""Return :math:`2^{-k_r}` of each row; 0 for rows of zeros.

    Args:
        tops (ndarray): the largest absolute entry of each row, which
            :math:`2^{k_r}` scales into :math:`[2^{21}, 2^{22}]`.
    """
    exponents = np.frexp(np.clip(tops, TINY, HUGE))[1] - INPUT_BITS
    return np.where(tops > 0, np.ldexp(1.0, exponents), 0.0)


def factors(
    n: Floats,
    tau: Floats,
    kappa: Floats,
    weight: Floats,
    norm: float,
    automatic: bool = False,
) -> Floats:
    r"""Compute the factors :math:`c` of units; zero if bounds are not finite.

    Args:
        n (ndarray): upper bounds of the norms of their gradients.
        tau (ndarray): as above.
        kappa (ndarray): as above, in units of :math:`g'`.
        weight (ndarray): :math:`2^{22}` over the cap, in units of
            :math:`1 / g'`: the largest :math:`2^{-k_r} |\gamma_r|_\infty`.
        norm (float): :math:`C`.
        automatic (bool): whether short gradients are made longer, to
            :math:`n / (n + .01)` of :math:`C`. (default: :obj:`False`)
    """
    step = grid(norm)
    most = np.maximum(np.maximum(n, tau), weight)
    with np.errstate(all='ignore'):
        room = norm - step * kappa
        c = room / (n + tau + (0.01 if automatic else 0.0))
        c = np.where(room > 0, c, 0.0)
        c = np.minimum(c, math.ldexp(step, INPUT_BITS) / weight)
    if not automatic:
        c = np.minimum(c, 1.0)
    # NaN is not less than anything.
    return np.where(most < HUGE * HUGE, c * (1 - 2.0**-40), 0.0)


def truncated(gradient: Floats, c: float, norm: float) -> Integers:
    r"""Scale a gradient and round it toward zero to units of :math:`g'`."""
    return np.trunc(gradient * (c / grid(norm))).astype(np.int64)


def noise_grid(
    multiplier: float, norm: float, count: int
) -> tuple[float, float]:
    r"""Return the grid :math:`g` of a release, and :math:`\rho`.

    The standard deviation is :math:`2^{32} g`.
    """
    share = 1.001 * math.sqrt(count) * math.ldexp(multiplier, 1 - _NOISE_BITS)
    if not (share < 0.5 and NORMS[0] <= norm <= NORMS[1]):
        raise ValueError(
            f"'multiplier' {multiplier:g} is too large for {count} numbers on "
            f"a grid, or 'norm' {norm:g} is out of [2**-200, 2**200]"
        )
    rho = share / (1 - share)
    # Products are rounded to the nearest: a bit more than that, upwards.
    sigma = multiplier * norm * (1 + rho) * (1 + 2.0**-50)
    return math.ldexp(sigma, -_NOISE_BITS), rho


def on_noise_grid(total: Integers, norm: float, step: float) -> Integers:
    r"""Round a sum in units of :math:`g'` to units of :math:`g`.

    Args:
        total (ndarray): int64.
        norm (float): :math:`C`.
        step (float): :math:`g`.
    """
    return np.rint(total.astype(np.float64) * (grid(norm) / step)).astype(
        np.int64
    )
