"""Attacks flip by flip: brute force for one flip, greedy for more."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pyg_trust._checks import Array, Fraction, Natural, check_range, validated
from pyg_trust._progress import Bar
from pyg_trust.certificates.budget import (
    Bounds,
    Cost,
    Rewards,
    Targets,
    check_upper,
)
from pyg_trust.certificates.diffusion import check_logits
from pyg_trust.certificates.dual_search import DualSearch, pagerank_of
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Perturbations, Policy
from pyg_trust.certificates.policy import policy_iteration, policy_value
from pyg_trust.certificates.program import fragile_pairs
from pyg_trust.graph import sparse_rows


@dataclass(frozen=True)
class SingleFlip:
    """Exact worst case of at most one flip, by brute force."""

    margins: Tensor
    """float64, ``[num_targets, num_classes]``: the smallest margin of the
    reference class over each class; infinite over itself."""
    errors: Tensor
    """How far roundoff and the solver may have moved it: float64,
    ``[num_targets, num_classes]``; infinite where nothing is known."""
    flips: Tensor
    """int64, ``[num_targets, num_classes, 2]``: the flip that attains it, -1
    where no flip lowers the margin."""


@validated
def single_flip_margins(
    logits: Tensor,
    perturbations: Perturbations,
    targets: Targets,
    reference: Annotated[Tensor, Array(torch.int64, 'num_targets')],
    alpha: Fraction,
    *,
    progress_bar: bool | None = None,
) -> SingleFlip:
    r"""Compute the exact worst case for :math:`B = 1`, by brute force.

    A flip in row :math:`i` changes the transition row by :math:`\delta`, and
    by the formula of Sherman and Morrison the margin :math:`z = \alpha (I - a
    P)^{-1} r` becomes

    .. math::
        z_u + g_u \frac{a\, \delta^{\top} z}{1 - a\, \delta^{\top} g},
        \quad g = (I - a P)^{-1} e_i .

    Costs a linear system per row with a budget and a few operations per
    fragile pair, :math:`n^2` of them if all pairs are; memory for a block of
    rows at a time.

    A last edge that goes leaves an empty row, :math:`\delta = -P_i`.

    **Error.** With residuals at most :math:`\epsilon_z` and
    :math:`\epsilon_g`, the entries of :math:`z` and :math:`g` are off by at
    most :math:`\eta = \epsilon / \alpha`. The numerator :math:`N = a
    \delta^\top z` is off by at most :math:`2 \eta_z`, the denominator
    :math:`M` by :math:`2 \eta_g`, so that :math:`Q = N / M` is off by
    :math:`\Delta = (2 \eta_z + 2 \eta_g |Q|) / (M - 2 \eta_g)` for the
    computed :math:`M`, if :math:`M > 2 \eta_g`, and the margin by :math:`(g_u
    + \eta_g) \Delta + \eta_g |Q| + 2 \eta_z`, in which the computed numbers of
    each flip are taken: nothing is left out. (:math:`\eta` is widened for the
    roundoff of these few operations themselves.)

    Args:
        logits (Tensor): :math:`H`, ``[num_nodes, num_classes]``.
        perturbations (Perturbations): the admissible graphs.
        targets (Tensor): int64, ``[num_targets]``.
        reference (Tensor): int64, ``[num_targets]``: the class to defend.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        progress_bar (bool, optional): by default in terminals, after 2 s.
    """
    follow = 1 - alpha
    graph, n = perturbations.graph, perturbations.num_nodes
    check_logits(logits, graph)
    check_range('reference', reference, logits.size(1), 'the classes')
    logits = logits.detach().double()
    num_classes = logits.size(1)
    share = 1 / graph.degree.clamp(min=1).double()
    mean = sparse_rows(graph.rowptr, graph.col, share[graph.row], (n, n))
    policy = perturbations.clean_policy(num_classes)
    values = policy_value(policy, logits.t().contiguous(), alpha)
    z = alpha * values.value.t().contiguous()
    eta_z = alpha * float((values.high - values.low).max())
    mine = z[targets].gather(1, reference[:, None])
    margins = mine - z[targets]
    flips = torch.full((targets.numel(), num_classes, 2), -1)
    # Sums over a row, and the operations after them.
    rounding = (int(graph.degree.max()) + 16) * torch.finfo(z.dtype).eps
    eta_z += rounding * float(z.abs().max())
    errors = torch.zeros_like(margins)
    degree = graph.degree
    # With all pairs fragile, a number per node, column and pair of classes.
    active = perturbations.active.numel()
    blocks = list(perturbations.column_blocks(active, 4 * num_classes))
    for block in Bar(blocks, progress_bar, desc='flips'):
        rows = perturbations.active[block]
        unit = torch.zeros((rows.numel(), n), dtype=torch.float64)
        unit[torch.arange(rows.numel()), rows] = 1
        policy = perturbations.clean_policy(rows.numel())
        values = policy_value(policy, unit, alpha, tol=1e-14)
        g = values.value
        eta_g = float((values.high - values.low).max())
        eta_g += rounding * float(g.abs().max())
        row, col, there = fragile_pairs(perturbations, rows)
        place = torch.searchsorted(rows, row)
        mean_z = (mean @ z)[row]
        mean_g = (mean @ g.t())[row, place]
        sign = 1 - 2 * there.double()
        size = degree[row] + sign
        alone = size < 1  # the last edge: the row is empty
        step = (sign / size.clamp(min=1))[:, None] * (z[col] - mean_z)
        step = torch.where(alone[:, None], -mean_z, step)
        back = sign / size.clamp(min=1) * (g[place, col] - mean_g)
        below = 1 - follow * torch.where(alone, -mean_g, back)
        change = follow * step / below[:, None]
        sure = (below - 2 * eta_g).clamp(min=0)
        for c in range(num_classes):
            held = reference == c
            if not bool(held.any()):
                continue
            # The flip of each row that hurts c most against every class.
            drop = change[:, c, None] - change
            where = place[:, None].expand_as(drop)
            worst = drop.new_zeros((rows.numel(), num_classes))
            worst.scatter_reduce_(0, where, drop, 'amin')
            reach = g[:, targets[held]]
            lowered, which = (reach[:, :, None] * worst[:, None]).min(0)
            lowered += (mine - z[targets])[held]
            off = (4 * eta_z + 2 * eta_g * drop.abs()) / sure[:, None]
            most = drop.new_zeros((2, rows.numel(), num_classes))
            for k, part in enumerate((off, drop.abs())):
                most[k].scatter_reduce_(0, where, part, 'amax')
            error = ((reach + eta_g)[:, :, None] * most[0][:, None]).amax(0)
            error += eta_g * most[1].amax(0)
            errors[held] = torch.maximum(errors[held], error)
            better = lowered < margins[held]
            margins[held] = torch.where(better, lowered, margins[held])
            pair = drop.new_full(worst.shape, row.numel()).long()
            hit = drop == worst[place]
            number = torch.arange(row.numel())[:, None].expand_as(drop)
            pair.scatter_reduce_(
                0, where, torch.where(hit, number, row.numel()), 'amin'
            )
            pair = pair.gather(0, which).clamp(max=row.numel() - 1)
            edges = torch.stack([row[pair], col[pair]], dim=2)
            flips[held] = torch.where(better[:, :, None], edges, flips[held])
    margins[torch.arange(targets.numel()), reference] = math.inf
    errors = (errors + 2 * eta_z).nan_to_num(math.inf)
    return SingleFlip(margins, errors, flips)


@validated
def budget_attacks(
    perturbations: Perturbations,
    reward: Rewards,
    targets: Targets,
    upper: Bounds,
    multiplier: Annotated[Tensor, Array(torch.float64, 'num_targets')],
    global_budget: Natural,
    alpha: Fraction,
    *,
    cost: Cost = 'pagerank',
    rounds: Natural = 5,
    progress_bar: bool | None = None,
) -> list[Tensor]:
    r"""Round the solution of the relaxation to admissible attacks.

    Starts with the policy that is optimal at the multiplier, cut down to its
    :math:`B` most effective flips: those with the largest
    :math:`\frac{\pi_i}{d_i} |V_j - m_i|`, where :math:`m_i` is the mean of
    :math:`V` over :math:`S_i`. Then takes the best policy for the
    values in that graph, cuts it down, and so on; the best graph counts. A
    heuristic: evaluate the attacks before use.

    Args:
        perturbations (Perturbations): the graphs admissible by the local
            budgets.
        reward (Tensor): as in :func:`dual_bound`.
        targets (Tensor): as in :func:`dual_bound`.
        upper (Tensor): as in :func:`dual_bound`.
        multiplier (Tensor): float64, ``[num_columns]``.
        global_budget (int): :math:`B`.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        cost (str): as in :func:`dual_bound`. (default: :obj:`'pagerank'`)
        rounds (int): how often. (default: :obj:`5`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        list[Tensor]: per column the edges to flip, ``[2, num_flips]``.
    """
    check_upper(upper)
    if not bool((multiplier >= 0).all()):
        raise ValueError("'multiplier' needs to be non-negative everywhere")
    attacks: list[Tensor] = []
    blocks = list(perturbations.column_blocks(targets.numel()))
    for block in Bar(blocks, progress_bar, desc='attacks'):
        search = DualSearch(
            perturbations,
            reward[block],
            targets[block],
            upper[block],
            global_budget,
            Horizon(alpha),
            cost,
        )
        here = torch.arange(search.targets.numel())
        optimum = search.solve(here, multiplier[block], None, 1e-6)
        policy, value = optimum.policy, optimum.value
        best = reward.new_full((here.numel(),), -math.inf)
        pagerank = pagerank_of(
            policy, search.targets, alpha, None, torch.full_like(best, 1e-9)
        )
        flips: list[Tensor] = [reward.new_zeros((2, 0)).long()] * len(here)
        for _ in range(rounds):
            tried = _most_effective(
                policy,
                value,
                # The mean of V over each row, without its costs.
                (value - search.signal) / (1 - alpha),
                pagerank,
                global_budget,
            )
            policy = Policy.from_flips(perturbations, tried)
            value = policy_value(policy, search.signal, alpha, tol=1e-6).value
            at = value[here, search.targets]
            for column in (at > best).nonzero().view(-1).tolist():
                flips[column] = tried[column]
            best = torch.maximum(best, at)
            pagerank = pagerank_of(
                policy,
                search.targets,
                alpha,
                None,
                torch.full_like(best, 1e-9),
            )
            policy = policy_iteration(
                perturbations, search.signal, alpha, start=value, max_iter=1
            ).policy
        attacks += flips
    return attacks


def _most_effective(
    policy: Policy,
    value: Tensor,
    mean: Tensor,
    pagerank: Tensor,
    budget: int,
) -> list[Tensor]:
    weight = pagerank / policy.perturbations.graph.degree
    chosen = []
    for column in range(policy.num_columns):
        flips = policy.edges(column)
        row, col = flips
        effect = (value[column, col] - mean[column, row]).abs()
        effect = effect * weight[column, row]
        order = effect.sort(descending=True, stable=True).indices
        chosen.append(flips[:, order[:budget]])
    return chosen
