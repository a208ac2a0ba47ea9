r"""Empirical lower bounds of mu for releases of noisy sums.

A release that is :math:`\mu`-Gaussian differentially private lets no test of
two neighbours have error rates below

.. math::
    \Phi^{-1}(1 - \mathrm{FPR}) - \Phi^{-1}(\mathrm{FNR}) \le \mu.

Canaries are disjoint, so that one release makes thousands of independent
trials, and they are the worst case: unit messages that the adversary knows.
A bound above the claim disproves it, with the stated confidence; a bound below
proves nothing. Trials are independent as far as the noise of rows is: of a
release that draws noise once for many rows, or none now and then, the
confidence is not as stated. The bound of
:func:`~pyg_trust.privacy.empirical_epsilon` is far looser for such releases.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, norm
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_fraction,
    check_instance,
    check_integer,
    check_positive,
)
from pyg_trust.functional.private_propagation import RELATIONS
from pyg_trust.privacy.auditing import check_coins, split_scores
from pyg_trust.report import Report, provenance
from pyg_trust.transforms.aggregation_report import make_relation

# Rows are longer than messages may be: a release has to normalise them.
_LENGTH = 3.0
_COLUMNS = 16


@dataclass(frozen=True)
class MuAuditReport(Report):
    r"""The result of auditing a release for :math:`\mu` alone.

    A claim of :math:`\mu` has no :math:`\delta` that it could be wrong at. An
    :class:`~pyg_trust.privacy.AuditReport` is of a claim of
    :math:`(\epsilon, \delta)`, in whose fields this one would be empty; both
    have ``violated``, ``trials`` and ``confidence``, and ``mu_lower`` and
    ``mu_claimed`` mean the same in both.

    Args:
        mu_lower (float): the true :math:`\mu` is at least this, with
            ``confidence``.
        mu_claimed (float, optional): what was claimed.
        confidence (float): the probability that the bound holds, whatever the
            mechanism, if trials are independent of each other.
        trials (int): how many there were, of both kinds.
        false_positive_rate (float): of the test, measured.
        false_negative_rate (float): of the test, measured.
        provenance (dict): versions and arguments.
    """

    mu_lower: float
    mu_claimed: float | None
    confidence: float
    trials: int
    false_positive_rate: float
    false_negative_rate: float
    provenance: dict[str, Any]

    @property
    def violated(self) -> bool:
        """Whether the claim was disproved."""
        return self.mu_claimed is not None and self.mu_lower > self.mu_claimed


def empirical_mu(
    negative: Tensor | np.ndarray | Sequence[float],
    positive: Tensor | np.ndarray | Sequence[float],
    confidence: float = 0.95,
    *,
    claim: float | None = None,
    seed: int | None = 0,
) -> MuAuditReport:
    r"""A lower bound of :math:`\mu` from scores of two neighbours.

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
        seed (int, optional): of the split. (default: :obj:`0`)
    """
    check_fraction('confidence', confidence)
    if claim is not None:
        check_positive('claim', claim)
    halves = split_scores({'negative': negative, 'positive': positive}, seed)
    (choose0, count0), (choose1, count1) = halves
    error = (1 - confidence) / 2
    low, high = np.sort(choose0), np.sort(choose1)
    at = np.unique(np.concatenate([low, high]))
    false = low.size - np.searchsorted(low, at, side='right')
    missed = np.searchsorted(high, at, side='right')
    bound = _bound(false, low.size, missed, high.size, error)
    threshold = at[int(np.argmax(bound))]
    false = np.array([(count0 > threshold).sum()])
    missed = np.array([(count1 <= threshold).sum()])
    found = float(_bound(false, count0.size, missed, count1.size, error)[0])
    return MuAuditReport(
        mu_lower=max(0.0, found),
        mu_claimed=claim,
        confidence=confidence,
        trials=sum(part.size for half in halves for part in half),
        false_positive_rate=float(false[0] / count0.size),
        false_negative_rate=float(missed[0] / count1.size),
        provenance=provenance(claim=claim, seed=seed),
    )


def _bound(
    false: np.ndarray, n0: int, missed: np.ndarray, n1: int, error: float
) -> np.ndarray:
    def upper(wrong: np.ndarray, n: int) -> np.ndarray:
        found = beta.ppf(1 - error, wrong + 1, np.maximum(n - wrong, 1))
        return np.where(wrong < n, found, 1.0)

    # Infinite where everything was wrong.
    return -norm.ppf(upper(false, n0)) - norm.ppf(upper(missed, n1))


def audit_aggregation(
    release: Callable[[Data], Sequence[Tensor]],
    relation: str = 'edge',
    claim_mu: float | None = None,
    num_canaries: int = 10_000,
    *,
    directed: bool = False,
    form: str | None = None,
    list_size: int = 1,
    confidence: float = 0.95,
    seed: int | None = None,
) -> MuAuditReport:
    r"""Audits a release of noisy sums by worst-case canaries.

    - ``'edge'``: disjoint pairs, a coin says whether the edge is there. The
      score is the log-likelihood ratio, up to constants: over hops
      :math:`\langle S_u, m_w \rangle + \langle S_w, m_u \rangle` with the
      messages of later hops from released rows.
    - ``'node'`` and ``'node_incident'``: sources with lists of
      :obj:`list_size` nodes that are nobody else's, by a coin present or a
      blank (or, to replace, of the opposite features). The score is
      :math:`\langle W_{\cdot v} m_v^\top, S_1 \rangle`. Edges are arcs: the
      release needs ``directed=True``.
    - ``'feature'``: pairs with their edge, one end of which is as above; of
      the default measure.

    Rows have norm 3: a release that does not normalise them is found out.

    Args:
        release (callable): maps data with ``x`` to the released rows of all
            hops, as :meth:`PrivateAGP.released
            <pyg_trust.transforms.PrivateAGP.released>` does.
        relation (str): what is claimed to be protected.
            (default: :obj:`'edge'`)
        claim_mu (float, optional): the claim. (default: :obj:`None`)
        num_canaries (int): the trials, of both kinds together.
            (default: :obj:`10_000`)
        directed (bool): of ``'edge'``: whether edges are arcs.
            (default: :obj:`False`)
        form (str, optional): of nodes, which pair is planted:
            :obj:`'withdraw'` or :obj:`'replace'`. A record against a blank
            tells half of what a record against its opposite does; so ask for
            what is claimed. By default that of a
            :class:`~pyg_trust.transforms.PrivateAGP` of the relation.
            (default: :obj:`None`)
        list_size (int): of ``'node'`` and ``'node_incident'``.
            (default: :obj:`1`)
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.95`)
        seed (int, optional): of coins and rows. (default: :obj:`None`)

    Example:
        >>> from pyg_trust.transforms import PrivateAGP
        >>> transform = PrivateAGP(mu=1.0, delta=1e-5, seed=0)
        >>> audit_aggregation(
        ...     transform.released, 'edge', 1.0, 4000, seed=0
        ... ).violated
        False
    """
    check_callable('release', release)
    check_choice('relation', relation, RELATIONS)
    check_integer('num_canaries', num_canaries, 20)
    check_integer('list_size', list_size, 1)
    check_instance('directed', directed, bool)
    most = list_size if relation == 'node_incident' else None
    form = make_relation(relation, form, directed, most).form
    if claim_mu is not None:
        check_positive('claim_mu', claim_mu)
    check_fraction('confidence', confidence)
    seed = rng.resolve(seed)
    generator = rng.generator(seed)
    coin = torch.rand(num_canaries, generator=generator) < 0.5
    check_coins(coin)
    size = 1 + (list_size if relation.startswith('node') else 1)
    n = num_canaries * size
    drawn = torch.randn(n, _COLUMNS, generator=generator, dtype=torch.float64)
    m = drawn / drawn.norm(dim=1, keepdim=True)
    first = torch.arange(num_canaries)
    x = _LENGTH * m
    others = torch.arange(num_canaries, n).view(num_canaries, size - 1)
    arcs = torch.stack([first.repeat_interleave(size - 1), others.flatten()])
    if relation == 'edge':
        arcs = arcs[:, coin]
    else:
        x[first[~coin]] *= 0.0 if form == 'withdraw' else -1.0
        if form == 'withdraw' and relation != 'feature':
            arcs = arcs[:, coin.repeat_interleave(size - 1)]
    both = relation == 'feature' or (relation == 'edge' and not directed)
    edges = torch.cat([arcs, arcs.flip(0)], 1) if both else arcs
    rows = release(Data(x=x, edge_index=edges, num_nodes=n))
    if isinstance(rows, Tensor) or not isinstance(rows, Sequence) or not rows:
        raise TypeError(
            "'release' needs to return a list of released rows, one tensor a "
            f'hop (got {type(rows).__name__})'
        )
    for row in rows:
        if not isinstance(row, Tensor) or row.shape != m.shape:
            raise ValueError(
                f"'release' needs to return rows of the shape "
                f'{list(m.shape)} (got {list(getattr(row, "shape", ()))})'
            )
        if not bool(torch.isfinite(row).all()):
            raise ValueError(
                "'release' needs to return finite rows: what is no number "
                'can tell who has edges, and has no score'
            )
    score = torch.zeros(num_canaries, dtype=torch.float64)
    for row in rows if relation == 'edge' else rows[:1]:
        row = row.detach().cpu().double()
        heard = row[others.flatten()].view(num_canaries, size - 1, -1).sum(1)
        score += (heard * m[first]).sum(1) / math.sqrt(size - 1)
        if relation == 'edge' and not directed:
            score += (row[first] * m[others[:, 0]]).sum(1)
        m = row / row.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return empirical_mu(
        score[~coin].numpy(),
        score[coin].numpy(),
        confidence,
        claim=claim_mu,
        seed=rng.derive(seed, 1),
    )
