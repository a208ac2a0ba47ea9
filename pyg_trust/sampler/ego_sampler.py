"""Ego graphs as a PyG sampler."""

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from pyg_trust._checks import (
    NodeIds,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.graph.ragged import ranges
from pyg_trust.sampler.walks import RootSampler

__all__ = ['EgoSampler']


class EgoSampler(RootSampler):
    """Sampler of ego graphs: each root with copies of its neighbourhood.

    An ego graph has the nodes from which messages reach the root in
    :obj:`num_hops` layers, and all edges between them. Ego graphs of a batch
    share no node: each has copies. Time and memory are linear in the result.

    Args:
        data (Data): the graph, with an ``edge_index`` without duplicates, on
            the CPU.
        num_hops (int): the number of layers, at least 0.
        roots (Tensor, optional): the nodes that may be roots, as indices or as
            a mask; by default, all nodes. (default: :obj:`None`)
        along (bool): whether messages travel along the edges or against them.
            (default: :obj:`True`)
    """

    def __init__(
        self,
        data: Data,
        num_hops: int,
        roots: NodeIds | None = None,
        *,
        along: bool = True,
    ) -> None:
        check_integer('num_hops', num_hops, 0)
        self._open(data, roots, along)
        if self.graph.device.type != 'cpu':
            raise ValueError(
                "'data' needs to have its 'edge_index' on the CPU "
                f'(got {self.graph.device})'
            )
        if self.graph.has_duplicates:
            raise ValueError("'data' needs to be free of parallel edges")
        self.num_hops = num_hops

    @property
    def max_receivers(self) -> int:
        """The most other nodes to which one node sends messages."""
        rowptr, col = self.graph.receivers(self.along)
        receiver = torch.arange(self.graph.num_nodes)
        receiver = receiver.repeat_interleave(rowptr.diff())
        sender = col.long()[receiver != col]
        return int(sender.bincount().max()) if sender.numel() else 0

    def sample_roots(self, index: Tensor) -> SamplerOutput:
        """Return the ego graphs of ``roots[index]`` (int64) as a batch."""
        check_tensor('index', index, torch.int64, ('num_roots',))
        check_range('index', index, self.roots.numel(), 'the roots')
        count, n = index.numel(), self.graph.num_nodes
        rowptr, col = self.graph.receivers(self.along)
        # The key of a copy: its root's position in the batch, and the node.
        first = torch.arange(count) * n + self.roots[index]
        keys = front = first
        for _ in range(self.num_hops):
            node, owner = front % n, front // n
            size = rowptr[node + 1] - rowptr[node]
            sender = col[ranges(rowptr[node], size)].long()
            reached = owner.repeat_interleave(size) * n + sender
            reached = reached.unique()
            front = reached[~torch.isin(reached, keys)]
            keys = torch.cat([keys, front])
        rest = keys[count:].sort().values
        copies = torch.cat([first, rest])
        return self._batched(copies % n, copies // n, count, index)

    @validated
    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """Return the ego graphs of the roots ``inputs.node``."""
        node, n = inputs.node, self.graph.num_nodes
        check_tensor('inputs.node', node, torch.int64, ('num_roots',))
        check_range('inputs.node', node, n, 'the nodes')
        place = torch.full((self.graph.num_nodes,), -1)
        place[self.roots] = torch.arange(self.roots.numel())
        index = place[inputs.node]
        if bool((index < 0).any()):
            raise ValueError(
                "'inputs' needs to hold roots alone "
                f'(got node {int(inputs.node[index < 0][0])})'
            )
        return self.sample_roots(index)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(num_hops={self.num_hops}, '
            f'num_roots={self.roots.numel()})'
        )
