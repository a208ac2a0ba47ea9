"""Errors of AGP's estimates.

The bounds are derived in the text of :mod:`.propagation`.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import (
    check_non_negative,
)
from pyg_trust.agp.checks import (
    check_finite_signal,
    check_signal,
    prepare_graph,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph

__all__ = ['variance_bound']


def variance_bound(
    graph: CSRGraph, x: Tensor, measure: Measure, eps: float
) -> Tensor:
    r"""Bound the variance of every entry of a propagation that samples.

    The bound is :math:`\gamma\, \varepsilon \lVert x \rVert_1 W \sum_i i\, w_i
    (P^i |x|)(v)` at node :math:`v`, with :math:`P = D^{-a} A D^{-b}`, the sum
    :math:`W` of the weights and a constant :math:`\gamma`. Measured variances
    are often a tenth of it. To compute it takes one exact propagation.

    Args:
        graph (CSRGraph): the graph, unweighted.
        x (Tensor): the signals, as passed to :func:`~pyg_trust.agp.propagate`.
        measure (Measure): the weights :math:`w` and exponents :math:`a, b`.
        eps (float): :math:`\varepsilon`, as passed there.

    Returns:
        Tensor: the bound: float64, of the shape of :obj:`x`.
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
