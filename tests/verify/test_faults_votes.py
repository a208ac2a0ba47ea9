"""Faults in the fast code of votes and smoothing: the kernel refuses them.

Bounds, radii and certificates of the right code are within what the kernel
proves of the same counts; those of every faulty one are not, somewhere.
"""

import math
from fractions import Fraction

import pytest
import torch
from planting import planted

from pyg_trust.certificates import smoothed, smoothing
from pyg_trust.certificates.smoothing import (
    certified,
    clopper_pearson,
    regions_at,
)
from pyg_trust.certificates.voting import certified_votes
from pyg_trust.verify import votes as kernel

N, ALPHA, CLASSES = 200, 0.01, 3


def bounds():
    """Bounds of a class and of all others, at the level that they share."""
    for top in range(0, N + 1, 8):
        counts = torch.tensor([[top, (N - top) // 2, 0, 0]])
        counts[0, 2] = N - counts.sum()
        lower, upper = smoothed._bounds(
            counts, torch.tensor([0]), N, ALPHA, 'all'
        )
        p = float(lower[0])
        yield p == 0 or kernel.proves(N, top, p, ALPHA / 2)
        for other, high in zip(counts[0, 1:], upper[0, 1:], strict=True):
            level = Fraction(ALPHA) / (2 * CLASSES)
            least = 1 - Fraction(float(high))
            left = N - int(other)
            yield least <= 0 or kernel.proves(N, left, least, level)


def alone():
    """Bounds of one class, from below and above."""
    counts = torch.arange(0, N + 1, 5)
    lower = clopper_pearson(counts, N, ALPHA).tolist()
    upper = clopper_pearson(counts, N, ALPHA, 'upper').tolist()
    for k, p, high in zip(counts.tolist(), lower, upper, strict=True):
        yield p == 0 or kernel.proves(N, k, p, ALPHA)
        least = 1 - Fraction(high)
        yield least <= 0 or kernel.proves(N, N - k, least, ALPHA)


NOISES = [
    ([(0.0, 0.4)], [(0, 2)]),
    ([(0.01, 0.6)], [(1, 0)]),
    ([(0.01, 0.6)], [(2, 1)]),
    ([(0.3, 0.1)], [(0, 1)]),
    ([(0.01, 0.6), (0.2, 0.3)], [(1, 0), (0, 1)]),
    ([(0.2, 0.3), (0.01, 0.6)], [(0, 2), (1, 0)]),
]


def regions():
    """Who stays after so many flipped bits, at bounds all over."""
    tolerance = 0.01
    grid = [i / 40 for i in range(20, 40)]
    grid += [1 - 10.0**-i for i in range(2, 5)]
    for noise, radius in NOISES:
        made = regions_at(noise, radius)
        parts = kernel.regions(
            [(*r, *p) for r, p in zip(radius, noise, strict=True)]
        )
        for low in grid:
            # Of three classes; and of one bound alone.
            for share in (0.0, 0.3, 0.9, None):
                high = 1.0 if share is None else share * (1 - low)
                upper = None
                if share is not None:
                    upper = torch.tensor([[high, high / 2]]).double()
                stays = certified(
                    torch.tensor([low]).double(),
                    upper,
                    made,
                    tolerance=tolerance,
                )
                yield not bool(stays) or kernel.stays(
                    (low, high), parts, tolerance * (1 - 1e-9)
                )


def radii():
    """How many votes may change, with ties of either kind."""
    generator = torch.Generator().manual_seed(0)
    votes = torch.randint(0, 3, (7, 60), generator=generator)
    for ties in ('first', 'any'):
        made = certified_votes(votes, 3, ties=ties)
        for each in range(60):
            c, counts = int(made.predicted[each]), made.counts[each].tolist()
            # The class is the first of those with most votes.
            earlier = max(counts[:c], default=-1)
            later = max(counts[c + 1 :], default=-1)
            most = kernel.radius(counts[c], earlier, later, ties)
            yield int(made.radius[each]) <= most


FAULTS = {
    'a level that is not halved': (
        bounds,
        smoothed._bounds,
        "alpha / 2 if classes == 'all' else alpha",
        'alpha',
    ),
    'others at the level of one': (
        bounds,
        smoothed._bounds,
        'alpha / (2 * others)',
        'alpha / 2',
    ),
    'bounds of the class for the others': (
        bounds,
        smoothed._bounds,
        "clopper_pearson(votes, total, alpha / (2 * others), 'upper')",
        'clopper_pearson(votes, total, alpha / (2 * others))',
    ),
    'one-sided bounds at the level of both sides': (
        alone,
        clopper_pearson,
        'betaincinv(some, rest, alpha)',
        'betaincinv(some, rest, alpha := 2 * alpha)',
    ),
    'a count less among the others': (
        alone,
        clopper_pearson,
        'num_samples - k + 1',
        'num_samples - k + 0.5',
    ),
    'counts that are shifted by one': (
        alone,
        clopper_pearson,
        'k = counts.detach().cpu().numpy().astype(np.float64)',
        'k = counts.detach().cpu().numpy().clip(0, num_samples - 1) + 1.0',
    ),
    'an upper bound rounded inwards': (
        alone,
        clopper_pearson,
        'np.nextafter(1 - bound, 2.0)',
        '((1 - bound) * (1 - 1e-9))',
    ),
    'deletions for additions': (
        regions,
        smoothing._regions,
        '_binomial(added, 1 - minus), _binomial(deleted, 1 - plus)',
        '_binomial(added, 1 - plus), _binomial(deleted, 1 - minus)',
    ),
    'regions in the order of their pairs': (
        regions,
        smoothing.joint_regions,
        "np.argsort(-ratio, kind='stable')",
        'np.arange(len(ratio))',
    ),
    'a flip less': (
        regions,
        smoothing.regions_at,
        '(*r, *p)',
        '(max(r[0] - 1, 0), r[1], *p)',
    ),
    'one kind of noise alone': (
        regions,
        smoothing.regions_at,
        'for kind in moved',
        'for kind in moved[:1]',
    ),
    'the last region in full': (
        regions,
        smoothing.min_probability,
        'clean[:at].sum() + share * clean[at]',
        'clean[:at].sum()',
    ),
    'a tolerance that is added': (
        regions,
        smoothing.certified,
        '(lower - tolerance)',
        '(lower + tolerance)',
    ),
    'the least of the other classes': (
        regions,
        smoothing.certified,
        'upper.amax(1)',
        'upper.amin(1)',
    ),
    'another class at its clean probability': (
        regions,
        smoothing.certified,
        'above = worst_case_probability(high, regions, upper=True)',
        'above = high',
    ),
    'a majority of less than one half': (
        regions,
        smoothing.min_probability,
        'max(0.5 - before, 0.0)',
        'max(0.4 - before, 0.0)',
    ),
    'a tie that is won': (
        radii,
        certified_votes,
        '(best - counts - lost)',
        '(best - counts)',
    ),
    'a vote that counts once': (
        radii,
        certified_votes,
        "(best - counts - lost).div(2, rounding_mode='floor')",
        '(best - counts - lost)',
    ),
    'ties lost to later classes': (
        radii,
        certified_votes,
        'torch.arange(num_classes) < predicted',
        'torch.arange(num_classes) > predicted',
    ),
    'a radius that is rounded up': (
        radii,
        certified_votes,
        '(best - counts - lost).div',
        '(best - counts - lost + 1).div',
    ),
}


@pytest.mark.parametrize('rule', [bounds, alone, regions, radii])
def test_the_right_code_is_within_what_the_kernel_proves(rule):
    found = list(rule())
    assert len(found) > 2
    assert all(found)


@pytest.mark.parametrize('name', sorted(FAULTS))
def test_a_faulty_one_is_not(name):
    rule, *fault = FAULTS[name]
    with planted(*fault):
        assert not all(rule())


def test_bounds_lose_no_more_than_they_have_to():
    # What is proved is within a millionth of the bound of the fast code.
    for k in (1, 40, 150, 199, 200):
        fast = float(clopper_pearson(torch.tensor([k]), N, ALPHA)[0])
        proved = kernel.lower_bound(N, k, ALPHA)
        assert math.isclose(float(proved), fast, rel_tol=1e-6)
