"""Records in several units: coins, draws without replacement, and a trap."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import logsumexp, ndtr
from scipy.stats import beta, binom, hypergeom
from torch_geometric.data import Data

from pyg_trust import privacy as dp
from pyg_trust.loader import EgoLoader
from pyg_trust.privacy import poisson
from pyg_trust.privacy.poisson import poisson_profile, rdp_poisson

# Profiles of one step by root finding: k, q, z; delta at -.5, 0, .5, 1 and 2.
FAR = [
    (
        *(5, 0.05, 8.203125),
        *(0.393469340287367, 0.02421894810938237, 9.456439350691133e-16),
        *(2.9685317103765707e-37, 9.129815670159173e-79),
    ),
    (
        *(5, 0.2, 18.28125),
        *(0.3934693856554229, 0.04356077922867415, 7.479927923966281e-08),
        *(2.6408479657396807e-21, 5.830489182198661e-68),
    ),
    (
        *(11, 1.0, 60.0),
        *(0.40467473354484473, 0.1454635186060811, 0.01847457021016398),
        *(0.0005776962309570113, 4.158750473327898e-09),
    ),
    (
        *(3, 0.5, 2.0),
        *(0.6270104162289827, 0.5079036051897026, 0.38504413948713656),
        *(0.27081603636015417, 0.10420610078694828),
    ),
]


def test_profiles_are_those_of_the_oracle():
    for row in FAR:
        k, q, z = row[:3]
        for e, want in zip((-0.5, 0.0, 0.5, 1.0, 2.0), row[3:], strict=True):
            found = poisson_profile(e, q, z, occurrences=k)
            # Below, what counts as infinite is more than the profile.
            assert found == pytest.approx(want, rel=1e-9, abs=2e-21)
            assert found >= want * (1 - 1e-9)


# k, q, z, steps, delta and epsilon by another program (dp-accounting).
COINS = [
    (1, 0.05, 2.0, 100, 1e-5, 2.004329),
    (2, 0.1, 3.0, 50, 1e-5, 4.069580),
    (5, 0.05, 8.203125, 100, 1e-5, 2.484946),
    (5, 0.2, 18.28125, 100, 1e-5, 4.852344),
    (11, 0.05, 12.890625, 100, 1e-5, 3.640665),
    (11, 1.0, 60.0, 10, 1e-5, 5.200012),
    # By the same program with half of its grid.
    (21, 0.01, 16.40625, 100, 1e-6, 1.088015),
    (3, 0.5, 2.0, 1, 1e-4, 5.770061),
]


@pytest.mark.parametrize(('k', 'q', 'z', 'steps', 'delta', 'want'), COINS)
def test_epsilon_of_coins(k, q, z, steps, delta, want):
    found = dp.poisson_epsilon([(z, q, steps)], delta, occurrences=k)
    assert -5e-4 < found / want - 1 < 2e-3


# N, m, k, z, steps, delta and epsilon of the bound by the same program; that
# of rates of a hundredth with a quarter of its grid.
WOR = [
    (13482, 674, 1, 2.0, 100, 1e-5, 3.848479),
    (13482, 674, 5, 8.203125, 100, 1e-5, 3.137051),
    (13482, 2696, 5, 18.28125, 100, 1e-5, 5.826548),
    (13482, 674, 11, 12.890625, 100, 1e-5, 4.543435),
    (13482, 2696, 11, 34.03125, 100, 1e-5, 6.988737),
    (13482, 674, 111, 78.48, 100, 1e-5, 7.340541),
    (90941, 909, 5, 8.047, 500, 1e-6, 1.361778),
    (90941, 909, 11, 11.688, 500, 1e-6, 2.095123),
    (90941, 909, 21, 16.40625, 500, 1e-6, 2.937704),
]


@pytest.mark.parametrize(('n', 'm', 'k', 'z', 'steps', 'delta', 'want'), WOR)
def test_epsilon_without_replacement(n, m, k, z, steps, delta, want):
    history = [(z, m / n, steps)]
    found = dp.group_wor_epsilon(history, delta, n, k)
    assert -5e-4 < found / want - 1 < 2e-3


def test_one_occurrence_is_a_disjoint_unit():
    history = [(2.6, 0.2, 40), (8.0, 1.0, 2)]
    found = dp.group_wor_epsilon(history, 1e-5, 20, 1)
    assert found == pytest.approx(dp.wor_epsilon(history, 1e-5), rel=1e-9)
    # The search for an outcome, where there is a closed form.
    loss = np.linspace(0, 6, 50)
    for q, z in ((0.01, 3.0), (0.5, 0.4), (1.0, 1.0)):
        want = poisson._outcome(loss, q, z, (1, -1), 1)
        found = poisson._group_outcome(loss, q, z, 1)
        assert found == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_all_units_are_gaussian():
    for k in (2, 9):
        want = dp.gaussian_epsilon(2 * k * math.sqrt(6) / 40.0, 1e-5)
        found = dp.group_wor_epsilon([(40.0, 1.0, 6)], 1e-5, 50, k)
        assert found == pytest.approx(want, rel=1e-12)
        found = dp.poisson_epsilon([(40.0, 1.0, 6)], 1e-5, occurrences=k)
        assert found == pytest.approx(want, rel=1e-4)


# Brute force #################################################################


def plane(of, other, q, z, alphas, n=141):
    """Divergences of two mixtures in the plane, on a grid of midpoints."""
    k = len(of)
    edge = k + 6.5 * z
    at = np.linspace(-edge, edge, n)
    bells = []
    for gradients in (of, other):
        total = 0.0
        for drawn in itertools.product((0, 1), repeat=k):
            share = q ** sum(drawn) * (1 - q) ** (k - sum(drawn))
            mean = np.array(drawn) @ gradients
            one, two = (np.exp(-((at - c) ** 2) / (2 * z**2)) for c in mean)
            total = total + share * np.outer(one, two)
        bells.append(total * (at[1] - at[0]) ** 2 / (2 * math.pi * z**2))
    return np.array(
        [np.maximum(bells[0] - a * bells[1], 0).sum() for a in alphas]
    )


def instances(k, rng):
    """Gradients of the two neighbours, at first the ones that look worst."""
    ones, zero = np.tile([1.0, 0.0], (k, 1)), np.zeros((k, 2))
    yield ones, -ones
    yield ones, zero
    yield zero, -ones
    turned = rng.normal(size=(k, 2))
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    yield turned, -turned
    while True:
        both = rng.normal(size=(2, k, 2))
        both /= np.linalg.norm(both, axis=2, keepdims=True)
        both *= np.where(rng.random((2, k, 1)) < 0.6, 1, rng.random((2, k, 1)))
        yield both[0], both[1]


def test_no_gradients_are_worse_than_the_pair_of_coins():
    # The proof is in the module; here 300 others are tried.
    rng, tried = np.random.default_rng(0), 0
    logs = np.array([-1.0, -0.3, 0.0, 0.2, 0.7, 1.5, 3.0])
    for k, q, z in itertools.product((1, 2, 3), (0.05, 0.3, 0.7), (0.6, 1.5)):
        worst = np.array(
            [poisson_profile(e, q, z, occurrences=k) for e in logs]
        )
        made = itertools.islice(instances(k, rng), 17)
        found = [plane(*each, q, z, np.exp(logs)) for each in made]
        tried += len(found)
        # What the grid itself is wrong by.
        error = 0.01 * worst + 1e-6
        assert (np.max(found, axis=0) <= worst + error).all()
        # The first of them is the pair: the bound is attained.
        assert (found[0] >= worst - error).all()
    assert tried >= 300


def attack(epsilon, n, m, k, z, steps=20001):
    """Divergences without replacement where all others push the other way."""
    x = np.linspace(-m - 12 * z, m + 12 * z, steps)
    i = np.arange(max(0, m + k - n), min(m, k) + 1)

    def density(mean):
        far = -((x - mean) ** 2) / (2 * z**2)
        return np.exp(far) / (z * math.sqrt(2 * math.pi))

    # The record's gradients are +1 or -1, those of all others -1.
    w = hypergeom.pmf(i, n, k, m)
    r = density(-m)
    p = (w[:, None] * density((2 * i - m)[:, None])).sum(axis=0)
    e, width = math.exp(epsilon), x[1] - x[0]
    pairs = ((p, r), (r, p))
    return max(np.maximum(a - e * b, 0).sum() * width for a, b in pairs)


def trap(epsilon, n, m, k, z):
    """What the pair of coins says with hypergeometric weights."""
    i = np.arange(max(0, m + k - n), min(m, k) + 1)
    w = hypergeom.pmf(i, n, k, m)
    x = np.linspace(-k - 12 * z, k + 12 * z, 20001)

    def density(side):
        far = -((x - side * i[:, None]) ** 2) / (2 * z**2)
        return (w[:, None] * np.exp(far)).sum(axis=0)

    gap = np.maximum(density(1) - math.exp(epsilon) * density(-1), 0)
    return gap.sum() * (x[1] - x[0]) / (z * math.sqrt(2 * math.pi))


TRAPS = [(20, 2, 1, 2.0), (20, 2, 2, 2.0), (50, 5, 3, 2.0), (100, 20, 5, 5.0)]


@pytest.mark.parametrize(('n', 'm', 'k', 'z'), [*TRAPS, (1000, 50, 5, 4.0)])
def test_no_attack_is_above_the_bound_without_replacement(n, m, k, z):
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        true = attack(epsilon, n, m, k, z)
        found = dp.group_wor_epsilon([(z, m / n, 1)], true, n, k)
        assert found >= epsilon * (1 - 1e-4)
        # It is attained by one occurrence.
        assert k > 1 or found <= epsilon * 1.002 + 1e-4
        # The pair of coins with these weights is below the truth.
        assert trap(epsilon, n, m, k, z) < 0.97 * true


# Renyi divergences ###########################################################


def test_renyi_divergences_of_coins():
    def direct(a, k, q, z):
        # The trapezoidal rule is exact to all digits here.
        i = np.arange(k + 1.0)[:, None]
        w = np.array([math.comb(k, j) for j in range(k + 1)])[:, None]
        w = w * q**i * (1 - q) ** (k - i)
        x = np.linspace(-2 * a * k - 14 * z, 2 * a * k + 14 * z, 4001)
        p, r = (
            logsumexp(-((x - side * i) ** 2) / (2 * z**2), b=w, axis=0)
            for side in (1, -1)
        )
        total = np.exp(a * p + (1 - a) * r).sum() * (x[1] - x[0])
        return math.log(total / z / math.sqrt(2 * math.pi)) / (a - 1)

    for k, q, z in ((2, 0.1, 2.0), (5, 0.3, 4.0)):
        found = rdp_poisson([1.5, 4.0], q, z, occurrences=k)
        want = [direct(a, k, q, z) for a in (1.5, 4.0)]
        assert found == pytest.approx(want, rel=1e-9)


def profile(epsilon, n, m, k, z):
    """The bound of a step: a mixture by how many are drawn, if any is."""
    if epsilon < 0:
        mirrored = profile(-epsilon, n, m, k, z)
        return -math.expm1(epsilon) + math.exp(epsilon) * mirrored
    i = np.arange(max(1, m + k - n), min(m, k) + 1)
    w = hypergeom.pmf(i, n, k, m)
    far, mu = math.log1p(math.expm1(epsilon) / min(1, w.sum())), 2 * i / z
    each = ndtr(mu / 2 - far / mu) - math.exp(far) * ndtr(-mu / 2 - far / mu)
    return float(w @ each)


@pytest.mark.parametrize(
    ('n', 'm', 'k', 'z', 'slack'),
    # Counts above 16 are rounded up to multiples of 8.
    [(40, 4, 3, 3.0, 1e-5), (9, 6, 5, 6.0, 1e-5), (80, 30, 64, 50.0, 0.3)],
)
def test_renyi_divergences_are_integrals_of_the_profile(n, m, k, z, slack):
    def power(a):
        # E_Q (dP/dQ)^a, from second derivatives.
        def part(e):
            g = math.exp(e)
            here = profile(e, n, m, k, z) - max(0.0, 1 - g)
            return a * (a - 1) * g ** (a - 1) * here

        return 1 + sum(
            quad(part, *ends, limit=400)[0]
            for ends in ((-30, -3), (-3, 0), (0, 3), (3, 30))
        )

    orders = [1.5, 3.0, 6.0]
    found = dp.rdp_group_wor(orders, m / n, z, n, k)
    want = np.array([math.log(power(a)) / (a - 1) for a in orders])
    assert (found >= want * (1 - 1e-5)).all()
    assert (found <= want * (1 + slack)).all()


# What is refused #############################################################


def test_more_draws_than_others_tell_all():
    # 8 of 10 with 5 of the record's: three are drawn at least.
    for e in (0.7, 2.0):
        delta = profile(e, 10, 8, 5, 4.0)
        found = dp.group_wor_epsilon([(4.0, 0.8, 1)], delta, 10, 5)
        assert e <= found <= e * 1.002 + 1e-3


def occurrences(count, q, steps, seed):
    """How often each of some senders is in a batch of an EgoLoader, by steps.

    Each is the middle of a star, and in the ego graphs of its four receivers
    and its own.
    """
    middle = torch.arange(count).repeat_interleave(4)
    star = torch.stack([middle, torch.arange(count, 5 * count)])
    data = Data(edge_index=star, num_nodes=5 * count)
    size = round(5 * count * q)
    loader = EgoLoader(
        *(data, size, 1, 4),
        num_steps=steps,
        sampling='poisson',
        seed=seed,
    )
    for batch in loader:
        yield batch.n_id.bincount(minlength=5 * count)[:count].numpy()


def audited(z, q, steps, delta, seed, count=8000):
    """A lower bound of epsilon, by who sees a record in each of its roots.

    Records on coordinates of their own, as often in a step as the loader has
    drawn them; the likelihood of all steps is compared with a threshold that
    one half of the runs chooses. 95 % for each of the two rates.
    """
    generator = np.random.default_rng(seed)
    drawn = np.arange(6)
    w = binom.pmf(drawn, 5, q)

    def losses(sign):
        total = np.zeros(count)
        for often in occurrences(count, q, steps, 2 * seed + (sign > 0)):
            y = sign * often + z * generator.standard_normal(count)
            up = w * np.exp(-((y[:, None] - drawn) ** 2) / (2 * z * z))
            down = w * np.exp(-((y[:, None] + drawn) ** 2) / (2 * z * z))
            total += np.log(up.sum(1) / down.sum(1))
        return total

    half = count // 2
    there, away = losses(1), losses(-1)

    def rates(threshold, part):
        return ((each[part] >= threshold).sum() for each in (there, away))

    def chosen(threshold):
        right, wrong = rates(threshold, slice(half))
        return (right / half - delta) / ((wrong + 1) / half)

    best = max(np.quantile(away[:half], np.linspace(0.5, 1, 200)), key=chosen)
    right, wrong = rates(best, slice(half, None))
    low = beta.ppf(0.05, right, half - right + 1) if right else 0.0
    return math.log(
        max(low - delta, 1e-12) / beta.ppf(0.95, wrong + 1, half - wrong)
    )


def test_an_audit_stays_below_the_claim_and_finds_forgotten_occurrences():
    budget = {'sample_rate': 0.05, 'steps': 100}
    account = dp.GroupPoissonAccountant(100, 5)
    right = account.noise_multiplier_for(3.0, 1e-5, **budget)
    assert all(audited(right, 0.05, 100, 1e-5, s) <= 3 for s in range(3))
    account = dp.PoissonAccountant()
    forgotten = account.noise_multiplier_for(3.0, 1e-5, **budget)
    assert audited(forgotten, 0.05, 100, 1e-5, 9) > 3
