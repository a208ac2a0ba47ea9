"""What the tests of private training share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from references import Silence
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust import noise
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine, aggregation
from pyg_trust.testing import make_graph


class GCN(nn.Module):
    """Two layers, without dropout unless asked for."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = GCNConv(5, 6)
        self.second = GCNConv(6, 3)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = F.dropout(x, self.dropout, self.training)
        return self.second(x, edge_index)


@pytest.fixture
def quiet(monkeypatch):
    """No noise in sums, and no training."""

    monkeypatch.setattr(noise, 'source', lambda *_: Silence())
    monkeypatch.setattr(
        aggregation, 'train_privately', lambda module, *_: module.eval()
    )


@dataclass
class Setup:
    """Everything that a test of the engine may want to look at."""

    data: Data
    net: nn.Module
    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any

    def loss(self, batch, out=None):
        out = self.model(batch.x, batch.edge_index) if out is None else out
        size = batch.batch_size
        return F.cross_entropy(out[:size], batch.y[:size])

    def train(self, batches=None, epochs=1):
        """A plain loop; returns how many batches there were."""
        count = 0
        for _ in range(epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.loss(batch).backward()
                self.optimizer.step()
                count += 1
                if count == batches:
                    return count
        return count


def make_data():
    generator = torch.Generator().manual_seed(0)
    edge_index, _ = make_graph('random').to_edge_index()
    return Data(
        x=torch.randn(40, 5, generator=generator),
        y=torch.arange(40) % 3,
        edge_index=edge_index,
    )


def make_setup(
    *,
    data=None,
    net=None,
    optimizer=None,
    loader=None,
    engine=None,
    target=False,
    **arguments,
):
    data = make_data() if data is None else data
    torch.manual_seed(0)
    net = GCN() if net is None else net
    if optimizer is None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    walk = {'batch_size': 8, 'walk_length': 2, 'seed': 1, **(loader or {})}
    walks = DisjointWalkLoader(data, **walk)
    if not isinstance(engine, PrivacyEngine):
        engine = PrivacyEngine(**{'insecure_seed': 2, **(engine or {})})
    arguments = {'noise_multiplier': 4.0, 'max_grad_norm': 0.5, **arguments}
    if target:
        arguments |= {'target_epsilon': 2.5, 'target_delta': 1e-3}
    private = engine.make_private(
        module=net, optimizer=optimizer, data_loader=walks, **arguments
    )
    return Setup(data, net, engine, *private)


@pytest.fixture
def private() -> Callable[..., Setup]:
    """Makes a small private training."""
    return make_setup
