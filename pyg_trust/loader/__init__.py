"""Loaders in PyG's form."""

from pyg_trust.loader.disjoint_walk_loader import DisjointWalkLoader

__all__ = ['DisjointWalkLoader']
