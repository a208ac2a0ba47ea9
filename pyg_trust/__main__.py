"""The command line: ``python -m pyg_trust check`` and ``erasure``."""

import sys

from .check.__main__ import main

if __name__ == '__main__':
    if sys.argv[1:2] == ['erasure']:
        # The checker is a program of its own, and knows no desk.
        from .erasure.cli import main as erasure

        sys.exit(erasure(sys.argv[2:]))
    sys.exit(main())
