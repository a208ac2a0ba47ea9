"""Trustworthy graph learning for PyTorch Geometric."""

__version__ = '0.1.0'
