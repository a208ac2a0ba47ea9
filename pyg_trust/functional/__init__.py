"""Pure functions on tensors and numbers: the mathematics of pyg_trust.

The names that most users need; each module has more beside them.
"""

from pyg_trust._moved import moved
from pyg_trust.functional.accounting import (
    calibrate_fdp,
    fdp_epsilon,
    group_wor_epsilon,
    group_wor_profile,
    rdp_group_wor,
    wor_epsilon,
)
from pyg_trust.functional.aggregate import majority_vote
from pyg_trust.functional.budget import pagerank_bounds
from pyg_trust.functional.chebyshev import chebyshev
from pyg_trust.functional.clustering import sweep_cut
from pyg_trust.functional.confidence import clopper_pearson
from pyg_trust.functional.diffusion import diffuse, diffusion_error
from pyg_trust.functional.estimates import eps_for, variance_bound
from pyg_trust.functional.halo import propagate_halo
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
from pyg_trust.functional.mechanisms import (
    clip_factors,
    lam_from_opacus,
    lam_to_opacus,
    private_quantile,
)
from pyg_trust.functional.out_of_core import plan_memory, propagate_to
from pyg_trust.functional.partition import hash_partition, random_partition
from pyg_trust.functional.partition_methods import bekm, blpa, metis_partition
from pyg_trust.functional.perturbations import Perturbations
from pyg_trust.functional.poisson import calibrate_poisson, poisson_epsilon
from pyg_trust.functional.policy import (
    policy_iteration,
    robust_margins,
    worst_case_margins,
)
from pyg_trust.functional.private_accounting import (
    gaussian_epsilon,
    gaussian_mu,
    gaussian_mu_for,
)
from pyg_trust.functional.private_propagation import (
    class_messages,
    hop_sensitivity,
    messages,
    private_propagate,
)
from pyg_trust.functional.program import linear_program
from pyg_trust.functional.propagation import propagate
from pyg_trust.functional.queries import query
from pyg_trust.functional.removal_bounds import (
    feature_removal_bound,
    node_removal_bound,
)
from pyg_trust.functional.scattering import scattering_transform
from pyg_trust.functional.shifts import gaussian_budget, removal_budget
from pyg_trust.functional.smoothing import (
    certified,
    flip_regions,
    min_probability,
    worst_case_probability,
)
from pyg_trust.functional.voting import (
    certified_mean,
    certified_votes,
    collective_votes,
)
from pyg_trust.functional.walks import disjoint_walks
from pyg_trust.functional.wavelets import frame_bound, wavelet_bank

__all__ = [
    'Measure',
    'Perturbations',
    'appnp',
    'bekm',
    'blpa',
    'calibrate_fdp',
    'calibrate_poisson',
    'certified',
    'certified_mean',
    'certified_votes',
    'chebyshev',
    'class_messages',
    'clip_factors',
    'clopper_pearson',
    'collective_votes',
    'diffuse',
    'diffusion_error',
    'disjoint_walks',
    'eps_for',
    'fdp_epsilon',
    'feature_removal_bound',
    'flip_regions',
    'frame_bound',
    'gaussian_budget',
    'gaussian_epsilon',
    'gaussian_mu',
    'gaussian_mu_for',
    'group_wor_epsilon',
    'group_wor_profile',
    'hash_partition',
    'heat',
    'hkpr',
    'hop_sensitivity',
    'katz',
    'lam_from_opacus',
    'lam_to_opacus',
    'linear_program',
    'majority_vote',
    'make_measure',
    'messages',
    'metis_partition',
    'min_probability',
    'node_removal_bound',
    'pagerank',
    'pagerank_bounds',
    'plan_memory',
    'poisson_epsilon',
    'policy_iteration',
    'ppr',
    'private_propagate',
    'private_quantile',
    'propagate',
    'propagate_halo',
    'propagate_to',
    'query',
    'random_partition',
    'rdp_group_wor',
    'removal_budget',
    'robust_margins',
    'scattering_transform',
    'sgc',
    'single_target',
    'sweep_cut',
    'transition',
    'variance_bound',
    'wavelet_bank',
    'wor_epsilon',
    'worst_case_margins',
    'worst_case_probability',
]

__getattr__ = moved(__name__)
