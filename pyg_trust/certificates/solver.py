"""Bounds of every target's margins, and the methods that tighten them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import (
    BudgetBound,
    dual_bound,
    linear_program,
    pagerank_bounds,
)
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.policy import Horizon, policy_iteration
from pyg_trust.certificates.region import local_attack, local_bound
from pyg_trust.certificates.search import (
    Margins,
    attacks,
    candidates,
    count_sets,
    directed,
    try_all,
    try_each,
    within,
)
from pyg_trust.certificates.threat import Policy, ThreatModel
from pyg_trust.certificates.witness import MOST_BYTES
from pyg_trust.distributed import shared

__all__ = ['Priced', 'Solver']

# Numbers in a dense block of target-class pairs by nodes.
_BLOCK = 2**24
# Limits of exhaustive search by itself: graphs times numbers, and graphs.
_CHEAP, _FEW = 2**28, 2**14
# Numbers of nodes and rows up to which a proof is worth a bound of its own.
_PROVED = 2**22


class Priced(NamedTuple):
    """Multiplier, scores and shares that prove a bound under a budget."""

    cost: str
    multiplier: float
    bound: float
    upper: Tensor
    proof: Tensor | None
    shares: Tensor | None


class Solver:
    """Bounds of every target's margins, with the attacks that were found."""

    sign_only = False

    def __init__(
        self,
        deployed: Deployed,
        threat: ThreatModel,
        targets: Tensor,
        reference: Tensor,
        tolerance: float,
        over_ranks: bool,
    ) -> None:
        self.deployed, self.threat = deployed, threat
        self.logits, self.alpha = deployed.logits, deployed.alpha
        self.horizon = Horizon(
            deployed.alpha, deployed.K, deployed.normalization
        )
        self.plain = deployed.K is None and deployed.normalization == 'rw'
        self.targets, self.reference = targets, reference
        self.tolerance, self.over_ranks = tolerance, over_ranks
        self.budget, self.undirected = threat.global_budget, threat.undirected
        self.perturbations = moves = deployed.perturbations(threat)
        # Both directions of an edge share one price.
        self.is_priced = self.undirected and not moves.all_pairs
        error = deployed.error(int(moves.largest.max()))
        self.slack = error + error[reference][:, None]
        shape = (targets.numel(), self.logits.size(1))
        self.lower = self.logits.new_full(shape, -math.inf)
        self.lower[torch.arange(shape[0]), reference] = math.inf
        self.upper = self.logits.new_full(shape[:1], math.inf)
        self.witnesses: list[Tensor] = []
        self.witness_of = torch.full(shape[:1], -1)
        # V of the local worst case, by pair of classes.
        self.local: dict[tuple[int, int], Tensor] = {}
        # Better proofs, by target and class, and upper bounds at all
        # nodes, by cost.
        self.priced: dict[tuple[int, int], Priced] = {}
        self.vectors: dict[str, Tensor] = {}
        # Bytes that proofs may take: some of those that are kept are needed.
        self.room = 3 * MOST_BYTES
        # V of the clean graph, by class.
        self.clean = self.horizon.evaluate(
            moves.clean_policy(shape[1]), self.logits.t().contiguous()
        ).value

    def solve(self, method: str, sign_only: bool) -> str:
        """Run a method; return the name of the method that was run."""
        if self.targets.numel() == 0:
            return 'local'
        self.sign_only = sign_only
        every, budget = torch.arange(self.targets.numel()), self.budget
        moves = self.perturbations
        total = int(moves.budget.sum())
        if self.undirected:
            # A flip takes from two rows, but that of a self-loop from one.
            row, col = moves.graph.row, moves.graph.col
            loops = moves.removable & (row == col) & (moves.budget[row] > 0)
            added = moves.pairs[0] == moves.pairs[1]
            total = (total + int(loops.sum()) + int(added.sum())) // 2
        if budget is None or budget >= total:
            self.solve_local(witnesses=True)
            exact = self.horizon.K is None and not self.undirected
            if method == 'exact' and not exact:
                self.try_all(every, total)
                return 'exact'
            if not exact and self.unknown().numel() > 0:
                self.attack(total)
                self._decide(total)
            return 'local'
        if method == 'exact' or (
            method == 'auto' and budget <= 1 and self._is_cheap(budget)
        ):
            self.try_all(every, budget)
            # Provable bounds for targets that are decided by search.
            robust = ~self.open_pairs().any(1)
            self.solve_local(witnesses=False)
            which = self.unproved() & robust[:, None]
            size = moves.active.numel() * moves.num_nodes
            if bool(which.any()) and size <= _PROVED:
                self.sign_only = True
                self.solve_global('dual', which)
            return 'exact'
        if method == 'lp' and bool((moves.smallest < 1).any()):
            raise ValueError(
                "'method' can be 'lp' only where every node keeps an edge: "
                'the linear program knows no empty rows'
            )
        self.solve_local(witnesses=False)
        self.solve_global(method)
        if self.unknown().numel() > 0:
            self.attack(budget)
        if method == 'auto':
            self._decide(budget)
        return method

    # What is open ###########################################################

    def open_pairs(self) -> Tensor:
        """Return a mask of the open classes: ``[num_targets, classes]``."""
        return self.lower - self.slack <= self.tolerance

    def unknown(self) -> Tensor:
        """Return the positions of targets neither robust nor broken."""
        broken = self.upper + self.slack.amax(1) < -self.tolerance
        return (self.open_pairs().any(1) & ~broken).nonzero().view(-1)

    def unproved(self) -> Tensor:
        """Return a mask of the classes that local bounds leave open."""
        unproved = torch.zeros_like(self.lower, dtype=torch.bool)
        for (y, c), value in self.local.items():
            mine = (self.reference == y).nonzero().view(-1)
            margin = -self.alpha * value[self.targets[mine]]
            unproved[mine, c] = margin - self.slack[mine, c] <= self.tolerance
        return unproved

    def signal(self, k: Tensor, against: Tensor) -> Tensor:
        """Return the attacker's reward per visit, by target and class."""
        held = self.logits[:, self.reference[k]]
        return (self.logits[:, against] - held).t().contiguous()

    def starts(self, k: Tensor, against: Tensor) -> Tensor:
        """Return the local worst cases of some targets and classes."""
        pairs = torch.stack([self.reference[k], against], 1).tolist()
        return torch.stack([self.local[y, c] for y, c in pairs])

    def dual(
        self, k: Tensor, against: Tensor, upper: Tensor, cost: str
    ) -> BudgetBound:
        """Bound some targets' classes by prices of flips."""
        assert self.budget is not None
        clean = self.clean[:, self.targets[k]]
        here = torch.arange(k.numel())
        # Without shared prices, an undirected flip has two.
        twice = self.undirected and not self.is_priced
        return dual_bound(
            self.perturbations,
            self.signal(k, against),
            self.targets[k],
            upper,
            self.budget * (1 + twice),
            self.alpha,
            cost=cost,
            K=self.horizon.K,
            normalization=self.horizon.normalization,
            undirected=self.is_priced,
            sign_only=self.sign_only,
            start=self.starts(k, against),
            clean=self.alpha
            * (clean[against, here] - clean[self.reference[k], here]),
        )

    def _is_local(self, which: Tensor) -> bool:
        # Regions around targets cost less than the graph.
        moves = self.perturbations
        whole = moves.active.numel() * moves.num_nodes
        return self.plain and which.numel() * 2**19 < whole

    def _is_single(self, budget: int) -> bool:
        return self.plain and budget <= 1 and not self.undirected

    def _is_cheap(self, budget: int) -> bool:
        # Trying all admissible graphs takes a few seconds.
        moves = self.perturbations
        if moves.all_pairs and moves.num_nodes > 1500:
            return False
        numbers = self.logits.numel() + moves.graph.num_edges
        if self._is_single(budget):
            # A system per row, not per flip.
            return moves.active.numel() * numbers <= _CHEAP
        flips = candidates(moves, self.undirected).size(1)
        sets = count_sets(flips, budget, _FEW)
        return sets <= _FEW and sets * numbers <= _CHEAP

    def _decide(self, budget: int) -> None:
        # Try all graphs for undecided targets, if there are few graphs.
        open_ = self.unknown()
        if open_.numel() > 0 and self._is_cheap(budget):
            self.try_all(open_, budget)

    # What is known ##########################################################

    def raise_lower(self, k: Tensor, against: Tensor, bound: Tensor) -> None:
        """Raise lower bounds of margins."""
        pair = k, against
        self.lower[pair] = torch.maximum(self.lower[pair], bound)

    def take(self, mine: Tensor, upper: Tensor, flips: Tensor) -> None:
        """Store a graph for those targets that it is worst for."""
        better = upper < self.upper[mine]
        mine, upper = mine[better], upper[better]
        self.upper[mine] = upper
        broken = mine[upper + self.slack[mine].amax(1) < -self.tolerance]
        if broken.numel():
            self.witness_of[broken] = len(self.witnesses)
            self.witnesses.append(flips)

    def try_flips(
        self, which: Tensor, signal: Tensor, flips: list[Tensor]
    ) -> None:
        """Evaluate one attack per column, each in its own graph."""
        for block in self.perturbations.column_blocks(which.numel()):
            upper = self._reached(signal[block], flips[block])
            for i, k in enumerate(which[block]):
                at = upper[i, self.targets[k]]
                self.take(k[None], at[None], flips[block.start + i])

    def _reached(self, signal: Tensor, flips: list[Tensor]) -> Tensor:
        # Upper bounds of margins in given graphs, at all nodes.
        policy = Policy.from_flips(self.perturbations, flips)
        values = self.horizon.evaluate(policy, signal)
        return -self.alpha * (values.value + values.low[:, None])

    # Local budgets ##########################################################

    def solve_local(self, *, witnesses: bool) -> None:
        """Find the worst case under local budgets, for all nodes."""
        pairs = [
            (c1, c2)
            for c1 in self.reference.unique().tolist()
            for c2 in range(self.logits.size(1))
            if c1 != c2
        ]
        first, second = torch.tensor(pairs).t()
        signal = (self.logits[:, second] - self.logits[:, first]).t()
        signal = signal.contiguous()
        blocks = list(self.perturbations.column_blocks(len(pairs)))

        def worst(block: slice) -> tuple[Any, ...]:
            found = self.horizon.maximize(
                self.perturbations,
                signal[block],
                start=self.clean[second[block]] - self.clean[first[block]],
            )
            value = found.value + found.high[:, None]
            if not witnesses:
                return value, None, None
            flips = [
                self._mutual(found.policy.edges(k)) for k in range(len(value))
            ]
            return value, self._reached(signal[block], flips), flips

        with Bar(blocks, desc='class pairs') as bar:
            for block, (value, upper, flips) in zip(
                bar, shared(blocks, worst, self.over_ranks), strict=True
            ):
                for i, (c1, c2) in enumerate(pairs[block]):
                    mine = (self.reference == c1).nonzero().view(-1)
                    at = self.targets[mine]
                    self.local[c1, c2] = value[i]
                    self.raise_lower(
                        mine, torch.tensor(c2), -self.alpha * value[i, at]
                    )
                    if witnesses:
                        self.take(mine, upper[i, at], flips[i])

    def _mutual(self, flips: Tensor) -> Tensor:
        # A directed attack made undirected, within all budgets.
        if not self.undirected:
            return flips
        pairs = torch.stack([flips.amin(0), flips.amax(0)]).unique(dim=1)
        taken = within(pairs, self.perturbations.budget, True)
        return directed(pairs[:, taken], True)

    # Exhaustive search ######################################################

    def try_all(self, which: Tensor, budget: int) -> None:
        """Try every admissible graph, for some targets."""
        moves = self.perturbations
        targets, reference = self.targets[which], self.reference[which]
        if self._is_single(budget):
            found: Margins = try_each(
                self.logits, moves, targets, reference, self.alpha
            )
        else:
            flips = candidates(moves, self.undirected).size(1)
            most = 64 * _CHEAP // self.logits.numel()
            if count_sets(flips, budget, most) > most:
                raise ValueError(
                    "'method' can be 'exact' only for few admissible graphs "
                    f'(got more than {most} sets of at most {budget} of '
                    f'{flips} flips)'
                )
            found = try_all(
                *(moves, self.logits, targets, reference, budget),
                *(self.horizon, self.undirected),
            )
        self.lower[which] = torch.maximum(self.lower[which], found.lower)
        upper, against = found.upper.min(1)
        for k, c, at, mine in zip(
            which, against.tolist(), upper, found.flips, strict=True
        ):
            self.take(k[None], at[None], mine[c])

    # A global budget ########################################################

    def solve_global(self, method: str, wanted: Tensor | None = None) -> None:
        """Find dual bounds of the wanted classes, by default the open ones."""
        moves, programs = self.perturbations, method == 'lp'
        open_ = self.open_pairs() | (not self.sign_only)
        if wanted is not None:
            open_ = wanted.clone()
        open_[torch.arange(len(open_)), self.reference] = False
        which = open_.any(1).nonzero().view(-1)
        # A price of PageRank proves more as a rule, and one per edge is shared
        # by both directions.
        costs = ['pagerank'] * (self.is_priced or not programs)
        costs += ['visits'] * (programs or not self.undirected)
        if not programs and self._is_local(which):
            self._bound_regions(which, open_)
            return
        for number, charged in enumerate(costs):
            if number > 0 and not programs:
                open_ &= self.open_pairs()
                which = self.unknown()
            if which.numel() == 0:
                return
            vectors: list[Tensor] | None = None
            if 8 * moves.active.numel() * moves.num_nodes <= MOST_BYTES:
                vectors = []
            upper = pagerank_bounds(
                *(moves, self.targets[which], self.alpha),
                cost=charged,
                over_ranks=self.over_ranks,
                vectors=vectors,
            )
            # The checker rounds up as well, by so much at most.
            upper += 2.0**-39 / self.alpha
            if vectors:
                self.vectors[charged] = torch.cat(vectors)
            self._bound_columns(
                which, open_, upper, charged, programs and charged == 'visits'
            )

    def _bound_regions(self, which: Tensor, open_: Tensor) -> None:
        # Bounds within a region around each target.
        def bounded(k: int) -> Tensor:
            assert self.budget is not None
            against = open_[k].nonzero().view(-1)
            every = torch.full_like(against, k)
            return local_bound(
                self.perturbations,
                self.signal(every, against),
                int(self.targets[k]),
                self.starts(every, against),
                *(self.budget, self.alpha),
                undirected=self.undirected,
                sign_only=self.sign_only,
            )

        # Bound targets that reach few edges first.
        degree = self.perturbations.graph.degree[self.targets[which]]
        every_k = which[degree.argsort(stable=True)].tolist()
        with Bar(every_k, desc='regions') as bar:
            for k, bounds in zip(
                bar, shared(every_k, bounded, self.over_ranks), strict=True
            ):
                against = open_[k].nonzero().view(-1)
                self.raise_lower(torch.tensor(k), against, -bounds)

    def _bound_columns(
        self,
        which: Tensor,
        open_: Tensor,
        upper: Tensor,
        cost: str,
        programs: bool,
    ) -> None:
        # Dual bounds of the open classes of some targets.
        size = max(1, _BLOCK // (self.logits.numel() * 4))
        parts = range(0, which.numel(), size)

        def bounded(first: int) -> tuple[Any, ...]:
            part = which[first : first + size]
            row, against = open_[part].nonzero(as_tuple=True)
            k, place = part[row], first + row
            split: tuple[Tensor, ...] = ()
            if programs:
                found = self._programs(k, against, upper[place])
            else:
                dual = self.dual(k, against, upper[place], cost)
                found = dual.bound, dual.multiplier, dual.proof
                split = dual.shares or ()
            bound, multiplier, proof = found
            sure = -bound - self.slack[k, against] > self.tolerance
            # Rows that prove something, without the others' memory.
            priced = [
                Priced(
                    *(cost, float(multiplier[i]), float(bound[i]), upper[row]),
                    proof[i].clone() if sure[i] else None,
                    torch.cat([x[i] for x in split]) if split else None,
                )
                for i, row in enumerate(place.tolist())
            ]
            return k, against, bound, priced

        total = int(open_[which].sum())
        with Bar(None, total=total, desc='targets, classes') as bar:
            for part in shared(parts, bounded, self.over_ranks):
                k, against, bound, priced = part
                # The local worst case is a lower bound as well.
                self.raise_lower(k, against, -bound)
                for i, c, one in zip(
                    k.tolist(), against.tolist(), priced, strict=True
                ):
                    known = self.priced.get((i, c))
                    if known is not None and one.bound >= known.bound:
                        continue
                    for kept in (one.proof, one.shares):
                        self.room -= 0 if kept is None else kept.nbytes
                    if self.room < -MOST_BYTES:
                        one = one._replace(proof=None, shares=None)
                    self.priced[i, c] = one
                bar.update(k.numel())

    def _programs(
        self, k: Tensor, against: Tensor, upper: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Bounds by multipliers of linear programs, these, and what proves it.
        assert self.budget is not None
        budget = self.budget * (1 + self.undirected)
        signal, start = self.signal(k, against), self.starts(k, against)
        scores, values = torch.zeros_like(signal), signal.new_zeros(k.numel())
        multiplier = values.clone()
        for i, target in enumerate(self.targets[k].tolist()):
            _, multiplier[i] = linear_program(
                *(self.perturbations, signal[i], target, upper[i]),
                *(budget, self.alpha),
            )
            proof = policy_iteration(
                *(self.perturbations, signal[i : i + 1], self.alpha),
                visit_cost=multiplier[i] / upper[i : i + 1] * (1 - 1e-15),
                start=start[i : i + 1],
            )
            scores[i] = self.alpha * (proof.value[0] + proof.high[0])
            values[i] = multiplier[i] * budget + scores[i, target]
        return values, multiplier, scores

    # Attacks ################################################################

    def attack(self, budget: int) -> None:
        """Attack undecided targets: all classes, then the nearest ones."""
        which, most = self.unknown(), min(budget, 64)
        if self._is_local(which):
            self._attack_regions(which, most)
            return
        row, against = self.open_pairs()[which].nonzero(as_tuple=True)
        self._attack_columns(which[row], against, most, 0)
        which = self.unknown()
        if budget <= 10 and which.numel() > 0:
            against = (self.lower - self.slack)[which].argmin(1)
            self._attack_columns(which, against, most, 1)

    def _attack_columns(
        self, k: Tensor, against: Tensor, budget: int, swaps: int
    ) -> None:
        signal = self.signal(k, against)
        flips = attacks(
            *(self.perturbations, signal, self.targets[k], budget, self.alpha),
            normalization=self.horizon.normalization,
            undirected=self.undirected,
            swaps=swaps,
        )
        self.try_flips(k, signal, flips)

    def _attack_regions(self, which: Tensor, budget: int) -> None:
        against = (self.lower - self.slack)[which].argmin(1)
        signal, held = self.signal(which, against), self.reference[which]

        def attacked(i: int) -> Tensor:
            return local_attack(
                *(self.perturbations, signal[i], int(self.targets[which[i]])),
                self.clean[against[i]] - self.clean[held[i]],
                *(budget, self.alpha),
                undirected=self.undirected,
            )

        each = range(which.numel())
        found = shared(each, attacked, self.over_ranks)
        with Bar(found, total=len(each), desc='attacks') as bar:
            self.try_flips(which, signal, list(bar))
