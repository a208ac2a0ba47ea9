"""State of a sharded unlearner, in memory and in files."""

import copy
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
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
from pyg_trust.graph import sparse_rows
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import ShardAggregator
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import fingerprint_model
from pyg_trust.transforms.shards import Shards
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.shards.graph import induced, is_sparse, select_rows
from pyg_trust.unlearning.shards.models import Recipe, Weights
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import NewNodes, Update

FORMAT = 4
# Fields by which folders are compared without reading tensors.
_IN_MANIFEST = ('lineage', 'ledger')


class Forgotten(NamedTuple):
    """Placeholder for a partition that was given as tensors.

    The shards of all nodes could reveal what a removed one held.

    Args:
        name (str): the kind of the tensors.
    """

    name: str


class Checkpoint(NamedTuple):
    """Trained model of a shard, and the states after its earlier stages."""

    n_id: Tensor
    weights: Weights
    stages: tuple[Weights, ...] = ()


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
    # The ids of the rows of predictions, in order, with those that are gone.
    rows: Tensor
    num_classes: int
    checkpoints: tuple[Checkpoint, ...]
    outputs: Tensor
    aggregator: ShardAggregator
    ledger: RemovalLedger
    # Whether the partition has seen nothing that was removed since.
    fresh: bool
    # Of the shards, by number, and of the graph around them.
    seals: Seals
    # The seconds of the last change by part, and of the last training of each
    # shard. In no file: they say which shards were trained again, and when.
    seconds: dict[str, float] = {}  # noqa: RUF012
    shard_seconds: dict[int, float] = {}  # noqa: RUF012
    lineage: Lineage = Lineage()

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        learnt = {
            'aggregator': self.aggregator.state_dict(),
            'shards': {
                str(shard): {
                    str(r): weights
                    for r, weights in enumerate([*made.stages, made.weights])
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
        last = self.ledger.last
        return last is not None and last.data == self.sealed


def hash_of_shards(state: State) -> str:
    """Hash the weights of all shards, as returned by ``shard_state``."""
    shards = enumerate(state.checkpoints)
    return fingerprint_model({i: shard.weights for i, shard in shards})


# Plain values ################################################################


def described(partition: Any) -> str:
    """Describe a partition in words, for reports."""
    if isinstance(partition, Shards):
        return repr(partition)
    if isinstance(partition, str):
        return partition
    if isinstance(partition, Forgotten):
        return partition.name
    return 'a tensor' if isinstance(partition, Tensor) else 'a list'


def remembered(partition: Any) -> Any:
    """Reduce a partition to its method, or to a placeholder."""
    if isinstance(partition, str | Shards | Forgotten):
        return partition
    return Forgotten(described(partition))


def plain_partition(partition: Any) -> dict[str, Any]:
    """Convert a partition to plain, comparable values."""
    plain: dict[str, Any] = {'name': described(partition)}
    if isinstance(partition, Shards):
        plain |= {
            key: value
            for key, value in sorted(vars(partition).items())
            if isinstance(value, str | int | float | dict | None)
            and key != 'progress_bar'
        }
    elif isinstance(partition, Tensor):
        plain['shard'] = partition.tolist()
    elif isinstance(partition, list):
        plain['shards'] = [v.tolist() for v in partition]
    return plain


def fits_partition(plain: Any, partition: Any) -> bool:
    """Test whether a saved partition matches a given one."""
    kinds = partition, remembered(partition)
    return plain in [plain_partition(kind) for kind in kinds]


def plain_settings(aggregator: ShardAggregator) -> dict[str, Any]:
    """Return the arguments of an aggregator."""
    plain = {
        key: value
        for key, value in vars(aggregator).items()
        if not key.startswith('_') and isinstance(value, str | int | float)
    }
    plain.pop('training', None)
    return {'type': type(aggregator).__name__, **plain}


def plain_argument(value: Any) -> Any:
    """Convert an argument to values that ranks can compare."""
    if isinstance(value, RemovalRequest):
        return value.to_dict()
    if isinstance(value, Update | NewNodes):
        return plain_argument(vars(value))
    if isinstance(value, dict):
        return {key: plain_argument(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_argument(item) for item in value]
    return plain_partition(value) if isinstance(value, Shards) else value


def _plain_data(data: Data) -> dict[str, Any]:
    plain = data.to_dict()
    if is_sparse(x := data.x):
        parts = x.crow_indices(), x.col_indices(), x.values()
        plain['x'] = (*parts, list(x.shape))
    return plain


def _data_of(plain: dict[str, Any]) -> Data:
    data = Data.from_dict(dict(plain))
    if not isinstance(data.x, Tensor):
        ptr, index, value, shape = data.x
        data.x = sparse_rows(ptr, index, value, (shape[0], shape[1]))
    return data


def _trace(outputs: Tensor) -> list[float]:
    # What tells models of another factory from those of this one.
    return outputs.double().abs().mean((1, 2)).tolist()


def _to_files(packed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    # The contents of files, a part for each shard, and of the manifest.
    made = packed['checkpoints']
    parts = {f'shard-{i}': made[i] for i in made}
    own = ('data', 'checkpoints', *_IN_MANIFEST)
    parts['data'] = packed['data']
    parts['rest'] = {k: v for k, v in packed.items() if k not in own}
    plain = {key: packed[key] for key in _IN_MANIFEST}
    return parts, json.loads(json.dumps(plain))


def _from_files(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    packed = {**parts.pop('rest'), 'data': parts.pop('data')}
    packed['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    return packed | {k: manifest[k] for k in _IN_MANIFEST if k in manifest}


def _in_force(store: ShardStore, plain: dict[str, Any]) -> bool:
    manifest = store.manifest()
    return manifest is not None and all(
        manifest.get(key) == value for key, value in plain.items()
    )


# The unlearner's part ########################################################

T = TypeVar('T')
_Self = TypeVar('_Self', bound='Stateful')


class Stateful:
    """Mixin of the sharded unlearner: keep, save and load its state."""

    num_shards: int
    aggregator_nodes: int
    recipe: Recipe
    folder: Path | None
    over_ranks: bool
    _lock: ObjectLock
    _aggregator: ShardAggregator
    _state: State | None
    _given: Any
    _unit: PrivacyUnit | None
    _by_person: bool
    _first_seed: int
    _first_seeded: bool
    _outputs: Callable[..., Tensor]

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
            ValueError: if the arguments differ, the state was changed, or its
                ledger does not continue the present one.
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
        store.write(*_to_files(self._packed(self._fitted)))

    @editing
    def load(
        self: _Self,
        folder: str | Path | None = None,
        *,
        progress_bar: bool | None = None,
    ) -> _Self:
        """Load the state that :meth:`save` wrote to a folder; return self.

        If it is the object's own folder, files of other states are deleted: a
        process may have been killed before it could.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: if there is no state, a file is missing or was changed,
                or as :meth:`load_state_dict`.
        """
        store = self._store(folder)
        if store.manifest() is None:
            raise ValueError(
                f"'folder' needs to hold a saved state, with a manifest (got "
                f'{store.folder})'
            )
        new = self._unpacked(_from_files(*store.read()), progress_bar)
        if store.folder == self.folder:
            self._take(new)
            if os.access(store.folder, os.W_OK):
                store.purge()
        else:
            self._commit(new, loaded=True)
        return self

    # Private ################################################################

    @property
    def _fitted(self) -> State:
        if self._state is None:
            raise ValueError('the unlearner needs to be fitted first')
        return self._state

    @property
    def _seed(self) -> int:
        return self._first_seed if self._state is None else self._state.seed

    def _config(self) -> dict[str, Any]:
        return {
            **self.recipe.plain(),
            'num_shards': self.num_shards,
            'aggregator': plain_settings(self._aggregator),
            'aggregator_nodes': self.aggregator_nodes,
        }

    def _contents(
        self, data: Data, shards: Iterable[int], seed: int
    ) -> dict[int, str]:
        # What is sealed, of some shards and of the graph around them: the
        # training data of a model, and the settings of its training.
        recipe, found = json.dumps(self.recipe.plain()), {}
        typed = data.get('persons')
        for shard in shards:
            part = induced(data, data.shard == shard)
            own = [] if typed is None else [typed.print_of(part.n_id)]
            found[shard] = content(part, recipe, seed, shard, *own)
        # The features of the shards are covered already.
        rest = copy.copy(data)
        rest.x = select_rows(data.x, (data.shard < 0).nonzero().view(-1))
        own = [] if typed is None else [typed.print_of(None)]
        found[self.num_shards] = content(rest, *own)
        return found

    def _check_untyped(self, what: str) -> None:
        if self._by_person:
            raise ValueError(
                f"an unlearner with a 'unit' can't {what}: fit it to the "
                "table of persons, 'unit.table(data)', without a unit"
            )

    def _packed(self, state: State) -> dict[str, Any]:
        self._check_untyped('be saved')
        given = state.partition
        if state.ledger.has_removals:
            given = remembered(given)
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'config': self._config(),
            'seed': state.seed,
            'seeded': state.seeded,
            'partition': plain_partition(given),
            'num_classes': state.num_classes,
            'fresh': state.fresh,
            'lineage': state.lineage.to_list(),
            'salts': state.seals.state_dict(),
            'data': _plain_data(state.data),
            'rows': state.rows,
            'trace': _trace(state.outputs),
            'checkpoints': {
                shard: {
                    **made._asdict(),
                    'stages': list(made.stages),
                }
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

    def _unpack(
        self, packed: dict[str, Any], progress_bar: bool | None
    ) -> State:
        self._check_untyped('load a state')
        check_state(packed, ('config',), (FORMAT,), self)
        check_settings('config', packed['config'], self._config())
        present, given = self._state, self._given
        if not fits_partition(packed['partition'], given) and present:
            given = present.partition
        if not fits_partition(packed['partition'], given):
            raise ValueError(
                "the state's partition is another one (got "
                f'{packed["partition"]["name"]})'
            )
        lineage = Lineage.of(packed, present and present.lineage)
        ledger = RemovalLedger(0.0)
        ledger.load_state_dict(packed['ledger'])
        data = _data_of(packed['data'])
        seed = check_integer('seed', packed['seed'], 0)
        shards = range(self.num_shards)
        contents = self._contents(data, shards, seed)
        held = [packed['checkpoints'][shard] for shard in shards]
        checkpoints = tuple(
            Checkpoint(h['n_id'], h['weights'], tuple(h['stages']))
            for h in held
        )
        for name in ('fresh', 'seeded'):
            check_instance(name, packed[name], bool)
        num_classes = check_integer('num_classes', packed['num_classes'], 1)
        aggregator = copy.deepcopy(self._aggregator)
        aggregator.load_state_dict(packed['aggregator'])
        state = State(
            seed=seed,
            seeded=packed['seeded'],
            partition=given,
            data=data,
            rows=packed['rows'],
            num_classes=num_classes,
            checkpoints=checkpoints,
            outputs=torch.empty(0),
            aggregator=aggregator.eval(),
            ledger=ledger,
            fresh=packed['fresh'],
            seals=Seals.of(packed['salts'], contents),
            lineage=lineage,
        )
        if not state.is_sealed:
            raise ValueError(
                'the data, models or account of the state do not match its '
                'ledger: they were changed'
            )
        try:
            outputs = self._outputs(state, progress_bar=progress_bar)
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"the state is not that of 'model_factory': {error}"
            ) from None
        for one, two in zip(_trace(outputs), packed['trace'], strict=True):
            if abs(one - two) > 1e-2 * abs(two):
                raise ValueError(
                    "the state is not that of 'model_factory', whose models "
                    'give other outputs with the same weights: pass the '
                    'function that the state was fitted with'
                )
        return state._replace(outputs=outputs)

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
            lineage, seconds, each = self._from_first(
                lambda: (before.next(), state.seconds, state.shard_seconds)
            )
            state = state._replace(
                lineage=lineage, seconds=seconds, shard_seconds=each
            )
        if self.folder is None:
            self._take(state)
            return
        store = ShardStore(self.folder)
        parts, plain = _to_files(self._packed(state))
        goes_on = self._state is not None and not (loaded or anew)
        try:
            self._from_first(
                lambda: store.write(parts, plain, goes_on=goes_on)
            )
            self._take(state)
        except BaseException:
            # After the switch there is no way back.
            if _in_force(store, plain):
                self._take(state)
            raise

    def _take(self, state: State) -> None:
        if state.ledger.has_removals:
            state = state._replace(partition=remembered(state.partition))
            self._given = remembered(self._given)
            # It names removed persons.
            self._unit = None
        self._state = state

    def _files_left(self, state: State) -> list[str]:
        # What the folder holds beside the present state.
        if self.folder is None:
            return []
        store = ShardStore(self.folder)
        _, plain = _to_files(self._packed(state))
        found = [
            f'{path}, which is not of the present state: load() deletes it'
            for path in store.strangers()
        ]
        if not _in_force(store, plain):
            found.append(f'the state in {self.folder}, which is another one')
        return found

    def _from_first(self, work: Callable[[], T]) -> T:
        # Random bits, times and files are those of one process.
        return from_first(work) if self.over_ranks else work()

    def _agree(self, call: str, **given: Any) -> None:
        # All processes do the same to the same state.
        if not self.over_ranks:
            return
        before = None if self._state is None else self._state.lineage.runs
        given = {key: plain_argument(value) for key, value in given.items()}
        check_same({'call': call, **given, 'state': before})
