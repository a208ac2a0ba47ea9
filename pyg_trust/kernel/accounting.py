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

**The grid.** :math:`l_j = j h`, :math:`a \le j \le b`. The chords of
:math:`F` between the points :math:`\gamma_j = e^{l_j}`, slope -1 before
:math:`a` and slope 0 after :math:`b`, lie above :math:`F`, as it is convex
and falls no steeper than 1. They are the profile of the loss with the masses
:math:`m_j = (s_j - s_{j-1}) \gamma_j` (:math:`s_j` the slope after
:math:`j`) and the mass :math:`F(\gamma_b)` of an infinite loss:
:math:`D(\epsilon) = m_\infty + \sum_{l_j > \epsilon} m_j (1 - e^{\epsilon -
l_j})`. A pair with a profile nowhere lower dominates, and products of
dominating pairs dominate compositions, adaptive ones as well (Zhu, Dong,
Wang 2022, Theorem 10): the masses of all steps together are the convolution.
:math:`D` grows with every mass, so masses are rounded up; a top that is cut
becomes infinite, a bottom that is cut moves up. The chords' own excess is
second order in :math:`h`.

**From below.** The tangent of :math:`F` in the middle of a cell lies below
:math:`F`. Let :math:`G_j` be the lower of both neighbouring tangents at
:math:`\gamma_j`. The chords between :math:`(\gamma_j, G_j)` lie below
:math:`F`; as long as they are convex and not below :math:`1 - \gamma`, from
the top down, :math:`\max(G, 1 - \gamma)` is the profile of a pair that
:math:`F` dominates, with their masses. Rounded down, what is cut thrown
away, they give a :math:`\delta` that the account is not below: an epsilon
where it is above delta is refuted.

**Small rates.** Every :math:`\delta(\epsilon)` is at most :math:`\delta(0)`,
the total variation. It adds up over steps, and one of rate :math:`q` has
:math:`q (2 \Phi(\mu / 2) - 1) \le q \mu / \sqrt{2 \pi}` at most, with
:math:`\mu = 1/z`, or :math:`2/z` if a unit is replaced: below delta, any
epsilon is proved.

**Units.** Integers ``(lo, hi)`` bracket real numbers in :math:`2^{-p}`; masses
are integers in :math:`10^{-36}`. exp and log are mpmath's at 24 bits more
than needed, as pi is, widened by a unit; nothing else is trusted of it. A
convolution is ONE product of two long numbers (Kronecker), exact in
``decimal``.
"""

import math
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from fractions import Fraction
from itertools import pairwise

from mpmath.libmp import from_man_exp, mpf_exp, mpf_log, mpf_pi, to_fixed

HOLDS, FAILS, NOT_PROVED = 'holds', 'FAILS', 'not proved'

# (z, q, steps): noise over clipping norm, rate, a whole number.
Lines = Sequence[tuple[float | Fraction, float | Fraction, int]]
Bracket = tuple[int, int]
# Brackets of F and of Q(loss > eps), its slope downwards.
Point = tuple[Bracket, Bracket]
# A name, or F and its slope at an epsilon >= 0 of a symmetric relation.
Law = str | Callable[[int, int, Fraction, Fraction], Point]
# Masses from a first grid point on, and that of an infinite loss.
Masses = tuple[list[int], int, int]

P = 144  # bits of a profile
ONE = 1 << P
B = P + 160  # bits of what it is a function of
UNIT = 10**36  # one, of a mass
WIDTH = 84  # digits of a sum of products of masses
GRIDS = (8, 10, 12, 14)  # h = 2^-8, ...
MOST = 50_000  # points of all grids: finer ones take minutes
WORK = 1_000_000  # points of all convolutions, likewise
LARGEST = 10_000  # epsilon: e^epsilon has so many bits, and half again
LEAST = Fraction(1, 32)  # noise on coins, of which e^(1 / z^2) has as many


def up(a: int, b: int) -> int:
    """The quotient, rounded up; ``//`` rounds it down."""
    return -(-a // b)


def times(x: Bracket, y: Fraction) -> Bracket:
    """The bracket of a product, ``y`` not negative; ``x`` if it is exact."""
    n, d = y.numerator, y.denominator
    return x[0] * n // d, up(x[1] * n, d)


def fixed(x: Fraction, p: int) -> Bracket:
    """The bracket of a fraction."""
    return times((1 << p, 1 << p), x)


def minus(x: Bracket, y: Bracket) -> Bracket:
    """The bracket of a difference."""
    return x[0] - y[1], x[1] - y[0]


def exp(num: int, b: int, p: int) -> Bracket:
    """The bracket of ``e^(num 2^-b)``."""
    prec = p + max(0, (3 * num >> b) // 2) + 24
    v = to_fixed(mpf_exp(from_man_exp(num, -b), prec), p)
    return max(0, v - 1), v + 2


def log(num: int, b: int, p: int) -> Bracket:
    """The bracket of ``log(num 2^-b)``, ``num`` positive."""
    prec = p + abs(num.bit_length() - b).bit_length() + 24
    v = to_fixed(mpf_log(from_man_exp(num, -b), prec), p)
    return v - 1, v + 2


def tail(num: int, b: int, p: int) -> Bracket:
    r"""The bracket of the upper tail :math:`\Phi_c(num\, 2^{-b})`.

    For :math:`x \ge 0` it is :math:`1/2 - \varphi(x) (x + x^3 / 3 + x^5 / 15
    + \dots)`, all terms positive: from where a term is below half of the one
    before, the rest is below twice the next.
    """
    if num < 0:
        lo, hi = tail(-num, b, p)
        return (1 << p) - hi, (1 << p) - lo
    square, shift = num * num, 2 * b
    half = square >> (shift + 1)  # x^2 / 2, down
    if 10 * half > 7 * p + 20:  # below e^(-x^2 / 2) / 2 < 2^-p
        return 0, 1
    w = p + 16
    lo, hi = (num << w) >> b, up(num << w, 1 << b)
    s_lo, s_hi, k = lo, hi, 3
    while hi > 1 or square * 2 >> shift >= k:
        lo = (lo * square >> shift) // k
        hi = up(hi * square, k << shift)
        s_lo, s_hi, k = s_lo + lo, s_hi + hi, k + 2
    v = w + 3 * half // 2 + 8
    e_lo, e_hi = exp(-square, shift + 1, v)
    pi = to_fixed(mpf_pi(v + 24), v)
    r_lo = math.isqrt((1 << 3 * v - 1) // (pi + 2))  # 1 / sqrt(2 pi)
    r_hi = math.isqrt((1 << 3 * v - 1) // (pi - 1)) + 1
    middle, down = 1 << (w + 2 * v - 1), w + 2 * v - p
    lo = (middle - (s_hi + 2 * hi + 2) * e_hi * r_hi) >> down
    return max(0, lo), up(middle - s_lo * e_lo * r_lo, 1 << down)


def between(x: Bracket, p: int, b: int = B) -> Bracket:
    """The tail somewhere in a bracket of ``b`` bits; no steeper than 1/2."""
    lo, hi = tail(x[1], b, p)
    return lo, hi + up((x[1] - x[0]) << p, 2 << b)


def plus(x: Bracket, y: Bracket) -> Bracket:
    """The bracket of a sum."""
    return x[0] + y[0], x[1] + y[1]


def product(gamma: Bracket, x: Bracket, p: int) -> Bracket:
    """The bracket of ``gamma x`` in 2^-P: of ``B`` bits, and of ``p``."""
    down = B + p - P
    return gamma[0] * x[0] >> down, up(gamma[1] * x[1], 1 << down)


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


def coarser(x: Bracket, p: int) -> Bracket:
    """The bracket of ``p`` bits in ``P``."""
    return x[0] >> p - P, up(x[1], 1 << p - P)


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


# Masses #####################################################################


def ends(
    law: Law, q: Fraction, z: Fraction, h: int, cut: int
) -> tuple[int, int]:
    """First and last point of a grid; any would do, these lose little."""
    if law == 'exchanged':
        first, last = ends('withdraw', q, z, h, cut)
        return -last, -first
    lo, hi = 0, 1
    while hi <= MOST << 4 and points(law, [hi], h, q, z)[0][0][1] > cut:
        lo, hi = hi, 2 * hi
    while hi - lo > 1:
        mid = (lo + hi) // 2
        large = points(law, [mid], h, q, z)[0][0][1] > cut
        lo, hi = (mid, hi) if large else (lo, mid)
    if law == 'withdraw':
        # Below log(1 - q) there is nothing, below log(cut) less than cut.
        rest = max(fixed(1 - q, B)[0], cut << B - P)
        return log(rest, B, h)[0] - 1, hi
    return -hi, hi


def grid(first: int, last: int, q: Fraction, h: int) -> list[int]:
    """Points from end to end, sparser where losses of the rate are rare."""
    sides = []
    for end in (-first, last):
        side = [0]
        while side[-1] < end:
            wide = 1 + int(Fraction(min(side[-1], 1 << h), 16 << h) / q)
            side.append(min(end, side[-1] + wide))
        sides.append(side)
    return [-j for j in sides[0][:0:-1]] + sides[1]


def above(law: Law, q: Fraction, z: Fraction, h: int, cut: int) -> Masses:
    """Masses of the chords, rounded up."""
    first, last = ends(law, q, z, h, cut)
    js = grid(first, last, q, h)
    f = [found[0] for found in points(law, js, h, q, z)]
    g = [exp(j, h, P) for j in js]
    # (the least slope, the greatest) before each point, in 2^-2P
    slopes = [(-(1 << 2 * P), -(1 << 2 * P))]
    for i in range(len(f) - 1):
        (lo, hi), (less, most) = minus(f[i + 1], f[i]), minus(g[i + 1], g[i])
        steep = (lo << 2 * P) // (less if lo < 0 else most)
        flat = up(hi << 2 * P, most if hi < 0 else less)
        slopes.append((steep, flat))
    slopes.append((0, 0))
    masses = [0] * (last - first + 1)
    for i, j in enumerate(js):
        kink = max(0, slopes[i + 1][1] - slopes[i][0])
        masses[j - first] = up(kink * g[i][1] * UNIT, 1 << 3 * P)
    return masses, first, up(f[-1][1] * UNIT, ONE)


def below(law: Law, q: Fraction, z: Fraction, h: int, cut: int) -> Masses:
    """Masses of the tangents' minorant, rounded down; none is infinite."""
    js = grid(*ends(law, q, z, h, cut), q, h)
    # Points from the top: index, gamma, G; G less its first value is below F.
    line: list[tuple[int, Bracket, int]] = []
    twice = [i + j for i, j in pairwise(js)]
    middle = points(law, twice, h + 1, q, z)
    right = None
    for n in range(len(twice) - 1, -1, -1):
        i, j, (f, s) = js[n], js[n + 1], middle[n]
        g, here, there = exp(i + j, h + 1, P), exp(i, h, P), exp(j, h, P)
        at_right = f[0] - up(s[1] * (there[1] - g[0]), ONE)
        if right is not None:
            line.append((j, there, min(right, at_right)))
        elif at_right >= 0:
            line.append((j, there, at_right))
        else:
            continue
        right = f[0] + (s[0] * max(0, g[0] - here[1]) >> P)
    return _kinks(line, js[0], js[-1]), js[0], 0


def _kinks(
    line: Sequence[tuple[int, Bracket, int]], first: int, last: int
) -> list[int]:
    masses, flat = [0] * (last - first + 1), 0
    for (j, g, at), (i, g2, at2) in pairwise(line):
        steep = ((at2 - at) << 2 * P) // (g[1] - g2[0])
        if steep < flat:
            break
        masses[j - first] = (steep - flat) * g[0] * UNIT >> 3 * P
        flat = up((at2 - at) << 2 * P, g[0] - g2[1])
        top = at - line[0][2]
        if at2 - line[0][2] < ONE - g2[0]:
            # 1 - gamma is met before i: what is left is as low as there.
            rest = ONE - top - up(flat * g[1], 1 << 2 * P)
            masses[i - first] = max(0, rest) * UNIT >> P
            break
    return masses


# Many steps #################################################################

_LONG = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])


def convolved(x: Masses, y: Masses, cut: int, rounding: int) -> Masses:
    """The masses of two independent losses' sum, rounded up (1) or down."""
    one, two = (
        Decimal(''.join(f'{v:0{WIDTH}d}' for v in reversed(m[0])))
        for m in (x, y)
    )
    size = len(x[0]) + len(y[0]) - 1
    digits = str(_LONG.multiply(one, two)).zfill(WIDTH * size)
    starts = range(WIDTH * (size - 1), -1, -WIDTH)
    found = [int(digits[i : i + WIDTH]) for i in starts]
    masses = [-(-v // UNIT) if rounding else v // UNIT for v in found]
    first, infinite = x[1] + y[1], x[2] + y[2]
    lost = 0
    while len(masses) > 1 and lost + masses[-1] <= cut:
        lost += masses.pop()
    low = start = 0
    while start < len(masses) - 1 and low + masses[start] <= cut:
        low, start = low + masses[start], start + 1
    masses = masses[start:]
    if rounding:
        infinite, masses[0] = infinite + lost, masses[0] + low
    return masses, first + start, infinite


def composed(
    steps: Sequence[tuple[Masses, int]], cut: int, rounding: int
) -> Masses:
    """The masses of all steps together, by repeated squaring."""
    total: Masses = [UNIT], 0, 0
    work = 0
    for base, count in steps:
        while count:
            work += len(total[0]) + len(base[0])
            if work > WORK:
                raise OverflowError('the convolutions take minutes')
            if count & 1:
                total = convolved(total, base, cut, rounding)
            count >>= 1
            if count:
                base = convolved(base, base, cut, rounding)
    return total


def delta_of(
    masses: Masses, epsilon: Fraction, h: int, rounding: int
) -> Fraction:
    """D(epsilon), rounded up (1) or down (0)."""
    m, first, infinite = masses
    k = up(epsilon.numerator << h, epsilon.denominator)
    # D = infinite + A - e^(epsilon - l_k) S, S = sum of m_j e^(l_k - l_j)
    keep = exp(-1, h, P)[1 - rounding]
    a = s = 0
    for j in range(first + len(m) - 1, max(k, first) - 1, -1):
        a += m[j - first]
        s = m[j - first] + (s * keep >> P if rounding else up(s * keep, ONE))
    start = Fraction(max(k, first), 1 << h)
    scale = exp(fixed(epsilon - start, B)[1 - rounding], B, P)[1 - rounding]
    s = s * scale >> P if rounding else up(s * scale, ONE)
    return Fraction(max(0, infinite + a - s), UNIT)


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
    r"""Prove or refute an epsilon of Gaussian releases, by closed form.

    Args:
        mu2 (Fraction): the sum of the squares of sensitivity over noise.
        epsilon (float): claimed.
        delta (float): claimed.
    """
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

    Returns:
        str: ``'holds'``; ``'FAILS'`` if the account of these steps is above;
        ``'not proved'`` where the grids do not settle it.
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
    laws: Sequence[Law],
    lines: Sequence[tuple[Fraction, Fraction, int]],
    epsilon: Fraction,
    delta: Fraction,
) -> str:
    """Prove or refute an epsilon under every one of some laws, by grids."""
    for h in GRIDS:
        found = [_settle(one, lines, epsilon, delta, h) for one in laws]
        if FAILS in found:
            return FAILS
        if found == [HOLDS] * len(laws):
            return HOLDS
    return NOT_PROVED


def _settle(
    law: Law,
    lines: Sequence[tuple[Fraction, Fraction, int]],
    epsilon: Fraction,
    delta: Fraction,
    h: int,
) -> str:
    many = sum(n for _, _, n in lines)
    cut = int(delta * ONE) // (many << 36)
    size = 0
    for z, q, _ in lines:
        first, last = ends(law, q, z, h, cut)
        size += last - first
        if size > MOST:
            return NOT_PROVED
    for masses, rounding in ((above, 1), (below, 0)):
        steps = [(masses(law, q, z, h, cut), n) for z, q, n in lines]
        try:
            total = composed(steps, int(delta * UNIT) >> 40, rounding)
        except OverflowError:
            return NOT_PROVED
        found = delta_of(total, epsilon, h, rounding)
        if rounding and found <= delta:
            return HOLDS
        if not rounding and found > delta:
            return FAILS
    return NOT_PROVED


def fewer(
    lines: list[tuple[float, float, int]], most: int
) -> list[tuple[float, float, int]]:
    """Merge steps that are almost alike: the least noise, the largest rate.

    Epsilon is no less.
    """
    width, merged = 1e-5, lines
    while len(merged) > most:
        cells: dict[tuple[float, float], list] = {}
        for z, q, n in lines:
            cell = (math.log(z) // width, math.log(q) // width)
            cells.setdefault(cell, []).append((z, q, n))
        merged = [
            (
                min(z for z, _, _ in part),
                max(q for _, q, _ in part),
                sum(n for *_, n in part),
            )
            for part in cells.values()
        ]
        width *= 2
    return merged
