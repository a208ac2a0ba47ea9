"""Graphs on disk: memory-mapped arrays and a header, written atomically.

A folder holds plain ``.npy`` files and ``graph.json``, which names each of
them with its size and its checksum (CRC-32: against damage, not against
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
_UNITS = {'': 1, 'K': 10**3, 'M': 10**6, 'G': 10**9, 'T': 10**12}
_UNITS |= {f'{unit}I': 1024**k for k, unit in enumerate('KMGT', 1)}
_DTYPES = {
    'rowptr': ('int64',),
    'col': ('int32',),
    'weight': ('float32', 'float64'),
    'perm': ('int64',),
}
_FACTS = ('is_undirected', 'has_duplicates')
_KNOWN = {'format', 'num_nodes', 'num_edges', 'arrays', 'crc32', *_FACTS}


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


def checksum(array: np.ndarray, value: int = 0) -> int:
    """Return the CRC-32 of an array's bytes, read in pieces."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _PIECE):
        value = zlib.crc32(flat[start : start + _PIECE].data, value)
    return value


class ArrayWriter:
    """Writer of a one-dimensional ``.npy`` file, piece by piece.

    The file has a temporary name until :meth:`close`.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype) -> None:
        self.path = folder / f'{name}-{secrets.token_hex(8)}.npy'
        self.dtype, self.count, self.sum = np.dtype(dtype), 0, 0
        self._left = self.path.with_name(self.path.name + '.tmp')
        self._file = self._left.open('w+b')
        self._write_header()

    def _write_header(self) -> None:
        # Of one length for any size up to 10^19: numpy leaves room for it.
        about = {'fortran_order': False, 'shape': (self.count,)}
        np.lib.format.write_array_header_1_0(
            self._file,
            {'descr': np.lib.format.dtype_to_descr(self.dtype), **about},
        )

    def write(self, piece: np.ndarray) -> None:
        """Append entries of the dtype."""
        for start in range(0, piece.size, _PIECE):
            part = piece[start : start + _PIECE].data.cast('B')
            self._file.write(part)
            self.sum = zlib.crc32(part, self.sum)
        self.count += piece.size

    def close(self) -> dict[str, Any]:
        """Move the file to its final path; return its entry for a header."""
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._left, self.path)
        size = self.path.stat().st_size
        return {'file': self.path.name, 'bytes': size, 'crc32': self.sum}

    def abort(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self._left.unlink(missing_ok=True)


def map_array(path: Path, what: str = '') -> np.memmap:
    """Map the array in a ``.npy`` file; refuse a wrong length."""
    try:
        return np.lib.format.open_memmap(path, 'r')
    except Exception as error:
        # A header is parsed as Python, whose errors are of many kinds.
        raise DamagedFileError(f"{what}'{path}' is damaged: {error}") from None


def as_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor that shares the memory of an array."""
    with warnings.catch_warnings():
        # torch has no read-only tensors.
        warnings.filterwarnings('ignore', 'The given NumPy array is not')
        return torch.from_numpy(array)


# Graphs ######################################################################


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"'{path}' is missing: no graph was saved")
    try:
        header = json.loads(path.read_bytes())
        if header['format'] != FORMAT:
            raise ValueError(f'its format is not {FORMAT}')
        check_integer('num_nodes', header['num_nodes'], 1, 2**31 - 1)
        check_integer('num_edges', header['num_edges'], 0)
        arrays = header['arrays']
        check_instance('arrays', arrays, dict)
        strange = (set(arrays) - {*_DTYPES, 'order'}) | (set(header) - _KNOWN)
        if strange:
            raise ValueError(f'unknown entries {sorted(strange)}')
        for name in ('rowptr', 'col', *arrays):
            check_instance(name, arrays[name], dict)
        for name in _FACTS:
            check_instance(name, header.get(name), bool, type(None))
        # Older headers have no checksum.
        if header.get('crc32', _header_sum(header)) != _header_sum(header):
            raise ValueError('its checksum differs')
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"'{path}' is damaged: {error!r}") from None
    arrays.pop('order', None)  # of version 0.1
    return header


def _header_sum(header: dict[str, Any]) -> int:
    rest = {key: value for key, value in header.items() if key != 'crc32'}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def save_rows(
    folder: Path,
    tensors: dict[str, Tensor],
    written: dict[str, dict[str, Any]],
    facts: dict[str, bool | None],
) -> None:
    """Write the arrays that are not on disk yet, then the header."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = dict(written)
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        writer = ArrayWriter(folder, name, array.dtype)
        try:
            writer.write(array)
            arrays[name] = writer.close()
        except BaseException:
            writer.abort()
            raise
    files.sync_folder(folder)
    rowptr = tensors['rowptr']
    sizes = {'num_nodes': rowptr.numel() - 1, 'num_edges': int(rowptr[-1])}
    content = {'format': FORMAT, **sizes, **facts, 'arrays': arrays}
    content['crc32'] = _header_sum(content)
    files.write(
        folder / HEADER, json.dumps(content, indent=1).encode() + b'\n'
    )
    named = {entry['file'] for entry in arrays.values()}
    for path in folder.glob('*-????????????????.npy*'):
        if path.name not in named:
            path.unlink(missing_ok=True)


def load_rows(
    folder: Path, mmap: bool, verify: bool
) -> tuple[dict[str, Tensor], dict[str, bool]]:
    """Read the tensors of a saved graph, and the known :obj:`facts`."""
    header = _read_header(folder)
    tensors = {}
    for name, entry in header['arrays'].items():
        rows = name == 'rowptr'
        size = header['num_nodes'] + 1 if rows else header['num_edges']
        file = entry.get('file')
        # No file in another folder.
        if not isinstance(file, str) or not re.fullmatch(r'[\w-]+\.npy', file):
            raise DamagedFileError(
                f"'{folder / HEADER}' is damaged: it names a file {file!r}"
            )
        path = folder / file
        if not path.is_file():
            raise DamagedFileError(f"'{path}' is missing")
        array: np.ndarray = map_array(path)
        found = path.stat().st_size, array.dtype.str, array.shape
        fits = array.dtype.name in _DTYPES[name] and array.dtype.isnative
        if found[0] != entry.get('bytes') or not fits or found[2] != (size,):
            raise DamagedFileError(
                f"'{path}' is damaged: it holds {found[1]} of the shape "
                f'{list(found[2])} in {found[0]} bytes, and not {size} '
                f'{" or ".join(_DTYPES[name])} in {entry.get("bytes")}'
            )
        array = array if mmap and not rows else np.array(array)
        if verify and checksum(array) != entry.get('crc32'):
            raise DamagedFileError(
                f"'{path}' is damaged: its checksum differs"
            )
        tensors[name] = as_tensor(array)
    fault = _fault(tensors, verify)
    if fault is not None:
        path = folder / header['arrays'][fault]['file']
        raise DamagedFileError(f"'{path}' is damaged: it holds no {fault}")
    known = {name: header.get(name) for name in _FACTS}
    return tensors, {k: v for k, v in known.items() if v is not None}


def _fault(tensors: dict[str, Tensor], verify: bool) -> str | None:
    # Return the first array that no valid graph has, though its size and
    # checksum are right.
    rowptr, col = tensors['rowptr'], tensors['col']
    # Always, as it is in memory.
    if rowptr[0] != 0 or rowptr[-1] != len(col) or (rowptr.diff() < 0).any():
        return 'rowptr'
    if not verify:
        return None
    if torch.ops.pyg_trust.check_rows(rowptr, col):
        return 'col'
    weight, perm = tensors.get('weight'), tensors.get('perm')
    if weight is not None and not is_finite(weight):
        return 'weight'
    if perm is not None and len(perm) and int(perm.min()) < -1:
        return 'perm'
    return None
