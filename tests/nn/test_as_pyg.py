"""Our layers beside PyG's own, whatever is passed to both of them."""

import contextlib
import functools
import io
import itertools
import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric import EdgeIndex
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

import pyg_trust.nn as ours

N = 12
SEEDED = torch.Generator().manual_seed(0)
X = torch.rand(N, 3, generator=SEEDED)
Y = torch.randint(3, (N,), generator=SEEDED)
ONE_WAY = torch.randint(N - 1, (2, 30), generator=SEEDED)
ONE_WAY = ONE_WAY[:, ONE_WAY[0] != ONE_WAY[1]].unique(dim=1)
BOTH = torch.cat([ONE_WAY, ONE_WAY.flip(0)], 1).unique(dim=1)
BOTH = BOTH[:, torch.randperm(BOTH.size(1), generator=SEEDED)]
LOOPS = torch.cat([BOTH, torch.tensor([[0, 5], [0, 5]])], 1)
TWICE = torch.cat([BOTH, BOTH[:, :3]], 1)
WEIGHT = torch.rand(BOTH.size(1), generator=SEEDED)
ONE_WEIGHT = torch.rand(ONE_WAY.size(1), generator=SEEDED)
NOTHING = torch.empty(2, 0, dtype=torch.int64)

# The last node is isolated in all of them.
GRAPHS = {
    'undirected': (BOTH,),
    'directed': (ONE_WAY,),
    'loops': (LOOPS,),
    'parallel edges': (TWICE,),
    'weighted': (BOTH, WEIGHT),
    'weighted and directed': (ONE_WAY, ONE_WEIGHT),
    'no edges': (NOTHING,),
    'int32': (BOTH.int(),),
    'EdgeIndex': (EdgeIndex(BOTH, sparse_size=(N, N)),),
    'adj_t': (to_torch_csr_tensor(ONE_WAY.flip(0), size=(N, N)),),
    'adj_t, coo': (to_torch_coo_tensor(ONE_WAY.flip(0), size=(N, N)),),
    'adj_t, weighted': (
        to_torch_csr_tensor(ONE_WAY.flip(0), ONE_WEIGHT, size=(N, N)),
    ),
}
SIGNALS = {
    'rows': X,
    'float64': X.double(),
    'bfloat16': X.bfloat16(),
    'static': torch.rand(4, N, 3, generator=SEEDED),
    'not finite': X.clone().index_put_(
        (torch.tensor([3, 7]), torch.tensor([1, 2])),
        torch.tensor([torch.nan, torch.inf]),
    ),
}


# PyG reads the names of the functions.
def message(self, x_j, edge_weight):
    return 2 * edge_weight.view(-1, 1) * x_j


def aggregate(self, inputs, index, ptr=None, dim_size=None):
    return torch.zeros(N, 3).index_add(0, index, 3 * inputs)


def update(self, inputs):
    return 0.5 * inputs


def forward(self, x, edge_index):
    return 2 * x


METHODS = [{f.__name__: f} for f in (message, aggregate, update)]


def changes():
    for aggr in ('mean', 'max', 'sum'):
        yield {'aggr': aggr}, None
    yield {'flow': 'target_to_source'}, None
    yield {'aggr': pyg.SoftmaxAggregation()}, None
    for methods in METHODS:
        yield {}, methods


def twins(name, more=None, methods=None):
    """Make PyG's layer and ours, of subclasses where methods are given."""
    arguments = {'SGConv': (3, 2, 2), 'APPNP': (4, 0.2)}[name]
    pair = []
    for kit in (pyg, ours):
        cls = getattr(kit, name)
        if methods:
            cls = type(f'Own{name}{kit.__name__[:4]}', (cls,), methods)
        pair.append(cls(*arguments, **(more or {})).eval())
    pair[1].load_state_dict(pair[0].state_dict())
    return pair


def same(theirs, mine, what=''):
    assert theirs.dtype == mine.dtype, what
    tol = (
        {'rtol': 0.05, 'atol': 0.02}
        if theirs.dtype in (torch.bfloat16, torch.half)
        else {}
    )
    torch.testing.assert_close(
        mine, theirs, equal_nan=True, **tol, msg=lambda m: f'{what}: {m}'
    )


@pytest.mark.parametrize('name', ['SGConv', 'APPNP'])
def test_every_graph_and_signal(name):
    for kind, x in SIGNALS.items():
        a, b = twins(name)
        if x.dtype != torch.float32:
            a, b = a.to(x.dtype), b.to(x.dtype)
        for graph, given in GRAPHS.items():
            more = [
                v.to(x.dtype) if v.is_floating_point() else v for v in given
            ]
            if kind == 'static' and 'adj' in graph:
                continue  # PyG takes an edge_index there
            if kind == 'bfloat16' and 'adj' in graph:
                continue  # nor has torch such products
            theirs = a(x, *more)
            same(theirs, b(x, *more), f'{name} of {graph}, {kind}')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        a, b = twins(name)
        linear = torch.nn.Linear(3, 3)
        same(a(linear(X), BOTH), b(linear(X), BOTH), 'autocast')
    same(a(X[:0], NOTHING), b(X[:0], NOTHING), 'empty')


@pytest.mark.parametrize('name', ['SGConv', 'APPNP'])
def test_what_users_change_is_heard(name):
    for more, methods in changes():
        a, b = twins(name, more, methods)
        for graph in (BOTH, ONE_WAY, GRAPHS['adj_t'][0]):
            if graph.layout == torch.strided or 'flow' not in more:
                same(a(X, graph), b(X, graph), f'{more} {methods}')
    a, b = twins(name)
    for layer in (a, b):
        layer.message = message.__get__(layer)
    same(a(X, ONE_WAY), b(X, ONE_WAY), 'a method of the object')


@pytest.mark.parametrize('name', ['SGConv', 'APPNP'])
def test_every_hook_is_called_as_often(name):
    hooks = ['propagate', 'message', 'aggregate', 'message_and_aggregate']
    for hook in hooks:
        for graph in (BOTH, GRAPHS['adj_t'][0]):
            count = []
            for layer in twins(name):
                seen = []
                register = f'register_{hook}_forward_hook'
                handle = getattr(layer, register)(
                    lambda *arguments, seen=seen: seen.append(1)
                )
                layer(X, graph)
                handle.remove()
                layer(X, graph)
                count.append(len(seen))
            assert count[0] == count[1], (hook, count)
            assert count[0] or 'message' in hook or hook == 'aggregate'


@pytest.mark.parametrize('name', ['SGConv', 'APPNP'])
def test_caches_decide_as_in_pyg(name):
    calls = [
        [(BOTH, WEIGHT), (BOTH,)],
        [(BOTH,), (BOTH, WEIGHT)],
        [(BOTH,), (ONE_WAY,)],
        [(ONE_WAY,), (BOTH,)],
        [(BOTH,), (BOTH,)],
    ]
    for first, second in calls:
        for loops in (True, False):
            a, b = twins(name, {'cached': True, 'add_self_loops': loops})
            same(a(X, *first), b(X, *first), 'first')
            a.add_self_loops = b.add_self_loops = not loops
            same(a(2 * X, *second), b(2 * X, *second), 'second')
            a.reset_parameters(), b.reset_parameters()
            b.load_state_dict(a.state_dict())
            same(a(X, *second), b(X, *second), 'reset')


@pytest.mark.parametrize('name', ['SGConv', 'APPNP'])
def test_exported_traced_and_scripted(name):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for graph in (BOTH, ONE_WAY):
            _, layer = twins(name)
            want = layer(X, graph)
            program = torch.export.export(layer, (X, graph)).module()
            traced = torch.jit.trace(layer, (X, graph))
            model = torch.nn.Sequential(torch.nn.Identity(), twins(name)[1])
            scripted = torch.jit.script(model[1])
            for made in (program, traced):
                same(want, made(X, graph))
                same(layer(2 * X, graph), made(2 * X, graph))
            model[1].load_state_dict(layer.state_dict())
            same(want, scripted(X, graph))
            torch.jit.save(scripted, io.BytesIO())
    for method in (message, forward):
        _, changed = twins(name, None, {method.__name__: method})
        with pytest.raises(TypeError, match=r'torch\.export\.export'):
            torch.jit.script(changed)
    with pytest.raises(TypeError, match=r'torch\.export\.export'):
        torch.jit.script(ours.PPNP(torch.nn.Linear(3, 2)))


def derivatives(run, x):
    """Every way of torch to the Jacobian, and to a second derivative."""
    old, new = torch.autograd.functional, torch.func

    def cubes(x):
        return run(x).pow(3).sum()

    yield old.jacobian(run, x)
    yield old.jacobian(run, x, vectorize=True)
    yield old.jacobian(run, x, vectorize=True, strategy='forward-mode')
    yield new.jacrev(run)(x)
    yield new.jacfwd(run)(x)
    yield old.hessian(cubes, x)
    yield old.hessian(cubes, x, vectorize=True)
    yield new.hessian(cubes)(x)
    yield new.vmap(run)(torch.stack([x, -x]))


@pytest.mark.parametrize('name', ['SGConv', 'APPNP', 'PPNP'])
def test_derivatives_of_every_kind(name):
    x = X.double()
    if name == 'PPNP':
        model = ours.PPNP(torch.nn.Identity(), 0.2)
        matrix = pagerank(BOTH)
        pair = (lambda x: matrix @ x, lambda x: model(x, BOTH))
    else:
        layers = [layer.double() for layer in twins(name)]
        pair = [functools.partial(m, edge_index=BOTH) for m in layers]
    for one, two in zip(*(derivatives(f, x) for f in pair), strict=True):
        torch.testing.assert_close(two, one)


def test_edge_weights_have_gradients():
    layers = {
        'APPNP': (twins('APPNP')),
        'PPNP': (
            lambda x, ends, weight: pagerank(ends, weight) @ x.double(),
            ours.PPNP(torch.nn.Identity(), 0.2),
        ),
    }
    for weight in (WEIGHT, torch.ones_like(WEIGHT)):
        for theirs, mine in layers.values():
            want = weight.clone().requires_grad_()
            theirs(X, BOTH, want).pow(2).sum().backward()
            for made in (to_torch_csr_tensor, to_torch_coo_tensor, None):
                found = weight.clone().requires_grad_()
                given = (BOTH, found)
                if made is not None:
                    back = BOTH.flip(0)  # adj_t of a weighted graph
                    given = (made(back, found, size=(N, N)),)
                mine(X, *given).pow(2).sum().backward()
                torch.testing.assert_close(
                    found.grad, want.grad, rtol=1e-3, atol=1e-4
                )


# Label propagation ###########################################################


def test_labels_of_every_graph():
    graphs = {**GRAPHS, 'weighted': (BOTH, None, WEIGHT)}
    graphs['weighted and directed'] = (ONE_WAY, None, ONE_WEIGHT)
    mask = torch.arange(N) % 2 == 0
    for labels in (Y, Y.view(-1, 1), X, X - 0.5, X.bfloat16()):
        for (graph, given), alpha in itertools.product(
            graphs.items(), (0.0, 0.7, 1.0)
        ):
            if labels.dtype == torch.bfloat16 and 'adj' in graph:
                continue
            ends, _, weight = (*given, None, None)[:3]
            made = [kit.LabelPropagation(3, alpha) for kit in (pyg, ours)]
            for some, more in (
                (None, {}),
                (mask, {}),
                (mask.nonzero().view(-1), {'post_step': torch.tanh}),
            ):
                one, two = (
                    m(labels, ends, some, weight, **more) for m in made
                )
                same(one, two, graph)
    half = WEIGHT.bfloat16()
    made = [kit.LabelPropagation(3, 0.7) for kit in (pyg, ours)]
    same(*(each(Y, BOTH, None, half) for each in made))


@pytest.mark.parametrize('autoscale', [True, False])
def test_correct_and_smooth_in_every_precision(autoscale):
    mask, compared = torch.arange(N) % 2 == 0, 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.half):
        soft = torch.rand(N, 3, generator=SEEDED).softmax(1).to(dtype)
        rows = torch.eye(3)[Y[mask]].to(dtype)
        for graph, labels, autocast in itertools.product(
            ((BOTH,), (ONE_WAY,), (BOTH, WEIGHT.to(dtype))),
            (Y[mask], rows),
            (False, True),
        ):
            made = []
            with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
                for kit in (pyg, ours):
                    model = kit.CorrectAndSmooth(
                        3, 0.8, 3, 0.8, autoscale, 0.7
                    )
                    with contextlib.suppress(RuntimeError, TypeError):
                        made.append(model(soft, labels, mask, *graph))
            if made:  # Some precisions do not meet in PyG.
                same(*made, f'{dtype}, {autocast}')
                compared += 1
    assert compared >= 30


def test_labels_by_changed_messages():
    for methods in METHODS[::2]:
        made = [
            type(f'Own{kit.__name__[:4]}', (kit.LabelPropagation,), methods)(
                3, 0.7
            )
            for kit in (pyg, ours)
        ]
        same(*(m(Y, BOTH) for m in made))
    count = []
    for kit in (pyg, ours):
        model, seen = kit.LabelPropagation(3, 0.7), []
        model.register_message_forward_hook(lambda *a, s=seen: s.append(1))
        model(Y, BOTH)
        count.append(len(seen))
    assert count == [3, 3]


# Exact PageRank, by dense algebra ############################################


def pagerank(edge_index, weight=None, alpha=0.2, normalization='rw'):
    adj = torch.zeros(N, N, dtype=torch.float64)
    weight = torch.ones(edge_index.size(1)) if weight is None else weight
    ends = tuple(edge_index.long())
    adj = adj.index_put(ends, weight.double(), accumulate=True)
    degree = adj.sum(1)
    degree = torch.where(degree == 0, 1, degree)
    adj = (
        adj / degree[:, None]
        if normalization == 'rw'
        else (adj / (degree[:, None] * degree).sqrt())
    )
    eye = torch.eye(N, dtype=torch.float64)
    return alpha * torch.linalg.inv(eye - (1 - alpha) * adj)


def test_pagerank_of_every_graph_and_signal():
    model = ours.PPNP(torch.nn.Identity(), alpha=0.2)
    for graph, given in GRAPHS.items():
        ends, weight = given[0], given[1] if len(given) > 1 else None
        if 'adj' in graph:
            ends = ONE_WAY
            weight = ONE_WEIGHT if 'weighted' in graph else None
        want = pagerank(torch.as_tensor(ends), weight)
        for kind, x in SIGNALS.items():
            if kind == 'not finite':
                continue
            z = (want @ x.double()).to(x.dtype)
            tol = 0.02 if x.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(
                model(x, *given), z, rtol=tol, atol=tol, msg=graph
            )
    assert model(X[:0], NOTHING).shape == (0, 3)


def test_pagerank_by_steps_is_the_same():
    # Recorded, explained and overridden models send messages until what is
    # left is below the precision.
    x, want = X.double(), pagerank(ONE_WAY)

    class Half(ours.PPNP):
        def message(self, x_j, edge_weight):
            return 0.5 * edge_weight.view(-1, 1) * x_j

    adj = torch.zeros(N, N, dtype=torch.float64)
    adj[tuple(ONE_WAY)] = 1
    degree = adj.sum(1).clamp(min=1)
    half = torch.eye(N) - 0.4 * adj / degree[:, None]
    half = 0.2 * torch.linalg.inv(half)
    model = Half(torch.nn.Identity(), alpha=0.2)
    torch.testing.assert_close(model(x, ONE_WAY), half @ x)
    model = ours.PPNP(torch.nn.Identity(), alpha=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        made = [
            torch.jit.trace(model, (x, ONE_WAY)),
            torch.export.export(model, (x, ONE_WAY)).module(),
        ]
    for recorded in made:
        torch.testing.assert_close(recorded(x, ONE_WAY), want @ x)
    flipped = ours.PPNP(torch.nn.Identity(), 0.2, flow='source_to_target')
    torch.testing.assert_close(
        flipped(x, ONE_WAY), pagerank(ONE_WAY.flip(0)) @ x
    )


def test_explanations_are_of_the_users_edges():
    # One edge decides the first node: the mask is in the user's order.
    ends = torch.tensor([[3, 0, 2, 1], [2, 1, 3, 0]])
    x = torch.tensor([[0.0, 0], [0, 9], [1, 0], [0, 1]])
    for K in (2, None):
        for model in (
            ours.PPNP(torch.nn.Identity(), 0.1, K),
            ours.PPNP(torch.nn.Identity(), 0.1, K, add_self_loops=True),
            ours.APPNP(2, 0.1),
        ):
            torch.manual_seed(0)
            before = model(x, ends)
            mask = Explainer(
                model,
                GNNExplainer(epochs=30),
                explanation_type='model',
                edge_mask_type='object',
                model_config={
                    'mode': 'multiclass_classification',
                    'task_level': 'node',
                    'return_type': 'raw',
                },
            )(x, ends, index=0).edge_mask
            assert mask.shape == (4,)
            assert mask[[1, 3]].max() > mask[[0, 2]].max()
            assert torch.equal(model(x, ends), before)


def test_modules_that_are_passed_stay_as_they_are():
    encoder = pyg.MLP([3, 4, 2])
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    ours.PPNP(encoder)
    assert all(v.equal(before[k]) for k, v in encoder.state_dict().items())
