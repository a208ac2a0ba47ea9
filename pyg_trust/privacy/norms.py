"""Norms of gradients, for an estimate of a clipping norm."""

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from pyg_trust.loader import StepLoader
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
        leaf = out.detach()[:count].requires_grad_()
        with torch.enable_grad():
            loss = criterion(leaf, batch.y[:count]) * count
        grad = torch.zeros_like(out)
        grad[:count] = torch.autograd.grad(loss, leaf)[0]
        rows = owner
        if out.size(0) != owner.numel():
            rows = torch.arange(count, device=device)
        clipped = tape.clipped_sum(out, grad, 1.0, output_owner=rows)
        found.append(clipped.norms.double().cpu())
    return torch.cat(found).numpy()
