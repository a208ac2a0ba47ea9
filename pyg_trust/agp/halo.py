r"""Exact propagation of a graph whose rows are spread over processes.

Every process has some consecutive nodes: their rows of the graph and of the
features. To compute its rows of a level it needs, from the others, the rows of
the nodes that its own receive from: its *halo*. One ``all_to_all`` a level
brings them. Rows are summed by the inner loop of :func:`.propagate`, entry
after entry in the same order, so that results have the same bits for any
number of processes.
"""

import itertools
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_range,
    check_tensor,
)
from pyg_trust.agp.checks import (
    check_finite_signal,
    check_overflow,
    check_shrink,
    check_weights,
    known_norms,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.distributed import (
    check_same,
    from_first,
    rank_and_size,
    run_over_ranks,
)
from pyg_trust.graph._building import row_of_entries

__all__ = ['HaloGraph', 'propagate_halo']


class HaloGraph(NamedTuple):
    """Rows of consecutive nodes of an undirected graph.

    Args:
        rowptr (Tensor): int64, ``[num_own + 1]``.
        col (Tensor): int64, ``[num_entries]``: neighbours, as the whole
            graph numbers them, ascending in every row.
        start (int): the node of the first row.
        num_nodes (int): the number of nodes of the whole graph.
    """

    rowptr: Tensor
    col: Tensor
    start: int
    num_nodes: int


class _Exchange:
    # The rows that each process sends to each other one, exchanged once.
    def __init__(self, graph: HaloGraph, measure: Measure) -> None:
        self.rank, self.size = rank_and_size()
        own = graph.rowptr.numel() - 1
        ranges = run_over_ranks(
            range(self.size), lambda _: (graph.start, graph.start + own)
        )
        ends = [0, *(end for _, end in ranges)]
        if ends[-1] != graph.num_nodes or any(
            first != before
            for (first, _), before in zip(ranges, ends, strict=False)
        ):
            raise ValueError(
                "'graph' needs parts that follow each other, rank by rank, "
                f'over all {graph.num_nodes} nodes (got {ranges})'
            )
        _check_whole(graph, measure)
        strange = (graph.col < graph.start) | (graph.col >= graph.start + own)
        self.halo = graph.col[strange].unique()
        place = torch.searchsorted(self.halo, graph.col[strange]) + own
        local = graph.col - graph.start
        local[strange] = place
        # The halo: nodes whose rows another process has.
        zeros = torch.zeros(self.halo.numel(), dtype=torch.int64)
        self.rows = ops.OpenRows(
            torch.cat([graph.rowptr[:-1], zeros]),
            torch.cat([graph.rowptr.diff(), zeros]),
            local.to(torch.int32),
        )
        borders = torch.tensor(ends)
        cuts = torch.searchsorted(self.halo, borders)
        self.wanted = cuts.diff().tolist()
        asked = [self.halo[i:j] for i, j in itertools.pairwise(cuts)]
        given = run_over_ranks(range(self.size), lambda _: asked)
        lists = [given[other][self.rank] for other in range(self.size)]
        self.sent = [each.numel() for each in lists]
        self.send = torch.cat(lists) - graph.start

    def __call__(self, own: Tensor) -> Tensor:
        # The rows of the halo, below those of this process.
        if self.size == 1:
            return own
        halo = own.new_empty(self.halo.numel(), *own.shape[1:])
        dist.all_to_all_single(
            halo, own[self.send].contiguous(), self.wanted, self.sent
        )
        return torch.cat([own, halo])


def _check(graph: HaloGraph, x: Tensor, measure: Measure) -> None:
    check_instance('graph', graph, HaloGraph)
    check_instance('measure', measure, Measure)
    check_tensor('graph', graph.rowptr, torch.int64, ('num_own + 1',))
    check_tensor('graph', graph.col, torch.int64, ('num_entries',))
    check_integer('graph', graph.start, 0)
    check_integer('graph', graph.num_nodes, 1, 2**31 - 1)
    own = graph.rowptr.numel() - 1
    _check_rows(graph)
    check_tensor('x', x, (torch.float32, torch.float64), (own, 'num_columns'))
    check_finite_signal(x)
    check_shrink(measure, x.dtype)

    def norms() -> list[float]:
        # No process has the whole graph, from which the growth of powers
        # follows. At its own radius, the powers of a Katz measure do not grow.
        levels = measure.K + 1
        radius = measure.spectral_radius or math.inf
        if measure.shrink * radius <= 1 + 1e-9:
            return [1.0] * levels
        return known_norms(measure, True) or [math.inf] * levels

    check_weights(measure, x.dtype, norms)


def _check_rows(graph: HaloGraph) -> None:
    rowptr, col = graph.rowptr, graph.col
    if (
        rowptr.numel() == 0
        or int(rowptr[0]) != 0
        or int(rowptr[-1]) != col.numel()
        or bool((rowptr.diff() < 0).any())
    ):
        raise ValueError(
            "'graph' needs a 'rowptr' that ascends from 0 to the number of "
            f"entries of 'col', {col.numel()}"
        )
    check_range('graph', col, graph.num_nodes, "the nodes, in 'col'")
    row = row_of_entries(rowptr)
    if bool(((row.diff() == 0) & (col.diff() < 0)).any()):
        raise ValueError("'graph' needs to be ascending in every row")


def _mixed(value: Tensor, key: int) -> Tensor:
    # A bijection of 64 bits that depends on the key (SplitMix64's steps).
    value = value * -7046029254386353131 + key
    value = (value ^ ((value >> 30) & (2**34 - 1))) * -4658895280553007687
    value = (value ^ ((value >> 27) & (2**37 - 1))) * -7723592293110705685
    return value ^ ((value >> 31) & (2**33 - 1))


def _check_whole(graph: HaloGraph, measure: Measure) -> None:
    # If every pair has as many entries (u, v) as (v, u), the sums of their
    # keyed hashes are equal, and otherwise for about one key in 2^64. No
    # process sees the entries of another.
    keys = from_first(lambda: [secrets.randbits(62) for _ in range(2)])
    row = graph.start + row_of_entries(graph.rowptr)
    out = _mixed(_mixed(row, keys[0]) ^ graph.col, keys[1]).sum()
    back = _mixed(_mixed(graph.col, keys[0]) ^ row, keys[1]).sum()
    loops = row[row == graph.col].unique().numel()
    bare = measure.self_loops and loops < graph.rowptr.numel() - 1
    sums = run_over_ranks(
        range(rank_and_size()[1]), lambda _: (int(out - back), bare)
    )
    if sum(difference for difference, _ in sums) % 2**64:
        raise ValueError(
            "'graph' needs to be undirected: the parts of the processes list "
            'edges that the others do not list in return'
        )
    if any(bare for _, bare in sums):
        raise ValueError(
            f"'graph' needs a self-loop at every node for 'measure' {measure}"
        )


def propagate_halo(graph: HaloGraph, x: Tensor, measure: Measure) -> Tensor:
    r"""Propagate features on a graph that is divided over processes.

    Each process of torch.distributed holds the rows of consecutive nodes. All
    call it together, and each gets its own rows of :math:`z = \sum_i w_i
    (D^{-a} A D^{-b})^i x`. In each hop a process receives the rows of those
    neighbours that other processes hold. These are fewer if the nodes are
    ordered by the parts of a clustering, such as METIS.

    Args:
        graph (HaloGraph): this process's rows of an undirected graph, made by
            ``HaloGraph(rowptr, col, start, num_nodes)``: where rows begin and
            the neighbours in them, as int64; the first node of this process;
            the number of nodes of the whole graph. If the measure has
            self-loops, add them.
        x (Tensor): the features of these rows: float32 or float64,
            ``[num_own, num_columns]``.
        measure (Measure): the weights :math:`w` and exponents :math:`a, b`.

    Returns:
        Tensor: these rows of :math:`z`, in the shape and dtype of :obj:`x`.

    Example:
        >>> from pyg_trust.agp import ppr
        >>> rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
        >>> path = HaloGraph(rowptr, col, 0, 2)
        >>> z = propagate_halo(path, torch.eye(2), ppr(alpha=0.5))
        >>> (z - torch.tensor([[2, 1], [1, 2]]) / 3).abs().max() < 1e-3
        tensor(True)
    """
    failed = None
    try:
        _check(graph, x, measure)
    except Exception as error:
        failed = error
    same = {}
    if failed is None:
        same = {
            'measure': measure.key,
            'num_nodes': graph.num_nodes,
            'x': (str(x.dtype), x.size(1)),
        }
    check_same(same, failed)
    exchange = _Exchange(graph, measure)
    own = graph.rowptr.numel() - 1
    degree = graph.rowptr.diff()

    def power(exponent: float) -> Tensor:
        scale = degree.double().pow(exponent)
        if exponent != 0:
            scale[degree == 0] = 0
        return scale.to(x.dtype)

    recv, send = power(-measure.a), power(-measure.b)
    weights: Sequence[float] = measure.weights
    if measure.shrink != 1:
        # As in propagate: rounded, and the weights make up for it.
        shrink = torch.tensor(measure.shrink, dtype=x.dtype)
        recv = recv * shrink
        off = measure.shrink / float(shrink)
        weights = [w * off**i for i, w in enumerate(weights)]
    levels = len(weights) - 1
    while levels > 0 and weights[levels] == 0:
        levels -= 1
    if levels == 0:
        return weights[0] * x
    more = exchange.rows.start.numel() - own
    recv_all = torch.cat([recv, recv.new_zeros(more)])
    ones = torch.ones_like(recv_all)
    nodes = torch.arange(own)
    y = send[:, None] * (_number(weights[levels], x) * x)
    for level in range(levels - 1, -1, -1):
        u = torch.empty(own + more, x.size(1), dtype=x.dtype)
        ops.pull_rows(exchange.rows, nodes, exchange(y), recv_all, ones, out=u)
        u = u[:own]
        if weights[level] != 0:
            u = _number(weights[level], x) * x + u
        y = u if level == 0 else u * send[:, None]
    check_overflow(y, measure)
    return y


def _number(weight: float, x: Tensor) -> Tensor:
    return torch.tensor(weight, dtype=x.dtype)
