"""Planted faults of the code that certifies: the kernel refuses them all.

Each fault makes a certificate promise more than is true, and the kernel knows
of none of them.
"""

import dataclasses

import pytest
import torch
from exhaustive import with_budget
from procedures import cycle
from torch.nn import Linear

from pyg_trust.certificates import ThreatModel, certify, solver
from pyg_trust.certificates.budget import EdgeShares, Mirror
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.policy import Horizon
from pyg_trust.nn import PPNP

maximize, perturbed = Horizon.maximize, Deployed.perturbations
WITHIN = {'local_budget': 2, 'global_budget': 2}


def certified(model=None, seed=2, alpha=0.15, fixed='none', **threat):
    """A certificate of 16 nodes, some of which are robust."""
    data = cycle(16, seed)
    threat = ThreatModel(data, **{'local_budget': 1, 'fixed': fixed, **threat})
    if model is not None:
        torch.manual_seed(0)
        made = PPNP(Linear(5, 3), 0.2, **model).eval()
        made.reset_parameters()  # to weights which a fault makes robust
        with torch.no_grad():
            made.encoder.weight *= 5
        return certify(made, data, threat, method='dual')
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(16, 3, generator=generator, dtype=torch.float64)
    logits[:, 0] += 0.5
    return certify(logits, threat, alpha=alpha, method='dual')


def optimum(patch, change):
    """Every largest score is changed, and said to be exact."""

    def changed(self, made, signal, **kwargs):
        return change(self, made, signal, kwargs)

    patch.setattr(Horizon, 'maximize', changed)
    unattacked(patch)


def unattacked(patch):
    """No attack shows that a bound is wrong."""
    patch.setattr(solver.Solver, 'take', lambda *args: None)
    patch.setattr(solver.Solver, 'try_flips', lambda *args: None)


def sure(found, value=None):
    value = found.value if value is None else value
    return dataclasses.replace(found, value=value, high=0 * found.high)


def lower_scores(patch):
    def change(self, made, signal, kwargs):
        found = maximize(self, made, signal, **kwargs)
        return sure(found, found.value - 0.5 / self.alpha)

    optimum(patch, change)


def one_score_too_low(patch):
    def change(self, made, signal, kwargs):
        found = maximize(self, made, signal, **kwargs)
        value = found.value.clone()
        value[:, 3:9] -= 1 / self.alpha
        return sure(found, value)

    optimum(patch, change)


def policies_that_do_not_improve(patch):
    # The clean graph's value, as if no flip paid.
    def change(self, made, signal, kwargs):
        clean = made.clean_policy(signal.size(0))
        found = maximize(self, made, signal, **kwargs)
        return sure(found, self.evaluate(clean, signal).value)

    optimum(patch, change)


def a_flip_less(patch):
    def change(self, made, signal, kwargs):
        less = with_budget(made, (made.budget - 1).clamp(min=0))
        return maximize(self, less, signal, **kwargs)

    optimum(patch, change)


def a_step_less(patch):
    def change(self, made, signal, kwargs):
        less = dataclasses.replace(self, K=self.K and self.K - 1)
        return maximize(less, made, signal, **kwargs)

    optimum(patch, change)


def rows_for_symmetric(patch):
    def change(self, made, signal, kwargs):
        other = dataclasses.replace(self, normalization='rw')
        return maximize(other, made, signal, **kwargs)

    optimum(patch, change)


def no_self_loops(patch):
    patch.setattr(
        Deployed, 'perturbations', lambda self, threat: threat.perturbations
    )


def a_class_is_left_out(patch):
    unattacked(patch)
    solve = solver.Solver.solve_local

    def changed(self, **kwargs):
        solve(self, **kwargs)
        self.lower[:, 2] = torch.inf

    patch.setattr(solver.Solver, 'solve_local', changed)


def margins_of_the_other_sign(patch):
    unattacked(patch)
    solve = solver.Solver.solve_local

    def changed(self, **kwargs):
        solve(self, **kwargs)
        self.lower.abs_()

    patch.setattr(solver.Solver, 'solve_local', changed)


def dual(patch, change):
    found = solver.dual_bound

    def changed(*args, **kwargs):
        return change(found, list(args), kwargs)

    patch.setattr(solver, 'dual_bound', changed)


def half_of_the_budget(patch):
    def change(found, args, kwargs):
        args[4] //= 2
        return found(*args, **kwargs)

    dual(patch, change)


def a_price_for_nothing(patch):
    # The bound without the price of the budget.
    def change(found, args, kwargs):
        made = found(*args, **kwargs)
        paid = made.multiplier * args[4]
        return made._replace(bound=made.bound - paid)

    dual(patch, change)


def bounded(patch, change):
    found = solver.pagerank_bounds
    patch.setattr(
        solver,
        'pagerank_bounds',
        lambda *args, **kwargs: change(found(*args, **kwargs)),
    )


def prices_of_too_little_pagerank(patch):
    bounded(patch, lambda upper: upper / 8)


def prices_of_the_wrong_target(patch):
    bounded(patch, lambda upper: upper.flip(0) / 2)


def both_directions_pay_all(patch):
    share = Mirror.shares

    def changed(*args):
        return EdgeShares(*(1 + 0 * x for x in share(*args)))

    patch.setattr(Mirror, 'shares', changed)


def attacks_are_overrated(patch):
    evaluate = Horizon.evaluate

    def changed(self, made, signal):
        found = evaluate(self, made, signal)
        return dataclasses.replace(found, value=found.value + 2 / self.alpha)

    patch.setattr(Horizon, 'evaluate', changed)


def attacks_with_flips_to_spare(patch):
    attack = solver.Solver.attack
    patch.setattr(
        solver.Solver, 'attack', lambda self, budget: attack(self, budget + 3)
    )


def one_direction_of_an_edge(patch):
    mutual = solver.Solver._mutual

    def changed(self, flips):
        found = mutual(self, flips)
        return found[:, : max(1, found.size(1) // 2)]

    patch.setattr(solver.Solver, '_mutual', changed)


def a_tolerance_that_is_not_asked(patch):
    unattacked(patch)
    opened = solver.Solver.open_pairs
    patch.setattr(
        solver.Solver,
        'open_pairs',
        lambda self: opened(self) & (self.lower < -0.2),
    )
    solve = solver.Solver.solve

    def changed(self, *args):
        used = solve(self, *args)
        self.lower += 0.3
        return used

    patch.setattr(solver.Solver, 'solve', changed)


FAULTS = [
    (lower_scores, {}),
    (one_score_too_low, {}),
    (policies_that_do_not_improve, {}),
    (policies_that_do_not_improve, WITHIN),
    (a_flip_less, {}),
    (a_step_less, {'model': {'K': 2}}),
    (rows_for_symmetric, {'model': {'normalization': 'sym', 'K': 3}}),
    (no_self_loops, {'model': {'add_self_loops': True}}),
    (a_class_is_left_out, {}),
    (margins_of_the_other_sign, {}),
    (half_of_the_budget, {'local_budget': 2, 'global_budget': 4}),
    (half_of_the_budget, {**WITHIN, 'undirected': True}),
    (a_price_for_nothing, WITHIN),
    (prices_of_too_little_pagerank, WITHIN),
    (prices_of_the_wrong_target, WITHIN),
    (both_directions_pay_all, {**WITHIN, 'undirected': True}),
    (attacks_are_overrated, {}),
    (attacks_with_flips_to_spare, {'local_budget': 4, 'global_budget': 1}),
    (one_direction_of_an_edge, {'undirected': True}),
    (a_tolerance_that_is_not_asked, {}),
]


@pytest.mark.parametrize(
    ('fault', 'case'), FAULTS, ids=[f.__name__ for f, _ in FAULTS]
)
def test_a_fault_that_promises_too_much_is_refused(fault, case, monkeypatch):
    # On the first graph where it moves a status, or has moved no number.
    for seed in range(8):
        honest = certified(seed=seed, **case)
        assert honest.verify() == 'holds'
        with monkeypatch.context() as patch:
            fault(patch)
            wrong = certified(seed=seed, **case)
        try:
            said = wrong.verify()
        except ValueError as error:
            said = str(error)
        other = wrong.status != honest.status
        if bool((other & (wrong.status != 0)).any()) or said != 'holds':
            assert said != 'holds'
            return
    pytest.fail('the fault does nothing')
