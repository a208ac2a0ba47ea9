"""Command line: ``python -m pyg_trust check``."""

import sys

from .check.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
