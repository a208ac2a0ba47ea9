r"""Certificates of votes: bounds on changed votes.

Every view of an input votes, and a change of :math:`k` elements reaches at
most :math:`k` views (`Levine and Feizi 2021
<https://arxiv.org/abs/2006.14768>`_; `Xia et al. 2024
<https://openreview.net/forum?id=IGzaH538fz>`_). The bounds below are certain,
and tight: some :math:`M + 1` votes do change the class, or tie.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    NotNegative,
    check_choice,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._moved import renamed

__all__ = [
    'CertifiedVotes',
    'CollectiveVotes',
    'certified_mean',
    'certified_votes',
    'collective_votes',
]

TIES = ('any', 'first')
#: How far logits may move with the batch, relative to how far apart they are.
APART = 1e-4
# How far rounding may move them, relative to the largest of a row, and the
# share of rows in which it may flip a vote.
_ROUNDED, _TURNED = 2.0**-17, 0.01
# The most sets of views that are tried.
_SETS = 20_000


class CertifiedVotes(NamedTuple):
    """Classes by vote, and the number of votes that may change."""

    predicted: Tensor
    """The class: int64, ``[num]``."""
    radius: Tensor
    """The most views that may change without another class, -1 for a tie."""
    counts: Tensor
    """The votes: int64, ``[num, num_classes]``."""


class CollectiveVotes(NamedTuple):
    """Number of classes that survive the worst set of corrupted views."""

    lower: int
    """A bound of their number from below."""
    upper: int
    """Their number under the worst set that a search reached."""
    exact: bool
    """Whether all sets were tried, so that both are equal."""


def _check_votes(votes: Tensor, num_classes: int) -> None:
    check_integer('num_classes', num_classes, 1)
    check_tensor('votes', votes, torch.int64, ('num_views', 'num'))
    if votes.size(0) == 0:
        raise ValueError("'votes' needs to have at least one view (got 0)")
    check_range('votes', votes, num_classes, 'the classes')


def _count(votes: Tensor, num_classes: int) -> Tensor:
    counts = votes.new_zeros(votes.size(1), num_classes)
    return counts.scatter_add_(1, votes.t(), torch.ones_like(votes.t()))


def certified_votes(
    votes: Tensor, num_classes: int, *, ties: str = 'any'
) -> CertifiedVotes:
    r"""Return the class with most votes, and how many votes may change.

    If :math:`n_c` views vote for the winning class :math:`c`, it survives any
    change of :math:`M` votes:

    .. math::
        M = \min_{c' \ne c} \left\lfloor \frac{n_c - n_{c'} - t}{2}
        \right\rfloor

    where :math:`t = 1` if class :math:`c'` may win a tie, else 0.

    Args:
        votes (Tensor): the class that each view votes for: int64,
            ``[num_views, num_nodes]``.
        num_classes (int): the number of classes.
        ties (str): which class wins a tie: :obj:`'any'` (the attacker may
            decide) or :obj:`'first'` (that of the smallest index).

    Returns:
        CertifiedVotes: ``predicted``, int64, ``[num_nodes]``; ``radius``,
        which is :math:`M`, -1 for a tie, of the same shape; and the ``counts``
        of votes, int64, ``[num_nodes, num_classes]``.

    Example:
        >>> votes = torch.tensor([[1], [1], [1], [1], [0]])
        >>> certified_votes(votes, 2).radius
        tensor([1])
    """
    _check_votes(votes, num_classes)
    check_choice('ties', ties, TIES)
    counts = _count(votes, num_classes)
    predicted = counts.argmax(1)  # the first of several
    best = counts.gather(1, predicted[:, None])
    lost = torch.ones_like(counts)
    if ties == 'first':
        lost = (torch.arange(num_classes) < predicted[:, None]).long()
    spare = (best - counts - lost).div(2, rounding_mode='floor')
    spare.scatter_(1, predicted[:, None], votes.size(0))
    return CertifiedVotes(predicted, spare.amin(1), counts)


@renamed(tolerance='tol')
@validated
def certified_mean(
    probability: Tensor, *, tol: NotNegative = 1e-9
) -> CertifiedVotes:
    r"""Return the class of the largest mean probability, and its radius.

    Let :math:`p_{i c}` be the probability of class :math:`c` in view :math:`i`
    and :math:`m_i = p_{i c} - p_{i c'}`, which is -1 at the least. So class
    :math:`c` survives any :math:`k` corrupted views if and only if

    .. math::
        \sum_i m_i - \sum_{i \in \text{the } k \text{ largest}} (m_i + 1) > 0

    for all :math:`c' \ne c`.

    Args:
        probability (Tensor): the probabilities of each view for each node:
            float, ``[num_views, num_nodes, num_classes]``.
        tol (float): what the left side has to be larger than, in place of 0,
            because of rounding errors. (default: :obj:`1e-9`)

    Returns:
        CertifiedVotes: ``predicted``, int64, ``[num_nodes]``; ``radius``, the
        most corrupted views that each class survives, -1 for a tie, of the
        same shape; and ``counts``, int64, ``[num_nodes, num_classes]``: how
        many views have their largest probability there.
    """
    shape = ('num_views', 'num', 'num_classes')
    check_tensor('probability', probability, None, shape, finite=True)
    if probability.size(0) == 0 or probability.size(2) == 0:
        raise ValueError(
            "'probability' needs to have a view and a class "
            f'(got the shape {list(probability.shape)})'
        )
    p = probability.double()
    apart = (p.sum(2) - 1).abs()
    if bool((p < 0).any()) or bool((apart > 1e-4).any()):
        raise ValueError(
            "'probability' needs to have rows of probabilities (got one that "
            'is negative or does not add up to 1)'
        )
    views, num, classes = p.shape
    predicted = p.sum(0).argmax(1)
    chosen = p.gather(2, predicted.expand(views, num)[..., None])
    margin = chosen - p
    # Row k: the sum after the k largest have fallen to -1.
    fall = margin.sort(0, descending=True).values + 1
    left = margin.sum(0) - torch.cat([fall[:1] * 0, fall.cumsum(0)])
    left.scatter_(
        2, predicted.expand(views + 1, num)[..., None], float(views + 1)
    )
    stays = (left > tol).all(2)
    counts = _count(p.argmax(2), classes)
    return CertifiedVotes(predicted, stays.sum(0) - 1, counts)


def strays(one: Tensor, two: Tensor) -> Tensor:
    """Mark logits that differ by more than rounding in a batch.

    An entry may move by a share of its distance from the row's largest one, or
    of the usual distance between the first two: huge numbers, which mask a
    class or fill a row, excuse no error elsewhere.
    """
    old, new = one.detach().cpu().double(), two.detach().cpu().double()
    finite = old.isfinite()
    held = old.where(finite, -math.inf)
    top = held.amax(1, keepdim=True)
    gap = top - held
    size = top.abs()
    # How far the second is behind, if there is one.
    second = size
    if old.size(1) > 1:
        second = gap.nan_to_num(math.inf).topk(2, largest=False).values[:, 1:]
        second = second.where(second.isfinite(), size)
    sure = second[second.isfinite()]
    usual = float(sure.median()) if sure.numel() else 0.0
    allowed = torch.maximum(gap, second).clamp(min=usual) * APART
    allowed = torch.maximum(allowed, size * _ROUNDED)
    moved = finite & ~((old - new).abs() <= allowed)
    return moved | (finite != new.isfinite())


def differ(one: Tensor, two: Tensor) -> bool:
    """Return whether logits of two calls differ by more than rounding."""
    if one.shape != two.shape:
        return True
    if not one.numel():
        return False
    one, two = (each.reshape(-1, one.size(-1)) for each in (one, two))
    if bool(strays(one, two).any()):
        return True
    kept = one.isfinite().all(1)
    turned = (one.argmax(1) != two.argmax(1))[kept]
    return bool(turned.sum() > _TURNED * len(one))


def tallies(*columns: Tensor) -> list[list[int]]:
    """Count how often each row of counts occurs: how many, then the row.

    For reports of votes, so that a reader can count again.

    Example:
        >>> tallies(torch.tensor([5, 4, 5]), torch.tensor([0, 1, 0]))
        [[1, 4, 1], [2, 5, 0]]
    """
    table = torch.stack(columns, dim=1)
    if not len(table):
        return []
    rows, count = table.unique(dim=0, return_counts=True)
    return torch.cat([count[:, None], rows], dim=1).tolist()


def survives_votes(votes: Tensor, num_classes: int, views: Tensor) -> Tensor:
    """Mark the classes that lead by more than given views can lose."""
    _check_votes(votes, num_classes)
    check_tensor('views', views, torch.int64, ('num_corrupted',))
    check_range('views', views, votes.size(0), 'the views')
    which = views.unique()
    held = torch.ones(votes.size(0), dtype=torch.bool)
    held[which] = False
    counts = _count(votes, num_classes)
    return _leads(counts, _count(votes[held], num_classes), which.numel())


def _leads(counts: Tensor, left: Tensor, corrupted: int) -> Tensor:
    predicted = counts.argmax(1)[:, None]
    rest = left.clone().scatter_(1, predicted, -1)
    return left.gather(1, predicted)[:, 0] > rest.amax(1) + corrupted


@validated
def collective_votes(
    votes: Tensor,
    num_classes: Count,
    corrupted: int,
) -> CollectiveVotes:
    """Bound how many voted classes stay if an attacker corrupts some views.

    The attacker chooses the views once, for all nodes. All sets of views are
    tried if they are at most 20,000; the result is then exact.

    Args:
        votes (Tensor): the class that each view votes for: int64,
            ``[num_views, num_nodes]``.
        num_classes (int): the number of classes.
        corrupted (int): the number of corrupted views.

    Returns:
        CollectiveVotes: at least ``lower`` and at most ``upper`` nodes keep
        their class under the worst views; if ``exact``, these are equal.

    Example:
        >>> votes = torch.tensor([[0, 1], [0, 1], [0, 1], [1, 0], [1, 1]])
        >>> collective_votes(votes, 2, 1)
        CollectiveVotes(lower=1, upper=1, exact=True)
    """
    _check_votes(votes, num_classes)
    check_integer('corrupted', corrupted, 0, votes.size(0))
    views = votes.size(0)
    counts = _count(votes, num_classes)
    one_hot = torch.nn.functional.one_hot(votes, num_classes)

    def stay(chosen: tuple[int, ...]) -> int:
        left = counts - one_hot[list(chosen)].sum(0) if chosen else counts
        return int(_leads(counts, left, len(chosen)).sum())

    if math.comb(views, corrupted) <= _SETS:
        sets = itertools.combinations(range(views), corrupted)
        worst = min(map(stay, sets))
        return CollectiveVotes(worst, worst, True)
    chosen: tuple[int, ...] = ()
    for _ in range(corrupted):
        free = [i for i in range(views) if i not in chosen]
        chosen = min(((*chosen, i) for i in free), key=stay)
    alone = certified_votes(votes, num_classes)
    return CollectiveVotes(
        int((alone.radius >= corrupted).sum()), stay(chosen), False
    )
