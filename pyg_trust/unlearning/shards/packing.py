"""Conversion of the state of shards to plain values and files."""

import json
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust.graph import sparse_rows
from pyg_trust.nn.shard_aggregator import ShardAggregator
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import NewNodes, Update

# Fields by which folders are compared without reading tensors.
_IN_MANIFEST = ('lineage', 'ledger')


class Forgotten(NamedTuple):
    """Placeholder for a partition that was given as tensors.

    The shards of all nodes could reveal what a removed one held.

    Args:
        name (str): the kind of the tensors.
    """

    name: str


def remembered(partition: Any) -> Any:
    """Reduce a partition to its method, or to a placeholder."""
    if isinstance(partition, str | Shards | Forgotten):
        return partition
    return Forgotten(described(partition))


def plain_data(data: Data) -> dict[str, Any]:
    """Convert a graph to a dictionary of dense tensors."""
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
    """Invert :func:`plain_data`."""
    data = Data.from_dict(dict(plain))
    if not isinstance(data.x, Tensor):
        ptr, index, value, shape = data.x
        data.x = sparse_rows(ptr, index, value, (shape[0], shape[1]))
    return data


def plain_argument(value: Any) -> Any:
    """Convert an argument to plain values, without private attributes."""
    if isinstance(value, RemovalRequest):
        return value.to_dict()
    if isinstance(value, Update | NewNodes):
        return plain_argument(vars(value))
    if isinstance(value, dict):
        return {key: plain_argument(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_argument(item) for item in value]
    return plain_partition(value) if isinstance(value, Shards) else value


def plain_partition(partition: Any) -> dict[str, Any]:
    """Convert a partition to plain, comparable values."""
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
    if isinstance(partition, Forgotten):
        return {'name': partition.name}
    if isinstance(partition, Tensor):
        return {'name': 'a tensor', 'shard': partition.tolist()}
    return {'name': 'a list', 'shards': [v.tolist() for v in partition]}


def fits_partition(plain: dict[str, Any], partition: Any) -> bool:
    """Test whether a saved partition matches a given one.

    Args:
        plain (dict): the result of :func:`kept_partition`.
        partition (Any): the partition that the user passed.
    """
    whole = plain_partition(partition)
    return plain in (whole, kept_partition(partition, True))


def kept_partition(partition: Any, has_removals: bool) -> dict[str, Any]:
    """Convert a partition to plain values without removed nodes.

    The shards of those that remain are in the graph.
    """
    return plain_partition(
        remembered(partition) if has_removals else partition
    )


def described(partition: Any) -> str:
    """Describe a partition in words, for reports."""
    if isinstance(partition, Shards):
        return repr(partition)
    if isinstance(partition, str):
        return partition
    if isinstance(partition, Forgotten):
        return partition.name
    if isinstance(partition, Tensor):
        return 'a tensor'
    return 'a list'


def plain_settings(aggregator: ShardAggregator) -> dict[str, Any]:
    """Return the arguments of an aggregator."""
    plain = {
        key: value
        for key, value in vars(aggregator).items()
        if not key.startswith('_') and isinstance(value, str | int | float)
    }
    plain.pop('training', None)
    return {'type': type(aggregator).__name__, **plain}


def to_files(packed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state into the contents of files and of the manifest."""
    parts = {
        f'shard-{shard}-{made["key"][:16]}': made
        for shard, made in packed['checkpoints'].items()
    }
    parts['data'] = packed['data']
    parts['rest'] = {
        key: packed[key]
        for key in (
            'format',
            'config',
            'seed',
            'seeded',
            'partition',
            'num_classes',
            'fresh',
            'salts',
            'aggregator',
        )
    }
    plain = {key: packed[key] for key in _IN_MANIFEST}
    return parts, json.loads(json.dumps(plain))


def from_files(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    """Invert :func:`to_files`."""
    packed = {**parts.pop('rest'), 'data': parts.pop('data')}
    packed['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    known = (*_IN_MANIFEST, 'queue')
    named = {key: manifest[key] for key in known if key in manifest}
    return {**packed, **named}


def in_force(store: ShardStore, plain: dict[str, Any]) -> bool:
    """Tell whether a folder's manifest has all of the given values."""
    manifest = store.manifest()
    return manifest is not None and all(
        manifest.get(key) == value for key, value in plain.items()
    )
