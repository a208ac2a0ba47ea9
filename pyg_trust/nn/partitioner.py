"""Networks for partitions: GraphRevoker's, and embeddings for BEKM."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GCN

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Finite,
    Natural,
    check_tensor,
    validated,
)
from pyg_trust._moved import retired
from pyg_trust._progress import Bar
from pyg_trust.unlearning.partition import (
    PARTITIONS,
    Slack,
    check_edges,
    partition_losses,
    round_partition,
    shard_limits,
)

__all__ = ['ShardPartitioner', 'learned_partition', 'partition_embedding']


@validated
class ShardPartitioner(torch.nn.Module):
    r"""Partition network of GraphRevoker: a soft assignment to shards.

    .. math::
        P = \mathrm{softmax}(\mathrm{ReLU}(\mathrm{BN}(\mathrm{GNN}(X, A)))
        W + b)

    (`"Graph Unlearning with Efficient Partial Retraining"
    <https://arxiv.org/abs/2403.07353>`_, Zhang et al. 2024.) The GNN has two
    GCN layers. Unlike in the paper, features are divided by their root mean
    square, and there is batch normalisation (BN), which speed up training and
    avoid empty shards.

    Args:
        in_channels (int): the number of features.
        num_shards (int): the number of shards.
        hidden_channels (int): the width of the GNN. (default: :obj:`64`)
    """

    @retired(num_layers=(2,))
    def __init__(
        self,
        in_channels: Count,
        num_shards: Count,
        hidden_channels: Count = 64,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.gnn = GCN(in_channels, hidden_channels, 2, norm='batch_norm')
        self.norm = torch.nn.BatchNorm1d(hidden_channels)
        self.lin = torch.nn.Linear(hidden_channels, num_shards)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        for part in self.gnn, self.norm, self.lin:
            part.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return probabilities of shards: ``[num_nodes, num_shards]``.

        Args:
            x (Tensor): the features of the training nodes, ``[num_nodes,
                in_channels]``.
            edge_index (Tensor): the training graph, int64, ``[2, num_edges]``.
        """
        check_tensor('x', x, None, ('num_nodes', self.in_channels))
        shape = (2, 'num_edges')
        check_tensor('edge_index', edge_index, torch.int64, shape)
        scale = x.square().mean().sqrt()
        x = x / scale.clamp(min=torch.finfo(x.dtype).tiny)
        return self.lin(self.norm(self.gnn(x, edge_index)).relu()).softmax(-1)


@PARTITIONS.builtin(
    'learned', sees='edges, features and labels of all training nodes'
)
@torch.enable_grad()
@validated
def learned_partition(
    x: Tensor,
    edge_index: Tensor,
    y: Tensor,
    num_shards: int,
    *,
    time_weight: Finite = 1e-3,
    sem_weight: Finite = 5.0,
    max_epochs: Natural = 300,
    slack: Slack = 0.1,
    seed: int | None = None,
) -> Tensor:
    r"""Train GraphRevoker's partition network; return balanced shards.

    Minimises :math:`L_{\text{struct}} + \lambda_{\text{time}} L_{\text{time}}
    + \lambda_{\text{sem}} L_{\text{sem}}` by AdamW. In this order, the losses
    (:func:`pyg_trust.unlearning.partition.partition_losses`) are low for few
    edges between shards, equal work, and shards with mixed labels. Training
    ends when the loss has not fallen by a thousandth for 30 epochs. The
    probabilities are then rounded to shards.

    Args:
        x (Tensor): features of the training nodes, ``[num_nodes, channels]``.
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph,
            every edge in both directions.
        y (Tensor): the classes of the training nodes, int64, ``[num_nodes]``.
        num_shards (int): the number of shards.
        time_weight (float): :math:`\lambda_{\text{time}}`.
            (default: :obj:`1e-3`)
        sem_weight (float): :math:`\lambda_{\text{sem}}`; 1e-3 in the paper,
            which has no visible effect. (default: :obj:`5.0`)
        max_epochs (int): the largest number of epochs. (default: :obj:`300`)
        slack (float): how far sizes may differ from their mean, relative to
            it. (default: :obj:`0.1`)
        seed (int, optional): the seed; by default torch's generator draws one.

    Returns:
        Tensor: the shard of each node, int64, ``[num_nodes]``.
    """
    _check_graph(x, edge_index, y)
    shard_limits(x.size(0), num_shards, slack)
    seed = rng.resolve(seed)
    if num_shards == 1:
        return y.new_zeros(y.shape)
    with rng.forked(seed):
        model = ShardPartitioner(x.size(1), num_shards)
    model = model.to(x.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.01, weight_decay=1e-5
    )
    num_classes = int(y.max()) + 1
    best, since = float('inf'), 0
    for _ in Bar(range(max_epochs), desc='partition'):
        optimizer.zero_grad()
        losses = partition_losses(
            model(x, edge_index), edge_index, y, num_classes
        )
        loss = losses.struct + time_weight * losses.time
        loss = loss + sem_weight * losses.sem
        loss.backward()
        optimizer.step()
        value, since = loss.item(), since + 1
        if value < best - 1e-3 * max(1.0, abs(value)):
            best, since = value, 0
        elif since >= 30:
            break
    with torch.no_grad():
        return round_partition(model(x, edge_index), slack=slack)


@torch.enable_grad()
@validated
def partition_embedding(
    x: Tensor,
    edge_index: Tensor,
    y: Tensor,
    *,
    seed: int | None = None,
) -> Tensor:
    """Return logits of a GCN trained on the whole training graph.

    GraphEraser's balanced k-means (BEKM) clusters them. The network has seen
    every training node, and no removal trains it again.

    Args:
        x (Tensor): features of the training nodes, ``[num_nodes, channels]``.
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph.
        y (Tensor): the classes of the training nodes, int64, ``[num_nodes]``.
        seed (int, optional): the seed; by default torch's generator draws one.

    Returns:
        Tensor: ``[num_nodes, num_classes]``.
    """
    _check_graph(x, edge_index, y)
    classes = int(y.max()) + 1
    with rng.forked(rng.resolve(seed)):
        model = GCN(x.size(1), 64, 2, classes, dropout=0.5)
        model = model.to(x.device)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=0.01, weight_decay=5e-4
        )
        for _ in Bar(range(100), desc='embedding'):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edge_index), y).backward()
            optimizer.step()
    with torch.no_grad():
        return model.eval()(x, edge_index)


def _check_graph(x: Tensor, edge_index: Tensor, y: Tensor) -> None:
    check_tensor('x', x, None, ('num_nodes', 'channels'), finite=True)
    check_edges(edge_index, x.size(0))
    check_tensor('y', y, torch.int64, (x.size(0),))
    if y.numel() > 0 and int(y.min()) < 0:
        raise ValueError(
            "'y' needs to be non-negative: every training node needs a "
            f'label (got {int(y.min())})'
        )
