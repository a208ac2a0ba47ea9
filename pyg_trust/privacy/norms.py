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

    Every step also releases the noisy share :math:`\tilde b` of gradients that
    are at most :math:`C` long, and multiplies :math:`C` by :math:`e^{-\eta
    (\tilde b - \gamma)}` (`Andrew et al. 2021
    <https://arxiv.org/abs/1905.03871>`_). A step costs the same as without the
    share: it is counted with the noise multiplier :math:`z` that you chose,
    and gradients get the larger multiplier :math:`z_g` with :math:`z^{-2} =
    z_g^{-2} + (2 s)^{-2}` (:doc:`/theory/private_training`). :math:`s` is the
    standard deviation of the noise on the count of such gradients.

    Args:
        initial (float): the first :math:`C`, chosen without looking at private
            data. (default: :obj:`1.0`)
        quantile (float): the quantile :math:`\gamma`, in :math:`(0, 1)`.
        rate (float): the learning rate :math:`\eta`. (default: :obj:`0.2`)
        noise_std (float, optional): the standard deviation :math:`s`, above
            :math:`z / 2`; by default a twentieth of the batch size, and
            :math:`z` at least.
        bounds (tuple[float, float]): the least and the greatest :math:`C`.

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
        """Return the standard deviation :math:`s` of the noise on the count.

        Args:
            noise_multiplier (float): the account's :math:`z`.
            batch_size (int): the units of a step; :math:`s` may depend on it.
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
        """Return the noise multiplier :math:`z_g` of the gradients.

        Args:
            noise_multiplier (float): the account's :math:`z`.
            batch_size (int): the units of a step.
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
