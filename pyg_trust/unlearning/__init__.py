"""Unlearning: models that forget on request."""

from pyg_trust._moved import moved
from pyg_trust.unlearning.baselines import GINClassifier
from pyg_trust.unlearning.links import LinkClassifier
from pyg_trust.unlearning.node import NodeClassifier
from pyg_trust.unlearning.recommender import Recommender
from pyg_trust.unlearning.reports import (
    LinkUnlearnReport,
    NodeAdditionReport,
    NodePlan,
    NodeUnlearnReport,
    NodeVerifyReport,
    RecommenderPlan,
    RecommenderReport,
    RecommenderVerifyReport,
    UnlearnReport,
    VerifyReport,
)
from pyg_trust.unlearning.scattering import ScatteringClassifier
from pyg_trust.unlearning.shards import (
    PoisonCertificate,
    ShardedUnlearner,
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.store import ShardStore

__all__ = [
    'GINClassifier',
    'LinkClassifier',
    'LinkUnlearnReport',
    'NodeAdditionReport',
    'NodeClassifier',
    'NodePlan',
    'NodeUnlearnReport',
    'NodeVerifyReport',
    'PoisonCertificate',
    'Recommender',
    'RecommenderPlan',
    'RecommenderReport',
    'RecommenderVerifyReport',
    'ScatteringClassifier',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardStore',
    'ShardVerifyReport',
    'ShardedUnlearner',
    'UnlearnReport',
    'VerifyReport',
]

__getattr__ = moved(__name__)
