"""Node-disjoint subgraphs as a PyG sampler."""

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from pyg_trust import ops, rng
from pyg_trust._checks import (
    Natural,
    NodeIds,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.graph.ragged import pointer
from pyg_trust.sampler.walks import (
    DisjointWalks,
    RootSampler,
    disjoint_walks,
    max_size,
    root_index,
)

__all__ = ['DisjointWalkSampler']


class DisjointWalkSampler(RootSampler):
    """Samples node-disjoint subgraphs by random walks (DRW and DRW-R).

    A root that is in no subgraph yet starts one, and random walks from it add
    nodes that are in none (:func:`pyg_trust.sampler.disjoint_walks`). A
    *partition* is one such set of :math:`M` subgraphs. Partition :math:`k` is
    drawn from the seed and :math:`k`. Only the edges of :obj:`data` are read.
    For inductive training pass ``data.subgraph(train_mask)``.

    Args:
        data (Data): the graph, with an ``edge_index`` without duplicates, on
            the CPU or on CUDA, where everything is then sampled.
        walk_length (int): :math:`L`, the steps of a walk.
        restarts (int): :math:`R`, the walks from every root.
        roots (Tensor, optional): the nodes to start from, as indices or as a
            mask; by default, all nodes. (default: :obj:`None`)
        along (bool): whether messages travel along the edges or against them.
            (default: :obj:`True`)
        seed (int, optional): the seed; random by default.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> data = Data(edge_index=path, num_nodes=3)
        >>> sampler = DisjointWalkSampler(data, walk_length=1, seed=0)
        >>> walks = sampler.partition()
        >>> walks.node.unique().numel() == walks.node.numel() == 3
        True
    """

    def __init__(
        self,
        data: Data,
        walk_length: int,
        restarts: int = 1,
        roots: NodeIds | None = None,
        *,
        along: bool = True,
        seed: int | None = None,
    ) -> None:
        self.max_size = max_size(walk_length, restarts)
        self._open(data, roots, along)
        if not ops.has_kernel(self.graph.device.type):
            raise ValueError(
                "'data' needs to be on the CPU or a CUDA device that this "
                f'build has kernels for (got {self.graph.device})'
            )
        self.walk_length = walk_length
        self.restarts = restarts
        self.seed = rng.resolve(seed)
        self._last: tuple[int, DisjointWalks] | None = None

    @validated
    def partition(self, number: Natural = 0) -> DisjointWalks:
        """Draw the partition :math:`k` = ``number``; the last one is cached.

        Subgraph ``i`` of the result has the nodes ``node[ptr[i]:ptr[i + 1]]``,
        the root first.
        """
        if self._last is None or self._last[0] != number:
            self._last = number, self._walk(self.roots, number)
        return self._last[1]

    def _walk(self, roots: Tensor, number: int) -> DisjointWalks:
        return disjoint_walks(
            self.graph,
            self.walk_length,
            self.restarts,
            roots=roots,
            along=self.along,
            seed=rng.derive(self.seed, number),
        )

    @validated
    def sample_walks(
        self,
        walks: DisjointWalks,
        input_id: Tensor | None = None,
        *,
        contiguous: bool = False,
    ) -> SamplerOutput:
        """Return some disjoint subgraphs, with the edges inside, as one batch.

        Args:
            walks (DisjointWalks): the subgraphs, such as
                ``partition().select(index)``.
            input_id (Tensor, optional): int64, ``[num_subgraphs]``: the
                positions of their roots among a loader's input nodes.
            contiguous (bool): the order of nodes: false puts all roots first,
                then the others, subgraph by subgraph; true puts each subgraph
                as a whole, its root first, with edges sorted by target.
        """
        check_range(
            'walks.node', walks.node, self.graph.num_nodes, 'the nodes'
        )
        count = walks.num_subgraphs
        if input_id is not None:
            check_tensor('input_id', input_id, torch.int64, (count,))
        owner = self._count(count).repeat_interleave(walks.ptr.diff())
        first = torch.zeros_like(owner, dtype=torch.bool)
        first[walks.ptr[:-1]] = True
        node, batch = walks.node, owner
        if not contiguous:
            node = torch.cat([walks.node[first], walks.node[~first]])
            batch = torch.cat([owner[first], owner[~first]])

        if bool((node.sort().values.diff() == 0).any()):
            raise ValueError("'walks' needs to be disjoint")
        return self._batched(node, batch, count, input_id, contiguous)

    @validated
    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """Return disjoint subgraphs with given roots, as one batch.

        ``inputs.node`` are the roots, each once. Subgraphs are those of
        partition 0, if it has all of these roots; else they are drawn from
        these roots alone.
        """
        # Loaders hand over indices on the CPU.
        node = inputs.node.to(self.graph.device)
        node = root_index(node, self.graph.num_nodes, self.graph.device)
        input_id = inputs.input_id
        return self.sample_walks(
            self._rooted(node), node if input_id is None else input_id
        )

    def _rooted(self, node: Tensor) -> DisjointWalks:
        # Disjoint subgraphs with these roots, in order.
        walks = self.partition()
        place = node.new_full((self.graph.num_nodes,), -1)
        place[walks.roots] = self._count(walks.num_subgraphs)
        if bool((place[node] >= 0).all()):
            return walks.select(place[node])
        walks = self._walk(node, 0)
        # One that a walk of another has passed leaves it, and stands alone.
        place[:] = -1
        place[node] = self._count(node.numel())
        owner = place[walks.roots].repeat_interleave(walks.ptr.diff())
        own = place[walks.node]
        first = own >= 0
        owner = torch.where(first, own, owner)
        order = (~first).long().argsort(stable=True)
        order = order[owner[order].argsort(stable=True)]
        count = owner.bincount(minlength=node.numel())
        return DisjointWalks(pointer(count), walks.node[order])

    def _count(self, end: int) -> Tensor:
        return torch.arange(end, device=self.graph.device)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(walk_length={self.walk_length}, '
            f'restarts={self.restarts}, num_roots={self.roots.numel()})'
        )
