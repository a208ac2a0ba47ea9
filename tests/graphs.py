"""Small graphs to classify, and what is left of them."""

import random

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN, global_add_pool


def random_graphs(count, num_classes=2, seed=0, with_x=True):
    """Denser graphs and larger features for higher labels."""
    source = random.Random(seed)
    graphs = []
    for i in range(count):
        label = i % num_classes
        n = source.randrange(6, 14)
        pairs = [
            (u, v)
            for u in range(n)
            for v in range(u)
            if source.random() < 0.15 + 0.25 * label / max(num_classes - 1, 1)
        ]
        edge_index = torch.tensor(
            pairs + [(v, u) for u, v in pairs], dtype=torch.int64
        )
        x = [
            [source.random(), source.random() * (label + 1) / num_classes]
            for _ in range(n)
        ]
        graphs.append(
            Data(
                x=torch.tensor(x, dtype=torch.float64) if with_x else None,
                edge_index=edge_index.view(-1, 2).t().contiguous(),
                y=torch.tensor([label]),
                num_nodes=n,
            )
        )
    return graphs


def edges_inside(data, nodes):
    """The edges between some nodes, numbered as these are, by hand."""
    place = {v: i for i, v in enumerate(nodes)}
    edges = [
        (place[u], place[v])
        for u, v in data.edge_index.t().tolist()
        if u in place and v in place
    ]
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()


def without(graphs, request, n_ids=None):
    """The remaining graphs, removed by hand."""
    left = []
    for i, data in enumerate(graphs):
        part = request.parts.get(i)
        if part is None:
            left.append(data)
        elif not part.whole:
            keep = [v for v in range(data.num_nodes) if v not in part.nodes]
            x = data.x
            if x is not None:
                x = x.clone()
                x[list(part.features)] = 0
                x = x[keep]
            left.append(
                Data(
                    x=x,
                    edge_index=edges_inside(data, keep),
                    y=data.y,
                    num_nodes=len(keep),
                )
            )
    return left


def blocks(n=90, classes=3, d=6, seed=0, isolated=2):
    """A graph with communities, and informative features."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    same = y.unsqueeze(0) == y.unsqueeze(1)
    chance = torch.where(same, 0.12, 0.02)
    pairs = (torch.rand((n, n), generator=random) < chance).triu(1)
    pairs[:, n - isolated :] = False
    edge_index = pairs.nonzero().t()
    centre = torch.randn((classes, d), generator=random)
    x = centre[y] + torch.randn((n, d), generator=random)
    train = torch.zeros(n, dtype=torch.bool)
    train[torch.randperm(n, generator=random)[: n // 2]] = True
    return Data(
        x=x.double(),
        edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1),
        y=y,
        train_mask=train,
        test_mask=~train,
    )


def homes(n=60, seed=0, directed=False, columns=6, across=0.02):
    """Three kinds of nodes, joined to their own kind, and who trains."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    chance = torch.where(y[:, None] == y[None], 0.3, across)
    dense = torch.rand(n, n, generator=random) < chance
    dense = dense.fill_diagonal_(False) if directed else dense.triu(1)
    dense = dense if directed else dense | dense.t()
    x = torch.rand(n, columns, generator=random)
    x[torch.arange(n), y] += 1
    mask = torch.rand(n, generator=random)
    return Data(
        x=x,
        y=y,
        edge_index=dense.nonzero().t().contiguous(),
        train_mask=mask < 0.6,
        val_mask=mask > 0.9,
    )


class Closed(Data):
    """A graph whose edges can be looked at until they are closed."""

    open = True

    def __getattribute__(self, name):
        if name in ('edge_index', 'adj_t') and not Closed.open:
            raise AssertionError('edges were read after the release')
        return super().__getattribute__(name)


class Pooled(torch.nn.Module):
    """A row per graph."""

    def __init__(self, columns):
        super().__init__()
        self.net = GCN(columns, 4, 1, 2)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.net(x, edge_index), batch)
