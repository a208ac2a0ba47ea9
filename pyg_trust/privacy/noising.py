"""Noise on clipped sums, on a public grid."""

from typing import Any

import torch
from torch import Tensor

from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.exact.step import release

__all__ = ['noisy_count', 'noisy_sums']


def noisy_sums(
    totals: list[Tensor],
    noise: Any,
    multiplier: float,
    norm: float,
) -> list[Tensor]:
    """Bring sums to the grid of the noise, and add it.

    Returns:
        list[Tensor]: float64.
    """
    # All at once: every draw checks the table of the noise.
    (made,) = release(
        [torch.cat([total.cpu().reshape(-1) for total in totals]).numpy()],
        lambda count: noise.cells((count,)).cpu().numpy(),
        multiplier,
        norm,
    )
    parts = torch.from_numpy(made).split([t.numel() for t in totals])
    return [
        part.view(total.shape).to(total.device, copy=True)
        for part, total in zip(parts, totals, strict=True)
    ]


def noisy_count(count: float, noise: Any, std: float) -> float:
    """Add noise to a count to which each subgraph adds 1/2 at most."""
    step, _ = clip.noise_grid(2 * std, 0.5, 1)
    return (round(count / step) + int(noise.cells((1,))[0])) * step
