r"""Record how a forward pass uses parameters, and for which subgraphs.

A parameter is used by rows, and each row belongs to one subgraph. From these
records :mod:`pyg_trust.privacy.clipping` makes norms and clipped sums.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from pyg_trust.privacy import rowwise
from pyg_trust.privacy.calls import Unsupported, Watch, name_of
from pyg_trust.privacy.draws import Masks
from pyg_trust.privacy.layer_rules import LAYER_RULES
from pyg_trust.privacy.rows import (
    FAILURES,
    Args,
    Conflict,
    Kwargs,
    Notes,
    Rows,
    RowTracker,
    names,
    tensors_of,
    version_of,
)

_VIEWS = names(
    """
    view reshape t transpose unsqueeze squeeze permute select narrow chunk
    split unbind __getitem__ T mT flatten contiguous swapaxes view_as
    """
)
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
        weight (Tensor): the view that was used; its memory tells which part
            of :obj:`base` it is. For a linear map ``[out, in]``.
        base (Tensor): the tensor that :obj:`weight` is a view of.
        kind (str): a linear map of rows, or a copy for each row.
        edge (GradientEdge): where the gradient comes from.
        index (int, optional): for a batch of linear maps, the slice of the
            gradient along its first dimension.
        rows (Rows): the rows, with their subgraphs.
        axis (int): their dimension in the gradient (without that of
            :obj:`index`).
        input (Tensor, optional): the input of a linear map, with rows in the
            same dimension.
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


class Recorder(Watch):
    """Recorder of how a forward pass uses parameters, and for which rows.

    Args:
        params (dict[str, Tensor]): the parameters, by name.
        tracker (RowTracker): knows the subgraph of each input row.
        constants (iterable of Tensor): frozen parameters and buffers.
            (default: :obj:`()`)
        rowwise (bool): whether a row's bits are to be those of the row alone
            (``privacy/rowwise.py``). (default: :obj:`False`)
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        tracker: RowTracker,
        constants: Iterable[Tensor] = (),
        rowwise: bool = False,
    ) -> None:
        super().__init__()
        self.rowwise = rowwise
        of = (param.device for param in params.values())
        device = next(of, torch.device('cpu'))
        #: The masks of dropout.
        self.draws = Masks(tracker, device)
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()
        self.tracker = tracker
        self.params = list(params.values())
        self.names = {id(p): name for name, p in params.items()}
        # With the tensors, so that no other gets the id of one.
        self.constants = {id(t): t for t in constants}
        self.uses: list[Use] = []
        self.stops: set[Node] = set()
        self.problem: str | None = None
        #: The user's own rules that were followed.
        self.own: set[str] = set()
        self._trained = {
            id(p): Weight(p, frozenset([id(p)])) for p in self.params
        }
        self._weights = Notes()

    def weight(self, tensor: Tensor) -> Weight | None:
        """Return the ``Weight`` of a tensor made of parameters, or None."""
        return self._trained.get(id(tensor)) or self._weights.get(tensor)

    def call(
        self, func: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        """Make a call; note uses of parameters, and follow other rows."""
        name = name_of(func)
        if name is None or self.problem is not None:
            return func(*args, **kwargs)
        tensors = tensors_of(args, kwargs)
        if torch.is_grad_enabled():
            weights = [
                t
                for t in tensors
                if t.requires_grad and self.weight(t) is not None
            ]
            if weights:
                return self._use(func, name, args, kwargs, weights)
        dropped = self.draws.drop(func, args, kwargs)
        if dropped is not None:
            return dropped
        versions = [version_of(t) for t in tensors]
        out = self.compute(func, name, args, kwargs)
        try:
            self.tracker.follow(name, args, kwargs, out, tensors, versions)
        except Conflict as error:
            self.problem = f"in '{name}', {error}"
        return out

    def compute(
        self, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs
    ) -> Any:
        """Compute a function's result, row by row if ``rowwise`` is set."""
        if not self.rowwise or (not kwargs and rowwise.is_plain(name)):
            return func(*args, **kwargs)
        out, known = rowwise.call(func, name, args, kwargs)
        if not known:
            self.foreign.add(name)
        return out

    def linear(self, x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        """Compute ``F.linear``, row by row if ``rowwise`` is set."""
        return self.compute(F.linear, 'linear', (x, weight, bias), {})

    def _use(
        self,
        func: Callable[..., Any],
        name: str,
        args: Args,
        kwargs: Kwargs,
        weights: list[Tensor],
    ) -> Any:
        base = name
        if name.endswith('_') and not name.endswith('__'):
            base = name[:-1]
        tensors = [
            t for t in tensors_of(args, kwargs) if id(t) not in self.constants
        ]
        try:
            copies = name == 'expand' and _is_row(*args)
            if len(weights) == len(tensors) and base == name and not copies:
                versions = [w._version for w in weights]
                out = func(*args, **kwargs)
                if versions != [w._version for w in weights]:
                    self._note_problem(weights, f"'{name}' writes into it")
                self.derive(name, out, weights)
                return out
            if name in LAYER_RULES:
                if LAYER_RULES.is_own(name):
                    self.own.add(name)
                    self.foreign.add(name)
                return LAYER_RULES[name](self, func, *args, **kwargs)
            raise Unsupported(
                f"'{name}' is not known to use a parameter row by row"
            )
        except (Unsupported, Conflict, *FAILURES) as error:
            # A call with wrong arguments fails again below.
            self._note_problem(weights, error)
        return func(*args, **kwargs)

    def _note_problem(self, weights: list[Tensor], error: object) -> None:
        what = sorted(
            self.names[p]
            for w in weights
            for p in self.weight(w).params  # type: ignore[union-attr]
        )
        self.problem = f'{", ".join(what)}: {error}'

    def derive(self, name: str, out: Any, weights: list[Tensor]) -> None:
        """Note that a result is made of parameters alone."""
        found = [w for t in weights if (w := self.weight(t)) is not None]
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(tensor, Tensor) or not tensor.requires_grad:
                continue
            base = found[0].base
            if name in _VIEWS and _same_memory(tensor, base):
                self._weights.set(tensor, found[0])
                continue
            params = frozenset().union(*(w.params for w in found))
            self._weights.set(tensor, Weight(tensor, params))

    def alias(self, tensor: Tensor | None) -> Tensor | None:
        """Return a view of a parameter, whose uses count as recorded."""
        if tensor is None or not self.trained(tensor):
            return tensor
        alias = tensor.view_as(tensor)
        assert alias.grad_fn is not None
        self.stops.add(alias.grad_fn)
        return alias

    def rows_of(self, tensor: Tensor) -> tuple[Rows, int]:
        """Return the rows of a rule's input, and their dimension."""
        found = self.tracker.get(tensor)
        if found is None:
            if tensor.dim() == 0:
                raise Unsupported(
                    'it is combined with a number of unknown origin'
                )
            # Their subgraphs may become known when they meet other rows.
            found = Rows(tensor.size(0)), 0
            self.tracker.set(tensor, *found)
        return found

    def trained(self, tensor: Tensor) -> bool:
        """Return whether a tensor is, or is made of, trained parameters."""
        return tensor.requires_grad and self.weight(tensor) is not None

    def expand(
        self,
        weight: Tensor,
        shape: Sequence[int],
        rows: Rows,
        from_end: int,
    ) -> Tensor:
        """Expand a parameter to a shape, with a copy for each row."""
        axis = from_end + len(shape)
        if -from_end <= weight.dim() and weight.size(from_end) != 1:
            raise Unsupported('each row has parameters of its own')
        alias = self.alias(weight)
        assert alias is not None
        each = alias.expand(shape)
        edge = get_gradient_edge(each)
        self.note_rows(weight, edge, rows, axis, len(shape))
        return each

    def edge(self, out: Tensor, x: Tensor) -> GradientEdge:
        """Return the gradient edge of a linear map's result."""
        if out.dtype != x.dtype:
            raise Unsupported('it is used in mixed precision')
        return get_gradient_edge(out)

    def note_linear(
        self,
        weight: Tensor,
        edge: GradientEdge,
        rows: Rows,
        axis: int,
        x: Tensor,
        source: Tensor | None = None,
        index: int | None = None,
    ) -> None:
        """Note a linear map of rows, ``x @ weight.T``; see :class:`Use`."""
        found = self.weight(weight if source is None else source)
        assert found is not None
        use = Use(weight.detach(), found.base, LINEAR, edge, rows, axis, index)
        use.input, use.version = x.detach(), x._version
        self.uses.append(use)

    def note_rows(
        self,
        weight: Tensor,
        edge: GradientEdge,
        rows: Rows,
        axis: int,
        dim: int,
    ) -> None:
        """Note that each row has a copy of a parameter."""
        found = self.weight(weight)
        assert found is not None
        full = weight.detach()
        full = full.view(*[1] * (dim - full.dim()), *full.shape)
        self.uses.append(Use(full, found.base, ROWS, edge, rows, axis))

    def check_hooks(self) -> None:
        """Check that no parameter has a hook, which changes its gradient."""
        for param in self.params:
            if param._backward_hooks:
                raise Unsupported(
                    f'{self.names[id(param)]}: it has a hook on its gradient'
                )

    def check_complete(self, outputs: Iterable[Tensor]) -> None:
        """Check that every use of a parameter by the outputs is recorded."""
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
                    f'{self.names[id(variable)]}: it is used by an operation '
                    'that was not recorded'
                )
            for child, _ in node.next_functions:
                if child is None or child in seen or child in self.stops:
                    continue
                seen.add(child)
                todo.append(child)


def _is_row(weight: Tensor, *sizes: Any) -> bool:
    # Of a matrix with one row, rows are made, and columns stay.
    return (
        weight.dim() == 2
        and weight.size(0) == 1
        and all(isinstance(size, int) for size in sizes)
        and sizes[1:] in ((-1,), (weight.size(1),))
        and sizes[0] >= 0
    )


def _same_memory(tensor: Tensor, base: Tensor) -> bool:
    return (
        tensor.untyped_storage().data_ptr()
        == base.untyped_storage().data_ptr()
    )
