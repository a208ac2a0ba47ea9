"""Command line of a desk: ``python -m pyg_trust erasure --desk app:desk``.

``app:desk`` is a function that takes no arguments and returns an
:class:`~pyg_trust.erasure.ErasureDesk` with its models. Programs end with 0; 1
if something failed or was refused; 2 if the command can't be run; 3 if a
request is overdue.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pyg_trust import files
from pyg_trust.erasure.checking import check_erasure
from pyg_trust.erasure.desk import ErasureDesk
from pyg_trust.kernel.claims import visible
from pyg_trust.removal import RemovalRequest


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        int: 0; or 1 to 3, as the module says.
    """
    args = _parser().parse_args(arguments)
    try:
        if args.command == 'check':
            ledgers = dict(named.split('=', 1) for named in args.ledger)
            wrong = check_erasure(args.file, ledgers)
            _say('\n'.join(wrong) or 'holds')
            return bool(wrong)
        sys.path.insert(0, '')
        module, _, function = args.desk.partition(':')
        desk = getattr(importlib.import_module(module), function)()
        if not isinstance(desk, ErasureDesk):
            raise TypeError(f"'--desk' needs to return one (got {desk!r})")
        return _run(desk, args)
    except RuntimeError as error:
        sys.stderr.write(f'pyg_trust erasure: {visible(str(error))}\n')
        return 1
    except (AttributeError, ImportError, OSError, TypeError, ValueError) as e:
        sys.stderr.write(f'pyg_trust erasure: {visible(str(e))}\n')
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m pyg_trust erasure')
    parser.add_argument('--desk', default='', help='module:function')
    parser.add_argument('--json', action='store_true', help='for programs')
    commands = parser.add_subparsers(dest='command', required=True)
    for name, words in (
        ('init', 'make the file'),
        ('add', 'add requests: JSON of OpenDSR on standard input'),
        ('plan', 'say what run would do'),
        ('run', 'do what has to be done by now'),
        ('status', 'count requests, and name those that need somebody'),
        ('done', 'a recipient, or the owner of a model, has done it'),
        ('hold', 'hold a request for an exception'),
        ('resume', 'go on with a request'),
        ('cancel', 'refuse or withdraw a request'),
        ('report', 'the evidence of a request'),
        ('check', 'check this evidence'),
    ):
        command = commands.add_parser(name, help=words)
        if name in ('done', 'hold', 'resume', 'cancel', 'report'):
            command.add_argument('id')
        if name in ('hold', 'cancel'):
            command.add_argument('reason')
        if name == 'hold':
            command.add_argument('--paused', action='store_true')
        if name == 'done':
            command.add_argument('name')
        if name == 'run':
            command.add_argument('--confirm', action='store_true')
        if name == 'report':
            command.add_argument('--save', type=Path, help='as JSON')
        if name == 'check':
            command.add_argument('file', type=Path)
            command.add_argument(
                '--ledger', action='append', default=[], help='name=file'
            )
    return parser


def _run(desk: ErasureDesk, args: argparse.Namespace) -> int:
    found: Any = None
    if args.command == 'add':
        fields = json.load(sys.stdin)
        ours = fields.pop('extensions', {}).get('pyg_trust', {})
        if 'request' in ours:
            ours['request'] = RemovalRequest.from_dict(ours['request'])
        found = desk.add(**fields, **ours)
    elif args.command == 'run':
        found = desk.run(confirm=args.confirm)
    elif args.command == 'hold':
        found = desk.hold(args.id, args.reason, paused=args.paused)
    elif args.command == 'cancel':
        found = desk.cancel(args.id, args.reason)
    elif args.command == 'done':
        found = desk.done(args.id, args.name)
    elif args.command in ('resume', 'report', 'plan'):
        given = (args.id,) if 'id' in args else ()
        found = getattr(desk, args.command)(*given)
    if args.command == 'report' and args.save:
        files.write(args.save, found.to_json().encode())
    status = desk.status()
    for each in found if isinstance(found, tuple) else (found or status,):
        _say(each.to_json() if args.json else str(each))
    if status.overdue:
        sys.stderr.write(f'overdue: {" ".join(status.overdue)}\n')
        return 3
    return bool(status.refused)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
