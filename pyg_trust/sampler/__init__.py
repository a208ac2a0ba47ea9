"""Samplers in PyG's form."""

from pyg_trust.sampler.disjoint_walk_sampler import DisjointWalkSampler

__all__ = ['DisjointWalkSampler']
