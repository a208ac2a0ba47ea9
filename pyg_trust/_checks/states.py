"""Checks of saved states, which share one layout.

A saved state is a dictionary of tensors and plain values. Its ``'format'`` is
the version of its layout (1, that of 0.1, where it is missing), and an entry
has the settings of the object, which have to be those of the reader. What a
certified model or a shard holds is sealed by the last line of its ledger; a
file has checksums (:func:`pyg_trust.files.load`). What can't be read is
refused with a ``ValueError`` that names the entry, and nothing is changed.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

# The format of states of this version; 1 is that of 0.1.
FORMAT = 2


def check_state(
    state: Any,
    entries: Iterable[str],
    formats: tuple[int, ...] = (),
    model: Any = None,
) -> None:
    """Check the entries and the layout version of a saved state.

    Raises:
        ValueError: if the state is no dictionary with these entries, or is of
            another version or of a model of another class.
    """
    if model is not None and isinstance(state, dict):
        mine = kind_of(model)
        found = state.get('class', mine)
        if found != mine:
            raise ValueError(
                f"'state' was written by a {found}, and by a {found} alone "
                f'can be loaded (got a {mine})'
            )
    for name in entries:
        if not isinstance(state, dict) or name not in state:
            raise ValueError(f"'state' needs an entry '{name}'")
    found = state.get('format', 1)
    if formats and (type(found) is not int or found not in formats):
        raise ValueError(
            f"'state' needs a 'format' of {formats} (got {found!r}): another "
            'version of pyg_trust has written it'
        )


def kind_of(model: Any) -> str:
    """Return the name of the class of this package that a model has."""
    classes = type(model).__mro__
    ours = (c for c in classes if c.__module__.startswith('pyg_trust.'))
    return next(ours, classes[0]).__name__


def check_settings(what: str, found: Any, expected: dict[str, Any]) -> None:
    """Check that a state has the settings of the object that loads it."""
    if not isinstance(found, dict):
        raise ValueError(
            f"'state' needs '{what}' to be a dictionary (got "
            f'{type(found).__name__})'
        )
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            now = {'lam': 'weight_decay', 'levels': 'K'}.get(name, name)
            raise ValueError(
                f"'state' was saved with other arguments: '{now}' = "
                f"{found.get(name)!r}, where this object has '{now}' = "
                f"{expected.get(name)!r} ('{what}')"
            )


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Convert errors in a block to a refusal of a malformed state."""
    try:
        yield
    except (
        AttributeError,
        IndexError,
        KeyError,
        RuntimeError,
        TypeError,
    ) as error:
        raise ValueError(
            "'state' needs to be what state_dict() returns "
            f'({type(error).__name__}: {error})'
        ) from error
