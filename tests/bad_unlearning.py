"""Bad inputs of all that forgets, and of the desk."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad_ground import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    N,
    plain_data,
    rand,
    saved,
    temporary,
)
from bad_inputs import (
    anything,
    bad,
    choice,
    csr,
    damaged_or_old,
    data,
    either,
    ids,
    instance,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_layers import scattering
from bad_privacy import Net
from bad_table import FOLDER, entry
from desks import ALL, Clock, fitted, nodes
from torch_geometric.data import Data, HeteroData

from pyg_trust import audit, transforms, unlearning
from pyg_trust.agp.measures import Measure, katz, sgc
from pyg_trust.erasure import ErasureDesk
from pyg_trust.removal import RemovalRequest
from pyg_trust.update import Update

# Unlearning ##################################################################


def graphs(count: int = 6) -> list[Data]:
    x = torch.linspace(-1, 1, 12).view(N, 2)
    return [
        Data(
            x=x.roll(i, 0) * (1 if i % 2 else -0.5),
            edge_index=undirected(),
            y=torch.tensor([i % 2]),
            num_nodes=N,
        )
        for i in range(count)
    ]


def classifier() -> Any:
    return unlearning.ScatteringClassifier(
        scattering(), weight_decay=0.1, seed=0
    )


def fitted_classifier() -> Any:
    return classifier().fit(graphs())


GRAPHS = values(3, None, 'a', [], [3], [*graphs(), None], [HeteroData()])
UNLABELLED = [Data(x=g.x, edge_index=g.edge_index) for g in graphs()]
LABEL_ROW = bad("graph 0|'y'|'graphs'", graphs=UNLABELLED)
GRAPH_NAMES = {'graphs': "'(graphs|data)'"}
REQUESTS = either(
    instance(),
    values(RemovalRequest(graphs=[99]), RemovalRequest(nodes={0: [99]})),
)
ONE = torch.tensor([0]), torch.tensor([1])
REQUEST_NAMES = {'request': "'request'|graph 99|node 99"}
for name in ('decision_function', 'predict', 'predict_proba', 'score'):
    rows = (LABEL_ROW,) if name == 'score' else ()
    entry(
        f'unlearning.ScatteringClassifier.{name}',
        lambda: (fitted_classifier(), {'graphs': graphs()}),
        *rows,
        names=GRAPH_NAMES,
        graphs=GRAPHS,
    )
entry(
    'unlearning.ScatteringClassifier.remove',
    lambda: (fitted_classifier(), {'request': RemovalRequest(nodes={0: [1]})}),
    bad('a class without', request=RemovalRequest(graphs=[0, 2, 4])),
    bad('no node', request=RemovalRequest(nodes={0: list(range(N))})),
    request=REQUESTS,
)
entry(
    'unlearning.ScatteringClassifier.update',
    lambda: (fitted_classifier(), {'update': Update(graphs=graphs()[:1])}),
    bad('graph 9', update=Update(graph=9, labels=ONE)),
    bad('labels', update=Update(labels=ONE)),
    bad(update=[]),
    update=values(3, 'a', [3], RemovalRequest(graphs=[99])),
)


MEMBERS = tensor(
    rows=False, low=0, high=N - 1, empty=True, dtypes=(torch.float32,)
)
entry(
    'audit.membership_inference',
    lambda: {
        'probability': rand(N, 2),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'members': torch.tensor([0, 1, 2]),
        'others': torch.tensor([3, 4, 5]),
    },
    bad('members', others=torch.tensor([2, 3])),
    bad(others=torch.tensor([3, 3])),
    bad(node_type='user'),
    names={'probability': "'(probability|y|members|others)'"},
    probability=tensor(),
    y=tensor(low=0, high=1),
    members=MEMBERS,
    others=MEMBERS,
)


def train_data() -> Data:
    x = torch.linspace(-1, 1, 12).view(N, 2)
    return plain_data(x=x, train_mask=torch.ones(N, dtype=torch.bool))


def unlearner(**arguments: Any) -> Any:
    given = {'partition': torch.tensor([0, 0, 0, 1, 1, 1]), 'seed': 0}
    given |= {'aggregator': 'mean', 'epochs': 1, **arguments}
    return unlearning.ShardedUnlearner(Net, 2, **given)


def fitted_unlearner() -> Any:
    return unlearner().fit(train_data())


PARTITIONS = either(
    choice(none=True),
    values(
        ['a', 'b'], [torch.tensor([0])], transforms.Shards(3), [[0.5], [1.0]]
    ),
)
entry(
    'unlearning.ShardedUnlearner',
    lambda: {'model_factory': Net, 'num_shards': 2},
    bad(partition=None),
    bad(model_factory=Net()),
    partition=PARTITIONS,
    aggregator=choice(),
    epochs=integer(1, none=True),
    lr=POSITIVE,
    weight_decay=NOT_NEGATIVE,
    optimizer=choice(),
    slices=values(
        *(3, 'a', [], [0.5], [(0.5, 1)], [(0.5, 1, 2), (1, 1)]),
        *([('a', 1), (1, 1)], [(0.5, 1.5), (1, 1)], [(0.5, 0), (1, 1)]),
        *([(0.7, 1), (0.5, 1), (1, 1)], [(np.nan, 1), (1, 1)]),
    ),
)
entry(
    'unlearning.ShardedUnlearner.fit',
    lambda: (unlearner(), {'data': train_data()}),
    *(
        bad(name, data=plain_data(**{**train_data().to_dict(), name: value}))
        for name, value in (
            *(('train_mask', None), ('x', None), ('y', None)),
            ('x', torch.full((N, 2), np.nan)),
            ('y', -torch.ones(N).long()),
            *(('n_id', torch.zeros(N).long()), ('n_id', torch.rand(N))),
        )
    ),
)
for name in ('predict', 'predict_proba'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        lambda: (fitted_unlearner(), {}),
        bad('nodes', data=train_data(), nodes=[0]),
        *(
            bad("'(data|x|edge_index)'", data=wrong)
            for _, wrong in (
                *data()(train_data()),
                ('no features', plain_data(x=None)),
                ('a column less', plain_data(x=torch.ones(N, 1))),
            )
            if wrong is not None
        ),
        data=anything('rows above'),
        nodes=values('a', [0.5], [-1], [N], torch.tensor([0.5]), [True]),
    )
for name, given in (
    ('plan', 'update'),
    ('update', 'update'),
    ('remove', 'request'),
):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        lambda given=given: (
            fitted_unlearner(),
            {given: RemovalRequest(nodes=[0])},
        ),
        bad('no node', **{given: RemovalRequest(nodes=[0, 1, 2, 3, 4, 5])}),
        bad('leave class 0', **{given: RemovalRequest(nodes=[0, 2, 4])}),
        names={
            **REQUEST_NAMES,
            'update': "'(update|remove)'|node|edge|feature",
        },
        **{given: REQUESTS},
        **({'shard': values(3, 'a', {0: 9})} if given == 'update' else {}),
    )
entry(
    'unlearning.ShardedUnlearner.repartition',
    lambda: (fitted_unlearner(), {'partition': [[0, 1, 2], [3, 4, 5]]}),
    bad(partition=None),
    partition=PARTITIONS,
)


def with_folder() -> Any:
    made, folder = fitted_unlearner(), temporary()
    made.save(folder)
    return made, {'folder': folder}


for name in ('save', 'load'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        with_folder,
        bad(folder=None),
        folder=values(3, 1.5, ['a']),
    )


# Audits ######################################################################


entry(
    'audit.audit_removal',
    lambda: {
        'make': lambda: audit.ShardedSubject(unlearner),
        'data': train_data(),
        'request': RemovalRequest(nodes=[0, 1]),
        'tests': ['bytes'],
    },
    bad('x', data=plain_data(x=None)),
    bad(r'\bcandidates', tests=['membership']),
    bad(make=lambda: 3),
    request=REQUESTS,
    tests=values('twins', 3, ['a'], [3]),
    candidates=values([1], *map(torch.tensor, ([0.5, 1], [0, 99], [0, 1]))),
)

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
    nodes=ids(),
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
    nodes=tensor(rows=False, none=True),
    edges=tensor(finite=False, rows=False, none=True),
    features=values(3, 'a', (NODES,), (NODES, 'a')),
    labels=values(3, 'a', (NODES,), (NODES, 'a')),
    graphs=values(3, None, [3]),
)
entry(
    'update.NewNodes',
    lambda: {'x': ones(2, 2), 'y': NODES, 'train': NODES > 0, 'n_id': NODES},
    bad('train', y=NODES - 2, train=NODES > 0),
    bad(n_id=torch.tensor([1, 1])),
    x=tensor(rows=False),
    y=tensor(finite=False, none=True, low=-1),
    train=tensor(finite=False, none=True),
    n_id=tensor(finite=False, none=True, low=0),
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


def nodes_model(**arguments: Any) -> Any:
    return unlearning.NodeClassifier(weight_decay=0.1, seed=0, **arguments)


def fitted_nodes() -> Any:
    return nodes_model().fit(nodes_data())


def waiting() -> Any:
    model = fitted_nodes()
    model.update(Update(edges=missing()))
    return model


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
        nodes_model(),
        {'data': nodes_data(), 'train_nodes': torch.tensor([0, 1, 2, 3])},
    ),
    bad(train_nodes=torch.tensor([0, 1, 1])),
    bad(train_nodes=torch.tensor([]).long()),
    bad("'data.y'", train_nodes=torch.tensor([0, 2])),
    train_nodes=ids(),
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
        lambda: (fitted_nodes(), {'request': RemovalRequest(nodes=[0])}),
        bad('class 0 without', request=RemovalRequest(labels=[0, 2])),
        request=REQUEST,
        names={
            'request': "'(requests?|remove|update)'|node 99|node 5|the request"
        },
    )
entry(
    'unlearning.NodeClassifier.update',
    lambda: (fitted_nodes(), {'update': Update(edges=missing())}),
    bad(r'\bedge', update=Update(edges=undirected()[:, :1])),
    bad('graph', update=Update(graph=1)),
    bad('class 0 without', update=RemovalRequest(labels=[0, 2])),
    update=values(3, 'a', [3], RemovalRequest(graphs=[0])),
    release=values(3, None, 'a'),
    names={'update': "'(update|remove)'"},
)
entry('unlearning.NodeClassifier.release', lambda: (waiting(), {}))

# Classifiers of links #######################################################


def links() -> Any:
    return unlearning.LinkClassifier(weight_decay=0.1, K=1, seed=0)


def linked() -> Any:
    return links().fit(nodes_data())


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
            *(3, None, 'a', [[0], [1, 2]], torch.zeros(2, 2)),
            *map(torch.tensor, ([0], [[0], [N]], [[0], [-1]])),
        ),
    )


def removed() -> tuple[Any, dict[str, Any]]:
    """The report of a removal, and what was verified after it."""
    model = fitted_nodes()
    report = model.remove(RemovalRequest(nodes=[0]))
    return report, {'found': model.verify()}


entry(
    'unlearning.ForgetReport.verified',
    removed,
    bad(found=fitted_nodes().verify()),
)


# Recommenders ################################################################


def liking() -> Any:
    edges = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 3]])
    return unlearning.Recommender(exponents=(0.5, 0.5, 0.5)), edges


def liked() -> Any:
    model, edges = liking()
    return model.fit(edges, 3, 4)


NO_NAMES = values('a', [0.5], [-1], [99], [True], [[0, 1]])
NO_PAIRS = values(3, 'a', [(0.5, 1)], [(1, 99)], [(-1, 0)], [(0, 1, 2)])
entry(
    'unlearning.Recommender',
    lambda: {'method': 'paths', 'exponents': (0.5, 0.5, 0.5)},
    exponents=values(
        *(3, None, 'abc', (0.5,), (0.5, 0.5, -0.1), (2.1, 0.0, 0.0)),
        *((float('nan'), 0, 0), ('a', 0, 0), (0, 0, 0, 0)),
    ),
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
    )


# The desk ####################################################################


def place() -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER))


def desk() -> ErasureDesk:
    made = ErasureDesk(place() / 'desk.db', clock=Clock(), policy=ALL)
    made.recipient('partner')
    return made


def asked() -> tuple[ErasureDesk, dict[str, Any]]:
    made = desk()
    number = made.add(nodes(1)).subject_request_id
    return made, {'subject_request_id': number, 'name': 'partner'}


entry(
    'erasure.ErasureDesk.register',
    lambda: (
        desk(),
        {'name': 'scores', 'model': fitted(), 'save': place() / 'a.pt'},
    ),
    bad(save=None),
    name=values('', 'a\nb', 'x' * 1001),
    model=values(3, None, 'model'),
)
entry(
    'erasure.ErasureDesk.done',
    asked,
    subject_request_id=values('anna', 'a' * 33),
    name=values('nobody'),
)


def evidence() -> dict[str, Any]:
    made, given = asked()
    report = made.done(**given)
    path = place() / 'one.json'
    path.write_text(report.to_json())
    return {'path': path}


def others() -> Any:
    for text in ('', '{}', '[1]', '{"tasks": 3}'):
        path = place() / 'bad.json'
        path.write_text(text)
        yield path


entry(
    'erasure.check_erasure',
    evidence,
    path=values(3, None, *others()),
    ledgers=values(3, 'a', {'nobody': 'a.json'}),
)


# States and files ############################################################


def state_of(model: Any, **changes: Any) -> dict[str, Any]:
    state = model.state_dict()
    for name, value in changes.items():
        if isinstance(value, float):
            value = torch.full_like(state[name], value)
        state[name] = value
    return state


def file_of(model: Any) -> Path:
    path = temporary()
    model.save(path)
    return path


for make, fit, weight, held in (
    (classifier, fitted_classifier, 'W', 'graphs'),
    (nodes_model, fitted_nodes, 'weight', 'data'),
):
    entry(
        f'unlearning.{type(make()).__name__}.load_state_dict',
        lambda make=make, fit=fit: (make(), {'state': fit().state_dict()}),
        *(
            bad(r'\bstate', state=state_of(fit(), **change))
            for change in ({weight: np.nan}, {weight: 9.0}, {held: {}})
        ),
        names={'state': 'state'},
        state=damaged_or_old,
    )
for make, fit in (
    (classifier, fitted_classifier),
    (nodes_model, fitted_nodes),
    (links, linked),
    (lambda: liking()[0], liked),
):
    entry(
        f'unlearning.{type(make()).__name__}.load',
        lambda make=make, fit=fit: (make(), {'path': file_of(fit())}),
        bad(r'\bstate', path=saved()),
    )
