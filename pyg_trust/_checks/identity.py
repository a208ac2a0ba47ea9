r"""One digest of a model beyond its weights: tensors, attributes and code.

Certificates say by it which model they are of, and ranks whether they were
given the same. A flag that is switched after a certificate was made,
``model.flag = True``, leaves ``state_dict()`` as it was and can make another
function of the model; so the digest is of all that can be reached from it.

**Covered.** Of all modules: parameters, buffers, hooks and attributes (values,
tensors, arrays, containers, objects, functions with code, defaults, closures
and the globals that they read); of classes that are no part of a library their
code; autocast, the default dtype and the precision of float32 products.

**Not covered.** Objects written in C that can't be pickled, files, networks,
clocks and environment variables that code reads, attributes of imported
modules, private caches of libraries' objects, and the versions of libraries,
which are in the origin of a report.
"""

import copyreg
import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as process
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch_geometric.data import Data

from pyg_trust._checks import check_callable, check_instance
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust.graph import CSRGraph

__all__ = [
    'SpeaksOf',
    'check_process',
    'fingerprint_any',
    'identity',
    'identity_on',
]

_LIBRARIES = 'numpy pyg_trust scipy torch torch_geometric torch_scatter '
_LIBRARIES += 'torch_sparse'
_HOOKS = tuple(
    f'_forward_{kind}hooks{end}'
    for kind in ('', 'pre_')
    for end in ('', '_with_kwargs')
)
# Attributes of every module that are its mode or are taken one by one.
_NOT_OF_IT = frozenset([*vars(Module()), '__weakref__', '__dict__'])
_OF_MASKS = ('_apply_sigmoid', '_edge_mask', '_explain', '_loop_mask')
_NO_CODE = (
    *('__annotations__', '__doc__', '__module__'),
    *('__firstlineno__', '__static_attributes__'),
)
_PLAIN = (str, int, float, complex, bool, bytes, type(None), type(...))
_EXACT = (torch.dtype, torch.device, torch.Size, torch.layout, slice, range)
_KEPT = (Tensor, np.ndarray, list, tuple, dict, set, *_PLAIN)
# What is taken of the globals that a function reads, and of a class.
_READ = (
    *(*_KEPT, np.generic, frozenset, bytearray, deque, CSRGraph, Data),
    *(Module, types.FunctionType, staticmethod, classmethod, property),
)
_MISSING = object()


def check_process() -> None:
    """Refuse global hooks and modes that change every module.

    Raises:
        ValueError: if any is there: what runs would be another model wherever
            they are not.
    """
    for name in ('_global_forward_hooks', '_global_forward_pre_hooks'):
        if hooks := getattr(process, name):
            raise ValueError(
                "'model' needs to run without hooks on all modules of the "
                f'process (got {len(hooks)} in torch.nn.modules.module.'
                f'{name}): they can change what every model returns, here or '
                'where it is deployed; remove them first'
            )
    # A device by default says where, not what.
    for mode in (
        *_get_current_function_mode_stack(),
        *_get_current_dispatch_mode_stack(),
    ):
        if type(mode) is not DeviceContext:
            raise ValueError(
                "'model' needs to run outside of modes of torch (got "
                f'{type(mode).__name__}): they can change what every model '
                'returns, here or where it is deployed; leave it first'
            )


def _settings() -> list[str]:
    # Settings of the process that change the results of the same code.
    usual = torch.get_default_dtype()
    made = [] if usual == torch.float32 else [f'by default {usual}']
    for kind in ('cpu', 'cuda', 'xpu', 'mps'):
        known = torch.amp.is_autocast_available(kind)
        if known and torch.is_autocast_enabled(kind):
            made.append(f'autocast {kind} {torch.get_autocast_dtype(kind)}')
    # Products of float32 in TF32 or bfloat16; 'none' is as 'ieee'.
    for kind in ('cuda', 'mkldnn'):
        product = getattr(torch.backends, kind).matmul
        found = getattr(product, 'fp32_precision', 'none')
        if found not in ('none', 'ieee'):
            made.append(f'products {kind} {found}')
    return made


def identity(model: Module, *calls: Callable[..., Any] | None) -> str:
    """Digest a model by SHA-256: tensors, attributes and code."""
    check_instance('model', model, Module)
    walk = _Walk()
    walk.take('model', model)
    for number, call in enumerate(calls):
        if call is not None:
            check_callable('calls', call)
            walk.take(f'call {number}', call)
    return fingerprint(*walk.parts, *_settings())


def identity_on(model: Module, graphs: Sequence[Data]) -> str:
    """Digest a model as by ``identity``, and the graphs it is used on.

    Of these all that a transform or 'forward' may read: no labels, no masks.
    """
    parts: list[Any] = [identity(model)]
    for graph in graphs:
        parts.append(int(graph.num_nodes or 0))
        for name, value in sorted(graph.to_dict().items()):
            if name != 'y' and not name.endswith('_mask'):
                held = value if isinstance(value, Tensor) else repr(value)
                parts += [name, held]
    return fingerprint(*parts)


def fingerprint_any(value: Any) -> str:
    """Digest any value by SHA-256, in every process alike.

    Example:
        >>> fingerprint_any([1, 2]) == fingerprint_any([1, 3])
        False
    """
    walk = _Walk()
    walk.take('value', value)
    return fingerprint(*walk.parts)


class SpeaksOf:
    """Mixin: certificate that identifies its model."""

    model_digest: str

    def speaks_of(
        self,
        model: Module,
        transform: Callable[..., Any] | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> bool:
        """Return whether a model is the certified one.

        By its tensors, attributes and code. Ask before deploying it. Files,
        clocks and attributes of modules that the code imports are not seen.

        Args:
            model (Module): the model.
            transform (callable, optional): the transform that was passed, if
                any. (default: :obj:`None`)
            forward (callable, optional): the ``forward`` that was passed, if
                any. (default: :obj:`None`)

        Raises:
            TypeError: on a wrong type.
            ValueError: if logits were certified, and no model; or if there
                are hooks on all modules of the process.
        """
        check_instance('model', model, Module)
        for name, call in (('transform', transform), ('forward', forward)):
            if call is not None:
                check_callable(name, call)
        if not self.model_digest:
            raise ValueError(
                'this certificate is of logits: it has seen no model'
            )
        check_process()
        return identity(model, transform, forward) == self.model_digest


class _Walk:
    # Everything that is reached, as texts and tensors in a fixed order.

    def __init__(self) -> None:
        self.parts: list[Any] = []
        # Keeps seen objects alive, so that no address is used twice.
        self.seen: dict[int, tuple[int, Any]] = {}

    def take(self, name: str, value: Any) -> None:
        self.parts.append(name)
        if isinstance(value, (*_EXACT, enum.Enum)):
            self.parts.append(f'{type(value).__name__} {value}')
        elif isinstance(value, (*_PLAIN, np.generic)):
            self.parts.append(f'{type(value).__name__} {value!r}')
        elif id(value) in self.seen:
            self.parts.append(f'again {self.seen[id(value)][0]}')
        else:
            # Of constants the interpreter chooses whether they are the same.
            if not isinstance(value, tuple | frozenset):
                self.seen[id(value)] = (len(self.seen), value)
            self.parts.append(_named(type(value)))
            self._take(value)

    def _take(self, value: Any) -> None:
        kinds: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
            (Tensor, self._tensor),
            (np.ndarray, self._array),
            (Module, self._module),
            (Data, lambda x: self._mapping(x.to_dict())),
            (Mapping, self._mapping),
            (list | tuple, self._items),
            (set | frozenset, lambda x: self._items(sorted(x, key=repr))),
            (
                functools.partial,
                lambda x: self._items([x.func, x.args, x.keywords]),
            ),
            (types.FunctionType, self._function),
            (
                types.MethodType | staticmethod | classmethod,
                lambda x: self._items(
                    [x.__func__, getattr(x, '__self__', None)]
                ),
            ),
            (types.CodeType, self._code),
            (property, lambda x: self._items([x.fget])),
            (types.ModuleType, lambda x: self.parts.append(x.__name__)),
            (type, self._class),
            (torch.Generator, lambda x: self.parts.append(x.get_state())),
            (random.Random, lambda x: self._items(x.getstate())),
            (object, self._object),
        )
        next(take for kind, take in kinds if isinstance(value, kind))(value)

    def _items(self, values: Any) -> None:
        for number, item in enumerate(values):
            self.take(str(number), item)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        for key, item in value.items():
            plain = isinstance(key, _PLAIN)
            self.take(repr(key) if plain else _named(key), item)

    def _tensor(self, value: Tensor) -> None:
        self.parts += [str(value.layout), *value.shape]
        with torch.no_grad():
            self.parts += stored(value.detach())

    def _array(self, value: np.ndarray) -> None:
        if value.dtype.hasobject:
            self._items(value.tolist())
        else:
            self.parts += [str(value.dtype), str(value.shape)]
            self.parts.append(value.tobytes().hex())

    def _module(self, value: Module) -> None:
        held = vars(value)
        self._class(type(value))
        for name in ('_parameters', '_buffers', '_modules'):
            self.take(name, dict(held.get(name) or {}))
        empty: dict[str, Any] = {name: {} for name in _HOOKS}
        self._attributes({**empty, **held}, type(value))

    def _object(self, value: Any) -> None:
        kind = type(value)
        if callable(value):
            # A function written in C has no source: use its name.
            self.parts.append(_named(value))
        self._class(kind)
        held = dict(getattr(value, '__dict__', None) or {})
        for part in kind.__mro__:
            slots = vars(part).get('__slots__', ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    held[name] = getattr(value, name)
        if _library(kind):
            held = {k: v for k, v in held.items() if isinstance(v, _KEPT)}
            if not hasattr(value, '__dict__'):
                self._written(value)
        self._attributes(held, kind)

    def _written(self, value: Any) -> None:
        # Describe objects written in C (queues, counters, iterators, patterns)
        # by what pickle would make them of.
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            made = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception:  # locks, files and others of this process alone
            return
        made = made if isinstance(made, tuple) else (made,)
        for number, item in enumerate(made):
            # Items come as iterators of their own.
            self.take(str(number), item if number < 3 else list(item or ()))

    def _attributes(self, held: Mapping[str, Any], kind: type) -> None:
        library = _library(kind)
        for name in sorted(held):
            item = held[name]
            if name in _HOOKS or (
                name.endswith('_hooks')
                and isinstance(item, Mapping)
                and name not in _NOT_OF_IT
            ):
                # Handles of hooks are numbered by the process.
                self.take(name, list(item.values()))
            elif name not in _NOT_OF_IT and not (
                library
                and name.startswith('_')
                and not _is_read(kind, name, item)
            ):
                self.take(name, item)

    def _class(self, kind: type) -> None:
        for part in kind.__mro__:
            if _library(part):
                self.parts.append(_named(part))
                continue
            self.parts.append(f'class {part.__qualname__}')
            for name, item in sorted(vars(part).items()):
                if isinstance(item, _READ) and name not in _NO_CODE:
                    self.take(name, item)

    def _function(self, value: types.FunctionType) -> None:
        if _library(value):
            self.parts.append(_named(value))
            return
        self._code(value.__code__)
        self._items([value.__defaults__, value.__kwdefaults__])
        for cell in value.__closure__ or ():
            try:
                self.take('closure', cell.cell_contents)
            except ValueError:
                self.parts.append('an empty cell')
        for name in _names(value.__code__):
            found = value.__globals__.get(name, _MISSING)
            if isinstance(found, (*_READ, type)):
                self.take(f'global {name}', found)

    def _code(self, code: types.CodeType) -> None:
        self.parts.append(code.co_code.hex())
        self.parts.append(repr((code.co_names, code.co_varnames)))
        self._items(code.co_consts)


def _names(code: types.CodeType) -> list[str]:
    # The names of all globals that a function and its inner functions read.
    found = set(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            found.update(_names(item))
    return sorted(found)


def _library(what: Any) -> bool:
    name = getattr(what, '__module__', None) or 'builtins'
    known = {*_LIBRARIES.split(), *sys.stdlib_module_names} - {'__main__'}
    return name.split('.')[0] in known


def _is_read(kind: type, name: str, item: Any) -> bool:
    # Whether a private attribute of a library's object is no cache.
    if isinstance(item, types.FunctionType | types.MethodType):
        return True
    if not issubclass(kind, Module):
        return False
    # Methods that an attribute hides, and masks of explainers.
    if hasattr(Module, name) or name in _OF_MASKS:
        return True
    # An LSTM computes with _flat_weights, not with its parameters.
    return kind.__module__.split('.')[0] == 'torch' and isinstance(item, _KEPT)


def _named(what: Any) -> str:
    name = getattr(what, '__qualname__', type(what).__qualname__)
    return f'{getattr(what, "__module__", "")}.{name}'
