r"""Bound worst-case PageRank under local and global budgets.

With at most :math:`B` flips in all, on top of the local budgets, the worst
case of a target :math:`u` is hard to find (`Bojchevski and Günnemann 2019
<https://arxiv.org/abs/1910.14356>`_, Proposition 4), but easy to bound. Let
:math:`k_i` be the number of flips in row :math:`i` and :math:`\pi` the
personalized PageRank of :math:`u` in the perturbed graph. Let
:math:`\bar\pi_i` and :math:`\bar y_i` be upper bounds of :math:`\pi_i` and of
:math:`y_i = \pi_i / |S_i|` over all admissible graphs. Then every admissible
graph satisfies both

.. math::
    \sum_i k_i \frac{\pi_i}{\bar\pi_i} \le \sum_i k_i \le B
    \quad \text{(cost 'pagerank')} \qquad \text{and} \qquad
    \sum_i k_i \frac{y_i}{\bar y_i} \le B \quad \text{(cost 'visits')} .

The second one is the paper's relaxation (equation 5), with :math:`x_i = y_i
D_i` and any constant :math:`D_i`. Both are linear in the state-action
frequencies of the Markov decision process of :mod:`.policy`, so for
**every** multiplier :math:`\lambda \ge 0`

.. math::
    \max_{\tilde G} \pi_{\tilde G}(u)^{\top} r \le \lambda B + \alpha
    V^{(\lambda)}_u,

where :math:`V^{(\lambda)}` is the fixed point with the price :math:`\lambda /
\bar\pi_i` per flip and step (:math:`\nu`) or :math:`\lambda / \bar y_i` per
flip and visit (:math:`\mu`). The right-hand side is convex and piecewise
linear in :math:`\lambda`, and its minimum is the optimum of the relaxed linear
program, by strong duality. :func:`dual_bound` intersects the two lines that
bracket it, as a rule 5 to 10 times.

**The upper bounds.** :math:`\bar\pi_t(u) = \alpha V_u` with the reward
:math:`e_t`, and :math:`\bar y_t(u) = \alpha V_u` where row :math:`t` alone is
rewarded, with :math:`1 / |S_t|`: one fixed point serves all :math:`u`. Both
are rounded up by the residual bound of :mod:`.policy`. (The authors' code
divides by the degree correction of the source instead of :math:`t` and
maximizes :math:`\pi_t` instead of :math:`x_t`: it certifies nodes that one
flip breaks.)

**Local budgets first.** No row can have more than :math:`B` flips, so budgets
are clipped to :math:`\min(b_i, B)` everywhere, which the paper does not do.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Count,
    Fraction,
    Natural,
    OneOf,
    Positive,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.certificates.dual_search import DualSearch, Mirror, pagerank_of
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Perturbations
from pyg_trust.certificates.policy import policy_iteration
from pyg_trust.distributed import shared

COSTS = ('pagerank', 'visits')


Cost = Annotated[str, OneOf(COSTS)]
#: The nodes of a problem, and numbers of each target at each node.
Targets = Annotated[
    Tensor, Array(torch.int64, 'num_targets', below='num_nodes')
]
Rewards = Annotated[
    Tensor, Array(torch.float64, 'num_targets', 'num_nodes', finite=True)
]
Bounds = Annotated[Tensor, Array(torch.float64, 'num_targets', 'num_nodes')]


def check_upper(upper: Tensor) -> None:
    """Refuse upper bounds that are not positive."""
    if not bool((upper > 0).all()):
        raise ValueError("'upper' needs to be positive everywhere")


@validated
def clip_budget(
    perturbations: Perturbations, budget: Natural
) -> Perturbations:
    """Lower each row's budget to the budget of the whole graph."""
    if int(perturbations.budget.max()) <= budget:
        return perturbations
    return perturbations.with_budget(perturbations.budget.clamp(max=budget))


@validated
def pagerank_bounds(
    perturbations: Perturbations,
    targets: Targets,
    alpha: Fraction,
    *,
    cost: Cost = 'pagerank',
    tol: Positive = 1e-9,
    over_ranks: bool = False,
    progress_bar: bool | None = None,
) -> Tensor:
    r"""Bound PageRank from above over all admissible graphs.

    :math:`\bar\pi_t(u)` (:obj:`cost='pagerank'`) or :math:`\bar y_t(u)`
    (:obj:`'visits'`), exact up to :obj:`tol` and never too small, for all
    teleport nodes :math:`u` in :obj:`targets`. Rows :math:`t` that cannot be
    perturbed have no price and get 1.

    Args:
        perturbations (Perturbations): the admissible graphs.
        targets (Tensor): int64, ``[num_targets]``: the nodes :math:`u`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): which of the two. (default: :obj:`'pagerank'`)
        tol (float): how far they are rounded up. (default: :obj:`1e-9`)
        over_ranks (bool): whether the processes of torchrun share the rows.
            (default: :obj:`False`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``.
    """
    return bounds_and_vectors(
        *(perturbations, targets, alpha, cost, tol, over_ranks),
        progress_bar=progress_bar,
    )[0]


def bounds_and_vectors(
    perturbations: Perturbations,
    targets: Tensor,
    alpha: float,
    cost: str,
    tol: float = 1e-9,
    over_ranks: bool = False,
    keep: bool = False,
    progress_bar: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return :func:`pagerank_bounds`, also at all nodes if asked for.

    Args:
        perturbations (Perturbations): as there, as all others.
        targets (Tensor): int64, ``[num_targets]``.
        alpha (float): the teleport probability.
        cost (str): which bounds.
        tol (float): how far they are rounded up.
        over_ranks (bool): whether processes share the rows.
        keep (bool): whether to return them at all nodes, float64,
            ``[num_active, num_nodes]``.
        progress_bar (bool, optional): by default in terminals, after 2 s.
    """
    active = perturbations.active
    n = perturbations.num_nodes
    bounds = torch.ones((targets.numel(), n), dtype=torch.float64)
    vectors = []
    blocks = list(perturbations.column_blocks(active.numel()))

    def bounded(block: slice) -> tuple[Tensor, Tensor]:
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        zero = torch.zeros_like(unit)
        optimum = policy_iteration(
            perturbations,
            unit if cost == 'pagerank' else zero,
            alpha,
            bonus=unit if cost == 'visits' else None,
            tol=tol,
        )
        bound = alpha * (optimum.value + optimum.high[:, None])
        return bound[:, targets], bound if keep else bound[:0]

    with Bar(blocks, progress_bar, desc='PageRank') as bar:
        for block, (bound, whole) in zip(
            bar, shared(blocks, bounded, over_ranks), strict=True
        ):
            # At most one, as PageRank is a distribution.
            bounds[:, active[block]] = bound.t().clamp(max=1)
            vectors.append(whole)
    return bounds, torch.cat(vectors) if keep and vectors else None


@dataclass(frozen=True)
class BudgetBound:
    """Bounds on the worst case of some targets under a global budget."""

    bound: Tensor
    """float64, ``[num_columns]``: no admissible graph exceeds it."""
    optimum: Tensor
    """About how far :obj:`bound` can fall at most: a lower bound on the
    optimum of the relaxation, up to the solver's tolerance."""
    multiplier: Tensor
    """The multipliers that prove :obj:`bound`."""


@validated
def dual_bound(
    perturbations: Perturbations,
    reward: Rewards,
    targets: Targets,
    upper: Bounds,
    global_budget: Natural,
    alpha: Fraction,
    *,
    cost: Cost = 'pagerank',
    sign_only: bool = False,
    start: Rewards | None = None,
    clean: Annotated[Tensor, Array(torch.float64, 'num_targets', finite=True)]
    | None = None,
    K: Natural | None = None,
    normalization: str = 'rw',
    undirected: bool = False,
    rounds: Count = 4,
    tol: Positive = 1e-9,
    max_iter: Count = 60,
    progress_bar: bool | None = None,
) -> BudgetBound:
    r"""Bound :math:`\max_{\tilde G} \pi_{\tilde G}(u)^\top r` from above.

    .. math::
        \min_{\lambda \ge 0} \lambda B + \alpha V^{(\lambda)}_u

    for many pairs of a reward and a target at once. The bound holds whenever
    it stops, roundoff included.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets; clip them first (:func:`clip_budget`) for a tighter bound.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        targets (Tensor): int64, ``[num_columns]``: :math:`u`.
        upper (Tensor): float64, ``[num_columns, num_nodes]``: upper bounds
            as :func:`pagerank_bounds` makes them, of the same :obj:`cost`.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): the price of a flip. (default: :obj:`'pagerank'`)
        sign_only (bool): stop as soon as the bound is negative, or it is clear
            that the relaxation's optimum is not. (default: :obj:`False`)
        start (Tensor, optional): a guess of :math:`V^{(0)}`.
            (default: :obj:`None`)
        clean (Tensor, optional): a guess of :math:`\pi(u)^{\top} r` in the
            graph as it is, float64, ``[num_columns]``. Neither guess can make
            the bound wrong. (default: :obj:`None`)
        K (int, optional): as in :class:`Horizon`. (default: :obj:`None`)
        normalization (str): as in :class:`Horizon`. (default: :obj:`'rw'`)
        undirected (bool): whether :math:`B` counts undirected edges, each of
            which has one price, shared by its two directions; for the cost
            :obj:`'pagerank'`. (default: :obj:`False`)
        rounds (int): how often the shares are chosen anew. (default: :obj:`4`)
        tol (float): stop within this of the relaxation's optimum, relative to
            the largest reward. (default: :obj:`1e-9`)
        max_iter (int): the largest number of multipliers tried.
            (default: :obj:`60`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        BudgetBound: the bounds, in the order of the columns.
    """
    check_upper(upper)
    horizon = Horizon(alpha, K, normalization)
    if undirected and cost != 'pagerank':
        raise ValueError(
            f"'undirected' needs the cost 'pagerank' (got {cost!r})"
        )
    if undirected:
        mirror = Mirror.of(perturbations)
    count = targets.numel()
    bound = reward.new_full((count,), math.inf)
    optimum = reward.new_zeros(count)
    multiplier = reward.new_zeros(count)
    numbers = 1
    if undirected:
        prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
        numbers += 4 * prices // perturbations.num_nodes
    blocks = list(perturbations.column_blocks(count, numbers))
    for block in Bar(blocks, progress_bar, desc='bounds'):
        search = DualSearch(
            perturbations,
            reward[block],
            targets[block],
            upper[block],
            global_budget,
            horizon,
            cost,
        )
        first = None if start is None else start[block]
        known = None if clean is None else clean[block]
        if undirected:
            search.share(
                mirror, first, known, sign_only, tol, max_iter, rounds
            )
        else:
            search.run(first, known, sign_only, tol, max_iter)
        bound[block] = search.bound
        if K is None:
            optimum[block] = search.predicted()
        multiplier[block] = search.multiplier
    return BudgetBound(bound, optimum, multiplier)


@validated
def refine_pagerank_bounds(
    perturbations: Perturbations,
    targets: Targets,
    upper: Bounds,
    global_budget: Natural,
    alpha: Fraction,
    *,
    undirected: bool = False,
    tol: Positive = 1e-4,
    progress_bar: bool | None = None,
) -> Tensor:
    r"""Tighten upper bounds of PageRank by the global budget.

    What :func:`dual_bound` is given bounds :math:`\pi_t(u)` over all graphs
    that the local budgets admit; those that also keep the global one are
    fewer. :math:`\pi_t(u) = \pi(u)^{\top} e_t` is a reward like any other, so
    that the dual bound of it, proven with the bounds that are known, is
    another one, and smaller ones charge more for a flip:

    .. math::
        \sum_i k_i \frac{\pi_i}{\bar\pi_i} \le \sum_i k_i \le B
        \quad \text{as long as} \quad
        \bar\pi_t \ge \max_{\tilde G : \sum_i k_i \le B} \pi_t .

    It can be repeated, with less and less to gain. Each round solves a dual
    problem per row that can be perturbed, for every target: seconds where
    :func:`pagerank_bounds`, which serves all targets at once, takes
    milliseconds. For the cost :obj:`'pagerank'`.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        targets (Tensor): int64, ``[num_targets]``: the nodes :math:`u`.
        upper (Tensor): float64, ``[num_targets, num_nodes]``: upper bounds
            as :func:`pagerank_bounds` or this function makes them.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        undirected (bool): as in :func:`dual_bound`: :math:`B` counts
            undirected edges, each with one price. (default: :obj:`False`)
        tol (float): stop within this of the relaxation's optimum; what is
            smaller stays as it is. (default: :obj:`1e-4`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        Tensor: float64, ``[num_targets, num_nodes]``, nowhere above
        :obj:`upper`.
    """
    check_upper(upper)
    bounds = upper.clone()
    active, n = perturbations.active, perturbations.num_nodes
    clean = pagerank_of(
        perturbations.clean_policy(targets.numel()),
        targets,
        alpha,
        None,
        torch.full(targets.shape, 1e-12, dtype=torch.float64),
    )
    blocks = list(perturbations.column_blocks(active.numel()))
    for block in Bar(blocks, progress_bar, desc='PageRank'):
        row = active[block]
        unit = torch.zeros((row.numel(), n), dtype=torch.float64)
        unit[torch.arange(row.numel()), row] = 1
        # Without a price it is the same for all targets.
        start = policy_iteration(perturbations, unit, alpha, tol=tol).value
        for k in range(targets.numel()):
            some = (upper[k, row] > tol).nonzero().view(-1)
            dual = dual_bound(
                perturbations,
                unit[some],
                targets[k].expand(some.numel()),
                upper[k].expand(some.numel(), n),
                global_budget,
                alpha,
                undirected=undirected,
                start=start[some],
                clean=clean[k, row[some]],
                tol=tol,
            )
            # A row that is never reached has a bound of zero, and no price.
            bound = dual.bound.clamp(min=torch.finfo(torch.float64).eps)
            bounds[k, row[some]] = bound.minimum(upper[k, row[some]])
    return bounds
