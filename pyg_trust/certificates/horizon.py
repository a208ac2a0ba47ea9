r"""Worst cases of deployed models: symmetric, or with K steps.

A model may predict :math:`\Pi H`, or something near to it. This module bounds
the largest score :math:`z_v` of a signal :math:`r` over admissible graphs for
all of them; :math:`a = 1 - \alpha`.

**Symmetric normalization.** :math:`\hat A = D^{-1/2} A D^{-1/2}` is similar to
:math:`P = D^{-1} A`: :math:`y = D^{-1/2} z` solves :math:`y = a P y + \alpha
D^{-1/2} r`, and has the signs of :math:`z`. A flip changes the degrees of both
its ends, so that the signal of a node depends on its own row: :math:`r_i /
\sqrt{|S_i|}`, the term :math:`\sigma` of :mod:`.policy`, where it is exact. An
undirected flip is one in either row, so that both degrees change.

**K steps.** :math:`z^{(k + 1)} = a P z^{(k)} + \alpha r` from :math:`z^{(0)} =
r`. With the Bellman operator :math:`T` and :math:`z = \alpha V`,

.. math::
    V^{(0)} = r / \alpha, \quad V^{(k + 1)} = T V^{(k)} \quad \Rightarrow
    \quad z^{(K)} \le \alpha V^{(K)} \text{ in every admissible graph,}

by induction, as :math:`T` is monotone and no :math:`\tilde P` makes more of
:math:`V^{(k)}` than :math:`T` does. (The attacker of :math:`V^{(K)}` may use
another graph in each step, so that it is a bound; the attack that is found is
one graph for all steps.) For :obj:`'sym'`, :math:`V^{(0)}_i` is the largest
:math:`r_i / (\alpha \sqrt{s})` over the sizes that a row may have.

**A global budget.** For prices :math:`\nu_i = \lambda / \bar\pi_i` of
:mod:`.budget` the same recursion bounds :math:`\alpha V_u^{(K)} + \lambda B`:
what a graph pays in :math:`K` steps is at most what it pays in the limit,
:math:`\lambda \sum_i k_i \pi_i / \bar\pi_i \le \lambda B`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from pyg_trust._checks import Fraction, Natural, OneOf, check_tensor, validated
from pyg_trust.certificates.perturbations import Perturbations, Policy
from pyg_trust.certificates.policy import (
    Optimum,
    policy_iteration,
    policy_value,
)

_UNIT = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class Prices:
    r"""Prices of flips, by row and by single edge, see :mod:`.policy`.

    Args:
        step (Tensor, optional): :math:`\nu_i`, ``[num_columns, num_nodes]``.
        removal (Tensor, optional): :math:`\nu_{ij}` of the edges.
        addition (Tensor, optional): :math:`\nu_{ij}` of addable pairs.
        visit (Tensor, optional): :math:`\mu_i`.
    """

    step: Tensor | None = None
    removal: Tensor | None = None
    addition: Tensor | None = None
    visit: Tensor | None = None


@validated
@dataclass(frozen=True)
class Horizon:
    """Diffusion of a model: in the limit or K steps, by rows or symmetric.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1)`.
        K (int, optional): the number of steps. (default: :obj:`None`)
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
            (default: :obj:`'rw'`)
    """

    alpha: Fraction
    K: Natural | None = None
    normalization: Annotated[str, OneOf(('rw', 'sym'))] = 'rw'

    @validated
    def maximize(
        self,
        perturbations: Perturbations,
        signal: Tensor,
        *,
        prices: Prices | None = None,
        start: Tensor | None = None,
        tol: Tensor | float = 1e-12,
    ) -> Optimum:
        r"""Bound :math:`V = z / \alpha` over all admissible graphs.

        Args:
            perturbations (Perturbations): the admissible graphs.
            signal (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
            prices (Prices, optional): the prices of flips. (default:
                :obj:`None`)
            start (Tensor, optional): a guess of :math:`V`.
                (default: :obj:`None`)
            tol (float or Tensor): as in
                :func:`~pyg_trust.certificates.policy.policy_iteration`.
                (default: :obj:`1e-12`)

        Returns:
            Optimum: :obj:`value` + :obj:`high` holds in every admissible
            graph; with :obj:`K` the policy is that of the last step, and
            :obj:`low` says nothing of it.
        """
        shape = ('num_columns', perturbations.num_nodes)
        check_tensor('signal', signal, torch.float64, shape, finite=True)
        paid = Prices() if prices is None else prices
        reward, root = self._split(signal)
        costs: dict[str, Any] = {
            'step_cost': paid.step,
            'removal_cost': paid.removal,
            'addition_cost': paid.addition,
            'visit_cost': paid.visit,
            'root': root,
        }
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

    @validated
    def evaluate(self, policy: Policy, signal: Tensor) -> Optimum:
        r"""Compute :math:`V = z / \alpha` in given graphs, and its error.

        Args:
            policy (Policy): a graph per column.
            signal (Tensor): :math:`r`, float64, ``[num_columns, num_nodes]``.
        """
        shape = (policy.num_columns, policy.perturbations.num_nodes)
        check_tensor('signal', signal, torch.float64, shape, finite=True)
        if self.normalization == 'sym':
            signal = signal / policy.size.clamp(min=1).double().sqrt()
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

    def _split(self, signal: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.normalization == 'sym':
            return torch.zeros_like(signal), signal
        return signal, None

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
