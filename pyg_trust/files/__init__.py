"""Atomic reading and writing of files."""

import contextlib
import errno
import glob
import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import check_instance, validated

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]


class DamagedFileError(ValueError):
    """Raised if a file's content differs from what was written to it."""


@validated
def write(path: str | Path, content: bytes | memoryview) -> None:
    """Replace a file atomically: it has the old content or the new one.

    A symbolic link stays one: the file that it leads to is replaced, so that
    no name has the old content. When it returns, the content is on the disk.
    What a process left beside the file when it was killed while writing is
    deleted: it may hold what has to be gone. What somebody is writing at this
    moment is left alone.
    """
    path = Path(path).resolve()
    check_folder(path)
    delete_unfinished(path)
    file = _temporary(path)
    name = file.name
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                # Closing the file would unlock it.
                os.replace(name, path)
        if fcntl is None:  # pragma: no cover
            os.replace(name, path)
    except BaseException:
        # An interrupt may come after the switch: there is nothing left then.
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is not there.

    Args:
        path (Path): the path of the file.

    Raises:
        FileNotFoundError: that names the folder.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT,
            f'the folder of {path.name!r} needs to be made first',
            str(path.parent),
        )


def delete_unfinished(path: str | Path) -> None:
    """Delete temporary files that killed writers left beside a file.

    A file that is being written is locked by its writer, and stays.
    """
    check_instance('path', path, str, Path)
    path = Path(path)
    for left in path.parent.glob(f'{glob.escape(_prefix(path))}*.tmp'):
        if fcntl is None:  # pragma: no cover
            # An open file can't be deleted there.
            with contextlib.suppress(PermissionError):
                left.unlink(missing_ok=True)
            continue
        try:
            handle = os.open(left, os.O_RDWR)
        except (FileNotFoundError, PermissionError):
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def _prefix(path: Path) -> str:
    return f'.{path.name}.'


def _temporary(path: Path) -> Any:
    # A new file that is locked while it is open, and was not deleted by
    # somebody who came before the lock. Whoever loses it closes it.
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            suffix='.tmp',
            prefix=_prefix(path),
            dir=path.parent,
            delete=False,
        )
        if fcntl is None:  # pragma: no cover
            return file
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def sync_folder(folder: str | Path) -> None:
    """Flush the file names in a folder to disk, if the system can."""
    check_instance('folder', folder, str, Path)
    if os.name == 'nt':
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: str | Path, state: Any) -> None:
    """Write a state of tensors and plain values atomically.

    Args:
        path (str or Path): the path of the file.
        state (Any): the state that :func:`load` will return.
    """
    check_instance('path', path, str, Path)
    stream = io.BytesIO()
    torch.save(state, stream)
    write(path, stream.getvalue())


def load(path: str | Path) -> Any:
    """Read a state that :func:`save` has written, with tensors on the CPU.

    A file is data here and can't run code: only tensors and plain values are
    read. Tensors together have no more bytes than the file, and its checksums
    are compared.

    Raises:
        DamagedFileError: if the file holds anything else.
        OSError: if the file can't be opened.
    """
    check_instance('path', path, str, Path)
    with open(path, 'rb') as file:
        try:
            _check_archive(file)
            file.seek(0)
            state = torch.load(file, map_location='cpu', weights_only=True)
            _check_sizes(state, os.fstat(file.fileno()).st_size)
        except MemoryError:
            raise
        except Exception as error:
            # Drop torch's advice on loading files that may run code.
            why = str(error) if type(error) is ValueError else ''
            raise DamagedFileError(
                f"'{path}' is damaged, or holds more than tensors and plain "
                'values' + (f': {why}' if why else '')
            ) from None
    return state


def _check_archive(file: Any) -> None:
    # Refuse members that decompress to more than their size, and damaged ones.
    with zipfile.ZipFile(file) as archive:
        if any(part.compress_type for part in archive.infolist()):
            raise ValueError('it is compressed, as no state is')
        part = archive.testzip()
        if part is not None:
            raise ValueError(f'the checksum of {part} is another')


def _check_sizes(state: Any, most: int) -> None:
    # A view with a stride of 0 stands for any number of bytes, and so do many
    # views of one storage.
    found: dict[Any, int] = {}
    seen, left = set(), [state]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.layout == torch.sparse_csr:
                # A sparse tensor's width is bounded by no index, and dense
                # rows need it.
                if value.size(-1) > most:
                    raise ValueError(
                        f'it holds a matrix of {value.size(-1)} columns, in '
                        f'{most} bytes'
                    )
                left += [value.crow_indices(), value.col_indices()]
                left.append(value.values())
                continue
            if value.layout != torch.strided or value.device.type != 'cpu':
                raise ValueError(
                    f'it holds a tensor of {value.layout} on {value.device}'
                )
            place = (value.data_ptr(), value.shape, value.stride())
            found[place] = value.numel() * value.element_size()
        elif id(value) not in seen:
            # Visit each list once, however often it is referenced.
            seen.add(id(value))
            if isinstance(value, dict):
                left += [*value, *value.values()]
            elif isinstance(value, list | tuple | set):
                left += value
    if sum(found.values()) > most:
        raise ValueError(
            f'its tensors would take {sum(found.values())} bytes, of {most} '
            'in the file'
        )
