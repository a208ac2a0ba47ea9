"""Methods of an exact certificate, which tighten its bounds."""

import math
from typing import Any

import torch
from torch import Tensor

from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import (
    bounds_and_vectors,
    refine_pagerank_bounds,
)
from pyg_trust.certificates.columns import Columns
from pyg_trust.certificates.flips import single_flip_margins
from pyg_trust.certificates.perturbations import Policy
from pyg_trust.certificates.problem import Priced, Problem
from pyg_trust.certificates.region import local_attack, local_bound
from pyg_trust.certificates.search import (
    Exhaustive,
    candidates,
    count_sets,
    greedy_attacks,
)
from pyg_trust.certificates.witness import MOST_BYTES
from pyg_trust.distributed import shared
from pyg_trust.graph.ragged import pointer

# Numbers in a dense block of target-class pairs by nodes.
_BLOCK = 2**24
# Limit of exhaustive search by itself: graphs times numbers in each.
_CHEAP = 2**28
_FEW = 2**14
# Rounds in which edges that were left out may take the rest of the budget.
_ROUNDS = 64


# Numbers of nodes and rows up to which a proof is worth a bound of its own.
_PROVED = 2**22


class Solver(Problem):
    """Problem whose bounds are tightened by a chosen method."""

    # The way ################################################################

    def solve(
        self, method: str, cost: str, sign_only: bool, refine: int
    ) -> str:
        """Run a method; return the name of the method that was run."""
        if self.targets.numel() == 0:
            return 'local'
        budget = self.budget
        total = int(self.perturbations.budget.sum())
        if self.undirected:
            # A flip takes from two rows, but that of a self-loop from one.
            total = (total + self.loops()) // 2
        if budget is None or budget >= total:
            self.solve_local(witnesses=True)
            exact = self.horizon.K is None and not self.undirected
            if method == 'exact' and not exact:
                every = torch.arange(self.targets.numel())
                self.try_all(every, total)
                return 'exact'
            if not exact and self.unknown().numel() > 0:
                self.see_clean()
                self.attack_greedily(total)
                self.decide(total)
            return 'local'
        every = torch.arange(self.targets.numel())
        if method == 'exact' or (
            method == 'auto' and budget <= 1 and self.is_cheap(budget)
        ):
            if self.is_plain and budget <= 1 and not self.undirected:
                self.solve_single_flip()
            else:
                self.try_all(every, budget)
            self.prove_again()
            return 'exact'
        if method == 'lp' and bool((self.perturbations.smallest < 1).any()):
            raise ValueError(
                "'method' can be 'lp' only where every node keeps an edge: "
                'the linear program knows no empty rows'
            )
        self.solve_local(witnesses=False)
        self.see_clean()
        self.solve_global(method, cost, sign_only, refine)
        if self.unknown().numel() > 0:
            self.attack_greedily(budget)
        if method == 'auto':
            self.decide(budget)
        return method

    def prove_again(self) -> None:
        """Find provable bounds for targets decided by exhaustive search."""
        robust = ~self.open_pairs().any(1)
        self.solve_local(witnesses=False)
        moves = self.perturbations
        which = self.unproved() & robust[:, None]
        size = moves.active.numel() * moves.num_nodes
        if bool(which.any()) and size <= _PROVED:
            self.see_clean()
            self.solve_global('dual', 'best', True, 0, which)

    def unproved(self) -> Tensor:
        """Return a mask of the classes that local bounds leave open."""
        unproved = torch.zeros_like(self.lower, dtype=torch.bool)
        for (y, c), value in self.local.items():
            mine = (self.reference == y).nonzero().view(-1)
            margin = -self.alpha * value[self.targets[mine]]
            unproved[mine, c] = margin - self.slack[mine, c] <= self.tolerance
        return unproved

    def loops(self) -> int:
        """Count how many nodes can flip their self-loop."""
        moves = self.perturbations
        row, col = moves.graph.row, moves.graph.col
        gone = moves.removable & (row == col) & (moves.budget[row] > 0)
        return int(gone.sum()) + int((moves.pairs[0] == moves.pairs[1]).sum())

    def is_cheap(self, budget: int) -> bool:
        """Tell whether trying all admissible graphs takes a few seconds."""
        perturbations = self.perturbations
        if perturbations.all_pairs and perturbations.num_nodes > 1500:
            return False
        numbers = self.logits.numel() + perturbations.graph.num_edges
        if self.is_plain and budget <= 1 and not self.undirected:
            # A system per row, not per flip.
            sets = perturbations.active.numel()
        else:
            flips = candidates(perturbations, self.undirected).size(1)
            sets = count_sets(flips, budget, _FEW)
            if sets > _FEW:
                return False
        return sets * numbers <= _CHEAP

    def decide(self, budget: int) -> None:
        """Try all graphs for undecided targets, if there are few graphs."""
        open_ = self.unknown()
        if open_.numel() > 0 and self.is_cheap(budget):
            self.try_all(open_, budget)

    # Local budgets ##########################################################

    def solve_local(self, *, witnesses: bool) -> None:
        """Find the worst case under local budgets, for all nodes."""
        num_classes = self.logits.size(1)
        classes = self.reference.unique().tolist()
        pairs = [
            (c1, c2) for c1 in classes for c2 in range(num_classes) if c1 != c2
        ]
        first, second = torch.tensor(pairs).t()
        signal = (self.logits[:, second] - self.logits[:, first]).t()
        signal = signal.contiguous()
        # The clean graph's, which takes a column per class, not per pair.
        clean = self.horizon.evaluate(
            self.perturbations.clean_policy(num_classes),
            self.logits.t().contiguous(),
        ).value
        here = torch.arange(self.targets.numel())
        self.lower[here, self.reference] = math.inf
        blocks = list(self.perturbations.column_blocks(len(pairs)))

        def worst(block: slice) -> tuple[Any, ...]:
            solution = self.horizon.maximize(
                self.perturbations,
                signal[block],
                start=clean[second[block]] - clean[first[block]],
            )
            reached = None
            if witnesses:
                reached = self.reach(solution.policy, signal[block])
            return solution.value, solution.high, reached

        with Bar(blocks, self.bar, desc='class pairs') as bar:
            for block, (values, high, reached) in zip(
                bar, shared(blocks, worst, self.over_ranks), strict=True
            ):
                for column, (c1, c2) in enumerate(pairs[block]):
                    mine = (self.reference == c1).nonzero().view(-1)
                    value = values[column] + high[column]
                    self.local[c1, c2] = value
                    self.lower[mine, c2] = torch.maximum(
                        self.lower[mine, c2],
                        -self.alpha * value[self.targets[mine]],
                    )
                    if witnesses:
                        self.take(mine, reached[0][column], reached[1][column])

    def reach(
        self, policy: Policy, signal: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the margins and the flips of a policy's graphs."""
        flips = [policy.edges(k) for k in range(policy.num_columns)]
        if self.undirected:
            flips = [self.mutual(pairs) for pairs in flips]
        policy = Policy.from_flips(self.perturbations, flips)
        values = self.horizon.evaluate(policy, signal)
        return -self.alpha * (values.value + values.low[:, None]), flips

    def mutual(self, flips: Tensor) -> Tensor:
        """Make a directed attack undirected, within all budgets."""
        n, left = self.perturbations.num_nodes, self.perturbations.budget
        key = (flips.amin(0) * n + flips.amax(0)).unique()
        i, j = key // n, key % n
        taken = torch.zeros_like(key, dtype=torch.bool)
        for _ in range(_ROUNDS):
            some = ~taken & (left[i] > 0) & (left[j] > 0)
            some = some.nonzero().view(-1)
            if some.numel() == 0:
                break
            # Number the flips of each node, at either end, in one order, so
            # that the first flip always fits its budget; a self-loop has one
            # end.
            other = j[some].where(i[some] != j[some], n)
            ends = torch.stack([i[some], other], dim=1)
            order = ends.view(-1).argsort(stable=True)
            start = pointer(ends.view(-1).bincount(minlength=n + 1))
            rank = torch.empty_like(order)
            rank[order] = torch.arange(order.numel())
            rank = rank.view(-1, 2) - start[ends]
            room = torch.cat([left, left.new_tensor([key.numel()])])
            fits = (rank < room[ends]).all(1)
            taken[some[fits]] = True
            used = ends[fits].view(-1).bincount(minlength=n + 1)
            left = left - used[:n]
        i, j = i[taken], j[taken]
        proper = i != j
        back = torch.stack([j[proper], i[proper]])
        return torch.cat([torch.stack([i, j]), back], dim=1)

    # Exhaustive search ######################################################

    def solve_single_flip(self) -> None:
        """Find the exact worst case of PageRank under one directed flip."""
        margins = single_flip_margins(
            self.logits,
            self.perturbations,
            self.targets,
            self.reference,
            self.alpha,
            progress_bar=self.progress_bar,
        )
        self.lower = margins.margins - margins.errors
        upper, against = (margins.margins + margins.errors).min(1)
        for k, value in enumerate(upper.tolist()):
            flip = margins.flips[k, against[k]].view(2, 1)
            self.keep_attack(k, value, flip[:, :0] if flip[0] < 0 else flip)

    def try_all(self, which: Tensor, budget: int) -> None:
        """Try every admissible graph, for some targets."""
        flips = candidates(self.perturbations, self.undirected).size(1)
        numbers = self.logits.numel()
        most = 64 * _CHEAP // numbers
        if count_sets(flips, budget, most) > most:
            raise ValueError(
                "'method' can be 'exact' only for few admissible graphs (got "
                f'more than {most} sets of at most {budget} of {flips} flips)'
            )
        search = Exhaustive(
            self.perturbations,
            self.logits,
            self.targets[which],
            self.reference[which],
            budget,
            self.horizon,
            self.undirected,
            self.progress_bar,
        )
        self.lower[which] = torch.maximum(self.lower[which], search.lower)
        upper, against = search.upper.min(1)
        for k, value in enumerate(upper.tolist()):
            flip = search.flips[k][int(against[k])]
            assert flip is not None
            self.keep_attack(int(which[k]), value, flip)

    # A global budget ########################################################

    def solve_global(
        self,
        method: str,
        cost: str,
        sign_only: bool,
        refine: int,
        wanted: Tensor | None = None,
    ) -> None:
        """Find dual bounds where wanted, and attacks where bounds are low."""
        open_ = self.open_pairs() | (not sign_only)
        if wanted is not None:
            open_ = wanted.clone()
        self.sign_only = sign_only
        here = torch.arange(len(self.reference))
        open_[here, self.reference] = False
        which = open_.any(1).nonzero().view(-1)
        costs = ['visits'] if method == 'lp' or cost == 'visits' else []
        if not costs or (method == 'lp' and self.is_priced):
            # A program has a price per direction; one per edge may prove more.
            costs.insert(0, 'pagerank')
        if cost == 'best' and method != 'lp' and not self.undirected:
            costs.append('visits')
        if (
            which.numel() > 0
            and self.is_local(which)
            and ('pagerank' in costs and refine == 0 and method != 'lp')
        ):
            self.bound_regions(which, open_, sign_only)
            return
        kept = None
        for number, charged in enumerate(costs):
            if number > 0 and wanted is not None:
                break
            if number > 0 and method != 'lp':
                open_ &= self.open_pairs()
                which = self.unknown()
            if which.numel() == 0:
                return
            perturbations = self.perturbations
            whole = 8 * perturbations.active.numel() * perturbations.num_nodes
            bounds, vectors = bounds_and_vectors(
                perturbations,
                self.targets[which],
                self.alpha,
                cost=charged,
                over_ranks=self.over_ranks,
                progress_bar=self.progress_bar,
                keep=whole <= MOST_BYTES,
            )
            # The kernel rounds up as well, by so much at most.
            bounds += 2.0**-39 / self.alpha
            if vectors is not None:
                self.vectors[charged] = vectors
            way = 'dual' if charged == 'pagerank' else method
            self.try_columns(which, open_, bounds, way, charged, sign_only)
            if number == 0:
                kept = which, bounds
        assert kept is not None
        which, bounds = kept
        for _ in range(refine):
            inside = torch.isin(which, self.unknown())
            which, bounds = which[inside], bounds[inside]
            assert self.budget is not None
            bounds = refine_pagerank_bounds(
                self.perturbations,
                self.targets[which],
                bounds,
                self.budget * (1 + (self.undirected and not self.is_priced)),
                self.alpha,
                undirected=self.is_priced,
                progress_bar=self.progress_bar,
            )
            open_ = open_ & self.open_pairs()
            # Bounds of a round rest on those of the last one: they are not
            # in a witness.
            self.try_columns(
                *(which, open_, bounds, method, 'pagerank', sign_only),
                provable=False,
            )

    def bound_regions(
        self, which: Tensor, open_: Tensor, sign_only: bool
    ) -> None:
        """Compute bounds within a region around each target."""
        budget = self.budget
        assert budget is not None

        def bounded(k: int) -> Tensor:
            against = open_[k].nonzero().view(-1)
            c1 = int(self.reference[k])
            every = torch.full_like(against, k)
            return local_bound(
                self.perturbations,
                self.signal(every, against),
                int(self.targets[k]),
                torch.stack([self.local[c1, c2] for c2 in against.tolist()]),
                budget,
                self.alpha,
                undirected=self.undirected,
                sign_only=sign_only,
            )

        # Bound targets that reach few edges first.
        degree = self.perturbations.graph.degree[self.targets[which]]
        every_k = which[degree.argsort(stable=True)].tolist()
        with Bar(every_k, self.bar, desc='regions') as bar:
            robust = 0
            for k, bounds in zip(
                bar, shared(every_k, bounded, self.over_ranks), strict=True
            ):
                against = open_[k].nonzero().view(-1)
                self.lower[k, against] = torch.maximum(
                    self.lower[k, against], -bounds
                )
                robust += not bool(self.open_pairs()[k].any())
                bar.set_postfix(robust=robust)

    def try_columns(
        self,
        which: Tensor,
        open_: Tensor,
        bounds: Tensor,
        method: str,
        cost: str,
        sign_only: bool,
        provable: bool = True,
    ) -> None:
        """Bound and attack the open classes of some targets."""
        size = max(1, _BLOCK // (self.logits.numel() * 4))
        total = int(open_[which].sum())
        with Bar(None, self.bar, total=total, desc='targets, classes') as bar:

            def tried(first: int) -> tuple[Any, ...]:
                part = which[first : first + size]
                before = len(self.witnesses)
                row, against = open_[part].nonzero(as_tuple=True)
                columns = Columns(
                    self, part[row], against, bounds[first : first + size][row]
                )
                multiplier = columns.bound(method, cost, sign_only, bar)
                columns.attack(multiplier, cost)
                return (
                    columns.proofs,
                    self.lower[part],
                    self.upper[part],
                    self.witness_of[part],
                    before,
                    self.witnesses[before:],
                )

            kept = len(self.witnesses)
            every = range(0, which.numel(), size)
            work = list(shared(every, tried, self.over_ranks))
        place = {k: i for i, k in enumerate(which.tolist())}
        for proofs, *_ in work:
            for k, c, charged, price, bound in proofs:
                known = self.priced.get((k, c))
                if provable and (known is None or bound < known.bound):
                    self.priced[k, c] = Priced(
                        charged, price, bound, bounds[place[k]]
                    )
        if not self.over_ranks:
            return
        # Results of all processes, in the order of one process.
        del self.witnesses[kept:]
        for first, (_, lower, upper, of, before, flips) in zip(
            every, work, strict=True
        ):
            part = which[first : first + size]
            self.lower[part], self.upper[part] = lower, upper
            moved = of + len(self.witnesses) - before
            self.witness_of[part] = torch.where(of >= before, moved, of)
            self.witnesses += flips

    def attack_greedily(self, budget: int) -> None:
        """Attack the undecided targets, greedily and by swaps."""
        which = self.unknown()
        # The class that is nearest to winning, by its bound.
        against = (self.lower - self.slack)[which].argmin(1)
        signal = self.signal(which, against)
        if self.is_local(which):

            def attacked(i: int) -> Tensor:
                k = int(which[i])
                return local_attack(
                    self.perturbations,
                    signal[i],
                    int(self.targets[k]),
                    self.clean_value(k, int(against[i])),
                    min(budget, 64),
                    self.alpha,
                    undirected=self.undirected,
                )

            each = range(which.numel())
            attacks = shared(each, attacked, self.over_ranks)
            with Bar(attacks, self.bar, total=len(each), desc='attacks') as b:
                flips = list(b)
            self.try_flips(which, signal, flips)
            return
        flips = greedy_attacks(
            self.perturbations,
            signal,
            self.targets[which],
            min(budget, 64),
            self.alpha,
            normalization=self.horizon.normalization,
            undirected=self.undirected,
            swaps=1 if budget <= 10 else 0,
            progress_bar=self.progress_bar,
        )
        self.try_flips(which, signal, flips)
