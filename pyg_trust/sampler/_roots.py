"""Shared base of samplers of subgraphs around roots."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput

from pyg_trust._checks import check_instance
from pyg_trust._checks.graphs import with_edge_index
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import ranges
from pyg_trust.sampler.walks import root_index


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
