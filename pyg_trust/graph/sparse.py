"""Construction of sparse CSR tensors, and selection of rows."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_nodes,
    check_tensor,
)
from pyg_trust.graph.ragged import pointer, ranges


def sparse_rows(
    ptr: Tensor,
    index: Tensor,
    value: Tensor,
    size: tuple[int, int],
    layout: torch.layout = torch.sparse_csr,
) -> Tensor:
    """Make a sparse CSR (or CSC) tensor without torch's warning.

    Args:
        ptr (Tensor): int64 or int32: where each row (column) starts.
        index (Tensor): as :obj:`ptr`: the columns (rows) of its entries.
        value (Tensor): the values of its entries.
        size (tuple[int, int]): the shape.
        layout (torch.layout): :obj:`torch.sparse_csr` or
            :obj:`torch.sparse_csc`. (default: :obj:`torch.sparse_csr`)
    """
    if layout not in (torch.sparse_csr, torch.sparse_csc):
        raise ValueError(
            "'layout' needs to be torch.sparse_csr or torch.sparse_csc "
            f'(got {layout!r})'
        )
    check_instance('size', size, tuple)
    if len(size) != 2:
        raise ValueError(f"'size' needs to have two entries (got {len(size)})")
    for length in size:
        check_integer('size', length, 0)
    dtype = (torch.int64, torch.int32)
    major = size[0] if layout == torch.sparse_csr else size[1]
    check_tensor('ptr', ptr, dtype, (major + 1,))
    check_tensor('index', index, dtype, ('nnz',))
    check_instance('value', value, Tensor)
    if value.shape[:1] != index.shape:
        raise ValueError(
            f"'value' needs to have {index.numel()} entries, as 'index' "
            f'(got the shape {list(value.shape)})'
        )
    with quiet_sparse():
        return torch.sparse_compressed_tensor(
            ptr, index, value, size, layout=layout, check_invariants=False
        )


@contextmanager
def quiet_sparse() -> Iterator[None]:
    """Silence torch's warning, once per process, that CSR tensors are new.

    For blocks in which we make them, or make layers of PyG do so.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Sparse CS[RC] tensor support')
        yield


def pick_rows(rowptr: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the starts and entries of some rows, concatenated.

    Args:
        rowptr (Tensor): int64: where each row starts.
        nodes (Tensor): int64: the rows.
    """
    check_tensor('rowptr', rowptr, torch.int64, ('num_rows + 1',))
    if rowptr.numel() == 0:
        raise ValueError("'rowptr' needs at least one entry (got none)")
    nodes = check_nodes('nodes', nodes, rowptr.numel() - 1)
    count = rowptr[nodes + 1] - rowptr[nodes]
    return pointer(count), ranges(rowptr[nodes], count)
