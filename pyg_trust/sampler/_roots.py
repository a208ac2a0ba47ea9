"""Shared base of samplers of subgraphs around roots."""

from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    SamplerOutput,
)

from pyg_trust.graph import CSRGraph


class RootSampler(BaseSampler):
    """Sampler whose seeds are nodes, the roots of subgraphs."""

    graph: CSRGraph

    def sample_from_edges(
        self,
        inputs: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
    ) -> SamplerOutput:
        """Refuse edges as seeds: the roots of subgraphs are nodes."""
        raise NotImplementedError(
            f"'{type(self).__name__}' samples from nodes, not from edges"
        )

    @property
    def edge_permutation(self) -> Tensor | None:
        """Position of each edge of the sampler's graph in ``edge_index``."""
        return self.graph.perm
