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
    validated,
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
    """Mixin: copying returns self, and pickling is refused.

    A copy would spend the same budget again.
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
    r"""Account of Gaussian releases, in memory or in a file.

    One account is for one relation and one set of data. Copies are the account
    itself; it can't be pickled or used by another process.

    Args:
        about (dict): plain values that identify the account; a ledger has to
            have the same.
        limit (float, optional): the largest :math:`\mu` of all releases
            together. (default: :obj:`None`)
        ledger (str or Path, optional): the path of a file for the account
            (:class:`~pyg_trust.ledger.PrivacyLedger`); spending that it
            records counts. (default: :obj:`None`)
        ledger_head (str, optional): a digest of the ledger that its lines have
            to continue. (default: :obj:`None`)

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
        r"""The :math:`\mu` that is left for another release."""
        if self.limit is None:
            return math.inf
        return math.sqrt(max(0.0, self.limit**2 - self.mu**2))

    @property
    def name(self) -> str:
        """The path of the ledger, or else a name unique to this account."""
        return self._name

    @property
    def head(self) -> str | None:
        """Digest of all lines of the ledger; keep a copy of it elsewhere."""
        return None if self._ledger is None else self._ledger.head

    def check(self, mu: float) -> None:
        r"""Refuse a release of so much :math:`\mu` that exceeds the limit."""
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
        """Record a Gaussian release of ``mu`` before its noise is drawn."""
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
        r"""Continue from the lines in a checkpoint.

        Args:
            lines (list[float]): the :math:`\mu` of every release.
            head (str): the digest of its ledger; empty without one.
        """
        check_instance('lines', lines, list)
        lines = [check_positive('lines', mu) for mu in lines]
        check_instance('head', head, str)
        with self.lock:
            present = list(self.lines)
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
    r"""Register a release; return :math:`\mu` of all releases of the data.

    ``secret`` fingerprints the data, ``unit`` is what is protected; other
    accounts of this process count, too, as none knows of the others.
    """
    check_instance('secret', secret, list)
    for name, value in (('unit', unit), ('account', account)):
        check_instance(name, value, str)
    mu = check_positive('mu', mu)
    others: dict[str, float] = {}
    with _REGISTER:
        for each in secret:
            check_instance('secret', each, str)
            text = f'{unit} {each}'.encode()
            digest = hashlib.blake2b(text, key=_KEY).digest()
            seen = _RELEASED.setdefault(digest, {})
            others |= seen
            seen[account] = max(mu, seen.get(account, 0.0))
    others.pop(account, None)
    return math.hypot(mu, *others.values())


class PaidNoise:
    r"""Source of noise that pays for each draw beforehand.

    Args:
        source (SecureNoise or SeededNoise): the source of the noise.
        spend (callable): called with the :math:`\mu` of a draw, to pay for it.
        mus (list[float]): the :math:`\mu` of all draws to come, in order.
    """

    @validated
    def __init__(
        self,
        source: SecureNoise | SeededNoise,
        spend: Callable[[float], None],
        mus: list[float],
    ) -> None:
        check_instance('mus', mus, list)
        self._source, self._spend = source, spend
        self._mus = [check_positive('mus', mu) for mu in mus]

    def pay(self) -> SecureNoise | SeededNoise:
        """Pay for the next release; return the source of all its draws."""
        if not self._mus:
            raise RuntimeError('all draws that were planned are spent')
        self._spend(self._mus.pop(0))
        return self._source

    def cells(self, shape: tuple[int, ...]) -> Tensor:
        """Pay for noise, then draw it: int64, in 2^-32 standard deviations."""
        check_instance('shape', shape, tuple)
        return self.pay().cells(shape)


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-12)


def _releases(ledger: PrivacyLedger) -> list[float]:
    steps = ledger.history
    return [2 / noise for noise, _, count in steps for _ in range(count)]
