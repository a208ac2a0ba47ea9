"""Losses for training against the worst admissible graph."""

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from pyg_trust._checks import (
    Finite,
    Fraction,
    NotNegative,
    OneOf,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.certificates.diffusion import check_logits, diffuse
from pyg_trust.certificates.policy import worst_case_margins
from pyg_trust.certificates.threat import ThreatModel

__all__ = ['RobustLoss']

KINDS = ('rce', 'cem')


@validated
class RobustLoss(torch.nn.Module):
    r"""Training loss of a personalized PageRank model in the worst graph.

    The losses RCE and CEM of `"Certifiable Robustness to Graph Perturbations"
    <https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019). Let
    :math:`m^*_{y, c}(v)` be the smallest difference between the scores of the
    classes :math:`y` and :math:`c` at node :math:`v`, in any graph that the
    attacker can make. For the labelled nodes :math:`L` with classes
    :math:`y_v` and propagated logits :math:`\Pi H`, the losses are

    .. math::
        L_{RCE} &= \frac{1}{|L|} \sum_{v \in L} \mathrm{CE}(y_v,
        -m^*_{y_v}(v)) \\
        L_{CEM} &= \frac{1}{|L|} \sum_{v \in L} \Big[ \mathrm{CE}(y_v, (\Pi
        H)_v) + \sum_{c \neq y_v} \max(0, M - m^*_{y_v, c}(v)) \Big] .

    **Nodes without a label** can be trained to keep any class. With a class
    :math:`\hat y_v` for each such node :math:`v \in U` (the argument
    ``pseudo`` of a call), the loss is

    .. math::
        L + \frac{w}{|U|} \sum_{v \in U} h_v , \quad h_v = \sum_{c \neq \hat
        y_v} \max(0, M - m^*_{\hat y_v, c}(v)) .

    Take :math:`\hat y` from a trained model, once, without the nodes that it
    is least sure of. If :math:`\hat y` follows the model that is trained, it
    may end in one class. Margins are computed on the CPU.

    .. code-block:: python

        criterion = RobustLoss(ThreatModel(data, strength=10), kind='cem')
        loss = criterion(model.logits(data.x), data.y, data.train_mask)

    Args:
        threat (ThreatModel): the attacker, without a global budget.
        alpha (float): the teleport probability of the model.
        kind (str): :obj:`'rce'` or :obj:`'cem'`, the loss of labelled nodes.
        margin (float): :math:`M`, the margin that the hinge losses (the terms
            with a maximum) ask for. (default: :obj:`1.0`)
        pseudo_weight (float): :math:`w`, the weight of unlabelled nodes.
        tol (float): the relative error of the margins. (default: :obj:`1e-6`)
    """

    def __init__(
        self,
        threat: ThreatModel,
        alpha: Fraction = 0.15,
        *,
        kind: Annotated[str, OneOf(KINDS)] = 'rce',
        margin: Finite = 1.0,
        pseudo_weight: NotNegative = 1.0,
        tol: Fraction = 1e-6,
    ) -> None:
        super().__init__()
        if threat.global_budget is not None:
            raise ValueError(
                "'threat' needs to have no global budget: its worst case is "
                f'bounded, not computed (got {threat.global_budget})'
            )
        self.threat, self.alpha, self.kind = threat, alpha, kind
        self.margin, self.pseudo_weight = margin, pseudo_weight
        self.tol = tol
        self._last: Tensor | None = None

    @renamed(index='nodes')
    def forward(
        self,
        logits: Tensor,
        y: Tensor,
        nodes: Tensor | None = None,
        pseudo: Tensor | None = None,
    ) -> Tensor:
        r"""Return the loss, a scalar, of labelled and pseudo-labelled nodes.

        Args:
            logits (Tensor): the logits :math:`H` before propagation,
                ``[num_nodes, num_classes]``.
            y (Tensor): the classes: int64, ``[num_nodes]``; only those of
                labelled nodes are read.
            nodes (Tensor, optional): the labelled nodes, int64 indices or a
                bool mask; by default all. (default: :obj:`None`)
            pseudo (Tensor, optional): the class :math:`\hat y` that each
                unlabelled node is to keep, -1 for none: int64,
                ``[num_nodes]``; by default none. (default: :obj:`None`)
        """
        check_logits(logits, self.threat.graph)
        num_nodes, num_classes = logits.shape
        check_tensor('y', y, torch.int64, (num_nodes,))
        logits, y = logits.cpu(), y.cpu()
        labelled = torch.arange(num_nodes)
        if nodes is not None:
            labelled = check_nodes('nodes', nodes, num_nodes).cpu()
        if labelled.numel() == 0:
            raise ValueError("'nodes' needs to hold a node (got none)")
        target = y[labelled]
        check_range('y', target, num_classes, 'the classes')
        others = None
        if pseudo is not None:
            check_tensor('pseudo', pseudo, torch.int64, (num_nodes,))
            hat = pseudo.cpu().index_fill(0, labelled, -1)
            others = (hat != -1).nonzero().view(-1)
            if others.numel() == 0:
                raise ValueError(
                    "'pseudo' needs to give an unlabelled node a class "
                    '(got none)'
                )
            check_range('pseudo', hat[others], num_classes, 'the classes')
        if self._last is not None and self._last.size(0) != num_classes:
            self._last = None
        margins = worst_case_margins(
            *(logits, self.threat.perturbations, self.alpha),
            start=self._last,
            tol=self.tol,
        )
        self._last = margins.detach()
        # [num_labelled, num_classes]; the class itself has infinite margin.
        own = margins[target, :, labelled]
        if self.kind == 'rce':
            given = F.one_hot(target, num_classes).bool()
            loss = F.cross_entropy(-own.masked_fill(given, 0), target)
        else:
            diffused = diffuse(self.threat.graph, logits, self.alpha)
            loss = F.cross_entropy(diffused[labelled], target)
            loss = loss + self._hinge(own)
        if others is not None:
            hinge = self._hinge(margins[hat[others], :, others])
            loss = loss + self.pseudo_weight * hinge
        return loss

    def _hinge(self, margins: Tensor) -> Tensor:
        # Infinite margins, those of the class itself, give none.
        return (self.margin - margins).clamp(min=0).sum(1).mean()

    def extra_repr(self) -> str:
        """Return the arguments of the loss as text, for ``repr``."""
        return f'{self.threat}, alpha={self.alpha:g}, kind={self.kind}'
