"""Numbers, texts and JSON of claims, read in one way alone.

In a report no name is there twice, and no number is one that JSON does not
know or that no double holds. Its ``digest`` is a SHA-256 of all else in it: it
finds damage, not malice, as whoever changes a report can compute it, too.
"""

import hashlib
import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

#: Promises of one report; the proof of each may take half a minute.
MOST_PROMISES = 100


def outwards(value: float, digits: int = 4, up: bool = True) -> str:
    """Format some digits, rounded so that no more is promised."""
    way = Context(digits, ROUND_CEILING if up else ROUND_FLOOR)
    made = way.create_decimal(repr(float(value + 0.0)))  # a text is none
    return f'{float(made):.{digits}g}'


def visible(text: str) -> str:
    """Return one line, with escapes for signs that could forge a text."""
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return ''.join(
        sign if sign.isprintable() else sign.encode('unicode_escape').decode()
        for sign in ' '.join(text.split())
    )


def finite(value: Any) -> Any:
    """Return the plain value, with texts for NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def digest(fields: dict[str, Any]) -> str:
    """Digest a report's JSON by SHA-256, without the entry ``digest``."""
    rest = {name: fields[name] for name in fields if name != 'digest'}
    text = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(text: str) -> Any:
    """Read JSON; refuse any that programs read differently.

    Raises:
        ValueError: if it is no JSON, an object has a name twice, or a number
            is none of JSON's (``NaN``, ``Infinity``) or too large (``1e999``).
    """
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return json.loads(
        text,
        object_pairs_hook=_each_once,
        parse_constant=_number,
        parse_float=_number,
    )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f'the name {name!r} is there twice')
        made[name] = value
    return made


def _number(text: str) -> float:
    if not math.isfinite(made := float(text)):
        raise ValueError(f'{text} is no number of JSON')
    return made


def number(name: str, value: Any, *, above: float = -math.inf) -> float:
    """Read a finite number that exceeds ``above``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'{name!r} needs to be a number (got {value!r})')
    made = float(value)
    if not math.isfinite(made) or made <= above:
        raise ValueError(f'{name!r} needs to exceed {above:g} (got {value!r})')
    return made


def amount(name: str, value: Any) -> float:
    """Read a number that is not negative."""
    if number(name, value) < 0:
        raise ValueError(f'{name!r} needs to be at least 0 (got {value!r})')
    return float(value)
