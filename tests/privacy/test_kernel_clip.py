"""What a unit adds is exact, and no longer than the clipping norm.

Against whole numbers and fractions of Python, which round nothing.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import references
import torch

from pyg_trust.privacy.bounds import add_truncated, lengths, scales
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.exact.step import adds

C = 0.75


def exact_length(matrix):
    """The norm of a matrix of whole numbers, in units of C."""
    total = sum(int(v) ** 2 for v in np.asarray(matrix).reshape(-1))
    return math.isqrt(total) * 2.0**-43


def unit(rng, rows, out, width, size=0.0, cancels=False):
    gamma = rng.standard_normal((rows, out)).astype('f4')
    a = rng.standard_normal((rows, width)).astype('f4')
    a *= np.float32(10.0 ** rng.uniform(-size, size))
    if cancels and rows > 1:
        gamma[-1], a[-1] = gamma[0], -a[0] * np.float32(1 + 1e-6)
    return gamma.astype(float), a.astype(float)


def sizes(gamma, a):
    """The numbers of one unit, by the formulas of the proof, in floats."""
    tops = np.abs(a).max(1)
    scale = clip.scales(tops)
    length = np.linalg.norm(gamma, axis=1) * (1 + 1e-12)
    others = np.linalg.norm(a, axis=1) * (1 + 1e-12)
    out, width = gamma.shape[1], a.shape[1]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    n = np.linalg.norm(gamma.T @ a) + 1e-13 * (length * others).sum()
    tau = math.sqrt(width) / 2 * (length * scale).sum()
    kappa = (
        0.51 * math.sqrt(out) * others * inverse + math.sqrt(out * width) / 3
    ).sum()
    weight = (np.abs(gamma).max(1) * scale).max()
    return (np.array([v]) for v in (n, tau, kappa, weight))


def test_units_are_no_longer_than_the_norm_and_near_their_gradients():
    rng = np.random.default_rng(0)
    longest = 0.0
    for trial in range(300):
        rows, out, width = rng.integers(1, 7, 3)
        gamma, a = unit(rng, rows, out, width, 3.0, trial % 3 == 0)
        n, tau, kappa, weight = sizes(gamma, a)
        c = clip.factors(n, tau, kappa, weight, C)
        assert c[0] > 0
        alpha, inner = references.rows(gamma, a, np.repeat(c, rows), C)
        assert np.abs(alpha).max() <= 2**22
        assert np.abs(inner).max() <= 2**22
        added = references.block_sum(alpha, inner)
        longest = max(longest, exact_length(added))
        assert exact_length(added) <= 1
        # Exactly the sum of whole numbers.
        wanted = [
            [
                sum(int(p) * int(q) for p, q in zip(one, other, strict=True))
                for other in inner.T
            ]
            for one in alpha.T
        ]
        assert added.tolist() == wanted
        # And as near as was proved.
        off = np.linalg.norm(
            added * clip.grid(C) - c * (gamma.T @ a).astype(float)
        )
        most = c * tau + clip.grid(C) * kappa
        assert off <= most + 1e-12 * c * n
    # A bound that clips everything to nothing would pass as well.
    assert longest > 1 - 1e-3


def test_the_torch_code_has_the_same_scales():
    tops = np.array(
        [0, 1e-45, 1e-30, 0.5, 1 - 2**-24, 1, 1.5, 2**127, 1e300, 1e-320],
        dtype=float,
    )
    scale, inverse = scales(torch.from_numpy(tops))
    wanted = clip.scales(tops)
    assert scale.tolist() == wanted.tolist()
    live = wanted > 0
    assert ((scale * inverse).numpy()[live] == 1).all()
    assert inverse[0] == 0


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_lengths_are_upper_bounds_whatever_the_numbers(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 300, generator=generator, dtype=dtype)
    powers = torch.linspace(-45, 18, 40, dtype=torch.float64)
    rows *= (10**powers).to(dtype).view(-1, 1)
    rows[3] = 0
    rows[4, 1:] = 0
    found, top = lengths(rows)
    for row, length, most in zip(rows, found, top, strict=True):
        square = sum(Fraction(float(v)) ** 2 for v in row)
        assert Fraction(float(length)) ** 2 >= square
        assert float(most) == float(row.double().abs().max())
        assert float(length) <= 1.001 * math.sqrt(square) + 1e-17
    bad = torch.tensor([[math.nan, 1.0], [math.inf, 1.0]], dtype=dtype)
    assert not bool(lengths(bad)[0].isfinite().any())


def test_blocks_are_exact_where_float64_would_round():
    # The largest numbers that the cap lets through, all of one sign.
    rows = 3 * clip.BLOCK + 7
    alpha = np.full((rows, 2), 2.0**22)
    inner = np.full((rows, 3), 2.0**22)
    alpha[:, 1] -= np.arange(rows) % 2
    total = references.block_sum(alpha, inner)
    assert total[0].tolist() == [rows * 2**44] * 3
    assert total[1].tolist() == [rows * 2**44 - rows // 2 * 2**22] * 3


def test_factors_leave_out_what_is_not_finite_or_does_not_fit():
    inf, nan = math.inf, math.nan
    n = np.array([0.5, inf, nan, 0.5, 0.5, 0.5, 0.0, 0.5])
    tau = np.array([0.0, 0, 0, inf, 0, 0, 0, 0])
    kappa = np.array([0.0, 0, 0, 0, nan, 2.0**44, 0, 0])
    weight = np.array([0.0, 0, 0, 0, 0, 0, 0, inf])
    c = clip.factors(n, tau, kappa, weight, 1.0)
    assert c[[1, 2, 3, 4, 5, 7]].tolist() == [0] * 6
    assert 1 - 1e-9 < c[0] < 1
    assert 1 - 1e-9 < c[6] < 1
    # Large rows that cancel are capped.
    c = clip.factors(
        np.array([0.5]), np.zeros(1), np.zeros(1), np.array([4.0]), 1.0
    )
    assert c[0] * 4.0 <= 2.0**22 * clip.grid(1.0)


def test_truncated_gradients_get_no_longer():
    rng = np.random.default_rng(1)
    for _ in range(50):
        g = rng.standard_normal(30).astype('f4').astype(float)
        n = np.array([np.linalg.norm(g) * (1 + 1e-12)])
        none = np.zeros(1)
        c = clip.factors(n, none, none, none, C)
        found = clip.truncated(g, float(c[0]), C)
        assert exact_length(found) <= 1
        total = torch.zeros(30, dtype=torch.int64)
        add_truncated(total, torch.from_numpy(g)[None], torch.from_numpy(c), C)
        assert total.tolist() == found.tolist()


@pytest.mark.parametrize('z', [0.3, 1.0, 7.3, 1e6])
@pytest.mark.parametrize('count', [1, 1000, 10**6])
def test_the_noise_pays_for_rounding_to_its_grid(z, count):
    step, rho = clip.noise_grid(z, C, count)
    sigma = Fraction(step) * 2**32
    # Neighbours are C apart, and sqrt(d) steps more on each side.
    far = Fraction(C) + 2 * Fraction(step) * Fraction(math.sqrt(count))
    assert sigma / far >= Fraction(z)
    assert sigma / Fraction(C) / Fraction(z) < 1 + 2 * Fraction(rho) + 1e-14
    most = int(2**18 * min(z, 1)) * 2**43 - 1
    total = np.array([most, -most, 12345, 0], dtype=np.int64)
    found = clip.on_noise_grid(total, C, step)
    for k, t in zip(found.tolist(), total.tolist(), strict=True):
        wanted = Fraction(t) * Fraction(clip.grid(C)) / Fraction(step)
        assert abs(Fraction(k) - wanted) < 1


@pytest.mark.parametrize(
    ('z', 'norm', 'count'),
    [(1.1e6, C, 10**6), (1e9, C, 80), (1, 1e-61, 1), (1, 1e61, 1)],
)
def test_a_grid_on_which_nothing_is_proved_is_refused(z, norm, count):
    # It would be coarser than what is clipped, or be no exact double.
    with pytest.raises(ValueError, match=r"'multiplier'.*'norm'"):
        clip.noise_grid(z, norm, count)


@pytest.mark.parametrize('norm', [1e-12, 1e-60, 1.0, 1e60])
def test_a_gradient_near_the_largest_float_is_not_too_long(norm):
    # A factor of 1e-313 has lost a third of its digits, and may be too large.
    rng = np.random.default_rng(3)
    for size in (1e100, 1e240, 1e290, 1e299, 1e300):
        for _ in range(20):
            g = rng.standard_normal(8)
            g *= size * rng.random() / np.linalg.norm(g)
            (found,) = adds([g], norm)
            assert sum(int(v) ** 2 for v in found) <= 2**86
            assert found.any() or size > 2.0**800 / 20


@pytest.mark.parametrize('fault', ['none', 'kappa', 'cap', 'mean'])
def test_each_part_of_the_proof_is_needed(fault, monkeypatch):
    # Without it some unit is too long, or a product is no exact number.
    if fault == 'mean':
        real = clip.scales
        monkeypatch.setattr(clip, 'scales', lambda tops: real(tops / 64))
    rng = np.random.default_rng(2)
    longest, largest = 0, 0.0
    for _ in range(300):
        gamma, a = unit(rng, 1, 2, 3)
        if fault == 'cap':
            gamma = np.concatenate([gamma, -gamma])
            a = np.concatenate([a, a * (1 + 1e-6)]) * 1e5
        n, tau, kappa, weight = sizes(gamma, a)
        if fault == 'kappa':
            tau, kappa = 0 * tau, 0 * kappa
        if fault == 'cap':
            weight = 0 * weight
        c = clip.factors(n, tau, kappa, weight, C)
        alpha, inner = references.rows(gamma, a, np.repeat(c, len(a)), C)
        largest = max(largest, np.abs(alpha).max(), np.abs(inner).max())
        total = sum(
            int(v) ** 2 for v in references.block_sum(alpha, inner).reshape(-1)
        )
        longest = max(longest, total - 2**86)
    assert (longest > 0) == (fault == 'kappa')
    assert (largest > 2**22) == (fault in ('cap', 'mean'))


def test_the_grid_of_noise_is_what_is_stated():
    for z, norm, count in ((1.0, 1.0, 10**6), (0.3, 0.7, 1), (40.0, 3.0, 999)):
        step, rho = clip.noise_grid(z, norm, count)
        with mpmath.workprec(200):
            stated = mpmath.mpf('1.001') * mpmath.sqrt(count) * z
            stated = stated / mpmath.mpf(2) ** 31
            stated = stated / (1 - stated)
            sigma = mpmath.mpf(z) * norm * (1 + stated)
            found = mpmath.mpf(step) * 2**32
            assert sigma <= found <= sigma * (1 + mpmath.mpf(2) ** -48)
            assert abs(rho / stated - 1) < mpmath.mpf(2) ** -48


def test_of_the_grid_of_noise_2_to_the_minus_50_is_given_away():
    # Of powers of two no product but the last is rounded.
    step, rho = clip.noise_grid(1.0, 1.0, 1)
    more = Fraction(step) * 2**32 / (1 + Fraction(rho)) - 1
    assert abs(more - Fraction(1, 2**50)) <= Fraction(3, 2**53)


def test_the_ends_of_norms_and_the_share_of_one_half():
    for norm in (2.0**-200, 2.0**200):
        step, _ = clip.noise_grid(1.0, norm, 1)
        assert step * 2**32 >= norm
    for norm in (2.0**-200 * (1 - 2.0**-53), 2.0**200 * (1 + 2.0**-52)):
        with pytest.raises(ValueError, match="'norm'"):
            clip.noise_grid(1.0, norm, 1)
    # The multipliers around it: one of them makes it one half exactly.
    z, halves = 2.0**30 / 1.001, 0
    for _ in range(4):
        z = math.nextafter(z, 0)
    for _ in range(9):
        share = 1.001 * math.ldexp(z, -31)
        if share < 0.5:
            assert clip.noise_grid(z, 1.0, 1)[1] == share / (1 - share)
        else:
            with pytest.raises(ValueError, match="'multiplier'"):
                clip.noise_grid(z, 1.0, 1)
        halves += share == 0.5
        z = math.nextafter(z, math.inf)
    assert halves


def test_a_row_of_zeros_adds_zeros():
    gamma, a = np.ones((2, 3)), np.zeros((2, 4))
    a[1] = 0.5
    alpha, inner = references.rows(gamma, a, np.ones(2), 1.0)
    assert alpha[0].tolist() == [0] * 3
    assert inner[0].tolist() == [0] * 4
    assert references.block_sum(alpha, inner).tolist() == [[2**42] * 4] * 3


def test_factors_give_away_their_last_digits_and_no_more():
    n, norm = np.array([3.0, 1e-3]), 0.7
    tau, kappa = np.array([0.1, 0.0]), np.array([2.0**20, 0.0])
    for automatic in (False, True):
        c = clip.factors(n, tau, kappa, 0 * n, norm, automatic)
        for i in range(2):
            room = Fraction(norm) * (1 - Fraction(float(kappa[i])) / 2**43)
            most = Fraction(float(n[i])) + Fraction(float(tau[i]))
            most = room / (most + (Fraction(0.01) if automatic else 0))
            most = most if automatic else min(most, Fraction(1))
            less, off = Fraction(1, 2**40), Fraction(1, 2**50)
            assert most * (1 - less - off) <= c[i] <= most * (1 - less + off)


def test_constants_are_those_of_the_proofs():
    assert (clip.BLOCK, clip.MOST_UNITS) == (256, 262144)
    # 256 products of two numbers up to 2^22 are below 2^53.
    assert clip.BLOCK * 2 ** (2 * clip.INPUT_BITS) == 2**52
    # Totals of so many units, each at most 2^43, are whole in 64 bits.
    assert clip.MOST_UNITS << clip.GRID_BITS == 2**61


def test_units_whose_scales_are_no_numbers_add_nothing():
    one, none = np.ones(3), np.zeros(3)
    weight = np.array([2.0**799, 2.0**800, np.nan])
    c = clip.factors(one, none, none, weight, 1.0)
    assert c[0] > 0
    assert (c[1:] == 0).all()


def test_scales_are_powers_of_two_from_the_least_to_the_largest_row():
    # The largest entry becomes an integer of 22 bits, of which rows outside
    # of these ends have fewer or more.
    for power in (-300, -299, -1, 0, 1, 399):
        for top in (2.0**power, 2.0**power * 1.999):
            (scale,) = clip.scales(np.array([top]))
            assert 2**21 <= Fraction(top) / Fraction(scale) < 2**22
    ends = clip.scales(np.array([0.0, 2.0**-301, 2.0**-1000, 2.0**400, 1e300]))
    assert ends.tolist() == [0, 2.0**-321, 2.0**-321, 2.0**379, 2.0**379]


def test_factors_of_nothing_and_of_all_that_is_too_large():
    zero, one = np.zeros(1), np.ones(1)
    less = 1 - 2.0**-40
    # Nothing is clipped where there is nothing; if lengthened, by 100 C.
    assert clip.factors(zero, zero, zero, zero, 3.0).tolist() == [less]
    found = clip.factors(zero, zero, zero, zero, 3.0, automatic=True)
    assert found.tolist() == [3.0 / 0.01 * less]
    # All of C goes into rounding; one unit of the grid is left; more is not.
    for kappa, room in ((2.0**43, 0), (2.0**43 - 1, 1), (2.0**43 + 1, 0)):
        c = clip.factors(one, zero, kappa * one, zero, 1.0)
        assert c.tolist() == [room * 2.0**-43 * less]
    c = clip.factors(zero, zero, 2.0**43 * one, zero, 1.0)
    assert c.tolist() == [0]
    for large in (2.0**800, 1e300, np.inf, np.nan):
        for place in range(3):
            given = [one, zero, zero, zero]
            given[(0, 1, 3)[place]] = large * one
            assert clip.factors(*given, 1.0).tolist() == [0]
            assert clip.factors(*given, 1.0, automatic=True).tolist() == [0]
    # Just below they count, and are made as short as C.
    c = clip.factors(2.0**799 * one, zero, zero, zero, 2.0**10)
    assert c.tolist() == [2.0**-789 * less]
    # The largest integer is below 2^22 of the grid.
    c = clip.factors(zero, zero, zero, 5.0 * one, 1.0)
    assert c.tolist() == [2.0 ** (22 - 43) / 5.0 * less]
