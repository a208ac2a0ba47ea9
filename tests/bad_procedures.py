"""Bad inputs of private training and unlearning."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad_functional import (
    NOT_NEGATIVE,
    POSITIVE,
    UNIT,
    N,
    rand,
)
from bad_ground import plain_data, saved, temporary
from bad_inputs import (
    FUNCTION,
    anything,
    bad,
    choice,
    damaged,
    damaged_or_old,
    data,
    either,
    instance,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_layers import scattering, walk_loader
from bad_table import TABLE, entry
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

from pyg_trust import (
    audit,
    loader,
    privacy,
    transforms,
    unlearning,
)
from pyg_trust.removal import RemovalRequest
from pyg_trust.update import Update

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
RUNS = number(1, 500, closed='low high')
SHAPE = number(0, 10, closed='low high')


def train_once(rate: float) -> Any:
    return attached(), rate


entry(
    'privacy.search',
    lambda: {
        'train': train_once,
        'candidates': [0.1],
        'bound': accountant(),
        'delta': 1e-3,
        'mean_runs': 1.0,
        'seed': 0,
    },
    bad(train=lambda rate: rate),
    candidates=values(3, None, [], {0.1}),
    mean_runs=RUNS,
    shape=SHAPE,
)
entry(
    'privacy.AdaptiveNorm',
    lambda: {},
    bad(initial=1e9),
    bounds=values(3, None, (1.0,), (2.0, 1.0), (0.0, 1.0), ('a', 1.0)),
)


def release(data: Any) -> Any:
    return data.x.sum(0)


def labelled() -> Any:
    return plain_data(y=torch.zeros(N, dtype=torch.int64))


entry(
    'audit.audit_function',
    lambda: {
        'train': release,
        'data': labelled(),
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


def private(engine: Any, **arguments: Any) -> Any:
    return engine.make_private(
        **training(), noise_multiplier=4.0, max_grad_norm=1.0, **arguments
    )


def attached(**arguments: Any) -> Any:
    made = privacy.PrivacyEngine(insecure_seed=0)
    private(made, **arguments)
    return made


def batchnorm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(2))


PARTS = {
    'module': instance(),
    'optimizer': instance(),
    'data_loader': instance(),
    'max_grad_norm': POSITIVE,
}
PARTS_ROWS = (
    bad('BatchNorm|module|optimizer', module=batchnorm()),
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
    **PARTS,
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
    **PARTS,
)
entry(
    'privacy.PrivacyEngine.report',
    lambda: (attached(), {'delta': 1e-3}),
    bad(delta=None),
    delta=UNIT,
)


SHAPE = values(3.5, None, 'a', (1.5,), (-1,), (True,))


def owner() -> torch.Tensor:
    return torch.tensor([0, 0, 0, 1, 1, 1])


def apart() -> torch.Tensor:
    return torch.tensor([[0, 1, 3, 4], [1, 2, 4, 5]])


def by_unit() -> Any:
    return {
        'model': Net(),
        'args': (torch.ones(N, 2), apart()),
        'owner': owner(),
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

# Unlearning ##################################################################


def graphs(count: int = 6) -> list[Data]:
    made = []
    for number_ in range(count):
        x = torch.linspace(-1, 1, 12).view(N, 2).roll(number_, 0)
        x = x * (1 if number_ % 2 else -0.5)
        made.append(
            Data(
                x=x,
                edge_index=undirected(),
                y=torch.tensor([number_ % 2]),
                num_nodes=N,
            )
        )
    return made


def classifier(**arguments: Any) -> Any:
    return unlearning.ScatteringClassifier(
        scattering(), weight_decay=0.1, seed=0, **arguments
    )


def fitted_classifier(**arguments: Any) -> Any:
    return classifier(**arguments).fit(graphs())


def classifier_state(**changes: Any) -> dict[str, Any]:
    state = fitted_classifier().state_dict()
    for name, value in changes.items():
        if isinstance(value, float):
            value = torch.full_like(state[name], value)
        state[name] = value
    return state


GRAPHS = values(3, None, 'a', [], [3], [*graphs(), None], [HeteroData()])
UNLABELLED = [Data(x=g.x, edge_index=g.edge_index) for g in graphs()]
LABEL_ROW = bad("graph 0|'y'|'graphs'", graphs=UNLABELLED)
GRAPH_NAMES = {'graphs': "'(graphs|data)'"}
REQUESTS = (
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
    lambda: (
        fitted_classifier(),
        {'request': RemovalRequest(nodes={0: [1]})},
    ),
    bad('a class without', request=RemovalRequest(graphs=[0, 2, 4])),
    bad('no node', request=RemovalRequest(nodes={0: list(range(N))})),
    request=either(*REQUESTS),
)
entry(
    'unlearning.ScatteringClassifier.update',
    lambda: (fitted_classifier(), {'update': Update(graphs=graphs()[:1])}),
    bad('graph 9', update=Update(graph=9, labels=ONE)),
    bad('labels', update=Update(labels=ONE)),
    bad(update=[]),
    update=values(3, 'a', [3], RemovalRequest(graphs=[99])),
)
entry(
    'unlearning.ScatteringClassifier.load_state_dict',
    lambda: (classifier(), {'state': fitted_classifier().state_dict()}),
    bad(r'\bstate', state={}),
    bad(r'\bstate', state=classifier_state(W=np.nan)),
    bad(r'\bstate', state=classifier_state(W=9.0)),
    bad(r'\bstate', state=classifier_state(graphs={})),
    names={'state': 'state'},
    state=damaged_or_old,
)


def saved_classifier() -> Path:
    path = temporary()
    fitted_classifier().save(path)
    return path


entry(
    'unlearning.ScatteringClassifier.load',
    lambda: (classifier(), {'path': saved_classifier()}),
    bad(r'\bstate', path=saved()),
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
    members=tensor(
        rows=False, low=0, high=N - 1, empty=True, dtypes=(torch.float32,)
    ),
    others=tensor(
        rows=False, low=0, high=N - 1, empty=True, dtypes=(torch.float32,)
    ),
)


def train_data() -> Data:
    made = plain_data(
        x=torch.linspace(-1, 1, 12).view(N, 2),
        train_mask=torch.ones(N, dtype=torch.bool),
    )
    return made


def unlearner(**arguments: Any) -> Any:
    given = {
        'partition': torch.tensor([0, 0, 0, 1, 1, 1]),
        'aggregator': 'mean',
        'epochs': 1,
        'seed': 0,
        **arguments,
    }
    return unlearning.ShardedUnlearner(Net, 2, **given)


def fitted_unlearner(**arguments: Any) -> Any:
    return unlearner(**arguments).fit(train_data())


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
        3,
        'a',
        [],
        [0.5],
        [(0.5, 1)],
        [(0.5, 1, 2), (1, 1)],
        [('a', 1), (1, 1)],
        [(0.5, 1.5), (1, 1)],
        [(0.5, 0), (1, 1)],
        [(0.7, 1), (0.5, 1), (1, 1)],
        [(np.nan, 1), (1, 1)],
    ),
)
FIT_ROWS = tuple(
    bad(names, data=plain_data(**{**train_data().to_dict(), **change}))
    for label, change, names in (
        ('no mask', {'train_mask': None}, "'train_mask'"),
        ('no features', {'x': None}, "'x'"),
        ('NaN', {'x': torch.full((N, 2), np.nan)}, "'x'"),
        ('no labels', {'y': None}, "'y'"),
        ('a negative label', {'y': -torch.ones(N).long()}, "'y'"),
        ('names', {'n_id': torch.zeros(N).long()}, "'n_id'"),
        ('names of floats', {'n_id': torch.rand(N)}, "'n_id'"),
    )
)
entry(
    'unlearning.ShardedUnlearner.fit',
    lambda: (unlearner(), {'data': train_data()}),
    *FIT_ROWS,
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
        **{given: either(instance(), *REQUESTS[1:])},
        **({'shard': values(3, 'a', {0: 9})} if given == 'update' else {}),
        **({'on_report': values(3, 'a')} if name == 'remove' else {}),
    )
entry(
    'unlearning.ShardedUnlearner.repartition',
    lambda: (fitted_unlearner(), {'partition': [[0, 1, 2], [3, 4, 5]]}),
    bad(partition=None),
    partition=PARTITIONS,
)
FOLDERS = values(3, 1.5, ['a'])


def with_folder() -> Any:
    made, folder = fitted_unlearner(), temporary()
    made.save(folder)
    return made, {'folder': folder}


for name in ('save', 'load'):
    entry(
        f'unlearning.ShardedUnlearner.{name}',
        with_folder,
        bad(folder=None),
        folder=FOLDERS,
    )


# Audits ######################################################################


def audited() -> Any:
    return audit.ShardedSubject(lambda **given: unlearner(**given))


entry(
    'audit.audit_removal',
    lambda: {
        'make': audited,
        'data': train_data(),
        'request': RemovalRequest(nodes=[0, 1]),
        'tests': ['bytes'],
    },
    bad('x', data=plain_data(x=None)),
    bad(r'\bcandidates', tests=['membership']),
    bad(make=lambda: 3),
    request=either(*REQUESTS),
    tests=values('twins', 3, ['a'], [3]),
    candidates=values(
        [1],
        torch.tensor([0.5, 1]),
        torch.tensor([0, 99]),
        torch.tensor([0, 1]),
    ),
)
TABLE['audit.audit_removal'].kinds['make'] = FUNCTION
