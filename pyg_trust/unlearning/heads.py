r"""Logistic heads: rows, objective, measured residual, and Newton's method.

One loop serves all classifiers that data is removed from: with a Hessian for
every step (:func:`minimize`), or with one of an earlier time that is corrected
on the way (``refine``). The result is only trusted by its residual, which
is measured, and from which :mod:`.shifts` derives the privacy of a release.
``docs/theory/certified_removal.rst`` has the objective and the certificate.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._checks import Natural, Positive, check_tensor, validated
from pyg_trust._progress import Bar
from pyg_trust.graph import sparse_rows

__all__ = ['minimize']

#: The loss, as saved states name it.
HEAD = 'ovr'
GAMMA_1 = 0.25
GAMMA_2 = 1 / (6 * math.sqrt(3))

UNIT = torch.finfo(torch.float64).eps / 2

# Rows of features, dense or sparse CSR #######################################


def gram(Z: Tensor) -> Tensor:
    r"""Compute :math:`Z Z^\top`, dense."""
    if Z.layout == torch.strided:
        return Z @ Z.t()
    made = _scipy(Z)
    return torch.from_numpy((made @ made.T).toarray())


def spectral_norm(Z: Tensor, K: Tensor | None = None) -> float:
    r"""Bound :math:`\lVert Z \rVert_2` from above, exact up to rounding.

    The root of the largest eigenvalue of the smaller Gram matrix, from all
    its eigenvalues, raised by :math:`10^{-12}` of it for rounding.
    """
    if K is None:
        narrow = Z.size(1) < Z.size(0) and Z.layout == torch.strided
        K = Z.t() @ Z if narrow else gram(Z)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    return math.sqrt(max(largest, 0.0)) * (1 + 1e-12)


def times(Z: Tensor, W: Tensor) -> Tensor:
    r"""Compute :math:`ZW`, for few columns: twice as fast from rows."""
    if Z.layout != torch.strided:
        return Z @ W
    return torch.nn.functional.linear(Z, W.t().contiguous())


def transposed_times(Z: Tensor, U: Tensor) -> Tensor:
    r"""Compute :math:`Z^\top U`, for few columns."""
    if Z.layout == torch.strided:
        return (U.t().contiguous() @ Z).t().contiguous()
    return torch.from_numpy(_scipy(Z).T @ U.numpy())


def max_row_norm(Z: Tensor) -> float:
    """Return the largest Euclidean norm of a row."""
    if Z.layout == torch.strided:
        return float(Z.norm(dim=1).max())
    return float(_scipy(Z).power(2).sum(axis=1).max()) ** 0.5


def keep_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Copy some rows, in the layout of :obj:`Z`."""
    if Z.layout == torch.strided:
        return Z[index]
    return _torch(_scipy(Z)[index.numpy()])


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Stack matrices below one another."""
    if parts[0].layout == torch.strided:
        return torch.cat(list(parts))
    return _torch(scipy.sparse.vstack([*map(_scipy, parts)], format='csr'))


def check_rows(Z: Tensor, K: Tensor | None = None) -> None:
    """Refuse a matrix or a Gram matrix of another layout, shape or dtype."""
    check_tensor('Z', Z, torch.float64, ('n', 'd'))
    if Z.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(
            f"'Z' needs to be dense or sparse CSR (got {Z.layout})"
        )
    entries = Z if Z.layout == torch.strided else Z.values()
    if not bool(entries.isfinite().all()):
        raise ValueError("'Z' needs to be finite (got NaN or infinity)")
    if K is not None:
        check_tensor('K', K, None, (Z.size(0), Z.size(0)), finite=True)


def _scipy(Z: Tensor) -> Any:
    held = Z.values(), Z.col_indices(), Z.crow_indices()
    return scipy.sparse.csr_matrix(
        tuple(part.numpy() for part in held), shape=tuple(Z.shape)
    )


def _torch(made: Any) -> Tensor:
    crow, col = torch.from_numpy(made.indptr), torch.from_numpy(made.indices)
    values = torch.from_numpy(made.data)
    return sparse_rows(crow.long(), col.long(), values, made.shape)


# Objectives ##################################################################


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
    """Interface of the problems that ``refine`` minimises."""

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


# Newton's method #############################################################


class Refined(NamedTuple):
    """Weights ``[d, C]``, their gradient, a factor, and the steps taken."""

    W: Tensor
    gradient: Gradient
    factor: Any
    iterations: int


def refine(
    problem: Problem,
    W: Tensor,
    tol: float,
    max_iter: int,
    *,
    start: Gradient | None = None,
    factor: Factor | None = None,
) -> Refined:
    r"""Step until the residual, rounding included, is at most :obj:`tol`.

    With a factor, quasi-Newton steps: the frozen Hessian, corrected by the
    steps taken so far (BFGS; Nocedal and Wright 2006, Algorithm 7.4), for
    every output by itself. A step is halved until it shortens the gradient.
    The factor is made anew where two steps in a row shorten it by less than
    4; without one, for every step (Newton's method). Ends early where rounding
    is all that is left.
    """
    found = _steps(problem, W, tol, max_iter, start, factor)
    if found.factor is None:
        found = found._replace(factor=problem.factor(found.W))
    return found


def _steps(
    problem: Problem,
    W: Tensor,
    tol: float,
    max_iter: int,
    start: Gradient | None = None,
    factor: Factor | None = None,
    strict: bool = True,
    bar: Bar | None = None,
) -> Refined:
    # Without `strict` the measured residual alone has to reach tol, and steps
    # continue below the rounding error while they shorten it.
    anew = factor is None
    gradient = problem.gradient(W) if start is None else start
    slow = iteration = 0
    # Steps and the changes of the gradient, the oldest first.
    past: list[Tensor] = []
    while iteration < max_iter:
        measured, upper = gradient.norm
        if (upper if strict else measured) <= tol:
            break
        if strict and measured <= upper - measured:
            break
        fresh = factor is None or slow == 2 or (anew and iteration > 0)
        if factor is None or fresh:
            factor, slow = problem.factor(W), 0
            past.clear()
        P = _step(gradient.value, factor, past)
        t = 1.0
        while t >= 2**-30:
            new = torch.sub(W, P, alpha=t)
            tried = problem.gradient(new)
            if tried.norm.measured <= (1 - 1e-4 * t) * measured:
                break
            t /= 2
        if t < 2**-30:
            if fresh:
                break
            # The corrections or the factor are outdated; a Newton step
            # shortens the gradient, as long as rounding lets it.
            slow = 2
            iteration += 1
            continue
        if not anew and tried.norm.upper > tol:
            change = tried.value - gradient.value
            past.append(torch.stack([new - W, change]))
        W, gradient = new, tried
        slow = slow + 1 if gradient.norm.measured > measured / 4 else 0
        iteration += 1
        if bar is not None:
            bar.update()
    return Refined(W, gradient, factor, iteration)


def _step(grad: Tensor, factor: Factor, past: list[Tensor]) -> Tensor:
    # The two-loop recursion, for every output by itself.
    least = torch.finfo(grad.dtype).tiny
    weights = []
    for step, change in reversed(past):
        curvature = (step * change).sum(0)
        # 0, which means no correction, where the curvature is not positive.
        inverse = (curvature > least) / curvature.clamp(min=least)
        weight = inverse * (step * grad).sum(0)
        grad = torch.addcmul(grad, weight, change, value=-1)
        weights.append((inverse, weight))
    P = factor.solve(grad)
    for (step, change), (inverse, weight) in zip(
        past, reversed(weights), strict=True
    ):
        P = torch.addcmul(P, weight - inverse * (change * P).sum(0), step)
    return P


@validated
def minimize(
    Z: Tensor,
    Y: Tensor,
    B: Tensor,
    lam: Positive,
    *,
    W: Tensor | None = None,
    K: Tensor | None = None,
    tol: Positive = 1e-10,
    max_iter: Natural = 100,
) -> Refined:
    r"""Minimise an objective by Newton's method, to a residual of :obj:`tol`.

    .. math::
        L_b(w, D) = \sum_{i=1}^n \left[ \log(1 + e^{-y_i w^\top z_i}) +
        \frac{\lambda}{2} \lVert w \rVert^2 \right] + b^\top w, \quad y_i
        \in \{-1, 1\},

    one column :math:`w` of :math:`W` per class. The residual is :math:`\lVert
    \nabla L_b \rVert_F`. A step is halved until it shortens the gradient,
    which converges from any start.

    Args:
        Z (Tensor): the features, float64, ``[n, d]``, dense or sparse CSR.
        Y (Tensor): the targets, -1 or 1, ``[n, C]`` for ``C`` classes.
        B (Tensor): the linear term, ``[d, C]``.
        lam (float): :math:`\lambda > 0`.
        W (Tensor, optional): where to start; by default zero.
        K (Tensor, optional): :math:`Z Z^\top`, if known.
        tol (float): the residual to reach; or the bound of rounding errors, if
            that is larger. (default: :obj:`1e-10`)
        max_iter (int): the most Newton steps. (default: :obj:`100`)

    Raises:
        RuntimeError: if the residual is still larger after all steps.
    """
    check_rows(Z, K)
    n, d = Z.shape
    check_tensor('Y', Y, torch.float64, (n, 'num_classes'))
    if not bool((Y.abs() == 1).all()):
        raise ValueError("'Y' needs to be -1 or 1 everywhere")
    shape = (d, Y.size(1))
    check_tensor('B', B, torch.float64, shape, finite=True)
    if W is not None:
        check_tensor('W', W, torch.float64, shape, finite=True)
    if n > d:
        K = None
    elif K is None:
        K = gram(Z)
    objective = Objective(Z, Y, lam * n, B, K=K)
    W = torch.zeros_like(B) if W is None else W
    with Bar(desc='Newton') as bar:
        found = _steps(objective, W, tol, max_iter, strict=False, bar=bar)
    norm, upper = found.gradient.norm
    if norm <= max(tol, upper - norm):
        return found
    if found.iterations == max_iter:
        raise RuntimeError(
            f'Newton did not reach {tol} in {max_iter} steps (got {norm:.3e})'
        )
    raise RuntimeError(
        f'Newton stopped at a residual of {norm:.3e}: the problem is too '
        f"ill-conditioned for 'lam' = {lam} and 'tol' = {tol}"
    )
