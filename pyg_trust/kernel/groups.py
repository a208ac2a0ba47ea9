r"""Epsilon where a record is in several units of a step, proved in integers.

A record is in at most :math:`k` of the units (ego graphs), of which
:math:`\rho` are drawn in a step, :math:`w_i = P(\rho = i)`. Each clipped
gradient is in a ball of radius 1, the noise has the deviation :math:`z`, the
record is replaced. All else is that of ``kernel.accounting``: its grid, its
brackets, its masses.

**Coins** (each unit at the rate :math:`q`, so :math:`w_i = \binom{k}{i} q^i
(1-q)^{k-i}`). The pair :math:`P = \sum_i w_i N(i, z^2)`, :math:`Q = \sum_i
w_i N(-i, z^2)` dominates (``functional.poisson`` has the proof, for every law
of :math:`\rho` that the other units do not depend on). Its loss grows with
the output :math:`x`. For :math:`t` with the loss :math:`\log \gamma`

.. math::
    F = \sum_i w_i \left[\Phi_c\left(\frac{t - i}{z}\right)
    - \gamma\, \Phi_c\left(\frac{t + i}{z}\right)\right],          \tag{1}

and with :math:`u = e^{t / z^2}`, :math:`\kappa = e^{-1 / 2 z^2}` such a
:math:`t` is where :math:`g(u) = \sum_i w_i \kappa^{i^2} (u^i - \gamma
u^{-i})` is zero. :math:`g` grows: below a number where it is negative and
above one where it is positive there is no root. So the root is guessed, and
the bracket is proved by two signs. Weights below :math:`2^{-112}` are left
out of both sums and added to the upper end of :math:`F` and of its slope:
:math:`F` grows by their sum at most.

**Without replacement** (:math:`m = q N` of :math:`N` units, :math:`w`
hypergeometric). With :math:`q_1 = 1 - w_0` and :math:`\gamma' = 1 + q_1
(\gamma - 1) \ge 1`

.. math::
    F(\gamma') \le \sum_{i \ge 1} w_i\, \delta_i(\gamma),           \tag{2}

:math:`\delta_i` that of Gaussians :math:`2i` apart, and the relation is
symmetric (Balle, Barthe, Gaboardi 2018, Theorem 2, with the common part 'none
is drawn': both conditional pairs move :math:`\rho` gradients by 2 each;
``functional.accounting`` has the proof). The right side is the average, with
the weights :math:`w_i / q_1`, of (1) of ``kernel.accounting`` at the rate
:math:`q_1` and the noise :math:`z / 2i`. What is judged is this bound: it is
attained for :math:`k = 1`.

The pair of (1) with hypergeometric weights is no bound: the others that are
drawn are :math:`m - \rho`, and tell of :math:`\rho`. Hence there are two laws
here, and the weights are no argument.
"""

import math
from fractions import Fraction
from functools import lru_cache

from . import accounting as a
from . import intervals as v

LEAST = Fraction(1, 1 << 112)  # weights that are added at the end
MOST = 64  # weights of a law: more take minutes
LARGEST = 1024  # units of a record
C = v.B + 128  # bits of g
ALIKE = C - v.B + v.P  # makes v.product one of C bits
NEAR = 1 << C - 190  # half of the bracket of log u
Weights = dict[int, Fraction]
Terms = list[tuple[int, v.Bracket]]


@lru_cache(maxsize=64)
def binomial(q: Fraction, k: int) -> tuple[Weights, Fraction]:
    """The weights of coins, and the sum of all that are left out."""
    n, d = q.numerator, q.denominator
    every = {
        i: Fraction(math.comb(k, i) * n**i * (d - n) ** (k - i), d**k)
        for i in range(k + 1)
    }
    kept = {i: w for i, w in every.items() if w >= LEAST}
    return kept, 1 - sum(kept.values(), Fraction(0))


@lru_cache(maxsize=64)
def hypergeometric(m: int, n: int, k: int) -> tuple[Weights, Fraction]:
    """The same of ``m`` of ``n`` units, ``k`` of them the record's, but 0."""
    every = {
        i: Fraction(math.comb(m, i) * math.comb(n - m, k - i), math.comb(n, k))
        for i in range(max(0, m + k - n), min(m, k) + 1)
    }
    kept = {i: w for i, w in every.items() if w >= LEAST and i}
    return kept, 1 - sum(kept.values(), every.get(0, Fraction(0)))


@lru_cache(maxsize=64)
def heights(q: Fraction, z: Fraction, k: int) -> Terms:
    """``w_i kappa^(i^2)`` of the weights that are kept."""
    found = []
    for i, w in binomial(q, k)[0].items():
        lo, hi = v.fixed(-(i**2) / (2 * z**2), C)
        found.append((i, v.times((v.exp(lo, C, C)[0], v.exp(hi, C, C)[1]), w)))
    return found


def balance(y: int, gamma: v.Bracket, terms: Terms) -> tuple[v.Bracket, int]:
    """The bracket of ``g(e^y)``, ``y`` in 2^-C; and nearly its slope."""
    sums, slope = [], 0
    for one, scale in ((v.exp(y, C, C), 1 << C), (v.exp(-y, C, C), gamma[0])):
        total, power, at = (0, 0), (1 << C, 1 << C), 0
        for i, height in terms:
            for _ in range(i - at):
                power = v.product(power, one, ALIKE)
            at, part = i, v.product(power, height, ALIKE)
            total, slope = v.plus(total, part), slope + i * part[0] * scale
        sums.append(total)
    return v.minus(sums[0], v.product(sums[1], gamma, ALIKE)), slope >> C


def guess(epsilon: float, q: Fraction, z: Fraction, k: int) -> float:
    """``t / z^2`` nearly: nothing rests on it."""
    terms = [
        (i, math.log(w.numerator) - math.log(w.denominator) - i * i / 2 / z**2)
        for i, w in binomial(q, k)[0].items()
    ]
    low, high = 0.0, (epsilon - float(terms[-1][1])) / terms[-1][0]
    y = high / 2
    for _ in range(99):
        loss, slope = epsilon, 0.0
        for side in (1, -1):
            each = [(i, float(x) + side * i * y) for i, x in terms]
            top = max(x for _, x in each)
            part = [(i, math.exp(x - top)) for i, x in each]
            total = sum(x for _, x in part)
            loss -= side * (top + math.log(total))
            slope += sum(i * x for i, x in part) / total
        low, high = (y, high) if loss >= 0 else (low, y)
        y, old = y + loss / slope, y
        y = y if low <= y <= high else (low + high) / 2
        if abs(y - old) <= 1e-15 * y:
            break
    return y


def coins(k: int) -> a.Law:
    """F of (1), and its slope, of ``k`` units of a record."""

    def law(num: int, b: int, q: Fraction, z: Fraction) -> a.Point:
        (weights, rest), terms = binomial(q, k), heights(q, z, k)
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
        at = v.times((low, high), z)
        at = at[0] >> C - v.B, v.up(at[1], 1 << C - v.B)
        gamma = gamma[0] >> C - v.B, v.up(gamma[1], 1 << C - v.B)
        p = v.P + 8 + max(0, gamma[1].bit_length() - v.B)
        above = below = (0, 0)
        for i, w in weights.items():
            s = v.fixed(i / z, v.B)
            above = v.plus(above, v.times(v.between(v.minus(at, s), p), w))
            below = v.plus(below, v.times(v.between(v.plus(at, s), p), w))
        more = v.fixed(rest, p)[1]
        below = below[0], below[1] + more
        took = v.product(gamma, below, p)
        above, below = v.coarser(above, p), v.coarser(below, p)
        lo, hi = v.minus(above, took)
        # What is left out of P is in no set, or in every one.
        return (max(0, lo), hi + v.up(more, 1 << p - v.P)), below

    return law


def without_replacement(n: int, k: int) -> a.Law:
    """The bound (2), and its slope, of ``n`` units, ``k`` the record's."""

    def law(num: int, b: int, q: Fraction, z: Fraction) -> a.Point:
        weights, rest = hypergeometric(int(q * n), n, k)
        rate = sum(weights.values(), rest)
        value = slope = (0, 0)
        for i, w in weights.items():
            f, s = a.withdrawn(num, b, rate, z / (2 * i))
            value = v.plus(value, v.times(f, w / rate))
            slope = v.plus(slope, v.times(s, w / rate))
        more = v.fixed(rest / rate, v.P)[1]
        return (value[0], value[1] + more), (slope[0], slope[1] + more)

    return law


def judge_group(
    lines: a.Lines, epsilon: float, delta: float, k: int, m: int | None = None
) -> str:
    """Prove or refute an epsilon of steps where a record is in several units.

    Args:
        lines (sequence): of ``(z, q, steps)``.
        epsilon (float): claimed.
        delta (float): claimed.
        k (int): units of a record, at most.
        m (int, optional): how many units a step draws without replacement,
            out of ``m / q``; None for coins. (default: :obj:`None`)
    """
    exact = [(Fraction(z), Fraction(q), int(c)) for z, q, c in lines if c]
    claim, goal = Fraction(epsilon), Fraction(delta)
    if not (claim >= 0 and 0 < goal < 1):
        return a.FAILS
    if not 1 <= k <= LARGEST or any(z < Fraction(k, 10) for z, *_ in exact):
        return a.NOT_PROVED
    if all(q == 1 for _, q, _ in exact):
        mu2 = sum((c * (2 * k / z) ** 2 for z, _, c in exact), Fraction(0))
        return a.judge_mu(mu2, epsilon, delta)
    rates = {q for _, q, _ in exact}
    if m is None:
        law, kept = coins(k), [binomial(q, k)[0] for q in rates]
    else:
        sizes = {m / q for q in rates - {1}}
        n = int(max(sizes))
        if sizes != {n} or k > n:
            return a.NOT_PROVED
        law, kept = without_replacement(n, k), [hypergeometric(m, n, k)[0]]
    if max(map(len, kept)) > MOST:
        return a.NOT_PROVED
    return a.settled((law,), exact, claim, goal)
