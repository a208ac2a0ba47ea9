"""Bounds of probabilities: against 50 digits, and by their coverage."""

import json
import math

import pytest
import torch

from pyg_trust.certificates.smoothing import clopper_pearson


def test_bounds_are_those_of_fifty_digits(shared):
    file = shared / 'oracles/any_model_certificates/clopper_pearson.json'
    for k, n, level, lower, upper in json.loads(file.read_text()):
        count, alpha = torch.tensor([k]), float(level)
        low = float(clopper_pearson(count, n, alpha))
        high = float(clopper_pearson(count, n, alpha, 'upper'))
        assert low == pytest.approx(float(lower), rel=3e-12, abs=1e-300)
        assert high == pytest.approx(float(upper), rel=3e-12)
        # Rounded outwards.
        assert low <= float(lower)
        assert high >= float(upper)


def test_bounds_by_hand():
    all_of = clopper_pearson(torch.tensor([10]), 10, 0.05)
    assert float(all_of) == pytest.approx(0.05**0.1, rel=1e-11)
    none = clopper_pearson(torch.tensor([0]), 10, 0.05, 'upper')
    assert float(none) == pytest.approx(1 - 0.05**0.1, rel=1e-11)
    assert clopper_pearson(torch.tensor([10]), 10, 0.05, 'upper') == 1
    assert clopper_pearson(torch.tensor([0]), 10, 0.05) == 0


RUNS = 2000


def false_bounds(fresh: bool) -> float:
    # Seven equal classes: the class is picked by its votes.
    generator = torch.Generator().manual_seed(0)
    n, alpha, wrong = 50, 0.05, 0
    for _ in range(RUNS):
        votes = torch.randint(7, (2, n), generator=generator)
        chosen = votes[0].bincount(minlength=7).argmax()
        counted = votes[int(fresh)].bincount(minlength=7)[chosen]
        wrong += bool(clopper_pearson(counted[None], n, alpha) > 1 / 7)
    return wrong / RUNS


def test_fresh_samples_keep_the_level_and_others_do_not():
    # Chance of a false alarm below 1e-3 each (three standard errors).
    error = 3 * math.sqrt(0.05 * 0.95 / RUNS)
    assert 0.01 <= false_bounds(True) <= 0.05 + error
    assert false_bounds(False) > 0.2
