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
    \rho_i - \mu_i k}{|S|} + \frac{\sigma_i}{\sqrt{|S|}} - \nu_i k - \sum_{j
    \in S \triangle S_i} \nu_{ij} \right], \quad k = |S \,\triangle\, S_i|,

with :math:`\rho = \mu = \nu = \sigma = 0`. (The first three serve the global
budget, :mod:`.budget`; they must be non-negative, :math:`\mu` and :math:`\nu`
are prices of a flip. :math:`\sigma` in place of :math:`r` serves symmetric
normalization, :mod:`.horizon`. An empty :math:`S` counts as one edge that
leads nowhere: a node without edges keeps what it has.)

:func:`policy_iteration` finds it: it takes the maximizing sets, solves the
linear system they define, and repeats. Without :math:`\nu_{ij}`, for given
numbers of added and removed edges the best set adds the largest :math:`V_j`
and removes the smallest ones, so that prefix sums over sorted neighbours give
the maximum exactly; additions among all pairs need the first :math:`b_i + d_i
+ 1` nodes of the global order alone, never all :math:`n^2` pairs.

**What is certified.** For any :math:`V`, let :math:`g = T V - V`, attained by
the policy :math:`\tilde P`. As :math:`T` is monotone, :math:`T(V + c) \le T V
+ a c` for a constant :math:`c \ge 0`, and
:math:`V_{\tilde P} - V = (I - a \tilde P)^{-1} g`,

.. math::
    V_i + \frac{\min(0, \min_j g_j)}{\alpha} \le V_{\tilde P, i} \le V^*_i \le
    V_i + \frac{\max(0, \max_j g_j)}{\alpha} .

In float64 with unit roundoff :math:`u`, a computed :math:`g_i` is off by at
most :math:`e = 64 u\,(\kappa \lVert V \rVert_\infty + \lVert r \rVert_\infty +
\lVert \rho \rVert_\infty + \lVert \sigma \rVert_\infty)`, where :math:`\kappa`
is 1 if no row may both lose and win edges or has prices of edges, and else the
largest ratio of the largest to the smallest size of such an :math:`S`;
``csrc/policy.h`` counts the roundings. Every bound here is widened by :math:`e
/ \alpha`; it assumes nothing about how well the solver did.

Policies are found and evaluated by :func:`pyg_trust.ops.policy_iteration` and
:func:`pyg_trust.ops.policy_solve`, every column by one thread, so that results
do not depend on their number.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    check_integer,
    check_non_negative,
    check_tensor,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.certificates.diffusion import check_logits
from pyg_trust.certificates.perturbations import Perturbations, Policy

_UNIT = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class Optimum:
    r"""Worst case by policy iteration, with bounds of its error.

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
    error: Tensor
    """Of a step :math:`T V - V`, from roundoff: float64, ``[num_columns]``."""
    gap: Tensor
    """:math:`T V - V` as computed, as :obj:`value`."""


@validated
def policy_iteration(
    perturbations: Perturbations,
    reward: Tensor,
    alpha: Fraction,
    *,
    bonus: Tensor | None = None,
    visit_cost: Tensor | None = None,
    step_cost: Tensor | None = None,
    root: Tensor | None = None,
    removal_cost: Tensor | None = None,
    addition_cost: Tensor | None = None,
    start: Tensor | None = None,
    tol: Tensor | float = 1e-12,
    max_iter: Count = 100,
) -> Optimum:
    r"""Maximise :math:`(I - a \tilde P)^{-1} r` over admissible graphs.

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
        root (Tensor, optional): :math:`\sigma`. (default: :obj:`None`)
        removal_cost (Tensor, optional): :math:`\nu_{ij}` of the edges,
            float64, ``[num_columns, num_edges]``. (default: :obj:`None`)
        addition_cost (Tensor, optional): :math:`\nu_{ij}` of
            :attr:`Perturbations.pairs`, float64, ``[num_columns,
            num_pairs]``. (default: :obj:`None`)
        start (Tensor, optional): a first guess of :math:`V`.
            (default: :obj:`None`)
        tol (float or Tensor): relative tolerance, one for all columns or
            one for each. (default: :obj:`1e-12`)
        max_iter (int): the largest number of policies. (default: :obj:`100`)

    Returns:
        Optimum: value, error bounds and policy.
    """
    follow = 1 - alpha
    shape: tuple[int | str, ...] = ('num_columns', perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    if not isinstance(tol, Tensor):
        check_non_negative('tol', tol)
    bound = reward.abs().amax(1)
    if bonus is not None:
        check_tensor('bonus', bonus, torch.float64, reward.shape, finite=True)
        bound = bound + bonus.abs().amax(1)
    if root is not None:
        check_tensor('root', root, torch.float64, reward.shape, finite=True)
        bound = bound + root.abs().amax(1)
    count = reward.size(0)
    edges = count, perturbations.graph.num_edges
    pairs = count, perturbations.pairs.size(1)
    for name, value, wanted in (
        ('visit_cost', visit_cost, reward.shape),
        ('step_cost', step_cost, reward.shape),
        ('removal_cost', removal_cost, edges),
        ('addition_cost', addition_cost, pairs),
        ('start', start, reward.shape),
    ):
        if value is not None:
            check_tensor(name, value, torch.float64, wanted, finite=True)
    rounding = perturbations._rounding
    if removal_cost is not None or addition_cost is not None:
        rounding = perturbations._rounding_priced
    value, gap, *flips = ops.policy_iteration(
        perturbations._threat,
        reward,
        reward if start is None else start,
        # Stop when improvements are within roundoff.
        torch.maximum(tol * bound, 4 * 64 * _UNIT * bound),
        2 * rounding,
        follow,
        max_iter,
        bonus=bonus,
        visit_cost=visit_cost,
        step_cost=step_cost,
        root=root,
        removal_cost=removal_cost,
        addition_cost=addition_cost,
    )
    error = rounding * value.abs().amax(1) + 64 * _UNIT * bound
    policy = Policy(perturbations, ops.PolicyFlips(*flips))
    return _optimum(policy, value, gap, error, alpha)


def _optimum(
    policy: Policy, value: Tensor, gap: Tensor, error: Tensor, alpha: float
) -> Optimum:
    low = (gap.amin(1).clamp(max=0) - error) / alpha
    high = (gap.amax(1).clamp(min=0) + error) / alpha
    return Optimum(value, low, high, policy, error, gap)


@validated
def policy_value(
    policy: Policy, reward: Tensor, alpha: Fraction, *, tol: Positive = 1e-12
) -> Optimum:
    r"""Compute :math:`V = (I - a \tilde P)^{-1} r` of given graphs.

    Args:
        policy (Policy): a graph per column.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        tol (float): relative tolerance. (default: :obj:`1e-12`)

    Returns:
        Optimum: value and error bounds, derived as in
        :func:`policy_iteration`.
    """
    follow = 1 - alpha
    shape = (policy.num_columns, policy.perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    bound = reward.abs().amax(1)
    value, gap = policy.solve(reward, follow, reward, tol * bound)
    error = 64 * _UNIT * (value.abs().amax(1) + bound)
    return _optimum(policy, value, gap, error, alpha)


def class_pairs(num_classes: int) -> tuple[Tensor, Tensor]:
    """List all ordered pairs of distinct classes."""
    pairs = torch.ones(num_classes, num_classes).fill_diagonal_(0).nonzero()
    return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class WorstCase:
    r"""Smallest margins over all admissible graphs, for all nodes.

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
        """Return the worst flips for two classes: ``[2, num_flips]``."""
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


@validated
def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: Fraction,
    *,
    start: Tensor | None = None,
    tol: NotNegative = 1e-12,
    progress_bar: bool | None = None,
) -> WorstCase:
    r"""Compute the exact worst-case margins under local budgets.

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
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        WorstCase: margins, their bounds, and the graphs that attain them.
    """
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
    for block in Bar(blocks, progress_bar, desc='class pairs'):
        optimum = policy_iteration(
            perturbations,
            reward[block],
            alpha,
            start=guess[block],
            tol=tol,
        )
        pair = first[block], second[block]
        margins[pair] = -alpha * optimum.value
        lower[pair] = -alpha * (optimum.value + optimum.high[:, None])
        upper[pair] = -alpha * (optimum.value + optimum.low[:, None])
        policies.append((block, optimum.policy))
    return WorstCase(margins, lower, upper, tuple(policies))


class _RobustMargins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, worst: WorstCase, alpha: float
    ) -> Tensor:
        ctx.arguments = worst, alpha
        ctx.dtype = logits.dtype
        # A copy, as autograd marks the returned tensor.
        return worst.margins.to(logits.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        worst, alpha = ctx.arguments
        num_classes, _, num_nodes = worst.margins.shape
        first, second = class_pairs(num_classes)
        grad = grads[0].new_zeros(
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
            grad.index_add_(0, pair[0], back)
            grad.index_add_(0, pair[1], back, alpha=-1)
        return grad.t().to(ctx.dtype), None, None


_BACKWARD = 1e-9


@validated
def robust_margins(
    logits: Tensor, worst: WorstCase, alpha: Fraction
) -> Tensor:
    r"""Compute worst-case margins, differentiable in the logits.

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
    check_logits(logits, worst.policies[0][1].perturbations.graph)
    if logits.size(1) != worst.margins.size(0):
        raise ValueError(
            f"'logits' needs to have {worst.margins.size(0)} columns, the "
            f'classes (got {logits.size(1)})'
        )
    return _RobustMargins.apply(logits, worst, alpha)
