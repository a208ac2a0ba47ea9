"""Features as a sparse matrix until a linear layer receives them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]

_QUESTIONS = (
    'size',
    'dim',
    'numel',
    'ndimension',
    '__len__',
    'is_floating_point',
    'is_complex',
    'get_device',
    'stride',
    'storage_offset',
    'is_contiguous',
)
_SAME = ('contiguous', 'clone', 'detach', 'requires_grad_', 'float', 'to')
_MATMUL = ('mm', 'matmul', '__matmul__', '__rmatmul__', '_sparse_mm')


class LinearFeatures(Tensor):
    r"""Matrix :math:`L` defined by the product :math:`W \mapsto L W^{\top}`.

    Stands in for dense features in models that are linear in them before
    anything else: `Linear`, sums, multiples, and products with a sparse
    adjacency, so that :math:`(A X) W^{\top}` is computed as :math:`A (X
    W^{\top})`. Anything else raises; and its entries are NaN, so that
    any way around that counts as no prediction.

    Args:
        product (Callable): maps a weight, ``[out_channels, in_channels]``, to
            the product.
        shape (tuple[int, int]): the shape of :math:`L`.
        like (Tensor): a tensor of the same dtype and device.
    """

    product: Product

    @staticmethod
    def __new__(
        cls, product: Product, shape: tuple[int, int], like: Tensor
    ) -> 'LinearFeatures':
        """Make the tensor here, as torch does, not in ``__init__``."""
        blank = like.new_full((1, 1), torch.nan).expand(shape).as_subclass(cls)
        blank.product = product
        return blank

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, '__name__', str(func))
        if name in _QUESTIONS or name == '__get__':
            with torch._C.DisableTorchFunctionSubclass():
                answer = func(*args, **kwargs)
            if not isinstance(answer, Tensor):
                return answer
        elif name == 'linear':
            if isinstance(args[0], cls):
                return _linear(*args, **kwargs)
        elif name in ('dropout', 'feature_dropout', 'alpha_dropout'):
            if not kwargs.get('train', kwargs.get('training', True)) or (
                len(args) > 2 and not args[2]
            ):
                return args[0]
        elif name in _SAME and isinstance(args[0], cls):
            wanted = [a for a in args[1:] if isinstance(a, torch.dtype)]
            if all(dtype == args[0].dtype for dtype in wanted):
                return args[0]
        else:
            combined = _combined(cls, name, args, kwargs)
            if combined is not None:
                return combined
        raise ValueError(
            "'sparse_x' needs a model that is linear in the features before "
            f"anything else (got '{name}'); layers that sum over neighbours "
            "first need 'sparse_adj', too"
        )


def _linear(
    x: LinearFeatures, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    out = x.product(weight)
    return out if bias is None else out + bias


def _combined(cls: Any, name: str, args: tuple, kwargs: dict) -> Any:
    one = args[0]
    two: Any = args[1] if len(args) > 1 else None
    if name in _MATMUL:
        if name == '__rmatmul__':
            one, two = two, one
        if isinstance(one, cls):
            assert isinstance(two, Tensor)
            return one.product(two.t())
        reduce = args[2] if len(args) > 2 else kwargs.get('reduce', 'sum')
        if (
            isinstance(one, Tensor)
            and one.layout == torch.sparse_csr
            and reduce in ('sum', 'mean')
        ):
            matrix, inner, rest = one, two.product, args[2:]
            return cls(
                lambda weight: torch.sparse.mm(matrix, inner(weight), *rest),
                (one.size(0), two.size(1)),
                _like(two),
            )
        return None
    if name in ('add', '__add__', '__radd__') and not kwargs:
        if isinstance(one, cls) and isinstance(two, cls):
            if one.shape != two.shape:
                return None
            left, right = one.product, two.product
            return cls(
                lambda weight: left(weight) + right(weight),
                tuple(one.shape),
                _like(one),
            )
        return None
    if name in ('mul', '__mul__', '__rmul__') and not kwargs:
        if not isinstance(one, cls):
            one, two = two, one
        if isinstance(two, int | float) or (
            isinstance(two, Tensor)
            and not isinstance(two, cls)
            and two.numel() == 1
        ):
            inner, factor = one.product, two
            return cls(
                lambda weight: factor * inner(weight),
                tuple(one.shape),
                _like(one),
            )
    return None


def _like(x: LinearFeatures) -> Tensor:
    return torch.empty(0, dtype=x.dtype, device=x.device)
