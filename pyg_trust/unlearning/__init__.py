"""Unlearning: models that forget on request."""

from pyg_trust._moved import moved
from pyg_trust.unlearning.baselines import GINClassifier
from pyg_trust.unlearning.links import LinkClassifier
from pyg_trust.unlearning.node import NodeClassifier
from pyg_trust.unlearning.recommender import Recommender
from pyg_trust.unlearning.reports import (
    LinkUnlearnReport,
    NodeUnlearnReport,
    NodeVerifyReport,
    RecommenderReport,
    UnlearnReport,
    VerifyReport,
)
from pyg_trust.unlearning.scattering import ScatteringClassifier
from pyg_trust.unlearning.shards import (
    PoisonCertificate,
    ShardedUnlearner,
    ShardRemovalReport,
    ShardReport,
)
from pyg_trust.unlearning.store import ShardStore

__all__ = [
    'GINClassifier',
    'LinkClassifier',
    'LinkUnlearnReport',
    'NodeClassifier',
    'NodeUnlearnReport',
    'NodeVerifyReport',
    'PoisonCertificate',
    'Recommender',
    'RecommenderReport',
    'ScatteringClassifier',
    'ShardRemovalReport',
    'ShardReport',
    'ShardStore',
    'ShardedUnlearner',
    'UnlearnReport',
    'VerifyReport',
]

__getattr__ = moved(__name__)
