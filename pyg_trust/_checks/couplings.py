"""Detection of columns of typed tables that were made from other persons.

Everything is decided by equality of numbers, to rounding, in more rows than
agree by chance: a column that merely correlates is let pass.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust._checks.tables import (
    columns,
    follows,
    lags,
    shares_rows,
    tells_counts,
    tells_neighbors,
)
from pyg_trust.graph.ragged import ranges

EdgeType = tuple[str, str, str]

# Rows back in which a lagged column is searched for.
_LAGS = 8
# Larger tables are tested on this many rows; for lags of any length, on this
# many numbers.
_MOST, _CELLS = 2**16, 2**22


@dataclass(frozen=True)
class Owners:
    """Owners of rows and edges, as a privacy unit declares them.

    Args:
        person (str or None): the table of persons.
        public (tuple[str, ...]): node types of nobody.
        joint (tuple[str, ...]): node types of rows of several persons.
        public_edges (tuple): public edge types.
        ptr (dict[str, Tensor]): where the owners of each row start.
        who (dict[str, Tensor]): the owners.
        edge_owner (dict): the owner of each edge, by edge type.
    """

    person: str | None
    public: tuple[str, ...]
    joint: tuple[str, ...]
    public_edges: tuple[EdgeType, ...]
    ptr: Mapping[str, Tensor]
    who: Mapping[str, Tensor]
    edge_owner: Mapping[EdgeType, Tensor]

    def only(self, node_type: str) -> Tensor:
        """Return the only owner of each row, -1 if it has several."""
        ptr, who = self.ptr[node_type], self.who[node_type]
        if ptr.numel() == who.numel() + 1:
            return who
        return torch.where(ptr.diff() == 1, who[ptr[:-1]], -1)

    def parts(self, node_type: str, later: Tensor, before: Tensor) -> Tensor:
        """Return a mask of the pairs whose earlier row has another owner.

        Args:
            node_type (str): the type of the rows.
            later (Tensor): int64, ``[k]``: the later row of each pair.
            before (Tensor): int64, ``[k]``: the earlier one; it counts if one
                of its owners does not own the later row.
        """
        ptr, who = self.ptr[node_type], self.who[node_type]
        if node_type not in self.joint:
            return who[later] != who[before]
        width = int(who.max()) + 1 if who.numel() else 1

        def owned(rows: Tensor) -> tuple[Tensor, Tensor]:
            count = ptr[rows + 1] - ptr[rows]
            pair = torch.arange(len(rows)).repeat_interleave(count)
            # Ascending, as the owners of a row are.
            return pair, pair * width + who[ranges(ptr[rows], count)]

        held, (pair, key) = owned(later)[1], owned(before)
        place = torch.searchsorted(held, key).clamp(max=len(held) - 1)
        out = torch.zeros(len(later), dtype=torch.bool)
        return out.index_fill(0, pair[held[place] != key], True)

    def strange(
        self, edge_type: EdgeType, index: Tensor, node_type: str, at: Tensor
    ) -> Tensor:
        """Return a mask of edges whose owners differ; their data are private.

        Args:
            edge_type (tuple[str, str, str]): their type.
            index (Tensor): int64, ``[2, k]``: the edges.
            node_type (str): the type of the rows.
            at (Tensor): int64, ``[k]``: the positions of the edges.
        """
        none = torch.zeros(index.size(1), dtype=torch.bool)
        if node_type in self.public:
            return none | (edge_type not in self.public_edges)
        if node_type in self.joint:
            return none
        ends = zip(edge_type[::2], index, strict=True)
        who = [self.only(t)[i] for t, i in ends if t not in self.public]
        if edge_type in self.edge_owner:
            who.append(self.edge_owner[edge_type][at])
        if len(who) == 1:
            return none
        return (
            (who[0] < 0) | (who[0] != who[-1]) | (who[0] != who[len(who) // 2])
        )


def check_values(data: HeteroData, owners: Owners, *, distinct: bool) -> None:
    """Refuse columns that were made from rows or edges of other persons.

    Found are counts of edges and of persons, and what rises with them; sums,
    averages and extremes of the rows at the other ends, or of their owners,
    also if they were copied to rows of another table; and another row's value,
    or the change since, where that is the row before in the table, in time or
    at the same public row, or the only one at the other end of an edge.

    Args:
        data (HeteroData): the graph.
        owners (Owners): who owns what.
        distinct (bool): whether equal rows of two tables are declared to be
            a coincidence.

    Raises:
        ValueError: naming the table, the attribute and the edge type.
    """
    copied: dict[str, list[Any]] = {}
    for e in data.edge_types:
        index = data[e].edge_index
        ways = [(e[0], e[2], index), (e[2], e[0], index.flip(0))]
        if e[0] == e[2]:
            # Acquaintances in both directions, together.
            ways.append((e[0], e[0], torch.cat([index, index.flip(0)], 1)))
        for t, other, ends in ways:
            some = _some(ends[0], int(data[t].num_nodes))
            ends, at = ends[:, some], some % max(index.size(1), 1)
            strange = owners.strange(e, index[:, at], t, at)
            if strange.any():
                # Without a person's own edges, and with them.
                seen = [ends] if strange.all() else [ends[:, strange], ends]
                if t not in copied:
                    copied[t] = list(_copied(data, owners, t))
                for edges in seen:
                    _check_edges(data, owners, e, t, other, edges, copied[t])
    for t in owners.ptr:
        _check_order(data, owners, t)
    tables = {
        t: x
        for t in owners.ptr
        if t not in owners.joint
        and isinstance(x := data[t].get('x'), Tensor)
        and x.layout == torch.strided
        and x.dim() == 2
    }
    for a, b in () if distinct else combinations(tables, 2):
        if shares_rows(tables[a], owners.who[a], tables[b], owners.who[b]):
            raise ValueError(
                f"'same' is needed: {a!r} and {b!r} hold the same rows "
                'under different names; name the persons who are one, or '
                'none, int64 [2, 0]'
            )


def _check_edges(
    data: HeteroData,
    owners: Owners,
    edge_type: EdgeType,
    node_type: str,
    other: str,
    ends: Tensor,
    copied: list[tuple[str, str, Tensor, Tensor]],
) -> None:
    # Columns of a type against the edges that end in it, and their senders.
    n = int(data[node_type].num_nodes)
    some = torch.arange(n)[:: _stride(n)]
    counts = [torch.bincount(ends[0], minlength=n)]
    senders = [(other, ends)]
    if other in owners.ptr and other not in owners.joint:
        persons = torch.stack([ends[0], owners.only(other)[ends[1]]])
        if other != owners.person:
            key = persons[0] * (int(persons[1].max()) + 1) + persons[1]
            once = key.unique() // (int(persons[1].max()) + 1)
            counts.append(torch.bincount(once, minlength=n))
            if owners.person is not None:
                senders.append((owners.person, persons))
    told = [(node_type, k, x, None) for k, x in columns(data[node_type])]
    for table, name, x, there in (*told, *copied):
        rows = some if there is None else some[there[some]]
        if any(tells_counts(x[rows], count[rows]) for count in counts):
            _refuse(table, name, f'counts or ranks the edges {edge_type}')
        for sender, edges in senders:
            if there is not None:
                edges = edges[:, there[edges[0]]]
            for _, y in columns(data[sender]):
                if tells_neighbors(x, y, edges):
                    _refuse(
                        table,
                        name,
                        f'sums up {sender!r} over the edges {edge_type}',
                    )


def _copied(
    data: HeteroData, owners: Owners, node_type: str
) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    # Columns of tables whose rows have one row of a type, with one value for
    # each of it, as what is copied from there has; and the rows that have one.
    n = int(data[node_type].num_nodes)
    for e in data.edge_types:
        for way in (0, 1):
            table = e[2 - 2 * way]
            rows, at = data[e].edge_index[[way, 1 - way]]
            if (
                e[2 * way] != node_type
                or table not in owners.ptr
                or not at.numel()
                or int(at.bincount().max()) > 1
            ):
                continue
            some = _some(rows, n)
            rows, at = rows[some], at[some]
            there = torch.zeros(n, dtype=torch.bool).index_fill(0, rows, True)
            last = torch.zeros(n, dtype=torch.int64)
            last[rows] = at
            for name, x in columns(data[table]):
                one = (x[at] == x[last[rows]]).all(0)
                if one.any():
                    yield table, name, x[last][:, one], there


def _check_order(data: HeteroData, owners: Owners, node_type: str) -> None:
    # Columns of a type against rows before, which are another person's.
    store = data[node_type]
    given = [(k, x) for k, x in columns(store) if _is_dense(store[k])]
    names = [key for key, x in given for _ in range(x.size(1))]
    for later, before, where in _orders(data, owners, node_type):
        strange = owners.parts(node_type, later, before)
        c = follows([x for _, x in given], later[strange], before[strange])
        if c is not None:
            _refuse(node_type, names[c], f'holds another, {where}')
    for order, where in _sequences(data, node_type) if names else ():
        # Some columns are lags of any length: all rows, if they are few.
        order = order[: _CELLS // len(names)]
        table = [x[order] for _, x in given]
        for k in lags(table, _LAGS + 1):
            later = torch.arange(k, len(order))
            strange = owners.parts(node_type, order[later], order[later - k])
            later = later[strange]
            c = follows(table, later, later - k, tries=len(order))
            if c is not None:
                _refuse(node_type, names[c], f'holds another, {k} {where}')
    for e in data.edge_types:
        if node_type not in e[::2] or not {*owners.public} & {*e[::2]}:
            continue
        rows, groups = _grouped(data, e, node_type)
        if not rows.numel() or rows.unique().numel() < rows.numel():
            continue
        first = torch.ones_like(groups, dtype=torch.bool)
        first[1:] = groups[1:] != groups[:-1]
        place = torch.arange(rows.numel())
        rank = place - place[first][first.cumsum(0) - 1]
        if int(first.sum()) < 3:
            continue
        for key, x in given:
            if tells_counts(x[rows], rank):
                _refuse(node_type, key, f'counts earlier edges {e}')


def _orders(
    data: HeteroData, owners: Owners, node_type: str
) -> Iterator[tuple[Tensor, Tensor, str]]:
    # Rows and those before them: in the table, in time, at a public row.
    n = int(data[node_type].num_nodes)
    for order, where in _sequences(data, node_type):
        order = order[:_MOST]
        for k in range(1, min(_LAGS, n - 8) + 1):
            yield order[k:], order[:-k], f'{k} {where}'
    for e in data.edge_types:
        if node_type in e[::2] and {*owners.public} & {*e[::2]}:
            rows, groups = _grouped(data, e, node_type)
            same = groups[1:] == groups[:-1]
            where = f'the row before along the edges {e}'
            yield rows[1:][same], rows[:-1][same], where
        for way in (0, 1) if e[0] == node_type == e[2] else ():
            # The only row at the other end, such as who invited one.
            one, other = data[e].edge_index[[way, 1 - way]]
            one_each = one.bincount(minlength=n)[one] == 1
            some = one_each.nonzero().view(-1)[:_MOST]
            yield one[some], other[some], f'at the edges {e}'


def _sequences(
    data: HeteroData, node_type: str
) -> Iterator[tuple[Tensor, str]]:
    # Rows in the order of the table, and in time.
    n = int(data[node_type].num_nodes)
    yield torch.arange(n), 'rows before'
    time = data[node_type].get('time')
    if isinstance(time, Tensor) and time.numel() == n:
        yield time.flatten().argsort(stable=True), 'rows before in time'


def _grouped(
    data: HeteroData, edge_type: EdgeType, node_type: str
) -> tuple[Tensor, Tensor]:
    # Rows and the rows at the other ends, sorted by these, then in time.
    rows, groups = data[edge_type].edge_index
    if edge_type[0] != node_type:
        rows, groups = groups, rows
    other = edge_type[2 if edge_type[0] == node_type else 0]
    some = _some(groups, int(data[other].num_nodes))
    rows, groups = rows[some], groups[some]
    time, n = data[node_type].get('time'), int(data[node_type].num_nodes)
    if not isinstance(time, Tensor) or time.numel() != n:
        time = torch.arange(n)
    time = time.flatten()
    order = rows.argsort(stable=True)
    order = order[time[rows[order]].argsort(stable=True)]
    order = order[groups[order].argsort(stable=True)]
    return rows[order], groups[order]


def _stride(size: int) -> int:
    return max(1, size // _MOST)


def _some(ends: Tensor, size: int) -> Tensor:
    # Positions of the edges of some rows, with all edges of these.
    if _stride(size) == 1:
        return torch.arange(ends.numel())
    return (ends % _stride(size) == 0).nonzero().view(-1)


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _refuse(node_type: str, key: str, what: str) -> None:
    raise ValueError(
        "'data' needs rows that were not made from other persons: a column "
        f'of {node_type!r} {what} (in {key!r})'
    )
