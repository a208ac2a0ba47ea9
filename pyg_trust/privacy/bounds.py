"""Bounds of gradients that include every rounding, and their sums.

How long a gradient is at most, by the arithmetic of its type, and the factors
by which ``privacy/exact/clip.py`` makes integers of it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.mechanisms import row_norms

__all__ = [
    'Clipped',
    'Sizes',
    'check_norm',
    'factors_of',
]

# Rows converted to float64 at a time, to bound memory.
_ROWS = 2**10
#: Rows are padded to a multiple of this.
VECTOR = 16


@dataclass(eq=False)
class Sizes:
    r"""Bounds of the gradients of subgraphs, see ``privacy/exact/clip.py``.

    Args:
        norms (Tensor): the norms, as computed; float64, as all of these.
        n (Tensor): upper bounds of the norms.
        tau (Tensor): bounds of what rounding the inputs adds, over the factor.
        kappa (Tensor): bounds of what rounding the gradients adds, in units of
            the grid.
        weight (Tensor): bounds of the largest integer, over factor and grid.
    """

    norms: Tensor
    n: Tensor
    tau: Tensor
    kappa: Tensor
    weight: Tensor

    def enough(self) -> float:
        """Return a clipping norm that clips no gradient."""
        n, tau, kappa, weight = (
            torch.where(v < clip.HUGE**2, v, 0.0)
            for v in (self.n, self.tau, self.kappa, self.weight)
        )
        share = 1 - kappa * 2.0**-clip.GRID_BITS
        least = (n + tau) / share.clamp(min=2.0**-10)
        least = torch.maximum(
            least, weight * 2.0 ** (clip.GRID_BITS - clip.INPUT_BITS)
        )
        return float(least.max()) * 1.001 or 1.0 if least.numel() else 1.0


@dataclass(eq=False)
class Clipped:
    r"""A clipped sum in integers.

    Args:
        integers (dict[str, Tensor]): int64, by the name of the parameter.
        norm (float): :math:`C`; the integers are in units of :math:`2^{-43}
            C`.
        norms (Tensor): float64, ``[num_subgraphs]``, the norms of the
            gradients.
        factors (Tensor): float64, the factors of the gradients.
    """

    integers: dict[str, Tensor]
    norm: float
    norms: Tensor
    factors: Tensor


def check_norm(name: str, norm: float) -> float:
    """Refuse a clipping norm for which sums are not exact."""
    low, high = clip.NORMS
    if not low <= norm <= high:
        raise ValueError(
            f"'{name}' needs to be between {low:.0e} and {high:.0e}, where "
            f'sums are exact to the last bit (got {norm:g})'
        )
    return norm


def fitting(norm: float, enough: float) -> float:
    """Return the norm over a power of two, so that it is just large enough.

    A grid that fits gradients is needed where no noise hides a coarse one.
    """
    return math.ldexp(norm, min(0, 1 - math.frexp(norm / enough)[1]))


def factors_of(sizes: Sizes, norm: float, automatic: bool = False) -> Tensor:
    """Compute the factors of subgraphs, by ``privacy/exact/clip.py``."""
    found = clip.factors(
        sizes.n.cpu().numpy(),
        sizes.tau.cpu().numpy(),
        sizes.kappa.cpu().numpy(),
        sizes.weight.cpu().numpy(),
        norm,
        automatic,
    )
    return torch.from_numpy(found).to(sizes.n.device)


def add_truncated(
    total: Tensor, grads: Tensor, factors: Tensor, norm: float
) -> None:
    """Add gradients times factors to integers, each rounded toward zero."""
    scale = factors / clip.grid(norm)
    for first in range(0, len(grads), clip.BLOCK):
        each = scale[first : first + clip.BLOCK]
        part = grads[first : first + clip.BLOCK].reshape(len(each), -1)
        if not bool((each > 0).all()):
            part, each = part[each > 0], each[each > 0]
        part = (part * each.unsqueeze(1)).trunc_()
        # Each part is at most 2^43, so that 256 of them add exactly.
        total += part.sum(0).long().view_as(total)


def lengths(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the norms of rows from above, and find their largest entries.

    Both are float64, ``[num]``; infinite or NaN where squares overflow or an
    entry is NaN.
    """
    unit, tiny = precision(rows.dtype)
    count = rows.size(1)
    if count == 0:
        none = rows.new_zeros(rows.size(0), dtype=torch.float64)
        return none, none
    # vector_norm takes ten times as long for it.
    top = rows.abs().amax(1).double()
    found = row_norms(rows).double()
    if rows.dtype != torch.float64:
        count = min(count, clip.BLOCK)
    up = found * (1 + (count / 2 + 4) * unit)
    width = math.sqrt(rows.size(1))
    most = torch.minimum(
        up + width * math.sqrt(tiny), top * (width * (1 + 2.0**-50))
    )
    # An infinite value has an infinite bound.
    return torch.where(found < math.inf, most, found), top


def precision(dtype: torch.dtype) -> tuple[float, float]:
    """Return the unit of rounding, and the least normal number."""
    info = torch.finfo(dtype)
    return info.eps / 2, info.tiny


def lost(count: int, unit: float) -> float:
    r"""Return :math:`\gamma_n`, the roundoff of summing :math:`n` products.

    It is infinite from :math:`n u = 1`, as of 256 products in bfloat16.
    """
    less = 1 - count * unit
    return count * unit / less if less > 0 else math.inf


def scales(tops: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the powers of two of ``clip.scales``, and their inverses."""
    _, exponent = torch.frexp(tops.clamp(clip.TINY, clip.HUGE))
    exponent = exponent.long() - clip.INPUT_BITS
    live = tops > 0
    return (
        torch.where(live, _power(exponent), 0),
        torch.where(live, _power(-exponent), 0),
    )


def _power(exponent: Tensor) -> Tensor:
    # 2^exponent, from its bits.
    return ((exponent + 1023) << 52).view(torch.float64)


def scaled(rows: Tensor, each: Tensor) -> Tensor:
    """Round rows times a number each: [*, n, length], [*, n], to float64."""
    # A product of two types takes twenty times as long.
    return (rows.double() * each.unsqueeze(-1)).round_()


def exact_blocks(tops: Tensor) -> Iterator[slice]:
    r"""Yield blocks of rows small enough to be summed without rounding."""
    count = size = len(tops)
    # The sum is off by less than 2^-20 of it.
    most = 2.0**52 * (1 - 2.0**-20)
    if not float((tops + 1).sum()) * 2.0**clip.INPUT_BITS <= most:
        size = clip.BLOCK
    size = min(size, _ROWS)
    for first in range(0, count, max(1, size)):
        yield slice(first, first + size)


def gram(grads: Tensor, inners: Tensor) -> Tensor:
    """Compute squared norms from products: two of [n, s, s] to float64 [n]."""
    # A product of two types takes twenty times as long.
    made = grads.double() * inners.double()
    # Add in two steps: threads add parts of a single matrix in another order.
    return made.sum(2).sum(1)


def row_sizes(
    grad: Tensor,
    inner: Tensor | None,
    rows: Tensor,
    owner: Tensor,
    units: int,
) -> tuple[Tensor, Tensor, Any, Tensor]:
    """Compute ``ops.clip_sizes`` of one gradient by functions of torch."""

    def by_owner(values: Tensor) -> Tensor:
        total = values.new_zeros(len(values), units)
        return total.index_add_(1, owner, values)

    grads = grad[rows]
    length, top = lengths(grads)
    live, out = (top > 0).double(), math.sqrt(grads.size(1))
    zero, scale, total = torch.zeros_like(top), None, grads.new_zeros(0)
    if inner is None:
        values = [zero, 0.51 * out * live, zero, zero, length]
        weight = top * 2.0 ** (clip.INPUT_BITS - clip.GRID_BITS - 1)
        total = torch.zeros(
            units, grads.size(1), dtype=torch.float64, device=grads.device
        ).index_add_(0, owner, grads.double())
    else:
        other, tops = lengths(inner[rows])
        scale, inverse = scales(tops)
        width = math.sqrt(inner.size(1))
        rounded = 0.51 * out * other * inverse + out * width / 3
        values = [length * scale, rounded * live, length * other]
        values += [other, length]
        # Larger rows can't be rounded to integers: they count as infinite.
        weight = (top * scale).masked_fill(tops > clip.HUGE, torch.inf)
    largest = weight.new_zeros(units)
    largest.scatter_reduce_(0, owner, weight, 'amax')
    return by_owner(torch.stack(values)), largest, scale, total


def row_sums(
    grad: Tensor,
    inner: Tensor | None,
    rows: Tensor,
    owner: Tensor,
    scale: Any,
    each: Tensor,
) -> Tensor:
    """Compute ``ops.clip_sums`` of one gradient by functions of torch."""
    each = each[owner]
    # Zero times what is not finite is not zero: those are left out.
    kept = each > 0
    rows, weight = rows[kept], each[kept]
    grads = grad[rows]
    tops = grads.abs().amax(1).double() * weight * 2.0**-clip.INPUT_BITS
    width = 1 if inner is None else inner.size(1)
    total = grads.new_zeros(grads.size(1), width, dtype=torch.int64)
    if inner is not None:
        by = scale[kept]
        weight = weight * by
        tops = tops * by * 2.0**clip.INPUT_BITS
        inverse = torch.where(by > 0, 1 / by, 0)
    for at in exact_blocks(tops):
        made = scaled(grads[at], weight[at])
        if inner is None:
            total += made.sum(0).long().unsqueeze(1)
        else:
            other = scaled(inner[rows[at]], inverse[at])
            total += (made.t() @ other).long()
    return total


def between(grads: Tensor, inners: Tensor) -> Tensor:
    """Compute gradients: [n, s, rows] and [n, s, cols] to [n, rows, cols]."""
    rows, cols = grads.size(2), inners.size(2)
    grads, inners = _vectors(grads), _vectors(inners)
    if grads.size(1) <= clip.BLOCK:
        return torch.bmm(grads.mT, inners)[:, :rows, :cols]
    shape = (grads.size(0), grads.size(2), inners.size(2))
    made = grads.new_zeros(shape, dtype=torch.float64)
    for first in range(0, grads.size(1), clip.BLOCK):
        part = slice(first, first + clip.BLOCK)
        made += torch.bmm(grads[:, part].mT, inners[:, part])
    return made[:, :rows, :cols]


def _vectors(rows: Tensor) -> Tensor:
    # Align every row to a vector, so that its bits do not depend on its place
    # in the batch.
    more = -rows.size(2) % VECTOR
    return pad(rows, (0, more)) if more else rows


def products(rows: Tensor) -> Tensor:
    """Multiply rows with each other: [n, s, length] to [n, s, s].

    Rows longer than 256 are multiplied in blocks, which float64 adds.
    """
    rows = _vectors(rows)
    if rows.size(2) <= clip.BLOCK:
        return torch.bmm(rows, rows.mT)
    made = rows.new_zeros(
        *(rows.size(0), rows.size(1), rows.size(1)), dtype=torch.float64
    )
    for block in rows.split(clip.BLOCK, 2):
        made += torch.bmm(block, block.mT)
    return made
