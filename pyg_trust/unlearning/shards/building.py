"""Construction of the states of a sharded unlearner.

Training nodes are divided, a model is trained on every shard, all of them are
run on the present graph, and the aggregator learns from that. A removal does
the same for the shards that it touches.
"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from pyg_trust import rng
from pyg_trust.files.seals import Seals
from pyg_trust.ledger import RemovalLedger
from pyg_trust.loader.shard_loader import ShardDataset
from pyg_trust.nn.shard_aggregator import ShardAggregator, unchecked
from pyg_trust.report import provenance
from pyg_trust.transforms.shards import Shards, training_nodes
from pyg_trust.unlearning.partition import (
    PARTITIONS,
    check_partition,
    hash_partition,
    partition_from_lists,
    shard_sizes,
)
from pyg_trust.unlearning.shards.graph import (
    as_shard,
    kind_of,
    name_tensor,
    without_features,
)
from pyg_trust.unlearning.shards.inference import evaluate_all
from pyg_trust.unlearning.shards.packing import described, plain_settings
from pyg_trust.unlearning.shards.products import can_multiply, select_rows
from pyg_trust.unlearning.shards.reports import ASSUMPTIONS
from pyg_trust.unlearning.shards.slices import induced, slice_numbers
from pyg_trust.unlearning.shards.state import (
    Checkpoint,
    Stage,
    State,
    Stateful,
    Work,
)
from pyg_trust.unlearning.shards.training import (
    Shard,
    Trained,
    check_model,
    seeded,
    single_thread,
    train,
)
from pyg_trust.unlearning.shards.updating import canonical, is_canonical
from pyg_trust.verify import shards as kernel

# Parts of the seed.
_SHARD, _PARTITION, _AGGREGATOR, _SAMPLE, _SLICE, _LATER = range(6)
# The share of training nodes by a later hash from which to start over.
_MANY = 0.25
# A part of the seed of a shard, beside those of its training.
_STAGE = 3


class Building(Stateful):
    """Mixin of the sharded unlearner: build its states."""

    model_factory: Callable[[], Module]
    num_classes: int | None
    num_workers: int | None
    trainer: str
    _auto_adj: bool
    # Seconds of outputs that were computed on request.
    _asked_seconds: float

    def _checked(self, partition: Any) -> Any:
        # Copies, so that the caller can't change them.
        if self._by_person and not (
            partition == 'hash'
            if isinstance(partition, str)
            else isinstance(partition, Shards) and partition.exact
        ):
            raise ValueError(
                "'partition' needs to be 'hash' with a 'unit': all others "
                f'look at one kind of nodes (got {described(partition)})'
            )
        if isinstance(partition, str):
            PARTITIONS.find('partition', partition)
            Shards(self.num_shards, partition, seed=0)
            return partition
        if isinstance(partition, Shards):
            if partition.num_shards != self.num_shards:
                raise ValueError(
                    f"'partition' needs to make {self.num_shards} shards "
                    f'(got {partition.num_shards})'
                )
            return copy.copy(partition)
        if isinstance(partition, Tensor):
            return partition.clone()
        if isinstance(partition, Sequence):
            if len(partition) != self.num_shards:
                raise ValueError(
                    f"'partition' needs to name {self.num_shards} shards "
                    f'(got {len(partition)})'
                )
            return [name_tensor('partition', names) for names in partition]
        raise TypeError(
            "'partition' needs to be the name of a method, a Shards, a tensor "
            f'or a list of tensors (got {type(partition).__name__})'
        )

    def _shards(self, given: Any, progress_bar: bool | None = None) -> Any:
        if isinstance(given, str):
            seed = rng.derive(self._seed, _PARTITION)
            return Shards(
                self.num_shards, given, seed=seed, progress_bar=progress_bar
            )
        return given

    def _divide(
        self, data: Data, given: Any, progress_bar: bool | None
    ) -> Data:
        # The graph with the shard of every node, -1 outside of training.
        partition = self._shards(given, progress_bar)
        index = training_nodes(data)
        made = copy.copy(data)
        if isinstance(partition, Shards) and not partition.exact:
            light = without_features(data)
            if partition.sees_features:
                light.x = data.x.to_dense()
            made.shard = partition(light).shard
            return made
        if isinstance(partition, Shards):
            # Hash the names: this stays possible after any removal.
            shard = hash_partition(
                data.n_id[index],
                self.num_shards,
                seed=partition.seed,
                allow_empty=True,
            )
        else:
            shard = partition
            if not isinstance(shard, Tensor):
                shard = partition_from_lists(shard, data.n_id[index])
            check_partition(shard, self.num_shards, index.numel())
        made.shard = torch.full((int(data.num_nodes),), -1)
        made.shard[index] = shard
        return made

    def _homes(
        self, names: Tensor, given: Any, shard: Any
    ) -> tuple[Tensor, bool]:
        # Assign new training nodes by their names alone: a shard chosen by
        # neighbours would be a trace of these.
        partition = self._shards(given)
        if isinstance(partition, Shards) or shard == 'hash':
            exact = isinstance(partition, Shards) and partition.exact
            key = rng.derive(self._seed, _LATER)
            home = hash_partition(
                names,
                self.num_shards,
                seed=partition.seed if exact else key,
                allow_empty=True,
            )
            return home, not exact
        missing = [v for v in names.tolist() if v not in (shard or {})]
        if missing:
            raise ValueError(
                "'shard' needs to name the shard of every new training node, "
                "or to be 'hash', as the partition is a given one (node "
                f'{missing[0]} has none)'
            )
        assert shard is not None
        home = torch.tensor([shard[v] for v in names.tolist()])
        return home, False

    def _assumed(self, data: Data) -> tuple[str, ...]:
        owned = data.persons.assumptions() if 'persons' in data else ()
        return (*ASSUMPTIONS, *owned, *unchecked(self._aggregator))

    def _by_hash(self, data: Data) -> int:
        late = data.get('by_hash')
        return 0 if late is None else int(late.sum())

    def _exactness(self, state: State) -> tuple[bool, str]:
        partition = self._shards(state.partition)
        if isinstance(partition, Shards) and partition.exact:
            return True, (
                'exact: a node goes to the shard that a keyed hash of its '
                'name gives, so that everything equals a fresh start with '
                'the same seed on the present data, in any order of nodes '
                'and edges'
                if is_canonical(state.data) and 'persons' not in state.data
                else 'exact: a node goes to the shard that a keyed hash of '
                'its name gives, so that everything equals a fresh start '
                'with the same seed on the remaining data, in the same order '
                'of nodes and edges'
            )
        seen = 'what its author looked at'
        if isinstance(partition, Shards):
            seen = partition.seen
        if state.fresh:
            return True, (
                'exact so far: nothing was removed since the partition was '
                f'made, which has seen {seen}; after a removal, exact given '
                'the partition'
            )
        later = self._by_hash(state.data)
        share = later / int((state.data.shard >= 0).sum())
        hashed = f'{later} training nodes came later and are by hash; '
        return False, (
            'exact given the partition: models and aggregator equal those of '
            'a fresh start with the same partition, but that has seen '
            f'{seen}, with what was removed; {hashed * bool(later)}'
            'repartition() starts over'
            + ', as it should from a quarter on'
            * (share > _MANY)
        )

    def _origin(self) -> dict[str, Any]:
        # Without the seed, which salts the hashes.
        return provenance(
            num_shards=self.num_shards,
            partition=described(self._given),
            aggregator=plain_settings(self._aggregator),
            aggregator_nodes=self.aggregator_nodes,
            trainer=self.trainer,
            **self.recipe.plain(),
        )

    @property
    def _keeps_history(self) -> bool:
        return self.folder is not None and self.keep_history

    def _empty(self, data: Data) -> tuple[int, ...]:
        sizes = shard_sizes(data.shard, self.num_shards)
        return tuple((sizes == 0).nonzero().view(-1).tolist())

    def _nodes(self, data: Data, shards: Sequence[int]) -> int:
        sizes = shard_sizes(data.shard, self.num_shards)
        return int(sizes[list(shards)].sum())

    def _node_epochs(self, data: Data, first: dict[int, int]) -> int:
        # Nodes times epochs of the stages from these on.
        slices = self.recipe.slices
        if not slices:
            return self._nodes(data, list(first)) * self.recipe.epochs
        number = slice_numbers(data.n_id, slices, self._slice_seed)
        total = 0
        for shard, stage in first.items():
            own = number[data.shard == shard]
            for r in range(stage, len(slices)):
                total += int((own <= r).sum()) * slices[r][1]
        return total

    def _estimate(
        self, work: Work, data: Data, first: dict[int, int]
    ) -> tuple[dict[str, float], float]:
        # The share of a shard's last times in those of all shards.
        times = work.times()
        if times is None:
            whole = dict.fromkeys(range(self.num_shards), 0)
            most = max(1, self._node_epochs(data, whole))
            return {}, self._node_epochs(data, first) / most
        training = sum(
            sum(times[shard][stage:]) for shard, stage in first.items()
        )
        seconds = {**work.seconds, 'shards': training}
        total = sum(seconds.values())
        return seconds, total / (total - training + sum(map(sum, times)))

    def _fresh(
        self,
        data: Data,
        num_classes: int,
        given: Any,
        ledger: RemovalLedger,
        action: str,
        progress_bar: bool | None,
    ) -> State:
        # Everything from scratch.
        self._choose_products()
        # Given shards are in the order of the rows.
        if not isinstance(given, Tensor):
            data = canonical(data)
        shard = self._from_first(
            lambda: self._divide(data, given, progress_bar).shard
        )
        data = copy.copy(data)
        data.shard = shard
        data = canonical(data)
        if 'by_hash' in data:
            del data.by_hash
        sizes = shard_sizes(data.shard, self.num_shards)
        # A shard of one node may be too small to train.
        most = int(sizes.max())
        smallest = int(sizes.where(sizes >= min(2, most), most + 1).argmin())
        probe = as_shard(
            self._parts(data, [smallest])[smallest], self._shard_seed(smallest)
        )
        out = check_model(self.model_factory, probe, self.recipe)
        if not isinstance(out, Tensor) or out.shape[1:] != (num_classes,):
            raise ValueError(
                "'model_factory' needs to make models with outputs of the "
                f'shape [num_nodes, {num_classes}], one per class '
                f'(got {kind_of(out)})'
            )
        # The other fields follow below.
        empty = State(
            seed=self._seed,
            seeded=self._seeded,
            partition=given,
            data=data,
            num_classes=num_classes,
            checkpoints=(),
            outputs=data.x,
            aggregator=self._aggregator,
            ledger=ledger,
            seals=Seals(),
            fresh=True,
            work=self._unseen,
        )
        shards = range(self.num_shards)
        return self._build(empty, data, shards, ledger, progress_bar, action)

    def _build(
        self,
        state: State,
        data: Data,
        shards: Sequence[int],
        ledger: RemovalLedger,
        progress_bar: bool | None,
        action: str,
        request: dict[str, Any] | None = None,
        reference: str = '',
        *,
        begin: dict[int, tuple[Stage, ...]] | None = None,
        started: float | None = None,
    ) -> State:
        # The state in which these shards are trained on the graph, from the
        # stages that are given.
        self._asked_seconds = 0.0
        started = time.perf_counter() if started is None else started
        clock = [time.perf_counter()]
        trained, how = self._train(
            *(data, shards, self.trainer, progress_bar, begin),
            over_ranks=self.over_ranks,
        )
        clock.append(time.perf_counter())
        seals, made = self._sealed(state, data, trained)
        clock.append(time.perf_counter())
        outputs = None
        if begin is None or not self._on_request or self._learns:
            outputs = self._outputs(
                *(data, made, state.num_classes, progress_bar),
                over_ranks=self.over_ranks,
            )
        clock.append(time.perf_counter())
        aggregator = self._from_first(
            lambda: self._aggregate(data, outputs, progress_bar)
        )
        clock.append(time.perf_counter())
        stages = list(state.work.stage_seconds)
        for shard, taken in zip(trained, how.stage_seconds, strict=True):
            kept = len((begin or {}).get(shard, ()))
            row = (*stages[shard][:kept], *taken)
            # A stage without training nodes takes no time.
            stages[shard] = (*row, *(0.0,) * (len(stages[shard]) - len(row)))
        names = ('shards', 'handling', 'inference', 'aggregator')
        seconds = {
            name: end - start
            for name, start, end in zip(
                names, clock[:-1], clock[1:], strict=True
            )
        }
        # The time of everything else.
        seconds['handling'] += (
            time.perf_counter() - started - (clock[-1] - clock[0])
        )
        state = state._replace(
            data=data,
            checkpoints=made,
            seals=seals,
            outputs=outputs,
            aggregator=aggregator,
            ledger=ledger,
            fresh=begin is None,
            work=Work(seconds, how.trainer, tuple(stages)),
        )
        ledger.record(action, 0.0, request, state.sealed, reference)
        return state

    def _parts(self, data: Data, shards: Iterable[int]) -> dict[int, Data]:
        light = without_features(data)
        light.row = torch.arange(int(data.num_nodes))
        dataset = ShardDataset(light, data.shard, self.num_shards)
        parts = {}
        for shard in shards:
            part = dataset[shard]
            part.x = select_rows(data.x, part.row)
            del part.row
            if 'persons' in data:
                part.typed = data.persons.within(part.n_id)
            parts[shard] = part
        return parts

    def _strangers(self, state: State) -> tuple[str, ...]:
        # Inputs of a stage, besides those that the kernel lists.
        data, given = state.data, self._shards(state.partition)
        training = data.shard >= 0
        names = data.n_id[training].tolist()
        shares = [share for share, _ in self.recipe.slices] or [1.0]
        key = given.seed if isinstance(given, Shards) and given.exact else 0
        division = kernel.divided(
            names, self.num_shards, key, shares, self._slice_seed
        )
        if not (isinstance(given, Shards) and given.exact):
            shard = data.shard[training].tolist()
            division = division._replace(
                shard=dict(zip(names, shard, strict=True))
            )
        trained = {
            (shard, stage): _items(seen)
            for shard, part in self._parts(
                data, range(self.num_shards)
            ).items()
            for stage, seen in enumerate(self._seen(part))
        }
        found = kernel.strangers(trained, _items(data), division)
        return tuple(
            f'stage {stage} of shard {shard}, which sees {len(items)} items '
            'that it should not, or does not see them'
            for (shard, stage), items in found.items()
        )

    def _shard_seed(self, shard: int) -> int:
        return rng.derive(self._seed, _SHARD, shard)

    def _train(
        self,
        data: Data,
        shards: Iterable[int],
        trainer: str,
        progress_bar: bool | None,
        begin: dict[int, tuple[Stage, ...]] | None = None,
        *,
        over_ranks: bool = False,
    ) -> tuple[dict[int, Checkpoint], Trained]:
        begin = begin or {}
        parts = self._parts(data, shards)
        filled = {s: p for s, p in parts.items() if p.num_nodes > 0}
        done = train(
            self.model_factory,
            [self._job(s, p, begin.get(s, ())) for s, p in filled.items()],
            self.recipe,
            trainer=trainer,
            num_workers=self.num_workers,
            over_ranks=over_ranks,
            progress_bar=progress_bar,
        )
        states = dict(zip(filled, done.stages, strict=True))
        seconds = dict(zip(filled, done.stage_seconds, strict=True))
        made = {}
        for shard, part in parts.items():
            *earlier, last = states.get(shard, [{}])
            stages = [Stage('', weights) for weights in earlier]
            kept = begin.get(shard, ()) if shard in filled else ()
            # Its data are sealed when the state is made.
            made[shard] = Checkpoint(
                '', part.n_id.clone(), last, (*kept, *stages)
            )
        taken = [seconds.get(shard, []) for shard in parts]
        return made, done._replace(stage_seconds=taken)

    def _job(self, shard: int, part: Data, kept: Sequence[Stage]) -> Shard:
        # A shard with the stages that are left to train.
        seed = self._shard_seed(shard)
        whole = as_shard(part, seed)
        if not self.recipe.slices:
            return whole
        seen = [
            as_shard(data, rng.derive(seed, _STAGE, r))
            for r, data in enumerate(self._seen(part))
        ]
        stages = [
            (data, epochs)
            for data, (_, epochs) in zip(seen, self.recipe.slices, strict=True)
        ]
        start = kept[-1].weights if kept else None
        return whole._replace(stages=tuple(stages[len(kept) :]), start=start)

    def _seen(self, part: Data) -> list[Data]:
        # The training rows of every stage of a shard.
        slices = self.recipe.slices
        if not slices:
            return [part]
        number = slice_numbers(part.n_id, slices, self._slice_seed)
        made = []
        for last in range(len(slices)):
            seen = induced(part, number, last)
            seen.x = select_rows(part.x, seen.row)
            del seen.row
            made.append(seen)
        return made

    @property
    def _slice_seed(self) -> int:
        return rng.derive(self._seed, _SLICE)

    def _outputs(
        self,
        data: Data,
        checkpoints: Sequence[Checkpoint],
        num_classes: int,
        progress_bar: bool | None = None,
        *,
        over_ranks: bool = False,
    ) -> Tensor:
        # The outputs of every model for every node: [num_shards, num_nodes,
        # C].
        graph = as_shard(data, 0)
        if 'persons' in data:
            graph = graph._replace(typed=data.persons.whole())
        return evaluate_all(
            self.model_factory,
            graph,
            [made.weights for made in checkpoints],
            num_classes,
            self.recipe,
            over_ranks=over_ranks,
            progress_bar=progress_bar,
        )

    @property
    def _learns(self) -> bool:
        learn = type(self._aggregator)._learn
        return learn is not ShardAggregator._learn

    def _present(
        self, state: State, progress_bar: bool | None = None
    ) -> Tensor:
        # The outputs on the present graph; kept, unless another thread was
        # faster.
        if state.outputs is not None:
            return state.outputs
        started = time.perf_counter()
        outputs = self._outputs(
            state.data, state.checkpoints, state.num_classes, progress_bar
        )
        with self._lock.turn:
            if self._state is state:
                self._asked_seconds = time.perf_counter() - started
                self._state = state._replace(outputs=outputs)
        return outputs

    def _choose_products(self) -> None:
        # Choose by the layers of a model, which do not depend on data.
        if not self._auto_adj:
            return
        with seeded(0):
            module = self.model_factory()
        layers = [m for m in module.modules() if isinstance(m, MessagePassing)]
        chosen = bool(layers) and all(can_multiply(m) for m in layers)
        self.recipe = replace(self.recipe, sparse_adj=chosen)

    def _sample(self, data: Data) -> Tensor:
        # Choose by hashes of names: a removal does not change the other
        # choices.
        index = (data.shard >= 0).nonzero().view(-1)
        order = rng.derive_each(
            rng.derive(self._seed, _SAMPLE), data.n_id[index]
        )
        chosen = order.argsort(stable=True)[: self.aggregator_nodes]
        return index[chosen].sort().values

    def _aggregate(
        self, data: Data, outputs: Tensor | None, progress_bar: bool | None
    ) -> ShardAggregator:
        aggregator = copy.deepcopy(self._aggregator)
        if outputs is None:
            # An aggregator without parameters.
            return aggregator.eval()
        with single_thread(), torch.enable_grad():
            return aggregator.fit(
                outputs,
                data.y,
                self._sample(data),
                data.edge_index,
                data.shard,
                seed=rng.derive(self._seed, _AGGREGATOR),
                progress_bar=progress_bar,
            ).eval()


def _items(data: Data) -> frozenset[kernel.Item]:
    # Features that were removed are zeros: items that are there for all.
    ends = data.n_id[data.edge_index]
    return kernel.items_of(
        data.n_id.tolist(), zip(*ends.tolist(), strict=True)
    )
