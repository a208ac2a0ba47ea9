"""PyG transforms."""

from pyg_trust.transforms.graph_scattering import (
    GFT,
    GraphEmbedding,
    GraphScattering,
)

__all__ = ['GFT', 'GraphEmbedding', 'GraphScattering']
