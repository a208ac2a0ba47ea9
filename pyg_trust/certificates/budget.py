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
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._progress import Bar
from pyg_trust.certificates.policy import Horizon, Optimum, policy_iteration
from pyg_trust.certificates.threat import Perturbations, Policy
from pyg_trust.distributed import shared
from pyg_trust.graph import sparse_rows

__all__ = ['BudgetBound', 'dual_bound', 'linear_program', 'pagerank_bounds']

# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15


def pagerank_bounds(
    perturbations: Perturbations,
    targets: Tensor,
    alpha: float,
    *,
    cost: str = 'pagerank',
    over_ranks: bool = False,
    vectors: list[Tensor] | None = None,
) -> Tensor:
    r"""Bound PageRank from above over all admissible graphs.

    :math:`\bar\pi_t(u)` (:obj:`cost='pagerank'`) or :math:`\bar y_t(u)`, its
    share of one edge (:obj:`'visits'`), never too small and by 1e-9 too large,
    for all :math:`u` in :obj:`targets`: ``[num_targets, num_nodes]``. Rows
    :math:`t` that cannot be perturbed have no price and get 1. The bounds of
    all teleport nodes are appended to :obj:`vectors`.
    """
    active, n = perturbations.active, perturbations.num_nodes
    bounds = torch.ones((targets.numel(), n), dtype=torch.float64)
    blocks = list(perturbations.column_blocks(active.numel()))

    def bounded(block: slice) -> tuple[Tensor, Tensor]:
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        reward, more = unit, dict[str, Any]()
        if cost == 'visits':
            reward, more = torch.zeros_like(unit), {'bonus': unit}
        optimum = policy_iteration(
            perturbations, reward, alpha, tol=1e-9, **more
        )
        bound = alpha * (optimum.value + optimum.high[:, None])
        return bound[:, targets], bound[: 0 if vectors is None else None]

    with Bar(blocks, desc='PageRank') as bar:
        for block, (bound, whole) in zip(
            bar, shared(blocks, bounded, over_ranks), strict=True
        ):
            # At most one, as PageRank is a distribution.
            bounds[:, active[block]] = bound.t().clamp(max=1)
            if vectors is not None:
                vectors.append(whole)
    return bounds


class EdgeShares(NamedTuple):
    """Share of an edge's price that each direction pays."""

    removal: Tensor
    addition: Tensor

    def of(self, columns: Tensor | slice) -> 'EdgeShares':
        """Return those of some columns."""
        return EdgeShares(self.removal[columns], self.addition[columns])


class Mirror(NamedTuple):
    """Positions of the opposite directions of edges and pairs."""

    perturbations: Perturbations
    edge: Tensor
    pair: Tensor

    @classmethod
    def of(cls, perturbations: Perturbations) -> 'Mirror':
        """Find the opposite directions; -1 where none is fragile."""
        n, graph = perturbations.num_nodes, perturbations.graph
        places = []
        for row, col, free in (
            (graph.row, graph.col, perturbations.removable),
            (*perturbations.pairs, None),
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
                *(value, mean, signal, degree, row, col, sign, horizon)
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
    horizon: Horizon,
) -> Tensor:
    """Return what each flip adds to the step at its source."""
    old = size[..., row]
    after = old + sign
    gain = sign * (value[:, col] - mean[:, row]) / after.clamp(min=1)
    # The last edge empties the row.
    gain = torch.where(after < 1, -mean[:, row], gain)
    gain = (1 - horizon.alpha) * gain
    if horizon.normalization == 'sym':
        change = after.clamp(min=1).rsqrt() - old.clamp(min=1).rsqrt()
        gain = gain + signal[:, row] * change
    return gain


def flip_costs(
    perturbations: Perturbations,
    upper: Tensor,
    multiplier: Tensor,
    cost: str,
    shares: EdgeShares | None = None,
) -> dict[str, Tensor]:
    """Return the prices of flips at one multiplier per column."""
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


class BudgetBound(NamedTuple):
    """Bounds of targets' worst cases under a global budget.

    No admissible graph exceeds ``bound``, which ``multiplier``, the largest
    scores with its prices (``proof``) and, of undirected edges, ``shares``
    prove. It can fall to ``optimum`` at most, up
    to the solver's tolerance (0 with K steps).
    """

    bound: Tensor
    optimum: Tensor
    multiplier: Tensor
    proof: Tensor
    shares: EdgeShares | None = None


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
) -> BudgetBound:
    r"""Bound :math:`\max_{\tilde G} \pi_{\tilde G}(u)^\top r` from above.

    .. math::
        \min_{\lambda \ge 0} \lambda B + \alpha V^{(\lambda)}_u

    for pairs of a reward, ``[num_columns, num_nodes]``, and a target
    :math:`u`, whatever it stops at, roundoff included. :obj:`upper` are
    :func:`pagerank_bounds` of the same :obj:`cost`. With :obj:`sign_only` it
    stops as soon as the bound is negative, or it is clear that the
    relaxation's optimum is not; else within :obj:`tol` of that optimum,
    relative to the largest reward, or after :obj:`max_iter` multipliers.
    :obj:`start` guesses :math:`V^{(0)}`, :obj:`clean` guesses
    :math:`\pi(u)^{\top} r` in the clean graph; neither can make the bound
    wrong. With :obj:`undirected`, :math:`B` counts undirected edges, each of
    which has one price, shared by its two directions (anew in each of
    :obj:`rounds`); for the cost :obj:`'pagerank'`.
    """
    horizon = Horizon(alpha, K, normalization)
    mirror = Mirror.of(perturbations) if undirected else None
    numbers = 1
    if undirected:
        prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
        numbers += 4 * prices // perturbations.num_nodes
    blocks = list(perturbations.column_blocks(targets.numel(), numbers))
    found = []
    for block in Bar(blocks, desc='bounds'):
        search = _DualSearch(
            *(perturbations, reward[block], targets[block], upper[block]),
            *(global_budget, horizon, cost),
            *(sign_only, tol, max_iter),
        )
        first = None if start is None else start[block]
        known = None if clean is None else clean[block]
        if mirror is None:
            search.run(first, known)
        else:
            search.share(mirror, first, known, rounds)
        found.append(search)
    parts = [s.shares for s in found if s.shares is not None]
    return BudgetBound(
        torch.cat([s.bound for s in found]),
        torch.cat([s.predicted() * (K is None) for s in found]),
        torch.cat([s.multiplier for s in found]),
        torch.cat([s.proof for s in found]),
        EdgeShares(*map(torch.cat, zip(*parts, strict=True)))
        if parts
        else None,
    )


@dataclass
class _DualSearch:
    r"""Minimize the dual function of a block of columns.

    A policy with objective o and cost c (both of its own graph) supports the
    dual function by the line :math:`o + \lambda (B - c)`. 'cheap' is the line
    of a policy with :math:`c \le B`, 'dear' of one with :math:`c > B`; the
    minimum lies above the point where they meet, the next multiplier.
    """

    perturbations: Perturbations
    signal: Tensor
    targets: Tensor
    upper: Tensor
    budget: int
    horizon: Horizon
    cost: str
    sign_only: bool
    tol: float
    max_iter: int
    shares: EdgeShares | None = None

    def __post_init__(self) -> None:
        self.value = self.signal / self.horizon.alpha
        self.multiplier = self.signal.new_zeros(self.targets.numel())
        self.pagerank: Tensor | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the bounds and the lines."""
        self.bound = torch.full_like(self.multiplier, math.inf)
        self.proof = torch.zeros_like(self.signal)
        # Without a policy yet, the lines restrict nothing.
        self.cheap = self.signal.new_full((2, len(self.bound)), math.nan)
        self.dear = self.cheap.clone()

    def run(self, start: Tensor | None, clean: Tensor | None) -> None:
        """Lower the bound until no step improves it."""
        if self.horizon.K is not None:
            self.of_steps()
            return
        scale = self.signal.abs().amax(1).clamp(min=1e-300)
        if start is not None:
            self.value = start.clone()
        trial = torch.zeros_like(self.multiplier)
        live = torch.arange(self.targets.numel())
        # A sign needs less exact lines than a tight bound.
        self.care, self.coarse = (
            (1e2, 1e-6) if self.sign_only else (1e4, 1e-10)
        )
        if clean is None:
            policy = self.perturbations.clean_policy(live.numel())
            sure = torch.full_like(scale, 1e-6 if self.sign_only else 1e-9)
            self.cheap = self.line(policy, live, sure)
        else:
            self.cheap = torch.stack([clean, torch.zeros_like(clean)])
        precision = torch.full_like(scale, 1e-4)
        for _ in range(self.max_iter):
            optimum = self.solve(live, trial[live], precision[live])
            self.value[live] = optimum.value
            line = self.line(optimum.policy, live, precision[live])
            fits = line[1] <= self.budget
            self.cheap[:, live[fits]] = line[:, fits]
            self.dear[:, live[~fits]] = line[:, ~fits]
            gap = (self.bound - self.predicted()) / scale
            left = gap > self.tol
            if self.sign_only:
                # The prediction is about as exact as the last values.
                below = self.predicted() < precision * scale
                left &= (self.bound >= 0) & below
            live = left.nonzero().view(-1)
            if live.numel() == 0:
                return
            trial = self.crossing()
            # A hundred times more precise than the possible gain.
            precision = precision.minimum(gap / 100).clamp(min=self.tol / 10)

    def solve(
        self, columns: Tensor, multiplier: Tensor, tol: Tensor | float
    ) -> Optimum:
        """Find the best policies at some multipliers, and their bounds."""
        optimum = self.horizon.maximize(
            self.perturbations,
            self.signal[columns],
            start=self.value[columns],
            tol=tol,
            **flip_costs(
                *(self.perturbations, self.upper[columns], multiplier),
                *(self.cost, self.shares and self.shares.of(columns)),
            ),
        )
        scores = optimum.value + optimum.high[:, None]
        scores = self.horizon.alpha * scores
        top = scores.gather(1, self.targets[columns][:, None])[:, 0]
        bound = multiplier * self.budget + top
        better = bound < self.bound[columns]
        kept = columns[better]
        self.bound[kept], self.proof[kept] = bound[better], scores[better]
        self.multiplier[kept] = multiplier[better]
        return optimum

    def share(
        self,
        mirror: Mirror,
        start: Tensor | None,
        clean: Tensor | None,
        rounds: int,
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
            self.run(self.value, clean)
            now: tuple[Tensor, ...]
            now = (self.bound, self.multiplier.clone(), self.proof)
            now = (*now, *self.shares)
            if best:
                better = self.bound < best[0]
                now = tuple(
                    torch.where(
                        better if x.dim() == 1 else better[:, None], x, y
                    )
                    for x, y in zip(now, best, strict=True)
                )
            best = now
            if self.sign_only and bool((best[0] < 0).all()):
                break
        self.bound, self.multiplier, self.proof = best[:3]
        self.shares = EdgeShares(*best[3:])

    def of_steps(self) -> None:
        """Refine the multipliers of the limit for K steps, by halving."""
        every = torch.arange(self.targets.numel())
        limit = _DualSearch(
            *(self.perturbations, self.signal, self.targets, self.upper),
            *(self.budget, replace(self.horizon, K=None), self.cost),
            *(False, max(self.tol, 1e-3), self.max_iter),
        )
        limit.shares = self.shares
        limit.run(None, None)
        middle = limit.multiplier
        trials = [torch.zeros_like(middle), middle]
        step = middle / 2 + 1e-3 * self.signal.abs().amax(1)
        for _ in range(1 + min(5, self.max_iter)):
            for trial in trials:
                self.solve(every, trial.clamp(min=0), 1e-12)
            if self.sign_only and bool((self.bound < 0).all()):
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
            shares = self.shares.of(columns)
            spent = policy.total(
                part[:, row] * shares.removal,
                part[:, pair[0]] * shares.addition,
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


def linear_program(
    perturbations: Perturbations,
    reward: Tensor,
    target: int,
    upper: Tensor,
    global_budget: int,
    alpha: float,
    *,
    undirected: bool = False,
) -> tuple[float, float]:
    r"""Bound a margin by the paper's linear program, with cvxpy and HiGHS.

    Equations 4a to 4d and 5 of Bojchevski and Günnemann 2019, for graphs in
    which every node keeps an edge. It is the reference for :func:`dual_bound`
    with the cost ``'visits'``, and far slower.
    HiGHS stops on either side of the optimum (about 1e-7 here), so that the
    value proves nothing by itself; the multiplier, which is returned with it,
    does. With :obj:`undirected` each edge has a share :math:`f_e \in [0, 1]`
    of the budget, which bounds the flips of both its directions.
    """
    import cvxpy

    n, graph = perturbations.num_nodes, perturbations.graph
    row, col, there = perturbations.fragile(perturbations.active)
    count = row.numel()
    fixed = ~(perturbations.removable & (perturbations.budget[graph.row] > 0))
    size = row[~there].bincount(minlength=n) + graph.degree
    bar = (upper * size).numpy()

    def matrix(value: Tensor, i: Tensor, j: Tensor, shape: tuple) -> object:
        return scipy.sparse.csr_array(
            (value.double().numpy(), (i.numpy(), j.numpy())), shape=shape
        )

    pair, ones = torch.arange(count), torch.ones(count)
    share = 1 / size.double()
    source = matrix(ones, row, pair, (n, count))
    head = matrix(ones, col, pair, (n, count))
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
    coupled = []
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
        limit = price @ flipped <= global_budget
    gain = reward.numpy()
    flow = stay @ visits + head @ on
    problem = cvxpy.Problem(
        cvxpy.Maximize(gain @ visits - gain[row.numpy()] @ off),
        [
            visits - (1 - alpha) * flow - source @ off == teleport,
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
