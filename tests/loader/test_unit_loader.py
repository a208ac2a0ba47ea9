"""Batches of persons with all they own."""

import random
from typing import Any

import pytest
import torch
from shops import (
    BY,
    CLICK,
    HAS,
    IN,
    INTO,
    ITEMS,
    KNOWS,
    OF,
    REV,
    SEES,
    SOLD,
    WIDTHS,
    declared,
    shared_items,
    shop,
)
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust.loader import DisjointWalkLoader, UnitLoader

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
            read = batch[t].get('root_mask', torch.ones_like(mine))
            found['y'] = batch[t].y[batch[t].batch[read] == number]
            found['read'] = read[mine]
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
    for batch in made:
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


@pytest.mark.parametrize(
    'block',
    range(8),
)
def test_one_person_changes_one_subgraph(block: int) -> None:
    # Of 200 databases, all persons: everything that one owns is another.
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        n = rng.randint(3, 8)
        hops = rng.randint(0, 3)
        data = shop(seed, n)
        index = rng.sample(range(n), n)
        made = loader(data, 1, num_hops=hops)(index)
        before = [part(made, i) for i in range(n)]
        moved = 0
        for person in range(n):
            other = shop(seed, n, changed=person)
            after = loader(other, 1, num_hops=hops)(index)
            changed = [
                i for i in range(n) if not equal(before[i], part(after, i))
            ]
            assert set(changed) <= {index.index(person)}
            moved += len(changed)
        assert moved


@pytest.mark.parametrize('relation', ['replace', 'contents'])
def test_few_neighbours_are_one_s_own(relation: str) -> None:
    few, many = shop(1), shop(1, orders={3: 1000})
    most = {HAS: 1, SEES: 1, IN: 0}
    index = list(range(12))
    options = {'num_neighbors': most, 'neighboring': relation}
    before, after = (loader(data, **options)(index) for data in (few, many))
    roots = before['user'].n_id.tolist()
    assert after['user'].n_id.tolist() == roots
    assert len(after['order'].x) > 1000 > len(before['order'].x)
    for i in range(12):
        same = equal(part(before, i), part(after, i))
        assert same == (roots[i] != 3)


def test_each_row_brings_in_so_many_others() -> None:
    data = shop(1, orders=dict.fromkeys(range(12), 4))
    index = data[HAS].edge_index

    def items(**options: Any) -> list[set[int]]:
        batch = loader(data, num_hops=1, **options)(list(range(12)))
        rows = batch['item']
        return [{*rows.n_id[rows.batch == i].tolist()} for i in range(12)]

    every, none = items(), items(num_neighbors={HAS: 0})
    with pytest.raises(ValueError, match="'num_neighbors' needs one number"):
        items(num_neighbors={HAS: 1, SOLD: 2})
    assert items(num_neighbors={HAS: 0, SOLD: 0}) == none
    left_out = 0
    for k in range(1, 4):
        for p, kept in enumerate(items(num_neighbors={HAS: k})):
            # Of the items of each order, some; all others that it has.
            orders = data[BY].edge_index[0][data[BY].edge_index[1] == p]
            lists = [{*index[1][index[0] == i].tolist()} for i in orders]
            for each in lists:
                assert len(each & kept) >= min(k, len(each))
            most = sum(min(k, len(each)) for each in lists)
            assert len(kept - none[p]) <= most
            assert none[p] <= kept <= every[p]
            left_out += len(every[p] - kept)
    assert left_out


def test_those_who_leave_take_no_neighbour_of_others_along() -> None:
    data = shop(2, orders=dict.fromkeys(range(12), 3))
    unit = declared(data)
    left, again = unit._rest(data, [0, 4])
    most = {HAS: 1, SEES: 1, CLICK: 1}
    before = UnitLoader(data, unit, 4, num_neighbors=most, seed=0)
    after = UnitLoader(left, again, 4, num_neighbors=most, seed=0)
    persons = left['user'].n_id.tolist()
    one, two = before(persons), after(list(range(10)))
    for i in range(10):
        assert equal(part(one, i), part(two, i))


def test_an_edge_is_also_of_who_has_its_ends() -> None:
    # A person pays for another's order of an item: the edge is of both, and
    # brings the item into no subgraph of one.
    data = shop(1)
    pays = ('order', 'paid', 'item')
    order, item = data[HAS].edge_index
    of = data[BY].edge_index[1][order]
    data[pays].edge_index = torch.stack([order, item])
    payer = (of + 1) % 12
    payer[::3] = of[::3]
    brought = 0
    for most in ({}, {'num_neighbors': {pays: 1}}):
        made = UnitLoader(
            data,
            declared(data, edge_owner={CLICK: data[CLICK].by, pays: payer}),
            4,
            **most,
            seed=0,
        )
        alone = data.clone()
        alone[pays].edge_index = data[pays].edge_index[:, of == payer]
        other = UnitLoader(
            alone,
            declared(
                alone,
                edge_owner={
                    CLICK: data[CLICK].by,
                    pays: payer[of == payer],
                },
            ),
            4,
            **most,
            seed=0,
        )
        one, two = made(list(range(12))), other(list(range(12)))
        for i in range(12):
            assert equal(part(one, i), part(two, i))
        brought += one[pays].edge_index.size(1)
    assert brought


def test_no_view_moves_with_rows_that_others_alone_share() -> None:
    # Of persons 0 and 1, who share a chat, the first has others before it.
    def view(*others: int) -> Part:
        data = shop(1)
        of = [[i, 0] for i in range(len(others))]
        of += [[i, p] for i, p in enumerate(others)]
        of += [[len(others), 0], [len(others), 1]]
        about = ('chat', 'about', 'item')
        data['chat'].x = torch.ones(len(others) + 1, 2)
        data[OF].edge_index = torch.tensor(of).t()
        data[INTO].edge_index = data[OF].edge_index.flip(0)
        chats = torch.arange(len(others) + 1).repeat_interleave(ITEMS)
        items = torch.arange(ITEMS).repeat(len(others) + 1)
        data[about].edge_index = torch.stack([chats, items])
        made = loader(
            data, neighboring='contents', num_hops=1, num_neighbors={about: 1}
        )
        return part(made.own_view(torch.tensor([1])), 0)

    first = view()
    for others in ((2,), (2, 3), (0, 4, 5)):
        assert equal(first, view(*others))


# Walks between persons #######################################################


def held(data: HeteroData, person: int, seed: int) -> HeteroData:
    """All that one person holds is another, but who shares what with whom."""
    own = random.Random(f'{person} {seed}')
    out = data.clone()
    gone = {
        'order': [
            i
            for i, p in data[BY].edge_index.t().tolist()
            if p == person and own.random() < 0.5
        ]
    }
    chats = data[OF].edge_index
    for t, rows in (
        ('user', [person]),
        ('order', data[BY].edge_index[0][data[BY].edge_index[1] == person]),
        ('chat', chats[0][chats[1] == person]),
    ):
        for i in torch.as_tensor(rows).tolist():
            out[t].x[i] = own.gauss(0, 1)
    out['user'].y[person] = 2 - out['user'].y[person]
    keep = torch.ones(len(data['order'].x), dtype=torch.bool)
    keep[gone['order']] = False
    place = keep.cumsum(0) - 1
    out['order'].x = out['order'].x[keep]
    for e in (BY, HAS):
        rows, other = out[e].edge_index
        mine = keep[rows]
        index = torch.stack([place[rows[mine]], other[mine]])
        out[e].edge_index = index
        out[REV if e == BY else SOLD].edge_index = index.flip(0)
    # Items that one has seen, and clicks, are others.
    sees = out[SEES].edge_index
    out[SEES].edge_index = sees[:, (sees[0] != person) | (sees[1] % 2 == 0)]
    mine = out[CLICK].by != person
    out[CLICK].edge_index = out[CLICK].edge_index[:, mine]
    out[CLICK].by = out[CLICK].by[mine]
    return out


@pytest.mark.parametrize(
    'block',
    range(50),
)
def test_one_person_s_contents_change_one_claim(block: int) -> None:
    joint = several = 0
    for seed in range(4 * block, 4 * block + 4):
        rng = random.Random(seed)
        n = rng.randint(3, 8)
        options = {
            'neighboring': 'contents',
            'num_hops': rng.randint(0, 2),
            'walk_length': rng.randint(0, 3),
            'restarts': rng.randint(1, 2),
            'along': ((KNOWS,), (), ((SEES, SEES),))[seed % 3],
            'max_joint': rng.randint(1, 3),
            'num_neighbors': {HAS: 1} if seed % 3 else None,
        }
        # Of the first partition, or of a later one.
        number = seed % 2 * 3 if options['walk_length'] else 0
        options['resample_every'] = 1 if number else None
        data = shop(seed, n)
        made = loader(data, 1, **options)
        count = made.num_subgraphs_at(number)
        index = [number * n + i for i in range(count)]
        before = made(index)
        owner = before['user'].batch[before['user'].n_id.argsort()]
        several += int(owner.bincount().max()) > 1
        joint += len(before['chat'].x)
        parts = [part(before, i) for i in range(count)]
        for person in range(n):
            other = held(data, person, seed)
            if seed % 3 == 2:
                # What walks use is public.
                other[SEES].edge_index = data[SEES].edge_index
            after = loader(other, 1, **options)(index)
            changed = [
                i for i in range(count) if not equal(parts[i], part(after, i))
            ]
            assert changed == [int(owner[person])]
    # Of the first databases, not of any four.
    assert block or several
    assert block or joint


def labelled(data: HeteroData) -> HeteroData:
    """Labels of orders and chats, and which of them are read."""
    for t in ('order', 'chat'):
        data[t].y = (data[t].x[:, 0] * 10).long() % 3
        data[t].train_mask = data[t].x[:, 1] > -0.5
    return data


@pytest.mark.parametrize('target', ['chat', 'order'])
@pytest.mark.parametrize(
    'block',
    range(10),
)
def test_one_person_changes_the_target_rows_of_one_claim(
    block: int, target: str
) -> None:
    most = rows = 0
    for seed in range(4 * block, 4 * block + 4):
        rng = random.Random(f'targets {seed}')
        n = rng.randint(3, 8)
        options = {'num_hops': rng.randint(0, 2)}
        if target == 'chat' or seed % 2:
            options |= {
                'neighboring': 'contents',
                'walk_length': rng.randint(0, 3),
                'restarts': rng.randint(1, 2),
                'along': (KNOWS,) if seed % 2 else (),
            }
        data = shop(seed, n)

        def made(data: HeteroData, options: Any = options) -> Any:
            mask = labelled(data)[target].train_mask
            given = loader(data, 1, input_nodes=(target, mask), **options)
            index = list(range(given.num_subgraphs))
            batch = given(index)
            return batch, index

        before, index = made(data)
        store = before[target]
        # All rows of the mask that entered are read, and they come first.
        mask = data[target].train_mask[store.n_id]
        assert store.root_mask.equal(mask)
        assert store.batch_size == len(store.y) == int(mask.sum())
        assert store.y.equal(data[target].y[store.n_id[: store.batch_size]])
        rows += store.batch_size
        most = max([most, *store.batch[mask].bincount().tolist()])
        owner = before['user'].batch[before['user'].n_id.argsort()]
        parts = [part(before, i) for i in index]
        for person in range(n):
            after, _ = made(held(data, person, seed))
            changed = [i for i in index if not equal(parts[i], part(after, i))]
            assert changed == [int(owner[person])]
    assert block or (rows and most > (target == 'order'))


def test_other_rows_than_those_of_the_mask_are_refused() -> None:
    data = labelled(shop(3, 30))
    made = loader(data, 9, input_nodes=('order', data['order'].train_mask))
    for change in ('~', 'flip', 'cut', 'gone'):

        def masked(batch: HeteroData, how: str = change) -> HeteroData:
            store = batch['order']
            mask = store.pop('root_mask')
            made = {'~': ~mask, 'flip': mask.flip(0), 'cut': mask[:2]}
            if how in made:
                store.root_mask = made[how]
            return batch

        mask = data['order'].train_mask
        with pytest.raises(ValueError, match="'transform' needs to"):
            loader(data, 9, input_nodes=('order', mask), transform=masked)(
                list(range(9))
            )
    for given, match in (
        (('chat', None), "'input_nodes' needs to be rows of persons"),
        (('item', None), "'input_nodes' needs to be rows of persons"),
        (('basket', None), "'input_nodes' needs to be rows of persons"),
        (('order',), "'input_nodes' needs to be rows of persons"),
        (('order', torch.tensor([1])), "'input_nodes'"),
        (('order', torch.ones(3).bool()), "'input_nodes'"),
        ((['order'], None), "'input_nodes'"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            loader(data, 3, input_nodes=given)
    assert made.setting()['target'] == 'order'
    told = ' '.join(made.assumptions())
    assert 'which rows of order are training rows, and how many' in told


def test_a_claim_has_the_rows_that_it_owns_together() -> None:
    data = shop(3, 30)
    unit = declared(data)
    made = loader(
        data,
        3,
        neighboring='contents',
        walk_length=3,
        restarts=2,
        along=(KNOWS,),
        sampling='poisson',
    )
    batch = made(list(range(made.num_subgraphs)))
    users = batch['user']
    # Each person once; roots first, of whom labels are.
    assert sorted(users.n_id.tolist()) == list(range(30))
    assert users.batch[: users.batch_size].equal(
        torch.arange(users.batch_size)
    )
    assert users.y.equal(data['user'].y[users.n_id[: users.batch_size]])
    claim = users.batch[users.n_id.argsort()]
    ptr, who = unit.owners('chat')
    for row, one in zip(batch['chat'].n_id, batch['chat'].batch, strict=True):
        assert claim[who[ptr[row] : ptr[row + 1]]].unique().tolist() == [one]
    assert len(batch['chat'].x)
    # Walks are over pairs of a row or an edge that both share.
    pairs = {tuple(each) for each in unit.pairs((KNOWS,)).t().tolist()}
    for i in range(users.batch_size):
        mine = users.n_id[users.batch == i].tolist()
        assert len(mine) <= 7
        met, more = {mine[0]}, True
        while more:
            near = {
                b for a in met for b in mine if tuple(sorted((a, b))) in pairs
            }
            more, met = not near <= met, met | near
        assert met == {*mine}
    assert made([]).metadata() == data.metadata()
    # Rows of more than so many owners are in none.
    few = loader(data, 3, neighboring='contents', walk_length=3, max_joint=2)
    batch = few(list(range(few.num_subgraphs)))
    assert int(ptr.diff()[batch['chat'].n_id].max()) <= 2
    assert f'2 persons ({int((ptr.diff() > 2).sum())})' in repr(
        few.assumptions()
    )


def resampled(data: HeteroData, **options: Any) -> UnitLoader:
    return loader(
        data,
        **{
            'neighboring': 'contents',
            'walk_length': 2,
            'restarts': 2,
            'along': (KNOWS,),
            'resample_every': 2,
            'num_steps': 5,
            **options,
        },
    )


@pytest.mark.parametrize('sampling', ['poisson', 'without_replacement'])
def test_claims_are_drawn_anew_every_so_many_steps(sampling: str) -> None:
    data = shop(4, 40)
    pairs = declared(data).pairs((KNOWS,))
    plain = DisjointWalkLoader(
        Data(edge_index=torch.cat([pairs, pairs.flip(0)], 1), num_nodes=40),
        4,
        2,
        2,
        resample_every=2,
        seed=5,
        num_steps=5,
        sampling=sampling,
    )
    made = resampled(data, seed=5, sampling=sampling)
    other = resampled(data, seed=5, sampling=sampling, num_workers=2)
    counts, step = set(), 0
    for _ in range(2):
        for batch, again in zip(made, other, strict=True):
            walks = plain.node_sampler.partition(step // 2)
            assert made.num_subgraphs_at(step) == walks.num_subgraphs
            assert made.sample_rate_at(step) == plain.sample_rate_at(step)
            drawn = made.batch_sampler.index(step)
            assert batch['user'].input_id.equal(drawn)
            for i, claim in enumerate(drawn.tolist()):
                person = batch['user'].n_id[batch['user'].batch == i]
                start, end = walks.ptr[claim : claim + 2].tolist()
                assert {*person.tolist()} == {*walks.node[start:end].tolist()}
                assert equal(part(batch, i), part(again, i))
            counts.add(walks.num_subgraphs)
            step += 1
    assert len(counts) > 1
    assert (made.form, made.terms) == (plain.form, plain.terms)
    assert made.resample_every == 2


def test_walks_are_of_contents_alone() -> None:
    data = shop()
    away = {'sampling': 'poisson', 'sample_rate': 0.1}
    for options, match in (
        ({'walk_length': 1}, "'neighboring' needs to be 'contents'"),
        ({'along': (KNOWS,)}, "'neighboring' needs to be 'contents'"),
        ({'neighboring': 'contents', **away}, "'sample_rate' needs"),
        (
            {'neighboring': 'contents', 'along': (SEES,)},
            "'along' needs edge types between rows that persons own",
        ),
        (
            {'neighboring': 'contents', 'along': ((SEES, SEES, BY),)},
            "'along' needs metapaths from rows of one person",
        ),
        (
            {
                'neighboring': 'contents',
                'batch_size': 12,
                'walk_length': 3,
                'along': (KNOWS,),
            },
            'number of groups',
        ),
        ({'resample_every': 2}, "'resample_every' needs a 'walk_length'"),
        (
            {'neighboring': 'contents', 'resample_every': 2},
            "'resample_every' needs a 'walk_length'",
        ),
        (
            {
                'neighboring': 'contents',
                'batch_size': 5,
                'walk_length': 2,
                'resample_every': 1,
            },
            'at most 4, the number of groups that every partition is sure',
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            UnitLoader(data, declared(data), **{'batch_size': 4, **options})


@pytest.mark.parametrize('relation', ['replace', 'contents'])
def test_a_person_s_own_view_has_all_that_it_owns(relation: str) -> None:
    data = shop(3, 30)
    unit = declared(data)
    made = loader(data, neighboring=relation, max_joint=2)
    persons = torch.tensor([7, 2, 29, 11, 0])
    view = made.own_view(persons)
    assert view['user'].n_id.equal(persons)
    assert view['user'].batch_size == 5
    assert view['user'].y.equal(data['user'].y[persons])
    ptr = unit.owners('chat')[0].diff()
    wide = 0
    for i, person in enumerate(persons.tolist()):
        rows = unit.rows(person)
        for t in ('user', 'order', 'chat'):
            mine = view[t].n_id[view[t].batch == i]
            # Of joint rows also those of many, if any were trained on.
            want = rows[t] if t != 'chat' or made._law else rows[t][:0]
            assert mine.equal(want)
            wide += int((ptr[mine] > 2).sum()) if t == 'chat' else 0
        # No edge of it is of somebody else.
        for e in (BY, HAS, OF, KNOWS):
            source, target = view[e].edge_index
            assert view[e[0]].batch[source].equal(view[e[2]].batch[target])
    assert bool(wide) == (relation == 'contents')
    # Others' rows are in no view: all that they own may be another.
    other = made.own_view(torch.tensor([7]))
    assert equal(part(view, 0), part(other, 0))
    after = loader(held(data, 4, 1), neighboring=relation).own_view(persons)
    shared = {*unit.rows(4)['chat'].tolist()}
    for i, person in enumerate(persons.tolist()):
        meets = bool(shared & {*unit.rows(person)['chat'].tolist()})
        same = equal(part(view, i), part(after, i))
        assert same or (meets and relation == 'contents')
    assert len(made.own_view()['user'].x) == 30
    with pytest.raises(ValueError, match="'persons'"):
        made.own_view(torch.tensor([30]))


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
    without_a_type: 'needs to return .* in each batch',
}


@pytest.mark.parametrize('change', BAD)
def test_batches_of_others_are_refused(change: Any) -> None:
    tried = []

    def transform(batch: HeteroData) -> HeteroData:
        # Not when it is tried on made-up rows.
        tried.append(change)
        return batch if len(tried) == 1 else change(batch)

    made = loader(shop(), transform=transform)
    with pytest.raises(ValueError, match=BAD[change]):
        made.flat(made([2, 3, 5, 8]))


@pytest.mark.parametrize('target', ['user', 'order', 'chat'])
def test_a_batch_is_one_graph_and_back(target: str) -> None:
    data = labelled(shop(3, 30))
    options = {'neighboring': 'contents', 'walk_length': 2, 'along': (KNOWS,)}
    given = loader(data, 9, input_nodes=target, **options)
    for index in ([], list(range(9))):
        batch = given(index)
        flat = given.flat(batch)
        before, made = flat.clone(), given.schema.typed(flat)
        place = {}
        for t in batch.node_types:
            for name, value in batch[t].items():
                assert torch.as_tensor(value).equal(
                    torch.as_tensor(made[t][name])
                )
            kind = given.schema.node_types.index(t)
            rows = flat.node_type % len(batch.node_types) == kind
            place[t] = rows.nonzero().view(-1)
            assert flat.x[rows, : WIDTHS[t]].equal(batch[t].x)
            assert not flat.x[rows, WIDTHS[t] :].any()
        read = batch[target].get('root_mask')
        read = (
            torch.ones(len(batch[target].x)).bool() if read is None else read
        )
        assert flat.terms.equal(batch[target].batch[read])
        for k, e in enumerate(given.schema.edge_types):
            assert made[e].edge_index.equal(batch[e].edge_index)
            source, to = batch[e].edge_index
            both = torch.stack([place[e[0]][source], place[e[2]][to]])
            assert flat.edge_index[:, flat.edge_type == k].equal(both)
        # A model that writes to one type leaves the others alone.
        for store in made.node_stores:
            for name in ('x', 'n_id', 'batch'):
                store[name].add_(1)
        for store in made.edge_stores:
            store.edge_index.add_(1)
        for name in ('x', 'n_id', 'batch', 'edge_index'):
            assert flat[name].equal(before[name])


def test_nodes_and_neighbours_are_named_as_in_pyg():
    data = shop()
    unit = declared(data)
    mask = torch.arange(int(data['user'].num_nodes)) < 6

    def drawn(**given):
        made = UnitLoader(data, unit, 4, seed=0, **given)
        batch = next(iter(made))
        return {t: batch[t].n_id.tolist() for t in batch.node_types}

    for one, other in (
        ({'input_nodes': 'user'}, {}),
        ({'input_nodes': ('user', mask)}, {'input_nodes': mask}),
        ({'input_nodes': list(range(6))}, {'input_nodes': mask}),
        ({'input_nodes': mask[:, None]}, {'input_nodes': mask}),
        ({'input_nodes': 'order'}, {'input_nodes': ('order', None)}),
        ({'num_neighbors': [-1, -1, -1]}, {'num_hops': 3}),
        ({'num_neighbors': {HAS: -1, SOLD: -1}}, {}),
        ({'num_neighbors': {HAS: [-1, -1, -1], IN: -1}}, {'num_hops': 3}),
        (
            {'num_neighbors': {HAS: [1, 1, 1], SOLD: (1, 1, 1)}},
            {'num_neighbors': {HAS: 1, SOLD: 1}, 'num_hops': 3},
        ),
        (
            {'num_neighbors': [1, 1]},
            {'num_neighbors': {HAS: 1, IN: 1, SOLD: 1}},
        ),
    ):
        assert drawn(**one) == drawn(**other), one
    for bad in ([10, 5], {HAS: [10, 5]}, {HAS: [3], SOLD: [3, 3]}, []):
        with pytest.raises(ValueError, match='one number for all hops'):
            drawn(num_neighbors=bad)
