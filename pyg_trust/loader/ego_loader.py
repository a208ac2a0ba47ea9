"""Batches of ego graphs as a PyG loader, in graphs of bounded degree."""

from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from pyg_trust import rng
from pyg_trust._checks import Count, Natural, NodeIds, validated
from pyg_trust.loader.step_batches import (
    WITHOUT_REPLACEMENT,
    Sampling,
    StepLoader,
    rooted,
)
from pyg_trust.privacy.mechanisms import fdp_terms
from pyg_trust.sampler.ego_sampler import EgoSampler

__all__ = ['EgoLoader']


@validated
class EgoLoader(StepLoader):
    r"""Loads batches of ego graphs, for private training of nodes.

    An ego graph is a root with copies of the nodes within :obj:`num_hops`
    steps (`Daigavane et al. 2021 <https://arxiv.org/abs/2111.15521>`_). If a
    node sends messages to at most :math:`K` others
    (:class:`~pyg_trust.transforms.BoundedDegree`), it is in at most :math:`1 +
    K + \cdots + K^l` ego graphs, so that replacing it changes at most as many
    gradients (:class:`~pyg_trust.privacy.GroupAccountant`). This is a
    baseline: :class:`~pyg_trust.loader.DisjointWalkLoader` needs far less
    noise.

    A batch is a ``Data``. Its roots come first (``batch_size``); ``n_id`` is
    the node of each row, with repetitions, and ``batch`` its ego graph.

    Args:
        data (Data): the graph, with an ``edge_index`` without duplicates, on
            the CPU, of bounded degree.
        batch_size (int): :math:`m` roots a batch; if Poisson, on average.
        num_hops (int): the number :math:`l` of message-passing layers.
        max_degree (int): :math:`K`, to how many others a node sends at most.
        input_nodes (Tensor, optional): the roots, as indices or as a mask; by
            default, all nodes. (default: :obj:`None`)
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor N / m \rfloor` for :math:`N` roots.
        along (bool): whether messages travel along the edges or against them.
            (default: :obj:`True`)
        sampling (str): :obj:`'without_replacement'` or :obj:`'poisson'`.
        seed (int, optional): the seed of batches that are drawn without an
            engine; random by default.
        **kwargs (optional): more arguments of :class:`NodeLoader`; none that
            choose batches.
    """

    unit = 'ego graphs of roots in a graph of bounded degree'

    def __init__(
        self,
        data: Data,
        batch_size: Count,
        num_hops: Natural,
        max_degree: Count,
        input_nodes: NodeIds | None = None,
        *,
        num_steps: Count | None = None,
        along: bool = True,
        sampling: Sampling = WITHOUT_REPLACEMENT,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.check_kwargs(kwargs, num_steps=num_steps)
        data, input_nodes = rooted(data, input_nodes)
        sampler = EgoSampler(data, num_hops, input_nodes, along=along)
        found = sampler.max_receivers
        if found > max_degree:
            way = '' if along else ', along=False'
            raise ValueError(
                f"'data' needs to have at most {max_degree} receivers of a "
                f'node (got one with {found}): data = pyg_trust.transforms.'
                f'BoundedDegree({max_degree}{way})(data)'
            )
        count = sampler.roots.numel()
        if batch_size > count:
            raise ValueError(
                f"'batch_size' needs to be at most {count}, the number of "
                f'roots (got {batch_size})'
            )
        self.num_hops, self.max_degree = num_hops, max_degree
        self.terms = min(count, fdp_terms(max_degree, num_hops))
        self.sampling = sampling
        steps = count // batch_size if num_steps is None else num_steps
        roots, seed = sampler.roots, rng.resolve(seed)
        super().__init__(
            *(data, sampler, roots, batch_size, steps, seed), **kwargs
        )

    def _count_units(self, number: int) -> int:
        return len(self.node_sampler.roots)

    def _make(self, number: int, index: Tensor) -> SamplerOutput:
        return self.node_sampler.sample_roots(index)

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        return {
            'loader': type(self).__name__,
            'batch_size': self.subgraphs_per_batch,
            'num_hops': self.num_hops,
            'max_degree': self.max_degree,
            'along': self.node_sampler.along,
            'sampling': self.sampling,
        }
