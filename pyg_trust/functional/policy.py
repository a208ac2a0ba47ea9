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
most :math:`e = 64 u\,(\kappa \lVert V \rVert_\infty + \lVert r \rVert_\infty +
\lVert \rho \rVert_\infty)`, where :math:`\kappa` is 1 if no row may both lose
and win edges, and else the largest ratio of the largest to the smallest size
of such an :math:`S`; ``csrc/policy.h`` counts the roundings. Every bound here
is widened by :math:`e / \alpha`; it assumes nothing about how well the solver
did.

Policies are found and evaluated by :func:`pyg_trust.ops.policy_iteration` and
:func:`pyg_trust.ops.policy_solve`, every column by one thread, so that results
do not depend on their number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust import ops
from pyg_trust._checks import (
    REAL,
    check_choice,
    check_instance,
    check_integer,
    check_non_negative,
    check_number,
    check_positive,
    check_range,
    check_tensor,
)
from pyg_trust.functional.ragged import pointer
from pyg_trust.graph import CSRGraph, sparse_rows

# Numbers in a dense block of columns by nodes.
_BLOCK = 2**22
_UNIT = torch.finfo(torch.float64).eps / 2


class Perturbations:
    r"""The graphs an attacker can make: flips of fragile out-edges.

    Admissible is every graph that differs from the clean one by fragile
    directed edges, at most :math:`b_i` in row :math:`i`. Rows are sources.

    Memory: linear in nodes, edges and addable pairs; additions among all pairs
    need none.

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
        # At most so many flips of either kind can be of use in a row.
        lost = self.budget.minimum(removals)
        won = self.budget.minimum(additions)
        self.smallest, self.largest = graph.degree - lost, graph.degree + won
        if bool((self.smallest < 1).any()):
            node = int((self.smallest < 1).nonzero()[0])
            raise ValueError(
                f'node {node} could lose all its {int(graph.degree[node])} '
                'edges, and PageRank is not defined then: it needs a fixed '
                f'edge or a budget below {int(graph.degree[node])} '
                f'(got {int(budget[node])})'
            )
        ratio = self.largest / self.smallest.double()
        ratio[(lost == 0) | (won == 0)] = 1
        self._rounding = 64 * _UNIT * float(ratio.max())
        addable = row.new_zeros((2, 0)) if addable is None else addable
        key = (addable[0] * n + addable[1]).sort().values
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

    def column_blocks(
        self, num_columns: int, numbers: int = 1
    ) -> Iterator[slice]:
        """Slices of columns, few enough to keep dense blocks in memory.

        Args:
            num_columns (int): how many there are in all.
            numbers (int): how many numbers a column has per node.
                (default: :obj:`1`)
        """
        check_integer('num_columns', num_columns, 0)
        check_integer('numbers', numbers, 1)
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

    def clean_policy(self, num_columns: int) -> 'Policy':
        """The policy that flips nothing."""
        check_integer('num_columns', num_columns, 0)
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
    def from_flips(
        cls, perturbations: Perturbations, flips: Sequence[Tensor]
    ) -> 'Policy':
        """The policy that flips given edges.

        Args:
            perturbations (Perturbations): the clean graph.
            flips (Sequence[Tensor]): int64, ``[2, num_flips]``, per column.

        Raises:
            ValueError: if an edge is out of range or flipped twice, or a node
                loses all its edges.
        """
        check_instance('perturbations', perturbations, Perturbations)
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
        # Columns are ascending, so a stable sort by each key in turn will do.
        key, order = (pairs[0] * n + pairs[1]).sort(stable=True)
        column, again = column[order].sort(stable=True)
        key = key[again]
        if bool(((key.diff() == 0) & (column.diff() == 0)).any()):
            raise ValueError("'flips' needs to flip each edge once")
        made = cls(
            perturbations,
            ops.PolicyFlips(pointer(count), (key // n).int(), (key % n).int()),
        )
        if bool((made.size < 1).any()):
            raise ValueError("'flips' needs to leave each node an edge")
        return made

    @cached_property
    def _place(self) -> Tensor:
        # Of each flip in a dense [num_columns, num_nodes] array.
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
        """How many edges of each row are flipped: ``[num_columns, n]``."""
        return self._count(self._place)

    @cached_property
    def size(self) -> Tensor:
        """How many edges each row has: ``[num_columns, num_nodes]``."""
        graph = self.perturbations.graph
        edges = graph.row * graph.num_nodes + graph.col
        key = self.flipped.row.long() * graph.num_nodes + self.flipped.col
        old = torch.searchsorted(edges, key).clamp(max=edges.numel() - 1)
        lost = self._count(self._place[edges[old] == key])
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
        r"""Solves :math:`x = r + a \tilde P x`, column by column.

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

    def edges(self, column: int) -> Tensor:
        """The flipped edges of a column: int64, ``[2, num_flips]``."""
        check_integer('column', column, 0, self.num_columns - 1)
        ptr, row, col = self.flipped
        start, end = ptr[column : column + 2].tolist()
        return torch.stack([row[start:end], col[start:end]]).long()


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
    check_instance('perturbations', perturbations, Perturbations)
    follow = 1 - check_alpha(alpha)
    shape: tuple[int | str, ...] = ('num_columns', perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    for name, value in (
        ('bonus', bonus),
        ('visit_cost', visit_cost),
        ('step_cost', step_cost),
        ('start', start),
    ):
        if value is not None:
            wanted = reward.shape
            check_tensor(name, value, torch.float64, wanted, finite=True)
    if not isinstance(tol, Tensor):
        check_non_negative('tol', tol)
    check_integer('max_iter', max_iter, 1)
    bound = reward.abs().amax(1)
    if bonus is not None:
        bound = bound + bonus.abs().amax(1)
    rounding = perturbations._rounding
    value, gap, *flips = ops.policy_iteration(
        perturbations._threat,
        reward,
        reward if start is None else start,
        # What roundoff hides is no reason to go on.
        torch.maximum(tol * bound, 4 * 64 * _UNIT * bound),
        2 * rounding,
        follow,
        max_iter,
        bonus=bonus,
        visit_cost=visit_cost,
        step_cost=step_cost,
    )
    error = rounding * value.abs().amax(1) + 64 * _UNIT * bound
    policy = Policy(perturbations, ops.PolicyFlips(*flips))
    return _optimum(policy, value, gap, error, alpha)


def _optimum(
    policy: Policy, value: Tensor, gap: Tensor, error: Tensor, alpha: float
) -> Optimum:
    low = (gap.amin(1).clamp(max=0) - error) / alpha
    high = (gap.amax(1).clamp(min=0) + error) / alpha
    return Optimum(value, low, high, policy)


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
    check_instance('policy', policy, Policy)
    follow = 1 - check_alpha(alpha)
    shape = (policy.num_columns, policy.perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    check_positive('tol', tol)
    bound = reward.abs().amax(1)
    value, gap = policy.solve(reward, follow, reward, tol * bound)
    error = 64 * _UNIT * (value.abs().amax(1) + bound)
    return _optimum(policy, value, gap, error, alpha)


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
        check_integer('c1', c1, 0, num_classes - 1)
        check_integer('c2', c2, 0, num_classes - 1)
        if c1 == c2:
            raise ValueError(f"'c2' needs to differ from 'c1' (got {c2})")
        pair = c1 * (num_classes - 1) + c2 - int(c2 > c1)
        block, policy = next(
            found for found in self.policies if pair < found[0].stop
        )
        return policy.edges(pair - block.start)


def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: float,
    *,
    start: Tensor | None = None,
    tol: float = 1e-12,
    progress_bar: bool = False,
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
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        WorstCase: margins, their bounds, and the graphs that attain them.
    """
    check_instance('perturbations', perturbations, Perturbations)
    alpha = check_alpha(alpha)
    check_non_negative('tol', tol)
    check_logits(logits, perturbations.graph)
    if start is not None:
        shape = (logits.size(1), logits.size(1), logits.size(0))
        check_tensor('start', start, torch.float64, shape)
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
    blocks = list(perturbations.column_blocks(first.numel()))
    for block in tqdm(blocks, disable=not progress_bar, desc='class pairs'):
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
            back, _ = policy.solve(
                sent,
                1 - alpha,
                sent,
                _BACKWARD * sent.abs().amax(1),
                back=True,
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
    check_instance('worst', worst, WorstCase)
    check_logits(logits, worst.policies[0][1].perturbations.graph)
    if logits.size(1) != worst.margins.size(0):
        raise ValueError(
            f"'logits' needs to have {worst.margins.size(0)} columns, the "
            f'classes (got {logits.size(1)})'
        )
    alpha = check_alpha(alpha)
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
    check_instance('graph', graph, CSRGraph)
    check_alpha(alpha)
    check_choice('normalization', normalization, ('rw', 'sym'))
    if normalization == 'sym' and not graph.is_undirected:
        raise ValueError(
            "'graph' needs to be undirected for normalization='sym' (got a "
            'directed one)'
        )
    shape = (graph.num_nodes, 'num_columns')
    check_tensor('x', x, REAL, shape, finite=True)
    if tol is not None:
        check_positive('tol', tol)
    else:
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
