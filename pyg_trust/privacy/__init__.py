"""Differential privacy of the rows of the features."""

from pyg_trust.privacy.accountant import (
    PLDAccountant,
    RDPAccountant,
    WORAccountant,
    create_accountant,
    register_accountants,
)

__all__ = [
    'PLDAccountant',
    'RDPAccountant',
    'WORAccountant',
    'create_accountant',
    'register_accountants',
]
