"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker."""

from pyg_trust.certificates.poisoning import PoisonCertificate
from pyg_trust.unlearning.reports import ShardReport
from pyg_trust.unlearning.shards.unlearner import ShardedUnlearner

__all__ = [
    'PoisonCertificate',
    'ShardReport',
    'ShardedUnlearner',
]
