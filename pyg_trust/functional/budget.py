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
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from pyg_trust.distributed import shared
from pyg_trust.functional.diffusion import check_alpha
from pyg_trust.functional.horizon import Horizon, Prices
from pyg_trust.functional.perturbations import Perturbations, Policy
from pyg_trust.functional.policy import Optimum, policy_iteration
from pyg_trust.graph import sparse_rows

COSTS = ('pagerank', 'visits')
# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15
# Steps of golden section: each takes a third off what is left.
_GOLDEN = 8


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


def check_problem(
    perturbations: Perturbations,
    reward: Tensor,
    targets: Tensor,
    upper: Tensor,
    global_budget: int,
    cost: str,
) -> None:
    """Checks what all bounds under a global budget take."""
    check_instance('perturbations', perturbations, Perturbations)
    _check_cost(cost)
    check_budget('global_budget', global_budget)
    n = perturbations.num_nodes
    check_targets(targets, n)
    shape = (targets.numel(), n)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    check_upper(upper, shape)


def check_upper(upper: Tensor, shape: tuple[int, ...]) -> None:
    """Checks upper bounds: positive, of a shape."""
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
    over_ranks: bool = False,
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
        over_ranks (bool): whether the processes of torchrun share the rows.
            (default: :obj:`False`)
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

    def bounded(block: slice) -> Tensor:
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
        return bound[:, targets]

    with tqdm(blocks, disable=not progress_bar, desc='PageRank') as bar:
        for block, bound in zip(
            bar, shared(blocks, bounded, over_ranks), strict=True
        ):
            # At most one, as PageRank is a distribution.
            made[:, active[block]] = bound.t().clamp(max=1)
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
    K: int | None = None,
    normalization: str = 'rw',
    undirected: bool = False,
    rounds: int = 4,
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
        K (int, optional): as in :class:`Horizon`. (default: :obj:`None`)
        normalization (str): as in :class:`Horizon`. (default: :obj:`'rw'`)
        undirected (bool): whether :math:`B` counts undirected edges, each of
            which has one price, shared by its two directions; for the cost
            :obj:`'pagerank'`. (default: :obj:`False`)
        rounds (int): how often the shares are chosen anew.
            (default: :obj:`4`)
        tol (float): stop within this of the relaxation's optimum, relative to
            the largest reward. (default: :obj:`1e-9`)
        max_iter (int): the largest number of multipliers tried.
            (default: :obj:`60`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        BudgetBound: the bounds, in the order of the columns.
    """
    alpha = check_alpha(alpha)
    check_problem(perturbations, reward, targets, upper, global_budget, cost)
    if start is not None:
        check_tensor('start', start, torch.float64, reward.shape, finite=True)
    if clean is not None:
        check_tensor('clean', clean, torch.float64, targets.shape, finite=True)
    check_positive('tol', tol)
    check_integer('max_iter', max_iter, 1)
    check_integer('rounds', rounds, 1)
    check_instance('undirected', undirected, bool)
    horizon = Horizon(alpha, K, normalization)
    if undirected and cost != 'pagerank':
        raise ValueError(
            f"'undirected' needs the cost 'pagerank' (got {cost!r})"
        )
    if undirected:
        mirror = Mirror.of(perturbations)
    count = targets.numel()
    bound = reward.new_full((count,), math.inf)
    optimum = reward.new_zeros(count)
    multiplier = reward.new_zeros(count)
    numbers = 1
    if undirected:
        prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
        numbers += 4 * prices // perturbations.num_nodes
    blocks = list(perturbations.column_blocks(count, numbers))
    for block in tqdm(blocks, disable=not progress_bar, desc='bounds'):
        search = DualSearch(
            perturbations,
            reward[block],
            targets[block],
            upper[block],
            global_budget,
            horizon,
            cost,
        )
        first = None if start is None else start[block]
        known = None if clean is None else clean[block]
        if undirected:
            search.share(
                mirror, first, known, sign_only, tol, max_iter, rounds
            )
        else:
            search.run(first, known, sign_only, tol, max_iter)
        bound[block] = search.bound
        if K is None:
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
    undirected: bool = False,
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
        undirected (bool): as in :func:`dual_bound`: :math:`B` counts
            undirected edges, each with one price. (default: :obj:`False`)
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
    check_upper(upper, (targets.numel(), n))
    check_positive('tol', tol)
    made = upper.clone()
    active = perturbations.active
    clean = pagerank_of(
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
                undirected=undirected,
                start=start[some],
                clean=clean[k, row[some]],
                tol=tol,
            )
            # A row that is never reached has a bound of zero, and no price.
            bound = found.bound.clamp(min=torch.finfo(torch.float64).eps)
            made[k, row[some]] = bound.minimum(upper[k, row[some]])
    return made


class EdgeShares(NamedTuple):
    r"""The part of an edge's price that each direction pays.

    Args:
        removal (Tensor): of the edges, ``[num_columns, num_edges]``.
        addition (Tensor): of the pairs, ``[num_columns, num_pairs]``.
    """

    removal: Tensor
    addition: Tensor


class Mirror(NamedTuple):
    """The positions of the opposite directions of edges and pairs."""

    perturbations: Perturbations
    edge: Tensor
    pair: Tensor

    @classmethod
    def of(cls, perturbations: Perturbations) -> 'Mirror':
        """Finds them: -1 where there is none that is fragile."""
        if perturbations.all_pairs:
            raise ValueError(
                "'perturbations' needs to list its additions for undirected "
                'prices (got all pairs)'
            )
        n, graph = perturbations.num_nodes, perturbations.graph
        made = []
        for (row, col), goes in (
            ((graph.row, graph.col), perturbations.removable),
            (perturbations.pairs, None),
        ):
            key, other = row * n + col, col * n + row
            place = torch.searchsorted(key, other)
            place = place.clamp(max=max(key.numel() - 1, 0))
            here = key[place] == other
            if goes is not None:
                here &= goes[place]
            made.append(torch.where(here & (row != col), place, -1))
        return cls(perturbations, *made)

    def shares(
        self, value: Tensor, signal: Tensor, upper: Tensor, horizon: Horizon
    ) -> EdgeShares:
        r"""Shares by what a flip gains in either row.

        A flip of :math:`(i, j)` by itself raises the step at :math:`i` by
        :math:`g_{ij}`, and pays as long as :math:`\lambda \theta_{ij} /
        \bar\pi_i < g_{ij}`. With :math:`\theta_{ij} = w_{ij} / (w_{ij} +
        w_{ji})`, :math:`w_{ij} = \bar\pi_i \max(g_{ij}, 0)`, neither
        direction pays from :math:`\lambda = w_{ij} + w_{ji}` on, the least
        possible. Any shares are valid.
        """
        graph = self.perturbations.graph
        follow = 1 - horizon.alpha
        degree = graph.degree.double()
        size = (graph.num_nodes, graph.num_nodes)
        part = 1 / degree.clamp(min=1)
        matrix = sparse_rows(graph.rowptr, graph.col, part[graph.row], size)
        mean = (matrix @ value.t()).t()
        made = []
        for row, col, sign, place in (
            (graph.row, graph.col, -1, self.edge),
            (*self.perturbations.pairs, 1, self.pair),
        ):
            after = (degree + sign)[row]
            gain = follow * sign * (value[:, col] - mean[:, row])
            gain = gain / after.clamp(min=1)
            # The last edge takes all with it, the first one is alone.
            alone = after < 1 if sign < 0 else after <= 1
            last = -mean[:, row] if sign < 0 else value[:, col]
            gain = torch.where(alone, follow * last, gain)
            if horizon.normalization == 'sym':
                old = degree[row].clamp(min=1).rsqrt()
                gain = gain + signal[:, row] * (
                    after.clamp(min=1).rsqrt() - old
                )
            worth = (gain * upper[:, row]).clamp(min=0)
            both = worth + worth[:, place]
            part = torch.where(both > 0, worth / both, 0.5)
            # Where the other direction can't flip, this one pays all.
            made.append(part.masked_fill(place < 0, 1))
        return EdgeShares(*made)


class DualSearch:
    r"""Minimizes the dual function of a block of columns.

    A policy with objective o and cost c (both of its own graph) supports the
    dual function by the line :math:`o + \lambda (B - c)`. 'cheap' is the line
    of a policy with :math:`c \le B`, 'dear' of one with :math:`c > B`; the
    minimum lies above the point where they meet, the next multiplier.
    """

    def __init__(
        self,
        perturbations: Perturbations,
        signal: Tensor,
        targets: Tensor,
        upper: Tensor,
        budget: int,
        horizon: Horizon,
        cost: str,
        shares: EdgeShares | None = None,
    ) -> None:
        self.perturbations = perturbations
        self.signal, self.targets, self.upper = signal, targets, upper
        self.budget, self.horizon, self.cost = budget, horizon, cost
        self.alpha = horizon.alpha
        self.shares = shares
        count = targets.numel()
        self.bound = signal.new_full((count,), math.inf)
        self.multiplier = signal.new_zeros(count)
        self.value = signal / self.alpha
        self.pagerank: Tensor | None = None
        # No policy yet: lines that never restrict the search.
        self.cheap = signal.new_full((2, count), math.nan)
        self.dear = self.cheap.clone()

    def run(
        self,
        start: Tensor | None,
        clean: Tensor | None,
        sign_only: bool,
        tol: float,
        max_iter: int,
    ) -> None:
        """Lowers the bound until nothing is left to gain."""
        if self.horizon.K is not None:
            self.golden(sign_only, tol, max_iter)
            return
        scale = self.signal.abs().amax(1).clamp(min=1e-300)
        if start is not None:
            self.value = start.clone()
        value = self.value
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
        return self.horizon.maximize(
            self.perturbations,
            self.signal[columns],
            prices=self.prices(columns, multiplier),
            start=start,
            tol=precision,
        )

    def prices(self, columns: Tensor, multiplier: Tensor) -> Prices:
        """What flips cost at a multiplier per column."""
        price = multiplier[:, None] * _DOWN / self.upper[columns]
        if self.cost == 'visits':
            return Prices(visit=price)
        if self.shares is None:
            return Prices(step=price)
        row, pair = self.perturbations.graph.row, self.perturbations.pairs
        return Prices(
            removal=price[:, row] * self.shares.removal[columns],
            addition=price[:, pair[0]] * self.shares.addition[columns],
        )

    def share(
        self,
        mirror: 'Mirror',
        start: Tensor | None,
        clean: Tensor | None,
        sign_only: bool,
        tol: float,
        max_iter: int,
        rounds: int,
    ) -> None:
        """Shares the price of an edge between its directions, again, again."""
        every = torch.arange(self.targets.numel())
        if start is None:
            free = self.horizon.maximize(
                self.perturbations, self.signal, tol=1e-6
            )
            start = free.value
        best = self.bound.clone(), self.multiplier.clone()
        value = start
        for _ in range(rounds):
            self.shares = mirror.shares(
                value, self.signal, self.upper[every], self.horizon
            )
            self.bound = torch.full_like(self.bound, math.inf)
            self.cheap = torch.full_like(self.cheap, math.nan)
            self.dear = self.cheap.clone()
            self.run(value, clean, sign_only, tol, max_iter)
            value = self.value
            better = self.bound < best[0]
            best = (
                torch.where(better, self.bound, best[0]),
                torch.where(better, self.multiplier, best[1]),
            )
            if sign_only and bool((best[0] < 0).all()):
                break
        self.bound, self.multiplier = best

    def golden(self, sign_only: bool, tol: float, max_iter: int) -> None:
        """Golden section around the multipliers of the limit: for K steps."""
        every = torch.arange(self.targets.numel())
        limit = DualSearch(
            self.perturbations,
            self.signal,
            self.targets,
            self.upper,
            self.budget,
            replace(self.horizon, K=None),
            self.cost,
            self.shares,
        )
        limit.run(None, None, False, max(tol, 1e-3), max_iter)

        def height(multiplier: Tensor) -> Tensor:
            found = self.solve(every, multiplier, None, 1e-12)
            top = found.value[every, self.targets] + found.high
            made = multiplier * self.budget + self.alpha * top
            better = made < self.bound
            self.bound = torch.where(better, made, self.bound)
            self.multiplier = torch.where(better, multiplier, self.multiplier)
            self.value = torch.where(better[:, None], found.value, self.value)
            return made

        middle = limit.multiplier
        height(torch.zeros_like(middle))
        height(middle)
        scale = self.signal.abs().amax(1)
        low, high = middle / 4, 2 * middle + 1e-3 * scale
        ratio = (math.sqrt(5) - 1) / 2
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = height(left), height(right)
        for _ in range(min(max_iter, _GOLDEN)):
            if sign_only and bool((self.bound < 0).all()):
                break
            down = at_left < at_right
            low = torch.where(down, low, left)
            high = torch.where(down, right, high)
            left = high - ratio * (high - low)
            right = low + ratio * (high - low)
            fresh = torch.where(down, left, right)
            made = height(fresh)
            at_left, at_right = (
                torch.where(down, made, at_right),
                torch.where(down, at_left, made),
            )

    def line(
        self, policy: Policy, columns: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The objective and the cost of a policy, in its own graph."""
        pagerank = pagerank_of(
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
        part = pagerank / self.upper[columns]
        signal = self.signal[columns]
        if self.horizon.normalization == 'sym':
            signal = signal / policy.size.clamp(min=1).double().sqrt()
        gained = (pagerank * signal).sum(1)
        if self.shares is not None:
            row, pair = self.perturbations.graph.row, self.perturbations.pairs
            return gained, policy.total(
                part[:, row] * self.shares.removal[columns],
                part[:, pair[0]] * self.shares.addition[columns],
            )
        spent = policy.flips * part
        if self.cost == 'visits':
            spent = spent / policy.size.clamp(min=1)
        return gained, spent.sum(1)

    def crossing(self) -> Tensor:
        """Where the lines meet; zero where there is no dear one."""
        (low, spent), (high, more) = self.cheap, self.dear
        return ((high - low) / (more - spent)).nan_to_num(0).clamp(min=0)

    def predicted(self) -> Tensor:
        """The height of the lines where they meet."""
        objective, spent = self.cheap
        return objective + self.crossing() * (self.budget - spent)


def pagerank_of(
    policy: Policy,
    nodes: Tensor,
    alpha: float,
    start: Tensor | None,
    tol: Tensor,
) -> Tensor:
    """Personalized PageRank of a node per column, in its graph.

    Args:
        policy (Policy): a graph per column.
        nodes (Tensor): int64, ``[num_columns]``.
        alpha (float): the teleport probability.
        start (Tensor, optional): a guess.
        tol (Tensor): the largest residual, by column.
    """
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
