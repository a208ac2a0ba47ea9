"""Rows that propagation has made, known again wherever they are used.

A :class:`~torch_geometric.data.Data` object says by ``propagated`` which of
its features are not a node's own. A new object, or a part of the rows, does
not. So what the last eight propagations made is remembered, as long as the
process lives, in three ways:

- a hash of the values of each row, in single precision: known again in
  another order, in part, in float64 or sparse;
- the direction of a projection of each row: known again in half precision, or
  where rows were brought to some norm, as long as they are in their places;
- the direction of a centred projection of each column: known again in half
  precision, scaled, shifted or standardised, and among other columns.

Rows and columns that the features had before are nobody else's, and are left
out. What mixes columns (a product with a matrix, PCA) is not known again.
"""

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

_MOST = 2**20
_NUMBERS = 2**18
# Of rows that are the same by chance: an isolated node's, or all zeros.
_SHARE = 0.1
# Projections are of so many rows, to so many numbers, and closer than this
# if they are of the same: half precision has 11 bits.
_ROWS = 2**14
_COLUMNS = 512
_NUMBER = 4
_CLOSE = 4e-3
# Fewer numbers point the same way by chance.
_LEAST = 8


class _Kept(NamedTuple):
    hashes: Tensor
    shape: tuple[int, ...]
    rows: Tensor
    columns: Tensor


_KEPT: deque[_Kept] = deque(maxlen=8)


def remember(before: Tensor, after: Tensor) -> None:
    """Remembers the rows that changed (the first million of them)."""
    old, new = hashes(_first(before, _MOST)), hashes(_first(after, _MOST))
    new = new[~torch.isin(new, old)].unique()
    rows, columns = _directions(after)
    was_rows, was_columns = _directions(before)
    if before.shape == after.shape:
        rows = _less(rows, was_rows)
    # New columns stand behind those that are kept.
    columns = _less(columns, was_columns)
    if len(columns) <= _COLUMNS:
        columns = columns[~_any_close(columns, was_columns)]
    _KEPT.append(_Kept(new, tuple(after.shape), rows, columns))


def share(value: Tensor) -> float:
    """The largest share of rows, or columns, that one propagation has made."""
    if not value.is_floating_point() or value.dim() != 2 or not len(value):
        return 0.0
    # Other threads may add some meanwhile.
    kept = tuple(_KEPT)
    if not kept:
        return 0.0
    each = hashes(value)
    rows, columns = _directions(value)
    found = [0.0]
    for one in kept:
        found.append(_mean(torch.isin(each, one.hashes.to(each.device))))
        if one.shape == tuple(value.shape):
            found.append(_mean(_close(rows, one.rows.to(rows.device))))
        if one.shape[0] == value.size(0):
            found.append(_mean(_any_close(columns, one.columns)))
    return max(found)


def are_propagated(value: Tensor) -> bool:
    """Whether too many rows for chance are those of a propagation."""
    return share(value) > _SHARE


def hashes(value: Tensor) -> Tensor:
    """A number for the values of each row, int64, on its device."""
    if value.dim() != 2 or not value.is_floating_point():
        return torch.empty(0, dtype=torch.int64, device=value.device)
    if value.size(1) == 0:
        return torch.empty(0, dtype=torch.int64, device=value.device)
    # Odd multipliers, drawn by a splitting generator; sums wrap around.
    weight = _mixed(value.size(1), value.device) | 1
    bits = value.detach()
    if bits.layout != torch.strided:
        coo = bits.to_sparse_coo().coalesce()
        row, column = coo.indices()
        made = torch.zeros(len(bits), dtype=torch.int64, device=bits.device)
        # Zeros add nothing, stored or not.
        held = (coo.values().float() + 0.0).view(torch.int32)
        return made.index_add_(0, row, held * weight[column])
    # One piece of work for all parts: freed and asked for again, pieces of
    # some MB come to lie behind each other, with holes nothing fits into.
    found = torch.empty(len(bits), dtype=torch.int64, device=bits.device)
    size = min(max(1, _NUMBERS // bits.size(1)), len(bits))
    work = found.new_empty(size, bits.size(1))
    single = bits.new_empty(size, bits.size(1), dtype=torch.float32)
    for start in range(0, len(bits), size):
        part = bits[start : start + size]
        # Minus zero is zero.
        held = single[: len(part)].copy_(part).add_(0.0).view(torch.int32)
        made = work[: len(part)].copy_(held).mul_(weight)
        torch.sum(made, 1, out=found[start : start + size])
    return found


def _first(value: Tensor, count: int) -> Tensor:
    # Some rows, or all.
    if value.layout == torch.strided:
        return value.detach()[:count]
    value = value.detach().to_sparse_coo()
    if len(value) <= count:
        return value
    return value.index_select(0, torch.arange(count, device=value.device))


def _directions(value: Tensor) -> tuple[Tensor, Tensor]:
    # Of the first rows, and of columns over them: [n, 4] and [c, 4].
    rows = columns = torch.empty(0, _NUMBER, device=value.device)
    if value.dim() != 2 or not value.is_floating_point():
        return rows, columns
    head = _first(value, _ROWS)
    n, width = head.shape
    if width >= _LEAST and n:
        rows = _unit(_product(head, _signs(width, value.device)))
    if n >= _LEAST and width:
        signs = _signs(n, value.device)
        columns = _unit(_product(head, signs - signs.mean(0), turned=True))
    return rows, columns


def _product(head: Tensor, signs: Tensor, turned: bool = False) -> Tensor:
    # Some rows at a time, so that no copy of all of them is made.
    if head.layout != torch.strided:
        head = head.float()
        return torch.sparse.mm(head.t() if turned else head, signs)
    n, width = head.shape
    size = max(1, _NUMBERS // max(1, width))
    made = signs.new_zeros(width if turned else n, _NUMBER)
    for start in range(0, n, size):
        part = head[start : start + size].float()
        if turned:
            made += part.t() @ signs[start : start + size]
        else:
            made[start : start + size] = part @ signs
    return made


def _unit(made: Tensor) -> Tensor:
    # Zero and what is not finite point nowhere.
    size = made.norm(dim=1, keepdim=True)
    return torch.where((size > 0) & size.isfinite(), made / size, torch.nan)


def _close(one: Tensor, two: Tensor) -> Tensor:
    # Whether two point the same way, or opposite ways.
    if one.shape != two.shape or not len(one):
        return torch.zeros(len(one), dtype=torch.bool, device=one.device)
    gaps = (one - two).abs().amax(-1), (one + two).abs().amax(-1)
    return (gaps[0] < _CLOSE) | (gaps[1] < _CLOSE)


def _less(made: Tensor, before: Tensor) -> Tensor:
    # Without those that were there, in the same places, before.
    count = min(len(made), len(before))
    known = _close(made[:count], before[:count].to(made.device))
    left = made.clone()
    left[:count][known] = torch.nan
    return left


def _any_close(some: Tensor, kept: Tensor) -> Tensor:
    # Whether each is one of those kept; of many, those that lie evenly.
    some, kept = some[:: max(1, len(some) // _COLUMNS)], kept.to(some.device)
    found = torch.zeros(len(some), dtype=torch.bool, device=some.device)
    for index in range(len(some) if len(kept) else 0):
        found[index] = _close(some[index].expand_as(kept), kept).any()
    return found


def _mean(found: Tensor) -> float:
    return float(found.float().mean()) if found.numel() else 0.0


def _signs(size: int, device: torch.device) -> Tensor:
    # [size, 4] of -1 and 1.
    mixed = _mixed(size * _NUMBER, device)
    return (((mixed >> 40) & 1) * 2 - 1).float().view(size, _NUMBER)


def _mixed(size: int, device: torch.device) -> Tensor:
    weight = torch.arange(1, size + 1, device=device) * -7046029254386353131
    weight = (weight ^ (weight >> 30)) * -4658895280553007687
    return weight ^ (weight >> 27)
