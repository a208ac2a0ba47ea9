"""Columns made from other persons are refused, and honest ones are not."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust._checks.tables import (
    follows,
    lags,
    tells_counts,
    tells_neighbors,
)
from pyg_trust.unit import PrivacyUnit

BY, HAS = ('order', 'by', 'user'), ('order', 'has', 'item')
KNOWS, REV = ('user', 'knows', 'user'), ('item', 'rev_has', 'order')
N, ORDERS, ITEMS = 80, 400, 50


def shop(seed: int = 0) -> HeteroData:
    """Users who know each other, orders of one item each, and items."""
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=draw)

    data = HeteroData()
    data['user'].x, data['order'].x = rand(N, 3), rand(ORDERS, 3)
    data['item'].x = rand(ITEMS, 3)
    data['user'].y = (rand(N) < 0.5).long()
    data['order'].y = (rand(ORDERS) < 0.4).long()
    each = torch.arange(ORDERS)
    by = (rand(ORDERS) * N).long()
    # A few items are in most orders.
    has = (rand(ORDERS).square() * ITEMS).long()
    data[BY].edge_index = torch.stack([each, by])
    data[HAS].edge_index = torch.stack([each, has])
    data[REV].edge_index = data[HAS].edge_index.flip(0)
    knows = (rand(2, 300) * N).long()
    data[KNOWS].edge_index = knows[:, knows[0] != knows[1]].unique(dim=1)
    return data


def declared(data: HeteroData) -> PrivacyUnit:
    return PrivacyUnit(data, 'user', owned={'order': BY}, public=('item',))


def popularity(data: HeteroData) -> Tensor:
    return data[HAS].edge_index[1].bincount(minlength=ITEMS)


def buyers(data: HeteroData) -> Tensor:
    owner, item = data[BY].edge_index[1], data[HAS].edge_index[1]
    pairs = torch.stack([item, owner]).unique(dim=1)
    return pairs[0].bincount(minlength=ITEMS).float()


def calendar() -> Tensor:
    """A temperature by day, 100 days for one person after the other."""
    days = torch.rand(100, generator=torch.Generator().manual_seed(7))
    return days.repeat(ORDERS // 100)


def over(index: Tensor, value: Tensor, size: int, how: str) -> Tensor:
    out = torch.zeros(size)
    value = value.float()[index[1]]
    return out.scatter_reduce(0, index[0], value, how, include_self=False)


def of_items(data: HeteroData, value: Tensor, how: str) -> Tensor:
    return over(data[REV].edge_index, value, ITEMS, how)


def of_friends(data: HeteroData, value: Tensor, how: str) -> Tensor:
    return over(data[KNOWS].edge_index, value, N, how)


def age(data: HeteroData) -> Tensor:
    # The first column of each order's user.
    return data['user'].x[data[BY].edge_index[1], 0]


def before(data: HeteroData, value: Tensor, by: Tensor) -> Tensor:
    # The value of the row before with the same 'by', in order of rows.
    out, last = value.clone(), {}
    for i, group in enumerate(by.tolist()):
        out[i] = value[last[group]] if group in last else -1
        last[group] = i
    return out


def decided(data: HeteroData) -> Tensor:
    # The answer, yes or no, of the row before.
    data['order'].y = data['order'].y.bool()
    return data['order'].y.roll(1).double()


def before_all(value: Tensor) -> Tensor:
    return value.cumsum(0) - value


def rank(by: Tensor) -> Tensor:
    # How many rows before have the same 'by'.
    groups = by.tolist()
    return torch.tensor([groups[:i].count(g) for i, g in enumerate(groups)])


def item_of(data: HeteroData) -> Tensor:
    return data[HAS].edge_index[1]


# By name: the table, and a column of it.
Column = Callable[[HeteroData], Tensor]
COUPLED: dict[str, tuple[str, Column]] = {
    'popularity': ('item', popularity),
    'its logarithm': ('item', lambda d: popularity(d).double().log1p()),
    'its square root': ('item', lambda d: popularity(d).double().sqrt()),
    'standardised': (
        'item',
        lambda d: (
            (popularity(d) - popularity(d).double().mean())
            / popularity(d).double().std()
        ),
    ),
    'its inverse': ('item', lambda d: 1 / (1.0 + popularity(d))),
    'its rank': (
        'item',
        lambda d: popularity(d).argsort(stable=True).argsort(),
    ),
    'its rank, downwards': (
        'item',
        lambda d: popularity(d).argsort(descending=True).argsort(),
    ),
    'its quantile': (
        'item',
        lambda d: popularity(d).argsort(stable=True).argsort() // 5,
    ),
    'numbers of buyers': ('item', buyers),
    'their logarithm': ('item', lambda d: buyers(d).log1p()),
    'an average of orders': (
        'item',
        lambda d: of_items(d, d['order'].x[:, 1], 'mean'),
    ),
    'a sum of orders': (
        'item',
        lambda d: of_items(d, d['order'].x[:, 1], 'sum'),
    ),
    'the largest order': (
        'item',
        lambda d: of_items(d, d['order'].x[:, 2], 'amax'),
    ),
    'the smallest order': (
        'item',
        lambda d: of_items(d, d['order'].x[:, 2], 'amin'),
    ),
    'the rate of a label': (
        'item',
        lambda d: of_items(d, d['order'].y, 'mean'),
    ),
    'the average age of buyers': (
        'item',
        lambda d: of_items(d, age(d), 'mean'),
    ),
    'numbers of followers': (
        'user',
        lambda d: d[KNOWS].edge_index[1].bincount(minlength=N),
    ),
    'numbers of followed': (
        'user',
        lambda d: d[KNOWS].edge_index[0].bincount(minlength=N).sqrt(),
    ),
    'both together': (
        'user',
        lambda d: d[KNOWS].edge_index.flatten().bincount(minlength=N),
    ),
    "an average of friends' columns": (
        'user',
        lambda d: of_friends(d, d['user'].x[:, 1], 'mean'),
    ),
    "a sum of friends' columns": (
        'user',
        lambda d: of_friends(d, d['user'].x[:, 1], 'sum'),
    ),
    "the share of friends' labels": (
        'user',
        lambda d: of_friends(d, d['user'].y, 'mean'),
    ),
    'the row before': ('order', lambda d: d['order'].x[:, 0].roll(1)),
    'five rows before': ('order', lambda d: d['order'].x[:, 1].roll(5)),
    'nine rows before': ('order', lambda d: d['order'].x[:, 1].roll(9)),
    'a hundred rows before': (
        'order',
        lambda d: d['order'].x[:, 2].roll(137),
    ),
    'the label of long before': ('order', lambda d: d['order'].y.roll(43)),
    'another user far before': ('user', lambda d: d['user'].x[:, 1].roll(31)),
    'the label of the row before': (
        'order',
        lambda d: d['order'].y.roll(1),
    ),
    'the label of the row before, yes or no': ('order', decided),
    'the change since the row before': (
        'order',
        lambda d: d['order'].x[:, 0] - d['order'].x[:, 0].roll(1),
    ),
    'the row before, on another scale': (
        'order',
        lambda d: 3 - 0.1 * d['order'].x[:, 0].roll(1).float(),
    ),
    'a label before of the item, standardised': (
        'order',
        lambda d: 2.5 * before(d, 2 * d['order'].y + 1, item_of(d)) - 0.7,
    ),
    'the sum of all rows before': (
        'order',
        lambda d: before_all(d['order'].x[:, 0].double()),
    ),
    'the row before of the item': (
        'order',
        lambda d: before(d, d['order'].x[:, 0], item_of(d)),
    ),
    'time since the last order of the item': (
        'order',
        lambda d: (
            d['order'].x[:, 0] - before(d, d['order'].x[:, 0], item_of(d))
        ),
    ),
    'earlier orders of the item': ('order', lambda d: rank(item_of(d))),
    'their logarithm in time': (
        'order',
        lambda d: rank(item_of(d)).double().log1p(),
    ),
    'the popularity of its item': (
        'order',
        lambda d: popularity(d)[item_of(d)],
    ),
    'the rate of a label for its item': (
        'order',
        lambda d: of_items(d, d['order'].y, 'mean')[item_of(d)],
    ),
    'the followers of its user': (
        'order',
        lambda d: (
            d[KNOWS].edge_index[1].bincount(minlength=N)[d[BY].edge_index[1]]
        ),
    ),
}


def planted(data: HeteroData, table: str, column: Tensor, key: str) -> None:
    if key == 'x':
        column = torch.cat([data[table].x.double(), column[:, None]], 1)
    data[table][key] = column


@pytest.mark.parametrize('key', ['x', 'told'])
@pytest.mark.parametrize('case', COUPLED)
def test_a_column_made_from_others_is_refused(case: str, key: str) -> None:
    data = shop()
    declared(data)
    table, make = COUPLED[case]
    planted(data, table, make(data), key)
    with pytest.raises(ValueError, match="'data' needs rows that were not"):
        declared(data)


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('case', COUPLED)
def test_the_same_numbers_in_another_order_are_not(
    case: str, seed: int
) -> None:
    """The numbers are as likely as before, and of nobody."""
    data = shop()
    table, make = COUPLED[case]
    column = make(data)
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(column), generator=draw)
    planted(data, table, column[order], 'x')
    declared(data)


# What a person knows about itself, and what was copied from public rows.
HONEST: dict[str, tuple[str, Column]] = {
    'its order before': (
        'order',
        lambda d: before(d, d['order'].x[:, 0], d[BY].edge_index[1]),
    ),
    'time since its order before': (
        'order',
        lambda d: (
            d['order'].x[:, 0]
            - before(d, d['order'].x[:, 0], d[BY].edge_index[1])
        ),
    ),
    'its number of orders': (
        'user',
        lambda d: d[BY].edge_index[1].bincount(minlength=N),
    ),
    'its average order': (
        'user',
        lambda d: over(
            d[BY].edge_index.flip(0), d['order'].x[:, 1], N, 'mean'
        ),
    ),
    'the price of its item': (
        'order',
        lambda d: d['item'].x[item_of(d), 2],
    ),
    'its age': ('order', age),
    'a day of the week': ('order', lambda d: torch.arange(ORDERS) % 7),
    'a constant': ('order', lambda d: torch.ones(ORDERS)),
    'a time that grows': ('order', lambda d: torch.arange(ORDERS) * 0.5),
    'a calendar of each person': ('order', lambda d: calendar()),
}


@pytest.mark.parametrize('case', HONEST)
def test_a_column_of_ones_own_is_taken(case: str) -> None:
    data = shop()
    table, make = HONEST[case]
    planted(data, table, make(data), 'x')
    declared(data)


@pytest.mark.parametrize('seed', range(20))
def test_tables_of_few_values_are_taken(seed: int) -> None:
    """Bits, codes and small counts agree by chance in some rows."""
    data = shop(seed)
    draw = torch.Generator().manual_seed(100 + seed)
    for t in data.node_types:
        shape = (int(data[t].num_nodes), 100)
        few = torch.randint(2 + seed % 3, shape, generator=draw)
        data[t].x = few.float()
        data[t].time = torch.randint(9, shape[:1], generator=draw)
    declared(data)


def test_a_column_that_rises_by_chance_is_taken() -> None:
    """Nearly all are zeros: two rows are where they are once in a hundred."""
    data = shop()
    count = popularity(data)
    column = torch.zeros(ITEMS)
    most = count.argsort(descending=True)
    column[most[0]], column[most[1]] = 2, 1
    planted(data, 'item', column, 'x')
    declared(data)
    column = count.double().clamp(max=3)
    planted(data, 'item', column, 'x')
    with pytest.raises(ValueError, match='counts or ranks'):
        declared(data)


@pytest.mark.parametrize('way', [0, 1])
def test_what_only_one_other_has_is_refused(way: int) -> None:
    data = shop()
    ends = torch.stack([torch.arange(N), torch.arange(N) // 4])
    data[KNOWS].edge_index = ends if way else ends.flip(0)
    planted(data, 'user', data['user'].x[ends[1].roll(1), 1], 'x')
    declared(data)
    data['user'].x[:, -1] = data['user'].x[ends[1], 1]
    with pytest.raises(ValueError, match='holds another, at the edges'):
        declared(data)
    # What both have may be why they know each other.
    data['user'].x = torch.cat([torch.rand(20, 3)] * 4)
    alike = torch.stack([torch.arange(20, N), torch.arange(N - 20)])
    data[KNOWS].edge_index = alike
    declared(data)


@pytest.mark.parametrize('shape', [(-1,), (-1, 1)])
def test_a_time_has_any_shape(shape: tuple[int, ...]) -> None:
    data = shop()
    time = torch.randperm(ORDERS, generator=torch.Generator().manual_seed(0))
    order = time.argsort()
    told = torch.zeros(ORDERS)
    told[order[1:]] = data['order'].x[order[:-1], 0]
    planted(data, 'order', told, 'x')
    declared(data)
    data['order'].time = time.view(shape)
    with pytest.raises(ValueError, match='before in time'):
        declared(data)


@pytest.mark.parametrize('case', ['a link less', 'one more', 'another one'])
def test_what_nearly_mirrors_is_refused(case: str) -> None:
    data = shop()
    index = data[REV].edge_index.clone()
    if case == 'a link less':
        index = index[:, 1:]
    elif case == 'one more':
        item = (index[0, :1] + 1) % ITEMS
        more = torch.stack([item, index[1, :1]])
        index = torch.cat([index, more], 1)
    else:
        index[0, 0] = (index[0, 0] + 1) % ITEMS
    data[REV].edge_index = index
    with pytest.raises(ValueError, match='mirror each other in full'):
        declared(data)


@pytest.mark.parametrize('rows', [1, 40])
def test_one_person_in_two_tables_needs_one_name(rows: int) -> None:
    data = shop()
    own = data[BY].edge_index[1, :rows]
    data['order'].x[:rows] = data['user'].x[(own + 1) % N]
    with pytest.raises(ValueError, match="'same' is needed"):
        declared(data)


def test_rows_of_large_tables_are_compared(monkeypatch) -> None:
    monkeypatch.setattr('pyg_trust._checks.tables._LARGE', 10)
    test_one_person_in_two_tables_needs_one_name(1)
    declared(shop())


# Of few bits none tells.
TELLING = [
    case
    for case, (table, _) in COUPLED.items()
    if table != 'user' and 'label of the row' not in case
]


@pytest.mark.parametrize('kind', ['real', 'code', 'bit', 'rare bit'])
@pytest.mark.parametrize('n', [60, 400, 3000, 100_000])
def test_lags_of_any_length_are_found(kind: str, n: int) -> None:
    draw = torch.Generator().manual_seed(n)
    value = torch.rand(n, generator=draw)
    column = {
        'real': value,
        'code': (value * 20).floor(),
        'bit': (value < 0.3).double(),
        'rare bit': (value < 0.03).double(),
    }[kind]
    table = torch.cat(
        [column[:, None].double(), torch.rand(n, 2, generator=draw)], 1
    )
    assert not lags([table], 9) or kind != 'real'
    rows = {'bit': 200, 'rare bit': 1100}.get(kind, 30)
    for k in (9, 10, n // 7, n // 2, n - rows):
        if not 9 <= k <= n - rows:
            continue
        found = lags([table, column.roll(k)[:, None]], 9)
        assert k in found, (k, found)
        assert len(found) <= 16


@pytest.mark.parametrize('lag', [1, 5, 23])
def test_joint_rows_hold_no_row_of_strangers(lag: int) -> None:
    """What a co-owner has before is of the row, too."""
    data = shop()
    user = torch.arange(ORDERS) * 7 // 100 % N
    more = (torch.arange(ORDERS) * 13 % N) // 3
    of = torch.stack([torch.arange(ORDERS).repeat(2), torch.cat([user, more])])
    sets = [{*pair} for pair in zip(user.tolist(), more.tolist(), strict=True)]
    value = data['order'].x[:, 0].clone()
    value[:lag] = 0
    value[lag:] = data['order'].x[:-lag, 0]
    own = [i >= lag and sets[i - lag] <= sets[i] for i in range(ORDERS)]
    column = torch.where(torch.tensor(own), value, 0)

    def declare(held: Tensor) -> None:
        given = data.clone()
        planted(given, 'order', held, 'x')
        PrivacyUnit(given, 'user', joint={'order': of}, public=('item',))

    declare(column)
    with pytest.raises(ValueError, match='holds another'):
        declare(value)
    assert lag > 5 or column.any()


def ordered(data: HeteroData, *columns: Tensor) -> None:
    x = [data['order'].x.double(), *(c.view(ORDERS, -1) for c in columns)]
    data['order'].x = torch.cat([each.double() for each in x], 1)
    declared(data)


@pytest.mark.parametrize('seed', range(3))
def test_columns_by_position_and_copies_are_no_lags(seed: int) -> None:
    data = shop(seed)
    draw = torch.Generator().manual_seed(seed)
    day = torch.arange(ORDERS)
    bit = (torch.rand(ORDERS, generator=draw) < 0.02).double()
    grows = torch.rand(ORDERS, generator=draw).sort().values
    # Made and due; a calendar of weeks, and one of each person, twice.
    ordered(data, day, day + 30, day // 4, day // 4 + 14, day * 0.1)
    ordered(data, calendar(), calendar(), calendar() > 0.5)
    ordered(data, day % 100, (day + 13) % 100)
    ordered(data, grows, 2 * grows + 1, grows.square(), day, day**2, 3 - day)
    # Equal columns, rare words, times and codes of items.
    ordered(data, bit, bit, 1 - bit, grows, grows, grows + 1)
    data = shop(seed)
    price = data['item'].x[item_of(data)]
    ordered(data, price, price, item_of(data), age(data), age(data))
    # The same rows for each person.
    data = shop(seed)
    data[BY].edge_index[1] = torch.arange(ORDERS) // 5
    same = torch.rand(5, 3, generator=draw).repeat(N, 1)
    ordered(data, same, same.flip(1), torch.eye(5).repeat(N, 1))


@pytest.mark.slow
def test_tables_of_chance_are_taken() -> None:
    # Tables of columns of all kinds, some of them alike.
    for seed in range(60):
        data, draw = shop(seed), torch.Generator().manual_seed(seed)
        value = torch.rand(ORDERS, 8, generator=draw)
        kinds = torch.randint(6, (8,), generator=draw).tolist()
        parts = []
        for c, kind in enumerate(kinds):
            x = value[:, c]
            levels = 2 + int(value[0, c] * 30)
            parts.append(
                (
                    x,
                    (x * levels).floor(),
                    (x < value[1, c] / 4).double(),
                    x.sort().values,
                    (x * levels).floor().sort().values,
                    (x * 2).floor().cumsum(0),
                )[kind]
            )
        ordered(data, *parts, *parts[:2])


@pytest.mark.parametrize('case', TELLING)
def test_some_rows_of_large_tables_tell(case: str, monkeypatch) -> None:
    monkeypatch.setattr('pyg_trust._checks.couplings._MOST', 25)
    data = shop()
    declared(data)
    table, make = COUPLED[case]
    planted(data, table, make(data), 'x')
    with pytest.raises(ValueError, match="'data' needs rows that were"):
        declared(data)


def test_empty_tables_are_declared() -> None:
    data = shop()
    data['order'].x, data['order'].y = torch.empty(0, 3), torch.empty(0)
    data['item'].x = torch.empty(0, 2)
    for e in (BY, HAS, REV):
        data[e].edge_index = torch.empty((2, 0), dtype=torch.int64)
    unit = declared(data)
    assert unit.without(data, [3])['order'].x.shape == (0, 3)
    assert unit.within(data, [3])['user'].n_id.tolist() == [3]


def test_few_rows_that_rise_with_a_count_by_chance_are_let_pass():
    # Two of 100 rows have a word, and they are those with most edges:
    # one of 9,900 pairs. All 100 in the order of their counts is no chance.
    count = torch.arange(100) % 5
    count[[3, 7]] = torch.tensor([5, 6])
    few = torch.zeros(100, 1)
    few[[3, 7], 0] = torch.tensor([1.0, 2.0])
    assert not tells_counts(few, count)
    many = count.double()[:, None] ** 2
    assert tells_counts(many, count)
    assert tells_counts(torch.cat([few.double(), -many], 1), count)


def test_real_papers_are_not_made_from_their_authors(shared):
    # Words that few papers have may rise with numbers of edges by chance.
    folder = shared / 'data/typed/dblp'
    data = HeteroData()
    words = scipy.sparse.load_npz(folder / 'p_feat.npz').toarray()
    data['paper'].x = torch.from_numpy(words).float()
    index = np.loadtxt(folder / 'pa.txt', dtype=np.int64).T[::-1].copy()
    edges = torch.from_numpy(index)
    data['author', 'writes', 'paper'].edge_index = edges
    data['author'].num_nodes = int(edges[0].max()) + 1
    PrivacyUnit(data, 'author', public=('paper',))


def test_words_that_come_together_are_no_change_since_the_row_before() -> None:
    # No row before has the second: what remains of a change is one's own.
    x = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    later, before = torch.arange(1, 400, 2), torch.arange(0, 400, 2)
    before = before[: later.numel()]
    x[:, 1:] = 0
    x[later[::25], 1:] = 1
    assert follows([x], later, before) is None
    x[before, 0] = x[later, 0].clone()
    x[:, 1] = 0
    x[later, 1] = x[before, 0]
    assert follows([x], later, before) == 1


def test_rare_words_of_others_are_compared_in_a_second() -> None:
    # Pairs of columns that could be alike are a million here.
    draw = torch.Generator().manual_seed(0)
    x = (torch.rand(600, 1000, generator=draw) < 0.005).double()
    y = (torch.rand(600, 1000, generator=draw) < 0.005).double()
    y[:, 5] = torch.rand(600, generator=draw)
    ends = torch.randint(600, (2, 3000), generator=draw)
    assert not tells_neighbors(x, y, ends)
    out = torch.zeros(600, dtype=torch.float64)
    x[:, 7] = out.index_add(0, ends[0], y[ends[1], 5])
    assert not tells_neighbors(x[:, :7], y, ends)
    assert tells_neighbors(x, y, ends)
    order = torch.arange(600)
    assert follows([x], order[1:], order[:-1]) is None
    x[:, 3] = torch.rand(600, generator=draw).double()
    x[1:, 9] = x[:-1, 3]
    assert follows([x], order[1:], order[:-1]) == 9
