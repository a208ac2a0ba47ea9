"""Randomized smoothing of bits: bounds, and worst cases of classifiers.

After `Bojchevski, Klicpera and Günnemann 2020
<https://arxiv.org/abs/2008.12952>`_, in float64 by sums of positive terms
alone; docs/theory has the formulas.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust._checks import check_instance, check_integer, check_number

__all__ = [
    'FlipRegions',
    'answering_probability',
    'certified',
    'clopper_pearson',
    'flip_regions',
    'joint_regions',
    'min_probability',
    'regions_at',
    'worst_case_probability',
]

# A bound of the rounding error of the difference of two worst cases.
_ROUNDING = 1e-12


def clopper_pearson(
    counts: Tensor, num_samples: int, alpha: float, side: str = 'lower'
) -> Tensor:
    r"""Compute one-sided bounds of probabilities (Clopper and Pearson 1934).

    The lower one is the :math:`p` with :math:`P[\mathrm{Bin}(n, p) \ge k] =
    \alpha`, and 0 for :math:`k = 0`; the upper one is 1 minus the lower one of
    :math:`n - k`. Each is wrong with probability at most :math:`\alpha`,
    *provided that what is counted was chosen before*: pick the class on other
    samples. Rounded outwards.
    """
    k = counts.detach().cpu().numpy().astype(np.float64)
    if side == 'upper':
        k = num_samples - k
    rest = num_samples - k + 1
    some = np.maximum(k, 1.0)
    bound = scipy.special.betaincinv(some, rest, alpha) * (1 - 1e-12)
    for _ in range(64):
        high = scipy.special.betainc(some, rest, bound) > alpha
        if not high.any():
            break
        bound = np.where(high, bound * (1 - 1e-9), bound)
    bound = np.where(
        (k > 0) & (scipy.special.betainc(some, rest, bound) <= alpha), bound, 0
    )
    if side == 'upper':
        bound = np.nextafter(1 - bound, 2.0).clip(max=1.0)
        bound = np.where(k == 0, 1.0, bound)
    return torch.from_numpy(np.asarray(bound)).view(counts.shape)


def answering_probability(
    num_samples: int,
    num_selection: int,
    alpha: float,
    failure: float,
    tolerance: float = 0.0,
) -> float:
    r"""Return the least class probability at which smoothing rarely abstains.

    The class wins a majority of :math:`m` samples, and its lower bound from
    :math:`n` others exceeds :math:`1/2` plus a tolerance. This fails with
    probability at most :math:`P[\mathrm{Bin}(m, p) \le m / 2] +
    P[\mathrm{Bin}(n, p) < k^*]`, :math:`k^*` the least count with such a
    bound, which falls in :math:`p`. Rounded up; infinite if there is none.
    """
    counts = torch.arange(num_samples // 2, num_samples + 1)
    enough = clopper_pearson(counts, num_samples, alpha) > 0.5 + tolerance
    if not bool(enough.any()):
        return math.inf
    least = float(counts[enough][0])
    most = float(num_selection // 2 + 1)

    def fails(p: float) -> float:
        chance = scipy.special.betainc(num_samples - least + 1, least, 1 - p)
        chance += scipy.special.betainc(num_selection - most + 1, most, 1 - p)
        return float(chance) * (1 + 1e-9)

    low, high = 0.5, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if fails(middle) <= failure else (middle, high)
        )
    return high if fails(high) <= failure else math.inf


# The worst case over all classifiers ########################################


class FlipRegions(NamedTuple):
    """Regions of equal likelihood ratio, by falling ratio.

    Their probabilities in the clean and in the changed input, and the
    logarithms of the ratios.
    """

    clean: np.ndarray
    perturbed: np.ndarray
    log_ratio: np.ndarray


def _check_pair(name: str, value: Any, what: str) -> None:
    check_instance(name, value, tuple, list)
    if len(value) != 2:
        raise ValueError(
            f"'{name}' needs to be a pair {what} (got {len(value)} entries)"
        )


def check_noise(name: str, value: tuple[float, float]) -> tuple[float, float]:
    """Refuse probabilities that are no noise; return floats."""
    _check_pair(name, value, '(p_plus, p_minus)')
    plus, minus = (check_number(name, p) for p in value)
    if not (plus >= 0 and minus >= 0 and plus + minus < 1):
        raise ValueError(
            f"'{name}' needs to be probabilities with p_plus + p_minus < 1 "
            f'(got {value[0]} and {value[1]})'
        )
    return plus, minus


def check_radius(name: str, value: tuple[int, int]) -> tuple[int, int]:
    """Refuse a radius that is no pair of counts."""
    _check_pair(name, value, '(additions, deletions)')
    added, deleted = (check_integer(name, r, 0, numpy=True) for r in value)
    return added, deleted


@lru_cache(maxsize=4096)
def _binomial(count: int, p: float) -> np.ndarray:
    # Halving keeps the work quadratic and every term positive.
    if count == 0:
        return np.ones(1)
    if count == 1:
        return np.array([1 - p, p])
    half = count // 2
    return np.convolve(_binomial(half, p), _binomial(count - half, p))


@lru_cache(maxsize=65536)
def _regions(
    added: int, deleted: int, plus: float, minus: float
) -> tuple[np.ndarray, np.ndarray]:
    clean = np.convolve(_binomial(added, plus), _binomial(deleted, minus))
    perturbed = np.convolve(
        _binomial(added, 1 - minus), _binomial(deleted, 1 - plus)
    )
    return clean, perturbed


def flip_regions(
    additions: int, deletions: int, p_plus: float, p_minus: float
) -> FlipRegions:
    r"""Return the likelihood-ratio regions for numbers of flipped bits.

    The relative error is at most about :math:`(r_a + r_d + 8) 2^{-52}`. Where
    :math:`p_+` or :math:`p_-` is 0, some have probability 0 in one input.
    """
    if p_plus == p_minus == 0:
        if additions == deletions == 0:
            return FlipRegions(np.ones(1), np.ones(1), np.zeros(1))
        ends = np.array([1.0, 0.0])
        return FlipRegions(ends, 1 - ends, np.array([math.inf, -math.inf]))
    count = np.arange(additions + deletions + 1)
    more, less = additions - count, count - deletions
    with np.errstate(divide='ignore', invalid='ignore'):
        rise = np.log1p(-p_plus) - np.log(p_minus)
        fall = np.log(p_plus) - np.log1p(-p_minus)
        ratio = np.where(more == 0, 0.0, more * rise) + (
            np.where(less == 0, 0.0, less * fall)
        )
    return FlipRegions(*_regions(additions, deletions, p_plus, p_minus), ratio)


def joint_regions(*kinds: FlipRegions) -> FlipRegions:
    """Combine the regions of several kinds of bits, sorted by their ratio.

    The order of the products is *not* that of the pairs: only sorted do they
    give the worst case.
    """
    clean, perturbed, ratio = kinds[0]
    for other in kinds[1:]:
        clean = np.outer(clean, other.clean).ravel()
        perturbed = np.outer(perturbed, other.perturbed).ravel()
        with np.errstate(invalid='ignore'):
            ratio = np.add.outer(ratio, other.log_ratio).ravel()
        # Infinities of both signs meet in regions of probability 0.
        keep = ~np.isnan(ratio)
        clean, perturbed, ratio = clean[keep], perturbed[keep], ratio[keep]
    if len(kinds) == 1:
        return kinds[0]
    order = np.argsort(-ratio, kind='stable')
    return FlipRegions(clean[order], perturbed[order], ratio[order])


def regions_at(
    noise: Sequence[tuple[float, float]],
    radius: Sequence[tuple[int, int]],
) -> FlipRegions:
    """Return the joint regions of several kinds of bits at a radius."""
    each = [(*r, *p) for r, p in zip(radius, noise, strict=True)]
    # Kinds that stay as they are add nothing.
    moved = [kind for kind in each if kind[0] or kind[1]] or each[:1]
    return joint_regions(*(flip_regions(*kind) for kind in moved))


def _fill(
    p: np.ndarray, clean: np.ndarray, perturbed: np.ndarray, free: bool
) -> np.ndarray:
    # The mass under x~ of regions filled in this order up to the mass p
    # under x; `free`: regions without mass under x are taken along.
    used = np.concatenate([[0.0], np.cumsum(clean)])
    gained = np.concatenate([[0.0], np.cumsum(perturbed)])
    at = np.searchsorted(used, p, side='right' if free else 'left') - 1
    at = np.clip(at, 0, clean.size - 1)
    with np.errstate(divide='ignore', invalid='ignore'):
        share = np.where(clean[at] > 0, (p - used[at]) / clean[at], 0.0)
    return gained[at] + np.clip(share, 0.0, 1.0) * perturbed[at]


def worst_case_probability(
    p: Tensor, regions: FlipRegions, *, upper: bool = False
) -> Tensor:
    r"""Compute the least (or largest) probability of a set after a change.

    Of all sets with the probability :math:`p` before:

    .. math::
        \rho(p) = \min_h \{ P_{\tilde x}(h) : P_x(h) = p \}, \qquad
        \bar\rho(p) = 1 - \rho(1 - p).

    Both are attained. :math:`\rho` is convex and piecewise linear, and falls
    in every radius, so that a radius stands for the whole ball within it.
    """
    values = p.numpy()
    # Start at the nearer end: where rho is steep, 1 - p is more precise than
    # p.
    low = regions.clean, regions.perturbed
    high = regions.clean[::-1], regions.perturbed[::-1]
    start, end = (high, low) if upper else (low, high)
    worst = np.where(
        values <= 0.5,
        _fill(values, *start, upper),
        1 - _fill(1 - values, *end, not upper),
    )
    return torch.from_numpy(np.clip(worst, 0.0, 1.0)).view(p.shape)


def min_probability(regions: FlipRegions) -> float:
    r"""Return the :math:`p` with :math:`\rho(p) = 1/2`, infinite if none.

    A class with a larger probability is the likeliest one after the change,
    too, for any classifier.
    """
    clean, perturbed, _ = regions
    gained = np.cumsum(perturbed)
    at = int(np.searchsorted(gained, 0.5, side='right'))
    if at == clean.size or clean[at] == 0:
        return math.inf
    before = gained[at - 1] if at > 0 else 0.0
    share = max(0.5 - before, 0.0) / perturbed[at]
    return float(clean[:at].sum() + share * clean[at])


def certified(
    lower: Tensor,
    upper: Tensor | None,
    regions: FlipRegions,
    *,
    tolerance: float = 1e-9,
) -> Tensor:
    r"""Return where no classifier with such probabilities changes its class.

    By one bound, :math:`\rho(p_A) > 1/2`, or, with bounds of the other
    classes, ``[num, num_others]``, by :math:`\rho(p_A) > \max_{B \ne A}
    \bar\rho(\min(p_B, 1 - p_A))`; both strict. :math:`\rho` is steep, so the
    tolerance is on the probabilities.
    """
    low = (lower - tolerance).clamp(min=0.0)
    sure = low > min_probability(regions)
    if upper is None or upper.size(1) == 0:
        return sure
    # The largest bound has the largest worst case: rho-bar rises.
    high = torch.minimum(upper.amax(1), 1 - lower)
    high = (high + tolerance).clamp(max=1.0)
    below = worst_case_probability(low, regions)
    above = worst_case_probability(high, regions, upper=True)
    return sure | (below > above + _ROUNDING)


def sampling_slack(cells: int) -> float:
    r"""Bound the total variation between the sampler's law and the noise.

    The lengths of the gaps between flips come from uniform numbers of 53 bits
    and a rounded logarithm: :math:`37 / p_+` lengths, each off by a few
    :math:`2^{-53}`, times :math:`p_+ N` gaps. Above :math:`10^9` cells they
    come from 64 bits in extended precision, where the machine has it.
    """
    extended = cells > 10**9 and np.finfo(np.longdouble).nmant >= 63
    return math.ldexp(float(cells), -57 if extended else -46)
