r"""Ranks by PageRank under one flipped edge, exactly.

The scores of user :math:`u` are row :math:`u` of :math:`\Pi = \alpha (I - a
P)^{-1}`, :math:`a = 1 - \alpha`, :math:`P = D^{-1} A`; a node without edges
keeps what it has. Its items are ranked by these, those that :math:`u` has
already left out. The *worst rank* of an item is the largest number of items
that are beside it or above it, itself included, in the graph or in any one of
the graphs that differ in one of some undirected pairs. All items compete:
none is left out because it is far behind.

**One flip.** Flipping :math:`\{v, j\}` changes rows :math:`v` and :math:`j` of
:math:`P`, by the rows of :math:`\Delta`. With :math:`X = (I - a P)^{-1}` and
:math:`U = [e_v\; e_j]`

.. math::
    X' = X + a X U (I - a \Delta X U)^{-1} \Delta X,

so that a flip costs two numbers for a user and two for an item.

**Error.** With :math:`R = I - (I - a P) \hat X`, as computed, :math:`X - \hat
X = X R`, and rows of :math:`X` sum to :math:`1 / \alpha`: entries are off by
at most :math:`\eta = \max |R| / \alpha`, those of :math:`\Delta X` by
:math:`\kappa = 2 \eta`, as rows of :math:`\Delta` have 2 at most. With
:math:`M = I - a \Delta \hat X U` and :math:`N` its computed inverse, :math:`q
= \|I - M N\| + 2 a \kappa \|N\| < 1` gives :math:`\|(I - a \Delta X U)^{-1} -
N\| \le \|N\| q / (1 - q)` in the maximum norm. All three are widened by the
roundings of the few operations themselves; a rank counts every item whose
score may be as large.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import (
    check_distinct,
    check_instance,
    check_integer,
    check_range,
    check_tensor,
)
from pyg_trust.functional.diffusion import check_alpha
from pyg_trust.graph import CSRGraph

#: The most nodes: about 40 bytes for each pair of them.
MAX_NODES = 20_000
_EPS = float(np.finfo(np.float64).eps)


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
    """int64, ``[num_users, k, 2]``: the flip of the largest rank; -1 where
    the clean graph has it."""


def single_edge_ranks(
    graph: CSRGraph,
    users: Tensor,
    items: Tensor,
    pairs: Tensor,
    alpha: float,
    k: int = 10,
) -> WorstRanks:
    r"""Compute the worst ranks of users' best items under one flipped edge.

    Needs the dense inverse: about 40 bytes for each pair of nodes.

    Args:
        graph (CSRGraph): undirected, unweighted, without self-loops.
        users (Tensor): int64, ``[num_users]``.
        items (Tensor): int64, ``[num_items]``: all that are ranked.
        pairs (Tensor): int64, ``[2, num_pairs]``: the undirected pairs, one
            of which may flip: come if it is no edge, else go. None of them
            is of a user, whose own items are left out.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        k (int): how many of the best items. (default: :obj:`10`)

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
    n, a = graph.num_nodes, 1 - alpha
    adjacency = graph.to_scipy().astype(np.float64)
    degree = graph.degree.cpu().numpy().astype(np.float64)
    share = np.divide(1.0, degree, out=np.zeros(n), where=degree > 0)
    step = share[:, None] * adjacency.toarray()
    X = np.linalg.inv(np.eye(n) - a * step)
    sums = adjacency @ X
    # Of sums over neighbours, and of the few operations after them.
    rounding = (float(degree.max(initial=0.0)) + 16) * _EPS
    residual = np.eye(n) - X + a * share[:, None] * sums
    most = float(np.abs(X).max())
    eta = (float(np.abs(residual).max()) + rounding * 4 * most) / alpha
    kappa = 2 * eta + 4 * rounding * most
    u, col = users.numpy(), items.numpy()
    scores = alpha * X[np.ix_(u, col)]
    free = adjacency[u].toarray()[:, col] == 0
    free &= u[:, None] != col[None]
    if int(free.sum(1).min(initial=k)) < k:
        raise ValueError(f"'k' needs to be at most what is left (got {k})")
    order = np.argsort(np.where(free, -scores, np.inf), 1, kind='stable')
    best = order[:, :k]
    off = alpha * eta + 4 * _EPS * most
    worst, attained = _ranks(scores, free, best, off)
    flips = np.full((*best.shape, 2), -1)
    first, second = pairs.numpy().copy()
    there = np.asarray(adjacency[first, second]).ravel()
    for (v, j), gone in zip(pairs.t().tolist(), there > 0, strict=True):
        ends, sign = [v, j], -1.0 if gone else 1.0
        size = degree[ends] + sign
        inverse = np.divide(1.0, size, out=np.zeros(2), where=size > 0)
        new = (sums[ends] + sign * X[[j, v]]) * inverse[:, None]
        new[size == 0] = 0.0
        moved = new - sums[ends] * share[ends][:, None]
        M = np.eye(2) - a * moved[:, ends]
        N = np.linalg.inv(M)
        norm = float(np.abs(N).sum(1).max())
        q = float(np.abs(np.eye(2) - M @ N).sum(1).max())
        q += 2 * a * kappa * norm + 16 * _EPS * norm * (2 + most)
        reach, part = X[np.ix_(u, ends)], moved[:, col]
        made = scores + alpha * a * (reach @ N) @ part
        wide, far = float(np.abs(reach).sum(1).max()), np.abs(part).max()
        known = wide * norm * far
        error = np.inf
        if q < 1:
            above = (wide + 2 * eta) * norm / (1 - q) * (far + kappa)
            error = alpha * a * (above - known + 16 * _EPS * known) + off
        upper, lower = _ranks(made, free, best, float(error))
        flips[upper > worst] = ends
        worst = np.maximum(worst, upper)
        attained = np.maximum(attained, lower)
    return WorstRanks(
        torch.from_numpy(col[best]),
        torch.from_numpy(worst),
        torch.from_numpy(attained),
        torch.from_numpy(flips),
    )


def _ranks(
    scores: np.ndarray, free: np.ndarray, best: np.ndarray, error: float
) -> tuple[np.ndarray, np.ndarray]:
    # At most, and at least: an item beside another counts against it.
    mine = np.take_along_axis(scores, best, 1)
    # Two scores, each off by the error, and the roundings of a difference.
    gap = 2 * error * (1 + 4 * _EPS)
    counted = np.where(free, scores, -np.inf)[:, None]
    upper = (counted >= (mine - gap)[:, :, None]).sum(2)
    lower = (counted > (mine + gap)[:, :, None]).sum(2)
    return upper, lower + 1


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
    check_distinct('items', items)
    if bool((pairs[0] == pairs[1]).any()):
        raise ValueError("'pairs' needs pairs of two different nodes")
    if bool(torch.isin(pairs, users).any()):
        raise ValueError(
            "'pairs' can't be of 'users': what a user has itself is left out "
            'of its ranks'
        )
