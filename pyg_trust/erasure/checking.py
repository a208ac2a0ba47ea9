"""Checks of the evidence of an erasure, without the desk and the models."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from pyg_trust._checks import check_instance
from pyg_trust.check.answers import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    Checks,
    Finding,
)
from pyg_trust.erasure import fields
from pyg_trust.erasure.reports import ErasureReport
from pyg_trust.verify import chain
from pyg_trust.verify.accounting import judge_mu
from pyg_trust.verify.claims import amount, number, read_json

__all__ = ['check_erasure']

#: Modes of tasks that no line of a ledger stands for.
STATED = ('not in it', 'removed before', 'by its owner')
_LAYOUT = (AttributeError, KeyError, RecursionError, TypeError)
REMOVED = ('now', 'batch', 'again', 'covered')
#: The mode of a task that a line of a ledger stands for, and no guarantee.
IN_LEDGER = 'in the ledger'


def check_erasure(
    path: str | Path, ledgers: Mapping[str, str | Path] | None = None
) -> list[Finding]:
    """Check the evidence of one erasure against the ledgers of models.

    A statement that only the report makes is ``'not proved'``: a task without
    a line in a ledger, or a note that something was not in a model. If the
    noise in a private model sufficed, epsilon is computed again.

    Args:
        path (str or Path): the JSON file of an :class:`ErasureReport`, made by
            its ``to_json()``.
        ledgers (dict, optional): by the name of a model, the JSON file of
            ``ledger.state_dict()``; for a private model that of its
            ``removals`` ledger. By default no ledger is checked.

    Returns:
        list[Finding]: the findings: each holds, fails, is not proved or was
        not checked.

    Raises:
        ValueError: if a file is no such report or ledger.
    """
    check_instance('path', path, str, Path)
    check_instance('ledgers', ledgers, Mapping, type(None))
    given = dict(ledgers or {})
    try:
        values = read_json(Path(path).read_text())
        tasks = tuple(values['tasks'])
        report = ErasureReport(**{**values, 'tasks': tasks})
        unknown = set(given) - {task['name'] for task in tasks}
        if unknown:
            raise ValueError(f"'ledgers' name no model of it: {unknown}")
        made = [(FAILS, text) for text in _of_dates(report)]
        for task in tasks:
            made += _of_task(task, given.get(task['name']))
    except (*_LAYOUT, json.JSONDecodeError) as error:
        raise ValueError(
            f"'path' needs to be the evidence of one erasure: {path} has "
            f'another layout ({type(error).__name__})'
        ) from None
    return [Finding(status, text) for status, text in made]


def _of_dates(report: ErasureReport) -> list[str]:
    received = fields.read('received_time', report.received_time)
    zone = fields.find_zone(report.zone)
    due = fields.written(fields.due(received, zone, report.regulation))
    end = fields.written(fields.read('completed_time', report.completed_time))
    found = {
        f'its date is {due}': due != report.expected_completion_time,
        'it was complete before it came': end < fields.written(received),
        'it lists no model or recipient': not report.tasks,
        'it was late, or says so falsely': (end > due) != report.overdue,
        'it is complete, or says so falsely': report.request_status
        != 'completed',
    }
    return [text for text, is_wrong in found.items() if is_wrong]


def _of_task(task: dict[str, Any], path: str | Path | None) -> Checks:
    name, mode, claim = task['name'], task['mode'], task['promise']
    if task['state'] != 'done':
        yield FAILS, f'{name} is {task["state"]}'
        return
    if mode not in STATED and not claim:
        lost = mode == IN_LEDGER
        text = f'{name} was removed from without a promise'
        yield UNPROVED if lost else FAILS, text
    if mode not in (*STATED, *REMOVED, IN_LEDGER) or (
        mode != 'again' and (mode == 'covered') != ('mu' in claim)
    ):
        yield FAILS, f'{name}: its mode is not that of its promise'
    if task['note']:
        yield UNPROVED, f'{name}: {task["note"]}: stated by the evidence alone'
    if 'mu' in claim:
        mu = amount('mu', claim['mu'])
        epsilon, delta = number('epsilon', claim['epsilon']), claim['delta']
        status = judge_mu(Fraction(mu) ** 2, epsilon, number('delta', delta))
        yield status, f'{name}: epsilon {epsilon:.6g} of all that it covers'
    if mode in STATED:
        yield UNPROVED, f'{name} is {mode!r}: stated by the evidence alone'
    if path is None:
        if mode not in STATED:
            yield UNKNOWN, f'{name}: its ledger was not passed'
        return
    read = chain.of_removals(Path(path).read_bytes())
    if read.broken:
        yield FAILS, f'line {read.broken} of the ledger of {name} was changed'
        return
    at = [
        number
        for number, body in enumerate(read.bodies)
        if task['reference'] in chain.references(body.get('reference', ''))
    ]
    if mode in STATED:
        if at:
            yield FAILS, f'{name} is {mode!r}, and its ledger has a removal'
        return
    wrong = ''
    if len(at) != 1:
        wrong = 'has no line of its batch'
    elif task['head'] not in read.links:
        wrong = 'is older than the removal, or another'
    elif read.links.index(task['head']) < at[0]:
        wrong = 'has the removal after the head that is named'
    elif 'mu' in claim and read.bodies[at[0]]['spent'] != claim['mu']:
        wrong = 'has paid another mu than its guarantee says'
    text = wrong or 'has the removal, once'
    yield FAILS if wrong else HOLDS, f'the ledger of {name} {text}'
