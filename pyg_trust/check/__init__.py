"""Checks of trust reports, for whoever did not make them."""

from pyg_trust.check.checker import Finding, check_report
from pyg_trust.check.epsilon import FAILS, HOLDS, UNKNOWN

__all__ = ['FAILS', 'HOLDS', 'UNKNOWN', 'Finding', 'check_report']
