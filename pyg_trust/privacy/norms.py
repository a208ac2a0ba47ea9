"""Norms of gradients, for an estimate of a clipping norm."""

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from pyg_trust.loader import StepLoader
from pyg_trust.privacy.flow import Watch, follow, gradient
from pyg_trust.privacy.gradients import SubgraphGradients
from pyg_trust.privacy.validation import Criterion, Forward, find_call

_PROBED = 32


def gradient_norms(
    module: nn.Module,
    loader: StepLoader,
    criterion: Criterion,
    forward: Forward | None,
    progress_bar: bool = False,
) -> np.ndarray:
    """The norms of the gradients of all units of the first partition.

    They are private.

    Args:
        module (torch.nn.Module): the model.
        loader (StepLoader): the loader.
        criterion (callable): a mean of one term per row.
        forward (callable, optional): calls a model with a batch.
        progress_bar (bool): whether to show one. (default: :obj:`False`)
    """
    device = next(module.parameters()).device
    found = []
    parts = torch.arange(loader.num_subgraphs).split(_PROBED)
    for index in tqdm(parts, disable=not progress_bar, desc='norms'):
        batch = loader(loader.batch_sampler.write(0, index))
        owner, count = loader.check_batch(batch, 0, index.numel())
        batch, owner = batch.to(device), owner.to(device)
        call = find_call(module, batch, forward)
        tape_of = SubgraphGradients(module).record(owner, count)
        with torch.enable_grad(), tape_of as tape:
            out = call(module, batch)
        # The norm of a unit is to be a function of its own rows.
        watch, units = Watch(), owner[:count]
        if out.size(0) != owner.numel():
            units = torch.arange(count, device=device)
        leaf = follow(out.detach()[:count], units, watch).requires_grad_()
        target = follow(batch.y[:count], units, watch)
        with torch.enable_grad():
            loss = criterion(leaf, target)
        (found_grad,) = torch.autograd.grad(loss, leaf)
        grad = torch.zeros_like(out)
        grad[:count] = gradient(found_grad, units, watch) * count
        rows = owner
        if out.size(0) != owner.numel():
            rows = torch.arange(count, device=device)
        clipped = tape.clipped_sum(out, grad, 1.0, output_owner=rows)
        found.append(clipped.norms.double().cpu())
    return torch.cat(found).numpy()
