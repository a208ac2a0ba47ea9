r"""Bounds of worst-case PageRank under local and global budgets.

With at most :math:`B` flips in all, on top of the local budgets, the worst
case of a target is hard to find (`Bojchevski and Günnemann 2019
<https://arxiv.org/abs/1910.14356>`_, Proposition 4), but easy to bound: every
flip has a price, and for **every** multiplier :math:`\lambda \ge 0` the worst
case with prices, plus :math:`\lambda B`, is a bound. The best multiplier gives
the optimum of the relaxed linear program; docs/theory has the proof.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Count,
    Fraction,
    Natural,
    OneOf,
    Positive,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.certificates.perturbations import Perturbations, Policy
from pyg_trust.certificates.policy import Horizon, Optimum, policy_iteration
from pyg_trust.distributed import shared
from pyg_trust.graph import sparse_rows

__all__ = [
    'BudgetBound',
    'clip_budget',
    'dual_bound',
    'flip_costs',
    'pagerank_bounds',
]

COSTS = ('pagerank', 'visits')
# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15

Cost = Annotated[str, OneOf(COSTS)]
#: The nodes of a problem, and numbers of each target at each node.
Targets = Annotated[
    Tensor, Array(torch.int64, 'num_targets', below='num_nodes')
]
Rewards = Annotated[
    Tensor, Array(torch.float64, 'num_targets', 'num_nodes', finite=True)
]
Bounds = Annotated[Tensor, Array(torch.float64, 'num_targets', 'num_nodes')]


def check_upper(upper: Tensor) -> None:
    """Refuse upper bounds that are not positive."""
    if not bool((upper > 0).all()):
        raise ValueError("'upper' needs to be positive everywhere")


@validated
def clip_budget(
    perturbations: Perturbations, budget: Natural
) -> Perturbations:
    """Lower each row's budget to the budget of the whole graph."""
    if int(perturbations.budget.max()) <= budget:
        return perturbations
    return perturbations.with_budget(perturbations.budget.clamp(max=budget))


@validated
def pagerank_bounds(
    perturbations: Perturbations,
    targets: Targets,
    alpha: Fraction,
    *,
    cost: Cost = 'pagerank',
    tol: Positive = 1e-9,
    over_ranks: bool = False,
) -> Tensor:
    r"""Bound PageRank from above over all admissible graphs.

    :math:`\bar\pi_t(u)` (:obj:`cost='pagerank'`) or :math:`\bar y_t(u)`, its
    share of one edge (:obj:`'visits'`), exact up to :obj:`tol` and never too
    small, for all teleport nodes :math:`u` in :obj:`targets`. Rows :math:`t`
    that cannot be perturbed have no price and get 1.

    Args:
        perturbations (Perturbations): the admissible graphs.
        targets (Tensor): int64, ``[num_targets]``: the nodes :math:`u`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): which of the two. (default: :obj:`'pagerank'`)
        tol (float): how far they are rounded up. (default: :obj:`1e-9`)
        over_ranks (bool): whether the processes of torchrun share the rows.
            (default: :obj:`False`)

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``.
    """
    return bounds_and_vectors(
        *(perturbations, targets, alpha, cost, tol, over_ranks)
    )[0]


def bounds_and_vectors(
    perturbations: Perturbations,
    targets: Tensor,
    alpha: float,
    cost: str,
    tol: float = 1e-9,
    over_ranks: bool = False,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return :func:`pagerank_bounds`, and with :obj:`keep` at all nodes."""
    active, n = perturbations.active, perturbations.num_nodes
    bounds = torch.ones((targets.numel(), n), dtype=torch.float64)
    vectors = []
    blocks = list(perturbations.column_blocks(active.numel()))

    def bounded(block: slice) -> tuple[Tensor, Tensor]:
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        visits = cost == 'visits'
        optimum = policy_iteration(
            perturbations,
            torch.zeros_like(unit) if visits else unit,
            alpha,
            bonus=unit if visits else None,
            tol=tol,
        )
        bound = alpha * (optimum.value + optimum.high[:, None])
        return bound[:, targets], bound if keep else bound[:0]

    with Bar(blocks, desc='PageRank') as bar:
        for block, (bound, whole) in zip(
            bar, shared(blocks, bounded, over_ranks), strict=True
        ):
            # At most one, as PageRank is a distribution.
            bounds[:, active[block]] = bound.t().clamp(max=1)
            vectors.append(whole)
    return bounds, torch.cat(vectors) if keep and vectors else None


class EdgeShares(NamedTuple):
    """Share of an edge's price that each direction pays."""

    removal: Tensor
    addition: Tensor


class Mirror(NamedTuple):
    """Positions of the opposite directions of edges and pairs."""

    perturbations: Perturbations
    edge: Tensor
    pair: Tensor

    @classmethod
    def of(cls, perturbations: Perturbations) -> 'Mirror':
        """Find the opposite directions; -1 where none is fragile."""
        if perturbations.all_pairs:
            raise ValueError(
                "'perturbations' needs to list its additions for undirected "
                'prices (got all pairs)'
            )
        n, graph = perturbations.num_nodes, perturbations.graph
        places = []
        for (row, col), free in (
            ((graph.row, graph.col), perturbations.removable),
            (perturbations.pairs, None),
        ):
            key, other = row * n + col, col * n + row
            place = torch.searchsorted(key, other)
            place = place.clamp(max=max(key.numel() - 1, 0))
            here = (key[place] == other) & (row != col)
            if free is not None:
                here &= free[place]
            places.append(torch.where(here, place, -1))
        return cls(perturbations, *places)

    def shares(
        self, value: Tensor, signal: Tensor, upper: Tensor, horizon: Horizon
    ) -> EdgeShares:
        r"""Split prices by the gain of a flip in either row.

        A flip of :math:`(i, j)` by itself raises the step at :math:`i` by
        :math:`g_{ij}`. With :math:`w_{ij} = \bar\pi_i \max(g_{ij}, 0)` and the
        shares :math:`w_{ij} / (w_{ij} + w_{ji})` neither direction pays from
        the least possible multiplier on. Any shares are valid.
        """
        graph = self.perturbations.graph
        follow = 1 - horizon.alpha
        degree = graph.degree.double()
        size = (graph.num_nodes, graph.num_nodes)
        part = 1 / degree.clamp(min=1)
        matrix = sparse_rows(graph.rowptr, graph.col, part[graph.row], size)
        mean = (matrix @ value.t()).t()
        shares = []
        for row, col, sign, place in (
            (graph.row, graph.col, -1, self.edge),
            (*self.perturbations.pairs, 1, self.pair),
        ):
            gain = flip_gains(
                *(value, mean, signal, degree, row, col),
                *(sign, follow, horizon.normalization),
            )
            worth = (gain * upper[:, row]).clamp(min=0)
            both = worth + worth[:, place]
            share = torch.where(both > 0, worth / both, 0.5)
            # A direction without its opposite pays the whole price.
            shares.append(share.masked_fill(place < 0, 1))
        return EdgeShares(*shares)


def flip_gains(
    value: Tensor,
    mean: Tensor,
    signal: Tensor,
    size: Tensor,
    row: Tensor,
    col: Tensor,
    sign: Tensor | int,
    follow: float,
    normalization: str,
) -> Tensor:
    """Return what each flip adds to the step at its source."""
    old = size[..., row]
    after = old + sign
    gain = sign * (value[:, col] - mean[:, row]) / after.clamp(min=1)
    # The last edge empties the row.
    gain = follow * torch.where(after < 1, -mean[:, row], gain)
    if normalization == 'sym':
        change = after.clamp(min=1).rsqrt() - old.clamp(min=1).rsqrt()
        gain = gain + signal[:, row] * change
    return gain


def flip_costs(
    perturbations: Perturbations,
    upper: Tensor,
    multiplier: Tensor,
    cost: str,
    shares: EdgeShares | None = None,
) -> dict[str, Any]:
    """Return the prices of flips at one multiplier per column.

    Returns:
        dict[str, Tensor]: arguments of :func:`.policy_iteration`.
    """
    price = multiplier[:, None] * _DOWN / upper
    if cost == 'visits':
        return {'visit_cost': price}
    if shares is None:
        return {'step_cost': price}
    row, pair = perturbations.graph.row, perturbations.pairs
    return {
        'removal_cost': price[:, row] * shares.removal,
        'addition_cost': price[:, pair[0]] * shares.addition,
    }


@dataclass(frozen=True)
class BudgetBound:
    """Bounds on the worst case of some targets under a global budget.

    Args:
        bound (Tensor): float64, ``[num_columns]``: no admissible graph
            exceeds it.
        optimum (Tensor): about how far :obj:`bound` can fall at most: a lower
            bound on the optimum of the relaxation, up to the solver's
            tolerance; 0 with K steps.
        multiplier (Tensor): the multipliers that prove :obj:`bound`.
        shares (EdgeShares, optional): the shares that prove it, of undirected
            edges.
    """

    bound: Tensor
    optimum: Tensor
    multiplier: Tensor
    shares: EdgeShares | None = None


@validated
def dual_bound(
    perturbations: Perturbations,
    reward: Rewards,
    targets: Targets,
    upper: Bounds,
    global_budget: Natural,
    alpha: Fraction,
    *,
    cost: Cost = 'pagerank',
    sign_only: bool = False,
    start: Rewards | None = None,
    clean: Annotated[Tensor, Array(torch.float64, 'num_targets', finite=True)]
    | None = None,
    K: Natural | None = None,
    normalization: str = 'rw',
    undirected: bool = False,
    rounds: Count = 4,
    tol: Positive = 1e-9,
    max_iter: Count = 60,
) -> BudgetBound:
    r"""Bound :math:`\max_{\tilde G} \pi_{\tilde G}(u)^\top r` from above.

    .. math::
        \min_{\lambda \ge 0} \lambda B + \alpha V^{(\lambda)}_u

    for many pairs of a reward and a target at once. The bound holds whenever
    it stops, roundoff included.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets; clip them first (:func:`clip_budget`) for a tighter bound.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        targets (Tensor): int64, ``[num_columns]``: :math:`u`.
        upper (Tensor): float64, ``[num_columns, num_nodes]``: upper bounds
            as :func:`pagerank_bounds` makes them, of the same :obj:`cost`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): the price of a flip. (default: :obj:`'pagerank'`)
        sign_only (bool): stop as soon as the bound is negative, or it is clear
            that the relaxation's optimum is not. (default: :obj:`False`)
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
        rounds (int): how often the shares are chosen anew. (default: :obj:`4`)
        tol (float): stop within this of the relaxation's optimum, relative to
            the largest reward. (default: :obj:`1e-9`)
        max_iter (int): the largest number of multipliers tried.
            (default: :obj:`60`)

    Returns:
        BudgetBound: the bounds, in the order of the columns.
    """
    check_upper(upper)
    horizon = Horizon(alpha, K, normalization)
    if undirected and cost != 'pagerank':
        raise ValueError(
            f"'undirected' needs the cost 'pagerank' (got {cost!r})"
        )
    mirror = Mirror.of(perturbations) if undirected else None
    count, numbers = targets.numel(), 1
    if undirected:
        prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
        numbers += 4 * prices // perturbations.num_nodes
    blocks = list(perturbations.column_blocks(count, numbers))
    found = []
    for block in Bar(blocks, desc='bounds'):
        search = _DualSearch(
            perturbations,
            *(reward[block], targets[block], upper[block]),
            *(global_budget, horizon, cost),
        )
        first = None if start is None else start[block]
        known = None if clean is None else clean[block]
        options = sign_only, tol, max_iter
        if mirror is None:
            search.run(first, known, *options)
        else:
            search.share(mirror, first, known, rounds, *options)
        found.append(search)
    if not found:
        none = reward.new_zeros(0)
        return BudgetBound(none, none, none)
    parts = [s.shares for s in found if s.shares is not None]
    return BudgetBound(
        torch.cat([s.bound for s in found]),
        torch.cat([s.predicted() * (K is None) for s in found]),
        torch.cat([s.multiplier for s in found]),
        EdgeShares(*map(torch.cat, zip(*parts, strict=True)))
        if parts
        else None,
    )


class _DualSearch:
    r"""Minimize the dual function of a block of columns.

    A policy with objective o and cost c (both of its own graph) supports the
    dual function by the line :math:`o + \lambda (B - c)`. 'cheap' is the line
    of a policy with :math:`c \le B`, 'dear' of one with :math:`c > B`; the
    minimum lies above the point where they meet, the next multiplier.
    """

    shares: EdgeShares | None = None

    def __init__(
        self,
        perturbations: Perturbations,
        signal: Tensor,
        targets: Tensor,
        upper: Tensor,
        budget: int,
        horizon: Horizon,
        cost: str,
    ) -> None:
        self.perturbations = perturbations
        self.signal, self.targets, self.upper = signal, targets, upper
        self.budget, self.horizon, self.cost = budget, horizon, cost
        self.value = signal / horizon.alpha
        self.multiplier = signal.new_zeros(targets.numel())
        self.pagerank: Tensor | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the bounds and the lines."""
        self.bound = torch.full_like(self.multiplier, math.inf)
        # Without a policy yet, the lines restrict nothing.
        self.cheap = self.signal.new_full((2, len(self.bound)), math.nan)
        self.dear = self.cheap.clone()

    def run(
        self,
        start: Tensor | None,
        clean: Tensor | None,
        sign_only: bool,
        tol: float,
        max_iter: int,
    ) -> None:
        """Lower the bound until no step improves it."""
        if self.horizon.K is not None:
            self.of_steps(sign_only, tol, max_iter)
            return
        scale = self.signal.abs().amax(1).clamp(min=1e-300)
        if start is not None:
            self.value = start.clone()
        trial = torch.zeros_like(self.multiplier)
        live = torch.arange(self.targets.numel())
        # A sign needs less exact lines than a tight bound.
        self.care, self.coarse = (1e2, 1e-6) if sign_only else (1e4, 1e-10)
        if clean is None:
            policy = self.perturbations.clean_policy(live.numel())
            sure = torch.full_like(scale, 1e-6 if sign_only else 1e-9)
            self.cheap = self.line(policy, live, sure)
        else:
            self.cheap = torch.stack([clean, torch.zeros_like(clean)])
        precision = torch.full_like(scale, 1e-4)
        for _ in range(max_iter):
            optimum = self.solve(live, trial[live], precision[live])
            self.value[live] = optimum.value
            line = self.line(optimum.policy, live, precision[live])
            fits = line[1] <= self.budget
            self.cheap[:, live[fits]] = line[:, fits]
            self.dear[:, live[~fits]] = line[:, ~fits]
            gap = (self.bound - self.predicted()) / scale
            left = gap > tol
            if sign_only:
                # The prediction is about as exact as the last values.
                below = self.predicted() < precision * scale
                left &= (self.bound >= 0) & below
            live = left.nonzero().view(-1)
            if live.numel() == 0:
                return
            trial = self.crossing()
            # A hundred times more precise than the possible gain.
            precision = precision.minimum(gap / 100).clamp(min=tol / 10)

    def solve(
        self, columns: Tensor, multiplier: Tensor, tol: Tensor | float
    ) -> Optimum:
        """Find the best policies at some multipliers, and their bounds."""
        shares = self.shares
        if shares is not None:
            shares = EdgeShares(*(part[columns] for part in shares))
        optimum = self.horizon.maximize(
            self.perturbations,
            self.signal[columns],
            start=self.value[columns],
            tol=tol,
            **flip_costs(
                self.perturbations,
                self.upper[columns],
                multiplier,
                self.cost,
                shares,
            ),
        )
        here = torch.arange(columns.numel())
        top = optimum.value[here, self.targets[columns]] + optimum.high
        bound = multiplier * self.budget + self.horizon.alpha * top
        better = bound < self.bound[columns]
        self.bound[columns[better]] = bound[better]
        self.multiplier[columns[better]] = multiplier[better]
        return optimum

    def share(
        self,
        mirror: Mirror,
        start: Tensor | None,
        clean: Tensor | None,
        rounds: int,
        *options: float,
    ) -> None:
        """Alternate between splitting prices of edges and solving."""
        if start is None:
            start = self.horizon.maximize(
                self.perturbations, self.signal, tol=1e-6
            ).value
        self.value = start
        best: tuple[Tensor, ...] = ()
        for _ in range(rounds):
            self.shares = mirror.shares(
                self.value, self.signal, self.upper, self.horizon
            )
            self.reset()
            self.run(self.value, clean, *options)  # type: ignore[arg-type]
            now: tuple[Tensor, ...] = (
                self.bound,
                self.multiplier.clone(),
                *self.shares,
            )
            if best:
                better = self.bound < best[0]
                now = tuple(
                    torch.where(
                        better if x.dim() == 1 else better[:, None], x, y
                    )
                    for x, y in zip(now, best, strict=True)
                )
            best = now
            if options[0] and bool((best[0] < 0).all()):
                break
        self.bound, self.multiplier = best[:2]
        self.shares = EdgeShares(*best[2:])

    def of_steps(self, sign_only: bool, tol: float, max_iter: int) -> None:
        """Refine the multipliers of the limit for K steps, by halving."""
        every = torch.arange(self.targets.numel())
        limit = _DualSearch(
            *(self.perturbations, self.signal, self.targets, self.upper),
            *(self.budget, replace(self.horizon, K=None), self.cost),
        )
        limit.shares = self.shares
        limit.run(None, None, False, max(tol, 1e-3), max_iter)
        middle = limit.multiplier
        trials = [torch.zeros_like(middle), middle]
        step = middle / 2 + 1e-3 * self.signal.abs().amax(1)
        for _ in range(1 + min(5, max_iter)):
            for trial in trials:
                self.solve(every, trial.clamp(min=0), 1e-12)
            if sign_only and bool((self.bound < 0).all()):
                break
            trials = [self.multiplier - step, self.multiplier + step]
            step = step / 2

    def line(
        self, policy: Policy, columns: Tensor, precision: Tensor
    ) -> Tensor:
        """Return the objective and the cost of a policy, in its own graph."""
        pagerank = pagerank_of(
            policy,
            self.targets[columns],
            self.horizon.alpha,
            None if self.pagerank is None else self.pagerank[columns],
            (precision / self.care).clamp(1e-13, self.coarse),
        )
        if self.pagerank is None:
            self.pagerank = pagerank
        else:
            self.pagerank[columns] = pagerank
        part = pagerank / self.upper[columns]
        signal = self.horizon.scaled(policy, self.signal[columns])
        gained = (pagerank * signal).sum(1)
        if self.shares is not None:
            row, pair = self.perturbations.graph.row, self.perturbations.pairs
            spent = policy.total(
                part[:, row] * self.shares.removal[columns],
                part[:, pair[0]] * self.shares.addition[columns],
            )
        else:
            flips = policy.flips * part
            if self.cost == 'visits':
                flips = flips / policy.size.clamp(min=1)
            spent = flips.sum(1)
        return torch.stack([gained, spent])

    def crossing(self) -> Tensor:
        """Return the multiplier at which two lines meet, or zero."""
        (low, spent), (high, more) = self.cheap, self.dear
        return ((high - low) / (more - spent)).nan_to_num(0).clamp(min=0)

    def predicted(self) -> Tensor:
        """Return the height at which two lines meet."""
        objective, spent = self.cheap
        return objective + self.crossing() * (self.budget - spent)


def pagerank_of(
    policy: Policy,
    nodes: Tensor,
    alpha: float,
    start: Tensor | None,
    tol: Tensor,
) -> Tensor:
    """Compute personalized PageRank of one node per column, in its graph."""
    shape = nodes.numel(), policy.perturbations.num_nodes
    teleport = torch.zeros(shape, dtype=torch.float64)
    teleport[torch.arange(nodes.numel()), nodes] = alpha
    first = teleport if start is None else start
    return policy.solve(teleport, 1 - alpha, first, tol, back=True)[0]
