"""Pure functions on tensors and numbers: the mathematics of pyg_trust."""

from pyg_trust.functional.clustering import (
    SweepCut,
    sweep_cut,
    uniform_signal,
)
from pyg_trust.functional.measures import (
    Measure,
    appnp,
    heat,
    hkpr,
    katz,
    make_measure,
    pagerank,
    ppr,
    sgc,
    single_target,
    transition,
)
from pyg_trust.functional.propagation import (
    Plan,
    eps_for,
    plan,
    propagate,
    propagate_median,
    prune_bound,
    query,
    variance_bound,
)

__all__ = [
    'Measure',
    'Plan',
    'SweepCut',
    'appnp',
    'eps_for',
    'heat',
    'hkpr',
    'katz',
    'make_measure',
    'pagerank',
    'plan',
    'ppr',
    'propagate',
    'propagate_median',
    'prune_bound',
    'query',
    'sgc',
    'single_target',
    'sweep_cut',
    'transition',
    'uniform_signal',
    'variance_bound',
]
