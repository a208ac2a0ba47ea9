"""PyG layers and models."""

from pyg_trust.nn.ppnp import (
    PPNP,
    FeaturePropagation,
    LabelPropagation,
    PageRankDiffusion,
)

__all__ = [
    'PPNP',
    'FeaturePropagation',
    'LabelPropagation',
    'PageRankDiffusion',
]
