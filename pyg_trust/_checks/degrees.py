"""Detection of feature columns that reveal degrees, and so edges.

A column may be the degrees themselves, on a line with them (scaled, shifted,
standardised), or have one value for each degree (logarithms, one-hot
degrees), dense or sparse. Degrees that were mixed with something else are not
known again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]

# With fewer nodes, columns are linear in the degree by chance.
LINE = 8
# The least number of nodes per degree, of such degrees, and of values that are
# not free otherwise: columns of two values agree with degrees by chance once
# in 2^40.
MEMBERS, KINDS, FREE = 5, 3, 40
# Rows tried first, columns at a time, rounding.
_TRIED, _BLOCK, _OFF = 64, 64, 1e-5


def tells_degrees(x: Tensor, ends: Tensor) -> bool:
    """Tell whether a column of features reveals the degrees of nodes.

    Args:
        x (Tensor): ``[num_nodes, num_columns]``, dense or sparse.
        ends (Tensor): int64, ``[2, num_edges]``: the end nodes of edges.
    """
    for row in ends:
        degree = torch.bincount(row.to(x.device), minlength=len(x))
        known = degree.unique()
        if known.numel() < 3:
            continue
        line = on_a_line if len(x) >= LINE else _equal
        # A node of each degree; then some nodes of frequent ones.
        order = degree.argsort(stable=True)
        first = order[
            degree[order].diff(prepend=degree.new_full((1,), -1)) > 0
        ]
        if _any(x, degree, line, first[-_TRIED:]):
            return True
        count = degree.bincount()
        kinds = (count >= MEMBERS).nonzero().view(-1)
        free = int(count[kinds].sum()) - len(kinds)
        if len(kinds) >= KINDS and free >= FREE:
            kinds = count.argsort(descending=True)[: min(len(kinds), _TRIED)]
            some = [
                (degree == kind).nonzero().view(-1)[:MEMBERS] for kind in kinds
            ]
            if _any(x, degree, one_for_each, torch.cat(some)):
                return True
    return False


def _any(x: Tensor, degree: Tensor, rule: Rule, tried: Tensor) -> bool:
    # Read columns in full that pass on some rows.
    left = rule(_taken(x, 0, tried), degree[tried]).nonzero().view(-1)
    return any(
        bool(rule(_taken(x, 1, block), degree).any())
        for block in left.split(_BLOCK)
        if block.numel()
    )


def _taken(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.layout != torch.strided:
        x = x.to_sparse_coo().index_select(dim, index).to_dense()
        return x.double()
    return x.index_select(dim, index).double()


def _equal(rows: Tensor, degree: Tensor) -> Tensor:
    return (rows == degree[:, None]).all(0)


def on_a_line(rows: Tensor, degree: Tensor) -> Tensor:
    """Return a mask of the columns that are linear in the degree."""
    spread = degree.double() - degree.double().mean()
    centred = rows - rows.mean(0)
    slope = (spread @ centred) / spread.square().sum()
    off = (centred - spread[:, None] * slope).abs().amax(0)
    return (slope != 0) & (off <= _OFF * centred.abs().amax(0))


def one_for_each(rows: Tensor, degree: Tensor) -> Tensor:
    """Return a mask of the non-constant columns that the degree determines."""
    count = degree.bincount()
    inside = count[degree] >= MEMBERS
    rows, degree = rows[inside], degree[inside]
    shape = len(count), rows.size(1)
    index = degree[:, None].expand_as(rows)
    empty = rows.new_full(shape, torch.inf)
    low = empty.scatter_reduce(0, index, rows, 'amin')
    high = (-empty).scatter_reduce(0, index, rows, 'amax')
    there = count >= MEMBERS
    low, high = low[there], high[there]
    size = _OFF * torch.maximum(high.abs(), low.abs()).amax(0)
    return (high - low <= size).all(0) & (high.amax(0) - low.amin(0) > size)
