import contextlib
import copy
import json
import os
import sys

import pytest
import torch
from graphs import edges_inside
from sharded import (
    CHANNELS,
    CLASSES,
    MODELS,
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

from pyg_trust import files, rng
from pyg_trust.files.commit import StaleStateError
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.transforms import Shards
from pyg_trust.unlearning import store
from pyg_trust.unlearning.partition import hash_partition
from pyg_trust.unlearning.shards import (
    building,
    graph,
    models,
)
from pyg_trust.unlearning.shards import (
    state as states_of,
)
from pyg_trust.unlearning.shards import (
    unlearner as classes,
)
from pyg_trust.unlearning.shards.models import Shard, train
from pyg_trust.update import NewNodes, Update


def edges_of(data):
    names = data.n_id[data.edge_index].t().tolist()
    shard = dict(zip(data.n_id.tolist(), data.shard.tolist(), strict=True))
    inside = [e for e in names if shard[e[0]] == shard[e[1]] >= 0]
    across = [
        e
        for e in names
        if shard[e[0]] != shard[e[1]] and min(shard[e[0]], shard[e[1]]) >= 0
    ]
    outside = [e for e in names if shard[e[0]] == shard[e[1]] == -1]
    return inside, across, outside


def by_hand(data, shard, gone=(), featureless=()):
    """The subgraph of a shard of the original data, edge by edge."""
    train_nodes = data.train_mask.nonzero().view(-1)
    which = hash_partition(
        train_nodes, SHARDS, seed=rng.derive(5, building._PARTITION)
    )
    nodes = [
        v
        for v, s in zip(train_nodes.tolist(), which.tolist(), strict=True)
        if s == shard and v not in gone
    ]
    x = data.x.clone()
    x[list(featureless)] = 0
    part = Data(x=x[nodes], edge_index=edges_inside(data, nodes).contiguous())
    seed = rng.derive(5, building._SHARD, shard)
    return Shard(seed, part, data.y[nodes])


# Exactness ##################################################################


@pytest.mark.parametrize('name', MODELS)
def test_removal_equals_training_without(name):
    data = make_data()
    unlearner = make(MODELS[name]).fit(data)
    before = weights(unlearner)
    # Two training nodes of different shards, and one of none.
    one = int(unlearner.data.shard[0])
    other = int((unlearner.data.shard[:TRAIN] != one).nonzero()[0])
    two = int(unlearner.data.shard[other])
    gone = [0, other, TESTED]
    report = unlearner.remove(RemovalRequest(nodes=gone))
    after = weights(unlearner)
    assert set(report.shards) == {one, two}
    assert report.exact
    for shard in range(SHARDS):
        job = by_hand(data, shard, gone)
        ways = unlearner._builder.ways
        (fresh, _), *_ = train(MODELS[name], [job], unlearner.recipe, ways)
        assert same(fresh, [after[shard]])
        untouched = shard not in (one, two)
        assert same([before[shard]], [after[shard]]) == untouched
    # And all of it, the aggregator included, equals a fresh start.
    left = remove_from_data(data, RemovalRequest(nodes=gone).parts[0])
    assert same(
        learnt(make(MODELS[name]).fit(left)),
        learnt(unlearner),
    )
    assert unlearner.verify().ok


def test_removal_by_processes_equals_training_without():
    data = make_data()
    fitted = make(trainer='sequential').fit(data)
    unlearner = make(trainer='process', num_workers=1)
    unlearner.load_state_dict(fitted.state_dict())
    touched = [0, *(unlearner.data.shard[:TRAIN] > 0).nonzero()[0].tolist()]
    report = unlearner.remove(RemovalRequest(nodes=[*touched, 1, 2, 3]))
    assert report.trainer == 'process'
    assert len(report.shards) > 1
    assert unlearner.verify(trainer='sequential').ok


@pytest.mark.parametrize('aggregator', ['mean', 'majority', 'lbaggr'])
def test_other_aggregators(aggregator):
    data = make_data()
    unlearner = make(aggregator=aggregator).fit(data)
    unlearner.remove(nodes=[0, 1])
    left = remove_from_data(data, RemovalRequest(nodes=[0, 1]).parts[0])
    fresh = make(aggregator=aggregator).fit(left)
    assert same(learnt(fresh), learnt(unlearner))


def test_any_partition_keeps_its_other_shards():
    data = make_data()
    for method in ('random', 'blpa'):
        unlearner = make(partition=method).fit(data)
        assert unlearner.report().exact
        home = int(unlearner.data.shard[7])
        before = weights(unlearner)
        report = unlearner.remove(RemovalRequest(nodes=[7]))
        assert report.shards == (home,)
        assert not report.exact
        assert 'given the partition' in report.exactness
        assert not unlearner.report().exact
        after = weights(unlearner)
        for shard in range(SHARDS):
            kept = same([before[shard]], [after[shard]])
            assert kept == (shard != home)
        assert unlearner.verify().ok


def test_repartition_equals_a_fresh_start():
    data = make_data()
    unlearner = make(partition='random').fit(data)
    request = RemovalRequest(nodes=[0, 1, 2, 3])
    unlearner.remove(request)
    report = unlearner.repartition()
    assert report.exact
    left = remove_from_data(data, request.parts[0])
    fresh = make(partition='random').fit(left)
    assert same(learnt(fresh), learnt(unlearner))
    assert unlearner.verify().ok
    # With another method, which later removals and a report then follow.
    assert 'hash' in unlearner.repartition('hash').exactness
    assert unlearner.remove(RemovalRequest(nodes=[4])).exact
    assert unlearner.verify().ok


# What a request touches #####################################################


def test_an_edge_touches_its_shard_if_it_is_inside_of_one():
    data = make_data()
    inside, across, outside = edges_of(make().fit(data).data)
    for edge, trained in (
        (inside[0], True),
        (across[0], False),
        (outside[0], False),
    ):
        unlearner = make().fit(data)
        before, outputs = weights(unlearner), unlearner.outputs
        home = int(unlearner.data.shard[edge[0]])
        report = unlearner.remove(RemovalRequest(edges=[edge]))
        assert report.shards == ((home,) if trained else ())
        changed = [
            i
            for i, pair in enumerate(
                zip(before, weights(unlearner), strict=True)
            )
            if not same([pair[0]], [pair[1]])
        ]
        assert changed == [*report.shards]
        # Inference and aggregator go without it in any case.
        assert not torch.equal(outputs, unlearner.outputs)
        named = unlearner.data.edge_index.t().tolist()
        assert edge not in named
        assert edge[::-1] not in named
        assert unlearner.verify().ok


def test_features_touch_the_shard_of_a_training_node():
    data = make_data()
    unlearner = make().fit(data)
    home = int(unlearner.data.shard[5])
    request = RemovalRequest(features=[5, TESTED])
    assert unlearner.remove(request).shards == (home,)
    assert not bool(unlearner.data.x[[5, TESTED]].any())
    job = by_hand(data, home, featureless=[5])
    (fresh, _), *_ = train(
        MODELS['GCN'], [job], unlearner.recipe, unlearner._builder.ways
    )
    assert same(fresh, [unlearner.shard_state(home)])
    assert unlearner.verify().ok


def test_a_plan_changes_nothing_and_is_what_happens():
    unlearner = make().fit(make_data())
    before = snapshot(unlearner)
    request = RemovalRequest(nodes=[0, 1, 2], features=[3])
    plan = unlearner.plan(request)
    assert same(before, snapshot(unlearner))
    report = unlearner.remove(request)
    for name in ('shards', 'nodes', 'node_epochs', 'request'):
        assert getattr(plan, name) == getattr(report, name)
    sizes = unlearner.report().shard_sizes
    assert plan.nodes == sum(sizes[i] for i in plan.shards)
    assert plan.node_epochs == 3 * plan.nodes
    assert plan.full_node_epochs == 3 * (TRAIN - 3)
    assert plan.seconds.keys() == report.seconds.keys()
    assert 0 < plan.fraction <= 1
    # All shards are all, and none costs the least.
    everyone = unlearner.plan(RemovalRequest(nodes=range(4, 20)))
    assert everyone.shards == tuple(range(SHARDS))
    assert everyone.fraction == 1
    least = unlearner.plan(RemovalRequest(nodes=[TESTED]))
    assert least.fraction < everyone.fraction


# Names and predictions ######################################################


def shuffled(data, order):
    place = order.argsort()
    made = Data(edge_index=place[data.edge_index], n_id=order)
    for name in ('x', 'y', 'train_mask', 'test_mask'):
        made[name] = data[name][order]
    return made


def test_nodes_keep_their_names():
    data = make_data()
    unlearner = make().fit(data)
    unlearner.remove(RemovalRequest(nodes=[0, 30]))
    assert unlearner.n_id[:3].tolist() == [1, 2, 3]
    # Rows stay where they are.
    whole = unlearner.predict_proba()
    assert whole.shape == (NODES, CLASSES)
    assert bool(whole[[0, 30]].isnan().all())
    there = unlearner.n_id
    assert not bool(whole[there].isnan().any())
    some = unlearner.predict_proba(nodes=[31, 1])
    assert torch.equal(some, whole[[31, 1]])
    found = unlearner.predict()
    assert torch.equal(found[there], whole[there].argmax(1))
    assert found[[0, 30]].tolist() == [-1, -1]
    right = found[there] == data.y[there]
    mask = torch.ones(NODES, dtype=torch.bool)
    mask[[0, 30]] = False
    assert unlearner.score(mask) == float(right.double().mean())
    assert unlearner.score([1, 2], found[[1, 2]]) == 1.0
    # New nodes come at the end, and names that are given keep their order.
    new = NewNodes(data.x[:1])
    unlearner.update(Update(nodes=new))
    assert unlearner.predict().shape == (NODES + 1,)
    order = torch.arange(NODES).flip(0)
    turned = make().fit(shuffled(data, order))
    assert torch.equal(turned.predict(), make().fit(data).predict()[order])
    for name in (0, 30, NODES + 1):
        with pytest.raises(ValueError, match=f'node {name} is not there'):
            unlearner.predict(nodes=[1, name])
    # Given names are names.
    data.n_id = torch.arange(NODES) * 10 + 7
    unlearner = make().fit(data)
    assert unlearner.remove(RemovalRequest(nodes=[17])).request == {
        '0': {'nodes': [17]}
    }
    assert 17 not in unlearner.n_id.tolist()


def test_prediction_for_another_graph():
    data = make_data()
    unlearner = make().fit(data)
    torch.testing.assert_close(
        unlearner.predict_proba(data), unlearner.predict_proba()
    )
    other = make_data(seed=1)
    assert unlearner.predict(other).shape == (NODES,)
    with pytest.raises(ValueError, match="'nodes'"):
        unlearner.predict(other, nodes=[0])


def test_it_learns():
    data = make_data(nodes=210)
    unlearner = make(epochs=60, aggregator='mean').fit(data)
    hit = unlearner.predict()[data.test_mask] == data.y[data.test_mask]
    assert float(hit.double().mean()) > 0.8


def test_the_seed_of_a_shard_is_its_own():
    data = make_data()
    unlearner = make(num_classes=CLASSES).fit(data)
    torch.manual_seed(99)
    assert same(learnt(unlearner), learnt(make().fit(data)))
    assert not same(weights(unlearner), weights(make(seed=6).fit(data)))
    # Without one, the operating system decides, and not torch.
    torch.manual_seed(1)
    one = make(seed=None).fit(data)
    torch.manual_seed(1)
    two = make(seed=None).fit(data)
    assert not torch.equal(one.data.shard, two.data.shard)
    assert not same(learnt(one), learnt(two))


# Verification ###############################################################


def tampered(unlearner, **changes):
    unlearner._state = unlearner._state._replace(**changes)
    return unlearner.verify()


def test_verify_finds_a_model_that_was_not_retrained():
    data = make_data()
    unlearner = make().fit(data)
    old = unlearner._state
    home = int(unlearner.data.shard[0])
    unlearner.remove(RemovalRequest(nodes=[0]))
    new = unlearner._state
    assert unlearner.verify().ok

    stale = list(new.checkpoints)
    stale[home] = old.checkpoints[home]
    report = tampered(unlearner, checkpoints=tuple(stale))
    assert not report.ok
    assert report.differing == (home,)
    assert not report.keys_match
    assert any('checkpoint' in line for line in report.leftovers)
    # A shard that is not looked at is not found out by its weights.
    assert unlearner.verify(shards=[(home + 1) % SHARDS]).differing == ()

    # A key alone does not make a checkpoint.
    forged = new.checkpoints[home]._replace(
        weights=old.checkpoints[home].weights
    )
    stale[home] = forged
    report = tampered(unlearner, checkpoints=tuple(stale))
    assert report.keys_match
    assert report.differing == (home,)
    assert not report.ok

    unlearner._state = new
    report = tampered(unlearner, aggregator=old.aggregator)
    assert not report.ok
    assert not report.aggregator_equal
    unlearner._state = new
    report = tampered(unlearner, outputs=old.outputs[:, 1:].contiguous())
    assert not report.ok
    assert not report.outputs_equal


def test_verify_finds_what_is_left_over():
    data = make_data()
    unlearner = make().fit(data)
    edge = tuple(edges_of(unlearner.data)[1][0])
    spared = next(v for v in range(1, TRAIN) if v not in edge)
    old = unlearner._state
    unlearner.remove(
        RemovalRequest(nodes=[0], features=[spared], edges=[edge])
    )
    assert unlearner.verify().leftovers == ()
    left = tampered(unlearner, data=old.data).leftovers
    assert 'node 0' in left
    assert f'features of node {spared}' in left
    assert f'edge {edge[0]} -> {edge[1]}' in left


@pytest.mark.parametrize('shards', [[SHARDS], [-1]])
def test_verify_of_unknown_shards(shards):
    unlearner = make(epochs=1, aggregator='mean').fit(make_data())
    with pytest.raises(ValueError, match="'shards'"):
        unlearner.verify(shards)
    with pytest.raises(ValueError, match="'trainer'"):
        unlearner.verify(trainer='none')


# State ######################################################################


def test_a_state_goes_on_where_it_was():
    data = make_data()
    unlearner = make().fit(data)
    unlearner.remove(RemovalRequest(nodes=[0]))
    state = copy.deepcopy(unlearner.state_dict())
    other = make(seed=77)
    other.load_state_dict(state)
    assert same(snapshot(unlearner), snapshot(other))
    assert other.verify().ok
    unlearner.remove(RemovalRequest(nodes=[1]))
    other.remove(RemovalRequest(nodes=[1]))
    assert same(snapshot(unlearner), snapshot(other))


def test_a_state_of_something_else_is_refused():
    data = make_data()
    unlearner = make().fit(data)
    state = copy.deepcopy(unlearner.state_dict())
    with pytest.raises(ValueError, match='other arguments'):
        make(epochs=4).load_state_dict(state)
    with pytest.raises(ValueError, match='partition'):
        make(partition='random').load_state_dict(state)
    wide = lambda: GCN(CHANNELS, 17, 2, CLASSES)  # noqa: E731
    with pytest.raises(ValueError, match='model_factory'):
        make(wide).load_state_dict(state)
    changed = copy.deepcopy(state)
    changed['data']['x'][0, 0] += 1
    with pytest.raises(ValueError, match='do not match its ledger'):
        make().load_state_dict(changed)
    changed = copy.deepcopy(state)
    changed['data']['x'][TESTED, 0] += 1
    with pytest.raises(ValueError, match='ledger'):
        make().load_state_dict(changed)
    # The ledger can't be turned back.
    unlearner.remove(RemovalRequest(nodes=[0]))
    before = snapshot(unlearner)
    with pytest.raises(ValueError, match='turned back'):
        unlearner.load_state_dict(state)
    assert same(before, snapshot(unlearner))


def test_a_folder_holds_the_present_state(tmp_path):
    unlearner = make(folder=tmp_path).fit(make_data())
    names = {path.name for path in tmp_path.iterdir()}
    assert sum(name.startswith('shard-') for name in names) == SHARDS
    loaded = make(seed=1).load(tmp_path)
    assert same(snapshot(unlearner), snapshot(loaded))
    report = unlearner.remove(RemovalRequest(nodes=[3]))
    loaded = make(seed=1).load(tmp_path)
    assert same(snapshot(unlearner), snapshot(loaded))

    # The old checkpoints are gone.
    assert report.shards
    assert unlearner.verify().ok
    manifest = json.loads((tmp_path / 'manifest.json').read_text())
    here = {path.name for path in tmp_path.iterdir()}
    assert here == {
        'manifest.json',
        *(entry['file'] for entry in manifest['files'].values()),
    }
    assert make(seed=1).load(tmp_path).verify().ok


def test_checkpoints_are_kept_and_can_not_be_guessed(tmp_path):
    # A removal leaves the files of other shards, byte for byte.
    def files(name):
        return {
            path.name: path.stat().st_ino
            for path in (tmp_path / name).iterdir()
            if path.name.startswith('shard-')
        }

    data = make_data()
    one = make().fit(data)
    one.save(tmp_path / 'one')
    home, before = int(one.data.shard[0]), files('one')
    one.remove(RemovalRequest(nodes=[0]))
    one.save(tmp_path / 'one')
    (changed,) = files('one').items() - before.items()
    assert changed[0].startswith(f'shard-{home}-')
    # Names can't be guessed: of the same data and settings they are others.
    again = make().fit(data)
    again.save(tmp_path / 'two')
    assert files('two').keys().isdisjoint(before)
    # A file that was cut short is written again.
    path = next((tmp_path / 'two').glob('shard-0-*'))
    path.write_bytes(path.read_bytes()[:-1])
    again.save(tmp_path / 'two')
    assert make().load(tmp_path / 'two').verify().ok


def test_a_folder_does_not_go_back(tmp_path):
    data = make_data()
    unlearner = make().fit(data)
    unlearner.save(tmp_path)
    old = make(seed=0).load(tmp_path)
    unlearner.remove(RemovalRequest(nodes=[0]))
    unlearner.save(tmp_path)
    for other in (old, make(seed=9).fit(data)):
        with pytest.raises((StaleStateError, ValueError), match=r'load'):
            other.save(tmp_path)
    with pytest.raises(ValueError, match="'folder'"):
        unlearner.save()
    with pytest.raises(ValueError, match='manifest'):
        make().load(tmp_path / 'empty')


def test_a_fit_does_not_undo_what_a_folder_holds(tmp_path):
    data = make_data()
    options = {'epochs': 1, 'aggregator': 'mean', 'folder': tmp_path}
    unlearner = make(**options).fit(data)
    unlearner.remove(RemovalRequest(nodes=[0]))
    before = snapshot(unlearner)
    with pytest.raises(ValueError, match='holds a state'):
        make(**options).fit(data)
    again = make(**options).load()
    assert same(before, snapshot(again))
    # Nor does one that knows of them: to start over is another folder.
    with pytest.raises(ValueError, match='holds a state'):
        again.fit(data)
    assert again.report().removals == 1


def test_a_damaged_folder_is_found_out(tmp_path):
    make(folder=tmp_path).fit(make_data())
    path = next(tmp_path.glob('shard-2-*'))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match='was changed'):
        make().load(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match='missing'):
        make().load(tmp_path)
    (tmp_path / 'manifest.json').write_text('{')
    with pytest.raises(ValueError, match='no manifest'):
        make().load(tmp_path)


# Failures ###################################################################


class _Interrupt:
    """Raises at the n-th line that runs in the unlearner's own modules."""

    def __init__(self, at, error):
        self.at, self.error, self.lines = at, error, 0
        self.files = {
            module.__file__
            for module in (
                building,
                classes,
                states_of,
                graph,
                store,
                models,
                files,
            )
        }

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        if event == 'line':
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                raise self.error
        return self


def interrupted(call, at, error):
    before = sys.gettrace()
    tracer = _Interrupt(at, error)
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(before)
    return tracer.lines


@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
def test_the_old_state_or_the_new_one(tmp_path, error):
    data, request = make_data(), RemovalRequest(nodes=[0, 1, TESTED])
    options = {'epochs': 1, 'aggregator': 'mean'}
    unlearner = make(folder=tmp_path / 'a', **options).fit(data)
    old = snapshot(unlearner)
    done = make(**options).fit(data)
    done.remove(request)
    new = snapshot(done)

    total = interrupted(
        lambda: make(folder=tmp_path / 'b', **options).fit(data).plan(request),
        0,
        error,
    )
    lines = interrupted(
        lambda: (
            make(folder=tmp_path / 'c', **options).fit(data).remove(request)
        ),
        0,
        error,
    )
    # Of removal alone, spread over it, and all of its last lines.
    lines -= total // 2
    points = [*range(1, lines, max(lines // 30, 1))]
    seen = set()
    for at in points:
        try:
            interrupted(lambda: unlearner.remove(request), at, error)
            finished = True
        except error:
            finished = False
        state = snapshot(unlearner)
        is_old, is_new = same(state, old), same(state, new)
        assert is_old or is_new
        assert is_new or not finished
        seen.add(is_new)
        # The disk says the same.
        kept = snapshot(make(seed=1, **options).load(tmp_path / 'a'))
        assert same(kept, state)
        if is_new:
            break
    assert False in seen
    if not is_new:
        unlearner.remove(request)
    assert same(snapshot(unlearner), new)
    unlearner.load()
    assert unlearner.verify().ok


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
@pytest.mark.parametrize('call', ['replace', 'fsync', 'open'])
def test_a_disk_that_fails(tmp_path, monkeypatch, call, error):
    data, request = make_data(), RemovalRequest(nodes=[0])
    options = {'epochs': 1, 'aggregator': 'mean'}
    unlearner = make(folder=tmp_path, **options).fit(data)
    old = snapshot(unlearner)
    done = make(**options).fit(data)
    done.remove(request)
    new = snapshot(done)
    real = getattr(os, call)
    outcomes = []
    for at in range(40):
        left = [at]

        def failing(*args, left=left, **kwargs):
            left[0] -= 1
            if left[0] == -1:
                raise error
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with contextlib.suppress(error):
                unlearner.remove(request)
        state = snapshot(unlearner)
        assert same(state, old) or same(state, new)
        kept = make(seed=1, **options).load(tmp_path)
        assert same(snapshot(kept), state)
        outcomes.append(same(state, new))
        if outcomes[-1]:
            break
    assert outcomes[0] is False
    assert outcomes[-1] is True


@pytest.mark.parametrize(
    ('module', 'name'),
    [
        (building, 'train'),
        (building, 'evaluate_all'),
        (classes, 'played'),
        (building, 'content'),
        (classes.RemovalLedger, 'record'),
        (building.ShardAggregator, 'fit'),
        (classes.ShardStore, 'write'),
    ],
)
def test_whatever_fails_nothing_has_changed(
    tmp_path, monkeypatch, module, name
):
    unlearner = make(folder=tmp_path).fit(make_data())
    before = snapshot(unlearner)

    def failing(*args, **kwargs):
        raise RuntimeError('injected')

    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        calls = [lambda: unlearner.remove(RemovalRequest(nodes=[0, 1]))]
        if name != 'played':
            calls.append(unlearner.repartition)
        for call in calls:
            with pytest.raises(RuntimeError, match='injected'):
                call()
            assert same(before, snapshot(unlearner))
    loaded = make(seed=1).load(tmp_path)
    assert same(before, snapshot(loaded))
    unlearner.remove(RemovalRequest(nodes=[9]))
    unlearner.load()
    assert unlearner.verify().ok


# Bad input ##################################################################


def test_removals_that_can_not_be():
    data = make_data()
    unlearner = make().fit(data)
    shard = unlearner.data.shard
    unlearner.remove(RemovalRequest(nodes=[40], features=[41]))
    before = snapshot(unlearner)
    trained = (shard >= 0).nonzero().view(-1)
    whole_class = ((data.y == 2) & data.train_mask).nonzero().view(-1)
    for request, message in (
        (RemovalRequest(nodes=[NODES]), f'node {NODES} is not there'),
        (RemovalRequest(nodes=[40]), 'node 40 is not there'),
        (RemovalRequest(nodes=[0, 40]), 'node 40 is not there'),
        (RemovalRequest(features=[41]), 'removed before'),
        (RemovalRequest(edges=[(0, 0)]), 'edge 0 -> 0 is not there'),
        (RemovalRequest(nodes={1: [0]}), 'graph 0'),
        (RemovalRequest(graphs=[0]), 'graph 0'),
        (
            RemovalRequest(nodes=trained[trained != 40]),
            'leave no training node',
        ),
        (
            RemovalRequest(nodes=whole_class[whole_class != 40]),
            'leave class 2',
        ),
    ):
        for call in (unlearner.plan, unlearner.remove):
            with pytest.raises(ValueError, match=message):
                call(request)
            assert same(before, snapshot(unlearner))
    for call in (unlearner.plan, unlearner.remove):
        with pytest.raises(TypeError, match=r'RemovalRequest|Update'):
            call('0')
    assert same(before, snapshot(unlearner))


def test_the_only_node_of_the_largest_label_does_not_leave_it_behind():
    # It is not trained on, but the number of outputs would tell its label.
    data = make_data()
    data.y = data.y.clamp(max=1)
    node = int(data.test_mask.nonzero()[0])
    data.y[node] = 2
    unlearner = make().fit(data)
    before = snapshot(unlearner)
    request = RemovalRequest(nodes=[node])
    for call in (unlearner.plan, unlearner.remove):
        with pytest.raises(ValueError, match="'num_classes' to allow"):
            call(request)
        assert same(before, snapshot(unlearner))
    told = make(num_classes=CLASSES).fit(data)
    told.remove(request)
    assert told.verify().ok


@pytest.mark.parametrize('kind', ['tensor', 'list'])
def test_a_file_does_not_tell_which_shard_a_removed_node_was_given(
    tmp_path, kind
):
    def given(guess):
        shard = torch.arange(TRAIN) % SHARDS
        shard[7] = guess
        if kind == 'tensor':
            return shard
        return [(shard == s).nonzero().view(-1) for s in range(SHARDS)]

    data, kept = make_data(), []
    for guess in (0, 1):
        unlearner = make(partition=given(guess)).fit(data)
        unlearner.remove(RemovalRequest(nodes=[7]))
        unlearner.save(tmp_path / str(guess))
        kept.append(unlearner.state_dict()['partition'])
    assert kept[0] == kept[1]
    again = make(partition=given(1)).load(tmp_path / '1')
    assert same(snapshot(again), snapshot(unlearner))
    assert again.verify().ok
    with pytest.raises(ValueError, match="state's partition is another"):
        make().load(tmp_path / '1')


def changed(**values):
    data = make_data()
    for name, value in values.items():
        data[name] = value
    return data


def labels(node, value):
    y = make_data().y
    y[node] = value
    return y


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (changed(y=None), "'y'"),
        (changed(y=make_data().y.float()), "'y'"),
        (changed(y=make_data().y[:-1]), "'y'"),
        (changed(y=labels(3, -1)), "'y' needs to hold a label"),
        (changed(train_mask=None), 'train_mask'),
        (changed(train_mask=torch.arange(NODES)), 'train_mask'),
        (changed(train_mask=torch.arange(NODES) < 0), "'num_shards'"),
        (changed(x=None, num_nodes=NODES), "'x'"),
        (changed(x=make_data().x.long()), "'x'"),
        (changed(x=make_data().x.fill_(torch.nan)), 'finite'),
        (changed(n_id=torch.zeros(NODES, dtype=torch.int64)), "'n_id'"),
        (changed(y=labels(3, CLASSES)), "'model_factory'"),
        (changed(edge_index=torch.tensor([[0], [NODES]])), 'edge_index'),
    ],
)
def test_data_that_can_not_be_divided(data, message):
    fitted = make(epochs=1, aggregator='mean').fit(make_data())
    before = snapshot(fitted)
    for unlearner in (make(), fitted):
        with pytest.raises(ValueError, match=message):
            unlearner.fit(data)
    assert same(before, snapshot(fitted))


def test_labels_outside_of_training_are_not_looked_at():
    data = make_data()
    y = data.y.clone()
    y[data.test_mask] = -1
    one, two = make().fit(data), make().fit(changed(y=y))
    assert same(weights(one), weights(two))
    assert torch.equal(one.predict(), two.predict())
    assert len(two.predict().unique()) <= CLASSES


def test_partitions_of_every_form():
    data = make_data()
    given = torch.arange(TRAIN) % SHARDS
    one = make(partition=given).fit(data)
    two = make(
        partition=[torch.arange(i, TRAIN, SHARDS) for i in range(SHARDS)]
    ).fit(data)
    assert same(learnt(one), learnt(two))
    one.remove(RemovalRequest(nodes=[0]))
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


def test_what_needs_a_fit_or_another_graph():
    unlearner = make()
    with pytest.raises(ValueError, match='fitted first'):
        unlearner.predict()
    with pytest.raises(ValueError, match='fitted first'):
        unlearner.remove(RemovalRequest(nodes=[0]))
    with pytest.raises(TypeError, match="'data'"):
        unlearner.fit(HeteroData())
    with pytest.raises(ValueError, match="'y'"):
        make(num_classes=2).fit(make_data())
    with pytest.raises(ValueError, match="'model_factory'"):
        make(lambda: GCN(CHANNELS, 8, 2, CLASSES + 1)).fit(make_data())
    assert 'num_shards=4' in repr(unlearner)


def test_the_callers_graph_stays_as_it_is():
    data = make_data()
    before = copy.deepcopy(data)
    unlearner = make(epochs=1).fit(data)
    unlearner.remove(RemovalRequest(nodes=[0]))
    assert data.keys() == before.keys()
    assert all(torch.equal(data[key], before[key]) for key in data.keys())  # noqa: SIM118
    data.x.zero_()
    assert bool(unlearner.data.x.any())


def test_reports_can_be_stored():
    unlearner = make(epochs=1).fit(make_data())
    request = RemovalRequest(nodes=[0])
    for report in (
        unlearner.plan(request),
        unlearner.remove(request),
        unlearner.verify([0]),
        unlearner.report(),
    ):
        assert json.loads(report.to_json())
        assert type(report).__name__ in str(report)
    # The seed keys the partition: that it was given is in the report, and
    # it is not.
    number = 8123456789
    report = make(epochs=1, seed=number).fit(make_data()).report()
    assert 'explicit seed' in report.secrets
    assert str(number) not in report.to_json()
