"""Unlearning: models that forget on request."""

from pyg_trust.unlearning.baselines import GINClassifier
from pyg_trust.unlearning.scattering import (
    ScatteringClassifier,
    UnlearnReport,
    VerifyReport,
)

__all__ = [
    'GINClassifier',
    'ScatteringClassifier',
    'UnlearnReport',
    'VerifyReport',
]
