"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker."""

from pyg_trust.unlearning.shards.poisoning import PoisonCertificate
from pyg_trust.unlearning.shards.reports import (
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.shards.unlearner import ShardedUnlearner
from pyg_trust.unlearning.shards.waiting import BatchPlan

__all__ = [
    'BatchPlan',
    'PoisonCertificate',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardVerifyReport',
    'ShardedUnlearner',
]
