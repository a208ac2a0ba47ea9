"""Confidence bounds of probabilities from counts."""

import math
from typing import Annotated

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    Fraction,
    OneOf,
    check_range,
    check_tensor,
    validated,
)

__all__ = ['answering_probability', 'clopper_pearson', 'look_level']


@validated
def clopper_pearson(
    counts: Tensor,
    num_samples: Count,
    alpha: Fraction,
    side: Annotated[str, OneOf(('lower', 'upper'))] = 'lower',
) -> Tensor:
    r"""Compute one-sided bounds of probabilities (Clopper and Pearson 1934).

    The lower one is the :math:`p` with :math:`P[\mathrm{Bin}(n, p) \ge k] =
    \alpha`, the :math:`\alpha`-quantile of :math:`\mathrm{Beta}(k, n - k +
    1)`, and 0 for :math:`k = 0`; the upper one is 1 minus the lower one of
    :math:`n - k`. Each is wrong with probability at most :math:`\alpha`,
    *provided that what is counted was chosen before*: pick the class on other
    samples. Rounded outwards: the tail at the bound is at most :math:`\alpha`.

    Args:
        counts (Tensor): :math:`k`, int64, any shape.
        num_samples (int): :math:`n`, fixed before looking.
        alpha (float): the level of each bound, in (0, 1).
        side (str): :obj:`'lower'` or :obj:`'upper'`. (default: :obj:`'lower'`)

    Returns:
        Tensor: float64, as :obj:`counts`.

    Raises:
        ValueError: if a count is not in :math:`[0, n]`, or something else is
            out of range.

    Example:
        >>> clopper_pearson(torch.tensor([0, 5, 10]), 10, 0.05)
        tensor([0.0000, 0.2224, 0.7411], dtype=torch.float64)
    """
    check_tensor('counts', counts, torch.int64, getattr(counts, 'shape', ()))
    check_range('counts', counts, num_samples + 1, 'the samples')
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
        bound[...] = np.where(k == 0, 1.0, bound)
    return torch.from_numpy(np.asarray(bound)).view(counts.shape)


@validated
def look_level(alpha: Fraction, look: Count) -> float:
    r"""Return the significance level that one of many looks may spend.

    .. math::
        \alpha_j = \frac{6 \alpha}{\pi^2 j^2}, \qquad
        \sum_{j \ge 1} \alpha_j = \alpha

    With bounds at these levels, samples may be added until the result pleases:
    all looks together are wrong with probability at most :math:`\alpha`.
    """
    return alpha * 6 / (math.pi * look) ** 2


@validated
def answering_probability(
    num_samples: Count,
    num_selection: Count,
    alpha: float,
    failure: Fraction,
    tolerance: float = 0.0,
) -> float:
    r"""Return the least class probability at which smoothing rarely abstains.

    The class wins a majority of :math:`m` samples, and its lower bound from
    :math:`n` others (:func:`clopper_pearson`) exceeds :math:`1/2` plus a
    tolerance. This fails with probability at most

    .. math::
        P[\mathrm{Bin}(m, p) \le m / 2] + P[\mathrm{Bin}(n, p) < k^*],

    :math:`k^*` the least count with such a bound. It falls in :math:`p`.

    Returns:
        float: the least such :math:`p`, rounded up; infinite if there is
        none below 1.

    Example:
        >>> round(answering_probability(1000, 100, 0.01, 0.01), 3)
        0.619
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
