"""Whether noise of an engine is fresh at every step."""

import math

import pytest
import torch
from scipy.stats import norm
from torch_geometric.data import Data

from pyg_trust.loader import DisjointWalkLoader, EgoLoader
from pyg_trust.noise import SeededNoise, p_value
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.transforms import BoundedDegree


def stream_p_value(drawn):
    r"""Test Gaussians of several steps for independence; return a p-value.

    By three exact tests, with Bonferroni's correction: the norm of all;
    every pair of steps, :math:`\langle s_t, s_u \rangle / \lVert s_t
    \rVert`; and the sums of these over all pairs of one distance.
    """
    least, steps = p_value(drawn), drawn.size(0)
    if steps < 2:
        return least
    size = drawn.norm(dim=1).clamp(min=torch.finfo(drawn.dtype).tiny)
    alike = (drawn @ drawn.T / size).tril(-1)
    far = [float(alike.abs().max())]
    far += [
        abs(float(alike.diagonal(-lag).sum())) / math.sqrt(steps - lag)
        for lag in range(1, steps)
    ]
    tests = 1 + (steps - 1) + steps * (steps - 1) // 2
    least = min(least, 2 * float(norm.cdf(-max(far))))
    return min(1.0, tests * least)


def normal(steps=80, columns=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        steps, columns, generator=generator, dtype=torch.float64
    )


def test_right_noise_is_rarely_called_wrong():
    values = [stream_p_value(normal(12, 40, seed)) for seed in range(400)]
    for level in (0.01, 0.05):
        # Five deviations above what Bonferroni allows.
        most = 400 * level + 5 * (400 * level) ** 0.5
        assert sum(value <= level for value in values) <= most
    # It is exact, not only safe: some are small.
    assert min(values) < 0.1


FAULTS = {
    'four steps again': lambda z: torch.cat([z[:40], z[36:40], z[44:]]),
    'one step again, far apart': lambda z: torch.cat([z[:-1], z[:1]]),
    'one step, negated': lambda z: torch.cat([z[:-1], -z[3:4]]),
    'a stream that begins anew': lambda z: torch.cat([z[:40], z[:40]]),
    'one draw for all': lambda z: z[:1].expand_as(z).clone(),
    'half of it carried over': lambda z: (z + 0.5 * z.roll(1, 0)) / 1.25**0.5,
    'a ring': lambda z: (z + z.roll(9, 0)) / 2**0.5,
    'half of the noise': lambda z: z / 2,
    'none at all': torch.zeros_like,
}


@pytest.mark.parametrize('name', FAULTS)
def test_noise_that_is_not_fresh_is_found(name):
    assert stream_p_value(FAULTS[name](normal())) < 1e-70
    assert stream_p_value(normal()) > 1e-3


def steps_of(engine, loader, count=30):
    """What an engine adds to gradients that are zero, over its deviation."""
    net = torch.nn.Linear(20, 40)
    model, optimizer, batches = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=8.0,
        max_grad_norm=0.5,
        forward=lambda model, batch: model(batch.x),
    )
    rows = []
    for batch in batches:
        optimizer.zero_grad()
        (model(batch.x)[: batch.batch_size] * 0).sum().backward()
        optimizer.step()
        grads = [p.grad.double().view(-1) for p in net.parameters()]
        rows.append(torch.cat(grads) * loader.subgraphs_per_batch / 4.0)
    assert len(rows) == count
    return torch.stack(rows)


def make_loader(kind):
    data = Data(
        x=torch.randn(24, 20),
        edge_index=torch.tensor([range(24), [*range(1, 24), 0]]),
    )
    if kind == 'walks':
        return DisjointWalkLoader(data, 3, 1, num_steps=30)
    data = BoundedDegree(1)(data)
    return EgoLoader(data, 3, 1, 1, num_steps=30, sampling=kind)


@pytest.mark.parametrize('kind', ['walks', 'without_replacement', 'poisson'])
def test_noise_of_an_engine_is_fresh(kind):
    rows = steps_of(PrivacyEngine(), make_loader(kind))
    assert stream_p_value(rows) > 1e-6


@pytest.mark.parametrize('again', [1, 7])
def test_an_engine_that_draws_a_stream_anew_is_found(again, monkeypatch):
    engine, loader = PrivacyEngine(), make_loader('walks')
    add = PrivacyEngine._add_noise

    def same(self, *given):
        if self.steps % again == 0:
            self._noise = SeededNoise(5)
        return add(self, *given)

    monkeypatch.setattr(PrivacyEngine, '_add_noise', same)
    assert stream_p_value(steps_of(engine, loader)) < 1e-70
