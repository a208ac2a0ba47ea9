"""Models on single rows, and how a private classifier trains them."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as graph_norms

from pyg_trust import rng
from pyg_trust._checks import check_instance
from pyg_trust.privacy.descent import (
    linear_logits,
    private_descent,
    private_linear,
    row_outputs,
    unit_rows,
    whole_rows,
)
from pyg_trust.privacy.propagation import Noise

_EVERY = 5
# The norm of rows beside the constant 1, and what gradients are clipped to.
# The same as a constant of 1/4 beside rows of norm 1, clipped to 1/2: the
# constant takes less of the norm, and few rows lose half of their gradient.
_NORM, _CLIP = 4.0, 2.0
# First weight, in a head, of the classes of neighbours; one's own has 1.
# All blocks of neighbours share it.
_START = 4.0
_HEAD_LR = 0.2
_NORMS = tuple(
    value
    for value in vars(graph_norms).values()
    if isinstance(value, type) and issubclass(value, nn.Module)
)


class LinearRows(nn.Module):
    """A linear model of rows, dense or sparse, in float64.

    With ``unit`` each row is brought to norm 1 first.
    """

    def __init__(
        self, in_channels: int, out_channels: int, unit: bool
    ) -> None:
        super().__init__()
        self.unit = unit
        shape = (in_channels + 1, out_channels)
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))

    def rows(self, x: Tensor) -> Any:
        """Return the rows that the model reads, as a matrix."""
        return unit_rows(x) if self.unit else x.double().numpy()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        weight, rows = self.weight.detach().numpy(), self.rows(x)
        if self.unit:
            # An encoder's outputs are sent: to the bit of their row alone.
            return torch.from_numpy(linear_logits(whole_rows(rows), weight))
        return torch.from_numpy(rows @ weight[:-1] + weight[-1])


class MLPRows(nn.Module):
    """Two layers with dropout, of rows dense or sparse."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_channels, hidden_channels))
        self.bias = nn.Parameter(torch.zeros(hidden_channels))
        self.out = nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = x.to(self.weight.dtype)
        hidden = x @ self.weight
        hidden = (hidden + self.bias).relu()
        return self.out(F.dropout(hidden, self.dropout, self.training))


def default_model(
    size: int, classes: int, private: bool, blocks: int
) -> nn.Module:
    """Make an encoder, or a head that reads rows of some blocks."""
    if not private:
        hidden, dropout = (32, 0.1) if blocks else (16, 0.5)
        return MLPRows(size, hidden, classes, dropout)
    made = LinearRows(size, classes, not blocks)
    if blocks:
        # It starts with one's own class and the classes of neighbours.
        eye = torch.eye(classes, dtype=torch.float64)
        parts = [eye, *[_START / blocks * eye] * blocks, 0 * eye[:1]]
        made.weight = nn.Parameter(torch.cat(parts))
    return made


def check_module(name: str, module: nn.Module, private: bool) -> None:
    """Refuse models that read more than single rows."""
    check_instance(name, module, nn.Module)
    for part in module.modules():
        if isinstance(part, MessagePassing):
            raise ValueError(
                f"'{name}' needs to read single rows, and {part} reads edges"
            )
        batch = isinstance(part, nn.modules.batchnorm._NormBase)
        if private and (batch or isinstance(part, _NORMS)):
            raise ValueError(
                f"'{name}' needs to read single rows, and {part} is over "
                'nodes (LayerNorm is per row)'
            )
    if private and not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"'{name}' needs to have parameters that train")


def probe(
    name: str,
    module: nn.Module | None,
    size: int,
    classes: int,
    private: bool,
) -> None:
    """Refuse a user's model that does not map rows to logits."""
    if module is None:
        return
    rows = torch.zeros(2, size, dtype=_dtype(module))
    try:
        out = outputs(deepcopy(module).eval(), rows, private)
    except Exception as error:
        raise ValueError(
            f"'{name}' needs to map rows of {size} columns to logits, each by "
            f'itself (got {type(error).__name__}: {error})'
        ) from error
    if out.shape != (2, classes):
        raise ValueError(
            f"'{name}' needs to return {classes} logits a row (got the shape "
            f'{list(out.shape)})'
        )


def _dtype(module: nn.Module) -> torch.dtype:
    kinds = [p.dtype for p in module.parameters()]
    return kinds[0] if kinds else torch.get_default_dtype()


def outputs(module: nn.Module, x: Tensor, private: bool) -> Tensor:
    """Compute the logits of a trained model."""
    if isinstance(module, LinearRows):
        return module(x)
    x = _readable(module, x)
    if private:
        return row_outputs(module, x)
    with torch.no_grad():
        return module(x)


def _readable(module: nn.Module, x: Tensor) -> Tensor:
    # Rows for a model: finite, of its dtype, sparse if possible.
    if isinstance(module, MLPRows):
        few = x.layout != torch.strided
        if few or (x.numel() and x.count_nonzero() < 0.1 * x.numel()):
            return x.to_sparse_coo().to(_dtype(module)).coalesce()
    if x.layout != torch.strided:
        x = x.to_dense()
    return torch.where(x.isfinite(), x, 0.0).to(_dtype(module))


def train_privately(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    classes: int,
    source: Noise,
    noise_multiplier: float,
    steps: int,
    lr: float,
) -> nn.Module:
    """Train by full-batch private descent; what it spends is paid."""
    if not isinstance(module, LinearRows):
        rows = _readable(module, x)
        module.train()
        private_descent(
            module, rows, y, source, noise_multiplier, steps=steps, lr=lr
        )
        return module.eval()
    data = y.numpy(), classes, source, noise_multiplier
    if module.unit:
        weight = private_linear(
            *(module.rows(x) * _NORM, *data),
            steps=steps,
            lr=lr / _NORM,
            max_grad_norm=_CLIP,
        )
        weight[:-1] *= _NORM
    else:
        weight = private_linear(
            *(module.rows(x), *data),
            steps=steps,
            lr=lr * _HEAD_LR,
            start=module.weight.detach().numpy(),
        )
    module.weight = nn.Parameter(torch.from_numpy(weight))
    return module


def train_freely(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    train: Tensor,
    val: Tensor | None,
    epochs: int,
    lr: float,
    weight_decay: float,
) -> nn.Module:
    """Train without noise; keep the best epoch on validation labels."""
    rows = _readable(module, x)
    optimizer = torch.optim.Adam(
        module.parameters(), lr=lr, weight_decay=weight_decay
    )
    best, kept = -math.inf, deepcopy(module.state_dict())
    with rng.forked(rng.resolve(None)):
        for epoch in range(1, epochs + 1):
            module.train()
            optimizer.zero_grad()
            F.cross_entropy(module(rows)[train], y[train]).backward()
            optimizer.step()
            if val is None or (epoch % _EVERY and epoch < epochs):
                continue
            module.eval()
            with torch.no_grad():
                found = module(rows)[val].argmax(1) == y[val]
            if (share := float(found.float().mean())) >= best:
                best, kept = share, deepcopy(module.state_dict())
    if val is not None:
        module.load_state_dict(kept)
    return module.eval()


def like(values: dict[str, Tensor], given: nn.Module | None) -> nn.Module:
    """Return the model that has saved weights, the user's if it is one."""
    check_instance('state', values, dict)
    for value in values.values():
        check_instance('state', value, Tensor)
    try:
        if given is not None:
            made = deepcopy(given)
        elif set(values) == {'weight'}:
            size = values['weight'].shape
            made = LinearRows(size[0] - 1, size[1], False)
        else:
            size = values['weight'].shape
            made = MLPRows(size[0], size[1], values['out.weight'].size(0), 0.0)
        made.load_state_dict(values)
    except (RuntimeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"'state' needs weights of a classifier with the same models (got "
            f'{error})'
        ) from error
    return made.eval()


def rows_of(x: Tensor, mask: Tensor) -> Tensor:
    """Select the rows of a mask from a dense or sparse tensor."""
    if x.layout == torch.strided:
        return x[mask]
    return x.to_sparse_coo().index_select(0, mask.nonzero().view(-1))


def class_rows(y: Tensor, own: Tensor, train: Tensor) -> Tensor:
    """Return one-hot labels of training nodes, and posteriors of others."""
    known = F.one_hot(torch.where(train, y, 0), own.size(1)).to(own)
    return torch.where(train[:, None], known, own)


def posteriors(logits: Tensor) -> Tensor:
    """Compute probabilities in float64; uniform where they are not finite."""
    own = logits.double().softmax(1)
    fine = own.isfinite().all(1, keepdim=True)
    return torch.where(fine, own, 1 / max(1, own.size(1)))
