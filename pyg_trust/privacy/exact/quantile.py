r"""A private quantile: the exponential mechanism in integers.

**Statement.** Let two lists of :math:`n` numbers differ in at most :math:`k`
of them. Then for every candidate :math:`r` the probabilities that
:func:`quantile` returns :math:`r` differ by a factor of at most
:math:`e^\epsilon`.

**Proof.** There are 256 candidates :math:`r_j`, which do not depend on the
numbers. With the rank :math:`t = \lfloor p n \rceil` that is asked for,

.. math::
    c_j = \min\{ |\#\{i : v_i < r_j\} - t|, m \}, \qquad
    w_j = a^{c_j}\, 2^{32 (m - c_j)}, \qquad
    2^{32} e^{-\epsilon / 2k} \le a \le 2^{32} ,

are integers, and :math:`r_j` is drawn with the probability :math:`w_j / \sum_i
w_i`, exactly. :math:`k` replaced numbers move a count by at most :math:`k`,
and :math:`|\cdot|` and :math:`\min` move no more than what they are of; so
:math:`w_j` changes by a factor of at most :math:`(2^{32} / a)^k \le
e^{\epsilon / 2}`, and so does the sum. (McSherry and Talwar 2007; in integers
as by Ilvento 2020, https://arxiv.org/abs/1912.04222.)

*The draw.* A uniform integer of enough bits is taken if it is below the sum,
else another: all integers below the sum are equally likely. The first
candidate whose sum of weights up to it exceeds the integer is returned.

:math:`m` is public. It bounds how long the integers get, where weights are
below :math:`e^{-64}` of the largest.
"""

import math
from collections.abc import Callable
from itertools import accumulate

import numpy as np

Bytes = Callable[[int], bytes]
CANDIDATES = 256
_BITS = 32


def candidates(low: float, high: float) -> np.ndarray:
    """Return the public answers: even steps of the logarithm, both ends."""
    return np.geomspace(low, high, CANDIDATES)


def weights(
    values: np.ndarray,
    share: float,
    epsilon: float,
    answers: np.ndarray,
    sensitivity: int,
) -> list[int]:
    r"""Return :math:`w_j` of every candidate.

    Args:
        values (ndarray): float64: the private numbers, none of them NaN.
        share (float): :math:`p`, in (0, 1).
        epsilon (float): positive.
        answers (ndarray): the result of :func:`candidates`.
        sensitivity (int): :math:`k`.
    """
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
    """Draw a place in proportion to its weight, exactly.

    Args:
        weights (list[int]): not negative, not all 0.
        source (callable): maps a number to so many random bytes.
    """
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
