"""Statistics of attacks, and lower bounds of epsilon and mu by them.

As in `Jagielski et al. 2020 <https://arxiv.org/abs/2006.07709>`_.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    check_instance,
    check_share,
    check_tensor,
    validated,
)
from pyg_trust.audit.report import PrivacyAudit
from pyg_trust.certificates.smoothing import clopper_pearson
from pyg_trust.report import provenance

__all__ = [
    'AUC',
    'Trials',
    'auc_interval',
    'check_coins',
    'empirical_epsilon',
    'empirical_mu',
    'holm',
    'mu_of',
    'permutation_test',
    'told_apart',
]

_THRESHOLDS = 500


class AUC(NamedTuple):
    """An AUC (``value``) with the ends of its confidence interval."""

    value: float
    low: float
    high: float


@validated
def auc_interval(
    positive: Tensor, negative: Tensor, *, level: Fraction = 0.95
) -> AUC:
    """Compute the AUC of two samples of scores, with DeLong's interval.

    The AUC is the probability that a positive scores above a negative, ties by
    half (`DeLong et al. 1988 <https://doi.org/10.2307/2531595>`_). Where the
    estimated variance is zero, the interval is that of Hoeffding.

    Args:
        positive (Tensor): the scores of one sample, ``[m]``, at least two.
        negative (Tensor): the scores of the other, ``[n]``, at least two.
        level (float): the confidence, in :math:`(0, 1)`.
    """
    for name, sample in (('positive', positive), ('negative', negative)):
        check_tensor(name, sample, None, ('num_scores',))
        if sample.numel() < 2 or bool(sample.isnan().any()):
            raise ValueError(
                f"'{name}' needs to hold at least two scores, all of them "
                f'numbers (got {sample.numel()}, of which '
                f'{int(sample.isnan().sum())} are NaN)'
            )
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
    """Compare the means of two samples by a permutation test.

    Returns the p value, which holds if scores are exchangeable.

    Args:
        one (Tensor): scores, ``[m]``.
        other (Tensor): scores, ``[n]``.
        one_sided (bool): whether only a larger mean of the first counts.
        draws (int): the number of random divisions. (default: :obj:`4000`)
        seed (int, optional): the seed of the divisions.
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
    """Correct several p values by Holm's method, keeping their order."""
    check_instance('p_values', p_values, list, tuple)
    for value in p_values:
        check_share('p_values', value)
    corrected, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * p_values[i])
        corrected[i] = min(largest, 1.0)
    return corrected


def told_apart(one: list[Tensor], two: list[Tensor]) -> Callable[[int], float]:
    """Test whether two samples of runs are exchangeable.

    The first half of the runs finds the direction in which they differ, the
    second half is compared along it by permutations. Returns a function from
    the seed of these to the p value.
    """
    half = max(len(one) // 2, 1)
    axis = torch.stack(one[:half]).mean(0) - torch.stack(two[:half]).mean(0)

    def p(seed: int) -> float:
        return permutation_test(
            torch.stack(one[half:]) @ axis,
            torch.stack(two[half:]) @ axis,
            seed=seed,
        )

    return p


# Bounds of privacy ###########################################################


class Trials:
    """Scores of trials on two neighbours, and tests by a threshold.

    A test says 'positive' above the threshold.
    """

    def __init__(
        self, negative: np.ndarray, positive: np.ndarray, error: float
    ) -> None:
        self.negative, self.positive = np.sort(negative), np.sort(positive)
        self.error = error

    def _counts(self, at: Any) -> list[np.ndarray]:
        # True and false positives at thresholds.
        return [
            np.atleast_1d(part.size - np.searchsorted(part, at, side='right'))
            for part in (self.positive, self.negative)
        ]

    def rates(self, at: Any) -> tuple[np.ndarray, np.ndarray]:
        """Bound the true positive rate from below, the false one from above.

        By Clopper and Pearson; 0 and 1 if there were none of a kind.
        """
        true, false = map(torch.from_numpy, self._counts(at))
        n, m = self.positive.size, self.negative.size
        low, high = torch.zeros(true.shape), torch.ones(false.shape)
        if n:
            low = clopper_pearson(true, n, self.error, 'lower')
        if m:
            high = clopper_pearson(false, m, self.error, 'upper')
        return low.numpy(), high.numpy()

    def measured(self, at: float) -> dict[str, float]:
        """Return the rates as they were counted."""
        true, false = (int(count[0]) for count in self._counts(at))
        return {
            'true_positive_rate': true / max(1, self.positive.size),
            'false_positive_rate': false / max(1, self.negative.size),
        }

    def best(self, bound: Callable[..., np.ndarray]) -> tuple[float, float]:
        """Return the largest bound over all thresholds, and its threshold."""
        at = np.unique(np.concatenate([self.negative, self.positive]))
        at = at[:: max(1, at.size // _THRESHOLDS)]
        found = bound(*self.rates(at))
        index = int(np.argmax(found))
        return float(found[index]), float(at[index])


def mu_of(tpr: Any, fpr: Any) -> Any:
    r"""Return :math:`\Phi^{-1}(\mathrm{TPR}) - \Phi^{-1}(\mathrm{FPR})`."""
    return scipy.special.ndtri(tpr) - scipy.special.ndtri(fpr)


@validated
def empirical_epsilon(
    without: Tensor | np.ndarray,
    with_: Tensor | np.ndarray,
    delta: Fraction,
    *,
    claim: NotNegative | None = None,
    confidence: Fraction = 0.99,
    seed: int | None = 0,
) -> PrivacyAudit:
    r"""Bound :math:`\epsilon` from below, by scores of runs.

    A test guesses from the score of a run which of two neighbouring data sets
    it used. Bars mark Clopper-Pearson bounds of true and false positive rates:

    .. math::
        \epsilon \ge \log \frac{\underline{\mathrm{TPR}} - \delta}
        {\overline{\mathrm{FPR}}}.

    Threshold and direction of the test are chosen on one half of the trials,
    its rates are counted on the other.

    Args:
        without (Tensor or ndarray): ``[num_trials]``, at least four: a score
            of each independent run on one of the data sets.
        with_ (Tensor or ndarray): the scores of runs on the other one.
        delta (float): the :math:`\delta` that goes with :math:`\epsilon`.
        claim (float, optional): the claimed :math:`\epsilon`, if any.
        confidence (float): the bound's confidence level, in (0, 1).
        seed (int, optional): the seed of the split. (default: :obj:`0`)
    """

    def bound(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
        share = np.maximum(tpr - delta, 0) / fpr
        return np.log(np.maximum(share, 1e-300))

    scores = {'without': without, 'with_': with_}
    counted, threshold = _tested(scores, seed, confidence, bound, (1.0, -1.0))
    tpr, fpr = counted.rates(threshold)
    delta_lower = None
    if claim is not None:
        factor = math.exp(min(claim, 700.0))
        delta_lower = max(0.0, float(tpr[0] - factor * fpr[0]))
    return PrivacyAudit.of(
        confidence,
        provenance(delta=delta, claim=claim, seed=seed),
        epsilon_lower=max(0.0, float(bound(tpr, fpr)[0])),
        epsilon_claimed=claim,
        delta=delta,
        delta_lower=delta_lower,
        trials=len(without) + len(with_),
        **counted.measured(threshold),
    )


@validated
def empirical_mu(
    negative: Tensor | np.ndarray | Sequence[float],
    positive: Tensor | np.ndarray | Sequence[float],
    confidence: Fraction = 0.95,
    *,
    claim: Positive | None = None,
    seed: int | None = 0,
) -> PrivacyAudit:
    r"""Bound :math:`\mu` of Gaussian DP from below, by scores of runs.

    A test guesses from the score of a run which of two neighbouring data sets
    it used: that of :obj:`positive` if the score is high. Bars mark upper
    Clopper-Pearson bounds of the rates of false positives and false negatives:

    .. math::
        \mu \ge -\Phi^{-1}(\overline{\mathrm{FPR}})
        - \Phi^{-1}(\overline{\mathrm{FNR}}).

    The threshold is chosen on one half of the trials, errors are counted on
    the other.

    Args:
        negative (Tensor or ndarray): ``[num_trials]``, at least four: a score
            of each independent run on one of the data sets.
        positive (Tensor or ndarray): the scores of runs on the other one.
        confidence (float): the bound's confidence level, in (0, 1).
        claim (float, optional): the claimed :math:`\mu`, if any.
        seed (int, optional): the seed of the split. (default: :obj:`0`)
    """
    scores = {'negative': negative, 'positive': positive}
    counted, threshold = _tested(scores, seed, confidence, mu_of, (1.0,))
    return PrivacyAudit.of(
        confidence,
        provenance(claim=claim, seed=seed),
        mu_lower=max(0.0, float(mu_of(*counted.rates(threshold))[0])),
        mu_claimed=claim,
        trials=len(negative) + len(positive),
        **counted.measured(threshold),
    )


def _tested(
    scores: Mapping[str, Any],
    seed: int | None,
    confidence: float,
    bound: Callable[..., np.ndarray],
    signs: Sequence[float],
) -> tuple[Trials, float]:
    # A random half of the trials of each kind chooses threshold and
    # direction, the others count.
    generator = np.random.default_rng(rng.resolve(seed))
    halves: list[list[np.ndarray]] = []
    for name, given in scores.items():
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"'{name}' needs to hold numbers (got {given!r})"
            ) from None
        if values.ndim != 1 or values.size < 4 or np.isnan(values).any():
            raise ValueError(
                f"'{name}' needs to hold at least four scores, all of them "
                f'numbers (got the shape {list(values.shape)}, of which '
                f'{int(np.isnan(values).sum())} are nan)'
            )
        halves.append(np.array_split(generator.permutation(values), 2))
    (choose0, count0), (choose1, count1) = halves
    error = (1 - confidence) / 2
    (_, threshold), sign = max(
        (Trials(sign * choose0, sign * choose1, error).best(bound), sign)
        for sign in signs
    )
    return Trials(sign * count0, sign * count1, error), threshold


def check_coins(coin: Tensor) -> None:
    """Refuse fewer than four canaries of a kind; ``coin`` is bool."""
    heads, count = int(coin.sum()), coin.numel()
    if not 4 <= heads <= count - 4:
        raise ValueError(
            "'num_canaries' needs to be larger: four canaries of either kind "
            f'are needed (got {heads} and {count - heads} from this seed)'
        )
