"""Files of tensors that are checked: weights and graphs, as safetensors.

A file is data, and as large as it says: nothing of it is run. Graphs and
sparse matrices are in the layout of :func:`pyg_trust.report.save_tensors`:
``graph/field``, or ``field`` of one graph; the parts of a sparse matrix are
``field:layout:shape:part``.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from ..verify.arrays import Tensor, fingerprint, named

__all__ = [
    'fingerprint_data',
    'fingerprint_model',
    'left_over',
    'num_nodes',
    'read_graphs',
    'read_tensors',
]

_DTYPES = {
    **{'F64': 'float64', 'F32': 'float32', 'F16': 'float16'},
    **{'BF16': 'bfloat16', 'BOOL': 'bool', 'U8': 'uint8'},
    **{f'I{bits}': f'int{bits}' for bits in (8, 16, 32, 64)},
}
# The kinds of items that a request removes from a graph.
_NODES = ('nodes', 'features', 'labels', 'changed_features', 'changed_labels')
_PARTS = {*_NODES, 'edges', 'directed_edges', 'again'}
Graph = Mapping[str, Any]


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read a file of tensors by name."""
    try:
        found = safetensors.deserialize(Path(path).read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"no file of safetensors ({error}): write it with 'pyg_trust."
            "report.save_tensors' or 'safetensors.torch.save_file'"
        ) from None
    made = {}
    for name, about in found:
        dtype = _DTYPES.get(about['dtype'])
        if dtype is None:
            raise ValueError(f'{name!r} is of the type {about["dtype"]}')
        kind = 'uint16' if dtype == 'bfloat16' else dtype
        array = np.frombuffer(about['data'], np.dtype(kind))
        made[name] = Tensor(f'torch.{dtype}', array.reshape(about['shape']))
    return made


def fingerprint_model(path: str | Path) -> str:
    """Digest a file of weights, as :mod:`pyg_trust.report` does the model."""
    parts = named(read_tensors(path), Tensor)
    return fingerprint(*parts) if parts else ''


def read_graphs(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read graphs by name, each with its tensors, or lists of their parts."""
    graphs: dict[str, dict[str, Any]] = {}
    for key, tensor in sorted(read_tensors(path).items(), key=_place):
        graph, _, field = key.rpartition('/')
        fields = graphs.setdefault(graph or '0', {})
        name, *about = field.split(':')
        if about:
            layout, shape, _ = about
            sizes = [int(size) for size in shape.split('x')]
            fields.setdefault(name, [layout, *sizes]).append(tensor)
        else:
            fields[name] = tensor
    for fields in graphs.values():
        if not {'edge_index', 'adj_t', 'num_nodes'} & fields.keys():
            raise ValueError(f'a graph has no edges (got {sorted(fields)})')
    return graphs


def _place(entry: tuple[str, Any]) -> tuple[Any, ...]:
    # Graphs in the order of a list, parts in their own.
    graph, _, field = entry[0].rpartition('/')
    return (not graph.isdecimal(), len(graph), graph, field)


def fingerprint_data(
    graphs: Mapping[str, Graph], fields: Sequence[str]
) -> str:
    """Digest graphs, as :func:`pyg_trust.report.fingerprint_data` does."""
    parts: list[Any] = []
    for graph in graphs.values():
        for name in fields:
            value = graph.get(name)
            if name == 'num_nodes':
                value = num_nodes(graph)
            each = value if isinstance(value, list) else [value]
            if each[0] == 'sparse' and len(each) < 6:
                each = [*each, None]  # torch_sparse has no values
            parts += [name, *each]
    return fingerprint(*parts)


def num_nodes(graph: Graph) -> int:
    """Count nodes by their number, rows or ids, else by the edges."""
    if 'num_nodes' in graph:
        return int(graph['num_nodes'].array)
    for name in ('x', 'n_id'):
        if isinstance(graph.get(name), Tensor):
            return len(graph[name].array)
    edges = graph['edge_index'].array
    return int(edges.max()) + 1 if edges.size else 0


def left_over(
    graph: Graph, part: Mapping[str, Any], where: str
) -> Iterator[str]:
    """List removed items that a graph still has.

    Each removed direction of an edge is looked for.
    """
    ids = [v for name in _NODES for v in part.get(name, ())]
    pairs = [*part.get('edges', ()), *part.get('directed_edges', ())]
    ids += [v for pair in pairs for v in pair]
    if any(type(v) is not int for v in ids) or set(part) - _PARTS:
        raise ValueError(f"'request' needs to hold ids (got {part!r})")
    if 'n_id' in graph:
        held = graph['n_id'].array.tolist()
        there = {v: row for row, v in enumerate(held)}
        if len(there) < len(held):
            raise ValueError("'n_id' needs to have every id once")
    else:
        there = {v: v for v in ids if v in range(num_nodes(graph))}
    for v in part.get('nodes', ()):
        if v in there:
            yield f'node {v}{where}'
    for v in part.get('features', ()):
        if v in there and _is_set(graph.get('x'), there[v]):
            yield f'features of node {v}{where}'
    for v in part.get('labels', ()):
        if v in graph.get('trained', ()):
            yield f'the label of node {v}{where}'
    pairs += [(v, u) for u, v in part.get('edges', ())]
    if pairs:
        edges = set(map(tuple, graph['edge_index'].array.T.tolist()))
        for u, v in pairs:
            if (there.get(u), there.get(v)) in edges:
                yield f'edge {u} -> {v}{where}'


def _is_set(x: Any, row: int) -> bool:
    if isinstance(x, Tensor):
        return bool(np.any(x.array[row]))
    if isinstance(x, list) and x[0] == 'torch.sparse_csr':
        ptr, _, values = x[-3:]
        return bool(np.any(values.array[slice(*ptr.array[row : row + 2])]))
    raise ValueError('the features are no tensor with rows')
