"""Local clustering: sweep cuts of scores on a few nodes."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import Count, check_dtype, check_tensor, validated
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph.ragged import ranges

__all__ = ['SweepCut', 'sweep_cut', 'uniform_signal']


class SweepCut(NamedTuple):
    """The best cut of a sweep.

    Args:
        nodes (Tensor): int64: the cluster, in the order of the sweep.
        conductance (float): its conductance.
        profile (Tensor): float64, ``[num_scored]``: the conductance of every
            prefix of the sweep, infinite where it is not defined.
        volume (int): the sum of the degrees in the cluster.
    """

    nodes: Tensor
    conductance: float
    profile: Tensor
    volume: int


@validated
def sweep_cut(
    graph: CSRGraph,
    nodes: Tensor,
    score: Tensor,
    *,
    max_size: Count | None = None,
) -> SweepCut:
    """Return the best-scored nodes that have the smallest conductance.

    The nodes are sorted by falling score. Of the sets of the first 1, 2, ...
    nodes, the set :math:`S` of smallest conductance is returned: the number of
    edges that leave it, divided by the smaller of its volume and that of all
    other nodes (the sums of their degrees). The time depends on the scored
    nodes and their edges alone (Andersen, Chung and Lang 2006).

    Args:
        graph (CSRGraph): an undirected, unweighted graph.
        nodes (Tensor): distinct nodes: int64, ``[num_scored]``.
        score (Tensor): their scores: floating point, ``[num_scored]``, such as
            PageRank divided by the degree. Ties keep the order of
            :obj:`nodes`.
        max_size (int, optional): the largest number of nodes in the set; by
            default no limit. (default: :obj:`None`)

    Returns:
        SweepCut: the ``nodes`` of the set, by falling score, its
        ``conductance``, a float, and its ``volume``.

    Raises:
        ValueError: on a directed or weighted graph, nodes out of range or
            repeated, no node, NaN in :obj:`score`, or if no set has a
            conductance (isolated nodes, the whole graph).

    Example:
        >>> pairs = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
        >>> edge_index = torch.tensor(pairs + [(v, u) for u, v in pairs]).t()
        >>> graph = CSRGraph.from_edge_index(edge_index, num_nodes=6)
        >>> score = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
        >>> sweep_cut(graph, torch.arange(6), score).nodes  # one triangle
        tensor([0, 1, 2])
    """
    if graph.is_weighted or not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected and unweighted (got a "
            f'{"weighted" if graph.is_weighted else "directed"} one)'
        )
    check_dtype('nodes', nodes, torch.int64)
    check_dtype('score', score, None)
    count = nodes.numel()
    if count == 0 or nodes.dim() != 1 or score.shape != nodes.shape:
        raise ValueError(
            "'nodes' and 'score' need to have one entry per scored node, and "
            f'at least one (got the shapes {list(nodes.shape)} and '
            f'{list(score.shape)})'
        )
    if bool(score.isnan().any()):
        raise ValueError("'score' needs to be free of NaN")

    ranked = nodes[score.sort(descending=True, stable=True).indices]
    known, rank = ranked.sort()
    if int(known[0]) < 0 or int(known[-1]) >= graph.num_nodes:
        raise ValueError(
            f"'nodes' needs to be in [0, {graph.num_nodes}) "
            f'(got {int(known[0])} to {int(known[-1])})'
        )
    if bool((known.diff() == 0).any()):
        raise ValueError("'nodes' needs to name each node once")

    # Every entry of the ranked rows, and the ranks at both of its ends.
    start = graph.rowptr[ranked]
    degree = graph.rowptr[ranked + 1] - start
    volume = degree.cumsum(0)
    here = torch.repeat_interleave(degree)
    other = graph.col32[ranges(start, degree)].long()
    place = torch.searchsorted(known, other).clamp_(max=count - 1)
    inside = known[place] == other
    later = torch.maximum(here[inside], rank[place[inside]])
    internal = later.bincount(minlength=count).cumsum(0)

    smaller = torch.minimum(volume, graph.num_edges - volume)
    profile = (volume - internal).double() / smaller
    profile[smaller <= 0] = torch.inf
    size = int(profile[:max_size].argmin()) + 1
    conductance = float(profile[size - 1])
    if conductance == torch.inf:
        raise ValueError(
            "'nodes' has no prefix with a conductance: it holds isolated "
            'nodes or the whole graph'
        )
    return SweepCut(ranked[:size], conductance, profile, int(volume[size - 1]))


@validated
def uniform_signal(seeds: Tensor, num_nodes: Count) -> Tensor:
    """Return the uniform distribution over seeds, as a row for ``query``.

    Args:
        seeds (Tensor): int64, ``[num_seeds]``: distinct nodes.
        num_nodes (int): the number of nodes of the graph.

    Returns:
        Tensor: a sparse CSR matrix, ``[1, num_nodes]``, float64.


    """
    check_tensor('seeds', seeds, torch.int64, ('num_seeds',))
    seeds = seeds.sort().values
    count = seeds.numel()
    if count == 0 or bool((seeds.diff() == 0).any()):
        raise ValueError(
            "'seeds' needs to name at least one node, and each once "
            f'(got {seeds.tolist()[:10]})'
        )
    if int(seeds[0]) < 0 or int(seeds[-1]) >= num_nodes:
        raise ValueError(
            f"'seeds' needs to be in [0, {num_nodes}) "
            f'(got {int(seeds[0])} to {int(seeds[-1])})'
        )
    value = torch.full_like(seeds, 1 / count, dtype=torch.float64)
    ptr = torch.tensor([0, count], device=seeds.device)
    return sparse_rows(ptr, seeds, value, (1, num_nodes))
