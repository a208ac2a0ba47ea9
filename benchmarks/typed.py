"""Steps on persons with all they own, against plain steps on the same batch.

Each batch has 1,000 persons with about 12,000 edges of seven types between
rows of three; two layers of 64. ``clipped`` is the sum of the clipped
gradients over the gradient of the sum, without noise or an optimizer; ``step``
is the whole private step over the plain one, both with Adam and with making
the batch; ``batch`` is making the batch, of 100,000 persons with a million
rows, over the plain step without it. One thread, CPU time, interleaved.

accuracy  DBLP, an author is a person and papers are public: accuracy of a
          linear model on own metapaths at epsilon 8 and 2 (delta 1e-5), not
          private, and of the authors' table alone. Means over --seeds, the
          best of two learning rates for each.
forget    CPU time of forgetting an author, over that of a fit:
          `NodeClassifier` on own metapaths, and `ShardedUnlearner` of 20
          shards on the typed graph, with `HeteroConv`.
unit      CPU seconds of `PrivacyUnit` on --rows rows with features, and bytes
          a row that it holds.

    python benchmarks/typed.py [--quick] [steps batch accuracy ...]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import scipy.sparse
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

from pyg_trust.loader import DisjointWalkLoader, UnitLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.calls import Call, Units, find_call
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.codes import Attributor
from pyg_trust.privacy.exact import clip
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import MetapathFeatures
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner

BY, HAS = ('order', 'by', 'user'), ('order', 'has', 'item')
SEES, LIKE = ('user', 'sees', 'item'), ('item', 'like', 'item')
WIDTHS = {'user': 64, 'order': 64, 'item': 64}
CLASSES, HIDDEN, DRAWN = 4, 64, 1000
NAMES = ('to_hetero', 'HeteroConv', 'HGT')
WRITES, IN = ('author', 'writes', 'paper'), ('paper', 'in', 'conference')
TERM = ('paper', 'of', 'term')
DELTA, STEPS = 1e-5, 60
RATES, OWN = (1.0, 4.0), 'own metapaths'


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
    model: Attributor, call: Call, flat: Any, units: Units
) -> dict[str, Tensor]:
    """The sum of the clipped gradients."""
    shown = call.shown(flat)
    given = call.owners(shown, units)
    out = model.run(lambda: call(shown), given, units.count)
    loss = F.cross_entropy(out, flat.y, reduction='sum')
    (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
    found = model.attribute(out, grad, units.rows, verify=False)
    total = clipped_sum(found, 1.0).integers
    return {n: v.double() * clip.grid(1.0) for n, v in total.items()}


def steps(name: str, repeats: int, persons: int) -> tuple[float, float]:
    """The clipped and the whole private step, over plain ones."""
    data, unit = shop(persons)
    loader = UnitLoader(data, unit, DRAWN, num_steps=10**6, seed=0)
    batch = next(iter(loader))
    net = model(name, data)
    flat = loader.flat(batch)
    units = Units(flat, flat.batch, flat.batch_size)
    call = find_call(net, loader.schema, flat, units, None)
    made = Attributor(net, exact=True)
    edges = sum(e.size(1) for e in batch.edge_index_dict.values())
    print(f'{name}: {len(flat.x)} rows, {edges} edges')
    times, _ = interleaved(
        {
            'plain': partial(plain, net, batch),
            'clipped': partial(clipped, made, call, flat, units),
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
    training = PrivacyEngine(insecure_seed=0).make_private(
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


def dblp(folder: Path) -> HeteroData | None:
    """Authors with keywords and areas, papers, conferences and terms."""
    folder = folder / 'typed' / 'dblp'
    if not folder.exists():
        print('no typed/dblp in --data: see its README')
        return None
    data = HeteroData()
    for name, key in (('author', 'a'), ('paper', 'p')):
        x = scipy.sparse.load_npz(folder / f'{key}_feat.npz').toarray()
        data[name].x = torch.from_numpy(x).float()
    labels = np.load(folder / 'labels.npy')
    data['author'].y = torch.from_numpy(labels).long()
    for e, name in ((WRITES, 'pa'), (IN, 'pc'), (TERM, 'pt')):
        index = np.loadtxt(folder / f'{name}.txt', dtype=np.int64).T
        data[e].edge_index = torch.from_numpy(
            index[::-1].copy() if e == WRITES else index
        )
    for name, e in (('conference', IN), ('term', TERM)):
        size = int(data[e].edge_index[1].max()) + 1
        data[name].x = torch.eye(size) if name == 'conference' else None
        data[name].num_nodes = size
    del data['term'].x
    return data


def rows(data: HeteroData) -> tuple[PrivacyUnit, HeteroData]:
    """The unit, and authors with own metapaths, each row of length 1."""
    unit = PrivacyUnit(
        data,
        'author',
        public=('paper', 'conference', 'term'),
        public_edges=(IN, TERM),
    )
    paths = [[WRITES], [WRITES, IN]]
    made = MetapathFeatures(paths, 'author', unit=unit)(data)
    # A row of a person's own stays one, whatever is done to it alone.
    width = [data[t].x.size(1) for t in ('author', 'paper', 'conference')]
    parts = made['author'].x.split(width, 1)
    made['author'].x = torch.cat(
        [torch.nn.functional.normalize(part) for part in parts], 1
    )
    return unit, made


def masks(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Training and test rows."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    train = torch.zeros(n, dtype=torch.bool)
    train[order[: int(0.6 * n)]] = True
    test = torch.zeros(n, dtype=torch.bool)
    test[order[int(0.8 * n) :]] = True
    return train, test


def trained(
    data: HeteroData, unit: PrivacyUnit, epsilon: float, seed: int, lr: float
) -> float:
    """Test accuracy of a linear model with Poisson batches of a quarter."""
    train, test = masks(int(data['author'].num_nodes), seed)
    loader: Any = DisjointWalkLoader(
        data,
        600,
        0,
        unit=unit,
        input_nodes=train,
        sampling='poisson',
        num_steps=STEPS,
        seed=seed,
    )
    torch.manual_seed(seed)
    x, y = data['author'].x, data['author'].y
    model: Any = torch.nn.Linear(x.size(1), int(y.max()) + 1)
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if epsilon < float('inf'):
        model, optimizer, loader = PrivacyEngine(
            insecure_seed=seed
        ).make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=1,
            max_grad_norm=1.0,
            forward=lambda model, batch: model(batch.x),
        )
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x)
        loss = torch.nn.functional.cross_entropy(out, batch.y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        guess = x[test] @ model.state_dict()['weight'].t()
        guess += model.state_dict()['bias']
    return float((guess.argmax(1) == y[test]).double().mean())


def accuracy(args: argparse.Namespace) -> None:
    """Train with and without noise."""
    data = dblp(args.data)
    if data is None:
        return
    unit, made = rows(data)
    reached, free = {}, float('inf')
    for name, graph in ((OWN, made), ('table', data)):
        for epsilon in (free, 8.0, 2.0):
            best = max(
                mean(
                    trained(graph, unit, epsilon, seed, lr)
                    for seed in range(args.seeds)
                )
                for lr in RATES
            )
            reached[name, epsilon] = best
            print(f'DBLP, {name}, epsilon {epsilon}: {best:.3f}', flush=True)
    for epsilon, most in ((8.0, 0.01), (2.0, 0.02)):
        lost = reached[OWN, free] - reached[OWN, epsilon]
        result(
            f'loss of accuracy at epsilon {epsilon:g}',
            lost,
            most,
            at_most=True,
        )
        gap = reached[OWN, free] - reached['table', epsilon]
        result(f'share of the gap at epsilon {epsilon:g}', 1 - lost / gap, 0.9)


def typed(data: HeteroData) -> HeteroData:
    """Authors, papers and conferences of narrow rows, with reverse edges."""
    made = HeteroData()
    for t in ('author', 'paper', 'conference'):
        x = data[t].x
        made[t].x = x @ projection(x.size(1), 32)
    made['author'].y = data['author'].y
    made['author'].train_mask = masks(len(data['author'].y), 0)[0]
    for e in (WRITES, IN):
        made[e].edge_index = data[e].edge_index
        back = (e[2], f'rev_{e[1]}', e[0])
        made[back].edge_index = data[e].edge_index.flip(0)
    return made


class Readers(nn.Module):
    """Two layers, of authors."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv(
                {
                    e: SAGEConv((size, size), 16)
                    for one in (WRITES, IN)
                    for e in (one, (one[2], f'rev_{one[1]}', one[0]))
                }
            )
            for size in (32, 16)
        )
        self.out = nn.Linear(16, 4)

    def forward(self, x: Any, edges: Any) -> Tensor:
        """The logits of authors."""
        for conv in self.convs:
            x = {t: v.relu() for t, v in conv(x, edges).items()}
        return self.out(x['author'])


def forget(args: argparse.Namespace) -> None:
    """Remove authors, one by one."""
    data = dblp(args.data)
    if data is None:
        return
    unit, made = rows(data)
    table = unit.table(made)
    # The models want a narrower row than one person's gradient does.
    table.x = table.x @ projection(table.x.size(1), 128)
    table.train_mask = masks(int(table.num_nodes), 0)[0]
    graph = typed(data)
    of = PrivacyUnit(
        graph,
        'author',
        public=('paper', 'conference'),
        public_edges=(IN, ('conference', 'rev_in', 'paper')),
    )
    ways: dict[str, Any] = {
        'certified': (
            *(0.1, unit, table, 3),
            lambda: NodeClassifier('sgc', K=0, seed=0),
        ),
        'shards': (
            *(0.25, of, graph, 1),
            lambda: ShardedUnlearner(
                Readers, aggregator='mean', epochs=30, unit=of, seed=0
            ),
        ),
    }
    people = table.train_mask.nonzero().view(-1).tolist()
    for name, (most, of_whom, given, fits, make) in ways.items():
        taken, spent = [], []
        for i in range(fits):
            start = time.process_time()
            model = make().fit(given)
            taken.append(time.process_time() - start)
            for person in people[5 * i : 5 * i + 5]:
                request = RemovalRequest(persons=[person], unit=of_whom)
                start = time.process_time()
                model.remove(request)
                spent.append(time.process_time() - start)
        print(f'{name}: a fit takes {mean(taken):.3f} s', flush=True)
        share = mean(spent) / mean(taken)
        result(f'{name}: a removal over a fit', share, most, at_most=True)
        result(f'{name}: verified', model.verify().ok, 1)


def projection(width: int, columns: int) -> Tensor:
    """Random columns."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(width, columns, generator=draw) / columns**0.5


def owners(args: argparse.Namespace) -> None:
    """Declare many rows."""
    m, n = args.rows * 8 // 10, args.rows // 10
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    for name, size in (('user', n), ('order', m), ('item', n)):
        data[name].x = torch.rand(size, 2, generator=draw)
    each = torch.arange(m)
    by = torch.randint(n, (m,), generator=draw)
    has = torch.randint(n, (m,), generator=draw)
    data['order', 'by', 'user'].edge_index = torch.stack([each, by])
    data['order', 'has', 'item'].edge_index = torch.stack([each, has])
    owned: dict[Any, Any] = {'order': ('order', 'by', 'user')}
    spent = []
    for _ in range(args.seeds):
        start = time.process_time()
        made = PrivacyUnit(data, 'user', owned=owned, public=('item',))
        spent.append(time.process_time() - start)
    result(f'seconds of {args.rows:,} rows', min(spent), 3, at_most=True)
    held = bytes_of(made, data) / args.rows
    result('bytes a row', held, 24, at_most=True)


def bytes_of(made: PrivacyUnit, data: HeteroData) -> int:
    """Memory of the unit's tensors that are not those of the graph."""
    own = {x.untyped_storage().data_ptr() for x in tensors(data.to_dict())}
    held = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in tensors(vars(made))
    }
    return sum(size for place, size in held.items() if place not in own)


def tensors(value: object) -> list[Tensor]:
    """All tensors in dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else ()
    return [x for part in values for x in tensors(part)]


def all_steps(args: argparse.Namespace) -> None:
    """Run the clipped and the private step of each model."""
    repeats, persons = (2, 3000) if args.quick else (20, 20_000)
    for name in NAMES:
        few, whole = steps(name, repeats, persons)
        result(f'clipped step of {name} / plain', few, 2.5, at_most=True)
        result(f'private step of {name} / plain', whole, 3.5, at_most=True)


def batch(args: argparse.Namespace) -> None:
    """Make batches."""
    made = batches(*((2, 3000) if args.quick else (20, 320_000)))
    result('making a batch / plain step', made, 0.5, at_most=True)


PARTS = {
    'steps': all_steps,
    'batch': batch,
    'accuracy': accuracy,
    'forget': forget,
    'unit': owners,
}


def main() -> None:
    """Run the named parts, and print each target beside its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('parts', nargs='*', default=list(PARTS))
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--data', type=Path, default=Path('../shared/data'))
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--rows', type=int, default=10_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for part in args.parts:
        PARTS[part](args)


if __name__ == '__main__':
    main()
