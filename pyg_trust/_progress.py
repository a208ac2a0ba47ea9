"""Progress bars: on in a terminal, for work that takes a while."""

import sys
from typing import Any


def bar_options(progress_bar: bool | None) -> dict[str, Any]:
    """Return the arguments of tqdm for a bar.

    Args:
        progress_bar (bool, optional): whether to show one; :obj:`None` for
            where standard error is a terminal, after two seconds.
    """
    if progress_bar is not None:
        return {'disable': not progress_bar}
    shown = sys.stderr is not None and sys.stderr.isatty()
    return {'disable': not shown, 'delay': 2}
