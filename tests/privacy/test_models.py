"""Models that private training takes or refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.utils import dropout_edge, dropout_node

from pyg_trust import nn as own

# P7: the layers of this package


class Predict(nn.Module):
    """Predict, then propagate."""

    def __init__(self, **arguments):
        super().__init__()
        self.lin = nn.Linear(5, 3)
        self.propagate = own.APPNP(K=3, alpha=0.1, **arguments)

    def forward(self, x, edge_index):
        return self.propagate(self.lin(x), edge_index)


@pytest.mark.parametrize(
    'net', [lambda: Predict(eps=0.0), lambda: own.SGConv(5, 3, K=2, eps=0.0)]
)
def test_own_layers_train(private, net):
    setup = private(net=net())
    setup.train()
    assert setup.engine.steps == len(setup.loader)


def test_own_layers_equal_those_of_pyg(private):
    class Reference(Predict):
        def __init__(self):
            super().__init__()
            self.propagate = pyg.APPNP(3, 0.1)

    weights = []
    for kind in (lambda: Predict(eps=0.0), Reference):
        torch.manual_seed(5)
        net = kind()
        setup = private(net=net)
        setup.train()
        weights.append(net.lin.weight.detach())
    torch.testing.assert_close(*weights)


def test_layers_that_take_finite_numbers_alone_are_still_tested(private):
    class Couple(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(5, 3)

        def forward(self, x, edge_index):
            if not bool(x.isfinite().all()):
                raise ValueError('finite, please')
            # Nothing to see below a thousand.
            return self.lin(x) + F.relu(x.detach().amax() - 1000)

    with pytest.raises(ValueError, match='treat subgraphs apart'):
        private(net=Couple())


# P10: random numbers inside of a model


class Random(nn.Module):
    """Draws something between two convolutions."""

    def __init__(self, draw):
        super().__init__()
        self.first = pyg.GCNConv(5, 6)
        self.second = pyg.GCNConv(6, 3)
        self.draw = draw

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x, edge_index = self.draw(x, edge_index)
        return self.second(x, edge_index)


DRAWS = {
    'dropout_edge': lambda x, e: (x, dropout_edge(e, 0.5)[0]),
    'dropout_node': lambda x, e: (
        x,
        dropout_node(e, 0.3, num_nodes=x.size(0))[0],
    ),
    'randn_like': lambda x, e: (x + 0.1 * torch.randn_like(x), e),
    'bernoulli': lambda x, e: (x * torch.full_like(x, 0.5).bernoulli_(), e),
    'gumbel': lambda x, e: (F.gumbel_softmax(x), e),
    'normal': lambda x, e: (torch.normal(x, 1.0), e),
    'dropout': lambda x, e: (F.dropout(x), e),
    'one for all': lambda x, e: (x * torch.rand(1), e),
}


@pytest.mark.parametrize('name', DRAWS)
def test_random_numbers_of_rows_and_edges(private, name):
    setup = private(net=Random(DRAWS[name]))
    setup.train()
    assert setup.engine.steps == len(setup.loader)


@pytest.mark.parametrize(
    'draw',
    [
        # Noise that is as large as the rows of others are.
        lambda x, e: (x + x.detach().std() * torch.randn_like(x), e),
        # Which row is dropped depends on all.
        lambda x, e: (x * (torch.rand(len(x), 1) < x.softmax(0)), e),
        # Rows of others, by chance.
        lambda x, e: (x + x[torch.randperm(len(x))], e),
        lambda x, e: (x + x[torch.randint(len(x), (len(x),))], e),
    ],
)
def test_random_couplings(private, draw):
    with pytest.raises(ValueError, match='apart'):
        private(net=Random(draw))
