r"""Bounds of few targets in large graphs, in a region around each.

For one target of a large graph nearly nothing arrives at most rows. Here a
region around the target is cut out, found by local pushes, and the values of
the nodes outside are held at numbers that are at least the true ones: for the
margin the local worst case without prices (flips outside are free), for
PageRank a power of :math:`1 - \alpha` by the distance. The fixed point inside
is then at least the true one, whatever the region is.
"""

import scipy.sparse
import torch
from torch import Tensor

from pyg_trust.agp.measures import ppr
from pyg_trust.agp.queries import query
from pyg_trust.certificates.budget import dual_bound
from pyg_trust.certificates.policy import policy_iteration
from pyg_trust.certificates.search import attacks
from pyg_trust.certificates.threat import Perturbations
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer, ranges

__all__ = ['Region', 'local_attack', 'local_bound', 'nearest']

# The least upper bound: smaller ones make prices meaningless.
_LEAST = 1e-12


class Region:
    """Rows of a part of a graph, and the border that they lead to."""

    def __init__(self, perturbations: Perturbations, inside: Tensor) -> None:
        graph, n = perturbations.graph, perturbations.num_nodes
        inside = inside.unique()
        place = torch.full((n,), -1)
        place[inside] = torch.arange(inside.numel())
        edge = _rows(graph.rowptr, inside)
        pair_ptr = pointer(perturbations.pairs[0].bincount(minlength=n))
        pair = _rows(pair_ptr, inside)
        reached = torch.cat(
            [graph.col32[edge].long(), perturbations.pairs[1][pair]]
        )
        border = reached[place[reached] < 0].unique()
        place[border] = inside.numel() + torch.arange(border.numel())
        budget, all_pairs = (
            perturbations.budget[inside],
            perturbations.all_pairs,
        )
        # With all pairs, stand-ins for the nodes beyond the border.
        spare = 0
        if all_pairs and budget.numel() > 0:
            spare = min(int(budget.max()), n - inside.numel() - border.numel())
        self.inside, self.border, self.spare = inside, border, spare
        count = inside.numel() + border.numel() + spare
        out = torch.arange(inside.numel(), count)
        # The border leads to itself and keeps its value.
        row = torch.cat([place[graph.row[edge]], out])
        col = torch.cat([place[graph.col32[edge]], out])
        free = perturbations.removable[edge]
        free = torch.cat([free, torch.zeros_like(out).bool()])
        order = (row * count + col).argsort()
        addable = None
        if not all_pairs:
            addable = place[perturbations.pairs[:, pair]]
        self.perturbations = Perturbations(
            CSRGraph(pointer(row.bincount(minlength=count)), col[order]),
            free[order],
            torch.cat([budget, torch.zeros_like(out)]),
            addable,
            all_pairs=all_pairs,
        )
        self.place = place

    def signal(
        self, reward: Tensor, outside: Tensor, most: Tensor, alpha: float
    ) -> Tensor:
        """Return the reward inside and the fixed values of the border."""
        held = torch.cat(
            [outside, most[:, None].expand(-1, self.spare)], dim=1
        )
        # V = r + a V, rounded up.
        held = alpha * held
        held = held + 1e-15 / alpha * held.abs()
        return torch.cat([reward, held], dim=1)

    def upper(
        self, perturbations: Perturbations, target: int, alpha: float
    ) -> Tensor:
        """Bound the target's PageRank at the nodes of the region.

        A walk that is at the border arrives at a node inside after as many
        steps as they are apart, at the earliest; and a node without a
        self-loop is visited every second step at most.
        """
        inner, count = self.perturbations, self.inside.numel()
        graph, follow = perturbations.graph, 1 - alpha
        pairs, here = perturbations.pairs, int(self.place[target])
        loops = graph.has_self_loops or bool((pairs[0] == pairs[1]).any())
        visits = 1 / alpha if loops else 1 / (1 - follow**2)
        steps = torch.ones(count, dtype=torch.float64)
        added = perturbations.all_pairs or pairs.numel() > 0
        if not added and graph.is_undirected and self.border.numel():
            far = scipy.sparse.csgraph.dijkstra(
                inner.graph.to_scipy(),
                directed=False,
                indices=range(count, inner.num_nodes),
                unweighted=True,
                min_only=True,
            )
            steps = torch.from_numpy(far[:count]).clamp(min=1)
        upper = torch.ones(inner.num_nodes, dtype=torch.float64)
        for block in inner.column_blocks(inner.active.numel()):
            row = inner.active[block]
            reward = torch.zeros((row.numel(), count), dtype=torch.float64)
            reward[torch.arange(row.numel()), row] = 1
            held = visits * follow ** steps[row]
            outside = held[:, None].expand(-1, self.border.numel())
            signal = self.signal(reward, outside, held, alpha)
            optimum = policy_iteration(inner, signal, alpha, tol=1e-9)
            bound = alpha * (optimum.value[:, here] + optimum.high)
            upper[row] = bound.clamp(min=_LEAST, max=1)
        return upper


def nearest(graph: CSRGraph, target: int, alpha: float, size: int) -> Tensor:
    """Find nodes with the largest personalized PageRank, by pushes."""
    found = query(
        *(graph, torch.tensor([target]), ppr(alpha)),
        eps=1e-3 / size,
        method='prune',
        top_k=size,
        dtype=torch.float64,
    )
    order = found.values().argsort(descending=True, stable=True)
    nodes = found.col_indices().long()[order]
    # The target is the first of all.
    return torch.cat([torch.tensor([target]), nodes[nodes != target]])[:size]


def local_bound(
    perturbations: Perturbations,
    reward: Tensor,
    target: int,
    free: Tensor,
    global_budget: int,
    alpha: float,
    *,
    undirected: bool = False,
    sign_only: bool = False,
    size: int = 512,
) -> Tensor:
    r"""Bound :math:`\max_{\tilde G} \pi_{\tilde G}(u)^\top r` in a region.

    As :func:`dual_bound` with the cost :obj:`'pagerank'`, for one target of a
    large graph; the time depends on the region, of :obj:`size` nodes, not on
    the graph. :obj:`free` bounds the worst case under local budgets alone.
    """
    inside = nearest(perturbations.graph, target, alpha, size)
    region = Region(perturbations, inside)
    upper = region.upper(perturbations, target, alpha)
    columns = reward.size(0)
    priced = undirected and not perturbations.all_pairs
    return dual_bound(
        region.perturbations,
        region.signal(
            *(reward[:, region.inside], free[:, region.border]),
            *(free.amax(1), alpha),
        ),
        region.place[target].expand(columns),
        upper.expand(columns, -1).contiguous(),
        # Without a price per edge an undirected flip is two.
        global_budget * (1 + (undirected and not priced)),
        alpha,
        undirected=priced,
        sign_only=sign_only,
    ).bound


def local_attack(
    perturbations: Perturbations,
    reward: Tensor,
    target: int,
    value: Tensor,
    global_budget: int,
    alpha: float,
    *,
    undirected: bool = False,
    size: int = 512,
) -> Tensor:
    """Attack a target in a region around it; evaluate the flips before use.

    The border is held at the :obj:`value` of the clean graph.
    """
    inside = nearest(perturbations.graph, target, alpha, size)
    region = Region(perturbations, inside)
    flips = attacks(
        region.perturbations,
        region.signal(
            *(reward[None, region.inside], value[None, region.border]),
            *(value.amin()[None], alpha),
        ),
        region.place[target][None],
        *(global_budget, alpha),
        undirected=undirected,
        swaps=1 if global_budget <= 10 else 0,
    )[0]
    known = torch.cat([region.inside, region.border])
    # Stand-ins are no nodes of the graph.
    return known[flips[:, (flips < known.numel()).all(0)]]


def _rows(ptr: Tensor, rows: Tensor) -> Tensor:
    # The positions of the entries of some rows.
    return ranges(ptr[rows], ptr[rows + 1] - ptr[rows])
