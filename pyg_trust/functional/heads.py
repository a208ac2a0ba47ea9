r"""Linear heads of node classifiers, and removal from them, measured.

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
:math:`\operatorname{diag}(p) - pp^\top \preceq I/2`, and
:math:`|D^3 \ell[u, h, h]| = |\operatorname{E}_p (u - \operatorname{E}u)(h -
\operatorname{E}h)^2| \le (\max u - \min u) \operatorname{Var}_p(h) \le
\sqrt2 \lVert u \rVert \cdot \lVert h \rVert^2 / 2`. ``ovr`` and ``squared``
have one output for two classes and one per class for more, :math:`y_c = \pm
1`.

**The certificate.** :math:`L` is :math:`\lambda n`-strongly convex, so for
*any* :math:`W`

.. math::
    \lVert W - W^* \rVert_F \le \frac{\lVert \nabla L(W, D') \rVert_F}
    {\lambda n'}, \qquad W^* = \arg\min L(\cdot, D'),

by :math:`\langle \nabla L(W) - \nabla L(W^*), W - W^* \rangle \ge \lambda n'
\lVert W - W^* \rVert^2` and :math:`\nabla L(W^*) = 0`. The residual is
*measured* (:meth:`Objective.gradient`), with all that rounding can hide; how
:math:`W` was found plays no part.

**The step.** :math:`H p = -\nabla L(W, D')`, the *full* present gradient. The
papers solve for the change of the gradient (Guo et al. 2020, Chien et al.
2022, Yi and Wei 2025) and carry what was left for ever, so that their bounds
add up until they have to retrain; here what was left is corrected with the
next step and nothing adds up. Since any :math:`p` may be used, :math:`H` is
the factored Hessian of an earlier time (:class:`Factor`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyg_trust.functional.newton import Residual, spectral_norm
from pyg_trust.functional.removal_bounds import GAMMA_2
from pyg_trust.ops import loss_gradient, quasi_newton

HEADS = ('ovr', 'softmax', 'squared')
GAMMA_1 = {'ovr': 0.25, 'softmax': 0.5, 'squared': 2.0}
CURVATURE_CHANGE = {
    'ovr': GAMMA_2['logistic'],
    'softmax': 1 / math.sqrt(2),
    'squared': 0.0,
}

# Up to so many weights the whole Hessian of softmax is factored.
JOINT_LIMIT = 1024
# Up to so many columns a Hessian that is kept is inverted.
INVERSE_LIMIT = 256

UNIT = torch.finfo(torch.float64).eps / 2


def targets(y: Tensor, num_classes: int, head: str) -> Tensor:
    """The targets of the outputs: float64, ``[n, num_outputs]``.

    Args:
        y (Tensor): int64, ``[n]``: classes, from 0; -1 for a row that does
            not count, whose targets are 0.
        num_classes (int): at least 2.
        head (str): of the table above.
    """
    there = (y >= 0).unsqueeze(1)
    if head == 'softmax':
        hot = torch.nn.functional.one_hot(y.clamp(min=0), num_classes)
        return hot.double() * there
    first = 1 if num_classes == 2 else 0
    hot = y.unsqueeze(1) == torch.arange(first, num_classes)
    return torch.where(hot, 1.0, -1.0).double() * there


def slopes(margin: Tensor, Y: Tensor, head: str) -> Tensor:
    """The derivative of the loss in the margins, 0 for rows of targets 0.

    Args:
        margin (Tensor): ``[n, num_outputs]``.
        Y (Tensor): of :func:`targets`.
        head (str): of the table above.
    """
    if head == 'ovr':
        other = -Y
        return torch.mul(other, margin).sigmoid_().mul_(other)
    if head == 'softmax':
        return margin.softmax(1) * Y.sum(1, keepdim=True) - Y
    return 2 * (margin - Y) * Y.abs()


def curved(margin: Tensor, Y: Tensor, head: str, change: Tensor) -> Tensor:
    """The derivative of :func:`slopes` along a change of the margins.

    Args:
        margin (Tensor): ``[n, num_outputs]``.
        Y (Tensor): of :func:`targets`.
        head (str): of the table above.
        change (Tensor): as :obj:`margin`.
    """
    if head == 'ovr':
        p = torch.sigmoid(margin)
        return p * (1 - p) * Y.abs() * change
    if head == 'softmax':
        p = margin.softmax(1)
        mean = (p * change).sum(1, keepdim=True)
        return p * (change - mean) * Y.sum(1, keepdim=True)
    return 2 * change * Y.abs()


def hidden(
    Z: Tensor,
    G: Tensor,
    W: Tensor,
    head: str,
    drift: float = 0.0,
    size: float | None = None,
    weight: float | None = None,
) -> float:
    r"""A bound of the rounding error of :math:`Z^\top G(ZW)` plus a drift.

    As in :func:`.newton.residual`; slopes are computed from exponentials,
    which are off by a few units, absolutely.

    Args:
        Z (Tensor): ``[n, d]``.
        G (Tensor): the slopes, ``[n, num_outputs]``.
        W (Tensor): the weights, ``[d, num_outputs]``.
        head (str): of the table above.
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
    """Is :func:`hidden`, from norms.

    Args:
        z (float): of the rows.
        g (float): of their slopes.
        w (float): of the weights.
        sizes (tuple[int, int, int]): how many rows, columns and outputs.
        head (str): of the table above.
        drift (float): as in :func:`hidden`.
    """
    # Of a row of slopes every entry may be off by a few units, and by one more
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
    return float(torch.linalg.vector_norm(matrix))


def _sizes(matrix: Tensor) -> list[float]:
    return torch.linalg.vector_norm(matrix, dim=0).tolist()


class Factor(NamedTuple):
    r"""A factored Hessian, of whatever time: *frozen*.

    It was made of rows that may be gone by now. No certificate depends on it,
    but it is secret, and has to be made anew to be rid of them.

    Args:
        kind (str): ``'classes'``: a Hessian for every output; ``'shared'``:
            one for all; ``'joint'``: one of all outputs together;
            ``'majoriser'``: :math:`\frac12 Z^\top Z + \mu` across classes
            and :math:`\mu` along their sum.
        lower (Tensor): Cholesky factors.
        mu (float): of the Hessian.
        inverse (Tensor, optional): of the Hessians, which is faster to
            multiply by again and again. (default: :obj:`None`)
    """

    kind: str
    lower: Tensor
    mu: float
    inverse: Tensor | None = None

    @property
    def separate(self) -> bool:
        """Whether every output is a problem of its own."""
        return self.kind in ('classes', 'shared')

    def solve(self, right: Tensor) -> Tensor:
        """Solves for every output: ``[d, num_outputs]``.

        Args:
            right (Tensor): as the result.
        """
        if self.kind == 'classes':
            columns = right.t().unsqueeze(2).contiguous()
            if self.inverse is not None:
                found = torch.bmm(self.inverse, columns)
            else:
                found = torch.cholesky_solve(columns, self.lower)
            return found.squeeze(2).t()
        if self.kind == 'joint':
            flat = right.t().reshape(-1, 1)
            found = torch.cholesky_solve(flat, self.lower)
            return found.view(right.size(1), -1).t()
        if self.kind == 'shared':
            return torch.cholesky_solve(right, self.lower)
        along = right.mean(1, keepdim=True)
        across = torch.cholesky_solve(right - along, self.lower)
        return across + along / self.mu

    def kept(self) -> 'Factor':
        """The same for many solves: with inverses, where they are small."""
        if self.kind != 'classes' or self.lower.size(-1) > INVERSE_LIMIT:
            return self
        inverse = torch.cholesky_inverse(self.lower)
        # Row by row, once: it comes column by column.
        return self._replace(inverse=inverse.contiguous())


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
    """The interface of the problems that :func:`refine` minimises."""

    def gradient(self, W: Tensor) -> Gradient:
        """The gradient, with a bound of its error."""

    def factor(self, W: Tensor) -> Factor:
        """A factored Hessian, or something like it."""

    def direction(self, W: Tensor, grad: Tensor, factor: Factor) -> Tensor:
        """A step from a gradient."""


class Objective(NamedTuple):
    r""":math:`L(\cdot, D)` of the rows that there are.

    Args:
        Z (Tensor): float64, ``[n, d]``; rows that do not count are 0.
        Y (Tensor): of :func:`targets`, 0 for these.
        mu (float): :math:`\lambda n`, of the rows that count.
        head (str): of the table above.
        B (Tensor, optional): the linear term, ``[d, num_outputs]``.
            (default: :obj:`None`)
        size (float, optional): the Frobenius norm of :obj:`Z`, if known.
            (default: :obj:`None`)
    """

    Z: Tensor
    Y: Tensor
    mu: float
    head: str
    B: Tensor | None = None
    size: float | None = None

    def gradient(self, W: Tensor) -> Gradient:
        r""":math:`\nabla L(W, D)`: one pass over the rows.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        value, squares = loss_gradient(self.Z, self.Y, W, self.head)
        value.add_(W, alpha=self.mu)
        if self.B is not None:
            value += self.B
        return self._measured(W, value, _sizes(value), squares.tolist())

    def moved(self, W: Tensor, known: Gradient, columns: Tensor) -> Gradient:
        r"""The same where few columns of the weights have moved.

        For outputs that are problems of their own: the gradient of the others
        is what it was, and counts in the norm as it did.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            known (Gradient): of :meth:`gradient`, at weights that differ from
                :obj:`W` in some columns alone.
            columns (Tensor): int64: these columns.
        """
        value, squares = loss_gradient(self.Z, self.Y, W, self.head, columns)
        value.add_(W[:, columns], alpha=self.mu)
        if self.B is not None:
            value += self.B[:, columns]
        whole = known.value.index_copy(1, columns, value)
        slopes = torch.tensor(known.slopes, dtype=torch.float64)
        slopes[columns] = squares
        return self._measured(W, whole, _sizes(whole), slopes.tolist())

    def _measured(
        self, W: Tensor, value: Tensor, sizes: list[float], slopes: list[float]
    ) -> Gradient:
        weight = _norm(W)
        drift = self.mu * weight
        if self.B is not None:
            drift += _norm(self.B)
        measured = math.hypot(*sizes)
        missing = hidden_by(
            _norm(self.Z) if self.size is None else self.size,
            math.sqrt(math.fsum(slopes)),
            weight,
            (self.Z.size(0), *W.shape),
            self.head,
            drift,
        )
        norm = Residual(measured, measured + missing)
        return Gradient(value, norm, tuple(sizes), tuple(slopes))

    def times(self, W: Tensor, P: Tensor) -> Tensor:
        """The Hessian at :obj:`W` times a matrix.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            P (Tensor): as :obj:`W`.
        """
        Z = self.Z
        change = curved(Z @ W, self.Y, self.head, Z @ P)
        return Z.t() @ change + self.mu * P

    def factor(self, W: Tensor) -> Factor:
        """Factors the Hessian at :obj:`W`, or what majorises it.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        Z, (d, outputs) = self.Z, W.shape
        if self.head == 'squared':
            weight = self.Y.abs().amax(1, keepdim=True)
            kind, hessian = 'shared', 2 * Z.t() @ (weight * Z)
        elif self.head == 'ovr':
            p = torch.sigmoid(Z @ W)
            s = p * (1 - p) * self.Y.abs()
            blocks = [Z.t() @ (column.unsqueeze(1) * Z) for column in s.t()]
            kind, hessian = 'classes', torch.stack(blocks)
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
        """A Newton step, with the Hessian of :obj:`factor`.

        Where that is a majoriser alone, which contracts slowly, by conjugate
        gradients with the true Hessian.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            grad (Tensor): as :obj:`W`.
            factor (Factor): of :meth:`factor`, of whatever time.
        """
        if factor.kind != 'majoriser':
            return factor.solve(grad)
        return _conjugate_gradients(self, W, grad, factor)


def _conjugate_gradients(
    problem: Objective, W: Tensor, right: Tensor, factor: Factor
) -> Tensor:
    # To a hundredth of the gradient.
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


class Refined(NamedTuple):
    """The weights that :func:`refine` found, and their gradient.

    Args:
        W (Tensor): the weights.
        gradient (Gradient): there, measured.
        factor (Factor): the last one that was used.
        iterations (int): the number of steps.
    """

    W: Tensor
    gradient: Gradient
    factor: Factor
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
    r"""Steps until the residual, rounding included, is at most :obj:`tol`.

    With a factor, quasi-Newton steps: the frozen Hessian, corrected by the
    steps taken so far (BFGS; Nocedal and Wright 2006, Algorithm 7.4), for
    every output by itself where the outputs are problems of their own. A step
    is halved until it shortens the gradient. The factor is made anew where two
    steps in a row shorten it by less than 4; without one, for every step
    (Newton's method). Ends early where rounding is all that is left.

    Args:
        problem (Problem): what to minimise.
        W (Tensor): where to start.
        tol (float): the residual to reach.
        max_iter (int): the most steps.
        start (Gradient, optional): the gradient at :obj:`W`, if known.
            (default: :obj:`None`)
        factor (Factor, optional): to begin with. (default: :obj:`None`)
    """
    anew = factor is None
    gradient = problem.gradient(W) if start is None else start
    slow = iteration = 0
    past = _Past(W)
    while gradient.norm.upper > tol and iteration < max_iter:
        measured, upper = gradient.norm
        if measured <= upper - measured:
            break
        fresh = factor is None or slow == 2 or (anew and iteration > 0)
        if factor is None or fresh:
            factor, slow = problem.factor(W), 0
            past.clear()
        if factor.inverse is not None:
            P = quasi_newton(
                gradient.value, factor.inverse, past.pairs, past.count
            )
        else:
            P = _corrected(
                gradient.value,
                past.pairs[: past.count],
                partial(problem.direction, W, factor=factor),
                factor.separate,
            )
        parts: Objective | None = None
        if factor.separate and isinstance(problem, Objective):
            still, moving = _columns(gradient, tol)
            if still:
                parts = problem
                P.index_fill_(1, torch.tensor(still), 0.0)
                columns = torch.tensor(moving)
        t = 1.0
        while True:
            new = torch.sub(W, P, alpha=t)
            if parts is None:
                tried = problem.gradient(new)
            else:
                tried = parts.moved(new, gradient, columns)
            if tried.norm.measured <= (1 - 1e-4 * t) * measured:
                break
            t /= 2
            if t < 2**-30:
                break
        if t < 2**-30:
            if fresh:
                break
            # Corrections or a factor that are of no use any more. Newton's own
            # step shortens the gradient, as long as rounding lets it.
            slow = 2
            past.clear()
            iteration += 1
            continue
        if not anew and tried.norm.upper > tol:
            past.append(W, new, gradient.value, tried.value)
        W, gradient = new, tried
        slow = slow + 1 if gradient.norm.measured > measured / 4 else 0
        iteration += 1
    return Refined(
        W, gradient, problem.factor(W) if factor is None else factor, iteration
    )


class _Past:
    # Pairs of a step and the change of the gradient, the oldest first, in
    # front of room for more.

    def __init__(self, W: Tensor) -> None:
        self.pairs = W.new_empty((8, 2, *W.shape))
        self.count = 0

    def append(
        self, W: Tensor, new: Tensor, grad: Tensor, changed: Tensor
    ) -> None:
        if self.count == len(self.pairs):
            more = torch.empty_like(self.pairs)
            self.pairs = torch.cat([self.pairs, more])
        step, change = self.pairs[self.count]
        torch.sub(new, W, out=step)
        torch.sub(changed, grad, out=change)
        self.count += 1

    def clear(self) -> None:
        self.count = 0


def _corrected(
    grad: Tensor,
    pairs: Tensor,
    solve: Callable[[Tensor], Tensor],
    separate: bool,
) -> Tensor:
    # The two-loop recursion, from steps, changes of the gradient, and the
    # inverses of their products.
    past = [(s, y, _weights(s * y, separate)) for s, y in pairs]
    weights = []
    for step, change, inverse in reversed(past):
        weight = inverse * _summed(step * grad, separate)
        grad = torch.addcmul(grad, weight, change, value=-1)
        weights.append(weight)
    P = solve(grad)
    for (step, change, inverse), weight in zip(
        past, reversed(weights), strict=True
    ):
        weight = weight - inverse * _summed(change * P, separate)
        P = torch.addcmul(P, weight, step)
    return P


def _columns(gradient: Gradient, tol: float) -> tuple[list[int], list[int]]:
    # The columns with the least residuals, half of what is allowed together,
    # and the others, whose steps alone are worth a pass over the rows. Before
    # the first pass nothing is known of the columns to build on.
    sizes = gradient.sizes
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    count, together = 0, 0.0
    for c in order[:-1]:
        together = math.hypot(together, sizes[c])
        count += together <= tol / 2
    return order[:count], order[count:]


def _summed(product: Tensor, separate: bool) -> Tensor:
    return product.sum(0) if separate else product.sum()


def _weights(product: Tensor, separate: bool) -> Tensor:
    # 0, and so without a correction, where the curvature is not positive.
    curvature = _summed(product, separate)
    least = torch.finfo(product.dtype).tiny
    return (curvature > least) / curvature.clamp(min=least)


def step_bound(objective: Objective, P: Tensor, head: str) -> float:
    r"""Bounds the residual after a step with the exact Hessian.

    .. math::
        \lVert R(p) \rVert_F \le \frac{\gamma_2}{2} \lVert Z' \rVert_2 \lVert
        q \rVert_2,

    :math:`q` the squares of the entries of :math:`Z'p` (``ovr``) or of the
    norms of its rows (``softmax``). Without what rounding hides.

    Args:
        objective (Objective): of the data that remain.
        P (Tensor): the step, ``[d, num_outputs]``.
        head (str): of the table above.
    """
    if CURVATURE_CHANGE[head] == 0:
        return 0.0
    squares = (objective.Z @ P).square()
    if head == 'softmax':
        squares = squares.sum(1)
    spread = float(squares.norm())
    return CURVATURE_CHANGE[head] / 2 * spectral_norm(objective.Z) * spread
