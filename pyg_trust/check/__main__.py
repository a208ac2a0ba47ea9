"""Command line of the checker: ``python -m pyg_trust_check``."""

import argparse
import sys
from pathlib import Path

from ..kernel.claims import visible
from .answers import FAILS, HOLDS
from .checker import check_report


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        int: 0 if everything holds; 1 if something does not; 2 if something
        is not proved or could not be checked, or the command can't be run.
    """
    parser = argparse.ArgumentParser(prog='python -m pyg_trust')
    commands = parser.add_subparsers(dest='command', required=True)
    check = commands.add_parser(
        'check', help='check a trust report, and the files that belong to it'
    )
    check.add_argument('report', type=Path, help='trust.json')
    check.add_argument('--ledger', type=Path, help='the privacy ledger')
    check.add_argument('--model', type=Path, help='weights by torch.save')
    check.add_argument('--data', type=Path, help='remaining data, likewise')
    check.add_argument(
        '--witness',
        type=Path,
        action='append',
        help='of an exact or a collective certificate, .npz; once for each',
    )
    args = parser.parse_args(arguments)
    try:
        findings = check_report(
            args.report,
            ledger=args.ledger,
            model=args.model,
            data=args.data,
            witness=args.witness,
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f'pyg_trust check: {visible(str(error))}\n')
        return 2
    sys.stdout.write(''.join(f'{finding}\n' for finding in findings))
    statuses = {finding.status for finding in findings}
    return 1 if FAILS in statuses else 2 * (statuses != {HOLDS})


if __name__ == '__main__':
    sys.exit(main())
