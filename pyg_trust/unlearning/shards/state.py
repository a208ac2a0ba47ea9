"""State of an unlearner of shards: what it is, and how it is kept."""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, check_integer
from pyg_trust.graph import sparse_rows
from pyg_trust.ledger import RemovalLedger, fingerprint, fingerprints
from pyg_trust.nn.shard_aggregator import ShardAggregator
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.shards.graph import named_items
from pyg_trust.unlearning.shards.products import select_rows
from pyg_trust.unlearning.shards.training import Recipe
from pyg_trust.unlearning.store import ShardStore


class Checkpoint(NamedTuple):
    """One trained shard, and a hash of all it was trained on."""

    key: str
    n_id: Tensor
    weights: dict[str, Tensor]


class Work(NamedTuple):
    """What was done last."""

    shards: tuple[int, ...]
    seconds: dict[str, float]
    trainer: str


class State(NamedTuple):
    """All there is.

    Replaced as a whole, by one assignment at the end of whatever may fail, so
    that a failure changes nothing.
    """

    seed: int
    # Whether a user gave it.
    seeded: bool
    # As given: what Shards are made of, or themselves.
    partition: Any
    data: Data
    num_classes: int
    checkpoints: tuple[Checkpoint, ...]
    outputs: Tensor
    aggregator: ShardAggregator
    ledger: RemovalLedger
    queue: tuple[RemovalRequest, ...]
    # Whether the partition has seen nothing that was removed since.
    fresh: bool
    work: Work


_Self = TypeVar('_Self', bound='Stateful')


class Stateful:
    """The part of an unlearner that keeps, saves and loads its state."""

    num_shards: int
    aggregator_nodes: int
    recipe: Recipe
    folder: Path | None
    _aggregator: ShardAggregator
    _state: State | None
    _given: Any
    _first_seed: int
    _first_seeded: bool

    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on, one checkpoint per shard.

        It contains the remaining data and the seed, which salts the hashes.
        Destroy older states after a removal: they hold what was removed.
        """
        # Copies: nobody is to reach what is in force.
        return copy.deepcopy(self._packed(self._fitted))

    def load_state_dict(
        self, state: dict[str, Any], *, progress_bar: bool = False
    ) -> None:
        """Takes over a saved state.

        Args:
            state (dict): of :meth:`state_dict` of an unlearner with the same
                arguments.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if the arguments differ, a checkpoint is not that of
                the data in the state, or the state's ledger does not continue
                the present one.
        """
        self._commit(self._unpacked(state, progress_bar))

    def save(self, folder: str | Path | None = None) -> None:
        """Writes the state to a folder, at once or not at all.

        Args:
            folder (str or Path, optional): where; by default the folder of
                the class, which holds every state anyway.
                (default: :obj:`None`)

        Raises:
            ValueError: if there is no folder, or it holds the state of
                another unlearner or a later one.
        """
        state = self._fitted
        store = self._store(folder)
        check_forward(store, state)
        store.write(*to_files(self._packed(state)))

    def load(
        self: _Self,
        folder: str | Path | None = None,
        *,
        progress_bar: bool = False,
    ) -> _Self:
        """Takes over the state in a folder.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if there is none, a file is missing or was changed, or
                as :meth:`load_state_dict`.
        """
        store = self._store(folder)
        parts, manifest = store.read()
        new = self._unpacked(from_files(parts, manifest), progress_bar)
        if store.folder == self.folder:
            self._state = new
        else:
            self._commit(new)
        return self

    def purge(self, folder: str | Path | None = None) -> tuple[str, ...]:
        """Deletes the checkpoints that hold what was removed.

        These are all in the folder that are not part of the state in force,
        unfinished ones included. Copies elsewhere are out of reach, and what
        a file system or a disk keeps of deleted files is up to them.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)

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
    def _seed(self) -> int:
        return self._first_seed if self._state is None else self._state.seed

    @property
    def _seeded(self) -> bool:
        if self._state is None:
            return self._first_seeded
        return self._state.seeded

    def _key(self, shard: int, part: Data) -> str:
        # Salted: who does not know the seed can't guess small shards.
        salt = json.dumps([asdict(self.recipe), self._shard_seed(shard)])
        return fingerprint(salt, part)

    def _digest(self, data: Data, checkpoints: Sequence[Checkpoint]) -> str:
        prints = {i: made.key for i, made in enumerate(checkpoints)}
        # What the keys cover needs no second reading.
        rest = copy.copy(data)
        rest.x = select_rows(data.x, (data.shard < 0).nonzero().view(-1))
        prints[-1] = fingerprint(str(self._seed), rest)
        return fingerprints(prints)

    def _config(self) -> dict[str, Any]:
        return {
            **asdict(self.recipe),
            'num_shards': self.num_shards,
            'aggregator': plain_settings(self._aggregator),
            'aggregator_nodes': self.aggregator_nodes,
        }

    def _packed(self, state: State) -> dict[str, Any]:
        return {
            'config': self._config(),
            'seed': state.seed,
            'seeded': state.seeded,
            'partition': plain_partition(state.partition),
            'num_classes': state.num_classes,
            'fresh': state.fresh,
            'work': [*state.work],
            'data': plain_data(state.data),
            'checkpoints': {
                shard: made._asdict()
                for shard, made in enumerate(state.checkpoints)
            },
            'aggregator': state.aggregator.state_dict(),
            'ledger': state.ledger.state_dict(),
            'queue': [request.to_dict()['0'] for request in state.queue],
        }

    def _unpacked(self, packed: dict[str, Any], progress_bar: bool) -> State:
        try:
            return self._unpack(packed, progress_bar)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                "'state' needs to be what state_dict() returns "
                f'({type(error).__name__}: {error})'
            ) from error

    def _unpack(self, packed: dict[str, Any], progress_bar: bool) -> State:
        if packed['config'].get('version') != self.recipe.version:
            raise ValueError(
                'the state is of another version of the trainer, whose bits '
                f'differ (got {packed["config"].get("version", "0.1.0")}, '
                f'need {self.recipe.version}): fit anew'
            )
        if packed['config'] != self._config():
            raise ValueError(
                'the state was saved with other arguments (got '
                f'{packed["config"]}, need {self._config()})'
            )
        if packed['partition'] != plain_partition(self._given) and (
            self._state is None
            or packed['partition'] != plain_partition(self._state.partition)
        ):
            raise ValueError(
                "the state's partition is another one (got "
                f'{packed["partition"]["name"]})'
            )
        ledger = RemovalLedger(0.0)
        if self._state is not None:
            ledger = self._state.ledger.copy()
        ledger.load_state_dict(packed['ledger'])
        data = from_plain_data(packed['data'])
        checkpoints = tuple(
            Checkpoint(**packed['checkpoints'][shard])
            for shard in range(self.num_shards)
        )
        # One with the seed of the state.
        other = copy.copy(self)
        other._state, other._first_seed = (
            None,
            check_integer('seed', packed['seed'], 0),
        )
        parts = other._parts(data, range(self.num_shards))
        for shard, part in parts.items():
            if other._key(shard, part) != checkpoints[shard].key:
                raise ValueError(
                    f'the checkpoint of shard {shard} is not that of the '
                    "state's data"
                )
        if ledger.entries[-1].data != other._digest(data, checkpoints):
            raise ValueError(
                'the data of the state are not those of its ledger'
            )
        try:
            num_classes = check_integer('num_classes', packed['num_classes'])
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
            packed['partition'] != plain_partition(given)
            and self._state is not None
        ):
            given = self._state.partition
        return State(
            seed=other._first_seed,
            seeded=packed['seeded'],
            partition=given,
            data=data,
            num_classes=num_classes,
            checkpoints=checkpoints,
            outputs=outputs,
            aggregator=aggregator.eval(),
            ledger=ledger,
            queue=tuple(RemovalRequest(**part) for part in packed['queue']),
            fresh=fresh,
            work=Work(*packed['work']),
        )

    def _store(self, folder: str | Path | None) -> ShardStore:
        if folder is not None:
            check_instance('folder', folder, str, Path)
        folder = self.folder if folder is None else Path(folder)
        if folder is None:
            raise ValueError(
                "'folder' needs to be given, here or to the class"
            )
        return ShardStore(folder)

    def _commit(self, state: State, restart: bool = False) -> None:
        # The one place where a new state takes the place of the old: on the
        # disk by the switch of the manifest, in memory by one assignment.
        if self.folder is None:
            self._state = state
            return
        store = ShardStore(self.folder)
        parts, plain = to_files(self._packed(state))
        if not restart:
            check_forward(store, state)
        try:
            store.write(parts, plain)
            self._state = state
        except BaseException:
            # After the switch there is no way back.
            if in_force(store, plain):
                self._state = state
            raise

    def _leftovers(self, state: State) -> tuple[str, ...]:
        data = state.data
        there = set(data.n_id.tolist())
        row = {name: i for i, name in enumerate(data.n_id.tolist())}
        ends = data.n_id[data.edge_index].t().tolist()
        edges = {(u, v) for u, v in ends}
        trained_on = {
            name: shard
            for shard, made in enumerate(state.checkpoints)
            for name in made.n_id.tolist()
        }
        queued = set().union(*(named_items(r.parts[0]) for r in state.queue))
        found = []
        for entry in state.ledger.entries:
            part = entry.request.get('0', {})
            for name in part.get('nodes', []):
                if name in there:
                    found.append(f'node {name}')
                if name in trained_on:
                    found.append(
                        f'node {name} in the checkpoint of shard '
                        f'{trained_on[name]}'
                    )
                if ('node', name) in queued:
                    found.append(f'node {name} in the queue')
            found += [
                f'features of node {name}'
                for name in part.get('features', [])
                if name in there
                and bool(
                    select_rows(data.x, torch.tensor([row[name]]))
                    .to_dense()
                    .any()
                )
            ]
            found += [
                f'edge {u} -> {v}'
                for u, v in part.get('edges', [])
                if (u, v) in edges
            ]
        tensors: dict[str, Tensor] = {'outputs': state.outputs}
        for key, value in data.to_dict().items():
            if not isinstance(value, Tensor):
                continue
            tensors[f'{key} of the graph'] = value
            if value.layout == torch.sparse_csr:
                tensors[f'{key} of the graph'] = value.values()
                tensors[f'columns of {key}'] = value.col_indices()
        for shard, made in enumerate(state.checkpoints):
            tensors[f'n_id of shard {shard}'] = made.n_id
            for name, value in made.weights.items():
                tensors[f'{name} of shard {shard}'] = value
        for name, value in state.aggregator.state_dict().items():
            tensors[f'{name} of the aggregator'] = value
        found += [
            f'{name} is a view into a larger tensor'
            for name, value in tensors.items()
            if value.untyped_storage().nbytes()
            > value.numel() * value.element_size()
        ]
        if self.folder is not None:
            store = ShardStore(self.folder)
            _, plain = to_files(self._packed(state))
            if not in_force(store, plain):
                found.append(f'the state in {self.folder} is another one')
            found += [
                f'{path} is not of the present state: purge()'
                for path in store.strangers()
            ]
        return tuple(found)

    # Of the unlearner itself.

    def _parts(self, data: Data, shards: Iterable[int]) -> dict[int, Data]:
        raise NotImplementedError

    def _shard_seed(self, shard: int) -> int:
        raise NotImplementedError

    def _outputs(
        self,
        data: Data,
        checkpoints: Sequence[Checkpoint],
        num_classes: int,
        progress_bar: bool = False,
    ) -> Tensor:
        raise NotImplementedError


def plain_data(data: Data) -> dict[str, Any]:
    """A graph as a dictionary of dense tensors."""
    plain = data.to_dict()
    x = data.x
    if x.layout == torch.sparse_csr:
        plain['x'] = (
            x.crow_indices(),
            x.col_indices(),
            x.values(),
            list(x.shape),
        )
    return plain


def from_plain_data(plain: dict[str, Any]) -> Data:
    """The inverse of :func:`plain_data`."""
    data = Data.from_dict(dict(plain))
    if not isinstance(data.x, Tensor):
        ptr, index, value, shape = data.x
        data.x = sparse_rows(ptr, index, value, (shape[0], shape[1]))
    return data


def plain_partition(partition: Any) -> dict[str, Any]:
    """A partition as plain values, to compare two by."""
    if isinstance(partition, Shards):
        rest = {
            key: value
            for key, value in sorted(vars(partition).items())
            if isinstance(value, str | int | float | dict | None)
            and key != 'progress_bar'
        }
        return {'name': repr(partition), **rest}
    if isinstance(partition, str):
        return {'name': partition}
    if isinstance(partition, Tensor):
        return {'name': 'a tensor', 'shard': partition.tolist()}
    return {'name': 'a list', 'shards': [v.tolist() for v in partition]}


def described(partition: Any) -> str:
    """A partition in words, for reports."""
    if isinstance(partition, Shards):
        return repr(partition)
    if isinstance(partition, str):
        return partition
    if isinstance(partition, Tensor):
        return 'a tensor'
    return 'a list'


def plain_settings(aggregator: ShardAggregator) -> dict[str, Any]:
    """The arguments of an aggregator."""
    plain = {
        key: value
        for key, value in vars(aggregator).items()
        if not key.startswith('_') and isinstance(value, str | int | float)
    }
    plain.pop('training', None)
    return {'type': type(aggregator).__name__, **plain}


def to_files(packed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes to files, and what to the manifest."""
    parts = {
        f'shard-{shard}-{made["key"][:16]}': made
        for shard, made in packed['checkpoints'].items()
    }
    parts['data'] = packed['data']
    parts['rest'] = {
        key: packed[key]
        for key in (
            'config',
            'seed',
            'seeded',
            'partition',
            'num_classes',
            'fresh',
            'aggregator',
        )
    }
    plain = {key: packed[key] for key in ('ledger', 'queue', 'work')}
    return parts, json.loads(json.dumps(plain))


def from_files(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    """The inverse of :func:`to_files`."""
    packed = {**parts.pop('rest'), 'data': parts.pop('data')}
    packed['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    return {**packed, **{k: manifest[k] for k in ('ledger', 'queue', 'work')}}


def check_forward(store: ShardStore, state: State) -> None:
    """Raises if a folder holds a later state, or another unlearner."""
    manifest = store.manifest()
    if manifest is None:
        return
    ledger = RemovalLedger(0.0)
    try:
        ledger.load_state_dict(manifest['ledger'])
        ledger.load_state_dict(state.ledger.state_dict())
    except ValueError:
        raise ValueError(
            f"'folder' {store.folder} holds another unlearner, or a later "
            'state of this one'
        ) from None


def in_force(store: ShardStore, plain: dict[str, Any]) -> bool:
    """Whether the manifest of a folder holds these values."""
    manifest = store.manifest()
    return manifest is not None and all(
        manifest.get(key) == value for key, value in plain.items()
    )
