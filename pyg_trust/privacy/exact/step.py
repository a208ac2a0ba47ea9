"""One private step with each unit alone: clipped, added up, released.

The module reads private data in its arguments alone, and is the same for all
units. Statement and proof: ``docs/theory/private_steps.rst``.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from . import clip

__all__ = ['add', 'adds', 'gradient', 'outputs', 'release', 'twin']

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Unit = tuple[tuple[Any, ...], dict[str, Any]]


def twin(module: nn.Module) -> nn.Module:
    """Copy a model, all but its weights and hooks."""
    kept: list[Any] = list(module.parameters())
    for layer in module.modules():
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
            kept += hooks.values()
    return copy.deepcopy(module, {id(each): each for each in kept})


def outputs(module: nn.Module, unit: Unit, key: int) -> Tensor:
    """Run a unit alone."""
    args, kwargs = own = _own(unit)
    params = list(module.parameters())
    versions = [p._version for p in params]
    device = params[0].device
    with (
        torch.random.fork_rng([device] if device.type == 'cuda' else []),
        torch.enable_grad(),
    ):
        seed = _seed(key, own)
        torch.default_generator.manual_seed(seed)
        if device.type == 'cuda':
            torch.cuda.manual_seed(seed)
        out = module(*args, **kwargs)
    if versions != [p._version for p in params]:
        raise ValueError(
            "'module' needs to leave its weights as they are in its call"
        )
    return out


def gradient(module: nn.Module, out: Tensor, pulled: Tensor) -> list[Floats]:
    """Return the gradient of one subgraph, from that of its outputs."""
    params = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(out, params, pulled, materialize_grads=True)
    return [each.double().cpu().numpy() for each in found]


def _own(value: Any) -> Any:
    # The same in memory of its own.
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return type(value)(_own(item) for item in value)
    if isinstance(value, dict):
        return {name: _own(item) for name, item in value.items()}
    if hasattr(value, 'to_dict'):
        made = copy.copy(value)
        for name, item in value.to_dict().items():
            made[name] = _own(item)
        return made
    return copy.deepcopy(value)


def _seed(key: int, unit: Any) -> int:
    # A hash of the key and of all that the unit is.
    digest = hashlib.sha256(str(key).encode())
    todo = [unit]
    while todo:
        value = todo.pop()
        if isinstance(value, tuple | list):
            todo += value
        elif isinstance(value, dict):
            todo += [v for _, v in sorted(value.items())]
        elif hasattr(value, 'to_dict'):
            todo.append(value.to_dict())
        elif isinstance(value, Tensor):
            if value.layout != torch.strided:
                value = value.detach().to_sparse_coo().to_dense()
            digest.update(value.detach().cpu().numpy().tobytes())
    return int.from_bytes(digest.digest()[:7], 'big')


def length(gradient: Iterable[Floats]) -> float:
    """Bound the norm from above; infinite or NaN where an entry is."""
    flat = np.concatenate([part.ravel() for part in gradient])
    top = float(np.abs(flat).max(initial=0.0))
    if top == 0 or not math.isfinite(top):
        return top
    power = math.frexp(top)[1]
    root = math.sqrt(float(np.square(np.ldexp(flat, -power)).sum()))
    up = root * (1 + (flat.size + 8) * 2.0**-53)
    if power > 1000:
        return math.inf
    # The smallest floats have fewer digits: the next one.
    return math.nextafter(math.ldexp(up, power), math.inf)


def adds(
    gradient: Sequence[Floats], norm: float, automatic: bool = False
) -> list[Integers]:
    """Round a gradient to integers, clipped to the norm, or scaled to it."""
    n = np.array([length(gradient)])
    none = np.zeros_like(n)
    c = clip.factors(n, none, none, none, norm, automatic).item()
    if c == 0:
        return [np.zeros(part.shape, dtype=np.int64) for part in gradient]
    return [clip.truncated(part, c, norm) for part in gradient]


def add(totals: Sequence[Integers], more: Sequence[Integers]) -> None:
    """Add the integers of one more unit to the totals."""
    for total, part in zip(totals, more, strict=True):
        total += part


def release(
    totals: Sequence[Integers],
    draw: Callable[[int], Integers],
    multiplier: float,
    norm: float,
) -> list[Floats]:
    r"""Bring sums to the grid of the noise, and add it."""
    count = sum(total.size for total in totals)
    step, _ = clip.noise_grid(multiplier, norm, count)
    made = []
    for total in totals:
        cells = draw(total.size).reshape(total.shape)
        # Integers below 2^53, which float64 has.
        noisy = clip.on_noise_grid(total, norm, step) + cells
        made.append(noisy.astype(np.float64) * step)
    return made
