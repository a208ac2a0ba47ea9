"""Bad inputs of ops, graphs, ledgers and what else stands below."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad_functional import (
    NOT_NEGATIVE,
    N,
    directed,
    rand,
)
from bad_inputs import (
    FLAG,
    bad,
    choice,
    csr,
    damaged,
    edge_indices,
    either,
    instance,
    integer,
    tensor,
    undirected,
    values,
)
from bad_table import FOLDER, NAMED, entry
from torch_geometric.data import Data

from pyg_trust import (
    files,
)
from pyg_trust.certificates import ThreatModel
from pyg_trust.files.commit import Lineage
from pyg_trust.ledger import (
    RemovalLedger,
)
from pyg_trust.removal import Part

# The kernels' arguments: types and shapes are checked, entries are not. Who
# calls them by hand answers for indices.
RAW = tensor(finite=False)
WIDE = tensor(columns=True, finite=False)


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
}
PUSH_NAMES = {'ratio': "'(ratio|keep)'"}


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
    names={'rowptr': "'(rowptr|x|recv)'"},
    rowptr=RAW,
    col=tensor(rows=False, finite=False),
    x=RAW,
    weights=tensor(rows=False, empty=True, finite=False),
    scale=tensor(finite=False, none=True),
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
        **push_arguments(),
        'receivers': receivers(),
        'recv': torch.ones(N),
        'x': torch.ones(N, 2),
        'eps': torch.full((2,), 0.1),
    },
    bad('rowptr', receivers=(receivers()[0][:-1], receivers()[1])),
    bad('col', receivers=(receivers()[0], receivers()[1][:-1])),
    names=PUSH_NAMES,
    receivers=values(3, None, 'r', (1,), [torch.tensor([0])]),
    x=RAW,
    eps=RAW,
    pull_above=values('a', None, np.nan, -1.0, [1]),
    **PUSH,
)


def solver_arguments() -> dict[str, Any]:
    return {
        'reward': rand(2, N),
        'start': rand(2, N),
        'goal': torch.full((2,), 1e-9, dtype=torch.float64),
        'follow': 0.8,
    }


THREAT = ThreatModel(csr(), fixed='none', local_budget=1).perturbations.threat


entry(
    'ops.policy_iteration',
    lambda: {
        **solver_arguments(),
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
    reward=WIDE,
    start=WIDE,
    goal=RAW,
    bonus=tensor(columns=True, none=True, finite=False),
    visit_cost=tensor(columns=True, none=True, finite=False),
    step_cost=tensor(columns=True, none=True, finite=False),
    root=tensor(columns=True, none=True, finite=False),
    removal_cost=tensor(columns=True, none=True, finite=False),
    addition_cost=tensor(none=True, finite=False),
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
    edge_index=edge_indices(N),
    perm=FLAG,
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
    transposed=FLAG,
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
CONTENTS = values(3, 'a', [1], {0: 1}, {'a': 'b'}, {-1: 'a'})


entry(
    'seals.Seals.of',
    lambda: {
        'state': {'salt': torch.zeros(32, dtype=torch.uint8)},
        'contents': {0: 'a', 1: 'b'},
    },
    state=damaged,
    contents=CONTENTS,
)


def temporary(name: str = 'file') -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER)) / name


def saved() -> Path:
    path = temporary()
    files.save(path, {'a': 1})
    return path


NAME = '0' * 32
LINEAGE = values(3, None, 'a', [NAME], ('a',), (3,))


def saved_state(*more: str) -> dict[str, Any]:
    return {'lineage': [NAME, *more], 'ledger': {'entries': []}}


NO_STATES = values(3, None, 'a', {}, {'lineage': 3}, {'lineage': ['a']})
STATE_NAMES = "'(state|runs|found|new)'"
NAMED['runs'] = LINEAGE
entry(
    'commit.Lineage.of',
    lambda: {'state': saved_state(), 'present': None},
    bad('turned back', present=Lineage(('1' * 32,))),
    names={'state': STATE_NAMES},
    state=NO_STATES,
    present=instance(none=True),
)
entry(
    'commit.check_continues',
    lambda: {
        'place': temporary(),
        'found': saved_state(),
        'new': saved_state('1' * 32),
    },
    bad('another fit', found={'lineage': ['2' * 32]}),
    names={'found': STATE_NAMES, 'new': STATE_NAMES},
    found=values(3, 'a', {}, {'lineage': 3}, {'lineage': ['a']}),
    new=NO_STATES,
)


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
    'removal.remove_from_data',
    lambda: {'data': plain_data(), 'part': Part(nodes=(0,))},
    bad('node 9', part=Part(nodes=(9,))),
    bad('edge 0', part=Part(edges=((0, 3),))),
    bad('no node', part=Part(nodes=tuple(range(N)))),
    bad(part=Part(whole=True)),
    bad(part=Part(labels=(0,))),
    bad('edge 0', part=Part(directed_edges=((0, 3),))),
    part=instance(),
)

entry(
    'report.Guarantee',
    lambda: {'procedure': 'a', 'promise': 'b', 'assumptions': ()},
    bad(spent={'a': 1.0}),
    procedure=values('', 3, None),
    promise=values('', 3, None),
    assumptions=values(3, None, 'one', [3]),
    not_covered=values(3, None, 'one', [3]),
    spent=values(3, None, {'a': 'b'}),
    budget=values(3, None, {'a': 'b'}),
    data=values(3, None),
    origin=values(3, None),
    kind=choice(),
    values=values(3, None),
    history=values(3, None, {'a': [1.0]}),
    checked=values(3, None, 'one', [3]),
    model=values(3, None),
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
