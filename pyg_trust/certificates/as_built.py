"""Checks that a model runs the code that its certificate is about.

A certificate of PageRank holds for what runs, not for what a class is called.
Python lets a name be replaced in many places: in a subclass, in a mixin that
stands behind the class in the order of lookup, in the instance, in the class
itself, in its metaclass, in a module of the package. So nothing is excused
for not being known: all that scoring looks up has to be the object, with the
code, that was there when this package was imported. What stays free are the
logits, which see no edge, and names that the package does not know.
"""

import inspect
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch.nn import Module
from torch_geometric.data import Data, HeteroData
from torch_geometric.inspector import Inspector
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation, SumAggregation
from torch_geometric.typing import SparseTensor

from pyg_trust._checks.identity import reached
from pyg_trust.certificates import diffusion
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import ppnp
from pyg_trust.nn.ppnp import (
    PPNP,
    FeaturePropagation,
    LabelPropagation,
    PageRankDiffusion,
)

# Methods that a class may define: they make the logits or the model, or print
# it.
_FREE = frozenset(
    [
        '__abstractmethods__',
        '__annotations__',
        '__class_getitem__',
        '__doc__',
        '__init__',
        '__init_subclass__',
        '__module__',
        '__new__',
        '__repr__',
        '__str__',
        '_abc_impl',
        'extra_repr',
        'logits',
        'reset_parameters',
    ]
)
_STATE_HOOKS = (
    '_state_dict_hooks',
    '_state_dict_pre_hooks',
    '_load_state_dict_pre_hooks',
    '_load_state_dict_post_hooks',
    '_backward_hooks',
    '_backward_pre_hooks',
)
# Classes whose code, and the code that it calls, is certified.
_FAMILY = (
    FeaturePropagation,
    LabelPropagation,
    PPNP,
    PageRankDiffusion,
    MessagePassing,
    Module,
)
_HELPERS = (SumAggregation, Aggregation, Inspector, *CSRGraph.__mro__[:-1])
_MODULES = (ppnp, diffusion)
_GRAPHS = (Data, HeteroData, CSRGraph, SparseTensor)
_MISSING = object()
# Read the MRO as 'type' does: a metaclass may override it.
_MRO = type.__dict__['__mro__'].__get__
_VARS = type.__dict__['__dict__'].__get__


def _code(value: Any) -> tuple[Any, ...]:
    # A function can keep its name and place and do something else.
    value = getattr(value, '__func__', value)
    if isinstance(value, property):
        return (value, *map(_code, (value.fget, value.fset)))
    if not isinstance(value, types.FunctionType):
        return (value,)
    return value, value.__code__, value.__defaults__, value.__kwdefaults__


def _held(names: Any) -> dict[str, tuple[Any, ...]]:
    return {name: (value, _code(value)) for name, value in names.items()}


_BUILT = {kind: _held(_VARS(kind)) for kind in (*_FAMILY, *_HELPERS)}
_CALLED = {
    module: _held({k: v for k, v in vars(module).items() if callable(v)})
    for module in _MODULES
}
# Attributes of instances, with their types; no class may define one.
_PLAIN = {
    'K': (int, type(None)),
    'add_self_loops': (bool,),
    'aggr': (str,),
    'alpha': (float,),
    'flow': (str,),
    'normalization': (str,),
}
_REACHED = frozenset(
    {
        *_PLAIN,
        *vars(PageRankDiffusion()),
        'aggr_module',
        'layers',
        '__getattr__',
        *vars(object),
        *(name for names in _BUILT.values() for name in names),
    }
    - _FREE
)


def check_as_built(model: Any) -> None:
    """Refuse a model that may run code other than this package's class.

    Raises:
        TypeError: if the model has logits but diffuses them otherwise, or an
            attribute is of another type than its class gives it.
        ValueError: if there are hooks, or it is set up as no PageRank.
    """
    kind = type(model)
    classes = _MRO(kind)
    if PageRankDiffusion not in classes:
        raise TypeError(
            "'model' needs to be linear in PageRank for an exact certificate "
            '(pyg_trust.nn.PPNP, LabelPropagation, FeaturePropagation) or '
            f'logits (got {kind.__name__})'
        )
    base = next(k for k in classes if k in _FAMILY)
    if base is PageRankDiffusion:
        raise TypeError(
            "'model' needs logits: a PPNP, LabelPropagation or "
            f'FeaturePropagation (got {kind.__name__})'
        )
    layers = LabelPropagation in classes and vars(model).get(
        'layers', _MISSING
    )
    if layers not in (False, None):
        raise TypeError(
            "'model' needs to be linear in PageRank: "
            'LabelPropagation(num_classes=...) (got layers, num_layers='
            f'{vars(model).get("num_layers")})'
        )
    for name, where in _changed(model, classes, base):
        raise TypeError(
            f"'model' needs the {name!r} of {base.__name__}, which the "
            f'certificate describes (got one of its own, {where})'
        )
    held = vars(model)
    for name, types_ in _PLAIN.items():
        if type(held.get(name, _MISSING)) not in types_:
            wanted = ' or '.join(t.__name__ for t in types_)
            actual = type(held.get(name)).__name__
            raise TypeError(
                f"'{name}' needs to be of type {wanted}, as the "
                f"'model' was made with (got {actual})"
            )
    _check_values(model)
    _check_hooks(model)
    _check_hooks(model.aggr_module)


def _changed(
    model: PageRankDiffusion, classes: tuple[type, ...], base: type
) -> Iterator[tuple[str, str]]:
    # List everything that is not as it was built, and where it is.
    for kind in classes:
        # A metaclass can answer for its classes.
        if type(kind) is not type:
            yield '__class__', f'by a metaclass, {type(kind).__name__}'
        if kind is object:
            continue
        if kind in _FAMILY:
            yield from _patched(kind)
            continue
        for name in _VARS(kind):
            value = _VARS(kind)[name]
            slot = isinstance(value, types.GetSetDescriptorType)
            if name in ('__dict__', '__weakref__') and slot:
                continue
            if name in _REACHED and value is not inspect.getattr_static(
                base, name, _MISSING
            ):
                yield name, f'in {kind.__name__}'
    for kind in _HELPERS:
        yield from _patched(kind)
    for module, names in _CALLED.items():
        for name, (value, code) in names.items():
            current = vars(module).get(name, _MISSING)
            if current is not value or _code(current) != code:
                yield name, f'in the module {module.__name__}'
    yield from _shadowed(model)
    inner = vars(model).get('_modules', {}).get('aggr_module')
    if vars(model).get('aggr') in ('add', 'sum'):
        if type(inner) is not SumAggregation:
            yield 'aggr_module', type(inner).__name__
        else:
            yield from _shadowed(inner)


def _patched(kind: type) -> Iterator[tuple[str, str]]:
    now, old = _VARS(kind), _BUILT[kind]
    for name in {*now, *old}:
        # torch.compile replaces this one, which no call looks up.
        if name not in _REACHED or (kind, name) == (Module, '__setstate__'):
            continue
        value, code = old.get(name, (_MISSING, ()))
        current = now.get(name, _MISSING)
        if current is not value or _code(current) != code:
            yield name, f'set in {kind.__name__}'


def _shadowed(part: Any) -> Iterator[tuple[str, str]]:
    # Attributes of the instance that hide one of the class.
    for name, value in vars(part).items():
        static = inspect.getattr_static(type(part), name, _MISSING)
        if static is _MISSING or name in _FREE or value is static:
            continue
        # Explainers, when done, set the class's own method on the instance.
        bound = isinstance(value, types.MethodType)
        if not (bound and value.__func__ is static and value.__self__ is part):
            yield name, f'in an attribute of this {type(part).__name__}'


def _check_values(model: Any) -> None:
    diffusion.check_alpha(model.alpha)
    if model.K is not None and model.K < 0:
        raise ValueError(f"'K' needs to be at least 0 (got {model.K})")
    if model.normalization not in ('rw', 'sym'):
        raise ValueError(
            "'normalization' needs to be 'rw' or 'sym' (got "
            f'{model.normalization!r})'
        )
    if model.flow != 'target_to_source':
        raise ValueError(
            "'model' needs flow='target_to_source', along out-edges (got "
            f'{model.flow!r})'
        )
    if model.aggr not in ('add', 'sum'):
        raise ValueError(
            f"'model' needs aggr='add' to be PageRank (got {model.aggr!r})"
        )
    fresh = PageRankDiffusion()
    for name in (
        '_edge_user_args',
        '_fused_user_args',
        '_user_args',
        'fuse',
        'node_dim',
    ):
        if vars(model).get(name) != vars(fresh)[name]:
            raise ValueError(
                f"'model' needs {name!r} as PageRank has it "
                f'({vars(fresh)[name]!r}, got {vars(model).get(name)!r})'
            )
    seen, known = vars(model).get('inspector'), fresh.inspector
    if (
        type(seen) is not type(known)
        or {*vars(seen)} != {*vars(known)}
        or {
            name: seen._signature_dict.get(name)
            for name in ('message', 'aggregate', 'update')
        }
        != {
            name: known._signature_dict[name]
            for name in ('message', 'aggregate', 'update')
        }
    ):
        raise ValueError(
            "'model' needs the 'inspector' of PageRank (got another)"
        )
    for name, usual in (('_explain', False), ('_decomposed_layers', 1)):
        value = vars(model).get(name, usual)
        if value not in (usual, None):
            raise ValueError(
                f"'model' needs to be called as it is deployed, without "
                f'{name.strip("_")!r} (got {value!r})'
            )


def _check_hooks(part: Module) -> None:
    # A hook may act in perturbed graphs alone, and leave this one's scores.
    for name, hooks in vars(part).items():
        if not name.endswith('_hooks') or name in _STATE_HOOKS:
            continue
        if type(hooks) not in (dict, OrderedDict) or hooks:
            raise ValueError(
                "'model' needs to return the PageRank diffusion of its "
                'logits with no hook on it, which could act in a perturbed '
                f'graph alone (got {hooks!r:.80} in {name!r})'
            )


def check_blind(model: Module, edge_index: Any) -> None:
    """Refuse logits that refer to a graph: they could follow its changes."""
    for value in reached(model):
        if value is edge_index and edge_index is not None:
            source = "the 'edge_index' of the data"
        elif isinstance(value, _GRAPHS):
            source = type(value).__name__
        else:
            continue
        raise ValueError(
            "'model' needs logits that do not depend on the edges (got "
            f'{source} among what its code and attributes reach): if that '
            'graph changes, so may the logits; store the numbers that it '
            'needs as a tensor'
        )
