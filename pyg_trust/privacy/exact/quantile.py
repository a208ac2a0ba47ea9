"""A private quantile: the exponential mechanism in integers.

Statement and proof: ``docs/theory/private_steps.rst``.
"""

import math
from collections.abc import Callable
from itertools import accumulate

import numpy as np

__all__ = ['candidates', 'pick', 'quantile', 'weights']

Bytes = Callable[[int], bytes]
CANDIDATES = 256
_BITS = 32


def candidates(low: float, high: float) -> np.ndarray:
    """Return the numbers that may be answered, evenly spaced by logarithm."""
    return np.geomspace(low, high, CANDIDATES)


def weights(
    values: np.ndarray,
    share: float,
    epsilon: float,
    answers: np.ndarray,
    sensitivity: int,
) -> list[int]:
    """Return integers in proportion to the probabilities of candidates."""
    n = values.size
    step = epsilon / (2 * sensitivity)
    # Up: by more than the exponential of a float is off.
    ratio = math.exp(-step) * (1 + 2.0**-48)
    a = max(1, min(math.ceil(ratio * 2**_BITS), 2**_BITS))
    most = min(n, math.ceil(64 / step))
    rank = round(share * n)
    below = np.searchsorted(np.sort(values), answers, side='left')
    cost = [min(abs(int(count) - rank), most) for count in below]
    powers = {c: a**c << _BITS * (most - c) for c in {*cost}}
    return [powers[c] for c in cost]


def pick(weights: list[int], source: Bytes) -> int:
    """Draw a place in proportion to its weight, exactly."""
    total = sum(weights)
    size = (total.bit_length() + 7) // 8
    spare = 8 * size - total.bit_length()
    while True:
        drawn = int.from_bytes(source(size), 'little') >> spare
        if drawn < total:
            break
    return next(j for j, s in enumerate(accumulate(weights)) if drawn < s)


def quantile(
    values: np.ndarray,
    share: float,
    epsilon: float,
    low: float,
    high: float,
    sensitivity: int,
    source: Bytes,
) -> float:
    """Return a candidate near the quantile."""
    answers = candidates(low, high)
    made = weights(values, share, epsilon, answers, sensitivity)
    return float(answers[pick(made, source)])
