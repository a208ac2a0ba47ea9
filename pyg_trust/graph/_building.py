"""Construction of sorted rows from lists of edges, by C++ on the CPU.

A counting sort (``csrc/cpu/sort.cpp``) holds a cursor per node and nothing per
edge but the rows. Graphs on other devices are made on the CPU and copied back.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.utils import to_edge_index

from pyg_trust.graph.ragged import pick_rows
from pyg_trust.ops import PushGraph

Made = TypeVar('Made', bound=Callable[..., Any])


def _on_cpu(function: Made) -> Made:
    # Run a function of tensors on the CPU, whatever device they are on.
    @functools.wraps(function)
    def call(first: Tensor, *args: Any) -> Any:
        if first.device.type == 'cpu':
            return function(first, *args)
        host = [x.cpu() if isinstance(x, Tensor) else x for x in args]
        found, device = function(first.cpu(), *host), first.device

        def back(x: Any) -> Any:
            return x.to(device) if isinstance(x, Tensor) else x

        if isinstance(found, Rows):
            return Rows(*map(back, found))
        return tuple(map(back, found)) if type(found) is tuple else back(found)

    return call  # type: ignore[return-value]


class Rows(NamedTuple):
    """Sorted rows, with weights and original positions of their entries."""

    rowptr: Tensor
    col: Tensor
    weight: Tensor | None
    perm: Tensor | None
    has_duplicates: bool


def entries(adj: Any) -> tuple[Tensor, Tensor | None]:
    """Return the edges and values of a matrix of torch or torch_sparse.

    Entries that are there twice stay, and the matrix stays as it is.
    """
    if getattr(adj, 'layout', None) == torch.sparse_coo:
        if adj.requires_grad:  # what is not coalesced has no derivative
            adj = adj.coalesce()
            return adj.indices(), adj.values()
        return adj._indices(), adj._values()
    if not isinstance(adj, Tensor):
        row, col, value = adj.coo()
        return torch.stack([row, col]), value
    return to_edge_index(adj)


def rowptr_of(row: Tensor, num_nodes: int) -> Tensor:
    """Return where each row starts, of entries in any order."""
    rowptr = row.new_zeros(num_nodes + 1)
    rowptr[1:] = row.bincount(minlength=num_nodes).cumsum(0)
    return rowptr


def row_of_entries(rowptr: Tensor) -> Tensor:
    """Return the row of each entry: int64."""
    return torch.repeat_interleave(rowptr.diff().long())


@_on_cpu
def rows_of(
    edge_index: Tensor,
    num_nodes: int,
    weight: Tensor | None,
    with_perm: bool,
    duplicates: str,
) -> Rows:
    """Sort an ``edge_index`` whose nodes are in range into rows.

    Beside the result 8 bytes per node; 8 per edge more for weights.
    """
    kernels, m = torch.ops.pyg_trust, edge_index.size(1)
    row, source = (index.contiguous() for index in edge_index)
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    kernels.count_rows(row, rowptr[1:])
    torch.cumsum(rowptr, 0, out=rowptr)
    col, perm = torch.empty(m, dtype=torch.int32), None
    if with_perm or weight is not None:
        perm = torch.empty(m, dtype=torch.int64)
    cursor = rowptr[:-1].clone()
    kernels.place_rows(row, source, cursor, col, perm, 0, num_nodes)
    repeated, place = kernels.sort_rows(rowptr, col, perm)
    if repeated and duplicates == 'raise':
        row_of = int(torch.searchsorted(rowptr, place, right=True)) - 1
        raise ValueError(
            f"'edge_index' lists {repeated} edges more than once (the first "
            f'is {row_of} -> {int(col[place])}): they need to be merged, by '
            'torch_geometric.transforms.RemoveDuplicatedEdges() or '
            "torch_geometric.utils.coalesce(edge_index); 'duplicates' of "
            'CSRGraph.from_edge_index keeps them'
        )
    if weight is not None and perm is not None:
        weight = weight[perm]
    if repeated and duplicates == 'merge':
        if perm is None:
            col = col[: kernels.merge_rows(rowptr, col)].clone()
        else:
            row = row_of_entries(rowptr)
            first = torch.ones(m, dtype=torch.bool)
            first[1:] = (row.diff() != 0) | (col.diff() != 0)
            if weight is not None:
                group = first.cumsum(0) - 1
                weight = weight.new_zeros(int(first.sum())).index_add_(
                    0, group, weight
                )
            rowptr, col = rowptr_of(row[first], num_nodes), col[first]
            perm = perm[first]
        repeated = 0
    return Rows(rowptr, col, weight, perm if with_perm else None, repeated > 0)


@_on_cpu
def is_symmetric(rowptr: Tensor, col: Tensor, weight: Tensor | None) -> bool:
    """Return whether every entry has a reverse of equal weight.

    8 bytes per node.
    """
    if weight is not None:
        weight = weight.detach().contiguous()
    return torch.ops.pyg_trust.is_symmetric(rowptr, col, weight)


@_on_cpu
def transposed(
    rowptr: Tensor, col: Tensor, with_perm: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows of the reversed edges; on request, their old positions."""
    rows = torch.ops.pyg_trust.transpose_rows(rowptr, col, with_perm)
    return rows[0], rows[1], rows[2] if with_perm else None


@_on_cpu
def own_loops(rowptr: Tensor, col: Tensor) -> Tensor:
    """Return a mask of the nodes that have a self-loop."""
    return torch.ops.pyg_trust.own_loops(rowptr, col)


@_on_cpu
def with_loops(
    rowptr: Tensor, col: Tensor, own: Tensor, with_perm: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add a self-loop at every node without one, at old position -1."""
    rows = torch.ops.pyg_trust.add_loops(rowptr, col, own, with_perm)
    return rows[0], rows[1], rows[2] if with_perm else None


def push_layout(
    rowptr: Tensor, col: Tensor, degree: Tensor, nodes: Tensor | None
) -> PushGraph:
    """Return rows sorted by degree, of some nodes or all, without scales."""
    n, device = rowptr.numel() - 1, rowptr.device
    if nodes is None:
        row = row_of_entries(rowptr)
        target = col.long()
    else:
        start, entry = pick_rows(rowptr, nodes)
        row = nodes.repeat_interleave(start.diff())
        target, rowptr = col[entry].long(), rowptr_of(row, n)
    # Rank by degree, zero last; ties by index.
    order = torch.where(degree == 0, 2**62, degree)
    order = order.sort(stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=device)
    key = (row * n + rank[target]).sort().values
    target = order[key % n]
    # frexp is exact: 2^(exponent - 1) <= degree < 2^exponent.
    bucket = torch.frexp(degree.double()).exponent.long()
    bucket[degree == 0] = 64
    groups, count = (row * 128 + bucket[target]).unique_consecutive(
        return_counts=True
    )
    return PushGraph(
        rowptr,
        target.to(torch.int32),
        rowptr_of(groups // 128, n),
        count.cumsum(0),
    )


def largest_eigenvalue(adj: scipy.sparse.csr_array, symmetric: bool) -> float:
    """Return the largest magnitude of an eigenvalue."""
    if adj.nnz == 0:
        return 0.0
    if adj.shape[0] <= 500:
        dense = adj.toarray()
        eigenvalues = (
            np.linalg.eigvalsh(dense)
            if symmetric
            else np.linalg.eigvals(dense)
        )
        return float(np.abs(eigenvalues).max())
    import scipy.sparse.linalg  # slow to import

    solve = (
        scipy.sparse.linalg.eigsh if symmetric else scipy.sparse.linalg.eigs
    )
    start = np.ones(adj.shape[0])
    largest = solve(adj, k=1, v0=start, return_eigenvectors=False)
    return float(np.abs(largest).max())
