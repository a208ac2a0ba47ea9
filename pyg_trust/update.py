"""Updates of a graph: removals, additions and changes."""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Natural,
    OneOf,
    as_ids,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import plain_index
from pyg_trust.removal import (
    MISSING,
    NotThere,
    Part,
    RemovalRequest,
    Removed,
    check_from_0,
    pairs_of,
    rows_of,
)

__all__ = ['NewNodes', 'Update']

# Those of some ids, or of some pairs of ids, that something holds for.
Some = Callable[[Collection[Any]], set[Any]]
T = TypeVar('T')


class NewNodes:
    """Nodes to add to a graph, with copies of their tensors.

    Args:
        x (Tensor): features, floating-point, ``[k, num_columns]``.
        y (Tensor, optional): labels, int64, ``[k]``, -1 if unknown; by default
            all are unknown.
        train (Tensor, optional): bool, ``[k]``: the nodes to train on; by
            default those with a label.
        n_id (Tensor, optional): new ids, int64, ``[k]``; by default those that
            follow the largest id so far.

    Raises:
        TypeError, ValueError: on other types or shapes, NaN or infinity, a
            training node without a label, or ids that are negative or
            repeated.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None = None,
        train: Tensor | None = None,
        n_id: Tensor | None = None,
    ) -> None:
        check_tensor('x', x, None, ('k', 'columns'), finite=True)
        k = x.size(0)
        y = torch.full((k,), -1) if y is None else y
        _check_labels('y', y, k)
        train = y >= 0 if train is None else train
        check_tensor('train', train, torch.bool, (k,))
        if bool((train & (y < 0)).any()):
            raise ValueError("'train' needs a label of each of these nodes")
        if n_id is not None:
            _check_ids('n_id', n_id, k)
        self.x, self.y = x.detach().clone(), y.clone()
        self.train = train.clone()
        self.n_id = None if n_id is None else n_id.clone()

    def __repr__(self) -> str:
        return f'NewNodes(x={[*self.x.shape]})'

    @property
    def is_labelled(self) -> bool:
        """Whether any node has a label."""
        return bool((self.y >= 0).any())

    def check_next(self, first: int) -> None:
        """Raise an error unless ``n_id`` is ``first, first + 1, ...``."""
        expected = list(range(first, first + self.x.size(0)))
        if self.n_id is not None and self.n_id.tolist() != expected:
            raise ValueError(
                f"'n_id' needs to be the next ids, from {first} on (got "
                f'{self.n_id.tolist()})'
            )


class Update:
    """Update of a graph: removals, then additions, then changes.

    .. code-block:: python

        Update(edges=torch.tensor([[0], [5]]))
        Update(nodes=x_new, edges=torch.tensor([[n], [3]]))
        Update(remove=RemovalRequest(nodes=[7]), features=(nodes, x))

    New nodes get the next ids. Methods that take an update also take a
    :class:`~pyg_trust.removal.RemovalRequest`. An item can't be both removed
    and added or changed in one update: make two. The tensors are copied.
    Printing and :meth:`to_dict` show ids only.

    Args:
        nodes (NewNodes or Tensor, optional): new nodes, or their features
            alone, ``[k, num_columns]``.
        edges (Tensor or list, optional): edges to add, int64, ``[2, k]``, or a
            list of pairs of ids; in both directions, if not :obj:`directed`.
        features (tuple[Tensor, Tensor], optional): the ids of ``k`` nodes,
            int64, and their new features, ``[k, num_columns]``.
        labels (tuple[Tensor, Tensor], optional): the ids of ``k`` nodes,
            int64, and their new training labels, int64, ``[k]``; with -1 a
            node is no longer trained on.
        graphs (Sequence[Data]): whole graphs to add, for classifiers of
            graphs. (default: :obj:`()`)
        graph (int): the id of the graph of new nodes, edges, features and
            labels. (default: :obj:`0`)
        remove (RemovalRequest, optional): the items to remove.
        directed (bool): whether edges are added in the given direction only.
            (default: :obj:`False`)
        missing (str): what to do if an item of :obj:`remove` is not there:
            :obj:`'raise'` an error, or :obj:`'skip'` the item.
            (default: :obj:`'raise'`)

    Raises:
        TypeError: on tensors, or a :obj:`remove`, of another type.
        ValueError: on ids that are negative or repeated, features that do not
            fit or are not finite, or an item that is both removed and added or
            changed.

    Example:
        >>> new = Update(edges=torch.tensor([[0], [5]]))
        >>> Update.of([RemovalRequest(nodes=[3]), new])
        (Update({'remove': {'nodes': [3]}}), Update({'edges': [[0, 5]]}))
    """

    @validated
    def __init__(
        self,
        *,
        nodes: NewNodes | Tensor | None = None,
        edges: Tensor | Sequence[tuple[int, int]] | None = None,
        features: tuple[Tensor | Sequence[int], Tensor] | None = None,
        labels: tuple[Tensor | Sequence[int], Tensor] | None = None,
        graphs: Sequence[Data] = (),
        graph: Natural = 0,
        remove: RemovalRequest | None = None,
        directed: bool = False,
        missing: Annotated[str, OneOf(MISSING)] = 'raise',
    ) -> None:
        check_instance('graphs', graphs, Sequence)
        for each in graphs:
            check_instance('graphs', each, Data)
        if isinstance(nodes, Tensor):
            check_tensor('nodes', nodes, None, ('k', 'columns'), finite=True)
            nodes = NewNodes(nodes)
        if edges is None or isinstance(edges, list | tuple):
            pairs_of('edges', edges or ())
            edges = torch.tensor(edges or (), dtype=torch.int64)
            edges = edges.view(-1, 2).t()
        edges = plain_index('edges', edges)
        check_from_0('edges', edges)
        if features is not None:
            of, x = _pair('features', features)
            shape = of.numel(), 'columns'
            check_tensor('features', x, None, shape, finite=True)
            features = of.clone(), x.detach().clone()
        if labels is not None:
            of, y = _pair('labels', labels)
            _check_labels('labels', y, of.numel())
            labels = of.clone(), y.clone()
        self.nodes, self.edges = nodes, edges.clone()
        self.features, self.labels = features, labels
        self.graphs = tuple(each.clone() for each in graphs)
        self.graph, self.remove = graph, remove
        self.directed, self.missing = directed, missing
        self._check_removed()

    @classmethod
    def of(cls, update: Any) -> tuple['Update', ...]:
        """Return a tuple of updates from an update, a request, or a list."""
        if isinstance(update, cls | RemovalRequest):
            update = [update]
        check_instance('update', update, Sequence)
        for each in update:
            check_instance('update', each, cls, RemovalRequest)
        return tuple(
            cls(remove=each) if isinstance(each, RemovalRequest) else each
            for each in update
        )

    @property
    def part(self) -> Part:
        """The items to remove from graph 0; those of others are an error."""
        if self.remove is None:
            return Part()
        if self.remove.graphs != [0] or self.remove.parts[0].whole:
            raise ValueError(
                "'request', or 'remove' of an update, needs to name nodes, "
                'edges, features or labels of graph 0, the only one (got '
                f'graphs {self.remove.graphs})'
            )
        return self.remove.parts[0]

    def played(self, play: Callable[['Update'], T]) -> T:
        """Call a function with the update, and return its result.

        With ``missing='skip'`` it is called again without the removals that it
        raises :class:`~pyg_trust.removal.NotThere` for.
        """
        update = self
        while True:
            try:
                return play(update)
            except NotThere as error:
                rest = update.remove and update.remove.without(error.missing)
                if rest == update.remove:
                    raise
                if self.missing == 'raise':
                    way = "; missing='skip' removes the others" * bool(rest)
                    raise NotThere(error.missing, f'{error}{way}') from None
                update = copy.copy(update)
                update.remove = rest

    @property
    def edits(self) -> bool:
        """Whether there are new nodes or edges, or new features or labels."""
        came = self.nodes, self.features, self.labels
        return came != (None,) * 3 or bool(self.edges.numel())

    def arcs(self, undirected: bool) -> Tensor:
        """Return the directed edges to add: int64, ``[2, k]``.

        Lists both directions, unless the update is ``directed``. With
        :obj:`undirected`, for a graph that adds the reverse itself, it lists
        edges as given, and refuses an update that is ``directed``.
        """
        check_instance('undirected', undirected, bool)
        edges = self.edges
        if undirected and self.directed and edges.numel():
            raise directs(*edges[:, 0].tolist())
        if undirected or self.directed:
            return edges
        back = edges[:, edges[0] != edges[1]].flip(0)
        return torch.cat([edges, back], dim=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the ids as plain lists, without features and labels."""
        nodes = self.nodes
        removed = {} if self.remove is None else self.remove.to_dict()
        new: Any = 0 if nodes is None else nodes.x.size(0)
        if nodes is not None and nodes.n_id is not None:
            new = nodes.n_id.tolist()
        found = {
            'remove': removed['0'] if [*removed] == ['0'] else removed,
            'new_nodes': new,
            'edges': self.edges.t().tolist(),
            'features': self.features and self.features[0].tolist(),
            'labels': self.labels and self.labels[0].tolist(),
            'graphs': len(self.graphs),
            'graph': self.graph,
            'directed': self.directed,
        }
        return {name: value for name, value in found.items() if value}

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.to_dict()})'

    def _check_removed(self) -> None:
        # An item is removed, or it is added or changed.
        parts = {} if self.remove is None else self.remove.parts
        part = parts.get(self.graph, Part())
        if part.whole and self.edits:
            raise ValueError(
                f"'remove' takes graph {self.graph} whole, to which this "
                'update adds or which it changes: make two updates of it'
            )
        gone, cut = {*part.nodes}, {*part.arcs}
        for u, v in self.edges.t().tolist():
            arcs = {(u, v)} if self.directed else {(u, v), (v, u)}
            if arcs & cut or gone & {u, v}:
                raise ValueError(
                    f"'edges' has {u} -> {v}, which 'remove' names too, or an "
                    'end of it: an update removes or adds, not both'
                )
        for name in ('features', 'labels'):
            pair, lost = getattr(self, name), gone | {*getattr(part, name)}
            for node in [] if pair is None else pair[0].tolist():
                if node in lost:
                    raise ValueError(
                        f"'{name}' has node {node}, which 'remove' names too: "
                        'an update removes or changes, not both'
                    )


def skipping(
    request: RemovalRequest,
    missing: str,
    remove: Callable[[RemovalRequest], Any],
) -> Any:
    """Remove what is there; return the report, with what was skipped."""
    left = request

    def play(update: Update) -> Any:
        nonlocal left
        if update.remove is None:
            raise NotThere(request)
        left = update.remove
        return remove(left)

    report = Update(remove=request, missing=missing).played(play)
    gone = request.without(left)
    return report.replace(skipped={} if gone is None else gone.to_dict())


def directs(u: int, v: int) -> ValueError:
    """Make the error for an edge that would make a graph directed."""
    return ValueError(
        f"'directed' needs a directed graph (got {u} -> {v} of an undirected "
        'one, which it would make directed)'
    )


def with_edges(data: Data, update: Update) -> Data:
    """Return the graph with the edges of an update at its end."""
    arcs = update.arcs(False)
    if not arcs.numel():
        return data
    if 'edge_weight' in data:
        raise ValueError(
            "'edges' can't be added to a graph with 'edge_weight', as new "
            'edges have no weights'
        )
    place, n = rows_of(data.n_id, arcs.view(-1)).view(2, -1), data.num_nodes
    keys = place[0] * int(n) + place[1]
    there = torch.isin(keys, data.edge_index[0] * int(n) + data.edge_index[1])
    order = keys.argsort(stable=True)
    there[order[1:]] |= keys[order].diff() == 0
    if bool(there.any()):
        u, v = arcs[:, there][:, 0].tolist()
        raise ValueError(f"'edges' has {u} -> {v}, which is there already")
    data = copy.copy(data)
    data.edge_index = torch.cat([data.edge_index, place], dim=1)
    return data


def _check_ids(name: str, nodes: Tensor, count: int | str) -> None:
    check_tensor(name, nodes, torch.int64, (count,))
    check_from_0(name, nodes)
    if nodes.unique().numel() != nodes.numel():
        raise ValueError(f"'{name}' needs to have each node once")


def _pair(name: str, pair: Any) -> tuple[Tensor, Tensor]:
    check_instance(name, pair, tuple)
    if len(pair) != 2:
        raise ValueError(
            f"'{name}' needs a pair of nodes and their {name} (got "
            f'{len(pair)} entries)'
        )
    nodes = as_ids(name, pair[0])
    _check_ids(name, nodes, 'k')
    return nodes, pair[1]


def _check_labels(name: str, y: Any, count: int) -> None:
    check_tensor(name, y, torch.int64, (count,))
    if y.numel() and int(y.min()) < -1:
        raise ValueError(
            f"'{name}' needs labels from 0 on, or -1 (got {int(y.min())})"
        )


# Lines of ledgers ############################################################


def arcs_of(edges: Tensor, undirected: bool = False) -> set[tuple[int, int]]:
    """Return edges as pairs of numbers, with their reverses if undirected."""
    arcs = {(u, v) for u, v in edges.t().tolist()}
    return arcs | {(v, u) for u, v in arcs} if undirected else arcs


def line_of(
    updates: Sequence[Update],
    came: set[tuple[int, int]],
    present: Some,
    lost: dict[str, Some],
    past: Removed,
    graph: int = 0,
) -> dict[str, Any]:
    """List the items that updates of a graph removed or replaced, by kind.

    An item that was removed and added again is not listed as removed; its new
    features or label are listed as changed. ``'again'`` lists items that an
    earlier request removed and the data hold now.
    """
    asked = [each.remove for each in updates if each.remove is not None]
    part = Part()
    if asked:
        part = RemovalRequest.batch(asked).parts.get(graph, part)
    # What nobody brought back is gone, whatever the data say.
    nodes, there = {*part.nodes}, present(came)
    edges, arcs = set[tuple[int, int]](), {*part.directed_edges} - there
    for u, v in part.edges:
        left = {(u, v), (v, u)} - there
        if {(u, v), (v, u)} == left:
            edges.add((u, v))
        else:
            arcs |= left
    line: dict[str, list[Any]] = {'nodes': sorted(nodes)}
    again: dict[str, list[Any]] = {}
    for kind, gone in lost.items():
        pairs = [getattr(u, kind) for u in updates if u.graph == graph]
        named = [pair[0].tolist() for pair in pairs if pair is not None]
        changed = set[int]().union(*named) - nodes
        others = changed - gone(changed)
        line[kind] = sorted({*getattr(part, kind), *changed} - others)
        line[f'changed_{kind}'] = sorted(others)
        again[kind] = sorted(others & past.of(kind, graph))
    for kind, cut in (('edges', edges), ('directed_edges', arcs)):
        line[kind] = [list(arc) for arc in sorted(cut)]
    known = there & past.of('directed_edges', graph)
    again['directed_edges'] = [list(arc) for arc in sorted(known)]
    line = {kind: items for kind, items in line.items() if items}
    again = {kind: items for kind, items in again.items() if items}
    return {**line, 'again': again} if again else line
