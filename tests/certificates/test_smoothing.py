"""The worst case over all classifiers, against rationals and enumeration."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyg_trust.certificates.smoothing import (
    certified,
    flip_regions,
    joint_regions,
    min_probability,
    regions_at,
    worst_case_probability,
)

ORACLES = 'oracles/any_model_certificates'


def read(shared, name):
    return json.loads((shared / ORACLES / f'{name}.json').read_text())


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def real(text):
    return float(Fraction(text))


def test_min_probability_is_that_of_rationals(shared):
    for entry in read(shared, 'p_min'):
        plus, minus = real(entry['p_plus']), real(entry['p_minus'])
        want = entry['p_min']
        for a, row in enumerate(want):
            for d, value in enumerate(row):
                got = min_probability(flip_regions(a, d, plus, minus))
                least = math.inf if value is None else float(value)
                assert got == pytest.approx(least, abs=1e-14)


def test_worst_cases_are_those_of_rationals(shared):
    for plus, minus, a, d, p, lower, upper in read(shared, 'rho'):
        regions = flip_regions(a, d, real(plus), real(minus))
        point = double(real(p))
        low = worst_case_probability(point, regions)
        high = worst_case_probability(point, regions, upper=True)
        assert float(low) == pytest.approx(float(lower), abs=1e-12)
        assert float(high) == pytest.approx(float(upper), abs=1e-12)


def test_joint_regions_are_those_of_rationals(shared):
    for entry in read(shared, 'joint'):
        noise = [
            tuple(map(real, entry[kind])) for kind in ('edges', 'features')
        ]
        a, d, fa, fd = entry['radii']
        got = min_probability(regions_at(noise, [(a, d), (fa, fd)]))
        if entry['p_min'] is None:
            assert got == math.inf
        else:
            assert got == pytest.approx(float(entry['p_min']), abs=1e-14)


def test_joint_regions_of_the_published_example():
    # Edges (.1, .3), features (.05, .2), radii (3, 0, 3, 5), p = .999: the
    # published code says .657.
    regions = regions_at([(0.1, 0.3), (0.05, 0.2)], [(3, 0), (3, 5)])
    rho = worst_case_probability(double(0.999), regions)
    assert float(rho) == pytest.approx(0.0020, abs=1e-4)


def test_all_classes_are_those_of_rationals(shared):
    for entry in read(shared, 'multiclass'):
        plus, minus = real(entry['p_plus']), real(entry['p_minus'])
        low, high = real(entry['p_lower']), real(entry['p_upper'])
        for a, row in enumerate(entry['certified']):
            for d, want in enumerate(row):
                regions = flip_regions(a, d, plus, minus)
                got = certified(double(low), double(high)[None], regions)
                one = float(low) > min_probability(regions)
                assert bool(got) == bool(want or one), (entry, a, d)
                if not one:
                    assert bool(got) == bool(want)


def test_the_corner_is_the_worst_of_its_ball(shared):
    for entry in read(shared, 'brute_force'):
        ones = sum(entry['x'])
        a = min(entry['ra'], len(entry['x']) - ones)
        d = min(entry['rd'], ones)
        regions = flip_regions(
            a, d, real(entry['p_plus']), real(entry['p_minus'])
        )
        rho = worst_case_probability(double(real(entry['p'])), regions)
        assert float(rho) == pytest.approx(float(entry['worst']), abs=1e-12)


@pytest.mark.parametrize(
    ('noise', 'radius'),
    [
        ([(0.1, 0.3)], [(2, 1)]),
        ([(0.0, 0.6)], [(1, 2)]),
        ([(0.2, 0.0)], [(2, 1)]),
        ([(0.1, 0.3), (0.05, 0.2)], [(1, 1), (2, 1)]),
        ([(0.0, 0.3), (0.05, 0.2)], [(1, 1), (1, 1)]),
        ([(0.0, 0.3), (0.2, 0.0)], [(1, 1), (1, 1)]),
    ],
)
def test_the_bound_is_attained(noise, radius):
    # Over all outcomes of the bits that differ, the classifier that fills
    # outcomes by their own likelihood ratio: no regions.
    bits = []
    for (plus, minus), (a, d) in zip(noise, radius, strict=True):
        bits += [(plus, 1 - minus)] * a + [(1 - minus, plus)] * d
    outcomes = []
    for z in itertools.product([0, 1], repeat=len(bits)):
        clean = math.prod(
            p if b else 1 - p for b, (p, _) in zip(z, bits, strict=True)
        )
        other = math.prod(
            p if b else 1 - p for b, (_, p) in zip(z, bits, strict=True)
        )
        if clean or other:
            outcomes.append((clean, other))
    outcomes.sort(key=lambda pair: pair[1] / pair[0] if pair[0] else math.inf)
    regions = regions_at(noise, radius)
    for p in (0.05, 0.3, 0.5, 0.8, 0.95, 0.9999):
        for upper in (False, True):
            left, mass = p, 0.0
            for clean, other in outcomes[:: -1 if upper else 1]:
                share = min(1.0, left / clean) if clean else float(upper)
                mass += share * other
                left -= share * clean
            got = worst_case_probability(double(p), regions, upper=upper)
            assert float(got) == pytest.approx(mass, abs=1e-12)


def test_a_tie_certifies_nothing():
    regions = flip_regions(0, 0, 0.1, 0.2)
    assert min_probability(regions) == 0.5
    half = double(0.5)
    for other in (0.5, 0.4999999999):
        assert not certified(half, double(other)[None], regions).any()
    assert certified(double(0.5 + 2e-9), None, regions).all()
    # At p_min exactly, rho is 1/2.
    regions = flip_regions(2, 3, 0.1, 0.2)
    at = double(min_probability(regions))
    assert not certified(at, 1 - at[:, None], regions).any()


def test_every_other_class_counts():
    # Runner-up alone would do: .48 against .1; a third class has .42.
    regions = flip_regions(0, 1, 0.01, 0.6)
    low = double(0.48)
    assert certified(low, double(0.01)[None], regions).any()
    assert not certified(low, double(0.01, 0.42)[None], regions).any()


def test_radii_are_monotone_and_clean_probabilities_add_up():
    for plus, minus in ((0.01, 0.6), (0.3, 0.3), (0.0, 0.6), (0.4, 0.0)):
        big = np.array(
            [
                [
                    min(9, min_probability(flip_regions(a, d, plus, minus)))
                    for d in range(7)
                ]
                for a in range(7)
            ]
        )
        assert (np.diff(big, axis=0) >= 0).all()
        assert (np.diff(big, axis=1) >= 0).all()
        for a, d in ((64, 64), (0, 64), (64, 0)):
            regions = flip_regions(a, d, plus, minus)
            assert float(regions.clean.sum()) == pytest.approx(1, abs=1e-13)
            assert float(regions.perturbed.sum()) == pytest.approx(
                1, abs=1e-13
            )
            ratio = regions.log_ratio
            assert (ratio[:-1] >= ratio[1:]).all()


def test_closed_forms_without_additions():
    for r in range(8):
        keep = 0.4**r
        least = min_probability(flip_regions(0, r, 0.0, 0.4))
        assert least == pytest.approx(1 - keep / 2)
    assert min_probability(flip_regions(1, 0, 0.0, 0.6)) == pytest.approx(
        1 / 1.2
    )
    assert min_probability(flip_regions(2, 0, 0.0, 0.6)) == math.inf


def test_bits_without_noise_are_never_certified():
    regions = regions_at([(0.0, 0.0), (0.1, 0.2)], [(1, 0), (0, 0)])
    assert min_probability(regions) == math.inf
    free = regions_at([(0.0, 0.0), (0.1, 0.2)], [(0, 0), (0, 1)])
    assert np.array_equal(free.clean, flip_regions(0, 1, 0.1, 0.2).clean)
    joint = joint_regions(free, regions)
    assert min_probability(joint) == math.inf
