"""Whose each row of a signal is, found by a code for each unit."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ['KAPPA', 'Owners', 'known']


class Tolerance(NamedTuple):
    """How far numbers of a type may be off by rounding alone.

    A row from its code, over its norm and over the largest row of its unit;
    the sums of the check after Freivalds, over their size.
    """

    row: float
    unit: float
    sums: float


TOLERANCES = {
    torch.float32: Tolerance(2e-4, 1e-5, 1e-3),
    torch.float64: Tolerance(1e-9, 1e-12, 1e-8),
}
# The factor of the third pass, in which rounding shows and mixing does not.
KAPPA = 1.3719
# The factor between what the third pass shows of a unit and what is allowed.
_ROUNDING = 30


class Owners:
    """Finder of whose each row of a signal is.

    Args:
        code (Tensor): float64, ``[num_units]``.
        given (sequence of Tensor): owners of rows that are worth a try.
        edges (sequence of Tensor): indices along which messages went.
        dtype (torch.dtype): of the signals.
        third (callable): makes the pass in which rounding shows.
    """

    def __init__(
        self,
        code: Tensor,
        given: Sequence[Tensor],
        edges: Sequence[Tensor],
        dtype: torch.dtype,
        third: Callable[[], list[Any]],
    ) -> None:
        self.code, self.num_units = code, len(code)
        self._order = code.argsort()
        ordered = code[self._order]
        self._mids = (ordered[1:] + ordered[:-1]) / 2
        self.tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
        #: The largest row of each unit, from here to the outputs.
        self.scale = torch.zeros_like(code)
        #: Units with rows that are not finite.
        self.broken = torch.zeros_like(code, dtype=torch.bool)
        self._third = third
        self._noise: list[Any] | None = None
        self._drawn: dict[int, Tensor] = {}
        self._tries: dict[int, list[tuple[Any, Tensor]]] = {}
        self._given, self._edges = given, edges

    def see(self, u: Tensor, size: Tensor) -> None:
        """Note how large the rows of each unit are."""
        self.scale.scatter_reduce_(0, u, size, 'amax')

    def find(
        self, i: int, b: Tensor, coded: Tensor
    ) -> tuple[Tensor, int, Any] | tuple[int, int]:
        """Find which subgraph owns each row of a gradient.

        Returns the owners (-1 for none), the dimension of the rows, and its
        name, or :obj:`None` if the owners were decoded. Where rows of several
        subgraphs were added up, returns the numbers of such rows and of all.
        """
        worst = 2, 1
        for d in range(b.dim()):
            m, mr, size = self._projected(b, coded, d)
            broken = ~(size.isfinite() & mr.isfinite().all(1))
            some = bool(broken.any())
            if some:
                mask = broken.view(-1, 1)
                m, mr = m.masked_fill(mask, 0), mr.masked_fill(mask, 0)
                size = size.masked_fill(broken, 0)
            n = b.shape[d]
            if n not in self._tries:
                self._tries[n] = list(_tried(n, self._given, self._edges))
            for name, u in self._tries[n]:
                off, may = self._off(i, d, u, m, mr, size)
                if bool((off <= may).all()):
                    self.see(u, size)
                    if some:
                        self.broken[u[broken]] = True
                        u = u.masked_fill(broken, -1)
                    return u, d, name
            ratio = (mr * m).sum(1) / m.square().sum(1).clamp_min(1e-300)
            u = self._order[torch.searchsorted(self._mids, ratio)]
            off, may = self._off(i, d, u, m, mr, size, 0.2 / self.num_units)
            lost = off > may
            if not bool(lost.any()):
                self.see(u, size)
                return u.masked_fill((off > 0) | (size == 0), -1), d, None
            part = int(lost.sum()), len(lost)
            if part[0] * worst[1] < worst[0] * part[1]:
                worst = part
        return worst

    def check(
        self, i: int, u: Tensor, b: Tensor, coded: Tensor
    ) -> tuple[int, int]:
        """Return how many rows contradict the given owners, of how many."""
        m, mr, size = self._projected(b, coded, 0)
        broken = ~(size.isfinite() & mr.isfinite().all(1))
        off, may = self._off(i, 0, u, m, mr, size)
        return int(((off > may) & ~broken).sum()), len(u)

    def _projected(
        self, b: Tensor, coded: Tensor, d: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = b.shape[d]
        m, mr = (v.movedim(d, 0).reshape(n, -1) for v in (b, coded))
        k = m.shape[1]
        if k > 4:
            if k not in self._drawn:
                drawn = torch.randn(k, 3, dtype=b.dtype, device=b.device)
                self._drawn[k] = drawn / 3**0.5
            m, mr = m @ self._drawn[k], mr @ self._drawn[k]
        m, mr = m.double(), mr.double()
        return m, mr, m.square().sum(1).sqrt()

    def _off(
        self,
        i: int,
        d: int,
        u: Tensor,
        m: Tensor,
        mr: Tensor,
        size: Tensor,
        most: float = math.inf,
    ) -> tuple[Tensor, Tensor]:
        # How far rows are from their unit's code, and how far they may be.
        relative = min(self.tolerance.row, 0.5 / self.num_units, most)
        off = (mr - self.code[u].unsqueeze(1) * m).square().sum(1).sqrt()
        off = off - relative * size
        may = self.tolerance.unit * self.scale[u]
        lost = int((off > may).sum())
        if lost and 8 * lost < len(off):
            if self._noise is None:
                self._noise = self._third()
            one, other = self._noise[i]
            p, p3, _ = self._projected(one, other, d)
            by = (p3 - KAPPA * p).square().sum(1).sqrt()
            rounding = torch.zeros_like(self.scale)
            rounding.scatter_reduce_(0, u, by.nan_to_num(0.0), 'amax')
            may = torch.maximum(may, _ROUNDING * rounding[u])
        return off, may


def _tried(
    n: int, given: Sequence[Tensor], edges: Sequence[Tensor]
) -> Iterator[tuple[Any, Tensor]]:
    # Owners that may be of so many rows, with names: those given, and those
    # of the nodes to which messages went.
    for j, u in enumerate(given):
        if len(u) == n:
            yield ('given', j), u
    seen = set()
    for k, e in enumerate(edges):
        if e.size(1) != n or id(e) in seen:
            continue
        seen.add(id(e))
        last = int(e[1].max()) if n else 0
        for j, u in enumerate(given):
            if len(u) > last:
                yield ('edges', k, j), u[e[1]]


def known(
    n: int, name: Any, given: Sequence[Tensor], edges: Sequence[Tensor]
) -> Tensor | None:
    """Return the owners of so many rows by the name they were found with.

    None if there are none, or others that may be meant: owners of as many
    rows that differ are distinguished by codes alone.
    """
    if name[0] == 'given':
        found = given[name[1]]
    elif name[1] < len(edges) and edges[name[1]].size(1) == n:
        e, u = edges[name[1]][1], given[name[2]]
        found = u[e] if len(u) > int(e.max() if n else 0) else u[:0]
    else:
        return None
    if len(found) != n or any(
        len(u) == n and u is not found and not torch.equal(u, found)
        for u in given
    ):
        return None
    return found
