# Longer than 700 lines because every op has a section: what it computes, and
# the check of its arguments.
"""C++ ops, each behind a function that checks its arguments.

``csrc/ops.cpp`` describes the arguments and results of each op under the same
name. Device, dtype and shape of every tensor are checked here, by the hints;
that indices are in range is the guarantee of
:class:`~pyg_trust.graph.CSRGraph`. All tensors of a call are on one device,
the CPU or a CUDA GPU, and so is the result; only :obj:`weights`, :obj:`ratio`
and :obj:`keep` are always on the CPU.
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pyg_trust._checks import (
    REAL,
    Count,
    Int,
    Natural,
    NotNegative,
    Number,
    OneOf,
    Positive,
    check_dtype,
    check_instance,
    check_integer,
    check_range,
    constraints,
)
from pyg_trust._checks.graphs import check_real
from pyg_trust._checks.tensors import HOST, Form, Pair, Parts

__all__ = [
    'OpenRows',
    'PolicyFlips',
    'PolicyThreat',
    'PushGraph',
    'block_size',
    'disjoint_walks',
    'flip_bits',
    'has_kernel',
    'instruction_set',
    'kept_pages',
    'policy_iteration',
    'policy_solve',
    'propagate',
    'pull',
    'pull_rows',
    'push',
    'push_rows',
    'push_sparse',
    'row_linear',
]

Op = TypeVar('Op', bound=Callable[..., Any])


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


def has_kernel(device_type: str) -> bool:
    """Return whether this build has kernels for ``'cpu'`` or ``'cuda'``."""
    check_instance('device_type', device_type, str)
    keys = {'cpu': 'CPU', 'cuda': 'CUDA'}
    return (
        device_type in keys
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            'pyg_trust::push', keys[device_type]
        )
    )


def _check_device(name: str, tensor: Tensor) -> torch.device:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor (got {type(tensor).__name__})"
        )
    if tensor.is_cpu:
        return HOST
    device = tensor.device
    if not has_kernel(device.type):
        others = '' if has_kernel('cuda') else ', built for the CPU alone,'
        raise ValueError(
            f"'{name}' needs to be on the CPU or a CUDA device "
            f'(got {device}): this build of pyg_trust{others} has no kernel '
            'for it'
        )
    return device


_LONG, _INT, _DOUBLE = torch.int64, torch.int32, torch.float64


def _op(lead: str = '', host: bool = False) -> Callable[[Op], Op]:
    """Decorate an op so that it checks its arguments by their hints."""

    def decorate(function: Op) -> Op:
        forms: dict[str, Any] = constraints(function)
        names = list(inspect.signature(function).parameters)
        leads = names.index(lead) if lead else -1
        takes = bool(lead) and forms[lead].dtype is None
        # The position, name, form and check of each argument.
        plan = [
            (k, name, forms[name], forms[name].check)
            for k, name in enumerate(names)
            if name in forms
        ]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given, count = list(args), len(args)
            sizes: dict[str, Any] = {'': 0, 'device': HOST, 'dtype': _DOUBLE}
            if lead and (leads < count or lead in kwargs):
                value = args[leads] if leads < count else kwargs[lead]
                if takes:
                    check_dtype(lead, value, REAL)
                    sizes['dtype'] = value.dtype
                if not host:
                    sizes['device'] = _check_device(lead, value)
            for k, name, form, check in plan:
                if k < count:
                    value = args[k]
                    given[k] = (form if value is None else check)(
                        name, value, sizes
                    )
                elif name in kwargs:
                    kwargs[name] = form(name, kwargs[name], sizes)
            return function(*given, **kwargs)

        call.is_validated = True  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


RowPtr = Annotated[Tensor, Form(_LONG, 'n+1')]
Col = Annotated[Tensor, Form(_INT, 'm')]
Nodes = Annotated[Tensor, Form(None, 'n')]
Wide = Annotated[Tensor, Form(None, 'n', 'num_columns')]
Quanta = Annotated[Tensor, Form(None, 'num_columns')]
Ratio = Annotated[Tensor, Form(_DOUBLE, 'num_levels', host=True)]
Keep = Annotated[Tensor, Form(_DOUBLE, 'num_levels+1', host=True)]
Policies = Annotated[Tensor, Form(_DOUBLE, 'num_policies', 'n')]
Goal = Annotated[Tensor, Form(_DOUBLE, 'num_policies')]
OwnRows = Annotated[Tensor, Form(None, 'n', 'num_columns', own=True)]
Follow = Annotated[float, Number(0, 1, 'low')]
AtLeast0 = Annotated[float, Number(0, math.inf, 'low high', 'at least 0')]


class PushGraph(NamedTuple):
    """Graph whose rows are sorted by degree, as pushes need it.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``: where each row starts.
        col (Tensor): int32, ``[num_edges]``: the nodes that each node sends
            to, by ascending degree.
        group_ptr (Tensor): int64, ``[num_nodes + 1]``: where each row's groups
            start in :obj:`group_end`. The degrees in a group are within a
            factor of two.
        group_end (Tensor): int64, ``[num_groups]``: where each group ends in
            :obj:`col`.
        scale (Tensor, optional): ``[num_edges]``: :math:`d_v^{-a}` of the
            receiving node, descending in every row; :obj:`None` stands for
            ones (:math:`a = 0`).
    """

    rowptr: RowPtr
    col: Col
    group_ptr: RowPtr
    group_end: Annotated[Tensor, Form(_LONG, 'num_groups')]
    scale: Annotated[Tensor, Form(None, 'm')] | None = None


Pushing = Annotated[PushGraph, Parts(PushGraph)]
Receivers = Annotated[tuple[Tensor, Tensor], Pair()]


@_op('x')
def propagate(
    rowptr: RowPtr,
    col: Col,
    x: Annotated[Tensor, Form(None, 'n', 'num_columns', raw=True)],
    recv: Nodes,
    send: Nodes,
    weights: Keep,
    half: bool = False,
    scale: Quanta | None = None,
    three_term: bool = False,
    rows: Annotated[Tensor, Form(_LONG, 'num_rows', below='n: the nodes')]
    | None = None,
    loops: bool = False,
    in_place: bool = False,
) -> Tensor:
    r"""Compute :math:`\sum_i w_i (R B S)^i x`, exactly.

    :math:`B` is an unweighted adjacency matrix, :math:`R` and :math:`S` are
    diagonal. The bits of a column do not depend on the other columns, nor on
    the number of threads. Results on CUDA are equal up to rounding.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``: where rows of :math:`B`
            start.
        col (Tensor): int32: the nodes that each node receives from.
        x (Tensor): the signals, ``[num_nodes, num_columns]``, or sparse CSR.
        recv (Tensor): the diagonal of :math:`R`, ``[num_nodes]``.
        send (Tensor): the diagonal of :math:`S`, ``[num_nodes]``.
        weights (Tensor): :math:`w`: float64, ``[num_hops + 1]``, on the CPU.
        half (bool): whether hops are kept in float16. (default: :obj:`False`)
        scale (Tensor, optional): with :obj:`half`, a power of two by which
            each column is multiplied in float16; by default 1.
        three_term (bool): whether Chebyshev polynomials of :math:`R B S` take
            the place of its powers. (default: :obj:`False`)
        rows (Tensor, optional): the nodes whose rows are returned, int64; by
            default all.
        loops (bool): whether missing self-loops count, on the CPU alone.
        in_place (bool): whether :obj:`x` is overwritten, on the CPU alone.

    Returns:
        Tensor: ``[num_nodes, num_columns]``, or only the given :obj:`rows`.
    """
    given, sparse = x, x.layout == torch.sparse_csr
    if half and x.dtype != torch.float32:
        raise TypeError(f"'half' needs a float32 'x' (got {x.dtype})")
    if scale is not None and not half:
        raise ValueError("'scale' needs half=True (got half=False)")
    if not sparse:
        x = x.resolve_neg().contiguous()
    if not x.is_cpu:
        if loops or in_place:
            raise ValueError(
                "'loops' and 'in_place' need tensors on the CPU "
                f'(got {x.device})'
            )
        z = _by_torch(rowptr, col, x, recv, send, weights, three_term)
        return z if rows is None else z[rows]
    if in_place and (sparse or rows is not None or x is not given):
        raise ValueError(
            "'in_place' needs a dense, contiguous 'x', and all rows"
        )
    parts = sparse_parts(x) if sparse else (None, None, None, x.size(1))
    z = _ops.propagate(
        *(rowptr, col, None if sparse else x, *parts, recv, send, weights),
        *(half, scale, three_term, rows, loops, in_place),
    )
    return x if in_place else z


def _by_torch(
    rowptr: Tensor,
    col: Tensor,
    x: Tensor,
    recv: Tensor,
    send: Tensor,
    weights: Tensor,
    three_term: bool,
) -> Tensor:
    # Horner's order or, of three terms, Clenshaw's recursion.
    n = len(recv)
    ones = recv.new_ones(len(col))
    adj = torch.sparse_csr_tensor(
        rowptr, col.long(), ones, (n, n), check_invariants=False
    )
    if x.layout == torch.sparse_csr:
        ptr, column, value, width = sparse_parts(x)
        row = torch.repeat_interleave(ptr.diff())
        x = recv.new_zeros(n * width).index_add_(
            0, row * width + column, value
        )
        x = x.view(n, width)
    recv, send = recv[:, None], send[:, None]
    *lower, top = weights.tolist()
    u, before = top * x, torch.zeros_like(x)
    for i in reversed(range(len(lower))):
        factor = 2 if three_term and i > 0 else 1
        z = factor * recv * (adj @ (send * u)) + lower[i] * x
        u, before = z - before if three_term else z, u
    return u


def sparse_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return rows, columns, values and width of a sparse CSR matrix.

    Rows and columns are checked, which torch does not do.
    """
    check_instance('x', x, Tensor)
    if x.layout != torch.sparse_csr:
        raise TypeError(
            f"'x' needs to be a sparse CSR tensor (got {x.layout})"
        )
    ptr = x.crow_indices().long().contiguous()
    index = x.col_indices().long().contiguous()
    check_range('x', index, x.size(1), 'its columns')
    ends = (int(ptr[0]), int(ptr[-1]))
    if ends != (0, index.numel()) or bool((ptr.diff() < 0).any()):
        raise ValueError(
            "'x' needs to have crow_indices that ascend from 0 to "
            f'{index.numel()} (got {ends[0]} to {ends[1]})'
        )
    return ptr, index, x.values().resolve_neg().contiguous(), x.size(1)


def instruction_set() -> str:
    """Return the instruction set of the CPU kernels in use.

    It is :obj:`'default'`, :obj:`'avx2'` or :obj:`'avx512'`: the best that the
    processor has, or less if the environment variable ``ATEN_CPU_CAPABILITY``
    asks for it, as for torch. All of them give the same bits.
    """
    return ('default', 'avx2', 'avx512')[_ops.instruction_set()]


@contextlib.contextmanager
def kept_pages() -> Iterator[None]:
    """Reuse working memory between the calls in a ``with`` block.

    It saves about a fifth of the time of a propagation from disk to disk. It
    keeps at most as much as one call needs. On the CPU alone.
    """
    _ops.keep_pages(True)
    try:
        yield
    finally:
        _ops.keep_pages(False)


@_op('x')
def push(
    graph: Pushing,
    receivers: Receivers,
    recv: Nodes,
    send: Nodes,
    x: Wide,
    eps: Quanta,
    ratio: Ratio,
    keep: Keep,
    seed: Natural,
    first: Natural = 0,
    pull_above: AtLeast0 = math.inf,
) -> tuple[Tensor, Tensor]:
    r"""Estimate :math:`\sum_i w_i (R B S)^i x` by randomized pushes (AGP).

    In each hop a node keeps a share of its value and sends the rest to its
    neighbours. Large messages are sent as they are. Small ones are replaced by
    larger messages to a few random neighbours, with the same expectation. A
    hop is computed exactly if sampling would cost too much (``pull_above``).

    Args:
        graph (PushGraph): the edges along which nodes send, sorted for
            sampling (:meth:`.CSRGraph.push_graph`).
        receivers (tuple[Tensor, Tensor]): ``rowptr`` and ``col`` of the
            adjacency matrix :math:`B`, whose rows list the nodes that each
            node receives from, for exact hops.
        recv (Tensor): the diagonal of :math:`R`, ``[num_nodes]``.
        send (Tensor): the diagonal of :math:`S`, ``[num_nodes]``.
        x (Tensor): the signals, ``[num_nodes, num_columns]``.
        eps (Tensor): ``[num_columns]``: messages of at least this size are
            sent as they are, smaller ones are sampled.
        ratio (Tensor): :math:`r_i`, the share that hop i sends on: float64,
            ``[num_levels]``, a number for each hop. The weights of the sum are
            :math:`w_i = k_i \prod_{j < i} r_j`.
        keep (Tensor): :math:`k_i`, the share that hop i keeps: float64,
            ``[num_levels + 1]``.
        seed (int): the seed.
        first (int): if :obj:`x` is a part of a wider tensor, the number of
            blocks of :func:`block_size` columns before it. Block :math:`k` of
            :obj:`x` draws from ``(seed, first + k)``. (default: :obj:`0`)
        pull_above (float): a hop from many nodes is computed exactly if
            sampling is expected to cost more than this many exact hops.
            (default: infinity)

    Returns:
        tuple[Tensor, Tensor]: the sum, ``[num_nodes, num_columns]``, and how
        many hops of each block were sampled, int64.
    """
    rowptr, col, group_ptr, group_end, scale = graph
    return _ops.push(
        *(rowptr, col, scale, group_ptr, group_end, *receivers),
        *(recv, send, x, eps, ratio, keep),
        *(seed, first, pull_above, False),
    )


def cost_nodes(num_nodes: int) -> Tensor:
    """Return the sampled nodes from which :func:`push` estimates costs."""
    step = check_integer('num_nodes', num_nodes, 1) // 1024 + 1
    return torch.arange(step // 2, num_nodes, step)


@_op('x', host=True)
def pull(
    graph: Pushing,
    receivers: Annotated[tuple[Tensor, Tensor], Pair('num_edges')],
    recv: Nodes,
    send: Nodes,
    x: Wide,
    eps: Quanta,
    ratio: Ratio,
    keep: Keep,
    pull_above: AtLeast0,
) -> Tensor | None:
    """Compute the sum of :func:`push` exactly, unless sampling is cheaper.

    Costs are estimated from the nodes ``cost_nodes(num_nodes)``. The arguments
    are those of :func:`push`, but ``graph`` needs only the rows of these nodes
    (``nodes`` of :meth:`.CSRGraph.push_graph`). On the CPU.

    Returns:
        Tensor or None: the sum, ``[num_nodes, num_columns]``; :obj:`None` if
        a hop would be sampled.
    """
    rowptr, col, group_ptr, group_end, scale = graph
    z, pushed = _ops.push(
        *(rowptr, col, scale, group_ptr, group_end, *receivers),
        *(recv, send, x, eps, ratio, keep, 0, 0, pull_above, True),
    )
    return None if bool((pushed != 0).any()) else z


def block_size(dtype: torch.dtype) -> int:
    """Return how many columns :func:`push` samples together.

    It is the number of values of the dtype in 64 bytes: 16 float32 or 8
    float64.
    """
    check_real('dtype', dtype)
    return 64 // dtype.itemsize


@_op('value', host=True)
def push_sparse(
    graph: Pushing,
    send: Nodes,
    ptr: Annotated[Tensor, Form(_LONG, 'num_signals+1')],
    node: Annotated[Tensor, Form(_LONG, 'nnz')],
    value: Annotated[Tensor, Form(None, 'nnz')],
    eps: Annotated[Tensor, Form(None, 'num_signals')],
    prune: Annotated[Tensor, Form(None, 'num_signals')],
    ratio: Ratio,
    keep: Keep,
    seed: Natural,
    first: Natural = 0,
    top_k: int = -1,
    threshold: AtLeast0 = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run :func:`push` on sparse signals, with sparse results.

    Signal :math:`k` is 0 but for ``value[i]`` at ``node[i]``, for the i from
    ``ptr[k]`` to ``ptr[k + 1] - 1``, and draws from ``(seed, first + k)``.
    Residues whose product with ``send`` is below ``prune`` (one number a
    signal) are not pushed. Of each result, the ``top_k`` largest entries (-1:
    all) above ``threshold`` in magnitude are kept. The other arguments are
    those of :func:`push`. On the CPU alone.

    Returns:
        tuple[Tensor, Tensor, Tensor]: the results as ``ptr``, ``node`` and
        ``value``, in the same form as the signals.
    """
    rowptr, col, group_ptr, group_end, scale = graph
    return _ops.push_sparse(
        *(rowptr, col, scale, group_ptr, group_end, send),
        *(ptr, node, value, eps, prune, ratio, keep),
        *(seed, first, top_k, threshold),
    )


@_op('rowptr')
def disjoint_walks(
    rowptr: RowPtr,
    col: Col,
    roots: Annotated[Tensor, Form(_LONG, 'num_roots')],
    walk_length: Natural,
    restarts: Count,
    seed: Natural,
) -> tuple[Tensor, Tensor]:
    """Draw node-disjoint subgraphs by random walks.

    The distinct nodes ``roots`` are taken in random order. Each that is in no
    earlier subgraph starts one, by ``restarts`` walks of ``walk_length``
    steps, which visit no node of other subgraphs. ``rowptr`` and ``col`` list
    each node's neighbours. Time is :math:`O(n + m)` for any number of
    restarts. With the same seed, CUDA gives other subgraphs than the CPU, of a
    slightly different distribution.

    Returns:
        tuple[Tensor, Tensor]: ``ptr``, int64, ``[num_subgraphs + 1]``, and
        ``node``, int64: the nodes of subgraph i are ``node[ptr[i]:ptr[i +
        1]]``, its root first.
    """
    return _ops.disjoint_walks(rowptr, col, roots, walk_length, restarts, seed)


CELLS = ('all', 'directed', 'undirected')


@_op()
def flip_bits(
    rowptr: RowPtr,
    col: Col,
    num_cols: Annotated[int, Int(0, 2**31 - 1)],
    p_plus: Follow,
    p_minus: Follow,
    cells: Annotated[str, OneOf(CELLS)],
    seed: Natural,
    first: Natural = 0,
    num_samples: Count = 1,
) -> tuple[Tensor, Tensor]:
    """Draw noisy copies of a sparse matrix of zeros and ones.

    ``rowptr`` and ``col`` list the columns of the ones in each row, ascending;
    there are ``num_cols`` columns. Every 0 becomes 1 with probability
    ``p_plus``, every 1 becomes 0 with ``p_minus``, all independently. With the
    ``cells`` ``'all'``, every entry can flip; with ``'directed'``, all off the
    diagonal; with ``'undirected'``, these in pairs: (j, i) equals (i, j). Copy
    :math:`s` of ``num_samples`` draws from ``(seed, first + s)``, on the CPU.

    Returns:
        tuple[Tensor, Tensor]: ``rowptr`` and ``col`` of all copies, one below
        the other.
    """
    n = rowptr.numel() - 1
    if cells != 'all':
        if num_cols != n:
            raise ValueError(
                f"'num_cols' needs to be {n}, the number of nodes "
                f'(got {num_cols})'
            )
        if num_samples * n >= 2**31:
            raise ValueError(
                "'num_samples' needs to be smaller: copies have fewer than "
                f'2**31 nodes together (got {num_samples} of {n})'
            )
    return _ops.flip_bits(
        *(rowptr, col, num_cols, p_plus, p_minus),
        *(CELLS.index(cells), seed, first, num_samples),
    )


class PolicyThreat(NamedTuple):
    """Rows of a graph, with the changes that an attacker can make to them.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``: where each row starts.
        col (Tensor): int32, ``[num_edges]``: out-neighbours, ascending in
            every row and distinct.
        removable (Tensor): bool, ``[num_edges]``: which edges may be removed.
        budget (Tensor): int64, ``[num_nodes]``: the most flips in each row.
        add_ptr (Tensor): int64, ``[num_nodes + 1]``: where each node's
            neighbours in ``add_col`` start.
        add_col (Tensor): int32, ``[num_pairs]``: the neighbours that may be
            added to each row, distinct and none of them in :obj:`col`.
        all_pairs (bool): whether each row may get any node but itself and its
            neighbours; :obj:`add_ptr` and :obj:`add_col` are ignored then.
    """

    rowptr: RowPtr
    col: Col
    removable: Annotated[Tensor, Form(torch.bool, 'm')]
    budget: Annotated[Tensor, Form(_LONG, 'n')]
    add_ptr: RowPtr
    add_col: Annotated[Tensor, Form(_INT, 'num_pairs')]
    all_pairs: bool


class PolicyFlips(NamedTuple):
    """Edges in which each of several graphs differs from a clean graph.

    Args:
        ptr (Tensor): int64, ``[num_policies + 1]``: graph i differs by the
            edges ``ptr[i]:ptr[i + 1]``.
        row (Tensor): int32, ``[num_flips]``: the edges' sources, ascending
            within each graph.
        col (Tensor): int32, ``[num_flips]``: the edges' targets, ascending
            within each source and distinct.
    """

    ptr: Annotated[Tensor, Form(_LONG, 'num_policies+1')]
    row: Annotated[Tensor, Form(_INT, 'num_flips')]
    col: Annotated[Tensor, Form(_INT, 'num_flips')]


@_op()
def policy_iteration(
    threat: Annotated[PolicyThreat, Parts(PolicyThreat)],
    reward: Policies,
    start: Policies,
    goal: Goal,
    rounding: NotNegative,
    follow: Follow,
    max_iter: Count,
    *,
    bonus: Policies | None = None,
    visit_cost: Policies | None = None,
    step_cost: Policies | None = None,
    root: Policies | None = None,
    removal_cost: Annotated[Tensor, Form(_DOUBLE, 'num_policies', 'm')]
    | None = None,
    addition_cost: Annotated[
        Tensor, Form(_DOUBLE, 'num_policies', 'num_pairs')
    ]
    | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""Find the graphs that maximize PageRank-weighted rewards.

    Each row of ``reward`` and the other tensors is one problem. Its solution
    is a graph of the threat whose values :math:`V` solve :math:`V = T V`. For
    each node :math:`i`, :math:`T` chooses a set :math:`S` of out-neighbours:
    the clean set :math:`S_i` after :math:`k` flips, at most the node's budget
    in ``threat``. An empty set counts as one edge that leads nowhere:

    .. math::
        (T V)_i = r_i + \max_{S, k} \left[ \frac{a \sum_{j \in S} V_j +
        \rho_i - \mu_i k}{|S|} + \frac{\sigma_i}{\sqrt{|S|}} - \nu_i k -
        \sum_{j \in S \triangle S_i} \nu_{ij} \right]

    with :math:`r` = ``reward`` and :math:`a` = ``follow``. A node gains
    :math:`\rho` = ``bonus``, shared by its edges, and :math:`\sigma` =
    ``root``. Each flip costs it :math:`\mu` = ``visit_cost``, shared likewise,
    :math:`\nu_i` = ``step_cost``, and :math:`\nu_{ij}` = ``removal_cost`` of
    an edge or ``addition_cost`` of another pair (None: 0). Iterations begin
    with :math:`V` = ``start`` and end after ``max_iter``, or once every
    :math:`|(T V - V)_i|` is at most the larger of the problem's ``goal`` and
    ``rounding`` times the largest :math:`|V_i|`.

    Returns:
        tuple: :math:`V` and :math:`T V - V`, float64, ``[num_policies,
        num_nodes]``; and ``ptr``, ``row`` and ``col`` of the flips that reach
        the maximum, as in :class:`PolicyFlips`.
    """
    costs = (bonus, visit_cost, step_cost, root, removal_cost, addition_cost)
    return _ops.policy_iteration(
        *(*threat, reward, *costs),
        *(start, goal, rounding, follow, max_iter),
    )


@_op()
def policy_solve(
    rowptr: RowPtr,
    col: Col,
    flips: Annotated[PolicyFlips, Parts(PolicyFlips)],
    reward: Policies,
    start: Policies,
    goal: Goal,
    follow: Follow,
    back: bool = False,
) -> tuple[Tensor, Tensor]:
    """Solve :math:`x = r + a P x` on several graphs, by BiCGSTAB.

    Each graph is ``rowptr``, ``col`` after its ``flips``, and :math:`P` is the
    matrix of its random walk (with ``back`` the transpose). :math:`r` is
    ``reward`` and :math:`a` is ``follow``. A solve begins with ``start`` and
    ends when the largest residual in the graph is at most its ``goal``.

    Returns:
        tuple[Tensor, Tensor]: :math:`x` and the residuals: float64,
        ``[num_policies, num_nodes]``, a row for each graph.
    """
    return _ops.policy_solve(
        rowptr, col, *flips, reward, start, goal, follow, back
    )


class OpenRows(NamedTuple):
    """Rows of a changing graph, which may have free space at their ends.

    Row :math:`v` is ``col[start[v]:start[v] + length[v]]``.

    Args:
        start (Tensor): int64, ``[num_nodes]``: where rows start in ``col``.
        length (Tensor): int64, ``[num_nodes]``: how many neighbours they have.
        col (Tensor): int32: neighbours, ascending in every row; -1 in free
            space.
    """

    start: Annotated[Tensor, Form(_LONG, 'n', own=True)]
    length: Annotated[Tensor, Form(_LONG, 'n', own=True)]
    col: Annotated[Tensor, Form(_INT, 'm', own=True)]


class _Open(Parts):
    # Fast path for valid values, nearly all calls.
    def check(self, name: str, value: Any, sizes: Any = None) -> Any:
        if type(value) is OpenRows:
            start, length, col = value
            if (
                type(start) is type(length) is type(col) is Tensor
                and start.is_cpu
                and length.is_cpu
                and col.is_cpu
                and start.dtype is length.dtype is _LONG
                and col.dtype is _INT
                and start.dim() == col.dim() == 1
                and start.shape == length.shape
                and start.is_contiguous()
                and length.is_contiguous()
                and col.is_contiguous()
            ):
                sizes['n'] = start.numel()
                return value
        return super().check(name, value, sizes)


Open = Annotated[OpenRows, _Open(OpenRows)]
List = Annotated[Tensor, Form(_LONG, 'num_listed', none='n')]


@_op('x', host=True)
def pull_rows(
    rows: Open,
    nodes: List | None,
    x: Wide,
    recv: Nodes,
    send: Nodes,
    *,
    out: OwnRows | None = None,
    z: Annotated[Tensor, Form(None, 'num_listed', 'num_columns', own=True)]
    | None = None,
    weight: float = 1.0,
) -> None:
    r"""Compute some rows of one hop of propagation, in place.

    For each node :math:`v` of a list ``nodes`` (None: all nodes), at position
    :math:`k` of it,

    .. math::
        y_v = R_v \sum_u B_{vu} x_u, \quad \text{out}_v = S_v y_v, \quad
        z_k \mathrel{+}= w\, y_v

    with :math:`B` = ``rows``, :math:`R` = ``recv``, :math:`S` = ``send`` and
    :math:`w` = ``weight``. ``out``, ``[num_nodes, num_columns]``, and ``z``,
    ``[num_listed, num_columns]``, are written to if given. A row has the same
    bits whichever other rows are computed. On the CPU alone.
    """
    if nodes is None or nodes.numel() > 0:
        _ops.pull_rows.default(*(*rows, nodes, x, recv, send, out, z, weight))


@_op()
def push_rows(
    rows: Open,
    seeds: List,
    recv: Nodes,
    send: Nodes,
    theta: Positive,
    follow: Follow,
    z: OwnRows,
    residue: OwnRows,
    x: Wide | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    r"""Push residues until every row is within its limit, in place.

    A row :math:`\varrho_v` of ``residue`` is within its limit if its L2 norm
    is at most :math:`\theta \sqrt{\max(d_v, 1)}`, for degree :math:`d_v`. A
    push of a row above it adds the row to :math:`z_v`, sets it to 0, and adds
    :math:`c\, r_u s_v` times the old row to :math:`\varrho_u`, for the nodes
    :math:`u` of row :math:`v` of ``rows``, with :math:`c` = ``follow``,
    :math:`r` = ``recv`` and :math:`s` = ``send``. ``seeds`` need to include
    all nodes above their limit. With signals ``x``, their residues are first
    set to :math:`(1 - c) x + c P z - z`, where :math:`P_{vu} = r_v s_u`.

    Returns:
        tuple: to undo it, the nodes whose residues changed (int64) and their
        old residues, the nodes whose ``z`` changed (int64) and their old
        rows of ``z``; and the number of pushes.
    """
    return _ops.push_rows.default(
        *(*rows, seeds, recv, send, theta, follow, z, residue, x),
        1 - follow,
    )


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    r"""Compute ``F.linear``, with each row's bits independent of other rows.

    BLAS may round a row differently in a batch of another size. Here every
    entry is computed by fused multiply-adds :math:`y \leftarrow y +
    x_{rk} w_{jk}` over ascending :math:`k`, from 0, to which the bias is
    added. All three arguments have gradients.

    Args:
        x (Tensor): ``[num_rows, in_features]``, float32 or float64.
        weight (Tensor): ``[out_features, in_features]``.
        bias (Tensor, optional): ``[out_features]``; by default none.

    Returns:
        Tensor: ``[num_rows, out_features]``.
    """
    check_dtype('x', x, REAL)
    check_dtype('weight', weight, x.dtype)
    given = [('x', x), ('weight', weight)]
    if bias is not None:
        check_dtype('bias', bias, x.dtype)
        given.append(('bias', bias))
    if x.dim() != 2 or weight.dim() != 2 or x.size(1) != weight.size(1):
        raise ValueError(
            "'x' and 'weight' need to be matrices with as many columns (got "
            f'the shapes {list(x.shape)} and {list(weight.shape)})'
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"'bias' needs to have a number for each of {len(weight)} rows of "
            f"'weight' (got the shape {list(bias.shape)})"
        )
    for name, tensor in given:
        if not tensor.is_cpu:
            raise ValueError(
                f"'{name}' needs to be on the CPU, where sums have one order "
                f'(got {tensor.device})'
            )
    return _RowLinear.apply(x, weight, bias)


_stops: ContextVar[Collection[Any]] = ContextVar('_stops', default=())


class _RowLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _rows_times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,), needed = grads, ctx.needs_input_grad
        return (
            _RowLinear.apply(grad, weight.t(), None) if needed[0] else None,
            grad.t() @ x if needed[1] and not _ends(ctx, 1) else None,
            grad.sum(0) if needed[2] and not _ends(ctx, 2) else None,
        )


def _ends(ctx: Any, place: int) -> bool:
    # Whether nobody asks for what would come to this argument.
    stops, (node, _) = _stops.get(), ctx.next_functions[place]
    return node in stops or (
        bool(stops)
        and bool(node.next_functions)
        and all(n in stops for n, _ in node.next_functions)
    )


@contextlib.contextmanager
def without_gradients(stops: Collection[Any]) -> Iterator[None]:
    """Skip gradients of parameters of :func:`row_linear` in a block.

    Torch skips unneeded gradients by itself only in its own operations.
    """
    token = _stops.set(stops)
    try:
        yield
    finally:
        _stops.reset(token)


def _rows_times(
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    if bias is not None:
        bias = bias.contiguous()
    return _ops.row_linear.default(x.contiguous(), weight, bias)


# For torch.compile: the ops that layers and transforms run in it.


@torch.library.register_fake('pyg_trust::propagate')
def _propagated(rowptr: Tensor, col: Tensor, *rest: Any) -> Tensor:
    columns, recv, rows = rest[4], rest[5], rest[11]
    return recv.new_empty(len(recv if rows is None else rows), columns)


@torch.library.register_fake('pyg_trust::push')
def _pushed(*given: Any) -> tuple[Tensor, Tensor]:
    x = given[9]
    blocks = -(-x.size(1) // block_size(x.dtype))
    return torch.empty_like(x), x.new_empty(blocks, dtype=_LONG)


@torch.library.register_fake('pyg_trust::row_linear')
def _row_linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    return x.new_empty(x.size(0), weight.size(0))
