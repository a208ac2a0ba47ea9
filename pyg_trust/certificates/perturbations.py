"""Admissible graphs of an attacker, and single ones of them."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    Count,
    Natural,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer

__all__ = ['Perturbations', 'Policy']

# Numbers in a dense block of columns by nodes.
_BLOCK = 2**22
_UNIT = torch.finfo(torch.float64).eps / 2


class Perturbations:
    r"""Admissible graphs: flips of fragile out-edges within budgets.

    A graph is admissible if it differs from the clean one by fragile directed
    edges, at most :math:`b_i` in row :math:`i`. Rows are sources. A node
    without edges has the value :math:`V_i = r_i`.

    Args:
        graph (CSRGraph): the clean graph, unweighted and without duplicate
            edges.
        removable (Tensor): bool, ``[num_edges]``: the edges, in the order of
            :obj:`graph.col`, that may be removed.
        budget (Tensor): int64, ``[num_nodes]``: :math:`b_i`.
        addable (Tensor, optional): int64, ``[2, num_pairs]``: the edges that
            may be added, none of them in the graph. (default: :obj:`None`)
        all_pairs (bool): whether every ordered pair of distinct nodes that is
            no edge may be added; this takes no memory.
            (default: :obj:`False`)

    Raises:
        TypeError: on a wrong type or dtype.
        ValueError: on a wrong shape, a weighted or repeated edge, a negative
            budget, or an addable edge that is in the graph, listed twice or
            out of range.
    """

    _sizes = ('num_nodes',)

    def __init__(
        self,
        graph: CSRGraph,
        removable: Tensor,
        budget: Tensor,
        addable: Tensor | None = None,
        *,
        all_pairs: bool = False,
    ) -> None:
        _check(graph, removable, budget)
        self.graph, self.removable = graph, removable
        self.addable, self.all_pairs = addable, all_pairs
        n, row, col = graph.num_nodes, graph.row, graph.col
        key = _addable_keys(graph, addable, all_pairs)
        self._pairs = torch.stack([key // n, key % n])
        removals = row[removable].bincount(minlength=n)
        additions = self.pairs[0].bincount(minlength=n)
        if all_pairs:
            loops = row[row == col].bincount(minlength=n)
            additions = n - 1 - (graph.degree - loops)
        self.budget = budget.minimum(removals + additions)
        # The most flips of either kind that can help in a row.
        lost = self.budget.minimum(removals)
        won = self.budget.minimum(additions)
        self.smallest, self.largest = graph.degree - lost, graph.degree + won
        ratio = self.largest / self.smallest.clamp(min=1).double()
        single = ratio.where((lost > 0) & (won > 0), 1)
        self._rounding = [
            64 * _UNIT * float(part.max().clamp(min=1))
            for part in (single, ratio)
        ]
        self.threat = ops.PolicyThreat(
            *graph.receivers(along=False),
            removable,
            self.budget,
            pointer(self.pairs[0].bincount(minlength=n)),
            self.pairs[1].int(),
            all_pairs,
        )

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.graph.num_nodes

    @property
    def pairs(self) -> Tensor:
        """The pairs that may be added, ascending: ``[2, num_pairs]``."""
        return self._pairs

    @property
    def active(self) -> Tensor:
        """Nodes that can be perturbed: int64."""
        return (self.budget > 0).nonzero().view(-1)

    def rounding(self, priced: bool) -> float:
        """Return the relative roundoff of a step, with prices of edges."""
        return self._rounding[priced]

    def with_budget(self, budget: Tensor) -> 'Perturbations':
        """Return the same fragile edges with another budget per node."""
        return Perturbations(
            *(self.graph, self.removable, budget, self.addable),
            all_pairs=self.all_pairs,
        )

    def fragile(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the pairs of some rows that may flip.

        Args:
            rows (Tensor): int64: the rows, ascending.

        Returns:
            tuple[Tensor, Tensor, Tensor]: source, target, and whether it is
            an edge of the clean graph.
        """
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

    @validated
    def column_blocks(
        self, num_columns: Natural, numbers: Count = 1
    ) -> Iterator[slice]:
        """Split columns into slices whose dense blocks fit into memory.

        Args:
            num_columns (int): the number of all columns.
            numbers (int): the numbers of a column per node. (default:
                :obj:`1`)
        """
        size = max(1, _BLOCK // (self.num_nodes * numbers))
        # Blocks of even size: 30 columns as 15 + 15, not 29 + 1.
        count = max(1, math.ceil(num_columns / size))
        size = max(1, math.ceil(num_columns / count))
        return (
            slice(first, min(first + size, num_columns))
            for first in range(0, num_columns, size)
        )

    @validated
    def clean_policy(self, num_columns: Natural) -> 'Policy':
        """Return the policy that flips nothing."""
        return Policy.from_flips(
            self, [torch.zeros((2, 0), dtype=torch.int64)] * num_columns
        )

    def __repr__(self) -> str:
        added = 'all' if self.all_pairs else self.pairs.size(1)
        return (
            f'{type(self).__name__}(num_nodes={self.num_nodes}, '
            f'removable={int(self.removable.sum())}, additions={added}, '
            f'budget={int(self.budget.sum())})'
        )


class Policy:
    r"""One perturbed graph per column, :math:`\tilde P`.

    Args:
        perturbations (Perturbations): the clean graph.
        flips (PolicyFlips): the edges that are flipped, by column, sorted by
            source and target.
    """

    def __init__(
        self, perturbations: Perturbations, flips: ops.PolicyFlips
    ) -> None:
        self.perturbations = perturbations
        self.flipped = flips
        self.num_columns = flips.ptr.numel() - 1

    @classmethod
    @validated
    def from_flips(
        cls, perturbations: Perturbations, flips: Sequence[Tensor]
    ) -> 'Policy':
        """Make the policy that flips given edges.

        Args:
            perturbations (Perturbations): the clean graph.
            flips (Sequence[Tensor]): int64, ``[2, num_flips]``, per column.

        Raises:
            ValueError: if an edge is out of range or flipped twice.
        """
        if not isinstance(flips, Sequence) or isinstance(flips, str):
            raise TypeError(
                "'flips' needs to be a list of tensors, one per column "
                f'(got {type(flips).__name__})'
            )
        n = perturbations.num_nodes
        for pairs in flips:
            check_tensor('flips', pairs, torch.int64, (2, 'num_flips'))
        count = torch.tensor([pairs.size(1) for pairs in flips]).long()
        column = torch.arange(len(flips)).repeat_interleave(count)
        pairs = torch.cat([torch.zeros((2, 0)).long(), *flips], dim=1)
        check_range('flips', pairs, n, 'the nodes')
        # Columns are ascending, so a stable sort by each key in turn suffices.
        key, order = (pairs[0] * n + pairs[1]).sort(stable=True)
        column, again = column[order].sort(stable=True)
        key = key[again]
        if bool(((key.diff() == 0) & (column.diff() == 0)).any()):
            raise ValueError("'flips' needs to flip each edge once")
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
        r"""Solve :math:`x = r + a \tilde P x`, column by column.

        Args:
            reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
            follow (float): :math:`a`.
            start (Tensor): a first guess.
            goal (Tensor): float64, ``[num_columns]``: the largest residual.
            back (bool): whether to solve with :math:`\tilde P^{\top}`.
                (default: :obj:`False`)

        Returns:
            tuple[Tensor, Tensor]: :math:`x`, and its residual.
        """
        rowptr, col = self.perturbations.threat[:2]
        return ops.policy_solve(
            rowptr, col, self.flipped, reward, start, goal, follow, back
        )

    def total(self, of_edges: Tensor, of_pairs: Tensor) -> Tensor:
        """Sum values over the flips of each column: ``[num_columns]``.

        Args:
            of_edges (Tensor): ``[num_columns, num_edges]``: of the edges.
            of_pairs (Tensor): ``[num_columns, num_pairs]``: of
                :attr:`Perturbations.pairs`.
        """
        held = self.perturbations
        n, count = held.num_nodes, self.num_columns
        sums = of_edges.new_zeros(count)
        for name, value, (row, col) in (
            ('of_edges', of_edges, (held.graph.row, held.graph.col)),
            ('of_pairs', of_pairs, held.pairs),
        ):
            check_tensor(name, value, torch.float64, (count, row.numel()))
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
        check_integer('column', column, 0, self.num_columns - 1)
        ptr, row, col = self.flipped
        start, end = ptr[column : column + 2].tolist()
        return torch.stack([row[start:end], col[start:end]]).long()


def check_budgets(name: str, budget: Tensor, num_nodes: int) -> None:
    """Refuse budgets that are no number of flips for every node."""
    check_tensor(name, budget, torch.int64, (num_nodes,))
    if bool((budget < 0).any()):
        node = int((budget < 0).nonzero()[0])
        raise ValueError(
            f"'{name}' needs to be non-negative "
            f'(got {int(budget[node])} at node {node})'
        )


def check_once(name: str, key: Tensor, num_nodes: int) -> None:
    """Refuse edges that are listed more than once."""
    key = key.sort().values
    again = (key.diff() == 0).nonzero()
    if again.numel() > 0:
        u, v = divmod(int(key[again[0]]), num_nodes)
        raise ValueError(
            f"'{name}' needs to list each edge once (got {u} -> {v} more than "
            'once)'
        )


def _check(graph: CSRGraph, removable: Tensor, budget: Tensor) -> None:
    if not isinstance(graph, CSRGraph):
        raise TypeError(
            "'graph' needs to be a CSRGraph, see CSRGraph.convert "
            f'(got {type(graph).__name__})'
        )
    if graph.device.type != 'cpu':
        raise ValueError(
            "'graph' needs to be on the CPU, where worst cases are found "
            f'(got {graph.device})'
        )
    if graph.is_weighted:
        raise ValueError(
            "'graph' needs to be unweighted: an edge is there or not "
            '(got edge weights)'
        )
    if graph.has_duplicates:
        raise ValueError("'graph' needs to have no duplicate edges")
    check_tensor('removable', removable, torch.bool, (graph.num_edges,))
    check_budgets('budget', budget, graph.num_nodes)


def _addable_keys(
    graph: CSRGraph, addable: Tensor | None, all_pairs: bool
) -> Tensor:
    # The numbers of the pairs, ascending.
    if addable is None:
        return graph.row[:0]
    if all_pairs:
        raise ValueError(
            "'addable' needs to be None: it is all pairs already with "
            'all_pairs=True'
        )
    n = graph.num_nodes
    check_tensor('addable', addable, torch.int64, (2, 'num_pairs'))
    check_range('addable', addable, n, 'the nodes')
    key = addable[0] * n + addable[1]
    check_once('addable', key, n)
    there = torch.isin(key, graph.row * n + graph.col)
    if bool(there.any()):
        u, v = divmod(int(key[there][0]), n)
        raise ValueError(
            "'addable' needs to hold edges that are not in the graph "
            f'(got {u} -> {v})'
        )
    return key.sort().values
