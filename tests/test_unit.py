"""The privacy unit against brute force, and what it refuses."""

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.transforms.metapath_features import metapath_features
from pyg_trust.unit import PrivacyUnit

ORACLE = Path(__file__).parents[2] / 'shared/oracles/typed_graphs'
KNOWS = ('profile', 'knows', 'profile')
BUYS = ('profile', 'buys', 'item')
OF = ('order', 'of', 'profile')
HAS = ('order', 'has', 'item')
LIKE = ('item', 'like', 'item')
IN = ('profile', 'in', 'chat')
Database = dict[str, Any]


def database(seed: int) -> Database:
    """Owners by type and edges by type, of three to five persons."""
    rng = random.Random(seed)
    n = rng.randint(3, 5)
    profiles = [p for p in range(n) for _ in range(rng.randint(1, 2))]
    orders = [p for p in range(n) for _ in range(rng.randint(0, 2))]
    chats = [rng.sample(range(n), rng.randint(1, 3)) for _ in range(3)]
    owners: dict[str, list[list[int]]] = {
        'profile': [[p] for p in profiles],
        'order': [[p] for p in orders],
        'chat': [sorted(c) for c in chats],
        'item': [[], [], []],
    }
    edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for e in (KNOWS, BUYS, OF, HAS, LIKE, IN):
        edges[e] = []
        for i, a in enumerate(owners[e[0]]):
            for j, b in enumerate(owners[e[2]]):
                if (e == OF and a != b) or (e == IN and not set(a) <= set(b)):
                    continue
                if (e[0], i) != (e[2], j) and rng.random() < 0.4:
                    edges[e].append((i, j))
    return {'owners': owners, 'edges': edges}


def declared(
    db: Database, keep: str = 'drop', **options: Any
) -> tuple[HeteroData, PrivacyUnit]:
    data = HeteroData()
    for t, rows in db['owners'].items():
        data[t].x = torch.rand(len(rows), 2)
    for e, pairs in db['edges'].items():
        index = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
        data[e].edge_index = index.contiguous()
    persons = {p for rows in db['owners'].values() for o in rows for p in o}
    chats = db['owners']['chat']
    joint = [(i, p) for i, o in enumerate(chats) for p in o]
    owned = {
        t: torch.tensor([p for (p,) in db['owners'][t]], dtype=torch.int64)
        for t in ('profile', 'order')
    }
    unit = PrivacyUnit(
        data,
        num_persons=max(persons) + 1,
        owned=owned,
        joint={'chat': torch.tensor(joint, dtype=torch.int64).view(-1, 2).t()},
        public=('item',),
        public_edges=(LIKE,),
        on_removal={'chat': keep},
        same=torch.empty((2, 0), dtype=torch.int64),
        **options,
    )
    return data, unit


def rows_of(db: Database, person: int, keep: str) -> set[tuple[str, int]]:
    """The rows that go with a person, one by one."""
    return {
        (t, i)
        for t, rows in db['owners'].items()
        for i, owners in enumerate(rows)
        if owners == [person] or (person in owners and keep == 'drop')
    }


@pytest.mark.parametrize('keep', ['drop', 'keep'])
@pytest.mark.parametrize('seed', range(10))
def test_with_a_person_go_its_rows_and_their_edges(
    seed: int, keep: str
) -> None:
    db = database(seed)
    data, unit = declared(db, keep)
    for person in range(unit.num_names):
        gone = rows_of(db, person, keep)
        found = unit.cascade([person])
        listed = {(t, i) for t, r in found.rows.items() for i in r.tolist()}
        assert listed == gone
        left = unit.without(data, [person])
        for e, pairs in db['edges'].items():
            stay = [
                (i, j)
                for i, j in pairs
                if (e[0], i) not in gone and (e[2], j) not in gone
            ]
            named = zip(
                left[e[0]].n_id[left[e].edge_index[0]].tolist(),
                left[e[2]].n_id[left[e].edge_index[1]].tolist(),
                strict=True,
            )
            assert list(named) == stay
            assert len(pairs) - len(stay) == len(found.edges.get(e, []))
        for t in data.node_types:
            assert torch.equal(left[t].x, data[t].x[left[t].n_id])


@pytest.mark.parametrize('seed', range(10))
def test_pairs_share_a_row_or_an_edge(seed: int) -> None:
    db = database(seed)
    _, unit = declared(db)
    pairs = set()
    for owners in db['owners']['chat']:
        pairs |= {(p, q) for p in owners for q in owners if p < q}
    assert set(map(tuple, unit.pairs().t().tolist())) == pairs
    for i, j in db['edges'][KNOWS]:
        ends = db['owners']['profile'][i] + db['owners']['profile'][j]
        pairs |= {(min(ends), max(ends))} if len(set(ends)) == 2 else set()
    assert set(map(tuple, unit.pairs([KNOWS]).t().tolist())) == pairs
    few = unit.pairs(max_joint=2).t().tolist()
    # No edge of a row of more makes any, either.
    wide = [len(o) > 1 for o in db['owners']['chat']]
    one = {
        tuple(sorted((db['owners']['profile'][i][0], q)))
        for i, j in db['edges'][IN]
        for q in db['owners']['chat'][j]
        if not wide[j]
    }
    found = unit.pairs([IN], max_joint=1).t().tolist()
    assert set(map(tuple, found)) == {(p, q) for p, q in one if p < q}
    sizes = [set(o) for o in db['owners']['chat'] if len(o) == 2]
    assert sorted(map(set, few), key=sorted) == sorted(
        map(set, {tuple(sorted(s)) for s in sizes}), key=sorted
    )


@pytest.mark.parametrize('seed', range(40))
@pytest.mark.parametrize(
    'path',
    [(BUYS, BUYS), (BUYS, HAS), (HAS, LIKE, BUYS), (BUYS, LIKE, LIKE, BUYS)],
)
def test_pairs_meet_at_public_rows(path: Any, seed: int) -> None:
    db = database(seed)
    _, unit = declared(db)
    most = 1 + seed % 4

    def reached(first: str, steps: Any) -> set[tuple[int, int]]:
        # Persons and the public rows where they are, by all walks.
        here = {(o[0], i) for i, o in enumerate(db['owners'][first])}
        for edges in steps:
            here = {(p, j) for p, i in here for k, j in edges if k == i}
            crowd = [len({p for p, j in here if j == i}) for i in range(3)]
            here = {(p, j) for p, j in here if crowd[j] <= most}
        return here

    left = reached(path[0][0], [db['edges'][e] for e in path[:-1]])
    right = reached(path[-1][0], [db['edges'][path[-1]]])
    want = {
        (min(p, q), max(p, q)) for p, i in left for q, j in right if i == j
    }
    want = {(p, q) for p, q in want if p < q}
    alone = set(map(tuple, unit.pairs(max_joint=most).t().tolist()))
    found = unit.pairs([list(path)], most).t().tolist()
    assert set(map(tuple, found)) == want | alone


PATHS = {
    'P-buys-I': ('profile', [BUYS]),
    'P-buys-I-like-I': ('profile', [BUYS, LIKE]),
    'P-buys-I-buys-P': ('profile', [BUYS, BUYS]),
    'P-of-O': ('profile', [OF]),
    'P-of-O-has-I': ('profile', [OF, HAS]),
    'P-knows-P': ('profile', [KNOWS]),
    'O-of-P-buys-I': ('order', [OF, BUYS]),
    'O-has-I-has-O': ('order', [HAS, HAS]),
    'P-in-C': ('profile', [IN]),
}


@pytest.mark.parametrize('name', PATHS)
def test_an_own_path_reads_nothing_of_others(name: str) -> None:
    """All that each person owns is changed: own rows of others stay equal."""
    target, path = PATHS[name]
    own = 0
    for seed in range(60):
        rng = random.Random(seed)
        db = database(seed)
        data, unit = declared(db)
        before = metapath_features(
            data.x_dict, data.edge_index_dict, path, target
        )
        if not unit.is_own(path, target):
            continue
        own += 1
        for person in range(unit.num_names):
            x, edges = dict(data.x_dict), {}
            for t, rows in db['owners'].items():
                mine = torch.tensor([person in o for o in rows]).bool()
                x[t] = torch.where(mine[:, None], torch.rand(2), x[t])
            for e, pairs in db['edges'].items():
                kept = [
                    (i, j)
                    for i, j in pairs
                    if person
                    not in db['owners'][e[0]][i] + db['owners'][e[2]][j]
                    or rng.random() < 0.5
                ]
                index = torch.tensor(kept, dtype=torch.int64).view(-1, 2)
                edges[e] = index.t()
            after = metapath_features(x, edges, path, target)
            strange = [
                i
                for i, o in enumerate(db['owners'][target])
                if person not in o
            ]
            assert torch.equal(before[strange], after[strange])
    if name in ('P-buys-I', 'P-buys-I-like-I', 'P-of-O', 'O-of-P-buys-I'):
        assert own == 60
    if name in ('P-buys-I-buys-P', 'O-has-I-has-O'):
        assert own < 10


def test_an_edge_of_somebody_else_is_not_own() -> None:
    db = database(1)
    pairs = db['edges'][BUYS]
    owner = torch.zeros(len(pairs), dtype=torch.int64)
    _, unit = declared(db, edge_owner={BUYS: owner})
    assert not unit.is_own([BUYS], 'profile')
    gone = unit.cascade([0]).edges[BUYS]
    assert gone.tolist() == list(range(len(pairs)))


def test_one_person_under_two_names_goes_as_one() -> None:
    data = shop()
    unit = PrivacyUnit(data, **SHOP, same=torch.tensor([[0], [2]]))
    assert unit.num_persons == 3
    assert unit.cascade([2]).rows['user'].tolist() == [0, 2]
    assert unit.rows(0)['order'].tolist() == unit.rows(2)['order'].tolist()


def shop() -> HeteroData:
    """Four users, eight orders of two each, and forty items."""
    torch.manual_seed(0)
    data = HeteroData()
    data['user'].x = torch.rand(4, 3)
    data['order'].x = torch.rand(8, 2)
    data['item'].x = torch.rand(40, 2)
    by = torch.stack([torch.arange(8), torch.arange(4).repeat(2)])
    data['order', 'by', 'user'].edge_index = by
    has = torch.stack([torch.arange(80) % 8, torch.arange(80) * 7 % 31])
    data['order', 'has', 'item'].edge_index = has
    return ToUndirected()(data)


SHOP: dict[str, Any] = {
    'person': 'user',
    'owned': {'order': ('order', 'by', 'user')},
    'public': ('item',),
}


def test_another_graph_is_refused() -> None:
    data = shop()
    unit = PrivacyUnit(data, **SHOP)
    unit.check(data)
    other = shop()
    other['order', 'has', 'item'].edge_index[1, 0] += 1
    with pytest.raises(ValueError, match="'data' needs to be the graph that"):
        unit.check(other)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'public': ()}, r"missing: \['item'\]"),
        ({'public': ('item', 'order')}, r"twice: \['order'\]"),
        ({'public': ('item', 'shop')}, r"unknown: \['shop'\]"),
        (
            {'person': None, 'public': ('item', 'user')},
            "'num_persons' needs to be given exactly",
        ),
        ({'num_persons': 4}, "'num_persons' needs to be given exactly"),
        (
            {'owned': {'order': ('order', 'has', 'item')}},
            "an edge type between 'order' and the table of persons",
        ),
        ({'owned': {'order': torch.full((8,), 4)}}, 'persons'),
        ({'owned': {'order': torch.zeros(7).long()}}, r'shape \[8\]'),
        ({'on_removal': {'order': 'keep'}}, 'on_removal'),
        (
            {'public_edges': (('order', 'has', 'item'),)},
            'between public rows that nobody owns',
        ),
    ],
)
def test_wrong_declarations_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PrivacyUnit(shop(), **{**SHOP, **change})


@pytest.mark.parametrize('bad', [-1, 10**6])
@pytest.mark.parametrize('end', [0, 1])
def test_a_foreign_key_names_a_row_that_exists(bad: int, end: int) -> None:
    data = shop()
    edges = data['order', 'by', 'user'].edge_index.clone()
    edges[end, 0] = bad
    data['order', 'by', 'user'].edge_index = edges
    named = f'the rows of .{("order", "user")[end]}'
    with pytest.raises(ValueError, match=named):
        PrivacyUnit(data, **SHOP)


def test_without_leaves_the_graph_and_its_attributes() -> None:
    data = shop()
    data['user'].y = torch.arange(4)
    data['order', 'has', 'item'].edge_attr = torch.rand(80, 3)
    data.name = 'shop'
    before = data.clone()
    unit = PrivacyUnit(data, **SHOP)
    left = unit.without(data, torch.tensor([0, 3]))
    assert left.name == 'shop'
    assert left['user'].y.tolist() == [1, 2]
    assert left['order'].n_id.tolist() == [1, 2, 5, 6]
    edges = left['order', 'has', 'item']
    assert edges.edge_attr.size(0) == edges.edge_index.size(1) == 40
    assert left['item'].num_nodes == 40
    for t in data.node_types:
        assert torch.equal(data[t].x, before[t].x)
    for e in data.edge_types:
        assert torch.equal(data[e].edge_index, before[e].edge_index)
    with pytest.raises(ValueError, match='persons'):
        unit.without(data, [4])


def test_a_twin_that_never_knew_the_person_is_equal_to_the_bit() -> None:
    data = shop()
    unit = PrivacyUnit(data, **SHOP)
    left = unit.without(data, [1])
    keep = {
        'user': torch.tensor([0, 2, 3]),
        'order': torch.tensor([0, 2, 3, 4, 6, 7]),
        'item': torch.arange(40),
    }
    twin = data.subgraph(keep)
    for e in data.edge_types:
        assert torch.equal(left[e].edge_index, twin[e].edge_index)
    path = [('order', 'by', 'user'), ('order', 'has', 'item')]
    rows = [
        metapath_features(d.x_dict, d.edge_index_dict, path, 'user')
        for d in (left, twin)
    ]
    assert torch.equal(*rows)
    whole = metapath_features(data.x_dict, data.edge_index_dict, path, 'user')
    assert torch.equal(rows[0], whole[[0, 2, 3]])


@pytest.mark.parametrize(
    ('where', 'name', 'value'),
    [
        # As RandomLinkSplit makes them: with and without negatives.
        (('order', 'has', 'item'), 'edge_label_index', torch.ones(2, 80)),
        (('order', 'has', 'item'), 'edge_label_index', torch.ones(2, 9)),
        (('order', 'has', 'item'), 'edge_label', torch.ones(9)),
        ('user', 'held', torch.ones(3)),
        ('user', 'names', ['a', 'b', 'c', 'd']),
        # Where the graphs of a batch start: by chance, of four.
        ('user', 'ptr', torch.tensor([0, 2, 3, 4])),
    ],
)
def test_rows_in_another_order_do_not_stay(
    where: Any, name: str, value: Any
) -> None:
    data = shop()
    unit = PrivacyUnit(data, **SHOP)
    data[where][name] = value
    with pytest.raises(ValueError, match=f"'data' needs tensors.*'{name}'"):
        unit.without(data, [1])


def test_names_do_not_change_after_the_declaration() -> None:
    data = shop()
    unit = PrivacyUnit(data, **SHOP)
    data['user'].n_id = torch.arange(4)
    unit.check(data)
    data['user'].n_id = torch.tensor([3, 2, 1, 0])
    for taken in (unit.table, lambda data: unit.without(data, [0])):
        with pytest.raises(ValueError, match="needs the names 'n_id'"):
            taken(data)


def oracle(name: str) -> Any:
    """A module of the shared oracles, which knows nothing of the package."""
    file = ORACLE / f'{name}.py'
    if not file.exists():
        pytest.skip('needs the shared oracles')
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def of_chats(data: HeteroData, how: str) -> PrivacyUnit:
    place = {p: i for i, p in enumerate(data['user'].n_id.tolist())}
    owner = [place[p] for p in data['order'].owner.tolist()]
    return PrivacyUnit(
        data,
        'user',
        owned={'order': torch.tensor(owner, dtype=torch.int64)},
        joint={'chat': ('user', 'in', 'chat')},
        public=('item',),
        on_removal={'chat': how},
    )


def same_graphs(one: HeteroData, two: HeteroData) -> bool:
    return all(
        torch.equal(one[t].x, two[t].x) for t in one.node_types
    ) and all(
        torch.equal(one[e].edge_index, two[e].edge_index)
        for e in one.edge_types
    )


@pytest.mark.parametrize('how', ['drop', 'keep'])
def test_a_shard_without_a_person_never_had_it(how: str) -> None:
    """Half of fifty persons, each alone; with two, the weights."""
    twins = oracle('erase_twin')
    everybody = list(range(50))
    full = twins.make(everybody)
    unit, owners = of_chats(full, how), twins.owners(full)
    shard = [twins.shard_of(p, 4) for p in everybody]
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    for i, person in enumerate(order[:25].tolist()):
        left = unit.without(full, [person])
        again = of_chats(left, how)
        for k in range(4):
            mine = {p for p in everybody if shard[p] == k and p != person}
            place = left['user'].n_id.tolist()
            named = [place.index(p) for p in mine]
            made = again.within(left, named)
            if how == 'drop':
                others = [p for p in everybody if p != person]
                never = twins.restrict(twins.make(others), mine)
            else:
                # A chat of somebody who was never there has the others.
                stay = {
                    t: torch.ones(full[t].num_nodes, dtype=torch.bool)
                    for t in full.node_types
                }
                for t in ('user', 'order', 'chat'):
                    rest = [o - {person} for o in owners[t]]
                    stay[t] = torch.tensor(
                        [bool(o) and o <= mine for o in rest]
                    )
                never = full.subgraph(stay)
            assert same_graphs(made, never)
            if i < 2 and k == shard[person]:
                assert torch.equal(twins.train(made), twins.train(never))
                whole = unit.within(full, [*mine, person])
                assert not torch.equal(twins.train(whole), twins.train(never))


def test_a_graph_of_one_type_has_persons_of_several_rows() -> None:
    n, owner = 40, torch.arange(40) * 7 % 12
    data = Data(
        x=torch.rand(n, 2),
        y=torch.arange(n),
        edge_index=torch.stack([torch.arange(n), torch.arange(n) * 3 % n]),
        name='visits',
    )
    data.edge_weight = torch.rand(n)
    unit = PrivacyUnit(data, owned={None: owner}, num_persons=12)
    assert (
        unit.rows(5)['node'].tolist()
        == (owner == 5).nonzero().view(-1).tolist()
    )
    left = unit.without(data, [5, 7])
    keep = (owner != 5) & (owner != 7)
    twin = data.subgraph(keep)
    assert isinstance(left, Data)
    assert left.name == 'visits'
    for key in ('x', 'y', 'edge_index', 'edge_weight'):
        assert torch.equal(left[key], twin[key])
    rest = unit.within(data, [p for p in range(12) if p not in (5, 7)])
    assert torch.equal(rest.x, twin.x)
    with pytest.raises(ValueError, match='sizes or edges differ'):
        unit.check(left)
    with pytest.raises(ValueError, match="a table 'person'"):
        DisjointWalkLoader(data, 4, 0, unit=unit)
    joint = torch.stack([torch.arange(n), owner])
    both = torch.cat([joint, torch.tensor([[0], [5]])], 1)
    kept = PrivacyUnit(
        data, joint={None: both}, num_persons=12, on_removal={None: 'keep'}
    )
    assert 0 in kept.without(data, [5]).y
    assert 0 in kept.without(data, [0]).y
    assert 0 not in kept.without(data, [0, 5]).y


@pytest.mark.parametrize('seed', range(5))
def test_nobody_is_in_two_parts_of_a_split(seed: int) -> None:
    db = database(seed)
    _, unit = declared(db)
    parts = unit.split([0.5, 0.5], seed=seed)
    assert unit.split([0.5, 0.5], seed=seed)[0].keys() == parts[0].keys()
    persons = []
    for part in parts:
        inside = {
            p
            for t in ('profile', 'order')
            for i in part[t].nonzero().view(-1).tolist()
            for p in db['owners'][t][i]
        }
        persons.append(inside)
        for t, mask in part.items():
            for i, owners in enumerate(db['owners'][t]):
                if mask[i]:
                    assert not inside.isdisjoint(owners) or t == 'chat'
    assert not persons[0] & persons[1]
    for t in parts[0]:
        unit.check_apart(t, parts[0][t], parts[1][t].nonzero().view(-1))
    for t in ('profile', 'order'):
        assert bool((parts[0][t] ^ parts[1][t]).all())
    for i, owners in enumerate(db['owners']['chat']):
        for part, inside in zip(parts, persons, strict=True):
            assert bool(part['chat'][i]) == (set(owners) <= inside)
    with pytest.raises(ValueError, match='positive shares of at most 1'):
        unit.split([0.9, 0.2])


@pytest.mark.parametrize('seed', range(5))
def test_rows_of_one_person_are_not_apart(seed: int) -> None:
    db = database(seed)
    _, unit = declared(db)
    rng = random.Random(seed)
    refused = 0
    for t, owners in db['owners'].items():
        for _ in range(20):
            size = len(owners)
            groups = [rng.sample(range(size), min(size, 2)) for _ in range(2)]
            one, two = ({p for i in g for p in owners[i]} for g in groups)
            given = [torch.tensor(g, dtype=torch.int64) for g in groups]
            if one & two:
                refused += 1
                with pytest.raises(ValueError, match=r'unit\.split\(ratio'):
                    unit.check_apart(t, *given)
            else:
                unit.check_apart(t, *given)
    assert refused
