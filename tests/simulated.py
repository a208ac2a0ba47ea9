"""A device that is not there: the CPU under another name.

Tensors on it hold real values, on the CPU, and say that they are elsewhere (on
``meta``, the one name that torch knows on every machine). Operations between
the two raise, as they do with CUDA, and so do those that would move tensors
silently (an index on the CPU into a tensor on CUDA); what is moved on purpose
is counted. So code that CUDA tensors pass through can be run without a GPU:
what this does not show is what only CUDA's own kernels do.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = torch.device('meta')
aten = torch.ops.aten


RUNNING: list['Simulation'] = []


class Elsewhere(Tensor):
    """A tensor on the simulated device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> 'Elsewhere':
        dense = inner.layout == torch.strided
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride() if dense else None,
            storage_offset=inner.storage_offset() if dense else None,
            dtype=inner.dtype,
            device=NAME,
        )
        made.inner = inner
        return made

    @property
    def layout(self) -> torch.layout:
        return self.inner.layout

    def tolist(self) -> list:
        # Torch does not dispatch it; it waits and copies, as reading does.
        RUNNING[-1].lists += 1
        return self.inner.tolist()

    def numpy(self, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy")

    def __repr__(self, **kwargs: Any) -> str:
        return f'Elsewhere({self.inner})'

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f'{func} outside of the simulation')


class Simulation(TorchDispatchMode):
    """Runs what is on the device, and counts what moves.

    Attributes:
        to_host: the tensors, with at least one dimension, that left it.
        to_device: those that came.
        scalars: the numbers that the host read.
        lists: the lists that the host read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[str] = []
        self.to_device: list[str] = []
        self.scalars = 0
        self.lists = 0

    def __enter__(self) -> 'Simulation':
        RUNNING.append(self)
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        RUNNING.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, kwargs)) if is_tensor(t)]
        here = [t for t in tensors if isinstance(t, Elsewhere)]
        there = [
            t for t in tensors if not isinstance(t, Elsewhere) and t.dim() > 0
        ]
        wanted = kwargs.get('device')
        moves = func in (aten._to_copy.default, aten.copy_.default)
        if func.namespace == 'pyg_trust':
            names = [a.name for a in func._schema.arguments]
            levels = {'weights', 'ratio', 'keep'}
            for name, value in zip(names, args, strict=True):
                if is_tensor(value) and here:
                    assert isinstance(value, Elsewhere) != (name in levels), (
                        f'{func}: {name} on {value.device}'
                    )
        elif here and there and not moves:
            raise RuntimeError(f'{func}: tensors on both devices')
        if func == aten._local_scalar_dense.default:
            self.scalars += len(here)
        elsewhere = bool(here)
        if func == aten.copy_.default:
            elsewhere = isinstance(args[0], Elsewhere)
        elif wanted is not None:
            elsewhere = torch.device(wanted) == NAME
            kwargs['device'] = torch.device('cpu')
        if moves and tensors[-1].dim() > 0:
            source = isinstance(tensors[-1], Elsewhere)
            if source and not elsewhere:
                self.to_host.append(f'{tuple(tensors[-1].shape)}')
            elif elsewhere and not source:
                self.to_device.append(f'{tuple(tensors[-1].shape)}')
        args, kwargs = tree_map(
            lambda t: t.inner if isinstance(t, Elsewhere) else t,
            (args, kwargs),
        )
        out = func(*args, **kwargs)
        if not elsewhere:
            return out
        if is_tensor(out) and isinstance(here[0] if here else None, Elsewhere):
            for t in here:  # in place: the same tensor
                if t.inner is out:
                    return t
        return tree_map(lambda t: Elsewhere(t) if is_tensor(t) else t, out)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
