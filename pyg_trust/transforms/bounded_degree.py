"""Transform that caps the out-degree of a graph."""

import torch
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import rng
from pyg_trust._checks import Count, check_instance, validated
from pyg_trust._checks.graphs import check_edges, with_edge_index
from pyg_trust._describe import described
from pyg_trust.graph.attributes import keep_edges, refuse_adjacencies

__all__ = ['BoundedDegree']


@validated
@functional_transform('bounded_degree')
class BoundedDegree(BaseTransform):
    r"""Cap the out-degree: keep at most :math:`K` random receivers per node.

    The first step of `"Node-Level Differentially Private Graph Neural
    Networks" <https://arxiv.org/abs/2111.15521>`_ (Daigavane et al. 2021;
    functional name: :obj:`bounded_degree`). In private training a node's row
    may reach few others only, so the edges that *leave* a node are thinned
    out: of each node's, :math:`K` are kept uniformly at random, or all if
    there are fewer. Bounding the edges that *enter* would leave a hub in
    everybody's neighbourhood. The choice depends on the structure and the seed
    alone; an undirected graph becomes directed.
    Self-loops are kept and do not count.

    All edge attributes follow their edges; labelled pairs, as
    :class:`~torch_geometric.transforms.RandomLinkSplit` writes, stay.

    Args:
        K (int): the largest number of receivers per node.
        along (bool): whether messages travel along the edges, as PyG's do,
            or against them. (default: :obj:`True`)
        seed (int, optional): the seed. (default: :obj:`None`)
    """

    def __init__(
        self, K: Count, along: bool = True, seed: int | None = None
    ) -> None:
        self.K = K
        self.along = along
        self.seed = None if seed is None else rng.resolve(seed)

    def forward(self, data: Data) -> Data:
        """Return the graph with fewer edges."""
        check_instance('data', data, Data)
        data = with_edge_index(data)
        if data.edge_index is None:
            raise ValueError("'data' needs to have an 'edge_index'")
        refuse_adjacencies(data)
        edge_index = check_edges(
            'edge_index', data.edge_index, int(data.num_nodes or 0)
        ).cpu()
        sender = edge_index[0 if self.along else 1]
        loop = edge_index[0] == edge_index[1]
        counted = (~loop).nonzero().view(-1)
        # In random order, then by sender: the first K of each are kept.
        order = torch.randperm(
            counted.numel(), generator=rng.generator(self.seed)
        )
        counted = counted[order]
        counted = counted[sender[counted].argsort(stable=True)]
        who = sender[counted]
        start = torch.searchsorted(who, who)
        rank = torch.arange(who.numel()) - start
        keep = loop.clone()
        keep[counted[rank < self.K]] = True
        return keep_edges(data, keep.to(data.edge_index.device))

    def __repr__(self) -> str:
        return described(self, K=self.K)
