"""Trust reports as pages for people, in HTML and in Markdown.

The HTML of ``templates/`` needs no script, no font and no network. Every text
is escaped, numbers have four digits, and no sentence is there twice.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyg_trust.noise import SEEDED
from pyg_trust.registries import UNCHECKED
from pyg_trust.report.base import Guarantee, plain, short
from pyg_trust.verify.claims import outwards, visible

__all__ = ['erasure', 'trust', 'verdict', 'versions']

# By kind of promise: whom it is for, and what it says.
_FOR = {
    'privacy': 'This is a guarantee for every person whose record is in the '
    'data. The stated numbers bound how much of what depends on that one '
    'record can be learnt from what was released.',
    'removal': 'This is a guarantee for everybody who asked to be forgotten. '
    'The numbers say how close what is in use now is to what would be in use '
    'if their data had not been there.',
    'robustness': 'This is a guarantee for everybody whose prediction is '
    'counted as staying. Changes of the input within the stated limits do not '
    'change it.',
    'accuracy': 'This is a guarantee for the users of the numbers. The stated '
    'number bounds the error, or its standard deviation where it says so.',
    'measurement': 'This is a measurement, and no guarantee for anybody. What '
    'the tests did not look for, they can not find.',
    'other': 'This is a property of the procedure, on which other '
    'guarantees rest.',
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
_MODES = {
    'now': 'removed from the model',
    'batch': 'removed from the model, in a batch',
    'again': 'removed again, after a backup was restored',
    'covered': 'the noise of the release hides it',
    'in the ledger': 'the ledger of the model has the removal',
    'removed before': 'an earlier request had removed it',
    'not in it': 'the model never had it',
    'by its owner': 'its owner states that it is erased',
}
_LIMITS = (
    'What earlier releases, predictions, logs and exports have shown',
    'Raw data, and copies that no model or recipient here is named for',
    'Whether a recipient has done what it states',
)


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


def trust(report: Any, template: str = 'trust.html') -> str:
    """Make the page of a trust report, or the Markdown of a model card."""
    made, seen = report.guarantees, set[str]()
    facts = {**report.about, 'made on': report.created}
    facts['made with'] = ', '.join(versions(made))
    title = facts.pop('title', 'Trust report')
    promises = [_promise(each, seen) for each in made]
    return _page(template, title, verdict(made), facts, promises=promises)


def erasure(report: Any) -> str:
    """Make the page of one request to be erased."""
    done = sum(task['state'] == 'done' for task in report.tasks)
    text = f'{done} of {len(report.tasks)} models and recipients are done'
    if report.request_status == 'completed':
        text = f'Erased: {text}'
    elif report.request_status == 'cancelled':
        text = f'Cancelled: {report.reason or text}'
    else:
        text = f'{"Overdue" if report.overdue else "Not yet erased"}: {text}'
    facts = {
        'request': report.subject_request_id,
        'regulation': report.regulation.upper(),
        'received': report.received_time,
        'due': report.expected_completion_time,
        'completed': report.completed_time,
        'halted': report.halted,
        'time zone': report.zone,
        'backups are kept until': report.backups_until,
    }
    rows, limits, table = [], list(_LIMITS), []
    for task in report.tasks:
        is_done, claim = task['state'] == 'done', task['promise']
        how = _MODES.get(task['mode'], task['mode']) if is_done else ''
        if is_done and 'promise' in claim:
            how += f': {claim["promise"]}'
        todo = 'Nothing' if is_done else task['note'] or 'Run the desk again'
        if not (is_done or task['is_model']):
            todo = 'Ask the recipient, and record its answer (erasure done)'
        rows.append((task['name'], task['state'], how, todo))
        limits += claim.get('not_covered', ())
        table += [
            (f'{task["name"]}, {name}', short(task[name]))
            for name in ('mode', 'finished', 'reference', 'head')
            if task[name]
        ]
    limits = list(dict.fromkeys(limits))
    return _page(
        *('erasure.html', 'Erasure of a request', text),
        {name: value for name, value in facts.items() if value},
        rows=rows,
        limits=limits[:3],
        folded=limits[3:],
        table=table,
    )


def _page(
    template: str, title: str, text: str, facts: dict[str, str], **rest: Any
) -> str:
    import jinja2  # which torch needs, too

    page = template.endswith('.html')
    folder = jinja2.FileSystemLoader(Path(__file__).parent / 'templates')
    made = jinja2.Environment(
        loader=folder, autoescape=page, finalize=_shown if page else _line
    )
    return made.get_template(template).render(
        title=title,
        verdict=text,
        facts=[(k.replace('_', ' '), value) for k, value in facts.items()],
        **rest,
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
    numbers = {
        'guarantee': len(guarantees) - measured,
        'measurement': measured,
    }
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
        'odds': ' '.join(_once(_covered(each), seen)) or 'As above.',
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
        todo.append('Check it: no check was recorded with this guarantee')
    if each.kind == 'removal':
        todo.append(
            'Keep report and ledger private: they hold the removed ids'
        )
    return todo or ['Nothing']


def _covered(each: Guarantee) -> tuple[str, ...]:
    # Whom it is for, and what it promises: the odds, if they are known.
    whom, _, meaning = _FOR[each.kind].partition('. ')
    epsilon, delta = each.values.get('epsilon'), each.values.get('delta')
    if _foreign(each):
        return (
            'It rests on what its user has added to this package, and nobody '
            'here has checked that.',
        )
    if _seeded(each):
        return (
            'This guarantees nothing to anybody: the noise that would protect '
            'people can be computed again.',
        )
    numbers = all(isinstance(n, int | float) for n in (epsilon, delta))
    weak = each.values.get('noise') == 'objective'
    if each.kind not in _ODDS or weak or not numbers:
        return f'{whom}.', meaning
    if not (0 <= epsilon < 14 and 0 <= delta < 1):  # type: ignore[operator]
        return f'{whom}.', 'The numbers are too large to protect anybody.'
    # Delta is added to what is likely; it is not how often that fails.
    chance = ''
    if delta:
        rare = math.floor((1 + 1e-9) / delta)
        chance = f', plus a probability of {short(delta)} (1 in {rare:,})'
    return (
        f'{whom}.',
        'Nothing that anybody concludes from what was released is more than '
        f'{_factor(float(epsilon or 0))} times as likely as it would be '
        f'{_ODDS[each.kind]}{chance}.',
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
    label = f'{name}: {outwards(spent)} of {short(limit)} spent'
    if not (limit > 0 and 0 <= spent < math.inf):
        return label, None, spent > limit
    share = 100 * spent / limit
    percent = 'less than 0.01 %' if 0 < share < 0.01 else f'{share:.3g} %'
    return f'{label} ({percent})', round(min(share, 100), 1), spent > limit


def _table(each: Guarantee) -> list[tuple[str, str]]:
    # Requests are in the JSON alone, notes and limits are lists, and tables
    # of votes are too long.
    hidden = ('request', 'tallies', 'notes', 'limits')
    rows = [
        (name.replace('_', ' '), short(value))
        for name, value in plain(each.values).items()
        if name not in hidden and value not in (None, '', [], {})
    ]
    for name, digest in (
        ('data', each.data_sha256),
        ('weights', each.weights_sha256),
    ):
        rows += [(f'{name}, SHA-256', digest)] * bool(digest)
    return rows
