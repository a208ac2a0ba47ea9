"""Construction of the states of a sharded unlearner.

Training nodes are divided, a model is trained on every shard, all of them are
run on the present graph, and the aggregator learns from that. A removal does
the same for the shards that it touches.
"""

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust.files.seals import Seals
from pyg_trust.ledger import RemovalLedger
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
from pyg_trust.unlearning.shards.checks import (
    check_model,
    check_start,
    find_shortcuts,
)
from pyg_trust.unlearning.shards.graph import (
    canonical,
    induced,
    is_canonical,
    name_tensor,
    without_features,
)
from pyg_trust.unlearning.shards.models import (
    Shard,
    Shortcuts,
    Weights,
    build,
    evaluate,
    evaluate_all,
    single_thread,
    train,
)
from pyg_trust.unlearning.shards.reports import ASSUMPTIONS
from pyg_trust.unlearning.shards.slices import slice_numbers
from pyg_trust.unlearning.shards.state import (
    Checkpoint,
    State,
    Stateful,
    described,
    plain_settings,
)
from pyg_trust.verify import shards as kernel

# Parts of the seed.
_SHARD, _PARTITION, _AGGREGATOR, _SAMPLE, _SLICE, _LATER = range(6)
# A part of the seed of a shard, beside those of its training.
_STAGE = 3
# The share of training nodes by a later hash from which to start over.
_MANY = 0.25


class Building(Stateful):
    """Mixin of the sharded unlearner: build its states."""

    model_factory: Callable[[], Module]
    num_classes: int | None
    num_workers: int | None
    trainer: str
    start_is_public: bool
    _ways: Shortcuts | None

    # The partition ##########################################################

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
    ) -> Tensor:
        # The shard of every node, -1 outside of training.
        partition = self._shards(given, progress_bar)
        index = training_nodes(data)
        if isinstance(partition, Shards) and not partition.exact:
            light = without_features(data)
            if partition.sees_features:
                light.x = data.x.to_dense()
            return partition(light).shard
        if isinstance(partition, Shards):
            # By hashes of ids: this stays possible after any removal.
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
        everyone = torch.full((int(data.num_nodes),), -1)
        return everyone.index_copy(0, index, shard)

    def _homes(
        self, names: Tensor, given: Any, shard: Any
    ) -> tuple[Tensor, bool]:
        # Assign new training nodes by their ids alone: a shard chosen by
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
        return torch.tensor([shard[v] for v in names.tolist()]), False

    # What reports say #######################################################

    def _assumed(self, data: Data) -> tuple[str, ...]:
        owned = data.persons.assumptions() if 'persons' in data else ()
        start = (
            'what the models start from is public, as start_is_public=True '
            'states: nothing in the weights and buffers that the factory '
            'makes comes from people of these data',
        )
        own = start * self.start_is_public
        return (*ASSUMPTIONS, *own, *owned, *unchecked(self._aggregator))

    def _by_hash(self, data: Data) -> int:
        late = data.get('by_hash')
        return 0 if late is None else int(late.sum())

    def _exactness(self, state: State) -> tuple[bool, str]:
        exact, text = self._of_partition(state)
        if self.start_is_public:
            text += (
                '; models start from weights or buffers that are handed in '
                'and stated to be public, and are as exact as that is true'
            )
        return exact, text

    def _of_partition(self, state: State) -> tuple[bool, str]:
        partition = self._shards(state.partition)
        if isinstance(partition, Shards) and partition.exact:
            order = (
                'present data, in any order of nodes and edges'
                if is_canonical(state.data) and 'persons' not in state.data
                else 'remaining data, in the same order of nodes and edges'
            )
            return True, (
                'exact: a node goes to the shard that a keyed hash of its '
                'name gives, so that everything equals a fresh start with '
                f'the same seed on the {order}'
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
            start_is_public=self.start_is_public,
            **self.recipe.plain(),
        )

    def _sizes(self, data: Data) -> Tensor:
        return shard_sizes(data.shard, self.num_shards)

    def _empty(self, data: Data) -> tuple[int, ...]:
        return tuple((self._sizes(data) == 0).nonzero().view(-1).tolist())

    def _node_epochs(self, data: Data, first: dict[int, int]) -> int:
        # Nodes times epochs of the stages from these on.
        slices = self.recipe.slices
        if not slices:
            return int(self._sizes(data)[[*first]].sum()) * self.recipe.epochs
        number = slice_numbers(data.n_id, slices, self._slice_seed)
        return sum(
            int((number[data.shard == shard] <= r).sum()) * slices[r][1]
            for shard, stage in first.items()
            for r in range(stage, len(slices))
        )

    def _estimate(
        self, state: State, data: Data, first: dict[int, int]
    ) -> tuple[dict[str, float], float]:
        # Seconds by what shards took last, those that are not known by the
        # mean of the others; and their share in those of all shards.
        every = dict.fromkeys(range(self.num_shards), 0)
        known = state.shard_seconds
        if not known or not state.seconds:
            most = max(1, self._node_epochs(data, every))
            return {}, self._node_epochs(data, first) / most
        mean = sum(known.values()) / len(known)
        times = {shard: known.get(shard, mean) for shard in every}
        training = sum(
            times[shard] * self._node_epochs(data, {shard: stage})
            / max(1, self._node_epochs(data, {shard: 0}))
            for shard, stage in first.items()
        )  # fmt: skip
        seconds = {**state.seconds, 'shards': training}
        # Those of a fit alone.
        seconds.pop('checks', None)
        rest = sum(seconds.values()) - training
        return seconds, (rest + training) / (rest + sum(times.values()))

    # Training ###############################################################

    def _shard_seed(self, shard: int) -> int:
        return rng.derive(self._seed, _SHARD, shard)

    @property
    def _slice_seed(self) -> int:
        return rng.derive(self._seed, _SLICE)

    def _part(self, data: Data, shard: int) -> tuple[Data, list[Data]]:
        # A shard, and what each of its stages sees.
        part = induced(data, data.shard == shard)
        slices = self.recipe.slices
        if not slices:
            return part, [part]
        number = slice_numbers(part.n_id, slices, self._slice_seed)
        last = range(len(slices))
        return part, [induced(part, number <= r) for r in last]

    def _job(
        self, data: Data, shard: int, kept: Sequence[Weights] = ()
    ) -> Shard:
        # A shard with the stages that are left to train.
        part, seen = self._part(data, shard)
        seed = self._shard_seed(shard)
        if 'persons' in data:
            typed = data.persons
            return Shard(
                seed, typed.within(part.n_id), part.y, target=typed.person
            )
        whole = Shard(seed, part, part.y)
        if not self.recipe.slices:
            return whole
        stages = [
            (Shard(rng.derive(seed, _STAGE, r), each, each.y), epochs)
            for r, (each, (_, epochs)) in enumerate(
                zip(seen, self.recipe.slices, strict=True)
            )
        ]
        start = kept[-1] if kept else None
        return whole._replace(stages=tuple(stages[len(kept) :]), start=start)

    def _find_ways(self, shard: Shard) -> Shortcuts:
        # Chosen by the factory alone, which does not depend on data.
        if self._ways is None:
            self._ways = find_shortcuts(self.model_factory, shard, self.recipe)
        return self._ways

    def _train(
        self,
        data: Data,
        first: dict[int, int],
        kept: dict[int, tuple[Weights, ...]],
        trainer: str,
        progress_bar: bool | None,
        *,
        over_ranks: bool = False,
        done: dict[int, list[Weights]] | None = None,
    ) -> tuple[dict[int, Checkpoint], dict[int, float]]:
        # The shards from their first stages on, and the seconds of each.
        done, sizes = done or {}, self._sizes(data)
        todo = [s for s in first if int(sizes[s]) and s not in done]
        jobs = [self._job(data, s, kept.get(s, ())) for s in todo]
        made = train(
            self.model_factory,
            jobs,
            self.recipe,
            self._find_ways(jobs[0]) if jobs else Shortcuts(),
            trainer=trainer,
            num_workers=self.num_workers,
            over_ranks=over_ranks,
            progress_bar=progress_bar,
        )
        states = dict(zip(todo, (found for found, _ in made), strict=True))
        found = {}
        for shard in first:
            *earlier, last = states.get(shard, done.get(shard, [{}]))
            before = kept.get(shard, ()) if int(sizes[shard]) else ()
            n_id = data.n_id[data.shard == shard]
            found[shard] = Checkpoint(n_id, last, (*before, *earlier))
        seconds = dict(zip(todo, (taken for _, taken in made), strict=True))
        return found, seconds

    def _fresh(
        self,
        data: Data,
        rows: Tensor,
        num_classes: int,
        given: Any,
        ledger: RemovalLedger,
        action: str,
        progress_bar: bool | None,
    ) -> State:
        # Everything from scratch.
        started = time.perf_counter()
        data = copy.copy(data)
        # Given shards are in the order of the rows.
        if not isinstance(given, Tensor):
            data = canonical(data)
        data.shard = self._from_first(
            lambda: self._divide(data, given, progress_bar)
        )
        data = copy.copy(canonical(data))
        if 'by_hash' in data:
            del data.by_hash
        sizes = self._sizes(data)
        # A shard of one node may be too small to train.
        most = int(sizes.max())
        smallest = int(sizes.where(sizes >= min(2, most), most + 1).argmin())
        probe = self._job(data, smallest)
        if not self.start_is_public:
            check_start(self.model_factory, probe)
        made = evaluate(build(self.model_factory, probe), probe, Shortcuts())
        if made.size(1) != num_classes:
            raise ValueError(
                "'model_factory' needs to make models with outputs of the "
                f'shape [num_nodes, {num_classes}], one per class (got '
                f'{list(made.shape)})'
            )
        self._ways = None
        ways = self._find_ways(probe)
        stages = check_model(self.model_factory, probe, self.recipe, ways)
        done = {} if self.over_ranks else {smallest: stages}
        state = State(
            seed=self._seed,
            seeded=self._first_seeded
            if self._state is None
            else self._state.seeded,
            partition=given,
            data=data,
            rows=rows,
            num_classes=num_classes,
            checkpoints=(Checkpoint(data.n_id, {}),) * self.num_shards,
            outputs=data.x,
            aggregator=self._aggregator,
            ledger=ledger,
            fresh=True,
            seals=Seals(),
        )
        first = dict.fromkeys(range(self.num_shards), 0)
        return self._build(
            state, data, first, action, progress_bar, done=done,
            started=started,
        )  # fmt: skip

    def _build(
        self,
        state: State,
        data: Data,
        first: dict[int, int],
        action: str,
        progress_bar: bool | None,
        *,
        request: dict[str, Any] | None = None,
        reference: str = '',
        done: dict[int, list[Weights]] | None = None,
        started: float,
    ) -> State:
        # The state in which these shards are trained on the graph, from the
        # stages that are given.
        checked = time.perf_counter()
        kept = {
            shard: state.checkpoints[shard].stages[:stage]
            for shard, stage in first.items()
        }
        clock = [time.perf_counter()]
        trained, taken = self._train(
            *(data, first, kept, self.trainer, progress_bar),
            over_ranks=self.over_ranks,
            done=done,
        )
        clock.append(time.perf_counter())
        # New salts for all that changed, so that guesses of the old data
        # can't be tested.
        contents = self._contents(data, first, self._seed)
        state = state._replace(
            data=data,
            checkpoints=tuple(
                trained.get(shard, made)
                for shard, made in enumerate(state.checkpoints)
            ),
            seals=self._from_first(lambda: state.seals.replaced(contents)),
            fresh=state.fresh and done is not None,
            ledger=state.ledger.copy(),
        )
        clock.append(time.perf_counter())
        outputs = self._outputs(
            state, over_ranks=self.over_ranks, progress_bar=progress_bar
        )
        clock.append(time.perf_counter())
        aggregator = self._from_first(
            lambda: self._aggregate(data, outputs, progress_bar)
        )
        clock.append(time.perf_counter())
        names = ('shards', 'handling', 'inference', 'aggregator')
        spent = [b - a for a, b in itertools.pairwise(clock)]
        seconds = dict(zip(names, spent, strict=True))
        if done is not None:
            seconds['checks'] = checked - started
            started = checked
        seconds['handling'] += clock[0] - started
        state = state._replace(
            outputs=outputs,
            aggregator=aggregator,
            seconds=seconds,
            shard_seconds={**state.shard_seconds, **taken},
        )
        state.ledger.record(action, 0.0, request, state.sealed, reference)
        return state

    # Outputs ################################################################

    def _outputs(
        self,
        state: State,
        data: Data | None = None,
        *,
        over_ranks: bool = False,
        progress_bar: bool | None = None,
    ) -> Tensor:
        # Of every model for every node: [num_shards, num_nodes, C].
        own = data is None
        data = state.data if data is None else data
        y, target = data.get('y'), None
        if y is None or not own:
            y = torch.zeros(int(data.num_nodes), dtype=torch.int64)
        if 'persons' in data:
            target, data = data.persons.person, data.persons.whole()
        shard = Shard(0, data, y, target)
        return evaluate_all(
            self.model_factory,
            shard,
            [made.weights for made in state.checkpoints],
            state.num_classes,
            self._find_ways(shard),
            over_ranks=over_ranks,
            progress_bar=progress_bar,
        )

    def _sample(self, data: Data) -> Tensor:
        # Choose by hashes of ids: a removal does not change the other
        # choices.
        index = (data.shard >= 0).nonzero().view(-1)
        order = rng.derive_each(
            rng.derive(self._seed, _SAMPLE), data.n_id[index]
        )
        chosen = order.argsort(stable=True)[: self.aggregator_nodes]
        return index[chosen].sort().values

    def _aggregate(
        self, data: Data, outputs: Tensor, progress_bar: bool | None
    ) -> ShardAggregator:
        aggregator = copy.deepcopy(self._aggregator)
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

    # Checks #################################################################

    def _strangers(self, state: State) -> list[str]:
        # Inputs of a stage, besides those that the kernel lists.
        data, given = state.data, self._shards(state.partition)
        training = data.shard >= 0
        names = data.n_id[training].tolist()
        shares = [share for share, _ in self.recipe.slices] or [1.0]
        exact = isinstance(given, Shards) and given.exact
        key = given.seed if exact else 0
        division = kernel.divided(
            names, self.num_shards, key, shares, self._slice_seed
        )
        if not exact:
            shard = data.shard[training].tolist()
            division = division._replace(
                shard=dict(zip(names, shard, strict=True))
            )
        trained = {
            (shard, stage): _items(seen)
            for shard in range(self.num_shards)
            for stage, seen in enumerate(self._part(data, shard)[1])
        }
        found = kernel.strangers(trained, _items(data), division)
        return [
            f'stage {stage} of shard {shard}, which sees {len(items)} items '
            'that it should not, or does not see them'
            for (shard, stage), items in found.items()
        ]


def _items(data: Data) -> Iterable[kernel.Item]:
    # Features that were removed are zeros: items that are there for all.
    ends = data.n_id[data.edge_index]
    return kernel.items_of(
        data.n_id.tolist(), zip(*ends.tolist(), strict=True)
    )
