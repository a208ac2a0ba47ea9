"""Names and arguments of 0.1 that still work for one release."""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar('F', bound=Callable[..., Any])

# By package: the old name, and the module below pyg_trust that has it; with
# the new name behind a colon, if there is one.
_MOVED: dict[str, dict[str, str]] = {
    'functional': {
        'Measure': 'agp',
        'Perturbations': 'certificates',
        'appnp': 'agp',
        'bekm': 'unlearning',
        'blpa': 'unlearning',
        'calibrate_poisson': 'privacy',
        'certified': 'certificates',
        'certified_mean': 'certificates',
        'certified_votes': 'certificates',
        'chebyshev': 'agp',
        'class_messages': 'privacy',
        'clip_factors': 'privacy',
        'clopper_pearson': 'certificates',
        'collective_votes': 'certificates',
        'diffuse': 'certificates',
        'diffusion_error': 'certificates',
        'disjoint_walks': 'sampler.walks',
        'eps_for': 'agp',
        'flip_regions': 'certificates',
        'gaussian_budget': 'unlearning',
        'gaussian_epsilon': 'privacy',
        'gaussian_mu': 'privacy',
        'gaussian_mu_for': 'privacy',
        'group_wor_epsilon': 'privacy',
        'group_wor_profile': 'privacy',
        'hash_partition': 'unlearning',
        'heat': 'agp',
        'hkpr': 'agp',
        'hop_sensitivity': 'privacy',
        'katz': 'agp',
        'lam_from_opacus': 'privacy',
        'lam_to_opacus': 'privacy',
        'linear_program': 'certificates',
        'majority_vote': 'unlearning',
        'make_measure': 'agp',
        'messages': 'privacy',
        'metis_partition': 'unlearning',
        'min_probability': 'certificates',
        'pagerank': 'agp',
        'pagerank_bounds': 'certificates',
        'plan_memory': 'agp',
        'poisson_epsilon': 'privacy',
        'policy_iteration': 'certificates',
        'ppr': 'agp',
        'private_propagate': 'privacy',
        'private_quantile': 'privacy',
        'propagate': 'agp',
        'propagate_halo': 'agp',
        'propagate_to': 'agp',
        'query': 'agp',
        'random_partition': 'unlearning',
        'rdp_group_wor': 'privacy',
        'removal_budget': 'unlearning',
        'robust_margins': 'certificates',
        'scattering_transform': 'scattering',
        'sgc': 'agp',
        'single_target': 'agp',
        'sweep_cut': 'agp',
        'transition': 'agp',
        'variance_bound': 'agp',
        'wavelet_bank': 'scattering',
        'wor_epsilon': 'privacy',
        'worst_case_margins': 'certificates',
        'worst_case_probability': 'certificates',
        'AUC': 'audit.scores',
        'BudgetBound': 'certificates.budget',
        'DisjointWalks': 'sampler.walks',
        'Optimum': 'certificates.policy',
        'PartitionLosses': 'unlearning.partition',
        'PartitionQuality': 'unlearning.partition',
        'Plan': 'agp.estimates',
        'Policy': 'certificates.perturbations',
        'SweepCut': 'agp.clustering',
        'WorstCase': 'certificates.policy',
        'attention': 'unlearning.aggregate',
        'auc_interval': 'audit.scores',
        'check_partition': 'unlearning.partition',
        'check_walks': 'sampler.walks',
        'clip_budget': 'certificates.budget',
        'dual_bound': 'certificates.budget',
        'fdp_terms': 'privacy.mechanisms',
        'fuse': 'unlearning.aggregate',
        'gaussian_profile': 'privacy.mechanisms',
        'info_nce': 'unlearning.aggregate',
        'itersine': 'scattering.wavelets',
        'lazy_walk': 'scattering.wavelets',
        'max_size': 'sampler.walks',
        'mean_probability': 'unlearning.aggregate',
        'min_subgraphs': 'sampler.walks',
        'minimize': 'unlearning.newton',
        'monic_cubic': 'scattering.wavelets',
        'num_paths': 'scattering.batch',
        'paper_bound': 'unlearning.published',
        'partition_from_lists': 'unlearning.partition',
        'partition_losses': 'unlearning.partition',
        'partition_quality': 'unlearning.partition',
        'plan': 'agp.estimates',
        'policy_value': 'certificates.policy',
        'propagate_median': 'agp.estimates',
        'prune_bound': 'agp.queries',
        'rdp_epsilon': 'privacy.accounting',
        'rdp_fdp': 'privacy.mechanisms',
        'rdp_wor': 'privacy.mechanisms',
        'rdp_wor_profile': 'privacy.mechanisms',
        'reconstruction_loss': 'unlearning.aggregate',
        'round_partition': 'unlearning.partition',
        'shard_limits': 'unlearning.partition',
        'shard_sizes': 'unlearning.partition',
        'tight_bound': 'unlearning.published',
        'training_graph': 'unlearning.partition',
        'uniform_signal': 'agp.clustering',
        'weighted_log_probability': 'unlearning.aggregate',
        'wor_profile': 'privacy.mechanisms',
    },
    'privacy': {
        'AuditReport': 'audit:PrivacyAudit',
        'PrivateLoader': 'privacy.wrappers',
        'PrivateModule': 'privacy.wrappers',
        'PrivateOptimizer': 'privacy.wrappers',
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


def moved(
    package: str, rest: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package from which names have moved.

    All names that have not moved are left to ``rest``.
    """
    names = _MOVED[package.removeprefix('pyg_trust.')]

    def find(name: str) -> Any:
        if name not in names and rest is not None:
            return rest(name)
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
    return _adapted(arguments, {})


def renamed(**arguments: str) -> Callable[[F], F]:
    """Decorate a constructor to take arguments by their names of 0.1, too.

    Args:
        **arguments (str): the new name, by the old one.
    """
    return _adapted({}, arguments)


def _adapted(
    gone: dict[str, tuple[Any, ...] | None], names: dict[str, str]
) -> Callable[[F], F]:
    def decorate(init: Any) -> Any:
        def accept(self: Any, *args: Any, **kwargs: Any) -> Any:
            said, kind = [], type(self).__name__
            for name in [name for name in kwargs if name in gone]:
                value, known = kwargs.pop(name), gone[name]
                if known is not None and value not in list(known):
                    raise ValueError(
                        f"'{name}' needs to be one of {known} (got {value!r})"
                    )
                said.append(
                    f"'{name}' of {kind} goes with the next release: leave it "
                    'out'
                )
            for old in [name for name in kwargs if name in names]:
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"'{old}' is '{new}' now: leave it out")
                kwargs[new] = kwargs.pop(old)
                said.append(
                    f"'{old}' of {kind} is '{new}' now, and goes with the "
                    'next release'
                )
            for text in said:
                warnings.warn(text, DeprecationWarning, made.level)
            return init(self, *args, **kwargs)

        # The caller's frame, and for those who look arguments up the new
        # names, '' for none.
        made: Any = functools.wraps(init)(accept)
        made.level = 2
        if hasattr(init, 'level'):
            init.level += 1
        given = {**dict.fromkeys(gone, ''), **names}
        made.new = {**getattr(init, 'new', {}), **given}
        return made

    return decorate
