"""Frame of models that are fitted to a private graph once.

A fit of one data set is a few Gaussian releases on one account, whose shares
of the budget are fixed before. What comes out is kept: it predicts without
reading an edge, and is saved with the lines of the account that paid for it.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from pyg_trust._checks import check_instance, check_number, check_positive
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust._checks.graphs import warn_of_delta
from pyg_trust._checks.states import FORMAT, check_state, kind_of, reading
from pyg_trust.account import ReleaseAccount
from pyg_trust.files.commit import ObjectLock
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.coverage import Coverage, Seal
from pyg_trust.privacy.gaussian import gaussian_mu_for
from pyg_trust.privacy.mechanisms import check_delta
from pyg_trust.report import provenance
from pyg_trust.transforms.release_checks import (
    Releasing,
    check_alone,
    warn_of_other_releases,
)

Model = TypeVar('Model', bound='Fitted')


class Task(Protocol):
    """Checked data of a fit, and a key by which data are compared."""

    @property
    def graph(self) -> CSRGraph:
        """Graph."""

    @property
    def x(self) -> Tensor:
        """Features."""

    @property
    def key(self) -> str:
        """Digest of the data."""


class Fitted(Releasing):
    """Base of objects that release data once: account, fit, checkpoint.

    A subclass reads its data into a :class:`Task`, trains by
    ``_train_on``, which pays before it draws noise, and names its
    ``_setting`` and the entries of its checkpoint.
    """

    advice = 'Save state_dict()'
    #: Entries of a checkpoint beside those of every fit.
    _entries: ClassVar[tuple[str, ...]]
    epsilon: float
    delta: float
    limit: float

    def _set_budget(
        self,
        epsilon: float,
        delta: float,
        shares: tuple[float, ...],
        ledger: str | Path | None,
        ledger_head: str | None,
        seed: int | None,
    ) -> None:
        self.epsilon = check_positive('epsilon', epsilon)
        self.delta = check_delta(delta)
        self.limit = gaussian_mu_for(self.epsilon, self.delta)
        self.shares = shares
        self._set_account(ledger, ledger_head, seed)
        # Seal of the last fit's data: without a salt it would confirm guesses.
        self._task_seal: Seal | None = None
        self._lock = ObjectLock()

    @property
    def mus(self) -> tuple[float, ...]:
        r""":math:`\mu` of each release of a fit."""
        return tuple(self.limit * math.sqrt(s) for s in self.shares)

    def _setting(self) -> dict[str, Any]:
        raise NotImplementedError

    def _prepare(self, task: Any) -> None:
        """Refuse a task that can't be trained on, before anything is spent."""

    def _check_blank(self, task: Any) -> None:
        """Refuse a task that holds what was removed."""

    def _start(self, graph: CSRGraph) -> None:
        """Begin the removals of a new release."""

    def _read_coverage(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that a state's removals set."""
        return {}

    def _train_on(self, task: Any, account: ReleaseAccount) -> None:
        raise NotImplementedError

    def _fit(self: Model, task: Task) -> Model:
        # The same data again change nothing and cost nothing.
        if self._task_seal is not None and self._task_seal.fits(task.key):
            return self
        check_alone()
        if self.relation.name != 'edge':
            warn_of_delta(self.delta, task.graph.num_nodes, 'nodes')
        self._check_blank(task)
        self._prepare(task)
        account = self._open(task.graph.num_nodes)
        with account.lock:
            # Check the whole cost first: no budget is spent on half of a
            # model.
            account.check(math.hypot(*self.mus))
            # If training stops early, spent budget stays spent.
            self._train_on(task, account)
            self._start(task.graph)
            self._task_seal = Seal.of(task.key)
        if self.seed is None:
            features = ''
            if self.relation.name != 'edge':
                features = fingerprint(*stored(task.x))
            warn_of_other_releases(
                *(self.relation, task.graph, features),
                *(account, self.delta, 6),
            )
        return self

    def _reported(self, delta: float | None) -> dict[str, Any]:
        # The fields of a report that all fits share.
        if self._account is None:
            raise RuntimeError('fit data first: nothing was released')
        delta = self.delta if delta is None else check_delta(delta)
        made = provenance(**self._setting())
        return {**self._spent(delta), 'provenance': made}

    def _saved(self) -> dict[str, Any]:
        # The entries that every checkpoint has.
        assert self._account is not None
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'setting': self._setting(),
            'history': list(self._account.lines),
            'ledger': self._account.head or '',
        }

    def _check_saved(self, state: Any) -> dict[str, Any]:
        check_instance('state', state, dict)
        entries = ('setting', 'history', 'ledger', *self._entries)
        check_state(state, entries, (FORMAT,), self)
        check_instance('state', state['setting'], dict)
        with reading():
            return self._read_coverage(state)

    def _take_coverage(self, found: dict[str, Any]) -> None:
        vars(self).update(found)
        self._task_seal = None

    def _check_paid(self, state: dict[str, Any]) -> list[float]:
        # The lines of a checkpoint, which pay for what it holds.
        check_instance('state', state['history'], list)
        lines = [check_positive('state', mu) for mu in state['history']]
        needed = math.hypot(*self.mus)
        if math.hypot(*lines) < needed * (1 - 1e-9):
            raise ValueError(
                "'state' needs a 'history' that pays for the rows and weights "
                f'it holds (got mu {math.hypot(*lines):.6g}, need '
                f'{needed:.6g})'
            )
        return lines


class PrivateFit(Coverage, Fitted):
    """Base of private models of graphs, whose noise covers removals."""

    delta: float
    limit: float


def take(lines: list[float], mu: float) -> float:
    r"""Remove one line with this :math:`\mu`, and return it or 0."""
    for line in lines:
        if math.isclose(line, mu, rel_tol=1e-9):
            lines.remove(line)
            return line
    return 0.0


def check_shares(
    shares: Sequence[float] | None, default: tuple[float, ...], names: str
) -> tuple[float, ...]:
    r"""Check the shares of :math:`\mu^2` that the releases of a fit have.

    Args:
        shares (sequence of float, optional): as given.
        default (tuple): without any; one number a release.
        names (str): the names of the releases, for the message.
    """
    size = len(default)
    if shares is None:
        return default
    if isinstance(shares, str) or not isinstance(shares, Sequence):
        raise TypeError(
            f"'shares' needs to be {size} numbers (got "
            f'{type(shares).__name__})'
        )
    made = [check_number('shares', share) for share in shares]
    fine = len(made) == size and all(0 < share < 1 for share in made)
    if not fine or not math.isclose(sum(made), 1.0, rel_tol=1e-9):
        raise ValueError(
            f"'shares' needs to be {size} positive numbers that sum to 1, for "
            f'{names} (got {shares})'
        )
    return tuple(made)
