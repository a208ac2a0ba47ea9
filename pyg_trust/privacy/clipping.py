r"""Norms and clipped sums of gradients without the gradients themselves.

A linear map of rows :math:`a_r`, whose outputs have the gradients
:math:`\gamma_r`, gives unit :math:`i` the gradient :math:`g_i = \sum_{r \in i}
\gamma_r a_r^\top`, so that

.. math::
    \lVert g_i \rVert^2 = \sum_{r, s \in i}
    \langle \gamma_r, \gamma_s \rangle \langle a_r, a_s \rangle, \qquad
    \sum_i c_i g_i = \sum_r (c_{i(r)} \gamma_r) a_r^\top,

with one backward pass ("book-keeping", Bu et al. 2022,
https://arxiv.org/abs/2210.00038). Parameters that are broadcast over rows are
expanded to one copy per row first, which costs no memory. Sums are of
integers, so that they do not depend on order or other units
(:doc:`/theory/private_training`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import REAL
from pyg_trust.graph.ragged import pointer
from pyg_trust.privacy.bounds import (
    VECTOR,
    Clipped,
    Sizes,
    add_truncated,
    between,
    factors_of,
    fitting,
    gram,
    lengths,
    lost,
    precision,
    products,
    row_sizes,
    row_sums,
)
from pyg_trust.privacy.exact import clip

__all__ = ['LINEAR', 'ROWS', 'TABLE', 'Book', 'clipped_sum']

LINEAR, ROWS, TABLE, WHOLE = 'linear', 'rows', 'table', 'whole'
# How many numbers explicit gradients may have at a time.
_CHUNK = 2**22
# Up to this many rows, rooms are exact.
_EXACT = 8
_KERNELS = ops._ops
# How many numbers a row may have in maps that are computed together.
_TOGETHER = 2**10
# A generous bound of what float64 loses in sums of a step.
_UP = 1 + 2.0**-30


@dataclass(eq=False)
class Cluster:
    """Uses of the same part of a tensor of parameters, in the same way.

    Args:
        kind (str): :obj:`'linear'`, a linear map of rows, with gradients and
            inputs; :obj:`'rows'`, a copy for each row; :obj:`'table'`, rows
            that were looked up, with their places as inputs; or
            :obj:`'whole'`, gradients by unit.
        weight (Tensor): the part, a view; for a linear map ``[out, in]``.
        grads (list[Tensor]): the gradients of rows.
        inputs (list[Tensor]): what came in with these rows.
        owners (list[Tensor]): int64, the unit of each row.
    """

    kind: str
    weight: Tensor
    grads: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    owners: list[Tensor] = field(default_factory=list)

    def join(self) -> None:
        """Join rows that are used more than once: they are one product."""
        if self.kind == LINEAR and len(self.grads) > 1:
            for each in (self.grads, self.inputs, self.owners):
                each[:] = [torch.cat(each)]


@dataclass(eq=False)
class Base:
    """A tensor with its uses, and the parameters that it is made of."""

    base: Tensor
    params: tuple[Tensor, ...]
    parts: dict[Any, Cluster] = field(default_factory=dict)

    @property
    def clusters(self) -> list[Cluster]:
        """Return the uses of parts, each in one way."""
        return [*self.parts.values()]

    @property
    def ids(self) -> set[int]:
        """Return the ids of the parameters."""
        return {*map(id, self.params)}

    @property
    def apart(self) -> bool:
        """Return whether no two uses share a number, and all have rows."""
        spans = []
        for cluster in self.clusters:
            if cluster.kind not in (LINEAR, ROWS):
                return False
            offset, dims = region(cluster.weight)
            spans.append((offset, offset + sum((n - 1) * s for n, s in dims)))
        spans.sort()
        return all(before[1] < after[0] for before, after in pairwise(spans))


@dataclass(eq=False)
class _Layout:
    # Room for the rows of each unit, sorted by size, which depends on the
    # number of its rows alone: the place of each row, and by size the first
    # place and the units.
    place: Tensor
    classes: list[tuple[int, int, Tensor]]
    count: Tensor
    size: int

    @classmethod
    def of(cls, owner: Tensor, num_units: int) -> '_Layout':
        count = torch.bincount(owner, minlength=num_units)
        # Few sizes need few products.
        rooms = 2 ** torch.frexp(count.double() - 0.5)[1].long()
        rooms = torch.where(4 * count <= 3 * rooms, 3 * rooms // 4, rooms)
        rooms = torch.where(count <= _EXACT, count, rooms)
        by_room = rooms.argsort(stable=True)
        start = torch.empty_like(count)
        start[by_room] = pointer(rooms[by_room])[:-1]
        shift = start - pointer(count)[:-1]
        number = torch.arange(owner.numel(), device=owner.device)
        if bool((owner[1:] >= owner[:-1]).all()):
            place = number + shift[owner]
        else:
            order = owner.argsort(stable=True)
            place = torch.empty_like(owner)
            place[order] = number + shift[owner[order]]
        sizes, many = rooms[by_room].unique_consecutive(return_counts=True)
        classes, row, done = [], 0, 0
        for room, n in zip(sizes.tolist(), many.tolist(), strict=True):
            if room:
                classes.append((room, row, by_room[done : done + n]))
            row, done = row + room * n, done + n
        return cls(place, classes, count, row)

    def parts(self, *sides: Tensor) -> Iterator[tuple[int, Tensor, Any]]:
        # By room: its size, the units, and their rows of every side, padded
        # with zeros, in whole vectors: bits do not depend on the place in the
        # batch. [num_units, room, width].
        tight = self.size == len(self.place)
        full = tight and bool((self.place.diff() > 0).all())
        filled = []
        for rows in sides:
            width = rows.size(1) + -rows.size(1) % VECTOR
            if not full or width > rows.size(1) or rows.data_ptr() % 64:
                made = rows.new_empty(self.size, width)
                (made[:, rows.size(1) :] if tight else made).zero_()
                made[:, : rows.size(1)].index_copy_(0, self.place, rows)
                rows = made
            filled.append(rows)
        for room, first, units in self.classes:
            part = slice(first, first + room * len(units))
            yield (
                room,
                units,
                [v[part].unflatten(0, (-1, room)) for v in filled],
            )


class _Group:
    # Rows of gradients, and of inputs of linear maps if there are any, that
    # the library reads at once: those of the same units and widths.
    def __init__(self, rows: Tensor, owner: Tensor) -> None:
        self.rows, self.owner = rows, owner
        self.grads: dict[Any, Tensor] = {}
        self.inners: dict[Any, Tensor] = {}
        self.pairs: list[tuple[int, int]] = []
        self._sizes: Any = None
        self._sums: Any = None, None

    def add(self, grad: Tensor, inner: Tensor | None) -> tuple[int, int]:
        # The place of the pair, and of the gradient.
        pair = []
        for known, value in ((self.grads, grad), (self.inners, inner)):
            key = None
            if value is not None:
                key = value.data_ptr(), value.shape, value.stride()
                known.setdefault(key, value)
            pair.append([*known].index(key) if key else 0)
        first, last = pair
        if (first, last) not in self.pairs:
            self.pairs.append((first, last))
        return self.pairs.index((first, last)), first

    def _given(self) -> Any:
        # What the kernels read, which is not checked again.
        pairs = torch.tensor(self.pairs)
        known = [*self.grads.values()], [*self.inners.values()]
        return *known, self.rows, self.owner, pairs

    def sizes(self, num_units: int) -> Any:
        if self._sizes is None:
            given = self._given()
            self._sizes = _KERNELS.clip_sizes.default(*given, num_units)
        return self._sizes

    def sums(self, each: Tensor) -> Tensor:
        if self._sums[0] is not each:
            given = *self._given(), self._sizes[2], each, -1
            self._sums = each, _KERNELS.clip_sums.default(*given)
        made: Tensor = self._sums[1]
        return made


@dataclass(eq=False)
class _Use:
    # Rows of a gradient, and of the inputs of a linear map if it is one, that
    # count. The library computes them by groups, in which a use has a place;
    # torch has the powers of two of its inputs.
    cluster: Cluster
    grad: Tensor
    inner: Tensor | None
    rows: Tensor
    owner: Tensor
    layout: _Layout
    group: _Group | None = None
    at: tuple[int, int] = (0, 0)
    scale: Any = None

    def sizes(self, num_units: int) -> tuple[Tensor, Tensor, Tensor]:
        # Sums of `clip_sizes` by unit, the largest scaled entries, and the
        # sums of copies.
        if self.group is None:
            given = self.grad, self.inner, self.rows, self.owner, num_units
            found, weight, self.scale, total = row_sizes(*given)
            return found * _UP, weight, total
        every, weight, _, totals = self.group.sizes(num_units)
        total = totals if self.inner is not None else totals[self.at[1]]
        return every[:, self.at[0]] * _UP, weight, total

    def sums(self, each: Tensor) -> Tensor:
        # The sum of rows times a factor by unit, in integers.
        if self.group is not None:
            return self.group.sums(each)[self.at[0]]
        given = self.grad, self.inner, self.rows, self.owner
        return row_sums(*given, self.scale, each)


class Book:
    r"""Norms and sums of gradients from the rows that parameters got.

    Owners of rows have one unit for each, -1 for rows of nobody, or for each
    of as many rows in a row.

    Args:
        recorder (Recorder): the record of the forward pass.
        scale (Tensor): float64, ``[num_units]``, powers of two: gradients are
            those of the rows times these.
        broken (Tensor): bool, units that are not finite.
    """

    def __init__(self, recorder: Any, scale: Tensor, broken: Tensor) -> None:
        self.recorder, self.scale, self.broken = recorder, scale, broken
        self.num_units = len(scale)
        self.params = list(recorder.params.values())
        self.names = {id(p): n for n, p in recorder.params.items()}
        self._bases: dict[int, Base] = {}
        # By owners and the number of rows, the rows of somebody and theirs.
        self._owned: dict[tuple[int, int], Any] = {}
        # By the owners of rows, which rows count, and where they lie.
        self._lives: dict[int, list[Any]] = {}
        self._groups: dict[Any, list[_Group]] = {}
        # Gradients of all units, where they are few numbers.
        self._kept: tuple[Tensor, dict[int, Tensor]] | None = None

    def whole(self, w: Tensor, u: Tensor, grads: Tensor) -> None:
        """Add gradients of a parameter, ``[num_rows, *w.shape]``."""
        cluster = self._cluster(WHOLE, w, w.detach())
        if not cluster.grads:
            cluster.grads = [w.new_zeros(self.num_units, w.numel())]
        flat = grads.detach().reshape(len(grads), -1)
        cluster.grads[0].index_add_(0, u, flat)

    def _cluster(self, kind: str, w: Tensor, part: Tensor) -> Cluster:
        t = self.recorder.known[id(w)].base
        leaves = self.recorder.known[id(t)].leaves
        base = self._bases.setdefault(id(t), Base(t, leaves))
        key = kind, region(part), part.shape if kind == LINEAR else None
        return base.parts.setdefault(key, Cluster(kind, part))

    def add(
        self,
        kind: str,
        w: Tensor,
        u: Tensor,
        grads: Tensor,
        inputs: Tensor | None = None,
        part: Tensor | None = None,
    ) -> None:
        """Add rows of gradients of a parameter, as a :class:`Cluster` has.

        ``part`` is the view of it that is used, itself by default.
        """
        key = id(u), len(grads)
        if key not in self._owned:
            # The same object each time, so that it is sorted once.
            times = len(grads) // max(1, len(u))
            each = u if times == 1 else u.repeat_interleave(times)
            keep = None
            if bool((u < 0).any()):
                keep = (each >= 0).nonzero().view(-1)
                each = each[keep]
            self._owned[key] = u, keep, each
        _, keep, owner = self._owned[key]
        if kind == TABLE and not len(owner):
            # An edge type may have no edge, and its table no row.
            return
        cluster = self._cluster(kind, w, w.detach() if part is None else part)
        for to, values in ((cluster.grads, grads), (cluster.inputs, inputs)):
            if values is not None:
                to.append(values if keep is None else values[keep])
        cluster.owners.append(owner)

    def total(
        self, code: Tensor
    ) -> tuple[dict[int, Tensor], dict[int, float]]:
        """Sum gradients times a number by unit, by the ids of parameters.

        Returns the sums, and how large what was added up was.
        """
        made = {id(p): torch.zeros_like(p) for p in self.params}
        sizes = dict.fromkeys(made, 0.0)
        for base in self.bases:
            t, size = base.base, 0.0
            room = t.new_zeros(t.numel())
            for cluster in base.clusters:
                part = same_part(room, t, cluster.weight)
                value, most = _summed(cluster, code.to(t))
                part += value.view(part.shape)
                size += most
            whole, of = same_part(room, t, t), base.params
            grads: Any = [whole]
            if id(t) not in made:
                grads = torch.autograd.grad(
                    t, of, whole, retain_graph=True, materialize_grads=True
                )
                size /= float(whole.norm()) or 1.0
            for p, g in zip(of, grads, strict=True):
                made[id(p)] += g
                sizes[id(p)] += size * (1 if g is whole else float(g.norm()))
        return made, sizes

    @cached_property
    def bases(self) -> list[Base]:
        """Return the tensors that are used, when all rows were added."""
        for base in self._bases.values():
            for cluster in base.clusters:
                cluster.join()
        return [*self._bases.values()]

    @cached_property
    def _several(self) -> set[int]:
        # The parameters that are used in several ways, or by functions of
        # them: their gradients are made as such.
        found: set[int] = set()
        for base in self.bases:
            if id(base.base) not in self.names or not base.apart:
                found |= base.ids
        return found

    @cached_property
    def _uses(self) -> list[list[_Use]]:
        return [
            self._used(cluster)
            for base in self.bases
            if not base.ids & self._several
            for cluster in base.clusters
        ]

    def _used(self, cluster: Cluster) -> list[_Use]:
        found = []
        for i, grad in enumerate(cluster.grads):
            # The kernels read rows one after another.
            grad, inner = grad.contiguous(), None
            if cluster.kind == LINEAR:
                inner = cluster.inputs[i].contiguous()
            live = self._live(grad, inner, cluster.owners[i])
            if live[0].numel():
                use = _Use(cluster, grad, inner, *live)
                found.append(use)
                if is_native(grad):
                    use.group = self._group(use)
                    use.at = use.group.add(grad, inner)
        return found

    def _group(self, use: _Use) -> _Group:
        width = 0 if use.inner is None else use.inner.size(1)
        widths = use.grad.size(1), width
        key = id(use.rows), use.grad.dtype, *widths
        known = self._groups.setdefault(key, [])
        most = max(1, _TOGETHER // max(1, sum(widths)))
        if not known or len(known[-1].pairs) >= most:
            known.append(_Group(use.rows, use.owner))
        return known[-1]

    def _live(
        self, grad: Tensor, inner: Tensor | None, owner: Tensor
    ) -> tuple[Tensor, Tensor, _Layout]:
        # A row whose input is not finite counts, even with no gradient.
        if is_native(grad):
            found = _KERNELS.clip_rows.default(
                grad, [] if inner is None else [inner]
            )
        else:
            reach = grad.abs().sum(1)
            reach = reach if inner is None else reach + 0 * inner.sum(1)
            found = reach.nonzero().view(-1)
        known = self._lives.setdefault(id(owner), [owner])
        for kept, live in known[1:]:
            if torch.equal(kept, found):
                return live
        rows, mine = found, owner.contiguous()
        if len(found) < len(owner):
            mine = owner.index_select(0, found)
        layout = _Layout.of(mine, self.num_units)
        if layout.size and bool((layout.place.diff() < 0).any()):
            # Rows lie where they are read: in the order of rooms.
            order = layout.place.argsort()
            rows, mine, layout.place = (
                v.index_select(0, order) for v in (rows, mine, layout.place)
            )
        known.append((found, (rows, mine, layout)))
        return rows, mine, layout

    def sizes(self) -> Sizes:
        """Compute norms of the gradients, and bounds of their rounding."""
        total = self.scale.new_zeros(4, self.num_units)
        weight = self.scale.new_zeros(self.num_units)
        # In the order of the model: floats are not added up in another one
        # where other rows are live.
        for uses in self._uses:
            if not uses:
                continue
            made = [use.sizes(self.num_units) for use in uses]
            for _, top, _ in made:
                weight = torch.maximum(weight, top)
            linear = uses[0].inner is not None
            total += (_linear if linear else _copied)(uses, made)
        square, bound, tau, kappa = total
        if self._several:
            for chunk, grads in self._gradients():
                for value in grads.values():
                    flat = value.reshape(len(chunk), -1)
                    each = lengths(flat)[0].square()
                    square[chunk] += each
                    bound[chunk] += each
        norms = square.clamp(min=0).sqrt().nan_to_num(torch.inf)
        bounds = bound.sqrt().nan_to_num(torch.inf) * _UP
        for each in (norms, bounds):
            each.masked_fill_(self.broken, torch.inf)
        # Powers of two: nothing is rounded.
        by = self.scale
        return Sizes(norms * by, bounds * by, tau * by, kappa, weight * by)

    def sums(self, factors: Tensor, norm: float) -> dict[str, Tensor]:
        """Sum the gradients times their factors, int64, by parameter name."""
        factors = factors * self.scale
        out = {id(p): torch.zeros_like(p).long() for p in self.params}
        parts: dict[Cluster, Tensor] = {}
        for base in self.bases:
            if base.ids & self._several:
                continue
            total = base.base.new_zeros(base.base.numel(), dtype=torch.int64)
            for cluster in base.clusters:
                parts[cluster] = same_part(total, base.base, cluster.weight)
            out[id(base.base)] = same_part(total, base.base, base.base)
        each = factors / clip.grid(norm)
        for use in chain.from_iterable(self._uses):
            part = parts[use.cluster]
            part += use.sums(each).view(part.shape)
        if self._several:
            for chunk, grads in self._gradients():
                for param, value in grads.items():
                    add_truncated(out[param], value, factors[chunk], norm)
        return {self.names[i]: value for i, value in out.items()}

    # Gradients as such #####################################################

    def _gradients(self) -> Iterator[tuple[Tensor, dict[int, Tensor]]]:
        # The gradients of parameters that are used in several ways.
        if self._kept is not None:
            yield self._kept
            return
        several = self._several
        params = [p for p in self.params if id(p) in several]
        bases = [b for b in self.bases if b.ids & several]
        size = sum(p.numel() for p in params)
        size += sum(b.base.numel() for b in bases)
        everything = torch.arange(self.num_units, device=params[0].device)
        for chunk in everything.split(max(1, _CHUNK // size)):
            n = chunk.numel()
            out = {id(p): p.new_zeros(n, *p.shape) for p in params}
            for base in bases:
                total = base.base.new_zeros(n, base.base.numel())
                for cluster in base.clusters:
                    part = same_part(total, base.base, cluster.weight, n)
                    part += self._each(cluster, chunk).view(part.shape)
                whole = same_part(total, base.base, base.base, n)
                if id(base.base) in out:
                    out[id(base.base)] += whole
                    continue
                made_of = base.params
                pulled = torch.autograd.grad(
                    *(base.base, made_of, whole),
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
                for param, grad in zip(made_of, pulled, strict=True):
                    if grad is not None:
                        out[id(param)] += grad
            if n == self.num_units:
                self._kept = chunk, out
            yield chunk, out

    def _each(self, cluster: Cluster, units: Tensor) -> Tensor:
        # The gradients of some units by a cluster's weight.
        n, weight = units.numel(), cluster.weight
        if cluster.kind == WHOLE:
            return cluster.grads[0][units]
        place = units.new_full((self.num_units,), -1)
        place[units] = torch.arange(n, device=place.device)
        if cluster.kind == LINEAR:
            mine = place[cluster.owners[0]]
            rows = (mine >= 0).nonzero().view(-1)
            sides = cluster.grads[0][rows], cluster.inputs[0][rows]
            made = weight.new_zeros(n, *weight.shape)
            for _, at, part in _Layout.of(mine[rows], n).parts(*sides):
                value = between(*part)[:, : weight.size(0), : weight.size(1)]
                made[at] = value.to(made)
            return made
        size = len(weight) if cluster.kind == TABLE else 1
        total = weight.new_zeros(
            n * size, weight.numel() // size, dtype=torch.float64
        )
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            mine = place[owner]
            rows = (mine >= 0).nonzero().view(-1)
            at = mine[rows] * size
            if cluster.kind == TABLE:
                at = at + cluster.inputs[i][rows]
            total.index_add_(0, at, grad[rows].double())
        return total.to(weight.dtype)


def _copied(uses: list[_Use], made: list[Any]) -> Tensor:
    # The squared norms of copies, as computed, and upper bounds of them; tau,
    # and kappa.
    total: Tensor = sum(total for *_, total in made[1:]) + made[0][2]
    found = lengths(total)[0]
    kappa = sum(sizes[1] for sizes, *_ in made)
    terms = sum(sizes[4] for sizes, *_ in made)
    # The number of its own rows, whatever the number of others.
    count = sum(use.layout.count for use in uses)
    bound = found + count * 2.0**-52 * terms
    zero = torch.zeros_like(found)
    return torch.stack([found.square(), bound.square(), zero, zero + kappa])


def _linear(uses: list[_Use], made: list[Any]) -> Tensor:
    # The same, of a linear map, from both matrices.
    (use,), ((sizes, *_),) = uses, made
    assert use.inner is not None
    tau, kappa, terms, *under = sizes
    rows, cols = use.grad.size(1), use.inner.size(1)
    unit, tiny = precision(use.grad.dtype)
    tau = tau * (math.sqrt(cols) / 2)
    several = use.layout.count > 1
    square = terms.square()
    few = torch.zeros_like(several)
    if use.layout.classes[-1][0] == 1:  # All units have one row.
        return torch.stack([square, square, tau, kappa])
    sides = [v.index_select(0, use.rows) for v in (use.grad, use.inner)]
    parts = [p for p in use.layout.parts(*sides) if p[0] > 1]
    for room, units, part in parts:
        if room * (rows + cols) > rows * cols:
            few[units] = True
        else:
            square[units] = gram(*map(products, part))
    # What is lost in a Gram matrix; products may underflow.
    count = min(rows, clip.BLOCK) + min(cols, clip.BLOCK) + 16
    more = 2 * tiny * (under[0].square() * rows + under[1].square() * cols)
    more += lost(count, unit) * terms.square()
    bound = torch.where(several, square.clamp(min=0) + more, square)
    few |= (square < 0.01 * terms.square()) & several
    for room, units, part in parts if bool(few.any()) else ():
        here = few[units].nonzero().view(-1)
        most = max(1, _CHUNK // (rows * cols + room * (rows + cols)))
        for at in here.split(most) if len(here) else ():
            each = part if len(at) == len(units) else [v[at] for v in part]
            value = between(*each)[:, :rows, :cols].reshape(len(at), -1)
            found = lengths(value)[0]
            small = (room + 8) * math.sqrt(rows * cols) * tiny
            to = units[at]
            less = lost(min(room, clip.BLOCK) + 8, unit) * terms[to]
            square[to] = found.square()
            bound[to] = (found + less + small).square()
    return torch.stack([square, bound, tau, kappa])


def _summed(cluster: Cluster, code: Tensor) -> tuple[Tensor, float]:
    # The sum of a cluster's gradients times a number by unit; its size.
    weight, grads = cluster.weight, cluster.grads
    if cluster.kind == WHOLE:
        return code @ grads[0], float(grads[0].norm()) * len(code) ** 0.5
    total, size = weight.new_zeros(weight.shape).reshape(-1), 0.0
    for i, (grad, owner) in enumerate(zip(grads, cluster.owners, strict=True)):
        each = code[owner]
        if cluster.kind == TABLE:
            rows, inner = total.view(len(weight), -1), cluster.inputs[i]
            rows.index_add_(0, inner, grad * each.unsqueeze(1))
            most = len(grad) ** 0.5
        elif cluster.kind == LINEAR:
            inner = cluster.inputs[i]
            total += ((grad * each.unsqueeze(1)).t() @ inner).reshape(-1)
            most = float(inner.norm())
        else:
            total += each @ grad
            most = len(grad) ** 0.5
        size += float(grad.norm()) * most
    return total, size


def clipped_sum(
    book: Book, norm: float, automatic: bool = False, fine: bool = False
) -> Clipped:
    """Compute norms and the clipped sum of gradients by units.

    ``fine`` makes the norm smaller where it clips nothing (``fitting``).
    """
    with torch.no_grad():
        sizes = book.sizes()
        if norm == math.inf:
            norm, automatic = sizes.enough(), False
        if fine and not automatic:
            norm = fitting(norm, sizes.enough())
        factors = factors_of(sizes, norm, automatic)
        integers = book.sums(factors, norm)
        return Clipped(integers, norm, sizes.norms, factors)


def is_native(rows: Tensor) -> bool:
    """Return whether the library has kernels for rows."""
    return rows.is_cpu and rows.dtype in REAL


def region(weight: Tensor) -> tuple[Any, ...]:
    """Return the numbers that a view covers of its storage, in its order."""
    dims = zip(weight.shape, weight.stride(), strict=True)
    return weight.storage_offset(), tuple(d for d in dims if d[0] > 1)


def same_part(
    total: Tensor, base: Tensor, weight: Tensor, batch: int | None = None
) -> Tensor:
    """Return the part of a total that a weight is of its base."""
    offset = weight.storage_offset() - base.storage_offset()
    shape, stride = tuple(weight.shape), weight.stride()
    if batch is not None:
        shape, stride = (batch, *shape), (base.numel(), *stride)
    return total.as_strided(shape, stride, offset)
