"""Membership inference, as a smoke test of unlearning."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from pyg_trust._checks import (
    Fraction,
    OneOf,
    check_distinct,
    check_nodes,
    check_tensor,
    validated,
)
from pyg_trust.audit.statistics import auc_interval
from pyg_trust.report import Report, provenance
from pyg_trust.report.charts import Chart
from pyg_trust.unit import PrivacyUnit

__all__ = ['MembershipReport', 'membership_inference']

ATTACKS = ('loss', 'confidence')


@dataclass(frozen=True)
class MembershipReport(Report):
    """Quality of a membership inference attack.

    Args:
        auc (float): the probability that a training node (member) has a higher
            score than another node; 0.5 is chance.
        low (float): the lower end of the confidence interval of ``auc``.
        high (float): its upper end.
        level (float): the confidence of the interval, in (0, 1).
        attack (str): the score, ``'loss'`` or ``'confidence'``.
        num_members (int): the number of members.
        num_others (int): the number of other nodes.
        meaning (str): a sentence on what the result shows, and its limits.
        provenance (dict): versions of packages and the arguments of the call.
    """

    auc: float
    low: float
    high: float
    level: float
    attack: str
    num_members: int
    num_others: int
    meaning: str
    provenance: dict[str, Any]

    def chart(self) -> Chart:
        """Draw the AUC with its interval, beside 0.5 for chance."""
        chance = self.low <= 0.5 <= self.high
        return Chart(
            'The attack does no better than chance'
            if chance
            else f'The attack finds members: AUC {self.auc:.3f}',
            bars={self.attack: self.auc},
            spans={self.attack: (self.low, self.high)},
            xlabel=f'AUC, with its {self.level:.0%} interval',
            limit=0.5,
            limit_label='chance',
        )


@validated
def membership_inference(
    probability: Tensor,
    y: Tensor,
    members: Tensor,
    others: Tensor,
    *,
    unit: PrivacyUnit | None = None,
    node_type: str | None = None,
    attack: Annotated[str, OneOf(ATTACKS)] = 'loss',
    level: Fraction = 0.95,
) -> MembershipReport:
    """Attack a model: infer whether nodes were in its training set.

    The score of a node is the log probability of its true class
    (:obj:`'loss'`) or its largest class probability (:obj:`'confidence'`). The
    report states how well the score separates members from other nodes. **A
    smoke test, no proof:** an AUC that stays high after unlearning shows a
    bug, and one near one half shows little.

    Args:
        probability (Tensor): the predicted probabilities, ``[num_nodes,
            num_classes]``.
        y (Tensor): the true classes, int64, ``[num_nodes]``.
        members (Tensor): nodes that were trained on, int64 ids or a mask.
        others (Tensor): nodes outside of training, int64 ids or a mask.
        unit (PrivacyUnit, optional): the owners of rows, if nodes are rows of
            persons; nobody may then have rows in both groups.
        node_type (str, optional): the type of these rows, with a :obj:`unit`.
        attack (str): :obj:`'loss'` or :obj:`'confidence'`.
        level (float): the confidence of the interval. (default: :obj:`0.95`)

    Raises:
        ValueError: if a node or a person is in both groups
            (:meth:`PrivacyUnit.split <pyg_trust.unit.PrivacyUnit.split>`
            divides rows by persons), or a group has fewer than two nodes.
    """
    shape = ('num_nodes', 'num_classes')
    check_tensor('probability', probability, None, shape, finite=True)
    check_tensor('y', y, torch.int64, probability.shape[:1])
    num_nodes, num_classes = probability.shape
    groups = {}
    for name, nodes in (('members', members), ('others', others)):
        nodes = check_nodes(name, nodes, num_nodes)
        if nodes.numel() < 2:
            raise ValueError(
                f"'{name}' needs to name at least two nodes "
                f'(got {nodes.numel()})'
            )
        check_distinct(name, nodes)
        groups[name] = nodes
    both = groups['members'][torch.isin(groups['members'], groups['others'])]
    if both.numel() > 0:
        raise ValueError(
            "'members' and 'others' need to be different nodes "
            f'(got node {int(both[0])} in both)'
        )
    if (unit is None) != (node_type is None):
        raise ValueError(
            "'node_type' needs to be given exactly with a 'unit' (got "
            f'{node_type!r})'
        )
    if unit is not None and node_type is not None:
        size = unit._sizes.get(node_type, num_nodes)
        if num_nodes != size:
            raise ValueError(
                f"'probability' needs a row for each of {node_type!r}, in the "
                f'order of the table (got {num_nodes})'
            )
        unit.check_apart(node_type, groups['members'], groups['others'])
    if attack == 'loss':
        named = torch.cat(list(groups.values()))
        low, high = int(y[named].min()), int(y[named].max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"'y' needs to be in [0, {num_classes}) at every node that is "
                f'named (got {low} to {high})'
            )
        score = probability.gather(1, y.clamp(0, num_classes - 1)[:, None])
        score = score.squeeze(1)
    else:
        score = probability.max(1).values
    found = auc_interval(
        score[groups['members']], score[groups['others']], level=level
    )
    return MembershipReport(
        auc=found.value,
        low=found.low,
        high=found.high,
        level=level,
        attack=attack,
        num_members=groups['members'].numel(),
        num_others=groups['others'].numel(),
        meaning=(
            'a smoke test: a high AUC after unlearning shows a bug, one near '
            'one half proves nothing'
        ),
        provenance=provenance(attack=attack, level=level),
    )
