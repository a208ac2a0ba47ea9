"""Epsilon in integers, against closed forms, definitions and faults."""

import math
import random
import time
from fractions import Fraction
from itertools import pairwise

import mpmath
import pytest

from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.poisson import poisson_epsilon
from pyg_trust.verify import accounting as kernel
from pyg_trust.verify import intervals
from pyg_trust.verify.groups import judge_group

# (rate, noise, steps, delta, epsilon): of
# ../shared/oracles/exact_arithmetic/epsilon_intervals.py, chords at 2^-10.
KNOWN = [
    (0.4, 8.0, 50, 1e-6, 3.580415837),
    (0.05, 2.0, 100, 1e-5, 3.848978133),
    (0.4, 8.0, 50, 1e-10, 4.904423649),
]


def chords(law, q, z, steps, delta, epsilon, r, rounding=1):
    """Delta by chords, or by tangents."""
    lines = [(Fraction(z), Fraction(q), steps)]
    about = Fraction(epsilon), Fraction(delta)
    return kernel.bound(law, lines, *about, r, rounding)


@pytest.mark.parametrize(('q', 'z', 'steps', 'delta', 'epsilon'), KNOWN)
def test_known_values_are_reproduced(q, z, steps, delta, epsilon):
    # Upper bounds by chords at 2^-10, and what both bounds lose beside.
    lines = [(z, q, steps)]
    assert kernel.judge('wor', lines, epsilon + 5e-5, delta) == 'holds'
    assert chords('wor', q, z, steps, delta, epsilon - 5e-4, 1024, 0) > delta


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
        ('wor', [(8.0, 0.4, 5), (12.0, 0.5, 3), (20.0, 1.0, 2)], 1e-3),
        ('replace', [(6.0, 0.3, 20)], 1e-5),
        ('withdraw', [(3.0, 0.3, 20)], 1e-5),
    ],
)
def test_claims_of_the_fast_code_are_proved(law, lines, delta):
    if law == 'wor':
        claim = wor_epsilon(lines, delta)
    else:
        claim = poisson_epsilon(lines, delta, law)
    assert kernel.judge(law, lines, claim, delta) == 'holds'
    assert kernel.judge(law, lines, claim * 0.999, delta) == 'FAILS'


@pytest.mark.parametrize('law', ['wor', 'replace', 'withdraw'])
def test_small_rates_of_many_steps_are_proved(law):
    # The fast code's step is 4e-5 wide, 500,000 of them: on levels, 12,000.
    lines, delta = [(1.0, Fraction(1, 1000), 10_000)], 1e-5
    if law == 'wor':
        claim = wor_epsilon([(1.0, 0.001, 10_000)], delta)
    else:
        claim = poisson_epsilon([(1.0, 0.001, 10_000)], delta, law)
    start = time.process_time()
    assert kernel.judge(law, lines, claim, delta) == 'holds'
    assert time.process_time() - start < 60
    if law == 'wor':
        assert kernel.judge(law, lines, claim * 0.95, delta) == 'FAILS'


def number(fraction):
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def some_losses(r=8, b=2, levels=3, seed=0):
    """Masses on several levels, and the same as fractions by place."""
    rng = random.Random(seed)
    made = [[0] * (2 * r + 1) for _ in range(levels)]
    for k, m in enumerate(made):
        for i in range(2 * r + 1):
            if k == 0 or abs(i - r) > r // 2:
                m[i] = rng.randrange(intervals.ONE >> 7 + k)
    return kernel.Losses(b, made, rng.randrange(intervals.ONE >> 9))


def atoms(x):
    """Losses in 2^-b, with their masses under P."""
    r = len(x.levels[0]) // 2
    return [
        ((i - r) << k, Fraction(mass, intervals.ONE))
        for k, m in enumerate(x.levels)
        for i, mass in enumerate(m)
        if mass
    ]


def true_delta(pairs, b, infinite, epsilon):
    with mpmath.workdps(60):
        total = number(infinite)
        for place, mass in pairs:
            gap = number(epsilon) - mpmath.mpf(place) / 2**b
            if gap < 0:
                total += number(mass) * (1 - mpmath.exp(gap))
        return total


def exact(law, epsilon, q, z):
    """F and its slope by tails of the outputs, the root by bisection."""
    swap = law == 'exchanged' or (law != 'withdraw' and epsilon < 0)
    q, z = number(q), number(z / 2 if law == 'wor' else z)
    gamma, epsilon = mpmath.exp(epsilon), -epsilon if swap else epsilon

    def loss(x):
        one = mpmath.log(1 - q + q * mpmath.exp((2 * x - 1) / (2 * z**2)))
        if law != 'replace':
            return one
        return one - mpmath.log(
            1 - q + q * mpmath.exp((-2 * x - 1) / (2 * z**2))
        )

    low, high = -80 * z - 99 * z**2, 80 * z + 99 * z**2
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < epsilon else (low, middle)
    side = -1 if swap else 1
    none, mine, other = (
        mpmath.ncdf(side * (mean - low) / z)
        for mean in (0, 1, -1 if law == 'replace' else 0)
    )
    mine, other = (1 - q) * none + q * mine, (1 - q) * none + q * other
    if swap:
        mine, other = other, mine
    return max(mine - gamma * other, mpmath.mpf(0)), other


def lower_hull(x, y):
    """The highest convex function below points, by all pairs of them."""
    return [
        min(
            y[i] + (y[k] - y[i]) * (x[j] - x[i]) / (x[k] - x[i])
            if k > i
            else y[j]
            for i in range(j + 1)
            for k in range(j, len(x))
        )
        for j in range(len(x))
    ]


@pytest.mark.parametrize(
    ('law', 'q', 'z'),
    [
        ('wor', 0.7, 0.8),
        ('replace', 0.3, 2.0),
        ('withdraw', 0.3, 2.0),
        ('exchanged', 0.7, 0.8),
    ],
)
def test_losses_are_the_chords_and_the_hull_of_tangents(law, q, z):
    about = law, Fraction(q), Fraction(z), 16, intervals.ONE >> 24
    b, js = kernel.chosen(*about)
    assert js == sorted(set(js), reverse=True)
    js = js[::-1]
    assert min(js) < 0 < max(js)
    high, low = kernel.above(*about), kernel.below(*about)
    assert high.b == low.b == b
    with mpmath.workprec(240):
        at = [Fraction(j, 2**b) for j in js]
        g = [mpmath.exp(number(e)) for e in at]
        f = [exact(law, number(e), *about[1:3])[0] for e in at]
        infinite = Fraction(high.infinite, intervals.ONE)
        # Chords: what is lost between two points is not lost at them.
        for e, want in zip(at, f, strict=True):
            found = true_delta(atoms(high), b, infinite, e)
            assert 0 <= found - want < mpmath.mpf(10) ** -38
        # Before the first point all outputs of Q are below.
        for e in (at[0] - Fraction(1, 9), at[0] - 3):
            want = f[0] + g[0] - mpmath.exp(number(e))
            found = true_delta(atoms(high), b, infinite, e)
            assert 0 <= found - want < mpmath.mpf(10) ** -38
            true = exact(law, number(e), *about[1:3])[0]
            assert true_delta(atoms(low), b, Fraction(0), e) <= true
        # Tangents in the middle of all cells; the lower of two at a point.
        ends = list(pairwise(range(len(js))))
        lines = []
        for i, j in ends:
            middle = number(at[i] + at[j]) / 2
            value, slope = exact(law, middle, *about[1:3])
            lines.append((value, slope, mpmath.exp(middle)))
        lowest = [
            min(
                value - slope * (g[j] - gamma)
                for value, slope, gamma in lines[max(0, j - 1) : j + 1]
            )
            for j in range(len(js))
        ]
        while lowest[-1] < 0:
            lowest.pop()
        # The lowest point has no cell below.
        at, g, f, lowest = at[1:], g[1:], f[1:], lowest[1:]
        hull = lower_hull(g[: len(lowest)], lowest)
        assert low.infinite == 0
        curve = [value - lowest[-1] for value in hull]
        # Below where it meets 1 - gamma: the line to 1 at gamma = 0.
        below = [n for n, v in enumerate(curve) if v < 1 - g[n]]
        first = max(below, default=0)
        for n in range(first):
            curve[n] = 1 - g[n] * (1 - curve[first]) / g[first]
        for e, want, true in zip(at, curve, f, strict=False):
            found = true_delta(atoms(low), b, Fraction(0), e)
            assert found <= true
            assert abs(found - want) < mpmath.mpf(10) ** -38


def few_losses(seed):
    """A symmetric pair with a few losses, and F and its fall."""
    draw = random.Random(seed)
    losses = [mpmath.mpf(draw.randrange(1, 500)) / 150 for _ in range(3)]
    weights = [mpmath.mpf(draw.random()) for _ in losses]
    ends = [(a, w) for a, w in zip(losses, weights, strict=True)]
    ends += [(-a, w * mpmath.exp(-a)) for a, w in ends]
    total = sum(w for _, w in ends)

    def true(epsilon):
        value = fall = mpmath.mpf(0)
        for a, w in ends:
            if a > epsilon:
                value += w / total * (1 - mpmath.exp(epsilon - a))
                fall += w / total * mpmath.exp(-a)
        return value, fall

    def law(num, b, q, z):
        each = (x * intervals.ONE for x in true(mpmath.mpf(num) / 2**b))
        made = [(int(mpmath.floor(x)), int(mpmath.ceil(x))) for x in each]
        return made[0], made[1]

    return true, law


@pytest.mark.parametrize('seed', range(8))
def test_pairs_with_few_losses_are_between_their_bounds(seed):
    # Tangents that cross outside of their cells make the hull.
    with mpmath.workprec(300):
        true, law = few_losses(seed)
        about = law, Fraction(1), Fraction(1), 16, intervals.ONE >> 24
        high, low = kernel.above(*about), kernel.below(*about)
        infinite = Fraction(high.infinite, intervals.ONE)
        assert low.infinite == 0
        for epsilon in (Fraction(n, 12) for n in range(-50, 50)):
            least = true_delta(atoms(low), low.b, Fraction(0), epsilon)
            most = true_delta(atoms(high), high.b, infinite, epsilon)
            value, _ = true(number(epsilon))
            tiny = mpmath.mpf(2) ** -280
            assert least - tiny <= value <= most
            assert epsilon or least > value / 9
            assert most <= value + 0.2


EPSILONS = [Fraction(n, 7) for n in (0, 1, 3, 6, 12, 20, 40, 70)]


@pytest.mark.parametrize('rounding', [0, 1])
@pytest.mark.parametrize('seed', range(3))
@mpmath.workdps(60)
def test_every_sum_of_losses_by_enumeration(rounding, seed):
    # By all pairs of losses; the levels lose little, on the right side.
    one, two = some_losses(seed=seed), some_losses(8, 3, 2, seed + 9)
    for x, y in ((one, one), (one, two)):
        found = kernel.together(x, y, 0, rounding)
        shift = max(x.b, y.b)
        pairs = [
            ((p << shift - x.b) + (q << shift - y.b), m * n)
            for p, m in atoms(x)
            for q, n in atoms(y)
        ]
        infinite = Fraction(x.infinite + y.infinite, intervals.ONE)
        if not rounding:
            infinite = Fraction(found.infinite, intervals.ONE)
        for epsilon in EPSILONS:
            true = true_delta(pairs, shift, infinite, epsilon)
            delta = number(kernel.delta_of(found, epsilon, rounding))
            off = (delta - true) * (1 if rounding else -1)
            assert off >= -(mpmath.mpf(10) ** -40)
            assert off <= true / 4 + mpmath.mpf(10) ** -40


@pytest.mark.parametrize('rounding', [0, 1])
@mpmath.workdps(60)
def test_wider_cells_bound_every_profile(rounding):
    # From above both measures are kept; from below none is more.
    for seed in range(5):
        m = some_losses(8, 3, 1, seed).levels[0]
        made = kernel.halved(m, 3, rounding)
        assert len(made) == 9
        before = kernel.Losses(3, [m], 0)
        after = kernel.Losses(2, [kernel.wider(made)], 0)
        assert len(after.levels[0]) == 17
        for epsilon in (Fraction(n, 16) for n in range(-17, 18)):
            one = true_delta(atoms(before), 3, Fraction(0), epsilon)
            two = true_delta(atoms(after), 2, Fraction(0), epsilon)
            off = (two - one) * (1 if rounding else -1)
            assert off >= -(mpmath.mpf(10) ** -41)
            # Second order: a cell is 1 / 8.
            assert off < sum(m) / intervals.ONE / 16
        if rounding:
            for side in (0, 1):
                sums = [
                    sum(
                        number(mass) * mpmath.exp(-side * p / mpmath.mpf(w))
                        for p, mass in atoms(x)
                    )
                    for x, w in ((before, 8), (after, 4))
                ]
                assert abs(sums[0] - sums[1]) < 1e-12


@pytest.mark.parametrize('rounding', [0, 1])
@mpmath.workdps(60)
def test_a_finest_level_goes_to_the_next_and_no_other_is_lost(rounding):
    # Empty cells around five are four, and they are empty.
    assert kernel.wider([5, 6, 7, 8, 9]) == [0, 0, 5, 6, 7, 8, 9, 0, 0]
    for b, levels in ((0, 1), (5, 17)):
        with pytest.raises(OverflowError, match='beyond all measure'):
            kernel.coarsened(some_losses(8, b, levels), rounding)
    for levels in (1, 2, 3, 4):
        x = some_losses(8, 5, levels, levels)
        found = kernel.coarsened(x, rounding)
        assert (found.b, found.infinite) == (4, x.infinite)
        assert len(found.levels) == max(1, levels - 1)
        for epsilon in (Fraction(n, 8) for n in range(-20, 21)):
            one = true_delta(atoms(x), 5, Fraction(0), epsilon)
            two = true_delta(atoms(found), 4, Fraction(0), epsilon)
            off = (two - one) * (1 if rounding else -1)
            assert -(mpmath.mpf(10) ** -41) <= off
            assert off < sum(x.levels[0]) / intervals.ONE / 64


def test_a_cut_top_is_infinite_and_a_cut_bottom_is_zero():
    unit = intervals.ONE
    middle = [unit // 16, unit // 2, unit // 16 - 10]
    outer = [5, 0, 0, 0, 7]
    x = kernel.Losses(-4, [[0, *middle, 0], outer], 3)
    found = kernel.tidy(x, 7, 1)
    assert found.infinite == 10
    assert found.levels == [[0, middle[0], middle[1] + 5, middle[2], 0]]
    found = kernel.tidy(x, 7, 0)
    assert (found.infinite, found.levels) == (3, [[0, *middle, 0]])
    found = kernel.tidy(x, 6, 1)
    assert found.infinite == 3
    assert found.levels[1][4] == 7


def test_wide_cells_do_not_prove():
    q, z, steps, delta, epsilon = KNOWN[0]
    claim = epsilon + 5e-5
    assert chords('wor', q, z, steps, delta, claim, 256) > Fraction(delta)
    assert chords('wor', q, z, steps, delta, claim, 2048) <= Fraction(delta)


@pytest.mark.parametrize(
    ('epsilon', 'delta'), [(-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (1.0, -1e-5)]
)
def test_what_is_no_claim_fails(epsilon, delta):
    assert kernel.judge('wor', [(2.0, 0.5, 1)], epsilon, delta) == 'FAILS'
    # Not even of nothing, or next to nothing.
    for mu2 in (0, 1):
        assert kernel.judge_mu(Fraction(mu2), epsilon, delta) == 'FAILS'
    for lines in ([], [(4.0, 1e-120, 1)], [(4.0, 1e-9, 1)]):
        assert kernel.judge('wor', lines, epsilon, delta) == 'FAILS'
    assert kernel.judge_mu(Fraction(-1), 1.0, 0.5) == 'FAILS'


def test_a_claim_next_to_its_delta_is_neither_proved_nor_refuted():
    # mu has 600 bits: delta is off by less than the masses of the kernel.
    with mpmath.workprec(700):
        epsilon, goal = 1.25, 2.0**-20
        low, high = mpmath.mpf(0.1), mpmath.mpf(1)

        def delta(mu):
            near, far = (epsilon / mu + side * mu / 2 for side in (-1, 1))
            return mpmath.ncdf(-near) - mpmath.exp(epsilon) * mpmath.ncdf(-far)

        for _ in range(600):
            mu = (low + high) / 2
            low, high = (mu, high) if delta(mu) < goal else (low, mu)
        for off, status in (
            *((-40, 'holds'), (-600, 'not proved')),
            *((600, 'not proved'), (40, 'FAILS')),
        ):
            away = math.copysign(1, off) * mpmath.mpf(2) ** -abs(off)
            square = Fraction(int((low * (1 + away)) ** 2 * 2**650), 2**650)
            assert kernel.judge_mu(square, epsilon, goal) == status


def test_what_would_take_too_long_is_not_tried():
    assert kernel.judge_mu(Fraction(1), 10_000.0, 1e-5) == 'holds'
    assert kernel.judge_mu(Fraction(1), 10_001.0, 1e-5) == 'not proved'
    q, eighth = Fraction(1, 2), Fraction(1, 8)
    assert kernel.replaced(1, 0, q, eighth)[0][0] > 0
    with pytest.raises(OverflowError, match='too little'):
        kernel.replaced(1, 0, q, eighth * Fraction(99, 100))
    for steps, status in ((2**40, 'holds'), (2**40 + 1, 'not proved')):
        lines = [(1e30, 0.5, steps), (1e3, 0.5, 1)]
        assert kernel.judge('wor', lines, 2.0, 1e-4) == status


def test_whole_batches_and_parts_of_them_add_up():
    # Total variations of 2e-6 and less: no epsilon is needed.
    lines = [(1e6, 1.0, 1), (4.0, 1e-9, 1)]
    assert kernel.judge('wor', lines, 0.0, 1e-5) == 'holds'


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


@pytest.mark.parametrize(
    'line',
    [
        *((-4.0, 0.5, 5), (0.0, 0.5, 5), (4.0, -0.5, 5), (4.0, 0.0, 5)),
        *((4.0, 1.5, 5), (4.0, 0.5, -5), (4.0, 1.0, -5), (4.0, 0.5, 0.5)),
    ],
)
def test_what_is_no_step_fails(line):
    # A negative number of steps had a negative total variation: it held.
    for law in ('wor', 'replace', 'withdraw'):
        for lines in ([line], [(9.0, 0.1, 1), line]):
            assert kernel.judge(law, lines, 50.0, 0.5) == 'FAILS'
    for m in (None, 2):
        assert judge_group([line], 50.0, 0.5, 2, m) == 'FAILS'


def test_little_noise_on_coins_is_not_measured():
    some, whole = (0.1, 0.5, 1), (0.1, 1.0, 1)
    assert kernel.judge('replace', [some], 2000.0, 0.3) == 'not proved'
    assert kernel.judge('replace', [some], 0.0, 0.3) == 'not proved'
    # Of whole batches there is a closed form: mu = 20.
    claim = gaussian_epsilon(20.0, 1e-5)
    assert kernel.judge('replace', [whole], claim, 1e-5) == 'holds'
    assert judge_group([(0.2, 1.0, 1)], claim, 1e-5, 2, 7) == 'holds'
