"""200 canary persons with rows in three tables: what weights tell of each."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import SimpleConv

from pyg_trust.audit import PrivacyAudit, empirical_epsilon
from pyg_trust.loader import UnitLoader
from pyg_trust.privacy import PrivacyEngine, training
from pyg_trust.privacy.exact import clip
from pyg_trust.unit import PrivacyUnit

CANARIES, ROWS = 200, 4
LARGE, NORM, LAM, DELTA = 1e6, 0.01, 1.4, 0.1
TABLES = ('user', 'order', 'note')


def canaries(coin: Tensor, names: int, rows: int) -> HeteroData:
    """Each canary is so many users, each with so many orders and notes."""
    data = HeteroData()
    of = torch.arange(CANARIES).repeat_interleave(names)
    sign = torch.where(coin, LARGE, -LARGE)
    for t in TABLES:
        count = 1 if t == 'user' else rows
        mine = of.repeat_interleave(count)
        data[t].x = torch.zeros(len(mine), CANARIES)
        data[t].x[torch.arange(len(mine)), mine] = sign[mine]
        user = torch.arange(len(of)).repeat_interleave(count)
        if t != 'user':
            index = torch.stack([torch.arange(len(mine)), user])
            data[t, 'by', 'user'].edge_index = index
    data['user'].y = torch.zeros(len(of))
    return data


class Summed(nn.Module):
    """The sum of all rows of a person, each table by weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.ModuleDict(
            {t: nn.Linear(CANARIES, 1, bias=False) for t in TABLES}
        )
        for layer in self.of.values():
            nn.init.zeros_(layer.weight)
        self.conv = SimpleConv('sum')

    def forward(self, x: Any, edges: Any) -> Tensor:
        rows = {t: layer(x[t]) for t, layer in self.of.items()}
        out = rows['user']
        for t in TABLES[1:]:
            pair = rows[t], rows['user']
            out = out + self.conv(pair, edges[t, 'by', 'user'])
        return out


class ByOrder(Summed):
    """A row for each order, of all that its user has."""

    def forward(self, x: Any, edges: Any) -> dict[str, Tensor]:
        out = super().forward({**x, 'order': 0 * x['order']}, edges)
        of = edges['order', 'by', 'user'].flip(0)
        own = self.of['order'](x['order'])
        return {'order': own + self.conv((out, own), of)}


def audit(
    names: int = 1,
    rows: int = ROWS,
    steps: int = 5,
    lam: float = LAM,
    plant: Callable[[], None] = lambda: None,
    by_order: bool = False,
) -> PrivacyAudit:
    """What the gradient of a step tells of coins, over some steps.

    Given the coins, noise is independent by step and canary.
    """
    coin = torch.rand(CANARIES, generator=_seeded(0)) < 0.5
    data = canaries(coin, names, rows)
    unit = PrivacyUnit(
        data,
        'user',
        owned={t: (t, 'by', 'user') for t in TABLES[1:]},
        same=torch.empty((2, 0), dtype=torch.int64),
    )
    data['order'].y = torch.zeros(len(data['order'].x))
    model = ByOrder() if by_order else Summed()
    # The gradient of an order's row has its features once, the notes' all.
    weigh = {'user': 1, 'order': 1 if by_order else rows, 'note': rows}
    engine = PrivacyEngine(insecure_seed=0)
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=UnitLoader(
            data,
            unit,
            CANARIES * names,
            ('order', None) if by_order else None,
            num_steps=steps,
            seed=0,
        ),
        noise_multiplier=2 * lam,
        max_grad_norm=NORM,
        loss_reduction='sum',
    )
    plant()
    scores, claim = [], None
    for batch in loader:
        optimizer.zero_grad()
        out = private(batch.x_dict, batch.edge_index_dict)
        out = out['order'] if by_order else out
        out.sum().backward()
        optimizer.step()
        found = torch.zeros(CANARIES, dtype=torch.float64)
        for t in TABLES:
            grad = model.of[t].weight.grad
            assert grad is not None
            found += grad[0].double() * weigh[t]
        scores.append(found.numpy())
        claim = engine.get_epsilon(DELTA) if claim is None else claim
    every, head = np.concatenate(scores), np.tile(coin.numpy(), steps)
    return empirical_epsilon(
        every[~head], every[head], DELTA, claim=claim, seed=0
    )


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize('by_order', [False, True])
def test_no_bound_is_above_epsilon(by_order: bool) -> None:
    report = audit(lam=LAM / 2, by_order=by_order)
    assert not report.violated
    assert report.epsilon_lower <= report.epsilon_claimed
    # Not for want of power.
    assert report.epsilon_lower > 0.15 * report.epsilon_claimed


@pytest.mark.parametrize('by_order', [False, True])
@pytest.mark.parametrize('names', [2, 4])
def test_several_units_of_a_person_are_found(
    names: int, by_order: bool
) -> None:
    # A person under two names is in two subgraphs; and a unit per order.
    steps = 5 if names == ROWS else 16
    report = audit(names, rows=1, steps=steps, by_order=by_order)
    assert report.violated


def test_clipping_by_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_row(found: Any, *_: Any) -> Any:
        integers = {}
        for base in found.bases:
            x = torch.cat(base.clusters[0].inputs).double()
            x = x * (NORM / x.norm(dim=1, keepdim=True)).clamp(max=1)
            total = x.sum(0, keepdim=True) / clip.grid(NORM)
            name = found.names[id(base.base)]
            integers[name] = total.round().long()
        norms = torch.ones(CANARIES)
        return type('Sum', (), {'integers': integers, 'norms': norms})

    monkeypatch.setattr(training, 'agrees', lambda *_: None)
    report = audit(
        plant=lambda: monkeypatch.setattr(training, 'clipped_sum', by_row)
    )
    assert report.violated
    # Of a user, four orders and four notes, each of norm C.
    assert math.hypot(1, ROWS, ROWS) > 5
