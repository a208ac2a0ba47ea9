r"""Bound the epsilon at which a private release has forgotten items.

Let :math:`M` be a Gaussian release, :math:`K` data that were fixed *without
looking at it*, and :math:`D - K` the data with the records of :math:`K` blank.
Nothing has to be done to the weights: :math:`M(D)` and :math:`M(D - K)` can't
be told apart better than :math:`\mathcal{N}(0, 1)` and :math:`\mathcal{N}(\mu,
1)`, where :math:`\mu` is how far :math:`K` moves what is released, over the
noise (group privacy; `Dong, Roth and Su 2022, Theorem 2.14
<https://arxiv.org/abs/1905.02383>`_). The reference is the same mechanism with
the same public settings: masks, steps, noise, number of nodes. :math:`k` units
have :math:`k \mu`, which is more than :math:`k \epsilon`: one person at 1 is
2.15 for two, and 14.4 for ten (:math:`\delta = 10^{-5}`).

**A person is more than a record.** Under ``'node'`` a record holds a node's
own list :math:`L_v`, but lists of others name it, too. Erased completely, it
leaves them, and their weights change. Where rows of :math:`K` are deleted,
sums move by at most

.. math::
    \kappa(K) = |K| \sqrt D + \sum_{w \notin K,\, 0 < j_w < d_w}
    \sqrt{d_w - j_w} \left( c(d_w - j_w) - c(d_w) \right), \quad
    c(d) = \min(1, \sqrt{D / d}),

with :math:`d_w = |L_w|` and :math:`j_w = |L_w \cap K|`. *Proof:* the columns
of :math:`K` have norms up to :math:`\sqrt D`; of each other list :math:`d_w -
j_w` rows are left, whose weight rises from :math:`c(d_w)` to :math:`c(d_w -
j_w)`; then the triangle inequality. For :math:`D = 1` a list adds :math:`1 -
\sqrt{(d_w - j_w) / d_w}`. Rows of :math:`K` *have* to be deleted: kept, they
show every list that named their node.

:math:`1 - \sqrt{1 - x}` is convex, so the parts of single people on one graph
do not add up to that of all. One after the other they do, each on the lists
that the ones before have left, as :math:`1 - ab \le (1 - a) + (1 - b)`.

**Edges** are less than their number: rows are moved by different ones. With
:math:`j_r` of them at row :math:`r`, sums move by :math:`\sqrt{\sum_r j_r^2}`
(attained where messages agree), and one edge by :math:`\sqrt 2`.
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
