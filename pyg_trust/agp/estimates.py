"""Errors of AGP's estimates, and the choice of their quantum.

The bounds are derived in the text of :mod:`.propagation`.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    Fraction,
    Rate,
    check_choice,
    check_non_negative,
    validated,
)
from pyg_trust.agp.checks import (
    check_finite_signal,
    check_signal,
    prepare_graph,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph

__all__ = ['eps_for', 'variance_bound']


def variance_bound(
    graph: CSRGraph, x: Tensor, measure: Measure, eps: float
) -> Tensor:
    r"""Bound the variance of every entry of the AGP estimate.

    .. math::
        \operatorname{Var}[\hat{z}(v)] \le \gamma\, \varepsilon \lVert x
        \rVert_1 W \sum_{i=1}^{L} i\, w_i (P^i |x|)(v)

    as derived in the text of this module. The bound costs one exact
    propagation. It is loose: measured variances are often a tenth of it.

    Returns:
        Tensor: the bound, of the shape of :obj:`x`, float64.

    Raises:
        TypeError, ValueError: as :func:`~pyg_trust.agp.propagate`, and
            if no bound is known for the measure on this graph.
    """
    prepared = prepare_graph(graph, measure)
    eps = check_non_negative('eps', eps)
    check_signal(x, prepared)
    check_finite_signal(x)
    x = x.to_dense() if x.layout == torch.sparse_csr else x
    x = x.detach().double().abs()
    spread = tuple(i * w for i, w in enumerate(measure.weights))
    if sum(spread) == 0:
        return torch.zeros_like(x)
    scale = _largest_response(prepared, measure) * eps * sum(measure.weights)
    z = propagate(graph, x, replace(measure, weights=spread))
    return scale * x.sum(0) * z


@validated
def eps_for(
    delta: Rate,
    levels: Count,
    *,
    relative_error: Fraction = 0.1,
    failure: Fraction = 0.01,
    bound: str = 'tight',
) -> float:
    r"""Return the ``eps`` that keeps large results to a relative error.

    For every node with :math:`z(v) > \delta \lVert x \rVert_1 W` (non-negative
    signals; :math:`W = 1` for the probability series), the estimate is within
    :obj:`relative_error` of :math:`z(v)` with probability :math:`1 -`
    :obj:`failure`, each node by itself. By Chebyshev's inequality and
    :math:`\operatorname{Var}[\hat{z}(v)] \le c\, \varepsilon \lVert x
    \rVert_1 W z(v)`,

    .. math::
        \varepsilon = \frac{\text{failure} \cdot \text{relative\_error}^2
        \cdot \delta}{c}, \quad c = L \text{ (tight) or } L(L+1)/2
        \text{ (Lemma 4.2)} .

    The defaults are those of Definition 1.1. Chebyshev's inequality and the
    variance bound are both loose, so that a quantum 10 to 1000 times larger
    often meets the same error in practice: measure it.

    Args:
        delta (float): the threshold, in :math:`(0, 1]`.
        levels (int): the number of levels :math:`L` of the measure.
        relative_error (float): in :math:`(0, 1)`. (default: :obj:`0.1`)
        failure (float): in :math:`(0, 1)`. (default: :obj:`0.01`)
        bound (str): :obj:`'tight'`, which needs :math:`\gamma = 1` (see the
            text of this module), or :obj:`'paper'`. (default: :obj:`'tight'`)
    """
    factors = {'tight': levels, 'paper': levels * (levels + 1) / 2}
    check_choice('bound', bound, factors)
    return failure * relative_error**2 * delta / factors[bound]


def _largest_response(graph: CSRGraph, measure: Measure) -> float:
    # gamma: the largest G_k(v, u) that is known to be possible.
    a, b = measure.a, measure.b
    if measure.shrink <= 1 and (
        (graph.is_undirected and a + b >= 1)
        or (b == 1 and measure.along)
        or (a == 1 and not measure.along)
    ):
        return 1.0
    if graph.is_undirected and a == b == 0:
        weights = np.array(measure.weights)
        growth = graph.spectral_radius * measure.shrink
        powers = growth ** np.arange(len(weights))
        return max(
            float((weights[k:] * powers[: len(weights) - k]).sum() / tail)
            for k, tail in enumerate(weights[::-1].cumsum()[::-1])
            if k > 0 and tail > 0
        )
    raise ValueError(
        f"no variance bound is known for 'measure' {measure} on "
        f'{"an undirected" if graph.is_undirected else "a directed"} graph: '
        'it needs a + b >= 1 or a = b = 0 (undirected), b = 1 (along the '
        'edges) or a = 1 (against them), and no shrink above 1'
    )
