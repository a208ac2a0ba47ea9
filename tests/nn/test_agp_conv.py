import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust import functional as F
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import APPNP, SGConv
from pyg_trust.testing import make_graph

pytestmark = pytest.mark.sparse

GRAPH = make_graph('random')
EDGE_INDEX = GRAPH.to_edge_index()[0]
X = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))


def pairs():
    for add_self_loops in (True, False):
        yield (
            pyg.SGConv(6, 3, K=2, add_self_loops=add_self_loops),
            SGConv(6, 3, K=2, add_self_loops=add_self_loops, eps=0),
        )
        yield (
            pyg.APPNP(5, 0.2, add_self_loops=add_self_loops),
            APPNP(5, 0.2, add_self_loops=add_self_loops, eps=0),
        )


@pytest.mark.parametrize(('theirs', 'ours'), list(pairs()))
def test_exact_layers_equal_those_of_pyg(theirs, ours):
    ours.load_state_dict(theirs.state_dict())
    x = X.clone().requires_grad_()
    other = X.clone().requires_grad_()
    out = ours(x, EDGE_INDEX)
    wanted = theirs(other, EDGE_INDEX)
    torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    for mine, his in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, his.grad)


def forms():
    yield 'CSRGraph', GRAPH
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


def test_randomized_layers_are_the_functional(always_push):
    z = F.propagate(GRAPH, X, F.appnp(0.2, levels=4), eps=1e-2, seed=5)
    assert torch.equal(APPNP(4, 0.2, eps=1e-2, seed=5)(X, GRAPH), z)
    conv = SGConv(6, 3, K=2, eps=1e-2, seed=5)
    z = F.propagate(GRAPH, X, F.sgc(2), eps=1e-2, seed=5)
    assert torch.equal(conv(X, GRAPH), conv.lin(z))


def test_seeds(always_push):
    conv = APPNP(4, 0.2, eps=1e-2)
    assert not torch.equal(conv(X, GRAPH), conv(X, GRAPH))
    torch.manual_seed(0)
    first = conv(X, GRAPH)
    torch.manual_seed(0)
    assert torch.equal(conv(X, GRAPH), first)


def test_gradcheck():
    x = X[:, :2].double().requires_grad_()
    conv = SGConv(2, 2, K=2, eps=0).double()
    assert torch.autograd.gradcheck(lambda x: conv(x, GRAPH), x)
    appnp = APPNP(3, 0.2, eps=0)
    assert torch.autograd.gradcheck(lambda x: appnp(x, GRAPH), x)


def test_cached_sgc_keeps_features():
    conv = SGConv(6, 3, K=2, cached=True, eps=0)
    first = conv(X, EDGE_INDEX)
    assert torch.equal(conv(torch.zeros_like(X), EDGE_INDEX[:, :0]), first)
    conv.reset_parameters()
    out = conv(torch.zeros_like(X), EDGE_INDEX)
    assert torch.equal(out, conv.lin.bias.expand(40, 3))


def test_cached_appnp_keeps_the_graph_and_not_the_features():
    conv = APPNP(3, 0.2, cached=True, eps=0)
    first = conv(X, EDGE_INDEX)
    assert torch.equal(conv(X, EDGE_INDEX[:, :0]), first)
    assert torch.equal(conv(2 * X, EDGE_INDEX), 2 * first)
    conv.reset_parameters()
    assert not torch.equal(conv(X, EDGE_INDEX[:, :0]), first)


def test_training_through_estimates_ends_near_exact_training(always_push):
    label = (X[:, 0] > X[:, 0].median()).long()

    def train(eps):
        torch.manual_seed(0)
        linear, conv = torch.nn.Linear(6, 2), APPNP(3, 0.2, eps=eps)
        exact = APPNP(3, 0.2, eps=0)
        optimizer = torch.optim.Adam(linear.parameters(), lr=0.05)
        for _ in range(200):
            optimizer.zero_grad()
            out = conv(linear(X), GRAPH)
            torch.nn.functional.cross_entropy(out, label).backward()
            optimizer.step()
        out = exact(linear(X), GRAPH)
        return torch.nn.functional.cross_entropy(out, label).item()

    assert train(0.0) < 0.6  # a coin is at 0.69
    assert train(1e-2) < 1.05 * train(0.0)


def test_compiled_model():
    conv = APPNP(3, 0.2, eps=0)
    model = torch.compile(
        lambda x: conv(torch.relu(x), GRAPH) + 1, backend='aot_eager'
    )
    torch.testing.assert_close(model(X), conv(torch.relu(X), GRAPH) + 1)


def test_repr_and_lazy_channels():
    assert str(SGConv(6, 3, K=2)) == 'SGConv(6, 3, K=2, eps=1e-05)'
    assert str(APPNP(4, 0.2, eps=0)) == 'APPNP(K=4, alpha=0.2, eps=0)'
    assert SGConv(-1, 3)(X, GRAPH).shape == (40, 3)
    assert isinstance(APPNP(4, 0.2), pyg.MessagePassing)


@pytest.mark.parametrize(
    ('error', 'match', 'run'),
    [
        (ValueError, "'edge_index'", lambda: APPNP(2, 0.1)(X[:9], EDGE_INDEX)),
        (ValueError, '40 nodes', lambda: APPNP(2, 0.1)(X[:9], GRAPH)),
        (
            ValueError,
            'undirected',
            lambda: APPNP(2, 0.1)(X, EDGE_INDEX[:, 1:]),
        ),
        (TypeError, "'graph'", lambda: APPNP(2, 0.1)(X, Ellipsis)),
        (ValueError, "'alpha'", lambda: APPNP(2, 1.5)),
        (ValueError, "'K'", lambda: SGConv(6, 3, K=-1)),
        (ValueError, "'eps'", lambda: SGConv(6, 3, eps=-1)(X, GRAPH)),
        (TypeError, "'seed'", lambda: SGConv(6, 3, seed='x')),
    ],
)
def test_layers_refuse(error, match, run):
    with pytest.raises(error, match=match):
        run()


def test_data_is_taken_too():
    data = Data(edge_index=EDGE_INDEX, num_nodes=40)
    conv = APPNP(3, 0.2, eps=0)
    assert torch.equal(conv(X, data), conv(X, CSRGraph.from_data(data)))
