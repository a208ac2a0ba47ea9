r"""Worst-case PageRank under local and global budgets: bounds on both sides.

With at most :math:`B` flips in all, on top of the local budgets, the worst
case of a target :math:`u` is hard to find (`Bojchevski and Günnemann 2019
<https://arxiv.org/abs/1910.14356>`_, Proposition 4), but easy to bound. Let
:math:`k_i` be the number of flips in row :math:`i` and :math:`\pi` the
personalized PageRank of :math:`u` in the perturbed graph. Let
:math:`\bar\pi_i` and :math:`\bar y_i` be upper bounds of :math:`\pi_i` and of
:math:`y_i = \pi_i / |S_i|` over all admissible graphs. Then every admissible
graph satisfies both

.. math::
    \sum_i k_i \frac{\pi_i}{\bar\pi_i} \le \sum_i k_i \le B
    \quad \text{(cost 'pagerank')} \qquad \text{and} \qquad
    \sum_i k_i \frac{y_i}{\bar y_i} \le B \quad \text{(cost 'visits')} .

The second one is the paper's relaxation (equation 5), with :math:`x_i = y_i
D_i` and any constant :math:`D_i`. Both are linear in the state-action
frequencies of the Markov decision process of :mod:`.policy`, so for
**every** multiplier :math:`\lambda \ge 0`

.. math::
    \max_{\tilde G} \pi_{\tilde G}(u)^{\top} r \le \lambda B + \alpha
    V^{(\lambda)}_u,

where :math:`V^{(\lambda)}` is the fixed point with the price :math:`\lambda /
\bar\pi_i` per flip and step (:math:`\nu`) or :math:`\lambda / \bar y_i` per
flip and visit (:math:`\mu`). The right-hand side is convex and piecewise
linear in :math:`\lambda`, and its minimum is the optimum of the relaxed linear
program, by strong duality. :func:`dual_bound` intersects the two lines that
bracket it, as a rule 5 to 10 times.

**The upper bounds.** :math:`\bar\pi_t(u) = \alpha V_u` with the reward
:math:`e_t`, and :math:`\bar y_t(u) = \alpha V_u` where row :math:`t` alone is
rewarded, with :math:`1 / |S_t|`: one fixed point serves all :math:`u`. Both
are rounded up by the residual bound of :mod:`.policy`. (The authors' code
divides by the degree correction of the source instead of :math:`t` and
maximizes :math:`\pi_t` instead of :math:`x_t`: it certifies nodes that one
flip breaks.)

**Local budgets first.** No row can have more than :math:`B` flips, so budgets
are clipped to :math:`\min(b_i, B)` everywhere, which the paper does not do.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust.functional.policy import (
    Optimum,
    Perturbations,
    Policy,
    check_alpha,
    check_logits,
    check_tensor,
    policy_iteration,
    solve,
)

COSTS = ('pagerank', 'visits')
# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15


def check_budget(name: str, budget: int) -> int:
    """Checks a number of flips."""
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise TypeError(
            f"'{name}' needs to be an integer (got {type(budget).__name__})"
        )
    if budget < 0:
        raise ValueError(f"'{name}' needs to be non-negative (got {budget})")
    return budget


def check_targets(targets: Tensor, num_nodes: int) -> None:
    """Checks node indices."""
    check_tensor('targets', targets, torch.int64, (targets.numel(),))
    if targets.numel() > 0:
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= num_nodes:
            raise ValueError(
                f"'targets' needs to be in [0, {num_nodes}), the nodes "
                f'(got {low} to {high})'
            )


def _check_cost(cost: str) -> None:
    if cost not in COSTS:
        raise ValueError(f"'cost' needs to be one of {COSTS} (got {cost!r})")


def clip_budget(perturbations: Perturbations, budget: int) -> Perturbations:
    """No row can have more flips than the whole graph."""
    if int(perturbations.budget.max()) <= budget:
        return perturbations
    return perturbations.with_budget(perturbations.budget.clamp(max=budget))


def pagerank_bounds(
    perturbations: Perturbations,
    targets: Tensor,
    alpha: float,
    *,
    cost: str = 'pagerank',
    tol: float = 1e-9,
) -> Tensor:
    r"""Upper bounds of PageRank over all admissible graphs.

    :math:`\bar\pi_t(u)` (:obj:`cost='pagerank'`) or :math:`\bar y_t(u)`
    (:obj:`'visits'`), exact up to :obj:`tol` and never too small, for all
    teleport nodes :math:`u` in :obj:`targets`. Rows :math:`t` that cannot be
    perturbed have no price and get 1.

    Args:
        perturbations (Perturbations): the admissible graphs.
        targets (Tensor): int64, ``[num_targets]``: the nodes :math:`u`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): which of the two. (default: :obj:`'pagerank'`)
        tol (float): how far they are rounded up. (default: :obj:`1e-9`)

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``.
    """
    alpha = check_alpha(alpha)
    _check_cost(cost)
    check_targets(targets, perturbations.num_nodes)
    active = perturbations.active
    n = perturbations.num_nodes
    made = torch.ones((targets.numel(), n), dtype=torch.float64)
    for block in perturbations.column_blocks(active.numel()):
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        zero = torch.zeros_like(unit)
        found = policy_iteration(
            perturbations,
            unit if cost == 'pagerank' else zero,
            alpha,
            bonus=unit if cost == 'visits' else None,
            tol=tol,
        )
        bound = alpha * (found.value + found.high[:, None])
        # At most one, as PageRank is a distribution.
        made[:, row] = bound[:, targets].t().clamp(max=1)
    return made


@dataclass(frozen=True)
class BudgetBound:
    """Bounds on the worst case of some targets under a global budget."""

    bound: Tensor
    """float64, ``[num_columns]``: no admissible graph exceeds it."""
    optimum: Tensor
    """About how far :obj:`bound` can fall at most: a lower bound on the
    optimum of the relaxation, up to the solver's tolerance."""
    multiplier: Tensor
    """The multipliers that prove :obj:`bound`."""


def dual_bound(
    perturbations: Perturbations,
    reward: Tensor,
    targets: Tensor,
    upper: Tensor,
    global_budget: int,
    alpha: float,
    *,
    cost: str = 'pagerank',
    sign_only: bool = False,
    start: Tensor | None = None,
    tol: float = 1e-9,
    max_iter: int = 60,
) -> BudgetBound:
    r"""Bounds :math:`\max_{\tilde G} \pi_{\tilde G}(u)^\top r` from above.

    .. math::
        \min_{\lambda \ge 0} \lambda B + \alpha V^{(\lambda)}_u

    for many pairs of a reward and a target at once. The bound holds whenever
    it stops, roundoff included.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets; clip them first (:func:`clip_budget`) for a tighter
            bound.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        targets (Tensor): int64, ``[num_columns]``: :math:`u`.
        upper (Tensor): float64, ``[num_columns, num_nodes]``: upper bounds
            as :func:`pagerank_bounds` makes them, of the same :obj:`cost`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): what a flip is charged by. (default: :obj:`'pagerank'`)
        sign_only (bool): stop as soon as the bound is negative, or it is
            clear that the relaxation's optimum is not.
            (default: :obj:`False`)
        start (Tensor, optional): a guess of :math:`V^{(0)}`.
            (default: :obj:`None`)
        tol (float): stop within this of the relaxation's optimum, relative to
            the largest reward. (default: :obj:`1e-9`)
        max_iter (int): the largest number of multipliers tried.
            (default: :obj:`60`)

    Returns:
        BudgetBound: the bounds, in the order of the columns.
    """
    alpha = check_alpha(alpha)
    _check_cost(cost)
    check_budget('global_budget', global_budget)
    n, count = perturbations.num_nodes, targets.numel()
    check_targets(targets, n)
    check_tensor('reward', reward, torch.float64, (count, n))
    check_tensor('upper', upper, torch.float64, (count, n))
    if not bool((upper > 0).all()):
        raise ValueError("'upper' needs to be positive everywhere")
    bound = reward.new_full((count,), math.inf)
    optimum = reward.new_zeros(count)
    multiplier = reward.new_zeros(count)
    for block in perturbations.column_blocks(count):
        search = _DualSearch(
            perturbations,
            reward[block],
            targets[block],
            upper[block],
            global_budget,
            alpha,
            cost,
        )
        search.run(
            None if start is None else start[block], sign_only, tol, max_iter
        )
        bound[block] = search.bound
        optimum[block] = search.predicted()
        multiplier[block] = search.multiplier
    return BudgetBound(bound, optimum, multiplier)


class _DualSearch:
    r"""Minimizes the dual function of a block of columns.

    A policy with objective o and cost c (both of its own graph) supports the
    dual function by the line :math:`o + \lambda (B - c)`. 'cheap' is the line
    of a policy with :math:`c \le B`, 'dear' of one with :math:`c > B`; the
    minimum lies above the point where they meet, the next multiplier.
    """

    def __init__(
        self,
        perturbations: Perturbations,
        reward: Tensor,
        targets: Tensor,
        upper: Tensor,
        budget: int,
        alpha: float,
        cost: str,
    ) -> None:
        self.perturbations = perturbations
        self.reward, self.targets, self.upper = reward, targets, upper
        self.budget, self.alpha, self.cost = budget, alpha, cost
        count = targets.numel()
        self.bound = reward.new_full((count,), math.inf)
        self.multiplier = reward.new_zeros(count)
        everything = torch.arange(count)
        self.cheap = torch.stack(
            self.line(perturbations.clean_policy(count), everything)
        )
        # No dear policy yet: a line that never restricts the search.
        self.dear = self.cheap.new_full(self.cheap.shape, math.nan)

    def run(
        self,
        start: Tensor | None,
        sign_only: bool,
        tol: float,
        max_iter: int,
    ) -> None:
        goal = tol * self.reward.abs().amax(1)
        value = self.reward / self.alpha if start is None else start.clone()
        trial = torch.zeros_like(self.multiplier)
        live = torch.arange(self.targets.numel())
        for _ in range(max_iter):
            found = self.solve(live, trial[live], value[live], tol)
            value[live] = found.value
            here = torch.arange(live.numel())
            top = found.value[here, self.targets[live]] + found.high
            made = trial[live] * self.budget + self.alpha * top
            better = made < self.bound[live]
            self.bound[live[better]] = made[better]
            self.multiplier[live[better]] = trial[live[better]]
            line = torch.stack(self.line(found.policy, live))
            fits = line[1] <= self.budget
            self.cheap[:, live[fits]] = line[:, fits]
            self.dear[:, live[~fits]] = line[:, ~fits]
            left = self.bound - self.predicted() > goal
            if sign_only:
                left &= (self.bound >= 0) & (self.predicted() < 0)
            live = left.nonzero().view(-1)
            if live.numel() == 0:
                return
            trial = self.crossing()

    def solve(
        self, columns: Tensor, multiplier: Tensor, start: Tensor, tol: float
    ) -> Optimum:
        price = multiplier[:, None] * _DOWN / self.upper[columns]
        steps = self.cost == 'pagerank'
        return policy_iteration(
            self.perturbations,
            self.reward[columns],
            self.alpha,
            step_cost=price if steps else None,
            visit_cost=None if steps else price,
            start=start,
            tol=min(tol / 10, 1e-10),
        )

    def line(self, policy: Policy, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The objective and the cost of a policy, in its own graph."""
        pagerank = _pagerank(policy, self.targets[columns], self.alpha)
        spent = policy.flips * pagerank / self.upper[columns]
        if self.cost == 'visits':
            spent = spent / policy.size
        return (pagerank * self.reward[columns]).sum(1), spent.sum(1)

    def crossing(self) -> Tensor:
        """Where the lines meet; zero where there is no dear one."""
        (low, spent), (high, more) = self.cheap, self.dear
        return ((high - low) / (more - spent)).nan_to_num(0).clamp(min=0)

    def predicted(self) -> Tensor:
        """The height of the lines where they meet."""
        objective, spent = self.cheap
        return objective + self.crossing() * (self.budget - spent)


def _pagerank(policy: Policy, nodes: Tensor, alpha: float) -> Tensor:
    # The personalized PageRank of one node per column, in its graph.
    teleport = torch.zeros(policy.size.shape, dtype=torch.float64)
    teleport[torch.arange(nodes.numel()), nodes] = alpha
    goal = teleport.new_full((nodes.numel(),), 1e-13)
    return solve(policy.step_back, teleport, 1 - alpha, teleport, goal)
