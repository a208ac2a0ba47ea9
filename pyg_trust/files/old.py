"""States of version 0.1, which are read for one more release."""

import hashlib
import hmac
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

    Raises an error if it holds more than tensors and plain values, or is
    damaged.
    """
    with zipfile.ZipFile(path) as archive:
        part = archive.testzip()
        if part is not None:
            raise ValueError(f'the checksum of {part} is another')
    return torch.load(path, map_location='cpu', weights_only=True)


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
