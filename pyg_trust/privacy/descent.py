"""Full-batch private gradient descent on single rows.

Each step adds noise to the sum of clipped gradients of all training rows.
Proofs are in the documentation, "Private aggregation".
"""

import math
from copy import deepcopy
from typing import Annotated, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as graph_norms

from pyg_trust import rng
from pyg_trust._checks import (
    REAL,
    Array,
    Count,
    Positive,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust.privacy.mechanisms import clip_factors
from pyg_trust.privacy.propagation import MARGIN, Noise
from pyg_trust.verify.release import check_sum, fits_float, released, truncated

# Bits of rows after and before the binary point. More bits would leave fewer
# for errors, as the product of both lies on the grid of the noise.
_BITS, _MORE = 13, 11
# Denser rows are kept as they are.
_SPARSE = 0.1
_CHUNK = 1024
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


@validated
def descent_noise(
    mu: Positive, steps: Count, neighboring: str = 'add_remove'
) -> float:
    r"""Return :math:`z = \sqrt{T} / \mu`, or twice this to replace a row."""
    return (2 if neighboring == 'replace' else 1) * math.sqrt(steps) / mu


def unit_rows(x: Tensor) -> Any:
    """Normalise dense or sparse rows to norm 1, each by itself, in float64.

    Rows with an entry that is not finite count as zero. The result is sparse
    if few entries are not zero.
    """
    check_tensor('x', x, REAL, ('num_rows', 'num_columns'))
    x = x.detach().cpu().double()
    if x.layout == torch.strided:
        values = x.numpy()
        if np.count_nonzero(values) >= _SPARSE * values.size:
            fine = np.isfinite(values).all(1, keepdims=True)
            values = np.where(fine, values, 0.0)
            largest = np.abs(values).max(1, keepdims=True, initial=0.0)
            unit = values / np.where(largest > 0, largest, 1.0)
            # Squares are added one after another, here and below: no row
            # changes another's rounding.
            norm = np.sqrt(np.cumsum(unit * unit, 1)[:, -1:])
            return unit / np.maximum(norm, 1.0) * (1 - MARGIN)
        rows = scipy.sparse.csr_array(values)
    else:
        coo = x.to_sparse_coo().coalesce()
        at = coo.values().numpy(), tuple(coo.indices().numpy())
        rows = scipy.sparse.csr_array(at, shape=tuple(x.shape))
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    bad, largest = np.zeros(rows.shape[0], dtype=bool), np.zeros(rows.shape[0])
    bad[row[~np.isfinite(rows.data)]] = True
    values = np.where(bad[row], 0.0, rows.data)
    np.maximum.at(largest, row, np.abs(values))
    unit = values / np.where(largest > 0, largest, 1.0)[row]
    norm = np.sqrt(np.bincount(row, unit**2, minlength=rows.shape[0]))
    unit = unit / np.maximum(norm, 1.0)[row] * (1 - MARGIN)
    return scipy.sparse.csr_array(
        (unit, rows.indices, rows.indptr), rows.shape
    )


def whole_rows(x: Any) -> Any:
    r"""Round rows to integers, :math:`t(2^{13} x)`, in float64.

    Numbers beyond :math:`2^{11}` are cut, and a row with an entry that is not
    finite counts as zero.
    """
    whole = x.copy()
    if scipy.sparse.issparse(whole):
        values = whole.data
        row = np.repeat(np.arange(whole.shape[0]), np.diff(whole.indptr))
        bad = np.isin(row, row[~np.isfinite(values)])
    else:
        values, bad = whole, ~np.isfinite(whole).all(1)
    values[bad] = 0.0
    np.clip(values, -(2.0**_MORE), 2.0**_MORE, out=values)
    values *= 2.0**_BITS
    np.trunc(values, out=values)
    return whole


@validated
def linear_sums(
    rows: Any, error: np.ndarray, max_grad_norm: Positive, std: float
) -> np.ndarray:
    r"""Sum the clipped gradients of a linear model on the grid of noise.

    With logits :math:`x^\top W + b` and cross-entropy the gradient of a row
    is :math:`(x, 1) \otimes e`, :math:`e = p - y`, whose norm is
    :math:`\sqrt{1 + \|x\|^2}\, \|e\|`: no gradient is written out.
    """
    C = max_grad_norm
    unit = 2.0**_BITS
    squares = np.asarray((rows * rows).sum(1)).ravel() / unit**2
    norms = np.sqrt(1 + squares) * np.sqrt(np.square(error).sum(1))
    factors = clip_factors(torch.from_numpy(norms), C).numpy()
    factors = factors * (1 - MARGIN) / unit
    # 0 * infinity would be NaN.
    error = np.where(factors[:, None] > 0, error, 0.0)
    alpha = truncated(error * factors[:, None], std)
    check_sum(rows.shape[0] * C, std, 'noise_multiplier')
    if not fits_float(rows.shape[0] * C, std):
        alpha, rows = alpha.astype(np.int64), rows.astype(np.int64)
    total = alpha.sum(0)[None] * int(unit)
    return np.concatenate([rows.T @ alpha, total])


def linear_logits(rows: Any, weight: np.ndarray) -> np.ndarray:
    """Compute logits of whole rows exactly, weights rounded to a grid."""
    # Coarse enough that sums of integer products stay below 2^53.
    largest = max(float(np.abs(weight).max(initial=0.0)), 2.0**-900)
    room = 2.0**52 / (weight.shape[0] * 2.0 ** (_BITS + _MORE))
    unit = 2.0 ** math.floor(math.log2(room / largest))
    whole = np.rint(weight * unit)
    sums = rows @ whole[:-1] + 2.0**_BITS * whole[-1]
    return sums * (2.0**-_BITS / unit)


@validated
def private_linear(
    x: Any,
    y: np.ndarray,
    num_classes: Count,
    noise: Noise,
    noise_multiplier: Positive,
    *,
    steps: Count = 60,
    lr: Positive = 0.1,
    max_grad_norm: Positive = 1.0,
    start: np.ndarray | None = None,
) -> np.ndarray:
    r"""Train a linear model by noisy full-batch steps of Adam.

    It begins with the weights :obj:`start`, which are public, or zeros.
    """
    C, std = max_grad_norm, noise_multiplier * max_grad_norm
    shape = (x.shape[1] + 1, num_classes)
    weight = torch.zeros(shape, dtype=torch.float64)
    if start is not None:
        weight = torch.from_numpy(np.array(start, dtype=np.float64))
        check_tensor('start', weight, torch.float64, shape)
    target, rows = np.eye(num_classes)[y], whole_rows(x)
    optimizer = torch.optim.Adam([weight], lr=lr)
    for _ in range(steps):
        logits = torch.from_numpy(linear_logits(rows, weight.numpy()))
        error = logits.softmax(1).numpy() - target
        sums = linear_sums(rows, error, C, std)
        total = released(sums, noise.cells(shape).numpy(), std)
        weight.grad = torch.from_numpy(total / max(1, x.shape[0]))
        optimizer.step()
    return weight.numpy()


def row_outputs(module: nn.Module, x: Tensor) -> Tensor:
    """Run a model on each row alone."""
    call = torch.func.vmap(lambda row: module(row[None])[0])
    with torch.no_grad():
        return torch.cat([call(part) for part in x.split(_CHUNK)])


@validated
def clipped_sums(
    module: nn.Module,
    x: Annotated[Tensor, Array(REAL, 'num_rows', 'num_columns')],
    y: Annotated[Tensor, Array(torch.int64, 'num_rows')],
    max_grad_norm: Positive,
    std: float,
) -> list[Tensor]:
    """Sum the clipped gradients of cross-entropy, on the grid of a noise."""
    learned = {k: p for k, p in module.named_parameters() if p.requires_grad}

    def objective(
        values: dict[str, Tensor], row: Tensor, label: Tensor
    ) -> Tensor:
        out = torch.func.functional_call(module, values, (row[None],))
        return F.cross_entropy(out, label[None])

    each = torch.func.vmap(
        torch.func.grad(objective),
        in_dims=(None, 0, 0),
        randomness='different',
    )
    values = {k: p.detach() for k, p in learned.items()}
    check_sum(x.size(0) * max_grad_norm, std, 'noise_multiplier')
    total = [torch.zeros(p.shape, dtype=torch.int64) for p in values.values()]
    for rows, labels in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
        grads = [g.double() for g in each(values, rows, labels).values()]
        flat = torch.cat([g.flatten(1) for g in grads], 1)
        # Scaled by the largest entry first, as the square of 1e200 overflows.
        largest = flat.abs().amax(1).clamp(min=1e-300)
        norms = largest * (flat / largest[:, None]).square().sum(1).sqrt()
        factors = clip_factors(norms, max_grad_norm) * (1 - MARGIN)
        for place, gradient in zip(total, grads, strict=True):
            shape = (-1, *[1] * (gradient.dim() - 1))
            weight = factors.view(shape)
            kept = torch.where(weight > 0, gradient, 0.0).mul(weight)
            whole = truncated(kept.cpu().numpy(), std).astype(np.int64)
            place += torch.from_numpy(whole).sum(0)
    return total


# Models on single rows, and how a classifier trains them ####################


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
        learned = [p for p in module.train().parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(learned, lr=lr)
        for _ in range(steps):
            total = clipped_sums(module, rows, y, 1.0, noise_multiplier)
            for parameter, sums in zip(learned, total, strict=True):
                cells = source.cells(tuple(sums.shape)).numpy()
                made = released(sums.numpy(), cells, noise_multiplier)
                noisy = torch.from_numpy(made) / max(1, rows.size(0))
                parameter.grad = noisy.to(parameter)
            optimizer.step()
        optimizer.zero_grad()
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
