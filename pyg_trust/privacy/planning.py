r"""Plans for a budget, and searches for settings that are accounted for.

A search runs a private training :math:`K` times, with settings drawn at
random, and releases the run with the best score alone. A secret random
:math:`K \ge 1` of the truncated negative binomial distribution costs a small
multiple of one run (`Papernot and Steinke 2022
<https://arxiv.org/abs/2110.03620>`_).
"""

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakSet

import numpy as np
from torch import nn

from pyg_trust import noise, rng
from pyg_trust._checks import (
    Count,
    Fraction,
    OneOf,
    Positive,
    Rate,
    check_instance,
    check_number,
    validated,
)
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy.accountant import (
    GROUP,
    GROUP_WOR,
    POISSON,
    Accountant,
    create_accountant,
    epsilon_over_time,
)
from pyg_trust.privacy.accounting import ORDERS, rdp_epsilon
from pyg_trust.privacy.engine import PrivacyEngine
from pyg_trust.privacy.mechanisms import Orders, check_rdp
from pyg_trust.privacy.report import PrivacyReport, vouched
from pyg_trust.report import Report, fingerprint_model
from pyg_trust.report.charts import Chart
from pyg_trust.report.claimed import ClaimedReport, claimed
from pyg_trust.verify.claims import outwards

__all__ = [
    'Proposal',
    'SearchReport',
    'draw_runs',
    'propose',
    'rdp_select',
    'search',
    'search_epsilon',
]

Train = Callable[[Any], tuple[PrivacyEngine, float]]

_NUMBER, _CHOICE = 0, 1
# By sampling: the accountant of disjoint units, and that of overlapping ones.
LAWS = {
    'without_replacement': ('pld_wor', GROUP_WOR),
    'poisson': (POISSON, GROUP),
}
BEST = 'best'
# A plan's noise, in that of all units in every batch.
_SLACK = 1.1
_ROUNDED = 1 + 1e-9
# The most runs that are drawn, and the least mean above one run.
_MOST = 10**7
_ONE = 1 + 1e-6


@dataclass(frozen=True)
class Proposal(Report):
    r"""Settings of a private training for a budget, from public numbers.

    Args:
        batch_size (int): :math:`m`.
        steps (int): the number of steps.
        noise_multiplier (float): Opacus' :math:`\sigma / C`.
        sample_rate (float): :math:`m / M`.
        epsilon (float): the epsilon of all steps, at most the budget.
        delta (float): :math:`\delta`.
        mechanism (str): the accountant.
        noise_per_step (float): the standard deviation of the noise on each
            number of the mean gradient, in units of the clipping norm.
        sampling (str): the value for a loader's ``sampling``.
        terms (int): the most subgraphs that share one node.
        num_units (int): :math:`M`.
        candidates (tuple): the sampling, batch size, noise multiplier and
            noise per step of all settings that were compared.
    """

    batch_size: int
    steps: int
    noise_multiplier: float
    sample_rate: float
    epsilon: float
    delta: float
    mechanism: str
    noise_per_step: float
    sampling: str
    terms: int
    num_units: int
    candidates: tuple[tuple[str, int, float, float], ...]

    def explain(self) -> str:
        """Explain the plan, with the line of code that applies it."""
        size, law = self.batch_size, self.sampling
        loader = f'DisjointWalkLoader(data, batch_size={size}, walk_length=1'
        if self.terms > 1:
            loader = f'EgoLoader(..., batch_size={size}'
        return (
            f'{self.steps} steps of {size} units with the noise multiplier '
            f'{self.noise_multiplier:.4g} spend epsilon '
            f'{outwards(self.epsilon)} at '
            f'delta {self.delta:g}. Replace NeighborLoader(...) or another '
            f'loader by {loader}, sampling={law!r}): of '
            f'{len(self.candidates)} plans that were computed from public '
            'numbers it is the smallest batch whose noise is within the slack '
            "of the least. Of the settings of PyG's examples change these, "
            'too: bring each row to norm 1 (data.x = F.normalize(data.x)), '
            f'dropout=0, bias=False, Adam(lr={self.settings["lr"]}), '
            f'max_grad_norm={self.settings["max_grad_norm"]}.'
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of model and optimizer under which private GCNs learn.

        They were not chosen by looking at your data. On Cora (2,166 training
        nodes, epsilon 8) a GCN of 16 hidden units has an accuracy of .79 with
        them, and of .29 with those of PyG's example.
        """
        return {
            'lr': 0.05,
            'weight_decay': 0.0,
            'max_grad_norm': 1.0,
            'dropout': 0.0,
            'bias': False,
        }

    def chart(self) -> Chart:
        """Draw epsilon over the planned steps."""
        history = epsilon_over_time(self.accountant(), self.delta)
        last = max(len(history) - 1, 1)
        steps = [-(-self.steps * i // last) for i in range(len(history))]
        return Chart(
            f'{self.steps} steps of {self.batch_size} subgraphs would spend '
            f'epsilon {outwards(self.epsilon)}, at delta {self.delta:g}',
            lines={'epsilon': (steps, history)},
            xlabel='steps',
            ylabel='epsilon',
        )

    def accountant(self) -> Accountant:
        """Return an accountant with all planned steps, for :func:`search`."""
        made = _account(self.sampling, self.num_units, self.terms)
        line = self.noise_multiplier, self.sample_rate, self.steps
        made.history = [line]
        return made


def _account(law: str, num_units: int, terms: int) -> Accountant:
    name = LAWS[law][terms > 1]
    if terms == 1:
        return create_accountant(name)
    return create_accountant(name, num_roots=num_units, occurrences=terms)


@validated
def propose(
    num_subgraphs: Count,
    epsilon: Positive,
    delta: Fraction,
    *,
    steps: Count = 60,
    sampling: Annotated[str, OneOf((*LAWS, BEST))] = BEST,
    terms: Count = 1,
) -> Proposal:
    """Propose a batch size and noise for a budget, from public numbers.

    The larger the batch size :math:`m`, the less noise is on the mean gradient
    of a step. Of twenty batch sizes, the smallest is chosen whose noise is at
    most 1.1 times that of :math:`m = M`. Pass the plan's ``sampling`` to the
    loader, as another sampling spends more or less.

    Args:
        num_subgraphs (int): :math:`M`, ``loader.num_subgraphs``.
        epsilon (float): the budget.
        delta (float): in :math:`(0, 1)`.
        steps (int): how many steps are planned. (default: :obj:`60`)
        sampling (str): :obj:`'without_replacement'`, :obj:`'poisson'`, or
            :obj:`'best'` for the one with less noise. (default: :obj:`'best'`)
        terms (int): the most subgraphs that share one node, such as
            ``EgoLoader.terms``. (default: :obj:`1`)

    Returns:
        Proposal: has ``batch_size``, ``noise_multiplier`` and ``sampling``.

    Example:
        >>> plan = propose(847, epsilon=8.0, delta=1e-4)
        >>> plan.epsilon <= 8 and 80 < plan.batch_size < 100
        True
        >>> plan.sampling
        'poisson'
    """
    if terms > num_subgraphs:
        raise ValueError(
            f"'terms' needs to be at most the {num_subgraphs} units (got "
            f'{terms})'
        )
    laws = [*LAWS] if sampling == BEST else [sampling]
    tried: dict[tuple[str, int], float] = {}

    def noise_of(law: str, size: int) -> float:
        if (law, size) not in tried:
            account = _account(law, num_subgraphs, terms)
            tried[law, size] = account.noise_multiplier_for(
                epsilon,
                delta,
                sample_rate=size / num_subgraphs,
                steps=steps,
            )
        return tried[law, size] / size

    # Smallest first; the noise of the whole is the reference.
    limit = _SLACK * min(noise_of(law, num_subgraphs) for law in laws)
    sizes = sorted({math.ceil(num_subgraphs * k / 20) for k in range(1, 21)})

    def enough(law: str) -> int:
        def fits(size: int) -> bool:
            return noise_of(law, size) <= limit

        return sizes[bisect_left(sizes[:-1], True, key=fits)]

    size = min(map(enough, laws))
    # The other law at this size, too: neither is worse than what is taken.
    law = min(laws, key=lambda each: noise_of(each, size))
    found, rate = tried[law, size], size / num_subgraphs
    account = _account(law, num_subgraphs, terms)
    account.history = [(found, rate, steps)]
    return Proposal(
        batch_size=size,
        steps=steps,
        noise_multiplier=found,
        sample_rate=rate,
        epsilon=account.get_epsilon(delta),
        delta=float(delta),
        mechanism=account.mechanism(),
        noise_per_step=found / size,
        sampling=law,
        terms=terms,
        num_units=num_subgraphs,
        candidates=tuple(
            (each, m, z, z / m) for (each, m), z in sorted(tried.items())
        ),
    )


@validated
def search_epsilon(
    bound: Accountant, delta: Fraction, mean_runs: float, shape: float = 1.0
) -> float:
    r"""Compute :math:`\epsilon` of the best of a random number of runs.

    Selection is analysed by Rényi DP, whichever accountant is given; see
    :func:`search`.

    Example:
        >>> one = propose(847, epsilon=4.0, delta=1e-4).accountant()
        >>> 4 < search_epsilon(one, 1e-4, mean_runs=10) < 3 * 4
        True
    """
    check_law(mean_runs, shape, 'mean_runs')
    # Allow for another order of sums.
    allowed = bound.rdp(ORDERS) * _ROUNDED
    found = rdp_select(ORDERS, allowed, mean_runs, shape)
    return rdp_epsilon(ORDERS, found, delta)


@claimed(
    'search for settings of private training',
    candidate='the settings of the best run',
    score='the score of the best run, a float',
    assumptions='sentences: what the guarantee assumes and does not cover',
    checked='sentences: how the runs were checked',
    data_sha256='a hash of the public part of the data',
    weights_sha256='SHA-256 of the weights of the best run',
)
class SearchReport(ClaimedReport):
    """The result of a private search for settings, and its privacy cost.

    The number of runs stays secret. A *unit* is a subgraph, graph or person.
    """

    def _says(self) -> dict[str, Any]:
        return {
            'vouched': vouched(self.mechanism),
            'assumptions': self.assumptions,
            'data_sha256': self.data_sha256,
            'checked': self.checked,
            'weights_sha256': self.weights_sha256,
        }


@validated
def search(
    train: Train,
    candidates: Sequence[Any],
    *,
    bound: Accountant,
    delta: Fraction,
    mean_runs: float,
    shape: float = 1.0,
    seed: int | None = None,
) -> tuple[nn.Module, SearchReport]:
    r"""Train with settings drawn at random, and release the best run alone.

    The number of runs is random and secret; each run has settings drawn
    uniformly from the candidates. Do not publish how long the search takes,
    nor what :obj:`train` prints or stores.

    .. code-block:: python

        plan = propose(loader.num_subgraphs, epsilon=4.0, delta=1e-4)

        def train(lr):
            ...  # a model and a loader of its own; a new PrivacyEngine()
            return engine, accuracy_on_public_data

        model, report = search(
            train, [0.03, 0.1, 0.3], bound=plan.accountant(), delta=1e-4,
            mean_runs=5,
        )

    Args:
        train (callable): ``train(settings)`` trains a model and returns its
            engine and a score, a float that depends on the weights and public
            data alone. The highest score wins.
        candidates (sequence): the settings, chosen without private data.
        bound (Accountant): an accountant that has counted the most that any
            run may spend, such as :meth:`Proposal.accountant` returns it.
        delta (float): in :math:`(0, 1)`.
        mean_runs (float): the expected number of runs, at least 1.
        shape (float): the parameter :math:`\eta` of the distribution of the
            number of runs, a truncated negative binomial one: 1 is the
            geometric; 0 is the logarithmic, which spreads wider and costs
            less.
        seed (int, optional): the seed, to repeat an experiment; the result is
            then not private. By default draws are secret.

    Returns:
        tuple[Module, SearchReport]: a copy of the best model without wrappers,
        and its guarantee.

    Raises:
        BudgetExceededError: if a run spent more than :obj:`bound`.
    """
    if not isinstance(candidates, Sequence) or not candidates:
        raise TypeError(
            "'candidates' needs to be a list of settings, not empty (got "
            f'{candidates!r})'
        )
    epsilon = search_epsilon(bound, delta, mean_runs, shape)
    allowed = bound.rdp(ORDERS) * _ROUNDED
    key = None if seed is None else rng.resolve(seed)

    def source(item: int) -> Any:
        return noise.source(None if key is None else rng.derive(key, item))

    count = draw_runs(float(source(_NUMBER).uniform(1)[0]), mean_runs, shape)
    choices = source(_CHOICE)
    best: tuple[float, nn.Module, Any, PrivacyReport] | None = None
    known: WeakSet[PrivacyEngine] = WeakSet()
    seeded = seed is not None
    relation = ''
    for _ in range(count):
        index = int(choices.choose(len(candidates), 1)[0])
        made = train(candidates[index])
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(
                "'train' needs to return an engine and a score (got "
                f'{type(made).__name__})'
            )
        engine, score = made
        check_instance('train', engine, PrivacyEngine)
        if engine in known:
            raise ValueError(
                "'train' needs to make a new PrivacyEngine() in every run "
                '(got one of an earlier run); nothing is released'
            )
        known.add(engine)
        score = float(check_number('score', score))
        if math.isnan(score):
            score = -math.inf  # of weights that diverged
        spends = engine.accountant
        if relation not in ('', spends.relation):
            raise ValueError(
                "'train' needs to protect the same in every run (got "
                f'{relation!r} and {spends.relation!r}); nothing is released'
            )
        relation = spends.relation
        spent = spends.rdp(ORDERS)
        if not np.all(spent <= allowed):
            raise BudgetExceededError(
                f"a run with {candidates[index]!r} spent more than 'bound' "
                'allows for one run; nothing is released'
            )
        seeded |= engine.seeded
        cost = engine.report(delta)
        if best is None or score > best[0]:
            model = copy.deepcopy(engine._attached().model)
            best = score, model, candidates[index], cost
    assert best is not None
    report = SearchReport.of(
        epsilon=epsilon,
        delta=float(delta),
        mean_runs=float(mean_runs),
        shape=float(shape),
        candidate=best[2],
        score=best[0],
        seeded=seeded,
        mechanism=bound.mechanism(),
        assumptions=(
            'released are the weights, settings and score of the best run '
            'alone; other runs, how many there were and how long it took stay '
            'secret',
            'a score is a function of the weights of its run and of public '
            'data',
            'candidates, their number and the expected number of runs were '
            'chosen without looking at private data',
            *best[3].assumptions,
        ),
        data_sha256=best[3].data_sha256,
        weights_sha256=fingerprint_model(best[1].state_dict()),
        neighboring=relation,
        account=tuple(bound.history),
        pure_epsilon=bound.pure_epsilon,
        target_epsilon=None,
        ledger_head=None,
        batch_size=getattr(bound, 'batch_size', None),
        units_per_row=getattr(bound, 'terms', 1),
        checked=(
            'what every run had spent was compared with what a run may, at '
            f'all {len(ORDERS)} orders of Rényi DP: none had spent more',
            'all runs protect the same units',
            *(f'of the best run: {line}' for line in best[3].checked),
        ),
    )
    return best[1], report


# The best of several runs ####################################################


def rdp_select(
    orders: Orders,
    rdp: Sequence[float] | np.ndarray,
    mean: float,
    shape: float = 1.0,
) -> np.ndarray:
    r"""Bound Rényi DP of the best of a random number of runs.

    Theorem 2 of Papernot and Steinke 2022. The number of runs has to be
    secret, and so do all runs but the best.

    Args:
        orders (sequence of float): the orders, each above 1.
        rdp (sequence of float): Rényi DP of one run at these, at most.
        mean (float): the expected number of runs, in [1, 500].
        shape (float): :math:`\eta`, in [0, 10]. (default: :obj:`1.0`)
    """
    a, g = check_rdp(orders, rdp)
    mean, shape = check_law(mean, shape)
    if mean < _ONE:
        return g  # one run, always
    rate = _gamma(mean, shape)
    each = (1 + shape) * ((1 - 1 / a) * g - math.log(rate) / a)
    bound = g + each.min() + math.log(mean) / (a - 1)
    # Rényi divergences grow with the order.
    order = np.argsort(a)
    least = np.minimum.accumulate(bound[order][::-1])[::-1]
    return least[np.argsort(order)]


@validated
def draw_runs(uniform: Rate, mean: float, shape: float = 1.0) -> int:
    r"""Draw the number of runs of a search, from a secret uniform number."""
    mean, shape = check_law(mean, shape)
    if mean < _ONE:
        return 1
    rate = _gamma(mean, shape)
    count, mass = 1, (1 - rate) / _norm(rate, shape)
    total = mass
    while total < uniform and count < _MOST:
        mass *= (1 - rate) * (count + shape) / (count + 1)
        count += 1
        if total + mass == total and mass < 1e-17:
            break
        total += mass
    return count


def _norm(rate: float, shape: float) -> float:
    # (gamma^-eta - 1) / eta, which is log(1 / gamma) at eta = 0.
    log = -math.log(rate)
    return math.expm1(shape * log) / shape if shape else log


def _gamma(mean: float, shape: float) -> float:
    # The mean falls from infinity to 1 as gamma goes to 1.
    if shape == 1:
        return 1 / mean
    from scipy.optimize import brentq  # slow to import

    def apart(log: float) -> float:
        # The mean is (1 - gamma) gamma^(-eta - 1) / norm.
        rate = math.exp(log)
        found = (1 - rate) * rate ** (-shape - 1) / _norm(rate, shape)
        return math.log(found) - math.log(mean)

    return math.exp(brentq(apart, -60.0 / (1 + shape), -1e-9, xtol=1e-14))


def check_law(
    mean: float, shape: float, name: str = 'mean'
) -> tuple[float, float]:
    """Check a distribution of the number of runs, and return floats."""
    for what, value, low, high in (
        (name, mean, 1, 500),
        ('shape', shape, 0, 10),
    ):
        if not low <= check_number(what, value) <= high:
            raise ValueError(
                f"'{what}' needs to be in [{low}, {high}] (got {value})"
            )
    return float(mean), float(shape)
