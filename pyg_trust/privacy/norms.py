"""Clipping norms that are adapted during training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyg_trust._checks import Fraction, Positive, check_positive, validated
from pyg_trust.privacy.bounds import check_norm

__all__ = ['AdaptiveNorm']


@validated
@dataclass(frozen=True)
class AdaptiveNorm:
    r"""A clipping norm that follows a quantile of the gradients' norms.

    `Andrew et al. 2021 <https://arxiv.org/abs/1905.03871>`_: every step also
    releases the noisy share :math:`\tilde b` of gradients that are at most
    :math:`C` long, and moves :math:`C \leftarrow C\, e^{-\eta (\tilde b -
    \gamma)}`. The share is paid from the same account: a step with noise
    :math:`z_g C` on the gradients and :math:`s` on the count is one of the
    noise multiplier :math:`z`, with :math:`z^{-2} = z_g^{-2} + (2 s)^{-2}`
    (:doc:`/theory/private_training`). The account counts :math:`z`, and
    :math:`z_g > z` is added.

    Args:
        initial (float): the first :math:`C`, chosen without looking at
            private data. (default: :obj:`1.0`)
        quantile (float): :math:`\gamma` in :math:`(0, 1)`.
        rate (float): :math:`\eta`, positive. (default: :obj:`0.2`)
        noise_std (float, optional): :math:`s`; by default a twentieth of the
            batch size, and :math:`z` at least. It needs to be above
            :math:`z / 2`. (default: :obj:`None`)
        bounds (tuple): the least and the greatest norm.

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
        if not isinstance(self.bounds, Sequence) or len(self.bounds) != 2:
            raise TypeError(
                f"'bounds' needs to be two numbers (got {self.bounds})"
            )
        low, high = (
            check_norm('bounds', check_positive('bounds', bound))
            for bound in self.bounds
        )
        if not low < high:
            raise ValueError(
                f"'bounds' needs to be increasing (got {self.bounds})"
            )
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
