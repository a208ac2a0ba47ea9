"""Unlearning: models that forget on request."""

from .aggregate import majority_vote as majority_vote
from .links import LinkClassifier as LinkClassifier
from .node import NodeClassifier as NodeClassifier
from .partition import bekm as bekm
from .partition import blpa as blpa
from .partition import hash_partition as hash_partition
from .partition import metis_partition as metis_partition
from .partition import random_partition as random_partition
from .published import removal_budget as removal_budget
from .recommender import Recommender as Recommender
from .reports import ForgetPlan as ForgetPlan
from .reports import ForgetReport as ForgetReport
from .reports import ShardReport as ShardReport
from .reports import VerifyReport as VerifyReport
from .scattering import ScatteringClassifier as ScatteringClassifier
from .shards import PoisonCertificate as PoisonCertificate
from .shards import ShardedUnlearner as ShardedUnlearner
from .shifts import gaussian_budget as gaussian_budget
from .store import ShardStore as ShardStore

__all__ = [
    'ForgetPlan',
    'ForgetReport',
    'LinkClassifier',
    'NodeClassifier',
    'PoisonCertificate',
    'Recommender',
    'ScatteringClassifier',
    'ShardReport',
    'ShardStore',
    'ShardedUnlearner',
    'VerifyReport',
    'bekm',
    'blpa',
    'gaussian_budget',
    'hash_partition',
    'majority_vote',
    'metis_partition',
    'random_partition',
    'removal_budget',
]
