r"""Privacy of choosing the best of several runs.

A private training is run :math:`K` times, with settings drawn at random, and
only the run with the best score is released. A secret random :math:`K \ge 1`
costs a small multiple of one run (`Papernot and Steinke 2022
<https://arxiv.org/abs/2110.03620>`_). It has the truncated negative binomial
distribution of the shape :math:`\eta` (1: geometric, 0: logarithmic).
"""

import math
from collections.abc import Sequence

import numpy as np

from pyg_trust._checks import Rate, check_number, validated
from pyg_trust.privacy.mechanisms import Orders, check_rdp

__all__ = ['draw_runs', 'rdp_select']

_MOST = 10**7
_ONE = 1 + 1e-6


def rdp_select(
    orders: Orders,
    rdp: Sequence[float] | np.ndarray,
    mean: float,
    shape: float = 1.0,
) -> np.ndarray:
    r"""Bound Rényi DP of the best of a random number of runs.

    With any order :math:`b` (Theorem 2 of the paper)

    .. math::
        g_A(a) = g(a) + (1 + \eta) \left(1 - \tfrac1b\right) g(b)
        + \frac{(1 + \eta) \log(1 / \gamma)}{b} + \frac{\log E[K]}{a - 1}.

    :math:`K` has to be secret, and so do all runs but the best. A score has
    to be a function of what its run releases and of public data.

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        rdp (sequence of float): :math:`g(a)` of one run with its score, for
            whichever settings.
        mean (float): :math:`E[K]`, in [1, 500].
        shape (float): :math:`\eta`, in [0, 10]. (default: :obj:`1.0`)
    """
    a, g = check_rdp(orders, rdp)
    mean, shape = check_law(mean, shape)
    if mean < _ONE:
        return g  # one run, always
    rate = _gamma(mean, shape)
    each = (1 + shape) * ((1 - 1 / a) * g - math.log(rate) / a)
    bound = g + each.min() + math.log(mean) / (a - 1)
    # Rényi divergences grow with the order.
    order = np.argsort(a)
    least = np.minimum.accumulate(bound[order][::-1])[::-1]
    return least[np.argsort(order)]


@validated
def draw_runs(uniform: Rate, mean: float, shape: float = 1.0) -> int:
    r"""Draw the number of runs of a search, from a secret uniform number.

    Args:
        uniform (float): in (0, 1].
        mean (float): :math:`E[K]`, in [1, 500].
        shape (float): as in :func:`rdp_select`. (default: :obj:`1.0`)

    Returns:
        int: :math:`K`, at least 1: the inverse of its distribution function.
    """
    mean, shape = check_law(mean, shape)
    if mean < _ONE:
        return 1
    rate = _gamma(mean, shape)
    count, mass = 1, (1 - rate) / _norm(rate, shape)
    total = mass
    while total < uniform and count < _MOST:
        mass *= (1 - rate) * (count + shape) / (count + 1)
        count += 1
        if total + mass == total and mass < 1e-17:
            break
        total += mass
    return count


def _norm(rate: float, shape: float) -> float:
    # (gamma^-eta - 1) / eta, which is log(1 / gamma) at eta = 0.
    log = -math.log(rate)
    return math.expm1(shape * log) / shape if shape else log


def _gamma(mean: float, shape: float) -> float:
    # The mean falls from infinity to 1 as gamma goes to 1.
    if shape == 1:
        return 1 / mean
    from scipy.optimize import brentq  # slow to import

    def apart(log: float) -> float:
        # The mean is (1 - gamma) gamma^(-eta - 1) / norm.
        rate = math.exp(log)
        found = (1 - rate) * rate ** (-shape - 1) / _norm(rate, shape)
        return math.log(found) - math.log(mean)

    return math.exp(brentq(apart, -60.0 / (1 + shape), -1e-9, xtol=1e-14))


def check_law(
    mean: float, shape: float, name: str = 'mean'
) -> tuple[float, float]:
    """Check a distribution of the number of runs, and return floats."""
    for what, value, low, high in (
        (name, mean, 1, 500),
        ('shape', shape, 0, 10),
    ):
        if not low <= check_number(what, value) <= high:
            raise ValueError(
                f"'{what}' needs to be in [{low}, {high}] (got {value})"
            )
    return float(mean), float(shape)
