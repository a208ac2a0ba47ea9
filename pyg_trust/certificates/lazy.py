"""Features as a sparse matrix until a linear layer receives them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ['LinearFeatures']

Product = Callable[[Tensor], Tensor]

_QUESTIONS = (
    'size',
    'dim',
    'numel',
    'ndimension',
    '__len__',
    '__get__',
    'is_floating_point',
    'is_complex',
    'get_device',
    'stride',
    'storage_offset',
    'is_contiguous',
)
_SAME = ('contiguous', 'clone', 'detach', 'requires_grad_', 'float', 'to')
_DROPOUT = ('dropout', 'feature_dropout', 'alpha_dropout')
_MATMUL = ('mm', 'matmul', '__matmul__', '_sparse_mm')


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
        if name in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                answer = func(*args, **kwargs)
            found = None if isinstance(answer, Tensor) else answer
        else:
            found = _answer(name, *args, **kwargs)
        if found is None:
            raise ValueError(
                "'sparse_x' needs a model that is linear in the features "
                f"before anything else (got '{name}'); layers that sum over "
                "neighbours first need 'sparse_adj', too"
            )
        return found


def _answer(name: str, one: Any, *rest: Any, **kwargs: Any) -> Any:
    # What a function makes of the features, or nothing if it is not linear.
    two: Any = rest[0] if rest else None
    mine, yours = (isinstance(x, LinearFeatures) for x in (one, two))
    if name == 'linear' and mine:
        bias = kwargs.get('bias', rest[1] if len(rest) > 1 else None)
        out = one.product(two)
        return out if bias is None else out + bias
    if name in _DROPOUT and mine:
        train = rest[1] if len(rest) > 1 else True
        train = kwargs.get('train', kwargs.get('training', train))
        return None if train else one
    if name in _SAME and mine:
        wanted = [x for x in rest if isinstance(x, torch.dtype)]
        return one if all(x == one.dtype for x in wanted) else None
    if name in _MATMUL and mine:
        return one.product(two.t())
    if name in _MATMUL and yours and _is_csr(one):
        if (rest[1] if len(rest) > 1 else 'sum') not in ('sum', 'mean'):
            return None
        return _linear(
            two,
            lambda weight: torch.sparse.mm(
                one, two.product(weight), *rest[1:]
            ),
            one.size(0),
        )
    if kwargs:
        return None
    if name in ('add', '__add__', '__radd__') and mine and yours:
        if one.shape != two.shape:
            return None
        return _linear(one, lambda w: one.product(w) + two.product(w))
    if name in ('mul', '__mul__', '__rmul__') and mine != yours:
        inner, factor = (one, two) if mine else (two, one)
        if isinstance(factor, int | float) or (
            isinstance(factor, Tensor) and factor.numel() == 1
        ):
            return _linear(inner, lambda w: factor * inner.product(w))
    return None


def _is_csr(matrix: Any) -> bool:
    return isinstance(matrix, Tensor) and matrix.layout == torch.sparse_csr


def _linear(
    x: LinearFeatures, product: Product, rows: int | None = None
) -> LinearFeatures:
    shape = (x.size(0) if rows is None else rows, x.size(1))
    like = torch.empty(0, dtype=x.dtype, device=x.device)
    return LinearFeatures(product, shape, like)
