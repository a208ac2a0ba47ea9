"""Which attributes of a PyG graph have a row per node or edge, and subgraphs.

A name and PyG's ``__cat_dim__`` and ``__inc__`` say what an attribute is, and
its length has to agree; a length alone says nothing.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_sparse

from pyg_trust._checks.graphs import check_edges
from pyg_trust.graph.ragged import quiet_sparse

# What PyG documents as attributes of nodes or of the whole graph, and marks.
_NO_EDGES = ('x', 'y', 'pos', 'batch', 'ptr', 'n_id', 'propagated', 'own_of')


def edge_attributes(data: Data) -> dict[str, int]:
    """Return the attributes with a row per edge, ``edge_index`` among them.

    Labelled pairs (``edge_label`` beside an ``edge_label_index``,
    ``neg_edge_index``, ...) are no edges, however many there are.
    """
    size, pairs = data.edge_index.size(1), pair_attributes(data)
    others = {name for group in pairs.values() for name in group}
    dims, matrices = {'edge_index': 1}, adjacencies(data)
    for name, value in data.to_dict().items():
        if name in (*dims, *_NO_EDGES, *pairs, *others, *matrices):
            continue
        dim = _dim(data, name, value, size)
        # PyG's rule where a graph has as many edges as nodes.
        if dim is not None and (size != data.num_nodes or 'edge' in name):
            dims[name] = dim
    return dims


def node_attributes(data: Data) -> dict[str, int]:
    """Return the attributes with a row per node."""
    pairs = pair_attributes(data)
    taken = {*edge_attributes(data), *pairs, *adjacencies(data)}
    taken |= {'propagated', 'own_of'}
    taken.update(name for group in pairs.values() for name in group)
    dims = {}
    for name, value in data.to_dict().items():
        dim = _dim(data, name, value, int(data.num_nodes or 0))
        if dim is not None and name not in taken:
            dims[name] = dim
    return dims


def pair_attributes(data: Data) -> dict[str, list[str]]:
    """Return indices of nodes beside ``edge_index``, and what goes with them.

    They are those that PyG increments by the number of nodes in a batch, as
    ``edge_label_index``, ``neg_edge_index`` and ``face``. An attribute whose
    name starts like that of the index, as ``edge_label``, has a row for each.
    """
    n = int(data.num_nodes or 0)
    found: dict[str, list[str]] = {}
    for name, value in data.to_dict().items():
        if (
            n > 0
            and name not in ('edge_index', 'batch', 'ptr')
            and isinstance(value, Tensor)
            and value.layout == torch.strided
            and value.dim() > 0
            and not (value.is_floating_point() or value.dtype == torch.bool)
            and _increment(data, name, value) == n
        ):
            found[name] = []
    stems = {name.removesuffix('_index'): name for name in found}
    for name, value in data.to_dict().items():
        stem = max(
            (s for s in stems if name == s or name.startswith(f'{s}_')),
            key=len,
            default=None,
        )
        if stem is not None and name not in found:
            index = stems[stem]
            size = data[index].size(data.__cat_dim__(index, data[index]))
            if _dim(data, name, value, size) is not None:
                found[index].append(name)
    return found


def adjacencies(data: Data) -> list[str]:
    """Return the names of matrices that repeat the edges."""
    size = (data.num_nodes, data.num_nodes)
    return [
        name
        for name, value in data.to_dict().items()
        if 'adj' in name
        and (isinstance(value, Tensor) or is_sparse(value))
        and tuple(getattr(value, 'sizes', value.size)()) == size
    ]


def select(value: Any, index: Tensor, dim: int = 0) -> Any:
    """Return the entries of a tensor, array, list or tuple at an index."""
    if isinstance(value, Tensor):
        return value.index_select(dim, index.to(value.device))
    if isinstance(value, np.ndarray):
        return value.take(index.cpu().numpy(), axis=dim)
    if isinstance(value, list | tuple):
        return type(value)([value[i] for i in index.tolist()])
    return value[index]


def keep_edges(data: Data, keep: Tensor) -> Data:
    """Keep some edges of a graph, in place, with all their attributes."""
    refuse_adjacencies(data)
    index = keep.nonzero().view(-1)
    for name, dim in edge_attributes(data).items():
        data[name] = select(data[name], index, dim)
    _forget_kinds(data)
    return data


def refuse_adjacencies(data: Data) -> None:
    """Refuse a second copy of the edges, which would keep the old ones."""
    for name in adjacencies(data):
        raise ValueError(
            f"'data' has '{name}' beside 'edge_index': it would keep the old "
            f'edges. Delete it first (del data.{name}) and make it again from '
            'the result (torch_geometric.transforms.ToSparseTensor())'
        )


def subgraph(data: Data, node: Tensor, edge: Tensor | None = None) -> Data:
    """Return the graph that some nodes induce.

    Attributes of nodes and edges follow; labelled pairs and other indices of
    nodes stay where all of their nodes are there; sparse matrices are cut.
    """
    n = int(data.num_nodes or 0)
    edges, nodes = edge_attributes(data), node_attributes(data)
    place = torch.full((n,), -1, dtype=torch.int64, device=node.device)
    place[node] = torch.arange(node.numel(), device=node.device)
    ends = check_edges('edge_index', data.edge_index, n).to(node.device)
    if edge is None:
        edge = (place[ends] >= 0).all(0).nonzero().view(-1)
    out = copy.copy(data)
    for name in adjacencies(data):
        out[name] = _cut(data[name], node)
    for name, dim in nodes.items():
        out[name] = select(data[name], node, dim)
    for name, dim in edges.items():
        if name != 'edge_index':
            out[name] = select(data[name], edge, dim)
    out.edge_index = place[ends[:, edge]].to(data.edge_index.device)
    for name, group in pair_attributes(data).items():
        dim = data.__cat_dim__(name, data[name])
        value = place[data[name].to(node.device).long()].movedim(dim, -1)
        rows = (
            (value >= 0).reshape(-1, value.size(-1)).all(0).nonzero().view(-1)
        )
        index = value.index_select(-1, rows).movedim(-1, dim)
        out[name] = index.to(data[name].device)
        for other in group:
            at = data.__cat_dim__(other, data[other])
            out[other] = select(data[other], rows, at)
    out.num_nodes = node.numel()
    _forget_kinds(out)
    return out


def _cut(adj: Any, node: Tensor) -> Any:
    # torch selects from COO matrices alone.
    node = node.to(adj.device() if callable(adj.device) else adj.device)
    if not isinstance(adj, Tensor):
        return adj.index_select(0, node).index_select(1, node)
    if adj.layout == torch.strided:
        return adj[node][:, node]
    out = adj.to_sparse_coo().index_select(0, node).index_select(1, node)
    with quiet_sparse():
        return out.coalesce().to_sparse(layout=adj.layout)


def _increment(data: Data, name: str, value: Any) -> Any:
    # A subclass may have an increment for its own attributes alone.
    increment = data.__inc__(name, value)
    return increment if isinstance(increment, int) else None


def _dim(data: Data, name: str, value: Any, size: int) -> int | None:
    # The dimension in which an attribute has so many rows.
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim == 0:
            return None
        dim = data.__cat_dim__(name, value)
        if not isinstance(dim, int) or not -value.ndim <= dim < value.ndim:
            return None
        return dim % value.ndim if value.shape[dim] == size else None
    if isinstance(value, list | tuple) or hasattr(value, 'num_rows'):
        return 0 if len(value) == size else None
    return None


def _forget_kinds(data: Data) -> None:
    # PyG remembers what is an attribute of edges by the old lengths.
    data._store.__dict__.pop('_cached_attr', None)
