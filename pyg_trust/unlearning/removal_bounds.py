r"""Bounds of the residual that a step of removal adds.

The objective :math:`L_b` is that of
:func:`~pyg_trust.unlearning.newton.minimize`.

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

which is :func:`tight_bound`. It needs no bound on the embeddings, no frame and
no range of the features. Summing squares over classes gives the Frobenius
norm. :math:`Hp - \Delta` is what the linear solver left, and is measured.

For the logistic loss :math:`\ell'' = \sigma(1 - \sigma)`, whose derivative is
largest at :math:`\sigma = \frac12 \pm \frac{1}{2\sqrt3}`, where it is
:math:`\gamma_2 = \frac{1}{6\sqrt3}`; the paper uses :math:`\frac14`. For the
squared loss :math:`\gamma_2 = 0`: one step is exact.
"""

from torch import Tensor

from pyg_trust._checks import (
    Count,
    NotNegative,
    Positive,
    check_choice,
    check_tensor,
    validated,
)
from pyg_trust.unlearning.heads import GAMMA_2, HEADS, LOSSES
from pyg_trust.unlearning.rows import check_rows, max_row_norm, spectral_norm

PAPER_GAMMA_2 = {'logistic': 0.25, 'squared': 0.0}


def tight_bound(
    Z: Tensor, P: Tensor, loss: str = 'logistic', K: Tensor | None = None
) -> float:
    r"""Bound the residual that a step adds, without any bound on embeddings.

    .. math::
        \frac{\gamma_2}{2} \lVert Z' \rVert_2 \lVert (Z'P) \circ (Z'P)
        \rVert_F,

    proven in the text of this module.

    Args:
        Z (Tensor): the remaining embeddings :math:`Z'`, ``[n, d]``.
        P (Tensor): the step, ``[d, C]``.
        loss (str): :obj:`'logistic'`, :obj:`'squared'`, or a head of
            :mod:`.heads`; for ``'softmax'`` the norms of the rows of
            :math:`Z'P` are squared, not its entries.
            (default: :obj:`'logistic'`)
        K (Tensor, optional): ``rows.gram(Z)``, if known.
            (default: :obj:`None`)
    """
    _check_step(Z, P, loss, K)
    head = LOSSES.get(loss, loss)
    if GAMMA_2[head] == 0:
        return 0.0
    squares = (Z @ P).square()
    if head == 'softmax':
        squares = squares.sum(1)
    spread = float(squares.norm())
    return GAMMA_2[head] / 2 * spectral_norm(Z, K) * spread


@validated
def paper_bound(
    Z: Tensor,
    P: Tensor,
    loss: str = 'logistic',
    K: Tensor | None = None,
    radius: NotNegative | None = None,
) -> float:
    r"""Bound the residual by Theorem 4.7 of the paper, with a valid :math:`F`.

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
        K (Tensor, optional): as in :func:`tight_bound`. (default: :obj:`None`)
        radius (float, optional): :math:`F`; by default the largest row norm.
    """
    _check_step(Z, P, loss, K, tuple(LOSSES))
    if PAPER_GAMMA_2[loss] == 0:
        return 0.0
    radius = max_row_norm(Z) if radius is None else radius
    per_class = P.norm(dim=0) * (Z @ P).norm(dim=0)
    scale = PAPER_GAMMA_2[loss] * radius * spectral_norm(Z, K)
    return scale * float(per_class.norm())


@validated
def node_removal_bound(
    n: Count, lam: Positive, radius: NotNegative, num_graphs: Count = 1
) -> float:
    r"""Bound the residual a priori by Theorem 4.4 and Corollary 4.6.

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
    scale = 4 * PAPER_GAMMA_2['logistic'] * num_graphs**2
    return scale * radius**5 / (lam**2 * n)


@validated
def feature_removal_bound(
    n: Count,
    num_nodes: Count,
    lam: Positive,
    radius: NotNegative,
    stability: NotNegative,
    noise_norm: NotNegative,
    num_graphs: Count = 1,
) -> float:
    r"""Bound the residual a priori by Theorem 4.3 and Corollary 4.5.

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
    weight = (n * radius + noise_norm) / (lam * n)
    change = (0.25 * weight * radius + 1) * stability
    least = min(4 * radius**2, change**2 / num_nodes)
    scale = PAPER_GAMMA_2['logistic'] * num_graphs**2
    return scale * radius**3 * least / (lam**2 * n)


def _check_step(
    Z: Tensor,
    P: Tensor,
    loss: str,
    K: Tensor | None,
    losses: tuple[str, ...] = ('logistic', *HEADS),
) -> None:
    check_rows(Z, K, finite=True)
    check_tensor('P', P, None, (Z.size(1), 'num_classes'), finite=True)
    check_choice('loss', loss, losses)
