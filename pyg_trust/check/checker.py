"""Check a trust report without trusting its author.

.. code-block:: bash

    python -m pyg_trust check trust.json --ledger run.ledger

prints a line for each check: what holds, what does not, what is not proved
and what could not be checked. Nothing is taken from the run that made the
report except the files that are passed, and torch is not needed: what decides
is :mod:`pyg_trust.verify`.

A file that contradicts itself or another one is found out. Whoever can write
all of them can make them agree: what has to be believed then is the copy of
``ledger_head``, or of a fingerprint, that was noted elsewhere before.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from ..verify import chain, proofs
from ..verify.accounting import judge_mu
from ..verify.arrays import read_arrays
from ..verify.claims import amount, number, read_json
from ..verify.declare import SEEDED, alike
from ..verify.promises import LAYOUT, PROMISES, WRONG, claim
from ..verify.release import in_ledgers
from ..verify.removal import RESIDUAL, remaining
from . import removals
from .answers import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    Checks,
    Finding,
    Stated,
    is_digest,
    read_report,
    requests,
)
from .certificates import check_certificate, check_witness
from .epsilon import KNOWN, SUMS, account, check_epsilon, proved, together
from .files import fingerprint_data, fingerprint_model, left_over, read_graphs

__all__ = ['check_report']

T = TypeVar('T')
#: Versions whose noise does not protect what it should (CHANGELOG).
LEAKING = ('0.1.0',)


def check_report(
    path: str | Path,
    *,
    ledger: str | Path | None = None,
    model: str | Path | None = None,
    data: str | Path | None = None,
    witness: str | Path | Sequence[str | Path] | None = None,
) -> list[Finding]:
    """Check a saved trust report and the files that belong to it.

    Args:
        path (str or Path): the report, in JSON.
        ledger (str or Path, optional): the file of the privacy ledger, or of
            ``ledger.state_dict()`` of an unlearner as ``json.dump`` wrote it.
        model (str or Path, optional): the file of the weights, in the format
            of safetensors: those of ``safetensors.torch.save_file`` or
            :func:`pyg_trust.report.save_tensors`. (default: :obj:`None`)
        data (str or Path, optional): one of three files about a removal:
            the remaining graphs, by :func:`pyg_trust.report.save_tensors`; a
            proof of the norm of the gradient, by ``save_for_check()`` of a
            node classifier; or a proof of the sensitivity of noisy sums to
            the removal, by ``remove(proof=...)`` of a private model.
        witness (str or Path, optional): the file that ``proof.save()`` of an
            exact certificate wrote, or a list of such files.

    Returns:
        list[Finding]: for each check a ``status`` (``'holds'``, ``'FAILS'``,
        ``'not proved'`` or ``'not checked'``) and a ``text``.
    """
    files = witness if isinstance(witness, list | tuple) else [witness]
    handed = {'path': path, 'ledger': ledger, 'model': model, 'data': data}
    for name, file in [*handed.items(), *(('witness', x) for x in files)]:
        needed = name == 'path' or file is not None
        if needed and not isinstance(file, str | Path):
            raise TypeError(
                f'{name!r} needs to be a path (got {type(file).__name__})'
            )
    version, stated = read_report(path)
    findings = [Finding(HOLDS, f'the report is of layout {version}')]
    if version < LAYOUT:
        # Older layouts had other fields, and texts in the place of fields.
        text = f'the report is of layout {version}: make it again'
        findings = [Finding(UNPROVED, text)]
    content: dict[str, Any] = {}
    proved: dict[str, Any] = {}
    if version == LAYOUT:
        for name, (reader, _) in _FILES.items():
            if handed[name] is not None:
                content[name] = _read(name, handed[name], reader)
        for file in filter(None, files):
            arrays = _read('witness', file, proofs.load)
            proved[proofs.digest(arrays)] = Path(file).name, arrays
    missing = {name for name, file in handed.items() if file is None}
    missing |= {'witness'} if witness is None else set()
    spoken = set()
    for at, each in enumerate(stated, 1):
        verdicts = [*_leaks(each)]
        if version == LAYOUT:
            made: Any = None  # if the fields are not those of a claim
            with contextlib.suppress(*WRONG):
                made = claim(each.procedure, each.values)
            verdicts += _run(_judge, made, each)
            verdicts += [
                (UNKNOWN, f'{name}: it was not passed (--{name})')
                for name, is_named in _named(each).items()
                if is_named and name in missing
            ]
            for name, held in content.items():
                found = [*_run(_FILES[name][1], made, each, held)]
                verdicts += found
                spoken |= {name} if found else set()
            if witness is not None:
                verdicts += _of_witness(made, each, proved)
        findings += [
            Finding(status, f'{at}. {each.procedure}: {text}')
            for status, text in verdicts
        ]
    findings += [
        Finding(UNKNOWN, f'no guarantee speaks of a {name}')
        for name in content
        if name not in spoken
    ]
    named = {str(each.values.get('witness_digest', '')) for each in stated}
    findings += [
        Finding(FAILS, f'witness: {name} is that of another certificate')
        for digest, (name, _) in proved.items()
        if digest not in named
    ]
    return findings


def _of_witness(made: Any, each: Stated, proved: dict[str, Any]) -> Checks:
    # A file belongs to the certificate that names its digest.
    digest = str(each.values.get('witness_digest', ''))
    if digest in proved and made is not None:
        yield from _run(check_witness, made, each, proved[digest][1])
    elif is_digest(digest):
        yield UNPROVED, 'witness: no file that was passed has its digest'


def _leaks(each: Stated) -> Checks:
    # What the changelog says of versions whose noise did not hold.
    version = each.origin.get('pyg_trust')
    if version in LEAKING and each.kind in ('privacy', 'removal'):
        yield (
            FAILS,
            f'it was made with pyg_trust {version}, whose noisy releases and '
            'private models leak: release, train and remove again with a '
            'later version',
        )


def _named(each: Stated) -> dict[str, bool]:
    # The files that a promise names by a digest.
    values = each.values
    removed = each.kind == 'removal' and 'request' in values
    return {
        'ledger': removed or values.get('ledger_head') is not None,
        'model': bool(each.weights_sha256),
        'data': bool(each.data_sha256 and values.get('data_fields'))
        or removed,
        'witness': is_digest(values.get('witness_digest')),
    }


def _read(name: str, path: Any, reader: Callable[..., T]) -> T:
    try:
        return reader(path)
    except WRONG as error:
        first = next(iter(str(error).splitlines()), '')
        raise ValueError(
            f"'{name}' can't be read from {path} "
            f'({type(error).__name__}: {first})'
        ) from None


def _run(check: Callable[..., Checks], *of: Any) -> Checks:
    # A promise with fields of another kind is a false one.
    try:
        yield from check(*of)
    except WRONG as error:
        yield (
            FAILS,
            'its fields are not those of its procedure '
            f'({type(error).__name__}: {error})',
        )


# Sentences and fields ########################################################


def _judge(c: Any, each: Stated) -> Checks:
    if each.procedure not in PROMISES:
        yield UNKNOWN, 'no guarantee of pyg_trust has this name'
    elif c is None:
        claim(each.procedure, each.values)  # raises and says why
    else:
        yield from _check_claim(c, each)
    for name, spent in each.spent.items():
        yield (
            HOLDS if spent <= each.budget[name] else FAILS,
            f'{name}: {spent:.6g} of {each.budget[name]:.6g} is spent',
        )
    if each.values.get('seeded') or SEEDED in each.promise:
        what = 'certified' if each.kind == 'robustness' else 'private'
        yield FAILS, f'the noise comes from a seed: nothing is {what}'
    if c is None:
        return
    if c.vouched:
        yield (
            UNKNOWN,
            f'it is no guarantee of pyg_trust: {c.vouched} vouches for it',
        )
        return
    if c.kind == 'privacy':
        yield from check_epsilon(c, each)
    elif c.kind == 'removal':
        yield from removals.check_removal(c)
    elif c.kind == 'robustness':
        yield from check_certificate(c)
    else:
        yield UNKNOWN, 'that this was the outcome: run it again'


def _check_claim(c: Any, each: Stated) -> Checks:
    # People read the sentences, programs the fields.
    wrong = [*c.contradictions(each.values)]
    yield from ((FAILS, text) for text in wrong)
    if not wrong:
        yield HOLDS, 'its derived fields follow from the others'
    made = {'kind': c.kind, **vars(c.words())}
    wrong = [
        name
        for name, value in made.items()
        if not alike(
            list(value) if isinstance(value, tuple) else value,
            getattr(each, name),
        )
    ]
    yield (
        FAILS if wrong else HOLDS,
        f'its {", ".join(wrong)} is not what its fields make'
        if wrong
        else 'its sentences are those that its fields make',
    )


# Ledgers #####################################################################


def _read_ledger(path: str | Path) -> tuple[chain.Chain, Any]:
    # A removal ledger is one JSON document, a privacy ledger one per line.
    content = Path(path).read_bytes()
    try:
        state = json.loads(content)
    except (RecursionError, ValueError):
        state = None
    if isinstance(state, dict) and 'entries' in state:
        lines = chain.of_removals(content)
        return lines, amount('budget', read_json(content.decode())['budget'])
    if isinstance(state, dict) and 'link' not in state:
        raise ValueError(
            'it is no ledger: json.dump(model.ledger.state_dict(), file) '
            'writes that of an unlearner'
        )
    return chain.of_steps(content), None


def _check_ledger(
    c: Any, each: Stated, content: tuple[chain.Chain, Any]
) -> Checks:
    lines, budget = content
    if budget is not None:
        yield from removals.check_ledger(c, each, lines, budget)
        return
    header = lines.bodies[0] if lines.bodies else {}
    releases = header.get('mechanism') == 'gaussian'
    private = c is not None and c.kind == 'privacy'
    if not private or (c.procedure in SUMS) != releases:
        if each.values.get('ledger_head') is not None:
            yield UNKNOWN, 'ledger: the file is of another part of the report'
        return
    yield removals.unbroken(lines)
    yield from _check_header(c, each, header)
    yield from _check_paid(c, lines.bodies[1:])
    head = c.ledger_head
    if head is None:
        yield UNPROVED, 'ledger: the report has no digest of its lines'
        return
    alike = head == lines.head
    yield (
        HOLDS if alike else FAILS,
        'ledger: it has '
        + ('the' if alike else 'other or more')
        + ' lines that the report was made from',
    )


def _check_header(c: Any, each: Stated, header: dict[str, Any]) -> Checks:
    # Compare the header with the fields of the report.
    values = {**c.to_dict(), 'data': each.data_sha256}
    if 'adjacency' in values:
        values |= in_ledgers(values['adjacency'], values['neighboring'])
    elif 'neighboring' in values:
        values['relation'] = values['neighboring']
    about = {**header, 'mechanism': values.get('mechanism')}
    about.update(header.get('accountant', {}))
    for name in {'occurrences', 'terms'} & set(about):
        about['units_per_row'] = about[name]
    names = 'mechanism relation sampling seeded form delta data directed '
    names += 'max_degree num_nodes units_per_row batch_size'
    pairs = [
        (name, about[name], values[name])
        for name in names.split()
        if name in about and name in values
    ]
    if about['mechanism'] == 'pld_group_wor':
        drawn = [round(q * about['num_roots']) for _, q, _ in account(c)]
        size = values['batch_size']
        pairs += [('batch_size', min(drawn, default=size), size)]
    for name, paid, claimed in pairs:
        if paid != claimed:
            yield (
                FAILS,
                f'ledger: it is of {name} {paid!r}, {claimed!r} is claimed',
            )


def _check_paid(c: Any, bodies: list[dict[str, Any]]) -> Checks:
    # Epsilon once more, from the steps that the ledger has: not by what the
    # report says of the noise.
    steps = [body['spent'] for body in bodies if 'spent' in body]
    counts = Counter(
        (number('spent', z, above=0.0), number('spent', q, above=0.0))
        for z, q in steps
    )
    released = c.procedure in SUMS
    wanted = getattr(c, 'releases' if released else 'steps', None)
    yield (
        HOLDS if len(steps) == wanted else FAILS,
        f'ledger: {len(steps)} lines were paid for, {wanted} are claimed',
    )
    claimed = Fraction(c.epsilon) - sum(
        Fraction(amount('epsilon', body.get('epsilon', 0))) for body in bodies
    )
    status = UNPROVED
    if released:
        # A release counts as a step at rate 1 with noise of 2 / mu.
        spent = together(2 / z for z, _ in counts.elements())
        alike = spent <= (c.mu * (1 + 1e-9)) ** 2
        noise = 'releases of less noise'
        status = judge_mu(spent, claimed, c.delta)
    else:
        recorded: Counter[tuple[float, float]] = Counter()
        for z, q, n in account(c):
            recorded[z, q] += n
        alike, noise = recorded == counts, 'steps of other noise or rates'
        if c.mechanism in KNOWN:
            lines = [(z, q, n) for (z, q), n in counts.items()]
            status = proved(c, lines, claimed)
    if not alike:
        yield FAILS, f'ledger: {noise} were paid for than are claimed'
    yield (
        status,
        f'ledger: epsilon {c.epsilon:.6g} is claimed of its '
        f'{len(steps)} lines',
    )


# Weights and data ############################################################


def _check_model(c: Any, each: Stated, digest: str) -> Checks:
    if each.weights_sha256:
        alike = each.weights_sha256 == digest
        yield (
            HOLDS if alike else FAILS,
            f'model: the weights are {"" if alike else "not "}those that the '
            'guarantee is about',
        )


def _read_data(path: str | Path) -> dict[str, dict[str, Any]]:
    if Path(path).suffix == '.npz':
        arrays = read_arrays(path)
        lists = 'receivers' in arrays
        return {'0': {'lists': arrays} if lists else remaining(arrays)}
    return read_graphs(path)


def _check_data(
    c: Any, each: Stated, graphs: dict[str, dict[str, Any]]
) -> Checks:
    fields = each.values.get('data_fields')
    if each.data_sha256 and fields:
        alike = fingerprint_data(graphs, fields) == each.data_sha256
        yield (
            HOLDS if alike else FAILS,
            f'data: the graphs are {"" if alike else "not "}those that the '
            'guarantee is about',
        )
    if each.kind != 'removal' or 'request' not in each.values:
        return
    graph, request = graphs.get('0', {}), requests(each.values)
    proof = graph.get('lists', graph.get('proof')) if c else None
    if proof:
        yield from removals.check_proof(c, each, proof, 'lists' in graph)
    elif each.procedure == removals.NODES:
        yield UNKNOWN, f'{RESIDUAL}: the data are without weights'
    elif each.procedure == removals.COVERED:
        yield UNKNOWN, 'shift: the file has no lists of the release'
    if 'lists' in graph:
        return
    missing = [
        name
        for name, part in request.items()
        if name not in graphs and not part.get('whole')
    ]
    if missing:
        yield UNKNOWN, f'data: there is no graph {missing[0]} in the file'
    left: list[str] = []
    for name, part in request.items():
        if str(name) in graphs and part.get('whole'):
            left.append(f'graph {name}')
        elif str(name) in graphs:
            left += left_over(graphs[str(name)], part, f' of graph {name}')
    if proof is None and any('labels' in part for part in request.values()):
        yield UNKNOWN, 'data: whether a label is used in training'
    if any('changed_' in name for part in request.values() for name in part):
        yield UNKNOWN, 'data: whether what was replaced is gone'
    yield (
        FAILS if left else HOLDS,
        f'data: {left[0]} is still there'
        if left
        else 'data: nothing that was removed is there by its name',
    )


# By the kind of a file: how it is read, and compared with a guarantee.
_FILES: dict[str, tuple[Any, Any]] = {
    'ledger': (_read_ledger, _check_ledger),
    'model': (fingerprint_model, _check_model),
    'data': (_read_data, _check_data),
}
