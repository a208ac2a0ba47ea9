r"""Exact propagation from disk to disk, a block of columns at a time.

A column of :math:`z = \sum_i w_i P^i x` depends on that column of :math:`x`
alone, and has the same bits beside any other column
(:func:`pyg_trust.ops.propagate`). So columns can be computed block after
block, in any order, by whichever process, with the bits of :func:`.propagate`.
"""

import contextlib
import math
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust import distributed, ops
from pyg_trust._checks import (
    Count,
    Natural,
    NotNegative,
    check_instance,
    check_integer,
    declared,
    validated,
)
from pyg_trust._progress import Bar, progress
from pyg_trust.agp.checks import How, check_how, prepare_exact
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import (
    check_half_levels,
    exact_checked,
    operator_of,
)
from pyg_trust.files import exclusive
from pyg_trust.graph import CSRGraph
from pyg_trust.graph import _columns as on_disk
from pyg_trust.graph._storage import available_memory, checksum, parse_memory

__all__ = ['MemoryPlan', 'plan_memory', 'propagate_to']

# Bytes of a cache line, and the number of them that share a level.
_LINE = 64
_LINES = 4
# Temporary bytes per node, before any level is allocated.
_MOMENT = 32


class MemoryPlan(NamedTuple):
    """Memory of an exact propagation, by use.

    Args:
        graph (int): rows of the graph, and the diagonals of the operator.
        column (int): each column of the features that is in work.
        levels (int): two levels of these columns.
        columns (int): the number of columns in work.
        blocks (int): how many blocks that makes.
        total (int): :obj:`graph`, :obj:`levels` and the columns in work.
        streamed (bool): whether the edges are left out, as they are read from
            their file once a level.
    """

    graph: int
    column: int
    levels: int
    columns: int
    blocks: int
    total: int
    streamed: bool = False


@validated
def plan_memory(
    num_nodes: Count,
    num_edges: Natural,
    num_columns: Natural,
    *,
    memory: int | str | None = None,
    half: bool = False,
    itemsize: int = 4,
    columns: Count | None = None,
    directed: bool = False,
    mapped: bool = False,
) -> MemoryPlan:
    r"""Plan how many feature columns are propagated at a time.

    With :math:`k` columns at a time, a propagation takes

    .. math::
        4 m + 8 n + 2 s n + s n\, k + \max(2 h s n\, w, 32 n)

    bytes: for the graph, two diagonal matrices, the columns, and two hops of
    the :math:`w` columns that are multiplied together (about :math:`k`, up to
    a fixed number), with :math:`h = 1/2` for float16, else 1. A directed graph
    takes :math:`4 m + 8 n` bytes more, for its transpose. If memory is short,
    the :math:`4 m` bytes of a mapped graph's edges are not counted: they are
    read from the disk in every hop. Other uses of the process come on top.

    Args:
        num_nodes (int): the number :math:`n` of nodes.
        num_edges (int): the number :math:`m` of directed edges; an undirected
            edge counts twice.
        num_columns (int): the number of feature columns.
        memory (int or str, optional): the most bytes, such as ``'8GB'``; by
            default nine tenths of what is free. (default: :obj:`None`)
        half (bool): whether hops are kept in float16. (default: :obj:`False`)
        itemsize (int): the bytes :math:`s` of a number: 4 for float32, 8 for
            float64. (default: :obj:`4`)
        columns (int, optional): the number :math:`k`; by default as many as
            fit into the memory. (default: :obj:`None`)
        directed (bool): whether a transpose is kept. (default: :obj:`False`)
        mapped (bool): whether the graph is read from a file, as by
            ``CSRGraph.load(..., mmap=True)``. (default: :obj:`False`)

    Returns:
        MemoryPlan: how many ``columns`` at a time, in how many ``blocks``; the
        ``total`` bytes, and those of ``graph``, a ``column`` and ``levels``.

    Example:
        >>> plan = plan_memory(111_000_000, 3_230_000_000, 128, memory='32GB')
        >>> plan.columns, plan.blocks, round(plan.total / 1e9, 1)
        (8, 16, 25.4)
    """
    n = num_nodes
    m = num_edges
    c = num_columns
    if itemsize not in (4, 8):
        raise ValueError(f"'itemsize' needs to be 4 or 8 (got {itemsize})")
    graph = (4 * m + 8 * n) * (2 if directed else 1) + 2 * itemsize * n
    column = itemsize * n

    def levels(k: int) -> int:
        held = 2 * _width(k, itemsize) * (2 if half else itemsize)
        return n * max(held, _MOMENT)

    def needed(k: int) -> int:
        return graph + column * k + levels(k)

    given = (
        available_memory() * 9 // 10
        if memory is None
        else parse_memory(memory)
    )
    all_columns = max(c, 1)
    # The columns of a level in a cache line.
    line = _LINE // itemsize * (2 if half else 1)
    some = min(all_columns, line if columns is None else columns)
    streamed = mapped and needed(some) > given
    if streamed:
        graph -= 4 * m
    if columns is not None:
        fit = some
        if memory is not None and needed(fit) > given:
            raise ValueError(
                f"'columns' needs {needed(fit)} bytes for {fit} columns of "
                f'this graph (got a memory of {given})'
            )
    else:
        # All, or whole cache lines, or a power of two.
        choices = [all_columns]
        choices += range((all_columns - 1) // line * line, 0, -line)
        choices += [1 << k for k in range(line.bit_length() - 2, -1, -1)]
        fit = next(
            (k for k in choices if k <= all_columns and needed(k) <= given), 0
        )
        if fit == 0:
            raise ValueError(
                f"'memory' needs to be at least {needed(1)} bytes for "
                f'one column of this graph (got {given})'
            )
    return MemoryPlan(
        graph,
        column,
        levels(fit),
        fit,
        math.ceil(c / fit),
        needed(fit),
        streamed,
    )


def _width(columns: int, itemsize: int) -> int:
    # Columns of a level, as csrc/cpu/propagate.cpp lays it out.
    line = _LINE // itemsize
    together = min(columns, _LINES * line)
    if together < line:
        return 1 << (together - 1).bit_length()
    return math.ceil(together / line) * line


@declared
def propagate_to(
    out: str | Path,
    graph: CSRGraph,
    x: Any,
    measure: Measure,
    *,
    half: bool = False,
    tol: NotNegative = 0.0,
    columns: int | str = 'auto',
    memory: int | str | None = None,
    over_ranks: bool = False,
) -> Tensor:
    r"""Write :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x` to a file.

    The result has the same bits as that of :func:`.propagate`, but only a
    block of columns is in memory at a time. If a mapped graph
    (:meth:`.CSRGraph.load`) does not fit, its edges are read in every hop.

    :obj:`out` is a ``.npy`` file in Fortran order (columns one after the
    other), of the dtype of :obj:`x`; float16 is computed in float32. It
    appears when it is complete. Until then finished columns are in
    ``OUT.part``. After an interruption the same call continues from there; a
    call with other arguments starts again.

    Args:
        out (str or Path): the path of the file.
        graph (CSRGraph): the graph, unweighted, on the CPU.
        x (Any): float32, float64 or float16, ``[num_nodes, num_columns]``: a
            path to a ``.npy`` file, a mapped or plain array or tensor, or a
            sparse CSR matrix of torch or scipy, whose blocks are made dense
            as they are needed.
        measure (Measure): the weights :math:`w` and exponents :math:`a, b`.
        half (bool): whether hops are kept in float16, which is faster.
        tol (float): the largest relative error that computing fewer hops may
            add, as in :func:`.propagate`. (default: :obj:`0.0`)
        columns (int or str): how many columns are in memory at a time;
            :obj:`'auto'` for as many as fit. (default: :obj:`'auto'`)
        memory (int or str, optional): the most bytes that each process uses
            for graph and columns, such as ``'8GB'``; by default nine tenths of
            what is free on this machine. (default: :obj:`None`)
        over_ranks (bool): whether the processes of torchrun share the columns;
            all write to the same folder. (default: :obj:`False`)

    Returns:
        Tensor: :math:`z`, mapped from the file.
    """
    check_instance('over_ranks', over_ranks, bool)
    rank, size = distributed.rank_and_size() if over_ranks else (0, 1)

    # A wrong argument in one process stops all of them.
    def prepare() -> _Job:
        return _prepared(
            out, graph, x, measure, half, tol, columns, memory, size
        )

    job = prepare() if size == 1 else _agreed(prepare, columns, size)
    # A process that waited continues from the blocks that the other finished.
    lock = exclusive(job.path) if rank == 0 else contextlib.nullcontext()
    with lock:
        return _in_blocks(job, rank, size)


class _Job(NamedTuple):
    path: Path
    graph: CSRGraph
    matrix: Any
    measure: Measure
    how: How
    dtype: np.dtype
    plan: MemoryPlan
    key: tuple[str, str, str]  # digests of graph, measure and features

    @property
    def turned(self) -> bool:
        return on_disk.is_on_disk_by_rows(self.matrix) and self.plan.blocks > 1

    def file(self, create: bool) -> on_disk.ColumnFile:
        return on_disk.ColumnFile(
            self.path,
            self.matrix.shape,
            self.matrix.dtype.newbyteorder('='),
            '; '.join(self.key),
            create,
            # Not installed yet.
            self.plan.column * self.plan.columns,
        )


@validated
def _prepared(
    out: str | Path,
    graph: CSRGraph,
    x: Any,
    measure: Measure,
    half: bool,
    tol: NotNegative,
    columns: int | str,
    memory: int | str | None,
    size: int,
) -> _Job:
    path = Path(out)
    if path.suffix != '.npy':
        raise ValueError(f"'out' needs to end in .npy (got '{out}')")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"'out': there is no folder '{path.parent}'")
    how = How(0.0, None, False, half, tol)
    looped, loops = prepare_exact(graph, measure, how)
    if graph.device.type != 'cpu':
        raise ValueError(
            f"'graph' needs to be on the CPU (got {graph.device})"
        )
    matrix = on_disk.as_matrix(x)
    n, c = matrix.shape
    if n != graph.num_nodes:
        raise ValueError(
            f"'x' needs to have a row for each of the {graph.num_nodes} nodes "
            f'(got {n})'
        )
    dtype = np.dtype('f8' if matrix.dtype.name == 'float64' else 'f4')
    sample = torch.empty(n, 0, dtype=torch.float64 if dtype == 'f8' else None)
    check_how(how, sample.to(_torch(dtype)), graph, measure)
    if columns != 'auto':
        check_integer('columns', columns, 1)  # type: ignore[arg-type]
    if memory is None and size > 1:
        # Shared with the other processes of this machine.
        here = os.environ.get('LOCAL_WORLD_SIZE', '')
        memory = available_memory() * 9 // 10
        memory //= int(here) if here.isdecimal() and int(here) else size
    turned = measure.along and not graph.is_undirected
    plan = plan_memory(
        n,
        graph.num_edges,
        c,
        memory=memory,
        half=half,
        itemsize=dtype.itemsize,
        columns=None if isinstance(columns, str) else columns,
        directed=turned,
        mapped=graph.is_mapped and not turned,
    )
    how = how._replace(loops=loops)
    # Before columns and levels are allocated, as it needs temporary memory.
    operator_of(looped, measure, _torch(dtype), how)
    if half:
        check_half_levels(looped, measure, _torch(dtype), how)
    rows, entries = (
        checksum(part.numpy()) for part in (graph.rowptr, graph.col32)
    )
    by_rows = on_disk.is_on_disk_by_rows(matrix)
    return _Job(
        path,
        looped,
        matrix,
        measure,
        how,
        dtype,
        plan,
        (
            f'{graph} {rows}; {entries}',
            f'{measure.key} half={half} tol={how.tol} {by_rows}',
            on_disk.matrix_key(matrix),
        ),
    )


def _agreed(
    prepare: Callable[[], _Job], columns: int | str, size: int
) -> _Job:
    # The job of all processes, or the error that stops all of them.
    job, failed = None, None
    try:
        job = prepare()
    except Exception as error:
        failed = error
    same: dict[str, Any] = {}
    if job is not None:
        same = {
            'graph': job.key[0],
            'measure': job.measure.key,
            'half': job.how.half,
            'tol': job.how.tol,
            'columns': columns,
            'x': (job.matrix.shape, job.matrix.dtype.str),
        }
    distributed.check_same(same, failed)
    assert job is not None
    jobs = distributed.run_over_ranks(
        range(size), lambda _: (job.key, job.plan.columns)
    )
    if any(key != job.key for key, _ in jobs):
        # Copies of a file have other names.
        distributed.check_same({'x': on_disk.matrix_checksum(job.matrix)})
    # The process with the least memory sets the width of blocks.
    fit = min(width for _, width in jobs)
    blocks = math.ceil(job.matrix.shape[1] / fit)
    plan = job.plan._replace(columns=fit, blocks=blocks)
    return job._replace(key=jobs[0][0], plan=plan)


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.float64 if dtype == np.float64 else torch.float32


def _in_blocks(job: _Job, rank: int, size: int) -> Tensor:
    c = job.matrix.shape[1]
    # One process inspects the file and broadcasts the blocks to compute.
    token = secrets.token_hex(8) if size > 1 else None
    missing, turned, staged, token = distributed.from_first(
        lambda: _what_is_left(job, token), size
    )
    file = _same_file(job, token) if size > 1 else job.file(False)
    if turned and not staged:
        panels = math.ceil(file.shape[0] / file.panel)
        file.stage(job.matrix, range(rank, panels, size))
        distributed.from_first(file.mark_staged, size, after=True)
    blocks = list(_blocks(missing, _share(missing, job.plan.columns, size)))
    own = blocks[rank::size]
    before = c - sum(end - first for first, end in blocks)
    with progress(False if rank else None):
        bar = Bar(total=c, initial=before, desc='columns')
    failed = None
    widest = max((end - first for first, end in own), default=0)
    room = np.empty(file.shape[0] * widest, job.dtype)
    try:
        with bar, ops.kept_pages():
            for first, end in own:
                if turned and file.is_features(first, end):
                    block = file.read(first, end, room)
                else:
                    block = on_disk.read_block(job.matrix, first, end, room)
                file.write(first, _compute(block, job))
                bar.update((end - first) * min(size, len(blocks)))
    except Exception as error:
        if size == 1:
            raise
        failed = error
    if size > 1:
        distributed.check_same({}, failed)
    distributed.from_first(lambda: _finish(file), size, after=True)
    return on_disk.open_result(file.path)


def _same_file(job: _Job, token: str | None) -> on_disk.ColumnFile:
    # Check that this is rank 0's file and not another one of the same name.
    file, failed = None, None
    try:
        file = job.file(False)
        if file.token != token:
            raise FileNotFoundError(f"it is another '{file.part}'")
    except Exception as error:
        failed = ValueError(
            f"'out' needs to be in a folder that all ranks share (got {error})"
        )
    distributed.check_same({}, failed)
    assert file is not None
    return file


def _what_is_left(
    job: _Job, token: str | None
) -> tuple[list[tuple[int, int]], bool, bool, str | None]:
    file, turned = job.file(True), job.turned
    if token is not None:
        file.token = token
    missing = _missing(file.done(verify=True), file.shape[1])
    if not missing or (not file.staged and file.has_results):
        turned = False  # results overwrite the place of features
    return missing, turned, file.staged, token


def _finish(file: on_disk.ColumnFile) -> None:
    left = _missing(file.done(verify=False), file.shape[1])
    if left:  # pragma: no cover
        raise RuntimeError(f'the columns {left} are missing')
    file.finish()


def _compute(block: np.ndarray, job: _Job) -> np.ndarray:
    # Over the block itself; four cache lines at a time have levels.
    x = torch.from_numpy(block)
    with torch.no_grad():
        exact_checked(job.graph, x, job.measure, job.how, in_place=True)
    return block


def _missing(done: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    left, at = [], 0
    for first, end in [*sorted(done), (count, count)]:
        if first > at:
            left.append((at, first))
        at = max(at, end)
    return left


def _share(missing: list[tuple[int, int]], most: int, size: int) -> int:
    # Narrow blocks, to whole cache lines, until every process has one.
    total = sum(end - first for first, end in missing)
    share = math.ceil(total / max(size, 1))
    if share >= most or size == 1:
        return most
    line = _LINE // 4
    return min(most, max(1, math.ceil(share / line) * line))


def _blocks(
    missing: list[tuple[int, int]], width: int
) -> Iterator[tuple[int, int]]:
    for first, end in missing:
        for start in range(first, end, width):
            yield start, min(start + width, end)
