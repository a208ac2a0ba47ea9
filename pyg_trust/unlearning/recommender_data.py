"""Readers of interactions, and of requests to forget them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.removal import Part, RemovalRequest
from pyg_trust.unlearning.similar import Lists, Row

# Where PyG's data sets keep ratings.
_RATINGS = ('edge_weight', 'edge_attr', 'rating', 'weight')

Names = Tensor | Iterable[int]
Pairs = Tensor | Iterable[tuple[int, int]]


class Change(NamedTuple):
    """Consequences of a request: who stays, and whose lists get shorter.

    Args:
        request (dict): the names, by their kind.
        named (dict): the same as nodes and edges of the whole graph.
        users (Tensor): bool: the users that stay.
        items (Tensor): bool: the items that stay.
        rows (list[Row]): the users whose lists get shorter.
        entries (int): a bound of the number of counts that change.
        recount (bool): whether to count anew.
    """

    request: dict[str, Any]
    named: dict[str, Any]
    users: Tensor
    items: Tensor
    rows: list[Row]
    entries: int
    recount: bool = False

    @property
    def steps(self) -> int:
        """The number of lists that leave or enter the counts."""
        sizes = [(len(row.items), row.stays.sum()) for row in self.rows]
        return sum((old > 0) + (new > 0) for old, new in sizes)


def read_interactions(
    data: Tensor | HeteroData,
    num_users: int | None,
    num_items: int | None,
    edge_type: EdgeType | None,
) -> tuple[Tensor, int, int]:
    """Read interactions and the numbers of users and items."""
    check_instance('interactions', data, Tensor, HeteroData)
    if isinstance(data, HeteroData):
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
        edges, (num_users, num_items) = store.get('edge_index'), sizes
    else:
        edges = data
        if edge_type is not None:
            raise ValueError(
                "'edge_type' needs a HeteroData (got a tensor of interactions)"
            )
    check_tensor('interactions', edges, torch.int64, (2, 'num_interactions'))
    num_users = check_integer('num_users', num_users, 1)  # type: ignore
    num_items = check_integer('num_items', num_items, 1)  # type: ignore
    return edges.cpu(), num_users, num_items


def asked(
    request: RemovalRequest, num_users: int
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Convert a request for the whole graph to users, items and interactions.

    Args:
        request (RemovalRequest): a request for nodes and edges; the names of
            items follow those of all users.
        num_users (int): the number of users, removed ones too.
    """
    part = request.parts.get(0, Part(whole=True))
    if request.graphs != [0] or part.whole or part.features or part.labels:
        raise ValueError(
            "'users' needs to be a request for nodes and edges of graph 0 "
            f'(got others of graphs {request.graphs})'
        )
    for arc in part.arcs:
        if not min(arc) < num_users <= max(arc):
            raise ValueError(
                "'users' needs a request for edges between a user and an item "
                f'(got {arc[0]} to {arc[1]}; items begin at {num_users})'
            )
    pairs = {(min(arc), max(arc) - num_users) for arc in part.arcs}
    users = [name for name in part.nodes if name < num_users]
    items = [name - num_users for name in part.nodes if name >= num_users]
    return users, items, sorted(pairs)


def listed(name: str, values: Any, shape: tuple[int | str, ...]) -> Tensor:
    """Convert integers to an int64 tensor."""
    if not isinstance(values, Tensor):
        check_instance(name, values, Iterable)
        try:
            values = torch.tensor(list(values))
        except (OverflowError, RuntimeError, TypeError, ValueError):
            raise TypeError(
                f"'{name}' needs to hold integers (got others)"
            ) from None
        if not values.numel():
            return torch.empty(0, dtype=torch.int64)
    check_tensor(name, values, torch.int64, shape)
    return values.detach().cpu()


def names_there(name: str, values: Names, there: Tensor) -> Tensor:
    """Convert names to a tensor, and refuse missing names.

    Args:
        name (str): the name of the argument.
        values (Tensor or Iterable): the names, as the user passed them.
        there (Tensor): bool, by name: whether the name is present.
    """
    made = listed(name, values, ('num',))
    known = (made >= 0) & (made < len(there))
    known &= there[made.clamp(0, len(there) - 1)]
    if not bool(known.all()):
        raise ValueError(
            f"'{name}' needs names that are there (got "
            f'{int(made[~known][0])}): it never was, or was removed before'
        )
    return made


def read_change(
    lists: Lists,
    users_there: Tensor,
    items_there: Tensor,
    users: Names | RemovalRequest,
    items: Names,
    interactions: Pairs,
) -> Change:
    """Read a request; refuse one of missing names.

    Args:
        lists (Lists): the present lists.
        users_there (Tensor): bool: the present users.
        items_there (Tensor): bool: the present items.
        users (list, Tensor or RemovalRequest): names, or a whole request.
        items (list or Tensor): names.
        interactions (list or Tensor): pairs of names.
    """
    n = len(users_there)
    if isinstance(users, RemovalRequest):
        for name, more in (('items', items), ('interactions', interactions)):
            if not isinstance(more, tuple) or more:
                raise ValueError(
                    f"'{name}' needs to be left out beside a request, which "
                    'names all that goes'
                )
        users, items, interactions = asked(users, n)
    named = {
        'users': names_there('users', users, users_there).unique(),
        'items': names_there('items', items, items_there).unique(),
    }
    if not isinstance(interactions, Tensor):
        made = listed('interactions', interactions, ('num', 2))
        interactions = made.view(-1, 2).t()
    check_tensor('interactions', interactions, torch.int64, (2, 'num'))
    pairs = interactions.unique(dim=1)
    for row, there in zip(pairs, (users_there, items_there), strict=True):
        names_there('interactions', row, there)
    if not sum(map(torch.numel, (*named.values(), pairs))):
        raise ValueError(
            "'users', 'items' or 'interactions' needs to name something "
            'to remove'
        )
    left, stay = users_there.clone(), items_there.clone()
    left[named['users']], stay[named['items']] = False, False
    lost: dict[int, list[int]] = {}
    for user, item in pairs.t().tolist():
        if item not in lists.of(user):
            raise ValueError(
                f"'interactions' needs pairs that are there (got {user}, "
                f'{item}): it never was, or was removed before'
            )
        lost.setdefault(user, []).append(item)
    touched = {*named['users'].tolist(), *lost}
    if named['items'].numel():
        edges = lists.pairs()
        touched.update(edges[0][~stay[edges[1]]].tolist())
    rows = []
    for user in sorted(touched):
        own = lists.of(user).copy()
        stays = stay.numpy()[own] & ~np.isin(own, lost.get(user, []))
        rows.append(Row(user, own, stays & bool(left[user])))
    request: dict[str, Any] = {
        name: value.tolist() for name, value in named.items()
    }
    request['interactions'] = pairs.t().tolist()
    request = {name: value for name, value in request.items() if value}
    whole = RemovalRequest(
        nodes=[*named['users'].tolist(), *(n + named['items']).tolist()],
        edges=pairs + torch.tensor([[0], [n]]),
    )
    entries = sum(len(row.items) ** 2 for row in rows)
    return Change(
        *(request, whole.parts[0].to_dict(), left, stay, rows),
        entries,
    )
