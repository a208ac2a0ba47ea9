"""Typed databases of persons, their orders and chats, and public items."""

import random
from typing import Any

import torch
from torch_geometric.data import HeteroData

from pyg_trust.unit import PrivacyUnit

BY, REV = ('order', 'by', 'user'), ('user', 'rev_by', 'order')
HAS, SOLD = ('order', 'has', 'item'), ('item', 'rev_has', 'order')
SEES, KNOWS = ('user', 'sees', 'item'), ('user', 'knows', 'user')
IN, OF = ('item', 'in', 'category'), ('chat', 'of', 'user')
INTO = ('user', 'rev_of', 'chat')
CLICK = ('item', 'then', 'item')
WIDTHS = {'user': 3, 'order': 2, 'item': 4, 'category': 1, 'chat': 2}
ITEMS, CATEGORIES = 7, 3


def shop(
    seed: int = 0,
    n: int = 12,
    orders: dict[int, int] | None = None,
    changed: int | None = None,
) -> HeteroData:
    """Each person's rows are drawn from a stream of that person alone.

    Args:
        seed: of all streams.
        n: persons.
        orders: by person, how many orders it has; else 0 to 3.
        changed: a person all of whose rows are others.
    """
    items = random.Random(f'items {seed}')
    rows: dict[str, list[list[float]]] = {t: [] for t in WIDTHS}
    edges: dict[Any, list[tuple[int, int]]] = {
        e: [] for e in (BY, HAS, SEES, KNOWS, IN, OF, CLICK)
    }
    clicks = []
    for t, size in (('item', ITEMS), ('category', CATEGORIES)):
        rows[t] = [[items.gauss(0, 1)] * WIDTHS[t] for _ in range(size)]
    edges[IN] = [
        (i, items.randrange(CATEGORIES)) for i in range(ITEMS) if i % 3
    ]
    chats = random.Random(f'chats {seed}')
    for k in range(n // 3):
        rows['chat'].append([chats.gauss(0, 1) for _ in range(2)])
        for p in chats.sample(range(n), 1 + k % 3):
            edges[OF].append((k, p))
    for p in range(n):
        own = random.Random(f'{seed} {p} {p == changed}')
        rows['user'].append([own.gauss(0, 1) for _ in range(3)])
        count = own.randint(0, 3)
        count = count if orders is None else orders.get(p, count)
        for _ in range(count):
            edges[BY].append((len(rows['order']), p))
            for i in own.sample(range(ITEMS), own.randint(0, 3)):
                edges[HAS].append((len(rows['order']), i))
            rows['order'].append([own.gauss(0, 1) for _ in range(2)])
        for i in own.sample(range(ITEMS), own.randint(0, 2)):
            edges[SEES].append((p, i))
        for q in own.sample(range(n), min(n, 2)):
            edges[KNOWS].append((p, q))
        for _ in range(own.randint(0, 2)):
            edges[CLICK].append((own.randrange(ITEMS), own.randrange(ITEMS)))
            clicks.append(p)
    data = HeteroData()
    for t, width in WIDTHS.items():
        data[t].x = torch.tensor(rows[t]).view(-1, width)
    data['user'].y = torch.arange(n) * 5 % 3
    if changed is not None:
        data['user'].y[changed] = 2 - data['user'].y[changed]
    for e, pairs in edges.items():
        data[e].edge_index = torch.tensor(pairs).long().view(-1, 2).t()
    data[REV].edge_index = data[BY].edge_index.flip(0)
    data[INTO].edge_index = data[OF].edge_index.flip(0)
    data[SOLD].edge_index = data[HAS].edge_index.flip(0)
    data[CLICK].by = torch.tensor(clicks).long()
    return data


def declared(data: HeteroData, **changes: Any) -> PrivacyUnit:
    """The unit of a shop."""
    given = {
        'person': 'user',
        'owned': {'order': BY},
        'joint': {'chat': OF},
        'public': ('item', 'category'),
        'public_edges': (IN,),
        'edge_owner': {e: data[e].by for e in data.edge_types if e == CLICK},
        'same': torch.empty((2, 0), dtype=torch.int64),
    }
    return PrivacyUnit(data, **{**given, **changes})


def shared_items(batch: HeteroData) -> HeteroData:
    """One row of an item for all who have it, as loaders of PyG do."""
    found, back = batch['item'].n_id.unique(return_inverse=True)
    first = torch.full_like(found, len(back)).scatter_reduce(
        0, back, torch.arange(len(back)), 'amin'
    )
    for name in ('x', 'n_id', 'batch'):
        batch['item'][name] = batch['item'][name][first]
    for e in batch.edge_types:
        for end in (0, 1):
            if e[2 * end] == 'item':
                batch[e].edge_index[end] = back[batch[e].edge_index[end]]
    return batch
