"""Names and arguments of 0.1 that still work for one release."""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar('F', bound=Callable[..., None])

# By package: the old name, and the module below pyg_trust that has it; with
# the new name behind a colon, if there is one.
_MOVED: dict[str, dict[str, str]] = {
    'functional': {
        'AUC': 'functional.attacks',
        'BudgetBound': 'functional.budget',
        'DisjointWalks': 'functional.walks',
        'Optimum': 'functional.policy',
        'PartitionLosses': 'functional.partition_methods',
        'PartitionQuality': 'functional.partition_methods',
        'Plan': 'functional.estimates',
        'Policy': 'functional.perturbations',
        'ScatteringPath': 'functional.scattering',
        'SingleFlip': 'functional.flips',
        'SweepCut': 'functional.clustering',
        'WorstCase': 'functional.policy',
        'attention': 'functional.aggregate',
        'auc_interval': 'functional.attacks',
        'budget_attacks': 'functional.flips',
        'calibrate_lam': 'functional.accounting:calibrate_wor',
        'check_partition': 'functional.partition',
        'check_walks': 'functional.walks',
        'clip_budget': 'functional.budget',
        'dual_bound': 'functional.budget',
        'fdp_sensitivity': 'functional.mechanisms',
        'fdp_terms': 'functional.mechanisms',
        'frame_bounds': 'functional.wavelets',
        'fuse': 'functional.aggregate',
        'gaussian_profile': 'functional.mechanisms',
        'graph_fourier': 'functional.scattering',
        'hessian_solve': 'functional.heads',
        'info_nce': 'functional.aggregate',
        'itersine': 'functional.wavelets',
        'lazy_walk': 'functional.wavelets',
        'max_size': 'functional.walks',
        'max_steps': 'functional.accounting',
        'mean_probability': 'functional.aggregate',
        'min_subgraphs': 'functional.walks',
        'minimize': 'functional.newton',
        'monic_cubic': 'functional.wavelets',
        'num_paths': 'functional.scattering_batch',
        'paper_bound': 'functional.removal_bounds',
        'partition_from_lists': 'functional.partition',
        'partition_losses': 'functional.partition_methods',
        'partition_quality': 'functional.partition_methods',
        'plan': 'functional.estimates',
        'policy_value': 'functional.policy',
        'propagate_median': 'functional.estimates',
        'prune_bound': 'functional.queries',
        'rdp_coupled': 'functional.mechanisms',
        'rdp_epsilon': 'functional.accounting',
        'rdp_fdp': 'functional.mechanisms',
        'rdp_gaussian': 'functional.mechanisms',
        'rdp_wang': 'functional.mechanisms',
        'rdp_wor': 'functional.mechanisms',
        'rdp_wor_profile': 'functional.mechanisms',
        'reconstruction_loss': 'functional.aggregate',
        'refine_pagerank_bounds': 'functional.budget',
        'round_partition': 'functional.partition_methods',
        'scattering_path': 'functional.scattering',
        'shard_limits': 'functional.partition',
        'shard_sizes': 'functional.partition',
        'single_flip_margins': 'functional.flips',
        'tight_bound': 'functional.removal_bounds',
        'training_graph': 'functional.partition',
        'uniform_signal': 'functional.clustering',
        'weighted_log_probability': 'functional.aggregate',
        'wor_epsilon_pld': 'functional.accounting',
        'wor_epsilon_rdp': 'functional.accounting',
        'wor_profile': 'functional.mechanisms',
    },
    'privacy': {
        'AuditReport': 'audit:PrivacyAudit',
        'ClippedSum': 'privacy.bounds',
        'PrivateLoader': 'privacy.loading',
        'PrivateModule': 'privacy.wrappers',
        'PrivateOptimizer': 'privacy.wrappers',
        'Tape': 'privacy.gradients',
        'audit_training': 'audit',
        'canary_graph': 'audit',
        'empirical_epsilon': 'audit',
        'register_accountants': 'privacy.accountant',
    },
    'unlearning': {
        'MembershipReport': 'audit',
        'ShardPlan': 'unlearning.shards',
        'ShardVerifyReport': 'unlearning.shards',
        'membership_inference': 'audit',
    },
}


def moved(package: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package from which names have moved."""
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


def retired(**arguments: tuple[Any, ...] | None) -> Callable[[F], F]:
    """Decorate a constructor to drop arguments of 0.1, with a warning.

    Args:
        **arguments (tuple, optional): by argument, the values that ask for
            what the constructor does anyway; :obj:`None` if all do.
    """

    def decorate(init: F) -> F:
        @functools.wraps(init)
        def accept(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in [name for name in arguments if name in kwargs]:
                value, known = kwargs.pop(name), arguments[name]
                if known is not None and value not in list(known):
                    raise ValueError(
                        f"'{name}' needs to be one of {known} (got {value!r})"
                    )
                warnings.warn(
                    f"'{name}' of {type(self).__name__} goes with the next "
                    'release: leave it out',
                    DeprecationWarning,
                    stacklevel=2,
                )
            return init(self, *args, **kwargs)

        return accept  # type: ignore[return-value]

    return decorate


def renamed(**arguments: str) -> Callable[[F], F]:
    """Decorate a constructor to take arguments by their names of 0.1, too.

    Args:
        **arguments (str): the new name, by the old one.
    """

    def decorate(init: F) -> F:
        @functools.wraps(init)
        def accept(self: Any, *args: Any, **kwargs: Any) -> None:
            for old in [name for name in arguments if name in kwargs]:
                new = arguments[old]
                if new in kwargs:
                    raise TypeError(f"'{old}' is '{new}' now: leave it out")
                warnings.warn(
                    f"'{old}' of {type(self).__name__} is '{new}' now, and "
                    'goes with the next release',
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[new] = kwargs.pop(old)
            return init(self, *args, **kwargs)

        return accept  # type: ignore[return-value]

    return decorate
