"""Updates of a sharded unlearner: plans, and retraining of shards."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch_geometric.data import Data

from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_instance,
    check_integer,
)
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.removal import RemovalRequest, requested, skipping
from pyg_trust.unlearning.shards.building import Building
from pyg_trust.unlearning.shards.persons import removed_names, touched
from pyg_trust.unlearning.shards.reports import (
    FROM_SEED,
    ShardPlan,
    ShardRemovalReport,
)
from pyg_trust.unlearning.shards.slices import touched_slices
from pyg_trust.unlearning.shards.state import State, hash_of_shards
from pyg_trust.unlearning.shards.updating import Change, played
from pyg_trust.update import Update
from pyg_trust.verify.claims_removal import FROM_SYSTEM


class Removing(Building):
    """Mixin of the sharded unlearner: plan and carry out updates."""

    @synchronized
    def plan(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        shard: Mapping[int, int] | str | None = None,
    ) -> ShardPlan:
        """Estimate the shards and the cost of an update; change nothing.

        Raises:
            TypeError, ValueError: as :meth:`update`.
        """
        state = self._fitted
        change = self._change(state, update, shard, light=True)
        data, first = change.data, self._first(state.data, change)
        seconds, fraction = self._estimate(state, data, first)
        every = dict.fromkeys(range(self.num_shards), 0)
        return ShardPlan(
            request=change.request,
            shards=tuple(first),
            nodes=int(self._sizes(data)[[*first]].sum()),
            node_epochs=self._node_epochs(data, first),
            full_node_epochs=self._node_epochs(data, every),
            seconds=seconds,
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
            stages=first,
        )

    @editing
    def remove(
        self,
        request: RemovalRequest | Sequence[Any] | None = None,
        *,
        nodes: Any = None,
        edges: Any = None,
        features: Any = None,
        labels: Any = None,
        persons: Any = None,
        missing: str = 'raise',
        reference: str = '',
        on_report: Callable[[ShardRemovalReport], Any] | None = None,
        progress_bar: bool | None = None,
    ) -> ShardRemovalReport:
        """Remove the requested items; retrain their shards.

        Args:
            request (RemovalRequest or list, optional): the items to forget, by
                the ids that ``fit`` saw, or the ids of nodes; or by the
                following. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): nodes, with their features
                and edges. (default: :obj:`None`)
            edges (list or Tensor, optional): edges, in both directions, as
                ``[2, num_edges]`` or a list of pairs. (default: :obj:`None`)
            features (list[int] or Tensor, optional): nodes whose features go.
                (default: :obj:`None`)
            labels (list[int] or Tensor, optional): nodes whose labels go.
                (default: :obj:`None`)
            persons (list[int] or Tensor, optional): persons of the
                :obj:`unit` of this unlearner. (default: :obj:`None`)
            missing (str): what to do with items that are not there:
                :obj:`'raise'` an error, or :obj:`'skip'` them and list them
                in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): the id of the batch of requests, 32 hexadecimal
                digits, for the ledger. (default: :obj:`''`)
            on_report (Callable, optional): stores the report, before the
                folder has the removal: no crash comes in between. If it
                raises, everything is as before. (default: :obj:`None`)
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            TypeError: on another request.
            ValueError: as :meth:`update`.
        """
        if persons is not None and self._by_person and request is None:
            request = RemovalRequest(
                persons=persons, unit=self._fitted.data.persons.unit
            )
            persons = None
        request = requested(
            request,
            nodes=nodes,
            edges=edges,
            features=features,
            labels=labels,
            persons=persons,
        )
        self._agree('remove', request=request, reference=reference)
        if on_report is not None:
            check_callable('on_report', on_report)
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, edges, features or labels of "
                f'graph 0, the only one (got graphs {request.graphs})'
            )

        def played(left: RemovalRequest) -> ShardRemovalReport:
            return self._played(left, None, reference, progress_bar, on_report)

        report, skipped = skipping(request, missing, played)
        return replace(report, skipped=skipped) if skipped else report

    @editing
    def update(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        shard: Mapping[int, int] | str | None = None,
        reference: str = '',
        progress_bar: bool | None = None,
    ) -> ShardRemovalReport:
        """Apply updates in order as one, all or none; retrain their shards.

        Trains the touched shards and the aggregator again. If anything fails
        or interrupts it, everything is as before. A new training node goes to
        the shard that a keyed hash of its name gives; where the partition is
        another, that is the hash of a key of its own from the second day on,
        and the report counts the nodes.

        Args:
            update (Update, RemovalRequest or list): the removals, additions
                and changes, by names in graph 0. Labels are those of training.
            shard (dict or str, optional): the shard of every new training
                node, by name, or :obj:`'hash'`; for a partition that was given
                as tensors. (default: :obj:`None`)
            reference (str): as in :meth:`remove`. (default: :obj:`''`)
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            TypeError: on anything else.
            ValueError: if something is not there, is there already, or was
                there before; if no training node would be left, or none of a
                class without :obj:`num_classes`, or one of a new class; if a
                graph has edge weights, which new edges lack.
        """
        self._agree('update', update=update, reference=reference, shard=shard)
        return self._played(update, shard, reference, progress_bar)

    # Private ################################################################

    def _played(
        self,
        update: Any,
        shard: Any,
        reference: str,
        progress_bar: bool | None,
        on_report: Callable[[ShardRemovalReport], Any] | None = None,
    ) -> ShardRemovalReport:
        state = self._fitted
        state.ledger.check_reference(reference)
        change = self._change(state, update, shard)
        started = time.perf_counter()
        first = self._first(state.data, change)
        come = change.data.n_id[~torch.isin(change.data.n_id, state.rows)]
        new = self._build(
            state._replace(rows=torch.cat([state.rows, come])),
            change.data,
            first,
            'retrain',
            progress_bar,
            request=change.request,
            reference=reference,
            started=started,
        )
        report = self._removed(new, change, first)
        if on_report is not None:
            on_report(report)
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    def _change(
        self, state: State, update: Any, shard: Any, *, light: bool = False
    ) -> Change:
        updates = Update.of(update)
        if not updates:
            raise ValueError("'update' needs to hold an update (got none)")
        if isinstance(shard, str):
            check_choice('shard', shard, ('hash',))
        elif shard is not None:
            check_instance('shard', shard, Mapping)
            for each in shard.values():
                check_integer('shard', each, 0, self.num_shards - 1)
        typed = 'persons' in state.data
        gone: list[int] = []
        if typed:
            gone = removed_names(updates, state.data.persons.unit)
        change = played(
            state.data,
            updates,
            lambda names: self._homes(names, state.partition, shard),
            state.ledger.removed.request(),
            light=light,
        )
        if typed:
            change.data.persons = state.data.persons.without(gone)
        self._check_classes(state, change.data)
        return change

    def _check_classes(self, state: State, left: Data) -> None:
        data = state.data
        trained = left.y[left.shard >= 0]
        if not trained.numel():
            raise ValueError('the request would leave no training node')
        largest = int(trained.max())
        if largest >= state.num_classes:
            raise ValueError(
                f"'labels' needs to be below {state.num_classes} (got "
                f"{largest}): give 'num_classes' at the start for classes to "
                'come'
            )
        count = [
            d.y[d.shard >= 0].bincount(minlength=state.num_classes)
            for d in (data, left)
        ]
        lost = (count[0] > 0) & (count[1] == 0)
        if self.num_classes is None and bool(lost.any()):
            raise ValueError(
                f'the request would leave class {int(lost.nonzero()[0])} '
                'without a training node, so that a fresh start would not '
                "know of it: give 'num_classes' to allow that"
            )
        if self.num_classes is None and left.y.max() != data.y.max():
            # Count nodes outside of training, too: models have that many
            # outputs.
            less = 'fewer' if left.y.max() < data.y.max() else 'more'
            raise ValueError(
                'the request would leave no node of the largest label '
                f'{int(data.y.max())}, or a larger one, so that a fresh start '
                f"would have {less} classes: give 'num_classes' to allow that"
            )

    def _first(self, before: Data, change: Change) -> dict[int, int]:
        # The first stage of every touched shard that is to be trained again:
        # of what goes, and of what would go if the update were undone.
        if 'persons' in before:
            return touched(before, change.data, self.num_shards)
        first: dict[int, int] = {}
        for data, part in (before, change.gone), (change.data, change.came):
            found = touched_slices(
                data, part, self.recipe.slices, self._slice_seed
            )
            for shard, stage in found.items():
                first[shard] = min(stage, first.get(shard, stage))
        return dict(sorted(first.items()))

    def _removed(
        self, state: State, change: Change, first: dict[int, int]
    ) -> ShardRemovalReport:
        data = state.data
        exact, exactness = self._exactness(state)
        return ShardRemovalReport(
            secrets=FROM_SEED if state.seeded else FROM_SYSTEM,
            request=change.request,
            shards=tuple(first),
            empty=self._empty(data),
            nodes=int(self._sizes(data)[[*first]].sum()),
            node_epochs=self._node_epochs(data, first),
            fraction=self._estimate(state, data, first)[1],
            aggregator_nodes=self._sample(data).numel(),
            seconds=state.seconds,
            trainer=self.trainer,
            exact=exact,
            exactness=exactness,
            assumptions=self._assumed(data),
            origin=self._origin(),
            stages=first,
            by_hash=self._by_hash(data),
            weights=hash_of_shards(state),
            data=state.ledger.entries[-1].data,
            ledger_head=state.ledger.head,
        )
