"""The shards of a training graph as a PyG loader."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data

from pyg_trust import rng
from pyg_trust._checks import Count, check_dtype, validated
from pyg_trust._checks.graphs import check_edges, with_edge_index
from pyg_trust.graph.attributes import subgraph
from pyg_trust.unlearning.partition import check_partition

__all__ = ['ShardLoader']

_OWN = ('collate_fn', 'generator', 'dataset')


class ShardDataset(Dataset[Data]):
    """Shards of a graph, by number."""

    def __init__(self, data: Data, shard: Tensor, num_shards: int) -> None:
        self.data, self.shard, self.num_shards = data, shard, num_shards

    def __len__(self) -> int:
        return self.num_shards

    def __getitem__(self, i: int) -> Data:
        node = (self.shard == i).nonzero().view(-1)
        out = subgraph(self.data, node)
        out.shard_id = i
        if 'n_id' not in self.data:
            out.n_id = node
        return out


@validated
class ShardLoader(DataLoader):
    r"""Loads the shards of a training graph, one or several at a time.

    Each shard is the subgraph of its training nodes. With :obj:`batch_size`
    above one, several shards make one block-diagonal :class:`Batch`. Beside
    the sliced attributes of :obj:`data`, a batch holds ``shard_id``,
    ``[batch_size]``, ``batch``, ``ptr`` and ``n_id``, which is sliced from
    ``data.n_id`` or, without it, the positions of nodes in :obj:`data`.

    .. code-block:: python

        data = Shards(20, 'hash', seed=0)(data)
        for batch in ShardLoader(data):
            fit(models[int(batch.shard_id)], batch)

    Args:
        data (Data): the graph, with ``edge_index`` or ``adj_t``.
        shard (Tensor, optional): int64, ``[num_nodes]``: the shard of each
            node, -1 for nodes in none; by default ``data.shard``, as
            :class:`pyg_trust.transforms.Shards` writes it.
        num_shards (int, optional): the number of shards; by default the
            largest shard plus one. (default: :obj:`None`)
        batch_size (int): the number of shards per batch. (default: :obj:`1`)
        seed (int, optional): the seed of shuffling. (default: :obj:`None`)
        **kwargs (Any): further arguments of
            :class:`torch.utils.data.DataLoader`, such as :obj:`shuffle`,
            :obj:`num_workers` or a :obj:`sampler` of shard ids.
    """

    def __init__(
        self,
        data: Data,
        shard: Tensor | None = None,
        *,
        num_shards: Count | None = None,
        batch_size: Count = 1,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _OWN:
            if name in kwargs:
                raise ValueError(f"'{name}' is set by ShardLoader itself")
        data = with_edge_index(data)
        if data.get('edge_index') is None:
            raise ValueError("'data' needs to have an 'edge_index'")
        data = copy.copy(data)
        data.edge_index = check_edges(
            'edge_index', data.edge_index, int(data.num_nodes or 0)
        )
        shard = data.get('shard') if shard is None else shard
        check_dtype('shard', shard, torch.int64)
        if shard.shape != (data.num_nodes,):
            raise ValueError(
                f"'shard' needs to have the shape [{data.num_nodes}], one "
                f'entry per node (got {list(shard.shape)})'
            )
        inside = shard[shard >= 0]
        if inside.numel() == 0:
            raise ValueError("'shard' needs to hold a node (got only -1)")
        if num_shards is None:
            num_shards = int(shard.max()) + 1
        check_partition(inside, num_shards)
        self.num_shards = num_shards
        super().__init__(
            ShardDataset(data, shard, num_shards),
            batch_size=batch_size,
            collate_fn=Batch.from_data_list,
            generator=rng.generator(seed),
            **kwargs,
        )

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.num_shards} shards, '
            f'batch_size={self.batch_size})'
        )
