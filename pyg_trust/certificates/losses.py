"""Losses that train against the worst admissible graph."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pyg_trust._checks import (
    check_choice,
    check_finite,
    check_nodes,
    check_number,
    check_range,
    check_tensor,
)
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.functional.policy import (
    check_alpha,
    check_logits,
    diffuse,
    robust_margins,
    worst_case_margins,
)

KINDS = ('rce', 'cem')


class RobustLoss(torch.nn.Module):
    r"""Cross-entropy and hinge loss in the worst admissible graph.

    The losses RCE and CEM of `"Certifiable Robustness to Graph Perturbations"
    <https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019).
    With the exact worst-case margins :math:`m^*_{y_v, c}(v)` under the local
    budgets of a threat model, and :math:`m^*_{y_v, y_v}(v) = 0`,

    .. math::
        L_{RCE} &= \frac{1}{|L|} \sum_{v \in L} \mathrm{CE}(y_v,
        -m^*_{y_v}(v)) \\
        L_{CEM} &= \frac{1}{|L|} \sum_{v \in L} \Big[ \mathrm{CE}(y_v, (\Pi
        H)_v) + \sum_{c \neq y_v} \max(0, M - m^*_{y_v, c}(v)) \Big] .

    Gradients follow from Danskin's theorem: the worst graphs are found for
    the current logits and held fixed
    (:func:`~pyg_trust.functional.robust_margins`). Policy iteration starts
    from the margins of the last call, so that an epoch costs a few solves.
    They run on the CPU, wherever the model is.

    .. code-block:: python

        criterion = RobustLoss(ThreatModel(data, strength=10), alpha=0.15)
        ...
        loss = criterion(model.logits(data.x), data.y, data.train_mask)

    Args:
        threat (ThreatModel): the attacker, without a global budget.
        alpha (float): the teleport probability of the model.
            (default: :obj:`0.15`)
        kind (str): :obj:`'rce'` or :obj:`'cem'`. (default: :obj:`'rce'`)
        margin (float): :math:`M` of :obj:`'cem'`. (default: :obj:`1.0`)
        tol (float): relative tolerance of the margins; a training loss needs
            less than a certificate. (default: :obj:`1e-6`)
    """

    def __init__(
        self,
        threat: ThreatModel,
        alpha: float = 0.15,
        *,
        kind: str = 'rce',
        margin: float = 1.0,
        tol: float = 1e-6,
    ) -> None:
        super().__init__()
        if not isinstance(threat, ThreatModel):
            raise TypeError(
                "'threat' needs to be a ThreatModel "
                f'(got {type(threat).__name__})'
            )
        if threat.global_budget is not None:
            raise ValueError(
                "'threat' needs to have no global budget: its worst case is "
                f'only bounded (got {threat.global_budget})'
            )
        check_choice('kind', kind, KINDS)
        if not 0 < check_number('tol', tol) < 1:
            raise ValueError(f"'tol' needs to be in (0, 1) (got {tol})")
        self.threat = threat
        self.alpha = check_alpha(alpha)
        self.kind = kind
        self.margin = check_finite('margin', margin)
        self.tol = tol
        self._last: Tensor | None = None

    def forward(
        self,
        logits: Tensor,
        y: Tensor,
        index: Tensor | None = None,
        diffused: Tensor | None = None,
    ) -> Tensor:
        r"""The loss over labelled nodes.

        Args:
            logits (Tensor): :math:`H`, before diffusion, ``[num_nodes,
                num_classes]``.
            y (Tensor): int64, ``[num_nodes]``: the classes; only those of
                labelled nodes are read.
            index (Tensor, optional): the labelled nodes, indices or a mask.
                By default all. (default: :obj:`None`)
            diffused (Tensor, optional): :math:`\Pi H`, if it is at hand;
                for :obj:`'cem'`. (default: :obj:`None`)
        """
        check_logits(logits, self.threat.graph)
        check_tensor('y', y, torch.int64, (self.threat.num_nodes,))
        logits, y = logits.cpu(), y.cpu()
        nodes = torch.arange(self.threat.num_nodes)
        if index is not None:
            nodes = check_nodes('index', index, len(nodes)).cpu()
        target = y[nodes]
        check_range('y', target, logits.size(1), 'the classes')
        if diffused is not None:
            check_tensor('diffused', diffused, None, logits.shape)
        start = self._last
        if start is not None and start.size(0) != logits.size(1):
            start = None
        worst = worst_case_margins(
            logits,
            self.threat.perturbations,
            self.alpha,
            start=start,
            tol=self.tol,
        )
        self._last = worst.margins
        margins = robust_margins(logits, worst, self.alpha)
        # [num_labelled, num_classes]; the class itself has infinite margin.
        margins = margins[target, :, nodes]
        own = F.one_hot(target, logits.size(1)).bool()
        if self.kind == 'rce':
            return F.cross_entropy(-margins.masked_fill(own, 0), target)
        if diffused is None:
            diffused = diffuse(self.threat.graph, logits, self.alpha)
        hinge = (self.margin - margins).clamp(min=0).masked_fill(own, 0)
        clean = F.cross_entropy(diffused.cpu()[nodes], target)
        return clean + hinge.sum(1).mean()

    def extra_repr(self) -> str:
        """The arguments that matter."""
        return f'{self.threat}, alpha={self.alpha:g}, kind={self.kind}'
