"""Rows that propagation has made, known again wherever they are used.

A :class:`~torch_geometric.data.Data` object says by ``propagated`` which of
its features are not a node's own. A new object, or a part of the rows, does
not. So the rows of the last propagations are remembered by hashes of their
bits, as long as the process lives.
"""

from collections import deque

import torch
from torch import Tensor

_KEPT: deque[Tensor] = deque(maxlen=8)
_MOST = 2**20
_NUMBERS = 2**18
# Of rows that are the same by chance: an isolated node's, or all zeros.
_SHARE = 0.1


def remember(before: Tensor, after: Tensor) -> None:
    """Remembers the rows that changed (the first million of them)."""
    same = before.shape == after.shape and before.dtype == after.dtype
    if same and before.layout == torch.strided:
        old, new = hashes(before[:_MOST]), hashes(after[:_MOST])
        new = new[new != old]
    else:
        new = hashes(after[:_MOST])
    _KEPT.append(new.unique())


def share(value: Tensor) -> float:
    """The largest share of rows that one propagation has made."""
    if not value.is_floating_point() or value.dim() != 2 or not len(value):
        return 0.0
    rows = hashes(value)
    return max(
        (
            float(torch.isin(rows, kept.to(rows.device)).float().mean())
            # Other threads may add some meanwhile.
            for kept in tuple(_KEPT)
        ),
        default=0.0,
    )


def are_propagated(value: Tensor) -> bool:
    """Whether too many rows for chance are those of a propagation."""
    return share(value) > _SHARE


def hashes(value: Tensor) -> Tensor:
    """A number for the bits of each row, int64, on its device."""
    if value.layout != torch.strided or value.dim() != 2:
        return torch.empty(0, dtype=torch.int64, device=value.device)
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds.get(value.element_size())
    if kind is None or value.size(1) == 0:
        return torch.empty(0, dtype=torch.int64, device=value.device)
    # Odd multipliers, drawn by a splitting generator; sums wrap around.
    place = torch.arange(1, value.size(1) + 1, device=value.device)
    weight = place * -7046029254386353131
    weight = (weight ^ (weight >> 30)) * -4658895280553007687
    weight = (weight ^ (weight >> 27)) | 1
    # One piece of work for all parts: freed and asked for again, pieces of
    # some MB come to lie behind each other, with holes nothing fits into.
    bits = value.detach()
    found = torch.empty(len(bits), dtype=torch.int64, device=bits.device)
    size = max(1, _NUMBERS // bits.size(1))
    work = found.new_empty(min(size, len(bits)), bits.size(1))
    for start in range(0, len(bits), size):
        part = bits[start : start + size].contiguous().view(kind)
        made = work[: len(part)].copy_(part).mul_(weight)
        torch.sum(made, 1, out=found[start : start + size])
    return found
