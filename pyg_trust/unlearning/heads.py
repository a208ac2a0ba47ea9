r"""Linear heads of classifiers: objective, measured residual, Hessian.

With the rows :math:`z_i` of the training nodes, :math:`n` of them *now*,

.. math::
    L(W, D) = \sum_{i=1}^n \ell(W^\top z_i, y_i) + \frac{\lambda n}{2} \lVert
    W \rVert_F^2 + \langle B, W \rangle, \qquad
    \nabla L = Z^\top G + \lambda n W + B, \quad G = \partial \ell / \partial
    a, \quad a = W^\top z .

=========== ============================== ================ =================
head        :math:`\ell`                   :math:`\gamma_1` :math:`\gamma_2`
=========== ============================== ================ =================
``ovr``     logistic, one versus the rest  1/4              :math:`1/(6\sqrt3)`
``softmax`` cross entropy                  1/2              :math:`1/\sqrt2`
``squared`` :math:`\sum_c (a_c - y_c)^2`   2                0
=========== ============================== ================ =================

:math:`\gamma_1` and :math:`\gamma_2` are Lipschitz constants of :math:`G` and
of the Hessian in :math:`a`. For ``softmax`` the Hessian is
:math:`\operatorname{diag}(p) - pp^\top \preceq I/2`, and :math:`|D^3 \ell[u,
h, h]| = |\operatorname{E}_p (u - \operatorname{E}u)(h - \operatorname{E}h)^2|
\le (\max u - \min u) \operatorname{Var}_p(h) \le \sqrt2 \lVert u \rVert \cdot
\lVert h \rVert^2 / 2`. ``ovr`` and ``squared`` have one output for two classes
and one per class for more, :math:`y_c = \pm 1`.

**The certificate.** :math:`L` is :math:`\lambda n`-strongly convex, so for
*any* :math:`W`

.. math::
    \lVert W - W^* \rVert_F \le \frac{\lVert \nabla L(W, D') \rVert_F}
    {\lambda n'}, \qquad W^* = \arg\min L(\cdot, D'),

by :math:`\langle \nabla L(W) - \nabla L(W^*), W - W^* \rangle \ge \lambda n'
\lVert W - W^* \rVert^2` and :math:`\nabla L(W^*) = 0`. The residual is
*measured* (``Objective.gradient``), with all that rounding can hide; the
way to :math:`W` plays no part.

**The step.** :math:`H p = -\nabla L(W, D')`, the *full* present gradient. The
papers solve for the change of the gradient (Guo et al. 2020, Chien et al.
2022, Yi and Wei 2025) and carry what was left for ever, so that their bounds
add up until they have to retrain; here what was left is corrected with the
next step and nothing adds up. Since any :math:`p` may be used, :math:`H` is
the factored Hessian of an earlier time (``Factor``).
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyg_trust._checks import Positive, check_tensor, validated
from pyg_trust.ops import loss_gradient
from pyg_trust.unlearning.rows import check_rows, gram, transposed_times

HEADS = ('ovr', 'softmax', 'squared')
# The losses of classifiers with an output per class, and their heads.
LOSSES = {'logistic': 'ovr', 'squared': 'squared'}
GAMMA_1 = {'ovr': 0.25, 'softmax': 0.5, 'squared': 2.0}
GAMMA_2 = {
    'ovr': 1 / (6 * math.sqrt(3)),
    'softmax': 1 / math.sqrt(2),
    'squared': 0.0,
}

# Up to this number of weights the whole Hessian of softmax is factored.
JOINT_LIMIT = 1024
# Up to this number of columns a Hessian that is kept is inverted.
INVERSE_LIMIT = 256

UNIT = torch.finfo(torch.float64).eps / 2


def targets(y: Tensor, num_classes: int, head: str) -> Tensor:
    """Encode classes as targets of the outputs: ``[n, num_outputs]``.

    Args:
        y (Tensor): int64, ``[n]``: classes, from 0; -1 for a row that does
            not count, whose targets are 0.
        num_classes (int): at least 2.
        head (str): a loss of the table above.
    """
    there = (y >= 0).unsqueeze(1)
    if head == 'softmax':
        hot = torch.nn.functional.one_hot(y.clamp(min=0), num_classes)
        return hot.double() * there
    first = 1 if num_classes == 2 else 0
    hot = y.unsqueeze(1) == torch.arange(first, num_classes)
    return torch.where(hot, 1.0, -1.0).double() * there


def slopes(margin: Tensor, Y: Tensor, head: str) -> Tensor:
    """Differentiate the loss in the margins; 0 for rows of targets 0.

    Args:
        margin (Tensor): ``[n, num_outputs]``.
        Y (Tensor): the result of :func:`targets`.
        head (str): a loss of the table above.
    """
    if head == 'ovr':
        other = -Y
        return torch.mul(other, margin).sigmoid_().mul_(other)
    if head == 'softmax':
        return margin.softmax(1) * Y.sum(1, keepdim=True) - Y
    return 2 * (margin - Y) * Y.abs()


def curvatures(margin: Tensor, Y: Tensor, head: str) -> Tensor:
    """Differentiate the loss twice, for every output by itself.

    Args:
        margin (Tensor): ``[n, num_outputs]``.
        Y (Tensor): the result of :func:`targets`.
        head (str): ``'ovr'`` or ``'squared'``.
    """
    if head == 'ovr':
        p = torch.sigmoid(margin)
        return p * (1 - p) * Y.abs()
    return 2 * Y.abs()


def curved(margin: Tensor, Y: Tensor, head: str, change: Tensor) -> Tensor:
    """Differentiate :func:`slopes` along a change of the margins.

    Args:
        margin (Tensor): ``[n, num_outputs]``.
        Y (Tensor): the result of :func:`targets`.
        head (str): a loss of the table above.
        change (Tensor): as :obj:`margin`.
    """
    if head == 'softmax':
        p = margin.softmax(1)
        mean = (p * change).sum(1, keepdim=True)
        return p * (change - mean) * Y.sum(1, keepdim=True)
    return curvatures(margin, Y, head) * change


class Residual(NamedTuple):
    """The Frobenius norm of the gradient.

    Args:
        measured (float): as computed.
        upper (float): with all that rounding can hide.
    """

    measured: float
    upper: float


def hidden(
    Z: Tensor,
    G: Tensor,
    W: Tensor,
    head: str,
    drift: float = 0.0,
    size: float | None = None,
    weight: float | None = None,
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

    Args:
        Z (Tensor): ``[n, d]``.
        G (Tensor): the slopes, ``[n, num_outputs]``.
        W (Tensor): the weights, ``[d, num_outputs]``.
        head (str): a loss of the table above.
        drift (float): the norm of what is added. (default: :obj:`0.0`)
        size (float, optional): the norm of :obj:`Z`, if known.
            (default: :obj:`None`)
        weight (float, optional): that of :obj:`W`, if known.
            (default: :obj:`None`)
    """
    return hidden_by(
        _norm(Z) if size is None else size,
        _norm(G),
        _norm(W) if weight is None else weight,
        (G.size(0), W.size(0), G.size(1)),
        head,
        drift,
    )


def hidden_by(
    z: float,
    g: float,
    w: float,
    sizes: tuple[int, int, int],
    head: str,
    drift: float,
) -> float:
    """Bound the same rounding error as :func:`hidden`, from norms."""
    # Every entry of a row of slopes may be off by a few units, and by one more
    # for every output that softmax sums.
    n, d, outputs = sizes
    slope = math.sqrt(n) * (8 * math.sqrt(outputs) + outputs)
    return UNIT * (
        (n + 8) * z * g
        + GAMMA_1[head] * (d + 8) * z**2 * w
        + z * slope
        + 4 * drift
    )


def _norm(matrix: Tensor) -> float:
    held = matrix.values() if matrix.layout == torch.sparse_csr else matrix
    return float(torch.linalg.vector_norm(held))


def _sizes(matrix: Tensor) -> list[float]:
    return torch.linalg.vector_norm(matrix, dim=0).tolist()


class Factor(NamedTuple):
    r"""A factored Hessian, possibly of an earlier time: *frozen*.

    It may come from rows that were removed since: it is secret, and a new
    factorisation drops them. No certificate depends on it.

    Args:
        kind (str): ``'classes'``: a Hessian for every output; ``'shared'``:
            one for all; ``'joint'``: one of all outputs together;
            ``'majoriser'``: :math:`\frac12 Z^\top Z + \mu` across classes
            and :math:`\mu` along their sum; ``'rows'``: for every output
            :math:`\mu I + S Z Z^\top S`, :math:`S = \operatorname{diag}
            (\sqrt{s})`, of the curvatures :math:`s`.
        lower (Tensor): Cholesky factors.
        mu (float): of the Hessian.
        inverse (Tensor, optional): of the Hessians, which is faster to
            multiply by again and again. (default: :obj:`None`)
        rows (tuple[Tensor, Tensor], optional): :math:`Z` and
            :math:`\sqrt{s}` of ``'rows'``. (default: :obj:`None`)
    """

    kind: str
    lower: Tensor
    mu: float
    inverse: Tensor | None = None
    rows: tuple[Tensor, Tensor] | None = None

    @property
    def separate(self) -> bool:
        """Whether the outputs are independent problems."""
        return self.kind in ('classes', 'shared', 'rows')

    def solve(self, right: Tensor) -> Tensor:
        """Solve for every output: ``[d, num_outputs]``."""
        if self.rows is not None:
            # Woodbury's identity: p = (r - Z'S (mu + S ZZ' S)^-1 S Z r) / mu.
            Z, root = self.rows
            inside = (root * (Z @ right)).t().unsqueeze(2)
            inside = torch.cholesky_solve(inside, self.lower)
            inner = root * inside.squeeze(2).t()
            return (right - transposed_times(Z, inner)) / self.mu
        if self.kind == 'classes':
            columns = right.t().unsqueeze(2).contiguous()
            if self.inverse is not None:
                solved = torch.bmm(self.inverse, columns)
            else:
                solved = torch.cholesky_solve(columns, self.lower)
            return solved.squeeze(2).t()
        if self.kind == 'joint':
            flat = right.t().reshape(-1, 1)
            solved = torch.cholesky_solve(flat, self.lower)
            return solved.view(right.size(1), -1).t()
        if self.kind == 'shared':
            return torch.cholesky_solve(right, self.lower)
        along = right.mean(1, keepdim=True)
        across = torch.cholesky_solve(right - along, self.lower)
        return across + along / self.mu

    def kept(self) -> 'Factor':
        """Return a factor for many solves: with inverses, where small."""
        if self.kind != 'classes' or self.lower.size(-1) > INVERSE_LIMIT:
            return self
        inverse = torch.cholesky_inverse(self.lower)
        # Converted from column-major to row-major once.
        return self._replace(inverse=inverse.contiguous())


def factor_curved(
    Z: Tensor, curvature: Tensor, mu: float, K: Tensor | None = None
) -> Factor:
    r"""Factor :math:`Z^\top \operatorname{diag}(s_c) Z + \mu I` per output.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        curvature (Tensor): :math:`s`, ``[n, num_outputs]``.
        mu (float): :math:`\mu`.
        K (Tensor, optional): :func:`~.rows.gram` of :obj:`Z`, to work with
            :math:`n \times n` matrices. (default: :obj:`None`)
    """
    if K is not None:
        root = curvature.sqrt()
        inner = root.t().unsqueeze(2) * K * root.t().unsqueeze(1)
        inner.diagonal(dim1=1, dim2=2).add_(mu)
        lower = torch.linalg.cholesky(inner)
        return Factor('rows', lower, mu, rows=(Z, root))
    dense = Z if Z.layout == torch.strided else Z.to_dense()
    hessian = torch.stack(
        [dense.t() @ (column.unsqueeze(1) * dense) for column in curvature.t()]
    )
    hessian.diagonal(dim1=1, dim2=2).add_(mu)
    return Factor('classes', torch.linalg.cholesky(hessian), mu)


@validated
def hessian_solve(
    Z: Tensor,
    curvature: Tensor,
    mu: Positive,
    right: Tensor,
    K: Tensor | None = None,
) -> Tensor:
    r"""Solve :math:`H_c p_c = r_c` for every class.

    Here :math:`H_c = Z^\top \operatorname{diag}(s_c) Z + \mu I`. With fewer
    rows than columns by Woodbury's identity,

    .. math::
        p = \frac{1}{\mu} \left[ r - Z^\top S (\mu I + S Z Z^\top S)^{-1} S Z
        r \right], \quad S = \operatorname{diag}(\sqrt{s}),

    else by Cholesky's decomposition of :math:`H`. Memory: :math:`C
    \min(n, d)^2`.

    Args:
        Z (Tensor): float64, ``[n, d]``, dense or sparse CSR.
        curvature (Tensor): :math:`s`, ``[n, C]``, non-negative.
        mu (float): :math:`\mu > 0`.
        right (Tensor): :math:`r`, ``[d, C]``.
        K (Tensor, optional): :math:`Z Z^\top`, if known.
            (default: :obj:`None`)

    Returns:
        Tensor: ``[d, C]``.
    """
    check_rows(Z, K)
    n, d = Z.shape
    check_tensor('curvature', curvature, None, (n, 'num_classes'))
    check_tensor('right', right, None, (d, curvature.size(1)))
    if n > d:
        K = None
    elif K is None:
        K = gram(Z)
    return factor_curved(Z, curvature, mu, K).solve(right)


class Gradient(NamedTuple):
    """A gradient and its norm.

    Args:
        value (Tensor): ``[d, num_outputs]``.
        norm (Residual): its norm, as computed and with all that may be
            missing.
        sizes (tuple[float, ...]): the norms of its columns, as computed;
            none if there was no pass over all rows. (default: :obj:`()`)
        slopes (tuple[float, ...]): the squares of the slopes that it was
            measured with, summed by output. (default: :obj:`()`)
    """

    value: Tensor
    norm: Residual
    sizes: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()


class Problem(Protocol):
    """Interface of the problems that :func:`.newton.refine` minimises."""

    def gradient(self, W: Tensor) -> Gradient:
        """Return the gradient, with a bound of its error."""

    def factor(self, W: Tensor) -> Factor:
        """Return a factored Hessian or preconditioner."""

    def direction(self, W: Tensor, grad: Tensor, factor: Factor) -> Tensor:
        """Solve for a step, given the gradient and a factored Hessian."""


class Objective(NamedTuple):
    r"""Objective :math:`L(\cdot, D)` of the present rows.

    Args:
        Z (Tensor): float64, ``[n, d]``, dense or (without ``'softmax'``)
            sparse CSR; rows that do not count are 0.
        Y (Tensor): of :func:`targets`, 0 for these.
        mu (float): :math:`\lambda n`, of the rows that count.
        head (str): a loss of the table above.
        B (Tensor, optional): the linear term, ``[d, num_outputs]``.
            (default: :obj:`None`)
        size (float, optional): the Frobenius norm of :obj:`Z`, if known.
            (default: :obj:`None`)
        K (Tensor, optional): :func:`~.rows.gram` of :obj:`Z`, to factor
            Hessians of ``'ovr'`` and ``'squared'`` in :math:`n \times n`
            numbers. (default: :obj:`None`)
    """

    Z: Tensor
    Y: Tensor
    mu: float
    head: str
    B: Tensor | None = None
    size: float | None = None
    K: Tensor | None = None

    def gradient(self, W: Tensor) -> Gradient:
        r"""Compute :math:`\nabla L(W, D)` in one pass over the rows.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        value, squares = self._loss(W)
        value.add_(W, alpha=self.mu)
        if self.B is not None:
            value += self.B
        return self._measured(W, value, _sizes(value), squares.tolist())

    def moved(self, W: Tensor, known: Gradient, columns: Tensor) -> Gradient:
        r"""Update a gradient after few columns of the weights moved.

        For independent outputs: the gradients of the others stay as they are.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            known (Gradient): the result of :meth:`gradient`, at weights that
                differ from :obj:`W` in some columns alone.
            columns (Tensor): int64: these columns.
        """
        value, squares = self._loss(W, columns)
        value.add_(W[:, columns], alpha=self.mu)
        if self.B is not None:
            value += self.B[:, columns]
        whole = known.value.index_copy(1, columns, value)
        slopes = torch.tensor(known.slopes, dtype=torch.float64)
        slopes[columns] = squares
        return self._measured(W, whole, _sizes(whole), slopes.tolist())

    def _loss(
        self, W: Tensor, columns: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.Z.layout == torch.strided and self.Z.device.type == 'cpu':
            return loss_gradient(self.Z, self.Y, W, self.head, columns)
        Y = self.Y
        if columns is not None:
            Y, W = Y[:, columns], W[:, columns]
        G = slopes(self.Z @ W, Y, self.head)
        return transposed_times(self.Z, G), G.square().sum(0)

    def _measured(
        self, W: Tensor, value: Tensor, sizes: list[float], slopes: list[float]
    ) -> Gradient:
        weight = _norm(W)
        drift = self.mu * weight
        if self.B is not None:
            drift += _norm(self.B)
        measured = math.hypot(*sizes)
        n, d = self.Z.shape
        if self.Z.layout == torch.sparse_csr:
            # Zeros that are not stored add no rounding.
            d = int(self.Z.crow_indices().diff().max())
        missing = hidden_by(
            _norm(self.Z) if self.size is None else self.size,
            math.sqrt(math.fsum(slopes)),
            weight,
            (n, d, W.size(1)),
            self.head,
            drift,
        )
        norm = Residual(measured, measured + missing)
        return Gradient(value, norm, tuple(sizes), tuple(slopes))

    def times(self, W: Tensor, P: Tensor) -> Tensor:
        """Multiply the Hessian at :obj:`W` by a matrix.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            P (Tensor): as :obj:`W`.
        """
        change = curved(self.Z @ W, self.Y, self.head, self.Z @ P)
        return transposed_times(self.Z, change) + self.mu * P

    def factor(self, W: Tensor) -> Factor:
        """Factor the Hessian at :obj:`W`, or a majoriser of it.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        Z, (d, outputs) = self.Z, W.shape
        if self.head != 'softmax' and (
            self.head == 'ovr' or self.K is not None
        ):
            s = curvatures(Z @ W, self.Y, self.head)
            return factor_curved(Z, s, self.mu, self.K)
        if self.head == 'squared':
            weight = self.Y.abs().amax(1, keepdim=True)
            Z = Z if Z.layout == torch.strided else Z.to_dense()
            kind, hessian = 'shared', 2 * Z.t() @ (weight * Z)
        elif d * outputs <= JOINT_LIMIT:
            p = (Z @ W).softmax(1) * self.Y.sum(1, keepdim=True)
            hessian = Z.new_empty((outputs, d, outputs, d))
            for one in range(outputs):
                for two in range(one + 1):
                    s = -p[:, one] * p[:, two]
                    if one == two:
                        s = s + p[:, one]
                    block = Z.t() @ (s.unsqueeze(1) * Z)
                    hessian[one, :, two] = block
                    hessian[two, :, one] = block
            kind, hessian = 'joint', hessian.view(d * outputs, -1)
        else:
            kind, hessian = 'majoriser', 0.5 * Z.t() @ Z
        hessian.diagonal(dim1=-2, dim2=-1).add_(self.mu)
        return Factor(kind, torch.linalg.cholesky(hessian), self.mu)

    def direction(self, W: Tensor, grad: Tensor, factor: Factor) -> Tensor:
        """Return a Newton step, with the Hessian of :obj:`factor`.

        If that is only a majoriser, by conjugate gradients with the Hessian.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            grad (Tensor): as :obj:`W`.
            factor (Factor): the result of :meth:`factor`, at any earlier time.
        """
        if factor.kind != 'majoriser':
            return factor.solve(grad)
        return _conjugate_gradients(self, W, grad, factor)


def _conjugate_gradients(
    problem: Objective, W: Tensor, right: Tensor, factor: Factor
) -> Tensor:
    # Solve to a hundredth of the gradient.
    P = torch.zeros_like(right)
    left = right.clone()
    goal = 0.01 * float(right.norm())
    D = solved = factor.solve(left)
    old = float((left * solved).sum())
    for _ in range(50):
        HD = problem.times(W, D)
        step = old / float((D * HD).sum())
        P, left = P + step * D, left - step * HD
        if float(left.norm()) <= goal:
            break
        solved = factor.solve(left)
        new = float((left * solved).sum())
        D, old = solved + new / old * D, new
    return P
