"""Accountants of private steps, each registered under its name.

One more is a class with one method, under ``@ACCOUNTANTS.register('name')``:
see :class:`Accountant`.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from opacus.accountants import IAccountant

from pyg_trust._checks import (
    Count,
    Fraction,
    NotNegative,
    OneOf,
    Positive,
    Rate,
    check_choice,
    check_instance,
    check_integer,
    check_number,
    check_positive,
    check_rate,
    validated,
)
from pyg_trust._checks.states import check_state
from pyg_trust._moved import renamed
from pyg_trust.privacy.accounting import (
    ORDERS,
    check_group,
    check_share,
    group_wor_epsilon,
    least_noise,
    rdp_epsilon,
    rdp_group_wor,
    wor_epsilon,
)
from pyg_trust.privacy.mechanisms import (
    check_delta,
    check_multiplier,
    check_orders,
    rdp_fdp,
    rdp_wor,
    rdp_wor_profile,
)
from pyg_trust.privacy.poisson import FORMS, poisson_epsilon, rdp_poisson
from pyg_trust.registries import Registry

__all__ = [
    'Accountant',
    'FDPAccountant',
    'GroupAccountant',
    'GroupPoissonAccountant',
    'PLDAccountant',
    'PoissonAccountant',
    'RDPAccountant',
    'create_accountant',
]

RELATION = 'replace-one-feature-row'
SAMPLING = 'uniform-without-replacement'
POISSON_SAMPLING = 'poisson'
FDP = 'rdp_fdp'
POISSON = 'pld_poisson'
GROUP_WOR, GROUP = 'pld_group_wor', 'pld_group'
#: Accountants of ego graphs, which take arguments.
EGO_ACCOUNTS = (GROUP_WOR, GROUP, FDP)
History = list[tuple[float, float, int]]


def _check_accountant(name: str, entry: Any) -> None:
    if not isinstance(entry, type) or not issubclass(entry, Accountant):
        raise TypeError(
            f"'entry' needs to be a subclass of Accountant (got {entry!r})"
        )
    method = getattr(entry.mechanism, '__func__', None)
    if method is not Accountant.__dict__['mechanism'].__func__:
        raise TypeError(
            "'entry' can't have a 'mechanism' of its own: reports call "
            f'{entry.__name__} by its registered name'
        )


#: The classes of accountants, by what reports call them.
ACCOUNTANTS: Registry[type['Accountant']] = Registry(
    'accountant', _check_accountant, homes=('privacy.accountant',)
)


class Accountant(IAccountant):
    r"""Base of the accountants: count noisy steps, and compute their epsilon.

    An accountant of your own overrides :meth:`epsilon_of`. It states for which
    :obj:`sampling` (how a batch is drawn) and :obj:`relation` (which data sets
    are neighbours) its epsilon holds. An engine refuses a loader with another
    sampling or relation. Reports say that the accountant is the user's.

    .. code-block:: python

        from pyg_trust.registries import ACCOUNTANTS

        @ACCOUNTANTS.register('mine')
        class Mine(Accountant):
            sampling = 'uniform-without-replacement'
            relation = 'replace-one-feature-row'

            def epsilon_of(self, history, delta):
                ...

    :obj:`history` is a list of :obj:`(noise_multiplier, sample_rate, steps)`,
    as in Opacus. The noise multiplier is :math:`\sigma / C`: the standard
    deviation of the noise over the clipping norm.
    """

    history: History
    pure_epsilon: float
    #: Which data are neighbours; of whole graphs, ``replace-one-graph``.
    relation: str = RELATION
    #: How the units of a step are drawn.
    sampling: str = SAMPLING
    #: How many units a record is in at most.
    occurrences: int = 1
    # The arguments of the class, which a state has to repeat.
    _arguments: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.history = []
        self.pure_epsilon = 0.0

    def __repr__(self) -> str:
        return f'{type(self).__name__}(steps={len(self)})'

    @classmethod
    def mechanism(cls) -> str:
        """Return the class's registered name, or else its full name."""
        named = ACCOUNTANTS.name_of(cls)
        return named or f'{cls.__module__}.{cls.__qualname__}'

    @abstractmethod
    def epsilon_of(self, history: History, delta: float) -> float:
        r"""Return an upper bound of :math:`\epsilon` at ``delta``."""

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step, with its noise multiplier and sampling rate."""
        line = self._line((noise_multiplier, sample_rate, 1))
        self.history = _merged([*self.history, line])

    @validated
    def spend_pure(self, epsilon: Positive) -> None:
        r"""Record a release that is :math:`\epsilon`-DP, with delta 0.

        Its :math:`\epsilon` is added to that of the steps.
        """
        self.pure_epsilon += epsilon

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        r"""Compute :math:`\epsilon` of all steps and releases so far.

        Unlike in Opacus, there are no arguments beside ``delta``.
        """
        if args or kwargs:
            raise TypeError(
                f"'get_epsilon' takes 'delta' alone (got {args} and {kwargs})"
            )
        return self.pure_epsilon + self._epsilon(self.history, delta)

    def _epsilon(self, history: History, delta: float) -> float:
        spent = self.epsilon_of(list(history), check_delta(delta))
        if isinstance(spent, bool) or not (
            isinstance(spent, int | float) and spent >= 0
        ):
            raise ValueError(
                f'the accountant {self.mechanism()!r} needs to give an '
                f'epsilon of at least 0 (got {spent!r})'
            )
        return spent

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """Compute Rényi DP of everything so far, at each order.

        Args:
            orders (sequence of float): the orders, each above 1.

        Returns:
            ndarray: the Rényi divergences in nats, float64, ``[num_orders]``.
        """
        a, pure = check_orders(orders), self.pure_epsilon
        total = np.minimum(pure, a * pure**2 / 2)
        for noise, rate, steps in self.history:
            total = total + steps * self._rdp_of_step(a, noise, rate)
        return total

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        raise TypeError(
            f'the accountant {self.mechanism()!r} gives no Rényi DP, which a '
            'choice among several runs needs'
        )

    @validated
    def remaining_steps(
        self,
        epsilon: NotNegative,
        delta: Fraction,
        *,
        noise_multiplier: Positive,
        sample_rate: Rate,
    ) -> int:
        r"""Return the number of further steps that stay within a budget.

        Args:
            epsilon (float): the budget of everything, also what was spent.
            delta (float): in :math:`(0, 1)`.
            noise_multiplier (float): :math:`\sigma / C` of the further steps.
            sample_rate (float): the sampling rate of the further steps.
        """
        noise, rate, _ = self._line((noise_multiplier, sample_rate, 1))

        def fits(steps: int) -> bool:
            history = [*self.history, (noise, rate, steps)]
            return self.pure_epsilon + self._epsilon(history, delta) <= epsilon

        if epsilon <= self.pure_epsilon or not fits(1):
            return 0
        low, high = 1, 2
        while fits(high):
            low, high = high, 2 * high
            if high > 2**40:
                raise ValueError("'epsilon' is not spent in 2**40 steps")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _check_rate(self, sample_rate: float) -> None:
        """Refuse a rate at which this accountant's units are not drawn."""

    def _line(self, line: Any) -> tuple[float, float, int]:
        # A checked line of the history.
        noise, rate, steps = line
        noise = float(check_multiplier(noise, self.occurrences))
        rate = float(check_rate('sample_rate', rate))
        self._check_rate(rate)
        return noise, rate, check_integer('steps', steps, 1)

    def noise_multiplier_for(
        self, epsilon: float, delta: float, *, sample_rate: float, steps: int
    ) -> float:
        """Return a noise multiplier with which planned steps fit a budget.

        The steps spend 99 to 100 percent of what :meth:`spend_pure` left of
        :obj:`epsilon`. Steps taken earlier are not counted.

        Args:
            epsilon (float): the budget.
            delta (float): in :math:`(0, 1)`.
            sample_rate (float): the share of subgraphs that a step draws.
            steps (int): the number of planned steps.
        """
        if not self.pure_epsilon < check_positive('epsilon', epsilon):
            raise ValueError(
                f"'epsilon' needs to be above the {self.pure_epsilon} spent "
                f'beside the steps (got {epsilon})'
            )
        rate = check_rate('sample_rate', sample_rate)
        self._check_rate(rate)
        check_delta(delta)
        check_integer('steps', steps, 1, numpy=True)
        what = f'{self.mechanism()!r} with {delta=:g}'
        return least_noise(
            lambda z: self._epsilon([(z, rate, steps)], delta),
            *(epsilon - self.pure_epsilon, 0.01, what, self.occurrences),
        )

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def state_dict(self, destination: Any = None) -> Any:
        """Return a dictionary from which the account can be continued.

        It has the history, the class's name, relation, sampling, arguments and
        the sum of :meth:`spend_pure`. A ``destination`` (dict) is filled
        instead.
        """
        if destination is not None:
            check_instance('destination', destination, dict)
        state = super().state_dict(destination)
        state.update(self._constants())
        state['pure_epsilon'] = self.pure_epsilon
        return state

    def _constants(self) -> dict[str, Any]:
        return {
            'mechanism': self.mechanism(),
            'relation': self.relation,
            'sampling': self.sampling,
            **{name: getattr(self, name) for name in self._arguments},
        }

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from a :meth:`state_dict`.

        Raises:
            ValueError: if its history does not begin with the present one, or
                it is of another accountant. Nothing is changed then.
        """
        expected = self._constants()
        check_state(state_dict, (*expected, 'history', 'pure_epsilon'))
        for name, value in expected.items():
            if state_dict[name] != value:
                raise ValueError(
                    f"the state's '{name}' needs to be {value!r} (got "
                    f'{state_dict[name]!r})'
                )
        try:
            # Merged as `step` does, in case another writer did not.
            loaded = _merged(
                [self._line(line) for line in state_dict['history']]
            )
        except TypeError as error:
            raise ValueError(
                "the state's 'history' needs to hold triples of noise "
                f'multiplier, sample rate and steps: {error}'
            ) from error
        if not _continues(loaded, _merged(self.history)):
            raise ValueError(
                "the state's history does not continue the present one: what "
                "was spent can't be taken back"
            )
        pure = state_dict['pure_epsilon']
        if not self.pure_epsilon <= check_number('pure_epsilon', pure):
            raise ValueError(
                f"the state's 'pure_epsilon' needs to be {self.pure_epsilon} "
                f"or more (got {pure}): what was spent can't be taken back"
            )
        self.history = loaded
        self.pure_epsilon = float(pure)


@ACCOUNTANTS.builtin('pld_wor')
class PLDAccountant(Accountant):
    r"""Accountant of steps that draw subgraphs without replacement.

    Neighbouring data differ in one row of the features, which is replaced.
    Every step draws the same number of disjoint subgraphs anew, so that the
    sum of gradients moves by at most two clipping norms. Shuffled epochs and
    Poisson sampling are not covered. Opacus' accountants are for adding or
    removing a row under Poisson sampling; their :math:`\epsilon` would be too
    small by a factor of two or more. Computed by privacy loss distributions.
    """

    def epsilon_of(self, history: History, delta: float) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        return wor_epsilon(history, delta)

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        key, z = (tuple(a.tolist()), q), float(z)
        return np.minimum(
            _once(rdp_wor, *key, noise_multiplier=z),
            _once(rdp_wor_profile, *key, noise_multiplier=z),
        )


@ACCOUNTANTS.builtin('rdp_wor')
class RDPAccountant(PLDAccountant):
    """Accountant of steps that draw subgraphs without replacement, by RDP.

    It counts the same steps as :class:`PLDAccountant`, by the looser Rényi
    bound of Ayle et al. 2023.
    """

    def epsilon_of(self, history: History, delta: float) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        return wor_epsilon(history, delta, 'rdp_wor')


@validated
@ACCOUNTANTS.builtin(POISSON)
class PoissonAccountant(Accountant):
    """Accountant of Poisson sampling: each unit is drawn independently.

    A unit is what is clipped as one, such as a subgraph or a graph. One unit
    moves the sum of gradients by the clipping norm for ``'add_remove'``, and
    by twice as much for ``'replace'``. Computed by privacy loss distributions.

    Args:
        neighboring (str): :obj:`'replace'`: a unit is exchanged for any other;
            or :obj:`'add_remove'` (also ``'withdraw'``): one is added or
            removed.

    Example:
        >>> accountant = PoissonAccountant()
        >>> for _ in range(100):
        ...     accountant.step(noise_multiplier=2.0, sample_rate=0.05)
        >>> 1.9 < accountant.get_epsilon(delta=1e-5) < 2.1
        True
    """

    sampling = POISSON_SAMPLING
    _arguments = ('form',)

    @renamed(form='neighboring')
    def __init__(
        self,
        neighboring: Annotated[str, OneOf(FORMS)] = 'replace',
    ) -> None:
        super().__init__()
        self.form = 'replace' if neighboring == 'replace' else 'withdraw'

    def epsilon_of(self, history: History, delta: float) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        return poisson_epsilon(history, delta, self.form)

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        return _once(rdp_poisson, tuple(a.tolist()), q, z, self.form)


# Records in several units ####################################################


@ACCOUNTANTS.builtin(GROUP_WOR)
class GroupAccountant(Accountant):
    """Accountant of steps on ego graphs, where one node is in several.

    A node is in the ego graphs of at most :math:`k` roots. A step draws
    :math:`m` of :math:`N` roots without replacement and clips the gradient of
    each. How many of a node's ego graphs a step draws has to stay secret.
    Noise multipliers have to be at least :math:`k / 10`.

    Args:
        num_roots (int): :math:`N`, such as ``loader.num_subgraphs``.
        occurrences (int): :math:`k`, such as ``loader.terms``.

    Example:
        >>> accountant = GroupAccountant(13482, 5)
        >>> for _ in range(100):
        ...     accountant.step(noise_multiplier=8.2, sample_rate=674 / 13482)
        >>> 3.1 < accountant.get_epsilon(delta=1e-5) < 3.2
        True
    """

    _arguments = ('num_roots', 'occurrences')

    def __init__(self, num_roots: int, occurrences: int) -> None:
        super().__init__()
        self.num_roots, self.occurrences = check_group(num_roots, occurrences)

    def _check_rate(self, sample_rate: float) -> None:
        check_share(sample_rate, self.num_roots, 'sample_rate')

    def epsilon_of(self, history: History, delta: float) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        known = self.num_roots, self.occurrences
        return group_wor_epsilon(history, delta, *known)

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        known = self.num_roots, self.occurrences
        return _once(rdp_group_wor, tuple(a.tolist()), q, z, *known)


@ACCOUNTANTS.builtin(GROUP)
class GroupPoissonAccountant(GroupAccountant):
    """Accountant of Poisson-sampled ego graphs, where one node is in several.

    Args:
        num_roots (int): :math:`N`, such as ``loader.num_subgraphs``.
        occurrences (int): the most ego graphs :math:`k` that share one node,
            such as ``loader.terms``.
    """

    sampling = POISSON_SAMPLING

    def _check_rate(self, sample_rate: float) -> None:
        """Take any rate."""

    def epsilon_of(self, history: History, delta: float) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        return poisson_epsilon(history, delta, occurrences=self.occurrences)

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        key = tuple(a.tolist()), q, z
        return _once(rdp_poisson, *key, occurrences=self.occurrences)


@validated
@ACCOUNTANTS.builtin(FDP)
class FDPAccountant(Accountant):
    r"""Accountant of ego graphs by the Rényi bound of Daigavane et al. 2021.

    It is there to compare with the paper: :class:`GroupAccountant` has a
    smaller :math:`\epsilon` for the same steps.

    Args:
        num_nodes (int): the number :math:`N` of training nodes.
        batch_size (int): the number :math:`m` of nodes drawn in each step.
        terms (int): the most ego graphs that share one node.
    """

    _arguments = ('num_nodes', 'batch_size', 'terms')

    def __init__(
        self, num_nodes: Count, batch_size: Count, terms: Count
    ) -> None:
        super().__init__()
        self.num_nodes, self.batch_size = num_nodes, batch_size
        self.terms = self.occurrences = terms
        self._rdp_of_step(np.asarray(ORDERS), 2.0 * terms, 1.0)

    def _check_rate(self, sample_rate: float) -> None:
        rate = self.batch_size / self.num_nodes
        if sample_rate != rate:
            raise ValueError(
                f"'sample_rate' needs to be {rate} (got {sample_rate})"
            )

    def _rdp_of_step(self, a: np.ndarray, z: float, q: float) -> np.ndarray:
        known = self.num_nodes, self.batch_size, self.terms
        return rdp_fdp(a, *known, noise_multiplier=z)

    @validated
    def epsilon_of(self, history: History, delta: Fraction) -> float:
        """Bound epsilon at ``delta``, for steps as in :class:`Accountant`."""
        if not history:
            return 0.0
        a = np.asarray(ORDERS)
        rdp = sum(n * self._rdp_of_step(a, z, 1.0) for z, _, n in history)
        return rdp_epsilon(ORDERS, np.asarray(rdp), delta)


def create_accountant(
    mechanism: str = 'pld_wor', **arguments: Any
) -> Accountant:
    """Make an accountant by its name.

    Args:
        mechanism (str): a name in :obj:`pyg_trust.registries.ACCOUNTANTS`:
            :obj:`'pld_wor'` (:class:`PLDAccountant`), :obj:`'rdp_wor'`
            (:class:`RDPAccountant`) or :obj:`'pld_poisson'`
            (:class:`PoissonAccountant`); for ego graphs
            :obj:`'pld_group_wor'` (:class:`GroupAccountant`),
            :obj:`'pld_group'` (:class:`GroupPoissonAccountant`) or
            :obj:`'rdp_fdp'` (:class:`FDPAccountant`).
        **arguments (Any): the arguments of this class. Those for ego graphs
            need some, such as ``num_roots`` and ``occurrences``.

    Example:
        >>> accountant = create_accountant('pld_wor')
        >>> for _ in range(50):
        ...     accountant.step(noise_multiplier=8.0, sample_rate=0.4)
        >>> 3.4 < accountant.get_epsilon(delta=1e-6) < 4.1
        True
    """
    known = [n for n in ACCOUNTANTS if arguments or n not in EGO_ACCOUNTS]
    check_choice('mechanism', mechanism, known)
    return ACCOUNTANTS[mechanism](**arguments)


@lru_cache(maxsize=256)
def _once(rdp: Callable[..., np.ndarray], *key: Any, **by: Any) -> np.ndarray:
    return rdp(*key, **by)


def _merged(history: History) -> History:
    merged: History = []
    for noise, rate, steps in history:
        if merged and merged[-1][:2] == (noise, rate):
            steps += merged.pop()[2]
        merged.append((noise, rate, steps))
    return merged


def _continues(longer: History, shorter: History) -> bool:
    if not shorter:
        return True
    last = len(shorter) - 1
    return (
        len(longer) > last
        and longer[:last] == shorter[:last]
        and longer[last][:2] == shorter[last][:2]
        and longer[last][2] >= shorter[last][2]
    )


def epsilon_over_time(
    accountant: Accountant, delta: float
) -> tuple[float, ...]:
    r"""Compute :math:`\epsilon` at eight times, from no step to all so far."""
    points = min(8, len(accountant))
    part = copy.copy(accountant)
    found = [0.0]
    for i in range(1, points + 1):
        part.history, left = [], -(-len(accountant) * i // points)
        for noise, rate, count in accountant.history:
            if left > 0:
                part.history.append((noise, rate, min(count, left)))
                left -= count
        found.append(part.get_epsilon(delta))
    return tuple(found)
