"""Bad inputs of private training and releases, and of privacy units."""

import math
from typing import Any

import torch
from bad_ground import DTYPES, POSITIVE, N, plain_data, temporary
from bad_inputs import (
    SEED,
    anything,
    bad,
    choice,
    csr,
    damaged,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_layers import walk_loader
from bad_table import entry
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

from pyg_trust import account, loader, noise, privacy, transforms
from pyg_trust.removal import RemovalRequest
from pyg_trust.unit import PrivacyUnit

# Privacy #####################################################################


def accountant() -> Any:
    made = privacy.RDPAccountant()
    made.step(noise_multiplier=2.0, sample_rate=0.5)
    return made


entry(
    'privacy.Accountant.get_epsilon',
    lambda: (accountant(), {'delta': 1e-5}),
    bad('delta', alphas=[2.0]),
    args=anything('a row above refuses whatever comes'),
)


entry(
    'privacy.Accountant.load_state_dict',
    lambda: (accountant(), {'state_dict': accountant().state_dict()}),
    bad(r'\bstate', state_dict=privacy.RDPAccountant().state_dict()),
    names={'state_dict': 'state|pure_epsilon'},
    state_dict=damaged,
)


entry(
    'privacy.search',
    lambda: {
        'train': lambda rate: (attached(), rate),
        'candidates': [0.1],
        'bound': accountant(),
        'delta': 1e-3,
        'mean_runs': 1.0,
        'seed': 0,
    },
    bad(train=lambda rate: rate),
    candidates=values(3, None, [], {0.1}),
    mean_runs=number(1, 500, closed='low high'),
    shape=number(0, 10, closed='low high'),
)
entry(
    'privacy.AdaptiveNorm',
    lambda: {},
    bad(initial=1e9),
    bounds=values(3, None, (1.0,), (2.0, 1.0), (0.0, 1.0), ('a', 1.0)),
)


entry(
    'audit.audit_function',
    lambda: {
        'train': lambda data: data.x.sum(0),
        'data': plain_data(y=torch.zeros(N, dtype=torch.int64)),
        'num_canaries': 16,
        'seed': 0,
    },
    bad("'data.y'", data=plain_data(y=None)),
    bad(train=lambda data: 3),
    claim=number(0, closed='low', none=True),
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


def attached(insecure_seed: int | None = 0) -> privacy.PrivacyEngine:
    made = privacy.PrivacyEngine(insecure_seed=insecure_seed)
    made.make_private(**training(), noise_multiplier=4.0, max_grad_norm=1.0)
    return made


PARTS_ROWS = (
    bad('BatchNorm|module|optimizer', module=torch.nn.BatchNorm1d(2)),
    bad(optimizer=torch.optim.SGD(Net().parameters(), lr=0.1)),
    bad(
        data_loader=loader.DisjointWalkLoader(
            plain_data(propagated=('x',)), 1, 2, seed=0
        )
    ),
)
entry(
    'privacy.PrivacyEngine',
    lambda: {},
    bad(ledger_head='a'),
    noise=choice(),
    accountant=choice(none=True),
    insecure_seed=SEED,
)
entry(
    'privacy.PrivacyEngine.make_private',
    lambda: (
        privacy.PrivacyEngine('rdp_wor', insecure_seed=0, ledger=temporary()),
        {
            **training(),
            'noise_multiplier': 4.0,
            'max_grad_norm': 1.0,
            'target_epsilon': 5.0,
            'target_delta': 1e-3,
        },
    ),
    *PARTS_ROWS,
    bad(target_delta=None),
    bad(target_epsilon=None),
    max_grad_norm=POSITIVE,
)
entry(
    'privacy.PrivacyEngine.make_private_with_epsilon',
    lambda: (
        privacy.PrivacyEngine('rdp_wor', insecure_seed=0, ledger=temporary()),
        {
            **training(),
            'target_epsilon': 5.0,
            'target_delta': 1e-3,
            'max_grad_norm': 1.0,
            'steps': 2,
        },
    ),
    *PARTS_ROWS,
    bad('steps', epochs=2),
    bad(noise_multiplier=2.0),
    max_grad_norm=POSITIVE,
)
entry(
    'privacy.PrivacyEngine.report',
    lambda: (attached(), {'delta': 1e-3}),
    bad(delta=None),
)


def by_unit() -> Any:
    return {
        'model': Net(),
        'args': (
            torch.ones(N, 2),
            torch.tensor([[0, 1, 3, 4], [1, 2, 4, 5]]),
        ),
        'owner': torch.tensor([0, 0, 0, 1, 1, 1]),
        'grad': torch.ones(N, 2),
    }


entry(
    'privacy.unit_gradients',
    by_unit,
    args=anything('what the model takes'),
    kwargs=anything('what the model takes'),
    owner=tensor(rows=False, low=0),
    grad=anything('what the loss gives'),
    num_units=anything('tests/privacy/test_unit_gradients.py'),
)
entry(
    'privacy.UnitGradients.clipped_sum',
    lambda: (privacy.unit_gradients(**by_unit()), {'max_grad_norm': 1.0}),
    max_grad_norm=number(0, math.inf, closed='high'),
)

MAYBE = number(0, none=True)

# Functions ###################################################################

entry(
    'privacy.hop_sensitivity',
    lambda: {'adjacency': 'node_incident', 'max_degree': 3},
    bad('max_degree', adjacency='edge'),
    bad(num_classes=3),
)
entry(
    'privacy.private_propagate',
    lambda: {
        'graph': csr(),
        'x': torch.rand(6, 2),
        'stds': [1.0],
        'noise': noise.SecureNoise(),
        'adjacency': 'node',
        'weights': torch.ones(6, dtype=torch.float64),
    },
    bad('weights', adjacency='edge'),
    stds=values(3, None, 'a', [], [0.0], ['a'], [math.nan]),
    weights=values(3, 'a', torch.ones(6), torch.ones(5).double()),
    between=choice(),
    dtype=DTYPES,
)


def spent() -> account.ReleaseAccount:
    return account.ReleaseAccount({'relation': 'edge'}, limit=9.0)


entry(
    'account.ReleaseAccount',
    lambda: {'about': {'relation': 'edge'}, 'ledger': temporary()},
    bad('ledger_head', ledger=None, ledger_head='a'),
    about=values(3, None, 'a', [1]),
    limit=MAYBE,
)
for name in ('check', 'spend'):
    entry(
        f'account.ReleaseAccount.{name}',
        lambda: (spent(), {'mu': 0.1}),
        bad(mu=10.0),
        mu=POSITIVE,
    )
entry(
    'account.ReleaseAccount.resume',
    lambda: (spent(), {'lines': [0.1, 0.2], 'head': ''}),
    bad('mu', lines=[0.1, 10.0]),
    lines=values(3, None, 'a', ['a'], [0.0], [-1.0]),
)


entry(
    'privacy.PrivacyEngine.covers',
    lambda: (
        attached(insecure_seed=None),
        {'request': RemovalRequest(features=[0]), 'delta': 1e-3},
    ),
    bad(request=RemovalRequest(nodes=[0])),
    bad(delta=None),
)

# The transform ###############################################################


entry(
    'transforms.PrivateAGP',
    lambda: {'epsilon': 1.0, 'delta': 1e-3},
    bad(epsilon=None),
    bad(delta=None),
    bad(ledger_head='a'),
    engine=values(3, 'a', object()),
)
for name in ('forward', 'released'):
    entry(
        f'transforms.PrivateAGP.{name}',
        lambda: (
            transforms.PrivateAGP(mu=1.0, delta=1e-3),
            {'data': plain_data()},
        ),
        bad(data=plain_data(edge_weight=torch.ones(10))),
        bad(data=plain_data(propagated=('x',))),
        bad(data=plain_data(x=None)),
    )


# The classifier ##############################################################


entry(
    'privacy.PrivateNodeClassifier',
    lambda: {},
    bad(ledger_head='a'),
    shares=values(
        3, 'abc', (0.5, 0.5), (0.5, 0.5, 0.5), (1.0, 0.0, 0.0), ('a', 'b', 'c')
    ),
)
entry(
    'privacy.PrivateNodeClassifier.fit',
    lambda: (
        privacy.PrivateNodeClassifier('node', 8.0, 1e-3, steps=2),
        {'data': plain_data(train_mask=torch.arange(6) < 4)},
    ),
    bad(data=plain_data()),
)


# Links #######################################################################


def split(**changes: Any) -> Data:
    labels = {'edge_label': torch.ones(2)}
    labels['edge_label_index'] = undirected()[:, :2]
    return plain_data(**{**labels, **changes})


entry(
    'privacy.PrivateLinkPredictor',
    lambda: {},
    bad(adjacency='feature'),
    bad(neighboring='replace'),
    bad(ledger_head='a'),
    shares=values(3, 'abc', (0.5, 0.5), (0.5, 0.5, 0.5), ('a', 'b', 'c')),
    message_dim=values('a', 1.5, 0, 33),
)
entry(
    'privacy.PrivateLinkPredictor.fit',
    lambda: (
        privacy.PrivateLinkPredictor('edge', 8.0, 1e-3, steps=2),
        {'data': split()},
    ),
    bad("'edge_label'|'data'", data=split(edge_label=torch.zeros(2))),
    bad(
        'edge_label_index',
        data=split(edge_label_index=torch.tensor([[0], [0]])),
    ),
)


# Items #######################################################################

LIKES = torch.tensor([[0, 0, 1], [0, 1, 1]])


entry(
    'privacy.PrivateItemCounts',
    lambda: {},
    bad(ledger_head='a'),
    neighboring=choice(),
    items=values('ab', [], [1, 1], [-1], [0.5]),
)
entry(
    'privacy.PrivateItemCounts.fit',
    lambda: (
        privacy.PrivateItemCounts(8.0, 1e-3),
        {'interactions': LIKES, 'num_users': 2, 'num_items': 3},
    ),
    bad(interactions=LIKES[:, [0, 0]]),
    bad(edge_type=('a', 'b', 'c')),
    interactions=values(3, None, torch.rand(2, 3), torch.tensor([0, 1])),
    num_users=values('a', 1.5, 0),
    num_items=values('a', 1.5, 0, 10**6),
)
entry(
    'privacy.PrivateItemCounts.recommend',
    lambda: (
        privacy.PrivateItemCounts(8.0, 1e-3).fit(LIKES, 2, 3),
        {'history': LIKES, 'k': 2, 'num_users': 2},
    ),
    bad(history=LIKES[:, [0, 0]]),
    history=values(3, None, torch.rand(2, 3), torch.tensor([[0], [9]])),
    num_users=values('a', 1.5, 0),
)

# The audit ###################################################################

entry(
    'audit.audit_aggregation',
    lambda: {
        'release': transforms.PrivateAGP(mu=1.0, delta=1e-6).released,
        'num_canaries': 40,
        'seed': 0,
    },
    bad(release=lambda data: [data.x[:1]]),
    bad(release=lambda data: data.x),
)

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
    person=values('shop'),
    num_persons=values(4, -1),
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
    node_type=values('nobody'),
    one=ROWS,
    other=ROWS,
)


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
    data=values(other()),
    batch_size=integer(high=2),
    input_nodes=values(3, 'a', torch.zeros(4), torch.tensor([4])),
    along=values((('a', 'b', 'c'),), 3, (3,)),
    num_neighbors=values(3, {BY: -2}, {BY: 'a'}, {'a': 1}),
)
