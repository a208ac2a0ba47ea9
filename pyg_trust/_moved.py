"""Names and arguments of 0.1 that still work for one release."""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar('F', bound=Callable[..., Any])


def _read(text: str) -> dict[str, str]:
    # Each name with the module that has it, and the new name behind a colon.
    found, module = {}, ''
    for word in text.split():
        if word.endswith(':'):
            module = word[:-1]
        else:
            old, _, new = word.partition('=')
            found[old] = f'{module}:{new or old}'
    return found


# By package: the modules below pyg_trust, each before the names that it has.
_MOVED = {
    package: _read(text)
    for package, text in {
        'functional': """
agp: Measure appnp chebyshev eps_for heat hkpr katz make_measure pagerank
plan_memory ppr propagate propagate_halo propagate_to query sgc single_target
sweep_cut transition variance_bound agp.clustering: SweepCut uniform_signal
agp.queries: prune_bound
audit.scores: AUC auc_interval certificates: Perturbations certified
certified_mean certified_votes clopper_pearson collective_votes diffuse
diffusion_error flip_regions linear_program min_probability pagerank_bounds
policy_iteration robust_margins worst_case_margins worst_case_probability
certificates.budget: BudgetBound clip_budget dual_bound
certificates.perturbations: Policy certificates.policy: Optimum WorstCase
policy_value privacy: class_messages clip_factors
gaussian_epsilon gaussian_mu_for group_wor_epsilon
group_wor_profile hop_sensitivity messages
poisson_epsilon private_propagate private_quantile rdp_group_wor wor_epsilon
privacy.accounting: rdp_epsilon privacy.mechanisms: fdp_terms gaussian_profile
rdp_fdp rdp_wor rdp_wor_profile wor_profile sampler.walks: DisjointWalks
check_walks disjoint_walks max_size min_subgraphs scattering:
scattering_transform wavelet_bank scattering.batch: num_paths
scattering.wavelets: itersine lazy_walk monic_cubic unlearning: bekm blpa
gaussian_budget hash_partition majority_vote metis_partition random_partition
removal_budget unlearning.aggregate: attention fuse info_nce mean_probability
reconstruction_loss weighted_log_probability unlearning.newton: minimize
unlearning.partition: PartitionLosses PartitionQuality check_partition
partition_from_lists partition_losses partition_quality round_partition
shard_limits shard_sizes training_graph unlearning.published: paper_bound
tight_bound
""",
        'privacy': """
audit: AuditReport=PrivacyAudit audit_training canary_graph empirical_epsilon
privacy.wrappers: PrivateLoader
PrivateModule PrivateOptimizer
""",
        'unlearning': """
audit: MembershipReport membership_inference unlearning.shards: ShardPlan
ShardVerifyReport
""",
    }.items()
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
        @functools.wraps(init)
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
                warnings.warn(text, DeprecationWarning, accept.level)
            return init(self, *args, **kwargs)

        # The caller's frame, and for those who look arguments up the new
        # names, '' for none.
        accept.level = 2
        if hasattr(init, 'level'):
            init.level += 1
        given = {**dict.fromkeys(gone, ''), **names}
        accept.new = {**getattr(init, 'new', {}), **given}
        return accept

    return decorate
