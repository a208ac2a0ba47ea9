"""Matrices on disk that are read and written in blocks of columns.

Results are ``.npy`` files in Fortran order, in which a block of columns is
one stretch: it is written once, and nothing else with it. Until all columns
are there the file is called ``NAME.part``, and beside it each block that is
finished has a marker with its checksum. A marker is written, in one step,
after its block is on the disk; so what a marker names is whole, whenever the
process ends.
"""

import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust import files, ops
from pyg_trust.graph._storage import as_tensor, checksum, map_array

# Rows that are transposed at a time.
_PANEL = 1 << 16
DTYPES = ('float32', 'float64', 'float16')


def as_matrix(x: Any) -> Any:
    """Open x as a numpy array (mapped if a path) or scipy CSC matrix."""
    if isinstance(x, str | Path):
        if not Path(x).is_file():
            raise FileNotFoundError(f"'x': there is no file '{x}'")
        x = map_array(Path(x), "'x': ")
    if isinstance(x, Tensor):
        x = x.detach()
        if x.layout == torch.sparse_csr and x.dim() == 2:
            ops.sparse_parts(x)  # checks that torch leaves out
            x = scipy.sparse.csr_array(
                (x.values().numpy(), x.col_indices(), x.crow_indices()),
                shape=tuple(x.shape),
            )
        elif x.layout == torch.strided and x.device.type == 'cpu':
            x = x.resolve_neg().numpy()
    if scipy.sparse.issparse(x):
        if x.format in ('csr', 'csc'):
            try:
                x.check_format()
            except ValueError as error:
                raise ValueError(f"'x' is no sparse matrix: {error}") from None
        x = x.tocsc()
    elif not isinstance(x, np.ndarray):
        raise TypeError(
            "'x' needs to be a path, a tensor on the CPU, an array or a "
            f'sparse CSR matrix (got {type(x).__name__})'
        )
    if x.ndim != 2 or x.dtype.name not in DTYPES:
        raise TypeError(
            f"'x' needs to be a matrix of {', '.join(DTYPES)} "
            f'(got {x.dtype} of the shape {list(x.shape)})'
        )
    return x


def is_on_disk_by_rows(matrix: Any) -> bool:
    """Return whether reading a block of columns touches the whole file."""
    return _file_of(matrix) is not None and not matrix.flags.f_contiguous


def _file_of(matrix: Any) -> np.memmap | None:
    # Views and tensors do not know the file; their base does.
    while matrix is not None and not isinstance(matrix, np.memmap):
        matrix = getattr(matrix, 'base', None)
    return matrix


def matrix_key(matrix: Any) -> str:
    """Return a matrix's checksum, or a file's name, size and time."""
    if scipy.sparse.issparse(matrix):
        parts = (matrix.indptr, matrix.indices, matrix.data)
        return f'sparse {matrix.shape} {[checksum(part) for part in parts]}'
    mapped = _file_of(matrix)
    if mapped is not None and mapped.filename is not None:
        name = mapped.filename
        info = os.stat(name)
        return (
            f'{Path(name).resolve()} {info.st_size} {info.st_mtime_ns} '
            f'{_place_in_file(matrix, mapped)} '
            f'{matrix.shape} {matrix.strides} {matrix.dtype}'
        )
    return matrix_checksum(matrix)


def matrix_checksum(matrix: Any) -> str:
    """Return the CRC-32 of a matrix's contents; reads files in full."""
    if scipy.sparse.issparse(matrix):
        return matrix_key(matrix)
    value = 0
    for start in range(0, matrix.shape[0], _PANEL):
        value = checksum(matrix[start : start + _PANEL], value)
        _let_go(matrix)
    return f'dense {matrix.shape} {matrix.dtype} {value}'


def _place_in_file(matrix: np.ndarray, mapped: np.memmap) -> int:
    # The offset tells slices of a file apart.
    whole = np.frombuffer(mapped._mmap, np.uint8)  # type: ignore[attr-defined]
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    return start + (
        matrix.__array_interface__['data'][0]
        - whole.__array_interface__['data'][0]
    )


def _let_go(matrix: Any) -> None:
    # Pages that were read need not stay in memory.
    mapped = _file_of(matrix)
    if mapped is not None and getattr(mapped, 'mode', '') == 'r':
        pages = getattr(mapped, '_mmap', None)
        if pages is not None and hasattr(mmap, 'MADV_DONTNEED'):
            pages.madvise(mmap.MADV_DONTNEED)


def read_block(
    matrix: Any, first: int, end: int, room: np.ndarray
) -> np.ndarray:
    """Read columns of a matrix into a dense array of rows.

    It is made in the given memory: allocating would cost more than the copy.
    """
    rows, columns = matrix.shape[0], end - first
    block = room[: rows * columns].reshape(rows, columns)
    if scipy.sparse.issparse(matrix):
        matrix[:, first:end].astype(block.dtype).toarray(out=block)
        return block
    for start in range(0, rows, _PANEL):
        part = slice(start, start + _PANEL)
        _copy(matrix[part, first:end], block[part])
        _let_go(matrix)
    return block


def _copy(given: np.ndarray, target: np.ndarray) -> None:
    # torch turns a matrix in tiles that stay in the cache, but supports the
    # native byte order alone.
    turned = given.strides[0] == given.itemsize
    if turned and given.dtype.isnative and given.dtype == target.dtype:
        torch.from_numpy(target).copy_(as_tensor(given))
    else:
        target[...] = given


def _said(path: Path) -> dict[str, Any]:
    # What a file beside the result says; nothing if it is damaged.
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


class ColumnFile:
    """Unfinished result file that is written block by block.

    It is read through a map, and written as a file: several machines may
    write to one page of a shared folder.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int],
        dtype: np.dtype,
        key: str,
        create: bool,
        room: int = 1 << 27,
    ) -> None:
        self.path, self.shape, self.key = path, shape, key
        self.dtype = np.dtype(dtype)
        self.part = path.with_name(f'{path.name}.part')
        self._call = path.with_name(f'{path.name}.part.call.json')
        # Rows that are turned together.
        width = max(1, shape[1] * self.dtype.itemsize)
        self.panel = max(1, min(shape[0], min(room, 1 << 27) // 2 // width))
        if create and not self._is_ours():
            self._remove_markers()
            self._make()
        elif not create and not self.part.is_file():
            raise FileNotFoundError(f"there is no '{self.part}'")

    def _map(self) -> np.memmap:
        # Anew each time: other machines write to the file as well.
        return map_array(self.part)

    def _is_ours(self) -> bool:
        if _said(self._call).get('key') != self.key:
            return False
        try:
            found = self._map()
        except ValueError:
            return False
        return (
            found.shape == self.shape
            and found.dtype == self.dtype
            and found.flags.f_contiguous
        )

    def _make(self) -> None:
        np.lib.format.open_memmap(
            self.part, 'w+', self.dtype, self.shape, fortran_order=True
        )
        with self.part.open('r+b') as file:
            # Allocate everything now, so that a full disk fails early.
            if hasattr(os, 'posix_fallocate'):
                size = self.part.stat().st_size
                os.posix_fallocate(file.fileno(), 0, size)
            os.fsync(file.fileno())
        self._write(self._call)

    def _write(self, path: Path, **more: Any) -> None:
        files.write(path, json.dumps({'key': self.key, **more}).encode())

    @property
    def token(self) -> str | None:
        """Return a token of the group of processes that works on the file."""
        return _said(self._call).get('token')

    @token.setter
    def token(self, value: str) -> None:
        self._write(self._call, token=value)

    # Blocks

    def _mark(self, kind: str, first: int, end: int, **more: Any) -> None:
        name = f'{self.part.name}.{kind}-{first}-{end}.json'
        self._write(self.path.with_name(name), **more)

    def _markers(self, kind: str) -> Iterator[tuple[int, int, Path]]:
        name = re.escape(f'{self.part.name}.{kind}-')
        for path in sorted(self.path.parent.iterdir()):
            found = re.fullmatch(rf'{name}([0-9]+)-([0-9]+)\.json', path.name)
            if found is not None:
                yield int(found[1]), int(found[2]), path

    def _remove_markers(self) -> None:
        self._call.unlink(missing_ok=True)
        for kind in ('done', 'over', 'staged'):
            for _, _, path in self._markers(kind):
                path.unlink(missing_ok=True)

    def done(self, verify: bool) -> list[tuple[int, int]]:
        """Return the finished blocks, without those with a wrong checksum."""
        blocks = []
        for first, end, path in self._markers('done'):
            known = _said(path)
            if (
                first < end <= self.shape[1]
                and known.get('key') == self.key
                and 'crc32' in known
                and (not verify or known['crc32'] == self._sums(first, end))
            ):
                blocks.append((first, end))
            else:
                # The region does not hold features either.
                self._mark('over', first, end)
                path.unlink(missing_ok=True)
        return blocks

    def _sums(self, first: int, end: int) -> list[int]:
        matrix, sums = self._map(), []
        for column in matrix[:, first:end].T:
            sums.append(checksum(column))
            _let_go(matrix)
        return sums

    def write(self, first: int, block: np.ndarray) -> None:
        """Write columns from :obj:`first` on, and mark them as finished."""
        end = first + block.shape[1]
        # This region may hold staged input; mark it as overwritten.
        self._mark('over', first, end)
        sums = [0] * block.shape[1]
        room = np.empty(min(_PANEL, len(block)) * block.shape[1], self.dtype)
        with self.part.open('r+b', buffering=0) as file:
            for start in range(0, len(block), _PANEL):
                rows = block[start : start + _PANEL]
                turned = self._put(file, first, start, rows, room)
                sums = list(map(zlib.crc32, turned, sums))
            os.fsync(file.fileno())
        self._mark('done', first, end, crc32=sums)

    def _put(
        self,
        file: FileIO,
        first: int,
        start: int,
        rows: np.ndarray,
        room: np.ndarray,
    ) -> np.ndarray:
        # Write rows to their places in the columns; return them turned.
        turned = room[: rows.size].reshape(rows.shape[::-1])
        _copy(rows.T, turned)
        size, begin = self.dtype.itemsize, self._map().offset
        for column, content in enumerate(turned, first):
            file.seek(begin + (column * self.shape[0] + start) * size)
            file.write(content.data.cast('B'))
        return turned

    # Features in row order on disk are transposed here, once.

    def stage(self, matrix: Any, panels: range) -> None:
        """Copy panels of rows of x, transposed, to the result's place."""
        room = np.empty(self.panel * self.shape[1], self.dtype)
        with self.part.open('r+b', buffering=0) as file:
            for start in (number * self.panel for number in panels):
                rows = matrix[start : start + self.panel]
                self._put(file, 0, start, rows, room)
                _let_go(matrix)
            os.fsync(file.fileno())

    @property
    def staged(self) -> bool:
        """Whether unwritten blocks of the file still hold the input x."""
        return any(True for _ in self._markers('staged'))

    @property
    def has_results(self) -> bool:
        """Whether any result was written or begun."""
        return any(True for _ in self._markers('over'))

    def mark_staged(self) -> None:
        """Mark the file as holding the input x."""
        self._mark('staged', 0, self.shape[1])

    def is_features(self, first: int, end: int) -> bool:
        """Return whether these columns still hold the input x."""
        return self.staged and not any(
            first < other_end and other < end
            for other, other_end, _ in self._markers('over')
        )

    def read(self, first: int, end: int, room: np.ndarray) -> np.ndarray:
        """Read columns of the file into a dense array of rows."""
        return read_block(self._map(), first, end, room)

    def finish(self) -> None:
        """Move the file to its final name, and delete the markers."""
        os.replace(self.part, self.path)
        files.sync_folder(self.path.parent)
        self._remove_markers()


def open_result(path: Path) -> Tensor:
    """Map the matrix of a finished file."""
    return as_tensor(map_array(path))
