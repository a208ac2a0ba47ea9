"""List every registry, all extension points on one page.

Each is a mapping of names to functions or classes, and takes more of them:

.. code-block:: python

    from pyg_trust.registries import MEASURES

    @MEASURES.register('mine')
    def mine(alpha): ...

========================= ====================================================
registry                  named by
========================= ====================================================
:obj:`MEASURES`           ``measure`` of :class:`~pyg_trust.transforms.AGP`
                          and all else that propagates
:obj:`WAVELETS`           ``wavelet`` of graph scattering
:obj:`PARTITIONS`         ``method`` of :class:`~pyg_trust.transforms.Shards`,
                          ``partition`` of the sharded unlearner
:obj:`AGGREGATORS`        ``aggregator`` of the sharded unlearner
:obj:`ACCOUNTANTS`        ``accountant`` of private training
:obj:`NOISES`             ``noise`` of private training
:obj:`ATTACKS`            ``tests`` of :func:`~pyg_trust.audit.audit_removal`
:obj:`LAYER_RULES`        torch functions that use parameters row by row, in
                          private training
:obj:`CERTIFICATES`       kinds of threats, for
                          :func:`~pyg_trust.certificates.certify`
========================= ====================================================

:obj:`NOISES` is read by :class:`~pyg_trust.privacy.PrivacyEngine` alone: the
noise of :class:`~pyg_trust.transforms.PrivateAGP` and
:class:`~pyg_trust.privacy.PrivateNodeClassifier` is of the operating system's
generator, whatever is registered.

A name that is taken stays what it is. What a user registers is not checked by
this package: reports that rest on it say so, and guarantees that are proved
for one entry alone (the ``'hash'`` partition, the votes of ``'majority'``)
are not given for another.
"""

import importlib
from typing import Any

_HOMES = {
    'ACCOUNTANTS': 'privacy.accountant',
    'ATTACKS': 'audit.attacks',
    'AGGREGATORS': 'nn.shard_aggregator',
    'CERTIFICATES': 'certificates.certify',
    'LAYER_RULES': 'privacy.layer_rules',
    'MEASURES': 'functional.measures',
    'NOISES': 'noise',
    'PARTITIONS': 'transforms.shards',
    'WAVELETS': 'functional.wavelets',
}


def __getattr__(name: str) -> Any:
    # From where all entries of this package are registered.
    if name in _HOMES:
        module = importlib.import_module(f'pyg_trust.{_HOMES[name]}')
        return getattr(module, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted(_HOMES)
