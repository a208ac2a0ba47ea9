"""Progress bars, shown in a terminal for work that takes a while."""

import sys
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

__all__ = ['Bar', 'progress']

_shown: list[bool | None] = [None]


class progress(AbstractContextManager[None]):  # as torch.set_grad_enabled
    """Show or hide all progress bars from here on, or within a `with` block.

    Example:
        >>> import pyg_trust
        >>> with pyg_trust.progress(False):
        ...     pass  # nothing is printed here, not even in a terminal

    Args:
        show (bool, optional): whether to show them; :obj:`None` shows bars of
            more than two seconds if standard error is a terminal.
            (default: :obj:`True`)
    """

    def __init__(self, show: bool | None = True) -> None:
        if show is not None and not isinstance(show, bool):
            raise TypeError(
                "'show' needs to be True, False or None (got "
                f'{type(show).__name__})'
            )
        self.before, _shown[0] = _shown[0], show

    def __exit__(self, *error: object) -> None:
        """Return to what was shown before."""
        _shown[0] = self.before


class Bar(tqdm):
    """Progress bar that takes no lock while hidden.

    Forked processes share tqdm's lock. A fork that is killed while it holds
    the lock makes its parent wait for ever.

    Args:
        iterable (iterable, optional): the iterable to count.
        **kwargs (Any): further arguments of tqdm.
    """

    def __new__(cls, iterable: Any = None, **kwargs: Any) -> 'Bar':
        if _is_shown():
            return super().__new__(cls, iterable, **kwargs)
        return object.__new__(cls)

    def __init__(self, iterable: Any = None, **kwargs: Any) -> None:
        if _is_shown():
            delay = 2 if _shown[0] is None else 0
            super().__init__(iterable, delay=delay, **kwargs)
            return
        self.iterable, self.disable = iterable, True
        self.total, self.desc = kwargs.get('total'), kwargs.get('desc')
        self.n = self.initial = kwargs.get('initial', 0)
        self.pos, self.leave = 0, False


def _is_shown() -> bool:
    if _shown[0] is not None:
        return _shown[0]
    return sys.stderr is not None and sys.stderr.isatty()
