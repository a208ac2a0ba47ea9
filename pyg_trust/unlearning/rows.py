"""Rows of feature matrices, dense or sparse CSR."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_trust._checks import check_tensor
from pyg_trust.graph import sparse_rows
from pyg_trust.graph.ragged import pointer, ranges


def gram(Z: Tensor) -> Tensor:
    r"""Compute :math:`Z Z^\top`, dense.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return Z @ Z.t()
    # Empty columns add nothing.
    col = Z.col_indices()
    present = torch.zeros(Z.size(1), dtype=torch.bool, device=Z.device)
    present[col] = True
    place = present.cumsum(0) - 1
    narrow = Z.values().new_zeros((Z.size(0), int(present.sum())))
    narrow[_row(Z), place[col]] = Z.values()
    return narrow @ narrow.t()


def spectral_norm(Z: Tensor, K: Tensor | None = None) -> float:
    r"""Bound :math:`\lVert Z \rVert_2` from above, exact up to rounding.

    The root of the largest eigenvalue of the smaller Gram matrix, from all
    its eigenvalues, raised by :math:`10^{-12}` of it for rounding. (Power
    iterations, which the paper's code uses, approach it from below and bound
    nothing.)

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
    """
    if K is None:
        narrow = Z.size(1) < Z.size(0) and Z.layout == torch.strided
        K = Z.t() @ Z if narrow else gram(Z)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    return math.sqrt(max(largest, 0.0)) * (1 + 1e-12)


def transposed_times(Z: Tensor, U: Tensor) -> Tensor:
    r"""Compute :math:`Z^\top U`.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        U (Tensor): ``[n, C]``.
    """
    if Z.layout == torch.strided:
        return Z.t() @ U
    count = Z.crow_indices().diff()
    columns = [
        torch.bincount(
            Z.col_indices(),
            Z.values() * column.repeat_interleave(count),
            minlength=Z.size(1),
        )
        for column in U.t()
    ]
    return torch.stack(columns, dim=1)


def max_row_norm(Z: Tensor) -> float:
    """Return the largest Euclidean norm of a row.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return float(Z.norm(dim=1).max())
    squares = Z.values().new_zeros(Z.size(0))
    squares.index_add_(0, _row(Z), Z.values().square())
    return float(squares.max().sqrt())


def dense_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Return some rows as a dense matrix.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    ends = Z.crow_indices().tolist()
    col, value = Z.col_indices(), Z.values()
    rows = value.new_zeros((index.numel(), Z.size(1)))
    for row, i in zip(rows, index.tolist(), strict=True):
        row[col[ends[i] : ends[i + 1]]] = value[ends[i] : ends[i + 1]]
    return rows


def replace_rows(Z: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Copy the matrix and replace some rows.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``: the places.
        rows (Tensor): of the layout of :obj:`Z`, ``[k, d]``.
    """
    if Z.layout == torch.strided:
        return Z.index_copy(0, index, rows)
    crow, new = Z.crow_indices(), rows.crow_indices()
    count = crow.diff().index_copy(0, index, new.diff())
    ends, starts = crow.tolist(), new.tolist()
    place = {row: k for k, row in enumerate(index.tolist())}

    def spliced(old: Tensor, added: Tensor) -> Tensor:
        cuts, last = [], 0
        for row in sorted(place):
            k = place[row]
            cuts.append(old[last : ends[row]])
            cuts.append(added[starts[k] : starts[k + 1]])
            last = ends[row + 1]
        return torch.cat([*cuts, old[last:]])

    return sparse_rows(
        pointer(count),
        spliced(Z.col_indices(), rows.col_indices()),
        spliced(Z.values(), rows.values()),
        (Z.size(0), Z.size(1)),
    )


def keep_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Copy some rows, in the layout of :obj:`Z`.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    crow = Z.crow_indices()
    count = crow.diff()[index]
    at = ranges(crow[index], count)
    return sparse_rows(
        pointer(count),
        Z.col_indices()[at],
        Z.values()[at],
        (index.numel(), Z.size(1)),
    )


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Stack matrices below one another.

    Args:
        parts (list[Tensor]): matrices ``[n_i, d]``, all dense or all sparse
            CSR.
    """
    if parts[0].layout == torch.strided:
        return torch.cat(list(parts))
    counts = torch.cat([part.crow_indices().diff() for part in parts])
    return sparse_rows(
        pointer(counts).to(parts[0].crow_indices().dtype),
        torch.cat([part.col_indices() for part in parts]),
        torch.cat([part.values() for part in parts]),
        (counts.numel(), parts[0].size(1)),
    )


def check_rows(
    Z: Tensor, K: Tensor | None = None, *, finite: bool = False
) -> None:
    """Refuse a matrix or a Gram matrix of another layout, shape or dtype.

    Args:
        Z (Tensor): the matrix.
        K (Tensor, optional): :func:`gram`. (default: :obj:`None`)
        finite (bool): whether to refuse NaN and infinity too.
            (default: :obj:`False`)
    """
    check_tensor('Z', Z, None, ('n', 'd'))
    if Z.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(
            f"'Z' needs to be dense or sparse CSR (got {Z.layout})"
        )
    entries = Z if Z.layout == torch.strided else Z.values()
    if finite and not bool(entries.isfinite().all()):
        raise ValueError("'Z' needs to be finite (got NaN or infinity)")
    if K is not None:
        check_tensor('K', K, None, (Z.size(0), Z.size(0)), finite=finite)


def _row(Z: Tensor) -> Tensor:
    rows = torch.arange(Z.size(0), device=Z.device)
    return rows.repeat_interleave(Z.crow_indices().diff())
