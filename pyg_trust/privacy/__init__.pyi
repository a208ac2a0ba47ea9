"""Differential privacy of the rows of the features."""

from .accountant import Accountant as Accountant
from .accountant import FDPAccountant as FDPAccountant
from .accountant import GroupAccountant as GroupAccountant
from .accountant import GroupPoissonAccountant as GroupPoissonAccountant
from .accountant import PLDAccountant as PLDAccountant
from .accountant import PoissonAccountant as PoissonAccountant
from .accountant import RDPAccountant as RDPAccountant
from .accountant import create_accountant as create_accountant
from .accounting import group_wor_epsilon as group_wor_epsilon
from .accounting import rdp_group_wor as rdp_group_wor
from .accounting import wor_epsilon as wor_epsilon
from .aggregation import PrivateNodeClassifier as PrivateNodeClassifier
from .coverage import CoverageReport as CoverageReport
from .engine import PrivacyEngine as PrivacyEngine
from .gaussian import gaussian_epsilon as gaussian_epsilon
from .gaussian import gaussian_mu_for as gaussian_mu_for
from .gradients import UnitGradients as UnitGradients
from .gradients import unit_gradients as unit_gradients
from .items import ItemReport as ItemReport
from .items import PrivateItemCounts as PrivateItemCounts
from .links import LinkReport as LinkReport
from .links import PrivateLinkPredictor as PrivateLinkPredictor
from .mechanisms import clip_factors as clip_factors
from .norms import AdaptiveNorm as AdaptiveNorm
from .planning import SearchReport as SearchReport
from .planning import propose as propose
from .planning import search as search
from .poisson import poisson_epsilon as poisson_epsilon
from .propagation import class_messages as class_messages
from .propagation import hop_sensitivity as hop_sensitivity
from .propagation import messages as messages
from .propagation import private_propagate as private_propagate
from .report import PrivacyReport as PrivacyReport
from .wrappers import PrivateTraining as PrivateTraining

__all__ = [
    'Accountant',
    'AdaptiveNorm',
    'CoverageReport',
    'FDPAccountant',
    'GroupAccountant',
    'GroupPoissonAccountant',
    'ItemReport',
    'LinkReport',
    'PLDAccountant',
    'PoissonAccountant',
    'PrivacyEngine',
    'PrivacyReport',
    'PrivateItemCounts',
    'PrivateLinkPredictor',
    'PrivateNodeClassifier',
    'PrivateTraining',
    'RDPAccountant',
    'SearchReport',
    'UnitGradients',
    'class_messages',
    'clip_factors',
    'create_accountant',
    'gaussian_epsilon',
    'gaussian_mu_for',
    'group_wor_epsilon',
    'hop_sensitivity',
    'messages',
    'poisson_epsilon',
    'private_propagate',
    'propose',
    'rdp_group_wor',
    'search',
    'unit_gradients',
    'wor_epsilon',
]
