"""Votes of a model over noisy copies of a graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_trust import rng
from pyg_trust._progress import Bar
from pyg_trust.certificates.flip_bits import (
    BitFlips,
    NoisyCopies,
    edge_index_of,
)
from pyg_trust.certificates.voting import differ
from pyg_trust.distributed import from_first, rank_and_size, run_over_ranks
from pyg_trust.graph import quiet_sparse, sparse_rows
from pyg_trust.graph.ragged import pointer

__all__ = ['Pipeline', 'Run', 'Sampler', 'check_uncached', 'evaluating']

# Bytes of the copies that go through the model together.
_BYTES = 2**28
# How many copies, and how many graphs, are tried out.
_TRIED = 3
# The share of entries that are not 0 up to which features are sparse.
_SPARSE = 0.1


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


class Sampler:
    """Compute the logits of noisy copies of one graph."""

    def __init__(
        self, pipeline: Pipeline, data: Data, noise: BitFlips, seed: int
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
        if pipeline.sparse_x and 'features' not in self.copies.held:
            row, col = x.cpu().nonzero(as_tuple=True)
            ptr = pointer(row.bincount(minlength=x.size(0)))
            value = x.detach().cpu()[row, col]
            self._fixed_x = sparse_rows(
                ptr.int(), col.int(), value, (x.size(0), x.size(1))
            )

    def logits(self, first: int, count: int, plain: bool = False) -> Tensor:
        """Compute logits of copies: ``[count, rows, num_classes]``."""
        pipe = self.pipeline
        if pipe.transform is not None or pipe.forward is not None:
            # PyG's own batches: anything may be in the data.
            out = self._called(self._drawn(first, count))
        else:
            x = self._features(first, count, pipe.sparse_x and not plain)
            sparse = pipe.sparse_adj and not plain
            inputs = [x, *self._graph(first, count, sparse)]
            if pipe.graphs:
                batch = torch.arange(count, device=self.device)
                inputs.append(batch.repeat_interleave(self.copies.num_nodes))
            out = pipe.model(*inputs)
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

    def _drawn(self, first: int, count: int) -> list[Data]:
        n, copies = self.copies.num_nodes, self.copies
        drawn = {
            kind: copies.draw(kind, self.seed, first, count)
            for kind in copies.held
        }
        samples = []
        for s in range(count):
            noisy = self.data.clone()
            noisy.num_nodes = n
            for kind, (ptr, col) in drawn.items():
                part = ptr[s * n : (s + 1) * n + 1]
                here = col[int(part[0]) : int(part[-1])]
                part = part - part[0]
                if kind == 'edges':
                    noisy.edge_index = edge_index_of(part, here - s * n)
                else:
                    noisy.x = _dense(part, here, self.data.x)
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

    def _stranger(self) -> Data:
        # Unlike all copies: every bit of the features, and half of the edges.
        wild = self.data.clone()
        wild.num_nodes = self.copies.num_nodes
        if 'features' in self.copies.held:
            wild.x = 1 - wild.x
        if 'edges' in self.copies.held:
            odd = wild.edge_index.sum(0) % 2 > 0
            wild.edge_index = wild.edge_index[:, odd]
        return wild

    def _features(self, first: int, count: int, sparse: bool) -> Tensor:
        x = self.data.x
        shape = (count * self.copies.num_nodes, x.size(-1))
        like = x.new_empty(0, device=self.device)
        if 'features' not in self.copies.held:
            if not sparse:
                return x.to(self.device).repeat(count, 1)
            return LinearFeatures(
                lambda weight: self._once(weight).repeat(count, 1), shape, like
            )
        ptr, col = self.copies.draw('features', self.seed, first, count)
        if not sparse:
            return _dense(ptr, col, x).to(self.device)
        index = torch.int32 if col.numel() < 2**31 else torch.int64
        matrix = sparse_rows(
            ptr.to(index), col.to(index), x.new_ones(col.numel()), shape
        ).to(self.device)
        return LinearFeatures(
            lambda weight: _product(matrix, weight), shape, like
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
        if 'edges' not in self.copies.held:
            shift = n * torch.arange(count).repeat_interleave(
                self.data.edge_index.size(1)
            )
            edge_index = self.data.edge_index.cpu().repeat(1, count) + shift
            symmetric = False
        else:
            ptr, col = self.copies.draw('edges', self.seed, first, count)
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
        if 'edges' in self.copies.held:
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

    def check(self) -> str:
        """Return why copies can't share a call of the model, or nothing.

        Refuse a model that is random in evaluation mode.
        """
        alone = [self.logits(s, 1, True)[0] for s in range(_TRIED)]
        if differ(alone[0], self.logits(0, 1, True)[0]):
            raise ValueError(
                "'model' needs to be the same function at every call (got "
                'another output for the same copy in evaluation mode)'
            )
        # Copies are alike, so that what is mixed up among them may not show.
        wild = self._stranger()
        mixed = self._called([wild, *self._drawn(0, _TRIED), wild])
        apart = mixed.view(_TRIED + 2, self.rows, -1)[1:-1]
        for batch in (self.logits(0, _TRIED), apart):
            if any(map(differ, alone, batch)):
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
        if 'features' not in self.copies.held:
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

    def votes(
        self,
        first: int,
        count: int,
        batch_size: int,
        bar: Bar,
        plain: bool,
        place: tuple[int, int],
    ) -> Tensor | None:
        """Count the votes of copies for each class: ``[rows, C + 1]``.

        The last column has the votes of outputs that are not finite. Refuse a
        copy with another output alone, after all others, than in its batch.
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


def _dense(ptr: Tensor, col: Tensor, like: Tensor) -> Tensor:
    rows, width = ptr.numel() - 1, like.size(1)
    row, at = edge_index_of(ptr, col)
    dense = torch.zeros(rows, width, dtype=like.dtype)
    dense.view(-1)[row * width + at] = 1
    return dense


def _product(matrix: Tensor, weight: Tensor) -> Tensor:
    # Compute matrix @ weight.t(); torch fills the result with zeros first.
    dense = weight.detach().t().contiguous()
    out = dense.new_empty(matrix.size(0), dense.size(1))
    return torch.addmm(out, matrix, dense, beta=0, out=out)


# Features as a sparse matrix until a linear layer receives them

Product = Callable[[Tensor], Tensor]

_SAME = ('contiguous', 'clone', 'detach', 'requires_grad_', 'float', 'to')
_DROPOUT = ('dropout', 'feature_dropout', 'alpha_dropout')
_MATMUL = ('mm', 'matmul', '__matmul__', '_sparse_mm')


class LinearFeatures(Tensor):
    r"""Matrix :math:`L` defined by the product :math:`W \mapsto L W^{\top}`.

    Stands in for dense features in models that are linear in them before
    anything else, so that :math:`(A X) W^{\top}` is computed as :math:`A (X
    W^{\top})`. Anything else raises; and its entries are NaN, so that any way
    around that counts as no prediction.
    """

    product: Product

    @staticmethod
    def __new__(
        cls, product: Product, shape: tuple[int, int], like: Tensor
    ) -> 'LinearFeatures':
        blank = like.new_full((1, 1), torch.nan).expand(shape).as_subclass(cls)
        blank.product = product
        return blank

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, '__name__', str(func))
        found = _answer(name, *args, **kwargs)
        if found is not None:
            return found
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
        # A size, a dtype or a device is that of the blank.
        if isinstance(found, Tensor):
            raise ValueError(
                "'sparse_x' needs a model that is linear in the features "
                f"before anything else (got '{name}'); layers that sum over "
                "neighbours first need 'sparse_adj', too"
            )
        return found


def _answer(name: str, one: Any, *rest: Any, **kwargs: Any) -> Any:
    # What a function makes of the features, or nothing if it is not linear.
    two: Any = rest[0] if rest else None
    mine, yours = (isinstance(x, LinearFeatures) for x in (one, two))
    if name == 'linear' and mine:
        bias = kwargs.get('bias', rest[1] if len(rest) > 1 else None)
        out = one.product(two)
        return out if bias is None else out + bias
    if name in _DROPOUT and mine:
        train = rest[1] if len(rest) > 1 else True
        train = kwargs.get('train', kwargs.get('training', train))
        return None if train else one
    if name in _SAME and mine:
        wanted = [x for x in rest if isinstance(x, torch.dtype)]
        return one if all(x == one.dtype for x in wanted) else None
    if name in _MATMUL and mine:
        return one.product(two.t())
    layout = None if mine else getattr(one, 'layout', None)
    if name in _MATMUL and yours and layout == torch.sparse_csr:
        if (rest[1] if len(rest) > 1 else 'sum') not in ('sum', 'mean'):
            return None
        return _linear(
            two,
            lambda weight: torch.sparse.mm(
                one, two.product(weight), *rest[1:]
            ),
            one.size(0),
        )
    if kwargs:
        return None
    if name in ('add', '__add__', '__radd__') and mine and yours:
        if one.shape != two.shape:
            return None
        return _linear(one, lambda w: one.product(w) + two.product(w))
    if name in ('mul', '__mul__', '__rmul__') and mine != yours:
        inner, factor = (one, two) if mine else (two, one)
        if isinstance(factor, int | float) or (
            isinstance(factor, Tensor) and factor.numel() == 1
        ):
            return _linear(inner, lambda w: factor * inner.product(w))
    return None


def _linear(
    x: LinearFeatures, product: Product, rows: int | None = None
) -> LinearFeatures:
    shape = (x.size(0) if rows is None else rows, x.size(1))
    like = torch.empty(0, dtype=x.dtype, device=x.device)
    return LinearFeatures(product, shape, like)


class Run:
    """Noisy copies of all graphs, and how the model is called with them."""

    def __init__(
        self,
        pipeline: Pipeline,
        graphs: list[Data],
        noise: BitFlips,
        seed: int,
        batch_size: int | None,
        over_ranks: bool,
        sparse: tuple[bool | None, bool | None],
    ) -> None:
        self.pipeline, self.noise = pipeline, noise
        self.graphs, self.seed = graphs, seed
        self.place = rank_and_size() if over_ranks else (0, 1)
        self.samplers = self._samplers(graphs[:_TRIED])
        flags = from_first(lambda: self._chosen(sparse), self.place[1])
        self.pipeline = pipeline._replace(
            sparse_x=flags[0], sparse_adj=flags[1]
        )
        self.samplers = self._samplers(graphs)
        self.slack = max(sampler.copies.slack for sampler in self.samplers)
        some = self.samplers[:_TRIED]
        notes = from_first(lambda: [x.check() for x in some], self.place[1])
        self.note = next(filter(None, notes), '')
        self.batch_size = 1 if self.note else batch_size

    def _samplers(self, graphs: list[Data]) -> list[Sampler]:
        seeds = [
            rng.derive(self.seed, i) if self.pipeline.graphs else self.seed
            for i in range(len(graphs))
        ]
        return [
            Sampler(self.pipeline, graph, self.noise, seed)
            for graph, seed in zip(graphs, seeds, strict=True)
        ]

    @property
    def calls(self) -> dict[str, object]:
        """The transform and the call around the model, if any."""
        pipe = self.pipeline
        given = {'transform': pipe.transform, 'forward': pipe.forward}
        return {name: call for name, call in given.items() if call is not None}

    def _chosen(self, sparse: tuple[bool | None, bool | None]) -> list[bool]:
        # Sparse matrices where they may pay and change no output.
        given = [bool(flag) for flag in sparse]
        if self.calls or None not in sparse:
            return given
        few = all(sampler.density <= _SPARSE for sampler in self.samplers)
        for flags in ((True, True), (False, True), (True, False)):
            asked = all(
                one is None or one == other
                for one, other in zip(sparse, flags, strict=True)
            )
            if (
                asked
                and (few or sparse[0] or not flags[0])
                and all(sampler.agrees(*flags) for sampler in self.samplers)
            ):
                return list(flags)
        return given

    @property
    def named(self) -> tuple[str, ...]:
        """The assumptions on what the noise does not change."""
        if not self.calls:
            return ()
        known = {'x', 'edge_index', 'num_nodes', 'y'}
        rest = map(repr, sorted({*self.graphs[0].keys()} - known))
        return (
            f'what {" or ".join(map(repr, self.calls))} reads beside the '
            'noisy features and edges '
            f'({", ".join(rest) or "no attribute of the data"}) stays as it '
            'is: it was not computed from features or edges that may change',
        )

    def votes(
        self, first: int, count: int, rows: Tensor | None, bar: Bar
    ) -> Tensor:
        """Count the votes of copies for each class: ``[targets, C + 1]``."""

        def own(_: int) -> list[Tensor | None]:
            # A graph's first batch is the next process's.
            rank, size = self.place
            return [
                sampler.votes(
                    *(first, count, self.batch_size or sampler.batch_size()),
                    *(bar, bool(self.note), ((rank - i) % size, size)),
                )
                for i, sampler in enumerate(self.samplers)
            ]

        if self.place[1] == 1:
            parts = [own(0)]
        else:
            parts = run_over_ranks(range(self.place[1]), own)
        counts = [
            [votes for votes in row if votes is not None]
            for row in zip(*parts, strict=True)
        ]
        if len({votes.size(1) for row in counts for votes in row}) > 1:
            raise ValueError(
                "'model' needs to return as many classes for every graph"
            )
        votes = torch.cat([torch.stack(row).sum(0) for row in counts])
        return votes if rows is None else votes[rows]
