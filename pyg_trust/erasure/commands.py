"""Commands of ``python -m pyg_trust erasure`` and ``check-erasure``."""

import argparse
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyg_trust import files
from pyg_trust.check.__main__ import answered
from pyg_trust.erasure.checking import check_erasure
from pyg_trust.erasure.desk import ErasureDesk
from pyg_trust.erasure.reports import ErasureReport, Policy
from pyg_trust.removal import RemovalRequest

__all__ = ['run']

_KINDS = ('nodes', 'features', 'labels', 'graphs', 'edges')


def run(args: argparse.Namespace) -> int:
    """Carry out a command, and return its exit status."""
    if args.part == 'check':
        return answered(check_erasure(args.report, dict(args.ledger)))
    if args.part != 'run' and not args.desk.exists():
        raise ValueError(
            f"'--desk' needs to be the file of a desk, which the first run "
            f'makes (got {args.desk}): erasure run --models app:models'
        )
    policy = None
    if getattr(args, 'backup_days', None) is not None:
        policy = Policy(backup_days=args.backup_days)
    zone = getattr(args, 'zone', None)
    desk = ErasureDesk(args.desk, zone=zone, policy=policy)
    try:
        work: Callable[..., int] = globals()[f'_{args.part}']
        return work(desk, args)
    finally:
        desk.close()


def _add(desk: ErasureDesk, args: argparse.Namespace) -> int:
    named = {k: v for k in _KINDS if (v := getattr(args, k)) is not None}
    report = desk.add(
        RemovalRequest(**named),
        subject_request_id=args.id,
        received_time=args.received,
        regulation=args.regulation,
        immediately=args.immediately,
        exact=args.exact,
    )
    return _say(report)


def _run(desk: ErasureDesk, args: argparse.Namespace) -> int:
    _function(args.models)(desk)
    try:
        reports = desk.run(confirm=args.confirm)
    except RuntimeError as error:
        sys.stderr.write(f'pyg_trust erasure run: {error}\n')
        return 1
    if args.out is not None:
        (args.out / 'ledgers').mkdir(parents=True, exist_ok=True)
        for report in reports:
            _write(args.out / f'{report.subject_request_id}.json', report)
        for name, ledger in desk.ledgers().items():
            text = json.dumps(ledger.state_dict())
            files.write(args.out / 'ledgers' / f'{name}.json', text.encode())
    for report in reports:
        _say(report)
    return _status(desk, args)


def _status(desk: ErasureDesk, args: argparse.Namespace) -> int:
    found = desk.status()
    names = ('pending', 'in_progress', 'completed', 'cancelled')
    counts = [f'{getattr(found, n)} {n.replace("_", " ")}' for n in names]
    sys.stdout.write(f'{", ".join(counts)}; next due: {found.next_due}\n')
    for number, due in found.open:
        sys.stdout.write(f'{number} is open, due {due}\n')
    for number in found.overdue:
        sys.stdout.write(f'{number} is OVERDUE\n')
    for number, name in found.refused:
        sys.stdout.write(f'{number} was refused by {name}: see its report\n')
    for number, name in found.unconfirmed:
        why = f'it is part of a large share of {name}'
        sys.stdout.write(f'{number} waits for run --confirm: {why}\n')
    for number, how in found.halted:
        sys.stdout.write(f'{number} is {how}\n')
    waits = found.refused or found.unconfirmed
    return 1 if found.overdue else 3 * bool(waits)


def _done(desk: ErasureDesk, args: argparse.Namespace) -> int:
    return _say(desk.done(args.id, args.name))


def _report(desk: ErasureDesk, args: argparse.Namespace) -> int:
    report = desk.report(args.id)
    if args.out is not None:
        _write(args.out, report)
    return _say(report)


def _write(path: Path, report: ErasureReport) -> None:
    page = path.suffix == '.html'
    text = report.to_html() if page else report.to_json()
    files.write(path, text.encode())


def _say(report: ErasureReport) -> int:
    sys.stdout.write(report.line() + '\n')
    return 0


def _function(text: str) -> Callable[..., Any]:
    # What MODULE:FUNCTION names.
    try:
        found = pkgutil.resolve_name(text)
        wrong = f'{text!r} is no function'
        if callable(found):
            return found
    except (AttributeError, ModuleNotFoundError, ValueError) as error:
        if getattr(error, 'name', None) not in (None, *re.split('[.:]', text)):
            raise
        wrong = str(error)
    raise ValueError(
        "'--models' needs to name a function of a file here, as app:models of "
        f'app.py (got {text!r}: {wrong})'
    )
