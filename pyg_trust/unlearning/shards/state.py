"""State of a sharded unlearner, in memory and in files."""

import copy
import json
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, check_integer
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.graph import sparse_rows
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import ShardAggregator
from pyg_trust.report import fingerprint_model
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.shards.graph import is_sparse
from pyg_trust.unlearning.shards.models import Weights
from pyg_trust.update import Update

__all__ = [
    'FORMAT',
    'Checkpoint',
    'Forgotten',
    'State',
    'described',
    'fits_partition',
    'from_files',
    'hash_of_shards',
    'packed',
    'plain_partition',
    'plain_settings',
    'plain_updates',
    'remembered',
    'to_files',
    'trace',
    'unpacked',
]

FORMAT = 4
# Fields by which folders are compared without reading tensors.
_IN_MANIFEST = ('lineage', 'ledger')


class Forgotten(NamedTuple):
    """Placeholder for a partition that was given as tensors.

    The shards of all nodes could reveal what a removed one held.
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
    aggregator: ShardAggregator
    ledger: RemovalLedger
    checkpoints: tuple[Checkpoint, ...] = ()
    outputs: Tensor = torch.empty(0)
    # Whether the partition has seen nothing that was removed since.
    fresh: bool = True
    # Of the shards, by number, and of the graph around them.
    seals: Seals = Seals()
    # The seconds of the last change by part, and of the last training of each
    # shard. In no file: they show which shards were trained again, and when.
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
        }
    elif isinstance(partition, Tensor):
        plain['shard'] = partition.tolist()
    elif isinstance(partition, list):
        plain['shards'] = [
            ids.tolist() if isinstance(ids, Tensor) else ids
            for ids in partition
        ]
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


def trace(outputs: Tensor) -> list[float]:
    """Summarise outputs: models of another factory give other ones."""
    return outputs.double().abs().mean((1, 2)).tolist()


# Files #######################################################################


def packed(state: State, given: Any) -> dict[str, Any]:
    """Return the entries of a state dictionary, but for class and settings."""
    data = state.data.to_dict()
    if is_sparse(x := state.data.x):
        parts = x.crow_indices(), x.col_indices(), x.values()
        data['x'] = (*parts, list(x.shape))
    return {
        'seed': state.seed,
        'seeded': state.seeded,
        'partition': plain_partition(given),
        'num_classes': state.num_classes,
        'fresh': state.fresh,
        'lineage': state.lineage.to_list(),
        'salts': state.seals.state_dict(),
        'data': data,
        'rows': state.rows,
        'trace': trace(state.outputs),
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


def unpacked(
    plain: dict[str, Any],
    given: Any,
    aggregator: ShardAggregator,
    present: Lineage | None,
) -> State:
    """Return the state of entries, without seals and outputs."""
    data = Data.from_dict(dict(plain['data']))
    if not isinstance(data.x, Tensor):
        ptr, index, value, shape = data.x
        data.x = sparse_rows(ptr, index, value, (shape[0], shape[1]))
    ledger = RemovalLedger(0.0)
    ledger.load_state_dict(plain['ledger'])
    for name in ('fresh', 'seeded'):
        check_instance(name, plain[name], bool)
    aggregator = copy.deepcopy(aggregator)
    aggregator.load_state_dict(plain['aggregator'])
    held = [made for _, made in sorted(plain['checkpoints'].items())]
    return State(
        seed=check_integer('seed', plain['seed'], 0),
        seeded=plain['seeded'],
        partition=given,
        data=data,
        rows=plain['rows'],
        num_classes=check_integer('num_classes', plain['num_classes'], 1),
        aggregator=aggregator.eval(),
        ledger=ledger,
        checkpoints=tuple(
            Checkpoint(made['n_id'], made['weights'], tuple(made['stages']))
            for made in held
        ),
        fresh=plain['fresh'],
        lineage=Lineage.of(plain, present),
    )


def to_files(plain: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of files, one for each shard, and the manifest."""
    made = plain['checkpoints']
    parts = {f'shard-{i}': made[i] for i in made}
    own = ('data', 'checkpoints', *_IN_MANIFEST)
    parts['data'] = plain['data']
    parts['rest'] = {k: v for k, v in plain.items() if k not in own}
    manifest = {key: plain[key] for key in _IN_MANIFEST}
    return parts, json.loads(json.dumps(manifest))


def from_files(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    """Undo :func:`to_files`."""
    plain = {**parts.pop('rest'), 'data': parts.pop('data')}
    plain['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    return plain | {k: manifest[k] for k in _IN_MANIFEST if k in manifest}
