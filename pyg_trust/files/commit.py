r"""Guarded commits: a saved state is replaced only by its successor.

A removal that was saved must not come back. A state is written over another
one (:func:`save`, :class:`~pyg_trust.unlearning.store.ShardStore`) under the
lock of the place (:func:`exclusive`), if it *continues* the one that is there
(:func:`check_continues`, by the :class:`Lineage` of both), in one step
(:func:`pyg_trust.files.write`). Otherwise somebody else was here since it was
read, and :class:`StaleStateError` says what they did and what to do.

Threads that share an object take turns (:class:`ObjectLock`,
:func:`synchronized`, :func:`editing`).

Locks need a file system that has them: local disks do, some network file
systems do not. An older *copy* that is put in the place of a newer state
brings back the items that were removed in between: note ``RemovalLedger.head``
elsewhere, and ask a loaded ledger whether it has it (``RemovalLedger.has``).
"""

import contextlib
import copy
import functools
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from pyg_trust import files
from pyg_trust._checks import check_instance

__all__ = [
    'EditedInPlace',
    'Lineage',
    'ObjectLock',
    'StaleStateError',
    'check_continues',
    'editing',
    'exclusive',
    'peek',
    'save',
    'synchronized',
]

P = ParamSpec('P')
T = TypeVar('T')
Self = TypeVar('Self')


class StaleStateError(RuntimeError):
    """Raised if another object changed a saved state since it was read.

    Nothing was written. Load the state again, and repeat the request.
    """


class Lineage:
    """All states from the first to the present one, in runs of changes.

    A run has a token, 128 random bits, and the number of its states. Only the
    object that began it extends it: a second change of one state, and the
    first one after a state was read from a file or in another process, begin a
    run of their own. So two objects that go on from one state differ.

    Args:
        runs (list): the token and the number of states of each run, the
            oldest first; a token alone, as version 0.1 wrote it, is one state.

    Example:
        >>> first = Lineage().next()
        >>> one, two = first.next(), first.next()
        >>> one.generation, one.continues(first), one.continues(two)
        (1, True, False)
    """

    def __init__(self, runs: Iterable[Any] = ()) -> None:
        check_instance('runs', runs, list, tuple)
        pairs = [(r, 1) if isinstance(r, str) else tuple(r) for r in runs]
        for pair in pairs:
            if (
                [*map(type, pair)] != [str, int]
                or not re.fullmatch('[0-9a-f]{32}', pair[0])
                or pair[1] < 1
            ):
                raise ValueError(
                    "'runs' needs to hold 32 hexadecimal digits and a number "
                    f'of states each (got {pair!r})'
                )
        #: The token and the number of states of each run.
        self.runs: tuple[tuple[str, int], ...] = tuple(pairs)
        # The process that may extend the last run; who takes it has it.
        self._turn: list[int] = []

    @classmethod
    def of(cls, state: Any, present: 'Lineage | None' = None) -> 'Lineage':
        """Read the lineage of a saved state, under ``'lineage'``.

        Args:
            state (dict): the state.
            present (Lineage, optional): the lineage of the object that the
                state is to be loaded into, which it has to continue.
        """
        check_instance('state', state, dict)
        if present is not None:
            check_instance('present', present, Lineage)
        runs = state.get('lineage')
        try:
            found = cls(runs or ())
        except TypeError:
            found = cls()
        if not found.runs:
            raise ValueError(
                "'state' needs to have a 'lineage': it is no state of this "
                f'version (got {runs!r})'
            )
        if present is not None and not found.continues(present):
            raise ValueError(
                'the state does not continue the present one: removals can '
                'not be turned back; a new object can load it'
            )
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """A token for each state, as version 0.1 wrote them."""
        return tuple(token for token, count in self.runs for _ in range(count))

    @property
    def generation(self) -> int:
        """The number of changes since the first state."""
        return sum(count for _, count in self.runs) - 1

    def next(self) -> 'Lineage':
        """Return the lineage after one more change."""
        runs, me = self.runs, os.getpid()
        # Not checked again: the cost of a change does not grow with restarts.
        made = object.__new__(Lineage)
        made.runs, made._turn = (*runs, (secrets.token_hex(16), 1)), [me]
        with contextlib.suppress(IndexError):
            if self._turn.pop() == me:
                token, count = runs[-1]
                made.runs = (*runs[:-1], (token, count + 1))
        return made

    def continues(self, other: 'Lineage') -> bool:
        """Return whether another lineage equals this one or its beginning."""
        *before, last = other.runs or [None]
        at = len(before)
        if last is None:
            return True
        if len(self.runs) <= at or self.runs[:at] != tuple(before):
            return False
        token, count = self.runs[at]
        return token == last[0] and count >= last[1]

    def to_list(self) -> list[list[Any]]:
        """Return the runs as plain lists, for a saved state."""
        return [[*run] for run in self.runs]

    def __deepcopy__(self, memo: dict[int, Any]) -> 'Lineage':
        # Of two copies one alone may extend the run.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Lineage, (self.runs,)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(generation={self.generation})'


def check_continues(
    place: str | Path, found: dict[str, Any] | None, new: dict[str, Any]
) -> None:
    """Refuse to overwrite a state with one that does not continue it.

    Call it while the :func:`exclusive` lock of the place is held.

    Args:
        place (str or Path): the path of a file, or of a manifest.
        found (dict, optional): the saved state there, with its ``'lineage'``
            and ``'ledger'``.
        new (dict): the state to write, with the same entries.
    """
    ours = Lineage.of(new)
    if found is None:
        return
    check_instance('found', found, dict)
    there = Lineage.of(found)
    if os.path.exists(place) and (count := os.stat(place).st_nlink) > 1:
        raise ValueError(
            f'{place} has {count} names (hard links), of which the others '
            'would keep the old content, with all that was removed: delete '
            'them first'
        )
    if ours.continues(there):
        return
    if there.runs[0][0] != ours.runs[0][0]:
        raise ValueError(
            f'{place} holds the state of another fit, whose removals this '
            'one would undo: load it, write to another place, or delete it '
            'first'
        )
    lost, did = _beyond(new, found), _beyond(found, new)
    raise StaleStateError(
        f'another object or process has changed {place} since this one read '
        f'it: it recorded {did}. Nothing was written. To go on, load() the '
        'state into a new object and repeat what was not saved'
        + (f': {lost}' if lost != 'nothing' else '')
    )


def _beyond(state: dict[str, Any], other: dict[str, Any]) -> str:
    # Describe the lines that a state's ledger has and another's lacks.
    def lines(state: dict[str, Any]) -> list[dict[str, Any]]:
        # A private model's 'ledger' holds its releases.
        ledger = state.get('removals', state.get('ledger'))
        found = ledger.get('entries') if isinstance(ledger, dict) else None
        return found if isinstance(found, list) else []

    mine, known, more = lines(state), lines(other), []
    for number, line in enumerate(mine):
        if known[number : number + 1] == [line]:
            continue
        action, request = line.get('action'), line.get('request') or ''
        done = 'a removal of' if action == 'measured' else action
        more.append(f'{done} {request}'.strip())
    if len(more) > 3:
        more = [*more[:3], f'and {len(more) - 3} more']
    return ', '.join(more) or 'nothing'


def save(path: str | Path, state: dict[str, Any]) -> None:
    """Write a state with its ``'lineage'`` and ``'ledger'`` to a file.

    The file, if there is one, has to hold a state that it continues.
    """
    path = Path(path)
    with exclusive(path):
        check_continues(path, peek(path), state)
        files.save(path, state)


def peek(path: str | Path) -> dict[str, Any] | None:
    """Read a saved state without tensors; :obj:`None` if there is no file."""
    if not Path(path).exists():
        return None
    try:
        found: dict[str, Any] = files.peek(path)
        Lineage.of(found)
    except Exception as error:
        raise ValueError(
            f'{path} is a file of another kind, which is not written over: '
            'choose another place, or delete it first '
            f'({type(error).__name__})'
        ) from None
    return found


@contextlib.contextmanager
def exclusive(place: str | Path) -> Iterator[None]:
    """Hold the lock of a file or folder for a block; not reentrant.

    Waits for its holder. The lock is on a file beside the place, which need
    not exist; where nothing can be written, a place is read without it.
    """
    # Resolve links, so that each file has one lock.
    place = Path(place).resolve()
    files.check_folder(place)
    with files.locked(place.with_name(f'.{place.name}.lock')):
        yield


# Objects #####################################################################


class ObjectLock:
    """Reentrant lock that threads hold while they use an object.

    A copy of an object has a lock of its own, and so has one that was pickled.
    """

    def __init__(self) -> None:
        # A lock written in C: an interrupt must not lose track of whose turn
        # it is.
        self.turn = threading.RLock()
        #: What its thread is doing, and whether that may change the object.
        self.doing: tuple[str, bool] | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return ObjectLock, ()


def synchronized(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], T]:
    """Lock an object, by its ``_lock``, while a method reads it.

    Called from inside of an :func:`editing` method of the same object, as a
    signal handler can do, it raises a :class:`RuntimeError`.
    """
    return _in_turn(method, False)


def editing(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], T]:
    """Lock an object, by its ``_lock``, while a method changes it.

    A signal handler or a callback would find it half changed: until this has
    ended, a call of such a method raises a :class:`RuntimeError`.
    """
    return _in_turn(method, True)


def _in_turn(
    method: Callable[Concatenate[Self, P], T], edits: bool
) -> Callable[Concatenate[Self, P], T]:
    doing = (method.__name__, edits)

    @functools.wraps(method)
    def taking_turns(self: Self, *args: P.args, **kwargs: P.kwargs) -> T:
        lock = getattr(self, '_lock', None)
        if not isinstance(lock, ObjectLock):
            raise TypeError(
                f"'{method.__name__}' is called on an object, not on its "
                f'class (got {type(self).__name__}): make a model, with the '
                'arguments of the saved one, and call '
                f'model.{method.__name__}(...)'
            )
        with lock.turn:
            before = lock.doing
            if before is not None and (edits or before[1]):
                raise RuntimeError(
                    f"'{method.__name__}' of a {type(self).__name__} was "
                    f"called while its '{before[0]}' was going on in the same "
                    'thread (from a signal handler or a callback): nothing '
                    'was done; call it when that has ended'
                )
            try:
                lock.doing = doing
                if not torch.is_inference_mode_enabled():
                    return method(self, *args, **kwargs)
                # What is kept or trained can't be tensors of inference.
                with torch.inference_mode(False):
                    return method(self, *args, **kwargs)
            finally:
                lock.doing = before

    return taking_turns


class EditedInPlace:
    """Mixin of objects with parts edited in place, with undo.

    Copies, also shallow ones, and pickles get their own parts and undo log, as
    they are between two edits.
    """

    _lock: ObjectLock

    def _settle(self) -> None:
        # Ends an edit that was interrupted.
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return self._copied({})

    @synchronized
    def _copied(self, memo: dict[int, Any]) -> dict[str, Any]:
        self._settle()
        return copy.deepcopy(vars(self), memo)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        made = object.__new__(type(self))
        vars(made).update(self._copied(memo))  # type: ignore[attr-defined]
        memo[id(self)] = made
        return made

    def __copy__(self: Self) -> Self:
        return copy.deepcopy(self)
