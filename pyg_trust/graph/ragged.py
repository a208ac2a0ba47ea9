"""Rows of different lengths, one after the other, and sparse CSR tensors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def pointer(count: Tensor) -> Tensor:
    """Return the start of each row, and at the end the number of entries."""
    ptr = count.new_zeros(count.numel() + 1)
    torch.cumsum(count, 0, out=ptr[1:])
    return ptr


def ranges(start: Tensor, count: Tensor) -> Tensor:
    """List ``start[i], ..., start[i] + count[i] - 1``, row by row."""
    shift = (start - pointer(count)[:-1]).repeat_interleave(count)
    return shift + torch.arange(shift.numel(), device=count.device)


def sparse_rows(
    ptr: Tensor,
    index: Tensor,
    value: Tensor,
    size: tuple[int, int],
    layout: torch.layout = torch.sparse_csr,
) -> Tensor:
    """Make a sparse CSR or CSC tensor, without torch's beta warning.

    Args:
        ptr (Tensor): int64, ``[num_rows + 1]``: where each row (of CSC: each
            column) starts.
        index (Tensor): int64, ``[nnz]``: the column (of CSC: the row) of each
            entry. It is not checked.
        value (Tensor): ``[nnz]``: the entries.
        size (tuple[int, int]): the numbers of rows and columns.
        layout (torch.layout): :obj:`torch.sparse_csr` or
            :obj:`torch.sparse_csc`. (default: :obj:`torch.sparse_csr`)
    """
    with quiet_sparse():
        return torch.sparse_compressed_tensor(
            ptr, index, value, size, layout=layout, check_invariants=False
        )


@contextmanager
def quiet_sparse() -> Iterator[None]:
    """Silence torch's warning that sparse CSR tensors are in beta.

    A context manager: the warning is silenced inside its ``with`` block.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Sparse CS[RC] tensor support')
        yield


def pick_rows(rowptr: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Find the entries of some rows of a compressed matrix.

    Args:
        rowptr (Tensor): int64, ``[num_rows + 1]``: where each row starts.
        nodes (Tensor): int64, ``[k]``: the numbers of the rows.

    Returns:
        tuple[Tensor, Tensor]: where each of these rows starts in the second
        tensor, int64, ``[k + 1]``; and the positions of their entries in the
        matrix, int64, row by row.
    """
    count = rowptr[nodes + 1] - rowptr[nodes]
    return pointer(count), ranges(rowptr[nodes], count)
