"""Slices: the bits of a fresh start, from checkpoints that saw nothing."""

import pytest
import torch
from graphs import edges_inside
from sharded import (
    CHANNELS,
    CLASSES,
    EVERY,
    SHARDS,
    learnt,
    make,
    make_data,
)
from states import same
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust import rng
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards import building, models
from pyg_trust.unlearning.shards.graph import slice_numbers
from pyg_trust.unlearning.shards.models import (
    Recipe,
    Shard,
    check_slices,
)

SLICES = [(0.4, 3), (0.7, 1), (1, 2)]
SEED = 5


def sliced(factory=EVERY['GCN'], **kwargs):
    given = {'slices': SLICES, 'epochs': None, 'num_classes': CLASSES}
    return make(factory, **{**given, **kwargs})


def numbers(names):
    key = rng.derive(SEED, building.SLICE)
    return slice_numbers(torch.as_tensor(names), check_slices(SLICES), key)


def stages(unlearner):
    state = unlearner.state_dict()
    return [made['stages'] for _, made in sorted(state['checkpoints'].items())]


def fresh(data, gone, factory=EVERY['GCN'], **kwargs):
    left = remove_from_data(data, RemovalRequest(nodes=gone).parts[0])
    return sliced(factory, **kwargs).fit(left)


def later(unlearner, stage):
    """A training node whose slice is a given one."""
    names = unlearner.data.n_id[unlearner.data.shard >= 0]
    return int(names[numbers(names) == stage][0])


# Exactness ##################################################################


def test_buffers_go_through_the_stages():
    # A BatchNorm over one node of a small slice has no variance.
    data, few = make_data(nodes=210), [(0.5, 2), (1, 2)]
    factory = EVERY['GIN with BatchNorm']
    unlearner = sliced(factory, slices=few).fit(data)
    unlearner.remove(nodes=[3, 9])
    anew = fresh(data, [3, 9], factory, slices=few)
    assert same(learnt(anew), learnt(unlearner))


def test_stages_are_what_a_loop_by_hand_makes():
    data = make_data()
    unlearner = sliced().fit(data)
    shard = 1
    names = unlearner.data.n_id[unlearner.data.shard == shard]
    seed = rng.derive(SEED, building._SHARD, shard)
    number = numbers(names)
    values = None
    for r, (_, epochs) in enumerate(SLICES):
        inside = names[number <= r]
        graph = Data(
            x=data.x[inside], edge_index=edges_inside(data, inside.tolist())
        )
        stage = rng.derive(seed, building._STAGE, r)
        part = Shard(stage, graph, data.y[inside])
        module = models.build(EVERY['GCN'], part._replace(seed=seed))
        if values is not None:
            models.restore(module, values)
        models.fit(
            module, part, Recipe(epochs=epochs), unlearner._builder.ways
        )
        values = models.snapshot(module)
        mine = [*stages(unlearner)[shard], unlearner.shard_state(shard)][r]
        assert same([values], [mine])


# What a removal starts from #################################################


def test_earlier_stages_stay_and_later_ones_are_trained_anew(monkeypatch):
    honest, epochs = models.fit, []

    def counted(module, shard, recipe, ways):
        epochs.append(recipe.epochs)
        return honest(module, shard, recipe, ways)

    monkeypatch.setattr(models, 'fit', counted)
    for stage in range(3):
        unlearner = sliced(aggregator='mean').fit(make_data())
        node = later(unlearner, stage)
        home = int(unlearner.data.shard[node])
        before = stages(unlearner)
        plan = unlearner.plan(RemovalRequest(nodes=[node]))
        epochs.clear()
        report = unlearner.remove(nodes=[node])
        assert epochs == [count for _, count in SLICES][stage:]
        assert plan.stages == report.stages == {home: stage}
        assert plan.node_epochs == report.node_epochs
        for shard in range(SHARDS):
            for r in range(2):
                kept = same([before[shard][r]], [stages(unlearner)[shard][r]])
                assert kept == (shard != home or r < stage)
    # That of the last one is all of the shard, two epochs; and all of all.
    assert report.node_epochs == 2 * report.nodes
    trained = unlearner.data.n_id[unlearner.data.shard >= 0]
    number = numbers(trained)
    every = unlearner.plan(RemovalRequest(nodes=[later(unlearner, 1)]))
    assert every.full_node_epochs + SLICES[2][1] + SLICES[1][1] == sum(
        int((number <= r).sum()) * count for r, (_, count) in enumerate(SLICES)
    )


def test_a_slice_is_a_function_of_the_name():
    names = torch.randperm(1000)
    whole = numbers(names)
    for _ in range(5):
        keep = torch.randperm(1000)[:300]
        assert torch.equal(numbers(names[keep]), whole[keep])
    # And of the shares: they hold so many of them, as a binomial has it.
    share = (whole == 0).double().mean()
    assert abs(float(share) - 0.4) < 5 * (0.4 * 0.6 / 1000) ** 0.5
    assert set(whole.tolist()) == {0, 1, 2}


def test_a_stage_without_nodes_hands_on_what_it_got():
    data = make_data()
    unlearner = sliced(slices=[(1e-9, 3), (1, 2)]).fit(data)
    for shard, (stage,) in enumerate(stages(unlearner)):
        builder, state = unlearner._builder, unlearner._state
        seen = builder.parts(state, [shard])[shard]
        part = builder._job(state, shard, seen)
        assert same(
            [models.snapshot(models.build(EVERY['GCN'], part))], [stage]
        )
    node = int(unlearner.data.n_id[unlearner.data.shard == 1][0])
    assert unlearner.remove(nodes=[node]).stages == {1: 1}
    assert unlearner.verify().ok


# Faults #####################################################################


def test_weights_of_a_stage_that_are_others_are_found():
    unlearner = sliced().fit(make_data())
    state = unlearner._state
    stage = state.checkpoints[2].stages[1]
    name = next(iter(stage))
    bad = {**stage, name: stage[name] + 1e-6}
    made = list(state.checkpoints)
    made[2] = made[2]._replace(stages=(made[2].stages[0], bad))
    unlearner._state = state._replace(checkpoints=tuple(made))
    report = unlearner.verify()
    assert not report.ok
    assert report.differing == (2,)


# States and trainers ########################################################


def test_epochs_are_those_of_all_slices():
    with pytest.raises(ValueError, match="'epochs' needs to be the sum"):
        sliced(epochs=7)
    assert sliced(epochs=6).recipe.epochs == 6


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
                elif value.layout == torch.sparse_csr:
                    self.count += 16 * value.values().numel()
        return out

    def perf_counter(self):
        return self.count


@pytest.mark.parametrize('slices', [None, [(0.5, 12), (1, 6)]])
def test_a_plan_is_within_twice_the_work(monkeypatch, slices):
    data = make_data(nodes=700)
    counter = Counter()
    monkeypatch.setattr(building, 'time', counter)
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
