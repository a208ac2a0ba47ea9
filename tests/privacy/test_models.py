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
    setup = private(net=own.SGConv(5, 3, K=2, eps=0.0))
    setup.train()
    assert setup.engine.steps == len(setup.loader)


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


# P3: a transform of the loader


def standardised(batch):
    batch.x = (batch.x - batch.x.mean(0)) / batch.x.std(0)
    return batch


def smoothed(batch):
    batch.x = batch.x.clone()
    batch.x[0] = batch.x.sum(0)
    return batch


def kept_beside(batch):
    batch.scale = batch.x.abs().amax(0)
    return batch


def by_the_largest(batch):
    batch.x = batch.x.clamp(max=float(batch.x.max()) / 2)
    return batch


@pytest.mark.parametrize(
    'transform',
    [
        standardised,
        smoothed,
        kept_beside,
        by_the_largest,
    ],
)
def test_transforms_that_couple_rows(private, transform):
    with pytest.raises(ValueError, match="'transform' of 'data_loader'"):
        private(loader={'transform': transform})


def scaled(batch):
    batch.x = batch.x / batch.x.norm(dim=1, keepdim=True)
    batch.degree = batch.edge_index[0].bincount(minlength=batch.num_nodes)
    batch.known = torch.arange(40)[batch.n_id] < 20
    return batch


def centred_by_subgraph(batch):
    mean = pyg.global_mean_pool(batch.x, batch.batch)
    batch.x = batch.x - mean[batch.batch]
    return batch


@pytest.mark.parametrize('transform', [scaled, centred_by_subgraph])
def test_transforms_of_rows_and_of_subgraphs(private, transform):
    setup = private(loader={'transform': transform})
    setup.train()
    assert setup.engine.steps == len(setup.loader)


# P9: subgraphs as wholes


class Sorted(nn.Module):
    """Layers that need the nodes of a graph to stand together."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.lin = nn.Linear(5, 4)
        if kind == 'gps':
            self.layer = pyg.GPSConv(
                4, pyg.GCNConv(4, 4), heads=2, norm=None, dropout=0.0
            )
        elif kind == 'lstm':
            self.layer = pyg.SAGEConv(4, 4, aggr='lstm')
        elif kind == 'sort':
            self.layer = pyg.SortAggregation(k=2)
        self.out = nn.Linear(8 if kind == 'sort' else 4, 3)

    def forward(self, x, edge_index, batch):
        x = self.lin(x)
        if self.kind == 'sort':
            return self.out(self.layer(x, batch))
        if self.kind == 'gps':
            return self.out(self.layer(x, edge_index, batch))
        return self.out(self.layer(x, edge_index))


def as_graphs(model, batch):
    return model(batch.x, batch.edge_index, batch.batch)


@pytest.mark.parametrize('kind', ['gps', 'lstm', 'sort'])
def test_layers_that_need_sorted_batches(private, kind):
    setup = private(
        net=Sorted(kind), forward=as_graphs, loader={'contiguous': True}
    )
    for batch in setup.loader:
        assert bool((batch.batch.diff() >= 0).all())
        out = as_graphs(setup.model, batch)
        out = out if kind == 'sort' else out[batch.root_mask]
        F.cross_entropy(out, batch.y[batch.root_mask]).backward()
        setup.optimizer.step()
    assert setup.engine.steps == len(setup.loader)


def test_both_orders_train_the_same(private):
    weights = []
    for contiguous in (False, True):
        setup = private(loader={'contiguous': contiguous})
        for batch in setup.loader:
            roots = torch.arange(batch.num_nodes) < batch.batch_size
            if contiguous:
                roots = batch.root_mask
            out = setup.model(batch.x, batch.edge_index)[roots]
            F.cross_entropy(out, batch.y[roots]).backward()
            setup.optimizer.step()
        weights.append(setup.net.second.lin.weight.detach())
    torch.testing.assert_close(*weights)
