"""Trust reports as pages for people, in HTML and in Markdown.

The HTML needs nothing beside itself: no script, no font, no network. Every
text of a guarantee is escaped.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape as escape_markup
from typing import Any

from pyg_trust.noise import SEEDED
from pyg_trust.registries import UNCHECKED
from pyg_trust.report.base import Guarantee, plain, short
from pyg_trust.verify.claims import visible

# By kind of promise: the reader it is for, and what it says, in two sentences.
_FOR = {
    'privacy': (
        'This is a promise to every person whose record is in the data.',
        'The stated numbers bound how much of what depends on that one '
        'record can be learnt from what was released.',
    ),
    'removal': (
        'This is a promise to everybody who asked to be forgotten.',
        'The text and the numbers say how close what is in use now is to what '
        'would be in use if their data had not been there.',
    ),
    'robustness': (
        'This is a promise to everybody whose prediction is counted as '
        'staying.',
        'Changes of the input within the stated limits do not change it.',
    ),
    'accuracy': (
        'This is a promise to whoever uses the numbers.',
        'The stated number bounds the error, or its standard deviation where '
        'it says so.',
    ),
    'measurement': (
        'This is a measurement, and no promise to anybody.',
        'It says what tests have found. What they did not look for, they can '
        'not find.',
    ),
    'other': (
        'This is a property of the procedure.',
        'It is stated here because other promises rest on it.',
    ),
}
# Epsilon and delta, as what they bound.
_ODDS = {
    'privacy': 'had that one record been different',
    'removal': 'had their data never been there',
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
    'measurement': (
        'GDPR Article 32(1)(d) (testing whether measures are effective)',
    ),
    'other': (),
}
_NO_ADVICE = 'this is no legal advice'
_UNCHECKED = (
    'No check was recorded with this promise. The end of this page says how '
    'to make one.'
)
_CHECK = 'python -m pyg_trust check trust.json'
_HOW = (
    'Save the same report as trust.json and run this command, on any machine. '
    'It needs no torch. It makes the sentences from the fields again, proves '
    'epsilon from what was recorded, in integers, counts again which '
    'predictions stay by the recorded votes, and compares '
    'what was spent with the budgets. With the files themselves '
    '(--ledger, --model, --data) it follows the chain of the ledger, compares '
    'the fingerprints of weights and data, and looks for what was removed. It '
    'says in one line each what holds, what fails, what is not proved and '
    'what could not be checked.'
)

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
p.figure { margin: .75rem 0 .25rem; }
@media (max-width: 30rem) { svg text { font-size: 22px; } }
summary { font-weight: 600; margin: 1rem 0 .25rem; cursor: pointer; }
code { background: #f6f8fa; padding: .1rem .3rem; }
footer { color: #57606a; font-size: .85rem; }
@media print { section { break-inside: avoid; }
  details::details-content { content-visibility: visible; } }
"""


def escape(text: str) -> str:
    """Escape text for HTML, and make invisible characters visible."""
    return escape_markup(visible(text))


def versions(guarantees: Iterable[Guarantee]) -> list[str]:
    """List the distinct versions in the origins of guarantees."""
    return list(
        dict.fromkeys(
            f'{name} {value}'
            for guarantee in guarantees
            for name, value in guarantee.origin.items()
            if isinstance(value, str)
        )
    )


def html(guarantees: Sequence[Guarantee], created: str) -> str:
    """Make the HTML page of a trust report."""
    count = _count(guarantees)
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
        '<p>What was promised or measured about the data and the model, under '
        'which conditions, and what was spent. '
        f'Made on {escape(created)}.</p>\n'
        f'<table><tr><th>Procedure</th><th>Budget</th></tr>{rows}</table>\n'
        f'{sections}<section><h2>How to check this page</h2>'
        f'<p><code>{escape(_CHECK)}</code></p><p>{escape(_HOW)}</p></section>'
        f'<footer><p>Made with {escape(made)}.</p></footer>\n'
        '</body></html>\n'
    )


def _count(guarantees: Sequence[Guarantee]) -> str:
    # A measurement promises nothing.
    measured = sum(each.kind == 'measurement' for each in guarantees)
    numbers = {'promise': len(guarantees) - measured, 'measurement': measured}
    return ' and '.join(
        f'{number} {name}' + 's' * (number > 1)
        for name, number in numbers.items()
        if number
    )


def markdown(guarantees: Sequence[Guarantee], created: str) -> str:
    """Make the Markdown section of a model card."""
    made_on = f'Made on {created}. To check it: `{_CHECK}`.'
    lines = ['## Trust report', '', made_on, '']
    for each in guarantees:
        lines += [f'### {_line(each.procedure)}', '']
        lines += [
            f'**{_line(each.promise)}**',
            '',
            _line(_odds_text(each)),
            '',
        ]
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
    # Make one line of Markdown without markup.
    text = visible(text)
    for sign in '\\`*_{}[]<>|#~$&':
        text = text.replace(sign, f'\\{sign}')
    return text


def _odds_text(each: Guarantee) -> str:
    # The reader, and the promise: the odds themselves, if they are the
    # promise.
    whom, what = _FOR[each.kind]
    epsilon, delta = each.values.get('epsilon'), each.values.get('delta')
    weak = each.values.get('seeded') or each.values.get('noise') == 'objective'
    if any(UNCHECKED in text for text in (each.promise, *each.assumptions)):
        return (
            f'{whom} It rests on what its user has added to this package, and '
            'nobody here has checked that.'
        )
    if each.values.get('seeded') or SEEDED in each.promise:
        return (
            'This promises nothing to anybody: the noise that would protect '
            'people can be computed again.'
        )
    if each.kind not in _ODDS or weak:
        return f'{whom} {what}'
    if not isinstance(epsilon, int | float) or not isinstance(
        delta, int | float
    ):
        return f'{whom} {what}'
    if not (0 <= epsilon < 14 and 0 <= delta < 1):
        return f'{whom} The numbers are too large to protect anybody.'
    # Delta is added to what is likely; it is not how often that fails.
    chance = ''
    if delta > 0:
        chance = (
            f', plus a probability of {short(float(delta))} (1 in '
            f'{math.floor((1 + 1e-9) / delta):,})'
        )
    return (
        f'{whom} Nothing that anybody concludes from what was released is '
        f'more than {_factor(epsilon)} times as likely as it would be '
        f'{_ODDS[each.kind]}{chance}.'
    )


def _factor(epsilon: float) -> str:
    # e to the epsilon, rounded up.
    factor = math.exp(epsilon)
    if factor < 10:
        return f'{math.ceil(1000 * factor) / 1000:g}'
    return f'{math.ceil(factor):,}'


def _left(each: Guarantee) -> str:
    parts = [
        _share(name, spent, each.budget[name])
        for name, spent in each.spent.items()
    ]
    return ', '.join(parts) or 'nothing to spend'


def _share(name: str, spent: float, limit: float) -> str:
    if limit == math.inf:
        return f'{name}: {short(spent)} spent, no limit was set'
    share = ''
    if limit > 0 and 0 <= spent < math.inf:
        share = f' ({_percent(spent / limit)})'
    return f'{name}: {short(spent)} of {short(limit)} spent{share}'


def _percent(share: float) -> str:
    if 0 < share < 1e-4:
        return 'less than 0.01 %'
    return f'{100 * share:.3g} %'


def _lists(each: Guarantee) -> list[tuple[str, Sequence[str]]]:
    duties = _DUTIES[each.kind]
    # A seeded guarantee is said above to hold nothing.
    assumed = [text for text in each.assumptions if text != SEEDED]
    found = 'How it was checked'
    if each.kind == 'measurement':
        found = 'What was measured'
    lists = [
        ('It holds if', assumed),
        ('It does not cover', each.not_covered),
        (found, each.checked or (_UNCHECKED,)),
        (f'Duties that it can support ({_NO_ADVICE})', duties),
    ]
    return [(title, texts) for title, texts in lists if texts]


def _table(each: Guarantee) -> list[tuple[str, str]]:
    rows = [
        (name.replace('_', ' '), short(value))
        for name, value in plain(each.values).items()
        # Requests are in the JSON alone, histories are drawn, and tables of
        # votes are too long.
        if name not in ('request', 'history', 'tallies')
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
        f'<p class="promise">{escape(_upper(each.promise))}.</p>',
        f'<p class="for">{escape(_odds_text(each))}</p>',
    ]
    for name, spent in each.spent.items():
        parts.append(_bar(name, spent, each.budget[name]))
        if len(each.history.get(name, [])) > 1:
            amounts = each.history[name]
            parts.append(_line_chart(name, amounts, each.budget[name]))
    for title, texts in _lists(each):
        first, *rest = [f'<li>{escape(text)}</li>' for text in texts]
        parts.append(f'<h3>{escape(title)}</h3><ul>{first}</ul>')
        if rest:
            parts.append(
                f'<details><summary>and {len(rest)} more</summary>'
                f'<ul>{"".join(rest)}</ul></details>'
            )
    rows = ''.join(
        f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _table(each)
    )
    if rows:
        parts.append(
            '<details><summary>Numbers, for whoever checks</summary>'
            f'<table>{rows}</table></details>'
        )
    return '\n'.join([*parts, '</section>\n'])


def _bar(name: str, spent: float, limit: float) -> str:
    # The share of a budget that is spent, as a picture.
    label = _share(name, spent, limit)
    if not 0 < limit < math.inf or not 0 <= spent < math.inf:
        return f'<p>{escape(label)}</p>'
    width = 600 * min(spent / limit, 1.0)
    color = '#1f6feb' if spent <= limit else '#cf222e'
    return (
        f'<p class="figure">{escape(label)}</p>'
        f'<svg viewBox="0 0 600 16" role="img" aria-label="{escape(label)}">'
        '<rect width="600" height="16" rx="4" fill="#eaeef2"/>'
        f'<rect width="{width:.1f}" height="16" rx="4" fill="{color}"/>'
        '</svg>'
    )


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _line_chart(name: str, amounts: Sequence[float], limit: float) -> str:
    # The spending over time, and the budget if it fits on the scale.
    finite = [value for value in amounts if math.isfinite(value)]
    top = max([*finite, 1e-300])
    near = top < limit <= 3 * top
    top = limit if near else top
    points = ' '.join(
        f'{96 + 494 * i / (len(finite) - 1 or 1):.1f},'
        f'{110 - 90 * value / top:.1f}'
        for i, value in enumerate(finite)
    )
    label = f'{name} over time, from the start (left) to now (right)'
    label += '; dashed: the budget' if near else ''
    dashes = (
        '<line x1="96" y1="20" x2="590" y2="20" stroke="#cf222e" '
        'stroke-dasharray="6 4"/>'
    )
    return (
        f'<p class="figure">{escape(_upper(label))}</p>'
        f'<svg viewBox="0 0 600 124" role="img" aria-label="{escape(label)}">'
        '<line x1="96" y1="110" x2="590" y2="110" stroke="#8c959f"/>'
        '<line x1="96" y1="20" x2="96" y2="110" stroke="#8c959f"/>'
        f'{dashes * near}'
        f'<text x="88" y="24" font-size="13" text-anchor="end">'
        f'{escape(_tick(top))}</text>'
        '<text x="88" y="114" font-size="13" text-anchor="end">0</text>'
        f'<polyline points="{points}" fill="none" stroke="#1f6feb" '
        'stroke-width="2"/></svg>'
    )


def _tick(value: Any) -> str:
    return f'{value:.2g}'
