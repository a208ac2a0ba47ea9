r"""Personalized PageRank, and its worst case over admissible graphs.

`"Certifiable Robustness to Graph Perturbations"
<https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019): every
node chooses its out-neighbours within a budget, independently of all others,
so that one graph is worst at all nodes at once, and policy iteration finds it.
Every bound holds whatever the solver did, roundoff included; docs/theory has
the proof.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._progress import Bar
from pyg_trust.certificates.threat import Perturbations, Policy

__all__ = [
    'Horizon',
    'Optimum',
    'WorstCase',
    'policy_iteration',
    'policy_value',
    'robust_margins',
    'worst_case_margins',
]

_UNIT = torch.finfo(torch.float64).eps / 2
# The tolerance of the backward pass.
_BACKWARD = 1e-9


@dataclass(frozen=True)
class Optimum:
    """Worst case by policy iteration, with bounds of its error.

    The value of ``policy`` and the optimum are both in ``[value + low, value +
    high]`` at every node, roundoff included. ``gap`` is the change in one more
    step, as computed, and ``error`` its roundoff, per column.
    """

    value: Tensor
    low: Tensor
    high: Tensor
    policy: Policy
    error: Tensor
    gap: Tensor

    @classmethod
    def of(
        cls,
        policy: Policy,
        value: Tensor,
        gap: Tensor,
        error: Tensor,
        alpha: float,
    ) -> 'Optimum':
        """Derive the bounds from the change in one more step."""
        low = (gap.amin(1).clamp(max=0) - error) / alpha
        high = (gap.amax(1).clamp(min=0) + error) / alpha
        return cls(value, low, high, policy, error, gap)


def policy_iteration(
    perturbations: Perturbations,
    reward: Tensor,
    alpha: float,
    *,
    start: Tensor | None = None,
    tol: Tensor | float = 1e-12,
    max_iter: int = 100,
    **costs: Any,
) -> Optimum:
    r"""Maximize :math:`V = (I - a \tilde P)^{-1} r` over admissible graphs.

    Columns of the reward, ``[num_columns, num_nodes]``, are independent. Stops
    when one more step changes the value by at most :obj:`tol` times the
    largest reward, or by roundoff alone, or after :obj:`max_iter` policies;
    the bounds hold in any case. :obj:`costs` are bonuses and prices of
    :func:`pyg_trust.ops.policy_iteration`.
    """
    bound = reward.abs().amax(1)
    for part in (costs.get('bonus'), costs.get('root')):
        if part is not None:
            bound = bound + part.abs().amax(1)
    rounding = perturbations.rounding[costs.get('removal_cost') is not None]
    value, gap, *flips = ops.policy_iteration(
        perturbations.threat,
        reward,
        reward if start is None else start,
        # Stop when improvements are within roundoff.
        torch.maximum(tol * bound, 4 * 64 * _UNIT * bound),
        2 * rounding,
        1 - alpha,
        max_iter,
        **costs,
    )
    error = rounding * value.abs().amax(1) + 64 * _UNIT * bound
    policy = Policy(perturbations, ops.PolicyFlips(*flips))
    return Optimum.of(policy, value, gap, error, alpha)


def policy_value(
    policy: Policy, reward: Tensor, alpha: float, *, tol: float = 1e-12
) -> Optimum:
    """Compute the value of given graphs, with the bounds of its error."""
    bound = reward.abs().amax(1)
    value, gap = policy.solve(reward, 1 - alpha, reward, tol * bound)
    error = 64 * _UNIT * (value.abs().amax(1) + bound)
    return Optimum.of(policy, value, gap, error, alpha)


@dataclass(frozen=True)
class Horizon:
    r"""Diffusion of a deployed model: its steps and its normalization.

    With symmetric normalization, :math:`y = D^{-1/2} z` solves the system of
    the random walk for the signal :math:`r_i / \sqrt{|S_i|}`. With K steps,
    the Bellman operator is applied K times: its attacker may use another graph
    in each step, so that the result is a bound.
    """

    alpha: float
    K: int | None = None
    normalization: str = 'rw'

    def maximize(
        self,
        perturbations: Perturbations,
        signal: Tensor,
        *,
        start: Tensor | None = None,
        tol: Tensor | float = 1e-12,
        **costs: Any,
    ) -> Optimum:
        r"""Bound :math:`V = z / \alpha` over all admissible graphs.

        With K steps the policy is that of the last step, and :obj:`low` is no
        bound of its value.
        """
        reward = signal
        if self.normalization == 'sym':
            reward, costs['root'] = torch.zeros_like(signal), signal
        if self.K is None:
            return policy_iteration(
                *(perturbations, reward, self.alpha),
                start=start,
                tol=tol,
                **costs,
            )
        # V^(0): for 'sym', the largest over the sizes that a row may have;
        # a positive signal is largest in the smallest row.
        value = signal / self.alpha
        if self.normalization == 'sym':
            small, large = (
                size.clamp(min=1).double().sqrt()
                for size in (perturbations.smallest, perturbations.largest)
            )
            value = torch.where(value > 0, value / small, value / large)
        policy = perturbations.clean_policy(signal.size(0))
        error = 4 * _UNIT * value.abs().amax(1)
        for _ in range(self.K):
            # One step: V + (T V - V), with a bound of its roundoff.
            optimum = policy_iteration(
                *(perturbations, reward, self.alpha),
                start=value,
                max_iter=1,
                **costs,
            )
            policy, value = optimum.policy, optimum.value + optimum.gap
            rounding = optimum.error + 2 * _UNIT * value.abs().amax(1)
            error = (1 - self.alpha) * error + rounding
        return Optimum(value, -error, error, policy, error, value * 0)

    def evaluate(self, policy: Policy, signal: Tensor) -> Optimum:
        r"""Compute :math:`V = z / \alpha` in given graphs, and its error."""
        signal = self.scaled(policy, signal)
        if self.K is None:
            optimum = policy_value(policy, signal, self.alpha)
            # The signal itself is rounded.
            off = 4 * _UNIT * signal.abs().amax(1) / self.alpha
            return replace(
                optimum, low=optimum.low - off, high=optimum.high + off
            )
        value = signal / self.alpha
        top = value.abs().amax(1)
        error = 4 * _UNIT * top
        never = torch.full_like(top, torch.inf)
        for _ in range(self.K):
            _, gap = policy.solve(signal, 1 - self.alpha, value, never)
            value = value + gap
            error = (1 - self.alpha) * error + 64 * _UNIT * 3 * top
        return Optimum(value, -error, error, policy, error, value * 0)

    def scaled(self, policy: Policy, signal: Tensor) -> Tensor:
        """Divide a signal by the roots of the degrees, if symmetric."""
        if self.normalization == 'rw':
            return signal
        return signal / policy.size.clamp(min=1).double().sqrt()


class WorstCase(NamedTuple):
    r"""Smallest margins over all admissible graphs, for all nodes.

    Entry ``[c1, c2, v]`` is about :math:`\min_{\tilde G} \pi_{\tilde
    G}(v)^\top (H_{c1} - H_{c2})`, and infinite for :math:`c1 = c2`. Both the
    exact minimum and the margin in the graph that :meth:`flips` makes are in
    ``[lower, upper]``. ``policies`` are the worst graphs, by blocks of pairs.
    """

    margins: Tensor
    lower: Tensor
    upper: Tensor
    policies: tuple[tuple[slice, Policy], ...]

    def flips(self, c1: int, c2: int) -> Tensor:
        """Return the worst flips for two classes: ``[2, num_flips]``."""
        pair = c1 * (self.margins.size(0) - 1) + c2 - int(c2 > c1)
        block, policy = next(
            found for found in self.policies if pair < found[0].stop
        )
        return policy.edges(pair - block.start)


def _class_pairs(num_classes: int) -> tuple[Tensor, Tensor]:
    pairs = torch.ones(num_classes, num_classes).fill_diagonal_(0).nonzero()
    return pairs[:, 0], pairs[:, 1]


def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: float,
    *,
    start: Tensor | None = None,
    tol: float = 1e-12,
) -> WorstCase:
    r"""Compute the exact worst-case margins under local budgets.

    .. math::
        m^*_{c_1, c_2}(v) = \min_{\tilde G} \pi_{\tilde G}(v)^{\top}
        (H_{c_1} - H_{c_2}) = - \alpha V^*_v \quad \text{with} \quad r =
        H_{c_2} - H_{c_1}

    for all nodes and pairs of classes at once (Proposition 1). :obj:`start`
    are the margins of a similar problem.
    """
    logits = logits.detach().double()
    num_classes = logits.size(1)
    first, second = _class_pairs(num_classes)
    reward = (logits[:, second] - logits[:, first]).t().contiguous()
    if start is None:
        # The clean graph's, which takes a column per class, not per pair.
        clean = policy_value(
            perturbations.clean_policy(num_classes),
            *(logits.t().contiguous(), alpha),
            tol=1e-3,
        ).value
        guess = clean[second] - clean[first]
    else:
        guess = -start[first, second] / alpha
    shape = (num_classes, num_classes, logits.size(0))
    margins = logits.new_full(shape, math.inf)
    lower, upper = margins.clone(), margins.clone()
    policies = []
    blocks = list(perturbations.column_blocks(first.numel()))
    for block in Bar(blocks, desc='class pairs'):
        optimum = policy_iteration(
            *(perturbations, reward[block], alpha),
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
        ctx.arguments = worst, alpha, logits.dtype
        # A copy, as autograd marks the returned tensor.
        return worst.margins.to(logits.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        worst, alpha, dtype = ctx.arguments
        grad = grads[0].new_zeros(worst.margins.shape[1:]).double()
        first, second = _class_pairs(len(grad))
        for block, policy in worst.policies:
            sent = alpha * grads[0][first[block], second[block]].double()
            goal = _BACKWARD * sent.abs().amax(1)
            back, _ = policy.solve(sent, 1 - alpha, sent, goal, back=True)
            grad.index_add_(0, first[block], back)
            grad.index_add_(0, second[block], back, alpha=-1)
        return grad.t().to(dtype), None, None


def robust_margins(logits: Tensor, worst: WorstCase, alpha: float) -> Tensor:
    """Return the margins of the same logits, differentiable in them.

    By Danskin's theorem the derivative of a minimum is that of its minimizer,
    the worst graph held fixed; where several graphs are worst, an element of
    the subdifferential.
    """
    return _RobustMargins.apply(logits, worst, alpha)
