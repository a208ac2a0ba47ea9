"""Record calls with parameters in a forward pass."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from pyg_trust.privacy import rowwise
from pyg_trust.privacy.rules import ADDS, Unseen, opened, tensors

__all__ = ['Recorder']


class Use(NamedTuple):
    """One call with parameters, and where its signal comes from."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pick: int | None
    edge: GradientEdge
    where: str


class Known(NamedTuple):
    """A tensor made of parameters and constants alone.

    It is kept alive, with the tensor that it is a view of (or itself), and the
    parameters that it is made of; constants have none.
    """

    tensor: Tensor
    base: Tensor
    leaves: tuple[Tensor, ...]


def _is_place(name: str) -> bool:
    # Whether a function writes into its first argument.
    if name.endswith('_') and not name.endswith('__'):
        return True
    return name == '__setitem__' or (
        name[:3] == '__i' and name not in ('__invert__', '__index__')
    )


class Recorder(TorchFunctionMode):
    """Mode that notes calls with parameters.

    Args:
        params (dict[str, Tensor]): the trained parameters, by name.
        constants (iterable of Tensor): frozen parameters and buffers.
        sizes (set[int]): the numbers of rows of units, nodes and edges.
        exact (bool): whether each row's bits are to be those of the row
            alone (``privacy/rowwise.py``). (default: :obj:`False`)
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        constants: Iterable[Tensor],
        sizes: set[int],
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.params, self.sizes, self.exact = params, sizes, exact
        self.known = {id(t): Known(t, t, ()) for t in constants}
        self.known |= {id(t): Known(t, t, (t,)) for t in params.values()}
        #: Tensors made of parameters, in the order they were made in.
        self.derived: list[Known] = []
        self.uses: list[Use] = []
        #: The nodes that rows were taken from, as of messages, by the first
        #: number in memory and how many they are.
        self.taken: dict[tuple[int, int], Tensor] = {}
        #: The names of the modules that are running.
        self.stack = ['']
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Record a block, with the names of the modules that run."""
        names = {layer: name for name, layer in module.named_modules()}

        def enter(layer: nn.Module, _: Any) -> None:
            if layer in names:
                self.stack.append(names[layer] or type(layer).__name__)

        def leave(layer: nn.Module, *_: Any) -> None:
            if layer in names:
                self.stack.pop()

        with (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            self,
        ):
            yield

    def trained(self, t: Tensor) -> bool:
        """Return whether a tensor is made of trained parameters alone."""
        return t.requires_grad and id(t) in self.known

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, known = kwargs or {}, self.known
        name = rowwise.name_of(func)
        if name is None:
            return func(*args, **kwargs)
        given = list(tensors(args, kwargs))
        noted = any(id(t) in known for t in given)
        if noted or self.exact:
            parts = opened(func, args)
            if parts is not None:
                with self:
                    return parts(*args, **kwargs)
        if not noted:
            out = self._compute(func, name, args, kwargs)
            if name == 'index_select' and given[-1].dim() == 1:
                index = given[-1]
                self.taken[index.data_ptr(), len(index)] = index
            made = not given and isinstance(out, Tensor)
            # Made of nothing: a constant, unless it has rows.
            if made and self.sizes.isdisjoint(out.shape):
                known[id(out)] = Known(out, out, ())
            return out
        kept = args
        if _is_place(name) and isinstance(args[0], Tensor):
            first = args[0].detach()
            kept = (first if name in ADDS else first.clone(), *args[1:])
            # What is written into is a constant no more.
            before = known.get(id(args[0]))
            private = any(id(t) not in known for t in given)
            if private and before is not None and not before.leaves:
                del known[id(args[0])]
        out = self._compute(func, name, args, kwargs)
        trained = [t for t in given if self.trained(t)]
        if out is not None:
            self._note(func, name, kept, kwargs, out, given, trained)
        elif trained and name == '__setitem__' and torch.is_grad_enabled():
            raise Unseen(
                f"'{self.stack[-1]}': a parameter is written into a "
                'tensor (x[...] = weight): use torch.where or torch.cat'
            )
        return out

    def _note(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        out: Any,
        given: list[Tensor],
        trained: list[Tensor],
    ) -> None:
        known, many = self.known, type(out) in (tuple, list)
        made = [
            (k, t)
            for k, t in enumerate(out if many else (out,))
            if isinstance(t, Tensor) and id(t) not in known
        ]
        live = [(k, t) for k, t in made if t.requires_grad]
        private = any(
            id(t) not in known and (t.dim() or t.requires_grad) for t in given
        )
        if not live or not trained:
            for _, t in made:
                if not private and not t.requires_grad:
                    known[id(t)] = Known(t, t, ())
            return
        shape = live[0][1].shape
        rows = name in ('expand', 'repeat') and shape and shape[0]
        if not private and not (rows and shape[0] in self.sizes):
            for _, t in live:
                known[id(t)] = self._derived(t, trained)
                self.derived.append(known[id(t)])
            return
        if len(live) > 1:
            raise Unseen(
                f"'{self.stack[-1]}': {name} has several results that depend "
                'on a parameter'
            )
        ((pick, t),) = live
        place = pick if many else None
        edge, where = get_gradient_edge(t), self.stack[-1]
        self.uses.append(Use(func, name, args, kwargs, place, edge, where))

    def _derived(self, t: Tensor, trained: list[Tensor]) -> Known:
        of = [self.known[id(q)] for q in trained]
        leaves = tuple({id(p): p for k in of for p in k.leaves}.values())
        base = of[0].base
        view = len(of) == 1 and t._is_view() and t.layout == torch.strided
        same = view and (
            t.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        )
        return Known(t, base if same else t, leaves)

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not self.exact:
            return func(*args, **kwargs)
        out, local = rowwise.call(func, name, args, kwargs)
        if not local:
            self.foreign.add(name)
        return out
