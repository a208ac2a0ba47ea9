"""Models of shards: plain PyG, from public starts, by the user's training."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sharded import (
    CHANNELS,
    CLASSES,
    EVERY,
    Counting,
    Linear,
    Normed,
    learnt,
    make,
    make_data,
    weights,
)
from states import same
from torch.utils.data import DataLoader
from torch_geometric.nn import GCN, GraphSAGE
from torch_geometric.utils import dropout_edge

from pyg_trust import rng
from pyg_trust.nn import LBAggregator, MeanAggregator
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards import models
from pyg_trust.unlearning.shards.models import UnrepeatableModelError

FAST = {'aggregator': 'mean', 'num_classes': CLASSES, 'epochs': 4}


def job_of(unlearner, shard):
    builder, state = unlearner._builder, unlearner._state
    return builder._job(state, shard, builder.parts(state, [shard])[shard])


def dropped(x, p=0.5, training=True, inplace=False):
    """Dropout by uniform numbers, as shards have it."""
    kept = torch.rand_like(x) >= p
    return torch.where(kept, x / (1 - p), 0) if training and p else x


def by_hand(factory, job, epochs=4):
    """An ordinary full-batch training, as PyG's examples write it."""
    with models.seeded(rng.derive(job.seed, models._INITIAL)):
        model = factory()
        args = (job.data.x.to_dense(), job.data.edge_index)
        if any(map(torch.nn.parameter.is_lazy, model.parameters())):
            with torch.no_grad():
                model.eval()(*args)
            known = model.state_dict()
            model = factory()
            model.load_state_dict(known)
    models.set_cached(model.train(), False)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4, fused=True
    )
    with models.seeded(rng.derive(job.seed, models._TRAINING)):
        for _ in range(epochs):
            optimizer.zero_grad()
            F.cross_entropy(model(*args), job.y).backward()
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize('few', [False, True], ids=['dense', 'mostly zero'])
@pytest.mark.parametrize('name', EVERY)
def test_models_are_those_of_a_plain_loop(name, few, monkeypatch):
    data = make_data()
    if few:
        data.x = data.x * (data.x > 0.95)
    unlearner = make(EVERY[name], **FAST).fit(data)
    outputs = unlearner.outputs
    for shard in range(4):
        job = job_of(unlearner, shard)
        with models.single_thread(), monkeypatch.context() as patch:
            patch.setattr(F, 'dropout', dropped)
            model = by_hand(EVERY[name], job)
        # A new one, whose cache is not that of the shard.
        with models.seeded(0):
            fresh = EVERY[name]()
        fresh.load_state_dict(model.state_dict())
        with torch.no_grad():
            out = fresh.eval()(data.x, data.edge_index)
        most = 1e-4 * float(out.abs().max())
        torch.testing.assert_close(outputs[shard], out, atol=most, rtol=1e-3)


class Dropping(GCN):
    """Other edges at every step, which no layer may keep."""

    def forward(self, x, edge_index, edge_weight=None):
        edge_index, _ = dropout_edge(edge_index, 0.5, training=self.training)
        return super().forward(x, edge_index)


def test_shortcuts_are_taken_where_they_change_nothing():
    plain = make(EVERY['GCN'], **FAST).fit(make_data())
    assert plain._builder.ways == (True,) * 4
    dropping = lambda: Dropping(CHANNELS, 8, 2, CLASSES)  # noqa: E731
    unlearner = make(dropping, **FAST).fit(make_data())
    assert not unlearner._builder.ways.cached
    assert (
        not make(EVERY['half of the edges'], **FAST)
        .fit(make_data())
        ._builder.ways.matrix
    )
    unlearner.remove(nodes=[3])
    assert unlearner.verify().ok
    # An edge that is there twice counts twice, whatever a matrix would do.
    data = make_data()
    data.edge_index = data.edge_index.repeat(1, 2)
    unlearner = make(EVERY['SAGE by sums'], **FAST).fit(data)
    model = EVERY['SAGE by sums']().eval()
    model.load_state_dict(unlearner.shard_state(0))
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    torch.testing.assert_close(unlearner.outputs[0], out)


# What models start from ######################################################


class Start(Linear):
    """Starts from something of the data."""

    def __init__(self, data, where):
        super().__init__()
        if where == 'means of columns':
            self.register_buffer('mean', data.x.mean(0))
        elif where == 'one number':
            self.register_buffer('scale', data.x.std())
        elif where == 'an attribute':
            self.mean = data.x.mean(0)
        elif where == 'the graph':
            self.register_buffer('edges', data.edge_index)
        elif where == 'some rows':
            with torch.no_grad():
                self.lin.weight[:1] = data.x[3]
        elif where == 'constants':
            self.register_buffer('zeros', torch.zeros(3))
            self.scale = torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    'where',
    [
        'means of columns',
        'one number',
        'an attribute',
        'the graph',
        'some rows',
    ],
)
def test_a_start_from_the_data_is_refused_unless_it_is_public(where):
    data = make_data()
    factory = lambda: Start(data, where)  # noqa: E731
    with pytest.raises(ValueError, match='start_is_public=True'):
        make(factory, **FAST).fit(data)
    unlearner = make(factory, **FAST, start_is_public=True).fit(data)
    report = unlearner.remove(nodes=[3])
    assert unlearner.verify().ok
    made = report.guarantee()
    assert 'stated to be public' in made.promise
    assert any('start_is_public=True' in text for text in made.assumptions)


def test_a_start_from_constants_and_random_numbers_is_none_of_the_data():
    data = make_data()
    report = make(lambda: Start(data, 'constants'), **FAST).fit(data).report()
    assert not any('public' in text for text in report.assumptions)
    for name in ('GIN with BatchNorm', 'GCN2', 'lazy', 'GAT', 'PairNorm'):
        make(EVERY[name], **FAST).fit(data)
    trained = EVERY['GCN']()
    with pytest.raises(ValueError, match='start_is_public=True'):
        make(lambda: copy.deepcopy(trained), **FAST).fit(data)
    certified = make(
        lambda: copy.deepcopy(trained), **FAST, start_is_public=True
    ).fit(data)
    found = certified.certify().guarantee().assumptions
    assert any('start_is_public=True' in text for text in found)


def test_an_aggregator_that_was_fitted_is_refused():
    outputs, y = torch.randn(4, 30, CLASSES), torch.arange(30) % CLASSES
    outputs[0] = 5 * torch.eye(CLASSES)[y]
    fitted = LBAggregator().fit(outputs, y, torch.arange(30), seed=0)
    with pytest.raises(ValueError, match="'aggregator' has 'weight'"):
        make(aggregator=fitted)
    make(aggregator=fitted, start_is_public=True)
    make(aggregator=MeanAggregator())


# The user's own training #####################################################


def batches(model, data, generator):
    """Mini-batches, class weights, a schedule, and the best of epochs."""
    loader = DataLoader(
        data.train_mask.nonzero().view(-1),
        batch_size=4,
        shuffle=True,
        generator=generator,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weight, best = torch.tensor([1.0, 2.0, 1.0]), None
    for _ in range(2):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(data.x, data.edge_index)[batch]
            F.cross_entropy(out, data.y[batch], weight).backward()
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
        loss = float(F.cross_entropy(out, data.y))
        if best is None or loss < best[0]:
            best = loss, copy.deepcopy(model)
    return best[1]


def steps(model, data, generator):
    """The default, written out."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4, fused=True
    )
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index), data.y).backward()
        optimizer.step()


def own(**given):
    return make(
        lambda: GraphSAGE(CHANNELS, 8, 2, CLASSES),
        **{**FAST, 'epochs': None, **given},
    )


def test_the_users_training_forgets_to_the_bit(tmp_path):
    data = make_data()
    unlearner = own(train=batches, folder=tmp_path).fit(data)
    before = weights(unlearner)
    report = unlearner.remove(nodes=[3, 14])
    assert unlearner.verify().ok
    for shard, (one, two) in enumerate(
        zip(before, weights(unlearner), strict=True)
    ):
        assert same(one, two) != (shard in report.shards)
    keep = torch.ones(data.num_nodes, dtype=torch.bool)
    keep[[3, 14]] = False
    left = data.clone()
    left.n_id = torch.arange(data.num_nodes)
    fresh = own(train=batches).fit(left.subgraph(keep))
    assert same(learnt(fresh), learnt(unlearner))
    assert own(train=batches, folder=tmp_path).load().verify().ok
    assert 'batches' in str(report.origin['arguments'])
    with pytest.raises(ValueError, match='other arguments'):
        own(train=steps).load(tmp_path)
    # The default is one of them, but for the order of sums.
    torch.testing.assert_close(
        own(train=steps).fit(data).outputs,
        own(epochs=4).fit(data).outputs,
        atol=1e-4,
        rtol=1e-3,
    )


def careless(model, data, generator):
    with torch.no_grad():
        model.convs[0].lin_l.weight += torch.rand(1, generator=CHANCE)


CHANCE = torch.Generator()


@pytest.mark.parametrize(
    ('given', 'error', 'says'),
    [
        ({'train': careless}, UnrepeatableModelError, "'train' needs to draw"),
        ({'train': lambda *_: 3}, TypeError, "'train' needs to change"),
        ({'train': 3}, TypeError, "'train'"),
        ({'train': steps, 'lr': 0.1}, ValueError, "'lr' can't be used"),
        ({'train': steps, 'epochs': 3}, ValueError, "'epochs' can't be"),
        ({'train': steps, 'slices': [(1, 3)]}, ValueError, "'slices' can't"),
    ],
)
def test_trainings_that_can_not_be(given, error, says):
    with pytest.raises(error, match=says):
        own(**given).fit(make_data())


# Repeatability ###############################################################


class Drawing(Linear):
    """Draws from every default generator."""

    def forward(self, x, edge_index):
        if self.training:
            x = x + torch.randn_like(x)
            x = x * (1 + random.random() + float(np.random.rand()))
        return self.lin(x)


class Outside(Linear):
    """Draws from a generator of its own."""

    def forward(self, x, edge_index):
        if self.training:
            x = x + torch.rand(1, generator=CHANCE)
        return self.lin(x)


class Stashing(Linear):
    """Says what its buffers do not."""

    seen = 0.0

    def forward(self, x, edge_index):
        if self.training:
            self.seen = self.seen + float(x.sum())
        return self.lin(x) + self.seen


def test_models_that_are_functions_of_data_and_seed():
    for model in (Drawing, Normed, Counting):
        assert make(model, **FAST).fit(make_data()).verify().ok
    held = Linear()
    for model, says in (
        (Outside, 'two trainings'),
        (Stashing, 'register all other'),
        (lambda: held, 'a new model at every call'),
    ):
        given = {**FAST, 'start_is_public': True}
        unlearner = make(model, **given)
        with pytest.raises(UnrepeatableModelError, match=says):
            unlearner.fit(make_data())
        with pytest.raises(ValueError, match='fitted first'):
            unlearner.predict()
    with pytest.raises(TypeError, match=r'torch\.nn\.Module'):
        make(lambda: 3, **FAST).fit(make_data())


@pytest.mark.parametrize('bit', [0, 31, 32, 62])
def test_every_bit_of_a_seed_moves_every_generator(bit):
    drawn = []
    for seed in (5, 5 ^ (1 << bit)):
        with models.seeded(seed):
            drawn.append((torch.rand(1), np.random.rand(), random.random()))
    assert all(a != b for a, b in zip(*drawn, strict=True))


class Wide(torch.nn.Module):
    """Has as many inputs as its first graph has nodes."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.LazyLinear(CLASSES)

    def forward(self, x, edge_index):
        n = x.size(0)
        adj = torch.zeros(n, n, dtype=x.dtype)
        adj[edge_index[0], edge_index[1]] = 1
        return self.lin(adj)


def test_a_width_that_is_a_count_of_nodes_is_named():
    with pytest.raises(ValueError, match='as many inputs as there are nodes'):
        make(Wide, **FAST).fit(make_data())


@pytest.mark.parametrize(
    ('given', 'says'),
    [
        ({'model_factory': Linear()}, 'a new model at every call'),
        ({'trainer': 'stacked'}, "'trainer'"),
        ({'aggregator_nodes': 9}, "'aggregator_nodes'"),
    ],
)
def test_arguments(given, says):
    with pytest.raises((TypeError, ValueError), match=says):
        ShardedUnlearner(**{'model_factory': Linear, **given})


def test_retired_arguments_warn_and_give_the_same_bits():
    with pytest.warns(DeprecationWarning, match="'trainer'"):
        one = make(**FAST, trainer='process', num_workers=2)
    two = make(**FAST)
    assert same(*(learnt(each.fit(make_data())) for each in (one, two)))


def test_params_and_classes_are_those_of_scikit_learn():
    unlearner = make(**FAST)
    params = unlearner.get_params()
    again = ShardedUnlearner(**params)
    assert again.get_params() == params
    unlearner.fit(make_data())
    assert unlearner.classes_.tolist() == [0, 1, 2]
    assert isinstance(unlearner.score(), float)


def test_another_graph_and_another_factory_are_told_apart():
    data = make_data()
    unlearner = make(**FAST).fit(data)
    weighted = data.clone()
    weighted.edge_weight = torch.ones(data.num_edges)
    with pytest.raises(ValueError, match="'edge_weight' if"):
        unlearner.predict(weighted)
    other = make(**FAST).fit(weighted)
    with pytest.raises(ValueError, match="'edge_weight' if"):
        other.predict(data)
    with pytest.raises(TypeError, match=r'predict\(nodes='):
        unlearner.predict([1, 2])
    with pytest.raises(TypeError, match=r'remove\(nodes=\[3\]\)'):
        unlearner.remove('3')
    state = unlearner.state_dict()
    elu = lambda: GCN(CHANNELS, 16, 2, CLASSES, act='tanh')  # noqa: E731
    with pytest.raises(ValueError, match="'model_factory', whose models"):
        make(elu, **FAST).load_state_dict(state)
