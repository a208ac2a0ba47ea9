r"""Models of persons: accuracy, forgetting, and the price of their unit.

accuracy  DBLP, an author is a person and papers are public: accuracy of a
          linear model on own metapaths at epsilon 8 and 2 (delta 1e-5), not
          private, and of the authors' table alone. Means over --seeds, the
          best of two learning rates for each. Wanted: within 1 and 2 points
          of not private; nine tenths of the gap to the single table.
forget    CPU time of forgetting an author by `NodeClassifier`, over that of a
          fit; and of a training by `ShardedUnlearner` of 20 shards. Wanted: .1
          and .25.
unit      CPU seconds of `PrivacyUnit` on --rows rows with features, and bytes
          a row that it holds. Wanted: 3 on 10 million, and 24.

    python benchmarks/persons.py --data ../shared/data accuracy forget unit
"""

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import scipy.sparse
import torch
from common import result
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import MetapathFeatures
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner

WRITES, IN = ('author', 'writes', 'paper'), ('paper', 'in', 'conference')
TERM = ('paper', 'of', 'term')
DELTA, STEPS = 1e-5, 60
RATES, OWN = (1.0, 4.0), 'own metapaths'


def dblp(folder: Path) -> HeteroData | None:
    """Authors with keywords and areas, papers, conferences and terms."""
    folder = folder / 'typed' / 'dblp'
    if not folder.exists():
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
    """Draw training and test nodes."""
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
            seed=seed
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
    """Compare own metapaths with the table, private and not."""
    data = dblp(args.data)
    if data is None:
        print('no typed/dblp in --data: see its README')
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


class Linear(torch.nn.Module):
    """A model of rows that takes edges, as shards want."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Compute logits."""
        return self.layer(x)


def forget(args: argparse.Namespace) -> None:
    """Time the removal of persons beside fits."""
    data = dblp(args.data)
    if data is None:
        print('no typed/dblp in --data: see its README')
        return
    unit, made = rows(data)
    table = unit.table(made)
    # The models want a narrower row than one person's gradient does.
    table.x = table.x @ projection(table.x.size(1), 128)
    table.train_mask = masks(int(table.num_nodes), 0)[0]
    models: dict[str, Any] = {
        'certified': (0.1, lambda: NodeClassifier('sgc', levels=0, seed=0)),
        'shards': (
            0.25,
            lambda: ShardedUnlearner(
                lambda: Linear(128, 4), aggregator='mean', epochs=60, seed=0
            ),
        ),
    }
    for name, (most, make) in models.items():
        ratios = []
        for i in range(args.seeds):
            fits, spent = [], []
            for _ in range(2):
                start = time.process_time()
                model = make().fit(table)
                fits.append(time.process_time() - start)
            for person in range(5):
                request = RemovalRequest(persons=[5 * i + person], unit=unit)
                start = time.process_time()
                model.remove(request)
                spent.append(time.process_time() - start)
            ratios.append(mean(spent) / mean(fits))
        print(f'{name}: a fit takes {mean(fits):.3f} s', flush=True)
        result(
            f'{name}: a removal over a fit', mean(ratios), most, at_most=True
        )
        result(f'{name}: verified', model.verify().ok, 1)


def projection(width: int, columns: int) -> Tensor:
    """Draw a random projection to fewer columns."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(width, columns, generator=draw) / columns**0.5


def unit(args: argparse.Namespace) -> None:
    """Time and weigh the unit of many rows."""
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
    """List the tensors in dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else ()
    return [x for part in values for x in tensors(part)]


PARTS = {'accuracy': accuracy, 'forget': forget, 'unit': unit}


def main() -> None:
    """Runs the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('parts', nargs='*', default=list(PARTS))
    parser.add_argument('--data', type=Path, default=Path('../shared/data'))
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--rows', type=int, default=10_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for part in args.parts:
        PARTS[part](args)


if __name__ == '__main__':
    main()
