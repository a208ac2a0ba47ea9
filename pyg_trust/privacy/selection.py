r"""Privacy of choosing the best of several runs.

A private training is run :math:`K` times, each time with settings drawn at
random from a list, and only the run with the best score is released. With
:math:`K` fixed that would cost as much as releasing all of them. With a secret
random :math:`K` it costs a small multiple of one run (`"Hyperparameter Tuning
with Renyi Differential Privacy" <https://arxiv.org/abs/2110.03620>`_, Papernot
and Steinke 2022).

Let :math:`Q` be one run with its score, :math:`A` the selection, and
:math:`f(x) = E[x^K]`. The density of :math:`A` at an outcome :math:`y` is
about :math:`f'(Q(\text{below } y))\, Q(y)`, and there are probabilities
:math:`q, q'` of one event, after the same processing of :math:`Q(x)` and
:math:`Q(x')`, such that (their Lemma 7)

.. math::
    D_a(A(x) \| A(x')) \le D_a(Q(x) \| Q(x'))
    + \frac{1}{a - 1} \log\left(f'(q)^a f'(q')^{1-a}\right).

The distributions of :math:`K` here have a bounded last term
(:func:`rdp_select`).
"""

import math
from collections.abc import Sequence

import numpy as np

from pyg_trust._checks import NotNegative, Rate, check_number, validated
from pyg_trust.privacy.mechanisms import Orders, check_rdp

_MOST = 10**7
_ONE = 1 + 1e-6


@validated
def rdp_delta(
    orders: Orders, rdp: Sequence[float] | np.ndarray, epsilon: NotNegative
) -> float:
    r"""Convert Rényi DP to the least :math:`\delta` of an :math:`\epsilon`.

    The inverse of :func:`pyg_trust.privacy.accounting.rdp_epsilon` (`Balle
    et al. 2020, Theorem 21 <https://arxiv.org/abs/1905.09982>`_):

    .. math::
        \log \delta = \min_a\; (a - 1) \left(g(a) - \epsilon
        + \log\frac{a-1}{a}\right) - \log a

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        rdp (sequence of float): :math:`g(a)`, at least 0.
        epsilon (float): at least 0.

    Returns:
        float: in :math:`[0, 1]`.
    """
    a, g = check_rdp(orders, rdp)
    log = (a - 1) * (g - epsilon + np.log1p(-1 / a)) - np.log(a)
    return float(math.exp(min(0.0, log.min())))


def rdp_select(
    orders: Orders,
    rdp: Sequence[float] | np.ndarray,
    mean: float,
    shape: float = 1.0,
) -> np.ndarray:
    r"""Bound Rényi DP of the best of a random number of runs.

    For the truncated negative binomial distribution of :math:`K \ge 1` with
    the shape :math:`\eta` and :math:`\gamma \in (0, 1)` (:math:`\eta = 1`: the
    geometric, :math:`\eta = 0`: the logarithmic one), at each order and for
    any order :math:`b` (`Papernot and Steinke 2022, Theorem 2
    <https://arxiv.org/abs/2110.03620>`_)

    .. math::
        g_A(a) = g(a) + (1 + \eta) \left(1 - \tfrac1b\right) g(b)
        + \frac{(1 + \eta) \log(1 / \gamma)}{b} + \frac{\log E[K]}{a - 1}.

    It follows from the module's inequality: :math:`f'(x) \propto (1 -
    (1-\gamma) x)^{-\eta-1}` is at most :math:`E[K]`, and of the probabilities
    :math:`p = 1 - (1 - \gamma) q \ge \gamma` and :math:`p'`, by Rényi DP at
    order :math:`b`, :math:`p' / p \le e^{(1 - 1/b) g(b)} \gamma^{-1/b}`. For
    the Poisson distribution (:math:`\eta = \infty`; :math:`K` may be 0) and
    every :math:`\hat\epsilon \le \log(1 + 1/(a-1))` at which :math:`Q` has
    :math:`\hat\delta` (Theorem 6)

    .. math::
        g_A(a) = g(a) + E[K]\, \hat\delta + \frac{\log E[K]}{a - 1}.

    :math:`K` has to be secret, and so do all runs but the best. A score has
    to be a function of what its run releases and of public data.

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        rdp (sequence of float): :math:`g(a)` of one run with its score, for
            whichever settings.
        mean (float): :math:`E[K]`, at least 1.
        shape (float): :math:`\eta`, at least 0, or infinity.
            (default: :obj:`1.0`)

    Returns:
        ndarray: float64, ``[len(orders)]``.
    """
    a, g = check_rdp(orders, rdp)
    mean, shape = check_law(mean, shape)
    if shape == math.inf:
        delta = [rdp_delta(a, g, math.log1p(1 / (x - 1))) for x in a]
        bound = g + mean * np.array(delta) + math.log(mean) / (a - 1)
    elif mean < _ONE:
        return g  # one run, always
    else:
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

    By the inverse of the distribution function, with
    :math:`P[K = k+1] / P[K = k] = (1 - \gamma) (k + \eta) / (k + 1)`.

    Args:
        uniform (float): in (0, 1].
        mean (float): :math:`E[K]`, at least 1.
        shape (float): as in :func:`rdp_select`. (default: :obj:`1.0`)

    Returns:
        int: :math:`K`; at least 1, unless the shape is infinite.
    """
    mean, shape = check_law(mean, shape)
    if shape == math.inf:
        count, mass = 0, math.exp(-mean)
    elif mean < _ONE:
        return 1
    else:
        rate = _gamma(mean, shape)
        count, mass = 1, (1 - rate) / _norm(rate, shape)
    total = mass
    while total < uniform and count < _MOST:
        if shape == math.inf:
            mass *= mean / (count + 1)
        else:
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


def _mean(rate: float, shape: float) -> float:
    # f'(1) = (1 - gamma) gamma^(-eta - 1) / norm.
    return (1 - rate) * rate ** (-shape - 1) / _norm(rate, shape)


def _gamma(mean: float, shape: float) -> float:
    # The mean falls from infinity to 1 as gamma goes to 1.
    if shape == 1:
        return 1 / mean
    from scipy.optimize import brentq  # slow to import

    log = brentq(
        lambda x: math.log(_mean(math.exp(x), shape)) - math.log(mean),
        -60.0 / (1 + shape),
        -1e-9,
        xtol=1e-14,
    )
    return math.exp(log)


def check_law(
    mean: float, shape: float, name: str = 'mean'
) -> tuple[float, float]:
    """Check a distribution of the number of runs, and return floats."""
    if not 1 <= check_number(name, mean) <= 500:
        raise ValueError(f"'{name}' needs to be in [1, 500] (got {mean})")
    if not (0 <= check_number('shape', shape) <= 10 or shape == math.inf):
        raise ValueError(
            f"'shape' needs to be in [0, 10] or infinite (got {shape})"
        )
    return float(mean), float(shape)
