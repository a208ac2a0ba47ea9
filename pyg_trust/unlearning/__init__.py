"""Unlearning: models that forget on request."""

from pyg_trust.unlearning.baselines import GINClassifier
from pyg_trust.unlearning.membership import (
    MembershipReport,
    membership_inference,
)
from pyg_trust.unlearning.scattering import (
    ScatteringClassifier,
    UnlearnReport,
    VerifyReport,
)

__all__ = [
    'GINClassifier',
    'MembershipReport',
    'ScatteringClassifier',
    'UnlearnReport',
    'VerifyReport',
    'membership_inference',
]
