"""Fingerprints of data and weights, and leftovers of a removal.

The same digests as :func:`pyg_trust.report.fingerprint_data` and
:func:`~pyg_trust.report.fingerprint_model`, of arrays of numpy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..verify.arrays import fingerprint, named
from .tensors import Sparse, Tensor

# The kinds of items that a request removes from a graph.
_NAMED = ('nodes', 'features', 'labels', 'changed_features', 'changed_labels')
_PARTS = {*_NAMED, 'edges', 'directed_edges', 'again'}
# Fields whose first dimension is the nodes, as PyG counts them.
_OF_NODES = ('x', 'feat', 'pos', 'batch', 'node_type', 'n_id', 'tf')


def fingerprint_model(state: Mapping[Any, Any]) -> str:
    """Digest the tensors of a ``state_dict()``, or of a dictionary of these.

    Args:
        state (dict): the tensors; other values are left out.
    """
    if not isinstance(state, Mapping):
        raise ValueError("'state' needs to be a dictionary of tensors")
    parts = named(state, Tensor)
    return fingerprint(*parts) if parts else ''


def fingerprint_data(
    graphs: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> str:
    """Digest graphs."""
    parts: list[Any] = []
    for graph in graphs:
        for name in fields:
            value = graph.get(name)
            if name == 'num_nodes':
                value = num_nodes(graph)
            if isinstance(value, Sparse):
                parts += [name, value.layout, *value.shape, *value.parts]
            else:
                parts += [name, value]
    return fingerprint(*parts)


def num_nodes(graph: Mapping[str, Any]) -> int:
    """Count the nodes of a graph, as PyG does."""
    if graph.get('num_nodes') is not None:
        return int(graph['num_nodes'])
    kinds = (lambda name: name in _OF_NODES, lambda name: 'node' in name)
    for is_of_nodes in kinds:
        for name, value in graph.items():
            if isinstance(value, Tensor | Sparse) and is_of_nodes(name):
                return int(_shape(value)[0])
    if isinstance(graph.get('adj_t'), Tensor | Sparse):
        return int(_shape(graph['adj_t'])[1])
    edges = graph['edge_index'].array
    return int(edges.max()) + 1 if edges.size else 0


def _shape(value: Tensor | Sparse) -> tuple[int, ...]:
    return value.shape if isinstance(value, Sparse) else value.array.shape


def left_over(
    graph: Mapping[str, Any], part: Mapping[str, Any], where: str
) -> Iterator[str]:
    """List removed items that a graph still contains.

    Searches each removed direction of an edge.
    """
    names = graph.get('n_id')
    ids = [v for name in _NAMED for v in part.get(name, ())]
    for pair in (*part.get('edges', ()), *part.get('directed_edges', ())):
        ids += pair
    if any(type(v) is not int for v in ids) or set(part) - _PARTS:
        raise ValueError(f"'request' needs to hold names (got {part!r})")
    if names is None:
        there = {v: v for v in ids if v in range(num_nodes(graph))}
    else:
        there = {v: row for row, v in enumerate(names.array.tolist())}
        if len(there) < len(names.array):
            raise ValueError("'n_id' needs to have every name once")
    for v in part.get('nodes', ()):
        if v in there:
            yield f'node {v}{where}'
    for v in part.get('features', ()):
        if v in there and _is_set(graph.get('x'), there[v]):
            yield f'features of node {v}{where}'
    trained = graph.get('trained', ())
    for v in part.get('labels', ()):
        if v in trained:
            yield f'the label of node {v}{where}'
    arcs = [
        *((u, v) for u, v in part.get('edges', ())),
        *((v, u) for u, v in part.get('edges', ())),
        *((u, v) for u, v in part.get('directed_edges', ())),
    ]
    if arcs:
        edges = set(map(tuple, graph['edge_index'].array.T.tolist()))
        for u, v in arcs:
            if (there.get(u), there.get(v)) in edges:
                yield f'edge {u} -> {v}{where}'


def _is_set(x: Any, row: int) -> bool:
    if isinstance(x, Sparse) and x.layout == 'torch.sparse_csr':
        start, end = x.parts[0].array[row : row + 2]
        return bool(np.any(x.parts[2].array[start:end]))
    if isinstance(x, Tensor):
        return bool(np.any(x.array[row]))
    raise ValueError('the features are no tensor with rows')
