"""Steps on persons with all they own, against plain steps on the same batch.

Each batch has 1,000 persons with about 12,000 edges of seven types between
rows of three; two layers of 64. ``clipped`` is the sum of the clipped
gradients over the gradient of the sum, without noise or an optimizer; ``step``
is the whole private step over the plain one, both with Adam and with making
the batch; ``batch`` is making the batch, of 100,000 persons with a million
rows, over the plain step without it. One thread, CPU time, interleaved.

    python benchmarks/typed.py [--quick]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from common import interleaved, result
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GraphSAGE,
    HeteroConv,
    HGTConv,
    Linear,
    SAGEConv,
    to_hetero,
)

from pyg_trust.loader import UnitLoader
from pyg_trust.privacy import PrivacyEngine, SubgraphGradients
from pyg_trust.privacy.typed import TypedCall, TypedModel
from pyg_trust.unit import PrivacyUnit

BY, HAS = ('order', 'by', 'user'), ('order', 'has', 'item')
SEES, LIKE = ('user', 'sees', 'item'), ('item', 'like', 'item')
WIDTHS = {'user': 64, 'order': 64, 'item': 64}
CLASSES, HIDDEN, DRAWN = 4, 64, 1000
NAMES = ('to_hetero', 'HeteroConv', 'HGT')


def shop(persons: int) -> tuple[HeteroData, PrivacyUnit]:
    """Users with two orders, each of an item; users see one more."""
    generator = torch.Generator().manual_seed(0)
    items = max(persons // 10, 20)
    count = {'user': persons, 'order': 2 * persons, 'item': items}
    data = HeteroData()
    for t, n in count.items():
        data[t].x = torch.randn(n, WIDTHS[t], generator=generator)
    data['user'].y = torch.randint(CLASSES, (persons,), generator=generator)
    orders = torch.arange(2 * persons)

    def some(n: int) -> Tensor:
        return torch.randint(items, (n,), generator=generator)

    data[BY].edge_index = torch.stack([orders, orders // 2])
    data[HAS].edge_index = torch.stack([orders, some(2 * persons)])
    data[SEES].edge_index = torch.stack([torch.arange(persons), some(persons)])
    data[LIKE].edge_index = torch.stack([some(items // 4), some(items // 4)])
    for e in (BY, HAS, SEES):
        back = (e[2], f'rev_{e[1]}', e[0])
        data[back].edge_index = data[e].edge_index.flip(0)
    none = torch.empty((2, 0), dtype=torch.int64)
    unit = PrivacyUnit(
        data,
        'user',
        owned={'order': BY},
        public=('item',),
        public_edges=(LIKE,),
        same=none,
    )
    return data, unit


class Layers(nn.Module):
    """Two layers and a linear map, of users."""

    def __init__(
        self, make: Callable[[], nn.Module], into: Any = None
    ) -> None:
        super().__init__()
        self.into = into
        self.convs = nn.ModuleList([make(), make()])
        self.out = Linear(HIDDEN, CLASSES)

    def forward(self, x: Any, edges: Any) -> dict[str, Tensor]:
        """The logits of users."""
        if self.into is not None:
            x = {t: self.into[t](v).relu() for t, v in x.items()}
        for conv in self.convs:
            x = {t: v.relu() for t, v in conv(x, edges).items()}
        return {'user': self.out(x['user'])}


def model(name: str, data: HeteroData) -> nn.Module:
    """A model, its lazy layers made."""
    torch.manual_seed(0)
    types, relations = data.metadata()
    if name == 'to_hetero':
        sage = GraphSAGE((-1, -1), HIDDEN, 2, CLASSES)
        made = to_hetero(sage, (types, relations))
    elif name == 'HGT':
        into = nn.ModuleDict({t: Linear(-1, HIDDEN) for t in types})
        made = Layers(
            lambda: HGTConv(HIDDEN, HIDDEN, (types, relations), 2), into
        )
    else:
        made = Layers(
            lambda: HeteroConv(
                {e: SAGEConv((-1, -1), HIDDEN) for e in relations}
            )
        )
    with torch.no_grad():
        made(data.x_dict, data.edge_index_dict)
    return made


def plain(net: nn.Module, batch: HeteroData) -> list[Tensor]:
    """The gradient of the sum."""
    out = net(batch.x_dict, batch.edge_index_dict)['user']
    loss = F.cross_entropy(out, batch['user'].y, reduction='sum')
    params = list(net.parameters())
    return list(torch.autograd.grad(loss, params, allow_unused=True))


def clipped(
    gradients: SubgraphGradients, call: TypedCall, flat: Any
) -> dict[str, Tensor]:
    """The sum of the clipped gradients."""
    with gradients.record(flat.batch, flat.batch_size) as tape:
        out = call(gradients.module, flat)
    loss = F.cross_entropy(out, flat.y, reduction='sum')
    (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
    rows = torch.arange(flat.batch_size)
    return tape.clipped_sum(out, grad, 1.0, rows).sums


def steps(name: str, repeats: int, persons: int) -> tuple[float, float]:
    """The clipped and the whole private step, over plain ones."""
    data, unit = shop(persons)
    loader = UnitLoader(data, unit, DRAWN, num_steps=10**6, seed=0)
    batch = next(iter(loader))
    net = model(name, data)
    flat = loader.flat(batch)
    typed = loader.schema.typed(flat)
    args = (typed.x_dict, typed.edge_index_dict)
    call = TypedCall(typed, TypedCall.snapshot(typed), args, {})
    gradients = SubgraphGradients(TypedModel(net, loader.schema))
    gradients.rowwise = True
    few, kwargs = call.arguments(loader.schema.made(8))
    gradients.check(few[4], 8, *few, **kwargs)
    print(gradients.explain())
    edges = sum(e.size(1) for e in batch.edge_index_dict.values())
    print(f'{name}: {gradients.chosen}, {len(flat.x)} rows, {edges} edges')
    times, _ = interleaved(
        {
            'plain': partial(plain, net, batch),
            'clipped': partial(clipped, gradients, call, flat),
        },
        repeats,
        time.process_time,
    )
    own = model(name, data)
    adam = torch.optim.Adam(own.parameters())
    batches = iter(UnitLoader(data, unit, DRAWN, num_steps=10**6, seed=0))

    def whole() -> None:
        drawn = next(batches)
        out = own(drawn.x_dict, drawn.edge_index_dict)['user']
        adam.zero_grad()
        F.cross_entropy(out, drawn['user'].y).backward()
        adam.step()

    net = model(name, data)
    training = PrivacyEngine(seed=0).make_private(
        module=net,
        optimizer=torch.optim.Adam(net.parameters()),
        data_loader=loader,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
    )
    private_batches = iter(training.loader)

    def private() -> None:
        drawn = next(private_batches)
        out = training.model(drawn.x_dict, drawn.edge_index_dict)['user']
        training.optimizer.zero_grad()
        F.cross_entropy(out, drawn['user'].y).backward()
        training.optimizer.step()

    both, _ = interleaved(
        {'plain': whole, 'private': private}, repeats, time.process_time
    )
    return (
        times['clipped'] / times['plain'],
        both['private'] / both['plain'],
    )


def batches(repeats: int, persons: int) -> float:
    """Making a batch of many persons' rows, over a plain step."""
    data, unit = shop(persons)
    loader = UnitLoader(data, unit, DRAWN, seed=0)
    net = model('to_hetero', data)
    batch = next(iter(loader))
    index = torch.arange(0, persons, persons // DRAWN)[:DRAWN]
    times, _ = interleaved(
        {'plain': partial(plain, net, batch), 'batch': lambda: loader(index)},
        repeats,
        time.process_time,
    )
    return times['batch'] / times['plain']


def main() -> None:
    """Run, and print each target beside its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true')
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    repeats, persons = (2, 3000) if quick else (20, 20_000)
    for name in NAMES:
        few, whole = steps(name, repeats, persons)
        result(f'clipped step of {name} / plain', few, 2.5, at_most=True)
        result(f'private step of {name} / plain', whole, 3.5, at_most=True)
    made = batches(repeats, 3000 if quick else 320_000)
    result('making a batch / plain step', made, 0.5, at_most=True)


if __name__ == '__main__':
    main()
