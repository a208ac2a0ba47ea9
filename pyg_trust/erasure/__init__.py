"""Erasure requests over all models: a durable desk and its evidence."""

from pyg_trust.erasure.checking import check_erasure
from pyg_trust.erasure.desk import ErasureDesk
from pyg_trust.erasure.reports import (
    DeskPlan,
    DeskStatus,
    ErasureReport,
    Policy,
)

__all__ = [
    'DeskPlan',
    'DeskStatus',
    'ErasureDesk',
    'ErasureReport',
    'Policy',
    'check_erasure',
]
