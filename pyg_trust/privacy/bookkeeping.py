r"""Norms and clipped sums of gradients without the gradients themselves.

A parameter is used by rows, and each row belongs to one subgraph. If a linear
map has inputs :math:`a_r` and the loss has the gradients :math:`\gamma_r` by
its outputs, subgraph :math:`i` has the gradient :math:`g_i = \sum_{r \in i}
\gamma_r a_r^\top`, and

.. math::
    \lVert g_i \rVert^2 = \sum_{r, s \in i}
    \langle \gamma_r, \gamma_s \rangle \langle a_r, a_s \rangle, \qquad
    \sum_i c_i g_i = \sum_r (c_{i(r)} \gamma_r) a_r^\top,

with one backward pass and no gradient per subgraph ("book-keeping", Bu et al.
2022, https://arxiv.org/abs/2210.00038, with rows of subgraphs in place of
tokens). Parameters that are broadcast over rows (a bias, attention vectors,
the weight of a norm) are expanded to one copy per row first, which costs no
memory. Functions of parameters alone (:math:`1 + \epsilon` in GIN) are
treated as parameters, and their gradients are pulled back.

A difference of large numbers loses digits. The norm of a sum whose terms
cancel is therefore computed from the gradient itself, and every norm is
raised by the rounding error of the sum, so that what is added is never longer
than what was clipped to.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pyg_trust.functional.mechanisms import clip_factors
from pyg_trust.functional.ragged import pointer
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
_LINEAR, _ROWS = 'linear', 'rows'
# How many numbers explicit gradients may have at a time.
_CHUNK = 2**22


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
        use = Use(
            weight.detach(), found.base, _LINEAR, edge, rows, axis, index
        )
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
        self.uses.append(Use(full, found.base, _ROWS, edge, rows, axis))

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


@dataclass
class _Layout:
    # Rows, those of a subgraph side by side, subgraphs of a size together.
    order: Tensor | None  # None if rows are so already
    classes: list[tuple[int, int, Tensor]]  # size, first row, subgraphs
    start: Tensor  # of each subgraph
    count: Tensor

    def sorted(self, tensor: Tensor) -> Tensor:
        if self.order is None:
            return tensor
        return tensor.index_select(0, self.order)

    def padded(self, tensor: Tensor, subgraphs: Tensor) -> Tensor:
        # [num_subgraphs, most rows, ...], zero where there is no row.
        count = self.count[subgraphs].view(-1, 1)
        place = torch.arange(int(count.max()), device=count.device)
        inside = place < count
        place = self.start[subgraphs].view(-1, 1) + place.where(inside, 0)
        if self.order is not None:
            place = self.order[place.clamp(max=self.order.numel() - 1)]
        else:
            place = place.clamp(max=tensor.size(0) - 1)
        return torch.where(inside.unsqueeze(-1), tensor[place], 0)


def _layout(owner: Tensor, num_subgraphs: int) -> _Layout:
    count = torch.bincount(owner, minlength=num_subgraphs)
    by_size = count.argsort(stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(num_subgraphs, device=owner.device)
    key = rank[owner]
    order = None
    if not bool((key[1:] >= key[:-1]).all()):
        order = key.argsort(stable=True)
    sizes, numbers = count[by_size].unique_consecutive(return_counts=True)
    classes, row, first = [], 0, 0
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        if size:
            classes.append((size, row, by_size[first : first + number]))
        row, first = row + size * number, first + number
    start = torch.empty_like(count)
    start[by_size] = pointer(count[by_size])[:-1]
    return _Layout(order, classes, start, count)


@dataclass(eq=False)
class _Cluster:
    # Uses of the same part of a base, in the same way.
    kind: str
    weight: Tensor
    grads: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    owners: list[Tensor] = field(default_factory=list)

    def join(self) -> None:
        # Rows that are used more than once belong to one product.
        if self.kind == _LINEAR and len(self.grads) > 1:
            self.grads = [torch.cat(self.grads)]
            self.inputs = [torch.cat(self.inputs)]
            self.owners = [torch.cat(self.owners)]


@dataclass(eq=False)
class _Base:
    base: Tensor
    clusters: list[_Cluster]
    apart: bool


class Book:
    r"""Norms and sums from what was recorded.

    Args:
        recorder (Recorder): of the forward pass.
        outputs (list[Tensor]): what the loss is a function of.
        grads (list[Tensor]): the gradients by the outputs.
        num_subgraphs (int): how many subgraphs there are.

    Raises:
        Unsupported: if something was seen that is not known.
    """

    def __init__(
        self,
        recorder: Recorder,
        outputs: list[Tensor],
        grads: list[Tensor],
        num_subgraphs: int,
    ) -> None:
        if recorder.problem is not None:
            raise Unsupported(recorder.problem)
        recorder.check_complete(outputs)
        self.recorder = recorder
        self.num_subgraphs = num_subgraphs
        self._layouts: dict[int, tuple[Tensor, _Layout]] = {}
        self._lengths: dict[Any, tuple[Tensor, Tensor]] = {}
        for use in recorder.uses:
            if use.rows.owner is None:
                raise Unsupported(
                    f'{self._name(use.base)}: whose the rows are that use it '
                    'is not known'
                )
            if use.input is not None and use.input._version != use.version:
                raise Unsupported(
                    f'{self._name(use.base)}: its input was changed in place'
                )
            if not _is_dense(use.base):
                raise Unsupported(
                    f'{self._name(use.base)}: its memory overlaps'
                )
        self.bases = self._differentiate(outputs, grads)

    def _name(self, base: Tensor) -> str:
        weight = self.recorder.weight(base)
        assert weight is not None
        return ', '.join(sorted(self.recorder.names[p] for p in weight.params))

    def _differentiate(
        self, outputs: list[Tensor], grads: list[Tensor]
    ) -> list[_Base]:
        uses = self.recorder.uses
        edges = {(u.edge.node, u.edge.output_nr): u.edge for u in uses}
        if not edges:
            return []
        found = torch.autograd.grad(
            outputs,
            list(edges.values()),
            grads,
            retain_graph=True,
            allow_unused=True,
        )
        by_edge = dict(zip(edges, found, strict=True))
        parts: dict[int, dict[Any, _Cluster]] = {}
        bases: dict[int, Tensor] = {}
        for use in uses:
            grad = by_edge[use.edge.node, use.edge.output_nr]
            if grad is None:
                continue
            if use.index is not None:
                grad = grad[use.index]
            bases[id(use.base)] = use.base
            clusters = parts.setdefault(id(use.base), {})
            key: tuple[Any, ...] = (use.kind, _region(use.weight))
            if use.kind == _LINEAR:
                key = (*key, use.weight.shape)
            cluster = clusters.setdefault(key, _Cluster(use.kind, use.weight))
            self._add(cluster, use, grad)
        for clusters in parts.values():
            for cluster in clusters.values():
                cluster.join()
        return [
            _Base(bases[i], list(c.values()), _are_apart(c.values()))
            for i, c in parts.items()
        ]

    def _add(self, cluster: _Cluster, use: Use, grad: Tensor) -> None:
        owner = use.rows.owner
        assert owner is not None
        if use.kind == _LINEAR:
            assert use.input is not None
            shape = [1] * (grad.dim() - 1)
            shape[use.axis] = -1
            if grad.dim() > 2:
                owner = owner.view(shape).expand(grad.shape[:-1]).reshape(-1)
                # The same object each time, so that it is sorted once.
                owner = self.recorder.tracker.known(owner).owner
                assert owner is not None
            cluster.grads.append(grad.flatten(0, -2))
            cluster.inputs.append(use.input.flatten(0, -2))
        else:
            grad = grad.movedim(use.axis, 0)
            full = use.weight.movedim(use.axis, 0)[0]
            dims = [
                d + 1
                for d, size in enumerate(full.shape)
                if size == 1 and grad.size(d + 1) != 1
            ]
            if dims:
                grad = grad.sum(dims)
            cluster.grads.append(
                grad.reshape(grad.size(0), use.weight.numel())
            )
        cluster.owners.append(owner)

    def norms(self) -> Tensor:
        r"""The norms of the gradients, raised by their rounding error.

        Returns:
            Tensor: ``[num_subgraphs]``; infinite where something was not
            finite.
        """
        params = self.recorder.params
        k = self.num_subgraphs
        square = torch.zeros(k, dtype=params[0].dtype, device=params[0].device)
        terms = torch.zeros_like(square)
        names = self.recorder.names
        derived = [b for b in self.bases if id(b.base) not in names]
        mixed = set().union(*(self._params(b) for b in derived))
        for base in self.bases:
            for cluster in base.clusters:
                terms += self._terms(cluster).square()
            if id(base.base) in mixed or base in derived:
                continue
            if base.apart:
                for cluster in base.clusters:
                    square += self._square(cluster)
            else:
                mixed.add(id(base.base))
        if mixed:
            square += self._explicit(mixed)
        eps = torch.finfo(square.dtype).eps
        norms = square.clamp(min=0).sqrt() + 4 * eps * terms.sqrt()
        return norms.nan_to_num(torch.inf, torch.inf)

    def sums(self, factors: Tensor) -> dict[str, Tensor]:
        r"""The sum of the gradients, each times its factor.

        Args:
            factors (Tensor): ``[num_subgraphs]``; a gradient whose factor is
                zero is left out, finite or not.

        Returns:
            dict[str, Tensor]: by the name of each parameter.
        """
        zero = factors == 0
        dead = zero if bool(zero.any()) else None
        out = {id(p): torch.zeros_like(p) for p in self.recorder.params}
        for base in self.bases:
            total = torch.empty_strided(
                base.base.size(),
                base.base.stride(),
                dtype=base.base.dtype,
                device=base.base.device,
            ).zero_()
            for cluster in base.clusters:
                part = _same_part(total, base.base, cluster.weight)
                for value in self._weighted(cluster, factors, dead):
                    part += value.view(part.shape)
            if id(base.base) in out:
                out[id(base.base)] += total
                continue
            params = self._of(base)
            pulled = torch.autograd.grad(
                base.base, params, total, retain_graph=True, allow_unused=True
            )
            for param, grad in zip(params, pulled, strict=True):
                if grad is not None:
                    out[id(param)] += grad
        return {self.recorder.names[i]: value for i, value in out.items()}

    def _params(self, base: _Base) -> frozenset[int]:
        weight = self.recorder.weight(base.base)
        assert weight is not None
        return weight.params

    def _of(self, base: _Base) -> list[Tensor]:
        ids = self._params(base)
        return [p for p in self.recorder.params if id(p) in ids]

    def _layout(self, owner: Tensor) -> _Layout:
        if id(owner) not in self._layouts:
            # The owner is kept with it, so that its id stays its own.
            self._layouts[id(owner)] = (
                owner,
                _layout(owner, self.num_subgraphs),
            )
        return self._layouts[id(owner)][1]

    def _length(self, rows: Tensor) -> Tensor:
        key = rows.data_ptr(), rows.shape, rows.stride()
        if key not in self._lengths:
            self._lengths[key] = rows, torch.linalg.vector_norm(rows, dim=1)
        return self._lengths[key][1]

    def _terms(self, cluster: _Cluster) -> Tensor:
        # The sum of the norms of the rows' gradients, by subgraph.
        total = cluster.weight.new_zeros(self.num_subgraphs)
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            length = self._length(grad)
            if cluster.kind == _LINEAR:
                length = length * self._length(cluster.inputs[i])
            total.index_add_(0, owner, length)
        return total

    def _square(self, cluster: _Cluster) -> Tensor:
        k = self.num_subgraphs
        if cluster.kind == _ROWS:
            total = cluster.weight.new_zeros(k, cluster.weight.numel())
            for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
                total.index_add_(0, owner, grad)
            return torch.linalg.vector_norm(total, dim=1).square()
        grad, inner = cluster.grads[0], cluster.inputs[0]
        layout = self._layout(cluster.owners[0])
        rows, cols = grad.size(1), inner.size(1)
        square = grad.new_zeros(k)
        todo = []
        grads, inners = layout.sorted(grad), layout.sorted(inner)
        for size, first, subgraphs in layout.classes:
            if size * (rows + cols) > rows * cols:
                todo.append(subgraphs)
                continue
            end = first + size * subgraphs.numel()
            square[subgraphs] = _gram(
                grads[first:end].view(-1, size, rows),
                inners[first:end].view(-1, size, cols),
            )
        del grads, inners
        eps = torch.finfo(grad.dtype).eps
        few = square < 1e5 * eps * self._terms(cluster).square()
        few &= layout.count > 1
        if todo:
            few[torch.cat(todo)] = True
        subgraphs = few.nonzero().view(-1)
        for chunk in self._chunks(subgraphs, layout, rows, cols):
            value = torch.bmm(
                layout.padded(grad, chunk).mT, layout.padded(inner, chunk)
            )
            square[chunk] = value.reshape(len(chunk), -1).square().sum(1)
        return square

    def _chunks(
        self, subgraphs: Tensor, layout: _Layout, rows: int, cols: int
    ) -> Iterable[Tensor]:
        if subgraphs.numel() == 0:
            return ()
        most = int(layout.count[subgraphs].max())
        each = rows * cols + most * (rows + cols)
        return subgraphs.split(max(1, _CHUNK // each))

    def _each(self, cluster: _Cluster, subgraphs: Tensor) -> Tensor:
        # [len(subgraphs), *weight.shape]
        n = subgraphs.numel()
        shape = (n, *cluster.weight.shape)
        if cluster.kind == _LINEAR:
            grad, inner = cluster.grads[0], cluster.inputs[0]
            layout = self._layout(cluster.owners[0])
            if int(layout.count[subgraphs].max()) == 0:
                return grad.new_zeros(shape)
            return torch.bmm(
                layout.padded(grad, subgraphs).mT,
                layout.padded(inner, subgraphs),
            )
        total = cluster.weight.new_zeros(n, cluster.weight.numel())
        for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
            layout = self._layout(owner)
            if int(layout.count[subgraphs].max()):
                total += layout.padded(grad, subgraphs).sum(1)
        return total.view(shape)

    def _explicit(self, mixed: set[int]) -> Tensor:
        # The gradients of parameters that are used in several ways.
        params = [p for p in self.recorder.params if id(p) in mixed]
        bases = [b for b in self.bases if self._params(b) & mixed]
        square = params[0].new_zeros(self.num_subgraphs)
        size = sum(p.numel() for p in params)
        size += sum(b.base.numel() for b in bases)
        everything = torch.arange(self.num_subgraphs, device=square.device)
        for chunk in everything.split(max(1, _CHUNK // size)):
            n = chunk.numel()
            out = {id(p): p.new_zeros(n, *p.shape) for p in params}
            for base in bases:
                total = base.base.new_zeros(n, base.base.numel())
                for cluster in base.clusters:
                    part = _same_part(total, base.base, cluster.weight, n)
                    part += self._each(cluster, chunk).view(part.shape)
                whole = _same_part(total, base.base, base.base, n)
                if id(base.base) in out:
                    out[id(base.base)] += whole
                    continue
                of = self._of(base)
                pulled = torch.autograd.grad(
                    base.base,
                    of,
                    whole,
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
                for param, grad in zip(of, pulled, strict=True):
                    if grad is not None:
                        out[id(param)] += grad
            for value in out.values():
                square[chunk] += value.reshape(len(chunk), -1).square().sum(1)
        return square

    def _weighted(
        self, cluster: _Cluster, factors: Tensor, dead: Tensor | None
    ) -> Iterable[Tensor]:
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            each = factors[owner]
            inner = cluster.inputs[i] if cluster.inputs else None
            if dead is not None:
                # Zero times what is not finite is not zero.
                gone = dead[owner].unsqueeze(1)
                grad = grad.masked_fill(gone, 0)
                if inner is not None:
                    inner = inner.masked_fill(gone, 0)
            if inner is None:
                yield each @ grad
            else:
                yield (grad * each.unsqueeze(1)).t() @ inner


def clipped_sum(
    recorder: Recorder,
    outputs: list[Tensor],
    grads: list[Tensor],
    num_subgraphs: int,
    max_grad_norm: float,
) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum and the norms, of what was recorded."""
    with torch.no_grad():
        book = Book(recorder, outputs, grads, num_subgraphs)
        norms = book.norms()
        return book.sums(clip_factors(norms, max_grad_norm)), norms


def _gram(grads: Tensor, inners: Tensor) -> Tensor:
    # [n, s, rows] and [n, s, cols] to [n].
    if grads.size(1) == 1:
        length = torch.linalg.vector_norm(grads[:, 0], dim=1)
        length = length * torch.linalg.vector_norm(inners[:, 0], dim=1)
        return length.square()
    outer = torch.bmm(grads, grads.mT)
    inner = torch.bmm(inners, inners.mT)
    return (outer * inner).sum((1, 2))


def _same_memory(tensor: Tensor, base: Tensor) -> bool:
    return (
        tensor.untyped_storage().data_ptr()
        == base.untyped_storage().data_ptr()
    )


def _is_dense(tensor: Tensor) -> bool:
    span = sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return span + 1 == tensor.numel()


def _region(weight: Tensor) -> tuple[Any, ...]:
    # Which numbers a view covers, and in which order.
    dims = zip(weight.shape, weight.stride(), strict=True)
    return weight.storage_offset(), tuple(d for d in dims if d[0] > 1)


def _are_apart(clusters: Iterable[_Cluster]) -> bool:
    spans = []
    for cluster in clusters:
        offset, dims = _region(cluster.weight)
        spans.append((offset, offset + sum((n - 1) * s for n, s in dims)))
    spans.sort()
    return all(before[1] < after[0] for before, after in pairwise(spans))


def _same_part(
    total: Tensor, base: Tensor, weight: Tensor, batch: int | None = None
) -> Tensor:
    # The part of a total that a weight is of its base.
    offset = weight.storage_offset() - base.storage_offset()
    shape, stride = tuple(weight.shape), weight.stride()
    if batch is not None:
        shape, stride = (batch, *shape), (base.numel(), *stride)
    return total.as_strided(shape, stride, offset)
