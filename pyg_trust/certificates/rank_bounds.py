r"""Ranks by PageRank under one flipped edge, exactly.

The scores of user :math:`u` are row :math:`u` of :math:`\Pi = \alpha (I - a
P)^{-1}`, :math:`a = 1 - \alpha`, :math:`P = D^{-1} A`; a node without edges
keeps what it has. Its items are ranked by these, those that :math:`u` has
already left out. The *worst rank* of an item is the largest number of items
that are beside it or above it, itself included, in the graph or in any one of
the graphs that differ in one of some undirected pairs. All items compete:
none is left out because it is far behind.

A flip costs two numbers for a user and two for an item, and each rank counts
every item whose score may be as large: :mod:`pyg_trust.verify.ranks` has the
formula, the bound of its error, and proves a rank again.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._checks import (
    check_distinct,
    check_instance,
    check_integer,
    check_range,
    check_tensor,
)
from pyg_trust._progress import Bar
from pyg_trust.certificates.diffusion import check_alpha
from pyg_trust.graph import CSRGraph
from pyg_trust.verify import ranks as kernel

#: The most nodes: about 40 bytes for each pair of them.
MAX_NODES = 20_000


@dataclass(frozen=True)
class WorstRanks:
    """Worst ranks of each user's best items, over at most one flip."""

    items: Tensor
    """int64, ``[num_users, k]``: the best items of the clean graph."""
    worst: Tensor
    """int64, ``[num_users, k]``: no admissible graph has a larger rank."""
    attained: Tensor
    """int64, ``[num_users, k]``: some admissible graph has a rank as large
    as this. Where it equals ``worst``, that is exact."""
    flips: Tensor
    """int64, ``[num_users, k]``: the number of a pair with which the rank is
    ``attained``; -1 for the clean graph."""
    roundoff: float
    """No score is off by more."""


def single_edge_ranks(
    graph: CSRGraph,
    users: Tensor,
    items: Tensor,
    pairs: Tensor,
    alpha: float,
    k: int = 10,
    tolerance: float = 0.0,
    progress_bar: bool | None = None,
) -> WorstRanks:
    r"""Compute the worst ranks of users' best items under one flipped edge.

    Needs the dense inverse: about 40 bytes for each pair of nodes.

    Args:
        graph (CSRGraph): undirected, unweighted, without self-loops.
        users (Tensor): int64, ``[num_users]``.
        items (Tensor): int64, ``[num_items]``: all that are ranked, rising.
        pairs (Tensor): int64, ``[2, num_pairs]``: the undirected pairs, one
            of which may flip: come if it is no edge, else go. A pair of a
            user itself is none for its ranks, from which its own items are
            left out.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        k (int): the number of best items. (default: :obj:`10`)
        tolerance (float): an item less than this below another one counts as
            beside it. (default: :obj:`0.0`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Example:
        >>> path = torch.tensor([[0, 2, 1, 2, 1, 3], [2, 0, 2, 1, 3, 1]])
        >>> graph = CSRGraph.from_edge_index(path, num_nodes=5)
        >>> pairs = torch.tensor([[1], [4]])
        >>> user, items = torch.tensor([0]), torch.tensor([3, 4])
        >>> single_edge_ranks(graph, user, items, pairs, 0.2, k=1).worst
        tensor([[2]])
    """
    alpha, k = check_alpha(alpha), check_integer('k', k, 1)
    _check(graph, users, items, pairs)
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
    for number, (v, j) in enumerate(Bar(ends, progress_bar, desc='flips')):
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
    return WorstRanks(
        items=torch.from_numpy(col[best]),
        worst=torch.from_numpy(worst),
        attained=torch.from_numpy(attained),
        flips=torch.from_numpy(flips),
        roundoff=roundoff,
    )


def _check(
    graph: CSRGraph, users: Tensor, items: Tensor, pairs: Tensor
) -> None:
    check_instance('graph', graph, CSRGraph)
    n = graph.num_nodes
    if graph.is_weighted or graph.has_self_loops or not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected, without weights and self-loops"
        )
    if n > MAX_NODES:
        raise ValueError(
            f"'graph' needs to have at most {MAX_NODES} nodes, as the inverse "
            f'is dense (got {n})'
        )
    for name, value, shape in (
        ('users', users, ('num_users',)),
        ('items', items, ('num_items',)),
        ('pairs', pairs, (2, 'num_pairs')),
    ):
        check_tensor(name, value, torch.int64, shape)
        check_range(name, value, n, 'the nodes')
    check_distinct('users', users)
    check_distinct('items', items)
    if bool((items.diff() < 0).any()):
        raise ValueError("'items' needs to rise: sort it")
    if bool((pairs[0] == pairs[1]).any()):
        raise ValueError("'pairs' needs pairs of two different nodes")
