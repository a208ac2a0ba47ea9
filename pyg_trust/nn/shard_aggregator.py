"""Aggregators: one prediction from the sub-models of all shards.

All have one form: ``fit`` from scratch on the outputs of the sub-models, then
call. What learns has seen labels and outputs of all shards, so it has to be
fitted again after every removal.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust.functional import aggregate


class ShardAggregator(torch.nn.Module):
    r"""The base of all aggregators; it has nothing to learn.

    .. code-block:: python

        aggregator = make_aggregator('attentive')
        aggregator.fit(outputs, y, index, edge_index, shard, seed=0)
        probability = aggregator(outputs)
    """

    def fit(
        self,
        outputs: Tensor,
        y: Tensor,
        index: Tensor,
        edge_index: Tensor | None = None,
        shard: Tensor | None = None,
        *,
        seed: int | None = None,
        progress_bar: bool = False,
    ) -> 'ShardAggregator':
        r"""Learns from scratch; the same seed gives the same aggregator.

        Args:
            outputs (Tensor): what the sub-models say, without gradients,
                ``[num_shards, num_nodes, channels]``.
            y (Tensor): the classes, int64, ``[num_nodes]``; only those of
                :obj:`index` are read.
            index (Tensor): the nodes to learn from, int64: training nodes.
            edge_index (Tensor, optional): the current graph, for
                reconstruction. (default: :obj:`None`)
            shard (Tensor, optional): the shard of each node, -1 for nodes
                outside of training, for reconstruction.
                (default: :obj:`None`)
            seed (int, optional): the seed. (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        _check(outputs, y, index)
        return self

    def forward(self, outputs: Tensor) -> Tensor:
        """The probabilities of the classes: ``[num_nodes, num_classes]``."""
        raise NotImplementedError


class MeanAggregator(ShardAggregator):
    """:func:`pyg_trust.functional.mean_probability`."""

    def forward(self, outputs: Tensor) -> Tensor:
        """The probabilities of the classes: ``[num_nodes, num_classes]``."""
        return aggregate.mean_probability(outputs)


class MajorityAggregator(ShardAggregator):
    """:func:`pyg_trust.functional.majority_vote`."""

    def forward(self, outputs: Tensor) -> Tensor:
        """The shares of the votes: ``[num_nodes, num_classes]``."""
        return aggregate.majority_vote(outputs)


class AttentiveAggregator(ShardAggregator):
    r"""Attentive fusion of the sub-models (Zhang et al. 2024).

    With :math:`h^i_u = W_i e^i_u + b_i` and the weights :math:`a_{ui} =
    \mathrm{softmax}_i(w^\top \mathrm{ReLU}(h^i_u))`, the fused embedding is

    .. math::
        \bar{e}_u = \sum_i a_{ui} e^i_u \;\text{(plain)}, \quad
        \bar{e}_u = \sum_i a_{ui} h^i_u \;\text{(align)}, \quad
        \bar{e}_u = \sum_i a_{ui} e^i_u \;\text{(logits)}.

    Equation 8 is :obj:`'plain'`, followed by a linear head, as the paper says
    nothing of how embeddings become classes; it does not use the projection
    that it announces, which :obj:`'align'` does. :obj:`'logits'` takes the
    fused logits as they are.

    Args:
        fusion (str): :obj:`'plain'`, :obj:`'align'` or :obj:`'logits'`.
            (default: :obj:`'align'`)
        hidden_channels (int): the width of :math:`h`. (default: :obj:`64`)
        epochs (int): the number of epochs. (default: :obj:`20`)
        batch_size (int): the number of nodes per step. (default: :obj:`64`)
        lr (float): the learning rate of AdamW. (default: :obj:`0.01`)
        weight_decay (float): its weight decay. (default: :obj:`1e-5`)
    """

    def __init__(
        self,
        fusion: str = 'align',
        *,
        hidden_channels: int = 64,
        epochs: int = 20,
        batch_size: int = 64,
        lr: float = 0.01,
        weight_decay: float = 1e-5,
    ) -> None:
        super().__init__()
        if fusion not in FUSIONS:
            raise ValueError(
                f"'fusion' needs to be one of {FUSIONS} (got {fusion!r})"
            )
        self.fusion = fusion
        self.hidden_channels = hidden_channels
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay

    def _build(self, shards: int, channels: int, classes: int) -> None:
        # Each shard's projection as torch.nn.Linear has it.
        hidden = self.hidden_channels
        weight = torch.empty(shards, channels, hidden)
        self.weight = torch.nn.Parameter(weight.uniform_(-1, 1))
        bias = torch.empty(shards, hidden).uniform_(-1, 1)
        self.bias = torch.nn.Parameter(bias)
        with torch.no_grad():
            self.weight /= channels**0.5
            self.bias /= channels**0.5
        vector = torch.empty(hidden).uniform_(-1, 1) / hidden**0.5
        self.vector = torch.nn.Parameter(vector)
        width = hidden if self.fusion == 'align' else channels
        if self.fusion != 'logits':
            self.head = torch.nn.Linear(width, classes)

    def fit(
        self,
        outputs: Tensor,
        y: Tensor,
        index: Tensor,
        edge_index: Tensor | None = None,
        shard: Tensor | None = None,
        *,
        seed: int | None = None,
        progress_bar: bool = False,
    ) -> 'AttentiveAggregator':
        """Learns from scratch, as :meth:`ShardAggregator.fit` says."""
        classes = _check(outputs, y, index)
        seed = rng.resolve(seed)
        with rng.forked(rng.derive(seed, 0)):
            self._build(outputs.size(0), outputs.size(2), classes)
        self.to(outputs.device)
        generator = rng.generator(rng.derive(seed, 1))
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.lr, weight_decay=self.weight_decay
        )
        for _ in tqdm(range(self.epochs), disable=not progress_bar):
            order = torch.randperm(index.numel(), generator=generator)
            for nodes in index[order].split(self.batch_size):
                optimizer.zero_grad()
                whole = self.fused(outputs[:, nodes])
                loss = F.cross_entropy(self.classify(whole), y[nodes])
                loss.backward()
                optimizer.step()
        return self

    def fused(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The fused embeddings: ``[num_nodes, channels]``."""
        score, hidden = aggregate.attention(
            outputs, self.weight, self.bias, self.vector
        )
        values = hidden if self.fusion == 'align' else outputs
        return aggregate.fuse(values, score, mask)

    def classify(self, fused: Tensor) -> Tensor:
        """The logits of fused embeddings: ``[num_nodes, num_classes]``."""
        return fused if self.fusion == 'logits' else self.head(fused)

    def forward(self, outputs: Tensor) -> Tensor:
        """The probabilities of the classes: ``[num_nodes, num_classes]``."""
        return self.classify(self.fused(outputs)).softmax(-1)


FUSIONS = ('plain', 'align', 'logits')
AGGREGATORS = ('mean', 'majority', 'attentive')


def make_aggregator(name: str, **kwargs: Any) -> ShardAggregator:
    """The aggregator of a name.

    Args:
        name (str): :obj:`'mean'`, :obj:`'majority'` or :obj:`'attentive'`.
        **kwargs (Any): the arguments of its class.
    """
    if name == 'mean':
        return MeanAggregator(**kwargs)
    if name == 'majority':
        return MajorityAggregator(**kwargs)
    if name == 'attentive':
        return AttentiveAggregator(**kwargs)
    raise ValueError(f"'name' needs to be one of {AGGREGATORS} (got {name!r})")


def _check(outputs: Tensor, y: Tensor, index: Tensor) -> int:
    return int(y[index].max()) + 1
