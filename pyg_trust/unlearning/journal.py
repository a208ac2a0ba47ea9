"""Log of the undo steps of an edit."""

from collections.abc import Callable

from torch import Tensor


class Journal:
    """Log of undo steps, the last first."""

    def __init__(self) -> None:
        self._back: list[Callable[[], object]] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to undo."""
        return not self._back

    def note(self, back: Callable[[], object]) -> None:
        """Log an undo step; call it *before* the step that it undoes.

        Args:
            back (callable): takes the step back, and does nothing if the
                step was not done.
        """
        self._back.append(back)

    def rows(self, tensor: Tensor, index: Tensor) -> None:
        """Log the old content of rows that are about to be written.

        Args:
            tensor (Tensor): the tensor to write to.
            index (Tensor): int64: its rows.
        """
        old = tensor.index_select(0, index)
        self.note(lambda: tensor.index_copy_(0, index, old))

    def undo(self) -> None:
        """Undo everything; may be called again after an interruption."""
        while self._back:
            self._back[-1]()
            self._back.pop()

    def clear(self) -> None:
        """Drop the log, and with it the removed values."""
        self._back.clear()
