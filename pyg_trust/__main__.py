"""The command line: ``python -m pyg_trust check trust.json``."""

import sys

from .check.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
