"""Batches of node-disjoint subgraphs as a PyG loader."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import SamplerOutput

from pyg_trust import rng
from pyg_trust._checks import Count, Natural, NodeIds, validated
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust.graph.ragged import pointer
from pyg_trust.loader.step_batches import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Sampling,
    StepLoader,
    of_persons,
    rooted,
)
from pyg_trust.sampler import DisjointWalkSampler
from pyg_trust.sampler.walks import DisjointWalks, min_subgraphs
from pyg_trust.unit import PrivacyUnit

__all__ = ['DisjointWalkLoader']

# The relation of persons.
PERSON = 'replace-one-person'
# Stream of the partitions.
_PARTITION = 0


@validated
class DisjointWalkLoader(StepLoader):
    r"""Loads batches of node-disjoint subgraphs, for private training.

    Random walks divide the graph into a *partition* of :math:`M` subgraphs
    that share no node (`Ayle et al. 2023
    <https://arxiv.org/abs/2301.00738>`_). Every step draws :math:`m` of them,
    uniformly without replacement, or each independently with
    ``sampling='poisson'``, at the public rate :math:`q = m / M`. The features
    of one node are protected.

    A batch is a :class:`~torch_geometric.data.Data` with the edges inside each
    subgraph and none between two. Its :math:`m` roots come first
    (``batch_size``); ``n_id`` are the nodes, ``e_id`` the edges, ``batch`` the
    subgraph of each node and ``input_id`` the position of each root in
    :obj:`input_nodes`. A transform has to keep these as they are.

    With a :class:`~pyg_trust.unit.PrivacyUnit` a batch holds rows of the table
    of persons, and all that a person owns in any table is protected. Other
    tables reach the model by :class:`~pyg_trust.transforms.MetapathFeatures`.

    Args:
        data (Data or HeteroData): the graph, without duplicate edges, on the
            CPU or, without workers, on CUDA; typed if there is a :obj:`unit`.
        batch_size (int): :math:`m` subgraphs a batch; if Poisson, on average.
        walk_length (int): :math:`L`, the steps of a walk; 0 with persons.
        restarts (int): :math:`R`, the walks from every root.
        input_nodes (Tensor, optional): the roots, as indices or as a mask; by
            default all nodes.
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor M / m \rfloor` of the first partition.
        resample_every (int, optional): after how many training steps a new
            partition is drawn; by default all steps use the first.
        unit (PrivacyUnit, optional): the owners of rows, to protect persons.
        along (bool): whether messages travel along the edges or against them.
        contiguous (bool): whether the nodes of a subgraph stand together, as
            pooling needs it; roots are then those of ``root_mask``.
        sampling (str): :obj:`'without_replacement'` or :obj:`'poisson'`.
        seed (int, optional): the seed of partitions, which are public, and of
            batches that are drawn without an engine.
        **kwargs (optional): more arguments of :class:`NodeLoader`.
    """

    unit = 'node-disjoint random walks'
    _declared: dict[str, Any] | None = None

    def __init__(
        self,
        data: Data | HeteroData,
        batch_size: Count,
        walk_length: Natural,
        restarts: Count = 1,
        input_nodes: NodeIds | None = None,
        *,
        num_steps: Count | None = None,
        resample_every: Count | None = None,
        unit: PrivacyUnit | None = None,
        along: bool = True,
        contiguous: bool = False,
        sampling: Sampling = WITHOUT_REPLACEMENT,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.check_kwargs(
            kwargs, num_steps=num_steps, resample_every=resample_every
        )
        if unit is not None:
            if walk_length:
                raise ValueError(
                    f"'walk_length' needs to be 0 with a 'unit' (got "
                    f'{walk_length})'
                )
            # Batches name rows by position.
            data = unit.table(data)
            del data.n_id
            self.unit, self.relation = 'persons, a row each', PERSON
            self._declared, self.owned_by = unit.summary(), unit.digest
        data, input_nodes = rooted(data, input_nodes)
        # The seed is resolved after all checks.
        sampler = DisjointWalkSampler(
            data, walk_length, restarts, input_nodes, along=along, seed=0
        )
        seed = rng.resolve(seed)
        sampler.seed = rng.derive(seed, _PARTITION)
        if resample_every is None:
            most, what = sampler.partition().num_subgraphs, 'of the partition'
        else:
            most = min_subgraphs(sampler.roots.numel(), walk_length, restarts)
            what = 'that every partition is sure to have'
        if batch_size > most:
            raise ValueError(
                f"'batch_size' needs to be at most {most}, the number of "
                f'subgraphs {what} (got {batch_size})'
            )
        if num_steps is None:
            num_steps = sampler.partition().num_subgraphs // batch_size
        roots = sampler.roots
        self._position = roots.new_full((sampler.graph.num_nodes,), -1)
        self._position[roots] = torch.arange(len(roots), device=roots.device)
        self.contiguous, self.sampling = contiguous, sampling
        self.resample_every = resample_every
        super().__init__(
            *(data, sampler, roots, batch_size, num_steps, seed), **kwargs
        )

    def draw(self, step: int) -> DisjointWalks:
        """Return the subgraphs of a step, counted from 0 through all epochs.

        Subgraph ``i`` of the result has the nodes ``node[ptr[i]:ptr[i + 1]]``,
        the root first.
        """
        walks = self.node_sampler.partition(self._number(step))
        index = self.batch_sampler.index(step)
        return walks.select(index.to(walks.ptr.device))

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        return {
            'loader': type(self).__name__,
            'batch_size': self.subgraphs_per_batch,
            'walk_length': self.node_sampler.walk_length,
            'restarts': self.node_sampler.restarts,
            'along': self.node_sampler.along,
            'contiguous': self.contiguous,
            'resample_every': self.resample_every,
            **({} if self._declared is None else {'persons': self._declared}),
            **({'sampling': POISSON} if self.sampling == POISSON else {}),
        }

    def public(self) -> tuple[Any, ...]:
        """Return the public data, whose hash is in reports and ledgers.

        It has the edges, the roots, the number of nodes and, as strings, the
        features' shape and dtype and the declaration of the ``unit``, if any.
        """
        declared = () if self._declared is None else (repr(self._declared),)
        return (*super().public(), *declared)

    def assumptions(self) -> tuple[str, ...]:
        """Return sentences: what a guarantee assumes and does not cover."""
        if self._declared is None:
            return super().assumptions()
        return of_persons(self._declared)

    def layout(self) -> str:
        """Return a hash, to check that processes agree on the subgraphs."""
        sampler = self.node_sampler
        return fingerprint(*sampler.partition(), sampler.seed)

    def _count_units(self, number: int) -> int:
        return self.node_sampler.partition(number).num_subgraphs

    def __call__(self, index: list[int] | Tensor) -> Any:
        """Make a batch of some of the input nodes, by position."""
        index = torch.as_tensor(index, dtype=torch.int64)
        nodes = self.input_nodes[index.to(self.input_nodes.device)]
        return self.filter_fn(self._sampled(self.node_sampler._rooted(nodes)))

    def _make(self, number: int, index: Tensor) -> SamplerOutput:
        walks = self.node_sampler.partition(number)
        return self._sampled(walks.select(index.to(walks.ptr.device)))

    def _sampled(self, walks: DisjointWalks) -> SamplerOutput:
        return self.node_sampler.sample_walks(
            walks, self._position[walks.roots], contiguous=self.contiguous
        )

    def _plain(self, out: Any) -> Any:
        batch = super()._plain(out)
        if self.contiguous:
            # The first node of each subgraph.
            first = batch.batch.diff(prepend=batch.batch.new_tensor([-1]))
            batch.root_mask = first != 0
            size = batch.batch.bincount(minlength=batch.batch_size)
            batch.ptr = pointer(size)
        return batch
