r"""Guarded commits: a saved state is replaced only by its successor.

A removal that was saved must not come back. A state is written over
another one (:func:`save`, :class:`~pyg_trust.unlearning.store.ShardStore`)
in three steps:

1. take the lock of the place, which the operating system holds for a process
   and takes back when the process ends, however it ends (:func:`exclusive`);
2. compare (:func:`check_continues`): the new state needs to *continue* the
   one that is there. Every state carries its :class:`Lineage`, a random name
   for each change since the first fit. What is there has to be a beginning
   of the lineage of what comes. Otherwise somebody else was here since it was
   read, and :class:`StaleStateError` says what they did and what to do;
3. replace the file in one step (:func:`pyg_trust.files.write`).

Threads that share an object take turns (:class:`ObjectLock`,
:func:`synchronized`, :func:`editing`). A call from inside of another one, as
signal handlers make them, is refused where one of both changes the object.

Locks of files need a file system that has them: local disks do, some network
file systems do not.

**What this does not protect.** Lock and comparison belong to the place, by
whatever symbolic link or mount it is reached; a file with two names (hard
links) is refused. A *copy* is another place: work can go on from a copied file
or folder, and an older copy that is put in the place of a newer state brings
back the items that were removed in between, for all who load it from then
on. An object that has the newer state in memory puts it back at its next
change. For the others, note ``RemovalLedger.head`` elsewhere, and ask a
loaded one whether it has it (``RemovalLedger.has``).
"""

import contextlib
import copy
import functools
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyg_trust import files
from pyg_trust._checks import check_callable, check_instance

_BYTES = 16
_NAME = re.compile(f'[0-9a-f]{{{2 * _BYTES}}}')

P = ParamSpec('P')
T = TypeVar('T')
Self = TypeVar('Self')


class StaleStateError(RuntimeError):
    """Raised if another object changed a saved state since it was read.

    Nothing was written. Load the state again, and repeat the request.
    """


class Lineage:
    """Names of all states from the first to the present one.

    A name is 128 random bits, so that two objects that go on from the same
    state are told apart after their first change.

    Args:
        names (tuple[str, ...]): the names, the oldest first.

    Example:
        >>> first = Lineage().next()
        >>> one, two = first.next(), first.next()
        >>> one.generation, one.continues(first), one.continues(two)
        (1, True, False)
    """

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        check_instance('names', names, tuple)
        for name in names:
            check_instance('names', name, str)
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"'names' needs to hold {2 * _BYTES} hexadecimal digits "
                    f'each (got {name!r})'
                )
        # Later states share the list, up to their own counts.
        self._shared, self._count = list(names), len(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, the oldest first."""
        return tuple(self._shared[: self._count])

    @classmethod
    def of(cls, state: Any, present: 'Lineage | None' = None) -> 'Lineage':
        """Read the lineage of a saved state.

        Args:
            state (dict): the state, with its names under ``'lineage'``.
            present (Lineage, optional): the lineage of the object that the
                state is to be loaded into. (default: :obj:`None`)

        Raises:
            ValueError: if the state has none, or does not continue the
                present one: it would turn removals back.
        """
        check_instance('state', state, dict)
        if present is not None:
            check_instance('present', present, Lineage)
        names = state.get('lineage')
        if not isinstance(names, list | tuple) or not names:
            raise ValueError(
                "'state' needs to have a 'lineage': it is no state of this "
                f'version (got {names!r})'
            )
        found = cls(tuple(names))
        if present is not None and not found.continues(present):
            raise ValueError(
                'the state does not continue the present one: removals can '
                'not be turned back; a new object can load it'
            )
        return found

    @property
    def generation(self) -> int:
        """The number of changes since the first state."""
        return self._count - 1

    def next(self) -> 'Lineage':
        """Return the lineage after one more change."""
        made, name = object.__new__(Lineage), secrets.token_hex(_BYTES)
        shared = self._shared
        shared.append(name)
        if shared[self._count] is not name:
            # Another one went on from here.
            shared.remove(name)
            shared = [*self.names, name]
        made._shared, made._count = shared, self._count + 1
        return made

    def continues(self, other: 'Lineage') -> bool:
        """Tell whether another lineage equals this one or its beginning."""
        check_instance('other', other, Lineage)
        return self.names[: other._count] == other.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lineage) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(generation={self.generation})'


def check_continues(
    place: str | Path, found: dict[str, Any] | None, new: dict[str, Any]
) -> None:
    """Refuse to overwrite a state with one that does not continue it.

    Call it while the :func:`exclusive` lock of the place is held.

    Args:
        place (str or Path): the path, for the error message.
        found (dict, optional): the saved state, with its ``'lineage'`` and
            ``'ledger'``.
        new (dict): the state to write, with the same entries.

    Raises:
        StaleStateError: if what is there has changed since :obj:`new` was
            read from it.
        ValueError: if the two never were one state.
    """
    check_instance('place', place, str, Path)
    if found is None:
        return
    check_instance('found', found, dict)
    there, ours = Lineage.of(found), Lineage.of(new)
    if ours.continues(there):
        return
    if there.names[0] != ours.names[0]:
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


def check_one_name(path: str | Path) -> None:
    """Refuse to replace a file that has a second hard link.

    The other name would keep the old content, with what was removed, and go on
    from it.

    Args:
        path (str or Path): the path of the file, which need not exist.
    """
    check_instance('path', path, str, Path)
    try:
        count = os.stat(path).st_nlink
    except FileNotFoundError:
        return
    if count > 1:
        raise ValueError(
            f'{path} has {count} names (hard links), of which the others '
            'would keep the old content, with all that was removed: delete '
            'them first'
        )


def save(path: str | Path, state: dict[str, Any]) -> None:
    """Write a state to a file, if it continues the saved one.

    Args:
        path (str or Path): the path of the file.
        state (dict): as :func:`pyg_trust.files.save` takes it, with its
            ``'lineage'`` and ``'ledger'``.

    Raises:
        StaleStateError: as :func:`check_continues`.
        ValueError: as :func:`check_continues`, or if the file is no state.
    """
    check_instance('path', path, str, Path)
    Lineage.of(state)
    path = Path(path)
    with exclusive(path):
        check_one_name(path)
        check_continues(path, peek(path), state)
        files.save(path, state)


@contextlib.contextmanager
def exclusive(place: str | Path, *, reading: bool = False) -> Iterator[None]:
    """Hold the lock of a file or folder for a block.

    Waits for its holder. The lock is on a file beside the place, which
    is there for no longer than the block. Not reentrant.

    Args:
        place (str or Path): the path to guard, which need not exist.
        reading (bool): whether to go on without the lock where it can't be
            taken because nobody can write there. (default: :obj:`False`)
    """
    check_instance('place', place, str, Path)
    # Resolve links, so that each file has one lock.
    place = Path(place).resolve()
    files.check_folder(place)
    with files.locked(place.with_name(f'.{place.name}.lock'), reading):
        yield


class ObjectLock:
    """Reentrant lock that threads hold while they use an object.

    The thread that holds it can take it again. A copy of an object has a lock
    of its own, and so has one that was pickled.
    """

    def __init__(self) -> None:
        # A lock written in C: an interrupt must not lose track of whose turn
        # it is.
        self.turn = threading.RLock()
        #: What its thread is doing, and whether that may change the object.
        self.doing: tuple[str, bool] | None = None

    def __copy__(self) -> 'ObjectLock':
        return ObjectLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> 'ObjectLock':
        return ObjectLock()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return ObjectLock, ()


def synchronized(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], T]:
    """Lock a method that reads its object.

    Args:
        method (callable): a method of a class whose objects have an
            :class:`ObjectLock` as ``_lock``.

    Raises:
        RuntimeError: when called from inside of an :func:`editing` method of
            the same object, as a signal handler can do.
    """
    check_callable('method', method)
    return _in_turn(method, False)


def editing(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], T]:
    """Lock a method that changes its object.

    The thread itself can come back before the method has ended: by a signal
    handler, a callback, or the end of some object. What it then found would
    be half changed, and a second change would be lost when the first one is
    put in force. So nothing else of the object can be called until this has
    ended, and this from inside of nothing else.

    Raises:
        RuntimeError: when called from inside of another method of the same
            object that takes turns.
    """
    check_callable('method', method)
    return _in_turn(method, True)


def _in_turn(
    method: Callable[Concatenate[Self, P], T], edits: bool
) -> Callable[Concatenate[Self, P], T]:
    doing = (method.__name__, edits)

    @functools.wraps(method)
    def taking_turns(self: Self, *args: P.args, **kwargs: P.kwargs) -> T:
        lock: ObjectLock = self._lock  # type: ignore[attr-defined]
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


def peek(path: str | Path) -> dict[str, Any] | None:
    """Read the lineage and the ledger of a saved state, without tensors.

    Returns:
        dict: both, by name; :obj:`None` if there is no file.

    Raises:
        ValueError: if the file is of another kind.
    """
    check_instance('path', path, str, Path)
    path = Path(path)
    if not path.exists():
        return None
    try:
        found = files.peek(path)
        Lineage.of(found)
    except Exception as error:
        raise ValueError(
            f'{path} is a file of another kind, which is not written over: '
            'choose another place, or delete it first '
            f'({type(error).__name__})'
        ) from None
    names = ('lineage', 'ledger', 'removals')
    return {name: found[name] for name in names if name in found}


def _beyond(state: dict[str, Any], other: dict[str, Any]) -> str:
    # Describe the lines that a state's ledger has and another's lacks.
    lines, known = _lines(state), _lines(other)
    more = [
        f'{_did(line.get("action"))} {line.get("request") or ""}'.strip()
        for number, line in enumerate(lines)
        if number >= len(known) or known[number] != line
    ]
    if len(more) > 3:
        more = [*more[:3], f'and {len(more) - 3} more']
    return ', '.join(more) or 'nothing'


def _did(action: Any) -> str:
    # A line of a classifier says no more of a removal.
    return 'a removal of' if action == 'measured' else str(action)


def _lines(state: dict[str, Any]) -> list[dict[str, Any]]:
    # A private model's 'ledger' holds its releases.
    ledger = state.get('removals', state.get('ledger'))
    lines = ledger.get('entries') if isinstance(ledger, dict) else None
    return lines if isinstance(lines, list) else []
