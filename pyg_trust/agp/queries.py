"""AGP and pruned pushes for many sparse signals at once."""

from typing import Annotated

import torch
from torch import Tensor

from pyg_trust import ops, rng
from pyg_trust._checks import (
    Natural,
    NotNegative,
    OneOf,
    check_non_negative,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import check_real
from pyg_trust.agp.checks import (
    check_device,
    check_overflow,
    prepare_graph,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import push_levels
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph._building import row_of_entries

__all__ = ['prune_bound', 'query']

METHODS = ('sample', 'prune')


@validated
def query(
    graph: CSRGraph,
    signals: Tensor,
    measure: Measure,
    *,
    eps: NotNegative,
    method: Annotated[str, OneOf(METHODS)] = 'sample',
    seed: int | None = None,
    top_k: Natural | None = None,
    threshold: NotNegative = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""Propagate from each of many nodes, for example its PageRank.

    Each query computes :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x` for one
    sparse signal :math:`x`, with the adjacency matrix :math:`A` and the
    degrees :math:`D`. It reads about :math:`1/\varepsilon` edges, not the
    whole graph. The same seed gives the same result for any number of threads.
    Queries run on the CPU; a graph on a GPU is copied there.

    With the method :obj:`'sample'`, messages that are small (relative to
    :math:`\varepsilon`) are sampled: the result is unbiased, with the variance
    of :func:`~pyg_trust.agp.variance_bound`. With :obj:`'prune'` they are left
    out: messages from node :math:`u` below :math:`\varepsilon \lVert x
    \rVert_1 d_u^b`. In the same time, sampling has the smaller absolute error,
    and pruning the smaller error relative to :math:`d_v^b`.

    Args:
        graph (CSRGraph): the graph, unweighted.
        signals (Tensor): nodes, int64, ``[num_queries]``, each for the signal
            that is 1 at the node and 0 elsewhere; or the signals themselves,
            the rows of a sparse CSR matrix, ``[num_queries, num_nodes]``,
            float32 or float64.
        measure (Measure): the weights :math:`w` and exponents :math:`a, b`.
        eps (float): :math:`\varepsilon`, relative to each signal's L1 norm; 0
            for the exact result.
        method (str): :obj:`'sample'` or :obj:`'prune'`.
        seed (int, optional): the seed of sampling; by default drawn from
            torch's default generator. (default: :obj:`None`)
        top_k (int, optional): how many entries of each result are kept, the
            largest in magnitude; by default all. (default: :obj:`None`)
        threshold (float): entries of at most this magnitude are dropped.
        dtype (torch.dtype): the dtype of the result, float32 or float64, for
            nodes as signals; a matrix of signals keeps its own dtype.

    Returns:
        Tensor: a sparse CSR matrix, ``[num_queries, num_nodes]``, with row
        :math:`k` the result for signal :math:`k`.
    """
    graph = prepare_graph(graph, measure)
    device = graph.device
    parts = _sparse_signals(signals, graph, dtype)
    ptr, node, value = (part.cpu() for part in parts)
    graph = graph.to('cpu')
    seed = rng.resolve(seed) if method == 'sample' else 0
    total, ratio, keep = push_levels(measure)
    count = ptr.numel() - 1
    row = row_of_entries(ptr)
    size = torch.zeros(count, dtype=torch.float64)
    size = eps * size.index_add_(0, row, value.abs().double())
    # A norm may overflow: the largest number is quantum enough, and no bound
    # at all for eps=0 (0 * infinity).
    size = size.to(value.dtype).nan_to_num(0.0)
    none = torch.zeros_like(size)
    quantum, bound = (size, none) if method == 'sample' else (none, size)
    ptr, node, value = ops.push_sparse(
        graph.push_graph(measure.a, value.dtype, measure.along),
        graph.degree_power(-measure.b, value.dtype),
        ptr,
        node,
        value,
        quantum,
        bound,
        ratio,
        keep,
        seed,
        top_k=-1 if top_k is None else top_k,
        threshold=threshold / total,
    )
    value = value * total
    check_overflow(value, measure)
    ptr, node, value = (part.to(device) for part in (ptr, node, value))
    return sparse_rows(ptr, node, value, (count, graph.num_nodes))


def _sparse_signals(
    signals: Tensor, graph: CSRGraph, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    check_real('dtype', dtype)
    if isinstance(signals, Tensor) and signals.layout == torch.sparse_csr:
        check_real('signals', signals.dtype)
        if signals.dim() != 2 or signals.size(1) != graph.num_nodes:
            raise ValueError(
                "'signals' needs to have the shape [num_queries, "
                f'{graph.num_nodes}] (got {list(signals.shape)})'
            )
        ptr, node = signals.crow_indices(), signals.col_indices()
        ptr, node, value = ptr.long(), node.long(), signals.values()
        check_tensor('signals', value, None, ('num',), finite=True)
    else:
        check_tensor('signals', signals, torch.int64, ('num_queries',))
        ptr = torch.arange(signals.numel() + 1, device=signals.device)
        node, value = signals, torch.ones_like(signals, dtype=dtype)
    check_device('signals', node, graph)
    check_range('signals', node, graph.num_nodes, 'the nodes')
    return ptr, node, value


def prune_bound(graph: CSRGraph, measure: Measure, eps: float) -> Tensor:
    r"""Bound the error of a pruned query, for a signal of L1 norm one.

    .. math::
        |\hat{z}(v) - z(v)| \le \varepsilon\, W \sum_{i<L}
        \frac{Y_{i+1}}{Y_i}\, d_v^b \le \varepsilon\, W L\, d_v^b

    Args:
        graph (CSRGraph): an undirected graph.
        measure (Measure): with :math:`a + b \ge 1`.
        eps (float): the threshold of :func:`query`.

    Returns:
        Tensor: float64, ``[num_nodes]``.


    """
    graph = prepare_graph(graph, measure)
    eps = check_non_negative('eps', eps)
    if (
        not graph.is_undirected
        or measure.a + measure.b < 1
        or measure.shrink > 1
    ):
        raise ValueError(
            "'graph' needs to be undirected and 'measure' to have a + b >= 1 "
            f'(got {measure} on '
            f'{"an undirected" if graph.is_undirected else "a directed"} '
            'graph): no bound is known otherwise'
        )
    total, ratio, _ = push_levels(measure)
    scale = eps * total * float(ratio.sum())
    return scale * graph.degree_power(measure.b, torch.float64)
