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

    The arguments are those of ``torch.sparse_compressed_tensor``: where
    each row (of CSC: each column) starts, the index of each entry's column (of
    CSC: row), the entries, the shape and the layout. They are not checked.
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
    """Find where the entries of some rows of a compressed matrix are.

    Args:
        rowptr (Tensor): int64, ``[num_rows + 1]``: where each row starts.
        nodes (Tensor): int64, ``[k]``: the numbers of the rows to find.

    Returns:
        tuple[Tensor, Tensor]: ``ptr``, int64, ``[k + 1]``, and ``where``,
        int64: the entries of row ``nodes[i]`` are at the positions
        ``where[ptr[i]:ptr[i + 1]]``.
    """
    count = rowptr[nodes + 1] - rowptr[nodes]
    return pointer(count), ranges(rowptr[nodes], count)
