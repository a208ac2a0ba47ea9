"""Names of 0.1 that have moved: they work for one release, with a warning."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

# By package: from the old name to the module, below pyg_trust, that has it;
# with the new name behind a colon, if there is one.
_MOVED: dict[str, dict[str, str]] = {
    'privacy': {
        'AuditReport': 'audit:PrivacyAudit',
        'MuAuditReport': 'audit:PrivacyAudit',
        'audit': 'audit:audit_function',
        'audit_aggregation': 'audit',
        'audit_training': 'audit',
        'canary_graph': 'audit',
        'empirical_epsilon': 'audit',
        'empirical_mu': 'audit',
    },
    'unlearning': {
        'AuditReport': 'audit:RemovalAudit',
        'AuditRow': 'audit',
        'MembershipReport': 'audit',
        'NodeSubject': 'audit',
        'RetrainSubject': 'audit',
        'ScatteringSubject': 'audit',
        'ShardedSubject': 'audit',
        'Subject': 'audit',
        'audit_removal': 'audit',
        'membership_inference': 'audit',
    },
}


def moved(package: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package that finds names that moved.

    Args:
        package (str): its full name.
    """
    names = _MOVED[package.removeprefix('pyg_trust.')]

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(
                f'module {package!r} has no attribute {name!r}'
            )
        module, _, new = names[name].partition(':')
        module, new = f'pyg_trust.{module}', new or name
        warnings.warn(
            f'{package}.{name} has moved and will leave this package with '
            f'the next release: import {new} from {module}',
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), new)

    return find
