"""Checks a trust report as somebody would who trusts nobody.

.. code-block:: bash

    python -m pyg_trust check trust.json --ledger run.ledger --model weights.pt

says in one line each what holds, what does not, and what could not be
checked. Nothing is taken from the run that made the report, except the files
that are handed in.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import check_instance
from pyg_trust.functional import wor_epsilon
from pyg_trust.report import (
    Guarantee,
    TrustReport,
    fingerprint_data,
    fingerprint_model,
)
from pyg_trust.unlearning.leftovers import named_leftovers

HOLDS, FAILS, UNKNOWN = 'holds', 'FAILS', 'not checked'
# Epsilons are computed in floating point, by sums of many terms.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Finding:
    """One line of a check.

    Args:
        status (str): ``'holds'``, ``'FAILS'`` or ``'not checked'``.
        text (str): what was looked at.
    """

    status: str
    text: str

    def __str__(self) -> str:
        return f'{self.status:<11}  {self.text}'


def check_report(
    path: str | Path,
    *,
    ledger: str | Path | None = None,
    model: str | Path | None = None,
    data: str | Path | None = None,
) -> list[Finding]:
    """Checks a saved trust report, and the files that belong to it.

    Args:
        path (str or Path): of the report in JSON.
        ledger (str or Path, optional): of the privacy ledger, or of
            ``ledger.state_dict()`` of an unlearner as ``json.dump`` wrote it.
            (default: :obj:`None`)
        model (str or Path, optional): of the weights, as ``torch.save`` wrote
            the ``state_dict()``: ``{'weight': classifier.weight}`` of a
            classifier that unlearns, a dictionary of all ``shard_state(i)``
            of shards. (default: :obj:`None`)
        data (str or Path, optional): of the data, the remaining ones after
            a removal, as ``torch.save`` wrote a dictionary of tensors
            (``Data.to_dict()``), or a dictionary of these by the names that
            requests use, or a list of these by position.
            (default: :obj:`None`)

    Raises:
        ValueError: if a file is not what it should be.
    """
    for name, file in (('ledger', ledger), ('model', model), ('data', data)):
        if file is not None:
            check_instance(name, file, str, Path)
    report = TrustReport.load(path)
    found = [
        Finding(HOLDS, f'the report is of layout {report.schema_version}')
    ]
    for number, each in enumerate(report.guarantees, 1):
        where = f'{number}. {each.procedure}'
        found += [
            Finding(status, f'{where}: {text}')
            for status, text in _check_guarantee(each)
        ]
    if ledger is not None:
        if _is_removals(ledger):
            removals = _read_removals(ledger)
            found += _of_file(_check_removals, report, removals)
        else:
            found += _of_file(_check_ledger, report, _read_ledger(ledger))
    if model is not None:
        state = files.load(model)
        found += _of_file(_check_model, report, fingerprint_model(state))
    if data is not None:
        found += _of_file(_check_data, report, _read_data(data))
    return found


Said = Iterator[tuple[str, str]]


def _of_file(
    check: Callable[[Guarantee, Any], Said], report: TrustReport, content: Any
) -> list[Finding]:
    found = [
        Finding(status, f'{number}. {each.procedure}: {text}')
        for number, each in enumerate(report.guarantees, 1)
        for status, text in check(each, content)
    ]
    name = check.__name__.removeprefix('_check_')
    return found or [Finding(UNKNOWN, f'no guarantee speaks of a {name}')]


def _check_guarantee(each: Guarantee) -> Said:
    for name, spent in each.spent.items():
        within = spent <= each.budget[name]
        yield (
            HOLDS if within else FAILS,
            f'{name}: {spent:.6g} of {each.budget[name]:.6g} is spent',
        )
    if each.values.get('seeded'):
        yield FAILS, 'the noise comes from a seed: nothing is private'
    if each.kind == 'privacy':
        yield from _check_epsilon(each)
    for name, amounts in each.history.items():
        if amounts and not math.isclose(
            amounts[-1], each.spent[name], rel_tol=_ROUNDING, abs_tol=1e-12
        ):
            yield (
                FAILS,
                f'{name}: its history ends at {amounts[-1]:.6g}, and '
                f'{each.spent[name]:.6g} is said to be spent',
            )
    for name in ('targets', 'num_targets'):
        total = each.values.get(name)
        for count in _counts(each) if isinstance(total, int) else ():
            if not 0 <= count <= total:
                yield FAILS, f'{count} of {total} {name} are certified'


def _counts(each: Guarantee) -> list[Any]:
    certified = each.values.get('certified')
    made = list(certified.values()) if isinstance(certified, dict) else []
    names = ('num_robust', 'num_broken', 'num_unknown', 'guaranteed')
    return made + [each.values[n] for n in names if n in each.values]


def _history(each: Guarantee) -> list[tuple[float, float, int]] | None:
    # Noise over sensitivity, rate and number of steps, as they were recorded.
    lam, rates = each.values.get('lam'), each.values.get('sample_rates')
    if lam is None or rates is None:
        return None
    return [(float(lam), float(q), int(steps)) for q, steps in rates]


def _check_epsilon(each: Guarantee) -> Said:
    history, mechanism = _history(each), each.values.get('mechanism')
    if history is None or mechanism not in ('pld_wor', 'rdp_wor'):
        yield UNKNOWN, 'epsilon: the report has no steps to recompute it from'
        return
    claimed = float(each.values['epsilon'])
    delta = float(each.values['delta'])
    again = wor_epsilon(history, delta, mechanism)
    yield (
        HOLDS if claimed >= again * (1 - _ROUNDING) else FAILS,
        f'epsilon: {claimed:.6g} is claimed, {again:.6g} recomputed from the '
        f'recorded steps by {mechanism}',
    )
    other = _independent_epsilon(history, each.values['batch_size'], delta)
    if other is None:
        yield UNKNOWN, 'epsilon by another accountant: needs dp-accounting'
        return
    # The Rényi accountant is never below the exact profile.
    low = 1 - _ROUNDING if mechanism == 'rdp_wor' else 0.0
    fits = low * other <= claimed
    text = f"epsilon: dp-accounting's Rényi accountant gives {other:.6g}"
    if mechanism == 'pld_wor':
        text += ', a looser bound than the exact profile'
    yield HOLDS if fits else FAILS, text


def _independent_epsilon(
    history: list[tuple[float, float, int]], batch_size: int, delta: float
) -> float | None:
    try:
        import dp_accounting as dp
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        return None
    accountant = RdpAccountant(
        neighboring_relation=dp.NeighboringRelation.REPLACE_ONE
    )
    for lam, q, steps in history:
        size = round(batch_size / q)
        noise = dp.GaussianDpEvent(lam)
        accountant.compose(
            dp.SampledWithoutReplacementDpEvent(size, batch_size, noise),
            steps,
        )
    return float(accountant.get_epsilon(delta))


def _read_ledger(path: str | Path) -> dict[str, Any]:
    # Without a lock and without the package's own reader.
    link, bodies = '', []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            text = json.dumps([link, entry['body']], sort_keys=True)
            link = entry['link']
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"'ledger' needs to hold lines of JSON: line {number} of "
                f'{path} is none'
            ) from None
        bodies.append(
            (entry['body'], hashlib.sha256(text.encode()).hexdigest() == link)
        )
    return {
        'broken': [i for i, (_, good) in enumerate(bodies, 1) if not good],
        'steps': [body['spent'] for body, _ in bodies if 'spent' in body],
        'pure': sum(body.get('epsilon', 0.0) for body, _ in bodies[1:]),
        'head': link,
    }


def _check_ledger(each: Guarantee, ledger: dict[str, Any]) -> Said:
    if each.kind != 'privacy' or 'steps' not in each.values:
        return
    broken = ledger['broken']
    yield (
        FAILS if broken else HOLDS,
        f'ledger: line {broken[0]} was changed'
        if broken
        else 'ledger: the chain of its lines is unbroken',
    )
    count, steps = len(ledger['steps']), each.values['steps']
    yield (
        HOLDS if count <= steps else FAILS,
        f'ledger: {count} steps were paid for, {steps} are claimed',
    )
    yield from _check_paid(each, ledger)
    head = each.values.get('ledger_head')
    if head is None:
        yield UNKNOWN, 'ledger: the report has no digest of its lines'
        return
    yield (
        HOLDS if head == ledger['head'] else FAILS,
        'ledger: its last line is the one the report was made from'
        if head == ledger['head']
        else 'ledger: it has other or more lines than the report was made '
        'from',
    )


def _check_paid(each: Guarantee, ledger: dict[str, Any]) -> Said:
    # Epsilon once more, from the steps that the ledger has.
    values = each.values
    if _history(each) is None or values.get('mechanism') != 'pld_wor':
        return
    ratio = float(values['lam']) / float(values['noise_multiplier'])
    history = [(noise * ratio, q, 1) for noise, q in ledger['steps']]
    delta, claimed = float(values['delta']), float(values['epsilon'])
    paid = ledger['pure']
    if history:
        paid += wor_epsilon(history, delta, 'pld_wor')
    yield (
        HOLDS if claimed >= paid * (1 - _ROUNDING) else FAILS,
        f'ledger: its steps make epsilon {paid:.6g}, {claimed:.6g} is claimed',
    )


def _is_removals(path: str | Path) -> bool:
    # One JSON of the lines, not a line each.
    try:
        return 'entries' in json.loads(Path(path).read_bytes())
    except ValueError:
        return False


def _read_removals(path: str | Path) -> dict[str, Any]:
    # Without the package's own reader.
    link, broken = '', []
    content = json.loads(Path(path).read_bytes())
    fields = ('action', 'spent', 'request', 'data', 'link')
    for number, line in enumerate(content['entries'], 1):
        if not isinstance(line, dict) or set(line) != set(fields):
            raise ValueError(
                f"'ledger' needs to hold {fields} in every line: line "
                f'{number} of {path} does not'
            )
        link = _hash_of_line(link, line)
        if link != line['link']:
            broken.append(number)
        link = line['link']
    return {**content, 'broken': broken}


def _hash_of_line(before: str, line: dict[str, Any]) -> str:
    body = [line[name] for name in ('action', 'spent', 'request', 'data')]
    text = json.dumps([before, *body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_removals(each: Guarantee, ledger: dict[str, Any]) -> Said:
    request = each.values.get('request')
    if each.kind != 'removal' or request is None or not each.data:
        return
    broken = ledger['broken']
    yield (
        FAILS if broken else HOLDS,
        f'ledger: line {broken[0]} was changed'
        if broken
        else 'ledger: the chain of its lines is unbroken',
    )
    entries = ledger['entries']
    paid = [line for line in entries if line['spent'] <= ledger['budget']]
    yield (
        HOLDS if len(paid) == len(entries) else FAILS,
        f'ledger: {len(paid)} of {len(entries)} lines are within the budget',
    )
    found = [
        number
        for number, line in enumerate(entries, 1)
        if line['request'] in (request, request.get('0'))
        and line['data'] == each.data
    ]
    yield (
        HOLDS if found else FAILS,
        f'ledger: line {found[-1]} has this removal, and seals the same data'
        if found
        else 'ledger: no line has this removal and seals the same data',
    )


def _check_model(each: Guarantee, found: str) -> Said:
    if each.model:
        same = each.model == found
        yield (
            HOLDS if same else FAILS,
            'model: the weights are '
            + ('those' if same else 'not those')
            + ' that the promise is about',
        )


def _read_data(path: str | Path) -> dict[str, Data]:
    loaded = files.load(path)
    if isinstance(loaded, Mapping) and 'edge_index' in loaded:
        loaded = [loaded]
    if isinstance(loaded, list | tuple):
        loaded = dict(enumerate(loaded))
    if not isinstance(loaded, Mapping):
        raise ValueError(
            "'data' needs to hold a dictionary of tensors, or a list of these "
            f'(got {type(loaded).__name__})'
        )
    made = {}
    for name, fields in loaded.items():
        if not isinstance(fields, Mapping):
            raise ValueError(
                "'data' needs to hold dictionaries of tensors (got "
                f'{type(fields).__name__} at {name})'
            )
        made[str(name)] = Data.from_dict(dict(fields))
    return made


def _check_data(each: Guarantee, graphs: dict[str, Data]) -> Said:
    request = each.values.get('request')
    fields = each.values.get('data_fields')
    if each.data and isinstance(fields, list):
        same = fingerprint_data(list(graphs.values()), fields) == each.data
        yield (
            HOLDS if same else FAILS,
            'data: the graphs are '
            + ('those' if same else 'not those')
            + ' that the promise is about',
        )
    if each.kind != 'removal' or not isinstance(request, Mapping):
        return
    left = [
        text
        for name, part in request.items()
        for text in _still_there(name, part, graphs.get(str(name)))
    ]
    if any('labels' in part for part in request.values()):
        yield UNKNOWN, 'data: whether a label is used in training'
    yield (
        FAILS if left else HOLDS,
        f'data: {left[0]} is still there'
        if left
        else 'data: nothing that was removed is there by its name',
    )


def _still_there(name: str, part: Any, data: Data | None) -> Iterator[str]:
    if not isinstance(part, Mapping):
        raise ValueError(
            "'path' needs to be of a report whose requests are by graph (got "
            f'{name!r}: {part!r})'
        )
    if data is None:
        return
    if part.get('whole'):
        yield f'graph {name}'
        return
    if data.get('n_id') is None:
        data.n_id = torch.arange(int(data.num_nodes))
    yield from named_leftovers(data, part, f' of graph {name}')
