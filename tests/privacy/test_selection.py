import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln

from pyg_trust.privacy.accounting import ORDERS, rdp_epsilon
from pyg_trust.privacy.planning import draw_runs, rdp_select

LAWS = [(3.0, 1.0), (10.0, 1.0), (5.0, 0.0), (20.0, 0.5), (4.0, 3.0)]


@cache
def masses(mean, shape, count=4000):
    """P[K = k], written from the definition with Gamma functions."""
    k = np.arange(1, count + 1)

    def law(gamma):
        if shape == 0:
            return (1 - gamma) ** k / (k * math.log(1 / gamma))
        log = k * math.log1p(-gamma) + gammaln(k + shape) - gammaln(shape)
        return np.exp(log - gammaln(k + 1)) / (gamma**-shape - 1)

    low, high = 1e-3, 1 - 1e-9
    for _ in range(60):
        middle = math.sqrt(low * high)
        found = (law(middle) * k).sum()
        low, high = (middle, high) if found > mean else (low, middle)
    return law(low)


@pytest.mark.parametrize(('mean', 'shape'), LAWS)
def test_runs_are_drawn_by_the_law(mean, shape):
    want = np.cumsum(masses(mean, shape))
    for u in np.random.default_rng(0).random(100) * 0.999:
        count = draw_runs(float(u), mean, shape)
        assert want[count - 1] >= u - 1e-9
        assert count == 1 or want[count - 2] <= u + 1e-9
    assert draw_runs(1.0, mean, shape) >= 1
    assert draw_runs(0.5, 1.0, shape) == 1


def renyi(p, q, a):
    return math.log((p**a * q ** (1 - a)).sum()) / (a - 1)


@pytest.mark.parametrize(('mean', 'shape'), LAWS)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.05, 2.0))
def test_no_pair_of_distributions_is_above_the_bound(mean, shape, seed, scale):
    # Outcomes in the order of their scores: the best of K is known exactly.
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 6))
    p = generator.dirichlet(np.ones(size))
    q = p * np.exp(scale * generator.uniform(-1, 1, size))
    p, q = p / p.sum(), q / q.sum()
    mass = masses(mean, shape)
    powers = np.arange(1, mass.size + 1)
    selected = []
    for law in (p, q):
        below = np.concatenate([[0.0], np.cumsum(law)])
        whole = mass * np.minimum(below, 1.0)[:, None] ** powers
        best = np.diff(whole.sum(1))
        selected.append(best / best.sum())
    orders = [1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0]
    each = [max(renyi(p, q, a), renyi(q, p, a), 0) for a in orders]
    bound = rdp_select(orders, each, mean, shape)
    for a, least in zip(orders, bound, strict=True):
        for one, two in (selected, selected[::-1]):
            assert renyi(one, two, a) <= least + 1e-7


@pytest.mark.parametrize(('mean', 'shape'), LAWS)
def test_as_dp_accounting_says(mean, shape):
    rdp = pytest.importorskip('dp_accounting.rdp.rdp_privacy_accountant')
    each = 40 * np.array(ORDERS) / (2 * 12.0**2)
    found = rdp_select(ORDERS, each, mean, shape)
    want = rdp._compute_rdp_repeat_and_select(ORDERS, each, mean, shape)
    want = np.minimum.accumulate(np.asarray(want)[::-1])[::-1]
    assert np.allclose(found, want, rtol=1e-6)


def test_one_run_costs_one_run():
    each = 10 * np.array(ORDERS) / (2 * 4.0**2)
    assert (rdp_select(ORDERS, each, 1.0) == each).all()
    spent = [
        rdp_epsilon(ORDERS, rdp_select(ORDERS, each, mean), 1e-5)
        for mean in (1.0, 2.0, 5.0, 50.0)
    ]
    assert spent == sorted(spent)
    assert spent[-1] < 4 * spent[0]
