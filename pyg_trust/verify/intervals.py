r"""Real numbers between two integers.

A bracket ``(lo, hi)`` of :math:`p` bits holds every number from :math:`lo\,
2^{-p}` to :math:`hi\, 2^{-p}`: lower ends are rounded down, upper ends up. exp
and log are mpmath's at 24 bits more than needed, as pi is, widened by a unit;
nothing else is trusted of it.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from mpmath.libmp import from_man_exp, mpf_exp, mpf_log, mpf_pi, to_fixed

Bracket = tuple[int, int]

P = 144  # bits of probabilities
ONE = 1 << P
B = P + 160  # bits of the arguments of their functions


def up(a: int, b: int) -> int:
    """Divide and round up; ``//`` rounds down."""
    return -(-a // b)


def times(x: Bracket, y: Fraction) -> Bracket:
    """Bracket the product of a bracket and a fraction."""
    lo, hi = sorted((x[0] * y.numerator, x[1] * y.numerator))
    return lo // y.denominator, up(hi, y.denominator)


def fixed(x: Fraction, p: int) -> Bracket:
    """Bracket a fraction with ``p`` bits."""
    return times((1 << p, 1 << p), x)


def minus(x: Bracket, y: Bracket) -> Bracket:
    """Bracket a difference."""
    return x[0] - y[1], x[1] - y[0]


def exp(num: int, b: int, p: int) -> Bracket:
    """Bracket ``e^(num 2^-b)`` with ``p`` bits."""
    num, b = num << max(0, -b), max(0, b)
    prec = p + max(0, (3 * num >> b) // 2) + 24
    v = to_fixed(mpf_exp(from_man_exp(num, -b), prec), p)
    return max(0, v - 1), v + 2


def log(num: int, b: int, p: int) -> Bracket:
    """Bracket ``log(num 2^-b)`` with ``p`` bits, ``num`` positive."""
    prec = p + (num.bit_length() - b).bit_length() + 24
    v = to_fixed(mpf_log(from_man_exp(num, -b), prec), p)
    return v - 1, v + 2


def root(p: int) -> Bracket:
    r"""Bracket :math:`1 / \sqrt{2 \pi}` with ``p`` bits."""
    pi, square = to_fixed(mpf_pi(p + 24), p), 1 << 3 * p - 1
    return math.isqrt(square // (pi + 2)), math.isqrt(square // (pi - 1)) + 1


def tail(num: int, b: int, p: int) -> Bracket:
    r"""Bracket the upper tail :math:`\Phi_c(num\, 2^{-b})` with ``p`` bits.

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
    # The terms are above 2^-w while 2 x^2 is not below k.
    while hi > 1:
        lo = (lo * square >> shift) // k
        hi = up(hi * square, k << shift)
        s_lo, s_hi, k = s_lo + lo, s_hi + hi, k + 2
    v = w + 3 * half // 2 + 8
    e_lo, e_hi = exp(-square, shift + 1, v)
    r_lo, r_hi = root(v)
    middle, down = 1 << (w + 2 * v - 1), w + 2 * v - p
    lo = (middle - (s_hi + 2 * hi + 2) * e_hi * r_hi) >> down
    return max(0, lo), up(middle - s_lo * e_lo * r_lo, 1 << down)


def between(x: Bracket, p: int, b: int = B) -> Bracket:
    """Bracket the tail over a bracket of ``b`` bits, by slopes up to 1/2."""
    lo, hi = tail(x[1], b, p)
    return lo, min(1 << p, hi + up((x[1] - x[0]) << p, 2 << b))


def plus(x: Bracket, y: Bracket) -> Bracket:
    """Bracket a sum."""
    return x[0] + y[0], x[1] + y[1]


def rising(f: Callable[..., Bracket], x: Bracket, p: int) -> Bracket:
    """Bracket a growing function, such as exp, with ``p`` bits."""
    return f(x[0], p, p)[0], f(x[1], p, p)[1]


def product(x: Bracket, y: Bracket, less: int) -> Bracket:
    """Bracket a product of numbers >= 0, and drop ``less`` bits."""
    return x[0] * y[0] >> less, up(x[1] * y[1], 1 << less)


def coarser(x: Bracket, less: int) -> Bracket:
    """Drop the last ``less`` bits of a bracket, rounded outwards."""
    return x[0] >> less, up(x[1], 1 << less)
