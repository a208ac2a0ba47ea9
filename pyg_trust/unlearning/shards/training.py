# Longer than 700 lines because what a model has to be, which is checked here
# before and after training, is what training rests on.
r"""Training of one model per shard, on its own shard alone.

One model after the other, each an ordinary module on an ordinary graph, in a
plain loop of full-batch steps on prepared matrices
(:mod:`pyg_trust.unlearning.shards.products`), which is replayed from the
third step on for models of known classes
(:mod:`pyg_trust.unlearning.shards.replay`); or shared out to processes, which
give the same bits.

**Why a model is a function of its shard and seed.** A floating-point result
depends on the order of its sums and on which instructions a value meets. One
thread trains a shard; its tensors are its own, and start where torch lets
tensors start; dropout draws from a stream that is keyed by the shard's seed;
and the generators of torch, numpy and Python stand at states that come from
that seed whenever the model is built, trained or run. Bits are those of one
machine and one version of torch: vector widths and BLAS libraries differ.

A model that is *not* such a function is found by :func:`check_model`: two
models of one seed are built, and trained for two epochs, and need to be
equal, as does what one of them says after a round trip through its state. And
after every training what the trained module says is compared, bit for bit,
with what another one says that has its state; and classes, and the globals
that their code reads, need to be what they were before: a counter that acts
after a thousand calls is found when it has acted, or has counted.
"""

import copy
import io
import itertools
import multiprocessing
import pickle
import random
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from pyg_trust import rng
from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
)
from pyg_trust._checks.identity import fingerprint_any
from pyg_trust._progress import Bar
from pyg_trust.distributed import run_over_ranks
from pyg_trust.graph import quiet_sparse
from pyg_trust.unlearning.shards.products import (
    PreparedGraph,
    PreparedMode,
    prepared_layers,
    rows_of_nonzeros,
)
from pyg_trust.unlearning.shards.replay import can_replay, repeat

TRAINERS = ('sequential', 'process')
# The name of version 0.1.0 for the first mode.
STACKED = 'stacked'
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
    'sgd': torch.optim.SGD,
}

# How torch refuses to normalise one row.
_ONE_ROW = re.compile('Expected more than 1 (value per channel|spatial)')

# Parts of a shard's seed.
_INITIAL, _DROPOUT, _OTHER = 0, 1, 2


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of a shard.

    Args:
        epochs (int): the number of full-batch steps.
        lr (float): the learning rate.
        weight_decay (float): the weight decay of the optimizer.
        optimizer (str): :obj:`'adam'`, :obj:`'adamw'` or :obj:`'sgd'`.
        sparse_x (bool): whether to store the features as sparse rows, and
            multiply these where they are the input of a linear layer.
        sparse_adj (bool): whether supported layers multiply by a sparse matrix
            instead of summing over the edge list.
        version (int): the version of the arithmetic; other versions give other
            bits.
        slices (tuple): shares and epochs of stages, as in
            :mod:`~pyg_trust.unlearning.shards.slices`; none for one stage.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    optimizer: str = 'adam'
    sparse_x: bool = False
    sparse_adj: bool = True
    version: int = 2
    slices: tuple[tuple[float, int], ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the fields to save, with slices if there are any."""
        found = asdict(self)
        if not self.slices:
            del found['slices']
        return found

    def __post_init__(self) -> None:
        check_integer('epochs', self.epochs, 1)
        check_positive('lr', self.lr)
        check_non_negative('weight_decay', self.weight_decay)
        check_choice('optimizer', self.optimizer, OPTIMIZERS)


class Typed(NamedTuple):
    """Inputs of a model of a typed graph.

    Args:
        target (str): the node type of which a model returns the rows.
        x (dict[str, Tensor]): features by node type.
        edge_index (dict[tuple[str, str, str], Tensor]): edges by type.
    """

    target: str
    x: dict[str, Tensor]
    edge_index: dict[tuple[str, str, str], Tensor]


class Shard(NamedTuple):
    """Data, seed and stages of one model's training.

    Args:
        seed (int): the seed of initial weights and dropout.
        x (Tensor): ``[num_nodes, channels]``, dense or CSR.
        y (Tensor): int64, ``[num_nodes]``: a label for every node.
        edge_index (Tensor): int64, ``[2, num_edges]``.
        edge_weight (Tensor, optional): ``[num_edges]``.
        stages (tuple): a shard and a number of epochs for each stage, the
            last of them on all of this one; none for one stage with the
            epochs of the recipe.
        start (dict, optional): the initial weights of the first stage; by
            default drawn from the seed.
        typed (Typed, optional): what the model is called with instead, if
            :obj:`x` is one table of several.
    """

    seed: int
    x: Tensor
    y: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None = None
    stages: tuple[tuple['Shard', int], ...] = ()
    start: dict[str, Tensor] | None = None
    typed: Typed | None = None

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Return the arguments of the model's forward pass."""
        if self.typed is not None:
            return ({**self.typed.x}, {**self.typed.edge_index})
        weight = () if self.edge_weight is None else (self.edge_weight,)
        return (self.x, self.edge_index, *weight)

    def run(self, module: Module) -> Tensor:
        """Return the outputs of a model."""
        out = module(*self.inputs)
        if self.typed is None:
            return out
        if isinstance(out, dict):
            out = out.get(self.typed.target, out)
        rows, n = getattr(out, 'shape', [None])[0], self.x.size(0)
        if rows != n:
            raise ValueError(
                "'model_factory' needs to return models with a row of "
                f'outputs for each of the {n} rows of {self.typed.target!r}, '
                f'alone or by type (got {rows})'
            )
        return out

    def prepared(self) -> PreparedGraph:
        """Return the prepared graph."""
        return PreparedGraph(
            self.edge_index, self.edge_weight, self.x.size(0), self.x.dtype
        )


class Trained(NamedTuple):
    """Result of training: states of the models, and training times.

    Args:
        states (list): the result of :func:`snapshot` for every model.
        trainer (str): the trainer that was used.
        seconds (list[float]): the seconds of each model; with several
            processes, its share of the whole.
        stages (list): the states after every stage of each model, the last of
            which is the state itself.
        stage_seconds (list): the seconds of every stage of each model.
    """

    states: list[dict[str, Tensor]]
    trainer: str
    seconds: list[float]
    stages: list[list[dict[str, Tensor]]]
    stage_seconds: list[list[float]]


class UnrepeatableModelError(ValueError):
    """Raised if a model is not a function of its data and seed."""


def check_trainer(trainer: str) -> str:
    """Check the name of a trainer; return its present name."""
    if trainer == STACKED:
        warnings.warn(
            "trainer='stacked' means 'sequential' now, which is as fast",
            DeprecationWarning,
            stacklevel=3,
        )
        return TRAINERS[0]
    check_choice('trainer', trainer, TRAINERS)
    return trainer


def train(
    factory: Callable[[], Module],
    shards: Sequence[Shard],
    recipe: Recipe,
    *,
    trainer: str = 'sequential',
    num_workers: int | None = None,
    over_ranks: bool = False,
    progress_bar: bool | None = None,
) -> Trained:
    """Train one model per shard, by cross entropy over all its nodes.

    Args:
        factory (Callable): the function that makes a model; called once per
            shard, with the default generators at the shard's seed.
        shards (list[Shard]): the shards.
        recipe (Recipe): the settings of the training.
        trainer (str): :obj:`'sequential'` or :obj:`'process'`.
            (default: :obj:`'sequential'`)
        num_workers (int, optional): the number of processes; by default half
            of the processors. (default: :obj:`None`)
        over_ranks (bool): whether the processes of torchrun share the shards;
            all of them get all models. (default: :obj:`False`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        Trained: the states of the models, in order, as tensors of their own.

    Raises:
        TypeError: if the factory makes no module.
        ValueError: if outputs have the wrong shape, or models can't be sent
            to processes.
    """
    trainer = check_trainer(trainer)
    if over_ranks:
        parts = run_over_ranks(
            shards, lambda shard: train(factory, [shard], recipe)
        )
        return _trained(
            [part.stages[0] for part in parts],
            'sequential',
            [part.stage_seconds[0] for part in parts],
        )
    with single_thread():
        if trainer == 'process' and len(shards) > 1:
            start = time.perf_counter()
            modules = [build(factory, shard) for shard in shards]
            stages = _train_in_processes(
                modules, shards, recipe, num_workers, progress_bar
            )
            share = (time.perf_counter() - start) / len(shards)
            took = [[share / len(made)] * len(made) for made in stages]
            return _trained(stages, 'process', took)
        stages, took = [], []
        for shard in Bar(shards, progress_bar, desc='shards'):
            clock = [time.perf_counter()]
            module, made = build(factory, shard), []
            # A copy may share state with a function of the model.
            fresh = build(factory, shard)
            for state in train_stages(module, shard, recipe, fresh):
                made.append(state)
                clock.append(time.perf_counter())
            stages.append(made)
            took.append([b - a for a, b in itertools.pairwise(clock)])
        return _trained(stages, 'sequential', took)


def _trained(
    stages: list[list[dict[str, Tensor]]],
    trainer: str,
    took: list[list[float]],
) -> Trained:
    states = [made[-1] for made in stages]
    return Trained(states, trainer, [sum(t) for t in took], stages, took)


def build(factory: Callable[[], Module], shard: Shard) -> Module:
    """Build a model with the initial weights of a shard's seed."""
    with seeded(rng.derive(shard.seed, _INITIAL)):
        module = factory()
        if not isinstance(module, Module):
            raise TypeError(
                "'model_factory' needs to return a torch.nn.Module "
                f'(got {type(module).__name__})'
            )
        if any(is_lazy(parameter) for parameter in module.parameters()):
            mode = PreparedMode(shard.x, shard.prepared(), 0)
            with torch.no_grad(), mode:
                module.eval()(*shard.inputs)
            # Layers may have kept something of the graph.
            known, module = module.state_dict(), factory()
            module.load_state_dict(known)
    return module.train()


def check_model(
    factory: Callable[[], Module], shard: Shard, recipe: Recipe
) -> Tensor:
    """Check that a model is a function of data and seed; return outputs.

    Raises:
        UnrepeatableModelError: if two models of one seed differ, before or
            after two epochs of training, or the state of one does not say
            what it does.
    """
    with single_thread():
        one, two = build(factory, shard), build(factory, shard)
        if one is two:
            raise UnrepeatableModelError(
                "'model_factory' needs to make a new model at every call "
                '(got the same one twice)'
            )
        if not equal_tensors(snapshot(one), snapshot(two)):
            raise UnrepeatableModelError(
                "'model_factory' makes models that differ, with the "
                'generators of torch, numpy and Python at the same seed: it '
                'needs to draw from these alone'
            )
        short = replace(recipe, epochs=2, slices=())
        made = [_trained_alone(module, shard, short) for module in (one, two)]
        if made[0] is None or made[1] is None:
            return evaluate(one, shard)
        if not equal_tensors(made[0], made[1]):
            raise UnrepeatableModelError(
                "two trainings of 'model_factory()' from one seed differ: the "
                'model needs to draw from the default generators of torch, '
                'numpy and Python alone, and to share nothing'
            )
        fresh = build(factory, shard)
        restore(fresh, made[0])
        if recipe.sparse_x:
            shard = shard._replace(x=rows_of_nonzeros(shard.x))
        out = evaluate(one, shard)
        if not isinstance(out, Tensor):
            return out
        for other in (evaluate(fresh, shard), evaluate(fresh, shard)):
            if not torch.equal(out, other):
                raise UnrepeatableModelError(
                    "the outputs of a model of 'model_factory' depend on more "
                    'than its parameters and buffers: register all other '
                    'state as a buffer'
                )
        return out


def snapshot(module: Module) -> dict[str, Tensor]:
    """Copy the parameters and buffers of a model.

    Raises:
        ValueError: if the model has an extra state, maybe not of tensors.
    """
    values = dict(module.state_dict(keep_vars=True))
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                "models of 'model_factory' need to keep all they learn in "
                f'parameters and buffers (got the extra state {name!r})'
            )
    # Names of buffers that are not persistent.
    for name, value in module.named_buffers():
        values.setdefault(name, value)
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in values.items()
    }


def restore(module: Module, values: dict[str, Tensor]) -> None:
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


@torch.no_grad()
def evaluate(
    module: Module,
    graph: Shard,
    prepared: PreparedGraph | None = None,
    sparse_adj: bool = True,
    *,
    dense: Tensor | None = None,
) -> Tensor:
    """Compute the outputs of a model for all nodes of a graph.

    Args:
        module (Module): the model.
        graph (Shard): the features, the edges and the edge weights, if there
            are any.
        prepared (PreparedGraph, optional): the same graph, if the layers of
            the model were prepared for it. (default: :obj:`None`)
        sparse_adj (bool): whether layers multiply by a sparse matrix.
            (default: :obj:`True`)
        dense (Tensor, optional): CSR features as a dense matrix, if the caller
            has it. (default: :obj:`None`)
    """
    if prepared is None:
        prepared = graph.prepared()
        with prepared_layers(module, prepared, sparse_adj):
            return evaluate(module, graph, prepared, dense=dense)
    module = module.eval()
    # Models may be random at inference, too.
    mode = PreparedMode(graph.x, prepared, 0, dense)
    with settled(), mode:
        return graph.run(module)


@contextmanager
def settled() -> Iterator[None]:
    """Fix threads, random generators and checks, for a block."""
    with single_thread(), seeded(0), _quiet():
        yield


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
def _quiet() -> Iterator[None]:
    # Layers that make sparse matrices do not say whether to check them, and
    # torch would warn of that, and that such matrices are new.
    with (
        torch.sparse.check_sparse_tensor_invariants(False),
        quiet_sparse(),
    ):
        yield


def equal_tensors(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Test whether two states are equal, bit for bit."""
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )


# The ways to train ##########################################################


def train_stages(
    module: Module,
    shard: Shard,
    recipe: Recipe,
    fresh: Module | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Train one model on one shard; yield its state after every stage.

    Every stage begins with a copy of the module as it was built, and with the
    weights of the one before: so it makes no difference where training begins.

    Raises:
        UnrepeatableModelError: if training left anything but weights and
            buffers behind that has a say in what models say.
    """
    fresh = copy.deepcopy(module) if fresh is None else fresh
    known = fingerprint_any(fresh)
    count = shard.x.size(0)
    if not shard.stages:
        state = _trained_alone(module, shard, recipe)
        if state is not None:
            _check_left_nothing(module, fresh, known, state, shard, recipe)
        yield state or {}
        return
    state = snapshot(module) if shard.start is None else shard.start
    for number, (part, epochs) in enumerate(shard.stages, 1):
        made, stage = None, copy.deepcopy(module)
        if part.x.size(0) > 0:
            restore(stage, state)
            short = replace(recipe, epochs=epochs, slices=())
            made = _trained_alone(stage, part, short)
        if made is not None:
            other = copy.deepcopy(fresh)
            _check_left_nothing(stage, other, known, made, part, recipe)
            state = made
        else:
            state = {name: value.clone() for name, value in state.items()}
            if number == len(shard.stages) and count == part.x.size(0) == 1:
                state = {}
        yield state


def _trained_alone(
    module: Module, shard: Shard, recipe: Recipe
) -> dict[str, Tensor] | None:
    # None if one node is not enough to train on, as for batch norms.
    try:
        return train_alone(module, shard, recipe)
    except ValueError as error:
        if shard.x.size(0) == 1 and _ONE_ROW.match(str(error)):
            return None
        raise


def _check_left_nothing(
    module: Module,
    fresh: Module,
    known: str,
    state: dict[str, Tensor],
    shard: Shard,
    recipe: Recipe,
) -> None:
    if fingerprint_any(fresh) != known:
        raise UnrepeatableModelError(
            "training a model of 'model_factory' changed its class, or a "
            'global that its code reads: the next model would know of this '
            "one's data; keep nothing but parameters and buffers"
        )
    restore(fresh, state)
    if recipe.sparse_x:
        shard = shard._replace(x=rows_of_nonzeros(shard.x))
    first, again = (
        evaluate(each, shard, sparse_adj=recipe.sparse_adj)
        for each in (module, fresh)
    )
    if fingerprint_any([first, known]) != fingerprint_any([again, known]):
        raise UnrepeatableModelError(
            "the outputs of a trained model of 'model_factory' are not those "
            'of its parameters and buffers: register all other state as a '
            'buffer'
        )


def train_alone(
    module: Module, shard: Shard, recipe: Recipe
) -> dict[str, Tensor]:
    """Train one model on one shard, and return its state."""
    if recipe.sparse_x:
        shard = shard._replace(x=rows_of_nonzeros(shard.x))
    prepared = shard.prepared()
    # Test before layers are patched.
    replay = shard.typed is None and can_replay(module)
    layers = prepared_layers(module.train(), prepared, recipe.sparse_adj)
    seed = rng.derive(shard.seed, _DROPOUT)
    mode = PreparedMode(shard.x, prepared, seed)
    turned = _turned if recipe.sparse_x else _as_is
    leaves, blocks = _blocks(module, turned)
    optimizer = OPTIMIZERS[recipe.optimizer](
        blocks, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True
    )
    target: Tensor | None = None
    count = shard.x.size(0)

    def step() -> None:
        nonlocal target
        with mode:
            out = shard.run(module)
        if target is None:
            target = _one_hot(out, shard.y)
        # The gradient of the mean cross entropy.
        slope = (out.detach().softmax(1) - target) / count
        grads = torch.autograd.grad(out, leaves, slope, allow_unused=True)
        for block, grad in zip(blocks, grads, strict=True):
            if grad is not None:
                grad = turned(grad).reshape(-1)
            block.grad = grad
        optimizer.step()

    other = seeded(rng.derive(shard.seed, _OTHER))
    with other, layers, _quiet(), torch.enable_grad():
        repeat(step, recipe.epochs, replay)
    # Copy to the memory layout that a new model has.
    for leaf in leaves:
        leaf.data = leaf.detach().contiguous()
    return snapshot(module)


def _blocks(
    module: Module, turned: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    # The parameters, and the memory of each as a vector.
    leaves: list[Tensor] = []
    blocks: list[Tensor] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            block = turned(parameter.detach()).clone(
                memory_format=torch.contiguous_format
            )
            parameter.data = turned(block)
            leaves.append(parameter)
            blocks.append(block.view(-1))
    return leaves, blocks


def _turned(value: Tensor) -> Tensor:
    # Matrices transposed: so the sparse product wants them.
    return value.t() if value.dim() == 2 else value


def _as_is(value: Tensor) -> Tensor:
    return value


def _one_hot(out: Any, y: Tensor) -> Tensor:
    if not isinstance(out, Tensor) or out.dim() != 2:
        got = type(out).__name__
        if isinstance(out, Tensor):
            got = str(list(out.shape))
        raise ValueError(
            "'model_factory' needs to return models with outputs of the "
            f'shape [num_nodes, num_classes] (got {got})'
        )
    return torch.zeros_like(out.detach()).scatter_(1, y.view(-1, 1), 1)


def _train_in_processes(
    modules: list[Module],
    shards: Sequence[Shard],
    recipe: Recipe,
    num_workers: int | None,
    progress_bar: bool | None,
) -> list[list[dict[str, Tensor]]]:
    if num_workers is None:
        num_workers = max(multiprocessing.cpu_count() // 2, 1)
    num_workers = min(num_workers, len(shards))
    # The largest first, so that the last to end is a small one. Results are
    # by shard: they do not depend on who computed them.
    size = [shard.x.size(0) for shard in shards]
    order = sorted(range(len(shards)), key=lambda i: -size[i])
    try:
        jobs = {
            i: _pack((modules[i], tuple(shards[i]), recipe)) for i in order
        }
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(
            "trainer='process' needs models that can be pickled, of a class "
            f'at the top of a module (got {error})'
        ) from None
    context = multiprocessing.get_context('spawn')
    others = set(multiprocessing.active_children())
    # An interrupt is for the parent to handle: a terminal sends it to all.
    with ProcessPoolExecutor(
        num_workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        try:
            futures = {pool.submit(_work, job): i for i, job in jobs.items()}
            states = {}
            for future in Bar(
                as_completed(futures),
                total=len(futures),
                progress_bar=progress_bar,
                desc='shards',
            ):
                packed = io.BytesIO(future.result())
                states[futures[future]] = torch.load(packed, weights_only=True)
        except BaseException:
            # The shards in progress are not waited for.
            workers = set(multiprocessing.active_children()) - others
            for process in workers:
                process.terminate()
            for process in workers:
                process.join()
            raise
    return [states[i] for i in range(len(shards))]


def _pack(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _work(packed: bytes) -> bytes:
    # Read from the parent process alone, never from a file or a network.
    module, shard, recipe = torch.load(io.BytesIO(packed), weights_only=False)
    with single_thread():
        return _pack(list(train_stages(module, Shard(*shard), recipe)))
