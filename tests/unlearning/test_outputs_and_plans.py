"""Outputs that are asked for, and plans of the work."""

import pytest
import torch
from sharded import (
    CHANNELS,
    EVERY,
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


def node(name):
    return RemovalRequest(nodes=[name])


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
