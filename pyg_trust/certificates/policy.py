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
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyg_trust import ops
from pyg_trust._progress import Bar
from pyg_trust.certificates.threat import Perturbations, Policy

__all__ = [
    'Horizon',
    'Optimum',
    'policy_iteration',
    'policy_value',
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


class _WorstMargins(torch.autograd.Function):
    # The derivative of a minimum is that of its minimizer, the worst graph
    # held fixed (Danskin); where several are worst, a subgradient.
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        perturbations: Perturbations,
        alpha: float,
        start: Tensor | None,
        tol: float,
    ) -> Tensor:
        h, classes = logits.double(), logits.size(1)
        first, second = (~torch.eye(classes, dtype=torch.bool)).nonzero().t()
        reward = (h[:, second] - h[:, first]).t().contiguous()
        if start is None:
            # The clean graph's, which takes a column per class, not per pair.
            policy = perturbations.clean_policy(classes)
            clean = policy_value(policy, h.t().contiguous(), alpha, tol=1e-3)
            guess = clean.value[second] - clean.value[first]
        else:
            guess = -start[first, second].double() / alpha
        margins = h.new_full((classes, classes, len(h)), math.inf)
        policies = []
        blocks = list(perturbations.column_blocks(first.numel()))
        for block in Bar(blocks, desc='class pairs'):
            optimum = policy_iteration(
                *(perturbations, reward[block], alpha),
                start=guess[block],
                tol=tol,
            )
            margins[first[block], second[block]] = -alpha * optimum.value
            policies.append((first[block], second[block], optimum.policy))
        ctx.arguments = policies, alpha, logits.dtype
        return margins.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        policies, alpha, dtype = ctx.arguments
        grad = grads[0].new_zeros(grads[0].shape[1:]).double()
        for first, second, policy in policies:
            sent = alpha * grads[0][first, second].double()
            goal = _BACKWARD * sent.abs().amax(1)
            back, _ = policy.solve(sent, 1 - alpha, sent, goal, back=True)
            grad.index_add_(0, first, back)
            grad.index_add_(0, second, back, alpha=-1)
        return grad.t().to(dtype), None, None, None, None


def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: float,
    *,
    start: Tensor | None = None,
    tol: float = 1e-12,
) -> Tensor:
    r"""Compute the exact worst-case margins under local budgets.

    .. math::
        m^*_{c_1, c_2}(v) = \min_{\tilde G} \pi_{\tilde G}(v)^{\top}
        (H_{c_1} - H_{c_2}) = - \alpha V^*_v \quad \text{with} \quad r =
        H_{c_2} - H_{c_1}

    for all nodes and pairs of classes at once (Proposition 1), differentiable
    in the logits; infinite for :math:`c_1 = c_2`. :obj:`start` are the margins
    of a similar problem.
    """
    return _WorstMargins.apply(logits, perturbations, alpha, start, tol)
