r"""Newton's method for the objectives of :mod:`.heads`.

One loop serves all classifiers that data is removed from: with a Hessian for
every step (:func:`minimize`), or with one of an earlier time that is corrected
on the way (:func:`refine`). The result is only trusted by its residual, which
is measured, and from which :mod:`.shifts` derives the privacy of a release.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import Natural, Positive, check_tensor, validated
from pyg_trust._progress import Bar
from pyg_trust.unlearning.heads import Factor, Gradient, Objective, Problem
from pyg_trust.unlearning.rows import check_rows, gram

__all__ = ['Refined', 'Solution', 'minimize', 'refine']


class Refined(NamedTuple):
    """Result of :func:`refine`: weights, gradient, factor, steps taken."""

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
    r"""Step until the residual, rounding included, is at most :obj:`tol`.

    With a factor, quasi-Newton steps: the frozen Hessian, corrected by the
    steps taken so far (BFGS; Nocedal and Wright 2006, Algorithm 7.4), for
    every output by itself. A step is halved until it shortens the gradient.
    The factor is made anew where two steps in a row shorten it by less than
    4; without one, for every step (Newton's method). Ends early where rounding
    is all that is left.
    """
    W, gradient, last, steps = _steps(problem, W, tol, max_iter, start, factor)
    last = problem.factor(W) if last is None else last
    return Refined(W, gradient, last, steps)


def _steps(
    problem: Problem,
    W: Tensor,
    tol: float,
    max_iter: int,
    start: Gradient | None = None,
    factor: Factor | None = None,
    strict: bool = True,
    bar: Bar | None = None,
) -> tuple[Tensor, Gradient, Factor | None, int]:
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
    return W, gradient, factor, iteration


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


class Solution(NamedTuple):
    """Weights ``[d, C]``, the norm of their gradient, and all steps."""

    W: Tensor
    residual: float
    iterations: int


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
) -> Solution:
    r"""Minimise an objective by Newton's method, to a residual of :obj:`tol`.

    .. math::
        L_b(w, D) = \sum_{i=1}^n \left[ \log(1 + e^{-y_i w^\top z_i}) +
        \frac{\lambda}{2} \lVert w \rVert^2 \right] + b^\top w, \quad y_i
        \in \{-1, 1\},

    one column :math:`w` of :math:`W` per class. The residual is
    :math:`\lVert \nabla L_b \rVert_F`. A step is halved until it shortens the
    gradient, which converges from any start.

    Args:
        Z (Tensor): float64, ``[n, d]``, dense or sparse CSR.
        Y (Tensor): -1 or 1, ``[n, C]``.
        B (Tensor): the linear term, ``[d, C]``.
        lam (float): :math:`\lambda > 0`.
        W (Tensor, optional): where to start; by default zero.
        K (Tensor, optional): :math:`Z Z^\top`, if known.
        tol (float): the residual to reach; or the bound of rounding errors,
            if that is larger. (default: :obj:`1e-10`)
        max_iter (int): the most Newton steps. (default: :obj:`100`)

    Raises:
        RuntimeError: if neither is reached.
    """
    check_rows(Z, K, finite=True)
    n, d = Z.shape
    check_tensor('Z', Z, torch.float64, (n, d))
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
        W, gradient, _, iteration = _steps(
            objective, W, tol, max_iter, strict=False, bar=bar
        )
    norm, upper = gradient.norm
    if norm <= max(tol, upper - norm):
        return Solution(W, norm, iteration)
    if iteration == max_iter:
        raise RuntimeError(
            f'Newton did not reach {tol} in {max_iter} steps (got {norm:.3e})'
        )
    raise RuntimeError(
        f'Newton stopped at a residual of {norm:.3e}: the problem is too '
        f"ill-conditioned for 'lam' = {lam} and 'tol' = {tol}"
    )
