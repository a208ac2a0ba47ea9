"""Problems of linear heads, the same on every processor."""

import numpy as np
import torch

from pyg_trust.unlearning.heads import Objective


def targets(y, classes):
    """Targets of the logistic losses; 0 in rows of class -1."""
    there = (y >= 0).unsqueeze(1).double()
    hot = y.unsqueeze(1) == torch.arange(1 if classes == 2 else 0, classes)
    return torch.where(hot, 1.0, -1.0) * there


def slopes(margin, Y):
    """The derivative of the losses in the margins."""
    return -Y * torch.sigmoid(-Y * margin)


def problem(n, d, classes, seed=0, scale=1.0):
    """Features, targets and weights."""
    # Numbers of numpy: those of torch depend on the processor.
    random = np.random.default_rng(seed)
    Z = torch.from_numpy(random.standard_normal((n, d)))
    y = torch.from_numpy(random.integers(-1, classes, n))
    Z[y < 0] = 0
    Y = targets(y, classes)
    W = torch.from_numpy(random.standard_normal((d, Y.size(1))))
    return Z, Y, scale * W


def objective(Z, Y, B, lam):
    """An objective of so many rows."""
    return Objective(Z, Y, lam * Z.size(0), B)


def gradient(Z, Y, W, B, lam):
    """Of that objective."""
    return objective(Z, Y, B, lam).gradient(W).value
