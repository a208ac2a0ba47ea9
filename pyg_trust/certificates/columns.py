"""Bounds under a global budget, one column per target and class."""

import torch
from torch import Tensor

from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import dual_bound
from pyg_trust.certificates.flips import budget_attacks
from pyg_trust.certificates.policy import policy_iteration
from pyg_trust.certificates.problem import Problem
from pyg_trust.certificates.program import linear_program


class Columns:
    """Pairs of a target, by its position k, and another class."""

    def __init__(
        self, problem: Problem, k: Tensor, against: Tensor, upper: Tensor
    ) -> None:
        self.problem, self.k, self.against = problem, k, against
        self.upper = upper
        self.targets = problem.targets[k]
        self.signal = problem.signal(k, against)
        # The proofs of bounds: target, class, cost, multiplier and bound.
        self.proofs: list[tuple[int, int, str, float, float]] = []

    def bound(
        self, method: str, cost: str, sign_only: bool, bar: Bar
    ) -> Tensor:
        """Tighten the bounds; return the multipliers that prove them."""
        problem = self.problem
        budget, alpha = problem.budget, problem.alpha
        assert budget is not None
        held = problem.reference[self.k]
        start = self.signal.new_empty(self.signal.shape)
        for i, pair in enumerate(
            zip(held.tolist(), self.against.tolist(), strict=True)
        ):
            start[i] = problem.local[pair]
        priced = problem.is_priced
        if method == 'lp':
            bounds, multiplier = self.programs(start, bar)
        else:
            dual = dual_bound(
                problem.perturbations,
                self.signal,
                self.targets,
                self.upper,
                # Without a price per edge an undirected flip is two.
                budget * (1 + (problem.undirected and not priced)),
                alpha,
                cost=cost,
                K=problem.horizon.K,
                normalization=problem.horizon.normalization,
                undirected=priced,
                sign_only=sign_only,
                start=start,
                clean=problem.clean(self.k, self.against),
            )
            bounds, multiplier = dual.bound, dual.multiplier
            bar.update(self.k.numel())
        self.proofs = [
            (k, c, cost, price, bound)
            for k, c, price, bound in zip(
                *(self.k.tolist(), self.against.tolist()),
                *(multiplier.tolist(), bounds.tolist()),
                strict=True,
            )
        ]
        # The local worst case is a lower bound as well.
        pair = self.k, self.against
        problem.lower[pair] = torch.maximum(problem.lower[pair], -bounds)
        return multiplier

    def programs(self, start: Tensor, bar: Bar) -> tuple[Tensor, Tensor]:
        """Solve linear programs for multipliers, and the bounds they prove."""
        problem = self.problem
        budget, alpha = problem.budget, problem.alpha
        assert budget is not None
        budget = budget * (1 + problem.undirected)
        multiplier = self.signal.new_zeros(self.k.numel())
        values = self.signal.new_zeros(self.k.numel())
        for i, target in enumerate(self.targets.tolist()):
            _, multiplier[i] = linear_program(
                problem.perturbations,
                self.signal[i],
                target,
                self.upper[i],
                budget,
                alpha,
            )
            price = multiplier[i] / self.upper[i : i + 1] * (1 - 1e-15)
            proof = policy_iteration(
                problem.perturbations,
                self.signal[i : i + 1],
                alpha,
                visit_cost=price,
                start=start[i : i + 1],
            )
            top = proof.value[0, target] + proof.high[0]
            values[i] = multiplier[i] * budget + alpha * top
            bar.update()
        return values, multiplier

    def attack(self, multiplier: Tensor, cost: str) -> None:
        """Attack columns with negative bounds, guided by their multipliers."""
        problem = self.problem
        assert problem.budget is not None
        if problem.undirected or not problem.is_plain:
            return
        weak = problem.open_pairs()[self.k, self.against]
        column = weak.nonzero().view(-1)
        if column.numel() == 0:
            return
        flips = budget_attacks(
            problem.perturbations,
            self.signal[column],
            self.targets[column],
            self.upper[column],
            multiplier[column],
            problem.budget,
            problem.alpha,
            cost=cost,
        )
        problem.try_flips(self.k[column], self.signal[column], flips)
