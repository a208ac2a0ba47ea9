# Longer than 700 lines because one table says what each function does to rows,
# also where it writes in place.
"""Track the subgraph of each row of a tensor through a forward pass."""

import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def names(text: str) -> frozenset[str]:
    """Split a text into a set of words."""
    return frozenset(text.split())


_POINTWISE = names(
    """
    abs add addcdiv addcmul alpha_dropout celu ceil clamp clamp_max
    clamp_min clip clone contiguous copysign cos cosh detach div divide
    dropout elu eq erf erfc exp expm1 float floor fmod ge gelu gt half
    hardsigmoid hardswish hardtanh isfinite isinf isnan isneginf isposinf le
    leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or
    logical_xor logit logsigmoid lt masked_fill maximum minimum mish mul
    multiply nan_to_num ne neg negative pow prelu reciprocal relu relu6 round
    rrelu rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus softshrink
    softsign sqrt square sub subtract tan tanh tanhshrink threshold to
    true_divide trunc type_as where xlogy double type masked_fill_ copy_ bool
    long int bfloat16 hardshrink floor_divide remainder dropout_ relu_
    __radd__ __rsub__ __rmul__ __rdiv__ __rtruediv__ __rpow__ __pow__ __eq__
    __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __invert__
    requires_grad_ feature_alpha_dropout
    """
)
_REDUCTIONS = names(
    """
    all amax amin any argmax argmin log_softmax logsumexp max mean median
    min norm normalize prod softmax std sum var vector_norm cumsum softmin
    nansum argsort sort topk linalg_norm linalg_vector_norm count_nonzero
    gumbel_softmax glu layer_norm rms_norm
    """
)
# Write the same number everywhere.
_FILLS = ('fill_', 'zero_')
_VIEWS = frozenset(
    ('view', 'reshape', 'flatten', 'unflatten', 'view_as', 'reshape_as')
)
_SCATTERS = names(
    """
    scatter scatter_add scatter_reduce index_add index_reduce index_copy
    """
)
_SPLITS = frozenset(('chunk', 'split', 'tensor_split', 'unbind'))
_LISTS = (list, tuple)


class Rows:
    """Rows of one dimension, whose subgraphs may become known later."""

    def __init__(self, size: int, owner: Tensor | None = None) -> None:
        self.size = size
        self._owner = owner
        self._same: Rows | None = None
        #: Rows that make up these, one after the other, if they do.
        self.parts: list[Rows] = []

    def find(self) -> 'Rows':
        """Return the representative of all rows merged with these."""
        rows = self
        while rows._same is not None:
            rows = rows._same
        return rows

    @property
    def owner(self) -> Tensor | None:
        """The subgraph of each row, if it is known."""
        return self.find()._owner


# Errors that arguments of an unknown form may lead to.
FAILURES = (
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Conflict(Exception):
    """Raised if rows of different subgraphs meet."""


class Notes:
    """What is known of tensors; keeps none of them alive.

    As torch's WeakTensorKeyDictionary, which takes ten times as long.
    """

    def __init__(self) -> None:
        self._at: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def get(self, tensor: Tensor) -> Any:
        """Return what is known of a tensor, or None."""
        found = self._at.get(id(tensor))
        # Another tensor may have got the id of one that is gone.
        if found is None or found[0]() is not tensor:
            return None
        return found[1]

    def set(self, tensor: Tensor, value: Any) -> None:
        """Note what is known of a tensor."""
        self._at[id(tensor)] = weakref.ref(tensor), value

    def drop(self, tensor: Tensor) -> None:
        """Forget what is known of a tensor."""
        self._at.pop(id(tensor), None)

    def tensors(self) -> list[Tensor]:
        """List the tensors of which something is known."""
        return [t for ref, _ in self._at.values() if (t := ref()) is not None]


class RowTracker:
    """Tracker of which rows of a tensor come from which nodes.

    Values of features are not read: the subgraph of a row follows from the
    structure of the graph and the functions that the model calls. The rows of
    a function's result are unknown if the function is.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[Rows]] = {}
        self._rows = Notes()
        self._written = Notes()
        # Numbers of heads, and of rows of each, that were put after another.
        self._heads: set[tuple[int, int]] = set()

    def known(self, owner: Tensor) -> Rows:
        """Return the rows of given subgraphs: one object for equal owners."""
        seen = self._known.setdefault(owner.numel(), [])
        for rows in seen:
            if rows._owner is owner:
                return rows
        for rows in seen:
            assert rows._owner is not None
            if torch.equal(rows._owner, owner):
                return rows
        seen.append(Rows(owner.numel(), owner))
        return seen[-1]

    def get(self, tensor: Tensor) -> tuple[Rows, int] | None:
        """Return a tensor's rows and their dimension, if they are tracked."""
        noted = self._rows._at.get(id(tensor))  # `Notes.get`, in line
        if noted is None or noted[0]() is not tensor:
            return None
        found: tuple[Rows, int] = noted[1]
        return found if found[0]._same is None else (found[0].find(), found[1])

    def set(self, tensor: Tensor, rows: Rows, axis: int) -> None:
        """Record the rows of a tensor, if their number fits."""
        if 0 <= axis < tensor.dim() and tensor.size(axis) == rows.size:
            self._rows.set(tensor, (rows, axis))

    def unify(self, rows: Iterable[Rows]) -> Rows | None:
        """Merge the owners of rows that an operation combines."""
        found: Rows | None = None
        for item in rows:
            item = item.find()
            if found is None or found is item:
                found = item
            elif found.size != item.size:
                return None
            elif found._owner is None:
                self._join(found, item)
                found = item
            elif item._owner is None:
                self._join(item, found)
            else:
                raise Conflict('rows of different subgraphs meet')
        return found

    def _join(self, rows: Rows, others: Rows) -> None:
        # Merge rows without owners, and their parts, into the others.
        rows._same, parts = others, [*others.parts, *rows.parts]
        if others._owner is None:
            others.parts = parts
            return
        at = 0
        for part in parts:
            at = at if at < others.size else 0
            owner = others._owner[at : at + part.size]
            self.unify([part, self.known(owner)])
            at += part.size

    def follow(
        self,
        name: str,
        args: Args,
        kwargs: Kwargs,
        out: Any,
        tensors: list[Tensor] | None = None,
        versions: Sequence[int] = (),
    ) -> None:
        """Record the rows of a function's result.

        Args:
            name (str): the name of the function.
            args (tuple): its positional arguments.
            kwargs (dict): its named arguments.
            out (Any): its result.
            tensors (list[Tensor], optional): the tensors among the arguments.
                (default: :obj:`None`)
            versions (Sequence[int]): the versions of :obj:`tensors` before
                the call, which tell what it wrote into. (default: :obj:`()`)

        Raises:
            Conflict: if rows of different subgraphs meet.
        """
        if tensors is None:
            tensors = tensors_of(args, kwargs)
        written = [
            t
            for t, version in zip(tensors, versions, strict=False)
            if version_of(t) != version
        ]
        if not written and _writes(name):
            written = tensors[:1]
        try:
            if not written:
                self._follow(name, args, kwargs, out, tensors)
            elif not self._kept(name, args, kwargs, tensors, written):
                self._forget(written)
        except FAILURES:
            # After a call of an unknown form, the result's rows are unknown.
            self._forget(written)
        except Conflict:
            self._forget(written)
            raise

    def _follow(
        self,
        name: str,
        args: Args,
        kwargs: Kwargs,
        out: Any,
        tensors: list[Tensor],
    ) -> None:
        tracked = [(t, *found) for t in tensors if (found := self.get(t))]
        if not tracked:
            return
        results = [out]
        if not isinstance(out, Tensor):
            results = [t for t in _flat(out) if isinstance(t, Tensor)]
        if not results:
            return
        base, is_pointwise = _base(name)
        if is_pointwise:
            self._align(tracked, results)
        elif base in _SCATTERS:
            self._scatter(args, kwargs, results[0], self.get(args[0]))
        elif name == 'index_select':
            self._index_select(args, kwargs, results[0])
        elif name in ('cat', 'concat', 'concatenate'):
            self._cat(args, kwargs, tracked, results[0])
        elif name == 'stack':
            self._stack(args, kwargs, tracked, results[0])
        elif name in ('matmul', 'mm', 'bmm', 'linear', '__matmul__', 'spmm'):
            self._matmul(name, args, tracked, results[0])
        elif len(tracked) == 1 or tracked[0][0] is _first(args):
            self._single(name, base, args, kwargs, tracked[0], results)

    def _kept(
        self,
        name: str,
        args: Args,
        kwargs: Kwargs,
        tensors: list[Tensor],
        written: list[Tensor],
    ) -> bool:
        # Follow a function that writes into its first argument; return
        # whether rows of all that share this memory are still known.
        target, (base, is_pointwise) = _first(args), _base(name)
        memory = {_memory(tensor) for tensor in written}
        if 'out' in kwargs or memory != {_memory(target)}:
            return False
        if name == 'copy_':
            return self._overwrite(*args[:2])
        if name == '__setitem__':
            return self._write(*args)
        if base in _SCATTERS:
            into = self.get(target)
            self._forget(written)
            self._scatter(args, kwargs, target, into)
            return True
        if name in _FILLS:
            # A number is of nobody, and a tensor of somebody.
            self._rows.drop(target)
            return len(tensors) == 1
        tracked = [(t, *found) for t in tensors if (found := self.get(t))]
        if not is_pointwise:
            return False
        if tracked and self.get(target) is None:
            # It may be a part of known rows, and get others.
            parts = self._rows.tensors()
            if any(_memory(tensor) in memory for tensor in parts):
                return False
        return self._align(tracked, [target])

    def _overwrite(self, target: Tensor, value: Tensor) -> bool:
        # Return whether rows are known of all that share its memory.
        old, new = self.get(target), self.get(value)
        if new is None:
            return False
        rows, axis = new
        axis += target.dim() - value.dim()
        if old is None or old[0] is not rows or old[1] != axis:
            self._forget([target])
            self.set(target, rows, axis)
        return True

    def _forget(self, written: list[Tensor]) -> None:
        # What is in their memory may be of other subgraphs now.
        memory = {_memory(tensor) for tensor in written}
        for tensor in self._rows.tensors():
            if _memory(tensor) in memory:
                self._rows.drop(tensor)
        for tensor in self._written.tensors():
            if _memory(tensor) in memory:
                self._written.drop(tensor)

    def _align(
        self, tracked: list[tuple[Tensor, Rows, int]], results: list[Tensor]
    ) -> bool:
        # Broadcasting aligns dimensions at the end. Return whether none of
        # the rows contradict each other.
        axes = {axis - t.dim() for t, _, axis in tracked}
        if len(axes) != 1:
            return not axes
        axis = axes.pop()
        rows = self.unify(r for _, r, _ in tracked)
        if rows is None:
            return False
        for out in results:
            if -axis <= out.dim():
                self.set(out, rows, axis + out.dim())
        return True

    def _single(
        self,
        name: str,
        base: str,
        args: Args,
        kwargs: Kwargs,
        tracked: tuple[Tensor, Rows, int],
        results: list[Tensor],
    ) -> None:
        tensor, rows, axis = tracked
        dim = tensor.dim()
        if base in _REDUCTIONS:
            dims = _dims(base, tensor, args, kwargs)
            if dims is None or axis in dims:
                return
            for out in results:
                before = sum(d < axis for d in dims)
                self.set(
                    out, rows, axis if out.dim() == dim else axis - before
                )
        elif base in _VIEWS:
            self._view(rows, axis, tensor.shape, results[0])
        elif base in ('expand', 'expand_as', 'broadcast_to'):
            self.set(results[0], rows, axis - dim + results[0].dim())
        elif base in ('repeat', 'tile'):
            # A shape that is the same says that rows are not repeated.
            self.set(results[0], rows, axis - dim + results[0].dim())
        elif base == 'unsqueeze':
            at = _arg(args, kwargs, 1, 'dim') % (dim + 1)
            self.set(results[0], rows, axis + (at <= axis))
        elif base == 'squeeze':
            at = _arg(args, kwargs, 1, 'dim', None)
            at = list(range(dim)) if at is None else at
            gone = [d for d in _normal(at, dim) if tensor.size(d) == 1]
            if axis not in gone:
                self.set(results[0], rows, axis - sum(d < axis for d in gone))
        elif base in ('transpose', 'swapaxes', 't', 'T', 'mT'):
            if base in ('transpose', 'swapaxes'):
                a = _arg(args, kwargs, 1, 'dim0') % dim
                b = _arg(args, kwargs, 2, 'dim1') % dim
            elif dim < 2:
                a = b = 0
            elif base == 'T' and dim > 2:
                return
            else:
                a, b = dim - 2, dim - 1
            self.set(results[0], rows, {a: b, b: a}.get(axis, axis))
        elif base == 'permute':
            order = (
                args[1:] if len(args) > 2 else _arg(args, kwargs, 1, 'dims')
            )
            self.set(results[0], rows, [d % dim for d in order].index(axis))
        elif base in _SPLITS:
            at = _arg(args, kwargs, 2 if base != 'unbind' else 1, 'dim', 0)
            at = at % dim
            if at != axis:
                shift = base == 'unbind' and at < axis
                for out in results:
                    self.set(out, rows, axis - shift)
        elif base == 'select':
            at = _arg(args, kwargs, 1, 'dim') % dim
            if at != axis:
                self.set(results[0], rows, axis - (at < axis))
        elif base == '__getitem__':
            self._getitem(tensor, rows, axis, args[1], results[0])

    def _view(
        self, rows: Rows, axis: int, shape: torch.Size, out: Tensor
    ) -> None:
        # A dimension with this length and as many entries before it is the
        # same.
        before = prod(shape[:axis])
        for at in reversed(range(out.dim())):
            if (
                out.size(at) == rows.size
                and prod(out.shape[:at]) == before
                and before > 0
            ):
                self.set(out, rows, at)
                return
        owner = rows.owner
        if owner is None or out.dim() == 0 or out.numel() == 0:
            return
        size = out.size(0)
        if axis != 0:
            # All rows of a head after all of another.
            if size == before * rows.size:
                self._heads.add((before, rows.size))
                self.set(out, self.known(owner.repeat(before)), 0)
            return
        if out.dim() > 1 and (size, out.size(1)) in self._heads:
            heads = owner.view(size, -1)
            if bool((heads == heads[:1]).all()):
                self.set(out, self.known(heads[0]), 1)
                return
        # Each row is cut into several, or several are joined.
        if size % rows.size == 0:
            owner = owner.repeat_interleave(size // rows.size)
        elif rows.size % size == 0:
            parts = owner.view(size, -1)
            owner = parts[:, 0]
            if not bool((parts == parts[:, :1]).all()):
                return
        else:
            return
        self.set(out, self.known(owner), 0)

    def _getitem(
        self, tensor: Tensor, rows: Rows, axis: int, index: Any, out: Tensor
    ) -> None:
        items = list(index) if isinstance(index, tuple) else [index]
        advanced = [i for i in items if isinstance(i, Tensor | list)]
        if len(advanced) > 1:
            return
        used = sum(
            i.dim() if isinstance(i, Tensor) and i.dtype == torch.bool else 1
            for i in items
            if i is not None and i is not Ellipsis
        )
        if not any(i is Ellipsis for i in items):
            items.append(Ellipsis)
        at, new = 0, 0
        for item in items:
            if item is Ellipsis:
                rest = tensor.dim() - used
                if at <= axis < at + rest:
                    self.set(out, rows, new + axis - at)
                    return
                at, new = at + rest, new + rest
            elif item is None:
                new += 1
            elif isinstance(item, bool):
                return
            elif isinstance(item, int):
                if at == axis:
                    return
                at += 1
            elif isinstance(item, slice):
                if at == axis:
                    owner = rows.owner
                    if item == slice(None):
                        self.set(out, rows, new)
                    elif owner is not None:
                        self.set(out, self.known(owner[item]), new)
                    return
                at, new = at + 1, new + 1
            else:
                item = torch.as_tensor(item)
                if item.dim() != 1:
                    return
                if at == axis:
                    owner = rows.owner
                    if owner is not None:
                        self.set(out, self.known(owner[item]), new)
                    return
                at, new = at + 1, new + 1

    def _write(self, target: Tensor, index: Any, value: Any) -> bool:
        # Return whether the target's rows are as they were, or known.
        whole = isinstance(index, slice) and index == slice(None)
        if not isinstance(value, Tensor):
            if whole:
                self._rows.drop(target)
            return True
        if whole:
            return self._overwrite(target, value)
        found, old = self.get(value), self.get(target)
        if old is not None:
            part = target.detach()[index]
            self._getitem(target, *old, index, part)
            place = self.get(part)
            if found is None or place is None:
                return False
            (rows, axis), (other, at) = found, place
            return (
                axis - value.dim() == at - part.dim()
                and self.unify([rows, other]) is not None
            )
        # The owners of a tensor are known once all its rows were written.
        owner = self._written.get(target)
        self._forget([target])
        some = isinstance(index, Tensor) and index.dim() == 1
        if found is None or not (some or isinstance(index, slice)):
            return True
        rows, axis = found
        if axis != 0 or rows.owner is None or value.dim() != target.dim():
            return True
        if owner is None:
            owner = rows.owner.new_full((target.size(0),), -1)
        owner[index] = rows.owner
        if some and not torch.equal(owner[index], rows.owner):
            return True
        self._written.set(target, owner)
        if bool((owner >= 0).all()):
            self.set(target, self.known(owner.clone()), 0)
        return True

    def _index_select(self, args: Args, kwargs: Kwargs, out: Tensor) -> None:
        source = _arg(args, kwargs, 0, 'input')
        index = _arg(args, kwargs, 2, 'index')
        found = self.get(source)
        if found is None:
            return
        rows, axis = found
        if _arg(args, kwargs, 1, 'dim') % source.dim() != axis:
            self.set(out, rows, axis)
        elif rows.owner is not None:
            self.set(out, self.known(rows.owner[index]), axis)

    def _scatter(
        self,
        args: Args,
        kwargs: Kwargs,
        out: Tensor,
        into: tuple[Rows, int] | None,
    ) -> None:
        index = _arg(args, kwargs, 2, 'index')
        src = _arg(args, kwargs, 3, 'src', None)
        if src is None:
            src = _arg(args, kwargs, 3, 'source', None)
        found = self.get(src) if isinstance(src, Tensor) else None
        dim = _arg(args, kwargs, 1, 'dim') % out.dim()
        if found is None:
            return
        rows, axis = found
        if axis != dim:
            if index.dim() == 1 or out.size(axis) == rows.size:
                self.set(out, rows, axis)
            return
        if index.dim() > 1:
            stride = [s for d, s in enumerate(index.stride()) if d != dim]
            sizes = [s for d, s in enumerate(index.shape) if d != dim]
            if any(s and n > 1 for s, n in zip(stride, sizes, strict=True)):
                return
            for d in reversed(range(index.dim())):
                if d != dim:
                    if index.size(d) == 0:
                        return
                    index = index.select(d, 0)
        owner = rows.owner
        if owner is None or index.numel() != owner.numel():
            return
        size = out.size(dim)
        target = owner.new_full((size,), -1)
        target[index] = owner
        if not torch.equal(target[index], owner):
            return
        if into is not None:
            # Its other rows stay as they are.
            rows, axis = into
            if axis == dim and rows.owner is not None:
                same = torch.equal(rows.owner[index], owner)
                self.set(out, rows if same else Rows(size), dim)
            return
        if bool((target >= 0).all()):
            self.set(out, self.known(target), dim)
            return
        # A row that receives nothing is that of the one known tensor in
        # which the others are whose they are.
        known = [
            other
            for other in self._known.get(size, [])
            if torch.equal(other._owner[index], owner)  # type: ignore[index]
        ]
        self.set(out, known[0] if len(known) == 1 else Rows(size), dim)

    def _cat(
        self,
        args: Args,
        kwargs: Kwargs,
        tracked: list[tuple[Tensor, Rows, int]],
        out: Tensor,
    ) -> None:
        parts = _arg(args, kwargs, 0, 'tensors')
        axes = {axis for _, _, axis in tracked}
        if len(axes) != 1:
            return
        axis = axes.pop()
        if _arg(args, kwargs, 1, 'dim', 0) % out.dim() != axis:
            rows = self.unify(r for _, r, _ in tracked)
            if rows is not None:
                self.set(out, rows, axis)
            return
        if len(tracked) < len(parts):
            return
        rows = Rows(out.size(axis))
        rows.parts = [each for _, each, _ in tracked]
        owners = [each.owner for each in rows.parts]
        if all(owner is not None for owner in owners):
            rows = self.known(torch.cat(owners))  # type: ignore[arg-type]
        self.set(out, rows, axis)

    def _stack(
        self,
        args: Args,
        kwargs: Kwargs,
        tracked: list[tuple[Tensor, Rows, int]],
        out: Tensor,
    ) -> None:
        at = _arg(args, kwargs, 1, 'dim', 0) % out.dim()
        axes = {axis for _, _, axis in tracked}
        if len(axes) == 1:
            rows = self.unify(r for _, r, _ in tracked)
            axis = axes.pop()
            if rows is not None:
                self.set(out, rows, axis + (at <= axis))

    def _matmul(
        self,
        name: str,
        args: Args,
        tracked: list[tuple[Tensor, Rows, int]],
        out: Tensor,
    ) -> None:
        if len(tracked) != 1:
            if all(axis < t.dim() - 2 for t, _, axis in tracked):
                self._align(tracked, [out])
            return
        tensor, rows, axis = tracked[0]
        if tensor is args[0] and axis != tensor.dim() - 1:
            self.set(out, rows, axis - tensor.dim() + out.dim())
        elif args[0].layout != torch.strided and axis == 0:
            # Sums over neighbours, if they belong to the same subgraph.
            to, source = args[0].detach().to_sparse_coo()._indices()
            owner = rows.owner
            if owner is not None and torch.equal(owner[to], owner[source]):
                self.set(out, rows, 0)


def tensors_of(args: Iterable[Any], kwargs: Kwargs) -> list[Tensor]:
    """List the tensors among the arguments of a torch function."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, _LISTS):
            found += [t for t in value if isinstance(t, Tensor)]
    return found


@cache
def _base(name: str) -> tuple[str, bool]:
    # Without the mark of in-place variants, and whether it is pointwise.
    base = name[:-1] if name.endswith('_') and name[-2] != '_' else name
    return base, base in _POINTWISE or name in _POINTWISE


@cache
def _writes(name: str) -> bool:
    # By its name alone: not all in-place functions change versions.
    if name == '__setitem__':
        return True
    return name[-1:] == '_' != name[-2:-1] and name != 'requires_grad_'


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written into; 0 if nobody counts."""
    try:
        return tensor._version
    except RuntimeError:
        # Of inference mode, which is written into nowhere else.
        return 0


def _memory(tensor: Tensor) -> Any:
    # What is empty has no memory to share.
    try:
        if tensor.layout != torch.strided or tensor.numel() == 0:
            return 'none', id(tensor)
        return tensor.untyped_storage().data_ptr()
    except FAILURES:
        # Of vmap, or not initialized: any of them may share it.
        return 'unknown'


def _flat(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, _LISTS) else (out,)


def _first(args: Args) -> Any:
    return args[0] if args else None


def _arg(
    args: Args, kwargs: Kwargs, place: int, name: str, default: Any = ...
) -> Any:
    if len(args) > place:
        return args[place]
    if default is ...:
        return kwargs[name]
    return kwargs.get(name, default)


def _normal(dims: Any, dim: int) -> list[int]:
    dims = [dims] if isinstance(dims, int) else list(dims)
    return [d % dim for d in dims]


def _dims(
    name: str, tensor: Tensor, args: Args, kwargs: Kwargs
) -> list[int] | None:
    # The dimensions that a function works along; None for all.
    dim = tensor.dim()
    if name in ('layer_norm', 'rms_norm'):
        shape = _arg(args, kwargs, 1, 'normalized_shape')
        return list(range(dim - len(shape), dim))
    place = {
        'norm': 2,
        'vector_norm': 2,
        'linalg_vector_norm': 2,
        'linalg_norm': 2,
        'normalize': 2,
        'topk': 2,
        'gumbel_softmax': 4,
    }.get(name, 1)
    default = {
        'normalize': 1,
        'topk': -1,
        'sort': -1,
        'argsort': -1,
        'glu': -1,
        'gumbel_softmax': -1,
    }.get(name)
    dims = _arg(args, kwargs, place, 'dim', default)
    if isinstance(dims, bool) or not isinstance(dims, int | list | tuple):
        return None
    return _normal(dims, dim)
