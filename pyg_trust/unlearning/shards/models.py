r"""Training and running one model per shard, on PyG's own layers.

A model is a function of its shard and of a seed: it is trained on one thread,
on tensors of its own, and the generators of torch, numpy and Python stand at
states that come from that seed whenever a model is built, trained or run.

Three shortcuts save time where :func:`find_shortcuts` sees on a made-up graph
that they leave a model as it is: layers keep the normalised graph
(``cached=True``), all models run on the graph as a sparse matrix, and features
that are mostly zero are sparse. They are chosen by the factory alone, never by
data that may be removed.
"""

import copy
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import APPNP, GCN2Conv, GCNConv
from torch_geometric.utils import to_torch_csr_tensor

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
)
from pyg_trust._checks.starts import takes_data
from pyg_trust._progress import Bar
from pyg_trust.distributed import run_over_ranks
from pyg_trust.graph import quiet_sparse
from pyg_trust.unlearning.shards.graph import (
    check_slices,
    is_sparse,
    kind_of,
    nonzeros,
)

__all__ = [
    'Recipe',
    'Shard',
    'Shortcuts',
    'Weights',
    'build',
    'equal_tensors',
    'evaluate',
    'evaluate_all',
    'fit',
    'restore',
    'seeded',
    'single_thread',
    'snapshot',
    'train',
    'train_one',
]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
    'sgd': torch.optim.SGD,
}
# Layers whose cache is the normalised graph, and nothing of the features.
_NORMALISING = (GCNConv, APPNP, GCN2Conv)
# Features with a smaller share of nonzeros are sparse.
_FEW = 1 / 8
# How torch refuses to normalise one row.
_ONE_ROW = re.compile('Expected more than 1 (value per channel|spatial)')
# How torch refuses tensors of other sizes.
_OTHER_SIZE = re.compile(
    'size mismatch|cannot be multiplied|must match|in_features'
)
# Parts of a shard's seed.
_INITIAL, _TRAINING = 0, 1

Weights = dict[str, Tensor]
Factory = Callable[[], Module]


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of a shard."""

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    optimizer: str = 'adam'
    slices: tuple[tuple[float, int], ...] = ()
    train: Callable[..., Any] | None = None
    version: int = 4

    def __post_init__(self) -> None:
        check_integer('epochs', self.epochs, 1)
        check_positive('lr', self.lr)
        check_non_negative('weight_decay', self.weight_decay)
        check_choice('optimizer', self.optimizer, OPTIMIZERS)

    @classmethod
    def of(
        cls,
        epochs: int | None,
        lr: float,
        weight_decay: float,
        optimizer: str,
        slices: Any,
        train: Callable[..., Any] | None,
    ) -> 'Recipe':
        """Check the arguments of an unlearner."""
        stages = () if slices is None else check_slices(slices)
        total = sum(count for _, count in stages) if stages else 100
        if epochs is not None and stages and epochs != total:
            raise ValueError(
                "'epochs' needs to be the sum of those of 'slices', or to be "
                f'left out (got {epochs}, and {total})'
            )
        epochs = total if epochs is None else epochs
        made = cls(epochs, lr, weight_decay, optimizer, stages, train)
        if train is not None:
            check_callable('train', train)
            for name in (
                'slices',
                'epochs',
                'lr',
                'weight_decay',
                'optimizer',
            ):
                if getattr(made, name) != getattr(cls(), name):
                    raise ValueError(
                        f"'{name}' can't be used with 'train', which trains "
                        'as it is written: leave one of them out'
                    )
        return made

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain values, a function by its name."""
        if self.train is None:
            return {k: v for k, v in vars(self).items() if v not in (None, ())}
        kind = type(self.train).__name__
        name = getattr(self.train, '__qualname__', kind)
        return {'train': name, 'version': self.version}


class Shortcuts(NamedTuple):
    """What may be done for a model to save time."""

    cached: bool = False
    matrix: bool = False
    sparse: bool = False


class Shard(NamedTuple):
    """The data, the seed and the stages of one model's training."""

    seed: int
    data: Any
    y: Tensor
    target: str | None = None
    stages: tuple[tuple['Shard', int], ...] = ()
    start: Weights | None = None

    def inputs(self, ways: Shortcuts, train: bool) -> tuple[Any, ...]:
        """Return the arguments of the model's forward pass."""
        data = self.data
        if isinstance(data, HeteroData):
            return {**data.x_dict}, {**data.edge_index_dict}
        x, weight = data.x, data.get('edge_weight')
        if ways.sparse and _is_mostly_zero(x):
            # The fastest layouts of a product and of its gradient.
            x = nonzeros(x)
            x = x.to_sparse_coo().coalesce() if train else x
        else:
            x = x.to_dense()
        matrix = None if train or not ways.matrix else _matrix(data)
        if matrix is not None:
            return x, matrix
        return x, data.edge_index, *(() if weight is None else (weight,))

    def run(self, module: Module, inputs: tuple[Any, ...]) -> Tensor:
        """Return the logits of a model, one row for each label."""
        if takes_data(module):
            data = self.data
            if self.target is None:
                names = 'x', 'edge_index', 'edge_weight'
                data = Data(**dict(zip(names, inputs, strict=False)))
            inputs = (data,)
        out = module(*inputs)
        if isinstance(out, dict) and self.target is not None:
            out = out.get(self.target, out)
        rows = self.y.numel()
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != rows:
            of = '' if self.target is None else f' of {self.target!r}'
            raise ValueError(
                "'model_factory' needs to make models that return logits of "
                f'the shape [{rows}, num_classes], a row for each node{of} '
                f'(got {kind_of(out)})'
            )
        return out

    def for_user(self) -> Any:
        """Return a copy for the user's training, with labels and mask."""
        data = self.data.clone()
        held = data if self.target is None else data[self.target]
        held.y = self.y.clone()
        held.train_mask = torch.ones_like(self.y, dtype=torch.bool)
        if self.target is None:
            data.x = data.x.to_dense()
        return data


def _is_mostly_zero(x: Tensor) -> bool:
    count = x.values().numel() if is_sparse(x) else int(x.count_nonzero())
    return count < _FEW * x.numel()


def _matrix(data: Data) -> Tensor | None:
    # The transposed adjacency as CSR; none if an edge is there twice, which
    # layers count in their own ways.
    n, (row, col) = int(data.num_nodes or 0), data.edge_index
    if (row * n + col).unique().numel() < row.numel():
        return None
    weight = data.get('edge_weight')
    if weight is None:
        weight = torch.ones(row.numel(), dtype=data.x.dtype)
    with quiet():
        return to_torch_csr_tensor(
            torch.stack([col, row]), weight, size=(n, n)
        )


# Models ######################################################################


def build(factory: Factory, shard: Shard) -> Module:
    """Build a model with the initial weights of a shard's seed."""
    with seeded(rng.derive(shard.seed, _INITIAL)):
        module = factory()
        if not isinstance(module, Module):
            raise TypeError(
                "'model_factory' needs to return a torch.nn.Module "
                f'(got {type(module).__name__})'
            )
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            with torch.no_grad():
                module.eval()(*shard.inputs(Shortcuts(), True))
            # Layers may have kept something of the graph.
            known, module = module.state_dict(), factory()
            module.load_state_dict(known)
    return module.train()


def snapshot(module: Module) -> Weights:
    """Copy the parameters and buffers of a model."""
    values = dict(module.state_dict(keep_vars=True))
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                "models of 'model_factory' need to keep all they learn in "
                f'parameters and buffers (got the extra state {name!r})'
            )
    # With buffers that are not persistent.
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in {**dict(module.named_buffers()), **values}.items()
    }


def restore(module: Module, values: Weights) -> None:
    """Load the result of :func:`snapshot` into a model."""
    found = module.load_state_dict(values, strict=False)
    if found.missing_keys:
        raise KeyError(found.missing_keys[0])
    for name in found.unexpected_keys:
        # One that is not persistent.
        path, _, last = name.rpartition('.')
        module.get_submodule(path).register_buffer(
            last, values[name].clone(), persistent=False
        )


def equal_tensors(one: Weights, two: Weights) -> bool:
    """Test whether two states are equal, bit for bit."""
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )


# Training ####################################################################


class _Dropout(Module):
    """``torch.nn.Dropout``, by uniform numbers.

    torch draws them four times as fast as Bernoulli ones, unless the processor
    is Intel's: a fifth of a shard's training.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        return x * (torch.rand_like(x) >= self.p) / (1 - self.p or 1)


def fit(
    module: Module, shard: Shard, recipe: Recipe, ways: Shortcuts
) -> Module:
    """Train a model on a shard; return it, or the one of the user's code."""
    seed = rng.derive(shard.seed, _TRAINING)
    with seeded(seed), quiet(), torch.enable_grad():
        if recipe.train is not None:
            generator = rng.generator(rng.derive(seed, 1))
            made = recipe.train(module, shard.for_user(), generator)
            if made is not None and not isinstance(made, Module):
                raise TypeError(
                    "'train' needs to change the model that it gets, and to "
                    f'return it or nothing (got {type(made).__name__})'
                )
            return module if made is None else made
        prepare(module, ways.cached)
        weights = [p for p in module.parameters() if p.requires_grad]
        if not weights:
            return module
        optimizer = OPTIMIZERS[recipe.optimizer](
            weights, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True
        )
        inputs = shard.inputs(ways, True)
        rows = getattr(inputs[0], 'layout', torch.strided) != torch.strided
        for weight in weights:
            if rows and weight.dim() == 2:
                # Transposed in memory, as products of sparse rows take it.
                weight.data = weight.data.t().contiguous().t()
        for _ in range(recipe.epochs):
            optimizer.zero_grad()
            F.cross_entropy(shard.run(module, inputs), shard.y).backward()
            optimizer.step()
        for weight in weights:
            weight.data = weight.data.contiguous()
    return module


def prepare(module: Module, cached: bool) -> None:
    """Let layers keep the normalised graph or nothing; make dropout fast."""
    part: Any
    for part in [*module.modules()]:
        if cached and type(part) in _NORMALISING:
            part.cached = True
        elif not cached and hasattr(part, 'cached'):
            part.cached = False
        for name, child in part.named_children():
            if type(child) is torch.nn.Dropout:
                setattr(part, name, _Dropout(child.p).train(child.training))


def train_one(
    module: Module, shard: Shard, recipe: Recipe, ways: Shortcuts
) -> list[Weights]:
    """Train a model through all stages; return its state after each.

    Every stage begins with the model as it was built and the weights of the
    one before: so it makes no difference where training begins. A shard that
    one node is not enough to train on, as for batch norms, has no weights.
    """
    count = shard.y.numel()
    built = copy.deepcopy(module) if len(shard.stages) > 1 else module
    state = snapshot(module) if shard.start is None else shard.start
    made: list[Weights] = []
    stages = shard.stages or ((shard, recipe.epochs),)
    for number, (part, epochs) in enumerate(stages, 1):
        trained = None
        if part.y.numel():
            if number > 1:
                module = copy.deepcopy(built)
            if shard.stages:
                restore(module, state)
            short = replace(recipe, epochs=epochs, slices=())
            try:
                trained = snapshot(fit(module, part, short, ways))
            except ValueError as error:
                if part.y.numel() > 1 or not _ONE_ROW.match(str(error)):
                    raise
        state = state if trained is None else trained
        if trained is None and number == len(stages):
            state = {} if count == part.y.numel() == 1 else state
        made.append({name: value.clone() for name, value in state.items()})
    return made


def train(
    factory: Factory,
    shards: Sequence[Shard],
    recipe: Recipe,
    ways: Shortcuts,
    *,
    over_ranks: bool = False,
) -> list[tuple[list[Weights], float]]:
    """Train one model per shard; return states by stage, and seconds."""

    def one(shard: Shard) -> tuple[list[Weights], float]:
        start = time.perf_counter()
        with single_thread():
            made = train_one(build(factory, shard), shard, recipe, ways)
        return made, time.perf_counter() - start

    if over_ranks:
        return run_over_ranks(shards, one)
    with Bar(shards, desc='shards') as bar:
        return [one(shard) for shard in bar]


# Outputs #####################################################################


@torch.no_grad()
def evaluate(
    module: Module, shard: Shard, ways: Shortcuts, inputs: Any = None
) -> Tensor:
    """Return the logits of a model in evaluation mode."""
    # Models may be random at inference, too.
    with single_thread(), seeded(0), quiet():
        inputs = shard.inputs(ways, False) if inputs is None else inputs
        return shard.run(module.eval(), inputs)


def evaluate_all(
    factory: Factory,
    shard: Shard,
    states: Sequence[Weights],
    num_classes: int,
    ways: Shortcuts,
    *,
    over_ranks: bool = False,
) -> Tensor:
    """Compute the logits of all models: ``[num_models, num_nodes, C]``."""
    with seeded(0), quiet(), single_thread():
        module, inputs = factory(), shard.inputs(ways, False)
    prepare(module, ways.cached)

    def output(state: Weights) -> Tensor:
        if not state:
            return torch.zeros(shard.y.numel(), num_classes)
        try:
            restore(module, state)
            return evaluate(module, shard, ways, inputs)
        except (AssertionError, RuntimeError) as error:
            if not _OTHER_SIZE.search(str(error)):
                raise
            raise ValueError(
                "'model_factory' needs to make models that run on graphs of "
                'any size: those of the shards do not run on the whole graph '
                f'({error}). Has a layer as many inputs as there are nodes or '
                'persons, which a shard has fewer of?'
            ) from error

    if over_ranks:
        outputs = run_over_ranks(states, output)
    else:
        with Bar(states, desc='inference') as bar:
            outputs = [output(state) for state in bar]
    held = (out.dtype for out, s in zip(outputs, states, strict=True) if s)
    dtype = next(held, torch.get_default_dtype())
    return torch.stack([out.to(dtype) for out in outputs])


# Settings of the process #####################################################


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit torch to one thread, for a block."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, for a block."""
    before = np.random.get_state(), random.getstate()
    try:
        # numpy's own takes 32 bits, and more as an array of them.
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])
        random.seed(seed)
        with rng.forked(seed):
            yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])


@contextmanager
def quiet() -> Iterator[None]:
    """Silence checks and warnings of sparse matrices, for a block."""
    with torch.sparse.check_sparse_tensor_invariants(False), quiet_sparse():
        yield
