r"""Bound how far erased people or edges move what a release is made of.

A Gaussian release has forgotten :math:`K` at the :math:`\mu` by which its
records move it; a person is more than a record, as other lists name it. Proofs
are in :doc:`/theory/forgetting`.
"""

import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.verify import removal

__all__ = ['edge_shift', 'node_shift']


@validated
def node_shift(
    graph: CSRGraph,
    nodes: Tensor,
    receivers: Tensor | None = None,
    max_degree: Count = 1,
) -> float:
    r"""Bound how far complete erasure of nodes moves sums, :math:`\kappa(K)`.

    Args:
        graph (CSRGraph): rows are own lists, at the time of the release and
            less what was erased since; unweighted.
        nodes (Tensor): int64, :math:`K`, each once.
        receivers (Tensor, optional): bool, ``[num_nodes]``, that lists were
            cut to. (default: :obj:`None`)
        max_degree (int): :math:`D` of
            :func:`~pyg_trust.privacy.propagation.energy_weights`.
            (default: :obj:`1`)

    Example:
        >>> star = torch.tensor([[0, 0, 0, 0, 1], [1, 2, 3, 4, 0]])
        >>> graph = CSRGraph.from_edge_index(star, 5)
        >>> round(node_shift(graph, torch.tensor([1])), 6)
        1.133975
    """
    n = graph.num_nodes
    check_tensor('nodes', nodes, torch.int64, ('k',))
    check_range('nodes', nodes, n, 'the nodes')
    if graph.is_weighted:
        raise ValueError("'graph' needs to be unweighted")
    gone = torch.zeros(n, dtype=torch.bool)
    gone[nodes] = True
    if int(gone.sum()) != nodes.numel():
        raise ValueError("'nodes' needs to name each node once")
    ends = graph.to_edge_index()[0].cpu().numpy()
    if receivers is not None:
        check_tensor('receivers', receivers, torch.bool, (n,))
        ends = ends[:, receivers.cpu().numpy()[ends[1]]]
    return float(removal.node_shift(ends, gone.numpy(), int(max_degree)))


@validated
def edge_shift(edges: Tensor, directed: bool = False) -> float:
    r"""Bound how far erased edges move sums, :math:`\sqrt{\sum_r j_r^2}`.

    Args:
        edges (Tensor): int64, ``[2, num_edges]``, each once; of undirected
            edges one direction.
        directed (bool): whether edges are arcs. (default: :obj:`False`)

    Example:
        >>> round(edge_shift(torch.tensor([[0, 0], [1, 2]])) ** 2, 9)
        6.0
    """
    check_tensor('edges', edges, torch.int64, (2, 'num_edges'))
    rows = edges[1] if directed else edges.reshape(-1)
    return float(removal.edge_shift(rows.cpu().numpy()))
