"""Poisson sampling: its pairs against quadrature, its sums against oracles."""

import json
import math

import numpy as np
import pytest
from scipy.integrate import quad

from pyg_trust import privacy as dp
from pyg_trust.privacy.poisson import poisson_profile, rdp_poisson


def direct(epsilon, q, z, first, second):
    """Hockey-stick divergence of two mixtures by adaptive quadrature."""

    def density(x, mean):
        rest = (1 - q) * math.exp(-(x**2) / (2 * z**2))
        other = q * math.exp(-((x - mean) ** 2) / (2 * z**2))
        return (rest + other) / (z * math.sqrt(2 * math.pi))

    def gap(x):
        least = density(x, first) - math.exp(epsilon) * density(x, second)
        return max(0.0, least)

    edge = 1 + 12 * z
    points = np.linspace(-edge, edge, 41)[1:-1]
    return quad(gap, -edge, edge, points=points, limit=400, epsabs=1e-13)[0]


@pytest.mark.parametrize('q', [0.05, 0.6, 1.0])
@pytest.mark.parametrize('z', [0.5, 2.0])
def test_profiles_are_the_divergences_of_their_pairs(q, z):
    for epsilon in (-1.0, 0.0, 0.3, 2.0):
        want = direct(epsilon, q, z, 1, -1)
        found = poisson_profile(epsilon, q, z)
        assert found == pytest.approx(want, rel=1e-5, abs=1e-11)
        want = max(direct(epsilon, q, z, 1, 0), direct(epsilon, q, z, 0, 1))
        found = poisson_profile(epsilon, q, z, 'add_remove')
        assert found == pytest.approx(want, rel=1e-5, abs=1e-11)


# Of the oracle: q, z, steps, mu of a release, delta, form, and the ends.


def test_oracle(shared):
    path = shared / 'oracles/private_aggregation/accounting.json'
    rows = json.loads(path.read_text())['poisson_with_aggregation']
    for row in rows:
        history = [(row['noise_multiplier'], row['q'], row['steps'])]
        form, mu = row['relation'], row['mu_aggregation']
        if mu:
            history.append(((2 if form == 'replace' else 1) / mu, 1.0, 1))
        found = dp.poisson_epsilon(history, row['delta'], form)
        assert row['epsilon_lower'] <= found <= 1.002 * row['epsilon_upper']


def test_renyi_divergences():
    # Of integer order: sums over how many of a draws met the unit.
    def integer(a, q, z):
        total = sum(
            math.comb(a, k)
            * (1 - q) ** (a - k)
            * q**k
            * math.exp(k * (k - 1) / (2 * z**2))
            for k in range(a + 1)
        )
        return math.log(total) / (a - 1)

    for q, z in ((0.01, 1.0), (0.3, 0.7), (1.0, 2.0)):
        found = rdp_poisson([2, 5, 20], q, z, 'add_remove')
        want = [integer(a, q, z) for a in (2, 5, 20)]
        assert found == pytest.approx(want, rel=1e-6)
        replaced = rdp_poisson([2, 5, 20], q, z)
        assert (replaced > found * (1 - 1e-9)).all()
    # q = 1: two Gaussians 2/z apart.
    found = rdp_poisson([3.0], 1.0, 2.0)
    assert found[0] == pytest.approx(3.0 * (2 / 2.0) ** 2 / 2, rel=1e-9)


def test_calibration_and_order():
    z = dp.PoissonAccountant().noise_multiplier_for(
        2.0, 1e-5, sample_rate=0.1, steps=50
    )
    assert 1.98 <= dp.poisson_epsilon([(z, 0.1, 50)], 1e-5) <= 2.0
    # A higher rate, more steps and less noise cost more.
    base = dp.poisson_epsilon([(z, 0.1, 50)], 1e-5)
    for other in ((z, 0.11, 50), (z, 0.1, 55), (0.95 * z, 0.1, 50)):
        assert dp.poisson_epsilon([other], 1e-5) > base
    # Being there or not costs less than being another.
    account = dp.PoissonAccountant('add_remove')
    lines = [(z, 0.1, 50)]
    found = account.epsilon_of(lines, 1e-5)
    assert found == dp.poisson_epsilon(lines, 1e-5, 'add_remove')
    assert dp.PoissonAccountant(neighboring='replace').form == 'replace'
    assert dp.poisson_epsilon([(z, 0.1, 50)], 1e-5, 'add_remove') < base
    assert dp.poisson_epsilon([], 1e-5) == 0.0
    with pytest.raises(ValueError, match="'delta'"):
        dp.poisson_epsilon([(z, 0.1, 50)], 1e-12)


@pytest.mark.parametrize('form', ['replace', 'add_remove'])
@pytest.mark.parametrize('q', [1e-3, 1e-2])
def test_a_single_step_costs_what_its_profile_says(form, q):
    """The profile is in closed form; a coarse grid adds a thousandth."""
    for z in (0.25, 0.4):
        found = dp.poisson_epsilon([(z, q, 1)], 1e-5, form)
        assert found > 1
        assert poisson_profile(found, q, z, form) <= 1e-5 * (1 + 1e-9)
        assert poisson_profile(found - 2e-3, q, z, form) > 1e-5
