"""Test of a model, a loader and a loss on made-up rows, before training."""

import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust.privacy.alone import agrees
from pyg_trust.privacy.calls import Call, Units, find_call, with_gradients
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.rules import Mixing
from pyg_trust.privacy.validation import (
    ADVICE,
    SEED,
    check_criterion,
    check_transform,
    features_of,
    in_training,
    other_rows,
    randomised,
    same,
)

__all__ = ['try_call', 'try_parts']

# How many subgraphs the tests run on, and how many of them run alone.
_PROBED, _TRIED = 32, 8


def try_parts(step: Any) -> None:
    """Test the model, the loader and the loss of a :class:`PrivateStep`.

    Tests run on the structure of some subgraphs, and not on their features.

    Raises:
        ValueError: if a test fails.
    """
    loader, transform = step.loader, step.loader.transform
    generator = torch.Generator().manual_seed(SEED)
    if step.schema is not None:
        # No private batch is read: what tests find may not depend on one.
        batch, plain, transform = loader.made()
        count = len(batch.input_id)
    else:
        count = min(_PROBED, loader.subgraphs_per_batch, loader.num_subgraphs)
        batch = loader.of(0, torch.arange(count))
        plain = loader.of(0, torch.arange(count), transformed=False)
        # No private row may reach 'forward', or stay in a model.
        batch = randomised(batch, features_of(batch), generator)
    if loader.transform is not None:
        check_transform(transform, plain)
    device = step.parameters[0].device
    batch = batch.to(device)
    at = Units(batch, batch.batch, count)
    call = find_call(
        *(step.module, step.schema, batch, at, step.forward_with),
        step.by_unit,
    )
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

    Raises:
        ValueError: if the model fails a test.
    """
    generator = torch.Generator().manual_seed(SEED)
    made = randomised(batch, features_of(batch), generator)
    devices = [at.owner.device] if at.owner.is_cuda else []
    with in_training(step.module), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
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
        reason = _changed(step, call, made, at, generator)
    if found is False:
        reason = 'changes when it is run alone'
    if reason:
        raise ValueError(
            "'module' needs to treat subgraphs apart, but the output of one "
            f'{reason}: look for statistics of the whole batch, for divisions '
            f'by numbers of rows, and for ranks among all rows. {ADVICE}'
        )
    return found


def _changed(
    step: Any,
    call: Call,
    made: Data,
    at: Units,
    generator: torch.Generator,
) -> str:
    # Whether half of the units have other bits beside others that change.
    def run(batch: Data) -> Tensor:
        torch.manual_seed(SEED)
        with torch.no_grad():
            out: Tensor = call(call.shown(batch))
        return out

    before = run(made)
    rows = at.of(before, step.by_unit)
    for value in (None, 1e30, math.inf, math.nan, None):
        half = torch.randperm(at.count, generator=generator) < at.count // 2
        half = half.to(at.owner.device)
        try:
            after = run(other_rows(made, generator, half[at.owner], value))
        except (ValueError, RuntimeError):
            if value is None:
                raise
            # The model takes finite features alone.
            value = 1e6
            after = run(other_rows(made, generator, half[at.owner], value))
        if not same(before[half[rows]], after[half[rows]]):
            what = '' if value is None else f' ({value})'
            return f'depends on the features{what} of another'
    return ''
