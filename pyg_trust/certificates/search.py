"""Searches among admissible graphs: all of them, one flip, and attacks.

Every graph is evaluated by itself, so that its margin is exact up to a proven
error. A flip is a directed edge, or an undirected one with both directions.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import flip_gains, pagerank_of
from pyg_trust.certificates.policy import Horizon, policy_value
from pyg_trust.certificates.threat import Perturbations, Policy
from pyg_trust.graph import sparse_rows

__all__ = ['Margins', 'attacks', 'try_all', 'try_each']

# Rounds in which an attack takes the flips that are worth most together.
_TOGETHER = 5
# Pairs times columns above which additions go to the best nodes alone, and
# above which there are none; and how many are evaluated one after another.
_MANY, _MOST = 2**22, 2**26


class Margins(NamedTuple):
    """Bounds of the smallest margin over each class, and flips for it."""

    lower: Tensor
    upper: Tensor
    flips: list[list[Tensor]]


def candidates(perturbations: Perturbations, undirected: bool) -> Tensor:
    """List the flips that an attacker can choose from: ``[2, num_flips]``."""
    row, col, _ = perturbations.fragile(perturbations.active)
    if undirected:
        # Both ends need a budget.
        free = (perturbations.budget > 0)[col] & (row <= col)
        row, col = row[free], col[free]
    return torch.stack([row, col])


def count_sets(num_flips: int, budget: int, most: int) -> int:
    """Count the sets of at most :obj:`budget` flips, up to a limit."""
    total = 0
    for k in range(min(budget, num_flips) + 1):
        total += math.comb(num_flips, k)
        if total > most:
            break
    return total


def directed(pairs: Tensor, undirected: bool) -> Tensor:
    """Return flips as directed edges, in both directions if undirected."""
    if not undirected:
        return pairs
    proper = pairs[:, pairs[0] != pairs[1]]
    return torch.cat([pairs, proper.flip(0)], dim=1)


def within(
    pairs: Tensor, budget: Tensor, undirected: bool, most: float = math.inf
) -> Tensor:
    """Mark flips to take in the given order, as far as budgets allow."""
    nodes, rooms = pairs.flatten().tolist(), budget[pairs].flatten().tolist()
    left, taken = dict(zip(nodes, rooms, strict=True)), []
    for i, j in pairs.t().tolist():
        fits = most > 0 and left[i] > 0 and (left[j] > 0 or not undirected)
        taken.append(fits)
        if fits:
            most, left[i] = most - 1, left[i] - 1
            # A self-loop takes from one row, as a directed flip does.
            left[j] -= undirected and i != j
    return torch.tensor(taken, dtype=torch.bool)


def all_flips(
    perturbations: Perturbations, budget: int, undirected: bool
) -> Iterator[Tensor]:
    """Iterate over every admissible set of flips, the empty one first."""
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
                yield directed(pairs[:, index], undirected)


def try_all(
    perturbations: Perturbations,
    logits: Tensor,
    targets: Tensor,
    reference: Tensor,
    budget: int,
    horizon: Horizon,
    undirected: bool,
) -> Margins:
    """Find the worst case over every admissible graph, by brute force."""
    classes, signal = logits.size(1), logits.t().contiguous()
    here, alpha = torch.arange(targets.numel()), horizon.alpha
    lower = logits.new_full((targets.numel(), classes), math.inf)
    upper = lower.clone()
    flips = [[targets.new_zeros((2, 0))] * classes for _ in targets]
    size = max(1, 2**22 // (perturbations.num_nodes * classes))
    sets = all_flips(perturbations, budget, undirected)
    with Bar(desc='graphs') as bar:
        while some := list(itertools.islice(sets, size)):
            policy = Policy.from_flips(
                perturbations, [x for x in some for _ in range(classes)]
            )
            found = horizon.evaluate(policy, signal.repeat(len(some), 1))
            # [num_graphs, num_classes, num_targets]
            value, low, high = (
                alpha * part.view(len(some), classes, -1)
                for part in (found.value[:, targets], found.low, found.high)
            )
            least, most = value + low, value + high
            low = least[:, reference, here, None] - most.transpose(1, 2)
            high = most[:, reference, here, None] - least.transpose(1, 2)
            lower = torch.minimum(lower, low.amin(0))
            best, which = high.min(0)
            for k, c in (best < upper).nonzero().tolist():
                flips[k][c] = some[int(which[k, c])]
            upper = torch.minimum(upper, best)
            bar.update(len(some))
    lower[here, reference] = upper[here, reference] = math.inf
    return Margins(lower, upper, flips)


def try_each(
    logits: Tensor,
    perturbations: Perturbations,
    targets: Tensor,
    reference: Tensor,
    alpha: float,
) -> Margins:
    r"""Find the worst case over at most one directed flip, exactly.

    A flip in row :math:`i` changes the transition row by :math:`\delta`, and
    by the formula of Sherman and Morrison the margin :math:`z = \alpha (I - a
    P)^{-1} r` becomes

    .. math::
        z_u + g_u \frac{a\, \delta^{\top} z}{1 - a\, \delta^{\top} g},
        \quad g = (I - a P)^{-1} e_i ,

    at the cost of a linear system per row with a budget and a few operations
    per fragile pair. The errors of :math:`z` and :math:`g` are accounted for.
    """
    follow = 1 - alpha
    graph, n = perturbations.graph, perturbations.num_nodes
    classes, degree = logits.size(1), graph.degree
    share = 1 / degree.clamp(min=1).double()
    mean = sparse_rows(graph.rowptr, graph.col, share[graph.row], (n, n))
    policy = perturbations.clean_policy(classes)
    values = policy_value(policy, logits.t().contiguous(), alpha)
    z = alpha * values.value.t().contiguous()
    # The solver's error, and that of sums over a row and what follows them.
    rounding = (int(degree.max()) + 16) * torch.finfo(z.dtype).eps
    eta_z = alpha * float((values.high - values.low).max())
    eta_z += rounding * float(z.abs().max())
    margins = z[targets].gather(1, reference[:, None]) - z[targets]
    clean, errors = margins.clone(), torch.zeros_like(margins)
    flips = torch.full((*margins.shape, 2), -1)
    # With all pairs fragile, a number per node, column and pair of classes.
    active = perturbations.active.numel()
    blocks = list(perturbations.column_blocks(active, 4 * classes))
    for block in Bar(blocks, desc='flips'):
        rows = perturbations.active[block]
        unit = torch.zeros((rows.numel(), n), dtype=torch.float64)
        unit[torch.arange(rows.numel()), rows] = 1
        policy = perturbations.clean_policy(rows.numel())
        values = policy_value(policy, unit, alpha, tol=1e-14)
        g = values.value
        eta_g = float((values.high - values.low).max())
        eta_g += rounding * float(g.abs().max())
        row, col, there = perturbations.fragile(rows)
        place = torch.searchsorted(rows, row)
        mean_z, mean_g = (mean @ z)[row], (mean @ g.t())[row, place]
        sign = 1 - 2 * there.double()
        size = degree[row] + sign
        alone = size < 1  # the last edge: the row is empty
        part = sign / size.clamp(min=1)
        step = part[:, None] * (z[col] - mean_z)
        step = torch.where(alone[:, None], -mean_z, step)
        back = torch.where(alone, -mean_g, part * (g[place, col] - mean_g))
        below = 1 - follow * back
        change = follow * step / below[:, None]
        sure = (below - 2 * eta_g).clamp(min=0)[:, None]
        blank = z.new_zeros((rows.numel(), classes))

        for c in reference.unique().tolist():
            held = reference == c
            # The flip of each row that hurts c most against every class.
            drop = change[:, c, None] - change
            worst = _by_row(drop, place, blank, 'amin')
            reach = g[:, targets[held]][:, :, None]
            lowered, which = (reach * worst[:, None]).min(0)
            lowered += clean[held]
            size = drop.abs()
            off = (4 * eta_z + 2 * eta_g * size) / sure
            off = _by_row(off, place, blank, 'amax')
            most = size.amax(0).clamp(min=0)
            error = ((reach + eta_g) * off[:, None]).amax(0) + eta_g * most
            errors[held] = torch.maximum(errors[held], error)
            better = lowered < margins[held]
            margins[held] = torch.where(better, lowered, margins[held])
            number = torch.arange(len(row))[:, None].expand_as(drop)
            first = torch.full_like(blank, len(row), dtype=torch.int64)
            first = _by_row(
                number.where(drop == worst[place], len(row)),
                *(place, first, 'amin'),
            )
            pair = first.gather(0, which).clamp(max=len(row) - 1)
            edges = torch.stack([row[pair], col[pair]], dim=2)
            flips[held] = torch.where(better[:, :, None], edges, flips[held])
    here = torch.arange(targets.numel())
    margins[here, reference] = math.inf
    errors = (errors + 2 * eta_z).nan_to_num(math.inf)
    found = [
        [
            pair[:, None] if pair[0] >= 0 else pair.new_zeros((2, 0))
            for pair in k
        ]
        for k in flips
    ]
    return Margins(margins - errors, margins + errors, found)


def _by_row(
    of_pairs: Tensor, place: Tensor, least: Tensor, how: str
) -> Tensor:
    # The smallest or largest of each row's pairs and of what is there.
    where = place[:, None].expand_as(of_pairs)
    return least.scatter_reduce(0, where, of_pairs, how)


def attacks(
    perturbations: Perturbations,
    reward: Tensor,
    targets: Tensor,
    global_budget: int,
    alpha: float,
    *,
    normalization: str = 'rw',
    undirected: bool = False,
    swaps: int = 1,
) -> list[Tensor]:
    r"""Search for attacks by the worth of single flips.

    The worth of a flip in row :math:`i` is taken to first order, :math:`\pi_i`
    times what it adds to the step at :math:`i`. The flips that are worth most
    together are taken, some times anew in the graph that they make; then the
    best flip is added again and again; then each flip in turn is given up for
    the best one in its place. A heuristic: evaluate the attacks before use.
    Where many pairs can be added, edges are added to the nodes of largest
    value alone, and fewer rounds are made, as each evaluates every pair for
    every target. Returns the directed edges to flip, ``[2, num_flips]``, per
    column.
    """
    used, columns = perturbations, max(targets.numel(), 1)
    horizon = Horizon(alpha, None, normalization)
    additions = used.num_nodes**2 if used.all_pairs else used.pairs.size(1)
    if columns * additions > _MANY:
        used = _with_few(used, reward, horizon)
    pairs = candidates(used, undirected)
    rounds = 32
    if additions:
        cells = columns * max(pairs.size(1), 1)
        rounds = max(4, min(rounds, _MOST // cells))
    found: list[Tensor] = []
    numbers = 2 + 4 * pairs.size(1) // used.num_nodes
    blocks = list(perturbations.column_blocks(targets.numel(), numbers))
    for block in Bar(blocks, desc='attacks'):
        search = _Attack(
            *(perturbations, pairs, reward[block], targets[block]),
            *(horizon, undirected),
        )
        search.run(global_budget, swaps, rounds)
        found += search.flips(search.chosen)
    return found


def _with_few(
    moves: Perturbations, reward: Tensor, horizon: Horizon
) -> Perturbations:
    # Removals, and additions at the nodes of largest value for each reward.
    graph, n, rewards = moves.graph, moves.num_nodes, reward.unique(dim=0)
    clean = moves.clean_policy(len(rewards))
    signal = horizon.scaled(clean, rewards)
    value = policy_value(clean, signal, horizon.alpha, tol=1e-9).value
    size = 2 * n * len(rewards) * len(reward)
    few = max(_MANY // size, int(size <= _MOST))
    best = value.topk(min(few, n), dim=1).indices.unique()
    key = (best * n + torch.arange(n)[:, None]).view(-1)
    key = torch.cat([key, key % n * n + key // n]).unique()
    key = key[key // n != key % n]
    held = graph.row * n + graph.col
    if moves.all_pairs:
        key = key[~torch.isin(key, held)]
    else:
        key = key[torch.isin(key, moves.pairs[0] * n + moves.pairs[1])]
    pairs = torch.stack([key // n, key % n])
    return Perturbations(graph, moves.removable, moves.budget, pairs)


@dataclass
class _Attack:
    """Sets of flips, one per column: the best so far, and its value."""

    perturbations: Perturbations
    pairs: Tensor
    reward: Tensor
    targets: Tensor
    horizon: Horizon
    undirected: bool

    def __post_init__(self) -> None:
        graph, n = self.perturbations.graph, self.perturbations.num_nodes
        keys = graph.row * n + graph.col
        self.there = torch.isin(self.pairs[0] * n + self.pairs[1], keys)
        shape = self.targets.numel(), self.pairs.size(1)
        self.chosen = torch.zeros(shape, dtype=torch.bool)
        self.best = torch.full((shape[0],), -math.inf, dtype=torch.float64)

    def flips(self, chosen: Tensor) -> list[Tensor]:
        """Return the directed edges that each column flips."""
        return [
            directed(self.pairs[:, mask], self.undirected) for mask in chosen
        ]

    def worth(self, chosen: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        """Return the worth of each flip of some columns, and which are free.

        Keep the columns whose graph is better than the best one so far.
        """
        reward, targets = self.reward[of], self.targets[of]
        policy = Policy.from_flips(self.perturbations, self.flips(chosen))
        alpha = self.horizon.alpha
        signal = self.horizon.scaled(policy, reward)
        value = policy_value(policy, signal, alpha, tol=1e-9).value
        sure = torch.full((len(chosen),), 1e-9, dtype=torch.float64)
        reach = pagerank_of(policy, targets, alpha, None, sure)
        mean, size = (value - signal) / (1 - alpha), policy.size.double()
        left = self.perturbations.budget - policy.flips
        worth, free = torch.zeros_like(chosen).double(), ~chosen
        # An edge that is flipped is there if it was not, and flips back.
        sign = 1 - 2 * (self.there ^ chosen).double()
        ways = [self.pairs, self.pairs.flip(0)][: 1 + self.undirected]
        for k, (row, col) in enumerate(ways):
            gain = flip_gains(
                *(value, mean, reward, size, row, col, sign, self.horizon)
            )
            if k > 0:
                gain = gain.masked_fill(row == col, 0)
            worth += reach[:, row] * gain
            free &= left[:, row] > 0
        now = value[torch.arange(len(chosen)), targets]
        better = now > self.best[of]
        self.best[of[better]] = now[better]
        self.chosen[of[better]] = chosen[better]
        return torch.where(chosen, -worth, worth), free

    def together(self, worth: Tensor, budget: int) -> Tensor:
        """Take the flips that are worth most, within all budgets."""
        size = min(4 * budget, self.pairs.size(1))
        top, which = worth.topk(size, dim=1)
        chosen = torch.zeros_like(worth, dtype=torch.bool)
        for k, (mine, value) in enumerate(zip(which, top, strict=True)):
            mine = mine[value > 0]
            taken = within(
                self.pairs[:, mine],
                self.perturbations.budget,
                self.undirected,
                budget,
            )
            chosen[k, mine[taken]] = True
        return chosen

    def add(self, chosen: Tensor, worth: Tensor, free: Tensor) -> Tensor:
        """Add each column's best flip if it improves the attack."""
        if worth.size(1) == 0:
            return chosen
        most, which = worth.masked_fill(~free, -math.inf).max(1)
        longer = chosen.clone()
        longer[torch.arange(len(longer)), which] |= most > 0
        return longer

    def run(self, budget: int, swaps: int, rounds: int) -> None:
        """Take flips together, then one by one, then swap them."""
        every = live = torch.arange(len(self.best))
        worth, _ = self.worth(self.chosen, every)
        if budget == 0 or worth.size(1) == 0:
            return
        for _ in range(_TOGETHER if budget > 1 else 0):
            before = self.best[live]
            worth, _ = self.worth(self.together(worth, budget), live)
            on = self.best[live] > before
            live, worth = live[on], worth[on]
            if live.numel() == 0:
                break
        live, tried = every, self.chosen.clone()
        for _ in range(min(budget, rounds) + 1):
            worth, free = self.worth(tried, live)
            free &= (tried.sum(1) < budget)[:, None]
            longer = self.add(tried, worth, free)
            on = (longer != tried).any(1)
            live, tried = live[on], longer[on]
            if live.numel() == 0:
                break
        for _ in range(swaps if budget > 1 else 0):
            for k in range(min(budget, rounds)):
                # Remove the k-th flip of each column.
                number = self.chosen.long().cumsum(1)
                gone = self.chosen & (number == k + 1)
                without = self.chosen & ~gone
                worth, free = self.worth(without, every)
                self.worth(self.add(without, worth, free & ~gone), every)
