"""Node classifiers that have forgotten something."""

import torch
from torch_geometric.data import Data

from pyg_trust.agp.measures import Measure
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier

SETTINGS = {
    'two classes': {},
    'appnp': {'measure': 'appnp', 'alpha': 0.2},
    'heat': {'measure': 'heat', 't': 2.0, 'K': 3},
    'against': {'measure': 'single_target', 'alpha': 0.3, 'K': 3},
    'receivers': {'measure': Measure(0.5, 1, (0.5, 0.2, 0.3), True)},
}


def forgotten(name, release_std=1e-3, n=150):
    """A classifier after three removals, and the report of the last."""
    generator = torch.Generator().manual_seed(1)
    pairs = torch.randint(n, (2, 3 * n), generator=generator)
    if name != 'against':
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
    pairs = torch.cat([pairs, torch.tensor([[9], [9]])], 1).unique(dim=1)
    classes = 2 if name == 'two classes' else 3
    data = Data(
        x=torch.randn(n, 4, generator=generator),
        edge_index=pairs,
        y=torch.arange(n) % classes,
        train_mask=torch.rand(n, generator=generator) < 0.6,
    )
    kwargs = {
        'weight_decay': 0.1,
        'release_std': release_std,
        **SETTINGS[name],
    }
    model = NodeClassifier(**kwargs).fit(data)
    train = data.train_mask.nonzero().view(-1).tolist()
    edges = pairs[:, pairs[0] != pairs[1]].t().tolist()
    edges = [e for e in edges if 70 not in e and 71 not in e]
    model.remove(RemovalRequest(nodes=[70, 71], features=[72]))
    model.remove(RemovalRequest(labels=[v for v in train if v > 73][:2]))
    named = {'edges': [edges[5]]}
    if name == 'against':
        named = {'edges': [edges[5]], 'directed': True}
    return model, model.remove(RemovalRequest(**named)), data
