"""Certified ranks: recommendations that a few edges can't displace."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Count,
    Fraction,
    NotNegative,
    check_distinct,
    check_nodes,
    validated,
)
from pyg_trust.certificates.certificate import BROKEN, ROBUST, UNKNOWN
from pyg_trust.certificates.exact import certify_pagerank
from pyg_trust.certificates.rank_bounds import single_edge_ranks
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.certificates.witness import Proved, Witness
from pyg_trust.graph import CSRGraph
from pyg_trust.report import (
    DATA_FIELDS,
    Guarantee,
    Report,
    fingerprint,
    fingerprint_data,
    provenance,
)
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.verify import ranks as kernel


@dataclass(frozen=True)
class RankCertificate(Proved, Report):
    """Worst ranks of some users' best items, over all admissible graphs.

    An item within :obj:`tolerance` of another counts as ranked above it.
    """

    num_kept: int
    """How many items stay among the first k of their user."""
    num_lost: int
    """How many do not, in a graph that :obj:`flips` names."""
    num_unknown: int
    k: int
    num_items: int
    """How many items are ranked."""
    num_flips: int
    """How many undirected pairs may flip."""
    global_budget: int
    """How many of them flip at most."""
    method: str
    """``'flip'``: exact, for one flip; ``'certify'``: bounds for more."""
    alpha: float
    tolerance: float
    roundoff: float
    """No score of one flip is off by more: in the ranks already."""
    fingerprint: str
    """SHA-256 of the graph, the pairs, the users and the items."""
    users: Tensor
    """int64, ``[num_users]``."""
    items: Tensor
    """The best items of the clean graph: int64, ``[num_users, k]``."""
    worst_rank: Tensor
    """No admissible graph has a larger rank: int64, ``[num_users, k]``."""
    attained: Tensor
    """A rank that one flip reaches: int64, ``[num_users, k]``."""
    status: Tensor
    """:obj:`ROBUST` (1), :obj:`UNKNOWN` (0) or :obj:`BROKEN` (-1): int8,
    ``[num_users, k]``."""
    flips: Tensor
    """The edge whose flip gives :obj:`attained`, -1 for the clean graph:
    int64, ``[num_users, k, 2]``."""
    provenance: dict[str, Any]
    data: str = ''
    """SHA-256 of the graph that was handed in, if it was a ``Data``."""
    witness_digest: str = ''
    """SHA-256 of :attr:`proof`, or why there is none."""
    proof: Witness | None = field(default=None, repr=False, compare=False)
    """What :meth:`verify` proves ranks from, by
    :mod:`pyg_trust.verify.ranks`: the graph, the pairs, users and items. It
    holds edges, so it is in no report: :meth:`~Witness.save` it beside."""

    def _is_about(self, arrays: dict[str, np.ndarray]) -> bool:
        kernel.read(arrays)
        known = {
            'users': self.users,
            'best': self.items,
            'worst': self.worst_rank,
        }
        return all(
            np.array_equal(arrays[name], value.numpy())
            for name, value in known.items()
        ) and not list(kernel.differences(arrays, self._fields()))

    def _follows(self, arrays: dict[str, np.ndarray]) -> bool:
        proved, lost = kernel.prove(arrays)
        status = self.status.numpy()
        kept, gone = status == ROBUST, status == BROKEN
        return (
            bool(proved.all() and lost[gone].all())
            and bool((arrays['worst'][kept] <= self.k).all())
            and (self.num_kept, self.num_lost) == (kept.sum(), gone.sum())
        )

    def _fields(self) -> dict[str, Any]:
        ranks, counts = self.worst_rank.unique(return_counts=True)
        return {
            **self.numbers(),
            'num_users': self.users.numel(),
            'ranks': torch.stack([ranks, counts], 1).tolist(),
        }

    def chart(self) -> Chart:
        """Draw the worst ranks at each place of the list, and their mean."""
        places = range(1, self.k + 1)
        worst = self.worst_rank.double()
        return Chart(
            f'{self.num_kept} of {self.worst_rank.numel()} recommendations '
            f'stay among the first {self.k}, {self.num_lost} do not in some '
            'graph',
            lines={
                'largest': (places, worst.amax(0).tolist()),
                'mean': (places, worst.mean(0).tolist()),
            },
            xlabel='place of the item in the clean graph',
            ylabel='worst rank',
            limit=float(self.k),
            limit_label=f'among the first {self.k}',
        )

    def guarantee(self) -> Guarantee:
        """State the recommendations that stay, and under which changes."""
        fields = list(DATA_FIELDS) if self.data else None
        return stated(
            'certificate of ranks',
            {**self._fields(), 'data_fields': fields},
            data=self.data or self.fingerprint,
            origin=self.provenance,
        )


@validated
def certify_ranks(
    graph: Any,
    users: Tensor,
    threat: ThreatModel,
    *,
    alpha: Fraction = 0.15,
    k: Count = 10,
    items: Tensor | None = None,
    tolerance: NotNegative = 1e-9,
    progress_bar: bool | None = None,
) -> RankCertificate:
    r"""Certify how far a user's best items can fall in a PageRank ranking.

    Ranks the items that a user neither is nor has, by row :math:`u` of
    :math:`\alpha (I - (1 - \alpha) D^{-1} A)^{-1}`. The worst rank of an item
    is the largest number of items beside it or above it, itself included, in
    any graph of the attacker. Distant items are included.

    **One flip** (``global_budget=1``) is exact: the two rows that change have
    a formula for all items at once. Each user is certified against the edges
    of all others: its own pairs do not flip for its ranks.
    **More flips** are bounded by :func:`certify_pagerank`, each competitor
    with the whole budget: for small graphs. On real ones this says little,
    and an item of which nothing is proved is *unknown*.

    .. code-block:: python

        threat = ThreatModel(
            data, 'removals', fixed='none', global_budget=1, undirected=True
        )
        report = certify_ranks(data, users, threat, items=items)
        report.worst_rank  # [num_users, k]

    Args:
        graph (Any): the clean graph, the same as in the threat: undirected,
            without weights and self-loops, in any form that
            :meth:`CSRGraph.convert` takes.
        users (Tensor): the nodes whose lists are certified: int64 indices or
            a bool mask.
        threat (ThreatModel): the attacker, with ``undirected=True`` and a
            global budget.
        alpha (float): the teleport probability. (default: :obj:`0.15`)
        k (int): the number of best items. (default: :obj:`10`)
        items (Tensor, optional): the nodes that are ranked, int64 indices or a
            bool mask, such as one side of a bipartite graph. By default all
            nodes. (default: :obj:`None`)
        tolerance (float): two items with scores closer than this count as
            tied. (default: :obj:`1e-9`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        RankCertificate: worst ranks, and the flips that reach them.

    Raises:
        TypeError: on a wrong type or dtype.
        ValueError: if the graph is not that of the threat, some items are
            left out, or a user has fewer than :obj:`k` left.
    """
    converted = CSRGraph.convert(graph, threat.num_nodes).to('cpu')
    there = threat.graph
    if not torch.equal(converted.rowptr, there.rowptr) or not torch.equal(
        converted.col, there.col
    ):
        raise ValueError("'graph' needs to be the graph of 'threat'")
    n, (pairs, budget) = converted.num_nodes, _pairs(threat)
    who = check_nodes('users', users, n).cpu().clone()
    if not who.numel():
        raise ValueError("'users' needs to name a node")
    ranked = _ranked(converted, items, pairs)
    ranks = single_edge_ranks(
        *(converted, who, ranked, pairs),
        *(alpha, k, tolerance, progress_bar),
    )
    worst, single = ranks.worst, budget <= 1
    arrays = {
        **{'rowptr': converted.rowptr, 'col': converted.col, 'pairs': pairs},
        **{'users': who, 'items': ranked, 'best': ranks.items},
        **{'worst': ranks.worst, 'flips': ranks.flips},
        'alpha': torch.tensor(alpha, dtype=torch.float64),
        'tolerance': torch.tensor(tolerance, dtype=torch.float64),
    }
    if single:
        proof, digest = Witness.of(arrays, {})
    else:
        proof, digest = None, 'none: bounds for several flips have none'
        worst = _bounds(
            *(converted, who, ranked, pairs, budget, ranks.items),
            *(alpha, tolerance, progress_bar),
        ).maximum(ranks.worst)
    status = torch.full_like(worst, UNKNOWN, dtype=torch.int8)
    status[worst <= k] = ROBUST
    status[ranks.attained > k] = BROKEN
    # The last one stands for no flip.
    ends = torch.cat([pairs.t(), pairs.new_full((1, 2), -1)])
    return RankCertificate(
        num_kept=int((status == ROBUST).sum()),
        num_lost=int((status == BROKEN).sum()),
        num_unknown=int((status == UNKNOWN).sum()),
        k=k,
        num_items=ranked.numel(),
        num_flips=pairs.size(1),
        global_budget=budget,
        method='flip' if single else 'certify',
        alpha=float(alpha),
        tolerance=float(tolerance),
        roundoff=ranks.roundoff,
        fingerprint=fingerprint(
            *(converted.rowptr, converted.col, pairs, budget, who, ranked, k),
            *(float(alpha), float(tolerance)),
        ),
        users=who,
        items=ranks.items,
        worst_rank=worst,
        attained=ranks.attained,
        status=status,
        flips=ends[ranks.flips],
        provenance=provenance(
            threat=repr(threat), alpha=alpha, k=k, tolerance=tolerance
        ),
        data=fingerprint_data(graph) if isinstance(graph, Data) else '',
        witness_digest=digest,
        proof=proof,
    )


def _pairs(threat: ThreatModel) -> tuple[Tensor, int]:
    # The undirected pairs that may flip, in order.
    perturbations, budget = threat.perturbations, threat.global_budget
    if not threat.undirected or budget is None:
        raise ValueError(
            "'threat' needs undirected=True and a 'global_budget' "
            f'(got {threat!r})'
        )
    if perturbations.all_pairs:
        raise ValueError(
            "'threat' needs its pairs in a list: 'fragile' of all absent "
            'edges is too much for a graph of this size'
        )
    graph = perturbations.graph
    edges = torch.stack([graph.row, graph.col])[:, perturbations.removable]
    both = torch.cat([edges, perturbations.pairs], 1)
    pairs = both[:, both[0] < both[1]]
    pairs = pairs[:, (threat.local_budget[pairs] > 0).all(0)]
    n = graph.num_nodes
    most = pairs.reshape(-1).bincount(minlength=n).clamp(max=budget)
    if bool((threat.local_budget < most).any()):
        raise ValueError(
            "'threat' needs local budgets of zero, or of the global one: no "
            'rank is bounded by others'
        )
    return pairs[:, (pairs[0] * n + pairs[1]).argsort()], budget


def _ranked(graph: CSRGraph, items: Tensor | None, pairs: Tensor) -> Tensor:
    # All nodes, or one side of a bipartite graph: an item that is left out
    # could overtake.
    n = graph.num_nodes
    if items is None:
        return torch.arange(n)
    ranked = check_nodes('items', items, n).cpu().sort().values
    check_distinct('items', ranked)
    inside = torch.zeros(n, dtype=torch.bool)
    inside[ranked] = True
    edges = torch.cat([torch.stack([graph.row, graph.col]), pairs], 1)
    if not bool(inside.all() | (inside[edges].sum(0) == 1).all()):
        raise ValueError(
            "'items' needs to be all nodes, or one side of a bipartite graph, "
            'of which every edge has one end: an item that is left out could '
            'overtake'
        )
    return ranked


def _bounds(
    graph: CSRGraph,
    users: Tensor,
    items: Tensor,
    pairs: Tensor,
    budget: int,
    best: Tensor,
    alpha: float,
    tolerance: float,
    progress_bar: bool | None,
) -> Tensor:
    # An item that no margin keeps below counts as above.
    n, worst = graph.num_nodes, torch.zeros_like(best)
    logits = torch.zeros(n, items.numel(), dtype=torch.float64)
    logits[items, torch.arange(items.numel())] = 1.0
    for i, user in enumerate(users.tolist()):
        free = torch.ones(n, dtype=torch.bool)
        free[graph.col[graph.rowptr[user] : graph.rowptr[user + 1]]] = False
        free[user] = False
        of_others = pairs[:, (pairs != user).all(0)]
        threat = ThreatModel(
            graph, of_others, global_budget=budget, undirected=True
        )
        places = torch.searchsorted(items, best[i])
        for place, c in enumerate(places.tolist()):
            certificate = certify_pagerank(
                *(logits, None, threat),
                alpha=alpha,
                targets=torch.tensor([user]),
                reference=torch.full((n,), c),
                tolerance=tolerance,
                progress_bar=progress_bar,
            )
            beside = free[items] & (certificate.class_margins[0] <= tolerance)
            worst[i, place] = 1 + int(beside.sum())
    return worst
