"""Progress bars: on in a terminal, for work that takes a while."""

import sys
from typing import Any

from tqdm import tqdm


class Bar(tqdm):
    """Progress bar that takes no lock while it is hidden.

    Forked processes share tqdm's lock. A fork that is killed while it holds
    the lock makes its parent wait for ever.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> 'Bar':
        if kwargs.get('disable'):
            return object.__new__(cls)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, iterable: Any = None, **kwargs: Any) -> None:
        if not kwargs.get('disable'):
            super().__init__(iterable, **kwargs)
            return
        self.iterable, self.disable = iterable, True
        self.total, self.desc = kwargs.get('total'), kwargs.get('desc')
        self.n = self.initial = kwargs.get('initial', 0)
        self.pos, self.leave = 0, False


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
