"""State of a sharded unlearner, in memory and in files."""

import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, check_integer
from pyg_trust._checks.states import (
    check_settings,
    check_state,
    kind_of,
    reading,
)
from pyg_trust.distributed import check_same, from_first
from pyg_trust.files.commit import Lineage, ObjectLock, editing, synchronized
from pyg_trust.files.seals import Seals, content, sealed
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import ShardAggregator
from pyg_trust.removal import Part
from pyg_trust.report import fingerprint_model
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.leftovers import named_leftovers, views
from pyg_trust.unlearning.shards.packing import (
    fits_partition,
    from_files,
    from_plain_data,
    in_force,
    kept_partition,
    plain_argument,
    plain_data,
    plain_settings,
    remembered,
    to_files,
)
from pyg_trust.unlearning.shards.products import select_rows
from pyg_trust.unlearning.shards.training import Recipe
from pyg_trust.unlearning.store import ShardStore

# The format of states sorted by name; earlier ones may not be sorted, and can
# be read.
FORMAT = 3


class Stage(NamedTuple):
    """Checkpoint of one of a shard's earlier stages, with its data's key."""

    key: str
    weights: dict[str, Tensor]


class Checkpoint(NamedTuple):
    """Trained model of a shard, with the key of its data."""

    key: str
    n_id: Tensor
    weights: dict[str, Tensor]
    stages: tuple[Stage, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Convert to plain values that can be saved."""
        found = self._asdict()
        found['stages'] = [stage._asdict() for stage in self.stages]
        return found

    @classmethod
    def of(cls, plain: dict[str, Any]) -> 'Checkpoint':
        """Invert :meth:`plain`."""
        stages = tuple(Stage(**stage) for stage in plain.get('stages', ()))
        return cls(**{**plain, 'stages': stages})


class Work(NamedTuple):
    """Training times measured by this unlearner; never saved.

    In no file: it tells which shards were trained again, and when.
    """

    # The seconds of each part of the last change; empty after a load.
    seconds: dict[str, float]
    trainer: str
    # The seconds of the last training of every stage of every shard.
    stage_seconds: tuple[tuple[float | None, ...], ...]

    def times(self) -> list[list[float]] | None:
        """Return the known times of every stage of every shard.

        Unknown times are the mean of the known ones of the stage; without
        any, the result is :obj:`None`.
        """
        means = []
        for column in zip(*self.stage_seconds, strict=True):
            known = [value for value in column if value is not None]
            if not known:
                return None
            means.append(sum(known) / len(known))
        return [
            [
                mean if value is None else value
                for value, mean in zip(row, means, strict=True)
            ]
            for row in self.stage_seconds
        ]


class State(NamedTuple):
    """Complete state of a sharded unlearner.

    It is replaced as a whole, by one assignment at the end of an operation
    that may fail, so that a failure changes nothing.
    """

    seed: int
    # Whether a user gave it.
    seeded: bool
    # The partition as given: an argument of Shards, or Shards.
    partition: Any
    data: Data
    num_classes: int
    checkpoints: tuple[Checkpoint, ...]
    # None until outputs are computed.
    outputs: Tensor | None
    aggregator: ShardAggregator
    ledger: RemovalLedger
    # Whether the partition has seen nothing that was removed since.
    fresh: bool
    work: Work
    # The seals of the shards, by number, and of the graph around them.
    seals: Seals
    lineage: Lineage = Lineage()

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        learnt = {
            'aggregator': self.aggregator.state_dict(),
            'shards': {
                str(shard): {
                    str(r): weights
                    for r, weights in enumerate(
                        [
                            *(stage.weights for stage in made.stages),
                            made.weights,
                        ]
                    )
                }
                for shard, made in enumerate(self.checkpoints)
            },
        }
        return sealed(
            self.seals.root,
            self.seeded,
            self.fresh,
            self.num_classes,
            fingerprint_model(learnt),
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger's last line records this state."""
        # Lines of version 0.1 stand for the data alone.
        last = self.ledger.last
        known = (self.sealed, self.seals.root)
        return last is not None and last.data in known


T = TypeVar('T')
_Self = TypeVar('_Self', bound='Stateful')


class Stateful:
    """Mixin of the sharded unlearner: keep, save and load its state."""

    num_shards: int
    trainer: str
    aggregator_nodes: int
    recipe: Recipe
    folder: Path | None
    keep_history: bool
    over_ranks: bool
    _on_request: bool
    _lock: ObjectLock
    _aggregator: ShardAggregator
    _state: State | None
    _given: Any
    _unit: PrivacyUnit | None
    _by_person: bool
    _first_seed: int
    _first_seeded: bool

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state, one checkpoint per shard.

        It contains the remaining data, their salts and the seed. Guard it
        like the data, and destroy older states after a removal: they hold
        what was removed.
        """
        # Copies: the caller can't change the state in force.
        return copy.deepcopy(self._packed(self._fitted))

    @editing
    def load_state_dict(
        self, state: dict[str, Any], *, progress_bar: bool | None = None
    ) -> None:
        """Load a saved state.

        Args:
            state (dict): the :meth:`state_dict` of an unlearner with the same
                arguments.
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: if the arguments differ, a checkpoint is not that of
                the data in the state, or the state's ledger does not continue
                the present one.
        """
        self._commit(self._unpacked(state, progress_bar), loaded=True)

    @synchronized
    def save(self, folder: str | Path | None = None) -> None:
        """Write the state to a folder atomically.

        Args:
            folder (str or Path, optional): the folder; by default that of the
                class, where every state is written anyway.

        Raises:
            StaleStateError: if the folder was changed since this unlearner
                read or wrote it.
            ValueError: if there is no folder, or it holds the state of
                another fit.
        """
        store = self._store(folder)
        parts, plain = to_files(self._packed(self._fitted))
        store.write(parts, plain, keep_history=self.keep_history)

    @editing
    def load(
        self: _Self,
        folder: str | Path | None = None,
        *,
        progress_bar: bool | None = None,
    ) -> _Self:
        """Load the state that :meth:`save` wrote to a folder.

        If it is the object's own folder, and no history is kept, files of
        other states are deleted: a process may have been killed before it
        could.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: if there is no state, a file is missing or was changed,
                or as :meth:`load_state_dict`.
        """
        store = self._store(folder)
        parts, manifest = store.read()
        new = self._unpacked(from_files(parts, manifest), progress_bar)
        if store.folder == self.folder:
            self._take(new)
            if not self.keep_history and os.access(store.folder, os.W_OK):
                store.purge()
        else:
            self._commit(new, loaded=True)
        return self

    @synchronized
    def purge(self, folder: str | Path | None = None) -> tuple[str, ...]:
        """Delete the checkpoints that contain removed items.

        Needed with ``keep_history=True`` only: otherwise every change does it.
        Deletes all files of the folder that are not part of the current state,
        unfinished ones too. File systems and disks may keep deleted content.

        Returns:
            tuple[str, ...]: the names of the files that were deleted.

        Raises:
            ValueError: if there is no folder, or the state in force there is
                not the present one.
        """
        store = self._store(folder)
        _, plain = to_files(self._packed(self._fitted))
        if not in_force(store, plain):
            raise ValueError(
                f"'folder' {store.folder} does not hold the present state: "
                'save it first'
            )
        return tuple(path.name for path in store.purge())

    # Private ################################################################

    @property
    def _fitted(self) -> State:
        if self._state is None:
            raise ValueError('the unlearner needs to be fitted first')
        return self._state

    @property
    def _unseen(self) -> Work:
        # Times are not saved.
        stages = max(1, len(self.recipe.slices))
        return Work({}, self.trainer, ((None,) * stages,) * self.num_shards)

    @property
    def _seed(self) -> int:
        return self._first_seed if self._state is None else self._state.seed

    @property
    def _seeded(self) -> bool:
        if self._state is None:
            return self._first_seeded
        return self._state.seeded

    def _contents(self, data: Data, shards: Iterable[int]) -> dict[int, str]:
        # The contents to be sealed of some shards and of the graph around
        # them: the training data of a model, and the settings of its training.
        recipe = json.dumps(self.recipe.plain())
        # The mask of removed features is sealed with the whole graph: models
        # are not trained on it.
        light = copy.copy(data)
        if 'x_removed' in light:
            del light.x_removed
        found, typed = {}, 'persons' in data
        for shard, part in self._parts(light, shards).items():
            own = [data.persons.print_of(part.typed)] if typed else []
            found[shard] = content(part, recipe, self._shard_seed(shard), *own)
            found |= self._stage_contents(shard, part)
        # The features of the shards are covered already.
        rest = copy.copy(data)
        rest.x = select_rows(data.x, (data.shard < 0).nonzero().view(-1))
        whole = data.persons.whole() if typed else None
        own = [data.persons.print_of(whole, public=True)] if typed else []
        found[self.num_shards] = content(rest, *own)
        return found

    def _sealed(
        self,
        state: State,
        data: Data,
        trained: dict[int, Checkpoint],
    ) -> tuple[Seals, tuple[Checkpoint, ...]]:
        # Draw new salts for all that changed, so that guesses of the old data
        # can't be tested; then write the checkpoints, each with the seal of
        # its data.
        seals = self._from_first(
            lambda: state.seals.replaced(self._contents(data, trained))
        )

        def sealed(shard: int) -> Checkpoint:
            stages = tuple(
                stage._replace(key=seals.digest(self._stage_item(shard, r)))
                for r, stage in enumerate(trained[shard].stages)
            )
            key = seals.digest(shard)
            return trained[shard]._replace(key=key, stages=stages)

        return seals, tuple(
            sealed(shard) if shard in trained else state.checkpoints[shard]
            for shard in range(self.num_shards)
        )

    def _stage_item(self, shard: int, stage: int) -> int:
        # The name of a stage's data among the seals. Those of shards, and of
        # the graph around them, come first.
        stages = len(self.recipe.slices) - 1
        return self.num_shards + 1 + shard * stages + stage

    def _stage_contents(self, shard: int, part: Data) -> dict[int, str]:
        recipe = json.dumps(self.recipe.plain())
        seed = self._shard_seed(shard)
        return {
            self._stage_item(shard, r): content(seen, recipe, seed, r)
            for r, seen in enumerate(self._seen(part)[:-1])
        }

    def _keys_match(self, seals: Seals, shard: int, made: Checkpoint) -> bool:
        return seals.digest(shard) == made.key and all(
            seals.digest(self._stage_item(shard, r)) == stage.key
            for r, stage in enumerate(made.stages)
        )

    def _config(self) -> dict[str, Any]:
        return {
            **self.recipe.plain(),
            'num_shards': self.num_shards,
            'aggregator': plain_settings(self._aggregator),
            'aggregator_nodes': self.aggregator_nodes,
        }

    def _packed(self, state: State) -> dict[str, Any]:
        self._check_untyped('be saved')
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'config': self._config(),
            'seed': state.seed,
            'seeded': state.seeded,
            'partition': kept_partition(
                state.partition, state.ledger.has_removals
            ),
            'num_classes': state.num_classes,
            'fresh': state.fresh,
            'lineage': list(state.lineage.names),
            'salts': state.seals.state_dict(),
            'data': plain_data(state.data),
            'checkpoints': {
                shard: made.plain()
                for shard, made in enumerate(state.checkpoints)
            },
            'aggregator': state.aggregator.state_dict(),
            'ledger': state.ledger.state_dict(),
        }

    def _unpacked(
        self, packed: dict[str, Any], progress_bar: bool | None
    ) -> State:
        with reading():
            return self._unpack(packed, progress_bar)

    def _check_untyped(self, what: str) -> None:
        if self._by_person:
            raise ValueError(
                f"an unlearner with a 'unit' can't {what}: fit it to the "
                "table of persons, 'unit.table(data)', without a unit"
            )

    def _unpack(
        self, packed: dict[str, Any], progress_bar: bool | None
    ) -> State:
        self._check_untyped('load a state')
        check_state(packed, ('config',), (1, 2, FORMAT), self)
        self._choose_products()
        if packed['config'].get('version') != self.recipe.version:
            raise ValueError(
                'the state is of another version of the trainer, whose bits '
                f'differ (got {packed["config"].get("version", "0.1.0")}, '
                f'need {self.recipe.version}): fit anew'
            )
        check_settings('config', packed['config'], self._config())
        if not fits_partition(packed['partition'], self._given) and (
            self._state is None
            or not fits_partition(packed['partition'], self._state.partition)
        ):
            raise ValueError(
                "the state's partition is another one (got "
                f'{packed["partition"]["name"]})'
            )
        present = self._state
        lineage = Lineage.of(
            packed, None if present is None else present.lineage
        )
        ledger = RemovalLedger(0.0)
        ledger.load_state_dict(packed['ledger'])
        data = from_plain_data(packed['data'])
        checkpoints = tuple(
            Checkpoint.of(packed['checkpoints'][shard])
            for shard in range(self.num_shards)
        )
        # A copy with the seed of the state.
        other = copy.copy(self)
        other._state, other._first_seed = (
            None,
            check_integer('seed', packed['seed'], 0),
        )
        contents = other._contents(data, range(self.num_shards))
        seals = Seals.of(packed['salts'], contents)
        for shard, made in enumerate(checkpoints):
            if not self._keys_match(seals, shard, made):
                raise ValueError(
                    f'the checkpoint of shard {shard} is not that of the '
                    "state's data"
                )
        try:
            num_classes = check_integer('num_classes', packed['num_classes'])
            outputs = None
            if not self._on_request:
                outputs = other._outputs(
                    data, checkpoints, num_classes, progress_bar
                )
            aggregator = copy.deepcopy(self._aggregator)
            aggregator.load_state_dict(packed['aggregator'])
        except RuntimeError as error:
            raise ValueError(
                "the state is not that of 'model_factory' and 'aggregator': "
                f'{error}'
            ) from None
        fresh, given = packed['fresh'], self._given
        check_instance('fresh', fresh, bool)
        check_instance('seeded', packed['seeded'], bool)
        if (
            not fits_partition(packed['partition'], given)
            and self._state is not None
        ):
            given = self._state.partition
        state = State(
            seed=other._first_seed,
            seeded=packed['seeded'],
            partition=given,
            data=data,
            num_classes=num_classes,
            checkpoints=checkpoints,
            outputs=outputs,
            aggregator=aggregator.eval(),
            ledger=ledger,
            fresh=fresh,
            work=self._unseen,
            seals=seals,
            lineage=lineage,
        )
        if not state.is_sealed:
            raise ValueError(
                'the data, models or account of the state do not match its '
                'ledger: they were changed'
            )
        return state

    def _store(self, folder: str | Path | None) -> ShardStore:
        if folder is not None:
            check_instance('folder', folder, str, Path)
        folder = self.folder if folder is None else Path(folder)
        if folder is None:
            raise ValueError(
                "'folder' needs to be given, here or to the class"
            )
        return ShardStore(folder)

    def _commit(
        self, state: State, *, loaded: bool = False, anew: bool = False
    ) -> None:
        # The one place where a new state takes the place of the old: on the
        # disk by the switch of the manifest, in memory by one assignment.
        if not loaded:
            before = Lineage()
            if self._state is not None and not anew:
                before = self._state.lineage
            lineage, work = self._from_first(
                lambda: (before.next(), state.work)
            )
            state = state._replace(lineage=lineage, work=work)
        if self.folder is None:
            self._take(state)
            return
        store = ShardStore(self.folder)
        parts, plain = to_files(self._packed(state))
        goes_on = self._state is not None and not (loaded or anew)
        try:
            self._from_first(
                lambda: store.write(
                    parts,
                    plain,
                    keep_history=self.keep_history,
                    goes_on=goes_on,
                )
            )
            self._take(state)
        except BaseException:
            # After the switch there is no way back.
            if in_force(store, plain):
                self._take(state)
            raise

    def _take(self, state: State) -> None:
        if not state.ledger.has_removals:
            self._state = state
            return
        self._state = state._replace(partition=remembered(state.partition))
        self._given = remembered(self._given)
        # It names removed persons.
        self._unit = None

    def _from_first(self, work: Callable[[], T]) -> T:
        # Random bits, times and files are those of one process.
        return from_first(work) if self.over_ranks else work()

    def _agree(self, call: str, **given: Any) -> None:
        # All processes do the same to the same state.
        if not self.over_ranks:
            return
        before = None if self._state is None else self._state.lineage.names
        given = {key: plain_argument(value) for key, value in given.items()}
        check_same({'call': call, **given, 'state': before})

    def _leftovers(self, state: State) -> tuple[str, ...]:
        data = state.data
        trained_on = {
            name: shard
            for shard, made in enumerate(state.checkpoints)
            for name in made.n_id.tolist()
        }
        gone = state.ledger.removed.request()
        part = Part() if gone is None else gone.parts[0]
        found = named_leftovers(data, part.to_dict())
        found += [
            f'node {name} in the checkpoint of shard {trained_on[name]}'
            for name in part.nodes
            if name in trained_on
        ]
        found += [
            f'the label of node {name}'
            for name in part.labels
            if name in trained_on
        ]
        tensors: dict[str, Tensor] = {}
        if state.outputs is not None:
            tensors['outputs'] = state.outputs
        for key, value in data.to_dict().items():
            if isinstance(value, Tensor):
                tensors[f'{key} of the graph'] = value
        for shard, made in enumerate(state.checkpoints):
            tensors[f'n_id of shard {shard}'] = made.n_id
            for name, value in made.weights.items():
                tensors[f'{name} of shard {shard}'] = value
            for r, stage in enumerate(made.stages):
                for name, value in stage.weights.items():
                    tensors[f'{name} of stage {r} of shard {shard}'] = value
        for name, value in state.aggregator.state_dict().items():
            tensors[f'{name} of the aggregator'] = value
        if 'persons' in data:
            held = data.persons
            tensors |= held.tensors()
            there = {*held.graph[held.person].n_id.tolist()}
            found += [
                f'node {name} in the typed graph'
                for name in part.nodes
                if name in there
            ]
        found += views(tensors.items())
        if self.folder is not None:
            store = ShardStore(self.folder)
            _, plain = to_files(self._packed(state))
            if not in_force(store, plain):
                found.append(f'the state in {self.folder} is another one')
            if not self.keep_history:
                found += [
                    f'{path} is not of the present state: purge()'
                    for path in store.strangers()
                ]
        return tuple(found)

    # Of the unlearner itself.

    def _choose_products(self) -> None:
        raise NotImplementedError

    def _parts(self, data: Data, shards: Iterable[int]) -> dict[int, Data]:
        raise NotImplementedError

    def _seen(self, part: Data) -> list[Data]:
        raise NotImplementedError

    def _shard_seed(self, shard: int) -> int:
        raise NotImplementedError

    def _outputs(
        self,
        data: Data,
        checkpoints: Sequence[Checkpoint],
        num_classes: int,
        progress_bar: bool | None = None,
    ) -> Tensor:
        raise NotImplementedError


def hash_of_shards(state: State) -> str:
    """Hash the weights of all shards, as returned by ``shard_state``."""
    shards = enumerate(state.checkpoints)
    return fingerprint_model({i: shard.weights for i, shard in shards})
