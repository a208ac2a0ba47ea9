r"""How a forward pass uses parameters, and whose the rows are.

A parameter is used by rows, and each row belongs to one subgraph. What is
written down here is what :mod:`pyg_trust.privacy.clipping` makes norms and
clipped sums of.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pyg_trust.privacy.calls import Unsupported
from pyg_trust.privacy.rows import (
    FAILURES,
    Conflict,
    Rows,
    RowTracker,
    names,
    tensors_of,
)

_VIEWS = names(
    """
    view reshape t transpose unsqueeze squeeze permute select narrow chunk
    split unbind __getitem__ T mT flatten contiguous swapaxes view_as
    """
)
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
LINEAR, ROWS = 'linear', 'rows'


@dataclass(eq=False)
class Weight:
    """A parameter, a view of it, or a function of parameters alone."""

    base: Tensor
    params: frozenset[int]


@dataclass(eq=False)
class Use:
    r"""Rows that use a weight.

    Args:
        weight (Tensor): as it was used; the memory it covers tells which part
            of the base that is. For a linear map ``[out, in]``.
        base (Tensor): what :obj:`weight` is a view of.
        kind (str): a linear map of rows, or a copy for each row.
        edge (GradientEdge): where the gradient comes from.
        index (int, optional): which slice of the gradient along its first
            dimension, of a batch of linear maps.
        rows (Rows): whose the rows are.
        axis (int): their dimension in the gradient (without that of
            :obj:`index`).
        input (Tensor, optional): of a linear map, with rows in the same
            dimension.
    """

    weight: Tensor
    base: Tensor
    kind: str
    edge: GradientEdge
    rows: Rows
    axis: int
    index: int | None = None
    input: Tensor | None = None
    version: int = 0


class Recorder(TorchFunctionMode):
    """Writes down how a forward pass uses parameters, and who uses them."""

    def __init__(
        self,
        params: dict[str, Tensor],
        tracker: RowTracker,
        constants: Iterable[Tensor] = (),
    ) -> None:
        super().__init__()
        self.tracker = tracker
        self.params = list(params.values())
        self.names = {id(p): name for name, p in params.items()}
        # With the tensors, so that no other gets the id of one.
        self.constants = {id(t): t for t in constants}
        self.uses: list[Use] = []
        self.stops: set[Node] = set()
        self.problem: str | None = None
        self._weights = WeakTensorKeyDictionary()

    def weight(self, tensor: Tensor) -> Weight | None:
        """What a tensor is, if it is made of parameters alone."""
        if id(tensor) in self.names:
            return Weight(tensor, frozenset([id(tensor)]))
        return self._weights.get(tensor)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name == '__get__':
            name = getattr(getattr(func, '__self__', None), '__name__', '')
            if name not in ('T', 'mT'):
                return func(*args, **kwargs)
        if self.problem is not None:
            return func(*args, **kwargs)
        if torch.is_grad_enabled():
            weights = [
                t
                for t in tensors_of(args, kwargs)
                if t.requires_grad and self.weight(t) is not None
            ]
            if weights:
                return self._use(func, name, args, kwargs, weights)
        out = func(*args, **kwargs)
        try:
            self.tracker.follow(name, args, kwargs, out)
        except Conflict as error:
            self.problem = f"in '{name}', {error}"
        return out

    def _use(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weights: list[Tensor],
    ) -> Any:
        base = name
        if name.endswith('_') and not name.endswith('__'):
            base = name[:-1]
        tensors = [
            t for t in tensors_of(args, kwargs) if id(t) not in self.constants
        ]
        try:
            if len(weights) == len(tensors) and base == name:
                out = func(*args, **kwargs)
                self._derive(name, out, weights)
                return out
            if name == 'linear' and not kwargs.keys() - {'bias', 'weight'}:
                return self._linear(*args, **kwargs)
            if name in ('matmul', 'mm', '__matmul__', 'bmm') and not kwargs:
                return self._matmul(func, *args)
            if name == 'addmm':
                return self._addmm(*args, **kwargs)
            if base in _BINARY and not kwargs.keys() - {'other'}:
                return self._binary(func, name, base, args, kwargs)
            if name == 'layer_norm':
                return self._layer_norm(*args, **kwargs)
            if name == 'prelu' and not kwargs:
                return self._prelu(*args)
            raise Unsupported(
                f"'{name}' is not known to use a parameter row by row"
            )
        except (Unsupported, Conflict, *FAILURES) as error:
            # If the call itself is wrong, it fails again below.
            what = sorted(
                self.names[p]
                for w in weights
                for p in self.weight(w).params  # type: ignore[union-attr]
            )
            self.problem = f'{", ".join(what)}: {error}'
        return func(*args, **kwargs)

    def _derive(self, name: str, out: Any, weights: list[Tensor]) -> None:
        found = [w for t in weights if (w := self.weight(t)) is not None]
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(tensor, Tensor) or not tensor.requires_grad:
                continue
            base = found[0].base
            if name in _VIEWS and _same_memory(tensor, base):
                self._weights[tensor] = found[0]
                continue
            params = frozenset().union(*(w.params for w in found))
            self._weights[tensor] = Weight(tensor, params)

    def _alias(self, tensor: Tensor | None) -> Tensor | None:
        # All that reaches a parameter goes through such a node.
        if tensor is None or self.weight(tensor) is None:
            return tensor
        if not tensor.requires_grad:
            return tensor
        alias = tensor.view_as(tensor)
        self.stops.add(get_gradient_edge(alias).node)
        return alias

    def _rows(self, tensor: Tensor) -> tuple[Rows, int]:
        found = self.tracker.get(tensor)
        if found is None:
            if tensor.dim() == 0:
                raise Unsupported('it meets a number that is not known')
            # Whose these rows are may show when they meet others.
            found = Rows(tensor.size(0)), 0
            self.tracker.set(tensor, *found)
        return found

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        if self.weight(x) is not None:
            raise Unsupported('a parameter is the input of a linear map')
        out = F.linear(x, self._alias(weight), self._alias(bias))  # type: ignore[arg-type]
        rows, axis = self._rows(x)
        if axis == x.dim() - 1:
            raise Unsupported('rows are in the last dimension')
        edge = self._edge(out, x)
        self.tracker.set(out, rows, axis)
        if self._trained(weight):
            self._note_linear(weight, edge, rows, axis, x)
        if bias is not None and self._trained(bias):
            self._note_rows(bias, edge, rows, axis, out.dim())
        return out

    def _matmul(
        self, func: Callable[..., Any], x: Tensor, weight: Tensor
    ) -> Tensor:
        if self.weight(x) is not None or weight.dim() == 0:
            raise Unsupported('a parameter is multiplied from the left')
        if weight.dim() == 1:
            column = weight.unsqueeze(1)
            self._derive('unsqueeze', column, [weight])
            out = self._matmul(torch.matmul, x, column)
            rows, axis = self._rows(out)
            out = out.squeeze(-1)
            self.tracker.set(out, rows, axis)
            return out
        out = func(x, self._alias(weight))
        rows, axis = self._rows(x)
        if axis == x.dim() - 1:
            raise Unsupported('rows are in the last dimension')
        edge = self._edge(out, x)
        self.tracker.set(out, rows, axis - x.dim() + out.dim())
        if weight.dim() == 2:
            self._note_linear(weight.detach().t(), edge, rows, axis, x, weight)
            return out
        # A batch of maps: of the same rows or, if x has a batch, of its own.
        if weight.dim() != 3 or x.dim() > 3 or axis != x.dim() - 2:
            raise Unsupported('a product of more than three dimensions')
        for i in range(out.size(0)):
            j = i if weight.size(0) > 1 else 0
            k = i if x.dim() == 3 and x.size(0) > 1 else 0
            part = weight.detach()[j].t()
            inner = x[k] if x.dim() == 3 else x
            self._note_linear(part, edge, rows, 0, inner, weight, i)
        return out

    def _addmm(
        self,
        x: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> Tensor:
        if self.weight(x) is not None or self.weight(left) is not None:
            raise Unsupported('a parameter is added or multiplied from left')
        out = self._matmul(torch.matmul, left, right)
        rows, axis = self._rows(out)
        out = torch.add(beta * x, out, alpha=alpha)
        self.tracker.set(out, rows, axis)
        return out

    def _binary(
        self,
        func: Callable[..., Any],
        name: str,
        base: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        left, right = args[0], args[1] if len(args) > 1 else kwargs['other']
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            raise Unsupported(f"'{name}' with something that is no tensor")
        swap = self.weight(left) is not None
        weight, x = (left, right) if swap else (right, left)
        if self.weight(x) is not None or (swap and base != name):
            raise Unsupported(f"'{name}' of parameters")
        rows, axis = self._rows(x)
        shape = torch.broadcast_shapes(x.shape, weight.shape)
        each = self._expand(weight, shape, rows, axis - x.dim())
        if base != name:
            out = func(x, each)
        else:
            out = _BINARY[base](each, x) if swap else _BINARY[base](x, each)
        self.tracker.set(out, rows, axis - x.dim() + len(shape))
        return out

    def _layer_norm(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        rows, axis = self._rows(x)
        if axis >= x.dim() - len(normalized_shape):
            raise Unsupported('the norm mixes rows')
        out = F.layer_norm(x, normalized_shape, eps=eps)
        for other, join in ((weight, torch.mul), (bias, torch.add)):
            if other is not None and self._trained(other):
                other = self._expand(other, x.shape, rows, axis - x.dim())
            if other is not None:
                out = join(out, other)
        self.tracker.set(out, rows, axis)
        return out

    def _prelu(self, x: Tensor, weight: Tensor) -> Tensor:
        rows, axis = self._rows(x)
        shape = [1] * x.dim()
        if weight.numel() > 1:
            shape[1] = weight.numel()
        view = weight.view(shape)
        self._derive('view', view, [weight])
        each = self._expand(view, x.shape, rows, axis - x.dim())
        out = torch.where(x > 0, x, each * x)
        self.tracker.set(out, rows, axis)
        return out

    def _trained(self, tensor: Tensor) -> bool:
        return tensor.requires_grad and self.weight(tensor) is not None

    def _expand(
        self,
        weight: Tensor,
        shape: Sequence[int],
        rows: Rows,
        from_end: int,
    ) -> Tensor:
        axis = from_end + len(shape)
        if -from_end <= weight.dim() and weight.size(from_end) != 1:
            raise Unsupported('each row has parameters of its own')
        alias = self._alias(weight)
        assert alias is not None
        each = alias.expand(shape)
        edge = get_gradient_edge(each)
        self._note_rows(weight, edge, rows, axis, len(shape))
        return each

    def _edge(self, out: Tensor, x: Tensor) -> GradientEdge:
        if out.dtype != x.dtype:
            raise Unsupported('it is used in mixed precision')
        return get_gradient_edge(out)

    def _note_linear(
        self,
        weight: Tensor,
        edge: GradientEdge,
        rows: Rows,
        axis: int,
        x: Tensor,
        source: Tensor | None = None,
        index: int | None = None,
    ) -> None:
        found = self.weight(weight if source is None else source)
        assert found is not None
        use = Use(weight.detach(), found.base, LINEAR, edge, rows, axis, index)
        use.input, use.version = x.detach(), x._version
        self.uses.append(use)

    def _note_rows(
        self,
        weight: Tensor,
        edge: GradientEdge,
        rows: Rows,
        axis: int,
        dim: int,
    ) -> None:
        found = self.weight(weight)
        assert found is not None
        full = weight.detach()
        full = full.view(*[1] * (dim - full.dim()), *full.shape)
        self.uses.append(Use(full, found.base, ROWS, edge, rows, axis))

    def check_complete(self, outputs: Iterable[Tensor]) -> None:
        """Checks that the outputs reach no parameter by another way."""
        params = {id(p) for p in self.params}
        todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
        seen: set[Node] = set(todo)
        for out in outputs:
            if id(out) in params:
                raise Unsupported('a parameter is an output')
        while todo:
            node = todo.pop()
            variable = getattr(node, 'variable', None)
            if variable is not None and id(variable) in params:
                raise Unsupported(
                    f'{self.names[id(variable)]}: it is used in a way that '
                    'was not seen'
                )
            for child, _ in node.next_functions:
                if child is None or child in seen or child in self.stops:
                    continue
                seen.add(child)
                todo.append(child)


def _same_memory(tensor: Tensor, base: Tensor) -> bool:
    return (
        tensor.untyped_storage().data_ptr()
        == base.untyped_storage().data_ptr()
    )
