"""Linear maps of signals, with derivatives of every order and kind."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

__all__ = ['LinearMap']

_asked: ContextVar[Callable[[Tensor], Tensor]] = ContextVar('_asked')


class LinearMap(torch.autograd.Function):
    """Base of maps that treat the columns of their first argument alike.

    A derivative is such a map again, so a subclass makes all of them by
    :meth:`again`.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keep all arguments but the signal."""
        ctx.arguments = inputs[1:]

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple, x: Tensor, *arguments: Any
    ) -> tuple[Tensor, int]:
        """Turn the mapped dimension into further columns."""
        x = x.movedim(in_dims[0], -1)
        z = cls.again(x.reshape(x.size(0), -1), *arguments)
        return z.reshape(z.size(0), *x.shape[1:]), x.dim() - 1

    @classmethod
    def again(cls, x: Tensor, *arguments: Any) -> Tensor:
        """Apply the map in a derivative of it."""
        if not is_legacy_batchedtensor(x):
            return cls.apply(x, *arguments)
        # The vmap of torch.autograd.grad(is_grads_batched=True) calls an
        # operator once for each gradient.
        token = _asked.set(lambda one: cls.forward(one, *arguments))
        try:
            return _one_by_one(x)
        finally:
            _asked.reset(token)


@torch.library.custom_op('pyg_trust::one_by_one', mutates_args=())
def _one_by_one(x: Tensor) -> Tensor:
    return _asked.get()(x)
