"""Problems of linear heads, the same on every processor."""

import hashlib

import numpy as np
import torch

from pyg_trust import ops
from pyg_trust.unlearning.heads import Objective


def targets(y, classes, head):
    """Targets of each loss of `ops.LOSS_HEADS`; 0 in rows of class -1."""
    there = (y >= 0).unsqueeze(1).double()
    first = 1 if classes == 2 and head != 'softmax' else 0
    hot = y.unsqueeze(1) == torch.arange(first, classes)
    return torch.where(hot, 1.0, 0.0 if head == 'softmax' else -1.0) * there


def slopes(margin, Y, head):
    """The derivative of each loss in the margins."""
    if head == 'ovr':
        return -Y * torch.sigmoid(-Y * margin)
    if head == 'softmax':
        return margin.softmax(1) * Y.sum(1, keepdim=True) - Y
    return 2 * (margin - Y) * Y.abs()


def problem(n, d, classes, head='ovr', seed=0, scale=1.0):
    """Features, targets and weights."""
    # Numbers of numpy: those of torch depend on the processor.
    random = np.random.default_rng(seed)
    Z = torch.from_numpy(random.standard_normal((n, d)))
    y = torch.from_numpy(random.integers(-1, classes, n))
    Z[y < 0] = 0
    Y = targets(y, classes, head)
    W = torch.from_numpy(random.standard_normal((d, Y.size(1))))
    return Z, Y, scale * W


def objective(Z, Y, B, lam):
    """An objective of so many rows."""
    return Objective(Z, Y, lam * Z.size(0), B)


def gradient(Z, Y, W, B, lam):
    """Of that objective."""
    return objective(Z, Y, B, lam).gradient(W).value


def digest():
    """Of gradients of every width, in whole vectors and in parts."""
    made = hashlib.sha256()
    for head in ops.LOSS_HEADS:
        for classes in (2, 3, 4, 7, 9):
            for d in (1, 6, 13, 16):
                Z, Y, W = problem(701, d, classes, head)
                for part in ops.loss_gradient(Z, Y, W, head):
                    made.update(part.numpy().tobytes())
    return made.hexdigest()
