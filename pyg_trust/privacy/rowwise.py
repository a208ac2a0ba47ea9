"""Forward passes in which a row's bits depend on that row alone.

BLAS rounds the same row otherwise in a batch of another size, and a
pre-activation near zero is then positive in one batch alone. Where the number
of units is private, products go through :func:`pyg_trust.ops.row_linear`, and
functions that are not rounded correctly through tensors that are filled up to
whole vectors.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.privacy.rules import tensors

__all__ = ['call', 'name_of']


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Rounded correctly, or no arithmetic at all; sums over a row's own numbers, or
# in the order of a unit's own edges: the same in every place.
_PLAIN = _names(
    """
    abs add sub mul div true_divide subtract multiply divide neg negative
    __add__ __sub__ __mul__ __truediv__ __radd__ __rsub__ __rmul__ __rdiv__
    __rtruediv__ __neg__ __abs__ __iadd__ __isub__ __imul__ __itruediv__
    ceil floor round trunc clamp clamp_max clamp_min clip relu relu6 hardtanh
    leaky_relu threshold prelu maximum minimum max min amax amin fmax fmin
    sqrt square reciprocal sign sgn copysign where masked_fill nan_to_num
    dropout alpha_dropout feature_alpha_dropout dropout1d
    clone contiguous detach to type type_as float double cpu copy fill zero
    view reshape view_as reshape_as flatten unflatten expand expand_as
    broadcast_to broadcast_tensors repeat tile repeat_interleave permute
    transpose t T mT swapaxes movedim squeeze unsqueeze select narrow chunk
    split tensor_split unbind __getitem__ __setitem__ index_select gather
    cat concat concatenate stack hstack vstack flip roll pad masked_select
    take_along_dim index_put index_copy index_fill scatter diagonal
    zeros_like ones_like full_like empty_like new_zeros new_ones new_full
    new_empty new_tensor rand_like randn_like requires_grad_ as_tensor tensor
    sort topk argsort unique item tolist diff embedding data real
    sum mean prod norm vector_norm linalg_vector_norm normalize log_softmax
    logsumexp layer_norm cumsum scatter_add scatter_reduce index_add
    index_reduce segment_reduce
    """
)
# Torch computes whole vectors and the remainder by different code.
_PADDED = _names(
    """
    exp exp2 expm1 log log10 log1p log2 sin cos tan asin acos atan sinh cosh
    tanh erf erfc sigmoid gelu silu elu celu selu mish softplus logsigmoid
    log_sigmoid logit pow __pow__ __rpow__ rsqrt xlogy addcdiv addcmul lerp
    hardswish hardsigmoid softsign tanhshrink softshrink hardshrink atan2
    """
)
_VECTORS = 64
# torch gives a thread at least so many elements.
_GRAIN = 2**15
# What is read of a tensor without making another one.
_READS = _names('shape layout dtype ndim device requires_grad')
_SIZES: frozenset[Any] = frozenset([Tensor.dim, Tensor.size, Tensor.numel])


@cache
def name_of(func: Any) -> str | None:
    """Return a function's name; None if it reads what a tensor is."""
    name: str = getattr(func, '__name__', str(func))
    if name in ('__get__', '__set__'):
        of = getattr(getattr(func, '__self__', None), '__name__', '')
        if name == '__set__':
            return 'set_' if of == 'data' else None
        return None if of in _READS else of
    return None if func in _SIZES else name


def call(func: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """Call a function so that each row's bits depend on the row alone.

    Returns:
        tuple[Any, bool]: what it returned, and whether they do.
    """
    inplace = name.endswith('_') and not name.endswith('__')
    base = name[:-1] if inplace else name
    if base in _PLAIN and kwargs.get('alpha', 1) in (1, -1):
        return func(*args, **kwargs), True
    if base in _PADDED:
        return _padded(func, inplace, args, kwargs), True
    if base in _BY_ROWS and not inplace:
        found = _BY_ROWS[base](*args, **kwargs)
        if found is not None:
            return found, True
    out = func(*args, **kwargs)
    return out, not (_real(args, kwargs) and _real((out,), {}))


def _real(args: Any, kwargs: Any) -> bool:
    return any(t.is_floating_point() for t in tensors(args, kwargs))


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    # `F.linear` of rows, [*, K], and a weight [num_columns, K] or [K], which
    # is the same for all rows.
    if not (_is_plain(input) and _is_plain(weight)) or input.dim() < 2:
        return None
    if input.dtype != weight.dtype or weight.dim() > 2:
        return None
    wide = weight if weight.dim() == 2 else weight.unsqueeze(0)
    fits = bias is not None and bias.shape == weight.shape[:-1]
    rows = input if input.dim() == 2 else input.reshape(-1, input.size(-1))
    out = ops.row_linear(rows, wide, bias if fits else None)
    if input.dim() != 2:
        out = out.view(*input.shape[:-1], wide.size(0))
    out = out if weight.dim() == 2 else out.squeeze(-1)
    return out if fits or bias is None else out + bias


def _matmul(input: Tensor, other: Tensor) -> Tensor | None:
    # Rows have to be on the left: rows on the right would be summed over.
    if other.dim() != 3 or input.dim() not in (2, 3):
        return _linear(input, other.t() if other.dim() == 2 else other)
    parts = input if input.dim() == 3 else input.unsqueeze(0)
    count = max(len(parts), len(other))
    parts, other = (v.expand(count, -1, -1) for v in (parts, other))
    each = zip(parts, other.mT, strict=True)
    made = [v for v in (_linear(*pair) for pair in each) if v is not None]
    return torch.stack(made) if made else None


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == 'cpu'
        and tensor.dtype in (torch.float32, torch.float64)
    )


def _padded(func: Any, inplace: bool, args: Any, kwargs: Any) -> Tensor:
    # Pad to whole vectors in each of the threads that share the elements.
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in given))
    size = shape.numel()
    room = -(-max(size, 1) // _VECTORS) * _VECTORS
    while True:
        threads = min(torch.get_num_threads(), -(-room // _GRAIN))
        whole = _VECTORS * max(1, threads)
        if room % whole == 0:
            break
        room = -(-room // whole) * whole

    def fill(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        flat = value.expand(shape).reshape(-1)
        return torch.cat([flat, flat.new_ones(room - size)])

    out = func(*map(fill, args), **{k: fill(v) for k, v in kwargs.items()})
    out = out[:size].view(shape)
    return args[0].copy_(out) if inplace else out


def _softmax(
    input: Tensor,
    dim: int,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    # Several threads share rows otherwise in a batch of another size, and
    # torch's own exponentials are then other ones.
    x = input if dtype is None else input.to(dtype)
    shifted = x - x.detach().amax(dim, keepdim=True)
    power = _padded(torch.exp, False, (shifted,), {})
    return power / power.sum(dim, keepdim=True)


_BY_ROWS: dict[str, Any] = {
    'linear': _linear,
    'softmax': _softmax,
    **dict.fromkeys(('matmul', 'mm', 'bmm', '__matmul__'), _matmul),
}
