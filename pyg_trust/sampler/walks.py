"""Node-disjoint subgraphs by random walks, for private training."""

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput

from pyg_trust import ops, rng
from pyg_trust._checks import (
    Count,
    Natural,
    as_ids,
    check_dtype,
    check_instance,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import with_edge_index
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer, ranges

__all__ = [
    'DisjointWalks',
    'check_walks',
    'disjoint_walks',
    'max_size',
    'min_subgraphs',
]


class DisjointWalks(NamedTuple):
    r"""Node-disjoint subgraphs, one after the other.

    Args:
        ptr (Tensor): int64, ``[num_subgraphs + 1]``: where each subgraph
            starts in :obj:`node`.
        node (Tensor): int64: the nodes of each subgraph, the root first, the
            others in the order in which they were visited.
    """

    ptr: Tensor
    node: Tensor

    @property
    def num_subgraphs(self) -> int:
        r"""The number of subgraphs, :math:`M`."""
        return self.ptr.numel() - 1

    @property
    def roots(self) -> Tensor:
        """Root of each subgraph, in the order of their draws."""
        return self.node[self.ptr[:-1]]

    def select(self, index: Tensor) -> 'DisjointWalks':
        """Return the subgraphs :obj:`index`, int64, in this order."""
        check_tensor('index', index, torch.int64, ('num',))
        check_range('index', index, self.num_subgraphs, 'the subgraphs')
        start = self.ptr[index]
        size = self.ptr[index + 1] - start
        entry = ranges(start, size)
        return DisjointWalks(pointer(size), self.node[entry])


@validated
def disjoint_walks(
    graph: CSRGraph,
    walk_length: Natural,
    restarts: Count = 1,
    *,
    roots: Tensor | None = None,
    along: bool = True,
    seed: int | None = None,
) -> DisjointWalks:
    """Cover the roots with node-disjoint subgraphs (DRW and DRW-R).

    Algorithms 2 (:obj:`restarts=1`) and 3 of `"Training Differentially Private
    Graph Neural Networks with Random Walk Sampling"
    <https://arxiv.org/abs/2301.00738>`_ (Ayle et al. 2023). While there are
    roots in no subgraph, one is drawn uniformly and opens a subgraph. From it
    go :math:`R` walks of :math:`L` steps, each to a random neighbour that is
    in no subgraph, which the walk takes in.

    Every node is in at most one subgraph and every root in exactly one; a
    subgraph has at most :math:`1 + RL` nodes. Time is :math:`O(n + m)` for
    :math:`n` nodes and :math:`m` edges. A seed gives other subgraphs on CUDA
    than on the CPU.

    Args:
        graph (CSRGraph): the graph, without parallel edges.
        walk_length (int): :math:`L`; 0 for the roots alone.
        restarts (int): :math:`R`, the walks from every root.
        roots (Tensor, optional): int64, ``[num_roots]``: the nodes to start
            from, in any order, or bool, ``[num_nodes]``; by default, all
            nodes. Walks may pass all nodes. (default: :obj:`None`)
        along (bool): whether messages travel along the edges, as PyG's do, or
            against them. (default: :obj:`True`)
        seed (int, optional): the seed; random by default.

    Returns:
        DisjointWalks: int64 ``ptr`` and ``node``. Subgraph ``i`` has the nodes
        ``node[ptr[i]:ptr[i + 1]]``, the root first.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> graph = CSRGraph.from_edge_index(path, num_nodes=3)
        >>> walks = disjoint_walks(graph, walk_length=2, seed=0)
        >>> walks.node.sort().values  # every node, once
        tensor([0, 1, 2])
    """
    size = max_size(walk_length, restarts)
    if graph.has_duplicates:
        raise ValueError(
            "'graph' needs to be free of parallel edges: merge them by "
            'torch_geometric.transforms.RemoveDuplicatedEdges()'
        )
    roots = root_index(roots, graph.num_nodes, graph.device)
    seed = rng.resolve(seed)
    rowptr, col = graph.receivers(along)
    walks = DisjointWalks(
        *ops.disjoint_walks(rowptr, col, roots, walk_length, restarts, seed)
    )
    check_walks(walks, graph.num_nodes, size, roots)
    return walks


def max_size(walk_length: int, restarts: int = 1) -> int:
    r"""Return the most nodes of a subgraph, :math:`1 + RL`."""
    for name, value, least in (
        ('walk_length', walk_length, 0),
        ('restarts', restarts, 1),
    ):
        check_integer(name, value)
        if not least <= value < 2**31:
            raise ValueError(
                f"'{name}' needs to be in [{least}, 2**31) (got {value})"
            )
    return 1 + walk_length * restarts


@validated
def min_subgraphs(
    num_roots: Count, walk_length: Natural, restarts: Count = 1
) -> int:
    r"""Return :math:`\lceil N_{roots} / (1 + RL) \rceil`, the least number."""
    return -(-num_roots // max_size(walk_length, restarts))


def root_index(
    roots: Tensor | None,
    num_nodes: int,
    device: torch.device | str = 'cpu',
    name: str = 'roots',
) -> Tensor:
    """Return distinct nodes of a graph, int64 or a mask, in this order."""
    if roots is None:
        return torch.arange(num_nodes, device=device)
    listed = not isinstance(roots, Tensor)
    roots = as_ids(name, roots)
    if listed and isinstance(roots, Tensor):
        roots = roots.to(device)
    check_dtype(name, roots, (torch.int64, torch.bool))
    if roots.device != torch.device(device):
        raise ValueError(
            f"'{name}' needs to be on the graph's device, {device} "
            f'(got {roots.device})'
        )
    shape = (num_nodes if roots.dtype == torch.bool else 'num_nodes',)
    check_tensor(name, roots, roots.dtype, shape)
    if roots.dtype == torch.bool:
        roots = roots.nonzero().view(-1)
    if roots.numel() == 0:
        raise ValueError(
            f"'{name}' needs to name at least one node (got none)"
        )
    check_range(name, roots, num_nodes, 'the number of nodes')
    if int(roots.bincount().max()) > 1:
        raise ValueError(
            f"'{name}' needs to name each node once "
            f'(got {int(roots.bincount().argmax())} more than once)'
        )
    return roots


def check_walks(
    walks: DisjointWalks, num_nodes: int, size: int, roots: Tensor
) -> None:
    """Refuse subgraphs that share nodes, are too large or miss a root."""
    ptr, node = walks
    sizes = ptr.diff()
    allowed = torch.zeros(num_nodes, dtype=torch.bool, device=node.device)
    allowed[roots] = True
    if (
        sizes.numel() == 0
        or [int(ptr[0]), int(ptr[-1])] != [0, node.numel()]
        or not bool(((sizes >= 1) & (sizes <= size)).all())
        or not bool(((node >= 0) & (node < num_nodes)).all())
        or int((count := node.bincount(minlength=num_nodes)).max()) > 1
        or not bool(count[roots].all())
        or not bool(allowed[walks.roots].all())
    ):
        raise ValueError(
            f"'walks' needs to be disjoint subgraphs of up to {size} nodes, "
            "which start with 'roots' and reach each of them"
        )


class RootSampler(BaseSampler):
    """Base of samplers of subgraphs around roots of one graph."""

    graph: CSRGraph
    roots: Tensor

    def _open(self, data: Data, roots: Any, along: bool) -> None:
        check_instance('data', data, Data)
        data = with_edge_index(data)
        if data.get('edge_index') is None or data.num_nodes is None:
            raise ValueError(
                "'data' needs to have an 'edge_index' and know its 'num_nodes'"
            )
        self.roots = root_index(roots, data.num_nodes, data.edge_index.device)
        self.graph = CSRGraph.from_edge_index(
            data.edge_index, data.num_nodes, perm=True
        )
        self.along = along

    def _batched(
        self,
        node: Tensor,
        owner: Tensor,
        count: int,
        input_id: Tensor | None,
        by_end: bool = False,
    ) -> SamplerOutput:
        # Copies of nodes, each of one subgraph, with the edges inside of each.
        start = self.graph.rowptr[node]
        degree = self.graph.rowptr[node + 1] - start
        edge = ranges(start, degree)
        at = torch.arange(node.numel(), device=node.device)
        row, n = at.repeat_interleave(degree), self.graph.num_nodes
        # The key of a copy: its subgraph and the node.
        known, place = (owner * n + node).sort()
        wanted = owner[row] * n + self.graph.col32[edge]
        where = torch.searchsorted(known, wanted)
        where = where.clamp_(max=max(known.numel() - 1, 0))
        inside = known[where] == wanted
        row, col, edge = row[inside], place[where][inside], edge[inside]
        if by_end:
            order = col.argsort(stable=True)
            row, col, edge = row[order], col[order], edge[order]
        return SamplerOutput(
            node=node,
            row=row,
            col=col,
            edge=edge,
            batch=owner,
            num_sampled_nodes=[count, node.numel() - count],
            metadata=(input_id, None),
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse edges: subgraphs have roots."""
        raise NotImplementedError(
            f"'{type(self).__name__}' samples from nodes, not from edges"
        )

    @property
    def edge_permutation(self) -> Tensor | None:
        """Position of each edge of the sampler's graph in ``edge_index``."""
        return self.graph.perm
