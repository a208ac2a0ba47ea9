"""Baselines that certified removal is compared with.

linear-GST and GFT are other transforms of the same
:class:`~pyg_trust.unlearning.ScatteringClassifier`; unstructured removal (Guo
et al. 2020) is its
:meth:`~pyg_trust.unlearning.ScatteringClassifier.remove` of
:meth:`~pyg_trust.removal.RemovalRequest.whole_graphs`. What is left is a
trained network, whose embeddings depend on every graph: it can only be
trained again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GIN, global_mean_pool
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust._checks import check_instance, check_integer, check_positive
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.transforms.graph_scattering import graph_signal
from pyg_trust.unlearning.training_graphs import check_graphs, graph_labels


class GINClassifier:
    """A graph isomorphism network that unlearns by full retraining.

    The settings are those of Pan et al. 2023: two layers of 64, mean pooling,
    Adam, full batches.

    Args:
        max_degree (int, optional): use one-hot degrees of this width instead
            of ``data.x``. (default: :obj:`None`)
        hidden_channels (int): the width. (default: :obj:`64`)
        num_layers (int): the depth. (default: :obj:`2`)
        lr (float): the learning rate. (default: :obj:`1e-4`)
        epochs (int): the number of epochs. (default: :obj:`500`)
        seed (int, optional): the seed of the initial weights.
            (default: :obj:`None`)
    """

    def __init__(
        self,
        *,
        max_degree: int | None = None,
        hidden_channels: int = 64,
        num_layers: int = 2,
        lr: float = 1e-4,
        epochs: int = 500,
        seed: int | None = None,
    ) -> None:
        if max_degree is not None:
            check_integer('max_degree', max_degree, 1)
        check_integer('hidden_channels', hidden_channels, 1)
        check_integer('num_layers', num_layers, 1)
        check_positive('lr', lr)
        check_integer('epochs', epochs, 0)
        self.max_degree = max_degree
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.lr = lr
        self.epochs = epochs
        self._seed = rng.resolve(seed)
        # Graphs and network, replaced together at the end of a training.
        self._fitted: tuple[dict[int, Data], torch.nn.ModuleDict] | None = None

    def fit(
        self, graphs: Sequence[Data], *, progress_bar: bool = False
    ) -> 'GINClassifier':
        """Trains from scratch.

        Args:
            graphs (list[Data]): the training graphs, labelled 0, 1, ...
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        graphs = [data.clone() for data in check_graphs(graphs)]
        self._train(dict(enumerate(graphs)), progress_bar)
        return self

    def remove(
        self, request: RemovalRequest, *, progress_bar: bool = False
    ) -> None:
        """Deletes what the request names and trains from scratch.

        Args:
            request (RemovalRequest): in the names that :meth:`fit` saw.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        check_instance('request', request, RemovalRequest)
        graphs = {} if self._fitted is None else dict(self._fitted[0])
        for i, part in request.parts.items():
            if i not in graphs:
                raise ValueError(
                    f'graph {i} is not there: it never was, or was removed '
                    'before'
                )
            if part.whole:
                del graphs[i]
            else:
                graphs[i] = remove_from_data(graphs[i], part)
        if not graphs:
            raise ValueError('the request would leave no graph to train on')
        self._train(graphs, progress_bar)

    def predict(self, graphs: Sequence[Data]) -> Tensor:
        """The labels of graphs: int64, ``[num_graphs]``.

        Args:
            graphs (list[Data]): the graphs.
        """
        if self._fitted is None:
            raise ValueError('the classifier needs to be fitted first')
        inputs = self._batch(check_graphs(graphs))
        _, net = self._fitted
        with torch.no_grad():
            return self._logits(net, *inputs).argmax(1)

    def score(self, graphs: Sequence[Data]) -> float:
        """The share of graphs that are classified as their ``y``.

        Args:
            graphs (list[Data]): the graphs.
        """
        y = graph_labels(graphs)
        return float((self.predict(graphs) == y).double().mean())

    def _batch(self, graphs: list[Data]) -> tuple[Tensor, Tensor, Tensor]:
        batch = Batch.from_data_list(
            [
                Data(
                    x=d.get('x'),
                    edge_index=d.edge_index,
                    num_nodes=d.num_nodes,
                )
                for d in graphs
            ]
        )
        graph = CSRGraph.from_data(batch)
        x = graph_signal(batch, graph, self.max_degree, dtype=torch.float32)
        x = x.to_dense() if x.layout != torch.strided else x
        return x, batch.edge_index, batch.batch

    @staticmethod
    def _logits(
        net: torch.nn.ModuleDict,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor,
    ) -> Tensor:
        nodes = net['gin'](x, edge_index)
        return net['head'](global_mean_pool(nodes, batch))

    def _train(self, graphs: dict[int, Data], progress_bar: bool) -> None:
        listed = list(graphs.values())
        inputs = self._batch(listed)
        y = graph_labels(listed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            gin = GIN(
                inputs[0].size(1),
                self.hidden_channels,
                self.num_layers,
                norm='batch_norm',
            )
            head = torch.nn.Linear(self.hidden_channels, int(y.max()) + 1)
        net = torch.nn.ModuleDict({'gin': gin, 'head': head})
        optimizer = torch.optim.Adam(net.parameters(), lr=self.lr)
        net.train()
        epochs = range(self.epochs)
        for _ in tqdm(epochs, disable=not progress_bar, desc='epochs'):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                self._logits(net, *inputs), y
            )
            loss.backward()
            optimizer.step()
        self._fitted = graphs, net.eval()
