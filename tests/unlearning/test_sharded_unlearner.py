"""Shards forget: the bits of a fresh start, and what is trained again."""

import json

import pytest
import torch
from sharded import (
    CHANNELS,
    CLASSES,
    EVERY,
    NODES,
    SHARDS,
    TESTED,
    TRAIN,
    learnt,
    make,
    make_data,
    snapshot,
    weights,
)
from states import same
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN

from pyg_trust.nn import make_aggregator
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.transforms import Shards
from pyg_trust.unlearning.shards import building
from pyg_trust.update import NewNodes, Update

FAST = {'aggregator': 'mean', 'num_classes': CLASSES, 'epochs': 2}


def without(data, request):
    return remove_from_data(data, request.parts[0])


# Exactness ##################################################################


def odd(kind):
    """A graph with something unusual in it, and what goes."""
    data = make_data()
    a, b = data.edge_index
    if kind == 'a node without neighbours':
        data.edge_index = data.edge_index[:, (a != 5) & (b != 5)]
        return data, {'nodes': [5]}
    if kind == 'all neighbours of a node':
        return data, {'nodes': b[a == 5].unique().tolist()}
    if kind == 'a directed edge':
        data.edge_index = data.edge_index[:, a < b]
        return data, {'edges': [tuple(data.edge_index[:, 2])]}
    if kind == 'one edge':
        data.edge_index = torch.tensor([[0], [5]])
        return data, {'edges': [(0, 5)]}
    if kind == 'self-loops':
        loops = torch.tensor([[3, 9, 60], [3, 9, 60]])
        data.edge_index = torch.cat([data.edge_index, loops], 1)
        return data, {'nodes': [3], 'edges': [(9, 9)]}
    if kind == 'edges twice':
        data.edge_index = data.edge_index.repeat(1, 2)
        return data, {'edges': [tuple(data.edge_index[:, 2])]}
    if kind == 'weights':
        generator = torch.Generator().manual_seed(1)
        data.edge_weight = torch.rand(a.numel(), generator=generator)
        return data, {'nodes': [5], 'features': [7]}
    assert kind == 'features alone'
    return data, {'features': [5, 60]}


@pytest.mark.parametrize(
    'kind',
    [
        'a node without neighbours',
        'all neighbours of a node',
        'a directed edge',
        'one edge',
        'self-loops',
        'edges twice',
        'weights',
        'features alone',
    ],
)
def test_odd_removals_equal_a_fresh_start(kind):
    data, gone = odd(kind)
    unlearner = make(**FAST).fit(data)
    unlearner.remove(**gone)
    fresh = make(**FAST).fit(without(data, RemovalRequest(**gone)))
    assert same(weights(fresh), weights(unlearner))
    assert torch.equal(fresh.outputs, unlearner.outputs)
    assert unlearner.verify().ok


def test_other_partitions_are_exact_until_they_are_not():
    data = make_data()
    for method in ('random', 'blpa'):
        unlearner = make(partition=method).fit(data)
        assert unlearner.report().exact
        home = int(unlearner.data.shard[7])
        before = weights(unlearner)
        report = unlearner.remove(nodes=[7])
        assert report.shards == (home,)
        assert 'given the partition' in report.exactness
        assert not report.exact
        assert not unlearner.report().exact
        for shard, after in enumerate(weights(unlearner)):
            assert same(before[shard], after) == (shard != home)
        assert unlearner.verify().ok
    request = RemovalRequest(nodes=[0, 1, 2, 3])
    unlearner = make(partition='random').fit(data)
    unlearner.remove(request)
    assert unlearner.repartition().exact
    fresh = make(partition='random').fit(without(data, request))
    assert same(learnt(fresh), learnt(unlearner))
    assert unlearner.verify().ok
    # With another method, which later removals and a report then follow.
    assert 'hash' in unlearner.repartition('hash').exactness
    assert unlearner.remove(nodes=[4]).exact


def test_another_graph_between_two_removals_leaves_nothing():
    # A normalised adjacency that outlives its graph would be seen here.
    data, other = make_data(), make_data(1, nodes=90)
    unlearner, alone = make().fit(data), make().fit(data)
    for node in (3, 9):
        unlearner.remove(nodes=[node])
        found = unlearner.predict_proba(other)
        alone.remove(nodes=[node])
    assert torch.equal(found, alone.predict_proba(other))
    assert torch.equal(unlearner.outputs, alone.outputs)
    assert unlearner.verify().ok


@pytest.mark.parametrize('aggregator', ['mean', 'majority', 'attentive'])
def test_a_shard_may_run_empty(aggregator, tmp_path):
    data = make_data()
    options = {'aggregator': aggregator, 'num_classes': CLASSES}
    unlearner = make(**options).fit(data)
    home = (unlearner.data.shard == 1).nonzero().view(-1)
    report = unlearner.remove(nodes=home)
    assert report.empty == unlearner.report().empty == (1,)
    fresh = make(**options).fit(without(data, RemovalRequest(nodes=home)))
    assert same(learnt(fresh), learnt(unlearner))
    assert unlearner.verify().ok
    # A constant voter, with the voice of none.
    assert not bool(unlearner.outputs[1].any())
    if aggregator != 'attentive':
        others = unlearner.outputs[[0, 2, 3]]
        expected = make_aggregator(aggregator)(others).argmax(1)
        assert torch.equal(unlearner.predict()[unlearner.n_id], expected)
    # And it can be saved, loaded, and go on.
    unlearner.save(tmp_path)
    again = make(**options).load(tmp_path)
    assert same(learnt(again), learnt(unlearner))
    again.remove(nodes=again.n_id[again.data.shard == 0][:2])
    assert again.verify().ok


@pytest.mark.parametrize('slices', [None, [(0.5, 1), (1.0, 1)]])
def test_a_shard_of_one_node_does_not_block_batch_norms(slices):
    data, shard = make_data(), torch.arange(TRAIN) % SHARDS
    options = {'epochs': None if slices else 2, 'slices': slices}

    def fit(data, shard):
        how = {**FAST, **options, 'partition': shard}
        return make(EVERY['GIN with BatchNorm'], **how).fit(data)

    unlearner = fit(data, shard)
    unlearner.remove(nodes=range(4, TRAIN, 4))
    # A constant voter, as one that is empty.
    assert unlearner.shard_state(0) == {}
    assert not unlearner.outputs[0].any()
    assert unlearner.outputs[1].any()
    # And other requests are not held up by it.
    unlearner.remove(nodes=[1], features=[0])
    assert unlearner.verify().ok
    left = unlearner.data
    fresh = fit(left, left.shard[left.shard >= 0])
    assert same(weights(unlearner), weights(fresh))


def test_classes_that_run_empty_need_their_number():
    data = make_data()
    last = (data.y[:TRAIN] == 1).nonzero().view(-1)
    unlearner = make(num_classes=CLASSES).fit(data)
    unlearner.remove(nodes=last[:-1])
    unlearner.remove(nodes=last[-1:])
    assert unlearner.verify().ok
    fresh = make(num_classes=CLASSES)
    fresh.fit(without(data, RemovalRequest(nodes=last)))
    assert same(learnt(fresh), learnt(unlearner))
    with pytest.raises(ValueError, match='no training node'):
        unlearner.remove(nodes=unlearner.n_id[unlearner.data.shard >= 0])
    # The largest label of any node is the number of outputs.
    data.y = data.y.clamp(max=1)
    data.y[TESTED] = 2
    unlearner = make().fit(data)
    for call in (unlearner.plan, unlearner.remove):
        with pytest.raises(ValueError, match="'num_classes' to allow"):
            call(RemovalRequest(nodes=[TESTED]))
    stated = make(num_classes=CLASSES).fit(data)
    stated.remove(nodes=[TESTED])
    assert stated.verify().ok


# What a request touches #####################################################


def test_one_direction_of_an_edge_alone():
    unlearner = make(**FAST).fit(make_data())
    edge = tuple(unlearner.data.edge_index[:, 0].tolist())
    unlearner.remove(RemovalRequest(edges=[edge], directed=True))
    left = {tuple(e) for e in unlearner.data.edge_index.t().tolist()}
    assert edge not in left
    assert edge[::-1] in left
    assert unlearner.verify().ok


def test_a_plan_changes_nothing_and_is_what_happens():
    unlearner = make().fit(make_data())
    before = snapshot(unlearner)
    request = RemovalRequest(nodes=[0, 1, 2], features=[3])
    plan = unlearner.plan(request)
    assert same(before, snapshot(unlearner))
    report = unlearner.remove(request)
    for name in ('shards', 'nodes', 'node_epochs', 'request', 'stages'):
        assert getattr(plan, name) == getattr(report, name)
    sizes = unlearner.report().shard_sizes
    assert plan.nodes == sum(sizes[i] for i in plan.shards)
    assert plan.node_epochs == 3 * plan.nodes
    assert plan.full_node_epochs == 3 * (TRAIN - 3)
    assert plan.seconds.keys() == report.seconds.keys()
    # All shards are all, and none costs the least.
    everyone = unlearner.plan(nodes=range(4, 20))
    assert everyone.shards == tuple(range(SHARDS))
    assert everyone.fraction == 1
    least = unlearner.plan(RemovalRequest(nodes=[TESTED]))
    assert 0 < least.fraction < everyone.fraction


def test_the_cost_of_a_removal_does_not_grow_with_the_removals_before(
    monkeypatch,
):
    # What was removed is looked up, and never listed.
    data = make_data()
    unlearner = make(**FAST).fit(data)
    removed = type(unlearner.ledger.removed)
    of = removed.of

    class Looked(frozenset):
        def __iter__(self):
            raise AssertionError('all removed items are listed')

    monkeypatch.setattr(removed, 'of', lambda *what: Looked(of(*what)))
    for node in range(0, 30, 3):
        unlearner.plan(RemovalRequest(nodes=[node]))
        unlearner.remove(nodes=[node])
    new = NewNodes(data.x[:1], torch.tensor([1]))
    unlearner.update([Update(nodes=new), RemovalRequest(nodes=[NODES])])
    with pytest.raises(AssertionError, match='are listed'):
        unlearner.verify()


# Ids and predictions ########################################################


def shuffled(data, order):
    place = order.argsort()
    made = Data(edge_index=place[data.edge_index], n_id=order)
    for name in ('x', 'y', 'train_mask', 'test_mask'):
        made[name] = data[name][order]
    return made


def test_nodes_keep_their_ids():
    data = make_data()
    unlearner = make().fit(data)
    unlearner.remove(nodes=[0, 30])
    there = unlearner.n_id
    assert there[:3].tolist() == [1, 2, 3]
    # Rows stay where they are.
    whole, found = unlearner.predict_proba(), unlearner.predict()
    assert whole.shape == (NODES, CLASSES)
    assert whole.isnan().any(1).nonzero().view(-1).tolist() == [0, 30]
    assert torch.equal(unlearner.predict_proba(nodes=[31, 1]), whole[[31, 1]])
    assert torch.equal(found[there], whole[there].argmax(1))
    assert found[[0, 30]].tolist() == [-1, -1]
    mask = torch.ones(NODES, dtype=torch.bool)
    mask[[0, 30]] = False
    right = (found[there] == data.y[there]).double().mean()
    assert unlearner.score(mask) == float(right)
    assert unlearner.score([1, 2], found[[1, 2]]) == 1.0
    # New nodes come at the end, and ids that are given keep their order.
    unlearner.update(Update(nodes=NewNodes(data.x[:1])))
    assert unlearner.predict().shape == (NODES + 1,)
    order = torch.arange(NODES).flip(0)
    turned = make().fit(shuffled(data, order))
    assert torch.equal(turned.predict(), make().fit(data).predict()[order])
    for node in (0, 30, NODES + 1):
        with pytest.raises(ValueError, match=f'node {node} is not there'):
            unlearner.predict(nodes=[1, node])
    data.n_id = torch.arange(NODES) * 10 + 7
    report = make().fit(data).remove(nodes=[17])
    assert report.request == {'0': {'nodes': [17]}}


def test_predictions_of_another_graph_and_what_is_learned():
    data = make_data()
    unlearner = make().fit(data)
    torch.testing.assert_close(
        unlearner.predict_proba(data), unlearner.predict_proba()
    )
    other = make_data(seed=1)
    assert unlearner.predict(other).shape == (NODES,)
    with pytest.raises(ValueError, match="'nodes'"):
        unlearner.predict(other, nodes=[0])
    data = make_data(nodes=210)
    unlearner = make(epochs=60, aggregator='mean').fit(data)
    assert unlearner.score() > 0.8


def test_the_seed_of_a_shard_is_its_own():
    data = make_data()
    unlearner = make(num_classes=CLASSES).fit(data)
    torch.manual_seed(99)
    assert same(learnt(unlearner), learnt(make().fit(data)))
    for seed in (6, 5 + 2**32):
        other = make(seed=seed).fit(data)
        assert not torch.equal(unlearner.data.shard, other.data.shard)
        for one, two in zip(weights(unlearner), weights(other), strict=True):
            assert not torch.equal(
                one['convs.0.lin.weight'], two['convs.0.lin.weight']
            )
    # Without one, the operating system decides, and not torch.
    torch.manual_seed(1)
    one = make(seed=None, **FAST).fit(data)
    torch.manual_seed(1)
    two = make(seed=None, **FAST).fit(data)
    assert not torch.equal(one.data.shard, two.data.shard)
    assert 'operating system' in str(one.report()).splitlines()[1]


# Verification ###############################################################


def tampered(unlearner, **changes):
    held = unlearner._state
    unlearner._state = held._replace(**changes)
    found = unlearner.verify()
    unlearner._state = held
    assert not found.ok
    return found


def test_verify_finds_what_was_not_retrained_and_what_is_left():
    unlearner = make().fit(make_data())
    old, held = unlearner._state, unlearner.data
    home = int(held.shard[0])
    one, two = held.shard[held.edge_index]
    cut = held.edge_index[:, (one != two) & (held.edge_index > 0).all(0)]
    edge = tuple(cut[:, 0].tolist())
    spared = next(v for v in range(1, TRAIN) if v not in edge)
    unlearner.remove(nodes=[0], features=[spared], edges=[edge])
    new = unlearner._state
    assert unlearner.verify().ok
    left = tampered(unlearner, data=old.data).leftovers
    assert 'node 0' in left
    assert f'features of node {spared}' in left
    assert f'edge {edge[0]} -> {edge[1]}' in left

    def with_shard(made):
        return tuple(
            made if i == home else each
            for i, each in enumerate(new.checkpoints)
        )

    stale = with_shard(old.checkpoints[home])
    report = tampered(unlearner, checkpoints=stale)
    assert report.differing == (home,)
    assert not report.keys_match
    assert any('checkpoint' in line for line in report.leftovers)
    # A shard that is not looked at is not found out by its weights.
    unlearner._state = new._replace(checkpoints=stale)
    assert unlearner.verify(shards=[(home + 1) % SHARDS]).differing == ()
    unlearner._state = new
    # A key alone does not make a checkpoint.
    forged = new.checkpoints[home]._replace(
        weights=old.checkpoints[home].weights
    )
    report = tampered(unlearner, checkpoints=with_shard(forged))
    assert report.keys_match
    assert report.differing == (home,)
    assert not tampered(unlearner, aggregator=old.aggregator).aggregator_equal
    outputs = old.outputs[:, 1:].contiguous()
    assert not tampered(unlearner, outputs=outputs).outputs_equal
    for wrong in ([SHARDS], [-1]):
        with pytest.raises(ValueError, match="'shards'"):
            unlearner.verify(wrong)


def test_a_division_that_looks_at_more_than_ids_is_found(monkeypatch):
    # The kernel divides the ids again: a node in another shard is noticed
    # though weights, keys and digests all agree with one another.
    honest = building.hash_partition

    def crowded(n_id, num_shards, **options):
        return (honest(n_id, num_shards, **options) + 1) % num_shards

    monkeypatch.setattr(building, 'hash_partition', crowded)
    found = make(**FAST).fit(make_data()).verify(shards=[])
    assert not found.ok
    assert not found.differing
    assert found.keys_match
    assert any('that it should not' in line for line in found.leftovers)


# Arguments ##################################################################


def test_removals_that_can_not_be():
    data = make_data()
    unlearner = make().fit(data)
    unlearner.remove(nodes=[40], features=[41])
    before = snapshot(unlearner)
    for request, message in (
        ({'nodes': [0, 40]}, 'node 40 is not there'),
        ({'features': [41]}, 'removed before'),
        ({'edges': [(0, 0)]}, 'edge 0 -> 0 is not there'),
    ):
        for call in (unlearner.plan, unlearner.remove):
            with pytest.raises(ValueError, match=message):
                call(RemovalRequest(**request))
            assert same(before, snapshot(unlearner))
    for call in (unlearner.plan, unlearner.remove):
        with pytest.raises(TypeError, match=r'RemovalRequest|Update'):
            call('0')
    assert same(before, snapshot(unlearner))


def test_inference_mode_around_all_calls():
    with torch.inference_mode():
        one = make().fit(make_data())
        one.remove(nodes=[3])
    two = make().fit(make_data())
    two.remove(nodes=[3])
    assert same(snapshot(one), snapshot(two))
    assert one.verify().ok


def test_labels_outside_of_training_are_not_looked_at():
    data = make_data()
    y = torch.where(data.test_mask, -1, data.y)
    other = make_data()
    other.y = y
    one, two = make().fit(data), make().fit(other)
    assert same(weights(one), weights(two))
    assert torch.equal(one.predict(), two.predict())


def test_partitions_of_every_form():
    data = make_data()
    given = torch.arange(TRAIN) % SHARDS
    lists = [torch.arange(i, TRAIN, SHARDS) for i in range(SHARDS)]
    one, two = (make(partition=p).fit(data) for p in (given, lists))
    assert same(learnt(one), learnt(two))
    one.remove(nodes=[0])
    assert not one.report().exact
    with pytest.raises(ValueError, match="'partition'"):
        one.repartition()
    assert one.repartition('hash').exact
    made = make(partition=Shards(SHARDS, 'hash', seed=3)).fit(data)
    assert made.report().exact
    for wrong, error in (
        (Shards(3, 'hash'), ValueError),
        ('voronoi', ValueError),
        ([[0]], ValueError),
        (3.0, TypeError),
    ):
        with pytest.raises(error):
            make(partition=wrong)
    # A hash takes fewer nodes than shards.
    data.train_mask = torch.arange(NODES) < 3
    unlearner = make(**FAST).fit(data)
    assert unlearner.report().empty
    assert unlearner.verify().ok


def test_what_needs_a_fit_or_another_graph():
    unlearner = make()
    for call in (unlearner.predict, lambda: unlearner.remove(nodes=[0])):
        with pytest.raises(ValueError, match='fitted first'):
            call()
    with pytest.raises(TypeError, match="'data'"):
        unlearner.fit(HeteroData())
    with pytest.raises(ValueError, match="'y'"):
        make(num_classes=2).fit(make_data())
    with pytest.raises(ValueError, match="'model_factory'"):
        make(lambda: GCN(CHANNELS, 8, 2, CLASSES + 1)).fit(make_data())
    assert 'num_shards=4' in repr(unlearner)


def test_reports_can_be_stored():
    # The seed keys the partition: that it was given is in the report, and
    # it is not.
    number = 8123456789
    unlearner = make(epochs=1, seed=number).fit(make_data())
    request = RemovalRequest(nodes=[0])
    for report in (
        unlearner.plan(request),
        unlearner.remove(request),
        unlearner.verify([0]),
        unlearner.report(),
    ):
        assert json.loads(report.to_json())
        assert type(report).__name__ in str(report)
        assert str(number) not in report.to_json()
    made = unlearner.remove(nodes=[1])
    for text in (str(unlearner.report()), str(made)):
        assert 'explicit seed' in text.splitlines()[1]
    assert made.guarantee().promise.startswith('keys come from an explicit')
    other = make(seed=None, epochs=1)
    other.load_state_dict(unlearner.state_dict())
    assert 'explicit seed' in other.report().secrets
