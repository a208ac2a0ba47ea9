r"""Training the models of many shards, each on its own shard alone.

There are three ways, and all give the same weights, bit for bit:

- :obj:`'sequential'`: one model after the other, each an ordinary module on
  an ordinary graph. This is the definition of the result.
- :obj:`'stacked'`: all shards form one graph without edges between them, and
  all models one model, whose parameters have one more dimension. What costs
  the same for ten small graphs as for one is then paid once.
- :obj:`'process'`: as the first, shared out to processes.

**Why the bits agree.** A floating-point result depends on the order of its
sums, on what is rounded together, and on which instructions a value happens
to meet; the last depends on where it lies in memory. So that none of these
depends on the shards that are trained beside one:

- products with weights are taken shard by shard, on operands that start at
  the same alignment (BLAS chooses its kernels by shape and address), or, with
  sparse features, as one sparse product, whose rows are independent;
- parameters and the state of the optimizer are padded to whole vectors, and
  so are exponentials and the like, whose vectorised and scalar versions
  differ in the last bit;
- sums over neighbours keep the order of a shard's own edges;
- gradients of biases are summed shard by shard;
- each shard has its own random stream for dropout, keyed by its seed, which
  no other part of the program can move;
- one thread trains a shard. More would change how sums are split.

A model is stacked only if it is made of operations for which this is known,
and only if the first gradients of the first, the last and the largest shard
*equal* those of these shards alone. Otherwise its shards are trained one by
one, and the reason is given. Bits are those of one machine and one version of
torch: vector widths and BLAS libraries differ.
"""

import copy
import io
import math
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
)
from pyg_trust.graph import quiet_sparse, sparse_rows

TRAINERS = ('stacked', 'sequential', 'process')
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
    'sgd': torch.optim.SGD,
}

# Parts of a shard's seed.
_INITIAL, _DROPOUT, _OTHER = 0, 1, 2

# In elements: two vectors of 512 bits, or four of 256, of float32.
_VECTOR = 64
# In bytes: what torch allocates at.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Recipe:
    """How a shard is trained.

    Args:
        epochs (int): the number of full-batch steps.
        lr (float): the learning rate.
        weight_decay (float): as the optimizer understands it.
        optimizer (str): :obj:`'adam'`, :obj:`'adamw'` or :obj:`'sgd'`.
        sparse_x (bool): multiply the features, where they are the input of a
            linear layer, as a sparse matrix.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    optimizer: str = 'adam'
    sparse_x: bool = False

    def __post_init__(self) -> None:
        check_integer('epochs', self.epochs, 1)
        check_positive('lr', self.lr)
        check_non_negative('weight_decay', self.weight_decay)
        check_choice('optimizer', self.optimizer, OPTIMIZERS)


class Shard(NamedTuple):
    """What one model is trained on, and nothing else.

    Args:
        seed (int): of initial weights and dropout.
        x (Tensor): ``[num_nodes, channels]``.
        y (Tensor): int64, ``[num_nodes]``: a label for every node.
        edge_index (Tensor): int64, ``[2, num_edges]``.
        edge_weight (Tensor, optional): ``[num_edges]``.
    """

    seed: int
    x: Tensor
    y: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the model is called with."""
        weight = () if self.edge_weight is None else (self.edge_weight,)
        return (self.x, self.edge_index, *weight)


class Trained(NamedTuple):
    """What came of it.

    Args:
        states (list): the ``state_dict`` of every model.
        trainer (str): how they were trained in the end.
        note (str): why not as asked, or :obj:`''`.
    """

    states: list[dict[str, Tensor]]
    trainer: str
    note: str = ''


class NotStackableError(RuntimeError):
    """A model does something that can't be shared by shards."""


def train(
    factory: Callable[[], Module],
    shards: Sequence[Shard],
    recipe: Recipe,
    *,
    trainer: str = 'stacked',
    num_workers: int | None = None,
    progress_bar: bool = False,
) -> Trained:
    """Trains one model per shard, by cross entropy over all its nodes.

    Args:
        factory (Callable): makes a model; called once per shard, with torch's
            default generator at the shard's seed.
        shards (list[Shard]): the shards.
        recipe (Recipe): how they are trained.
        trainer (str): :obj:`'stacked'`, :obj:`'sequential'` or
            :obj:`'process'`. (default: :obj:`'stacked'`)
        num_workers (int, optional): the number of processes; by default half
            of the processors. (default: :obj:`None`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Trained: the states of the models, in order; tensors of their own.

    Raises:
        TypeError: if the factory makes no module.
        ValueError: if outputs have the wrong shape, or models can't be sent
            to processes.
    """
    with single_thread():
        modules = [build(factory, shard) for shard in shards]
        note = ''
        if trainer == 'process' and len(shards) > 1:
            states = _train_in_processes(
                modules, shards, recipe, num_workers, progress_bar
            )
            return Trained(states, 'process')
        if trainer == 'stacked' and len(shards) > 1:
            try:
                run = _checked_stack(modules, shards, recipe)
                run.train(progress_bar)
                return Trained(run.states(), 'stacked')
            except NotStackableError as error:
                note = f'not stacked: {error}'
        states = []
        for module, shard in tqdm(
            zip(modules, shards, strict=True),
            total=len(shards),
            disable=not progress_bar,
            desc='shards',
        ):
            states.append(_train_alone(module, shard, recipe))
        return Trained(states, 'sequential', note)


def build(factory: Callable[[], Module], shard: Shard) -> Module:
    """A model with the initial weights that a shard's seed gives.

    Args:
        factory (Callable): makes a model.
        shard (Shard): gives the seed, and the widths of lazy layers.
    """
    with rng.forked(rng.derive(shard.seed, _INITIAL)):
        module = factory()
        if not isinstance(module, Module):
            raise TypeError(
                "'model_factory' needs to return a torch.nn.Module "
                f'(got {type(module).__name__})'
            )
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad():
                module.eval()(*shard.inputs)
            # Layers may have kept something of the graph.
            known, module = module.state_dict(), factory()
            module.load_state_dict(known)
    return module.train()


@torch.no_grad()
def evaluate(
    module: Module,
    inputs: tuple[Tensor, ...],
    features: 'Features | None' = None,
) -> Tensor:
    """The outputs of a model for all nodes of a graph.

    Args:
        module (Module): the model.
        inputs (tuple[Tensor, ...]): features, edges and, if there are any,
            their weights.
        features (Features, optional): the features as a sparse matrix.
            (default: :obj:`None`)
    """
    module = module.eval()
    # Layers that make sparse matrices do not say whether to check them, and
    # torch would warn of that, and that such matrices are new.
    unchecked = torch.sparse.check_sparse_tensor_invariants(False)
    mode = _Alone(inputs[0], features)
    # For models that are random at inference, too.
    mode.start([0])
    quiet = quiet_sparse()
    with single_thread(), rng.forked(0), unchecked, quiet, mode:
        return module(*inputs)


@contextmanager
def single_thread() -> Iterator[None]:
    """Torch on one thread, for the time being."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


class Features(NamedTuple):
    """The features of some shards as one sparse matrix, and its transpose.

    Args:
        matrix (Tensor): CSR, ``[num_nodes, num_shards * channels]``: the
            features of every shard in columns of its own.
        transposed (Tensor): the same, transposed.
    """

    matrix: Tensor
    transposed: Tensor | None

    @classmethod
    def from_dense(
        cls, x: Tensor, sizes: Sequence[int], transposed: bool = True
    ) -> 'Features':
        """Reads off what is not zero.

        Args:
            x (Tensor): ``[num_nodes, channels]``.
            sizes (list[int]): the number of nodes of every shard.
            transposed (bool): whether gradients are wanted.
                (default: :obj:`True`)
        """
        n, width = x.shape
        row, col = x.nonzero(as_tuple=True)
        value = x[row, col]
        start = torch.arange(len(sizes)).repeat_interleave(
            torch.tensor(sizes, dtype=torch.int64)
        )
        col = col + start[row] * width
        total = len(sizes) * width
        matrix = _csr(row, col, value, (n, total))
        if not transposed:
            return cls(matrix, None)
        order = col.argsort(stable=True)
        return cls(
            matrix, _csr(col[order], row[order], value[order], (total, n))
        )


def _csr(
    row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]
) -> Tensor:
    # From rows in order. The library behind wants 32 bits.
    ptr = row.new_zeros(shape[0] + 1)
    torch.cumsum(row.bincount(minlength=shape[0]), 0, out=ptr[1:])
    return sparse_rows(ptr.int(), col.int(), value, shape)


def transposed_adjacency(shard: Shard) -> Tensor:
    """The graph as PyG's layers take it as a matrix: targets by sources.

    Args:
        shard (Shard): a graph.

    Returns:
        Tensor: CSR, ``[num_nodes, num_nodes]``, with 64-bit indices.
    """
    row, col = shard.edge_index
    n = shard.x.size(0)
    order = (col * n + row).argsort(stable=True)
    ptr = torch.zeros(n + 1, dtype=torch.int64)
    torch.cumsum(col.bincount(minlength=n), 0, out=ptr[1:])
    if shard.edge_weight is None:
        value = shard.x.new_ones(row.numel())
    else:
        value = shard.edge_weight[order]
    return sparse_rows(ptr, row[order], value, (n, n))


# The ways to train ##########################################################


def _train_alone(
    module: Module, shard: Shard, recipe: Recipe
) -> dict[str, Tensor]:
    run = _Run([module], [shard], recipe, False)
    run.train()
    return run.states()[0]


def _train_in_processes(
    modules: list[Module],
    shards: Sequence[Shard],
    recipe: Recipe,
    num_workers: int | None,
    progress_bar: bool,
) -> list[dict[str, Tensor]]:
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
            for future in tqdm(
                as_completed(futures),
                total=len(futures),
                disable=not progress_bar,
                desc='shards',
            ):
                packed = io.BytesIO(future.result())
                states[futures[future]] = torch.load(packed, weights_only=True)
        except BaseException:
            # Nobody waits for the shards in progress.
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
    # From the parent process alone, never from a file or a network.
    module, shard, recipe = torch.load(io.BytesIO(packed), weights_only=False)
    with single_thread():
        return _pack(_train_alone(module, Shard(*shard), recipe))


def _checked_stack(
    modules: list[Module], shards: Sequence[Shard], recipe: Recipe
) -> '_Run':
    # The first gradient of the stack against those of shards alone.
    for module in modules:
        if any(True for _ in module.buffers()):
            raise NotStackableError('the model has buffers')
        if not all(p.requires_grad for p in module.parameters()):
            raise NotStackableError('the model has frozen parameters')
    try:
        run = _Run(copy.deepcopy(modules), shards, recipe, True)
        stack = run.gradients()
    except NotStackableError:
        raise
    except Exception as error:
        # What is wrong with a model shows when it is trained alone, too.
        raise NotStackableError(f'{type(error).__name__}: {error}') from error
    sizes = [shard.x.size(0) for shard in shards]
    # What mixes shards shows at the ends of the stack: no need for all.
    for i in {0, len(shards) - 1, sizes.index(max(sizes))}:
        module = copy.deepcopy(modules[i])
        alone = _Run([module], [shards[i]], recipe, False)
        for name, one, all_ in zip(
            alone.names, alone.gradients(), stack, strict=True
        ):
            if (one is None) != (all_ is None) or (
                one is not None
                and all_ is not None
                and not torch.equal(one[0], all_[i])
            ):
                raise NotStackableError(
                    f'the gradient of {name!r} is not that of a shard alone'
                )
    return run


class _Run:
    # One training of one module on one shard (stack=False), or of as many as
    # there are shards in one.

    def __init__(
        self,
        modules: list[Module],
        shards: Sequence[Shard],
        recipe: Recipe,
        stack: bool,
    ) -> None:
        self.recipe, self.stack, self.modules = recipe, stack, modules
        self.module = modules[0].train()
        sizes = [shard.x.size(0) for shard in shards]
        self.other_seed = rng.derive(shards[0].seed, _OTHER)
        self.seeds = [rng.derive(shard.seed, _DROPOUT) for shard in shards]
        joined = _join(shards) if stack else shards[0]
        self.inputs = joined.inputs
        self.y = joined.y
        # For the gradient of the mean of each shard's losses.
        self.scale = torch.cat(
            [joined.x.new_full((n, 1), 1 / n) for n in sizes]
        )
        self.target: Tensor | None = None
        features = (
            Features.from_dense(joined.x, sizes) if recipe.sparse_x else None
        )
        self.names: list[str] = []
        self.blocks: list[Tensor] = []
        self.leaves: list[Tensor] = []
        placeholders: dict[int, Tensor] = {}
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                continue
            values = [m.get_parameter(name).detach() for m in modules]
            block, view = _block(values)
            if stack:
                leaf = view.detach().requires_grad_()
                # Whoever misses the leaf shall not go on unnoticed.
                parameter.data = torch.full_like(parameter, math.nan)
                placeholders[id(parameter)] = leaf
            else:
                leaf = parameter
                parameter.data = _turned(view[0])
            self.names.append(name)
            self.blocks.append(block)
            self.leaves.append(leaf)
        self.mode: _Alone = (
            _Stacked(joined.x, features, placeholders, _layouts(shards))
            if stack
            else _Alone(joined.x, features)
        )
        self.mode.start(self.seeds)

    def gradients(self) -> list[Tensor | None]:
        # [num_shards, ...] per parameter, matrices transposed.
        with self.mode:
            out = self.module(*self.inputs)
        if not isinstance(out, Tensor) or out.dim() != 2:
            raise ValueError(
                "'model_factory' needs to return models with outputs of the "
                f'shape [num_nodes, num_classes] (got {_shape(out)})'
            )
        if self.target is None:
            self.target = torch.zeros_like(out.detach()).scatter_(
                1, self.y.view(-1, 1), self.scale
            )
        # Of the cross entropy, times the share of the node in its shard.
        slope = out.detach().softmax(1) * self.scale - self.target
        grads = torch.autograd.grad(out, self.leaves, slope, allow_unused=True)
        if self.stack:
            return list(grads)
        return [
            None if grad is None else _turned(grad).unsqueeze(0)
            for grad in grads
        ]

    def train(self, progress_bar: bool = False) -> None:
        recipe = self.recipe
        kind = OPTIMIZERS[recipe.optimizer]
        optimizer = kind(
            self.blocks,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        with rng.forked(self.other_seed):
            self.mode.start(self.seeds)
            epochs = range(recipe.epochs)
            for _ in tqdm(epochs, disable=not progress_bar, desc='epochs'):
                for block, grad in zip(
                    self.blocks, self.gradients(), strict=True
                ):
                    block.grad = None if grad is None else _padded(grad)
                optimizer.step()

    def states(self) -> list[dict[str, Tensor]]:
        if not self.stack:
            return [
                {
                    name: value.detach().clone(
                        memory_format=torch.contiguous_format
                    )
                    for name, value in self.module.state_dict().items()
                }
            ]
        values = dict(zip(self.names, self.leaves, strict=True))
        # Names of shared parameters are listed once: take them by identity.
        by_id = {
            id(self.module.get_parameter(name)): leaf
            for name, leaf in values.items()
        }
        return [
            {
                name: _turned(by_id[id(parameter)][i].detach()).clone(
                    memory_format=torch.contiguous_format
                )
                for name, parameter in self.module.state_dict(
                    keep_vars=True
                ).items()
            }
            for i in range(len(self.modules))
        ]


def _turned(value: Tensor) -> Tensor:
    # Matrices are kept transposed: so the sparse product wants them.
    return value.t() if value.dim() == 2 else value


def _block(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    # The memory of one parameter of all models, padded to whole vectors, and
    # the view of it that is [num_models, ...].
    first = _turned(values[0])
    size = first.numel()
    block = first.new_zeros(len(values), -(-size // _VECTOR) * _VECTOR)
    for row, value in zip(block, values, strict=True):
        row[:size] = _turned(value).reshape(-1)
    view = block[:, :size].view(len(values), *first.shape)
    return block.view(-1), view


def _padded(grad: Tensor) -> Tensor:
    flat = grad.reshape(grad.size(0), -1)
    missing = -flat.size(1) % _VECTOR
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.reshape(-1)


def _join(shards: Sequence[Shard]) -> Shard:
    edges, start = [], 0
    for shard in shards:
        edges.append(shard.edge_index + start)
        start += shard.x.size(0)
    weights = [s.edge_weight for s in shards if s.edge_weight is not None]
    return Shard(
        seed=0,
        x=torch.cat([shard.x for shard in shards]),
        y=torch.cat([shard.y for shard in shards]),
        edge_index=torch.cat(edges, 1),
        edge_weight=torch.cat(weights) if weights else None,
    )


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return type(value).__name__


# What happens inside of a model #############################################


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Pointwise functions whose last bit depends on where a value lies.
_PADDED = _names(
    'celu cos elu erf exp expm1 gelu log log1p logsigmoid mish selu sigmoid '
    'silu sin softplus softsign tanh hardswish'
)

# Operations that treat rows alike and by themselves, or a shard's rows in
# their own order: what is shared by shards in a stack. Nothing that a branch
# could be taken by: that would be taken by all.
_SHARED = _names(
    '__add__ __and__ __eq__ __ge__ __get__ __getitem__ __gt__ __iadd__ '
    '__imul__ __invert__ __isub__ __itruediv__ __le__ __lt__ __mul__ __ne__ '
    '__neg__ __or__ __radd__ __rmul__ __rsub__ __rtruediv__ __setitem__ '
    '__sub__ __truediv__ abs add add_ arange broadcast_to cat chunk clamp '
    'clamp_ clone concat contiguous data_ptr detach dim div div_ dtype '
    'element_size empty eq expand expand_as flatten full full_like gather '
    'ge gt index_add index_add_ index_select is_complex is_contiguous '
    'is_floating_point isinf isnan le leaky_relu logical_and logical_not lt '
    'masked_fill masked_fill_ mul mul_ narrow ndimension ne neg new_empty '
    'new_full new_ones new_zeros numel ones ones_like permute pow pow_ relu '
    'relu_ repeat reshape rsqrt scatter_add scatter_add_ scatter_reduce '
    'scatter_reduce_ select size split sqrt square squeeze stack '
    'storage_offset stride sub sub_ t tensor to transpose type type_as '
    'unbind unsqueeze view view_as where zeros zeros_like'
)

# Shared only if they leave the first dimension, the rows, alone.
_BY_ROW = _names(
    'amax amin log_softmax max mean min norm normalize softmax sum'
)

_POINTWISE = _names(
    '__add__ __iadd__ __mul__ __radd__ __rmul__ __rsub__ __sub__ '
    '__truediv__ add add_ div mul sub'
)


class _Alone(TorchFunctionMode):
    # Inside of it dropout draws from the shard's own stream, and pointwise
    # functions see whole vectors.

    def __init__(self, x: Tensor, features: Features | None) -> None:
        super().__init__()
        self.x, self.features = x, features
        self.generators: list[torch.Generator] = []

    def start(self, seeds: list[int]) -> None:
        self.generators = [rng.generator(seed) for seed in seeds]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name == 'dropout':
            return self.dropout(*args, **kwargs)
        if name == 'linear':
            return self.linear(func, *args, **kwargs)
        if name in _PADDED and args and isinstance(args[0], Tensor):
            return _whole_vectors(func, *args, **kwargs)
        if name != '__get__':
            args = self.checked(name, args, kwargs)
        return func(*args, **kwargs)

    def checked(self, name: str, args: tuple, kwargs: dict) -> tuple:
        return args

    def linear(
        self, func: Any, input: Tensor, weight: Tensor, bias: Any = None
    ) -> Tensor:
        if input.dim() != 2 or weight.dim() != 2:
            return func(input, weight, bias)
        out = _linear(
            input,
            weight.t().unsqueeze(0),
            [input.size(0)],
            self.features if input is self.x else None,
        )
        return out if bias is None else out + bias

    def dropout(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        # torch.dropout calls it 'train'.
        if not kwargs.get('train', training) or p == 0:
            return input
        drawn = torch.empty(input.shape, dtype=torch.int32)
        self.draw(drawn)
        # Of 2^31 values, those below are kept.
        keep = (drawn < round((1 - p) * 2**31)).to(input.dtype)
        if p < 1:
            keep *= 1 / (1 - p)
        return input.mul_(keep) if inplace else input * keep

    def draw(self, drawn: Tensor) -> None:
        drawn.random_(generator=self.generators[0])


class _Stacked(_Alone):
    # As above for several shards in one graph; parameters of the module are
    # placeholders, and the leaves that they stand for are [num_shards, ...].

    def __init__(
        self,
        x: Tensor,
        features: Features | None,
        leaves: dict[int, Tensor],
        layouts: dict[int, '_Layout | None'],
    ) -> None:
        super().__init__(x, features)
        self.leaves, self.layouts = leaves, layouts

    def layout(self, rows: int) -> '_Layout':
        found = self.layouts.get(rows)
        if found is None:
            raise NotStackableError(
                f'{rows} rows are not known to be those of nodes or edges'
            )
        return found

    def checked(self, name: str, args: tuple, kwargs: dict) -> tuple:
        # The arguments, a parameter as rows; if the operation is one that
        # can be shared.
        which = [
            i
            for i, value in enumerate(args)
            if isinstance(value, Tensor) and id(value) in self.leaves
        ]
        if which and name in ('size', 'dim', 'numel', 'is_floating_point'):
            return args
        if which:
            if (
                name not in _POINTWISE
                or len(args) != 2
                or len(which) != 1
                or not isinstance(args[1 - which[0]], Tensor)
            ):
                raise NotStackableError(f'{name!r} is applied to a parameter')
            other = args[1 - which[0]]
            rows = self.expand(args[which[0]], other)
            return (rows, other) if which[0] == 0 else (other, rows)
        if name in _BY_ROW:
            dim = kwargs.get('dim', args[1] if len(args) > 1 else None)
            if isinstance(dim, Tensor):
                return args
            dims = dim if isinstance(dim, tuple | list) else (dim,)
            if not isinstance(args[0], Tensor) or any(
                d is None or d % args[0].dim() == 0 for d in dims
            ):
                raise NotStackableError(f'{name!r} is taken over all nodes')
        elif name not in _SHARED:
            raise NotStackableError(f'{name!r} is not known to be shared')
        return args

    def linear(
        self, func: Any, input: Tensor, weight: Tensor, bias: Any = None
    ) -> Tensor:
        if input.dim() != 2 or id(weight) not in self.leaves:
            raise NotStackableError("'linear' is not of nodes and a parameter")
        layout = self.layout(input.size(0))
        if len(layout.blocks) != 1 or (
            bias is not None and id(bias) not in self.leaves
        ):
            raise NotStackableError("'linear' is not of nodes and a parameter")
        out = _linear(
            input,
            self.leaves[id(weight)],
            layout.blocks[0],
            self.features if input is self.x else None,
        )
        return out if bias is None else out + self.expand(bias, out)

    def draw(self, drawn: Tensor) -> None:
        layout = self.layout(drawn.size(0))
        for generator, parts in zip(
            self.generators, layout.parts(drawn), strict=True
        ):
            if len(parts) == 1:
                parts[0].random_(generator=generator)
                continue
            whole = torch.cat(parts).random_(generator=generator)
            for part, value in zip(
                parts, whole.split([len(p) for p in parts]), strict=True
            ):
                part.copy_(value)

    def expand(self, parameter: Tensor, other: Tensor) -> Tensor:
        # What broadcasting does, row by row with the shard's parameter.
        lacking = other.dim() - parameter.dim()
        if lacking < 0 or (lacking == 0 and parameter.size(0) != 1):
            raise NotStackableError('a parameter is broadcast along the nodes')
        leaf = self.leaves[id(parameter)]
        if parameter.dim() == 2:
            leaf = leaf.transpose(1, 2)
        return _Expand.apply(leaf, other.shape, self.layout(other.size(0)))


@dataclass(frozen=True)
class _Layout:
    # Whose rows a tensor has: blocks one after the other, in each of them
    # those of every shard in order.
    blocks: tuple[list[int], ...]

    def parts(self, value: Tensor) -> list[list[Tensor]]:
        sizes = [size for block in self.blocks for size in block]
        flat = value.split(sizes)
        k = len(self.blocks[0])
        return [list(flat[i::k]) for i in range(k)]

    @cached_property
    def whose(self) -> Tensor:
        k = len(self.blocks[0])
        return torch.cat(
            [
                torch.arange(k).repeat_interleave(torch.tensor(block))
                for block in self.blocks
            ]
        )


def _layouts(shards: Sequence[Shard]) -> dict[int, '_Layout | None']:
    nodes = [shard.x.size(0) for shard in shards]
    edges = [shard.edge_index.size(1) for shard in shards]
    proper = [
        int((shard.edge_index[0] != shard.edge_index[1]).sum())
        for shard in shards
    ]
    found: dict[int, _Layout | None] = {}
    for layout in (
        _Layout((nodes,)),
        _Layout((edges,)),
        _Layout((proper,)),
        # Self-loops are appended.
        _Layout((edges, nodes)),
        _Layout((proper, nodes)),
    ):
        rows = sum(map(sum, layout.blocks))
        same = found.setdefault(rows, layout)
        if same != layout:
            # It could be either.
            found[rows] = None
    return found


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, shape: torch.Size, layout: _Layout
    ) -> Tensor:
        ctx.shape, ctx.layout = leaf.shape, layout
        lacking = len(shape) - leaf.dim() + 1
        one = leaf.view(leaf.size(0), *(1,) * lacking, *leaf.shape[1:])
        # The first dimension of one shard is that of the rows.
        one = one.expand(leaf.size(0), 1, *shape[1:])[:, 0]
        return one[layout.whose]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        made = [
            (parts[0] if len(parts) == 1 else torch.cat(parts)).sum_to_size(
                ctx.shape[1:]
            )
            for parts in ctx.layout.parts(grad)
        ]
        return torch.stack(made), None, None


def _whole_vectors(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    flat = x.reshape(-1)
    missing = -flat.numel() % _VECTOR
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing), value=1.0)
    kwargs.pop('inplace', None)
    return func(flat, *args, **kwargs)[: x.numel()].view(x.shape)


def _linear(
    x: Tensor,
    weight: Tensor,
    sizes: list[int],
    features: Features | None,
) -> Tensor:
    # Row block i of x times weight[i], which is [channels, out_channels].
    if features is not None:
        out = _SparseLinear.apply(weight, features)
    else:
        out = _DenseLinear.apply(x, weight, sizes)
    return out


def _aligned(x: Tensor) -> Tensor:
    if x.data_ptr() % _ALIGNMENT == 0 and x.is_contiguous():
        return x
    return x.clone(memory_format=torch.contiguous_format)


class _DenseLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, sizes: list[int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        if len(sizes) == 1:
            return _aligned(x) @ weight[0]
        return torch.cat(
            [
                _aligned(part) @ weight[i]
                for i, part in enumerate(x.split(sizes))
            ]
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slopes = [_aligned(part) for part in grad.split(ctx.sizes)]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.cat(
                [part @ weight[i].t() for i, part in enumerate(slopes)]
            )
        if ctx.needs_input_grad[1]:
            grad_weight = torch.stack(
                [
                    _aligned(part).t() @ slope
                    for part, slope in zip(
                        x.split(ctx.sizes), slopes, strict=True
                    )
                ]
            )
        return grad_x, grad_weight, None


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, features: Features) -> Tensor:
        ctx.features, ctx.shape = features, weight.shape
        return _product(features.matrix, weight.reshape(-1, weight.size(2)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        made = _product(ctx.features.transposed, grad.contiguous())
        return made.view(ctx.shape), None


def _product(matrix: Tensor, dense: Tensor) -> Tensor:
    # As matrix @ dense, which fills its result with zeros and copies them
    # before it starts: most of its time where rows outnumber entries.
    out = dense.new_empty(matrix.size(0), dense.size(1))
    return torch.addmm(out, matrix, dense, beta=0, out=out)
