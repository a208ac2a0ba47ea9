"""Privacy loss distributions on a grid, and their composition.

Independent steps are composed by convolution of the masses of their losses.
Grids are those that :mod:`pyg_trust.verify` recounts in integers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from pyg_trust.privacy.mechanisms import check_delta

MIN_DELTA = 1e-10

_TAIL = 1e-15
_ROUNDING = 1e-13
# Up to so many steps are composed on the whole of their support.
_FEW = 8
_MAX_CELLS = 2**21
# A share of delta: proofs in integers have coarser cells than accounts.
_ROOM = 2e-4


class Masses(NamedTuple):
    """Pessimistic masses of a loss at ``first * step, ...``, and above all."""

    mass: np.ndarray
    first: int
    infinite: float


Phases = Mapping[tuple[float, float], int]
Pair = Callable[[float, float, float], Masses]


def check_least_delta(delta: Any) -> float:
    """Refuse a delta below what the rounding of float64 allows."""
    delta = check_delta(delta)
    if delta < MIN_DELTA:
        raise ValueError(
            f"'delta' needs to be at least {MIN_DELTA:g}, as losses are "
            f"composed in float64; 'rdp_wor' has no such limit (got {delta})"
        )
    return delta


def connect(
    edge: np.ndarray, in_p: np.ndarray, in_q: np.ndarray, width: float
) -> np.ndarray:
    r"""Move the masses of cells to their ends, pessimistically.

    The masses under :math:`P` and :math:`Q` are kept, which interpolates the
    profile linearly in :math:`e^\epsilon`: a chord of a convex function lies
    above it (`Doroshenko et al. 2022 <https://arxiv.org/abs/2207.04380>`_).
    """
    lower = in_q * np.exp(edge[1:]) - in_p
    lower = np.clip(lower / math.expm1(width), 0, in_p)
    mass = np.zeros(len(edge))
    mass[:-1] += lower
    mass[1:] += in_p - lower
    return mass


def epsilon(
    phases: Phases, pair: Pair, delta: float, step: float, widest: float
) -> float:
    r"""Compute :math:`\epsilon` of many steps.

    Two parts in ten thousand of :obj:`delta` are left out, so that
    :mod:`pyg_trust.verify` can prove the result in integers.
    """
    mass, low, step, infinite = compose(phases, pair, step, widest)
    delta *= 1 - _ROOM
    # delta at the grid points, from the top down: with A_k the mass above
    # point k, D_(k-1) = e^-h D_k + (1 - e^-h) A_(k-1). Nothing cancels.
    above = np.cumsum(mass[::-1])[:-1]
    decay = math.exp(-step)
    from scipy.signal import lfilter  # slow to import

    profile = lfilter([-math.expm1(-step)], [1, -decay], above)
    profile = infinite + np.concatenate([[0.0], profile])[::-1]
    if not profile[-1] <= delta:
        return math.inf
    index = int(np.argmax(profile <= delta))
    if index == 0:
        return max(0.0, low * step)
    # Between two points the profile is linear in e^epsilon.
    share = (profile[index - 1] - delta) / (
        profile[index - 1] - profile[index]
    )
    start = (low + index - 1) * step
    return max(0.0, start + math.log1p(share * math.expm1(step)))


def compose(
    phases: Phases, pair: Pair, step: float, widest: float
) -> tuple[np.ndarray, int, float, float]:
    """Convolve the masses of all steps by FFT.

    Outside of the window is :obj:`1e-15` at most, by Chernoff's bound, which
    counts as infinite loss. Returned are the masses, the index of the first,
    the grid and the infinite mass.
    """
    step = max(step, 4 * widest / _MAX_CELLS)
    while True:
        pairs = [(pair(*key, step), n) for key, n in phases.items()]
        low, high = _window(pairs, step)
        if high - low < _MAX_CELLS:
            break
        step *= 1.1 * (high - low) / _MAX_CELLS
    size = scipy.fft.next_fast_len(high - low + 1, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    survive = 0.0
    for masses, count in pairs:
        folded = np.zeros(size)
        np.add.at(folded, _places(masses) % size, masses.mass)
        # Rounding must not take away mass at every step.
        once = scipy.fft.rfft(folded)
        spectrum *= (once / once[0].real) ** count
        survive += count * math.log1p(-masses.infinite)
    composed = np.roll(scipy.fft.irfft(spectrum, size), -(low % size))
    steps = sum(phases.values())
    infinite = -math.expm1(survive) + _TAIL + _ROUNDING * (1 + steps / 200)
    return np.maximum(composed, 0), low, step, infinite


def _places(masses: Masses) -> np.ndarray:
    return masses.first + np.arange(len(masses.mass))


def _window(pairs: list[tuple[Masses, int]], step: float) -> tuple[int, int]:
    # Indices outside of which a side has less than the tail mass. Of few
    # steps these are all, which is faster than to bound their tails.
    cost = -math.log(_TAIL)
    rates = 2.0 ** np.arange(-24, 17)
    up = np.full_like(rates, cost)
    down = np.full_like(rates, cost)
    ends = [(_places(masses)[[0, -1]], count) for masses, count in pairs]
    least, most = (int(sum(n * end[i] for end, n in ends)) for i in (0, 1))
    if sum(n for _, n in pairs) <= _FEW and most - least < _MAX_CELLS:
        return least, most
    for masses, count in pairs:
        places = _places(masses)
        loss = step * places
        with np.errstate(divide='ignore'):
            log_mass = np.log(masses.mass)
        up += count * np.array(
            [_logsumexp(log_mass + s * loss) for s in rates]
        )
        down += count * np.array(
            [_logsumexp(log_mass - s * loss) for s in rates]
        )
    high = min(most, math.ceil((up / rates).min() / step))
    low = max(least, -math.ceil((down / rates).min() / step))
    return low, high


def _logsumexp(values: np.ndarray) -> float:
    # A third of the time of scipy's, which takes more than real numbers.
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
