"""Removal from a sharded unlearner: plans, the queue and retraining."""

import copy
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch_geometric.data import Data

from pyg_trust._checks import check_number
from pyg_trust.commit import editing, synchronized
from pyg_trust.functional.partition import shard_sizes
from pyg_trust.kernel.sentences import FROM_SYSTEM
from pyg_trust.nn.shard_aggregator import unchecked
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning.shards.building import Building
from pyg_trust.unlearning.shards.graph import (
    named_items,
    rows_of,
    touched_shards,
    without_features,
)
from pyg_trust.unlearning.shards.packing import described
from pyg_trust.unlearning.shards.products import clear_rows, select_rows
from pyg_trust.unlearning.shards.reports import (
    ASSUMPTIONS,
    FROM_SEED,
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
)
from pyg_trust.unlearning.shards.slices import touched_slices
from pyg_trust.unlearning.shards.state import Stage, State, hash_of_shards
from pyg_trust.unlearning.shards.waiting import BatchPlan, batch_plan


class Removing(Building):
    """Mixin of an unlearner: plans and does removals."""

    max_wait: float | None
    max_requests: int | None
    _clock: Callable[[], float]

    @synchronized
    def plan(self, request: RemovalRequest | None = None) -> ShardPlan:
        """Estimate the shards and the cost of a removal, and change nothing.

        Args:
            request (RemovalRequest, optional): what to forget; by default all
                that is in the queue. (default: :obj:`None`)

        Raises:
            TypeError, ValueError: as :meth:`remove`.
        """
        state = self._fitted
        if request is None:
            requests = list(self._queued())
        else:
            self._check_queue(state, request)
            requests = [request]
        whole = RemovalRequest.batch(requests)
        light = without_features(state.data)
        data, touched = self._without(light, whole)
        first = self._first(light, whole, touched)
        per_shard = dict.fromkeys(touched, 0)
        for part in requests:
            for shard in touched_shards(light, part.parts[0]):
                per_shard[shard] += 1
        nodes = self._nodes(data, touched)
        seconds, fraction = self._estimate(state.work, data, first)
        return ShardPlan(
            request=whole.to_dict(),
            shards=touched,
            requests_per_shard=per_shard,
            nodes=nodes,
            node_epochs=self._node_epochs(data, first),
            full_node_epochs=self._node_epochs(
                data, dict.fromkeys(range(self.num_shards), 0)
            ),
            seconds=seconds,
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
            stages=first,
        )

    @editing
    def remove(
        self,
        request: RemovalRequest,
        *,
        reference: str = '',
        progress_bar: bool | None = None,
    ) -> ShardRemovalReport:
        """Remove the named items.

        Trains the touched shards and the aggregator again. If anything fails
        or interrupts it, everything is as before.

        Args:
            request (RemovalRequest): what to forget, in the names that
                ``fit`` saw, of graph 0.
            reference (str): of the batch that asks for it, 32 hexadecimal
                digits, for the line of the ledger. (default: :obj:`''`)
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)

        Raises:
            TypeError: on another request.
            ValueError: if something is not there, was removed before or is in
                the queue; if no training node would be left, or none of a
                class without :obj:`num_classes`.
        """
        self._agree('remove', request=request, reference=reference)
        state = self._fitted
        state.ledger.check_reference(reference)
        self._check_queue(state, request)
        return self._remove(
            state,
            request,
            (state.queue, state.arrived),
            progress_bar,
            reference,
        )

    @editing
    def enqueue(self, request: RemovalRequest) -> int:
        """Queue a request, and return how many wait.

        Nothing is forgotten before :meth:`flush`, which trains every shard
        once however many requests touch it. The time of the clock is kept
        with it, for :meth:`flush_if_due`.

        Args:
            request (RemovalRequest): as in :meth:`remove`; together with the
                queue it needs to be possible.

        Raises:
            TypeError, ValueError: as :meth:`remove`.
        """
        self._agree('enqueue', request=request)
        state = self._fitted
        self._check_queue(state, request)
        queue = (*state.queue, request)
        light = without_features(state.data)
        self._without(light, RemovalRequest.batch(queue))
        # A clock that was set back does not prolong a wait.
        now = max((self._from_first(self._now), *state.arrived))
        arrived = (*state.arrived, now)
        self._commit(state._replace(queue=queue, arrived=arrived))
        return len(queue)

    @property
    @synchronized
    def due(self) -> bool:
        """Whether the policy of the class says to flush the queue.

        It is if it holds :obj:`max_requests`, or its oldest request has
        waited :obj:`max_wait`.
        """
        return self._due()

    def _due(self) -> bool:
        state = self._fitted
        if not state.queue:
            return False
        if (
            self.max_requests is not None
            and len(state.queue) >= self.max_requests
        ):
            return True
        return (
            self.max_wait is not None
            and self._now() - state.arrived[0] >= self.max_wait
        )

    @editing
    def flush_if_due(
        self, *, progress_bar: bool | None = None
    ) -> ShardRemovalReport | None:
        """Flush the queue if it is :attr:`due`.

        Nothing calls it by itself: a request waits at most :obj:`max_wait`
        and the time between two calls.

        Args:
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)

        Raises:
            ValueError: as :meth:`flush`; or if the class has no policy.
        """
        if self.max_wait is None and self.max_requests is None:
            raise ValueError(
                "'max_wait' or 'max_requests' needs to be given to the class"
            )
        self._agree('flush_if_due')
        due = self._from_first(self._due)
        return self._flush(progress_bar) if due else None

    @synchronized
    def policy(self, rate: float, max_wait: float) -> BatchPlan:
        """Compare the cost of batched removals with that of immediate ones.

        Args:
            rate (float): how many requests come per second; each names one
                random training node.
            max_wait (float): the longest that one may wait, in seconds.

        Raises:
            TypeError, ValueError: if one is not positive.
        """
        work = self._fitted.work
        shares = [share for share, _ in self.recipe.slices] or [1.0]
        stages = work.times()
        if stages is None:
            raise ValueError(
                'no training was seen, and a saved state has no times: remove '
                'something first'
            )
        rest = sum(work.seconds.values()) - work.seconds['shards']
        return batch_plan(stages, shares, rest, rate, max_wait)

    @editing
    def flush(self, *, progress_bar: bool | None = None) -> ShardRemovalReport:
        """Remove all that is queued, as one request.

        Args:
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)

        Raises:
            ValueError: if the queue is empty, or is no longer possible; then
                the queue is as before, and :meth:`withdraw` helps.
        """
        self._agree('flush')
        return self._flush(progress_bar)

    def _flush(self, progress_bar: bool | None) -> ShardRemovalReport:
        queue = self._queued()
        request = RemovalRequest.batch(queue)
        return self._remove(self._fitted, request, ((), ()), progress_bar)

    @editing
    def withdraw(self) -> tuple[RemovalRequest, ...]:
        """Empty the queue without removing, and return its requests."""
        self._agree('withdraw')
        state = self._fitted
        self._commit(state._replace(queue=(), arrived=()))
        return state.queue

    def _now(self) -> float:
        now = check_number('clock', self._clock())
        if not math.isfinite(now):
            raise ValueError(f"'clock' needs to tell the time (got {now})")
        return now

    def _queued(self) -> tuple[RemovalRequest, ...]:
        queue = self._fitted.queue
        if not queue:
            raise ValueError('the queue is empty')
        return queue

    def _check_queue(self, state: State, request: RemovalRequest) -> None:
        if not isinstance(request, RemovalRequest):
            raise TypeError(
                "'request' needs to be a RemovalRequest "
                f'(got {type(request).__name__})'
            )
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, features or edges of graph "
                f'0, the only one (got graphs {request.graphs})'
            )
        queued = set().union(*(named_items(r.parts[0]) for r in state.queue))
        for what in named_items(request.parts[0]):
            if what in queued:
                raise ValueError(
                    f'{what[0]} {what[1]} is in the queue already'
                )

    def _without(
        self, data: Data, request: RemovalRequest
    ) -> tuple[Data, tuple[int, ...]]:
        # The graph that remains, and the shards to train again.
        part = request.parts[0]
        light = without_features(data)
        left = remove_from_data(light, part)
        # The features on their own: most of them stay where they are.
        if part.features:
            gone = rows_of(data.n_id, torch.tensor(part.features))
            left.x = clear_rows(data.x, gone)
        else:
            left.x = data.x
        if part.nodes:
            left.x = select_rows(left.x, rows_of(data.n_id, left.n_id))
        if not bool((left.shard >= 0).any()):
            raise ValueError('the request would leave no training node')
        count = [
            d.y[d.shard >= 0].bincount(minlength=int(data.y.max()) + 1)
            for d in (data, left)
        ]
        lost = (count[0] > 0) & (count[1] == 0)
        if self.num_classes is None and bool(lost.any()):
            raise ValueError(
                f'the request would leave class {int(lost.nonzero()[0])} '
                'without a training node, so that a fresh start would not '
                "know of it: give 'num_classes' to allow that"
            )
        if self.num_classes is None and left.y.max() < data.y.max():
            # Of nodes that are not trained on as well: outputs are as many.
            raise ValueError(
                'the request would leave no node of the largest label '
                f'{int(data.y.max())}, so that a fresh start would have fewer '
                "classes: give 'num_classes' to allow that"
            )
        return left, touched_shards(data, part)

    def _first(
        self, data: Data, request: RemovalRequest, touched: Sequence[int]
    ) -> dict[int, int]:
        # The first stage of every touched shard that is to be trained again.
        slices = self.recipe.slices
        if not slices:
            return dict.fromkeys(touched, 0)
        part = request.parts[0]
        found = touched_slices(data, part, slices, self._slice_seed)
        return dict(sorted(found.items()))

    def _kept(
        self, state: State, data: Data, shard: int, count: int
    ) -> tuple[Stage, ...]:
        # The stages of a shard that have not seen removed items, by the key of
        # the last of them.
        stages = state.checkpoints[shard].stages[:count]
        if not stages:
            return ()
        light = copy.copy(data)
        if 'x_removed' in light:
            del light.x_removed
        seen = self._stage_contents(shard, self._parts(light, [shard])[shard])
        item = self._stage_item(shard, count - 1)
        if stages[-1].key != state.seals.digest(
            item
        ) or not state.seals.matches(item, seen[item]):
            raise ValueError(
                f'stage {count - 1} of shard {shard} was trained on other '
                'data than those that remain of its slices: repartition() '
                'trains everything anew'
            )
        return stages

    def _remove(
        self,
        state: State,
        request: RemovalRequest,
        waiting: tuple[tuple[RemovalRequest, ...], tuple[float, ...]],
        progress_bar: bool | None,
        reference: str = '',
    ) -> ShardRemovalReport:
        queue, arrived = waiting
        started = time.perf_counter()
        data, touched = self._without(state.data, request)
        if queue:
            try:
                self._without(data, RemovalRequest.batch(queue))
            except ValueError as error:
                raise ValueError(
                    f'what is in the queue would be impossible then: {error}'
                ) from None
        first = self._first(state.data, request, touched)
        begin = {
            shard: self._kept(state, data, shard, stage)
            for shard, stage in first.items()
        }
        ledger = state.ledger.copy()
        ledger_line = ('retrain', request.to_dict(), reference)
        new = self._build(
            state,
            data,
            touched,
            ledger,
            progress_bar,
            *ledger_line,
            begin=begin,
            started=started,
        )
        new = new._replace(queue=queue, arrived=arrived)
        nodes = self._nodes(data, touched)
        _, fraction = self._estimate(new.work, data, first)
        exact, exactness = self._exactness(new)
        report = ShardRemovalReport(
            secrets=FROM_SEED if new.seeded else FROM_SYSTEM,
            request=request.to_dict(),
            shards=touched,
            empty=self._empty(data),
            nodes=nodes,
            node_epochs=self._node_epochs(data, first),
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
            seconds=new.work.seconds,
            trainer=new.work.trainer,
            exact=exact,
            exactness=exactness,
            keeps_history=self._keeps_history,
            assumptions=(*ASSUMPTIONS, *unchecked(self._aggregator)),
            origin=self._origin(),
            stages=first,
            queued=len(queue),
            max_wait=self.max_wait,
            weights=hash_of_shards(new),
            data=new.ledger.entries[-1].data,
            ledger_head=new.ledger.head,
        )
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    def _report(self) -> ShardReport:
        state = self._fitted
        sizes = shard_sizes(state.data.shard, self.num_shards)
        exact, exactness = self._exactness(state)
        removals = [e for e in state.ledger.entries if e.request]
        return ShardReport(
            secrets=FROM_SEED if state.seeded else FROM_SYSTEM,
            num_nodes=int(state.data.num_nodes),
            num_train=int(sizes.sum()),
            shard_sizes=tuple(sizes.tolist()),
            empty=self._empty(state.data),
            imbalance=float(sizes.max() / sizes.double().mean()),
            partition=described(state.partition),
            exact=exact,
            exactness=exactness,
            keeps_history=self._keeps_history,
            removals=len(removals),
            queued=len(state.queue),
            oldest_request=state.arrived[0] if state.queue else None,
            max_wait=self.max_wait,
            max_requests=self.max_requests,
            seconds=self._seconds(state),
            trainer=state.work.trainer,
            assumptions=(*ASSUMPTIONS, *unchecked(self._aggregator)),
            origin=self._origin(),
        )

    def _seconds(self, state: State) -> dict[str, float]:
        # With what outputs took that were asked for since.
        found = dict(state.work.seconds)
        if self._on_request and not self._learns and state.outputs is not None:
            found.setdefault('inference', 0.0)
            found['inference'] += self._asked_seconds
        return found
