"""Samplers in PyG's form."""

from pyg_trust.sampler.disjoint_walk_sampler import DisjointWalkSampler
from pyg_trust.sampler.ego_sampler import EgoSampler
from pyg_trust.sampler.walks import disjoint_walks

__all__ = ['DisjointWalkSampler', 'EgoSampler', 'disjoint_walks']
