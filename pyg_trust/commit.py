"""Moved to :mod:`pyg_trust.files.commit`; gone with the next release."""

from pyg_trust._moved import moved_module

__getattr__ = moved_module(__name__)
