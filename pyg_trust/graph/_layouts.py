"""Layouts of a graph's rows for pushes, and its spectral radius."""

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust.graph import _building as building
from pyg_trust.graph.sparse import pick_rows
from pyg_trust.ops import PushGraph


def push_graph(
    rowptr: Tensor, col: Tensor, degree: Tensor, nodes: Tensor | None
) -> PushGraph:
    """Sort rows by degree into a ``PushGraph`` without a scale."""
    n, device = rowptr.numel() - 1, rowptr.device
    if nodes is None:
        row = building.row_of_entries(rowptr)
        target = col.long()
    else:
        start, entry = pick_rows(rowptr, nodes)
        row = nodes.repeat_interleave(start.diff())
        target, rowptr = col[entry].long(), building.rowptr_of(row, n)
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
        building.rowptr_of(groups // 128, n),
        count.cumsum(0),
    )


def spectral_radius(adj: scipy.sparse.csr_array, symmetric: bool) -> float:
    """Return the largest magnitude of an eigenvalue, in float64."""
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
