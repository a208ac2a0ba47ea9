"""Digests of arrays, and files of arrays that are as large as they say.

**Statement.** Two lists of parts have one :func:`fingerprint` only if they are
equal, or a collision of SHA-256 is known: each part is hashed behind its type,
shape and length, so that no two lists make the same bytes. :func:`read_arrays`
returns no more numbers than the file has bytes, and executes nothing of it.
A file may hold narrow numbers: :func:`widened` returns the same values.
"""

import hashlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """A dense tensor.

    Args:
        dtype (str): as torch names it, ``'torch.float32'``.
        array (ndarray): the values; bits of types that numpy lacks.
    """

    dtype: str
    array: np.ndarray


def fingerprint(*parts: Any) -> str:
    """Digest arrays, texts and numbers."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            part = Tensor(f'torch.{part.dtype}', part)
        if isinstance(part, Tensor):
            header: Any = ('tensor', part.dtype, part.array.shape)
            flat = np.ascontiguousarray(part.array).reshape(-1)
            content: Any = flat.view(np.uint8)
        elif part is None or isinstance(part, str | int | float):
            header, content = type(part).__name__, repr(part).encode()
        else:
            raise ValueError(f'{type(part).__name__} has no fingerprint')
        digest.update(repr((header, len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


def named(state: Mapping[Any, Any], kind: type) -> list[Any]:
    """List the names and tensors of nested dictionaries, sorted by name."""
    pairs = list(_flat('', state, kind))
    flat = dict(pairs)
    if len(flat) < len(pairs):
        raise ValueError(
            "'state' needs to have every tensor under a name of its own: of "
            "{'a.b': ...} and {'a': {'b': ...}} either may be read"
        )
    return [part for name in sorted(flat) for part in (name, flat[name])]


def _flat(
    above: str, state: Mapping[Any, Any], kind: type
) -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, kind):
            yield f'{above}{name}', value
        elif isinstance(value, Mapping):
            yield from _flat(f'{above}{name}.', value, kind)


def divides(ptr: np.ndarray, rows: int, total: int) -> bool:
    """Return whether row i can be entries ``ptr[i]`` to ``ptr[i + 1]``.

    (Differences would wrap around, and hide entries beyond 2^63.)
    """
    return (
        ptr.shape == (rows + 1,)
        and ptr[0] == 0
        and ptr[-1] == total
        and bool((ptr[:-1] <= ptr[1:]).all())
    )


def read_arrays(path: str | Path | io.BytesIO) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz``, none of them larger than its file."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type for entry in entries):
                raise ValueError('an array is compressed')
            made = {
                entry.filename.removesuffix('.npy'): _array(
                    archive.read(entry)
                )
                for entry in entries
            }
    except FileNotFoundError:
        raise
    except Exception as error:
        # Any exception that Python's parser raises on a header.
        raise ValueError(f'no arrays of numpy, or damaged ({error})') from None
    if len(made) < len(entries):
        raise ValueError('two arrays have one name')
    return made


def widened(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return integers as int64 and floats as float64.

    Arrays ``x.units``, uint8 ``[..., bytes of a number]``, and ``x.places``
    become ``x``: whole numbers, lowest byte first, in units of 2^-places.
    Other names with a dot are left as they are.
    """
    made = {}
    for name, value in arrays.items():
        start, _, code = name.partition('.')
        kind = {'i': np.int64, 'u': np.int64, 'f': np.float64}.get(
            value.dtype.kind
        )
        if code == 'units':
            made[start] = _floats(value, arrays.get(f'{start}.places'))
        elif not code and kind is not None:
            made[name] = value.astype(kind)
        elif code != 'places':
            made[name] = value
    return made


def _floats(units: np.ndarray, places: np.ndarray | None) -> np.ndarray:
    width = units.shape[-1] if units.ndim else 0
    if units.dtype != np.uint8 or not 0 < width <= 6 or places is None:
        raise ValueError('an array of units is of another kind')
    if places.shape or places.dtype.kind != 'i' or abs(int(places)) > 2000:
        raise ValueError('the units of an array are none')
    wide = np.zeros((*units.shape[:-1], 8), dtype=np.uint8)
    wide[..., 8 - width :] = units
    whole = wide.view('<i8')[..., 0] >> (64 - 8 * width)
    return np.ldexp(whole.astype(float), -int(places))


def _array(content: bytes) -> np.ndarray:
    # The bytes that np.save writes, as many as the header says.
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError('an array is of another version')
    shape, turned, dtype = np.lib.format.read_array_header_1_0(stream)
    size, start = math.prod(shape) * dtype.itemsize, stream.tell()
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError('an array holds objects, or less than nothing')
    if start + size != len(content):
        raise ValueError('an array is of another size than it says')
    flat = np.frombuffer(content, dtype, offset=start)
    return flat.reshape(shape, order='F' if turned else 'C')
