"""Utilities on PyG graphs, in the style of ``torch_geometric.utils``."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    NotNegative,
    OneOf,
    check_integer,
    validated,
)
from pyg_trust.agp.clustering import sweep_cut, uniform_signal
from pyg_trust.agp.measures import Measure, hkpr
from pyg_trust.agp.queries import METHODS, query
from pyg_trust.graph import CSRGraph
from pyg_trust.report import Report, provenance

__all__ = ['LocalCluster', 'local_cluster']


@dataclass(frozen=True)
class LocalCluster(Report):
    """Cluster of nodes around one or more seed nodes.

    Args:
        nodes (Tensor): the nodes of the cluster: int64, by falling score.
        conductance (float): the number of edges that leave the cluster,
            divided by the smaller of :obj:`volume` and the rest's.
        volume (int): the sum of the degrees of its nodes.
        num_scored (int): the number of nodes that the diffusion reached.
        provenance (dict): versions and arguments.
    """

    nodes: Tensor
    conductance: float
    volume: int
    num_scored: int
    provenance: dict[str, Any]


@validated
def local_cluster(
    graph: Any,
    seeds: int | Tensor,
    *,
    measure: Measure | None = None,
    eps: NotNegative = 1e-6,
    method: Annotated[str, OneOf(METHODS)] = 'prune',
    max_size: Count | None = None,
    num_nodes: int | None = None,
    seed: int | None = None,
) -> LocalCluster:
    """Find a cluster of small conductance around one or more nodes.

    A signal that is uniform on the seeds, with the sum 1, is diffused to
    :math:`z`. The score of node :math:`v` is :math:`z_v / d_v^b`, for its
    degree :math:`d_v` and the exponent :math:`b` of the measure. The cluster
    is the set of best nodes with the smallest conductance. Only nodes that the
    diffusion reaches are read. Pass a ``CSRGraph`` if you call it repeatedly.

    Args:
        graph (Any): an undirected, unweighted graph: a ``CSRGraph``, a
            ``Data``, an ``edge_index`` or a sparse adjacency matrix.
        seeds (int or Tensor): a node, or int64, ``[num_seeds]``.
        measure (Measure, optional): the diffusion; by default heat kernel
            PageRank with :math:`t = 5`. (default: :obj:`None`)
        eps (float): smaller messages are left out or sampled; 0 for the exact
            diffusion. (default: :obj:`1e-6`)
        method (str): :obj:`'prune'` to leave out small messages, or
            :obj:`'sample'` to sample them. (default: :obj:`'prune'`)
        max_size (int, optional): the most nodes of a cluster; None: no limit.
        num_nodes (int, optional): the number of nodes, for an ``edge_index``.
        seed (int, optional): the seed of sampling; by default torch draws one.

    Returns:
        LocalCluster: the nodes of the cluster, and its conductance.

    Example:
        >>> pairs = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
        >>> edge_index = torch.tensor(pairs + [(v, u) for u, v in pairs]).t()
        >>> found = local_cluster(edge_index, 0, num_nodes=6)
        >>> sorted(found.nodes.tolist()), round(found.conductance, 3)
        ([0, 1, 2], 0.143)
    """
    graph = CSRGraph.convert(graph, num_nodes)
    if not isinstance(seeds, Tensor):
        check_integer('seeds', seeds)
        seeds = torch.tensor([seeds], device=graph.device)
    if measure is None:
        measure = hkpr(5.0)
    signal = uniform_signal(seeds, graph.num_nodes)
    # Pruning is deterministic and must not advance the generator.
    seed = 0 if method == 'prune' and seed is None else rng.resolve(seed)
    row = query(
        graph,
        signal,
        measure,
        eps=eps,
        method=method,
        seed=seed,
    )
    nodes, score = row.col_indices(), row.values()
    normal = graph.degree_power(-measure.b, score.dtype)[nodes]
    cut = sweep_cut(graph, nodes, score * normal, max_size=max_size)
    return LocalCluster(
        nodes=cut.nodes,
        conductance=cut.conductance,
        volume=cut.volume,
        num_scored=nodes.numel(),
        provenance=provenance(
            seeds=seeds.tolist(),
            measure=measure,
            eps=eps,
            method=method,
            max_size=max_size,
            seed=seed,
        ),
    )
