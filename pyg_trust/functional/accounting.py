r"""Accounting of DP-SGD on node-disjoint subgraphs, composed over steps.

The relation and the step are those of
:mod:`pyg_trust.functional.mechanisms`: one row of the features is replaced.

A *history* is a sequence of :obj:`(lam, q, steps)`. Its parameters must have
been fixed without looking at the private data (adaptive composition of
*fixed* mechanisms; a noise chosen from released gradients needs a filter,
which is not here).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

import numpy as np
import scipy

from pyg_trust._checks import check_choice, check_integer, check_positive
from pyg_trust.functional import pld
from pyg_trust.functional.mechanisms import (
    MIN_LAM,
    Orders,
    amplify,
    check_delta,
    check_lam,
    check_q,
    check_rdp,
    rdp_fdp,
    rdp_wor,
    unamplify,
)
from pyg_trust.functional.private_accounting import gaussian_epsilon

METHODS = ('pld_wor', 'rdp_wor')
_check_int = partial(check_integer, numpy=True)
ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)


History = Iterable[tuple[float, float, int]]


def rdp_epsilon(
    orders: Orders, rdp: Sequence[float] | np.ndarray, delta: float
) -> float:
    r"""Converts Rényi DP to the least :math:`\epsilon` of a :math:`\delta`.

    `Balle et al. 2020, Theorem 21 <https://arxiv.org/abs/1905.09982>`_:

    .. math::
        \epsilon = \min_a\; g(a) + \log\frac{a-1}{a}
        - \frac{\log \delta + \log a}{a - 1}

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        rdp (sequence of float): :math:`g(a)` of all steps together.
        delta (float): in :math:`(0, 1)`.

    Raises:
        ValueError: if an order, a divergence or :obj:`delta` is out of range,
            or the lengths differ.
    """
    (a, g), delta = check_rdp(orders, rdp), check_delta(delta)
    epsilon = g + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(epsilon.min()))


def wor_epsilon_rdp(history: History, delta: float) -> float:
    r""":math:`\epsilon` of a history by :func:`rdp_wor`.

    Rényi DP of independent steps adds up at each order.

    Args:
        history (iterable): of :obj:`(lam, q, steps)`.
        delta (float): in :math:`(0, 1)`.
    """
    delta = check_delta(delta)
    phases = check_history(history)
    if not phases:
        return 0.0
    rdp = np.zeros(len(ORDERS))
    for (lam, q), steps in phases.items():
        rdp += steps * _rdp_wor_cached(q, lam)
    return rdp_epsilon(ORDERS, rdp, delta)


def wor_epsilon_pld(history: History, delta: float) -> float:
    r""":math:`\epsilon` of a history by privacy loss distributions.

    The profile of :func:`wor_profile` is that of one pair :math:`(P, Q)`.
    With :math:`(P_G, Q_G)` and the loss :math:`\ell` of the Gaussian
    mechanism, it has the loss :math:`\epsilon = \log(1 - q + q e^\ell) > 0`
    with :math:`Q(\mathrm{d}\epsilon) = Q_G(\mathrm{d}\ell)` and
    :math:`P = q P_G + (1-q) Q_G` there (differentiate the profile by
    :math:`e^\epsilon`), the mirror image below 0 and the rest,
    :math:`(1-q)(2\Phi(\mu/2) - 1)`, at 0. A pair whose profile is nowhere
    lower dominates the step, and products of dominating pairs dominate the
    composition (`Zhu, Dong and Wang 2022
    <https://arxiv.org/abs/2106.08567>`_, Theorem 10), also adaptively.

    The losses are put on a grid pessimistically (`Doroshenko et al. 2022
    <https://arxiv.org/abs/2207.04380>`_): the mass of a cell goes to its two
    ends such that the masses under :math:`P` and :math:`Q` are kept, which
    interpolates the profile linearly in :math:`e^\epsilon`; a chord of a
    convex function lies above it. Mass above the grid counts as an
    infinite loss, and the lowest losses are rounded up. Hence a coarser grid
    gives a larger :math:`\epsilon`, never one too small. The masses are
    composed by FFT on a window outside of which is :obj:`1e-15` at most, by
    Chernoff's bound; that mass counts as infinite loss, too. The rounding
    errors of the FFT are *not* proven but measured (against the closed form
    of :math:`q = 1` and extended precision): they grow with the number
    :math:`T` of steps, :math:`10^{-13} (1 + T / 200)` is added to
    :math:`\delta` for them (if that alone exceeds :obj:`delta`, the answer
    is infinite), and a :obj:`delta` below :obj:`1e-10` is refused.

    Args:
        history (iterable): of :obj:`(lam, q, steps)`.
        delta (float): in :math:`[10^{-10}, 1)`.

    Raises:
        ValueError: if a number is out of range.
    """
    delta = pld.check_least_delta(delta, "'pld_wor'", "; use 'rdp_wor'")
    phases = check_history(history)
    if not phases:
        return 0.0
    # A fiftieth of a step's loss: its variance grows by less than 1e-4.
    step = min(1e-3, *(q / lam / 50 for lam, q in phases))
    widest = max(
        float(amplify(np.array((10 + 0.5 / lam) / lam), q))
        for lam, q in phases
    )
    return pld.epsilon(phases, _pair, delta, step, widest)


def wor_epsilon(
    history: History, delta: float, method: str = 'pld_wor'
) -> float:
    r""":math:`\epsilon` of a history by either method.

    Where every step is of rate 1, ``'pld_wor'`` is the closed form
    :func:`~pyg_trust.functional.gaussian_epsilon`, and no grid.

    Args:
        history (iterable): of :obj:`(lam, q, steps)`.
        delta (float): in :math:`(0, 1)`; not below :obj:`1e-10` for
            ``'pld_wor'`` with a rate below 1.
        method (str): :obj:`'pld_wor'` (:func:`wor_epsilon_pld`, tighter) or
            :obj:`'rdp_wor'` (:func:`wor_epsilon_rdp`, the paper's).
            (default: :obj:`'pld_wor'`)

    Example:
        >>> history = [(4.0, 0.4, 50)]  # lambda, m / M, steps
        >>> pld = wor_epsilon(history, 1e-6)
        >>> rdp = wor_epsilon(history, 1e-6, 'rdp_wor')
        >>> 3.4 < pld < rdp < 8.3
        True
    """
    check_choice('method', method, METHODS)
    if method == 'rdp_wor':
        return wor_epsilon_rdp(history, delta)
    phases = check_history(history)
    delta = check_delta(delta)
    if all(q == 1 for _, q in phases):
        mu = math.hypot(*(math.sqrt(n) / k for (k, _), n in phases.items()))
        return gaussian_epsilon(mu, delta)
    return wor_epsilon_pld([(*key, n) for key, n in phases.items()], delta)


def calibrate_lam(
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    *,
    method: str = 'pld_wor',
    tol: float = 0.01,
) -> float:
    r"""Return the least noise that keeps :obj:`steps` steps within a budget.

    By bisection; the returned noise was itself accounted for, so it is never
    above :obj:`epsilon` and, by :obj:`tol`, not far below.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`(0, 1)`.
        q (float): the sampling rate :math:`m / M`.
        steps (int): the number of steps.
        method (str): as in :func:`wor_epsilon`. (default: :obj:`'pld_wor'`)
        tol (float): the relative gap allowed below :obj:`epsilon`.
            (default: :obj:`0.01`)

    Returns:
        float: :math:`\lambda = \sigma / (2C)`. Opacus' noise multiplier is
        twice that (:func:`lam_to_opacus`).

    Raises:
        ValueError: if a number is out of range or no noise is enough.

    Example:
        >>> lam = calibrate_lam(8.0, 1e-5, q=0.4, steps=100)
        >>> 7.92 <= wor_epsilon([(lam, 0.4, 100)], 1e-5) <= 8.0
        True
    """
    epsilon, q = check_positive('epsilon', epsilon), check_q(q)
    delta = check_delta(delta)
    steps = _check_int('steps', steps, 1)
    tol = check_positive('tol', tol)

    def spent(lam: float) -> float:
        return wor_epsilon([(lam, q, steps)], delta, method)

    return least_noise(spent, epsilon, tol, f'{method!r} with {delta=:g}')


def max_steps(
    epsilon: float,
    delta: float,
    q: float,
    lam: float,
    *,
    method: str = 'pld_wor',
    history: History = (),
) -> int:
    r"""Return the number of further steps that stay within a budget.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`(0, 1)`.
        q (float): the sampling rate :math:`m / M` of the steps to come.
        lam (float): the noise of the steps to come.
        method (str): as in :func:`wor_epsilon`. (default: :obj:`'pld_wor'`)
        history (iterable): the steps spent before. (default: nothing)

    Returns:
        int: a number whose :math:`\epsilon` is within the budget, while that
        of one step more is not; 0 if nothing is left.
    """
    epsilon = check_positive('epsilon', epsilon)
    q, lam = check_q(q), check_lam(lam)
    phases = check_history(history)
    before = [(*key, count) for key, count in phases.items()]

    def fits(steps: int) -> bool:
        spent = wor_epsilon([*before, (lam, q, steps)], delta, method)
        return spent <= epsilon

    return last_that_fits(fits)


def fdp_epsilon(
    num_nodes: int, m: int, terms: int, lam: float, steps: int, delta: float
) -> float:
    r"""Return :math:`\epsilon` of :obj:`steps` steps of the FDP baseline.

    Args:
        num_nodes (int): the number of training nodes.
        m (int): the number of nodes drawn in each step.
        terms (int): as :func:`fdp_terms` gives it.
        lam (float): noise over :func:`fdp_sensitivity`.
        steps (int): the number of steps.
        delta (float): in :math:`(0, 1)`.
    """
    steps = _check_int('steps', steps, 0)
    rdp = rdp_fdp(ORDERS, num_nodes, m, terms, lam)
    epsilon = rdp_epsilon(ORDERS, steps * rdp, delta)
    return epsilon if steps else 0.0


def calibrate_fdp(
    epsilon: float,
    delta: float,
    num_nodes: int,
    m: int,
    terms: int,
    steps: int,
    *,
    tol: float = 0.01,
) -> float:
    r"""Return the least noise that keeps FDP's steps within a budget.

    As :func:`calibrate_lam`, by :func:`fdp_epsilon`.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`(0, 1)`.
        num_nodes (int): the number of training nodes.
        m (int): the number of nodes drawn in each step.
        terms (int): as :func:`fdp_terms` gives it.
        steps (int): the number of steps.
        tol (float): the relative gap allowed below :obj:`epsilon`.
            (default: :obj:`0.01`)

    Returns:
        float: :math:`\lambda`, the noise over :func:`fdp_sensitivity`.

    Raises:
        ValueError: if a number is out of range or no noise is enough.
    """
    epsilon = check_positive('epsilon', epsilon)
    delta, steps = check_delta(delta), _check_int('steps', steps, 1)

    def spent(lam: float) -> float:
        return fdp_epsilon(num_nodes, m, terms, lam, steps, delta)

    return least_noise(
        spent, epsilon, check_positive('tol', tol), f"'rdp_fdp' {delta=:g}"
    )


def check_history(history: History) -> dict[tuple[float, float], int]:
    """Check a history and count the steps of each :obj:`(lam, q)`."""
    phases: dict[tuple[float, float], int] = {}
    try:
        lines = [(lam, q, steps) for lam, q, steps in history]
    except (TypeError, ValueError):
        raise TypeError(
            "'history' needs to be a list of (lam, q, steps) "
            f'(got {history!r})'
        ) from None
    for lam, q, steps in lines:
        key = (check_lam(lam), check_q(q))
        count = _check_int('steps', steps, 0)
        if count:
            phases[key] = phases.get(key, 0) + count
    return phases


@lru_cache(maxsize=512)
def _rdp_wor_cached(q: float, lam: float) -> np.ndarray:
    return rdp_wor(ORDERS, q, lam)


@lru_cache(maxsize=64)
def _pair(lam: float, q: float, step: float) -> pld.Masses:
    # The masses are those at -n * step, ..., n * step.
    mu = 1 / lam
    # Above this loss there is less than Phi(-10) < 1e-23.
    top = float(amplify(np.array(mu * (10 + mu / 2)), q))
    n = max(1, math.ceil(top / step))
    edge = step * np.arange(n + 1)
    x = unamplify(edge, q) / mu
    tail_q = scipy.special.ndtr(-x - mu / 2)
    tail_p = q * scipy.special.ndtr(-x + mu / 2) + (1 - q) * tail_q
    in_p, in_q = -np.diff(tail_p), -np.diff(tail_q)
    mass = np.zeros(2 * n + 1)
    # Above zero: a cell with (in_p, in_q) goes to its two ends.
    lower = (in_q * np.exp(edge[1:]) - in_p) / math.expm1(step)
    lower = np.clip(lower, 0, in_p)
    mass[n:-1] += lower
    mass[n + 1 :] += in_p - lower
    # Below zero: the mirror image, with P and Q exchanged.
    lower = (in_p * np.exp(-edge[:-1]) - in_q) / math.expm1(step)
    lower = np.clip(lower, 0, in_q)
    mass[:n] += lower[::-1]
    mass[1 : n + 1] += (in_q - lower)[::-1]
    mass[0] += tail_q[-1]
    mass[n] += (1 - q) * (2 * scipy.special.ndtr(mu / 2) - 1)
    return pld.Masses(mass, -n, float(tail_p[-1]))


def least_noise(
    spent: Callable[[float], float], epsilon: float, tol: float, what: str
) -> float:
    """Search the least noise, up to a tolerance, within a budget."""
    high = 1.0
    while (loss := spent(high)) > epsilon:
        high *= 2
        if high > 1e6:
            raise ValueError(
                f"'epsilon' can't be reached by {what}, however large the "
                f'noise (got {epsilon})'
            )
    while high > MIN_LAM:
        low = max(high / 2, MIN_LAM)
        if (value := spent(low)) > epsilon:
            break
        high, loss = low, value
    else:
        return high
    while loss < (1 - tol) * epsilon and high - low > 1e-9 * high:
        middle = (low + high) / 2
        value = spent(middle)
        if value <= epsilon:
            high, loss = middle, value
        else:
            low = middle
    return high


def last_that_fits(fits: Callable[[int], bool]) -> int:
    """Return the last number that satisfies a monotone condition, or 0."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > 2**40:
            raise ValueError('the budget is not spent in 2**40 steps')
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
