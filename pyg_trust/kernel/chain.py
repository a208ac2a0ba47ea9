"""One append-only chain of hashed lines.

**Theorem.** Let :math:`h_0 = ''` and :math:`h_i = H(c(h_{i-1}, b_i))` with
SHA-256 as :math:`H` and the canonical JSON of a list as :math:`c`, which no
two lists share. If two chains end with the same :math:`h_n`, all their lines
are the same, or a collision of :math:`H` is known. *Proof:* by induction from
the end: equal hashes have equal texts, hence equal :math:`b_n` and
:math:`h_{n-1}`.

So a head :math:`h_n` that was noted elsewhere fixes every line before it. It
does not fix what comes after: a chain says of itself that it is whole, never
that it is all. Canonical is ``json.dumps(..., sort_keys=True)``: the two
layouts below are those of files that exist.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .claims import read_json

#: What is hashed of a line of a removal, in this order.
REMOVAL = ('action', 'spent', 'request', 'data')


class Chain(NamedTuple):
    """Lines as they were read.

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
    """Hash a line with the hash of the line before it.

    Args:
        before (str): the link of the line before, '' for the first.
        *body (Any): plain values.
    """
    text = json.dumps([before, *body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def of_steps(content: bytes) -> Chain:
    """Read a file with one JSON a line: private steps and releases.

    Args:
        content (bytes): of the file.

    Raises:
        ValueError: if a line is no JSON with ``body`` and ``link``.
    """
    return _chained(_lines(content), lambda body: (body,))


def of_removals(content: bytes) -> Chain:
    """Read the one JSON of a removal ledger's ``state_dict()``.

    Args:
        content (bytes): of the file.

    Raises:
        ValueError: if a line has other fields than it should.
    """
    state = read_json(content.decode())
    pairs = []
    for number, line in enumerate(state['entries'], 1):
        if not isinstance(line, dict) or set(line) != {*REMOVAL, 'link'}:
            raise ValueError(
                f"'entries' need to have {(*REMOVAL, 'link')}: line {number} "
                'has not'
            )
        pairs.append((line, line['link']))
    return _chained(pairs, _parts)


def _parts(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in REMOVAL)


def _lines(content: bytes) -> Iterator[tuple[Any, str]]:
    for number, line in enumerate(content.splitlines(), 1):
        try:
            entry = read_json(line.decode())
            yield entry['body'], entry['link']
        except (LookupError, RecursionError, TypeError, ValueError):
            raise ValueError(
                f'needs to hold lines of JSON: line {number} is none'
            ) from None


def _chained(pairs: Iterable[tuple[Any, str]], parts: Any) -> Chain:
    made, before = Chain([], [], 0), ''
    for number, (body, found) in enumerate(pairs, 1):
        if not isinstance(found, str):
            raise ValueError(f"'link' needs to be a text in line {number}")
        if found != link(before, *parts(body)) and not made.broken:
            made = made._replace(broken=number)
        made.bodies.append(body)
        made.links.append(found)
        before = found
    return made
