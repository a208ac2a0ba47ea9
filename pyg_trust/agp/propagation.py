"""Exact and randomized graph propagation, with its error bounds.

The algorithms are those of "Approximate Graph Propagation" (Wang et al. 2021).
Estimates are unbiased for every signal, and their variance is bounded.
See docs/theory/propagation.rst.
"""

import inspect
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust import ops, rng
from pyg_trust._checks import check_nodes, check_non_negative, is_finite
from pyg_trust.agp._exact_blocks import exact_blocks
from pyg_trust.agp.checks import (
    How,
    check_device,
    check_finite_signal,
    check_half,
    check_how,
    check_overflow,
    check_shrink,
    check_signal,
    check_weights,
    known_norms,
    power_norms,
    prepare_exact,
    prepare_loops,
    values_of,
)
from pyg_trust.agp.linear import LinearMap
from pyg_trust.agp.measures import Measure, chebyshev
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph._building import own_loops, row_of_entries

__all__ = ['propagate']

# A level of a block is pushed if that is expected to cost less than so much of
# an exact level: blocks share the memory that an exact level reads, and one
# that goes its own way leaves more of it to the others (benchmarks/push.py).
PULL_ABOVE = 0.25


def propagate(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    *,
    eps: float = 0.0,
    seed: int | None = None,
    force_push: bool = False,
    half: bool = False,
    tol: float = 0.0,
    rows: Tensor | None = None,
) -> Tensor:
    r"""Compute :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x`.

    :math:`A` is the adjacency matrix and :math:`D` the degree matrix. With
    ``eps=0`` the result is exact. Otherwise it is an unbiased estimate, whose
    variance :func:`variance_bound` bounds. An estimate is faster for sparse
    signals, if errors of several percent are acceptable. The result does not
    depend on the number of threads, and is differentiable in :obj:`x`.

    With ``eps=0`` it runs under :func:`torch.compile` and
    :func:`torch.export.export`, if it has run on the same graph before.
    NaN and overflow are not checked there.

    Args:
        graph (CSRGraph): the graph, unweighted.
        x (Tensor): the signals :math:`x`: float32 or float64, ``[num_nodes]``
            or ``[num_nodes, num_columns]``, also as a sparse CSR matrix.
        measure (Measure): the weights :math:`w` and exponents :math:`a, b`.
        eps (float): messages below this share of a column's L1 norm are
            sampled; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed of an estimate; by default drawn from
            torch's generator. (default: :obj:`None`)
        force_push (bool): whether a hop is sampled even if its exact product
            is expected to be faster. (default: :obj:`False`)
        half (bool): whether the exact hops of float32 signals are kept in
            float16, which is faster and has a relative error of up to
            :math:`2^{-11}` a hop. (default: :obj:`False`)
        tol (float): the error that computing fewer hops may add: at most
            :obj:`tol` :math:`\sum_i w_i \lVert x \rVert` in the norm
            :math:`\lVert D^{a-1/2} \cdot \rVert_F`. Above 0 it needs :math:`a
            + b = 1` and an undirected graph. (default: :obj:`0.0`)
        rows (Tensor, optional): the nodes whose rows of :math:`z` are
            returned, int64 indices or a bool mask; by default all.

    Returns:
        Tensor: :math:`z`, dense, of the shape and dtype of :obj:`x`, or only
        the given :obj:`rows` of it.

    Example:
        >>> from pyg_trust.agp import sgc
        >>> path = torch.tensor([[0, 1], [1, 0]])
        >>> graph = CSRGraph.from_edge_index(path, num_nodes=2)
        >>> propagate(graph, torch.eye(2), sgc(1))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    return propagate_rows(
        *(graph, x, measure, rows),
        How(check_non_negative('eps', eps), seed, force_push, half, tol),
    )


def propagate_rows(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    rows: Tensor | None,
    how: How,
) -> Tensor:
    """Run :func:`propagate` with its options in one tuple."""
    if torch.compiler.is_compiling() and how.eps == 0:
        columns = x.view(-1, 1) if x.dim() == 1 else x
        z = _traced(columns, graph, measure, how)
        z = z if rows is None else z[rows]
        return z.view(-1) if x.dim() == 1 else z
    return _eager(x, graph, measure, rows, how)


@torch.compiler.disable
def _eager(
    x: Tensor,
    given: CSRGraph,
    measure: Measure,
    rows: Tensor | None,
    how: How,
) -> Tensor:
    graph, loops = prepare_exact(given, measure, how)
    how = how._replace(loops=loops)
    check_signal(x, graph)
    check_how(how, x, graph, measure)
    if rows is not None:
        rows = check_nodes('rows', rows, graph.num_nodes)
        check_device('rows', rows, graph)
    if how.check and how.eps != 0:
        check_finite_signal(x)
    # Exact propagation leaves the generator alone.
    how = how._replace(seed=0 if how.eps == 0 else rng.resolve(how.seed))
    entries, values = None, x.view(-1, 1) if x.dim() == 1 else x
    if x.layout == torch.sparse_csr and how.eps == 0:
        ptr, column, _, width = ops.sparse_parts(x)
        entries, values = Entries(ptr, column, width), x.values()
    elif x.layout == torch.sparse_csr:
        values = x.to_dense()
    z = _Propagate.apply(values, entries, graph, measure, rows, how)
    if how.eps == 0:
        given._cache[_known_as(measure, x.dtype, how)] = True
    return z.view(-1) if x.dim() == 1 else z


class Entries(NamedTuple):
    """Positions of the values of a sparse signal, as torch has them in CSR."""

    ptr: Tensor
    column: Tensor
    width: int


class _Propagate(LinearMap):
    # Linear in x (an estimate in its expectation): the derivative in the
    # direction of t is the propagation of t.
    @staticmethod
    def forward(
        x: Tensor,
        entries: Entries | None,
        graph: CSRGraph,
        measure: Measure,
        rows: Tensor | None,
        how: How,
    ) -> Tensor:
        signal = x
        if entries is not None:
            size = (graph.num_nodes, entries.width)
            signal = sparse_rows(entries.ptr, entries.column, x, size)
        if how.eps == 0:
            return exact_checked(graph, signal, measure, how, rows)
        z = _randomized(graph, signal, measure, how)
        z = z if rows is None else z[rows]
        if how.check:
            check_overflow(z, measure)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        entries, graph, measure, rows, how = ctx.arguments
        how = how._replace(seed=rng.derive(how.seed, 1), check=False)
        grad = grads[0]
        if rows is not None:
            zeros = grad.new_zeros(graph.num_nodes, grad.size(1))
            grad = zeros.index_add(0, rows, grad)
        z = _Propagate.again(grad, None, graph, measure.adjoint(), None, how)
        if entries is not None:
            z = z[row_of_entries(entries.ptr), entries.column]
        return z, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        entries, graph, measure, rows, how = ctx.arguments
        how = how._replace(seed=rng.derive(how.seed, 2), check=False)
        return _Propagate.again(
            tangents[0], entries, graph, measure, rows, how
        )

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple, *inputs: Any) -> tuple:
        if inputs[1] is not None:
            raise ValueError("'x' needs to be dense under vmap")
        return super().vmap(info, in_dims, *inputs)


# torch asks for it in every call, and it takes long to find.
_Propagate.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _Propagate.forward
)


def operator_of(
    graph: CSRGraph, measure: Measure, dtype: torch.dtype, how: How
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return R, S, the weights, and whether they are of Chebyshev terms."""
    key = ('operator', how.loops, _key_of(measure, dtype, how.tol))
    if key not in graph._cache:
        graph._cache[key] = _make_operator(
            graph, measure, dtype, how.tol, how.loops
        )
    return graph._cache[key]


def _key_of(measure: Measure, dtype: torch.dtype, tol: float) -> str:
    return f'{measure.key} {dtype} {tol}'


def _known_as(measure: Measure, dtype: torch.dtype, how: How) -> str:
    # The cache key of a propagation that was checked before.
    return f'{_key_of(measure, dtype, how.tol)} {how.half}'


def _make_operator(
    graph: CSRGraph,
    measure: Measure,
    dtype: torch.dtype,
    tol: float,
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    recv = graph.degree_power(-measure.a, dtype, loops)
    send = graph.degree_power(-measure.b, dtype, loops)
    weights, three_term = measure.weights, False
    if tol > 0:
        fewer = chebyshev(measure, tol)
        if fewer.K < measure.K:
            weights, three_term = fewer.coefficients, True
    if measure.shrink != 1:
        check_shrink(measure, dtype)
        # Use the rounded factor; the weights make up for the rounding.
        shrink = torch.tensor(measure.shrink, dtype=dtype)
        recv = recv * shrink
        if not three_term:
            off = measure.shrink / float(shrink)
            weights = tuple(w * off**i for i, w in enumerate(weights))
    check_weights(
        measure, dtype, lambda: _powers(graph, measure, recv * send, loops)
    )
    return recv, send, torch.tensor(weights, dtype=torch.float64), three_term


def _powers(
    graph: CSRGraph, measure: Measure, ends: Tensor, loops: bool
) -> list[float]:
    # Norms of S R B, where R has the diagonal `ends`.
    known = known_norms(measure, graph.is_undirected)
    if known is not None:
        return known
    rows = graph.receivers(measure.along)
    return power_norms(*rows, ends, measure.K, loops)


def check_half_levels(
    graph: CSRGraph, measure: Measure, dtype: torch.dtype, how: How
) -> None:
    """Refuse a measure whose levels would leave the range of float16."""
    key = ('fits half', how.loops, _key_of(measure, dtype, how.tol))
    recv, send, weights, three_term = operator_of(graph, measure, dtype, how)
    if three_term or key in graph._cache:
        return
    norms = _powers(graph, measure, recv * send, how.loops)
    room = _room(graph, measure, dtype, how)
    check_half(measure, weights, room, norms)
    graph._cache[key] = True


def _room(
    graph: CSRGraph, measure: Measure, dtype: torch.dtype, how: How
) -> float:
    # The factor that float16 levels are scaled down by.
    key = ('room', how.loops, _key_of(measure, dtype, how.tol))
    if key not in graph._cache:
        recv, send, weights, three = operator_of(graph, measure, dtype, how)
        sizes = _row_sizes(*graph.receivers(measure.along), how.loops)
        graph._cache[key] = _growth(sizes, recv * send, weights, three)
    return graph._cache[key]


def exact_checked(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    how: How,
    rows: Tensor | None = None,
    in_place: bool = False,
) -> Tensor:
    """Propagate exactly; refuse input that is not finite, and overflow."""
    if how.check:
        check_finite_signal(x)
    # Layers pass NaN on, but a float16 that overflows is an error there too.
    asked = how.check or (how.half and is_finite(values_of(x)))
    z = _exact(graph, x, measure, how, rows, in_place)
    if asked:
        check_overflow(z, measure, how.half)
    return z


def _exact(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    how: How,
    rows: Tensor | None = None,
    in_place: bool = False,
) -> Tensor:
    recv, send, weights, three_term = operator_of(graph, measure, x.dtype, how)
    scale = None
    if how.half:
        check_half_levels(graph, measure, x.dtype, how)
        room = _room(graph, measure, x.dtype, how)
        scale = half_scale(_largest(x) * (send.max() * room))
    return ops.propagate(
        *(*graph.receivers(measure.along), x, recv, send, weights),
        *(how.half, scale, three_term, rows, how.loops, in_place),
    )


def _largest(x: Tensor) -> Tensor:
    # The largest magnitude in every column.
    if x.layout == torch.sparse_csr:
        # An entry that is there twice is added up.
        row = row_of_entries(x.crow_indices())
        key = row * x.size(1) + x.col_indices()
        keys, same = key.unique(return_inverse=True)
        size = x.values().new_zeros(keys.numel())
        size.index_add_(0, same, x.values().abs())
        zeros = size.new_zeros(x.size(1))
        return zeros.scatter_reduce_(0, keys % x.size(1), size, 'amax')
    if x.size(0) == 0:
        return x.new_zeros(x.size(1))
    if (
        x.device.type == 'cpu'
        and x.dtype == torch.float32
        and x.is_contiguous()
    ):
        return torch.ops.pyg_trust.column_magnitudes(x.detach())
    return torch.maximum(x.amax(0), -x.amin(0))


def _row_sizes(rowptr: Tensor, col: Tensor, loops: bool) -> Tensor:
    # The entries of each row, with those that the kernels add.
    sizes = rowptr.diff()
    if loops:
        sizes += ~own_loops(rowptr, col)
    return sizes


def _growth(
    sizes: Tensor, ends: Tensor, weights: Tensor, three_term: bool
) -> float:
    # What is stored is y_i = sum_{k >= i} w_k (S R B)^(k - i) S x: at most so
    # many times the largest entry of S x, by the largest sum of a row of S R
    # B. For Chebyshev polynomials the sizes in the mean, sum_{j >= i} (j - i +
    # 1) |c_j|, as |U_j| <= j + 1. Beyond 2^8 precision is worth more: what
    # overflows float16 then shows in z, and is refused.
    size = weights.abs().tolist()
    top = tail = slope = 0.0
    if three_term:
        for w in reversed(size):
            tail += w
            slope += tail
            top = max(top, slope)
    else:
        sums = sizes * ends.double()
        largest = max(1.0, float(sums.max())) * (1 + 1e-5)
        for w in reversed(size):
            tail = w + largest * tail
            top = max(top, tail)
    return min(top, 256.0 * max(size))


def half_scale(largest: Tensor) -> Tensor:
    """Return the power of two that brings each number into [2^13, 2^14]."""
    exponent = torch.frexp(largest).exponent.clamp(-112, 126)
    known = largest.isfinite() & (largest > 0)
    return torch.where(
        known, torch.ldexp(torch.ones_like(largest), 14 - exponent), 1.0
    )


def _traced(x: Tensor, given: CSRGraph, measure: Measure, how: How) -> Tensor:
    # Everything that depends on the data is cached since the first call.
    if _known_as(measure, x.dtype, how) not in given._cache:
        raise ValueError(
            "'graph' needs to be propagated on once with this measure, dtype "
            "and 'half' before it is compiled or exported"
        )
    graph, loops = prepare_loops(given, measure)
    recv, send, weights, three_term = operator_of(
        graph, measure, x.dtype, how._replace(loops=loops)
    )
    if x.layout != torch.strided:
        x = x.to_dense()
    return propagate_exactly(
        x,
        *graph.receivers(measure.along),
        *graph.receivers(not measure.along),
        *(recv, send, weights, how.half, three_term, loops),
    )


@torch.library.custom_op('pyg_trust::propagate_exactly', mutates_args=())
def propagate_exactly(
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    back_rowptr: Tensor,
    back_col: Tensor,
    recv: Tensor,
    send: Tensor,
    weights: Tensor,
    half: bool,
    three_term: bool,
    loops: bool = False,
) -> Tensor:
    """Run :func:`pyg_trust.ops.propagate` and its gradient as one op."""
    scale = None
    if half:
        sizes = _row_sizes(rowptr, col, loops)
        room = _growth(sizes, recv * send, weights, three_term)
        scale = half_scale(_largest(x) * (send.max() * room))
    return ops.propagate(
        *(rowptr, col, x, recv, send),
        *(weights, half, scale, three_term),
        loops=loops,
    )


@propagate_exactly.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _keep_operator(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:8])
    ctx.rest = inputs[8:]


def _pass_back(ctx: Any, grad: Tensor) -> tuple:
    rowptr, col, back_rowptr, back_col, recv, send, *rest = ctx.saved_tensors
    x = propagate_exactly(
        *(grad, back_rowptr, back_col, rowptr, col, send, recv),
        *(*rest, *ctx.rest),
    )
    return (x, *(None,) * 10)


propagate_exactly.register_autograd(_pass_back, setup_context=_keep_operator)


def _randomized(
    graph: CSRGraph, x: Tensor, measure: Measure, how: How
) -> Tensor:
    above = math.inf if how.force_push else PULL_ABOVE
    levels = push_levels(measure)
    whole = exact_blocks(graph, x, measure, how.eps, levels[1], above)
    if whole and all(whole):
        return _exact(graph, x, measure, How())
    if not any(whole):
        return _pushed(graph, x, measure, how, levels, above)
    # Neighbouring blocks that begin alike go on together.
    size, first = ops.block_size(x.dtype), 0
    z = torch.empty_like(x)
    while first < len(whole):
        last = first + 1
        while last < len(whole) and whole[last] == whole[first]:
            last += 1
        part = slice(first * size, last * size)
        some = x[:, part].contiguous()
        if whole[first]:
            z[:, part] = _exact(graph, some, measure, How())
        else:
            z[:, part] = _pushed(
                *(graph, some, measure, how, levels, above), first
            )
        first = last
    return z


def _pushed(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    how: How,
    levels: tuple[float, Tensor, Tensor],
    above: float,
    first: int = 0,
) -> Tensor:
    # Block k of x is block `first` + k of what is asked for.
    quantum = (how.eps * column_norms(x)).to(x.dtype)
    if not bool(quantum.isfinite().all()):
        # A norm that overflows, or the gradient of a loss that is not finite,
        # which has to show: sampling would send nothing.
        return _exact(graph, x, measure, How())
    total, ratio, keep = levels
    rest = (
        graph.receivers(measure.along),
        graph.degree_power(-measure.a, x.dtype),
        graph.degree_power(-measure.b, x.dtype),
        *(x, quantum, ratio, keep),
    )
    layout = (measure.a, x.dtype, measure.along)
    z = None
    if (
        above < math.inf
        and x.device.type == 'cpu'
        and not graph.has_push_graph(measure.along)
    ):
        # The rows that costs are estimated from decide whether the layout of
        # all is needed; on dense signals it mostly is not.
        nodes = ops.cost_nodes(graph.num_nodes)
        some = graph.push_graph(*layout, nodes=nodes)
        z = ops.pull(some, *rest, above)
    if z is None:
        full = graph.push_graph(*layout)
        z, _ = ops.push(full, *rest, how.seed or 0, first, pull_above=above)
    return z if total == 1 else z.mul_(total)


def column_norms(x: Tensor) -> Tensor:
    """Return the L1 norm of every column, in float64 on all devices.

    On the CPU by numpy: torch adds in an order that depends on the number of
    threads, and a last bit of the quantum changes the samples. Few rows at a
    time, which stay in the cache.
    """
    values = x.detach()
    if values.device.type != 'cpu':
        return values.abs().sum(0, dtype=torch.float64)
    rows, total = values.numpy(), np.zeros(x.size(1))
    for start in range(0, len(rows), 8192):
        part = np.abs(rows[start : start + 8192])
        total += part.sum(0, dtype=np.float64)
    return torch.from_numpy(total)


def push_levels(measure: Measure) -> tuple[float, Tensor, Tensor]:
    r"""Return the sum :math:`W` of a measure's weights, and ratios of tails.

    They are :math:`Y_{i+1} / Y_i` times :obj:`shrink`, :math:`w_i / (W Y_i)`;
    tails are summed from the small end, as one minus the rest would cancel.
    """
    weights = np.trim_zeros(np.array(measure.weights), 'b')
    tails = weights[::-1].cumsum()[::-1]
    return (
        float(tails[0]),
        torch.from_numpy(tails[1:] / tails[:-1] * measure.shrink),
        torch.from_numpy(weights / tails),
    )
