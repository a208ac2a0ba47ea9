"""Batches of node-disjoint subgraphs as a PyG loader."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import SamplerOutput

from pyg_trust import rng
from pyg_trust.functional.walks import DisjointWalks, min_subgraphs
from pyg_trust.sampler import DisjointWalkSampler

# Partitions and batches are drawn from streams of their own.
_PARTITION, _BATCH = 0, 1
_OWN = ('sampler', 'batch_sampler', 'shuffle', 'drop_last')


def _write(walks: DisjointWalks) -> list[int]:
    # What a loader hands to its workers is a list of indices. Nodes are
    # distinct, so a subgraph can say where it ends: with its root once more.
    count = torch.arange(walks.num_subgraphs, device=walks.ptr.device)
    last = walks.ptr[1:] + count
    out = walks.node.new_empty(walks.node.numel() + walks.num_subgraphs)
    inner = torch.ones_like(out, dtype=torch.bool)
    inner[last] = False
    out[inner] = walks.node
    out[last] = walks.roots
    return out.tolist()


def _read(
    index: list[int] | Tensor, device: torch.device | str = 'cpu'
) -> DisjointWalks:
    index = torch.as_tensor(index, dtype=torch.int64).to(device)
    node, order = index.sort(stable=True)
    twice = node[1:] == node[:-1]
    last = order[1:][twice].sort().values
    inner = torch.ones_like(index, dtype=torch.bool)
    inner[last] = False
    count = torch.arange(last.numel(), device=device)
    ptr = torch.cat([last.new_zeros(1), last - count])
    return DisjointWalks(ptr, index[inner])


class _WalkBatches(Sampler[list[int]]):
    # The batches of an epoch; the next epoch has others.
    def __init__(
        self,
        walks: DisjointWalkSampler,
        batch_size: int,
        num_steps: int,
        resample_every: int | None,
        seed: int,
    ) -> None:
        self.walks = walks
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.resample_every = resample_every
        self.seed = seed
        self.epoch = 0

    def number(self, step: int) -> int:
        # Of the partition that step draws from.
        every = self.resample_every
        return 0 if every is None else step // every

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.num_steps
        self.epoch += 1
        for step in range(first, first + self.num_steps):
            yield _write(self.draw(step))

    def draw(self, step: int) -> DisjointWalks:
        walks = self.walks.partition(self.number(step))
        # Without torch.randperm, whose seed has 32 bits and whose law has the
        # bias of a remainder: rates are exact, and so is this.
        philox = np.random.Philox(key=rng.derive(self.seed, step))
        index = np.random.Generator(philox).choice(
            walks.num_subgraphs, self.batch_size, replace=False
        )
        return walks.select(torch.from_numpy(index).to(walks.ptr.device))

    def __len__(self) -> int:
        return self.num_steps


class DisjointWalkLoader(NodeLoader):
    r"""Loads batches of node-disjoint subgraphs, for private training.

    **Every step** draws :math:`m` of the :math:`M` subgraphs of a partition,
    uniformly without replacement, afresh and independently of all other
    steps. This, and not the shuffled epochs of other loaders, is what the
    privacy analysis of sampling without replacement is about, at the public
    sampling rate

    .. math::
        q = m / M.

    The partition is drawn once (DRW, DRW-R of `"Training Differentially
    Private Graph Neural Networks with Random Walk Sampling"
    <https://arxiv.org/abs/2301.00738>`_, Ayle et al. 2023), or again every
    :obj:`resample_every` steps (DRW-D); then :math:`M`, and with it
    :math:`q`, is another one for each partition, and
    :meth:`sample_rate_at` tells that of a step. Neither partitions nor
    batches depend on features or labels, as long as the graph and
    :obj:`input_nodes` do not; see
    :func:`pyg_trust.functional.disjoint_walks`. Privacy needs the choice of
    batches to stay secret: keep the seed and ``input_id`` to yourself. The
    streams are good statistically, not cryptographically.

    A batch is a :class:`~torch_geometric.data.Data` object with the edges
    inside each subgraph and none between two. The :math:`m` roots come first
    (``batch_size``, as in any :class:`NodeLoader`); ``n_id`` are the nodes,
    ``e_id`` the edges, ``batch`` the subgraph of each node and ``input_id``
    the position of each root in :obj:`input_nodes`. For training without
    leakage from test nodes (inductive), hand in
    ``data.subgraph(data.train_mask)``.

    The steps of an epoch count on from those of the last: a loader with the
    same arguments and seed gives the same epochs, for any number of workers.

    Args:
        data (Data): the graph, with an ``edge_index`` without duplicates, on
            the CPU or, without workers, on CUDA. There everything is sampled
            and stays, but for the nodes of a batch, which, as a loader's list
            of indices, pass through the host.
        batch_size (int): :math:`m`, the subgraphs of a batch. It is constant.
        walk_length (int): :math:`L`, the steps of a walk.
        restarts (int): :math:`R`, the walks from every root.
            (default: :obj:`1`)
        input_nodes (Tensor, optional): the roots, as indices or as a mask;
            by default, all nodes. (default: :obj:`None`)
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor M / m \rfloor` of the first partition.
            (default: :obj:`None`)
        resample_every (int, optional): the steps between two partitions;
            :obj:`None` to keep the first. (default: :obj:`None`)
        along (bool): whether messages travel along the edges or against
            them. (default: :obj:`True`)
        seed (int, optional): the seed. (default: :obj:`None`)
        **kwargs (optional): more arguments of :class:`NodeLoader`, such as
            :obj:`transform`, :obj:`filter_per_worker` or :obj:`num_workers`;
            none that choose batches.

    Raises:
        TypeError: on a wrong type, or an argument that would choose batches
            otherwise.
        ValueError: if :obj:`batch_size` is more than :math:`M` (with
            :obj:`resample_every`, than the least it can be,
            :func:`pyg_trust.functional.min_subgraphs`), and as
            :func:`pyg_trust.functional.disjoint_walks`.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        walk_length: int,
        restarts: int = 1,
        input_nodes: Tensor | None = None,
        *,
        num_steps: int | None = None,
        resample_every: int | None = None,
        along: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _OWN:
            if name in kwargs:
                raise TypeError(
                    f"'{name}' cannot be chosen: batches are drawn uniformly "
                    'without replacement at every step'
                )
        _check_positive('batch_size', batch_size)
        if num_steps is not None:
            _check_positive('num_steps', num_steps)
        if resample_every is not None:
            _check_positive('resample_every', resample_every)
        seed = rng.resolve(seed)
        sampler = DisjointWalkSampler(
            data,
            walk_length,
            restarts,
            input_nodes,
            along=along,
            seed=rng.derive(seed, _PARTITION),
        )
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
        roots, n = sampler.roots, sampler.graph.num_nodes
        self._position = roots.new_full((n,), -1)
        self._position[roots] = torch.arange(
            roots.numel(), device=roots.device
        )
        batches = _WalkBatches(
            sampler,
            batch_size,
            num_steps,
            resample_every,
            rng.derive(seed, _BATCH),
        )
        # Indices are nodes, of any kind, and not positions in input_nodes.
        super().__init__(data, sampler, batch_sampler=batches, **kwargs)
        self.input_nodes = sampler.roots
        self.subgraphs_per_batch = batch_size
        self._num_subgraphs: dict[int, int] = {}

    def num_subgraphs_at(self, step: int) -> int:
        r"""The number :math:`M` of subgraphs that a step draws from.

        Args:
            step (int): the step, counted from 0 through all epochs.
        """
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(
                f"'step' needs to be an integer (got {type(step).__name__})"
            )
        if step < 0:
            raise ValueError(f"'step' needs to be at least 0 (got {step})")
        number = self.batch_sampler.number(step)
        if number not in self._num_subgraphs:
            walks = self.node_sampler.partition(number)
            self._num_subgraphs[number] = walks.num_subgraphs
        return self._num_subgraphs[number]

    def sample_rate_at(self, step: int) -> float:
        """The public sampling rate of a step, as :meth:`num_subgraphs_at`.

        Args:
            step (int): the step, counted from 0 through all epochs.
        """
        return self.subgraphs_per_batch / self.num_subgraphs_at(step)

    @property
    def num_subgraphs(self) -> int:
        """The number of subgraphs of the first partition."""
        return self.num_subgraphs_at(0)

    @property
    def sample_rate(self) -> float:
        """The public sampling rate of the first partition."""
        return self.sample_rate_at(0)

    def collate_fn(self, index: list[int] | Tensor) -> Any:
        """Makes a batch of what the batch sampler has drawn."""
        walks = _read(index, self._position.device)
        out: SamplerOutput = self.node_sampler.sample_walks(
            walks, self._position[walks.roots]
        )
        return self.filter_fn(out) if self.filter_per_worker else out

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.node_sampler}, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"'{name}' needs to be an integer (got {type(value).__name__})"
        )
    if value < 1:
        raise ValueError(f"'{name}' needs to be at least 1 (got {value})")
