"""Robustness certificates: predictions that no attacker can change."""

from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.certify import certifies, certify
from pyg_trust.certificates.exact import certify_pagerank
from pyg_trust.certificates.losses import RobustLoss
from pyg_trust.certificates.plots import (
    neighborhood_purity,
    plot_certified_ratio,
    plot_purity,
)
from pyg_trust.certificates.threat import ThreatModel

__all__ = [
    'BROKEN',
    'ROBUST',
    'UNKNOWN',
    'Certificate',
    'RobustLoss',
    'ThreatModel',
    'certifies',
    'certify',
    'certify_pagerank',
    'neighborhood_purity',
    'plot_certified_ratio',
    'plot_purity',
]
