r"""Linear classifiers to remove from: objective, residual, exact solves.

The classifiers minimise, one column :math:`w` of :math:`W` per class,

.. math::
    L_b(w, D) = \sum_{i=1}^n \left[ \ell(w^\top z_i, y_i) + \frac{\lambda}{2}
    \lVert w \rVert^2 \right] + b^\top w, \quad y_i \in \{-1, 1\},

with :math:`\ell(a, y) = \log(1 + e^{-ya})` (logistic) or :math:`(a - y)^2`
(squared) and :math:`b \sim \mathcal{N}(0, \sigma^2 I)`. :math:`\mu = \lambda
n` multiplies the identity in the Hessian.

The privacy of a release follows from the residual in :mod:`.shifts`; the
residual after an update is bounded in :mod:`.removal_bounds`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_positive,
    check_tensor,
)
from pyg_trust.functional.ragged import pointer, ranges
from pyg_trust.graph import sparse_rows

LOSSES = ('logistic', 'squared')
# The largest second derivative.
CURVATURE = {'logistic': 0.25, 'squared': 2.0}


def loss_derivatives(
    margin: Tensor, y: Tensor, loss: str
) -> tuple[Tensor, Tensor]:
    r""":math:`\ell'` and :math:`\ell''` in the first argument.

    Args:
        margin (Tensor): :math:`w^\top z_i`.
        y (Tensor): the labels, -1 or 1, of the same shape.
        loss (str): :obj:`'logistic'` or :obj:`'squared'`.
    """
    if loss == 'logistic':
        probability = torch.sigmoid(-y * margin)
        return -y * probability, probability * (1 - probability)
    if loss == 'squared':
        return 2 * (margin - y), torch.full_like(margin, 2.0)
    raise ValueError(f"'loss' needs to be one of {LOSSES} (got {loss!r})")


def gradient(
    Z: Tensor, Y: Tensor, W: Tensor, B: Tensor, lam: float, loss: str
) -> Tensor:
    r""":math:`\nabla L_b(W, D) = Z^\top \ell'(ZW, Y) + \lambda n W + B`.

    Args:
        Z (Tensor): float64, ``[n, d]``, dense or sparse CSR.
        Y (Tensor): -1 or 1, ``[n, C]``.
        W (Tensor): ``[d, C]``.
        B (Tensor): the noise, ``[d, C]``.
        lam (float): :math:`\lambda`.
        loss (str): the loss.

    Returns:
        Tensor: ``[d, C]``.
    """
    first, _ = loss_derivatives(Z @ W, Y, loss)
    return _transposed_times(Z, first) + lam * Z.size(0) * W + B


class Residual(NamedTuple):
    """The Frobenius norm of the gradient.

    Args:
        measured (float): as computed.
        upper (float): with all that rounding can hide.
    """

    measured: float
    upper: float


def residual(
    Z: Tensor, Y: Tensor, W: Tensor, B: Tensor, lam: float, loss: str
) -> Residual:
    r"""Measures :math:`\lVert \nabla L_b(W, D) \rVert_F`, from above too.

    An inner product of :math:`m` numbers is off by at most :math:`m u |a|^\top
    |b|` with the unit roundoff :math:`u` (to first order; the constants leave
    room). That of :math:`Zw` passes through :math:`\ell'`, whose slope is at
    most :math:`c = \max \ell''`, and :math:`Z^\top`; so with Frobenius norms
    and :math:`d` the most numbers that a row stores, rounding hides at most

    .. math::
        u \left[ (n + 8) \lVert Z \rVert \lVert \ell' \rVert + c\, (d + 8)
        \lVert Z \rVert^2 \lVert W \rVert + 4 (\mu \lVert W \rVert + \lVert B
        \rVert) \right] .

    Args:
        Z (Tensor): as in :func:`gradient`.
        Y (Tensor): as in :func:`gradient`.
        W (Tensor): as in :func:`gradient`.
        B (Tensor): as in :func:`gradient`.
        lam (float): as in :func:`gradient`.
        loss (str): as in :func:`gradient`.
    """
    n, d = Z.shape
    if Z.layout == torch.strided:
        z = float(Z.norm())
    else:
        # Zeros that are not stored add no rounding.
        z, d = float(Z.values().norm()), int(Z.crow_indices().diff().max())
    first, _ = loss_derivatives(Z @ W, Y, loss)
    drift = lam * n * W
    measured = float((_transposed_times(Z, first) + drift + B).norm())
    unit = torch.finfo(torch.float64).eps / 2
    hidden = unit * (
        (n + 8) * z * float(first.norm())
        + CURVATURE[loss] * (d + 8) * z**2 * float(W.norm())
        + 4 * (float(drift.norm()) + float(B.norm()))
    )
    return Residual(measured, measured + hidden)


def gram(Z: Tensor) -> Tensor:
    r""":math:`Z Z^\top`, dense.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return Z @ Z.t()
    # Columns without a number add nothing.
    col = Z.col_indices()
    present = torch.zeros(Z.size(1), dtype=torch.bool, device=Z.device)
    present[col] = True
    place = present.cumsum(0) - 1
    narrow = Z.values().new_zeros((Z.size(0), int(present.sum())))
    narrow[_row(Z), place[col]] = Z.values()
    return narrow @ narrow.t()


def spectral_norm(Z: Tensor, K: Tensor | None = None) -> float:
    r"""An upper bound of :math:`\lVert Z \rVert_2`, exact up to rounding.

    The root of the largest eigenvalue of the smaller Gram matrix, from all
    its eigenvalues, raised by :math:`10^{-12}` of it for rounding. (Power
    iterations, which the paper's code uses, approach it from below and bound
    nothing.)

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
    """
    if K is None:
        narrow = Z.size(1) < Z.size(0) and Z.layout == torch.strided
        K = Z.t() @ Z if narrow else gram(Z)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    return math.sqrt(max(largest, 0.0)) * (1 + 1e-12)


def hessian_times(
    Z: Tensor, curvature: Tensor, mu: float, P: Tensor
) -> Tensor:
    r""":math:`H_c p_c = Z^\top (s_c \circ Z p_c) + \mu p_c` for every class.

    Args:
        Z (Tensor): as in :func:`gradient`.
        curvature (Tensor): :math:`s`, ``[n, C]``.
        mu (float): :math:`\mu`.
        P (Tensor): ``[d, C]``.
    """
    return _transposed_times(Z, curvature * (Z @ P)) + mu * P


def hessian_solve(
    Z: Tensor,
    curvature: Tensor,
    mu: float,
    right: Tensor,
    K: Tensor | None = None,
) -> Tensor:
    r"""Solves :math:`H_c p_c = r_c` for every class.

    With fewer rows than columns by Woodbury's identity,

    .. math::
        p = \frac{1}{\mu} \left[ r - Z^\top S (\mu I + S Z Z^\top S)^{-1} S Z
        r \right], \quad S = \operatorname{diag}(\sqrt{s}),

    else by Cholesky's decomposition of :math:`H`. Memory: :math:`C
    \min(n, d)^2`.

    Args:
        Z (Tensor): as in :func:`gradient`.
        curvature (Tensor): :math:`s`, ``[n, C]``, non-negative.
        mu (float): :math:`\mu > 0`.
        right (Tensor): :math:`r`, ``[d, C]``.
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)

    Returns:
        Tensor: ``[d, C]``.
    """
    _check_rows(Z, K)
    n, d = Z.shape
    check_tensor('curvature', curvature, None, (n, 'num_classes'))
    check_tensor('right', right, None, (d, curvature.size(1)))
    check_positive('mu', mu)
    if n <= d:
        K = gram(Z) if K is None else K
        root = curvature.sqrt()
        inner = root.t().unsqueeze(2) * K * root.t().unsqueeze(1)
        inner.diagonal(dim1=1, dim2=2).add_(mu)
        inside = (root * (Z @ right)).t().unsqueeze(2)
        factor = torch.linalg.cholesky(inner)
        solved = torch.cholesky_solve(inside, factor).squeeze(2).t()
        return (right - _transposed_times(Z, root * solved)) / mu
    dense = Z if Z.layout == torch.strided else Z.to_dense()
    hessian = torch.stack(
        [dense.t() @ (column.unsqueeze(1) * dense) for column in curvature.t()]
    )
    hessian.diagonal(dim1=1, dim2=2).add_(mu)
    factor = torch.linalg.cholesky(hessian)
    return torch.cholesky_solve(right.t().unsqueeze(2), factor).squeeze(2).t()


class Solution(NamedTuple):
    """The weights that :func:`minimize` found, and their residual.

    Args:
        W (Tensor): the weights, ``[d, C]``.
        residual (float): the Frobenius norm of the gradient.
        iterations (int): the number of Newton steps.
    """

    W: Tensor
    residual: float
    iterations: int


def minimize(
    Z: Tensor,
    Y: Tensor,
    B: Tensor,
    lam: float,
    loss: str = 'logistic',
    *,
    W: Tensor | None = None,
    K: Tensor | None = None,
    tol: float = 1e-10,
    max_iter: int = 100,
    progress_bar: bool = False,
) -> Solution:
    r"""Minimises :math:`L_b` by Newton's method, to a residual of :obj:`tol`.

    The residual is :math:`\lVert \nabla L_b \rVert_F`. A step is halved
    until it shortens the gradient. As :math:`\frac{d}{dt} \lVert \nabla
    L_b(w + tp) \rVert^2 = -2 \lVert \nabla L_b(w) \rVert^2` at :math:`t =
    0`, that ends, and the method converges from any start, without
    function values, whose differences cancel near the minimum.

    Args:
        Z (Tensor): as in :func:`gradient`.
        Y (Tensor): as in :func:`gradient`.
        B (Tensor): as in :func:`gradient`.
        lam (float): :math:`\lambda > 0`.
        loss (str): the loss. (default: :obj:`'logistic'`)
        W (Tensor, optional): where to start; by default zero.
            (default: :obj:`None`)
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
        tol (float): the residual to reach; or, if it is larger, what rounding
            can hide (:func:`residual`). (default: :obj:`1e-10`)
        max_iter (int): the most Newton steps. (default: :obj:`100`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Raises:
        RuntimeError: if neither is reached.
    """
    _check_rows(Z, K, finite=True)
    n, d = Z.shape
    check_tensor('Y', Y, torch.float64, (n, 'num_classes'))
    if not bool((Y.abs() == 1).all()):
        raise ValueError("'Y' needs to be -1 or 1 everywhere")
    shape = (d, Y.size(1))
    check_tensor('B', B, torch.float64, shape, finite=True)
    if W is not None:
        check_tensor('W', W, torch.float64, shape, finite=True)
    check_tensor('Z', Z, torch.float64, (n, d))
    check_choice('loss', loss, LOSSES)
    check_positive('tol', tol)
    check_integer('max_iter', max_iter, 0)
    mu = check_positive('lam', lam) * n
    if K is None and Z.size(0) <= Z.size(1):
        K = gram(Z)
    W = torch.zeros_like(B) if W is None else W
    margin = Z @ W
    first, second = loss_derivatives(margin, Y, loss)
    grad = _transposed_times(Z, first) + mu * W + B
    norm = float(grad.norm())
    iterations = range(max_iter + 1)
    for iteration in tqdm(iterations, disable=not progress_bar, desc='Newton'):
        if norm <= tol:
            return Solution(W, norm, iteration)
        if iteration == max_iter:
            break
        P = hessian_solve(Z, second, mu, grad, K)
        slope = Z @ P
        t = 1.0
        while True:
            tried, moved = W - t * P, margin - t * slope
            first, second = loss_derivatives(moved, Y, loss)
            grad = _transposed_times(Z, first) + mu * tried + B
            shorter = float(grad.norm())
            if shorter <= (1 - 1e-4 * t) * norm:
                break
            t /= 2
            if t < 2**-40:
                measured, upper = residual(Z, Y, W, B, lam, loss)
                if measured <= upper - measured:
                    return Solution(W, norm, iteration)
                raise RuntimeError(
                    f'Newton stopped at a residual of {norm:.3e}: the '
                    f"problem is too ill-conditioned for 'lam' = {lam} and "
                    f"'tol' = {tol}"
                )
        # Margins are not updated along the way, where rounding would pile up.
        W, norm, margin = tried, shorter, Z @ tried
    raise RuntimeError(
        f'Newton did not reach {tol} in {max_iter} steps (got {norm:.3e})'
    )


# Rows #######################################################################


def max_row_norm(Z: Tensor) -> float:
    """The largest Euclidean norm of a row.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return float(Z.norm(dim=1).max())
    squares = Z.values().new_zeros(Z.size(0))
    squares.index_add_(0, _row(Z), Z.values().square())
    return float(squares.max().sqrt())


def dense_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Some rows, dense.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    ends = Z.crow_indices().tolist()
    col, value = Z.col_indices(), Z.values()
    rows = value.new_zeros((index.numel(), Z.size(1)))
    for row, i in zip(rows, index.tolist(), strict=True):
        row[col[ends[i] : ends[i + 1]]] = value[ends[i] : ends[i + 1]]
    return rows


def replace_rows(Z: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """A copy with other rows at some places.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``: the places.
        rows (Tensor): of the layout of :obj:`Z`, ``[k, d]``.
    """
    if Z.layout == torch.strided:
        return Z.index_copy(0, index, rows)
    crow, new = Z.crow_indices(), rows.crow_indices()
    count = crow.diff().index_copy(0, index, new.diff())
    ends, starts = crow.tolist(), new.tolist()
    place = {row: k for k, row in enumerate(index.tolist())}

    def spliced(old: Tensor, added: Tensor) -> Tensor:
        cuts, last = [], 0
        for row in sorted(place):
            k = place[row]
            cuts.append(old[last : ends[row]])
            cuts.append(added[starts[k] : starts[k + 1]])
            last = ends[row + 1]
        return torch.cat([*cuts, old[last:]])

    return sparse_rows(
        pointer(count),
        spliced(Z.col_indices(), rows.col_indices()),
        spliced(Z.values(), rows.values()),
        (Z.size(0), Z.size(1)),
    )


def keep_rows(Z: Tensor, index: Tensor) -> Tensor:
    """A copy of some rows, in the layout of :obj:`Z`.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    crow = Z.crow_indices()
    count = crow.diff()[index]
    at = ranges(crow[index], count)
    return sparse_rows(
        pointer(count),
        Z.col_indices()[at],
        Z.values()[at],
        (index.numel(), Z.size(1)),
    )


def _check_rows(
    Z: Tensor, K: Tensor | None = None, *, finite: bool = False
) -> None:
    check_tensor('Z', Z, None, ('n', 'd'))
    if Z.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(
            f"'Z' needs to be dense or sparse CSR (got {Z.layout})"
        )
    entries = Z if Z.layout == torch.strided else Z.values()
    if finite and not bool(entries.isfinite().all()):
        raise ValueError("'Z' needs to be finite (got NaN or infinity)")
    if K is not None:
        check_tensor('K', K, None, (Z.size(0), Z.size(0)), finite=finite)


def _row(Z: Tensor) -> Tensor:
    rows = torch.arange(Z.size(0), device=Z.device)
    return rows.repeat_interleave(Z.crow_indices().diff())


def _transposed_times(Z: Tensor, U: Tensor) -> Tensor:
    if Z.layout == torch.strided:
        return Z.t() @ U
    count = Z.crow_indices().diff()
    columns = [
        torch.bincount(
            Z.col_indices(),
            Z.values() * column.repeat_interleave(count),
            minlength=Z.size(1),
        )
        for column in U.t()
    ]
    return torch.stack(columns, dim=1)
