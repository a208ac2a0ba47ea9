r"""Guarded commits: a saved state is replaced only by its successor.

A removal that was saved must not come back. A state is written over another
one (:func:`save`, :class:`~pyg_trust.unlearning.store.ShardStore`) under the
lock of the place (:func:`pyg_trust.files.exclusive`), if its ledger continues
that of the one that is there (:func:`check_continues`), in one step
(:func:`pyg_trust.files.write`). Otherwise somebody else was here since it was
read, and :class:`StaleStateError` says what they did and what to do.

Threads that share an object take turns (:class:`ObjectLock`,
:func:`synchronized`, :func:`editing`).

Locks need a file system that has them: local disks do, some network file
systems do not. An older *copy* that is put in the place of a newer state
brings back the items that were removed in between: note ``RemovalLedger.head``
elsewhere, and ask a loaded ledger whether it has it (``RemovalLedger.has``).
"""

import copy
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch

from pyg_trust import files

__all__ = [
    'EditedInPlace',
    'ObjectLock',
    'StaleStateError',
    'check_continues',
    'editing',
    'heads',
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


class Lineage(NamedTuple):
    """Names of a model's states in earlier versions; now its ledger has them.

    It decides nothing, and goes with the next release.
    """

    names: tuple[str, ...] = ()


def heads(state: dict[str, Any]) -> dict[str, int]:
    """Return the names of all states up to a saved one, from the fit on.

    Those are the hashes of its ledger's lines, and the names of changes in
    between (``RemovalLedger.mark``), with the number of changes that each
    stands for. All are random, so that no two changes of one state have the
    same.
    """
    found: dict[str, int] = {}
    marks: dict[int, dict[str, int]] = {}
    try:
        ledger = _ledger(state)
        for at, mark, count in ledger.get('marks', ()):
            marks.setdefault(at, {})[mark] = int(count)
        for at, line in enumerate(ledger['entries']):
            found |= {**marks.get(at, {}), line['link']: 0}
        found |= marks.get(len(ledger['entries']), {})
        if {*map(type, found)} != {str}:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            "'state' needs to have a 'ledger': it is no state of this version"
        ) from None
    return found


def _ledger(state: dict[str, Any]) -> Any:
    # A private model's 'ledger' holds its releases.
    return state.get('removals') or state['ledger']


def check_continues(
    place: str | Path, found: dict[str, Any] | None, new: dict[str, Any]
) -> None:
    """Refuse to overwrite a state with one that does not continue it.

    Call it while :func:`pyg_trust.files.exclusive` holds the place.

    Args:
        place (str or Path): the path of a file, or of a manifest.
        found (dict, optional): the saved state there, with its ``'ledger'``.
        new (dict): the state to write, with the same entry.
    """
    if found is None:
        return
    if os.path.exists(place) and (count := os.stat(place).st_nlink) > 1:
        raise ValueError(
            f'{place} has {count} names (hard links), of which the others '
            'would keep the old content, with all that was removed: delete '
            'them first'
        )
    ours, there = heads(new), heads(found)
    name, count = [*there.items()][-1]
    if ours.get(name, -1) >= count:
        return
    if next(iter(there)) != next(iter(ours)):
        raise ValueError(
            f'{place} holds the state of another fit, whose removals this '
            'one would undo: load it, write to another place, or delete it '
            'first'
        )
    lost = _beyond(new, found)
    did = _beyond(found, new) or 'additions that wait for a release'
    raise StaleStateError(
        f'another object or process has changed {place} since this one read '
        f'it: it recorded {did}. Nothing was written. To go on, load() the '
        'state into a new object and repeat what was not saved'
        + f': {lost}'
        * bool(lost)
    )


def _beyond(state: dict[str, Any], other: dict[str, Any]) -> str:
    # Describe the lines that a state's ledger has and another's lacks.
    mine, known = _ledger(state)['entries'], _ledger(other)['entries']
    more = [
        f'{"a removal of" if line["action"] == "measured" else line["action"]}'
        f' {line["request"] or ""}'.strip()
        for number, line in enumerate(mine)
        if known[number : number + 1] != [line]
    ]
    if len(more) > 3:
        more = [*more[:3], f'and {len(more) - 3} more']
    return ', '.join(more)


def save(path: str | Path, state: dict[str, Any]) -> None:
    """Write a state with its ``'ledger'`` to a file.

    The file, if there is one, has to hold a state that it continues.
    """
    path = Path(path)
    with files.exclusive(path):
        check_continues(path, peek(path), state)
        files.save(path, state)


def peek(path: str | Path) -> dict[str, Any] | None:
    """Read a saved state without tensors; :obj:`None` if there is no file."""
    if not Path(path).exists():
        return None
    try:
        found: dict[str, Any] = files.peek(path)
        heads(found)
    except Exception as error:
        raise ValueError(
            f'{path} is a file of another kind, which is not written over: '
            'choose another place, or delete it first '
            f'({type(error).__name__})'
        ) from None
    return found


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
