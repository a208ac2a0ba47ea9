"""Results of a check, and the report's fields that it reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..verify.claims import (
    MOST_PROMISES,
    count,
    digest,
    number,
    read_json,
    visible,
)

HOLDS, FAILS = 'holds', 'FAILS'
UNPROVED, UNKNOWN = 'not proved', 'not checked'
Checks = Iterator[tuple[str, str]]

# Exceptions raised by malformed fields and files.
WRONG = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
_TEXTS = ('assumptions', 'not_covered', 'checked')
_AMOUNTS = ('spent', 'budget')


@dataclass(frozen=True)
class Finding:
    """One check's status and text.

    Args:
        status (str): ``'holds'``, ``'FAILS'``, ``'not proved'`` (there is no
            witness, or none that is small enough) or ``'not checked'`` (it
            was not handed in, or can't be run).
        text (str): the checked item.
    """

    status: str
    text: str

    def __str__(self) -> str:
        # Always one line: control characters of the file are escaped.
        return f'{self.status:<11}  {visible(self.text)}'


@dataclass(frozen=True)
class Stated:
    """Promise as stated in a JSON report.

    The fields are those of :class:`pyg_trust.report.Guarantee`.
    """

    procedure: str
    promise: str
    assumptions: list[str]
    not_covered: list[str]
    spent: dict[str, float]
    budget: dict[str, float]
    data: str
    origin: dict[str, Any]
    kind: str
    values: dict[str, Any]
    history: dict[str, list[float]]
    checked: list[str]
    model: str

    def __post_init__(self) -> None:
        for name in ('procedure', 'promise', 'data', 'kind', 'model'):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f'{name!r} is no text')
        if not (self.procedure and self.promise):
            raise ValueError('a promise is empty')
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, list) or not all(
                isinstance(text, str) for text in value
            ):
                raise ValueError(f'{name!r} is no list of texts')
        for name in (*_AMOUNTS, 'origin', 'values', 'history'):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f'{name!r} is no dictionary')
        if set(self.spent) != set(self.budget):
            raise ValueError("'spent' and 'budget' are not of the same things")
        for name, amounts in self.history.items():
            if name not in self.spent:
                raise ValueError(f"'history' has {name!r}, 'spent' has not")
            for amount in amounts:
                number('history', amount)


def read_report(path: str | Path) -> tuple[int, list[Stated]]:
    """Read a report and its layout version.

    Raises:
        ValueError: if it is none, or was damaged.
    """
    try:
        fields = read_json(Path(path).read_text())
        if 'digest' in fields and digest(fields) != fields.pop('digest'):
            raise ValueError('its digest is not that of its content')
        if set(fields) != {'guarantees', 'created', 'schema_version'}:
            raise ValueError(f'it has the fields {sorted(fields)}')
        version = count('schema_version', fields['schema_version'], 1)
        if version > 2:
            raise ValueError(f'its layout is {version}')
        if datetime.fromisoformat(fields['created']).tzinfo is None:
            raise ValueError("'created' has no time zone")
        if not isinstance(fields['guarantees'], list):
            raise ValueError("'guarantees' is no list")
        if len(fields['guarantees']) > MOST_PROMISES:
            raise ValueError(f'it has more than {MOST_PROMISES} promises')
        stated = []
        for entry in fields['guarantees']:
            for name in _AMOUNTS:
                entry[name] = {
                    key: float(amount) for key, amount in entry[name].items()
                }
            stated.append(Stated(**entry))
        if not stated:
            raise ValueError('it promises nothing')
        return version, stated
    except WRONG as error:
        raise ValueError(
            f"'path' needs to be a trust report in JSON: {path} is none "
            f'({type(error).__name__}: {error})'
        ) from None


def is_digest(value: Any) -> bool:
    """Tell whether a field names a digest; a number of 64 digits does not."""
    return isinstance(value, str) and len(value) == 64


def requests(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the removed names, as parts by graph."""
    request = values['request']
    if not isinstance(request, Mapping) or not all(
        isinstance(part, Mapping) for part in request.values()
    ):
        raise ValueError(f"'request' needs to be by graph (got {request!r})")
    return request


def arguments(each: Stated) -> Mapping[str, Any]:
    """Read the arguments of the run; empty if the report has none."""
    value = each.origin.get('arguments', {})
    if not isinstance(value, Mapping):
        raise ValueError("'arguments' is no dictionary")
    return value
