# Longer than 700 lines because all that a followed tensor does is one idea.
r"""Follow the rows of a batch from the model to ``loss.backward()``.

Private training needs the gradient that a loss sends back to the rows of a
subgraph to be a function of this subgraph's rows (outputs, labels, features)
and of constants alone:

.. math::
    \frac{\partial \ell}{\partial z_r} = \phi_r \big(
    z_s, y_s, x_s : s \text{ in the subgraph of } r \big) .

What the loss is like is up to the user, so nothing is concluded from its
name, its value at some points or its derivatives, all of which miss
statistics that are detached, a maximum over rows, or a quantile. Instead the
outputs and the batch are handed out as tensors that carry, for each number,
whose data it depends on (:mod:`pyg_trust.privacy.owners`), through every
operation of the user's own loss and of its backward pass, detached or not.
What arrives at the model is then known to depend, row by row, on the row's own
subgraph, or is refused: a sum over rows is fine, as its gradient is a
constant; the square root of one is not, since its gradient has the sum in it.

The loss may also read what the model, a hook or a global kept of a call. So
nothing of the batch is there to be kept: while the loss is computed, the model
has seen rows that were made up (:mod:`pyg_trust.privacy.rehearsal`), and the
operations of the loss are written down. The model meets the batch when
``loss.backward()`` asks for the gradient; then they are done once more, on its
outputs, and followed.

A value that would leave for Python (``item``, ``bool``, ``numpy``) while the
loss is being computed can't be followed further, and is refused until
``loss.backward()`` is done. So is an operation of somebody's own
(``torch.library.custom_op``), whose code sees plain tensors.

**What is not seen.** Memory that was freed may hold private numbers, and
``torch.empty`` hands it out again: no operation on a followed tensor tells of
it, and what a call took is not known before it is read. Memory read by its
address, other processes, and frames of this module that are looked into are
not seen either. The report says so among its assumptions.
"""

import copy
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

from pyg_trust.privacy.draws import random_state
from pyg_trust.privacy.owners import (
    MIXED,
    PUBLIC,
    Owner,
    base_name,
    compact,
    is_mixed,
    join,
    owners_after,
    reduce,
    tensors_of_tree,
)
from pyg_trust.privacy.rows import Args, Kwargs

# Structure, which is public.
_STRUCTURE = ('batch', 'ptr', 'e_id', 'root', 'batch_size', 'num_nodes')
NAMES = ('n_id', 'input_id')
_HINT = (
    '. Each term has to be made of the rows of one subgraph and of '
    'constants: take statistics of a batch out of the loss, or hand in '
    "'trust_loss=True', after which the report says that the loss was not "
    'checked'
)


class Slot:
    """Placeholder of a followed tensor, which it does not keep alive.

    If it kept the tensor alive, torch would not reuse its memory, as it does
    without tracking.
    """

    def __init__(self, tensor: 'Followed') -> None:
        self.shape = tensor.shape
        self.get = weakref.ref(tensor)


class Step(NamedTuple):
    """Recorded operation of a loss, with slots in the place of tensors."""

    func: Any
    args: Args
    kwargs: Kwargs
    out: Any
    node: str | None
    states: list[Tensor] | None


def replaced(value: Any, find: Callable[[Any], Any]) -> Any:
    """Return nested arguments, with a function applied to every leaf."""
    # Torch's own trees take ten times as long.
    if type(value) is list:
        return [replaced(item, find) for item in value]
    if type(value) is dict:
        return {key: replaced(item, find) for key, item in value.items()}
    return find(value)


def pairs(step: Step, made: Any) -> Iterator[tuple[Slot, Tensor]]:
    """Pair the tensors that an operation returned with their slots."""
    shown = step.out if isinstance(step.out, list) else [step.out]
    found = made if isinstance(made, tuple | list) else [made]
    for slot, value in zip(shown, found, strict=True):
        if isinstance(slot, Slot):
            yield slot, value


def plainly(step: Step, find: Callable[[Any], Any]) -> Any:
    """Repeat an operation on plain tensors, without tracking.

    Args:
        step (Step): the operation.
        find (callable): maps a slot to its tensor, and all else to itself.
    """
    args, kwargs = replaced(step.args, find), replaced(step.kwargs, find)
    try:
        made = step.func(*args, **kwargs)
    except Exception:
        # The message of the error may tell of the values.
        _refuse(f"'{base_name(step.func)}' has raised an error on them")
    if base_name(step.func) in _EMPTY:
        made.zero_()
    return made


class Watch:
    """What is known of one batch's loss while it is followed.

    Args:
        rehearses (bool): whether operations are recorded, to be followed when
            they are repeated. (default: :obj:`False`)
    """

    def __init__(self, rehearses: bool = False) -> None:
        #: The operations so far, if they are written down.
        self.steps: list[Step] | None = [] if rehearses else None
        #: The node of the operation that is done again, if one is.
        self.again: tuple[str | None] | None = None
        #: Whether a mean was divided by the weights of classes.
        self.weighted = False
        #: Values that the model kept of its call, by address or number.
        self.kept: dict[Any, str] = {}
        #: Whether the gradient is still to come.
        self.live = True
        #: Whether labels were left out of a mean.
        self.ignored = False
        #: An operation that has raised an error, if one has.
        self.failed: str | None = None
        #: Operations on rows, forward and backward, by name.
        self.names: set[str] = set()


class _Memory:
    # Numbers that several tensors are views of.
    def __init__(self) -> None:
        self.views = 0
        self.spoiled: _Why | None = None
        # Whether values other than names were written to it.
        self.written = False
        # Whether these are labels of the batch, as they came.
        self.is_label = False
        # The name of an attribute that only the model may read.
        self.hidden: str | None = None
        # The name under which the model kept it.
        self.kept: str | None = None


class _Why:
    """Operation in which rows of several subgraphs met."""

    def __init__(self, met: str, back: str | None = None) -> None:
        self.met = met
        self.back = back


class Followed(Tensor):
    """A tensor that knows whose data each of its numbers depends on.

    It computes as the tensor that it stands for. :func:`follow` makes them.
    """

    _value: Tensor
    _owner: Owner
    _watch: Watch
    _memory: _Memory
    _why: _Why | None
    _named: bool
    _slot: Slot

    @staticmethod
    def __new__(
        cls,
        value: Tensor,
        owner: Owner,
        watch: Watch,
        memory: _Memory | None = None,
        why: _Why | None = None,
        is_name: bool = False,
    ) -> 'Followed':
        """Wrap a tensor, with the owners of its numbers."""
        self = Tensor._make_wrapper_subclass(
            cls,
            value.size(),
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            layout=value.layout,
            device=value.device,
        )
        # C code that asks for the memory gets an error, not a null pointer.
        torch._C._set_throw_on_mutable_data_ptr(self)
        self._value = value
        self._owner = owner
        self._watch = watch
        self._memory = _Memory() if memory is None else memory
        self._memory.views += 1
        self._why = why
        self._named = is_name
        self._slot = Slot(self)
        return self

    @property
    def _is_name(self) -> bool:
        # Numbers of nodes, that are public: they may be read, but what is
        # looked up by them belongs to the row.
        return self._named and not self._memory.written

    def __repr__(self) -> str:  # type: ignore[override]
        if self._watch.live and not self._is_name:
            return f'tensor(..., size={list(self.shape)}, {_LATER})'
        return repr(self._value)

    def __format__(self, spec: str) -> str:
        if self._watch.live and not self._is_name:
            return repr(self)
        return format(self._value, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _escape('pickling', self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _escape('deepcopy', self).detach().clone()

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Call a torch function; check results that leave torch."""
        kwargs = kwargs or {}
        if func in _ESCAPES:
            rest = [plain(a) for a in args[1:]]
            return func(_escape(func.__name__, args[0]), *rest, **kwargs)
        if func is _GET_DATA:
            func = Tensor.detach
        elif func is _SET_DATA:
            _refuse('its data are replaced')
        elif func in _NUMBERS:
            # Torch warns of the number of a tensor that has a gradient.
            args = (args[0].detach(),)
        elif func in (F.cross_entropy, F.nll_loss):
            found = _without_ignored(func, args, kwargs)
            if found is not None:
                return found
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run an operation, forward or backward, and follow its owners."""
        kwargs = kwargs or {}
        given = [
            t
            for t in tensors_of_tree([*args, *kwargs.values()])
            if isinstance(t, Followed)
        ]
        watch = given[0]._watch
        for t in given:
            watch = t._watch if t._watch.live else watch
        values = [plain(a) for a in args]
        named = {k: plain(v) for k, v in kwargs.items()}
        if watch.live:
            _check_stays(func, args, kwargs, given)
        written = _written(func, args, kwargs)
        if watch.live and not all(isinstance(t, Followed) for t in written):
            _refuse(
                f"'{base_name(func)}' writes them into a tensor that has no "
                'rows of the batch (make that with zeros_like or ones_like '
                'of one that has, or write after loss.backward())'
            )
        watch.names.add(base_name(func))
        rehearses = watch.live and watch.steps is not None
        states = None
        if rehearses:
            _check_kept(args, kwargs, watch)
            if torch.Tag.nondeterministic_seeded in func.tags:
                states = random_state(given[0].device)
        try:
            out = func(*values, **named)
        except Exception:
            # Whether a call fails depends on the numbers.
            if not all(t._is_name for t in given):
                watch.failed = base_name(func)
            raise
        if not watch.live:
            return _wrap_earlier(out, watch, args, kwargs)

        def owner_of(value: Any) -> Owner:
            return _owner(value, watch)

        if base_name(func) in _EMPTY:
            # Memory may hold what was private before it was freed.
            out.zero_()
        if rehearses:
            owners: list[Owner] = [None] * len(tensors_of_tree(out))
        else:
            owners = owners_after(func, args, kwargs, out, owner_of, plain)
        if written and not owners and not rehearses:
            # Functions that change lists of tensors in place return nothing.
            every = tensors_of_tree([*args, *kwargs.values()])
            owners = [join(*(reduce(owner_of(t)) for t in every))]
        why = _reason(func, given, owners, watch)
        if written:
            if not all(t._is_name for t in given):
                for target in written:
                    assert isinstance(target, Followed)
                    target._memory.written = True
            if not rehearses:
                _write(written, owners, why, watch)
        made = _wrap(func, out, owners, watch, given, why, args, kwargs)
        if rehearses:
            assert watch.steps is not None
            args, kwargs = _slots(args, watch), _slots(kwargs, watch)
            back = _slots(made, watch)
            watch.steps.append(Step(func, args, kwargs, back, _node(), states))
        return made


_LATER = 'to be read after loss.backward()'
# Compiled operations, which do nothing but return and write.
_KNOWN = (
    'aten',
    'prim',
    'prims',
    'pyg',
    'pyg_trust',
    'torch_cluster',
    'torch_scatter',
    'torch_sparse',
    'torch_spline_conv',
)
_EMPTY = ('empty_like', 'new_empty', 'new_empty_strided')
# Functions that exchange or resize a tensor's memory, which its wrapper does
# not see.
_MEMORY = ('set', 'resize', 'resize_as')
# How many random numbers they draw depends on what they are given.
_RANDOM = (
    'poisson',
    'binomial',
    'multinomial',
    '_standard_gamma',
    '_sample_dirichlet',
)
# How many rows they make depends on what they are given, without a tag.
_SIZED = (
    '_pack_padded_sequence',
    '_padded_dense_to_jagged_forward',
    '_nested_tensor_from_mask',
)
# Their results depend on shapes alone.
_SHAPES = (
    'is_same_size',
    '_has_same_storage_numel',
    '_scaled_dot_product_flash_attention',
    '_scaled_dot_product_cudnn_attention',
    '_scaled_dot_product_fused_attention_overrideable',
    '_efficient_attention_forward',
)
# Labels stay labels.
_KEPT = (
    'index',
    'index_select',
    '_to_copy',
    'clone',
    'where',
    'masked_fill',
)
_GET_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_ESCAPES: frozenset[Any] = frozenset(
    [
        Tensor.tolist,
        Tensor.numpy,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.untyped_storage,
        Tensor.storage,
        Tensor.data_ptr,
        Tensor.__cuda_array_interface__.__get__,
    ]
)


_NUMBERS: frozenset[Any] = frozenset(
    [Tensor.__float__, Tensor.__int__, Tensor.__complex__]
)


def follow(
    value: Tensor, rows: Tensor, watch: Watch, is_name: bool = False
) -> Followed:
    """Hand out a tensor whose rows are of the given subgraphs.

    Args:
        value (Tensor): ``[num_rows, *]``.
        rows (Tensor): int64, ``[num_rows]``: the subgraph of each row.
        watch (Watch): the batch's.
        is_name (bool): whether the numbers themselves are public.
            (default: :obj:`False`)
    """
    owner = (rows + 1).to(torch.int32).view(-1, *[1] * (value.dim() - 1))
    owner = owner.expand(value.shape)
    return Followed(value.detach(), owner, watch, is_name=is_name)


def follow_batch(batch: Data, owner: Tensor, count: int, watch: Watch) -> Data:
    """Copy a batch, with its private rows as followed tensors.

    Features, labels and names of nodes are followed, and features of edges.
    Masks, edges and ``batch`` are structure, which is public.

    Args:
        batch (Data): the batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        count (int): the number of subgraphs.
        watch (Watch): the batch's.
    """
    out = copy.copy(batch)
    for name, value, rows in private_rows(batch, owner, count):
        out[name] = follow(value, rows, watch, name in NAMES)
        out[name]._memory.is_label = name == 'y'
    return out


def private_rows(
    batch: Data, owner: Tensor, count: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the private attributes of a batch, with the subgraph of each row.

    Indices and masks, by their names, are public unless they are floats.

    Args:
        batch (Data): the batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        count (int): the number of subgraphs.
    """
    edges = batch.get('edge_index')
    units = torch.arange(count, device=owner.device)
    for name, value in batch.to_dict().items():
        if (
            not isinstance(value, Tensor)
            or value.layout != torch.strided
            or value.dim() == 0
            or (
                is_structure(name)
                and name not in NAMES
                and not value.is_floating_point()
            )
        ):
            continue
        if value.size(0) == owner.numel() and batch.is_node_attr(name):
            yield name, value, owner
        elif value.size(0) == count and not name.startswith('edge'):
            yield name, value, units
        elif (
            isinstance(edges, Tensor)
            and edges.layout == torch.strided
            and batch.is_edge_attr(name)
        ):
            yield name, value, owner[edges[0]]


def is_structure(name: str) -> bool:
    """Return whether an attribute of a batch is public by its name."""
    return (
        name in (*_STRUCTURE, *NAMES)
        or name.endswith('mask')
        or 'index' in name
    )


def gradient(grad: Tensor, rows: Tensor, watch: Watch) -> Tensor:
    """Return the gradient by the outputs, if its rows depend on no others.

    Args:
        grad (Tensor): the gradient by the outputs, ``[num_rows, *]``.
        rows (Tensor): int64, ``[num_rows]``: the subgraph of each row.
        watch (Watch): the batch's.

    Raises:
        ValueError: if a row's depends on other subgraphs, or it is not known
            on what it depends.
    """
    if not isinstance(grad, Followed):
        _refuse(
            'a gradient came back that was not computed from the outputs of '
            'the model'
        )
    if watch.failed is not None:
        _refuse(
            f"'{watch.failed}' has raised an error, which may depend on their "
            'values'
        )
    assert isinstance(grad, Followed)
    owner = _owner(grad, watch)
    if owner is not None:
        small = compact(owner)
        own = (rows + 1).view(-1, *[1] * (small.dim() - 1))
        if not bool(((small == own) | (small == PUBLIC)).all()):
            why = grad._memory.spoiled or grad._why
            where = ''
            if why is not None:
                where = f": they meet in '{why.met}'"
                if why.back is not None:
                    where += f" and come back through '{why.back}'"
            if watch.weighted:
                where += (
                    ". A mean with 'weight' divides by the weights of all "
                    "labels: use reduction='sum', and loss_reduction='sum' in "
                    'make_private'
                )
            raise ValueError(
                'the loss needs to be a mean or a sum of one term per '
                'subgraph, but the gradient of one depends on the rows of '
                f'others{where}{_HINT}'
            )
    watch.live = False
    return grad._value


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        'the loss needs to be computed in a way that rows of the batch can be '
        f'followed, but {what}{_HINT}'
    )


def _escape(name: str, value: Any) -> Any:
    if isinstance(value, Followed):
        if value._watch.live and not value._is_name:
            _refuse(
                f"'{name}' takes their values out of torch before "
                'loss.backward() (read them after it)'
            )
        return value._value.detach()
    return value


def plain(value: Any) -> Any:
    """Return the numbers of followed tensors, in tuples and lists too."""
    if isinstance(value, Followed):
        return value._value
    if isinstance(value, tuple | list):
        return type(value)(plain(item) for item in value)
    return value


def _owner(value: Any, watch: Watch) -> Owner:
    if not isinstance(value, Followed):
        return None
    if value._memory.spoiled is not None or value._watch is not watch:
        mixed = torch.tensor(MIXED, dtype=torch.int32, device=value.device)
        return mixed.expand(value.shape)
    return value._owner


def _check_stays(
    func: Any, args: Args, kwargs: Kwargs, given: list[Followed]
) -> None:
    name = base_name(func)
    for t in given:
        if t._memory.kept is not None:
            _refuse_kept(t._memory.kept)
        if t._memory.hidden is not None and name not in ('detach', 'alias'):
            _refuse(
                f"'{t._memory.hidden}' has a row for each node or edge, and "
                'how many a graph has is private: hand it to the model alone'
            )
    if all(t._is_name for t in given) and name not in _MEMORY:
        return
    if func.namespace not in _KNOWN:
        _refuse(
            f"'{func.namespace}::{name}' is an operation whose code is not "
            'known, and may do more with their values than it returns'
        )
    if name in _MEMORY:
        _refuse(f"'{name}_' exchanges their memory")
    if name in _RANDOM:
        _refuse(
            f"'{name}' draws a number of random numbers that depends on their "
            'values'
        )
    if _is_harmless(func):
        return
    tagged = torch.Tag.dynamic_output_shape in func.tags
    if not tagged and name not in _SIZED:
        what = {'_local_scalar_dense': 'item, float, int or bool'}
        _refuse(
            f"'{what.get(name, name)}' takes their values out of torch before "
            'loss.backward() (read them after it)'
        )
    if name in ('index', '_unsafe_index', 'index_put'):
        masks = [
            t
            for t in tensors_of_tree(args[1])
            if t.dtype in (torch.bool, torch.uint8)
        ]
        if not any(isinstance(t, Followed) for t in masks):
            return
    _refuse_shape(name)


def check_shape(func: Any, shown: torch.Size, found: torch.Size) -> None:
    """Check that an operation returns the shape that it did on made-up rows.

    Raises:
        ValueError: if the shapes differ, so that one depends on values.
    """
    if shown != found:
        _refuse_shape(base_name(func))


def _refuse_shape(name: str) -> NoReturn:
    _refuse(
        f"'{name}' makes a number of rows that depends on their values "
        '(multiply by a mask or use torch.where, or take a mask that is in '
        'the batch)'
    )


@cache
def _is_harmless(func: Any) -> bool:
    # Refuse operations whose results or shapes Python would see.
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    name = base_name(func)
    if name in _SIZED or any(tag in func.tags for tag in tags):
        return False
    returned = [str(value.type) for value in func._schema.returns]
    return name in _SHAPES or all('Tensor' in kind for kind in returned)


def writes(func: Any) -> bool:
    """Return whether an operation writes to one of its arguments."""
    return bool(_written_places(func))


@cache
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _slots(value: Any, watch: Watch) -> Any:
    # Arguments as they are now, whatever is written into them later.
    if isinstance(value, Followed):
        return value._slot if value._watch is watch else value
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple | list):
        return [_slots(item, watch) for item in value]
    if isinstance(value, dict):
        return {key: _slots(item, watch) for key, item in value.items()}
    return value


def _check_kept(args: Args, kwargs: Kwargs, watch: Watch) -> None:
    # Values that the model kept hold made-up rows, and can't be read.
    if not watch.kept:
        return
    for value in tree_leaves([args, kwargs]):
        name = None
        if isinstance(value, float):
            name = watch.kept.get(value)
        elif _has_memory(value):
            name = watch.kept.get(('at', value.untyped_storage()._cdata))
        if name is not None:
            _refuse_kept(name)


def _refuse_kept(name: str) -> NoReturn:
    _refuse(
        f"it reads '{name}', which the model kept of its call: return it as a "
        'part of the output, whose rows can be followed'
    )


def _has_memory(value: Any) -> bool:
    plain = isinstance(value, Tensor) and not isinstance(value, Followed)
    return plain and value.layout == torch.strided


def _written(func: Any, args: Args, kwargs: Kwargs) -> list[Tensor]:
    found = []
    for place, name in _written_places(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found += tensors_of_tree(value)
    return found


def _node() -> str | None:
    # The name of the operation that is differentiated now.
    node = torch._C._current_autograd_node()
    if node is None:
        return None
    name: str = node.name()
    return name.split('::')[-1].split('Backward')[0].lower()


def _reason(
    func: Any, given: list[Followed], owners: list[Owner], watch: Watch
) -> _Why | None:
    if not any(is_mixed(owner) for owner in owners):
        return None
    before = None
    for t in given:
        why = t._memory.spoiled or t._why
        if t._watch is not watch:
            why = _Why('a tensor of an earlier batch')
        before = before or why
    node = _node() if watch.again is None else watch.again[0]
    name = node or base_name(func).strip('_')
    if before is None:
        return _Why(name, node)
    if before.back is None and node is not None:
        return _Why(before.met, node)
    return before


def _write(
    written: list[Tensor],
    owners: list[Owner],
    why: _Why | None,
    watch: Watch,
) -> None:
    # A tensor changed in place, and its views, depend on the new values.
    for place, target in enumerate(written):
        assert isinstance(target, Followed)
        came = owners[place] if place < len(owners) else None
        if len(written) > 1 or len(owners) != 1:
            came = join(*(o for o in owners)) if owners else None
        before = target._owner
        if came is None or came is before:
            continue
        after = join(before, came)
        assert after is not None
        if before is not None and torch.equal(
            after.expand(target.shape), before.expand(target.shape)
        ):
            continue
        if target._memory.views == 1:
            target._owner = after.expand(target.shape)
            target._why = target._why or why
        else:
            target._memory.spoiled = why or _Why('a change in place')


def _wrap(
    func: Any,
    out: Any,
    owners: list[Owner],
    watch: Watch,
    given: list[Followed],
    why: _Why | None,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    queue = list(owners)
    every = tensors_of_tree([*args, *kwargs.values()])
    is_name = len(every) == len(given) and all(t._is_name for t in given)
    is_label = (
        len(given) == 1
        and base_name(func) in _KEPT
        and given[0]._memory.is_label
        and not given[0]._memory.written
    )
    same = {id(t._value): t for t in given}
    memories = {
        t._value.untyped_storage().data_ptr(): t._memory
        for t in given
        if t._value.layout == torch.strided
    }

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            owner = queue.pop(0)
            if id(value) in same:
                return same[id(value)]
            memory = None
            if value.layout != torch.strided:
                _refuse('it is sparse')
            if value.layout == torch.strided and value.numel():
                memory = memories.get(value.untyped_storage().data_ptr())
            made = Followed(value, owner, watch, memory, why, is_name)
            made._memory.is_label |= is_label
            return made
        if isinstance(value, tuple | list):
            return type(value)(visit(item) for item in value)
        return value

    return visit(out)


def _wrap_earlier(out: Any, watch: Watch, args: Args, kwargs: Kwargs) -> Any:
    # After the backward pass of a batch: results of its rows may not come
    # back in the loss of another batch.
    tensors = tensors_of_tree([*args, *kwargs.values()])
    same = {id(plain(t)): t for t in tensors}

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            found = same.get(id(value))
            return Followed(value, None, watch) if found is None else found
        if isinstance(value, tuple | list):
            return type(value)(visit(item) for item in value)
        return value

    return visit(out)


def _without_ignored(func: Any, args: Args, kwargs: Kwargs) -> Tensor | None:
    # A mean over labels that are not ignored divides by their number, which
    # is public, if they are labels of the batch: it is a mask. None where
    # torch's own is the same, or has to be followed.
    known = ('input', 'target', 'weight')
    got = {**dict(zip(known, args, strict=False)), **kwargs}
    for name in ('size_average', 'reduce'):
        if got.get(name, 0) is None:
            del got[name]
    allowed = {*known, 'ignore_index', 'reduction', 'label_smoothing'}
    target = got.get('target')
    if got.get('weight') is not None and got.get('reduction') in (
        None,
        'mean',
    ):
        for t in (got.get('input'), target):
            if isinstance(t, Followed):
                t._watch.weighted = True
    if (
        len(args) > len(known)
        or got.keys() - allowed
        or got.get('weight') is not None
        or got.get('reduction', 'mean') != 'mean'
        or not isinstance(target, Followed)
        or target.is_floating_point()
        or not target._watch.live
        or not target._memory.is_label
        or target._memory.written
    ):
        return None
    kept = target._value != got.get('ignore_index', -100)
    count = int(kept.sum())
    if count == kept.numel() and not got.get('label_smoothing'):
        return None
    target._watch.ignored |= count < kept.numel()
    terms = func(**{**got, 'reduction': 'none'})
    return terms.sum() / count
