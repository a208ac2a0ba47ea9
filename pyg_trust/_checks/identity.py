r"""Digests that identify a model or value, beyond its weights.

Certificates say by it which model they speak of, and ranks whether they were
given the same.

A model is its tensors, its Python attributes and its code. A flag that is
switched after the certificate was made, ``model.flag = True``, leaves
``state_dict()`` as it was and can make another function of it. So a
certificate holds a fingerprint of all that ``identity`` can see.

**What it covers.** Of a module and all modules in it: parameters, buffers
(the persistent ones and others), hooks, and the attributes in ``__dict__``:
plain values, tensors, arrays, containers and objects of such, functions with
their code, defaults, closures and the plain values and functions among their
globals; autocast, the default dtype and the precision of products of float32
(TF32) of the process. Of classes: the name, and the code and plain values of
those that are no part of torch, PyG or this package (of which it takes public
attributes, those that torch's layers and explainers compute with, and methods
that an attribute hides: others are caches).

**What it does not cover.** Objects that are written in C and can't be
pickled, files, networks, clocks and environment variables that the code reads,
attributes of modules that it imports, the versions of libraries (they are in
the origin), and hooks of the whole process that are registered later
(``check_process`` refuses what is there).
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
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust.graph import CSRGraph

_LIBRARIES = frozenset(
    [
        'numpy',
        'pyg_trust',
        'scipy',
        'torch',
        'torch_geometric',
        'torch_scatter',
        'torch_sparse',
    ]
)
# Attributes of every module, as its mode: certificates hold in evaluation.
_NOT_OF_IT = frozenset([*vars(Module()), '__weakref__', '__dict__'])
_OF_IT = (
    '_parameters',
    '_buffers',
    '_modules',
    '_forward_hooks',
    '_forward_hooks_with_kwargs',
    '_forward_pre_hooks',
    '_forward_pre_hooks_with_kwargs',
)
_OF_MASKS = ('_apply_sigmoid', '_edge_mask', '_explain', '_loop_mask')
_PLAIN = (str, int, float, complex, bool, bytes, type(None), type(...))
_EXACT = (torch.dtype, torch.device, torch.Size, torch.layout, slice, range)


def check_process() -> None:
    """Refuse global hooks and modes that change every module.

    Raises:
        ValueError: if any is there: what runs would be another model wherever
            they are not.
    """
    for name in (
        '_global_forward_hooks',
        '_global_forward_pre_hooks',
    ):
        hooks = getattr(process, name)
        if hooks:
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
    """Digest a model by SHA-256: tensors, attributes and code.

    Args:
        model (Module): the model.
        *calls (callable, optional): callables that are applied with the model,
            such as a transform.

    Returns:
        str: 64 hexadecimal digits.
    """
    check_instance('model', model, Module)
    for call in calls:
        if call is not None:
            check_callable('calls', call)
    walk = _Walk()
    walk.take('model', model)
    for number, call in enumerate(calls):
        if call is not None:
            walk.take(f'call {number}', call)
    return fingerprint(*walk.parts, *_settings())


def fingerprint_any(value: Any) -> str:
    """Digest any value by SHA-256: tensors, attributes and code.

    The same in every process that has the same.

    Returns:
        str: 64 hexadecimal digits.

    Example:
        >>> fingerprint_any([1, 2]) == fingerprint_any([1, 3])
        False
    """
    walk = _Walk()
    walk.take('value', _opened(value))
    return fingerprint(*walk.parts)


def reached(model: Module) -> list[Any]:
    """Return all objects reachable from a model's attributes and code."""
    walk = _Walk()
    walk.take('model', model)
    return [value for _, value in walk.seen.values()]


def _opened(value: Any) -> Any:
    # The tensors of a Data object are not among its attributes.
    if isinstance(value, Data):
        return {'graph': value.to_dict()}
    if isinstance(value, list | tuple):
        return [_opened(item) for item in value]
    return value


#: What no certificate covers of the model it is about.
class SpeaksOf:
    """Mixin: certificate that identifies its model."""

    model_digest: str

    def speaks_of(
        self,
        model: Module,
        transform: Callable[..., Any] | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> bool:
        """Tell whether a model is the certified one.

        By its tensors, attributes and code (``identity``, which says
        what it can't see). Ask before deploying it.

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
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self.parts.append(f'{type(value).__name__} {value!r}')
            return
        if isinstance(value, (*_EXACT, enum.Enum)):
            self.parts.append(f'{type(value).__name__} {value}')
            return
        known = self.seen.get(id(value))
        if known is not None:
            self.parts.append(f'again {known[0]}')
            return
        # Skip the identity of constants, which the interpreter chooses.
        if not isinstance(value, tuple | frozenset):
            self.seen[id(value)] = (len(self.seen), value)
        self.parts.append(_named(type(value)))
        self._take(value)

    def _take(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                self._items(value.tolist())
            else:
                self.parts += [str(value.dtype), str(value.shape)]
                self.parts.append(value.tobytes().hex())
        elif isinstance(value, np.generic):
            self.parts.append(repr(value))
        elif isinstance(value, Module):
            self._module(value)
        elif isinstance(value, Data):
            self.take('graph', value.to_dict())
        elif isinstance(value, Mapping):
            for key, item in value.items():
                plain = isinstance(key, _PLAIN)
                self.take(repr(key) if plain else _named(key), item)
        elif isinstance(value, list | tuple):
            self._items(value)
        elif isinstance(value, set | frozenset):
            self._items(sorted(value, key=repr))
        elif isinstance(value, functools.partial):
            self._items([value.func, value.args, value.keywords])
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._items([value.__func__, value.__self__])
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, staticmethod | classmethod):
            self.take('of', value.__func__)
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
        else:
            self._object(value)

    def _items(self, values: Any) -> None:
        for number, item in enumerate(values):
            self.take(str(number), item)

    def _tensor(self, value: Tensor) -> None:
        with torch.no_grad():
            if value.layout == torch.strided:
                self.parts.append(value.detach().resolve_conj().resolve_neg())
            elif value.layout == torch.sparse_csr:
                self._items(
                    [value.crow_indices(), value.col_indices(), value.values()]
                )
            else:
                held = value.to_sparse_coo().coalesce()
                self._items([held.indices(), held.values()])
            self.parts.append(str(tuple(value.shape)))

    def _module(self, value: Module) -> None:
        self._class(type(value))
        held = vars(value)
        for name in _OF_IT:
            kept = held.get(name) or {}
            # Handles of hooks are numbered by the process.
            hooks = name.endswith(('hooks', 'kwargs'))
            self.take(name, list(kept.values()) if hooks else dict(kept))
        self._attributes(held, _library(type(value)), type(value))

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
        library = _library(kind)
        if library:
            kept = (Tensor, np.ndarray, list, tuple, dict, set, *_PLAIN)
            held = {k: v for k, v in held.items() if isinstance(v, kept)}
            if not hasattr(value, '__dict__'):
                self._written(value)
        self._attributes(held, library, kind)

    def _written(self, value: Any) -> None:
        # Describe objects written in C (queues, counters, iterators, patterns)
        # by what pickle would make them of.
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            made = value.__reduce_ex__(2) if reduce is None else reduce(value)
        # Locks, files and others that are of this process alone.
        except Exception:
            return
        made = made if isinstance(made, tuple) else (made,)
        for number, item in enumerate(made):
            # Items come as iterators of their own.
            self.take(str(number), item if number < 3 else list(item or ()))

    def _attributes(
        self, held: Mapping[str, Any], library: bool, kind: type
    ) -> None:
        for name in sorted(held):
            if name in _NOT_OF_IT:
                continue
            item = held[name]
            if name.endswith('_hooks') and isinstance(item, Mapping):
                # Handles of hooks are numbered by the process.
                self.take(name, list(item.values()))
                continue
            if (
                library
                and name.startswith('_')
                and not _is_read(kind, name, item)
            ):
                continue
            self.take(name, item)

    def _class(self, kind: type) -> None:
        for part in kind.__mro__:
            if _library(part):
                self.parts.append(_named(part))
                continue
            self.parts.append(f'class {part.__qualname__}')
            for name, item in sorted(vars(part).items()):
                if isinstance(item, _OF_CLASS) and name not in _NO_CODE:
                    self.take(name, item)

    def _function(self, value: types.FunctionType) -> None:
        if _library(value):
            self.parts.append(_named(value))
            return
        self._code(value.__code__)
        self.take('defaults', value.__defaults__)
        self.take('kwdefaults', value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                self.take('closure', cell.cell_contents)
            except ValueError:
                self.parts.append('an empty cell')
        for name in _names(value.__code__):
            found = value.__globals__.get(name, _MISSING)
            if isinstance(found, _READ):
                self.take(f'global {name}', found)

    def _code(self, code: types.CodeType) -> None:
        self.parts.append(code.co_code.hex())
        self.parts.append(repr((code.co_names, code.co_varnames)))
        for item in code.co_consts:
            if isinstance(item, frozenset):
                item = sorted(item, key=repr)
            self.take('constant', item)


_MISSING = object()
_NO_CODE = (
    '__annotations__',
    '__doc__',
    '__firstlineno__',
    '__module__',
    '__static_attributes__',
)
_OF_CLASS = (
    *_PLAIN,
    types.FunctionType,
    staticmethod,
    classmethod,
    property,
    Tensor,
    list,
    tuple,
    dict,
    set,
    frozenset,
)
_READ = (
    *_PLAIN,
    types.FunctionType,
    type,
    CSRGraph,
    Data,
    Module,
    Tensor,
    np.ndarray,
    np.generic,
    bytearray,
    deque,
    list,
    tuple,
    dict,
    set,
)


def _names(code: types.CodeType) -> list[str]:
    # The names of all globals that a function and its inner functions read.
    found = set(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            found.update(_names(item))
    return sorted(found)


def _library(what: Any) -> bool:
    name = getattr(what, '__module__', None) or 'builtins'
    root = name.split('.')[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names - {'__main__'}


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
    kept = (Tensor, list, tuple, *_PLAIN)
    return kind.__module__.split('.')[0] == 'torch' and isinstance(item, kept)


def _named(what: Any) -> str:
    name = getattr(what, '__qualname__', type(what).__qualname__)
    return f'{getattr(what, "__module__", "")}.{name}'


def identity_on(model: Module, graphs: Sequence[Data]) -> str:
    """Digest a model as by ``identity``, and the graphs it is used on."""
    parts: list[Any] = [identity(model)]
    for graph in graphs:
        parts.append(int(graph.num_nodes or 0))
        # All attributes that a transform or 'forward' may read: no labels, no
        # masks.
        for name, value in sorted(graph.to_dict().items()):
            if name != 'y' and not name.endswith('_mask'):
                parts += [
                    name,
                    value if isinstance(value, Tensor) else repr(value),
                ]
    return fingerprint(*parts)
