"""Bad inputs of the mathematics, ops, graphs, ledgers and what is below."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad_inputs import (
    bad,
    choice,
    csr,
    either,
    ids,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_table import FOLDER, entry
from torch_geometric.data import Data

from pyg_trust import agp as F
from pyg_trust import files
from pyg_trust.agp.halo import HaloGraph
from pyg_trust.certificates import ThreatModel
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import Part

G = torch.Generator().manual_seed(0)
N = 6
SHARE = number(0, 1, closed='high')
POSITIVE = number(0)
NOT_NEGATIVE = number(0, closed='low')
COUNT = integer(1)
DTYPES = values(3, None, 'float32', float, torch.int64, torch.float16)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=G, dtype=torch.float64)


SHARD = torch.tensor([0, 1, 2, 0, 1, 2])
# What goes through a training step is not searched for NaN.
LOGITS = tensor(dtypes=(torch.int64, torch.bool, torch.complex64))


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

# Differential privacy

HISTORY = either(
    values(3, None, 'history', [3], [(1.0, 0.5)], [(1.0, 0.5, 2, 1)]),
    values([('x', 0.5, 2)], [(2.0, 1.5, 2)], [(2.0, 0.5, -1)]),
    values([(2.0, 0.5, 1.5)], [(-1.0, 0.5, 2)], [(2.0, 0.0, 2)]),
)
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
    names={'history': "'(history|noise_multiplier|q|steps)'"},
    history=HISTORY,
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
    orders=values(*(3, None, 'orders', [], [1.0], [[2.0]], [np.nan], ['a'])),
    q=SHARE,
    noise_multiplier=POSITIVE,
    num_roots=COUNT,
    occurrences=COUNT,
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


# Partitions

entry(
    'unlearning.hash_partition',
    lambda: {'n_id': torch.arange(N), 'num_shards': 2, 'seed': 0},
    bad(n_id=torch.zeros(N).long()),
)

# Propagation

FEATURES = tensor(dtypes=(torch.int64, torch.bool, torch.float16))
BAD_X = (
    *(3, None, torch.ones(N), torch.ones(3, 2), torch.ones(N, 2).long()),
    torch.full((N, 2), torch.nan),
)
PROPAGATE = (bad(graph=weighted()), bad(graph=directed(), measure=F.sgc(2)))


def propagation() -> dict[str, Any]:
    return {'graph': csr(), 'x': rand(N, 2), 'measure': F.ppr(0.2), 'eps': 0.1}


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
    x=values(*BAD_X),
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
    x=values(*BAD_X, torch.ones(N, 2).to_sparse_coo()),
)
entry(
    'agp.propagate',
    lambda: {**propagation(), 'rows': torch.tensor([0, 2])},
    *PROPAGATE,
    bad(half=True),
    bad(tol=0.1),
    bad(tol=0.1, eps=0.0, measure=F.Measure(0, 0, (1.0,))),
    bad(tol=0.1, eps=0.0, graph=directed()),
    x=FEATURES,
    tol=NOT_NEGATIVE,
    rows=either(ids(), values(3, 'all', torch.ones(N + 1).bool())),
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
    dtype=DTYPES,
)
entry('agp.variance_bound', propagation, *PROPAGATE, x=FEATURES)

# Scattering

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
    ptr=either(
        tensor(none=True),
        values(*map(torch.tensor, ([0, 0, N], [0, N - 1], [0]))),
    ),
)

# The kernels' arguments: types and shapes are checked, entries are not. Who
# calls them by hand answers for indices.


def receivers() -> tuple[torch.Tensor, torch.Tensor]:
    return csr().receivers()


entry(
    'ops.propagate',
    lambda: {
        'rowptr': receivers()[0],
        'col': receivers()[1],
        'x': torch.ones(N, 2),
        'recv': torch.ones(N),
        'send': torch.ones(N),
        'weights': torch.tensor([0.5, 0.5], dtype=torch.float64),
        'half': True,
        'scale': torch.ones(2),
        'rows': torch.tensor([0, 2]),
    },
    bad(
        'half',
        x=torch.ones(N, 2).double(),
        **dict.fromkeys(('recv', 'send'), torch.ones(N).double()),
        scale=None,
    ),
    bad('scale', half=False),
    bad(in_place=True),
    names={'rowptr': "'(rowptr|x|recv)'", 'x': "'(x|scale)'"},
    rows=tensor(rows=False, low=0, high=N - 1, none=True),
)
entry(
    'ops.row_linear',
    lambda: {'x': torch.ones(3, 2), 'weight': torch.ones(4, 2)},
    bad('as many columns', weight=torch.ones(4, 3)),
    x=tensor(rows=False, empty=True, finite=False),
    weight=tensor(rows=False, empty=True, finite=False),
    bias=values(torch.ones(3), 'bias', torch.ones(4).long()),
)


entry(
    'ops.push',
    lambda: {
        'graph': csr().push_graph(1.0),
        'send': torch.ones(N),
        'ratio': torch.tensor([0.8], dtype=torch.float64),
        'keep': torch.tensor([0.2, 1.0], dtype=torch.float64),
        'seed': 1,
        'receivers': receivers(),
        'recv': torch.ones(N),
        'x': torch.ones(N, 2),
        'eps': torch.full((2,), 0.1),
    },
    bad('rowptr', receivers=(receivers()[0][:-1], receivers()[1])),
    bad('col', receivers=(receivers()[0], receivers()[1][:-1])),
    names={'ratio': "'(ratio|keep)'", 'x': "'(x|eps)'"},
    receivers=values(3, None, 'r', (1,), [torch.tensor([0])]),
)


THREAT = ThreatModel(csr(), fixed='none', local_budget=1).perturbations.threat


entry(
    'ops.policy_iteration',
    lambda: {
        'reward': rand(2, N),
        'start': rand(2, N),
        'goal': torch.full((2,), 1e-9, dtype=torch.float64),
        'follow': 0.8,
        'threat': THREAT,
        'rounding': 1e-12,
        'max_iter': 9,
        'bonus': rand(2, N),
        'visit_cost': rand(2, N),
        'step_cost': rand(2, N),
        'root': rand(2, N),
        'removal_cost': torch.zeros((2, THREAT.col.numel())).double(),
        'addition_cost': torch.zeros((2, THREAT.add_col.numel())).double(),
    },
    *(
        bad(
            f"'({field}|rowptr|col|removable|budget)'",
            threat=THREAT._replace(**{field: getattr(THREAT, field)[:-1]}),
        )
        for field in ('rowptr', 'col', 'removable', 'budget', 'add_ptr')
    ),
    names={'reward': "'(reward|start|bonus)'"},
)

entry(
    'graph.CSRGraph',
    lambda: {
        'rowptr': torch.tensor([0, 1, 2]),
        'col': torch.tensor([1, 0]),
        'weight': torch.ones(2),
        'perm': torch.tensor([0, 1]),
    },
    bad(rowptr=torch.tensor([0, 3, 2])),
    bad(rowptr=torch.tensor([0])),
    bad('col', rowptr=torch.tensor([0, 2, 2]), col=torch.tensor([1, 0])),
    rowptr=tensor(rows=False, low=0, high=2),
    col=tensor(low=0, high=1),
    weight=tensor(none=True),
    perm=tensor(none=True),
)


entry(
    'graph.CSRGraph.from_edges',
    lambda: {'source': undirected(), 'num_nodes': N},
    bad(source=undirected()[:, [0] * 14]),
    bad(memory=1000),
    source=values(3, None, torch.ones(3), torch.ones(2, 3), undirected() + N),
    memory=values(0, -1, 2.5, 'lots', None, True),
)
entry(
    'graph.CSRGraph.from_edge_index',
    lambda: {
        'edge_index': undirected(),
        'num_nodes': N,
        'edge_weight': torch.ones(14),
    },
    bad(edge_index=undirected()[:, [0] * 14]),
    bad(num_nodes=None),
)


def plain_data(**changes: Any) -> Data:
    made = Data(
        x=torch.arange(12.0).view(N, 2),
        edge_index=undirected(),
        y=torch.tensor([0, 1, 0, 1, 0, 1]),
        num_nodes=N,
    )
    made.update(changes)
    return made


entry(
    'graph.CSRGraph.convert',
    lambda: {
        'graph': undirected(),
        'num_nodes': N,
        'edge_weight': torch.ones(14),
    },
    bad('edge_weight', graph=csr()),
    bad('num_nodes', graph=csr(), edge_weight=None, num_nodes=9),
)


def removal_ledger() -> RemovalLedger:
    made = RemovalLedger(1.0)
    made.record('fit', 0.1)
    return made


NAMES = values(3, 'names', [1], (1,))
entry(
    'ledger.RemovalLedger.record',
    lambda: (
        removal_ledger(),
        {'action': 'step', 'spent': 0.2, 'request': {}, 'data': ''},
    ),
    bad('fit', action='fit'),
    bad(spent=0.05),
    bad(request={'a': object()}),
    bad(r'\bbudget', spent=2.0),
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


def temporary(name: str = 'file') -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER)) / name


def saved() -> Path:
    path = temporary()
    files.save(path, {'a': 1})
    return path


ITEMS = values(
    'a', [0.5], [True], [-1], None, torch.tensor([0.5]), 1.5, [[1, 2]], ['a']
)
PER_GRAPH = either(ITEMS, values({'a': [1]}, {-1: [1]}, {0: 'a'}, {0: None}))
entry(
    'removal.RemovalRequest',
    lambda: {
        'graphs': [7],
        'nodes': [1],
        'features': [2],
        'edges': [(3, 4)],
        'labels': [5],
    },
    bad(
        'name something', graphs=[], nodes=[], features=[], edges=[], labels=[]
    ),
    bad('unit', persons=[1]),
    bad(unit=3),
    persons=values(3, 'a', [0.5], [-1]),
    unit=values(3, 'a'),
    labels=PER_GRAPH,
    directed=values(1, None, 'a'),
    graphs=ITEMS,
    nodes=PER_GRAPH,
    features=PER_GRAPH,
    edges=values(
        *(3, None, 'a', [1], [(1,)], [(1, 2, 3)], [(1, -2)], [(1, 0.5)]),
        *(torch.tensor([1, 2]), torch.tensor([[0.5], [1.0]])),
        {'a': [(1, 2)]},
    ),
)
entry(
    'removal.remove_from_data',
    lambda: {'data': plain_data(), 'part': Part(nodes=(0,))},
    bad('node 9', part=Part(nodes=(9,))),
    bad('edge 0', part=Part(edges=((0, 3),))),
    bad('no node', part=Part(nodes=tuple(range(N)))),
    bad(part=Part(whole=True)),
    bad(part=Part(labels=(0,))),
    bad('edge 0', part=Part(directed_edges=((0, 3),))),
)

entry(
    'report.Guarantee',
    lambda: {'procedure': 'a', 'promise': 'b', 'assumptions': ()},
    bad(spent={'a': 1.0}),
    procedure=values('', 3),
    promise=values('', 3),
    **dict.fromkeys(
        ('assumptions', 'not_covered', 'checked'), values(3, None, 'one', [3])
    ),
    spent=values(3, None, {'a': 'b'}),
    budget=values(3, None, {'a': 'b'}),
    data_sha256=values(3, None),
    origin=values(3, None),
    kind=choice(),
    values=values(3, None),
    history=values(3, None, {'a': [1.0]}),
)


entry(
    'utils.local_cluster',
    lambda: {'graph': undirected(), 'seeds': 0, 'num_nodes': N},
    bad(graph=directed(), num_nodes=None),
    seeds=either(
        values('a', None, 0.5, True, -1, N),
        values(torch.tensor([0.5]), torch.tensor([0, 0]), torch.tensor([N])),
    ),
)
