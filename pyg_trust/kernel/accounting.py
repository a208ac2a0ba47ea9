r"""Epsilon of private training, proved in integers.

**Quantities.** ``delta(eps)`` of a pair of outputs :math:`(P, Q)` is

.. math::
    F(\gamma) = \sup_S\, P(S) - \gamma Q(S), \qquad \gamma = e^\epsilon ,

convex and falling in :math:`\gamma`, with slope :math:`-Q(\ell > \epsilon)
\ge -1`, where :math:`\ell = \log dP / dQ`. With the pair exchanged it is
:math:`1 - \gamma + \gamma F(1 / \gamma)`. Noise is :math:`z = \sigma / C`
(standard deviation over clipping norm), the rate :math:`q`, :math:`\Phi_c`
the upper tail of :math:`N(0, 1)`.

**One step.** Let a unit be drawn with probability :math:`q` and then move
the mean of a Gaussian of deviation :math:`z` by 1, against a unit that is
not there: :math:`P = (1-q) N(0, z^2) + q N(1, z^2)`, :math:`Q = N(0, z^2)`.
The loss grows with the output :math:`x`, :math:`\gamma = 1 - q + q w` with
:math:`w = \exp((2x - 1) / 2z^2)`, hence with :math:`t = z \log w + 1 / 2z`

.. math::
    F = q \left[\Phi_c(t - 1/z) - w\, \Phi_c(t)\right] \quad (w > 0),
    \qquad F = 1 - \gamma \quad (w \le 0).                        \tag{1}

* ``'withdraw'`` (coins; a unit is there or not): (1) and its exchange.
* ``'wor'`` (m of M without replacement; a unit is replaced): (1) at
  :math:`z / 2` for :math:`\gamma \ge 1`, its exchange below (Balle, Barthe,
  Gaboardi 2018, Theorem 9: :math:`\delta'(\log(1 + q (e^\epsilon - 1))) \le
  q\, \delta_{Gauss}(\epsilon)`, and the relation is symmetric).
* ``'replace'`` (coins; a unit is replaced): :math:`P` as above, :math:`Q =
  (1-q) N(0, z^2) + q N(-1, z^2)`, which dominates (``functional.poisson``
  has the proof). With :math:`k = e^{-1 / 2z^2}` and :math:`u = e^{x / z^2}`
  the loss is :math:`\log\gamma` where :math:`q k u^2 - (1-q)(\gamma - 1) u -
  q k \gamma = 0`; with its positive root, :math:`t = z \log u`,

  .. math::
      F = (1-q) \Phi_c(t) + q \Phi_c(t - 1/z)
      - \gamma\, [(1-q) \Phi_c(t) + q \Phi_c(t + 1/z)].           \tag{2}

**Its losses.** Points :math:`l_j`, :math:`\gamma_j = e^{l_j}`. The chords of
:math:`F` between the points, slope -1 before the first and slope 0 after the
last, lie above :math:`F`, as it is convex and falls no steeper than 1. They
are the profile of the loss with the masses :math:`m_j = (s_j - s_{j-1})
\gamma_j` (:math:`s_j` the slope after :math:`j`) and the mass
:math:`m_\infty = F` (last point) of an infinite loss:

.. math::
    D(\epsilon) = m_\infty + \sum_{l_j > \epsilon} m_j (1 - e^{\epsilon -
    l_j}).                                                         \tag{3}

A pair with a profile nowhere lower dominates, and products of dominating
pairs dominate compositions, adaptive ones as well (Zhu, Dong, Wang 2022,
Theorem 10): the losses of all steps are added as if they were independent.
:math:`D` grows with every mass and with every loss: masses are rounded up,
what is cut at the top becomes infinite, what is cut at the bottom zero.

**Levels.** Cells of level :math:`k` are :math:`2^k h` wide, :math:`r` on
either side of zero: a loss far out has a wide cell. Two levels are added on
the wider cells, and what leaves a level goes to the next. On cells twice as
wide (:math:`w` before, :math:`a = e^w`) an odd mass :math:`m` becomes
:math:`m / (1 + a)` below and :math:`m a / (1 + a)` above: they are as much
under :math:`P`, and under :math:`Q`, where masses count :math:`e^{-l}`. The
profile is a chord between the neighbours, and lies above.

**From below.** The tangent of :math:`F` in the middle of a cell lies below
:math:`F`. Let :math:`G_j` be the lower of both neighbouring tangents at
:math:`\gamma_j`. The chords between :math:`(\gamma_j, G_j)` lie below
:math:`F`, their convex hull lies below them; until it is below :math:`1 -
\gamma`, from the top down, :math:`\max(G, 1 - \gamma)` is the profile of a
pair that :math:`F` dominates, with its masses. On wider cells :math:`m` one
cell below and :math:`m a` one cell above become :math:`m (1 + a)` between: as
much under :math:`P` and :math:`Q`, but not told apart any more, so the profile
is no higher. All else of odd masses moves down. Rounded down, what is cut
thrown away, this gives a :math:`\delta` that the account is not below: an
epsilon where it is above delta is refuted.

**Small rates.** No :math:`\delta(\epsilon)` exceeds :math:`\delta(0)`, the
total variation, which adds up over steps. Of one step it is at most :math:`q
(2 \Phi(\mu / 2) - 1) \le q \mu / \sqrt{2 \pi}`, :math:`\mu = 1/z`, or
:math:`2/z` if a unit is replaced. Below delta, any epsilon is proved.

Masses are integers in :math:`2^{-P}`. All products of two levels' masses are
ONE product of two long numbers (Kronecker), exact in ``decimal``.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from itertools import product as cartesian
from typing import NamedTuple

from .intervals import (
    ONE,
    B,
    Bracket,
    P,
    between,
    coarser,
    exp,
    fixed,
    log,
    minus,
    plus,
    product,
    times,
    up,
)

HOLDS, FAILS, NOT_PROVED = 'holds', 'FAILS', 'not proved'

# (z, q, steps): noise over clipping norm, rate, a whole number.
Lines = Sequence[tuple[float | Fraction, float | Fraction, int]]
Exact = Sequence[tuple[Fraction, Fraction, int]]
# Brackets of F and of Q(loss > eps), its slope downwards.
Point = tuple[Bracket, Bracket]
Kink = tuple[int, Bracket, int]  # index, gamma, G
# A name, or F and its slope at an epsilon >= 0 of a symmetric relation.
Law = str | Callable[[int, int, Fraction, Fraction], Point]

CELLS = (256, 1024, 2048)  # r: coarse ones settle most claims
WIDTH = 92  # digits of a sum of products of masses
LARGEST = 10_000  # epsilon: e^epsilon has so many bits, and half again
LEAST = Fraction(1, 8)  # noise on coins, of which e^(1 / z^2) has as many
WIDEST = 1 << 10  # loss; wider ones take minutes
MOST = 1 << 40  # steps of a kind
_LONG = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])


# A step #####################################################################


def withdrawn(num: int, b: int, q: Fraction, z: Fraction) -> Point:
    """F of (1) at the epsilon ``num 2^-b``, and its slope."""
    g_lo, g_hi = exp(num, b, B)
    one = 1 << B
    w_lo = (g_lo - one) * q.denominator // q.numerator + one
    w_hi = up((g_hi - one) * q.denominator, q.numerator) + one
    if w_hi <= 0:
        less = B - P
        return (ONE - up(g_hi, 1 << less), ONE - (g_lo >> less)), (ONE, ONE)
    if w_lo <= 0:
        return (0, ONE), (0, ONE)
    y = log(w_lo, B, B)[0], log(w_hi, B, B)[1]
    s = fixed(1 / z, B)
    t = plus(times(y, z), fixed(1 / (2 * z), B))
    p = P + 8 + max(0, w_hi.bit_length() - B)
    above, below = between(minus(t, s), P), between(t, p)
    took = product((w_lo, w_hi), below, p)
    f_lo, f_hi = times(minus(above, took), q)
    more = p - P
    return (max(0, f_lo), f_hi), (below[0] >> more, up(below[1], 1 << more))


def replaced(num: int, b: int, q: Fraction, z: Fraction) -> Point:
    """F of (2) at the epsilon ``num 2^-b`` >= 0, and its slope."""
    # k is as small as e^(-1 / 2 z^2): so many bits more.
    c = B + int(3 / z**2) + 32
    g, one = exp(num, b, c), 1 << c
    lo, hi = fixed(-1 / (2 * z**2), c)
    qk = times((exp(lo, c, c)[0], exp(hi, c, c)[1]), q)
    a = times((max(0, g[0] - one), g[1] - one), 1 - q)
    root_lo = math.isqrt(a[0] ** 2 + (4 * qk[0] ** 2 * g[0] >> c))
    root_hi = math.isqrt(a[1] ** 2 + up(4 * qk[1] ** 2 * g[1], one)) + 1
    u_lo = (a[0] + root_lo << B) // (2 * qk[1])
    u_hi = up(a[1] + root_hi << B, 2 * qk[0])
    t = times((log(u_lo, B, B)[0], log(u_hi, B, B)[1]), z)
    s = fixed(1 / z, B)
    p = P + 8 + max(0, g[1].bit_length() - c)
    mid = between(t, p)
    above = plus(times(mid, 1 - q), times(between(minus(t, s), p), q))
    below = plus(times(mid, 1 - q), times(between(plus(t, s), p), q))
    took = product((g[0] >> c - B, up(g[1], 1 << c - B)), below, p)
    above, below = coarser(above, p), coarser(below, p)
    f = minus(above, took)
    return (max(0, f[0]), f[1]), below


def exchanged(at: Point, num: int, b: int) -> Point:
    """F and its slope for the exchanged pair; ``at`` is at ``-num 2^-b``."""
    (f, s), g = at, exp(num, b, B)
    gf, sg = product(g, f, P), product(exp(-num, b, B), s, P)
    value = minus(plus((ONE, ONE), gf), coarser(g, B))
    slope = minus(minus((ONE, ONE), f), sg)
    return (max(0, value[0]), value[1]), (max(0, slope[0]), slope[1])


def points(
    law: Law, nums: Sequence[int], b: int, q: Fraction, z: Fraction
) -> list[Point]:
    """F and its slope of one step of a law at the epsilons ``num 2^-b``."""
    if law == 'withdraw':
        return [withdrawn(n, b, q, z) for n in nums]
    if law == 'exchanged':
        return [exchanged(withdrawn(-n, b, q, z), n, b) for n in nums]
    one = law if callable(law) else withdrawn if law == 'wor' else replaced
    z = z / 2 if law == 'wor' else z
    side = {n: one(n, b, q, z) for n in {abs(n) for n in nums}}
    return [side[n] if n >= 0 else exchanged(side[-n], n, b) for n in nums]


# Losses #####################################################################


class Losses(NamedTuple):
    """Masses by loss: level k has ``2 r + 1`` cells of 2^(k - b) around 0."""

    b: int
    levels: list[list[int]]
    infinite: int


def chosen(
    law: Law, q: Fraction, z: Fraction, r: int, cut: int
) -> tuple[int, list[int]]:
    """Cells of level 0, and points of all levels; any are sound."""
    near = points(law, [0], 0, q, z)[0][0][1]
    b = min(P // 2, P - near.bit_length() + r.bit_length() - 4)
    sides = []
    for sign in (-1, 1):
        side, k = list(range(r + 1)), 0
        while side[-1] >> b < WIDEST:
            at = sign * side[-1]
            f = points(law, [at], b, q, z)[0][0][1]
            if f - (ONE - exp(at, b, P)[1] if sign < 0 else 0) <= cut:
                break
            k += 1
            side += range((r // 2 + 1) << k, (r << k) + 1, 1 << k)
        sides.append(side)
    return b, [-j for j in sides[0][:0:-1]] + sides[1]


def placed(
    masses: Iterable[tuple[int, int]], b: int, r: int, infinite: int
) -> Losses:
    """The losses that have masses at such points."""
    levels = [[0] * (2 * r + 1)]
    for j, mass in masses:
        k = max(0, (abs(j) - 1).bit_length() - r.bit_length() + 1)
        levels += [[0] * (2 * r + 1) for _ in range(k + 1 - len(levels))]
        levels[k][r + (j >> k)] += mass
    return Losses(b, levels, infinite)


def above(law: Law, q: Fraction, z: Fraction, r: int, cut: int) -> Losses:
    """Masses of the chords, rounded up."""
    b, js = chosen(law, q, z, r, cut)
    f = [found[0] for found in points(law, js, b, q, z)]
    g = [exp(j, b, P) for j in js]
    # (the least slope, the greatest) before each point, in 2^-2P
    slopes = [(-(1 << 2 * P), -(1 << 2 * P))]
    for i in range(len(f) - 1):
        (lo, hi), (less, most) = minus(f[i + 1], f[i]), minus(g[i + 1], g[i])
        steep = (lo << 2 * P) // (less if lo < 0 else most)
        flat = up(hi << 2 * P, most if hi < 0 else less)
        slopes.append((steep, flat))
    slopes.append((0, 0))
    kinks = [max(0, two[1] - one[0]) for one, two in pairwise(slopes)]
    masses = [
        up(kink * at[1], 1 << 2 * P) for kink, at in zip(kinks, g, strict=True)
    ]
    return placed(zip(js, masses, strict=True), b, r, f[-1][1])


def below(law: Law, q: Fraction, z: Fraction, r: int, cut: int) -> Losses:
    """Masses of the tangents' minorant, rounded down; none is infinite."""
    b, js = chosen(law, q, z, r, cut)
    ends = list(pairwise(js))
    middle = points(law, [i + j for i, j in ends], b + 1, q, z)
    # Points from the top; G less its first value is below F.
    line: list[Kink] = []
    right = ONE
    for (i, j), (f, s) in zip(ends[::-1], middle[::-1], strict=True):
        g, here, there = exp(i + j, b + 1, P), exp(i, b, P), exp(j, b, P)
        at = min(right, f[0] - up(s[1] * (there[1] - g[0]), ONE))
        if not line and at < 0:
            continue
        # Their convex hull: it is no higher, and cells change their width.
        while len(line) > 1:
            (_, (g2, _), at2), (_, (g1, _), at1) = line[-2:]
            if (at - at1) * (g2 - g1) > (at1 - at2) * (g1 - there[0]):
                break
            line.pop()
        line.append((j, there, at))
        right = f[0] + (s[0] * max(0, g[0] - here[1]) >> P)
    return placed(_kinks(line), b, r, 0)


def _kinks(line: Sequence[Kink]) -> Iterator[tuple[int, int]]:
    flat = 0
    for (j, g, at), (i, g2, at2) in pairwise(line):
        steep = ((at2 - at) << 2 * P) // (g[1] - g2[0])
        if steep < flat:
            break
        yield j, (steep - flat) * g[0] >> 2 * P
        flat = up((at2 - at) << 2 * P, g[0] - g2[1])
        if at2 - line[0][2] < ONE - g2[0]:
            # 1 - gamma is met before i: what is left is as low as there.
            rest = ONE - at + line[0][2] - up(flat * g[1], 1 << 2 * P)
            yield i, max(0, rest)
            break


def halved(m: Sequence[int], w: int, rounding: int) -> list[int]:
    """Move the masses of cells 2^-w wide to every other cell."""
    made, grow, rest = list(m[::2]), exp(1, w, P), 0
    lower = up(ONE * ONE, ONE + grow[0])
    higher = up(grow[1] * ONE, ONE + grow[1])
    for i in range(1, len(m), 2):
        if rounding:
            made[i // 2] += up(m[i] * lower, ONE)
            made[i // 2 + 1] += up(m[i] * higher, ONE)
            continue
        # Half of it to either side; rest is the half of the one before.
        low = m[i] - (m[i] >> 1)
        met = min(rest, low * ONE // grow[1])
        made[i // 2] += low + met
        made[max(0, i // 2 - 1)] += rest - met
        rest = m[i] >> 1
    if not rounding:
        made[-2] += rest
    return made


def wider(m: Sequence[int]) -> list[int]:
    """Put as many empty cells around some as there are."""
    side = [0] * (len(m) // 2)
    return [*side, *m, *side]


def add(x: Sequence[int], y: Sequence[int]) -> list[int]:
    """Add the masses of the same cells."""
    return list(map(operator.add, x, y))


def coarsened(x: Losses, rounding: int) -> Losses:
    """Put the finest level on the cells of the next one."""
    if not 0 < x.b >= len(x.levels) - WIDEST.bit_length():
        raise OverflowError('losses are beyond all measure')
    first, *rest = x.levels
    first = wider(halved(first, x.b, rounding))
    rest[:1] = [add(first, rest[0]) if rest else first]
    return Losses(x.b - 1, rest, x.infinite)


def convolved(x: Sequence[int], y: Sequence[int], rounding: int) -> list[int]:
    """Multiply every two masses, rounded up (1) or down."""
    one, two = (
        Decimal(''.join(f'{v:0{WIDTH}d}' for v in reversed(m))) for m in (x, y)
    )
    size = WIDTH * (len(x) + len(y) - 1)
    digits = str(_LONG.multiply(one, two)).zfill(size)
    starts = range(size - WIDTH, -1, -WIDTH)
    each = (int(digits[i : i + WIDTH]) for i in starts)
    return [up(v, ONE) if rounding else v >> P for v in each]


def together(x: Losses, y: Losses, cut: int, rounding: int) -> Losses:
    """Add two independent losses."""
    while x.b > y.b:
        x = coarsened(x, rounding)
    while y.b > x.b:
        y = coarsened(y, rounding)
    r = len(x.levels[0]) // 2
    none = [0] * (2 * r + 1)
    levels, one, two, far = [], none, none, none
    for k in range(max(len(x.levels), len(y.levels))):
        m, n = (v.levels[k] if k < len(v.levels) else none for v in (x, y))
        # All levels before are in one and two, on cells of this one.
        made = convolved(m, add(two, n), rounding)
        if any(one):
            made = add(made, convolved(one, n, rounding))
        levels.append(add(made[r:-r], far))
        made[r:-r] = none
        far, one, two = (
            halved(each, x.b - k, rounding)
            for each in (made, add(one, m), add(two, n))
        )
        one, two = wider(one), wider(two)
    infinite = x.infinite + y.infinite
    return tidy(Losses(x.b, [*levels, far], infinite), cut, rounding)


def tidy(x: Losses, cut: int, rounding: int) -> Losses:
    """Cut ends that are rare, and cells that are finer than they need be."""
    r, lost = len(x.levels[0]) // 2, [0, 0]
    levels = [list(m) for m in x.levels]
    for side, cells in enumerate((range(r), range(2 * r, r, -1))):
        for m, i in cartesian(levels[::-1], cells):
            if lost[side] + m[i] > cut:
                break
            lost[side], m[i] = lost[side] + m[i], 0
    if rounding:
        levels[0][r] += lost[0]
    while len(levels) > 1 and not any(levels[-1]):
        levels.pop()
    x = Losses(x.b, levels, x.infinite + rounding * lost[1])
    squares = [(i - r) ** 2 for i in range(2 * r + 1)]
    variance = sum(
        sum(map(operator.mul, squares, m)) << 2 * k
        for k, m in enumerate(levels)
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
        while count:
            if count & 1:
                parts.append(base)
            count >>= 1
            if count:
                base = together(base, base, cut, rounding)
    return reduce(lambda x, y: together(x, y, cut, rounding), parts)


def delta_of(x: Losses, epsilon: Fraction, rounding: int) -> Fraction:
    """D(epsilon), rounded up (1) or down (0)."""
    r, total = len(x.levels[0]) // 2, x.infinite
    for k, m in enumerate(x.levels):
        width = Fraction(2) ** (k - x.b)
        first = math.ceil(epsilon / width)
        # A - e^(epsilon - l) S, S = sum of m_j e^(l - l_j), l the first loss.
        keep = exp(-1, x.b - k, P)[1 - rounding]
        a = s = 0
        for j in range(r, first - 1, -1):
            a += m[r + j]
            s = m[r + j] + (s * keep >> P if rounding else up(s * keep, ONE))
        gap = fixed(epsilon - first * width, B)[1 - rounding]
        scale = exp(gap, B, P)[1 - rounding]
        total += a - (s * scale >> P if rounding else up(s * scale, ONE))
    return Fraction(max(0, total), ONE)


# What is claimed ############################################################


def gaussian_delta(mu2: Fraction, epsilon: Fraction, p: int) -> Bracket:
    r"""The bracket of delta of Gaussian releases, :math:`\mu^2` together.

    :math:`\Phi_c(\epsilon / \mu - \mu / 2) - e^\epsilon \Phi_c(\epsilon / \mu
    + \mu / 2)` (Balle, Wang 2018, Theorem 8).
    """
    c = B + p + int(2 * epsilon)  # e^epsilon is below 2^(1.5 epsilon)
    mu = math.isqrt((mu2.numerator << 2 * c) // mu2.denominator)
    t = fixed(epsilon, c)
    ratio = (t[0] << c) // (mu + 1), up(t[1] << c, mu)
    half = mu >> 1, (mu >> 1) + 1
    gamma = exp(t[0], c, c)[0], exp(t[1], c, c)[1]
    more = p + 8 + max(0, gamma[1].bit_length() - c)
    one = between(minus(ratio, half), p, c)
    two = between(plus(ratio, half), more, c)
    down = c + more - p
    took = gamma[0] * two[0] >> down, up(gamma[1] * two[1], 1 << down)
    return minus(one, took)


def judge_mu(mu2: Fraction, epsilon: float, delta: float) -> str:
    r"""Prove or refute an epsilon of Gaussian releases, by closed form."""
    claim, goal = Fraction(epsilon), Fraction(delta)
    if not (claim >= 0 and 0 < goal < 1 and mu2 >= 0):
        return FAILS
    if mu2 <= goal**2:  # delta is at most the total variation: mu / 2.5
        return HOLDS
    if claim > LARGEST:
        return NOT_PROVED
    p = P + goal.denominator.bit_length()
    lo, hi = gaussian_delta(Fraction(mu2), claim, p)
    if Fraction(hi, 1 << p) <= goal:
        return HOLDS
    return FAILS if Fraction(lo, 1 << p) > goal else NOT_PROVED


def judge(law: str, lines: Lines, epsilon: float, delta: float) -> str:
    """Prove or refute an epsilon of private steps.

    Args:
        law (str): ``'wor'``, ``'replace'`` or ``'withdraw'``.
        lines (sequence): of ``(z, q, steps)``: noise over clipping norm,
            rate, number of steps. A release with noise ``s`` on a sum of
            sensitivity ``D`` is ``(s / D, 1, 1)`` for 'withdraw' and
            ``(2 s / D, 1, 1)`` else. Floats are taken as the rationals that
            they are; give a rate of m in M as a fraction.
        epsilon (float): claimed.
        delta (float): claimed.
    """
    exact = [(Fraction(z), Fraction(q), int(n)) for z, q, n in lines if n]
    moved = 1 if law == 'withdraw' else 2
    claim, goal = Fraction(epsilon), Fraction(delta)
    if not (claim >= 0 and 0 < goal < 1):
        return FAILS
    if all(q == 1 for _, q, _ in exact):
        mu2 = sum((n * (moved / z) ** 2 for z, _, n in exact), Fraction(0))
        return judge_mu(mu2, epsilon, delta)
    if sum(n * q * moved / z for z, q, n in exact) <= goal:
        return HOLDS  # as in judge_mu: all total variations together
    if law == 'replace' and any(z < LEAST for z, *_ in exact):
        return NOT_PROVED
    laws = ('withdraw', 'exchanged') if law == 'withdraw' else (law,)
    return settled(laws, exact, claim, goal)


def settled(
    laws: Sequence[Law], lines: Exact, epsilon: Fraction, delta: Fraction
) -> str:
    """Prove or refute an epsilon under every one of some laws, on levels."""
    left = list(laws)
    if any(n > MOST for *_, n in lines):
        return NOT_PROVED
    for r in CELLS:
        for law in tuple(left):
            high = bound(law, lines, epsilon, delta, r, 1)
            if high <= delta:
                left.remove(law)
            # Closer than that finer cells rather prove it than refute it.
            elif (
                r == CELLS[-1] or r * r * (high - delta) > 2000 * delta
            ) and bound(law, lines, epsilon, delta, r, 0) > delta:
                return FAILS
        if not left:
            return HOLDS
    return NOT_PROVED


def bound(
    law: Law,
    lines: Exact,
    epsilon: Fraction,
    delta: Fraction,
    r: int,
    rounding: int,
) -> Fraction:
    """Bound delta of all steps from above (1) or below (0)."""
    goal = int(delta * ONE)
    cut = goal // (sum(n for *_, n in lines) << 36)
    masses = above if rounding else below
    steps = [(masses(law, q, z, r, cut), n) for z, q, n in lines]
    try:
        total = composed(steps, goal >> 40, rounding)
    except OverflowError:
        return Fraction(rounding)
    return delta_of(total, epsilon, rounding)
