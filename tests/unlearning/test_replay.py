"""Replayed epochs are those of the loop, or there are none."""

import pytest
import torch
from sharded import (
    CHANNELS,
    CLASSES,
    SHARDS,
    learnt,
    make,
    make_data,
    make_shards,
)
from states import same
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GraphSAGE,
    PairNorm,
    SGConv,
)

from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning.shards import replay, training
from pyg_trust.unlearning.shards.replay import can_replay, repeat
from pyg_trust.unlearning.shards.training import Recipe, train

SHAPE = (CHANNELS, 8, 2, CLASSES)
MODELS = {
    'GCN': lambda: GCN(*SHAPE, dropout=0.5, jk='last'),
    'GCN, cached': lambda: GCN(*SHAPE, dropout=0.3, cached=True),
    'GCN with BatchNorm': lambda: GCN(*SHAPE, norm='batch_norm'),
    'GCN with PairNorm': lambda: GCN(*SHAPE, norm=PairNorm(), act='elu'),
    'SAGE': lambda: GraphSAGE(*SHAPE, dropout=0.5, jk='cat'),
    'SAGE by maxima': lambda: GraphSAGE(*SHAPE, aggr='max'),
    'GAT': lambda: GAT(*SHAPE, heads=2, dropout=0.2),
    'GATv2': lambda: GAT(*SHAPE, v2=True, dropout=0.2),
    'GIN with BatchNorm': lambda: GIN(*SHAPE, dropout=0.1),
    'SGConv': lambda: SGConv(CHANNELS, CLASSES, K=2),
}


@pytest.fixture
def programs(monkeypatch):
    """What became of every recording: whether it is replayed."""
    found, program = [], replay.Recording.program

    def counted(self):
        made = program(self)
        found.append(made is not None)
        return made

    monkeypatch.setattr(replay.Recording, 'program', counted)
    return found


@pytest.mark.parametrize('sparse_x', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_replayed_epochs_give_the_bits_of_the_loop(
    name, sparse_x, programs, monkeypatch
):
    # A BatchNorm over one node has no variance.
    shards = [shard for shard in make_shards() if shard.x.size(0) > 3]
    for optimizer in ('adam', 'sgd'):
        recipe = Recipe(epochs=9, sparse_x=sparse_x, optimizer=optimizer)
        with monkeypatch.context() as patch:
            patch.setattr(training, 'can_replay', lambda module: False)
            loop = train(MODELS[name], shards, recipe).states
            assert programs == []
        assert same(loop, train(MODELS[name], shards, recipe).states)
        assert programs == [True] * len(shards)
        programs.clear()


def test_removals_by_replayed_epochs_equal_a_fresh_start(programs):
    data, request = make_data(), RemovalRequest(nodes=[0, 7, 8])
    options = {'epochs': 9, 'aggregator': 'mean', 'sparse_x': True}
    unlearner = make(MODELS['GCN with BatchNorm'], **options).fit(data)
    unlearner.remove(request)
    left = remove_from_data(data, request.parts[0])
    programs.clear()
    fresh = make(MODELS['GCN with BatchNorm'], **options).fit(left)
    assert programs == [True] * SHARDS
    assert same(learnt(fresh), learnt(unlearner))
    assert unlearner.verify().ok


# Models that are not recorded ################################################


class Own(GCN):
    pass


class Warming:
    """An activation that remembers how often it was called."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * min(self.calls / 20, 1)


def with_hook(register):
    model = MODELS['GCN']()
    getattr(model.convs[0], register)(lambda *args: None)
    return model


def with_forward():
    model = MODELS['GCN']()
    model.lin.forward = lambda x: x
    return model


UNKNOWN = {
    'a class of its own': lambda: Own(*SHAPE),
    'a callable of its own': lambda: GCN(*SHAPE, act=Warming()),
    'a lambda': lambda: GCN(*SHAPE, act=lambda x: x.relu()),
    'a hook': lambda: with_hook('register_forward_hook'),
    'a hook before': lambda: with_hook('register_forward_pre_hook'),
    'a hook of messages': lambda: with_hook('register_propagate_forward_hook'),
    'a forward of its own': with_forward,
    'a parametrization': lambda: torch.nn.utils.parametrizations.weight_norm(
        torch.nn.Linear(3, 3)
    ),
}


@pytest.mark.parametrize('name', UNKNOWN)
def test_what_may_change_from_call_to_call_is_not_recorded(name):
    assert not can_replay(UNKNOWN[name]())


def test_a_hook_on_all_modules_ends_it():
    assert can_replay(MODELS['GCN']())
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda *args: None
    )
    try:
        assert not can_replay(MODELS['GCN']())
    finally:
        handle.remove()
    assert can_replay(MODELS['GCN']())


def test_a_schedule_inside_of_a_model_is_followed():
    # It ends long after the epochs that could be recorded.
    (shard,) = make_shards()[1:2]
    recipe = Recipe(epochs=30, optimizer='sgd', lr=0.5)
    warm = lambda: GCN(*SHAPE, act=Warming())  # noqa: E731
    made = training.build(warm, shard)
    trained = training.train_alone(made, shard, recipe)
    # No state that another model could be given says how far it was.
    with pytest.raises(
        training.UnrepeatableModelError, match='register all other state'
    ):
        train(warm, [shard], recipe)
    model = training.build(warm, shard)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.5, weight_decay=recipe.weight_decay
    )
    for _ in range(30):
        optimizer.zero_grad()
        out = model(*shard.inputs)
        torch.nn.functional.cross_entropy(out, shard.y).backward()
        optimizer.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(trained[key], value)


# Steps that a recording could get wrong ######################################


def constant_that_is_written_to(x, out):
    def step():
        doubled = x * 2
        out.add_(doubled.sum())
        x.view(-1)[:2].add_(1)

    return step


def view_that_is_written_to(x, out):
    def step():
        part = x.detach()[1:]
        out.add_((part + 1).sum())
        part.mul_(0.5)

    return step


def draws(x, out):
    return lambda: out.add_(torch.rand(3).sum() + x.bernoulli(0.5).sum())


def statistics(x, out):
    norm = torch.nn.BatchNorm1d(x.size(1), affine=False)

    def step():
        norm(x)
        out.add_(norm.running_mean.sum())

    return step


def zeros_that_are_filled(x, out):
    def step():
        total = torch.empty(x.size(1)).zero_()
        total += x.sum(0)
        out.add_(torch.zeros(3).add_(total.sum()).sum())

    return step


def value_in_python(x, out):
    return lambda: out.add_(1 if out.item() < 7 else 100)


def shape_of_what_is_learnt(x, out):
    return lambda: out.add_(float(x[x[:, 0] < out].size(0)) + 1)


def one_after_the_other(x, out):
    def step():
        saved = (x * out).sigmoid()
        out.sub_((saved * (1 - saved) * x).mean())

    return step


STEPS = [
    (constant_that_is_written_to, True),
    (view_that_is_written_to, True),
    (draws, True),
    (statistics, True),
    (zeros_that_are_filled, True),
    (one_after_the_other, True),
    (value_in_python, False),
    (shape_of_what_is_learnt, False),
]


@pytest.mark.parametrize(('make', 'replayed'), STEPS)
def test_a_step_does_what_it_did(make, replayed, programs):
    ends = []
    for recorded in (False, True):
        torch.manual_seed(3)
        x, out = torch.rand(6, 4), torch.zeros(())
        repeat(make(x, out), 20, recorded)
        ends.append((x, out))
    assert programs == [replayed]
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def test_what_would_keep_too_much_is_not_recorded(monkeypatch, programs):
    monkeypatch.setattr(replay, 'MOST', 1000)
    x, out = torch.rand(60, 40), torch.zeros(())
    repeat(one_after_the_other(x, out), 9, True)
    assert programs == [False]


def test_an_interrupt_in_a_recording_comes_through():
    calls = []

    def step():
        calls.append(torch.ones(2) + 1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repeat(step, 9, True)
    assert len(calls) == 2


def test_known_propagations_are_recorded():
    assert can_replay(APPNP(3, 0.1, dropout=0.5))
