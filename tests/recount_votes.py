r"""Certificates once more, from the votes that they rest on.

Nothing of :mod:`pyg_trust.certificates` is used: bounds of Clopper and Pearson
are quantiles of SciPy's beta distribution, regions of equal likelihood ratio
are fractions without rounding, and votes are counted by hand.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

# Additions and deletions of a kind of bits, and the probabilities that a 0
# becomes 1 and that a 1 becomes 0.
Change = tuple[int, int, float, float]
# Probability under the clean input, under the changed one.
_Regions = list[tuple[Fraction, Fraction]]

_HALF = Fraction(1, 2)


def bounds_again(
    top: int,
    runner_up: int,
    num_samples: int,
    num_classes: int,
    alpha: float,
    classes: str,
) -> tuple[float, float]:
    r"""The class's probability at least, that of any other at most.

    With bounds of all classes the first is wrong with probability
    :math:`\alpha / 2` and each of the :math:`C` others, outputs that are not
    finite among them, with :math:`\alpha / 2 C`; else the first with
    :math:`\alpha`.

    Args:
        top (int): the votes for the class.
        runner_up (int): the most votes of any other.
        num_samples (int): how many voted.
        num_classes (int): :math:`C`.
        alpha (float): the level of all bounds of a target together.
        classes (str): ``'all'`` or ``'one'``.
    """
    from scipy.stats import beta  # slow to import

    share = alpha / 2 if classes == 'all' else alpha
    lower = upper = 0.0
    if top:
        lower = float(beta.ppf(share, top, num_samples - top + 1))
    if classes == 'one' or runner_up == num_samples:
        upper = 1.0
    else:
        level = alpha / (2 * num_classes)
        rest = num_samples - runner_up
        upper = float(beta.isf(level, runner_up + 1, rest))
    return lower, upper


def stays_again(
    bounds: Sequence[tuple[float, float]],
    changes: Sequence[Change],
    tolerance: float,
) -> list[bool]:
    r"""Whether no classifier with such bounds changes its class.

    A set with the probability :math:`p` under the clean input has least under
    the changed one if it takes regions in the order of their likelihood
    ratio, clean to changed, from the top (Neyman and Pearson).

    Args:
        bounds (list): of :func:`bounds_again`, one for each target.
        changes (list): one for each kind of bits that has noise.
        tolerance (float): taken off the first bound, and added to the second.
    """
    regions = _regions(changes)
    slack = Fraction(tolerance)
    made = []
    for lower, upper in bounds:
        low = max(Fraction(lower) - slack, Fraction(0))
        least = _least(low, regions)
        if least > _HALF:
            made.append(True)
            continue
        high = min(Fraction(upper), 1 - Fraction(lower)) + slack
        most = 1 - _least(1 - min(high, Fraction(1)), regions)
        made.append(least > most)
    return made


def _regions(changes: Sequence[Change]) -> _Regions:
    # All patterns of flipped bits, those with the same numbers together: a
    # bit that differs is 1 or 0 in a sample, and likelier one way under each
    # input.
    made: dict[Fraction | None, list[Fraction]] = {}
    for clean, changed in _patterns(changes):
        if clean or changed:
            ratio = clean / changed if changed else None
            both = made.setdefault(ratio, [Fraction(0), Fraction(0)])
            both[0] += clean
            both[1] += changed
    # None is infinite.
    order = sorted(made, key=lambda r: (r is not None, -(r or 0)))
    return [(made[ratio][0], made[ratio][1]) for ratio in order]


def _patterns(
    changes: Sequence[Change],
) -> Iterator[tuple[Fraction, Fraction]]:
    parts = [(Fraction(1), Fraction(1))]
    for added, deleted, plus, minus in changes:
        p, m = Fraction(plus), Fraction(minus)
        # A 1 in a bit that was set: p clean, 1 - m changed. A 0 in a bit that
        # was deleted: m clean, 1 - p changed.
        for count, clean, changed in ((added, p, 1 - m), (deleted, m, 1 - p)):
            parts = [
                (
                    one * _chance(count, k, clean),
                    two * _chance(count, k, changed),
                )
                for one, two in parts
                for k in range(count + 1)
            ]
    yield from parts


def _chance(count: int, k: int, p: Fraction) -> Fraction:
    ways = 1
    for i in range(k):
        ways = ways * (count - i) // (i + 1)
    return ways * p**k * (1 - p) ** (count - k)


def _least(p: Fraction, regions: _Regions) -> Fraction:
    total = Fraction(0)
    for clean, changed in regions:
        if p <= clean:
            return total + (changed * p / clean if clean else 0)
        p -= clean
        total += changed
    return total


def radius_again(
    top: int, earlier: int, later: int, total: int, ties: str
) -> int:
    """How many votes may say anything else without another class.

    Takes votes from the class and gives them to another one, one by one.

    Args:
        top (int): the votes for the class.
        earlier (int): the most of a class before it, -1 if there is none.
        later (int): the most of one after it, -1 if there is none.
        total (int): of all votes.
        ties (str): ``'first'`` if the first of several classes wins, or
            ``'any'`` if any may.
    """

    def wins(changed: int) -> bool:
        left = top - changed
        before = earlier < 0 or left > earlier + changed
        same = ties == 'first' and left == later + changed
        return before and (later < 0 or left > later + changed or same)

    radius = -1
    while radius < total and wins(radius + 1):
        radius += 1
    return radius


def level_again(confidence: float, targets: int, per: str, look: int) -> float:
    r"""The level that the bounds of one target may have.

    Args:
        confidence (float): of all, or of each.
        targets (int): how many share it.
        per (str): ``'all'`` or ``'node'``.
        look (int): at which look it ended, 0 if the samples were fixed; look
            :math:`j` has :math:`6 / \pi^2 j^2` of it.
    """
    level = (1 - confidence) / (targets if per == 'all' else 1)
    return level * 6 / (math.pi * look) ** 2 if look else level


def rows_again(tallies: object, width: int, least: int = 0) -> list[list[int]]:
    """Rows of whole numbers, the first of which is positive.

    Args:
        tallies (list): of a report.
        width (int): of each row.
        least (int): the least of them. (default: :obj:`0`)

    Raises:
        ValueError: if they are not.
    """
    if not isinstance(tallies, list):
        raise ValueError("'tallies' needs to be a list of rows")
    for row in tallies:
        if (
            not isinstance(row, list)
            or len(row) != width
            or any(type(n) is not int or n < least for n in row)
            or row[0] < 1
        ):
            raise ValueError(
                f"'tallies' needs to hold rows of {width} counts (got {row})"
            )
    return tallies
