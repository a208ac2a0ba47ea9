r"""One private step by construction: each unit alone, clipped, added up.

**Statement.** A step draws units :math:`u_1, \dots, u_m`. Unit :math:`u` adds
to it the integers

.. math::
    I(u) = \mathrm{trunc}\big(c(u)\, g(u) / g'\big), \qquad
    g' = 2^{-43} C,

with :math:`g(u)` the gradient that :func:`alone` computes and :math:`c(u)` of
:func:`.clip.factors`. Then (1) :math:`I(u)` is a function of the weights, of
:math:`u` and of what is public, to the last bit; (2) :math:`g' \lVert I(u)
\rVert_2 \le C`; (3) what :func:`release` makes of :math:`\sum_i I(u_i)` is a
rounding of the Gaussian mechanism with noise multiplier :math:`z` at
sensitivity :math:`2C` (a unit is replaced) or :math:`C` (one is more).

**Conditions.** The module and ``pull`` read private data in their arguments
alone: no global, file, clock or memory that was freed, and nothing that they,
or a hook, kept elsewhere than in the module. ``pull`` maps the
outputs of a unit to the gradient of its own term of the loss. The module is
the same for all units, and made of what was released before. What is computed
again on this machine is the same again.

**Proof of (1).** The module is copied for each unit, all but its weights and
hooks, and the copy thrown away: nothing that it keeps of one is there for
another. A unit is copied too, so that nothing writes into what others are made
of, and weights that were written to are refused. Random numbers of its forward
pass come from a generator whose seed is a hash of a public key and of the
unit, so that they are a function of it for every key; the generator of the
process is put back. Nothing else of another unit is within reach.

**Proof of (2).** Let :math:`d` be how many numbers the gradient has. Divided
by a power of two so that the largest is in :math:`[1/2, 1)`, the squares that
underflow are less than :math:`d\, 2^{-1022}` of their sum, products and a sum
in any order lose :math:`(d + 1)\, 2^{-53}`, to first order, the root and the
product with the power as much again: the float after :math:`1 + (d + 8)\,
2^{-53}` times the result, :math:`n`, is at least :math:`\lVert g \rVert_2` for
:math:`d < 2^{40}`. By ``clip.py``, :math:`c\, n \le C (1 - 2^{-40})`, a
product with :math:`c / g'` is rounded twice, and truncation makes no number
larger. What is not finite has :math:`c = 0`, and adds nothing.

**Proof of (3).** By (1), neighbours' sums differ in what one unit adds: by
:math:`2C` or :math:`C` at most, by (2), as integers are added without rounding
and in any order. The rest is ``clip.py``, *Release*.
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

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Unit = tuple[tuple[Any, ...], dict[str, Any]]
Pull = Callable[[Tensor], Tensor]


def alone(module: nn.Module, unit: Unit, pull: Pull, key: int) -> list[Floats]:
    """Compute the gradient of a unit by the trained parameters.

    Args:
        module (torch.nn.Module): the model; is copied.
        unit (tuple): the arguments of its call, positional and named, with
            all that is private of the unit; is copied.
        pull (callable): maps these to the gradient of its term of the loss.
        key (int): the seed of random numbers, public.
    """
    out = outputs(twin(module), unit, key)
    return gradient(module, out, pull(out.detach()))


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
    """Differentiate the outputs of a unit by the trained parameters."""
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
    """Bound the norm of a gradient from above.

    Args:
        gradient (iterable of ndarray): its parts, float64.

    Returns:
        float: infinite, or no number, where something is not finite.
    """
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
    r"""Round a gradient to integers, clipped to the norm :math:`C`.

    Args:
        gradient (sequence of ndarray): its parts, float64.
        norm (float): :math:`C`.
        automatic (bool): whether shorter gradients are scaled up to it.
            (default: :obj:`False`)
    """
    n = np.array([length(gradient)])
    none = np.zeros_like(n)
    c = clip.factors(n, none, none, none, norm, automatic).item()
    if c == 0:
        return [np.zeros(part.shape, dtype=np.int64) for part in gradient]
    return [clip.truncated(part, c, norm) for part in gradient]


def add(totals: Sequence[Integers], more: Sequence[Integers]) -> None:
    """Add the integers of one more unit.

    Args:
        totals (sequence of ndarray): int64; are changed.
        more (sequence of ndarray): int64, of the same shapes.
    """
    for total, part in zip(totals, more, strict=True):
        total += part


def release(
    totals: Sequence[Integers],
    draw: Callable[[int], Integers],
    multiplier: float,
    norm: float,
) -> list[Floats]:
    r"""Bring sums to the grid of the noise, and add it.

    Args:
        totals (sequence of ndarray): int64, in units of :math:`g'`, of no
            more than ``clip.MOST_UNITS`` units.
        draw (callable): maps a number to so many independent cells
            (``noise.py``).
        multiplier (float): :math:`z`.
        norm (float): :math:`C`.
    """
    count = sum(total.size for total in totals)
    step, _ = clip.noise_grid(multiplier, norm, count)
    made = []
    for total in totals:
        cells = draw(total.size).reshape(total.shape)
        # Integers below 2^53, which float64 has.
        noisy = clip.on_noise_grid(total, norm, step) + cells
        made.append(noisy.astype(np.float64) * step)
    return made
