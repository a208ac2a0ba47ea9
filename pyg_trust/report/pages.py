"""Pages for people: a trust report in HTML and in Markdown.

The HTML needs nothing beside itself: no script, no font, no network. Every
text of a guarantee is escaped.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape as escape_markup
from typing import Any

from pyg_trust.report.base import Guarantee, plain, short, visible

# Whom a sort of promise is for, and what it does not say. Two sentences.
_FOR = {
    'privacy': (
        'This is a promise to every person whose record is in the data. '
        'The stated numbers bound how much of what depends on that one '
        'record can be learnt from what was released.'
    ),
    'removal': (
        'This is a promise to everybody who asked to be forgotten. The text '
        'and the numbers say how close what is in use now is to what would be '
        'in use if their data had not been there.'
    ),
    'robustness': (
        'This is a promise to everybody who is classified. Changes of the '
        'input within the stated limits do not change their result.'
    ),
    'accuracy': (
        'This is a promise to whoever uses the numbers. The stated error is '
        'not exceeded.'
    ),
    'other': (
        'This is a property of the procedure. It is stated here because '
        'other promises rest on it.'
    ),
}

# Duties that a promise can help with.
_DUTIES = {
    'privacy': (
        'GDPR Article 25 (data protection by design)',
        'GDPR Article 32 (security of processing)',
    ),
    'removal': ('GDPR Article 17 (right to erasure)',),
    'robustness': ('AI Act Article 15 (accuracy and robustness)',),
    'accuracy': ('AI Act Article 15 (accuracy and robustness)',),
    'other': (),
}
_NO_ADVICE = 'It can support these duties. It is no legal advice.'

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 50rem; padding: 1rem; color: #1b1f24;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
section { border: 1px solid #d0d7de; border-radius: 8px; padding: 1rem;
  margin: 1rem 0; }
.promise { font-weight: 600; }
.for { color: #444c56; }
ul { margin: 0; padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem .25rem 0;
  border-bottom: 1px solid #eaeef2; }
th { font-weight: 600; width: 40%; }
svg { width: 100%; height: auto; max-width: 40rem; display: block; }
footer { color: #57606a; font-size: .85rem; }
@media print { section { break-inside: avoid; } }
"""


def escape(text: str) -> str:
    """The text as HTML shows it, no markup and nothing that is not seen.

    Args:
        text (str): of a guarantee.
    """
    return escape_markup(visible(text))


def versions(guarantees: Iterable[Guarantee]) -> list[str]:
    """The versions in the origins, each once."""
    return list(
        dict.fromkeys(
            f'{name} {value}'
            for guarantee in guarantees
            for name, value in guarantee.origin.items()
            if isinstance(value, str)
        )
    )


def html(guarantees: Sequence[Guarantee], created: str) -> str:
    """The page for people.

    Args:
        guarantees (tuple[Guarantee, ...]): of the report.
        created (str): when the report was made.
    """
    count = f'{len(guarantees)} promise' + 's' * (len(guarantees) != 1)
    rows = ''.join(
        f'<tr><td><a href="#p{i}">{escape(each.procedure)}</a></td>'
        f'<td>{escape(_left(each))}</td></tr>'
        for i, each in enumerate(guarantees, 1)
    )
    sections = ''.join(
        _section(i, each) for i, each in enumerate(guarantees, 1)
    )
    made = ', '.join(versions(guarantees))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Trust report</title><style>{_STYLE}</style></head><body>\n'
        f'<h1>Trust report: {count}</h1>\n'
        '<p>What was promised about the data and the model, under which '
        f'conditions, and what was spent. Made on {escape(created)}.</p>\n'
        f'<table><tr><th>Procedure</th><th>Budget</th></tr>{rows}</table>\n'
        f'{sections}<footer><p>Made with {escape(made)}.</p></footer>\n'
        '</body></html>\n'
    )


def markdown(guarantees: Sequence[Guarantee], created: str) -> str:
    """A section for a model card.

    Args:
        guarantees (tuple[Guarantee, ...]): of the report.
        created (str): when the report was made.
    """
    lines = ['## Trust report', '', f'Made on {created}.', '']
    for each in guarantees:
        lines += [f'### {_line(each.procedure)}', '']
        lines += [f'**{_line(each.promise)}**', '', _FOR[each.kind], '']
        for title, texts in _lists(each):
            lines += [f'{title}:', '']
            lines += [f'- {_line(text)}' for text in texts] + ['']
        table = _table(each)
        if table:
            lines += ['| | |', '| --- | --- |']
            lines += [f'| {_line(k)} | {_line(v)} |' for k, v in table] + ['']
    made = _line(', '.join(versions(guarantees)))
    lines += [f'Made with {made}.', '']
    return '\n'.join(lines)


def _line(text: str) -> str:
    # One line of Markdown in which nothing is markup.
    text = visible(text)
    for sign in '\\`*_{}[]<>|#~$&':
        text = text.replace(sign, f'\\{sign}')
    return text


def _left(each: Guarantee) -> str:
    parts = [
        f'{name}: {short(spent)} of {short(each.budget[name])} spent'
        for name, spent in each.spent.items()
    ]
    return ', '.join(parts) or 'has none'


def _lists(each: Guarantee) -> list[tuple[str, Sequence[str]]]:
    duties = _DUTIES[each.kind]
    lists = [
        ('It holds if', each.assumptions),
        ('It does not cover', each.not_covered),
        ('How it was checked', each.checked),
        (f'Duties. {_NO_ADVICE}', duties),
    ]
    return [(title, texts) for title, texts in lists if texts]


def _table(each: Guarantee) -> list[tuple[str, str]]:
    rows = [
        (name.replace('_', ' '), short(value))
        for name, value in plain(each.values).items()
        # Who asked to be forgotten is in the JSON, for whoever checks it.
        if name != 'request'
    ]
    rows += [
        (
            f'{name}, spent of budget',
            f'{short(spent)} of {short(each.budget[name])}',
        )
        for name, spent in each.spent.items()
    ]
    if each.data:
        rows.append(('data, SHA-256', each.data))
    if each.model:
        rows.append(('model, SHA-256', each.model))
    return rows


def _section(number: int, each: Guarantee) -> str:
    parts = [
        f'<section id="p{number}"><h2>{number}. {escape(each.procedure)}</h2>',
        f'<p class="promise">{escape(each.promise)}</p>',
        f'<p class="for">{escape(_FOR[each.kind])}</p>',
    ]
    for name, spent in each.spent.items():
        parts.append(_bar(name, spent, each.budget[name]))
        if len(each.history.get(name, [])) > 1:
            parts.append(_line_chart(name, each.history[name]))
    for title, texts in _lists(each):
        items = ''.join(f'<li>{escape(text)}</li>' for text in texts)
        parts.append(f'<h3>{escape(title)}</h3><ul>{items}</ul>')
    rows = ''.join(
        f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _table(each)
    )
    if rows:
        parts.append(f'<h3>Numbers</h3><table>{rows}</table>')
    return '\n'.join([*parts, '</section>\n'])


def _bar(name: str, spent: float, limit: float) -> str:
    # The share of a budget that is spent, as a picture.
    said = f'{name}: {short(spent)} of {short(limit)} spent'
    if not 0 < limit < math.inf or not 0 <= spent < math.inf:
        return f'<p>{escape(said)}</p>'
    width = 600 * min(spent / limit, 1.0)
    color = '#1f6feb' if spent <= limit else '#cf222e'
    return (
        f'<svg viewBox="0 0 600 44" role="img" aria-label="{escape(said)}">'
        f'<text x="0" y="16" font-size="15">{escape(said)}</text>'
        '<rect y="24" width="600" height="16" rx="4" fill="#eaeef2"/>'
        f'<rect y="24" width="{width:.1f}" height="16" rx="4" fill="{color}"/>'
        '</svg>'
    )


def _line_chart(name: str, amounts: Sequence[float]) -> str:
    # What was spent over time, from nothing.
    finite = [value for value in amounts if math.isfinite(value)]
    top = max([*finite, 1e-300])
    points = ' '.join(
        f'{40 + 550 * i / (len(finite) - 1 or 1):.1f},'
        f'{110 - 90 * value / top:.1f}'
        for i, value in enumerate(finite)
    )
    said = f'{name} over {len(finite)} entries, up to {short(top)}'
    return (
        f'<svg viewBox="0 0 600 140" role="img" aria-label="{escape(said)}">'
        '<line x1="40" y1="110" x2="590" y2="110" stroke="#8c959f"/>'
        '<line x1="40" y1="20" x2="40" y2="110" stroke="#8c959f"/>'
        f'<text x="36" y="24" font-size="13" text-anchor="end">'
        f'{escape(_tick(top))}</text>'
        '<text x="36" y="114" font-size="13" text-anchor="end">0</text>'
        f'<polyline points="{points}" fill="none" stroke="#1f6feb" '
        'stroke-width="2"/>'
        f'<text x="40" y="132" font-size="13">{escape(said)}</text></svg>'
    )


def _tick(value: Any) -> str:
    return f'{value:.2g}'
