"""Files that are whole: replaced at once, locked, and read without code."""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from filelock import FileLock
from torch import Tensor

from pyg_trust._checks import check_instance, validated

__all__ = [
    'DamagedFileError',
    'exclusive',
    'load',
    'packed',
    'peek',
    'save',
    'sync_folder',
    'write',
]

# The entry with everything that is no tensor.
_PLAIN = 'plain'


class DamagedFileError(ValueError):
    """Raised if a file's content differs from what was written to it."""


@contextlib.contextmanager
def exclusive(place: str | Path, kind: str = 'lock') -> Iterator[None]:
    """Lock a file or folder for a ``with`` block; do not nest such blocks.

    Waits until it is free. The lock is a file ``.{name}.{kind}`` beside the
    place, which need not exist. A read-only folder is used without a lock.
    """
    # Resolve links, so that each file has one lock.
    place = Path(place).resolve()
    if not place.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT,
            f'the folder of {place.name!r} needs to be made first',
            str(place.parent),
        )
    path = place.with_name(f'.{place.name}.{kind}')
    lock = FileLock(path)
    try:
        lock.acquire(poll_interval=0.01)
    except OSError:
        if os.access(path.parent, os.W_OK):
            raise
    try:
        yield
    finally:
        if lock.is_locked:
            # Whoever waits for a lock on a deleted file takes another one.
            with contextlib.suppress(OSError):
                path.unlink()
            lock.release()


@validated
def write(path: str | Path, content: bytes | memoryview) -> None:
    """Replace a file atomically: it has the old content or the new one.

    When the call returns, the content is on the disk. If the path is a
    symbolic link, the file that it leads to is replaced. Temporary files of
    killed processes are overwritten and deleted.
    """
    path = Path(path).resolve()
    new = path.with_name(f'.{path.name}.tmp')
    with exclusive(path, 'writing'):
        try:
            with open(
                new, 'wb', opener=lambda name, how: os.open(name, how, 0o600)
            ) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            # An interrupt may come after the switch.
            new.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(folder: str | Path) -> None:
    """Flush the list of files of a folder to disk, if the system can."""
    check_instance('folder', folder, str, Path)
    if os.name == 'nt':
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# States ######################################################################


def save(path: str | Path, state: Any) -> None:
    """Write a state of tensors and plain values to a file atomically.

    Args:
        path (str or Path): the path of the file.
        state (Any): nested lists, tuples and dictionaries of tensors, numbers,
            texts, booleans and :obj:`None`.

    Raises:
        TypeError: if the state holds anything else.
    """
    check_instance('path', path, str, Path)
    write(path, packed(state))


def packed(state: Any) -> bytes:
    """Convert a state to the bytes of a file in the format of safetensors.

    Args:
        state (Any): nested lists, tuples and dictionaries of tensors, numbers,
            texts, booleans and :obj:`None`.
    """
    tensors = dict[str, Tensor]()
    text = json.dumps(_plain(state, tensors, set())).encode()
    tensors[_PLAIN] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    about = {'crc32': str(zlib.crc32(text))}
    return safetensors.torch.save(tensors, about)


def load(path: str | Path) -> Any:
    """Read a state that :func:`save` has written, with tensors on the CPU.

    No code of a file is run: only tensors and plain values are read, and
    checksums are compared. States of version 0.1 are read as well.

    Raises:
        DamagedFileError: if the file holds anything else.
        OSError: if the file can't be opened.
    """
    return _loaded(path, True)


def peek(path: str | Path) -> Any:
    """Read a saved state without reading the values of its tensors.

    A tensor becomes ``{'tensor': name, 'is': [dtype, shape, checksum]}``.
    """
    return _loaded(path, False)


def _loaded(path: str | Path, whole: bool) -> Any:
    check_instance('path', path, str, Path)
    with open(path, 'rb') as file:
        old = file.read(2) == b'PK'
    try:
        if old:
            from pyg_trust.files.old import load_01

            return load_01(path)
        with safetensors.safe_open(path, framework='pt') as held:
            text = held.get_tensor(_PLAIN).numpy().tobytes()
            if held.metadata() != {'crc32': str(zlib.crc32(text))}:
                raise ValueError('its checksum is another')
            return _read(json.loads(text), held if whole else None)
    except MemoryError:
        raise
    except Exception as error:
        # Drop torch's advice on loading files that may run code.
        why = str(error) if type(error) is ValueError else ''
        raise DamagedFileError(
            f"'{path}' is damaged, or holds more than tensors and plain "
            'values' + (f': {why}' if why else '')
        ) from None


def _plain(value: Any, tensors: dict[str, Tensor], used: set[int]) -> Any:
    # JSON for a value; its tensors go into a dictionary.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if value.layout == torch.sparse_csr:
            parts = value.crow_indices(), value.col_indices(), value.values()
            held = [_plain(part, tensors, used) for part in parts]
            return {'csr': held, 'shape': list(value.shape)}
        if value.layout != torch.strided or value.is_meta:
            raise TypeError(
                "'state' needs to hold dense or CSR tensors (got a "
                f'{value.layout} tensor on {value.device})'
            )
        # safetensors takes none that share memory.
        name, flat = str(len(tensors)), value.detach().cpu().contiguous()
        memory = flat.untyped_storage().data_ptr()
        tensors[name] = flat.clone() if memory in used else flat
        used.add(memory)
        return {'tensor': name, 'is': _about(flat)}
    if isinstance(value, list | tuple):
        kind = 'list' if isinstance(value, list) else 'tuple'
        if {*map(type, value)} <= {int, float, str}:
            return {kind: value}
        return {kind: [_plain(each, tensors, used) for each in value]}
    if isinstance(value, dict) and {*map(type, value)} <= {int, str}:
        items = value.items()
        return {'dict': [[k, _plain(v, tensors, used)] for k, v in items]}
    raise TypeError(
        "'state' needs to hold tensors and plain values (got "
        f'{type(value).__name__})'
    )


def _read(node: Any, held: Any) -> Any:
    # The value that JSON stands for; without a file, no tensors.
    if not isinstance(node, dict):
        return node
    if 'dict' in node:
        return {k: _read(v, held) for k, v in node['dict']}
    if 'list' in node:
        return [
            _read(each, held) if isinstance(each, dict) else each
            for each in node['list']
        ]
    if 'tuple' in node:
        return tuple(_read({'list': node['tuple']}, held))
    if held is None:
        return node
    if 'csr' in node:
        row, col, values = (_read(each, held) for each in node['csr'])
        return torch.sparse_csr_tensor(
            row, col, values, node['shape'], check_invariants=True
        )
    # Not a view of the mapped file.
    made = held.get_tensor(node['tensor']).clone()
    if _about(made) != node['is']:
        raise ValueError(f'the checksum of entry {node["tensor"]} is another')
    return made


def _about(made: Tensor) -> list[Any]:
    # The dtype, the shape, and a checksum.
    content = made.reshape(-1).view(torch.uint8).numpy()
    return [str(made.dtype), list(made.shape), zlib.crc32(content.data)]
