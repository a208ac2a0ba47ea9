"""Robustness certificates for models that are linear in PageRank."""

from pyg_trust.certificates.certify import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
    certify,
)
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
    'certify',
    'neighborhood_purity',
    'plot_certified_ratio',
    'plot_purity',
]
