"""Record calls with parameters in a forward pass, and gather their rows."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

from pyg_trust.privacy import rowwise
from pyg_trust.privacy.clipping import (
    LINEAR,
    ROWS,
    TABLE,
    WHOLE,
    Base,
    Cluster,
    region,
    same_part,
)
from pyg_trust.privacy.rules import ADDS, OPEN, Unseen, opens, tensors

__all__ = ['Gathered', 'Recorder', 'constants_of', 'followed']


class Use(NamedTuple):
    """One call with parameters, and where its signal comes from."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pick: int | None
    edge: GradientEdge
    where: str
    versions: list[tuple[Tensor, int]]


class Known(NamedTuple):
    """A tensor made of parameters and constants alone.

    It is kept alive, with the tensor that it is a view of (or itself), and the
    parameters that it is made of; constants have none.
    """

    tensor: Tensor
    base: Tensor
    leaves: tuple[Tensor, ...]


# Half of the calls of a model: they return no tensor.
_GETS = ['shape', 'layout', 'dtype', 'ndim', 'device', 'requires_grad']
_PLAIN = frozenset(
    (
        *(Tensor.dim, Tensor.size, Tensor.numel),
        *(getattr(Tensor, name).__get__ for name in _GETS),
    )
)


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
        #: The indices along which messages went.
        self.edges: list[Tensor] = []
        #: The names of the modules that are running.
        self.stack = ['']
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()

    def trained(self, t: Tensor) -> bool:
        """Return whether a tensor is made of trained parameters alone."""
        return t.requires_grad and id(t) in self.known

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, known = kwargs or {}, self.known
        if func in _PLAIN:
            return func(*args, **kwargs)
        given = list(tensors(args, kwargs))
        if not any(id(t) in known for t in given):
            out = self._compute(func, args, kwargs)
            made = not given and isinstance(out, Tensor)
            # Made of nothing: a constant, unless it has rows.
            if made and self.sizes.isdisjoint(out.shape):
                known[id(out)] = Known(out, out, ())
            return out
        if opens(func, args):
            with self:
                return OPEN[func](*args, **kwargs)
        name = getattr(func, '__name__', str(func))
        place, kept = _is_place(name), args
        if place and isinstance(args[0], Tensor):
            first = args[0].detach()
            kept = (first if name in ADDS else first.clone(), *args[1:])
        out = self._compute(func, args, kwargs)
        if place and given and self._written(given):
            return out
        trained = [t for t in given if self.trained(t)]
        if out is not None:
            self._note(func, name, kept, kwargs, out, given, trained)
        elif trained and name == '__setitem__' and torch.is_grad_enabled():
            raise Unseen(
                f"'{self.stack[-1]}': a parameter is written into a "
                'tensor (x[...] = weight): use torch.where or torch.cat'
            )
        return out

    def _written(self, given: list[Tensor]) -> bool:
        # Whether a constant was written to: it is what was written into it.
        first, *rest = given
        found = self.known.get(id(first))
        if found is None or found.leaves:
            return False
        trained = [t for t in rest if self.trained(t)]
        if any(id(t) not in self.known for t in rest):
            del self.known[id(first)]
            return not trained
        if trained:
            found = self._derived(first, trained)._replace(base=first)
            self.known[id(first)] = found
            self.derived.append(found)
        return True

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
        ((pick, result),) = live
        versions = []
        if name not in ADDS:
            written = given[:1] if _is_place(name) else []
            versions = [
                (t, t._version)
                for t in tensors(args, kwargs)
                if id(t) not in known and not any(t is w for w in written)
            ]
        self.uses.append(
            Use(
                *(func, name, args, kwargs, pick if many else None),
                *(get_gradient_edge(result), self.stack[-1], versions),
            )
        )

    def _derived(self, t: Tensor, trained: list[Tensor]) -> Known:
        of = [self.known[id(q)] for q in trained]
        leaves = tuple({id(p): p for k in of for p in k.leaves}.values())
        base = of[0].base
        view = len(of) == 1 and t._is_view() and t.layout == torch.strided
        same = view and (
            t.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        )
        return Known(t, base if same else t, leaves)

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = rowwise.name_of(func) if self.exact else None
        if name is None or (not kwargs and rowwise.is_plain(name)):
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
        num_units (int): how many units there are.
    """

    def __init__(self, recorder: Recorder, num_units: int) -> None:
        self.recorder, self.num_units = recorder, num_units
        self.params = list(recorder.params.values())
        self.names = {id(p): n for n, p in recorder.params.items()}
        # By the base, the clusters of uses of the same part of it.
        self._parts: dict[int, dict[Any, Cluster]] = {}
        self._bases: dict[int, Tensor] = {}
        # By owners and the number of rows, the rows of somebody and theirs.
        self._owned: dict[tuple[int, int], Any] = {}

    def is_known(self, t: Tensor) -> bool:
        """Return whether a tensor is made of parameters and constants."""
        return id(t) in self.recorder.known

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

    def linear(
        self,
        w: Tensor,
        u: Tensor,
        grads: Tensor,
        inputs: Tensor,
        transposed: bool = False,
        at: int | None = None,
    ) -> None:
        """Record a linear map: its weight, inputs and output gradients."""
        part = w.detach() if at is None else w.detach()[at]
        part = part.t() if transposed else part
        self._add(LINEAR, w, part, u, grads, inputs)

    def rows(self, w: Tensor, u: Tensor, grads: Tensor) -> None:
        """Add rows of copies of a parameter, ``[num_rows, w.numel()]``."""
        self._add(ROWS, w, w.detach(), u, grads)

    def table(self, w: Tensor, u: Tensor, index: Tensor, rows: Tensor) -> None:
        """Add rows of a table that were looked up."""
        self._add(TABLE, w, w.detach(), u, rows, index)

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

    def _add(
        self,
        kind: str,
        w: Tensor,
        part: Tensor,
        u: Tensor,
        grads: Tensor,
        inputs: Tensor | None = None,
    ) -> None:
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
        cluster = self._cluster(kind, w, part)
        for to, values in ((cluster.grads, grads), (cluster.inputs, inputs)):
            if values is not None:
                to.append(values if keep is None else values[keep])
        cluster.owners.append(owner)

    def probed(self, base: Base, z: Any, code: Tensor) -> tuple[float, float]:
        """Return the sum of codes times products with z, and its size."""
        total, size = 0.0, 0.0
        for cluster in base.clusters:
            for value, owner in _products(cluster, z, base.base):
                by = code if owner is None else code[owner]
                each = (value.double() * by).nan_to_num(0.0, 0.0, 0.0)
                total += float(each.sum())
                size += float(each.abs().sum())
        return total, size


def _products(
    cluster: Cluster, z: Any, base: Tensor
) -> Iterator[tuple[Tensor, Tensor | None]]:
    # Products of gradients with numbers like the base, or with the outer
    # product of two vectors, and the unit of each.
    weight, kind = cluster.weight, cluster.kind
    if kind == LINEAR and isinstance(z, tuple):
        for part, pair in ((weight, z), (weight.t(), z[::-1])):
            if (part.shape, part.stride()) == (base.shape, base.stride()):
                (grad,), (inner,) = cluster.grads, cluster.inputs
                value = (grad @ pair[0]) * (inner @ pair[1])
                yield value, cluster.owners[0]
                return
    dense = torch.outer(*z) if isinstance(z, tuple) else z
    room = torch.empty_strided(
        base.shape, base.stride(), dtype=dense.dtype, device=dense.device
    )
    part = same_part(room.copy_(dense), base, weight)
    if kind == WHOLE:
        yield cluster.grads[0] @ part.reshape(-1), None
        return
    for i, (grad, owner) in enumerate(
        zip(cluster.grads, cluster.owners, strict=True)
    ):
        if kind == LINEAR:
            yield ((grad @ part) * cluster.inputs[i]).sum(1), owner
        elif kind == ROWS:
            yield grad @ part.reshape(-1), owner
        else:
            rows = part.reshape(len(part), -1)[cluster.inputs[i]]
            yield (grad * rows).sum(1), owner


def constants_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield frozen parameters, buffers and tensors that layers keep."""
    for layer in module.modules():
        for held in (layer._parameters, layer._buffers, vars(layer)):
            for value in held.values():
                if isinstance(value, Tensor) and not value.requires_grad:
                    yield value


@contextmanager
def followed(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Note the names of modules that run, and the edges of messages."""
    handles: list[Any] = []

    def note(layer: Any, args: Any) -> None:
        e = args[0]
        strided = isinstance(e, Tensor) and e.layout == torch.strided
        if strided and e.dim() == 2 and e.size(0) == 2 and e.numel():
            recorder.edges.append(e)

    def leave(*_: Any) -> None:
        recorder.stack.pop()

    try:
        for name, layer in module.named_modules():
            shown = name or type(layer).__name__

            def enter(layer: Any, args: Any, shown: str = shown) -> None:
                recorder.stack.append(shown)

            handles.append(layer.register_forward_pre_hook(enter))
            handles.append(
                layer.register_forward_hook(leave, always_call=True)
            )
            if isinstance(layer, MessagePassing):
                handles += [
                    layer.register_propagate_forward_pre_hook(note),
                    layer.register_edge_update_forward_pre_hook(note),
                ]
        yield
    finally:
        for handle in handles:
            handle.remove()
