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

from pyg_trust.audit.subjects import Released


def opened(released: Released) -> Released:
    """Unpack released archives and JSON; keep tensors as they are."""
    if not isinstance(released, dict):
        raise TypeError(
            "'released' needs to return a dictionary of tensors and bytes "
            f'(got {type(released).__name__})'
        )
    pairs: list[tuple[str, Tensor | bytes]] = []
    for name, value in released.items():
        if isinstance(value, Tensor):
            pairs.append((name, value.detach().clone()))
        elif isinstance(value, bytes):
            pairs += _opened(name, value)
        else:
            raise TypeError(
                "'released' needs to hold tensors and bytes "
                f'(got {type(value).__name__} for {name!r})'
            )
    alike: dict[str, list[Tensor | bytes]] = {}
    for name, value in pairs:
        alike.setdefault(_named(name), []).append(value)
    # Release duplicates of a name, too. Sort by contents, as names that
    # contain digests change from run to run.
    return {
        name + f' ({i})' * bool(i): value
        for name, values in alike.items()
        for i, value in enumerate(
            values if len(values) == 1 else sorted(values, key=_content)
        )
    }


def _named(name: str) -> str:
    # Names of files may hold digests of their content.
    return re.sub(r'[0-9a-f]{16,}', '#', name)


def _opened(name: str, content: bytes) -> list[tuple[str, bytes]]:
    if content[:2] == b'PK':
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            made: list[tuple[str, bytes]] = []
            for member in archive.infolist():
                inside = member.filename.partition('/')[2] or member.filename
                if inside != '.data/serialization_id':
                    made += _opened(f'{name}/{inside}', archive.read(member))
            return made
    for unpack in (gzip.decompress, zlib.decompress):
        try:
            return _opened(name, unpack(content))
        except (OSError, zlib.error, EOFError):
            continue
    if content[:1] in (b'{', b'['):
        try:
            return _values(name, json.loads(content))
        except ValueError:
            pass
    return [(name, content)]


def _values(name: str, value: Any) -> list[tuple[str, bytes]]:
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in _values(f'{name}/{k}', v)]
    if isinstance(value, list):
        return [
            p for k, v in enumerate(value) for p in _values(f'{name}/{k}', v)
        ]
    return [(name, repr(value).encode())]


def differing(
    one: Released, two: Released, random: set[str] | None = None
) -> list[str]:
    """List the names that only one run released, or whose bits differ."""
    random = random or set()
    return [
        name
        for name in {**one, **two}
        if name not in random
        and (
            name not in one
            or name not in two
            or _content(one[name]) != _content(two[name])
        )
    ]


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
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), _raw(value)
    return '', (), value


def size_of(value: Tensor | bytes) -> int:
    """Return the size of a release in bytes."""
    if isinstance(value, bytes):
        return len(value)
    return value.numel() * value.element_size()


def _raw(value: Tensor) -> bytes:
    value = value.detach().cpu()
    if value.layout != torch.strided:
        value = value.to_dense()
    flat = value.contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()


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
        if any(
            needle in (_raw(value) if isinstance(value, Tensor) else value)
            for needle in needles
        )
    ]
