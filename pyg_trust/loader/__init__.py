"""Loaders in PyG's form."""

from pyg_trust.loader.disjoint_walk_loader import DisjointWalkLoader
from pyg_trust.loader.shard_loader import ShardLoader

__all__ = [
    'DisjointWalkLoader',
    'ShardLoader',
]
