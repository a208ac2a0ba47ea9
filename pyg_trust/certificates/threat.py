"""Attacker on edges: the edges that may be flipped, and the budgets."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    Natural,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer

__all__ = ['Perturbations', 'Policy', 'ThreatModel', 'spanning_tree']

SCENARIOS = ('removals', 'additions', 'both')
# Undirected additions are listed, with a price each, up to so many pairs.
_LISTED = 2**22
# Numbers in a dense block of columns by nodes.
_BLOCK = 2**22
_UNIT = torch.finfo(torch.float64).eps / 2


@validated
class ThreatModel:
    r"""Set of perturbed graphs that a certificate holds for.

    As in `Bojchevski and Günnemann 2019 <https://arxiv.org/abs/1910.14356>`_,
    the attacker flips **directed** edges (removes them, or adds them), at most
    :math:`b_v` among those that leave node :math:`v` and, if there is a global
    budget, at most :math:`B` in all. With :obj:`undirected=True` both
    directions of an edge flip together, and count as one flip.

    Args:
        graph (Any): the clean graph: a ``Data``, an ``edge_index``, a sparse
            matrix or a ``CSRGraph``, unweighted and without duplicate edges.
        fragile (str or Tensor): :obj:`'removals'` (all edges that are not
            fixed), :obj:`'additions'` (all ordered pairs of distinct nodes
            without an edge), :obj:`'both'`, or a set of edges (which may be
            removed) and non-edges (which may be added), int64, ``[2,
            num_pairs]``. (default: :obj:`'removals'`)
        fixed (Tensor or str, optional): the edges that stay, int64,
            ``[2, num_fixed]``, :obj:`'mst'` (both directions of a spanning
            tree of the undirected graph), or :obj:`'none'`. By default the
            tree, and for an explicit set all edges outside of it.
        local_budget (int or Tensor, optional): :math:`b_v`: one number for all
            nodes, or int64, ``[num_nodes]``. By default unlimited; this needs
            :math:`n^2` memory if all pairs are fragile and there is no global
            budget. (default: :obj:`None`)
        strength (int, optional): :math:`s`, which sets the local budget to
            that of the paper, :math:`b_v = \max(d_v - 11 + s, 0)` for a degree
            :math:`d_v`. (default: :obj:`None`)
        global_budget (int, optional): :math:`B`; by default unlimited.
        undirected (bool): whether both directions of an edge flip together.
        num_nodes (int, optional): the number of nodes, for an ``edge_index``,
            which does not store it. (default: :obj:`None`)
    """

    def __init__(
        self,
        graph: Any,
        fragile: str | Tensor = 'removals',
        *,
        fixed: str | Tensor | None = None,
        local_budget: int | Tensor | None = None,
        strength: int | None = None,
        global_budget: Natural | None = None,
        undirected: bool = False,
        num_nodes: int | None = None,
    ) -> None:
        graph = _convert(graph, num_nodes)
        if undirected and not graph.is_undirected:
            raise ValueError(
                "'graph' needs to be undirected for undirected=True (got an "
                'edge in one direction)'
            )
        explicit = isinstance(fragile, Tensor)
        if fixed is None:
            fixed = 'none' if explicit else 'mst'
        held = _fixed_edges(graph, fixed, undirected)
        addable, all_pairs = None, False
        if isinstance(fragile, Tensor):
            self.scenario = 'explicit'
            edges, place = _listed('fragile', graph, fragile, undirected)
            removable = torch.zeros_like(held)
            removable[place[place >= 0]] = True
            addable = edges[:, place < 0]
            if bool((removable & held).any()):
                edge = int((removable & held).nonzero()[0])
                raise ValueError(
                    "'fragile' and 'fixed' both hold the edge "
                    f'{int(graph.row[edge])} -> {int(graph.col[edge])}: it '
                    'can be one of the two'
                )
        elif fragile in SCENARIOS:
            self.scenario = fragile
            removable = ~held & (fragile != 'additions')
            all_pairs = fragile != 'removals'
        else:
            raise ValueError(
                f"'fragile' needs to be one of {SCENARIOS} or a tensor "
                f'(got {fragile!r})'
            )
        budget = _local_budget(graph, local_budget, strength)
        if global_budget is not None:
            budget = budget.clamp(max=global_budget)
        if undirected and all_pairs and graph.num_nodes**2 <= _LISTED:
            free = torch.ones((graph.num_nodes,) * 2, dtype=torch.bool)
            free[graph.row, graph.col] = False
            addable, all_pairs = (
                free.fill_diagonal_(False).nonzero().t(),
                False,
            )
        self.perturbations = Perturbations(
            graph, removable, budget, addable, all_pairs=all_pairs
        )
        self.graph, self.num_nodes = graph, graph.num_nodes
        #: The budget of each node, at most its number of fragile edges.
        self.local_budget = self.perturbations.budget
        self.undirected, self.strength = undirected, strength
        self.global_budget = global_budget

    def __repr__(self) -> str:
        strength = '' if self.strength is None else f's={self.strength}, '
        return (
            f'{type(self).__name__}({self.scenario}, {strength}'
            f'local_budget={int(self.local_budget.sum())} in all, '
            f'global_budget={self.global_budget}'
            f'{", undirected" if self.undirected else ""})'
        )


def _convert(graph: Any, num_nodes: int | None) -> CSRGraph:
    converted = CSRGraph.convert(graph, num_nodes)
    if converted.is_weighted:
        raise ValueError(
            "'graph' needs to be unweighted: an edge is there or not "
            '(got edge weights)'
        )
    return converted.to('cpu')


def check_same_graph(name: str, graph: CSRGraph, threat: ThreatModel) -> None:
    """Refuse another graph than that of a threat."""
    there = threat.graph
    if not torch.equal(graph.rowptr, there.rowptr) or not torch.equal(
        graph.col, there.col
    ):
        raise ValueError(
            f"'{name}' and 'threat' need to have the same graph (got {graph} "
            f'and {there})'
        )


def spanning_tree(graph: CSRGraph) -> Tensor:
    """Return the edges on a minimum spanning tree: bool, ``[num_edges]``.

    Directions are ignored. Kruskal's, with ties broken by the order of the
    edges: numpy's unstable sort moves certified ratios by up to 1.6 points
    from one version to another.
    """
    row, col = graph.row, graph.col
    key = torch.minimum(row, col) * graph.num_nodes + torch.maximum(row, col)
    pairs, which = key.unique(return_inverse=True)
    low, high = pairs // graph.num_nodes, pairs % graph.num_nodes
    proper = low != high
    # Distinct weights leave no ties; zero would be no edge.
    weight = np.arange(1.0, len(pairs) + 1)
    tree = scipy.sparse.csgraph.minimum_spanning_tree(
        scipy.sparse.csr_array(
            (
                weight[proper.numpy()],
                # Older SciPy takes 32-bit indices only.
                (low[proper].int().numpy(), high[proper].int().numpy()),
            ),
            shape=(graph.num_nodes, graph.num_nodes),
        )
    )
    on_tree = torch.zeros(len(pairs), dtype=torch.bool)
    on_tree[torch.from_numpy(tree.data).long() - 1] = True
    return on_tree[which]


def _listed(
    name: str, graph: CSRGraph, edges: Tensor, undirected: bool
) -> tuple[Tensor, Tensor]:
    # The listed edges, and the position of each in the graph or -1.
    n = graph.num_nodes
    check_tensor(name, edges, torch.int64, (2, 'num_pairs'))
    check_range(name, edges, n, 'the nodes')
    key = (edges[0] * n + edges[1]).sort().values
    again = (key.diff() == 0).nonzero()
    if again.numel() > 0:
        u, v = divmod(int(key[again[0]]), n)
        raise ValueError(
            f"'{name}' needs to list each edge once (got {u} -> {v} more than "
            'once)'
        )
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    key = edges[0] * n + edges[1]
    # Behind the last one stands a key that is none.
    keys = torch.cat([graph.row * n + graph.col, key.new_full((1,), n * n)])
    place = torch.searchsorted(keys, key)
    return edges, torch.where(keys[place] == key, place, -1)


def _fixed_edges(
    graph: CSRGraph, fixed: str | Tensor, undirected: bool
) -> Tensor:
    held = torch.zeros(graph.num_edges, dtype=torch.bool)
    if isinstance(fixed, Tensor):
        edges, place = _listed('fixed', graph, fixed, undirected)
        if bool((place < 0).any()):
            u, v = edges[:, place < 0][:, 0].tolist()
            raise ValueError(
                "'fixed' needs to hold edges of the graph "
                f'(got {u} -> {v}, which is none)'
            )
        held[place] = True
    elif fixed == 'mst':
        held = spanning_tree(graph)
    elif fixed != 'none':
        raise ValueError(
            "'fixed' needs to be 'mst', 'none', None or a tensor (got "
            f'{fixed!r})'
        )
    return held


def _local_budget(
    graph: CSRGraph, budget: int | Tensor | None, strength: int | None
) -> Tensor:
    n = graph.num_nodes
    if strength is not None:
        if budget is not None:
            raise ValueError(
                "'local_budget' and 'strength' both set a budget: give "
                'one of them'
            )
        extra = check_integer('strength', strength) - 11
        return (graph.degree + extra).clamp(min=0)
    if budget is None:
        return torch.full((n,), 2 * n)
    if not isinstance(budget, Tensor):
        return torch.full((n,), check_integer('local_budget', budget, 0))
    check_tensor('local_budget', budget, torch.int64, (n,))
    if bool((budget < 0).any()):
        node = int((budget < 0).nonzero()[0])
        raise ValueError(
            "'local_budget' needs to be non-negative "
            f'(got {int(budget[node])} at node {node})'
        )
    return budget


class Perturbations:
    """Admissible graphs: at most ``budget[i]`` flips of edges of each row i.

    Rows are sources. A flip removes an edge of ``removable`` (bool,
    ``[num_edges]``), or adds one of ``addable`` (``[2, num_pairs]``, none of
    them in the graph) or, with ``all_pairs``, any between distinct nodes.
    """

    def __init__(
        self,
        graph: CSRGraph,
        removable: Tensor,
        budget: Tensor,
        addable: Tensor | None = None,
        *,
        all_pairs: bool = False,
    ) -> None:
        self.graph, self.removable = graph, removable
        self.addable, self.all_pairs = addable, all_pairs
        self.num_nodes = n = graph.num_nodes
        row, col = graph.row, graph.col
        key = row[:0]
        if addable is not None:
            key = (addable[0] * n + addable[1]).sort().values
        #: The pairs that may be added, ascending.
        self.pairs = torch.stack([key // n, key % n])
        removals = row[removable].bincount(minlength=n)
        count = additions = self.pairs[0].bincount(minlength=n)
        if all_pairs:
            loops = row[row == col].bincount(minlength=n)
            additions = n - 1 - (graph.degree - loops)
        self.budget = budget.minimum(removals + additions)
        #: The nodes that can be perturbed.
        self.active = (self.budget > 0).nonzero().view(-1)
        # The most flips of either kind that can help in a row.
        lost = self.budget.minimum(removals)
        won = self.budget.minimum(additions)
        self.smallest, self.largest = graph.degree - lost, graph.degree + won
        ratio = self.largest / self.smallest.clamp(min=1).double()
        single = ratio.where((lost > 0) & (won > 0), 1)
        # The relative roundoff of a step, without and with prices of edges.
        self.rounding = [
            64 * _UNIT * float(part.max().clamp(min=1))
            for part in (single, ratio)
        ]
        self.threat = ops.PolicyThreat(
            *graph.receivers(along=False),
            removable,
            self.budget,
            pointer(count),
            self.pairs[1].int(),
            all_pairs,
        )

    def fragile(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List sources and targets of rows' flips, and which are edges."""
        graph, n = self.graph, self.num_nodes
        wanted = torch.zeros(n, dtype=torch.bool)
        wanted[rows] = True
        new = self.pairs[:, wanted[self.pairs[0]]]
        if self.all_pairs:
            free = torch.ones((rows.numel(), n), dtype=torch.bool)
            place = torch.full((n,), -1)
            place[rows] = torch.arange(rows.numel())
            mine = wanted[graph.row]
            free[place[graph.row[mine]], graph.col[mine]] = False
            free[place[rows], rows] = False
            new = free.nonzero().t()
            new = torch.stack([rows[new[0]], new[1]])
        old = self.removable & wanted[graph.row]
        row = torch.cat([graph.row[old], new[0]])
        col = torch.cat([graph.col[old], new[1]])
        return row, col, torch.arange(row.numel()) < int(old.sum())

    def column_blocks(
        self, num_columns: int, numbers: int = 1
    ) -> Iterator[slice]:
        """Split columns into blocks of even size that fit into memory."""
        size = max(1, _BLOCK // (self.num_nodes * numbers))
        # Blocks of even size: 30 columns as 15 + 15, not 29 + 1.
        count = max(1, math.ceil(num_columns / size))
        size = max(1, math.ceil(num_columns / count))
        return (
            slice(first, min(first + size, num_columns))
            for first in range(0, num_columns, size)
        )

    def clean_policy(self, num_columns: int) -> 'Policy':
        """Return the policy that flips nothing."""
        none = torch.zeros((2, 0), dtype=torch.int64)
        return Policy.from_flips(self, [none] * num_columns)


class Policy:
    """One perturbed graph per column, by its flips in order."""

    def __init__(
        self, perturbations: Perturbations, flips: ops.PolicyFlips
    ) -> None:
        self.perturbations, self.flipped = perturbations, flips
        self.num_columns = flips.ptr.numel() - 1

    @classmethod
    def from_flips(
        cls, perturbations: Perturbations, flips: list[Tensor]
    ) -> 'Policy':
        """Make the policy that flips ``[2, num_flips]`` edges per column."""
        n = perturbations.num_nodes
        count = torch.tensor([pairs.size(1) for pairs in flips]).long()
        column = torch.arange(len(flips)).repeat_interleave(count)
        pairs = torch.cat([torch.zeros((2, 0)).long(), *flips], dim=1)
        # Columns are ascending, so a stable sort by each key in turn suffices.
        key, order = (pairs[0] * n + pairs[1]).sort(stable=True)
        key = key[column[order].argsort(stable=True)]
        return cls(
            perturbations,
            ops.PolicyFlips(pointer(count), (key // n).int(), (key % n).int()),
        )

    @cached_property
    def _column(self) -> Tensor:
        ptr = self.flipped.ptr
        return torch.arange(self.num_columns).repeat_interleave(ptr.diff())

    @cached_property
    def _key(self) -> Tensor:
        n = self.perturbations.num_nodes
        return self.flipped.row.long() * n + self.flipped.col

    def _count(self, chosen: Tensor) -> Tensor:
        # Flips of each row: [num_columns, num_nodes].
        n = self.perturbations.num_nodes
        place = (self._column * n + self.flipped.row)[chosen]
        count = place.bincount(minlength=self.num_columns * n)
        return count.view(self.num_columns, n)

    @cached_property
    def flips(self) -> Tensor:
        """Count the flipped edges of each row: ``[num_columns, n]``."""
        return self._count(torch.ones_like(self._key, dtype=torch.bool))

    @cached_property
    def size(self) -> Tensor:
        """Count the edges of each row: ``[num_columns, num_nodes]``."""
        graph = self.perturbations.graph
        edges = graph.row * graph.num_nodes + graph.col
        lost = self._count(torch.isin(self._key, edges))
        return graph.degree + self.flips - 2 * lost

    def solve(
        self,
        reward: Tensor,
        follow: float,
        start: Tensor,
        goal: Tensor,
        *,
        back: bool = False,
    ) -> tuple[Tensor, Tensor]:
        r"""Solve :math:`x = r + a \tilde P x`; also return the residual.

        ``back`` solves with :math:`\tilde P^{\top}`, and ``goal`` is the
        largest residual of each column.
        """
        rowptr, col = self.perturbations.threat[:2]
        return ops.policy_solve(
            rowptr, col, self.flipped, reward, start, goal, follow, back
        )

    def total(self, of_edges: Tensor, of_pairs: Tensor) -> Tensor:
        """Sum values of edges and addable pairs over each column's flips."""
        held = self.perturbations
        n, sums = held.num_nodes, of_edges.new_zeros(self.num_columns)
        for value, (row, col) in (
            (of_edges, (held.graph.row, held.graph.col)),
            (of_pairs, held.pairs),
        ):
            if row.numel() == 0:
                continue
            keys = row * n + col
            place = torch.searchsorted(keys, self._key)
            place = place.clamp(max=keys.numel() - 1)
            here = keys[place] == self._key
            column = self._column[here]
            sums.index_add_(0, column, value[column, place[here]])
        return sums

    def edges(self, column: int) -> Tensor:
        """Return the flipped edges of a column: int64, ``[2, num_flips]``."""
        ptr, row, col = self.flipped
        start, end = ptr[column : column + 2].tolist()
        return torch.stack([row[start:end], col[start:end]]).long()
