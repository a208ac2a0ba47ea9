"""Aggregators: combine the sub-models of all shards into one prediction.

A trained one has seen labels and outputs of all shards, so it has to be fitted
again after every removal. Much of what it gains comes from those labels:
compare it with a plain model that is trained on them alone.

``outputs`` is ``[num_shards, num_nodes, channels]`` everywhere: the output
:math:`e^i_u` of every sub-model for every node of the present graph.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    NotNegative,
    Positive,
    check_distinct,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.graph.ragged import pointer
from pyg_trust.registries import Registry
from pyg_trust.unlearning.partition import check_edges

__all__ = [
    'AGGREGATORS',
    'AttentiveAggregator',
    'LBAggregator',
    'MajorityAggregator',
    'MeanAggregator',
    'ShardAggregator',
    'majority_vote',
    'make_aggregator',
    'mean_probability',
]

#: Factories of :class:`ShardAggregator`, by name.
AGGREGATORS: Registry[Callable[..., 'ShardAggregator']] = Registry(
    'aggregator'
)
# Random streams: initial weights, the order of the nodes, the draws of a step.
_INIT, _ORDER, _STEP = 0, 1, 2
_SHAPE = ('num_shards', 'num_nodes', 'channels')


# Fusions and losses ##########################################################


def mean_probability(outputs: Tensor) -> Tensor:
    """Average the sub-models' probabilities, as in SISA.

    Args:
        outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.

    Returns:
        Tensor: ``[num_nodes, num_classes]``; rows sum to one.
    """
    check_tensor('outputs', outputs, None, _SHAPE)
    return outputs.softmax(-1).mean(0)


def majority_vote(outputs: Tensor) -> Tensor:
    r"""Return each class's share of votes; mean probabilities break ties.

    A sub-model votes for the class of its largest logit, the first of equal
    ones; it abstains where all logits are equal. With the number of votes
    :math:`v_c` of a class, the number :math:`S` of voting sub-models and the
    mean probability :math:`\bar{p}_c` of all sub-models, the share is

    .. math::
        p_c = \frac{v_c + \bar{p}_c / 2}{S + 1/2} .

    Args:
        outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.

    Returns:
        Tensor: ``[num_nodes, num_classes]``; rows sum to one.
    """
    check_tensor('outputs', outputs, None, _SHAPE)
    # Sum in float32: half precision can't tell 257 votes from 256.
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    votes = F.one_hot(outputs.argmax(-1), outputs.size(-1))
    votes = votes * (outputs != outputs[..., :1]).any(-1, keepdim=True)
    votes, mean = votes.sum(0), mean_probability(outputs)
    count = votes.sum(-1, keepdim=True)
    return (votes.to(mean.dtype) + mean / 2) / (count + 0.5)


def weighted_log_probability(outputs: Tensor, weight: Tensor) -> Tensor:
    r"""Compute GraphEraser's fusion :math:`\sum_i a_i \log p^i_u`."""
    return torch.einsum('s,snc->nc', weight, outputs.log_softmax(-1))


def on_simplex(weight: Tensor) -> Tensor:
    """Return the closest weights that sum to 1 and are not negative.

    By `Duchi et al. 2008 <https://doi.org/10.1145/1390156.1390191>`_.
    """
    ordered = weight.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = torch.arange(1, weight.numel() + 1, device=weight.device)
    shift = (excess / count)[int((ordered * count > excess).sum()) - 1]
    return (weight - shift).clamp(min=0)


def attention(
    outputs: Tensor, weight: Tensor, bias: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Compute scores of the sub-models (Zhang et al. 2024, eq. 8).

    Returns :math:`s_{ui} = w^\top \mathrm{ReLU}(h^i_u)`, ``[num_nodes,
    num_shards]``, and :math:`h^i_u = W_i e^i_u + b_i`.
    """
    hidden = torch.baddbmm(bias.unsqueeze(1), outputs, weight)
    return (hidden.relu() @ vector).t(), hidden


def fuse(values: Tensor, score: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum the sub-models' values under the softmax of their scores.

    Weights sum to one under any mask with a :obj:`True` in each row.
    """
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    return torch.einsum('ns,snc->nc', score.softmax(1), values)


def info_nce(
    whole: Tensor,
    part: Tensor,
    other_whole: Tensor,
    other_part: Tensor,
    temperature: float = 0.5,
) -> Tensor:
    r"""Compute the local-global contrastive loss of each node.

    .. math::
        -\log \frac{e^{\phi(\bar{e}_u, \tilde{e}_u) / t}}{e^{\phi(\bar{e}_u,
        \tilde{e}_u) / t} + e^{\phi(\bar{e}_u, \bar{e}_v) / t} +
        e^{\phi(\bar{e}_u, \tilde{e}_v) / t}}

    with the cosine :math:`\phi` and another node :math:`v`.
    """
    others = part, other_whole, other_part
    pairs = [F.cosine_similarity(whole, other) for other in others]
    return -(torch.stack(pairs, 1) / temperature).log_softmax(1)[:, 0]


def reconstruction_loss(
    embedding: Tensor, neighbor: Tensor, stranger: Tensor
) -> Tensor:
    r"""Compute the loss of edges that the shards cut, for each node.

    .. math::
        \max \{ \phi(\bar{e}_u, \bar{e}_{v^-}) - \phi(\bar{e}_u,
        \bar{e}_{v^+}) + 1, 0 \}

    with a neighbour :math:`v^+` in another shard and a node :math:`v^-`
    without an edge to :math:`u`.
    """
    gap = F.cosine_similarity(embedding, stranger)
    return (gap - F.cosine_similarity(embedding, neighbor) + 1).relu()


# Aggregators #################################################################


@dataclass(frozen=True)
class _Examples:
    # Training data of an aggregator, as ShardAggregator.fit() takes them.
    outputs: Tensor
    y: Tensor
    index: Tensor
    edge_index: Tensor | None
    shard: Tensor | None


class ShardAggregator(torch.nn.Module):
    """Base of modules that combine the outputs of all sub-models.

    An aggregator takes logits, ``[num_shards, num_nodes, num_classes]``, and
    returns probabilities of classes, ``[num_nodes, num_classes]``. It learns
    the sizes from :meth:`fit` or from the state that it loads.

    .. code-block:: python

        aggregator = make_aggregator('attentive')
        aggregator.fit(outputs, y, index, seed=0)
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
    ) -> 'ShardAggregator':
        """Train from scratch; the same seed gives the same aggregator.

        Args:
            outputs (Tensor): the logits of the sub-models, ``[num_shards,
                num_nodes, num_classes]``.
            y (Tensor): the classes, int64, ``[num_nodes]``; only those of
                :obj:`index` are read.
            index (Tensor): the training nodes to learn from, int64.
            edge_index (Tensor, optional): the present graph, int64, ``[2,
                num_edges]``; needed for the reconstruction loss of
                :class:`AttentiveAggregator`.
            shard (Tensor, optional): the shard of each node, int64,
                ``[num_nodes]``, -1 for nodes not trained on; needed for the
                same loss.
            seed (int, optional): the seed; by default torch's generator draws
                one.

        Raises:
            TypeError, ValueError: if a tensor has the wrong dtype or shape, an
                output is not finite, or a node of :obj:`index` is unknown,
                repeated or has no label.
        """
        examples = _checked(outputs, y, index, edge_index, shard)
        # On a copy, so that an interruption changes nothing.
        learner = copy.deepcopy(self)
        with torch.enable_grad():
            learner._learn(examples, rng.resolve(seed))
        self.__dict__ = learner.__dict__
        return self

    def _learn(self, examples: _Examples, seed: int) -> None:
        pass

    def forward(self, outputs: Tensor) -> Tensor:
        """Return probabilities of classes: ``[num_nodes, num_classes]``.

        ``outputs`` has the logits, ``[num_shards, num_nodes, num_classes]``.
        """
        raise NotImplementedError


@AGGREGATORS.builtin('mean')
class MeanAggregator(ShardAggregator):
    """Average the sub-models' probabilities, as in SISA."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Return probabilities of classes: ``[num_nodes, num_classes]``.

        ``outputs`` has the logits, ``[num_shards, num_nodes, num_classes]``.
        """
        return mean_probability(outputs)


@AGGREGATORS.builtin('majority')
class MajorityAggregator(ShardAggregator):
    """Let sub-models vote, as in SISA; mean probabilities break ties."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the shares of the votes: ``[num_nodes, num_classes]``.

        ``outputs`` has the logits, ``[num_shards, num_nodes, num_classes]``.
        """
        return majority_vote(outputs)


@AGGREGATORS.builtin('lbaggr')
@validated
class LBAggregator(ShardAggregator):
    r"""Weighted mean of log-probabilities, with one learned weight per model.

    For the logits :math:`e^i_u` of sub-model :math:`i` and the class
    :math:`y_u` of node :math:`u` in the training nodes :math:`U`, minimises

    .. math::
        \frac{1}{|U|} \sum_{u \in U} \mathrm{CE}\Big( \sum_i a_i \log
        \mathrm{softmax}(e^i_u), y_u \Big) + \lVert a \rVert_2, \quad a \ge
        0, \; \sum_i a_i = 1

    over the weights :math:`a` by Adam, and keeps the best epoch (GraphEraser,
    `"Graph Unlearning" <https://arxiv.org/abs/2103.14991>`_, Chen et al.
    2022).

    Args:
        epochs (int): the number of epochs. (default: :obj:`50`)
        batch_size (int): the number of nodes per step. (default: :obj:`32`)
        lr (float): the learning rate. (default: :obj:`1e-3`)
    """

    def __init__(
        self,
        *,
        epochs: Count = 50,
        batch_size: Count = 32,
        lr: Positive = 1e-3,
    ) -> None:
        super().__init__()
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        self.weight: Tensor | None
        self.register_buffer('weight', None)

    def _learn(self, examples: _Examples, seed: int) -> None:
        index = examples.index
        logits, y = examples.outputs[:, index], examples.y[index]
        shards = logits.size(0)
        weight = logits.new_full((shards,), 1 / shards).requires_grad_()
        optimizer = torch.optim.Adam([weight], lr=self.lr)
        generator = rng.generator(rng.derive(seed, _ORDER))

        def objective(nodes: Tensor) -> Tensor:
            fused = weighted_log_probability(logits[:, nodes], weight)
            return F.cross_entropy(fused, y[nodes]) + weight.norm()

        everyone = torch.arange(index.numel(), device=index.device)
        best, kept = float('inf'), weight.detach().clone()
        for _ in Bar(range(self.epochs), desc='aggregator'):
            order = torch.randperm(index.numel(), generator=generator)
            for nodes in order.to(index.device).split(self.batch_size):
                optimizer.zero_grad()
                objective(nodes).backward()
                optimizer.step()
                with torch.no_grad():
                    weight.copy_(on_simplex(weight))
            with torch.no_grad():
                loss = float(objective(everyone))
            if loss < best:
                best, kept = loss, weight.detach().clone()
        self.weight = kept

    def forward(self, outputs: Tensor) -> Tensor:
        """Return probabilities of classes: ``[num_nodes, num_classes]``.

        ``outputs`` has the logits, ``[num_shards, num_nodes, num_classes]``.
        """
        if self.weight is None:
            raise ValueError('the aggregator needs to be fitted first')
        shape = (self.weight.numel(), 'num_nodes', 'num_classes')
        check_tensor('outputs', outputs, None, shape)
        return weighted_log_probability(outputs, self.weight).softmax(-1)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        weight = state_dict.get(f'{prefix}weight')
        if weight is not None and weight.dim() == 1:
            self.weight = torch.empty_like(weight)
        super()._load_from_state_dict(state_dict, prefix, *args)


@validated
class AttentiveAggregator(ShardAggregator):
    r"""Attentive fusion of the sub-models, with optional contrastive losses.

    Every sub-model :math:`i` has a linear map of its logits for node :math:`u`
    to a hidden vector :math:`h^i_u`. Attention weights :math:`a_{ui} =
    \mathrm{softmax}_i(w^\top \mathrm{ReLU}(h^i_u))` fuse them,
    :math:`\bar{e}_u = \sum_i a_{ui} h^i_u`, and a linear head makes logits
    (Zhang et al. 2024). The loss is

    .. math::
        L = \mathrm{CE} + \lambda_c L_{\text{contra}} + \lambda_r
        L_{\text{recon}} .

    :math:`L_{\text{contra}}` brings together a node's embeddings by all
    sub-models and by a random half of them; :math:`L_{\text{recon}}` brings
    together neighbours in different shards.

    Args:
        contra_weight (float): :math:`\lambda_c`. (default: :obj:`0`)
        recon_weight (float): :math:`\lambda_r`; if it is positive, ``fit``
            needs ``edge_index`` and ``shard``. (default: :obj:`0`)
        temperature (float): the temperature of :math:`L_{\text{contra}}`.
            (default: :obj:`0.5`)
        hidden_channels (int): the width of :math:`h`. (default: :obj:`64`)
        epochs (int): the number of epochs. (default: :obj:`5`)
        batch_size (int): the number of nodes per step. (default: :obj:`64`)
        lr (float): the learning rate of AdamW. (default: :obj:`0.01`)
        weight_decay (float): its weight decay. (default: :obj:`1e-5`)
    """

    def __init__(
        self,
        *,
        contra_weight: NotNegative = 0.0,
        recon_weight: NotNegative = 0.0,
        temperature: Positive = 0.5,
        hidden_channels: Count = 64,
        epochs: Count = 5,
        batch_size: Count = 64,
        lr: Positive = 0.01,
        weight_decay: NotNegative = 1e-5,
    ) -> None:
        super().__init__()
        self.contra_weight, self.recon_weight = contra_weight, recon_weight
        self.temperature, self.hidden_channels = temperature, hidden_channels
        self.epochs, self.batch_size = epochs, batch_size
        self.lr, self.weight_decay = lr, weight_decay
        for name in ('weight', 'bias', 'vector'):
            self.register_parameter(name, None)
        self.head: Any = None

    def _build(self, shards: int, channels: int) -> None:
        # Every shard's projection is drawn as torch.nn.Linear draws its own.
        def uniform(fan_in: int, *shape: int) -> torch.nn.Parameter:
            drawn = torch.empty(shape).uniform_(-1, 1) / fan_in**0.5
            return torch.nn.Parameter(drawn)

        hidden = self.hidden_channels
        self.weight = uniform(channels, shards, channels, hidden)
        self.bias = uniform(channels, shards, hidden)
        self.vector = uniform(hidden, hidden)
        self.head = torch.nn.Linear(hidden, channels)

    def _learn(self, examples: _Examples, seed: int) -> None:
        outputs, y, index = examples.outputs, examples.y, examples.index
        pairs = None
        if self.recon_weight > 0:
            if examples.edge_index is None or examples.shard is None:
                raise ValueError(
                    "'edge_index' and 'shard' are needed for reconstruction"
                )
            pairs = _CutEdges(examples.edge_index, examples.shard)
        with rng.forked(rng.derive(seed, _INIT)):
            self._build(outputs.size(0), outputs.size(2))
        self.to(outputs.device, outputs.dtype)
        optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=self.lr,
            weight_decay=self.weight_decay,
            fused=True,
        )
        order_of = rng.generator(rng.derive(seed, _ORDER))
        draws = rng.generator(rng.derive(seed, _STEP))
        for _ in Bar(range(self.epochs), desc='aggregator'):
            order = torch.randperm(index.numel(), generator=order_of)
            for nodes in index[order.to(index.device)].split(self.batch_size):
                optimizer.zero_grad()
                parts = self._parts(outputs[:, nodes])
                whole = fuse(*parts)
                loss = F.cross_entropy(self.head(whole), y[nodes])
                if self.contra_weight > 0 and nodes.numel() > 1:
                    contra = self._contrast(whole, *parts, draws)
                    loss = loss + self.contra_weight * contra
                if pairs is not None:
                    place, *two = pairs.draw(nodes, draws)
                    recon = whole.new_zeros(())
                    if place.numel():
                        others = self.fused(outputs[:, torch.cat(two)])
                        recon = reconstruction_loss(
                            whole[place], *others.chunk(2)
                        ).mean()
                    loss = loss + self.recon_weight * recon
                loss.backward()
                optimizer.step()

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        # Return the values to fuse, and the scores of the sub-models.
        if self.weight is None:
            raise ValueError('the aggregator needs to be fitted first')
        shape = (self.weight.size(0), 'num_nodes', self.weight.size(1))
        check_tensor('outputs', outputs, None, shape)
        return attention(outputs, self.weight, self.bias, self.vector)[::-1]

    def _contrast(
        self,
        whole: Tensor,
        values: Tensor,
        score: Tensor,
        draws: torch.Generator,
    ) -> Tensor:
        # Keep each sub-model with probability 1/2, and at least one.
        mask = torch.rand(score.shape, generator=draws) < 0.5
        num, shards = score.shape
        one = torch.randint(shards, (num, 1), generator=draws)
        mask = mask.scatter(1, one, True).to(score.device)
        part = fuse(values, score, mask)
        # The batch is in random order: its neighbour is a random other node.
        return info_nce(
            whole, part, whole.roll(1, 0), part.roll(1, 0), self.temperature
        ).mean()

    def fused(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the fused embeddings: ``[num_nodes, hidden_channels]``.

        Args:
            outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.
            mask (Tensor, optional): bool, ``[num_nodes, num_shards]``: the
                sub-models to fuse for each node; by default all.
        """
        return fuse(*self._parts(outputs), mask)

    def forward(self, outputs: Tensor) -> Tensor:
        """Return probabilities of classes: ``[num_nodes, num_classes]``.

        ``outputs`` has the logits, ``[num_shards, num_nodes, num_classes]``.
        """
        return self.head(self.fused(outputs)).softmax(-1)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        weight = state_dict.get(f'{prefix}weight')
        # The base class refuses shapes that do not fit.
        if weight is not None and weight.dim() == 3:
            self.hidden_channels = weight.size(2)
            with rng.forked(0):
                self._build(weight.size(0), weight.size(1))
            self.to(weight.device, weight.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)


class _CutEdges:
    # The training edges between shards, and samples of non-neighbours.
    def __init__(self, edge_index: Tensor, shard: Tensor) -> None:
        row, col = edge_index
        self.num_nodes = n = shard.numel()
        cut = (shard[row] != shard[col]) & (shard[row] >= 0)
        cut = (cut & (shard[col] >= 0)).nonzero().view(-1)
        source, order = row[cut].sort(stable=True)
        self.ptr = pointer(source.bincount(minlength=n))
        self.col = col[cut][order]
        self.edges = torch.cat([row * n + col, col * n + row]).unique()
        self.training = (shard >= 0).nonzero().view(-1)

    def draw(
        self, nodes: Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The nodes that have both; their neighbours; their non-neighbours. A
        # node whose random stranger is a neighbour is left out.
        share = torch.rand(
            2, nodes.numel(), generator=draws, dtype=torch.float64
        ).to(nodes.device)
        degree = self.ptr[nodes + 1] - self.ptr[nodes]
        picked = self.ptr[nodes] + (share[0] * degree).long()
        stranger = self.training[(share[1] * self.training.numel()).long()]
        known = torch.isin(nodes * self.num_nodes + stranger, self.edges)
        good = (degree > 0) & ~known & (nodes != stranger)
        place = good.nonzero().view(-1)
        return place, self.col[picked[place]], stranger[place]


@AGGREGATORS.builtin('attentive')
def _attentive(**kwargs: Any) -> ShardAggregator:
    """Attentive fusion."""
    return AttentiveAggregator(**kwargs)


@AGGREGATORS.builtin('contrastive')
def _contrastive(**kwargs: Any) -> ShardAggregator:
    """Attentive fusion with both losses."""
    weights = {'contra_weight': 1e-4, 'recon_weight': 1e-4}
    return AttentiveAggregator(**{**weights, **kwargs})


def make_aggregator(
    name: str | ShardAggregator, **kwargs: Any
) -> ShardAggregator:
    """Make an aggregator by name.

    ================== ====================================================
    name               aggregator
    ================== ====================================================
    ``'mean'``         :class:`MeanAggregator`
    ``'majority'``     :class:`MajorityAggregator`
    ``'lbaggr'``       :class:`LBAggregator`
    ``'attentive'``    :class:`AttentiveAggregator`
    ``'contrastive'``  ``'attentive'`` with both losses at weight 1e-4
    ================== ====================================================

    Register others in :obj:`pyg_trust.registries.AGGREGATORS`.

    Args:
        name (str or ShardAggregator): a name, or an aggregator to return.
        **kwargs (Any): the arguments of the class, if it is given by name.

    Raises:
        TypeError: on an argument that the class does not take.
        ValueError: on an unknown name.
    """
    if isinstance(name, ShardAggregator):
        if kwargs:
            raise TypeError(
                f"'{next(iter(kwargs))}' goes with the name of an aggregator, "
                f'not with a {type(name).__name__}'
            )
        return name
    aggregator = AGGREGATORS.find('name', name)(**kwargs)
    if not isinstance(aggregator, ShardAggregator):
        raise TypeError(
            f'{AGGREGATORS.note(name)}, needs to return a ShardAggregator '
            f'(got {type(aggregator).__name__})'
        )
    return aggregator


def unchecked(aggregator: ShardAggregator) -> tuple[str, ...]:
    """Return the assumption that reports state of a user's aggregator."""
    if type(aggregator).__module__ == __name__:
        return ()
    return (
        f'NOT CHECKED: that {type(aggregator).__name__}, an aggregator of the '
        "user's own, is a function of what it is fitted to and its seed alone",
    )


def _checked(
    outputs: Tensor,
    y: Tensor,
    index: Tensor,
    edge_index: Tensor | None,
    shard: Tensor | None,
) -> _Examples:
    check_tensor('outputs', outputs, None, _SHAPE)
    outputs, num_nodes = outputs.detach(), outputs.size(1)
    bad = ~outputs.isfinite()
    if bool(bad.any()):
        raise ValueError(
            f"'outputs' needs to be finite (got {float(outputs[bad][0])} from "
            f'shard {int(bad.nonzero()[0, 0])})'
        )
    check_tensor('y', y, torch.int64, (num_nodes,))
    check_tensor('index', index, torch.int64, ('num',))
    if shard is not None:
        check_tensor('shard', shard, torch.int64, (num_nodes,))
    if index.numel() == 0:
        raise ValueError("'index' needs to name a node (got none)")
    check_range('index', index, num_nodes, 'the nodes')
    check_distinct('index', index)
    check_range('y', y[index], outputs.size(2), "at every node of 'index'")
    if edge_index is not None:
        check_edges(edge_index, num_nodes, 'the nodes')
    return _Examples(outputs, y, index, edge_index, shard)
