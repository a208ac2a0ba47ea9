"""Trustworthy graph learning for PyTorch Geometric.

- :mod:`pyg_trust.privacy`: train with differential privacy, with the loaders
  of :mod:`pyg_trust.loader`.
- :mod:`pyg_trust.certificates`: prove that predictions cannot be flipped.
- :mod:`pyg_trust.unlearning`: remove people from a trained model;
  :mod:`pyg_trust.erasure` does so for many requests and models.
- :mod:`pyg_trust.transforms`: propagate features over a graph (``AGP``).
- :mod:`pyg_trust.report`, :mod:`pyg_trust.check` and :mod:`pyg_trust.audit`:
  show guarantees to others, check them, and attack them.

The page "Which guarantee do I need?" in ``docs/which.rst`` is the place to
start.
"""

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
