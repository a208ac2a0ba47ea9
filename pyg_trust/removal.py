# Longer than 700 lines because requests and their application to data share
# every check of ids.
"""Removal requests and their application to a graph.

Nodes are named by their ids: ``data.n_id`` if the data have it, else the
positions at the fit. Ids of removed nodes are not used again, and a second
request for one raises :class:`NotThere`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    as_ids,
    check_choice,
    check_instance,
    check_range,
    check_tensor,
)

__all__ = ['NotThere', 'Part', 'RemovalRequest', 'remove_from_data']

MISSING = ('raise', 'skip')
NOT_THERE = ' is not there: it never was, or was removed before'

Nodes = Tensor | Iterable[int]
Edges = Tensor | Iterable[tuple[int, int]]
# Graph, kind (a field of :class:`Part`) and id of one requested item.
Item = tuple[int, str, Any]
R = TypeVar('R')

_PAIRS = ('edges', 'directed_edges')
# The kinds in a request, and what an error calls one of them.
_NAMED = {
    'nodes': 'node {}',
    'features': 'the feature row of node {}',
    'edges': 'edge {0[0]} -> {0[1]}',
    'directed_edges': 'edge {0[0]} -> {0[1]}',
    'labels': 'the training label of node {}',
}


@dataclass(frozen=True)
class Part:
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
        back = [(v, u) for u, v in self.edges]
        return tuple(sorted({*self.edges, *back, *self.directed_edges}))

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
            model of the table that :meth:`PrivacyUnit.table
            <pyg_trust.unit.PrivacyUnit.table>` makes, with one row for each
            person. (default: :obj:`()`)
        unit (PrivacyUnit, optional): the privacy unit of :obj:`persons`;
            needed with them.

    Raises:
        TypeError: on an id that is no integer.
        ValueError: if nothing is requested, an id is negative, or
            :obj:`persons` come without their :obj:`unit` or have several rows.

    Example:
        >>> RemovalRequest(nodes={3: [0, 5]}, graphs=[7]).to_dict()
        {'3': {'nodes': [0, 5]}, '7': {'whole': True}}
    """

    parts: Mapping[int, Part] = field(default_factory=dict)
    # The privacy units that persons were named by, their digest, and whether
    # persons have other ids than their positions.
    _units: ClassVar[tuple[Any, ...]] = ()
    _unit = ''
    _renamed = False

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
                "'persons' and 'unit' need to be given together (got "
                f'{len(given)} persons and {unit!r})'
            )
        items = [(g, 'whole', True) for g in integers('graphs', graphs)]
        if unit is not None:
            if not hasattr(unit, 'names'):
                raise TypeError(
                    "'unit' needs to be a PrivacyUnit (got "
                    f'{type(unit).__name__})'
                )
            rows = unit.names(given)
            items += [(0, 'nodes', row) for row in rows]
            self._name_by({unit.digest: unit}, {*rows} != {*given})
        named: dict[str, Any] = {'nodes': nodes, 'features': features}
        named['labels'] = labels
        named['directed_edges' if directed else 'edges'] = edges
        for kind, values in named.items():
            if not isinstance(values, Mapping):
                values = {0: values}
            for graph, each in values.items():
                items += _read(graph, kind, each)
        self._take(items)

    def _name_by(self, units: Mapping[str, Any], renamed: bool) -> None:
        found = tuple(unit for unit in units.values() if unit is not None)
        names = {'_units': found, '_unit': '+'.join(sorted(units))}
        vars(self).update(names, _renamed=renamed)

    def _check_positions(self) -> None:
        # For those who name nodes by position.
        if self._renamed:
            raise ValueError(
                "'persons' need 'n_id' of their unit to be positions, by "
                'which nodes are named here (got others): request their '
                'positions as nodes'
            )

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files have no tables of other persons.
        return {**self.__dict__, '_units': ()}

    def _take(self, items: Iterable[Item]) -> None:
        held: dict[int, dict[str, set[Any]]] = {}
        for graph, kind, item in items:
            kinds = held.setdefault(graph, {name: set() for name in _NAMED})
            kinds.setdefault(kind, set()).add(item)
        parts = {}
        for graph, named in sorted(held.items()):
            if 'whole' in named:
                parts[graph] = Part(whole=True)
                continue
            gone, edges = named['nodes'], named['edges']
            named['features'] -= gone
            named['labels'] -= gone
            named['directed_edges'] -= edges | {(v, u) for u, v in edges}
            for kind in _PAIRS:
                named[kind] = {e for e in named[kind] if gone.isdisjoint(e)}
            made: dict[str, Any] = {k: (*sorted(v),) for k, v in named.items()}
            parts[graph] = Part(**made)
        if not parts:
            raise ValueError('the request needs to name something to remove')
        vars(self)['parts'] = parts

    @classmethod
    def batch(cls, requests: Iterable['RemovalRequest']) -> 'RemovalRequest':
        """Merge several requests into one."""
        if not isinstance(requests, Iterable):
            raise TypeError(
                "'requests' needs to hold requests "
                f'(got {type(requests).__name__})'
            )
        items: list[Item] = []
        units: dict[str, Any] = {}
        made, renamed = cls.__new__(cls), False
        for request in requests:
            check_instance('requests', request, RemovalRequest)
            items += request.items()
            renamed |= request._renamed
            units |= dict.fromkeys({request._unit} - {''})
            units |= {unit.digest: unit for unit in request._units}
        made._take(items)
        made._name_by(units, renamed)
        return made

    @classmethod
    def from_dict(cls, named: Mapping[str, Any]) -> 'RemovalRequest':
        """Make a request from the result of :meth:`to_dict`."""
        check_instance('named', named, Mapping)
        items: list[Item] = []
        for graph, part in named.items():
            check_instance('named', part, Mapping)
            if not str(graph).isdigit() or set(part) - {'whole', *_NAMED}:
                raise ValueError(
                    "'named' needs to be what to_dict() returns "
                    f'(got {graph!r}: {part!r})'
                )
            for kind, each in part.items():
                if kind == 'whole':
                    items += [(int(graph), kind, True)] * bool(each)
                else:
                    items += _read(int(graph), kind, each)
        made = cls.__new__(cls)
        made._take(items)
        return made

    def __or__(self, other: 'RemovalRequest') -> 'RemovalRequest':
        return RemovalRequest.batch([self, other])

    @property
    def graphs(self) -> list[int]:
        """The ids of the graphs in the request, in ascending order."""
        return list(self.parts)

    def items(self) -> Iterator[Item]:
        """Iterate over the requested items, as tuples of three.

        Each has the id of the graph; the kind, ``'whole'`` or a field of
        :class:`Part`; and the id, a pair of ids for edges, ``True`` for a
        graph.
        """
        for graph, part in self.parts.items():
            if part.whole:
                yield graph, 'whole', True
            for kind in _NAMED:
                for item in getattr(part, kind):
                    yield graph, kind, item

    @classmethod
    def of_items(cls, items: Iterable[Item]) -> 'RemovalRequest | None':
        """Build a request from tuples of :meth:`items`; None without any."""
        given = [*items]
        if not given:
            return None
        made = cls.__new__(cls)
        made._take(given)
        return made

    def without(self, other: 'RemovalRequest') -> 'RemovalRequest | None':
        """Return the items that another request lacks; None without any."""
        gone = {*other.items()}
        return self.of_items(each for each in self.items() if each not in gone)

    def whole_graphs(self) -> 'RemovalRequest':
        """Return a request to remove each graph of this one as a whole.

        Unstructured removal (Guo et al. 2020) can remove whole training
        examples only.
        """
        return RemovalRequest(graphs=self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """Return the ids as lists, by graph id (a text) and kind of item."""
        return {str(g): part.to_dict() for g, part in self.parts.items()}


class NotThere(ValueError):
    """Error of a request for items that a model does not hold.

    Its attribute ``missing`` is a :class:`RemovalRequest` of these items,
    which never existed or were removed before.

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
        others = f' (as are {len(more)} more)' * bool(more)
        super().__init__(message or f'{what or "graph 0"}{NOT_THERE}{others}')
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing, str(self))


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

    def __repr__(self) -> str:
        return f'NodeIds(n_id=[{self._known}])' if self._known else 'NodeIds()'

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
        return Part(whole=part.whole, **made)


def requested(
    request: Any, first: str = 'nodes', kind: str = '', **named: Any
) -> RemovalRequest:
    """Build the request of a call of ``remove``."""
    kind = kind or first
    given = {key: value for key, value in named.items() if value is not None}
    if request is not None and given:
        raise ValueError(
            f"'{next(iter(given))}' can't be given beside 'request', which "
            f'names all that goes: remove({next(iter(given))}=...) alone, or '
            'remove(RemovalRequest(...))'
        )
    if 'persons' in given:
        raise ValueError(
            "'persons' need their unit: remove(RemovalRequest(persons="
            f'{[*integers("persons", given["persons"])]}, unit=unit))'
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
        try:
            return RemovalRequest(**{kind: request})  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            text = str(error).replace(f"'{kind}'", "'request'")
            raise type(error)(text) from None
    call = f'remove({first}=[3]) or remove(RemovalRequest({kind}=[3]))'
    if request is None:
        raise ValueError(
            f"'request' needs to name something to remove: {call}"
        )
    raise TypeError(
        "'request' needs to be a RemovalRequest, or a list or tensor of ids "
        f'(got {type(request).__name__}): {call}'
    )


def skipping(
    request: RemovalRequest,
    missing: str,
    remove: Callable[[RemovalRequest], R],
) -> tuple[R, dict[str, Any]]:
    """Remove what is there."""
    check_choice('missing', missing, MISSING)
    left: RemovalRequest = request
    skipped: RemovalRequest | None = None
    while True:
        try:
            return remove(left), {} if skipped is None else skipped.to_dict()
        except NotThere as error:
            if missing == 'raise':
                raise
            rest = left.without(error.missing)
            if rest is None or rest == left:
                raise NotThere(request) from None
            gone, left = error.missing, rest
            skipped = gone if skipped is None else skipped | gone


class Removed:
    """Items that the lines of a ledger removed and did not add again.

    A line costs as much as its items, however many lines came before.
    """

    def __init__(self) -> None:
        #: By graph and kind of item; edges by direction.
        self.parts: dict[int, dict[str, set[Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the request of the next line."""
        check_instance('line', line, Mapping)
        # Requests of node classifiers are of one graph.
        parts = line if all(map(str.isdigit, line)) else {'0': line}
        read = []
        try:
            for graph, part in parts.items():
                again = part.get('again', {})
                if isinstance(again, list):
                    # Node classifiers record directed edges.
                    again = {'directed_edges': again}
                read.append((int(graph), _by_kind(part), _by_kind(again)))
        except (AttributeError, TypeError):
            raise ValueError(
                "'line' needs to be the request of a ledger's line, as "
                f'RemovalRequest.to_dict() returns it (got {line!r})'
            ) from None
        for number, gone, come in read:
            items = self.parts.setdefault(number, {})
            for kind, new in gone.items():
                items.setdefault(kind, set()).update(new)
                items[kind].difference_update(come[kind])

    def of(self, kind: str, graph: int = 0) -> AbstractSet[Any]:
        """Return the items of a kind that a graph has lost."""
        return self.parts.get(graph, {}).get(kind, frozenset())

    def request(self) -> RemovalRequest | None:
        """Return all items as one request; :obj:`None` without any."""
        return RemovalRequest.of_items(
            (graph, kind, item)
            for graph, items in self.parts.items()
            for kind, each in items.items()
            for item in each
        )


def still_removed(lines: Iterable[Mapping[str, Any]]) -> RemovalRequest | None:
    """Return the items that requests removed and that were not added again.

    Args:
        lines (list[dict]): the requests of a ledger's lines, oldest first.
    """
    found = Removed()
    for line in lines:
        found.add(line)
    return found.request()


def _by_kind(part: Mapping[str, Any]) -> dict[str, set[Any]]:
    arcs = {tuple(edge) for edge in part.get('directed_edges', ())}
    for u, v in part.get('edges', ()):
        arcs |= {(u, v), (v, u)}
    kinds = ('nodes', 'features', 'labels')
    found = {kind: set(part.get(kind, ())) for kind in kinds}
    whole = {True} if part.get('whole') else set()
    return {**found, 'directed_edges': arcs, 'whole': whole}


def remove_from_data(data: Data, part: Part) -> Data:
    """Return a copy of a graph without the items of a request.

    Ids of nodes are ``data.n_id``, if the graph has it, else positions. The
    result has the new attributes ``n_id``, the ids of the remaining nodes, and
    ``x_removed``, a bool mask of nodes whose features were removed. Attributes
    of the whole graph are kept.

    Args:
        data (Data): the graph, with an ``edge_index``; it is not changed.
        part (Part): the items to remove, ``request.parts[0]`` of a request.

    Raises:
        NotThere: if an item does not exist, or was removed before.
        ValueError: if there are no features to remove, or if no node would
            remain.
    """
    check_instance('part', part, Part)
    if part.whole or part.labels:
        raise ValueError(
            "'part' needs to name nodes, features or edges here (got "
            + (
                f'the labels of nodes {list(part.labels)}): labels are '
                'removed from node classifiers that offer it'
                if part.labels
                else 'a whole graph): its owner removes it'
            )
        )
    check_instance('data', data, Data)
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n, edge_index = int(data.num_nodes), data.edge_index
    check_tensor('data.edge_index', edge_index, torch.int64, (2, 'num_edges'))
    check_range('data.edge_index', edge_index, n, 'the nodes')
    ids = NodeIds.of_data(data)
    rows: dict[str, Tensor] = {}
    lacking: dict[str, Tensor] = {}
    for kind in ('nodes', 'features', *_PAIRS):
        found = ids.rows(torch.tensor(getattr(part, kind)).long())
        found = rows[kind] = found.view(-1, 2 if kind in _PAIRS else 1)
        lacking[kind] = ((found < 0) | (found >= n)).any(1)
    _raise_missing(part, lacking)
    if part.nodes and len(part.nodes) == n:
        raise ValueError(
            'the request would leave no node: request the whole graph instead'
        )
    there = edge_index[0] * n + edge_index[1]
    keys = {kind: rows[kind] @ torch.tensor([n, 1]) for kind in _PAIRS}
    back = rows['edges'] @ torch.tensor([1, n])
    lacking = {kind: ~torch.isin(key, there) for kind, key in keys.items()}
    lacking['edges'] &= ~torch.isin(back, there)
    _raise_missing(part, lacking)

    out = copy.copy(data)
    out.n_id, out.num_nodes = ids.of(torch.arange(n)), n
    gone = torch.isin(there, torch.cat([*keys.values(), back]))
    if bool(gone.any()):
        out = out.edge_subgraph(~gone)
    if part.features:
        _remove_features(out, rows['features'][:, 0], n)
    if part.nodes:
        keep = torch.ones(n, dtype=torch.bool)
        keep[rows['nodes'][:, 0]] = False
        out = out.subgraph(keep)
    y = data.get('y')
    if isinstance(y, Tensor) and y.numel() == 1:
        # The graph's own label; with one edge it looks like that edge's.
        out.y = y
    return out


def _remove_features(data: Data, nodes: Tensor, n: int) -> None:
    if data.get('x') is None:
        raise ValueError(
            "'data' has no features 'x' of its own to remove: what is derived "
            'from the edges goes with the node'
        )
    before = data.get('x_removed')
    mask = torch.zeros(n, dtype=torch.bool) if before is None else before
    if bool(mask[nodes].any()):
        raise NotThere(RemovalRequest(features=data.n_id[nodes[mask[nodes]]]))
    data.x = data.x.index_fill(0, nodes, 0)
    data.x_removed = mask.index_fill(0, nodes, True)


def _raise_missing(part: Part, lacking: Mapping[str, Tensor]) -> None:
    missing = RemovalRequest.of_items(
        (0, kind, getattr(part, kind)[i])
        for kind, each in lacking.items()
        for i in each.nonzero().view(-1).tolist()
    )
    if missing is not None:
        raise NotThere(missing)


def _read(graph: Any, kind: str, values: Any) -> list[Item]:
    # The items of one kind of a graph.
    name = 'edges' if kind in _PAIRS else kind
    (number,) = integers(name, [graph])
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
    if not isinstance(values, Tensor | np.ndarray | str | Mapping):
        values = [*values] if isinstance(values, Iterable) else values
    values = as_ids(name, values)
    if not isinstance(values, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor or a list of ids (got "
            f'{type(values).__name__})'
        )
    return values.detach().cpu()


def integers(name: str, values: Nodes) -> tuple[int, ...]:
    """Convert ids to distinct integers, ascending."""
    array = _array(name, values, 'integers')
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # of nonzero()
    if array.dtype == bool:
        raise TypeError(
            f"'{name}' needs to hold ids (got a mask, which does not say of "
            f'which rows): {name}=data.n_id[mask] if the graph has an n_id, '
            f'else {name}=mask.nonzero()'
        )
    if array.ndim > 1 or (array.size and array.dtype.kind not in 'iu'):
        raise TypeError(
            f"'{name}' needs to hold integers (got {array.dtype} of the "
            f'shape {list(array.shape)}): numbers of rows, or the ids that '
            'data.n_id gives to rows'
        )
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**63:
        raise ValueError(
            f"'{name}' needs to hold non-negative integers below 2**63 "
            f'(got {int(array.min())} to {int(array.max())})'
        )
    return tuple(np.unique(array.astype(np.int64)).tolist())


def pairs_of(name: str, values: Edges) -> tuple[tuple[int, int], ...]:
    """Convert edges to distinct pairs of integers, ascending."""
    if isinstance(values, Tensor | np.ndarray):
        if values.ndim != 2 or len(values) != 2:
            raise ValueError(
                f"'{name}' needs to have the shape [2, num_edges] "
                f'(got {list(values.shape)})'
            )
        values = values.T.tolist()
    array = _array(name, values, 'pairs')
    if array.size and (array.ndim != 2 or array.shape[1] != 2):
        raise ValueError(
            f"'{name}' needs to hold pairs (got the shape {array.shape})"
        )
    integers(name, array.reshape(-1))
    return tuple(sorted({(u, v) for u, v in array.reshape(-1, 2).tolist()}))


def _array(name: str, values: Any, what: str) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    elif isinstance(values, int | np.integer):
        values = [values]
    elif not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(
            f"'{name}' needs to hold {what} (got {type(values).__name__})"
        )
    elif not isinstance(values, np.ndarray):
        values = [*values]
        if any(isinstance(v, bool) for v in values):
            # They would pass for integers beside some.
            raise TypeError(f"'{name}' needs to hold {what} (got bool)")
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"'{name}' needs to hold {what} (got some of other lengths)"
        ) from None
