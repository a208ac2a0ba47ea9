r"""Epsilon once more, by an accountant that is not of this package.

dp-accounting of Google composes the steps here; nothing of
:mod:`pyg_trust.privacy` is used. For sampling without replacement it has
no privacy loss distribution of its own. The profile of a step is
:math:`q\, \delta_G(\log(1 + (e^\epsilon - 1) / q))` for
:math:`\epsilon \ge 0` (`Balle, Barthe and Gaboardi 2018, Theorem 9
<https://arxiv.org/abs/1807.01647>`_), which is that of a Gaussian that is
drawn by a coin and then withdrawn. That one it has. The relation is
symmetric, so negative :math:`\epsilon` follow by :math:`\delta(\epsilon) =
1 - e^\epsilon + e^\epsilon \delta(-\epsilon)`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# Noise over the clipping norm, rate, steps.
Lines = Sequence[tuple[float, float, int]]

# Cells to the loss of a typical step; at most so many in all.
_CELLS, _MOST = 100, 100_000


def wor_again(lines: Lines, delta: float) -> float:
    r""":math:`\epsilon` of steps that draw without replacement.

    Args:
        lines (sequence): of :obj:`(noise_multiplier, q, steps)`.
        delta (float): in :math:`(0, 1)`.

    Raises:
        ImportError: without dp-accounting.
    """
    from dp_accounting.pld.privacy_loss_mechanism import (
        AdjacencyType,
        GaussianPrivacyLoss,
    )

    losses = [
        GaussianPrivacyLoss(
            z / 2, sampling_prob=q, adjacency_type=AdjacencyType.REMOVE
        )
        for z, q, _ in lines
    ]
    tops = [loss.connect_dots_bounds().epsilon_upper for loss in losses]
    cell = _cell([2 * q / z for z, q, _ in lines], max(tops))
    steps = [
        (_symmetric(loss, top, cell), count)
        for loss, top, (_, _, count) in zip(losses, tops, lines, strict=True)
    ]
    return _composed(steps, delta)


def _symmetric(loss: Any, top: float, cell: float) -> Any:
    from dp_accounting.pld.pld_pmf import (
        create_pmf_pessimistic_connect_dots_fixed_gap,
    )

    last = math.ceil(top / cell)
    above = loss.get_delta_for_epsilon(cell * np.arange(last + 1))
    below = -cell * np.arange(last, 0, -1)
    mirrored = -np.expm1(below) + np.exp(below) * above[:0:-1]
    return create_pmf_pessimistic_connect_dots_fixed_gap(
        cell, -last, last, np.concatenate([mirrored, above])
    )


def poisson_again(lines: Lines, delta: float, form: str) -> float:
    r""":math:`\epsilon` of steps that draw every unit by a coin of its own.

    Args:
        lines (sequence): of :obj:`(noise_multiplier, q, steps)`.
        delta (float): in :math:`(0, 1)`.
        form (str): ``'replace'`` or ``'withdraw'``.

    Raises:
        ImportError: without dp-accounting.
    """
    import dp_accounting as dp
    from dp_accounting.pld.privacy_loss_distribution import (
        from_gaussian_mechanism,
    )

    relation = {
        'replace': dp.NeighboringRelation.REPLACE_ONE,
        'withdraw': dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    }[form]
    # Ten deviations of the noise, as far as the least noise allows.
    tops = [(10 * z + 1) * 2 / z**2 for z, _, _ in lines]
    cell = _cell([q / z for z, q, _ in lines], max(tops))
    steps = [
        (
            from_gaussian_mechanism(
                z,
                sampling_prob=q,
                value_discretization_interval=cell,
                neighboring_relation=relation,
            ),
            count,
        )
        for z, q, count in lines
    ]
    return _composed(steps, delta)


def _cell(sizes: list[float], top: float) -> float:
    # Losses are put on multiples of it, pessimistically.
    return max(min(1e-3, *(size / _CELLS for size in sizes)), top / _MOST)


def _composed(steps: list[tuple[Any, int]], delta: float) -> float:
    made = [step.self_compose(count) for step, count in steps]
    total = made[0]
    for other in made[1:]:
        total = total.compose(other)
    return float(total.get_epsilon_for_delta(delta))


def gaussian_again(mu: float, delta: float) -> float:
    r""":math:`\epsilon` of one Gaussian release.

    Args:
        mu (float): sensitivity over noise.
        delta (float): in :math:`(0, 1)`.

    Raises:
        ImportError: without dp-accounting.
    """
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / mu, delta)) if mu else 0.0
