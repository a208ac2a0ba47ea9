"""Bad inputs of the mathematics."""

from typing import Any

import numpy as np
import torch
from bad_inputs import (
    FLAG,
    bad,
    csr,
    either,
    integer,
    number,
    sequence,
    tensor,
    undirected,
    values,
)
from bad_table import FOLDER, entry

from pyg_trust import agp as F
from pyg_trust.agp.halo import HaloGraph
from pyg_trust.graph import CSRGraph

G = torch.Generator().manual_seed(0)
N = 6
UNIT = number(0, 1)
SHARE = number(0, 1, closed='high')
POSITIVE = number(0)
NOT_NEGATIVE = number(0, closed='low')
COUNT = integer(1)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=G, dtype=torch.float64)


# What goes through a training step is not searched for NaN.
SHARD = [0, 1, 2, 0, 1, 2]


def shard() -> torch.Tensor:
    return torch.tensor(SHARD)


LOGITS = tensor(
    columns=False, dtypes=(torch.int64, torch.bool, torch.complex64)
)


def directed() -> CSRGraph:
    return CSRGraph.from_edge_index(undirected()[:, :7], N)


def weighted() -> CSRGraph:
    return CSRGraph.from_edge_index(
        undirected(), N, torch.arange(14).double() + 1
    )


# Clusters and queries

entry(
    'agp.sweep_cut',
    lambda: {
        'graph': csr(),
        'nodes': torch.arange(3),
        'score': torch.tensor([3.0, 2.0, 1.0]),
    },
    bad(graph=directed()),
    bad(graph=weighted()),
    bad(nodes=torch.tensor([0, 1, 1])),
    bad(score=torch.tensor([0, 1, torch.nan])),
    nodes=tensor(low=0, high=N - 1),
    score=tensor(finite=False),
)
entry(
    'agp.uniform_signal',
    lambda: {'seeds': torch.tensor([0, 2]), 'num_nodes': N},
    bad(seeds=torch.tensor([1, 1])),
    seeds=tensor(rows=False, low=0, high=N - 1, empty=True),
)

# Differential privacy

HISTORY = either(
    values(3, None, 'history', [3], [(1.0, 0.5)], [(1.0, 0.5, 2, 1)]),
    values([('x', 0.5, 2)], [(2.0, 1.5, 2)], [(2.0, 0.5, -1)]),
    values([(2.0, 0.5, 1.5)], [(-1.0, 0.5, 2)], [(2.0, 0.0, 2)]),
)
HISTORY_NAMES = {'history': "'(history|noise_multiplier|q|steps)'"}
ORDERS = values(3, None, 'orders', [], [1.0], [0.5], [[2.0]], [np.nan], ['a'])
Q = number(0, 1, closed='high')

MULTIPLIER = number(0)
GROUP = {'num_roots': COUNT, 'occurrences': COUNT}
entry(
    'privacy.group_wor_epsilon',
    lambda: {
        'history': [(2.0, 0.1, 3)],
        'delta': 1e-5,
        'num_roots': 20,
        'occurrences': 3,
    },
    bad('q', num_roots=21),
    bad(occurrences=21),
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
    bad('q', num_roots=21),
    orders=ORDERS,
    q=Q,
    noise_multiplier=MULTIPLIER,
    **GROUP,
)
# Measures

entry(
    'agp.make_measure',
    lambda: {'measure': 'katz', 'graph': csr(), 'beta': 0.1},
    bad(beta=None),
    bad(t=2.0),
    bad(beta=2.0),
    bad('beta', measure=F.ppr(0.2)),
)

# Newton


def newton() -> dict[str, Any]:
    return {
        'Z': torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).sin(),
        'Y': torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]).double(),
        'B': torch.full((3, 1), 0.1, dtype=torch.float64),
        'lam': 0.1,
    }


def gram_matrix() -> torch.Tensor:
    Z = newton()['Z']
    return Z @ Z.t()


entry(
    'unlearning.minimize',
    lambda: {**newton(), 'K': gram_matrix(), 'W': newton()['B']},
    bad(Y=torch.zeros(4, 1).double()),
    Z=tensor(rows=False, dtypes=(torch.int64, torch.bool, torch.float32)),
    Y=tensor(),
    B=tensor(),
    W=tensor(none=True),
    K=tensor(none=True),
)

# Partitions

PARTITION = tensor(low=0, high=2)
entry(
    'unlearning.training_graph',
    lambda: {
        'edge_index': undirected(),
        'index': torch.tensor([0, 1, 2]),
        'num_nodes': N,
    },
    bad(index=torch.tensor([0, 0])),
    index=tensor(rows=False, low=0, high=N - 1),
)
entry(
    'unlearning.check_partition',
    lambda: {'shard': shard(), 'num_shards': 3, 'num_nodes': N},
    bad('shard', num_shards=4),
    shard=PARTITION,
    num_nodes=integer(1, none=True),
)
entry(
    'unlearning.partition_from_lists',
    lambda: {
        'shards': [torch.tensor([0, 2]), torch.tensor([1])],
        'index': torch.tensor([0, 1, 2]),
    },
    bad("'(num_)?shards'", shards=[]),
    bad(shards=[torch.tensor([0]), [1]]),
    bad(index=torch.tensor([0, 1, 1])),
    shards=sequence(None, 'a', torch.tensor([0.5]), [0], [7]),
    index=tensor(rows=True),
)
entry(
    'unlearning.hash_partition',
    lambda: {'n_id': torch.arange(N), 'num_shards': 2, 'seed': 0},
    bad(n_id=torch.zeros(N).long()),
    n_id=tensor(rows=False, low=0),
)

# Propagation

SIGNAL = tensor(dtypes=(torch.int64, torch.bool, torch.float16))
EPS = NOT_NEGATIVE

PROPAGATE = (
    bad(graph=weighted()),
    bad(graph=directed(), measure=F.sgc(2)),
)
entry(
    'agp.plan_memory',
    lambda: {'num_nodes': N, 'num_edges': 14, 'num_columns': 3},
    bad(memory=10),
    bad('columns', memory=10, columns=2),
    itemsize=values(0, 2, 4.0, 'four', None),
)
entry(
    'agp.propagate_halo',
    lambda: {
        'graph': HaloGraph(csr().rowptr, csr().col, 0, N),
        'x': rand(N, 2),
        'measure': F.ppr(0.2),
    },
    bad(graph=HaloGraph(csr().rowptr, csr().col, 0, N + 1)),
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
    bad(out=f'{FOLDER}/z.txt'),
    bad(tol=0.1, graph=directed()),
    bad(half=True, x=rand(N, 2).double()),
    x=values(
        3,
        None,
        torch.ones(N),
        torch.ones(3, 2),
        torch.ones(N, 2).long(),
        torch.full((N, 2), torch.nan),
        torch.ones(N, 2).to_sparse_coo(),
    ),
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
    bad(half=True),
    bad(tol=0.1),
    bad(tol=0.1, eps=0.0, measure=F.Measure(0, 0, (1.0,))),
    bad(tol=0.1, eps=0.0, graph=directed()),
    x=SIGNAL,
    force_push=FLAG,
    half=FLAG,
    tol=EPS,
    rows=either(
        tensor(rows=False, low=0, high=N - 1, none=True, numbers=True),
        values(3, 'all', torch.ones(N + 1, dtype=torch.bool)),
    ),
)
entry(
    'agp.chebyshev',
    lambda: {'measure': F.ppr(0.2), 'tol': 0.1},
    bad('tol', measure=F.Measure(0, 0, (1.0,))),
)
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
)
entry(
    'agp.prune_bound',
    lambda: {'graph': csr(), 'measure': F.ppr(0.2), 'eps': 0.1},
    *PROPAGATE,
)

# Scattering

J = integer(1)


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
    bad(x=rand(N, 0)),
    x=FEATURES,
    ptr=PTR,
)
