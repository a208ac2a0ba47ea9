"""Sums of clipped gradients in integers, and their release on a grid.

Statements and proofs, with the symbols: ``docs/theory/private_steps.rst``.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    'factors',
    'grid',
    'noise_grid',
    'on_noise_grid',
    'scales',
    'truncated',
]

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
    """Return the grid to which clipped gradients are rounded."""
    return math.ldexp(norm, -GRID_BITS)


def scales(tops: Floats) -> Floats:
    r"""Return :math:`2^{-k_r}` of rows with these largest entries; 0 for 0."""
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

    Symbols are those of the proof, :math:`\kappa` in units of :math:`g'`;
    ``weight`` is the largest :math:`2^{-k_r} |\gamma_r|_\infty`. With
    ``automatic`` short gradients are made longer, to :math:`n / (n + .01)` of
    :math:`C`.
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
    r"""Round a sum in units of :math:`g'` to units of :math:`g`."""
    return np.rint(total.astype(np.float64) * (grid(norm) / step)).astype(
        np.int64
    )
