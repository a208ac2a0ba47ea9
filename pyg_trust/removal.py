"""Removal requests and their application to a graph.

Nodes are named by their ids: ``data.n_id`` if the data have it, else the
positions at the fit. Ids of removed nodes are not used again, and a second
request for one raises :class:`NotThere`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    as_ids,
    check_instance,
    check_range,
    check_tensor,
)
from pyg_trust._checks.graphs import plain_index

__all__ = ['NotThere', 'Part', 'RemovalRequest', 'remove_from_data']

MISSING = ('raise', 'skip')
NOT_THERE = ' is not there: it never was, or was removed before'

Nodes = Tensor | Iterable[int]
Edges = Tensor | Iterable[tuple[int, int]]
# Graph, kind (a field of :class:`Part`) and id of one requested item.
Item = tuple[int, str, Any]

# The kinds of items, and what an error calls one of them. Edges have two ids.
_NAMED = {
    'nodes': 'node {}',
    'features': 'the feature row of node {}',
    'edges': 'edge {0[0]} -> {0[1]}',
    'directed_edges': 'edge {0[0]} -> {0[1]}',
    'labels': 'the training label of node {}',
}
_PAIRS = ('edges', 'directed_edges')


class Part(NamedTuple):
    """Part of a removal request that concerns one graph.

    All items are ids of nodes, or pairs of them for edges.

    Args:
        whole (bool): whether the whole graph is removed.
        nodes (tuple[int, ...]): nodes to remove, with all their edges.
        features (tuple[int, ...]): nodes whose features are removed.
        edges (tuple[tuple[int, int], ...]): edges to remove, in both
            directions where they exist.
        directed_edges (tuple[tuple[int, int], ...]): edges to remove in this
            direction only.
        labels (tuple[int, ...]): nodes whose labels are removed.
    """

    whole: bool = False
    nodes: tuple[int, ...] = ()
    features: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    directed_edges: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] = ()

    @property
    def arcs(self) -> tuple[tuple[int, int], ...]:
        """All edges to remove as directed pairs, both ways for ``edges``."""
        return tuple(sorted({*_both(self.edges), *self.directed_edges}))

    def to_dict(self) -> dict[str, Any]:
        """Return the non-empty fields as a dict of lists, by field name."""
        if self.whole:
            return {'whole': True}
        return {
            kind: [[*each] for each in items] if kind in _PAIRS else [*items]
            for kind in _NAMED
            if (items := getattr(self, kind))
        }


@dataclass(frozen=True, init=False)
class RemovalRequest:
    """Request to remove whole graphs, nodes, features, edges or labels.

    .. code-block:: python

        RemovalRequest(graphs=[7])
        RemovalRequest(nodes={3: [0, 5]}, features={4: [1]})
        RemovalRequest(nodes=[12, 90])  # of the only graph
        RemovalRequest(persons=[12], unit=unit)

    Nodes, features, edges and labels are given by graph, as a dict, or as a
    list or tensor for graph 0. Removing a graph removes its nodes; removing a
    node removes its features, label and edges.

    Args:
        graphs (list[int]): the ids of graphs to remove. (default: :obj:`()`)
        nodes (dict[int, list[int]] or list[int]): the ids of nodes to remove,
            with their features and edges. (default: :obj:`()`)
        features (dict[int, list[int]] or list[int]): the ids of nodes whose
            features are removed, while the nodes stay. (default: :obj:`()`)
        edges (dict[int, Tensor] or Tensor): edges to remove, as ``[2,
            num_edges]`` or a list of pairs. (default: :obj:`()`)
        labels (dict[int, list[int]] or list[int]): the ids of nodes whose
            labels are removed, while the nodes stay; not all models take
            these. (default: :obj:`()`)
        directed (bool): whether edges are removed in the given direction only,
            instead of in both where they exist. (default: :obj:`False`)
        persons (list[int] or Tensor): the ids of persons to remove from a
            model that was fitted to the result of :meth:`PrivacyUnit.table
            <pyg_trust.unit.PrivacyUnit.table>`, where each person has one row.
            (default: :obj:`()`)
        unit (PrivacyUnit, optional): the privacy unit of :obj:`persons`.

    Raises:
        TypeError: on an id that is no integer.
        ValueError: if nothing is requested, an id is negative, :obj:`persons`
            come without their :obj:`unit`, or a person has several rows.

    Example:
        >>> RemovalRequest(nodes={3: [0, 5]}, graphs=[7]).to_dict()
        {'3': {'nodes': [0, 5]}, '7': {'whole': True}}
    """

    parts: Mapping[int, Part] = field(default_factory=dict)
    # The privacy units that persons were named by, by their digests.
    _units: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        *,
        graphs: Nodes = (),
        nodes: Mapping[int, Nodes] | Nodes = (),
        features: Mapping[int, Nodes] | Nodes = (),
        edges: Mapping[int, Edges] | Edges = (),
        labels: Mapping[int, Nodes] | Nodes = (),
        directed: bool = False,
        persons: Nodes = (),
        unit: Any = None,
    ) -> None:
        check_instance('directed', directed, bool)
        given = integers('persons', persons)
        if bool(given) != (unit is not None):
            raise ValueError(
                "'persons' and 'unit' need to be given together, as "
                f'RemovalRequest(persons={[*given]}, unit=unit)'
            )
        items = [(g, 'whole', True) for g in integers('graphs', graphs)]
        units: dict[str, Any] = {}
        if unit is not None:
            if not hasattr(unit, 'names'):
                raise TypeError(
                    "'unit' needs to be a PrivacyUnit (got "
                    f'{type(unit).__name__})'
                )
            items += [(0, 'nodes', row) for row in unit.names(given)]
            units = {unit.digest: unit}
        named: dict[str, Any] = {
            **{'nodes': nodes, 'features': features, 'labels': labels},
            'directed_edges' if directed else 'edges': edges,
        }
        for kind, values in named.items():
            if not isinstance(values, Mapping):
                values = {0: values}
            for graph, each in values.items():
                items += _read(graph, kind, each)
        self._take(items, units)

    def _take(self, items: Iterable[Item], units: Mapping[str, Any]) -> None:
        held: dict[int, dict[str, set[Any]]] = {}
        for graph, kind, item in items:
            kinds = held.setdefault(graph, {each: set() for each in _NAMED})
            kinds.setdefault(kind, set()).add(item)
        parts = {}
        for graph, named in sorted(held.items()):
            if 'whole' in named:
                parts[graph] = Part(whole=True)
                continue
            gone = named['nodes']
            named['features'] -= gone
            named['labels'] -= gone
            named['directed_edges'] -= _both(named['edges'])
            for kind in _PAIRS:
                named[kind] = {e for e in named[kind] if gone.isdisjoint(e)}
            made: dict[str, Any] = {k: (*sorted(v),) for k, v in named.items()}
            parts[graph] = Part(**made)
        if not parts:
            raise ValueError('the request needs to name something to remove')
        vars(self).update(parts=parts, _units=units)

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files have no tables of other persons.
        return {'parts': self.parts, '_units': dict.fromkeys(self._units)}

    @classmethod
    def batch(cls, requests: Iterable['RemovalRequest']) -> 'RemovalRequest':
        """Merge several requests into one."""
        check_instance('requests', requests, Iterable)
        items: list[Item] = []
        units: dict[str, Any] = {}
        for each in requests:
            check_instance('requests', each, RemovalRequest)
            items += each.items()
            units |= {
                k: unit or units.get(k) for k, unit in each._units.items()
            }
        return cls._of(items, units)

    @classmethod
    def from_dict(cls, named: Mapping[str, Any]) -> 'RemovalRequest':
        """Make a request from the result of :meth:`to_dict`."""
        check_instance('named', named, Mapping)
        items: list[Item] = []
        for graph, part in named.items():
            check_instance('named', part, Mapping)
            if not str(graph).isdigit() or set(part) - {*Part._fields}:
                raise ValueError(
                    "'named' needs to be what to_dict() returns "
                    f'(got {graph!r}: {part!r})'
                )
            for kind, each in part.items():
                if kind == 'whole':
                    items += [(int(graph), kind, True)] * bool(each)
                else:
                    items += _read(int(graph), kind, each)
        return cls._of(items)

    @classmethod
    def of_items(cls, items: Iterable[Item]) -> 'RemovalRequest | None':
        """Build a request from tuples of :meth:`items`; None without any."""
        given = [*items]
        return cls._of(given) if given else None

    @classmethod
    def _of(
        cls, items: Iterable[Item], units: Mapping[str, Any] | None = None
    ) -> 'RemovalRequest':
        made = cls.__new__(cls)
        made._take(items, units or {})
        return made

    def __or__(self, other: 'RemovalRequest') -> 'RemovalRequest':
        return RemovalRequest.batch([self, other])

    @property
    def graphs(self) -> list[int]:
        """The ids of the graphs in the request, in ascending order."""
        return list(self.parts)

    def items(self) -> Iterator[Item]:
        """Iterate over the requested items as ``(graph, kind, item)``.

        ``graph`` is the id of a graph. ``kind`` is ``'nodes'``,
        ``'features'``, ``'edges'``, ``'directed_edges'``, ``'labels'`` or, for
        the graph itself, ``'whole'``. ``item`` is the id of a node, for both
        kinds of edges a pair of ids, and for ``'whole'`` it is ``True``.
        """
        for graph, part in self.parts.items():
            if part.whole:
                yield graph, 'whole', True
            for kind in _NAMED:
                for item in getattr(part, kind):
                    yield graph, kind, item

    def without(self, other: 'RemovalRequest') -> 'RemovalRequest | None':
        """Return this request without the items of another; None if empty."""
        gone = {*other.items()}
        return self.of_items(each for each in self.items() if each not in gone)

    def to_dict(self) -> dict[str, Any]:
        """Return the ids as lists, by graph id (a text) and kind of item."""
        return {str(g): part.to_dict() for g, part in self.parts.items()}


def _both(edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    return {arc for u, v in edges for arc in ((u, v), (v, u))}


class NotThere(ValueError):
    """Error of a request for items that a model does not hold.

    Its attribute ``missing`` is a :class:`RemovalRequest` of these items,
    which never existed or were removed before. ``message`` sets its text.

    Example:
        >>> raise NotThere(RemovalRequest(nodes=[3]))
        Traceback (most recent call last):
        ...
        pyg_trust.removal.NotThere: node 3 is not there: it never was, or was \
removed before
    """

    def __init__(self, missing: RemovalRequest, message: str = '') -> None:
        (graph, kind, item), *more = missing.items()
        of = f'graph {graph}: ' * bool(graph)
        what = of + _NAMED[kind].format(item) if kind in _NAMED else of[:-2]
        others = f' (and {len(more)} more of the request)' * bool(more)
        super().__init__(message or f'{what or "graph 0"}{NOT_THERE}{others}')
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing, str(self))


# Calls of remove #############################################################


def requested(
    request: Any, first: str = 'nodes', kind: str = '', **named: Any
) -> RemovalRequest:
    """Build the request of a call of ``remove``."""
    kind = kind or first
    given = {key: value for key, value in named.items() if value is not None}
    if given and request is not None:
        raise ValueError(
            f"'{next(iter(given))}' can't be given beside 'request', which "
            f'names all that goes: remove({next(iter(given))}=...) alone, or '
            'remove(RemovalRequest(...))'
        )
    if given:
        return RemovalRequest(**given)
    if isinstance(request, RemovalRequest):
        return request
    if isinstance(request, Sequence) and any(
        isinstance(each, RemovalRequest) for each in request
    ):
        return RemovalRequest.batch(request)
    if isinstance(request, Sequence | Tensor) and not isinstance(request, str):
        ids: Any = integers('request', request)
        return RemovalRequest(**{kind: ids})
    kinds = ValueError if request is None else TypeError
    raise kinds(
        "'request' needs to name something to remove, as a RemovalRequest or "
        f'a list or tensor of ids (got {type(request).__name__}): '
        f'remove({first}=[3]) or remove(RemovalRequest({kind}=[3]))'
    )


class Removed:
    """Items that the lines of a ledger removed and did not add again.

    A line costs as much as its items, however many lines came before.
    """

    def __init__(self) -> None:
        #: By graph and kind of item; edges by direction.
        self.parts: dict[int, dict[str, set[Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the request of the next line; if it is none, add nothing."""
        # Requests of node classifiers are of one graph.
        parts = line if all(map(str.isdigit, line)) else {'0': line}
        read = []
        try:
            for graph, part in parts.items():
                again = part.get('again', {})
                if isinstance(again, list):
                    # Directed edges, of node classifiers.
                    again = {'directed_edges': again}
                for kind in {*Part._fields} - {'edges'}:
                    change = _listed(part, kind), _listed(again, kind)
                    read.append((int(graph), kind, *change))
        except (AttributeError, TypeError):
            raise ValueError(
                "'request' needs to be what RemovalRequest.to_dict() returns "
                f'(got {line!r})'
            ) from None
        for number, kind, gone, come in read:
            held = self.parts.setdefault(number, {}).setdefault(kind, set())
            held.update(gone)
            held.difference_update(come)

    def of(self, kind: str, graph: int = 0) -> AbstractSet[Any]:
        """Return the items of a kind that a graph has lost."""
        return self.parts.get(graph, {}).get(kind, frozenset())


def still_removed(lines: Iterable[Mapping[str, Any]]) -> RemovalRequest | None:
    """Return the items that requests removed and that were not added again.

    Args:
        lines (list[dict]): the requests of a ledger's lines, oldest first.
    """
    found = Removed()
    for line in lines:
        found.add(line)
    return RemovalRequest.of_items(
        (graph, kind, item)
        for graph, items in found.parts.items()
        for kind, each in items.items()
        for item in each
    )


def _listed(part: Mapping[str, Any], kind: str) -> set[Any]:
    if kind == 'directed_edges':
        arcs = {(u, v) for u, v in part.get(kind, ())}
        return arcs | _both(part.get('edges', ()))
    if kind == 'whole':
        return {True} if part.get(kind) else set()
    return {*part.get(kind, ())}


# Ids #########################################################################


class NodeIds:
    """The ids of the rows of a graph, and the rows of ids.

    The ids are ``n_id``, int64, if it is given, else the positions. Rows that
    come later have the ids after the largest one. ``name`` is the argument
    that an error names.

    Example:
        >>> ids = NodeIds(torch.tensor([70, 50]))
        >>> ids.rows(torch.tensor([50, 71])), ids.of(torch.tensor([0, 3]))
        (tensor([1, 2]), tensor([70, 72]))
    """

    def __init__(
        self, n_id: Tensor | None = None, name: str = 'data.n_id'
    ) -> None:
        #: The ids that were given; None for positions.
        self.n_id: Tensor | None = None
        self._known = self._next = 0
        if n_id is None:
            return
        check_tensor(name, n_id, torch.int64, ('num_nodes',))
        n_id = n_id.detach().cpu()
        if torch.equal(n_id, torch.arange(n_id.numel())):
            return
        self._sorted, self._order = n_id.sort()
        check_from_0(name, n_id)
        twice = self._sorted[1:][self._sorted.diff() == 0]
        if twice.numel():
            raise ValueError(
                f"'{name}' needs to have each id once (got {int(twice[0])} "
                f'twice): del {name}, if these are no ids of the nodes'
            )
        self.n_id = n_id.clone()
        self._known, self._next = n_id.numel(), int(self._sorted[-1]) + 1

    @classmethod
    def of_data(cls, data: Any, name: str = 'data') -> 'NodeIds':
        """Read the ids of a graph or of the nodes of one type."""
        n_id, name = data.get('n_id'), f'{name}.n_id'
        if n_id is None:
            return cls()
        n_id = _tensor(name, n_id)
        check_tensor(name, n_id, torch.int64, (int(data.num_nodes),))
        return cls(n_id, name)

    def next(self, count: int) -> int:
        """Return the id of the next row."""
        return self._next + count - self._known

    def of(self, rows: Tensor) -> Tensor:
        """Return the ids of rows."""
        later = rows + (self._next - self._known)
        if self.n_id is not None:
            given = self.n_id[rows.clamp(0, self._known - 1)]
            later = torch.where(rows < self._known, given, later)
        return torch.where(rows < 0, -1 - rows, later)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids, and ``-1 - id`` where there is none.

        Rows beyond the number of rows are those of ids that may come.
        """
        later = ids + (self._known - self._next)
        if self.n_id is None:
            return later
        place = torch.searchsorted(self._sorted, ids)
        place = place.clamp(max=self._known - 1)
        there = self._sorted[place] == ids
        known = torch.where(there, self._order[place], -1 - ids)
        return torch.where(ids >= self._next, later, known)

    def rows_of(self, name: str, nodes: Nodes | None, num_rows: int) -> Tensor:
        """Read an argument that names nodes: rows, int64."""
        if nodes is None:
            return torch.arange(num_rows)
        nodes = _tensor(name, nodes)
        if nodes.dtype == torch.bool:
            check_tensor(name, nodes, torch.bool, (num_rows,))
            return nodes.nonzero().view(-1)
        check_tensor(name, nodes, torch.int64, ('num',))
        check_from_0(name, nodes)
        rows = self.rows(nodes)
        there = (rows >= 0) & (rows < num_rows)
        if not bool(there.all()):
            raise NotThere(RemovalRequest(nodes=nodes[~there]))
        return rows

    def part(self, part: Part) -> Part:
        """Convert a part of a request from ids to rows."""
        return part if self.n_id is None else self._converted(part, self.rows)

    def request(self, part: Part) -> RemovalRequest:
        """Convert a part of rows to a request of ids."""
        found = self._converted(part, self.of).to_dict()
        return RemovalRequest.from_dict({'0': found})

    def _converted(
        self, part: Part, convert: Callable[[Tensor], Tensor]
    ) -> Part:
        made: dict[str, Any] = {}
        for kind in _NAMED:
            items = torch.tensor(getattr(part, kind), dtype=torch.int64)
            found = convert(items).tolist()
            made[kind] = tuple(map(tuple, found) if kind in _PAIRS else found)
        return part._replace(**made)


def rows_of(n_id: Tensor, nodes: Nodes) -> Tensor:
    """Find the rows of nodes in a graph that has these ids."""
    return NodeIds(n_id).rows_of('nodes', nodes, n_id.numel())


def remove_from_data(data: Data, part: Part) -> Data:
    """Return a copy of a graph without the items of a request.

    Ids of nodes are ``data.n_id``, if the graph has it, else positions. The
    result has ``n_id``, the ids of the remaining nodes; ``edge_index`` has
    their positions in it. Where features were removed, rows of ``x`` are zero,
    and ``x_removed``, a bool mask, is True. Attributes of the whole graph are
    kept.

    Args:
        data (Data): the graph, with an ``edge_index``; it is not changed.
        part (Part): the nodes, features and edges to remove,
            ``request.parts[0]`` of a request.

    Raises:
        NotThere: if an item does not exist, or was removed before.
        ValueError: if there are no features to remove, if no node would
            remain, or if :obj:`part` has labels or is a whole graph.
    """
    check_instance('part', part, Part)
    if part.whole or part.labels:
        got = f'labels of {part.labels}' if part.labels else 'a whole graph'
        raise ValueError(
            f"'part' needs to name nodes, features or edges (got {got}): "
            'the model that holds others removes them'
        )
    check_instance('data', data, Data)
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n, edge_index = int(data.num_nodes), data.edge_index
    check_tensor('data.edge_index', edge_index, torch.int64, (2, 'num_edges'))
    check_range('data.edge_index', edge_index, n, 'the nodes')
    if part.features and data.get('x') is None:
        raise ValueError(
            "'data' has no features 'x' of its own to remove: what is derived "
            'from the edges goes with the node'
        )
    ids, bare = NodeIds.of_data(data), data.get('x_removed')
    bare = torch.zeros(n, dtype=torch.bool) if bare is None else bare
    rows = ids.part(part)
    nodes, features, edges, arcs = (
        torch.tensor(named, dtype=torch.int64).view(-1, size)
        for named, size in (
            *((rows.nodes, 1), (rows.features, 1)),
            *((rows.edges, 2), (rows.directed_edges, 2)),
        )
    )

    def inside(rows: Tensor) -> Tensor:
        return ((rows >= 0) & (rows < n)).all(1)

    def key(pairs: Tensor) -> Tensor:
        return pairs[:, 0] * n + pairs[:, 1]

    def has(pairs: Tensor) -> Tensor:
        return inside(pairs) & torch.isin(key(pairs), there)

    there = key(edge_index.t())
    found = {
        'nodes': inside(nodes),
        'features': inside(features)
        & ~torch.isin(features[:, 0], bare.nonzero()),
        'edges': has(edges) | has(edges.flip(1)),
        'directed_edges': has(arcs),
    }
    missing = RemovalRequest.of_items(
        (0, kind, getattr(part, kind)[i])
        for kind, held in found.items()
        for i in (~held).nonzero().view(-1).tolist()
    )
    if missing is not None:
        raise NotThere(missing)
    if len(nodes) == n:
        raise ValueError(
            'the request would leave no node: request the whole graph instead'
        )
    out = copy.copy(data)
    out.n_id, out.num_nodes = ids.of(torch.arange(n)), n
    cut = torch.cat([edges, edges.flip(1), arcs])
    gone = torch.isin(there, key(cut))
    if bool(gone.any()):
        out = out.edge_subgraph(~gone)
    if part.features:
        out.x = out.x.index_fill(0, features[:, 0], 0)
        out.x_removed = bare.index_fill(0, features[:, 0], True)
    if part.nodes:
        out = out.subgraph(
            torch.ones(n, dtype=torch.bool).index_fill(0, nodes[:, 0], False)
        )
    y = data.get('y')
    if isinstance(y, Tensor) and y.numel() == 1:
        # The graph's own label; with one edge it looks like that edge's.
        out.y = y
    return out


# Readers of arguments ########################################################


def _read(graph: Any, kind: str, values: Any) -> list[Item]:
    # The items of one kind of a graph.
    name = 'edges' if kind in _PAIRS else kind
    known = type(graph) is int and 0 <= graph < 2**63
    number = graph if known else integers(name, [graph])[0]
    read: Any = pairs_of if kind in _PAIRS else integers
    return [(number, kind, item) for item in read(name, values)]


def check_from_0(name: str, ids: Tensor) -> None:
    """Refuse negative ids."""
    if ids.numel() and int(ids.min()) < 0:
        raise ValueError(
            f"'{name}' needs ids from 0 on (got {int(ids.min())})"
        )


def _tensor(name: str, values: Any) -> Tensor:
    # Ids in their order, or a mask.
    if isinstance(values, int | np.integer):
        values = [values]
    if isinstance(values, Iterable) and not isinstance(
        values, Tensor | np.ndarray | str | Mapping | Data
    ):
        values = [*values]
        if any(isinstance(each, bool) for each in values):
            # They would pass for integers beside some.
            values = np.array(values, dtype=bool)
    values = as_ids(name, values)
    if not isinstance(values, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor or a list of ids (got "
            f'{type(values).__name__})'
        )
    return values.detach().cpu()


def integers(name: str, values: Nodes) -> tuple[int, ...]:
    """Convert ids to distinct integers, ascending."""
    if isinstance(values, tuple) and not values:
        return ()
    ids = _tensor(name, values)
    if ids.dtype == torch.bool:
        raise TypeError(
            f"'{name}' needs to hold ids (got a mask, which does not say of "
            f'which rows): {name}=data.n_id[mask] if the graph has an n_id, '
            f'else {name}=mask.nonzero()'
        )
    ids = ids if ids.numel() else ids.long()
    check_tensor(name, ids, torch.int64, ('num',))
    check_from_0(name, ids)
    return tuple(ids.unique().tolist())


def pairs_of(name: str, values: Edges) -> tuple[tuple[int, int], ...]:
    """Convert edges to distinct pairs of integers, ascending."""
    if isinstance(values, Tensor | np.ndarray):
        pairs = plain_index(name, values).t().tolist()
    else:
        pairs = [*values] if isinstance(values, Iterable) else [values]
        for pair in pairs:
            if not isinstance(pair, Sequence | Tensor) or len(pair) != 2:
                raise ValueError(
                    f"'{name}' needs to hold pairs of ids (got {pair!r})"
                )
    integers(name, (*(each for pair in pairs for each in pair),))
    return tuple(sorted({(int(u), int(v)) for u, v in pairs}))
