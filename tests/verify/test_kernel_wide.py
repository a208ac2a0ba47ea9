"""Epsilon's proof where every bracket is wide, and on a few small numbers.

mpmath's exp and log come in brackets of three units, in which nobody sees the
wrong end taken. Here all are wide, with the truth at one end.
"""

import math
import random
from fractions import Fraction
from functools import partial
from itertools import pairwise

import mpmath
import pytest
from test_kernel_accounting import exact, number, true_delta

from pyg_trust.verify import accounting as kernel
from pyg_trust.verify import groups, intervals

ONE, P = intervals.ONE, intervals.P
LAWS = ('wor', 'replace', 'withdraw', 'exchanged')


def widened(monkeypatch, low, high):
    """Widen the brackets of all real numbers downwards, or upwards."""

    def wide(right, *args):
        below, above = right(*args)
        unit = 1 << max(0, args[-1] - 40)
        below, above = below - low * unit, above + high * unit
        return (max(0, below) if right is exp else below), above

    exp = intervals.exp
    for name in ('exp', 'log', 'tail', 'fixed'):
        right = partial(wide, getattr(intervals, name))
        monkeypatch.setattr(intervals, name, right)


def pair_of_coins(num, k, q, z):
    """F and its fall at ``num / 32``, the root by bisection."""
    with mpmath.workprec(400):
        w = [
            mpmath.binomial(k, i) * number(q) ** i * number(1 - q) ** (k - i)
            for i in range(k + 1)
        ]
        std, gamma = number(z), mpmath.exp(mpmath.mpf(num) / 32)
        # The loss grows; where it is log gamma no mass is gained.
        low, high = mpmath.mpf(0), 50 * std**2 + 50 * std
        for _ in range(200):
            x = (low + high) / 2
            gain = sum(
                v
                * mpmath.exp(-((i / std) ** 2) / 2)
                * (
                    mpmath.exp(i * x / std**2)
                    - gamma * mpmath.exp(-i * x / std**2)
                )
                for i, v in enumerate(w)
            )
            low, high = (x, high) if gain < 0 else (low, x)
        mine, other = (
            sum(v * mpmath.ncdf((side * i - x) / std) for i, v in enumerate(w))
            for side in (1, -1)
        )
        return mine - gamma * other, other


ENDS = pytest.mark.parametrize(('low', 'high'), [(1, 0), (0, 1), (0, 0)])


@ENDS
@pytest.mark.parametrize('law', LAWS)
def test_a_step_is_in_its_bracket(monkeypatch, law, low, high):
    widened(monkeypatch, low, high)
    q, z = Fraction(3, 10), Fraction(3, 2)
    for num in (-40, -3, 0, 9, 60):
        (found,) = kernel.points(law, [num], 5, q, z)
        with mpmath.workprec(600):
            wanted = exact(law, mpmath.mpf(num) / 32, q, z)
            for (less, most), want in zip(found, wanted, strict=True):
                assert less <= want * ONE <= most
                assert most - less < 16 + (low + high) * (ONE >> 20)


@ENDS
@pytest.mark.parametrize(('k', 'z'), [(2, Fraction(1)), (3, Fraction(5))])
def test_a_group_is_in_its_bracket(monkeypatch, k, z, low, high):
    groups.heights.cache_clear()
    widened(monkeypatch, low, high)
    # As wide as the bracket of a root then has to be.
    monkeypatch.setattr(groups, 'NEAR', 1 << groups.C - 25)
    q = Fraction(1, 5)
    for num in (0, 9, 60):
        found = groups.coins(k)(num, 5, q, z)
        for (less, most), want in zip(
            found, pair_of_coins(num, k, q, z), strict=True
        ):
            assert less <= want * ONE <= most
            assert most - less < ONE >> 3 or low
    groups.heights.cache_clear()


@ENDS
@pytest.mark.parametrize('n', [10, 400])
def test_a_group_that_is_drawn_is_in_its_bracket(monkeypatch, n, low, high):
    widened(monkeypatch, low, high)
    q, z, k, m = Fraction(1, 5), Fraction(4), 3, n // 5
    w = [
        Fraction(math.comb(k, i) * math.comb(n - k, m - i), math.comb(n, m))
        for i in range(min(m, k) + 1)
    ]
    for num in (0, 60):
        found = groups.without_replacement(m, k)(num, 5, q, z)
        with mpmath.workprec(400):
            each = [
                exact('withdraw', mpmath.mpf(num) / 32, 1 - w[0], z / (2 * i))
                for i in range(1, len(w))
            ]
            for side, (less, most) in enumerate(found):
                want = sum(
                    number(share / (1 - w[0])) * one[side]
                    for share, one in zip(w[1:], each, strict=True)
                )
                assert less <= want * ONE <= most
                assert most - less < 16 + (low + high) * (ONE >> 7)


@ENDS
@pytest.mark.parametrize('law', ['wor', 'exchanged'])
def test_losses_are_on_their_side(monkeypatch, law, low, high):
    about = law, Fraction(3, 5), Fraction(1), 16, ONE >> 12
    b, js = kernel.chosen(*about)
    monkeypatch.setattr(kernel, 'chosen', lambda *_: (b, js))
    widened(monkeypatch, low, high)
    over, under = kernel.above(*about), kernel.below(*about)
    ends = [Fraction(j, 2**b) for j in js]
    ends = [*ends[::3], *((i + j) / 2 for i, j in list(pairwise(ends))[::5])]
    with mpmath.workprec(200):
        places = [
            [
                ((i - 16) << k, Fraction(mass, ONE))
                for k, m in enumerate(x.levels)
                for i, mass in enumerate(m)
                if mass
            ]
            for x in (over, under)
        ]
        assert under.infinite == 0
        # The last value, and a slope of -1 before the first point.
        last, first = mpmath.mpf(js[0]) / 2**b, mpmath.mpf(js[-1]) / 2**b
        end = over.infinite - exact(law, last, *about[1:3])[0] * ONE
        every = sum(map(sum, over.levels)) + over.infinite
        every -= (exact(law, first, *about[1:3])[0] + mpmath.exp(first)) * ONE
        assert min(every, end) >= 0
        assert max(every, end) < 999 or low + high
        infinite = Fraction(over.infinite, ONE)
        for e in ends:
            true, _ = exact(law, number(e), *about[1:3])
            most = true_delta(places[0], b, infinite, e)
            less = true_delta(places[1], b, Fraction(0), e)
            assert less <= true <= most
            assert most - less < 0.05 or e > 3


@ENDS
@pytest.mark.parametrize('rounding', [0, 1])
def test_masses_that_move_are_on_their_side(monkeypatch, rounding, low, high):
    widened(monkeypatch, low, high)
    draw = random.Random(1)
    for b in (1, 3):
        m = [draw.randrange(ONE >> 4) for _ in range(17)]
        found = kernel.Losses(b, [m], 5)
        after = kernel.coarsened(found, rounding)
        with mpmath.workprec(200):
            for e in (Fraction(n, 8) for n in range(-40, 41)):
                one, two = (
                    true_delta(
                        [(i - 8, Fraction(n, ONE)) for i, n in enumerate(m)],
                        *(x.b, Fraction(5, ONE), e),
                    )
                    for x, m in ((found, m), (after, after.levels[0]))
                )
                assert two >= one if rounding else two <= one
                value = number(kernel.delta_of(found, e, rounding))
                assert value >= one if rounding else value <= one
                assert abs(value - one) < 1e-9


@ENDS
@pytest.mark.parametrize('mu', [0.01, 0.7, 5.0])
@pytest.mark.parametrize('epsilon', [0.01, 1.0, 9.0])
def test_a_closed_form_is_never_wrong(monkeypatch, mu, epsilon, low, high):
    widened(monkeypatch, low, high)
    with mpmath.workprec(300):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        true = mpmath.ncdf(m / 2 - e / m)
        true -= mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
        # Half of a bracket's width to either side of the truth.
        width = mpmath.mpf(2) ** -42
        if true < 4 * width:
            return
        less, more = (
            Fraction(int((true + side * width / 2**20) * 2**200), 2**200)
            for side in (-1, 1)
        )
    square = Fraction(mu) ** 2
    assert kernel.judge_mu(square, epsilon, less) != 'holds'
    assert kernel.judge_mu(square, epsilon, more) != 'FAILS'
    if not low + high:
        assert kernel.judge_mu(square, epsilon, less) == 'FAILS'
        assert kernel.judge_mu(square, epsilon, more) == 'holds'
