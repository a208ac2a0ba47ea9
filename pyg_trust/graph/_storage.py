"""Graphs and arrays on disk: chunked, memory-mapped, written atomically.

A folder holds plain ``.npy`` files and a JSON header that names each of them
with its size and its checksum (CRC-32, against damage and not against
intent). The header is written last and in one step, so that it only ever
names what is whole; each array has a new name, so that an old header stays
true until the new one takes its place.
"""

import json
import os
import re
import secrets
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust import files
from pyg_trust._checks import check_instance, check_integer, is_finite
from pyg_trust.files import DamagedFileError

HEADER = 'graph.json'
FORMAT = 1
# Bytes that are read, checked or written at a time.
_PIECE = 1 << 24
# File names that a header may contain: none in another folder.
_FILE = r'[\w-]+\.npy'
_UNITS = {'': 1, 'K': 10**3, 'M': 10**6, 'G': 10**9, 'T': 10**12}
_UNITS |= {f'{unit}I': 1024**k for k, unit in enumerate('KMGT', 1)}


def parse_memory(memory: int | str) -> int:
    """Convert a number or text such as ``'8GB'`` or ``'512 MiB'`` to bytes."""
    if isinstance(memory, str):
        match = re.fullmatch(
            r'\s*(\d+(?:\.\d*)?)\s*([KMGT]?I?)B?\s*', memory.upper()
        )
        if match is not None and match.group(2) in _UNITS:
            return int(float(match.group(1)) * _UNITS[match.group(2)])
        raise ValueError(
            "'memory' needs to be a number of bytes or a text such as '8GB' "
            f'(got {memory!r})'
        )
    return check_integer('memory', memory, 1)


def available_memory() -> int:
    """Return the bytes of available memory; 4 GB if unknown."""
    try:
        text = Path('/proc/meminfo').read_text()
    except OSError:  # pragma: no cover
        return 4 * 10**9
    match = re.search(r'^MemAvailable:\s+(\d+) kB', text, re.MULTILINE)
    free = int(match.group(1)) * 1024 if match else 4 * 10**9
    for limit in ('memory.max', 'memory/memory.limit_in_bytes'):
        try:
            value = Path('/sys/fs/cgroup', limit).read_text().strip()
        except OSError:
            continue
        if value.isdigit():
            free = min(free, int(value))
    return free


# Arrays ######################################################################


def checksum(array: np.ndarray) -> int:
    """Return the CRC-32 of an array's bytes, read in pieces."""
    check_instance('array', array, np.ndarray)
    flat = array.reshape(-1).view(np.uint8)
    value = 0
    for start in range(0, flat.size, _PIECE):
        value = zlib.crc32(flat[start : start + _PIECE].data, value)
    return value


class ArrayWriter:
    """Writer of a one-dimensional ``.npy`` file, piece by piece.

    The file has a temporary name until :meth:`close`.

    Args:
        path (str or Path): the path of the file.
        dtype (numpy.dtype): the dtype of the entries.
    """

    def __init__(self, path: str | Path, dtype: np.dtype) -> None:
        check_instance('path', path, str, Path)
        self.path = Path(path).absolute()
        self.dtype = np.dtype(dtype)
        self.count, self.sum = 0, 0
        self._left = self.path.with_name(self.path.name + '.tmp')
        self._file = self._left.open('w+b')
        self._write_header()
        self._start = self._file.tell()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                'descr': np.lib.format.dtype_to_descr(self.dtype),
                'fortran_order': False,
                'shape': (self.count,),
            },
        )

    def write(self, piece: np.ndarray) -> None:
        """Append entries."""
        check_instance('piece', piece, np.ndarray)
        if piece.dtype != self.dtype or piece.ndim != 1:
            raise ValueError(
                f"'piece' needs to be one-dimensional {self.dtype} "
                f'(got {piece.dtype} of the shape {list(piece.shape)})'
            )
        piece = np.ascontiguousarray(piece)
        for start in range(0, piece.size, _PIECE):
            part = piece[start : start + _PIECE].data.cast('B')
            self._file.write(part)
            self.sum = zlib.crc32(part, self.sum)
        self.count += piece.size

    def close(self) -> dict[str, Any]:
        """Move the file to its final path; return its entry for a header."""
        self._file.seek(0)
        # numpy's header has spare room for a longer size.
        self._write_header()
        if self._file.tell() != self._start:  # pragma: no cover
            raise RuntimeError('numpy has changed how long a header is')
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._left, self.path)
        return {
            'file': self.path.name,
            'bytes': self.path.stat().st_size,
            'crc32': self.sum,
        }

    def abort(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self._left.unlink(missing_ok=True)


def read_array(
    folder: Path, entry: dict[str, Any], mmap: bool, verify: bool
) -> np.ndarray:
    """Read the array that a header describes.

    Raises:
        DamagedFileError: if the file is not there or not what was written.
    """
    check_instance('folder', folder, Path)
    check_instance('entry', entry, dict)
    name = entry.get('file')
    if not isinstance(name, str) or not re.fullmatch(_FILE, name):
        raise DamagedFileError(
            f"'{folder / HEADER}' is damaged: it names a file {name!r}"
        )
    path = folder / name
    if not path.is_file():
        raise DamagedFileError(f"'{path}' is missing")
    size = path.stat().st_size
    if size != entry.get('bytes'):
        raise DamagedFileError(
            f"'{path}' is damaged: it has {size} bytes, and "
            f'{entry.get("bytes")} were written'
        )
    mapped = map_array(path)
    if mapped.ndim != 1:
        raise DamagedFileError(
            f"'{path}' is damaged: it is no one-dimensional array"
        )
    array = mapped if mmap else np.array(mapped)
    if verify and checksum(array) != entry.get('crc32'):
        raise DamagedFileError(f"'{path}' is damaged: its checksum differs")
    return array


def map_array(path: Path, what: str = '') -> np.memmap:
    """Map the array in a ``.npy`` file; refuse a wrong length.

    Raises:
        DamagedFileError: if the file holds no array.
    """
    check_instance('path', path, Path)
    check_instance('what', what, str)
    try:
        return np.lib.format.open_memmap(path, 'r')
    except Exception as error:
        # A header is parsed as Python, whose errors are of many kinds.
        raise DamagedFileError(f"{what}'{path}' is damaged: {error}") from None


def as_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor that shares the memory of an array."""
    check_instance('array', array, np.ndarray)
    with warnings.catch_warnings():
        # torch has no read-only tensors.
        warnings.filterwarnings('ignore', 'The given NumPy array is not')
        return torch.from_numpy(array)


# Graphs ######################################################################


def write_header(
    folder: Path, header: dict[str, Any], arrays: dict[str, dict[str, Any]]
) -> None:
    """Write the header of a folder, and delete arrays it does not name."""
    check_instance('folder', folder, Path)
    check_instance('header', header, dict)
    check_instance('arrays', arrays, dict)
    files.sync_folder(folder)
    content = {'format': FORMAT, **header, 'arrays': arrays}
    content['crc32'] = _header_sum(content)
    files.write(
        folder / HEADER, json.dumps(content, indent=1).encode() + b'\n'
    )
    named = {entry['file'] for entry in arrays.values()}
    for path in folder.glob('*-????????????????.npy*'):
        if path.name not in named:
            path.unlink(missing_ok=True)


def read_header(folder: str | Path) -> dict[str, Any]:
    """Read the header of a folder.

    Raises:
        FileNotFoundError: if the folder has no header.
        DamagedFileError: if the header is malformed.
    """
    check_instance('folder', folder, str, Path)
    path = Path(folder) / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"'{path}' is missing: no graph was saved")
    try:
        header = json.loads(path.read_bytes())
        known = header['format'] == FORMAT
        if known:
            _check_header(header)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"'{path}' is damaged: {error!r}") from None
    if not known:
        raise DamagedFileError(
            f"'{path}' has the format {header['format']}, and this version "
            f'of pyg_trust reads {FORMAT}'
        )
    return header


def _check_header(header: dict[str, Any]) -> None:
    check_integer('num_nodes', header['num_nodes'], 1, 2**31 - 1)
    check_integer('num_edges', header['num_edges'], 0)
    arrays = header['arrays']
    check_instance('arrays', arrays, dict)
    for name in ('rowptr', 'col', *arrays):
        if name not in _DTYPES:
            raise ValueError(f'unknown array {name!r}')
        check_instance(name, arrays[name], dict)
    facts = ('is_undirected', 'has_duplicates')
    known = ('format', 'num_nodes', 'num_edges', 'arrays', 'crc32', *facts)
    strange = set(header) - set(known)
    if strange:
        raise ValueError(f'unknown entries {sorted(strange)}')
    for name in facts:
        if header.get(name) is not None:
            check_instance(name, header[name], bool)
    # Older headers have no checksum.
    if header.get('crc32', _header_sum(header)) != _header_sum(header):
        raise ValueError('its checksum differs')


def _header_sum(header: dict[str, Any]) -> int:
    rest = {key: value for key, value in header.items() if key != 'crc32'}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def new_name(name: str) -> str:
    """Return a file name that no header has used yet."""
    check_instance('name', name, str)
    return f'{name}-{secrets.token_hex(8)}.npy'


def save_rows(
    folder: Path,
    tensors: dict[str, Tensor],
    written: dict[str, dict[str, Any]],
    header: dict[str, Any],
) -> None:
    """Write the arrays that are not on disk yet, then the header.

    Args:
        folder (Path): the folder, created if it does not exist.
        tensors (dict): one-dimensional tensors, by name.
        written (dict): results of :meth:`ArrayWriter.close`, by name.
        header (dict): the header's other fields.
    """
    check_instance('folder', folder, Path)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = dict(written)
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        writer = ArrayWriter(folder / new_name(name), array.dtype)
        try:
            writer.write(array)
            arrays[name] = writer.close()
        except BaseException:
            writer.abort()
            raise
    write_header(folder, header, arrays)


_DTYPES = {
    'rowptr': ('int64',),
    'col': ('int32',),
    'weight': ('float32', 'float64'),
    'perm': ('int64',),
    'order': ('int64',),  # of 0.1: read and left
}


def load_rows(
    folder: Path, mmap: bool, verify: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a saved graph.

    Args:
        folder (Path): the folder of the graph.
        mmap (bool): whether to map tensors with an entry per edge.
        verify (bool): whether to read and check all tensors.
    """
    check_instance('folder', folder, Path)
    header = read_header(folder)
    n, m = header['num_nodes'], header['num_edges']
    tensors = {}
    for name, entry in header['arrays'].items():
        long = name in ('col', 'weight', 'perm')
        array = read_array(folder, entry, mmap and long, verify)
        size = {'rowptr': n + 1, 'order': n}.get(name, m)
        if (
            array.dtype.name not in _DTYPES[name]
            or not array.dtype.isnative
            or array.size != size
        ):
            raise DamagedFileError(
                f"'{folder / entry['file']}' is damaged: it holds "
                f'{array.size} {array.dtype.str}, and not {size} '
                f'{" or ".join(_DTYPES[name])}'
            )
        tensors[name] = as_tensor(array)
    fault = _fault(tensors, verify)
    if fault is not None:
        path = folder / header['arrays'][fault]['file']
        raise DamagedFileError(f"'{path}' is damaged: it holds no {fault}")
    return tensors, header


def _fault(tensors: dict[str, Tensor], verify: bool) -> str | None:
    # Return the first array that no valid graph has, though its size and
    # checksum are right.
    rowptr, col = tensors['rowptr'], tensors['col']
    m = col.numel()
    # Always, as these arrays are in memory.
    if rowptr[0] != 0 or rowptr[-1] != m or (rowptr.diff() < 0).any():
        return 'rowptr'
    if not verify:
        return None
    if torch.ops.pyg_trust.check_rows(rowptr, col):
        return 'col'
    weight, perm = tensors.get('weight'), tensors.get('perm')
    if weight is not None and not is_finite(weight):
        return 'weight'
    if perm is not None and m and int(perm.min()) < -1:
        return 'perm'
    return None
