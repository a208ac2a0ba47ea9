"""Epsilon where a record is in several units of a step, proved in integers.

For Poisson sampling and for batches without replacement each, a pair of
mixtures dominates a step in which a record is in up to k units; its profile is
bracketed as in ``accounting``.
See docs/theory/proofs.rst.
"""

import math
from fractions import Fraction
from functools import lru_cache

from . import accounting as a
from . import intervals as v

LEAST = Fraction(1, 1 << 112)  # weights that are added at the end
MOST = 64  # weights of a law; more take minutes
LARGEST = 1024  # units of a record
C = v.B + 128  # bits of g
NEAR = 1 << C - 190  # half of the bracket of log u
Weights = dict[int, Fraction]
Terms = list[tuple[int, v.Bracket]]


@lru_cache(maxsize=64)
def binomial(q: Fraction, k: int) -> tuple[Weights, Fraction]:
    """Return binomial weights, and the sum of the omitted ones."""
    n, d = q.numerator, q.denominator
    every = {
        i: Fraction(math.comb(k, i) * n**i * (d - n) ** (k - i), d**k)
        for i in range(k + 1)
    }
    kept = {i: w for i, w in every.items() if w >= LEAST}
    return kept, 1 - sum(kept.values(), Fraction(0))


@lru_cache(maxsize=64)
def hypergeometric(m: int, n: int, k: int) -> tuple[Weights, Fraction]:
    """Return hypergeometric weights: ``k`` of ``n``, ``m`` drawn; not of 0."""
    every = {
        i: Fraction(math.comb(m, i) * math.comb(n - m, k - i), math.comb(n, k))
        for i in range(max(0, m + k - n), min(m, k) + 1)
    }
    kept = {i: w for i, w in every.items() if w >= LEAST and i}
    return kept, 1 - sum(kept.values(), every.get(0, Fraction(0)))


@lru_cache(maxsize=64)
def heights(q: Fraction, z: Fraction, k: int) -> Terms:
    """Bracket ``w_i kappa^(i^2)`` of the weights that are kept."""
    found = []
    for i, w in binomial(q, k)[0].items():
        power = v.rising(v.exp, v.fixed(-(i**2) / (2 * z**2), C), C)
        found.append((i, v.times(power, w)))
    return found


def balance(y: int, gamma: v.Bracket, terms: Terms) -> tuple[v.Bracket, int]:
    """Bracket ``g(e^y)``, ``y`` in 2^-C, and estimate its slope."""
    sums, slope = [], 0
    for one, scale in ((v.exp(y, C, C), 1 << C), (v.exp(-y, C, C), gamma[0])):
        total, power, at = (0, 0), (1 << C, 1 << C), 0
        for i, height in terms:
            for _ in range(i - at):
                power = v.product(power, one, C)
            at, part = i, v.product(power, height, C)
            total, slope = v.plus(total, part), slope + i * part[0] * scale
        sums.append(total)
    return v.minus(sums[0], v.product(sums[1], gamma, C)), slope >> C


def guess(epsilon: float, q: Fraction, z: Fraction, k: int) -> float:
    """Estimate ``t / z^2``; no proof rests on it."""
    terms = [
        (i, math.log(w.numerator) - math.log(w.denominator) - i * i / 2 / z**2)
        for i, w in binomial(q, k)[0].items()
    ]
    low, high = 0.0, (epsilon - float(terms[-1][1])) / terms[-1][0]
    for _ in range(40):
        y, loss = (low + high) / 2, 0.0
        for side in (1, -1):
            each = [float(x) + side * i * y for i, x in terms]
            top = max(each)
            total = sum(math.exp(x - top) for x in each)
            loss += side * (top + math.log(total))
        low, high = (y, high) if loss < epsilon else (low, y)
    return high


def measured(weights: Weights, k: int, z: Fraction) -> None:
    """Check that one point of a law takes less than minutes."""
    if len(weights) > MOST or z * 10 < k:
        raise OverflowError('the law is too wide, or the noise too little')


def coins(k: int) -> a.Law:
    """Make the law of (1): F and its fall for ``k`` units of a record."""

    def law(num: int, b: int, q: Fraction, z: Fraction) -> a.Point:
        weights, rest = binomial(q, k)
        measured(weights, k, z)
        terms = heights(q, z, k)
        gamma = v.exp(num, b, C)
        y = int(guess(num / (1 << b), q, z, k) * (1 << 60)) << C - 60
        for _ in range(4):
            found, slope = balance(y, gamma, terms)
            y -= (found[0] << C) // max(1, slope)
        low, high = y - NEAR, y + NEAR
        if (
            balance(low, gamma, terms)[0][1] >= 0
            or balance(high, gamma, terms)[0][0] <= 0
        ):
            return (0, v.ONE), (0, v.ONE)
        x, gamma = v.times((low, high), z), v.coarser(gamma, C - v.B)
        (low, high), (less, most) = a.profile(
            *(v.coarser(x, C - v.B), gamma, v.fixed(1 / z, v.B)),
            (weights, {-i: w for i, w in weights.items()}),
        )
        # Outcomes that are left out of P and Q belong to no set, or to every
        # set.
        more = v.fixed(rest, v.P)[1]
        low -= v.product(gamma, (0, more), v.B)[1]
        return (low, high + more), (less, most + more)

    return law


def without_replacement(m: int, k: int) -> a.Law:
    """Make the law of (2): its bound for ``m`` units, ``k`` the record's."""

    def law(num: int, b: int, q: Fraction, z: Fraction) -> a.Point:
        n = m / q
        if n.denominator > 1 or n < k:
            raise OverflowError('the rate is no share of units')
        weights, rest = hypergeometric(m, int(n), k)
        measured(weights, k, z)
        rate = sum(weights.values(), rest)
        value = fall = (0, 0)
        for i, w in weights.items():
            f, s = a.withdrawn(num, b, rate, z / (2 * i))
            value = v.plus(value, v.times(f, w / rate))
            fall = v.plus(fall, v.times(s, w / rate))
        more = v.fixed(rest / rate, v.P)[1]
        return (value[0], value[1] + more), (fall[0], fall[1] + more)

    return law


def judge_group(
    lines: a.Lines, epsilon: a.Real, delta: float, k: int, m: int | None = None
) -> str:
    """Prove or refute an epsilon of steps where a record is in several units.

    Args:
        lines (sequence): of ``(z, q, steps)``.
        epsilon (float or Fraction): claimed.
        delta (float): claimed.
        k (int): units of a record, at most.
        m (int, optional): how many units a step draws without replacement,
            out of ``m / q``; None for Poisson sampling. (default: :obj:`None`)
    """
    if not 1 <= k <= LARGEST:
        return a.NOT_PROVED
    law = coins(k) if m is None else without_replacement(m, k)
    return a.settled((law,), lines, 2 * k, epsilon, delta)
