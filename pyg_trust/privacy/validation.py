"""Checks that have to pass before private training may start.

The clipped gradient of a unit has to be a function of this unit's rows alone.
Layers that couple rows by design, or remember data, are refused by name; other
models, the loader's transform and the loss are tried on made-up rows. In some
steps, too, one unit that is drawn in secret is run alone, without dropout, and
its outputs are compared with those that it has in the batch.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from pyg_trust._checks import Is, Sizes
from pyg_trust.graph._marks import marked
from pyg_trust.loader import StepLoader
from pyg_trust.loader.step_batches import POISSON
from pyg_trust.privacy.calls import (
    Call,
    Units,
    features_of,
    find_call,
    with_gradients,
)
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.exact.step import twin
from pyg_trust.privacy.from_opacus import check_plain
from pyg_trust.privacy.group import Group
from pyg_trust.privacy.rules import Mixing

__all__ = [
    'DISAGREES',
    'ISOLATIONS',
    'IsLoader',
    'Loader',
    'agrees',
    'check_arithmetic',
    'check_autocast',
    'check_criterion',
    'check_grid',
    'check_group',
    'check_model',
    'check_output',
    'check_parts',
    'check_totals',
    'same',
    'try_call',
    'try_parts',
]

Criterion = Callable[[Tensor, Tensor], Tensor]
ISOLATIONS = ('checked', 'construction')
#: Advice on layers that mix subgraphs.
ADVICE = (
    "LayerNorm(mode='node') and MessageNorm treat subgraphs apart, and so do "
    "GraphNorm, PairNorm, InstanceNorm and most pools that are given 'batch'; "
    "models of PyG take norm='layer_norm' with norm_kwargs={'mode': 'node'}, "
    "GPSConv takes norm='layer_norm', and GENConv norm='layer'"
)
DISAGREES = (
    'a unit that was run alone has other outputs than beside the others, so '
    'that the model mixes units and epsilon may not hold. The step was '
    'refused before its noise was drawn: nothing of it was spent or released, '
    'and this engine takes no more steps. Which unit it is stays secret, and '
    'that there is one depends on the data. Look for statistics of the whole '
    "batch; isolation='construction' runs every unit alone"
)
# The seed of what is made up, how many subgraphs the tests run on, and how
# many of them run alone.
_SEED, _PROBED, _TRIED = 0, 32, 8
# How far outputs may be off by rounding, over the largest of the unit. Where
# they are further off, outputs of shaken features show what rounding does.
_OFF, _SHAKEN, _SPREAD = 1e-3, 12, 8


class IsLoader(Is):
    """Requirement that accountants cover the sampling of a loader."""

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        """Return the loader, or raise a ``TypeError``."""
        if not isinstance(value, self.kinds):
            raise TypeError(
                f"'{name}' needs to be a StepLoader, as of what others draw "
                'there is no account: pyg_trust.loader.DisjointWalkLoader('
                'data, batch_size, walk_length) of a graph, GraphLoader('
                'graphs, batch_size) of graphs, or UnitLoader(data, unit, '
                'batch_size) of a typed graph (for edges there is '
                f'PrivateLinkPredictor; got {type(value).__name__})'
            )
        return value


Loader = Annotated[StepLoader, IsLoader(StepLoader)]


# The model and the optimizer ##############################################


def _check_layers(module: nn.Module) -> None:
    # Refuse layers that mix subgraphs or store their inputs, with all reasons.
    wide = _BatchNorm | pyg.HeteroBatchNorm | pyg.DiffGroupNorm
    found = []
    for name, layer in module.named_modules():
        if isinstance(layer, wide):
            reason = (
                'normalises by statistics of all rows of a batch, and keeps '
                'running statistics of data'
            )
        elif getattr(layer, 'cached', None) is True:
            reason = 'caches its first batch (use cached=False)'
        elif getattr(layer, 'max_norm', None) is not None:
            reason = 'shortens the rows that a batch looks up (max_norm=None)'
        elif getattr(layer, 'scale_grad_by_freq', False):
            reason = (
                'divides gradients by how often a batch looks a row up '
                '(scale_grad_by_freq=False)'
            )
        elif any(
            isinstance(p, UninitializedParameter) for p in layer.parameters()
        ):
            raise ValueError(
                f"'module' has lazy layers ('{name or 'module'}' has no "
                'shapes yet): call it once under torch.no_grad(), before the '
                'optimizer and make_private'
            )
        else:
            continue
        found.append(f"'{name or 'module'}' ({type(layer).__name__}) {reason}")
    if found:
        raise ValueError(
            f"'module' needs to treat subgraphs apart: {'; '.join(found)}. "
            f'{ADVICE}'
        )


def check_model(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise a ``ValueError`` for layers or parameters that can't train."""
    _check_layers(module)
    named = {p: n for n, p in module.named_parameters() if p.requires_grad}
    own = set(module.parameters())
    given = {p for group in optimizer.param_groups for p in group['params']}
    if not named:
        raise ValueError("'module' needs to have a parameter to train")
    missing = [name for p, name in named.items() if p not in given]
    if missing:
        raise ValueError(
            "'optimizer' needs to have every trainable parameter of 'module' "
            f'(not {missing}); freeze with requires_grad_(False) what is not '
            'to be trained'
        )
    foreign = [tuple(p.shape) for p in given if p not in own]
    if foreign:
        raise ValueError(
            "'optimizer' needs to have parameters of 'module' alone (got "
            f'others, of the shapes {foreign})'
        )
    for parameter, name in named.items():
        if parameter.grad is not None:
            raise ValueError(
                f"'module' needs to be without gradients ('{name}' has one): "
                'call optimizer.zero_grad() first'
            )


def check_parts(
    module: Any, optimizer: Any, loader: StepLoader | None = None
) -> None:
    """Raise an error for objects that can't be made private."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise TypeError(
            "'module' needs to be the model itself (got a "
            'DistributedDataParallel, which adds up gradients without noise): '
            "pass 'module.module'; the engine synchronizes the processes"
        )
    check_plain('module', module)
    check_plain('optimizer', optimizer)
    if hasattr(module, '_orig_mod'):
        raise TypeError(
            "'module' needs to be the model itself (got one that "
            "torch.compile made): pass 'module._orig_mod'"
        )
    check_autocast(next(module.parameters(), torch.empty(0)).device)
    closure = inspect.signature(type(optimizer).step).parameters.get('closure')
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            "'optimizer' needs to take a step from one gradient (got "
            f'{type(optimizer).__name__}, whose closure reads data repeatedly)'
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "'optimizer' needs to accept dense gradients: noisy gradients are "
            'dense (got SparseAdam)'
        )
    if any(optimizer.state.values()):
        raise ValueError(
            "'optimizer' needs to be new (got one with the state of earlier "
            'steps, which may hold gradients of private data without noise)'
        )
    # Rounding a clipped gradient to 8 bits of a mantissa makes it longer.
    for name, p in module.named_parameters():
        real = p.requires_grad or p.is_floating_point()
        if real and p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                "'module' needs parameters of float32 or float64, as "
                f"gradients are clipped in their type ('{name}' is {p.dtype})"
            )
    if loader is None:
        return
    if loader.batch_sampler.choose is not None:
        raise ValueError("'data_loader' is private already")
    loader.batch_sampler.check_present()
    _check_rows(loader)


def check_autocast(device: torch.device) -> None:
    """Raise a ``ValueError`` under autocast."""
    known = torch.amp.is_autocast_available(device.type)
    if known and torch.is_autocast_enabled(device.type):
        raise ValueError(
            'in private training, the model needs to be called without '
            'autocast: gradients in half precision can exceed their norms'
        )


def check_output(
    out: Any, num_nodes: int, count: int, by_unit: bool = False
) -> None:
    """Check that a model returns a row per node or per subgraph."""
    if not isinstance(out, Tensor) or not out.is_floating_point():
        got = getattr(out, 'dtype', type(out).__name__)
        raise ValueError(
            f"'module' needs to return one real tensor (got {got}): join "
            'several as columns, torch.cat([one, two], 1), and split them in '
            'the loss'
        )
    rows = out.size(0) if out.dim() else None
    if by_unit and rows != count:
        raise ValueError(
            "'module' needs to return a row per graph, as how many nodes "
            'there are is private (got another number of rows): pool them'
        )
    if rows not in (num_nodes, count):
        raise ValueError(
            "'module' needs to return a row per node, or one per subgraph: "
            f'{num_nodes} or {count} (got the shape {list(out.shape)})'
        )


# The loader ###############################################################


def _check_rows(loader: StepLoader) -> None:
    # Features are one tensor with a node's own data in each row.
    x = loader.data.get('x')
    if x is not None and not isinstance(x, Tensor):
        raise TypeError(
            "'data_loader' needs features 'x' in one tensor, with a row per "
            f'node (got a {type(x).__name__})'
        )
    if mixed := marked(loader.data):
        raise ValueError(
            "'data_loader' needs features that are a node's own (got "
            f'{", ".join(map(repr, mixed))}, marked as propagated, which hold '
            'the rows of others): train on raw features and propagate logits'
        )
    if loader.data.get('own_of') is not None:
        raise ValueError(
            "'data_loader' needs 'unit', the PrivacyUnit by which features "
            "along metapaths are a person's own (got none: a person may own "
            'several rows, and the guarantee would cover one)'
        )


def check_group(group: Group, loader: StepLoader) -> None:
    """Raise a ``ValueError`` unless all processes have the same loader."""
    if group.size == 1:
        return
    group.agree(
        {
            "the data of 'data_loader'": loader.fingerprint(),
            "an argument of 'data_loader'": loader.setting(),
            "'num_steps' of 'data_loader'": loader.batch_sampler.num_steps,
            "the 'seed' of 'data_loader', which makes subgraphs,": (
                loader.layout()
            ),
        }
    )


# Arithmetic ###############################################################


def check_totals(found: Tensor, drawn: int, multiplier: float) -> None:
    """Check that a sum is of all drawn units, and of no more than allowed."""
    most = int(clip.MOST_UNITS * min(1.0, multiplier))
    if int(found) != drawn or drawn > most:
        raise RuntimeError(
            'a clipped sum has other units than were drawn, or more than '
            f'{most}; the step was not taken'
        )


def check_grid(name: str, multiplier: float, count: int) -> None:
    """Check that the grid of the noise is finer than what it hides.

    The noise is so many times what a unit adds, for so many numbers.
    """
    try:
        clip.noise_grid(multiplier, 1.0, count)
    except ValueError:
        raise ValueError(
            f"'{name}' is too large for {count} numbers: the grid of the "
            'noise is then coarser than what it hides (got a noise of '
            f'{multiplier:g} times the clipping norm)'
        ) from None


def check_arithmetic(
    loader: StepLoader, multiplier: float, count: int
) -> None:
    """Raise a ``ValueError`` where sums or noise would not be exact."""
    units = loader.subgraphs_per_batch
    if loader.sampling == POISSON:
        # More units than batches will have; a larger batch is refused.
        units = min(2 * units, loader.num_subgraphs)
    if units > clip.MOST_UNITS * min(1.0, multiplier or 1.0):
        raise ValueError(
            f"'batch_size' needs to be at most {clip.MOST_UNITS}, and as "
            'many times the noise multiplier, for sums that are exact in 64 '
            f'bits (got up to {units} units and a multiplier of '
            f'{multiplier:g})'
        )
    if multiplier:
        check_grid('noise_multiplier', multiplier, count)
    if torch.get_float32_matmul_precision() != 'highest':
        raise ValueError(
            'float32 products need all their digits: call '
            "torch.set_float32_matmul_precision('highest') (got "
            f'{torch.get_float32_matmul_precision()!r})'
        )


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Five times as fast, where nothing is NaN.
    return torch.equal(one, other) or torch.allclose(
        one, other, rtol=0, atol=0, equal_nan=True
    )


# Made-up rows #############################################################


def try_parts(step: Any) -> None:
    """Test the model, the loader and the loss of a :class:`PrivateStep`.

    Tests run on the structure of some subgraphs, and not on their features.
    """
    loader, transform = step.loader, step.loader.transform
    generator = torch.Generator().manual_seed(_SEED)
    if step.schema is not None:
        # No private batch is read: what tests find may not depend on one.
        batch, plain, transform = loader.made()
        count = len(batch.input_id)
    else:
        count = min(_PROBED, loader.subgraphs_per_batch, loader.num_subgraphs)
        index = torch.arange(count)
        plain = loader.of(0, index, transformed=False)
        # No private row may reach 'forward', or stay in a model.
        batch = made_up(loader.of(0, index), generator)
    if loader.transform is not None:
        _check_transform(transform, made_up(plain, generator), generator)
    batch = batch.to(step.parameters[0].device)
    at = Units(batch, batch.batch, count)
    given = step.module, step.schema, batch, at, step.forward_with
    call = find_call(*given, step.by_unit)
    step.probe(call, batch, at)
    if step.criterion is not None:
        with torch.no_grad():
            out = call(call.shown(batch))
        check_criterion(step.criterion, out, batch.y, step.loss_reduction)


def try_call(step: Any, call: Call, batch: Data, at: Units) -> bool | None:
    """Test a call of the model on the structure of a batch.

    Rows of subgraphs may not meet, some subgraphs have to have the same
    outputs alone, no buffer may change, and outputs may not change by a bit
    if features of other subgraphs do. Private features are not read.

    Returns:
        bool, optional: None if single subgraphs could not be compared.
    """
    generator = torch.Generator().manual_seed(_SEED)
    made = made_up(batch, generator)

    def run(batch: Data) -> dict[str, tuple[Tensor, Tensor]]:
        torch.manual_seed(_SEED)
        with torch.no_grad():
            out = call(call.shown(batch))
        return {'out': (out, at.of(out, step.by_unit))}

    with _in_training(step.module), _forked(at.owner.device):
        torch.manual_seed(_SEED)
        try:
            with_inputs, inputs = with_gradients(made, at.owner)
            with torch.enable_grad():
                out = step.run(call, call.shown(with_inputs), at)
            if out.requires_grad:
                grad = torch.randn(out.shape, generator=generator).to(out)
                rows = at.of(out, step.by_unit)
                units = step.units.attribute(out, grad, rows, inputs)
                clipped_sum(units, step.max_grad_norm)
        except Mixing as error:
            raise ValueError(f'{error}. {ADVICE}') from None
        tried = range(min(at.count, _TRIED))
        found = agrees(call, made, at, tried, step.by_unit)
        values = None, 1e30, math.inf, math.nan, None
        changed = _changed(run, made, at, generator, values)
    reason = '' if found is not False else 'changes when it is run alone'
    if changed is not None:
        value = '' if changed[1] is None else f' ({changed[1]})'
        reason = f'depends on the features{value} of another'
    if reason:
        raise ValueError(
            "'module' needs to treat subgraphs apart, but the output of one "
            f'{reason}: look for statistics of the whole batch, for divisions '
            f'by numbers of rows, and for ranks among all rows. {ADVICE}'
        )
    return found


def _changed(
    run: Callable[[Data], dict[str, tuple[Tensor, Tensor]]],
    base: Data,
    at: Units,
    generator: torch.Generator,
    values: Iterable[float | None],
) -> tuple[str, float | None] | None:
    # What of half of the units has other bits beside others that change, and
    # to which value: 'run' returns rows by name, each with its unit.
    before = run(base)
    for value in values:
        half = torch.randperm(at.count, generator=generator) < at.count // 2
        half = half.to(at.owner.device)
        try:
            after = run(made_up(base, generator, half[at.owner], value))
        except (ValueError, RuntimeError):
            if value is None:
                raise
            # It takes finite features alone.
            value = 1e6
            after = run(made_up(base, generator, half[at.owner], value))
        for name, (one, rows) in before.items():
            kept, two = half[rows], after[name][0]
            if len(one) != len(two) or not same(one[kept], two[kept]):
                return name, value
    return None


def _check_transform(
    transform: Callable[..., Any], base: Data, generator: torch.Generator
) -> None:
    # Test that a loader's transform works on each subgraph by itself.
    count = int(base.batch.max()) + 1
    at = Units(base, base.batch, count)
    sizes = {count: at.rows, len(at.owner): at.owner}

    def run(batch: Data) -> dict[str, tuple[Tensor, Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            made = transform(batch.clone())
        found = {}
        for name, value in made.to_dict().items():
            if isinstance(value, Tensor) and value.is_floating_point():
                rows = sizes.get(len(value) if value.dim() else -1)
                if rows is None and not made.is_edge_attr(name):
                    # One number for all: half of the units are all of them.
                    value = value.reshape(1, -1).expand(count, -1)
                    rows = at.rows
                if rows is not None:
                    found[name] = value, rows
        return found

    changed = _changed(run, base, at, generator, (None, 1e4))
    if changed is not None:
        raise ValueError(
            "'transform' of 'data_loader' needs to treat subgraphs apart, but "
            f"the '{changed[0]}' of one changes with the rows of others "
            '(row-wise scaling is fine; standardisation, PCA and propagation '
            'are not)'
        )


def check_criterion(
    criterion: Criterion, out: Tensor, target: Tensor, loss_reduction: str
) -> None:
    """Test that a loss is the mean (or the sum) of one term per row.

    Its gradient by a row has to be that of the row by itself, at random
    outputs and targets like those given, of which integers alone are used.
    Class weights with ``reduction='mean'``, contrastive or ranking losses, and
    anything normalised by the data of a batch fail.
    """
    generator = torch.Generator().manual_seed(_SEED)
    count = min(out.size(0), 16)

    def gradient(rows: Tensor, labels: Tensor) -> Tensor:
        leaf = rows.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = criterion(leaf, labels)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise ValueError("'criterion' needs to return one number")
            return torch.autograd.grad(loss, leaf)[0]

    for _ in range(3):
        shape = count, *out.shape[1:]
        values = 3 * torch.randn(shape, generator=generator).to(out)
        order = torch.randperm(target.size(0), generator=generator)[:count]
        labels = target[order.to(target.device)]
        if labels.is_floating_point():
            labels = torch.rand(labels.shape, generator=generator).to(labels)
        elif labels.dim() == 1 and out.dim() == 2 and out.size(1) > 1:
            classes, shape = out.size(1), labels.shape
            drawn = torch.randint(classes, shape, generator=generator)
            labels = drawn.to(labels)
        together = gradient(values, labels)
        if loss_reduction == 'mean':
            together = together * count
        each = zip(values.split(1), labels.split(1), strict=True)
        alone = torch.cat([gradient(*one) for one in each])
        if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"'criterion' needs to be a {loss_reduction} of one term per "
                'row, but the gradient of a row changes with the others (with '
                "class weights or 'ignore_index' use reduction='sum', also as "
                "'loss_reduction', or 'none', and take the mean of the terms)"
            )


def made_up(
    batch: Data,
    generator: torch.Generator,
    kept: Tensor | None = None,
    value: float | None = None,
) -> Data:
    """Copy a batch with random features, or with one value everywhere.

    Rows where :obj:`kept` is true stay as they are.
    """
    out = batch.clone()
    for name in features_of(batch):
        tensor = batch[name]
        if not tensor.is_floating_point():
            # Values that occur, in another order: embeddings have an end.
            order = torch.randperm(tensor.size(0), generator=generator)
            made = tensor[order.to(tensor.device)]
        elif value is None:
            made = torch.randn(tensor.shape, generator=generator).to(tensor)
        else:
            made = torch.full_like(tensor, value)
        if kept is not None:
            made = torch.where(
                kept.view(-1, *[1] * (made.dim() - 1)), tensor, made
            )
        out[name] = made
    return out


def _forked(device: torch.device) -> Any:
    return torch.random.fork_rng([device] if device.type == 'cuda' else [])


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    # Put a model into training mode; restore the mode of each layer and all
    # buffers, and refuse a model that changed one.
    modes = [(layer, layer.training) for layer in module.modules()]
    kept = {n: b.detach().clone() for n, b in module.named_buffers()}
    try:
        module.train()
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
        changed = []
        for name, buffer in module.named_buffers():
            if name not in kept or not same(buffer, kept[name]):
                changed.append(name)
                buffer.detach().copy_(kept.get(name, buffer))
    if changed:
        raise ValueError(
            "'module' needs to keep its buffers as they are in training, as "
            f'they would carry data on (it changes {changed})'
        )


# One unit alone ###########################################################


class _NoDropout(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if 'dropout' in getattr(func, '__name__', ''):
            return args[0] if args else kwargs['input']
        return func(*args, **kwargs)


def agrees(
    call: Call, batch: Data, units: Units, tried: Iterable[int], by_unit: bool
) -> bool | None:
    """Return whether units have the same outputs alone as in the batch.

    Returns:
        bool, optional: None if the model draws other random numbers than
        masks of dropout, or can't run on any of them.
    """
    result = None

    def run(part: Data) -> Tensor:
        out: Tensor = call(call.shown(part), twin(call.model))
        return out

    with _forked(units.owner.device), torch.no_grad(), _NoDropout():
        before = torch.get_rng_state()
        try:
            together = run(batch)
        except RuntimeError:  # It keeps what can't be copied.
            return None
        if not torch.equal(before, torch.get_rng_state()):
            return None
        rows = units.of(together, by_unit)
        for unit in tried:
            part = units.alone(batch, unit)
            try:
                alone = run(part)
            except Exception:  # as of an LSTM without edges
                continue
            own = together[rows == unit]
            if own.shape != alone.shape:
                return False
            result = True
            scale = own.abs().amax() if own.numel() else own.sum()
            off = (own - alone).abs()
            # What is not finite adds nothing; a number that is rounded
            # otherwise may fall on the other side of a step.
            near = (off <= _OFF * scale) | (own == alone)
            if bool(near.all()) or not bool(scale.isfinite()):
                continue
            moved = [run(_shaken(part)) - alone for _ in range(_SHAKEN)]
            if not bool(
                off.amax() <= _SPREAD * torch.stack(moved).abs().amax()
            ):
                return False
    return result


def _shaken(batch: Data) -> Data:
    # Features that differ in their last bits.
    out = batch.clone()
    for name, value in batch.to_dict().items():
        real = isinstance(value, Tensor) and value.is_floating_point()
        if real and value.layout == torch.strided:
            eps = torch.finfo(value.dtype).eps
            out[name] = value * (1 + 4 * eps * torch.randn_like(value))
    return out
