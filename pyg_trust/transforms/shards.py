"""Partitions of the training nodes as a transform."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import rng
from pyg_trust._checks import check_choice, check_instance
from pyg_trust.functional import partition
from pyg_trust.nn.partitioner import learned_partition, partition_embedding

METHODS: dict[str, Callable[..., Tensor]] = {
    'random': partition.random_partition,
    'hash': partition.hash_partition,
    'metis': partition.metis_partition,
    'blpa': partition.blpa,
    'bekm': partition.bekm,
    'learned': learned_partition,
}
# Those that show how far they are.
_LONG = ('blpa', 'bekm', 'learned')


@functional_transform('shards')
class Shards(BaseTransform):
    r"""Writes the shard of every training node (functional name: `shards`).

    ``data.shard`` is int64, ``[num_nodes]``: the shard, in :math:`0, \ldots,
    S-1`, of the nodes of ``data.train_mask``, and -1 elsewhere. Only training
    nodes, the edges between them and their labels are looked at.

    =============== ======================================== ================
    method          what it has seen                         balanced
    =============== ======================================== ================
    ``'hash'``      the name of the node alone               no
    ``'random'``    the number of training nodes             yes
    ``'metis'``     all edges between training nodes         yes
    ``'blpa'``      all edges between training nodes         yes
    ``'bekm'``      edges, features, labels of all of them   yes
    ``'learned'``   edges, features, labels of all of them   yes
    =============== ======================================== ================

    To remove a node exactly, the partition included, takes :obj:`'hash'`; the
    others make unlearning exact given a partition that has seen the node.

    Args:
        num_shards (int): the number of shards.
        method (str): one of the table. (default: :obj:`'hash'`)
        seed (int, optional): the seed, the key of :obj:`'hash'`. Without one,
            it is drawn once, when the transform is made: the same transform
            gives a node the same hash every time. (default: :obj:`None`)
        embedding (str, optional): the attribute that :obj:`'bekm'` clusters;
            by default the logits of a GCN that is trained for it
            (:func:`pyg_trust.nn.partition_embedding`).
            (default: :obj:`None`)
        progress_bar (bool): whether to show one, if the method takes long.
            (default: :obj:`False`)
        **kwargs (optional): further arguments of the function of the method
            (:obj:`slack`, :obj:`max_rounds`, :obj:`sem_weight`, ...):
            :func:`~pyg_trust.functional.random_partition`,
            :func:`~pyg_trust.functional.hash_partition`,
            :func:`~pyg_trust.functional.metis_partition`,
            :func:`~pyg_trust.functional.blpa`,
            :func:`~pyg_trust.functional.bekm`,
            :func:`~pyg_trust.nn.learned_partition`.

    Raises:
        ImportError: if there is no METIS.
        TypeError: if the graph is heterogeneous.
        ValueError: on an unknown method, or an argument that it does not
            take; if there is no ``train_mask`` or what the method needs is
            missing; if there are fewer training nodes than shards, or a label
            is missing.
    """

    def __init__(
        self,
        num_shards: int,
        method: str = 'hash',
        *,
        seed: int | None = None,
        embedding: str | None = None,
        progress_bar: bool = False,
        **kwargs: Any,
    ) -> None:
        check_choice('method', method, METHODS)
        taken = inspect.signature(METHODS[method]).parameters.values()
        known = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
        known = [name for name in known if name != 'progress_bar']
        for name in kwargs:
            if name not in known:
                raise ValueError(
                    f"method '{method}' takes no '{name}' (it takes "
                    f'{", ".join(known)})'
                )
        if embedding is not None and method != 'bekm':
            raise ValueError(f"method '{method}' takes no 'embedding'")
        if embedding is not None:
            check_instance('embedding', embedding, str)
        partition.check_shards(num_shards, num_shards)
        self.num_shards = num_shards
        self.method = method
        self.seed = rng.resolve_secret(seed)
        self.embedding = embedding
        self.progress_bar = progress_bar
        self.kwargs = kwargs
        if 'seed' in known:
            self.kwargs = {**kwargs, 'seed': self.seed}

    @property
    def seen(self) -> str:
        """What the shard of a node depends on, beside the seed."""
        return partition.SEEN[self.method]

    @property
    def exact(self) -> bool:
        """Whether no node's shard depends on another node's presence."""
        return self.method == 'hash'

    def forward(self, data: Data) -> Data:
        """Returns the graph with ``shard``."""
        if not isinstance(data, Data):
            raise TypeError(
                f"'data' needs to be a Data object (got {type(data).__name__})"
            )
        index = training_nodes(data)
        inputs = self._inputs(data, index)
        kwargs = self.kwargs
        if self.method in _LONG:
            kwargs = {**kwargs, 'progress_bar': self.progress_bar}
        shard = METHODS[self.method](*inputs, self.num_shards, **kwargs)
        everyone = torch.full((int(data.num_nodes),), -1).to(index.device)
        data.shard = everyone.index_copy(0, index, shard.to(index.device))
        return data

    def _inputs(self, data: Data, index: Tensor) -> tuple[Any, ...]:
        # What the function of the method takes before the number of shards.
        partition.check_shards(index.numel(), self.num_shards)
        if self.method == 'random':
            return (index.numel(),)
        if self.method == 'hash':
            n_id = data.get('n_id')
            return (index if n_id is None else n_id[index],)
        if self.embedding is not None:
            return (_needed(data, self.embedding)[index],)
        edge_index = partition.training_graph(
            _needed(data, 'edge_index'), index, int(data.num_nodes)
        )
        if self.method in ('metis', 'blpa'):
            return edge_index, index.numel()
        x, y = _needed(data, 'x')[index], _needed(data, 'y')[index]
        if self.method == 'learned':
            return x, edge_index, y
        made = partition_embedding(
            x,
            edge_index,
            y,
            seed=rng.derive(self.seed, 0),
            progress_bar=self.progress_bar,
        )
        return (made,)

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.num_shards}, {self.method!r})'


def training_nodes(data: Data) -> Tensor:
    """The nodes of ``data.train_mask``, ascending.

    Args:
        data (Data): the graph.

    Raises:
        ValueError: if there is no such mask, or it has another shape.
    """
    check_instance('data', data, Data)
    mask = _needed(data, 'train_mask')
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
