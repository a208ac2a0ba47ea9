"""Updates applied to an unlearner's graph, and the items that they touch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
)
from pyg_trust.removal import (
    NotThere,
    Part,
    RemovalRequest,
    Removed,
    remove_from_data,
)
from pyg_trust.unlearning.shards.building import SLICE, Builder
from pyg_trust.unlearning.shards.graph import (
    MASKS,
    canonical,
    kept_rows,
    select_rows,
    stacked_rows,
    touched_slices,
    without_features,
)
from pyg_trust.unlearning.shards.persons import (
    removed_persons,
    touched_by_persons,
)
from pyg_trust.unlearning.shards.state import State
from pyg_trust.update import NewNodes, Update, rows_of, with_edges

__all__ = ['Change', 'applied', 'played']

# Attributes that a graph may lack, false by default.
_MARKS = ('x_removed', 'by_hash')


class Change(NamedTuple):
    """Result of applying an update to the graph."""

    #: The graph after the update.
    data: Data
    #: The items of the old graph that differ in the new one.
    gone: Part
    #: The items of the new graph that differ in the old one.
    came: Part
    #: The ids to record in the ledger.
    request: dict[str, Any]


def applied(
    builder: Builder,
    state: State,
    update: Any,
    shard: Any,
    num_classes: int | None,
    *,
    light: bool = False,
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
        light=light,
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
    for graph, part in (state.data, change.gone), (data, change.came):
        for home, stage in touched_slices(graph, part, slices, key).items():
            first[home] = min(stage, first.get(home, stage))
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
    *,
    light: bool = False,
) -> Change:
    """Apply updates in their order, as one; ``light``: without features.

    ``homes`` maps the ids of new training nodes to their shards, and to
    whether these come from a later hash; ``used`` are all ids that nodes have
    or had, and ``removed`` the items that are gone.
    """
    x, n = data.x, int(data.num_nodes or 0)
    used = data.n_id if used is None else used
    now = without_features(data)
    now.source = torch.arange(n)
    rows = [x]
    for update in updates:
        now = _removed(now, update.part)
        if update.graphs or update.graph:
            raise ValueError(
                "'graphs' and 'graph' can't update one graph of nodes"
            )
        if update.nodes is not None:
            now, used = _with_nodes(now, update.nodes, rows, used)
        now = _changed(with_edges(now, update), update, rows)
    now = canonical(now)
    now.shard, late = _settled(now, homes)
    if late is not None:
        now.by_hash = late
    for name in _MARKS:
        if name in now and not bool(now[name].any()):
            del now[name]
    source = now.source
    del now.source
    gone, came = _difference(data, now, source)
    if not light:
        now.x = x
        if not torch.equal(source, torch.arange(n)):
            # Removed features are a row of zeros at the end.
            rows.append(torch.zeros(1, x.size(1), dtype=x.dtype))
            whole = stacked_rows(rows)
            now.x = kept_rows(select_rows(whole, source % whole.size(0)))
    request = _line(updates, now, source, came, removed or Removed())
    return Change(now, gone, came, request)


def _removed(now: Data, part: Part) -> Data:
    if part.labels:
        rows = rows_of(now.n_id, torch.tensor(part.labels))
        missing = rows[~now.train_mask[rows]]
        if missing.numel():
            raise NotThere(RemovalRequest(labels=now.n_id[missing]))
        now = _labelled(now, rows, torch.full_like(rows, -1))
    rest = Part(
        nodes=part.nodes,
        features=part.features,
        edges=part.edges,
        directed_edges=part.directed_edges,
    )
    if rest == Part():
        return now
    now = remove_from_data(now, rest)
    emptied = torch.tensor(part.features, dtype=torch.int64)
    now.source = now.source.index_fill(0, rows_of(now.n_id, emptied), -1)
    return now


def _with_nodes(
    now: Data, nodes: NewNodes, rows: list[Tensor], used: Tensor
) -> tuple[Data, Tensor]:
    k, ids = nodes.x.size(0), nodes.n_id
    if ids is None:
        ids = torch.arange(k) + 1 + int(used.max())
    taken = ids[torch.isin(ids, used)]
    if taken.numel():
        raise ValueError(
            f"'n_id' needs ids that no node has or had (got {int(taken[0])})"
        )
    now = copy.copy(now)
    come: dict[str, Any] = {
        **dict.fromkeys((*MASKS, *_MARKS), torch.zeros(k, dtype=torch.bool)),
        'n_id': ids,
        'y': nodes.y,
        'train_mask': nodes.train,
        'shard': torch.full((k,), -1),
        'source': _source(rows, nodes.x, 'nodes'),
    }
    for name, value in come.items():
        if name in now:
            now[name] = torch.cat([now[name], value])
    now.x = now.x.new_empty(now.n_id.numel(), 0)
    now.num_nodes = now.n_id.numel()
    return now, torch.cat([used, ids])


def _changed(now: Data, update: Update, rows: list[Tensor]) -> Data:
    if update.features is not None:
        ids, x = update.features
        now = copy.copy(now)
        place = rows_of(now.n_id, ids)
        source = _source(rows, x, 'features')
        now.source = now.source.index_copy(0, place, source)
        if 'x_removed' in now:
            now.x_removed = now.x_removed.index_fill(0, place, False)
    if update.labels is not None:
        ids, y = update.labels
        now = _labelled(now, rows_of(now.n_id, ids), y)
    return now


def _labelled(now: Data, rows: Tensor, y: Tensor) -> Data:
    now = copy.copy(now)
    now.y = now.y.index_copy(0, rows, y)
    now.train_mask = now.train_mask.index_copy(0, rows, y >= 0)
    return now


def _source(rows: list[Tensor], x: Tensor, name: str) -> Tensor:
    # Append new rows, and return their places in the stack of all rows.
    held = rows[0]
    check_tensor(name, x, held.dtype, ('k', held.size(1)))
    start = sum(each.size(0) for each in rows)
    rows.append(x)
    return torch.arange(start, start + x.size(0))


def _settled(
    now: Data, homes: Callable[[Tensor], tuple[Tensor, bool]]
) -> tuple[Tensor, Tensor | None]:
    # The shards of nodes, and which come from a later hash.
    shard = torch.where(now.train_mask, now.shard, -1)
    new = (now.train_mask & (shard < 0)).nonzero().view(-1)
    late = now.get('by_hash')
    if new.numel():
        home, hashed = homes(now.n_id[new])
        shard[new] = home
        if hashed and late is None:
            late = torch.zeros_like(now.train_mask)
        if late is not None:
            late = late.index_fill(0, new, hashed)
    return shard, None if late is None else late & now.train_mask


def _difference(before: Data, now: Data, source: Tensor) -> tuple[Part, Part]:
    # The items that differ, of the graph before and of the one after.
    ids, place = torch.cat([before.n_id, now.n_id]).unique(return_inverse=True)
    n = ids.numel()
    old, new = place.split([before.n_id.numel(), now.n_id.numel()])
    sides = []
    for rows, graph, held in (
        (old, before, torch.arange(old.numel())),
        (new, now, source),
    ):
        facts = torch.full((3, n), -2)
        label = torch.where(graph.shard >= 0, graph.y, -1)
        facts[:, rows] = torch.stack([held, label, graph.shard])
        arcs = rows[graph.edge_index]
        sides.append((facts, arcs[0] * n + arcs[1]))
    (was, cut), (is_now, come) = sides
    nodes = (was != is_now).any(0)

    def part(facts: Tensor, keys: Tensor, others: Tensor) -> Part:
        there = facts[1] > -2
        keys = keys[~torch.isin(keys, others)].unique()
        arcs = torch.stack([ids[keys // n], ids[keys % n]], dim=1)
        return Part(
            nodes=tuple(ids[nodes & there].tolist()),
            directed_edges=tuple(map(tuple, arcs.tolist())),
        )

    return part(was, cut, come), part(is_now, come, cut)


def _line(
    updates: Sequence[Update],
    now: Data,
    source: Tensor,
    came: Part,
    removed: Removed,
) -> dict[str, Any]:
    # The items removed for good, and those added again after a removal.
    asked = [each.remove for each in updates if each.remove is not None]
    request = RemovalRequest.batch(asked).to_dict() if asked else {}
    if asked and len(updates) > 1:
        request = _without(request, now, source)
    changed = now.n_id[torch.isin(now.n_id, torch.tensor(came.nodes))]
    rows = rows_of(now.n_id, changed)
    there: dict[str, Any] = {
        'directed_edges': came.directed_edges,
        'features': changed[source[rows] >= 0].tolist(),
        'labels': changed[now.train_mask[rows]].tolist(),
    }
    again = {
        kind: [list(e) if kind == 'directed_edges' else e for e in items]
        for kind, new in there.items()
        if (items := sorted({*new} & removed.of(kind)))
    }
    if again:
        request.setdefault('0', {})['again'] = again
    return request


def _without(
    request: Mapping[str, Any], now: Data, source: Tensor
) -> dict[str, Any]:
    # Leave out items that a later update of the list added again.
    part = RemovalRequest.from_dict(request).parts[0]
    ends = now.n_id[now.edge_index]
    edges = {*map(tuple, ends.t().tolist())}
    full = {*now.n_id[source >= 0].tolist()}
    trained = {*now.n_id[now.train_mask].tolist()}
    kept = Part(
        nodes=part.nodes,
        features=tuple(v for v in part.features if v not in full),
        labels=tuple(v for v in part.labels if v not in trained),
        directed_edges=tuple(e for e in part.arcs if e not in edges),
    )
    return {'0': kept.to_dict()} if kept != Part() else {}
