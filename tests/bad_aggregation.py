"""Bad inputs of noisy sums, their account, and private classification."""

import math
from typing import Any

import torch
from bad_functional import COUNT, POSITIVE
from bad_ground import temporary
from bad_inputs import (
    Row,
    choice,
    csr,
    data,
    instance,
    number,
    undirected,
    values,
)
from bad_procedures import training
from bad_table import entry
from torch_geometric.data import Data

from pyg_trust import account, noise, privacy, transforms
from pyg_trust.removal import RemovalRequest

MAYBE = number(0, none=True)
HEAD = values(3, ['a'], b'a')
LEDGER = values(3, ['a'])

# Functions ###################################################################

entry(
    'privacy.hop_sensitivity',
    lambda: {'adjacency': 'node_incident', 'max_degree': 3},
    Row('of edges', {'adjacency': 'edge'}, "'max_degree'"),
    Row('incident', {'num_classes': 3}, "'num_classes'"),
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
    Row('weights of edges', {'adjacency': 'edge'}, "'weights'"),
    x=values(3, None, torch.rand(6), torch.rand(5, 2), torch.ones(6, 2).int()),
    stds=values(3, None, 'a', [], [0.0], ['a'], [math.nan]),
    noise=instance(),
    weights=values(3, 'a', torch.ones(6), torch.ones(5).double()),
    between=choice(),
    dtype=values(None, 'a', torch.int64, torch.float16),
)

# The account #################################################################


def spent() -> account.ReleaseAccount:
    return account.ReleaseAccount({'relation': 'edge'}, limit=9.0)


entry(
    'account.ReleaseAccount',
    lambda: {'about': {'relation': 'edge'}, 'ledger': temporary()},
    Row('no ledger', {'ledger': None, 'ledger_head': 'a'}, "'ledger_head'"),
    about=values(3, None, 'a', [1]),
    limit=MAYBE,
    ledger=LEDGER,
    ledger_head=HEAD,
)
for name in ('check', 'spend'):
    entry(
        f'account.ReleaseAccount.{name}',
        lambda: (spent(), {'mu': 0.1}),
        Row('too much', {'mu': 10.0}, "'mu'"),
        mu=POSITIVE,
    )
entry(
    'account.ReleaseAccount.resume',
    lambda: (spent(), {'lines': [0.1, 0.2], 'head': ''}),
    Row('too much', {'lines': [0.1, 10.0]}, "'mu'"),
    lines=values(3, None, 'a', ['a'], [0.0], [-1.0]),
    head=values(3, None),
)


def attached(seed: int | None = 0) -> privacy.PrivacyEngine:
    engine = privacy.PrivacyEngine(insecure_seed=seed)
    engine.make_private(**training(), noise_multiplier=4.0, max_grad_norm=1.0)
    return engine


entry(
    'privacy.PrivacyEngine.covers',
    lambda: (
        attached(None),
        {'request': RemovalRequest(features=[0]), 'delta': 1e-3},
    ),
    Row('nodes', {'request': RemovalRequest(nodes=[0])}, "'request'"),
    Row('no delta', {'delta': None}, "'delta'"),
    request=instance(),
)

# The transform ###############################################################


def plain() -> Data:
    return Data(x=torch.rand(6, 2), edge_index=undirected())


def changed_plain(**changes: Any) -> Data:
    made = plain()
    for name, value in changes.items():
        made[name] = value
    return made


def transform() -> transforms.PrivateAGP:
    return transforms.PrivateAGP(mu=1.0, delta=1e-3)


entry(
    'transforms.PrivateAGP',
    lambda: {'epsilon': 1.0, 'delta': 1e-3},
    Row('no budget', {'epsilon': None}, "'epsilon'"),
    Row('no delta', {'delta': None}, "'delta'"),
    Row('no ledger', {'ledger_head': 'a'}, "'ledger_head'"),
    adjacency=choice(),
    epsilon=POSITIVE,
    engine=values(3, 'a', object()),
    neighboring=choice(none=True),
    directed=values(3, None, 'a'),
    cat=values(3, 'a'),
)
for name in ('forward', 'released'):
    entry(
        f'transforms.PrivateAGP.{name}',
        lambda: (transform(), {'data': plain()}),
        Row(
            'weights',
            {'data': changed_plain(edge_weight=torch.ones(10))},
            "'data'",
        ),
        Row('own', {'data': changed_plain(propagated=('x',))}, "'data'"),
        Row('no rows', {'data': changed_plain(x=None)}, "'data'"),
        data=data(),
    )


# The classifier ##############################################################


def labelled() -> Data:
    made = plain()
    made.y = torch.tensor([0, 1, 0, 1, 0, 1])
    made.train_mask = torch.arange(6) < 4
    return made


def classifier() -> privacy.PrivateNodeClassifier:
    return privacy.PrivateNodeClassifier('node', 8.0, 1e-3, steps=2)


entry(
    'privacy.PrivateNodeClassifier',
    lambda: {},
    Row('no ledger', {'ledger_head': 'a'}, "'ledger_head'"),
    adjacency=choice(),
    shares=values(
        3, 'abc', (0.5, 0.5), (0.5, 0.5, 0.5), (1.0, 0.0, 0.0), ('a', 'b', 'c')
    ),
    neighboring=choice(none=True),
)
entry(
    'privacy.PrivateNodeClassifier.fit',
    lambda: (classifier(), {'data': labelled()}),
    Row('no labels', {'data': plain()}, "'data'"),
    data=data(),
)


# Links #######################################################################


def predictor() -> privacy.PrivateLinkPredictor:
    return privacy.PrivateLinkPredictor('edge', 8.0, 1e-3, steps=2)


def split() -> Data:
    made = plain()
    made.edge_label_index = undirected()[:, :2]
    made.edge_label = torch.ones(2)
    return made


def changed_split(**changes: Any) -> Data:
    made = split()
    for name, value in changes.items():
        made[name] = value
    return made


entry(
    'privacy.PrivateLinkPredictor',
    lambda: {},
    Row('public', {'adjacency': 'feature'}, "'adjacency'"),
    Row('of an edge', {'neighboring': 'replace'}, "'neighboring'"),
    Row('no ledger', {'ledger_head': 'a'}, "'ledger_head'"),
    adjacency=choice(),
    shares=values(3, 'abc', (0.5, 0.5), (0.5, 0.5, 0.5), ('a', 'b', 'c')),
    message_dim=values('a', 1.5, 0, 33),
)
entry(
    'privacy.PrivateLinkPredictor.fit',
    lambda: (predictor(), {'data': split()}),
    Row(
        'rejected',
        {'data': changed_split(edge_label=torch.zeros(2))},
        "'edge_label'|'data'",
    ),
    Row(
        'no edge',
        {'data': changed_split(edge_label_index=torch.tensor([[0], [0]]))},
        "'edge_label_index'",
    ),
    data=data(),
)


# Items #######################################################################

LIKES = torch.tensor([[0, 0, 1], [0, 1, 1]])


def counted() -> privacy.PrivateItemCounts:
    return privacy.PrivateItemCounts(8.0, 1e-3).fit(LIKES, 2, 3)


entry(
    'privacy.PrivateItemCounts',
    lambda: {},
    Row('no ledger', {'ledger_head': 'a'}, "'ledger_head'"),
    neighboring=choice(),
    items=values(3, 'ab', [], [1, 1], [-1], [0.5]),
)
entry(
    'privacy.PrivateItemCounts.fit',
    lambda: (
        privacy.PrivateItemCounts(8.0, 1e-3),
        {'interactions': LIKES, 'num_users': 2, 'num_items': 3},
    ),
    Row('twice', {'interactions': LIKES[:, [0, 0]]}, "'interactions'"),
    Row('a type', {'edge_type': ('a', 'b', 'c')}, "'edge_type'"),
    interactions=values(3, None, torch.rand(2, 3), torch.tensor([0, 1])),
    num_users=values('a', 1.5, 0),
    num_items=values('a', 1.5, 0, 10**6),
    edge_type=values(3, 'a'),
)
entry(
    'privacy.PrivateItemCounts.recommend',
    lambda: (counted(), {'history': LIKES, 'k': 2, 'num_users': 2}),
    Row('twice', {'history': LIKES[:, [0, 0]]}, "'history'"),
    history=values(3, None, torch.rand(2, 3), torch.tensor([[0], [9]])),
    k=COUNT,
    num_users=values('a', 1.5, 0),
)

# Removals ####################################################################


# The audit ###################################################################

entry(
    'audit.audit_aggregation',
    lambda: {
        'release': transforms.PrivateAGP(mu=1.0, delta=1e-6).released,
        'num_canaries': 40,
        'seed': 0,
    },
    Row('no rows', {'release': lambda data: [data.x[:1]]}, "'release'"),
    Row('no list', {'release': lambda data: data.x}, "'release'"),
    directed=values(3, None, 'a'),
    neighboring=choice(none=True),
)
