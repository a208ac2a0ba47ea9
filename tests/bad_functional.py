"""Bad inputs of the mathematics."""

import math
from typing import Any

import numpy as np
import torch
from bad_inputs import (
    FLAG,
    Row,
    choice,
    csr,
    edge_indices,
    either,
    instance,
    integer,
    number,
    sequence,
    tensor,
    undirected,
    values,
)
from bad_table import EXEMPT, FOLDER, entry

from pyg_trust import agp as F
from pyg_trust import certificates, sampler
from pyg_trust.agp.estimates import Plan
from pyg_trust.agp.halo import HaloGraph
from pyg_trust.certificates.perturbations import Policy
from pyg_trust.certificates.policy import WorstCase
from pyg_trust.graph import CSRGraph
from pyg_trust.sampler.walks import DisjointWalks

G = torch.Generator().manual_seed(0)
N = 6
UNIT = number(0, 1)
SHARE = number(0, 1, closed='high')
POSITIVE = number(0)
NOT_NEGATIVE = number(0, closed='low')
COUNT = integer(1)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=G, dtype=torch.float64)


def perturbations() -> certificates.Perturbations:
    graph = csr()
    return certificates.Perturbations(
        graph,
        torch.ones(graph.num_edges, dtype=torch.bool),
        graph.degree - 1,
    )


# What goes through a training step is not searched for NaN.
OUTPUTS = tensor(rows=False, finite=False)
SHARD = [0, 1, 2, 0, 1, 2]


def shard() -> torch.Tensor:
    return torch.tensor(SHARD)


SLACK = number(0, 1, closed='low')

entry(
    'unlearning.mean_probability',
    lambda: {'outputs': rand(2, 5, 3)},
    outputs=OUTPUTS,
)
entry(
    'unlearning.majority_vote',
    lambda: {'outputs': rand(2, 5, 3)},
    outputs=OUTPUTS,
)
entry(
    'unlearning.weighted_log_probability',
    lambda: {'outputs': rand(2, 5, 3), 'weight': rand(2)},
    outputs=OUTPUTS,
    weight=tensor(finite=False),
)
entry(
    'unlearning.attention',
    lambda: {
        'outputs': rand(2, 5, 3),
        'weight': rand(2, 3, 4),
        'bias': rand(2, 4),
        'vector': rand(4),
    },
    outputs=tensor(rows=False, finite=False),
    weight=tensor(columns=True, finite=False),
    bias=tensor(columns=True, finite=False),
    vector=tensor(rows=False, finite=False),
)
entry(
    'unlearning.fuse',
    lambda: {
        'values': rand(2, 5, 3),
        'score': rand(5, 2),
        'mask': torch.ones((5, 2), dtype=torch.bool),
    },
    Row('an empty mask', {'mask': torch.zeros(5, 2).bool()}, "'mask'"),
    values=tensor(rows=False, finite=False),
    score=tensor(columns=True, finite=False),
    mask=tensor(columns=True, none=True),
)
entry(
    'unlearning.info_nce',
    lambda: {
        'whole': rand(5, 3),
        'part': rand(5, 3),
        'other_whole': rand(5, 3),
        'other_part': rand(5, 3),
    },
    whole=tensor(rows=False, finite=False),
    part=tensor(columns=True, finite=False),
    other_whole=tensor(columns=True, finite=False),
    other_part=tensor(columns=True, finite=False),
)
entry(
    'unlearning.reconstruction_loss',
    lambda: {
        'embedding': rand(5, 3),
        'neighbor': rand(5, 3),
        'stranger': rand(5, 3),
    },
    embedding=tensor(rows=False, finite=False),
    neighbor=tensor(columns=True, finite=False),
    stranger=tensor(columns=True, finite=False),
)
entry(
    'audit.auc_interval',
    lambda: {'positive': rand(5), 'negative': rand(6)},
    positive=tensor(rows=False, empty=True, finite=False),
    negative=tensor(rows=False, empty=True, finite=False),
)
entry(
    'audit.permutation_test',
    lambda: {'one': rand(5), 'other': rand(6), 'draws': 3},
    one=tensor(rows=False, empty=True),
    other=tensor(rows=False, empty=True),
)
entry(
    'audit.holm',
    lambda: {'p_values': [0.1, 0.2]},
    p_values=values('a', 3, [2.0], [-0.1], ['a'], None),
)
# Policies and budgets

COLUMNS = tensor(columns=True)


def reward(count: int = 2) -> torch.Tensor:
    return rand(count, N)


entry(
    'certificates.Perturbations',
    lambda: {
        'graph': csr(),
        'removable': torch.ones(14, dtype=torch.bool),
        'budget': csr().degree - 1,
        'addable': torch.tensor([[0, 1], [3, 4]]),
    },
    Row('both', {'all_pairs': True}, "'addable'"),
    Row('there', {'addable': torch.tensor([[0], [1]])}, "'addable'"),
    Row('twice', {'addable': torch.tensor([[0, 0], [3, 3]])}, "'addable'"),
    removable=tensor(),
    budget=tensor(low=0),
    addable=tensor(columns=False, low=0, high=N - 1, none=True),
    all_pairs=FLAG,
)
entry(
    'certificates.Perturbations.with_budget',
    lambda: (perturbations(), {'budget': torch.zeros(N).long()}),
    budget=tensor(low=0),
)
entry(
    'certificates.Perturbations.column_blocks',
    lambda: (perturbations(), {'num_columns': 3}),
)
entry(
    'certificates.Perturbations.clean_policy',
    lambda: (perturbations(), {'num_columns': 3}),
)
entry(
    'certificates.Policy.from_flips',
    lambda: {
        'perturbations': perturbations(),
        'flips': [torch.tensor([[0], [1]])],
    },
    Row('a node', {'flips': [torch.tensor([[0], [N]])]}, "'flips'"),
    Row('twice', {'flips': [torch.tensor([[0, 0], [1, 1]])]}, "'flips'"),
    flips=sequence(3, None, torch.tensor([0, 1]), torch.tensor([[0.0], [1]])),
)


def policy() -> Policy:
    return Policy.from_flips(perturbations(), [torch.tensor([[0], [1]])] * 2)


entry(
    'certificates.Policy.solve',
    lambda: (
        policy(),
        {
            'reward': reward(),
            'follow': 0.8,
            'start': reward(),
            'goal': torch.full((2,), 1e-9, dtype=torch.float64),
        },
    ),
    reward=tensor(columns=True, finite=False),
    follow=number(0, 1, closed='low'),
    start=tensor(columns=True, finite=False),
    goal=tensor(finite=False),
    back=FLAG,
)
entry(
    'certificates.Policy.edges',
    lambda: (policy(), {'column': 1}),
    column=integer(0, 1),
)


def prices(size: int) -> torch.Tensor:
    return torch.full((2, size), 0.1, dtype=torch.float64)


entry(
    'certificates.Policy.total',
    lambda: (
        policy(),
        {
            'of_edges': prices(perturbations().graph.num_edges),
            'of_pairs': prices(perturbations().pairs.size(1)),
        },
    ),
    of_edges=tensor(columns=True, finite=False),
    of_pairs=tensor(finite=False),
)
entry(
    'certificates.policy_iteration',
    lambda: {
        'perturbations': perturbations(),
        'reward': reward(),
        'alpha': 0.2,
        'bonus': reward(),
        'visit_cost': reward(),
        'step_cost': reward(),
        'root': reward(),
        'removal_cost': prices(perturbations().graph.num_edges),
        'addition_cost': prices(perturbations().pairs.size(1)),
        'start': reward(),
    },
    reward=tensor(rows=False, columns=True),
    bonus=tensor(columns=True, none=True),
    visit_cost=tensor(columns=True, none=True),
    step_cost=tensor(columns=True, none=True),
    root=tensor(columns=True, none=True),
    removal_cost=tensor(columns=True, none=True),
    addition_cost=tensor(none=True, finite=False),
    start=tensor(columns=True, none=True),
    tol=NOT_NEGATIVE,
)
entry(
    'certificates.policy_value',
    lambda: {'policy': policy(), 'reward': reward(), 'alpha': 0.2},
    reward=COLUMNS,
)


def worst() -> WorstCase:
    logits = torch.arange(12, dtype=torch.float64).view(N, 2).sin()
    return certificates.worst_case_margins(logits, perturbations(), 0.2)


entry(
    'certificates.WorstCase.flips',
    lambda: (worst(), {'c1': 0, 'c2': 1}),
    Row('the same', {'c2': 0}, "'c2'"),
    c1=integer(0, 1),
    c2=integer(0, 1),
)
LOGITS = tensor(
    columns=False, dtypes=(torch.int64, torch.bool, torch.complex64)
)
entry(
    'certificates.worst_case_margins',
    lambda: {
        'logits': rand(N, 2),
        'perturbations': perturbations(),
        'alpha': 0.2,
        'start': rand(2, 2, N),
    },
    Row('one class', {'logits': rand(N, 1)}, "'logits'"),
    logits=LOGITS,
    start=tensor(columns=True, none=True, finite=False),
)
entry(
    'certificates.robust_margins',
    lambda: {'logits': rand(N, 2), 'worst': worst(), 'alpha': 0.2},
    logits=tensor(columns=True),
)
entry(
    'certificates.diffuse',
    lambda: {'graph': csr(), 'x': rand(N, 2), 'alpha': 0.2},
    Row(
        'directed',
        {
            'graph': CSRGraph.from_edge_index(undirected()[:, :7], N),
            'normalization': 'sym',
        },
        "'graph'",
    ),
    x=tensor(),
    normalization=choice(),
    tol=number(0, none=True),
)
entry(
    'certificates.diffusion_error',
    lambda: {'alpha': 0.2, 'degree': 3, 'dtype': torch.float32},
    degree=integer(0),
    dtype=values(torch.float16, torch.int64, 'float32', None, 3),
)
TARGETS = tensor(rows=False, low=0, high=N - 1)
entry(
    'certificates.clip_budget',
    lambda: {'perturbations': perturbations(), 'budget': 1},
)
entry(
    'certificates.pagerank_bounds',
    lambda: {
        'perturbations': perturbations(),
        'targets': torch.tensor([0, 3]),
        'alpha': 0.2,
    },
    targets=TARGETS,
)


def budget_arguments() -> dict[str, Any]:
    targets = torch.tensor([0, 3])
    return {
        'perturbations': perturbations(),
        'reward': reward(),
        'targets': targets,
        'upper': certificates.pagerank_bounds(perturbations(), targets, 0.2),
        'global_budget': 2,
        'alpha': 0.2,
    }


SEVERAL = "'(targets|reward)'"
BUDGET = {
    'perturbations': instance(),
    'reward': COLUMNS,
    'targets': tensor(low=0, high=N - 1),
    'upper': tensor(columns=True, low=1, finite=False),
    'global_budget': integer(0),
    'cost': choice(),
}
entry(
    'certificates.dual_bound',
    lambda: {
        **budget_arguments(),
        'start': reward(),
        'clean': torch.zeros(2).double(),
    },
    names={'targets': SEVERAL, 'reward': SEVERAL},
    **BUDGET,
    start=tensor(columns=True, none=True),
    clean=tensor(none=True),
    normalization=choice(),
)
entry(
    'certificates.refine_pagerank_bounds',
    lambda: {
        name: value
        for name, value in budget_arguments().items()
        if name not in ('reward', 'cost')
    },
    names={'targets': "'(targets|upper)'"},
    **{k: v for k, v in BUDGET.items() if k not in ('reward', 'cost')},
)
entry(
    'certificates.linear_program',
    lambda: {
        'perturbations': perturbations(),
        'reward': rand(N),
        'target': 1,
        'undirected': True,
        'upper': certificates.pagerank_bounds(
            perturbations(), torch.tensor([1]), 0.2, cost='visits'
        )[0],
        'global_budget': 2,
        'alpha': 0.2,
    },
    reward=tensor(),
    target=integer(0, N - 1),
    upper=tensor(low=1, finite=False),
    undirected=values(3, 'yes', None, 1.0),
)
entry(
    'certificates.single_flip_margins',
    lambda: {
        'logits': rand(N, 2),
        'perturbations': perturbations(),
        'targets': torch.tensor([0, 3]),
        'reference': torch.tensor([0, 1]),
        'alpha': 0.2,
    },
    names={'targets': "'(targets|reference)'"},
    logits=LOGITS,
    targets=tensor(low=0, high=N - 1),
    reference=tensor(low=0, high=1),
)
entry(
    'certificates.budget_attacks',
    lambda: {
        **budget_arguments(),
        'multiplier': torch.zeros(2, dtype=torch.float64),
    },
    names={'targets': SEVERAL, 'reward': SEVERAL},
    **BUDGET,
    multiplier=tensor(low=0, finite=False),
)

# Clusters and queries


def directed() -> CSRGraph:
    return CSRGraph.from_edge_index(undirected()[:, :7], N)


def weighted() -> CSRGraph:
    return CSRGraph.from_edge_index(
        undirected(), N, torch.arange(14).double() + 1
    )


SEVERAL = "'(nodes|score)'"
entry(
    'agp.sweep_cut',
    lambda: {
        'graph': csr(),
        'nodes': torch.arange(3),
        'score': torch.tensor([3.0, 2.0, 1.0]),
    },
    Row('directed', {'graph': directed()}, "'graph'"),
    Row('weighted', {'graph': weighted()}, "'graph'"),
    Row('twice', {'nodes': torch.tensor([0, 1, 1])}, "'nodes'"),
    Row('NaN', {'score': torch.tensor([0, 1, torch.nan])}, "'score'"),
    names={'nodes': SEVERAL, 'score': SEVERAL},
    nodes=tensor(low=0, high=N - 1),
    score=tensor(finite=False),
)
entry(
    'agp.uniform_signal',
    lambda: {'seeds': torch.tensor([0, 2]), 'num_nodes': N},
    Row('twice', {'seeds': torch.tensor([1, 1])}, "'seeds'"),
    seeds=tensor(rows=False, low=0, high=N - 1, empty=True),
)

# Differential privacy

LAM = number(0)
HISTORY = either(
    values(3, None, 'history', [3], [(1.0, 0.5)], [(1.0, 0.5, 2, 1)]),
    values([('x', 0.5, 2)], [(2.0, 1.5, 2)], [(2.0, 0.5, -1)]),
    values([(2.0, 0.5, 1.5)], [(-1.0, 0.5, 2)], [(2.0, 0.0, 2)]),
)
HISTORY_NAMES = {'history': "'(history|noise_multiplier|q|steps)'"}
ORDERS = values(3, None, 'orders', [], [1.0], [0.5], [[2.0]], [np.nan], ['a'])
Q = number(0, 1, closed='high')
EPSILON = NOT_NEGATIVE

entry(
    'privacy.clip_factors',
    lambda: {'norms': rand(4), 'max_grad_norm': 1.0},
    norms=tensor(rows=False, finite=False),
    max_grad_norm=number(0, math.inf, closed='high'),
)
entry(
    'privacy.lam_from_opacus',
    lambda: {'noise_multiplier': 2.0},
)
entry('privacy.lam_to_opacus', lambda: {'lam': 2.0}, lam=LAM)
entry(
    'privacy.gaussian_profile',
    lambda: {'epsilon': 1.0, 'lam': 2.0},
    lam=LAM,
)
entry(
    'privacy.wor_profile',
    lambda: {'epsilon': 1.0, 'q': 0.1, 'lam': 2.0},
    lam=LAM,
)
entry(
    'privacy.rdp_gaussian',
    lambda: {'orders': [2.0, 3.0], 'lam': 2.0},
    orders=ORDERS,
    lam=LAM,
)
MULTIPLIER = number(0)
entry(
    'privacy.poisson_profile',
    lambda: {'epsilon': 1.0, 'q': 0.1, 'noise_multiplier': 2.0},
    form=choice(),
)
entry(
    'privacy.rdp_poisson',
    lambda: {'orders': [2.0, 3.0], 'q': 0.1, 'noise_multiplier': 2.0},
    orders=ORDERS,
    form=choice(),
)
entry(
    'privacy.poisson_epsilon',
    lambda: {'history': [(2.0, 0.1, 3)], 'delta': 1e-5},
    names=HISTORY_NAMES,
    history=HISTORY,
    form=choice(),
    occurrences=COUNT,
)
entry(
    'privacy.calibrate_poisson',
    lambda: {'epsilon': 1.0, 'delta': 1e-5, 'q': 0.1, 'steps': 3, 'tol': 0.1},
    form=choice(),
)
GROUP = {'num_roots': COUNT, 'occurrences': COUNT}
entry(
    'privacy.group_wor_profile',
    lambda: {
        'epsilon': 1.0,
        'm': 2,
        'num_roots': 20,
        'occurrences': 3,
        'noise_multiplier': 2.0,
    },
    Row('more than there are', {'occurrences': 21}, "'occurrences'"),
    names={'num_roots': "'(num_roots|occurrences|m)'"},
    m=integer(1, 20),
    **GROUP,
)
entry(
    'privacy.group_wor_epsilon',
    lambda: {
        'history': [(2.0, 0.1, 3)],
        'delta': 1e-5,
        'num_roots': 20,
        'occurrences': 3,
    },
    Row('no share', {'num_roots': 21}, "'q'"),
    Row('more than there are', {'occurrences': 21}, "'occurrences'"),
    names={**HISTORY_NAMES, 'num_roots': "'(num_roots|occurrences)'"},
    history=HISTORY,
    **GROUP,
)
entry(
    'privacy.rdp_group_wor',
    lambda: {
        'orders': [2.0, 3.0],
        'q': 0.1,
        'noise_multiplier': 2.0,
        'num_roots': 20,
        'occurrences': 3,
    },
    Row('no share', {'num_roots': 21}, "'q'"),
    names={'num_roots': "'(num_roots|occurrences)'"},
    orders=ORDERS,
    q=Q,
    noise_multiplier=MULTIPLIER,
    **GROUP,
)
for name in ('rdp_coupled', 'rdp_wang', 'rdp_wor', 'rdp_wor_profile'):
    entry(
        f'functional.{name}',
        lambda: {'orders': [2.0, 3.0], 'q': 0.1, 'lam': 2.0},
        orders=ORDERS,
        q=Q,
        lam=LAM,
    )
entry(
    'privacy.rdp_epsilon',
    lambda: {'orders': [2.0, 3.0], 'rdp': [0.1, 0.2], 'delta': 1e-5},
    orders=ORDERS,
    rdp=values(
        3, None, 'rdp', [], [0.1], [[0.1, 0.2]], [0.1, np.nan], [-1, 1]
    ),
)
RDP = values(3, None, 'rdp', [], [0.1], [[0.1, 0.2]], [0.1, np.nan], [-1, 1])
entry(
    'privacy.rdp_delta',
    lambda: {'orders': [2.0, 3.0], 'rdp': [0.1, 0.2], 'epsilon': 1.0},
    orders=ORDERS,
    rdp=RDP,
)
LAW = {
    'mean': number(1, 500, closed='low high'),
    'shape': values('a', None, True, -1.0, np.nan, 11.0),
}
entry(
    'privacy.rdp_select',
    lambda: {'orders': [2.0, 3.0], 'rdp': [0.1, 0.2], 'mean': 3.0},
    orders=ORDERS,
    rdp=RDP,
    **LAW,
)
entry(
    'privacy.draw_runs',
    lambda: {'uniform': 0.5, 'mean': 3.0},
    **LAW,
)
for name in ('wor_epsilon_rdp', 'wor_epsilon_pld', 'wor_epsilon'):
    more = {'method': choice()} if name == 'wor_epsilon' else {}
    entry(
        f'functional.{name}',
        lambda: {'history': [(2.0, 0.1, 3)], 'delta': 1e-5},
        names=HISTORY_NAMES,
        history=HISTORY,
        **more,
    )
entry(
    'privacy.calibrate_wor',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'q': 0.1,
        'steps': 3,
        'method': 'rdp_wor',
        'tol': 0.1,
    },
    method=choice(),
)
entry(
    'privacy.max_steps',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'q': 0.1,
        'noise_multiplier': 3.0,
        'method': 'rdp_wor',
    },
    names=HISTORY_NAMES,
    epsilon=EPSILON,
    noise_multiplier=MULTIPLIER,
    method=choice(),
    history=HISTORY,
)
entry(
    'privacy.fdp_terms',
    lambda: {'K': 2, 'layers': 2},
)
entry(
    'privacy.fdp_sensitivity',
    lambda: {'K': 2, 'layers': 2, 'max_grad_norm': 1.0},
)
FDP = {
    'num_nodes': COUNT,
    'm': integer(1, 100),
    'terms': COUNT,
}
entry(
    'privacy.rdp_fdp',
    lambda: {
        'orders': [2.0],
        'num_nodes': 100,
        'm': 10,
        'terms': 3,
        'lam': 2.0,
    },
    orders=ORDERS,
    lam=LAM,
    **FDP,
)
entry(
    'privacy.fdp_epsilon',
    lambda: {
        'num_nodes': 100,
        'm': 10,
        'terms': 3,
        'noise_multiplier': 2.0,
        'steps': 3,
        'delta': 1e-5,
    },
    noise_multiplier=MULTIPLIER,
    steps=integer(0),
    **FDP,
)
entry(
    'privacy.calibrate_fdp',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'num_nodes': 100,
        'm': 10,
        'terms': 3,
        'steps': 3,
        'tol': 0.1,
    },
    **FDP,
)
entry(
    'privacy.private_quantile',
    lambda: {
        'values': [1.0, 2.0],
        'share': 0.5,
        'epsilon': 1.0,
        'low': 0.1,
        'high': 10.0,
        'source': np.random.default_rng(0).bytes,
    },
    Row('ends', {'low': 10.0}, "'low'|'high'"),
    values=values(3, None, 'values', ['a'], [[1.0]], []),
    source=values(3, None, 'bytes'),
    names={'low': "'low'|'high'", 'high': "'low'|'high'"},
)

# Measures

entry(
    'agp.Measure',
    lambda: {'a': 0.5, 'b': 0.5, 'weights': (0.5, 0.5)},
    weights=values(
        3,
        None,
        'weights',
        (),
        (-1.0,),
        (0.0,),
        (np.nan,),
        (np.inf,),
        ('a',),
        (True,),
    ),
    name=values(3, None, ['a']),
)
entry('agp.transition', lambda: {'levels': 2}, levels=integer(0))
for name in ('pagerank', 'ppr', 'single_target'):
    entry(f'functional.{name}', lambda: {'alpha': 0.2}, alpha=SHARE)
entry('agp.appnp', lambda: {'alpha': 0.2}, alpha=SHARE, self_loops=FLAG)
entry('agp.hkpr', lambda: {'t': 2.0}, t=POSITIVE)
entry('agp.heat', lambda: {'t': 2.0}, t=POSITIVE, self_loops=FLAG)
entry(
    'agp.katz',
    lambda: {'beta': 0.1, 'graph': csr()},
)
entry('agp.sgc', lambda: {'levels': 2}, levels=integer(0), self_loops=FLAG)
entry(
    'agp.make_measure',
    lambda: {'measure': 'katz', 'graph': csr(), 'beta': 0.1},
    Row('no beta', {'beta': None}, "'beta'"),
    Row('foreign', {'t': 2.0}, "'t'"),
    Row('bad', {'beta': 2.0}, "'beta'"),
    Row('both', {'measure': F.ppr(0.2)}, "'beta'"),
    measure=choice(),
)

# Newton


def newton() -> dict[str, Any]:
    return {
        'Z': torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).sin(),
        'Y': torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]).double(),
        'B': torch.full((3, 1), 0.1, dtype=torch.float64),
        'lam': 0.1,
    }


FREE = tensor(rows=False)


def gram_matrix() -> torch.Tensor:
    Z = newton()['Z']
    return Z @ Z.t()


entry(
    'unlearning.gaussian_budget',
    lambda: {'epsilon': 1.0, 'delta': 1e-4},
)
entry(
    'unlearning.shift_epsilon',
    lambda: {'m': 0.3, 'delta': 1e-4},
)
entry(
    'unlearning.removal_budget',
    lambda: {'epsilon': 1.0, 'delta': 1e-4, 'noise_std': 0.1},
)
entry(
    'unlearning.minimize',
    lambda: {**newton(), 'K': gram_matrix(), 'W': newton()['B']},
    Row('labels', {'Y': torch.zeros(4, 1).double()}, "'Y'"),
    Z=tensor(rows=False, dtypes=(torch.int64, torch.bool, torch.float32)),
    Y=tensor(),
    B=tensor(),
    W=tensor(none=True),
    K=tensor(none=True),
)
entry(
    'unlearning.hessian_solve',
    lambda: {
        'Z': newton()['Z'],
        'curvature': torch.full((4, 1), 0.2, dtype=torch.float64),
        'mu': 0.5,
        'right': newton()['B'],
        'K': gram_matrix(),
    },
    Z=tensor(rows=False, finite=False),
    curvature=tensor(finite=False),
    right=tensor(finite=False),
    K=tensor(none=True, finite=False),
)
for name in ('tight_bound', 'paper_bound'):
    more = {'radius': number(0, closed='low', none=True)}
    entry(
        f'functional.{name}',
        lambda: {
            'Z': newton()['Z'],
            'P': newton()['B'],
            'K': gram_matrix(),
        },
        Z=FREE,
        P=tensor(),
        loss=choice(),
        K=tensor(none=True),
        **(more if name == 'paper_bound' else {}),
    )
entry(
    'unlearning.node_removal_bound',
    lambda: {'n': 10, 'lam': 0.1, 'radius': 1.0},
)
entry(
    'unlearning.feature_removal_bound',
    lambda: {
        'n': 10,
        'num_nodes': 5,
        'lam': 0.1,
        'radius': 1.0,
        'stability': 1.0,
        'noise_norm': 0.5,
    },
)

# Partitions

EDGES = edge_indices(N)
SHARDS = {'num_nodes': COUNT, 'num_shards': integer(1, N), 'slack': SLACK}
PARTITION = tensor(low=0, high=2)
entry(
    'unlearning.training_graph',
    lambda: {
        'edge_index': undirected(),
        'index': torch.tensor([0, 1, 2]),
        'num_nodes': N,
    },
    Row('twice', {'index': torch.tensor([0, 0])}, "'index'"),
    edge_index=EDGES,
    index=tensor(rows=False, low=0, high=N - 1),
)
entry(
    'unlearning.shard_sizes',
    lambda: {'shard': shard(), 'num_shards': 3},
    shard=tensor(rows=False, high=2),
)
entry(
    'unlearning.shard_limits',
    lambda: {'num_nodes': N, 'num_shards': 3},
    names={'num_nodes': "'num_(nodes|shards)'"},
    **SHARDS,
)
entry(
    'unlearning.check_partition',
    lambda: {'shard': shard(), 'num_shards': 3, 'num_nodes': N},
    Row('an empty shard', {'num_shards': 4}, "'shard'"),
    names={'num_nodes': "'num_(nodes|shards)'|'shard'"},
    shard=PARTITION,
    num_shards=integer(1, N),
    num_nodes=integer(1, none=True),
)
entry(
    'unlearning.partition_from_lists',
    lambda: {
        'shards': [torch.tensor([0, 2]), torch.tensor([1])],
        'index': torch.tensor([0, 1, 2]),
    },
    Row('none', {'shards': []}, "'(num_)?shards'"),
    Row('left out', {'shards': [torch.tensor([0]), [1]]}, "'shards'"),
    Row('index twice', {'index': torch.tensor([0, 1, 1])}, "'index'"),
    shards=sequence(None, 'a', torch.tensor([0.5]), [0], [7]),
    index=tensor(rows=True),
    names={'index': "'(index|shards)'"},
)
entry(
    'unlearning.random_partition',
    lambda: {'num_nodes': N, 'num_shards': 3, 'seed': 0},
    names={'num_nodes': "'num_(nodes|shards)'"},
    num_nodes=COUNT,
    num_shards=integer(1, N),
)
entry(
    'unlearning.hash_partition',
    lambda: {'n_id': torch.arange(N), 'num_shards': 2, 'seed': 0},
    Row('twice', {'n_id': torch.zeros(N).long()}, "'n_id'"),
    n_id=tensor(rows=False, low=0),
    num_shards=integer(1, N),
)
entry(
    'unlearning.round_partition',
    lambda: {'score': rand(N, 3)},
    score=tensor(rows=False),
    slack=SLACK,
)
entry(
    'unlearning.metis_partition',
    lambda: {'edge_index': undirected(), 'num_nodes': N, 'num_shards': 2},
    names={'num_nodes': "'num_(nodes|shards)'"},
    edge_index=EDGES,
    **SHARDS,
)
entry(
    'unlearning.blpa',
    lambda: {'edge_index': undirected(), 'num_nodes': N, 'num_shards': 2},
    names={'num_nodes': "'num_(nodes|shards)'"},
    edge_index=EDGES,
    **SHARDS,
)
entry(
    'unlearning.bekm',
    lambda: {'embedding': rand(N, 2), 'num_shards': 2},
    embedding=tensor(rows=False),
    num_shards=integer(1, N),
)
entry(
    'unlearning.partition_losses',
    lambda: {
        'assign': rand(N, 3),
        'edge_index': undirected(),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'num_classes': 2,
    },
    assign=tensor(rows=False, finite=False),
    edge_index=EDGES,
    y=tensor(low=0, high=1),
)
entry(
    'unlearning.partition_quality',
    lambda: {
        'shard': shard(),
        'num_shards': 3,
        'edge_index': undirected(),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
    },
    names={'shard': "'(shard|edge_index|y)'"},
    shard=PARTITION,
    num_shards=integer(1, N),
    edge_index=EDGES,
    y=tensor(low=0),
)

# Propagation

SIGNAL = tensor(dtypes=(torch.int64, torch.bool, torch.float16))
EPS = NOT_NEGATIVE

PROPAGATE = (
    Row('weighted', {'graph': weighted()}, "'graph'"),
    Row('directed', {'graph': directed(), 'measure': F.sgc(2)}, "'graph'"),
)
entry(
    'agp.plan_memory',
    lambda: {'num_nodes': N, 'num_edges': 14, 'num_columns': 3},
    Row('too little', {'memory': 10}, "'memory'"),
    Row('too many', {'memory': 10, 'columns': 2}, "'columns'"),
    memory=values(0, -1, 2.5, 'lots', True),
    itemsize=values(0, 2, 4.0, 'four', None),
)
EXEMPT['agp.MemoryPlan'] = 'what plan_memory returns'
EXEMPT['agp.HaloGraph'] = 'checked where it is used'
entry(
    'agp.propagate_halo',
    lambda: {
        'graph': HaloGraph(csr().rowptr, csr().col, 0, N),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
    },
    Row(
        'a part alone',
        {'graph': HaloGraph(csr().rowptr, csr().col, 0, N + 1)},
        "'graph'",
    ),
    x=values(
        3,
        None,
        torch.ones(N),
        torch.ones(3, 2),
        torch.ones(N, 2).long(),
        torch.full((N, 2), torch.nan),
    ),
)
entry(
    'agp.propagate_to',
    lambda: {
        'out': f'{FOLDER}/z.npy',
        'graph': csr(),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
    },
    Row('no .npy', {'out': f'{FOLDER}/z.txt'}, "'out'"),
    Row('tol, directed', {'tol': 0.1, 'graph': directed()}, "'tol'"),
    Row('half', {'half': True, 'x': rand(N, 2).double()}, "'half'"),
    out=values(3, None),
    x=values(
        3,
        None,
        torch.ones(N),
        torch.ones(3, 2),
        torch.ones(N, 2).long(),
        torch.full((N, 2), torch.nan),
        torch.ones(N, 2).to_sparse_coo(),
    ),
    columns=values(0, -1, 2.5, None, 'all', True),
    memory=values(0, -1, 2.5, 'lots', True),
)
entry(
    'agp.propagate',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
        'eps': 0.1,
        'rows': torch.tensor([0, 2]),
    },
    *PROPAGATE,
    Row('half', {'half': True}, "'half'"),
    Row('tol and eps', {'tol': 0.1}, "'tol'"),
    Row(
        'a + b',
        {'tol': 0.1, 'eps': 0.0, 'measure': F.Measure(0, 0, (1.0,))},
        "'tol'",
    ),
    Row(
        'tol, directed',
        {'tol': 0.1, 'eps': 0.0, 'graph': directed()},
        "'tol'",
    ),
    x=SIGNAL,
    eps=EPS,
    force_push=FLAG,
    half=FLAG,
    tol=EPS,
    rows=either(
        tensor(rows=False, low=0, high=N - 1, none=True),
        values(3, 'all', torch.ones(N + 1, dtype=torch.bool)),
    ),
)
entry(
    'agp.polynomials',
    lambda: {'measure': F.ppr(0.2), 'tol': 0.1},
    Row('a + b', {'measure': F.Measure(0, 0, (1.0,))}, "'tol'"),
)
EXEMPT['agp.Chebyshev'] = 'made by chebyshev'
entry(
    'agp.query',
    lambda: {
        'graph': csr(),
        'signals': torch.tensor([0, 2]),
        'measure': F.ppr(0.2),
        'eps': 0.1,
    },
    *PROPAGATE,
    signals=tensor(rows=False, low=0, high=N - 1),
    threshold=values('a', None, np.nan, -1.0, True, [0.5]),
    dtype=values(3, None, 'float32', torch.int64, torch.float16, float),
)
entry(
    'agp.variance_bound',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
        'eps': 0.1,
    },
    *PROPAGATE,
    x=SIGNAL,
    eps=EPS,
)
entry(
    'agp.prune_bound',
    lambda: {'graph': csr(), 'measure': F.ppr(0.2), 'eps': 0.1},
    *PROPAGATE,
    eps=EPS,
)
ERROR = {
    'delta': SHARE,
    'levels': COUNT,
    'relative_error': UNIT,
    'failure': UNIT,
    'bound': choice(),
}
entry('agp.eps_for', lambda: {'delta': 0.1, 'levels': 3}, **ERROR)
entry('agp.plan', lambda: {'delta': 0.1, 'levels': 3}, **ERROR)
entry(
    'agp.propagate_median',
    lambda: {
        'graph': csr(),
        'x': rand(N),
        'measure': F.ppr(0.2),
        'plan': Plan(0.1, 3, 0.1),
    },
    *PROPAGATE,
    x=SIGNAL,
    plan=either(
        instance(),
        values(Plan(-1.0, 3, 0.1), Plan(0.1, 0, 0.1), Plan(0.1, 2, 0.1)),
    ),
    names={'plan': "'(plan|eps|repetitions)'"},
)

# Scattering

J = integer(1)
entry(
    'scattering.num_paths',
    lambda: {'J': 3, 'L': 2},
)
entry(
    'scattering.scattering_path',
    lambda: {'index': 0, 'num_features': 2, 'J': 3, 'Q': 2, 'L': 2},
    index=integer(0, 15),
)
for name in ('itersine', 'monic_cubic'):
    entry(
        f'functional.{name}',
        lambda: {
            'eigenvalue': torch.tensor([0.5, 1.5], dtype=torch.float64),
            'J': 4,
        },
        eigenvalue=values([0.5], None, 'a', torch.tensor([1])),
        J=integer(3),
    )
WAVELET = choice()
EXEMPT['scattering.Wavelet.frame_bound'] = 'asked by frame_bound alone'
entry(
    'scattering.frame_bound',
    lambda: {'wavelet': 'geometric', 'J': 4},
    wavelet=WAVELET,
    J=J,
)
entry(
    'scattering.frame_bounds',
    lambda: {'bank': rand(3, N, N)},
    bank=tensor(rows=False, columns=True, batched=True),
)


def adjacency() -> torch.Tensor:
    return csr().to_torch_sparse(dtype=torch.float64).to_dense()


ADJ = tensor(columns=True, batched=True)
entry(
    'scattering.lazy_walk',
    lambda: {'adj': adjacency(), 'wavelet': 'geometric'},
    adj=ADJ,
    wavelet=WAVELET,
)
entry(
    'scattering.wavelet_bank',
    lambda: {'adj': adjacency(), 'wavelet': 'itersine', 'J': 4},
    adj=ADJ,
    wavelet=WAVELET,
    J=integer(3),
)
FEATURES = tensor(dtypes=(torch.int64, torch.bool, torch.float16))
PTR = either(
    tensor(none=True),
    values(
        torch.tensor([0, 0, N]), torch.tensor([0, N - 1]), torch.tensor([0])
    ),
)
entry(
    'scattering.scattering_transform',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'ptr': torch.tensor([0, N]),
        'J': 3,
        'Q': 2,
        'L': 2,
    },
    Row('no feature', {'x': rand(N, 0)}, "'x'"),
    x=FEATURES,
    ptr=PTR,
    wavelet=WAVELET,
    low_pass=choice(),
)
entry(
    'scattering.graph_fourier',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'ptr': torch.tensor([0, N]),
        'num_bands': 3,
    },
    x=FEATURES,
    ptr=PTR,
)

# Walks


def walks() -> DisjointWalks:
    return sampler.disjoint_walks(csr(), 2, seed=0)


ROOTS = tensor(
    rows=False,
    low=0,
    high=N - 1,
    none=True,
    empty=True,
    dtypes=(torch.float32, torch.int32),
)
TWICE = Row('twice', {'roots': torch.tensor([0, 0])}, "'roots'")
MASK = Row('a short mask', {'roots': torch.ones(3).bool()}, "'roots'")
entry(
    'sampler.disjoint_walks',
    lambda: {
        'graph': csr(),
        'walk_length': 2,
        'roots': torch.tensor([0, 2]),
    },
    TWICE,
    MASK,
    roots=ROOTS,
)
entry(
    'sampler.DisjointWalks.of_nodes',
    lambda: (walks(), {'num_nodes': 9}),
    Row('too few', {'num_nodes': 1}, "'num_nodes'"),
    num_nodes=integer(1),
)
entry(
    'sampler.DisjointWalks.select',
    lambda: (walks(), {'index': torch.tensor([0])}),
    index=tensor(rows=False, low=0, high=N),
)
entry(
    'sampler.max_size',
    lambda: {'walk_length': 2, 'restarts': 2},
    walk_length=integer(0),
    restarts=COUNT,
)
entry(
    'sampler.min_subgraphs',
    lambda: {'num_roots': 5, 'walk_length': 2},
)
entry(
    'sampler.check_walks',
    lambda: {
        'walks': walks(),
        'num_nodes': N,
        'size': 3,
        'roots': torch.arange(N),
    },
    Row(
        'twice',
        {'walks': DisjointWalks(torch.tensor([0, 2]), torch.tensor([0, 0]))},
        "'walks'",
    ),
    Row('large', {'size': 1}, "'walks'"),
    Row(
        'a missed root',
        {'walks': DisjointWalks(torch.tensor([0, 1]), torch.tensor([0]))},
        "'walks'",
    ),
    TWICE,
    names={'num_nodes': "'(num_nodes|walks|roots|walks.node)'"},
    walks=instance(),
    num_nodes=COUNT,
    size=integer(1, none=True),
    roots=ROOTS,
)
EXEMPT['audit.AUC'] = RESULT = 'a result, that only the package makes'
for name in (
    'BudgetBound',
    'DisjointWalks',
    'Optimum',
    'PartitionLosses',
    'PartitionQuality',
    'Plan',
    'ScatteringPath',
    'SingleFlip',
    'SweepCut',
    'WorstCase',
):
    EXEMPT[f'functional.{name}'] = RESULT
EXEMPT['certificates.Policy'] = 'made by its from_flips and by solvers'
