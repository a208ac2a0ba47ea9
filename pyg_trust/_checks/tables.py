"""Detection of table columns and rows that contain other persons' data."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks.degrees import (
    FREE,
    KINDS,
    LINE,
    MEMBERS,
    on_a_line,
    one_for_each,
)

# Rows back in which a lagged column is searched for.
_LAGS = 8
# Logarithm of the number of orders of which one comes by chance.
_CHANCE = 14
# Columns of a sparse attribute at a time.
_BLOCK = 64


def tells_counts(x: Tensor, count: Tensor) -> bool:
    """Tell whether a column of features is a count or a rank.

    It does if it rises, or falls, wherever the count does; if it is on a line
    with the count; or if it has one value for each count. An order that comes
    by chance once in a million is let pass.

    Args:
        x (Tensor): ``[num_rows, num_columns]``.
        count (Tensor): int64, ``[num_rows]``: the counts.
    """
    values, back, size = count.unique(return_inverse=True, return_counts=True)
    ways = torch.lgamma(torch.tensor(len(x) + 1.0))
    ways = ways - torch.lgamma(size + 1.0).sum()
    if values.numel() < 3:
        return False
    x = x.double()
    if len(x) >= LINE and bool(on_a_line(x, count).any()):
        return True
    often = size >= MEMBERS
    if int(often.sum()) >= KINDS and int((size[often] - 1).sum()) >= FREE:
        inside = often[back]
        if bool(one_for_each(x[inside], count[inside]).any()):
            return True
    if float(ways) < _CHANCE:
        return False
    shape = (values.numel(), x.size(1))
    index = back[:, None].expand_as(x)
    empty = torch.full(shape, torch.inf, dtype=torch.float64)
    low = empty.scatter_reduce(0, index, x, 'amin')
    high = (-empty).scatter_reduce(0, index, x, 'amax')
    moves = (high != high[:1]).any(0)
    rises = (low[1:] >= high[:-1]).all(0)
    falls = (high[1:] <= low[:-1]).all(0)
    distinct = torch.tensor([column.unique().numel() >= 3 for column in x.t()])
    return bool(((rises | falls) & moves & distinct).any())


def lag(x: Tensor, owner: Tensor) -> int:
    """Return the number of rows by which a column is shifted against another.

    Args:
        x (Tensor): ``[num_rows, num_columns]``.
        owner (Tensor): int64, ``[num_rows]``: the owner of each row.

    Returns:
        int: the shift; 0 if there is none.
    """
    n = len(x)
    for k in range(1, min(_LAGS, n - 8) + 1):
        strange = (owner[k:] != owner[:-k]).nonzero().view(-1)
        if strange.numel() < 8:
            continue
        few = strange[:64]
        like = (x[few + k][:, :, None] == x[few][:, None, :]).all(0)
        for a, b in like.nonzero().tolist():
            later, before = x[strange + k, a], x[strange, b]
            if torch.equal(later, before) and before.unique().numel() > 3:
                return k
    return 0


def shares_rows(
    a: Tensor, owner_a: Tensor, b: Tensor, owner_b: Tensor
) -> bool:
    """Tell whether two tables share a row under different owners.

    The row is there once in both, and is no constant.

    Args:
        a (Tensor): ``[num_rows, num_columns]``: one table.
        owner_a (Tensor): int64, ``[num_rows]``: the owners of its rows.
        b (Tensor): the other table.
        owner_b (Tensor): the owners of its rows.
    """
    if a.size(1) != b.size(1) or a.dtype != b.dtype or a.size(1) < 2:
        return False
    rows, back, count = torch.cat([a, b]).unique(
        dim=0, return_inverse=True, return_counts=True
    )
    first, second = back[: len(a)], back[len(a) :]
    n = len(rows)
    twice = (count == 2) & (rows != rows[:, :1]).any(1)
    twice &= torch.bincount(first, minlength=n) == 1
    place = torch.zeros((2, n), dtype=torch.int64)
    place[0, first], place[1, second] = owner_a, owner_b
    return bool((place[0] != place[1])[twice].any())


def columns(store: Any) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the numbers that a node type has for each of its rows.

    Masks and names (``n_id``) are left out. Wide sparse attributes come in
    blocks of columns.

    Args:
        store (NodeStorage): the node type.

    Yields:
        tuple[str, Tensor]: the attribute and its matrix, dense.
    """
    for key, value in store.items():
        if key == 'n_id' or not _in_rows(store, key, value):
            continue
        if value.dtype == torch.bool or value.is_complex():
            continue
        if value.layout == torch.strided:
            yield key, value.reshape(len(value), -1)
        elif value.dim() == 2:
            for block in torch.arange(value.size(1)).split(_BLOCK):
                some = value.to_sparse_coo().index_select(1, block)
                yield key, some.to_dense()


def _in_rows(store: Any, key: str, value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.dim():
        return False
    if 'index' in key or key == 'ptr':
        return False
    edges = isinstance(store._key, tuple)
    return value.size(0) == (store.num_edges if edges else store.num_nodes)


def has_rows(store: Any, key: str, value: Any) -> bool:
    """Tell whether an attribute has a row for each node or edge.

    Args:
        store (NodeStorage or EdgeStorage): where it stands.
        key (str): its name.
        value (Any): the attribute.

    Raises:
        ValueError: if it may hold other rows, which a removal would keep.
    """
    if isinstance(value, str | int | float):
        return False
    if isinstance(value, Tensor) and not value.dim():
        return False
    if _in_rows(store, key, value):
        return True
    raise ValueError(
        "'data' needs tensors with a row for each node or edge (got "
        f'{key!r} of {store._key}): take it off first'
    )
