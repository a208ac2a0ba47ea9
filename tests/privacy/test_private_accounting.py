"""Gaussian releases: closed forms against 40 digits and other programs."""

import json
import math
import random
from fractions import Fraction
from operator import truediv

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import (
    gaussian_epsilon,
    gaussian_mu_for,
)
from pyg_trust.privacy.propagation import hop_sensitivity
from pyg_trust.verify.accounting import judge_mu

# Of the oracle: sensitivities, deviations, delta, mu and epsilon.
ROWS = [
    (
        [2.0, math.sqrt(2), math.sqrt(2)],
        [15.9476, 1.502319067308939, 11.225602994048918],
        1e-8,
        0.9579905042387001,
        5.507048559664481,
    ),
    (
        [1.0, 1.0, 8.0],
        [5.8665, 2.0606, 23.416],
        2.9e-7,
        0.6174873780479389,
        3.004054138483427,
    ),
    (
        [math.sqrt(32), 1.0],
        [4.421962966828193, 5.8448],
        1e-5,
        1.2906536141470812,
        5.8979913493327185,
    ),
]


@pytest.mark.parametrize('row', ROWS)
def test_epsilon_meets_forty_digits(row):
    sensitivities, stds, delta, mu, epsilon = row
    added = math.hypot(*map(truediv, sensitivities, stds))
    assert added == pytest.approx(mu, rel=1e-12)
    found = gaussian_epsilon(mu, delta)
    assert found == pytest.approx(epsilon, rel=1e-9)
    assert found >= epsilon * (1 - 1e-13)


@pytest.mark.parametrize('row', ROWS)
def test_it_is_a_phase_of_the_accountant_of_walks(row):
    *_, delta, mu, epsilon = row
    found = wor_epsilon([(2 / mu, 1.0, 1)], delta)
    assert found == pytest.approx(epsilon, rel=1e-9)
    # The grid of the general case is a bit above, as is what it leaves of
    # delta for the proof.
    found = wor_epsilon([(2 / mu, 1 - 1e-13, 1)], delta)
    less = wor_epsilon([(2 / mu, 1.0, 1)], delta * (1 - 2e-4))
    assert epsilon < less <= found <= less * (1 + 5e-6)


@pytest.mark.parametrize('mu', [1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize('delta', [1e-2, 1e-5])
def test_delta_is_the_integral_over_the_best_set(mu, delta):
    # P is N(mu, 1), Q is N(0, 1); the set where P > e^epsilon Q.
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert 2 * norm.cdf(mu / 2) - 1 <= delta
        return
    start = epsilon / mu + mu / 2

    def more(x):
        return norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)

    found, _ = quad(more, start, start + 12, epsabs=0, epsrel=1e-10)
    assert found == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize('epsilon', [1e-3, 1.0, 8.0, 200.0])
@pytest.mark.parametrize('delta', [0.3, 1e-5, 1e-12])
def test_a_budget_is_never_exceeded(epsilon, delta):
    mu = gaussian_mu_for(epsilon, delta)
    assert gaussian_epsilon(mu, delta) <= epsilon
    assert gaussian_epsilon(mu * (1 + 1e-9), delta) > epsilon * (1 - 1e-12)


def test_nothing_tells_nothing():
    assert gaussian_epsilon(0.0, 1e-5) == 0


def test_all_rows_of_the_oracle(shared):
    file = shared / 'oracles/private_aggregation/accounting.json'
    oracle = json.loads(file.read_text())
    for row in oracle['gaussian']:
        mu = row['mu']
        found = gaussian_epsilon(mu, row['delta'])
        assert found == pytest.approx(row['epsilon'], rel=1e-9)
        walks = wor_epsilon([(2 / mu, 1.0, 1)], row['delta'])
        assert -1e-12 <= walks / row['epsilon'] - 1 <= 1e-9
    for row in oracle['calibration']:
        mu = gaussian_mu_for(row['epsilon'], row['delta'])
        assert mu == pytest.approx(row['mu'], rel=1e-9)
        std = row['sensitivity'] * math.sqrt(row['hops']) / mu
        assert std == pytest.approx(row['noise_std'], rel=1e-9)
        # Its sensitivity is that of the relation that it names.
        name, which = row['relation'].split('_')
        given = {
            'edge': {'directed': which == 'directed'},
            'node': {
                'neighboring': {'withdraw': 'add_remove'}.get(which, which),
                'max_degree': row['max_degree'],
            },
        }[name]
        moved = hop_sensitivity(name, **given)
        assert moved == pytest.approx(row['sensitivity'], rel=1e-12)
    for row in oracle['wor_with_aggregation']:
        history = [(2 * row['lam'], row['q'], row['steps'])]
        if row['mu_aggregation']:
            history.append((2 / row['mu_aggregation'], 1.0, 1))
        found = wor_epsilon(history, row['delta'])
        assert row['epsilon_lower'] <= found <= row['epsilon_upper'] * 1.002


def test_an_edge_that_is_counted_once():
    # The numbers of the guide: a claim of 1, 2, 4 is root two times the mu.
    # By the two tails of a Gaussian, written here.
    def delta(mu, epsilon):
        one = norm.cdf(mu / 2 - epsilon / mu)
        return one - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    for claim, real in ((1, 1.465), (2, 2.954), (4, 5.992)):
        mu = gaussian_mu_for(claim, 1e-5)
        assert delta(mu, claim) == pytest.approx(1e-5, rel=1e-6)
        found = gaussian_epsilon(math.sqrt(2) * mu, 1e-5)
        assert found == pytest.approx(real, abs=1e-3)
        assert delta(math.sqrt(2) * mu, found) == pytest.approx(1e-5, rel=1e-6)


def test_delta_is_not_how_often_epsilon_fails():
    # The loss of a Gaussian release is normal, of mean mu^2 / 2 and
    # deviation mu: it is above epsilon several times as often as delta.
    for mu, times in ((0.5, 9.34), (1.0, 5.28), (4.0, 2.11)):
        epsilon = gaussian_epsilon(mu, 1e-5)
        above = norm.sf((epsilon - mu**2 / 2) / mu)
        assert above / 1e-5 == pytest.approx(times, abs=0.01)


def test_renyi_divergences_ask_for_more_noise():
    orders = np.concatenate([np.arange(1.1, 20, 0.1), np.arange(20, 500)])

    def renyi(mu, delta=1e-5):
        loss = orders * mu**2 / 2 + np.log1p(-1 / orders)
        return (loss - np.log(delta * orders) / (orders - 1)).min()

    for epsilon, more in ((1, 1.084), (2, 1.078), (4, 1.071), (8, 1.062)):
        least = brentq(lambda mu: renyi(mu) - epsilon, 1e-3, 9)  # noqa: B023
        found = gaussian_mu_for(epsilon, 1e-5) / least
        assert found == pytest.approx(more, abs=2e-3)


def test_the_kernel_proves_every_epsilon():
    # In integers: what logarithms in float64 round away was missing before
    # in one of 75 draws.
    draw = random.Random(1)
    for i in range(400):
        low, high = ((-4, 1.3), (-10, -3), (0, 1.5))[i % 3]
        delta = 10 ** draw.uniform(-12, -1)
        mu = 10 ** draw.uniform(low, high) * (delta if i % 3 == 2 else 1)
        epsilon = gaussian_epsilon(mu, delta)
        assert judge_mu(Fraction(mu) ** 2, epsilon, delta) == 'holds'
        if epsilon > 0:
            most = gaussian_mu_for(epsilon, delta)
            assert gaussian_epsilon(most, delta) <= epsilon
