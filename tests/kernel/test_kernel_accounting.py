"""Epsilon in integers, against closed forms, definitions and faults."""

import math
from fractions import Fraction

import mpmath
import pytest

from pyg_trust.functional import (
    gaussian_epsilon,
    poisson_epsilon,
    wor_epsilon,
)
from pyg_trust.functional.mechanisms import wor_profile
from pyg_trust.functional.poisson import poisson_profile
from pyg_trust.kernel import accounting as kernel

# (rate, noise, steps, delta, epsilon): of
# ../shared/oracles/exact_arithmetic/epsilon_intervals.py, chords at 2^-10.
KNOWN = [
    (0.4, 8.0, 50, 1e-6, 3.580415837),
    pytest.param(*(0.05, 2.0, 100, 1e-5, 3.848978133), marks=pytest.mark.slow),
    (0.4, 8.0, 50, 1e-10, 4.904423649),
]


def chords(law, q, z, steps, delta, epsilon, h, rounding=1):
    """Delta by chords, or by tangents."""
    q, z = Fraction(q), Fraction(z)
    cut = int(Fraction(delta) * kernel.ONE) // (steps << 36)
    masses = (kernel.below, kernel.above)[rounding](law, q, z, h, cut)
    total = kernel.composed(
        [(masses, steps)], int(Fraction(delta) * kernel.UNIT) >> 40, rounding
    )
    return kernel.delta_of(total, Fraction(epsilon), h, rounding)


@pytest.mark.parametrize('x', [0.0, 0.3, 1.0, 2.5, 7.0, 11.0, -3.0, 30.0])
@pytest.mark.parametrize('p', [20, 150])
def test_tails_are_bracketed(x, p):
    with mpmath.workprec(600):
        true = (
            mpmath.ncdf(-mpmath.mpf(int(x * 2**40)) / 2**40)
            * mpmath.mpf(2) ** p
        )
        lo, hi = kernel.tail(int(x * 2**40), 40, p)
        assert lo <= true <= hi <= lo + 2


@pytest.mark.parametrize('x', [0.0, 1e-9, -1.5, 40.0, -200.0, 300.0])
def test_exponentials_and_logarithms_are_bracketed(x):
    num = int(Fraction(x) * 2**60)
    with mpmath.workprec(2000):
        exact = mpmath.mpf(num) / 2**60
        lo, hi = kernel.exp(num, 60, 120)
        assert lo <= mpmath.exp(exact) * 2**120 <= hi <= lo + 3
        if x > 0 and num:
            lo, hi = kernel.log(num, 60, 120)
            assert lo <= mpmath.log(exact) * 2**120 <= hi <= lo + 3


@pytest.mark.parametrize('law', ['wor', 'replace', 'withdraw', 'exchanged'])
@pytest.mark.parametrize(
    ('q', 'z'), [(0.05, 2.0), (0.4, 8.0), (0.7, 0.6), (1.0, 1.5)]
)
def test_the_profile_is_that_of_the_definition(law, q, z):
    # F as a maximum over thresholds, by mpmath, which no bracket is from.
    for num in (-40, -1, 0, 9, 60):
        (f, s), *_ = kernel.points(law, [num], 5, Fraction(q), Fraction(z))
        with mpmath.workdps(60):
            true = profile(law, num / 32, q, z)
            assert f[0] <= true * kernel.ONE + 2**20, (num, true)
            assert true * kernel.ONE <= f[1] + 2**20, (num, true)
            assert f[1] - f[0] < 2**20
            step = mpmath.mpf(2) ** -30
            g = mpmath.exp(mpmath.mpf(num) / 32)
            near = profile(law, mpmath.log(g + step), q, z)
            slope = (true - near) / step
            # Convex: flatter from here on, and no kink but at zero.
            assert slope * kernel.ONE <= s[1] + 2**40
            if num:
                assert s[0] / kernel.ONE == pytest.approx(
                    float(slope), abs=1e-6
                )


def profile(law, epsilon, q, z):
    g = mpmath.exp(epsilon)
    if law == 'exchanged':
        return 1 - g + g * profile('withdraw', -epsilon, q, z)
    if law != 'withdraw' and epsilon < 0:
        return 1 - g + g * profile(law, -epsilon, q, z)
    q, z = mpmath.mpf(q), mpmath.mpf(z)
    if law == 'wor':
        z /= 2

    def gain(t):
        mine = (1 - q) * mpmath.ncdf(-t / z) + q * mpmath.ncdf((1 - t) / z)
        if law == 'replace':
            other = (1 - q) * mpmath.ncdf(-t / z)
            other += q * mpmath.ncdf((-1 - t) / z)
        else:
            other = mpmath.ncdf(-t / z)
        return mine - g * other

    low, high = mpmath.mpf(-16) * z, 16 * z + 60 * z * z
    for _ in range(120):  # golden section: one maximum
        one, two = (
            low + (high - low) * 382 / 1000,
            low + (high - low) * 618 / 1000,
        )
        low, high = (one, high) if gain(one) < gain(two) else (low, two)
    return max(gain(low), 1 - g, mpmath.mpf(0))


@pytest.mark.parametrize(('q', 'z', 'steps', 'delta', 'epsilon'), KNOWN)
def test_known_values_are_reproduced(q, z, steps, delta, epsilon):
    # Windows and grids of the two differ by less than that.
    for change, holds in ((1e-6, True), (-1e-6, False)):
        found = chords('wor', q, z, steps, delta, epsilon + change, 10)
        assert (found <= Fraction(delta)) == holds


def test_rate_one_is_the_closed_form():
    claim = gaussian_epsilon(1.0, 1e-6)
    assert abs(claim - 4.886554117) < 1e-9
    lines = [(8.0, 1, 16)]
    assert kernel.judge('wor', lines, claim, 1e-6) == 'holds'
    assert kernel.judge('wor', lines, claim * (1 - 1e-9), 1e-6) == 'FAILS'
    assert kernel.judge('withdraw', [(4.0, 1, 16)], claim, 1e-6) == 'holds'


@pytest.mark.parametrize('mu', [1e-3, 0.3, 1.0, 6.0, 20.0])
@pytest.mark.parametrize('delta', [1e-3, 1e-5, 1e-30])
def test_closed_forms_hold_to_their_last_digits(mu, delta):
    claim = gaussian_epsilon(mu, delta)
    exact = Fraction(mu) ** 2
    assert kernel.judge_mu(exact, claim, delta) == 'holds'
    if claim:
        less = claim * (1 - 1e-6)
        assert kernel.judge_mu(exact, less, delta) == 'FAILS'


@pytest.mark.parametrize(
    ('law', 'lines', 'delta'),
    [
        ('wor', [(8.0, 0.4, 50)], 1e-6),
        pytest.param(
            *('wor', [(8.0, 0.4, 20), (6.0, 0.5, 3), (20.0, 1.0, 2)], 1e-5),
            marks=pytest.mark.slow,
        ),
        ('replace', [(6.0, 0.3, 20)], 1e-5),
        pytest.param(
            *('withdraw', [(3.0, 0.3, 20)], 1e-5), marks=pytest.mark.slow
        ),
    ],
)
def test_claims_of_the_fast_code_are_proved(law, lines, delta):
    if law == 'wor':
        claim = wor_epsilon([(z / 2, q, n) for z, q, n in lines], delta)
    else:
        claim = poisson_epsilon(lines, delta, law)
    assert kernel.judge(law, lines, claim, delta) == 'holds'
    assert kernel.judge(law, lines, claim * 0.999, delta) == 'FAILS'


@pytest.mark.parametrize('law', ['wor', 'replace', 'withdraw', 'exchanged'])
def test_both_bounds_are_around_the_definition(law):
    # One step is the profile itself, to the grid's second order.
    if law == 'wor':
        true = wor_profile(0.2, 0.3, 1.0)
    else:
        form = law if law == 'replace' else 'withdraw'
        true = poisson_profile(0.2, 0.3, 2.0, form)
    high = chords(law, 0.3, 2.0, 1, 1e-5, 0.2, 8)
    low = chords(law, 0.3, 2.0, 1, 1e-5, 0.2, 8, 0)
    assert low < high < Fraction(1.05) * low
    if law == 'exchanged':
        assert high < true
    else:
        assert low <= Fraction(true) * Fraction(1 + 1e-9)
        assert high >= Fraction(true) * Fraction(1 - 1e-9)


def number(fraction):
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def test_every_composition_by_enumeration():
    # Two and three losses on a small grid, by all combinations.
    unit = kernel.UNIT
    masses = [unit // 8, unit // 3, unit // 2], -1, unit // 24
    for steps in (2, 3):
        up = kernel.composed([(masses, steps)], 0, 1)
        down = kernel.composed([(masses, steps)], 0, 0)
        exact = {}
        for cell in range(3**steps):
            share, place = Fraction(1), 0
            for _ in range(steps):
                cell, one = divmod(cell, 3)
                share *= Fraction(masses[0][one], unit)
                place += one - 1
            exact[place] = exact.get(place, 0) + share
        for place, share in exact.items():
            at = place - up[1]
            assert Fraction(down[0][place - down[1]], unit) <= share
            assert share <= Fraction(up[0][at], unit)
            assert up[0][at] - down[0][place - down[1]] < 50
        for epsilon in (Fraction(0), Fraction(1, 3), Fraction(1, 2)):
            with mpmath.workdps(60):
                true = mpmath.mpf(up[2]) / unit
                for place, share in exact.items():
                    loss = mpmath.mpf(place) / 4
                    gap = mpmath.mpf(epsilon.numerator) / epsilon.denominator
                    if loss > gap:
                        part = 1 - mpmath.exp(gap - loss)
                        true += part * share.numerator / share.denominator
                high = kernel.delta_of(up, epsilon, 2, 1)
                low = kernel.delta_of((down[0], down[1], up[2]), epsilon, 2, 0)
                assert float(low) == pytest.approx(float(true), abs=1e-30)
                tiny = mpmath.mpf(10) ** -50
                assert number(low) <= true + tiny
                assert true <= number(high) + tiny
                assert float(high - low) < 1e-30


def test_a_cut_top_is_infinite_and_a_cut_bottom_moves_up():
    unit = kernel.UNIT
    masses = [5, unit // 2, unit // 2 - 10, 5], 0, 0
    one = [unit], 0, 0
    m, first, infinite = kernel.convolved(masses, one, 5, 1)
    assert (m, first, infinite) == ([unit // 2 + 5, unit // 2 - 10], 1, 5)
    m, first, infinite = kernel.convolved(masses, one, 5, 0)
    assert (m, first, infinite) == ([unit // 2, unit // 2 - 10], 1, 0)


def test_a_coarse_grid_does_not_prove():
    q, z, steps, delta, epsilon = KNOWN[0]
    claim = epsilon + 2e-8
    assert chords('wor', q, z, steps, delta, claim, 6) > Fraction(delta)
    assert chords('wor', q, z, steps, delta, claim, 10) <= Fraction(delta)


@pytest.mark.parametrize(
    ('epsilon', 'delta'),
    [(-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (1.0, -1e-5)],
)
def test_what_is_no_claim_fails(epsilon, delta):
    assert kernel.judge('wor', [(2.0, 0.5, 1)], epsilon, delta) == 'FAILS'
    assert kernel.judge_mu(Fraction(1), epsilon, delta) == 'FAILS'


def test_nothing_released_needs_no_epsilon():
    assert kernel.judge('wor', [], 0.0, 1e-5) == 'holds'
    assert kernel.judge('replace', [(2.0, 0.5, 0)], 0.0, 1e-5) == 'holds'
    assert math.isclose(gaussian_epsilon(0.0, 1e-5), 0.0)


@pytest.mark.parametrize('law', ['wor', 'replace', 'withdraw'])
def test_steps_that_nearly_never_tell_are_proved_by_their_distance(law):
    # No epsilon is needed while q mu adds up to less than delta; of a step
    # of rate 1 the distance is mu / 2.507, a bit less if mu is large.
    z, n, delta = 4.0, 1000, 1e-6
    mu = (1 if law == 'withdraw' else 2) / z
    rate = 0.99 * delta / mu / n
    assert kernel.judge(law, [(z, rate, n)], 0.0, delta) == 'holds'
    far = [(z, 1.0, 1)]
    assert kernel.judge(law, far, 0.0, mu * 0.99 / 2.51) == 'FAILS'
    assert kernel.judge_mu(Fraction(mu) ** 2, 0.0, mu * 1.01) == 'holds'
    assert kernel.judge_mu(Fraction(mu) ** 2, 0.0, mu / 2.6) == 'FAILS'


def test_noise_beyond_all_measure_is_no_error():
    # The root of a millionth millionth had no bit left: a division by zero.
    tiny = Fraction(1, 10**4000)
    assert kernel.judge_mu(tiny, 1.0, 1e-5) == 'holds'
    assert kernel.judge_mu(tiny, 0.0, 5e-324) == 'holds'
    assert kernel.judge_mu(Fraction(10**616), 9999.0, 0.5) == 'FAILS'
