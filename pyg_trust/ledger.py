"""Ledgers of certified procedures: the spent and the remaining budget."""

import contextlib
import copy
import json
import math
import os
import re
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyg_trust import files
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_non_negative,
    check_plain,
    check_positive,
    check_rate,
)
from pyg_trust.files.commit import ObjectLock, editing

# Importable from here for users of 0.1.
from pyg_trust.files.seals import Seals, content  # noqa: F401
from pyg_trust.removal import Removed
from pyg_trust.report import Report
from pyg_trust.verify import chain
from pyg_trust.verify.chain import LISTED, references
from pyg_trust.verify.removal import together

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

__all__ = [
    'BudgetExceededError',
    'LedgerEntry',
    'PrivacyLedger',
    'RemovalLedger',
    'coarse',
]


_ACTIONS = ('fit', 'refine', 'retrain', 'measured', 'step')


class BudgetExceededError(RuntimeError):
    """Raised before a call would exceed the budget; nothing was changed."""


@dataclass(frozen=True)
class LedgerEntry(Report):
    """Line of a :class:`RemovalLedger`.

    Args:
        action (str): how the model was made: ``'fit'`` or another action of
            :meth:`RemovalLedger.record`.
        spent (float): the amount that is spent after this line, in the unit of
            the ledger's budget.
        request (dict): the ids of the removed items.
        data (str): a salted digest of the remaining data.
        link (str): a hash of this line and all lines before it.
        reference (str): the ids of the requests that this line carried out, 32
            hexadecimal digits each, without a separator. (default: :obj:`''`)
    """

    action: str
    spent: float
    request: dict[str, Any]
    data: str
    link: str
    reference: str = ''

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, without an empty ``reference``."""
        made = super().to_dict()
        if not self.reference:
            del made['reference']
        return made


class RemovalLedger:
    """Record what a model removed and how much budget that spent.

    Each line has the ids of the removed items, a digest of the remaining data,
    and the amount that is spent since the last fit: for certified classifiers
    a bound of the sensitivity-to-noise ratio of the newest release, and 0 for
    models that forget exactly. Each line has a hash of itself and of all lines
    before it, so that :meth:`load_state_dict` refuses changed or older lists.

    Keep ledgers private, as they list the ids of removed items. They do not
    show the contents of these items: digests are salted, and amounts are
    constant or rounded to powers of two (:func:`coarse`).

    Args:
        budget (float): the largest amount that may be spent.

    Example:
        >>> ledger = RemovalLedger(budget=1.0)
        >>> _ = ledger.record('fit', 0.0)
        >>> _ = ledger.record('step', 0.25)
        >>> ledger.remaining
        0.75
    """

    def __init__(self, budget: float) -> None:
        self.budget = check_non_negative('budget', budget)
        self._past, self._count = _Past(), 0
        # Names of changes since the last line, each with their number, and the
        # process that may add to that of the last.
        self._marks: dict[str, int] = {}
        self._turn: list[int] = []

    @property
    def num_lines(self) -> int:
        """The number of lines."""
        return self._count

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All lines, the oldest first."""
        return self.newest(self._count)

    @property
    def last(self) -> LedgerEntry | None:
        """The newest line; :obj:`None` before the first."""
        return self._past.lines[self._count - 1] if self._count else None

    def newest(self, count: int) -> tuple[LedgerEntry, ...]:
        """Return the newest ``count`` lines, the oldest of them first."""
        first = max(0, self._count - count)
        return tuple(self._past.lines[first : self._count])

    def amounts(self) -> tuple[float, ...]:
        """Return ``spent`` of each of the newest 64 lines, the oldest first.

        If there are more lines, the first number stands for its own line and
        all before it: the root of the sum of their squares, which is the joint
        sensitivity-to-noise ratio of several releases.
        """
        newest = [line.spent for line in self.newest(LISTED)]
        if self._count > LISTED:
            newest[0] = self._past.together[self._count - LISTED]
        return tuple(newest)

    @property
    def removed(self) -> Removed:
        """The items that were removed and not added again; read only."""
        self._own()
        return self._past.removed

    @property
    def spent(self) -> float:
        """The amount of the newest line; 0 before the first line."""
        return 0.0 if self.last is None else self.last.spent

    @property
    def remaining(self) -> float:
        """The budget minus the spent amount."""
        return self.budget - self.spent

    @property
    def head(self) -> str:
        """The hash of all lines, which the newest has; '' without lines."""
        return '' if self.last is None else self.last.link

    def records(self, *digests: str) -> bool:
        """Return whether the newest line is of one of these states of data.

        ``digests`` are salted, as :meth:`record` takes them as ``data``.
        """
        return self.last is not None and self.last.data in digests

    def has(self, head: str, count: int = 0) -> bool:
        """Return whether a line has the hash ``head``.

        More generally, ``ledger.has(*other.tip)`` returns whether the ledger
        has the state of ``other``, as :attr:`tip` names it by ``head`` and
        ``count``. The ledger of an older copy of the model lacks it.
        """
        check_instance('head', head, str)
        known = self._marks.get(head, -1)
        if self._past.heads.get(head, self._count) < self._count:
            known = self._past.counts.get(head, 0)
        return known >= count

    def refers_to(self, reference: str) -> bool:
        """Return whether lines have all the 32-digit ids in ``reference``."""
        check_instance('reference', reference, str)
        found, count = self._past.batches, self._count
        each = references(reference)
        return bool(each) and all(found.get(x, count) < count for x in each)

    def check_reference(self, reference: str) -> None:
        """Raise an error if a reference is malformed or was used before."""
        check_instance('reference', reference, str)
        each = references(reference)
        whole = re.fullmatch('([0-9a-f]{32})*', reference)
        if not whole or len({*each}) != len(each):
            raise ValueError(
                "'reference' needs to have 32 hexadecimal digits, or as many "
                'for each of several requests '
                f'(got {len(reference)} characters)'
            )
        for used in filter(self.refers_to, each):
            raise ValueError(
                f"'reference' can't be used again (got {used}, which a line "
                'of the ledger has: what it asked for was done)'
            )

    @property
    def has_removals(self) -> bool:
        """Whether any line has removed items."""
        return self._past.first_request < self._count

    def copy(self) -> 'RemovalLedger':
        """Return an independent ledger with the same lines."""
        made = RemovalLedger(self.budget)
        made._past, made._count = self._past, self._count
        made._marks, made._turn = self._marks, self._turn
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> 'RemovalLedger':
        return self.copy()

    def _own(self) -> None:
        # Copies share their lines until one of them goes another way.
        if self._count != len(self._past.lines):
            made = _Past()
            for each in zip(self.entries, self._past.marks, strict=False):
                made.add(*each)
            self._past = made

    def record(
        self,
        action: str,
        spent: float,
        request: dict[str, Any] | None = None,
        data: str = '',
        reference: str = '',
    ) -> LedgerEntry:
        """Append a line; call it before the new model becomes visible.

        Args:
            action (str): :obj:`'fit'`, :obj:`'refine'` or :obj:`'retrain'` for
                a model solved anew, :obj:`'measured'` for one whose gradient
                norm was measured on all remaining data, or :obj:`'step'` for
                an update whose amount adds to the earlier ones.
            spent (float): the amount spent after this line, in the unit of the
                budget; not the difference to the line before.
            request (dict, optional): the ids of the removed items; by default
                none.
            data (str): a salted digest of the remaining data.
                (default: :obj:`''`)
            reference (str): ids of the requests carried out, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            ValueError: on another action, a negative amount, a lower one in a
                step, a first line that is no fit, or a reference that is
                malformed or was used before.
            BudgetExceededError: if the amount exceeds the budget.
        """
        check_choice('action', action, _ACTIONS)
        if (action == 'fit') != (not self._count):
            raise ValueError(
                "the first line, and it alone, needs to be a 'fit' "
                f'(got {action!r} as line {self._count})'
            )
        check_non_negative('spent', spent)
        check_instance('data', data, str)
        request = {} if request is None else request
        check_plain('request', request)
        self.check_reference(reference)
        if action == 'step' and spent < self.spent:
            raise ValueError(
                f"'spent' can't fall in a step (got {spent}, after "
                f'{self.spent})'
            )
        if spent > self.budget:
            raise BudgetExceededError(
                f'{action} would spend {spent:.6g} of a budget of '
                f'{self.budget:.6g}'
            )
        # Copy: reports and states hold the same object.
        kept = copy.deepcopy(request)
        body: dict[str, Any] = {'action': action, 'spent': float(spent)}
        body |= {'request': kept, 'data': data}
        body |= {'reference': reference} if reference else {}
        entry = LedgerEntry(**body, link=chain.link(self.head, *body.values()))
        with self._past.lock.turn:
            self._own()
            self._past.add(entry, self._marks)
            self._count, self._marks, self._turn = self._count + 1, {}, []
        return entry

    @classmethod
    def after(
        cls, before: 'RemovalLedger | None', budget: float
    ) -> 'RemovalLedger':
        """Return an empty ledger with a budget, for a new fit of a model.

        If :obj:`before`, the ledger of the previous fit, lists no removals,
        the new fit may be saved over its files. Otherwise saving is refused.
        """
        made = cls(budget)
        if before is not None and not before.has_removals:
            past = before._past
            made._marks = {
                name: past.counts.get(name, 0)
                for name, at in past.heads.items()
                if at < before._count
            } | before._marks
        return made

    def mark(self) -> None:
        """Change :attr:`tip`, as the model changed without a new line."""
        # The first of several copies counts on; others have a name of theirs.
        name, me = secrets.token_hex(16), os.getpid()
        with contextlib.suppress(IndexError):
            if self._turn.pop() == me:
                name = [*self._marks][-1]
        self._marks = {**self._marks, name: self._marks.get(name, 0) + 1}
        self._turn = [me]

    @property
    def tip(self) -> tuple[str, int]:
        """Id of the state, for :meth:`has`: a hash or a mark, and a count."""
        return [(self.head, 0), *self._marks.items()][-1]

    def state_dict(self) -> dict[str, Any]:
        """Return a dict of the ``'budget'`` and all lines, ``'entries'``."""
        lines = [entry.to_dict() for entry in self.entries]
        made: dict[str, Any] = {'budget': self.budget, 'entries': lines}
        marks = [*self._past.marks[: self._count], self._marks]
        named = [[n, *m] for n, each in enumerate(marks) for m in each.items()]
        return {**made, 'marks': named} if named else made

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`, if it continues this ledger.

        Raises:
            ValueError: if the budget differs, a line was changed, or the
                state does not begin with the present lines.
        """
        check_instance('state', state, dict)
        budget, lines = state.get('budget'), state.get('entries')
        if budget != self.budget:
            raise ValueError(
                f"the state's budget needs to be {self.budget} (got {budget})"
            )
        if not isinstance(lines, list):
            raise ValueError(
                "'state' needs to hold a list of 'entries' "
                f'(got {type(lines).__name__})'
            )
        made, fields = RemovalLedger(self.budget), {*chain.REMOVAL, 'link'}
        marks: dict[int, dict[str, int]] = {}
        for at, mark, count in state.get('marks', ()):
            check_integer('marks', at, 0, len(lines))
            check_instance('marks', mark, str)
            number = check_integer('marks', count, 0)
            marks.setdefault(at, {})[mark] = number
        made._marks = marks.get(0, {})
        for number, line in enumerate(lines):
            names = {*line, 'reference'} if isinstance(line, dict) else {}
            if names != fields:
                raise ValueError(
                    f"'state' needs to have {sorted(fields)} in line {number} "
                    f'of its entries (got {line!r})'
                )
            parts = {k: v for k, v in line.items() if k != 'link'}
            if made.record(**parts).link != line['link']:
                raise ValueError(f'line {number} of the state was changed')
            made._marks = marks.get(number + 1, {})
        # A link fixes all lines before it.
        if self._count and not made.has(*self.tip):
            raise ValueError(
                'the state does not continue the present one: removals can '
                'not be turned back; a new object can load it'
            )
        vars(self).update(vars(made))

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(spent={self.spent:.6g}, '
            f'budget={self.budget:.6g}, lines={self._count})'
        )


class _Past:
    # Lines that ledgers share, and where each is found.
    def __init__(self) -> None:
        self.lines: list[LedgerEntry] = []
        # The names of states before each line; of lines and names, the line
        # from which on they are known.
        self.marks: list[dict[str, int]] = []
        self.counts: dict[str, int] = {}
        self.heads: dict[str, int] = {}
        self.batches: dict[str, int] = {}
        self.together: list[float] = []
        self.first_request = math.inf
        self.removed, self.lock = Removed(), ObjectLock()

    def add(self, line: LedgerEntry, marks: dict[str, int]) -> None:
        number = len(self.lines)
        self.removed.add(line.request)
        self.heads |= dict.fromkeys((*marks, line.link), number)
        self.marks.append(marks)
        self.counts |= marks
        self.batches |= dict.fromkeys(references(line.reference), number)
        if line.request:
            self.first_request = min(self.first_request, number)
        self.together.append(together([*self.together[-1:], line.spent]))
        self.lines.append(line)


def coarse(amount: float, bits: int = 1) -> float:
    r"""Round an amount up to a few significant bits; 0 stays 0.

    If an amount is computed from data, somebody who guesses the data can test
    the guess by all 16 digits. Rounded up, it reveals little but its size.

    Args:
        amount (float): the amount, non-negative.
        bits (int): the number of significant bits; 1 rounds to a power of two.
            (default: :obj:`1`)

    Example:
        >>> coarse(0.3), coarse(0.5), coarse(0.0), coarse(0.3, 4)
        (0.5, 0.5, 0.0, 0.3125)
    """
    amount = check_non_negative('amount', amount)
    check_integer('bits', bits, 1, 53)
    fraction, exponent = math.frexp(amount)
    return math.ldexp(math.ceil(math.ldexp(fraction, bits)), exponent - bits)


class PrivacyLedger:
    """Record the privacy cost of training in an append-only file.

    A line is written to the disk *before* the noisy gradient of a step is
    made: a crash can waste a step of the budget, but never hide one. The first
    line describes the mechanism; each line has a hash of itself and of all
    lines before it. A last line that is cut short is dropped; any other damage
    is refused.

    Somebody who cuts off whole lines, or restores an older copy, hides spent
    budget. To notice this, keep a copy of :attr:`head` (reports and
    checkpoints have it) and pass it as :obj:`head`. If the open file is
    changed, the next call that writes a line raises an error.

    The file is locked until the ledger is closed or deleted, so that two
    processes can't spend at once. It holds public numbers only.

    Args:
        path (str or Path): the path of the file, created if it does not exist.
        header (dict): plain values that describe the mechanism; an existing
            file has to have the same.
        head (str, optional): an earlier :attr:`head`, which the file has to
            continue; by default any file is accepted.

    Raises:
        ValueError: if the file is of another mechanism, was changed, or does
            not continue :obj:`head`.
        RuntimeError: if another process has the file open, or the ledger was
            opened before a fork and is used after it.
    """

    def __init__(
        self,
        path: str | Path,
        header: dict[str, Any],
        head: str | None = None,
    ) -> None:
        check_instance('path', path, str, Path)
        self.path = Path(path).absolute()
        if head is not None:
            check_instance('head', head, str)
            if not self.path.exists() or not self.path.stat().st_size:
                raise ValueError(
                    f"'head' needs a ledger that goes on from it, and {path} "
                    'is empty or not there'
                )
        check_plain('header', header)
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        # Release the lock with the ledger, also after an error or an
        # interrupt.
        self._close = weakref.finalize(self, os.close, self._file)
        self._lock, self._process = ObjectLock(), os.getpid()
        try:
            try:
                if fcntl is not None:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RuntimeError(
                    f'the ledger {self.path} is open in another process or '
                    'engine'
                ) from None
            self._read()
            if head is not None and not self.has(head):
                raise ValueError(
                    f"the ledger {self.path} needs to go on from 'head' (got "
                    f'{head!r}), and is older or another: lines were cut off, '
                    'or a copy was put in its place'
                )
            if not self._known.links:
                self._write(self._header)
                # A new file is durable once its name is.
                files.sync_folder(self.path.resolve().parent)
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> str:
        """The hash of all lines so far, 64 hexadecimal digits."""
        return self._account.links[-1]

    def has(self, head: str) -> bool:
        """Return whether a line has the hash ``head``."""
        check_instance('head', head, str)
        return head in self._account.links

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return len(self._account.lines)

    @property
    def pure_epsilon(self) -> float:
        """The sum of the epsilons passed to :meth:`record_pure`, in nats."""
        return self._account.pure_epsilon

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """The steps: tuples of noise multiplier, sample rate and count."""
        merged: list[tuple[float, float, int]] = []
        for line in self._account.lines:
            same = merged and merged[-1][:2] == line
            merged.append((*line, 1 + (merged.pop()[2] if same else 0)))
        return merged

    @editing
    def record(self, noise_multiplier: float, sample_rate: float) -> None:
        """Record a step; it is on disk when the call returns.

        Args:
            noise_multiplier (float): the noise's standard deviation over the
                clipping norm, as in Opacus.
            sample_rate (float): the probability of a subgraph, or of a person
                if persons are protected, to be in the batch.
        """
        line = list(_step(noise_multiplier, sample_rate))
        self._append(lambda: {'step': self.steps + 1, 'spent': line})

    @editing
    def record_pure(self, epsilon: float) -> None:
        """Record a release with a delta of 0, besides the steps.

        Args:
            epsilon (float): the epsilon of the release, in nats;
                ``pure_epsilon`` is the sum over releases.
        """
        epsilon = check_positive('epsilon', epsilon)
        self._append(lambda: {'epsilon': epsilon})

    def close(self) -> None:
        """Close and unlock the file."""
        self._close()

    @property
    def _account(self) -> '_Account':
        # No thread reads while another one writes; a signal handler may.
        with self._lock.turn:
            if self._unsure and self._lock.doing is None:
                self._read()
            return self._known

    def _read(self) -> None:
        self._check_place()
        raw = self.path.read_bytes()
        end = raw.rfind(b'\n') + 1
        found = chain.of_steps(raw[:end], False)
        account, broken = _Account(found.links, end), found.broken
        for number, body in enumerate(found.bodies[1:], 2):
            if 0 < broken <= number:
                break
            try:
                account.add(body)
            except (ArithmeticError, KeyError, TypeError, ValueError):
                broken = number
        if broken:
            raise ValueError(
                f'line {broken} of the ledger {self.path} was changed'
            )
        if found.bodies and found.bodies[0] != self._header:
            raise ValueError(
                f'the ledger {self.path} is of another mechanism: it has '
                f'{_differing(found.bodies[0], self._header)}'
            )
        if end < len(raw):
            os.ftruncate(self._file, end)
        self._known, self._unsure = account, False

    def _append(self, line: Callable[[], dict[str, Any]]) -> None:
        self._check_place()
        if self._unsure:
            self._read()
        body = line()
        # Until it ends: an interrupt may come when the line is in the file.
        self._unsure = True
        self._write(body)
        self._known.add(body)
        self._unsure = False

    def _write(self, body: dict[str, Any]) -> None:
        account = self._known
        link, data = chain.line(self.head if account.links else '', body)
        end = os.lseek(self._file, 0, os.SEEK_END)
        if end != account.end:
            raise ValueError(
                f'the ledger {self.path} was changed while it was open: it '
                f'has {end} bytes instead of {account.end}'
            )
        whole = end + len(data)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            # A full disk: leave no half of a line for the next to follow.
            os.ftruncate(self._file, end)
            raise
        account.links.append(link)
        account.end = whole

    def _check_place(self) -> None:
        if not self._close.alive:
            raise ValueError(f'the ledger {self.path} is closed')
        if os.getpid() != self._process:
            raise RuntimeError(
                f'the ledger {self.path} was opened by process '
                f'{self._process}, of which this one ({os.getpid()}) is a '
                'fork: both would spend one budget. Open it in the process '
                'that trains alone'
            )
        # A write to a deleted file would be lost.
        mine = os.fstat(self._file)
        if not self.path.exists() or not os.path.samestat(
            mine, os.stat(self.path)
        ):
            raise ValueError(
                f'the ledger {self.path} was removed or replaced while it was '
                'open'
            )

    def _refused(self, *_: Any) -> Any:
        raise TypeError("a ledger can't be copied: two would spend one budget")

    __copy__ = __deepcopy__ = __reduce_ex__ = _refused

    def __repr__(self) -> str:
        return f'{type(self).__name__}({str(self.path)!r}, steps={self.steps})'


class _Account:
    # The sum of a file's lines, their hashes, and their end.
    def __init__(self, links: list[str], end: int) -> None:
        self.links, self.end = links, end
        self.lines: list[tuple[float, float]] = []
        self.pure_epsilon = 0.0

    def add(self, body: dict[str, Any]) -> None:
        # Refuse lines that `record` would refuse: a negative amount would give
        # back budget, and NaN would never exceed one.
        if set(body) == {'epsilon'}:
            self.pure_epsilon += check_positive('epsilon', body['epsilon'])
        elif set(body) == {'step', 'spent'} and (
            body['step'] == len(self.lines) + 1
        ):
            self.lines.append(_step(*body['spent']))
        else:
            raise ValueError


def _step(noise_multiplier: float, sample_rate: float) -> tuple[float, float]:
    noise = check_positive('noise_multiplier', noise_multiplier)
    return noise, check_rate('sample_rate', sample_rate)


def _differing(found: Any, expected: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return repr(found)
    return ', '.join(
        f'{name}={found.get(name)!r} instead of {expected.get(name)!r}'
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    )
