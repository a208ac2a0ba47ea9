"""Rows of different lengths, laid one after the other."""

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
