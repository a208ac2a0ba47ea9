"""Exhaustive search and greedy attacks over admissible graphs.

Every attack is evaluated in its own graph, so that its margin is exact.
A flip is a directed edge, or an undirected one with both its directions.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_trust._checks import Natural, validated
from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import Rewards, Targets
from pyg_trust.certificates.dual_search import pagerank_of
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Perturbations, Policy
from pyg_trust.certificates.policy import policy_value
from pyg_trust.certificates.program import fragile_pairs


def candidates(perturbations: Perturbations, undirected: bool) -> Tensor:
    """List the flips that an attacker can choose from: ``[2, num_flips]``.

    Args:
        perturbations (Perturbations): the admissible graphs.
        undirected (bool): whether a flip takes both directions; then each is
            listed once, the smaller node first.
    """
    row, col, _ = fragile_pairs(perturbations, perturbations.active)
    if undirected:
        # Both ends need a budget.
        free = (perturbations.budget > 0)[col] & (row <= col)
        row, col = row[free], col[free]
    return torch.stack([row, col])


def count_sets(num_flips: int, budget: int, most: int) -> int:
    """Count the sets of at most :obj:`budget` flips, up to a limit.

    Args:
        num_flips (int): the number of flips to choose from.
        budget (int): the most flips of a set.
        most (int): the count at which to stop.
    """
    total = 0
    for k in range(min(budget, num_flips) + 1):
        total += math.comb(num_flips, k)
        if total > most:
            break
    return total


def _directed(pairs: Tensor, undirected: bool) -> Tensor:
    if not undirected:
        return pairs
    proper = pairs[:, pairs[0] != pairs[1]]
    return torch.cat([pairs, proper.flip(0)], dim=1)


def all_flips(
    perturbations: Perturbations, budget: int, undirected: bool
) -> Iterator[Tensor]:
    """Iterate over every admissible set of flips, the empty one first.

    Args:
        perturbations (Perturbations): the admissible graphs.
        budget (int): the most flips.
        undirected (bool): as in :func:`candidates`.

    Yields:
        Tensor: the directed edges to flip, ``[2, num_flips]``.
    """
    pairs = candidates(perturbations, undirected)
    n = perturbations.num_nodes
    for k in range(min(budget, pairs.size(1)) + 1):
        sets = itertools.combinations(range(pairs.size(1)), k)
        while some := list(itertools.islice(sets, max(1, 2**20 // n))):
            chosen = torch.tensor(some, dtype=torch.int64).view(len(some), k)
            row, col = pairs[:, chosen]
            count = torch.zeros((len(some), n), dtype=torch.int64)
            count.scatter_add_(1, row, torch.ones_like(row))
            if undirected:
                count.scatter_add_(1, col, (row != col).long())
            for index in chosen[(count <= perturbations.budget).all(1)]:
                yield _directed(pairs[:, index], undirected)


class Exhaustive:
    r"""Worst case over every admissible graph, by brute force.

    ``lower`` and ``upper`` enclose the smallest margin of the
    reference class over each class, up to the solver's proven error.

    Args:
        perturbations (Perturbations): the admissible graphs.
        logits (Tensor): :math:`H`, float64, ``[num_nodes, num_classes]``.
        targets (Tensor): int64, ``[num_targets]``.
        reference (Tensor): int64, ``[num_targets]``: the class to defend.
        budget (int): the most flips.
        horizon (Horizon): how the model diffuses.
        undirected (bool): whether a flip takes both directions.
        progress_bar (bool, optional): by default in terminals, after 2 s.
    """

    def __init__(
        self,
        perturbations: Perturbations,
        logits: Tensor,
        targets: Tensor,
        reference: Tensor,
        budget: int,
        horizon: Horizon,
        undirected: bool,
        progress_bar: bool | None = None,
    ) -> None:
        num_classes = logits.size(1)
        shape = targets.numel(), num_classes
        self.lower = logits.new_full(shape, math.inf)
        self.upper = self.lower.clone()
        self.flips: list[list[Tensor | None]] = [
            [None] * num_classes for _ in range(shape[0])
        ]
        signal = logits.t().contiguous()
        size = max(1, 2**22 // (perturbations.num_nodes * num_classes), 1)
        sets = all_flips(perturbations, budget, undirected)
        bar = Bar(progress_bar=progress_bar, desc='graphs')
        here = torch.arange(shape[0])
        while some := list(itertools.islice(sets, size)):
            repeated = [flips for flips in some for _ in range(num_classes)]
            policy = Policy.from_flips(perturbations, repeated)
            optimum = horizon.evaluate(policy, signal.repeat(len(some), 1))
            scale = horizon.alpha
            value = scale * optimum.value[:, targets]
            value = value.view(len(some), num_classes, -1)
            low, high = (
                scale * error.view(len(some), num_classes, 1)
                for error in (optimum.low, optimum.high)
            )
            # [num_graphs, num_targets, num_classes]
            least, most = (value + low), (value + high)
            lower = least[:, reference, here, None] - most.transpose(1, 2)
            upper = most[:, reference, here, None] - least.transpose(1, 2)
            self.lower = torch.minimum(self.lower, lower.amin(0))
            best, which = upper.min(0)
            better = best < self.upper
            for k, c in better.nonzero().tolist():
                self.flips[k][c] = some[int(which[k, c])]
            self.upper = torch.where(better, best, self.upper)
            bar.update(len(some))
        bar.close()
        self.lower[here, reference] = math.inf
        self.upper[here, reference] = math.inf


@validated
def greedy_attacks(
    perturbations: Perturbations,
    reward: Rewards,
    targets: Targets,
    global_budget: Natural,
    alpha: float,
    *,
    normalization: str = 'rw',
    undirected: bool = False,
    swaps: Natural = 1,
    progress_bar: bool | None = None,
) -> list[Tensor]:
    r"""Build attacks by the best flip, again and again, then by swaps.

    The gain of a flip in row :math:`i` is taken to first order, :math:`\pi_i`
    times what it adds to the step at :math:`i`; an undirected flip gains what
    both its directions do. Then each flip in turn is given up for the best
    one in its place, where that is better. A heuristic: evaluate the attacks
    before use. With all pairs addable only removals are tried in
    graphs of more than 1,500 nodes.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        targets (Tensor): int64, ``[num_columns]``: :math:`u`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        normalization (str): as in :class:`Horizon`. (default: :obj:`'rw'`)
        undirected (bool): whether a flip takes both directions.
            (default: :obj:`False`)
        swaps (int): how often every flip is reconsidered. (default: :obj:`1`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        list[Tensor]: per column the directed edges to flip, ``[2,
        num_flips]``.
    """
    n = perturbations.num_nodes
    horizon = Horizon(alpha, None, normalization)
    used = perturbations
    if used.all_pairs and n > 1500:
        used = Perturbations(used.graph, used.removable, used.budget)
    pairs = candidates(used, undirected)
    attacks: list[Tensor] = []
    numbers = 2 + 4 * pairs.size(1) // n
    blocks = list(perturbations.column_blocks(targets.numel(), numbers))
    for block in Bar(blocks, progress_bar, desc='greedy'):
        search = _Greedy(
            perturbations,
            pairs,
            reward[block],
            targets[block],
            horizon,
            undirected,
        )
        search.run(global_budget, swaps)
        attacks += search.flips()
    return attacks


class _Greedy:
    def __init__(
        self,
        perturbations: Perturbations,
        pairs: Tensor,
        reward: Tensor,
        targets: Tensor,
        horizon: Horizon,
        undirected: bool,
    ) -> None:
        self.perturbations, self.pairs = perturbations, pairs
        self.reward, self.targets = reward, targets
        self.horizon, self.undirected = horizon, undirected
        graph, n = perturbations.graph, perturbations.num_nodes
        keys = graph.row * n + graph.col
        self.there = torch.isin(pairs[0] * n + pairs[1], keys)
        count = targets.numel()
        self.chosen = torch.zeros((count, pairs.size(1)), dtype=torch.bool)
        self.best = self.measure(self.chosen)[0]

    def flips(self, chosen: Tensor | None = None) -> list[Tensor]:
        """Return the directed edges that each column flips."""
        chosen = self.chosen if chosen is None else chosen
        return [
            _directed(self.pairs[:, mask], self.undirected) for mask in chosen
        ]

    def measure(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value at the target, and the gain of every flip."""
        policy = Policy.from_flips(self.perturbations, self.flips(chosen))
        alpha, follow = self.horizon.alpha, 1 - self.horizon.alpha
        size = policy.size.double()
        signal = self.reward
        if self.horizon.normalization == 'sym':
            signal = signal / size.clamp(min=1).sqrt()
        value = policy_value(policy, signal, alpha, tol=1e-9).value
        sure = torch.full((len(chosen),), 1e-9, dtype=torch.float64)
        reach = pagerank_of(policy, self.targets, alpha, None, sure)
        mean = (value - signal) / follow
        left = self.perturbations.budget - policy.flips
        gain = torch.zeros(chosen.shape, dtype=torch.float64)
        free = ~chosen
        ways = [(self.pairs[0], self.pairs[1])]
        if self.undirected:
            ways.append((self.pairs[1], self.pairs[0]))
        sign = torch.where(self.there, -1.0, 1.0).double()
        for k, (row, col) in enumerate(ways):
            after = size[:, row] + sign
            step = sign * (value[:, col] - mean[:, row])
            step = step / after.clamp(min=1)
            step = torch.where(after < 1, -mean[:, row], step) * follow
            if self.horizon.normalization == 'sym':
                old = size[:, row].clamp(min=1).rsqrt()
                step = step + self.reward[:, row] * (
                    after.clamp(min=1).rsqrt() - old
                )
            if k > 0:
                step = step.masked_fill(row == col, 0)
            gain += reach[:, row] * step
            free &= left[:, row] > 0
        here = torch.arange(len(chosen))
        return value[here, self.targets], gain.masked_fill(~free, -math.inf)

    def add(self, chosen: Tensor, gain: Tensor) -> Tensor:
        """Add each target's best flip if it improves the attack."""
        if gain.size(1) == 0:
            return chosen
        most, which = gain.max(1)
        longer = chosen.clone()
        longer[torch.arange(len(longer)), which] |= most > 0
        return longer

    def keep(self, tried: Tensor) -> Tensor:
        """Keep the improved attacks, and their gains."""
        value, gain = self.measure(tried)
        better = value > self.best
        self.best = torch.where(better, value, self.best)
        self.chosen = torch.where(better[:, None], tried, self.chosen)
        return gain

    def run(self, budget: int, swaps: int) -> None:
        """Take greedy steps, then swaps."""
        tried, gain = self.chosen, self.measure(self.chosen)[1]
        for _ in range(budget):
            before, tried = tried, self.add(tried, gain)
            if torch.equal(tried, before):
                break  # no swap improves any attack
            gain = self.keep(tried)
        for _ in range(swaps if budget > 1 else 0):
            for k in range(budget):
                # Remove the k-th flip of each column.
                number = self.chosen.long().cumsum(1)
                gone = self.chosen & (number == k + 1)
                without = self.chosen & ~gone
                _, gain = self.measure(without)
                self.keep(self.add(without, gain.masked_fill(gone, -math.inf)))
