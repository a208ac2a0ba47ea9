"""Personalized PageRank of a signal: one sparse linear system.

:func:`diffuse` solves any input in float64, refuses to return a residual above
a bound, and rounds once, so that a certificate (:mod:`pyg_trust.certificates`)
can say how far it is from exact arithmetic: :func:`diffusion_error`.

BiCGSTAB stands here and in ``csrc/cpu/policy_system.h``, and has to: here all
columns share one graph, which may have weights and lie on any device, so that
a step is one sparse product of torch; there every column has a graph of its
own, the clean one with some edges flipped, no weights, and one thread.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import (
    REAL,
    check_choice,
    check_dtype,
    check_instance,
    check_integer,
    check_number,
    check_positive,
    check_tensor,
)
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph.ragged import pointer

_UNIT = torch.finfo(torch.float64).eps / 2
# The solver's target residual, relative to the largest reward: far below the
# roundoff of the result.
_TOL = {torch.float64: 1e-12, torch.float32: 1e-8}


def diffuse(
    graph: CSRGraph,
    x: Tensor,
    alpha: float,
    *,
    normalization: str = 'rw',
    tol: float | None = None,
) -> Tensor:
    r"""Solve for exact personalized PageRank diffusion.

    .. math::
        Z = \alpha (I - (1 - \alpha) \hat{A})^{-1} X

    with :math:`\hat{A} = D^{-1} A` over out-edges (:obj:`'rw'`), whose rows
    are the personalized PageRank vectors, or :math:`\hat{A} = D^{-1/2} A
    D^{-1/2}` (:obj:`'sym'`, for undirected graphs), iteratively and without
    a dense matrix. Differentiable in :obj:`x`. A node without out-edges keeps
    :math:`\alpha x`. Solved in float64 and rounded once at the end.

    Args:
        graph (CSRGraph): the graph; edge weights, if any, count, and are
            non-negative.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
            (default: :obj:`'rw'`)
        tol (float, optional): the largest residual, relative to the largest
            entry of each column; the error is at most :math:`1 / \alpha`
            (:obj:`'rw'`) times that. By default 1e-12 (float64) or 1e-8.

    Returns:
        Tensor: :math:`Z`, of the shape and dtype of :obj:`x`.

    Raises:
        TypeError: on a wrong type or dtype.
        ValueError: on a wrong shape, numbers that are not finite, or edge
            weights that are negative or whose sum overflows float64.
        RuntimeError: if the solver does not come within what
            :func:`diffusion_error` promises.
    """
    check_instance('graph', graph, CSRGraph)
    check_alpha(alpha)
    check_choice('normalization', normalization, ('rw', 'sym'))
    if normalization == 'sym' and not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected for normalization='sym' (got a "
            'directed one)'
        )
    _check_weights(graph)
    shape = (graph.num_nodes, 'num_columns')
    check_tensor('x', x, REAL, shape, finite=True)
    if tol is not None:
        check_positive('tol', tol)
    else:
        tol = _TOL[x.dtype]
    return _Diffuse.apply(x, graph, float(alpha), normalization, tol)


def _check_weights(graph: CSRGraph) -> None:
    # The bound needs rows of D^-1 A that are distributions.
    if graph.weight is None or graph.num_edges == 0:
        return
    weight = graph.weight.detach()
    if float(weight.min()) < 0:
        raise ValueError(
            "'graph' needs non-negative edge weights, which transition "
            f'probabilities are made of (got {float(weight.min()):g})'
        )
    # The sum over all edges: weights this large can be rescaled by the caller.
    if not math.isfinite(float(weight.sum(dtype=torch.float64))):
        raise ValueError(
            "'graph' needs edge weights with a sum that is finite in float64 "
            f'(got up to {float(weight.max()):g})'
        )


class _Diffuse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        graph: CSRGraph,
        alpha: float,
        normalization: str,
        tol: float,
    ) -> Tensor:
        ctx.arguments = graph, alpha, normalization, tol
        out = _diffuse(x.double(), graph, alpha, normalization, tol)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        graph, alpha, normalization, tol = ctx.arguments
        if grads[0].dtype != torch.float64:
            tol = max(tol, 1e-6)
        grad = _diffuse(grads[0], graph, alpha, normalization, tol, back=True)
        return grad, None, None, None, None


def _diffuse(
    x: Tensor,
    graph: CSRGraph,
    alpha: float,
    normalization: str,
    tol: float,
    *,
    back: bool = False,
) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    weight = graph.weight
    if weight is None:
        weight = torch.ones(graph.num_edges, device=graph.device)
    weight = weight.to(x.dtype)
    degree = weight.new_zeros(graph.num_nodes)
    degree.index_add_(0, graph.row, weight)
    degree[degree == 0] = 1
    weight = weight / degree[graph.row]
    # (I - a D^-1/2 A D^-1/2)^-1 = D^1/2 (I - a D^-1 A)^-1 D^-1/2, which is
    # its own transpose.
    scale = degree.sqrt() if normalization == 'sym' else 1.0
    rowptr, col = graph.rowptr, graph.col
    if back and normalization == 'rw':
        perm = graph.col.argsort(stable=True)
        rowptr = pointer(graph.in_degree)
        col, weight = graph.row[perm], weight[perm]
    matrix = _csr(rowptr, col, weight, graph.num_nodes)
    reward = alpha * (x.t() / scale).contiguous()
    tiny = torch.finfo(x.dtype).tiny
    goal = tol * reward.abs().amax(1).clamp(min=tiny)

    def step(value: Tensor) -> Tensor:
        return (matrix @ value.t().contiguous()).t().contiguous()

    value = solve(step, reward, 1 - alpha, reward, goal)
    if not back and value.numel() > 0:
        left = (reward + (1 - alpha) * step(value) - value).abs().amax(1)
        most = int(rowptr.diff().max())
        limit = goal + _rounding(most) / alpha * reward.abs().amax(1)
        if not bool((left <= limit).all()):
            raise RuntimeError(
                'the diffusion did not converge: the residual is '
                f'{float((left / goal).max() * tol):.3g} of the largest entry '
                f'(alpha {alpha:g}, {graph})'
            )
    return (value * scale).t().contiguous()


def _rounding(degree: int) -> float:
    # Roundoff of a step a P x + r in float64, relative to its largest number.
    part = (degree + 8) * _UNIT
    return 4 * part / (1 - part)


def diffusion_error(
    alpha: float, degree: int, dtype: torch.dtype = torch.float64
) -> float:
    r"""Bound the distance of :func:`diffuse` from exact arithmetic.

    With :math:`P = D^{-1} A`, :math:`y = D^{-1/2} z` for :obj:`'sym'` and
    :math:`y = z` for :obj:`'rw'`, the solution has :math:`\lVert y
    \rVert_\infty \le h`, the largest entry of :math:`D^{-1/2} x` or :math:`x`,
    and what :func:`diffuse` returns has a residual of at most :math:`\tau
    \alpha h + \epsilon h`, measured with an error of another :math:`\epsilon h
    / 2`: :math:`\tau` is the tolerance, :math:`\epsilon = 4 \gamma_{d+8}` the
    roundoff of float64 for degree :math:`d`. An error shrinks by :math:`1 -
    \alpha` a step, so that it is at most :math:`(\tau \alpha + 2 \epsilon) /
    \alpha` times :math:`h`, and rounding to the dtype adds its unit roundoff.

    Args:
        alpha (float): the teleport probability.
        degree (int): the largest degree.
        dtype (torch.dtype): of :obj:`x`. (default: :obj:`torch.float64`)

    Returns:
        float: the error of :math:`y`, relative to :math:`h`.
    """
    alpha = check_alpha(alpha)
    check_integer('degree', degree, 0)
    if dtype not in REAL:
        raise ValueError(
            f"'dtype' needs to be float32 or float64 (got {dtype})"
        )
    unit = torch.finfo(dtype).eps
    return _TOL[dtype] + 2 * _rounding(degree) / alpha + unit


def check_alpha(alpha: float) -> float:
    """Refuse a teleport probability outside of its range."""
    if not 0 < check_number('alpha', alpha) < 1:
        raise ValueError(
            "'alpha', the teleport probability, needs to be in (0, 1) "
            f'(got {alpha})'
        )
    return float(alpha)


def check_logits(logits: Tensor, graph: CSRGraph) -> None:
    """Refuse logits that are not finite or of another shape."""
    check_dtype('logits', logits, None)
    n = graph.num_nodes
    if logits.dim() != 2 or logits.size(0) != n or logits.size(1) < 2:
        raise ValueError(
            f"'logits' needs to have the shape [{n}, num_classes], a row per "
            'node and at least two classes '
            f'(got {list(logits.shape)})'
        )
    if not bool(logits.isfinite().all()):
        raise ValueError("'logits' needs to be finite (got NaN or infinity)")


def solve(
    step: Callable[[Tensor], Tensor],
    reward: Tensor,
    follow: float,
    x: Tensor,
    tol: Tensor,
) -> Tensor:
    r"""Solve :math:`x = r + a \tilde P x` to residual ``tol`` per column.

    BiCGSTAB on all columns at once, then plain iteration, whose residual
    falls by :math:`a` per step on any graph, until roundoff stops it.
    """
    x = _bicgstab(step, reward, follow, x, tol)
    best, stale = math.inf, 0
    while True:
        following = reward + follow * step(x)
        left = float(((following - x).abs().amax(1) / tol).max())
        stale = 0 if left < best else stale + 1
        if left <= 1 or stale > 10:
            return x
        x, best = following, min(left, best)


def _bicgstab(
    step: Callable[[Tensor], Tensor],
    reward: Tensor,
    follow: float,
    x: Tensor,
    tol: Tensor,
) -> Tensor:
    first, x = x, x.clone()
    residual = reward + follow * step(x) - x
    initial = _largest(residual)
    shadow = residual
    direction = image = torch.zeros_like(x)
    rho = size = omega = x.new_ones((x.size(0), 1))
    for _ in range(200):
        if bool((_largest(residual) <= tol).all()):
            break
        rho_next = _dot(shadow, residual)
        beta = _ratio(rho_next * size, rho * omega)
        direction = torch.addcmul(direction, omega, image, value=-1)
        direction = torch.addcmul(residual, beta, direction)
        image = torch.add(direction, step(direction), alpha=-follow)
        size = _ratio(rho_next, _dot(shadow, image))
        half = torch.addcmul(residual, size, image, value=-1)
        moved = torch.add(half, step(half), alpha=-follow)
        omega = _ratio(_dot(moved, half), _dot(moved, moved))
        x.addcmul_(size, direction).addcmul_(omega, half)
        residual = torch.addcmul(half, omega, moved, value=-1)
        rho = rho_next
    # Where the iteration broke down, keep its start.
    bad = ~(_largest(residual) <= initial)
    return torch.where(bad[:, None], first, x)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, y).unsqueeze(1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    # Zero stops a column that has converged to nothing or broken down.
    ratio = numerator / denominator
    return torch.where(ratio.isfinite(), ratio, 0)


def _csr(rowptr: Tensor, col: Tensor, value: Tensor, size: int) -> Tensor:
    # int32, which MKL multiplies without a copy.
    return sparse_rows(rowptr.int(), col.int(), value, (size, size))
