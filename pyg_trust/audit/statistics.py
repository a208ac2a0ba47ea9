r"""Empirical lower bounds of epsilon: does the code do what the proof says?

A claim :math:`(\epsilon, \delta)` says that no test can tell two neighbouring
graphs apart better than with

.. math::
    \mathrm{TPR} \le e^\epsilon\, \mathrm{FPR} + \delta.

So a test that does gives a lower bound of the true :math:`\epsilon`; with
Clopper-Pearson intervals of both rates it holds with a stated confidence
(`Jagielski et al. 2020 <https://arxiv.org/abs/2006.07709>`_). A bound above
the claim disproves it, with that confidence. A bound below proves nothing: it
is a test, no proof.

Of a release that is :math:`\mu`-Gaussian differentially private no test has
error rates below

.. math::
    \Phi^{-1}(1 - \mathrm{FPR}) - \Phi^{-1}(\mathrm{FNR}) \le \mu.
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
from pyg_trust.certificates.confidence import clopper_pearson
from pyg_trust.report import provenance

_THRESHOLDS = 500


def rates(
    true: np.ndarray, n1: int, false: np.ndarray, n0: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bound a test's true positive rate from below, its false one from above.

    Args:
        true (numpy.ndarray): counts of true positives.
        n1 (int): the number of positives.
        false (numpy.ndarray): counts of false positives.
        n0 (int): the number of negatives.
        error (float): the level of each bound.

    Returns:
        tuple[numpy.ndarray, numpy.ndarray]: the bounds of Clopper and
        Pearson; 0 and 1 if there were none of a kind.
    """
    bounds = []
    for count, n, side in ((true, n1, 'lower'), (false, n0, 'upper')):
        if n:
            given = torch.from_numpy(np.asarray(count, dtype=np.int64))
            bounds.append(clopper_pearson(given, n, error, side).numpy())
        else:
            bounds.append(np.full(np.shape(count), float(side == 'upper')))
    return bounds[0], bounds[1]


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

    with Clopper-Pearson bounds, each at half of the error allowed. Which test
    it is (scores above or below a threshold, and which) is chosen on one half
    of the trials, the rates are counted on the other.

    Args:
        without (Tensor or ndarray): ``[num_trials]``, a score of what each
            independent run on one of the neighbours released.
        with_ (Tensor or ndarray): the same of the other neighbour.
        delta (float): in :math:`(0, 1)`.
        claim (float, optional): the :math:`\epsilon` that was claimed.
            (default: :obj:`None`)
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.99`)
        seed (int, optional): the seed of the split. (default: :obj:`0`)

    Raises:
        ValueError: if a number is out of range or nan, or there are fewer
            than four scores of a kind.
    """
    halves = split_scores({'without': without, 'with_': with_}, seed)
    (choose0, count0), (choose1, count1) = halves
    error = (1 - confidence) / 2

    def bound_of(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
        share = np.maximum(tpr - delta, 0) / fpr
        return np.log(np.maximum(share, 1e-300))

    best, test = -math.inf, (1.0, 0.0)
    for sign in (1.0, -1.0):
        # Everything above each of the values, or below.
        low, high = np.sort(sign * choose0), np.sort(sign * choose1)
        at = np.unique(np.concatenate([low, high]))
        at = at[:: max(1, at.size // _THRESHOLDS)]
        false = low.size - np.searchsorted(low, at, side='right')
        true = high.size - np.searchsorted(high, at, side='right')
        bound = bound_of(*rates(true, high.size, false, low.size, error))
        index = int(np.argmax(bound))
        if bound[index] > best:
            best, test = float(bound[index]), (sign, float(at[index]))
    sign, threshold = test
    true = np.array([(sign * count1 > threshold).sum()])
    false = np.array([(sign * count0 > threshold).sum()])
    tpr, fpr = rates(true, count1.size, false, count0.size, error)
    delta_lower = None
    if claim is not None:
        factor = math.exp(min(claim, 700.0))
        delta_lower = max(0.0, float(tpr[0] - factor * fpr[0]))
    return PrivacyAudit.of(
        confidence,
        provenance(delta=delta, claim=claim, seed=seed),
        epsilon_lower=max(0.0, float(bound_of(tpr, fpr)[0])),
        epsilon_claimed=claim,
        delta=delta,
        delta_lower=delta_lower,
        trials=sum(part.size for half in halves for part in half),
        true_positive_rate=float(true[0] / count1.size),
        false_positive_rate=float(false[0] / count0.size),
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
    halves = split_scores({'negative': negative, 'positive': positive}, seed)
    (choose0, count0), (choose1, count1) = halves
    error = (1 - confidence) / 2
    low, high = np.sort(choose0), np.sort(choose1)
    at = np.unique(np.concatenate([low, high]))
    false = low.size - np.searchsorted(low, at, side='right')
    true = high.size - np.searchsorted(high, at, side='right')
    bound = mu_of(*rates(true, high.size, false, low.size, error))
    threshold = at[int(np.argmax(bound))]
    false = np.array([(count0 > threshold).sum()])
    true = np.array([(count1 > threshold).sum()])
    found = mu_of(*rates(true, count1.size, false, count0.size, error))[0]
    return PrivacyAudit.of(
        confidence,
        provenance(claim=claim, seed=seed),
        mu_lower=max(0.0, float(found)),
        mu_claimed=claim,
        trials=sum(part.size for half in halves for part in half),
        true_positive_rate=float(true[0] / count1.size),
        false_positive_rate=float(false[0] / count0.size),
    )


def split_scores(
    scores: Mapping[str, Any], seed: int | None
) -> list[list[np.ndarray]]:
    """Split the scores of each kind into two random halves.

    One half chooses a test, the other one counts its errors.

    Returns:
        list[list[numpy.ndarray]]: float64, two halves for each kind.

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
    """Refuse fewer than four canaries of a kind.

    Args:
        coin (Tensor): bool, ``[num_canaries]``.
    """
    heads, count = int(coin.sum()), coin.numel()
    if not 4 <= heads <= count - 4:
        raise ValueError(
            "'num_canaries' needs to be larger: four canaries of either kind "
            f'are needed (got {heads} and {count - heads} by the coins of '
            "this 'seed')"
        )


def told_apart(one: list[Tensor], two: list[Tensor]) -> Callable[[int], float]:
    """Test whether two samples of runs are exchangeable.

    The first half of the runs finds the direction in which they differ, the
    second half is compared along it by permutations.

    Returns:
        callable: maps the seed of the permutations to the p value.
    """
    # The direction from the first half of the runs, the test on the second.
    half = max(len(one) // 2, 1)
    axis = torch.stack(one[:half]).mean(0) - torch.stack(two[:half]).mean(0)

    def p(seed: int) -> float:
        return permutation_test(
            torch.stack(one[half:]) @ axis,
            torch.stack(two[half:]) @ axis,
            seed=seed,
        )

    return p
