"""Typed graphs as tables: views, rows and edges that are cut, metapaths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import with_edge_index

__all__ = ['Cascade']

EdgeType = tuple[str, str, str]
# scipy has no types.
Matrix: TypeAlias = Any
# Edge types that agree on so much, and not on all, are neither a pair of
# mirrors nor two relations.
_NEARLY = 0.9
# The types of a graph that has one.
NODE, EDGE = 'node', ('node', 'to', 'node')


@dataclass(frozen=True)
class Cascade:
    """Rows and edges of a typed graph that are removed along with persons.

    Args:
        rows (dict[str, Tensor]): by node type, the numbers of the removed
            rows: int64, ascending.
        edges (dict[tuple[str, str, str], Tensor]): by edge type, the positions
            of the removed edges in its ``edge_index``: int64, ascending.
    """

    rows: dict[str, Tensor]
    edges: dict[EdgeType, Tensor]


def typed(data: Data | HeteroData) -> HeteroData:
    """Return a graph of one type as a typed one, of the same tensors."""
    data = with_edge_index(data)
    if isinstance(data, HeteroData):
        return data
    made = HeteroData()
    for key, value in data.items():
        if key == 'edge_index' or data.is_edge_attr(key):
            if value is not None:
                made[EDGE][key] = value
        elif key != 'num_nodes':
            (made[NODE] if data.is_node_attr(key) else made)[key] = value
    made[NODE].num_nodes = data.num_nodes
    return made


def without(given: Data | HeteroData, gone: Cascade) -> Any:
    """Return a graph without some rows and edges, and ``n_id`` of others."""
    data, out = typed(given), HeteroData()
    for key, value in data._global_store.items():
        if not isinstance(value, str | int | float):
            raise ValueError(
                "'data' needs strings or numbers as attributes of the whole "
                f'graph (got {key!r}, a {type(value).__name__}): take it off '
                'first'
            )
        out[key] = value
    place = {}
    for t in data.node_types:
        keep = kept(int(data[t].num_nodes), gone.rows.get(t))
        place[t] = keep.cumsum(0) - 1
        for key, value in data[t].items():
            rows = has_rows(data[t], key, value)
            out[t][key] = value[keep] if rows else value
        out[t].num_nodes = int(keep.sum())
        if 'n_id' not in data[t]:
            out[t].n_id = keep.nonzero().view(-1)
    for e in data.edge_types:
        keep = kept(data[e].num_edges, gone.edges.get(e))
        for key, value in data[e].items():
            if key != 'edge_index':
                rows = has_rows(data[e], key, value)
                out[e][key] = value[keep] if rows else value
        ends = zip(e[::2], data[e].edge_index[:, keep], strict=True)
        out[e].edge_index = torch.stack([place[t][end] for t, end in ends])
    if isinstance(given, HeteroData):
        return out
    plain = Data(**out._global_store, **out[NODE])
    for key, value in out[EDGE].items() if out.edge_types else ():
        plain[key] = value
    return plain


def digest(data: HeteroData) -> str:
    """Digest the types, sizes and edges of a typed graph."""
    parts: list[Tensor | str | float | None] = []
    for t in sorted(data.node_types):
        parts += [t, int(data[t].num_nodes)]
    for e in sorted(data.edge_types):
        parts += ['/'.join(e), data[e].edge_index]
    return fingerprint(*parts)


def kept(size: int, gone: Tensor | None) -> Tensor:
    """Return a mask of the places that are not gone."""
    keep = torch.ones(size, dtype=torch.bool)
    if gone is not None:
        keep[gone] = False
    return keep


def has_rows(store: Any, key: str, value: Any) -> bool:
    """Return whether an attribute has a row for each node or edge."""
    if isinstance(value, str | int | float):
        return False
    if isinstance(value, Tensor):
        if not value.dim():
            return False
        edges = isinstance(store._key, tuple)
        size = store.num_edges if edges else store.num_nodes
        if value.size(0) == size and 'index' not in key and key != 'ptr':
            return True
    raise ValueError(
        "'data' needs tensors with a row for each node or edge (got "
        f'{key!r} of {store._key}): take it off first'
    )


def known(
    edge_type: Any, edges: Mapping[EdgeType, Tensor], name: str
) -> EdgeType:
    """Return an edge type, or refuse it by the name of its argument."""
    given = tuple(edge_type) if isinstance(edge_type, list) else edge_type
    if given not in edges:
        raise ValueError(
            f"'{name}' needs to be one of the edge types {list(edges)} (got "
            f'{edge_type!r})'
        )
    return given


def path_steps(
    path: Sequence[EdgeType], node_type: str, edges: Mapping[EdgeType, Tensor]
) -> list[tuple[EdgeType, str, str, Tensor]]:
    """Return edge type, receiver, sender and edges of each step of a metapath.

    Edges have receivers first.
    """
    made, at = [], node_type
    for given in path:
        e = known(given, edges, 'path')
        receiver, index = at, edges[e]
        if e[0] == at:
            at = e[2]
        elif e[2] == at:
            at, index = e[0], index.flip(0)
        else:
            raise ValueError(
                f"'path' needs steps that follow each other (got {e} at "
                f'{at!r})'
            )
        made.append((e, receiver, at, index))
    if not made:
        raise ValueError("'path' needs to have a step (got none)")
    return made


def mirrors(
    edges: Mapping[EdgeType, Tensor], sizes: Mapping[str, int]
) -> dict[EdgeType, EdgeType]:
    """Return edge types that hold the same edges, in opposite directions."""
    made: dict[EdgeType, EdgeType] = {}
    for one, other in combinations(edges, 2):
        if (one[0], one[2]) != (other[2], other[0]):
            continue
        width = max(sizes[one[2]], 1)
        source, target = edges[one]
        keys = (source * width + target).unique()
        target, source = edges[other]
        back = (source * width + target).unique()
        both = int(torch.isin(keys, back).sum())
        most = max(keys.numel(), back.numel())
        if both == most and most:
            made[one], made[other] = other, one
        elif both > _NEARLY * most:
            raise ValueError(
                f"'data' needs {one} and {other} to hold the same edges (got "
                'most of them in both, and not all): make one of the other by '
                'ToUndirected, or drop one'
            )
    return made


def matrix(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Matrix:
    """Return a matrix of ones at places, whatever is there twice."""
    ones = np.ones(len(rows), dtype=np.int64)
    at = rows.numpy(), columns.numpy()
    made = scipy.sparse.csr_array((ones, at), shape)
    made.sum_duplicates()
    made.data[:] = 1
    return made


def few(values: Matrix, most: int) -> Matrix:
    """Keep the ones of rows that have not more than so many."""
    made, count = values.copy(), np.diff(values.indptr)
    made.data = np.repeat(count <= most, count).astype(np.int64)
    made.eliminate_zeros()
    return made
