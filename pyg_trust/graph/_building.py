"""Construction of sorted rows from lists of edges, with duplicates.

On the CPU by a counting sort in C++ (``csrc/cpu/sort.cpp``), which holds a
cursor per node and nothing per edge but the rows; elsewhere by torch.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def sparse_values(adj: Tensor) -> Tensor:
    return adj._values() if adj.layout == torch.sparse_coo else adj.values()


def weights_or_ones(name: str, value: Tensor, weighted: bool) -> Tensor | None:
    if weighted:
        return value
    if not bool((value == 1).all()):
        raise ValueError(
            f"'{name}' needs to have only ones as values, as weighted=False "
            f'(got {float(value[value != 1][0])})'
        )
    return None


def sort_edges(
    row: Tensor, col: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    # Stable, so that duplicates keep their order.
    key, perm = (row * num_nodes + col).sort(stable=True)
    return key // num_nodes, key % num_nodes, perm


def rowptr_of(row: Tensor, num_nodes: int) -> Tensor:
    rowptr = row.new_zeros(num_nodes + 1)
    rowptr[1:] = row.bincount(minlength=num_nodes).cumsum(0)
    return rowptr


class Rows(NamedTuple):
    """Sorted rows, with weights and original positions of their entries.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``.
        col (Tensor): int32, ``[num_edges]``, ascending in every row.
        weight (Tensor, optional): as :obj:`col`.
        perm (Tensor, optional): int64: the position of each entry in the list
            of edges.
        has_duplicates (bool): whether any edge occurs more than once.
    """

    rowptr: Tensor
    col: Tensor
    weight: Tensor | None
    perm: Tensor | None
    has_duplicates: bool


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
    m = edge_index.size(1)
    carry = with_perm or weight is not None
    if edge_index.device.type == 'cpu':
        rowptr, col, perm, repeated, place = _count_and_place(
            edge_index, num_nodes, carry
        )
    else:
        row, sources, perm = sort_edges(
            edge_index[0], edge_index[1], num_nodes
        )
        same = (row.diff() == 0) & (sources.diff() == 0)
        repeated = int(same.sum())
        place = int(same.nonzero()[0]) + 1 if repeated else -1
        rowptr, col = rowptr_of(row, num_nodes), sources.int()
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
        if perm is None and col.device.type == 'cpu':
            left = torch.ops.pyg_trust.merge_rows(rowptr, col)
            col = col[:left].clone()
        else:
            row = row_of_entries(rowptr)
            first = torch.ones(m, dtype=torch.bool, device=col.device)
            first[1:] = (row.diff() != 0) | (col.diff() != 0)
            if weight is not None:
                group = first.cumsum(0) - 1
                weight = weight.new_zeros(int(first.sum())).index_add_(
                    0, group, weight
                )
            rowptr, col = rowptr_of(row[first], num_nodes), col[first]
            perm = None if perm is None else perm[first]
        repeated = 0
    return Rows(rowptr, col, weight, perm if with_perm else None, repeated > 0)


def _count_and_place(
    edge_index: Tensor, num_nodes: int, carry: bool
) -> tuple[Tensor, Tensor, Tensor | None, int, int]:
    kernels = torch.ops.pyg_trust
    row, col = (index.contiguous() for index in edge_index)
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    kernels.count_rows(row, rowptr[1:])
    torch.cumsum(rowptr, 0, out=rowptr)
    out = torch.empty(row.numel(), dtype=torch.int32)
    perm = torch.empty_like(out, dtype=torch.int64) if carry else None
    cursor = rowptr[:-1].clone()
    kernels.place_rows(row, col, cursor, out, perm, 0, num_nodes)
    repeated, place = kernels.sort_rows(rowptr, out, perm)
    return rowptr, out, perm, repeated, place


def row_of_entries(rowptr: Tensor) -> Tensor:
    """Return the row of each entry: int64."""
    nodes = torch.arange(rowptr.numel() - 1, device=rowptr.device)
    return nodes.repeat_interleave(rowptr.diff())


def is_symmetric(rowptr: Tensor, col: Tensor, weight: Tensor | None) -> bool:
    """Tell whether every entry has a reverse of equal weight.

    8 bytes per node on the CPU.
    """
    if col.device.type == 'cpu':
        if weight is not None:
            weight = weight.detach().contiguous()
        return torch.ops.pyg_trust.is_symmetric(rowptr, col, weight)
    back, other, perm = transposed(rowptr, col, weight is not None)
    if not torch.equal(back, rowptr) or not torch.equal(other, col):
        return False
    return weight is None or torch.equal(weight[perm], weight)


def transposed(
    rowptr: Tensor, col: Tensor, with_perm: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows of the reversed edges; on request, their old positions."""
    if col.device.type == 'cpu':
        rows = torch.ops.pyg_trust.transpose_rows(rowptr, col, with_perm)
        return rows[0], rows[1], rows[2] if with_perm else None
    sources, perm = col.long().sort(stable=True)
    back = rowptr_of(sources, rowptr.numel() - 1)
    return back, row_of_entries(rowptr)[perm].int(), perm


def own_loops(rowptr: Tensor, col: Tensor) -> Tensor:
    """Return a mask of the nodes that have a self-loop."""
    if col.device.type == 'cpu':
        return torch.ops.pyg_trust.own_loops(rowptr, col)
    row = row_of_entries(rowptr)
    own = torch.zeros(rowptr.numel() - 1, dtype=torch.bool, device=col.device)
    own[row[row == col]] = True
    return own


def with_loops(
    rowptr: Tensor, col: Tensor, own: Tensor, with_perm: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add a self-loop at every node without one, at old position -1."""
    if col.device.type == 'cpu':
        rows = torch.ops.pyg_trust.add_loops(rowptr, col, own, with_perm)
        return rows[0], rows[1], rows[2] if with_perm else None
    loops = (~own).nonzero().view(-1)
    row, other, perm = sort_edges(
        torch.cat([row_of_entries(rowptr), loops]),
        torch.cat([col.long(), loops]),
        rowptr.numel() - 1,
    )
    perm[perm >= col.numel()] = -1
    return rowptr_of(row, rowptr.numel() - 1), other.int(), perm
