"""Test of a model, a loader and a loss on made-up rows, before training."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust.privacy.alone import agrees
from pyg_trust.privacy.calls import (
    Call,
    Units,
    features_of,
    find_call,
    with_gradients,
)
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.rules import Mixing
from pyg_trust.privacy.validation import ADVICE, Criterion, same

__all__ = ['check_criterion', 'try_call', 'try_parts']

# The seed of what is made up, how many subgraphs the tests run on, and how
# many of them run alone.
_SEED, _PROBED, _TRIED = 0, 32, 8


def try_parts(step: Any) -> None:
    """Test the model, the loader and the loss of a :class:`PrivateStep`.

    Tests run on the structure of some subgraphs, and not on their features.

    Raises:
        ValueError: if a test fails.
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
    generator = torch.Generator().manual_seed(_SEED)
    made = made_up(batch, generator)
    devices = [at.owner.device] if at.owner.is_cuda else []

    def run(batch: Data) -> dict[str, tuple[Tensor, Tensor]]:
        torch.manual_seed(_SEED)
        with torch.no_grad():
            out = call(call.shown(batch))
        return {'out': (out, at.of(out, step.by_unit))}

    with _in_training(step.module), torch.random.fork_rng(devices):
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
        found = agrees(
            call, made, at, range(min(at.count, _TRIED)), step.by_unit
        )
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
            kept = half[rows]
            two = after[name][0]
            if len(one) != len(two) or not same(one[kept], two[kept]):
                return name, value
    return None


def _check_transform(
    transform: Callable[..., Any], base: Data, generator: torch.Generator
) -> None:
    # Test that a loader's transform works on each subgraph by itself.
    count = int(base.batch.max()) + 1
    at = Units(base, base.batch, count)

    def run(batch: Data) -> dict[str, tuple[Tensor, Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            made = transform(batch.clone())
        found = {}
        for name, value in made.to_dict().items():
            if isinstance(value, Tensor) and value.is_floating_point():
                sizes = {count: torch.arange(count), len(at.owner): at.owner}
                rows = sizes.get(len(value) if value.dim() else -1)
                if rows is None and not made.is_edge_attr(name):
                    # One number for all: half of the units are all of them.
                    value = value.reshape(1, -1).expand(count, -1)
                    rows = sizes[count]
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

    Raises:
        ValueError: if the loss is none.
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
                "class weights use reduction='sum', also as 'loss_reduction', "
                "or 'none', and take the mean of the weighted terms)"
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
            shape = [-1] + [1] * (tensor.dim() - 1)
            made = torch.where(kept.view(shape), tensor, made)
        out[name] = made
    return out


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    # Put a model into training mode; restore the mode of each layer and all
    # buffers, and refuse a model that changed one.
    modes = [(layer, layer.training) for layer in module.modules()]
    kept = {n: b.detach().clone() for n, b in module.named_buffers()}

    def changed() -> list[tuple[str, Tensor]]:
        return [
            (name, buffer)
            for name, buffer in module.named_buffers()
            if name not in kept or not same(buffer, kept[name])
        ]

    try:
        module.train()
        yield
        if names := [name for name, _ in changed()]:
            raise ValueError(
                "'module' needs to keep its buffers as they are in training, "
                f'as they would carry data on (it changes {names})'
            )
    finally:
        for layer, mode in modes:
            layer.training = mode
        with torch.no_grad():
            for name, buffer in changed():
                if name in kept:
                    buffer.copy_(kept[name])
