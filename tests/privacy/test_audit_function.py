"""The audit of a training function: faults are seen, sound ones are not."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data

from pyg_trust import noise
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PoissonAccountant, PrivacyEngine, audit

STEPS, MULTIPLIER = 4, 4.0
# Four full batches of noise 4 C, replaced: 2 sqrt(4) / 4.
MU = 2 * math.sqrt(STEPS) / MULTIPLIER


def graph(num_nodes=20):
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=torch.arange(num_nodes) % 2,
        edge_index=torch.stack(
            [torch.arange(num_nodes - 1), torch.arange(1, num_nodes)]
        ),
        train_mask=torch.ones(num_nodes, dtype=torch.bool),
    )


def by_hand(clip=True, share=1.0, counted=1):
    """DP-SGD of logistic regression on rows, as somebody may write it."""

    def train(data):
        x, sign = data.x.double(), 2.0 * data.y.double() - 1
        weight = torch.zeros(x.size(1), dtype=torch.float64)
        for _ in range(STEPS):
            grad = -(sign * torch.sigmoid(-sign * (x @ weight)))[:, None] * x
            if clip:
                length = grad.norm(dim=1, keepdim=True)
                grad = grad / length.clamp(min=1)
            drawn = torch.randn(weight.shape, dtype=torch.float64)
            total = counted * grad.sum(0) + share * MULTIPLIER * drawn
            weight = weight - 1e-3 * total
        return [weight]

    return train


def test_a_sound_function_is_not_rejected():
    torch.manual_seed(0)
    # At 95 percent each, more than 4 of 20 happen once in 400.
    found = [
        audit(by_hand(), graph(), claim_mu=MU, num_canaries=2000, seed=seed)
        for seed in range(20)
    ]
    assert sum(report.violated for report in found) <= 4
    # And not for want of power.
    assert sum(r.mu_lower > 0.6 * MU for r in found) >= 15
    assert all(r.epsilon_lower < 10 for r in found)


@pytest.mark.parametrize(
    'fault', [{'share': 0.5}, {'clip': False}, {'counted': 2}]
)
def test_faults_are_caught(fault):
    torch.manual_seed(0)
    report = audit(
        by_hand(**fault), graph(), claim_mu=MU, num_canaries=2000, seed=1
    )
    assert report.violated
    assert report.mu_lower > 1.3 * MU


def private(share=1.0, clip=True, sampling='without_replacement'):
    def train(data):
        count = data.num_nodes
        size = count if sampling == 'without_replacement' else count // 5
        loader = DisjointWalkLoader(
            data, size, 1, num_steps=STEPS, sampling=sampling, seed=0
        )
        model = Row(data.num_features)
        before = model.state_dict()['linear.weight'].clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        engine = PrivacyEngine()
        made, optimizer, batches = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=MULTIPLIER,
            max_grad_norm=1.0,
            loss_reduction='sum',
        )
        if not clip:
            optimizer._step.max_grad_norm = math.inf
        if share != 1.0:
            normal = engine._noise.normal
            engine._noise = type(
                'Less', (), {'normal': lambda s, shape: share * normal(shape)}
            )()
        for batch in batches:
            out = made(batch.x, batch.edge_index)[: batch.batch_size]
            target = batch.y[: batch.batch_size]
            F.cross_entropy(out, target, reduction='sum').backward()
            optimizer.step()
        return [before, model]

    return train


class Row(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 2, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x, edge_index):
        return self.linear(x)


def isolated():
    data = graph(20)
    data.edge_index = data.edge_index[:, :0]
    return data


def test_the_engine_is_not_rejected():
    report = audit(
        private(), isolated(), claim_mu=MU, num_canaries=1200, seed=2
    )
    assert not report.violated
    assert report.mu_lower > 0.3 * MU


def test_the_engine_by_coins_is_not_rejected():
    account = PoissonAccountant()
    rate = (1220 // 5) / 1220
    account.history = [(MULTIPLIER, rate, STEPS)]
    report = audit(
        private(sampling='poisson'),
        isolated(),
        claim=account.get_epsilon,
        num_canaries=1200,
        seed=3,
    )
    assert not report.violated
    assert report.epsilon_claimed > 0
    # Without the coins it would be too good to be true.
    assert report.mu_lower < MU


@pytest.mark.parametrize('fault', [{'share': 0.5}, {'clip': False}])
def test_an_engine_with_a_fault_is_caught(fault):
    report = audit(
        private(**fault), isolated(), claim_mu=MU, num_canaries=1200, seed=4
    )
    assert report.violated


def test_nothing_of_the_features_is_an_error():
    with pytest.raises(ValueError, match='num_features'):
        audit(lambda data: nn.Linear(3, 3), graph())
    with pytest.raises(TypeError, match="'train'"):
        audit(lambda data: 3.0, graph())


def test_the_graph_is_left_as_it_is():
    data, seen = graph(), []

    def train(planted):
        seen.append(planted)
        return torch.zeros(planted.num_features)

    report = audit(train, data, num_canaries=16, form='withdraw', seed=0)
    assert data.x.shape == (20, 4)
    assert data.num_nodes == 20
    (planted,) = seen
    assert planted.x.shape == (36, 20)
    assert planted.train_mask[20:].all()
    assert (planted.x[20:, :4] == 0).all()
    assert set(planted.x[20:, 4:].diagonal().tolist()) == {0.0, 100.0}
    assert report.mu_lower == 0.0
    assert noise.SEEDED not in str(report)
