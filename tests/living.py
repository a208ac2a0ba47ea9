"""Node classifiers that live, and what should be there."""

import copy

import torch
from graphs import blocks
from torch_geometric.data import Data

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.update import NewNodes, Update

LAM, STD = 0.02, 1e-4


def make(data=None, **kwargs):
    fit = {'classes': kwargs.pop('classes', None)}
    kwargs = {'weight_decay': LAM, 'seed': 0, 'release_std': STD, **kwargs}
    return NodeClassifier(**kwargs).fit(data or blocks(), **fit)


def pairs(*edges):
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()


def rows(count, seed=0, d=6):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, d, generator=random, dtype=torch.float64)


def seen(model):
    """All of a classifier that can be told apart, to the bit."""
    data = model._model.data
    held = {'rows': data.levels.rows(), 'Z': data.Z, 'names': data.names}
    held |= {'place': data.place, 'Y': data.Y, 'square': data.square}
    held |= {'gradient': model._model.gradient.value}
    entries = [part.clone() for part in data.graph.entries()]
    held |= {'entries': entries, 'waits': data.num_pending}
    return {**model.state_dict(), **held}


class World:
    """What should be there, as sets and dictionaries."""

    def __init__(self, data, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.x = dict(enumerate(data.x.double()))
        self.edges = {tuple(e) for e in data.edge_index.t().tolist()}
        train = data.train_mask.nonzero().view(-1).tolist()
        self.y = {v: int(data.y[v]) for v in train}
        self.empty, self.names = set(), data.num_nodes

    def below(self, high):
        return int(torch.randint(high, (), generator=self.random))

    def one(self, values):
        values = sorted(values)
        return values[self.below(len(values))]

    def row(self):
        return torch.randn(6, generator=self.random, dtype=torch.float64)

    def spare(self):
        """Training nodes whose class stays when they go."""
        count = torch.tensor([*self.y.values()]).bincount(minlength=3)
        return [v for v, y in self.y.items() if count[y] > 4]

    def remove(self):
        kind = self.one(('nodes', 'edges', 'features', 'labels'))
        if kind == 'edges' and self.edges:
            u, v = self.one(self.edges)
            self.edges -= {(u, v), (v, u)}
            return RemovalRequest(edges=[(u, v)])
        if kind == 'labels':
            v = self.one(self.spare())
            del self.y[v]
            return RemovalRequest(labels=[v])
        if kind == 'features':
            v = self.one({*self.x} - self.empty)
            self.x[v] = torch.zeros(6, dtype=torch.float64)
            self.empty.add(v)
            return RemovalRequest(features=[v])
        v = self.one({*self.x} - {*self.y} | {*self.spare()})
        del self.x[v]
        self.y.pop(v, None)
        self.empty.discard(v)
        self.edges = {e for e in self.edges if v not in e}
        return RemovalRequest(nodes=[v])

    def add(self):
        new, y = [], []
        for _ in range(self.below(3)):
            new.append(self.row())
            y.append(self.below(4) - 1)
            self.x[self.names] = new[-1]
            if y[-1] >= 0:
                self.y[self.names] = y[-1]
            self.names += 1
        came = []
        for _ in range(self.below(4)):
            u, v = self.one(self.x), self.one(self.x)
            if u != v and (u, v) not in self.edges:
                came.append((u, v))
                self.edges |= {(u, v), (v, u)}
        nodes = NewNodes(torch.stack(new), torch.tensor(y)) if new else None
        return {'nodes': nodes, 'edges': pairs(*came)}

    def change(self):
        v, w = self.one(self.x), self.one(self.spare() or self.y)
        self.x[v] = self.row()
        self.empty.discard(v)
        self.y[w] = self.below(3)
        x, y = self.x[v].view(1, -1), torch.tensor([self.y[w]])
        return {
            'features': (torch.tensor([v]), x),
            'labels': (torch.tensor([w]), y),
        }

    def draw(self):
        kind = self.below(5)
        if kind < 2:
            return self.remove()
        return Update(**self.add(), **(self.change() if kind == 4 else {}))

    def data(self):
        """The present data with names from 0, in the order of the names."""
        names = sorted(self.x)
        place = {v: k for k, v in enumerate(names)}
        edges = sorted((place[u], place[v]) for u, v in self.edges)
        y = torch.tensor([self.y.get(v, 0) for v in names])
        mask = torch.tensor([v in self.y for v in names])
        x = torch.stack([self.x[v] for v in names])
        made = Data(x=x, edge_index=pairs(*edges), y=y, train_mask=mask)
        made.num_nodes = len(names)
        return made


def lived(count, seed=0, **kwargs):
    """A classifier, its world, and a report for each update."""
    data = blocks()
    model, world = make(data, **kwargs), World(data, seed)
    for _ in range(count):
        yield model, world, model.update(world.draw())


def assert_present(model, world, **kwargs):
    names = sorted(world.x)
    assert model.nodes.tolist() == names
    edges = model.graph.to_edge_index()[0].t().tolist()
    assert {tuple(e) for e in edges} == world.edges
    model = copy.deepcopy(model)
    if model.pending:
        model.release()
    held = model._model.data
    fresh = make(world.data(), **kwargs)._model.data
    assert torch.equal(
        held.levels.rows(torch.tensor(names)), fresh.levels.rows()
    )
    there = held.names >= 0
    order = held.names[there].argsort()
    assert torch.equal(held.Z[there][order], fresh.Z)
    assert torch.equal(held.y[there][order], fresh.y)
    assert torch.equal(held.Y[there][order], fresh.Y)
