r"""Personalized PageRank, and its worst case over admissible graphs.

`"Certifiable Robustness to Graph Perturbations"
<https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019) asks how
far an attacker who flips edges can push a linear function of PageRank. Write
:math:`\alpha` for the teleport probability, :math:`a = 1 - \alpha`, :math:`P =
D^{-1} A` over out-edges, and :math:`\Pi = \alpha (I - a P)^{-1}`, whose row
:math:`v` is the personalized PageRank of :math:`v`. A node :math:`i` may
choose any out-neighbourhood :math:`S` that differs from its clean one by at
most :math:`b_i` fragile edges, independently of all others. So

.. math::
    V^* = \max_{\tilde P} (I - a \tilde P)^{-1} r

is attained by one graph for all nodes at once, the fixed point of

.. math::
    (T V)_i = r_i + \max_{S, k \le b_i} \left[ \frac{a \sum_{j \in S} V_j +
    \rho_i - \mu_i k}{|S|} - \nu_i k \right], \quad k = |S \,\triangle\, S_i|,

with :math:`\rho = \mu = \nu = 0`. (These three serve the global budget,
:mod:`.budget`; they must be non-negative, :math:`\mu` and :math:`\nu` are
prices of a flip.) :func:`policy_iteration` finds it: it takes the
maximizing sets, solves the linear system they define, and repeats. For given
numbers of added and removed edges the best set adds the largest :math:`V_j`
and removes the smallest ones, so that prefix sums over sorted neighbours give
the maximum exactly; additions among all pairs need the first :math:`b_i + d_i
+ 1` nodes of the global order alone, never all :math:`n^2` pairs.

**What is certified.** For any :math:`V`, let :math:`g = T V - V`, attained by
the policy :math:`\tilde P`. As :math:`T` is monotone and :math:`T(V + c) = T V
+ a c` for a constant :math:`c \ge 0` (every :math:`S` is non-empty), and
:math:`V_{\tilde P} - V = (I - a \tilde P)^{-1} g`,

.. math::
    V_i + \frac{\min(0, \min_j g_j)}{\alpha} \le V_{\tilde P, i} \le V^*_i \le
    V_i + \frac{\max(0, \max_j g_j)}{\alpha} .

In float64 with unit roundoff :math:`u`, a computed :math:`g_i` is off by at
most :math:`e = u\,[\max_i L_i (L_i + 32) / s_i \cdot \lVert V \rVert_\infty +
8 (\lVert r \rVert_\infty + \lVert \rho \rVert_\infty)]`, where :math:`L_i` is
the largest and :math:`s_i` the smallest size of :math:`S`: a sum of up to
:math:`L_i` terms is off by :math:`u L_i^2 \lVert V \rVert_\infty`, each of the
few further operations, and each comparison that rounding may have decided
wrongly (at most one per element), by a few :math:`u L_i \lVert V
\rVert_\infty`, all of it divided by :math:`|S| \ge s_i`. Every bound here is
widened by :math:`e / \alpha`; it assumes nothing about how well the solver
did.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyg_trust.functional.measures import check_number
from pyg_trust.functional.ragged import pointer
from pyg_trust.graph import CSRGraph, sparse_rows

T = TypeVar('T')

# Columns are solved together while their edges fit into the cache.
_BLOCK = 2**19
_UNIT = torch.finfo(torch.float64).eps / 2


class Perturbations:
    r"""The graphs an attacker can make: flips of fragile out-edges.

    Admissible is every graph that differs from the clean one by fragile
    directed edges, at most :math:`b_i` in row :math:`i`. Rows are sources.

    Memory: :math:`O(|E| + \sum_i (b_i + d_i))`, for additions among all pairs
    too.

    Args:
        graph (CSRGraph): the clean graph, unweighted and without duplicate
            edges; every node needs an out-edge.
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
            budget, an addable edge that is in the graph, listed twice or out
            of range, or a node that could lose all its edges.
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
        _check_perturbations(graph, removable, budget, addable, all_pairs)
        self.graph = graph
        self.removable = removable
        self.addable = addable
        self.all_pairs = all_pairs
        self._made: dict[Any, Any] = {}
        n, device = graph.num_nodes, graph.device
        degree, row, col = graph.degree, graph.row, graph.col
        nodes = torch.arange(n, device=device)

        removals = row[removable].bincount(minlength=n)
        loops = row[row == col].bincount(minlength=n)
        if all_pairs:
            additions = n - 1 - (degree - loops)
        elif addable is not None:
            additions = addable[0].bincount(minlength=n)
        else:
            additions = torch.zeros_like(degree)
        self.budget = budget.minimum(removals + additions)
        self.smallest = degree - self.budget.minimum(removals)
        if bool((self.smallest < 1).any()):
            node = int((self.smallest < 1).nonzero()[0])
            raise ValueError(
                f'node {node} could lose all its {int(degree[node])} edges, '
                'and PageRank is not defined then: it needs a fixed edge or '
                f'a budget below {int(degree[node])} '
                f'(got {int(budget[node])})'
            )
        # At most so many flips of either kind can be of use in a row.
        self._max_removed = self.budget.minimum(removals)
        self._max_added = self.budget.minimum(additions)
        self.largest = degree + self._max_added
        active = self.budget > 0

        # Removable edges of rows with a budget; after sorting, the first
        # 'max_removed' of each row.
        self._edge = (removable & active[row]).nonzero().view(-1)
        self._edge_row, self._edge_col = row[self._edge], col[self._edge]
        keep = _position(self._edge_row) < self._max_removed[self._edge_row]
        self._best_edge = keep.nonzero().view(-1)
        self._removal = _Segments(self._max_removed)

        self._addition = _Segments(self._max_added)
        self._extra_row = row.new_zeros(0)
        if all_pairs:
            # The first b + d + 1 nodes of a global order hold the first b
            # that are neither a neighbour nor the node itself.
            width = (self.budget + degree + 1).clamp(max=n) * active
            self._window = _Segments(width)
            proper = active[row] & (row != col)
            self._taken_row = torch.cat([row[proper], nodes[active]])
            self._taken_col = torch.cat([col[proper], nodes[active]])
        elif addable is not None:
            addable = addable[:, active[addable[0]]]
            key = (addable[0] * n + addable[1]).sort().values
            self._extra_row, self._extra_col = key // n, key % n
            keep = (
                _position(self._extra_row) < self._max_added[self._extra_row]
            )
            self._best_extra = keep.nonzero().view(-1)

        self._choice = _Segments(self.budget)
        size = self.largest.double()
        self._rounding = float(
            (size * (size + 32) / self.smallest).max() * _UNIT
        )

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.graph.num_nodes

    @property
    def active(self) -> Tensor:
        """The nodes that can be perturbed: int64."""
        return (self.budget > 0).nonzero().view(-1)

    def with_budget(self, budget: Tensor) -> 'Perturbations':
        """The same fragile edges with another budget per node."""
        return Perturbations(
            self.graph,
            self.removable,
            budget,
            self.addable,
            all_pairs=self.all_pairs,
        )

    def column_blocks(self, num_columns: int) -> Iterator[slice]:
        """Slices of columns that are worth solving together."""
        work = self.graph.num_edges + self.num_nodes
        work += self._choice.total + self._addition.total
        size = max(1, _BLOCK // work)
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

    # One step of the dynamic program ########################################

    def improve(
        self,
        value: Tensor,
        follow: float,
        *,
        bonus: Tensor | None = None,
        visit_cost: Tensor | None = None,
        step_cost: Tensor | None = None,
        guess: Tensor | None = None,
    ) -> tuple['Policy', Tensor]:
        r"""The maximizing policy and :math:`T V - r`, column by column.

        Args:
            value (Tensor): :math:`V`, float64, ``[num_columns, num_nodes]``.
            follow (float): :math:`a`, the probability of following an edge.
            bonus (Tensor, optional): :math:`\rho`, the shape of
                :obj:`value`. (default: :obj:`None`)
            visit_cost (Tensor, optional): :math:`\mu`. (default: :obj:`None`)
            step_cost (Tensor, optional): :math:`\nu`. (default: :obj:`None`)
            guess (Tensor, optional): of :math:`T V - r`; it saves time.
                (default: :obj:`None`)
        """
        degree = self.graph.degree
        sums = self._clean_sums(value)
        clean = follow * sums
        if bonus is not None:
            clean = clean + bonus
        clean = clean / degree
        if self._choice.total == 0:
            return self.clean_policy(value.size(0)), clean

        order = _argsort(value)
        rank = torch.empty_like(order)
        nodes = torch.arange(self.num_nodes, device=order.device)
        rank.scatter_(1, order, nodes.expand_as(order))
        removed = self._sorted_removals(order, rank)
        out = value.gather(1, order.gather(1, removed))
        added = self._sorted_additions(order, rank)
        new = value.gather(1, added)

        row, count = self._choice.row, self._choice.position + 1
        total = follow * sums.index_select(1, row)
        if bonus is not None:
            total = total + bonus.index_select(1, row)
        if visit_cost is not None:
            total = total - visit_cost.index_select(1, row) * count
        price: Tensor | float = 0.0
        if step_cost is not None:
            price = step_cost.index_select(1, row) * count
        size: Tensor = degree[row]
        split: Tensor | None = None
        if self._addition.total == 0:
            total = total - follow * self._removal.cumsum(out)
            flips, best = self._choice.argmax(
                total / (size - count) - price, clean
            )
        elif self._removal.total == 0:
            total = total + follow * self._addition.cumsum(new)
            flips, best = self._choice.argmax(
                total / (size + count) - price, clean
            )
        else:
            flips, best, split = self._search(
                total,
                price,
                clean,
                clean if guess is None else guess,
                follow * new,
                follow * out,
            )
        num_added = flips
        if self._addition.total == 0:
            num_added = torch.zeros_like(flips)
        elif split is not None:
            chosen = (self._choice.start + flips - 1).clamp(
                0, self._choice.total - 1
            )
            num_added = torch.where(flips > 0, split.gather(1, chosen), 0)
        kept = self._kept(flips - num_added, rank, removed)
        row = self._addition.row
        column, entry = (
            self._addition.position < num_added.index_select(1, row)
        ).nonzero(as_tuple=True)
        new_edges = column, row[entry], added[column, entry]
        counts = flips - num_added, num_added
        return Policy(self, kept, new_edges, counts), best

    def _kept(
        self, num_removed: Tensor, rank: Tensor, removed: Tensor
    ) -> Tensor:
        # Of the removable edges of a row, sorted by rank, the first go.
        kept = torch.ones(
            (rank.size(0), self.graph.num_edges),
            dtype=torch.bool,
            device=rank.device,
        )
        if self._removal.total > 0:
            last = (self._removal.start + num_removed - 1).clamp(
                0, self._removal.total - 1
            )
            last = torch.where(num_removed > 0, removed.gather(1, last), -1)
            kept[:, self._edge] = rank.index_select(
                1, self._edge_col
            ) > last.index_select(1, self._edge_row)
        return kept

    def _clean_sums(self, value: Tensor) -> Tensor:
        matrix = self._constant(
            'clean',
            lambda: _csr(
                self.graph.rowptr,
                self.graph.col,
                value.new_ones(self.graph.num_edges),
                self.num_nodes,
            ),
        )
        return (matrix @ value.t().contiguous()).t().contiguous()

    def _sorted_removals(self, order: Tensor, rank: Tensor) -> Tensor:
        # The ranks of the cheapest removals of each row, ascending.
        key = rank.index_select(1, self._edge_col)
        key += self._edge_row * self.num_nodes
        key = _sort(key).index_select(1, self._best_edge)
        return key - self._removal.row * self.num_nodes

    def _sorted_additions(self, order: Tensor, rank: Tensor) -> Tensor:
        # The best additions of each row, descending.
        n = self.num_nodes
        if self.all_pairs:
            # Strike the row's own neighbours out of the first places of the
            # global order and take the first 'max_added' that are left.
            window = self._window
            place = n - 1 - rank.index_select(1, self._taken_col)
            inside = place < window.length[self._taken_row]
            place += window.start[self._taken_row]
            free = torch.ones(
                (rank.size(0), window.total + 1),
                dtype=torch.bool,
                device=rank.device,
            )
            free.scatter_(1, torch.where(inside, place, window.total), False)
            free = free[:, :-1]
            seen = free.cumsum(1)
            before = torch.where(window.start > 0, window.start - 1, 0)
            before = seen.index_select(1, before.clamp(max=window.total - 1))
            before = torch.where(window.start > 0, before, 0)
            free = free & (
                seen <= (before + self._max_added).index_select(1, window.row)
            )
            chosen = free.nonzero()[:, 1].view(rank.size(0), -1)
            return order.gather(1, n - 1 - window.position[chosen])
        if self._addition.total == 0:
            return order.new_zeros((rank.size(0), 0))
        key = self._extra_row * n + n - 1
        key = key - rank.index_select(1, self._extra_col)
        key = _sort(key).index_select(1, self._best_extra)
        return order.gather(1, n - 1 - (key - self._addition.row * n))

    def _search(
        self,
        total: Tensor,
        price: Tensor | float,
        clean: Tensor,
        guess: Tensor,
        new: Tensor,
        out: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""The best number of flips, the maximum, and how many are additions.

        With k flips a row is worth :math:`\frac{c_k + a \sum_S V}{|S|} -
        \nu k`. Dinkelbach's method: whether any S is worth more than
        :math:`f` is decided at the level :math:`m_k = f + \nu k` by the k
        largest of :math:`a V_j - m_k` (additions) and :math:`m_k - a V_j`
        (removals); what they are worth becomes :math:`f`, until it grows no
        more. The t-th addition belongs to the k largest if :math:`a (A_t +
        R_{k-t+1}) \ge 2 m_k`, which falls with t: a binary search.
        """
        row, count = self._choice.row, self._choice.position + 1
        low = (count - self._max_removed[row]).clamp(min=0)
        high = count.minimum(self._max_added[row])
        steps = int((high - low).max()).bit_length()
        last_in = self._addition.start[row] - 1
        last_out = self._removal.start[row] + count
        gained, lost = self._addition.cumsum(new), self._removal.cumsum(out)
        degree = self.graph.degree[row]
        found = clean.new_zeros(0), clean.new_full((), -math.inf), low
        # A few rounds do, as convergence is superlinear; after that, roundoff
        # alone could still move a tie up and down.
        for _ in range(_ROUNDS):
            level = 2 * (guess.index_select(1, row) + price)
            left, right = low.expand_as(level), high.expand_as(level)
            for _ in range(steps):
                # The index leaves its row only where left == right.
                middle = (left + right + 1) // 2
                t_in = (last_in + middle).clamp(0, new.size(1) - 1)
                t_out = (last_out - middle).clamp(0, out.size(1) - 1)
                wanted = new.gather(1, t_in) + out.gather(1, t_out) >= level
                wanted &= left < right
                right = torch.where(
                    wanted | (left == right), right, middle - 1
                )
                left = torch.where(wanted, middle, left)
            worth = (
                total
                + self._addition.prefix(gained, row, left)
                - self._removal.prefix(lost, row, count - left)
            ) / (degree + 2 * left - count)
            flips, best = self._choice.argmax(worth - price, clean)
            if not bool((best > found[1]).any()):
                break
            found = flips, best, left
            guess = best
        return found

    def _constant(self, key: Any, build: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = build()
        return self._made[key]

    def clean_policy(self, num_columns: int) -> 'Policy':
        """The policy that flips nothing."""
        none = self.graph.col.new_zeros(0)
        kept = torch.ones(
            (num_columns, self.graph.num_edges),
            dtype=torch.bool,
            device=none.device,
        )
        return Policy(self, kept, (none, none, none))

    def block_pattern(
        self, num_columns: int, *, back: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The clean graph ``num_columns`` times, as int32 rows and columns.

        Args:
            num_columns (int): how many times.
            back (bool): whether the edges are reversed.
                (default: :obj:`False`)

        Returns:
            tuple[Tensor, Tensor, Tensor]: ``rowptr``, ``col`` and, of a
            single copy, the position of each edge in the clean graph.
        """

        def build() -> tuple[Tensor, Tensor, Tensor]:
            graph = self.graph
            perm = torch.arange(graph.num_edges, device=graph.device)
            col, count = graph.col, graph.degree
            if back:
                perm = col.argsort(stable=True)
                col, count = graph.row[perm], graph.in_degree
            step = torch.arange(num_columns, device=graph.device)
            col = (step[:, None] * self.num_nodes + col).view(-1)
            rowptr = pointer(count.repeat(num_columns))
            return rowptr.int(), col.int(), perm

        return self._constant(('pattern', num_columns, back), build)


class Policy:
    r"""One perturbed graph per column, :math:`\tilde P`, as an operator.

    Args:
        perturbations (Perturbations): the clean graph and what may be flipped.
        kept (Tensor): bool, ``[num_columns, num_edges]``: the clean edges
            that stay.
        added (tuple[Tensor, Tensor, Tensor]): column, source and target of
            the new edges, sorted by column and source.
        counts (tuple[Tensor, Tensor], optional): how many edges each row
            lost and won, if it is known. (default: :obj:`None`)
    """

    def __init__(
        self,
        perturbations: Perturbations,
        kept: Tensor,
        added: tuple[Tensor, Tensor, Tensor],
        counts: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.perturbations = perturbations
        self.num_columns = kept.size(0)
        self.kept = kept
        self.added = added
        graph = perturbations.graph
        if counts is None:
            counts = self._count()
        num_removed, self._num_added = counts
        self.flips = self._num_added + num_removed
        self.size = graph.degree + self._num_added - num_removed
        self._share = self.size.double().reciprocal_()
        self._matrix: tuple[Tensor, ...] | None = None
        self._transposed: Tensor | None = None

    def _count(self) -> tuple[Tensor, Tensor]:
        graph = self.perturbations.graph
        lost, won = torch.zeros(
            (2, self.num_columns, graph.num_nodes),
            dtype=torch.int64,
            device=graph.device,
        )
        column, edge = (~self.kept).nonzero(as_tuple=True)
        for count, at in (
            (lost, (column, graph.row[edge])),
            (won, self.added[:2]),
        ):
            one = torch.ones_like(at[0])
            count.index_put_(at, one, accumulate=True)
        return lost, won

    @classmethod
    def from_flips(
        cls, perturbations: Perturbations, flips: Sequence[Tensor]
    ) -> 'Policy':
        """The policy that flips given edges, ``[2, num_flips]`` per column."""
        graph = perturbations.graph
        n = graph.num_nodes
        edges = graph.row * n + graph.col
        kept = torch.ones((len(flips), graph.num_edges), dtype=torch.bool)
        column = torch.arange(len(flips)).repeat_interleave(
            torch.tensor([pairs.size(1) for pairs in flips], dtype=torch.int64)
        )
        row, col = torch.cat([torch.zeros((2, 0)).long(), *flips], dim=1)
        key, order = ((column * n + row) * n + col).sort()
        column = column[order]
        key = key % (n * n)
        place = torch.searchsorted(edges, key).clamp(max=edges.numel() - 1)
        there = edges[place] == key
        kept[column[there], place[there]] = False
        key = key[~there]
        return cls(perturbations, kept, (column[~there], key // n, key % n))

    def unlike(self, other: 'Policy') -> Tensor:
        """A mask of the columns in which two policies differ."""
        unlike = (self.kept != other.kept).any(1)
        if not all(map(torch.equal, self.added, other.added)):
            n = self.perturbations.num_nodes
            key = torch.cat(
                [(c * n + i) * n + j for c, i, j in (self.added, other.added)]
            )
            key = _sort(key[None])[0]
            # Edges that only one of the two adds are there once.
            once = torch.ones_like(key, dtype=torch.bool)
            twice = key[1:] == key[:-1]
            once[1:][twice] = False
            once[:-1][twice] = False
            unlike[key[once] // n**2] = True
        return unlike

    def step(self, x: Tensor) -> Tensor:
        r""":math:`\tilde P x`, column by column."""
        if self._matrix is None:
            n = self.perturbations.num_nodes
            size = self.num_columns * n
            rowptr, col, _ = self.perturbations.block_pattern(self.num_columns)
            self._matrix = (
                _csr(rowptr, col, self.kept.view(-1).double(), size),
            )
            column, _, target = self.added
            if column.numel() > 0:
                self._matrix += (
                    _csr(
                        pointer(self._num_added.view(-1)),
                        column * n + target,
                        torch.ones(column.numel(), dtype=torch.float64),
                        size,
                    ),
                )
        flat = x.reshape(-1)
        out = self._matrix[0] @ flat
        if len(self._matrix) == 2:
            out += self._matrix[1] @ flat
        return out.view_as(x).mul_(self._share)

    def step_back(self, x: Tensor) -> Tensor:
        r""":math:`\tilde P^{\top} x`, column by column."""
        n = self.perturbations.num_nodes
        if self._transposed is None:
            rowptr, col, perm = self.perturbations.block_pattern(
                self.num_columns, back=True
            )
            self._transposed = _csr(
                rowptr,
                col,
                self.kept[:, perm].view(-1).double(),
                self.num_columns * n,
            )
        sent = (x * self._share).view(-1)
        out = self._transposed @ sent
        column, row, target = self.added
        if column.numel() > 0:
            out.index_add_(0, column * n + target, sent[column * n + row])
        return out.view_as(x)

    def edges(self, column: int) -> Tensor:
        """The flipped edges of a column: int64, ``[2, num_flips]``."""
        p = self.perturbations
        gone = (~self.kept[column]).nonzero().view(-1)
        of, row, target = self.added
        mine = of == column
        return torch.stack(
            [
                torch.cat([p.graph.row[gone], row[mine]]),
                torch.cat([p.graph.col[gone], target[mine]]),
            ]
        )


@dataclass(frozen=True)
class Optimum:
    r"""The worst case that policy iteration found, and how sure it is.

    The value of :obj:`policy` and the optimum are both in ``[value + low,
    value + high]`` at every node, roundoff included.
    """

    value: Tensor
    """:math:`V`, float64, ``[num_columns, num_nodes]``."""
    low: Tensor
    """float64, ``[num_columns]``, at most zero."""
    high: Tensor
    """float64, ``[num_columns]``, at least zero."""
    policy: Policy


def policy_iteration(
    perturbations: Perturbations,
    reward: Tensor,
    alpha: float,
    *,
    bonus: Tensor | None = None,
    visit_cost: Tensor | None = None,
    step_cost: Tensor | None = None,
    start: Tensor | None = None,
    tol: Tensor | float = 1e-12,
    max_iter: int = 100,
) -> Optimum:
    r"""Maximizes :math:`(I - a \tilde P)^{-1} r` over admissible graphs.

    All columns are independent problems, solved together; the maximum holds
    at all nodes at once. Inexact policy iteration: a policy is evaluated a
    hundred times more precisely than the last one was optimal, by BiCGSTAB
    and, where that stalls, by plain iteration. It stops when :math:`\lVert g
    \rVert_\infty` is at most :obj:`tol` times the largest reward or the
    roundoff (see the text of this module), or after :obj:`max_iter`
    iterations; the bounds returned hold in any case.

    Args:
        perturbations (Perturbations): the admissible graphs.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        bonus (Tensor, optional): :math:`\rho`. (default: :obj:`None`)
        visit_cost (Tensor, optional): :math:`\mu`. (default: :obj:`None`)
        step_cost (Tensor, optional): :math:`\nu`. (default: :obj:`None`)
        start (Tensor, optional): a first guess of :math:`V`.
            (default: :obj:`None`)
        tol (float or Tensor): relative tolerance, one for all columns or
            one for each. (default: :obj:`1e-12`)
        max_iter (int): the largest number of policies.
            (default: :obj:`100`)

    Returns:
        Optimum: value, error bounds and policy.
    """
    follow = 1 - check_alpha(alpha)
    costs = {
        'bonus': bonus,
        'visit_cost': visit_cost,
        'step_cost': step_cost,
    }
    bound = reward.abs().amax(1)
    if bonus is not None:
        bound = bound + bonus.abs().amax(1)
    value = reward / alpha if start is None else start
    if start is None:
        value = reward.clone()
    last: Policy | None = None
    for iteration in range(max_iter):
        policy, best = perturbations.improve(
            value, follow, guess=value - reward, **costs
        )
        gap = reward + best - value
        largest = gap.abs().amax(1)
        error = perturbations._rounding * value.abs().amax(1)
        error = error + 8 * _UNIT * bound
        goal = torch.maximum(tol * bound, 2 * error)
        if bool((largest <= goal).all()) or iteration == max_iter - 1:
            break
        # A policy that has not changed is likely to be the last one.
        precision = torch.maximum(_PRECISION * largest, goal / 4)
        if last is not None:
            changed = policy.unlike(last)
            precision = torch.where(changed, precision, goal / 4)
        last = policy
        value = solve(
            policy.step,
            reward + policy_reward(policy, **costs),
            follow,
            value + gap,
            precision,
        )
    low = (gap.amin(1).clamp(max=0) - error) / alpha
    high = (gap.amax(1).clamp(min=0) + error) / alpha
    return Optimum(value, low, high, policy)


_PRECISION = 1e-2
_ROUNDS = 50


def policy_value(
    policy: Policy, reward: Tensor, alpha: float, *, tol: float = 1e-12
) -> Optimum:
    r"""Computes :math:`V = (I - a \tilde P)^{-1} r` of given graphs.

    Args:
        policy (Policy): a graph per column.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        tol (float): relative tolerance. (default: :obj:`1e-12`)

    Returns:
        Optimum: value and error bounds, derived as in
        :func:`policy_iteration`.
    """
    follow = 1 - check_alpha(alpha)
    bound = reward.abs().amax(1)
    goal = tol * bound.clamp(min=_UNIT)
    value = solve(policy.step, reward, follow, reward, goal)
    gap = reward + follow * policy.step(value) - value
    error = _UNIT * (
        (policy.size.amax(1) + 32) * value.abs().amax(1) + 8 * bound
    )
    low = (gap.amin(1).clamp(max=0) - error) / alpha
    high = (gap.amax(1).clamp(min=0) + error) / alpha
    return Optimum(value, low, high, policy)


def policy_reward(
    policy: Policy,
    *,
    bonus: Tensor | None = None,
    visit_cost: Tensor | None = None,
    step_cost: Tensor | None = None,
) -> Tensor:
    r""":math:`(\rho - \mu k) / |S| - \nu k` of a policy."""
    made = torch.zeros(policy.size.shape, dtype=torch.float64)
    if bonus is not None:
        made = made + bonus / policy.size
    if visit_cost is not None:
        made = made - visit_cost * policy.flips / policy.size
    if step_cost is not None:
        made = made - step_cost * policy.flips
    return made


def class_pairs(num_classes: int) -> tuple[Tensor, Tensor]:
    """All ordered pairs of distinct classes."""
    pairs = torch.ones(num_classes, num_classes).fill_diagonal_(0).nonzero()
    return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class WorstCase:
    r"""The smallest margins over all admissible graphs, for all nodes.

    Entry ``[c1, c2, v]`` is about :math:`\min_{\tilde G} \pi_{\tilde
    G}(v)^\top (H_{c1} - H_{c2})`, and infinite for :math:`c1 = c2`. Both the
    exact minimum and the margin in the graph that :meth:`flips` makes are in
    ``[lower, upper]``.
    """

    margins: Tensor
    """float64, ``[num_classes, num_classes, num_nodes]``."""
    lower: Tensor
    """A bound from below that holds in spite of roundoff."""
    upper: Tensor
    """A bound from above that holds in spite of roundoff."""
    policies: tuple[tuple[slice, Policy], ...]
    """The worst graphs, by blocks of class pairs."""

    def flips(self, c1: int, c2: int) -> Tensor:
        """The edges to flip for a pair of classes: ``[2, num_flips]``."""
        num_classes = self.margins.size(0)
        pair = c1 * (num_classes - 1) + c2 - int(c2 > c1)
        for block, policy in self.policies:
            if block.start <= pair < block.stop:
                return policy.edges(pair - block.start)
        raise ValueError(f'there is no pair of classes ({c1}, {c2})')


def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: float,
    *,
    start: Tensor | None = None,
    tol: float = 1e-12,
) -> WorstCase:
    r"""The exact worst-case margins under local budgets.

    .. math::
        m^*_{c_1, c_2}(v) = \min_{\tilde G} \pi_{\tilde G}(v)^{\top}
        (H_{c_1} - H_{c_2}) = - \alpha V^*_v \quad \text{with} \quad r =
        H_{c_2} - H_{c_1}

    for all nodes and the :math:`K (K - 1)` pairs of classes at once
    (Proposition 1). Differentiable in :obj:`logits`, see
    :func:`robust_margins`, for training.

    Args:
        logits (Tensor): :math:`H`, ``[num_nodes, num_classes]``, taken as
            float64.
        perturbations (Perturbations): the admissible graphs.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        start (Tensor, optional): :obj:`margins` of a similar problem.
            (default: :obj:`None`)
        tol (float): as in :func:`policy_iteration`. (default: :obj:`1e-12`)

    Returns:
        WorstCase: margins, their bounds, and the graphs that attain them.
    """
    alpha = check_alpha(alpha)
    check_logits(logits, perturbations.graph)
    logits = logits.detach().double()
    num_classes = logits.size(1)
    first, second = class_pairs(num_classes)
    reward = (logits[:, second] - logits[:, first]).t().contiguous()
    if start is None:
        # The clean graph's, which takes a column per class, not per pair.
        clean = policy_value(
            perturbations.clean_policy(num_classes),
            logits.t().contiguous(),
            alpha,
            tol=1e-3,
        ).value
        guess = clean[second] - clean[first]
    else:
        guess = -start[first, second] / alpha
    shape = (num_classes, num_classes, logits.size(0))
    margins, lower, upper = (
        logits.new_full(shape, math.inf) for _ in range(3)
    )
    policies = []
    for block in perturbations.column_blocks(first.numel()):
        found = policy_iteration(
            perturbations,
            reward[block],
            alpha,
            start=guess[block],
            tol=tol,
        )
        pair = first[block], second[block]
        margins[pair] = -alpha * found.value
        lower[pair] = -alpha * (found.value + found.high[:, None])
        upper[pair] = -alpha * (found.value + found.low[:, None])
        policies.append((block, found.policy))
    return WorstCase(margins, lower, upper, tuple(policies))


class _RobustMargins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, worst: WorstCase, alpha: float
    ) -> Tensor:
        ctx.arguments = worst, alpha
        ctx.dtype = logits.dtype
        # A copy: autograd marks what is returned here.
        return worst.margins.to(logits.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        worst, alpha = ctx.arguments
        num_classes, _, num_nodes = worst.margins.shape
        first, second = class_pairs(num_classes)
        made = grads[0].new_zeros(
            (num_classes, num_nodes), dtype=torch.float64
        )
        for block, policy in worst.policies:
            pair = first[block], second[block]
            sent = alpha * grads[0][pair].double()
            back = solve(
                policy.step_back,
                sent,
                1 - alpha,
                sent,
                _BACKWARD * sent.abs().amax(1).clamp(min=_UNIT),
            )
            made.index_add_(0, pair[0], back)
            made.index_add_(0, pair[1], back, alpha=-1)
        return made.t().to(ctx.dtype), None, None


_BACKWARD = 1e-9


def robust_margins(logits: Tensor, worst: WorstCase, alpha: float) -> Tensor:
    r"""The worst-case margins as a differentiable function of the logits.

    By Danskin's theorem the derivative of a minimum is that of its minimizer:
    with the worst graphs held fixed,

    .. math::
        \frac{\partial m^*_{c_1, c_2}(v)}{\partial H_{i, c_1}} =
        \pi^*_{c_1, c_2}(v)_i = - \frac{\partial m^*_{c_1, c_2}(v)}{\partial
        H_{i, c_2}} .

    (Where several graphs are worst, this is one element of the
    subdifferential.) The backward pass solves one transposed system per pair
    of classes; no PageRank matrix is made.

    Args:
        logits (Tensor): :math:`H`, ``[num_nodes, num_classes]``.
        worst (WorstCase): of the same logits.
        alpha (float): the same teleport probability.

    Returns:
        Tensor: ``[num_classes, num_classes, num_nodes]`` in the dtype of
        :obj:`logits`.
    """
    return _RobustMargins.apply(logits, worst, alpha)


def diffuse(
    graph: CSRGraph,
    x: Tensor,
    alpha: float,
    *,
    normalization: str = 'rw',
    tol: float | None = None,
) -> Tensor:
    r"""Solves for exact personalized PageRank diffusion.

    .. math::
        Z = \alpha (I - (1 - \alpha) \hat{A})^{-1} X

    with :math:`\hat{A} = D^{-1} A` over out-edges (:obj:`'rw'`), whose rows
    are the personalized PageRank vectors, or :math:`\hat{A} = D^{-1/2} A
    D^{-1/2}` (:obj:`'sym'`, for undirected graphs), iteratively and without
    a dense matrix. Differentiable in :obj:`x`. A node without out-edges keeps
    :math:`\alpha x`.

    Args:
        graph (CSRGraph): the graph; edge weights, if any, count.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
            (default: :obj:`'rw'`)
        tol (float, optional): the largest residual, relative to the largest
            entry of each column; the error is at most :math:`1 / \alpha`
            (:obj:`'rw'`) times that. By default 1e-12 (float64) or 1e-6.
            (default: :obj:`None`)

    Returns:
        Tensor: :math:`Z`, of the shape and dtype of :obj:`x`.
    """
    check_alpha(alpha)
    if normalization not in ('rw', 'sym'):
        raise ValueError(
            "'normalization' needs to be 'rw' or 'sym' "
            f'(got {normalization!r})'
        )
    if normalization == 'sym' and not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected for normalization='sym' (got a "
            'directed one)'
        )
    if x.dim() != 2 or x.size(0) != graph.num_nodes:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}, num_columns] "
            f'(got {list(x.shape)})'
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'x' needs to be float32 or float64 (got {x.dtype})")
    if tol is None:
        tol = 1e-12 if x.dtype == torch.float64 else 1e-6
    return _Diffuse.apply(x, graph, float(alpha), normalization, tol)


class _Diffuse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        graph: CSRGraph,
        alpha: float,
        normalization: str,
        tol: float,
    ) -> Tensor:
        ctx.arguments = graph, alpha, normalization, tol
        return _diffuse(x, graph, alpha, normalization, tol)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        graph, alpha, normalization, tol = ctx.arguments
        made = _diffuse(grads[0], graph, alpha, normalization, tol, back=True)
        return made, None, None, None, None


def _diffuse(
    x: Tensor,
    graph: CSRGraph,
    alpha: float,
    normalization: str,
    tol: float,
    *,
    back: bool = False,
) -> Tensor:
    weight = graph.weight
    if weight is None:
        weight = torch.ones(graph.num_edges, device=graph.device)
    weight = weight.to(x.dtype)
    degree = weight.new_zeros(graph.num_nodes)
    degree.index_add_(0, graph.row, weight)
    degree[degree == 0] = 1
    weight = weight / degree[graph.row]
    # (I - a D^-1/2 A D^-1/2)^-1 = D^1/2 (I - a D^-1 A)^-1 D^-1/2, which is
    # its own transpose.
    scale = degree.sqrt() if normalization == 'sym' else 1.0
    rowptr, col = graph.rowptr, graph.col
    if back and normalization == 'rw':
        perm = graph.col.argsort(stable=True)
        rowptr = pointer(graph.in_degree)
        col, weight = graph.row[perm], weight[perm]
    matrix = _csr(rowptr, col, weight, graph.num_nodes)
    reward = alpha * (x.t() / scale).contiguous()
    tiny = torch.finfo(x.dtype).tiny
    value = solve(
        lambda value: (matrix @ value.t().contiguous()).t().contiguous(),
        reward,
        1 - alpha,
        reward,
        tol * reward.abs().amax(1).clamp(min=tiny),
    )
    return (value * scale).t().contiguous()


def check_alpha(alpha: float) -> float:
    """Checks a teleport probability."""
    if not 0 < check_number('alpha', alpha) < 1:
        raise ValueError(
            "'alpha', the teleport probability, needs to be in (0, 1) "
            f'(got {alpha})'
        )
    return float(alpha)


class _Segments:
    """Consecutive pieces of an array, one per node."""

    def __init__(self, length: Tensor) -> None:
        self.length = length
        self.total = int(length.sum())
        self.start = length.cumsum(0) - length
        nodes = torch.arange(length.numel(), device=length.device)
        self.row = nodes.repeat_interleave(length)
        self.position = (
            torch.arange(self.total, device=length.device)
            - self.start[self.row]
        )
        self.longest = int(length.max())

    def cumsum(self, values: Tensor) -> Tensor:
        """Running sums inside each piece, in a tree of depth log2.

        Unlike a running sum over the whole array, its roundoff is that of the
        piece alone.
        """
        step = 1
        while step < self.longest:
            before = torch.where(
                self.position[step:] >= step, values[:, :-step], 0
            )
            values = torch.cat(
                [values[:, :step], values[:, step:] + before], dim=1
            )
            step *= 2
        return values

    def prefix(self, sums: Tensor, row: Tensor, count: Tensor) -> Tensor:
        """The sum of the first ``count`` entries of the pieces ``row``."""
        last = (self.start[row] + count - 1).clamp(0, self.total - 1)
        return torch.where(count > 0, sums.gather(1, last), 0)

    def argmax(
        self, values: Tensor, baseline: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The first position of the maximum of each piece, plus one.

        Zero where nothing exceeds the baseline; and the maximum.
        """
        row = self.row.expand_as(values)
        best = baseline.scatter_reduce(1, row, values, 'amax')
        hit = values == best.index_select(1, self.row)
        hit &= values > baseline.index_select(1, self.row)
        large = self.longest + 1
        where = torch.where(hit, self.position + 1, large)
        first = self.row.new_full(baseline.shape, large)
        first.scatter_reduce_(1, row, where, 'amin')
        return torch.where(first == large, 0, first), best


def solve(
    step: Callable[[Tensor], Tensor],
    reward: Tensor,
    follow: float,
    x: Tensor,
    tol: Tensor,
) -> Tensor:
    r"""Solves :math:`x = r + a \tilde P x` to residual ``tol`` per column.

    BiCGSTAB on all columns at once, then plain iteration, whose residual
    falls by :math:`a` per step whatever the graph, until roundoff stops it.
    """
    x = _bicgstab(step, reward, follow, x, tol)
    best, stale = math.inf, 0
    while True:
        following = reward + follow * step(x)
        left = float(((following - x).abs().amax(1) / tol).max())
        stale = 0 if left < best else stale + 1
        if left <= 1 or stale > 10:
            return x
        x, best = following, min(left, best)


def _bicgstab(
    step: Callable[[Tensor], Tensor],
    reward: Tensor,
    follow: float,
    x: Tensor,
    tol: Tensor,
    max_iter: int = 200,
) -> Tensor:
    first, x = x, x.clone()
    residual = reward + follow * step(x) - x
    initial = _largest(residual)
    shadow = residual
    direction = image = torch.zeros_like(x)
    rho = size = omega = x.new_ones((x.size(0), 1))
    for _ in range(max_iter):
        if bool((_largest(residual) <= tol).all()):
            break
        rho_next = _dot(shadow, residual)
        beta = _ratio(rho_next * size, rho * omega)
        direction = torch.addcmul(direction, omega, image, value=-1)
        direction = torch.addcmul(residual, beta, direction)
        image = torch.add(direction, step(direction), alpha=-follow)
        size = _ratio(rho_next, _dot(shadow, image))
        half = torch.addcmul(residual, size, image, value=-1)
        moved = torch.add(half, step(half), alpha=-follow)
        omega = _ratio(_dot(moved, half), _dot(moved, moved))
        x.addcmul_(size, direction).addcmul_(omega, half)
        residual = torch.addcmul(half, omega, moved, value=-1)
        rho = rho_next
    # Where it broke down, keep what came in.
    bad = ~(_largest(residual) <= initial)
    return torch.where(bad[:, None], first, x)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, y).unsqueeze(1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    # Zero stops a column that has converged to nothing or broken down.
    ratio = numerator / denominator
    return torch.where(ratio.isfinite(), ratio, 0)


def _csr(rowptr: Tensor, col: Tensor, value: Tensor, size: int) -> Tensor:
    # int32, which MKL multiplies without a copy.
    return sparse_rows(rowptr.int(), col.int(), value, (size, size))


def _position(row: Tensor) -> Tensor:
    # The position of each entry in its row; rows are ascending.
    start = torch.searchsorted(row, row)
    return torch.arange(row.numel(), device=row.device) - start


def _sort(key: Tensor) -> Tensor:
    # numpy's vectorized sort is about ten times faster than torch's.
    return torch.from_numpy(np.sort(key.numpy(), axis=1))


def _argsort(value: Tensor) -> Tensor:
    return torch.from_numpy(np.argsort(value.numpy(), axis=1))


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
    check_out_edges(graph)
    check_tensor('removable', removable, torch.bool, (graph.num_edges,))
    check_tensor('budget', budget, torch.int64, (n,))
    if bool((budget < 0).any()):
        node = int((budget < 0).nonzero()[0])
        raise ValueError(
            "'budget' needs to be non-negative "
            f'(got {int(budget[node])} at node {node})'
        )
    if addable is None:
        return
    if all_pairs:
        raise ValueError("'addable' is all pairs already with all_pairs=True")
    if addable.dim() != 2 or addable.size(0) != 2:
        raise ValueError(
            "'addable' needs to have the shape [2, num_pairs] "
            f'(got {list(addable.shape)})'
        )
    check_tensor('addable', addable, torch.int64, tuple(addable.shape))
    if addable.numel() == 0:
        return
    low, high = int(addable.min()), int(addable.max())
    if low < 0 or high >= n:
        raise ValueError(
            f"'addable' needs to be in [0, {n}), the nodes "
            f'(got {low} to {high})'
        )
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


def check_logits(logits: Tensor, graph: CSRGraph) -> None:
    """Checks logits: finite, a row per node, two classes or more."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = getattr(logits, 'dtype', type(logits).__name__)
        raise TypeError(
            f"'logits' needs to be a floating-point tensor (got {got})"
        )
    n = graph.num_nodes
    if logits.dim() != 2 or logits.size(0) != n or logits.size(1) < 2:
        raise ValueError(
            f"'logits' needs to have the shape [{n}, num_classes], a row per "
            'node and at least two classes '
            f'(got {list(logits.shape)})'
        )
    if not bool(logits.isfinite().all()):
        raise ValueError("'logits' needs to be finite (got NaN or infinity)")


def check_out_edges(graph: CSRGraph) -> None:
    """Checks that PageRank is defined: every node has an out-edge."""
    if bool((graph.degree == 0).any()):
        node = int((graph.degree == 0).nonzero()[0])
        raise ValueError(
            f'node {node} has no out-edge, and PageRank is not defined then: '
            'drop it (torch_geometric.transforms.LargestConnectedComponents) '
            'or give it an edge'
        )


def check_tensor(
    name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Checks a tensor's dtype and shape."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor (got {type(value).__name__})"
        )
    if value.dtype != dtype:
        raise TypeError(
            f"'{name}' needs to be {str(dtype).removeprefix('torch.')} "
            f'(got {value.dtype})'
        )
    if tuple(value.shape) != shape:
        raise ValueError(
            f"'{name}' needs to have the shape {list(shape)} "
            f'(got {list(value.shape)})'
        )
