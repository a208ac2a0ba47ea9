"""Records in several units, in integers: against floats and closed forms."""

import math
from fractions import Fraction

import pytest

from pyg_trust import privacy as dp
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.verify import accounting, groups, intervals
from pyg_trust.verify.groups import judge_group

ONE, BITS = intervals.ONE, 60


def at(law, epsilon, q, z):
    """Brackets of F and of its slope, as floats."""
    point = law(round(epsilon * 2**BITS), BITS, Fraction(q), Fraction(z))
    return [[value / ONE for value in bracket] for bracket in point]


def test_one_unit_of_a_record_is_the_law_of_disjoint_units():
    z, q = Fraction(3), Fraction(1, 8)
    for law, name, noise in (
        (groups.coins(1), accounting.replaced, z),
        (groups.without_replacement(8, 1), accounting.withdrawn, z / 2),
    ):
        for num in (0, 1 << 58, 1 << 61):
            found, want = law(num, BITS, q, z), name(num, BITS, q, noise)
            for one, two in zip(found, want, strict=True):
                assert max(one[0], two[0]) <= min(one[1], two[1])


def test_weights_are_exact_and_nothing_is_lost():
    kept, rest = groups.binomial(Fraction(1, 50), 40)
    every = [
        Fraction(math.comb(40, i)) * Fraction(49**40 // 49**i, 50**40)
        for i in range(41)
    ]
    assert kept == {i: w for i, w in enumerate(every) if w >= groups.LEAST}
    assert 0 < rest < 41 * groups.LEAST
    assert sum(kept.values()) + rest == 1
    kept, rest = groups.hypergeometric(30, 200, 40)
    want = {
        i: Fraction(math.comb(40, i) * math.comb(160, 30 - i), 1)
        / math.comb(200, 30)
        for i in range(31)
    }
    assert kept == {i: w for i, w in want.items() if i and w >= groups.LEAST}
    assert sum(kept.values()) + rest + want[0] == 1


# k, m, z, q, steps, delta.
RUNS = [(3, None, 5.0, 0.05, 50, 1e-5), (2, 2, 4.0, Fraction(2, 40), 8, 1e-3)]


@pytest.mark.parametrize(('k', 'm', 'z', 'q', 'steps', 'delta'), RUNS)
def test_an_account_is_proved_and_less_is_refuted(k, m, z, q, steps, delta):
    lines = [(z, q, steps)]
    if m is None:
        claim = dp.poisson_epsilon(lines, delta, occurrences=k)
    else:
        n = int(m / q)
        claim = dp.group_wor_epsilon([(z, float(q), steps)], delta, n, k)
    assert judge_group(lines, 1.002 * claim, delta, k, m) == 'holds'
    assert judge_group(lines, 0.99 * claim, delta, k, m) == 'FAILS'


def test_the_trap_is_refuted():
    # Draws without replacement under the account of coins: 2 of 40.
    line = (4.0, Fraction(2, 40), 8)
    claim = dp.poisson_epsilon([(4.0, 0.05, 8)], 1e-3, occurrences=2)
    assert judge_group([line], 1.01 * claim, 1e-3, 2) == 'holds'
    assert judge_group([line], 1.01 * claim, 1e-3, 2, 2) == 'FAILS'
    # And occurrences that were forgotten.
    claim = dp.poisson_epsilon([(4.0, 0.05, 8)], 1e-3)
    assert judge_group([line], 1.01 * claim, 1e-3, 2) == 'FAILS'


def test_whole_batches_are_a_closed_form():
    claim = gaussian_epsilon(2 * 7 * 2 / 40.0, 1e-6)
    for m in (None, 11):
        for factor, want in ((1 + 1e-9, 'holds'), (1 - 1e-9, 'FAILS')):
            found = judge_group([(40.0, 1, 4)], factor * claim, 1e-6, 7, m)
            assert found == want


def test_what_is_no_statement_is_not_proved():
    line = [(8.0, Fraction(1, 4), 3)]
    assert judge_group(line, 1.0, 1.5, 2) == 'FAILS'
    assert judge_group(line, -1.0, 1e-5, 2) == 'FAILS'
    assert judge_group(line, 1e6, 0.0, 2) == 'FAILS'
    # Too little noise; no units; no share; more occurrences than units; more
    # weights than minutes.
    assert judge_group(line, 1e6, 1e-5, 100) == 'not proved'
    assert judge_group(line, 1e6, 1e-5, 0) == 'not proved'
    some = [(8.0, 0.3, 3)]
    assert judge_group(some, 1e6, 1e-5, 2, 1) == 'not proved'
    assert judge_group(line, 1e6, 1e-5, 5, 1) == 'not proved'
    many = [(500.0, 0.5, 3)]
    assert judge_group(many, 1e6, 1e-5, 1000) == 'not proved'
    many = [(500.0, Fraction(1, 2), 3)]
    assert judge_group(many, 1e6, 1e-5, 400, 500) == 'not proved'


def test_weights_that_are_left_out_belong_to_no_set_or_to_every_set(
    monkeypatch,
):
    def profiles():
        groups.hypergeometric.cache_clear()
        law = groups.without_replacement(80, 60)
        return [
            part
            for num in (0, 9, 3200)
            for part in law(num, 5, Fraction(1, 5), Fraction(20))
        ]

    found = profiles()
    assert groups.hypergeometric(80, 400, 60)[1] > 0
    # All of them are there: what is left to be seen is rounding.
    monkeypatch.setattr(groups, 'LEAST', Fraction(0))
    for (low, high), (less, most) in zip(found, profiles(), strict=True):
        assert low <= less + 100
        assert high >= most - 100
    groups.hypergeometric.cache_clear()


def test_a_guess_that_is_wrong_proves_nothing(monkeypatch):
    monkeypatch.setattr(groups, 'guess', lambda *_: 3.0)
    (low, high), (less, most) = at(groups.coins(3), 0.5, 0.1, 4.0)
    assert (low, high, less, most) == (0, 1, 0, 1)
