"""People who are rows in several tables
=====================================

A shop has people, their orders, and items. A person is many rows, so a
guarantee for one row does not protect the person. Here three CSV files become
a model that is private for persons, and a person is removed from all tables.
"""

# %%
# Three tables
# ------------
# These tables are made up: orders show what people want, and the features of
# people show it only a little. The first column of ``orders.csv`` is the row
# of the person, and the second the row of the item.
import csv
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.transforms import ToUndirected

folder, draw = Path(tempfile.mkdtemp()), random.Random(0)


def write(name: str, *rows: list) -> None:
    """Write a table."""
    with (folder / name).open('w', newline='') as file:
        csv.writer(file).writerows(rows)


PEOPLE, ITEMS, KINDS = 3_000, 60, 3
wants = [draw.randrange(KINDS) for _ in range(PEOPLE)]
bought = [
    (p, i if draw.random() < 0.6 else draw.randrange(ITEMS))
    for p, kind in enumerate(wants)
    for i in draw.choices(range(kind, ITEMS, KINDS), k=draw.randint(0, 6))
]
write('people.csv', *[[draw.gauss(k / 2, 1), k] for k in wants])
write('items.csv', *[[float(i % KINDS == k) for k in range(KINDS)]
                     for i in range(ITEMS)])  # fmt: skip
write('orders.csv', *[[p, i, draw.gauss(0, 1)] for p, i in bought])


def read(name: str) -> torch.Tensor:
    """Read a table of numbers."""
    with (folder / name).open(newline='') as file:
        rows = [[float(v) for v in row] for row in csv.reader(file)]
    return torch.tensor(rows)


people, items, orders = map(read, ('people.csv', 'items.csv', 'orders.csv'))
BY, HAS = ('order', 'by', 'person'), ('order', 'has', 'item')
data = HeteroData()
data['person'].x, data['person'].y = people[:, :1], people[:, 1].long()
data['person'].train_mask = torch.arange(PEOPLE) < 2_000
data['order'].x, data['item'].x = orders[:, 2:], items
each = torch.arange(len(orders))
data[BY].edge_index = torch.stack([each, orders[:, 0].long()])
data[HAS].edge_index = torch.stack([each, orders[:, 1].long()])

# %%
# Whose is it?
# ------------
# Declare every table once: it belongs to persons, or it is public. Nothing is
# public by default. Each column has to be computed from rows of its owner and
# from public tables alone. A foreign key to a row that does not exist is an
# error.
from pyg_trust.unit import PrivacyUnit

declared = {'person': 'person', 'owned': {'order': BY}, 'public': ('item',)}
unit = PrivacyUnit(data, **declared)
wrong = data.clone()
wrong[HAS].edge_index[1, 0] = ITEMS
try:
    PrivacyUnit(wrong, **declared)
except ValueError as error:
    print(error)

# %%
# A person in one row
# -------------------
# ``MetapathFeatures`` adds to the row of a person the averages over the
# person's own orders, and over the items in them. They read no other person,
# so they need no noise. We compare the accuracy with and without orders and
# privacy:
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.transforms import MetapathFeatures

own = MetapathFeatures([[BY], [BY, HAS]], 'person', unit=unit)(data)
test = ~data['person'].train_mask


def accuracy(graph: HeteroData, epsilon: float | None) -> float:
    """Train a linear model; return its accuracy, and the engine."""
    torch.manual_seed(0)
    x, y = graph['person'].x, graph['person'].y
    model = torch.nn.Linear(x.size(1), KINDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DisjointWalkLoader(
        *(graph, 400, 0),
        unit=unit,
        input_nodes=graph['person'].train_mask,
        sampling='poisson',
        num_steps=60,
    )
    if epsilon is not None:
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=epsilon,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
            forward=lambda model, batch: model(batch.x),
        )
    for batch in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
    weight, bias = model.state_dict().values()
    out = F.linear(x[test], weight, bias)
    return float((out.argmax(1) == y[test]).float().mean())


found = {'people alone': accuracy(data, None)}
engine = PrivacyEngine()
found['epsilon 8'] = accuracy(own, 8.0)
found['not private'] = accuracy(own, None)
print(', '.join(f'{name}: {share:.3f}' for name, share in found.items()))
figure, axis = plt.subplots(figsize=(5, 3), layout='constrained')
axis.bar(found.keys(), found.values())
axis.axhline(1 / KINDS, color='gray', linestyle=':')
axis.set(ylabel='accuracy', ylim=(0, 1))
plt.show()

# %%
# Forget a person everywhere
# --------------------------
# This model reads the tables themselves. A removal deletes the row, the orders
# and the edges of a person from all tables, and trains one of ten shards
# again. The result is bit-identical to a training without the person. Items
# stay.
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner

tables = ToUndirected()(data)
both = PrivacyUnit(tables, **declared)


def sage() -> torch.nn.Module:
    """A model of all tables."""
    return to_hetero(GraphSAGE((-1, -1), 16, 2, KINDS), tables.metadata())


model = ShardedUnlearner(sage, 10, unit=both, num_classes=KINDS, epochs=40)
model.fit(tables)
score = (model.predict()[test] == data['person'].y[test]).float().mean()
print(f'accuracy {score:.3f}; before:', model.data)
removed = model.remove(RemovalRequest(persons=[12], unit=both))
print('after:', model.data, removed.shards, model.verify().ok)

# %%
# What is guaranteed
# ------------------
# The private model protects everybody, and the other model guarantees the
# removal of one person. Neither guarantee covers the other model, nor public
# tables.
from pyg_trust.report import TrustReport

page = TrustReport.of(engine.report(1e-5), removed)
page.save(folder / 'trust.html')
print('\n'.join(each.promise for each in page.guarantees))
print(engine.report(1e-5).explain())
