r"""Personalized PageRank, and its worst case over admissible graphs.

`"Certifiable Robustness to Graph Perturbations"
<https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019): every
node chooses its out-neighbours within a budget, independently of all others,
so that one graph is worst at all nodes at once, and policy iteration finds it.
Every bound holds whatever the solver did, roundoff included; docs/theory has
the proof.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import (
    Count,
    Fraction,
    Natural,
    NotNegative,
    OneOf,
    Positive,
    check_integer,
    check_non_negative,
    check_tensor,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.certificates.diffusion import check_logits
from pyg_trust.certificates.perturbations import Perturbations, Policy

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
    r"""Worst case by policy iteration, with bounds of its error.

    The value of :obj:`policy` and the optimum are both in ``[value + low,
    value + high]`` at every node, roundoff included.

    Args:
        value (Tensor): :math:`V`, float64, ``[num_columns, num_nodes]``.
        low (Tensor): float64, ``[num_columns]``, at most zero.
        high (Tensor): float64, ``[num_columns]``, at least zero.
        policy (Policy): the graph of each column.
        error (Tensor): the roundoff of a step :math:`T V - V`: float64,
            ``[num_columns]``.
        gap (Tensor): :math:`T V - V` as computed, as :obj:`value`.
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
    r"""Maximize :math:`(I - a \tilde P)^{-1} r` over admissible graphs.

    All columns are independent problems, and the maximum holds at all nodes at
    once. The iteration stops when one more step changes the value by at most
    :obj:`tol` times the largest reward, or by roundoff alone, or after
    :obj:`max_iter` policies; the returned bounds hold in any case. The costs
    are those of :func:`pyg_trust.ops.policy_iteration`.

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
        tol (float or Tensor): the relative tolerance, one for all columns or
            one for each. (default: :obj:`1e-12`)
        max_iter (int): the largest number of policies. (default: :obj:`100`)

    Returns:
        Optimum: the value, bounds of its error, and the policy.

    Raises:
        TypeError, ValueError: on another dtype, shape, sign or range.
    """
    shape: tuple[int | str, ...] = ('num_columns', perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    if not isinstance(tol, Tensor):
        check_non_negative('tol', tol)
    count = reward.size(0)
    edges = count, perturbations.graph.num_edges
    pairs = count, perturbations.pairs.size(1)
    for name, given, wanted in (
        ('bonus', bonus, reward.shape),
        ('root', root, reward.shape),
        ('visit_cost', visit_cost, reward.shape),
        ('step_cost', step_cost, reward.shape),
        ('removal_cost', removal_cost, edges),
        ('addition_cost', addition_cost, pairs),
        ('start', start, reward.shape),
    ):
        if given is not None:
            check_tensor(name, given, torch.float64, wanted, finite=True)
    bound = reward.abs().amax(1)
    for part in (bonus, root):
        if part is not None:
            bound = bound + part.abs().amax(1)
    priced = removal_cost is not None or addition_cost is not None
    rounding = perturbations.rounding(priced)
    value, gap, *flips = ops.policy_iteration(
        perturbations.threat,
        reward,
        reward if start is None else start,
        # Stop when improvements are within roundoff.
        torch.maximum(tol * bound, 4 * 64 * _UNIT * bound),
        2 * rounding,
        1 - alpha,
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
    return Optimum.of(policy, value, gap, error, alpha)


@validated
def policy_value(
    policy: Policy, reward: Tensor, alpha: Fraction, *, tol: Positive = 1e-12
) -> Optimum:
    r"""Compute :math:`V = (I - a \tilde P)^{-1} r` of given graphs.

    Args:
        policy (Policy): a graph per column.
        reward (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        tol (float): the relative tolerance. (default: :obj:`1e-12`)

    Returns:
        Optimum: the value, and bounds of its error as in
        :func:`policy_iteration`.
    """
    shape = (policy.num_columns, policy.perturbations.num_nodes)
    check_tensor('reward', reward, torch.float64, shape, finite=True)
    bound = reward.abs().amax(1)
    value, gap = policy.solve(reward, 1 - alpha, reward, tol * bound)
    error = 64 * _UNIT * (value.abs().amax(1) + bound)
    return Optimum.of(policy, value, gap, error, alpha)


@validated
@dataclass(frozen=True)
class Horizon:
    r"""Diffusion of a deployed model: its steps and its normalization.

    With symmetric normalization, :math:`y = D^{-1/2} z` solves the system of
    the random walk for the signal :math:`r_i / \sqrt{|S_i|}`. With K steps,
    the Bellman operator is applied K times: its attacker may use another graph
    in each step, so that the result is a bound.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        K (int, optional): the number of steps, by default the limit.
            (default: :obj:`None`)
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
            (default: :obj:`'rw'`)
    """

    alpha: Fraction
    K: Natural | None = None
    normalization: Annotated[str, OneOf(('rw', 'sym'))] = 'rw'

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

        Args:
            perturbations (Perturbations): the admissible graphs.
            signal (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
            start (Tensor, optional): a guess of :math:`V`.
                (default: :obj:`None`)
            tol (float or Tensor): as in :func:`policy_iteration`.
                (default: :obj:`1e-12`)
            **costs (Tensor): the costs of flips, as in
                :func:`policy_iteration`.

        Returns:
            Optimum: :obj:`value` + :obj:`high` holds in every admissible
            graph. With :obj:`K` steps the policy is that of the last step, and
            :obj:`low` is no bound of its value.
        """
        reward = signal
        if self.normalization == 'sym':
            reward, costs['root'] = torch.zeros_like(signal), signal
        if self.K is None:
            return policy_iteration(
                perturbations,
                reward,
                self.alpha,
                start=start,
                tol=tol,
                **costs,
            )
        value = self._first(perturbations, signal)
        policy = perturbations.clean_policy(signal.size(0))
        error = 4 * _UNIT * value.abs().amax(1)
        for _ in range(self.K):
            # One step: V + (T V - V), with a bound of its roundoff.
            optimum = policy_iteration(
                perturbations,
                reward,
                self.alpha,
                start=value,
                max_iter=1,
                **costs,
            )
            policy, value = optimum.policy, optimum.value + optimum.gap
            rounding = optimum.error + 2 * _UNIT * value.abs().amax(1)
            error = (1 - self.alpha) * error + rounding
        return Optimum(value, -error, error, policy, error, value * 0)

    def evaluate(self, policy: Policy, signal: Tensor) -> Optimum:
        r"""Compute :math:`V = z / \alpha` in given graphs, and its error.

        Args:
            policy (Policy): a graph per column.
            signal (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        """
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

    def _first(self, perturbations: Perturbations, signal: Tensor) -> Tensor:
        # V^(0): for 'sym', the largest over the sizes that a row may have;
        # a positive signal is largest in the smallest row.
        value = signal / self.alpha
        if self.normalization == 'rw':
            return value
        small, large = (
            size.clamp(min=1).double().sqrt()
            for size in (perturbations.smallest, perturbations.largest)
        )
        return torch.where(value > 0, value / small, value / large)


@dataclass(frozen=True)
class WorstCase:
    r"""Smallest margins over all admissible graphs, for all nodes.

    Entry ``[c1, c2, v]`` is about :math:`\min_{\tilde G} \pi_{\tilde
    G}(v)^\top (H_{c1} - H_{c2})`, and infinite for :math:`c1 = c2`. Both the
    exact minimum and the margin in the graph that :meth:`flips` makes are in
    ``[lower, upper]``, roundoff included.

    Args:
        margins (Tensor): float64, ``[num_classes, num_classes, num_nodes]``.
        lower (Tensor): bounds from below, as :obj:`margins`.
        upper (Tensor): bounds from above, as :obj:`margins`.
        policies (tuple): the worst graphs, by blocks of pairs of classes.
    """

    margins: Tensor
    lower: Tensor
    upper: Tensor
    policies: tuple[tuple[slice, Policy], ...]

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

    def blocks(self) -> Iterator[tuple[tuple[Tensor, Tensor], Policy]]:
        """Iterate over the pairs of classes of each block."""
        first, second = _class_pairs(self.margins.size(0))
        for block, policy in self.policies:
            yield (first[block], second[block]), policy


def _class_pairs(num_classes: int) -> tuple[Tensor, Tensor]:
    pairs = torch.ones(num_classes, num_classes).fill_diagonal_(0).nonzero()
    return pairs[:, 0], pairs[:, 1]


@validated
def worst_case_margins(
    logits: Tensor,
    perturbations: Perturbations,
    alpha: Fraction,
    *,
    start: Tensor | None = None,
    tol: NotNegative = 1e-12,
) -> WorstCase:
    r"""Compute the exact worst-case margins under local budgets.

    .. math::
        m^*_{c_1, c_2}(v) = \min_{\tilde G} \pi_{\tilde G}(v)^{\top}
        (H_{c_1} - H_{c_2}) = - \alpha V^*_v \quad \text{with} \quad r =
        H_{c_2} - H_{c_1}

    for all nodes and all pairs of classes at once (Proposition 1). See
    :func:`robust_margins` for training.

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
    check_logits(logits, perturbations.graph)
    logits = logits.detach().double()
    num_classes = logits.size(1)
    shape = (num_classes, num_classes, logits.size(0))
    first, second = _class_pairs(num_classes)
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
        check_tensor('start', start, torch.float64, shape)
        guess = -start[first, second] / alpha
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
        for pair, policy in worst.blocks():
            sent = alpha * grads[0][pair].double()
            goal = _BACKWARD * sent.abs().amax(1)
            back, _ = policy.solve(sent, 1 - alpha, sent, goal, back=True)
            grad.index_add_(0, pair[0], back)
            grad.index_add_(0, pair[1], back, alpha=-1)
        return grad.t().to(dtype), None, None


@validated
def robust_margins(
    logits: Tensor, worst: WorstCase, alpha: Fraction
) -> Tensor:
    r"""Compute worst-case margins, differentiable in the logits.

    By Danskin's theorem the derivative of a minimum is that of its minimizer,
    with the worst graphs held fixed:

    .. math::
        \frac{\partial m^*_{c_1, c_2}(v)}{\partial H_{i, c_1}} =
        \pi^*_{c_1, c_2}(v)_i = - \frac{\partial m^*_{c_1, c_2}(v)}{\partial
        H_{i, c_2}} .

    Where several graphs are worst, this is one element of the subdifferential.
    The backward pass solves one transposed system per pair of classes.

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
