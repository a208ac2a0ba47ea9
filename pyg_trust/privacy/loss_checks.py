"""Checks that a loss keeps the terms of subgraphs apart."""

import torch
from torch import Tensor

from pyg_trust.privacy.validation import SEED, Criterion


def check_criterion(
    criterion: Criterion,
    out: Tensor,
    target: Tensor,
    loss_reduction: str,
) -> None:
    r"""Test that a loss is the mean (or the sum) of one term per row.

    Its gradient with respect to a row has to be that of the row by itself,
    over the number of rows for a mean, at random outputs and targets. Class
    weights with :obj:`reduction='mean'`, contrastive or ranking losses, and
    anything normalised by the data of a batch fail.

    Args:
        criterion (callable): maps outputs and targets to a loss.
        out (Tensor): a tensor like the outputs, ``[num_rows, ...]``.
        target (Tensor): a tensor like the targets; their *values* are used for
            integers alone, in another order.
        loss_reduction (str): :obj:`'mean'` or :obj:`'sum'`.

    Raises:
        ValueError: if the loss is none.
    """
    generator = torch.Generator().manual_seed(SEED)
    count = min(out.size(0), 16)
    for _ in range(3):
        values = torch.randn(
            (count, *out.shape[1:]), generator=generator, dtype=torch.float64
        )
        values = (3 * values).to(out)
        order = torch.randperm(target.size(0), generator=generator)[:count]
        labels = target[order.to(target.device)]
        if labels.is_floating_point():
            drawn = torch.rand(labels.shape, generator=generator)
            labels = drawn.to(labels)
        elif labels.dim() == 1 and out.dim() == 2 and out.size(1) > 1:
            drawn = torch.randint(
                out.size(1), labels.shape, generator=generator
            )
            labels = drawn.to(labels)
        together = _loss_grad(criterion, values, labels)
        if loss_reduction == 'mean':
            together = together * count
        alone = torch.cat(
            [
                _loss_grad(criterion, values[i : i + 1], labels[i : i + 1])
                for i in range(count)
            ]
        )
        if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"'criterion' needs to be a {loss_reduction} of one term per "
                'row, each of its own output and target alone, but the '
                'gradient of a row changes with the others (class weights '
                "with reduction='mean' do that: use reduction='sum', also as "
                "'loss_reduction', or 'none', and take the mean of the "
                'weighted terms)'
            )


def _loss_grad(criterion: Criterion, out: Tensor, target: Tensor) -> Tensor:
    leaf = out.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = criterion(leaf, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError("'criterion' needs to return one number")
        (grad,) = torch.autograd.grad(loss, leaf)
    return grad
