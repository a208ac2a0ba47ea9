"""One-line texts of objects, made from the arguments of their constructor."""

import inspect
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor


def described(made: Any, *first: str, **values: Any) -> str:
    """Return the call that makes an object, without default arguments.

    PyG compares the text of a ``pre_transform`` with that of the processed
    files, so every argument that changes the result has to be in it.
    """
    given = [text(values.pop(n, getattr(made, n, None))) for n in first]
    # How a progress is shown changes no result.
    parameters = inspect.signature(type(made).__init__).parameters
    for name, p in list(parameters.items())[1:]:
        if name in first or 'VAR' in p.kind.name:
            continue
        value = values.pop(name, getattr(made, name, p.default))
        if value is not p.default and text(value) != text(p.default):
            given.append(f'{name}={text(value)}')
    given += [f'{n}={text(v)}' for n, v in values.items()]
    return f'{type(made).__name__}({", ".join(given)})'


def text(value: Any) -> str:
    """Return the text of one argument; large tensors by a digest."""
    if isinstance(value, Tensor) and value.numel() > 8:
        content = value.detach().cpu().contiguous().view(torch.uint8)
        digest = sha256(content.numpy().tobytes()).hexdigest()[:12]
        return f'tensor({list(value.shape)}, {value.dtype}, {digest})'
    if isinstance(value, Tensor):
        return f'tensor({value.tolist()})'
    if callable(value) and hasattr(value, '__qualname__'):
        return f'{value.__module__}.{value.__qualname__}'
    return repr(value)
