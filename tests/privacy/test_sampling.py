"""Batches by coins, ways to clip, and norms that adapt, in the engine."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2
from together import train
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool

from pyg_trust.audit import canary_graph
from pyg_trust.loader import DisjointWalkLoader, GraphLoader
from pyg_trust.noise import SecureNoise, coins
from pyg_trust.privacy import (
    AdaptiveNorm,
    PrivacyEngine,
)
from pyg_trust.privacy.mechanisms import clip_factors
from pyg_trust.privacy.poisson import poisson_epsilon

COUNT, WIDTH, NORM = 12, 6, 0.7


def rows(seed=5):
    generator = torch.Generator().manual_seed(seed)
    data = canary_graph(COUNT, 1)
    data.x = torch.randn(COUNT, WIDTH, generator=generator)
    return data


def setup(
    loader=None,
    engine=None,
    batch_size=3,
    num_steps=40,
    sampling='poisson',
    **arguments,
):
    module = GINConv(nn.Linear(WIDTH, 1, bias=False))
    nn.init.zeros_(module.nn.weight)
    if loader is None:
        loader = DisjointWalkLoader(
            rows(), batch_size, 1, num_steps=num_steps, sampling=sampling
        )
    engine = PrivacyEngine() if engine is None else engine
    arguments = {
        'noise_multiplier': 2.0,
        'max_grad_norm': NORM,
        'loss_reduction': 'sum',
        **arguments,
    }
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return engine, engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, **arguments
    )


def silent(monkeypatch):
    monkeypatch.setattr(
        SecureNoise,
        'normal',
        lambda self, shape: torch.zeros(shape, dtype=torch.float64),
    )
    monkeypatch.setattr(
        SecureNoise,
        'cells',
        lambda self, shape: torch.zeros(shape, dtype=torch.int64),
    )


def test_every_unit_is_drawn_by_a_coin_of_its_own():
    _, made = setup(num_steps=400)
    units, _ = train(made)
    drawn = np.zeros((400, COUNT))
    for step, here in enumerate(units):
        drawn[step, here] = 1
    # Each of 12 at the rate 1/4, at one in a million.
    for unit in range(COUNT):
        test = binomtest(int(drawn[:, unit].sum()), 400, 0.25)
        assert test.pvalue > 1e-6
    # And independently: sizes are binomial, of the variance 12 q (1 - q).
    sizes = drawn.sum(1)
    spread = (sizes - 3).__pow__(2).sum() / (COUNT * 0.25 * 0.75)
    assert 1e-6 < chi2.cdf(spread, 400) < 1 - 1e-6
    # Empty batches are among them: (3/4)^12 = .03 of 400.
    assert 1 <= (sizes == 0).sum() <= 40


def test_an_empty_batch_costs_its_step_and_releases_noise_alone():
    engine, made = setup(batch_size=1, num_steps=60)
    units, grads = train(made)
    empty = [g for u, g in zip(units, grads, strict=True) if not u]
    # (11/12)^12 = .35 of 60.
    assert 3 <= len(empty) < 60
    assert engine.steps == 60
    drawn = torch.cat([g.double() / (2.0 * NORM) for g in empty])
    spread = float(drawn.square().sum())
    assert 1e-7 < chi2.cdf(spread, drawn.numel()) < 1 - 1e-7
    assert engine.get_epsilon(1e-5) == poisson_epsilon(
        [(2.0, 1 / COUNT, 60)], 1e-5
    )


def test_a_mean_is_divided_by_the_public_number(monkeypatch):
    silent(monkeypatch)
    for sampling in ('poisson', 'without_replacement'):
        _, made = setup(sampling=sampling, loss_reduction='mean', num_steps=9)
        x = rows().x
        clipped = x * (NORM / x.norm(dim=1, keepdim=True)).clamp(max=1)
        model, optimizer, loader = made
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            out.mean().backward()
            optimizer.step()
            # By 3, whatever the size of the batch.
            want = clipped[batch.n_id].sum(0) / 3
            found = model.nn.weight.grad[0]
            assert torch.allclose(found, want, atol=1e-4)


@pytest.mark.parametrize('kind', ['rdp_wor', 'pld_wor', 'rdp_fdp'])
def test_accounts_of_another_sampling_are_refused(kind):
    with pytest.raises(ValueError, match="'accountant'"):
        setup(engine=PrivacyEngine(kind))
    with pytest.raises(ValueError, match="'accountant'"):
        setup(
            engine=PrivacyEngine('pld_poisson'), sampling='without_replacement'
        )


# Whole graphs


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GINConv(nn.Linear(3, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv(x, edge_index).relu()
        return self.out(global_add_pool(x, batch))


def graphs(count):
    generator = torch.Generator().manual_seed(1)
    return [
        Data(
            x=torch.randn(n % 4 + 1, 3, generator=generator),
            edge_index=torch.tensor([[0], [n % 4]]),
            y=torch.tensor([n % 2]),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_graphs_by_coins(relation):
    rate = 0.1 if relation == 'add_remove' else None
    loader = GraphLoader(
        graphs(20),
        2,
        num_steps=25,
        sampling='poisson',
        neighboring=relation,
        sample_rate=rate,
    )
    module = Pooled()
    engine = PrivacyEngine()
    model, optimizer, batches = engine.make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters()),
        data_loader=loader,
        noise_multiplier=1.5,
        max_grad_norm=1.0,
        forward=lambda m, b: m(b.x, b.edge_index, b.batch),
        criterion=F.cross_entropy,
    )
    sizes = []
    for batch in batches:
        out = model(batch.x, batch.edge_index, batch.batch)
        assert out.shape == (batch.batch_size, 2)
        F.cross_entropy(out, batch.y).backward()
        optimizer.step()
        sizes.append(batch.batch_size)
    # .9^20 = .12 of 25 are empty; none of them once in 24.
    assert engine.steps == 25
    assert len(set(sizes)) > 1
    form = 'withdraw' if relation == 'add_remove' else 'replace'
    found = engine.get_epsilon(1e-5)
    assert found == poisson_epsilon([(1.5, 0.1, 25)], 1e-5, form)
    assert all(p.isfinite().all() for p in module.parameters())
    report = engine.report(1e-5)
    assert report.sensitivity == (1.0 if form == 'withdraw' else 2.0)
    # Sums over the edges of a node have no account with whole graphs.
    with pytest.raises(ValueError, match="'mu' of a release"):
        engine.spend_gaussian(0.5)
    assert engine.get_epsilon(1e-5) == found


def test_nothing_public_tells_how_many_graphs_may_come_and_go():
    def made(count):
        loader = GraphLoader(
            graphs(count),
            2,
            sampling='poisson',
            neighboring='add_remove',
            sample_rate=0.1,
            seed=0,
        )
        return loader.setting(), loader.public(), repr(loader), len(loader)

    assert made(20) == made(21)


# Clipping


def test_automatic_factors_keep_below_the_norm():
    norms = torch.tensor([0.0, 1e-8, 0.3, 1.0, 1e9, math.inf, math.nan])
    factors = clip_factors(norms, NORM, 'automatic')
    assert factors[-2:].tolist() == [0.0, 0.0]
    lengths = (factors * norms)[:5]
    assert (lengths <= NORM).all()
    assert lengths[4] == pytest.approx(NORM)
    assert float(lengths[2]) == pytest.approx(NORM * 0.3 / 0.31)


def test_a_gin_that_forgets_a_graph_moves_by_less_than_the_norm(monkeypatch):
    # By autograd on the plain model, graph by graph; no noise, no steps.
    silent(monkeypatch)
    data = graphs(10)
    # One that would outweigh all others.
    data[3].x *= 1e4
    loader = GraphLoader(
        data,
        4,
        num_steps=8,
        sampling='poisson',
        neighboring='add_remove',
        sample_rate=0.5,
    )
    module = Pooled()
    plain = copy.deepcopy(module)

    def grad(graph):
        one = torch.zeros(graph.num_nodes, dtype=torch.int64)
        out = plain(graph.x, graph.edge_index, one)
        loss = F.cross_entropy(out, graph.y)
        found = torch.autograd.grad(loss, list(plain.parameters()))
        return torch.cat([part.flatten() for part in found]).double()

    shares = [NORM * g / (g.norm() + 0.01) for g in map(grad, data)]
    assert float(shares[3].norm()) <= NORM
    model, optimizer, batches = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=NORM,
        clipping='automatic',
        loss_reduction='sum',
        forward=lambda m, b: m(b.x, b.edge_index, b.batch),
        criterion=lambda out, y: F.cross_entropy(out, y, reduction='sum'),
    )
    met = set()
    for batch in batches:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index, batch.batch)
        F.cross_entropy(out, batch.y, reduction='sum').backward()
        optimizer.step()
        drawn = batch.input_id.tolist()
        want = sum((shares[i] for i in drawn), torch.zeros(()).double())
        found = [p.grad.flatten() for p in module.parameters()]
        assert torch.allclose(torch.cat(found).double(), want, atol=1e-4)
        met.update(drawn)
    # The large one is missed in all of eight steps once in 256: it need not
    # be met, but most are.
    assert len(met) > 2


def test_a_norm_adapts_to_its_quantile(monkeypatch):
    silent(monkeypatch)
    data = rows()
    scale = torch.linspace(0.1, 4, COUNT)
    data.x = F.normalize(data.x, dim=1) * scale[:, None]
    loader = DisjointWalkLoader(data, COUNT, 1, num_steps=150)
    norm = AdaptiveNorm(0.05, quantile=0.75, rate=0.3)
    engine, made = setup(loader, max_grad_norm=norm)
    train(made)
    # Between the 9th and the 10th of 12 lengths, within a step of it.
    assert scale[7] < engine.max_grad_norm < scale[10]
    assert engine.report(1e-5).clipping == 'adaptive'


def test_an_adaptive_step_tells_what_the_account_says():
    # Of gradient and count in units of their noise, a unit moves 1 / z.
    for z, size in ((2.0, 40), (0.5, 400), (3.0, 4)):
        norm = AdaptiveNorm()
        gradient = norm.gradient_multiplier(z, size)
        count = norm.count_std(z, size)
        moved = math.hypot(1 / gradient, 0.5 / count)
        assert moved == pytest.approx(1 / z, rel=1e-12)
    with pytest.raises(ValueError, match="'noise_std'"):
        AdaptiveNorm(noise_std=0.9).gradient_multiplier(2.0, 40)


def test_the_noise_of_an_adaptive_norm_is_larger_and_the_account_is_not():
    empty = rows()
    empty.x = torch.zeros(COUNT, WIDTH)
    loader = DisjointWalkLoader(empty, COUNT, 1, num_steps=300)
    norm = AdaptiveNorm(NORM, rate=1e-9, noise_std=1.1)
    engine, made = setup(loader, max_grad_norm=norm)
    _, grads = train(made)
    drawn = torch.cat(grads).double() / NORM
    multiplier = norm.gradient_multiplier(2.0, COUNT)
    assert multiplier > 4.5
    spread = float((drawn / multiplier).square().sum())
    assert 1e-7 < chi2.cdf(spread, drawn.numel()) < 1 - 1e-7
    assert engine.accountant.history == [(2.0, 1.0, 300)]


def test_an_adaptive_norm_goes_on_from_a_checkpoint():
    arguments = {
        'max_grad_norm': AdaptiveNorm(NORM, rate=0.5),
        'sampling': 'without_replacement',
    }
    seeded = {'loader': DisjointWalkLoader(rows(), 3, 1, num_steps=9, seed=1)}
    engine, made = setup(**seeded, **arguments)
    train(made)
    state = copy.deepcopy(engine.state_dict())
    assert state['max_grad_norm'] != NORM
    seeded = {'loader': DisjointWalkLoader(rows(), 3, 1, num_steps=9, seed=1)}
    other, made = setup(**seeded, **arguments)
    other.load_state_dict(state)
    assert other.max_grad_norm == state['max_grad_norm']
    assert made.optimizer._step.max_grad_norm == state['max_grad_norm']
    seeded = {'loader': DisjointWalkLoader(rows(), 3, 1, num_steps=9, seed=1)}
    flat, _ = setup(**seeded)
    with pytest.raises(ValueError, match='setting'):
        flat.load_state_dict(state)


def test_a_norm_adapts_where_float32_ends():
    loader = DisjointWalkLoader(rows(), COUNT, 1, num_steps=3)
    norm = AdaptiveNorm(1e-50, bounds=(1e-55, 1e-45))
    engine, made = setup(loader, max_grad_norm=norm)
    train(made)
    assert 1e-53 < engine.max_grad_norm < 1e-47
    with pytest.raises(ValueError, match=r"'noise_std' is too large"):
        setup(max_grad_norm=AdaptiveNorm(noise_std=1e9))
    for bounds in ((1e-70, 1.0), (1.0, 1e70)):
        with pytest.raises(ValueError, match=r"'bounds' .* exact"):
            AdaptiveNorm(bounds=bounds)


def test_scaled_gradients_have_no_quantile_to_follow():
    with pytest.raises(ValueError, match="'clipping'"):
        setup(max_grad_norm=AdaptiveNorm(), clipping='automatic')


# Coins


def test_coins():
    source = SecureNoise()
    assert coins(source, 50, 1.0).tolist() == list(range(50))
    assert coins(source, 50, 0.0).size == 0
    assert coins(source, 0, 0.5).size == 0
    test = binomtest(coins(source, 40000, 0.3).size, 40000, 0.3)
    assert test.pvalue > 1e-7
    with pytest.raises(ValueError, match="'rate'"):
        coins(source, 3, 1.5)
