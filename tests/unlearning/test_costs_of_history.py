"""A removal costs no more after many others: function calls are counted."""

import statistics
import sys
from functools import partial

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import (
    LinkClassifier,
    NodeClassifier,
    Recommender,
    ScatteringClassifier,
    ShardedUnlearner,
)

N, STEPS = 120, 34


def ring():
    ids = torch.arange(N)
    pairs = torch.stack([ids, ids.roll(1)])
    return Data(
        x=torch.rand(N, 5, generator=torch.Generator().manual_seed(0)),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        y=ids % 3,
        train_mask=ids < N - 10,
    )


def paths():
    pairs = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    seeded = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.rand(4, 2, generator=seeded),
            edge_index=pairs,
            y=torch.tensor([k % 2]),
        )
        for k in range(N)
    ]


def made():
    yield 'nodes', lambda: NodeClassifier(weight_decay=0.1, seed=0).fit(ring())
    yield 'links', lambda: LinkClassifier(weight_decay=0.1, seed=0).fit(ring())
    scattering = GraphScattering(J=2, Q=1, L=2)
    yield (
        'graphs',
        lambda: ScatteringClassifier(
            scattering, weight_decay=0.05, seed=0
        ).fit(paths()),
    )
    yield (
        'shards',
        lambda: ShardedUnlearner(
            lambda: GCN(5, 4, 1, 3),
            8,
            epochs=1,
            num_classes=3,
            aggregator='majority',
            seed=0,
        ).fit(ring()),
    )
    likes = torch.stack([torch.arange(N), torch.arange(N) % 9])
    yield 'interactions', lambda: Recommender().fit(likes, N, 9)


@pytest.mark.parametrize(('kind', 'fit'), made())
def test_a_removal_costs_as_much_after_many_as_after_few(kind, fit):
    model, counts = fit(), []
    named = 'graphs' if kind == 'graphs' else 'nodes'
    for k in range(STEPS):
        calls = []
        request = RemovalRequest(**{named: [k]})
        sys.setprofile(partial(_note, calls))
        report = model.remove(request)
        sys.setprofile(None)
        counts.append(len(calls))
    few, many = counts[4:10], counts[-6:]
    # A report lists up to 64 amounts, which is a call each.
    allowed = 1.2 * STEPS + 1.01 * statistics.median(few)
    assert statistics.median(many) <= allowed
    assert report is not None


def _note(calls, frame, event, _):
    if event == 'call':
        calls.append(frame.f_code)
