"""Trust reports: all guarantees of an application in one file."""

import dataclasses
import datetime
import json
import math
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pyg_trust import files
from pyg_trust._checks import check_choice, check_instance, check_integer
from pyg_trust.report import pages
from pyg_trust.report.base import Guarantee, Report, short
from pyg_trust.report.charts import Chart
from pyg_trust.verify.claims import (
    MOST_PROMISES,
    digest,
    finite,
    outwards,
    visible,
)
from pyg_trust.verify.promises import ABOUT, LAYOUT, read
from pyg_trust.verify.promises import schema as schema

__all__ = ['SCHEMA_VERSION', 'TrustReport', 'schema']

#: The version of the JSON's layout; :func:`schema` describes it.
SCHEMA_VERSION = LAYOUT


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(
        'T', 'seconds'
    )


@dataclass(frozen=True)
class TrustReport(Report):
    """All guarantees of an application, as one page and one file.

    Args:
        guarantees (tuple[Guarantee, ...]): the guarantees; :meth:`of` collects
            them from reports.
        created (str): the time of creation, ISO 8601; by default now.
        schema_version (int): the version of the JSON layout.
        about (dict[str, str]): texts for the head of the page, such as
            ``'title'`` and ``'owner'``. (default: none)

    Example:
        >>> report = TrustReport.of(
        ...     Guarantee('sampling', 'no node is in two subgraphs', ())
        ... )
        >>> print(report)
        1. sampling
           guaranteed: no node is in two subgraphs
    """

    guarantees: tuple[Guarantee, ...]
    created: str = dataclasses.field(default_factory=_now)
    schema_version: int = SCHEMA_VERSION
    about: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_instance('guarantees', self.guarantees, tuple)
        if not 0 < len(self.guarantees) <= MOST_PROMISES:
            raise ValueError(
                f"'guarantees' needs 1 to {MOST_PROMISES} entries, so that "
                f'the report can be checked soon (got {len(self.guarantees)})'
            )
        for guarantee in self.guarantees:
            check_instance('guarantees', guarantee, Guarantee)
        check_instance('created', self.created, str)
        check_instance('about', self.about, dict)
        for name, text in self.about.items():
            check_choice('about', name, ABOUT)
            check_instance(name, text, str)
        try:
            zone = datetime.datetime.fromisoformat(self.created).tzinfo
        except ValueError:
            zone = None
        if zone is None:
            raise ValueError(
                "'created' needs to be an ISO 8601 time with its zone "
                f'(got {self.created!r})'
            )
        check_integer('schema_version', self.schema_version, 1, SCHEMA_VERSION)

    @classmethod
    def of(cls, *reports: Report, **about: str) -> 'TrustReport':
        """Collect the guarantees of reports.

        Args:
            *reports (Report): the reports that the procedures returned.
            **about (str): texts for the head of the page: ``title``,
                ``owner`` (who answers for it), ``data_set``, ``people`` (who
                is in the data, and how many) and ``utility`` (what the model
                is good for, such as its accuracy).
        """
        if len(reports) == 1 and isinstance(reports[0], list | tuple):
            reports = tuple(reports[0])
        if not reports:
            raise ValueError("'reports' can't be empty")
        for report in reports:
            if not isinstance(report, Report):
                raise TypeError(
                    "'reports' needs to hold reports (got "
                    f'{type(report).__name__})'
                )
        made = tuple(report.guarantee() for report in reports)
        return cls(made, about=about)

    def save(self, path: str | Path) -> None:
        """Write the report to a file atomically.

        Args:
            path (str or Path): the path of the file. Its ending sets the
                format: ``.json`` for programs, ``.html`` for people (one page
                that needs no network), ``.md`` for a model card.
        """
        check_instance('path', path, str, Path)
        made = {
            '.json': lambda: self.to_json() + '\n',
            '.html': self.to_html,
            '.md': self.to_markdown,
        }
        check_choice('path', Path(path).suffix, made)
        files.write(path, made[Path(path).suffix]().encode())

    @classmethod
    def load(cls, path: str | Path) -> 'TrustReport':
        """Read a report that :meth:`save` has written as JSON.

        Args:
            path (str or Path): the path of the file.
        """
        check_instance('path', path, str, Path)
        fields = read(path)
        for entry in fields['guarantees']:
            for name in ('assumptions', 'not_covered', 'checked'):
                entry[name] = tuple(entry[name])
        made = tuple(Guarantee(**entry) for entry in fields.pop('guarantees'))
        return cls(made, **fields)

    def to_json(self) -> str:
        """Return the JSON text that :meth:`save` writes, with its SHA-256."""
        fields = finite(self.to_dict())
        fields['digest'] = digest(fields)
        return json.dumps(fields, indent=2, allow_nan=False)

    def to_html(self) -> str:
        """Return a self-contained HTML page for people, with figures."""
        return pages.trust(self)

    def to_markdown(self) -> str:
        """Return a section for a model card, in Markdown."""
        return pages.trust(self, 'trust.md')

    def _repr_html_(self) -> str:
        # Its styles are for a page of its own.
        page = escape(self.to_html())
        return f'<iframe srcdoc="{page}" width="100%" height="600"></iframe>'

    def chart(self) -> Chart:
        """Return a chart of the spent share of each budget."""
        bars = {
            f'{number}. {each.procedure}: {name}': spent / each.budget[name]
            for number, each in enumerate(self.guarantees, 1)
            for name, spent in each.spent.items()
            if 0 < each.budget[name] < math.inf
        }
        if not bars:
            raise ValueError(
                "'plot' needs a finite budget in one of the guarantees"
            )
        over = [name for name, share in bars.items() if share > 1]
        return Chart(
            f'Over its budget: {", ".join(over)}'
            if over
            else 'Every budget is kept',
            bars=bars,
            xlabel='share of the budget',
            limit=1.0,
        )

    def __str__(self) -> str:
        lines = [
            visible(f'{name}: {text}'.replace('_', ' '))
            for name, text in self.about.items()
        ]
        lines += [
            line
            for number, guarantee in enumerate(self.guarantees, 1)
            for line in _paragraph(number, guarantee)
        ]
        versions = pages.versions(self.guarantees)
        if versions:
            made = visible(f'made with {", ".join(versions)}')
            lines += textwrap.wrap(made, 79)
        return '\n'.join(lines)


def _paragraph(number: int, guarantee: Guarantee) -> list[str]:
    lines = [f'{number}. {visible(guarantee.procedure)}']
    measured = guarantee.kind == 'measurement'
    said = [f'{"measured" if measured else "guaranteed"}: {guarantee.promise}']
    for title, texts in (
        ('it holds if:', guarantee.assumptions),
        ('it does not cover:', guarantee.not_covered),
        ('how it was checked:', guarantee.checked),
    ):
        said += [title, *(f'- {text}' for text in texts)] if texts else []
    for name, spent in guarantee.spent.items():
        left = outwards(guarantee.remaining[name], up=False)
        said.append(
            f'budget, {name}: {outwards(spent)} of '
            f'{short(guarantee.budget[name])} spent, {left} left'
        )
    for name in ('data', 'weights'):
        if value := getattr(guarantee, f'{name}_sha256'):
            said.append(f'{name}: SHA-256 {value[:16]}')
    for text in said:
        lines += textwrap.wrap(
            visible(text),
            width=79,
            initial_indent='   ',
            subsequent_indent='     ',
            break_long_words=False,
        )
    return lines
