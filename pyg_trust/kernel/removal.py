r"""How far weights are from those of exact retraining, from what remains.

**Statement.** Of the graph that remains, let :math:`Z = \sum_i w_i P^i x`,
:math:`P = D^{-a} A D^{-b}`, in real arithmetic, restricted to the :math:`n`
rows that are trained on, and

.. math::
    L(W) = \sum_r \ell(W^\top z_r, y_r) + \frac{\lambda n}{2} \lVert W
    \rVert_F^2, \qquad W^* = \arg\min L .

For *any* :math:`W`, :func:`residual` returns a :math:`\beta \ge \lVert \nabla
L(W) \rVert_F`, and :func:`shift` a :math:`m \ge \lVert W' - W^* \rVert_F / s`,
where :math:`W' = g \operatorname{rint}(W / g)`, :math:`g = 2^{-32} s`, is what
a release adds noise of the standard deviation :math:`s` to. So the release is
that of exact retraining, shifted by at most :math:`m` standard deviations.

**Proof.** :math:`L` is :math:`\mu`-strongly convex, :math:`\mu = \lambda n`:

.. math::
    \mu \lVert W - W^* \rVert^2 \le \langle \nabla L(W) - \nabla L(W^*), W -
    W^* \rangle \le \lVert \nabla L(W) \rVert \lVert W - W^* \rVert ,

so :math:`\lVert W - W^* \rVert_F \le \beta / \mu`. Rounding an entry to the
grid moves it by at most :math:`g / 2`, and the quotient :math:`W / g` is off
by :math:`u |W / g|` before that; with :math:`p` entries together

.. math::
    m = \left( \beta / \mu + \sqrt{p}\, g / 2 + 2 u \lVert W \rVert_F \right) /
    s .

How :math:`W` was found plays no part.

**What rounding hides.** :math:`u = 2^{-53}`, :math:`\gamma_k = k u / (1 - k
u)`; norms are Frobenius norms; hats are what is computed (Higham 2002, chapter
3: a sum of :math:`k` products is off by :math:`\gamma_k` of that of absolute
values, in any order, with or without fused additions).

1. *Features.* A power of a degree is off by at most 4 units, a level has
   two of them, their two products, and a sum of at most :math:`t` numbers,
   :math:`t` the most neighbours of a node; the last sum has :math:`L + 1`
   products. So :math:`|\hat Z - Z| \le \gamma_q \sum_i w_i P^i |x|` entry by
   entry, :math:`q = L (t + 12) + L + 3`; :math:`E` is the norm of the right
   side, which is computed too, and off by :math:`\gamma_q` of it.
2. *Margins.* :math:`\lVert \hat M - Z W \rVert \le \gamma_d \lVert \hat Z
   \rVert \lVert W \rVert + E \lVert W \rVert`, :math:`d` columns.
3. *Slopes.* :math:`G = \partial \ell / \partial a` has the Lipschitz constant
   :math:`c`, and is computed from exponentials: a row is off by at most
   :math:`e_f` (``SLOPE``), if those of numpy are within 4 units of the
   last place. That is an assumption; :func:`slopes_off` measures it.
4. *Gradient.* With :math:`\Delta = \sqrt{n}\, e_f + c\, \lVert \hat M - Z W
   \rVert`, which bounds :math:`\lVert \hat G - G \rVert`, and :math:`R = \hat
   Z^\top \hat G + \mu W` as computed,

   .. math::
       \beta = \lVert R \rVert + (\gamma_n \lVert \hat Z \rVert + E) \lVert
       \hat G \rVert + (\lVert \hat Z \rVert + E) \Delta + \gamma_4 (\mu \lVert
       W \rVert + \lVert R \rVert) .

What underflows is lost below :math:`2^{-1074}`, below :math:`2^{-537}` under a
root: every norm and every result is raised by :math:`2^{-500}`.
"""

import math
from typing import NamedTuple

import mpmath
import numpy as np
from scipy.sparse import csr_array

UNIT = 2.0**-53
TINY = 2.0**-500
# Largest slope of the derivative of a head, and the error of a row of its
# values in units of u, for C outputs.
LIPSCHITZ = {'ovr': 0.25, 'softmax': 0.5, 'squared': 2.0}
SLOPE = {
    'ovr': lambda outputs: 8 * math.sqrt(outputs),
    'softmax': lambda outputs: 22 + outputs,
    'squared': lambda outputs: 0,  # 2 (a - y): counted with the product
}


class Features(NamedTuple):
    """Rows of features, and the norm of what rounding hides of them.

    Args:
        Z (ndarray): float64, ``[n, d]``.
        error (float): at least the Frobenius norm of their error.
    """

    Z: np.ndarray
    error: float


def gamma(k: float) -> float:
    r""":math:`\gamma_k (1 + 2 \gamma_k)`, from above, or infinity.

    With :math:`k u \le .001` it is at most :math:`1.001 \cdot 1.0021\, k u`.
    """
    return 1.01 * k * UNIT if k * UNIT <= 0.001 else math.inf


def norm(matrix: np.ndarray) -> float:
    """The Frobenius norm, from above."""
    flat = matrix.reshape(-1)
    size = math.sqrt(float(flat @ flat)) if flat.size else 0.0
    return size * (1 + gamma(flat.size + 4)) + TINY


def features(
    entries: np.ndarray,
    x: np.ndarray,
    rows: np.ndarray,
    weights: tuple[float, ...],
    a: float,
    b: float,
    self_loops: bool,
) -> Features:
    r"""Propagate from scratch: step 1.

    Args:
        entries (ndarray): int64, ``[2, num_entries]``: a signal goes from the
            first to the second; an undirected edge is there both ways; the
            degree of a node is how many entries it sends along.
        x (ndarray): float64, ``[num_nodes, d]``.
        rows (ndarray): int64, ``[n]``: the rows that are asked for.
        weights (tuple[float, ...]): :math:`w_0, \ldots, w_L`, non-negative.
        a (float): the exponent of the receiver's degree.
        b (float): the exponent of the sender's degree.
        self_loops (bool): whether missing self-loops are added.

    Raises:
        ValueError: if an entry is there twice, or numbers are not finite.
    """
    count = len(x)
    source, target = entries
    if self_loops:
        bare = np.setdiff1d(np.arange(count), source[source == target])
        source = np.concatenate([source, bare])
        target = np.concatenate([target, bare])
    if len(np.unique(target * count + source)) < len(source):
        raise ValueError("'entries' needs every edge once")
    if not np.isfinite(x).all() or min(weights) < 0:
        raise ValueError("'x' and 'weights' need to be finite and positive")
    ones = np.ones(len(source))
    matrix = csr_array((ones, (target, source)), shape=(count, count))
    degree = np.bincount(source, minlength=count)
    receive, send = (_power(degree, -exponent) for exponent in (a, b))

    def propagate(y: np.ndarray) -> np.ndarray:
        total = weights[0] * y
        for weight in weights[1:]:
            y = receive[:, None] * (matrix @ (send[:, None] * y))
            total = total + weight * y
        return total[rows]

    levels = len(weights) - 1
    most = int(np.diff(matrix.indptr).max(initial=0))
    off = gamma(levels * (most + 12) + levels + 3)
    Z = propagate(x)
    sizes = Z if (x >= 0).all() else propagate(np.abs(x))
    return Features(Z, off * norm(sizes) + TINY)


def _power(degree: np.ndarray, exponent: float) -> np.ndarray:
    # 0 at degree 0, but for the exponent 0, which gives ones.
    there = np.where(degree > 0, degree, 1).astype(np.float64)
    power = 1 / np.sqrt(there) if exponent == -0.5 else there**exponent
    return power if exponent == 0 else np.where(degree > 0, power, 0.0)


@np.errstate(over='ignore')  # 1 / inf is 0, to 300 digits
def slopes(margins: np.ndarray, targets: np.ndarray, head: str) -> np.ndarray:
    r"""Return :math:`G`, by the definition of a head: step 3.

    Args:
        margins (ndarray): ``[n, num_outputs]``.
        targets (ndarray): the same shape: -1 and 1, or one 1 in a row of 0
            for ``'softmax'``.
        head (str): ``'ovr'``, ``'softmax'`` or ``'squared'``.
    """
    if head == 'ovr':
        return -targets / (1 + np.exp(targets * margins))
    if head == 'softmax':
        power = np.exp(margins - margins.max(1, keepdims=True))
        return power / power.sum(1, keepdims=True) - targets
    return 2 * (margins - targets)


def slopes_off(margins: np.ndarray, targets: np.ndarray, head: str) -> float:
    r"""Measure how far a row of :func:`slopes` is off, in shares of its bound.

    With 40 digits. What is above 1 breaks the assumption of step 3.

    Args:
        margins (ndarray): as in :func:`slopes`, of a sample of rows.
        targets (ndarray): likewise.
        head (str): ``'ovr'`` or ``'softmax'``.
    """
    found, most = slopes(margins, targets, head), 0.0
    with mpmath.workdps(40):
        for values, signs, row in zip(margins, targets, found, strict=True):
            a = [mpmath.mpf(float(value)) for value in values]
            y = [mpmath.mpf(float(sign)) for sign in signs]
            if head == 'ovr':
                pairs = zip(a, y, strict=True)
                true = [-t / (1 + mpmath.exp(t * v)) for v, t in pairs]
            else:
                power = [mpmath.exp(v - max(a)) for v in a]
                pairs = zip(power, y, strict=True)
                true = [p / mpmath.fsum(power) - t for p, t in pairs]
            off = [r - float(g) for r, g in zip(true, row, strict=True)]
            most = max(most, float(mpmath.norm(off)))
    return most / (UNIT * SLOPE[head](margins.shape[1]))


@np.errstate(all='ignore')  # what is not finite proves nothing
def residual(
    found: Features,
    targets: np.ndarray,
    W: np.ndarray,
    lam: float,
    head: str,
) -> float:
    r"""Return :math:`\beta \ge \lVert \nabla L(W) \rVert_F`: step 4.

    Args:
        found (Features): of the :math:`n` training rows.
        targets (ndarray): of :func:`slopes`, ``[n, num_outputs]``.
        W (ndarray): float64, ``[d, num_outputs]``: before the noise.
        lam (float): :math:`\lambda > 0`.
        head (str): of :func:`slopes`.

    Raises:
        ValueError: if numbers are not finite or targets are not those of
            the head.
    """
    Z, error = found
    (n, d), outputs = Z.shape, W.shape[1]
    allowed = (0, 1) if head == 'softmax' else (-1, 1)
    whole = head != 'softmax' or bool((targets.sum(1) == 1).all())
    if not (np.isin(targets, allowed).all() and whole):
        raise ValueError(f"'targets' needs to hold those of {head!r}")
    if not (np.isfinite(W).all() and np.isfinite(Z).all() and lam > 0):
        raise ValueError("'W', 'found' and 'lam' need to be finite")
    mu = lam * n
    margins = Z @ W
    G = slopes(margins, targets, head)
    R = Z.T @ G + mu * W
    z, w, g, r = norm(Z), norm(W), norm(G), norm(R)
    margins_off = (gamma(d) * z + error) * w
    slope = UNIT * SLOPE[head](outputs) * math.sqrt(n)
    slopes_wrong = slope + LIPSCHITZ[head] * margins_off + 2 * UNIT * g
    hidden = (gamma(n) * z + error) * g + (z + error) * slopes_wrong
    hidden += gamma(4) * (mu * w + r)
    # The roundings of these twenty operations.
    beta = (r + hidden) * (1 + 2.0**-47) + TINY
    return beta if math.isfinite(beta) else math.inf


def shift(beta: float, n: int, lam: float, W: np.ndarray, std: float) -> float:
    r"""Return :math:`m \ge \lVert W' - W^* \rVert_F / s`.

    Args:
        beta (float): of :func:`residual`.
        n (int): training rows that remain.
        lam (float): :math:`\lambda`.
        W (ndarray): before the noise.
        std (float): :math:`s`, of the noise of the release.
    """
    distance = beta / (lam * n)
    grid = math.sqrt(W.size) * std * 2.0**-33 + 2 * UNIT * norm(W)
    return (distance + grid) / std * (1 + 2.0**-47) + TINY


def together(shifts: list[float]) -> float:
    r"""Return :math:`\sqrt{\sum_j m_j^2}`, the shift of several releases.

    Gaussian mechanisms compose so, also where a request was chosen by looking
    at earlier releases, if each :math:`m_j` was fixed before release
    :math:`j` (Dong, Roth and Su 2022, corollary 2).

    Args:
        shifts (list[float]): :math:`m_j`.
    """
    return math.hypot(*shifts) * (1 + 2.0**-50) if shifts else 0.0
