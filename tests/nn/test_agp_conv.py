import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust import agp as F
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import APPNP, SGConv
from pyg_trust.testing import make_graph

GRAPH = make_graph('random')
EDGE_INDEX = GRAPH.to_edge_index()[0]
X = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))


def forms():
    yield 'CSRGraph', GRAPH
    yield 'Data', Data(edge_index=EDGE_INDEX, num_nodes=40)
    yield 'EdgeIndex', EdgeIndex(EDGE_INDEX, sparse_size=(40, 40))
    shuffled = torch.randperm(EDGE_INDEX.size(1))
    yield 'shuffled', EDGE_INDEX[:, shuffled]
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        yield str(layout), GRAPH.to_torch_sparse(layout)
    if WITH_TORCH_SPARSE:
        yield 'SparseTensor', GRAPH.to_sparse_tensor()


@pytest.mark.parametrize('eps', [0.0, 1e-2])
@pytest.mark.parametrize(
    'form', [pytest.param(form, id=name) for name, form in forms()]
)
def test_every_form_of_the_graph(form, eps, always_push):
    for conv in (
        SGConv(6, 3, eps=eps, seed=1),
        APPNP(3, 0.1, eps=eps, seed=1),
    ):
        assert torch.equal(conv(X, form), conv(X, EDGE_INDEX))


@pytest.mark.parametrize(
    'how',
    [{'eps': 1e-2, 'seed': 5}, {'half': True}, {'tol': 1e-2, 'half': True}],
)
def test_layers_are_the_functional(how, always_push):
    z = F.propagate(GRAPH, X, F.appnp(0.1, K=12), **how)
    assert torch.equal(APPNP(12, 0.1, **how)(X, GRAPH), z)
    assert not torch.equal(APPNP(12, 0.1)(X, GRAPH), z)
    conv = SGConv(6, 3, K=9, **how)
    z = F.propagate(GRAPH, X, F.sgc(9), **how)
    assert torch.equal(conv(X, GRAPH), conv.lin(z))


def test_cached_appnp_shows_what_that_of_pyg_does():
    theirs, ours = pyg.APPNP(3, 0.2, cached=True), APPNP(3, 0.2, cached=True)
    assert ours._cached_edge_index is ours._cached_adj_t is None
    for layer in (theirs, ours):
        layer(X, EDGE_INDEX)
    made = [
        torch.sparse_coo_tensor(*layer._cached_edge_index).to_dense()
        for layer in (theirs, ours)
    ]
    torch.testing.assert_close(*made)
    if WITH_TORCH_SPARSE:
        torch.testing.assert_close(ours._cached_adj_t.to_dense(), made[0].t())
    # The messages go along them as well: here all are dropped.
    ours.dropout = 1.0
    torch.testing.assert_close(ours(X, EDGE_INDEX[:, :0]), 0.2 * X)
    ours.reset_parameters()
    assert ours._cached_edge_index is ours._cached_adj_t is None


def test_repr_and_lazy_channels():
    assert str(SGConv(6, 3, K=2)) == 'SGConv(6, 3, K=2)'
    assert str(APPNP(4, 0.2, 0.5, half=False, seed=3)) == (
        'APPNP(K=4, alpha=0.2, dropout=0.5, seed=3)'
    )
    assert str(SGConv(6, 3, half=True, tol=1e-3)) == (
        'SGConv(6, 3, K=1, half=True, tol=0.001)'
    )
    assert str(APPNP(4, 0.2, eps=1e-3)) == 'APPNP(K=4, alpha=0.2, eps=0.001)'
    assert SGConv(-1, 3)(X, GRAPH).shape == (40, 3)
    assert isinstance(APPNP(4, 0.2), pyg.MessagePassing)


# As in PyG ###################################################################


WEIGHT = torch.rand(
    EDGE_INDEX.size(1), generator=torch.Generator().manual_seed(1)
)


@pytest.mark.parametrize(
    'arguments',
    [
        (10, 0.1, 0.5),
        (3, 0.1, 0.5, False, False, True),
        (3, 0.1, 0.0, False, True, False),
        (3, 0.1, 0.0, True, True, True),
    ],
)
@pytest.mark.parametrize('weighted', [False, True])
def test_one_changed_import_is_enough(arguments, weighted):
    theirs, ours = pyg.APPNP(*arguments), APPNP(*arguments)
    weight = WEIGHT.clone() if weighted else None
    gradient = weighted and not theirs.cached
    if gradient:
        weight.requires_grad_()
    for training in (True, False):
        results = []
        for layer in (theirs, ours):
            torch.manual_seed(0)
            layer.train(training)
            results.append(layer(X, EDGE_INDEX, weight))
            if gradient:
                results[-1].square().sum().backward()
                results.append(weight.grad.clone())
                weight.grad = None
        for one, other in zip(
            results[: len(results) // 2],
            results[len(results) // 2 :],
            strict=True,
        ):
            torch.testing.assert_close(one, other)


# The last graph ##############################################################


@pytest.fixture
def conversions(monkeypatch):
    count = []
    convert = CSRGraph.from_edge_index.__func__

    def counting(cls, *args, **kwargs):
        count.append(1)
        return convert(cls, *args, **kwargs)

    monkeypatch.setattr(CSRGraph, 'from_edge_index', classmethod(counting))
    return count


def test_the_same_edge_index_is_converted_once(conversions):
    conv = APPNP(2, 0.1)
    for _ in range(3):
        conv(X, EDGE_INDEX)
    assert len(conversions) == 1


def test_a_change_in_place_is_noticed(conversions):
    conv = APPNP(2, 0.1)
    edge_index = EDGE_INDEX.clone()
    before = conv(X, edge_index)
    view = edge_index[1]
    edge_index[0, 0] += 0
    conv(X, edge_index)
    assert len(conversions) == 2
    # Through a view: an edge and its reverse go to another node.
    u, v = 3, int(EDGE_INDEX[1][EDGE_INDEX[0] == 3][0])
    w = next(
        w
        for w in range(40)
        if w not in EDGE_INDEX[1][EDGE_INDEX[0] == u] and w != u
    )
    forth = (edge_index[0] == u) & (edge_index[1] == v)
    back = (edge_index[0] == v) & (edge_index[1] == u)
    view[forth] = w
    edge_index[0][back] = w
    after = conv(X, edge_index)
    assert not torch.equal(after, before)
    assert torch.equal(after, APPNP(2, 0.1)(X, edge_index.clone()))


def test_another_tensor_at_the_same_place_is_another_graph():
    conv = APPNP(2, 0.1)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(40, generator=generator)
        other = order[EDGE_INDEX]  # freed, and its memory used again
        assert torch.equal(conv(X, other), APPNP(2, 0.1)(X, other))
        del other
    assert conv(X[:, :1], EDGE_INDEX).shape == (40, 1)
    more = torch.cat([X, X])
    assert torch.equal(conv(more, EDGE_INDEX)[:40], conv(X, EDGE_INDEX))


def test_copies_of_a_layer_keep_no_graph():
    conv = APPNP(2, 0.1)
    wanted = conv(X, EDGE_INDEX)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(other(X, EDGE_INDEX), wanted)
        assert other._last_graph is not conv._last_graph


# Compiled and exported #######################################################


def layers():
    yield APPNP(3, 0.2)
    yield APPNP(12, 0.1, tol=1e-2)
    yield SGConv(6, 3, K=2, half=True)


@pytest.mark.parametrize('conv', layers(), ids=str)
def test_compiled_in_one_graph(conv):
    torch._dynamo.reset()
    conv(X, GRAPH)
    model = torch.compile(
        lambda x: conv(torch.relu(x), GRAPH) + 1,
        backend='aot_eager',
        fullgraph=True,
    )
    x = X.clone().requires_grad_()
    other = X.clone().requires_grad_()
    wanted = conv(torch.relu(other), GRAPH) + 1
    found = model(x)
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


@pytest.mark.parametrize('conv', layers(), ids=str)
def test_exported(conv):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv

        def forward(self, x):
            return self.conv(x, GRAPH)

    model = Model()
    wanted = model(X)
    program = torch.export.export(model, (X,))
    torch.testing.assert_close(program.module()(2 * X), model(2 * X))
    torch.testing.assert_close(program.module()(X), wanted)


def test_compiling_what_was_never_run_says_what_to_do():
    torch._dynamo.reset()
    graph = CSRGraph.from_edge_index(EDGE_INDEX, 40)
    model = torch.compile(
        lambda x: APPNP.forward(CONV, x, graph),
        backend='eager',
        fullgraph=True,
    )
    with pytest.raises(Exception, match=r'ValueError|propagated on once'):
        model(X)


CONV = APPNP(2, 0.3)


def test_sparse_features_go_in_as_they_are():
    x = torch.where(X > 0.7, X, 0)
    conv = SGConv(6, 3, K=2)
    assert torch.equal(conv(x.to_sparse_csr(), GRAPH), conv(x, GRAPH))
    z = APPNP(3, 0.2)(x.to_sparse_csr(), EDGE_INDEX)
    assert torch.equal(z, APPNP(3, 0.2)(x, EDGE_INDEX))
