"""PyG transforms."""

from pyg_trust.transforms.agp import AGP
from pyg_trust.transforms.gdc import GDC

__all__ = ['AGP', 'GDC']
