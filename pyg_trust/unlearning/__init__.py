"""Unlearning: models that forget on request."""

from pyg_trust.unlearning.attacks import (
    AuditReport,
    AuditRow,
    audit_removal,
)
from pyg_trust.unlearning.baselines import (
    GINClassifier,
)
from pyg_trust.unlearning.membership import (
    MembershipReport,
    membership_inference,
)
from pyg_trust.unlearning.node import (
    NodeClassifier,
)
from pyg_trust.unlearning.node_report import (
    NodePlan,
    NodeUnlearnReport,
    NodeVerifyReport,
)
from pyg_trust.unlearning.scattering import (
    ScatteringClassifier,
)
from pyg_trust.unlearning.scattering_reports import (
    UnlearnReport,
    VerifyReport,
)
from pyg_trust.unlearning.shards import (
    BatchPlan,
    PoisonCertificate,
    ShardedUnlearner,
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.store import (
    ShardStore,
)
from pyg_trust.unlearning.subjects import (
    RetrainSubject,
    ShardedSubject,
    Subject,
)

__all__ = [
    'AuditReport',
    'AuditRow',
    'BatchPlan',
    'GINClassifier',
    'MembershipReport',
    'NodeClassifier',
    'NodePlan',
    'NodeUnlearnReport',
    'NodeVerifyReport',
    'PoisonCertificate',
    'RetrainSubject',
    'ScatteringClassifier',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardStore',
    'ShardVerifyReport',
    'ShardedSubject',
    'ShardedUnlearner',
    'Subject',
    'UnlearnReport',
    'VerifyReport',
    'audit_removal',
    'membership_inference',
]
