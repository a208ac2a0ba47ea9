"""Clipping norms: estimated before training, or adapted during it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyg_trust._checks import Fraction, Positive, check_positive, validated
from pyg_trust._progress import Bar
from pyg_trust.loader import StepLoader
from pyg_trust.privacy.bounds import check_norm
from pyg_trust.privacy.calls import Forward, Units, find_call
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.mechanisms import private_quantile
from pyg_trust.privacy.probing import try_parts
from pyg_trust.privacy.training import PrivateStep, fresh_draws
from pyg_trust.privacy.validation import (
    Criterion,
    check_layers,
    check_rows,
    check_types,
)

__all__ = ['AdaptiveNorm', 'estimated_norm', 'gradient_norms']

_PROBED = 32


@validated
@dataclass(frozen=True)
class AdaptiveNorm:
    r"""A clipping norm that follows a quantile of the gradients' norms.

    `Andrew et al. 2021 <https://arxiv.org/abs/1905.03871>`_: with :math:`b_i`
    whether the gradient of unit :math:`i` is at most :math:`C` long, every
    step also releases the noisy share of such units and moves

    .. math::
        \tilde b = \frac{1}{2} + \frac{1}{m} \Big(\sum_i
        \big(b_i - \tfrac{1}{2}\big) + \mathcal{N}(0, s^2)\Big), \qquad
        C \leftarrow C\, e^{-\eta (\tilde b - \gamma)}.

    **It is paid from the same account.** A unit adds the vector
    :math:`(g_i / (z_g C),\ (b_i - \frac{1}{2}) / s)` to what is released with
    noise of deviation one, and its norm is at most :math:`1 / z` if

    .. math::
        z^{-2} = z_g^{-2} + (2 s)^{-2}.

    So a step with the gradients' noise :math:`z_g C` and the count's :math:`s`
    is one of the noise multiplier :math:`z`, whatever the neighbours are:
    :math:`z` is what the account says, and :math:`z_g > z` what is added.
    The norm of a step is made of what steps before released, and costs
    nothing more.

    Args:
        initial (float): the first :math:`C`, chosen without looking at
            private data. (default: :obj:`1.0`)
        quantile (float): :math:`\gamma` in :math:`(0, 1)`.
            (default: :obj:`0.5`)
        rate (float): :math:`\eta`, positive. (default: :obj:`0.2`)
        noise_std (float, optional): :math:`s`; by default a twentieth of the
            batch size, and :math:`z` at least. It needs to be above
            :math:`z / 2`. (default: :obj:`None`)
        bounds (tuple): the least and the greatest norm.
            (default: :obj:`(1e-6, 1e6)`)

    Example:
        >>> norm = AdaptiveNorm(initial=1.0)
        >>> round(norm.gradient_multiplier(2.0, 400), 4)
        2.0025
        >>> norm.next(1.0, 0.9) < 1.0 < norm.next(1.0, 0.1)
        True
    """

    initial: Positive = 1.0
    quantile: Fraction = 0.5
    rate: Positive = 0.2
    noise_std: Positive | None = None
    bounds: tuple[float, float] = (1e-6, 1e6)

    def __post_init__(self) -> None:
        low, high = check_bounds(self.bounds)
        for bound in (low, high):
            check_norm('bounds', bound)
        if not low <= self.initial <= high:
            raise ValueError(
                f"'initial' needs to be in 'bounds' (got {self.initial} and "
                f'{self.bounds})'
            )

    def count_std(self, noise_multiplier: float, batch_size: int) -> float:
        """Return the standard deviation of the noise on the count.

        Args:
            noise_multiplier (float): the account's :math:`z`.
            batch_size (int): :math:`m`.
        """
        if self.noise_std is None:
            return max(batch_size / 20, noise_multiplier)
        if not self.noise_std > noise_multiplier / 2:
            raise ValueError(
                f"'noise_std' needs to be above {noise_multiplier / 2:g}, "
                f'half of the noise multiplier (got {self.noise_std}): the '
                'count alone would cost more than the step may'
            )
        return float(self.noise_std)

    @validated
    def gradient_multiplier(
        self, noise_multiplier: Positive, batch_size: int
    ) -> float:
        """The noise :math:`z_g` on the gradients, in units of :math:`C`.

        Args:
            noise_multiplier (float): the account's :math:`z`.
            batch_size (int): :math:`m`.
        """
        count = self.count_std(noise_multiplier, batch_size)
        rest = 1 - (noise_multiplier / (2 * count)) ** 2
        return noise_multiplier / math.sqrt(rest)

    def next(self, norm: float, share: float) -> float:
        r"""Return the clipping norm of the next step.

        Args:
            norm (float): :math:`C` of the present step.
            share (float): the noisy share :math:`\tilde b`.
        """
        low, high = self.bounds
        # The noise in 'share' has no bound: without a limit, one draw could
        # take the norm to an end of 'bounds'. e^2.3 is ten.
        power = min(2.3, max(-2.3, self.rate * (self.quantile - share)))
        return min(high, max(low, norm * math.exp(power)))


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Check a pair of a lower and an upper bound."""
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise TypeError(f"'bounds' needs to be two numbers (got {bounds})")
    low, high = (check_positive('bounds', bound) for bound in bounds)
    if not low < high:
        raise ValueError(f"'bounds' needs to be increasing (got {bounds})")
    return low, high


def estimated_norm(
    engine: Any,
    module: nn.Module,
    loader: StepLoader,
    criterion: Criterion,
    percentile: float,
    epsilon: float | None,
    bounds: tuple[float, float],
    public: bool,
    insist: bool,
    forward: Forward | None,
) -> float:
    """Estimate a norm: :meth:`PrivacyEngine.estimate_max_grad_norm`."""
    if (epsilon is not None) + public + insist != 1:
        raise ValueError(
            "one of 'epsilon' (a private estimate), 'public' and 'insist' "
            'needs to be given: a percentile of private gradients is not '
            f'private (got {epsilon}, {public} and {insist})'
        )
    low, high = check_bounds(bounds)
    check_layers(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(
            "'module' needs to have parameters that are trained (got none)"
        )
    if engine._group.current().size > 1:
        raise RuntimeError(
            'a clipping norm is estimated in one process, before the '
            "others start; 'max_grad_norm=AdaptiveNorm(...)' works in "
            'several'
        )
    if epsilon is not None:
        engine._check_process()
        if loader.form != 'replace':
            raise ValueError(
                "'epsilon' needs a loader whose neighbours exchange a "
                'unit: an estimated percentile is not accounted for where '
                'one is added or removed; use AdaptiveNorm'
            )
        # One row could change several norms.
        check_types(module)
        check_rows(loader)
        step = PrivateStep(
            *(module, loader, 1.0, lambda *_: []),
            forward=forward,
            criterion=criterion,
        )
        try_parts(step)
        engine._open(loader)
        engine._check_left(f"'epsilon' = {epsilon:g}", pure=epsilon)
    secret = not engine.seeded
    norms = gradient_norms(module, loader, criterion, forward, secret)
    if epsilon is not None:
        if engine._ledger is not None:
            engine._ledger.record_pure(epsilon)
        engine.accountant.spend_pure(epsilon)
        return private_quantile(
            *(norms, percentile / 100, epsilon, low, high),
            engine._noise.random_bytes,
            loader.terms,
        )
    if insist:
        warnings.warn(
            'the clipping norm is a percentile of private gradient norms: '
            'it reveals some of the data, and no epsilon accounts for it',
            stacklevel=4,
        )
        engine._leaks.append(
            'NOT COVERED: the clipping norm is a percentile of private '
            'gradient norms, released without noise'
        )
    norms = np.nan_to_num(norms, nan=high, posinf=high)
    return float(np.percentile(np.clip(norms, low, high), percentile))


def gradient_norms(
    module: nn.Module,
    loader: StepLoader,
    criterion: Criterion,
    forward: Forward | None,
    secret: bool = True,
) -> np.ndarray:
    """Compute each unit's gradient norm, on the loader's first partition.

    They are private.

    Args:
        module (torch.nn.Module): the model.
        loader (StepLoader): the loader.
        criterion (callable): a mean of one term per row.
        forward (callable, optional): calls a model with a batch.
        secret (bool): whether masks of dropout are secret: where the sizes of
            units are private, one shifts the masks of all after it.
            (default: :obj:`True`)
    """
    device = next(module.parameters()).device
    found: list[Tensor] = []
    step = PrivateStep(module, loader, 1.0, lambda *_: [])
    parts = torch.arange(loader.num_subgraphs).split(_PROBED)
    for index in Bar(parts, desc='norms'):
        batch = loader(loader.batch_sampler.write(0, index))
        owner, count = loader.check_batch(batch, 0, index.numel())
        batch, owner = loader.flat(batch).to(device), owner.to(device)
        at = Units(batch, owner, count)
        call = find_call(
            *(module, step.schema, batch, at, forward), loader.by_unit
        )
        with fresh_draws(device, secret), torch.enable_grad():
            out = step.run(call, call.shown(batch), at)
            leaf = out.detach().requires_grad_()
            # The norm of a unit is to be a function of its own rows.
            terms = [
                criterion(leaf[i : i + 1], batch.y[i : i + 1])
                for i in range(count)
            ]
            (grad,) = torch.autograd.grad(torch.stack(terms).sum(), leaf)
        made = step.units.attribute(out, grad, at.of(out, loader.by_unit))
        found.append(clipped_sum(made, 1.0).norms.cpu())
    return torch.cat(found).numpy()
