"""Problems of linear heads, the same on every processor."""

import hashlib

import numpy as np
import torch

from pyg_trust import ops
from pyg_trust.unlearning import heads as H


def problem(n, d, classes, head, seed=0, scale=1.0):
    """Features, targets and weights."""
    # Numbers of numpy: those of torch depend on the processor.
    random = np.random.default_rng(seed)
    Z = torch.from_numpy(random.standard_normal((n, d)))
    y = torch.from_numpy(random.integers(-1, classes, n))
    Z[y < 0] = 0
    Y = H.targets(y, classes, head)
    W = torch.from_numpy(random.standard_normal((d, Y.size(1))))
    return Z, Y, scale * W


def objective(Z, Y, B, lam, loss):
    """An objective with lambda and the name of its loss."""
    return H.Objective(Z, Y, lam * Z.size(0), H.LOSSES[loss], B)


def gradient(Z, Y, W, B, lam, loss):
    """Of that objective."""
    return objective(Z, Y, B, lam, loss).gradient(W).value


def residual(Z, Y, W, B, lam, loss):
    """The norm of that gradient, with a bound."""
    return objective(Z, Y, B, lam, loss).gradient(W).norm


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
