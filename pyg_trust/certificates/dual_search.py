"""Minimise the dual function of a global budget, line by line."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust.certificates.horizon import Horizon, Prices
from pyg_trust.certificates.perturbations import Perturbations, Policy
from pyg_trust.certificates.policy import Optimum
from pyg_trust.graph import sparse_rows

# Prices are rounded down by this factor, so that roundoff cannot raise them.
_DOWN = 1 - 1e-15


# Steps of golden section: each shortens the interval by a third.
_GOLDEN = 8


class EdgeShares(NamedTuple):
    r"""Share of an edge's price that each direction pays.

    Args:
        removal (Tensor): of the edges, ``[num_columns, num_edges]``.
        addition (Tensor): of the pairs, ``[num_columns, num_pairs]``.
    """

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
            places.append(torch.where(here & (row != col), place, -1))
        return cls(perturbations, *places)

    def shares(
        self, value: Tensor, signal: Tensor, upper: Tensor, horizon: Horizon
    ) -> EdgeShares:
        r"""Split prices by the gain of a flip in either row.

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
        shares = []
        for row, col, sign, place in (
            (graph.row, graph.col, -1, self.edge),
            (*self.perturbations.pairs, 1, self.pair),
        ):
            after = (degree + sign)[row]
            gain = follow * sign * (value[:, col] - mean[:, row])
            gain = gain / after.clamp(min=1)
            # The last edge empties the row; the first one fills it alone.
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
            # If the opposite direction can't flip, this one pays the whole
            # price.
            shares.append(part.masked_fill(place < 0, 1))
        return EdgeShares(*shares)


class DualSearch:
    r"""Minimise the dual function of a block of columns.

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
        # Without a policy yet, the bounds restrict nothing.
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
        """Lower the bound until no step improves it."""
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
            optimum = self.solve(
                live, trial[live], value[live], precision[live]
            )
            value[live] = optimum.value
            here = torch.arange(live.numel())
            top = optimum.value[here, self.targets[live]] + optimum.high
            bound = trial[live] * self.budget + self.alpha * top
            better = bound < self.bound[live]
            self.bound[live[better]] = bound[better]
            self.multiplier[live[better]] = trial[live[better]]
            line = torch.stack(
                self.line(optimum.policy, live, precision[live])
            )
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
        self,
        columns: Tensor,
        multiplier: Tensor,
        start: Tensor | None,
        precision: Tensor | float,
    ) -> Optimum:
        """Find the best policy of each column at its multiplier."""
        return self.horizon.maximize(
            self.perturbations,
            self.signal[columns],
            prices=self.prices(columns, multiplier),
            start=start,
            tol=precision,
        )

    def prices(self, columns: Tensor, multiplier: Tensor) -> Prices:
        """Return the prices of flips at one multiplier per column."""
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
        """Alternate between splitting prices of edges and solving."""
        every = torch.arange(self.targets.numel())
        if start is None:
            free = self.horizon.maximize(
                self.perturbations, self.signal, tol=1e-6
            )
            start = free.value
        best = self.bound.clone(), self.multiplier.clone()
        value, shares = start, None
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
            if shares is None:
                shares = self.shares
            shares = EdgeShares(
                *(
                    torch.where(better[:, None], new, old)
                    for new, old in zip(self.shares, shares, strict=True)
                )
            )
            best = (
                torch.where(better, self.bound, best[0]),
                torch.where(better, self.multiplier, best[1]),
            )
            if sign_only and bool((best[0] < 0).all()):
                break
        self.bound, self.multiplier = best
        self.shares = shares

    def golden(self, sign_only: bool, tol: float, max_iter: int) -> None:
        """Refine multipliers of K steps by golden section."""
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
            optimum = self.solve(every, multiplier, None, 1e-12)
            top = optimum.value[every, self.targets] + optimum.high
            bound = multiplier * self.budget + self.alpha * top
            better = bound < self.bound
            self.bound = torch.where(better, bound, self.bound)
            self.multiplier = torch.where(better, multiplier, self.multiplier)
            self.value = torch.where(
                better[:, None], optimum.value, self.value
            )
            return bound

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
            bound = height(fresh)
            at_left, at_right = (
                torch.where(down, bound, at_right),
                torch.where(down, at_left, bound),
            )

    def line(
        self, policy: Policy, columns: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the objective and the cost of a policy, in its own graph."""
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
    """Compute personalized PageRank of one node per column, in its graph.

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
