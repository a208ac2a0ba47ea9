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

# Numbers in a dense block of columns by nodes.
_BLOCK = 2**22
_UNIT = torch.finfo(torch.float64).eps / 2


class Perturbations:
    r"""Admissible graphs: flips of fragile out-edges within budgets.

    Admissible is every graph that differs from the clean one by fragile
    directed edges, at most :math:`b_i` in row :math:`i`. Rows are sources. A
    node without edges, from the start or because it lost all of them, keeps
    what it has: :math:`V_i = r_i`.

    Memory: linear in nodes, edges and addable pairs; additions among all pairs
    need none.

    Args:
        graph (CSRGraph): the clean graph, unweighted and without duplicate
            edges.
        removable (Tensor): bool, ``[num_edges]``: the edges, in the order of
            :obj:`graph.col`, that may be removed.
        addable (Tensor, optional): int64, ``[2, num_pairs]``: the edges that
            may be added, none of them in the graph. (default: :obj:`None`)
        budget (Tensor): int64, ``[num_nodes]``: :math:`b_i`.
        all_pairs (bool): whether every ordered pair of distinct nodes that is
            no edge may be added. (default: :obj:`False`)

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
        _check_perturbations(graph, removable, budget, addable, all_pairs)
        self.graph = graph
        self.removable = removable
        self.addable = addable
        self.all_pairs = all_pairs
        n, row, col = graph.num_nodes, graph.row, graph.col
        removals = row[removable].bincount(minlength=n)
        if all_pairs:
            loops = row[row == col].bincount(minlength=n)
            additions = n - 1 - (graph.degree - loops)
        elif addable is not None:
            additions = addable[0].bincount(minlength=n)
        else:
            additions = torch.zeros_like(graph.degree)
        self.budget = budget.minimum(removals + additions)
        # The most flips of either kind that can help in a row.
        lost = self.budget.minimum(removals)
        won = self.budget.minimum(additions)
        self.smallest, self.largest = graph.degree - lost, graph.degree + won
        ratio = self.largest / self.smallest.clamp(min=1).double()
        # Cached with prices of single edges, and without.
        self._rounding_priced = 64 * _UNIT * float(ratio.max().clamp(min=1))
        ratio[(lost == 0) | (won == 0)] = 1
        self._rounding = 64 * _UNIT * float(ratio.max())
        addable = row.new_zeros((2, 0)) if addable is None else addable
        key = (addable[0] * n + addable[1]).sort().values
        self._pairs = torch.stack([key // n, key % n])
        self._threat = ops.PolicyThreat(
            *graph.receivers(along=False),
            removable,
            self.budget,
            pointer((key // n).bincount(minlength=n)),
            (key % n).int(),
            all_pairs,
        )

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.graph.num_nodes

    @property
    def pairs(self) -> Tensor:
        """Pairs that may be added, by source and target: ``[2, p]``."""
        return self._pairs

    @property
    def active(self) -> Tensor:
        """Nodes that can be perturbed: int64."""
        return (self.budget > 0).nonzero().view(-1)

    def with_budget(self, budget: Tensor) -> 'Perturbations':
        """Return the same fragile edges with another budget per node."""
        return Perturbations(
            self.graph,
            self.removable,
            budget,
            self.addable,
            all_pairs=self.all_pairs,
        )

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
        return self._blocks(num_columns, numbers)

    def _blocks(self, num_columns: int, numbers: int) -> Iterator[slice]:
        size = max(1, _BLOCK // (self.num_nodes * numbers))
        # Blocks of even size: 30 columns as 15 + 15, not 29 + 1.
        count = max(1, math.ceil(num_columns / size))
        size = max(1, math.ceil(num_columns / count))
        for first in range(0, num_columns, size):
            yield slice(first, min(first + size, num_columns))

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(num_nodes={self.num_nodes}, '
            f'removable={int(self.removable.sum())}, '
            f'additions={self._describe_additions()}, '
            f'budget={int(self.budget.sum())})'
        )

    def _describe_additions(self) -> str:
        if self.all_pairs:
            return 'all'
        return '0' if self.addable is None else str(self.addable.size(1))

    @validated
    def clean_policy(self, num_columns: Natural) -> 'Policy':
        """Return the policy that flips nothing."""
        none = torch.zeros(0, dtype=torch.int32)
        ptr = torch.zeros(num_columns + 1, dtype=torch.int64)
        return Policy(self, ops.PolicyFlips(ptr, none, none))


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
        for pairs in flips:
            check_tensor('flips', pairs, torch.int64, (2, 'num_flips'))
        n = perturbations.num_nodes
        count = torch.tensor([pairs.size(1) for pairs in flips]).long()
        column = torch.arange(len(flips)).repeat_interleave(count)
        pairs = torch.cat([torch.zeros((2, 0)).long(), *flips], dim=1)
        if (
            pairs.numel() > 0
            and not 0 <= int(pairs.min()) <= int(pairs.max()) < n
        ):
            raise ValueError(
                f"'flips' needs to be in [0, {n}), the nodes "
                f'(got {int(pairs.min())} to {int(pairs.max())})'
            )
        # Columns are ascending, so a stable sort by each key in turn suffices.
        key, order = (pairs[0] * n + pairs[1]).sort(stable=True)
        column, again = column[order].sort(stable=True)
        key = key[again]
        if bool(((key.diff() == 0) & (column.diff() == 0)).any()):
            raise ValueError("'flips' needs to flip each edge once")
        policy = cls(
            perturbations,
            ops.PolicyFlips(pointer(count), (key // n).int(), (key % n).int()),
        )
        return policy

    @cached_property
    def _place(self) -> Tensor:
        # The position of each flip in a dense [num_columns, num_nodes] array.
        column = torch.arange(self.num_columns).repeat_interleave(
            self.flipped.ptr.diff()
        )
        return column * self.perturbations.num_nodes + self.flipped.row

    def _count(self, place: Tensor) -> Tensor:
        n = self.perturbations.num_nodes
        count = place.bincount(minlength=self.num_columns * n)
        return count.view(self.num_columns, n)

    @cached_property
    def flips(self) -> Tensor:
        """Count the flipped edges of each row: ``[num_columns, n]``."""
        return self._count(self._place)

    @cached_property
    def size(self) -> Tensor:
        """Count the edges of each row: ``[num_columns, num_nodes]``."""
        graph = self.perturbations.graph
        edges = graph.row * graph.num_nodes + graph.col
        key = self.flipped.row.long() * graph.num_nodes + self.flipped.col
        lost = self._count(self._place[torch.isin(key, edges)])
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
        threat = self.perturbations._threat
        return ops.policy_solve(
            threat.rowptr,
            threat.col,
            self.flipped,
            reward,
            start,
            goal,
            follow,
            back,
        )

    def total(self, of_edges: Tensor, of_pairs: Tensor) -> Tensor:
        """Sum values over the flips of each column.

        Args:
            of_edges (Tensor): ``[num_columns, num_edges]``: of the edges.
            of_pairs (Tensor): ``[num_columns, num_pairs]``: of
                :attr:`Perturbations.pairs`.

        Returns:
            Tensor: ``[num_columns]``.
        """
        held = self.perturbations
        n, count = held.num_nodes, self.num_columns
        edges = (count, held.graph.num_edges)
        check_tensor('of_edges', of_edges, torch.float64, edges)
        pairs = (count, held.pairs.size(1))
        check_tensor('of_pairs', of_pairs, torch.float64, pairs)
        key = self.flipped.row.long() * n + self.flipped.col
        column = torch.arange(count).repeat_interleave(self.flipped.ptr.diff())
        sums = of_edges.new_zeros(count)
        for keys, value in (
            (held.graph.row * n + held.graph.col, of_edges),
            (held.pairs[0] * n + held.pairs[1], of_pairs),
        ):
            if keys.numel() == 0:
                continue
            place = torch.searchsorted(keys, key).clamp(max=keys.numel() - 1)
            here = keys[place] == key
            sums.index_add_(0, column[here], value[column[here], place[here]])
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


def _check_perturbations(
    graph: CSRGraph,
    removable: Tensor,
    budget: Tensor,
    addable: Tensor | None,
    all_pairs: bool,
) -> None:
    if not isinstance(graph, CSRGraph):
        raise TypeError(
            "'graph' needs to be a CSRGraph, see CSRGraph.convert "
            f'(got {type(graph).__name__})'
        )
    n = graph.num_nodes
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
    check_budgets('budget', budget, n)
    if addable is None:
        return
    if all_pairs:
        raise ValueError(
            "'addable' needs to be None: it is all pairs already with "
            'all_pairs=True'
        )
    check_tensor('addable', addable, torch.int64, (2, 'num_pairs'))
    if addable.numel() == 0:
        return
    check_range('addable', addable, n, 'the nodes')
    key = (addable[0] * n + addable[1]).sort().values
    again = (key.diff() == 0).nonzero()
    if again.numel() > 0:
        pair = int(key[again[0]])
        raise ValueError(
            "'addable' needs to list each edge once "
            f'(got {pair // n} -> {pair % n} more than once)'
        )
    there = torch.isin(key, graph.row * n + graph.col)
    if bool(there.any()):
        pair = int(key[there][0])
        raise ValueError(
            "'addable' needs to hold edges that are not in the graph "
            f'(got {pair // n} -> {pair % n})'
        )
