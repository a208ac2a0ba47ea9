"""Logistic heads of classifiers: objective, measured residual, Hessian.

``docs/theory/certified_removal.rst`` has the objective and the certificate
that follows from its residual.
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyg_trust.unlearning.rows import times, transposed_times

__all__ = [
    'GAMMA_1',
    'GAMMA_2',
    'HEAD',
    'UNIT',
    'Factor',
    'Gradient',
    'Objective',
    'Problem',
    'Residual',
    'curvatures',
    'hidden',
    'norm',
    'slopes',
    'targets',
]

#: The loss, as saved states name it.
HEAD = 'ovr'
GAMMA_1 = 0.25
GAMMA_2 = 1 / (6 * math.sqrt(3))

UNIT = torch.finfo(torch.float64).eps / 2


def targets(y: Tensor, num_classes: int) -> Tensor:
    """Encode classes as targets of the outputs: ``[n, num_outputs]``."""
    first = 1 if num_classes == 2 else 0
    hot = y.unsqueeze(1) == torch.arange(first, num_classes)
    return torch.where(hot, 1.0, -1.0).double() * (y >= 0).unsqueeze(1)


def slopes(margin: Tensor, Y: Tensor) -> Tensor:
    """Differentiate the loss in the margins; 0 for rows of targets 0."""
    other = -Y
    return torch.mul(other, margin).sigmoid_().mul_(other)


def curvatures(margin: Tensor, Y: Tensor) -> Tensor:
    """Differentiate the loss twice, for every output by itself."""
    p = torch.sigmoid(margin)
    return p * (1 - p) * Y.abs()


class Residual(NamedTuple):
    """The Frobenius norm of the gradient: as computed, and with rounding."""

    measured: float
    upper: float


def hidden(
    z: float, g: float, w: float, sizes: tuple[int, int, int], drift: float
) -> float:
    r"""Bound the rounding error of :math:`Z^\top G(ZW)` plus a drift.

    An inner product of :math:`m` numbers is off by at most :math:`m u |a|^\top
    |b|` with the unit roundoff :math:`u` (to first order; the constants leave
    room). That of :math:`Zw` passes through :math:`G`, whose Lipschitz
    constant is :math:`\gamma_1`, and :math:`Z^\top`; slopes are computed from
    exponentials, which are off by a few units, absolutely. So with Frobenius
    norms and :math:`C` outputs rounding hides at most

    .. math::
        u \left[ (n + 8) \lVert Z \rVert \lVert G \rVert + \gamma_1 (d + 8)
        \lVert Z \rVert^2 \lVert W \rVert + \sqrt{n} (8 \sqrt{C} + C) \lVert Z
        \rVert + 4\, \text{drift} \right] .
    """
    n, d, outputs = sizes
    slope = math.sqrt(n) * (8 * math.sqrt(outputs) + outputs)
    return UNIT * (
        (n + 8) * z * g + GAMMA_1 * (d + 8) * z**2 * w + z * slope + 4 * drift
    )


def norm(matrix: Tensor) -> float:
    """Return the Frobenius norm of a dense or sparse CSR matrix."""
    held = matrix.values() if matrix.layout == torch.sparse_csr else matrix
    return float(torch.linalg.vector_norm(held))


class Factor(NamedTuple):
    r"""Factored Hessians of all outputs, possibly of an earlier time.

    They may come from rows that were removed since, so they are secret; no
    certificate depends on them. ``lower`` are Cholesky factors of the
    Hessians, or with ``rows`` :math:`Z, \sqrt{s}` of :math:`\mu I + S Z Z^\top
    S`, :math:`S = \operatorname{diag}(\sqrt{s})`, of the curvatures :math:`s`.
    """

    lower: Tensor
    mu: float
    rows: tuple[Tensor, Tensor] | None = None

    def solve(self, right: Tensor) -> Tensor:
        """Solve for every output: ``[d, num_outputs]``."""
        if self.rows is not None:
            # Woodbury's identity: p = (r - Z'S (mu + S ZZ' S)^-1 S Z r) / mu.
            Z, root = self.rows
            inside = (root * (Z @ right)).t().unsqueeze(2)
            inside = torch.cholesky_solve(inside, self.lower)
            inner = root * inside.squeeze(2).t()
            return (right - transposed_times(Z, inner)) / self.mu
        columns = right.t().unsqueeze(2).contiguous()
        return torch.cholesky_solve(columns, self.lower).squeeze(2).t()


class Gradient(NamedTuple):
    """A gradient and its norm."""

    value: Tensor
    norm: Residual


class Problem(Protocol):
    """Interface of the problems that :func:`.newton.refine` minimises."""

    def gradient(self, W: Tensor) -> Gradient:
        """Return the gradient, with a bound of its error."""

    def factor(self, W: Tensor) -> Factor:
        """Return factored Hessians."""


class Objective(NamedTuple):
    r"""Objective :math:`L(\cdot, D)` of the present rows.

    ``Z`` is float64, ``[n, d]``, dense or sparse CSR; rows that do not count
    are 0, as are their targets ``Y``. ``mu`` is :math:`\lambda n`, ``B`` the
    linear term, ``size`` the norm of ``Z`` and ``K`` its inner products, if
    they are known.
    """

    Z: Tensor
    Y: Tensor
    mu: float
    B: Tensor | None = None
    size: float | None = None
    K: Tensor | None = None

    def gradient(self, W: Tensor) -> Gradient:
        r"""Compute :math:`\nabla L(W, D)`, and bound what rounding hides."""
        G = slopes(times(self.Z, W), self.Y)
        value = transposed_times(self.Z, G) + self.mu * W
        weight = norm(W)
        drift = self.mu * weight
        if self.B is not None:
            value, drift = value + self.B, drift + norm(self.B)
        n, d = self.Z.shape
        if self.Z.layout == torch.sparse_csr:
            # Zeros that are not stored add no rounding.
            d = int(self.Z.crow_indices().diff().max())
        size = norm(self.Z) if self.size is None else self.size
        measured, sizes = norm(value), (n, d, W.size(1))
        upper = measured + hidden(size, norm(G), weight, sizes, drift)
        return Gradient(value, Residual(measured, upper))

    def times(self, W: Tensor, P: Tensor) -> Tensor:
        """Multiply the Hessian at :obj:`W` by a matrix."""
        change = curvatures(self.Z @ W, self.Y) * (self.Z @ P)
        return transposed_times(self.Z, change) + self.mu * P

    def factor(self, W: Tensor) -> Factor:
        r"""Factor the Hessians :math:`Z^\top S_c^2 Z + \mu I` at :obj:`W`."""
        Z, curvature = self.Z, curvatures(self.Z @ W, self.Y)
        if self.K is not None:
            root = curvature.sqrt()
            hessian = root.t().unsqueeze(2) * self.K * root.t().unsqueeze(1)
            rows: tuple[Tensor, Tensor] | None = (Z, root)
        else:
            dense, rows = (
                Z if Z.layout == torch.strided else Z.to_dense(),
                None,
            )
            hessian = torch.stack(
                [dense.t() @ (s.unsqueeze(1) * dense) for s in curvature.t()]
            )
        hessian.diagonal(dim1=1, dim2=2).add_(self.mu)
        return Factor(torch.linalg.cholesky(hessian), self.mu, rows=rows)
