"""Batches of persons with all they own."""

import random
from typing import Any

import pytest
import torch
from shops import BY, KNOWS, WIDTHS, declared, shared_items, shop
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust.loader import UnitLoader

Part = dict[Any, Tensor]


def loader(data: HeteroData, size: int = 4, **options: Any) -> UnitLoader:
    return UnitLoader(data, declared(data), size, **{'seed': 0, **options})


def part(batch: HeteroData, number: int) -> Part:
    """All that a model may read of one subgraph, its places counted anew."""
    found: Part = {}
    place = {}
    for t in batch.node_types:
        mine = batch[t].batch == number
        place[t] = mine.cumsum(0) - 1
        found[t] = batch[t].x[mine]
        if 'y' in batch[t]:
            found['y'] = batch[t].y[number]
    for e in batch.edge_types:
        source, target = batch[e].edge_index
        mine = batch[e[0]].batch[source] == number
        assert mine.equal(batch[e[2]].batch[target] == number)
        found[e] = torch.stack(
            [place[e[0]][source[mine]], place[e[2]][target[mine]]]
        )
    return found


def equal(one: Part, two: Part) -> bool:
    return one.keys() == two.keys() and all(
        value.equal(two[key]) for key, value in one.items()
    )


def test_a_batch_has_the_rows_of_its_persons_and_every_type() -> None:
    data = shop()
    made = loader(data, 5, num_steps=4)
    for step, batch in enumerate(made):
        assert made.check_batch(batch, step, 5)[1] == 5
        assert batch['user'].batch_size == 5
        assert batch['user'].n_id.equal(batch['user'].input_id)
        assert batch['user'].y.equal(data['user'].y[batch['user'].n_id])
        assert batch['user'].batch.equal(torch.arange(5))
        assert batch.metadata() == data.metadata()
        for t in data.node_types:
            assert batch[t].x.equal(data[t].x[batch[t].n_id])
            assert batch[t].batch.equal(batch[t].batch.sort().values)
        owner = data[BY].edge_index[1]
        mine = batch['user'].n_id[batch['order'].batch]
        assert owner[batch['order'].n_id].equal(mine)
        assert not batch['chat'].x.numel()
        # Edges between persons are in none, but to oneself.
        assert batch[KNOWS].edge_index[0].equal(batch[KNOWS].edge_index[1])


def test_nobody_is_a_batch_of_every_type() -> None:
    data = shop()
    made = loader(data, 4, sampling='poisson')
    batch = made([])
    assert made.check_batch(batch, 0)[1] == 0
    assert batch.metadata() == data.metadata()
    for t, width in WIDTHS.items():
        assert batch[t].x.shape == (0, width)
    for e in data.edge_types:
        assert batch[e].edge_index.shape == (2, 0)
    assert batch['user'].y.shape == (0,)
    assert loader(data).schema.flat(batch).x.shape == (0, 4)


@pytest.mark.parametrize(
    'block',
    [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))],
)
def test_one_person_changes_one_subgraph(block: int) -> None:
    # Of 200 databases, all persons: everything that one owns is another.
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        n = rng.randint(3, 8)
        hops = rng.randint(0, 3)
        data = shop(seed, n)
        index = rng.sample(range(n), n)
        before = loader(data, 1, hops=hops)(index)
        moved = 0
        for person in range(n):
            other = shop(seed, n, changed=person)
            after = loader(other, 1, hops=hops)(index)
            changed = [
                i
                for i in range(n)
                if not equal(part(before, i), part(after, i))
            ]
            assert set(changed) <= {index.index(person)}
            moved += len(changed)
        assert moved


def test_others_stay_if_one_has_a_thousand_orders_more() -> None:
    few, many = shop(1), shop(1, orders={3: 1000})
    index = [5, 3, 0, 7, 11]
    before, after = loader(few)(index), loader(many)(index)
    assert len(after['order'].x) > 1000 > len(before['order'].x)
    for i in range(5):
        same = equal(part(before, i), part(after, i))
        assert same == (index[i] != 3)


def test_workers_make_the_same_batches() -> None:
    data = shop()
    alone = loader(data, num_steps=5)
    shared = loader(data, num_steps=5, num_workers=2)
    for one, two in zip(alone, shared, strict=True):
        assert one['user'].input_id.equal(two['user'].input_id)
        for i in range(4):
            assert equal(part(one, i), part(two, i))


def test_some_persons_are_chosen() -> None:
    data = shop()
    mask = torch.arange(12) % 3 == 1
    for given in (mask, mask.nonzero().view(-1)):
        made = loader(data, 2, input_nodes=given, num_steps=8)
        assert made.num_subgraphs == 4
        for step, batch in enumerate(made):
            assert made.check_batch(batch, step, 2)[1] == 2
            assert bool(mask[batch['user'].n_id].all())


def test_a_graph_and_its_batch_are_the_same() -> None:
    data = shop()
    made = loader(data)
    batch = made([2, 9, 4])
    flat = made.flat(batch)
    assert flat.batch[flat.edge_index[0]].equal(flat.batch[flat.edge_index[1]])
    again = made.schema.typed(flat)
    for i in range(3):
        one, two = part(batch, i), part(again, i)
        assert equal(one, two)
    # In any order of rows, too.
    order = torch.arange(len(flat.x)).flip(0)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    for name in ('x', 'n_id', 'batch', 'node_type'):
        flat[name] = flat[name][order]
    flat.edge_index = place[flat.edge_index]
    again = made.schema.typed(flat)
    for e in data.edge_types:
        pairs = {
            (int(again[e[0]].n_id[i]), int(again[e[2]].n_id[j]))
            for i, j in again[e].edge_index.t().tolist()
        }
        assert pairs == {
            (int(batch[e[0]].n_id[i]), int(batch[e[2]].n_id[j]))
            for i, j in batch[e].edge_index.t().tolist()
        }


def test_made_up_batches_lack_types_and_edges() -> None:
    made = loader(shop()).schema.typed(loader(shop()).schema.made(16))
    assert made['user'].batch.equal(torch.arange(16))
    for t in ('order', 'item', 'category', 'chat'):
        sizes = made[t].batch.bincount(minlength=16)
        assert int(sizes.min()) == 0
        assert int(sizes.max()) == 4
    edges = torch.zeros(16)
    for e in made.edge_types:
        ends = [
            made[t].batch[i]
            for t, i in zip(e[::2], made[e].edge_index, strict=True)
        ]
        assert ends[0].equal(ends[1])
        edges += ends[0].bincount(minlength=16)
    assert int((edges == 0).sum()) == 2


def strangers(batch: HeteroData) -> HeteroData:
    # An order of somebody else, in the place of one's own.
    batch['order'].n_id = (batch['order'].n_id + 1) % 18
    return batch


def without_orders(batch: HeteroData) -> HeteroData:
    batch['order'].x = batch['order'].x[:0]
    batch['order'].n_id = batch['order'].n_id[:0]
    batch['order'].batch = batch['order'].batch[:0]
    for e in batch.edge_types:
        if 'order' in e:
            batch[e].edge_index = batch[e].edge_index[:, :0]
    return batch


def rolled(batch: HeteroData) -> HeteroData:
    # Copies of the next subgraph.
    batch['item'].batch = (batch['item'].batch + 1) % 4
    return batch


def without_a_type(batch: HeteroData) -> HeteroData:
    del batch['category']
    return batch


BAD = {
    strangers: 'whole, distinct',
    without_orders: 'whole, distinct',
    shared_items: 'whole, distinct',
    rolled: 'whole, distinct',
    without_a_type: 'as the schema has it',
}


@pytest.mark.parametrize('change', BAD)
def test_batches_of_others_are_refused(change: Any) -> None:
    data = shop()
    made = loader(data)
    batch = made([2, 3, 5, 8])
    assert made.check_batch(batch, 0, 4)[1] == 4
    with pytest.raises(ValueError, match=BAD[change]):
        made.check_batch(change(batch), 0, 4)


def test_the_settings_tell_no_private_number() -> None:
    def told(data: HeteroData) -> str:
        made = UnitLoader(
            data,
            declared(data),
            3,
            sampling='poisson',
            relation='add_remove',
            sample_rate=0.25,
        )
        return repr((made.setting(), made.public(), made.assumptions(), made))

    assert told(shop(1)) == told(shop(1, orders={3: 1000}))
    assert told(shop(1)) == told(shop(1, 13))
    few = loader(shop(1)), loader(shop(1, orders={3: 1000}))
    assert few[0].public() == few[1].public()


def test_wrong_arguments() -> None:
    data = shop()
    unit = declared(data)
    for options, match in (
        ({'batch_size': 13}, "'batch_size' needs to be at most 12"),
        ({'relation': 'add_remove'}, "'relation' needs to be 'replace'"),
        ({'sampling': 'poisson', 'sample_rate': 0.1}, "'sample_rate' needs"),
        ({'input_nodes': torch.zeros(12).bool()}, "'input_nodes' needs"),
        ({'input_nodes': torch.tensor([3, 3])}, "'input_nodes' needs"),
        ({'input_nodes': torch.tensor([12])}, "'input_nodes' needs"),
        ({'input_nodes': torch.ones(12)}, "'input_nodes' needs"),
        ({'hops': -1}, "'hops'"),
        ({'transform': lambda batch: batch['user']}, 'HeteroData'),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            UnitLoader(data, unit, **{'batch_size': 4, **options})
    with pytest.raises(TypeError, match="'shuffle' cannot be chosen"):
        UnitLoader(data, unit, 4, shuffle=True)
    for change, match in (
        (
            lambda d: d['item'].update({'x': None, 'num_nodes': 7}),
            "features 'x' of 'item'",
        ),
        (lambda d: d['item'].update({'x': d['item'].x.double()}), 'one fl'),
        (lambda d: d['item'].update({'x': d['item'].x.long()}), "of 'item'"),
        (lambda d: d['item'].update({'propagated': ('x',)}), "rows of 'item'"),
    ):
        other = shop()
        unit = declared(other)
        change(other)
        with pytest.raises(ValueError, match=match):
            UnitLoader(other, unit, 4)
    other = shop(2)
    with pytest.raises(ValueError, match='sizes or edges differ'):
        UnitLoader(other, declared(data), 4)
    unit = declared(data, same=torch.tensor([[1], [5]]))
    with pytest.raises(ValueError, match='one row each'):
        UnitLoader(data, unit, 4)
