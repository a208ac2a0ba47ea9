"""Networks, graphs and unlearners that the tests of shards share."""

import torch
import torch.nn.functional as F
from states import without_chance
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GCN2Conv,
    GCNConv,
    GraphSAGE,
    PairNorm,
    SGConv,
)

from pyg_trust.nn import make_aggregator
from pyg_trust.unlearning import ShardedUnlearner

CHANNELS, CLASSES = 13, 3


class APPNPNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(CHANNELS, 16)
        self.two = torch.nn.Linear(16, CLASSES)
        self.propagate = APPNP(4, 0.1, dropout=0.2)

    def forward(self, x, edge_index, edge_weight=None):
        x = F.dropout(x, 0.5, training=self.training)
        x = F.dropout(self.one(x).relu(), 0.5, training=self.training)
        return self.propagate(self.two(x), edge_index, edge_weight)


class Wrapped(torch.nn.Module):
    """One layer."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_weight=None):
        if edge_weight is None:
            return self.conv(x, edge_index)
        return self.conv(x, edge_index, edge_weight)


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(CHANNELS, 8)
        self.conv = GCN2Conv(8, 0.1)
        self.two = torch.nn.Linear(8, CLASSES)

    def forward(self, x, edge_index, edge_weight=None):
        x = self.one(x).relu()
        return self.two(self.conv(x, x, edge_index, edge_weight))


class Halved(torch.nn.Module):
    """Its layers see other edges each, none of them the graph."""

    def __init__(self):
        super().__init__()
        self.one = GCNConv(CHANNELS, 8)
        self.two = GCNConv(8, CLASSES)
        self.three = GCNConv(8, CLASSES)

    def forward(self, x, edge_index, edge_weight=None):
        x = self.one(x, edge_index[:, ::2]).relu()
        ones = torch.ones(edge_index.size(1), dtype=x.dtype)
        return self.two(x, edge_index[:, 1::2]) + self.three(
            x, edge_index, 3 * ones
        )


MODELS = {
    'GCN': lambda: GCN(CHANNELS, 16, 2, CLASSES, dropout=0.5),
    'SAGE': lambda: GraphSAGE(CHANNELS, 16, 2, CLASSES, dropout=0.5),
    'GAT': lambda: GAT(CHANNELS, 16, 2, CLASSES, dropout=0.3, heads=2),
    'APPNP': APPNPNet,
    'JKNet': lambda: GCN(CHANNELS, 16, 3, CLASSES, dropout=0.5, jk='max'),
}
EVERY = {
    **MODELS,
    'lazy': lambda: GCN(-1, 8, 2, CLASSES, dropout=0.5),
    'cached': lambda: GCN(CHANNELS, 8, 2, CLASSES, cached=True),
    'GIN': lambda: GIN(CHANNELS, 8, 2, CLASSES, norm=None),
    'GIN with BatchNorm': lambda: GIN(
        CHANNELS, 8, 2, CLASSES, norm='batch_norm'
    ),
    'SAGE by sums': lambda: GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr='sum'),
    'SGConv': lambda: Wrapped(SGConv(CHANNELS, CLASSES, K=2)),
    'GCN2': Deep,
    'PairNorm': lambda: GCN(CHANNELS, 8, 2, CLASSES, norm=PairNorm()),
    'half of the edges': Halved,
}


class Linear(torch.nn.Module):
    """The base of what follows."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.lin(x)


class Counting(Linear):
    steps = 0

    def forward(self, x, edge_index):
        if self.training:
            self.steps += 1
        return self.lin(x) * (1 + self.steps if self.training else 1)


class Normed(Linear):
    """Its statistics are no part of the state_dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(CLASSES), persistent=False)

    def forward(self, x, edge_index):
        out = self.lin(x)
        if self.training:
            self.mean = 0.9 * self.mean + out.detach().mean(0)
        return out - self.mean


NODES, TRAIN, SHARDS = 70, 48, 4
# Those of make_data() that the tests name.
TESTED = 60


def make_data(seed=0, nodes=NODES):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % CLASSES
    pairs = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    near = (y[pairs[0]] == y[pairs[1]]) | (
        torch.rand(4 * nodes, generator=generator) < 0.3
    )
    pairs = pairs[:, near & (pairs[0] != pairs[1])]
    edge_index = torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)
    x = torch.rand(nodes, CHANNELS, generator=generator)
    x[torch.arange(nodes), y] += 1
    train_mask = torch.zeros(nodes, dtype=torch.bool)
    train_mask[: TRAIN * nodes // NODES] = True
    return Data(
        x=x * (x > 0.4),
        edge_index=edge_index,
        y=y,
        train_mask=train_mask,
        test_mask=~train_mask,
    )


def make(factory=MODELS['GCN'], **kwargs):
    kwargs = {'epochs': 3, 'seed': 5, 'aggregator': quick(), **kwargs}
    return ShardedUnlearner(factory, SHARDS, **kwargs)


def quick():
    return make_aggregator('attentive', epochs=2, hidden_channels=8)


def snapshot(unlearner):
    """All that a user could tell two states apart by."""
    state = without_chance(unlearner.state_dict())
    return {**state, 'outputs': unlearner.outputs}


def learnt(unlearner):
    """What training leaves behind, without the account of how it went."""
    state = snapshot(unlearner)
    return {
        key: state[key]
        for key in ('data', 'checkpoints', 'aggregator', 'outputs')
    }


def weights(unlearner):
    return [unlearner.shard_state(i) for i in range(SHARDS)]
