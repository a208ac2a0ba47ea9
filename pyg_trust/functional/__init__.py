"""Pure functions on tensors and numbers: the mathematics of pyg_trust."""

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
    eps_for,
    propagate,
    prune_bound,
    query,
    variance_bound,
)

__all__ = [
    'Measure',
    'appnp',
    'eps_for',
    'heat',
    'hkpr',
    'katz',
    'make_measure',
    'pagerank',
    'ppr',
    'propagate',
    'prune_bound',
    'query',
    'sgc',
    'single_target',
    'transition',
    'variance_bound',
]
