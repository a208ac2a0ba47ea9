"""Batches of whole graphs as a PyG loader, for graph classification."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from pyg_trust import rng
from pyg_trust._checks import check_instance
from pyg_trust.loader.step_batches import (
    StepBatches,
    StepLoader,
    check_positive,
    check_step,
)


class _NoSampler(BaseSampler):
    # Graphs are drawn whole.
    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        raise NotImplementedError('graphs are drawn whole')

    def sample_from_edges(
        self,
        inputs: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
    ) -> SamplerOutput:
        raise NotImplementedError('graphs are drawn whole')


class GraphLoader(StepLoader):
    r"""Loads batches of whole graphs, for private graph classification.

    Every step draws :math:`m` of the :math:`M` graphs uniformly without
    replacement, afresh. The unit that is protected is a graph: its nodes,
    edges, features and label, all together. The gradient of each is clipped
    to :math:`C`.

    **Replaced.** If one graph is another, it is drawn with probability
    :math:`q = m / M`, and then one summand of norm at most :math:`C` is
    another: the sum moves by at most :math:`2C`, which is what
    :class:`~pyg_trust.privacy.PrivacyEngine` accounts for.

    **Added or removed.** The same numbers hold. Let :math:`D` have one graph
    more than :math:`D'`. A draw of :math:`m` from :math:`D` misses it with
    probability :math:`1 - q` and is then a draw from :math:`D'`, so that
    :math:`P = (1 - q) P' + q P_1`; exchanging it for one of the others at
    random makes a draw with it one without, whose sum is at most :math:`2C`
    away. By advanced joint convexity (`Balle, Barthe and Gaboardi, 2018
    <https://arxiv.org/abs/1807.01647>`_, Theorem 2) :math:`P` and :math:`P'`
    are as close as if it were replaced, at the rate :math:`q = m / M` of the
    larger. A report tells :math:`M`, and so does a rate: to keep it a secret
    who is there at all, keep them too.

    A batch looks like one of :class:`torch_geometric.loader.DataLoader`:
    nodes graph by graph, ``batch``, ``ptr``, labels with a row per graph;
    ``input_id`` tells which graphs they are, ``n_id`` numbers the nodes of
    all graphs, and ``batch_size`` is :math:`m`. The model needs to return one
    row per graph:

    .. code-block:: python

        loader = GraphLoader(TUDataset('data', 'PROTEINS'), batch_size=64)
        out = model(batch.x, batch.edge_index, batch.batch)
        F.cross_entropy(out, batch.y).backward()

    Args:
        data (sequence of Data): the graphs, on the CPU, each with a node and
            an ``edge_index``. They are not to be changed afterwards.
        batch_size (int): :math:`m`, which is constant.
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor M / m \rfloor`. (default: :obj:`None`)
        seed (int, optional): the seed. (default: :obj:`None`)
        **kwargs (optional): more arguments of :class:`NodeLoader`, such as
            :obj:`transform` or :obj:`num_workers`; none that choose batches.

    Raises:
        TypeError: on a wrong type.
        ValueError: if there are fewer graphs than :obj:`batch_size`, or one
            has no node or no ``edge_index``.
    """

    terms = 1
    unit = 'whole graphs'
    relation = 'replace-one-graph'
    by_unit = True

    def __init__(
        self,
        data: Sequence[Data],
        batch_size: int,
        *,
        num_steps: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_positive('batch_size', batch_size)
        self.check_kwargs(kwargs, num_steps=num_steps)
        if isinstance(data, Data | str) or not hasattr(data, '__getitem__'):
            raise TypeError(
                "'data' needs to be a sequence of torch_geometric.data.Data "
                f'(got {type(data).__name__})'
            )
        self.graphs = [data[i] for i in range(len(data))]
        for number, graph in enumerate(self.graphs):
            check_instance(f'data[{number}]', graph, Data)
            edges = graph.get('edge_index')
            if not isinstance(edges, Tensor) or not graph.num_nodes:
                raise ValueError(
                    f"'data' needs to hold graphs with nodes and an "
                    f"'edge_index' (not so graph {number})"
                )
        count = len(self.graphs)
        if batch_size > count:
            raise ValueError(
                f"'batch_size' needs to be at most {count}, the number of "
                f'graphs (got {batch_size})'
            )
        sizes = torch.tensor([int(g.num_nodes or 0) for g in self.graphs])
        self._first = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        batches = StepBatches(
            batch_size,
            count // batch_size if num_steps is None else num_steps,
            self.num_subgraphs_at,
            lambda step, index: index.tolist(),
            rng.derive(rng.resolve(seed), 1),
        )
        super().__init__(
            Data(num_nodes=count),
            _NoSampler(),
            batches,
            torch.arange(count),
            **kwargs,
        )

    def num_subgraphs_at(self, step: int) -> int:
        """The number of graphs, of which every step draws.

        Args:
            step (int): the step, counted from 0 through all epochs.
        """
        check_step(step)
        return len(self.graphs)

    def setting(self) -> dict[str, Any]:
        """The public arguments, by name; seeds are secret."""
        return {
            'loader': type(self).__name__,
            'batch_size': self.subgraphs_per_batch,
            'num_graphs': len(self.graphs),
        }

    def public(self) -> tuple[Any, ...]:
        """What is public of the graphs: their number, and what they have."""
        first = self.graphs[0].to_dict()
        shapes = {
            name: [list(value.shape[1:]), str(value.dtype)]
            for name, value in first.items()
            if isinstance(value, Tensor)
        }
        return len(self.graphs), repr(sorted(shapes))

    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee in one graph rests on, and does not cover."""
        return (
            'protected is one graph with its nodes, edges, features and label '
            '(the same numbers hold for adding or removing it, if the number '
            'of graphs, which this report tells, stays a secret)',
            'what a trained model predicts for a graph reads that graph alone',
            'no graph was made or chosen by looking at others; C, the noise, '
            'the number of steps and the hyper-parameters were chosen without '
            'looking at private graphs (each run of a search is a release of '
            'its own, unless pyg_trust.privacy.search made it)',
            'the loss does not use how many nodes or edges a batch has; that '
            'the model passed its probe, which reads the sizes and edges of '
            'some graphs, counts as public',
        )

    def collate_fn(self, index: list[int] | Tensor) -> Any:
        """Makes a batch of what the batch sampler has drawn."""
        index = torch.as_tensor(index, dtype=torch.int64)
        whole = Batch.from_data_list([self.graphs[i] for i in index.tolist()])
        out = Data.from_dict(whole.to_dict())
        out.num_nodes = whole.num_nodes
        sizes = whole.ptr.diff()
        offset = self._first[index] - whole.ptr[:-1]
        out.n_id = torch.arange(int(whole.ptr[-1]))
        out.n_id += offset.repeat_interleave(sizes)
        out.input_id = index
        out.batch_size = index.numel()
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Applies the transform."""
        return out if self.transform is None else self.transform(out)

    def check_batch(
        self, batch: Data, step: int, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Makes sure that a batch holds distinct graphs, each whole.

        Args:
            batch (Data): a batch, or a part of one, on the CPU.
            step (int): the step, counted from 0 through all epochs.
            count (int, optional): how many graphs it needs to have; by
                default any number up to ``batch_size``.
                (default: :obj:`None`)

        Returns:
            tuple[Tensor, int]: int64, ``[num_nodes]``, the graph of each
            node, and the number of graphs.

        Raises:
            ValueError: if it does not.
        """
        check_step(step)
        if count is not None:
            check_positive('count', count)
        good = False
        if isinstance(batch, Data):
            index, node, owner = (
                batch.get(name) for name in ('input_id', 'n_id', 'batch')
            )
            good = all(
                isinstance(value, Tensor)
                and value.dtype == torch.int64
                and value.dim() == 1
                and value.numel() > 0
                for value in (index, node, owner)
            )
        if good:
            found, total = index.numel(), int(self._first[-1])
            good = (
                found <= (count or self.subgraphs_per_batch)
                and (count is None or found == count)
                and int(index.min()) >= 0
                and int(index.max()) < len(self.graphs)
                and index.unique().numel() == found
                and node.shape == owner.shape
                and node.numel() == batch.num_nodes
                and int(node.min()) >= 0
                and int(node.max()) < total
                and node.unique().numel() == node.numel()
                and int(owner.min()) >= 0
                and int(owner.max()) == found - 1
            )
        if good:
            of = torch.searchsorted(self._first, node, right=True) - 1
            size = owner.bincount(minlength=found)
            good = torch.equal(of, index[owner]) and torch.equal(
                size, self._first.diff()[index]
            )
        if not good:
            raise ValueError(
                'a batch needs to hold whole, distinct graphs: is there a '
                "'transform' that changes 'n_id', 'batch', 'input_id' or the "
                'number of nodes?'
            )
        return owner, found

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({len(self.graphs)} graphs, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )
