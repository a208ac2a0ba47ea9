"""Readers of interactions, and of requests to forget them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from pyg_trust._checks import check_instance, check_integer
from pyg_trust._checks.graphs import plain_index, with_edge_index
from pyg_trust.removal import (
    NOT_THERE,
    Item,
    NodeIds,
    NotThere,
    Part,
    RemovalRequest,
    integers,
    pairs_of,
)
from pyg_trust.unlearning.similar import Lists, Row

# Where PyG's data sets keep ratings.
_RATINGS = ('edge_weight', 'edge_attr', 'rating', 'weight')

Names = Tensor | Iterable[int]
Pairs = Tensor | Iterable[tuple[int, int]]


class Change(NamedTuple):
    """Consequences of a request: who stays, and whose lists get shorter.

    ``request`` has ids by kind, ``named`` the same as nodes and edges of the
    whole graph; ``keep`` marks the interactions that stay.
    """

    request: dict[str, Any]
    named: dict[str, Any]
    users: Tensor
    items: Tensor
    keep: np.ndarray
    rows: list[Row]
    recount: bool = False

    @property
    def entries(self) -> int:
        """A bound of the number of counts that change."""
        return sum(len(row.items) ** 2 for row in self.rows)


class Ids(NamedTuple):
    """Ids of users and items: ``n_id`` of their types, else positions.

    In requests for the whole graph an item has its id plus ``offset``, one
    more than the largest id of a user.
    """

    users: NodeIds
    items: NodeIds
    offset: int

    @classmethod
    def of_tensors(
        cls, n_id: Sequence[Tensor | None], num_users: int
    ) -> 'Ids':
        """Make the ids of the tensors that a state holds."""
        users, items = (NodeIds(each) for each in n_id)
        return cls(users, items, users.next(num_users))

    def request(
        self,
        users: Names | None,
        items: Names | None,
        interactions: Pairs | None,
    ) -> dict[str, Any]:
        """Convert ids to nodes and edges of a request for the whole graph."""
        named: dict[str, Any] = {}
        nodes = [*integers('users', () if users is None else users)]
        for item in integers('items', () if items is None else items):
            nodes.append(item + self.offset)
        if users is not None or items is not None:
            named['nodes'] = nodes
        if interactions is not None:
            pairs = pairs_of('interactions', interactions)
            named['edges'] = [(u, v + self.offset) for u, v in pairs]
        return named


def read_interactions(
    data: Tensor | HeteroData,
    num_users: int | None,
    num_items: int | None,
    edge_type: EdgeType | None,
) -> tuple[Tensor, int, int, Ids]:
    """Read interactions, the numbers of users and items, and their ids."""
    check_instance(
        'interactions', data, Tensor, HeteroData, list, tuple, np.ndarray
    )
    n_id: list[Tensor | None] = [None, None]
    if isinstance(data, HeteroData):
        data = with_edge_index(data)
        types = [edge_type] if edge_type is not None else data.edge_types
        if len(types) != 1 or types[0] not in data.edge_types:
            raise ValueError(
                f"'edge_type' needs to be one of {data.edge_types} (got "
                f'{edge_type!r})'
            )
        store = data[types[0]]
        for name in _RATINGS:
            rating = store.get(name)
            if rating is None:
                continue
            if not bool((torch.as_tensor(rating) == 1).all()):
                raise ValueError(
                    "'interactions' can't have ratings other than 1 in "
                    f'{name!r}: keep those that count, and drop it'
                )
        sizes = [data[types[0][end]].num_nodes for end in (0, 2)]
        for what, given, found in (
            ('num_users', num_users, sizes[0]),
            ('num_items', num_items, sizes[1]),
        ):
            if given is not None and given != found:
                raise ValueError(
                    f"'{what}' needs to equal the graph's, {found}, or to be "
                    f'left out (got {given})'
                )
        n_id = [
            NodeIds.of_data(data[name], f"data['{name}']").n_id
            for name in (types[0][0], types[0][2])
        ]
        edges, (num_users, num_items) = store.get('edge_index'), sizes
    else:
        edges = data
        if edge_type is not None:
            raise ValueError(
                "'edge_type' needs a HeteroData (got a tensor of interactions)"
            )
    if num_users is None or num_items is None:
        lacking = 'num_users' if num_users is None else 'num_items'
        raise ValueError(
            f"'{lacking}' needs to be given: a tensor of interactions needs "
            'num_users and num_items, as fit(interactions, num_users, '
            'num_items)'
        )
    edges = plain_index('interactions', edges)
    num_users = check_integer('num_users', num_users, 1)
    num_items = check_integer('num_items', num_items, 1)
    lows, highs = ([0, 0], [-1, -1])
    if edges.numel():
        lows, highs = edges.amin(1).tolist(), edges.amax(1).tolist()
    if highs[0] < num_users <= lows[1] and highs[1] < num_users + num_items:
        raise ValueError(
            "'interactions' needs items that are numbered from 0 on (got "
            f'{num_users} and more, as if users and items were numbered '
            'together): fit(torch.stack([edge_index[0], edge_index[1] - '
            'num_users]), num_users, num_items)'
        )
    return edges.cpu(), num_users, num_items, Ids.of_tensors(n_id, num_users)


def rows_there(
    name: str, values: Names, ids: NodeIds, there: Tensor
) -> tuple[Tensor, Tensor]:
    """Convert ids to rows, and mark the rows that are there."""
    rows = ids.rows_of(name, values, len(there))
    return rows, there[rows]


def read_change(
    lists: Lists,
    users_there: Tensor,
    items_there: Tensor,
    ids: Ids,
    request: RemovalRequest,
) -> Change:
    """Read a request for the whole graph; refuse one of missing items."""
    part = request.parts.get(0, Part(whole=True))
    if request.graphs != [0] or part.whole or part.features or part.labels:
        raise ValueError(
            "'request' needs to name nodes and edges of graph 0: users, items "
            f'and interactions (got others of graphs {request.graphs})'
        )
    kinds = (ids.users, users_there), (ids.items, items_there)

    def row(node: int) -> int:
        # The row of a user or of an item; -1 if it is not there.
        of, there = kinds[node >= ids.offset]
        node -= ids.offset * (node >= ids.offset)
        found = int(of.rows(torch.tensor(node)))
        return found if 0 <= found < len(there) and there[found] else -1

    missing: list[Item] = []
    named: tuple[list[int], list[int]] = ([], [])
    for node in part.nodes:
        found = row(node)
        named[node >= ids.offset].append(found)
        missing += [(0, 'nodes', node)] * (found < 0)
    keep = np.ones(len(lists.item), dtype=bool)
    pairs = []
    for kind in ('edges', 'directed_edges'):
        for arc in getattr(part, kind):
            if not min(arc) < ids.offset <= max(arc):
                raise ValueError(
                    "'request' needs edges between a user and an item (got "
                    f'{arc[0]} to {arc[1]}; items begin at {ids.offset})'
                )
            user, item = row(min(arc)), row(max(arc))
            own = lists.of(user) if min(user, item) >= 0 else np.empty(0)
            place = int(np.searchsorted(own, item))
            if place == len(own) or own[place] != item:
                missing.append((0, kind, arc))
                continue
            keep[lists.start[user] + place] = False
            pairs.append((user, item))
    if gone := RemovalRequest.of_items(missing):
        raise NotThere(gone, _lacking(missing[0], ids.offset))
    users, items = (sorted({*each}) for each in named)
    left, stay = users_there.clone(), items_there.clone()
    left[users], stay[items] = False, False
    for user in users:
        keep[lists.start[user] : lists.start[user + 1]] = False
    if items:
        keep &= stay.numpy()[lists.item]
    lost = np.searchsorted(lists.start, np.flatnonzero(~keep), 'right') - 1
    rows = [
        Row(user, lists.of(user), keep[slice(*lists.start[user : user + 2])])
        for user in sorted({*users, *lost.tolist()})
    ]
    ends = torch.tensor(sorted({*pairs}), dtype=torch.int64).view(-1, 2).t()
    told = {
        'users': ids.users.of(torch.tensor(users).long()).tolist(),
        'items': ids.items.of(torch.tensor(items).long()).tolist(),
        'interactions': torch.stack(
            [ids.users.of(ends[0]), ids.items.of(ends[1])]
        )
        .t()
        .tolist(),
    }
    # Both directions of an interaction are one.
    whole = RemovalRequest(**ids.request(*told.values()))
    request_ = {name: value for name, value in told.items() if value}
    return Change(request_, whole.parts[0].to_dict(), left, stay, keep, rows)


def _lacking(item: Item, offset: int) -> str:
    # An error in the words of users and items.
    _, kind, what = item
    if kind == 'nodes':
        which = f'item {what - offset}' if what >= offset else f'user {what}'
    else:
        which = f'interaction ({min(what)}, {max(what) - offset})'
    return which + NOT_THERE
