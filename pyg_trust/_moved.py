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
        'CertifiedVotes': 'functional.voting',
        'Chebyshev': 'functional.chebyshev',
        'CollectiveVotes': 'functional.voting',
        'DisjointWalks': 'functional.walks',
        'FlipRegions': 'functional.smoothing',
        'HaloGraph': 'functional.halo',
        'MemoryPlan': 'functional.out_of_core',
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
        'choose_receivers': 'functional.receivers',
        'clip_budget': 'functional.budget',
        'column_norms': 'functional.private_propagation',
        'compose_shifts': 'functional.shifts',
        'contraction_mu': 'functional.private_accounting',
        'draw_runs': 'functional.selection',
        'dual_bound': 'functional.budget',
        'energy_weights': 'functional.private_propagation',
        'fdp_sensitivity': 'functional.mechanisms',
        'fdp_terms': 'functional.mechanisms',
        'frame_bounds': 'functional.wavelets',
        'fuse': 'functional.aggregate',
        'gaussian_profile': 'functional.mechanisms',
        'graph_fourier': 'functional.scattering',
        'group_probability_bound': 'functional.voting',
        'hessian_solve': 'functional.heads',
        'holm': 'functional.attacks',
        'info_nce': 'functional.aggregate',
        'itersine': 'functional.wavelets',
        'joint_regions': 'functional.smoothing',
        'lazy_walk': 'functional.wavelets',
        'max_size': 'functional.walks',
        'max_steps': 'functional.accounting',
        'mean_probability': 'functional.aggregate',
        'min_probability_table': 'functional.smoothing',
        'min_subgraphs': 'functional.walks',
        'minimize': 'functional.newton',
        'monic_cubic': 'functional.wavelets',
        'num_paths': 'functional.scattering_batch',
        'paper_bound': 'functional.removal_bounds',
        'partition_from_lists': 'functional.partition',
        'partition_losses': 'functional.partition_methods',
        'partition_quality': 'functional.partition_methods',
        'permutation_test': 'functional.attacks',
        'plan': 'functional.estimates',
        'poisson_profile': 'functional.poisson',
        'policy_value': 'functional.policy',
        'propagate_median': 'functional.estimates',
        'prune_bound': 'functional.queries',
        'rdp_coupled': 'functional.mechanisms',
        'rdp_delta': 'functional.selection',
        'rdp_epsilon': 'functional.accounting',
        'rdp_fdp': 'functional.mechanisms',
        'rdp_gaussian': 'functional.mechanisms',
        'rdp_poisson': 'functional.poisson',
        'rdp_select': 'functional.selection',
        'rdp_wang': 'functional.mechanisms',
        'rdp_wor': 'functional.mechanisms',
        'rdp_wor_profile': 'functional.mechanisms',
        'received_lists': 'functional.receivers',
        'reconstruction_loss': 'functional.aggregate',
        'refine_pagerank_bounds': 'functional.budget',
        'round_partition': 'functional.partition_methods',
        'scaled_propagate': 'functional.private_propagation',
        'scattering_path': 'functional.scattering',
        'shard_limits': 'functional.partition',
        'shard_sizes': 'functional.partition',
        'shift_epsilon': 'functional.shifts',
        'single_flip_margins': 'functional.flips',
        'survives_votes': 'functional.voting',
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
        'MuAuditReport': 'audit:PrivacyAudit',
        'PrivateLoader': 'privacy.loading',
        'PrivateModule': 'privacy.wrappers',
        'PrivateOptimizer': 'privacy.wrappers',
        'Proposal': 'privacy.planning',
        'SamplingReport': 'privacy.planning',
        'Tape': 'privacy.gradients',
        'audit': 'audit:audit_function',
        'audit_aggregation': 'audit',
        'audit_training': 'audit',
        'canary_graph': 'audit',
        'empirical_epsilon': 'audit',
        'empirical_mu': 'audit',
        'register_accountants': 'privacy.accountant',
        'search_epsilon': 'privacy.planning',
    },
    'unlearning': {
        'AuditReport': 'audit:RemovalAudit',
        'AuditRow': 'audit',
        'MembershipReport': 'audit',
        'NodeAdditionReport': 'unlearning.reports',
        'NodePlan': 'unlearning.reports',
        'NodeSubject': 'audit',
        'RecommenderPlan': 'unlearning.reports',
        'RecommenderVerifyReport': 'unlearning.reports',
        'RetrainSubject': 'audit',
        'ScatteringSubject': 'audit',
        'ShardPlan': 'unlearning.shards',
        'ShardVerifyReport': 'unlearning.shards',
        'ShardedSubject': 'audit',
        'Subject': 'audit',
        'audit_removal': 'audit',
        'membership_inference': 'audit',
    },
}

# Modules, by their old names.
MODULES = {
    'commit': 'files.commit',
    'seals': 'files.seals',
    'sparse': 'graph.sparse',
}


def moved_module(module: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module whose contents have moved.

    Args:
        module (str): the full name of the old module.
    """
    package, _, last = module.rpartition('.')
    home = f'{package}.{MODULES[last]}'

    def find(name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(f'module {module!r} has no {name!r}')
        value = getattr(importlib.import_module(home), name)
        warnings.warn(
            f'{module} has moved and will leave this package with the next '
            f'release: import {name} from {home}',
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return find


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


def retired(**arguments: dict[Any, str] | None) -> Callable[[F], F]:
    """Decorate a constructor to accept arguments of 0.1.

    Args:
        **arguments (dict, optional): by argument, for each value the class,
            below pyg_trust, that has the method now, as ``'module:Class'``,
            or an empty text if this class does the same without the argument;
            :obj:`None` for arguments of any value that have no effect.
    """

    def decorate(init: F) -> F:
        @functools.wraps(init)
        def accept(self: Any, *args: Any, **kwargs: Any) -> None:
            home = ''
            for name, known in arguments.items():
                if home or name not in kwargs:
                    continue
                value = kwargs[name]
                if known is not None and value not in list(known):
                    raise ValueError(
                        f"'{name}' needs to be one of {tuple(known)} "
                        f'(got {value!r})'
                    )
                home = '' if known is None else known[value]
                if home and '__init__' not in vars(type(self)):
                    raise ValueError(
                        f"'{name}' = {value!r} needs a subclass of "
                        f'pyg_trust.{home.replace(":", ".")}'
                    )
                del kwargs[name]
                advice = f'use pyg_trust.{home.replace(":", ".")}'
                warnings.warn(
                    f"'{name}' of {type(self).__name__} goes with the next "
                    f'release: {advice if home else "leave it out"}',
                    DeprecationWarning,
                    stacklevel=2,
                )
            if not home:
                return init(self, *args, **kwargs)
            module, _, kind = home.partition(':')
            found = importlib.import_module(f'pyg_trust.{module}')
            self.__class__ = getattr(found, kind)
            return self.__init__(*args, **kwargs)

        return accept  # type: ignore[return-value]

    return decorate
