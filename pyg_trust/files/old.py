"""States of version 0.1, which are read for one more release."""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load_01(path: str | Path) -> Any:
    """Read a state that version 0.1 has written with torch.

    Args:
        path (str or Path): the path of the file.

    Raises:
        Exception: if it holds more than tensors and plain values, is
            compressed or damaged, or has tensors larger than the file.
    """
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type for part in archive.infolist()):
            raise ValueError('it is compressed, as no state is')
        part = archive.testzip()
        if part is not None:
            raise ValueError(f'the checksum of {part} is another')
    state = torch.load(path, map_location='cpu', weights_only=True)
    most, found = os.stat(path).st_size, dict[Any, int]()
    seen, left = set(), [state]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.layout == torch.sparse_csr:
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
            # A view may stand for any number of bytes.
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
    return state
