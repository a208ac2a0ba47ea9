"""Results of a check, and the report's fields that it reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..verify.claims import visible
from ..verify.promises import read

__all__ = ['Finding', 'Stated', 'is_digest', 'read_report', 'requests']

HOLDS, FAILS = 'holds', 'FAILS'
UNPROVED, UNKNOWN = 'not proved', 'not checked'
Checks = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Finding:
    """Result of one check of a report.

    Args:
        status (str): ``'holds'``, ``'FAILS'``, ``'not proved'`` (there is no
            witness, or it is too large) or ``'not checked'`` (a file was not
            passed, or the check can't be run).
        text (str): a sentence that names what was checked.
    """

    status: str
    text: str

    def __str__(self) -> str:
        # Always one line: control characters of the file are escaped.
        return f'{self.status:<11}  {visible(self.text)}'


class Stated(SimpleNamespace):
    """Guarantee as a report has it, with the fields of one."""


def read_report(path: str | Path) -> tuple[int, list[Stated]]:
    """Read a report: the version of its layout, and its guarantees."""
    fields = read(path)
    stated = [Stated(**entry) for entry in fields['guarantees']]
    return fields['schema_version'], stated


def is_digest(value: Any) -> bool:
    """Return whether a field names a digest; 64 digits alone do not."""
    return isinstance(value, str) and len(value) == 64


def requests(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the removed ids, as parts by graph."""
    request = values['request']
    if not isinstance(request, Mapping) or not all(
        isinstance(part, Mapping) for part in request.values()
    ):
        raise ValueError(f"'request' needs to be by graph (got {request!r})")
    return request
