"""Loaders in PyG's form."""

from pyg_trust.loader.disjoint_walk_loader import DisjointWalkLoader
from pyg_trust.loader.edge_stream import EdgeStream
from pyg_trust.loader.ego_loader import EgoLoader
from pyg_trust.loader.graph_loader import GraphLoader
from pyg_trust.loader.shard_loader import ShardLoader
from pyg_trust.loader.step_batches import StepLoader
from pyg_trust.loader.unit_loader import UnitLoader

__all__ = [
    'DisjointWalkLoader',
    'EdgeStream',
    'EgoLoader',
    'GraphLoader',
    'ShardLoader',
    'StepLoader',
    'UnitLoader',
]
