r"""Receivers: shorter lists, same noise, larger signal.

Under the relation ``'node'`` (:mod:`pyg_trust.privacy.propagation`)
the record of :math:`v` sends its message to its own list :math:`L_v` with
weights whose squares sum to at most :math:`D`, by default 1. A node that
trains has a label, so that a prediction for it tells nothing new, but it takes
its part of that energy. Let :math:`R` be a **public** set of *receivers*. With
:func:`~pyg_trust.privacy.propagation.energy_weights` of the lists
:math:`L_v \cap R` (:func:`received_lists`),

.. math::
    W_{wv} = \min\Big(1, \sqrt{D / |L_v \cap R|}\Big)
    \text{ for } w \in L_v \cap R, \text{ else } 0, \qquad
    \|W_{\cdot v} m_v^\top\|_F^2 = \min(|L_v \cap R|, D)\, \|m_v\|^2 \le D:

the weights are renewed, so the bound is that of whole lists, attained by every
list that has a receiver (for :math:`D = 1`: exactly 1), and not a smaller one.

- *Withdrawn*, :math:`v` takes column :math:`v` away and nothing else: the
  weight :math:`W_{wu}` of another node reads :math:`L_u` and :math:`R`, also
  if :math:`u` names :math:`v` or shares neighbours with it. :math:`v` stays in
  :math:`R`, or outside, as its id stays. The sums move by at most
  :math:`\sqrt{D}`.
- *Replaced*, it moves them by the norm of a difference of two such columns,
  at most :math:`2 \sqrt{D}`; with messages of classes the product of two
  weights is not negative here either, so :math:`\sqrt{2 D C / (C - 1)}` holds.
- *An edge*, for :math:`D = 1`: an arc into :math:`R` is one entry less of
  :math:`L_v \cap R`, one to elsewhere moves nothing. So the bounds of an arc
  and of an undirected edge hold with :math:`d_v = |L_v \cap R|`.

The energy that others had goes to the receivers, whose signal is larger by
:math:`\sqrt{|L_v| / |L_v \cap R|}` for every message, and the noise is the
same. Rows outside of :math:`R` are noise, and hold nothing.

:math:`R` **has to be public**, as who trains is in these relations: if
:math:`v`'s record could move :math:`v` (or, worse, others) in or out of
:math:`R`, the weights of all who name it would move, and there is no bound.
Sets that read records, such as the nodes of many neighbours, are not allowed.
:func:`choose_receivers` reads the mask and ids.
"""

import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import Rate, check_tensor, validated
from pyg_trust.graph import CSRGraph

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

    Take :func:`~pyg_trust.privacy.propagation.energy_weights` of
    the result, in
    :func:`~pyg_trust.privacy.private_propagate`; the module has the proof.

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
