r"""Account of noisy releases, which records what was spent for good.

A release of Gaussian noise is one number, :math:`\mu`, and releases add up in
squares. A line is on the account, and on the disk if there is a ledger,
*before* the noise that it pays for is drawn: the end of the process can waste
some of the budget, never hide it.
"""

import hashlib
import math
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from pyg_trust._checks import (
    check_instance,
    check_ledger,
    check_positive,
)
from pyg_trust.ledger import BudgetExceededError, PrivacyLedger
from pyg_trust.noise import SecureNoise, SeededNoise

__all__ = [
    'NoCopies',
    'PaidNoise',
    'ReleaseAccount',
    'register_release',
]

# A limit is met up to rounding; the limits made here are rounded down.
_ROUNDING = 1e-12
Self = TypeVar('Self')


class NoCopies:
    """Mixin of classes that hold a privacy budget: they are never copied.

    ``copy.copy`` and ``copy.deepcopy`` return the object itself, and
    ``pickle`` raises a ``TypeError``: a copy would spend the same budget
    again.
    """

    #: What to do instead of pickling.
    advice = ''

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f'a {type(self).__name__} can not be pickled: what a copy spends '
            f'would not be on its account. {self.advice}'
        )


class ReleaseAccount(NoCopies):
    r"""Account of Gaussian releases of one data set, in memory or in a file.

    A Gaussian release adds normal noise to a function of the data. It costs
    :math:`\mu`, the sensitivity of the function over the standard deviation of
    the noise. Several cost the root of the sum of their squares. Copies are
    the account itself; it can't be pickled or used by another process.

    Args:
        about (dict): plain values that identify the account, such as what is
            protected. A ledger that exists has to hold the same.
        limit (float, optional): the largest :math:`\mu` of all releases
            together; by default there is no limit.
        ledger (str or Path, optional): the path of a file that keeps the
            account (:class:`~pyg_trust.ledger.PrivacyLedger`). Releases that
            it already holds count. (default: :obj:`None`, in memory)
        ledger_head (str, optional): a value of ``head`` that you noted. A
            ledger that does not continue from it is refused.

    Example:
        >>> account = ReleaseAccount({'relation': 'edge'}, limit=1.0)
        >>> account.spend(0.6)
        >>> round(account.left, 6)
        0.8
    """

    advice = 'Give the other process a ledger'

    def __init__(
        self,
        about: dict[str, Any],
        *,
        limit: float | None = None,
        ledger: str | Path | None = None,
        ledger_head: str | None = None,
    ) -> None:
        check_instance('about', about, dict)
        self.limit = None if limit is None else check_positive('limit', limit)
        check_ledger(ledger, ledger_head)
        self.about = dict(about)
        self.lock = threading.RLock()
        self._owner = os.getpid()
        self._spent: list[float] = []
        self._name = secrets.token_hex(16)
        self._ledger: PrivacyLedger | None = None
        if ledger is not None:
            header = {'format': 1, 'mechanism': 'gaussian', **about}
            self._ledger = PrivacyLedger(ledger, header, ledger_head)
            self._name = str(Path(ledger).resolve())
            self._spent = _releases(self._ledger)

    @property
    def lines(self) -> tuple[float, ...]:
        r"""The :math:`\mu` of every release, in order."""
        return tuple(self._spent)

    @property
    def mu(self) -> float:
        r"""The :math:`\mu` of all releases together."""
        return math.hypot(*self._spent)

    @property
    def left(self) -> float:
        r"""Largest :math:`\mu` of one more release; infinite without limit."""
        if self.limit is None:
            return math.inf
        return math.sqrt(max(0.0, self.limit**2 - self.mu**2))

    @property
    def name(self) -> str:
        """The path of the ledger, or else a name unique to this account."""
        return self._name

    @property
    def head(self) -> str | None:
        """SHA-256 of all lines of the ledger, to note elsewhere, or None."""
        return None if self._ledger is None else self._ledger.head

    def check(self, mu: float) -> None:
        """Raise ``BudgetExceededError`` if ``mu`` is more than ``left``."""
        mu = check_positive('mu', mu)
        if os.getpid() != self._owner:
            raise RuntimeError(
                'the account belongs to another process: release before '
                'workers are started'
            )
        if self.limit is not None and math.hypot(self.mu, mu) > self.limit * (
            1 + _ROUNDING
        ):
            raise BudgetExceededError(
                f"'mu' = {mu:.6g} is more than is left, {self.left:.6g} of "
                f'{self.limit:.6g}: other data or other messages are another '
                'release; nothing was spent'
            )

    def spend(self, mu: float) -> None:
        """Record a release that costs ``mu``, before its noise is drawn.

        If it would exceed the limit, ``BudgetExceededError`` is raised, and
        nothing is spent.
        """
        with self.lock:
            self.check(mu)
            if self._ledger is None:
                self._spent.append(float(mu))
                return
            try:
                # A step at rate 1 of noise 2 C / mu: what the accountants of
                # private training count as the same release.
                self._ledger.record(2 / float(mu), 1.0)
            finally:
                # An interrupted release counts if its line is in the file.
                self._spent = _releases(self._ledger)

    def resume(self, lines: list[float], head: str) -> None:
        r"""Add the releases of a checkpoint that this account lacks.

        Args:
            lines (list[float]): :math:`\mu` of each release of the checkpoint,
                in order. They have to begin with those of this account.
            head (str): ``head`` of the checkpoint's ledger; empty without
                one.
        """
        check_instance('lines', lines, list)
        lines = [check_positive('lines', mu) for mu in lines]
        check_instance('head', head, str)
        with self.lock:
            present = [*self._spent]
            shorter = min(len(present), len(lines))
            if not all(map(_close, present[:shorter], lines[:shorter])):
                raise ValueError(
                    "'lines' need to continue the present account: what was "
                    "spent can't be taken back"
                )
            if head and len(lines) > len(present) and self._ledger:
                raise ValueError(
                    "'lines' come from a ledger with lines that this one "
                    'lacks: it is older or another'
                )
            more = lines[shorter:]
            if more:
                self.check(math.hypot(*more))
            for mu in more:
                self.spend(mu)

    def close(self) -> None:
        """Close the ledger's file."""
        if self._ledger is not None:
            self._ledger.close()

    def __repr__(self) -> str:
        return f'{type(self).__name__}(mu={self.mu:.6g}, limit={self.limit})'


# Releases of this process: by a digest of the data (keyed by a number that no
# other process knows), the accounts and what each has spent.
_KEY = secrets.token_bytes(32)
_RELEASED: dict[bytes, dict[str, float]] = {}
_REGISTER = threading.Lock()


def register_release(
    secret: list[str], unit: str, account: str, mu: float
) -> float:
    r"""Register releases of data; return what this process spent on the data.

    ``secret`` are fingerprints of the data, and ``unit`` is what is protected,
    such as ``'edge'``. ``account`` is the name of the account that pays, and
    ``mu`` is the cost of all its releases so far. The result is the
    :math:`\mu` of these together with all other accounts' on the same data.
    """
    others: dict[str, float] = {}
    with _REGISTER:
        for each in secret:
            text = f'{unit} {each}'.encode()
            digest = hashlib.blake2b(text, key=_KEY).digest()
            seen = _RELEASED.setdefault(digest, {})
            others |= seen
            seen[account] = max(mu, seen.get(account, 0.0))
    others.pop(account, None)
    return math.hypot(mu, *others.values())


class PaidNoise:
    r"""Source of Gaussian noise that pays for every draw before it is made.

    Args:
        source (SecureNoise or SeededNoise): the source of the noise.
        spend (callable): ``spend(mu)`` pays, such as
            :meth:`ReleaseAccount.spend`.
        mus (list[float]): the cost of every planned draw in order: the
            sensitivity over the standard deviation of the noise.
    """

    def __init__(
        self,
        source: SecureNoise | SeededNoise,
        spend: Callable[[float], None],
        mus: list[float],
    ) -> None:
        self._source, self._spend, self._mus = source, spend, [*mus]

    def pay(self) -> SecureNoise | SeededNoise:
        """Pay for the next planned release; return the source of its noise."""
        if not self._mus:
            raise RuntimeError('all draws that were planned are spent')
        self._spend(self._mus.pop(0))
        return self._source

    def cells(self, shape: tuple[int, ...]) -> Tensor:
        """Pay for the next release, and draw its noise.

        The result is int64, of this ``shape``: standard normal values times
        2^32, rounded to integers.
        """
        return self.pay().cells(shape)


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-12)


def _releases(ledger: PrivacyLedger) -> list[float]:
    steps = ledger.history
    return [2 / noise for noise, _, count in steps for _ in range(count)]
