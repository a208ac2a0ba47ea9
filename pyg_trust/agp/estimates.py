"""Errors of AGP's estimates, and the choice of their quantum.

The bounds are derived in the text of :mod:`.propagation`.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Fraction,
    Rate,
    check_choice,
    check_integer,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.agp.checks import (
    check_eps,
    check_finite_signal,
    check_signal,
    prepare_graph,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph


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
    eps = check_eps(eps)
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


class Plan(NamedTuple):
    """Parameters that meet a guarantee at the least expected cost.

    Args:
        eps (float): the quantum of every run.
        repetitions (int): the number of runs, odd; their median counts.
        failure (float): the chance that the median of a node is off, at most.
    """

    eps: float
    repetitions: int
    failure: float


def plan(
    delta: float,
    levels: int,
    *,
    relative_error: float = 0.1,
    failure: float = 0.01,
    bound: str = 'tight',
) -> Plan:
    r"""Choose the quantum and the number of runs for a relative error.

    Guarantee and arguments are those of :func:`eps_for`, for the median of
    :math:`R` runs (:func:`propagate_median`). A run fails with probability
    :math:`p \propto \varepsilon` at most, and the median only if at least
    :math:`(R + 1)/2` runs do, whose probability is the regularized incomplete
    beta function :math:`I_p(\frac{R+1}{2}, \frac{R+1}{2})`. Its inverse at
    :obj:`failure` gives the largest :math:`p`, and with it
    :math:`\varepsilon`, for every :math:`R`; of these the cheapest is chosen,
    by the cost :math:`R / \varepsilon`. For a failure of 1e-6 this is
    thousands of times cheaper than a single run.

    Raises:
        ValueError: as :func:`eps_for`.

    Example:
        >>> best = plan(1e-3, levels=10, relative_error=0.1, failure=1e-6)
        >>> best.failure <= 1e-6, best.repetitions % 2
        (True, 1)
    """

    def eps(chance: float) -> float:
        return eps_for(
            delta,
            levels,
            relative_error=relative_error,
            failure=chance,
            bound=bound,
        )

    best = Plan(eps(failure), 1, failure)
    # More runs than 4 ln(1/failure) + 9 never pay.
    for runs in range(3, int(4 * math.log(1 / failure)) + 11, 2):
        half = (runs + 1) / 2
        chance = float(scipy.special.betaincinv(half, half, failure))
        if runs / eps(chance) < best.repetitions / best.eps:
            best = Plan(eps(chance), runs, failure)
    return best


@validated
def propagate_median(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    plan: Plan,
    *,
    seed: int | None = None,
    force_push: bool = False,
) -> Tensor:
    r"""Compute the entrywise median of independent estimates.

    Unlike a single estimate it is not unbiased, and not differentiable.
    Memory: that of :attr:`Plan.repetitions` results.

    Args:
        graph (CSRGraph): as in :func:`~pyg_trust.agp.propagate`.
        x (Tensor): as in :func:`~pyg_trust.agp.propagate`.
        measure (Measure): as in :func:`~pyg_trust.agp.propagate`.
        plan (Plan): quantum and repetitions, from :func:`plan`.
        seed (int, optional): as in :func:`~pyg_trust.agp.propagate`.
            (default: :obj:`None`)
        force_push (bool): as in :func:`~pyg_trust.agp.propagate`.
            (default: :obj:`False`)

    Raises:
        TypeError, ValueError: as :func:`~pyg_trust.agp.propagate`.
    """
    check_signal(x, prepare_graph(graph, measure))
    check_finite_signal(x)
    check_eps(plan.eps)
    if check_integer('repetitions', plan.repetitions, 1) % 2 == 0:
        raise ValueError(
            f"'plan' needs odd 'repetitions' (got {plan.repetitions})"
        )
    seed = rng.resolve(seed)
    runs, numbers = [], range(plan.repetitions)
    for run in Bar(numbers, desc='runs'):
        z = propagate(
            graph,
            x.detach(),
            measure,
            eps=plan.eps,
            seed=rng.derive(seed, run),
            force_push=force_push,
        )
        runs.append(z)
    return torch.stack(runs).median(0).values


@validated
def eps_for(
    delta: Rate,
    levels: Count,
    *,
    relative_error: Fraction = 0.1,
    failure: Fraction = 0.01,
    bound: str = 'tight',
) -> float:
    r"""Return the quantum that guarantees a relative error above a threshold.

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
