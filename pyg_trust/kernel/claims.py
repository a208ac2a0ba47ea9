r"""Claims: the fields of a promise, and the sentences made from them.

A report in JSON can be read in one way alone: no name twice, no number that
JSON does not know or that no double holds. Its ``digest`` is a SHA-256 of all
else in it: it finds damage, not malice. Whoever writes a report anew writes
its digest, too.
"""

import hashlib
import json
import math
from typing import Any


def visible(text: str) -> str:
    r"""The text on one line, with what a screen does not show as its code.

    A line end, a control sequence of a terminal or a sign that turns the
    direction of writing would let a text look like another one.

    Args:
        text (str): from wherever.

    Example:
        >>> print(visible('a\nb\x1b[2K'))
        a b\x1b[2K
    """
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return ''.join(
        sign if sign.isprintable() else sign.encode('unicode_escape').decode()
        for sign in ' '.join(text.split())
    )


def finite(value: Any) -> Any:
    """Return the plain value with texts for numbers that JSON has not."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def digest(fields: dict[str, Any]) -> str:
    """SHA-256 of a report in JSON, without the entry ``digest`` itself."""
    rest = {name: fields[name] for name in fields if name != 'digest'}
    text = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(text: str) -> Any:
    """Read a JSON that every program reads alike.

    Args:
        text (str): the JSON.

    Raises:
        ValueError: if it is none, a name is in one object twice, or a number
            is none of JSON's (``NaN``, ``Infinity``) or too large (``1e999``).
    """
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return json.loads(
        text,
        object_pairs_hook=_each_once,
        parse_constant=_no_number,
        parse_float=_number,
    )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the name {twice!r} is there twice')
    return made


def _no_number(text: str) -> Any:
    raise ValueError(f'{text} is no number of JSON')


def _number(text: str) -> float:
    made = float(text)
    return made if math.isfinite(made) else _no_number(text)
