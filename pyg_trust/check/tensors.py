"""Reader of tensors in ``torch.save`` files, without torch.

A file is data: of its pickle nothing is called but what builds tensors,
and dictionaries in order. Nothing is larger than the bytes that are there: an
entry is stored as it is, and a tensor has no more elements than its storage.
"""

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..verify.arrays import Tensor
from .answers import WRONG

# Bytes of an element, by the name of the storage and of the type.
_STORAGES = {
    'DoubleStorage': ('float64', 8),
    'FloatStorage': ('float32', 4),
    'HalfStorage': ('float16', 2),
    'BFloat16Storage': ('bfloat16', 2),
    'LongStorage': ('int64', 8),
    'IntStorage': ('int32', 4),
    'ShortStorage': ('int16', 2),
    'CharStorage': ('int8', 1),
    'ByteStorage': ('uint8', 1),
    'BoolStorage': ('bool', 1),
}


@dataclass(frozen=True)
class Sparse:
    """Sparse matrix as its parts.

    Args:
        layout (str): torch's name, ``'torch.sparse_csr'``.
        shape (tuple[int, ...]): the full shape.
        parts (tuple[Tensor, ...]): indices and values.
    """

    layout: str
    shape: tuple[int, ...]
    parts: tuple[Tensor, ...]


def load(path: str | Path) -> Any:
    """Read the tensors and plain values of a file of ``torch.save``.

    Raises:
        ValueError: if the file is none, is damaged, or holds anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except FileNotFoundError:
        raise
    except (
        *(*WRONG, AssertionError, EOFError, MemoryError, OSError),
        *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
    ) as error:
        first = next(iter(str(error).splitlines()), '')
        raise ValueError(
            f'no file of torch.save, or damaged ({type(error).__name__}: '
            f'{first})'
        ) from None


def _read(archive: zipfile.ZipFile) -> Any:
    entries = {}
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError('an entry is compressed, which torch does not do')
        name = entry.filename.partition('/')[2]
        if name in entries:
            raise ValueError(f'the entry {name!r} is there twice')
        entries[name] = entry
    order = entries.get('byteorder')
    if order is not None and archive.read(order) != b'little':
        raise ValueError('its numbers begin with the largest byte')
    stream = io.BytesIO(archive.read(entries['data.pkl']))
    return _Unpickler(stream, archive, entries).load()


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        stream: io.BytesIO,
        archive: zipfile.ZipFile,
        entries: dict[str, zipfile.ZipInfo],
    ) -> None:
        super().__init__(stream)
        self._archive, self._entries = archive, entries
        self._known: dict[tuple[str, str], np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == 'torch' and name in _STORAGES:
            return name
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise ValueError(f'it holds {module}.{name}, which is no tensor')
        return allowed

    def persistent_load(self, pid: Any) -> Any:
        what, storage, key, _, count = pid
        dtype, size = _STORAGES[storage]
        if what != 'storage' or type(count) is not int:
            raise ValueError('it refers to what is no storage')
        if (storage, key) not in self._known:
            content = self._archive.read(self._entries[f'data/{key}'])
            if len(content) != count * size:
                raise ValueError(f'storage {key} is not of {count} elements')
            kind = 'uint16' if dtype == 'bfloat16' else dtype
            array = np.frombuffer(content, np.dtype(kind).newbyteorder('<'))
            self._known[storage, key] = array
        return f'torch.{dtype}', self._known[storage, key]


def _dense(
    storage: Any,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *_: Any,
) -> Tensor:
    dtype, flat = storage
    numbers = (offset, *size, *stride)
    if any(type(n) is not int or n < 0 for n in numbers) or len(size) != len(
        stride
    ):
        raise ValueError('a tensor has no proper shape')
    count = math.prod(size)
    if not count:
        return Tensor(dtype, np.zeros(size, flat.dtype))
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if count > flat.size or offset + last >= flat.size:
        raise ValueError('a tensor has more elements than its storage')
    steps = [step * flat.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(flat[offset:], size, steps)
    return Tensor(dtype, np.ascontiguousarray(view).reshape(size))


def _sparse(layout: str, data: tuple[Any, ...]) -> Sparse:
    if layout == 'torch.sparse_coo':
        indices, values, shape, *coalesced = data
        if coalesced != [True]:
            raise ValueError('a sparse tensor needs to be coalesced')
        return Sparse(layout, tuple(shape), (indices, values))
    first, second, values, shape = data
    return Sparse(layout, tuple(shape), (first, second, values))


_ALLOWED: dict[tuple[str, str], Any] = {
    ('collections', 'OrderedDict'): OrderedDict,
    ('torch', 'Size'): tuple,
    ('torch._utils', '_rebuild_tensor_v2'): _dense,
    ('torch._utils', '_rebuild_parameter'): lambda data, *_: data,
    ('torch._utils', '_rebuild_sparse_tensor'): _sparse,
    ('torch.serialization', '_get_layout'): str,
}
