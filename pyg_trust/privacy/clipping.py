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
it (:mod:`pyg_trust.kernel.clip` has the proof): sums do not depend on
order, threads or company. The bounds of norms that they rest on:

* rows: blocks of 256 squares in the rows' type, the rest in float64;
* a Gram matrix: sums of :math:`p` and of :math:`q` products, up to 256 at a
  time, :math:`n^2 \le` computed :math:`+ \gamma_{p + q + 16} T^2`, with
  :math:`T = \sum_r \lvert \gamma_r \rvert \lvert a_r \rvert` and
  :math:`\gamma_n = n u / (1 - n u)`;
* where that is less than :math:`.01\, T^2`, as terms cancel, or is dearer: the
  gradient itself, :math:`n \le` computed :math:`+ \gamma_{s + 8} T` of
  :math:`s \le 256` rows at a time.

Numbers of a subgraph are computed in matrices of a shape that follows from how
many rows it has, never from those of others: up to 8 rows their own, then the
next power of two or three quarters of it, filled up with zeros.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.graph.ragged import pointer
from pyg_trust.kernel import clip
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
from pyg_trust.privacy.calls import Unsupported
from pyg_trust.privacy.recorder import LINEAR, Recorder, Use

# How many numbers explicit gradients may have at a time.
_CHUNK = 2**22
# Numbers added one after another in the dtype of the rows; blocks of them are
# added in float64.
_BLOCK = clip.BLOCK
# Up to this many rows, rooms are exact.
_EXACT = 8
# Linear maps whose bounds are computed together.
_TOGETHER = 8
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

    def filled(self, tensor: Tensor) -> Tensor:
        # Pad every subgraph to its room with zeros, in whole vectors: bits do
        # not depend on the place in the batch.
        length = tensor.size(1)
        width = length + -length % VECTOR
        begins = tensor.is_contiguous() and tensor.data_ptr() % 64 == 0
        if self.in_place and width == length and begins:
            return tensor
        made = tensor.new_zeros(self.size, width)
        made[:, :length].index_copy_(0, self.place, tensor)
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
class _Cluster:
    # Uses of the same part of a base, in the same way.
    kind: str
    weight: Tensor
    grads: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    owners: list[Tensor] = field(default_factory=list)
    # Inputs and gradients of a linear map, in the rooms of its layout.
    filled: tuple[Tensor, Tensor] | None = None

    def join(self) -> None:
        # Rows that are used more than once belong to one product.
        if self.kind == LINEAR and len(self.grads) > 1:
            self.grads = [torch.cat(self.grads)]
            self.inputs = [torch.cat(self.inputs)]
            self.owners = [torch.cat(self.owners)]


@dataclass(eq=False)
class _Live:
    # Rows that add something: their numbers, gradients, factors and largest
    # entries; and their sum, once it is made.
    rows: tuple[Tensor, ...]
    sum: Tensor | None = None


@dataclass(eq=False)
class _Base:
    base: Tensor
    clusters: list[_Cluster]
    apart: bool


class Book:
    r"""Norms and sums of gradients from a recorded forward pass.

    Args:
        recorder (Recorder): the record of the forward pass.
        outputs (list[Tensor]): the tensors that the loss depends on.
        grads (list[Tensor]): the gradients by the outputs.
        num_subgraphs (int): how many subgraphs there are.

    Raises:
        Unsupported: if the pass has an operation that is not supported.
    """

    def __init__(
        self,
        recorder: Recorder,
        outputs: list[Tensor],
        grads: list[Tensor],
        num_subgraphs: int,
    ) -> None:
        if recorder.problem is not None:
            raise Unsupported(recorder.problem)
        recorder.check_complete(outputs)
        self.recorder = recorder
        self.num_subgraphs = num_subgraphs
        self._layouts: dict[int, tuple[Tensor, _Layout]] = {}
        self._lengths: dict[Any, tuple[Tensor, Tensor, Tensor]] = {}
        self._powers: dict[Any, tuple[Tensor, Tensor]] = {}
        self._live: tuple[Any, list[_Live]] = (None, [])
        # Gradients of all subgraphs, where they are few numbers.
        self._kept: tuple[Tensor, dict[int, Tensor]] | None = None
        for use in recorder.uses:
            if use.rows.owner is None:
                raise Unsupported(
                    f'{self._name(use.base)}: the owners of the rows that use '
                    'it are not known'
                )
            if use.input is not None and use.input._version != use.version:
                raise Unsupported(
                    f'{self._name(use.base)}: its input was changed in place'
                )
            if not _is_dense(use.base):
                raise Unsupported(
                    f'{self._name(use.base)}: its memory overlaps'
                )
        self.bases = self._differentiate(outputs, grads)

    def _name(self, base: Tensor) -> str:
        weight = self.recorder.weight(base)
        assert weight is not None
        return ', '.join(sorted(self.recorder.names[p] for p in weight.params))

    def _differentiate(
        self, outputs: list[Tensor], grads: list[Tensor]
    ) -> list[_Base]:
        uses = self.recorder.uses
        edges = {(u.edge.node, u.edge.output_nr): u.edge for u in uses}
        if not edges:
            return []
        with ops.without_gradients(self.recorder.stops):
            found = torch.autograd.grad(
                outputs,
                list(edges.values()),
                grads,
                retain_graph=True,
                allow_unused=True,
            )
        by_edge = dict(zip(edges, found, strict=True))
        parts: dict[int, dict[Any, _Cluster]] = {}
        bases: dict[int, Tensor] = {}
        for use in uses:
            grad = by_edge[use.edge.node, use.edge.output_nr]
            if grad is None:
                continue
            if use.index is not None:
                grad = grad[use.index]
            bases[id(use.base)] = use.base
            clusters = parts.setdefault(id(use.base), {})
            key: tuple[Any, ...] = (use.kind, _region(use.weight))
            if use.kind == LINEAR:
                key = (*key, use.weight.shape)
            cluster = clusters.setdefault(key, _Cluster(use.kind, use.weight))
            self._add(cluster, use, grad)
        for clusters in parts.values():
            for cluster in clusters.values():
                cluster.join()
        return [
            _Base(bases[i], list(c.values()), _are_apart(c.values()))
            for i, c in parts.items()
        ]

    def _add(self, cluster: _Cluster, use: Use, grad: Tensor) -> None:
        owner = use.rows.owner
        assert owner is not None
        if use.kind == LINEAR:
            assert use.input is not None
            shape = [1] * (grad.dim() - 1)
            shape[use.axis] = -1
            if grad.dim() > 2:
                owner = owner.view(shape).expand(grad.shape[:-1]).reshape(-1)
                # The same object each time, so that it is sorted once.
                owner = self.recorder.tracker.known(owner).owner
                assert owner is not None
            cluster.grads.append(grad.flatten(0, -2))
            cluster.inputs.append(use.input.flatten(0, -2))
        else:
            grad = grad.movedim(use.axis, 0)
            full = use.weight.movedim(use.axis, 0)[0]
            dims = [
                d + 1
                for d, size in enumerate(full.shape)
                if size == 1 and grad.size(d + 1) != 1
            ]
            if dims:
                grad = grad.sum(dims)
            cluster.grads.append(
                grad.reshape(grad.size(0), use.weight.numel())
            )
        cluster.owners.append(owner)

    @property
    def _several(self) -> set[int]:
        # The parameters that are used in several ways, or by functions of
        # them: their gradients are made as such.
        names = self.recorder.names
        several: set[int] = set()
        for base in self.bases:
            if id(base.base) not in names or not base.apart:
                several |= self._params(base)
        return several

    def sizes(self) -> Sizes:
        """Compute norms of the gradients, and bounds of their rounding."""
        device = self.recorder.params[0].device
        k = self.num_subgraphs
        zero = torch.zeros(k, dtype=torch.float64, device=device)
        sizes = Sizes(*(zero.clone() for _ in range(5)))
        several = self._several
        square, bound = zero.clone(), zero.clone()
        alike: dict[int, list[_Cluster]] = {}
        last: Any = None
        for base in self.bases:
            if self._params(base) & several:
                continue
            for cluster in base.clusters:
                if cluster.kind == LINEAR:
                    at = id(cluster.owners[0])
                    alike.setdefault(at, []).append(cluster)
                    continue
                key = [
                    (_key(g), id(o))
                    for g, o in zip(cluster.grads, cluster.owners, strict=True)
                ]
                if key != last:
                    last, rows = key, self._rows(cluster)
                square += rows[0]
                bound += rows[1]
                sizes.kappa += rows[2]
                sizes.weight = torch.maximum(sizes.weight, rows[3])
        for clusters in alike.values():
            for first in range(0, len(clusters), _TOGETHER):
                some = clusters[first : first + _TOGETHER]
                for one, other in self._linear(some, sizes):
                    square += one
                    bound += other
        if several:
            for chunk, grads in self._gradients(several):
                for value in grads.values():
                    flat = value.reshape(len(chunk), -1)
                    each = lengths(flat)[0].square()
                    square[chunk] += each
                    bound[chunk] += each
        sizes.norms = square.clamp(min=0).sqrt().nan_to_num(torch.inf)
        sizes.n = bound.sqrt().nan_to_num(torch.inf) * _UP
        return sizes

    def sums(
        self, factors: Tensor, norm: float, of: int | None = None
    ) -> list[dict[str, Tensor]]:
        r"""Sum the gradients, each times its factor, in integers.

        Args:
            factors (Tensor): float64, ``[num_subgraphs]``; a gradient whose
                factor is zero is left out, finite or not.
            norm (float): the clipping norm, which the grid follows.
            of (int, optional): a subgraph whose part of the sum is returned
                as well. (default: :obj:`None`)

        Returns:
            list[dict[str, Tensor]]: int64, by the name of each parameter: the
            sum, and the part of one subgraph if it was asked for.
        """
        n = 1 if of is None else 2
        out = {
            id(p): p.new_zeros(n, *p.shape, dtype=torch.int64)
            for p in self.recorder.params
        }
        several = self._several
        self._live = None, []
        for base in self.bases:
            if self._params(base) & several:
                continue
            total = base.base.new_zeros(
                n, base.base.numel(), dtype=torch.int64
            )
            for cluster in base.clusters:
                part = _same_part(total, base.base, cluster.weight, n)
                for to, value in self._integers(cluster, factors, norm, of):
                    part[to] += value.view(part.shape[1:])
            out[id(base.base)] = _same_part(total, base.base, base.base, n)
        if several:
            for chunk, grads in self._gradients(several):
                own = chunk if of is None else chunk[chunk == of]
                for param, value in grads.items():
                    add_truncated(out[param][0], value, factors[chunk], norm)
                    if of is not None and len(own):
                        one = value[own - chunk[0]]
                        add_truncated(out[param][1], one, factors[own], norm)
        names = self.recorder.names
        return [
            {names[i]: value[to] for i, value in out.items()}
            for to in range(n)
        ]

    def _params(self, base: _Base) -> frozenset[int]:
        weight = self.recorder.weight(base.base)
        assert weight is not None
        return weight.params

    def _of(self, base: _Base) -> list[Tensor]:
        ids = self._params(base)
        return [p for p in self.recorder.params if id(p) in ids]

    def _layout(self, owner: Tensor) -> _Layout:
        if id(owner) not in self._layouts:
            # The owner is kept with it, so that its id stays its own.
            self._layouts[id(owner)] = (
                owner,
                _layout(owner, self.num_subgraphs),
            )
        return self._layouts[id(owner)][1]

    def _length(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        # Upper bounds of norms, and the largest absolute entries.
        key = _key(rows)
        if key not in self._lengths:
            self._lengths[key] = rows, *lengths(rows)
        return self._lengths[key][1:]

    def _scales(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        # The powers of two that rows are rounded to, and their inverses.
        key = _key(rows)
        if key not in self._powers:
            self._powers[key] = scales(self._length(rows)[1])
        return self._powers[key]

    def _by_owner(self, values: Tensor, owner: Tensor) -> Tensor:
        # [..., num_rows] to [..., num_subgraphs]: one sum after another.
        size = values.shape[:-1].numel() * self.num_subgraphs
        total = values.new_zeros(size)
        if values.dim() > 1:
            first = torch.arange(len(values), device=owner.device)
            owner = owner + self.num_subgraphs * first.view(-1, 1)
        total.index_add_(0, owner.reshape(-1), values.reshape(-1))
        return total.view(*values.shape[:-1], -1).mul_(_UP)

    def _rows(
        self, cluster: _Cluster
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The squared norms, as computed, and upper bounds of them; what
        # rounding the rows may add to kappa, and their weight.
        kappa, terms, weight = torch.zeros(
            *(3, self.num_subgraphs),
            dtype=torch.float64,
            device=cluster.weight.device,
        )
        total = terms.new_zeros(len(terms), cluster.weight.numel())
        for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
            length, top = self._length(grad)
            terms += self._by_owner(length, owner)
            rounded = (top > 0) * (0.51 * math.sqrt(grad.size(1)))
            kappa += self._by_owner(rounded.double(), owner)
            largest = top * 2.0 ** (clip.INPUT_BITS - clip.GRID_BITS - 1)
            weight.scatter_reduce_(0, owner, largest, 'amax')
            total.index_add_(0, owner, grad.double())
        found = lengths(total)[0]
        # The number of its own rows, whatever the number of others.
        each = torch.cat(cluster.owners)
        count = each.bincount(minlength=self.num_subgraphs)
        bound = found + count * 2.0**-52 * terms
        return found.square(), bound.square(), kappa, weight

    def _linear(
        self, clusters: list[_Cluster], sizes: Sizes
    ) -> Iterator[tuple[Tensor, Tensor]]:
        # The same, of linear maps of rows of the same subgraphs.
        owner = clusters[0].owners[0]
        layout = self._layout(owner)
        grads = [cluster.grads[0] for cluster in clusters]
        inners = [cluster.inputs[0] for cluster in clusters]
        length, top = _stacked(map(self._length, grads))
        others, tops = _stacked(map(self._length, inners))
        scale, inverse = _stacked(map(self._scales, inners))
        rows, cols = (
            owner.new_tensor([v.size(1) for v in side]).double().view(-1, 1)
            for side in (grads, inners)
        )
        out, width = rows.sqrt(), cols.sqrt()
        tau = self._by_owner(length * scale, owner) * width / 2
        rounded = 0.51 * out * others * inverse + out * width / 3
        kappa = self._by_owner(rounded * (top > 0).double(), owner)
        # Larger rows can't be rounded to integers: they count as infinite.
        weight = (top * scale).masked_fill(tops > clip.HUGE, torch.inf)
        sizes.weight.scatter_reduce_(0, owner, weight.amax(0), 'amax')
        for one, other in zip(tau, kappa, strict=True):
            sizes.tau += one
            sizes.kappa += other
        # The sum of the norms of the rows' gradients.
        terms = self._by_owner(length * others, owner)
        unit, tiny = precision(grads[0].dtype)
        # Products that underflow, of the one matrix times the other.
        under = self._by_owner(others, owner).square() * rows
        under += self._by_owner(length, owner).square() * cols
        count = rows.clamp(max=_BLOCK) + cols.clamp(max=_BLOCK) + 16
        more = 2 * tiny * under + lost(count, unit) * terms.square()
        # Maps of the same rows, or with the same gradients, share these.
        pairs = list(zip(grads, inners, strict=True))
        uses = Counter(_key(side) for pair in pairs for side in pair)
        rooms: dict[Any, dict[int, Tensor]] = {}
        for i, pair in enumerate(pairs):
            sides = []
            for side in pair:
                if _key(side) not in rooms:
                    rooms[_key(side)] = {0: layout.filled(side)}
                sides.append(rooms[_key(side)])
            size = pair[0].size(1), pair[1].size(1)
            yield self._norms(layout, size, sides, terms[i], more[i])
            for side in pair:
                uses[_key(side)] -= 1
                if not uses[_key(side)]:
                    del rooms[_key(side)]

    def _norms(
        self,
        layout: _Layout,
        size: tuple[int, int],
        sides: list[dict[int, Tensor]],
        terms: Tensor,
        more: Tensor,
    ) -> tuple[Tensor, Tensor]:
        # Of one linear map, from both matrices: in their rooms at 0, and
        # products by room. `more` is what is lost in a Gram matrix.
        rows, cols = size
        square = terms.square()
        few = torch.zeros_like(square, dtype=torch.bool)
        parts = []
        for room, first, subgraphs in layout.classes:
            if room == 1:
                continue
            last = first + room * subgraphs.numel()
            part = [
                made[0][first:last].view(len(subgraphs), room, -1)
                for made in sides
            ]
            parts.append((room, subgraphs, part))
            if room * (rows + cols) > rows * cols:
                few[subgraphs] = True
                continue
            for made, each in zip(sides, part, strict=True):
                if room not in made:
                    made[room] = products(each)
            square[subgraphs] = gram(sides[0][room], sides[1][room])
        several = layout.count > 1
        bound = torch.where(several, square.clamp(min=0) + more, square)
        few |= (square < 0.01 * terms.square()) & several
        unit, tiny = precision(sides[0][0].dtype)
        for room, subgraphs, part in parts if bool(few.any()) else ():
            here = few[subgraphs].nonzero().view(-1)
            at = subgraphs[here]
            every = at.numel() == subgraphs.numel()
            for of, to in self._chunks(here, at, room, rows, cols):
                whole = every and len(of) == len(at)
                value = between(*(v if whole else v[of] for v in part))
                value = value[:, :rows, :cols].reshape(len(to), -1)
                found = lengths(value)[0]
                small = (room + 8) * math.sqrt(rows * cols) * tiny
                less = lost(min(room, _BLOCK) + 8, unit) * terms[to]
                square[to] = found.square()
                bound[to] = (found + less + small).square()
        return square, bound

    def _chunks(
        self, places: Tensor, subgraphs: Tensor, *size: int
    ) -> Iterable[tuple[Tensor, Tensor]]:
        room, rows, cols = size
        most = max(1, _CHUNK // (rows * cols + room * (rows + cols)))
        if not places.numel():
            return ()
        return zip(places.split(most), subgraphs.split(most), strict=True)

    def _each(self, cluster: _Cluster, subgraphs: Tensor) -> Tensor:
        # [len(subgraphs), *weight.shape]
        n = subgraphs.numel()
        shape = (n, *cluster.weight.shape)
        if cluster.kind == LINEAR:
            grad, inner = cluster.grads[0], cluster.inputs[0]
            layout = self._layout(cluster.owners[0])
            if cluster.filled is None:
                cluster.filled = layout.filled(grad), layout.filled(inner)
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

    def _gradients(
        self, several: set[int]
    ) -> Iterator[tuple[Tensor, dict[int, Tensor]]]:
        # The gradients of parameters that are used in several ways.
        if self._kept is not None:
            yield self._kept
            return
        params = [p for p in self.recorder.params if id(p) in several]
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
        self, cluster: _Cluster, factors: Tensor, norm: float, of: int | None
    ) -> Iterator[tuple[int, Tensor]]:
        # Sums of so few rows at a time that each of them is exact: 0 of all
        # of them, 1 of one subgraph's.
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            # Often those of the map before: a bias, or another map of a sum.
            key = _key(grad), id(owner)
            if self._live[0] != key:
                live = self._weighed(grad, owner, factors, norm, of)
                self._live = key, live
            for to, found in enumerate(self._live[1]):
                rows, grads, weight, tops = found.rows
                if not cluster.inputs:
                    if found.sum is None:
                        made, size = scaled(grads, weight), weight * tops + 1
                        # Below 2^51, float64 adds them without error.
                        few = float(size.sum()) <= 2.0**51
                        found.sum = (
                            made.sum(0).long() if few else made.long().sum(0)
                        )
                    yield to, found.sum
                    continue
                inner = cluster.inputs[i]
                part = [inner, *self._scales(inner)]
                if rows.numel() < len(owner):
                    part = [value.index_select(0, rows) for value in part]
                inner, scale, inverse = part
                each = weight * scale
                for at in exact_blocks(tops * each):
                    alpha = scaled(grads[at], each[at])
                    made = alpha.t() @ scaled(inner[at], inverse[at])
                    yield to, made.long()

    def _weighed(
        self,
        grad: Tensor,
        owner: Tensor,
        factors: Tensor,
        norm: float,
        of: int | None,
    ) -> list['_Live']:
        each, top = factors.index_select(0, owner), self._length(grad)[1]
        columns = [grad, each / clip.grid(norm), top]
        # Zero times what is not finite is not zero: those are left out.
        live = (each > 0) & (top > 0)
        wanted = [live] if of is None else [live, live & (owner == of)]
        made = []
        for mask in wanted:
            rows = mask.nonzero().view(-1)
            part = columns
            if rows.numel() < len(owner):
                # Takes a fifth of the time of an index in brackets.
                part = [value.index_select(0, rows) for value in columns]
            made.append(_Live((rows, *part)))
        return made


def clipped_sum(
    recorder: Recorder,
    outputs: list[Tensor],
    grads: list[Tensor],
    num_subgraphs: int,
    norm: float,
    automatic: bool = False,
    of: int | None = None,
) -> Clipped:
    """Compute norms and the clipped sum from a recorded forward pass.

    Args:
        recorder (Recorder): the record of the forward pass.
        outputs (list[Tensor]): the tensors that the loss depends on.
        grads (list[Tensor]): the gradients by the outputs.
        num_subgraphs (int): how many subgraphs there are.
        norm (float): the clipping norm; infinity to clip nothing.
        automatic (bool): whether short gradients are made longer.
            (default: :obj:`False`)
        of (int, optional): the subgraph of which to tell what it has added.
            (default: :obj:`None`)
    """
    with torch.no_grad():
        book = Book(recorder, outputs, grads, num_subgraphs)
        sizes = book.sizes()
        if norm == math.inf:
            norm, automatic = sizes.enough(), False
        factors = factors_of(sizes, norm, automatic)
        integers, *added = book.sums(factors, norm, of)
        rounding = factors * sizes.tau + clip.grid(norm) * sizes.kappa
        share = None
        if of is not None:
            share = sizes.share(of, float(factors[of]), added[0].values())
        return Clipped(integers, norm, sizes.norms, factors, rounding, share)


def _key(rows: Tensor) -> Any:
    # Of a tensor that lives on: views of the same numbers are the same rows.
    return rows.data_ptr(), rows.shape, rows.stride()


def _stacked(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    return map(torch.stack, zip(*pairs, strict=True))


def _is_dense(tensor: Tensor) -> bool:
    span = sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return span + 1 == tensor.numel()


def _region(weight: Tensor) -> tuple[Any, ...]:
    # The indices that a view covers, in its order.
    dims = zip(weight.shape, weight.stride(), strict=True)
    return weight.storage_offset(), tuple(d for d in dims if d[0] > 1)


def _are_apart(clusters: Iterable[_Cluster]) -> bool:
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
