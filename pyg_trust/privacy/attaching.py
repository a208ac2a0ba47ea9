"""What may become private: the parts of a training, and where it runs."""

import inspect
import os
from typing import Any

import torch
from torch import Tensor, nn

from pyg_trust._marks import are_propagated
from pyg_trust.loader import StepLoader
from pyg_trust.privacy.wrappers import PrivateModule, PrivateOptimizer


def check_parts(module: Any, optimizer: Any, loader: Any) -> None:
    """Refuses what can't be made private, or was.

    Args:
        module (torch.nn.Module): the model.
        optimizer (torch.optim.Optimizer): the optimizer.
        loader (StepLoader): the loader.

    Raises:
        TypeError: if one is of another kind.
        RuntimeError: if there are several processes.
        ValueError: if one is private already, or can't be made so.
    """
    if isinstance(module, PrivateModule) or isinstance(
        optimizer, PrivateOptimizer
    ):
        raise ValueError("'module' and 'optimizer' are private already")
    for name, value, kind, advice in (
        ('module', module, nn.Module, ''),
        ('optimizer', optimizer, torch.optim.Optimizer, ''),
        (
            'data_loader',
            loader,
            StepLoader,
            ', as pyg_trust.loader.DisjointWalkLoader is: other loaders '
            'draw batches and neighbours in ways that are not accounted '
            'for',
        ),
    ):
        if not isinstance(value, kind):
            raise TypeError(
                f"'{name}' needs to be a {kind.__name__}{advice} (got "
                f'{type(value).__name__})'
            )
    check_alone()
    check_optimizer(optimizer)
    check_types(module)
    if loader.batch_sampler.choose is not None:
        raise ValueError("'data_loader' is private already")
    mixed = loader.data.get('propagated', ()) or [
        name
        for name, value in loader.data.to_dict().items()
        if isinstance(value, Tensor) and are_propagated(value)
    ]
    if mixed:
        raise ValueError(
            "'data_loader' needs features that are a node's own (got "
            f'{", ".join(map(repr, mixed))}, which AGP has propagated: '
            'the rows of other nodes are in them, and no row would be '
            'protected; train on raw features and propagate the logits)'
        )


def check_alone() -> None:
    """Refuses to train in one of several processes.

    Each of them would draw batches and noise of its own and claim the epsilon
    of one, while what is released has learned from all.

    Raises:
        RuntimeError: if ``torch.distributed`` has, or ``torchrun`` announces,
            more than one process.
    """
    size = os.environ.get('WORLD_SIZE', '')
    count = int(size) if size.isdigit() else 1
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        count = max(count, group.get_world_size())
    if count > 1:
        raise RuntimeError(
            'private training runs in one process: under torch.distributed '
            f'(got {count} processes) each would claim the epsilon of one '
            'for what all have learned'
        )


def check_types(module: nn.Module) -> None:
    """Refuses parameters in which a norm can't be bounded.

    Args:
        module (torch.nn.Module): the model.

    Raises:
        ValueError: if one has less than 32 bits: rounding a clipped gradient
            to 8 bits of a mantissa makes it larger than the clipping norm.
    """
    for name, p in module.named_parameters():
        if p.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                "'module' needs parameters of float32 or float64, as "
                f"gradients are clipped in their type ('{name}' is "
                f'{p.dtype})'
            )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuses optimizers that look at the data again, or have before.

    Args:
        optimizer (torch.optim.Optimizer): the optimizer.

    Raises:
        ValueError: if it is one.
    """
    step = inspect.signature(type(optimizer).step).parameters
    closure = step.get('closure')
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            "'optimizer' needs to take a step from one gradient (got "
            f'{type(optimizer).__name__}, whose closure sees the data more '
            'than once, which is not accounted for)'
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "'optimizer' needs to take dense gradients, which noisy ones are "
            '(got SparseAdam)'
        )
    if any(optimizer.state.values()):
        raise ValueError(
            "'optimizer' needs to be new (got one with the state of steps "
            'that it took before, which may hold gradients of private data '
            'without noise)'
        )
