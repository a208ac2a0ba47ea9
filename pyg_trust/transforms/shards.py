"""Partitions of the training nodes into shards as a transform."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import rng
from pyg_trust._checks import Count, as_ids, validated
from pyg_trust._describe import described
from pyg_trust.nn.partitioner import partition_embedding
from pyg_trust.unlearning import partition
from pyg_trust.unlearning.partition import PARTITIONS

__all__ = ['Shards', 'training_nodes']

# Data of a graph that partitions read, by the names of arguments.
_INPUTS = ('num_nodes', 'n_id', 'edge_index', 'x', 'y', 'embedding')


@validated
@functional_transform('shards')
class Shards(BaseTransform):
    """Divide the training nodes into shards (functional name: `shards`).

    It writes ``data.shard``, int64, ``[num_nodes]``: a shard from 0 to
    ``num_shards - 1`` for the nodes of ``data.train_mask``, else -1. Only
    training nodes, the edges between them and their labels are read.

    =============== ======================================== ================
    method          data that it reads                       equal sizes
    =============== ======================================== ================
    ``'hash'``      the id of the node alone                 no
    ``'random'``    the number of training nodes             yes
    ``'metis'``     all edges between training nodes         yes
    ``'blpa'``      all edges between training nodes         yes
    ``'bekm'``      edges, features, labels of these nodes   yes
    ``'learned'``   edges, features, labels of these nodes   yes
    =============== ======================================== ================

    Only with :obj:`'hash'` can a node be removed without a trace. With other
    methods the models forget a removed node, but the shards of other nodes may
    still depend on it.

    Args:
        num_shards (int): the number of shards.
        method (str): the partition's method, one of the table.
        seed (int, optional): the seed of the method, or the key of
            :obj:`'hash'`; by default it is drawn once, when the transform is
            made. (default: :obj:`None`)
        embedding (str, optional): the attribute with the node embeddings that
            :obj:`'bekm'` clusters; by default the logits of a GCN that it
            trains. (default: :obj:`None`)
        **kwargs (optional): further arguments of the method's function, such
            as :obj:`slack` of :func:`~pyg_trust.unlearning.blpa` or
            :obj:`sem_weight` of :func:`~pyg_trust.nn.learned_partition`.
    """

    def __init__(
        self,
        num_shards: Count,
        method: str = 'hash',
        *,
        seed: int | None = None,
        embedding: str | None = None,
        **kwargs: Any,
    ) -> None:
        takes, named = _arguments(method)
        for name in kwargs:
            if name not in named:
                raise ValueError(
                    f"method '{method}' takes no '{name}' (it takes "
                    f'{", ".join(named)})'
                )
        if embedding is not None and 'embedding' not in takes:
            raise ValueError(f"method '{method}' takes no 'embedding'")
        partition.check_shards(num_shards, num_shards)
        self.num_shards = num_shards
        self.method = method
        self.seed = rng.resolve_secret(seed)
        self.embedding = embedding
        self.kwargs = kwargs
        if 'seed' in named:
            self.kwargs = {**kwargs, 'seed': self.seed}

    @property
    def seen(self) -> str:
        """A phrase that names the data which a node's shard depends on."""
        sees = PARTITIONS.fact(self.method, 'sees')
        if PARTITIONS.is_own(self.method):
            return f'{sees} (so {PARTITIONS.note(self.method)})'
        return sees

    @property
    def exact(self) -> bool:
        """Whether each node's shard is independent of all other nodes."""
        return self.method == 'hash'

    def forward(self, data: Data) -> Data:
        """Write the shard of each node to ``data.shard``; return the graph."""
        if not isinstance(data, Data):
            raise TypeError(
                f"'data' needs to be a Data object (got {type(data).__name__})"
            )
        index = training_nodes(data)
        names, _ = _arguments(self.method)
        partition.check_shards(index.numel(), self.num_shards)
        given = self._given(data, index, {*names})
        function = PARTITIONS.find('method', self.method)
        shard = function(
            *(given[name] for name in names), self.num_shards, **self.kwargs
        )
        if PARTITIONS.is_own(self.method):
            partition.check_partition(shard, self.num_shards, index.numel())
        everyone = torch.full((int(data.num_nodes or 0),), -1)
        everyone = everyone.to(index.device)
        data.shard = everyone.index_copy(0, index, shard.to(index.device))
        return data

    def _given(
        self, data: Data, index: Tensor, takes: set[str]
    ) -> dict[str, Any]:
        # What the method reads of the training nodes.
        own = self.embedding is None and 'embedding' in takes
        takes = takes | ({'edge_index', 'x', 'y'} if own else set())
        given: dict[str, Any] = {'num_nodes': index.numel()}
        if 'n_id' in takes:
            n_id = data.get('n_id')
            given['n_id'] = index if n_id is None else n_id[index]
        if 'edge_index' in takes:
            given['edge_index'] = partition.training_graph(
                _needed(data, 'edge_index'), index, int(data.num_nodes or 0)
            )
        for name in sorted(takes & {'x', 'y'}):
            given[name] = _needed(data, name)[index]
        if own:
            given['embedding'] = partition_embedding(
                given['x'],
                given['edge_index'],
                given['y'],
                seed=rng.derive(self.seed, 0),
            )
        elif self.embedding is not None:
            given['embedding'] = _needed(data, self.embedding)[index]
        return given

    def __repr__(self) -> str:
        return described(self, 'num_shards', 'method', **self.kwargs)


def _arguments(method: str) -> tuple[list[str], list[str]]:
    # A method's arguments before the number of shards, and by keyword.
    function = PARTITIONS.find('method', method)
    taken = inspect.signature(function).parameters.values()
    named = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    first = [p.name for p in taken if p.name not in named]
    *inputs, last = first or ['']
    unknown = [name for name in inputs if name not in _INPUTS]
    if unknown or last != 'num_shards':
        raise ValueError(
            f"'method' {method!r} needs to take some of {_INPUTS} and then "
            f"'num_shards' (it takes {first})"
        )
    return inputs, named


@validated
def training_nodes(data: Data) -> Tensor:
    """Return the nodes of ``data.train_mask``, ascending."""
    mask = as_ids('train_mask', _needed(data, 'train_mask'))
    if mask.dtype != torch.bool or mask.shape != (data.num_nodes,):
        raise ValueError(
            f"'train_mask' needs to be bool, [{data.num_nodes}] "
            f'(got {mask.dtype}, {list(mask.shape)})'
        )
    return mask.nonzero().view(-1)


def _needed(data: Data, name: str) -> Tensor:
    value = data.get(name)
    if not isinstance(value, Tensor):
        raise ValueError(
            f"'data' needs to have a tensor '{name}' "
            f'(got {type(value).__name__})'
        )
    return value
