"""Progress bars, shown in a terminal for work that takes a while."""

import sys
from typing import Any

from tqdm import tqdm


class Bar(tqdm):
    """Progress bar that takes no lock while hidden.

    Forked processes share tqdm's lock. A fork that is killed while it holds
    the lock makes its parent wait for ever.

    Args:
        iterable (iterable, optional): the iterable to count.
            (default: :obj:`None`)
        progress_bar (bool, optional): whether to show the bar; :obj:`None`
            shows it if standard error is a terminal, after two seconds.
            (default: :obj:`None`)
        **kwargs (Any): further arguments of tqdm.
    """

    def __new__(
        cls,
        iterable: Any = None,
        progress_bar: bool | None = None,
        **kwargs: Any,
    ) -> 'Bar':
        if _is_shown(progress_bar):
            return super().__new__(cls, iterable, **kwargs)
        return object.__new__(cls)

    def __init__(
        self,
        iterable: Any = None,
        progress_bar: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if _is_shown(progress_bar):
            delay = 2 if progress_bar is None else 0
            super().__init__(iterable, delay=delay, **kwargs)
            return
        self.iterable, self.disable = iterable, True
        self.total, self.desc = kwargs.get('total'), kwargs.get('desc')
        self.n = self.initial = kwargs.get('initial', 0)
        self.pos, self.leave = 0, False


def _is_shown(progress_bar: bool | None) -> bool:
    if progress_bar is not None:
        return progress_bar
    return sys.stderr is not None and sys.stderr.isatty()
