"""Scattering transforms of graphs, and their wavelets."""

from .transform import scattering_transform as scattering_transform
from .wavelets import wavelet_bank as wavelet_bank

__all__ = ['scattering_transform', 'wavelet_bank']
