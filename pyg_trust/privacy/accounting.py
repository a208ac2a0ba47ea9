r"""Accounting of DP-SGD on node-disjoint subgraphs, composed over steps.

The relation and the step are those of
:mod:`pyg_trust.privacy.mechanisms`: one row of the features is replaced.

A *history* is a sequence of :obj:`(noise_multiplier, q, steps)`, with the
noise multiplier :math:`z = \sigma / C` of Opacus. Its parameters must have
been fixed without looking at the private data (adaptive composition of *fixed*
mechanisms; a noise chosen from released gradients needs a filter, which is
not here).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

import numpy as np
import scipy

from pyg_trust._checks import (
    Count,
    Finite,
    Fraction,
    Natural,
    Positive,
    Rate,
    check_choice,
    check_integer,
    validated,
)
from pyg_trust.privacy import pld
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.mechanisms import (
    MIN_LAM,
    Orders,
    amplify,
    check_delta,
    check_multiplier,
    check_orders,
    check_q,
    check_rdp,
    gaussian_profile,
    lam_from_opacus,
    rdp_fdp,
    rdp_wor,
    rdp_wor_profile,
    unamplify,
)

METHODS = ('pld_wor', 'rdp_wor')
# Heavier weights count for how far a grid reaches.
_LEAST = 1e-22
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


@validated
def rdp_epsilon(
    orders: Orders, rdp: Sequence[float] | np.ndarray, delta: Fraction
) -> float:
    r"""Convert Rényi DP to the least :math:`\epsilon` of a :math:`\delta`.

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
    (a, g) = check_rdp(orders, rdp)
    epsilon = g + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(epsilon.min()))


@validated
def wor_epsilon_rdp(history: History, delta: Fraction) -> float:
    r""":math:`\epsilon` of a history by :func:`rdp_wor`.

    Rényi DP of independent steps adds up at each order.
    """
    phases = check_history(history)
    if not phases:
        return 0.0
    rdp = np.zeros(len(ORDERS))
    for (z, q), steps in phases.items():
        rdp += steps * _rdp_wor_cached(q, z)
    return rdp_epsilon(ORDERS, rdp, delta)


def wor_epsilon_pld(history: History, delta: float) -> float:
    r""":math:`\epsilon` of a history by privacy loss distributions.

    The profile of :func:`wor_profile` is that of one pair :math:`(P, Q)`. With
    :math:`(P_G, Q_G)` and the loss :math:`\ell` of the Gaussian mechanism, it
    has the loss :math:`\epsilon = \log(1 - q + q e^\ell) > 0` with
    :math:`Q(\mathrm{d}\epsilon) = Q_G(\mathrm{d}\ell)` and :math:`P = q P_G +
    (1-q) Q_G` there (differentiate the profile by :math:`e^\epsilon`), the
    mirror image below 0 and the rest, :math:`(1-q)(2\Phi(\mu/2) - 1)`, at 0. A
    pair whose profile is nowhere lower dominates the step, and products of
    dominating pairs dominate the composition (`Zhu, Dong and Wang 2022
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
    """
    delta = pld.check_least_delta(delta, "'pld_wor'", "; use 'rdp_wor'")
    phases = check_history(history)
    if not phases:
        return 0.0
    return _composed(phases, delta, 0, 1)


def wor_epsilon(
    history: History, delta: float, method: str = 'pld_wor'
) -> float:
    r""":math:`\epsilon` of a history by either method.

    Where every step is of rate 1, ``'pld_wor'`` is the closed form
    :func:`~pyg_trust.privacy.gaussian_epsilon`, and no grid.

    Args:
        history (iterable): of :obj:`(noise_multiplier, q, steps)`.
        delta (float): in :math:`(0, 1)`; not below :obj:`1e-10` for
            ``'pld_wor'`` with a rate below 1.
        method (str): :obj:`'pld_wor'` (:func:`wor_epsilon_pld`, tighter) or
            :obj:`'rdp_wor'` (:func:`wor_epsilon_rdp`, the paper's).
            (default: :obj:`'pld_wor'`)

    Example:
        >>> history = [(8.0, 0.4, 50)]  # sigma / C, m / M, steps
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
        mu = math.hypot(
            *(n**0.5 / lam_from_opacus(z) for (z, _), n in phases.items())
        )
        return gaussian_epsilon(mu, delta)
    return wor_epsilon_pld([(*key, n) for key, n in phases.items()], delta)


@validated
def group_wor_profile(
    epsilon: Finite,
    m: Count,
    num_roots: Count,
    occurrences: Count,
    noise_multiplier: Positive,
) -> float:
    r"""Bound :math:`\delta(\epsilon)` of a step with records in several units.

    The bound is that of :func:`group_wor_epsilon`; for one occurrence
    :func:`wor_profile`.

    Args:
        epsilon (float): any finite number.
        m (int): how many units the step draws.
        num_roots (int): :math:`N`, of how many.
        occurrences (int): :math:`k`, how many of them a record is in at most.
        noise_multiplier (float): :math:`z = \sigma / C`.
    """
    n, k = check_group(num_roots, occurrences)
    q, z = m / n, check_multiplier(noise_multiplier, k)
    if q > 1:
        raise ValueError(f"'m' needs to be at most {n} (got {m})")
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * group_wor_profile(
            -epsilon, m, n, k, z
        )
    i, w = _drawn(q, n, k)
    far = float(unamplify(epsilon, min(1.0, w.sum())))
    each = [gaussian_profile(far, lam_from_opacus(z / j)) for j in i]
    return float(w @ each)


@validated
def group_wor_epsilon(
    history: History, delta: Fraction, num_roots: Count, occurrences: Count
) -> float:
    r"""Compute :math:`\epsilon` where a record is in several of the units.

    A step draws :math:`m` of :math:`N` units (ego graphs of roots) uniformly
    without replacement and sums their clipped gradients; a record is in at
    most :math:`k` of the units. Of these :math:`\rho` are drawn, with the
    hypergeometric probabilities :math:`w_i = P(\rho = i)`; let :math:`q_1 = 1
    - w_0`. Then for :math:`\epsilon \ge 0`

    .. math::
        \delta'\left(\log(1 + q_1 (e^\epsilon - 1))\right)
        \le \sum_{i \ge 1} w_i\, \delta_{\mathrm{Gauss}}(\epsilon;\,
        \mu = 2 i C / \sigma)

    and :math:`\delta(-\epsilon) = 1 - e^{-\epsilon} + e^{-\epsilon}
    \delta(\epsilon)`, as the relation is symmetric. **Proof.** By advanced
    joint convexity (`Balle, Barthe and Gaboardi 2018, Theorem 2
    <https://arxiv.org/abs/1807.01647>`_) with the common part 'none of the
    :math:`k` is drawn', the left side is at most :math:`q_1` times a mixture
    of two divergences at :math:`e^\epsilon`: of :math:`P_1` and :math:`Q_1`,
    the neighbours' releases if some are drawn, and of :math:`P_1` and
    :math:`P_0`, where none is. For the first let both draw the same batch:
    :math:`\rho` gradients move by at most :math:`2C` each. For the second
    exchange the :math:`\rho` units for as many others, drawn uniformly: what
    comes out is a uniform batch without the :math:`k`, and again at most
    :math:`\rho` gradients have moved by :math:`2C`. Given :math:`\rho = i`,
    of probability :math:`w_i / q_1`, either is at most the Gaussian
    mechanism's, and the divergence is jointly convex. If :math:`m > N - k`
    then :math:`q_1 = 1`, and it is as if :math:`\rho` were told.

    It is attained for :math:`k = 1`, where it is :func:`wor_profile`; beyond
    it is an upper bound. The pair of
    :func:`~pyg_trust.privacy.poisson_epsilon` with the weights
    :math:`w_i` would be lower, and is *false*: without replacement
    :math:`m - \rho` others are drawn, whose gradients can point the other
    way. The grid and its rounding are those of :func:`wor_epsilon_pld`.

    Args:
        history (iterable): of :obj:`(noise_multiplier, q, steps)` with
            :math:`z = \sigma / C` of at least a tenth of the occurrences, and
            :math:`q = m / N`.
        delta (float): in :math:`[10^{-10}, 1)`.
        num_roots (int): :math:`N`, how many units there are.
        occurrences (int): :math:`k`, as a number that holds for all records.

    Raises:
        ValueError: if a number is out of range, or a rate is no share of
            :obj:`num_roots`.

    Example:
        >>> history = [(8.2, 674 / 13482, 100)]
        >>> 3.1 < group_wor_epsilon(history, 1e-5, 13482, 5) < 3.2
        True
    """
    n, k = check_group(num_roots, occurrences)
    phases = check_history(history, k)
    for _, q in phases:
        check_share(q, n)
    if all(q == 1 for _, q in phases):
        mu = math.hypot(
            *(k * c**0.5 / lam_from_opacus(z) for (z, _), c in phases.items())
        )
        return gaussian_epsilon(mu, delta) if phases else 0.0
    delta = pld.check_least_delta(delta, "'pld_group_wor'")
    return _composed(phases, delta, n, k)


def rdp_group_wor(
    orders: Orders,
    q: float,
    noise_multiplier: float,
    num_roots: int,
    occurrences: int,
) -> np.ndarray:
    r"""Compute the Rényi DP of the pair behind :func:`group_wor_epsilon`.

    Its losses are those of :func:`rdp_wor_profile` at the rate :math:`q_1`
    with :math:`\lambda / i`, mixed with the weights :math:`w_i / q_1`:

    .. math::
        e^{(a-1) g(a)} = \sum_{i \ge 1} \frac{w_i}{q_1}
        e^{(a-1) g_i(a)}.

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        q (float): the sampling rate :math:`m / N`.
        noise_multiplier (float): :math:`z = \sigma / C`.
        num_roots (int): as in :func:`group_wor_epsilon`.
        occurrences (int): as there.

    Returns:
        ndarray: float64, ``[len(orders)]``.
    """
    a, (n, k) = check_orders(orders), check_group(num_roots, occurrences)
    lam = lam_from_opacus(check_multiplier(noise_multiplier, k))
    i, w = _drawn(check_share(q, n), n, k)
    rate = min(1.0, float(w.sum()))
    log_w = np.log(w / w.sum())[:, None]
    # Round large counts up, so that few distinct ones are composed.
    most = np.where(i <= 16, i, np.minimum(-(-i // 8) * 8, i[-1]))
    each = {j: rdp_wor_profile(a, rate, lam / j) for j in set(most.tolist())}
    found = np.array([each[j] for j in most.tolist()]) * (a - 1)
    return scipy.special.logsumexp(log_w + found, axis=0) / (a - 1)


@validated
def calibrate_wor(
    epsilon: Positive,
    delta: Fraction,
    q: Rate,
    steps: Count,
    *,
    method: str = 'pld_wor',
    tol: Positive = 0.01,
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
        float: the noise multiplier :math:`z = \sigma / C`.

    Raises:
        ValueError: if a number is out of range or no noise is enough.

    Example:
        >>> z = calibrate_wor(8.0, 1e-5, q=0.4, steps=100)
        >>> 7.92 <= wor_epsilon([(z, 0.4, 100)], 1e-5) <= 8.0
        True
    """

    def spent(z: float) -> float:
        return wor_epsilon([(z, q, steps)], delta, method)

    return least_noise(spent, epsilon, tol, f'{method!r} with {delta=:g}')


@validated
def max_steps(
    epsilon: Positive,
    delta: Fraction,
    q: Rate,
    noise_multiplier: float,
    *,
    method: str = 'pld_wor',
    history: History = (),
) -> int:
    r"""Return the number of further steps that stay within a budget.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`(0, 1)`.
        q (float): the sampling rate :math:`m / M` of the steps to come.
        noise_multiplier (float): :math:`\sigma / C` of the steps to come.
        method (str): as in :func:`wor_epsilon`. (default: :obj:`'pld_wor'`)
        history (iterable): the steps spent before. (default: nothing)

    Returns:
        int: a number whose :math:`\epsilon` is within the budget, while that
        of one step more is not; 0 if nothing is left.
    """
    z = check_multiplier(noise_multiplier)
    phases = check_history(history)
    before = [(*key, count) for key, count in phases.items()]

    def fits(steps: int) -> bool:
        spent = wor_epsilon([*before, (z, q, steps)], delta, method)
        return spent <= epsilon

    return last_that_fits(fits)


@validated
def fdp_epsilon(
    num_nodes: Count,
    m: Count,
    terms: Count,
    noise_multiplier: Positive,
    steps: Natural,
    delta: Fraction,
) -> float:
    r"""Return :math:`\epsilon` of :obj:`steps` steps of the FDP baseline.

    Args:
        num_nodes (int): the number of training nodes.
        m (int): the number of nodes drawn in each step.
        terms (int): as :func:`fdp_terms` gives it.
        noise_multiplier (float): :math:`\sigma / C`, at least a tenth of
            :obj:`terms`.
        steps (int): the number of steps.
        delta (float): in :math:`(0, 1)`.
    """
    z = check_multiplier(noise_multiplier, terms)
    lam = lam_from_opacus(z / terms)
    rdp = rdp_fdp(ORDERS, num_nodes, m, terms, lam)
    epsilon = rdp_epsilon(ORDERS, steps * rdp, delta)
    return epsilon if steps else 0.0


@validated
def calibrate_fdp(
    epsilon: Positive,
    delta: Fraction,
    num_nodes: Count,
    m: Count,
    terms: Count,
    steps: Count,
    *,
    tol: Positive = 0.01,
) -> float:
    r"""Return the least noise that keeps FDP's steps within a budget.

    As :func:`calibrate_wor`, by :func:`fdp_epsilon`.
    """

    def spent(z: float) -> float:
        return fdp_epsilon(num_nodes, m, terms, z, steps, delta)

    return least_noise(spent, epsilon, tol, f"'rdp_fdp' {delta=:g}", terms)


def check_history(
    history: History, occurrences: int = 1
) -> dict[tuple[float, float], int]:
    """Check a history and count the steps of each noise and rate."""
    phases: dict[tuple[float, float], int] = {}
    try:
        lines = [(z, q, steps) for z, q, steps in history]
    except (TypeError, ValueError):
        raise TypeError(
            "'history' needs to be a list of (noise_multiplier, q, steps) "
            f'(got {history!r})'
        ) from None
    for z, q, steps in lines:
        key = (check_multiplier(z, occurrences), check_q(q))
        count = _check_int('steps', steps, 0)
        if count:
            phases[key] = phases.get(key, 0) + count
    return phases


@lru_cache(maxsize=512)
def _rdp_wor_cached(q: float, z: float) -> np.ndarray:
    return rdp_wor(ORDERS, q, lam_from_opacus(z))


def check_group(num_roots: int, occurrences: int) -> tuple[int, int]:
    """Check that a record occurs in at most all units."""
    n = _check_int('num_roots', num_roots, 1)
    k = _check_int('occurrences', occurrences, 1)
    if k > n:
        raise ValueError(
            f"'occurrences' needs to be at most the {n} roots (got {k})"
        )
    return n, k


def check_share(q: float, num_roots: int, name: str = 'q') -> float:
    """Refuse a rate that is no share of whole units."""
    q = check_q(q, name)
    m = round(q * num_roots)
    if m < 1 or not math.isclose(m / num_roots, q, rel_tol=1e-9):
        raise ValueError(
            f'{name!r} needs to be a number of units over the {num_roots} '
            f'roots (got {q})'
        )
    return q


@lru_cache(maxsize=64)
def _drawn(q: float, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    # How many of a record's units are drawn, if any, with probabilities.
    m = round(q * n)
    if k == 1:
        return np.ones(1), np.array([q])
    i = np.arange(max(0, m + k - n), min(m, k) + 1.0)
    up = (k - i) * (m - i) / ((i + 1) * (n - k - m + i + 1))
    log_w = np.concatenate([[0.0], np.cumsum(np.log(up[:-1]))])
    w = np.exp(log_w - scipy.special.logsumexp(log_w))
    return i[i > 0], w[i > 0]


def _composed(
    phases: dict[tuple[float, float], int], delta: float, n: int, k: int
) -> float:
    groups = [(lam_from_opacus(z), *_drawn(q, n, k)) for z, q in phases]
    # A fiftieth of a step's loss: its variance grows by less than 1e-4.
    step = min(1e-3, *(min(1, w.sum()) / lam / 50 for lam, _, w in groups))
    widest = max(_top(*group) for group in groups)
    pair = partial(_pair, n=n, k=k)
    return pld.epsilon(phases, pair, delta, step, widest)


def _top(lam: float, i: np.ndarray, w: np.ndarray) -> float:
    # Above this loss there is less than Phi(-10) < 1e-23 of each weight.
    reach = np.where(w == 1, 10.0, -scipy.special.ndtri(1e-23 / w))
    far = (i / lam * (reach + i / lam / 2))[w > _LEAST].max()
    return float(amplify(np.array(far), min(1.0, float(w.sum()))))


@lru_cache(maxsize=64)
def _pair(
    z: float, q: float, step: float, n: int = 0, k: int = 1
) -> pld.Masses:
    # The masses are those at -count * step, ..., count * step.
    i, w = _drawn(q, n, k)
    lam, q = lam_from_opacus(z), min(1.0, float(w.sum()))
    count = max(1, math.ceil(_top(lam, i, w) / step))
    edge = step * np.arange(count + 1)
    loss = unamplify(edge, q)
    tail_p, tail_q, even = np.zeros_like(loss), np.zeros_like(loss), 0.0
    for j, share in zip(i, w / w.sum(), strict=True):
        mu = j / lam
        tail_p += share * scipy.special.ndtr(-loss / mu + mu / 2)
        tail_q += share * scipy.special.ndtr(-loss / mu - mu / 2)
        even += share * (2 * scipy.special.ndtr(mu / 2) - 1)
    tail_p = q * tail_p + (1 - q) * tail_q
    in_p, in_q = -np.diff(tail_p), -np.diff(tail_q)
    mass = np.zeros(2 * count + 1)
    # Above zero: a cell with (in_p, in_q) goes to its two ends.
    lower = (in_q * np.exp(edge[1:]) - in_p) / math.expm1(step)
    lower = np.clip(lower, 0, in_p)
    mass[count:-1] += lower
    mass[count + 1 :] += in_p - lower
    # Below zero: the mirror image, with P and Q exchanged.
    lower = (in_p * np.exp(-edge[:-1]) - in_q) / math.expm1(step)
    lower = np.clip(lower, 0, in_q)
    mass[:count] += lower[::-1]
    mass[1 : count + 1] += (in_q - lower)[::-1]
    mass[0] += tail_q[-1]
    mass[count] += (1 - q) * even
    return pld.Masses(mass, -count, float(tail_p[-1]))


def least_noise(
    spent: Callable[[float], float],
    epsilon: float,
    tol: float,
    what: str,
    occurrences: int = 1,
) -> float:
    r"""Search the least noise multiplier, up to a tolerance, within a budget.

    Args:
        spent (callable): computes :math:`\epsilon` of a noise multiplier.
        epsilon (float): the budget.
        tol (float): the relative gap allowed below it.
        what (str): the accountant, for the message.
        occurrences (int): how many units a record is in at most.
            (default: :obj:`1`)
    """
    unit = 2 * occurrences
    # The cost of the noise at both ends of the bracket.
    low, high = (0.0, math.inf), (math.inf, 0.0)
    at, side = 1.0, 0
    while True:
        loss = spent(unit * at)
        if loss > epsilon:
            low, side = (at, loss), min(side, 0) - 1
            if at > 1e6:
                raise ValueError(
                    f"'epsilon' can't be reached by {what}, however large "
                    f'the noise (got {epsilon})'
                )
        else:
            high, side = (at, loss), max(side, 0) + 1
        near = max(low[0] * (1 + 1e-9), MIN_LAM)
        if high[1] >= (1 - tol) * epsilon or high[0] <= near:
            return unit * high[0]
        at = _next_noise(low, high, (1 - tol / 2) * epsilon, abs(side) > 2)


def _next_noise(
    low: tuple[float, float],
    high: tuple[float, float],
    goal: float,
    slow: bool,
) -> float:
    # Costs fall about as a power of the noise: a secant of the logarithms.
    # Where one end stays for long, or costs nothing or too much, the middle.
    if not math.isfinite(high[0]):
        return low[0] * min(max(low[1] / goal, 1.1), 4.0)
    if low[0] == 0:
        return max(high[0] * min(max(high[1] / goal, 0.25), 0.9), MIN_LAM)
    share = 0.5
    if not slow and high[1] > 0 and math.isfinite(low[1]):
        share = math.log(low[1] / goal) / math.log(low[1] / high[1])
    return low[0] * (high[0] / low[0]) ** min(max(share, 0.05), 0.95)


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
