"""Construction of the states of a sharded unlearner.

Training nodes are divided, a model is trained on every shard, all of them are
run on the present graph, and the aggregator learns from that. A removal does
the same for the shards that it touches.
"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import as_ids, check_tensor
from pyg_trust._checks.starts import same_start, tensors_of
from pyg_trust.distributed import from_first
from pyg_trust.files.seals import Seals, content
from pyg_trust.transforms.shards import Shards, training_nodes
from pyg_trust.unlearning.aggregate import (
    AGGREGATORS,
    ShardAggregator,
    make_aggregator,
)
from pyg_trust.unlearning.partition import (
    PARTITIONS,
    check_partition,
    hash_partition,
    partition_from_lists,
    shard_sizes,
)
from pyg_trust.unlearning.reports import VerifyReport
from pyg_trust.unlearning.shards.graph import (
    canonical,
    induced,
    select_rows,
    slice_numbers,
)
from pyg_trust.unlearning.shards.models import (
    Factory,
    Recipe,
    Shard,
    Shortcuts,
    Weights,
    build,
    check_model,
    check_start,
    equal_tensors,
    evaluate,
    evaluate_all,
    find_shortcuts,
    single_thread,
    train,
)
from pyg_trust.unlearning.shards.state import (
    AGGREGATOR_NODES,
    Checkpoint,
    State,
    described,
    hash_of_shards,
)
from pyg_trust.verify import shards as kernel

T = TypeVar('T')
# Parts of the seed.
_SHARD, _PARTITION, _AGGREGATOR, _SAMPLE, SLICE, _LATER = range(6)
# A part of the seed of a shard, beside those of its training.
_STAGE = 3


@dataclass
class Builder:
    """Makes states of an unlearner: functions of settings, data and a seed."""

    factory: Factory
    num_shards: int
    recipe: Recipe
    #: Copied and trained for each state.
    aggregator: ShardAggregator
    start_is_public: bool
    over_ranks: bool
    #: Chosen by the factory alone, which does not depend on data.
    ways: Shortcuts | None = None

    def from_first(self, work: Callable[[], T]) -> T:
        """Run work in the first process, and send the result to the others."""
        return from_first(work) if self.over_ranks else work()

    # The partition ##########################################################

    def method(self, given: Any, seed: int) -> Any:
        """Return the transform of a method, and other partitions as given."""
        if not isinstance(given, str):
            return given
        seed = rng.derive(seed, _PARTITION)
        return Shards(self.num_shards, given, seed=seed)

    def is_exact(self, given: Any, seed: int) -> bool:
        """Return whether a node's shard depends on its id alone."""
        method = self.method(given, seed)
        return isinstance(method, Shards) and method.exact

    def divide(self, data: Data, given: Any, seed: int) -> Tensor:
        """Return the shard of every node, -1 outside of training."""
        partition = self.method(given, seed)
        index = training_nodes(data)
        if isinstance(partition, Shards) and not partition.exact:
            seen = copy.copy(data)
            seen.x = data.x.to_dense()
            return partition(seen).shard
        if isinstance(partition, Shards):
            # By hashes of ids: this stays possible after any removal.
            shard = self.hashed(data.n_id[index], partition.seed)
        else:
            shard = partition
            if not isinstance(shard, Tensor):
                shard = partition_from_lists(shard, data.n_id[index])
            check_partition(shard, self.num_shards, index.numel())
        everyone = torch.full((int(data.num_nodes or 0),), -1)
        return everyone.index_copy(0, index, shard)

    def hashed(self, n_id: Tensor, key: int) -> Tensor:
        """Return shards by a keyed hash of ids alone."""
        return hash_partition(
            n_id, self.num_shards, seed=key, allow_empty=True
        )

    def homes(
        self, n_id: Tensor, state: State, shard: Any
    ) -> tuple[Tensor, bool]:
        """Assign new training nodes to shards, by id or as the user states.

        Neighbours do not decide, because the shard would then reveal them.
        Also returns whether the hash differs from that of the partition.
        """
        partition = self.method(state.partition, state.seed)
        if isinstance(partition, Shards) and partition.exact:
            return self.hashed(n_id, partition.seed), False
        if isinstance(partition, Shards) or shard == 'hash':
            return self.hashed(n_id, rng.derive(state.seed, _LATER)), True
        missing = [v for v in n_id.tolist() if v not in (shard or {})]
        if missing:
            raise ValueError(
                "'shard' needs to name the shard of every new training node, "
                "or to be 'hash', as the partition is a given one (node "
                f'{missing[0]} has none)'
            )
        return torch.tensor([shard[v] for v in n_id.tolist()]), False

    # Costs ##################################################################

    def sizes(self, data: Data) -> Tensor:
        """Count the training nodes of every shard."""
        return shard_sizes(data.shard, self.num_shards)

    def node_epochs(
        self, state: State, first: dict[int, int] | None = None
    ) -> int:
        """Count nodes times epochs from the given stages on, or of all."""
        data, slices = state.data, self.recipe.slices
        if first is None:
            first = dict.fromkeys(range(self.num_shards), 0)
        number = slice_numbers(
            data.n_id, slices, rng.derive(state.seed, SLICE)
        )
        epochs = [each for _, each in slices] or [self.recipe.epochs]
        return sum(
            int((number[data.shard == shard] <= r).sum()) * epochs[r]
            for shard, stage in first.items()
            for r in range(stage, len(epochs))
        )

    def estimate(
        self, state: State, first: dict[int, int]
    ) -> tuple[dict[str, float], float]:
        """Estimate the seconds of a change by part, and its share of a fit.

        The parts took so long in the last change, and the training so long
        for each node and epoch.
        """
        work, most = self.node_epochs(state, first), self.node_epochs(state)
        if not state.seconds:
            return {}, work / max(1, most)
        seconds = {**state.seconds, 'shards': state.pace * work}
        # Those of a fit alone.
        seconds.pop('checks', None)
        total = sum(seconds.values())
        return seconds, total / (total + state.pace * (most - work))

    def costs(self, state: State, first: dict[int, int]) -> dict[str, Any]:
        """Return what a plan and the report of a removal count."""
        return {
            'shards': tuple(first),
            'nodes': int(self.sizes(state.data)[[*first]].sum()),
            'node_epochs': self.node_epochs(state, first),
            'aggregator_nodes': self.sample(state).numel(),
            'stages': first,
        }

    # Training ###############################################################

    def parts(
        self, state: State, shards: Iterable[int]
    ) -> dict[int, list[Data]]:
        """Return, by shard, the subgraphs that its stages are trained on."""
        data, slices, found = state.data, self.recipe.slices, {}
        key = rng.derive(state.seed, SLICE)
        for shard in shards:
            whole = induced(data, data.shard == shard)
            number = slice_numbers(whole.n_id, slices, key)
            earlier = range(len(slices) - 1)
            found[shard] = [
                *(induced(whole, number <= r) for r in earlier),
                whole,
            ]
        return found

    def _job(
        self,
        state: State,
        shard: int,
        seen: list[Data],
        kept: Sequence[Weights] = (),
    ) -> Shard:
        # A shard with the stages that are left to train.
        part, seed = seen[-1], rng.derive(state.seed, _SHARD, shard)
        if 'persons' in state.data:
            typed = state.data.persons
            owned = typed.within(part.n_id)
            return Shard(seed, owned, part.y, target=typed.person)
        whole = Shard(seed, part, part.y)
        stages = tuple(
            (Shard(rng.derive(seed, _STAGE, r), seen[r], seen[r].y), epochs)
            for r, (_, epochs) in enumerate(self.recipe.slices)
        )
        start = kept[-1] if kept else None
        return whole._replace(stages=stages[len(kept) :], start=start)

    def _find_ways(self, shard: Shard) -> Shortcuts:
        if self.ways is None:
            self.ways = find_shortcuts(self.factory, shard, self.recipe)
        return self.ways

    def trained(
        self,
        state: State,
        parts: dict[int, list[Data]],
        first: dict[int, int],
        *,
        done: dict[int, list[Weights]] | None = None,
        over_ranks: bool = False,
    ) -> dict[int, Checkpoint]:
        """Train shards from their first stages on, but for those done."""
        states = done or {}
        kept = {
            shard: state.checkpoints[shard].stages[:stage]
            for shard, stage in first.items()
        }
        todo = [s for s in first if parts[s][-1].num_nodes and s not in states]
        jobs = [self._job(state, s, parts[s], kept[s]) for s in todo]
        ways = self._find_ways(jobs[0]) if jobs else Shortcuts()
        made = train(
            self.factory, jobs, self.recipe, ways, over_ranks=over_ranks
        )
        states = {**states, **dict(zip(todo, made, strict=True))}
        found = {}
        for shard in first:
            *earlier, last = states.get(shard, [{}])
            before = kept[shard] if parts[shard][-1].num_nodes else ()
            n_id = parts[shard][-1].n_id
            found[shard] = Checkpoint(n_id, last, (*before, *earlier))
        return found

    def fresh(self, state: State, given: Any, action: str) -> State:
        """Return the state with everything from scratch, on its graph."""
        started = time.perf_counter()
        data = copy.copy(state.data)
        # Given shards are in the order of the rows.
        if not isinstance(given, Tensor):
            data = canonical(data)
        data.shard = self.from_first(
            lambda: self.divide(data, given, state.seed)
        )
        data = canonical(data)
        if 'by_hash' in data:
            del data.by_hash
        state = state._replace(
            partition=given,
            data=data,
            checkpoints=(Checkpoint(data.n_id, {}),) * self.num_shards,
            fresh=True,
            seals=Seals(),
        )
        sizes = self.sizes(data)
        # A shard of one node may be too small to train.
        most = int(sizes.max())
        smallest = int(sizes.where(sizes >= min(2, most), most + 1).argmin())
        parts = self.parts(state, range(self.num_shards))
        probe = self._job(state, smallest, parts[smallest])
        if not self.start_is_public:
            check_start(self.factory, probe)
        made = evaluate(build(self.factory, probe), probe, Shortcuts())
        if made.size(1) != state.num_classes:
            raise ValueError(
                "'model_factory' needs to make models with outputs of the "
                f'shape [num_nodes, {state.num_classes}], one per class (got '
                f'{list(made.shape)})'
            )
        self.ways = None
        ways = self._find_ways(probe)
        stages = check_model(self.factory, probe, self.recipe, ways)
        done = {} if self.over_ranks else {smallest: stages}
        first = dict.fromkeys(range(self.num_shards), 0)
        checks = time.perf_counter() - started
        new = self.updated(state, first, action, parts=parts, done=done)
        return new._replace(seconds={'checks': checks, **new.seconds})

    def updated(
        self,
        state: State,
        first: dict[int, int],
        action: str,
        *,
        request: dict[str, Any] | None = None,
        reference: str = '',
        parts: dict[int, list[Data]] | None = None,
        done: dict[int, list[Weights]] | None = None,
    ) -> State:
        """Return the state in which shards are trained on its new graph."""
        last, seconds = time.perf_counter(), dict[str, float]()

        def lap(part: str) -> None:
            nonlocal last
            before, last = last, time.perf_counter()
            seconds[part] = last - before

        seen = self.parts(state, first) if parts is None else parts
        done, ranks = done or {}, self.over_ranks
        checkpoints = self.trained(
            state, seen, first, done=done, over_ranks=ranks
        )
        lap('shards')
        todo = {shard: r for shard, r in first.items() if shard not in done}
        work = self.node_epochs(state, todo)
        # New salts for all that changed, so that guesses of the old data
        # can't be tested.
        contents = self.contents(state, seen)
        state = state._replace(
            checkpoints=tuple(
                checkpoints.get(shard, made)
                for shard, made in enumerate(state.checkpoints)
            ),
            seals=self.from_first(lambda: state.seals.replaced(contents)),
            fresh=state.fresh and parts is not None,
            ledger=state.ledger.copy(),
            pace=seconds['shards'] / work if work else state.pace,
        )
        lap('handling')
        outputs = self.outputs(state, over_ranks=ranks)
        lap('inference')
        aggregator = self.from_first(lambda: self.aggregate(state, outputs))
        lap('aggregator')
        state = state._replace(
            outputs=outputs, aggregator=aggregator, seconds=seconds
        )
        state.ledger.record(action, 0.0, request, state.sealed, reference)
        return state

    def outputs(
        self,
        state: State,
        data: Data | None = None,
        *,
        over_ranks: bool = False,
    ) -> Tensor:
        """Run every model on a graph: ``[num_shards, num_nodes, C]``."""
        data, target = state.data if data is None else data, None
        y = torch.zeros(int(data.num_nodes or 0), dtype=torch.int64)
        if 'persons' in data:
            target, data = data.persons.person, data.persons.whole()
        shard = Shard(0, data, y, target)
        return evaluate_all(
            self.factory,
            shard,
            [made.weights for made in state.checkpoints],
            state.num_classes,
            self._find_ways(shard),
            over_ranks=over_ranks,
        )

    def sample(self, state: State) -> Tensor:
        """Return the rows that the aggregator learns from.

        They are chosen by hashes of ids: a removal does not change the other
        choices.
        """
        data = state.data
        index = (data.shard >= 0).nonzero().view(-1)
        key = rng.derive(state.seed, _SAMPLE)
        order = rng.derive_each(key, data.n_id[index]).argsort(stable=True)
        return index[order[:AGGREGATOR_NODES]].sort().values

    def aggregate(self, state: State, outputs: Tensor) -> ShardAggregator:
        """Train an aggregator on outputs."""
        data, aggregator = state.data, copy.deepcopy(self.aggregator)
        with single_thread(), torch.enable_grad():
            return aggregator.fit(
                outputs,
                data.y,
                self.sample(state),
                data.edge_index,
                data.shard,
                seed=rng.derive(state.seed, _AGGREGATOR),
            ).eval()

    def contents(
        self, state: State, parts: dict[int, list[Data]]
    ) -> dict[int, str]:
        """Hash what is sealed: the data of shards, and the graph around them.

        With the settings of the training.
        """
        data, recipe = state.data, repr(self.recipe.plain())
        typed, found = data.get('persons'), {}
        for shard, seen in parts.items():
            part = seen[-1]
            own = [] if typed is None else [typed.digest_of(part.n_id)]
            found[shard] = content(part, recipe, state.seed, shard, *own)
        # The features of the shards are covered already.
        rest = copy.copy(data)
        rest.x = select_rows(data.x, (data.shard < 0).nonzero().view(-1))
        own = [] if typed is None else [typed.digest_of(None)]
        found[self.num_shards] = content(rest, *own)
        return found


def checked_partition(given: Any, num_shards: int, by_person: bool) -> Any:
    """Check the argument 'partition'; copy it, so that nobody changes it."""
    if by_person and not (
        given == 'hash'
        if isinstance(given, str)
        else isinstance(given, Shards) and given.exact
    ):
        raise ValueError(
            "'partition' needs to be 'hash' with a 'unit': all others look "
            f'at one kind of nodes (got {described(given)})'
        )
    if isinstance(given, str):
        PARTITIONS.find('partition', given)
        Shards(num_shards, given, seed=0)
        return given
    if isinstance(given, Tensor):
        return given.clone()
    if isinstance(given, Shards):
        given = copy.copy(given)
        count = given.num_shards
    elif isinstance(given, Sequence):
        given = [as_ids('partition', ids) for ids in given]
        for ids in given:
            check_tensor('partition', ids, torch.int64, ('num_ids',))
        given, count = [ids.clone() for ids in given], len(given)
    else:
        raise TypeError(
            "'partition' needs to be the name of a method, a Shards, a "
            f'tensor or a list of tensors (got {type(given).__name__})'
        )
    if count != num_shards:
        raise ValueError(
            f"'partition' needs to make {num_shards} shards (got {count})"
        )
    return given


def checked_aggregator(
    given: str | ShardAggregator, start_is_public: bool
) -> ShardAggregator:
    """Make or copy an aggregator; refuse one that has learnt something."""
    if not isinstance(given, ShardAggregator):
        AGGREGATORS.find('aggregator', given)
    made = copy.deepcopy(make_aggregator(given))
    held = tensors_of(made)
    found = None if start_is_public else same_start(held, held)
    if found is not None:
        raise ValueError(
            f"'aggregator' has {found!r} already, which may come from data "
            'that are removed: pass one that was not fitted, or state that it '
            'is public, ShardedUnlearner(..., start_is_public=True)'
        )
    return made


# Verification ################################################################


def verified(
    builder: Builder,
    state: State,
    shards: Sequence[int],
    files: list[str],
) -> VerifyReport:
    """Train shards and the aggregator from scratch, and compare."""
    parts = builder.parts(state, range(builder.num_shards))
    fresh = builder.trained(state, parts, dict.fromkeys(shards, 0))
    differing = tuple(
        shard
        for shard, made in fresh.items()
        if not _equal(made, state.checkpoints[shard])
    )
    keys = state.seals.fits(builder.contents(state, parts)) and all(
        torch.equal(made.n_id, parts[shard][-1].n_id)
        for shard, made in enumerate(state.checkpoints)
    )
    outputs = builder.outputs(state)
    aggregator = builder.aggregate(state, outputs)
    leftovers = [
        *_leftovers(state),
        *files,
        *_strangers(builder, state, parts),
        *['the state is not that of the ledger'] * (not state.is_sealed),
    ]
    same_outputs = torch.equal(outputs, state.outputs)
    same_aggregator = equal_tensors(
        aggregator.state_dict(), state.aggregator.state_dict()
    )
    return VerifyReport(
        ok=keys
        and same_outputs
        and same_aggregator
        and not (differing or leftovers),
        shards=tuple(shards),
        differing=differing,
        keys_match=keys,
        outputs_equal=same_outputs,
        aggregator_equal=same_aggregator,
        leftovers=tuple(leftovers),
        weights_sha256=hash_of_shards(state),
    )


def _equal(one: Checkpoint, two: Checkpoint) -> bool:
    both = (*one.stages, one.weights), (*two.stages, two.weights)
    return all(equal_tensors(a, b) for a, b in zip(*both, strict=True))


def _leftovers(state: State) -> list[str]:
    # Items that the ledger lists as removed, and that are there.
    data, kinds = state.data, ('nodes', 'labels', 'features', 'directed_edges')
    nodes, labels, bare, arcs = (
        sorted(state.ledger.removed.of(kind)) for kind in kinds
    )
    rows = {v: row for row, v in enumerate(data.n_id.tolist())}
    trained = {
        v: shard
        for shard, made in enumerate(state.checkpoints)
        for v in made.n_id.tolist()
    }
    found = [f'node {v}' for v in nodes if v in rows]
    found += [
        f'node {v} in the checkpoint of shard {trained[v]}'
        for v in nodes
        if v in trained
    ]
    found += [f'the label of node {v}' for v in labels if v in trained]
    x = data.x.to_dense() if bare else data.x
    found += [
        f'features of node {v}'
        for v in bare
        if v in rows and bool(x[rows[v]].any())
    ]
    if arcs:
        edges = {*map(tuple, data.n_id[data.edge_index].t().tolist())}
        found += [f'edge {u} -> {v}' for u, v in arcs if (u, v) in edges]
    if 'persons' in data:
        held = data.persons
        there = {*held.graph[held.person].n_id.tolist()}
        found += [f'node {v} in the typed graph' for v in nodes if v in there]
    return found


def _strangers(
    builder: Builder, state: State, parts: dict[int, list[Data]]
) -> list[str]:
    # Items that a stage was trained on and should not have been, or lacks, by
    # the rules of pyg_trust.verify.shards.
    data, given = state.data, builder.method(state.partition, state.seed)
    training = data.shard >= 0
    ids = data.n_id[training].tolist()
    shares = [share for share, _ in builder.recipe.slices] or [1.0]
    exact = isinstance(given, Shards) and given.exact
    division = kernel.divided(
        ids,
        builder.num_shards,
        given.seed if exact else 0,
        shares,
        rng.derive(state.seed, SLICE),
    )
    if not exact:
        shard = data.shard[training].tolist()
        division = division._replace(shard=dict(zip(ids, shard, strict=True)))
    trained = {
        (shard, stage): _items(each)
        for shard, seen in parts.items()
        for stage, each in enumerate(seen)
    }
    found = kernel.strangers(trained, _items(data), division)
    return [
        f'stage {stage} of shard {shard}, which sees {len(items)} items that '
        'it should not, or does not see them'
        for (shard, stage), items in found.items()
    ]


def _items(data: Data) -> Iterable[kernel.Item]:
    # Features that were removed are zeros: items that are there for all.
    ends = data.n_id[data.edge_index]
    return kernel.items_of(
        data.n_id.tolist(), zip(*ends.tolist(), strict=True)
    )
