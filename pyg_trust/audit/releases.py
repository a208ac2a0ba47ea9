"""Unpack, compare and search the releases of an unlearner."""

import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Released = dict[str, Tensor | bytes]


def flattened(name: str, value: Any) -> Released:
    """Return the values of nested containers, each by a name of its own."""
    if isinstance(value, Tensor):
        return {name: value}
    if not isinstance(value, dict | list | tuple):
        return {name: repr(value).encode()}
    found: Released = {}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found |= flattened(f'{name}/{key}', item)
    return found


def opened(released: Released) -> Released:
    """Unpack released archives and JSON; keep tensors as they are."""
    if not isinstance(released, dict):
        raise TypeError(
            "'released' needs to return a dictionary of tensors and bytes "
            f'(got {type(released).__name__})'
        )
    alike: dict[str, list[Tensor | bytes]] = {}
    for name, value in released.items():
        if not isinstance(value, Tensor | bytes):
            raise TypeError(
                "'released' needs to hold tensors and bytes "
                f'(got {type(value).__name__} for {name!r})'
            )
        pairs: Iterable[tuple[str, Tensor | bytes]] = _opened(name, value)
        for inside, content in pairs:
            # Names of files may hold digests of their content.
            named = re.sub(r'[0-9a-f]{16,}', '#', inside)
            alike.setdefault(named, []).append(content)
    # Release duplicates of a name, too, in the order of their contents.
    return {
        name + f' ({i})' * bool(i): value
        for name, values in alike.items()
        for i, value in enumerate(sorted(values, key=_content))
    }


def _opened(
    name: str, content: Tensor | bytes
) -> Iterable[tuple[str, Tensor | bytes]]:
    if isinstance(content, Tensor):
        yield name, content.detach().clone()
        return
    if content[:2] == b'PK':
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                inside = member.filename.partition('/')[2] or member.filename
                if inside != '.data/serialization_id':
                    yield from _opened(
                        f'{name}/{inside}', archive.read(member)
                    )
        return
    for unpack in (gzip.decompress, zlib.decompress):
        try:
            inner = unpack(content)
        except (OSError, zlib.error, EOFError):
            continue
        yield from _opened(name, inner)
        return
    try:
        known = json.loads(content) if content[:1] in (b'{', b'[') else None
    except ValueError:
        known = None
    if known is None:
        yield name, content
    else:
        yield from flattened(name, known).items()


def differing(one: Released, two: Released) -> set[str]:
    """List the names that only one run released, or whose bits differ."""
    return {
        name
        for name in {**one, **two}
        if name not in one
        or name not in two
        or _content(one[name]) != _content(two[name])
    }


def kinds_of(names: Iterable[str]) -> tuple[str, ...]:
    """Shorten the names of releases to their kinds.

    The weights of a shard, for example, share a kind.
    """
    listed: dict[str, None] = {}
    for name in sorted(names):
        kind, colon, _ = name.partition(': ')
        listed[kind if colon else '/'.join(name.split('/')[:4])] = None
    return tuple(listed)


def grouped(names: Iterable[str]) -> str:
    """Join the first kinds of names to a text, for a note."""
    listed = kinds_of(names)
    return ', '.join(listed[:20]) + (', ...' if len(listed) > 20 else '')


def _content(value: Tensor | bytes) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(value, bytes):
        return '', (), value
    flat = value.detach().cpu().to_dense().contiguous().view(-1)
    raw = flat.view(torch.uint8).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), raw


def encodings(values: Tensor) -> list[bytes]:
    """Return the byte encodings that numbers may have in a file."""
    numbers = values.numpy()
    return [
        numbers.astype(np.dtype(kind).newbyteorder(order)).tobytes()
        for kind in ('float16', 'float32', 'float64')
        for order in ('<', '>')
    ]


def holding(released: Released, needles: list[bytes]) -> list[str]:
    """Find the releases that contain any of some byte strings."""
    return [
        name
        for name, value in released.items()
        if any(needle in _content(value)[2] for needle in needles)
    ]
