"""Matrices on disk that are read and written in blocks of columns.

Results are ``.npy`` files in Fortran order, in which a block of columns is
one stretch: it is written once, and nothing else with it. Until all columns
are there the file is called ``NAME.part``, and beside it each block that is
finished has a marker with its checksum. A marker is written, in one step,
after its block is on the disk; so what a marker names is whole, whenever the
process ends.
"""

import io
import json
import mmap
import os
import zlib
from collections.abc import Iterator
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
    """Read columns of a matrix into a dense array of rows."""
    block = _block(room, matrix.shape[0], end - first)
    if scipy.sparse.issparse(matrix):
        matrix[:, first:end].astype(block.dtype).toarray(out=block)
        return block
    for start in range(0, len(block), _PANEL):
        part = slice(start, start + _PANEL)
        block[part] = matrix[part, first:end]
        _let_go(matrix)
    return block


def _block(room: np.ndarray, rows: int, columns: int) -> np.ndarray:
    # Allocating memory would cost more than the copy.
    return room[: rows * columns].reshape(rows, columns)


def _turned(rows: np.ndarray, room: np.ndarray) -> np.ndarray:
    # A Fortran-ordered array on the given memory.
    count, columns = rows.shape
    turned = room[: count * columns].reshape(columns, count).T
    _turn(rows, turned)
    return turned


def _turn(given: np.ndarray, target: np.ndarray) -> None:
    # Copy to the other memory order. torch copies in tiles that stay in the
    # cache, but supports the native byte order alone.
    if not (given.dtype.isnative and target.dtype == given.dtype):
        target[...] = given
    elif target.flags.f_contiguous:
        torch.from_numpy(target.T).copy_(as_tensor(given).t())
    else:
        torch.from_numpy(target).copy_(as_tensor(given))


class ColumnFile:
    """Unfinished result file that is written block by block."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int],
        dtype: np.dtype,
        key: str,
        create: bool,
        room: int = 1 << 27,
    ) -> None:
        self.path = path
        self.part = path.with_name(path.name + '.part')
        self.shape, self.dtype, self.key = shape, np.dtype(dtype), key
        self._start = len(self._header())
        self._room = min(room, 1 << 27)
        if create and not self._is_ours():
            self._remove_markers()
            self._make()
        elif not create and not self.part.is_file():
            raise FileNotFoundError(f"there is no '{self.part}'")

    def _header(self) -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer,
            {
                'descr': np.lib.format.dtype_to_descr(self.dtype),
                'fortran_order': True,
                'shape': self.shape,
            },
        )
        return buffer.getvalue()

    def _starts_well(self) -> bool:
        with self.part.open('rb') as file:
            return file.read(self._start) == self._header()

    def _call(self) -> Path:
        return self.path.with_name(self.path.name + '.part.call.json')

    def _is_ours(self) -> bool:
        try:
            known = json.loads(self._call().read_text())
        except (OSError, ValueError, RecursionError):
            return False
        return (
            isinstance(known, dict)
            and known.get('key') == self.key
            and self.part.is_file()
            and known.get('bytes') == self.part.stat().st_size
            and self._starts_well()
        )

    def _make(self) -> None:
        with self.part.open('w+b') as file:
            file.write(self._header())
            file.flush()
            size = file.tell()
            size += self.shape[0] * self.shape[1] * self.dtype.itemsize
            # Allocate everything now, so that a full disk fails early.
            if hasattr(os, 'posix_fallocate') and size > file.tell():
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # pragma: no cover
                file.truncate(size)
            os.fsync(file.fileno())
        self._write_call()

    def _write_call(self, **more: str) -> None:
        size = self.part.stat().st_size
        content = json.dumps({'key': self.key, 'bytes': size, **more})
        files.write(self._call(), content.encode())

    @property
    def token(self) -> str | None:
        """Return a token of the group of processes that works on the file."""
        return json.loads(self._call().read_bytes()).get('token')

    @token.setter
    def token(self, value: str) -> None:
        self._write_call(token=value)

    # Blocks

    def _marker(self, kind: str, first: int, end: int) -> Path:
        name = f'{self.path.name}.part.{kind}-{first}-{end}.json'
        return self.path.with_name(name)

    def _markers(self, kind: str) -> Iterator[tuple[int, int, Path]]:
        prefix = f'{self.path.name}.part.{kind}-'
        for path in sorted(self.path.parent.iterdir()):
            name = path.name
            if not (name.startswith(prefix) and name.endswith('.json')):
                continue
            first, _, end = name[len(prefix) : -5].partition('-')
            if (first + end).isascii() and first.isdigit() and end.isdigit():
                yield int(first), int(end), path

    def _remove_markers(self) -> None:
        self._call().unlink(missing_ok=True)
        for kind in ('done', 'over', 'staged'):
            for _, _, path in list(self._markers(kind)):
                path.unlink(missing_ok=True)

    def done(self, verify: bool) -> list[tuple[int, int]]:
        """Return the finished blocks, without those with a wrong checksum."""
        blocks = []
        for first, end, path in self._markers('done'):
            try:
                known = json.loads(path.read_text())
                good = (
                    first < end <= self.shape[1]
                    and known['key'] == self.key
                    and (not verify or known['crc32'] == self._sum(first, end))
                )
            except (
                *(OSError, ValueError, KeyError, TypeError),
                RecursionError,
            ):
                good = False
            if good:
                blocks.append((first, end))
            else:
                # The region does not hold features either.
                self._mark('over', first, end)
                path.unlink(missing_ok=True)
        return blocks

    def _at(self, column: int, row: int = 0) -> int:
        return self._start + (
            (column * self.shape[0] + row) * self.dtype.itemsize
        )

    def _sum(self, first: int, end: int) -> list[int]:
        values = []
        with self.part.open('rb') as file:
            for column in range(first, end):
                file.seek(self._at(column))
                left, value = self._at(column + 1) - self._at(column), 0
                while left > 0:
                    piece = file.read(min(left, 1 << 24))
                    if not piece:
                        return []
                    value = zlib.crc32(piece, value)
                    left -= len(piece)
                values.append(value)
        return values

    def _mark(self, kind: str, first: int, end: int, **more: Any) -> None:
        content = json.dumps({'key': self.key, **more})
        files.write(self._marker(kind, first, end), content.encode())

    def write(self, first: int, block: np.ndarray) -> None:
        """Write columns from :obj:`first` on, and mark them as finished."""
        end = first + block.shape[1]
        # This region may hold staged input; mark it as overwritten.
        self._mark('over', first, end)
        value = self._put(first, block)
        self._mark('done', first, end, crc32=value)

    def _put(self, first: int, block: np.ndarray) -> list[int]:
        values = [0] * block.shape[1]
        with self.part.open('r+b', buffering=0) as file:
            rows = min(_PANEL, len(block))
            room = np.empty(rows * block.shape[1], self.dtype)
            for start in range(0, len(block), _PANEL):
                part = _turned(block[start : start + _PANEL], room)
                for column, value in enumerate(values):
                    content = part[:, column].data.cast('B')
                    file.seek(self._at(first + column, start))
                    file.write(content)
                    values[column] = zlib.crc32(content, value)
            os.fsync(file.fileno())
        return values

    # Features in row order on disk are transposed here, once.

    def stage(self, matrix: Any, columns: int, rows: range) -> None:
        """Copy panels of rows of x, transposed, to the result's place."""
        with self.part.open('r+b', buffering=0) as file:
            room = np.empty(self.panel * columns, self.dtype)
            for panel in rows:
                start = panel * self.panel
                part = _turned(matrix[start : start + self.panel], room)
                for column in range(columns):
                    file.seek(self._at(column, start))
                    file.write(part[:, column].data.cast('B'))
                _let_go(matrix)
            os.fsync(file.fileno())

    @property
    def panel(self) -> int:
        """Number of rows to transpose together, within 64 MB."""
        width = max(1, self.shape[1] * self.dtype.itemsize)
        return max(1, min(self.shape[0], self._room // 2 // width))

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

    def read(self, first: int, end: int, block_room: np.ndarray) -> np.ndarray:
        """Read columns of the file into a dense array of rows."""
        block = _block(block_room, self.shape[0], end - first)
        with self.part.open('rb', buffering=0) as file:
            room = np.empty((end - first) * _PANEL, self.dtype)
            for start in range(0, len(block), _PANEL):
                rows = min(_PANEL, len(block) - start)
                part = room[: rows * (end - first)]
                part = part.reshape(end - first, rows).T
                for column in range(end - first):
                    file.seek(self._at(first + column, start))
                    if file.readinto(part[:, column].data.cast('B')) != (
                        rows * self.dtype.itemsize
                    ):
                        raise files.DamagedFileError(
                            f"'{self.part}' is damaged: it ends too early"
                        )
                _turn(part, block[start : start + rows])
        return block

    def will_need(self, first: int, end: int) -> None:
        """Ask the system to read a range of columns ahead."""
        if hasattr(os, 'posix_fadvise'):
            with self.part.open('rb') as file:
                os.posix_fadvise(
                    file.fileno(),
                    self._at(first),
                    self._at(end) - self._at(first),
                    os.POSIX_FADV_WILLNEED,
                )

    def finish(self) -> None:
        """Move the file to its final name, and delete the markers."""
        os.replace(self.part, self.path)
        files.sync_folder(self.path.parent)
        self._remove_markers()


def open_result(path: Path) -> Tensor:
    """Map the matrix of a finished file."""
    return as_tensor(np.load(path, mmap_mode='r', allow_pickle=False))
