r"""Replay of equal training steps without Python overhead.

A shard is small: most of an epoch is Python on its way to some fifty
operations, not these. So one epoch is recorded below autograd, as the list of
operations that it came to, and the others run that list: the same operations
on the same memory in the same order, hence the same bits as the loop.

**When that is the loop.** A recording knows nothing of Python. It is taken
only of models that consist of known classes, without hooks and callables of
others (:func:`can_replay`): these do the same at every call. An operation that
hands a value to Python, or one whose shape depends on what is learnt, ends
the recording, and the loop goes on as it is; so does one that would keep too
much memory.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric import nn as pyg
from torch_geometric.utils._trim_to_layer import TrimToLayer

# Classes that do the same at every call, and keep nothing in Python.
REPLAYED = frozenset(
    [
        torch.nn.BatchNorm1d,
        torch.nn.Dropout,
        torch.nn.ELU,
        torch.nn.GELU,
        torch.nn.Identity,
        torch.nn.LayerNorm,
        torch.nn.LeakyReLU,
        torch.nn.Linear,
        torch.nn.ModuleList,
        torch.nn.PReLU,
        torch.nn.ReLU,
        torch.nn.Sequential,
        torch.nn.Tanh,
        pyg.APPNP,
        pyg.BatchNorm,
        pyg.GAT,
        pyg.GATConv,
        pyg.GATv2Conv,
        pyg.GCN,
        pyg.GCN2Conv,
        pyg.GCNConv,
        pyg.GIN,
        pyg.GINConv,
        pyg.GraphConv,
        pyg.GraphSAGE,
        pyg.JumpingKnowledge,
        pyg.LayerNorm,
        pyg.Linear,
        pyg.MLP,
        pyg.MaxAggregation,
        pyg.MeanAggregation,
        pyg.PairNorm,
        pyg.SAGEConv,
        pyg.SGConv,
        pyg.SumAggregation,
        TrimToLayer,
    ]
)
# Below, a recording costs more than it saves.
LEAST = 6
_EMPTY = (torch.ops.aten.empty, torch.ops.aten.new_empty)
# The bytes that a recording may keep. With more, an epoch runs without
# recording.
MOST = 2**27


def can_replay(module: Module) -> bool:
    """Test whether a model is known to be safe to record and replay."""
    return not _has_any_global_hook() and all(
        type(part) in REPLAYED and all(map(_is_known, vars(part).items()))
        for part in module.modules()
    )


def _is_known(item: tuple[str, Any]) -> bool:
    name, value = item
    if name.endswith('_hooks'):
        # Hooks of state dictionaries do not act in a step.
        return 'state_dict' in name or not value
    if name == 'forward':
        return False
    if isinstance(value, Module | type) or not callable(value):
        return True
    # An activation, say.
    home = getattr(value, '__module__', None) or 'torch'
    return home.split('.')[0] in ('torch', 'torch_geometric')


def repeat(step: Callable[[], None], times: int, replay: bool) -> None:
    """Run a step a number of times.

    Args:
        step (Callable): the step; it works on tensors that keep their memory.
        times (int): the number of runs.
        replay (bool): whether the second run may be recorded, to replay it for
            the others.
    """
    run = step
    for i in range(times):
        if i == 1 and replay and times >= LEAST:
            recording = Recording()
            with recording:
                step()
            run = recording.program() or step
            continue
        if run is step:
            step()
        else:
            with torch.no_grad():
                run()


class _Value:
    # A tensor of the recording: from outside, or made by an operation.

    def __init__(self, tensor: Tensor, constant: bool) -> None:
        self.tensor, self.constant = tensor, constant


class Recording(TorchDispatchMode):
    """Recorder of a block's operations, below autograd.

    Tensors are told apart by their place in memory: autograd hands out other
    objects for what it has saved. All are kept until the end, so that no
    place is given away twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self._kept = 0
        self._steps: list[tuple[Any, Any, Any, Any]] = []
        self._values: dict[Any, _Value] = {}
        # Memory that was there before, that is made, and that is written to.
        self._outside: set[int] = set()
        self._inside: set[int] = set()
        self._written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run and record one operation."""
        kwargs = kwargs or {}
        if self.failed or func.namespace == 'profiler':
            return func(*args, **kwargs)
        taken = self._named(args), self._named(kwargs)
        out = func(*args, **kwargs)
        for value in _leaves(out):
            if isinstance(value, Tensor):
                if func.overloadpacket in _EMPTY:
                    # Filled in every epoch: its memory can be reused.
                    self._outside.update(_places([value]))
                    self._kept += value.untyped_storage().nbytes()
                self._made(value)
            elif value is not None:
                self.failed = True
        self._steps.append((func, *taken, self._named(out)))
        self._written.update(_places(_written(func, args, kwargs)))
        self.failed |= self._kept > MOST
        if self.failed:
            self._steps.clear()
            self._values.clear()
        return out

    def _made(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            self.failed = True
            return
        key = _key(tensor)
        if key not in self._values:
            place = tensor.untyped_storage().data_ptr()
            self._values[key] = _Value(tensor, place in self._outside)
            if place not in self._outside and place not in self._inside:
                self._inside.add(place)
                self._kept += tensor.untyped_storage().nbytes()

    def _named(self, value: Any) -> Any:
        # With values in place of tensors.
        if isinstance(value, Tensor):
            key = _key(value)
            if key not in self._values:
                self._values[key] = _Value(value, True)
                self._outside.update(_places([value]))
            return self._values[key]
        if isinstance(value, list | tuple):
            return [self._named(v) for v in value]
        if isinstance(value, dict):
            return {name: self._named(v) for name, v in value.items()}
        return value

    def program(self) -> Callable[[], None] | None:
        """Compile the recorded operations to a function, if possible."""
        if self.failed:
            return None
        steps = self._folded()
        if steps is None:
            return None
        lines, names, given = [], _Names(), {}
        last = {
            value: i
            for i, step in enumerate(steps)
            for value in _values(step[1:])
            if not value.constant
        }
        seen: set[_Value] = set()
        for i, (func, args, kwargs, out) in enumerate(steps):
            given[f'f{i}'] = func._op
            call = ', '.join(
                [names.of(v) for v in args]
                + [f'{name}={names.of(v)}' for name, v in kwargs.items()]
            )
            # A tensor that is written to has its name already.
            new = {v for v in _values(out) if not v.constant} - seen
            seen |= new
            left = f'{_target(out, new, names)} = ' if new else ''
            lines.append(f'    {left}f{i}({call})')
            used = _values((args, kwargs, out))
            over = {v for v in used if last.get(v) == i}
            if over:
                lines.append(f'    del {", ".join(map(names.of, over))}')
        source = '\n'.join(['def run():', *lines, '    return'])
        given.update(names.given)
        exec(compile(source, '<recorded epoch>', 'exec'), given)
        return given['run']

    def _folded(self) -> list[tuple[Any, Any, Any, Any]] | None:
        # Without operations that are constant or whose results are not used.
        fixed = {
            value
            for key, value in self._values.items()
            if value.constant and not self._written & _places([value.tensor])
        }
        steps, before = [], set[_Value]()
        for func, args, kwargs, out in self._steps:
            given, made = _values((args, kwargs)), _values(out)
            same = bool(given) and given <= fixed
            if _shape_of_values(func) and not same:
                return None
            if not _acts(func):
                if all(value.constant or value in before for value in made):
                    # Views of memory that stays where it is, or known ones.
                    fixed |= made if same else set()
                    continue
                places = _places([value.tensor for value in made])
                if same and not self._written & places:
                    for value in made:
                        value.constant = True
                    fixed |= made
                    continue
            before |= made
            steps.append((func, args, kwargs, out))
        kept, used = [], set[_Value]()
        for func, args, kwargs, out in reversed(steps):
            given = _values((args, kwargs))
            if _acts(func) or (_values(out) - given) & used:
                used |= given
                kept.append((func, args, kwargs, out))
        return kept[::-1]


class _Names:
    # Write values and objects into the source of a program.

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def of(self, value: Any) -> str:
        if value is None or type(value) in (bool, int):
            return repr(value)
        if isinstance(value, list):
            return f'[{", ".join(map(self.of, value))}]'
        name = self._names.get(id(value))
        if name is None:
            name = f'v{len(self._names)}'
            self._names[id(value)] = name
            self.given[name] = None
            if not isinstance(value, _Value):
                self.given[name] = value
            elif value.constant:
                self.given[name] = value.tensor
            else:
                del self.given[name]
        return name


def _target(out: Any, new: set[_Value], names: _Names) -> str:
    if isinstance(out, list):
        return f'({"".join(_target(v, new, names) + ", " for v in out)})'
    return names.of(out) if out in new else '_'


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _values(value: Any) -> set[_Value]:
    return {v for v in _leaves(value) if isinstance(v, _Value)}


def _key(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided:
        return id(tensor)
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


def _places(tensors: list[Tensor]) -> set[int]:
    return {
        t.untyped_storage().data_ptr()
        for t in tensors
        if t.layout == torch.strided
    }


def _written(func: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    if 'batch_norm' in func.name():
        # Its schema does not name the statistics that it writes.
        return [v for v in _leaves([args, kwargs]) if isinstance(v, Tensor)]
    found: list[Tensor] = []
    if not func._schema.is_mutable:
        return found
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [v for v in _leaves(given) if isinstance(v, Tensor)]
    return found


def _acts(func: Any) -> bool:
    # Whether an operation does more than to return something.
    return (
        func._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in func.tags
        or 'batch_norm' in func.name()
    )


def _shape_of_values(func: Any) -> bool:
    return bool(
        {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        & set(func.tags)
    )
