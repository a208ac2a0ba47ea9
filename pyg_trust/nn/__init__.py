"""PyG layers and models."""

from pyg_trust.nn.agp_conv import APPNP, SGConv

__all__ = ['APPNP', 'SGConv']
