"""Statistics of attacks: AUC, permutation tests, multiple testing."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Fraction,
    check_share,
    check_tensor,
    validated,
)

__all__ = ['AUC', 'auc_interval', 'holm', 'permutation_test']


class AUC(NamedTuple):
    """Area under the ROC curve with its confidence interval.

    Args:
        value (float): the estimate.
        low (float): the lower end.
        high (float): the upper end.
    """

    value: float
    low: float
    high: float


@validated
def auc_interval(
    positive: Tensor, negative: Tensor, *, level: Fraction = 0.95
) -> AUC:
    r"""Compute the AUC of two samples of scores, with DeLong's interval.

    The AUC is the probability that a positive scores above a negative, ties
    by half; its variance is estimated as in `DeLong et al. 1988
    <https://doi.org/10.2307/2531595>`_, and the interval is the normal one,
    cut to :math:`[0, 1]`, which needs samples of some dozens. Where the
    estimated variance is zero it is that of Hoeffding's inequality,
    :math:`\hat\theta \pm \sqrt{\log(2 / (1 - \text{level})) / (2 \min(m,
    n))}`, for all distributions.

    Args:
        positive (Tensor): the scores of one sample, ``[m]``.
        negative (Tensor): the scores of the other, ``[n]``.
        level (float): the confidence, in :math:`(0, 1)`.
            (default: :obj:`0.95`)

    Raises:
        ValueError: if a sample has fewer than two scores, or one that is no
            number.
    """
    for name, sample in (('positive', positive), ('negative', negative)):
        check_tensor(name, sample, None, ('num_scores',))
        if sample.numel() < 2:
            raise ValueError(
                f"'{name}' needs to hold at least two scores "
                f'(got the shape {list(sample.shape)})'
            )
        if bool(sample.isnan().any()):
            raise ValueError(f"'{name}' needs to hold numbers (got NaN)")
    x, y = positive.double(), negative.double()
    v, w = _placement(x, y), 1 - _placement(y, x)
    value = float(v.mean())
    variance = float(v.var() / v.numel() + w.var() / w.numel())
    if variance > 1e-30:
        half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
    else:
        pairs = min(v.numel(), w.numel())
        half = math.sqrt(math.log(2 / (1 - level)) / (2 * pairs))
    return AUC(value, max(value - half, 0.0), min(value + half, 1.0))


def _placement(x: Tensor, other: Tensor) -> Tensor:
    # The share of the other sample below each of x, ties by half.
    other = other.sort().values
    below = torch.searchsorted(other, x)
    up_to = torch.searchsorted(other, x, right=True)
    return (below + up_to).double() / (2 * other.numel())


@validated
def permutation_test(
    one: Tensor,
    other: Tensor,
    *,
    one_sided: bool = False,
    draws: Count = 4000,
    seed: int | None = None,
) -> float:
    r"""Compare the means of two samples by a permutation test.

    With :math:`d` random divisions of all scores and the statistic :math:`t`
    (the difference of the means, its absolute value unless :obj:`one_sided`),
    :math:`p = (1 + |\{ j : t_j \ge t \}|) / (1 + d)`. If scores are
    exchangeable, :math:`P(p \le a) \le a` for any :math:`d`.

    Args:
        one (Tensor): scores, ``[m]``.
        other (Tensor): scores, ``[n]``.
        one_sided (bool): whether only a larger mean of the first counts.
            (default: :obj:`False`)
        draws (int): :math:`d`. (default: :obj:`4000`)
        seed (int, optional): the seed of the divisions.

    Raises:
        ValueError: if a sample is empty, or a score is not finite.
    """
    for name, sample in (('one', one), ('other', other)):
        check_tensor(name, sample, None, ('num_scores',), finite=True)
        if sample.numel() == 0:
            raise ValueError(f"'{name}' needs to hold a score (got none)")
    # Centred, so that sums round alike in any order.
    mean = torch.cat([one, other]).double().mean()
    samples = [(part.double() - mean).numpy() for part in (one, other)]

    def statistic(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        gap = x.mean(axis) - y.mean(axis)
        return gap if one_sided else np.abs(gap)

    found = scipy.stats.permutation_test(
        *(samples, statistic),
        vectorized=True,
        n_resamples=draws,
        alternative='greater',
        random_state=rng.stream(rng.resolve(seed)),
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Correct several p values by Holm's method, keeping their order.

    Rejecting where the result is at most :math:`a` rejects a true hypothesis
    with probability at most :math:`a`, under any dependence (`Holm 1979
    <https://www.jstor.org/stable/4615733>`_).

    Args:
        p_values (list[float]): in :math:`[0, 1]`.
    """
    if not isinstance(p_values, Sequence) or isinstance(p_values, str):
        raise TypeError(
            "'p_values' needs to be a list of numbers "
            f'(got {type(p_values).__name__})'
        )
    for value in p_values:
        check_share('p_values', value)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * p_values[i])
        corrected[i] = min(largest, 1.0)
    return corrected
