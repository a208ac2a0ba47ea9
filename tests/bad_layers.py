"""Bad inputs of layers, transforms, loaders and certificates."""

from typing import Any

import numpy as np
import torch
from bad_functional import (
    EPS,
    LOGITS,
    NOT_NEGATIVE,
    N,
    rand,
    shard,
)
from bad_ground import DATA, DATA_NAMES, plain_data
from bad_inputs import (
    FLAG,
    Row,
    any_graph,
    choice,
    csr,
    data,
    edge_indices,
    either,
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
from pyg_trust import (
    certificates,
    loader,
    nn,
    sampler,
    transforms,
)
from pyg_trust.sampler.walks import DisjointWalks

# Layers ######################################################################

CHANNELS = integer(1)
EDGE_GRAPH = {
    'edge_index': "'(graph|edge_index|data)'",
    'graph': "'(graph|edge_index)'",
}
WEIGHTED = tuple(
    Row(f'weights: {name}', {'edge_weight': weight}, "'edge_weight'")
    for name, weight in (
        ('too few', torch.ones(13)),
        ('integers', torch.ones(14, dtype=torch.int64)),
        ('two dimensions', torch.ones(14, 2)),
        ('a list', [1.0] * 14),
    )
)
WEIGHTED = (
    *WEIGHTED,
    Row(
        'weights twice',
        {'edge_index': csr(), 'edge_weight': torch.ones(14)},
        "'edge_weight'",
    ),
)
entry(
    'nn.SGConv',
    lambda: {'in_channels': 2, 'out_channels': 3},
    Row('two ways', {'eps': 0.1, 'half': True}, "'eps'"),
)
entry(
    'nn.SGConv.forward',
    lambda: (
        nn.SGConv(2, 3, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    *WEIGHTED,
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(
        rows=False,
        columns=True,
        finite=False,
        dtypes=(torch.int64, torch.bool),
    ),
    edge_index=any_graph(),
)
entry(
    'nn.APPNP',
    lambda: {'K': 2, 'alpha': 0.2},
    Row('two ways', {'eps': 0.1, 'tol': 0.1}, "'eps'"),
    Row('dropout', {'half': True, 'dropout': 0.5}, "'dropout'"),
    Row('normalize', {'half': True, 'normalize': False}, "'normalize'"),
)
entry(
    'nn.APPNP.forward',
    lambda: (
        nn.APPNP(2, 0.2, eps=0.0),
        {'x': torch.ones(N, 2), 'edge_index': undirected()},
    ),
    *WEIGHTED,
    names={**EDGE_GRAPH, 'x': "'(x|edge_index)'"},
    x=tensor(rows=False, finite=False, dtypes=(torch.int64, torch.bool)),
    edge_index=any_graph(),
)
STEPS = integer(0, none=True)
entry(
    'nn.LabelPropagation',
    lambda: {'num_classes': 3},
    Row('neither', {'num_classes': None}, "'num_classes'"),
    Row('no share', {'num_classes': None, 'num_layers': 2}, "'alpha'"),
    Row(
        'steps twice',
        {'num_classes': None, 'num_layers': 2, 'alpha': 0.5, 'K': 2},
        "'K'",
    ),
    num_layers=values(-1, 2.5, True, 2),
    num_classes=integer(2, none=True),
    alpha=number(0, 1, none=True),
    K=STEPS,
)


def examples() -> dict[str, Any]:
    return {
        'outputs': torch.linspace(-1, 1, 36).view(3, N, 2),
        'y': torch.tensor([0, 1, 0, 1, 0, 1]),
        'index': torch.tensor([0, 1, 2, 3]),
        'edge_index': undirected(),
        'shard': torch.tensor([0, 1, 2, 0, -1, -1]),
        'num_classes': 2,
        'seed': 0,
    }


entry(
    'nn.ShardAggregator.fit',
    lambda: (nn.AttentiveAggregator(epochs=1, recon_weight=0.1), examples()),
    Row('no edges', {'edge_index': None}, "'edge_index'"),
    Row('no shards', {'shard': None}, "'shard'"),
    Row('twice', {'index': torch.tensor([0, 0])}, "'index'"),
    names={'outputs': "'(outputs|y)'", 'num_classes': "'(num_classes|y)'"},
    outputs=tensor(rows=False),
    y=tensor(rows=True),
    index=tensor(rows=False, low=0, high=N - 1, empty=True),
    edge_index=edge_indices(N, none=True),
    shard=tensor(none=True),
    num_classes=integer(2, none=True),
)


entry(
    'nn.make_aggregator',
    lambda: {'name': 'lbaggr', 'epochs': 3},
    Row('foreign', {'alpha': 1}, 'alpha'),
    Row('of another', {'name': nn.MeanAggregator()}, "'epochs'"),
    Row('bad', {'epochs': 0}, "'epochs'"),
    name=choice(),
)


# Transforms ##################################################################

MEASURE = {
    'measure': choice(),
    'alpha': number(0, 1, closed='high', none=True),
    't': number(0, none=True),
    'beta': number(0, none=True),
    'levels': integer(0, none=True),
    'tol': number(0, 1, none=True),
    'eps': EPS,
}
MEASURE_ROWS = (
    Row('no alpha', {'alpha': None}, "'alpha'"),
    Row('none taken', {'measure': F.ppr(0.2)}, "'alpha'"),
)
NAME = values(3, None, ['x'])
MAYBE_NAME = values(3, ['x'])
entry(
    'transforms.AGP',
    lambda: {'measure': 'appnp', 'alpha': 0.2},
    *MEASURE_ROWS,
    Row('two ways', {'eps': 0.1, 'half': True}, "'eps'"),
    Row('no estimate to a file', {'eps': 0.1, 'out': 'z.npy'}, "'out'"),
    Row('ranks without a file', {'over_ranks': True}, "'over_ranks'"),
    columns=values(0, -1, 2.5, None, 'all', True),
    memory=values(0, -1, 2.5, 'lots', True),
    **MEASURE,
)


def agp() -> Any:
    return transforms.AGP('appnp', alpha=0.2, levels=2)


def changed_data(**attributes: Any) -> Data:
    made = plain_data()
    made.update(attributes)
    return made


FEATURE_ROWS = (
    Row('no features', {'data': changed_data(x=None)}, "'x'"),
    Row('integers', {'data': changed_data(x=torch.ones(N, 2).long())}, "'x'"),
    Row('NaN', {'data': changed_data(x=torch.full((N, 2), np.nan))}, "'x'"),
)
entry(
    'transforms.AGP.forward',
    lambda: (agp(), {'data': plain_data()}),
    *FEATURE_ROWS,
    Row(
        'directed',
        {'data': changed_data(edge_index=undirected()[:, :7])},
        "'graph'",
    ),
    names=DATA_NAMES,
    data=DATA,
)
entry(
    'transforms.AGP.guarantee',
    lambda: (agp(), {'data': plain_data()}),
    *FEATURE_ROWS,
    names=DATA_NAMES,
    data=DATA,
)
entry(
    'transforms.GDC',
    lambda: {'measure': 'appnp', 'alpha': 0.2, 'top_k': 2},
    *MEASURE_ROWS,
    Row('dense', {'top_k': None}, "'top_k'"),
    names={'measure': "'(measure|alpha)'"},
    top_k=integer(1),
    threshold=NOT_NEGATIVE,
    normalization=choice(none=True),
    method=choice(),
    **MEASURE,
)
entry(
    'transforms.GDC.forward',
    lambda: (
        transforms.GDC('appnp', alpha=0.2, top_k=2),
        {'data': plain_data()},
    ),
    Row(
        'edge attributes',
        {'data': changed_data(edge_attr=torch.ones(14, 1))},
        "'edge_attr'",
    ),
    names=DATA_NAMES,
    data=DATA,
)
DTYPES = values(3, 'float32', torch.int64, float, torch.float16)


def scattering(**arguments: Any) -> Any:
    return transforms.GraphScattering(J=2, Q=2, L=2, **arguments)


def unit_data() -> Data:
    return changed_data(x=torch.linspace(-1, 1, 12).view(N, 2))


UNIT_ROWS = (
    *FEATURE_ROWS,
    Row('too large', {'data': plain_data()}, "'x'"),
)
entry(
    'transforms.GraphEmbedding.forward',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    names=DATA_NAMES,
    data=DATA,
)
entry(
    'transforms.GraphEmbedding.embed',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    Row('a list', {'data': [unit_data(), 3]}, "'data'"),
    Row('none', {'data': []}, "'data'"),
    names=DATA_NAMES,
    data=DATA,
    dtype=DTYPES,
    sparse=FLAG,
)
entry(
    'transforms.GraphEmbedding.signal',
    lambda: (scattering(), {'data': unit_data()}),
    *UNIT_ROWS,
    names=DATA_NAMES,
    data=data(edges=False),
    dtype=DTYPES,
)
entry(
    'transforms.Shards',
    lambda: {'num_shards': 2, 'method': 'bekm', 'embedding': 'z'},
    Row('foreign', {'alpha': 1}, "'alpha'"),
    Row('no embedding', {'method': 'hash'}, "'embedding'"),
    method=choice(),
)


def masked_data(**attributes: Any) -> Data:
    mask = torch.tensor([True, True, True, True, False, False])
    return changed_data(**{'train_mask': mask, **attributes})


entry(
    'transforms.Shards.forward',
    lambda: (
        transforms.Shards(2, 'blpa', seed=0),
        {'data': masked_data()},
    ),
    Row('no mask', {'data': plain_data()}, "'train_mask'"),
    Row(
        'a short mask',
        {'data': masked_data(train_mask=torch.ones(2).bool())},
        "'train_mask'",
    ),
    Row(
        'too few',
        {'data': masked_data(train_mask=torch.arange(N) < 1)},
        "'num_shards'",
    ),
    names=DATA_NAMES,
    data=data(),
)

# Samplers and loaders ########################################################

WHETHER = values(3, 'a', None)


def walk_sampler() -> Any:
    return sampler.DisjointWalkSampler(plain_data(), 2, seed=0)


entry(
    'sampler.DisjointWalkSampler.sample_walks',
    lambda: (walk_sampler(), {'walks': walk_sampler().partition()}),
    Row(
        'an unknown node',
        {'walks': DisjointWalks(torch.tensor([0, 1]), torch.tensor([N]))},
        "'walks",
    ),
    Row(
        'twice',
        {'walks': DisjointWalks(torch.tensor([0, 2]), torch.tensor([0, 0]))},
        "'walks",
    ),
    input_id=values(3, 'a', [1], torch.tensor([0.5]), torch.zeros(99).long()),
)
OPTIONS = {
    'input_nodes': tensor(
        rows=False,
        low=0,
        high=N - 1,
        none=True,
        empty=True,
        dtypes=(torch.float32,),
        numbers=True,
    ),
    'num_steps': integer(1, none=True),
    'along': FLAG,
}
OWN = Row('choosing batches', {'shuffle': True}, "'shuffle'")
entry(
    'loader.DisjointWalkLoader',
    lambda: {
        'data': plain_data(),
        'batch_size': 1,
        'walk_length': 2,
        'input_nodes': torch.tensor([0, 2]),
    },
    OWN,
    Row('too many', {'batch_size': 99, 'seed': 0}, "'batch_size'"),
    names={**DATA_NAMES, 'input_nodes': "'(input_nodes|roots)'"},
    data=DATA,
    **OPTIONS,
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
    Row('degrees', {'max_degree': 2}, "'data'"),
    names={**DATA_NAMES, 'input_nodes': "'(input_nodes|roots)'"},
    data=DATA,
    **OPTIONS,
)


entry(
    'loader.GraphLoader',
    lambda: {'data': [plain_data(), plain_data()], 'batch_size': 2},
    OWN,
    Row('no node', {'data': [plain_data(), Data(num_nodes=0)]}, "'data'"),
    Row('no coins', {'neighboring': 'add_remove'}, "'neighboring'"),
    Row(
        'no rate',
        {'neighboring': 'add_remove', 'sampling': 'poisson'},
        "'sample_rate'",
    ),
    Row(
        'a rate above one',
        {
            'neighboring': 'add_remove',
            'sampling': 'poisson',
            'sample_rate': 1.5,
        },
        "'sample_rate'",
    ),
    names={'data': "'data", 'batch_size': "'batch_size'"},
    data=values(3, None, 'a', plain_data(), [3, 4], [plain_data(), None]),
)
entry(
    'loader.ShardLoader',
    lambda: {'data': plain_data(), 'shard': shard(), 'num_shards': 3},
    Row('an empty shard', {'num_shards': 4}, "'shard'"),
    Row('none', {'shard': None}, "'shard'"),
    Row('own', {'collate_fn': print}, "'collate_fn'"),
    Row('outside', {'shard': torch.full((N,), -1)}, "'shard'"),
    names=DATA_NAMES,
    data=DATA,
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
    Row('no witness', {'node': ROBUST}, 'has no witness'),
    names={'node': 'node'},
    node=integer(0, N - 1),
)
entry(
    'certificates.RobustLoss',
    lambda: {'threat': threat()},
    Row(
        'a global budget',
        {'threat': certificates.ThreatModel(csr(), global_budget=1)},
        "'threat'",
    ),
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
    Row(
        'no unlabelled node',
        {'pseudo': torch.tensor([-1, -1, 0, 1, -1, -1])},
        "'pseudo'",
    ),
    logits=LOGITS,
    y=tensor(low=None),
    nodes=either(
        values(3, 'a', [N], [0.5], torch.ones(3).bool()),
        tensor(
            rows=False,
            low=0,
            high=N - 1,
            none=True,
            dtypes=(torch.float32,),
            numbers=True,
        ),
    ),
    pseudo=tensor(low=-1, high=1, none=True),
)
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
    Row('two budgets', {'strength': 3}, "'strength'"),
    Row('both', {'fixed': torch.tensor([[0], [1]])}, "'fixed'"),
    Row('no edge', {'fixed': torch.tensor([[0], [3]])}, "'fixed'"),
    Row('twice', {'fragile': torch.tensor([[0, 0], [1, 1]])}, "'fragile'"),
    names={
        'graph': "'(graph|edge_index|data)'",
        'num_nodes': "'(num_nodes|edge_index)'",
        'strength': "'strength'",
    },
    graph=any_graph(),
    fragile=either(
        choice(),
        values(
            torch.tensor([[0.5], [1.0]]),
            torch.tensor([0, 1]),
            torch.tensor([[0], [N]]),
        ),
    ),
    fixed=either(
        choice(none=True),
        values(
            torch.tensor([[0.5], [1.0]]),
            torch.tensor([0, 1]),
            torch.tensor([[0], [N]]),
        ),
    ),
    local_budget=either(
        integer(0, none=True), values(-torch.ones(N).long(), torch.ones(N))
    ),
    undirected=values(3, 'yes', None, 1.0),
    num_nodes=integer(N),
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
    Row('no option', {'samples': 3}, "'samples'"),
    Row('two alphas', {'alpha': 0.2}, "'alpha'"),
    Row('no threat', {'threat': None}, "'threat'"),
    names={'model': "'(model|data|threat)'"},
    model=instance(),
    data=instance(),
    threat=instance(),
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
    nodes=tensor(
        numbers=True,
        rows=False,
        low=0,
        high=N - 1,
        none=True,
        dtypes=(torch.float32,),
    ),
    reference=tensor(low=0, high=1, none=True),
    method=choice(),
    tol=values('a', None, np.nan, -1.0, True, [0.5]),
)
