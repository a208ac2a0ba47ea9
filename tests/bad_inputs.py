"""Bad inputs: what is public, which values are bad, what a refusal leaves.

A *kind* says what an argument may be; from a value that works it makes values
that do not. :func:`entry_points` finds what is public, :func:`leaves` lists
all that a refused call could have changed.
"""

import functools
import importlib
import inspect
import math
import os
import pkgutil
import random
import re
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_trust
from pyg_trust._checks import (
    AnyNumber,
    CanCall,
    Int,
    Is,
    Number,
    OneOf,
    constraints,
)
from pyg_trust.graph import CSRGraph

PACKAGE = str(Path(pyg_trust.__file__).parent) + os.sep
Bad = tuple[str, Any]
Kind = Callable[[Any], Iterable[Bad]]


# What is public ##############################################################


def all_modules() -> Iterator[types.ModuleType]:
    """The package's own modules, which are in Python."""
    for info in pkgutil.walk_packages(pyg_trust.__path__, 'pyg_trust.'):
        if info.name.rpartition('.')[2] not in ('_C', '__main__'):
            yield importlib.import_module(info.name)


def public_names() -> Iterator[tuple[str, Any]]:
    """The exports of every package, and all of the modules beside them."""
    for module in all_modules():
        home, _, short = module.__name__.rpartition('.')
        if home != 'pyg_trust' or short.startswith('_'):
            continue
        for name in getattr(module, '__all__', vars(module)):
            value = getattr(module, name)
            ours = getattr(value, '__module__', '') == module.__name__
            if hasattr(module, '__all__') or (ours and name[0] != '_'):
                yield f'{short}.{name}', value


def all_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All functions and methods of the package."""
    for module in all_modules():
        for name, value in vars(module).items():
            if getattr(value, '__module__', '') == module.__name__:
                key = f'{module.__name__}.{name}'
                held = vars(value) if inspect.isclass(value) else {'': value}
                for member, found in held.items():
                    found = getattr(found, '__func__', found)
                    if inspect.isfunction(found):
                        yield f'{key}.{member}', found


@functools.cache
def entry_points() -> dict[str, Callable[..., Any]]:
    """All functions, constructors and methods that take an argument."""
    found = {}
    for name, value in public_names():
        if inspect.isclass(value):
            made = [(name, value)]
            for attribute, method in _methods(value):
                made.append((f'{name}.{attribute}', method))
        elif inspect.isroutine(value):
            made = [(name, value)]
        else:
            continue
        for key, function in made:
            if parameters(function):
                found[key] = function
    return found


def _methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    # An inherited method counts where it was written, if that is public.
    public = {value for _, value in public_names() if inspect.isclass(value)}
    seen = set()
    for base in owner.__mro__:
        if not base.__module__.startswith('pyg_trust'):
            continue
        for attribute, value in vars(base).items():
            special = attribute in ('__call__', '__getitem__')
            if attribute in seen or (
                attribute.startswith('_') and not special
            ):
                continue
            seen.add(attribute)
            if base is not owner and base in public:
                continue
            if isinstance(value, classmethod | staticmethod):
                yield attribute, getattr(owner, attribute)
            elif inspect.isfunction(value) and _is_ours(value):
                yield attribute, functools.partial(value, None)


def _is_ours(function: Callable[..., Any]) -> bool:
    # PyG writes methods into the classes of its layers.
    code = inspect.unwrap(function).__code__
    return code.co_filename.startswith(PACKAGE)


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of what a caller passes, without `**kwargs`."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return []
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind != inspect.Parameter.VAR_KEYWORD
    ]


# Kinds #######################################################################


def integer(
    low: int | None = None, high: int | None = None, *, none: bool = False
) -> Kind:
    """An integer in `[low, high]`."""

    def bad(value: Any) -> Iterator[Bad]:
        yield from of('three', True, 1.5, math.nan, [1], none=none)
        if low is not None:
            yield 'too small', low - 1
        if high is not None:
            yield 'too large', high + 1

    return bad


def number(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    closed: str = '',
    none: bool = False,
) -> Kind:
    """A number in an interval, open but at the ends named in `closed`."""

    def bad(value: Any) -> Iterator[Bad]:
        wrong = ['half', True, [0.5], 0.5j, math.nan, -math.inf]
        if 'high' not in closed or high < math.inf:
            wrong.append(math.inf)
        yield from of(*wrong, none=none)
        for side, end, beyond in (('low', low, -0.25), ('high', high, 0.25)):
            if math.isfinite(end):
                yield f'beyond {side}', end + beyond
                if side not in closed:
                    yield f'at {side}', end

    return bad


def choice(*, none: bool = False) -> Kind:
    """One of some names."""
    return values('no such name', 3, ['no such name'], *nothing(none))


def tensor(
    *,
    rows: bool = True,
    columns: bool = False,
    low: float | None = None,
    high: float | None = None,
    finite: bool = True,
    none: bool = False,
    empty: bool = False,
    dtypes: tuple[torch.dtype, ...] = (),
    numbers: bool = False,
) -> Kind:
    """A tensor like the one that works.

    Args:
        rows: whether the number of rows is given by other arguments.
        columns: whether that of columns is.
        low: the smallest entry.
        high: the largest entry.
        finite: whether NaN and infinity are refused.
        none: whether None is good.
        empty: whether an empty one is bad.
        dtypes: other bad ones than the usual.
        numbers: whether lists and numpy arrays are good too.
    """

    def bad(value: Tensor | None) -> Iterator[Bad]:
        if value is None:  # left out
            return
        if not numbers:
            yield 'a list', value.tolist()
        yield from of('tensor', object(), none=none)
        kinds = dtypes or (
            (torch.int64, torch.bool, torch.complex64)
            if value.is_floating_point()
            else (torch.float32, torch.bool)
            if value.dtype != torch.bool
            else (torch.float32, torch.int64)
        )
        for dtype in kinds:
            yield f'{dtype}', value.to(dtype)
        yield 'two dimensions more', value[..., None, None]
        if value.dim() > 0 and value.numel() > 0:
            yield 'no dimension', value.flatten()[0]
        if rows:
            yield 'a row less', value[:-1]
            yield 'a row more', torch.cat([value, value[-1:]])
        if columns:
            yield 'a column less', value[..., :-1]
        if empty:
            yield 'no entry', value[..., :0]
        entries = []
        if value.is_floating_point() and finite:
            entries += [math.nan, math.inf]
        entries += [] if low is None else [low - 1]
        entries += [] if high is None else [high + 1]
        for entry in entries:
            made = value.detach().clone()
            made.view(-1)[-1] = entry
            yield f'an entry {entry}', made

    return bad


def ids(size: int = 6, *, empty: bool = False) -> Kind:
    """Ids below a size, as a tensor or a list, or None for all."""
    return tensor(
        rows=False,
        low=0,
        high=size - 1,
        none=True,
        empty=empty,
        dtypes=(torch.float32,),
        numbers=True,
    )


def instance(*, none: bool = False, maybe: tuple[type, ...] = ()) -> Kind:
    """An object of a class of its own."""
    wrong = (3, 'no such thing', object(), {'a': 1}, torch.tensor([0.5]))
    wrong = [value for value in wrong if not isinstance(value, maybe)]
    return values(*wrong, *nothing(none))


def any_graph(*, none: bool = False) -> Kind:
    """What :meth:`CSRGraph.convert` takes."""
    wrong = (
        *(3, 'graph', [[0, 1], [1, 0]], HeteroData()),
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        torch.zeros((3, 2), dtype=torch.int64),
        torch.tensor([[0, -1], [-1, 0]]),
        Data(edge_index=torch.zeros(2, 0).long(), num_nodes=0),
    )
    return values(*wrong, *nothing(none))


def data(*, edges: bool = True) -> Kind:
    """A homogeneous graph as PyG's Data, with nodes."""

    def bad(value: Data) -> Iterator[Bad]:
        yield from of(None, 3, value.edge_index, HeteroData())
        yield 'a dictionary', {'x': value.x, 'edge_index': value.edge_index}
        if edges:
            none = value.edge_index[:, :0]
            yield 'no node', Data(x=value.x[:0], edge_index=none, num_nodes=0)
            for label, made in edge_indices(value.num_nodes)(value.edge_index):
                if made is None or isinstance(made, Tensor):
                    other = value.clone()
                    other.num_nodes = value.num_nodes
                    other.edge_index = made
                    yield f'edge_index: {label}', other

    return bad


def edge_indices(num_nodes: int, *, none: bool = False) -> Kind:
    """int64, `[2, num_edges]`, of so many nodes."""

    def bad(value: Tensor) -> Iterator[Bad]:
        yield from of([[0, 1], [1]], 'edges', none=none)
        yield 'floating point', value.double()
        yield 'one row', value[:1]
        yield 'three rows', value[[0, 1, 1]]
        yield 'one dimension', value.view(-1)
        for node in (-1, num_nodes):
            other = value.clone()
            other[0, 0] = node
            yield f'node {node}', other

    return bad


def either(*kinds: Kind) -> Kind:
    """The bad values of several kinds."""

    def bad(value: Any) -> Iterator[Bad]:
        for kind in kinds:
            yield from kind(value)

    return bad


def values(*bad_values: Any) -> Kind:
    """Just these."""

    def bad(value: Any) -> Iterator[Bad]:
        for wrong in bad_values:
            label = 'a tensor' if isinstance(wrong, Tensor) else repr(wrong)
            yield label[:60], wrong

    return bad


def of(*bad_values: Any, none: bool = True) -> Iterator[Bad]:
    """These with labels, and None unless it is good."""
    return values(*bad_values, *nothing(none))(None)


def nothing(none: bool) -> list[None]:
    """None, unless it is good."""
    return [] if none else [None]


def anything(why: str) -> Kind:
    """No value is bad, and why."""
    assert why
    return lambda value: ()


FLAG = anything('any truth value will do, as everywhere in Python')
PATH = values(3, 1.5, None, ['a'])
SEED = integer(0, 2**63 - 1, none=True)


def constraints_of(function: Callable[..., Any]) -> tuple[dict, bool]:
    """The constraints in the hints, and whether they are checked first."""
    function = getattr(function, 'func', function)
    if inspect.isclass(function):
        function = function.__init__
    return constraints(function), getattr(function, 'is_validated', False)


def declared(function: Callable[..., Any], name: str) -> Kind | None:
    """The kind of a hint, where the function checks its arguments by them."""
    found, checked = constraints_of(function)
    return hinted(found.get(name)) if checked else None


def sized(found: dict[str, Any], name: str) -> Kind:
    """A tensor whose sizes are those of other arguments by their names."""
    form = found[name]
    names = [x if isinstance(x, tuple) else (x, 0) for x in form.shape]
    others = {
        of[0] if isinstance(of, tuple) else of
        for key, other in found.items()
        for of in (getattr(other, 'shape', ()) if key != name else ())
    }
    return tensor(
        rows=names[0][0] in others,
        columns=len(names) > 1 and names[-1][0] in others,
        low=0 if form.below else None,
        finite=getattr(form, 'finite', False),
        none=form.optional,
    )


def hinted(found: Any) -> Kind | None:
    """The kind of a constraint."""
    none = found is not None and found.optional
    if isinstance(found, Number):
        kind = number(found.low, found.high, closed=found.closed, none=none)
    elif isinstance(found, Int):
        kind = integer(found.low, found.high, none=none)
    elif isinstance(found, AnyNumber):
        kind = values('half', True, [0.5], 0.5j, *nothing(none))
    elif isinstance(found, OneOf):
        return choice(none=none)
    elif isinstance(found, CanCall):
        return instance(none=none)
    elif isinstance(found, Is):
        if bool in found.kinds:
            return FLAG
        return instance(none=none, maybe=found.kinds)
    else:
        return None

    def bad(value: Any) -> Iterator[Bad]:
        yield from kind(value)
        yield from of(torch.tensor(1), np.True_, np.array(['NaN'])[0])
        yield from of(Fraction(1, 2), Decimal(1), b'1', {'a': 1})

    return bad


# What a refused call leaves ##################################################


# Attributes that hold what was computed from the others.
KEPT = {('CSRGraph', '_cache'), ('DisjointWalkSampler', '_last')}
KEPT |= {
    (f'{kind}Loader', name)
    for kind in ('DisjointWalk', 'Unit', 'Graph')
    for name in ('_known', '_counts')
}


def leaves(value: Any) -> dict[str, Any]:
    """All that a call could change, by its path from what it was given."""
    made: dict[str, Any] = {}
    _add(made, 'given', value, {})
    _add(made, 'torch', torch.get_rng_state(), {})
    _, key, position, *_ = np.random.get_state()
    made['numpy'] = (key.tobytes(), position)
    made['random'] = hash(random.getstate())
    return made


def _add(
    made: dict[str, Any], path: str, value: Any, seen: dict[int, Any]
) -> None:
    if isinstance(value, int | float | str | bytes | type(None) | complex):
        made[path] = repr(value)
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that no other has its id
    made[path] = type(value)
    if isinstance(value, Tensor):
        made[path] = _content(value)
        if value.is_leaf and value.grad is not None:
            made[f'{path}.grad'] = _content(value.grad)
    elif isinstance(value, np.ndarray):
        made[path] = (value.dtype, value.shape, value.tobytes())
    elif isinstance(value, torch.Generator):
        made[path] = value.get_state().numpy().tobytes()
    elif isinstance(value, Path):
        files = [value, *value.rglob('*')] if value.exists() else []
        for file in sorted(files):
            if file.is_file():
                made[f'{path}/{file.name}'] = file.read_bytes()
    elif isinstance(value, Data):
        _add(made, path, value.to_dict(), seen)
    elif isinstance(value, torch.optim.Optimizer):
        _add(made, path, value.state_dict(), seen)
    elif isinstance(value, dict):
        made[path] = tuple(map(repr, value))
        for key, entry in value.items():
            _add(made, f'{path}[{key!r}]', entry, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        made[path] = len(value)
        for place, entry in enumerate(value):
            _add(made, f'{path}[{place}]', entry, seen)
    elif isinstance(value, types.MethodType):
        _add(made, path, value.__self__, seen)
    elif not isinstance(value, type | types.ModuleType | types.FunctionType):
        _add_attributes(made, path, value, seen)


def _add_attributes(
    made: dict[str, Any], path: str, value: Any, seen: dict[int, Any]
) -> None:
    names = dict(getattr(value, '__dict__', {}))
    for base in type(value).__mro__:
        slots = vars(base).get('__slots__', ())
        for slot in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                names[slot] = getattr(value, slot)
    for name, entry in names.items():
        # What is computed once and kept says nothing new.
        kept = getattr(type(value), name, None)
        if (type(value).__name__, name) not in KEPT and not isinstance(
            kept, functools.cached_property
        ):
            _add(made, f'{path}.{name}', entry, seen)


def _content(value: Tensor) -> tuple:
    if value.layout == torch.sparse_csr:
        parts = [value.crow_indices(), value.col_indices(), value.values()]
    elif value.layout == torch.strided:
        parts = [value]
    else:
        return (value.layout, value.shape)
    raw = [
        part.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if part.numel() > 0
        else b''
        for part in parts
    ]
    return (value.dtype, tuple(value.shape), value.requires_grad, *raw)


# Refusals ####################################################################


SAYS = 'need|got|can|give|not|no |set by|take|choose|instead|leave|with|has'


# What an error about a graph may name in its place.
OF_GRAPHS = r"'(data\b|num_nodes|edge_index|edge_weight|roots|shard)"


class Row(NamedTuple):
    """A bad call: which arguments change, and what the error names."""

    label: str
    changes: dict[str, Any]
    names: str | None


def bad(names: str | None = None, /, **changes: Any) -> Row:
    """A call that some arguments make bad together.

    Args:
        names: what the error names, a name or a pattern; if None, what is
            named for the first argument.
        changes: the arguments.
    """
    if names is not None and names.isidentifier():
        names = f"'{names}'"
    label = ', '.join(f'{k}={str(v)[:30]}' for k, v in changes.items())
    return Row(label, changes, names)


def complaint(error: BaseException, names: str) -> str | None:
    """What is wrong with a refusal, if anything."""
    said = f'{type(error).__name__}: {error}'.replace('\n', ' ')[:160]
    ours = type(error).__module__.startswith('pyg_trust')
    if type(error) not in (TypeError, ValueError) and not ours:
        return f'another error ({said})'
    if not ours and not re.search(f'{names}|{OF_GRAPHS}', str(error)):
        return f'does not name {names} ({said})'
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if not frame.filename.startswith(PACKAGE):
        return f'not from the package ({said})'
    if not ours and not re.search(SAYS, str(error)):
        return f'does not say what it needs ({said})'
    return None


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where two snapshots differ."""
    return [
        path
        for path in before.keys() | after.keys()
        if path not in before
        or path not in after
        or before[path] != after[path]
    ]


def undirected(num_nodes: int = 6) -> Tensor:
    """A cycle with a chord."""
    row = torch.arange(num_nodes)
    pairs = torch.stack([row, row.roll(-1)])
    pairs = torch.cat([pairs, torch.tensor([[0], [2]])], 1)
    return torch.cat([pairs, pairs.flip(0)], 1)


def csr(num_nodes: int = 6) -> CSRGraph:
    """The same as a :class:`CSRGraph`."""
    return CSRGraph.from_edge_index(undirected(num_nodes), num_nodes)


def damaged(value: dict[str, Any]) -> Any:
    """The states that something is wrong with."""
    yield 'a number', 3
    yield 'a list', [value]
    yield 'an empty dictionary', {}
    yield 'None', None
    for key in value:
        rest = {k: v for k, v in value.items() if k != key}
        yield f'without {key!r}', rest
        yield f'another {key!r}', {**rest, key: object()}
        yield f'no {key!r}', {**rest, key: None}


def damaged_or_old(value: dict[str, Any]) -> Any:
    """The same, where a state without a format is one of 0.1."""
    for label, state in damaged(value):
        if label not in ("without 'format'", "without 'class'"):
            yield label, state
