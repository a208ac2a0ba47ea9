"""The C++ ops: one checked, documented function per op, and fake kernels.

Checked here is the form of every tensor (device, dtype, shape). That indices
are in range is the promise of :class:`~pyg_trust.graph.CSRGraph`, which makes
them; what the numbers mean is checked by :mod:`pyg_trust.functional`.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


def _load() -> None:
    folder = Path(__file__).parent
    found = [*folder.glob('_C*.so'), *folder.glob('_C*.pyd')]
    if not found:
        raise ImportError(
            f"pyg_trust's compiled library is missing in '{folder}'. Install "
            "the package with 'pip install --no-build-isolation .' from its "
            'source folder (see README.md).'
        )
    torch.ops.load_library(found[0])


_load()
_ops = torch.ops.pyg_trust


class PushGraph(NamedTuple):
    r"""A graph laid out for pushing.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``; row :math:`u` lists the
            nodes that :math:`u` pushes to, in ascending degree.
        col (Tensor): int32, ``[num_edges]``.
        group_ptr (Tensor): int64, ``[num_nodes + 1]``: where the groups of
            each row start in :obj:`group_end`.
        group_end (Tensor): int64, ``[num_groups]``: where each group of
            doubling degree ends in :obj:`col`.
        scale (Tensor, optional): ``[num_edges]``: :math:`d_v^{-a}` of the
            receiving node, descending in every row; :obj:`None` stands for
            ones (:math:`a = 0`).
    """

    rowptr: Tensor
    col: Tensor
    group_ptr: Tensor
    group_end: Tensor
    scale: Tensor | None = None


def _check(
    name: str, tensor: Tensor, dtype: torch.dtype, *shape: int
) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        got = getattr(tensor, 'dtype', type(tensor).__name__)
        raise TypeError(f"'{name}' needs to be a {dtype} tensor (got {got})")
    if tensor.device.type != 'cpu':
        raise ValueError(
            f"'{name}' needs to be on the CPU (got {tensor.device}): this "
            'build of pyg_trust has no kernel for other devices'
        )
    if tensor.shape != shape:
        raise ValueError(
            f"'{name}' needs to have the shape {list(shape)} "
            f'(got {list(tensor.shape)})'
        )
    return tensor.contiguous()


def _value_dtype(name: str, tensor: Tensor) -> torch.dtype:
    if not isinstance(tensor, Tensor) or tensor.dtype not in (
        torch.float32,
        torch.float64,
    ):
        got = getattr(tensor, 'dtype', type(tensor).__name__)
        raise TypeError(
            f"'{name}' needs to be a float32 or float64 tensor (got {got})"
        )
    return tensor.dtype


def _check_graph(graph: PushGraph, dtype: torch.dtype) -> tuple:
    rowptr, col, group_ptr, group_end, scale = graph
    if scale is not None:
        scale = _check('scale', scale, dtype, col.numel())
    return (
        _check('rowptr', rowptr, torch.int64, rowptr.numel()),
        _check('col', col, torch.int32, col.numel()),
        scale,
        _check('group_ptr', group_ptr, torch.int64, rowptr.numel()),
        _check('group_end', group_end, torch.int64, group_end.numel()),
    )


def propagate(
    rowptr: Tensor,
    col: Tensor,
    x: Tensor,
    recv: Tensor,
    send: Tensor,
    weights: Tensor,
    half: bool = False,
) -> Tensor:
    r"""Computes :math:`\sum_i w_i (R B S)^i x` for all columns at once.

    :math:`B` is the unweighted adjacency in which row :math:`v` of
    :obj:`(rowptr, col)` lists the nodes that :math:`v` receives from,
    :math:`R` and :math:`S` are the diagonals :obj:`recv` and :obj:`send`.
    Memory beside the result: two buffers of at most four cache lines a node
    (two with :obj:`half`): so many columns are in flight.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``.
        col (Tensor): int32, ``[num_edges]``.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        recv (Tensor): as :obj:`x`, ``[num_nodes]``.
        send (Tensor): as :obj:`x`, ``[num_nodes]``.
        weights (Tensor): float64, ``[num_levels + 1]``.
        half (bool): whether the levels of a float32 :obj:`x` are kept in
            bfloat16; sums stay in float32. (default: :obj:`False`)

    Returns:
        Tensor: as :obj:`x`.
    """
    dtype = _value_dtype('x', x)
    n = rowptr.numel() - 1
    return _ops.propagate(
        _check('rowptr', rowptr, torch.int64, n + 1),
        _check('col', col, torch.int32, col.numel()),
        _check('x', x, dtype, n, *(x.shape[1:2] or (1,))),
        _check('recv', recv, dtype, n),
        _check('send', send, dtype, n),
        _check('weights', weights, torch.float64, max(weights.numel(), 1)),
        half,
    )


def push(
    graph: PushGraph,
    receivers: tuple[Tensor, Tensor],
    recv: Tensor,
    send: Tensor,
    x: Tensor,
    eps: Tensor,
    ratio: Tensor,
    keep: Tensor,
    seed: int,
    first: int = 0,
    pull_above: float = math.inf,
) -> tuple[Tensor, Tensor]:
    r"""Estimates :math:`\sum_i w_i (R B S)^i x` by randomized pushes (AGP).

    The columns of a block (:func:`block_size` of them) share what is sampled;
    block :math:`k` draws from the stream of :obj:`(seed, first + k)`, and what
    it does depends on no other. Memory beside the result: two buffers of a
    cache line a node for each block in flight, at most four or one per thread.

    Args:
        graph (PushGraph): the graph, with :math:`R` as its :obj:`scale`.
        receivers (tuple[Tensor, Tensor]): the same graph from the receiving
            side: ``rowptr`` (int64) and ``col`` (int32), as in
            :func:`propagate`.
        recv (Tensor): as :obj:`x`, ``[num_nodes]``: the diagonal of
            :math:`R`.
        send (Tensor): as :obj:`x`, ``[num_nodes]``: the diagonal of
            :math:`S`.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        eps (Tensor): as :obj:`x`, ``[num_columns]``: the quantum, absolute.
        ratio (Tensor): float64, ``[num_levels]``: :math:`Y_{i+1} / Y_i`.
        keep (Tensor): float64, ``[num_levels + 1]``: :math:`w_i / Y_i`.
        seed (int): the seed.
        first (int): the number of the first block. (default: :obj:`0`)
        pull_above (float): a level of a block is done exactly if pushing it
            is expected to cost more than this times as much.
            (default: :obj:`math.inf`)

    Returns:
        tuple[Tensor, Tensor]: the estimate, as :obj:`x`, and the number of
        levels that were pushed, int64, ``[num_blocks]``.
    """
    dtype = _value_dtype('x', x)
    n = graph.rowptr.numel() - 1
    rowptr, col = receivers
    return _ops.push(
        *_check_graph(graph, dtype),
        _check('rowptr', rowptr, torch.int64, n + 1),
        _check('col', col, torch.int32, graph.col.numel()),
        _check('recv', recv, dtype, n),
        _check('send', send, dtype, n),
        _check('x', x, dtype, n, *(x.shape[1:2] or (1,))),
        _check('eps', eps, dtype, *x.shape[1:2]),
        _check('ratio', ratio, torch.float64, ratio.numel()),
        _check('keep', keep, torch.float64, ratio.numel() + 1),
        seed,
        first,
        pull_above,
    )


def block_size(dtype: torch.dtype) -> int:
    """The number of columns that share what is sampled: a cache line's."""
    return 64 // dtype.itemsize


def push_sparse(
    graph: PushGraph,
    send: Tensor,
    ptr: Tensor,
    node: Tensor,
    value: Tensor,
    eps: Tensor,
    prune: Tensor,
    ratio: Tensor,
    keep: Tensor,
    seed: int,
    first: int = 0,
    top_k: int = -1,
    threshold: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Is :func:`push` for sparse signals, with sparse results.

    Signals are independent: signal :math:`k` draws from the stream of
    :obj:`(seed, first + k)`. Time is that of the pushes alone. Memory beside
    the result: 16 (float64: 32) bytes a node and thread, which are kept for
    the next call, up to 1 GiB each, and cleared where they were used.

    Args:
        graph (PushGraph): as in :func:`push`.
        send (Tensor): as in :func:`push`.
        ptr (Tensor): int64, ``[num_signals + 1]``: where each signal starts
            in :obj:`node`.
        node (Tensor): int64, ``[nnz]``: its nodes.
        value (Tensor): float32 or float64, ``[nnz]``: its values.
        eps (Tensor): as :obj:`value`, ``[num_signals]``: the quantum; 0 for
            pushes that are not randomized.
        prune (Tensor): as :obj:`eps`: residues with :math:`|r| S` below it
            are not pushed; 0 for none.
        ratio (Tensor): as in :func:`push`.
        keep (Tensor): as in :func:`push`.
        seed (int): the seed.
        first (int): the number of the first signal. (default: :obj:`0`)
        top_k (int): the most entries to keep of each result, the largest in
            magnitude; all if negative. (default: :obj:`-1`)
        threshold (float): entries of this magnitude or less are dropped.
            (default: :obj:`0.0`)

    Returns:
        tuple[Tensor, Tensor, Tensor]: :obj:`ptr`, :obj:`node` (ascending in
        every row) and :obj:`value` of the results.
    """
    dtype = _value_dtype('value', value)
    n = graph.rowptr.numel() - 1
    return _ops.push_sparse(
        *_check_graph(graph, dtype),
        _check('send', send, dtype, n),
        _check('ptr', ptr, torch.int64, max(ptr.numel(), 1)),
        _check('node', node, torch.int64, node.numel()),
        _check('value', value, dtype, node.numel()),
        _check('eps', eps, dtype, ptr.numel() - 1),
        _check('prune', prune, dtype, ptr.numel() - 1),
        _check('ratio', ratio, torch.float64, ratio.numel()),
        _check('keep', keep, torch.float64, ratio.numel() + 1),
        seed,
        first,
        top_k,
        threshold,
    )


def disjoint_walks(
    rowptr: Tensor,
    col: Tensor,
    roots: Tensor,
    walk_length: int,
    restarts: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    r"""Draws node-disjoint subgraphs by random walks (DRW, DRW-R).

    The roots are drawn from the stream of :obj:`(seed, 0)`, the walks of root
    :math:`r` from that of :obj:`(seed, 1, r)`. Time is :math:`O(n + m)` for
    any number of restarts; memory beside the result: a byte per node, four
    per root and four per node reached, and one row of the graph.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``.
        col (Tensor): int32, ``[num_edges]``.
        roots (Tensor): int64, ``[num_roots]``: distinct nodes.
        walk_length (int): the steps of a walk; 0 for the roots alone.
        restarts (int): the walks from each root, at least 1.
        seed (int): the seed.

    Returns:
        tuple[Tensor, Tensor]: int64: where each subgraph starts in the second
        tensor (``[num_subgraphs + 1]``), and their nodes, root first.
    """
    return _ops.disjoint_walks(
        _check('rowptr', rowptr, torch.int64, max(rowptr.numel(), 1)),
        _check('col', col, torch.int32, col.numel()),
        _check('roots', roots, torch.int64, roots.numel()),
        walk_length,
        restarts,
        seed,
    )


class PolicyThreat(NamedTuple):
    """The rows of a graph, and what an attacker may do to them.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``.
        col (Tensor): int32, ``[num_edges]``: out-neighbours, ascending in
            every row and distinct.
        removable (Tensor): bool, ``[num_edges]``: which edges may go.
        budget (Tensor): int64, ``[num_nodes]``: the flips of a row at most.
        add_ptr (Tensor): int64, ``[num_nodes + 1]``.
        add_col (Tensor): int32, ``[num_pairs]``: the neighbours that each row
            may win, distinct and none of them in :obj:`col`.
        all_pairs (bool): whether every row may win any node that is neither
            itself nor a neighbour, in place of the last two.
    """

    rowptr: Tensor
    col: Tensor
    removable: Tensor
    budget: Tensor
    add_ptr: Tensor
    add_col: Tensor
    all_pairs: bool


class PolicyFlips(NamedTuple):
    """The edges that policies flip, by column.

    Args:
        ptr (Tensor): int64, ``[num_columns + 1]``: where each column starts.
        row (Tensor): int32, ``[num_flips]``: their sources, ascending.
        col (Tensor): int32, ``[num_flips]``: their targets, ascending in
            every row and distinct.
    """

    ptr: Tensor
    row: Tensor
    col: Tensor


def policy_iteration(
    threat: PolicyThreat,
    reward: Tensor,
    start: Tensor,
    goal: Tensor,
    rounding: float,
    follow: float,
    max_iter: int,
    *,
    bonus: Tensor | None = None,
    visit_cost: Tensor | None = None,
    step_cost: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""Finds the worst graph for PageRank, for every column by itself.

    Maximizes :math:`V = T V`, where

    .. math::
        (T V)_i = r_i + \max_{S, k} \left[ \frac{a \sum_{j \in S} V_j +
        \rho_i - \mu_i k}{|S|} - \nu_i k \right]

    over the out-neighbourhoods :math:`S` that :math:`k` flips make of row
    :math:`i`: the maximizing :math:`S` for a :math:`V`, then the :math:`V` of
    that graph (BiCGSTAB), to a residual of a hundredth of :math:`\lVert T V -
    V \rVert_\infty`, and so on. Ends when that norm is at most :obj:`goal` or
    :obj:`rounding` times :math:`\lVert V \rVert_\infty`. Memory beside the
    result, per thread: some twenty numbers per node and one per edge.

    Args:
        threat (PolicyThreat): the graph and its fragile edges.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        start (Tensor): a first guess of :math:`V`, as :obj:`reward`.
        goal (Tensor): float64, ``[num_columns]``.
        rounding (float): see above.
        follow (float): :math:`a`.
        max_iter (int): the most policies that are found.
        bonus (Tensor, optional): :math:`\rho`, as :obj:`reward`.
            (default: :obj:`None`)
        visit_cost (Tensor, optional): :math:`\mu`. (default: :obj:`None`)
        step_cost (Tensor, optional): :math:`\nu`. (default: :obj:`None`)

    Returns:
        tuple[Tensor, ...]: :math:`V`; :math:`T V - V`, both as
        :obj:`reward`; and the flips of the graph that attains :math:`T V`, as
        in :class:`PolicyFlips`. Where :math:`V` overflows, :math:`T V - V` is
        NaN.
    """
    n = threat.rowptr.numel() - 1
    shape = (*reward.shape[:1], n)
    costs = {'bonus': bonus, 'visit_cost': visit_cost, 'step_cost': step_cost}
    return _ops.policy_iteration(
        _check('rowptr', threat.rowptr, torch.int64, max(n, 0) + 1),
        _check('col', threat.col, torch.int32, threat.col.numel()),
        _check('removable', threat.removable, torch.bool, threat.col.numel()),
        _check('budget', threat.budget, torch.int64, n),
        _check('add_ptr', threat.add_ptr, torch.int64, n + 1),
        _check('add_col', threat.add_col, torch.int32, threat.add_col.numel()),
        threat.all_pairs,
        _check('reward', reward, torch.float64, *shape),
        *(
            value
            if value is None
            else _check(name, value, torch.float64, *shape)
            for name, value in costs.items()
        ),
        _check('start', start, torch.float64, *shape),
        _check('goal', goal, torch.float64, shape[0]),
        rounding,
        follow,
        max_iter,
    )


def policy_solve(
    rowptr: Tensor,
    col: Tensor,
    flips: PolicyFlips,
    reward: Tensor,
    start: Tensor,
    goal: Tensor,
    follow: float,
    back: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Solves :math:`x = r + a P x` in a perturbed graph per column.

    By BiCGSTAB and, where that stalls, plain iteration.

    Args:
        rowptr (Tensor): as in :class:`PolicyThreat`.
        col (Tensor): as in :class:`PolicyThreat`.
        flips (PolicyFlips): the edges to flip.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        start (Tensor): a first guess of :math:`x`, as :obj:`reward`.
        goal (Tensor): float64, ``[num_columns]``: the largest residual; it is
            missed only where roundoff leaves no other way.
        follow (float): :math:`a`.
        back (bool): whether to solve with :math:`P^{\top}`.
            (default: :obj:`False`)

    Returns:
        tuple[Tensor, Tensor]: :math:`x` and :math:`r + a P x - x`.
    """
    n, count = rowptr.numel() - 1, flips.ptr.numel() - 1
    return _ops.policy_solve(
        _check('rowptr', rowptr, torch.int64, max(n, 0) + 1),
        _check('col', col, torch.int32, col.numel()),
        _check('ptr', flips.ptr, torch.int64, max(count, 0) + 1),
        _check('row', flips.row, torch.int32, flips.col.numel()),
        _check('col', flips.col, torch.int32, flips.col.numel()),
        _check('reward', reward, torch.float64, count, n),
        _check('start', start, torch.float64, count, n),
        _check('goal', goal, torch.float64, count),
        follow,
        back,
    )


@torch.library.register_fake('pyg_trust::propagate')
def _(
    rowptr: Tensor,
    col: Tensor,
    x: Tensor,
    recv: Tensor,
    send: Tensor,
    weights: Tensor,
    half: bool,
) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake('pyg_trust::push')
def _(
    rowptr: Tensor,
    col: Tensor,
    scale: Tensor | None,
    group_ptr: Tensor,
    group_end: Tensor,
    pull_rowptr: Tensor,
    pull_col: Tensor,
    recv: Tensor,
    send: Tensor,
    x: Tensor,
    eps: Tensor,
    ratio: Tensor,
    keep: Tensor,
    seed: int,
    first: int,
    pull_above: float,
) -> tuple[Tensor, Tensor]:
    size = block_size(x.dtype)
    blocks = (x.size(1) + size - 1) // size
    return torch.empty_like(x), x.new_empty(blocks, dtype=torch.int64)


@torch.library.register_fake('pyg_trust::push_sparse')
def _(
    rowptr: Tensor,
    col: Tensor,
    scale: Tensor | None,
    group_ptr: Tensor,
    group_end: Tensor,
    send: Tensor,
    sig_ptr: Tensor,
    sig_node: Tensor,
    sig_value: Tensor,
    eps: Tensor,
    prune: Tensor,
    ratio: Tensor,
    keep: Tensor,
    seed: int,
    first: int,
    top_k: int,
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return (
        torch.empty_like(sig_ptr),
        sig_node.new_empty(size),
        sig_value.new_empty(size),
    )


@torch.library.register_fake('pyg_trust::disjoint_walks')
def _(
    rowptr: Tensor,
    col: Tensor,
    roots: Tensor,
    walk_length: int,
    restarts: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    context = torch.library.get_ctx()
    return (
        roots.new_empty(context.new_dynamic_size()),
        roots.new_empty(context.new_dynamic_size()),
    )


@torch.library.register_fake('pyg_trust::policy_iteration')
def _(
    rowptr: Tensor,
    col: Tensor,
    removable: Tensor,
    budget: Tensor,
    add_ptr: Tensor,
    add_col: Tensor,
    all_pairs: bool,
    reward: Tensor,
    bonus: Tensor | None,
    visit_cost: Tensor | None,
    step_cost: Tensor | None,
    start: Tensor,
    goal: Tensor,
    rounding: float,
    follow: float,
    max_iter: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return (
        torch.empty_like(start),
        torch.empty_like(start),
        rowptr.new_empty(start.size(0) + 1),
        col.new_empty(size),
        col.new_empty(size),
    )


@torch.library.register_fake('pyg_trust::policy_solve')
def _(
    rowptr: Tensor,
    col: Tensor,
    flip_ptr: Tensor,
    flip_row: Tensor,
    flip_col: Tensor,
    reward: Tensor,
    start: Tensor,
    goal: Tensor,
    follow: float,
    back: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(start), torch.empty_like(start)
