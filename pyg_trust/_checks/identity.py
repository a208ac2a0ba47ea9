"""One digest of a model beyond its weights: tensors, attributes and code.

By it certificates know their model, and ranks that they were given the same.
It covers parameters, buffers, hooks and attributes of all modules, the code of
classes and functions that are no part of a library, autocast, the default
dtype and the precision of float32 products. It does not cover globals that
code reads, objects written in C, files, networks, clocks, environment
variables, private attributes of libraries' objects, and library versions.
"""

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

__all__ = [
    'SpeaksOf',
    'check_process',
    'fingerprint_any',
    'identity',
    'identity_on',
]

_LIBRARIES = {'numpy', 'pyg_trust', 'scipy', 'torch', 'torch_geometric'}
_LIBRARIES |= {'torch_scatter', 'torch_sparse', *sys.stdlib_module_names}
_LIBRARIES -= {'__main__'}
# Attributes of every module that are its mode or are taken one by one.
_NOT_OF_IT = frozenset([*vars(Module()), '__weakref__', '__dict__'])
_NO_CODE = {'__annotations__', '__doc__', '__module__', '__firstlineno__'}
_NO_CODE |= {'__static_attributes__', *_NOT_OF_IT}
# Values whose text says all.
_PLAIN = (
    *(str, int, float, complex, bytes, type(None), type(...), slice, range),
    *(torch.dtype, torch.device, torch.Size, torch.layout),
    *(enum.Enum, np.generic),
)


def check_process() -> None:
    """Refuse global hooks and modes that change every module.

    Raises:
        ValueError: if any is there: what runs would be another model wherever
            they are not.
    """
    there = [
        f'{len(hooks)} in torch.nn.modules.module.{name}'
        for name in ('_global_forward_hooks', '_global_forward_pre_hooks')
        if (hooks := getattr(process, name))
    ]
    modes = _get_current_function_mode_stack()
    modes += _get_current_dispatch_mode_stack()
    # A device by default says where, not what.
    kinds = map(type, modes)
    there += [kind.__name__ for kind in kinds if kind is not DeviceContext]
    if there:
        raise ValueError(
            "'model' needs to run without hooks on all modules of the process "
            f'and outside of modes of torch (got {there[0]}): they can change '
            'what every model returns, here or where it is deployed; remove '
            'the hooks, or leave the mode, first'
        )


def _settings() -> list[str]:
    # Settings of the process that change the results of the same code.
    made = [str(torch.get_default_dtype())]
    for kind in ('cpu', 'cuda', 'xpu', 'mps'):
        known = torch.amp.is_autocast_available(kind)
        if known and torch.is_autocast_enabled(kind):
            made.append(f'autocast {kind} {torch.get_autocast_dtype(kind)}')
    for kind in ('cuda', 'mkldnn'):
        product = getattr(torch.backends, kind).matmul
        found = getattr(product, 'fp32_precision', 'none')
        # 'none' is as 'ieee'.
        made.append(f'products {kind} {found}'.replace('none', 'ieee'))
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

    model_sha256: str

    def speaks_of(
        self,
        model: Module,
        transform: Callable[..., Any] | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> bool:
        """Return whether a model is the certified one.

        By its tensors, attributes and code. Ask before deploying it. Files,
        clocks, and globals that the code reads, are not seen.

        Args:
            model (Module): the model.
            transform (callable, optional): the transform that was passed, if
                any. (default: :obj:`None`)
            forward (callable, optional): the ``forward`` that was passed, if
                any. (default: :obj:`None`)
        """
        check_instance('model', model, Module)
        for name, call in (('transform', transform), ('forward', forward)):
            if call is not None:
                check_callable(name, call)
        if not self.model_sha256:
            raise ValueError(
                'this certificate is of logits: it has seen no model'
            )
        check_process()
        return identity(model, transform, forward) == self.model_sha256


class _Walk:
    # Everything that is reached, as texts and tensors in a fixed order.

    def __init__(self) -> None:
        self.parts: list[Any] = []
        # Keeps seen objects alive, so that no address is used twice.
        self.seen: dict[int, tuple[int, Any]] = {}

    def take(self, name: str, value: Any) -> None:
        self.parts.append(name)
        if isinstance(value, _PLAIN):
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
        if isinstance(value, Tensor):
            self.parts += [str(value.layout), *value.shape]
            with torch.no_grad():
                self.parts += stored(value.detach())
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self.parts += [str(value.dtype), str(value.shape)]
            self.parts.append(value.tobytes().hex())
        elif isinstance(value, Data):
            self._mapping(value.to_dict())
        elif isinstance(value, Mapping):
            self._mapping(value)
        elif isinstance(value, set | frozenset):
            self._items(sorted(value, key=repr))
        elif isinstance(value, list | tuple | deque | np.ndarray):
            self._items(value)
        elif isinstance(value, functools.partial):
            self._items([value.func, value.args, value.keywords])
        elif isinstance(value, staticmethod | classmethod):
            self._items([value.__func__])
        elif isinstance(value, types.MethodType):
            self._items([value.__func__, value.__self__])
        elif isinstance(value, property):
            self._items([value.fget])
        elif isinstance(value, types.ModuleType):
            self.parts.append(value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, torch.Generator):
            self.parts.append(value.get_state())
        elif isinstance(value, random.Random):
            self._items(value.getstate())
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self.parts.append(value.co_code.hex())
            self.parts.append(repr((value.co_names, value.co_varnames)))
            self._items(value.co_consts)
        else:
            self._object(value)

    def _items(self, values: Any) -> None:
        for number, item in enumerate(values):
            self.take(str(number), item)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        for key, item in value.items():
            plain = isinstance(key, _PLAIN)
            self.take(repr(key) if plain else _named(key), item)

    def _object(self, value: Any) -> None:
        kind, held = type(value), dict(getattr(value, '__dict__', None) or {})
        if callable(value):
            # A function written in C has no source: use its name.
            self.parts.append(_named(value))
        self._class(kind)
        if isinstance(value, Module):
            for name in ('_parameters', '_buffers', '_modules'):
                self.take(name, dict(held[name]))
        for part in kind.__mro__:
            slots = vars(part).get('__slots__', ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    held[name] = getattr(value, name)
        for name, item in sorted(held.items()):
            if name.endswith('_hooks') and isinstance(item, Mapping):
                # Handles of hooks are numbered by the process.
                self.take(name, list(item.values()))
            elif name not in _NOT_OF_IT and not (
                # Caches of libraries' objects.
                _is_library(kind) and name.startswith('_')
            ):
                self.take(name, item)

    def _class(self, kind: type) -> None:
        for part in kind.__mro__:
            if _is_library(part):
                self.parts.append(_named(part))
                continue
            self.parts.append(f'class {part.__qualname__}')
            for name, item in sorted(vars(part).items()):
                if name not in _NO_CODE:
                    self.take(name, item)

    def _function(self, value: types.FunctionType) -> None:
        if _is_library(value):
            self.parts.append(_named(value))
            return
        self._items([value.__code__, value.__defaults__, value.__kwdefaults__])
        for cell in value.__closure__ or ():
            try:
                self.take('closure', cell.cell_contents)
            except ValueError:
                self.parts.append('an empty cell')


def _is_library(what: Any) -> bool:
    name = getattr(what, '__module__', None) or 'builtins'
    return name.split('.')[0] in _LIBRARIES


def _named(what: Any) -> str:
    name = getattr(what, '__qualname__', type(what).__qualname__)
    return f'{getattr(what, "__module__", "")}.{name}'
