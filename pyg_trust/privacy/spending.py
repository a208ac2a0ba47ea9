"""The privacy budget of an engine: spent, and still to spend."""

import math
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from pyg_trust import noise, rng
from pyg_trust._checks import Fraction, Natural, check_ledger, validated
from pyg_trust._checks.graphs import warn_user
from pyg_trust.ledger import BudgetExceededError, PrivacyLedger
from pyg_trust.loader import EgoLoader, StepLoader
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.privacy.accountant import (
    ACCOUNTANTS,
    FDP,
    GROUP,
    GROUP_WOR,
    POISSON,
    POISSON_SAMPLING,
    SAMPLING,
    Accountant,
    PoissonAccountant,
    create_accountant,
)
from pyg_trust.privacy.group import Group, keyed_bytes
from pyg_trust.privacy.wrappers import Single
from pyg_trust.verify.claims import outwards

__all__ = ['Spending']

#: Opacus' names of accountants: by Rényi DP where there is one for the
#: sampling, else by privacy loss distributions.
OPACUS = ('rdp', 'prv')
_BATCH, _NOISE = 1, 2
# Rates that change with the partition are rounded up to this grid: it costs a
# thousandth, and composing many equal steps is fast.
_RATES = 4096
_PLANNED = 32


class Spending(Single):
    """Account of an engine, its ledger and its source of randomness.

    Arguments are those of :class:`~pyg_trust.privacy.PrivacyEngine`.
    """

    def __init__(
        self,
        accountant: str | None,
        insecure_seed: int | None,
        ledger: str | Path | None,
        ledger_head: str | None,
        kind: str,
    ) -> None:
        if accountant is not None and accountant not in OPACUS:
            ACCOUNTANTS.find('accountant', accountant)
        noise.NOISES.find('noise', kind)
        if insecure_seed is not None and kind != noise.SYSTEM:
            raise ValueError(
                f"'noise' needs to be {noise.SYSTEM!r} with an "
                f"'insecure_seed', of which all noise comes (got {kind!r})"
            )
        check_ledger(ledger, ledger_head)
        self._kind = accountant
        self._accountant: Accountant | None = None
        self._seed = None
        if insecure_seed is not None:
            self._seed = rng.resolve(insecure_seed, 'insecure_seed')
        self._key: bytes | None = None
        self._noise_kind = kind
        self._noise = self._source(_NOISE)
        self._ledger_path = None if ledger is None else Path(ledger).absolute()
        self._ledger_head = ledger_head
        self._ledger: PrivacyLedger | None = None
        self._process, self._group = os.getpid(), Group()
        self._leaks: list[str] = []
        self._target: tuple[float, float] | tuple[None, None] = (None, None)
        # The rate, the steps that are left at it, and the account they are
        # of.
        self._plan: tuple[float, int, Any] | None = None
        # The steps on the account before these weights, and those of the
        # checkpoint that was loaded; the steps that had no noise.
        self._start, self._continued = 0, None
        self._noiseless = 0
        # Set by make_private.
        self._loader: StepLoader
        self._noise_multiplier: float

    @property
    def noiseless(self) -> bool:
        """Whether no noise is added, so that nothing is private."""
        return getattr(self, '_noise_multiplier', 1.0) == 0

    @property
    def seeded(self) -> bool:
        """Whether noise and batches come from an explicit seed."""
        return self._seed is not None

    @property
    def accountant(self) -> Accountant:
        """The accountant, once a loader is attached."""
        if self._accountant is None:
            raise RuntimeError('call make_private first')
        return self._accountant

    @property
    def steps(self) -> int:
        """The number of steps on the account, or of a run without noise."""
        return len(self.accountant) + self._noiseless

    @property
    def ledger_head(self) -> str | None:
        """Digest of all lines of the ledger; keep a copy elsewhere."""
        return None if self._ledger is None else self._ledger.head

    @property
    def exhausted(self) -> bool:
        """Whether the budget does not allow the next step."""
        self._check_attached()
        return not self._allowed(self.steps)

    def close(self) -> None:
        """Close the ledger's file."""
        if self._ledger is not None:
            self._ledger.close()

    @validated
    def get_epsilon(self, delta: Fraction, steps: Natural = 0) -> float:
        r""":math:`\epsilon` of everything so far, and of steps to come.

        Args:
            delta (float): in :math:`(0, 1)`.
            steps (int): how many more steps to count, with the noise of
                :meth:`make_private`; what a plan will have spent is known
                before training. (default: :obj:`0`)

        Raises:
            ValueError: if the weights were trained, but by no private step.
        """
        accountant = self.accountant
        if not steps:
            self._check_trained()
        if self.noiseless and self.steps + steps:
            return math.inf
        if steps:
            self._check_attached()
            accountant = deepcopy(accountant)
            rates = Counter(
                self._rate(self._loader, step)
                for step in range(self.steps, self.steps + steps)
            )
            accountant.history += [
                (self._noise_multiplier, rate, count)
                for rate, count in rates.items()
            ]
        return accountant.get_epsilon(delta)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f'the engine was made by process {self._process}, and this '
                f'one ({os.getpid()}) is a fork: no account would cover the '
                'releases of both. Make the engine in the process that trains'
            )

    def _check_trained(self) -> None:
        step = getattr(self, '_step', None)
        if step is None or self.steps > self._start:
            return
        if (name := step.moved()) is not None:
            raise ValueError(
                f"'{name}' was trained, and not by a private step: train with "
                'the model, the optimizer and the loader that make_private '
                'returned, in place of those that it was given'
            )

    def _check_attached(self) -> None:
        if not hasattr(self, '_noise_multiplier'):
            raise RuntimeError('call make_private first')

    # Noise and batches #####################################################

    def _source(self, *items: int) -> SecureNoise | SeededNoise:
        if self._seed is None:
            return noise.source(kind=self._noise_kind)
        return noise.source(rng.derive(self._seed, *items))

    def _fresh_noise(self) -> None:
        # Noise that was used before could be subtracted.
        word = int.from_bytes(os.urandom(7), 'big')
        self._noise = self._source(_NOISE, word)

    def _choose(self, step: int, count: int, size: int | float) -> np.ndarray:
        source = self._source(_BATCH, step)
        if self._key is not None and self._seed is None:
            # Draw the same in several processes.
            source = SecureNoise(keyed_bytes(self._key, step))
        if isinstance(size, float):
            return noise.coins(source, count, size)
        return source.choose(count, size)

    # The budget ############################################################

    def _rate(self, loader: StepLoader, step: int) -> float:
        rate = loader.sample_rate_at(step)
        if loader.resample_every is None:
            return rate
        return min(1.0, math.ceil(rate * _RATES) / _RATES)

    def _highest_rate(self, loader: StepLoader, steps: int) -> float:
        every = loader.resample_every or steps
        first = range(0, steps, every)[:_PLANNED]
        return max(self._rate(loader, step) for step in first)

    def _spent(self) -> Any:
        account = self.accountant
        return list(account.history), account.pure_epsilon

    def _allowed(self, step: int) -> bool:
        if self._target[0] is None:
            return True
        return self._left(self._loader, self._noise_multiplier, step) > 0

    def _left(self, loader: StepLoader, multiplier: float, step: int) -> int:
        # How many steps the budget allows at the rate of this one, at least.
        rate = self._rate(loader, step)
        if self._plan is not None:
            highest, left, spent = self._plan
            known = rate == highest or (rate < highest and left > 0)
            if known and spent == self._spent():
                return left
        epsilon, delta = self._target
        assert epsilon is not None
        assert delta is not None
        left = self.accountant.remaining_steps(
            epsilon, delta, noise_multiplier=multiplier, sample_rate=rate
        )
        self._plan = rate, left, self._spent()
        return left

    def _check_budget(self, loader: StepLoader, multiplier: float) -> None:
        # Refuse a training of no step, as its weights would be untrained.
        epsilon, delta = self._target
        if (
            epsilon is not None
            and self._left(loader, multiplier, self.steps) < 1
        ):
            assert delta is not None
            steps, spent = self.steps, self.get_epsilon(delta)
            raise BudgetExceededError(
                f'no step fits the budget of epsilon {epsilon:g} at delta '
                f'{delta:g}: {steps} steps on the account have spent '
                f"{outwards(spent)}; choose a larger 'target_epsilon' or "
                "'noise_multiplier', or a new ledger for other data, or if "
                'nobody has seen any weights of these steps'
            )
        if self.steps:
            warn_user(
                f'the account holds {self.steps} steps of earlier runs, which '
                'stay spent; a ledger restores no weights: load them by '
                'engine.load_state_dict(state), or train new ones'
            )

    def _check_left(self, what: str, **line: float) -> None:
        # Refuse a release that would be above the budget.
        ahead = deepcopy(self.accountant)
        ahead.step(**line)
        epsilon, delta = self._target
        if (
            epsilon is not None
            and delta is not None
            and not ahead.get_epsilon(delta) <= epsilon
        ):
            raise BudgetExceededError(
                f'{what} would exceed the budget of epsilon {epsilon:g} at '
                f'delta {delta:g}; nothing was spent'
            )

    def _pay(self, step: int) -> None:
        # A step is on the disk and on the account before its noise is drawn.
        if self.noiseless:
            # Whoever asks the accountant itself is told, too.
            self.accountant.pure_epsilon = math.inf
            self._noiseless += 1
            return
        rate = self._rate(self._loader, step)
        ledger, multiplier = self._ledger, self._noise_multiplier
        if self._group.size > 1 or ledger is not None:

            def write() -> None:
                if ledger is not None:
                    ledger.record(multiplier, rate)

            self._group.of_first(write)
        plan, before = self._plan, self._spent()
        self.accountant.step(noise_multiplier=multiplier, sample_rate=rate)
        if plan is not None and plan[2] == before and rate <= plan[0]:
            self._plan = plan[0], plan[1] - 1, self._spent()

    # The account ###########################################################

    def _open(self, loader: StepLoader) -> Accountant:
        # The account for a loader: what the ledger says, or a new one.
        accountant, ledger = new_account(self._kind, loader), None
        try:

            def read() -> tuple[Any, float] | None:
                nonlocal ledger
                if self._ledger_path is None:
                    return None
                spent = {'history', 'pure_epsilon'}
                state = accountant.state_dict().items()
                header = {
                    'format': 2,
                    'accountant': {k: v for k, v in state if k not in spent},
                    'data': loader.fingerprint(),
                    'seeded': self.seeded,
                }
                ledger = PrivacyLedger(
                    self._ledger_path, header, self._ledger_head
                )
                return ledger.history, ledger.pure_epsilon

            found = self._group.of_first(read)
            if found is not None and (found[0] or found[1]):
                state = accountant.state_dict()
                state['history'], state['pure_epsilon'] = found
                accountant.load_state_dict(state)
                self._fresh_noise()
            self._ledger, self._accountant = ledger, accountant
        except BaseException:
            # The lock is released for another try.
            if ledger is not None:
                ledger.close()
            raise
        return accountant


def new_account(kind: str | None, loader: StepLoader) -> Accountant:
    """Return the accountant of a name that fits a loader, or the default."""
    # An account of the user's own goes with the sampling and relation that
    # it declares; a row of an ego graph is in several, which other accounts
    # do not count.
    poisson = loader.sampling == POISSON_SAMPLING
    ego = isinstance(loader, EgoLoader)
    fitting = (POISSON,) if poisson else ('pld_wor', 'rdp_wor')
    if ego:
        fitting = (GROUP,) if poisson else (GROUP_WOR, FDP)
    if kind in OPACUS:
        kind = fitting[-1 if kind == 'rdp' else 0]
    if kind is not None and ACCOUNTANTS.is_own(kind) and not ego:
        accountant = create_accountant(kind)
        law = POISSON_SAMPLING if poisson else SAMPLING, loader.relation
        theirs = accountant.sampling, accountant.relation
        if theirs != law:
            raise ValueError(
                "'accountant' needs to be for the sampling and relation "
                f'{law} of the loader (got {kind!r}, which is for {theirs})'
            )
        return accountant
    kind = fitting[0] if kind is None else kind
    if kind not in fitting:
        raise ValueError(
            f"'accountant' needs to be {' or '.join(map(repr, fitting))} for "
            f'{"an" if ego else "a"} {type(loader).__name__} with '
            f'sampling={loader.sampling!r} '
            f'(got {kind!r})'
        )
    if kind == FDP:
        return create_accountant(
            FDP,
            num_nodes=loader.num_subgraphs,
            batch_size=loader.subgraphs_per_batch,
            terms=loader.terms,
        )
    if ego:
        return create_accountant(
            kind, num_roots=loader.num_subgraphs, occurrences=loader.terms
        )
    accountant = create_accountant(kind)
    if poisson:
        accountant = PoissonAccountant(loader.form)
    accountant.relation = loader.relation
    return accountant
