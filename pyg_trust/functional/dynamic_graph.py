"""Mutable graph with undo.

Rows have room behind their end, so that an edit costs the rows that it
touches. Names never change: a removed node leaves an empty row behind.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.functional.ragged import ranges
from pyg_trust.graph import CSRGraph
from pyg_trust.ops import OpenRows

# Up to this number, edges are looked up one by one.
FEW = 16


class Journal:
    """Log of undo steps, the last first."""

    def __init__(self) -> None:
        self._back: list[Callable[[], object]] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to undo."""
        return not self._back

    def note(self, back: Callable[[], object]) -> None:
        """Log an undo step; call it *before* the step that it undoes.

        Args:
            back (callable): takes the step back, and does nothing if the
                step was not done.
        """
        self._back.append(back)

    def rows(self, tensor: Tensor, index: Tensor) -> None:
        """Log the old content of rows that are about to be written.

        Args:
            tensor (Tensor): the tensor to write to.
            index (Tensor): int64: its rows.
        """
        old = tensor.index_select(0, index)
        self.note(lambda: tensor.index_copy_(0, index, old))

    def undo(self) -> None:
        """Undo everything; may be called again after an interruption."""
        while self._back:
            self._back[-1]()
            self._back.pop()

    def clear(self) -> None:
        """Drop the log, and with it the removed values."""
        self._back.clear()


class Edit(NamedTuple):
    """Names of the nodes that an edit changed.

    Args:
        structure (Tensor): int64: nodes whose degree or neighbours changed.
        features (Tensor): int64: nodes whose features changed.
    """

    structure: Tensor
    features: Tensor


class _Rows:
    # Rows with room. The view is replaced as a whole where rows have to move.

    def __init__(self, rowptr: Tensor, col: Tensor) -> None:
        length = rowptr.diff()
        col = col.to(torch.int32, copy=True)
        self.view = OpenRows(rowptr[:-1].clone(), length, col)
        self.room = length.clone()

    def entries(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        if nodes.numel() == 0:
            return nodes, nodes
        start, length, col = self.view
        if nodes.numel() == 1:
            # The most frequent case, in fewer steps.
            first, size = int(start[nodes]), int(length[nodes])
            return nodes.expand(size), col[first : first + size].long()
        count = length[nodes]
        at = ranges(start[nodes], count)
        return nodes.repeat_interleave(count), col[at].long()

    def has(self, u: int, v: int) -> bool:
        start, length, col = (part.numpy() for part in self.view)
        row = col[start[u] : start[u] + length[u]]
        at = row.searchsorted(v)
        return bool(at < row.size and row[at] == v)

    def make_room(self, row: Tensor) -> None:
        # Room for one more entry per occurrence of a row.
        nodes, more = row.unique(return_counts=True)
        start, length, col = self.view
        need = length[nodes] + more
        short = need > self.room[nodes]
        nodes, need = nodes[short], need[short]
        if nodes.numel() == 0:
            return
        room = need + need // 2 + 2
        count = length[nodes]
        starts = col.numel() + room.cumsum(0) - room
        old = ranges(start[nodes], count)
        col = torch.cat([col, col.new_full((int(room.sum()),), -1)])
        col[ranges(starts, count)] = col[old]
        col[old] = -1
        start = start.index_copy(0, nodes, starts)
        self.view = OpenRows(start, length, col)
        self.room[nodes] = room

    def grow(self, count: int) -> None:
        start, length, col = self.view
        none = length.new_zeros(count)
        self.room = torch.cat([self.room, none])
        self.view = OpenRows(
            torch.cat([start, none]), torch.cat([length, none]), col
        )


class DynamicGraph:
    r"""Editable rows of an unweighted graph.

    Args:
        graph (CSRGraph): unweighted, without duplicates.
        self_loops (bool): whether missing self-loops are added, as in
            :class:`.Measure`.
        along (bool): whether signals travel along the edges.
        directed (bool): whether an edge may go in one direction alone, if
            none does now. (default: :obj:`False`)
    """

    def __init__(
        self,
        graph: CSRGraph,
        self_loops: bool,
        along: bool = True,
        directed: bool = False,
    ) -> None:
        self.undirected = graph.is_undirected and not directed
        self.self_loops = self_loops
        self.own_loop = torch.zeros(graph.num_nodes, dtype=torch.bool)
        self.own_loop[graph.row[graph.row == graph.col]] = True
        if self_loops:
            graph = graph.with_self_loops()
        self.out = _Rows(graph.rowptr, graph.col)
        self.into = self.out
        if not self.undirected:
            back = graph.transpose()
            self.into = _Rows(back.rowptr, back.col)
        self.along = along
        self.alive = torch.ones(graph.num_nodes, dtype=torch.bool)
        self._stamp = torch.zeros(graph.num_nodes, dtype=torch.int32)
        self._entries = self.out.view.col.numel()
        self._mark = 0

    @property
    def num_nodes(self) -> int:
        """The number of names, those of removed nodes included."""
        return self.alive.numel()

    @property
    def degree(self) -> Tensor:
        """The number of edges that leave each node: int64."""
        return self.out.view.length

    @property
    def num_entries(self) -> int:
        """The number of directed edges, self-loops included."""
        return self._entries

    def rows(self) -> tuple[Tensor, Tensor]:
        """The degrees, and the neighbours of all nodes, row after row.

        Without the room behind each row.
        """
        start, length, col = self.out.view
        return length, col[ranges(start, length)]

    @property
    def receiving(self) -> OpenRows:
        """Rows by receiver: row :math:`v` lists the senders to :math:`v`."""
        return (self.into if self.along else self.out).view

    @property
    def sending(self) -> OpenRows:
        """Rows by sender: row :math:`v` lists the receivers of :math:`v`."""
        return (self.out if self.along else self.into).view

    def receivers(
        self,
        seeds: Tensor,
        extra: Tensor,
        levels: int = 1,
        most: float = math.inf,
    ) -> tuple[list[Tensor], list[int]]:
        """Expand a set of nodes by their receivers, level by level.

        Args:
            seeds (Tensor): int64: the senders of the first level.
            extra (Tensor): int64: nodes that belong to every level anyway.
            levels (int): how many; the next ones receive from these, and so
                on. (default: :obj:`1`)
            most (float): ends before the first level that receives more
                entries. (default: :obj:`inf`)

        Returns:
            tuple[list[Tensor], list[int]]: by level, the nodes, int64, each
            once; and how many entries they receive.
        """
        if levels == 0:
            return [], []
        first = self._mark + 1
        self._mark += levels
        if self._mark >= 2**31 - 1:
            self._stamp.zero_()
            first, self._mark = 1, levels
        nodes, counts = ops.touched_rows(
            self.sending,
            self.receiving.length,
            seeds,
            extra,
            self._stamp,
            first,
            levels,
            most,
        )
        ends = counts.tolist()
        begins = [0, *ends[::2]]
        groups = [
            nodes[begin:end]
            for begin, end in zip(begins, ends[::2], strict=False)
        ]
        return groups, ends[1::2]

    def has_all(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Return whether all of a few edges exist, as in :meth:`has_edges`.

        Args:
            pairs (list[tuple[int, int]]): sources and targets.
        """
        return all(self._has(u, v) for u, v in pairs)

    def has_edges(self, edges: Tensor) -> Tensor:
        """Return which edges exist; self-loops of the measure do not count.

        Args:
            edges (Tensor): int64, ``[2, k]``.
        """
        n = self.num_nodes
        row, col = edges
        if row.numel() <= FEW:
            there = [self._has(u, v) for u, v in edges.t().tolist()]
            return torch.tensor(there, dtype=torch.bool)
        inside = (edges >= 0).all(0) & (edges < n).all(0)
        source = row[inside].unique()
        entries = torch.stack(self.out.entries(source))
        key = entries[0] * n + entries[1]
        exists = torch.isin(row * n + col, key) & inside
        loop = inside & (row == col)
        exists[loop] = self.own_loop[row[loop]]
        return exists

    def remove(self, nodes: Tensor, edges: Tensor, journal: Journal) -> Tensor:
        """Remove nodes, with all their edges, and edges.

        Args:
            nodes (Tensor): int64, each once.
            edges (Tensor): int64, ``[2, k]``; of an undirected graph, either
                direction means both.
            journal (Journal): notes the way back.

        Returns:
            Tensor: int64: the nodes whose degree or neighbours changed.

        Raises:
            ValueError: if a node or an edge is not there; nothing has changed.
        """
        if nodes.numel() + edges.numel() == 0:
            return nodes
        if nodes.numel():
            known = self._known(nodes)
            if not bool(known.all()):
                node = int(nodes[~known][0])
                raise ValueError(f'node {node} is not there{_GONE}')
        gone, rest = nodes, edges
        if edges.numel():
            pairs = edges.t().tolist() if edges.size(1) <= FEW else ()
            if not pairs or not self.has_all(pairs):
                there = self.has_edges(edges)
                for u, v in edges[:, ~there].t().tolist()[:1]:
                    raise ValueError(f'edge {u} -> {v} is not there{_GONE}')
            if not pairs or any(u == v for u, v in pairs):
                loop = edges[0] == edges[1]
                gone = torch.cat([nodes, edges[0, loop]])
                rest = edges[:, ~loop] if self.self_loops else edges
        if gone.numel():
            journal.rows(self.own_loop, gone)
            self.own_loop.index_fill_(0, gone, False)
        changed = self._edit(nodes, rest, False, journal)
        if nodes.numel():
            journal.rows(self.alive, nodes)
            self.alive.index_fill_(0, nodes, False)
        return changed

    def insert(self, edges: Tensor, journal: Journal) -> Tensor:
        """Add edges between existing nodes.

        Args:
            edges (Tensor): int64, ``[2, k]``; of an undirected graph, either
                direction means both.
            journal (Journal): notes the way back.

        Returns:
            Tensor: int64: the nodes whose degree or neighbours changed.

        Raises:
            ValueError: if an end is not there, or an edge is there already;
                nothing has changed.
        """
        ends = edges.flatten()
        for node in ends[~self._known(ends)].tolist()[:1]:
            raise ValueError(f'node {node} is not there{_GONE}')
        for u, v in edges[:, self.has_edges(edges)].t().tolist()[:1]:
            raise ValueError(
                f'edge {u} -> {v} is there already: an edge can be there once'
            )
        loop = edges[0] == edges[1]
        journal.rows(self.own_loop, edges[0, loop])
        self.own_loop[edges[0, loop]] = True
        added = edges[:, ~loop] if self.self_loops else edges
        return self._edit(edges[0, :0], added, True, journal)

    def grow(self, count: int, journal: Journal) -> Tensor:
        """Add nodes without edges but the self-loops of the measure.

        Args:
            count (int): how many.
            journal (Journal): notes the way back.

        Returns:
            Tensor: int64: their names, the next ones.
        """
        names = torch.arange(self.num_nodes, self.num_nodes + count)
        before = dict(vars(self))
        rows = {id(r): dict(vars(r)) for r in (self.out, self.into)}

        def back() -> None:
            for part in (self.out, self.into):
                vars(part).update(rows[id(part)])
            vars(self).update(before)

        journal.note(back)
        for part in {id(r): r for r in (self.out, self.into)}.values():
            part.grow(count)
        self.own_loop = torch.cat([self.own_loop, names < 0])
        self.alive = torch.cat([self.alive, names >= 0])
        self._stamp = torch.cat([self._stamp, self._stamp.new_zeros(count)])
        if self.self_loops:
            loops = torch.stack([names, names])
            self._edit(names[:0], loops, True, journal)
        return names

    def edge_index(self) -> Tensor:
        """Return the edges by name, without added self-loops: ``[2, m]``."""
        nodes = torch.arange(self.num_nodes)
        edges = torch.stack(self.out.entries(nodes))
        if self.self_loops:
            loop = edges[0] == edges[1]
            edges = edges[:, ~loop | self.own_loop[edges[0]]]
        return edges

    def to_csr(self) -> CSRGraph:
        """Return the present graph; removed nodes have no edges."""
        return CSRGraph.from_edge_index(self.edge_index(), self.num_nodes)

    def _has(self, u: int, v: int) -> bool:
        if not (0 <= u < self.num_nodes and 0 <= v < self.num_nodes):
            return False
        return bool(self.own_loop[u]) if u == v else self.out.has(u, v)

    def _known(self, nodes: Tensor) -> Tensor:
        n = self.num_nodes
        inside = (nodes >= 0) & (nodes < n)
        return inside & self.alive[nodes.clamp(0, max(n - 1, 0))]

    def _edit(
        self, nodes: Tensor, edges: Tensor, insert: bool, journal: Journal
    ) -> Tensor:
        # All entries of removed nodes, and removed edges.
        row, entry, changed = ops.entries_at(
            self.out.view, self.into.view, nodes, edges, self.undirected
        )
        before, count = self._entries, row.numel()
        journal.note(lambda: setattr(self, '_entries', before))
        self._entries = before + (count if insert else -count)
        self._apply(self.out, row, entry, insert, journal)
        if not self.undirected:
            order = (entry * self.num_nodes + row).argsort()
            self._apply(self.into, entry[order], row[order], insert, journal)
        return changed

    def _apply(
        self,
        rows: _Rows,
        row: Tensor,
        entry: Tensor,
        insert: bool,
        journal: Journal,
    ) -> None:
        if insert:
            rows.make_room(row)

        def edit(insert: bool) -> int:
            return ops.edit_rows(rows.view, row, entry, insert)

        # If nothing was done, undoing does nothing.
        journal.note(lambda: edit(not insert))
        at = edit(insert)
        if at >= 0:  # pragma: no cover
            raise RuntimeError(f'row {int(row[at])} does not fit its edit')


_GONE = ': it never was, or was removed before'
