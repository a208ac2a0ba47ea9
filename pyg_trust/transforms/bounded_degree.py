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
    """Keep at most :math:`K` random outgoing edges of each node.

    In private training a node's features may reach only few other nodes. So
    the edges that *leave* a node are limited, not those that enter it
    (`Daigavane et al. 2021 <https://arxiv.org/abs/2111.15521>`_; functional
    name: :obj:`bounded_degree`). An undirected graph becomes directed.
    Self-loops are kept and do not count.

    Edge attributes follow their edges. The labelled pairs of
    :class:`~torch_geometric.transforms.RandomLinkSplit` stay as they are.

    Args:
        K (int): the largest number of receivers per node.
        along (bool): whether messages travel along the edges, as PyG's do,
            or against them. (default: :obj:`True`)
        seed (int, optional): the seed of the choice; by default torch's
            generator draws one in every call. (default: :obj:`None`)
    """

    def __init__(
        self, K: Count, along: bool = True, seed: int | None = None
    ) -> None:
        self.K = K
        self.along = along
        self.seed = None if seed is None else rng.resolve(seed)

    def forward(self, data: Data) -> Data:
        """Return the graph without the edges that were not kept."""
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
