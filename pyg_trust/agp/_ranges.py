r"""Refuse measures whose numbers leave the range of a dtype.

In :math:`\sum_i w_i P^i x` a weight that vanishes counts for nothing only if
:math:`P^i` does not make up for it: where powers grow like :math:`100^i`,
:math:`w_{20} = 10^{-40}` is not small. The largest sum of a row of
:math:`(SRB)^i`, :math:`P = RBS`, is what a level may grow by.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.agp.measures import Measure


def check_shrink(measure: Measure, dtype: torch.dtype) -> None:
    """Refuse a measure whose ``shrink`` is out of range in the dtype."""
    rounded = float(torch.tensor(measure.shrink, dtype=dtype))
    if not 0 < rounded <= torch.finfo(dtype).max:
        raise ValueError(
            f"'measure' {measure} needs a 'shrink' in the range of {dtype} "
            f'(got {measure.shrink}): use float64'
        )


def check_weights(
    measure: Measure, dtype: torch.dtype, norms: Callable[[], list[float]]
) -> None:
    """Refuse weights that underflow in the dtype and whose terms count."""
    info = torch.finfo(dtype)
    if max(measure.weights) < info.tiny:
        raise ValueError(
            f"'measure' {measure} needs a weight of at least {info.tiny:.2g}, "
            f'the smallest {dtype} (got {max(measure.weights):.2g} at most)'
        )
    if min(measure.weights) >= info.tiny:
        return
    small = [i for i, w in enumerate(measure.weights) if 0 < w < info.tiny]
    if not small:
        return
    size = norms()
    lost = sum(measure.weights[i] * size[i] for i in small)
    if not lost <= info.eps * sum(measure.weights):
        raise ValueError(
            f"'measure' {measure} has weights that vanish in {dtype} (the "
            f'first is that of level {small[0]}), while the powers of its '
            "operator grow on this graph: give it a 'shrink', or use float64"
        )


def known_norms(measure: Measure, undirected: bool) -> list[float] | None:
    """Return bounds of the powers of P that need no graph, or None.

    They are 1 if no row of S R B sums to more, or if P keeps a signal's sum.
    """
    keeps_sums = measure.b == 1 if measure.along else measure.a == 1
    bounded = undirected and measure.a + measure.b >= 1
    if measure.shrink <= 1 and (bounded or keeps_sums):
        return [1.0] * (measure.levels + 1)
    return None


def check_half(
    measure: Measure, weights: Tensor, room: float, norms: list[float]
) -> None:
    """Refuse weights whose float16 levels underflow but still matter.

    A level's largest number is at least 2^13 / room. What is below 2^-25 is
    lost, and later levels amplify the loss.
    """
    size = weights.abs().tolist()
    while len(size) > 1 and size[-1] == 0:
        size.pop()
    levels = len(size) - 1
    lost = sum(norms[:levels]) * room * 2.0**-38
    kept = size[0] + sum(map(_times, size[1:], norms))
    if levels > 1 and not lost <= 2.0**-11 * kept:
        raise ValueError(
            f"'half' loses levels of 'measure' {measure} on this graph, as "
            'its weights fall while the powers of its operator grow: give it '
            "a 'shrink', or use half=False"
        )


def power_norms(
    rowptr: Tensor, col: Tensor, ends: Tensor, levels: int, loops: bool
) -> list[float]:
    """Return the largest row sum of each power of S R B from 0 on."""
    ones, once = torch.ones_like(ends), torch.tensor([0.0, 1.0]).double()
    sums, norms = ones.view(-1, 1), [1.0]
    for _ in range(levels):
        sums = ops.propagate(
            *(rowptr, col, sums, ends, ones, once), loops=loops
        )
        norms.append(float(sums.max()))
        if not norms[-1] < float('inf'):
            norms[-1] = float('inf')
        if norms[-1] == float('inf') or (len(norms) == 2 and norms[1] <= 1):
            # Later powers are no larger, or infinite as well.
            return norms + norms[-1:] * (levels + 1 - len(norms))
    return norms


def _times(weight: float, norm: float) -> float:
    return weight * norm if weight > 0 else 0.0
