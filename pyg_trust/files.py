"""Files that are never half written."""

import glob
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from pyg_trust._checks import check_instance


def write(path: str | Path, content: bytes | memoryview) -> None:
    """Replaces a file in one step: it has the old content or the new one.

    When it returns, the content is on the disk. What a process left beside
    the file when it was killed while writing is deleted: it may hold what has
    to be gone.

    Args:
        path (str or Path): of the file.
        content (bytes): what it is to hold.
    """
    check_instance('path', path, str, Path)
    check_instance('content', content, bytes, memoryview)
    path = Path(path)
    prefix = f'.{path.name}.'
    for left in path.parent.glob(f'{glob.escape(prefix)}*.tmp'):
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp('.tmp', prefix, path.parent)
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        # An interrupt may come after the switch: there is nothing left then.
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: str | Path) -> None:
    """Makes the names in a folder durable, where a system can.

    Args:
        folder (str or Path): the folder.
    """
    check_instance('folder', folder, str, Path)
    if os.name == 'nt':
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: str | Path, state: Any) -> None:
    """Writes a state of tensors and plain values as :func:`write` does.

    Args:
        path (str or Path): of the file.
        state (Any): what :func:`load` is to return.
    """
    check_instance('path', path, str, Path)
    stream = io.BytesIO()
    torch.save(state, stream)
    write(path, stream.getvalue())


def load(path: str | Path) -> Any:
    """Reads what :func:`save` has written, tensors to the CPU.

    A file is data here and can't run code: only tensors and plain values are
    read.

    Args:
        path (str or Path): of the file.
    """
    check_instance('path', path, str, Path)
    return torch.load(path, map_location='cpu', weights_only=True)
