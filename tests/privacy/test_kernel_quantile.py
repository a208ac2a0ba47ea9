"""The private quantile, by its exact law."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from pyg_trust.privacy.exact import quantile


def law(values, epsilon, k=1, share=0.5, answers=None):
    if answers is None:
        answers = quantile.candidates(0.01, 10.0)
    made = quantile.weights(np.array(values), share, epsilon, answers, k)
    return [Fraction(w, sum(made)) for w in made]


def exactly_below(ratio, epsilon):
    # log of a rational number is below a float: by a series from below.
    term, total = Fraction(1), Fraction(1)
    for i in range(1, 60):
        term = term * Fraction(epsilon) / i
        total += term
    return ratio <= total


@pytest.mark.parametrize('epsilon', [1e-6, 1.5, 30.0])
@pytest.mark.parametrize('k', [1, 2])
def test_no_replacement_moves_a_probability_by_more(epsilon, k):
    values = [0.02, 0.3, 0.5, 2.0, 7.0]
    before = law(values, epsilon, k)
    others = [0.0, 0.4, math.inf]
    largest = Fraction(0)
    for rows in itertools.combinations(range(5), k):
        for new in itertools.product(others, repeat=k):
            changed = list(values)
            for row, value in zip(rows, new, strict=True):
                changed[row] = value
            after = law(changed, epsilon, k)
            for p, q in zip(before, after, strict=True):
                largest = max(largest, p / q, q / p)
    assert exactly_below(largest, epsilon)
    # And it uses what it may.
    assert math.log(largest) > 0.5 * epsilon


def test_a_unit_more_of_sensitivity_would_be_found():
    # Four values replaced under k = 1 are more than epsilon apart.
    one = law([1.0] * 5, 2.0, share=0.01)
    two = law([5.0] * 4 + [1.0], 2.0, share=0.01)
    ratio = max(q / p for p, q in zip(one, two, strict=True))
    assert not exactly_below(ratio, 2.0)


def test_where_the_ratio_rounds_to_1_every_answer_is_as_likely():
    # More than 1 it would be to say that far ones are likelier.
    found = law([0.02, 0.3, 0.5, 2.0, 7.0], 1e-15)
    assert found == [Fraction(1, 256)] * 256


class Empty(Exception):
    """No byte is left."""


@pytest.mark.parametrize(
    ('total', 'size'),
    [(1, 1), (255, 1), (256, 2), (511, 2), (65535, 2), (65536, 3), (2**24, 4)],
)
def test_a_draw_asks_for_the_fewest_bytes(total, size):
    asked = []

    def source(count):
        asked.append(count)
        return bytes(count)

    assert quantile.pick([total - 1, 1] if total > 1 else [1], source) == 0
    assert asked == [size]


def test_a_draw_is_exactly_in_proportion():
    # All bytes, once each: those that are taken are even.
    made = [3, 0, 5, 1, 8]
    found = [0] * 5
    for first in range(256):
        given = [bytes([first])]

        def source(count, given=given):
            if not given:
                raise Empty
            assert count == 1
            return given.pop()

        try:
            found[quantile.pick(made, source)] += 1
        except Empty:
            continue
    assert found == [8 * w for w in made]


def test_the_answer_is_near_the_quantile():
    rng = np.random.default_rng(0)
    values = np.exp(rng.uniform(math.log(0.1), math.log(5), 5001))
    for share in (0.1, 0.5, 0.9):
        found = quantile.quantile(
            values, share, 1.0, 0.01, 100.0, 1, rng.bytes
        )
        assert abs((values < found).mean() - share) < 0.02


def test_the_ends_are_answers_and_the_integers_stay_short():
    assert quantile.candidates(0.5, 3.0)[[0, -1]].tolist() == [0.5, 3.0]
    # Half of a million below the second answer, none or all of the others.
    many = np.repeat([1.0, 3.0], 500_000)
    answers = np.array([0.5, 2.0, 4.0])
    made = quantile.weights(many, 0.5, 1.0, answers, 1)
    assert max(made).bit_length() <= 33 * 128
    # Weights fall by e^-64, and no farther.
    assert made[0] == made[2] == min(made)
    assert 63.999 < math.log(Fraction(made[1], made[0])) <= 64


@pytest.mark.parametrize('epsilon', [700.0, 1e4, 1e300])
def test_an_epsilon_whose_exponential_is_0_leaves_every_answer(epsilon):
    # All candidates are far from the quantile: the draw has to end.
    values = np.array([1.0, 1.0, 5.0, 5.0, 5.0, 5.0])
    answers = np.array([1.0, 2.0, 9.0])
    made = quantile.weights(values, 0.5, epsilon, answers, 1)
    assert min(made) == 1
    source = np.random.default_rng(0).bytes
    assert 0 <= quantile.pick(made, source) < 3


def test_the_ratio_of_two_weights_is_rounded_up_and_not_by_much():
    # Right above a whole number, where a float is at it, or below it.
    answers = quantile.candidates(0.01, 10.0)
    seen = 0
    for m in range(2**30, 2**32, 2**27 - 1):
        step = -math.log(m / 2**32)
        made = quantile.weights(np.array([1.0]), 0.1, 2 * step, answers, 1)
        a = min(made)
        with mpmath.workdps(60):
            exact = mpmath.exp(-mpmath.mpf(step)) * 2**32
            assert exact <= a <= exact + 1 + mpmath.mpf(2) ** -14
        # Given away is 2^-48 of it: by steps just before a whole number.
        for part in (0.6, 0.8, 1.2, 1.7):
            near = step - math.log1p(-part * 2.0**-48)
            with mpmath.workdps(60):
                up = mpmath.exp(-mpmath.mpf(near)) * 2**32
                up *= 1 + mpmath.mpf(2) ** -48
                clear = abs(up - mpmath.nint(up)) > up * 2.0**-51
                wanted = int(mpmath.ceil(up))
            values = np.array([1.0])
            made = quantile.weights(values, 0.1, 2 * near, answers, 1)
            assert min(made) == wanted or not clear
            seen += clear
    assert seen > 50
