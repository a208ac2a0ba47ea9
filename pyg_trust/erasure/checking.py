"""Checks of the evidence of an erasure, without the desk and the models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyg_trust._checks import check_instance
from pyg_trust.erasure import fields
from pyg_trust.erasure.reports import ErasureReport
from pyg_trust.kernel import chain
from pyg_trust.kernel.claims import read_json


def check_erasure(
    path: str | Path, ledgers: Mapping[str, str | Path] | None = None
) -> list[str]:
    """Check the evidence of a request, and the ledgers of models.

    A task whose mode is ``'not in it'``, ``'removed before'`` or ``'by its
    owner'`` has no line in a ledger: the evidence alone states it.

    Args:
        path (str or Path): of the report, as its ``to_json()``.
        ledgers (dict, optional): by the name of a model, the file with the
            JSON of its ``ledger.state_dict()``. (default: :obj:`None`)

    Returns:
        list[str]: what does not hold; empty if everything does.

    Raises:
        ValueError: if a file is none of these.
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
        wrong = _of_dates(report)
        for task in tasks:
            if task['state'] != 'done':
                wrong.append(f'{task["name"]} is {task["state"]}')
            if task['name'] in given:
                wrong += _of_ledger(task, Path(given[task['name']]))
    except (
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        json.JSONDecodeError,
    ) as error:
        raise ValueError(
            f"'path' needs to be the evidence of one erasure: {path} has "
            f'another layout ({type(error).__name__})'
        ) from None
    return wrong


def _of_dates(report: ErasureReport) -> list[str]:
    received = fields.read('received_time', report.received_time)
    zone = fields.find_zone(report.zone)
    due = fields.written(fields.due(received, zone, report.regulation))
    end = fields.written(fields.read('completed_time', report.completed_time))
    found = {
        f'its date is {due}': due != report.expected_completion_time,
        'it was complete before it came': end < report.received_time,
        'it was late, or says so falsely': (end > due) != report.overdue,
    }
    return [text for text, is_wrong in found.items() if is_wrong]


def _of_ledger(task: dict[str, Any], path: Path) -> list[str]:
    read = chain.of_removals(path.read_bytes())
    name = task['name']
    if read.broken:
        return [f'line {read.broken} of the ledger of {name} was changed']
    lines = [body.get('reference') for body in read.bodies]
    if task['mode'] in ('not in it', 'removed before', 'by its owner'):
        return []
    if lines.count(task['reference']) != 1:
        return [f'the ledger of {name} has no line of its batch']
    if task['head'] not in read.links:
        return [f'the ledger of {name} is older than the removal, or another']
    place = lines.index(task['reference'])
    if read.links.index(task['head']) < place:
        return [f'the removal from {name} came after the head that is named']
    return []
