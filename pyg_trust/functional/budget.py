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
from tqdm import tqdm

from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_positive,
    check_range,
    check_tensor,
)
from pyg_trust.functional.diffusion import check_alpha, check_logits
from pyg_trust.functional.perturbations import Perturbations, Policy
from pyg_trust.functional.policy import (
    Optimum,
    policy_iteration,
    policy_value,
)
from pyg_trust.graph import sparse_rows

COSTS = ('pagerank', 'visits')
# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15


def check_budget(name: str, budget: int) -> int:
    """Checks a number of flips."""
    if check_integer(name, budget) < 0:
        raise ValueError(f"'{name}' needs to be non-negative (got {budget})")
    return budget


def check_targets(targets: Tensor, num_nodes: int) -> None:
    """Checks node indices."""
    check_tensor('targets', targets, torch.int64, ('num_targets',))
    check_range('targets', targets, num_nodes, 'the nodes')


def _check_cost(cost: str) -> None:
    check_choice('cost', cost, COSTS)


def _check_problem(
    perturbations: Perturbations,
    reward: Tensor,
    targets: Tensor,
    upper: Tensor,
    global_budget: int,
    cost: str,
) -> None:
    check_instance('perturbations', perturbations, Perturbations)
    _check_cost(cost)
    check_budget('global_budget', global_budget)
    n = perturbations.num_nodes
    check_targets(targets, n)
    shape = (targets.numel(), n)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    _check_upper(upper, shape)


def _check_upper(upper: Tensor, shape: tuple[int, ...]) -> None:
    check_tensor('upper', upper, torch.float64, shape)
    if not bool((upper > 0).all()):
        raise ValueError("'upper' needs to be positive everywhere")


def clip_budget(perturbations: Perturbations, budget: int) -> Perturbations:
    """No row can have more flips than the whole graph."""
    check_instance('perturbations', perturbations, Perturbations)
    check_budget('budget', budget)
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
    progress_bar: bool = False,
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
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``.
    """
    check_instance('perturbations', perturbations, Perturbations)
    alpha = check_alpha(alpha)
    _check_cost(cost)
    check_positive('tol', tol)
    check_targets(targets, perturbations.num_nodes)
    active = perturbations.active
    n = perturbations.num_nodes
    made = torch.ones((targets.numel(), n), dtype=torch.float64)
    blocks = list(perturbations.column_blocks(active.numel()))
    for block in tqdm(blocks, disable=not progress_bar, desc='PageRank'):
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
    clean: Tensor | None = None,
    tol: float = 1e-9,
    max_iter: int = 60,
    progress_bar: bool = False,
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
        clean (Tensor, optional): a guess of :math:`\pi(u)^{\top} r` in the
            graph as it is, float64, ``[num_columns]``. Neither guess can make
            the bound wrong. (default: :obj:`None`)
        tol (float): stop within this of the relaxation's optimum, relative to
            the largest reward. (default: :obj:`1e-9`)
        max_iter (int): the largest number of multipliers tried.
            (default: :obj:`60`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        BudgetBound: the bounds, in the order of the columns.
    """
    alpha = check_alpha(alpha)
    _check_problem(perturbations, reward, targets, upper, global_budget, cost)
    if start is not None:
        check_tensor('start', start, torch.float64, reward.shape, finite=True)
    if clean is not None:
        check_tensor('clean', clean, torch.float64, targets.shape, finite=True)
    check_positive('tol', tol)
    check_integer('max_iter', max_iter, 1)
    count = targets.numel()
    bound = reward.new_full((count,), math.inf)
    optimum = reward.new_zeros(count)
    multiplier = reward.new_zeros(count)
    blocks = list(perturbations.column_blocks(count))
    for block in tqdm(blocks, disable=not progress_bar, desc='bounds'):
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
            None if start is None else start[block],
            None if clean is None else clean[block],
            sign_only,
            tol,
            max_iter,
        )
        bound[block] = search.bound
        optimum[block] = search.predicted()
        multiplier[block] = search.multiplier
    return BudgetBound(bound, optimum, multiplier)


def refine_pagerank_bounds(
    perturbations: Perturbations,
    targets: Tensor,
    upper: Tensor,
    global_budget: int,
    alpha: float,
    *,
    tol: float = 1e-4,
    progress_bar: bool = False,
) -> Tensor:
    r"""Upper bounds of PageRank under the global budget as well.

    What :func:`dual_bound` is given bounds :math:`\pi_t(u)` over all graphs
    that the local budgets admit; those that also keep the global one are
    fewer. :math:`\pi_t(u) = \pi(u)^{\top} e_t` is a reward like any other, so
    that the dual bound of it, proven with the bounds that are known, is
    another one, and smaller ones charge more for a flip:

    .. math::
        \sum_i k_i \frac{\pi_i}{\bar\pi_i} \le \sum_i k_i \le B
        \quad \text{as long as} \quad
        \bar\pi_t \ge \max_{\tilde G : \sum_i k_i \le B} \pi_t .

    It can be repeated, with less and less to gain. Each round solves a dual
    problem per row that can be perturbed, for every target: seconds where
    :func:`pagerank_bounds`, which serves all targets at once, takes
    milliseconds. For the cost :obj:`'pagerank'`.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        targets (Tensor): int64, ``[num_targets]``: the nodes :math:`u`.
        upper (Tensor): float64, ``[num_targets, num_nodes]``: upper bounds
            as :func:`pagerank_bounds` or this function makes them.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        tol (float): stop within this of the relaxation's optimum; what is
            smaller stays as it is. (default: :obj:`1e-4`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``, nowhere above
        :obj:`upper`.
    """
    check_instance('perturbations', perturbations, Perturbations)
    alpha = check_alpha(alpha)
    check_budget('global_budget', global_budget)
    n = perturbations.num_nodes
    check_targets(targets, n)
    _check_upper(upper, (targets.numel(), n))
    check_positive('tol', tol)
    made = upper.clone()
    active = perturbations.active
    clean = _pagerank(
        perturbations.clean_policy(targets.numel()),
        targets,
        alpha,
        None,
        torch.full(targets.shape, 1e-12, dtype=torch.float64),
    )
    blocks = list(perturbations.column_blocks(active.numel()))
    for block in tqdm(blocks, disable=not progress_bar, desc='PageRank'):
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        # Without a price it is the same for all targets.
        start = policy_iteration(perturbations, unit, alpha, tol=tol).value
        for k in range(targets.numel()):
            some = (upper[k, row] > tol).nonzero().view(-1)
            found = dual_bound(
                perturbations,
                unit[some],
                targets[k].expand(some.numel()),
                upper[k].expand(some.numel(), n),
                global_budget,
                alpha,
                start=start[some],
                clean=clean[k, row[some]],
                tol=tol,
            )
            # A row that is never reached has a bound of zero, and no price.
            bound = found.bound.clamp(min=torch.finfo(torch.float64).eps)
            made[k, row[some]] = bound.minimum(upper[k, row[some]])
    return made


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
        self.pagerank: Tensor | None = None
        # No policy yet: lines that never restrict the search.
        self.cheap = reward.new_full((2, count), math.nan)
        self.dear = self.cheap.clone()

    def run(
        self,
        start: Tensor | None,
        clean: Tensor | None,
        sign_only: bool,
        tol: float,
        max_iter: int,
    ) -> None:
        scale = self.reward.abs().amax(1).clamp(min=1e-300)
        value = self.reward / self.alpha if start is None else start.clone()
        trial = torch.zeros_like(self.multiplier)
        live = torch.arange(self.targets.numel())
        # A sign needs less exact lines than a tight bound.
        self.care, self.coarse = (1e2, 1e-6) if sign_only else (1e4, 1e-10)
        if clean is None:
            policy = self.perturbations.clean_policy(live.numel())
            sure = torch.full_like(scale, 1e-6 if sign_only else 1e-9)
            self.cheap = torch.stack(self.line(policy, live, sure))
        else:
            self.cheap = torch.stack([clean, torch.zeros_like(clean)])
        precision = torch.full_like(scale, 1e-4)
        for _ in range(max_iter):
            found = self.solve(live, trial[live], value[live], precision[live])
            value[live] = found.value
            here = torch.arange(live.numel())
            top = found.value[here, self.targets[live]] + found.high
            made = trial[live] * self.budget + self.alpha * top
            better = made < self.bound[live]
            self.bound[live[better]] = made[better]
            self.multiplier[live[better]] = trial[live[better]]
            line = torch.stack(self.line(found.policy, live, precision[live]))
            fits = line[1] <= self.budget
            self.cheap[:, live[fits]] = line[:, fits]
            self.dear[:, live[~fits]] = line[:, ~fits]
            gap = (self.bound - self.predicted()) / scale
            left = gap > tol
            if sign_only:
                # What is predicted is about as exact as the last values.
                below = self.predicted() < precision * scale
                left &= (self.bound >= 0) & below
            live = left.nonzero().view(-1)
            if live.numel() == 0:
                return
            trial = self.crossing()
            # A hundred times more precise than what is left to gain.
            precision = precision.minimum(gap / 100).clamp(min=tol / 10)

    def solve(
        self,
        columns: Tensor,
        multiplier: Tensor,
        start: Tensor | None,
        precision: Tensor | float,
    ) -> Optimum:
        """The fixed point at a multiplier per column."""
        price = multiplier[:, None] * _DOWN / self.upper[columns]
        steps = self.cost == 'pagerank'
        return policy_iteration(
            self.perturbations,
            self.reward[columns],
            self.alpha,
            step_cost=price if steps else None,
            visit_cost=None if steps else price,
            start=start,
            tol=precision,
        )

    def line(
        self, policy: Policy, columns: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The objective and the cost of a policy, in its own graph."""
        pagerank = _pagerank(
            policy,
            self.targets[columns],
            self.alpha,
            None if self.pagerank is None else self.pagerank[columns],
            (precision / self.care).clamp(1e-13, self.coarse),
        )
        if self.pagerank is None:
            self.pagerank = pagerank
        else:
            self.pagerank[columns] = pagerank
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


def _pagerank(
    policy: Policy,
    nodes: Tensor,
    alpha: float,
    start: Tensor | None,
    tol: Tensor,
) -> Tensor:
    # The personalized PageRank of one node per column, in its graph, to a
    # largest residual of 'tol'.
    count = nodes.numel()
    teleport = torch.zeros(
        (count, policy.perturbations.num_nodes), dtype=torch.float64
    )
    teleport[torch.arange(count), nodes] = alpha
    return policy.solve(
        teleport,
        1 - alpha,
        teleport if start is None else start,
        tol,
        back=True,
    )[0]


def linear_program(
    perturbations: Perturbations,
    reward: Tensor,
    target: int,
    upper: Tensor,
    global_budget: int,
    alpha: float,
) -> tuple[float, float]:
    r"""The relaxed linear program of the paper, by cvxpy and HiGHS.

    Equations 4a to 4d and 5, with :math:`\bar x_i = D_i \bar y_i`: the
    reference for :func:`dual_bound` with :obj:`cost='visits'`, far slower.
    HiGHS stops within its own tolerances on **either side** of the optimum
    (about 1e-7 here), so the value proves nothing by itself; the multiplier
    does, when :func:`dual_bound` or
    :func:`~pyg_trust.functional.policy_iteration` evaluates it.

    Needs memory for every fragile pair of the rows with a budget.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        reward (Tensor): :math:`r`, float64, ``[num_nodes]``.
        target (int): :math:`u`.
        upper (Tensor): float64, ``[num_nodes]``: :math:`\bar y(u)`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.

    Returns:
        tuple[float, float]: the optimum and the multiplier of the budget.

    Raises:
        RuntimeError: if the solver fails.
    """
    import cvxpy

    check_instance('perturbations', perturbations, Perturbations)
    follow = 1 - check_alpha(alpha)
    n = perturbations.num_nodes
    check_tensor('reward', reward, torch.float64, (n,), finite=True)
    check_integer('target', target, 0, n - 1)
    _check_upper(upper, (n,))
    check_budget('global_budget', global_budget)
    graph = perturbations.graph
    row, col, there = fragile_pairs(perturbations, perturbations.active)
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


def fragile_pairs(
    perturbations: Perturbations, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the fragile pairs of some rows, all pairs too.

    Args:
        perturbations (Perturbations): what may be flipped.
        rows (Tensor): int64: the rows, ascending.

    Returns:
        tuple[Tensor, Tensor, Tensor]: source, target, and whether it is an
        edge of the clean graph.
    """
    graph, n = perturbations.graph, perturbations.num_nodes
    wanted = torch.zeros(n, dtype=torch.bool)
    wanted[rows] = True
    old = perturbations.removable & wanted[graph.row]
    row, col = graph.row[old], graph.col[old]
    if perturbations.all_pairs:
        free = torch.ones((rows.numel(), n), dtype=torch.bool)
        place = torch.full((n,), -1)
        place[rows] = torch.arange(rows.numel())
        mine = wanted[graph.row]
        free[place[graph.row[mine]], graph.col[mine]] = False
        free[place[rows], rows] = False
        new_row, new_col = free.nonzero(as_tuple=True)
        new_row = rows[new_row]
    elif perturbations.addable is not None:
        mine = wanted[perturbations.addable[0]]
        new_row, new_col = perturbations.addable[:, mine]
    else:
        new_row = new_col = row[:0]
    there = torch.arange(row.numel() + new_row.numel()) < row.numel()
    return torch.cat([row, new_row]), torch.cat([col, new_col]), there


@dataclass(frozen=True)
class SingleFlip:
    """The exact worst case of at most one flip, by trying them all."""

    margins: Tensor
    """float64, ``[num_targets, num_classes]``: the smallest margin of the
    reference class over each class; infinite over itself."""
    error: float
    """How far roundoff and the solver may have moved any margin."""
    flips: Tensor
    """int64, ``[num_targets, num_classes, 2]``: the flip that attains it, -1
    where no flip lowers the margin."""


def single_flip_margins(
    logits: Tensor,
    perturbations: Perturbations,
    targets: Tensor,
    reference: Tensor,
    alpha: float,
    *,
    progress_bar: bool = False,
) -> SingleFlip:
    r"""The exact worst case for :math:`B = 1`, by brute force.

    A flip in row :math:`i` changes the transition row by :math:`\delta`, and
    by the formula of Sherman and Morrison the margin :math:`z = \alpha (I - a
    P)^{-1} r` becomes

    .. math::
        z_u + g_u \frac{a\, \delta^{\top} z}{1 - a\, \delta^{\top} g},
        \quad g = (I - a P)^{-1} e_i .

    Costs a linear system per row with a budget and a few operations per
    fragile pair, :math:`n^2` of them if all pairs are; memory for a block of
    rows at a time.

    **Error.** With residuals at most :math:`\epsilon_z` and
    :math:`\epsilon_g`, :math:`z` and :math:`g` are off by at most
    :math:`\eta = \epsilon / \alpha`. Here :math:`0 \le g_u \le g_i \le
    1/\alpha`, :math:`|\delta^\top z| \le s`, the spread of :math:`z`, and
    the denominator is the ratio of :math:`g_i` before and after the flip,
    at least :math:`\alpha`. To first order the change is off by at most
    :math:`\frac{\eta_g s}{\alpha} + \frac{2 \eta_z}{\alpha^2} + \frac{2
    \eta_g s}{\alpha^3}`; :obj:`error` is four times that plus :math:`2
    \eta_z`.

    Args:
        logits (Tensor): :math:`H`, ``[num_nodes, num_classes]``.
        perturbations (Perturbations): the admissible graphs.
        targets (Tensor): int64, ``[num_targets]``.
        reference (Tensor): int64, ``[num_targets]``: the class to defend.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        progress_bar (bool): whether to show one. (default: :obj:`False`)
    """
    check_instance('perturbations', perturbations, Perturbations)
    alpha = check_alpha(alpha)
    follow = 1 - alpha
    graph, n = perturbations.graph, perturbations.num_nodes
    check_logits(logits, graph)
    check_targets(targets, n)
    check_tensor('reference', reference, torch.int64, targets.shape)
    check_range('reference', reference, logits.size(1), 'the classes')
    logits = logits.detach().double()
    num_classes = logits.size(1)
    share = 1 / graph.degree.double()
    mean = sparse_rows(graph.rowptr, graph.col, share[graph.row], (n, n))
    policy = perturbations.clean_policy(num_classes)
    found = policy_value(policy, logits.t().contiguous(), alpha)
    z = alpha * found.value.t().contiguous()
    eta_z = alpha * float((found.high - found.low).max())
    mine = z[targets].gather(1, reference[:, None])
    margins = mine - z[targets]
    flips = torch.full((targets.numel(), num_classes, 2), -1)
    spread = float((z.amax(0) - z.amin(0)).max())
    eta_g = 0.0
    degree = graph.degree
    # With all pairs fragile, a number per node, column and pair of classes.
    active = perturbations.active.numel()
    blocks = list(perturbations.column_blocks(active, 4 * num_classes))
    for block in tqdm(blocks, disable=not progress_bar, desc='flips'):
        rows = perturbations.active[block]
        unit = torch.zeros((rows.numel(), n), dtype=torch.float64)
        unit[torch.arange(rows.numel()), rows] = 1
        policy = perturbations.clean_policy(rows.numel())
        found = policy_value(policy, unit, alpha, tol=1e-14)
        g, eta_g = (
            found.value,
            max(eta_g, float((found.high - found.low).max())),
        )
        row, col, there = fragile_pairs(perturbations, rows)
        place = torch.searchsorted(rows, row)
        mean_z = (mean @ z)[row]
        mean_g = (mean @ g.t())[row, place]
        sign = 1 - 2 * there.double()
        size = degree[row] + sign
        change = follow * (sign / size)[:, None] * (z[col] - mean_z)
        change = change / (
            1 - follow * (sign / size) * (g[place, col] - mean_g)
        ).unsqueeze(1)
        for c in range(num_classes):
            held = reference == c
            if not bool(held.any()):
                continue
            # The flip of each row that hurts c most against every class.
            drop = change[:, c, None] - change
            where = place[:, None].expand_as(drop)
            worst = drop.new_zeros((rows.numel(), num_classes))
            worst.scatter_reduce_(0, where, drop, 'amin')
            reach = g[:, targets[held]]
            lowered, which = (reach[:, :, None] * worst[:, None]).min(0)
            lowered += (mine - z[targets])[held]
            better = lowered < margins[held]
            margins[held] = torch.where(better, lowered, margins[held])
            pair = drop.new_full(worst.shape, row.numel()).long()
            hit = drop == worst[place]
            number = torch.arange(row.numel())[:, None].expand_as(drop)
            pair.scatter_reduce_(
                0, where, torch.where(hit, number, row.numel()), 'amin'
            )
            pair = pair.gather(0, which).clamp(max=row.numel() - 1)
            made = torch.stack([row[pair], col[pair]], dim=2)
            flips[held] = torch.where(better[:, :, None], made, flips[held])
    margins[torch.arange(targets.numel()), reference] = math.inf
    first_order = (
        eta_g * spread / alpha
        + 2 * eta_z / alpha**2
        + 2 * eta_g * spread / alpha**3
    )
    return SingleFlip(margins, 4 * first_order + 2 * eta_z, flips)


def budget_attacks(
    perturbations: Perturbations,
    reward: Tensor,
    targets: Tensor,
    upper: Tensor,
    multiplier: Tensor,
    global_budget: int,
    alpha: float,
    *,
    cost: str = 'pagerank',
    rounds: int = 5,
    progress_bar: bool = False,
) -> list[Tensor]:
    r"""Admissible attacks, from the solution of the relaxation.

    Starts with the policy that is optimal at the multiplier, cut down to its
    :math:`B` most effective flips: those with the largest
    :math:`\frac{\pi_i}{d_i} |V_j - m_i|`, where :math:`m_i` is the mean of
    :math:`V` over :math:`S_i`. Then takes the best policy for the
    values in that graph, cuts it down, and so on; the best graph counts. A
    heuristic; whoever uses an attack evaluates it.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        reward (Tensor): as in :func:`dual_bound`.
        targets (Tensor): as in :func:`dual_bound`.
        upper (Tensor): as in :func:`dual_bound`.
        multiplier (Tensor): float64, ``[num_columns]``.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): as in :func:`dual_bound`. (default: :obj:`'pagerank'`)
        rounds (int): how often. (default: :obj:`5`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        list[Tensor]: per column the edges to flip, ``[2, num_flips]``.
    """
    alpha = check_alpha(alpha)
    _check_problem(perturbations, reward, targets, upper, global_budget, cost)
    check_tensor('multiplier', multiplier, torch.float64, targets.shape)
    if not bool((multiplier >= 0).all()):
        raise ValueError("'multiplier' needs to be non-negative everywhere")
    check_integer('rounds', rounds, 0)
    made: list[Tensor] = []
    blocks = list(perturbations.column_blocks(targets.numel()))
    for block in tqdm(blocks, disable=not progress_bar, desc='attacks'):
        search = _DualSearch(
            perturbations,
            reward[block],
            targets[block],
            upper[block],
            global_budget,
            alpha,
            cost,
        )
        here = torch.arange(search.targets.numel())
        found = search.solve(here, multiplier[block], None, 1e-6)
        policy, value = found.policy, found.value
        best = reward.new_full((here.numel(),), -math.inf)
        pagerank = _pagerank(
            policy, search.targets, alpha, None, torch.full_like(best, 1e-9)
        )
        flips: list[Tensor] = [reward.new_zeros((2, 0)).long()] * len(here)
        for _ in range(rounds):
            tried = _most_effective(
                policy,
                value,
                # The mean of V over each row, but for its costs.
                (value - search.reward) / (1 - alpha),
                pagerank,
                global_budget,
            )
            policy = Policy.from_flips(perturbations, tried)
            value = policy_value(policy, search.reward, alpha, tol=1e-6).value
            at = value[here, search.targets]
            for column in (at > best).nonzero().view(-1).tolist():
                flips[column] = tried[column]
            best = torch.maximum(best, at)
            pagerank = _pagerank(
                policy,
                search.targets,
                alpha,
                None,
                torch.full_like(best, 1e-9),
            )
            policy = policy_iteration(
                perturbations, search.reward, alpha, start=value, max_iter=1
            ).policy
        made += flips
    return made


def _most_effective(
    policy: Policy,
    value: Tensor,
    mean: Tensor,
    pagerank: Tensor,
    budget: int,
) -> list[Tensor]:
    weight = pagerank / policy.perturbations.graph.degree
    made = []
    for column in range(policy.num_columns):
        flips = policy.edges(column)
        row, col = flips
        effect = (value[column, col] - mean[column, row]).abs()
        effect = effect * weight[column, row]
        order = effect.sort(descending=True, stable=True).indices
        made.append(flips[:, order[:budget]])
    return made
