"""Votes of a model over noisy copies of a graph."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_trust._progress import Bar
from pyg_trust.certificates.flip_bits import (
    KINDS,
    BitFlips,
    NoisyCopies,
    edge_index_of,
)
from pyg_trust.certificates.lazy import LinearFeatures
from pyg_trust.certificates.voting import differ
from pyg_trust.graph import quiet_sparse, sparse_rows
from pyg_trust.graph.ragged import pointer

# Bytes of the copies that go through the model together.
_BYTES = 2**28
# How many copies show whether sparse matrices change an output.
_TRIED = 3
# How many copies have to be those of the clean graph to be suspicious.
_HIDDEN = 16


Parts = TypeVar('Parts')

__all__ = ['Pipeline', 'Sampler', 'check_uncached', 'evaluating']


class Pipeline(NamedTuple):
    """Model with its transform, its call, and the format of its inputs."""

    model: Module
    graphs: bool = False
    transform: Callable[[Data], Data] | None = None
    forward: Callable[[Data], Tensor] | None = None
    sparse_x: bool = False
    sparse_adj: bool = False
    pairs: int = 0


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Evaluate without gradients for a block; restore all modules' modes."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    # Torch warns if sparse matrices are made without saying whether to check.
    unchecked = torch.sparse.check_sparse_tensor_invariants(False)
    try:
        with torch.no_grad(), quiet_sparse(), unchecked:
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_uncached(model: Module) -> None:
    """Refuse layers that cache the graph of their first call."""
    for name, module in model.named_modules():
        if getattr(module, 'cached', False):
            raise ValueError(
                f"'model' can't have layers with cached=True (got '{name}'): "
                'they would keep one graph for all others'
            )


def fresh_copy(parts: Parts) -> Parts | None:
    """Copy a value before any call changes it; None if that is impossible."""
    try:
        return copy.deepcopy(parts)
    except (RuntimeError, TypeError):
        return None


class Sampler:
    """Compute the logits of noisy copies of one graph."""

    def __init__(
        self,
        pipeline: Pipeline,
        data: Data,
        noise: BitFlips,
        seed: int,
    ) -> None:
        self.pipeline, self.data, self.seed = pipeline, data, seed
        self.copies = NoisyCopies(data, noise)
        parameter = next(pipeline.model.parameters(), None)
        self.device = (
            torch.device('cpu') if parameter is None else parameter.device
        )
        x = data.get('x')
        self.rows = pipeline.pairs or self.copies.num_nodes
        self.rows = 1 if pipeline.graphs else self.rows
        self._fixed_x: Tensor | None = None
        self._products: dict[int, tuple[Tensor, Tensor]] = {}
        if pipeline.sparse_x and self.copies.features is None:
            self._fixed_x = _csr_of(x)

    def logits(self, first: int, count: int, plain: bool = False) -> Tensor:
        """Compute logits of copies: ``[count, rows, num_classes]``."""
        pipe = self.pipeline
        if pipe.transform is not None or pipe.forward is not None:
            out = self._general(first, count)
        else:
            out = self._direct(first, count, plain)
        if not isinstance(out, Tensor) or not out.is_floating_point():
            raise TypeError(
                "'model' needs to return a floating point tensor of logits "
                f'(got {getattr(out, "dtype", type(out).__name__)})'
            )
        if out.dim() != 2 or out.size(0) != count * self.rows:
            raise ValueError(
                "'model' needs to return logits of the shape "
                f'[{count * self.rows}, num_classes], for {count} copies '
                f'(got {list(out.shape)})'
            )
        if out.size(1) == 0:
            raise ValueError("'model' needs to return at least one class")
        return out.view(count, self.rows, -1)

    def _general(self, first: int, count: int) -> Tensor:
        # PyG's own batches: anything may be in the data.
        return self._called(self._drawn(first, count))

    def _drawn(
        self, first: int, count: int, kinds: Sequence[str] = KINDS
    ) -> list[Data]:
        n = self.copies.num_nodes
        edges = features = None
        if self.copies.edges is not None and 'edges' in kinds:
            edges = self.copies.draw_edges(self.seed, first, count)
        if self.copies.features is not None and 'features' in kinds:
            features = self.copies.draw_features(self.seed, first, count)
        samples = []
        for s in range(count):
            noisy = self.data.clone()
            noisy.num_nodes = n
            if edges is not None:
                ptr, col = _rows(*edges, s * n, n)
                noisy.edge_index = edge_index_of(ptr, col - s * n)
            if features is not None:
                ptr, col = _rows(*features, s * n, n)
                noisy.x = _dense(ptr, col, self.data.x)
            samples.append(noisy)
        return samples

    def _called(self, graphs: list[Data]) -> Tensor:
        pipe = self.pipeline
        if pipe.transform is not None:
            graphs = [pipe.transform(graph) for graph in graphs]
        batch = Batch.from_data_list(graphs).to(self.device)
        if pipe.forward is not None:
            return pipe.forward(batch)
        inputs = [batch.x, batch.edge_index]
        if batch.get('edge_weight') is not None:
            inputs.append(batch.edge_weight)
        if pipe.graphs:
            inputs.append(batch.batch)
        return pipe.model(*inputs)

    def _strangers(self) -> list[Data]:
        # Copies unlike the sampled ones: every bit flipped, and either half of
        # the edges.
        samples = []
        for part in (0, 1):
            wild = self.data.clone()
            wild.num_nodes = n = self.copies.num_nodes
            if self.copies.features is not None:
                wild.x = 1 - wild.x
            if self.copies.edges is not None:
                u, v = wild.edge_index
                edges = wild.edge_index[:, (u + v) % 2 == part]
                if self.copies.noise.edges[0] > 0 and n > 1:
                    node = torch.arange(n, device=edges.device)
                    ring = torch.stack([node, (node + 1) % n])
                    edges = torch.cat([edges, ring, ring.flip(0)], dim=1)
                wild.edge_index = edges
            samples.append(wild)
        return samples

    def _direct(self, first: int, count: int, plain: bool) -> Tensor:
        pipe, n = self.pipeline, self.copies.num_nodes
        x = self._features(first, count, pipe.sparse_x and not plain)
        inputs = [x, *self._graph(first, count, pipe.sparse_adj and not plain)]
        if pipe.graphs:
            batch = torch.arange(count, device=self.device)
            inputs.append(batch.repeat_interleave(n))
        return pipe.model(*inputs)

    def _features(self, first: int, count: int, sparse: bool) -> Tensor:
        x = self.data.x
        width = x.size(-1)
        shape = (count * self.copies.num_nodes, width)
        if self.copies.features is None:
            if not sparse:
                return x.to(self.device).repeat(count, 1)
            return LinearFeatures(
                lambda weight: self._once(weight).repeat(count, 1),
                shape,
                x.new_empty(0, device=self.device),
            )
        ptr, col = self.copies.draw_features(self.seed, first, count)
        if not sparse:
            return _dense(ptr, col, x).to(self.device)
        index = torch.int32 if col.numel() < 2**31 else torch.int64
        matrix = sparse_rows(
            ptr.to(index), col.to(index), x.new_ones(col.numel()), shape
        ).to(self.device)
        return LinearFeatures(
            lambda weight: _product(matrix, weight),
            shape,
            x.new_empty(0, device=self.device),
        )

    def _once(self, weight: Tensor) -> Tensor:
        # Features without noise: a layer's output of them stays the same.
        if id(weight) not in self._products:
            assert self._fixed_x is not None
            product = _product(self._fixed_x.to(self.device), weight)
            if not isinstance(weight, torch.nn.Parameter):
                return product
            self._products[id(weight)] = (weight, product)
        return self._products[id(weight)][1]

    def _graph(self, first: int, count: int, sparse: bool) -> list[Tensor]:
        n, weight = self.copies.num_nodes, self.data.get('edge_weight')
        total = count * n
        if self.copies.edges is None:
            shift = n * torch.arange(count).repeat_interleave(
                self.data.edge_index.size(1)
            )
            edge_index = self.data.edge_index.cpu().repeat(1, count) + shift
            symmetric = False
        else:
            ptr, col = self.copies.draw_edges(self.seed, first, count)
            symmetric = not self.copies.noise.directed
            if not (sparse and symmetric):
                edge_index = edge_index_of(ptr, col)
        if not sparse:
            weights = [] if weight is None else [weight.repeat(count)]
            return [part.to(self.device) for part in (edge_index, *weights)]
        if not symmetric:
            source, target = edge_index
            order = (target * total + source).argsort(stable=True)
            ptr = pointer(target.bincount(minlength=total))
            col = source[order]
        like = next(self.pipeline.model.parameters(), torch.empty(0))
        value = torch.ones(col.numel(), dtype=like.dtype)
        if weight is not None:
            value = weight.cpu().repeat(count)[order].to(like.dtype)
        matrix = sparse_rows(ptr, col.long(), value, (total, total))
        return [matrix.to(self.device)]

    def batch_size(self) -> int:
        """Return the number of copies that take about 256 MiB together."""
        n, data = self.copies.num_nodes, self.data
        widths = [p.size(0) for p in self.pipeline.model.parameters()]
        widest = max([1, *widths])
        edges = int(data.edge_index.size(1))
        if self.copies.edges is not None:
            ways = 1 if self.copies.noise.directed else 2
            edges = int(self._ones('edges') * ways)
        size = 16 * edges + 8 * n * widest
        if not self.pipeline.sparse_adj:
            size += 8 * edges * widest
        x = data.get('x')
        if x is not None and self.pipeline.sparse_x:
            size += int(12 * self._ones('features'))
        elif x is not None:
            size += 8 * x.numel()
            if not self.pipeline.sparse_adj:
                size += 4 * edges * x.size(-1)
        most = (2**31 - 1) // max(n, 1)
        return max(1, min(_BYTES // max(size, 1), most, 10_000))

    def check(self, fresh: Pipeline | None, together: int = 3) -> str:
        """Return why copies can't share a call of the model, or nothing.

        Raises:
            ValueError: if the model is random in evaluation mode, or keeps
                what it was called with before.
        """
        alone = [self.logits(s, 1, True)[0] for s in range(together)]
        if differ(alone[0], self.logits(0, 1, True)[0]):
            raise ValueError(
                "'model' needs to be the same function at every call (got "
                'another output for the same copy in evaluation mode)'
            )
        if fresh is not None:
            new = Sampler(fresh, self.data, self.copies.noise, self.seed)
            if differ(alone[-1], new.logits(together - 1, 1, True)[0]):
                raise ValueError(
                    "'model' needs to be the same function at every call (got "
                    f'another output for copy {together - 1} after other '
                    'ones: it, or a function called with it, keeps state '
                    'between calls)'
                )
        batch = self.logits(0, together)
        # Copies are alike, so that what is mixed up among them may not show.
        before, after = self._strangers()
        mixed = self._called([before, *self._drawn(0, together), after])
        apart = mixed.view(together + 2, self.rows, -1)[1:-1]
        if any(map(differ, alone, batch)) or any(map(differ, alone, apart)):
            return (
                'one copy at a time, without sparse matrices: outputs of '
                'the model depend on what else is in its batch'
            )
        return ''

    @property
    def density(self) -> float:
        """Return the share of nonzero entries of the features."""
        x = self.data.get('x')
        if x is None or x.numel() == 0:
            return 1.0
        if self.copies.features is None:
            return int(x.count_nonzero()) / x.numel()
        return self._ones('features') / x.numel()

    def _ones(self, kind: str) -> float:
        # How many cells of a kind are 1 in a copy, on average.
        zeros, ones = self.copies.cells[kind]
        plus, minus = getattr(self.copies.noise, kind)
        return plus * zeros + (1 - minus) * ones

    def agrees(self, sparse_x: bool, sparse_adj: bool) -> bool:
        """Return whether sparse and dense matrices give the same outputs."""
        pipe = self.pipeline._replace(sparse_x=sparse_x, sparse_adj=sparse_adj)
        alone = [self.logits(s, 1, True)[0] for s in range(_TRIED)]
        try:
            other = Sampler(pipe, self.data, self.copies.noise, self.seed)
            logits = other.logits(0, _TRIED)
        # Any error of a layer means that it can't take a matrix.
        except Exception:
            return False
        return not any(map(differ, alone, logits))

    def hides(self, kind: str) -> bool:
        """Return whether the noise changes no output, to the bit."""
        clean = self.data.clone()
        clean.num_nodes = self.copies.num_nodes
        expected, changed = self._called([clean]), 0
        for number in range(_HIDDEN):
            noisy = self._drawn(number, 1, (kind,))[0]
            if kind == 'edges':
                both = [noisy.edge_index, self.data.edge_index.cpu()]
                n = clean.num_nodes
                one, two = ((e[0] * n + e[1]).sort().values for e in both)
            else:
                one, two = noisy.x, self.data.x
            if torch.equal(one, two):
                continue
            changed += 1
            if not same_bits(self._called([noisy]), expected):
                return False
        return changed >= _HIDDEN // 4

    def votes(
        self,
        first: int,
        count: int,
        batch_size: int,
        bar: Bar,
        plain: bool = False,
        place: tuple[int, int] = (0, 1),
    ) -> Tensor | None:
        """Count the votes of copies for each class: ``[rows, C + 1]``.

        The last column has the votes of outputs that are not finite.

        Raises:
            ValueError: if a copy has another output alone, and after all
                others, than it had in its batch.
        """
        total: Tensor | None = None
        early: Tensor | None = None
        rank, size = place
        own = range(first, first + count, batch_size)[rank::size]
        for start in own:
            number = min(batch_size, first + count - start)
            logits = self.logits(start, number, plain)
            classes = logits.size(2)
            if total is None:
                early, last = logits[-1].clone(), start + number - 1
                total = torch.zeros(self.rows, classes + 1).long()
            if total.size(1) != classes + 1:
                raise ValueError(
                    "'model' needs to return as many classes for every copy "
                    f'(got {total.size(1) - 1}, then {classes})'
                )
            vote = logits.argmax(2)
            vote[~logits.isfinite().all(2)] = classes
            one_hot = vote.t().cpu()
            total.scatter_add_(1, one_hot, torch.ones_like(one_hot))
            bar.update(number)
        if early is not None and differ(early, self.logits(last, 1, True)[0]):
            raise ValueError(
                "'model' needs to be the same function at every call, however "
                f'many copies there are (got another output for copy {last} '
                f'alone than among {last - own[0] + 1}): try batch_size=1'
            )
        return total


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Compare to the bit; NaN equals NaN."""
    return one.shape == two.shape and bool(
        ((one == two) | (one.isnan() & two.isnan())).all()
    )


def _rows(
    ptr: Tensor, col: Tensor, first: int, count: int
) -> tuple[Tensor, Tensor]:
    part = ptr[first : first + count + 1]
    return part - part[0], col[int(part[0]) : int(part[-1])]


def _dense(ptr: Tensor, col: Tensor, like: Tensor) -> Tensor:
    rows, width = ptr.numel() - 1, like.size(1)
    row, at = edge_index_of(ptr, col)
    dense = torch.zeros(rows, width, dtype=like.dtype)
    dense.view(-1)[row * width + at] = 1
    return dense


def _csr_of(x: Tensor) -> Tensor:
    row, col = x.cpu().nonzero(as_tuple=True)
    ptr = pointer(row.bincount(minlength=x.size(0)))
    value = x.detach().cpu()[row, col]
    return sparse_rows(ptr.int(), col.int(), value, (x.size(0), x.size(1)))


def _product(matrix: Tensor, weight: Tensor) -> Tensor:
    # Compute matrix @ weight.t(); torch fills the result with zeros first.
    dense = weight.detach().t().contiguous()
    out = dense.new_empty(matrix.size(0), dense.size(1))
    return torch.addmm(out, matrix, dense, beta=0, out=out)
