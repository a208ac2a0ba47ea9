"""Readers of edges on disk, in chunks, and their sorting into rows."""

import gzip
import itertools
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust.files import DamagedFileError
from pyg_trust.graph._storage import (
    ArrayWriter,
    as_tensor,
    map_array,
    save_rows,
)

Edges = tuple[np.ndarray, np.ndarray]


def _ahead(items: Iterator[Edges]) -> Iterator[Edges]:
    # The next item is read in the background.
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def _chunks(source: Any, size: int) -> Iterator[Edges]:
    # At most so many edges of a source, as arrays of their ends.
    if isinstance(source, list | tuple):
        for part in source:
            yield from _chunks(part, size)
        return
    if isinstance(source, str | Path):
        pairs: Iterable[Any] = _read(Path(source), size)
    elif callable(source):
        pairs = source()
    elif isinstance(source, Tensor | np.ndarray):
        pairs = [_two_rows(np.asarray(source))]
    else:
        raise TypeError(
            "'source' needs to be a path, an array, a function that returns "
            'chunks, or a list of these '
            f'(got {type(source).__name__})'
        )
    for pair in pairs:
        row, col = ends = [np.asarray(index) for index in pair]
        if row.ndim != 1 or row.shape != col.shape:
            raise ValueError(
                "'source' needs chunks of two one-dimensional arrays of one "
                f'length (got the shapes {[list(x.shape) for x in ends]})'
            )
        for index in ends:
            if index.dtype.kind not in 'iu':
                raise TypeError(
                    f"'source' needs to hold integers (got {index.dtype})"
                )
        kinds = [
            x.dtype if x.dtype in (np.int32, np.int64) else np.dtype('i8')
            for x in ends
        ]
        for start in range(0, row.size, size):
            part = slice(start, start + size)
            yield (
                np.ascontiguousarray(row[part], kinds[0]),
                np.ascontiguousarray(col[part], kinds[1]),
            )


def _two_rows(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if array.ndim == 2 and 2 in array.shape:
        one, two = array if array.shape[0] == 2 else array.T
        return one, two
    raise ValueError(
        "'source' needs to have the shape [2, num_edges] or [num_edges, 2] "
        f'(got {list(array.shape)})'
    )


def _read(path: Path, size: int) -> Iterator[tuple[Any, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"'source': there is no file '{path}'")
    name = path.name.removesuffix('.gz')
    readers: dict[str, Callable[[Path, int], Iterator[tuple[Any, Any]]]] = {
        '.npy': _read_npy,
        '.npz': _read_npz,
        '.csv': _read_text,
        '.txt': _read_text,
        '.parquet': _read_parquet,
    }
    reader = readers.get(Path(name).suffix)
    if reader is None:
        raise ValueError(
            f"'source' needs to be one of {sorted(readers)} (got '{path}')"
        )
    try:
        yield from reader(path, size)
    except (DamagedFileError, ImportError, MemoryError):
        raise
    except Exception as error:
        # Every decompression library raises errors of its own.
        raise DamagedFileError(f"'{path}' can't be read: {error}") from error


def _read_npy(path: Path, size: int) -> Iterator[tuple[Any, Any]]:
    # Read, not mapped: mapped pages would count as memory.
    array = map_array(path)
    if array.ndim != 2 or 2 not in array.shape or not array.flags.c_contiguous:
        raise ValueError(
            'it needs to have the shape [2, num_edges] or [num_edges, 2], in '
            f'C order (got {list(array.shape)})'
        )
    start, dtype, count = int(array.offset), array.dtype, array.size // 2
    wide, width = array.shape[0] == 2, array.dtype.itemsize
    del array
    for begin in range(0, count, size):
        some, at = min(size, count - begin), start + begin * width
        if wide:
            yield (
                np.fromfile(path, dtype, some, offset=at),
                np.fromfile(path, dtype, some, offset=at + count * width),
            )
        else:
            at += begin * width
            pairs = np.fromfile(path, dtype, 2 * some, offset=at)
            yield pairs[::2], pairs[1::2]


def _read_npz(path: Path, size: int) -> Iterator[tuple[Any, Any]]:
    # An .npz can't be mapped: the entry is read in pieces from the archive.
    with zipfile.ZipFile(path) as archive:
        with archive.open('edge_index.npy') as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(file)
            if fortran or len(shape) != 2 or shape[0] != 2:
                raise ValueError(
                    "'edge_index' needs to have the shape [2, num_edges]"
                )
            start = file.tell()
        count, width = shape[1], dtype.itemsize
        with (
            archive.open('edge_index.npy') as one,
            archive.open('edge_index.npy') as two,
        ):
            # Read, not sought: the archive's checksum is of all bytes, and
            # Python 3.13 seeks from where the other one is.
            one.read(start)
            for begin in range(0, start + count * width, 2**20):
                two.read(min(2**20, start + count * width - begin))
            for begin in range(0, count, size):
                wanted = min(size, count - begin) * width
                pair = one.read(wanted), two.read(wanted)
                if min(map(len, pair)) < wanted:
                    raise ValueError('it ends too early')
                yield (
                    np.frombuffer(pair[0], dtype),
                    np.frombuffer(pair[1], dtype),
                )


def _read_text(path: Path, size: int) -> Iterator[tuple[Any, Any]]:
    opened = gzip.open if path.suffix == '.gz' else open
    with opened(path, 'rt') as file:
        lines = (x for x in file if x.strip() and not x.startswith('#'))
        while piece := list(itertools.islice(lines, size)):
            comma = ',' if ',' in piece[0] else None
            yield np.loadtxt(
                *(piece, np.int64),
                delimiter=comma,
                usecols=(0, 1),
                ndmin=2,
                quotechar='"',
            ).T


def _read_parquet(path: Path, size: int) -> Iterator[tuple[Any, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "a .parquet file needs 'pyarrow': install it"
        ) from None
    with pyarrow.parquet.ParquetFile(path) as table:
        if len(table.schema_arrow.names) < 2:
            raise ValueError('it needs two columns')
        for batch in table.iter_batches(batch_size=size):
            pair = [batch.column(k) for k in (0, 1)]
            if any(column.null_count for column in pair):
                raise ValueError('it has rows without a value')
            yield tuple(
                column.to_numpy(zero_copy_only=False) for column in pair
            )


def rows_from_edges(
    source: Any,
    num_nodes: int,
    *,
    folder: Path | None,
    memory: int,
    duplicates: str,
    undirected: bool,
) -> tuple[Tensor, Tensor, bool]:
    """Sort the edges of a source into rows, in memory or in a folder.

    The source is read once to count, and once more for every block of rows
    that fits into the memory.
    """
    fixed = 24 * num_nodes + 2**24
    # Four chunks at a time (read ahead, in work, and reversed), 16 bytes an
    # edge.
    size = min(2**21, (memory - fixed) // 4 // 64)
    if size < 1024:
        raise ValueError(
            f"'memory' needs to be at least {fixed + 2**18} bytes for "
            f'{num_nodes} nodes (got {memory})'
        )

    def edges() -> Iterator[tuple[Tensor, Tensor]]:
        return _directions(source, size, num_nodes, undirected)

    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    for row, _ in edges():
        torch.ops.pyg_trust.count_rows(row, rowptr[1:])
    torch.cumsum(rowptr, 0, out=rowptr)
    count, room = int(rowptr[-1]), (memory - fixed - 64 * size) // 4
    if folder is None:
        if count > room:
            raise ValueError(
                f"'memory' needs to be at least "
                f'{fixed + 64 * size + 4 * count} bytes for {count} edges in '
                f"memory (got {memory}): give more, or a 'folder' for the "
                'graph'
            )
        ((col, repeats),) = _blocks(edges, rowptr, room, duplicates, memory)
        # What was merged is given back.
        return rowptr, col if len(col) == count else col.clone(), repeats
    folder.mkdir(parents=True, exist_ok=True)
    writer, repeats = ArrayWriter(folder, 'col', np.dtype(np.int32)), False
    try:
        for part, again in _blocks(edges, rowptr, room, duplicates, memory):
            writer.write(part.numpy())
            repeats |= again
            del part  # before memory for the next
        entry = writer.close()
    except BaseException:
        writer.abort()
        raise
    facts = {'has_duplicates': repeats, 'is_undirected': undirected or None}
    save_rows(folder, {'rowptr': rowptr}, {'col': entry}, facts)
    return rowptr, as_tensor(map_array(folder / entry['file'])), repeats


def _blocks(
    edges: Callable[[], Iterator[tuple[Tensor, Tensor]]],
    rowptr: Tensor,
    room: int,
    duplicates: str,
    memory: int,
) -> Iterator[tuple[Tensor, bool]]:
    # Sorted blocks of rows, and whether they have duplicates. Where these are
    # merged, rowptr follows in the end.
    kernels, num_nodes = torch.ops.pyg_trust, rowptr.numel() - 1
    lengths, first = rowptr.diff(), 0
    while first < num_nodes:
        border = int(rowptr[first]) + room
        last = int(torch.searchsorted(rowptr, border, right=True)) - 1
        last = min(max(last, first + 1), num_nodes)
        start = rowptr[first : last + 1] - rowptr[first]
        if int(start[-1]) > room:
            raise ValueError(
                f"'memory' is too small for the {int(start[-1])} edges of "
                f'node {first} (got {memory})'
            )
        block = torch.empty(int(start[-1]), dtype=torch.int32)
        cursor = start[:-1].clone()
        good = True
        for row, col in edges():
            good = good and kernels.place_rows(
                row, col, cursor, block, None, first, num_nodes
            )
        if not good or not torch.equal(cursor, start[1:]):
            raise ValueError(
                "'source' needs to have the same edges whenever it is read "
                '(it has others now than when they were counted)'
            )
        del cursor
        repeated, place = kernels.sort_rows(start, block, None)
        if repeated and duplicates == 'raise':
            at = int(torch.searchsorted(start, place, right=True)) - 1
            raise ValueError(
                f"'source' lists edges more than once (the first is "
                f'{first + at} -> {int(block[place])}): choose what '
                "duplicates mean with duplicates='merge' or 'keep'"
            )
        if duplicates == 'merge':
            block = block[: kernels.merge_rows(start, block)]
            lengths[first:last] = start.diff()
        yield block, bool(repeated) and duplicates == 'keep'
        del block
        first = last
    torch.cumsum(lengths, 0, out=rowptr[1:])


def _directions(
    source: Any, size: int, num_nodes: int, undirected: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    # Chunks as tensors, followed by their reverses without self-loops.
    for row, col in _ahead(_chunks(source, size)):
        for index in (row, col):
            if index.size and not (
                index.min() >= 0 and index.max() < num_nodes
            ):
                raise ValueError(
                    f"'source' needs to be in [0, {num_nodes}), as "
                    f"'num_nodes' is {num_nodes} (got {index.min()} to "
                    f'{index.max()})'
                )
        one, two = as_tensor(row), as_tensor(col)
        yield one, two
        if undirected:
            proper = row != col
            if not proper.all():
                one, two = as_tensor(row[proper]), as_tensor(col[proper])
            yield two, one
