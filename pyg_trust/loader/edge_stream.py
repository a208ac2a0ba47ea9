"""Updates of a graph from a stream of events."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor
from torch_geometric.data import TemporalData

from pyg_trust._checks import (
    OneOf,
    Positive,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import plain_index
from pyg_trust._checks.states import check_state, reading
from pyg_trust.removal import NodeIds, Nodes, RemovalRequest
from pyg_trust.update import Update

__all__ = ['EdgeStream']

_NEEDED = 'src', 'dst', 't', 'removed'
MOST = 2**63 - 1
_TIMES = torch.int64, torch.float32, torch.float64


@validated
class EdgeStream:
    """Turns batches of timed events into updates of a graph's edges.

    .. code-block:: python

        events = TemporalDataLoader(data, batch_size=1_000)
        for update in EdgeStream(events, window=86_400):
            features.update(update)

    The first event of a pair of nodes adds their edge. Without a :obj:`window`
    the edge stays. With one it is removed when its last event is as old as the
    window, at the time of the last event of the batch. An event whose
    ``removed`` is true, a bool attribute of the batch, removes the edge.

    When you remove nodes from the graph, call :meth:`forget`: the stream then
    sends no update of their edges. Iterating a second time goes on where the
    first iteration ended.

    Args:
        loader (TemporalData or iterable): batches of events, with ``src``,
            ``dst`` and ``t``; as ``TemporalDataLoader`` has them.
        window (float, optional): for how long after its last event an edge is
            there, in units of ``t``. (default: :obj:`None`, forever)
        directed (bool): whether an event is an edge in one direction alone.
            (default: :obj:`False`)
        start (Tensor, optional): edges that are there already and stay until
            an event removes them: int64, ``[2, k]``. (default: :obj:`None`)
        on_removed (str): the treatment of events of nodes that were passed to
            :meth:`forget`: :obj:`'raise'`, or :obj:`'skip'`, which counts them
            in ``num_skipped``. (default: :obj:`'raise'`)
        ignore_msg (bool): whether to ignore messages of events, as edges have
            no features here. If false, they are an error. (default:
            :obj:`False`)
    """

    def __init__(
        self,
        loader: TemporalData | Iterable[TemporalData],
        *,
        window: Positive | None = None,
        directed: bool = False,
        start: Tensor | None = None,
        on_removed: Annotated[str, OneOf(('raise', 'skip'))] = 'raise',
        ignore_msg: bool = False,
    ) -> None:
        if isinstance(loader, TemporalData):
            loader = [loader]
        check_instance('loader', loader, Iterable)
        self.loader, self.window = loader, window
        self.directed, self.ignore_msg = directed, ignore_msg
        self.on_removed, self.num_skipped = on_removed, 0
        # The time of each edge's last event; none for edges that stay.
        self._last: dict[tuple[int, int], float | None] = {}
        self._events: deque[tuple[float, tuple[int, int]]] = deque()
        self._gone: set[int] = set()
        self._now = -math.inf
        if start is not None:
            start = plain_index('start', start)
            NodeIds().rows_of('start', start.reshape(-1), MOST)
            ends = start.t().tolist()
            self._last = {self._pair(u, v): None for u, v in ends}

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(window={self.window}, '
            f'directed={self.directed}, num_edges={len(self._last)})'
        )

    def __iter__(self) -> Iterator[Update]:
        for batch in self.loader:
            check_instance('loader', batch, TemporalData)
            yield self._update(batch)

    def forget(self, nodes: Nodes) -> None:
        """Drop all edges of nodes that were removed from the graph, by id."""
        nodes = NodeIds().rows_of('nodes', nodes, MOST)
        self._gone |= {*nodes.tolist()}
        self._last = {
            pair: t
            for pair, t in self._last.items()
            if self._gone.isdisjoint(pair)
        }
        self._events = deque(
            event for event in self._events if event[1] in self._last
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the edges with the times of their last events.

        These are personal data.
        """
        pairs = sorted(self._last)
        stays = [self._last[pair] is None for pair in pairs]
        times = [self._last[pair] or 0 for pair in pairs]
        # Nanoseconds are more than doubles hold.
        whole = all(isinstance(t, int) for t in times)
        dtype = torch.int64 if whole else torch.float64
        return {
            'edges': torch.tensor(pairs).long().view(-1, 2).t().contiguous(),
            'times': torch.tensor(times, dtype=dtype),
            'stays': torch.tensor(stays, dtype=torch.bool),
            'removed': torch.tensor(sorted(self._gone)).long(),
            'now': self._now,
            'num_skipped': self.num_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the result of :meth:`state_dict`."""
        check_instance('state', state, dict)
        names = 'edges', 'times', 'stays', 'removed', 'now', 'num_skipped'
        check_state(state, names)
        with reading():
            pairs = [(u, v) for u, v in state['edges'].t().tolist()]
            times = [
                None if stays else t
                for stays, t in zip(
                    state['stays'].tolist(),
                    state['times'].tolist(),
                    strict=True,
                )
            ]
            last = dict(zip(pairs, times, strict=True))
            gone = {*state['removed'].tolist()}
            now, skipped = state['now'] + 0, state['num_skipped'] + 0
        events = sorted((t, p) for p, t in last.items() if t is not None)
        self._last, self._gone, self._now = last, gone, now
        self._events, self.num_skipped = deque(events), skipped

    def _pair(self, u: int, v: int) -> tuple[int, int]:
        return (v, u) if u > v and not self.directed else (u, v)

    def _update(self, batch: TemporalData) -> Update:
        events = self._read(batch)
        last, was = self._last, dict[tuple[int, int], bool]()
        for t, pair, removed in events:
            self._now = t
            self._expire(was)
            if pair is None:
                self.num_skipped += 1
                continue
            was.setdefault(pair, pair in last)
            if removed:
                last.pop(pair, None)
            elif last.get(pair, t) is not None:
                last[pair] = t
                if self.window is not None:
                    self._events.append((t, pair))
        came = sorted(pair for pair in was if pair in last and not was[pair])
        went = sorted(pair for pair in was if was[pair] and pair not in last)
        remove = None
        if went:
            remove = RemovalRequest(edges=went, directed=self.directed)
        edges = torch.tensor(came, dtype=torch.int64).view(-1, 2).t()
        # An edge may have gone with a node.
        return Update(
            edges=edges,
            remove=remove,
            directed=self.directed,
            missing='skip',
        )

    def _expire(self, was: dict[tuple[int, int], bool]) -> None:
        if self.window is None:
            return
        # Differences of integers are exact, at nanoseconds too.
        while self._events and self._now - self._events[0][0] >= self.window:
            t, pair = self._events.popleft()
            if self._last.get(pair) == t:
                was.setdefault(pair, True)
                del self._last[pair]

    def _read(
        self, batch: TemporalData
    ) -> list[tuple[float, tuple[int, int] | None, bool]]:
        # Refuse a batch before any of it is kept. Skipped events have no pair.
        if getattr(batch, 'msg', None) is not None and not self.ignore_msg:
            raise ValueError(
                "'loader' has messages, and edges have no features here: "
                'leave them out by ignore_msg=True'
            )
        held: Any = [getattr(batch, name, None) for name in _NEEDED]
        src, dst, t, away = held
        src = plain_index('src', src, 'num_edges')
        dst = plain_index('dst', dst, src.numel())
        check_tensor('t', t, _TIMES, (src.numel(),), finite=True)
        for name, ends in (('src', src), ('dst', dst)):
            NodeIds().rows_of(name, ends, MOST)
        if away is None:
            away = torch.zeros_like(src, dtype=torch.bool)
        check_tensor('removed', away, torch.bool, (src.numel(),))
        found: list[tuple[float, tuple[int, int] | None, bool]] = []
        now = self._now
        parts = (part.tolist() for part in (t, src, dst, away))
        for k, (time, u, v, removed) in enumerate(zip(*parts, strict=True)):
            if time < now:
                raise ValueError(
                    "'t' needs times that do not fall (got a smaller one at "
                    f'position {k})'
                )
            now = time
            if u in self._gone or v in self._gone:
                if self.on_removed == 'raise':
                    raise ValueError(
                        f'the event at position {k} is of a node that was '
                        "removed: leave it out, or take on_removed='skip'"
                    )
                found.append((time, None, removed))
                continue
            found.append((time, self._pair(u, v), removed))
        return found
