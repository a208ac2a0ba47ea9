"""Differential privacy of the rows of the features."""

from pyg_trust._moved import moved
from pyg_trust.privacy.accountant import (
    Accountant,
    PLDAccountant,
    PoissonAccountant,
    RDPAccountant,
    WORAccountant,
    create_accountant,
)
from pyg_trust.privacy.aggregation import PrivateNodeClassifier
from pyg_trust.privacy.coverage import CoverageReport
from pyg_trust.privacy.ego_accounts import (
    FDPAccountant,
    GroupAccountant,
    GroupPoissonAccountant,
)
from pyg_trust.privacy.engine import PrivacyEngine
from pyg_trust.privacy.gradients import SubgraphGradients
from pyg_trust.privacy.items import ItemReport, PrivateItemCounts
from pyg_trust.privacy.links import LinkReport, PrivateLinkPredictor
from pyg_trust.privacy.loading import PrivateTraining
from pyg_trust.privacy.norms import AdaptiveNorm
from pyg_trust.privacy.planning import (
    SearchReport,
    propose,
    search,
)
from pyg_trust.privacy.report import PrivacyReport

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
    'SubgraphGradients',
    'WORAccountant',
    'create_accountant',
    'propose',
    'search',
]

__getattr__ = moved(__name__)
