"""Personalized PageRank of a signal: one sparse linear system.

:func:`diffuse` solves in float64, refuses to return a residual above a bound,
and rounds once, so that :func:`pyg_trust.verify.pagerank.slack` bounds how far
it is from exact arithmetic.
"""

import math
from typing import Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    REAL,
    check_dtype,
    check_number,
    check_tensor,
    is_finite,
)
from pyg_trust.agp.linear import LinearMap
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph.ragged import pointer
from pyg_trust.verify.pagerank import TOLERANCE

__all__ = ['diffuse']

_UNIT = torch.finfo(torch.float64).eps / 2
# Steps of plain iteration without a smaller residual.
_STALE = 10


def diffuse(
    graph: CSRGraph,
    h: Tensor,
    alpha: float,
    *,
    normalization: str = 'rw',
) -> Tensor:
    r"""Solve for exact personalized PageRank diffusion.

    .. math::
        Z = \alpha (I - (1 - \alpha) \hat{A})^{-1} H

    with :math:`\hat{A} = D^{-1} A` over out-edges (:obj:`'rw'`) or
    :math:`\hat{A} = D^{-1/2} A D^{-1/2}` (:obj:`'sym'`, for undirected
    graphs), without a dense matrix. Differentiable in :obj:`h`. A node without
    out-edges gets :math:`\alpha h`. Solved in float64 and rounded once.
    """
    if normalization == 'sym' and not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected for normalization='sym' (got a "
            'directed one)'
        )
    weight = graph.weight
    if weight is not None and graph.num_edges:
        # Rows of D^-1 A have to be distributions.
        least, total = weight.min(), weight.sum(dtype=torch.float64)
        if float(least) < 0 or not math.isfinite(float(total)):
            raise ValueError(
                "'graph' needs non-negative edge weights with a finite sum, "
                'which transition probabilities are made of (got '
                f'{float(least):g} to {float(weight.max()):g})'
            )
    check_tensor('h', h, REAL, (graph.num_nodes, 'num_columns'))
    tol = TOLERANCE[str(h.dtype).removeprefix('torch.')]
    return _Diffuse.apply(h, (graph, alpha, normalization), tol, False, True)


class _Diffuse(LinearMap):
    @staticmethod
    def forward(
        h: Tensor,
        of: tuple[CSRGraph, float, str],
        tol: float,
        transposed: bool,
        check: bool,
    ) -> Tensor:
        if check and not is_finite(h):
            raise ValueError("'h' needs to be finite (got NaN or infinity)")
        return _solve(h, *of, tol, transposed, check)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        of, tol, transposed, _ = ctx.arguments
        if grads[0].dtype != torch.float64:
            tol = max(tol, 1e-6)
        grad = _Diffuse.again(grads[0], of, tol, not transposed, False)
        return grad, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        of, tol, transposed, _ = ctx.arguments
        return _Diffuse.again(tangents[0], of, tol, transposed, False)


def _solve(
    x: Tensor,
    graph: CSRGraph,
    alpha: float,
    normalization: str,
    tol: float,
    transposed: bool,
    check: bool,
) -> Tensor:
    # z = alpha x + a P z, or with the transpose, in float64.
    if x.numel() == 0:
        return x.clone()
    n, follow, weight = graph.num_nodes, 1 - alpha, graph.weight
    plain = weight is None and not graph.has_duplicates
    if weight is None:
        weight = torch.ones(graph.num_edges, device=graph.device)
    weight = weight.double()
    degree = weight.new_zeros(n).index_add_(0, graph.row, weight)
    degree[degree == 0] = 1
    # (I - a D^-1/2 A D^-1/2)^-1 = D^1/2 (I - a D^-1 A)^-1 D^-1/2, which is
    # its own transpose.
    scale = degree.sqrt() if normalization == 'sym' else 1.0
    turned = transposed and normalization == 'rw'
    reward = alpha * (x.double().t() / scale).contiguous()
    top = reward.abs().amax(1)
    goal = tol * top.clamp(min=torch.finfo(torch.float64).tiny)
    if plain and graph.device.type == 'cpu':
        none = torch.zeros(0, dtype=torch.int32)
        flips = ops.PolicyFlips(torch.zeros(len(goal) + 1).long(), none, none)
        rowptr, node = graph.receivers(along=False)
        value, left = ops.policy_solve(
            rowptr, node, flips, reward, reward, goal, follow, turned
        )
        left = left.abs().amax(1)
    else:
        row, col, weight = graph.row, graph.col, weight / degree[graph.row]
        if turned:
            order = col.argsort(stable=True)
            row, col, weight = col[order], row[order], weight[order]
        # int32, which MKL multiplies without a copy.
        ptr = pointer(row.bincount(minlength=n)).int()
        matrix = sparse_rows(ptr, col.int(), weight, (n, n))
        value, best, stale = reward, math.inf, 0
        # On any graph the largest residual falls by a per step, and for the
        # transpose their sum.
        while True:
            following = reward + follow * (matrix @ value.t()).t()
            left = (following - value).abs()
            left = left.sum(1) if turned else left.amax(1)
            worst = float((left / goal).max())
            stale = 0 if worst < best else stale + 1
            if worst <= 1 or stale > _STALE:
                break
            value, best = following, min(worst, best)
    limit = goal + _rounding(int(graph.degree.max())) / alpha * top
    if check and not bool((left <= limit).all()):
        raise RuntimeError(
            'the diffusion did not converge: the residual is '
            f'{float((left / goal).max() * tol):.3g} of the largest entry '
            f'(alpha {alpha:g}, {graph})'
        )
    return (value * scale).t().contiguous().to(x.dtype)


def _rounding(degree: int) -> float:
    # Roundoff of a step a P x + r in float64, relative to its largest number.
    part = (degree + 8) * _UNIT
    return 4 * part / (1 - part)


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
