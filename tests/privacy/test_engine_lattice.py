"""A noisy sum does not tell by its last bits what was added to the noise.

``fl(fl(std * g) + S)`` of a public std reaches few doubles: whoever guesses
the sum S tests whether the released number is one of them. On the grid of the
noise every number is reached from every sum.
"""

import math

import torch
from scipy.stats import fisher_exact
from torch import nn
from torch_geometric.data import Data

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.exact import clip

RELEASES = 200
STD = 3.0


def release(private):
    """The noisy gradients of one step; a row of one unit is x or 0."""
    x = torch.zeros(4, 3, dtype=torch.float64)
    if private:
        x[0] = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    data = Data(
        x=x,
        y=torch.zeros(4, dtype=torch.long),
        edge_index=torch.empty(2, 0, dtype=torch.long),
    )
    data.train_mask = torch.ones(4, dtype=torch.bool)
    net = nn.Linear(3, 2, bias=False).double()
    nn.init.zeros_(net.weight)
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        data_loader=DisjointWalkLoader(
            data, batch_size=4, walk_length=0, num_steps=RELEASES
        ),
        noise_multiplier=STD,
        max_grad_norm=1.0,
        loss_reduction='sum',
    )
    found = []
    for batch in loader:
        optimizer.zero_grad()
        out = module(batch.x)[: batch.batch_size]
        loss = nn.functional.cross_entropy(
            out, batch.y[: batch.batch_size], reduction='sum'
        )
        loss.backward()
        optimizer.step()
        found.append(net.weight.grad.flatten().tolist())
        with torch.no_grad():
            net.weight.zero_()
        engine._training_step().hold()
        if len(found) == RELEASES:
            break
    step, _ = clip.noise_grid(STD, 1.0, net.weight.numel())
    return found, step


def reached(value, std):
    """Whether a double g has fl(std * g) == value."""
    g = value / std
    near = [g, math.nextafter(g, math.inf), math.nextafter(g, -math.inf)]
    return any(std * v == value for v in near)


def test_the_last_bits_of_a_release_tell_nothing():
    alarms = []
    for private in (False, True):
        found, step = release(private)
        assert len(found) == RELEASES
        # All are on the grid, which is public.
        assert all(round(v / step) * step == v for row in found for v in row)
        for std in (STD, step * 2**32):
            alarms.append(
                sum(all(reached(v, std) for v in row) for row in found)
            )
    for without, beside in (alarms[::2], alarms[1::2]):
        table = [
            [without, RELEASES - without],
            [beside, RELEASES - beside],
        ]
        assert fisher_exact(table).pvalue > 1e-6
