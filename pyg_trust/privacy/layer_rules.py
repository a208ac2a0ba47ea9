"""Rules for torch functions that use parameters row by row.

A rule computes what its function does, by functions that autograd knows, and
tells the :class:`~pyg_trust.privacy.recorder.Recorder` who uses the
parameters:

* :meth:`~pyg_trust.privacy.recorder.Recorder.rows_of` returns the rows of an
  input, with their subgraphs, and their dimension;
* :meth:`~pyg_trust.privacy.recorder.Recorder.expand` makes a copy of a
  parameter for each row, which is all that most rules need;
* :meth:`~pyg_trust.privacy.recorder.Recorder.note_linear` notes a linear map
  of rows, whose copies would be too many;
* ``record.tracker.set`` records the rows of the result.

A rule raises :class:`~pyg_trust.privacy.calls.Unsupported` for what it does
not cover. Before it is relied upon, gradients by rules are compared with those
of subgraphs that run alone (:meth:`SubgraphGradients.check`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_trust.privacy.calls import Unsupported
from pyg_trust.privacy.rows import Rows
from pyg_trust.registries import Registry

#: ``rule(record, func, *args, **kwargs)`` by the name of a torch function.
LAYER_RULES: Registry[Callable[..., Tensor]] = Registry('layer rule')


@LAYER_RULES.builtin('linear')
def linear(
    record: Any,
    func: Callable[..., Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Apply ``F.linear`` and note the uses of its weight and bias."""
    if record.weight(x) is not None:
        raise Unsupported('the input of a linear layer is a parameter')
    out = record.linear(x, record.alias(weight), record.alias(bias))
    rows, axis = record.rows_of(x)
    if axis == x.dim() - 1:
        raise Unsupported('nodes lie along the last dimension of the input')
    edge = record.edge(out, x)
    record.tracker.set(out, rows, axis)
    if record.trained(weight):
        record.note_linear(weight, edge, rows, axis, x)
    if bias is not None and record.trained(bias):
        record.note_rows(bias, edge, rows, axis, out.dim())
    return out


@LAYER_RULES.builtin('matmul')
@LAYER_RULES.builtin('mm')
@LAYER_RULES.builtin('bmm')
@LAYER_RULES.builtin('__matmul__')
def matmul(
    record: Any, func: Callable[..., Any], x: Tensor, weight: Tensor, /
) -> Tensor:
    """Multiply rows by a weight, and note what its clipping needs."""
    if record.weight(x) is not None or weight.dim() == 0:
        raise Unsupported('the left factor of a product is a parameter')
    if weight.dim() == 1:
        column = weight.unsqueeze(1)
        record.derive('unsqueeze', column, [weight])
        out = matmul(record, torch.matmul, x, column)
        rows, axis = record.rows_of(out)
        out = out.squeeze(-1)
        record.tracker.set(out, rows, axis)
        return out
    out = record.compute(func, 'matmul', (x, record.alias(weight)), {})
    rows, axis = record.rows_of(x)
    if axis == x.dim() - 1:
        raise Unsupported('nodes lie along the last dimension of the input')
    edge = record.edge(out, x)
    record.tracker.set(out, rows, axis - x.dim() + out.dim())
    if weight.dim() == 2:
        record.note_linear(weight.detach().t(), edge, rows, axis, x, weight)
        return out
    # A batch of maps: of the same rows or, if x has a batch, of its own.
    if weight.dim() != 3 or x.dim() > 3 or axis != x.dim() - 2:
        raise Unsupported('a batched product has more than three dimensions')
    for i in range(out.size(0)):
        j = i if weight.size(0) > 1 else 0
        k = i if x.dim() == 3 and x.size(0) > 1 else 0
        part = weight.detach()[j].t()
        inner = x[k] if x.dim() == 3 else x
        record.note_linear(part, edge, rows, 0, inner, weight, i)
    return out


@LAYER_RULES.builtin('addmm')
def addmm(
    record: Any,
    func: Callable[..., Any],
    x: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """Multiply rows by a matrix, and add the product to a tensor."""
    if record.weight(x) is not None or record.weight(left) is not None:
        raise Unsupported("'input' or 'mat1' of addmm is a parameter")
    out = matmul(record, torch.matmul, left, right)
    rows, axis = record.rows_of(out)
    out = torch.add(beta * x, out, alpha=alpha)
    record.tracker.set(out, rows, axis)
    return out


def _binary(
    record: Any,
    func: Callable[..., Any],
    left: Any,
    right: Any,
    name: str,
    join: Callable[[Tensor, Tensor], Tensor] | None,
) -> Tensor:
    # Without `join`, the function works in place.
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        raise Unsupported(f"'{name}' needs two tensors")
    swap = record.weight(left) is not None
    weight, x = (left, right) if swap else (right, left)
    if record.weight(x) is not None or (swap and join is None):
        raise Unsupported(f"all operands of '{name}' are parameters")
    rows, axis = record.rows_of(x)
    shape = torch.broadcast_shapes(x.shape, weight.shape)
    each = record.expand(weight, shape, rows, axis - x.dim())
    if join is None:
        out = func(x, each)
    else:
        out = join(each, x) if swap else join(x, each)
    record.tracker.set(out, rows, axis - x.dim() + len(shape))
    return out


@LAYER_RULES.builtin('layer_norm')
def layer_norm(
    record: Any,
    func: Callable[..., Any],
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each row, then apply the weight and the bias."""
    rows, axis = record.rows_of(x)
    if axis >= x.dim() - len(normalized_shape):
        raise Unsupported('layer_norm averages over the dimension of nodes')
    out = F.layer_norm(x, normalized_shape, eps=eps)
    for other, join in ((weight, torch.mul), (bias, torch.add)):
        if other is not None and record.trained(other):
            other = record.expand(other, x.shape, rows, axis - x.dim())
        if other is not None:
            out = join(out, other)
    record.tracker.set(out, rows, axis)
    return out


@LAYER_RULES.builtin('prelu')
def prelu(
    record: Any, func: Callable[..., Any], x: Tensor, weight: Tensor, /
) -> Tensor:
    """Apply PReLU, with a slope per channel or one for all."""
    rows, axis = record.rows_of(x)
    shape = [1] * x.dim()
    if weight.numel() > 1:
        shape[1] = weight.numel()
    view = weight.view(shape)
    record.derive('view', view, [weight])
    each = record.expand(view, x.shape, rows, axis - x.dim())
    out = torch.where(x > 0, x, each * x)
    record.tracker.set(out, rows, axis)
    return out


@LAYER_RULES.builtin('expand')
def expand(
    record: Any, func: Callable[..., Any], weight: Tensor, *sizes: int
) -> Tensor:
    """Copy a parameter for each row; the rows' owners are learned later."""
    rows = Rows(sizes[0])
    shape = [sizes[0], *weight.shape[1:]]
    out = record.expand(weight, shape, rows, -len(shape))
    record.tracker.set(out, rows, 0)
    return out


@LAYER_RULES.builtin('cat')
def cat(
    record: Any,
    func: Callable[..., Any],
    tensors: Sequence[Tensor],
    dim: int = 0,
) -> Tensor:
    """Concatenate rows with a parameter of one row."""
    if dim != 0:
        raise Unsupported('rows and parameters lie side by side')
    parts = [
        t if record.weight(t) is None else expand(record, func, t, t.size(0))
        for t in tensors
    ]
    if any(record.weight(t) is not None and len(t) != 1 for t in tensors):
        raise Unsupported('each row has parameters of its own')
    out = torch.cat(parts)
    record.tracker.follow('cat', (parts,), {}, out)
    return out


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'add': torch.add,
    'sub': torch.sub,
    'mul': torch.mul,
    'div': torch.div,
    'subtract': torch.sub,
    'multiply': torch.mul,
    'true_divide': torch.div,
    '__rsub__': lambda x, y: torch.sub(y, x),
    '__rdiv__': lambda x, y: torch.div(y, x),
    '__rtruediv__': lambda x, y: torch.div(y, x),
}


def _add_binary(
    name: str, join: Callable[[Tensor, Tensor], Tensor] | None
) -> None:
    @LAYER_RULES.builtin(name)
    def binary(
        record: Any, func: Callable[..., Any], input: Any, /, other: Any
    ) -> Tensor:
        """Apply an elementwise binary function to rows and a parameter."""
        return _binary(record, func, input, other, name, join)


for _name, _join in _BINARY.items():
    _add_binary(_name, _join)
    if not _name.startswith('_'):
        _add_binary(f'{_name}_', None)
