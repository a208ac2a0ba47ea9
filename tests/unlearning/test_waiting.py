"""Requests that wait, outputs that are asked for, and plans of the work."""

import math

import pytest
import torch
from sharded import (
    CHANNELS,
    EVERY,
    SHARDS,
    TESTED,
    learnt,
    make,
    make_data,
    weights,
)
from states import same
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GCN

from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards import building, removing, training
from pyg_trust.unlearning.shards.waiting import batch_plan


class Clock:
    """A time that passes when a test says so."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


def node(name):
    return RemovalRequest(nodes=[name])


# The queue ##################################################################


def test_a_request_is_due_when_it_has_waited_so_long():
    clock = Clock()
    unlearner = make(max_wait=60, clock=clock).fit(make_data())
    assert not unlearner.due
    assert unlearner.flush_if_due() is None
    unlearner.enqueue(node(3))
    clock.now += 40
    unlearner.enqueue(node(4))
    clock.now += 19.5
    assert not unlearner.due
    assert unlearner.flush_if_due() is None
    assert len(unlearner.queue) == 2
    assert unlearner.report().oldest_request == 1000
    # What counts is the oldest, not the last.
    clock.now += 0.5
    assert unlearner.due
    report = unlearner.flush_if_due()
    assert report.request['0']['nodes'] == [3, 4]
    assert (unlearner.queue, unlearner.due) == ((), False)
    assert unlearner.report().oldest_request is None


def test_so_many_requests_are_due_at_once():
    clock = Clock()
    unlearner = make(max_requests=3, clock=clock).fit(make_data())
    for name in (3, 4):
        unlearner.enqueue(node(name))
        clock.now += 1e9
        assert unlearner.flush_if_due() is None
    unlearner.enqueue(node(5))
    assert len(unlearner.flush_if_due().request['0']['nodes']) == 3
    assert unlearner.verify().ok


def test_a_removal_at_once_leaves_the_times_of_the_others():
    clock = Clock()
    unlearner = make(max_wait=60, clock=clock).fit(make_data())
    unlearner.enqueue(node(3))
    clock.now += 50
    report = unlearner.remove(node(4))
    assert (report.queued, report.max_wait) == (1, 60)
    said = ' '.join(report.guarantee().not_covered)
    assert '60 seconds' in said
    unlearner.repartition('hash')
    clock.now += 10
    assert unlearner.due
    # A flush was said to come by then: it does not, however long one waits.
    clock.now += 1e9
    assert unlearner.predict().numel() == unlearner.data.num_nodes
    assert len(unlearner.queue) == 1
    assert 'none comes by itself' in said
    unlearner.withdraw()
    assert unlearner.report().oldest_request is None
    assert not unlearner.due
    unlearner.enqueue(node(3))
    assert not unlearner.due


def test_times_survive_a_save_and_a_failure(tmp_path, monkeypatch):
    clock = Clock()
    unlearner = make(max_wait=60, clock=clock, folder=tmp_path)
    unlearner.fit(make_data()).enqueue(node(3))
    clock.now += 60

    def fails(*args, **kwargs):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(building, 'train', fails)
        with pytest.raises(MemoryError):
            unlearner.flush_if_due()
    assert unlearner.due
    other = make(max_wait=60, clock=clock, folder=tmp_path).load()
    assert other.report().oldest_request == 1000
    assert other.flush_if_due().request['0']['nodes'] == [3]


def test_a_clock_that_is_set_back_makes_nobody_younger():
    clock = Clock()
    unlearner = make(max_wait=60, clock=clock).fit(make_data())
    unlearner.enqueue(node(3))
    clock.now -= 500
    unlearner.enqueue(node(4))
    assert unlearner._state.arrived == (1000, 1000)
    clock.now = 1060
    assert unlearner.due


def test_a_state_without_times_is_refused():
    unlearner = make().fit(make_data())
    unlearner.enqueue(node(3))
    state = unlearner.state_dict()
    state['arrived'] = []
    with pytest.raises(ValueError, match='when each request came'):
        make().load_state_dict(state)
    del state['arrived']
    with pytest.raises(ValueError, match='arrived'):
        make().load_state_dict(state)


def test_without_a_policy_nothing_is_due():
    unlearner = make(clock=Clock()).fit(make_data())
    unlearner.enqueue(node(3))
    assert not unlearner.due
    with pytest.raises(ValueError, match='max_wait'):
        unlearner.flush_if_due()
    broken = make(clock=lambda: math.nan).fit(make_data())
    with pytest.raises(ValueError, match='clock'):
        broken.enqueue(node(3))
    assert broken.queue == ()


# What waiting costs #########################################################


def test_the_cost_of_waiting_is_that_of_simulated_requests():
    generator = torch.Generator().manual_seed(0)
    shares = [0.5, 1.0]
    costs = torch.rand(4, 2, generator=generator)
    rest, rate, wait = 0.7, 0.05, 60.0
    found = batch_plan(costs.tolist(), shares, rest, rate, wait)
    runs, total, some = 20_000, 0.0, 0
    squares = 0.0
    for _ in range(runs):
        count = int(
            torch.poisson(torch.tensor(rate * wait), generator=generator)
        )
        shard = torch.randint(4, (count,), generator=generator)
        late = torch.rand(count, generator=generator) >= shares[0]
        cost = rest if count else 0.0
        for home in shard.unique().tolist():
            first = int(late[shard == home].min())
            cost += float(costs[home, first:].sum())
        total, squares = total + cost, squares + cost**2
        some += count > 0
    mean = total / runs
    error = math.sqrt((squares / runs - mean**2) / runs)
    assert abs(found.load[0] * wait - mean) < 5 * error
    assert abs(found.flushes[0] - some / runs) < 0.02
    # At once: a random request by itself.
    alone = float((costs[:, 0] * 0.5 + costs[:, 1]).mean()) + rest
    assert found.seconds_per_request[-1] == pytest.approx(alone)
    # The longest wait is the cheapest.
    assert list(found.load) == sorted(found.load)
    assert found.waits == (60, 30, 15, 0)


def test_a_policy_uses_what_parts_took():
    unlearner = make().fit(make_data())
    work = unlearner._state.work
    found = unlearner.policy(1e-9, 1.0)
    # Requests so rare that each is alone.
    rest = sum(work.seconds.values()) - work.seconds['shards']
    alone = sum(map(sum, work.times())) / SHARDS + rest
    assert found.seconds_per_request[0] == pytest.approx(alone, rel=1e-6)
    sliced = make(epochs=None, slices=[(0.5, 2), (1, 1)]).fit(make_data())
    assert sliced.policy(1.0, 1.0).requests[0] > 1


# Outputs on request #########################################################


@pytest.mark.parametrize('aggregator', ['mean', 'majority'])
def test_outputs_on_request_are_those_that_would_be_present(
    aggregator, monkeypatch
):
    data = make_data()
    eager = make(aggregator=aggregator).fit(data)
    lazy = make(aggregator=aggregator, outputs='on_request').fit(data)
    calls = []
    honest = building.evaluate_all

    def counted(*args, **kwargs):
        calls.append(1)
        return honest(*args, **kwargs)

    monkeypatch.setattr(building, 'evaluate_all', counted)
    for name in (3, 9, TESTED):
        lazy.remove(node(name))
    assert calls == []
    assert lazy.report().seconds['inference'] < 1e-3
    lazy.predict(nodes=[0])
    lazy.predict_proba()
    assert calls == [1]
    assert lazy.report().seconds['inference'] > 0
    for name in (3, 9, TESTED):
        eager.remove(node(name))
    assert torch.equal(lazy.predict_proba(), eager.predict_proba())
    assert same(learnt(eager), learnt(lazy))
    lazy.remove(node(20))
    assert lazy.verify().ok
    other = make(aggregator=aggregator, outputs='on_request')
    other.load_state_dict(lazy.state_dict())
    assert torch.equal(other.outputs, lazy.outputs)


def test_an_aggregator_that_learns_gets_its_outputs():
    data = make_data()
    one, two = make().fit(data), make(outputs='on_request').fit(data)
    one.remove(node(3))
    two.remove(node(3))
    assert same(learnt(one), learnt(two))
    assert two.verify().ok


def test_old_outputs_do_not_come_back_when_a_removal_was_faster():
    # Somebody asks, and while the models run somebody else removes.
    data = make_data()
    unlearner = make(aggregator='mean', outputs='on_request').fit(data)
    unlearner.remove(node(3))
    old = unlearner._state
    unlearner.remove(node(4))
    new = unlearner._state
    asked = unlearner._present(old)
    assert asked.size(1) == data.num_nodes - 1
    assert unlearner._state is new
    assert unlearner.verify().ok


# Products ###################################################################


@pytest.mark.parametrize(
    ('name', 'known'), [('GCN', True), ('GAT', False), ('pointwise', False)]
)
def test_auto_multiplies_where_all_layers_do(name, known):
    data = make_data()
    auto = make(EVERY[name], sparse_adj='auto').fit(data)
    plain = make(EVERY[name], sparse_adj=known).fit(data)
    assert auto.recipe.sparse_adj is known
    assert same(weights(auto), weights(plain))
    # It is saved, and the same for whoever loads.
    other = make(EVERY[name], sparse_adj='auto')
    other.load_state_dict(auto.state_dict())
    assert other.verify().ok
    other.remove(node(3))
    left = remove_from_data(data, node(3).parts[0])
    anew = make(EVERY[name], sparse_adj='auto').fit(left)
    assert same(learnt(anew), learnt(other))


# Plans ######################################################################


class Counter(TorchDispatchMode):
    """A clock that counts what operations read and write."""

    def __init__(self):
        super().__init__()
        self.count = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        # Each costs something to call, as 2,000 numbers do.
        self.count += 2000
        for value in (*args, out):
            if isinstance(value, torch.Tensor):
                if value.layout == torch.strided:
                    self.count += value.numel()
                else:
                    self.count += 16 * value.values().numel()
        return out

    def perf_counter(self):
        return self.count


@pytest.mark.parametrize('slices', [None, [(0.5, 12), (1, 6)]])
def test_a_plan_is_within_twice_the_work(monkeypatch, slices):
    data = make_data(nodes=700)
    counter = Counter()
    for module in (building, removing, training):
        monkeypatch.setattr(module, 'time', counter)
    unlearner = ShardedUnlearner(
        lambda: GCN(CHANNELS, 16, 2, 3, dropout=0.5),
        5,
        aggregator='mean',
        epochs=None if slices else 18,
        slices=slices,
        num_classes=3,
        seed=2,
    )
    generator = torch.Generator().manual_seed(3)
    worst = []
    with counter:
        unlearner.fit(data)
        for count in (1, 1, 2, 5, 1, 20, 1):
            names = unlearner.n_id[unlearner.data.train_mask]
            pick = torch.randperm(names.numel(), generator=generator)
            request = RemovalRequest(nodes=names[pick[:count]])
            plan = unlearner.plan(request)
            report = unlearner.remove(request)
            ratio = sum(plan.seconds.values()) / sum(report.seconds.values())
            worst.append(ratio)
            assert plan.stages == report.stages
    assert max(worst) < 2
    assert min(worst) > 0.5
    # And it tells small requests from large ones.
    with counter:
        names = unlearner.n_id[unlearner.data.train_mask]
        one = unlearner.plan(RemovalRequest(nodes=names[:1]))
        many = unlearner.plan(RemovalRequest(nodes=names[:100]))
    assert sum(many.seconds.values()) > 2 * sum(one.seconds.values())
