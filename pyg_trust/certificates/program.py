"""Relaxed linear program by a solver: the reference of the dual."""

from typing import Annotated

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Fraction,
    Natural,
    check_integer,
    validated,
)
from pyg_trust.certificates.budget import check_upper
from pyg_trust.certificates.perturbations import Perturbations

__all__ = ['linear_program']


@validated
def linear_program(
    perturbations: Perturbations,
    reward: Annotated[Tensor, Array(torch.float64, 'num_nodes', finite=True)],
    target: int,
    upper: Annotated[Tensor, Array(torch.float64, 'num_nodes')],
    global_budget: Natural,
    alpha: Fraction,
    *,
    undirected: bool = False,
) -> tuple[float, float]:
    r"""Solve the paper's relaxed linear program by cvxpy and HiGHS.

    Equations 4a to 4d and 5: the reference for ``dual_bound`` with the cost
    ``'visits'``, far slower. HiGHS stops on either side of the optimum (about
    1e-7 here), so the value proves nothing by itself; the multiplier does,
    when :func:`~pyg_trust.certificates.policy_iteration` evaluates it.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        reward (Tensor): :math:`r`, float64, ``[num_nodes]``.
        target (int): :math:`u`.
        upper (Tensor): float64, ``[num_nodes]``: :math:`\bar y(u)`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        undirected (bool): whether :math:`B` counts undirected edges: each has
            a share :math:`f_e \in [0, 1]` of the budget, which bounds the
            flips of both its directions. (default: :obj:`False`)

    Returns:
        tuple[float, float]: the optimum and the multiplier of the budget.

    Raises:
        RuntimeError: if the solver fails.
    """
    import cvxpy

    follow = 1 - alpha
    n = perturbations.num_nodes
    check_integer('target', target, 0, n - 1)
    check_upper(upper)
    if bool((perturbations.smallest < 1).any()):
        raise ValueError(
            "'perturbations' needs to leave every node an edge: the linear "
            'program knows no empty rows'
        )
    graph = perturbations.graph
    row, col, there = perturbations.fragile(perturbations.active)
    count = row.numel()
    fixed = ~(perturbations.removable & (perturbations.budget[graph.row] > 0))
    size = row[~there].bincount(minlength=n) + graph.degree
    bar = (upper * size).numpy()

    def matrix(value: Tensor, i: Tensor, j: Tensor, shape: tuple) -> object:
        return scipy.sparse.csr_array(
            (value.double().numpy(), (i.numpy(), j.numpy())), shape=shape
        )

    pair = torch.arange(count)
    share = 1 / size.double()
    source = matrix(torch.ones(count), row, pair, (n, count))
    head = matrix(torch.ones(count), col, pair, (n, count))
    stay = matrix(
        share[graph.row[fixed]], graph.col[fixed], graph.row[fixed], (n, n)
    )
    spread = matrix(share[row], pair, row, (count, n))
    is_old = there.double().numpy()
    price = 1 / bar[row.numpy()] * size[row].double().numpy()
    local = (perturbations.budget * share).numpy()
    teleport = np.zeros(n)
    teleport[target] = alpha

    visits = cvxpy.Variable(n, nonneg=True)
    off = cvxpy.Variable(count, nonneg=True)
    on = cvxpy.Variable(count, nonneg=True)
    flipped = cvxpy.multiply(is_old, off) + cvxpy.multiply(1 - is_old, on)
    if undirected:
        low, high = torch.minimum(row, col), torch.maximum(row, col)
        edges, which = (low * n + high).unique(return_inverse=True)
        used = cvxpy.Variable(edges.numel(), nonneg=True)
        # Either direction uses at most the share of its edge.
        coupled = [
            cvxpy.multiply(price, flipped) <= used[which.numpy()],
            used <= 1,
        ]
        limit = cvxpy.sum(used) <= global_budget
    else:
        coupled = []
        limit = price @ flipped <= global_budget
    gain = reward.numpy()
    problem = cvxpy.Problem(
        cvxpy.Maximize(gain @ visits - gain[row.numpy()] @ off),
        [
            visits - follow * (stay @ visits + head @ on) - source @ off
            == teleport,
            off + on == spread @ visits,
            source @ flipped <= cvxpy.multiply(local, visits),
            limit,
            *coupled,
        ],
    )
    problem.solve(
        solver=cvxpy.HIGHS,
        primal_feasibility_tolerance=1e-9,
        dual_feasibility_tolerance=1e-9,
    )
    if problem.status != 'optimal':
        raise RuntimeError(f'HiGHS ended with status {problem.status!r}')
    return float(problem.value), max(0.0, float(limit.dual_value))
