"""Checks a trust report as somebody would who trusts nobody.

.. code-block:: bash

    python -m pyg_trust check trust.json --ledger run.ledger --model weights.pt

says in one line each what holds, what does not, and what could not be
checked. Nothing is taken from the run that made the report, except the files
that are handed in.

A file that contradicts itself or another one is found out. Whoever can write
all of them can make them agree: what has to be believed then is the copy of
``ledger_head``, or of a fingerprint, that was noted elsewhere before.
"""

import hashlib
import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import check_instance, check_non_negative
from pyg_trust.check.certificates import check_certificate
from pyg_trust.check.epsilon import (
    FAILS,
    HOLDS,
    ROUNDING,
    UNKNOWN,
    Said,
    account,
    check_epsilon,
    close,
    fewer,
    recomputed,
)
from pyg_trust.check.removals import NODES, check_removal
from pyg_trust.kernel.claims import read_json, visible
from pyg_trust.ledger import checked_step
from pyg_trust.noise import SEEDED
from pyg_trust.report import (
    Guarantee,
    TrustReport,
    fingerprint_data,
    fingerprint_model,
)
from pyg_trust.unlearning.leftovers import named_leftovers

# What is raised by fields and files that are not what they should be.
_WRONG = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
T = TypeVar('T')


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
        # One line, whatever is in the file.
        return f'{self.status:<11}  {visible(self.text)}'


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
            for status, text in _said(_check_guarantee, each)
        ]
    found += _missing(report, ledger, model, data)
    if ledger is not None:
        if _is_removals(ledger):
            removals = _read('ledger', ledger, _read_removals)
            found += _of_file(_check_removals, report, removals)
        else:
            lines = _read('ledger', ledger, _read_ledger)
            found += _of_file(_check_ledger, report, lines)
    if model is not None:
        weights = _read('model', model, _read_model)
        found += _of_file(_check_model, report, weights)
    if data is not None:
        found += _of_file(_check_data, report, _read('data', data, _read_data))
    return found


def _missing(report: TrustReport, *handed: Any) -> list[Finding]:
    # What a report names by a digest, and nobody has handed in.
    found = []
    for number, each in enumerate(report.guarantees, 1):
        values = each.values
        removed = each.kind == 'removal' and 'request' in values
        names = (
            ('ledger', bool(values.get('ledger_head'))),
            ('model', bool(each.model)),
            ('data', bool(each.data and values.get('data_fields')) or removed),
        )
        found += [
            Finding(
                UNKNOWN,
                f'{number}. {each.procedure}: {name}: it was not handed in '
                f'(--{name})',
            )
            for (name, named), file in zip(names, handed, strict=True)
            if named and file is None
        ]
    return found


def _read(name: str, path: str | Path, reader: Callable[..., T]) -> T:
    try:
        return reader(path)
    except (*_WRONG, EOFError, pickle.UnpicklingError) as error:
        # Torch goes on with advice to run what is in the file.
        first = next(iter(str(error).splitlines()), '')
        raise ValueError(
            f"'{name}' can't be read from {path} "
            f'({type(error).__name__}: {first})'
        ) from None


def _said(check: Callable[..., Said], *of: Any) -> Said:
    # A guarantee with fields of another kind is a false one.
    try:
        yield from check(*of)
    except _WRONG as error:
        yield (
            FAILS,
            'its fields are not those of its procedure '
            f'({type(error).__name__}: {error})',
        )


def _of_file(
    check: Callable[[Guarantee, Any], Said], report: TrustReport, content: Any
) -> list[Finding]:
    found = [
        Finding(status, f'{number}. {each.procedure}: {text}')
        for number, each in enumerate(report.guarantees, 1)
        for status, text in _said(check, each, content)
    ]
    name = check.__name__.removeprefix('_check_')
    return found or [Finding(UNKNOWN, f'no guarantee speaks of a {name}')]


def _check_guarantee(each: Guarantee) -> Said:
    found = list(_check_fields(each))
    yield from found or [(UNKNOWN, 'nothing of it can be recomputed')]


def _check_fields(each: Guarantee) -> Said:
    for name, spent in each.spent.items():
        if not close(each.values.get(name, spent), spent):
            yield (
                FAILS,
                f'{name}: {spent:.6g} is said to be spent, and the field has '
                f'{each.values[name]}',
            )
        within = spent <= each.budget[name]
        yield (
            HOLDS if within else FAILS,
            f'{name}: {spent:.6g} of {each.budget[name]:.6g} is spent',
        )
    if 'target_epsilon' in each.values:
        target, limit = each.values['target_epsilon'], each.budget['epsilon']
        if not close(limit, math.inf if target is None else target):
            yield FAILS, f'epsilon: the budget is {target}, not {limit:.6g}'
    if each.values.get('seeded') or SEEDED in each.promise:
        what = 'certified' if each.kind == 'robustness' else 'private'
        yield FAILS, f'the noise comes from a seed: nothing is {what}'
    if each.kind == 'privacy':
        yield from _check_sentence(each)
        yield from check_epsilon(each)
    if each.kind == 'removal':
        yield from check_removal(each)
    if each.kind == 'robustness':
        yield from check_certificate(each, _told(each.promise))
    for name, amounts in each.history.items():
        if amounts and not close(amounts[-1], each.spent[name]):
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


def _check_sentence(each: Guarantee) -> Said:
    # People read the sentence, programs the fields.
    told = _told(each.promise)
    known = list(_numbers([each.values, each.spent, each.budget]))
    other = [
        number for number in told if not any(close(number, k) for k in known)
    ]
    yield (
        FAILS if other else HOLDS,
        f'its sentence says {other[0]:g}, which is in no field'
        if other
        else 'the numbers of its sentence are those of its fields',
    )


# With thousands apart, as sentences have them.
_NUMBER = re.compile(
    r'(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?',
    re.ASCII,
)


def _told(text: str) -> list[float]:
    return [float(n.replace(',', '')) for n in _NUMBER.findall(text)]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from _told(value)


def _counts(each: Guarantee) -> list[Any]:
    certified = each.values.get('certified')
    made = list(certified.values()) if isinstance(certified, dict) else []
    names = ('num_robust', 'num_broken', 'num_unknown', 'guaranteed')
    return made + [each.values[n] for n in names if n in each.values]


def _read_ledger(path: str | Path) -> dict[str, Any]:
    # Without a lock and without the package's own reader.
    link, bodies = '', []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            entry = read_json(line.decode())
            text = json.dumps([link, entry['body']], sort_keys=True)
            link = entry['link']
        except _WRONG:
            raise ValueError(
                f"'ledger' needs to hold lines of JSON: line {number} of "
                f'{path} is none'
            ) from None
        bodies.append(
            (entry['body'], hashlib.sha256(text.encode()).hexdigest() == link)
        )
    lines = [body for body, _ in bodies[1:]]
    return {
        'broken': [i for i, (_, good) in enumerate(bodies, 1) if not good],
        'header': bodies[0][0] if bodies else {},
        'steps': [checked_step(*b['spent']) for b in lines if 'spent' in b],
        'pure': sum(
            check_non_negative('epsilon', body.get('epsilon', 0.0))
            for body in lines
        ),
        'head': link,
    }


def _chain(broken: list[int]) -> tuple[str, str]:
    # Of a ledger of steps or of removals.
    if broken:
        return FAILS, f'ledger: line {broken[0]} was changed'
    return HOLDS, 'ledger: the chain of its lines is unbroken'


def _check_ledger(each: Guarantee, ledger: dict[str, Any]) -> Said:
    if each.kind != 'privacy' or 'steps' not in each.values:
        return
    yield _chain(ledger['broken'])
    yield from _check_header(each, ledger['header'])
    count, steps = len(ledger['steps']), each.values['steps']
    # With fewer lines, its end was cut off.
    yield (
        HOLDS if count == steps else FAILS,
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


def _check_header(each: Guarantee, header: dict[str, Any]) -> Said:
    # What the account is about, of the first line.
    values, account = each.values, header.get('accountant', {})
    pairs = [
        (name, account[name], values.get(name))
        for name in ('mechanism', 'relation', 'sampling')
        if name in account
    ]
    if 'data' in header:
        pairs.append(('data', header['data'], each.data))
    if 'seeded' in header:
        pairs.append(('seeded', header['seeded'], values.get('seeded')))
    for name, paid, claimed in pairs:
        if paid != claimed:
            yield (
                FAILS,
                f'ledger: it is of {name} {paid!r}, {claimed!r} is claimed',
            )


def _check_paid(each: Guarantee, ledger: dict[str, Any]) -> Said:
    # Epsilon once more, from the steps that the ledger has: not by what the
    # report says of the noise.
    values = each.values
    mechanism = values.get('mechanism')
    if account(each) is None or mechanism not in (
        'pld_wor',
        'pld_poisson',
        'rdp_fdp',
    ):
        return
    counts: dict[tuple[float, float], int] = {}
    for z, q in ledger['steps']:
        counts[z, q] = counts.get((z, q), 0) + 1
    lines = [(z, q, count) for (z, q), count in counts.items()]
    delta, claimed = float(values['delta']), float(values['epsilon'])
    lines = fewer(lines, up=False)
    paid = ledger['pure'] + (recomputed(each, lines, delta) if lines else 0)
    yield (
        HOLDS if claimed >= paid * (1 - ROUNDING) else FAILS,
        f'ledger: its steps make epsilon {paid:.6g}, {claimed:.6g} is claimed',
    )


def _is_removals(path: str | Path) -> bool:
    # One JSON of the lines, not a line each.
    try:
        return 'entries' in json.loads(Path(path).read_bytes())
    except (RecursionError, TypeError, ValueError):
        return False


def _read_removals(path: str | Path) -> dict[str, Any]:
    # Without the package's own reader.
    link, broken = '', []
    content = read_json(Path(path).read_text())
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
        check_non_negative('spent', line['spent'])
    check_non_negative('budget', content['budget'])
    return {**content, 'broken': broken}


def _hash_of_line(before: str, line: dict[str, Any]) -> str:
    body = [line[name] for name in ('action', 'spent', 'request', 'data')]
    text = json.dumps([before, *body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_removals(each: Guarantee, ledger: dict[str, Any]) -> Said:
    request = each.values.get('request')
    if each.kind != 'removal' or request is None or not each.data:
        return
    yield _chain(ledger['broken'])
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
    if not found:
        return
    head, line = each.values.get('ledger_head'), entries[found[-1] - 1]
    if not head:
        yield UNKNOWN, 'ledger: the report has no digest of its lines'
    else:
        yield (
            HOLDS if line['link'] == head else FAILS,
            'ledger: its lines up to this removal are those that the report '
            + ('was' if line['link'] == head else 'was NOT')
            + ' made from',
        )
    yield from _spent_alike(each, entries[: found[-1]], ledger['budget'])


def _spent_alike(
    each: Guarantee, entries: list[dict[str, Any]], budget: float
) -> Said:
    # The history of the report, line by line.
    history = each.values.get('history')
    if history is None:
        return
    unit = budget if each.procedure == NODES else 1.0
    paid = [line['spent'] for line in entries]
    same = len(paid) == len(history) and all(
        math.isclose(one, share * unit, rel_tol=1e-9)
        for one, share in zip(paid, history, strict=True)
    )
    yield (
        HOLDS if same else FAILS,
        'ledger: its amounts are '
        + ('those' if same else 'not those')
        + ' of the releases that the report counts',
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


def _read_model(path: str | Path) -> str:
    return fingerprint_model(files.load(path))


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
    missing = [
        name
        for name, part in request.items()
        if name not in graphs and not part.get('whole')
    ]
    if missing:
        yield UNKNOWN, f'data: there is no graph {missing[0]} in the file'
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
