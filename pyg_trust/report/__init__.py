"""Reports: guarantees of procedures, and the settings to run them again."""

from pyg_trust._checks.fingerprints import (
    DATA_FIELDS,
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    save_tensors,
)
from pyg_trust.report.base import KINDS, Guarantee, Report, provenance
from pyg_trust.report.trust import SCHEMA_VERSION, TrustReport, schema

__all__ = [
    'DATA_FIELDS',
    'KINDS',
    'SCHEMA_VERSION',
    'Guarantee',
    'Report',
    'TrustReport',
    'fingerprint',
    'fingerprint_data',
    'fingerprint_model',
    'provenance',
    'save_tensors',
    'schema',
]
