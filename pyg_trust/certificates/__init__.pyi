"""Robustness certificates: predictions that no attacker can change."""

from .any_model import UserCertificate as UserCertificate
from .any_model import certifies as certifies
from .any_model import certify as certify
from .certificate import BROKEN as BROKEN
from .certificate import ROBUST as ROBUST
from .certificate import UNKNOWN as UNKNOWN
from .certificate import Certificate as Certificate
from .collective import CollectiveCertificate as CollectiveCertificate
from .collective import certify_collective as certify_collective
from .divided import Divided as Divided
from .divided import VoteCertificate as VoteCertificate
from .exact import certify_pagerank as certify_pagerank
from .flip_bits import BitFlips as BitFlips
from .losses import RobustLoss as RobustLoss
from .plots import plot_certified_grid as plot_certified_grid
from .plots import plot_certified_ratio as plot_certified_ratio
from .plots import plot_certified_votes as plot_certified_votes
from .ranks import RankCertificate as RankCertificate
from .ranks import certify_ranks as certify_ranks
from .smoothed import SmoothedClassifier as SmoothedClassifier
from .smoothed import certify_smoothed as certify_smoothed
from .threat import ThreatModel as ThreatModel
from .votes import SmoothedCertificate as SmoothedCertificate
from .votes import certified_after as certified_after
from .voting import certified_mean as certified_mean
from .voting import certified_votes as certified_votes
from .voting import collective_votes as collective_votes
from .witness import Witness as Witness

__all__ = [
    'BROKEN',
    'ROBUST',
    'UNKNOWN',
    'BitFlips',
    'Certificate',
    'CollectiveCertificate',
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
    'certified_mean',
    'certified_votes',
    'certifies',
    'certify',
    'certify_collective',
    'certify_pagerank',
    'certify_ranks',
    'certify_smoothed',
    'collective_votes',
    'plot_certified_grid',
    'plot_certified_ratio',
    'plot_certified_votes',
]
