"""Rows of feature matrices, dense or sparse CSR."""

import math
from collections.abc import Sequence
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._checks import check_tensor
from pyg_trust.graph import sparse_rows

__all__ = [
    'check_rows',
    'gram',
    'keep_rows',
    'max_row_norm',
    'spectral_norm',
    'stacked',
    'times',
    'transposed_times',
]


def gram(Z: Tensor) -> Tensor:
    r"""Compute :math:`Z Z^\top`, dense."""
    if Z.layout == torch.strided:
        return Z @ Z.t()
    made = _scipy(Z)
    return torch.from_numpy((made @ made.T).toarray())


def spectral_norm(Z: Tensor, K: Tensor | None = None) -> float:
    r"""Bound :math:`\lVert Z \rVert_2` from above, exact up to rounding.

    The root of the largest eigenvalue of the smaller Gram matrix, from all
    its eigenvalues, raised by :math:`10^{-12}` of it for rounding.
    """
    if K is None:
        narrow = Z.size(1) < Z.size(0) and Z.layout == torch.strided
        K = Z.t() @ Z if narrow else gram(Z)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    return math.sqrt(max(largest, 0.0)) * (1 + 1e-12)


def times(Z: Tensor, W: Tensor) -> Tensor:
    r"""Compute :math:`ZW`, for few columns: twice as fast from rows."""
    if Z.layout != torch.strided:
        return Z @ W
    return torch.nn.functional.linear(Z, W.t().contiguous())


def transposed_times(Z: Tensor, U: Tensor) -> Tensor:
    r"""Compute :math:`Z^\top U`, for few columns."""
    if Z.layout == torch.strided:
        return (U.t().contiguous() @ Z).t().contiguous()
    return torch.from_numpy(_scipy(Z).T @ U.numpy())


def max_row_norm(Z: Tensor) -> float:
    """Return the largest Euclidean norm of a row."""
    if Z.layout == torch.strided:
        return float(Z.norm(dim=1).max())
    return float(_scipy(Z).power(2).sum(axis=1).max()) ** 0.5


def keep_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Copy some rows, in the layout of :obj:`Z`."""
    if Z.layout == torch.strided:
        return Z[index]
    return _torch(_scipy(Z)[index.numpy()])


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Stack matrices below one another."""
    if parts[0].layout == torch.strided:
        return torch.cat(list(parts))
    return _torch(scipy.sparse.vstack([*map(_scipy, parts)], format='csr'))


def check_rows(
    Z: Tensor, K: Tensor | None = None, *, finite: bool = False
) -> None:
    """Refuse a matrix or a Gram matrix of another layout, shape or dtype."""
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


def _scipy(Z: Tensor) -> Any:
    held = Z.values(), Z.col_indices(), Z.crow_indices()
    return scipy.sparse.csr_matrix(
        tuple(part.numpy() for part in held), shape=tuple(Z.shape)
    )


def _torch(made: Any) -> Tensor:
    crow, col = torch.from_numpy(made.indptr), torch.from_numpy(made.indices)
    values = torch.from_numpy(made.data)
    return sparse_rows(crow.long(), col.long(), values, made.shape)
