"""Batches of whole graphs as a PyG loader, for graph classification."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from torch_geometric.data import Batch, Data

from pyg_trust._checks import Count, OneOf, Rate, validated
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import check_edges, check_graph
from pyg_trust._moved import renamed
from pyg_trust.graph.ragged import pointer
from pyg_trust.loader.step_batches import (
    RELATIONS,
    WITHOUT_REPLACEMENT,
    DrawnUnits,
    Sampling,
)

__all__ = ['GraphLoader']


@validated
class GraphLoader(DrawnUnits):
    r"""Loads batches of whole graphs, for private graph classification.

    Every step draws :math:`m` of the :math:`M` graphs uniformly without
    replacement, or each independently with ``sampling='poisson'``. A graph is
    protected with its nodes, edges, features and label.

    A batch is a :class:`~torch_geometric.data.Batch` of PyG with ``input_id``,
    the positions of its graphs, and ``n_id``, which numbers the nodes of all
    graphs unless these have an ``n_id`` of their own. The model needs to
    return one row per graph:

    .. code-block:: python

        loader = GraphLoader(TUDataset('data', 'PROTEINS'), batch_size=64)
        out = model(batch.x, batch.edge_index, batch.batch)
        F.cross_entropy(out, batch.y).backward()

    Args:
        data (sequence of Data): the graphs, such as a list or a PyG dataset,
            on the CPU, each with a node and an ``edge_index``. They are not to
            be changed afterwards.
        batch_size (int): :math:`m`, the graphs of a batch; with Poisson
            sampling, the public number by which sums of gradients are divided.
        num_steps (int, optional): the batches of an epoch; by default
            :math:`\lfloor M / m \rfloor`, or one over the :obj:`sample_rate`.
        sampling (str): :obj:`'without_replacement'` or :obj:`'poisson'`.
        neighboring (str): :obj:`'replace'`: one graph is exchanged for
            another; or :obj:`'add_remove'`: one is added or removed, so that
            :math:`M` is private, too. This needs Poisson sampling and a
            :obj:`sample_rate`.
        sample_rate (float, optional): the public probability with which each
            graph is drawn, for ``'add_remove'`` alone.
        seed (int, optional): the seed of batches drawn without an engine.
        follow_batch, exclude_keys (sequence of str, optional): as of PyG.
        **kwargs (optional): more arguments of :class:`NodeLoader`.
    """

    unit = 'whole graphs'
    noun = 'graph'

    @renamed(relation='neighboring')
    def __init__(
        self,
        data: Sequence[Data],
        batch_size: Count,
        *,
        num_steps: Count | None = None,
        sampling: Sampling = WITHOUT_REPLACEMENT,
        neighboring: Annotated[str, OneOf(RELATIONS)] = 'replace',
        sample_rate: Rate | None = None,
        seed: int | None = None,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_law(sampling, neighboring, sample_rate)
        if isinstance(data, Batch):
            data = data.to_data_list()
        if isinstance(data, Data | str | IterableDataset) or not (
            hasattr(data, '__getitem__') and hasattr(data, '__len__')
        ):
            raise TypeError(
                "'data' needs to be a sequence of torch_geometric.data.Data, "
                'of which steps draw afresh: list(data) makes one of a stream '
                f'(got {type(data).__name__})'
            )
        sizes = []
        for number in range(len(data)):
            graph = data[number]
            check_graph('data', number, graph)
            edges = graph.get('edge_index')
            if not isinstance(edges, Tensor) or not graph.num_nodes:
                raise ValueError(
                    f"'data' needs to hold graphs with nodes and an "
                    f"'edge_index' (not so graph {number})"
                )
            sizes.append(int(graph.num_nodes))
            check_edges(f'data[{number}].edge_index', edges, sizes[-1])
        # Read again at every access, as a dataset may have a transform.
        self.graphs = data
        self._keys = {
            'follow_batch': follow_batch,
            'exclude_keys': exclude_keys,
        }
        if not sizes:
            raise ValueError("'data' needs to hold a graph (got none)")
        self._first = pointer(torch.tensor(sizes))
        # Ids of the user stay, and may repeat: graphs have numbers.
        self._has_ids = 'n_id' in self.graphs[0]
        self._open(len(sizes), batch_size, num_steps, seed, kwargs)

    def _count_units(self, number: int) -> int:
        return len(self._first) - 1

    def layout(self) -> str:
        """Return a hash, to check that processes agree on graph sizes."""
        return fingerprint(self._first)

    def public(self) -> tuple[Any, ...]:
        """Return the public data, whose hash is in reports and ledgers.

        It has the number of graphs, if this is public (not ``'add_remove'``),
        and a string with the names of the graphs' tensors.
        """
        first = self.graphs[0].to_dict().items()
        # No shapes: those of edges would show how many edges a graph has.
        names = sorted(n for n, value in first if isinstance(value, Tensor))
        if self._rate is not None:
            return (repr(names),)
        return len(self._first) - 1, repr(names)

    def assumptions(self) -> tuple[str, ...]:
        """Return sentences: what a guarantee assumes and does not cover."""
        what = (
            'protected is one graph with its nodes, edges, features and label'
        )
        if self._rate is not None:
            what += (
                ', and whether it is there at all: the rate and the number by '
                'which sums are divided were chosen without counting graphs'
            )
        elif self.sampling == WITHOUT_REPLACEMENT:
            what += (
                ' (the same numbers hold for adding or removing it, if the '
                'number of graphs, which this report tells, stays a secret)'
            )
        return (
            what,
            'what a trained model predicts for a graph reads that graph alone',
            'no graph was made or chosen by looking at others; C, the noise, '
            'the number of steps and the hyper-parameters were chosen without '
            'looking at private graphs (each run of a search is a release of '
            'its own, unless pyg_trust.privacy.search made it)',
            'that the model passed its probe, which reads the sizes and edges '
            'of some graphs, counts as public',
        )

    def _make(self, number: int, index: Tensor) -> Batch:
        if index.numel() == 0:
            return self._empty()
        graphs = [self.graphs[i] for i in index.tolist()]
        out = Batch.from_data_list(graphs, **self._keys)
        sizes = self._first[index + 1] - self._first[index]
        if not torch.equal(out.ptr.diff(), sizes):
            raise ValueError(
                "'data' needs graphs that have as many nodes at every access "
                'as at the first: call a transform that changes their number '
                'before, as pre_transform= of the dataset'
            )
        out.num_nodes = int(sizes.sum())
        if not self._has_ids:
            shift = (self._first[index] - out.ptr[:-1])[out.batch]
            out.n_id = torch.arange(out.num_nodes) + shift
        out.input_id = index
        out.batch_size = index.numel()
        return out

    def _empty(self) -> Batch:
        # A batch of one graph, without its rows.
        out = Batch.from_data_list([self.graphs[0]], **self._keys)
        index = torch.arange(0)
        for name, value in out.to_dict().items():
            if isinstance(value, Tensor) and value.dim():
                dim = out.__cat_dim__(name, value)
                out[name] = value.narrow(0 if dim is None else dim, 0, 0)
            elif isinstance(value, list):
                out[name] = []
        out.ptr, out.input_id = torch.zeros(1).long(), index
        out.n_id = index
        out.num_nodes = out.batch_size = out._num_graphs = 0
        return out
