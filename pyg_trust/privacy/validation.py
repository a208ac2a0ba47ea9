"""Checks that have to pass before private training may start.

The clipped gradient of a unit has to be a function of this unit's rows alone.
Layers that couple rows by design, or remember data, are refused by name; other
models are run on made-up rows (``privacy/probing.py``).
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch_geometric import nn as pyg

from pyg_trust._checks import Is, Sizes
from pyg_trust.graph._marks import marked
from pyg_trust.loader import StepLoader
from pyg_trust.loader.step_batches import POISSON
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.group import Group

__all__ = [
    'ADVICE',
    'IsLoader',
    'Loader',
    'check_arithmetic',
    'check_autocast',
    'check_grid',
    'check_group',
    'check_model',
    'check_output',
    'check_parts',
    'check_totals',
    'same',
]

Criterion = Callable[[Tensor, Tensor], Tensor]


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


#: Advice on layers that mix subgraphs.
ADVICE = (
    "LayerNorm(mode='node') and MessageNorm treat subgraphs apart, and so do "
    "GraphNorm, PairNorm, InstanceNorm and most pools that are given 'batch'; "
    "models of PyG take norm='layer_norm' with norm_kwargs={'mode': 'node'}, "
    "GPSConv takes norm='layer_norm', and GENConv norm='layer'"
)


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
            f"'module' needs to return one real tensor (got {got})"
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
