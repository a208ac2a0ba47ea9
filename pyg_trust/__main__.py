"""The command line: ``python -m pyg_trust check trust.json``."""

import argparse
import sys
from pathlib import Path

from pyg_trust.check import FAILS, HOLDS, check_report
from pyg_trust.kernel.claims import visible


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        int: 0 if everything holds; 1 if something does not; 2 if something
        could not be checked, or the command could not be run.
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
    args = parser.parse_args(arguments)
    try:
        found = check_report(
            args.report, ledger=args.ledger, model=args.model, data=args.data
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f'pyg_trust check: {visible(str(error))}\n')
        return 2
    sys.stdout.write(''.join(f'{finding}\n' for finding in found))
    statuses = {finding.status for finding in found}
    return 1 if FAILS in statuses else 2 * (statuses != {HOLDS})


if __name__ == '__main__':
    sys.exit(main())
