"""States of version 0.1, which are read for one more release."""

import hashlib
import hmac
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import check_tensor

__all__ = ['load_01', 'root_01']


def load_01(path: str | Path) -> Any:
    """Read a state that version 0.1 has written with torch.

    Raises an error if it holds more than tensors and plain values, is
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


def root_01(state: dict[str, Tensor], contents: Mapping[int, str]) -> str:
    """Compute the root of seals of version 0.1, with a salt for each item."""
    names: Any = state.get('names')
    salts: Any = state['salts']
    check_tensor('state', names, torch.int64, ('n',))
    check_tensor('state', salts, torch.uint8, (names.numel(), 32))
    salted = dict(zip(names.tolist(), salts.numpy(), strict=True))
    if salted.keys() != contents.keys() or len(salted) != names.numel():
        raise ValueError(
            "'state' needs to have salts for the items that are there "
            f'(got {len(salted)} for {len(contents)})'
        )
    blocks: dict[int, list[bytes]] = {}
    for name in sorted(salted):
        text = contents[name].encode()
        digest = hmac.digest(salted[name].tobytes(), text, 'sha256')
        blocks.setdefault(name // 1024, []).append(b'%d ' % name + digest)
    whole = hashlib.sha256()
    for number, parts in sorted(blocks.items()):
        digest = hashlib.sha256(b''.join(parts)).digest()
        whole.update(b'%d ' % number + digest)
    return whole.hexdigest()
