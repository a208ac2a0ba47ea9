"""Names and arguments of 0.1 that still work for one release."""

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar('F', bound=Callable[..., Any])
_PLACE = os.path.dirname(__file__) + os.sep


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
agp: Measure appnp chebyshev heat hkpr katz make_measure pagerank
plan_memory ppr propagate propagate_halo propagate_to query sgc single_target
sweep_cut transition variance_bound agp.clustering: SweepCut uniform_signal
agp.queries: prune_bound
audit.statistics: AUC auc_interval certificates: certified_mean certified_votes
collective_votes certificates.budget: BudgetBound dual_bound linear_program
pagerank_bounds certificates.diffusion: diffuse
certificates.policy: Optimum policy_iteration policy_value
certificates.smoothing: certified clopper_pearson flip_regions min_probability
worst_case_probability certificates.threat: Perturbations Policy
privacy: class_messages clip_factors gaussian_epsilon gaussian_mu_for
group_wor_epsilon hop_sensitivity messages
poisson_epsilon private_propagate rdp_group_wor wor_epsilon
privacy.accounting: rdp_epsilon privacy.mechanisms: fdp_terms gaussian_profile
rdp_fdp rdp_wor rdp_wor_profile wor_profile sampler.walks: DisjointWalks
disjoint_walks max_size min_subgraphs scattering:
scattering_transform wavelet_bank scattering.batch: num_paths
scattering.wavelets: itersine lazy_walk monic_cubic unlearning: bekm blpa
gaussian_budget hash_partition majority_vote metis_partition random_partition
removal_budget unlearning.aggregate: attention fuse info_nce mean_probability
reconstruction_loss weighted_log_probability unlearning.heads: minimize
unlearning.partition: PartitionLosses check_partition partition_from_lists
partition_losses round_partition
shard_limits shard_sizes training_graph unlearning.published: paper_bound
tight_bound
""",
        'privacy': """
audit: AuditReport=PrivacyAudit audit_training canary_graph empirical_epsilon
privacy.wrappers: PrivateLoader
PrivateModule PrivateOptimizer
""",
        'unlearning': """
audit: MembershipReport membership_inference unlearning.reports:
LinkUnlearnReport=ForgetReport NodeUnlearnReport=ForgetReport
NodeVerifyReport=VerifyReport RecommenderReport=ForgetReport
ShardPlan=ForgetPlan ShardRemovalReport=ForgetReport
ShardVerifyReport=VerifyReport UnlearnReport=ForgetReport
""",
    }.items()
}

# By package: names of 0.1 that are gone, each with what to call instead.
_GONE = {
    'functional': {
        **dict.fromkeys(
            ('WorstCase', 'worst_case_margins'),
            'certify(logits, threat).class_margins',
        ),
        'robust_margins': 'RobustLoss(threat)',
        'group_wor_profile': 'pyg_trust.privacy.group_wor_epsilon(...)',
        'eps_for': 'pyg_trust.agp.variance_bound(graph, x, measure, eps)',
    },
    'privacy': {
        'WORAccountant': 'PLDAccountant or RDPAccountant',
        'calibrate_poisson': 'PoissonAccountant().noise_multiplier_for(...)',
        'gaussian_mu': 'math.hypot(*(sensitivity / std ...))',
        'lam_from_opacus': 'noise_multiplier / 2',
        'private_quantile': 'AdaptiveNorm, which follows a noisy quantile,',
        'lam_to_opacus': '2 * lam, which is noise_multiplier',
        'register_accountants': 'create_accountant(name)',
    },
}

# Fields of reports by their names of 0.1; of two, that which the report has.
_FIELDS = {
    'relation': ('adjacency', 'neighboring'),
    'form': ('neighboring',),
    'hops': ('num_sums', 'K'),
    'fingerprint': ('run_sha256',),
    'model_digest': ('model_sha256',),
    'data': ('data_sha256',),
    'weights': ('weights_sha256',),
    'model': ('weights_sha256',),
}


def old_field(report: Any, name: str) -> Any:
    """Return a field that had another name in 0.1, with a warning."""
    kind = type(report).__name__
    for new in _FIELDS.get(name, ()):
        if new in vars(report):
            _warn([f"'{name}' of {kind} is '{new}' now"])
            return getattr(report, new)
    raise AttributeError(f'{kind!r} object has no attribute {name!r}')


def moved(
    package: str, rest: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package from which names have moved.

    All names that have not moved are left to ``rest``.
    """
    short = package.removeprefix('pyg_trust.')
    names, gone = _MOVED[short], _GONE.get(short, {})

    def find(name: str) -> Any:
        if name in gone:
            raise AttributeError(
                f'{package}.{name} is gone: use {gone[name]} instead'
            )
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
    """Decorate a constructor or function to take names of 0.1, too.

    Args:
        **arguments (str): the new name, by the old one.
    """
    return _adapted({}, arguments)


def _adapted(
    gone: dict[str, tuple[Any, ...] | None], names: dict[str, str]
) -> Callable[[F], F]:
    def decorate(init: Any) -> Any:
        def accept(*args: Any, **kwargs: Any) -> Any:
            said, kind = [], init.__name__
            if kind == '__init__':
                kind = type(args[0]).__name__
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
            said += _new_names(kwargs, names, kind)
            _warn(said)
            return init(*args, **kwargs)

        # For those who look arguments up: the new names, '' for none.
        made: Any = functools.wraps(init)(accept)
        given = {**dict.fromkeys(gone, ''), **names}
        made.new = {**getattr(init, 'new', {}), **given}
        return made

    return decorate


def by_new_names(options: dict[str, Any], of: Any) -> None:
    """Rename options that a decorated function has other names for now."""
    _warn(_new_names(options, getattr(of, 'new', {}), of.__name__))


def _warn(texts: list[str]) -> None:
    # At the line that called the package.
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_code.co_filename.startswith(_PLACE):
        frame, level = frame.f_back, level + 1
    for text in texts:
        warnings.warn(text, DeprecationWarning, level)


def _new_names(
    given: dict[str, Any], names: dict[str, str], kind: str
) -> list[str]:
    said = []
    for old in [name for name in given if name in names]:
        new = names[old]
        if new in given:
            raise TypeError(f"'{old}' is '{new}' now: leave it out")
        given[new] = given.pop(old)
        said.append(
            f"'{old}' of {kind} is '{new}' now, and goes with the next release"
        )
    return said
