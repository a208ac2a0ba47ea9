"""Bad inputs of layers, transforms, loaders and certificates."""

from typing import Any

import numpy as np
import torch
from bad_ground import LOGITS, NOT_NEGATIVE, SHARD, N, plain_data, rand
from bad_inputs import (
    any_graph,
    bad,
    choice,
    csr,
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
from bad_table import entry
from torch_geometric.data import Data

from pyg_trust import agp as F
from pyg_trust import certificates, loader, nn, sampler, transforms
from pyg_trust.sampler.walks import DisjointWalks

# Layers ######################################################################

NO_FLOATS = (torch.int64, torch.bool)
EDGE_GRAPH = {
    'edge_index': "'(graph|edge_index|data)'",
    'graph': "'(graph|edge_index)'",
}
WEIGHTED = (
    bad(edge_weight=torch.ones(13)),
    bad(edge_weight=torch.ones(14).long()),
    bad(edge_weight=[1.0] * 14),
    bad('edge_weight', edge_index=csr(), edge_weight=torch.ones(14)),
)
entry(
    'nn.SGConv',
    lambda: {'in_channels': 2, 'out_channels': 3},
    bad(eps=0.1, half=True),
)
entry(
    'nn.SGConv.forward',
    lambda: (
        nn.SGConv(2, 3, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    *WEIGHTED,
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(rows=False, columns=True, finite=False, dtypes=NO_FLOATS),
    edge_index=any_graph(),
)
entry(
    'nn.APPNP',
    lambda: {'K': 2, 'alpha': 0.2},
    bad(eps=0.1, tol=0.1),
    bad('dropout', half=True, dropout=0.5),
    bad('normalize', half=True, normalize=False),
)
entry(
    'nn.APPNP.forward',
    lambda: (
        nn.APPNP(2, 0.2, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    *WEIGHTED,
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(rows=False, finite=False, dtypes=NO_FLOATS),
    edge_index=any_graph(),
)
entry(
    'nn.LabelPropagation',
    lambda: {'num_classes': 3},
    bad(num_classes=None),
    bad('alpha', num_classes=None, num_layers=2),
    bad('K', num_classes=None, num_layers=2, alpha=0.5, K=2),
    num_layers=values(-1, 2.5, True, 2),
    num_classes=integer(2, none=True),
    alpha=number(0, 1, none=True),
)


entry(
    'nn.ShardAggregator.fit',
    lambda: (
        nn.AttentiveAggregator(epochs=1, recon_weight=0.1),
        {
            'outputs': torch.linspace(-1, 1, 36).view(3, N, 2),
            'y': torch.tensor([0, 1, 0, 1, 0, 1]),
            'index': torch.tensor([0, 1, 2, 3]),
            'edge_index': undirected(),
            'shard': torch.tensor([0, 1, 2, 0, -1, -1]),
            'seed': 0,
        },
    ),
    bad(edge_index=None),
    bad(shard=None),
    bad(index=torch.tensor([0, 0])),
    outputs=tensor(rows=False),
    y=tensor(rows=True),
    index=tensor(rows=False, low=0, high=N - 1, empty=True),
    shard=tensor(none=True),
)


entry(
    'nn.make_aggregator',
    lambda: {'name': 'lbaggr', 'epochs': 3},
    bad(r'\balpha', alpha=1),
    bad('epochs', name=nn.MeanAggregator()),
    bad(epochs=0),
)


# Transforms ##################################################################

MEASURE_ROWS = (bad(alpha=None), bad('alpha', measure=F.ppr(0.2)))
entry(
    'transforms.AGP',
    lambda: {'measure': 'appnp', 'alpha': 0.2},
    *MEASURE_ROWS,
    bad(eps=0.1, half=True),
    bad('out', eps=0.1, out='z.npy'),
    bad(over_ranks=True),
    measure=choice(),
)


def agp() -> Any:
    return transforms.AGP('appnp', alpha=0.2, K=2)


FEATURE_ROWS = (
    bad('x', data=plain_data(x=None)),
    bad('x', data=plain_data(x=torch.ones(N, 2).long())),
    bad('x', data=plain_data(x=torch.full((N, 2), np.nan))),
)
for name in ('forward', 'guarantee'):
    entry(
        f'transforms.AGP.{name}',
        lambda: (agp(), {'data': plain_data()}),
        *FEATURE_ROWS,
        bad('graph', data=plain_data(edge_index=undirected()[:, :7])),
    )
entry(
    'transforms.GDC',
    lambda: {'measure': 'appnp', 'alpha': 0.2, 'top_k': 2},
    *MEASURE_ROWS,
    bad(top_k=None),
    names={'measure': "'(measure|alpha)'"},
    top_k=integer(1),
    threshold=NOT_NEGATIVE,
    normalization=choice(none=True),
    alpha=number(0, 1, closed='high', none=True),
    t=number(0, none=True),
    beta=number(0, none=True),
    tol=number(0, 1, none=True),
)
entry(
    'transforms.GDC.forward',
    lambda: (
        transforms.GDC('appnp', alpha=0.2, top_k=2),
        {'data': plain_data()},
    ),
    bad('edge_attr', data=plain_data(edge_attr=torch.ones(14, 1))),
)


def scattering() -> Any:
    return transforms.GraphScattering(J=2, Q=2, L=2)


def unit_data() -> Data:
    return plain_data(x=torch.linspace(-1, 1, 12).view(N, 2))


for name, rows, kinds in (
    ('forward', (), {}),
    (
        'embed',
        (bad(data=[unit_data(), 3]), bad(data=[])),
        {'dtype': values(3, 'float32', torch.int64, float, torch.float16)},
    ),
    ('signal', (), {'data': data(edges=False)}),
):
    entry(
        f'transforms.GraphEmbedding.{name}',
        lambda: (scattering(), {'data': unit_data()}),
        *(*FEATURE_ROWS, bad('x', data=plain_data()), *rows),
        **kinds,
    )
entry(
    'transforms.Shards',
    lambda: {'num_shards': 2, 'method': 'bekm', 'embedding': 'z'},
    bad(alpha=1),
    bad('embedding', method='hash'),
)


entry(
    'transforms.Shards.forward',
    lambda: (
        transforms.Shards(2, 'blpa', seed=0),
        {'data': plain_data(train_mask=torch.arange(N) < 4)},
    ),
    bad('train_mask', data=plain_data()),
    bad('train_mask', data=plain_data(train_mask=torch.ones(2).bool())),
    bad('num_shards', data=plain_data(train_mask=torch.arange(N) < 1)),
)

# Samplers and loaders ########################################################


def walk_sampler() -> Any:
    return sampler.DisjointWalkSampler(plain_data(), 2, seed=0)


entry(
    'sampler.DisjointWalkSampler.sample_walks',
    lambda: (walk_sampler(), {'walks': walk_sampler().partition()}),
    bad(
        "'walks", walks=DisjointWalks(torch.tensor([0, 1]), torch.tensor([N]))
    ),
    bad(
        "'walks",
        walks=DisjointWalks(torch.tensor([0, 2]), torch.tensor([0, 0])),
    ),
    input_id=values(3, 'a', [1], torch.tensor([0.5]), torch.zeros(99).long()),
)
OWN = bad(shuffle=True)
entry(
    'loader.DisjointWalkLoader',
    lambda: {
        'data': plain_data(),
        'batch_size': 1,
        'walk_length': 2,
        'input_nodes': torch.tensor([0, 2]),
    },
    OWN,
    bad(batch_size=99, seed=0),
    input_nodes=ids(empty=True),
)


def walk_loader() -> Any:
    return loader.DisjointWalkLoader(plain_data(), 1, 2, seed=0)


entry(
    'loader.EgoLoader',
    lambda: {
        'data': plain_data(),
        'batch_size': 2,
        'num_hops': 1,
        'max_degree': 3,
        'input_nodes': torch.tensor([0, 2]),
    },
    OWN,
    bad('data', max_degree=2),
    input_nodes=ids(empty=True),
)


entry(
    'loader.GraphLoader',
    lambda: {'data': [plain_data(), plain_data()], 'batch_size': 2},
    OWN,
    bad(data=[plain_data(), Data(num_nodes=0)]),
    bad(neighboring='add_remove'),
    bad('sample_rate', neighboring='add_remove', sampling='poisson'),
    data=values(3, None, 'a', plain_data(), [3, 4], [plain_data(), None]),
)
entry(
    'loader.ShardLoader',
    lambda: {'data': plain_data(), 'shard': SHARD, 'num_shards': 3},
    bad('shard', num_shards=4),
    bad(shard=None),
    bad(collate_fn=print),
    bad(shard=torch.full((N,), -1)),
    shard=tensor(high=2),
)

# Certificates ################################################################


def threat() -> Any:
    return certificates.ThreatModel(csr(), local_budget=1)


def certificate() -> Any:
    logits = torch.arange(12, dtype=torch.float64).view(N, 2).sin()
    return certificates.certify(logits, threat())


CERTIFICATE = certificate()
BROKEN = int(CERTIFICATE.targets[CERTIFICATE.broken][0])
ROBUST = int(CERTIFICATE.targets[CERTIFICATE.robust][0])
entry(
    'certificates.Certificate.witness',
    lambda: (certificate(), {'node': BROKEN}),
    bad('has no witness', node=ROBUST),
    names={'node': 'node'},
    node=integer(high=N - 1),
)
entry(
    'certificates.RobustLoss',
    lambda: {'threat': threat()},
    bad(threat=certificates.ThreatModel(csr(), global_budget=1)),
)
entry(
    'certificates.RobustLoss.forward',
    lambda: (
        certificates.RobustLoss(threat(), kind='cem'),
        {
            'logits': rand(N, 2),
            'y': torch.tensor([0, 1, 0, 1, 0, 1]),
            'nodes': torch.tensor([2, 3]),
            'pseudo': torch.tensor([0, -1, -1, 0, -1, 1]),
        },
    ),
    bad(pseudo=torch.tensor([-1, -1, 0, 1, -1, -1])),
    logits=LOGITS,
    y=tensor(low=None),
    nodes=either(values(3, 'a', [N], [0.5], torch.ones(3).bool()), ids()),
    pseudo=tensor(low=-1, high=1, none=True),
)
PAIRS = values(*map(torch.tensor, ([[0.5], [1.0]], [0, 1], [[0], [N]])))
entry(
    'certificates.ThreatModel',
    lambda: {
        'graph': undirected(),
        'fragile': torch.tensor([[0, 0], [1, 3]]),
        'fixed': torch.tensor([[1], [2]]),
        'local_budget': torch.ones(N).long(),
        'global_budget': 3,
        'num_nodes': N,
    },
    bad(strength=3),
    bad(fixed=torch.tensor([[0], [1]])),
    bad(fixed=torch.tensor([[0], [3]])),
    bad(fixed=torch.tensor([[1, 1], [2, 2]])),
    bad(fixed='mst'),
    bad(fragile=torch.tensor([[0, 0], [1, 1]])),
    fragile=either(choice(), PAIRS),
    fixed=either(choice(none=True), PAIRS),
    local_budget=either(
        integer(0, none=True), values(-torch.ones(N).long(), torch.ones(N))
    ),
)


def deployed() -> dict[str, Any]:
    data = Data(x=rand(N, 2).float(), edge_index=undirected(), num_nodes=N)
    return {
        'model': nn.PPNP(torch.nn.Linear(2, 3)),
        'data': data,
        'threat': certificates.ThreatModel(data, local_budget=1),
    }


entry(
    'certificates.certify',
    deployed,
    bad(samples=3),
    bad(alpha=0.2),
    bad(threat=None),
    data=instance(),
)
entry(
    'certificates.certify_pagerank',
    lambda: {
        'model': rand(N, 2),
        'data': None,
        'threat': threat(),
        'nodes': torch.tensor([0, 3]),
        'reference': torch.zeros(N).long(),
    },
    names={'model': "'(model|logits)'"},
    model=LOGITS,
    data=values(3, 'data', plain_data()),
    nodes=ids(),
    reference=tensor(low=0, high=1, none=True),
)
