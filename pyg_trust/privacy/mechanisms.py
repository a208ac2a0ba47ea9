"""One step of private training: how gradients are clipped, and its cost.

Proofs are in the documentation, "Private training".
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Count,
    Finite,
    Natural,
    OneOf,
    Rate,
    check_fraction,
    check_number,
    check_rate,
    validated,
)

__all__ = [
    'clip_factors',
    'fdp_terms',
    'gaussian_profile',
    'rdp_fdp',
    'rdp_wor',
    'rdp_wor_profile',
    'row_norms',
    'wor_profile',
]

#: The least noise over the sensitivity 2C of which an account is made.
MIN_NOISE = 0.05
CLIPPINGS = ('flat', 'automatic')
# The stabiliser gamma of AUTO-S: smaller gradients stay smaller.
_STABILISER = 0.01
# The number of squares that are summed in float32, one after another.
_BLOCK = 256
_MAX_TERNARY = 256
Orders = Sequence[float] | np.ndarray


@validated
def clip_factors(
    norms: Annotated[Tensor, Array(None, 'num_subgraphs')],
    max_grad_norm: float,
    clipping: Annotated[str, OneOf(CLIPPINGS)] = 'flat',
) -> Tensor:
    r"""Return the factors that clip gradients before they are summed.

    ``'flat'`` is :math:`\min(1, C / \lVert g_i \rVert)`, and ``'automatic'``
    is AUTO-S of `Bu et al. 2022 <https://arxiv.org/abs/2206.07136>`_, :math:`C
    / (\lVert g_i \rVert + 0.01)`. Where a norm is not finite the factor is 0:
    leave such a gradient out, as :math:`0 \cdot \infty` is not zero.

    Args:
        norms (Tensor): the norms of gradients, float, ``[num_subgraphs]``.
        max_grad_norm (float): :math:`C`; infinity to clip nothing.
        clipping (str): :obj:`'flat'` or :obj:`'automatic'`.
    """
    if not max_grad_norm > 0:
        raise ValueError(
            f"'max_grad_norm' needs to be positive (got {max_grad_norm})"
        )
    if max_grad_norm == math.inf:
        return norms.isfinite().to(norms)
    if clipping == 'automatic':
        factors = max_grad_norm / (norms + _STABILISER)
    else:
        factors = (max_grad_norm / norms).clamp(max=1)
    return torch.where(norms.isfinite(), factors, 0)


@validated
def row_norms(rows: Annotated[Tensor, Array(None, 'num', 'length')]) -> Tensor:
    r"""Return the norms of long rows, wrong by less than :math:`10^{-6}`.

    In float32 ``torch.linalg.vector_norm`` is up to 0.8 % too small for ten
    million equal numbers; here blocks of 256 are added up in float64.
    """
    length = rows.size(1)
    if length <= _BLOCK or rows.dtype == torch.float64:
        return torch.linalg.vector_norm(rows, dim=1)
    whole = length - length % _BLOCK
    blocks = rows[:, :whole].unflatten(1, (-1, _BLOCK))
    parts = torch.linalg.vector_norm(blocks, dim=2).double()
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1).double()
    return (parts.square().sum(1) + rest.square()).sqrt().to(rows.dtype)


# Privacy profiles and Rényi divergences of one step #########################


@validated
def gaussian_profile(epsilon: Finite, *, noise_multiplier: float) -> float:
    r"""Compute :math:`\delta(\epsilon)` of a full batch, exactly.

    For any finite :math:`\epsilon` (`Balle and Wang 2018, Theorem 8
    <https://arxiv.org/abs/1805.06530>`_).
    """
    mu = 2 / check_multiplier(noise_multiplier)
    high = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    low = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(-math.exp(high) * math.expm1(min(low - high, 0.0)))


@validated
def wor_profile(epsilon: Finite, q: Rate, *, noise_multiplier: float) -> float:
    r"""Bound :math:`\delta(\epsilon)` of one step without replacement.

    For any finite :math:`\epsilon` (`Balle, Barthe and Gaboardi 2018, Theorem
    9 <https://arxiv.org/abs/1807.01647>`_); the relation is symmetric.
    """
    z = check_multiplier(noise_multiplier)
    if epsilon < 0:
        mirrored = wor_profile(-epsilon, q, noise_multiplier=z)
        return -math.expm1(epsilon) + math.exp(epsilon) * mirrored
    far = float(unamplify(epsilon, q))
    return q * gaussian_profile(far, noise_multiplier=z)


def rdp_wor(
    orders: Orders, q: float, *, noise_multiplier: float
) -> np.ndarray:
    r"""Bound Rényi DP of a step: at each order the least of three bounds.

    Those of the Gaussian mechanism, of a coupling of both draws, and of
    Theorem 27 of `Wang et al. 2019 <https://arxiv.org/abs/1808.00087>`_, which
    is interpolated between integers, as :math:`(a - 1) g(a)` is convex.
    """
    a, q = check_orders(orders), check_rate('q', q)
    lam = check_multiplier(noise_multiplier) / 2
    moment = a * (a - 1) / (2 * lam**2)
    coupled = np.logaddexp(_log1m(q), math.log(q) + moment) / (a - 1)
    low = np.floor(a)
    share = a - low
    need = np.unique(np.concatenate([low, low[share > 0] + 1]))
    value = {order: _wang(int(order), q, lam) for order in need}
    wang = [
        ((1 - s) * value[n] + (s * value[n + 1] if s else 0)) / (x - 1)
        for x, n, s in zip(a, low, share, strict=True)
    ]
    return np.minimum.reduce([np.array(wang), a / (2 * lam**2), coupled])


@validated
def rdp_wor_profile(
    orders: Orders, q: Rate, *, noise_multiplier: float
) -> np.ndarray:
    r"""Compute Rényi DP of the distributions behind :func:`wor_profile`.

    It is the least that the profile alone can give, by quadrature.
    """
    a, mu = check_orders(orders), 2 / check_multiplier(noise_multiplier)
    node, weight = np.polynomial.legendre.leggauss(16)
    divergences = []
    for order in a:
        # x = loss / mu; the integrand is below e^(a mu x) of a Gaussian.
        top = order * mu + 14
        pieces = max(64, math.ceil(2 * top))
        width = top / pieces
        x = width * (np.arange(pieces)[:, None] + (node + 1) / 2)
        loss = amplify(mu * x, q)
        log_term = (
            order * loss
            + np.log(-np.expm1(-order * loss))
            + np.log(-np.expm1((1 - order) * loss))
            - (x + mu / 2) ** 2 / 2
            - math.log(2 * math.pi) / 2
        )
        log_sum = scipy.special.logsumexp(
            log_term, b=np.broadcast_to(weight, x.shape)
        )
        divergences.append(np.logaddexp(0, log_sum + math.log(width / 2)))
    return np.array(divergences) / (a - 1)


@validated
def fdp_terms(K: Count, layers: Natural) -> int:
    r"""Return :math:`1 + K + \cdots + K^l`, for the largest degree :math:`K`.

    A node is in at most so many ego graphs of :math:`l` hops.
    """
    return sum(K**level for level in range(layers + 1))


@validated
def rdp_fdp(
    orders: Orders,
    num_nodes: Count,
    m: Count,
    terms: Count,
    *,
    noise_multiplier: float,
) -> np.ndarray:
    r"""Compute Rényi DP of a step of the FDP baseline.

    How many of the drawn nodes read the row is hypergeometric (`Daigavane et
    al. 2021 <https://arxiv.org/abs/2111.15521>`_).
    """
    a = check_orders(orders)
    lam = check_multiplier(noise_multiplier, terms) / terms / 2
    if max(m, terms) > num_nodes:
        raise ValueError(
            f"'m' and 'terms' can't be above {num_nodes} nodes (got {m} and "
            f'{terms})'
        )
    rho = np.arange(max(0, m + terms - num_nodes), min(m, terms) + 1.0)
    log_mass = (
        _log_binom(terms, rho)
        + _log_binom(num_nodes - terms, m - rho)
        - _log_binom(num_nodes, m)
    )
    # The logarithms are large and cancel: let the masses sum to one again.
    log_mass = log_mass - scipy.special.logsumexp(log_mass)
    scale = a * (a - 1) / (2 * lam**2 * terms**2)
    log_moment = scipy.special.logsumexp(
        log_mass + scale[:, None] * rho**2, axis=1
    )
    return log_moment / (a - 1)


# Checks ######################################################################


def check_multiplier(noise_multiplier: Any, occurrences: int = 1) -> float:
    """Refuse a noise multiplier below a tenth of the occurrences."""
    z = check_number('noise_multiplier', noise_multiplier)
    least = 2 * occurrences * MIN_NOISE
    if not least <= z < math.inf:
        raise ValueError(
            f"'noise_multiplier' needs to be finite and at least {least:g} "
            f'(got {z}): with less noise a single step can cost an epsilon of '
            'hundreds; make_private_with_epsilon chooses it for a budget'
        )
    return float(z)


def check_delta(delta: float) -> float:
    """Check a delta and return it as a float."""
    return check_fraction('delta', delta)


def check_orders(orders: Orders) -> np.ndarray:
    """Check Rényi orders and return them as float64."""
    a = numbers('orders', orders)
    if a.ndim != 1 or a.size == 0 or not ((a > 1) & (a < math.inf)).all():
        raise ValueError(
            "'orders' needs to be a list of finite numbers above 1 (got "
            f'{a.tolist()})'
        )
    return a


def check_rdp(
    orders: Orders, rdp: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Check Rényi orders and divergences and return them as float64."""
    a, g = check_orders(orders), numbers('rdp', rdp)
    if g.shape != a.shape or not (g >= 0).all():
        raise ValueError(
            "'rdp' needs to be non-negative, one number per order (got "
            f'{g.tolist()})'
        )
    return a, g


def numbers(name: str, values: Any) -> np.ndarray:
    """Check a list of numbers and return it as float64."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"'{name}' needs to be a list of numbers (got {values!r})"
        ) from None


# Formulas ####################################################################


def _log1m(q: float) -> float:
    return math.log1p(-q) if q < 1 else -math.inf


def _log_binom(n: float, k: float | np.ndarray) -> np.ndarray:
    log = scipy.special.gammaln
    return log(n + 1.0) - log(k + 1.0) - log(n - k + 1.0)


def amplify(loss: np.ndarray, q: float) -> np.ndarray:
    """Compute log(1 - q + q e^loss) of losses from 0 up."""
    small = np.log1p(q * np.expm1(np.minimum(loss, 1.0)))
    large = np.logaddexp(_log1m(q), math.log(q) + loss)
    return np.where(loss < 1, small, large)


def unamplify(epsilon: float | np.ndarray, q: float) -> np.ndarray:
    """Invert :func:`amplify`."""
    small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    far = np.maximum(epsilon, 1.0)
    large = far + np.log1p(-(1 - q) * np.exp(-far)) - math.log(q)
    return np.where(np.less(epsilon, 1), small, large)


def _wang(order: int, q: float, lam: float) -> float:
    # (a - 1) g(a) by the theorem of Wang et al. at an integer order. Above
    # order 256 the terms of central moments are left out.
    if order == 1:
        return 0.0
    j = np.arange(2.0, order + 1)
    log_bound = math.log(2) + j * (j - 1) / (2 * lam**2)
    if lam**-2 < 700:
        second = math.log(4) + math.log(math.expm1(lam**-2))
        log_bound[0] = min(log_bound[0], second)
    if 3 <= order <= _MAX_TERNARY:
        log_b = _log_central(lam)
        index = np.arange(3, order + 1)
        down, up = log_b[index // 2], log_b[-(-index // 2)]
        log_bound[1:] = np.minimum(
            log_bound[1:], math.log(4) + (down + up) / 2
        )
    terms = j * math.log(q) + _log_binom(order, j) + log_bound
    return float(np.logaddexp(0, scipy.special.logsumexp(terms)))


@lru_cache(maxsize=32)
def _log_central(lam: float) -> np.ndarray:
    # The log of E_Q[(P/Q - 1)^(2k)] of Gaussians, k = 0, ..., 128, by the
    # trapezoidal rule: the integrand is entire and decays like a Gaussian.
    mu = 1 / lam
    moments = [0.0]
    for power in range(2, _MAX_TERNARY + 1, 2):
        reach = math.sqrt(power) + 14
        x = np.arange(-reach, power * mu + reach, 0.05) + 1e-3
        z = mu * x - mu**2 / 2
        log_base = np.maximum(z, 0) + np.log(-np.expm1(-np.abs(z)))
        log_sum = scipy.special.logsumexp(power * log_base - x**2 / 2)
        moments.append(log_sum + math.log(0.05) - math.log(2 * math.pi) / 2)
    return np.array(moments)
