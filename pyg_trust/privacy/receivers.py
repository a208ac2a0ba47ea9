r"""Receivers: shorter lists, same noise, larger signal.

Under the relation ``'node'`` a node sends its message to its own list. Cut to
a *public* set of receivers, with weights renewed, the bound of whole lists
holds, and the signal is larger; :doc:`/theory/private_aggregation` has the
proof. Who trains is public in these relations: sets that read records have no
such bound.
"""

import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import Rate, check_tensor, validated
from pyg_trust.graph import CSRGraph

__all__ = ['choose_receivers', 'received_lists']

# The public key of the hash that chooses receivers.
_KEY = 0


@validated
def choose_receivers(train: Tensor, share: Rate) -> Tensor:
    r"""Choose all nodes that don't train, and a share of those that do.

    .. math::
        R = \{v : v \text{ does not train, or } h(v) < \text{share}\}

    with a fixed hash :math:`h` of ids into :math:`[0, 1)`. Whether :math:`v`
    is in it depends on its id and on whether :math:`v` trains, which are
    public: not on other nodes, their number, or any record.

    Args:
        train (Tensor): bool, ``[num_nodes]``: which nodes train.
        share (float): in :math:`(0, 1]`.

    Returns:
        Tensor: bool, ``[num_nodes]``, on the CPU.

    Example:
        >>> choose_receivers(torch.tensor([True, False, True]), 1.0)
        tensor([True, True, True])
    """
    check_tensor('train', train, torch.bool, ('num_nodes',))
    ids = torch.arange(train.numel())
    drawn = (rng.derive_each(_KEY, ids) >> 10).double() / 2**53
    return ~train.cpu() | (drawn < share)


@validated
def received_lists(graph: CSRGraph, receivers: Tensor) -> CSRGraph:
    r"""Return each node's list :math:`L_v \cap R`, receivers alone.

    Take :func:`~pyg_trust.privacy.propagation.energy_weights` of the result,
    in :func:`~pyg_trust.privacy.private_propagate`.

    Args:
        graph (CSRGraph): rows are own lists; unweighted.
        receivers (Tensor): bool, ``[num_nodes]``: :math:`R`, public.

    Returns:
        CSRGraph: of arcs, with as many nodes.
    """
    check_tensor('receivers', receivers, torch.bool, (graph.num_nodes,))
    if graph.is_weighted:
        raise ValueError("'graph' needs to be unweighted")
    edges, _ = graph.to_edge_index()
    kept = receivers.to(edges.device)[edges[1]]
    return CSRGraph.from_edge_index(edges[:, kept], graph.num_nodes)
