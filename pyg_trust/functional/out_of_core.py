r"""Exact propagation from disk to disk, a block of columns at a time.

A column of :math:`z = \sum_i w_i P^i x` depends on that column of :math:`x`
alone, and has the same bits whatever stands beside it
(:func:`pyg_trust.ops.propagate`). So columns can be computed block after
block, in any order, by whichever process, with the bits of
:func:`.propagate`.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust import _columns as on_disk
from pyg_trust import distributed
from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_non_negative,
)
from pyg_trust._storage import available_memory, checksum, parse_memory
from pyg_trust.commit import exclusive
from pyg_trust.functional.measures import Measure
from pyg_trust.functional.propagation import (
    How,
    _check_how,
    _exact_checked,
    _prepare_exact,
)
from pyg_trust.graph import CSRGraph

# Columns that go through a level together, and those of a cache line.
_TOGETHER = 64
_LINE = 16


class MemoryPlan(NamedTuple):
    """Where the bytes of an exact propagation go.

    Args:
        graph (int): rows of the graph, and the diagonals of the operator.
        column (int): each column that is in work.
        columns (int): how many are in work.
        blocks (int): how many blocks that makes.
        total (int): :obj:`graph` and the columns in work.
    """

    graph: int
    column: int
    columns: int
    blocks: int
    total: int


def plan_memory(
    num_nodes: int,
    num_edges: int,
    num_columns: int,
    *,
    memory: int | str | None = None,
    half: bool = False,
    itemsize: int = 4,
    columns: int | None = None,
    directed: bool = False,
) -> MemoryPlan:
    r"""How many columns go through a graph together, and what that takes.

    With :math:`n` nodes, :math:`m` stored entries and :math:`s` bytes a
    number,

    .. math::
        4 m + 8 n + 2 s n + k\, s n\, (1 + 2h)

    bytes for :math:`k` columns: the rows of the graph, two diagonals, and for
    each column itself and two levels, :math:`h = 1/2` for levels in float16.
    A directed graph whose signals travel along its edges has its transpose
    beside it, :math:`4 m + 8 n` more.

    Args:
        num_nodes (int): :math:`n`.
        num_edges (int): :math:`m`; an undirected edge counts twice.
        num_columns (int): of the features.
        memory (int or str, optional): what there is, such as ``'8GB'``; by
            default nine tenths of what is free. (default: :obj:`None`)
        half (bool): whether levels are float16. (default: :obj:`False`)
        itemsize (int): :math:`s`: 4 for float32, 8 for float64.
            (default: :obj:`4`)
        columns (int, optional): :math:`k`; by default as many as there is
            memory for. (default: :obj:`None`)
        directed (bool): whether a transpose is kept. (default: :obj:`False`)

    Raises:
        ValueError: if not even one column fits.

    Example:
        >>> plan = plan_memory(111_000_000, 3_230_000_000, 128, memory='32GB')
        >>> plan.columns, plan.blocks, round(plan.total / 1e9, 1)
        (12, 11, 30.7)
    """
    n = check_integer('num_nodes', num_nodes, 1)
    m = check_integer('num_edges', num_edges, 0)
    c = check_integer('num_columns', num_columns, 0)
    check_instance('half', half, bool)
    check_instance('directed', directed, bool)
    if check_integer('itemsize', itemsize) not in (4, 8):
        raise ValueError(f"'itemsize' needs to be 4 or 8 (got {itemsize})")
    graph = (4 * m + 8 * n) * (2 if directed else 1) + 2 * itemsize * n
    column = n * (2 * itemsize if half else 3 * itemsize)
    if columns is not None:
        fit = check_integer('columns', columns, 1)
        given = None if memory is None else parse_memory(memory)
        if given is not None and graph + column * min(fit, c) > given:
            raise ValueError(
                f"'columns' needs {graph + column * min(fit, c)} bytes for "
                f'{fit} columns of this graph (got a memory of {given})'
            )
    else:
        given = (
            available_memory() * 9 // 10
            if memory is None
            else parse_memory(memory)
        )
        fit = (given - graph) // column
        if fit < 1:
            raise ValueError(
                f"'memory' needs to be at least {graph + column} bytes for "
                f'one column of this graph (got {given})'
            )
    fit = min(fit, max(c, 1))
    if columns is None and fit < c:
        # Whole cache lines, or a power of two: what vectors hold anyway.
        line = _LINE * 4 // itemsize * (2 if half else 1)
        if fit >= line:
            fit -= fit % line
        else:
            fit = 1 << (fit.bit_length() - 1) if fit < 4 else fit - fit % 4
    return MemoryPlan(
        graph, column, fit, math.ceil(c / fit), graph + column * fit
    )


def propagate_to(
    out: str | Path,
    graph: CSRGraph,
    x: Any,
    measure: Measure,
    *,
    half: bool = False,
    tol: float = 0.0,
    columns: int | str = 'auto',
    memory: int | str | None = None,
    over_ranks: bool = False,
    progress_bar: bool = False,
) -> Tensor:
    r"""Computes :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x` to a file.

    The same bits as :func:`.propagate`, with only a block of columns in
    memory (:func:`plan_memory`). The graph may be mapped
    (:meth:`.CSRGraph.load`): levels then stream its rows from the disk where
    they do not fit in memory.

    :obj:`out` is a ``.npy`` file in Fortran order (columns one after the
    other), of the dtype of :obj:`x`, whose float16 is computed in float32. It
    appears when it is whole. Until then finished columns are in
    ``OUT.part``, with checksums beside it, and the same call goes on from
    there after Ctrl-C, a crash or a kill; columns whose checksum is not
    theirs are computed again. A call with another graph, measure or
    features, or another way to compute, begins anew. Features on disk by rows
    are first turned into columns, in ``OUT.part`` too: read once, written
    once.

    With :obj:`over_ranks`, under torchrun, every process makes its own blocks
    of the file, on a folder that all of them see, without communication but
    at the beginning and the end. The bits do not depend on the number of
    processes, nor on which of them died and were started again.

    Args:
        out (str or Path): the file.
        graph (CSRGraph): as in :func:`.propagate`, on the CPU.
        x (Any): float32, float64 or float16, ``[num_nodes, num_columns]``: a
            path to a ``.npy`` file, a mapped or plain array or tensor, or a
            sparse CSR matrix of torch or scipy, whose blocks are made dense
            as they are needed.
        measure (Measure): what to compute.
        half (bool): as in :func:`.propagate`. (default: :obj:`False`)
        tol (float): as in :func:`.propagate`. (default: :obj:`0.0`)
        columns (int or str): how many columns go together, or
            :obj:`'auto'`. (default: :obj:`'auto'`)
        memory (int or str, optional): the most bytes for graph and columns,
            such as ``'8GB'``; by default nine tenths of what is free.
            (default: :obj:`None`)
        over_ranks (bool): whether the columns are divided over the processes
            of torch.distributed. (default: :obj:`False`)
        progress_bar (bool): whether to show one, of columns.
            (default: :obj:`False`)

    Returns:
        Tensor: :math:`z`, mapped from the file.

    Raises:
        TypeError, ValueError: as :func:`.propagate`, or if nothing fits in
            the memory. What was finished stays.
    """
    check_instance('out', out, str, Path)
    check_instance('over_ranks', over_ranks, bool)
    check_instance('progress_bar', progress_bar, bool)
    check_instance('half', half, bool)
    path = Path(out)
    if path.suffix != '.npy':
        raise ValueError(f"'out' needs to end in .npy (got '{out}')")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"'out': there is no folder '{path.parent}'")
    how = How(0.0, None, False, half, check_non_negative('tol', tol))
    looped, loops = _prepare_exact(graph, measure, how)
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
    dtype = np.dtype('f8' if matrix.dtype == np.float64 else 'f4')
    sample = torch.empty(n, 0, dtype=torch.float64 if dtype == 'f8' else None)
    _check_how(how, sample.to(_torch(dtype)), graph, measure)
    if columns != 'auto':
        check_integer('columns', columns, 1)  # type: ignore[arg-type]
    plan = plan_memory(
        n,
        graph.num_edges,
        c,
        memory=memory,
        half=half,
        itemsize=dtype.itemsize,
        columns=None if isinstance(columns, str) else columns,
        directed=measure.along and not graph.is_undirected,
    )
    rank, size = distributed.rank_and_size() if over_ranks else (0, 1)
    turned = on_disk.is_on_disk_by_rows(matrix) and plan.blocks > 1
    key = '; '.join(
        (
            f'{graph} {checksum(graph.rowptr.numpy())}',
            str(checksum(graph.col32.numpy())),
            f'{measure.key} half={half} tol={how.tol} {turned}',
            on_disk.identity(matrix),
        )
    )
    # Who waits here goes on from what the other has finished.
    lock = exclusive(path) if rank == 0 else contextlib.nullcontext()
    with lock:
        return _in_blocks(
            on_disk.ColumnFile(path, (n, c), matrix.dtype, key, True)
            if rank == 0
            else None,
            (path, (n, c), matrix.dtype, key),
            matrix,
            _Job(looped, measure, how._replace(loops=loops), dtype, plan),
            turned,
            (rank, size),
            progress_bar,
        )


class _Job(NamedTuple):
    graph: CSRGraph
    measure: Measure
    how: How
    dtype: np.dtype
    plan: MemoryPlan


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.float64 if dtype == np.float64 else torch.float32


def _in_blocks(
    made: on_disk.ColumnFile | None,
    arguments: tuple[Path, tuple[int, int], np.dtype, str],
    matrix: Any,
    job: _Job,
    turned: bool,
    place: tuple[int, int],
    progress_bar: bool,
) -> Tensor:
    rank, size = place
    c = arguments[1][1]
    # One process looks at what is there, and all do what it says.
    missing, turned = distributed.from_first(
        lambda: _what_is_left(made, turned), size
    )
    file = made or on_disk.ColumnFile(*arguments, False)
    if turned and not file.staged:
        panels = math.ceil(file.shape[0] / file.panel)
        file.stage(matrix, c, range(rank, panels, size))
        distributed.from_first(file.mark_staged, size, after=True)
    blocks = list(_blocks(missing, _width(missing, job.plan.columns, size)))
    own = blocks[rank::size]
    bar = tqdm(
        total=c,
        initial=c - sum(end - first for first, end in blocks),
        disable=not progress_bar or rank != 0,
        desc='columns',
    )
    with bar:
        for number, (first, end) in enumerate(own):
            if turned and file.is_features(first, end):
                block = file.read(first, end, job.dtype)
                if number + 1 < len(own):
                    file.will_need(*own[number + 1])
            else:
                block = on_disk.read_block(matrix, first, end, job.dtype)
            file.write(first, _compute(block, job))
            del block
            bar.update((end - first) * min(size, len(blocks)))
    distributed.from_first(lambda: _finish(file), size, after=True)
    return on_disk.open_result(file.path)


def _what_is_left(
    file: on_disk.ColumnFile | None, turned: bool
) -> tuple[list[tuple[int, int]], bool]:
    assert file is not None
    missing = _missing(file.done(verify=True), file.shape[1])
    if not missing or (not file.staged and file.has_results):
        turned = False  # results lie where features would
    return missing, turned


def _finish(file: on_disk.ColumnFile) -> None:
    left = _missing(file.done(verify=False), file.shape[1])
    if left:  # pragma: no cover
        raise RuntimeError(f'the columns {left} are missing')
    file.finish()


def _compute(block: np.ndarray, job: _Job) -> np.ndarray:
    # Over the block itself; _TOGETHER columns at a time have levels.
    x = torch.from_numpy(block)
    with torch.no_grad():
        _exact_checked(job.graph, x, job.measure, job.how, in_place=True)
    return block


def _missing(done: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    left, at = [], 0
    for first, end in [*sorted(done), (count, count)]:
        if first > at:
            left.append((at, first))
        at = max(at, end)
    return left


def _width(missing: list[tuple[int, int]], most: int, size: int) -> int:
    # Every process should have its share: narrower blocks, of whole lines.
    total = sum(end - first for first, end in missing)
    share = math.ceil(total / max(size, 1))
    if share >= most or size == 1:
        return most
    return min(most, max(1, math.ceil(share / _LINE) * _LINE, 1))


def _blocks(
    missing: list[tuple[int, int]], width: int
) -> Iterator[tuple[int, int]]:
    for first, end in missing:
        for start in range(first, end, width):
            yield start, min(start + width, end)
