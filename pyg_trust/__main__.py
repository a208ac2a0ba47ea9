"""The command line: ``python -m pyg_trust check trust.json``."""

import argparse
import sys
from pathlib import Path

from pyg_trust.check import FAILS, check_report
from pyg_trust.report.base import visible


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; 1 if something does not hold, 2 if it can't be run."""
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
    return int(any(finding.status == FAILS for finding in found))


if __name__ == '__main__':
    sys.exit(main())
