"""Removal requests and their application to a graph.

One request object serves every unlearner: whole graphs, nodes, features and
labels of nodes, and edges, of one graph or of many. Nodes are named by their
ids: ``data.n_id`` if the data have it, else the positions at the fit
(:class:`NodeIds`). Removing node 3 does not rename node 4, and to request node
3 again raises :class:`NotThere`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_range,
    check_tensor,
)

MISSING = ('raise', 'skip')
NOT_THERE = ' is not there: it never was, or was removed before'

_NAMED = ('nodes', 'features', 'edges', 'directed_edges', 'labels')

Nodes = Tensor | Iterable[int]
Edges = Tensor | Iterable[tuple[int, int]]
# Graph, kind (a field of :class:`Part`) and id of one requested item.
Item = tuple[int, str, Any]
R = TypeVar('R')


@dataclass(frozen=True)
class Part:
    """Part of a removal request that concerns one graph.

    Args:
        whole (bool): whether the whole graph is removed.
        nodes (tuple[int, ...]): nodes to remove, with all their edges.
        features (tuple[int, ...]): nodes whose features to remove.
        edges (tuple[tuple[int, int], ...]): edges to remove, in both
            directions where they exist.
        directed_edges (tuple[tuple[int, int], ...]): edges to remove in this
            direction alone.
        labels (tuple[int, ...]): nodes whose labels to remove.
    """

    whole: bool = False
    nodes: tuple[int, ...] = ()
    features: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    directed_edges: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] = ()

    @property
    def arcs(self) -> tuple[tuple[int, int], ...]:
        """All directions in which named edges are removed."""
        back = [(v, u) for u, v in self.edges]
        return tuple(sorted({*self.edges, *back, *self.directed_edges}))

    def to_dict(self) -> dict[str, Any]:
        """Return the non-empty fields as plain lists."""
        if self.whole:
            return {'whole': True}
        named = {
            'nodes': list(self.nodes),
            'features': list(self.features),
            'edges': [list(edge) for edge in self.edges],
            'directed_edges': [list(edge) for edge in self.directed_edges],
            'labels': list(self.labels),
        }
        return {key: value for key, value in named.items() if value}


@dataclass(frozen=True, init=False)
class RemovalRequest:
    r"""Request to remove whole graphs, nodes, features, edges or labels.

    .. code-block:: python

        RemovalRequest(graphs=[7])
        RemovalRequest(nodes={3: [0, 5]}, features={4: [1]})
        RemovalRequest(nodes=[12, 90])  # of the only graph
        RemovalRequest(persons=[12], unit=unit)

    Nodes, features, edges and labels are given per graph, as a dictionary;
    without one they belong to graph 0. An edge goes in both directions,
    wherever they are, whether the rest of the graph is undirected or not; with
    ``directed=True`` in the given direction alone. What is contained in
    something larger (a node of a whole graph, a feature, a label or an edge of
    a removed node) goes with it.

    Args:
        graphs (list[int]): whole graphs to remove. (default: :obj:`()`)
        nodes (dict[int, list[int]] or list[int]): nodes to remove, with their
            features and edges; lists, index tensors or boolean masks.
            (default: :obj:`()`)
        features (dict[int, list[int]] or list[int]): nodes whose features are
            removed, while the nodes stay. (default: :obj:`()`)
        edges (dict[int, Tensor] or Tensor): edges to remove, as
            ``[2, num_edges]`` or a list of pairs. (default: :obj:`()`)
        labels (dict[int, list[int]] or list[int]): nodes whose labels are
            removed, while the nodes stay; only for node classifiers that
            support it. (default: :obj:`()`)
        directed (bool): whether edges are removed in the given direction
            alone. (default: :obj:`False`)
        persons (list[int] or Tensor): persons to remove from a model of the
            table of persons (:meth:`PrivacyUnit.table
            <pyg_trust.unit.PrivacyUnit.table>`), whose rows hold all that
            they own; :meth:`PrivacyUnit.without
            <pyg_trust.unit.PrivacyUnit.without>` removes them from the
            tables. (default: :obj:`()`)
        unit (PrivacyUnit, optional): the privacy unit of :obj:`persons`.
            (default: :obj:`None`)

    Raises:
        TypeError: on something that is no integer.
        ValueError: if nothing is requested, a name is negative, or
            :obj:`persons` come without their :obj:`unit` or have several rows.

    Example:
        >>> RemovalRequest(nodes={3: [0, 5]}, graphs=[7]).to_dict()
        {'3': {'nodes': [0, 5]}, '7': {'whole': True}}
    """

    parts: Mapping[int, Part] = field(default_factory=dict)
    # The privacy units that persons were named by, and their digest.
    _units: ClassVar[tuple[Any, ...]] = ()
    _unit = ''
    # Whether persons have other names than their positions.
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
        named = {
            'nodes': _per_graph('nodes', nodes, integers),
            'features': _per_graph('features', features, integers),
            'edges': _per_graph('edges', edges, pairs_of),
            'labels': _per_graph('labels', labels, integers),
        }
        if directed:
            named['directed_edges'] = named.pop('edges')
        if unit is not None:
            names = {*_rows_of(unit, given)}
            rows = names.union(named['nodes'].get(0, ()))
            named['nodes'][0] = tuple(sorted(rows))
            self._name_by({unit.digest: unit}, names != {*given})
        self._take(integers('graphs', graphs), named)

    def _name_by(self, units: Mapping[str, Any], renamed: bool) -> None:
        found = tuple(unit for unit in units.values() if unit is not None)
        object.__setattr__(self, '_units', found)
        object.__setattr__(self, '_unit', '+'.join(sorted(units)))
        object.__setattr__(self, '_renamed', renamed)

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

    def _take(
        self, graphs: Iterable[int], named: dict[str, dict[int, Any]]
    ) -> None:
        whole = set(graphs)
        names = whole.union(*named.values())
        parts = {}
        for graph in sorted(names):
            if graph in whole:
                parts[graph] = Part(whole=True)
                continue
            gone = named['nodes'].get(graph, ())
            kept = set(gone)
            found: dict[str, Any] = {'nodes': gone}
            for key in ('features', 'labels'):
                given = named.get(key, {}).get(graph, ())
                found[key] = tuple(v for v in given if v not in kept)
            for key in ('edges', 'directed_edges'):
                given = named.get(key, {}).get(graph, ())
                found[key] = tuple(e for e in given if kept.isdisjoint(e))
            both = Part(edges=found['edges']).arcs
            found['directed_edges'] = tuple(
                edge for edge in found['directed_edges'] if edge not in both
            )
            parts[graph] = Part(**found)
        if not any(part != Part() for part in parts.values()):
            raise ValueError('the request needs to name something to remove')
        object.__setattr__(self, 'parts', parts)

    @classmethod
    def batch(cls, requests: Iterable['RemovalRequest']) -> 'RemovalRequest':
        """Merge several requests into one."""
        merged: dict[str, dict[int, Any]] = {name: {} for name in _NAMED}
        graphs: list[int] = []
        if not isinstance(requests, Iterable):
            raise TypeError(
                "'requests' needs to hold requests "
                f'(got {type(requests).__name__})'
            )
        units: dict[str, Any] = {}
        renamed = False
        for request in requests:
            check_instance('requests', request, RemovalRequest)
            renamed |= request._renamed
            units |= dict.fromkeys({request._unit} - {''})
            units |= {unit.digest: unit for unit in request._units}
            for graph, part in request.parts.items():
                if part.whole:
                    graphs.append(graph)
                for name, named in merged.items():
                    both = {*named.get(graph, ()), *getattr(part, name)}
                    if both:
                        named[graph] = tuple(sorted(both))
        made = cls.__new__(cls)
        made._take(graphs, merged)
        made._name_by(units, renamed)
        return made

    @classmethod
    def from_dict(cls, named: Mapping[str, Any]) -> 'RemovalRequest':
        """Convert the result of :meth:`to_dict` back to a request.

        Args:
            named (dict): the part of the request for each graph, by the
                graph's name.
        """
        check_instance('named', named, Mapping)
        requests = []
        for graph, part in named.items():
            check_instance('named', part, Mapping)
            if not str(graph).isdigit() or set(part) - {'whole', *_NAMED}:
                raise ValueError(
                    "'named' needs to be what to_dict() returns "
                    f'(got {graph!r}: {part!r})'
                )
            i, given = int(graph), dict(part)
            if given.pop('whole', False):
                requests.append(cls(graphs=[i]))
            arcs = given.pop('directed_edges', ())
            if arcs:
                requests.append(cls(edges={i: arcs}, directed=True))
            asked: dict[str, Any] = {k: {i: v} for k, v in given.items()}
            if asked:
                requests.append(cls(**asked))
        return cls.batch(requests)

    def __or__(self, other: 'RemovalRequest') -> 'RemovalRequest':
        return RemovalRequest.batch([self, other])

    @property
    def graphs(self) -> list[int]:
        """The names of the graphs in the request, in ascending order."""
        return list(self.parts)

    def items(self) -> Iterator[Item]:
        """Iterate over the graph, the kind and the id of each item."""
        for graph, part in self.parts.items():
            if part.whole:
                yield graph, 'whole', True
            for kind in _NAMED:
                for item in getattr(part, kind):
                    yield graph, kind, item

    @classmethod
    def of_items(cls, items: Iterable[Item]) -> 'RemovalRequest | None':
        """Build a request of :meth:`items`; :obj:`None` if there are none."""
        named: dict[str, dict[str, Any]] = {}
        for graph, kind, item in items:
            part = named.setdefault(str(graph), {})
            if kind == 'whole':
                part['whole'] = True
            else:
                part.setdefault(kind, []).append(item)
        return cls.from_dict(named) if named else None

    def without(self, other: 'RemovalRequest') -> 'RemovalRequest | None':
        """Return the items that another request lacks; :obj:`None` if none.

        Args:
            other (RemovalRequest): the items to leave out.
        """
        gone = {*other.items()}
        return self.of_items(each for each in self.items() if each not in gone)

    def whole_graphs(self) -> 'RemovalRequest':
        """Return a request that removes every graph named here as a whole.

        This is what unstructured removal (Guo et al. 2020), which knows
        training examples only, makes of a request.
        """
        return RemovalRequest(graphs=self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """Return the names by graph, as plain lists."""
        return {str(g): part.to_dict() for g, part in self.parts.items()}


class NotThere(ValueError):
    """Error of a request for items that a model does not hold.

    Args:
        missing (RemovalRequest): the items that never were, or were removed
            before.
        message (str): the text of the error; by default it names the first
            item. (default: :obj:`''`)

    Attributes:
        missing (RemovalRequest): as above, in the ids of the request.

    Example:
        >>> raise NotThere(RemovalRequest(nodes=[3]))
        Traceback (most recent call last):
        ...
        pyg_trust.removal.NotThere: node 3 is not there: it never was, or was \
removed before
    """

    def __init__(self, missing: RemovalRequest, message: str = '') -> None:
        super().__init__(message or _described(missing))
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing, str(self))


def _described(missing: RemovalRequest) -> str:
    items = [*missing.items()]
    graph, kind, item = items[0]
    names = {
        'whole': f'graph {graph}',
        'nodes': f'node {item}',
        'features': f'the feature row of node {item}',
        'labels': f'the training label of node {item}',
    }
    if kind in ('edges', 'directed_edges'):
        names[kind] = f'edge {item[0]} -> {item[1]}'
    more = f' (as are {len(items) - 1} more)' * (len(items) > 1)
    of = f'graph {graph}: ' * bool(graph and kind != 'whole')
    return f'{of}{names[kind]}{NOT_THERE}{more}'


class NodeIds:
    """The ids of the rows of a graph, and the rows of ids.

    The ids are ``data.n_id`` if the data have it, else the positions. Rows
    that come later have the ids after the largest one.

    Args:
        n_id (Tensor, optional): int64, ``[num_nodes]``: distinct ids from 0
            on; by default the positions. (default: :obj:`None`)
        name (str): the argument that an error names.
            (default: :obj:`'data.n_id'`)

    Raises:
        TypeError, ValueError: if the ids are no integers, negative, or there
            twice.

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
        self._next = 0
        if n_id is None:
            return
        check_tensor(name, n_id, torch.int64, ('num_nodes',))
        n_id = n_id.detach().cpu()
        if torch.equal(n_id, torch.arange(n_id.numel())):
            return
        self._sorted, self._order = n_id.sort()
        if int(self._sorted[0]) < 0:
            raise ValueError(
                f"'{name}' needs ids from 0 on (got {int(self._sorted[0])})"
            )
        twice = self._sorted[1:][self._sorted.diff() == 0]
        if twice.numel():
            raise ValueError(
                f"'{name}' needs to have each id once (got {int(twice[0])} "
                f'twice): del {name}, if these are no ids of the nodes'
            )
        self.n_id = n_id.clone()
        self._next = int(self._sorted[-1]) + 1

    @classmethod
    def of_data(cls, data: Any, name: str = 'data') -> 'NodeIds':
        """Read the ids of a graph or of the nodes of one type.

        Args:
            data (Data or NodeStorage): the nodes.
            name (str): the name of the argument. (default: :obj:`'data'`)
        """
        n_id, n = data.get('n_id'), int(data.num_nodes)
        if n_id is None:
            return cls()
        if not isinstance(n_id, Tensor):
            n_id = torch.tensor(_integers_in_order(f'{name}.n_id', n_id, n))
        if n_id.dtype == torch.int32:
            n_id = n_id.long()
        check_tensor(f'{name}.n_id', n_id, torch.int64, (n,))
        return cls(n_id, f'{name}.n_id')

    @property
    def _known(self) -> int:
        return 0 if self.n_id is None else self.n_id.numel()

    def next(self, count: int) -> int:
        """Return the id of the next row.

        Args:
            count (int): the number of rows.
        """
        return self._next + count - self._known

    def of(self, rows: Tensor) -> Tensor:
        """Return the ids of rows.

        Args:
            rows (Tensor): int64: rows; ``-1 - id`` stands for an id without
                one, as :meth:`rows` returns it.
        """
        later = rows + (self._next - self._known)
        if self.n_id is not None:
            given = self.n_id[rows.clamp(0, self._known - 1)]
            later = torch.where(rows < self._known, given, later)
        return torch.where(rows < 0, -1 - rows, later)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids, and ``-1 - id`` where there is none.

        Rows beyond the number of rows are those of ids that may come.

        Args:
            ids (Tensor): int64.
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
        """Read an argument that names nodes: rows, int64.

        Args:
            name (str): the name of the argument.
            nodes (list[int] or Tensor, optional): ids, a mask of all rows, or
                :obj:`None` for all rows.
            num_rows (int): the number of rows.

        Raises:
            TypeError, ValueError: on anything else.
            NotThere: on an id without a row.
        """
        if nodes is None:
            return torch.arange(num_rows)
        if not isinstance(nodes, Tensor):
            if not isinstance(nodes, Iterable):
                raise TypeError(
                    f"'{name}' needs to be a tensor or a list of ids (got "
                    f'{type(nodes).__name__})'
                )
            nodes = [*nodes]
            integers(name, nodes)
            nodes = torch.tensor([int(v) for v in nodes], dtype=torch.int64)
        nodes = nodes.detach().cpu()
        if nodes.dtype == torch.bool:
            check_tensor(name, nodes, torch.bool, (num_rows,))
            return nodes.nonzero().view(-1)
        if nodes.dtype == torch.int32:
            nodes = nodes.long()
        check_tensor(name, nodes, torch.int64, ('num',))
        if nodes.numel() and int(nodes.min()) < 0:
            raise ValueError(
                f"'{name}' needs ids from 0 on (got {int(nodes.min())})"
            )
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

    def line(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the rows in a line of a ledger to ids.

        Args:
            named (dict): rows and pairs of rows, by their kind.
        """

        def ids(items: Any) -> Any:
            if isinstance(items, Mapping):
                return self.line(items)
            found = torch.tensor(items, dtype=torch.int64)
            return self.of(found).tolist()

        if self.n_id is None:
            return dict(named)
        return {kind: ids(items) for kind, items in named.items()}

    def _converted(
        self, part: Part, convert: Callable[[Tensor], Tensor]
    ) -> Part:
        made: dict[str, Any] = {}
        for kind in _NAMED:
            items = torch.tensor(getattr(part, kind), dtype=torch.int64)
            found = convert(items).tolist()
            made[kind] = tuple(
                tuple(each) if isinstance(each, list) else each
                for each in found
            )
        return Part(whole=part.whole, **made)


def requested(
    request: Any, first: str = 'nodes', kind: str = '', **named: Any
) -> RemovalRequest:
    """Build the request of a call of ``remove``.

    Args:
        request (RemovalRequest, list or Tensor, optional): a request, a list
            of requests, or ids of what :obj:`first` names.
        first (str): the argument for ids without a name.
            (default: :obj:`'nodes'`)
        kind (str): the kind of these ids, by default :obj:`first`.
            (default: :obj:`''`)
        **named (Any): the ids by kind, as :class:`RemovalRequest` takes them;
            :obj:`None` where the caller gave none.

    Raises:
        TypeError, ValueError: on another request, or on both or none.
    """
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
    if request is None and not given:
        raise ValueError(
            f"'request' needs to name something to remove: remove({first}="
            f'[3]) or remove(RemovalRequest({kind or first}=[3]))'
        )
    if request is None:
        return RemovalRequest(**given)
    if isinstance(request, RemovalRequest):
        return request
    whole = isinstance(request, Sequence) and not isinstance(request, str)
    if whole and any(isinstance(each, RemovalRequest) for each in request):
        return RemovalRequest.batch(request)
    if whole or isinstance(request, Tensor):
        try:
            return RemovalRequest(**{kind or first: request})
        except (TypeError, ValueError) as error:
            raise type(error)(
                str(error).replace(f"'{kind or first}'", "'request'")
            ) from None
    raise TypeError(
        "'request' needs to be a RemovalRequest, or a list or tensor of ids "
        f'(got {type(request).__name__}): remove({first}=[3]) or '
        f'remove(RemovalRequest({kind or first}=[3]))'
    )


def skipping(
    request: RemovalRequest,
    missing: str,
    remove: Callable[[RemovalRequest], R],
) -> tuple[R, dict[str, Any]]:
    """Remove what is there.

    Args:
        request (RemovalRequest): the items.
        missing (str): :obj:`'skip'` leaves out what is not there;
            :obj:`'raise'` raises :class:`NotThere`.
        remove (callable): removes a request, and raises :class:`NotThere`
            before it changes anything.

    Returns:
        tuple: the result of :obj:`remove`, and the items that were left out,
        by graph.

    Raises:
        NotThere: if nothing of the request is there, or with ``'raise'`` if
            something is not.
    """
    check_choice('missing', missing, MISSING)
    skipped: list[RemovalRequest] = []
    left = request
    while True:
        try:
            report = remove(left)
        except NotThere as error:
            if missing == 'raise':
                raise
            rest = left.without(error.missing)
            if rest is None or rest == left:
                raise NotThere(request) from None
            skipped.append(error.missing)
            left = rest
            continue
        whole = RemovalRequest.batch(skipped) if skipped else None
        return report, {} if whole is None else whole.to_dict()


class Removed:
    """Items that the lines of a ledger removed and did not add again.

    A line costs what it names, however many came before.
    """

    def __init__(self) -> None:
        #: By graph and kind of item; edges by direction.
        self.parts: dict[int, dict[str, set[Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the request of the next line.

        Args:
            line (dict): the request, with what has come ``'again'`` in an
                entry of a part.
        """
        check_instance('line', line, Mapping)
        # Requests of node classifiers are of one graph.
        parts = line if all(map(str.isdigit, line)) else {'0': line}
        read = []
        try:
            for name, part in parts.items():
                again = part.get('again', {})
                if isinstance(again, list):
                    # Node classifiers record directed edges.
                    again = {'directed_edges': again}
                gone, come = _named_items(part), _named_items(again)
                read.append((int(name), gone, come))
        except (AttributeError, TypeError):
            raise ValueError(
                "'line' needs to be the request of a ledger's line, as "
                f'RemovalRequest.to_dict() returns it (got {line!r})'
            ) from None
        for graph, gone, come in read:
            items = self.parts.setdefault(graph, {})
            for kind, new in gone.items():
                items.setdefault(kind, set()).update(new)
                items[kind].difference_update(come[kind])

    def of(self, kind: str, graph: int = 0) -> AbstractSet[Any]:
        """Return the items of a kind that a graph has lost."""
        return self.parts.get(graph, {}).get(kind, frozenset())

    def request(self) -> RemovalRequest | None:
        """Return all items as one request; :obj:`None` without any."""
        named: dict[str, Any] = {}
        for graph, items in self.parts.items():
            kept = {k: sorted(v) for k, v in items.items() if v}
            if kept:
                whole = {'whole': True} if 'whole' in kept else kept
                named[str(graph)] = whole
        return RemovalRequest.from_dict(named) if named else None


def still_removed(
    lines: Iterable[Mapping[str, Any]],
) -> RemovalRequest | None:
    """Return the items that requests removed and that were not added again.

    Args:
        lines (list[dict]): the requests of a ledger's lines, oldest first.
    """
    found = Removed()
    for line in lines:
        found.add(line)
    return found.request()


def _named_items(part: Mapping[str, Any]) -> dict[str, set[Any]]:
    edges = {tuple(edge) for edge in part.get('edges', ())}
    arcs = edges | {edge[::-1] for edge in edges}
    arcs |= {tuple(edge) for edge in part.get('directed_edges', ())}
    found = {
        kind: set(part.get(kind, ()))
        for kind in ('nodes', 'features', 'labels')
    }
    whole = {True} if part.get('whole') else set()
    return {**found, 'directed_edges': arcs, 'whole': whole}


def remove_from_data(data: Data, part: Part) -> Data:
    r"""Return the graph after a removal; :obj:`data` stays unchanged.

    ``data.n_id`` holds the original names of the nodes (a tensor or a list),
    their positions if it is not there, and is written to the result, as is
    ``data.x_removed``, which marks nodes without features. Named edges are
    removed in both directions.

    A removed node is gone, and what depends on the number of nodes or on
    degrees can be computed anew. What changes is copied, so that no tensor of
    the result holds what was removed. Attributes of the whole graph are kept
    as they are.

    Args:
        data (Data): the graph, with an ``edge_index``.
        part (Part): the items to remove.

    Raises:
        NotThere: if something named is not there (never was, or was removed
            before).
        ValueError: if there are no features to remove, or if no node would
            remain.
    """
    check_instance('part', part, Part)
    if part.whole:
        raise ValueError(
            "'part' needs to name nodes, features or edges: a whole graph is "
            'removed by its owner'
        )
    if part.labels:
        raise ValueError(
            "'part' needs to name nodes, features or edges here (got the "
            f'labels of nodes {list(part.labels)}): labels are removed from '
            'node classifiers that offer it'
        )
    check_instance('data', data, Data)
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n = int(data.num_nodes)
    shape = (2, 'num_edges')
    check_tensor('data.edge_index', data.edge_index, torch.int64, shape)
    check_range('data.edge_index', data.edge_index, n, 'the nodes')
    n_id = NodeIds.of_data(data).of(torch.arange(n))
    place = {name: i for i, name in enumerate(n_id.tolist())}
    _check_named(part, place)
    nodes = _find(part.nodes, place)
    featureless = _find(part.features, place)
    if part.nodes and len(part.nodes) == len(place):
        raise ValueError(
            'the request would leave no node: request the whole graph instead'
        )
    out = copy.copy(data)
    out.n_id, out.num_nodes = n_id, n

    if part.edges or part.directed_edges:
        key = out.edge_index[0] * n + out.edge_index[1]
        there = set(key.tolist())

        def keys(edges: Sequence[tuple[int, int]]) -> list[int]:
            names = [name for edge in edges for name in edge]
            rows = _find(names, place).view(-1, 2)
            return (rows[:, 0] * n + rows[:, 1]).tolist()

        one, back = keys(part.edges), keys([(v, u) for u, v in part.edges])
        arcs = keys(part.directed_edges)
        _raise_missing(
            [
                *(
                    (0, 'edges', edge)
                    for edge, *found in zip(part.edges, one, back, strict=True)
                    if there.isdisjoint(found)
                ),
                *(
                    (0, 'directed_edges', edge)
                    for edge, found in zip(
                        part.directed_edges, arcs, strict=True
                    )
                    if found not in there
                ),
            ]
        )
        wanted = torch.tensor([*one, *back, *arcs])
        out = _keep_edges(out, ~torch.isin(key, wanted))

    if part.features:
        _remove_features(out, featureless, n)
    if part.nodes:
        keep = torch.ones(n, dtype=torch.bool)
        keep[nodes] = False
        return out.subgraph(keep)
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
        names = data.n_id[nodes[mask[nodes]]].tolist()
        raise NotThere(RemovalRequest(features=names))
    data.x = data.x.index_fill(0, nodes, 0)
    data.x_removed = mask.index_fill(0, nodes, True)


def _keep_edges(data: Data, mask: Tensor) -> Data:
    out = data.edge_subgraph(mask)
    y = data.get('y')
    if isinstance(y, Tensor) and y.numel() == 1:
        # The graph's own label; with one edge it looks like an edge attribute.
        out.y = y
    return out


def _find(names: Iterable[int], place: Mapping[int, int]) -> Tensor:
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _check_named(part: Part, place: Mapping[int, int]) -> None:
    # Refuse names of nodes that are not there, all of them at once.
    missing: list[Item] = []
    for kind in ('nodes', 'features'):
        missing += [
            (0, kind, name)
            for name in getattr(part, kind)
            if name not in place
        ]
    for kind in ('edges', 'directed_edges'):
        missing += [
            (0, kind, edge)
            for edge in getattr(part, kind)
            if not {*edge} <= place.keys()
        ]
    _raise_missing(missing)


def _raise_missing(items: list[Item]) -> None:
    if missing := RemovalRequest.of_items(items):
        raise NotThere(missing)


def _integers_in_order(name: str, values: Any, count: int) -> list[int]:
    # Return them unchanged, and not as a set.
    integers(name, values)
    if len(values) != count:
        raise ValueError(
            f"'{name}' needs to hold {count} names (got {len(values)})"
        )
    return [int(value) for value in values]


def integers(name: str, values: Nodes) -> tuple[int, ...]:
    """Convert names to distinct integers, ascending.

    Args:
        name (str): the name of the argument.
        values (Tensor or Iterable[int]): names, or a boolean mask.
    """
    if isinstance(values, Tensor):
        if values.dtype == torch.bool:
            values = values.nonzero().view(-1)
        if values.is_floating_point() or values.dim() > 1:
            raise TypeError(
                f"'{name}' needs to hold integers (got a {values.dtype} "
                f'tensor of the shape {list(values.shape)})'
            )
        values = values.view(-1).tolist()
    elif isinstance(values, int):
        values = [values]
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(
            f"'{name}' needs to hold integers (got {type(values).__name__})"
        )
    found = set()
    for value in values:
        if isinstance(value, Tensor):
            # Booleans and fractions would pass for integers.
            if (
                value.dtype == torch.bool
                or value.is_floating_point()
                or value.dim()
            ):
                raise TypeError(
                    f"'{name}' needs to hold integers (got a {value.dtype} "
                    f'tensor of the shape {list(value.shape)} among them)'
                )
        elif isinstance(value, bool) or not hasattr(value, '__index__'):
            raise TypeError(
                f"'{name}' needs to hold integers (got {type(value).__name__})"
            )
        number = int(value)
        if not 0 <= number < 2**63:
            raise ValueError(
                f"'{name}' needs to hold non-negative integers below 2**63 "
                f'(got {number})'
            )
        found.add(number)
    return tuple(sorted(found))


def _rows_of(unit: Any, persons: tuple[int, ...]) -> list[int]:
    # Their names in the table of persons; a unit asks this module itself.
    if type(unit).__name__ != 'PrivacyUnit':
        raise TypeError(
            f"'unit' needs to be a PrivacyUnit (got {type(unit).__name__})"
        )
    return unit.names(persons)


def pairs_of(name: str, values: Edges) -> tuple[tuple[int, int], ...]:
    """Convert edges to distinct pairs of integers, ascending.

    Args:
        name (str): the name of the argument.
        values (Tensor or Iterable): pairs, or a tensor ``[2, num_edges]``.
    """
    if isinstance(values, Tensor):
        if values.dim() != 2 or values.size(0) != 2:
            raise ValueError(
                f"'{name}' needs to have the shape [2, num_edges] "
                f'(got {list(values.shape)})'
            )
        values = values.t().tolist()
    if not isinstance(values, Iterable):
        raise TypeError(
            f"'{name}' needs to hold pairs (got {type(values).__name__})"
        )
    found = set()
    for pair in values:
        if not isinstance(pair, Sequence | Tensor) or len(pair) != 2:
            raise ValueError(f"'{name}' needs to hold pairs (got {pair!r})")
        pair = tuple(pair)
        for end in pair:
            integers(name, [end])
        found.add((int(pair[0]), int(pair[1])))
    return tuple(sorted(found))


def _per_graph(name: str, values: Any, read: Any) -> dict[int, Any]:
    if not isinstance(values, Mapping):
        values = {0: values}
    made = {}
    for graph, named in values.items():
        integers(name, [graph])
        found = read(name, named)
        if found:
            made[int(graph)] = found
    return made
