"""Removal requests, and what they do to a graph.

One request object serves every unlearner: whole graphs, nodes, features of
nodes and edges, of one graph or of many. Names are *original* ones, those the
unlearner was trained with: removing node 3 does not rename node 4, and
naming node 3 again is an error.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_range,
    check_tensor,
)

MODES = ('delete', 'mask')

Nodes = Tensor | Iterable[int]
Edges = Tensor | Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Part:
    """What is asked of one graph.

    Args:
        whole (bool): whether the graph goes as a whole.
        nodes (tuple[int, ...]): nodes that go with all their edges.
        features (tuple[int, ...]): nodes whose features go.
        edges (tuple[tuple[int, int], ...]): edges that go.
    """

    whole: bool = False
    nodes: tuple[int, ...] = ()
    features: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What is not empty, as plain lists."""
        if self.whole:
            return {'whole': True}
        named = {
            'nodes': list(self.nodes),
            'features': list(self.features),
            'edges': [list(edge) for edge in self.edges],
        }
        return {key: value for key, value in named.items() if value}


@dataclass(frozen=True, init=False)
class RemovalRequest:
    r"""What is to be forgotten.

    .. code-block:: python

        RemovalRequest(graphs=[7])
        RemovalRequest(nodes={3: [0, 5]}, features={4: [1]})
        RemovalRequest(nodes=[12, 90])  # of the only graph

    Nodes, features and edges are given per graph, as a dictionary; without
    one they belong to graph 0. An edge goes in both directions where the
    graph is undirected. What is contained in something larger (a node of a
    whole graph, a feature or an edge of a removed node) goes with it.

    A request must not depend on the model that was released before: the
    certificates hold for requests fixed without looking at it.

    Args:
        graphs (list[int]): whole graphs. (default: :obj:`()`)
        nodes (dict[int, list[int]] or list[int]): nodes, with their features
            and edges; lists, index tensors or boolean masks.
            (default: :obj:`()`)
        features (dict[int, list[int]] or list[int]): nodes whose features
            are removed, the nodes staying. (default: :obj:`()`)
        edges (dict[int, Tensor] or Tensor): edges, as ``[2, num_edges]`` or a
            list of pairs. (default: :obj:`()`)

    Raises:
        TypeError: on something that is no integer.
        ValueError: if nothing is requested, or a name is negative.

    Example:
        >>> RemovalRequest(nodes={3: [0, 5]}, graphs=[7]).to_dict()
        {'3': {'nodes': [0, 5]}, '7': {'whole': True}}
    """

    parts: Mapping[int, Part] = field(default_factory=dict)

    def __init__(
        self,
        *,
        graphs: Nodes = (),
        nodes: Mapping[int, Nodes] | Nodes = (),
        features: Mapping[int, Nodes] | Nodes = (),
        edges: Mapping[int, Edges] | Edges = (),
    ) -> None:
        whole = set(_integers('graphs', graphs))
        by_graph: dict[str, dict[int, Any]] = {
            'nodes': _per_graph('nodes', nodes, _integers),
            'features': _per_graph('features', features, _integers),
            'edges': _per_graph('edges', edges, _pairs),
        }
        names = whole.union(*by_graph.values())
        parts = {}
        for graph in sorted(names):
            if graph in whole:
                parts[graph] = Part(whole=True)
                continue
            gone = by_graph['nodes'].get(graph, ())
            kept = set(gone)
            parts[graph] = Part(
                nodes=gone,
                features=tuple(
                    node
                    for node in by_graph['features'].get(graph, ())
                    if node not in kept
                ),
                edges=tuple(
                    edge
                    for edge in by_graph['edges'].get(graph, ())
                    if kept.isdisjoint(edge)
                ),
            )
        if not any(part != Part() for part in parts.values()):
            raise ValueError('the request needs to name something to remove')
        object.__setattr__(self, 'parts', parts)

    @classmethod
    def batch(cls, requests: Iterable['RemovalRequest']) -> 'RemovalRequest':
        """One request for everything that several requests name.

        Args:
            requests (list[RemovalRequest]): the requests.
        """
        merged: dict[str, dict[int, list]] = {
            'nodes': {},
            'features': {},
            'edges': {},
        }
        graphs: list[int] = []
        if not isinstance(requests, Iterable):
            raise TypeError(
                "'requests' needs to hold requests "
                f'(got {type(requests).__name__})'
            )
        for request in requests:
            check_instance('requests', request, RemovalRequest)
            for graph, part in request.parts.items():
                if part.whole:
                    graphs.append(graph)
                for name, named in merged.items():
                    named.setdefault(graph, []).extend(getattr(part, name))
        return cls(graphs=graphs, **merged)

    def __or__(self, other: 'RemovalRequest') -> 'RemovalRequest':
        return RemovalRequest.batch([self, other])

    @property
    def graphs(self) -> list[int]:
        """The graphs that are touched, ascending."""
        return list(self.parts)

    def whole_graphs(self) -> 'RemovalRequest':
        """The request that drops every touched graph as a whole.

        This is what unstructured removal (Guo et al. 2020), which knows
        training examples only, makes of a request.
        """
        return RemovalRequest(graphs=self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """The names, graph by graph, as plain lists."""
        return {str(g): part.to_dict() for g, part in self.parts.items()}


def remove_from_data(data: Data, part: Part, mode: str = 'delete') -> Data:
    r"""The graph that remains, as a new object; :obj:`data` stays as it is.

    ``data.n_id`` holds the original names of the nodes, their positions if it
    is not there, and is written to the result, as is ``data.x_removed``, which
    marks nodes without features.

    With ``mode='delete'`` a removed node is gone, and what depends on the
    number of nodes or on degrees can be computed anew. ``mode='mask'`` is the
    paper's: the node stays as an isolated one with the name -1 and the
    features 0, so that its former existence can be seen. What changes is
    copied, so that no tensor of the result holds what was removed. Attributes
    of the whole graph are kept as they are.

    Args:
        data (Data): the graph, with an ``edge_index``.
        part (Part): what is asked of it.
        mode (str): :obj:`'delete'` or :obj:`'mask'`.
            (default: :obj:`'delete'`)

    Raises:
        ValueError: if something named is not there (never was, or was removed
            before), if there are no features to remove, or if no node would
            remain.
    """
    check_choice('mode', mode, MODES)
    check_instance('part', part, Part)
    if part.whole:
        raise ValueError(
            "'part' needs to name nodes, features or edges: a whole graph is "
            'removed by its owner'
        )
    check_instance('data', data, Data)
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n = int(data.num_nodes)
    shape = (2, 'num_edges')
    check_tensor('data.edge_index', data.edge_index, torch.int64, shape)
    check_range('data.edge_index', data.edge_index, n, 'the nodes')
    n_id = data.get('n_id')
    n_id = torch.arange(n) if n_id is None else n_id
    place = {name: i for i, name in enumerate(n_id.tolist()) if name >= 0}
    nodes = _find('node', part.nodes, place)
    featureless = _find('node', part.features, place)
    if part.nodes and len(part.nodes) == len(place):
        raise ValueError(
            'the request would leave no node: request the whole graph instead'
        )
    out = copy.copy(data)
    out.n_id = n_id.clone()
    out.num_nodes = n

    if part.edges:
        ends = torch.tensor(part.edges, dtype=torch.int64).t()
        named = _find('node', ends.flatten().tolist(), place).view(2, -1)
        key = out.edge_index[0] * n + out.edge_index[1]
        wanted = named[0] * n + named[1]
        missing = ~torch.isin(wanted, key)
        if bool(missing.any()):
            edge = ends[:, missing.nonzero()[0, 0]].tolist()
            raise ValueError(
                f'edge {edge[0]} -> {edge[1]} is not there: it never was, or '
                'was removed before'
            )
        if data.is_undirected():
            wanted = torch.cat([wanted, named[1] * n + named[0]])
        out = _keep_edges(out, ~torch.isin(key, wanted))

    if part.features:
        _remove_features(out, featureless, n)
    if part.nodes:
        if mode == 'delete':
            keep = torch.ones(n, dtype=torch.bool)
            keep[nodes] = False
            return out.subgraph(keep)
        gone = torch.zeros(n, dtype=torch.bool)
        gone[nodes] = True
        row, col = out.edge_index
        out = _keep_edges(out, ~(gone[row] | gone[col]))
        _remove_features(out, nodes, n)
        out.n_id[nodes] = -1
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
        raise ValueError(f'the features of nodes {names} were removed before')
    data.x = data.x.index_fill(0, nodes, 0)
    data.x_removed = mask.index_fill(0, nodes, True)


def _keep_edges(data: Data, mask: Tensor) -> Data:
    return data.edge_subgraph(mask)


def _find(what: str, names: Iterable[int], place: Mapping[int, int]) -> Tensor:
    for name in names:
        if name not in place:
            raise ValueError(
                f'{what} {name} is not there: it never was, or was removed '
                'before'
            )
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _integers(name: str, values: Nodes) -> tuple[int, ...]:
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
        if isinstance(value, bool) or not hasattr(value, '__index__'):
            raise TypeError(
                f"'{name}' needs to hold integers (got {type(value).__name__})"
            )
        if value < 0:
            raise ValueError(
                f"'{name}' needs to hold non-negative integers (got {value})"
            )
        found.add(int(value))
    return tuple(sorted(found))


def _pairs(name: str, values: Edges) -> tuple[tuple[int, int], ...]:
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
            _integers(name, [end])
        found.add((int(pair[0]), int(pair[1])))
    return tuple(sorted(found))


def _per_graph(name: str, values: Any, read: Any) -> dict[int, Any]:
    if not isinstance(values, Mapping):
        values = {0: values}
    made = {}
    for graph, named in values.items():
        _integers(name, [graph])
        found = read(name, named)
        if found:
            made[int(graph)] = found
    return made
