import copy
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sharded import (
    CHANNELS,
    CLASSES,
    EVERY,
    MODELS,
    APPNPNet,
    Counting,
    Linear,
    Normed,
    make_shards,
)
from states import same
from torch_geometric.nn import (
    GCN,
)

from pyg_trust.unlearning.shards import training
from pyg_trust.unlearning.shards.products import (
    Block,
    PreparedGraph,
    blocks,
    rows_of_nonzeros,
)
from pyg_trust.unlearning.shards.training import (
    Recipe,
    Shard,
    UnrepeatableModelError,
    build,
    check_model,
    evaluate,
    restore,
    seeded,
    snapshot,
    train,
)

EMPTY = PreparedGraph(
    torch.empty(2, 0, dtype=torch.int64), None, 0, torch.float32
)


class Noisy(torch.nn.Module):
    """Draws from torch's default generator."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        if self.training:
            x = x + torch.randn_like(x)
        return self.lin(x)


def test_processes_give_every_shard_its_own_bits():
    # One model of each kind, by turns, and another to compare it with where
    # they are trained here; enough epochs to be replayed.
    kinds = [*MODELS.values()]
    turn = iter([kind for kind in kinds for _ in range(2)] + kinds)

    def factory():
        return next(turn)()

    shards, recipe = make_shards(), Recipe(epochs=7)
    alone = train(factory, shards, recipe, trainer='sequential')
    apart = train(factory, shards, recipe, trainer='process', num_workers=2)
    assert apart.trainer == 'process'
    assert same(alone.states, apart.states)


def messy(weighted):
    """Self-loops, edges twice, one direction alone, a node on its own."""
    generator = torch.Generator().manual_seed(4)
    edges = torch.randint(20, (2, 70), generator=generator)
    edges = torch.cat([edges, edges[:, :9], torch.tensor([[3], [3]])], 1)
    x = torch.rand(21, CHANNELS, generator=generator).double()
    weight = torch.rand(edges.size(1), generator=generator).double()
    return Shard(
        seed=8,
        x=x * (x > 0.6),
        y=torch.randint(CLASSES, (21,), generator=generator),
        edge_index=edges,
        edge_weight=weight if weighted else None,
    )


WEIGHTED = [
    'GCN',
    'APPNP',
    'JKNet',
    'lazy',
    'cached',
    'SGConv',
    'GraphConv',
    'GCN2',
    'PairNorm',
]


@pytest.mark.parametrize(
    ('name', 'weighted'),
    [(name, False) for name in EVERY] + [(name, True) for name in WEIGHTED],
)
def test_prepared_products_are_those_of_plain_pyg(name, weighted):
    shard = messy(weighted)

    def factory():
        model = EVERY[name]().double()
        for module in model.modules():
            # Its draws differ.
            if isinstance(getattr(module, 'dropout', None), float):
                module.dropout = 0.0
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if isinstance(model, APPNPNet):
            model.forward = lambda x, e, w=None: model.propagate(
                model.two(model.one(x).relu()), e, w
            )
        return model

    model = build(factory, shard)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=5e-4)
    for _ in range(4):
        optimizer.zero_grad()
        out = model(*shard.inputs)
        F.cross_entropy(out, shard.y).backward()
        optimizer.step()
    with torch.no_grad():
        expected = model.eval()(*shard.inputs)
    for sparse_x in (False, True):
        for sparse_adj in (False, True):
            recipe = Recipe(
                epochs=4,
                lr=0.1,
                optimizer='sgd',
                sparse_x=sparse_x,
                sparse_adj=sparse_adj,
            )
            (state,) = train(factory, [shard], recipe).states
            for key, value in model.state_dict().items():
                torch.testing.assert_close(state[key], value)
            fresh = build(factory, shard)
            restore(fresh, state)
            out = evaluate(fresh, shard, sparse_adj=sparse_adj)
            torch.testing.assert_close(out, expected)


def same_matrix(one, two):
    return all(
        torch.equal(a, b)
        for a, b in (
            (one.crow_indices(), two.crow_indices()),
            (one.col_indices(), two.col_indices()),
            (one.values(), two.values()),
        )
    )


@pytest.mark.parametrize('weighted', [False, True])
def test_blocks_have_the_bits_of_each_graph_alone(weighted):
    # Loops, edges twice, nodes without an edge at both ends, and graphs
    # without one: the first, the last and one in between.
    generator = torch.Generator().manual_seed(5)
    n, count = 30, 6
    edges = torch.randint(2, n - 1, (2, 150), generator=generator)
    edges = torch.cat([edges, edges[:, :9], edges[:1, :5].repeat(2, 1)], 1)
    weight = None
    if weighted:
        weight = torch.rand(edges.size(1), generator=generator)
    choice = torch.tensor([1, 2, 4])
    number = choice[torch.randint(3, edges.shape[1:], generator=generator)]
    made = blocks(edges, weight, number, count, n, torch.float32)
    assert len(made) == count
    for i, graph in enumerate(made):
        assert type(graph) is Block
        own = number == i
        part = None if weight is None else weight[own]
        alone = PreparedGraph(edges[:, own], part, n, torch.float32)
        assert torch.equal(graph.edge_index, alone.edge_index)
        assert (part is None) == (graph.edge_weight is None)
        if part is not None:
            assert torch.equal(graph.edge_weight, part)
            assert same_matrix(graph.adjacency(True), alone.adjacency(True))
        assert same_matrix(graph.adjacency(False), alone.adjacency(False))
        for improved, loops in ((False, True), (True, True), (False, False)):
            for flow in ('source_to_target', 'target_to_source'):
                asked = (improved, loops, flow)
                one, _ = graph.normalised(*asked, True)
                two, _ = alone.normalised(*asked, True)
                assert same_matrix(one, two)
                assert id(one) in graph.operands
                listed = graph.normalised(*asked, False)
                assert all(
                    map(torch.equal, listed, alone.normalised(*asked, False))
                )


def test_blocks_that_need_longer_indices_stand_alone():
    edges = torch.tensor([[0, 1], [1, 0]])
    number = torch.tensor([1, 0])
    made = blocks(edges, None, number, 2, 2**30, torch.float32)
    assert [type(graph) for graph in made] == [PreparedGraph] * 2
    assert made[0].edge_index.tolist() == [[1], [0]]
    assert made[1].edge_index.tolist() == [[0], [1]]


@pytest.mark.parametrize('shape', [(7, 5), (1, 9), (4, 0), (0, 3)])
def test_rows_of_nonzeros_are_the_matrix(shape):
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(-1, 2, shape, generator=generator).float()
    if x.numel():
        x.view(-1)[0] = -0.0
    for dense in (x, x.t().contiguous().t(), x.double()):
        made = rows_of_nonzeros(dense)
        assert made.shape == dense.shape
        assert made.crow_indices().dtype == torch.int32
        assert made.values().dtype == dense.dtype
        assert torch.equal(made.to_dense(), dense + 0)
        assert made.values().numel() == int((dense != 0).sum())
        row = torch.arange(shape[0]).repeat_interleave(
            made.crow_indices().diff().long()
        )
        key = row * (shape[1] + 1) + made.col_indices()
        assert bool((key.diff() > 0).all())


def test_what_was_prepared_ends_with_the_run():
    shard, other = make_shards()[1], make_shards()[3]
    for name in ('GCN', 'SAGE'):
        model = build(MODELS[name], shard).eval()
        with torch.no_grad():
            expected = model(*other.inputs)
        before = {k: dict(vars(m)) for k, m in model.named_modules()}
        evaluate(model, shard)
        after = {k: dict(vars(m)) for k, m in model.named_modules()}
        assert str(before) == str(after)
        with torch.no_grad():
            assert torch.equal(model(*other.inputs), expected)


# Models that are no function of their data and seed ##########################


class Drawing(Linear):
    def __init__(self):
        super().__init__()
        self.scale = float(np.random.rand()) + random.random()

    def forward(self, x, edge_index):
        noise = np.random.rand() + random.random() if self.training else 1
        return self.lin(x) * self.scale * noise


class Extra(Linear):
    def get_extra_state(self):
        return {'steps': 3}

    def set_extra_state(self, state):
        pass


class Hidden(Linear):
    """As Normed, without a buffer."""

    mean = 0.0
    forward = Normed.forward


class Unseeded(Linear):
    def __init__(self):
        super().__init__()
        scale = np.random.default_rng().normal()
        self.lin.weight.data *= scale


class UnseededForward(Linear):
    def forward(self, x, edge_index):
        return self.lin(x) * np.random.default_rng().normal()


def shared(made=Linear()):  # noqa: B008
    return made


@pytest.mark.parametrize('model', [Counting, Drawing, Normed])
def test_models_of_their_seed_give_the_same_bits(model):
    shards, recipe = make_shards(3), Recipe(epochs=3)
    one = train(model, shards, recipe).states
    np.random.seed(1)
    random.seed(1)
    state = np.random.get_state()[1].tolist(), random.getstate()
    assert same(one, train(model, shards, recipe).states)
    # Whose generators these are does not notice.
    assert np.random.get_state()[1].tolist() == state[0]
    assert random.getstate() == state[1]
    # Nor does it matter what was trained before.
    assert same(one[2:], train(model, shards[2:], recipe).states)


@pytest.mark.parametrize('bit', [0, 31, 32, 62])
def test_every_bit_of_a_seed_moves_every_generator(bit):
    # Shards whose seeds agree in 32 bits would share the draws of numpy.
    drawn = []
    for seed in (5, 5 ^ 1 << bit):
        with seeded(seed):
            drawn.append((np.random.rand(), random.random(), torch.rand(())))
    assert all(one != two for one, two in zip(*drawn, strict=True))


def test_a_buffer_outside_of_the_state_dict_is_kept():
    shards, recipe = make_shards(2), Recipe(epochs=3)
    module = build(Normed, shards[1])
    state = training.train_alone(module, shards[1], recipe)
    assert bool(state['mean'].any())
    fresh = build(Normed, shards[1])
    restore(fresh, state)
    assert torch.equal(fresh.mean, module.mean)
    assert same([snapshot(fresh)], [state])
    check_model(Normed, shards[1], recipe)


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (Unseeded, 'models that differ'),
        (UnseededForward, 'two trainings'),
        (Hidden, 'register'),
        (Extra, '_extra_state'),
        (shared, 'a new model'),
    ],
)
def test_models_that_are_no_function_of_data_and_seed(model, message):
    with pytest.raises(ValueError, match=message):
        check_model(model, make_shards()[1], Recipe())
    if model is not Extra:
        with pytest.raises(UnrepeatableModelError):
            check_model(model, make_shards()[1], Recipe())


def test_the_old_name_of_the_trainer():
    shards, recipe = make_shards(2), Recipe(epochs=2)
    with pytest.warns(DeprecationWarning, match='sequential'):
        old = train(Linear, shards, recipe, trainer='stacked')
    assert old.trainer == 'sequential'
    assert same(old.states, train(Linear, shards, recipe).states)


@pytest.mark.parametrize('optimizer', ['adam', 'adamw', 'sgd'])
@pytest.mark.parametrize('sparse_x', [False, True])
def test_alone_is_ordinary_training(optimizer, sparse_x):
    # A plain loop in plain PyG, without dropout, whose draws differ.
    def factory():
        return GCN(CHANNELS, 16, 2, CLASSES).double()

    shard = make_shards(4, torch.float64)[3]
    recipe = Recipe(epochs=20, lr=0.05, optimizer=optimizer, sparse_x=sparse_x)
    model = training.build(factory, shard)
    kind = {'adam': 'Adam', 'adamw': 'AdamW', 'sgd': 'SGD'}[optimizer]
    optim = getattr(torch.optim, kind)(
        model.parameters(), lr=0.05, weight_decay=5e-4
    )
    for _ in range(20):
        optim.zero_grad()
        out = model(shard.x, shard.edge_index)
        F.cross_entropy(out, shard.y).backward()
        optim.step()
    (state,) = train(factory, [shard], recipe).states
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value)
        assert state[name].is_contiguous()


def test_nothing_but_the_seed_moves_the_dropout():
    shards, recipe = make_shards(3), Recipe(epochs=2)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = train(MODELS['GCN'], shards, recipe).states
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same(one, train(MODELS['GCN'], shards, recipe).states)
    other = [shard._replace(seed=shard.seed + 1) for shard in shards]
    assert not same(one, train(MODELS['GCN'], other, recipe).states)


def test_noise_of_a_model_is_seeded_too():
    shards, recipe = make_shards(3), Recipe(epochs=2)
    one = train(Noisy, shards, recipe).states
    torch.rand(3)
    assert same(one, train(Noisy, shards, recipe).states)


def test_any_number_of_threads(threads):
    shards, recipe = make_shards(), Recipe(epochs=2)
    threads(1)
    one = train(MODELS['GCN'], shards, recipe).states
    threads(3)
    assert same(one, train(MODELS['GCN'], shards, recipe).states)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize('p', [0.0, 0.25, 0.5, 1.0])
def test_dropout_has_the_law_of_dropout(p):
    x = torch.full((400, 500), 2.0)
    mode = training.PreparedMode(x, EMPTY, 0)
    with mode:
        out = F.dropout(x, p)
        off = F.dropout(x, p, training=False)
        twice = F.dropout(x, p)
    assert torch.equal(off, x)
    kept = out != 0
    # Six standard deviations.
    slack = 6 * math.sqrt(p * (1 - p) / x.numel())
    assert abs(float(kept.double().mean()) - (1 - p)) <= slack
    if p < 1:
        torch.testing.assert_close(out[kept], x[kept] / (1 - p))
    if 0 < p < 1:
        assert not torch.equal(out, twice)
        # Rows and columns are kept alike, and independently.
        both = (kept[1:] & kept[:-1]).double().mean()
        assert abs(float(both) - (1 - p) ** 2) < 0.01


def test_models_and_shards_stay_as_they_were():
    shards = make_shards(3)
    before = copy.deepcopy(shards)
    train(MODELS['SAGE'], shards, Recipe(epochs=2))
    for one, two in zip(shards, before, strict=True):
        for a, b in zip(one[1:4], two[1:4], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ('argument', 'error'),
    [
        ({'epochs': 0}, ValueError),
        ({'epochs': 1.5}, TypeError),
        ({'epochs': True}, TypeError),
        ({'lr': 0.0}, ValueError),
        ({'lr': math.nan}, ValueError),
        ({'weight_decay': -1.0}, ValueError),
        ({'optimizer': 'lbfgs'}, ValueError),
    ],
)
def test_bad_recipes(argument, error):
    with pytest.raises(error, match=next(iter(argument))):
        Recipe(**argument)


def test_a_factory_that_makes_no_module():
    with pytest.raises(TypeError, match='model_factory'):
        train(lambda: 3, make_shards(1), Recipe())


def test_a_model_that_is_not_of_nodes():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(CHANNELS, CLASSES)

        def forward(self, x, edge_index):
            return self.lin(x).sum()

    with pytest.raises(ValueError, match='num_nodes, num_classes'):
        train(Sum, make_shards(1), Recipe())


def test_models_that_can_not_be_sent():
    class Local(torch.nn.Linear):
        pass

    with pytest.raises(ValueError, match='pickled'):
        train(
            lambda: Local(CHANNELS, CLASSES),
            make_shards(2),
            Recipe(),
            trainer='process',
        )
