"""Trust reports as pages for people, in HTML and in Markdown.

The HTML needs nothing beside itself: no script, no font, no network. Every
text of a guarantee is escaped, numbers have four digits, and no sentence of a
list stands on the page twice.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pyg_trust.noise import SEEDED
from pyg_trust.registries import UNCHECKED
from pyg_trust.report.base import Guarantee, plain
from pyg_trust.verify.claims import outwards, visible

# By kind of promise: whom it is for, and what it says.
_FOR = {
    'privacy': 'This is a promise to every person whose record is in the '
    'data. The stated numbers bound how much of what depends on that one '
    'record can be learnt from what was released.',
    'removal': 'This is a promise to everybody who asked to be forgotten. The '
    'numbers say how close what is in use now is to what would be in use if '
    'their data had not been there.',
    'robustness': 'This is a promise to everybody whose prediction is counted '
    'as staying. Changes of the input within the stated limits do not change '
    'it.',
    'accuracy': 'This is a promise to the users of the numbers. The stated '
    'number bounds the error, or its standard deviation where it says so.',
    'measurement': 'This is a measurement, and no promise to anybody. What '
    'the tests did not look for, they can not find.',
    'other': 'This is a property of the procedure, on which other promises '
    'rest.',
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
_CHECK = 'python -m pyg_trust check trust.json'
_HOW = (
    'Save the same report as trust.json and run this command on any machine; '
    'it needs no torch. It makes derived fields and sentences again, proves '
    'epsilon from what was recorded, counts votes again, and compares what '
    'was spent with the budgets. With the files themselves (--ledger, '
    '--model, --data) it also follows the ledger, compares fingerprints, and '
    'looks for what was removed.'
)
_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 56rem; padding: 1rem; color: #1b1f24;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
section { border: 1px solid #d0d7de; border-radius: 8px; padding: 1rem;
  margin: 1rem 0; }
.verdict, .promise { font-weight: 600; }
ul { margin: 0; padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem .25rem 0;
  border-bottom: 1px solid #eaeef2; }
.bar { background: #eaeef2; height: 1rem; border-radius: 4px; }
.bar i { display: block; height: 1rem; border-radius: 4px;
  background: #1f6feb; }
.bar i.over { background: #cf222e; }
summary { font-weight: 600; margin: .75rem 0 .25rem; cursor: pointer; }
@media print { details::details-content { content-visibility: visible; } }
</style></head><body>
<h1>{{ title }}</h1>
<p class="verdict">{{ verdict }}</p>
<table>{% for name, value in facts %}
<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}
</table>
{% for p in promises %}
<section id="p{{ loop.index }}"><h2>{{ loop.index }}. {{ p.name }}</h2>
<p class="promise">{{ p.promise }}.</p>
{% for label, width, over in p.bars %}<p>{{ label }}</p>
{% if width is not none %}<div class="bar" role="img"
aria-label="{{ label }}"><i style="width: {{ width }}%"
{% if over %}class="over"{% endif %}></i></div>{% endif %}{% endfor %}
<table><tr><th>Covered</th><th>Not covered</th><th>To do</th></tr>
<tr><td>{{ p.odds }}</td>
<td><ul>{% for text in p.limits %}<li>{{ text }}</li>{% endfor %}</ul></td>
<td><ul>{% for text in p.todo %}<li>{{ text }}</li>{% endfor %}</ul></td></tr>
</table>
{% for name, texts in p.folded %}<details><summary>{{ name }}</summary>
<ul>{% for text in texts %}<li>{{ text }}</li>{% endfor %}</ul></details>
{% endfor %}<details><summary>Numbers, for engineers</summary><table>
{% for name, value in p.table %}<tr><th>{{ name }}</th><td>{{ value }}</td>
</tr>{% endfor %}</table></details></section>
{% endfor %}<section><h2>How to check this page</h2>
<p><code>{{ check }}</code></p><p>{{ how }}</p></section>
</body></html>
"""
_MARKDOWN = """## {{ title }}

**{{ verdict }}**

| | |
| --- | --- |
{% for name, value in facts %}| {{ name }} | {{ value }} |
{% endfor %}{% for p in promises %}
### {{ loop.index }}. {{ p.name }}

**{{ p.promise }}**

{{ p.odds }}

{% for label, _, _ in p.bars %}{{ label }}

{% endfor %}{% for name, texts in p.lists %}{{ name }}:

{% for text in texts %}- {{ text }}
{% endfor %}
{% endfor %}| | |
| --- | --- |
{% for name, value in p.table %}| {{ name }} | {{ value }} |
{% endfor %}{% endfor %}
To check this: save the report as trust.json, run `%s`.
""".replace('%s', _CHECK)


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


def html(report: Any) -> str:
    """Make the HTML page of a trust report."""
    return _rendered(_HTML, report, autoescape=True, finalize=_shown)


def markdown(report: Any) -> str:
    """Make the Markdown section of a model card."""
    return _rendered(_MARKDOWN, report, autoescape=False, finalize=_line)


def _rendered(template: str, report: Any, **options: Any) -> str:
    import jinja2  # which torch needs, too

    made = report.guarantees
    seen: set[str] = set()
    facts = [*report.about.items(), ('made on', report.created)]
    facts.append(('made with', ', '.join(versions(made))))
    return (
        jinja2.Environment(**options)
        .from_string(template)
        .render(
            title=report.about.get('title', 'Trust report'),
            verdict=verdict(made),
            facts=[
                (name.replace('_', ' '), value)
                for name, value in facts
                if name != 'title'
            ],
            promises=[_promise(each, seen) for each in made],
            check=_CHECK,
            how=_HOW,
        )
    )


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _line(value: Any) -> str:
    # Make one line of Markdown without markup.
    text = visible(str(value))
    for sign in '\\`*_{}[]<>|#~$&':
        text = text.replace(sign, f'\\{sign}')
    return text


def verdict(guarantees: Sequence[Guarantee]) -> str:
    """Summarize all guarantees in one line."""
    over = [
        f'{number}. {name}'
        for number, each in enumerate(guarantees, 1)
        for name, spent in each.spent.items()
        if spent > each.budget[name]
    ]
    void = sum(map(_seeded, guarantees))
    measured = sum(each.kind == 'measurement' for each in guarantees)
    numbers = {'promise': len(guarantees) - measured, 'measurement': measured}
    what = ' and '.join(
        f'{number} {name}' + 's' * (number > 1)
        for name, number in numbers.items()
        if number
    )
    if void:
        protects = f'{void} protect' + 's' * (void == 1)
        return f'{what}, of which {protects} nobody: the noise is seeded'
    if over:
        return f'{what}; over budget: {", ".join(over)}'
    return f'{what}; every budget is kept'


def _promise(each: Guarantee, seen: set[str]) -> dict[str, Any]:
    limits = _once(each.not_covered, seen)
    # A seeded guarantee is not listed among assumptions.
    held = [text for text in each.assumptions if text != SEEDED]
    folded = [
        ('It holds if', _once(held, seen)),
        ('It does not cover, either', limits[3:]),
        ('How it was checked', _once(each.checked, seen)),
        (
            'Duties that it can support (this is no legal advice)',
            _once(_DUTIES[each.kind], seen),
        ),
    ]
    folded = [(name, texts) for name, texts in folded if texts]
    return {
        'name': each.procedure,
        'promise': each.promise[0].upper() + each.promise[1:],
        'odds': _odds_text(each),
        'bars': [_bar(n, s, each.budget[n]) for n, s in each.spent.items()],
        'limits': limits[:3],
        'todo': _todo(each),
        'folded': folded,
        'lists': [
            ('Not covered', limits[:3]),
            ('To do', _todo(each)),
            *folded,
        ],
        'table': _table(each),
    }


def _once(texts: Iterable[str], seen: set[str]) -> list[str]:
    new = [text for text in dict.fromkeys(texts) if text not in seen]
    seen.update(new)
    return new


def _seeded(each: Guarantee) -> bool:
    return bool(each.values.get('seeded')) or SEEDED in each.promise


def _foreign(each: Guarantee) -> bool:
    return any(UNCHECKED in text for text in (each.promise, *each.assumptions))


def _todo(each: Guarantee) -> list[str]:
    todo = []
    if _seeded(each):
        todo.append('Release again without a seed')
    if any(spent > each.budget[name] for name, spent in each.spent.items()):
        todo.append('Release nothing more: a budget is exceeded')
    if _foreign(each):
        todo.append('Ask the person who registered it for a proof')
    if not each.checked:
        todo.append('Check it: no check was recorded with this promise')
    if each.kind == 'removal':
        todo.append('Keep report and ledger private: they name what went')
    return todo or ['Nothing']


def _odds_text(each: Guarantee) -> str:
    # Whom it is for, and what it promises: the odds, if they are known.
    whom = _FOR[each.kind]
    epsilon, delta = each.values.get('epsilon'), each.values.get('delta')
    if _foreign(each):
        return (
            'It rests on what its user has added to this package, and nobody '
            'here has checked that.'
        )
    if _seeded(each):
        return (
            'This guarantees nothing to anybody: the noise that would protect '
            'people can be computed again.'
        )
    numbers = all(isinstance(n, int | float) for n in (epsilon, delta))
    weak = each.values.get('noise') == 'objective'
    if each.kind not in _ODDS or weak or not numbers:
        return whom
    whom = whom.partition('. ')[0]
    if not (0 <= epsilon < 14 and 0 <= delta < 1):  # type: ignore[operator]
        return f'{whom}. The numbers are too large to protect anybody.'
    # Delta is added to what is likely; it is not how often that fails.
    chance = ''
    if delta:
        rare = math.floor((1 + 1e-9) / delta)
        chance = f', plus a probability of {_short(delta)} (1 in {rare:,})'
    return (
        f'{whom}. Nothing that anybody concludes from what was released is '
        f'more than {_factor(float(epsilon or 0))} times as likely as it '
        f'would be {_ODDS[each.kind]}{chance}.'
    )


def _factor(epsilon: float) -> str:
    # e to the epsilon, rounded up.
    factor = math.exp(epsilon)
    if factor < 10:
        return f'{math.ceil(1000 * factor) / 1000:g}'
    return f'{math.ceil(factor):,}'


def _bar(
    name: str, spent: float, limit: float
) -> tuple[str, float | None, bool]:
    # The label, the width in percent, and whether it is too much.
    if limit == math.inf:
        return (
            f'{name}: {outwards(spent)} spent, no limit was set',
            None,
            False,
        )
    label = f'{name}: {outwards(spent)} of {_short(limit)} spent'
    if not (limit > 0 and 0 <= spent < math.inf):
        return label, None, spent > limit
    share = 100 * spent / limit
    percent = 'less than 0.01 %' if 0 < share < 0.01 else f'{share:.3g} %'
    return f'{label} ({percent})', round(min(share, 100), 1), spent > limit


def _short(value: Any) -> str:
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def _table(each: Guarantee) -> list[tuple[str, str]]:
    # Requests are in the JSON alone, notes and limits are lists, and tables
    # of votes are too long.
    hidden = ('request', 'tallies', 'notes', 'limits')
    rows = [
        (name.replace('_', ' '), _numbers(value))
        for name, value in plain(each.values).items()
        if name not in hidden and value not in (None, '', [], {})
    ]
    for name, digest in (('data', each.data), ('model', each.model)):
        rows += [(f'{name}, SHA-256', digest)] * bool(digest)
    return rows


def _numbers(value: Any) -> str:
    # Four digits in lists, too; of a long list its ends.
    if isinstance(value, list):
        if len(value) > 12:
            value = [*value[:6], '...', *value[-6:]]
        return f'[{", ".join(map(_numbers, value))}]'
    return _short(value)
