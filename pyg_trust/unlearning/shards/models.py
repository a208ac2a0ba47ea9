r"""Training, checking and running one model per shard, by PyG's own layers.

A model is a function of its shard and of a seed: it is trained on one thread,
on tensors of its own, and the generators of torch, numpy and Python stand at
states that come from that seed whenever a model is built, trained or run.

Four shortcuts save time where :func:`find_shortcuts` sees on a made-up graph
that they leave a model as it is: layers keep the normalised graph
(``cached=True``), models run on the graph as a sparse matrix, they are trained
on it, too, and features that are mostly zero are sparse. They are chosen by
the factory alone, never by data that may be removed.
"""

import copy
import itertools
import random
import re
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
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import APPNP, GCN2Conv, GCNConv
from torch_geometric.utils import to_torch_csr_tensor

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_integer,
    check_non_negative,
    check_number,
    check_positive,
)
from pyg_trust._checks.starts import same_start, takes_data, tensors_of
from pyg_trust._progress import Bar
from pyg_trust.distributed import run_over_ranks
from pyg_trust.graph import quiet_sparse
from pyg_trust.unlearning.shards.graph import (
    FEW,
    is_sparse,
    kind_of,
    nonzeros,
    turned_rows,
)

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
    'sgd': torch.optim.SGD,
}
# Layers whose cache is the normalised graph, and nothing of the features.
_NORMALISING = (GCNConv, APPNP, GCN2Conv)
# How models refuse what they can't do.
_REFUSALS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
# How torch refuses tensors of other sizes.
_OTHER_SIZE = re.compile(
    'size mismatch|cannot be multiplied|must match|in_features'
)
# Functions that take a sparse matrix first.
_PRODUCTS = {F.linear, torch.sparse.mm}
# Parts of a shard's seed.
_INITIAL, _TRAINING = 0, 1

Weights = dict[str, Tensor]
Factory = Callable[[], Module]


class UnrepeatableModelError(ValueError):
    """Raised if a model is not a function of its data and seed."""


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of a shard."""

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    optimizer: str = 'adam'
    slices: tuple[tuple[float, int], ...] = ()
    train: Callable[..., Any] | None = None
    version: int = 5

    def __post_init__(self) -> None:
        check_integer('epochs', self.epochs, 1)
        check_positive('lr', self.lr)
        check_non_negative('weight_decay', self.weight_decay)
        check_choice('optimizer', self.optimizer, OPTIMIZERS)
        if self.train is None:
            return
        check_callable('train', self.train)
        for name in ('slices', 'epochs', 'lr', 'weight_decay', 'optimizer'):
            if getattr(self, name) != getattr(Recipe, name):
                raise ValueError(
                    f"'{name}' can't be used with 'train', which trains as "
                    'it is written: leave one of them out'
                )

    @classmethod
    def of(cls, epochs: int | None, slices: Any, **given: Any) -> 'Recipe':
        """Check the arguments of an unlearner."""
        stages = () if slices is None else check_slices(slices)
        total = sum(count for _, count in stages) or 100
        if epochs is not None and stages and epochs != total:
            raise ValueError(
                "'epochs' needs to be the sum of those of 'slices', or to be "
                f'left out (got {epochs}, and {total})'
            )
        epochs = total if epochs is None else epochs
        return cls(epochs, slices=stages, **given)

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain values, a function by its name."""
        if self.train is None:
            return {k: v for k, v in vars(self).items() if v not in (None, ())}
        kind = type(self.train).__name__
        name = getattr(self.train, '__qualname__', kind)
        return {'train': name, 'version': self.version}


def check_slices(slices: Any) -> tuple[tuple[float, int], ...]:
    """Check the shares and epochs of stages; return them as plain numbers."""
    plain = not isinstance(slices, str) and isinstance(slices, Sequence)
    made: list[tuple[float, int]] = []
    for pair in slices if plain else [None]:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(
                "'slices' needs to be a list of pairs of a share and a number "
                f'of epochs (got {slices!r})'
            )
        share = float(check_number('slices', pair[0]))
        made.append((share, check_integer('slices', pair[1], 1)))
    shares = [0.0, *(share for share, _ in made)]
    rising = all(a < b for a, b in itertools.pairwise(shares))
    if not rising or shares[-1] != 1:
        raise ValueError(
            "'slices' needs to have ascending shares in (0, 1], the last 1 "
            f'(got {list(slices)})'
        )
    return tuple(made)


class Shortcuts(NamedTuple):
    """What may be done for a model to save time."""

    cached: bool = False
    matrix: bool = False
    #: Whether the training runs on the graph as a matrix, too.
    steps: bool = False
    sparse: bool = False


class Shard(NamedTuple):
    """The data, the seed and the stages of one model's training."""

    seed: int
    data: Any
    y: Tensor
    target: str | None = None
    stages: tuple[tuple['Shard', int], ...] = ()
    start: Weights | None = None

    def inputs(self, ways: Shortcuts, train: bool = False) -> tuple[Any, ...]:
        """Return the arguments of the model's forward pass."""
        data = self.data
        if isinstance(data, HeteroData):
            return {**data.x_dict}, {**data.edge_index_dict}
        x, n, (row, col) = data.x, int(data.num_nodes or 0), data.edge_index
        weight = data.get('edge_weight')
        if ways.sparse and (
            is_sparse(x) or int(x.count_nonzero()) < FEW * x.numel()
        ):
            x = nonzeros(x)
        else:
            x = x.to_dense()
        # Layers count an edge that is there twice in their own ways.
        if (
            ways.matrix
            and (ways.steps or not train)
            and (row * n + col).unique().numel() == row.numel()
        ):
            if weight is None:
                weight = torch.ones(row.numel(), dtype=x.dtype)
            back = torch.stack([col, row])
            return x, to_torch_csr_tensor(back, weight, size=(n, n))
        return x, data.edge_index, *(() if weight is None else (weight,))

    def run(
        self,
        module: Module,
        inputs: tuple[Any, ...],
        takes: bool | None = None,
    ) -> Tensor:
        """Return the logits of a model, one row for each label."""
        if takes_data(module) if takes is None else takes:
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
        if self.target is None:
            data.x = data.x.to_dense()
        held = data if self.target is None else data[self.target]
        held.y = self.y.clone()
        held.train_mask = torch.ones_like(self.y, dtype=torch.bool)
        return data


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
                shard.run(module.eval(), shard.inputs(Shortcuts()))
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
        set_cached(module, ways.cached)
        weights = [p for p in module.parameters() if p.requires_grad]
        if not weights:
            return module
        inputs = shard.inputs(ways, train=True)
        transpose(module, inputs)
        # Views of the memory as it lies, of which a step is fastest.
        turned = [p.dim() == 2 and not p.is_contiguous() for p in weights]
        held = [
            p.detach().t() if turn else p.detach()
            for p, turn in zip(weights, turned, strict=True)
        ]
        optimizer = OPTIMIZERS[recipe.optimizer](
            held, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True
        )
        takes = takes_data(module)
        with _Faster():
            for _ in range(recipe.epochs):
                out = shard.run(module, inputs, takes)
                loss = F.cross_entropy(out, shard.y)
                made = torch.autograd.grad(loss, weights, allow_unused=True)
                for flat, grad, turn in zip(held, made, turned, strict=True):
                    flat.grad = grad.t() if turn and grad is not None else grad
                optimizer.step()
        for weight in weights:
            weight.data = weight.data.contiguous()
    return module


def transpose(module: Module, inputs: Any) -> None:
    """Transpose in memory the weights that sparse features meet."""
    x = next(iter(inputs))
    if isinstance(x, Tensor) and is_sparse(x):
        for weight in module.parameters():
            if weight.dim() == 2 and weight.size(1) == x.size(1):
                weight.data = weight.data.t().contiguous().t()


class _Product(torch.autograd.Function):
    """Product of a sparse matrix and a dense one, with a fast gradient."""

    @staticmethod
    def forward(ctx: Any, sparse: Any, dense: Tensor) -> Tensor:
        ctx.sparse = sparse
        return sparse @ dense

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        # torch would transpose the matrix at every step.
        if not hasattr(ctx.sparse, 'turned'):
            ctx.sparse.turned = turned_rows(ctx.sparse)
        return None, ctx.sparse.turned @ grad


class _Faster(TorchFunctionMode):
    """Faster ways of torch for what takes most of a step, for a block.

    Gradients of products with sparse matrices, of features or of the graph,
    use a transpose that is made once, and masks of dropout come from uniform
    numbers, which torch draws at a fourth of the cost.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given: Any = kwargs or {}
        first: Any = args[0] if args else None
        if func is F.dropout and first.layout == torch.strided:
            p = given['p']
            if given['training'] and not given['inplace'] and 0 < p < 1:
                return first * torch.rand_like(first).ge_(p).div_(1 - p)
        elif (
            func in _PRODUCTS
            and not given
            and is_sparse(first)
            and not first.requires_grad
        ):
            if func is F.linear:
                weight, bias = (*args[1:], None)[:2]
                out = _Product.apply(first, weight.t())
                return out if bias is None else out + bias
            if len(args) == 2:
                return _Product.apply(*args)
        return func(*args, **given)


def set_cached(module: Module, cached: bool) -> None:
    """Let layers keep the normalised graph, or nothing."""
    part: Any
    for part in module.modules():
        if cached and type(part) in _NORMALISING:
            part.cached = True
        elif not cached and hasattr(part, 'cached'):
            part.cached = False


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
        if part.y.numel():
            if number > 1:
                module = copy.deepcopy(built)
            if shard.stages:
                restore(module, state)
            short = replace(recipe, epochs=epochs) if shard.stages else recipe
            try:
                state = snapshot(fit(module, part, short, ways))
            except ValueError:
                if part.y.numel() > 1:
                    raise
                if number == len(stages) and count == 1:
                    state = {}
        made.append({name: value.clone() for name, value in state.items()})
    return made


def train(
    factory: Factory,
    shards: Sequence[Shard],
    recipe: Recipe,
    ways: Shortcuts,
    *,
    over_ranks: bool = False,
) -> list[list[Weights]]:
    """Train one model per shard; return its states by stage."""

    def one(shard: Shard) -> list[Weights]:
        with single_thread():
            return train_one(build(factory, shard), shard, recipe, ways)

    return _each(shards, one, over_ranks, 'shards')


def _each(
    items: Sequence[Any],
    work: Callable[[Any], Any],
    over_ranks: bool,
    desc: str,
) -> list[Any]:
    if over_ranks:
        return run_over_ranks(items, work)
    with Bar(items, desc=desc) as bar:
        return [work(item) for item in bar]


# Outputs #####################################################################


@torch.no_grad()
def evaluate(
    module: Module, shard: Shard, ways: Shortcuts, inputs: Any = None
) -> Tensor:
    """Return the logits of a model in evaluation mode."""
    # Models may be random at inference, too.
    with single_thread(), seeded(0), quiet(), _Faster():
        inputs = shard.inputs(ways) if inputs is None else inputs
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
    with seeded(0), single_thread(), quiet():
        module, inputs = factory(), shard.inputs(ways)
    set_cached(module, ways.cached)
    transpose(module, inputs)

    def output(state: Weights) -> Tensor:
        if not state:
            return torch.zeros(shard.y.numel(), num_classes)
        restore(module, state)
        try:
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

    outputs = _each(states, output, over_ranks, 'inference')
    held = (out.dtype for out, s in zip(outputs, states, strict=True) if s)
    dtype = next(held, torch.get_default_dtype())
    return torch.stack([out.to(dtype) for out in outputs])


# Checks ######################################################################


def check_start(factory: Factory, shard: Shard) -> None:
    """Refuse models that start from something that was passed in."""
    other = shard._replace(seed=rng.derive(shard.seed, 7))
    name = same_start(*map(tensors_of, _two(factory, shard, other)))
    if name is not None:
        raise ValueError(
            f"'model_factory' makes models whose {name!r} is the same under "
            'two seeds of torch, and neither 0 nor 1. If it was trained on, '
            'or computed from, data of people who may ask for removal, it '
            'would keep them: draw it anew in the factory. If it comes from '
            'public data or is a constant, state so: ShardedUnlearner(..., '
            'start_is_public=True)'
        )


def check_model(
    factory: Factory, shard: Shard, recipe: Recipe, ways: Shortcuts
) -> list[Weights]:
    """Train a shard twice, and check that the same model comes of it."""
    with single_thread():
        one, two = _two(factory, shard, shard)
        if not equal_tensors(snapshot(one), snapshot(two)):
            raise UnrepeatableModelError(
                "'model_factory' makes models that differ, with the "
                'generators of torch, numpy and Python at the same seed: it '
                'needs to draw from these alone'
            )
        made, again = (
            train_one(module, shard, recipe, ways) for module in (one, two)
        )
        if not all(map(equal_tensors, made, again)):
            name = 'model_factory' if recipe.train is None else 'train'
            raise UnrepeatableModelError(
                "two trainings of a model of 'model_factory' from one seed "
                f"differ: '{name}' needs to draw from the default generators "
                "of torch, numpy and Python, or from the 'generator' that "
                "'train' gets, and nothing may be kept from call to call"
            )
        if not shard.stages and recipe.train is None and made[-1]:
            fresh = build(factory, shard)
            restore(fresh, made[-1])
            set_cached(fresh, ways.cached)
            each = [evaluate(m, shard, ways) for m in (one, fresh, fresh)]
            if not all(torch.equal(each[0], out) for out in each):
                raise UnrepeatableModelError(
                    "the outputs of a model of 'model_factory' depend on more "
                    'than its parameters and buffers: register all other '
                    'state as a buffer'
                )
    return made


def _two(factory: Factory, one: Shard, two: Shard) -> tuple[Module, Module]:
    first, second = build(factory, one), build(factory, two)
    if first is second:
        raise UnrepeatableModelError(
            "'model_factory' needs to make a new model at every call (got "
            'the same one twice)'
        )
    return first, second


def find_shortcuts(
    factory: Factory, shard: Shard, recipe: Recipe
) -> Shortcuts:
    """Try on a made-up graph which faster ways train the same model."""
    if isinstance(shard.data, HeteroData):
        return Shortcuts()
    made = Shard(0, _made_up(shard.data), torch.zeros(8, dtype=torch.int64))
    # Other optimizers would enlarge what rounding makes of a gradient of zero.
    steps = Recipe(epochs=3, lr=0.1, optimizer='sgd')

    def trained(ways: Shortcuts) -> tuple[Weights, Tensor] | None:
        try:
            module = fit(build(factory, made), made, steps, ways)
            return snapshot(module), evaluate(module, made, ways)
        except _REFUSALS:
            return None

    with single_thread():
        plain = trained(Shortcuts())
        cached = trained(Shortcuts(cached=True))
        matrix = trained(Shortcuts(matrix=True))
        stepped = trained(Shortcuts(matrix=True, steps=True))
        sparse = trained(Shortcuts(sparse=True))
    if plain is None:
        return Shortcuts()
    most = 1e-4 * float(plain[1].abs().max())

    def near(found: tuple[Weights, Tensor] | None) -> bool:
        return found is not None and torch.allclose(
            found[1], plain[1], rtol=0, atol=most
        )

    return Shortcuts(
        cached=recipe.train is None
        and cached is not None
        and equal_tensors(cached[0], plain[0])
        and torch.equal(cached[1], plain[1]),
        matrix=near(matrix),
        steps=near(stepped),
        sparse=near(sparse),
    )


def _made_up(like: Data) -> Data:
    n, width = 8, like.x.size(1)
    value = torch.arange(n * width).view(n, -1)
    ring = torch.arange(n)
    ends = torch.stack([ring.repeat(2), torch.cat([ring + 1, ring + 3]) % n])
    data = Data(
        x=((value % 19 == 0) * (1 + value % 7) / 7).to(like.x.dtype),
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        num_nodes=n,
    )
    if 'edge_weight' in like:
        weight = (1 + torch.arange(2 * n) % 5).to(like.edge_weight) / 5
        data.edge_weight = weight.repeat(2)
    return data


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
