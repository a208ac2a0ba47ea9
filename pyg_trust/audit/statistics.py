"""Empirical lower bounds of epsilon and mu, from scores of two neighbours.

Of a release that is (epsilon, delta) private no test has a true positive rate
above ``e^epsilon FPR + delta``: one that has disproves the claim, with the
confidence of its Clopper-Pearson intervals (`Jagielski et al. 2020
<https://arxiv.org/abs/2006.07709>`_). A bound below proves nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import Fraction, NotNegative, Positive, validated
from pyg_trust.audit.report import PrivacyAudit
from pyg_trust.audit.scores import permutation_test
from pyg_trust.certificates.smoothing import clopper_pearson
from pyg_trust.report import provenance

__all__ = [
    'Trials',
    'check_coins',
    'empirical_epsilon',
    'empirical_mu',
    'mu_of',
    'split_scores',
    'told_apart',
]

_THRESHOLDS = 500


class Trials:
    """Scores of trials on two neighbours, and tests by a threshold.

    A test says 'positive' above the threshold.

    Args:
        negative (ndarray): float64, scores on the one neighbour.
        positive (ndarray): float64, scores on the other.
        error (float): the level of each bound of a rate.
    """

    def __init__(
        self, negative: np.ndarray, positive: np.ndarray, error: float
    ) -> None:
        self.negative, self.positive = np.sort(negative), np.sort(positive)
        self.error = error

    def counts(self, at: Any) -> tuple[np.ndarray, np.ndarray]:
        """Count true and false positives at thresholds."""
        true, false = (
            part.size - np.searchsorted(part, at, side='right')
            for part in (self.positive, self.negative)
        )
        return np.atleast_1d(true), np.atleast_1d(false)

    def rates(self, at: Any) -> tuple[np.ndarray, np.ndarray]:
        """Bound the true positive rate from below, the false one from above.

        By Clopper and Pearson; 0 and 1 if there were none of a kind.
        """
        bounds = []
        for count, n, side in zip(
            self.counts(at),
            (self.positive.size, self.negative.size),
            ('lower', 'upper'),
            strict=True,
        ):
            if n:
                given = torch.from_numpy(count.astype(np.int64))
                found = clopper_pearson(given, n, self.error, side).numpy()
            else:
                found = np.full(count.shape, float(side == 'upper'))
            bounds.append(found)
        return bounds[0], bounds[1]

    def measured(self, at: float) -> dict[str, float]:
        """Return the rates as they were counted."""
        true, false = (int(count[0]) for count in self.counts(at))
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
    r"""Bound :math:`\epsilon` from below by scores of two neighbours.

    .. math::
        \epsilon \ge \log \frac{\underline{\mathrm{TPR}} - \delta}
        {\overline{\mathrm{FPR}}}

    with Clopper-Pearson bounds, each at half of the error allowed. Threshold
    and direction of the test are chosen on one half of the trials, its rates
    are counted on the other.

    Args:
        without (Tensor or ndarray): ``[num_trials]``, a score of what each
            independent run on one of the neighbours released.
        with_ (Tensor or ndarray): the same of the other neighbour.
        delta (float): in :math:`(0, 1)`.
        claim (float, optional): the :math:`\epsilon` that was claimed.
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.99`)
        seed (int, optional): the seed of the split. (default: :obj:`0`)

    Raises:
        ValueError: if there are fewer than four scores of a kind.
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
    r"""Bound :math:`\mu` from below by scores of two neighbours.

    .. math::
        \mu \ge -\Phi^{-1}(\overline{\mathrm{FPR}})
        - \Phi^{-1}(\overline{\mathrm{FNR}})

    with Clopper-Pearson bounds, each at half of the error allowed. The
    threshold is chosen on one half of the trials, errors are counted on the
    other.

    Args:
        negative (Tensor or ndarray): ``[num_trials]``, scores of one
            neighbour.
        positive (Tensor or ndarray): the same of the other, higher.
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.95`)
        claim (float, optional): the :math:`\mu` that was claimed.
            (default: :obj:`None`)
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
    # Half of the trials choose threshold and direction, the others count.
    (choose0, count0), (choose1, count1) = split_scores(scores, seed)
    error = (1 - confidence) / 2
    (_, threshold), sign = max(
        (Trials(sign * choose0, sign * choose1, error).best(bound), sign)
        for sign in signs
    )
    return Trials(sign * count0, sign * count1, error), threshold


def split_scores(
    scores: Mapping[str, Any], seed: int | None
) -> list[list[np.ndarray]]:
    """Split the scores of each kind into two random halves.

    One half chooses a test, the other one counts its errors.

    Raises:
        TypeError: if scores are not numbers.
        ValueError: if a score is nan, or fewer than four are of a kind.
    """
    generator = np.random.default_rng(rng.resolve(seed))
    halves: list[list[np.ndarray]] = []
    for name, given in scores.items():
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"'{name}' needs to hold numbers (got {given!r})"
            ) from None
        if np.isnan(values).any():
            raise ValueError(
                f"'{name}' needs to hold numbers (got nan in "
                f'{int(np.isnan(values).sum())} of {values.size} scores)'
            )
        if values.ndim != 1 or values.size < 4:
            raise ValueError(
                f"'{name}' needs to hold at least four scores (got shape "
                f'{list(values.shape)})'
            )
        halves.append(np.array_split(generator.permutation(values), 2))
    return halves


def check_coins(coin: Tensor) -> None:
    """Refuse fewer than four canaries of a kind; ``coin`` is bool."""
    heads, count = int(coin.sum()), coin.numel()
    if not 4 <= heads <= count - 4:
        raise ValueError(
            "'num_canaries' needs to be larger: four canaries of either kind "
            f'are needed (got {heads} and {count - heads} from this seed)'
        )


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
