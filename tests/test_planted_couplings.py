"""Ways in which persons are coupled on typed graphs: none is accepted.

Each is planted in an honest shop, or in what is done with it, and is refused
by name. The honest shop, model and batch pass.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from shops import (
    BY,
    HAS,
    IN,
    KNOWS,
    SOLD,
    WIDTHS,
    declared,
    shared_items,
    shop,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import HeteroData
from torch_geometric.loader import HGTLoader, NeighborLoader
from torch_geometric.nn import (
    GraphSAGE,
    HANConv,
    HeteroBatchNorm,
    HeteroConv,
    SAGEConv,
    to_hetero,
)
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust.loader import DisjointWalkLoader, UnitLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import MetapathFeatures
from pyg_trust.unlearning import ShardedUnlearner

N = 60
TYPES, RELATIONS = shop(n=N).metadata()


def orders(data: HeteroData) -> Tensor:
    return data[HAS].edge_index[1].bincount(minlength=data['item'].num_nodes)


def with_column(data: HeteroData, t: str, column: Tensor) -> HeteroData:
    data[t].x = torch.cat([data[t].x.double(), column.double()[:, None]], 1)
    return data


def train(
    model: nn.Module, data: HeteroData, loader: Any = None, **given: Any
) -> None:
    """Take one private step."""
    made = loader or UnitLoader(data, declared(data), 5, seed=0, **given)
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    private = PrivacyEngine(seed=1).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=made,
        noise_multiplier=4.0,
        max_grad_norm=0.2,
    )
    batch = next(iter(private.loader))
    out = private.model(batch.x_dict, batch.edge_index_dict)
    out = out['user'] if isinstance(out, dict) else out
    F.cross_entropy(out, batch['user'].y).backward()
    private.optimizer.step()


def sage() -> nn.Module:
    return to_hetero(GraphSAGE((-1, -1), 6, 2, 3), (TYPES, RELATIONS))


class Coupled(nn.Module):
    """An honest model, and rows of a type that hear of others."""

    def __init__(self, t: str, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.t, self.change, self.model = t, change, sage()

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {**x, self.t: self.change(x[self.t])}
        return self.model(x, edges)['user']


class Table(nn.Module):
    """A vector for each row of a type, by its position."""

    def __init__(self, data: HeteroData, t: str) -> None:
        super().__init__()
        self.t, self.model = t, sage()
        self.own = nn.Embedding(int(data[t].num_nodes), WIDTHS[t])

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {**x, self.t: x[self.t] + self.own.weight[: len(x[self.t])]}
        return self.model(x, edges)['user']


class Norm(nn.Module):
    """Normalised by type, over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = HeteroBatchNorm(3, 1)
        self.model = sage()

    def forward(self, x: Any, edges: Any) -> Tensor:
        none = torch.zeros(len(x['user']), dtype=torch.int64)
        x = {**x, 'user': self.norm(x['user'], none)}
        return self.model(x, edges)['user']


class HAN(nn.Module):
    """Attention over relations by a mean over all rows of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = HANConv(WIDTHS, 4, (TYPES, RELATIONS), heads=1)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Any, edges: Any) -> Tensor:
        return self.out(self.conv(x, edges)['user'])


class Memory(nn.Module):
    """A state of each row that lasts from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = sage()
        self.register_buffer('seen', torch.zeros(3))

    def forward(self, x: Any, edges: Any) -> Tensor:
        self.seen += x['user'].detach().mean(0)
        return self.model({**x, 'user': x['user'] + self.seen}, edges)['user']


class PlainSage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = HeteroConv({e: SAGEConv((-1, -1), 3) for e in RELATIONS})

    def forward(self, x: Any, edges: Any) -> Any:
        return self.conv(x, edges)


def one_in_two_tables(data: HeteroData) -> None:
    """A user sells, too, and is the same row there."""
    data['seller'].x = data['user'].x[:9].flip(0).clone()
    owner = torch.arange(9)
    declared(
        data,
        owned={'order': BY, 'seller': owner},
        same=None,
    )


def two_owners(data: HeteroData) -> None:
    more = torch.tensor([[0], [1 - int(data[BY].edge_index[1, 0] > 0)]])
    data[BY].edge_index = torch.cat([data[BY].edge_index, more], 1)
    declared(data)


def nearly_mirrored(data: HeteroData) -> None:
    data[SOLD].edge_index = data[SOLD].edge_index[:, 1:]
    declared(data)


def counted(data: HeteroData) -> None:
    declared(with_column(data, 'item', orders(data).double().log1p()))


def averaged(data: HeteroData) -> None:
    order, item = data[HAS].edge_index
    total = torch.zeros(data['item'].num_nodes, dtype=torch.float64)
    total.index_add_(0, item, data['order'].x[order, 0].double())
    declared(with_column(data, 'item', total / orders(data).clamp(min=1)))


def order_before(data: HeteroData) -> None:
    """The order before in the log, of whomever."""
    declared(with_column(data, 'order', data['order'].x[:, 0].roll(1)))


def time_since(data: HeteroData) -> None:
    """Since somebody's last order, as a log has it."""
    n = int(data['order'].num_nodes)
    draw = torch.Generator().manual_seed(1)
    time = torch.rand(n, generator=draw).cumsum(0)
    since = time - torch.cat([time[:1] - 1, time[:-1]])
    data['order'].time = time
    declared(with_column(data, 'order', since))


def acquaintances(data: HeteroData) -> None:
    count = data[KNOWS].edge_index[1].bincount(minlength=N)
    declared(with_column(data, 'user', count))


def labels_of_friends(data: HeteroData) -> None:
    one, two = data[KNOWS].edge_index
    total = torch.zeros(N).index_add_(0, one, data['user'].y[two].float())
    count = one.bincount(minlength=N).clamp(min=1)
    declared(with_column(data, 'user', total / count))


def through_others(data: HeteroData) -> None:
    unit = declared(data)
    data = MetapathFeatures([[HAS, HAS]], 'order', unit=unit)(data)
    UnitLoader(data, unit, 5)


def another_unit(data: HeteroData) -> None:
    """Its owner calls orders public."""
    other = declared(
        data,
        owned={},
        public=('item', 'category', 'order'),
        public_edges=(IN, HAS, SOLD),
    )
    data = MetapathFeatures([[BY, HAS]], 'user', unit=other)(data)
    UnitLoader(data, declared(data), 5)


def rows_alone(data: HeteroData) -> None:
    """Rows without persons, which are several of them."""
    flat = HeteroData()
    for t in TYPES:
        flat[t].x = F.pad(data[t].x, (0, 4 - data[t].x.size(1)))
    for e in RELATIONS:
        flat[e].edge_index = data[e].edge_index
    DisjointWalkLoader(flat.to_homogeneous(), 5, 0, unit=declared(data))


def walked(data: HeteroData) -> None:
    DisjointWalkLoader(data, 5, 1, unit=declared(data))


def two_names(data: HeteroData) -> None:
    """Who is in training, and as somebody else in the test."""
    unit = declared(data, same=torch.tensor([[0], [9]]))
    UnitLoader(data, unit, 5, input_nodes=torch.arange(5))


def shared(data: HeteroData) -> None:
    made = UnitLoader(data, declared(data), 5)
    made.check_batch(shared_items(made([2, 3, 5, 8])), 0, 4)


def moved_order(data: HeteroData) -> None:
    """An order in a subgraph of somebody else."""
    made = UnitLoader(data, declared(data), 5)
    batch = made([*range(8)])
    batch['order'].batch = batch['order'].batch.flip(0)
    made.check_batch(batch, 0, 8)


def missing_type(data: HeteroData) -> None:
    """Who has no order would show it by the type that lacks."""
    made = UnitLoader(data, declared(data), 5)
    batch = made([2, 3, 5, 8])
    del batch['order']
    made.check_batch(batch, 0, 4)


def one_in_many(kind: Any, data: HeteroData, **given: Any) -> None:
    """Sampled around seeds: one person is in many subgraphs."""
    train(PlainSage(), data, kind(data, batch_size=5, **given))


def removed_by_row(data: HeteroData) -> None:
    """Orders stay in what was trained on the table alone."""
    given = {'num_classes': 3, 'epochs': 2, 'aggregator': 'mean', 'seed': 0}
    for e in data.edge_types:
        data[e].pop('by', None)
    data['user'].train_mask = torch.ones(N, dtype=torch.bool)
    model = ShardedUnlearner(sage, 2, **given)
    model.fit(data)


def removed_from_two(data: HeteroData) -> None:
    """A name that goes, and another one of the same person that stays."""
    unit = declared(data, same=torch.tensor([[0], [9]]))
    RemovalRequest(persons=[0], unit=unit)


Case = tuple[Callable[[HeteroData], Any], str]
ROWS = "'data' needs rows that were not made from other persons"
COUPLED: dict[str, Case] = {
    'R1 a type of nobody': (
        lambda d: declared(d, joint={}),
        'missing: .*chat',
    ),
    'R1 a type declared twice': (
        lambda d: declared(d, public=('item', 'category', 'order')),
        'types twice',
    ),
    'R1 an order of two': (two_owners, 'one owner, by one edge'),
    'R2 reverse edges that lack one': (nearly_mirrored, 'mirror each other'),
    'R3 one person in two tables': (one_in_two_tables, "'same' is needed"),
    'R3 a removal by one of two names': (removed_from_two, 'one row each'),
    'R4 clicks of nobody': (
        lambda d: declared(d, edge_owner={}),
        "'public_edges' or 'edge_owner'",
    ),
    'R4 counts in a public table': (counted, ROWS),
    'R4 averages in a public table': (averaged, ROWS),
    'R4 the order before': (order_before, ROWS),
    'R4 time since the last order': (time_since, ROWS),
    'R4 how many know a user': (acquaintances, ROWS),
    'R4 labels of friends': (labels_of_friends, ROWS),
    'R5 walks between persons': (walked, "'walk_length' needs to be 0"),
    'R7 a path through others': (through_others, 'marked as propagated'),
    'R7 a path that is own of another unit': (another_unit, 'another unit'),
    'R8 a vector for each user': (
        lambda d: train(Table(d, 'user'), d),
        "'module'",
    ),
    'R8 a vector for each order': (
        lambda d: train(Table(d, 'order'), d),
        "'module'",
    ),
    'R8 batch norm by type': (lambda d: train(Norm(), d), 'Norm'),
    'R8 HAN': (lambda d: train(HAN(), d), 'apart'),
    'R8 softmax over a type': (
        lambda d: train(Coupled('order', lambda x: x.softmax(0)), d),
        'apart',
    ),
    'R8 how many orders the batch has': (
        lambda d: train(Coupled('order', lambda x: x / (1 + len(x))), d),
        'apart|changes with the',
    ),
    'R9 a public row for several': (shared, 'whole, distinct'),
    'R9 an order of somebody else': (moved_order, 'whole, distinct|persons'),
    'R9 a type that is missing': (missing_type, 'as the schema has it'),
    'R10 NeighborLoader': (
        lambda d: one_in_many(
            NeighborLoader, d, num_neighbors=[3, 3], input_nodes='user'
        ),
        'UnitLoader',
    ),
    'R10 HGTLoader': (
        lambda d: one_in_many(
            HGTLoader, d, num_samples=[9, 9], input_nodes='user'
        ),
        'UnitLoader',
    ),
    'R11 rows without persons': (rows_alone, 'sizes or edges differ'),
    'R12 a memory of earlier batches': (lambda d: train(Memory(), d), 'seen'),
    'R13 one in training and in the test': (two_names, 'one row each'),
    'a table of rows for all tables': (removed_by_row, 'PrivacyUnit'),
}


def test_what_is_honest_is_taken() -> None:
    train(sage(), shop(n=N))


def test_there_are_25() -> None:
    assert len(COUPLED) >= 25
    named = {name.split()[0] for name in COUPLED}
    # R6 is R1: a joint table has no rows that are persons.
    assert {f'R{i}' for i in range(1, 14) if i != 6} <= named


@pytest.fixture(autouse=True)
def many_items(monkeypatch: Any) -> None:
    """A column tells a count if that is no chance: not of seven rows."""
    monkeypatch.setattr('shops.ITEMS', 40)


@pytest.mark.parametrize('case', COUPLED)
def test_what_couples_persons_is_refused(case: str) -> None:
    if 'HGTLoader' in case and not WITH_TORCH_SPARSE:
        pytest.skip('HGTLoader needs torch-sparse')
    plant, message = COUPLED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        plant(shop(n=N))
