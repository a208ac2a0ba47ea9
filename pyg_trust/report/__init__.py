"""Reports: what a procedure promises its user, and how to run it again."""

from pyg_trust.report.base import (
    KINDS,
    Guarantee,
    Report,
    fingerprint,
    provenance,
)
from pyg_trust.report.trust import SCHEMA_VERSION, TrustReport, schema

__all__ = [
    'KINDS',
    'SCHEMA_VERSION',
    'Guarantee',
    'Report',
    'TrustReport',
    'fingerprint',
    'provenance',
    'schema',
]
