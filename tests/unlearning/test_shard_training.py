import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GraphSAGE

from pyg_trust import rng
from pyg_trust.unlearning.shards import training
from pyg_trust.unlearning.shards.training import Features, Recipe, Shard, train

CHANNELS, CLASSES = 13, 3


class APPNPNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(CHANNELS, 16)
        self.two = torch.nn.Linear(16, CLASSES)
        self.propagate = APPNP(4, 0.1, dropout=0.2)

    def forward(self, x, edge_index, edge_weight=None):
        x = F.dropout(x, 0.5, training=self.training)
        x = F.dropout(self.one(x).relu(), 0.5, training=self.training)
        return self.propagate(self.two(x), edge_index, edge_weight)


class Batched(torch.nn.Module):
    """Has buffers, which a stack can't share."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)
        self.norm = torch.nn.BatchNorm1d(CLASSES)

    def forward(self, x, edge_index):
        return self.norm(self.lin(x))


class Centred(torch.nn.Module):
    """Looks at all nodes at once."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.lin(x - x.mean(0))


class Ranked(torch.nn.Module):
    """Mixes nodes by operations that are shared one by one."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.lin(x) * x[:1, :1]


class Noisy(torch.nn.Module):
    """Draws from torch's default generator."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        if self.training:
            x = x + torch.randn_like(x)
        return self.lin(x)


class Pointwise(torch.nn.Module):
    """All that is known to depend on where a value lies."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(CHANNELS, 7)
        self.two = torch.nn.Linear(7, CLASSES)
        self.scale = torch.nn.Parameter(torch.ones(7))

    def forward(self, x, edge_index):
        x = F.elu(self.one(x)) * self.scale
        x = torch.sigmoid(x) + torch.tanh(x) + F.gelu(x) + F.silu(x)
        return self.two(F.softplus(x).exp().clamp(max=9.0))


class Tied(torch.nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(CHANNELS, CHANNELS)
        self.same = self.one
        self.two = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.two(self.same(self.one(x).relu()))


MODELS = {
    'GCN': lambda: GCN(CHANNELS, 16, 2, CLASSES, dropout=0.5),
    'SAGE': lambda: GraphSAGE(CHANNELS, 16, 2, CLASSES, dropout=0.5),
    'GAT': lambda: GAT(CHANNELS, 16, 2, CLASSES, dropout=0.3, heads=2),
    'APPNP': APPNPNet,
    'JKNet': lambda: GCN(CHANNELS, 16, 3, CLASSES, dropout=0.5, jk='max'),
}
STACKED = {
    **MODELS,
    'JK by concatenation': lambda: GCN(
        CHANNELS, 6, 3, CLASSES, act='elu', jk='cat'
    ),
    'GATv2': lambda: GAT(CHANNELS, 8, 2, CLASSES, v2=True, dropout=0.3),
    'lazy': lambda: GCN(-1, 8, 2, CLASSES, dropout=0.5),
    'pointwise': Pointwise,
    'tied': Tied,
    'cached': lambda: GCN(CHANNELS, 8, 2, CLASSES, cached=True),
    'lazy and cached': lambda: GCN(-1, 8, 2, CLASSES, cached=True),
}


class Branching(torch.nn.Module):
    """Does what the values of all nodes tell it."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        out = self.lin(x)
        return out if bool((out < 5).all()) else 2 * out


class Odd(torch.nn.Module):
    """Fits the shape of one shard only."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)
        self.rows = None

    def forward(self, x, edge_index):
        if self.rows is None:
            self.rows = torch.ones_like(x)
        return self.lin(x * self.rows)


ALONE = {
    'buffers': (Batched, 'buffers'),
    'all nodes': (Centred, 'over all nodes'),
    'first node': (Ranked, 'gradient'),
    'branch': (Branching, 'not known'),
    'noise': (Noisy, 'randn_like'),
    'LSTM': (lambda: GCN(CHANNELS, 8, 2, CLASSES, jk='lstm'), 'not known'),
}


def make_shards(count=5, dtype=torch.float32, weighted=False):
    """Of very different sizes, none a multiple of a vector's."""
    generator = torch.Generator().manual_seed(1)
    shards = []
    for i in range(count):
        n = (1, 37, 11, 50, 23, 5, 8, 61, 2, 30)[i]
        edges = torch.randint(n, (2, 3 * n), generator=generator)
        edges = edges[:, edges[0] < edges[1]]
        x = torch.rand(n, CHANNELS, generator=generator, dtype=dtype)
        weight = None
        if weighted:
            weight = torch.rand(2 * edges.size(1), generator=generator)
        shards.append(
            Shard(
                seed=rng.derive(3, i),
                x=x * (x > 0.6),
                y=torch.randint(CLASSES, (n,), generator=generator),
                edge_index=torch.cat([edges, edges.flip(0)], 1),
                edge_weight=weight,
            )
        )
    return shards


def same(one, two):
    return len(one) == len(two) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize('sparse_x', [False, True])
@pytest.mark.parametrize('name', STACKED)
def test_a_stack_gives_every_shard_its_own_bits(name, sparse_x):
    shards = make_shards()
    recipe = Recipe(epochs=4, sparse_x=sparse_x)
    alone = train(STACKED[name], shards, recipe, trainer='sequential')
    stack = train(STACKED[name], shards, recipe, trainer='stacked')
    assert (stack.trainer, stack.note) == ('stacked', '')
    assert same(alone.states, stack.states)
    # It has learnt something, and not the same everywhere.
    assert not same(stack.states[1:2], stack.states[2:3])


def test_processes_give_every_shard_its_own_bits():
    # One model of each kind, by turns.
    def factory(turn=iter([*MODELS.values()] * 2)):  # noqa: B008
        return next(turn)()

    shards, recipe = make_shards(), Recipe(epochs=3)
    alone = train(factory, shards, recipe, trainer='sequential')
    apart = train(factory, shards, recipe, trainer='process', num_workers=2)
    assert apart.trainer == 'process'
    assert same(alone.states, apart.states)


@pytest.mark.parametrize('name', ALONE)
def test_what_can_not_be_stacked_is_trained_alone(name):
    factory, reason = ALONE[name]
    shards, recipe = make_shards()[1:4], Recipe(epochs=3)
    alone = train(factory, shards, recipe, trainer='sequential')
    stack = train(factory, shards, recipe, trainer='stacked')
    assert stack.trainer == 'sequential'
    assert reason in stack.note
    assert same(alone.states, stack.states)


def test_a_stack_that_fails_is_trained_alone():
    def factory():
        # Remembers the size of the graph that it saw first.
        made = Odd()
        made.rows = torch.ones(37, CHANNELS)
        return made

    shards, recipe = [make_shards()[1]] * 2, Recipe(epochs=2)
    stack = train(factory, shards, recipe)
    assert stack.trainer == 'sequential'
    assert 'RuntimeError' in stack.note
    alone = train(factory, shards, recipe, trainer='sequential')
    assert same(alone.states, stack.states)


def test_neighbours_in_a_stack_do_not_matter():
    shards, recipe = make_shards(10), Recipe(epochs=3)
    whole = train(MODELS['GAT'], shards, recipe).states
    few = train(MODELS['GAT'], [shards[7], shards[1]], recipe).states
    assert same(few, [whole[7], whole[1]])


def test_edge_weights_and_double_precision():
    shards, recipe = make_shards(weighted=True), Recipe(epochs=3)
    alone = train(MODELS['GCN'], shards, recipe, trainer='sequential')
    stack = train(MODELS['GCN'], shards, recipe)
    assert stack.trainer == 'stacked'
    assert same(alone.states, stack.states)

    def double():
        return MODELS['GCN']().double()

    shards = make_shards(dtype=torch.float64)
    alone = train(double, shards, recipe, trainer='sequential')
    stack = train(double, shards, recipe)
    assert stack.trainer == 'stacked'
    assert same(alone.states, stack.states)


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
    mode = training._Alone(x, None)
    mode.start([0])
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


def test_gradients_flow_through_what_is_padded():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def padded(x):
        with training._Alone(x, None):
            return torch.sigmoid(x) * F.elu(x, 0.5) + torch.exp(x)

    def plain(x):
        return torch.sigmoid(x) * F.elu(x, 0.5) + torch.exp(x)

    torch.testing.assert_close(padded(x), plain(x))
    assert torch.autograd.gradcheck(padded, (x,))


def test_sparse_features_are_the_features():
    shards = make_shards()
    x = torch.cat([shard.x for shard in shards])
    sizes = [shard.x.size(0) for shard in shards]
    features = Features.from_dense(x, sizes)
    dense = torch.block_diag(*[shard.x for shard in shards])
    assert torch.equal(features.matrix.to_dense(), dense)
    assert torch.equal(features.transposed.to_dense(), dense.t())


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


def test_gin_says_why_it_is_not_stacked():
    def factory():
        return GIN(CHANNELS, 8, 2, CLASSES, norm=None)

    shards, recipe = make_shards(3), Recipe(epochs=2)
    stack = train(factory, shards, recipe)
    alone = train(factory, shards, recipe, trainer='sequential')
    assert same(alone.states, stack.states)
    assert (stack.trainer == 'stacked') == (stack.note == '')
