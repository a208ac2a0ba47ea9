"""Batches of ego graphs as a PyG loader, in graphs of bounded degree."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import Count, Natural, NodeIds, validated
from pyg_trust._checks.graphs import with_edge_index
from pyg_trust.graph._marks import check_rows
from pyg_trust.loader.step_batches import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Sampling,
    StepLoader,
)
from pyg_trust.loader.whole_units import check_ids, positions
from pyg_trust.privacy.mechanisms import fdp_terms
from pyg_trust.sampler.ego_sampler import EgoSampler
from pyg_trust.sampler.walks import named_roots

__all__ = ['EgoLoader']


@validated
class EgoLoader(StepLoader):
    r"""Loads batches of ego graphs, each root with copies of its neighbours.

    The baseline of `"Node-Level Differentially Private Graph Neural Networks"
    <https://arxiv.org/abs/2111.15521>`_ (Daigavane et al. 2021). If a node
    sends to at most :math:`K` others
    (:class:`~pyg_trust.transforms.BoundedDegree`), its messages reach at most
    :math:`1 + K + \cdots + K^l` roots in :math:`l` layers, so that replacing
    its row changes no more than these gradients
    (:class:`~pyg_trust.privacy.GroupAccountant`). Walks
    (:class:`~pyg_trust.loader.DisjointWalkLoader`) cost far less. A batch
    looks like one of walks, with repetitions in ``n_id``.

    Args:
        data (Data): the graph, with an ``edge_index`` without duplicates, on
            the CPU, of bounded degree.
        batch_size (int): :math:`m`, which is constant, or the expected size.
        num_hops (int): the number :math:`l` of message-passing layers.
        max_degree (int): :math:`K`, the most receivers of a node.
        input_nodes (Tensor, optional): the roots, as indices or as a mask;
            by default, all nodes. (default: :obj:`None`)
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor N / m \rfloor`. (default: :obj:`None`)
        along (bool): whether messages travel along the edges or against
            them. (default: :obj:`True`)
        sampling (str): :obj:`'without_replacement'` or :obj:`'poisson'`.
            (default: :obj:`'without_replacement'`)
        seed (int, optional): the seed. (default: :obj:`None`)
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
        check_rows(data)
        check_ids(data)
        data = with_edge_index(data)
        input_nodes = named_roots(input_nodes, data)
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
        self.num_hops = num_hops
        self.max_degree = max_degree
        self.terms = min(count, fdp_terms(max_degree, num_hops))
        self.sampling = sampling
        steps = count // batch_size if num_steps is None else num_steps
        batches = self._drawn(batch_size, steps, rng.resolve(seed))
        super().__init__(data, sampler, batches, sampler.roots, **kwargs)

    @validated
    def num_subgraphs_at(self, step: Natural) -> int:
        """Return the number of ego graphs, one for each root."""
        return self.node_sampler.roots.numel()

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

    def collate_fn(self, index: list[int] | Tensor) -> Any:
        """Make a batch of the drawn units."""
        if not isinstance(index, Tensor):
            index = torch.tensor(index, dtype=torch.int64)
        out = self.node_sampler.sample_roots(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    @validated
    def check_batch(
        self, batch: Any, step: Natural, count: Count | None = None
    ) -> tuple[Tensor, int]:
        """Refuse a batch that does not hold ego graphs of distinct roots."""
        index = batch.get('input_id') if isinstance(batch, Data) else None
        good = False
        if isinstance(index, Tensor) and index.dim() == 1:
            roots = self.node_sampler.roots
            size = index.numel()
            if bool(((index >= 0) & (index < roots.numel())).all()):
                # It names its roots: sample them again and compare.
                want = self.node_sampler.sample_roots(index)
                good = (
                    size <= (count or self.most_at(step))
                    and (size > 0 or self.sampling == POISSON)
                    and (count is None or size == count)
                    and index.unique().numel() == size
                    and _equal(
                        positions(self.data.get('n_id'), batch.get('n_id')),
                        want.node,
                    )
                    and _equal(batch.get('batch'), want.batch)
                    and batch.num_nodes == want.node.numel()
                )
        if not good:
            raise ValueError(
                'a batch needs to hold the ego graphs of distinct roots: is '
                "there a 'transform' that changes its nodes?"
            )
        return batch.batch, size


def _equal(actual: Any, want: Tensor) -> bool:
    return isinstance(actual, Tensor) and torch.equal(actual, want)
