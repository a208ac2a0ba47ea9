# Longer than 700 lines because derivations stand beside the code that computes
# their bounds: 360 lines of it.
r"""Certified removal from linear classifiers: updates, bounds, exact solves.

The classifiers minimise, one column :math:`w` of :math:`W` per class,

.. math::
    L_b(w, D) = \sum_{i=1}^n \left[ \ell(w^\top z_i, y_i) + \frac{\lambda}{2}
    \lVert w \rVert^2 \right] + b^\top w, \quad y_i \in \{-1, 1\},

with :math:`\ell(a, y) = \log(1 + e^{-ya})` (logistic) or :math:`(a - y)^2`
(squared) and :math:`b \sim \mathcal{N}(0, \sigma^2 I)`. :math:`\mu = \lambda
n` multiplies the identity in the Hessian.

**The certificate** (``noise='output'``). Minimise with :math:`b = 0`, keep the
result secret, and release it with *fresh* Gaussian noise, :math:`W + s\, \Xi`,
:math:`\Xi \sim \mathcal{N}(0, I)`. Let :math:`W^*` be the exact minimiser on
the remaining data :math:`D'`. As :math:`L` is :math:`\lambda n`-strongly
convex and :math:`\nabla L(W^*, D') = 0`,

.. math::
    \lambda n \lVert W - W^* \rVert_F^2 \le \langle \nabla L(W, D') -
    \nabla L(W^*, D'), W - W^* \rangle \quad \Rightarrow \quad
    \lVert W - W^* \rVert_F \le \frac{\lVert \nabla L(W, D') \rVert_F}
    {\lambda n} \le \frac{\beta}{\lambda n} = \Delta .

So the release is that of retraining exactly, :math:`W^* + s\, \Xi`, shifted by
at most :math:`\Delta`, and the two are :math:`(\varepsilon,
\delta)`-indistinguishable, both ways, with the profile of the Gaussian
mechanism at :math:`m = \Delta / s` (:func:`shift_epsilon`;
:func:`gaussian_budget` is the largest such :math:`m`). The shift does not
depend on :math:`\Xi`, so any :math:`\varepsilon > 0` will do; all classes are
one vector, with ONE budget (the paper's code gives each its own). Releases
compose to :math:`\sqrt{\sum_j m_j^2}` (:func:`compose_shifts`), also when a
request was chosen by looking at earlier releases: given those, the next is
again a shift, of at most :math:`\Delta_j`, of what exact retraining would
release under the same transcript.

**Objective perturbation** (``noise='objective'``, for comparison): :math:`b`
is drawn once, kept secret, and the release is the approximate minimiser
itself. `Guo et al. 2020 <https://arxiv.org/abs/1911.03030>`_, Theorem 3: if
:math:`\lVert \nabla L_b(W', D') \rVert_F` is at most
:func:`removal_budget`, the release is :math:`(\varepsilon,
\delta)`-indistinguishable from the exact minimiser. *It does not hold in
general.* The release is the exact minimiser for the noise :math:`T(b) = b -
u(b)`, whose residual :math:`u` depends on :math:`b`. The proof compares
densities as if :math:`u` were fixed, and leaves out the Jacobian of :math:`T`.
With one feature, two points of which one is removed, and a promised
:math:`(1, 10^{-4})`, one Newton step has :math:`\delta = 0.069`
(``tests/functional/test_shifts.py`` computes it).

**The update** (`Pan et al. 2023 <https://arxiv.org/abs/2211.03216>`_,
Algorithm 2): :math:`w' = w + p`, :math:`p = H^{-1} \Delta`, :math:`H =
\nabla^2 L(w, D')`, :math:`\Delta = \nabla L(w, D) - \nabla L(w, D')`.

**Its residual.** For *any* :math:`p`,

.. math::
    \nabla L_b(w + p, D') = \nabla L_b(w, D) + (H p - \Delta) + R(p), \quad
    R(p) = Z'^\top \left[ \int_0^1 (D_{w + tp} - D_w)\, dt \right] Z' p,

where :math:`D_w = \operatorname{diag}(\ell''(w^\top z'_i))`. With
:math:`\gamma_2` the Lipschitz constant of :math:`\ell''`, entry :math:`i` of
the bracket is at most :math:`\int_0^1 \gamma_2 t\, |z_i'^\top p|\, dt`, so

.. math::
    \lVert R(p) \rVert \le \frac{\gamma_2}{2} \lVert Z' \rVert_2 \lVert (Z'p)
    \circ (Z'p) \rVert_2 ,

which is :func:`tight_bound`. It needs no bound on the embeddings, no frame
and no range of the features. Summing squares over classes gives the
Frobenius norm. :math:`Hp - \Delta` is what the linear solver left, and is
measured.

For the logistic loss :math:`\ell'' = \sigma(1 - \sigma)`, whose derivative is
largest at :math:`\sigma = \frac12 \pm \frac{1}{2\sqrt3}`, where it is
:math:`\gamma_2 = \frac{1}{6\sqrt3}`; the paper uses :math:`\frac14`. For the
squared loss :math:`\gamma_2 = 0`: one step is exact.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from scipy.special import log_ndtr
from torch import Tensor
from tqdm import tqdm

from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_non_negative,
    check_number,
    check_positive,
    check_tensor,
)
from pyg_trust.functional.mechanisms import check_delta
from pyg_trust.functional.ragged import pointer, ranges
from pyg_trust.graph import sparse_rows

LOSSES = ('logistic', 'squared')
# The Lipschitz constant of the second derivative, and the largest second
# derivative.
GAMMA_2 = {'logistic': 1 / (6 * math.sqrt(3)), 'squared': 0.0}
PAPER_GAMMA_2 = {'logistic': 0.25, 'squared': 0.0}
CURVATURE = {'logistic': 0.25, 'squared': 2.0}
# Beyond that, noise hides nothing.
_LARGEST_SHIFT = 20.0


def _profile_above(epsilon: float, m: float) -> float:
    # The profile is a difference of two numbers of the size of the first,
    # each of which rounds by what its argument does, times that argument.
    # Arguments were checked: this is what a search spends its time with.
    t = epsilon / m
    high = float(log_ndtr(m / 2 - t))
    low = epsilon + float(log_ndtr(-m / 2 - t))
    first = math.exp(high)
    hidden = 2**-50 * (1 + t * t) * first
    return hidden - first * math.expm1(min(low - high, 0.0))


def removal_budget(epsilon: float, delta: float, noise_std: float) -> float:
    r"""The largest residual by Theorem 3 of Guo et al., which may not hold.

    For ``noise='objective'``; see the text of this module.

    .. math::
        \sigma \varepsilon / \sqrt{2 \log(1.5 / \delta)}

    Args:
        epsilon (float): in :math:`(0, 1]`: the proof is that of the classical
            Gaussian mechanism, which does not hold beyond.
        delta (float): in :math:`(0, 1)`.
        noise_std (float): the standard deviation :math:`\sigma` of
            :math:`b`, at least 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < check_number('epsilon', epsilon) <= 1:
        raise ValueError(
            f"'epsilon' needs to be in (0, 1] (got {epsilon}): the "
            'certificate is not proven beyond 1'
        )
    if not 0 < check_number('delta', delta) < 1:
        raise ValueError(f"'delta' needs to be in (0, 1) (got {delta})")
    noise_std = check_non_negative('noise_std', noise_std)
    return noise_std * epsilon / math.sqrt(2 * math.log(1.5 / delta))


def gaussian_budget(epsilon: float, delta: float) -> float:
    r"""The largest shift over noise that is certified for a release.

    The largest :math:`m` with

    .. math::
        \Phi(\tfrac{m}{2} - \tfrac{\varepsilon}{m}) - e^\varepsilon\,
        \Phi(-\tfrac{m}{2} - \tfrac{\varepsilon}{m}) \le \delta,

    the exact profile of the Gaussian mechanism (`Balle and Wang 2018
    <https://arxiv.org/abs/1805.06530>`_, Theorem 8), from below; at most 20.

    Args:
        epsilon (float): positive.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> round(gaussian_budget(1.0, 1e-4), 4)
        0.3139
    """
    epsilon = check_positive('epsilon', epsilon)
    delta = check_delta(delta)
    # The profile is at most m / sqrt(2 pi).
    low = min(delta, _LARGEST_SHIFT / 2)
    high = 2 * low
    while _profile_above(epsilon, high) <= delta:
        low, high = high, 2 * high
        if high > _LARGEST_SHIFT:
            return low
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _profile_above(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def shift_epsilon(m: float, delta: float) -> float:
    r"""The :math:`\varepsilon` of Gaussian noise under a shift, from above.

    The smallest :math:`\varepsilon \ge 0` at which the profile of
    :func:`gaussian_budget` is at most :math:`\delta`.

    Args:
        m (float): the norm of the shift over the standard deviation of the
            noise, non-negative.
        delta (float): in :math:`(0, 1)`.

    Example:
        >>> round(shift_epsilon(0.3139, 1e-4), 3), shift_epsilon(1e-5, 1e-4)
        (1.0, 0.0)
    """
    m = check_non_negative('m', m)
    delta = check_delta(delta)
    if m / math.sqrt(2 * math.pi) <= delta:
        return 0.0
    # Here the first term alone is below delta.
    low, high = 0.0, m * math.sqrt(2 * math.log(1 / delta)) + m * m / 2
    if m > _LARGEST_SHIFT:
        return high
    if _profile_above(0.0, m) <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _profile_above(middle, m) <= delta:
            high = middle
            # From above, to twelve digits.
            if high - low <= 2**-40 * high:
                break
        else:
            low = middle
    return high


def compose_shifts(shifts: Iterable[float]) -> float:
    r"""The one shift that several releases amount to: :math:`\sqrt{\sum m^2}`.

    Exact for Gaussian noise, and for requests chosen by looking at earlier
    releases, if each :math:`m_j` is a bound that was fixed before release
    :math:`j`.

    Args:
        shifts (list[float]): :math:`m_j` of every release.
    """
    if not isinstance(shifts, Iterable) or isinstance(shifts, str):
        raise TypeError(
            f"'shifts' needs to hold numbers (got {type(shifts).__name__})"
        )
    return math.hypot(*(check_non_negative('shifts', m) for m in shifts))


def loss_derivatives(
    margin: Tensor, y: Tensor, loss: str
) -> tuple[Tensor, Tensor]:
    r""":math:`\ell'` and :math:`\ell''` in the first argument.

    Args:
        margin (Tensor): :math:`w^\top z_i`.
        y (Tensor): the labels, -1 or 1, of the same shape.
        loss (str): :obj:`'logistic'` or :obj:`'squared'`.
    """
    if loss == 'logistic':
        probability = torch.sigmoid(-y * margin)
        return -y * probability, probability * (1 - probability)
    if loss == 'squared':
        return 2 * (margin - y), torch.full_like(margin, 2.0)
    raise ValueError(f"'loss' needs to be one of {LOSSES} (got {loss!r})")


def gradient(
    Z: Tensor, Y: Tensor, W: Tensor, B: Tensor, lam: float, loss: str
) -> Tensor:
    r""":math:`\nabla L_b(W, D) = Z^\top \ell'(ZW, Y) + \lambda n W + B`.

    Args:
        Z (Tensor): float64, ``[n, d]``, dense or sparse CSR.
        Y (Tensor): -1 or 1, ``[n, C]``.
        W (Tensor): ``[d, C]``.
        B (Tensor): the noise, ``[d, C]``.
        lam (float): :math:`\lambda`.
        loss (str): the loss.

    Returns:
        Tensor: ``[d, C]``.
    """
    first, _ = loss_derivatives(Z @ W, Y, loss)
    return _transposed_times(Z, first) + lam * Z.size(0) * W + B


class Residual(NamedTuple):
    """The Frobenius norm of the gradient.

    Args:
        measured (float): as computed.
        upper (float): with all that rounding can hide.
    """

    measured: float
    upper: float


def residual(
    Z: Tensor, Y: Tensor, W: Tensor, B: Tensor, lam: float, loss: str
) -> Residual:
    r"""Measures :math:`\lVert \nabla L_b(W, D) \rVert_F`, from above too.

    An inner product of :math:`m` numbers is off by at most :math:`m u |a|^\top
    |b|` with the unit roundoff :math:`u` (to first order; the constants leave
    room). That of :math:`Zw` passes through :math:`\ell'`, whose slope is at
    most :math:`c = \max \ell''`, and :math:`Z^\top`; so with Frobenius norms
    and :math:`d` the most numbers that a row stores, rounding hides at most

    .. math::
        u \left[ (n + 8) \lVert Z \rVert \lVert \ell' \rVert + c\, (d + 8)
        \lVert Z \rVert^2 \lVert W \rVert + 4 (\mu \lVert W \rVert + \lVert B
        \rVert) \right] .

    Args:
        Z (Tensor): as in :func:`gradient`.
        Y (Tensor): as in :func:`gradient`.
        W (Tensor): as in :func:`gradient`.
        B (Tensor): as in :func:`gradient`.
        lam (float): as in :func:`gradient`.
        loss (str): as in :func:`gradient`.
    """
    n, d = Z.shape
    if Z.layout == torch.strided:
        z = float(Z.norm())
    else:
        # Zeros that are not stored add no rounding.
        z, d = float(Z.values().norm()), int(Z.crow_indices().diff().max())
    first, _ = loss_derivatives(Z @ W, Y, loss)
    drift = lam * n * W
    measured = float((_transposed_times(Z, first) + drift + B).norm())
    unit = torch.finfo(torch.float64).eps / 2
    hidden = unit * (
        (n + 8) * z * float(first.norm())
        + CURVATURE[loss] * (d + 8) * z**2 * float(W.norm())
        + 4 * (float(drift.norm()) + float(B.norm()))
    )
    return Residual(measured, measured + hidden)


def gram(Z: Tensor) -> Tensor:
    r""":math:`Z Z^\top`, dense.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return Z @ Z.t()
    # Columns without a number add nothing.
    col = Z.col_indices()
    present = torch.zeros(Z.size(1), dtype=torch.bool, device=Z.device)
    present[col] = True
    place = present.cumsum(0) - 1
    narrow = Z.values().new_zeros((Z.size(0), int(present.sum())))
    narrow[_row(Z), place[col]] = Z.values()
    return narrow @ narrow.t()


def spectral_norm(Z: Tensor, K: Tensor | None = None) -> float:
    r"""An upper bound of :math:`\lVert Z \rVert_2`, exact up to rounding.

    The root of the largest eigenvalue of the smaller Gram matrix, from all
    its eigenvalues, raised by :math:`10^{-12}` of it for rounding. (Power
    iterations, which the paper's code uses, approach it from below and bound
    nothing.)

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
    """
    if K is None:
        narrow = Z.size(1) < Z.size(0) and Z.layout == torch.strided
        K = Z.t() @ Z if narrow else gram(Z)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    return math.sqrt(max(largest, 0.0)) * (1 + 1e-12)


def hessian_times(
    Z: Tensor, curvature: Tensor, mu: float, P: Tensor
) -> Tensor:
    r""":math:`H_c p_c = Z^\top (s_c \circ Z p_c) + \mu p_c` for every class.

    Args:
        Z (Tensor): as in :func:`gradient`.
        curvature (Tensor): :math:`s`, ``[n, C]``.
        mu (float): :math:`\mu`.
        P (Tensor): ``[d, C]``.
    """
    return _transposed_times(Z, curvature * (Z @ P)) + mu * P


def hessian_solve(
    Z: Tensor,
    curvature: Tensor,
    mu: float,
    right: Tensor,
    K: Tensor | None = None,
) -> Tensor:
    r"""Solves :math:`H_c p_c = r_c` for every class.

    With fewer rows than columns by Woodbury's identity,

    .. math::
        p = \frac{1}{\mu} \left[ r - Z^\top S (\mu I + S Z Z^\top S)^{-1} S Z
        r \right], \quad S = \operatorname{diag}(\sqrt{s}),

    else by Cholesky's decomposition of :math:`H`. Memory: :math:`C
    \min(n, d)^2`.

    Args:
        Z (Tensor): as in :func:`gradient`.
        curvature (Tensor): :math:`s`, ``[n, C]``, non-negative.
        mu (float): :math:`\mu > 0`.
        right (Tensor): :math:`r`, ``[d, C]``.
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)

    Returns:
        Tensor: ``[d, C]``.
    """
    _check_rows(Z, K)
    n, d = Z.shape
    check_tensor('curvature', curvature, None, (n, 'num_classes'))
    check_tensor('right', right, None, (d, curvature.size(1)))
    check_positive('mu', mu)
    if n <= d:
        K = gram(Z) if K is None else K
        root = curvature.sqrt()
        inner = root.t().unsqueeze(2) * K * root.t().unsqueeze(1)
        inner.diagonal(dim1=1, dim2=2).add_(mu)
        inside = (root * (Z @ right)).t().unsqueeze(2)
        factor = torch.linalg.cholesky(inner)
        solved = torch.cholesky_solve(inside, factor).squeeze(2).t()
        return (right - _transposed_times(Z, root * solved)) / mu
    dense = Z if Z.layout == torch.strided else Z.to_dense()
    hessian = torch.stack(
        [dense.t() @ (column.unsqueeze(1) * dense) for column in curvature.t()]
    )
    hessian.diagonal(dim1=1, dim2=2).add_(mu)
    factor = torch.linalg.cholesky(hessian)
    return torch.cholesky_solve(right.t().unsqueeze(2), factor).squeeze(2).t()


class Solution(NamedTuple):
    """The weights that :func:`minimize` found, and their residual.

    Args:
        W (Tensor): the weights, ``[d, C]``.
        residual (float): the Frobenius norm of the gradient.
        iterations (int): the number of Newton steps.
    """

    W: Tensor
    residual: float
    iterations: int


def minimize(
    Z: Tensor,
    Y: Tensor,
    B: Tensor,
    lam: float,
    loss: str = 'logistic',
    *,
    W: Tensor | None = None,
    K: Tensor | None = None,
    tol: float = 1e-10,
    max_iter: int = 100,
    progress_bar: bool = False,
) -> Solution:
    r"""Minimises :math:`L_b` by Newton's method, to a residual of :obj:`tol`.

    The residual is :math:`\lVert \nabla L_b \rVert_F`. A step is halved
    until it shortens the gradient. As :math:`\frac{d}{dt} \lVert \nabla
    L_b(w + tp) \rVert^2 = -2 \lVert \nabla L_b(w) \rVert^2` at :math:`t =
    0`, that ends, and the method converges from any start, without
    function values, whose differences cancel near the minimum.

    Args:
        Z (Tensor): as in :func:`gradient`.
        Y (Tensor): as in :func:`gradient`.
        B (Tensor): as in :func:`gradient`.
        lam (float): :math:`\lambda > 0`.
        loss (str): the loss. (default: :obj:`'logistic'`)
        W (Tensor, optional): where to start; by default zero.
            (default: :obj:`None`)
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
        tol (float): the residual to reach; or, if it is larger, what rounding
            can hide (:func:`residual`). (default: :obj:`1e-10`)
        max_iter (int): the most Newton steps. (default: :obj:`100`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Raises:
        RuntimeError: if neither is reached.
    """
    _check_rows(Z, K, finite=True)
    n, d = Z.shape
    check_tensor('Y', Y, torch.float64, (n, 'num_classes'))
    if not bool((Y.abs() == 1).all()):
        raise ValueError("'Y' needs to be -1 or 1 everywhere")
    shape = (d, Y.size(1))
    check_tensor('B', B, torch.float64, shape, finite=True)
    if W is not None:
        check_tensor('W', W, torch.float64, shape, finite=True)
    check_tensor('Z', Z, torch.float64, (n, d))
    check_choice('loss', loss, LOSSES)
    check_positive('tol', tol)
    check_integer('max_iter', max_iter, 0)
    mu = check_positive('lam', lam) * n
    if K is None and Z.size(0) <= Z.size(1):
        K = gram(Z)
    W = torch.zeros_like(B) if W is None else W
    margin = Z @ W
    first, second = loss_derivatives(margin, Y, loss)
    grad = _transposed_times(Z, first) + mu * W + B
    norm = float(grad.norm())
    iterations = range(max_iter + 1)
    for iteration in tqdm(iterations, disable=not progress_bar, desc='Newton'):
        if norm <= tol:
            return Solution(W, norm, iteration)
        if iteration == max_iter:
            break
        P = hessian_solve(Z, second, mu, grad, K)
        slope = Z @ P
        t = 1.0
        while True:
            tried, moved = W - t * P, margin - t * slope
            first, second = loss_derivatives(moved, Y, loss)
            grad = _transposed_times(Z, first) + mu * tried + B
            shorter = float(grad.norm())
            if shorter <= (1 - 1e-4 * t) * norm:
                break
            t /= 2
            if t < 2**-40:
                measured, upper = residual(Z, Y, W, B, lam, loss)
                if measured <= upper - measured:
                    return Solution(W, norm, iteration)
                raise RuntimeError(
                    f'Newton stopped at a residual of {norm:.3e}: the '
                    f"problem is too ill-conditioned for 'lam' = {lam} and "
                    f"'tol' = {tol}"
                )
        # Margins are not updated along the way, where rounding would pile up.
        W, norm, margin = tried, shorter, Z @ tried
    raise RuntimeError(
        f'Newton did not reach {tol} in {max_iter} steps (got {norm:.3e})'
    )


def tight_bound(
    Z: Tensor, P: Tensor, loss: str = 'logistic', K: Tensor | None = None
) -> float:
    r"""Bounds the residual that a step adds, without any bound on embeddings.

    .. math::
        \frac{\gamma_2}{2} \lVert Z' \rVert_2 \lVert (Z'P) \circ (Z'P)
        \rVert_F,

    proven in the text of this module.

    Args:
        Z (Tensor): the remaining embeddings :math:`Z'`, ``[n, d]``.
        P (Tensor): the step, ``[d, C]``.
        loss (str): the loss. (default: :obj:`'logistic'`)
        K (Tensor, optional): :func:`gram`, if known. (default: :obj:`None`)
    """
    _check_step(Z, P, loss, K)
    if GAMMA_2[loss] == 0:
        return 0.0
    spread = float((Z @ P).square().norm())
    return GAMMA_2[loss] / 2 * spectral_norm(Z, K) * spread


def paper_bound(
    Z: Tensor,
    P: Tensor,
    loss: str = 'logistic',
    K: Tensor | None = None,
    radius: float | None = None,
) -> float:
    r"""Theorem 4.7 of the paper with an :math:`F` that is valid.

    .. math::
        \sqrt{\sum_c \left( \tfrac14 F \lVert Z' \rVert_2 \lVert p_c \rVert
        \lVert Z'p_c \rVert \right)^2},
        \quad F \ge \max_i \lVert z'_i \rVert .

    The paper takes :math:`F = \sqrt{L}`, which moments beyond the first and
    banks that are not tight exceed; the largest row norm is always valid.

    Args:
        Z (Tensor): as in :func:`tight_bound`.
        P (Tensor): as in :func:`tight_bound`.
        loss (str): the loss. (default: :obj:`'logistic'`)
        K (Tensor, optional): as in :func:`tight_bound`.
            (default: :obj:`None`)
        radius (float, optional): :math:`F`; by default the largest row norm.
            (default: :obj:`None`)
    """
    _check_step(Z, P, loss, K)
    if radius is not None:
        check_non_negative('radius', radius)
    if PAPER_GAMMA_2[loss] == 0:
        return 0.0
    radius = max_row_norm(Z) if radius is None else radius
    per_class = P.norm(dim=0) * (Z @ P).norm(dim=0)
    scale = PAPER_GAMMA_2[loss] * radius * spectral_norm(Z, K)
    return scale * float(per_class.norm())


def node_removal_bound(
    n: int, lam: float, radius: float, num_graphs: int = 1
) -> float:
    r"""Theorem 4.4 and Corollary 4.6, corrected: a worst case, known before.

    .. math::
        \frac{4 \gamma_2 m^2 C_1^2 F^3}{\lambda^2 n}, \quad C_1 = F,

    per class, for the logistic loss and the removal of nodes from :math:`m`
    graphs. *Proof.* :math:`\lVert \Delta \rVert \le 2 m F`, :math:`\lVert p
    \rVert \le 2mF / (\lambda n)`, and Theorem 4.7 with :math:`\lVert Z'
    \rVert \le \sqrt{n} F`. The paper has :math:`C_1 = 1` beside :math:`F =
    \sqrt{L}`, though :math:`C_1` bounds :math:`\lVert \nabla \ell \rVert =
    |\ell'| \lVert z \rVert`. Far above any budget in practice: a diagnostic.

    Args:
        n (int): the number of training graphs, none of them removed whole.
        lam (float): :math:`\lambda`.
        radius (float): :math:`F`, a bound of the norms of all embeddings
            before and after.
        num_graphs (int): :math:`m`. (default: :obj:`1`)
    """
    check_integer('n', n, 1)
    check_positive('lam', lam)
    check_non_negative('radius', radius)
    check_integer('num_graphs', num_graphs, 1)
    scale = 4 * PAPER_GAMMA_2['logistic'] * num_graphs**2
    return scale * radius**5 / (lam**2 * n)


def feature_removal_bound(
    n: int,
    num_nodes: int,
    lam: float,
    radius: float,
    stability: float,
    noise_norm: float,
    num_graphs: int = 1,
) -> float:
    r"""Theorem 4.3 and Corollary 4.5, corrected: a worst case, known before.

    .. math::
        \frac{\gamma_2 m^2 F^3}{\lambda^2 n} \min\left\{ 4 F^2,\;
        \frac{k^2 (\gamma_1 \omega F + C_2)^2 F_S^2}{g} \right\},
        \quad \omega = \frac{nF + \lVert b \rVert}{\lambda n},

    per class, for the logistic loss (:math:`\gamma_1 = \gamma_2 = \frac14`,
    :math:`C_2 = 1`) and one node whose features are set to zero in each of
    :math:`m` graphs of at least :math:`g` nodes. *Proof.* :math:`\Delta =
    \ell'(w^\top z) z - \ell'(w^\top z') z'` per graph, so :math:`\lVert
    \Delta \rVert \le (\gamma_1 \lVert w \rVert F + C_2) \lVert z - z'
    \rVert`; :math:`\lVert w \rVert \le \omega` from :math:`\nabla L_b = 0`
    (the paper forgets :math:`b`); and :math:`\lVert z - z' \rVert \le F_S
    \lVert x_v \rVert / \sqrt{g}`, the stability of a scattering transform
    with :math:`Q = 1`, the mean as low-pass and a bank of frame constant
    :math:`B`: :math:`F_S = \sqrt{\sum_l B^{2l}}`, for :math:`k = \lVert x_v
    \rVert \le 1`. Then as in :func:`node_removal_bound`.

    Args:
        n (int): the number of training graphs.
        num_nodes (int): :math:`g`.
        lam (float): :math:`\lambda`.
        radius (float): :math:`F`, as in :func:`node_removal_bound`.
        stability (float): :math:`F_S \lVert x_v \rVert`.
        noise_norm (float): :math:`\lVert b \rVert`.
        num_graphs (int): :math:`m`. (default: :obj:`1`)
    """
    for name, count in (
        ('n', n),
        ('num_nodes', num_nodes),
        ('num_graphs', num_graphs),
    ):
        check_integer(name, count, 1)
    check_positive('lam', lam)
    for name, size in (
        ('radius', radius),
        ('stability', stability),
        ('noise_norm', noise_norm),
    ):
        check_non_negative(name, size)
    weight = (n * radius + noise_norm) / (lam * n)
    change = (0.25 * weight * radius + 1) * stability
    least = min(4 * radius**2, change**2 / num_nodes)
    scale = PAPER_GAMMA_2['logistic'] * num_graphs**2
    return scale * radius**3 * least / (lam**2 * n)


# Rows #######################################################################


def max_row_norm(Z: Tensor) -> float:
    """The largest Euclidean norm of a row.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
    """
    if Z.layout == torch.strided:
        return float(Z.norm(dim=1).max())
    squares = Z.values().new_zeros(Z.size(0))
    squares.index_add_(0, _row(Z), Z.values().square())
    return float(squares.max().sqrt())


def dense_rows(Z: Tensor, index: Tensor) -> Tensor:
    """Some rows, dense.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    ends = Z.crow_indices().tolist()
    col, value = Z.col_indices(), Z.values()
    rows = value.new_zeros((index.numel(), Z.size(1)))
    for row, i in zip(rows, index.tolist(), strict=True):
        row[col[ends[i] : ends[i + 1]]] = value[ends[i] : ends[i + 1]]
    return rows


def replace_rows(Z: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """A copy with other rows at some places.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``: the places.
        rows (Tensor): of the layout of :obj:`Z`, ``[k, d]``.
    """
    if Z.layout == torch.strided:
        return Z.index_copy(0, index, rows)
    crow, new = Z.crow_indices(), rows.crow_indices()
    count = crow.diff().index_copy(0, index, new.diff())
    ends, starts = crow.tolist(), new.tolist()
    place = {row: k for k, row in enumerate(index.tolist())}

    def spliced(old: Tensor, added: Tensor) -> Tensor:
        cuts, last = [], 0
        for row in sorted(place):
            k = place[row]
            cuts.append(old[last : ends[row]])
            cuts.append(added[starts[k] : starts[k + 1]])
            last = ends[row + 1]
        return torch.cat([*cuts, old[last:]])

    return sparse_rows(
        pointer(count),
        spliced(Z.col_indices(), rows.col_indices()),
        spliced(Z.values(), rows.values()),
        (Z.size(0), Z.size(1)),
    )


def keep_rows(Z: Tensor, index: Tensor) -> Tensor:
    """A copy of some rows, in the layout of :obj:`Z`.

    Args:
        Z (Tensor): ``[n, d]``, dense or sparse CSR.
        index (Tensor): int64, ``[k]``.
    """
    if Z.layout == torch.strided:
        return Z[index]
    crow = Z.crow_indices()
    count = crow.diff()[index]
    at = ranges(crow[index], count)
    return sparse_rows(
        pointer(count),
        Z.col_indices()[at],
        Z.values()[at],
        (index.numel(), Z.size(1)),
    )


def _check_rows(
    Z: Tensor, K: Tensor | None = None, *, finite: bool = False
) -> None:
    check_tensor('Z', Z, None, ('n', 'd'))
    if Z.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(
            f"'Z' needs to be dense or sparse CSR (got {Z.layout})"
        )
    entries = Z if Z.layout == torch.strided else Z.values()
    if finite and not bool(entries.isfinite().all()):
        raise ValueError("'Z' needs to be finite (got NaN or infinity)")
    if K is not None:
        check_tensor('K', K, None, (Z.size(0), Z.size(0)), finite=finite)


def _check_step(Z: Tensor, P: Tensor, loss: str, K: Tensor | None) -> None:
    _check_rows(Z, K, finite=True)
    check_tensor('P', P, None, (Z.size(1), 'num_classes'), finite=True)
    check_choice('loss', loss, LOSSES)


def _row(Z: Tensor) -> Tensor:
    rows = torch.arange(Z.size(0), device=Z.device)
    return rows.repeat_interleave(Z.crow_indices().diff())


def _transposed_times(Z: Tensor, U: Tensor) -> Tensor:
    if Z.layout == torch.strided:
        return Z.t() @ U
    count = Z.crow_indices().diff()
    columns = [
        torch.bincount(
            Z.col_indices(),
            Z.values() * column.repeat_interleave(count),
            minlength=Z.size(1),
        )
        for column in U.t()
    ]
    return torch.stack(columns, dim=1)
