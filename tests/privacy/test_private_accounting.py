"""Gaussian releases: closed forms against 40 digits and other programs."""

import json
import math
import random
from fractions import Fraction

import pytest

from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import (
    gaussian_epsilon,
    gaussian_mu_for,
)
from pyg_trust.privacy.propagation import hop_sensitivity
from pyg_trust.verify.accounting import judge_mu

# Of the oracle: sensitivities, deviations, delta, mu and epsilon.


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
