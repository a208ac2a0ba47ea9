"""Bad inputs of privacy units and metapaths."""

from typing import Any

import torch
from bad_inputs import bad, integer, values
from bad_table import entry
from torch_geometric.data import HeteroData

from pyg_trust.unit import PrivacyUnit

BY = ('order', 'by', 'user')


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
    bad(r'\bowned', owned={}),
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
    bad("'one' and 'other'", one=torch.tensor([1])),
    node_type=values(3, None, 'nobody'),
    one=ROWS,
    other=ROWS,
)


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
        'num_hops': 1,
        'along': (BY,),
        'neighboring': 'contents',
    },
    bad(shuffle=True),
    bad(neighboring='add_remove'),
    bad(batch_size=3),
    data=values(3, None, other()),
    batch_size=integer(1, 2),
    input_nodes=values(3, 'a', torch.zeros(4), torch.tensor([4])),
    along=values((('a', 'b', 'c'),), 3, (3,)),
    num_neighbors=values(3, {BY: -2}, {BY: 'a'}, {'a': 1}),
)
