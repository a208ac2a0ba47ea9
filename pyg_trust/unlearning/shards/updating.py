"""Updates of an unlearner's graph, and the items that they touch.

Typed graphs are divided by person: an unlearner keeps the table of persons
and, beside it, all that they own.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust.removal import (
    NotThere,
    Part,
    RemovalRequest,
    Removed,
    remove_from_data,
    rows_of,
)
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.shards.building import SLICE, Builder
from pyg_trust.unlearning.shards.graph import (
    MASKS,
    canonical,
    kept_rows,
    select_rows,
    stacked_rows,
    touched_slices,
)
from pyg_trust.unlearning.shards.state import State
from pyg_trust.update import NewNodes, Update, with_edges

# Attributes that a graph may lack, false by default.
_MARKS = ('x_removed', 'by_hash')


class Items(NamedTuple):
    """Nodes and edges of a graph, by the ids of nodes."""

    nodes: Tensor
    arcs: Tensor


class Change(NamedTuple):
    """Result of applying an update to the graph."""

    #: The graph after the update.
    data: Data
    #: The items of the old graph that differ in the new one.
    gone: Items
    #: The items of the new graph that differ in the old one.
    came: Items
    #: The ids to record in the ledger.
    request: dict[str, Any]


def applied(
    builder: Builder,
    state: State,
    update: Any,
    shard: Any,
    num_classes: int | None,
) -> tuple[State, dict[int, int], dict[str, Any]]:
    """Apply an update as the user gives it.

    Returns the state with the new graph; for every shard to train again, the
    first stage that has seen what goes, or would if the update were undone;
    and the ids for the ledger.
    """
    updates, count = Update.of(update), builder.num_shards
    if not updates:
        raise ValueError("'update' needs to hold an update (got none)")
    if isinstance(shard, str):
        check_choice('shard', shard, ('hash',))
    elif shard is not None:
        check_instance('shard', shard, Mapping)
        for each in shard.values():
            check_integer('shard', each, 0, count - 1)
    persons = state.data.get('persons')
    left = [] if persons is None else removed_persons(updates, persons.unit)
    change = played(
        state.data,
        updates,
        lambda n_id: builder.homes(n_id, state, shard),
        state.rows,
        state.ledger.removed,
    )
    data, first = change.data, dict[int, int]()
    if persons is not None:
        data.persons = persons.without(left)
    _check_classes(state, data, num_classes)
    come = data.n_id[~torch.isin(data.n_id, state.rows)]
    after = state._replace(data=data, rows=torch.cat([state.rows, come]))
    if persons is not None:
        first = touched_by_persons(state.data, data, count)
        return after, first, change.request
    key, slices = rng.derive(state.seed, SLICE), builder.recipe.slices
    for graph, items in (state.data, change.gone), (data, change.came):
        for home, at in touched_slices(graph, *items, slices, key).items():
            first[home] = min(at, first.get(home, at))
    return after, dict(sorted(first.items())), change.request


def _check_classes(state: State, left: Data, num_classes: int | None) -> None:
    before, classes = state.data, state.num_classes
    trained = left.y[left.shard >= 0]
    if not trained.numel():
        raise ValueError('the request would leave no training node')
    largest = int(trained.max())
    if largest >= classes:
        raise ValueError(
            f"'labels' needs to be below {classes} (got {largest}): give "
            "'num_classes' at the start for classes to come"
        )
    if num_classes is not None:
        return
    old, new = (
        d.y[d.shard >= 0].bincount(minlength=classes) for d in (before, left)
    )
    lost = ((old > 0) & (new == 0)).nonzero().view(-1).tolist()
    if lost:
        what = f'class {lost[0]} without a training node'
    elif left.y.max() != before.y.max():
        # Other nodes count, too: models have that many outputs.
        what = f'no node of the largest label {int(before.y.max())}, or larger'
    else:
        return
    raise ValueError(
        f'the request would leave {what}, so that a fresh start would not '
        "know of it: give 'num_classes' to allow that"
    )


def played(
    data: Data,
    updates: Sequence[Update],
    homes: Callable[[Tensor], tuple[Tensor, bool]],
    used: Tensor | None = None,
    removed: Removed | None = None,
) -> Change:
    """Apply updates in their order, as one.

    ``homes`` maps the ids of new training nodes to their shards, and to
    whether these come from a later hash; ``used`` are all ids that nodes have
    or had, and ``removed`` the items that are gone.
    """
    n, used = int(data.num_nodes or 0), data.n_id if used is None else used
    # The places of features in the stack of all rows, -1 for a removed one.
    now, stack = copy.copy(data), [data.x]
    now.x, now.source = torch.empty(n, 0, dtype=data.x.dtype), torch.arange(n)
    for update in updates:
        if update.graphs or update.graph:
            raise ValueError(
                "'graphs' and 'graph' can't update one graph of nodes"
            )
        now = _removed(now, update.part)
        if update.nodes is not None:
            now, used = _with_nodes(now, update.nodes, used, stack)
        now = with_edges(now, update)
        if update.features is not None:
            ids, x = update.features
            rows = rows_of(now.n_id, ids)
            come = _stacked(stack, x, 'features')
            now.source = now.source.index_copy(0, rows, come)
            if 'x_removed' in now:
                now.x_removed = now.x_removed.index_fill(0, rows, False)
        if update.labels is not None:
            ids, y = update.labels
            _set_labels(now, rows_of(now.n_id, ids), y)
    now = canonical(now)
    _settled(now, homes)
    for name in _MARKS:
        if name in now and not bool(now[name].any()):
            del now[name]
    source = now.source
    del now.source
    gone, came = _difference(data, now, source)
    now.x = data.x
    if not torch.equal(source, torch.arange(n)):
        # Removed features are a row of zeros at the end.
        stack.append(torch.zeros(1, data.x.size(1), dtype=data.x.dtype))
        whole = stacked_rows(stack)
        now.x = kept_rows(select_rows(whole, source % whole.size(0)))
    request = _line(updates, now, came, removed or Removed())
    return Change(now, gone, came, request)


def _removed(now: Data, part: Part) -> Data:
    if part.labels:
        rows = rows_of(now.n_id, torch.tensor(part.labels))
        missing = rows[~now.train_mask[rows]]
        if missing.numel():
            raise NotThere(RemovalRequest(labels=now.n_id[missing]))
        now = copy.copy(now)
        _set_labels(now, rows, torch.full_like(rows, -1))
    rest = part._replace(labels=())
    if rest == Part():
        return copy.copy(now)
    now = remove_from_data(now, rest)
    bare = rows_of(now.n_id, torch.tensor(part.features, dtype=torch.int64))
    now.source = now.source.index_fill(0, bare, -1)
    return now


def _with_nodes(
    now: Data, nodes: NewNodes, used: Tensor, stack: list[Tensor]
) -> tuple[Data, Tensor]:
    k, ids = nodes.x.size(0), nodes.n_id
    if ids is None:
        ids = torch.arange(k) + 1 + int(used.max())
    taken = ids[torch.isin(ids, used)]
    if taken.numel():
        raise ValueError(
            f"'n_id' needs ids that no node has or had (got {int(taken[0])})"
        )
    come: dict[str, Any] = {
        **dict.fromkeys((*MASKS, *_MARKS), torch.zeros(k, dtype=torch.bool)),
        'n_id': ids,
        'y': nodes.y,
        'train_mask': nodes.train,
        'shard': torch.full((k,), -1),
        'source': _stacked(stack, nodes.x, 'nodes'),
    }
    for name, value in come.items():
        if name in now:
            now[name] = torch.cat([now[name], value])
    now.num_nodes = now.n_id.numel()
    now.x = now.x.new_empty(now.num_nodes, 0)
    return now, torch.cat([used, ids])


def _stacked(stack: list[Tensor], x: Tensor, name: str) -> Tensor:
    # Append new rows, and return their places.
    check_tensor(name, x, stack[0].dtype, ('k', stack[0].size(1)))
    start = sum(len(each) for each in stack)
    stack.append(x)
    return torch.arange(start, start + len(x))


def _set_labels(now: Data, rows: Tensor, y: Tensor) -> None:
    now.y = now.y.index_copy(0, rows, y)
    now.train_mask = now.train_mask.index_copy(0, rows, y >= 0)


def _settled(
    now: Data, homes: Callable[[Tensor], tuple[Tensor, bool]]
) -> None:
    # Set the shards of nodes, and mark those that come from a later hash.
    shard = torch.where(now.train_mask, now.shard, -1)
    new = (now.train_mask & (shard < 0)).nonzero().view(-1)
    late = now.get('by_hash', torch.zeros_like(now.train_mask))
    if new.numel():
        home, hashed = homes(now.n_id[new])
        shard[new] = home
        late = late.index_fill(0, new, hashed)
    now.shard, now.by_hash = shard, late & now.train_mask


def _difference(
    before: Data, now: Data, source: Tensor
) -> tuple[Items, Items]:
    # The items that differ, of the graph before and of the one after.
    ids, place = torch.cat([before.n_id, now.n_id]).unique(return_inverse=True)
    n = ids.numel()
    sides = before, now
    places = place.split([before.n_id.numel(), now.n_id.numel()])
    row = torch.full((2, n), -1)
    for each, at in zip(row, places, strict=True):
        each[at] = torch.arange(at.numel())
    both = (row >= 0).all(0)
    a, b = row[:, both]
    # Labels count in training.
    labels = [torch.where(side.shard >= 0, side.y, -1) for side in sides]
    differs = torch.ones(n, dtype=torch.bool)
    differs[both] = (
        (a != source[b])
        | (before.shard[a] != now.shard[b])
        | (labels[0][a] != labels[1][b])
    )
    keys = [
        at[side.edge_index[0]] * n + at[side.edge_index[1]]
        for side, at in zip(sides, places, strict=True)
    ]

    def items(at: Tensor, mine: Tensor, others: Tensor) -> Items:
        # Both are sorted, as edges are.
        end = others.new_full((1,), -1)
        place = torch.searchsorted(others, mine)
        mine = mine[torch.cat([others, end])[place] != mine].unique()
        arcs = torch.stack([ids[mine // n], ids[mine % n]])
        return Items(ids[at[differs[at]]], arcs)

    return items(places[0], *keys), items(places[1], *keys[::-1])


def _bare(data: Data) -> Tensor:
    # Which nodes have lost their features.
    none = torch.zeros_like(data.train_mask)
    return data.get('x_removed', none)


def _line(
    updates: Sequence[Update], now: Data, came: Items, removed: Removed
) -> dict[str, Any]:
    # The items removed for good, and those added again after a removal.
    asked = [each.remove for each in updates if each.remove is not None]
    request = RemovalRequest.batch(asked).to_dict() if asked else {}
    bare = _bare(now)
    if asked and len(updates) > 1:
        # Leave out items that a later update of the list added again.
        part = RemovalRequest.from_dict(request).parts[0]
        edges = {*map(tuple, now.n_id[now.edge_index].t().tolist())}
        full = {*now.n_id[~bare].tolist()}
        trained = {*now.n_id[now.train_mask].tolist()}
        kept = Part(
            nodes=part.nodes,
            features=tuple(v for v in part.features if v not in full),
            labels=tuple(v for v in part.labels if v not in trained),
            directed_edges=tuple(e for e in part.arcs if e not in edges),
        )
        request = {'0': kept.to_dict()} if kept != Part() else {}
    rows = rows_of(now.n_id, came.nodes)
    there: dict[str, Any] = {
        'directed_edges': map(tuple, came.arcs.t().tolist()),
        'features': came.nodes[~bare[rows]].tolist(),
        'labels': came.nodes[now.train_mask[rows]].tolist(),
    }
    again = {
        kind: [list(e) if kind == 'directed_edges' else e for e in items]
        for kind, new in there.items()
        if (items := sorted({*new} & removed.of(kind)))
    }
    if again:
        request.setdefault('0', {})['again'] = again
    return request


# Persons #####################################################################


@dataclass(frozen=True)
class Persons:
    """All that persons own, beside their table."""

    #: Features and edges of all types, and the ids of persons.
    graph: HeteroData
    #: The declaration of who owns what of it.
    unit: PrivacyUnit

    @classmethod
    def of(cls, data: HeteroData, unit: PrivacyUnit) -> tuple[Data, 'Persons']:
        """Return the table of persons, and a copy of what they own."""
        check_instance('data', data, HeteroData)
        table = unit.table(data)
        if bool((table.n_id.diff() <= 0).any()):
            raise ValueError(
                f"'data' needs persons, rows of {unit.person!r}, in ascending "
                "order of their ids 'n_id'"
            )
        graph = HeteroData()
        for t in data.node_types:
            x = data[t].get('x')
            graph[t].num_nodes = data[t].num_nodes
            if x is None:
                continue
            if (
                not isinstance(x, Tensor)
                or x.layout != torch.strided
                or x.dim() != 2
                or not x.is_floating_point()
                or not bool(x.isfinite().all())
            ):
                raise ValueError(
                    f"'data' needs features 'x' of {t!r} of the shape "
                    '[num_rows, channels], dense, floating point and finite'
                )
            graph[t].x = x.detach().cpu().clone()
        graph[unit.person].n_id = table.n_id
        for e in data.edge_types:
            for key in data[e]:
                if key != 'edge_index':
                    raise ValueError(
                        f"'data' has {key!r} of {e}, which models do not "
                        'receive: of edges they receive their ends alone; '
                        'take it off first'
                    )
            graph[e].edge_index = data[e].edge_index.cpu().clone()
        # Not the caller's tensors, which the caller may write to.
        edges = {id(unit._edges): dict(graph.edge_index_dict)}
        return table, cls(graph, copy.deepcopy(unit, edges))

    @property
    def person(self) -> str:
        """The node type of persons."""
        assert self.unit.person is not None
        return self.unit.person

    def whole(self) -> HeteroData:
        """Return the input of a model of all rows."""
        return _inputs(self.graph)

    def within(self, n_id: Tensor) -> HeteroData:
        """Return what persons own alone or together, with all public rows."""
        rows = rows_of(self.graph[self.person].n_id, n_id)
        return _inputs(self.unit._inside(self.graph, rows))

    def digest_of(self, n_id: Tensor | None) -> str:
        """Hash what some persons own, or all with the public rows."""
        data = self.whole() if n_id is None else self.within(n_id)
        held = {**data.x_dict, **data.edge_index_dict}
        if n_id is not None:
            for key in (*self.unit.public, *self.unit.public_edges):
                held.pop(key, None)
        keys = sorted(held, key=repr)
        return fingerprint(
            self.person, *(part for k in keys for part in (repr(k), held[k]))
        )

    def without(self, n_id: Iterable[int]) -> 'Persons':
        """Return what is left after the removal of persons."""
        ids = torch.tensor([*n_id], dtype=torch.int64)
        rows = rows_of(self.graph[self.person].n_id, ids)
        graph, unit = self.unit._rest(self.graph, rows)
        for t in graph.node_types:
            if t != self.person:
                # Positions in the graph before.
                del graph[t].n_id
        return Persons(graph, unit)

    def assumptions(self) -> tuple[str, ...]:
        """Return what a report states about the unit, without data."""
        of = self.unit.summary()
        owned = ', '.join([self.person, *of['owned']])
        public = ', '.join(of['declared_public']) or 'nothing'
        joint = ', '.join(of['joint'])
        return (
            f'a person is its rows of {owned}, as the privacy unit declares; '
            f'declared public: {public}, of which every model sees all',
            f'rows of persons of several shards ({joint}) are in the '
            'training of none',
        )[: 2 if joint else 1]


def removed_persons(updates: Iterable[Update], unit: PrivacyUnit) -> list[int]:
    """Return the persons that updates remove; refuse all other updates."""
    ids: list[int] = []
    for each in updates:
        asked = each.remove
        units = {} if asked is None else asked._units
        for digest, other in units.items():
            if digest != unit.digest and not (other and unit._agrees(other)):
                raise ValueError(
                    "'request' needs to name persons of the unlearner's "
                    "'unit', or of one that is declared alike for what "
                    'remains (got one of another graph or declaration, or a '
                    'copy of a request)'
                )
        ids += each.part.nodes
        if each.part != Part(nodes=each.part.nodes) or each.edits:
            raise ValueError(
                "'update' needs to be a RemovalRequest(persons=..., unit=...) "
                "alone, as the unlearner has a 'unit': fit a new one to rows "
                'that came or changed'
            )
    return ids


def touched_by_persons(
    before: Data, after: Data, num_shards: int
) -> dict[int, int]:
    """Return the shards whose training data differ, from the first stage on.

    Those of removed persons and, for joint rows that stay, of their other
    owners.
    """

    def held(table: Data, shard: int) -> tuple[str, list[int]]:
        inside = table.shard == shard
        ids = table.n_id[inside]
        return table.persons.digest_of(ids), table.y[inside].tolist()

    return {
        i: 0 for i in range(num_shards) if held(before, i) != held(after, i)
    }


def _inputs(graph: HeteroData) -> HeteroData:
    # What models receive.
    made = HeteroData()
    for t in graph.node_types:
        if 'x' in graph[t]:
            made[t].x = graph[t].x
    for e in graph.edge_types:
        made[e].edge_index = graph[e].edge_index
    return made
