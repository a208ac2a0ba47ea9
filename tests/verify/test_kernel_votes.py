"""Votes in integers and fractions, against definitions and fast code."""

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import torch
from scipy.stats import beta

from pyg_trust.certificates.smoothing import clopper_pearson, flip_regions
from pyg_trust.verify import votes


def tail(n, k, p):
    """The definition, with one denominator."""
    a, b = Fraction(p).as_integer_ratio()
    terms = (comb(n, j) * a**j * (b - a) ** (n - j) for j in range(k, n + 1))
    return Fraction(sum(terms), b**n)


@pytest.mark.parametrize('n', [1, 2, 7, 40])
@pytest.mark.parametrize('p', [0.0, 1e-9, 0.3, 0.5, 0.97, 1.0])
def test_a_tail_is_that_of_the_definition(n, p):
    for k in range(n + 1):
        exact, up = tail(n, k, p), votes.tail_up(n, k, Fraction(p))
        assert exact <= up
        # Below the mean no level asks for it: rounding grows with the terms.
        if k >= n * p:
            assert up <= exact + Fraction(1, 2**150)


@pytest.mark.parametrize('k', [1, 30, 150, 199, 200])
def test_a_proved_bound_is_next_to_the_exact_one(k):
    level = 1e-4
    bound = votes.lower_bound(200, k, level)
    assert tail(200, k, bound) <= Fraction(level)
    assert tail(200, k, bound * (1 + Fraction(1, 2**30))) > Fraction(level)


def test_what_scipy_rounds_up_is_refused():
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(30):
        k, level = int(rng.integers(1, 200)), float(10 ** -rng.uniform(1, 7))
        p = float(beta.ppf(level, k, 200 - k + 1))
        holds = tail(200, k, p) <= Fraction(level)
        assert votes.proves(200, k, p, level) == holds
        refused += not holds
        assert not votes.proves(200, k, p * (1 + 1e-9), level)
        assert votes.proves(200, k, p * (1 - 1e-9), level)
    assert refused > 5


@pytest.mark.parametrize('n', [100, 1000, 10_000])
def test_the_bounds_of_the_fast_code_are_proved(n):
    rng = np.random.default_rng(1)
    for _ in range(8):
        k, level = int(rng.integers(0, n + 1)), float(10 ** -rng.uniform(1, 7))
        low = clopper_pearson(torch.tensor([k]), n, level).item()
        high = clopper_pearson(torch.tensor([k]), n, level, 'upper').item()
        assert k == 0 or votes.proves(n, k, low, level)
        assert k == n or votes.proves(n, n - k, 1 - Fraction(high), level)
        # And the kernel's own are as good.
        assert abs(float(votes.lower_bound(n, k, level)) - low) < 1e-9


def test_both_bounds_share_the_level():
    low, high = votes.bounds(80, 15, 100, 3, 0.01, 'all')
    assert tail(100, 80, low) <= Fraction(0.01) / 2
    assert tail(100, 85, 1 - high) <= Fraction(0.01) / 6
    one, other = votes.bounds(80, 15, 100, 3, 0.01, 'one')
    assert other == 1
    assert low < one
    assert votes.bounds(0, 100, 100, 3, 0.01, 'all') == (0, 1)


def test_a_class_has_half_of_the_level_and_the_others_share_the_rest(
    monkeypatch,
):
    asked = []
    monkeypatch.setattr(
        votes, 'lower_bound', lambda *args: asked.append(args) or Fraction(1)
    )
    alpha = 0.1
    votes.bounds(7, 2, 9, 5, alpha, 'all')
    votes.bounds(7, 2, 9, 5, alpha, 'one')
    exact = Fraction(alpha)
    assert sorted(asked) == sorted(
        [(9, 7, exact), (9, 7, exact / 2), (9, 7, exact / 10)]
    )


def test_targets_share_the_level():
    assert votes.level(0.9, 50, 'all') == (1 - Fraction(0.9)) / 50
    assert votes.level(0.9, 50, 'node') == 1 - Fraction(0.9)


def worst(p, parts):
    """Least probability over all sets of patterns, one taken in part."""
    best = None
    for kept in itertools.product((False, True), repeat=len(parts)):
        clean = sum(c for (c, _), k in zip(parts, kept, strict=True) if k)
        if clean > p:
            continue
        here = sum(d for (_, d), k in zip(parts, kept, strict=True) if k)
        rest = [
            d / c * (p - clean)
            for (c, d), k in zip(parts, kept, strict=True)
            if not k and c and c >= p - clean
        ]
        if clean == p:
            rest.append(Fraction(0))
        if rest:
            here += min(rest)
            best = here if best is None else min(best, here)
    return best


@pytest.mark.parametrize(
    'changes',
    [
        [(1, 1, 0.1, 0.6)],
        [(0, 2, 0.0, 0.5)],
        [(2, 1, 0.25, 0.3)],
        [(1, 0, 0.1, 0.2), (0, 1, 0.05, 0.4)],
        # No bit comes: who had none has one for sure, and that is the last.
        [(1, 0, 0.2, 0.3), (0, 1, 0.5, 0.0)],
    ],
)
def test_no_set_has_less_than_the_worst_case(changes):
    parts = list(votes.patterns(changes))
    assert sum(c for c, _ in parts) == sum(d for _, d in parts) == 1
    for p in (Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(1)):
        assert votes.least(p, votes.regions(changes)) == worst(p, parts)


def test_regions_are_those_of_the_fast_code():
    found = flip_regions(3, 2, 0.01, 0.6)
    mine = votes.regions([(3, 2, 0.01, 0.6)])
    order = (-found.log_ratio).argsort()
    assert [float(c) for c, _ in mine] == pytest.approx(
        found.clean[order].tolist(), rel=1e-12
    )


def test_a_class_stays_only_if_no_other_can_have_as_much():
    parts = votes.regions([(0, 1, 0.0, 0.5)])
    # Of a deleted bit half the samples see nothing.
    assert votes.stays((Fraction(9, 10), Fraction(1, 10)), parts)
    # Without a bound of the others it needs more than one half.
    assert votes.stays((Fraction(9, 10), 1), parts)
    assert not votes.stays((Fraction(3, 4), 1), parts)
    assert not votes.stays((0.1, 0.2), parts, 0.3)
    assert not votes.stays((Fraction(3, 4), Fraction(1, 4)), parts)
    assert not votes.stays((Fraction(9, 10), Fraction(1, 10)), parts, 0.2)
    assert votes.stays((0.4, 0.1), votes.regions([(0, 0, 0.1, 0.1)]))
    with pytest.raises(ValueError, match='no noise'):
        votes.regions([(1, 1, 0.7, 0.5)])


def test_radii_by_moving_votes_one_by_one():
    for counts in itertools.product(range(5), repeat=3):
        for mine, ties in itertools.product(range(3), ('first', 'any')):
            earlier = max(counts[:mine], default=-1)
            later = max(counts[mine + 1 :], default=-1)
            found = votes.radius(counts[mine], earlier, later, ties)
            assert found == slow_radius(counts, mine, ties)


def slow_radius(counts, mine, ties):
    """The largest number of moved votes, to any class, that all survive."""
    total, found = sum(counts), -1
    for k in range(total + 1):
        for other in range(3):
            if other == mine:
                continue
            moved = list(counts)
            moved[mine] -= k
            moved[other] += k
            rivals = [
                c
                for c in range(3)
                if c != mine
                and (
                    moved[c] > moved[mine]
                    or (
                        moved[c] == moved[mine] and (ties == 'any' or c < mine)
                    )
                )
            ]
            if rivals:
                return found
        found = k
    return found


def test_a_proposal_that_is_too_high_proves_nothing(monkeypatch):
    monkeypatch.setattr(votes, 'betaincinv', lambda *_: 1.0)
    assert votes.lower_bound(10, 5, 1e-3) == 0


@pytest.mark.parametrize('n', [1, 2, 7, 40])
@pytest.mark.parametrize('level', [Fraction(1, 3), Fraction(1, 1000)])
@pytest.mark.parametrize('off', [0, Fraction(1, 20)])
def test_the_least_count_above_one_half_by_trying_all(n, level, off):
    half = Fraction(1, 2) + off + votes.SURE
    counts = [k for k in range(n + 1) if tail(n, k, half) <= level]
    assert votes.needed(n, level, off) == min(counts, default=n + 1)


def test_an_answer_fails_as_often_as_two_binomials_do():
    p, n, k, m = Fraction(4, 5), 40, 28, 15
    missed = (1 - tail(n, k, p)) + (1 - tail(m, 8, p))
    assert votes.answers(p, n, k, m, missed * (1 + Fraction(1, 10**9)))
    assert not votes.answers(p, n, k, m, missed * (1 - Fraction(1, 10**9)))
    # A tie of an even number chooses nothing for sure.
    missed = (1 - tail(n, k, p)) + (1 - tail(16, 9, p))
    assert votes.answers(p, n, k, 16, missed * (1 + Fraction(1, 10**9)))
    assert not votes.answers(p, n, k, 16, missed * (1 - Fraction(1, 10**9)))
    assert not votes.answers(Fraction(1, 2), n, k, m, 1)
    most = votes.tail_up(n, n - k + 1, 1 - p) + votes.tail_up(m, 8, 1 - p)
    assert votes.answers(p, n, k, m, most)


@pytest.mark.parametrize('classes', ['all', 'one'])
def test_answers_are_those_of_every_bound_by_itself(classes):
    n, m, alpha, off = 60, 21, 0.05, 0.02
    share = Fraction(alpha) / (2 if classes == 'all' else 1)
    count = votes.needed(n, share, off)
    made = votes.Answers(n, m, alpha, classes, off)
    parts = votes.regions([(1, 1, 0.3, 0.2)])
    found = set()
    # Neither from the least on, nor from the most.
    for i in (50, 99, 80, 20, 95, 90, 97, 93, 98, 100, 96):
        bound = Fraction(i, 100)
        low = votes.least(max(bound - Fraction(off), Fraction(0)), parts)
        left = low - Fraction(off)
        holds = votes.answers(left, n, count, m, alpha)
        assert made.holds(bound, parts) == holds
        found.add(holds)
    assert found == {True, False}


@pytest.mark.parametrize(
    'rows',
    [
        'text',
        {},
        7,
        [(1, 2, 3)],
        [[1, 2]],
        [[1, 2, 3, 4]],
        [[1, 2, True]],
        [[1, 2, 3.0]],
        [[1, 2, -1]],
        [[0, 2, 3]],
    ],
)
def test_a_table_has_rows_of_counts(rows):
    assert votes.table([[1, 0, 0], [2, 3, 4]], 3) == [[1, 0, 0], [2, 3, 4]]
    assert votes.table([[1, -1, 0]], 3, -1)
    with pytest.raises(ValueError, match="'tallies' needs"):
        votes.table(rows, 3)


@pytest.mark.parametrize('off', [0.0, 2.0**-48, 2.0**-44, 1e-12, 1e-9, 1e-3])
def test_a_proposal_that_is_too_high_is_lowered_by_16_times_that(
    off, monkeypatch
):
    # Of one sample the bound is the level.
    level, off = 0.25, off * (1 + 2.0**-6)
    monkeypatch.setattr(votes, 'betaincinv', lambda *_: level * (1 + off))
    lost = 1 - votes.lower_bound(1, 1, level) / Fraction(level)
    assert 0 <= lost <= max(15 * off, 2.0**-44)
