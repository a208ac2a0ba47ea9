"""Nothing of a sum is in the last bits of its release."""

import math
import warnings

import numpy as np
import pytest
import torch
from lattice import LEAST, compare, could_be
from references import Silence
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from pyg_trust import noise
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine, PrivateNodeClassifier
from pyg_trust.privacy.exact import clip
from pyg_trust.transforms import PrivateAGP

RUNS = 200


def data(edges, x, **more):
    ends = torch.tensor(edges, dtype=torch.int64).t()
    return Data(x=x, edge_index=ends, **more)


def both_ways(*pairs):
    return [*pairs, *((v, u) for u, v in pairs)]


def rates(release, one, other, std, guess=0.0):
    """Alarms of releases of two neighbours, by the guess of the first."""
    found = []
    for graph in (one, other):
        found.append(
            [
                bool(could_be(release(graph), std, guess).all())
                for _ in range(RUNS)
            ]
        )
    return found


# Products with a mantissa of about 1.4 miss most doubles: one in seven.
STD, WIDTH = 44.8, 40


def test_the_attack_finds_what_floats_tell():
    # A planted fault: the noise of a float, added to a float.
    draw = np.random.default_rng(0)
    made = [
        [
            bool(could_be(STD * draw.standard_normal(WIDTH) + k, STD).all())
            for _ in range(RUNS)
        ]
        for k in (0.0, 0.123456)
    ]
    assert all(made[0])
    assert sum(made[1]) < RUNS // 4
    assert compare(*made) < 1e-30


def rows_of(transform, graph, node):
    # As a cell that is run again: another account each time.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return transform.released(graph)[0][node].numpy()


def records():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(6, WIDTH, dtype=torch.float64, generator=draw)


def neighbours(relation):
    """Two neighbouring graphs, whose row 0 is zero in the first."""
    x, other = records(), records()
    path = both_ways((1, 2), (2, 3), (3, 4))
    if relation == 'edge':
        more = both_ways((1, 2), (2, 3), (3, 4), (0, 5))
        return data(path, x), data(more, x)
    if relation == 'node':
        return data([*path, (1, 5), (5, 1)], x), data(
            [*path, (1, 0), (0, 1)], x
        )
    # Public edges: the one neighbour of node 0 has features, or a blank.
    x[5], more = 0.0, both_ways((1, 2), (2, 3), (3, 4), (0, 5))
    return data(more, x), data(more, other)


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
def test_released_sums_do_not_tell_by_their_last_bits(relation):
    one, other = neighbours(relation)
    asked = {'adjacency': relation, 'delta': 1e-5}
    unit = PrivateAGP(mu=1.0, **asked).noise_stds[0]

    def release(graph):
        transform = PrivateAGP(mu=unit / STD, **asked)
        stds.add(transform.noise_stds[0])
        return rows_of(transform, graph, 0)

    stds: set = set()
    release(one)
    alarms = rates(release, one, other, *stds)
    assert compare(*alarms) > LEAST


EPSILONS = {'edge': 9.0, 'node': 6.0, 'feature': 6.0}


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
def test_sums_of_a_classifier_do_not_tell(relation, monkeypatch):
    # Labels are sent: under 'feature' the guess is the right sum of them.
    one, other = neighbours(relation)
    for graph in (one, other):
        graph.y = torch.tensor([0, 1, 0, 1, 0, 1])
        graph.train_mask = torch.ones(6, dtype=torch.bool)
    if relation == 'feature':
        other.y[5] = 2
    stds: set = set()

    def release(graph):
        model = PrivateNodeClassifier(
            *(relation, EPSILONS[relation], 1e-4),
            **{'steps': 1, 'epochs': 1, 'num_classes': 12},
            neighboring=None if relation == 'edge' else 'replace',
        )
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            model.fit(graph)
        stds.add(model.noise_stds[0])
        return model.released[0][0].numpy()

    with monkeypatch.context() as patch:
        patch.setattr(noise, 'source', lambda *_: Silence())
        guess = release(one)
    # Where floats tell most.
    assert 1.3 < 2 * math.frexp(max(stds))[0] < 1.5
    alarms = rates(release, one, other, *stds, guess)
    assert compare(*alarms) > LEAST


def gradients(first, std):
    """Noisy gradients of many steps; the row of one unit is given."""
    x = torch.zeros(4, 3, dtype=torch.float64)
    x[0] = first * torch.tensor([0.3, 0.2, 0.1])
    graph = data([], x, y=torch.zeros(4, dtype=torch.long))
    graph.edge_index = torch.empty(2, 0, dtype=torch.long)
    net = nn.Linear(3, 2, bias=False).double()
    nn.init.zeros_(net.weight)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        # Weights stay, so that the sum is the same in every step.
        optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
        data_loader=DisjointWalkLoader(graph, 4, 0, num_steps=RUNS),
        noise_multiplier=std,
        max_grad_norm=1.0,
        loss_reduction='sum',
    )
    for batch in loader:
        optimizer.zero_grad()
        out = module(batch.x)[: batch.batch_size]
        cross_entropy(out, batch.y, reduction='sum').backward()
        optimizer.step()
        yield net.weight.grad.flatten().numpy().copy()


def test_gradients_of_training_do_not_tell():
    std = 3.0
    step, _ = clip.noise_grid(std, 1.0, 6)
    made = [[*gradients(first, std)] for first in (0.0, 1.0)]
    # All are on the grid, which is public.
    for row in np.concatenate(made).ravel():
        assert round(row / step) * step == row
    for deviation in (std, step * 2**32):
        alarms = [
            [bool(could_be(row, deviation).all()) for row in rows]
            for rows in made
        ]
        assert compare(*alarms) > LEAST
