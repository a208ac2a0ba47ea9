"""Bad inputs of ops, graphs, ledgers and what else stands below."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad_functional import (
    COUNT,
    EPS,
    NOT_NEGATIVE,
    POSITIVE,
    RESULT,
    SHARE,
    N,
    directed,
    perturbations,
    policy,
    reward,
)
from bad_inputs import (
    FLAG,
    PATH,
    Row,
    any_graph,
    anything,
    choice,
    csr,
    damaged,
    data,
    edge_indices,
    either,
    instance,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_table import EXEMPT, FOLDER, NAMED, entry
from torch_geometric.data import Data

from pyg_trust import (
    agp,
    files,
    ledger,
    noise,
    ops,
    report,
    rng,
)
from pyg_trust import certificates as F
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.graph import LastGraph
from pyg_trust.ledger import (
    PrivacyLedger,
    RemovalLedger,
)
from pyg_trust.registries import MEASURES, Registry
from pyg_trust.removal import Part, RemovalRequest
from pyg_trust.report import Guarantee, TrustReport

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
        'half': True,
        'scale': torch.ones(2),
        'order': torch.arange(N).flip(0),
        'rows': torch.tensor([0, 2]),
    },
    Row(
        'half',
        {
            'x': torch.ones(N, 2).double(),
            **dict.fromkeys(('recv', 'send'), torch.ones(N).double()),
            'scale': None,
        },
        "'half'",
    ),
    Row('scale', {'half': False}, "'scale'"),
    Row('rows over x', {'in_place': True}, "'in_place'"),
    names={'rowptr': "'(rowptr|x|recv)'", 'col': "'(col|rowptr)'"},
    rowptr=RAW,
    col=tensor(rows=False, finite=False),
    x=RAW,
    recv=RAW,
    send=RAW,
    weights=tensor(rows=False, empty=True, finite=False),
    half=FLAG,
    scale=tensor(finite=False, none=True),
    three_term=FLAG,
    rows=tensor(rows=False, low=0, high=N - 1, none=True),
    order=tensor(low=0, high=N - 1, none=True),
    loops=FLAG,
    in_place=FLAG,
)
entry(
    'ops.sparse_parts',
    lambda: {'x': torch.eye(2).to_sparse_csr()},
    x=values(3, None, 'x', torch.eye(2), torch.eye(2).to_sparse_coo()),
)
entry(
    'ops.row_linear',
    lambda: {'x': torch.ones(3, 2), 'weight': torch.ones(4, 2)},
    Row('shapes', {'weight': torch.ones(4, 3)}, 'as many columns'),
    names={'x': "'(x|weight)'", 'weight': "'(x|weight)'"},
    x=tensor(rows=False, empty=True, finite=False),
    weight=tensor(rows=False, empty=True, finite=False),
    bias=values(torch.ones(3), 'bias', torch.ones(4).long()),
)


def clip_uses(**other: Any) -> ops.ClipUses:
    """Two rows of a gradient and an input."""
    given = {
        'grads': [torch.ones(3, 2)],
        'inners': [torch.ones(3, 4)],
        'rows': torch.tensor([0, 2]),
        'owner': torch.tensor([0, 1]),
        'pairs': torch.tensor([[0, 0]]),
    }
    return ops.ClipUses(**{**given, **other})


def places(*given: Any) -> torch.Tensor:
    """Places, of which some are out of range."""
    return torch.tensor(given)


USES = values(
    3,
    None,
    (1, 2),
    *(
        clip_uses(**{name: wrong})
        for name, wrongs in {
            'grads': (3, [], [3], [torch.ones(3)], [torch.ones(3, 2).long()]),
            'inners': (None, [torch.ones(2, 4)], [torch.ones(3, 4).double()]),
            'rows': (
                None,
                torch.ones(2),
                torch.ones(2, 2).long(),
                places(0, 3),
            ),
            'owner': ('0', torch.zeros(3).long(), places(0, 2), places(-1, 0)),
            'pairs': (
                *(None, torch.zeros(1, 3).long(), torch.zeros(1, 2)),
                *(places([0, 1]), places([1, 0]), places([0, -1])),
            ),
        }.items()
        for wrong in wrongs
    ),
)
INSIDE = {'uses': "'(uses|grads|inners|rows|owner|pairs|n)'"}
entry(
    'ops.clip_rows',
    lambda: {'grad': torch.ones(3, 2), 'inners': [torch.ones(3, 4)]},
    names={'grad': "'(grad|inners)'"},
    grad=tensor(rows=False, finite=False),
    inners=values(3, None, [3], [torch.ones(2, 4)], [torch.ones(3).long()]),
)
entry(
    'ops.clip_sizes',
    lambda: {'uses': clip_uses(), 'units': 2},
    names=INSIDE,
    uses=USES,
    units=integer(0),
)
entry(
    'ops.clip_sums',
    lambda: {
        'uses': clip_uses(),
        'scale': torch.ones(1, 2).double(),
        'each': torch.ones(2).double(),
    },
    names={**INSIDE, 'uses': "'(uses|grads|inners|rows|owner|pairs|scale)'"},
    uses=USES,
    scale=values(
        *(3, None, torch.ones(1, 2), torch.ones(1, 3).double()),
        torch.ones(2, 2).double(),
    ),
    each=values(3, None, torch.ones(2), torch.ones(1, 2).double()),
    only=integer(-1),
)
entry('ops.cost_nodes', lambda: {'num_nodes': N}, num_nodes=integer(1))
entry(
    'ops.pull',
    lambda: {
        **{
            name: value
            for name, value in push_arguments().items()
            if name != 'seed'
        },
        'receivers': receivers(),
        'recv': torch.ones(N),
        'x': torch.ones(N, 2),
        'eps': torch.full((2,), 0.1),
        'pull_above': 1.0,
    },
    x=RAW,
    eps=RAW,
    recv=RAW,
    receivers=values(3, None, receivers()[0], list(receivers())),
    pull_above=values('a', None, np.nan, -1.0, True, [0.5]),
    names={**PUSH_NAMES, 'x': "'(x|eps)'"},
    **{
        name: kind
        for name, kind in PUSH.items()
        if name not in ('seed', 'first', 'deterministic')
    },
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
        'root': reward(),
        'removal_cost': torch.zeros((2, THREAT.col.numel())).double(),
        'addition_cost': torch.zeros((2, THREAT.add_col.numel())).double(),
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
    root=tensor(columns=True, none=True, finite=False),
    removal_cost=tensor(columns=True, none=True, finite=False),
    addition_cost=tensor(none=True, finite=False),
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
for name in ('ClipUses', 'PushGraph', 'PolicyThreat', 'PolicyFlips'):
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


def saved_graph() -> str:
    place = f'{FOLDER}/graph'
    csr().save(place)
    return place


entry(
    'graph.CSRGraph.save',
    lambda: (csr(), {'folder': f'{FOLDER}/graph'}),
    folder=values(3, None),
)
entry(
    'graph.CSRGraph.load',
    lambda: {'folder': saved_graph()},
    folder=values(3, None),
    mmap=FLAG,
    verify=FLAG,
)
entry(
    'graph.CSRGraph.from_edges',
    lambda: {'source': undirected(), 'num_nodes': N},
    Row('twice', {'source': undirected()[:, [0] * 14]}, "'source'"),
    Row('little', {'memory': 1000}, "'memory'"),
    source=values(3, None, torch.ones(3), torch.ones(2, 3), undirected() + N),
    num_nodes=integer(N),
    folder=values(3, 2.5),
    memory=values(0, -1, 2.5, 'lots', None, True),
    duplicates=choice(),
    undirected=FLAG,
    names={'num_nodes': "'(num_nodes|source)'"},
)
entry('distributed.own_items', lambda: {'count': 3}, count=integer(0))
entry(
    'distributed.run_over_ranks',
    lambda: {'items': [1, 2], 'work': str},
    items=values(3, None),
    work=values(3, None),
)
entry(
    'distributed.check_same',
    lambda: {'arguments': {'seed': 3}},
    arguments=values(3, None, [1]),
    failed=values(3, 'no', True),
)
entry(
    'distributed.shared',
    lambda: {'items': [1, 2], 'work': str, 'over_ranks': False},
    items=values(3, None),
    work=values(3, None),
    over_ranks=FLAG,
)
entry(
    'distributed.from_first',
    lambda: {'work': int},
    work=values(3, None),
    size=integer(1, none=True),
    after=FLAG,
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
    perm=FLAG,
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
DATA_NAMES = {'data': "'(data|edge_index|data.edge_index|num_nodes)'"}
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
entry(
    'graph.LastGraph.convert',
    lambda: (LastGraph(), {'graph': undirected(), 'num_nodes': N}),
    names={
        'graph': "'(graph|edge_index|data)'",
        'num_nodes': "'(num_nodes|edge_index)'",
    },
    graph=any_graph(),
    num_nodes=integer(N),
)
entry(
    'graph.LastGraph.keep',
    lambda: (
        LastGraph(),
        {'made': csr(), 'graph': undirected(), 'num_nodes': N},
    ),
    made=instance(),
    graph=anything('what is no edge_index is not kept'),
    num_nodes=integer(1),
)
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
entry('graph.CSRGraph.has_push_graph', lambda: (csr(), {}), along=FLAG)
entry(
    'graph.CSRGraph.ordered_receivers',
    lambda: (csr().reorder(2), {}),
    along=FLAG,
    loops=FLAG,
)
entry(
    'graph.CSRGraph.reorder',
    lambda: (csr(), {'parts': 2}),
    parts=integer(1, N, none=True),
    rounds=integer(1),
)
entry(
    'sparse.pick_rows',
    lambda: {'rowptr': csr().rowptr, 'nodes': torch.tensor([0, 2])},
    rowptr=tensor(rows=False, empty=True),
    nodes=tensor(rows=False, low=0, high=N - 1),
)
entry(
    'graph.CSRGraph.push_graph',
    lambda: (csr(), {'a': 1.0, 'nodes': torch.tensor([0, 2])}),
    a=number(),
    dtype=values(3, None, 'float32', torch.int64),
    along=FLAG,
    nodes=either(tensor(rows=False, low=0, high=N - 1, none=True)),
)
entry(
    'graph.CSRGraph.degree_power',
    lambda: (csr(), {'exponent': 0.5, 'dtype': torch.float32}),
    exponent=number(),
    dtype=values(3, None, 'float32', torch.int64),
    loops=FLAG,
)
entry(
    'sparse.sparse_rows',
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
    'ledger.RemovalLedger.has',
    lambda: (removal_ledger(), {'head': 'a'}),
    head=values(3, None, b'a'),
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
entry(
    'ledger.RemovalLedger.refers_to',
    lambda: (removal_ledger(), {'reference': 'a' * 32}),
    reference=values(3, None, b'a'),
)
entry(
    'ledger.RemovalLedger.check_reference',
    lambda: (removal_ledger(), {'reference': 'a' * 32}),
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
    'ledger.coarse',
    lambda: {'amount': 0.3},
    amount=NOT_NEGATIVE,
    bits=integer(1, 53),
)
CONTENTS = values(3, None, 'a', [1], {0: 1}, {'a': 'b'}, {-1: 'a'})


def seals() -> Seals:
    return Seals({0: 'a', 1: 'b'})


entry(
    'seals.Seals',
    lambda: {'contents': {0: 'a'}},
    contents=values(3, 'a', [1], {0: 1}, {'a': 'b'}, {-1: 'a'}),
)
entry(
    'seals.Seals.replaced',
    lambda: (seals(), {'changed': {0: 'c'}, 'gone': [1]}),
    names={'changed': "'contents'"},
    changed=CONTENTS,
    gone=values(3, None, 'a', [5], [0.5], [True]),
)
entry(
    'seals.Seals.differing',
    lambda: (seals(), {'contents': {0: 'a'}}),
    contents=CONTENTS,
)
entry(
    'seals.Seals.digest',
    lambda: (seals(), {'name': 0}),
    name=values('a', None, 0.5, True, -1, 2),
)
entry(
    'seals.Seals.matches',
    lambda: (seals(), {'name': 0, 'content': 'a'}),
    name=values('a', None, 0.5, True, -1, 2),
    content=values(3, None, b'a'),
)
entry(
    'seals.Seals.of',
    lambda: {
        'state': {
            'names': torch.tensor([0, 1]),
            'salts': torch.zeros(2, 32, dtype=torch.uint8),
        },
        'contents': {0: 'a', 1: 'b'},
    },
    Row('others', {'contents': {0: 'a'}}, "'state'"),
    state=damaged,
    contents=CONTENTS,
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
    head=values(3, 'a'),
)
entry(
    'ledger.PrivacyLedger.has',
    lambda: (privacy_ledger(), {'head': 'a'}),
    head=values(3, None, b'a'),
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
    'ledger.checked_step',
    lambda: {'noise_multiplier': 1.0, 'sample_rate': 0.5},
    noise_multiplier=POSITIVE,
    sample_rate=SHARE,
)
entry(
    'ledger.PrivacyLedger.record_pure',
    lambda: (privacy_ledger(), {'epsilon': 0.5}),
    epsilon=POSITIVE,
)
EXEMPT['ledger.LedgerEntry'] = RESULT
for name in ('pointer', 'ranges'):
    EXEMPT[f'ragged.{name}'] = 'called with lengths of our own'

entry(
    'files.write',
    lambda: {'path': temporary(), 'content': b'a'},
    path=PATH,
    content=values(3, None, 'text', ['a']),
)
entry('files.delete_unfinished', lambda: {'path': temporary()}, path=PATH)
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

NAME = '0' * 32
LINEAGE = values(3, None, 'a', [NAME], ('a',), (3,))


def saved_state(*more: str) -> dict[str, Any]:
    return {'lineage': [NAME, *more], 'ledger': {'entries': []}}


NO_STATES = values(3, None, 'a', {}, {'lineage': 3}, {'lineage': ['a']})
STATE_NAMES = "'(state|names|found|new)'"
NAMED['names'] = LINEAGE
entry('commit.Lineage', lambda: {'names': (NAME,)})
entry(
    'commit.Lineage.of',
    lambda: {'state': saved_state(), 'present': None},
    Row('of another', {'present': Lineage(('1' * 32,))}, 'turned back'),
    names={'state': STATE_NAMES},
    state=NO_STATES,
    present=instance(none=True),
)
entry(
    'commit.Lineage.continues',
    lambda: (Lineage((NAME,)), {'other': Lineage()}),
    other=instance(),
)
entry(
    'commit.check_continues',
    lambda: {
        'place': temporary(),
        'found': saved_state(),
        'new': saved_state('1' * 32),
    },
    Row(
        'another',
        {'found': {'lineage': ['2' * 32]}},
        'another fit',
    ),
    names={'found': STATE_NAMES, 'new': STATE_NAMES},
    place=PATH,
    found=values(3, 'a', {}, {'lineage': 3}, {'lineage': ['a']}),
    new=NO_STATES,
)
entry(
    'commit.save',
    lambda: {'path': temporary(), 'state': saved_state()},
    names={'state': STATE_NAMES},
    path=PATH,
    state=NO_STATES,
)
entry(
    'commit.exclusive',
    lambda: {'place': temporary()},
    place=PATH,
    reading=FLAG,
)
for name in ('synchronized', 'editing'):
    entry(
        f'commit.{name}', lambda: {'method': str}, method=values(3, None, 'a')
    )
entry('commit.check_one_name', lambda: {'path': temporary()}, path=PATH)
entry('commit.peek', lambda: {'path': temporary()}, path=PATH)

entry('rng.resolve', lambda: {'seed': 3})


class Spread:
    """What takes any number of arguments, with these as one list."""

    def derive(self, seed: Any, items: Any) -> int:
        return rng.derive(seed, *items)

    def stream(self, seed: Any, items: Any) -> Any:
        return rng.stream(seed, *items)

    def content(self, data: Any, context: Any) -> str:
        return ledger.content(data, *context)

    def of(self, reports: Any) -> Any:
        return TrustReport.of(*reports)

    def fingerprint(self, parts: Any) -> str:
        return report.fingerprint(*parts)

    def sealed(self, root: Any, held: Any) -> str:
        return sealed(root, *held)


entry(
    'seals.content',
    lambda: (Spread(), {'data': plain_data(), 'context': ['a', 1]}),
    names={'context': "'parts'", 'data': "'data'"},
    data=values(3, None, 'a', [1]),
    context=values([object()], [[1]], [{}]),
)
entry(
    'seals.sealed',
    lambda: (Spread(), {'root': 'a', 'held': ['a', 1]}),
    names={'held': "'parts'"},
    root=values(3, None, b'a'),
    held=values([object()], [[1]], [{}]),
)
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
entry('rng.resolve_secret', lambda: {'seed': 3})


entry(
    'rng.stream',
    lambda: (Spread(), {'seed': 3, 'items': [1, 2]}),
    seed=integer(0),
    items=values(['a'], [0.5], [True], [-1], [None]),
)
entry('noise.source', lambda: {'seed': 3}, kind=choice())
entry('noise.system', lambda: {'count': 3}, count=integer(0))
entry(
    'noise.coins',
    lambda: {'source': noise.SeededNoise(0), 'count': 3, 'rate': 0.5},
    source=instance(),
    count=integer(0),
    rate=number(0, 1, closed='low high'),
)
for name in ('p_value', 'stream_p_value'):
    entry(
        f'noise.{name}',
        lambda: {'drawn': torch.ones((2, 3), dtype=torch.float64)},
        drawn=tensor(rows=False),
    )


ITEMS = values(
    'a', [0.5], [True], [-1], None, torch.tensor([0.5]), 1.5, [[1]], ['a']
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
    Row(
        'nothing',
        {
            'graphs': [],
            'nodes': [],
            'features': [],
            'edges': [],
            'labels': [],
        },
        'name something',
    ),
    Row('persons of nobody', {'persons': [1]}, "'unit'"),
    Row('a unit of nobody', {'unit': 3}, "'unit'"),
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
    'removal.RemovalRequest.batch',
    lambda: {'requests': [RemovalRequest(graphs=[1])]},
    requests=values(3, None, 'a', [1], [None]),
    names={'requests': "'requests'|name something"},
)
entry(
    'removal.RemovalRequest.from_dict',
    lambda: {'named': {'0': {'nodes': [1]}}},
    names={'named': "'named'|name something"},
    named=values(3, None, 'a', {}, {'a': {}}, {'0': 3}, {'0': {'a': [1]}}),
)
entry(
    'removal.remove_from_data',
    lambda: {'data': plain_data(), 'part': Part(nodes=(0,))},
    Row('unknown', {'part': Part(nodes=(9,))}, 'node 9'),
    Row('an edge', {'part': Part(edges=((0, 3),))}, 'edge 0'),
    Row('everything', {'part': Part(nodes=tuple(range(N)))}, 'no node'),
    Row('whole', {'part': Part(whole=True)}, "'part'"),
    Row('labels', {'part': Part(labels=(0,))}, "'part'"),
    Row('one way', {'part': Part(directed_edges=((0, 3),))}, 'edge 0'),
    names={**DATA_NAMES, 'data': "'(data|num_nodes|edge_index)|node 0"},
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
    kind=choice(),
    values=values(3, None),
    history=values(3, None, {'a': [1.0]}),
    checked=values(3, None, 'one', [3]),
    model=values(3, None),
)


def trust_report() -> TrustReport:
    return TrustReport.of(Guarantee('a', 'b', ()))


entry(
    'report.TrustReport',
    lambda: {'guarantees': trust_report().guarantees},
    guarantees=values(3, None, 'a', (), (3,)),
    created=values(3, None, 'now', '2026-01-01'),
    schema_version=values(0, None, '1'),
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


def promise_with_budget() -> Guarantee:
    return Guarantee('a', 'b', (), spent={'e': 1.0}, budget={'e': 2.0})


entry(
    'report.fingerprint_data',
    lambda: {'data': Data(x=torch.ones(2, 1)), 'fields': ['x']},
    data=values(3, None, 'a', [3]),
    fields=values(3, [3]),
)
entry(
    'report.Report.plot',
    lambda: (promise_with_budget(), {'ax': None}),
    needs='matplotlib',
    ax=values(3, 'a'),
)
entry(
    'report.TrustReport.save',
    lambda: (trust_report(), {'path': temporary('trust.json')}),
    path=PATH,
)


def own_registry() -> Registry[Any]:
    made: Registry[Any] = Registry('part')
    made.register('mine')(len)
    return made


def saved_report() -> Path:
    path = temporary('trust.json')
    trust_report().save(path)
    return path


entry(
    'report.TrustReport.load',
    lambda: (TrustReport, {'path': saved_report()}),
    path=PATH,
)

entry(
    'check.check_report',
    lambda: {'path': saved_report()},
    path=PATH,
    ledger=values(3, 1.5, ['a']),
    model=values(3, 1.5, ['a']),
    data=values(3, 1.5, ['a']),
    witness=values(3, 1.5, [3]),
)
entry(
    'report.fingerprint_model',
    lambda: {'state': {'a': torch.ones(2)}},
    state=values(3, None, 'a', [3]),
)
EXEMPT['check.Finding'] = RESULT
for name in ('', '.spend_gaussian', '.get_epsilon'):
    EXEMPT[f'account.TrainingAccount{name}'] = 'a protocol'

for name in ('register', 'builtin'):
    entry(
        f'registries.Registry.{name}',
        lambda: (Registry('part'), {'name': 'mine'}),
        name=values(3, None, '', ' '),
    )
entry(
    'registries.Registry.find',
    lambda: (MEASURES, {'argument': 'measure', 'name': 'ppr'}),
    argument=anything('it is the name in the message'),
    name=choice(),
    names={'name': "'measure'"},
)
entry(
    'registries.Registry.remove',
    lambda: (own_registry(), {'name': 'mine'}),
    name=values(3, None, 'yours'),
)
for name in ('', '.__getitem__', '.fact', '.name_of', '.is_own', '.note'):
    EXEMPT[f'registries.Registry{name}'] = 'of this package, by its own names'

entry('testing.make_graph', lambda: {'name': 'path'}, name=choice())
entry(
    'testing.dense_operator',
    lambda: {'graph': csr(), 'measure': agp.ppr(0.2)},
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
