"""Record calls with parameters in a forward pass, and gather their rows."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from pyg_trust.privacy.clipping import (
    LINEAR,
    TABLE,
    WHOLE,
    Base,
    Cluster,
    region,
    same_part,
)
from pyg_trust.privacy.rules import ADDS, Unseen, opened, tensors

__all__ = ['Gathered', 'Recorder']


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


class Gathered:
    """Rows and gradients that parameters got, by unit.

    Owners of rows have one unit for each, -1 for rows of nobody, or for each
    of as many rows in a row.

    Args:
        recorder (Recorder): the record of the forward pass.
        inverse (Tensor): float64, ``[num_units]``, what undoes the scale of
            each unit: rows are of gradients times these scales.
        broken (Tensor): bool, units that are not finite.
    """

    def __init__(
        self, recorder: Recorder, inverse: Tensor, broken: Tensor
    ) -> None:
        self.recorder, self.inverse, self.broken = recorder, inverse, broken
        self.num_units = len(inverse)
        self.params = list(recorder.params.values())
        self.names = {id(p): n for n, p in recorder.params.items()}
        # By the base, the clusters of uses of the same part of it.
        self._parts: dict[int, dict[Any, Cluster]] = {}
        self._bases: dict[int, Tensor] = {}
        # By owners and the number of rows, the rows of somebody and theirs.
        self._owned: dict[tuple[int, int], Any] = {}

    def params_of(self, base: Tensor) -> list[Tensor]:
        """Return the parameters that a tensor is made of."""
        return list(self.recorder.known[id(base)].leaves)

    def bases(self) -> list[Base]:
        """Return the tensors that are used, with their uses."""
        for clusters in self._parts.values():
            for cluster in clusters.values():
                cluster.join()
        return [
            Base(self._bases[i], [*map(replace, clusters.values())])
            for i, clusters in self._parts.items()
        ]

    def whole(self, w: Tensor, u: Tensor, grads: Tensor) -> None:
        """Add gradients of a parameter, ``[num_rows, *w.shape]``."""
        cluster = self._cluster(WHOLE, w, w.detach())
        if not cluster.grads:
            cluster.grads = [w.new_zeros(self.num_units, w.numel())]
        flat = grads.detach().reshape(len(grads), -1)
        cluster.grads[0].index_add_(0, u, flat)

    def _cluster(self, kind: str, w: Tensor, part: Tensor) -> Cluster:
        base = self.recorder.known[id(w)].base
        self._bases[id(base)] = base
        clusters = self._parts.setdefault(id(base), {})
        key = kind, region(part), part.shape if kind == LINEAR else None
        if key not in clusters:
            clusters[key] = Cluster(kind, part)
        return clusters[key]

    def add(
        self,
        kind: str,
        w: Tensor,
        u: Tensor,
        grads: Tensor,
        inputs: Tensor | None = None,
        part: Tensor | None = None,
    ) -> None:
        """Add rows of gradients of a parameter, as a :class:`Cluster` has.

        ``part`` is the view of it that is used, itself by default.
        """
        key = id(u), len(grads)
        if key not in self._owned:
            # The same object each time, so that it is sorted once.
            times = len(grads) // max(1, len(u))
            each = u if times == 1 else u.repeat_interleave(times)
            keep = None
            if bool((u < 0).any()):
                keep = (each >= 0).nonzero().view(-1)
                each = each[keep]
            self._owned[key] = u, keep, each
        _, keep, owner = self._owned[key]
        if kind == TABLE and not len(owner):
            # An edge type may have no edge, and its table no row.
            return
        cluster = self._cluster(kind, w, w.detach() if part is None else part)
        for to, values in ((cluster.grads, grads), (cluster.inputs, inputs)):
            if values is not None:
                to.append(values if keep is None else values[keep])
        cluster.owners.append(owner)

    def total(
        self, code: Tensor
    ) -> tuple[dict[int, Tensor], dict[int, float]]:
        """Sum gradients times a number by unit, by the ids of parameters.

        Returns the sums, and how large what was added up was.
        """
        made = {id(p): torch.zeros_like(p) for p in self.params}
        sizes = dict.fromkeys(made, 0.0)
        for base in self.bases():
            t, size = base.base, 0.0
            room = t.new_zeros(t.numel())
            for cluster in base.clusters:
                part = same_part(room, t, cluster.weight)
                value, most = _summed(cluster, code.to(t))
                part += value.view(part.shape)
                size += most
            whole, of = same_part(room, t, t), self.params_of(t)
            grads: Any = [whole]
            if id(t) not in made:
                grads = torch.autograd.grad(
                    t, of, whole, retain_graph=True, materialize_grads=True
                )
                size /= float(whole.norm()) or 1.0
            for p, g in zip(of, grads, strict=True):
                made[id(p)] += g
                sizes[id(p)] += size * (1 if g is whole else float(g.norm()))
        return made, sizes


def _summed(cluster: Cluster, code: Tensor) -> tuple[Tensor, float]:
    # The sum of a cluster's gradients times a number by unit; its size.
    weight, grads = cluster.weight, cluster.grads
    if cluster.kind == WHOLE:
        return code @ grads[0], float(grads[0].norm()) * len(code) ** 0.5
    total, size = weight.new_zeros(weight.shape).reshape(-1), 0.0
    for i, (grad, owner) in enumerate(zip(grads, cluster.owners, strict=True)):
        each = code[owner]
        if cluster.kind == TABLE:
            rows, inner = total.view(len(weight), -1), cluster.inputs[i]
            rows.index_add_(0, inner, grad * each.unsqueeze(1))
            most = len(grad) ** 0.5
        elif cluster.kind == LINEAR:
            inner = cluster.inputs[i]
            total += ((grad * each.unsqueeze(1)).t() @ inner).reshape(-1)
            most = float(inner.norm())
        else:
            total += each @ grad
            most = len(grad) ** 0.5
        size += float(grad.norm()) * most
    return total, size
