"""Command line: ``python -m pyg_trust check`` and ``... erasure``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .check.__main__ import EXIT, main

_DESK_EXIT = """exit status:
  0  done, and nothing waits for anybody
  1  a model failed, or a request is overdue
  2  the command is used wrongly, or a file can't be read
  3  a request waits for somebody: a model refused it, or run --confirm"""
_ADD = """example:
  python -m pyg_trust erasure add --nodes 12 90 --edges 3,7"""
_RUN = """example: a file app.py with

  def models(desk):
      desk.register('scores', load_scores(), save='scores.pt')
      desk.recipient('partner export')

is used by a line of crontab, once an hour:

  python -m pyg_trust erasure run --models app:models --out evidence

"""


def _of_erasure(args: argparse.Namespace) -> int:
    # Checks need no torch.
    from .erasure import commands

    return commands.run(args)


def _pair(text: str) -> tuple[int, int]:
    one, two = text.split(',')
    return int(one), int(two)


def _ledger(text: str) -> tuple[str, str]:
    name, path = text.split('=', 1)
    return name, path


def _add_commands(commands: Any) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    desk = commands.add_parser(
        'erasure', help='answer requests to be erased, over all models'
    )
    parts = desk.add_subparsers(dest='part', required=True)

    def part(name: str, text: str, epilog: str = '') -> Any:
        made = parts.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog + _DESK_EXIT,
            formatter_class=layout,
        )
        made.add_argument(
            '--desk',
            type=Path,
            default=Path('erasure.db'),
            help='the file of the desk (default: erasure.db)',
        )
        made.set_defaults(run=_of_erasure)
        return made

    add = part('add', 'store a request, and print its id', _ADD + '\n\n')
    for kind in ('nodes', 'features', 'labels', 'graphs'):
        what = {'features': 'nodes whose features', 'labels': 'nodes whose '}
        text = f'ids of {what.get(kind, kind)} to erase'
        text = text.replace('whose  to', 'whose labels to')
        add.add_argument(
            f'--{kind}', type=int, nargs='+', metavar='ID', help=text
        )
    add.add_argument(
        '--edges',
        type=_pair,
        nargs='+',
        metavar='ID,ID',
        help='edges to erase, in both directions',
    )
    add.add_argument('--id', help='the UUID of the request; else a new one')
    add.add_argument(
        '--received', help="when it came, as '2026-11-23T12:00:00Z'; else now"
    )
    add.add_argument('--regulation', default='gdpr', help='gdpr or ccpa')
    add.add_argument(
        '--immediately', action='store_true', help='wait for no other request'
    )
    add.add_argument(
        '--exact', action='store_true', help='noise alone is not enough'
    )
    run = part('run', 'erase what is due from all models', _RUN)
    run.add_argument(
        '--models',
        required=True,
        metavar='MODULE:FUNCTION',
        help='your function, which registers the models at the desk it gets',
    )
    run.add_argument(
        '--confirm',
        action='store_true',
        help='erase a large share of a model, too',
    )
    run.add_argument(
        '--out',
        type=Path,
        metavar='FOLDER',
        help='write the evidence of complete requests and the ledgers here',
    )
    run.add_argument('--zone', help='the time zone of a new desk, else UTC')
    run.add_argument(
        '--backup-days',
        type=int,
        help='how long backups of the models are kept: the desk keeps the ids '
        'as long, to erase them again',
    )
    part('status', 'count requests, and list those that need somebody')
    done = part('done', 'record that somebody has erased a request')
    done.add_argument('id', help='the id of the request')
    done.add_argument('name', help='the name of the recipient or model')
    report = part('report', 'print where a request is')
    report.add_argument('id', help='the id of the request')
    report.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help='write the evidence here, or the page of it (.html)',
    )
    check = commands.add_parser(
        'check-erasure',
        help='check the evidence of an erasure, and the ledgers of models',
        epilog=EXIT,
        formatter_class=layout,
    )
    check.add_argument('report', type=Path, help='the evidence, JSON')
    check.add_argument(
        '--ledger',
        type=_ledger,
        action='append',
        default=[],
        metavar='MODEL=FILE',
        help='the ledger of a model, once for each',
    )
    check.set_defaults(run=_of_erasure, part='check')


if __name__ == '__main__':
    sys.exit(main(more=_add_commands))
