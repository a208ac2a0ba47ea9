"""One append-only chain of hashed lines.

A head that was noted elsewhere fixes every line before it, and none after: a
chain says of itself that it is whole, never that it is all. Canonical is
``json.dumps(..., sort_keys=True)``, in two layouts of files.
See docs/theory/proofs.rst.
"""

import hashlib
import json
from typing import Any, NamedTuple

from .claims import read_json

#: What is hashed of a line of a removal, in this order; the last if there.
REMOVAL = ('action', 'spent', 'request', 'data', 'reference')
#: A report lists so many amounts of a ledger at most, the newest.
LISTED = 64


class Chain(NamedTuple):
    """Lines of a file, as they were read.

    Args:
        bodies (list): the content of every line.
        links (list[str]): the hash that stands in every line.
        broken (int): the number of the first line whose hash is not that of
            the line and all before it, from 1; 0 if all are.
    """

    bodies: list[Any]
    links: list[str]
    broken: int

    @property
    def head(self) -> str:
        """The hash of the last line, '' without any."""
        return self.links[-1] if self.links else ''


def link(before: str, *body: Any) -> str:
    """Hash plain values with the link of the line before; '' of the first."""
    text = json.dumps([before, *body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def references(text: str) -> list[str]:
    """Split the reference of a line: 32 digits for each of its requests."""
    return [text[i : i + 32] for i in range(0, len(text), 32)]


def line(before: str, body: Any) -> tuple[str, bytes]:
    """Write a line of steps and releases: its :func:`link`, and the JSON."""
    made = link(before, body)
    text = json.dumps({'body': body, 'link': made}) + '\n'
    return made, text.encode()


def of_steps(content: bytes, strict: bool = True) -> Chain:
    """Read a file with one :func:`line` after the other.

    Raises:
        ValueError: if a line is none. If not ``strict``, it breaks the chain
            instead, and is the last that is read.
    """
    made = Chain([], [], 0)
    for number, text in enumerate(content.splitlines(), 1):
        try:
            entry = read_json(text.decode())
            body, found = entry['body'], entry['link']
        except (LookupError, RecursionError, TypeError, ValueError):
            body = found = None
        if not isinstance(found, str):
            if strict:
                raise ValueError(
                    f'needs to hold lines of JSON: line {number} is none'
                )
            return made._replace(broken=made.broken or number)
        made = _added(made, body, found, body)
    return made


def of_removals(content: bytes) -> Chain:
    """Read the one JSON of a removal ledger's ``state_dict()``.

    Raises:
        ValueError: if a line has other fields than it should.
    """
    made = Chain([], [], 0)
    for number, each in enumerate(read_json(content.decode())['entries'], 1):
        names = {*each, 'reference'} if isinstance(each, dict) else {}
        if names != {*REMOVAL, 'link'} or not isinstance(each['link'], str):
            raise ValueError(f"'entries' need {REMOVAL}: line {number}")
        parts = (each[k] for k in REMOVAL if k in each)
        made = _added(made, each, each['link'], *parts)
    return made


def _added(made: Chain, body: Any, found: str, *parts: Any) -> Chain:
    # Broken from where the hash is not that of the line and all before it.
    wanted = link(made.head, *parts)
    made.bodies.append(body)
    made.links.append(found)
    if found == wanted or made.broken:
        return made
    return made._replace(broken=len(made.links))
