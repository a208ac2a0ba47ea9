"""Audits of training and removal, by what their releases reveal."""

from pyg_trust.audit.aggregation import audit_aggregation
from pyg_trust.audit.attacks import ATTACKS
from pyg_trust.audit.membership import MembershipReport, membership_inference
from pyg_trust.audit.removal import audit_removal
from pyg_trust.audit.report import (
    AuditReport,
    AuditRow,
    PrivacyAudit,
    RemovalAudit,
)
from pyg_trust.audit.runs import Runs
from pyg_trust.audit.statistics import empirical_epsilon, empirical_mu
from pyg_trust.audit.subjects import (
    NodeSubject,
    RetrainSubject,
    ScatteringSubject,
    ShardedSubject,
    Subject,
)
from pyg_trust.audit.training import (
    audit_function,
    audit_training,
    canary_graph,
)

__all__ = [
    'ATTACKS',
    'AuditReport',
    'AuditRow',
    'MembershipReport',
    'NodeSubject',
    'PrivacyAudit',
    'RemovalAudit',
    'RetrainSubject',
    'Runs',
    'ScatteringSubject',
    'ShardedSubject',
    'Subject',
    'audit_aggregation',
    'audit_function',
    'audit_removal',
    'audit_training',
    'canary_graph',
    'empirical_epsilon',
    'empirical_mu',
    'membership_inference',
]
