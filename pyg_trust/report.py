"""Reports: what a procedure promises its user, and how to run it again.

A procedure returns a frozen dataclass that inherits from :class:`Report`. Its
fields are plain (numbers, strings, booleans, tensors, and lists, tuples and
dictionaries of these), so that it can be printed, stored as JSON and compared.
What it promises is a :class:`Guarantee`, in the same words for all; a
:class:`TrustReport` puts those of a whole application on one page.
"""

import dataclasses
import hashlib
import json
import platform
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor

import pyg_trust
from pyg_trust import files
from pyg_trust._checks import check_instance, check_number


def provenance(**arguments: Any) -> dict[str, Any]:
    """The versions that are running and the arguments of a procedure.

    Args:
        **arguments (Any): the seed and whatever else it takes to run the
            procedure again.
    """
    return {
        'pyg_trust': pyg_trust.__version__,
        'torch': torch.__version__,
        'torch_geometric': torch_geometric.__version__,
        'python': platform.python_version(),
        'arguments': arguments,
    }


def fingerprint(*parts: Tensor | str | float | None) -> str:
    """A SHA-256 of tensors (type, shape and values), texts and numbers.

    Args:
        *parts (Tensor or str or float or None): what to take, in this order.

    Returns:
        str: 64 hexadecimal digits, the same on every device.

    Example:
        >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2, 1))
        False
    """
    digest = hashlib.sha256()
    for part in parts:
        check_instance('parts', part, Tensor, str, int, float, type(None))
        if isinstance(part, Tensor):
            header: Any = ('tensor', str(part.dtype), tuple(part.shape))
            flat = part.detach().cpu().contiguous().view(-1)
            content = flat.view(torch.uint8).numpy().tobytes()
        else:
            header, content = type(part).__name__, repr(part).encode()
        # With its length, so that no two lists of parts look alike.
        digest.update(repr((header, len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True)
class Report:
    """The base of all reports: a table to read, a dictionary to store."""

    def guarantee(self) -> 'Guarantee':
        """What is promised, in the words that all reports share.

        Raises:
            TypeError: if this kind of report promises nothing by itself.
        """
        raise TypeError(f'a {type(self).__name__} promises nothing by itself')

    def to_dict(self) -> dict[str, Any]:
        """All fields, tensors as nested lists."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """The dictionary as JSON; numbers that are not finite are strings."""
        return json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False)

    def __str__(self) -> str:
        rows = [
            (field.name.replace('_', ' '), _short(getattr(self, field.name)))
            for field in dataclasses.fields(self)
        ]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f'{name:<{width}}  {value}' for name, value in rows]
        return '\n'.join([type(self).__name__, *lines])


@dataclass(frozen=True)
class Guarantee(Report):
    """A promise, with all that it depends on.

    Args:
        procedure (str): what was done.
        promise (str): what holds now, in one sentence.
        assumptions (tuple[str, ...]): when it holds.
        not_covered (tuple[str, ...]): what a reader could think is promised
            too, and is not.
        spent (dict[str, float]): what was spent of each budget.
        budget (dict[str, float]): what may be spent of each budget in all.
        data (str): a fingerprint of the data that it speaks of.
        origin (dict[str, Any]): versions and arguments, as
            :func:`provenance`.
    """

    procedure: str
    promise: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...] = ()
    spent: dict[str, float] = dataclasses.field(default_factory=dict)
    budget: dict[str, float] = dataclasses.field(default_factory=dict)
    data: str = ''
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ('procedure', 'promise', 'data'):
            check_instance(name, getattr(self, name), str)
        for name in ('procedure', 'promise'):
            if not getattr(self, name):
                raise ValueError(f"'{name}' can't be empty")
        for name in ('assumptions', 'not_covered'):
            check_instance(name, getattr(self, name), tuple, list)
            for text in getattr(self, name):
                check_instance(name, text, str)
        for name in ('spent', 'budget', 'origin'):
            check_instance(name, getattr(self, name), dict)
        for name in ('spent', 'budget'):
            for amount in getattr(self, name).values():
                check_number(name, amount)
        if set(self.spent) != set(self.budget):
            raise ValueError(
                "'spent' and 'budget' need to be of the same things (got "
                f'{sorted(self.spent)} and {sorted(self.budget)})'
            )

    def guarantee(self) -> 'Guarantee':
        """Itself."""
        return self

    @property
    def remaining(self) -> dict[str, float]:
        """What is left of each budget."""
        return {
            name: self.budget[name] - spent
            for name, spent in self.spent.items()
        }


@dataclass(frozen=True)
class TrustReport(Report):
    """All promises of an application, on one page and in one file.

    Args:
        guarantees (tuple[Guarantee, ...]): as :meth:`of` collects them.

    Example:
        >>> report = TrustReport.of(
        ...     Guarantee('sampling', 'no node is in two subgraphs', ())
        ... )
        >>> print(report)
        1. sampling
           promised: no node is in two subgraphs
    """

    guarantees: tuple[Guarantee, ...]

    def __post_init__(self) -> None:
        check_instance('guarantees', self.guarantees, tuple)
        if not self.guarantees:
            raise ValueError("'guarantees' can't be empty")
        for guarantee in self.guarantees:
            check_instance('guarantees', guarantee, Guarantee)

    @classmethod
    def of(cls, *reports: Report) -> 'TrustReport':
        """Collects the promises of reports.

        Args:
            *reports (Report): what the procedures returned.

        Raises:
            TypeError: if one is no report, or promises nothing by itself.
            ValueError: if there are none.
        """
        if not reports:
            raise ValueError("'reports' can't be empty")
        for report in reports:
            if not isinstance(report, Report):
                raise TypeError(
                    "'reports' needs to hold reports (got "
                    f'{type(report).__name__})'
                )
        return cls(tuple(report.guarantee() for report in reports))

    def save(self, path: str | Path) -> None:
        """Writes the JSON, whole or not at all.

        Args:
            path (str or Path): of the file.
        """
        check_instance('path', path, str, Path)
        files.write(path, (self.to_json() + '\n').encode())

    def __str__(self) -> str:
        lines = [
            line
            for number, guarantee in enumerate(self.guarantees, 1)
            for line in _paragraph(number, guarantee)
        ]
        versions = dict.fromkeys(
            f'{name} {value}'
            for guarantee in self.guarantees
            for name, value in guarantee.origin.items()
            if isinstance(value, str)
        )
        if versions:
            lines += textwrap.wrap(f'made with {", ".join(versions)}', 79)
        return '\n'.join(lines)


def _paragraph(number: int, guarantee: Guarantee) -> list[str]:
    lines = [f'{number}. {guarantee.procedure}']

    def say(title: str, text: str) -> None:
        lines.extend(
            textwrap.wrap(
                f'{title}: {text}',
                width=79,
                initial_indent='   ',
                subsequent_indent='     ',
                break_long_words=False,
            )
        )

    say('promised', guarantee.promise)
    for text in guarantee.assumptions:
        say('if', text)
    for text in guarantee.not_covered:
        say('not covered', text)
    for name, spent in guarantee.spent.items():
        say(
            f'budget, {name}',
            f'{_short(spent)} of {_short(guarantee.budget[name])} spent, '
            f'{_short(guarantee.remaining[name])} left',
        )
    if guarantee.data:
        say('data', f'SHA-256 {guarantee.data[:16]}')
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return _short(value.item())
        shape = ', '.join(map(str, value.shape))
        return f'{value.dtype} tensor [{shape}]'.replace('torch.', '')
    if isinstance(value, float):
        return f'{value:.6g}'
    return str(value)
