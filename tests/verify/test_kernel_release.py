"""Integers of a release, against fractions and enumerated neighbours."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from pyg_trust.verify import release

STDS = [2.0**-900, 1e-30, 0.3, 1.0, 7.5, 1e20, 2.0**900]
NUMBERS = [0.0, -0.0, 1e-12, 0.3, -0.3, 1 / 3, -1.0, 2.5, -1e3, 123456.789]


@pytest.mark.parametrize('std', STDS)
def test_the_grid_is_the_deviation_in_2_to_the_32_parts(std):
    assert Fraction(release.grid(std)) == Fraction(std) / 2**32


@pytest.mark.parametrize(
    'std',
    [
        *(math.nextafter(2.0**-900, 0), math.nextafter(2.0**900, math.inf)),
        *(0.0, -1.0, math.inf, math.nan),
    ],
)
def test_what_has_no_exact_grid_is_refused(std):
    with pytest.raises(ValueError, match="'std' needs to be between"):
        release.grid(std)


@pytest.mark.parametrize('std', STDS[1:-1])
def test_numbers_are_truncated_towards_zero_and_rounded_to_the_nearest(std):
    x = std * np.array(NUMBERS)
    cut, near = release.truncated(x, std), release.rounded(x, std)
    assert cut.dtype == near.dtype == np.float64
    u, g = Fraction(1, 2**53), Fraction(std) / 2**32
    for value, k, r in zip(
        x.tolist(), cut.tolist(), near.tolist(), strict=True
    ):
        exact = Fraction(value)
        assert (k, r) == (int(k), int(r))
        # A message that is withdrawn moves the sum by no more than it is.
        assert g * abs(Fraction(k)) <= abs(exact) * (1 + u)
        assert abs(exact) < g * (abs(Fraction(k)) + 1) * (1 + u)
        assert value * k >= 0
        assert abs(g * Fraction(r) - exact) <= g / 2 + u * abs(exact) * (1 + u)
    whole = np.array([1.5, 2.5, -1.5, 0.75, -0.75]) * release.grid(1.0)
    assert release.truncated(whole, 1.0).tolist() == [1, 2, -1, 0, 0]
    assert release.rounded(whole, 1.0).tolist() == [2, 2, -2, 1, -1]
    assert whole[0] == 1.5 * release.grid(1.0)  # the input is as it was


@pytest.mark.parametrize('std', [0.3, 1.0])
def test_sums_have_62_bits_and_floats_53(std):
    # |k| is below 2^62 with room for noise; sums of floats below 2^53.
    most = std * 2.0 ** (61 - 32)
    release.check_sum(math.nextafter(most, 0), std)
    for size in (most, 2 * most, math.inf, math.nan):
        with pytest.raises(ValueError, match="'here' is too small"):
            release.check_sum(size, std, 'here')
    least = std * 2.0 ** (52 - 32)
    assert release.fits_float(math.nextafter(least, 0), std)
    assert not release.fits_float(least, std)
    assert not release.fits_float(1.5 * least, std)


@pytest.mark.parametrize('std', STDS[1:-1])
@pytest.mark.parametrize('share', [0.0, 1e-18, 1e-9, 0.01])
def test_a_deviation_that_pays_for_rounding_is_rounded_up(std, share):
    made = Fraction(release.widened(std, share))
    needed = Fraction(std) * (1 + Fraction(share))
    assert needed < made < needed * (1 + Fraction(1, 2**50))


def test_a_release_is_a_function_of_the_sum_alone():
    cells = np.array([5, -(2**41), 0, 7])
    for k in ([3, 2**53 + 1, -9, 0], [2**60, -(2**60), 1, -7]):
        whole = np.array(k, dtype=np.int64)
        made = release.released(whole, cells, 0.3)
        sums = [a + b for a, b in zip(k, cells.tolist(), strict=True)]
        # The nearest double of the integer, times the grid: one number.
        assert made.tolist() == [
            float(each) * math.ldexp(0.3, -32) for each in sums
        ]
    # Floats that are integers are the same; nothing is written into.
    floats = np.array([3.0, 2.0**40, -9.0, 0.0])
    made = release.released(floats, cells, 0.3)
    again = release.released(floats.astype(np.int64), cells, 0.3)
    assert made.tolist() == again.tolist()
    assert cells.tolist() == [5, -(2**41), 0, 7]


# Sensitivities, over all neighbours of a small world ########################

ANGLES = [i * math.pi / 6 for i in range(12)]
UNITS = [np.array([math.cos(a), math.sin(a)]) for a in ANGLES]
MESSAGES = [np.zeros(2), *UNITS]
CORNERS = [
    np.array([math.cos(a), math.sin(a)])
    for a in (0, 2 * math.pi / 3, -2 * math.pi / 3)
]


def lists(most):
    """Weights of a record's list: any of four nodes, of energy at most D."""
    for n in range(5):
        for chosen in itertools.combinations(range(4), n):
            made = np.zeros(4)
            made[list(chosen)] = min(1, math.sqrt(most / max(n, 1)))
            yield made


def farthest(records, form):
    parts = [np.outer(w, m) for w, m in records]
    if form == 'add_remove':
        return max(np.linalg.norm(part) for part in parts)
    pairs = itertools.product(parts, repeat=2)
    return max(np.linalg.norm(one - two) for one, two in pairs)


@pytest.mark.parametrize('form', ['add_remove', 'replace'])
@pytest.mark.parametrize('most', [None, 1, 2, 4])
def test_no_record_moves_a_sum_by_more(form, most):
    records = list(itertools.product(lists(most or 1), MESSAGES))
    found = farthest(records, form)
    for relation in ('node', 'node_incident', 'feature'):
        claimed = release.sensitivity(relation, False, form, most)
        assert claimed == pytest.approx(found, rel=1e-12)


def test_messages_of_classes_have_no_opposites():
    records = list(itertools.product(lists(2), [np.zeros(2), *CORNERS]))
    found = farthest(records, 'replace')
    claimed = release.sensitivity('node', False, 'replace', 2, 3)
    assert claimed == pytest.approx(found, rel=1e-12)
    # Of two classes, or one, there are opposites.
    for classes in (None, 1, 2):
        assert release.sensitivity('node', True, 'replace', None, classes) == 2
    blank = release.sensitivity('node', True, 'add_remove', None, 3)
    assert blank == 1


@pytest.mark.parametrize('directed', [False, True])
def test_an_edge_is_a_message_or_two(directed):
    pairs = itertools.product(MESSAGES, repeat=2)
    found = max(
        math.hypot(np.linalg.norm(m), 0 if directed else np.linalg.norm(n))
        for m, n in pairs
    )
    for form in ('either', 'add_remove', 'replace'):
        made = release.sensitivity('edge', directed, form)
        assert made == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('form', ['add_remove', 'replace'])
def test_a_record_moves_rows_and_every_step_as_far(form, directed):
    # Its message, and its clipped gradient over C: vectors of norm 1 at most.
    moved = farthest([(np.ones(1), m) for m in MESSAGES], form)
    made = release.pair_mus(3.0, None, 1.5, 7, directed, form)
    each = [moved / 3, 0, *[moved / 1.5] * 7]
    rows, count, steps = np.square(made)
    assert (rows, count) == pytest.approx(np.square(each[:2]), rel=1e-12)
    assert steps == pytest.approx(np.square(each[2:]).sum(), rel=1e-12)
