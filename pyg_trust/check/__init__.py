"""Independent checks of trust reports, without torch."""

from .answers import FAILS, HOLDS, UNKNOWN, UNPROVED, Finding
from .checker import check_report

__all__ = ['FAILS', 'HOLDS', 'UNKNOWN', 'UNPROVED', 'Finding', 'check_report']
