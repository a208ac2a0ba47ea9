"""Deprecated queue of requests of 0.1, in memory only."""

import warnings
from typing import TYPE_CHECKING, Any

from pyg_trust._checks import check_instance
from pyg_trust.removal import RemovalRequest

if TYPE_CHECKING:
    from pyg_trust.unlearning.shards.reports import ShardRemovalReport


class Waiting:
    """Mixin of the sharded unlearner: a queue of requests, in memory only."""

    _waiting: tuple[RemovalRequest, ...] = ()
    remove: Any

    @property
    def queue(self) -> tuple[RemovalRequest, ...]:
        """The waiting requests, the oldest first."""
        return self._waiting

    def enqueue(self, request: RemovalRequest) -> int:
        """Append a request to the queue; return its length.

        Args:
            request (RemovalRequest): the request, which :meth:`flush` checks.
        """
        check_instance('request', request, RemovalRequest)
        _warn('enqueue')
        self._waiting = (*self._waiting, request)
        return len(self._waiting)

    def flush(
        self, *, progress_bar: bool | None = None
    ) -> 'ShardRemovalReport':
        """Remove the items of all waiting requests, as one request.

        Args:
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: if nothing waits, or it is not possible; then the
                requests go on waiting, and :meth:`withdraw` helps.
        """
        if not self._waiting:
            raise ValueError('the queue is empty')
        _warn('flush')
        whole = RemovalRequest.batch(self._waiting)
        report: ShardRemovalReport = self.remove(
            whole, progress_bar=progress_bar
        )
        self._waiting = ()
        return report

    def withdraw(self) -> tuple[RemovalRequest, ...]:
        """Empty the queue without removing anything, and return it."""
        _warn('withdraw')
        found, self._waiting = self._waiting, ()
        return found


def _warn(name: str) -> None:
    warnings.warn(
        f'{name}() of ShardedUnlearner goes with the next release, and what '
        'waits is in no file: use pyg_trust.erasure.ErasureDesk',
        DeprecationWarning,
        stacklevel=3,
    )
