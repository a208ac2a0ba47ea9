"""Certified ranks: recommendations that a few edges can't displace."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Count,
    Fraction,
    NodeIds,
    NotNegative,
    check_distinct,
    check_nodes,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust._progress import Bar
from pyg_trust.certificates.certificate import BROKEN, ROBUST, UNKNOWN
from pyg_trust.certificates.exact import certify_pagerank
from pyg_trust.certificates.threat import ThreatModel, check_same_graph
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
from pyg_trust.verify.accounting import FAILS, HOLDS, NOT_PROVED

__all__ = ['RankCertificate', 'certify_ranks']

#: The most nodes: about 40 bytes for each pair of them.
MAX_NODES = 20_000


@dataclass(frozen=True)
class RankCertificate(Proved, Report):
    """Worst ranks of users' best items, over all graphs of an attacker.

    :func:`certify_ranks` makes it. Ties count against an item: others whose
    scores are within :obj:`tolerance` of its score are ranked above it.

    Args:
        num_kept (int): how many items certainly stay in their user's top k.
        num_lost (int): how many leave it after the flip in :obj:`flips`.
        num_unknown (int): the number of all other items.
        k (int): the number of best items of each user.
        num_items (int): the number of items that are ranked.
        num_flips (int): the number of undirected pairs that may flip.
        global_budget (int): the most pairs that flip together.
        method (str): ``'flip'`` (exact ranks, for a budget of one flip) or
            ``'certify'`` (bounds of ranks, for more flips).
        alpha, tolerance, provenance: ``alpha``, ``tol`` and all settings.
        roundoff (float): the largest rounding error of scores after a flip.
        run_sha256, data_sha256 (str): SHA-256 of all arguments; of the graph.
        users (Tensor): the nodes of the users: int64, ``[num_users]``.
        items (Tensor): the best items of the clean graph: int64,
            ``[num_users, k]``.
        worst_rank (Tensor): an upper bound of each item's rank in every graph
            of the attacker: int64, ``[num_users, k]``.
        attained (Tensor): a rank that one flip reaches, of the same shape.
        status (Tensor): :obj:`ROBUST` (1: stays in the top k), :obj:`BROKEN`
            (-1: leaves it) or :obj:`UNKNOWN` (0): int8, of the same shape.
        flips (Tensor): the edge whose flip gives :obj:`attained`, -1 for the
            clean graph: int64, ``[num_users, k, 2]``.
        witness_digest (str): SHA-256 of ``proof``, or why there is none.
        proof (Witness, optional): the edges from which :meth:`verify` proves
            the ranks; no report contains it, so save it separately.
    """

    num_kept: int
    num_lost: int
    num_unknown: int
    k: int
    num_items: int
    num_flips: int
    global_budget: int
    method: str
    alpha: float
    tolerance: float
    roundoff: float
    run_sha256: str
    users: Tensor
    items: Tensor
    worst_rank: Tensor
    attained: Tensor
    status: Tensor
    flips: Tensor
    provenance: dict[str, Any]
    data_sha256: str = ''
    witness_digest: str = ''
    proof: Witness | None = field(default=None, repr=False, compare=False)
    _kernel: ClassVar[ModuleType] = kernel

    def certified_ratio(self) -> float:
        """Return the share of items proved to stay in their user's top k."""
        return self.num_kept / max(self.status.numel(), 1)

    def _judged(self, arrays: dict[str, np.ndarray]) -> Iterator[str]:
        # Of each item, where a report has their number alone.
        proved, lost = kernel.prove(arrays)
        kept, gone = (self.status == s for s in (ROBUST, BROKEN))
        same = (
            np.array_equal(arrays['users'], self.users.numpy())
            and np.array_equal(arrays['best'], self.items.numpy())
            and np.array_equal(arrays['worst'], self.worst_rank.numpy())
            and not any(kernel.differences(arrays, self._fields()))
            and bool((self.worst_rank[kept] <= self.k).all())
            and (self.num_kept, self.num_lost) == (kept.sum(), gone.sum())
        )
        sure = proved.all() and lost[gone.numpy()].all()
        yield (HOLDS if sure else NOT_PROVED) if same else FAILS

    def _fields(self) -> dict[str, Any]:
        ranks, counts = self.worst_rank.unique(return_counts=True)
        return {
            **self.numbers(),
            'num_users': self.users.numel(),
            'ranks': torch.stack([ranks, counts], 1).tolist(),
            'data_fields': list(DATA_FIELDS) if self.data_sha256 else None,
        }

    def chart(self) -> Chart:
        """Return a chart of the worst rank at each place of the top k."""
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
        """Return the guarantee of how many items stay in the top k."""
        return stated(
            'certificate of ranks',
            self._fields(),
            data_sha256=self.data_sha256 or self.run_sha256,
            origin=self.provenance,
        )


@renamed(tolerance='tol')
@validated
def certify_ranks(
    graph: Any,
    users: NodeIds,
    threat: ThreatModel,
    *,
    alpha: Fraction = 0.15,
    k: Count = 10,
    items: NodeIds | None = None,
    tol: NotNegative = 1e-9,
) -> RankCertificate:
    r"""Certify how far a user's best items can fall in a PageRank ranking.

    The score of an item for user :math:`u` is its entry in row :math:`u` of
    :math:`\alpha (I - (1 - \alpha) D^{-1} A)^{-1}`. Neighbours of the user,
    and the user, are not ranked. The worst rank of an item is 1 plus the
    largest number of items with the same or a higher score, in any graph that
    the attacker can make. Edges of the user itself do not flip.

    The ranks are exact with ``global_budget=1``. With more flips they are
    bounds, which prove little on real graphs.

    .. code-block:: python

        threat = ThreatModel(
            data, 'removals', fixed='none', global_budget=1, undirected=True
        )
        report = certify_ranks(data, users, threat, items=items)
        report.worst_rank  # [num_users, k]

    Args:
        graph (Any): the graph of the threat, such as a ``Data`` or an
            ``edge_index``, without weights and self-loops.
        users (Tensor): the users' nodes: int64 indices or a bool mask.
        threat (ThreatModel): an undirected attacker with a global budget.
        alpha (float): the teleport probability. (default: :obj:`0.15`)
        k (int): the number of best items. (default: :obj:`10`)
        items (Tensor, optional): one side of a bipartite graph, int64 indices
            or a bool mask, to rank these nodes alone; by default all nodes are
            ranked. (default: :obj:`None`)
        tol (float): scores that differ by at most this count as equal.

    Returns:
        RankCertificate: worst ranks, and the flips that reach them.

    Raises:
        ValueError: if the graph is not that of the threat, an edge does not
            have one end in :obj:`items`, or a user has less than ``k`` items.
    """
    converted = CSRGraph.convert(graph, threat.num_nodes).to('cpu')
    check_same_graph('graph', converted, threat)
    n, (pairs, budget) = converted.num_nodes, _pairs(threat)
    who = check_nodes('users', users, n).cpu().clone()
    if not who.numel():
        raise ValueError("'users' needs to name a node")
    ranked = _ranked(converted, items, pairs)
    ranks = single_edge_ranks(converted, who, ranked, pairs, alpha, k, tol)
    worst = ranks.worst
    arrays = {
        **{'rowptr': converted.rowptr, 'col': converted.col, 'pairs': pairs},
        **{'users': who, 'items': ranked, 'best': ranks.items},
        **{'worst': ranks.worst, 'flips': ranks.flips},
        'alpha': torch.tensor(alpha, dtype=torch.float64),
        'tolerance': torch.tensor(tol, dtype=torch.float64),
    }
    proof: Witness | None = None
    if budget <= 1:
        proof, digest = Witness.of(arrays, {})
    else:
        digest = 'none: bounds for several flips have none'
        worst = _bounds(
            *(converted, who, ranked, pairs, budget, ranks.items, alpha, tol)
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
        method='flip' if budget <= 1 else 'certify',
        alpha=float(alpha),
        tolerance=float(tol),
        roundoff=ranks.roundoff,
        run_sha256=fingerprint(
            *(converted.rowptr, converted.col, pairs, budget, who, ranked, k),
            *(float(alpha), float(tol)),
        ),
        users=who,
        items=ranks.items,
        worst_rank=worst,
        attained=ranks.attained,
        status=status,
        flips=ends[ranks.flips],
        provenance=provenance(
            threat=repr(threat), alpha=alpha, k=k, tolerance=tol
        ),
        data_sha256=fingerprint_data(graph) if isinstance(graph, Data) else '',
        witness_digest=digest,
        proof=proof,
    )


class _Ranks(NamedTuple):
    # The best items of the clean graph, their worst and attained ranks, the
    # pair that attains each (-1: none), and the largest error of a score.
    items: Tensor
    worst: Tensor
    attained: Tensor
    flips: Tensor
    roundoff: float


def single_edge_ranks(
    graph: CSRGraph,
    users: Tensor,
    items: Tensor,
    pairs: Tensor,
    alpha: float,
    k: int = 10,
    tolerance: float = 0.0,
) -> _Ranks:
    r"""Compute the worst ranks of users' best items under one flipped edge.

    A flip costs two numbers for a user and two for an item:
    :mod:`pyg_trust.verify.ranks` has the formula and the bound of its error.
    Needs the dense inverse: about 40 bytes for each pair of nodes.
    """
    if graph.is_weighted or graph.has_self_loops or not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected, without weights and self-loops"
        )
    if graph.num_nodes > MAX_NODES:
        raise ValueError(
            f"'graph' needs to have at most {MAX_NODES} nodes, as the inverse "
            f'is dense (got {graph.num_nodes})'
        )
    check_distinct('users', users)
    adjacency = scipy.sparse.csr_array(graph.to_scipy().astype(np.float64))
    u, col = users.numpy(), items.numpy()
    free = adjacency[u].toarray()[:, col] == 0
    free &= u[:, None] != col[None]
    if int(free.sum(1).min(initial=k)) < k:
        raise ValueError(
            f"'k' needs at most as many items as each user lacks (got {k})"
        )
    made = kernel.invert(adjacency, alpha)
    scores = alpha * made.X[np.ix_(u, col)]
    scores = np.where(free, scores, -np.inf)
    order = np.argsort(-scores, 1, kind='stable')
    best, off = order[:, :k], kernel.clean(made)
    falling = np.take_along_axis(scores, order, 1)
    falling = np.pad(falling, ((0, 0), (0, 1)), constant_values=-np.inf)
    mine = falling[:, :k]
    # Wider than the kernel's, which proves it on another machine.
    worst = kernel.beside(scores[:, None], mine, tolerance + 3 * off)
    attained = 1 + (scores[:, None] > mine[:, :, None] + 2 * off).sum(-1)
    flips, roundoff = np.full(best.shape, -1), off

    def gap_of(ranks: np.ndarray) -> np.ndarray:
        # A flip raises the rank only if it moves an item by more than this.
        return mine - np.take_along_axis(falling, ranks, 1) - tolerance

    gap = gap_of(attained)
    ends = pairs.t().tolist()
    for number, (v, j) in enumerate(Bar(ends, desc='flips')):
        gone = bool(adjacency[v, j])
        y, part, errors = kernel.flip(made, u, col, [v, j], gone)
        spread = np.abs(y) @ np.ptp(part, axis=1) + 3 * errors
        look = ~(gap > spread[:, None])
        look &= ((u != v) & (u != j))[:, None]
        for i in np.flatnonzero(look.any(1)):
            t, error = scores[i] + y[i] @ part, float(errors[i])
            bar = t[best[i]]
            upper = kernel.beside(t, bar, tolerance + 3 * error)
            lower = 1 + (t > bar[:, None] + 2 * error).sum(1)
            flips[i, lower > attained[i]] = number
            worst[i] = np.maximum(worst[i], upper)
            attained[i] = np.maximum(attained[i], lower)
            roundoff = max(roundoff, error)
            gap[i] = gap_of(attained)[i]
    return _Ranks(
        items=torch.from_numpy(col[best]),
        worst=torch.from_numpy(worst),
        attained=torch.from_numpy(attained),
        flips=torch.from_numpy(flips),
        roundoff=roundoff,
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
                nodes=torch.tensor([user]),
                reference=torch.full((n,), c),
                tol=tolerance,
            )
            beside = free[items] & (certificate.class_margins[0] <= tolerance)
            worst[i, place] = 1 + int(beside.sum())
    return worst
