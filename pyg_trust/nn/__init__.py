"""PyG layers and models."""

from pyg_trust.nn.agp_conv import APPNP, SGConv
from pyg_trust.nn.ppnp import (
    PPNP,
    FeaturePropagation,
    LabelPropagation,
    PageRankDiffusion,
)

__all__ = [
    'APPNP',
    'PPNP',
    'FeaturePropagation',
    'LabelPropagation',
    'PageRankDiffusion',
    'SGConv',
]
