"""Node classifiers that live, and what should be there."""

import copy
import random
from collections import Counter

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
    """A graph as sets and dictionaries; it draws updates, and plays them.

    With classes of training nodes, none of which loses its last ones.
    """

    def __init__(
        self, data, seed=0, directed=False, loops=False, most=10**9, y=None
    ):
        self.random = random.Random(seed)
        self.x = dict(enumerate(data.x.double()))
        self.edges = {tuple(e) for e in data.edge_index.t().tolist()}
        self.y = dict(y or {})
        self.bare, self.names = set(), len(data.x)
        self.directed, self.loops, self.most = directed, loops, most

    def one(self, values):
        return self.random.choice(sorted(values))

    def drawn(self, count):
        width = len(next(iter(self.x.values())))
        draw = self.random.uniform
        drawn = [[draw(-1, 1) for _ in range(width)] for _ in range(count)]
        return torch.tensor(drawn, dtype=torch.float64).view(count, width)

    def spare(self):
        """Training nodes whose class stays when they go."""
        count = Counter(self.y.values())
        return {v for v, y in self.y.items() if count[y] > 4}

    def lose(self, one_way=False):
        """What goes, by kind: as a request names it."""
        below, gone = self.random.randrange, {}
        free = {*self.x} - {*self.y} | self.spare()
        if below(3) == 0 and free and len(self.x) > 1:
            (v,) = gone['nodes'] = [self.one(free)]
            del self.x[v]
            self.y.pop(v, None)
            self.bare.discard(v)
        gone['edges'] = []
        for _ in range(below(3)):
            held = {e for e in self.edges if {*e} <= self.x.keys()}
            if held:
                u, v = self.one(held)
                gone['edges'].append((u, v))
                self.edges -= {(u, v)} if one_way else {(u, v), (v, u)}
        self.edges = {e for e in self.edges if {*e} <= self.x.keys()}
        if below(3) == 0 and self.x.keys() - self.bare:
            (v,) = gone['features'] = [self.one(self.x.keys() - self.bare)]
            self.x[v] = 0 * self.x[v]
            self.bare.add(v)
        if below(3) == 0 and self.spare():
            (v,) = gone['labels'] = [self.one(self.spare())]
            del self.y[v]
        return {kind: items for kind, items in gone.items() if items}

    def remove(self):
        while not (gone := self.lose()):
            pass
        return RemovalRequest(**gone)

    def name(self):
        """The next name."""
        self.names += 1
        return self.names - 1

    def newcomers(self, x, y, ids):
        """New nodes, whose names follow the last one."""
        return NewNodes(x, torch.tensor(y))

    def come(self, cut, one_way):
        """New nodes with their classes, and new edges, not those cut."""
        below = self.random.randrange
        new = self.drawn(min(below(3), self.most - self.names))
        y = [below(4) - 1 if self.y else -1 for _ in new]
        ids = [self.name() for _ in new]
        self.x |= dict(zip(ids, new, strict=True))
        self.y |= {v: c for v, c in zip(ids, y, strict=True) if c >= 0}
        came = []
        for _ in range(below(4)):
            u, v = self.one(self.x), self.one(self.x)
            both = {(u, v), (v, u)}
            taken = self.edges | {*cut} | {*came}
            if not both & taken and (u != v or self.loops):
                came.append((u, v))
                self.edges |= {(u, v)} if one_way else both
        nodes = self.newcomers(new, y, ids) if ids else None
        return {'nodes': nodes, 'edges': pairs(*came)}

    def change(self, gone):
        """New features and classes of who did not lose them just now."""
        empty, found = {*gone.get('features', ())}, {}
        some = [v for v in self.x if v not in empty]
        some = self.random.sample(
            some, min(self.random.randrange(3), len(some))
        )
        for v, row in zip(some, self.drawn(len(some)), strict=True):
            self.x[v] = row
            self.bare.discard(v)
        if some:
            x = torch.stack([self.x[v] for v in some])
            found['features'] = torch.tensor(some), x
        if self.random.randrange(2) and self.spare():
            v = self.one(self.spare())
            self.y[v] = self.random.randrange(3)
            found['labels'] = torch.tensor([v]), torch.tensor([self.y[v]])
        return found

    def draw(self, graph=0):
        """A mixed update, or one that only adds."""
        while True:
            one_way = self.directed and self.random.random() < 0.5
            adds = self.random.random() < 0.4
            gone = {} if adds else self.lose(one_way)
            made = self.come(gone.get('edges', ()), one_way)
            made |= {} if adds else self.change(gone)
            if gone:
                named = {kind: {graph: items} for kind, items in gone.items()}
                made['remove'] = RemovalRequest(**named, directed=one_way)
            update = Update(**made, directed=one_way, graph=graph)
            if update.edits or update.remove:
                return update

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


def world_of(data, seed, **kind):
    """The world of a node classifier."""
    train = data.train_mask.nonzero().view(-1).tolist()
    return World(data, seed, y={v: int(data.y[v]) for v in train}, **kind)


def lived(count, seed=0, **kwargs):
    """A classifier, its world, and a report for each update."""
    data = blocks()
    model, world = make(data, **kwargs), world_of(data, seed)
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
    # Predictions are of the present graph, and of who is there.
    margin = model.decision_function()
    assert torch.equal(margin[names], fresh.levels.rows() @ model.weight)
    there = torch.isin(torch.arange(len(margin)), torch.tensor(names))
    assert torch.equal(margin.isnan().any(1), ~there)
    assert torch.equal(model.predict() == -1, ~there)
    assert torch.equal(
        held.levels.rows(torch.tensor(names)), fresh.levels.rows()
    )
    there = held.names >= 0
    order = held.names[there].argsort()
    assert torch.equal(held.Z[there][order], fresh.Z)
    assert torch.equal(held.y[there][order], fresh.y)
    assert torch.equal(held.Y[there][order], fresh.Y)
