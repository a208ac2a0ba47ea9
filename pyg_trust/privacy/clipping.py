# Longer than 700 lines because norms and sums of a step are one book: both
# rest on the same rooms, lengths and products of rows.
r"""Norms and clipped sums of gradients without the gradients themselves.

A parameter is used by rows, and each row belongs to one subgraph. If a linear
map has inputs :math:`a_r` and the loss has the gradients :math:`\gamma_r` by
its outputs, subgraph :math:`i` has the gradient :math:`g_i = \sum_{r \in i}
\gamma_r a_r^\top`, and

.. math::
    \lVert g_i \rVert^2 = \sum_{r, s \in i}
    \langle \gamma_r, \gamma_s \rangle \langle a_r, a_s \rangle, \qquad
    \sum_i c_i g_i = \sum_r (c_{i(r)} \gamma_r) a_r^\top,

with one backward pass and no gradient per subgraph ("book-keeping", Bu et al.
2022, https://arxiv.org/abs/2210.00038, with rows of subgraphs in place of
tokens). Parameters that are broadcast over rows (a bias, attention vectors,
the weight of a norm) are expanded to one copy per row first, which costs no
memory. Functions of parameters alone (:math:`1 + \epsilon` in GIN) are
treated as parameters, and their gradients are pulled back.

**No float is added to another unit's.** What a subgraph adds are integers, a
function of its own rows alone, whose length is bounded with every rounding in
it (:mod:`pyg_trust.privacy.exact.clip` has the proof): sums do not depend on
order, threads or company. The bounds of norms that they rest on:

* rows: blocks of 256 squares in the rows' type, the rest in float64;
* a Gram matrix: sums of :math:`p` and of :math:`q` products, up to 256 at a
  time, :math:`n^2 \le` computed :math:`+ \gamma_{p + q + 16} T^2`, with
  :math:`T = \sum_r \lvert \gamma_r \rvert \lvert a_r \rvert` and
  :math:`\gamma_n = n u / (1 - n u)`;
* where that is less than :math:`.01\, T^2`, as terms cancel, or is dearer: the
  gradient itself, :math:`n \le` computed :math:`+ \gamma_{s + 8} T` of
  :math:`s \le 256` rows at a time.

Rows whose gradient is zero are left out: most of a batch are too far from a
root to have any. Numbers of a subgraph are computed in matrices of a shape
that follows from how many other rows it has, never from other subgraphs: up to
8 rows their own, then the next power of two or three quarters of it, filled up
with zeros. Linear maps of the same rows are computed together; one that is
used several times for the same rows and gradients is computed once.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
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
    exact_blocks,
    factors_of,
    gram,
    lengths,
    lost,
    precision,
    products,
    scaled,
    scales,
)
from pyg_trust.privacy.exact import clip

LINEAR, ROWS = 'linear', 'rows'
# How many numbers explicit gradients may have at a time.
_CHUNK = 2**22
# Numbers added one after another in the dtype of the rows; blocks of them are
# added in float64.
_BLOCK = clip.BLOCK
# Up to this many rows, rooms are exact.
_EXACT = 8
# How many numbers a row may have in maps that are computed together.
_TOGETHER = 2**10
# A generous bound of what float64 loses in sums of a step.
_UP = 1 + 2.0**-30


@dataclass
class _Layout:
    # Room for the rows of each subgraph, sorted by size, which depends on the
    # number of its rows alone.
    place: Tensor  # of each row
    classes: list[tuple[int, int, Tensor]]  # room, first place, subgraphs
    count: Tensor
    rooms: Tensor
    start: Tensor  # of each subgraph
    size: int
    in_place: bool  # whether rows are so already

    def filled(self, stack: Tensor) -> Tensor:
        # Pad every subgraph to its room with zeros, in whole vectors: bits do
        # not depend on the place in the batch. [num, rows, length].
        num, _, length = stack.shape
        width = length + -length % VECTOR
        begins = stack.is_contiguous() and stack.data_ptr() % 64 == 0
        if self.in_place and width == length and begins:
            return stack
        made = stack.new_zeros(num, self.size, width)
        made[:, :, :length].index_copy_(1, self.place, stack)
        return made

    def rows(self, subgraphs: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        # By room size: the size, the places in the list, and the rows in the
        # padded tensor.
        rooms = self.rooms[subgraphs]
        for room in rooms.unique().tolist():
            if room:
                at = (rooms == room).nonzero().view(-1)
                place = torch.arange(room, device=at.device)
                yield room, at, self.start[subgraphs[at]].view(-1, 1) + place


def _layout(owner: Tensor, num_subgraphs: int) -> _Layout:
    count = torch.bincount(owner, minlength=num_subgraphs)
    # Few sizes need few products.
    rooms = 2 ** torch.frexp(count.double() - 0.5)[1].long()
    rooms = torch.where(4 * count <= 3 * rooms, 3 * rooms // 4, rooms)
    rooms = torch.where(count <= _EXACT, count, rooms)
    by_room = rooms.argsort(stable=True)
    start = torch.empty_like(count)
    start[by_room] = pointer(rooms[by_room])[:-1]
    number = torch.arange(owner.numel(), device=owner.device)
    first = pointer(count)[:-1]
    if bool((owner[1:] >= owner[:-1]).all()):
        place = number + (start - first)[owner]
    else:
        order = owner.argsort(stable=True)
        place = torch.empty_like(owner)
        place[order] = number + (start - first)[owner[order]]
    sizes, numbers = rooms[by_room].unique_consecutive(return_counts=True)
    classes, row, done = [], 0, 0
    for room, many in zip(sizes.tolist(), numbers.tolist(), strict=True):
        if room:
            classes.append((room, row, by_room[done : done + many]))
        row, done = row + room * many, done + many
    in_place = row == owner.numel() and bool((place == number).all())
    return _Layout(place, classes, count, rooms, start, row, in_place)


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
    # Where its rows are computed with those of others.
    places: list[tuple['_Stack', int]] = field(
        default_factory=list, init=False
    )
    # Inputs and gradients of a linear map, in the rooms of its layout.
    filled: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what is equal for the same part, used in the same way."""
        shape = self.weight.shape if self.kind == LINEAR else None
        return self.kind, _region(self.weight), shape

    @property
    def stacks(self) -> bool:
        """Return whether rows are computed with those of others."""
        return self.kind in (LINEAR, ROWS)

    def join(self) -> None:
        """Join rows that are used more than once: they are one product."""
        if self.kind == LINEAR and len(self.grads) > 1:
            self.grads = [torch.cat(self.grads)]
            self.inputs = [torch.cat(self.inputs)]
            self.owners = [torch.cat(self.owners)]

    def products(
        self, z: Any, base: Tensor
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield products of gradients with numbers, and the unit of each.

        Args:
            z (Tensor or tuple): numbers like the base, or two vectors of
                which they are the outer product.
            base (Tensor): what the weight is a part of.
        """
        weight = self.weight
        if self.kind == LINEAR and isinstance(z, tuple):
            pair = None
            if weight.shape == base.shape and weight.stride() == base.stride():
                pair = z
            elif weight.t().shape == base.shape and (
                weight.t().stride() == base.stride()
            ):
                pair = z[::-1]
            if pair is not None:
                each = zip(self.grads, self.inputs, self.owners, strict=True)
                for grad, inner, owner in each:
                    yield (grad @ pair[0]) * (inner @ pair[1]), owner
                return
        dense = torch.outer(*z) if isinstance(z, tuple) else z
        room = torch.empty_strided(
            base.shape, base.stride(), dtype=dense.dtype, device=dense.device
        )
        part = _same_part(room.copy_(dense), base, weight)
        if self.kind == 'whole':
            yield self.grads[0] @ part.reshape(-1), None
            return
        for i, (grad, owner) in enumerate(
            zip(self.grads, self.owners, strict=True)
        ):
            if self.kind == LINEAR:
                yield ((grad @ part) * self.inputs[i]).sum(1), owner
            elif self.kind == ROWS:
                yield grad @ part.reshape(-1), owner
            else:
                rows = part.reshape(len(part), -1)[self.inputs[i]]
                yield (grad * rows).sum(1), owner


@dataclass(eq=False)
class Base:
    """A parameter, or a tensor made of parameters, with its uses."""

    base: Tensor
    clusters: list[Cluster]

    @property
    def apart(self) -> bool:
        """Return whether no two uses share a number, and all have rows."""
        return all(c.stacks for c in self.clusters) and _are_apart(
            self.clusters
        )


@dataclass(eq=False)
class _Live:
    # Rows whose gradient is not zero, as found, and in the order of rooms.
    found: Tensor
    rows: Tensor
    owner: Tensor
    layout: _Layout
    whole: bool  # whether these are all rows, as they are


@dataclass(eq=False)
class _Stack:
    # Gradients of the same live rows, and inputs of linear maps with these, of
    # one width each, that are computed together. Where no map is, rows are
    # copies of a parameter.
    live: _Live
    grads: dict[Any, Tensor] = field(default_factory=dict)
    inners: dict[Any, Tensor] = field(default_factory=dict)
    # By the keys of gradient and input, the uses of their product.
    pairs: dict[Any, list[Cluster]] = field(default_factory=dict)
    # Of each pair, [4, num_subgraphs]: as `Book.sizes` adds them up. Of
    # copies: their sums, and more.
    sizes: Any = None
    # Largest entries, and the powers of two of inputs with their inverses; on
    # the CPU the powers of each input alone.
    scales: tuple[Tensor, ...] = ()

    @property
    def native(self) -> bool:
        # Whether the library has kernels for it.
        return _is_native(next(iter(self.grads.values())))

    @property
    def widths(self) -> tuple[int, ...]:
        # Of gradients, and of inputs.
        sides = self.grads.values(), self.inners.values()
        return tuple(v.size(1) for side in sides for v in [*side][:1])

    @cached_property
    def uses(self) -> ops.ClipUses:
        # What the library reads.
        live, known = self.live, [[*self.grads], [*self.inners]]
        pairs = [[*map(list.index, known, pair)] for pair in self.pairs]
        return ops.ClipUses(
            [*self.grads.values()],
            [*self.inners.values()],
            live.rows,
            live.owner,
            torch.tensor([[*pair, 0][:2] for pair in pairs]),
        )

    def taken(self, side: int, rows: Tensor | None = None) -> Tensor:
        # Gradients (0) or inputs (1), [num, num_rows, width], of the live rows
        # or of some of them.
        values = [*(self.inners if side else self.grads).values()]
        rows = self.live.rows if rows is None else rows
        if rows.numel() < len(values[0]) or not self.live.whole:
            # Takes a fifth of the time of an index in brackets.
            values = [value.index_select(0, rows) for value in values]
        if len(values) == 1:
            return values[0].unsqueeze(0)
        return torch.stack(values)

    def picked(self, values: Tensor, side: int) -> Tensor:
        # Of each pair, what its gradient or its input has.
        known = [*(self.inners if side else self.grads)]
        places = [known.index(pair[side]) for pair in self.pairs]
        if places == [*range(len(known))]:
            return values
        index = torch.tensor(places, device=values.device)
        return values.index_select(0, index)


class Book:
    r"""Norms and sums of gradients from the rows that parameters got.

    Args:
        made (Gathered): the rows.
        num_subgraphs (int): how many subgraphs there are.
        scale (Tensor, optional): float64, ``[num_subgraphs]``, powers of two:
            gradients are those of the rows times these.
            (default: :obj:`None`)
    """

    def __init__(
        self, made: Any, num_subgraphs: int, scale: Tensor | None = None
    ) -> None:
        self.made, self.num_subgraphs, self.scale = made, num_subgraphs, scale
        self._layouts: dict[int, tuple[Tensor, _Layout]] = {}
        # Gradients of all subgraphs, where they are few numbers.
        self._kept: tuple[Tensor, dict[int, Tensor]] | None = None
        self.bases: list[Base] = made.bases()

    @property
    def _several(self) -> set[int]:
        # The parameters that are used in several ways, or by functions of
        # them: their gradients are made as such.
        names = self.made.names
        several: set[int] = set()
        for base in self.bases:
            if id(base.base) not in names or not base.apart:
                several |= self._params(base)
        return several

    def sizes(self) -> Sizes:
        """Compute norms of the gradients, and bounds of their rounding."""
        device = self.made.params[0].device
        k = self.num_subgraphs
        zero = torch.zeros(k, dtype=torch.float64, device=device)
        sizes = Sizes(*(zero.clone() for _ in range(5)))
        several = self._several
        self.stacks = self._stacked(several)
        for stack in self.stacks:
            (self._linear if stack.inners else self._copied)(stack, sizes)
        # In the order of the model: floats are not added up in another one
        # where other rows are live.
        total = zero.new_zeros(4, k)
        copies: dict[Any, Tensor] = {}
        for base in self.bases:
            for cluster in base.clusters:
                if not cluster.places:
                    continue
                key = tuple((id(stack), at) for stack, at in cluster.places)
                if cluster.kind == LINEAR:
                    stack, at = cluster.places[0]
                    total += stack.sizes[at]
                    continue
                if key not in copies:
                    copies[key] = self._rows(cluster)
                total += copies[key]
        square, bound, sizes.tau, sizes.kappa = total
        if several:
            for chunk, grads in self._gradients(several):
                for value in grads.values():
                    flat = value.reshape(len(chunk), -1)
                    each = lengths(flat)[0].square()
                    square[chunk] += each
                    bound[chunk] += each
        sizes.norms = square.clamp(min=0).sqrt().nan_to_num(torch.inf)
        sizes.n = bound.sqrt().nan_to_num(torch.inf) * _UP
        if self.scale is not None:
            # Powers of two: nothing is rounded.
            for each in (sizes.norms, sizes.n, sizes.tau, sizes.weight):
                each *= self.scale
        return sizes

    def sums(self, factors: Tensor, norm: float) -> dict[str, Tensor]:
        r"""Sum the gradients, each times its factor, in integers.

        Args:
            factors (Tensor): float64, ``[num_subgraphs]``; a gradient whose
                factor is zero is left out, finite or not.
            norm (float): the clipping norm, which the grid follows.

        Returns:
            dict[str, Tensor]: int64, by the name of each parameter.
        """
        if self.scale is not None:
            factors = factors * self.scale
        out = {id(p): torch.zeros_like(p).long() for p in self.made.params}
        several = self._several
        parts: dict[Cluster, Tensor] = {}
        for base in self.bases:
            if self._params(base) & several:
                continue
            total = base.base.new_zeros(base.base.numel(), dtype=torch.int64)
            for cluster in base.clusters:
                parts[cluster] = _same_part(total, base.base, cluster.weight)
            out[id(base.base)] = _same_part(total, base.base, base.base)
        for stack in self.stacks:
            for uses, value in self._integers(stack, factors, norm):
                for cluster in uses:
                    part = parts[cluster]
                    part += value.view(part.shape)
        if several:
            for chunk, grads in self._gradients(several):
                for param, value in grads.items():
                    add_truncated(out[param], value, factors[chunk], norm)
        return {self.made.names[i]: value for i, value in out.items()}

    def _params(self, base: Base) -> frozenset[int]:
        return frozenset(map(id, self._of(base)))

    def _of(self, base: Base) -> list[Tensor]:
        found: list[Tensor] = self.made.params_of(base.base)
        return found

    def _layout(self, owner: Tensor) -> _Layout:
        if id(owner) not in self._layouts:
            # The owner is kept with it, so that its id stays its own.
            self._layouts[id(owner)] = (
                owner,
                _layout(owner, self.num_subgraphs),
            )
        return self._layouts[id(owner)][1]

    def _by_owner(self, values: Tensor, owner: Tensor) -> Tensor:
        # [*, num_rows] to [*, num_subgraphs]: one sum after another.
        num = values.shape[:-1].numel()
        first = torch.arange(num, device=owner.device).view(-1, 1)
        total = values.new_zeros(num * self.num_subgraphs)
        owner = owner + self.num_subgraphs * first
        total.index_add_(0, owner.view(-1), values.reshape(-1))
        return total.view(*values.shape[:-1], -1).mul_(_UP)

    def _stacked(self, several: set[int]) -> list[_Stack]:
        # Put uses together that have the same live rows.
        uses: dict[Any, list[tuple[Cluster, int]]] = {}
        for base in self.bases:
            if self._params(base) & several:
                continue
            for cluster in base.clusters:
                for i, grad in enumerate(cluster.grads):
                    key = _key(grad), id(cluster.owners[i])
                    uses.setdefault(key, []).append((cluster, i))
        lives: dict[int, list[_Live]] = {}
        stacks: dict[Any, list[_Stack]] = {}
        for some in uses.values():
            live = self._live(some, lives)
            for cluster, i in some if live.rows.numel() else ():
                grad, inner = cluster.grads[i], cluster.inputs[i : i + 1]
                pair = _key(grad), *map(_key, inner)
                widths = [v.size(1) for v in (grad, *inner)]
                of = id(live), grad.dtype, *widths
                known = stacks.setdefault(of, [])
                stack = next((s for s in known if pair in s.pairs), None)
                if stack is None:
                    most = max(1, _TOGETHER // max(1, sum(widths)))
                    if not known or len(known[-1].pairs) >= most:
                        known.append(_Stack(live))
                    stack = known[-1]
                    stack.grads[pair[0]] = grad
                    stack.inners.update(zip(pair[1:], inner, strict=True))
                    stack.pairs[pair] = []
                stack.pairs[pair].append(cluster)
                cluster.places.append((stack, [*stack.pairs].index(pair)))
        return [stack for known in stacks.values() for stack in known]

    def _live(
        self, uses: list[tuple[Cluster, int]], lives: dict[int, list[_Live]]
    ) -> _Live:
        # Of uses with the same gradients.
        cluster, i = uses[0]
        owner, grad = cluster.owners[i], cluster.grads[i]
        inners = {_key(v): v for c, k in uses for v in c.inputs[k : k + 1]}
        # A row whose input is not finite counts, even with no gradient.
        if _is_native(grad):
            found = rows = ops.clip_rows(grad, [*inners.values()])
        else:
            reach = grad.abs().sum(1)
            for inner in inners.values():
                reach += 0 * inner.sum(1)
            found = rows = reach.nonzero().view(-1)
        known = lives.setdefault(id(owner), [])
        for live in known:
            if torch.equal(live.found, found):
                return live
        if rows.numel() < len(owner):
            owner = owner.index_select(0, rows)
        layout = _layout(owner, self.num_subgraphs)
        whole = layout.in_place and len(rows) == len(grad)
        if not layout.in_place:
            order = layout.place.argsort()
            rows, owner, layout.place = (
                v.index_select(0, order) for v in (rows, owner, layout.place)
            )
            layout.in_place = layout.size == len(rows)
        known.append(_Live(found, rows, owner, layout, whole))
        return known[-1]

    def _copied(self, stack: _Stack, sizes: Sizes) -> None:
        # Sums of rows by subgraph, of their norms and of what rounding them
        # may add to kappa.
        live, k = stack.live, self.num_subgraphs
        if stack.native:
            values, total = self._native(stack, sizes)
            stack.sizes = total, values[4], values[1]
            return
        grads = stack.taken(0)
        length, top = _lengths(grads)
        rounded = (top > 0) * (0.51 * math.sqrt(grads.size(2)))
        terms, kappa = self._by_owner(
            torch.stack([length, rounded.double()]), live.owner
        )
        largest = top * 2.0 ** (clip.INPUT_BITS - clip.GRID_BITS - 1)
        sizes.weight.scatter_reduce_(0, live.owner, largest.amax(0), 'amax')
        total = terms.new_zeros(len(grads), k, grads.size(2))
        total.index_add_(1, live.owner, grads.double())
        stack.scales = (top,)
        stack.sizes = total, terms, kappa

    def _rows(self, cluster: Cluster) -> Tensor:
        # The squared norms, as computed, and upper bounds of them; tau, and
        # kappa.
        total, terms, kappa, count = (
            sum(values[1:], values[0])
            for values in zip(
                *(
                    (*(v[at] for v in stack.sizes), stack.live.layout.count)
                    for stack, at in cluster.places
                ),
                strict=True,
            )
        )
        found = lengths(total)[0]
        # The number of its own rows, whatever the number of others.
        bound = found + count * 2.0**-52 * terms
        tau = torch.zeros_like(kappa)
        return torch.stack([found.square(), bound.square(), tau, kappa])

    def _linear(self, stack: _Stack, sizes: Sizes) -> None:
        # The same, of linear maps of rows of the same subgraphs.
        if stack.native:
            found, _ = self._native(stack, sizes)
        else:
            found = self._bounds(stack, sizes)
        # The last two: products that underflow, of one matrix times another.
        tau, kappa, terms, *under = found
        rows, cols = stack.widths
        unit, tiny = precision(next(iter(stack.grads.values())).dtype)
        count = min(rows, _BLOCK) + min(cols, _BLOCK) + 16
        more = under[0].square() * rows + under[1].square() * cols
        more = 2 * tiny * more + lost(count, unit) * terms.square()
        square, bound = self._norms(stack, terms, more)
        tau = tau * (math.sqrt(cols) / 2)
        stack.sizes = torch.stack([square, bound, tau, kappa], 1)

    def _native(self, stack: _Stack, sizes: Sizes) -> tuple[Tensor, Tensor]:
        # By the library: what `_bounds` returns, and sums of copies.
        found, weight, scale, total = ops.clip_sizes(
            stack.uses, self.num_subgraphs
        )
        stack.scales = (scale,)
        sizes.weight = torch.maximum(sizes.weight, weight)
        return found.mul_(_UP), total

    def _bounds(self, stack: _Stack, sizes: Sizes) -> Tensor:
        # What tau is of, kappa, products of lengths, and lengths.
        live, (rows, cols) = stack.live, stack.widths
        out, width = math.sqrt(rows), math.sqrt(cols)
        length, top = (stack.picked(v, 0) for v in _lengths(stack.taken(0)))
        others, tops = (stack.picked(v, 1) for v in _lengths(stack.taken(1)))
        scale, inverse = scales(tops)
        stack.scales = top, scale, inverse
        # Larger rows can't be rounded to integers: they count as infinite.
        weight = (top * scale).masked_fill(tops > clip.HUGE, torch.inf)
        sizes.weight.scatter_reduce_(0, live.owner, weight.amax(0), 'amax')
        rounded = 0.51 * out * others * inverse + out * width / 3
        values = torch.stack(
            [
                *(length * scale, rounded * (top > 0).double()),
                *(length * others, others, length),
            ]
        )
        return self._by_owner(values, live.owner)

    def _norms(
        self, stack: _Stack, terms: Tensor, more: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Of linear maps, from both matrices. `more` is what is lost in a Gram
        # matrix.
        layout, (rows, cols) = stack.live.layout, stack.widths
        square = terms.square()
        if all(room == 1 for room, *_ in layout.classes):
            return square, square
        sides = [layout.filled(stack.taken(side)) for side in (0, 1)]
        few = torch.zeros_like(square, dtype=torch.bool)
        parts = []
        for room, first, subgraphs in layout.classes:
            if room == 1:
                continue
            n = len(subgraphs)
            last = first + room * n
            part = [
                side[:, first:last].reshape(-1, n, room, side.size(2))
                for side in sides
            ]
            parts.append((room, subgraphs, part))
            if room * (rows + cols) > rows * cols:
                few[:, subgraphs] = True
                continue
            made = [products(side.flatten(0, 1)) for side in part]
            pair = [
                stack.picked(v.view(-1, n, room, room), i).flatten(0, 1)
                for i, v in enumerate(made)
            ]
            square[:, subgraphs] = gram(*pair).view(-1, n)
        several = layout.count > 1
        bound = torch.where(several, square.clamp(min=0) + more, square)
        few |= (square < 0.01 * terms.square()) & several
        unit, tiny = precision(sides[0].dtype)
        for room, subgraphs, part in parts if bool(few.any()) else ():
            here = few[:, subgraphs]
            of = here.nonzero()
            for at in self._chunks(of, room, rows, cols):
                which, number = at.unbind(1)
                if len(at) == here.numel():
                    each = [
                        stack.picked(v, i).flatten(0, 1)
                        for i, v in enumerate(part)
                    ]
                else:
                    each = [
                        v[
                            stack.picked(which.new_tensor(range(len(v))), i)[
                                which
                            ],
                            number,
                        ]
                        for i, v in enumerate(part)
                    ]
                value = between(*each)[:, :rows, :cols].reshape(len(at), -1)
                found = lengths(value)[0]
                small = (room + 8) * math.sqrt(rows * cols) * tiny
                to = which, subgraphs[number]
                less = lost(min(room, _BLOCK) + 8, unit) * terms[to]
                square[to] = found.square()
                bound[to] = (found + less + small).square()
        return square, bound

    def _chunks(self, places: Tensor, *size: int) -> Iterable[Tensor]:
        room, rows, cols = size
        most = max(1, _CHUNK // (rows * cols + room * (rows + cols)))
        return places.split(most) if len(places) else ()

    def _each(self, cluster: Cluster, subgraphs: Tensor) -> Tensor:
        # [len(subgraphs), *weight.shape]
        n = subgraphs.numel()
        shape = (n, *cluster.weight.shape)
        if cluster.kind == 'whole':
            return cluster.grads[0][subgraphs].view(shape)
        if cluster.kind == 'table':
            return self._looked_up(cluster, subgraphs).view(shape)
        if cluster.kind == LINEAR:
            grad, inner = cluster.grads[0], cluster.inputs[0]
            layout = self._layout(cluster.owners[0])
            if cluster.filled is None:
                cluster.filled = (
                    layout.filled(grad.unsqueeze(0))[0],
                    layout.filled(inner.unsqueeze(0))[0],
                )
            made = grad.new_zeros(shape)
            for _, at, place in layout.rows(subgraphs):
                value = between(*(v[place] for v in cluster.filled))
                made[at] = value[:, : shape[1], : shape[2]].to(made)
            return made
        total = torch.zeros(
            *(n, cluster.weight.numel()),
            dtype=torch.float64,
            device=subgraphs.device,
        )
        place = subgraphs.new_full((self.num_subgraphs,), -1)
        place[subgraphs] = torch.arange(n, device=place.device)
        for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
            mine = place[owner]
            rows = (mine >= 0).nonzero().view(-1)
            total.index_add_(0, mine[rows], grad[rows].double())
        return total.to(cluster.weight.dtype).view(shape)

    def _looked_up(self, cluster: Cluster, subgraphs: Tensor) -> Tensor:
        size, n = len(cluster.weight), subgraphs.numel()
        place = subgraphs.new_full((self.num_subgraphs,), -1)
        place[subgraphs] = torch.arange(n, device=place.device)
        width = cluster.weight[0].numel()
        total = cluster.weight.new_zeros(n * size, width, dtype=torch.float64)
        for grad, index, owner in zip(
            cluster.grads, cluster.inputs, cluster.owners, strict=True
        ):
            mine = place[owner]
            rows = (mine >= 0).nonzero().view(-1)
            at = mine[rows] * size + index[rows]
            total.index_add_(0, at, grad[rows].double())
        return total.to(cluster.weight.dtype)

    def _gradients(
        self, several: set[int]
    ) -> Iterator[tuple[Tensor, dict[int, Tensor]]]:
        # The gradients of parameters that are used in several ways.
        if self._kept is not None:
            yield self._kept
            return
        params = [p for p in self.made.params if id(p) in several]
        bases = [b for b in self.bases if self._params(b) & several]
        size = sum(p.numel() for p in params)
        size += sum(b.base.numel() for b in bases)
        everything = torch.arange(self.num_subgraphs, device=params[0].device)
        for chunk in everything.split(max(1, _CHUNK // size)):
            n = chunk.numel()
            out = {id(p): p.new_zeros(n, *p.shape) for p in params}
            for base in bases:
                total = base.base.new_zeros(n, base.base.numel())
                for cluster in base.clusters:
                    part = _same_part(total, base.base, cluster.weight, n)
                    part += self._each(cluster, chunk).view(part.shape)
                whole = _same_part(total, base.base, base.base, n)
                if id(base.base) in out:
                    out[id(base.base)] += whole
                    continue
                made_of = self._of(base)
                pulled = torch.autograd.grad(
                    base.base,
                    made_of,
                    whole,
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
                for param, grad in zip(made_of, pulled, strict=True):
                    if grad is not None:
                        out[id(param)] += grad
            if n == self.num_subgraphs:
                self._kept = chunk, out
            yield chunk, out

    def _integers(
        self, stack: _Stack, factors: Tensor, norm: float
    ) -> Iterator[tuple[list[Cluster], Tensor]]:
        # Sums of so few rows at a time that each of them is exact.
        if stack.native:
            (scale,) = stack.scales
            each = factors / clip.grid(norm)
            made = ops.clip_sums(stack.uses, scale, each)
            yield from zip(stack.pairs.values(), made, strict=True)
            return
        live, (top, *powers) = stack.live, stack.scales
        each = factors.index_select(0, live.owner)
        scale = powers[0] if powers else torch.ones_like(top)
        weight = each / clip.grid(norm) * scale
        # Zero times what is not finite is not zero: those are left out.
        rows, here = (each > 0).nonzero().view(-1), live.rows
        columns = [top * weight, weight, *powers[1:]]
        if rows.numel() < len(each):
            here = here.index_select(0, rows)
            columns = [v.index_select(1, rows) for v in columns]
        # Entries of the one factor, if there is another: copies have none,
        # and may be as large as products.
        tops = columns[0].amax(0)
        if not powers:
            tops *= 2.0**-clip.INPUT_BITS
        for at in exact_blocks(tops):
            grads = stack.picked(stack.taken(0, here[at]), 0)
            made = scaled(grads, columns[1][:, at])
            if powers:
                inner = stack.picked(stack.taken(1, here[at]), 1)
                inner = scaled(inner, columns[2][:, at])
                made = torch.bmm(made.mT, inner).long()
            else:
                made = made.sum(1).long()
            yield from zip(stack.pairs.values(), made, strict=True)


def clipped_sum(found: Any, norm: float, automatic: bool = False) -> Clipped:
    """Compute norms and the clipped sum of gradients by units.

    Args:
        found (Attributed): the rows that parameters got.
        norm (float): the clipping norm; infinity to clip nothing.
        automatic (bool): whether short gradients are made longer.
            (default: :obj:`False`)
    """
    with torch.no_grad():
        book = Book(found.made, found.made.num_units, found.inverse)
        sizes = book.sizes()
        for each in (sizes.norms, sizes.n):
            each.masked_fill_(found.broken, torch.inf)
        if norm == math.inf:
            norm, automatic = sizes.enough(), False
        factors = factors_of(sizes, norm, automatic)
        integers = book.sums(factors, norm)
        rounding = factors * sizes.tau + clip.grid(norm) * sizes.kappa
        return Clipped(integers, norm, sizes.norms, factors, rounding)


def _key(rows: Tensor) -> Any:
    # Of a tensor that lives on: views of the same numbers are the same rows.
    # Some devices have no pointers: there different tensors would be equal.
    return rows.data_ptr() or id(rows), rows.shape, rows.stride()


def _is_native(rows: Tensor) -> bool:
    # Whether the library has kernels for it.
    return rows.is_cpu and rows.dtype in REAL


def _lengths(stack: Tensor) -> tuple[Tensor, ...]:
    # Of rows of [num, num_rows, width].
    found = lengths(stack.flatten(0, 1))
    return tuple(value.view(stack.shape[:2]) for value in found)


def _is_dense(tensor: Tensor) -> bool:
    span = sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return span + 1 == tensor.numel()


def _region(weight: Tensor) -> tuple[Any, ...]:
    # The indices that a view covers, in its order.
    dims = zip(weight.shape, weight.stride(), strict=True)
    return weight.storage_offset(), tuple(d for d in dims if d[0] > 1)


def _are_apart(clusters: Iterable[Cluster]) -> bool:
    spans = []
    for cluster in clusters:
        offset, dims = _region(cluster.weight)
        spans.append((offset, offset + sum((n - 1) * s for n, s in dims)))
    spans.sort()
    return all(before[1] < after[0] for before, after in pairwise(spans))


def _same_part(
    total: Tensor, base: Tensor, weight: Tensor, batch: int | None = None
) -> Tensor:
    # The part of a total that a weight is of its base.
    offset = weight.storage_offset() - base.storage_offset()
    shape, stride = tuple(weight.shape), weight.stride()
    if batch is not None:
        shape, stride = (batch, *shape), (base.numel(), *stride)
    return total.as_strided(shape, stride, offset)
