"""Bad inputs of what forgets nodes, and of features of changing graphs."""

from pathlib import Path
from typing import Any

import torch
from bad_functional import (
    POSITIVE,
    SHARE,
    UNIT,
    N,
    rand,
)
from bad_ground import plain_data, saved, temporary
from bad_inputs import (
    bad,
    csr,
    either,
    instance,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_procedures import damaged_or_old
from bad_table import entry
from torch_geometric.data import Data, HeteroData

from pyg_trust import transforms, unlearning
from pyg_trust.agp.measures import Measure, katz, sgc
from pyg_trust.removal import RemovalRequest
from pyg_trust.update import Update

# Ops #########################################################################

NODES = torch.tensor([1, 2])


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


# Features of a changing graph ################################################


def features() -> Any:
    return transforms.PropagatedFeatures(csr(), ones(N, 2), sgc(2))


def missing() -> torch.Tensor:
    edges = set(map(tuple, undirected().t().tolist()))
    return torch.tensor(
        next(
            [[u], [v]]
            for u in range(N)
            for v in range(u)
            if (u, v) not in edges
        )
    )


entry(
    'transforms.PropagatedFeatures',
    lambda: {
        'graph': csr(),
        'x': ones(N, 2),
        'measure': sgc(2),
        'alpha': 0.2,
        'theta': 0.1,
    },
    bad("'alpha' and 'theta'", theta=None),
    bad("'alpha' and 'theta'", alpha=None),
    bad(measure=katz(0.01, csr())),
    bad(measure=Measure(0.5, 1, (1.0,))),
    bad(measure=Measure(0.5, 0, (1.0,)), alpha=None, theta=None),
    bad(x=17 * ones(N, 2), alpha=None, theta=None),
    bad("'(graph|bits)'", bound=2.0**60, bits=1, alpha=None, theta=None),
    bad(bits=48, alpha=None, theta=None),
    bad(x=torch.ones(N, 2)),
    x=tensor(),
    alpha=UNIT,
    theta=POSITIVE,
)
for name, edges in (
    ('insert_edges', missing),
    ('remove_edges', lambda: undirected()[:, :1]),
):
    entry(
        f'transforms.PropagatedFeatures.{name}',
        lambda edges=edges: (features(), {'edge_index': edges()}),
        bad(
            r'\bedge',
            edge_index=undirected()[:, :1]
            if name == 'insert_edges'
            else missing(),
        ),
    )
entry(
    'transforms.PropagatedFeatures.update_features',
    lambda: (features(), {'nodes': NODES, 'x': ones(2, 2)}),
    bad(nodes=torch.tensor([1, 1])),
    nodes=tensor(
        rows=False,
        low=0,
        high=N - 1,
        none=True,
        numbers=True,
        dtypes=(torch.float32,),
    ),
    x=tensor(columns=True),
)

entry(
    'update.Update',
    lambda: {
        'nodes': ones(1, 2),
        'edges': missing(),
        'features': (NODES, ones(2, 2)),
        'remove': RemovalRequest(edges=[(0, 1)]),
    },
    bad(features=(NODES[:1].expand(2), ones(2, 2))),
    nodes=tensor(rows=False, none=True, columns=False),
    edges=tensor(finite=False, rows=False, none=True),
    features=values(3, 'a', (NODES,), (NODES, 'a')),
    labels=values(3, 'a', (NODES,), (NODES, 'a')),
    graphs=values(3, None, [3]),
    graph=values(-1, None, 'a', 0.5),
)
entry(
    'update.NewNodes',
    lambda: {
        'x': ones(2, 2),
        'y': NODES,
        'train': NODES > 0,
        'n_id': NODES,
    },
    bad('train', y=NODES - 2, train=NODES > 0),
    bad(n_id=torch.tensor([1, 1])),
    x=tensor(rows=False, columns=False),
    y=tensor(finite=False, columns=False, none=True, low=-1),
    train=tensor(finite=False, columns=False, none=True),
    n_id=tensor(finite=False, columns=False, none=True, low=0),
)
entry(
    'transforms.PropagatedFeatures.update',
    lambda: (features(), {'update': Update(edges=missing())}),
    bad(r'\bedge', update=Update(edges=undirected()[:, :1])),
    bad(update=RemovalRequest(labels=[0])),
    update=values(3, 'a', [3]),
)


# Node classifiers ############################################################


def nodes_data() -> Data:
    return plain_data(x=rand(N, 3), train_mask=torch.arange(N) < 4)


def classifier(**arguments: Any) -> Any:
    return unlearning.NodeClassifier(weight_decay=0.1, seed=0, **arguments)


def fitted() -> Any:
    return classifier().fit(nodes_data())


def waiting() -> Any:
    model = fitted()
    model.update(Update(edges=missing()))
    return model


def state(**changes: Any) -> dict[str, Any]:
    made = fitted().state_dict()
    for name, value in changes.items():
        if isinstance(value, float):
            value = torch.full_like(made[name], value)
        made[name] = value
    return made


entry(
    'unlearning.NodeClassifier',
    lambda: {'measure': 'appnp', 'alpha': 0.2, 'K': 2},
    bad(measure='katz', alpha=None),
    bad(encoder=torch.nn.Identity()),
    bad("'features'|features=", features='push'),
    bad(theta=0.5),
    bad(bound=1e14),
    alpha=SHARE,
)
entry(
    'unlearning.NodeClassifier.fit',
    lambda: (
        classifier(),
        {'data': nodes_data(), 'train_nodes': torch.tensor([0, 1, 2, 3])},
    ),
    bad(train_nodes=torch.tensor([0, 1, 1])),
    bad(train_nodes=torch.tensor([]).long()),
    bad("'data.y'", train_nodes=torch.tensor([0, 2])),
    train_nodes=tensor(
        rows=False,
        low=0,
        high=N - 1,
        dtypes=(torch.float32,),
        none=True,
        numbers=True,
    ),
    classes=values(3, 'a', [0], [0, 1, 1], [0, 1, -1], [0, 1, 2.5]),
)
REQUEST = either(
    instance(),
    values(
        RemovalRequest(graphs=[0]),
        RemovalRequest(nodes={1: [0]}),
        RemovalRequest(nodes=[99]),
        RemovalRequest(labels=[5]),
        [],
    ),
)
for name in ('remove', 'plan'):
    entry(
        f'unlearning.NodeClassifier.{name}',
        lambda: (fitted(), {'request': RemovalRequest(nodes=[0])}),
        bad('class 0 without', request=RemovalRequest(labels=[0, 2])),
        request=REQUEST,
        names={
            'request': "'(requests?|remove|update)'|node 99|node 5|the request"
        },
    )
EDGE = undirected()[:, :1]
for given in ('update', 'release'):
    entry(
        f'unlearning.NodeClassifier.{given}',
        lambda given=given: (
            (fitted(), {'update': Update(edges=missing())})
            if given == 'update'
            else (waiting(), {})
        ),
        *(
            ()
            if given == 'release'
            else (
                bad(r'\bedge', update=Update(edges=EDGE)),
                bad('graph', update=Update(graph=1)),
                bad('class 0 without', update=RemovalRequest(labels=[0, 2])),
            )
        ),
        reference=values(3, ['a'], 'a' * 31),
        **(
            {}
            if given == 'release'
            else {
                'update': values(3, 'a', [3], RemovalRequest(graphs=[0])),
                'release': values(3, None, 'a'),
                'names': {'update': "'(update|remove)'"},
            }
        ),
    )
entry(
    'unlearning.NodeClassifier.load_state_dict',
    lambda: (classifier(), {'state': fitted_state()}),
    bad(r'\bstate', state=state(weight=float('nan'))),
    bad(r'\bstate', state=state(weight=9.0)),
    bad(r'\bstate', state=state(data={})),
    state=damaged_or_old,
)
entry(
    'unlearning.NodeClassifier.load',
    lambda: (classifier(), {'path': saved_state()}),
    bad(r'\bstate', path=saved()),
)
# Classifiers of links #######################################################


def links() -> Any:
    return unlearning.LinkClassifier(weight_decay=0.1, K=1, seed=0)


def linked() -> Any:
    return links().fit(nodes_data())


def linked_file() -> Path:
    path = temporary()
    linked().save(path)
    return path


entry(
    'unlearning.LinkClassifier',
    lambda: {'measure': 'appnp', 'alpha': 0.2, 'K': 2},
    bad(measure='katz', alpha=None),
    bad(encoder=torch.nn.Identity()),
    alpha=SHARE,
)
for name in ('decision_function', 'predict', 'predict_proba'):
    entry(
        f'unlearning.LinkClassifier.{name}',
        lambda: (linked(), {'edge_label_index': undirected()}),
        edge_label_index=values(
            *(
                3,
                None,
                'a',
                [[0], [1, 2]],
                torch.zeros(2, 2),
                torch.tensor([0]),
            ),
            *(torch.tensor([[0], [N]]), torch.tensor([[0], [-1]])),
        ),
    )
entry(
    'unlearning.LinkClassifier.load',
    lambda: (links(), {'path': linked_file()}),
    bad(r'\bstate', path=saved()),
)


def fitted_state() -> dict[str, Any]:
    return fitted().state_dict()


def saved_state() -> Path:
    path = temporary()
    fitted().save(path)
    return path


def removed() -> tuple[Any, dict[str, Any]]:
    """The report of a removal, and what was verified after it."""
    model = fitted()
    report = model.remove(RemovalRequest(nodes=[0]))
    return report, {'found': model.verify()}


entry(
    'unlearning.ForgetReport.verified',
    removed,
    bad(found=fitted().verify()),
    found=instance(),
)


# Recommenders ################################################################


def liking() -> Any:
    edges = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 3]])
    return unlearning.Recommender(exponents=(0.5, 0.5, 0.5)), edges


def liked() -> Any:
    model, edges = liking()
    return model.fit(edges, 3, 4)


def liked_file() -> Path:
    path = temporary()
    liked().save(path)
    return path


NO_NAMES = values('a', [0.5], [-1], [99], [True], [[0, 1]])
NO_PAIRS = values(3, 'a', [(0.5, 1)], [(1, 99)], [(-1, 0)], [(0, 1, 2)])
entry(
    'unlearning.Recommender',
    lambda: {'method': 'paths', 'exponents': (0.5, 0.5, 0.5)},
    exponents=values(
        *(3, None, 'abc', (0.5,), (0.5, 0.5, -0.1), (2.1, 0.0, 0.0)),
        *((float('nan'), 0, 0), ('a', 0, 0), (0, 0, 0, 0)),
    ),
    cached=values(3, None, 'a'),
    weight_decay=number(0),
    max_items=integer(1),
)
entry(
    'unlearning.Recommender.fit',
    lambda: (
        liking()[0],
        {'interactions': liking()[1], 'num_users': 3, 'num_items': 4},
    ),
    bad(interactions=torch.tensor([[0, 0], [1, 1]])),
    bad(edge_type=('a', 'b', 'c')),
    names={
        'interactions': "'(interactions|edge_type)'",
        'num_users': "'(num_users|interactions)'",
        'num_items': "'(num_items|interactions)'",
    },
    interactions=either(
        tensor(
            rows=False, low=0, high=3, dtypes=(torch.float32,), numbers=True
        ),
        values(3, None, 'a', HeteroData()),
    ),
    num_users=values(None, 'a', 0, -1, 1.5, 2),
    num_items=values(None, 'a', 0, -1, 1.5, 3),
)
for name in ('plan', 'remove'):
    entry(
        f'unlearning.Recommender.{name}',
        lambda: (liked(), {'users': [0]}),
        bad('name something to remove', users=[]),
        bad(r'\(0, 3\)', users=None, interactions=[(0, 3)]),
        names={
            'users': "'users|user 99",
            'items': "'items|item 99",
            'interactions': r"'interactions|interaction \(1, 99\)",
        },
        request=instance(none=True),
        users=NO_NAMES,
        items=NO_NAMES,
        interactions=NO_PAIRS,
        **(
            {'reference': values(3, ['a'], 'a' * 31)}
            if name == 'remove'
            else {}
        ),
    )
entry(
    'unlearning.Recommender.load',
    lambda: (liking()[0], {'path': liked_file()}),
    bad(r'\bstate', path=saved()),
)
