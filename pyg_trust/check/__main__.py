"""Command line of the checker: ``python -m pyg_trust_check``."""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..verify.claims import visible
from .answers import FAILS, HOLDS, Finding
from .checker import check_report

# The package that this file is part of: pyg_trust, or the checker alone.
_PACKAGE = str(__package__).partition('.')[0]
#: The meaning of the exit status of checks.
EXIT = """exit status:
  0  everything holds
  1  something FAILS
  2  the command is used wrongly, or a file can't be read
  3  nothing fails, and something is not proved or not checked"""


def main(
    arguments: list[str] | None = None,
    more: Callable[[Any], None] | None = None,
) -> int:
    """Run a command.

    Args:
        arguments (list of str, optional): the words of the command line; by
            default those of this process. (default: :obj:`None`)
        more (callable, optional): adds further commands to the parser, each
            with the function ``run`` that carries it out.
            (default: :obj:`None`)

    Returns:
        int: 0 if everything holds; 1 if something fails; 2 if a file can't be
        read; 3 if something is not proved or was not checked.
    """
    parser = argparse.ArgumentParser(prog=f'python -m {_PACKAGE}')
    version = importlib.import_module(_PACKAGE).__version__
    parser.add_argument(
        '--version', action='version', version=f'{_PACKAGE} {version}'
    )
    commands = parser.add_subparsers(dest='command', required=True)
    check = commands.add_parser(
        'check',
        help='check a trust report, and the files that belong to it',
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument('report', type=Path, help='the report, trust.json')
    check.add_argument('--ledger', type=Path, help='the privacy ledger')
    check.add_argument('--model', type=Path, help='weights, safetensors')
    check.add_argument(
        '--data', type=Path, help='data that remain, likewise or .npz'
    )
    check.add_argument(
        '--witness',
        type=Path,
        action='append',
        help='of an exact or a collective certificate, .npz; once for each',
    )
    check.set_defaults(run=_check)
    if more is not None:
        more(commands)
    args = parser.parse_args(arguments)
    try:
        status: int = args.run(args)
    except (OSError, ValueError) as error:
        sys.stderr.write(f'pyg_trust {args.command}: {visible(str(error))}\n')
        return 2
    return status


def _check(args: argparse.Namespace) -> int:
    return answered(
        check_report(
            args.report,
            ledger=args.ledger,
            model=args.model,
            data=args.data,
            witness=args.witness,
        )
    )


def answered(findings: list[Finding]) -> int:
    """Print findings, and return the exit status of them."""
    sys.stdout.write(''.join(f'{finding}\n' for finding in findings))
    statuses = {finding.status for finding in findings}
    return 1 if FAILS in statuses else 3 * (statuses != {HOLDS})


if __name__ == '__main__':
    sys.exit(main())
