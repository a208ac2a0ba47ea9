"""State of a sharded unlearner, in memory and in files."""

import copy
import json
import os
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
from pyg_trust.distributed import check_same
from pyg_trust.files.commit import (
    ObjectLock,
    editing,
    synchronized,
)
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.graph import sparse_rows
from pyg_trust.ledger import RemovalLedger
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.aggregate import ShardAggregator, unchecked
from pyg_trust.unlearning.reports import ShardReport
from pyg_trust.unlearning.shards.graph import is_sparse
from pyg_trust.unlearning.shards.models import Recipe, Weights
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import Update
from pyg_trust.verify.claims_removal import FROM_SYSTEM

FORMAT = 6
# Formats of earlier versions, and the settings that all of them have.
_OLD = (1, 2, 3, 4, 5)
_OLD_SETTINGS = ('num_shards', 'epochs', 'lr', 'weight_decay', 'optimizer')
#: The most training nodes that an aggregator learns from.
AGGREGATOR_NODES = 1000
Self = TypeVar('Self', bound='Stateful')
# Fields by which folders are compared without reading tensors.
_IN_MANIFEST = ('ledger',)


class Forgotten(NamedTuple):
    """Placeholder for a partition that was given as tensors.

    The shards of all nodes could reveal what a removed one held.
    """

    name: str

    def __str__(self) -> str:
        return self.name


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
    aggregator: ShardAggregator
    ledger: RemovalLedger
    checkpoints: tuple[Checkpoint, ...] = ()
    outputs: Tensor = torch.empty(0)
    # Whether the partition has seen nothing that was removed since.
    fresh: bool = True
    # Of the shards, by number, and of the graph around them.
    seals: Seals = Seals()
    # The seconds of the last change by part, and of its training for each node
    # and epoch. In no file: they show what was trained again, and when.
    seconds: dict[str, float] = {}  # noqa: RUF012
    pace: float = 0.0

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
        return self.ledger.records(self.sealed)


def hash_of_shards(state: State) -> str:
    """Hash the weights of all shards, as returned by ``shard_state``."""
    shards = enumerate(state.checkpoints)
    return fingerprint_model({i: shard.weights for i, shard in shards})


# Plain values ################################################################


def described(partition: Any) -> str:
    """Describe a partition in words, for reports."""
    if isinstance(partition, Shards):
        return repr(partition)
    if isinstance(partition, str | Forgotten):
        return str(partition)
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
        }
    elif isinstance(partition, Tensor):
        plain['shard'] = partition.tolist()
    elif isinstance(partition, list):
        plain['shards'] = [
            ids.tolist() if isinstance(ids, Tensor) else ids
            for ids in partition
        ]
    return plain


def plain_updates(update: Any) -> list[dict[str, Any]]:
    """Convert updates to values that processes can compare."""
    return [
        {
            **vars(each),
            'nodes': None if each.nodes is None else vars(each.nodes),
            'remove': None if each.remove is None else each.remove.to_dict(),
        }
        for each in Update.of(update)
    ]


def _trace(outputs: Tensor) -> list[float]:
    # Models of another factory give other ones.
    return outputs.double().abs().mean((1, 2)).tolist()


# Files #######################################################################


def to_files(plain: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of files, one for each shard, and the manifest."""
    rest = dict(plain)
    manifest = {key: rest.pop(key) for key in _IN_MANIFEST}
    parts = {'data': rest.pop('data')}
    for shard, made in rest.pop('checkpoints').items():
        parts[f'shard-{shard}'] = made
    return {**parts, 'rest': rest}, json.loads(json.dumps(manifest))


def from_files(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    """Undo :func:`to_files`."""
    plain = {**parts.pop('rest'), 'data': parts.pop('data')}
    plain['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    return plain | {k: manifest[k] for k in _IN_MANIFEST if k in manifest}


# What reports state ##########################################################

ASSUMPTIONS = (
    'requests do not depend on a released model',
    'labels, features and edges of what remains were not made from what was '
    'removed',
    'the model factory gives the same model for the same state of '
    "torch's default generator",
    'bits are those of one machine and one version of torch',
)
# The assumption that start_is_public=True adds, and what exactness says then.
_PUBLIC_START = (
    'what the models start from is public, as start_is_public=True states: '
    'nothing in the weights and buffers that the factory makes comes from '
    'people of these data'
)
_OF_PUBLIC_START = (
    '; models start from weights or buffers that are passed in and stated to '
    'be public, and are as exact as that is true'
)
# How reports describe keys of hashes that come from a given seed.
_FROM_SEED = (
    'keys come from an explicit seed: whoever knows or guesses it knows the '
    'shard of every node id, and can test guesses of the data against hashes'
)
# The share of training nodes by a later hash from which to start over.
_MANY = 0.25


class Stateful:
    """Base of an unlearner: its state, in memory and in files."""

    num_shards: int
    folder: Path | None
    recipe: Recipe
    _builder: Any
    _lock: ObjectLock
    _by_person: bool
    _given: Any
    _unit: Any
    _state: State | None

    @property
    def _fitted(self) -> State:
        if self._state is None:
            raise ValueError('the unlearner needs to be fitted first')
        return self._state

    def _check_untyped(self, what: str) -> None:
        if self._by_person:
            raise ValueError(
                f"an unlearner with a 'unit' can't {what}: fit it to the "
                "table of persons, 'unit.table(data)', without a unit"
            )

    def _agree(self, call: str, **given: Any) -> None:
        # All processes do the same to the same state.
        if self._builder.over_ranks:
            before = None if self._state is None else self._state.ledger.tip
            check_same({'call': call, **given, 'state': before})

    def _reported(self) -> ShardReport:
        state = self._fitted
        sizes = self._builder.sizes(state.data)
        return ShardReport(
            num_nodes=int(state.data.num_nodes or 0),
            num_train=int(sizes.sum()),
            shard_sizes=tuple(sizes.tolist()),
            imbalance=float(sizes.max() / sizes.double().mean()),
            partition=described(state.partition),
            removals=sum(bool(e.request) for e in state.ledger.entries),
            **self._of(state),
        )

    def _of(self, state: State) -> dict[str, Any]:
        # What both reports state of a state.
        builder, data = self._builder, state.data
        by_hash = int(data.by_hash.sum()) if 'by_hash' in data else 0
        exact, exactness = self._exactness(state, by_hash)
        empty = (builder.sizes(data) == 0).nonzero().view(-1)
        return {
            'secrets': _FROM_SEED if state.seeded else FROM_SYSTEM,
            'empty': tuple(empty.tolist()),
            'by_hash': by_hash,
            'exact': exact,
            'exactness': exactness
            + _OF_PUBLIC_START * builder.start_is_public,
            'seconds': state.seconds,
            'assumptions': self._assumed(data),
            'origin': self._origin(),
        }

    def _exactness(self, state: State, by_hash: int) -> tuple[bool, str]:
        # Whether all equals a fit on what remains, and in which sense.
        given, seen = state.partition, 'what its author looked at'
        method = self._builder.method(given, state.seed)
        if isinstance(method, Shards):
            seen = method.seen
        if isinstance(method, Shards) and method.exact:
            what = 'present data, in any order of nodes and edges'
            if self._by_person:
                what = 'remaining data, in the same order of nodes and edges'
            return True, (
                'exact: a node goes to the shard that a keyed hash of its id '
                'gives, so that everything equals a fresh start with the same '
                f'seed on the {what}'
            )
        if state.fresh:
            return True, (
                'exact so far: nothing was removed since the partition was '
                f'made, which has seen {seen}; after a removal, exact given '
                'the partition'
            )
        hashed = f'{by_hash} training nodes came later and are by hash; '
        many = by_hash > _MANY * int((state.data.shard >= 0).sum())
        return False, (
            'exact given the partition: models and aggregator equal those of '
            f'a fresh start with the same partition, but that has seen {seen},'
            f' with what was removed; {hashed * bool(by_hash)}repartition() '
            'starts over' + ', as it should from a quarter on' * many
        )

    def _assumed(self, data: Data) -> tuple[str, ...]:
        builder, persons = self._builder, data.get('persons')
        return (
            *ASSUMPTIONS,
            *(_PUBLIC_START,) * builder.start_is_public,
            *(() if persons is None else persons.assumptions()),
            *unchecked(builder.aggregator),
        )

    def _origin(self) -> dict[str, Any]:
        # Without the seed, which salts the hashes.
        return provenance(
            partition=described(self._given),
            start_is_public=self._builder.start_is_public,
            **self._config(),
        )

    def _config(self) -> dict[str, Any]:
        aggregator = self._builder.aggregator
        settings = {
            key: value
            for key, value in vars(aggregator).items()
            if not key.startswith('_')
            and key != 'training'
            and isinstance(value, str | int | float)
        }
        return {
            **self.recipe.plain(),
            'num_shards': self.num_shards,
            'aggregator': {'type': type(aggregator).__name__, **settings},
            'aggregator_nodes': AGGREGATOR_NODES,
        }

    # Saving and loading #####################################################

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state, one checkpoint per shard.

        It contains the remaining data, the salt and the seed. Guard it like
        the data, and destroy older states: they hold what was removed.
        """
        return copy.deepcopy(self._packed(self._fitted))

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state.

        Of a state of an earlier version, data and ledger are read, and all
        shards are trained again; predictions have rows for the nodes that
        remain.

        Args:
            state (dict): the :meth:`state_dict` of an unlearner with the same
                arguments.

        Raises:
            ValueError: if the arguments differ, the state was changed, or its
                ledger does not continue the present one.
        """
        self._commit(self._unpacked(state), loaded=True)

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
        store.write(*to_files(self._packed(self._fitted)))

    @editing
    def load(self: Self, folder: str | Path | None = None) -> Self:
        """Load the state that :meth:`save` wrote to a folder; return self.

        Args:
            folder (str or Path, optional): the folder; by default that of the
                class, where leftover files of other states are deleted.

        Raises:
            ValueError: if there is no state, a file is missing or was changed,
                or the state does not fit.
        """
        store = self._store(folder)
        plain = from_files(*store.read())
        new = self._unpacked(plain)
        if store.folder == self.folder and plain.get('format') == FORMAT:
            self._take(new)
            if os.access(store.folder, os.W_OK):
                store.purge()
        else:
            self._commit(new, loaded=True)
        return self

    def _packed(self, state: State) -> dict[str, Any]:
        self._check_untyped('be saved')
        given, data = state.partition, state.data.to_dict()
        if state.ledger.has_removals:
            given = remembered(given)
        if is_sparse(x := state.data.x):
            parts = x.crow_indices(), x.col_indices(), x.values()
            data['x'] = (*parts, list(x.shape))
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'config': self._config(),
            'seed': state.seed,
            'seeded': state.seeded,
            'partition': plain_partition(given),
            'num_classes': state.num_classes,
            'fresh': state.fresh,
            'salts': state.seals.state_dict(),
            'data': data,
            'rows': state.rows,
            'trace': _trace(state.outputs),
            'checkpoints': {
                shard: {**made._asdict(), 'stages': [*made.stages]}
                for shard, made in enumerate(state.checkpoints)
            },
            'aggregator': state.aggregator.state_dict(),
            'ledger': state.ledger.state_dict(),
        }

    def _unpacked(self, plain: dict[str, Any]) -> State:
        self._check_untyped('load a state')
        with reading():
            check_state(plain, ('config',), (*_OLD, FORMAT), self)
            old = plain.get('format', 1) in _OLD
            found, mine = (
                {k: v for k, v in c.items() if not old or k in _OLD_SETTINGS}
                for c in (plain['config'], self._config())
            )
            check_settings('config', found, mine)
            present, builder = self._state, self._builder
            known = [self._given, *([present.partition] if present else [])]
            given = [
                each
                for each in known
                if plain['partition']
                in map(plain_partition, (each, remembered(each)))
            ]
            if not given:
                raise ValueError(
                    "the state's partition is another one (got "
                    f'{plain["partition"]["name"]})'
                )
            for name in ('fresh', 'seeded'):
                check_instance(name, plain[name], bool)
            data = Data.from_dict(dict(plain['data']))
            if not isinstance(data.x, Tensor):
                ptr, index, value, shape = data.x
                size = shape[0], shape[1]
                data.x = sparse_rows(ptr, index, value, size)
            ledger = RemovalLedger(0.0)
            if present is not None:
                ledger = present.ledger.copy()
            ledger.load_state_dict(plain['ledger'])
            if old:
                return self._trained_anew(plain, given[0], data, ledger)
            aggregator = copy.deepcopy(builder.aggregator)
            aggregator.load_state_dict(plain['aggregator'])
            state = State(
                seed=check_integer('seed', plain['seed'], 0),
                seeded=plain['seeded'],
                partition=given[0],
                data=data,
                rows=plain['rows'],
                num_classes=check_integer(
                    'num_classes', plain['num_classes'], 1
                ),
                aggregator=aggregator.eval(),
                ledger=ledger,
                checkpoints=tuple(
                    Checkpoint(
                        made['n_id'], made['weights'], tuple(made['stages'])
                    )
                    for _, made in sorted(plain['checkpoints'].items())
                ),
                fresh=plain['fresh'],
            )
            parts = builder.parts(state, range(self.num_shards))
            contents = builder.contents(state, parts)
            state = state._replace(seals=Seals.of(plain['salts'], contents))
            if len(state.checkpoints) != len(parts) or not state.is_sealed:
                raise ValueError(
                    'the data, models or account of the state do not match '
                    'its ledger: they were changed'
                )
            try:
                outputs = builder.outputs(state)
            except (KeyError, RuntimeError) as error:
                raise ValueError(
                    f"the state is not that of 'model_factory': {error}"
                ) from None
            for one, two in zip(_trace(outputs), plain['trace'], strict=True):
                if abs(one - two) > 1e-2 * abs(two):
                    raise ValueError(
                        "the state is not that of 'model_factory', whose "
                        'models give other outputs with the same weights: '
                        'pass the function that the state was fitted with'
                    )
        return state._replace(outputs=outputs)

    def _trained_anew(
        self, plain: Any, given: Any, data: Data, ledger: RemovalLedger
    ) -> State:
        # What earlier versions wrote, read for one more release: the models
        # came from another training, and would equal those of no fit today.
        if not isinstance(given, str | Shards):
            raise ValueError(
                "'state' has models of an earlier training and shards by "
                f'{described(given)}, which came from no method: fit a new '
                "unlearner to the graph in its entry 'data'"
            )
        empty = State(
            seed=check_integer('seed', plain['seed'], 0),
            seeded=plain['seeded'],
            partition=given,
            data=data,
            rows=plain.get('rows', data.n_id.clone()),
            num_classes=check_integer('num_classes', plain['num_classes'], 1),
            aggregator=self._builder.aggregator,
            ledger=ledger,
        )
        return self._builder.fresh(empty, given, 'retrain')

    def _store(self, folder: str | Path | None) -> ShardStore:
        folder = self.folder if folder is None else folder
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
        present, first = self._state, self._builder.from_first
        if not loaded:
            seconds, pace = first(lambda: (state.seconds, state.pace))
            state = state._replace(seconds=seconds, pace=pace)
        if self.folder is None:
            self._take(state)
            return
        store = ShardStore(self.folder)
        parts, plain = to_files(self._packed(state))
        goes_on = present is not None and not (loaded or anew)
        try:
            first(lambda: store.write(parts, plain, goes_on=goes_on))
            self._take(state)
        except BaseException:
            # After the switch there is no way back.
            if store.holds(plain):
                self._take(state)
            raise

    def _files_left(self, state: State) -> list[str]:
        # What the folder holds beside the present state.
        if self.folder is None:
            return []
        store = ShardStore(self.folder)
        left = [
            f'{path}, which is not of the present state: load() deletes it'
            for path in store.strangers()
        ]
        if not store.holds(to_files(self._packed(state))[1]):
            left.append(f'the state in {self.folder}, which is another')
        return left

    def _take(self, state: State) -> None:
        if state.ledger.has_removals:
            state = state._replace(partition=remembered(state.partition))
            self._given = remembered(self._given)
            # It names removed persons.
            self._unit = None
        self._state = state
