"""Brackets of exp, log, pi and tails where they are about to be wrong."""

import random
from fractions import Fraction
from statistics import NormalDist

import mpmath
import pytest
from mpmath.libmp import mpf_mul

from pyg_trust.verify import intervals


def wrong(monkeypatch, name, sign, bits):
    """Let a function of mpmath be off by nearly so many bits."""
    right = getattr(intervals, name)

    def off(*args):
        *first, prec = args
        unit = mpmath.mpf(2) ** (bits - prec)
        with mpmath.workprec(prec + 60):
            factor = mpmath.mpf(1) + sign * unit * (1 - mpmath.mpf(2) ** -9)
        return mpf_mul(right(*first, prec + 60), factor._mpf_)

    monkeypatch.setattr(intervals, name, off)


@pytest.mark.parametrize('sign', [-1, 1])
def test_the_last_bits_of_mpmath_are_not_trusted(monkeypatch, sign):
    # 24 bits more than needed: all of these may be wrong.
    for name, bits in (('mpf_exp', 24), ('mpf_log', 24), ('mpf_pi', 22)):
        wrong(monkeypatch, name, sign, bits)
    with mpmath.workprec(900):
        # As near to a whole number as may be, on both sides.
        for p in (20, 144):
            for num, b in ((1, p + 30), (-1, p + 30), (0, 0), (40, 0)):
                lo, hi = intervals.exp(num, b, p)
                true = mpmath.exp(mpmath.mpf(num) / 2**b) * 2**p
                assert lo <= true <= hi <= lo + 3
            # Logarithms are largest for their bits next to 1/4, 1/16, ....
            near = [(2**60 + i, 60 + k) for i in range(20) for k in (2, 4, 16)]
            for num, b in ((1, 300), (1 << 300, 0), (3, 1), (7, 90), *near):
                lo, hi = intervals.log(num, b, p)
                true = mpmath.log(mpmath.mpf(num) / 2**b) * 2**p
                assert lo <= true <= hi <= lo + 3
        for p in range(8, 400):
            lo, hi = intervals.root(p)
            true = 2**p / mpmath.sqrt(2 * mpmath.pi)
            assert lo <= true <= hi <= lo + 2


def test_what_is_positive_has_no_bracket_below_zero():
    assert intervals.exp(-(10**4), 0, 144) == (0, 2)
    # From where a tail is less than a unit.
    for x in (16, 17, 40, 1000):
        assert intervals.tail(x, 0, 144) == (0, 1)
    assert intervals.tail(-40, 0, 144) == ((1 << 144) - 1, 1 << 144)


@pytest.mark.parametrize('p', [20, 60, 144, 300])
def test_tails_of_less_than_a_few_units_are_bracketed(p):
    # Around where e^(-x^2 / 2) is a unit: the series is left out beyond.
    with mpmath.workprec(2 * p + 300):
        for part in range(9 * p, 17 * p, p // 5):
            num = int(mpmath.sqrt(Fraction(part, 20) * 2) * 2**60)
            lo, hi = intervals.tail(num, 60, p)
            true = mpmath.ncdf(-mpmath.mpf(num) / 2**60) * 2**p
            assert 0 <= lo <= true <= hi <= lo + 2


@pytest.mark.parametrize('p', range(1, 12))
def test_tails_of_few_bits_are_bracketed(p):
    for num in range(-100, 100):
        lo, hi = intervals.tail(num, 4, p)
        assert lo <= mpmath.ncdf(-num / 16) * 2**p <= hi <= lo + 2


def places_of(units, p):
    """Where a tail is so many units of 2^-p, by Newton's method."""
    x = mpmath.mpf(-NormalDist().inv_cdf(units / 2**p))
    for _ in range(7):
        x += (mpmath.ncdf(-x) - mpmath.mpf(units) / 2**p) / mpmath.npdf(x)
    return x


@pytest.mark.parametrize('p', [9, 16, 40])
def test_tails_next_to_a_unit_are_on_its_right_side(p):
    draw = random.Random(p)
    with mpmath.workprec(400):
        for bits in range(1, p):
            units = draw.randrange(2 ** (bits - 1), 2**bits)
            x = places_of(units, p)
            for b in (p + 4, p + 9, 150, 160):
                num = int(mpmath.floor(x * 2**b))
                ends = [mpmath.ncdf(-mpmath.mpf(num + i) / 2**b) * 2**p
                        for i in (0, 1)]  # fmt: skip
                assert ends[1] <= units <= ends[0]
                for i, true in enumerate(ends):
                    lo, hi = intervals.tail(num + i, b, p)
                    assert lo <= true <= hi <= lo + 2
                    lo, hi = intervals.tail(-num - i, b, p)
                    assert lo <= 2**p - true <= hi <= lo + 2
                lo, hi = intervals.between((num, num + 1), p, b)
                assert lo <= ends[1] <= ends[0] <= hi <= lo + 3


@pytest.mark.parametrize(('num', 'b'), [(-1, 0), (-1, 60), (0, 3), (1, 200)])
def test_tails_about_zero_are_bracketed(num, b):
    with mpmath.workprec(600):
        lo, hi = intervals.tail(num, b, 144)
        true = mpmath.ncdf(-mpmath.mpf(num) / 2**b) * 2**144
        assert lo <= true <= hi <= lo + 2
