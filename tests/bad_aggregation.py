"""Bad inputs of noisy sums, their account, and private classification."""

import math
from typing import Any

import torch
from bad_functional import COUNT, POSITIVE
from bad_ground import plain_data, temporary
from bad_inputs import (
    bad,
    choice,
    csr,
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
    x=values(3, None, torch.rand(6), torch.rand(5, 2), torch.ones(6, 2).int()),
    stds=values(3, None, 'a', [], [0.0], ['a'], [math.nan]),
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
    bad(request=RemovalRequest(nodes=[0])),
    bad(delta=None),
)

# The transform ###############################################################


def transform() -> transforms.PrivateAGP:
    return transforms.PrivateAGP(mu=1.0, delta=1e-3)


entry(
    'transforms.PrivateAGP',
    lambda: {'epsilon': 1.0, 'delta': 1e-3},
    bad(epsilon=None),
    bad(delta=None),
    bad(ledger_head='a'),
    epsilon=POSITIVE,
    engine=values(3, 'a', object()),
    cat=values(3, 'a'),
)
for name in ('forward', 'released'):
    entry(
        f'transforms.PrivateAGP.{name}',
        lambda: (transform(), {'data': plain_data()}),
        bad(data=plain_data(edge_weight=torch.ones(10))),
        bad(data=plain_data(propagated=('x',))),
        bad(data=plain_data(x=None)),
    )


# The classifier ##############################################################


def classifier() -> privacy.PrivateNodeClassifier:
    return privacy.PrivateNodeClassifier('node', 8.0, 1e-3, steps=2)


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
        classifier(),
        {'data': plain_data(train_mask=torch.arange(6) < 4)},
    ),
    bad(data=plain_data()),
)


# Links #######################################################################


def predictor() -> privacy.PrivateLinkPredictor:
    return privacy.PrivateLinkPredictor('edge', 8.0, 1e-3, steps=2)


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
    lambda: (predictor(), {'data': split()}),
    bad("'edge_label'|'data'", data=split(edge_label=torch.zeros(2))),
    bad(
        'edge_label_index',
        data=split(edge_label_index=torch.tensor([[0], [0]])),
    ),
)


# Items #######################################################################

LIKES = torch.tensor([[0, 0, 1], [0, 1, 1]])


def counted() -> privacy.PrivateItemCounts:
    return privacy.PrivateItemCounts(8.0, 1e-3).fit(LIKES, 2, 3)


entry(
    'privacy.PrivateItemCounts',
    lambda: {},
    bad(ledger_head='a'),
    neighboring=choice(),
    items=values(3, 'ab', [], [1, 1], [-1], [0.5]),
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
    lambda: (counted(), {'history': LIKES, 'k': 2, 'num_users': 2}),
    bad(history=LIKES[:, [0, 0]]),
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
    bad(release=lambda data: [data.x[:1]]),
    bad(release=lambda data: data.x),
)
