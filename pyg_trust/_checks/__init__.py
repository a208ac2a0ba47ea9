"""Constraints of arguments, declared in type hints.

A constraint is called with an argument's name and value. It returns the value
to go on with, or raises ``TypeError`` for another kind of thing and
``ValueError`` for one that does not fit. ``validated`` makes a function or
class check its arguments by their hints: ``float``, ``bool`` and classes as
they are, and ``Annotated`` types such as :obj:`Positive` by their constraint.
The "Raises" of the API pages and the rows of ``tests/test_bad_inputs.py`` are
made from the same hints. A condition on several arguments stays in the body.
"""

import collections.abc
import copy
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Dataset

REAL = (torch.float32, torch.float64)
NUMBERS = (int, float, np.integer, np.floating)
Dtypes = torch.dtype | tuple[torch.dtype, ...] | None
Sizes = dict[str, int] | None
Declared = TypeVar('Declared', bound=Callable[..., Any])


def _type_error(name: str, need: str, value: Any) -> TypeError:
    got = type(value).__name__
    advice = ''
    if got == 'HeteroData' and 'homogeneous' in need:
        advice = (
            ': HeteroData.to_homogeneous() makes one; people with several '
            'rows are declared by pyg_trust.unit.PrivacyUnit'
        )
    if isinstance(value, Dataset) and 'Data' in need:
        advice = ': give one graph of it, as dataset[0]'
    if got in ('Graph', 'DiGraph') and 'Data' in need:
        advice = ': torch_geometric.utils.from_networkx makes one of it'
    if got == 'TemporalData' and 'homogeneous' in need:
        advice = (
            ': a list of events has no features of nodes. Take Data(x=..., '
            'edge_index=torch.stack([data.src, data.dst]), '
            'edge_attr=data.msg, time=data.t)'
        )
    return TypeError(f"'{name}' needs to be {need} (got {got}){advice}")


class Constraint:
    """Base of constraints, which define the valid values of an argument.

    Subclasses have :meth:`check` and the end :attr:`need` of the sentence
    "the argument needs to be ...".
    """

    need: str
    optional = False

    def __call__(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        """Return the checked value, or raise an error."""
        if value is None and self.optional:
            return None
        return self.check(name, value, sizes)

    def check(self, name: str, value: Any, sizes: Sizes) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.need


class Number(Constraint):
    """Number in an interval; ``closed`` names the ends that belong to it."""

    def __init__(
        self,
        low: float = -math.inf,
        high: float = math.inf,
        closed: str = '',
        need: str | None = None,
    ) -> None:
        self.low, self.high, self.closed = low, high, closed
        left, right = '(['['low' in closed], ')]'['high' in closed]
        self.need = need or f'in {left}{low:g}, {high:g}{right}'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> float:
        number = check_number(name, value)
        if not (
            self.low < number < self.high
            or (number == self.low and 'low' in self.closed)
            or (number == self.high and 'high' in self.closed)
        ):
            raise ValueError(f"'{name}' needs to be {self.need} (got {value})")
        return number


class AnyNumber(Constraint):
    """Number, including infinity and NaN."""

    need = 'a number'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> float:
        return check_number(name, value)


class Int(Constraint):
    """Integer within bounds, converted to a Python int."""

    def __init__(
        self, low: int | None = None, high: int | None = None
    ) -> None:
        self.low, self.high = low, high
        ends = '' if low is None else f' of at least {low}'
        self.need = f'an integer{ends}'
        if high is not None:
            self.need += f'{" and" if ends else " of"} at most {high}'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> int:
        made = check_integer(name, value, self.low, self.high, numpy=True)
        if sizes is not None:
            sizes[name] = made
        return made


class OneOf(Constraint):
    """Constraint that a value is in a list of names, read at each check."""

    def __init__(self, options: Iterable[str]) -> None:
        self.options = options

    @property
    def need(self) -> str:  # type: ignore[override]
        return f'one of {tuple(self.options)}'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> str:
        return check_choice(name, value, self.options)


# Names of classes in messages, where the class name says too little.
_NAMES = {
    'Data': 'homogeneous torch_geometric.data.Data',
    'Module': 'torch.nn.Module',
    'type': 'class',
}


class Is(Constraint):
    """Object of some classes; their ``_sizes`` name attributes of a size."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds
        self.sizes = sum((getattr(k, '_sizes', ()) for k in kinds), ())
        names = [_NAMES.get(kind.__name__, kind.__name__) for kind in kinds]
        wanted = ' or '.join(names)
        self.need = f'{"an" if wanted[0] in "AEIO" else "a"} {wanted}'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        if not isinstance(value, self.kinds):
            raise _type_error(name, self.need, value)
        if sizes is not None:
            for size in self.sizes:
                sizes[size] = getattr(value, size)
        return value


class CanCall(Constraint):
    """Callable object."""

    need = 'callable'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        if not callable(value):
            raise _type_error(name, self.need, value)
        return value


class Array(Constraint):
    """Tensor of a dtype, shape and range.

    Args:
        dtype (torch.dtype or tuple[torch.dtype, ...], optional): the valid
            dtypes; :obj:`None` for any floating point.
        shape (int or str): the size of each dimension. A name is any size, but
            the same wherever it occurs in a declaration.
        finite (bool): whether NaN and infinity are refused.
        below (str, optional): the name of the size below which entries have to
            be; they have to be at least 0.
    """

    def __init__(
        self,
        dtype: Dtypes,
        *shape: int | str,
        finite: bool = False,
        below: str | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self.finite, self.below = finite, below
        dims = ', '.join(map(str, shape))
        self.need = f'a tensor of {_dtypes(dtype)}, of the shape [{dims}]'
        self.need += ', finite' if finite else ''
        self.need += f', in [0, {below})' if below else ''

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Tensor:
        sizes = {} if sizes is None else sizes
        shape = tuple([sizes.get(str(size), size) for size in self.shape])
        check_tensor(name, value, self.dtype, shape, finite=self.finite)
        if self.below is not None:
            what = f'the {self.below.removeprefix("num_")}'
            check_range(name, value, sizes[self.below], what)
        for size, given in zip(self.shape, value.shape, strict=True):
            if isinstance(size, str):
                sizes[size] = given
        return value


def as_ids(name: str, value: Any) -> Any:
    """Return ids or a mask as a tensor of one dimension.

    Lists, ranges and arrays of integers or bools are converted, int32 becomes
    int64, and ``[n, 1]`` becomes ``[n]``; all else is left to other checks.
    """
    if isinstance(value, list | tuple | range | np.ndarray):
        try:
            array = np.asarray(value)
        except ValueError:
            # Rows of different lengths.
            return value
        if array.size and array.dtype.kind not in 'iub':
            raise TypeError(
                f"'{name}' needs to be a tensor or a list of ids, which are "
                f'whole numbers (got {array.flat[0].item()!r}): number yours, '
                'as by {id: i for i, id in enumerate(ids)}'
            )
        value = torch.from_numpy(
            array if array.dtype == np.bool_ else array.astype(np.int64)
        )
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.int32:
        value = value.long()
    if value.dim() == 2 and value.dtype in (torch.bool, torch.int64):
        if value.size(1) != 1:
            raise ValueError(
                f"'{name}' needs to have one dimension (got the shape "
                f"{list(value.shape)}): choose a column, as '{name}[:, 0]'"
            )
        value = value.view(-1)
    return value


class Ids(Constraint):
    """Ids or a mask, as a tensor or a list."""

    need = 'a tensor or a list of ids'

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        value = as_ids(name, value)
        if not isinstance(value, Tensor):
            raise _type_error(name, self.need, value)
        return value


check_finite = Number(need='finite')
check_positive = Number(0, need='positive and finite')
check_non_negative = Number(0, closed='low', need='non-negative and finite')
check_share = Number(0, 1, 'low high')
check_fraction = Number(0, 1)
check_rate = Number(0, 1, 'high')
check_callable = CanCall()

Finite = Annotated[float, check_finite]
Positive = Annotated[float, check_positive]
NotNegative = Annotated[float, check_non_negative]
Share = Annotated[float, check_share]
Fraction = Annotated[float, check_fraction]
Rate = Annotated[float, check_rate]
Count = Annotated[int, Int(1)]
Natural = Annotated[int, Int(0)]
NodeIds = Annotated[Tensor, Ids()]

_PLAIN: dict[Any, Constraint] = {
    float: AnyNumber(),
    int: Int(),
    collections.abc.Callable: check_callable,
}


def validated(declared: Declared) -> Declared:
    """Check a function's or constructor's arguments by their type hints.

    They are validated in order before each call; defaults are not. The
    function gets the values that the constraints return.
    """
    if isinstance(declared, type):
        made = validated(vars(declared)['__init__'])
        declared.__init__ = made  # type: ignore[misc]
        return declared
    plan: list[tuple[int, str, Constraint]] | None = None

    @functools.wraps(declared)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        if plan is None:
            plan = _plan(declared)
        sizes: dict[str, int] = {}
        for place, name, constraint in plan:
            if place < len(args):
                value = args[place]
                made = constraint(name, value, sizes)
                if made is not value:
                    args = (*args[:place], made, *args[place + 1 :])
            elif name in kwargs:
                kwargs[name] = constraint(name, kwargs[name], sizes)
        return declared(*args, **kwargs)

    call.is_validated = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def declared(function: Declared) -> Declared:
    """Mark a function as validated: inner steps check the hinted arguments."""
    function.is_validated = True  # type: ignore[attr-defined]
    return function


def _plan(function: Callable[..., Any]) -> list[tuple[int, str, Constraint]]:
    # Places of arguments; numbers and graphs first, as they fix sizes.
    keywords = inspect.unwrap(function).__code__.co_argcount
    names = list(inspect.signature(function).parameters)
    places = [k if k < keywords else 2**31 for k in range(len(names))]
    made = [
        (places[names.index(name)], name, constraint)
        for name, constraint in constraints(function).items()
    ]
    return sorted(made, key=lambda entry: isinstance(entry[2], Array))


def constraints(function: Callable[..., Any]) -> dict[str, Constraint]:
    """Return the constraints in the type hints of a function."""
    made = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if isinstance(hint, str):
            space = getattr(inspect.unwrap(function), '__globals__', {})
            hint = space.get(hint)
        found = _of_hint(hint)
        if found and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            made[name] = found
    return made


def _of_hint(hint: Any) -> Constraint | None:
    for part in getattr(hint, '__metadata__', ()):
        if isinstance(part, Constraint):
            return part
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        parts = [h for h in typing.get_args(hint) if h is not type(None)]
        found = [_of_hint(part) for part in parts]
        kinds = [part.kinds for part in found if isinstance(part, Is)]
        made = copy.copy(found[0]) if len(found) == 1 else None
        if len(kinds) == len(found):
            made = Is(*sum(kinds, ()))
        if made is not None:
            made.optional = type(None) in typing.get_args(hint)
        return made
    plain = _PLAIN.get(typing.get_origin(hint) or hint)
    known = plain is not None or not isinstance(hint, type)
    if known or hint in (Any, inspect.Parameter.empty):
        return plain
    general = typing.get_args(hint) or getattr(hint, '_is_protocol', False)
    return None if general else Is(hint)


def check_number(name: str, value: float) -> float:
    """Refuse anything but a number; return it as a float."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise _type_error(name, 'a number', value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_integer(
    name: str,
    value: int,
    low: int | None = None,
    high: int | None = None,
    *,
    numpy: bool = False,
) -> int:
    """Refuse anything but an integer within bounds; return it.

    Callers that allow :obj:`numpy` integers use the returned int, as JSON and
    the kernels take no others.
    """
    kind = int | np.integer if numpy else int
    if isinstance(value, bool) or not isinstance(value, kind):
        raise _type_error(name, 'an integer', value)
    if low is not None and value < low:
        raise ValueError(f"'{name}' needs to be at least {low} (got {value})")
    if high is not None and value > high:
        raise ValueError(f"'{name}' needs to be at most {high} (got {value})")
    return int(value)


def check_choice(name: str, value: str, options: Iterable[str]) -> str:
    """Refuse anything but one of the given names; return it."""
    if not isinstance(value, str) or value not in tuple(options):
        raise ValueError(
            f"'{name}' needs to be one of {tuple(options)} (got {value!r})"
        )
    return value


def check_instance(name: str, value: Any, *kinds: type) -> None:
    """Refuse an object of another class."""
    if not isinstance(value, kinds):
        raise _type_error(name, Is(*kinds).need, value)


def _dtypes(dtype: Dtypes) -> str:
    if dtype is None:
        return 'floating point'
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    return ' or '.join(str(d).removeprefix('torch.') for d in dtypes)


def _has_dtype(value: Tensor, dtype: Dtypes) -> bool:
    if dtype is None:
        return value.is_floating_point()
    return value.dtype in (dtype if isinstance(dtype, tuple) else (dtype,))


def _cast(name: str, dtype: Dtypes) -> str:
    # The call that makes a tensor of one of these dtypes.
    for wanted, call in (
        (torch.float32, f'{name}.float()'),
        (torch.int64, f'{name}.long()'),
        (torch.bool, 'torch_geometric.utils.index_to_mask makes one of ids'),
    ):
        if dtype is None or wanted in (
            dtype if isinstance(dtype, tuple) else (dtype,)
        ):
            return f': {call}'
    return ''


def check_tensor(
    name: str,
    value: Tensor,
    dtype: Dtypes,
    shape: tuple[int | str, ...],
    *,
    finite: bool = False,
) -> None:
    """Refuse a tensor with another dtype or shape, or with bad entries."""
    if not isinstance(value, Tensor):
        raise _type_error(name, 'a tensor', value)
    if not _has_dtype(value, dtype):
        raise TypeError(
            f"'{name}' needs to be {_dtypes(dtype)} (got {value.dtype})"
            + _cast(name, dtype)
        )
    if value.dim() != len(shape) or any(
        isinstance(wanted, int) and size != wanted
        for size, wanted in zip(value.shape, shape, strict=True)
    ):
        raise ValueError(
            f"'{name}' needs to have the shape [{', '.join(map(str, shape))}] "
            f'(got {list(value.shape)})'
        )
    if finite and not is_finite(value):
        raise ValueError(f"'{name}' needs to be finite (got NaN or infinity)")


def check_dtype(name: str, value: Any, dtype: Dtypes) -> None:
    """Refuse anything but a tensor of given dtypes, in any shape."""
    if isinstance(value, Tensor) and _has_dtype(value, dtype):
        return
    wanted = 'floating-point' if dtype is None else _dtypes(dtype)
    article = 'an' if wanted[0] == 'i' else 'a'
    got = getattr(value, 'dtype', type(value).__name__)
    call = _cast(name, dtype) if isinstance(value, Tensor) else ''
    raise TypeError(
        f"'{name}' needs to be {article} {wanted} tensor (got {got}){call}"
    )


def is_finite(value: Tensor) -> bool:
    """Return whether no entry is NaN or infinite.

    A finite sum, which is cheaper, suffices; it may overflow otherwise.
    """
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def check_range(
    name: str, value: Tensor, size: int, what: str, private: bool = False
) -> None:
    """Refuse an integer tensor with an entry outside of [0, size).

    Private entries are left out of the error's text.
    """
    if value.numel() > 0:
        low, high = map(int, value.aminmax())
        if low < 0 or high >= size:
            got = '(got others)' if private else f'(got {low} to {high})'
            raise ValueError(
                f"'{name}' needs to be in [0, {size}), {what} {got}"
            )


def check_nodes(name: str, value: Tensor, num_nodes: int) -> Tensor:
    """Convert int64 indices or a bool mask to node indices."""
    value = as_ids(name, value)
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        check_tensor(name, value, torch.bool, (num_nodes,))
        return value.nonzero().view(-1)
    check_tensor(name, value, torch.int64, ('num',))
    check_range(name, value, num_nodes, 'the nodes')
    return value


def check_distinct(name: str, nodes: Tensor) -> None:
    """Refuse nodes that contain duplicates."""
    if nodes.unique().numel() < nodes.numel():
        raise ValueError(f"'{name}' needs to name each node once")


def check_plain(name: str, value: dict[str, Any]) -> None:
    """Refuse anything but a dictionary that JSON can hold."""
    check_instance(name, value, dict)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"'{name}' needs to hold plain values ({error})"
        ) from None


def check_ledger(ledger: str | Path | None, ledger_head: str | None) -> None:
    """Refuse anything but a ledger's path; refuse a digest without a path."""
    if ledger is not None:
        check_instance('ledger', ledger, str, Path)
    if ledger_head is not None:
        check_instance('ledger_head', ledger_head, str)
        if ledger is None:
            raise ValueError(
                "'ledger_head' needs a 'ledger' that goes on from it"
            )
