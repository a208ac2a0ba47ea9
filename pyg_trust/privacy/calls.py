"""Calls of a model on a private batch, as a whole and unit by unit.

A loop calls the model with attributes of the batch that the loader gave. A
:class:`Call` keeps their names in place of the tensors, so that the same call
can be made on another batch: one of made-up rows, or one of a single unit.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_with_path
from torch_geometric.data import Data, HeteroData

from pyg_trust.loader.schema import FlatBatch, Schema

__all__ = [
    'Call',
    'Target',
    'Units',
    'arguments_of',
    'features_of',
    'find_call',
    'marks_of',
    'with_gradients',
]

Forward = Callable[[nn.Module, Data], Tensor]
# Arguments that PyG's layers name after how many subgraphs or nodes there are.
_COUNTS = {
    **dict.fromkeys(('batch_size', 'num_graphs', 'size'), '#units'),
    'num_nodes': '#nodes',
}
_MISSING = object()


class Units:
    """The units of a batch: the unit of each node, and of each row of outputs.

    Args:
        batch (Data): a batch, as one graph.
        owner (Tensor): int64, ``[num_nodes]``, the unit of each node.
        count (int): how many units there are.

    Raises:
        ValueError: if an edge joins two units, or has no such node.
    """

    def __init__(self, batch: Data, owner: Tensor, count: int) -> None:
        _check_edges(batch, owner)
        # Writing into the batch that is handed out does not change these.
        self.owner, self.count = owner.clone(), count
        rows = torch.arange(count, device=owner.device)
        #: The unit of each row of the outputs, unless these are of nodes.
        self.rows = rows
        if isinstance(batch, FlatBatch):
            self.rows = batch.terms.clone()

    def of(self, out: Tensor, by_unit: bool) -> Tensor:
        """Return the unit of each row of the outputs."""
        nodes = len(out) == len(self.owner) and not by_unit
        return self.owner if nodes else self.rows

    def alone(self, batch: Data, unit: int) -> Data:
        """Return the batch of a single unit."""
        owner, count = self.owner, self.count
        kept = owner == unit
        nodes = kept.nonzero().view(-1)
        place = kept.cumsum(0) - 1
        edges = None
        if isinstance(batch.get('edge_index'), Tensor):
            edges = kept[batch.edge_index[0]].nonzero().view(-1)
        out = copy.copy(batch)
        for name, value in batch.to_dict().items():
            if not hasattr(value, 'index_select'):
                continue
            if name == 'batch':
                out[name] = torch.zeros_like(nodes)
            elif name == 'ptr':
                out[name] = value.new_tensor([0, len(nodes)])
            elif name == 'edge_index':
                out[name] = place[value[:, edges]]
            elif getattr(value, 'layout', None) != torch.strided:
                out[name] = _block(value, nodes)
            elif not value.dim():
                continue
            elif edges is not None and batch.is_edge_attr(name):
                dim = batch.__cat_dim__(name, value)
                out[name] = value.index_select(dim, edges.to(value.device))
            elif batch.is_node_attr(name):
                out[name] = value[nodes]
            elif len(value) == len(self.rows):
                out[name] = value[self.rows == unit]
            elif len(value) == count:
                out[name] = value[unit : unit + 1]
        out.num_nodes = len(nodes)
        if 'batch_size' in batch:
            out.batch_size = int((self.rows == unit).sum())
        if hasattr(out, '_num_graphs'):
            out._num_graphs = 1
        return out


def _block(value: Any, nodes: Tensor) -> Any:
    # Of an adjacency matrix, the rows and columns of some nodes.
    layout = getattr(value, 'layout', None)
    if layout in (torch.sparse_csr, torch.sparse_csc):
        coo = value.to_sparse_coo()
        return _block(coo, nodes).to_sparse(layout=layout)
    return value.index_select(0, nodes).index_select(1, nodes)


class _Key:
    # Stands for an attribute of a batch, or for the batch.
    def __init__(self, name: Any) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f'<{self.name}>'


class Call:
    """A call of the model, by the names of the attributes it is given.

    Every tensor has to be one that the batch was delivered with, the same
    object and unchanged (``marks``, of :func:`marks_of`): only then is it
    known which row is of which unit.

    Raises:
        ValueError: if an argument is neither of the batch nor a plain value.
    """

    def __init__(
        self,
        model: nn.Module,
        schema: Schema | None,
        batch: Any,
        marks: dict[Any, tuple[int, int]],
        units: Units,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.model, self.schema = model, schema
        #: Whether the model returned its rows by type, when it was last run.
        self.by_type = False
        names = {place: key for key, (place, _) in marks.items() if place}
        sizes = {'#units': units.count, '#nodes': len(units.owner)}

        def named(path: Any, value: Any) -> Any:
            if value is batch:
                _check_same(batch, marks)
                return _Key(None)
            key = names.get(id(value), _MISSING)
            if key is not _MISSING and _get(batch, key) is value:
                if _version(value) != marks[key][1]:
                    _refuse(f"its '{key}' was changed in place")
                return _Key(key)
            if isinstance(value, int | float | str | bool | None):
                of = _COUNTS.get(path[0].key) if len(path) == 1 else None
                return _Key(of) if of and sizes[of] == value else value
            got = type(value).__name__
            if isinstance(value, Tensor):
                got = f'Tensor of shape {list(value.shape)}'
            return _refuse(f'got a {got}')

        known = [*inspect.signature(model.forward).parameters][: len(args)]
        known += [*range(len(known), len(args))]
        given = dict(zip(known, args, strict=True)) | kwargs
        given = tree_map_with_path(named, given)
        self.args = tuple(given.pop(name) for name in known)
        self.kwargs = given

    @property
    def key(self) -> str:
        """Text of the arguments; equal calls read the same attributes."""
        return repr((self.args, self.kwargs))

    def shown(self, batch: Data) -> Any:
        """Return a batch as the model sees it."""
        return batch if self.schema is None else self.schema.typed(batch)

    def __call__(self, shown: Any, model: nn.Module | None = None) -> Any:
        """Call the model, or a copy of it, on a batch as the model sees it."""
        sizes = {}
        if isinstance(shown, Data):
            sizes = {
                '#units': shown.get('batch_size'),
                '#nodes': shown.num_nodes,
            }

        def fill(value: Any) -> Any:
            if not isinstance(value, _Key):
                return value
            name = value.name
            if name is None:
                return shown
            return sizes[name] if name in sizes else _get(shown, name)

        args, kwargs = tree_map(fill, (self.args, self.kwargs))
        run = self.model if model is None else model
        return self._rows(run(*args, **kwargs), shown)

    def _rows(self, out: Any, shown: Any) -> Any:
        # The rows of the outputs that the loss reads.
        if self.schema is None:
            return out
        target = self.schema.target
        self.by_type = isinstance(out, dict)
        if isinstance(out, dict):
            if target not in out:
                raise ValueError(
                    "'module' needs to return rows of the target type, "
                    f'{target!r} (got {list(out)})'
                )
            out = out[target]
        if not self.schema.several:
            return out
        return out[: int(shown[target].root_mask.sum())]

    def owners(self, shown: Any, units: Units) -> list[Tensor]:
        """Return the units of rows that there may be, of nodes and edges."""
        found = [units.owner]
        if len(units.rows) != units.count:
            found.append(units.rows)
        if self.schema is not None:
            whose = {t: shown[t].batch for t in self.schema.node_types}
            found += whose.values()
            for e in self.schema.edge_types:
                found.append(whose[e[0]][shown[e].edge_index[0]])
            return found
        edges = shown.get('edge_index')
        if isinstance(edges, Tensor) and edges.layout == torch.strided:
            found.append(units.owner[edges[0]])
        return found


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0


def _get(batch: Any, key: Any) -> Any:
    if isinstance(key, tuple):
        return batch[key[0]].get(key[1])
    return batch.get(key)


def marks_of(batch: Any) -> dict[Any, tuple[int, int]]:
    """Return the identity and version of what a model may read of a batch."""
    held: dict[Any, Any] = batch.to_dict()
    if isinstance(batch, HeteroData):
        held = {
            (of, name): value
            for of, store in (*batch.node_items(), *batch.edge_items())
            for name, value in store.items()
            if isinstance(value, Tensor)
            and name in ('x', 'edge_index', 'batch')
        }

    def mark(value: Any) -> tuple[int, int]:
        is_data = hasattr(value, 'shape') or hasattr(value, 'sizes')
        return id(value) if is_data else 0, _version(value)

    return {key: mark(value) for key, value in held.items()}


def _check_same(batch: Any, marks: dict[Any, tuple[int, int]]) -> None:
    now = marks_of(batch)
    for key, mark in marks.items():
        if now.get(key) != mark:
            _refuse(f"its '{key}' was changed")
    if extra := sorted(map(str, now.keys() - marks.keys())):
        _refuse(f"'{extra[0]}' was added to it")


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        'the model needs to be called with the attributes of the batch '
        f"that 'data_loader' gave last, as they are ({what}). The "
        'subgraph of a row is known for these alone: compute other inputs '
        "inside the model, row by row, or in the loader's 'transform'"
    )


def find_call(
    model: nn.Module,
    schema: Schema | None,
    batch: Data,
    units: Units,
    forward: Forward | None,
    by_unit: bool = False,
) -> Call:
    """Find the attributes of a batch that a model is called with.

    By ``forward(model, batch)`` if it is given; by default the model gets what
    its arguments are named after, see :func:`arguments_of`.

    Raises:
        ValueError: if the attributes can't be found.
    """
    shown = batch if schema is None else schema.typed(batch)
    given = model, schema, shown, marks_of(shown), units
    if forward is None:
        return Call(*given, arguments_of(model, shown, by_unit), {})
    calls: list[Call] = []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        calls.append(Call(*given, args, kwargs))

    noted = model.register_forward_pre_hook(note, with_kwargs=True)
    with noted, torch.random.fork_rng(), torch.no_grad():
        forward(model, shown)
    if len(calls) != 1:
        raise ValueError(
            f"'forward' needs to call the model once (got {len(calls)} calls)"
        )
    return calls[0]


def arguments_of(
    model: nn.Module, batch: Any, by_unit: bool
) -> tuple[Any, ...]:
    """Return what a model takes of a batch, by the names of its arguments.

    ``x`` and ``edge_index`` come first, by type if the batch is typed; an
    optional ``batch`` is passed if subgraphs are whole graphs (``by_unit``).
    """
    typed = isinstance(batch, HeteroData)

    def attribute(name: str) -> Any:
        if typed:
            return getattr(batch, f'{name.removesuffix("_dict")}_dict')
        return batch[name]

    def has(name: str) -> bool:
        if not typed:
            return name in batch
        return any(name.removesuffix('_dict') in s for s in batch.stores)

    found: list[Any] = []
    unknown = []
    parameters = inspect.signature(model.forward).parameters.values()
    for place, p in enumerate(parameters):
        pools = by_unit and place == 2 and p.name == 'batch'
        positional = p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        if not positional or (p.default is not p.empty and not pools):
            break
        if place == 0 and p.name in ('data', 'batch'):
            found.append(batch)
        elif has(p.name) or place < 2:
            name = p.name if has(p.name) else ('x', 'edge_index')[place]
            found.append(attribute(name))
        else:
            unknown.append(p.name)
    if unknown:
        raise ValueError(
            "'forward' needs to be given for a model that takes what the "
            f'batch does not have (got a model that takes {unknown}): '
            'forward=lambda model, batch: model(batch.x, batch.edge_index, '
            '...)'
        )
    return tuple(found or map(attribute, ('x', 'edge_index')))


def with_gradients(
    batch: Data, owner: Tensor
) -> tuple[Data, list[tuple[Tensor, Tensor]]]:
    """Let features require a gradient; return them, with each row's unit."""
    out, inputs = copy.copy(batch), []
    for name in features_of(batch):
        if batch[name].is_floating_point():
            out[name] = batch[name].detach().requires_grad_()
            inputs.append((out[name], owner))
    return out, inputs


def features_of(batch: Data) -> list[str]:
    """List the attributes with a row per node, graph structure aside."""
    return [
        name
        for name, value in batch.to_dict().items()
        if isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dim()
        and value.size(0) == batch.num_nodes
        and batch.is_node_attr(name)
        and (name == 'x' or value.is_floating_point())
    ]


def _check_edges(batch: Data, owner: Tensor) -> None:
    """Raise a ``ValueError`` if an edge joins subgraphs, by :obj:`owner`."""
    for name, value in batch.to_dict().items():
        ends = _ends(name, value)
        if ends is None or ends.numel() == 0:
            continue
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or high >= owner.numel():
            raise ValueError(
                f"'{name}' of the batch needs to name its nodes, from 0 on "
                '(got others)'
            )
        if not bool((owner[ends[0]] == owner[ends[1]]).all()):
            raise ValueError(
                f"'{name}' of the batch needs to stay inside each subgraph, "
                'but an edge joins two of them'
            )


def _ends(name: str, value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            return value.to_sparse_coo().coalesce().indices()[:2]
        is_index = 'index' in name or 'face' in name
        if is_index and value.dim() == 2 and value.size(0) == 2:
            return value
    elif hasattr(value, 'coo') and hasattr(value, 'sizes'):
        row, col, _ = value.coo()
        return torch.stack([row, col])
    return None


class Target(dict[str, Tensor]):
    """Outputs by type, of which the loss may read those of the target type."""

    def __missing__(self, name: Any) -> NoReturn:
        raise KeyError(
            f'{name!r}: in private training the loss reads the outputs of '
            f'{list(self)} alone, a row for each person'
        )
