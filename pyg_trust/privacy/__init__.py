"""Differential privacy of the rows of the features."""

from pyg_trust.privacy.accountant import (
    PLDAccountant,
    RDPAccountant,
    WORAccountant,
    create_accountant,
    register_accountants,
)
from pyg_trust.privacy.gradients import ClippedSum, SubgraphGradients, Tape

__all__ = [
    'ClippedSum',
    'PLDAccountant',
    'RDPAccountant',
    'SubgraphGradients',
    'Tape',
    'WORAccountant',
    'create_accountant',
    'register_accountants',
]
