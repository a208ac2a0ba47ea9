"""Planted faults of the code that certifies: the kernel refuses them all.

Each fault makes a certificate promise more than is true, and the kernel knows
of none of them.
"""

import pytest
import torch
from planting import planted
from procedures import cycle
from torch.nn import Linear

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.certificates.budget import Mirror
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.policy import Horizon
from pyg_trust.certificates.solver import Solver
from pyg_trust.nn import PPNP

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


MAXIMIZE, LOCAL = Horizon.maximize, Solver.solve_local
VALUE, MARGIN = (
    'found.value + found.high[:, None]',
    '-self.alpha * value[i, at]',
)
ATTACKS = Solver._reached, Solver.attack, Solver._mutual

fault = pytest.param
FAULTS = [
    fault({}, LOCAL, VALUE, 'found.value - 0.5 / self.alpha', id='scores'),
    fault(
        {},
        LOCAL,
        VALUE,
        'found.value; value[:, 3:9] -= 1 / self.alpha',
        id='one score',
    ),
    *(
        fault(
            case,
            LOCAL,
            VALUE,
            'self.clean[second[block]] - self.clean[first[block]]',
            id='policies that do not improve',
        )
        for case in ({}, WITHIN)
    ),
    fault(
        {},
        MAXIMIZE,
        'reward = signal',
        'p = perturbations; perturbations = type(p)(p.graph, p.removable, '
        '(p.budget - 1).clamp(min=0), p.addable, all_pairs=p.all_pairs); '
        'reward = signal',
        id='a flip less',
    ),
    fault(
        {'model': {'K': 2}},
        MAXIMIZE,
        'range(self.K)',
        'range(self.K - 1)',
        id='a step less',
    ),
    fault(
        {'model': {'normalization': 'sym', 'K': 3}},
        MAXIMIZE,
        'reward = signal',
        "self = replace(self, normalization='rw'); reward = signal",
        id='rows for symmetric',
    ),
    fault(
        {'model': {'add_self_loops': True}},
        Deployed.perturbations,
        'if not self.self_loops',
        'if True',
        id='no self-loops',
    ),
    fault(
        {},
        LOCAL,
        MARGIN,
        f'{MARGIN} + (math.inf if c2 == 2 else 0)',
        id='a class is left out',
    ),
    fault(
        {}, LOCAL, MARGIN, f'({MARGIN}).abs()', id='margins of the other sign'
    ),
    *(
        fault(
            case,
            Solver.dual,
            '(1 + twice)',
            '(1 + twice) // 2',
            id='half of the budget',
        )
        for case in (
            {'local_budget': 2, 'global_budget': 4},
            {**WITHIN, 'undirected': True},
        )
    ),
    fault(
        WITHIN,
        Solver._bound_columns,
        'found = dual.bound,',
        'found = dual.bound - dual.multiplier * self.budget,',
        id='a price for nothing',
    ),
    fault(
        WITHIN,
        Solver.solve_global,
        'upper += 2.0**-39 / self.alpha',
        'upper /= 8',
        id='prices of too little PageRank',
    ),
    fault(
        WITHIN,
        Solver.solve_global,
        'upper += 2.0**-39 / self.alpha',
        'upper = upper.flip(0) / 2',
        id='prices of the wrong target',
    ),
    fault(
        {**WITHIN, 'undirected': True},
        Mirror.shares,
        '(*shares)',
        '(*(1 + 0 * share for share in shares))',
        id='both directions pay all',
    ),
    fault(
        {},
        Solver._reached,
        'return -self.alpha',
        'return -2 - self.alpha',
        id='attacks are overrated',
    ),
    fault(
        {'local_budget': 4, 'global_budget': 1},
        Solver.attack,
        'min(budget, 64)',
        'budget + 3',
        id='flips to spare',
    ),
    fault(
        {'undirected': True},
        Solver._mutual,
        'directed(pairs[:, taken], True)',
        'pairs[:, taken]',
        id='one direction of an edge',
    ),
    fault(
        {},
        Solver.__init__,
        '= tolerance,',
        '= tolerance - 0.3,',
        id='a tolerance that is not asked',
    ),
]


@pytest.mark.parametrize(('case', 'function', 'old', 'new'), FAULTS)
def test_a_fault_that_promises_too_much_is_refused(case, function, old, new):
    # On the first graph where it moves a status, or has moved no number.
    for seed in range(8):
        honest = certified(seed=seed, **case)
        assert honest.verify() == 'holds'
        # No attack shows that another's bound is wrong.
        known = 'self.upper[mine]'
        least = known if function in ATTACKS else '-math.inf'
        with (
            planted(Solver.take, f'upper < {known}', f'upper < {least}'),
            planted(function, old, new),
        ):
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
