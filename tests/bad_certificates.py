"""Bad inputs of certificates for any model."""

import functools
import math
from typing import Any

import torch
from bad_ground import COUNT
from bad_inputs import FLAG, bad, choice, integer, undirected, values
from bad_table import entry
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

from pyg_trust import certificates

N = 6
NOISE = values(
    *(None, 0.5, 'half', (0.1,), (0.1, 0.2, 0.3), (-0.1, 0.2), (0.5, 0.5)),
    *((0.7, 0.6), ('a', 0.1), (math.nan, 0.1), (True, 0.1)),
)
RADIUS = values(
    *(None, 3, 'one', (1,), (1, 2, 3), (-1, 0), (0, -1), (0.5, 0)),
    *(('a', 0), (True, 0)),
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


entry('ops.flip_bits', bits, bad(num_cols=3), bad(num_samples=2**30))

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
        *(None, 3, 'graph', undirected(N), HeteroData()),
        *(data(edge_index=None), data(edge_index=far)),
        *(data(edge_index=undirected(N).double()), *more),
    )


HALF = data(x=torch.full((N, 4), 0.5))
ONE_WAY = data(edge_index=torch.tensor([[0, 1], [1, 2]]))
TWICE = data(edge_index=undirected(N).repeat(1, 2))
ATTRIBUTES = data(edge_attr=torch.ones(14))
NOISY = bad_graphs(HALF, ONE_WAY, TWICE, ATTRIBUTES, data(x=None))
BOTH = {'edges': (0.0, 0.3), 'features': (0.1, 0.2)}
for name in ('transforms.FlipBits', 'certificates.BitFlips'):
    entry(
        name,
        lambda: dict(BOTH),
        bad(edges=(0, 0), features=(0, 0)),
        edges=NOISE,
        features=NOISE,
        directed=FLAG,
    )
entry(
    'transforms.Division',
    lambda: {'num_groups': 3},
    bad('unit', by='owners'),
    num_groups=COUNT,
    by=choice(),
)

# Smoothing ###################################################################


@functools.cache
def model() -> Any:
    torch.manual_seed(0)
    return GCNConv(4, 3)


def noise(**pairs: Any) -> Any:
    return certificates.BitFlips(**(pairs or BOTH))


FEW = {'num_samples': 300, 'num_selection': 5, 'per': 'node', 'seed': 0}


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(4, 3, cached=True)


entry(
    'certificates.certify_smoothed',
    lambda: {'model': model(), 'data': data(), 'threat': noise(), **FEW},
    bad(sparse_x=True, transform=len),
    bad(model=Cached()),
    bad(data=[]),
    bad(data=[None]),
    names={'data': "'(data|x|edge_index|graph)'"},
    data=NOISY,
    num_samples=values(2),
    nodes=values(
        *(3, 'all', ['a'], torch.ones(3).bool(), torch.tensor([]).long()),
        *map(torch.tensor, ([0.5], [N], [-1], [0, 0])),
    ),
)
WRONG = (3, 'x', [0], torch.zeros(N), torch.zeros(2).long())
LABELS = values(*WRONG, None, torch.zeros(N, 1).long())
entry(
    'certificates.SmoothedClassifier',
    lambda: {'model': model(), 'noise': noise()},
    bad(samples=3),
)

# All at once #################################################################


@functools.cache
def for_all() -> Any:
    quiet = noise(edges=(0.0, 0.3), features=(0.1, 0.2))
    return certificates.certify(
        model(), data(), quiet, num_samples=400, num_selection=5, seed=0
    )


entry(
    'certificates.certify_collective',
    lambda: {
        'report': for_all(),
        'model': model(),
        'data': data(),
        'K': 2,
        'features': (1, 0),
    },
    bad(r'\battackers', features=(0, 0), attackers=1),
    bad("'model' and 'data'", data=HALF),
    labels=values(*WRONG),
    edges=RADIUS,
    features=RADIUS,
)

# Ranks #######################################################################


def one_flip(**change: Any) -> Any:
    options = {'global_budget': 1, 'undirected': True, **change}
    return certificates.ThreatModel(data(), **options)


entry(
    'certificates.certify_ranks',
    lambda: {
        'graph': data(),
        'users': torch.tensor([0]),
        'threat': one_flip(),
        'k': 1,
        'items': torch.arange(N),
    },
    bad(k=N),
    bad(graph=ONE_WAY),
    bad(items=torch.tensor([1, 2])),
    bad(threat=one_flip(global_budget=None)),
    users=values(None, 3, 'x', ['a'], torch.zeros(2), torch.tensor([N])),
    items=values(3, 'x', ['a'], torch.zeros(2), torch.tensor([N])),
)

# Votes #######################################################################


def divided() -> Any:
    return certificates.Divided(model(), 3, seed=0)


@functools.cache
def voted() -> Any:
    return divided().certify(data())


entry(
    'certificates.Divided',
    lambda: {'model': model(), 'num_groups': 3},
    bad(model=Cached()),
)
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
        bad(rows=1),
        changes=integer(0),
        rows=integer(0),
        **({'labels': LABELS} if 'accuracy' in name else {}),
    )
