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

:func:`audit_training` runs the worst case against an engine as it is set up:
canaries whose gradients are as large as clipping lets them be, orthogonal to
each other, so that one training makes hundreds of independent trials
(`Steinke et al. 2023 <https://arxiv.org/abs/2305.08846>`_).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_fraction,
    check_integer,
    check_non_negative,
)
from pyg_trust.functional.mechanisms import check_delta
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy.engine import PrivacyEngine
from pyg_trust.privacy.loading import PrivateTraining
from pyg_trust.report import Report, provenance
from pyg_trust.report.charts import Chart

Attach = Callable[
    [nn.Module, torch.optim.Optimizer, DisjointWalkLoader],
    tuple[PrivacyEngine, PrivateTraining],
]

_LARGE = 1e6
_THRESHOLDS = 500


@dataclass(frozen=True)
class AuditReport(Report):
    r"""The result of auditing a claim of epsilon and delta.

    Of a release with a claim of :math:`\mu` alone there is a
    :class:`~pyg_trust.privacy.MuAuditReport`.

    Args:
        epsilon_lower (float): the true :math:`\epsilon` at ``delta`` is at
            least this, with ``confidence``.
        epsilon_claimed (float, optional): what was claimed.
        delta (float): :math:`\delta`.
        delta_lower (float, optional): the true :math:`\delta` at the claimed
            :math:`\epsilon` is at least this, with ``confidence``.
        confidence (float): the probability that all bounds hold, whatever
            the mechanism, if trials are independent of each other.
        trials (int): how many there were, of both kinds.
        true_positive_rate (float): of the test, measured.
        false_positive_rate (float): of the test, measured.
        provenance (dict): versions and arguments.
        mu_lower (float): the true :math:`\mu` of Gaussian differential
            privacy is at least this, with ``confidence``; 0 if not computed.
        mu_claimed (float, optional): what was claimed.
    """

    epsilon_lower: float
    epsilon_claimed: float | None
    delta: float
    delta_lower: float | None
    confidence: float
    trials: int
    true_positive_rate: float
    false_positive_rate: float
    provenance: dict[str, Any]
    mu_lower: float = 0.0
    mu_claimed: float | None = None

    def chart(self) -> Chart:
        """A bar chart of the measured lower bound, beside the claim."""
        claim = self.epsilon_claimed
        bars = {'measured, at least': self.epsilon_lower}
        if claim is not None:
            bars['claimed, at most'] = claim
        return Chart(
            f'The claim is disproved, with confidence {self.confidence:g}'
            if self.violated
            else 'The attack does not disprove the claim'
            if claim is not None
            else f'epsilon is at least {self.epsilon_lower:.4g}',
            bars=bars,
            xlabel='epsilon',
        )

    @property
    def violated(self) -> bool:
        """Whether the claim was disproved."""
        if self.mu_claimed is not None and self.mu_lower > self.mu_claimed:
            return True
        claim = self.epsilon_claimed
        if claim is None or self.delta_lower is None:
            return False
        return self.epsilon_lower > claim or self.delta_lower > self.delta


def empirical_epsilon(
    without: Tensor | np.ndarray,
    with_: Tensor | np.ndarray,
    delta: float,
    *,
    claim: float | None = None,
    confidence: float = 0.99,
    seed: int | None = 0,
) -> AuditReport:
    r"""A lower bound of :math:`\epsilon` from scores of two neighbours.

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
        seed (int, optional): of the split. (default: :obj:`0`)

    Raises:
        ValueError: if a number is out of range or nan, or there are fewer
            than four scores of a kind.
    """
    delta = check_delta(delta)
    check_fraction('confidence', confidence)
    if claim is not None:
        check_non_negative('claim', claim)
    halves = split_scores({'without': without, 'with_': with_}, seed)
    (choose0, count0), (choose1, count1) = halves
    error = (1 - confidence) / 2

    best, test = -math.inf, (1.0, 0.0)
    for sign in (1.0, -1.0):
        # Everything above each of the values, or below.
        low, high = np.sort(sign * choose0), np.sort(sign * choose1)
        at = np.unique(np.concatenate([low, high]))
        at = at[:: max(1, at.size // _THRESHOLDS)]
        false = low.size - np.searchsorted(low, at, side='right')
        true = high.size - np.searchsorted(high, at, side='right')
        bound = _bound(true, high.size, false, low.size, delta, error)
        index = int(np.argmax(bound))
        if bound[index] > best:
            best, test = float(bound[index]), (sign, float(at[index]))
    sign, threshold = test
    true = np.array([(sign * count1 > threshold).sum()])
    false = np.array([(sign * count0 > threshold).sum()])
    found = _bound(true, count1.size, false, count0.size, delta, error)[0]
    delta_lower = None
    if claim is not None:
        low, high = _rates(true, count1.size, false, count0.size, error)
        factor = math.exp(min(claim, 700.0))
        delta_lower = max(0.0, float(low[0] - factor * high[0]))
    return AuditReport(
        epsilon_lower=max(0.0, float(found)),
        epsilon_claimed=claim,
        delta=delta,
        delta_lower=delta_lower,
        confidence=confidence,
        trials=sum(part.size for half in halves for part in half),
        true_positive_rate=float(true[0] / count1.size),
        false_positive_rate=float(false[0] / count0.size),
        provenance=provenance(delta=delta, claim=claim, seed=seed),
    )


def split_scores(
    scores: Mapping[str, Any], seed: int | None
) -> list[list[np.ndarray]]:
    """Two random halves of the scores of each kind.

    One half chooses a test, the other one counts its errors.

    Args:
        scores (dict[str, sequence]): by the name of an argument.
        seed (int, optional): of the split.

    Returns:
        list[list[numpy.ndarray]]: float64, two halves for each kind.

    Raises:
        TypeError: if they are no numbers.
        ValueError: if one is nan, or there are fewer than four of a kind.
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
    """Refuses so few canaries that one kind has none to count.

    Args:
        coin (Tensor): bool, ``[num_canaries]``.

    Raises:
        ValueError: if there are fewer than four of a kind.
    """
    heads, count = int(coin.sum()), coin.numel()
    if not 4 <= heads <= count - 4:
        raise ValueError(
            "'num_canaries' needs to be larger: four canaries of either kind "
            f'are needed (got {heads} and {count - heads} by the coins of '
            "this 'seed')"
        )


def _rates(
    true: np.ndarray, n1: int, false: np.ndarray, n0: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    # Clopper-Pearson: at least the first, at most the second.
    from scipy.stats import beta  # slow to import

    low = np.where(
        true > 0, beta.ppf(error, np.maximum(true, 1), n1 - true + 1), 0.0
    )
    high = np.where(
        false < n0,
        beta.ppf(1 - error, false + 1, np.maximum(n0 - false, 1)),
        1.0,
    )
    return low, high


def _bound(
    true: np.ndarray,
    n1: int,
    false: np.ndarray,
    n0: int,
    delta: float,
    error: float,
) -> np.ndarray:
    low, high = _rates(true, n1, false, n0, error)
    share = np.maximum(low - delta, 0) / high
    return np.log(np.maximum(share, 1e-300))


def canary_graph(num_canaries: int, size: int = 3) -> Data:
    """Stars whose centres are canaries, with features of their own each.

    Args:
        num_canaries (int): the number of stars, and of features.
        size (int): the nodes of a star. (default: :obj:`3`)

    Returns:
        Data: the graph, with features of zero; ``train_mask`` has the
        centres, node ``i`` is the centre of star ``i``.
    """
    check_integer('num_canaries', num_canaries, 1)
    check_integer('size', size, 1)
    centre = torch.arange(num_canaries).repeat_interleave(size - 1)
    leaf = torch.arange(num_canaries, num_canaries * size)
    pairs = torch.stack([centre, leaf])
    return Data(
        x=torch.zeros(num_canaries * size, num_canaries),
        y=torch.zeros(num_canaries * size, dtype=torch.int64),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        train_mask=torch.arange(num_canaries * size) < num_canaries,
    )


def audit_training(
    attach: Attach,
    *,
    num_canaries: int = 1000,
    size: int = 3,
    batch_size: int | None = None,
    steps: int = 1,
    delta: float = 0.05,
    confidence: float = 0.99,
    seed: int | None = None,
    progress_bar: bool = False,
) -> AuditReport:
    r"""Audits an engine, as it is set up, by worst-case canaries.

    Every canary is the centre of a star that is one subgraph, and has a
    feature of its own. A coin decides whether its row is :math:`+e_i` or
    :math:`-e_i`, times a large number: two neighbours under replacement, as
    far apart as clipping lets them be. The model is linear and its loss a sum
    of outputs, so the gradient is along :math:`e_i` whatever the weights are,
    and the released gradients, added up, say of each canary what can be
    known. Noise is independent across features, so canaries are independent
    trials if all are drawn (:obj:`batch_size` left out); if not, draws are
    negatively associated, and counts vary less than independent ones would.

    Args:
        attach (callable): maps a model, an optimizer and a loader to an
            engine and what its :meth:`PrivacyEngine.make_private` returned,
            with ``loss_reduction='sum'``.
        num_canaries (int): the number of trials. (default: :obj:`1000`)
        size (int): the nodes of a star. (default: :obj:`3`)
        batch_size (int, optional): the subgraphs of a step, all by default.
            (default: :obj:`None`)
        steps (int): the steps of training. (default: :obj:`1`)
        delta (float): at which to compare; a larger one takes fewer trials to
            see a fault. (default: :obj:`0.05`)
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.99`)
        seed (int, optional): of coins, loader and weights.
            (default: :obj:`None`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        AuditReport: the bound, beside the engine's claim.
    """
    check_callable('attach', attach)
    for name, count in (
        ('num_canaries', num_canaries),
        ('size', size),
        ('steps', steps),
    ):
        check_integer(name, count, 1)
    if batch_size is not None:
        check_integer('batch_size', batch_size, 1, num_canaries)
    check_delta(delta)
    check_fraction('confidence', confidence)
    seed = rng.resolve(seed)
    data = canary_graph(num_canaries, size)
    coin = torch.rand(num_canaries, generator=rng.generator(seed)) < 0.5
    check_coins(coin)
    index = torch.arange(num_canaries)
    data.x[index, index] = torch.where(coin, _LARGE, -_LARGE)
    loader = DisjointWalkLoader(
        data,
        num_canaries if batch_size is None else batch_size,
        1,
        max(1, size - 1),
        data.train_mask,
        num_steps=steps,
        seed=rng.derive(seed, 1),
    )
    linear = nn.Linear(num_canaries, 1, bias=False)
    nn.init.zeros_(linear.weight)
    module = GINConv(linear)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    engine, (model, private, batches) = attach(module, optimizer, loader)
    score = torch.zeros(num_canaries, dtype=torch.float64)
    for batch in tqdm(batches, disable=not progress_bar, desc='steps'):
        private.zero_grad()
        model(batch.x, batch.edge_index).sum().backward()
        private.step()
        assert linear.weight.grad is not None
        score += linear.weight.grad[0].double()
    report = empirical_epsilon(
        score[~coin].numpy(),
        score[coin].numpy(),
        delta,
        claim=engine.get_epsilon(delta),
        confidence=confidence,
        seed=rng.derive(seed, 2),
    )
    return report
