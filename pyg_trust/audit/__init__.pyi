"""Audits of training and removal, by what their releases reveal."""

from .aggregation import audit_aggregation as audit_aggregation
from .attacks import ATTACKS as ATTACKS
from .membership import MembershipReport as MembershipReport
from .membership import membership_inference as membership_inference
from .removal import audit_removal as audit_removal
from .report import AuditReport as AuditReport
from .report import AuditRow as AuditRow
from .report import PrivacyAudit as PrivacyAudit
from .report import RemovalAudit as RemovalAudit
from .runs import Runs as Runs
from .statistics import empirical_epsilon as empirical_epsilon
from .statistics import empirical_mu as empirical_mu
from .subjects import NodeSubject as NodeSubject
from .subjects import ScatteringSubject as ScatteringSubject
from .subjects import ShardedSubject as ShardedSubject
from .subjects import Subject as Subject
from .training import audit_function as audit_function
from .training import audit_training as audit_training
from .training import canary_graph as canary_graph

__all__ = [
    'ATTACKS',
    'AuditReport',
    'AuditRow',
    'MembershipReport',
    'NodeSubject',
    'PrivacyAudit',
    'RemovalAudit',
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
