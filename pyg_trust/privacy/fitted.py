"""Base of models that are fitted to a private graph once.

A fit of one data set is a few Gaussian releases on one account, whose shares
of the budget are fixed before. What was released is kept: it predicts without
reading an edge, and is saved with the lines of the account that paid for it.
"""

import hmac
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from pyg_trust._checks import check_instance, check_number, check_positive
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust._checks.graphs import warn_of_delta
from pyg_trust._checks.states import (
    FORMAT,
    check_settings,
    check_state,
    kind_of,
    reading,
)
from pyg_trust.account import PaidNoise
from pyg_trust.files.commit import ObjectLock, editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.gaussian import gaussian_mu_for
from pyg_trust.privacy.mechanisms import check_delta
from pyg_trust.report import provenance
from pyg_trust.transforms.release_checks import (
    Releasing,
    check_alone,
    warn_of_other_releases,
)

Model = TypeVar('Model', bound='Fitted')


class Seal(NamedTuple):
    """Digest (HMAC) of a content, which reveals nothing without its salt."""

    salt: bytes
    digest: str

    @classmethod
    def of(cls, text: str, salt: bytes | None = None) -> 'Seal':
        """Digest a content with a salt, by default 32 new random bytes."""
        salt = secrets.token_bytes(32) if salt is None else salt
        return cls(salt, hmac.digest(salt, text.encode(), 'sha256').hex())

    def fits(self, text: str) -> bool:
        """Compare a content with the seal."""
        return self.of(text, self.salt) == self


class Task(NamedTuple):
    """Checked data of a fit: with a digest, and what else a model reads."""

    graph: CSRGraph
    x: Tensor
    key: str
    more: Any = None


class Fitted(Releasing):
    """Base of objects that release data once: account, fit, checkpoint."""

    advice = 'Save state_dict()'
    #: Attributes that a checkpoint repeats as settings.
    _arguments: ClassVar[tuple[str, ...]]
    #: Entries of a checkpoint beside those of every fit.
    _entries: ClassVar[tuple[str, ...]]
    #: What is fitted.
    _noun: ClassVar[str] = 'data'
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
        r""":math:`\mu` of each part of a fit."""
        return tuple(self.limit * math.sqrt(s) for s in self.shares)

    def _costs(self) -> list[float]:
        # What a fit spends, in the order of its draws.
        return list(self.mus)

    def _check_fitted(self) -> None:
        if not self._has_fit():
            raise RuntimeError(f'fit {self._noun} first')

    def _has_fit(self) -> bool:
        raise NotImplementedError

    def _check_blank(self, task: Any) -> None:
        """Refuse a task that holds what was removed."""

    def _start(self, graph: CSRGraph) -> None:
        """Begin the removals of a new release."""

    def _read_coverage(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that a state's removals set."""
        return {}

    def _prepare(self, task: Any) -> None:
        """Refuse a task that can't be trained on, before anything is spent."""

    def _release(self, task: Any, paid: PaidNoise) -> None:
        raise NotImplementedError

    def _fit(self: Model, task: Task) -> Model:
        # The same data again change nothing and cost nothing.
        if self._task_seal is not None and self._task_seal.fits(task.key):
            return self
        check_alone()
        if self.relation.adjacency != 'edge':
            warn_of_delta(self.delta, task.graph.num_nodes, 'nodes')
        self._check_blank(task)
        self._prepare(task)
        account = self._open(task.graph.num_nodes)
        with account.lock:
            # Check the whole cost first: no budget is spent on half of a
            # model.
            account.check(math.hypot(*self.mus))
            # If training stops early, spent budget stays spent.
            source = self._source(len(account.lines))
            self._release(
                task, PaidNoise(source, account.spend, self._costs())
            )
            self._start(task.graph)
            self._task_seal = Seal.of(task.key)
        if self.seed is None:
            features = ''
            if self.relation.adjacency != 'edge':
                features = fingerprint(*stored(task.x))
            warn_of_other_releases(
                *(self.relation, task.graph, features),
                *(account, self.delta, 6),
            )
        return self

    @synchronized
    def report(self, delta: float | None = None) -> Any:
        r"""Return the guarantee so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        self._check_fitted()
        assert self._account is not None
        delta = self.delta if delta is None else check_delta(delta)
        others = list(self._account.lines)
        own = [take(others, mu) for mu in self._costs()]
        made = provenance(**self._setting())
        shared = {**self._spent(delta), 'provenance': made}
        return self._reported(shared, own, others)

    def _reported(
        self, shared: dict[str, Any], own: list[float], others: list[float]
    ) -> Any:
        # The report, of the fields of all fits, its own lines of the account
        # and those of other releases.
        raise NotImplementedError

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return what was released and the account, without private rows."""
        self._check_fitted()
        assert self._account is not None
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'setting': self._setting(),
            'history': list(self._account.lines),
            'ledger': self._account.head or '',
            **self._pack(),
        }

    def _pack(self) -> dict[str, Any]:
        raise NotImplementedError

    def _unpack(self, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        # The number of nodes, and the attributes that a state sets.
        raise NotImplementedError

    def _setting(self) -> dict[str, Any]:
        return {
            **self.relation.header(),
            'epsilon': self.epsilon,
            'delta': self.delta,
            'shares': self.shares,
            'seeded': self.seed is not None,
            **{name: getattr(self, name) for name in self._arguments},
        }

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Args:
            state (dict): the :meth:`state_dict` of a model with the same
                arguments.

        Raises:
            ValueError: if the state has other arguments or doesn't continue
                the present account. Nothing is changed then.
        """
        check_instance('state', state, dict)
        entries = ('setting', 'history', 'ledger', *self._entries)
        check_state(state, entries, (FORMAT,), self)
        check_instance('state', state['setting'], dict)
        with reading():
            covered = self._read_coverage(state)
        self._check_setting(dict(state['setting']))
        num_nodes, found = self._unpack(state)
        check_instance('state', state['history'], list)
        lines = [check_positive('state', mu) for mu in state['history']]
        others = list(lines)
        if not all(take(others, mu) for mu in self._costs()):
            raise ValueError(
                "'state' needs a 'history' that pays for the releases it holds"
            )
        self._open(num_nodes).resume(lines, state['ledger'])
        vars(self).update({**found, **covered, '_task_seal': None})

    def _check_setting(self, theirs: dict[str, Any]) -> None:
        check_settings('setting', theirs, self._setting())


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
    r"""Check the shares of :math:`\mu^2` that the releases of a fit have."""
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
