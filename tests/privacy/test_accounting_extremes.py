"""Accountants far from everyday numbers: never below, hardly above.

What is exact is compared with closed forms in fifty digits, the rest with
another program (dp-accounting), where it is installed.
"""

import math
import random

import pytest

from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon, gaussian_mu_for
from pyg_trust.privacy.poisson import poisson_epsilon

mp = pytest.importorskip('mpmath')


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(50):
        yield


def upper(x):
    """The upper tail of a standard Gaussian."""
    return mp.erfc(mp.mpf(x) / mp.sqrt(2)) / 2


def gaussian_delta(epsilon, mu):
    epsilon, mu = mp.mpf(epsilon), mp.mpf(mu)
    at = epsilon / mu - mu / 2
    return upper(at) - mp.exp(epsilon) * upper(at + mu)


DELTAS = [1e-12, 1e-7, 1e-2, 0.9]


def test_no_epsilon_is_below_the_exact_one():
    # Of 150 numbers that were only rounded to nearest, one was too small by a
    # few bits, and an honest report was refuted.
    source, positive = random.Random(0), 0
    for _ in range(4000):
        mu, delta = 10 ** source.uniform(-6, 3), 10 ** source.uniform(-30, 0)
        found = gaussian_epsilon(mu, delta)
        assert gaussian_delta(found, mu) <= delta, (mu, delta)
        if found > 1e-6:
            positive += 1
            assert gaussian_delta(found * (1 - 1e-11), mu) > delta
        elif found > 0:
            assert gaussian_delta(0, mu) > delta * (1 - 1e-15)
    assert positive > 3000


def test_a_release_in_many_parts_is_no_more_than_its_sum():
    # The mu of the whole was rounded; what a ledger lists is added exactly.
    source = random.Random(1)
    for _ in range(300):
        stds = [10 ** source.uniform(-0.5, 3) for _ in range(9)]
        delta = 10 ** source.uniform(-10, -1)
        mu = mp.sqrt(mp.fsum(1 / mp.mpf(std) ** 2 for std in stds))
        found = gaussian_epsilon(math.hypot(*(1 / std for std in stds)), delta)
        assert gaussian_delta(found, mu) <= delta
        found = wor_epsilon([(2 * std, 1.0, 1) for std in stds], delta)
        assert gaussian_delta(found, mu) <= delta


@pytest.mark.parametrize('epsilon', [1e-9, 1e-6, 1e-2, 1.0, 50.0, 1e4])
@pytest.mark.parametrize('delta', [1e-30, *DELTAS])
def test_the_largest_mu_of_any_budget(epsilon, delta):
    # Two numbers that are nearly equal were subtracted: budgets of a small
    # epsilon were exceeded, by 4e-8 of them.
    mu = gaussian_mu_for(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-9)) > delta
    assert gaussian_epsilon(mu, delta) <= epsilon


def test_many_hops_and_many_steps_are_one_gaussian():
    lines = [(100.0 + k, 1.0, 1 + k % 3) for k in range(300)]
    mu = mp.sqrt(mp.fsum(4 * n / mp.mpf(z) ** 2 for z, _, n in lines))
    found = wor_epsilon(lines, 1e-12)
    assert gaussian_delta(found * (1 + 1e-9), mu) <= 1e-12
    assert gaussian_delta(found * (1 - 1e-9), mu) > 1e-12
    # A million steps with the noise of a million.
    found = wor_epsilon([(2e3, 1.0, 10**6)], 1e-5)
    assert found == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-12)


def wor_delta(epsilon, q, lam):
    # Balle, Barthe and Gaboardi 2018, Theorem 9, replaced.
    inner = mp.log(1 + mp.expm1(mp.mpf(epsilon)) / mp.mpf(q))
    return mp.mpf(q) * gaussian_delta(inner, 1 / mp.mpf(lam))


def poisson_delta(epsilon, q, z, direction):
    """P(loss > epsilon) - e^epsilon Q(loss > epsilon), by bisection."""
    q, z, first, second = mp.mpf(q), mp.mpf(z), *direction

    def ratio(x, mean):
        return 1 - q + q * mp.exp(mean * (2 * x - mean) / (2 * z**2))

    def tail(x, mean):
        return (1 - q) * upper(x / z) + q * upper((x - mean) / z)

    low, high = mp.mpf(-60 * z - 5), mp.mpf(60 * z + 5)
    for _ in range(120):
        middle = (low + high) / 2
        loss = mp.log(ratio(middle, first) / ratio(middle, second))
        low, high = (low, middle) if loss > epsilon else (middle, high)
    return tail(high, first) - mp.exp(mp.mpf(epsilon)) * tail(high, second)


@pytest.mark.parametrize(
    ('q', 'lam', 'delta'),
    [
        (0.01, 0.5, 1e-5),
        (0.05, 20.0, 1e-10),
        (0.999, 0.3, 1e-10),
        (1 - 1e-9, 1.0, 1e-10),
    ],
)
def test_a_step_of_any_rate(q, lam, delta):
    found = wor_epsilon([(2 * lam, q, 1)], delta)
    assert wor_delta(found, q, lam) <= delta
    low = found / 1.002
    if wor_delta(0, q, lam) > delta:
        # What is added for rounding is at most 1e-12 here.
        assert wor_delta(low, q, lam) > delta * (1 - 1e-2)
    for form, directions in (
        ('replace', [(1, -1)]),
        ('add_remove', [(1, 0), (0, -1)]),
    ):
        found = poisson_epsilon([(2 * lam, q, 1)], delta, form)
        deltas = [poisson_delta(found, q, 2 * lam, d) for d in directions]
        assert max(deltas) <= delta
        deltas = [poisson_delta(0, q, 2 * lam, d) for d in directions]
        if max(deltas) > delta:
            low = found / 1.002
            deltas = [poisson_delta(low, q, 2 * lam, d) for d in directions]
            assert max(deltas) > delta * (1 - 1e-2)


def test_what_can_not_be_told_is_refused():
    # Below 1e-10 a grid in float64 tells nothing; a closed form does.
    assert wor_epsilon([(2.0, 1.0, 3)], 1e-12) > 0
    for accountant in (wor_epsilon, poisson_epsilon):
        with pytest.raises(ValueError, match="'delta'"):
            accountant([(2.0, 0.5, 3)], 1e-12)
        for q in (0.0, -0.1, 1.1, math.nan):
            with pytest.raises(ValueError, match="'q'"):
                accountant([(2.0, q, 3)], 1e-5)


@pytest.mark.parametrize(
    ('q', 'z', 'steps', 'delta'),
    [
        (0.01, 1.0, 500, 1e-6),
        (0.99, 30.0, 200, 1e-10),
    ],
)
@pytest.mark.parametrize('form', ['add_remove', 'replace'])
def test_many_coins_against_another_program(q, z, steps, delta, form):
    pytest.importorskip('dp_accounting')
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as program

    relation = {
        'add_remove': NeighboringRelation.ADD_OR_REMOVE_ONE,
        'replace': NeighboringRelation.REPLACE_ONE,
    }[form]
    ends = [
        program.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            pessimistic_estimate=pessimistic,
            neighboring_relation=relation,
            value_discretization_interval=1e-4,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]
    found = poisson_epsilon([(z, q, steps)], delta, form)
    assert ends[0] * (1 - 1e-6) <= found <= 1.002 * ends[1] + 1e-4
