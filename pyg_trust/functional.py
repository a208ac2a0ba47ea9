"""The names of ``pyg_trust.functional`` of 0.1, for one release."""

from pyg_trust._moved import moved

__getattr__ = moved(__name__)
