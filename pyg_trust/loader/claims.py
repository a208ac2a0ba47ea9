"""Subgraphs of persons: which rows and edges a group of persons has.

A *group* is a set of persons. No person is in two groups, so that a change of
what one person owns alone changes one subgraph, whatever it changes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust import rng
from pyg_trust._checks import check_tensor
from pyg_trust._checks.graphs import plain_index
from pyg_trust.graph.ragged import pointer
from pyg_trust.unit import EdgeType, PrivacyUnit

# Numbers that a hash takes.
_POSITIVE = 2**63 - 1


class TypedSubgraphs(NamedTuple):
    """Rows and edges of several subgraphs, by type and then by subgraph.

    By node type, the row that each row is a copy of and its subgraph; by edge
    type, the edges between rows here and the edge that each is a copy of.
    """

    n_id: dict[str, Tensor]
    batch: dict[str, Tensor]
    edge_index: dict[EdgeType, Tensor]
    e_id: dict[EdgeType, Tensor]


class Ownership:
    """Lists of what each person owns, and of the edges of each row.

    Args:
        unit (PrivacyUnit): the owners of rows and edges.
        data (HeteroData): the graph that it was declared for.
        max_joint (int, optional): the most owners of a joint row that is
            listed; 0 for no joint rows. (default: :obj:`None`)
        num_neighbors (dict, optional): by edge type, the most public rows that
            a row brings in: those with the least keyed hash of both ends,
            which does not depend on rows of others. (default: :obj:`None`)
        seed (int): the key of these hashes. (default: :obj:`0`)
    """

    def __init__(
        self,
        unit: PrivacyUnit,
        data: HeteroData,
        max_joint: int | None = None,
        num_neighbors: Mapping[EdgeType, int] | None = None,
        seed: int = 0,
    ) -> None:
        self.num_names = unit.num_names
        self.sizes = {t: int(data[t].num_nodes) for t in data.node_types}
        self.edges = {
            e: plain_index(f'data[{e}].edge_index', data[e].edge_index)
            for e in data.edge_types
        }
        self.edge_owner = unit.edge_owner
        self.public = frozenset(unit.public)
        self.count: dict[str, Tensor] = {}
        self.held: dict[str, tuple[Tensor, Tensor]] = {}
        self.most: dict[EdgeType, int] = {}
        self.seed = seed
        for e, most in (num_neighbors or {}).items():
            self.most[e] = self.most[unit.mirrors.get(e, e)] = most
        self.names: dict[str, Tensor] = {}
        for t, size in self.sizes.items():
            if t in self.public:
                if self.most:
                    names = data[t].get('n_id', torch.arange(size))
                    check_tensor('n_id', names, torch.int64, (size,))
                    self.names[t] = names
                continue
            ptr, who = unit.owners(t)
            count = ptr.diff()
            rows = torch.arange(size).repeat_interleave(count)
            if self.most:
                whose, word = who, rng.derive_each(seed, unit.n_id[who])
                if t in unit.joint:
                    word = torch.zeros_like(count).index_add(0, rows, word)
                    word &= _POSITIVE
                    whose = word.unique(return_inverse=True)[1]
                start, order = _listed(whose, max(self.num_names, size))
                place = torch.empty_like(order)
                place[order] = torch.arange(size) - start[whose[order]]
                word = word ^ place
                self.names[t] = rng.derive_each(seed, word)
            if t in unit.joint and max_joint is not None:
                count = torch.where(count <= max_joint, count, -1)
            self.count[t] = count
            start, order = _listed(who, self.num_names)
            self.held[t] = start, rows[order]
        self.owned = {
            e: _listed(who, self.num_names)
            for e, who in self.edge_owner.items()
        }
        # By edge type and end: where the edges of each row are listed. Public
        # rows list none but to public rows: an item has edges of everybody.
        self.at: dict[tuple[EdgeType, int], tuple[Tensor, Tensor]] = {}
        for e, index in self.edges.items():
            for end in (0, 1):
                here, other = e[2 * end], e[2 - 2 * end]
                if here not in self.public or other in self.public:
                    listed = _listed(index[end], self.sizes[here])
                    self.at[e, end] = listed
        # Edge types that lead where an earlier one does, whose mirror they
        # are.
        nth = {e: i for i, e in enumerate(self.edges)}
        self.again = {
            e
            for e in self.edges.keys() - self.edge_owner.keys()
            if nth.get(unit.mirrors.get(e, e), nth[e]) < nth[e]
        }

    def edges_of(
        self, e: EdgeType, end: int, keys: Mapping[str, Tensor], claim: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return edges of copies, each with the place of its copy.

        Those of strangers, by the group of each person (:obj:`claim`), are
        left out.
        """
        here = keys[e[2 * end]]
        size = max(self.sizes[e[2 * end]], 1)
        start, listed = self.at[e, end]
        at, which = _gather(start, here % size)
        edge = listed.index_select(0, which)
        owner = self.edge_owner.get(e)
        if owner is not None:
            own = claim[owner[edge]] == (here // size)[at]
            at, edge = at[own], edge[own]
        return at, edge

    def capped(
        self, e: EdgeType, end: int, row: Tensor, edge: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return, of the edges in the list of each row, those that may be."""
        most = self.most.get(e)
        if most is None:
            return row, edge
        here, there = (
            self.names[e[2 * i]][self.edges[e][i][edge]]
            for i in (end, 1 - end)
        )
        word = rng.derive_each(self.seed, here) ^ there
        word = rng.derive_each(self.seed, word)
        order = word.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        row, word, edge = row[order], word[order], edge[order]
        # Edges to one public row stand together, and count once.
        new = torch.ones_like(row, dtype=torch.bool)
        new[1:] = (row.diff() != 0) | (word.diff() != 0)
        rank = new.cumsum(0)
        kept = rank - rank[torch.searchsorted(row, row)] < most
        return row[kept], edge[kept]


def expand(
    ownership: Ownership, ptr: Tensor, persons: Tensor, hops: int
) -> TypedSubgraphs:
    """Return the subgraphs of groups of persons.

    An owned row is in a subgraph if all of its owners are in the group, a
    public row (as a copy) if it is within :obj:`hops` steps of one. An edge is
    in it if both ends and all owners are.

    Args:
        ownership (Ownership): the owners of rows and edges.
        ptr (Tensor): int64, ``[num_groups + 1]``: the start of each group.
        persons (Tensor): int64: the persons, group by group, each in one.
        hops (int): how far public rows are from rows that somebody owns.
    """
    if persons.unique().numel() < persons.numel():
        raise ValueError(
            "'persons' needs to hold each person once: what one person owns "
            'is in one subgraph (got one twice)'
        )
    sizes = ownership.sizes
    of = torch.arange(ptr.numel() - 1).repeat_interleave(ptr.diff())
    claim = torch.empty(0, dtype=torch.int64)
    if ownership.edge_owner:
        claim = torch.full((ownership.num_names,), -1)
        claim[persons] = of
    none = torch.empty(0, dtype=torch.int64)
    keys = dict.fromkeys(sizes, none)
    for t, (start, rows) in ownership.held.items():
        at, which = _gather(start, persons)
        found, count = _key(of[at], rows[which], sizes[t]).unique(
            return_counts=True
        )
        keys[t] = found[count == ownership.count[t][found % max(sizes[t], 1)]]
    front = dict(keys)
    for hop in range(hops):
        near: dict[str, list[Tensor]] = {t: [] for t in ownership.public}
        for e, end in ownership.at:
            here, other = e[2 * end], e[2 - 2 * end]
            if (
                other not in near
                or e in ownership.again
                or not front[here].numel()
            ):
                continue
            subgraph = front[here] // max(sizes[here], 1)
            at, edge = ownership.edges_of(e, end, front, claim)
            at, edge = ownership.capped(e, end, at, edge)
            row = ownership.edges[e][1 - end].index_select(0, edge)
            near[other].append(_key(subgraph[at], row, sizes[other]))
        for e, (start, listed) in ownership.owned.items():
            # An edge of a row that somebody owns is of this owner as well.
            if hop == 0 and e[0] in near and e[2] in near:
                at, which = _gather(start, persons)
                at, edge = ownership.capped(e, 0, at, listed[which])
                for t, ends in zip(e[::2], ownership.edges[e], strict=True):
                    near[t].append(_key(of[at], ends[edge], sizes[t]))
        front = dict.fromkeys(sizes, none)
        for t, found in near.items():
            new = torch.cat([none, *found]).unique()
            front[t] = new[~torch.isin(new, keys[t])]
            keys[t] = torch.cat([keys[t], front[t]]).sort().values
    out = TypedSubgraphs({}, {}, {}, {})
    for t, key in keys.items():
        size = max(sizes[t], 1)
        out.n_id[t], out.batch[t] = key % size, key // size
    for e, index in ownership.edges.items():
        end = 0 if (e, 0) in ownership.at else 1
        other = e[2 - 2 * end]
        at, edge = ownership.edges_of(e, end, keys, claim)
        subgraph = out.batch[e[2 * end]].index_select(0, at)
        row = index[1 - end].index_select(0, edge)
        wanted = _key(subgraph, row, sizes[other])
        place = torch.searchsorted(keys[other], wanted)
        known = torch.cat([keys[other], wanted.new_full((1,), -1)])
        inside = known.index_select(0, place) == wanted
        ends = torch.stack([at, place] if end == 0 else [place, at])
        if not bool(inside.all()):
            ends, edge = ends[:, inside], edge[inside]
        out.edge_index[e], out.e_id[e] = ends, edge
    return out


def _listed(of: Tensor, size: int) -> tuple[Tensor, Tensor]:
    # The places of each of so many numbers, in ascending order.
    return pointer(of.bincount(minlength=size)), of.argsort(stable=True)


def _gather(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    # Which row, and the places of what is listed for it.
    first = start.index_select(0, rows)
    count = start.index_select(0, rows + 1) - first
    at = torch.arange(rows.numel()).repeat_interleave(count)
    shift = (first - pointer(count)[:-1]).index_select(0, at)
    return at, shift + torch.arange(at.numel())


def _key(subgraph: Tensor, row: Tensor, size: int) -> Tensor:
    return subgraph * max(size, 1) + row
