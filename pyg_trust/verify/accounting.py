"""Epsilon of private training, proved in integers.

A step is bounded by chords of its privacy profile; steps are composed on
levels of cells, every mass rounded up. From below, tangents refute an epsilon.
See docs/theory/proofs.rst.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from . import intervals as v
from .intervals import ONE, B, Bracket, P

HOLDS, FAILS, NOT_PROVED = 'holds', 'FAILS', 'not proved'

Real = float | Fraction
# (z, q, steps): noise over clipping norm, rate, a whole number.
Lines = Sequence[tuple[Real, Real, int]]
Point = tuple[Bracket, Bracket]  # F, and Q(loss > eps), its fall
# A point of a line: index, gamma, value, fall to the point on its right.
Kink = tuple[int, Bracket, int, Bracket]
# A name, or F and its fall at an epsilon >= 0 of a symmetric relation.
Law = str | Callable[[int, int, Fraction, Fraction], Point]
Pair = tuple[dict[int, Fraction], dict[int, Fraction]]

CELLS = (256, 1024, 2048)  # r: coarse ones settle most claims
WIDTH = 92  # digits of a sum of products of masses
LARGEST = 10_000  # epsilon: e^epsilon has so many bits, and half again
LEAST = Fraction(1, 8)  # noise on coins, of which e^(1 / z^2) has as many
LOWEST, WIDEST = 1 << 6, 1 << 10  # losses; wider ones take minutes
MOST = 1 << 40  # steps of a kind
_LONG = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])


def profile(
    x: Bracket, gamma: Bracket, s: Bracket, pair: Pair, c: int = B, p: int = P
) -> Point:
    """Bracket F and its fall at one loss, for a pair of Gaussian mixtures.

    ``pair`` has the weights of P and Q by the mean, in units of ``s``; the
    loss at ``x`` is ``log gamma``. All three have ``c`` bits.
    """
    more = 8 + max(0, gamma[1].bit_length() - c)
    tails = {
        i: v.between(v.minus(x, v.times(s, Fraction(i))), p + more, c)
        for i in {*pair[0], *pair[1]}
    }
    above, below = (
        reduce(v.plus, (v.times(tails[i], w) for i, w in each.items()))
        for each in pair
    )
    took = v.product(gamma, below, c + more)
    return v.minus(v.coarser(above, more), took), v.coarser(below, more)


def withdrawn(num: int, b: int, q: Fraction, z: Fraction) -> Point:
    """Bracket F and its fall against nobody, at epsilon ``num 2^-b``."""
    g, one = v.exp(num, b, B), (1 << B, 1 << B)
    w = v.plus(one, v.times(v.minus(g, one), 1 / q))
    if w[1] <= 0:
        return v.minus((ONE, ONE), v.coarser(g, B - P)), (ONE, ONE)
    if w[0] <= 0:
        return (0, ONE), (0, ONE)
    s = v.fixed(1 / z, B)
    x = v.plus(v.times(v.rising(v.log, w, B), z), v.times(s, Fraction(1, 2)))
    return profile(x, g, s, ({0: 1 - q, 1: q}, {0: Fraction(1)}))


def replaced(num: int, b: int, q: Fraction, z: Fraction) -> Point:
    """Bracket F and its fall against any other unit, at ``num 2^-b``."""
    if z < LEAST:
        raise OverflowError('the noise is too little to be measured')
    g = v.exp(num, b, B)
    k = v.rising(v.exp, v.fixed(1 / (2 * z**2), B), B)
    grown = max(0, g[0] - (1 << B)), g[1] - (1 << B)
    lo, hi = v.times(v.product(grown, k, B), (1 - q) / (2 * q))
    root = math.isqrt(lo**2 + (g[0] << B)), math.isqrt(hi**2 + (g[1] << B)) + 1
    x = v.times(v.rising(v.log, v.plus((lo, hi), root), B), z)
    pair = {0: 1 - q, 1: q}, {0: 1 - q, -1: q}
    return profile(x, g, v.fixed(1 / z, B), pair)


def exchanged(at: Point, num: int, b: int) -> Point:
    """Bracket F and its fall of the exchanged pair; ``at`` is for -num."""
    (f, fall), g, one = at, v.exp(num, b, B), (ONE, ONE)
    value = v.minus(v.plus(one, v.product(g, f, B)), v.coarser(g, B - P))
    less = v.product(v.exp(-num, b, B), fall, B)
    return value, v.minus(v.minus(one, f), less)


def points(
    law: Law, nums: Sequence[int], b: int, q: Fraction, z: Fraction
) -> list[Point]:
    """Bracket F and its fall of one step, at the epsilons ``num 2^-b``."""
    half = replaced if law == 'replace' else withdrawn
    one, z = law if callable(law) else half, z / 2 if law == 'wor' else z
    symmetric = law not in ('withdraw', 'exchanged')
    swap = {n: n < 0 if symmetric else law == 'exchanged' for n in nums}
    at = {m: one(m, b, q, z) for m in {-n if swap[n] else n for n in nums}}
    return [exchanged(at[-n], n, b) if swap[n] else at[n] for n in nums]


class Losses(NamedTuple):
    """Masses of privacy losses; level k has ``2 r + 1`` cells of 2^(k-b)."""

    b: int
    levels: list[list[int]]
    infinite: int


def chosen(
    law: Law, q: Fraction, z: Fraction, r: int, cut: int
) -> tuple[int, list[int]]:
    """Choose cells of level 0 and points, from the right; any are sound."""
    near = points(law, [0], 0, q, z)[0][0][1]
    b = min(P // 2, P - near.bit_length() + r.bit_length() - 4)
    sides = []
    for sign, widest in ((1, WIDEST), (-1, LOWEST)):
        side, k = list(range(r + 1)), 0
        while side[-1] >> b < widest:
            at = sign * side[-1]
            f = points(law, [at], b, q, z)[0][0][1]
            if f - (ONE - v.exp(at, b, P)[1] if sign < 0 else 0) <= cut:
                break
            k += 1
            side += range((r // 2 + 1) << k, (r << k) + 1, 1 << k)
        sides.append([sign * j for j in side])
    return b, sides[0][:0:-1] + sides[1]


def placed(
    masses: Iterable[tuple[int, int]], b: int, r: int, infinite: int
) -> Losses:
    """Put masses at points into the cells of levels."""
    levels = [[0] * (2 * r + 1)]
    for j, mass in masses:
        k = max(0, (abs(j) - 1).bit_length() - r.bit_length() + 1)
        levels += [[0] * (2 * r + 1) for _ in range(k + 1 - len(levels))]
        levels[k][r + (j >> k)] += mass
    return Losses(b, levels, infinite)


def linked(line: Sequence[Kink], j: int, gamma: Bracket, at: int) -> Kink:
    """Make the next point of a line, to the left, with its fall in 2^-2P."""
    if not line:
        return j, gamma, at, (0, 0)
    _, (lo, hi), before, _ = line[-1]
    rise = (at - before) << 2 * P
    return j, gamma, at, (rise // (hi - gamma[0]), v.up(rise, lo - gamma[1]))


def kinks(line: Sequence[Kink], rounding: int) -> Iterator[tuple[int, int]]:
    """Yield masses at the points of a line, from the right, but the last."""
    for (j, gamma, _, right), (*_, left) in pairwise(line):
        kink = max(0, left[rounding] - right[1 - rounding])
        yield j, shifted(kink * gamma[rounding], 2 * P, rounding)


def above(law: Law, q: Fraction, z: Fraction, r: int, cut: int) -> Losses:
    """Compute the masses of the chords, rounded up."""
    b, js = chosen(law, q, z, r, cut)
    line: list[Kink] = []
    most = 0
    for j, (f, _) in zip(js, points(law, js, b, q, z), strict=True):
        most = max(most, f[1])
        line.append(linked(line, j, v.exp(j, b, P), most))
    end = (0, (0, 0), 0, (1 << 2 * P, 1 << 2 * P))
    return placed(kinks([*line, end], 1), b, r, line[0][2])


def below(law: Law, q: Fraction, z: Fraction, r: int, cut: int) -> Losses:
    """Compute masses of the tangents' minorant, rounded down, all finite."""
    b, js = chosen(law, q, z, r, cut)
    ends = list(pairwise(js))
    middle = points(law, [i + j for j, i in ends], b + 1, q, z)
    line: list[Kink] = []
    right, rest = ONE, 0
    for (j, i), (f, s) in zip(ends, middle, strict=True):
        g, here, there = v.exp(i + j, b + 1, P), v.exp(i, b, P), v.exp(j, b, P)
        at = min(right, f[0] - v.up(s[1] * (there[1] - g[0]), ONE))
        right = f[0] + (s[0] * (g[0] - here[1]) >> P)
        new = linked(line, j, there, at)
        # The hull, also where brackets do not tell if a point is on it.
        while line and new[3][0] < line[-1][3][1]:
            _, top, last, fall = line.pop()
            at = min(at, last + (fall[0] * (top[0] - there[1]) >> 2 * P))
            new = linked(line, j, there, at)
        # G less its first value, which is positive, is below F.
        if line or at >= 0:
            line.append(new)
            low = ONE - at + line[0][2]
            if low > there[1]:
                # 1 - gamma is met: what is left is as low as here.
                rest = low - v.up(new[3][1] * there[1], 1 << 2 * P)
                break
    return placed([*kinks(line, 0), (j, max(0, rest))], b, r, 0)


def shifted(x: int, p: int, rounding: int) -> int:
    """Return ``x 2^-p`` as an integer, rounded up (1) or down (0)."""
    return x + rounding * ((1 << p) - 1) >> p


def halved(m: Sequence[int], w: int, rounding: int) -> list[int]:
    """Double the width 2^-w of the cells."""
    made, grow, rest = list(m[::2]), v.exp(1, w, P), 0
    lower = v.up(ONE * ONE, ONE + grow[0])
    higher = v.up(grow[1] * ONE, ONE + grow[1])
    for i in range(1, len(m), 2):
        if rounding:
            made[i // 2] += shifted(m[i] * lower, P, 1)
            made[i // 2 + 1] += shifted(m[i] * higher, P, 1)
            continue
        # Half of it to either side; rest is the half of the one before.
        low = m[i] - (m[i] >> 1)
        met = min(rest, low * ONE // grow[1])
        made[i // 2] += low + met
        made[i // 2 - 1] += rest - met
        rest = m[i] >> 1
    if not rounding:
        made[-2] += rest
    return made


def wider(m: Sequence[int]) -> list[int]:
    """Add half as many empty cells on either side."""
    side = [0] * (len(m) // 2)
    return [*side, *m, *side]


def add(x: Sequence[int], y: Sequence[int]) -> list[int]:
    """Add masses cell by cell."""
    return [m + n for m, n in zip(x, y, strict=True)]


def coarsened(x: Losses, rounding: int) -> Losses:
    """Move the finest level to the cells of the next one."""
    if not 0 < x.b >= len(x.levels) - WIDEST.bit_length():
        raise OverflowError('losses are beyond all measure')
    first, rest = wider(halved(x.levels[0], x.b, rounding)), x.levels[1:]
    rest[:1] = [add(first, rest[0]) if rest else first]
    return Losses(x.b - 1, rest, x.infinite)


def convolved(x: Sequence[int], y: Sequence[int], rounding: int) -> list[int]:
    """Convolve the masses of two levels, rounded up (1) or down (0)."""
    one, two = (
        Decimal(''.join(f'{n:0{WIDTH}d}' for n in reversed(m))) for m in (x, y)
    )
    size = WIDTH * (len(x) + len(y) - 1)
    digits = str(_LONG.multiply(one, two)).zfill(size)
    starts = range(size - WIDTH, -1, -WIDTH)
    each = (int(digits[i : i + WIDTH]) for i in starts)
    return [shifted(n, P, rounding) for n in each]


def together(x: Losses, y: Losses, cut: int, rounding: int) -> Losses:
    """Add two independent losses."""
    x, y = sorted((x, y))  # by b
    while x.b < y.b:
        y = coarsened(y, rounding)
    r = len(x.levels[0]) // 2
    none = [0] * (2 * r + 1)
    levels, one, two, far = [], none, none, none
    for k in range(max(len(x.levels), len(y.levels))):
        m, n = (u.levels[k] if k < len(u.levels) else none for u in (x, y))
        # All earlier levels are in 'one' and 'two', on this level's cells.
        made = convolved(m, add(two, n), rounding)
        if any(one):
            made = add(made, convolved(one, n, rounding))
        levels.append(add(made[r:-r], far))
        made[r:-r] = none
        far = halved(made, x.b - k, rounding)
        one, two = (
            wider(halved(add(before, here), x.b - k, rounding))
            for before, here in ((one, m), (two, n))
        )
    infinite = x.infinite + y.infinite
    return tidy(Losses(x.b, [*levels, far], infinite), cut, rounding)


def tidy(x: Losses, cut: int, rounding: int) -> Losses:
    """Cut ends that are rare, and coarsen cells that are needlessly fine."""
    r, lost = len(x.levels[0]) // 2, [0, 0]
    levels = [list(m) for m in x.levels]
    for side, cells in enumerate((range(r), range(2 * r, r, -1))):
        for m, i in ((m, i) for m in levels[::-1] for i in cells):
            if lost[side] + m[i] > cut:
                break
            lost[side], m[i] = lost[side] + m[i], 0
    levels[0][r] += rounding * lost[0]
    while len(levels) > 1 and not any(levels[-1]):
        levels.pop()
    x = Losses(x.b, levels, x.infinite + rounding * lost[1])
    variance = sum(
        (i - r) ** 2 * mass << 2 * k
        for k, m in enumerate(levels)
        for i, mass in enumerate(m)
    )
    while r * r << P < 16 * variance:
        x, variance = coarsened(x, rounding), variance >> 2
    return x


def composed(
    steps: Sequence[tuple[Losses, int]], cut: int, rounding: int
) -> Losses:
    """Add the losses of all steps, by repeated squaring."""
    parts = []
    for base, count in steps:
        base = tidy(base, 0, rounding)
        parts += [base] * (count & 1)
        while count := count >> 1:
            base = together(base, base, cut, rounding)
            parts += [base] * (count & 1)
    return reduce(lambda x, y: together(x, y, cut, rounding), parts)


def delta_of(x: Losses, epsilon: Fraction, rounding: int) -> Fraction:
    """Compute D(epsilon), rounded up (1) or down (0)."""
    r, total = len(x.levels[0]) // 2, x.infinite
    at = v.fixed(epsilon, B)[1 - rounding]
    for k, m in enumerate(x.levels):
        for i, mass in enumerate(m):
            gap = at - ((i - r) << B + k - x.b)
            if mass and gap < 0:
                share = ONE - v.exp(gap, B, P)[1 - rounding]
                total += shifted(mass * share, P, rounding)
    return Fraction(total, ONE)


def judge_mu(mu2: Fraction, epsilon: Real, delta: float) -> str:
    r"""Prove or refute an epsilon of Gaussian releases, by closed form.

    ``mu2`` is the sum of the squares of sensitivity over noise. :math:`\delta
    = \Phi_c(\epsilon / \mu - \mu / 2) - e^\epsilon \Phi_c(\epsilon / \mu + \mu
    / 2)` (Balle, Wang 2018, Theorem 8).
    """
    claim, goal = Fraction(epsilon), Fraction(delta)
    if not (claim >= 0 and 0 < goal < 1 and mu2 >= 0):
        return FAILS
    if mu2 <= goal**2:  # delta is at most the total variation: mu / 2.5
        return HOLDS
    if claim > LARGEST:
        return NOT_PROVED
    p = P + goal.denominator.bit_length()
    c = B + p + int(2 * claim)  # e^epsilon is below 2^(1.5 epsilon)
    mu = math.isqrt((mu2.numerator << 2 * c) // mu2.denominator)
    t, s, half, one = v.fixed(claim, c), (mu, mu + 1), mu >> 1, Fraction(1)
    x = (t[0] << c) // s[1] + half, v.up(t[1] << c, mu) + half + 1
    gamma = v.rising(v.exp, t, c)
    lo, hi = profile(x, gamma, s, ({1: one}, {0: one}), c, p)[0]
    if Fraction(hi, 1 << p) <= goal:
        return HOLDS
    return FAILS if Fraction(lo, 1 << p) > goal else NOT_PROVED


def judge(law: str, lines: Lines, epsilon: Real, delta: float) -> str:
    """Prove or refute an epsilon of private steps.

    Args:
        law (str): ``'wor'``, ``'replace'`` or ``'withdraw'``.
        lines (sequence): of ``(z, q, steps)``: noise over clipping norm,
            rate, number of steps. A release with noise ``s`` on a sum of
            sensitivity ``D`` is ``(s / D, 1, 1)`` for 'withdraw' and
            ``(2 s / D, 1, 1)`` else. Floats are taken as the rationals that
            they are; give a rate of m in M as a fraction.
        epsilon (float or Fraction): claimed.
        delta (float): claimed.
    """
    if law not in ('wor', 'replace', 'withdraw'):
        raise ValueError(
            f"law must be 'wor', 'replace' or 'withdraw': {law!r}"
        )
    if law == 'withdraw':
        return settled((law, 'exchanged'), lines, 1, epsilon, delta)
    return settled((law,), lines, 2, epsilon, delta)


def settled(
    laws: Sequence[Law], lines: Lines, moved: int, epsilon: Real, delta: float
) -> str:
    """Prove or refute an epsilon under all given laws.

    A unit's Gaussians are ``moved`` clipping norms apart.
    """
    exact = [(Fraction(z), Fraction(q), int(n)) for z, q, n in lines if n]
    claim, goal, left = Fraction(epsilon), Fraction(delta), list(laws)
    sound = all(z > 0 and 0 < q <= 1 and n > 0 for z, q, n in exact)
    if not (sound and claim >= 0 and 0 < goal < 1):
        return FAILS
    if all(q == 1 for _, q, _ in exact):
        mu2 = sum((n * (moved / z) ** 2 for z, _, n in exact), Fraction(0))
        return judge_mu(mu2, epsilon, delta)
    if sum(n * q * moved / z for z, q, n in exact) <= goal:
        return HOLDS  # as in judge_mu: all total variations together
    if any(n > MOST for *_, n in exact):
        return NOT_PROVED
    for r in CELLS:
        for law in tuple(left):
            high = bound(law, exact, claim, goal, r, 1)
            if high <= goal:
                left.remove(law)
            # Closer than that finer cells rather prove it than refute it.
            elif (
                r == CELLS[-1] or r * r * (high - goal) > 2000 * goal
            ) and bound(law, exact, claim, goal, r, 0) > goal:
                return FAILS
        if not left:
            return HOLDS
    return NOT_PROVED


def bound(
    law: Law,
    lines: Sequence[tuple[Fraction, Fraction, int]],
    epsilon: Fraction,
    delta: Fraction,
    r: int,
    rounding: int,
) -> Fraction:
    """Bound delta of all steps from above (1) or below (0)."""
    goal = int(delta * ONE)
    cut = goal // (sum(n for *_, n in lines) << 36)
    losses = above if rounding else below
    try:
        steps = [(losses(law, q, z, r, cut), n) for z, q, n in lines]
        total = composed(steps, goal >> 40, rounding)
    except OverflowError:
        return Fraction(rounding)
    return delta_of(total, epsilon, rounding)
