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
from test_kernel_groups import pair_of_coins

from pyg_trust.privacy.gaussian import gaussian_epsilon
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


def test_laws_that_take_minutes_are_not_measured():
    some = dict.fromkeys(range(64), Fraction(1, 64))
    groups.measured(some, 20, Fraction(2))
    for weights, k in (({**some, 64: Fraction(1)}, 20), (some, 21)):
        with pytest.raises(OverflowError, match='too wide'):
            groups.measured(weights, k, Fraction(2))
    # A share of units, of which a record is in at most all.
    law = groups.without_replacement(2, 5)
    with pytest.raises(OverflowError, match='no share'):
        law(1, 1, Fraction(2, 4), Fraction(9))
    with pytest.raises(OverflowError, match='no share'):
        law(1, 1, Fraction(3, 10), Fraction(9))
    (low, high), _ = law(1, 1, Fraction(2, 5), Fraction(9))
    assert 0 < low <= high < ONE
    whole = [(1e6, 1.0, 1)]
    assert groups.judge_group(whole, 1.0, 1e-5, 1024) == 'holds'
    assert groups.judge_group(whole, 1.0, 1e-5, 1025) == 'not proved'
    assert groups.judge_group(whole, 1.0, 1e-5, 0) == 'not proved'


@pytest.mark.parametrize('m', [None, 2])
def test_groups_that_are_hardly_drawn_are_proved_by_their_distance(m):
    # 1,000 steps at a rate of 10^-9, 3 units of a record at most.
    q, z = Fraction(1, 10**9), Fraction(5)
    moved = 1000 * q * 2 * 3 / z
    assert groups.judge_group([(z, q, 1000)], 0.0, moved, 3, m) == 'holds'
    # The distance itself is phi(0) of it: .3989.
    law = groups.coins(3) if m is None else groups.without_replacement(m, 3)
    (low, high), _ = law(0, 0, q, z)
    for bracket in (low, high):
        share = Fraction(1000 * bracket, ONE) / moved
        assert 0.39 < share < 0.4


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


def test_shifts_and_products_are_rounded_exactly():
    draw = random.Random(2)
    for _ in range(50):
        x, p = draw.randrange(1 << 20), draw.randrange(1, 12)
        quotient = Fraction(x, 1 << p)
        assert kernel.shifted(x, p, 0) == math.floor(quotient)
        assert kernel.shifted(x, p, 1) == math.ceil(quotient)
    assert kernel.shifted(64, 5, 1) == kernel.shifted(64, 5, 0) == 2
    x, y = ([draw.randrange(ONE) for _ in range(n)] for n in (4, 3))
    for rounding, whole in ((0, math.floor), (1, math.ceil)):
        assert kernel.convolved(x, y, rounding) == [
            whole(
                Fraction(
                    sum(x[i] * y[n - i] for i in range(4) if 0 <= n - i < 3),
                    ONE,
                )
            )
            for n in range(6)
        ]


def test_a_few_units_move_to_wider_cells():
    # By the proof: m / (1 + a) down and m a / (1 + a) up; from below pairs
    # m and m a meet between, one half of an odd mass for either side.
    draw = random.Random(3)
    for w in (0, 2, 5):
        m = [draw.randrange(2000) for _ in range(9)]
        with mpmath.workdps(60):
            a = mpmath.exp(mpmath.mpf(2) ** -w)
            most, least, rest = m[::2], m[::2], 0
            for i in range(1, 9, 2):
                most[i // 2] += int(mpmath.ceil(m[i] / (1 + a)))
                most[i // 2 + 1] += int(mpmath.ceil(m[i] * a / (1 + a)))
                low, high = -(-m[i] // 2), m[i] // 2
                met = min(rest, int(low / a)) if i > 1 else 0
                least[i // 2] += low + met
                if i > 1:
                    least[i // 2 - 1] += rest - met
                rest = high
            least[3] += rest
        assert kernel.halved(m, w, 1) == most
        assert kernel.halved(m, w, 0) == least


@pytest.mark.parametrize('counts', [(1,), (2,), (5,), (6, 3), (1, 8)])
@pytest.mark.parametrize('rounding', [0, 1])
def test_steps_are_composed_as_often_as_they_are(counts, rounding):
    # Losses of one cell up or down, on cells that hold them all.
    masses = [(Fraction(1, 8), Fraction(3, 16)), (Fraction(1, 4),) * 2]
    steps, true = [], {0: Fraction(1)}
    for (less, more), count in zip(masses, counts, strict=False):
        m = [0] * 129
        m[63], m[65] = int(less * ONE), int(more * ONE)
        m[64] = ONE - m[63] - m[65]
        steps.append((kernel.Losses(4, [m], 3), count))
        for _ in range(count):
            then = {}
            for at, mass in true.items():
                for j in (-1, 0, 1):
                    part = Fraction(m[64 + j], ONE) * mass
                    then[at + j] = then.get(at + j, 0) + part
            true = then
    found = kernel.composed(steps, 0, rounding)
    assert found.b == 4
    assert found.infinite == 3 * sum(counts)
    for i, mass in enumerate(found.levels[0]):
        assert abs(mass - true.get(i - 64, 0) * ONE) < 2 * sum(counts)


@pytest.mark.parametrize('law', ['wor', 'withdraw', 'exchanged'])
@pytest.mark.parametrize('r', [16, 64])
def test_points_are_those_of_the_levels(law, r):
    # Nothing is cut: to 2^10 upwards, to 2^6 downwards.
    about = law, Fraction(1, 2), Fraction(1, 9), r
    b, js = kernel.chosen(*about, -2 * ONE)
    assert (js[0], js[-1]) == (1024 << b, -64 << b)
    # A cell is a sixteenth of r deviations of a small loss, nearly.
    ((_, most), _), *_ = kernel.points(law, [0], 0, *about[1:3])
    assert most <= ONE * r / 2**b / 8 <= 4 * most
    for one, two in pairwise(js):
        far = max(abs(one), abs(two))
        k = max(0, (far - 1).bit_length() - r.bit_length() + 1)
        assert one - two == 1 << k
    # Ends are where no more than what may be cut is beyond, and not before.
    about, cut = (law, Fraction(1, 2), Fraction(2), r), ONE >> 12
    b, js = kernel.chosen(*about, cut)
    for ends in ((js[0], js[r // 2]), (js[-1], js[-1 - r // 2])):
        here, before = (
            (
                kernel.points(law, [at], b, *about[1:3])[0][0][1],
                ONE - intervals.exp(at, b, P)[1] if at < 0 else 0,
            )
            for at in ends
        )
        assert here[0] - here[1] <= cut
        assert before[0] - before[1] > cut or abs(ends[0]) <= r


def test_cells_hold_the_points_of_their_level():
    points = [*range(-8, 9), 10, -12, 16, 20, -32, 64]
    found = kernel.placed(((j, 1 + n) for n, j in enumerate(points)), 3, 8, 7)
    assert (found.b, found.infinite) == (3, 7)
    back = {
        (i - 8) << k: mass
        for k, m in enumerate(found.levels)
        for i, mass in enumerate(m)
        if mass
    }
    assert back == {j: 1 + n for n, j in enumerate(points)}
    assert [len(m) for m in found.levels] == [17] * 4
    # A point is on the finest level that holds it.
    assert all(k == 0 or not any(m[4:13]) for k, m in enumerate(found.levels))


def test_nothing_is_known_where_the_least_loss_may_be():
    # The slope there is anything, as w is between 0 and a unit.
    with mpmath.workprec(600):
        num = int(mpmath.floor(mpmath.log(mpmath.mpf(3) / 4) * 2**400))
    for z in (Fraction(1, 100), Fraction(2)):
        found = kernel.withdrawn(num, 400, Fraction(1, 4), z)
        assert found == ((0, ONE), (0, ONE))


def test_the_least_noise_on_coins_is_an_eighth():
    about = 1, 1, Fraction(1, 2)
    (low, high), _ = kernel.replaced(*about, Fraction(1, 8))
    assert 0 < low <= high < ONE
    with pytest.raises(OverflowError, match='too little'):
        kernel.replaced(*about, Fraction(124, 1000))


@pytest.mark.parametrize(
    ('high', 'low', 'steps', 'said', 'asked'),
    [
        # At the first cells; at the second; never; refuted at once.
        ({256: 1}, {}, 5, 'holds', [(256, 1)]),
        ({256: 1.01, 1024: 0.9}, {}, 5, 'holds', [(256, 1), (1024, 1)]),
        (
            *({256: 1.02, 1024: 1.001, 2048: 1.0001}, {2048: 1.0}, 5),
            'not proved',
            [(256, 1), (1024, 1), (2048, 1), (2048, 0)],
        ),
        ({256: 1.04}, {256: 1.001}, 5, 'FAILS', [(256, 1), (256, 0)]),
        ({256: 1}, {}, 1 << 40, 'holds', [(256, 1)]),
        ({256: 1}, {}, (1 << 40) + 1, 'not proved', []),
    ],
)
def test_bounds_are_asked_until_they_answer(
    monkeypatch, high, low, steps, said, asked
):
    seen = []

    def bound(law, lines, epsilon, delta, r, rounding):
        assert (law, epsilon) == ('wor', 1)
        assert lines == [(4, Fraction(1, 2), steps)]
        seen.append((r, rounding))
        return delta * Fraction((high if rounding else low)[r])

    monkeypatch.setattr(kernel, 'bound', bound)
    assert kernel.judge('wor', [(4.0, 0.5, steps)], 1.0, 0.25) == said
    assert seen == asked


def test_all_laws_have_to_hold(monkeypatch):
    for bad in ('withdraw', 'exchanged', None):

        def bound(law, lines, epsilon, delta, r, rounding, bad=bad):
            return delta * (3 if law == bad else 1)

        monkeypatch.setattr(kernel, 'bound', bound)
        found = kernel.judge('withdraw', [(4.0, 0.5, 3)], 1.0, 0.1)
        assert found == ('FAILS' if bad else 'holds')


def test_delta_is_closed_forms_beyond_its_largest_epsilon():
    square = Fraction(10**9)
    claim = gaussian_epsilon(30.0, 1e-5)
    assert kernel.judge_mu(Fraction(900), claim, 1e-5) == 'holds'
    assert kernel.judge_mu(square, 10_000.5, 0.9) == 'not proved'
    assert kernel.judge_mu(square, 10_000.0, 0.9) == 'FAILS'
    for bad in ((Fraction(-1, 2), 1.0), (Fraction(1, 4), -0.5)):
        assert kernel.judge_mu(*bad, 0.9) == 'FAILS'
    for bad in ((-0.5, 0.9), (0.5, 1.5), (0.5, 0.0), (0.5, -0.5)):
        assert kernel.judge_mu(Fraction(1, 9**9), *bad) == 'FAILS'
        assert kernel.judge('wor', [(1e9, 0.5, 1)], *bad) == 'FAILS'
    # As much as delta: mu / 2.5 is below it; and a bit more than 2.5.
    assert kernel.judge_mu(Fraction(1, 100), 0.0, Fraction(1, 10)) == 'holds'


@pytest.mark.parametrize(('law', 'moved'), [('wor', 2), ('withdraw', 1)])
def test_distances_below_all_masses_are_added(monkeypatch, law, moved):
    monkeypatch.setattr(kernel, 'bound', lambda *args: Fraction(args[-1]))
    # Of two kinds of steps; a mass is at least 2^-144.
    tiny = Fraction(1, 10**120)
    lines = [(4.0, tiny, 3), (Fraction(5), 7 * tiny, 2)]
    delta = moved * (3 * tiny / 4 + 14 * tiny / 5)
    assert kernel.judge(law, lines, 0.0, delta) == 'holds'
    assert (
        kernel.judge(law, lines, 0.0, delta * Fraction(999, 1000)) != 'holds'
    )


def test_a_law_has_a_name():
    for name in ('exchanged', 'coins', ''):
        with pytest.raises(ValueError, match="'withdraw': '" + name):
            kernel.judge(name, [(1.0, 0.5, 1)], 1.0, 0.1)


@pytest.mark.parametrize('seed', range(5))
def test_lines_fall_as_their_brackets_say(seed):
    draw, unit = random.Random(seed), 1 << 2 * P
    values = sorted(draw.randrange(99) for _ in range(5))
    ends = [(n, n + draw.randrange(9)) for n in range(900, 150, -150)]
    line, falls = [], [(0, 0)]
    for j, (gamma, at) in enumerate(zip(ends, values, strict=True)):
        line.append(kernel.linked(line, j, gamma, at))
        assert line[-1][:3] == (j, gamma, at)
        if j:
            steep = [
                Fraction(at - values[j - 1], x - y)
                for x in ends[j - 1]
                for y in gamma
            ]
            falls.append(
                (math.floor(min(steep) * unit), math.ceil(max(steep) * unit))
            )
        assert line[-1][3] == falls[j]
    kinks = [
        (two[0] - one[1], two[1] - one[0]) for one, two in pairwise(falls)
    ]
    # Where a line may not be convex, from above nothing is there.
    for rounding, whole in ((0, math.floor), (1, math.ceil)):
        assert list(kernel.kinks(line, rounding)) == [
            (
                j,
                whole(
                    Fraction(max(0, kink[rounding]) * gamma[rounding], unit)
                ),
            )
            for j, (kink, gamma) in enumerate(zip(kinks, ends, strict=False))
        ]


@pytest.mark.parametrize('seed', range(4))
def test_tangents_are_below_a_profile_of_lines(monkeypatch, seed):
    # Of losses 1 and -1 alone: all tangents are the profile, but at kinks.
    draw = random.Random(seed)

    def wide(right, *args):
        below, above = right(*args)
        unit = 1 << max(0, args[-1] - 40)
        below -= int(draw.random() * unit)
        return max(0, below), above + int(draw.random() * unit)

    def law(num, b, q, z):
        with mpmath.workprec(400):
            e, p = mpmath.mpf(num) / 2**b, 1 / (1 + mpmath.exp(-1))
            f, s = (p - mpmath.exp(e) * (1 - p), 1 - p) if e < 1 else (0, 0)
            return tuple(
                (
                    int(mpmath.floor((v - draw.random() / 2**40) * ONE)),
                    int(mpmath.ceil((v + draw.random() / 2**40) * ONE)),
                )
                for v in (f, s)
            )

    js = [*range(9, -10, -1)]
    monkeypatch.setattr(kernel, 'chosen', lambda *_: (2, js))
    exp = partial(wide, intervals.exp)
    monkeypatch.setattr(intervals, 'exp', exp)
    under = kernel.below(law, Fraction(1), Fraction(1), 16, 0)
    pairs = [
        ((i - 16) << k, Fraction(mass, ONE))
        for k, m in enumerate(under.levels)
        for i, mass in enumerate(m)
        if mass
    ]
    with mpmath.workprec(300):
        p = 1 / (1 + mpmath.exp(-1))
        for j in range(-9, 10):
            e = Fraction(j, 4)
            g = mpmath.exp(number(e))
            true = max(0, 1 - g, p - g * (1 - p))
            found = true_delta(pairs, 2, Fraction(0), e)
            assert found <= true
            assert true - found < 0.2 or j < -5


@pytest.mark.parametrize('m', [None, 8])
def test_weights_that_are_left_out_are_in_the_bracket(monkeypatch, m):
    q, z, k = Fraction(1, 5), Fraction(2), 3
    law = groups.coins(k) if m is None else groups.without_replacement(m, k)
    true = [law(num, 5, q, z) for num in (0, 9, 60)]
    # Three of three are drawn by less than .01: now that is left out.
    monkeypatch.setattr(groups, 'LEAST', Fraction(1, 50))
    for each in (groups.binomial, groups.hypergeometric, groups.heights):
        each.cache_clear()
    for num, wants in zip((0, 9, 60), true, strict=True):
        found = law(num, 5, q, z)
        for (less, most), (low, high) in zip(found, wants, strict=True):
            assert less <= low <= high <= most
    for each in (groups.binomial, groups.hypergeometric, groups.heights):
        each.cache_clear()
    assert groups.judge_group([(1e6, 1.0, 1)], 1.0, 1e-5, 1) == 'holds'
