r"""Poisson sampling: the privacy loss of steps with independent coins.

In a step every unit (a subgraph, a graph) is drawn with probability
:math:`q`, independently of all others and of all steps; the gradients of
those drawn are clipped to :math:`C` and summed, and :math:`\mathcal{N}(0,
\sigma^2 I)` is added. With :math:`z = \sigma / C` (the noise multiplier of
Opacus; *not* :math:`\lambda = z / 2`) and in units of :math:`C`, two kinds of
neighbours have these pairs:

.. math::
    \text{'replace':}\quad
    P &= (1-q)\, \mathcal{N}(0, z^2) + q\, \mathcal{N}(1, z^2), \quad
    Q = (1-q)\, \mathcal{N}(0, z^2) + q\, \mathcal{N}(-1, z^2) \\
    \text{'withdraw':}\quad
    P &= (1-q)\, \mathcal{N}(0, z^2) + q\, \mathcal{N}(1, z^2), \quad
    Q = \mathcal{N}(0, z^2) \quad \text{and } (Q, P).

**They dominate every step.** Given who else was drawn, which is independent
of the unit's own coin, its neighbours release :math:`P_g = (1-q) N_0 + q N_g`
and :math:`P_{g'}`, with :math:`N_g = \mathcal{N}(g, z^2 I)` and norms at most
1 (:math:`g' = 0`, withdrawn); mixing over the others makes no hockey-stick
divergence :math:`H_\alpha(P \| Q) = \int (P - \alpha Q)_+` larger, as it is
jointly convex. Let :math:`\alpha \ge 1`. Then

.. math::
    H_\alpha(P_g \| P_{g'}) = q \sup_S \left[ N_g(S) - \beta\, M(S) \right],
    \quad M = w N_{g'} + (1-w) N_0,

with :math:`\beta w = \alpha` and :math:`\beta (1-w) = (1-q)(\alpha-1)/q`, and
the supremum is :math:`E\, \varphi(w X + (1-w) Y)` with the convex
:math:`\varphi(t) = (1 - \beta t)_+`, where :math:`X = \mathrm{d}N_{g'} /
\mathrm{d}N_g` and :math:`Y = \mathrm{d}N_0 / \mathrm{d}N_g` under
:math:`N_g` are lognormal with mean one and the logarithmic deviations
:math:`\lVert g' - g \rVert / z \le 2/z` and :math:`\lVert g \rVert / z \le
1/z`. Of two variables with given laws the comonotone ones have the largest
sum in convex order, and the comonotone sum grows in convex order with its
terms (`Dhaene et al. 2002
<https://doi.org/10.1016/S0167-6687(02)00134-8>`_); a lognormal of mean one
grows in convex order with its deviation. For :math:`g = e` and :math:`g' =
-e` with a unit vector :math:`e` both deviations are the largest, and
:math:`g' - g = -2e` and :math:`-g = -e` have one direction: :math:`X` and
:math:`Y` are comonotone. So the antipodal pair has the largest divergence.
For :math:`\alpha < 1` use :math:`H_\alpha(P \| Q) = 1 - \alpha + \alpha
H_{1/\alpha}(Q \| P)`. With :math:`g' = 0` only :math:`\lVert g \rVert` is
left, and the same steps give the pair of 'withdraw'. Products of dominating
pairs dominate compositions, also adaptive ones (`Zhu, Dong and Wang 2022
<https://arxiv.org/abs/2106.08567>`_, Theorem 10). Both pairs are attained, so
these are the exact :math:`\epsilon` of the worst case.
"""

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy

from pyg_trust._checks import (
    check_choice,
    check_finite,
    check_integer,
    check_number,
    check_positive,
)
from pyg_trust.functional import pld
from pyg_trust.functional.accounting import (
    History,
    check_history,
    least_noise,
)
from pyg_trust.functional.mechanisms import (
    Orders,
    check_lam,
    check_orders,
    check_q,
)

FORMS = ('replace', 'withdraw')
# The width of a grid in deviations of the noise: less than 1e-23 is outside.
_REACH = 10


def poisson_profile(
    epsilon: float, q: float, noise_multiplier: float, form: str = 'replace'
) -> float:
    r"""Compute :math:`\delta(\epsilon)` of one step, exactly.

    .. math::
        \delta(\epsilon) = P(\ell > \epsilon) - e^\epsilon Q(\ell > \epsilon),
        \quad \ell = \log(\mathrm{d}P / \mathrm{d}Q),

    for 'withdraw' the larger one of both directions.

    Args:
        epsilon (float): any finite number.
        q (float): the sampling rate.
        noise_multiplier (float): :math:`z = \sigma / C`.
        form (str): :obj:`'replace'`: a unit is exchanged for any other;
            :obj:`'withdraw'`: it is there or not. (default:
            :obj:`'replace'`)

    Example:
        >>> poisson_profile(1.0, 0.1, 1.0) < poisson_profile(1.0, 1.0, 1.0)
        True
    """
    epsilon = check_finite('epsilon', epsilon)
    q, z = check_q(q), check_multiplier(noise_multiplier)
    check_choice('form', form, FORMS)
    delta = 0.0
    for direction in _directions(form):
        x = _outcome(np.array([epsilon]), q, z, direction)[0]
        p, r = _shifts(direction)
        above = _tail(x, q, z, p), _tail(x, q, z, r)
        delta = max(delta, above[0] - math.exp(epsilon) * above[1])
    return float(min(1.0, max(0.0, -math.expm1(epsilon), delta)))


def poisson_epsilon(
    history: History, delta: float, form: str = 'replace'
) -> float:
    r""":math:`\epsilon` of a history of steps by privacy loss distributions.

    The losses are put on a grid pessimistically and composed by FFT, as in
    :func:`wor_epsilon_pld`, whose remarks on rounding hold here as well.

    Args:
        history (iterable): of :obj:`(noise_multiplier, q, steps)`. A release
            with Gaussian noise of the standard deviation :math:`s` on a sum of
            the sensitivity :math:`\Delta` is a line :obj:`(z, 1, 1)`, with
            :math:`z = s / \Delta` for 'withdraw' and :math:`2 s / \Delta` for
            'replace'.
        delta (float): in :math:`[10^{-10}, 1)`.
        form (str): as in :func:`poisson_profile`. (default:
            :obj:`'replace'`)

    Raises:
        ValueError: if a number is out of range.

    Example:
        >>> history = [(2.0, 0.05, 100)]  # sigma / C, rate, steps
        >>> 0 < poisson_epsilon(history, 1e-5) < 2.1
        True
    """
    check_choice('form', form, FORMS)
    delta = pld.check_least_delta(delta, 'Poisson sampling')
    phases = check_multipliers(history)
    if not phases:
        return 0.0
    step = min(1e-3, *(q / z / 50 for z, q in phases))
    return max(
        pld.epsilon(
            phases,
            partial(_masses, direction=direction),
            delta,
            step,
            max(_ends(q, z, direction)[1] for z, q in phases),
        )
        for direction in _directions(form)
    )


def calibrate_poisson(
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    *,
    form: str = 'replace',
    tol: float = 0.01,
) -> float:
    r"""Return the least noise that keeps :obj:`steps` steps within a budget.

    As :func:`calibrate_lam`, by :func:`poisson_epsilon`.

    Args:
        epsilon (float): the budget, positive.
        delta (float): in :math:`[10^{-10}, 1)`.
        q (float): the sampling rate.
        steps (int): the number of steps.
        form (str): as in :func:`poisson_profile`. (default:
            :obj:`'replace'`)
        tol (float): the relative gap allowed below :obj:`epsilon`.
            (default: :obj:`0.01`)

    Returns:
        float: the noise multiplier :math:`z = \sigma / C`.

    Raises:
        ValueError: if a number is out of range or no noise is enough.

    Example:
        >>> z = calibrate_poisson(2.0, 1e-5, q=0.05, steps=100)
        >>> 1.98 <= poisson_epsilon([(z, 0.05, 100)], 1e-5) <= 2.0
        True
    """
    epsilon, q = check_positive('epsilon', epsilon), check_q(q)
    delta = pld.check_least_delta(delta, 'Poisson sampling')
    steps = check_integer('steps', steps, 1, numpy=True)
    tol = check_positive('tol', tol)
    check_choice('form', form, FORMS)

    def spent(lam: float) -> float:
        return poisson_epsilon([(2 * lam, q, steps)], delta, form)

    return 2 * least_noise(spent, epsilon, tol, f'{form!r} with {delta=:g}')


def rdp_poisson(
    orders: Orders, q: float, noise_multiplier: float, form: str = 'replace'
) -> np.ndarray:
    r"""Rényi DP of a step: the divergence of the pair at each order.

    .. math::
        \frac{1}{a - 1} \log \int P^a Q^{1-a},

    by quadrature, since the pairs dominate a step; for 'withdraw' the larger
    one of both directions.

    Args:
        orders (sequence of float): the orders :math:`a > 1`.
        q (float): the sampling rate.
        noise_multiplier (float): :math:`z = \sigma / C`.
        form (str): as in :func:`poisson_profile`. (default:
            :obj:`'replace'`)

    Returns:
        ndarray: float64, ``[len(orders)]``.
    """
    a, q = check_orders(orders), check_q(q)
    z = check_multiplier(noise_multiplier)
    check_choice('form', form, FORMS)
    node, weight = np.polynomial.legendre.leggauss(16)
    divergences = np.zeros(len(a))
    for direction in _directions(form):
        p, r = _shifts(direction)
        for i, order in enumerate(a):
            # The integrand is a sum of Gaussians around at most 2a.
            reach = 2 * order + 14 * z
            pieces = math.ceil(2 * reach / z)
            width = 2 * reach / pieces
            x = width * (np.arange(pieces)[:, None] + (node + 1) / 2) - reach
            log_term = order * _log_density(x, q, z, p)
            log_term += (1 - order) * _log_density(x, q, z, r)
            total = scipy.special.logsumexp(
                log_term, b=np.broadcast_to(weight, x.shape)
            )
            divergences[i] = max(divergences[i], total + math.log(width / 2))
    return np.maximum(divergences, 0) / (a - 1)


def check_multiplier(noise_multiplier: Any) -> float:
    """Refuse a noise multiplier below a tenth."""
    z = check_number('noise_multiplier', noise_multiplier)
    return 2 * check_lam(z / 2)


def check_multipliers(history: History) -> dict[tuple[float, float], int]:
    """Count the steps of each ``(noise_multiplier, q)`` of a history."""
    try:
        lines = [(z / 2, q, steps) for z, q, steps in history]
    except (TypeError, ValueError):
        raise TypeError(
            "'history' needs to be a list of (noise_multiplier, q, steps) "
            f'(got {history!r})'
        ) from None
    return {(2 * lam, q): n for (lam, q), n in check_history(lines).items()}


# A direction is where the unit's Gaussian is under P and under Q: +1, -1, or
# None for a unit that is not there. Losses increase with the outcome.
_Direction = tuple[int | None, int | None]


def _directions(form: str) -> tuple[_Direction, ...]:
    if form == 'replace':
        # Its own mirror image.
        return ((1, -1),)
    return ((1, None), (None, -1))


def _shifts(direction: _Direction) -> tuple[int, int]:
    return direction[0] or 0, direction[1] or 0


def _log_density(x: np.ndarray, q: float, z: float, shift: int) -> np.ndarray:
    # The tail of (1 - q) N(0, z^2) + q N(shift, z^2).
    base = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))
    with np.errstate(divide='ignore'):
        rest = np.log1p(-q) if q < 1 else -np.inf
    ratio = shift * (2 * x - shift) / (2 * z**2)
    return base + np.logaddexp(rest, math.log(q) + ratio)


def _tail(x: Any, q: float, z: float, shift: int) -> Any:
    return (1 - q) * scipy.special.ndtr(-x / z) + q * scipy.special.ndtr(
        (shift - x) / z
    )


def _loss(x: float, q: float, z: float, direction: _Direction) -> float:
    p, r = _shifts(direction)
    at = np.array([x])
    return float((_log_density(at, q, z, p) - _log_density(at, q, z, r))[0])


def _outcome(
    loss: np.ndarray, q: float, z: float, direction: _Direction
) -> np.ndarray:
    # The outcome at which the loss has a value; infinite if none has.
    if direction == (1, -1):
        size = np.abs(loss)
        # u = e^(x / z^2) solves q k u^2 - (1-q)(e^l - 1) u - q k e^l = 0.
        log_k = -1 / (2 * z**2)
        half = -(1 - q) * np.expm1(-size) / 2
        root = np.hypot(half, q * np.exp(log_k - size / 2))
        log_u = size + np.log(half + root) - math.log(q) - log_k
        return np.sign(loss) * z**2 * log_u
    sign = 1 if direction[1] is None else -1
    with np.errstate(divide='ignore', invalid='ignore'):
        inner = (np.expm1(sign * loss) + q) / q
        x = z**2 * np.log(np.maximum(inner, 0)) + 0.5
    return sign * x


def _ends(q: float, z: float, direction: _Direction) -> tuple[float, float]:
    reach = 1 + _REACH * z
    return _loss(-reach, q, z, direction), _loss(reach, q, z, direction)


@lru_cache(maxsize=64)
def _masses(
    z: float, q: float, step: float, direction: _Direction
) -> pld.Masses:
    # The pessimistic masses of one step and that of an infinite loss.
    low, high = _ends(q, z, direction)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))
    edge = step * np.arange(first, last + 1)
    x = _outcome(edge, q, z, direction)
    p, r = _shifts(direction)
    inside = []
    for shift in (p, r):
        # From the side on which differences do not cancel.
        above = -np.diff(_tail(x, q, z, shift))
        below = np.diff(_tail(-x, q, z, -shift))
        inside.append(np.where(x[:-1] > 0, above, below))
    mass = pld.connect(edge, inside[0], inside[1])
    mass[0] += _tail(-x[0], q, z, -p)
    return pld.Masses(mass, first, float(_tail(x[-1], q, z, p)))
