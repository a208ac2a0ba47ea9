"""Files that are never half written."""

import os
import tempfile
from pathlib import Path


def write(path: str | Path, content: bytes) -> None:
    """Replaces a file in one step: it has the old content or the new one.

    When it returns, the content is on the disk.

    Args:
        path (str or Path): of the file.
        content (bytes): what it is to hold.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    if os.name != 'nt':
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
