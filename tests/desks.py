"""Desks, small models, and a clock that tests set."""

import datetime

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.erasure import ErasureDesk, Policy
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner

NOON = datetime.datetime(2026, 3, 10, 12, tzinfo=datetime.timezone.utc)
DAY = 86400
ALL = Policy(max_share=1.0)


class Clock:
    def __init__(self, moment=NOON):
        self.now = moment.timestamp()

    def __call__(self):
        return self.now


def graph(n=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ring = torch.arange(n)
    edge_index = torch.stack([ring, ring.roll(-1)])
    return Data(
        x=torch.rand(n, 4, generator=generator),
        edge_index=torch.cat([edge_index, edge_index.flip(0)], 1),
        y=ring % 2,
        train_mask=torch.ones(n, dtype=torch.bool),
    )


def fitted(n=24, seed=0, **kwargs):
    return NodeClassifier(weight_decay=0.1, seed=seed, **kwargs).fit(graph(n))


def loaded(path):
    """A classifier as fitted() makes them, from its file."""
    return NodeClassifier(weight_decay=0.1, seed=0).load(path)


def sharded(folder):
    """An unlearner in a folder, before it is fitted or loaded."""
    return ShardedUnlearner(
        lambda: GCN(4, 4, 1, 2),
        2,
        epochs=1,
        num_classes=2,
        aggregator='majority',
        folder=folder / 'shards',
        seed=0,
    )


def opened(folder, model=None, clock=None, policy=ALL, **kwargs):
    clock = Clock() if clock is None else clock
    desk = ErasureDesk(
        folder / 'desk.db',
        zone='Europe/Berlin',
        clock=clock,
        policy=policy,
        **kwargs,
    )
    if model is not None:
        desk.register('scores', model, save=folder / 'scores.pt')
    return desk


def nodes(*names):
    return RemovalRequest(nodes=list(names))


def all_bytes(folder, apart=()):
    return b''.join(
        file.read_bytes()
        for file in sorted(folder.rglob('*'))
        if file.is_file() and file.name not in apart
    )


class Slow:
    """A model whose removals are said to take long, and that counts them."""

    folder = 'memory'

    def __init__(self, seconds, model=None):
        self.model, self.time, self.calls = model or fitted(), seconds, []

    @property
    def ledger(self):
        return self.model.ledger

    @property
    def n_id(self):
        return self.model.nodes

    @property
    def data(self):
        return graph()

    def shard_state(self):
        """As an unlearner of shards, which estimates times."""

    def plan(self, request):
        plan = self.model.plan(request)
        plan = type('Plan', (), {'seconds': {'shards': self.time}})
        return plan

    def remove(self, request, *, reference='', on_report=None):
        report = self.model.remove(request, reference=reference)
        if on_report is not None:
            on_report(report)
        self.calls.append(request)
        return report
