"""Updates of shards: the bits of a fresh fit, whatever came when."""

import pytest
import torch
from living import World, pairs
from sharded import (
    CHANNELS,
    CLASSES,
    EVERY,
    NODES,
    SHARDS,
    TESTED,
    Counting,
    Normed,
    learnt,
    make,
    make_data,
    snapshot,
    weights,
)
from states import same
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning.shards import building
from pyg_trust.update import NewNodes, Update

SLICED = [(0.4, 1), (0.7, 1), (1, 1)]


class Shuffled(World):
    """Names from below and above, and rows and edges in any order."""

    def __init__(self, data, seed):
        y = dict(enumerate(data.y.tolist()))
        trained = data.train_mask.nonzero().view(-1).tolist()
        super().__init__(data, seed, y={v: y[v] for v in trained})
        self.x = dict(enumerate(data.x))
        self.known = {v: c for v, c in y.items() if v not in self.y}
        self.used = {*self.x}

    def drawn(self, count):
        return super().drawn(count).float()

    def name(self):
        while (v := self.random.randrange(800)) in self.used:
            pass
        self.used.add(v)
        return v

    def newcomers(self, x, y, ids):
        return NewNodes(x, torch.tensor(y), n_id=torch.tensor(ids))

    def change(self, gone):
        found = super().change(gone)
        other = [v for v in self.x if v not in self.y]
        if 'labels' not in found and self.random.randrange(2):
            v = self.one(other)
            self.y[v] = self.random.randrange(CLASSES)
            self.known.pop(v, None)
            found['labels'] = torch.tensor([v]), torch.tensor([self.y[v]])
        return found

    def data(self):
        made, names = super().data(), torch.tensor(sorted(self.x))
        y = [self.y.get(v, self.known.get(v, -1)) for v in names.tolist()]
        draw = torch.Generator().manual_seed(self.random.randrange(999))
        order = torch.randperm(len(names), generator=draw)
        edges = order.argsort()[made.edge_index]
        mixed = torch.randperm(edges.size(1), generator=draw)
        return Data(
            x=made.x[order],
            y=torch.tensor(y)[order],
            edge_index=edges[:, mixed],
            train_mask=made.train_mask[order],
            n_id=names[order],
        )


def fresh(unlearner):
    """What training leaves behind, but for marks of removed features."""
    found = learnt(unlearner)
    found['data'] = {
        k: v
        for k, v in found['data'].items()
        if k not in ('x_removed', 'test_mask')
    }
    return found


HOW = {
    'plain': {},
    'sliced': {'slices': SLICED, 'epochs': None},
    'a layer without a matrix': {'factory': EVERY['half of the edges']},
    'sums of neighbours': {'factory': EVERY['SAGE by sums']},
    **{
        name: {'factory': EVERY[name]}
        for name in ('SAGE', 'GAT', 'APPNP', 'JKNet', 'SGConv', 'PairNorm')
    },
    'GIN with BatchNorm': {'factory': EVERY['GIN with BatchNorm']},
    'a counter': {'factory': Counting},
    'a buffer of its own': {'factory': Normed},
    **{
        name: {'aggregator': name}
        for name in ('majority', 'lbaggr', 'contrastive')
    },
}


@pytest.mark.parametrize('how', HOW)
def test_mixed_updates_end_where_a_fresh_fit_of_shuffled_rows_does(
    how, tmp_path
):
    # Any sequence of updates, removals, plans, saves and loads.
    settings = {'num_classes': CLASSES, **HOW[how]}
    world = Shuffled(make_data(), seed=len(how))
    unlearner = make(**settings).fit(make_data())
    rounds = {'plain': 50, 'sliced': 20}.get(how, 10)
    trained = []
    for step in range(rounds):
        updates = [world.draw() for _ in range(1 + step % 3)]
        plan = unlearner.plan(updates)
        before = weights(unlearner)
        report = unlearner.update(updates)
        assert plan.shards == report.shards
        assert plan.request == report.request
        trained.append(len(report.shards))
        for i, (one, two) in enumerate(
            zip(before, weights(unlearner), strict=True)
        ):
            assert same(one, two) or i in report.shards
        if step % 10 == 4:
            unlearner.save(tmp_path)
            unlearner = make(**settings).load(tmp_path)
        if step % 10 == 9:
            now = world.data()
            again = make(**settings).fit(now)
            assert same(fresh(unlearner), fresh(again))
            # Rows stay where they are, with none for who was removed.
            found = unlearner.predict_proba()
            kept = ~found.isnan().any(1)
            rows = unlearner.predict_proba(nodes=now.n_id)
            assert torch.equal(rows, again.predict_proba())
            assert int(kept.sum()) == now.num_nodes
            assert torch.equal(unlearner.predict() < 0, ~kept)
            found = unlearner.verify()
            assert found.ok, found
    # Not all shards every time, which would end there, too.
    assert 0 < sum(trained) < SHARDS * rounds


def test_rows_and_edges_may_come_in_any_order():
    world = Shuffled(make_data(), seed=0)
    for partition in ('hash', 'random', 'blpa'):
        settings = {'partition': partition, **HOW['sums of neighbours']}
        one, two = (make(**settings).fit(world.data()) for _ in range(2))
        assert same(learnt(one), learnt(two))


def test_an_edge_that_comes_and_goes_leaves_nothing():
    unlearner = make().fit(make_data())
    before = learnt(unlearner)
    there = {*map(tuple, make_data().edge_index.t().tolist())}
    (u, v), *_ = [
        (u, v)
        for u in range(NODES)
        for v in range(u)
        if (u, v) not in there
    ]  # fmt: skip
    gone = RemovalRequest(edges=[(u, v)])
    report = unlearner.update([Update(edges=pairs((u, v))), gone])
    assert report.shards == ()
    for update in (Update(edges=pairs((u, v))), gone):
        unlearner.update(update)
    assert same(learnt(unlearner), before)
    # Removed, added again, and no leftover.
    unlearner.update(Update(edges=pairs((u, v))))
    assert unlearner.verify().ok
    unlearner.remove(gone)
    assert unlearner.verify().ok
    assert same(learnt(unlearner), before)


@pytest.mark.parametrize('partition', ['random', 'blpa'])
def test_newcomers_of_other_partitions_go_by_hash_and_are_counted(partition):
    data = make_data()
    one, two = (make(partition=partition).fit(data) for _ in range(2))
    assert one.report().by_hash == 0
    new = NewNodes(torch.rand(1, CHANNELS), torch.tensor([0]))
    # With a neighbour of every shard: it does not matter which.
    home = []
    for shard, unlearner in ((0, one), (3, two)):
        at = unlearner.data
        near = int(at.n_id[at.shard == shard][0])
        report = unlearner.update(
            Update(nodes=new, edges=pairs((NODES, near)))
        )
        assert report.by_hash == 1 == unlearner.report().by_hash
        assert not report.exact
        assert '1 training nodes came later' in report.exactness
        at = unlearner.data
        home.append(int(at.shard[at.n_id == NODES]))
    assert home[0] == home[1]
    many = NewNodes(torch.rand(20, CHANNELS), torch.arange(20) % 2)
    assert 'from a quarter' in one.update(Update(nodes=many)).exactness
    assert one.verify().ok
    again = make(partition=partition)
    again.load_state_dict(one.state_dict())
    assert again.report().by_hash == 21
    report = one.repartition()
    assert (report.by_hash, report.exact) == (0, True)


def test_given_partitions_need_the_shard_of_newcomers():
    data = make_data()
    shard = torch.arange(int(data.train_mask.sum())) % SHARDS
    unlearner = make(partition=shard).fit(data)
    update = Update(nodes=NewNodes(torch.rand(1, CHANNELS), torch.tensor([0])))
    before = snapshot(unlearner)
    for wrong in (None, {3: 1}, {NODES: SHARDS}, 'near'):
        with pytest.raises(ValueError, match="'shard'"):
            unlearner.update(update, shard=wrong)
    assert same(snapshot(unlearner), before)
    report = unlearner.update(update, shard={NODES: 2})
    assert report.shards == (2,)
    assert report.by_hash == 0
    assert unlearner.update(update, shard='hash').by_hash == 1
    assert unlearner.verify().ok


def test_a_shard_that_gets_a_node_votes_again():
    unlearner = make(num_classes=CLASSES).fit(make_data())
    held = unlearner.data
    home = held.n_id[held.shard == 1].tolist()
    unlearner.remove(RemovalRequest(nodes=home))
    assert unlearner.report().empty == (1,)
    names, come = iter(range(100, 1000)), []
    while len(come) < 3:
        name = next(names)
        shard, _ = unlearner._builder.homes(
            torch.tensor([name]), unlearner._state, None
        )
        come += [name] * (int(shard) == 1)
    x, y = torch.rand(3, CHANNELS), torch.arange(3)
    new = NewNodes(x, y, n_id=torch.tensor(come))
    report = unlearner.update(Update(nodes=new))
    assert report.shards == (1,)
    assert report.empty == ()
    assert unlearner.verify().ok


def sampled(unlearner):
    state = unlearner._state
    return state.data.n_id[unlearner._builder.sample(state)]


def test_the_aggregators_sample_is_that_of_a_fresh_fit(monkeypatch):
    monkeypatch.setattr(building, 'AGGREGATOR_NODES', 10)
    world = Shuffled(make_data(), seed=3)
    unlearner = make(num_classes=CLASSES)
    unlearner.fit(make_data())
    before = sampled(unlearner)
    for _ in range(10):
        unlearner.update(world.draw())
    again = make(num_classes=CLASSES).fit(world.data())
    assert sampled(unlearner).numel() == 10
    assert torch.equal(sampled(unlearner), sampled(again))
    assert not torch.equal(sampled(unlearner), before)


ROW = torch.rand(1, CHANNELS)
OLD = torch.tensor([5])
LATER = Update(nodes=NewNodes(ROW, n_id=OLD + 200))
WRONG = [
    ("'update'", []),
    ('is there already', 'there'),
    ('90 is not', Update(edges=pairs((0, 90), (90, 0)))),
    # Names of who is there, who was removed, and who went in the same list.
    ("'n_id'", Update(nodes=NewNodes(ROW, n_id=OLD))),
    ("'n_id'", Update(nodes=NewNodes(ROW, n_id=OLD + 2))),
    ("'n_id'", [LATER, RemovalRequest(nodes=[205]), LATER]),
    ("'nodes'", Update(nodes=ROW[:, 1:])),
    ("'features'", Update(features=(OLD, ROW.double()))),
    ('105 is not', Update(features=(OLD + 100, ROW))),
    ("'labels'", Update(labels=(OLD, OLD))),
    ('label of node 65', RemovalRequest(labels=[65])),
    ("'graph'", Update(graph=1)),
    ("'graphs'", Update(graphs=[make_data()])),
]


@pytest.fixture(scope='module')
def forgetful():
    unlearner = make().fit(make_data())
    unlearner.remove(RemovalRequest(nodes=[7]))
    return unlearner


@pytest.mark.parametrize(('message', 'update'), WRONG)
def test_updates_that_do_not_fit_change_nothing(forgetful, message, update):
    if update == 'there':
        held = forgetful.data
        update = Update(edges=held.n_id[held.edge_index[:, :1]])
    before = snapshot(forgetful)
    for call in (forgetful.plan, forgetful.update):
        with pytest.raises((TypeError, ValueError), match=message):
            call(update)
    assert same(snapshot(forgetful), before)


def test_edges_of_graphs_with_weights_are_refused():
    data = make_data()
    data.edge_weight = torch.ones(data.num_edges)
    unlearner = make().fit(data)
    with pytest.raises(ValueError, match="with 'edge_weight'"):
        unlearner.update(Update(edges=pairs((0, 1), (1, 69))))


def test_the_ledger_says_what_is_gone_and_what_came_again():
    data = make_data()
    unlearner = make(epochs=1, aggregator='mean', num_classes=CLASSES)
    unlearner.fit(data)
    asked = RemovalRequest(edges=[tuple(data.edge_index[:, 0].tolist())])
    unlearner.remove(asked)
    assert unlearner.ledger.last.request == asked.to_dict()
    # Of a node outside of training, too.
    unlearner.remove(features=[TESTED], labels=[5])
    assert int(unlearner.data.y[5]) == -1
    assert not unlearner.data.x[TESTED].any()
    assert TESTED in unlearner.ledger.removed.of('features')
    again = Update(features=(torch.tensor([TESTED]), ROW))
    unlearner.update(again)
    assert torch.equal(unlearner.data.x[TESTED], ROW[0])
    assert TESTED not in unlearner.ledger.removed.of('features')
    gone = Update(remove=RemovalRequest(features=[TESTED]))
    unlearner.update([gone, again])
    assert TESTED not in unlearner.ledger.removed.of('features')
    # A label of every shard.
    held = unlearner.data
    one = [int((held.shard == i).nonzero()[0]) for i in range(SHARDS)]
    labels = held.n_id[one], (held.y[one] + 1) % CLASSES
    report = unlearner.update(Update(labels=labels))
    assert (report.shards, report.request) == ((0, 1, 2, 3), {})
    assert unlearner.verify().ok


def test_the_only_training_node_of_a_class_stays():
    given = {'epochs': 1, 'aggregator': 'mean'}
    factory = lambda: GCN(CHANNELS, 8, 2, CLASSES + 1)  # noqa: E731
    shard, data = make(**given).fit(make_data()).data.shard, make_data()
    for node in [int((shard == i).nonzero()[0]) for i in range(SHARDS)]:
        data.y = make_data().y
        data.y[[node, TESTED]] = CLASSES
        made = make(factory, **given).fit(data)
        with pytest.raises(ValueError, match=f'class {CLASSES} without'):
            made.remove(nodes=[node])
    assert made.remove(nodes=[TESTED + 1]).shards == ()
    given['num_classes'] = CLASSES + 1
    assert make(factory, **given).fit(data).remove(nodes=[node]).exact
