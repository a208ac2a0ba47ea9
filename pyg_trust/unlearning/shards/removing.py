"""Removal from a sharded unlearner: plans and retraining."""

import copy
import time
from collections.abc import Sequence

import torch
from torch_geometric.data import Data

from pyg_trust.files.commit import editing, synchronized
from pyg_trust.functional.partition import shard_sizes
from pyg_trust.kernel.sentences import FROM_SYSTEM
from pyg_trust.nn.shard_aggregator import unchecked
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning.shards.building import Building
from pyg_trust.unlearning.shards.graph import (
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
from pyg_trust.unlearning.shards.waiting import Waiting


class Removing(Waiting, Building):
    """Mixin of an unlearner: plan and carry out removals."""

    @synchronized
    def plan(self, request: RemovalRequest) -> ShardPlan:
        """Estimate the shards and the cost of a removal, and change nothing.

        Args:
            request (RemovalRequest): what to forget.

        Raises:
            TypeError, ValueError: as :meth:`remove`.
        """
        state = self._fitted
        self._check(request)
        light = without_features(state.data)
        data, touched = self._without(light, request)
        first = self._first(light, request, touched)
        nodes = self._nodes(data, touched)
        seconds, fraction = self._estimate(state.work, data, first)
        return ShardPlan(
            request=request.to_dict(),
            shards=touched,
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
            ValueError: if something is not there or was removed before; if no
                training node would be left, or none of a class without
                :obj:`num_classes`.
        """
        self._agree('remove', request=request, reference=reference)
        state = self._fitted
        state.ledger.check_reference(reference)
        self._check(request)
        return self._remove(state, request, progress_bar, reference)

    def _check(self, request: RemovalRequest) -> None:
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
        progress_bar: bool | None,
        reference: str,
    ) -> ShardRemovalReport:
        started = time.perf_counter()
        data, touched = self._without(state.data, request)
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
