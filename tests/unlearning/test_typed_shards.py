"""Shards of typed graphs: a person who goes leaves no bit in any table."""

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from shops import BY, CLICK, OF, REV, declared, shop
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv, to_hetero

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.update import NewNodes, Update

N, SHARDS = 30, 3
METADATA = shop(n=N).metadata()


def graph() -> HeteroData:
    data = shop(n=N)
    data['user'].train_mask = torch.arange(N) % 5 > 0
    return data


def ready(data: HeteroData) -> HeteroData:
    """Without the owners of clicks, which models do not receive."""
    made = data.clone()
    for e in made.edge_types:
        if 'by' in made[e]:
            del made[e].by
    return made


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = HeteroConv({e: SAGEConv((-1, -1), 8) for e in METADATA[1]})
        self.out = nn.Linear(8, 3)

    def forward(self, x: Any, edges: Any) -> dict[str, torch.Tensor]:
        return {t: self.out(v.relu()) for t, v in self.conv(x, edges).items()}


class Deep(Typed):
    """Of two layers, as sage(), and made sooner."""

    def __init__(self) -> None:
        super().__init__()
        self.first = HeteroConv(
            {e: SAGEConv((-1, -1), 4) for e in METADATA[1]}
        )

    def forward(self, x: Any, edges: Any) -> dict[str, torch.Tensor]:
        return super().forward(self.first(x, edges), edges)


def sage() -> nn.Module:
    return to_hetero(GraphSAGE((-1, -1), 8, 2, 3), METADATA)


def unlearner(data: HeteroData, **given: Any) -> ShardedUnlearner:
    args: dict[str, Any] = {
        'aggregator': 'mean',
        'num_classes': 3,
        'epochs': 4,
        'seed': 1,
    }
    make = given.pop('make', Typed)
    how = given.pop('how', 'drop')
    unit = declared(data, on_removal={'chat': how})
    model = ShardedUnlearner(make, SHARDS, unit=unit, **{**args, **given})
    return model.fit(ready(data))


def twin(data: HeteroData, persons: list[int], how: str) -> HeteroData:
    """What there is without persons, by sets, and by PyG's subgraph."""
    orders = dict(data[BY].edge_index.t().tolist())
    chats: dict[int, set[int]] = {}
    for chat, user in data[OF].edge_index.t().tolist():
        chats.setdefault(chat, set()).add(user)
    gone = set(persons)
    stay = {
        'user': [u not in gone for u in range(data['user'].num_nodes)],
        'order': [orders[i] not in gone for i in range(len(orders))],
        'chat': [
            not chats[i] & gone if how == 'drop' else bool(chats[i] - gone)
            for i in range(len(chats))
        ],
    }
    made = data.clone()
    made['user'].n_id = torch.arange(data['user'].num_nodes)
    # A click is of who clicked: items stay, and edges of nobody else.
    click = ('item', 'then', 'item')
    keep = torch.tensor([p not in gone for p in data[click].by.tolist()])
    made[click].edge_index = data[click].edge_index[:, keep]
    made[click].by = data[click].by[keep]
    made = made.subgraph({t: torch.tensor(v) for t, v in stay.items()})
    place = {v: i for i, v in enumerate(made['user'].n_id.tolist())}
    made[click].by = torch.tensor([place[p] for p in made[click].by.tolist()])
    return made


@pytest.mark.parametrize('how', ['drop', 'keep'])
@pytest.mark.parametrize('persons', [[4], [0, 7, 13]])
def test_a_removal_equals_a_start_without_the_persons(
    persons: list[int], how: str
) -> None:
    data = graph()
    model = unlearner(data, how=how, aggregator='attentive')
    before = [model.shard_state(i) for i in range(SHARDS)]
    request = RemovalRequest(
        persons=persons, unit=declared(data, on_removal={'chat': how})
    )
    plan = model.plan(request)
    report = model.remove(request)
    assert plan.shards == report.shards
    left = twin(data, persons, how)
    fresh = unlearner(left, how=how, aggregator='attentive')
    for i in range(SHARDS):
        one, two = model.shard_state(i), fresh.shard_state(i)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[k], two[k]) for k in one)
        same = all(torch.equal(one[k], before[i][k]) for k in one)
        assert same == (i not in report.shards)
    assert torch.equal(model.outputs, fresh.outputs)
    found = model.predict_proba()
    assert found.isnan().any(1).nonzero().view(-1).tolist() == persons
    assert torch.equal(found[model.n_id], fresh.predict_proba())
    kept = model.data
    assert kept['user'].n_id.tolist() == left['user'].n_id.tolist()
    for t in left.node_types:
        assert torch.equal(kept[t].x, left[t].x)
    for e in left.edge_types:
        assert torch.equal(kept[e].edge_index, left[e].edge_index)
    assert model.verify().ok


def test_removals_one_by_one_end_where_all_at_once_do() -> None:
    data = graph()
    model = unlearner(data, make=sage)
    unit = declared(data)
    gone = [3, 21, 10, 5]
    for person in gone:
        model.remove(RemovalRequest(persons=[person], unit=unit))
    fresh = unlearner(twin(data, gone, 'drop'), make=sage)
    assert torch.equal(model.outputs, fresh.outputs)
    assert model.verify().ok
    assert model.n_id.tolist() == [i for i in range(N) if i not in gone]


@pytest.mark.parametrize('how', ['drop', 'keep'])
def test_persons_of_what_remains_are_those_of_the_model(how: str) -> None:
    data = graph()
    given: dict[str, Any] = {'on_removal': {'chat': how}}
    model = unlearner(data, how=how, make=Rows, epochs=1)
    first = declared(data, **given)
    model.remove(RemovalRequest(persons=[0, 7], unit=first))
    # Of the graph of before, of what the model has, and of one person less.
    model.remove(RemovalRequest(persons=[9], unit=first))
    later = declared(twin(data, [0, 7, 9], how), **given)
    assert later.n_id.tolist()[:2] == [1, 2]
    model.remove(RemovalRequest(persons=[0], unit=later))
    ahead = twin(data, [0, 7, 9, 2, 3, 4], how)
    fewer = declared(ahead, **given)
    row = ahead['user'].n_id.tolist().index(20)
    both = [
        RemovalRequest(persons=[row], unit=fewer),
        RemovalRequest(persons=[21], unit=first),
    ]
    model.remove(RemovalRequest.batch(both))
    gone = [0, 1, 7, 9, 20, 21]
    assert model.n_id.tolist() == [i for i in range(N) if i not in gone]


def test_a_removal_keeps_nothing_of_the_unit_that_named_the_person() -> None:
    # A unit has the owners of all rows: a line that kept it would, too.
    data = graph()
    model = unlearner(data)
    unit = declared(data)
    request = RemovalRequest(persons=[3], unit=unit)
    held = weakref.ref(unit), weakref.ref(request)
    model.remove(request)
    del unit, request
    gc.collect()
    assert [each() for each in held] == [None, None]
    assert model.ledger.entries[-1].request  # names, without a unit


def test_persons_of_another_unit_are_refused() -> None:
    data = graph()
    model = unlearner(data, make=Rows, epochs=1)
    model.remove(RemovalRequest(persons=[0], unit=declared(data)))
    before = model.outputs
    order = data.clone()
    rows, owners = data[BY].edge_index
    order[BY].edge_index = torch.stack([rows, owners.flip(0)])
    order[REV].edge_index = order[BY].edge_index.flip(0)
    names = data.clone()
    names['user'].n_id = torch.arange(N).flip(0)
    shifted = data.clone()
    shifted['user'].n_id = torch.arange(N) + 1
    fewer = twin(data, [3, 8], 'drop')
    del fewer['user'].n_id
    good = RemovalRequest(persons=[5], unit=declared(data))
    others = [
        RemovalRequest(persons=[5], unit=unit)
        for unit in (
            declared(data, on_removal={'chat': 'keep'}),
            declared(data, edge_owner={CLICK: (data[CLICK].by + 1) % N}),
            declared(order),
            declared(names),
            declared(shifted),
            # Who are named anew, from 0.
            declared(fewer),
        )
    ]
    others.append(RemovalRequest.batch([good, others[0]]))
    # What a file has of it tells of no graph.
    others.append(pickle.loads(pickle.dumps(good)))
    assert good._units
    assert others[-1] == good
    for request in others:
        for call in (model.remove, model.plan, model.update):
            with pytest.raises(ValueError, match="unlearner's 'unit'"):
                call(request)
    assert torch.equal(model.outputs, before)
    model.remove(good)
    model.remove(RemovalRequest(nodes=[6]))


def test_what_the_caller_writes_into_its_graph_changes_nothing() -> None:
    data = graph()
    unit, given = declared(data), ready(data)
    model = ShardedUnlearner(
        Typed,
        SHARDS,
        unit=unit,
        aggregator='mean',
        num_classes=3,
        epochs=4,
        seed=1,
    ).fit(given)
    for made in (data, given):
        for store in made.stores:
            for value in store.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    model.remove(RemovalRequest(persons=[4], unit=declared(graph())))
    twin_of = unlearner(twin(graph(), [4], 'drop'))
    assert torch.equal(model.outputs, twin_of.outputs)
    assert model.verify().ok


def test_a_kept_row_enters_the_shard_of_who_is_left() -> None:
    """It was in no shard: its owners are of two."""
    data = graph()
    of, found = data[OF].edge_index, 0
    for seed in range(4):
        given: dict[str, Any] = {'make': Rows, 'epochs': 1, 'seed': seed}
        shard = unlearner(data, **given).data['user'].shard
        for chat in range(int(data['chat'].num_nodes)):
            owners = of[1, of[0] == chat]
            homes = {*shard[owners].tolist()}
            if len(owners) != 2 or len(homes) != 2 or -1 in homes:
                continue
            person, other = owners.tolist()
            dropped, kept = (
                unlearner(data, how=how, **given)
                .remove(
                    RemovalRequest(
                        persons=[person],
                        unit=declared(data, on_removal={'chat': how}),
                    )
                )
                .shards
                for how in ('drop', 'keep')
            )
            assert dropped == (int(shard[person]),)
            assert homes <= {*kept}
            found += int(shard[other]) not in dropped
    assert found


def test_a_model_is_of_its_persons_rows_and_public_ones() -> None:
    data = graph()
    model = unlearner(data, make=Deep)
    shard = model.data['user'].shard
    person = int((shard == 0).nonzero()[0])
    own = [*model.data[BY].edge_index[1].tolist()].index(person)
    for t, row, hit in (
        ('user', person, {0}),
        ('order', own, {0}),
        # Of somebody who is in no shard, as in no training.
        ('user', 5, set()),
        ('item', 2, {0, 1, 2}),
    ):
        other = data.clone()
        other[t].x[row] += 1
        again = unlearner(other, make=Deep)
        differ = {
            i
            for i in range(SHARDS)
            if not all(
                torch.equal(a, b)
                for a, b in zip(
                    model.shard_state(i).values(),
                    again.shard_state(i).values(),
                    strict=True,
                )
            )
        }
        assert differ == hit


def test_outputs_are_those_of_the_plain_model() -> None:
    data = graph()
    model = unlearner(data)
    net = Typed()
    with torch.no_grad():
        net(data.x_dict, data.edge_index_dict)
        for i in range(SHARDS):
            net.load_state_dict(model.shard_state(i))
            out = net(data.x_dict, data.edge_index_dict)['user']
            assert torch.allclose(out, model.outputs[i], atol=1e-6)


class OfData(Typed):
    """Called with the whole graph, as models with embeddings are."""

    def forward(self, data: HeteroData) -> dict[str, torch.Tensor]:
        return super().forward(data.x_dict, data.edge_index_dict)


def test_models_may_take_the_data() -> None:
    data = graph()
    model, plain = unlearner(data, make=OfData), unlearner(data)
    assert torch.equal(model.outputs, plain.outputs)
    model.remove(persons=[4])
    fresh = unlearner(twin(data, [4], 'drop'), make=OfData)
    assert torch.equal(model.outputs, fresh.outputs)
    assert model.verify().ok


def test_a_report_tells_the_unit() -> None:
    told = ' '.join(unlearner(graph()).report().assumptions)
    assert 'rows of user, order' in told
    assert 'declared public: item, category' in told
    assert '(chat) are in the training of none' in told
    assert 'in the same order' in unlearner(graph()).report().exactness


@pytest.mark.parametrize(
    ('given', 'name'),
    [
        ({'partition': 'balanced_lpa'}, 'partition'),
        ({'partition': torch.arange(24) % 3}, 'partition'),
        ({'slices': [(0.5, 2), (1, 2)]}, 'slices'),
        ({'over_ranks': True}, 'over_ranks'),
        ({'folder': 'somewhere'}, 'folder'),
    ],
)
def test_what_is_of_one_kind_of_nodes_is_refused(given, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*'unit'"):
        unlearner(graph(), **given)


def test_other_graphs_and_updates_are_refused() -> None:
    data = graph()
    unit = declared(data)
    model = unlearner(data)
    with pytest.raises(TypeError, match="'unit'"):
        ShardedUnlearner(Typed, SHARDS, unit='user')
    fresh = ShardedUnlearner(Typed, SHARDS, unit=unit, seed=1)
    with pytest.raises(ValueError, match=r"'by' of .*take it off"):
        fresh.fit(data)
    with pytest.raises(TypeError, match='HeteroData'):
        fresh.fit(unit.table(data))
    with pytest.raises(ValueError, match='sizes or edges differ'):
        fresh.fit(ready(twin(data, [4], 'drop')))
    back = data.clone()
    back['user'].n_id = torch.arange(N).flip(0)
    with pytest.raises(ValueError, match='ascending'):
        unlearner(back)
    for update in (
        RemovalRequest(features=[3]),
        RemovalRequest(labels=[3]),
        RemovalRequest(nodes=[1], edges=[(2, 3)]),
        Update(nodes=NewNodes(torch.ones(1, 3), torch.tensor([1]))),
        Update(labels=(torch.tensor([3]), torch.tensor([1]))),
        Update(edges=torch.tensor([[1], [2]])),
    ):
        with pytest.raises(ValueError, match=r'RemovalRequest\(persons'):
            model.update(update)
    with pytest.raises(ValueError, match='node 99'):
        model.remove(RemovalRequest(nodes=[99]))
    with pytest.raises(ValueError, match="'unit' can't be saved"):
        model.state_dict()
    with pytest.raises(ValueError, match="'unit' can't load"):
        model.load_state_dict({})
    with pytest.raises(ValueError, match="'unit' can't certify"):
        model.certify()
    with pytest.raises(ValueError, match="'unit' can't predict"):
        model.predict(data)
    model.remove(RemovalRequest(persons=[4], unit=unit))
    with pytest.raises(ValueError, match='forgotten'):
        model.fit(ready(data))


def test_models_return_rows_of_persons() -> None:
    class Orders(Typed):
        def forward(self, x: Any, edges: Any) -> Any:
            return super().forward(x, edges)['order']

    with pytest.raises(ValueError, match="node of 'user'"):
        unlearner(graph(), make=Orders)


@pytest.mark.parametrize('how', ['drop', 'keep'])
def test_what_is_left_has_the_unit_that_would_be_declared(how: str) -> None:
    data = graph()
    joined = torch.tensor([[2, 11], [8, 20]])
    given: dict[str, Any] = {'on_removal': {'chat': how}, 'same': joined}
    left, rest = declared(data, **given)._rest(ready(data), [0, 2, 9])
    twins = twin(data, [0, 2, 8, 9], how)
    # Rows move up by the four before them.
    given['same'] = torch.tensor([[7], [16]])
    again = declared(twins, **given)
    assert rest.digest == again.digest
    assert rest.num_persons == again.num_persons == N - 5
    for person in range(N - 4):
        one, two = rest.rows(person), again.rows(person)
        assert {t: v.tolist() for t, v in one.items()} == {
            t: v.tolist() for t, v in two.items()
        }
    rest.check(left)


def test_what_comes_about_by_a_removal_does_not_stop_it() -> None:
    """Without one person two relations nearly mirror each other."""
    data = graph()
    few, last = torch.arange(20), torch.full((9,), N - 1)
    back = torch.stack([few + 1, few])
    back[1, 0] = 5
    one = torch.cat(
        [torch.stack([few, few + 1]), torch.stack([last, last])], 1
    )
    two = torch.cat([back, torch.stack([last, torch.arange(9)])], 1)
    data['user', 'likes', 'user'].edge_index = one
    data['user', 'liked_by', 'user'].edge_index = two
    with pytest.raises(ValueError, match='to hold the same edges'):
        declared(twin(data, [N - 1], 'drop'))
    model = unlearner(data, make=Rows)
    model.remove(RemovalRequest(persons=[N - 1], unit=declared(data)))
    assert model.verify().ok


class Rows(nn.Module):
    """A model of the table of persons alone."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x: Any, edges: Any) -> torch.Tensor:
        return self.out(x['user'])
