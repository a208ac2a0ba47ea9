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

A difference of large numbers loses digits. The norm of a sum whose terms
cancel is therefore computed from the gradient itself. A sum of many numbers
loses digits as well, in float32 and always in one direction if the numbers are
alike: no more than 256 are added up one after another, the rest in float64.
What that may lose (:math:`n / 8` units of the least digit of :math:`\sum_r
\lVert \gamma_r \rVert \lVert a_r \rVert`, of :math:`n \le 256` rows) is
added to every norm, so that what is added is never longer than what was
clipped to.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pyg_trust.functional.mechanisms import row_norms
from pyg_trust.functional.ragged import pointer
from pyg_trust.privacy.calls import Unsupported
from pyg_trust.privacy.recorder import LINEAR, ROWS, Recorder, Use

# How many numbers explicit gradients may have at a time.
_CHUNK = 2**22
# Of so many numbers that are added up one after another in float32, the sum
# is wrong by 4e-6 of it at most; blocks of them are added up in float64.
_BLOCK = 256


@dataclass
class _Layout:
    # Rows, those of a subgraph side by side, subgraphs of a size together.
    order: Tensor | None  # None if rows are so already
    classes: list[tuple[int, int, Tensor]]  # size, first row, subgraphs
    start: Tensor  # of each subgraph
    count: Tensor

    def sorted(self, tensor: Tensor) -> Tensor:
        if self.order is None:
            return tensor
        return tensor.index_select(0, self.order)

    def padded(self, tensor: Tensor, subgraphs: Tensor) -> Tensor:
        # [num_subgraphs, most rows, ...], zero where there is no row.
        count = self.count[subgraphs].view(-1, 1)
        place = torch.arange(int(count.max()), device=count.device)
        inside = place < count
        place = self.start[subgraphs].view(-1, 1) + place.where(inside, 0)
        if self.order is not None:
            place = self.order[place.clamp(max=self.order.numel() - 1)]
        else:
            place = place.clamp(max=tensor.size(0) - 1)
        return torch.where(inside.unsqueeze(-1), tensor[place], 0)


def _layout(owner: Tensor, num_subgraphs: int) -> _Layout:
    count = torch.bincount(owner, minlength=num_subgraphs)
    by_size = count.argsort(stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(num_subgraphs, device=owner.device)
    key = rank[owner]
    order = None
    if not bool((key[1:] >= key[:-1]).all()):
        order = key.argsort(stable=True)
    sizes, numbers = count[by_size].unique_consecutive(return_counts=True)
    classes, row, first = [], 0, 0
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        if size:
            classes.append((size, row, by_size[first : first + number]))
        row, first = row + size * number, first + number
    start = torch.empty_like(count)
    start[by_size] = pointer(count[by_size])[:-1]
    return _Layout(order, classes, start, count)


@dataclass(eq=False)
class _Cluster:
    # Uses of the same part of a base, in the same way.
    kind: str
    weight: Tensor
    grads: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    owners: list[Tensor] = field(default_factory=list)

    def join(self) -> None:
        # Rows that are used more than once belong to one product.
        if self.kind == LINEAR and len(self.grads) > 1:
            self.grads = [torch.cat(self.grads)]
            self.inputs = [torch.cat(self.inputs)]
            self.owners = [torch.cat(self.owners)]


@dataclass(eq=False)
class _Base:
    base: Tensor
    clusters: list[_Cluster]
    apart: bool


class Book:
    r"""Norms and sums from what was recorded.

    Args:
        recorder (Recorder): of the forward pass.
        outputs (list[Tensor]): what the loss is a function of.
        grads (list[Tensor]): the gradients by the outputs.
        num_subgraphs (int): how many subgraphs there are.

    Raises:
        Unsupported: if something was seen that is not known.
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
        self._lengths: dict[Any, tuple[Tensor, Tensor]] = {}
        for use in recorder.uses:
            if use.rows.owner is None:
                raise Unsupported(
                    f'{self._name(use.base)}: whose the rows are that use it '
                    'is not known'
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

    def norms(self) -> Tensor:
        r"""The norms of the gradients, raised by their rounding error.

        Returns:
            Tensor: ``[num_subgraphs]``; infinite where something was not
            finite.
        """
        params = self.recorder.params
        k = self.num_subgraphs
        square = torch.zeros(k, dtype=params[0].dtype, device=params[0].device)
        terms = torch.zeros_like(square)
        names = self.recorder.names
        derived = [b for b in self.bases if id(b.base) not in names]
        mixed = set().union(*(self._params(b) for b in derived))
        for base in self.bases:
            for cluster in base.clusters:
                terms += self._lost(cluster).square()
            if id(base.base) in mixed or base in derived:
                continue
            if base.apart:
                for cluster in base.clusters:
                    square += self._square(cluster)
            else:
                mixed.add(id(base.base))
        if mixed:
            square += self._explicit(mixed)
        eps = torch.finfo(square.dtype).eps
        norms = square.clamp(min=0).sqrt() + eps * terms.sqrt()
        return norms.nan_to_num(torch.inf, torch.inf)

    def sums(self, factors: Tensor) -> dict[str, Tensor]:
        r"""The sum of the gradients, each times its factor.

        Args:
            factors (Tensor): ``[num_subgraphs]``; a gradient whose factor is
                zero is left out, finite or not.

        Returns:
            dict[str, Tensor]: by the name of each parameter.
        """
        zero = factors == 0
        dead = zero if bool(zero.any()) else None
        out = {id(p): torch.zeros_like(p) for p in self.recorder.params}
        for base in self.bases:
            total = torch.empty_strided(
                base.base.size(),
                base.base.stride(),
                dtype=torch.float64,
                device=base.base.device,
            ).zero_()
            for cluster in base.clusters:
                part = _same_part(total, base.base, cluster.weight)
                for value in self._weighted(cluster, factors, dead):
                    part += value.view(part.shape)
            total = total.to(base.base.dtype)
            if id(base.base) in out:
                out[id(base.base)] += total
                continue
            params = self._of(base)
            pulled = torch.autograd.grad(
                base.base, params, total, retain_graph=True, allow_unused=True
            )
            for param, grad in zip(params, pulled, strict=True):
                if grad is not None:
                    out[id(param)] += grad
        return {self.recorder.names[i]: value for i, value in out.items()}

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

    def _length(self, rows: Tensor) -> Tensor:
        key = rows.data_ptr(), rows.shape, rows.stride()
        if key not in self._lengths:
            self._lengths[key] = rows, row_norms(rows)
        return self._lengths[key][1]

    def _terms(self, cluster: _Cluster) -> Tensor:
        # The sum of the norms of the rows' gradients, by subgraph.
        total = cluster.weight.new_zeros(self.num_subgraphs)
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            length = self._length(grad)
            if cluster.kind == LINEAR:
                length = length * self._length(cluster.inputs[i])
            total.index_add_(0, owner, length)
        return total

    def _lost(self, cluster: _Cluster) -> Tensor:
        # What a sum of the rows' gradients may lose, in units of the least
        # digit: of n rows n / 8 of the sum of their norms.
        rows = torch.cat(cluster.owners).bincount(minlength=self.num_subgraphs)
        return self._terms(cluster) * (4 + rows.clamp(max=_BLOCK) / 8)

    def _square(self, cluster: _Cluster) -> Tensor:
        k = self.num_subgraphs
        if cluster.kind == ROWS:
            total = cluster.weight.new_zeros(k, cluster.weight.numel())
            # One by one, float32 loses what is added to a long sum.
            if sum(map(len, cluster.owners)) > _BLOCK:
                total = total.double()
            for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
                total.index_add_(0, owner, grad.to(total))
            return row_norms(total).square().to(cluster.weight.dtype)
        grad, inner = cluster.grads[0], cluster.inputs[0]
        layout = self._layout(cluster.owners[0])
        rows, cols = grad.size(1), inner.size(1)
        square = grad.new_zeros(k)
        todo = []
        grads, inners = layout.sorted(grad), layout.sorted(inner)
        for size, first, subgraphs in layout.classes:
            if size * (rows + cols) > rows * cols:
                todo.append(subgraphs)
                continue
            end = first + size * subgraphs.numel()
            square[subgraphs] = _gram(
                grads[first:end].view(-1, size, rows),
                inners[first:end].view(-1, size, cols),
            )
        del grads, inners
        eps = torch.finfo(grad.dtype).eps
        few = square < 1e5 * eps * self._terms(cluster).square()
        few &= layout.count > 1
        if todo:
            few[torch.cat(todo)] = True
        subgraphs = few.nonzero().view(-1)
        for chunk in self._chunks(subgraphs, layout, rows, cols):
            value = _between(
                layout.padded(grad, chunk), layout.padded(inner, chunk)
            )
            total = value.reshape(len(chunk), -1).square().sum(1)
            square[chunk] = total.to(square.dtype)
        return square

    def _chunks(
        self, subgraphs: Tensor, layout: _Layout, rows: int, cols: int
    ) -> Iterable[Tensor]:
        if subgraphs.numel() == 0:
            return ()
        most = int(layout.count[subgraphs].max())
        each = rows * cols + most * (rows + cols)
        return subgraphs.split(max(1, _CHUNK // each))

    def _each(self, cluster: _Cluster, subgraphs: Tensor) -> Tensor:
        # [len(subgraphs), *weight.shape]
        n = subgraphs.numel()
        shape = (n, *cluster.weight.shape)
        if cluster.kind == LINEAR:
            grad, inner = cluster.grads[0], cluster.inputs[0]
            layout = self._layout(cluster.owners[0])
            if int(layout.count[subgraphs].max()) == 0:
                return grad.new_zeros(shape)
            return _between(
                layout.padded(grad, subgraphs),
                layout.padded(inner, subgraphs),
            ).to(grad.dtype)
        total = cluster.weight.new_zeros(n, cluster.weight.numel())
        for grad, owner in zip(cluster.grads, cluster.owners, strict=True):
            layout = self._layout(owner)
            if int(layout.count[subgraphs].max()):
                total += layout.padded(grad, subgraphs).sum(1)
        return total.view(shape)

    def _explicit(self, mixed: set[int]) -> Tensor:
        # The gradients of parameters that are used in several ways.
        params = [p for p in self.recorder.params if id(p) in mixed]
        bases = [b for b in self.bases if self._params(b) & mixed]
        square = params[0].new_zeros(self.num_subgraphs)
        size = sum(p.numel() for p in params)
        size += sum(b.base.numel() for b in bases)
        everything = torch.arange(self.num_subgraphs, device=square.device)
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
                of = self._of(base)
                pulled = torch.autograd.grad(
                    base.base,
                    of,
                    whole,
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
                for param, grad in zip(of, pulled, strict=True):
                    if grad is not None:
                        out[id(param)] += grad
            for value in out.values():
                square[chunk] += value.reshape(len(chunk), -1).square().sum(1)
        return square

    def _weighted(
        self, cluster: _Cluster, factors: Tensor, dead: Tensor | None
    ) -> Iterable[Tensor]:
        for i, (grad, owner) in enumerate(
            zip(cluster.grads, cluster.owners, strict=True)
        ):
            each = factors[owner]
            inner = cluster.inputs[i] if cluster.inputs else None
            if dead is not None:
                # Zero times what is not finite is not zero.
                gone = dead[owner].unsqueeze(1)
                grad = grad.masked_fill(gone, 0)
                if inner is not None:
                    inner = inner.masked_fill(gone, 0)
            if inner is None:
                for rows, scale in zip(
                    grad.split(_BLOCK), each.split(_BLOCK), strict=True
                ):
                    yield scale @ rows
                continue
            scaled = (grad * each.unsqueeze(1)).split(_BLOCK)
            for rows, inputs in zip(scaled, inner.split(_BLOCK), strict=True):
                yield rows.t() @ inputs


def clipped_sum(
    recorder: Recorder,
    outputs: list[Tensor],
    grads: list[Tensor],
    num_subgraphs: int,
    factors: Callable[[Tensor], Tensor],
) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum and the norms, of what was recorded."""
    with torch.no_grad():
        book = Book(recorder, outputs, grads, num_subgraphs)
        norms = book.norms()
        return book.sums(factors(norms)), norms


def _gram(grads: Tensor, inners: Tensor) -> Tensor:
    # [n, s, rows] and [n, s, cols] to [n].
    if grads.size(1) == 1:
        length = row_norms(grads[:, 0]) * row_norms(inners[:, 0])
        return length.square()
    square = _products(grads) * _products(inners)
    return square.sum((1, 2)).to(grads.dtype)


def _between(grads: Tensor, inners: Tensor) -> Tensor:
    # [n, s, rows] and [n, s, cols] to [n, rows, cols].
    if grads.size(1) <= _BLOCK:
        return torch.bmm(grads.mT, inners)
    shape = (grads.size(0), grads.size(2), inners.size(2))
    made = grads.new_zeros(shape, dtype=torch.float64)
    for one, two in zip(
        grads.split(_BLOCK, 1), inners.split(_BLOCK, 1), strict=True
    ):
        made += torch.bmm(one.mT, two)
    return made


def _products(rows: Tensor) -> Tensor:
    # [n, s, length] to [n, s, s]; of long rows, blocks in float64.
    if rows.size(2) <= _BLOCK:
        return torch.bmm(rows, rows.mT)
    made = rows.new_zeros(
        *(rows.size(0), rows.size(1), rows.size(1)), dtype=torch.float64
    )
    for block in rows.split(_BLOCK, 2):
        made += torch.bmm(block, block.mT)
    return made


def _is_dense(tensor: Tensor) -> bool:
    span = sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return span + 1 == tensor.numel()


def _region(weight: Tensor) -> tuple[Any, ...]:
    # Which numbers a view covers, and in which order.
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
