"""Certify linear heads whose features are inexact or not materialised."""

from torch import Tensor

from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.unlearning.heads import GAMMA_1, slopes
from pyg_trust.unlearning.rows import spectral_norm


def feature_error_bound(
    eta: float, G: Tensor, W: Tensor, Z: Tensor, head: str = 'ovr'
) -> float:
    r"""Bound the residual that an error of the features adds.

    For :math:`\lVert \hat Z - Z^* \rVert_F \le \eta`,

    .. math::
        \lVert \nabla L(W; Z^*) - \nabla L(W; \hat Z) \rVert_F \le \eta
        \lVert G \rVert_2 + \gamma_1 \eta \lVert W \rVert_2 (\lVert \hat Z
        \rVert_2 + \eta).

    *Proof.* With :math:`E = Z^* - \hat Z` the difference is :math:`E^\top
    G(Z^*W) + \hat Z^\top [G(Z^*W) - G(\hat ZW)]`, or :math:`E^\top G(\hat ZW)
    + Z^{*\top} [\ldots]`, and the bracket is at most :math:`\gamma_1 \lVert EW
    \rVert_F`. (ScaleGUN's term has no :math:`\lVert W \rVert`, without which
    it does not hold: :math:`\hat z = (1, 0)`, :math:`w = (0, 50)`, :math:`E =
    (0, \rho)` changes the gradient by :math:`12.5 \rho`.)

    Args:
        eta (float): :math:`\eta`.
        G (Tensor): the slopes at :math:`\hat Z W`, ``[n, num_outputs]``.
        W (Tensor): the weights, ``[d, num_outputs]``.
        Z (Tensor): :math:`\hat Z`, ``[n, d]``.
        head (str): as for :class:`.Objective`. (default: :obj:`'ovr'`)
    """
    sizes = [spectral_norm(matrix) for matrix in (G, W, Z)]
    return eta * sizes[0] + GAMMA_1[head] * eta * sizes[1] * (sizes[2] + eta)


def column_residual(
    graph: CSRGraph,
    measure: Measure,
    x: Tensor,
    W: Tensor,
    Y: Tensor,
    train: Tensor,
    mu: float,
    head: str = 'ovr',
) -> Tensor:
    r"""Compute the gradient at exact features without materialising them.

    With :math:`M = \sum_i w_i P^i`: the margins are :math:`[M (xW)]_T`, and
    :math:`Z^\top G = x^\top M^\top \bar G` with :math:`\bar G = G` on the
    training nodes :math:`T` and 0 elsewhere. Two propagations of as many
    columns as there are outputs, one with the adjoint measure, in place of one
    of all features.

    Args:
        graph (CSRGraph): the graph.
        measure (Measure): the measure.
        x (Tensor): float64, ``[num_nodes, d]``.
        W (Tensor): ``[d, num_outputs]``.
        Y (Tensor): targets of the training nodes.
        train (Tensor): int64: the training nodes.
        mu (float): :math:`\lambda n`.
        head (str): as for :class:`.Objective`. (default: :obj:`'ovr'`)

    Returns:
        Tensor: ``[d, num_outputs]``.
    """
    margin = propagate(graph, x @ W, measure)[train]
    spread = x.new_zeros((x.size(0), W.size(1)))
    spread[train] = slopes(margin, Y, head)
    return x.t() @ propagate(graph, spread, measure.adjoint()) + mu * W
