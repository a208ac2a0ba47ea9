"""Trustworthy graph learning for PyTorch Geometric."""

import importlib
from typing import Any

__version__ = '0.2.0.dev0'

_MODULES = (
    *('agp', 'audit', 'certificates', 'check', 'erasure', 'functional'),
    *('ledger', 'loader', 'nn', 'noise', 'privacy', 'removal', 'report'),
    *('sampler', 'scattering', 'transforms', 'unit', 'unlearning', 'update'),
)


def __getattr__(name: str) -> Any:
    # pyg_trust.transforms works after `import pyg_trust`, which stays quick.
    if name in _MODULES:
        return importlib.import_module(f'{__name__}.{name}')
    if name == 'progress':
        return importlib.import_module(f'{__name__}._progress').progress
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, 'progress'})
