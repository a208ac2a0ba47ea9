r"""Randomized smoothing of bits: the worst case over all classifiers.

`"Efficient Robustness Certificates for Discrete Data"
<https://arxiv.org/abs/2008.12952>`_ (Bojchevski, Klicpera and Günnemann
2020), in float64 by sums of positive terms alone. Noise flips every bit of an
input :math:`x` by itself; an input with :math:`r_a` bits added and :math:`r_d`
deleted has :math:`r_a + r_d + 1` regions of equal likelihood ratio, which the
worst classifier fills in their order (Neyman and Pearson); docs/theory has the
formulas.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Natural,
    NotNegative,
    check_instance,
    check_integer,
    check_non_negative,
    check_number,
    check_tensor,
    validated,
)

__all__ = [
    'FlipRegions',
    'certified',
    'flip_regions',
    'joint_regions',
    'min_probability',
    'regions_at',
    'worst_case_probability',
]

# A bound of the rounding error of the difference of two worst cases.
_ROUNDING = 1e-12


class FlipRegions(NamedTuple):
    r"""Regions of equal likelihood ratio, by falling ratio.

    Args:
        clean (Tensor): float64, ``[num_regions]``: their probabilities under
            :math:`x`.
        perturbed (Tensor): those under :math:`\tilde x`.
        log_ratio (Tensor): the logarithms of the likelihood ratios.
    """

    clean: Tensor
    perturbed: Tensor
    log_ratio: Tensor


def check_noise(name: str, value: tuple[float, float]) -> tuple[float, float]:
    r"""Refuse probabilities that are no noise; return floats."""
    check_instance(name, value, tuple, list)
    if len(value) != 2:
        raise ValueError(
            f"'{name}' needs to be a pair (p_plus, p_minus) (got "
            f'{len(value)} entries)'
        )
    plus, minus = (check_number(name, p) for p in value)
    if not (plus >= 0 and minus >= 0 and plus + minus < 1):
        raise ValueError(
            f"'{name}' needs to be probabilities with p_plus + p_minus < 1 "
            f'(got {value[0]} and {value[1]})'
        )
    return plus, minus


def check_radius(name: str, value: tuple[int, int]) -> tuple[int, int]:
    """Refuse a radius that is no pair of counts."""
    check_instance(name, value, tuple, list)
    if len(value) != 2:
        raise ValueError(
            f"'{name}' needs to be a pair (additions, deletions) (got "
            f'{len(value)} entries)'
        )
    added, deleted = (check_integer(name, r, 0, numpy=True) for r in value)
    return added, deleted


def _check_flips(
    additions: int, deletions: int, p_plus: float, p_minus: float
) -> tuple[float, float]:
    # The probabilities, if all four fit.
    check_integer('additions', additions, 0)
    check_integer('deletions', deletions, 0)
    for name, p in (('p_plus', p_plus), ('p_minus', p_minus)):
        check_non_negative(name, p)
    return check_noise("p_plus' and 'p_minus", (p_plus, p_minus))


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


def _log_ratio(
    added: int, deleted: int, plus: float, minus: float
) -> np.ndarray:
    count = np.arange(added + deleted + 1)
    with np.errstate(divide='ignore', invalid='ignore'):
        rise = np.log1p(-plus) - np.log(minus)
        fall = np.log(plus) - np.log1p(-minus)
        return np.where(count == added, 0.0, (added - count) * rise) + (
            np.where(count == deleted, 0.0, (count - deleted) * fall)
        )


def flip_regions(
    additions: int, deletions: int, p_plus: float, p_minus: float
) -> FlipRegions:
    r"""Return the regions of one kind of bits at a radius.

    Relative error at most about :math:`(r_a + r_d + 8) 2^{-52}`. Where
    :math:`p_+` or :math:`p_-` is 0, some have probability 0 under one input.

    Args:
        additions (int): :math:`r_a`.
        deletions (int): :math:`r_d`.
        p_plus (float): :math:`p_+`.
        p_minus (float): :math:`p_-`.

    Raises:
        TypeError: on another type.
        ValueError: on a negative radius; if :obj:`p_plus` and
            :obj:`p_minus` are not probabilities with a sum below 1.

    Example:
        >>> flip_regions(0, 1, 0.0, 0.5).perturbed.tolist()
        [0.0, 1.0]
    """
    plus, minus = _check_flips(additions, deletions, p_plus, p_minus)
    if plus == minus == 0:
        ends = [1.0] if additions == deletions == 0 else [1.0, 0.0]
        ratio = [0.0] if len(ends) == 1 else [math.inf, -math.inf]
        lone = torch.tensor(ends, dtype=torch.float64)
        return FlipRegions(lone, lone.flip(0), torch.tensor(ratio).double())
    clean, perturbed = _regions(additions, deletions, plus, minus)
    return FlipRegions(
        torch.tensor(clean),
        torch.tensor(perturbed),
        torch.tensor(_log_ratio(additions, deletions, plus, minus)),
    )


def joint_regions(*kinds: FlipRegions) -> FlipRegions:
    """Combine the regions of several kinds of bits, sorted by their ratio.

    Probabilities multiply and logarithms of ratios add up. The order of the
    products is *not* that of the pairs: only sorted do they give the worst
    case.

    Example:
        >>> edges = flip_regions(0, 1, 0.01, 0.6)
        >>> features = flip_regions(2, 0, 0.01, 0.6)
        >>> joint_regions(edges, features).clean.numel()
        6
    """
    if not kinds:
        raise ValueError("'kinds' can't be empty")
    for part in kinds:
        check_instance('kinds', part, FlipRegions)
    if len(kinds) == 1:
        return kinds[0]
    clean: np.ndarray = kinds[0].clean.numpy()
    perturbed: np.ndarray = kinds[0].perturbed.numpy()
    ratio: np.ndarray = kinds[0].log_ratio.numpy()
    for other in kinds[1:]:
        clean = np.outer(clean, other.clean.numpy()).ravel()
        perturbed = np.outer(perturbed, other.perturbed.numpy()).ravel()
        with np.errstate(invalid='ignore'):
            ratio = np.add.outer(ratio, other.log_ratio.numpy()).ravel()
        # Infinities of both signs meet in regions of probability 0.
        keep = ~np.isnan(ratio)
        clean, perturbed, ratio = clean[keep], perturbed[keep], ratio[keep]
    order = np.argsort(-ratio, kind='stable')
    return FlipRegions(
        torch.tensor(clean[order]),
        torch.tensor(perturbed[order]),
        torch.tensor(ratio[order]),
    )


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


@validated
def worst_case_probability(
    p: Tensor, regions: FlipRegions, *, upper: bool = False
) -> Tensor:
    r"""Compute extreme probabilities under :math:`\tilde x` of any set.

    The set has the probability :math:`p` under :math:`x`. The result is its
    smallest probability under :math:`\tilde x`, or the largest.

    .. math::
        \rho(p) = \min_h \{ P_{\tilde x}(h) : P_x(h) = p \}, \qquad
        \bar\rho(p) = 1 - \rho(1 - p).

    Both are attained. :math:`\rho` is convex and piecewise linear, and falls
    in every radius, so that a radius stands for the whole ball within it.

    Args:
        p (Tensor): probabilities, float64, any shape.
        regions (FlipRegions): the result of :func:`flip_regions` or
            :func:`joint_regions`.
        upper (bool): whether the largest. (default: :obj:`False`)

    Returns:
        Tensor: float64, as :obj:`p`.

    Raises:
        ValueError: if :obj:`p` is not in [0, 1].

    Example:
        >>> p = torch.tensor([0.55, 0.9], dtype=torch.float64)
        >>> rho = worst_case_probability(p, flip_regions(0, 1, 0.01, 0.6))
        >>> [round(value, 12) for value in rho.tolist()]
        [0.2575, 0.835]
    """
    values = _probabilities('p', p)
    clean, perturbed = regions.clean.numpy(), regions.perturbed.numpy()
    # Start at the nearer end: where rho is steep, 1 - p is more precise than
    # p.
    low, high = (clean, perturbed), (clean[::-1], perturbed[::-1])
    start, end = (high, low) if upper else (low, high)
    worst = np.where(
        values <= 0.5,
        _fill(values, *start, upper),
        1 - _fill(1 - values, *end, not upper),
    )
    return torch.from_numpy(np.clip(worst, 0.0, 1.0)).view(p.shape)


def _probabilities(name: str, p: Tensor) -> np.ndarray:
    check_tensor(name, p, torch.float64, getattr(p, 'shape', ()) or ('num',))
    values = p.detach().cpu().numpy()
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(
            f"'{name}' needs to be in [0, 1] (got a value outside)"
        )
    return values


@validated
def min_probability(regions: FlipRegions) -> float:
    r"""Return the :math:`p` with :math:`\rho(p) = 1/2`, infinite if none.

    A class whose probability is above that is the likeliest one at
    :math:`\tilde x`, too, for any classifier.

    Example:
        >>> round(min_probability(flip_regions(1, 0, 0.01, 0.6)), 12)
        0.825
    """
    clean, perturbed = regions.clean.numpy(), regions.perturbed.numpy()
    gained = np.cumsum(perturbed)
    at = int(np.searchsorted(gained, 0.5, side='right'))
    if at == clean.size or clean[at] == 0:
        return math.inf
    before = gained[at - 1] if at > 0 else 0.0
    share = max(0.5 - before, 0.0) / perturbed[at]
    return float(clean[:at].sum() + share * clean[at])


@validated
def certified(
    lower: Annotated[Tensor, Array(torch.float64, 'num')],
    upper: Tensor | None,
    regions: FlipRegions,
    *,
    tolerance: NotNegative = 1e-9,
) -> Tensor:
    r"""Return where no classifier with such probabilities changes its class.

    By one bound, :math:`\rho(p_A) > 1/2`, or, with bounds of the other
    classes, by :math:`\rho(p_A) > \max_{B \ne A} \bar\rho(\min(p_B, 1 -
    p_A))`; both strict. :math:`\rho` is steep, so the tolerance is on the
    probabilities: it is taken from :math:`p_A` and added to :math:`p_B`.

    Args:
        lower (Tensor): :math:`p_A`, lower bounds of the probability of the
            class in question, float64, ``[num]``.
        upper (Tensor, optional): :math:`p_B`, upper bounds of the others',
            float64, ``[num, num_others]``. (default: :obj:`None`)
        regions (FlipRegions): as in :func:`worst_case_probability`.
        tolerance (float): for rounding, and for what separates the sampler's
            law from the noise. (default: :obj:`1e-9`)

    Returns:
        Tensor: bool, ``[num]``.

    Raises:
        TypeError, ValueError: on another dtype or shape, or what is not in
            [0, 1].
    """
    _probabilities('lower', lower)
    low = (lower - tolerance).clamp(min=0.0)
    sure = low > min_probability(regions)
    if upper is None:
        return sure
    _probabilities('upper', upper)
    check_tensor('upper', upper, torch.float64, (lower.numel(), 'num_others'))
    if upper.size(1) == 0:
        return sure
    # The largest bound has the largest worst case: rho-bar rises.
    high = torch.minimum(upper.amax(1), 1 - lower)
    high = (high + tolerance).clamp(max=1.0)
    below = worst_case_probability(low, regions)
    above = worst_case_probability(high, regions, upper=True)
    return sure | (below > above + _ROUNDING)


def regions_at(
    noise: Sequence[tuple[float, float]],
    radius: Sequence[tuple[int, int]],
) -> FlipRegions:
    """Return the joint regions of several kinds of bits at a radius.

    Example:
        >>> regions_at([(0.0, 0.5)], [(0, 1)]).clean.tolist()
        [0.5, 0.5]
    """
    for name, pairs in (('noise', noise), ('radius', radius)):
        check_instance(name, pairs, tuple, list)
    if len(noise) != len(radius) or not noise:
        raise ValueError(
            "'noise' and 'radius' need to be of the same kinds, at least one "
            f'(got {len(noise)} and {len(radius)})'
        )
    checked = [
        (*check_radius('radius', r), *check_noise('noise', p))
        for r, p in zip(radius, noise, strict=True)
    ]
    # Kinds that stay as they are add nothing.
    moved = [kind for kind in checked if kind[0] or kind[1]] or checked[:1]
    return joint_regions(*(flip_regions(*kind) for kind in moved))


@validated
def sampling_slack(cells: Natural) -> float:
    r"""Bound the total variation between the sampler's law and the noise.

    The lengths of the gaps between flips come from uniform numbers of 53 bits
    and a rounded logarithm: :math:`37 / p_+` lengths, each off by a few
    :math:`2^{-53}`, times :math:`p_+ N` gaps. Above :math:`10^9` cells they
    come from 64 bits in extended precision, where the machine has it.
    """
    extended = cells > 10**9 and np.finfo(np.longdouble).nmant >= 63
    return math.ldexp(float(cells), -57 if extended else -46)
