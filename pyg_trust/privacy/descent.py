r"""Full-batch private gradient descent on single rows.

Each step adds noise to the sum of the clipped gradients of all training rows.
A row that is removed moves the sum by at most :math:`C`, a replaced one
by at most :math:`2 C`: :math:`T` steps are one Gaussian release. Sums
are of integers on the grid of the noise, and a model's output for a row can't
depend on any other row. The proof is in the documentation, "Private
aggregation".
"""

import math
from typing import Annotated, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from pyg_trust._checks import (
    REAL,
    Array,
    Count,
    Positive,
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


@validated
def descent_noise(mu: Positive, steps: Count, form: str = 'withdraw') -> float:
    r"""Return :math:`z = \sqrt{T} / \mu`, or twice this to replace a row."""
    return (2 if form == 'replace' else 1) * math.sqrt(steps) / mu


def unit_rows(x: Tensor) -> Any:
    """Normalise dense or sparse rows to norm 1, each by itself, in float64.

    Rows with an entry that is not finite count as zero. The result is sparse
    if few entries are not zero.
    """
    check_tensor('x', x, REAL, ('num_rows', 'num_columns'))
    rows, dense = _matrix(x)
    values = np.where(np.isfinite(rows.data), rows.data, 0.0)
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    bad, largest = np.zeros(rows.shape[0], dtype=bool), np.zeros(rows.shape[0])
    bad[row[~np.isfinite(rows.data)]] = True
    np.maximum.at(largest, row, np.abs(values))
    unit = values / np.where(largest > 0, largest, 1.0)[row]
    # Squares are added one after another: no row changes another's rounding.
    norm = np.sqrt(np.bincount(row, unit**2, minlength=rows.shape[0]))
    unit = unit / np.maximum(norm, 1.0)[row]
    unit[bad[row]] = 0.0
    made = scipy.sparse.csr_array(
        (unit * (1 - MARGIN), rows.indices, rows.indptr), rows.shape
    )
    return made.toarray() if dense else made


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
        return nn.functional.cross_entropy(out, label[None])

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


@validated
def private_descent(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Noise,
    noise_multiplier: Positive,
    *,
    steps: Count = 60,
    lr: Positive = 0.1,
    max_grad_norm: Positive = 1.0,
) -> None:
    r"""Train any model on single rows by noisy full-batch steps of Adam."""
    C, std = max_grad_norm, noise_multiplier * max_grad_norm
    learned = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=lr)
    for _ in range(steps):
        total = clipped_sums(module, x, y, C, std)
        for parameter, sums in zip(learned, total, strict=True):
            cells = noise.cells(tuple(sums.shape)).numpy()
            noisy = torch.from_numpy(released(sums.numpy(), cells, std))
            parameter.grad = (noisy / max(1, x.size(0))).to(parameter)
        optimizer.step()
    optimizer.zero_grad()


def _matrix(x: Tensor) -> tuple[Any, bool]:
    # Rows in float64, and whether they are better kept dense.
    if x.layout == torch.strided:
        matrix = scipy.sparse.csr_array(x.detach().cpu().double().numpy())
        return matrix, matrix.nnz >= _SPARSE * x.numel()
    coo = x.detach().cpu().to_sparse_coo().coalesce()
    row, col = coo.indices().numpy()
    at = coo.values().double().numpy(), (row, col)
    return scipy.sparse.csr_array(at, shape=tuple(x.shape)), False
