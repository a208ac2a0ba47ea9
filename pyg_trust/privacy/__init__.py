"""Differential privacy of the rows of the features."""

import lazy_loader

from pyg_trust._moved import moved

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = moved(__name__, _find)
