"""One table of bad inputs: every public entry point, every argument.

Each entry of :obj:`TABLE` is a call that works, and the kind of each of its
arguments (:mod:`bad_inputs`). The kinds make bad values, one argument at a
time; rows add what only several arguments together make bad. Every bad call
has to be refused by the package itself, by a ``TypeError`` or ``ValueError``
that names the argument, with everything as it was; and then the good call
has to work, on the same objects.
"""

import atexit
import functools
import inspect
import math
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from bad_inputs import (
    FLAG,
    FUNCTION,
    PATH,
    SEED,
    Kind,
    Row,
    any_graph,
    anything,
    changed,
    choice,
    complaint,
    csr,
    data,
    edge_indices,
    either,
    entry_points,
    instance,
    integer,
    leaves,
    number,
    parameters,
    sequence,
    tensor,
    undirected,
    values,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv
from torch_geometric.sampler import NodeSamplerInput

from pyg_trust import (
    certificates,
    files,
    loader,
    nn,
    privacy,
    report,
    rng,
    sampler,
    transforms,
    unlearning,
)
from pyg_trust import functional as F
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import PrivacyLedger, RemovalLedger
from pyg_trust.removal import Part, RemovalRequest
from pyg_trust.report import Guarantee, TrustReport

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


class Entry(NamedTuple):
    make: Callable[[], Any]
    kinds: dict[str, Kind]
    rows: tuple[Row, ...]
    names: dict[str, str]
    needs: str | None


TABLE: dict[str, Entry] = {}
# Not in the table, and why.
EXEMPT: dict[str, str] = {}

# What an argument of this name is, wherever an entry says nothing else.
NAMED: dict[str, Kind] = {
    'graph': instance(),
    'measure': instance(),
    'seed': SEED,
    'progress_bar': FLAG,
    'alpha': number(0, 1),
    'delta': number(0, 1),
    'levels': integer(0, none=True),
    'tol': number(0, 1),
}


def entry(
    key: str,
    make: Callable[[], Any],
    *rows: Row,
    names: dict[str, str] | None = None,
    needs: str | None = None,
    **kinds: Kind,
) -> None:
    """Adds an entry.

    Args:
        key: as :func:`entry_points` has it.
        make: makes the arguments, by name; of a method, the object too.
        rows: what several arguments together make bad.
        names: by argument, what the error names if not the argument.
        needs: the package without which it cannot be called.
        kinds: by argument.
    """
    assert key not in TABLE, key
    TABLE[key] = Entry(make, kinds, rows, names or {}, needs)


def kind_of(key: str, name: str) -> Kind | None:
    return TABLE[key].kinds.get(name, NAMED.get(name))


# functional ##################################################################

G = torch.Generator().manual_seed(0)
N = 6
UNIT = number(0, 1)
SHARE = number(0, 1, closed='high')
POSITIVE = number(0)
NOT_NEGATIVE = number(0, closed='low')
COUNT = integer(1)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=G, dtype=torch.float64)


def perturbations() -> F.Perturbations:
    graph = csr()
    return F.Perturbations(
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
    'functional.mean_probability',
    lambda: {'outputs': rand(2, 5, 3)},
    outputs=OUTPUTS,
)
entry(
    'functional.majority_vote',
    lambda: {'outputs': rand(2, 5, 3)},
    outputs=OUTPUTS,
)
entry(
    'functional.weighted_log_probability',
    lambda: {'outputs': rand(2, 5, 3), 'weight': rand(2)},
    outputs=OUTPUTS,
    weight=tensor(finite=False),
)
entry(
    'functional.attention',
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
    'functional.fuse',
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
    'functional.info_nce',
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
    temperature=POSITIVE,
)
entry(
    'functional.reconstruction_loss',
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
    'functional.auc_interval',
    lambda: {'positive': rand(5), 'negative': rand(6)},
    positive=tensor(rows=False, empty=True, finite=False),
    negative=tensor(rows=False, empty=True, finite=False),
    level=UNIT,
)
# Policies and budgets

COLUMNS = tensor(columns=True)


def reward(count: int = 2) -> torch.Tensor:
    return rand(count, N)


entry(
    'functional.Perturbations',
    lambda: {
        'graph': csr(),
        'removable': torch.ones(14, dtype=torch.bool),
        'budget': csr().degree - 1,
        'addable': torch.tensor([[0, 1], [3, 4]]),
    },
    Row('lost', {'budget': torch.full((N,), 9)}, "'budget'|a budget below"),
    Row('both', {'all_pairs': True}, "'addable'"),
    Row('there', {'addable': torch.tensor([[0], [1]])}, "'addable'"),
    Row('twice', {'addable': torch.tensor([[0, 0], [3, 3]])}, "'addable'"),
    removable=tensor(),
    budget=tensor(low=0),
    addable=tensor(columns=False, low=0, high=N - 1, none=True),
    all_pairs=FLAG,
)
entry(
    'functional.Perturbations.with_budget',
    lambda: (perturbations(), {'budget': torch.zeros(N).long()}),
    budget=tensor(low=0),
)
entry(
    'functional.Perturbations.column_blocks',
    lambda: (perturbations(), {'num_columns': 3}),
    num_columns=integer(0),
    numbers=COUNT,
)
entry(
    'functional.Perturbations.clean_policy',
    lambda: (perturbations(), {'num_columns': 3}),
    num_columns=integer(0),
)
entry(
    'functional.Policy.from_flips',
    lambda: {
        'perturbations': perturbations(),
        'flips': [torch.tensor([[0], [1]])],
    },
    Row('a node', {'flips': [torch.tensor([[0], [N]])]}, "'flips'"),
    Row('twice', {'flips': [torch.tensor([[0, 0], [1, 1]])]}, "'flips'"),
    Row(
        'nothing left',
        {'flips': [torch.tensor([[1, 1], [0, 2]])]},
        "'flips'",
    ),
    perturbations=instance(),
    flips=sequence(3, None, torch.tensor([0, 1]), torch.tensor([[0.0], [1]])),
)


def policy() -> F.Policy:
    return F.Policy.from_flips(perturbations(), [torch.tensor([[0], [1]])] * 2)


entry(
    'functional.Policy.solve',
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
    'functional.Policy.edges',
    lambda: (policy(), {'column': 1}),
    column=integer(0, 1),
)
entry(
    'functional.policy_iteration',
    lambda: {
        'perturbations': perturbations(),
        'reward': reward(),
        'alpha': 0.2,
        'bonus': reward(),
        'visit_cost': reward(),
        'step_cost': reward(),
        'start': reward(),
    },
    perturbations=instance(),
    reward=tensor(rows=False, columns=True),
    bonus=tensor(columns=True, none=True),
    visit_cost=tensor(columns=True, none=True),
    step_cost=tensor(columns=True, none=True),
    start=tensor(columns=True, none=True),
    tol=NOT_NEGATIVE,
    max_iter=COUNT,
)
entry(
    'functional.policy_value',
    lambda: {'policy': policy(), 'reward': reward(), 'alpha': 0.2},
    policy=instance(),
    reward=COLUMNS,
    tol=number(0),
)


def worst() -> F.WorstCase:
    logits = torch.arange(12, dtype=torch.float64).view(N, 2).sin()
    return F.worst_case_margins(logits, perturbations(), 0.2)


entry(
    'functional.WorstCase.flips',
    lambda: (worst(), {'c1': 0, 'c2': 1}),
    Row('the same', {'c2': 0}, "'c2'"),
    c1=integer(0, 1),
    c2=integer(0, 1),
)
LOGITS = tensor(
    columns=False, dtypes=(torch.int64, torch.bool, torch.complex64)
)
entry(
    'functional.worst_case_margins',
    lambda: {
        'logits': rand(N, 2),
        'perturbations': perturbations(),
        'alpha': 0.2,
        'start': rand(2, 2, N),
    },
    Row('one class', {'logits': rand(N, 1)}, "'logits'"),
    logits=LOGITS,
    perturbations=instance(),
    start=tensor(columns=True, none=True, finite=False),
    tol=NOT_NEGATIVE,
)
entry(
    'functional.robust_margins',
    lambda: {'logits': rand(N, 2), 'worst': worst(), 'alpha': 0.2},
    logits=tensor(columns=True),
    worst=instance(),
)
entry(
    'functional.diffuse',
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
TARGETS = tensor(rows=False, low=0, high=N - 1)
entry(
    'functional.clip_budget',
    lambda: {'perturbations': perturbations(), 'budget': 1},
    perturbations=instance(),
    budget=integer(0),
)
entry(
    'functional.pagerank_bounds',
    lambda: {
        'perturbations': perturbations(),
        'targets': torch.tensor([0, 3]),
        'alpha': 0.2,
    },
    perturbations=instance(),
    targets=TARGETS,
    cost=choice(),
    tol=POSITIVE,
)


def budget_arguments() -> dict[str, Any]:
    targets = torch.tensor([0, 3])
    return {
        'perturbations': perturbations(),
        'reward': reward(),
        'targets': targets,
        'upper': F.pagerank_bounds(perturbations(), targets, 0.2),
        'global_budget': 2,
        'alpha': 0.2,
    }


BUDGET = {
    'perturbations': instance(),
    'reward': COLUMNS,
    'targets': tensor(low=0, high=N - 1),
    'upper': tensor(columns=True, low=1, finite=False),
    'global_budget': integer(0),
    'cost': choice(),
}
entry(
    'functional.dual_bound',
    lambda: {**budget_arguments(), 'start': reward()},
    names={'targets': "'(targets|reward)'"},
    **BUDGET,
    sign_only=FLAG,
    start=tensor(columns=True, none=True),
    tol=POSITIVE,
    max_iter=COUNT,
)
entry(
    'functional.linear_program',
    lambda: {
        'perturbations': perturbations(),
        'reward': rand(N),
        'target': 1,
        'upper': F.pagerank_bounds(
            perturbations(), torch.tensor([1]), 0.2, cost='visits'
        )[0],
        'global_budget': 2,
        'alpha': 0.2,
    },
    perturbations=instance(),
    reward=tensor(),
    target=integer(0, N - 1),
    upper=tensor(low=1, finite=False),
    global_budget=integer(0),
)
entry(
    'functional.single_flip_margins',
    lambda: {
        'logits': rand(N, 2),
        'perturbations': perturbations(),
        'targets': torch.tensor([0, 3]),
        'reference': torch.tensor([0, 1]),
        'alpha': 0.2,
    },
    names={'targets': "'(targets|reference)'"},
    logits=LOGITS,
    perturbations=instance(),
    targets=tensor(low=0, high=N - 1),
    reference=tensor(low=0, high=1),
)
entry(
    'functional.budget_attacks',
    lambda: {
        **budget_arguments(),
        'multiplier': torch.zeros(2, dtype=torch.float64),
    },
    names={'targets': "'(targets|reward)'"},
    **BUDGET,
    multiplier=tensor(low=0, finite=False),
    rounds=integer(0),
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
    'functional.sweep_cut',
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
    max_size=integer(1, none=True),
)
entry(
    'functional.uniform_signal',
    lambda: {'seeds': torch.tensor([0, 2]), 'num_nodes': N},
    Row('twice', {'seeds': torch.tensor([1, 1])}, "'seeds'"),
    seeds=tensor(rows=False, low=0, high=N - 1, empty=True),
    num_nodes=integer(1),
)

# Differential privacy

LAM = number(0)
HISTORY = either(
    values(3, None, 'history', [3], [(1.0, 0.5)], [(1.0, 0.5, 2, 1)]),
    values([('x', 0.5, 2)], [(2.0, 1.5, 2)], [(2.0, 0.5, -1)]),
    values([(2.0, 0.5, 1.5)], [(-1.0, 0.5, 2)], [(2.0, 0.0, 2)]),
)
HISTORY_NAMES = {'history': "'(history|lam|q|steps)'"}
ORDERS = values(3, None, 'orders', [], [1.0], [0.5], [[2.0]], [np.nan], ['a'])
Q = number(0, 1, closed='high')
EPSILON = NOT_NEGATIVE

entry(
    'functional.clip_factors',
    lambda: {'norms': rand(4), 'max_grad_norm': 1.0},
    norms=tensor(rows=False, finite=False),
    max_grad_norm=number(0, math.inf, closed='high'),
)
entry(
    'functional.lam_from_opacus',
    lambda: {'noise_multiplier': 2.0},
    names={'noise_multiplier': "'(noise_multiplier|lam)'"},
    noise_multiplier=POSITIVE,
)
entry('functional.lam_to_opacus', lambda: {'lam': 2.0}, lam=LAM)
entry(
    'functional.gaussian_profile',
    lambda: {'epsilon': 1.0, 'lam': 2.0},
    epsilon=number(),
    lam=LAM,
)
entry(
    'functional.wor_profile',
    lambda: {'epsilon': 1.0, 'q': 0.1, 'lam': 2.0},
    epsilon=number(),
    q=Q,
    lam=LAM,
)
entry(
    'functional.rdp_gaussian',
    lambda: {'orders': [2.0, 3.0], 'lam': 2.0},
    orders=ORDERS,
    lam=LAM,
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
    'functional.rdp_epsilon',
    lambda: {'orders': [2.0, 3.0], 'rdp': [0.1, 0.2], 'delta': 1e-5},
    orders=ORDERS,
    rdp=values(
        3, None, 'rdp', [], [0.1], [[0.1, 0.2]], [0.1, np.nan], [-1, 1]
    ),
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
    'functional.calibrate_lam',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'q': 0.1,
        'steps': 3,
        'method': 'rdp_wor',
        'tol': 0.1,
    },
    epsilon=POSITIVE,
    q=Q,
    steps=COUNT,
    method=choice(),
    tol=POSITIVE,
)
entry(
    'functional.max_steps',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'q': 0.1,
        'lam': 3.0,
        'method': 'rdp_wor',
    },
    names=HISTORY_NAMES,
    epsilon=EPSILON,
    q=Q,
    lam=LAM,
    method=choice(),
    history=HISTORY,
)
entry(
    'functional.fdp_terms',
    lambda: {'K': 2, 'layers': 2},
    K=COUNT,
    layers=integer(0),
)
entry(
    'functional.fdp_sensitivity',
    lambda: {'K': 2, 'layers': 2, 'max_grad_norm': 1.0},
    K=COUNT,
    layers=integer(0),
    max_grad_norm=POSITIVE,
)
FDP = {
    'num_nodes': COUNT,
    'm': integer(1, 100),
    'terms': COUNT,
}
entry(
    'functional.rdp_fdp',
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
    'functional.fdp_epsilon',
    lambda: {
        'num_nodes': 100,
        'm': 10,
        'terms': 3,
        'lam': 2.0,
        'steps': 3,
        'delta': 1e-5,
    },
    lam=LAM,
    steps=integer(0),
    **FDP,
)
entry(
    'functional.calibrate_fdp',
    lambda: {
        'epsilon': 1.0,
        'delta': 1e-5,
        'num_nodes': 100,
        'm': 10,
        'terms': 3,
        'steps': 3,
        'tol': 0.1,
    },
    epsilon=POSITIVE,
    steps=COUNT,
    tol=POSITIVE,
    **FDP,
)
entry(
    'functional.private_quantile',
    lambda: {
        'values': [1.0, 2.0],
        'share': 0.5,
        'epsilon': 1.0,
        'low': 0.1,
        'high': 10.0,
        'uniform': np.array([0.1, 0.2, 0.3, 0.4]),
    },
    Row('ends', {'low': 10.0}, "'low'|'high'"),
    values=values(3, None, 'values', ['a'], [[1.0]], []),
    share=UNIT,
    epsilon=POSITIVE,
    low=POSITIVE,
    high=POSITIVE,
    uniform=values(
        3,
        None,
        'uniform',
        np.array([0.5]),
        np.full(4, np.nan),
        np.array([0.1, 0.2, 0.3, 1.5]),
    ),
    sensitivity=COUNT,
    names={'low': "'low'|'high'", 'high': "'low'|'high'"},
)

# Measures

entry(
    'functional.Measure',
    lambda: {'a': 0.5, 'b': 0.5, 'weights': (0.5, 0.5)},
    a=number(0, 1, closed='low high'),
    b=number(0, 1, closed='low high'),
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
    self_loops=FLAG,
    undirected=FLAG,
    along=FLAG,
    spectral_radius=number(0, closed='low', none=True),
    shrink=POSITIVE,
    name=values(3, None, ['a']),
)
entry('functional.transition', lambda: {'levels': 2}, levels=integer(0))
for name in ('pagerank', 'ppr', 'single_target'):
    entry(f'functional.{name}', lambda: {'alpha': 0.2}, alpha=SHARE)
entry('functional.appnp', lambda: {'alpha': 0.2}, alpha=SHARE, self_loops=FLAG)
entry('functional.hkpr', lambda: {'t': 2.0}, t=POSITIVE)
entry('functional.heat', lambda: {'t': 2.0}, t=POSITIVE, self_loops=FLAG)
entry('functional.katz', lambda: {'beta': 0.1, 'graph': csr()}, beta=number(0))
entry(
    'functional.sgc', lambda: {'levels': 2}, levels=integer(0), self_loops=FLAG
)
entry(
    'functional.make_measure',
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
    'functional.removal_budget',
    lambda: {'epsilon': 1.0, 'delta': 1e-4, 'noise_std': 0.1},
    epsilon=number(0, 1, closed='high'),
    noise_std=NOT_NEGATIVE,
)
entry(
    'functional.minimize',
    lambda: {**newton(), 'K': gram_matrix(), 'W': newton()['B']},
    Row('labels', {'Y': torch.zeros(4, 1).double()}, "'Y'"),
    Z=tensor(rows=False, dtypes=(torch.int64, torch.bool, torch.float32)),
    Y=tensor(),
    B=tensor(),
    lam=POSITIVE,
    loss=choice(),
    W=tensor(none=True),
    K=tensor(none=True),
    tol=POSITIVE,
    max_iter=integer(0),
)
entry(
    'functional.hessian_solve',
    lambda: {
        'Z': newton()['Z'],
        'curvature': torch.full((4, 1), 0.2, dtype=torch.float64),
        'mu': 0.5,
        'right': newton()['B'],
        'K': gram_matrix(),
    },
    Z=tensor(rows=False, finite=False),
    curvature=tensor(finite=False),
    mu=POSITIVE,
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
    'functional.node_removal_bound',
    lambda: {'n': 10, 'lam': 0.1, 'radius': 1.0},
    n=COUNT,
    lam=POSITIVE,
    radius=NOT_NEGATIVE,
    num_graphs=COUNT,
)
entry(
    'functional.feature_removal_bound',
    lambda: {
        'n': 10,
        'num_nodes': 5,
        'lam': 0.1,
        'radius': 1.0,
        'stability': 1.0,
        'noise_norm': 0.5,
    },
    n=COUNT,
    num_nodes=COUNT,
    lam=POSITIVE,
    radius=NOT_NEGATIVE,
    stability=NOT_NEGATIVE,
    noise_norm=NOT_NEGATIVE,
    num_graphs=COUNT,
)

# Partitions

EDGES = edge_indices(N)
SHARDS = {'num_nodes': COUNT, 'num_shards': integer(1, N), 'slack': SLACK}
PARTITION = tensor(low=0, high=2)
entry(
    'functional.training_graph',
    lambda: {
        'edge_index': undirected(),
        'index': torch.tensor([0, 1, 2]),
        'num_nodes': N,
    },
    Row('twice', {'index': torch.tensor([0, 0])}, "'index'"),
    edge_index=EDGES,
    index=tensor(rows=False, low=0, high=N - 1),
    num_nodes=integer(0),
)
entry(
    'functional.shard_sizes',
    lambda: {'shard': shard(), 'num_shards': 3},
    shard=tensor(rows=False, high=2),
    num_shards=COUNT,
)
entry(
    'functional.shard_limits',
    lambda: {'num_nodes': N, 'num_shards': 3},
    names={'num_nodes': "'num_(nodes|shards)'"},
    **SHARDS,
)
entry(
    'functional.check_partition',
    lambda: {'shard': shard(), 'num_shards': 3, 'num_nodes': N},
    Row('an empty shard', {'num_shards': 4}, "'shard'"),
    names={'num_nodes': "'num_(nodes|shards)'|'shard'"},
    shard=PARTITION,
    num_shards=integer(1, N),
    num_nodes=integer(1, none=True),
)
entry(
    'functional.partition_from_lists',
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
    'functional.random_partition',
    lambda: {'num_nodes': N, 'num_shards': 3, 'seed': 0},
    names={'num_nodes': "'num_(nodes|shards)'"},
    num_nodes=COUNT,
    num_shards=integer(1, N),
)
entry(
    'functional.hash_partition',
    lambda: {'n_id': torch.arange(N), 'num_shards': 2, 'seed': 0},
    Row('twice', {'n_id': torch.zeros(N).long()}, "'n_id'"),
    n_id=tensor(rows=False, low=0),
    num_shards=integer(1, N),
)
entry(
    'functional.round_partition',
    lambda: {'score': rand(N, 3)},
    score=tensor(rows=False),
    slack=SLACK,
)
entry(
    'functional.metis_partition',
    lambda: {'edge_index': undirected(), 'num_nodes': N, 'num_shards': 2},
    names={'num_nodes': "'num_(nodes|shards)'"},
    edge_index=EDGES,
    **SHARDS,
)
entry(
    'functional.blpa',
    lambda: {'edge_index': undirected(), 'num_nodes': N, 'num_shards': 2},
    names={'num_nodes': "'num_(nodes|shards)'"},
    edge_index=EDGES,
    max_rounds=integer(0),
    **SHARDS,
)
entry(
    'functional.bekm',
    lambda: {'embedding': rand(N, 2), 'num_shards': 2},
    embedding=tensor(rows=False),
    num_shards=integer(1, N),
    slack=SLACK,
    max_rounds=COUNT,
)
entry(
    'functional.partition_losses',
    lambda: {
        'assign': rand(N, 3),
        'edge_index': undirected(),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'num_classes': 2,
    },
    assign=tensor(rows=False, finite=False),
    edge_index=EDGES,
    y=tensor(low=0, high=1),
    num_classes=COUNT,
)
entry(
    'functional.partition_quality',
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


def huge_cycle() -> CSRGraph:
    return csr()


PROPAGATE = (
    Row('weighted', {'graph': weighted()}, "'graph'"),
    Row('directed', {'graph': directed(), 'measure': F.sgc(2)}, "'graph'"),
)
entry(
    'functional.propagate',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
        'eps': 0.1,
    },
    *PROPAGATE,
    Row('half', {'half': True}, "'half'"),
    x=SIGNAL,
    eps=EPS,
    force_push=FLAG,
    half=FLAG,
)
entry(
    'functional.query',
    lambda: {
        'graph': csr(),
        'signals': torch.tensor([0, 2]),
        'measure': F.ppr(0.2),
        'eps': 0.1,
    },
    *PROPAGATE,
    signals=tensor(rows=False, low=0, high=N - 1),
    eps=EPS,
    method=choice(),
    top_k=integer(0, none=True),
    threshold=values('a', None, np.nan, -1.0, True, [0.5]),
    dtype=values(3, None, 'float32', torch.int64, torch.float16, float),
)
entry(
    'functional.variance_bound',
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
    'functional.prune_bound',
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
entry('functional.eps_for', lambda: {'delta': 0.1, 'levels': 3}, **ERROR)
entry('functional.plan', lambda: {'delta': 0.1, 'levels': 3}, **ERROR)
entry(
    'functional.propagate_median',
    lambda: {
        'graph': csr(),
        'x': rand(N),
        'measure': F.ppr(0.2),
        'plan': F.Plan(0.1, 3, 0.1),
    },
    *PROPAGATE,
    x=SIGNAL,
    plan=either(
        instance(),
        values(F.Plan(-1.0, 3, 0.1), F.Plan(0.1, 0, 0.1), F.Plan(0.1, 2, 0.1)),
    ),
    names={'plan': "'(plan|eps|repetitions)'"},
    force_push=FLAG,
)

# Scattering

J = integer(1)
entry('functional.num_paths', lambda: {'J': 3, 'L': 2}, J=J, L=integer(0))
entry(
    'functional.scattering_path',
    lambda: {'index': 0, 'num_features': 2, 'J': 3, 'Q': 2, 'L': 2},
    index=integer(0, 15),
    num_features=COUNT,
    J=J,
    Q=J,
    L=J,
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
entry(
    'functional.frame_bound',
    lambda: {'wavelet': 'geometric', 'J': 4},
    wavelet=WAVELET,
    J=J,
)
entry(
    'functional.frame_bounds',
    lambda: {'bank': rand(3, N, N)},
    bank=tensor(rows=False, columns=True, batched=True),
)


def adjacency() -> torch.Tensor:
    return csr().to_torch_sparse(dtype=torch.float64).to_dense()


ADJ = tensor(columns=True, batched=True)
entry(
    'functional.lazy_walk',
    lambda: {'adj': adjacency(), 'wavelet': 'geometric'},
    adj=ADJ,
    wavelet=WAVELET,
)
entry(
    'functional.wavelet_bank',
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
    'functional.scattering_transform',
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
    J=J,
    Q=J,
    L=J,
    wavelet=WAVELET,
    low_pass=choice(),
    linear=FLAG,
    sparse=FLAG,
    method=choice(),
)
entry(
    'functional.graph_fourier',
    lambda: {
        'graph': csr(),
        'x': rand(N, 2),
        'ptr': torch.tensor([0, N]),
        'num_bands': 3,
    },
    x=FEATURES,
    ptr=PTR,
    num_bands=integer(1, none=True),
)

# Walks


def walks() -> F.DisjointWalks:
    return F.disjoint_walks(csr(), 2, seed=0)


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
    'functional.disjoint_walks',
    lambda: {
        'graph': csr(),
        'walk_length': 2,
        'roots': torch.tensor([0, 2]),
    },
    TWICE,
    MASK,
    walk_length=integer(0),
    restarts=COUNT,
    roots=ROOTS,
    along=FLAG,
)
entry(
    'functional.DisjointWalks.select',
    lambda: (walks(), {'index': torch.tensor([0])}),
    index=tensor(rows=False, low=0, high=N),
)
entry(
    'functional.max_size',
    lambda: {'walk_length': 2, 'restarts': 2},
    walk_length=integer(0),
    restarts=COUNT,
)
entry(
    'functional.min_subgraphs',
    lambda: {'num_roots': 5, 'walk_length': 2},
    num_roots=COUNT,
    walk_length=integer(0),
    restarts=COUNT,
)
entry(
    'functional.check_walks',
    lambda: {
        'walks': walks(),
        'num_nodes': N,
        'size': 3,
        'roots': torch.arange(N),
    },
    Row(
        'twice',
        {'walks': F.DisjointWalks(torch.tensor([0, 2]), torch.tensor([0, 0]))},
        "'walks'",
    ),
    Row('large', {'size': 1}, "'walks'"),
    Row(
        'a missed root',
        {'walks': F.DisjointWalks(torch.tensor([0, 1]), torch.tensor([0]))},
        "'walks'",
    ),
    TWICE,
    names={'num_nodes': "'(num_nodes|walks|roots|walks.node)'"},
    walks=instance(),
    num_nodes=COUNT,
    size=integer(1, none=True),
    roots=ROOTS,
)
EXEMPT['functional.AUC'] = RESULT = 'a result, that only the package makes'
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
EXEMPT['functional.Policy'] = 'made by its from_flips and by solvers'


# Ground ######################################################################

# The kernels' arguments: types and shapes are checked, entries are not. Who
# calls them by hand answers for indices.
RAW = tensor(finite=False)
WIDE = tensor(columns=True, finite=False)
DTYPE = values(3, None, 'float32', torch.int64, float)


def push_arguments() -> dict[str, Any]:
    graph = csr()
    one = torch.ones(N)
    return {
        'graph': graph.push_graph(1.0),
        'send': one,
        'ratio': torch.tensor([0.8], dtype=torch.float64),
        'keep': torch.tensor([0.2, 1.0], dtype=torch.float64),
        'seed': 1,
    }


PUSH = {
    'graph': instance(),
    'send': RAW,
    'ratio': tensor(finite=False),
    'keep': RAW,
    'seed': integer(0),
    'first': integer(0),
    'deterministic': FLAG,
}
PUSH_NAMES = {'ratio': "'(ratio|keep)'"}


def receivers() -> tuple[torch.Tensor, torch.Tensor]:
    return csr().receivers()


entry(
    'ops.has_kernel',
    lambda: {'device_type': 'cpu'},
    device_type=values(3, None, ['cpu']),
)
entry(
    'ops.propagate',
    lambda: {
        'rowptr': receivers()[0],
        'col': receivers()[1],
        'x': torch.ones(N, 2),
        'recv': torch.ones(N),
        'send': torch.ones(N),
        'weights': torch.tensor([0.5, 0.5], dtype=torch.float64),
    },
    names={'rowptr': "'(rowptr|x|recv)'", 'col': "'(col|rowptr)'"},
    rowptr=RAW,
    col=tensor(rows=False, finite=False),
    x=RAW,
    recv=RAW,
    send=RAW,
    weights=tensor(rows=False, empty=True, finite=False),
    half=FLAG,
)
entry(
    'ops.push',
    lambda: {
        **push_arguments(),
        'receivers': receivers(),
        'recv': torch.ones(N),
        'x': torch.ones(N, 2),
        'eps': torch.full((2,), 0.1),
    },
    Row(
        'rows',
        {'receivers': (receivers()[0][:-1], receivers()[1])},
        "'rowptr'",
    ),
    Row(
        'columns',
        {'receivers': (receivers()[0], receivers()[1][:-1])},
        "'col'",
    ),
    names=PUSH_NAMES,
    receivers=values(3, None, 'r', (1,), [torch.tensor([0])]),
    recv=RAW,
    x=RAW,
    eps=RAW,
    pull_above=values('a', None, np.nan, -1.0, [1]),
    **PUSH,
)
entry('ops.block_size', lambda: {'dtype': torch.float32}, dtype=DTYPE)
entry(
    'ops.push_sparse',
    lambda: {
        **push_arguments(),
        'ptr': torch.tensor([0, 1, 2]),
        'node': torch.tensor([0, 3]),
        'value': torch.ones(2),
        'eps': torch.full((2,), 0.1),
        'prune': torch.zeros(2),
    },
    names={
        **PUSH_NAMES,
        'ptr': "'(ptr|eps)'",
        'node': "'(node|value|ptr)'",
        'value': "'(value|send|scale)'",
    },
    ptr=RAW,
    node=RAW,
    value=RAW,
    eps=RAW,
    prune=RAW,
    top_k=integer(),
    threshold=values('a', None, np.nan, -1.0, [1]),
    **PUSH,
)
entry(
    'ops.disjoint_walks',
    lambda: {
        'rowptr': receivers()[0],
        'col': receivers()[1],
        'roots': torch.arange(N),
        'walk_length': 2,
        'restarts': 1,
        'seed': 1,
    },
    rowptr=tensor(rows=False, finite=False),
    col=tensor(rows=False, finite=False),
    roots=tensor(rows=False, finite=False),
    walk_length=integer(0),
    restarts=COUNT,
    seed=integer(0),
)


def threat_of(made: F.Perturbations) -> Any:
    return made._threat


def solver_arguments() -> dict[str, Any]:
    return {
        'reward': reward(),
        'start': reward(),
        'goal': torch.full((2,), 1e-9, dtype=torch.float64),
        'follow': 0.8,
    }


FOLLOW = number(0, 1, closed='low')
THREAT = threat_of(perturbations())


def cut_threat(field: str) -> Any:
    return THREAT._replace(**{field: getattr(THREAT, field)[:-1]})


entry(
    'ops.policy_iteration',
    lambda: {
        **solver_arguments(),
        'threat': THREAT,
        'rounding': 1e-12,
        'max_iter': 9,
        'bonus': reward(),
        'visit_cost': reward(),
        'step_cost': reward(),
    },
    *(
        Row(
            field,
            {
                'threat': THREAT._replace(
                    **{field: getattr(THREAT, field)[:-1]}
                )
            },
            f"'({field}|rowptr|col|removable|budget)'",
        )
        for field in ('rowptr', 'col', 'removable', 'budget', 'add_ptr')
    ),
    names={'reward': "'(reward|start|bonus)'"},
    threat=instance(),
    reward=WIDE,
    start=WIDE,
    goal=RAW,
    rounding=NOT_NEGATIVE,
    follow=FOLLOW,
    max_iter=COUNT,
    bonus=tensor(columns=True, none=True, finite=False),
    visit_cost=tensor(columns=True, none=True, finite=False),
    step_cost=tensor(columns=True, none=True, finite=False),
)
entry(
    'ops.policy_solve',
    lambda: {
        **solver_arguments(),
        'rowptr': THREAT.rowptr,
        'col': THREAT.col,
        'flips': policy().flipped,
    },
    names={'rowptr': "'(rowptr|col|reward)'", 'col': "'(rowptr|col)'"},
    rowptr=RAW,
    col=tensor(rows=False, finite=False),
    flips=instance(),
    reward=WIDE,
    start=WIDE,
    goal=RAW,
    follow=FOLLOW,
    back=FLAG,
)
for name in ('PushGraph', 'PolicyThreat', 'PolicyFlips'):
    EXEMPT[f'ops.{name}'] = 'a bundle of tensors, checked where it is used'

entry(
    'graph.CSRGraph',
    lambda: {
        'rowptr': torch.tensor([0, 1, 2]),
        'col': torch.tensor([1, 0]),
        'weight': torch.ones(2),
        'perm': torch.tensor([0, 1]),
    },
    Row('falling', {'rowptr': torch.tensor([0, 3, 2])}, "'rowptr'"),
    Row('empty', {'rowptr': torch.tensor([0])}, "'rowptr'"),
    Row(
        'not sorted',
        {'rowptr': torch.tensor([0, 2, 2]), 'col': torch.tensor([1, 0])},
        "'col'",
    ),
    names={'col': "'(col|rowptr)'"},
    rowptr=tensor(rows=False, low=0, high=2),
    col=tensor(low=0, high=1),
    weight=tensor(none=True),
    perm=tensor(none=True),
)
EDGE_WEIGHT = tensor(none=True)
NUM_NODES = integer(N, none=True)
entry(
    'graph.CSRGraph.from_edge_index',
    lambda: {
        'edge_index': undirected(),
        'num_nodes': N,
        'edge_weight': torch.ones(14),
    },
    Row('twice', {'edge_index': undirected()[:, [0] * 14]}, "'edge_index'"),
    Row('no number', {'num_nodes': None}, "'num_nodes'"),
    names={'num_nodes': "'(num_nodes|edge_index)'"},
    edge_index=edge_indices(N),
    num_nodes=integer(N),
    edge_weight=EDGE_WEIGHT,
    duplicates=choice(),
)
entry(
    'graph.CSRGraph.from_torch_sparse',
    lambda: {'adj': csr().to_torch_sparse(), 'weighted': False},
    Row('weights', {'adj': 2 * csr().to_torch_sparse()}, "'adj'"),
    names={'adj': "'(adj|num_nodes|edge_weight)'"},
    adj=values(
        3,
        None,
        'adj',
        torch.ones(N, N),
        torch.ones(3, N).to_sparse(),
        torch.ones(0, 0).to_sparse(),
        torch.full((2, 2), torch.nan).to_sparse(),
    ),
    weighted=FLAG,
    transposed=FLAG,
)
entry(
    'graph.CSRGraph.from_sparse_tensor',
    lambda: {'adj': csr().to_sparse_tensor(), 'weighted': False},
    needs='torch_sparse',
    adj=values(3, None, 'adj', torch.ones(N, N)),
    weighted=FLAG,
    transposed=FLAG,
)


def plain_data() -> Data:
    return Data(
        x=torch.arange(12.0).view(N, 2),
        edge_index=undirected(),
        y=torch.tensor([0, 1, 0, 1, 0, 1]),
        num_nodes=N,
    )


DATA = data()
DATA_NAMES = {'data': "'(data|edge_index|data.edge_index)'"}
entry(
    'graph.CSRGraph.from_data',
    lambda: {'data': plain_data()},
    names=DATA_NAMES,
    data=DATA,
    duplicates=choice(),
)
entry(
    'graph.CSRGraph.convert',
    lambda: {
        'graph': undirected(),
        'num_nodes': N,
        'edge_weight': torch.ones(14),
    },
    Row('weights twice', {'graph': csr()}, "'edge_weight'"),
    Row(
        'another number',
        {'graph': csr(), 'edge_weight': None, 'num_nodes': 9},
        "'num_nodes'",
    ),
    names={
        'graph': "'(graph|edge_index|edge_weight|data)'",
        'num_nodes': "'(num_nodes|edge_index)'",
    },
    graph=any_graph(),
    num_nodes=integer(N),
    edge_weight=EDGE_WEIGHT,
    transposed=FLAG,
    duplicates=choice(),
)
FLOATS = values(3, 'float32', float, torch.float)
entry(
    'graph.CSRGraph.to_torch_sparse',
    lambda: (csr(), {}),
    layout=values(3, None, 'csr', torch.strided),
    dtype=values(3, 'float32', [torch.float32]),
)
entry(
    'graph.CSRGraph.to',
    lambda: (csr(), {'device': 'cpu'}),
    device=values(3.5, None, ['cpu'], 'no such device'),
)
entry('graph.CSRGraph.receivers', lambda: (csr(), {}), along=FLAG)
entry(
    'graph.CSRGraph.push_graph',
    lambda: (csr(), {'a': 1.0}),
    a=number(),
    dtype=values(3, None, 'float32', torch.int64),
    along=FLAG,
)
entry(
    'graph.CSRGraph.degree_power',
    lambda: (csr(), {'exponent': 0.5, 'dtype': torch.float32}),
    exponent=number(),
    dtype=values(3, None, 'float32', torch.int64),
)
entry(
    'graph.sparse_rows',
    lambda: {
        'ptr': torch.tensor([0, 1, 2]),
        'index': torch.tensor([0, 1]),
        'value': torch.ones(2),
        'size': (2, 2),
    },
    names={'size': "'(ptr|size)'", 'index': "'(index|value)'"},
    ptr=tensor(finite=False),
    index=RAW,
    value=values([1.0], None, 'a', torch.ones(3), torch.ones(())),
    size=values(3, None, (2,), (3, 2), (2, -1), ('a', 2)),
    layout=values(3, None, 'csr', torch.strided),
)


def removal_ledger() -> RemovalLedger:
    made = RemovalLedger(1.0)
    made.record('fit', 0.1)
    return made


NAMES = values(3, 'names', [1], (1,))
entry('ledger.RemovalLedger', lambda: {'budget': 1.0}, budget=NOT_NEGATIVE)
entry(
    'ledger.RemovalLedger.count',
    lambda: (removal_ledger(), {'action': 'fit'}),
    action=choice(),
)
entry(
    'ledger.RemovalLedger.record',
    lambda: (
        removal_ledger(),
        {'action': 'step', 'spent': 0.2, 'request': {}, 'data': ''},
    ),
    Row('a second fit', {'action': 'fit'}, "'fit'"),
    Row('falling', {'spent': 0.05}, "'spent'"),
    Row('not plain', {'request': {'a': object()}}, "'request'"),
    Row('too much', {'spent': 2.0}, 'budget'),
    action=choice(),
    spent=NOT_NEGATIVE,
    request=NAMES,
    data=values(3, None, ['a']),
)


def changed_state(**fields: Any) -> dict[str, Any]:
    state = removal_ledger().state_dict()
    state.update(fields)
    return state


STATE = (
    {'budget': 1.0},
    changed_state(budget=2.0),
    changed_state(entries=3),
    changed_state(entries=[3]),
    changed_state(entries=[{}]),
    changed_state(entries=[]),
)
entry(
    'ledger.RemovalLedger.load_state_dict',
    lambda: (removal_ledger(), {'state': removal_ledger().state_dict()}),
    names={'state': "state|'fit'"},
    state=values(3, None, 'state', {}, *STATE),
)
entry(
    'ledger.fingerprint',
    lambda: {'salt': 'salt', 'data': plain_data()},
    salt=values(3, None, ['a']),
    data=data(edges=False),
)
entry(
    'ledger.fingerprints',
    lambda: {'prints': {0: 'a', 1: 'b'}},
    prints=values(3, None, 'prints', [1], {0: 1}, {'a': 'b'}),
)


def temporary(name: str = 'file') -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER)) / name


def privacy_ledger() -> PrivacyLedger:
    return PrivacyLedger(temporary(), {'mechanism': 'a'})


entry(
    'ledger.PrivacyLedger',
    lambda: {'path': temporary(), 'header': {'mechanism': 'a'}},
    path=PATH,
    header=values(3, None, 'a', [1], {'a': object()}),
)
entry(
    'ledger.PrivacyLedger.record',
    lambda: (
        privacy_ledger(),
        {'noise_multiplier': 1.0, 'sample_rate': 0.5},
    ),
    noise_multiplier=POSITIVE,
    sample_rate=SHARE,
)
entry(
    'ledger.PrivacyLedger.record_pure',
    lambda: (privacy_ledger(), {'epsilon': 0.5}),
    epsilon=POSITIVE,
)
EXEMPT['ledger.LedgerEntry'] = RESULT

entry(
    'files.write',
    lambda: {'path': temporary(), 'content': b'a'},
    path=PATH,
    content=values(3, None, 'text', ['a']),
)
entry('files.sync_folder', lambda: {'folder': temporary().parent}, folder=PATH)
entry(
    'files.save',
    lambda: {'path': temporary(), 'state': {'a': 1}},
    path=PATH,
    state=anything('what torch.save takes is for torch to say'),
)


def saved() -> Path:
    path = temporary()
    files.save(path, {'a': 1})
    return path


entry('files.load', lambda: {'path': saved()}, path=PATH)

entry('rng.resolve', lambda: {'seed': 3})


class Spread:
    """What takes any number of arguments, with these as one list."""

    def derive(self, seed: Any, items: Any) -> int:
        return rng.derive(seed, *items)

    def of(self, reports: Any) -> Any:
        return TrustReport.of(*reports)

    def fingerprint(self, parts: Any) -> str:
        return report.fingerprint(*parts)


entry(
    'rng.derive',
    lambda: (Spread(), {'seed': 3, 'items': [1, 2]}),
    seed=integer(0),
    items=values(['a'], [0.5], [True], [-1], [None]),
)
entry(
    'rng.derive_each',
    lambda: {'seed': 3, 'items': torch.tensor([1, 2])},
    seed=integer(0),
    items=values(3, None, [1], torch.tensor([0.5]), torch.tensor([True])),
)
entry('rng.forked', lambda: {'seed': 3}, seed=integer(0))
entry('rng.generator', lambda: {'seed': 3})


ITEMS = values(
    'a', [0.5], [True], [-1], None, torch.tensor([0.5]), 1.5, [[1]], ['a']
)
PER_GRAPH = either(ITEMS, values({'a': [1]}, {-1: [1]}, {0: 'a'}, {0: None}))
entry(
    'removal.RemovalRequest',
    lambda: {'graphs': [7], 'nodes': [1], 'features': [2], 'edges': [(3, 4)]},
    Row(
        'nothing',
        {'graphs': [], 'nodes': [], 'features': [], 'edges': []},
        'name something',
    ),
    graphs=ITEMS,
    nodes=PER_GRAPH,
    features=PER_GRAPH,
    edges=values(
        3,
        None,
        'a',
        [1],
        [(1,)],
        [(1, 2, 3)],
        [(1, -2)],
        [(1, 0.5)],
        torch.tensor([1, 2]),
        torch.tensor([[0.5], [1.0]]),
        {'a': [(1, 2)]},
    ),
)
entry(
    'removal.RemovalRequest.batch',
    lambda: {'requests': [RemovalRequest(graphs=[1])]},
    requests=values(3, None, 'a', [1], [None]),
    names={'requests': "'requests'|name something"},
)
entry(
    'removal.remove_from_data',
    lambda: {'data': plain_data(), 'part': Part(nodes=(0,))},
    Row('unknown', {'part': Part(nodes=(9,))}, 'node 9'),
    Row('an edge', {'part': Part(edges=((0, 3),))}, 'edge 0'),
    Row('everything', {'part': Part(nodes=tuple(range(N)))}, 'no node'),
    Row('whole', {'part': Part(whole=True)}, "'part'"),
    names=DATA_NAMES,
    data=DATA,
    part=instance(),
    mode=choice(),
)
EXEMPT['removal.Part'] = 'what RemovalRequest makes of its arguments'

entry(
    'report.Guarantee',
    lambda: {'procedure': 'a', 'promise': 'b', 'assumptions': ()},
    Row('budgets', {'spent': {'a': 1.0}}, "'spent'"),
    procedure=values('', 3, None),
    promise=values('', 3, None),
    assumptions=values(3, None, 'one', [3]),
    not_covered=values(3, None, 'one', [3]),
    spent=values(3, None, {'a': 'b'}),
    budget=values(3, None, {'a': 'b'}),
    data=values(3, None),
    origin=values(3, None),
)


def trust_report() -> TrustReport:
    return TrustReport.of(Guarantee('a', 'b', ()))


entry(
    'report.TrustReport',
    lambda: {'guarantees': trust_report().guarantees},
    guarantees=values(3, None, 'a', (), (3,)),
)
entry(
    'report.TrustReport.of',
    lambda: (Spread(), {'reports': [trust_report().guarantees[0]]}),
    reports=values([], [3], ['a'], [None]),
)
entry(
    'report.fingerprint',
    lambda: (Spread(), {'parts': ['a', 1.0, None, torch.ones(2)]}),
    parts=values([object()], [[1]], [{}]),
)
entry(
    'report.TrustReport.save',
    lambda: (trust_report(), {'path': temporary()}),
    path=PATH,
)

entry('testing.make_graph', lambda: {'name': 'path'}, name=choice())
entry(
    'testing.dense_operator',
    lambda: {'graph': csr(), 'measure': F.ppr(0.2)},
)
entry(
    'utils.local_cluster',
    lambda: {'graph': undirected(), 'seeds': 0, 'num_nodes': N},
    Row('directed', {'graph': directed(), 'num_nodes': None}, "'graph'"),
    graph=any_graph(),
    seeds=either(
        values('a', None, 0.5, True, -1, N),
        values(torch.tensor([0.5]), torch.tensor([0, 0]), torch.tensor([N])),
    ),
    measure=instance(none=True),
    eps=EPS,
    method=choice(),
    max_size=integer(1, none=True),
    num_nodes=integer(N),
    names={
        'num_nodes': "'(num_nodes|edge_index)'",
        'graph': "'(graph|edge_index|data)'",
    },
)
EXEMPT['utils.LocalCluster'] = RESULT


# Layers ######################################################################

CHANNELS = integer(1)
EDGE_GRAPH = {
    'edge_index': "'(graph|edge_index|data)'",
    'graph': "'(graph|edge_index)'",
}
entry(
    'nn.SGConv',
    lambda: {'in_channels': 2, 'out_channels': 3},
    in_channels=integer(-1),
    out_channels=CHANNELS,
    K=integer(0),
    cached=FLAG,
    add_self_loops=FLAG,
    bias=FLAG,
    eps=EPS,
)
entry(
    'nn.SGConv.forward',
    lambda: (
        nn.SGConv(2, 3, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    Row('directed', {'edge_index': undirected()[:, :7]}, "'graph'"),
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(rows=False, columns=True, dtypes=(torch.int64, torch.bool)),
    edge_index=any_graph(),
)
entry(
    'nn.APPNP',
    lambda: {'K': 2, 'alpha': 0.2},
    K=integer(0),
    alpha=SHARE,
    cached=FLAG,
    add_self_loops=FLAG,
    eps=EPS,
)
entry(
    'nn.APPNP.forward',
    lambda: (
        nn.APPNP(2, 0.2, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(rows=False, dtypes=(torch.int64, torch.bool)),
    edge_index=any_graph(),
)
STEPS = integer(0, none=True)
entry(
    'nn.PageRankDiffusion',
    lambda: {},
    K=STEPS,
    normalization=choice(),
    add_self_loops=FLAG,
)
entry(
    'nn.PageRankDiffusion.diffuse',
    lambda: (
        nn.PageRankDiffusion(),
        {
            'h': torch.ones(N, 2),
            'graph': undirected(),
            'edge_weight': torch.ones(14),
        },
    ),
    names={**EDGE_GRAPH, 'h': "'(h|edge_index)'"},
    h=tensor(rows=False, dtypes=(torch.int64, torch.bool, torch.float16)),
    graph=values(3, 'graph', None, torch.zeros(3, 2).long(), undirected() - 1),
    edge_weight=EDGE_WEIGHT,
)
EXEMPT['nn.PageRankDiffusion.message'] = 'called by MessagePassing alone'
entry(
    'nn.PPNP',
    lambda: {'encoder': torch.nn.Linear(2, 3)},
    encoder=instance(),
    K=STEPS,
)
ENCODED = values(3, None, 'x', [[1.0]])
entry(
    'nn.PPNP.logits',
    lambda: (nn.PPNP(torch.nn.Linear(2, 3)), {'x': torch.ones(N, 2)}),
    x=ENCODED,
)
entry(
    'nn.PPNP.forward',
    lambda: (
        nn.PPNP(torch.nn.Linear(2, 3)),
        {
            'x': torch.ones(N, 2),
            'edge_index': undirected(),
            'edge_weight': torch.ones(14),
        },
    ),
    names=EDGE_GRAPH,
    x=ENCODED,
    edge_index=values(
        3, 'graph', None, torch.zeros(3, 2).long(), undirected() - 1
    ),
    edge_weight=EDGE_WEIGHT,
)
entry(
    'nn.FeaturePropagation',
    lambda: {'in_channels': 2, 'out_channels': 3},
    in_channels=CHANNELS,
    out_channels=CHANNELS,
    K=STEPS,
    bias=FLAG,
)
entry(
    'nn.LabelPropagation',
    lambda: {'num_classes': 3},
    num_classes=integer(2),
    K=STEPS,
)
LABELS = tensor(rows=False, low=0, high=2, dtypes=(torch.float32,))
LABELLED = either(
    values(3, 'a', [0]),
    values(torch.tensor([N]), torch.tensor([-1]), torch.ones(3).bool()),
    values(torch.tensor([0.5]), torch.ones(N, N).bool()),
)
entry(
    'nn.LabelPropagation.logits',
    lambda: (
        nn.LabelPropagation(3),
        {'y': torch.tensor([0, 1, 2, 0, 1, 2])},
    ),
    y=LABELS,
    mask=LABELLED,
)
entry(
    'nn.LabelPropagation.forward',
    lambda: (
        nn.LabelPropagation(3),
        {
            'y': torch.tensor([0, 1, 2, 0, 1, 2]),
            'edge_index': undirected(),
            'edge_weight': torch.ones(14),
        },
    ),
    names=EDGE_GRAPH,
    y=LABELS,
    edge_index=values(
        3, 'graph', None, torch.zeros(3, 2).long(), undirected() - 1
    ),
    mask=LABELLED,
    edge_weight=EDGE_WEIGHT,
)


def examples() -> dict[str, Any]:
    return {
        'outputs': torch.linspace(-1, 1, 36).view(3, N, 2),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'index': torch.tensor([0, 1, 2, 3]),
        'edge_index': undirected(),
        'shard': torch.tensor([0, 1, 2, 0, -1, -1]),
        'num_classes': 2,
        'seed': 0,
    }


LEARN = {'epochs': COUNT, 'batch_size': COUNT, 'lr': POSITIVE}
entry(
    'nn.ShardAggregator.fit',
    lambda: (nn.AttentiveAggregator(epochs=1, recon_weight=0.1), examples()),
    Row('no edges', {'edge_index': None}, "'edge_index'"),
    Row('no shards', {'shard': None}, "'shard'"),
    Row('twice', {'index': torch.tensor([0, 0])}, "'index'"),
    names={'outputs': "'(outputs|y)'", 'num_classes': "'(num_classes|y)'"},
    outputs=tensor(rows=False),
    y=tensor(rows=True),
    index=tensor(rows=False, low=0, high=N - 1, empty=True),
    edge_index=edge_indices(N, none=True),
    shard=tensor(none=True),
    num_classes=integer(2, none=True),
)
for name in ('MeanAggregator', 'MajorityAggregator'):
    entry(
        f'nn.{name}.forward',
        lambda name=name: (getattr(nn, name)(), {'outputs': rand(3, N, 2)}),
        outputs=OUTPUTS,
    )


def fitted(**arguments: Any) -> Any:
    if not arguments:
        return nn.LBAggregator(epochs=1).fit(**examples())
    return nn.AttentiveAggregator(**arguments).fit(**examples())


FITTED = tensor(rows=True, finite=False)
entry('nn.LBAggregator', lambda: {}, **LEARN)
entry(
    'nn.LBAggregator.forward',
    lambda: (fitted(), {'outputs': examples()['outputs']}),
    outputs=FITTED,
)
entry(
    'nn.AttentiveAggregator',
    lambda: {},
    fusion=choice(),
    contra_weight=NOT_NEGATIVE,
    recon_weight=NOT_NEGATIVE,
    temperature=POSITIVE,
    hidden_channels=CHANNELS,
    weight_decay=NOT_NEGATIVE,
    **LEARN,
)
entry(
    'nn.AttentiveAggregator.fused',
    lambda: (
        fitted(epochs=1),
        {
            'outputs': examples()['outputs'],
            'mask': torch.ones((N, 3), dtype=torch.bool),
        },
    ),
    outputs=tensor(columns=True, finite=False),
    mask=tensor(columns=True, none=True),
)
entry(
    'nn.AttentiveAggregator.classify',
    lambda: (fitted(epochs=1), {'fused': torch.ones(N, 64)}),
    fused=tensor(rows=False, columns=True, finite=False),
)
entry(
    'nn.AttentiveAggregator.forward',
    lambda: (fitted(epochs=1), {'outputs': examples()['outputs']}),
    outputs=tensor(columns=True, finite=False),
)
EXEMPT['nn.ShardAggregator.forward'] = 'abstract'
for name in ('ShardAggregator', 'MeanAggregator', 'MajorityAggregator'):
    EXEMPT[f'nn.{name}'] = 'takes no arguments, as torch.nn.Module'
entry(
    'nn.make_aggregator',
    lambda: {'name': 'lbaggr', 'epochs': 3},
    Row('foreign', {'alpha': 1}, 'alpha'),
    Row('of another', {'name': nn.MeanAggregator()}, "'epochs'"),
    Row('bad', {'epochs': 0}, "'epochs'"),
    name=choice(),
)
entry(
    'nn.ShardPartitioner',
    lambda: {'in_channels': 2, 'num_shards': 3},
    in_channels=CHANNELS,
    num_shards=COUNT,
    hidden_channels=CHANNELS,
    num_layers=COUNT,
)
entry(
    'nn.ShardPartitioner.forward',
    lambda: (
        nn.ShardPartitioner(2, 3).eval(),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    x=tensor(rows=False, columns=True, finite=False),
    edge_index=edge_indices(entries=False),
)
LEARNED = {
    'x': tensor(rows=True, dtypes=(torch.int64, torch.bool)),
    'edge_index': EDGES,
    'y': tensor(low=0),
    'hidden_channels': CHANNELS,
    'lr': POSITIVE,
    'weight_decay': NOT_NEGATIVE,
}


def classified() -> dict[str, Any]:
    return {
        'x': torch.linspace(-1, 1, 12).view(N, 2),
        'edge_index': undirected(),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
    }


entry(
    'nn.learned_partition',
    lambda: {**classified(), 'num_shards': 2, 'max_epochs': 2},
    names={'x': "'(x|y|edge_index)'"},
    num_shards=integer(1, N),
    time_weight=number(),
    sem_weight=number(),
    max_epochs=integer(0),
    patience=COUNT,
    tol=NOT_NEGATIVE,
    slack=SLACK,
    **LEARNED,
)
entry(
    'nn.partition_embedding',
    lambda: {**classified(), 'epochs': 2},
    names={'x': "'(x|y|edge_index)'"},
    epochs=integer(0),
    **LEARNED,
)

# Transforms ##################################################################

MEASURE = {
    'measure': choice(),
    'alpha': number(0, 1, closed='high', none=True),
    't': number(0, none=True),
    'beta': number(0, none=True),
    'levels': integer(0, none=True),
    'tol': number(0, 1, none=True),
    'eps': EPS,
}
MEASURE_ROWS = (
    Row('no alpha', {'alpha': None}, "'alpha'"),
    Row('none taken', {'measure': F.ppr(0.2)}, "'alpha'"),
)
NAME = values(3, None, ['x'])
MAYBE_NAME = values(3, ['x'])
entry(
    'transforms.AGP',
    lambda: {'measure': 'appnp', 'alpha': 0.2},
    *MEASURE_ROWS,
    force_push=FLAG,
    attr=NAME,
    out=MAYBE_NAME,
    **MEASURE,
)


def agp() -> Any:
    return transforms.AGP('appnp', alpha=0.2, levels=2)


def changed_data(**attributes: Any) -> Data:
    made = plain_data()
    made.update(attributes)
    return made


FEATURE_ROWS = (
    Row('no features', {'data': changed_data(x=None)}, "'x'"),
    Row('integers', {'data': changed_data(x=torch.ones(N, 2).long())}, "'x'"),
    Row('NaN', {'data': changed_data(x=torch.full((N, 2), np.nan))}, "'x'"),
)
entry(
    'transforms.AGP.forward',
    lambda: (agp(), {'data': plain_data()}),
    *FEATURE_ROWS,
    Row(
        'directed',
        {'data': changed_data(edge_index=undirected()[:, :7])},
        "'graph'",
    ),
    names=DATA_NAMES,
    data=DATA,
)
entry(
    'transforms.AGP.guarantee',
    lambda: (agp(), {'data': plain_data()}),
    *FEATURE_ROWS,
    names=DATA_NAMES,
    data=DATA,
)
for name, make in (
    ('AGP', agp),
    ('GDC', lambda: transforms.GDC('appnp', alpha=0.2, top_k=2)),
):
    entry(
        f'transforms.{name}.make_measure',
        lambda make=make: (make(), {'graph': csr()}),
    )
entry(
    'transforms.GDC',
    lambda: {'measure': 'appnp', 'alpha': 0.2, 'top_k': 2},
    *MEASURE_ROWS,
    Row('dense', {'top_k': None}, "'top_k'"),
    top_k=integer(1),
    threshold=NOT_NEGATIVE,
    normalization=choice(none=True),
    method=choice(),
    **MEASURE,
)
entry(
    'transforms.GDC.forward',
    lambda: (
        transforms.GDC('appnp', alpha=0.2, top_k=2),
        {'data': plain_data()},
    ),
    Row(
        'edge attributes',
        {'data': changed_data(edge_attr=torch.ones(14, 1))},
        "'edge_attr'",
    ),
    names=DATA_NAMES,
    data=DATA,
)
entry('transforms.BoundedDegree', lambda: {'K': 2}, K=COUNT, along=FLAG)
entry(
    'transforms.BoundedDegree.forward',
    lambda: (transforms.BoundedDegree(2), {'data': plain_data()}),
    names=DATA_NAMES,
    data=DATA,
)
EMBEDDING = {
    'max_degree': integer(1, none=True),
    'clip': FLAG,
    'attr': NAME,
    'dtype': values(3, 'float32', torch.int64, float, torch.float16),
}
EXEMPT['transforms.GraphEmbedding'] = 'abstract'
entry(
    'transforms.GraphScattering',
    lambda: {'J': 2, 'Q': 2, 'L': 2},
    J=J,
    Q=J,
    L=J,
    wavelet=WAVELET,
    low_pass=choice(),
    linear=FLAG,
    sparse=FLAG,
    **EMBEDDING,
)


def scattering(**arguments: Any) -> Any:
    return transforms.GraphScattering(J=2, Q=2, L=2, **arguments)


WIDTH = integer(1)
for name, more in (
    ('num_coefficients', {}),
    ('path', {'index': 0}),
    ('paths', {}),
):
    entry(
        f'transforms.GraphScattering.{name}',
        lambda more=more: (scattering(), {**more, 'num_features': 2}),
        num_features=WIDTH,
        **({'index': integer(0, 11)} if more else {}),
    )
entry(
    'transforms.GFT', lambda: {}, num_bands=integer(1, none=True), **EMBEDDING
)


def unit_data() -> Data:
    return changed_data(x=torch.linspace(-1, 1, 12).view(N, 2))


UNIT_ROWS = (
    *FEATURE_ROWS,
    Row('too large', {'data': plain_data()}, "'x'"),
)
entry(
    'transforms.GraphEmbedding.forward',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    names=DATA_NAMES,
    data=DATA,
)
entry(
    'transforms.GraphEmbedding.embed',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    Row('a list', {'data': [unit_data(), 3]}, "'data'"),
    Row('none', {'data': []}, "'data'"),
    names=DATA_NAMES,
    data=DATA,
    dtype=EMBEDDING['dtype'],
    sparse=FLAG,
)
entry(
    'transforms.GraphEmbedding.signal',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    names=DATA_NAMES,
    data=data(edges=False),
    graph=instance(none=True),
    dtype=EMBEDDING['dtype'],
)
entry(
    'transforms.Shards',
    lambda: {'num_shards': 2, 'method': 'bekm', 'embedding': 'z'},
    Row('foreign', {'alpha': 1}, "'alpha'"),
    Row('no embedding', {'method': 'hash'}, "'embedding'"),
    num_shards=COUNT,
    method=choice(),
    embedding=MAYBE_NAME,
)


def masked_data(**attributes: Any) -> Data:
    mask = torch.tensor([True, True, True, True, False, False])
    return changed_data(**{'train_mask': mask, **attributes})


entry(
    'transforms.Shards.forward',
    lambda: (
        transforms.Shards(2, 'blpa', seed=0),
        {'data': masked_data()},
    ),
    Row('no mask', {'data': plain_data()}, "'train_mask'"),
    Row(
        'a short mask',
        {'data': masked_data(train_mask=torch.ones(2).bool())},
        "'train_mask'",
    ),
    Row(
        'too few',
        {'data': masked_data(train_mask=torch.arange(N) < 1)},
        "'num_shards'",
    ),
    names=DATA_NAMES,
    data=data(),
)

# Samplers and loaders ########################################################

WALK = {
    'walk_length': integer(0),
    'restarts': COUNT,
    'roots': ROOTS,
    'along': FLAG,
}
entry(
    'sampler.DisjointWalkSampler',
    lambda: {
        'data': plain_data(),
        'walk_length': 2,
        'roots': torch.tensor([0, 2]),
    },
    TWICE,
    MASK,
    names=DATA_NAMES,
    data=DATA,
    **WALK,
)


def walk_sampler() -> Any:
    return sampler.DisjointWalkSampler(plain_data(), 2, seed=0)


def ego_sampler() -> Any:
    return sampler.EgoSampler(plain_data(), 1)


entry(
    'sampler.DisjointWalkSampler.partition',
    lambda: (walk_sampler(), {}),
    number=integer(0),
)
entry(
    'sampler.DisjointWalkSampler.sample_walks',
    lambda: (walk_sampler(), {'walks': walk_sampler().partition()}),
    Row(
        'an unknown node',
        {'walks': F.DisjointWalks(torch.tensor([0, 1]), torch.tensor([N]))},
        "'walks",
    ),
    Row(
        'twice',
        {'walks': F.DisjointWalks(torch.tensor([0, 2]), torch.tensor([0, 0]))},
        "'walks",
    ),
    walks=instance(),
    input_id=values(3, 'a', [1], torch.tensor([0.5]), torch.zeros(99).long()),
)
NODES = either(
    instance(),
    values(
        NodeSamplerInput(None, torch.tensor([N])),
        NodeSamplerInput(None, torch.tensor([-1])),
        NodeSamplerInput(None, torch.tensor([0.5])),
    ),
)
for name, make in (('DisjointWalk', walk_sampler), ('Ego', ego_sampler)):
    entry(
        f'sampler.{name}Sampler.sample_from_nodes',
        lambda make=make: (
            make(),
            {
                'inputs': NodeSamplerInput(
                    None,
                    walk_sampler().partition().roots[:1],
                )
            },
        ),
        names={'inputs': "'(inputs|roots)'"},
        inputs=NODES,
    )
    EXEMPT[f'sampler.{name}Sampler.sample_from_edges'] = 'refuses everything'
entry(
    'sampler.EgoSampler',
    lambda: {
        'data': plain_data(),
        'num_hops': 2,
        'roots': torch.tensor([0, 2]),
    },
    TWICE,
    MASK,
    names=DATA_NAMES,
    data=DATA,
    num_hops=integer(0),
    roots=ROOTS,
    along=FLAG,
)
entry(
    'sampler.EgoSampler.sample_roots',
    lambda: (ego_sampler(), {'index': torch.tensor([0, 1])}),
    index=tensor(rows=False, low=0, high=N - 1),
)
OPTIONS = {
    'input_nodes': ROOTS,
    'num_steps': integer(1, none=True),
    'along': FLAG,
}
OWN = Row('choosing batches', {'shuffle': True}, "'shuffle'")
entry(
    'loader.DisjointWalkLoader',
    lambda: {
        'data': plain_data(),
        'batch_size': 1,
        'walk_length': 2,
        'input_nodes': torch.tensor([0, 2]),
    },
    OWN,
    Row('too many', {'batch_size': 99, 'seed': 0}, "'batch_size'"),
    names={**DATA_NAMES, 'input_nodes': "'(input_nodes|roots)'"},
    data=DATA,
    batch_size=COUNT,
    walk_length=integer(0),
    restarts=COUNT,
    resample_every=integer(1, none=True),
    **OPTIONS,
)


def walk_loader() -> Any:
    return loader.DisjointWalkLoader(plain_data(), 1, 2, seed=0)


def ego_loader() -> Any:
    return loader.EgoLoader(plain_data(), 2, 1, 3, seed=0)


entry(
    'loader.EgoLoader',
    lambda: {
        'data': plain_data(),
        'batch_size': 2,
        'num_hops': 1,
        'max_degree': 3,
        'input_nodes': torch.tensor([0, 2]),
    },
    OWN,
    Row('degrees', {'max_degree': 2}, "'data'"),
    names={**DATA_NAMES, 'input_nodes': "'(input_nodes|roots)'"},
    data=DATA,
    batch_size=integer(1, 2),
    num_hops=integer(0),
    max_degree=COUNT,
    **OPTIONS,
)
STEP = integer(0)
for name, make in (('DisjointWalk', walk_loader), ('Ego', ego_loader)):
    entry(
        f'loader.{name}Loader.num_subgraphs_at',
        lambda make=make: (make(), {'step': 0}),
        step=STEP,
    )
    entry(
        f'loader.{name}Loader.check_batch',
        lambda make=make: (
            make(),
            {'batch': next(iter(make())), 'step': 0},
        ),
        Row('another batch', {'batch': plain_data()}, 'batch'),
        names={'batch': "a batch|'transform'"},
        batch=data(edges=False),
        step=STEP,
        count=integer(1, none=True),
    )
    EXEMPT[f'loader.{name}Loader.collate_fn'] = 'called by DataLoader alone'
entry(
    'loader.DisjointWalkLoader.draw',
    lambda: (walk_loader(), {'step': 0}),
    step=STEP,
)
entry(
    'loader.StepLoader.sample_rate_at',
    lambda: (walk_loader(), {'step': 0}),
    step=STEP,
)
EXEMPT['loader.StepLoader'] = 'abstract'
EXEMPT['loader.StepLoader.num_subgraphs_at'] = 'abstract'
EXEMPT['loader.StepLoader.check_batch'] = 'abstract'
EXEMPT['loader.StepLoader.check_kwargs'] = 'what the loaders refuse it by'
entry(
    'loader.ShardLoader',
    lambda: {'data': plain_data(), 'shard': shard(), 'num_shards': 3},
    Row('an empty shard', {'num_shards': 4}, "'shard'"),
    Row('none', {'shard': None}, "'shard'"),
    Row('own', {'collate_fn': print}, "'collate_fn'"),
    Row('outside', {'shard': torch.full((N,), -1)}, "'shard'"),
    names=DATA_NAMES,
    data=DATA,
    shard=tensor(high=2),
    num_shards=integer(1, none=True),
    batch_size=COUNT,
)

# Certificates ################################################################


def threat() -> Any:
    return certificates.ThreatModel(csr(), local_budget=1)


def certificate() -> Any:
    logits = torch.arange(12, dtype=torch.float64).view(N, 2).sin()
    return certificates.certify(logits, threat())


EXEMPT['certificates.Certificate'] = RESULT
entry(
    'certificates.Certificate.certified_accuracy',
    lambda: (certificate(), {'labels': torch.zeros(N).long()}),
    labels=tensor(),
)
CERTIFICATE = certificate()
BROKEN = int(CERTIFICATE.targets[CERTIFICATE.broken][0])
ROBUST = int(CERTIFICATE.targets[CERTIFICATE.robust][0])
entry(
    'certificates.Certificate.witness',
    lambda: (certificate(), {'node': BROKEN}),
    Row('no witness', {'node': ROBUST}, 'has no witness'),
    names={'node': 'node'},
    node=integer(0, N - 1),
)
entry(
    'certificates.RobustLoss',
    lambda: {'threat': threat()},
    Row(
        'a global budget',
        {'threat': certificates.ThreatModel(csr(), global_budget=1)},
        "'threat'",
    ),
    threat=instance(),
    kind=choice(),
    margin=number(),
    tol=UNIT,
)
TRAINED = tensor(rows=True)
entry(
    'certificates.RobustLoss.forward',
    lambda: (
        certificates.RobustLoss(threat(), kind='cem'),
        {
            'logits': rand(N, 2),
            'y': torch.tensor([0, 1, 0, 1, 0, 1]),
            'index': torch.tensor([0, 3]),
            'diffused': rand(N, 2),
        },
    ),
    logits=LOGITS,
    y=tensor(low=None),
    index=either(
        LABELLED,
        tensor(
            rows=False, low=0, high=N - 1, none=True, dtypes=(torch.float32,)
        ),
    ),
    diffused=tensor(columns=True, none=True, finite=False),
)
entry(
    'certificates.ThreatModel',
    lambda: {
        'graph': undirected(),
        'fragile': torch.tensor([[0, 0], [1, 3]]),
        'fixed': torch.tensor([[1], [2]]),
        'local_budget': torch.ones(N).long(),
        'global_budget': 3,
        'num_nodes': N,
    },
    Row('two budgets', {'strength': 3}, "'strength'"),
    Row('both', {'fixed': torch.tensor([[0], [1]])}, "'fixed'"),
    Row('no edge', {'fixed': torch.tensor([[0], [3]])}, "'fixed'"),
    Row('twice', {'fragile': torch.tensor([[0, 0], [1, 1]])}, "'fragile'"),
    names={
        'graph': "'(graph|edge_index|data)'",
        'num_nodes': "'(num_nodes|edge_index)'",
        'strength': "'strength'",
    },
    graph=any_graph(),
    fragile=either(
        choice(),
        values(
            torch.tensor([[0.5], [1.0]]),
            torch.tensor([0, 1]),
            torch.tensor([[0], [N]]),
        ),
    ),
    fixed=either(
        choice(none=True),
        values(
            torch.tensor([[0.5], [1.0]]),
            torch.tensor([0, 1]),
            torch.tensor([[0], [N]]),
        ),
    ),
    local_budget=either(
        integer(0, none=True), values(-torch.ones(N).long(), torch.ones(N))
    ),
    strength=integer(none=True),
    global_budget=integer(0, none=True),
    num_nodes=integer(N),
)
entry(
    'certificates.certify',
    lambda: {
        'logits': rand(N, 2),
        'threat': threat(),
        'targets': torch.tensor([0, 3]),
        'reference': torch.zeros(N).long(),
    },
    Row(
        'exact',
        {
            'threat': certificates.ThreatModel(csr(), global_budget=2),
            'method': 'exact',
        },
        "'method'",
    ),
    logits=LOGITS,
    threat=instance(),
    targets=tensor(
        rows=False, low=0, high=N - 1, none=True, dtypes=(torch.float32,)
    ),
    reference=tensor(low=0, high=1, none=True),
    method=choice(),
    cost=choice(),
    sign_only=FLAG,
    tolerance=values('a', None, np.nan, -1.0, True, [0.5]),
)
entry(
    'certificates.neighborhood_purity',
    lambda: {'graph': csr(), 'labels': shard()},
    labels=tensor(),
    hops=COUNT,
)
AXES = values(3, 'axes')
LABEL = values(3, ['a'])
entry(
    'certificates.plot_certified_ratio',
    lambda: {'budgets': [1], 'certificates': [CERTIFICATE]},
    needs='matplotlib',
    budgets=values(3, None, [1, 2], ['a'], [-1]),
    certificates=values(3, None, [], ['a']),
    label=LABEL,
    ax=AXES,
)
entry(
    'certificates.plot_purity',
    lambda: {
        'certificate': CERTIFICATE,
        'purity': torch.ones(N, dtype=torch.float64),
    },
    needs='matplotlib',
    certificate=instance(),
    purity=tensor(finite=False),
    label=LABEL,
    ax=AXES,
)


# Privacy #####################################################################

SPENT = {
    'noise_multiplier': number(0),
    'sample_rate': SHARE,
}
NOISE_NAMES = {'noise_multiplier': "'(noise_multiplier|lam)'"}


def accountant() -> Any:
    made = privacy.RDPAccountant()
    made.step(noise_multiplier=2.0, sample_rate=0.5)
    return made


def fdp_accountant() -> Any:
    return privacy.FDPAccountant(100, 10, 3)


entry(
    'privacy.WORAccountant.step',
    lambda: (accountant(), {'noise_multiplier': 2.0, 'sample_rate': 0.5}),
    names=NOISE_NAMES,
    **SPENT,
)
entry(
    'privacy.WORAccountant.spend_pure',
    lambda: (accountant(), {'epsilon': 0.5}),
    epsilon=POSITIVE,
)
entry(
    'privacy.WORAccountant.get_epsilon',
    lambda: (accountant(), {'delta': 1e-5}),
    Row('more', {'alphas': [2.0]}, "'delta'"),
    args=anything('a row above refuses whatever comes'),
)
BUDGETED = {'epsilon': 5.0, 'delta': 1e-5}
AFTER = {'epsilon': number(), 'steps': COUNT}
entry(
    'privacy.WORAccountant.remaining_steps',
    lambda: (
        accountant(),
        {**BUDGETED, 'noise_multiplier': 4.0, 'sample_rate': 0.5},
    ),
    names=NOISE_NAMES,
    epsilon=NOT_NEGATIVE,
    **SPENT,
)
entry(
    'privacy.WORAccountant.noise_multiplier_for',
    lambda: (accountant(), {**BUDGETED, 'sample_rate': 0.5, 'steps': 2}),
    epsilon=POSITIVE,
    sample_rate=SHARE,
    steps=COUNT,
)
DESTINATION = values(3, 'state', [1])
entry(
    'privacy.WORAccountant.state_dict',
    lambda: (accountant(), {}),
    destination=DESTINATION,
)


def damaged(value: dict[str, Any]) -> Any:
    """The states that something is wrong with."""
    yield 'a number', 3
    yield 'a list', [value]
    yield 'an empty dictionary', {}
    yield 'None', None
    for key in value:
        rest = {k: v for k, v in value.items() if k != key}
        yield f'without {key!r}', rest
        yield f'another {key!r}', {**rest, key: object()}
        yield f'no {key!r}', {**rest, key: None}


entry(
    'privacy.WORAccountant.load_state_dict',
    lambda: (accountant(), {'state_dict': accountant().state_dict()}),
    Row(
        'turned back',
        {'state_dict': privacy.RDPAccountant().state_dict()},
        'state',
    ),
    names={'state_dict': 'state|pure_epsilon'},
    state_dict=damaged,
)
entry(
    'privacy.FDPAccountant',
    lambda: {'num_nodes': 100, 'batch_size': 10, 'terms': 3},
    names={'batch_size': "'(batch_size|m)'", 'num_nodes': "'(num_nodes|m)'"},
    num_nodes=COUNT,
    batch_size=integer(1, 100),
    terms=integer(1, 100),
)
RATE = values('a', None, True, np.nan, 0.0, 0.2, [0.1])
entry(
    'privacy.FDPAccountant.step',
    lambda: (fdp_accountant(), {'noise_multiplier': 6.0, 'sample_rate': 0.1}),
    names=NOISE_NAMES,
    noise_multiplier=number(0),
    sample_rate=RATE,
)
entry(
    'privacy.FDPAccountant.remaining_steps',
    lambda: (
        fdp_accountant(),
        {**BUDGETED, 'noise_multiplier': 60.0, 'sample_rate': 0.1},
    ),
    names=NOISE_NAMES,
    epsilon=NOT_NEGATIVE,
    noise_multiplier=number(0),
    sample_rate=RATE,
)
entry(
    'privacy.FDPAccountant.noise_multiplier_for',
    lambda: (fdp_accountant(), {**BUDGETED, 'sample_rate': 0.1, 'steps': 2}),
    epsilon=POSITIVE,
    sample_rate=RATE,
    steps=COUNT,
)
entry(
    'privacy.FDPAccountant.state_dict',
    lambda: (fdp_accountant(), {}),
    destination=DESTINATION,
)
entry('privacy.create_accountant', lambda: {}, mechanism=choice())
SCORES = either(
    values(3, None, 'a', [1.0, 2.0], ['a'] * 4, [[1.0]] * 4),
    values([np.nan] * 4, torch.tensor([1.0])),
)
entry(
    'privacy.empirical_epsilon',
    lambda: {'without': rand(8), 'with_': rand(8), 'delta': 0.05},
    without=SCORES,
    with_=SCORES,
    claim=number(0, closed='low', none=True),
    confidence=UNIT,
)
entry(
    'privacy.canary_graph',
    lambda: {'num_canaries': 4},
    num_canaries=COUNT,
    size=COUNT,
)


def attach(module: Any, optimizer: Any, data_loader: Any) -> Any:
    engine = privacy.PrivacyEngine(seed=0)
    return engine, engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=data_loader,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
        loss_reduction='sum',
    )


entry(
    'privacy.audit_training',
    lambda: {'attach': attach, 'num_canaries': 16, 'seed': 0},
    attach=FUNCTION,
    num_canaries=COUNT,
    size=COUNT,
    batch_size=integer(1, 16, none=True),
    steps=COUNT,
    confidence=UNIT,
)


class Net(torch.nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(2, 2)

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor
    ) -> torch.Tensor:
        return self.conv(x, edge_index)


def training() -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net()
    return {
        'module': net,
        'optimizer': torch.optim.SGD(net.parameters(), lr=0.1),
        'data_loader': walk_loader(),
    }


def criterion(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(out, target)


def private(engine: Any, **arguments: Any) -> Any:
    return engine.make_private(
        **training(), noise_multiplier=4.0, max_grad_norm=1.0, **arguments
    )


def attached(**arguments: Any) -> Any:
    made = privacy.PrivacyEngine(seed=0)
    private(made, **arguments)
    return made


def batchnorm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(2))


PARTS = {
    'module': instance(),
    'optimizer': instance(),
    'data_loader': instance(),
    'max_grad_norm': POSITIVE,
}
PARTS_ROWS = (
    Row('layers', {'module': batchnorm()}, 'BatchNorm|module|optimizer'),
    Row(
        'other parameters',
        {'optimizer': torch.optim.SGD(Net().parameters(), lr=0.1)},
        "'optimizer'",
    ),
    Row(
        'propagated',
        {
            'data_loader': loader.DisjointWalkLoader(
                changed_data(propagated=('x',)), 1, 2, seed=0
            )
        },
        "'data_loader'",
    ),
)
entry(
    'privacy.PrivacyEngine',
    lambda: {},
    Row('a seed', {'secure_mode': True, 'seed': 1}, "'seed'"),
    accountant=choice(),
    secure_mode=FLAG,
    ledger=values(3, ['a']),
)
entry(
    'privacy.PrivacyEngine.make_private',
    lambda: (
        privacy.PrivacyEngine('rdp_wor', seed=0, ledger=temporary()),
        {
            **training(),
            'noise_multiplier': 4.0,
            'max_grad_norm': 1.0,
            'target_epsilon': 5.0,
            'target_delta': 1e-3,
        },
    ),
    *PARTS_ROWS,
    Row('no delta', {'target_delta': None}, "'target_delta'"),
    Row('no epsilon', {'target_epsilon': None}, "'target_epsilon'"),
    names={
        **NOISE_NAMES,
        'target_epsilon': "'target_epsilon'",
        'target_delta': "'(target_)?delta'",
    },
    noise_multiplier=number(0),
    loss_reduction=choice(),
    max_physical_batch_size=integer(1, none=True),
    target_epsilon=POSITIVE,
    target_delta=UNIT,
    method=choice(),
    forward=instance(none=True),
    criterion=instance(none=True),
    **PARTS,
)
entry(
    'privacy.PrivacyEngine.make_private_with_epsilon',
    lambda: (
        privacy.PrivacyEngine('rdp_wor', seed=0, ledger=temporary()),
        {
            **training(),
            'target_epsilon': 5.0,
            'target_delta': 1e-3,
            'max_grad_norm': 1.0,
            'steps': 2,
        },
    ),
    *PARTS_ROWS,
    Row('both', {'epochs': 2}, "'steps'"),
    Row('noise', {'noise_multiplier': 2.0}, "'noise_multiplier'"),
    names={'target_delta': "'(target_)?delta'"},
    target_epsilon=POSITIVE,
    target_delta=UNIT,
    steps=COUNT,
    epochs=values('a', 1.5, True),
    **PARTS,
)
entry(
    'privacy.PrivacyEngine.get_epsilon',
    lambda: (attached(), {'delta': 1e-3}),
)
entry(
    'privacy.PrivacyEngine.estimate_max_grad_norm',
    lambda: (
        privacy.PrivacyEngine(seed=0, ledger=temporary()),
        {
            'module': Net(),
            'data_loader': walk_loader(),
            'criterion': criterion,
            'epsilon': 1.0,
        },
    ),
    Row('two ways', {'public': True}, "'public'"),
    Row('no way', {'epsilon': None}, "'epsilon'"),
    module=PARTS['module'],
    data_loader=PARTS['data_loader'],
    criterion=FUNCTION,
    percentile=number(0, 100),
    epsilon=number(0, none=False),
    bounds=values(3, None, (1.0,), (2.0, 1.0), (0.0, 1.0), ('a', 1.0)),
    public=values('yes', None),
    insist=values('yes', None),
    forward=instance(none=True),
)
entry(
    'privacy.PrivacyEngine.load_state_dict',
    lambda: (attached(), {'state': attached().state_dict()}),
    names={'state': 'state'},
    state=damaged,
    rewind=FLAG,
)
entry(
    'privacy.PrivacyEngine.report',
    lambda: (attached(), {'delta': 1e-3}),
    Row('no target', {'delta': None}, "'delta'"),
    delta=UNIT,
)
for name in ('AuditReport', 'PrivacyReport', 'ClippedSum', 'PrivateTraining'):
    EXEMPT[f'privacy.{name}'] = RESULT
for name in ('PrivateModule', 'PrivateOptimizer', 'PrivateLoader'):
    EXEMPT[f'privacy.{name}'] = 'made by the engine alone'
EXEMPT['privacy.Tape'] = 'made by SubgraphGradients.record'
entry(
    'privacy.PrivateOptimizer.step',
    lambda: (fresh_optimizer(), {}),
    closure=values(3, print),
)


def fresh_optimizer() -> Any:
    # Ready for a step.
    _, optimizer, batches = (made := attached())._training
    batch = next(iter(batches))
    out = made._training.model(batch.x, batch.edge_index)
    out[: batch.batch_size].sum().backward()
    return optimizer


EXEMPT['privacy.PrivateOptimizer.add_param_group'] = 'refuses everything'
entry(
    'privacy.PrivateOptimizer.zero_grad',
    lambda: (attached()._training.optimizer, {}),
    set_to_none=FLAG,
)
for name in ('forward', 'state_dict', 'load_state_dict'):
    EXEMPT[f'privacy.PrivateModule.{name}'] = 'that of the model inside'
EXEMPT['privacy.PrivateOptimizer.load_state_dict'] = (
    'that of the optimizer inside, with its errors'
)
entry('privacy.SeededNoise', lambda: {})
SHAPE = values(3.5, None, 'a', (1.5,), (-1,), (True,))
for name, extra in (('SeededNoise', {'seed': 0}), ('SecureNoise', {})):
    entry(
        f'privacy.{name}.normal',
        lambda name=name, extra=extra: (
            getattr(privacy, name)(**extra),
            {'shape': (2, 3)},
        ),
        shape=SHAPE,
    )
    entry(
        f'privacy.{name}.uniform',
        lambda name=name, extra=extra: (
            getattr(privacy, name)(**extra),
            {'count': 3},
        ),
        count=integer(0),
    )
entry('privacy.SecureNoise', lambda: {}, source=FUNCTION)
entry(
    'privacy.SecureNoise.choose',
    lambda: (privacy.SecureNoise(), {'count': 5, 'size': 2}),
    count=COUNT,
    size=integer(0, 5),
)
OWNER = tensor(rows=False, low=0, high=1)


def gradients() -> Any:
    return privacy.SubgraphGradients(Net())


def owner() -> torch.Tensor:
    return torch.tensor([0, 0, 0, 1, 1, 1])


entry(
    'privacy.SubgraphGradients',
    lambda: {'module': Net()},
    module=instance(),
    method=choice(),
    chunk_size=COUNT,
)
entry(
    'privacy.SubgraphGradients.record',
    lambda: (gradients(), {'owner': owner(), 'num_subgraphs': 2}),
    owner=OWNER,
    num_subgraphs=COUNT,
)


def apart() -> torch.Tensor:
    return torch.tensor([[0, 1, 3, 4], [1, 2, 4, 5]])


class Checked:
    """The check, with what the module is called with."""

    def __init__(self) -> None:
        self.gradients = gradients()

    def check(self, owner: Any, num_subgraphs: Any) -> str:
        return self.gradients.check(
            owner, num_subgraphs, torch.ones(N, 2), apart()
        )


entry(
    'privacy.SubgraphGradients.check',
    lambda: (Checked(), {'owner': owner(), 'num_subgraphs': 2}),
    owner=OWNER,
    num_subgraphs=COUNT,
    args=anything('what the module takes'),
)


def tape() -> Any:
    made = gradients()
    with made.record(owner(), 2) as recorded:
        out = made.module(torch.ones(N, 2), apart())
    return recorded, out


def taped() -> Any:
    recorded, out = tape()
    return (
        recorded,
        {
            'output': out,
            'grad_output': torch.ones_like(out),
            'max_grad_norm': 1.0,
            'output_owner': owner(),
        },
    )


entry(
    'privacy.Tape.clipped_sum',
    taped,
    Row('no gradient', {'output': torch.ones(N, 2)}, "'output'"),
    names={'output': "'(output|grad_output)'"},
    output=values(3, None, 'a', [3]),
    grad_output=tensor(columns=True, finite=False),
    max_grad_norm=number(0, math.inf, closed='high'),
    output_owner=tensor(low=0, high=1, none=True),
)

# Unlearning ##################################################################


def graphs(count: int = 6) -> list[Data]:
    made = []
    for number_ in range(count):
        x = torch.linspace(-1, 1, 12).view(N, 2).roll(number_, 0)
        x = x * (1 if number_ % 2 else -0.5)
        made.append(
            Data(
                x=x,
                edge_index=undirected(),
                y=torch.tensor([number_ % 2]),
                num_nodes=N,
            )
        )
    return made


def classifier(**arguments: Any) -> Any:
    return unlearning.ScatteringClassifier(
        scattering(), lam=0.1, seed=0, **arguments
    )


def fitted_classifier(**arguments: Any) -> Any:
    return classifier(**arguments).fit(graphs())


def gin(**arguments: Any) -> Any:
    return unlearning.GINClassifier(
        hidden_channels=4, num_layers=1, epochs=1, seed=0, **arguments
    )


def classifier_state(**changes: Any) -> dict[str, Any]:
    state = fitted_classifier().state_dict()
    for name, value in changes.items():
        if isinstance(value, float):
            value = torch.full_like(state[name], value)
        state[name] = value
    return state


TRAINING_GRAPHS = values(
    3, None, 'a', [], [3], graphs()[:1], [*graphs(), None], [HeteroData()] * 2
)
GRAPHS = values(3, None, 'a', [], [3], [*graphs(), None], [HeteroData()])
UNLABELLED = [Data(x=g.x, edge_index=g.edge_index) for g in graphs()]
LABEL_ROW = Row('no labels', {'graphs': UNLABELLED}, "graph 0|'y'|'graphs'")
GRAPH_NAMES = {'graphs': "'(graphs|data)'"}
REQUESTS = (
    instance(),
    values(RemovalRequest(graphs=[99]), RemovalRequest(nodes={0: [99]})),
)
REQUEST_NAMES = {'request': "'request'|graph 99|node 99"}
entry(
    'unlearning.GINClassifier',
    lambda: {},
    max_degree=integer(1, none=True),
    hidden_channels=CHANNELS,
    num_layers=COUNT,
    lr=POSITIVE,
    epochs=integer(0),
)
entry(
    'unlearning.GINClassifier.fit',
    lambda: (gin(), {'graphs': graphs()}),
    LABEL_ROW,
    names=GRAPH_NAMES,
    graphs=values(3, None, 'a', [], [3], [*graphs(), None], [HeteroData()]),
)
entry(
    'unlearning.GINClassifier.remove',
    lambda: (
        gin().fit(graphs()),
        {'request': RemovalRequest(graphs=[1])},
    ),
    Row(
        'everything',
        {'request': RemovalRequest(graphs=list(range(6)))},
        'no graph',
    ),
    names=REQUEST_NAMES,
    request=either(*REQUESTS),
)
for name in ('predict', 'score'):
    rows = (LABEL_ROW,) if name == 'score' else ()
    entry(
        f'unlearning.GINClassifier.{name}',
        lambda: (gin().fit(graphs()), {'graphs': graphs()}),
        *rows,
        names=GRAPH_NAMES,
        graphs=GRAPHS,
    )
entry(
    'unlearning.ScatteringClassifier',
    lambda: {'transform': scattering()},
    transform=instance(),
    lam=POSITIVE,
    noise_std=NOT_NEGATIVE,
    epsilon=number(0, 1, closed='high'),
    loss=choice(),
    mode=choice(),
    accounting=choice(),
    on_exceed=choice(),
    tol=POSITIVE,
)
entry(
    'unlearning.ScatteringClassifier.fit',
    lambda: (classifier(), {'graphs': graphs()}),
    LABEL_ROW,
    names=GRAPH_NAMES,
    graphs=TRAINING_GRAPHS,
)
for name in ('decision_function', 'predict', 'predict_proba', 'score'):
    rows = (LABEL_ROW,) if name == 'score' else ()
    entry(
        f'unlearning.ScatteringClassifier.{name}',
        lambda: (fitted_classifier(), {'graphs': graphs()}),
        *rows,
        names=GRAPH_NAMES,
        graphs=GRAPHS,
    )
entry(
    'unlearning.ScatteringClassifier.remove',
    lambda: (
        fitted_classifier(),
        {'request': RemovalRequest(nodes={0: [1]})},
    ),
    Row(
        'a class',
        {'request': RemovalRequest(graphs=[0, 2, 4])},
        'a class without',
    ),
    Row(
        'a graph',
        {'request': RemovalRequest(nodes={0: list(range(N))})},
        'no node',
    ),
    names=REQUEST_NAMES,
    request=either(*REQUESTS),
)
entry(
    'unlearning.ScatteringClassifier.load_state_dict',
    lambda: (
        fitted_classifier(),
        {'state': fitted_classifier().state_dict()},
    ),
    Row('NaN', {'state': classifier_state(W=np.nan)}, 'state'),
    Row('other weights', {'state': classifier_state(W=9.0)}, 'state'),
    Row('no graphs', {'state': classifier_state(graphs={})}, 'state'),
    names={'state': 'state'},
    state=damaged,
)
entry(
    'unlearning.ScatteringClassifier.save',
    lambda: (fitted_classifier(), {'path': temporary()}),
    path=PATH,
)


def saved_classifier() -> Path:
    path = temporary()
    fitted_classifier().save(path)
    return path


entry(
    'unlearning.ScatteringClassifier.load',
    lambda: (fitted_classifier(), {'path': saved_classifier()}),
    Row('another file', {'path': saved()}, 'state'),
    path=PATH,
)
for name in (
    'MembershipReport',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardVerifyReport',
    'UnlearnReport',
    'VerifyReport',
):
    EXEMPT[f'unlearning.{name}'] = RESULT
entry(
    'unlearning.membership_inference',
    lambda: {
        'probability': rand(N, 2),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'members': torch.tensor([0, 1, 2]),
        'others': torch.tensor([3, 4, 5]),
    },
    Row('both', {'others': torch.tensor([2, 3])}, "'members'"),
    Row('twice', {'others': torch.tensor([3, 3])}, "'others'"),
    names={'probability': "'(probability|y|members|others)'"},
    probability=tensor(),
    y=tensor(low=0, high=1),
    members=tensor(
        rows=False, low=0, high=N - 1, empty=True, dtypes=(torch.float32,)
    ),
    others=tensor(
        rows=False, low=0, high=N - 1, empty=True, dtypes=(torch.float32,)
    ),
    attack=choice(),
    level=UNIT,
)
entry(
    'unlearning.ShardStore',
    lambda: {'folder': temporary()},
    folder=PATH,
)
entry(
    'unlearning.ShardStore.write',
    lambda: (
        unlearning.ShardStore(temporary()),
        {'parts': {'a': torch.ones(2)}, 'plain': {'b': 1}},
    ),
    parts=values(3, None, 'a', [1], {3: 1}),
    plain=values(3, None, 'a', [1], {'a': object()}),
)


def train_data() -> Data:
    made = changed_data(
        x=torch.linspace(-1, 1, 12).view(N, 2),
        train_mask=torch.ones(N, dtype=torch.bool),
    )
    return made


def unlearner(**arguments: Any) -> Any:
    given = {
        'partition': torch.tensor([0, 0, 0, 1, 1, 1]),
        'aggregator': 'mean',
        'epochs': 1,
        'trainer': 'sequential',
        'seed': 0,
        **arguments,
    }
    return unlearning.ShardedUnlearner(Net, 2, **given)


def fitted_unlearner(**arguments: Any) -> Any:
    return unlearner(**arguments).fit(train_data())


PARTITIONS = either(
    choice(none=True),
    values(
        ['a', 'b'], [torch.tensor([0])], transforms.Shards(3), [[0.5], [1.0]]
    ),
)
entry(
    'unlearning.ShardedUnlearner',
    lambda: {'model_factory': Net, 'num_shards': 2},
    Row('no partition', {'partition': None}, "'partition'"),
    names={
        'aggregator': "'(aggregator|name)'",
        'partition': "'(partition|method)'",
    },
    model_factory=FUNCTION,
    num_shards=COUNT,
    partition=PARTITIONS,
    aggregator=choice(),
    aggregator_nodes=COUNT,
    num_classes=integer(1, none=True),
    epochs=COUNT,
    lr=POSITIVE,
    weight_decay=NOT_NEGATIVE,
    optimizer=choice(),
    sparse_x=FLAG,
    sparse_adj=FLAG,
    trainer=choice(),
    num_workers=integer(1, none=True),
    folder=values(3, ['a']),
)
FIT_ROWS = tuple(
    Row(
        label,
        {'data': changed_data(**{**train_data().to_dict(), **change})},
        names,
    )
    for label, change, names in (
        ('no mask', {'train_mask': None}, "'train_mask'"),
        ('no features', {'x': None}, "'x'"),
        ('NaN', {'x': torch.full((N, 2), np.nan)}, "'x'"),
        ('no labels', {'y': None}, "'y'"),
        ('a negative label', {'y': -torch.ones(N).long()}, "'y'"),
        ('names', {'n_id': torch.zeros(N).long()}, "'n_id'"),
        ('names of floats', {'n_id': torch.rand(N)}, "'n_id'"),
    )
)
entry(
    'unlearning.ShardedUnlearner.fit',
    lambda: (unlearner(), {'data': train_data()}),
    *FIT_ROWS,
    names=DATA_NAMES,
    data=DATA,
)
for name in ('predict', 'predict_proba'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        lambda: (fitted_unlearner(), {}),
        Row('both', {'data': train_data(), 'nodes': [0]}, "'nodes'"),
        *(
            Row(f'data: {label}', {'data': bad}, "'(data|x|edge_index)'")
            for label, bad in (
                *data()(train_data()),
                ('no features', changed_data(x=None)),
                ('a column less', changed_data(x=torch.ones(N, 1))),
            )
            if bad is not None
        ),
        data=anything('rows above'),
        nodes=values('a', [0.5], [-1], [N], torch.tensor([0.5]), [True]),
        names={'nodes': "'nodes'|node"},
    )
entry(
    'unlearning.ShardedUnlearner.shard_state',
    lambda: (fitted_unlearner(), {'shard': 1}),
    shard=integer(0, 1),
)
for name in ('plan', 'remove', 'enqueue'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        lambda: (fitted_unlearner(), {'request': RemovalRequest(nodes=[0])}),
        Row(
            'a shard',
            {'request': RemovalRequest(nodes=[0, 1, 2])},
            'leave shard 0',
        ),
        Row(
            'a class',
            {'request': RemovalRequest(nodes=[0, 2, 4])},
            'leave class 0',
        ),
        names=REQUEST_NAMES,
        request=either(instance(none=name == 'plan'), *REQUESTS[1:]),
    )
entry(
    'unlearning.ShardedUnlearner.repartition',
    lambda: (fitted_unlearner(), {'partition': [[0, 1, 2], [3, 4, 5]]}),
    Row('no method', {'partition': None}, "'partition'"),
    names={'partition': "'(partition|method)'"},
    partition=PARTITIONS,
)
entry(
    'unlearning.ShardedUnlearner.verify',
    lambda: (fitted_unlearner(), {'shards': [0]}),
    shards=values(3, 'a', [2], [-1], [0.5], [True], ['a']),
    trainer=choice(),
)
entry(
    'unlearning.ShardedUnlearner.load_state_dict',
    lambda: (fitted_unlearner(), {'state': fitted_unlearner().state_dict()}),
    names={'state': 'state'},
    state=damaged,
)
FOLDERS = values(3, 1.5, ['a'])


def with_folder() -> Any:
    made, folder = fitted_unlearner(), temporary()
    made.save(folder)
    return made, {'folder': folder}


for name in ('save', 'load', 'purge'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        with_folder,
        Row('no folder', {'folder': None}, "'folder'"),
        folder=FOLDERS,
    )

# Tests #######################################################################

FOUND = entry_points()


def test_every_entry_point_is_in_the_table() -> None:
    known = set(TABLE) | set(EXEMPT)
    assert not set(FOUND) - known, 'needs an entry of the table'
    assert not known - set(FOUND), 'is gone'
    assert not set(TABLE) & set(EXEMPT)
    assert all(EXEMPT.values())


@pytest.mark.parametrize('key', TABLE)
def test_every_argument_has_a_kind(key: str) -> None:
    found = set(parameters(FOUND[key])) - {'self'}
    missing = {name for name in found if kind_of(key, name) is None}
    assert not missing, f'{key} needs a kind for {sorted(missing)}'
    unknown = set(TABLE[key].kinds) - found
    assert not unknown, f'{key} has no argument {sorted(unknown)}'


def bad_rows(key: str, arguments: dict[str, Any]) -> list[Row]:
    """Every bad call of an entry."""
    made = []
    signature = inspect.signature(FOUND[key])
    for name in parameters(FOUND[key]):
        kind = kind_of(key, name)
        assert kind is not None
        default = signature.parameters[name].default
        good = arguments.get(name, default)
        if good is None and not isinstance(default, type(None)):
            continue
        named = TABLE[key].names.get(name, f"'{name}'")
        made += [
            Row(f'{name}: {label}', {name: bad}, named)
            for label, bad in kind(good)
        ]
    return [*made, *TABLE[key].rows]


def prepare(key: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable of an entry and arguments that work."""
    made = TABLE[key].make()
    if isinstance(made, tuple):
        owner, arguments = made
        return getattr(owner, key.rpartition('.')[2]), arguments
    return FOUND[key], made


def perform(call: Callable[..., Any], arguments: dict[str, Any]) -> None:
    made = call(**arguments)
    if isinstance(made, AbstractContextManager):
        with made:
            pass


@pytest.mark.parametrize('key', TABLE)
def test_bad_inputs_are_refused(key: str) -> None:
    needs = TABLE[key].needs
    if needs is not None:
        pytest.importorskip(needs)
    call, arguments = prepare(key)
    before = leaves([call, arguments])
    wrong = []
    for row in bad_rows(key, arguments):
        bad = leaves(row.changes)
        try:
            perform(call, {**arguments, **row.changes})
        except Exception as error:
            said = complaint(error, row.names)
        else:
            said = 'accepted'
        moved = changed(before, leaves([call, arguments]))
        moved += changed(bad, leaves(row.changes))
        if said is None and moved:
            said = f'changes {sorted(moved)[:3]}'
        if said is not None:
            wrong.append(f'{row.label}: {said}')
            call, arguments = prepare(key)
            before = leaves([call, arguments])
    assert not wrong, '\n'.join([key, *wrong])
    try:
        perform(call, arguments)
    except ImportError as error:
        pytest.skip(str(error))


# What takes a number.
NUMBERS = [
    (key, name)
    for key in TABLE
    for name in parameters(FOUND[key])
    if hasattr(kind_of(key, name), 'limits') and TABLE[key].needs is None
]


def test_random_values_are_refused() -> None:
    hypothesis = pytest.importorskip('hypothesis')
    from hypothesis import strategies as st

    prepared = functools.cache(prepare)
    junk = st.one_of(
        st.none(),
        st.booleans(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.complex_numbers(),
        st.decimals(),
        st.fractions(),
        st.dates(),
        st.lists(st.floats(), max_size=2),
        st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
        st.integers(),
        st.floats(),
    )

    @hypothesis.settings(
        max_examples=600,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.sampled_from(NUMBERS), junk)
    def refused(place: tuple[str, str], value: Any) -> None:
        key, name = place
        hypothesis.assume(not kind_of(key, name).limits.allow(value))
        call, arguments = prepared(key)
        before = leaves([call, arguments])
        named = TABLE[key].names.get(name, f"'{name}'")
        try:
            perform(call, {**arguments, name: value})
        except Exception as error:
            said = complaint(error, named)
        else:
            said = 'accepted'
        assert said is None, f'{key}, {name}={value!r}: {said}'
        assert not changed(before, leaves([call, arguments])), key

    refused()
