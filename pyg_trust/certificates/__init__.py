"""Robustness certificates: predictions that no attacker can change."""

from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.certify import UserCertificate, certifies, certify
from pyg_trust.certificates.collective import (
    CollectiveCertificate,
    certify_collective,
)
from pyg_trust.certificates.current import (
    CurrentCertificate,
    certified_after,
)
from pyg_trust.certificates.divided import Divided, VoteCertificate
from pyg_trust.certificates.exact import certify_pagerank
from pyg_trust.certificates.losses import RobustLoss
from pyg_trust.certificates.plots import (
    neighborhood_purity,
    plot_certified_grid,
    plot_certified_ratio,
    plot_certified_votes,
    plot_purity,
)
from pyg_trust.certificates.ranks import RankCertificate, certify_ranks
from pyg_trust.certificates.smoothed import (
    SmoothedClassifier,
    certify_smoothed,
)
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.certificates.witness import Witness
from pyg_trust.transforms.flip_bits import BitFlips

__all__ = [
    'BROKEN',
    'ROBUST',
    'UNKNOWN',
    'BitFlips',
    'Certificate',
    'CollectiveCertificate',
    'CurrentCertificate',
    'Divided',
    'RankCertificate',
    'RobustLoss',
    'SmoothedCertificate',
    'SmoothedClassifier',
    'ThreatModel',
    'UserCertificate',
    'VoteCertificate',
    'Witness',
    'certified_after',
    'certifies',
    'certify',
    'certify_collective',
    'certify_pagerank',
    'certify_ranks',
    'certify_smoothed',
    'neighborhood_purity',
    'plot_certified_grid',
    'plot_certified_ratio',
    'plot_certified_votes',
    'plot_purity',
]
