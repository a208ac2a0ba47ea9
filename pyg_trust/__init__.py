"""Trustworthy graph learning for PyTorch Geometric."""

import importlib
from types import ModuleType

__version__ = '0.2.0.dev0'

_PACKAGES = (
    'agp',
    'audit',
    'certificates',
    'functional',
    'loader',
    'nn',
    'privacy',
    'sampler',
    'scattering',
    'transforms',
    'unlearning',
)


def __getattr__(name: str) -> ModuleType:
    # pyg_trust.transforms works after `import pyg_trust`, which stays quick.
    if name in _PACKAGES:
        return importlib.import_module(f'{__name__}.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES})
