"""Approximate graph propagation: measures, propagation, queries."""

from .clustering import sweep_cut as sweep_cut
from .estimates import variance_bound as variance_bound
from .halo import propagate_halo as propagate_halo
from .measures import Measure as Measure
from .measures import appnp as appnp
from .measures import chebyshev as chebyshev
from .measures import heat as heat
from .measures import hkpr as hkpr
from .measures import katz as katz
from .measures import make_measure as make_measure
from .measures import pagerank as pagerank
from .measures import ppr as ppr
from .measures import sgc as sgc
from .measures import single_target as single_target
from .measures import transition as transition
from .out_of_core import plan_memory as plan_memory
from .out_of_core import propagate_to as propagate_to
from .propagation import propagate as propagate
from .queries import query as query

__all__ = [
    'Measure',
    'appnp',
    'chebyshev',
    'heat',
    'hkpr',
    'katz',
    'make_measure',
    'pagerank',
    'plan_memory',
    'ppr',
    'propagate',
    'propagate_halo',
    'propagate_to',
    'query',
    'sgc',
    'single_target',
    'sweep_cut',
    'transition',
    'variance_bound',
]
