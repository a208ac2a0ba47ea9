r"""Combine the outputs of sub-models into one prediction.

``outputs`` is ``[num_shards, num_nodes, channels]``: every sub-model's output
for every node of the current graph. :math:`e^i_u` stands for row
:math:`u` of sub-model :math:`i`. For :func:`mean_probability`,
:func:`majority_vote` and :func:`weighted_log_probability` the rows are
logits; an attentive fusion takes logits or hidden features.
"""

from typing import Annotated

import torch
from torch import Tensor

from pyg_trust._checks import Array, Positive, check_tensor, validated

__all__ = [
    'attention',
    'fuse',
    'info_nce',
    'majority_vote',
    'mean_probability',
    'on_simplex',
    'reconstruction_loss',
    'weighted_log_probability',
]


def mean_probability(outputs: Tensor) -> Tensor:
    r"""Average the sub-models' probabilities, as in SISA.

    .. math::
        p_u = \frac{1}{S} \sum_{i=1}^S \mathrm{softmax}(e^i_u)

    (The mean in GraphEraser's code is that of log-probabilities.)

    Args:
        outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.

    Returns:
        Tensor: ``[num_nodes, num_classes]``; rows sum to one.
    """
    _check_outputs(outputs)
    return outputs.softmax(-1).mean(0)


def majority_vote(outputs: Tensor) -> Tensor:
    r"""Return the shares of the sub-models' votes, ties broken by the mean.

    .. math::
        p_{uc} = \frac{1}{S_u + 1/2} \left( \left| \{ i : \arg\max e^i_u =
        c \} \right| + \tfrac12 \bar{p}_{uc} \right)

    over the :math:`S_u` sub-models that vote, with :math:`\bar{p}` of
    :func:`mean_probability`. Half a vote never overrules a whole one, so that
    the argmax is a class with the most votes; among those it is the one with
    the largest mean probability, and then the first. A sub-model votes for
    the first of its largest logits, and abstains where all of them are equal.

    Args:
        outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.

    Returns:
        Tensor: ``[num_nodes, num_classes]``; rows sum to one.
    """
    _check_outputs(outputs)
    # Sum in float32: half precision can't tell 257 votes from 256.
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    votes = torch.nn.functional.one_hot(outputs.argmax(-1), outputs.size(-1))
    votes = votes * (outputs != outputs[..., :1]).any(-1, keepdim=True)
    votes = votes.sum(0)
    mean = mean_probability(outputs)
    count = votes.sum(-1, keepdim=True)
    return (votes.to(mean.dtype) + mean / 2) / (count + 0.5)


def weighted_log_probability(outputs: Tensor, weight: Tensor) -> Tensor:
    r"""Compute GraphEraser's weighted fusion (LBAggr), as logits.

    .. math::
        z_u = \sum_i a_i \log \mathrm{softmax}(e^i_u)

    The prediction is :math:`\mathrm{softmax}(z_u)`, a geometric mean, and its
    loss the cross entropy of :math:`z_u`, which has this one softmax. (The
    public code applies a softmax to :math:`z_u` before the cross entropy,
    whose own softmax then flattens it: its loss cannot fall below
    :math:`\log(e + C - 1) - 1`, and its gradient nearly vanishes.)

    Args:
        outputs (Tensor): logits, ``[num_shards, num_nodes, num_classes]``.
        weight (Tensor): :math:`a`, ``[num_shards]``.

    Returns:
        Tensor: ``[num_nodes, num_classes]``.
    """
    _check_outputs(outputs)
    check_tensor('weight', weight, None, outputs.shape[:1])
    return torch.einsum('s,snc->nc', weight, outputs.log_softmax(-1))


def on_simplex(weight: Tensor) -> Tensor:
    r"""Return the closest weights that sum to 1 and are not negative.

    By `Duchi et al. 2008 <https://doi.org/10.1145/1390156.1390191>`_: a
    number is subtracted from all weights, and what falls below 0 becomes 0.
    Weights that all moved by the same step keep their proportions, however
    large the step is.

    Args:
        weight (Tensor): ``[num_shards]``, finite.
    """
    check_tensor('weight', weight, None, ('num_shards',), finite=True)
    ordered = weight.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = torch.arange(1, weight.numel() + 1, device=weight.device)
    shift = (excess / count)[int((ordered * count > excess).sum()) - 1]
    return (weight - shift).clamp(min=0)


def attention(
    outputs: Tensor, weight: Tensor, bias: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Compute attention scores of the sub-models (Zhang et al. 2024, eq. 8).

    .. math::
        h^i_u = W_i e^i_u + b_i, \quad s_{ui} = w^\top \mathrm{ReLU}(h^i_u)

    Args:
        outputs (Tensor): ``[num_shards, num_nodes, channels]``.
        weight (Tensor): :math:`W_i^\top`, ``[num_shards, channels, hidden]``.
        bias (Tensor): ``[num_shards, hidden]``.
        vector (Tensor): :math:`w`, ``[hidden]``.

    Returns:
        tuple[Tensor, Tensor]: the scores before the softmax, ``[num_nodes,
        num_shards]``, and :math:`h`, ``[num_shards, num_nodes, hidden]``.
    """
    _check_outputs(outputs)
    check_tensor('vector', vector, None, ('hidden',))
    channels, hidden_channels = outputs.shape[::2], vector.shape
    check_tensor('weight', weight, None, channels + hidden_channels)
    check_tensor('bias', bias, None, channels[:1] + hidden_channels)
    hidden = torch.baddbmm(bias.unsqueeze(1), outputs, weight)
    return (hidden.relu() @ vector).t(), hidden


def fuse(values: Tensor, score: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Sum the sub-models' values under the softmax of their scores.

    .. math::
        \bar{e}_u = \sum_i a_{ui} v^i_u, \quad a_{ui} = \frac{m_{ui}
        \exp(s_{ui})}{\sum_j m_{uj} \exp(s_{uj})}

    Weights sum to one under any mask. (The paper divides by :math:`S`, or
    multiplies by :math:`S / \lVert m \rVert_1`, which puts the local and the
    global view on different scales.)

    Args:
        values (Tensor): ``[num_shards, num_nodes, channels]``.
        score (Tensor): :math:`s`, ``[num_nodes, num_shards]``.
        mask (Tensor, optional): :math:`m`, bool, ``[num_nodes, num_shards]``,
            with at least one :obj:`True` per row. (default: :obj:`None`)

    Returns:
        Tensor: ``[num_nodes, channels]``.
    """
    _check_outputs(values, 'values')
    shape = (values.size(1), values.size(0))
    check_tensor('score', score, None, shape)
    if mask is not None:
        check_tensor('mask', mask, torch.bool, shape)
        if not bool(mask.any(1).all()):
            node = int((~mask.any(1)).nonzero()[0])
            raise ValueError(
                "'mask' needs to have at least one True in each row "
                f'(got none in row {node})'
            )
        score = score.masked_fill(~mask, -torch.inf)
    return torch.einsum('ns,snc->nc', score.softmax(1), values)


@validated
def info_nce(
    whole: Annotated[Tensor, Array(None, 'num', 'channels')],
    part: Tensor,
    other_whole: Tensor,
    other_part: Tensor,
    temperature: Positive = 0.5,
) -> Tensor:
    r"""Compute the local-global contrastive loss of each node.

    .. math::
        -\log \frac{e^{\phi(\bar{e}_u, \tilde{e}_u) / t}}{e^{\phi(\bar{e}_u,
        \tilde{e}_u) / t} + e^{\phi(\bar{e}_u, \bar{e}_v) / t} +
        e^{\phi(\bar{e}_u, \tilde{e}_v) / t}}

    with the cosine :math:`\phi` and another node :math:`v`. Zhang et al. 2024
    print the fraction of equation 10 upside down: to minimise that would pull
    different nodes together, and a node's two views apart.

    Args:
        whole (Tensor): :math:`\bar{e}_u`, all shards, ``[num, channels]``.
        part (Tensor): :math:`\tilde{e}_u`, some shards, the same shape.
        other_whole (Tensor): :math:`\bar{e}_v`, the same shape.
        other_part (Tensor): :math:`\tilde{e}_v`, the same shape.
        temperature (float): :math:`t > 0`. (default: :obj:`0.5`)

    Returns:
        Tensor: ``[num]``.
    """
    _check_pairs(
        whole, part=part, other_whole=other_whole, other_part=other_part
    )
    cosine = torch.nn.functional.cosine_similarity
    pairs = [cosine(whole, x) for x in (part, other_whole, other_part)]
    return -(torch.stack(pairs, 1) / temperature).log_softmax(1)[:, 0]


def reconstruction_loss(
    embedding: Tensor, neighbor: Tensor, stranger: Tensor
) -> Tensor:
    r"""Compute the cross-shard reconstruction loss of each node.

    .. math::
        \max \{ \phi(\bar{e}_u, \bar{e}_{v^-}) - \phi(\bar{e}_u,
        \bar{e}_{v^+}) + 1, 0 \}

    with a neighbour :math:`v^+` of :math:`u` in another shard, whose edge the
    sharding cut, and a node :math:`v^-` without an edge to :math:`u`. Zhang
    et al. 2024 print equation 11 with the two exchanged: to minimise that
    would push neighbours apart.

    Args:
        embedding (Tensor): :math:`\bar{e}_u`, ``[num, channels]``.
        neighbor (Tensor): :math:`\bar{e}_{v^+}`, the same shape.
        stranger (Tensor): :math:`\bar{e}_{v^-}`, the same shape.

    Returns:
        Tensor: ``[num]``.
    """
    check_tensor('embedding', embedding, None, ('num', 'channels'))
    _check_pairs(embedding, neighbor=neighbor, stranger=stranger)
    cosine = torch.nn.functional.cosine_similarity
    gap = cosine(embedding, stranger) - cosine(embedding, neighbor)
    return (gap + 1).relu()


def _check_outputs(outputs: Tensor, name: str = 'outputs') -> None:
    check_tensor(name, outputs, None, ('num_shards', 'num_nodes', 'channels'))


def _check_pairs(first: Tensor, **others: Tensor) -> None:
    for name, value in others.items():
        check_tensor(name, value, None, first.shape)
