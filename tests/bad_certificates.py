"""Bad inputs of certificates for any model."""

import functools
import math
from typing import Any

import torch
from bad_functional import COUNT, NOT_NEGATIVE, RESULT
from bad_ground import temporary
from bad_inputs import (
    FLAG,
    PATH,
    SEED,
    Row,
    choice,
    either,
    instance,
    integer,
    number,
    tensor,
    undirected,
    values,
)
from bad_table import EXEMPT, entry
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

from pyg_trust import certificates, transforms, unlearning
from pyg_trust import certificates as F
from pyg_trust.nn import PPNP

N = 6
NOISE = values(
    0.5,
    'half',
    (0.1,),
    (0.1, 0.2, 0.3),
    (-0.1, 0.2),
    (0.5, 0.5),
    (0.7, 0.6),
    ('a', 0.1),
    (float('nan'), 0.1),
    (True, 0.1),
    None,
)
RADIUS = values(
    3,
    'one',
    (1,),
    (1, 2, 3),
    (-1, 0),
    (0, -1),
    (0.5, 0),
    ('a', 0),
    (True, 0),
    None,
)
P = either(number(0, 1, closed='low'))


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def regions() -> Any:
    return F.flip_regions(1, 1, 0.1, 0.2)


# The mathematics #############################################################

EXEMPT['certificates.FlipRegions'] = RESULT
EXEMPT['certificates.CertifiedVotes'] = RESULT
EXEMPT['certificates.CollectiveVotes'] = RESULT
for name in ('flip_regions', 'min_probability_table'):
    entry(
        f'functional.{name}',
        lambda: {
            'additions': 1,
            'deletions': 2,
            'p_plus': 0.1,
            'p_minus': 0.3,
        },
        Row('too much', {'p_plus': 0.7}, "'p_plus'"),
        names={'p_plus': "'p_", 'p_minus': "'p_"},
        additions=integer(0),
        deletions=integer(0),
        p_plus=P,
        p_minus=P,
    )
EXEMPT['certificates.joint_regions'] = (
    'takes any number of regions by position: tests/certificates'
)
entry(
    'certificates.worst_case_probability',
    lambda: {'p': double(0.2, 0.9), 'regions': regions()},
    p=tensor(rows=False, low=0, high=1, batched=True, dtypes=(torch.float32,)),
)
entry(
    'certificates.min_probability',
    lambda: {'regions': regions()},
)
entry(
    'certificates.certified',
    lambda: {
        'lower': double(0.7, 0.9),
        'upper': double(0.2, 0.1)[:, None],
        'regions': regions(),
    },
    names={'lower': "'(lower|upper)'"},
    lower=tensor(low=0, high=1),
    upper=tensor(low=0, high=1, none=True),
)
entry(
    'certificates.clopper_pearson',
    lambda: {
        'counts': torch.tensor([2, 5]),
        'num_samples': 9,
        'alpha': 0.05,
    },
    counts=values(
        3,
        'x',
        [1],
        torch.tensor([0.5]),
        torch.tensor([-1, 2]),
        torch.tensor([10]),
        None,
    ),
)
VOTES = tensor(rows=False, low=0, high=2)


def votes() -> torch.Tensor:
    return torch.tensor([[0, 1], [0, 2], [0, 1]])


entry(
    'certificates.certified_votes',
    lambda: {'votes': votes(), 'num_classes': 3},
    names={'num_classes': "'(num_classes|votes)'"},
    votes=VOTES,
    num_classes=integer(1),
    ties=choice(),
)
entry(
    'certificates.certified_mean',
    lambda: {'probability': torch.full((3, 2, 2), 0.5)},
    probability=tensor(rows=False, columns=True, low=0, high=1),
)
entry(
    'certificates.survives_votes',
    lambda: {
        'votes': votes(),
        'num_classes': 3,
        'views': torch.tensor([0]),
    },
    votes=VOTES,
    num_classes=integer(1),
    views=tensor(rows=False, low=0, high=2),
)
entry(
    'certificates.collective_votes',
    lambda: {'votes': votes(), 'num_classes': 3, 'corrupted': 1},
    votes=VOTES,
    corrupted=integer(0, 3),
)
entry(
    'certificates.group_probability_bound',
    lambda: {'p': 0.9, 'rows': 1, 'epsilon': 0.1},
    Row('lengths', {'epsilon': [0.1, 0.2]}, "'epsilon'"),
    epsilon=values('a', None, -0.1, float('nan'), True),
    delta=values('a', None, -0.1, float('nan'), 1.5, True),
)

# The sampler #################################################################


def bits() -> dict[str, Any]:
    return {
        'rowptr': torch.tensor([0, 1, 2]),
        'col': torch.tensor([1, 0], dtype=torch.int32),
        'num_cols': 2,
        'p_plus': 0.1,
        'p_minus': 0.1,
        'cells': 'undirected',
        'seed': 0,
    }


entry(
    'ops.flip_bits',
    bits,
    Row('not square', {'num_cols': 3}, "'num_cols'"),
    Row('too many', {'num_samples': 2**30}, "'num_samples'"),
    names={'rowptr': "'(rowptr|num_cols)'"},
    rowptr=values([0], 'a', None, torch.zeros(3)),
    col=values([0], 'a', None, torch.zeros(3), torch.tensor([1, 0])),
    num_cols=integer(0),
    p_plus=P,
    p_minus=P,
    cells=choice(),
    seed=integer(0),
    first=integer(0),
    num_samples=integer(1),
)

# Transforms ##################################################################


def data(**changes: Any) -> Data:
    made = {
        'x': torch.eye(N)[:, :4].contiguous(),
        'edge_index': undirected(N),
        'num_nodes': N,
        **changes,
    }
    return Data(**made)


def bad_graphs(*more: Any) -> Any:
    far = undirected(N).clone()
    far[0, 0] = N
    return values(
        None,
        3,
        'graph',
        undirected(N),
        HeteroData(),
        data(edge_index=None),
        data(edge_index=far),
        data(edge_index=undirected(N).double()),
        *more,
    )


HALF = data(x=torch.full((N, 4), 0.5))
ONE_WAY = data(edge_index=torch.tensor([[0, 1], [1, 2]]))
TWICE = data(edge_index=undirected(N).repeat(1, 2))
ATTRIBUTES = data(edge_attr=torch.ones(14))
NOISY = bad_graphs(HALF, ONE_WAY, TWICE, ATTRIBUTES, data(x=None))
DATA_NAMES = {'data': "'(data|x|edge_index|graph)'"}
BOTH = {'edges': (0.0, 0.3), 'features': (0.1, 0.2)}
for name in ('transforms.FlipBits', 'certificates.BitFlips'):
    entry(
        name,
        lambda: dict(BOTH),
        Row(
            'no noise',
            {'edges': (0, 0), 'features': (0, 0)},
            "'edges'",
        ),
        edges=NOISE,
        features=NOISE,
        directed=FLAG,
        **({'seed': SEED} if 'Flip' in name and 'tr' in name else {}),
    )
entry(
    'transforms.FlipBits.forward',
    lambda: (transforms.FlipBits(**BOTH), {'data': data()}),
    names=DATA_NAMES,
    data=NOISY,
)
entry(
    'transforms.Division',
    lambda: {'num_groups': 3},
    Row('owners of nobody', {'by': 'owners'}, "'unit'"),
    num_groups=COUNT,
    by=choice(),
    unit=values(3, 'a'),
)
for name in ('check', 'part'):
    EXEMPT[f'transforms.Division.{name}'] = 'an inner step of view'
NAMED = bad_graphs(
    data(n_id=torch.zeros(N).long()),
    data(n_id=-torch.arange(N)),
    data(n_id=torch.rand(N)),
)
NAMES = {'data': "'(data|x|edge_index|n_id)'"}
for name in ('forward', 'node_groups', 'edge_groups'):
    entry(
        f'transforms.Division.{name}',
        lambda: (transforms.Division(3, seed=0), {'data': data()}),
        names=NAMES,
        data=NAMED,
    )
entry(
    'transforms.Division.view',
    lambda: (transforms.Division(3, seed=0), {'data': data(), 'number': 1}),
    names=NAMES,
    data=NAMED,
    number=integer(0, 2),
)

# Smoothing ###################################################################


@functools.cache
def model() -> Any:
    torch.manual_seed(0)
    return GCNConv(4, 3)


def noise(**pairs: Any) -> Any:
    return certificates.BitFlips(**(pairs or BOTH))


FEW = {'num_samples': 300, 'num_selection': 5, 'per': 'node', 'seed': 0}


@functools.cache
def smoothed() -> Any:
    return certificates.certify(
        model(), data(), noise(), **{**FEW, 'per': 'all'}
    )


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(4, 3, cached=True)


BUDGETS = {'edges': RADIUS, 'features': RADIUS}
SMOOTHED: dict[str, Any] = {
    'num_samples': values(
        0, -1, 0.5, 'many', None, True, [], [5, 5], [0, 3], 2
    ),
    'num_selection': integer(1),
    'confidence': number(0, 1),
    'per': choice(),
    'classes': choice(),
    'targets': values(
        3,
        'all',
        [0],
        torch.tensor([0.5]),
        torch.tensor([N]),
        torch.tensor([-1]),
        torch.tensor([0, 0]),
        torch.ones(3).bool(),
        torch.tensor([]).long(),
    ),
    'until': values(
        3, 'x', {'nodes': (0, 1)}, {'edges': 3}, {'edges': (-1, 0)}
    ),
    'transform': values(3, 'x', [1]),
    'forward': values(3, 'x', [1]),
    'batch_size': integer(1, none=True),
    'sparse_x': FLAG,
    'sparse_adj': FLAG,
    'over_ranks': FLAG,
    'tolerance': NOT_NEGATIVE,
}
entry(
    'certificates.certify_smoothed',
    lambda: {'model': model(), 'data': data(), 'threat': noise(), **FEW},
    Row('sparse', {'sparse_x': True, 'transform': len}, "'sparse_x'"),
    Row('cached', {'model': Cached()}, "'model'"),
    Row('no graph', {'data': []}, "'data'"),
    Row('a list of none', {'data': [None]}, "'data'"),
    names={'data': "'(data|x|edge_index|graph)'"},
    data=NOISY,
    **SMOOTHED,
)
entry(
    'certificates.certified_after',
    lambda: {
        'certificate': smoothed(),
        'model': model(),
        'before': data(),
        'now': data(),
    },
    certificate=instance(),
    model=instance(),
    before=instance(),
    now=instance(),
    **BUDGETS,
)
EXEMPT['certificates.SmoothedCertificate'] = RESULT
EXEMPT['certificates.UserCertificate'] = RESULT
entry(
    'certificates.SmoothedCertificate.certified',
    lambda: (smoothed(), {}),
    **BUDGETS,
)
entry(
    'certificates.SmoothedCertificate.answered',
    lambda: (smoothed(), {}),
    **BUDGETS,
)
entry(
    'certificates.SmoothedCertificate.certified_ratio',
    lambda: (smoothed(), {}),
    **BUDGETS,
)
LABELS = values(
    3,
    'x',
    None,
    [0],
    torch.zeros(N),
    torch.zeros(2).long(),
    torch.zeros(N, 1).long(),
)
entry(
    'certificates.SmoothedCertificate.certified_accuracy',
    lambda: (smoothed(), {'labels': torch.zeros(N).long()}),
    labels=LABELS,
    **BUDGETS,
)
entry(
    'certificates.SmoothedCertificate.radii',
    lambda: (smoothed(), {'limit': 2}),
    kind=choice(),
    limit=integer(0),
)
entry(
    'certificates.SmoothedClassifier',
    lambda: {'model': model(), 'noise': noise()},
    Row('an option', {'samples': 3}, "'samples'"),
)
for name in ('forward', 'certify'):
    entry(
        f'certificates.SmoothedClassifier.{name}',
        lambda: (
            certificates.SmoothedClassifier(model(), noise(), **FEW),
            {'data': data()},
        ),
        names=DATA_NAMES,
        data=NOISY,
    )
entry(
    'certificates.plot_certified_grid',
    lambda: {'report': smoothed(), 'limit': 1},
    needs='matplotlib',
    kind=choice(),
    ax=values(3, 'x'),
)

# All at once #################################################################


@functools.cache
def for_all() -> Any:
    quiet = noise(edges=(0.0, 0.3), features=(0.1, 0.2))
    return certificates.certify(
        model(), data(), quiet, num_samples=400, num_selection=5, seed=0
    )


EXEMPT['certificates.CollectiveCertificate'] = RESULT
entry(
    'certificates.certify_collective',
    lambda: {
        'report': for_all(),
        'model': model(),
        'data': data(),
        'hops': 2,
        'features': (1, 0),
    },
    Row('rows that stay', {'features': (0, 0), 'attackers': 1}, 'attackers'),
    Row('other data', {'data': HALF}, "'model' and 'data'"),
    data=values(None, 3, 'graph', undirected(N), HeteroData()),
    labels=values(3, 'x', [0], torch.zeros(N), torch.zeros(2).long()),
    forward=values(3, 'x', [1]),
    **BUDGETS,
)

# Ranks #######################################################################


def one_flip(**change: Any) -> Any:
    options = {'global_budget': 1, 'undirected': True, **change}
    return certificates.ThreatModel(data(), **options)


@functools.cache
def ranks() -> Any:
    return certificates.certify_ranks(
        data(), torch.tensor([0]), one_flip(), k=1
    )


EXEMPT['certificates.RankCertificate'] = RESULT
entry(
    'certificates.certify_ranks',
    lambda: {
        'graph': data(),
        'users': torch.tensor([0]),
        'threat': one_flip(),
        'k': 1,
        'items': torch.arange(N),
    },
    Row('too many', {'k': N}, "'k'"),
    Row('another graph', {'graph': ONE_WAY}, "'graph'"),
    Row('some items', {'items': torch.tensor([1, 2])}, "'items'"),
    Row('no budget', {'threat': one_flip(global_budget=None)}, "'threat'"),
    users=values(None, 3, 'x', [0], torch.zeros(2), torch.tensor([N])),
    items=values(3, 'x', [0], torch.zeros(2), torch.tensor([N])),
    k=integer(1),
    tolerance=values('a', None, [1], -1.0, math.nan),
)
entry(
    'certificates.RankCertificate.verify',
    lambda: (ranks(), {'witness': ranks().proof}),
    witness=instance(none=True),
)

# Votes #######################################################################


def divided() -> Any:
    return certificates.Divided(model(), 3, seed=0)


@functools.cache
def exact() -> Any:
    net = PPNP(torch.nn.Linear(data().x.size(1), 2), K=2)
    threat = certificates.ThreatModel(data(), local_budget=1)
    return certificates.certify(net, data(), threat)


@functools.cache
def field() -> Any:
    return certificates.certify_collective(
        for_all(), model(), data(), hops=2, features=(1, 0)
    )


@functools.cache
def voted() -> Any:
    return divided().certify(data())


entry(
    'certificates.Divided',
    lambda: {'model': model(), 'num_groups': 3},
    Row('cached', {'model': Cached()}, "'model'"),
    transform=values(3, 'x', [1]),
)
VIEWED = either(NAMED, values([], data(x=None), data(x=torch.ones(3, 4))))
entry(
    'certificates.Divided.forward',
    lambda: (divided(), {'data': data()}),
    names=NAMES,
    data=VIEWED,
)
entry(
    'certificates.Divided.certify',
    lambda: (divided(), {'data': data()}),
    names=NAMES,
    data=VIEWED,
    since=values(3, (), (3, data()), (None, data())),
)
EXEMPT['certificates.VoteCertificate'] = RESULT
for name in ('certified', 'certified_ratio', 'certified_accuracy'):
    entry(
        f'certificates.VoteCertificate.{name}',
        lambda name=name: (
            voted(),
            {
                'changes': 1,
                **(
                    {'labels': torch.zeros(N).long()}
                    if 'accuracy' in name
                    else {}
                ),
            },
        ),
        Row('rows', {'rows': 1}, "'rows'"),
        changes=integer(0),
        rows=integer(0),
        **({'labels': LABELS} if 'accuracy' in name else {}),
    )
entry(
    'certificates.plot_certified_votes',
    lambda: {'certificate': voted(), 'labels': torch.zeros(N).long()},
    needs='matplotlib',
    labels=LABELS,
    label=values(3, ['a']),
    ax=values(3, 'x'),
)

CALLABLE = values(3, 'x', [1])
for name, made in (
    ('Certificate', exact),
    ('SmoothedCertificate', smoothed),
    ('CollectiveCertificate', field),
    ('VoteCertificate', voted),
):
    entry(
        f'certificates.{name}.speaks_of',
        lambda made=made: (made(), {'model': model()}),
        model=instance(),
        transform=CALLABLE,
        forward=CALLABLE,
    )

# Shards ######################################################################


@functools.cache
def shards() -> Any:
    made = data(
        train_mask=torch.ones(N).bool(), y=torch.tensor([0, 1, 0, 1, 0, 1])
    )
    made.x = made.x + 0.0
    return unlearning.ShardedUnlearner(
        lambda: GCNConv(4, 2),
        2,
        aggregator='majority',
        num_classes=2,
        epochs=1,
        trainer='sequential',
        seed=1,
    ).fit(made)


@functools.cache
def poisoned() -> Any:
    return shards().certify()


NODES = values('a', [0.5], [-1], [N], torch.tensor([0.5]), [True])
entry(
    'unlearning.ShardedUnlearner.certify',
    lambda: (shards(), {'nodes': [0]}),
    names={'nodes': "'nodes'|node"},
    nodes=NODES,
    inference=choice(),
)
EXEMPT['unlearning.PoisonCertificate'] = RESULT
for name in ('certified', 'certified_ratio', 'certified_accuracy'):
    entry(
        f'unlearning.PoisonCertificate.{name}',
        lambda name=name: (
            poisoned(),
            {
                'nodes': 1,
                **(
                    {'labels': torch.zeros(N).long()}
                    if 'accuracy' in name
                    else {}
                ),
            },
        ),
        nodes=integer(0),
        **({'labels': LABELS} if 'accuracy' in name else {}),
    )
entry(
    'unlearning.PoisonCertificate.survives',
    lambda: (poisoned(), {'suspects': [0]}),
    names={'suspects': "'suspects'|node"},
    suspects=either(NODES, values(None, 3.5)),
)
entry(
    'unlearning.PoisonCertificate.collective',
    lambda: (poisoned(), {'shards': 1}),
    names={'shards': "'(shards|corrupted)'"},
    shards=integer(0, 2),
    max_sets=COUNT,
)

entry(
    'certificates.Certificate.verify',
    lambda: (exact(), {'witness': exact().proof}),
    witness=instance(none=True),
)
entry(
    'certificates.Witness',
    lambda: {'arrays': dict(exact().proof.arrays)},
    arrays=values(3, 'x', None, [1], {'a': 1}),
)


EXEMPT['certificates.Witness.of'] = 'made by what certifies'
entry(
    'certificates.Witness.prove',
    lambda: (exact().proof, {'most': 1e9}),
    most=values('a', None, [1], True, math.nan),
)
entry(
    'certificates.CollectiveCertificate.verify',
    lambda: (field(), {'witness': field().proof}),
    witness=instance(none=True),
)


def witness_file() -> Any:
    path = temporary('new.npz')
    exact().proof.save(path)
    return path


entry(
    'certificates.Witness.save',
    lambda: (exact().proof, {'path': temporary('new.npz')}),
    path=PATH,
)
entry('certificates.Witness.load', lambda: {'path': witness_file()}, path=PATH)
