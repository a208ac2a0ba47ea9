"""Samplers in PyG's form."""

from pyg_trust.sampler.disjoint_walk_sampler import DisjointWalkSampler
from pyg_trust.sampler.ego_sampler import EgoSampler

__all__ = ['DisjointWalkSampler', 'EgoSampler']
