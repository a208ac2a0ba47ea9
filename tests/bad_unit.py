"""Bad inputs of privacy units and metapaths."""

from typing import Any

import torch
from bad_inputs import FLAG, Row, choice, integer, values
from bad_table import EXEMPT, entry
from torch_geometric.data import HeteroData

from pyg_trust.unit import PrivacyUnit

BY = ('order', 'by', 'user')
PERSONS = values(0.5, 'a', [0.5], [-1], [4], torch.tensor([0.5]))
PATHS = values([('a', 'b', 'c')], [3], [])


def shop() -> HeteroData:
    data = HeteroData()
    data['user'].x, data['order'].x = torch.rand(4, 2), torch.rand(6, 3)
    data[BY].edge_index = torch.tensor([range(6), [0, 1, 2, 3, 0, 1]])
    return data


def unit() -> PrivacyUnit:
    return PrivacyUnit(shop(), 'user', owned={'order': BY})


def other() -> HeteroData:
    data = shop()
    data[BY].edge_index[1, 0] = 3
    return data


entry(
    'unit.PrivacyUnit',
    lambda: {
        'data': shop(),
        'person': 'user',
        'num_persons': None,
        'owned': {'order': BY},
        'joint': {},
        'public': (),
        'public_edges': (),
        'edge_owner': {BY: torch.zeros(6, dtype=torch.int64)},
        'on_removal': {},
        'same': torch.tensor([[0], [1]]),
    },
    Row('no owners', {'owned': {}}, 'owned'),
    data=values(3, None, torch.zeros(2)),
    person=values(3, 'shop'),
    num_persons=values(4, 'a', -1),
    owned=values({'order': 3}, {'order': ('order', 'of', 'user')}),
    joint=values({'order': BY}, {'shop': BY}),
    public=values(('user',), ('shop',)),
    public_edges=values((BY,), (('a', 'b', 'c'),)),
    edge_owner=values(
        {BY: torch.full((6,), 4)}, {BY: torch.zeros(6)}, {'a': torch.zeros(6)}
    ),
    on_removal=values({'order': 'keep'}, {'user': 'drop'}),
    same=values(torch.tensor([[0], [4]]), torch.zeros(2, 1), 3),
)
entry(
    'unit.PrivacyUnit.cascade',
    lambda: (unit(), {'persons': [1]}),
    persons=PERSONS,
)
entry(
    'unit.PrivacyUnit.check',
    lambda: (unit(), {'data': shop()}),
    data=values(3, None, other()),
)
entry(
    'unit.PrivacyUnit.is_own',
    lambda: (unit(), {'path': [BY], 'node_type': 'user', 'symmetric': False}),
    path=PATHS,
    node_type=values(3, None),
    symmetric=FLAG,
)
entry(
    'unit.PrivacyUnit.has_one_row_each',
    lambda: (unit(), {'node_type': 'order'}),
    node_type=values(3, None),
)
entry(
    'unit.PrivacyUnit.owners',
    lambda: (unit(), {'node_type': 'order'}),
    node_type=choice(),
)
entry(
    'unit.PrivacyUnit.pairs',
    lambda: (unit(), {'along': [BY], 'max_joint': 16}),
    along=values([('a', 'b', 'c')], [3]),
)
entry(
    'unit.PrivacyUnit.rows',
    lambda: (unit(), {'person': 1}),
    person=values('a', 0.5, -1, 4),
)
entry(
    'unit.PrivacyUnit.names',
    lambda: (unit(), {'persons': [1]}),
    persons=PERSONS,
)
entry(
    'unit.PrivacyUnit.table',
    lambda: (unit(), {'data': shop()}),
    data=values(3, None, other()),
)
entry(
    'unit.PrivacyUnit.without',
    lambda: (unit(), {'data': shop(), 'persons': [1]}),
    data=values(3, None, other()),
    persons=PERSONS,
)
entry(
    'unit.PrivacyUnit.within',
    lambda: (unit(), {'data': shop(), 'persons': [1]}),
    data=values(3, None, other()),
    persons=PERSONS,
)
entry(
    'unit.PrivacyUnit.split',
    lambda: (unit(), {'ratio': [0.5, 0.5], 'seed': 0}),
    ratio=values([], [0.0], [0.9, 0.2], [-1], ['a'], 0.5),
)
ROWS = values(3, 'a', torch.zeros(4), torch.tensor([4]))
entry(
    'unit.PrivacyUnit.check_apart',
    lambda: (
        unit(),
        {
            'node_type': 'user',
            'one': torch.tensor([0]),
            'other': torch.tensor([1]),
        },
    ),
    Row('one person', {'one': torch.tensor([1])}, "'one' and 'other'"),
    node_type=values(3, None, 'nobody'),
    one=ROWS,
    other=ROWS,
)
EXEMPT['unit.Cascade'] = 'a result'
EXEMPT['unit.path_steps'] = 'an inner step of what checks its arguments'


def transform() -> Any:
    from pyg_trust.transforms import MetapathFeatures

    return MetapathFeatures([[BY]], 'user')


entry(
    'transforms.MetapathFeatures',
    lambda: {
        'paths': [[BY]],
        'node_type': 'user',
        'out': 'x',
        'unit': unit(),
        'concat': True,
    },
    paths=values([], 3, [3]),
    node_type=values(3, None),
    out=values(3, None),
    unit=values(3, 'a'),
)
entry(
    'transforms.MetapathFeatures.forward',
    lambda: (transform(), {'data': shop()}),
    data=values(3, None, HeteroData()),
)
EXEMPT['unit.PrivacyUnit.known'] = 'a check that others share'
EXEMPT['removal.integers'] = 'a check that others share'


def loader() -> Any:
    from pyg_trust.loader import UnitLoader

    return UnitLoader(shop(), unit(), 2, seed=0)


entry(
    'loader.UnitLoader',
    lambda: {
        'data': shop(),
        'unit': unit(),
        'batch_size': 2,
        'input_nodes': torch.tensor([0, 2]),
        'hops': 1,
        'along': (BY,),
        'relation': 'contents',
    },
    Row('choosing batches', {'shuffle': True}, "'shuffle'"),
    Row('no coins', {'relation': 'add_remove'}, "'relation'"),
    Row('more than there are', {'batch_size': 3}, "'batch_size'"),
    data=values(3, None, other()),
    unit=values(3, None),
    batch_size=integer(1, 2),
    input_nodes=values(3, 'a', torch.zeros(4), torch.tensor([4])),
    hops=integer(0),
    along=values((('a', 'b', 'c'),), 3, (3,)),
    num_neighbors=values(3, {BY: -1}, {BY: 'a'}, {'a': 1}),
    num_steps=integer(1, none=True),
    resample_every=values(0, 1, 1.5),
    sample_rate=values('a', True, 0.5),
)
entry(
    'loader.UnitLoader.check_batch',
    lambda: (loader(), {'batch': loader()([1, 2]), 'step': 0}),
    Row('another batch', {'batch': shop()}, "'transform'"),
    names={'batch': "a batch|'transform'"},
    batch=values(3, None),
    step=integer(0),
    count=integer(1, none=True),
)
entry(
    'loader.UnitLoader.own_view',
    lambda: (loader(), {'persons': torch.tensor([0, 2])}),
    persons=ROWS,
)
for name in ('num_subgraphs_at', 'sample_rate_at'):
    entry(
        f'loader.UnitLoader.{name}',
        lambda: (loader(), {'step': 0}),
        step=integer(0),
    )
EXEMPT['loader.StepLoader.flat'] = 'called by the engine alone'
EXEMPT['loader.UnitLoader.flat'] = 'called by the engine alone'
EXEMPT['loader.UnitLoader.made'] = 'called by the engine alone'
EXEMPT['loader.UnitLoader.collate_fn'] = 'called by DataLoader alone'
