"""Certificates by votes, proved from the counts.

Counts give bounds of probabilities (Clopper, Pearson), bounds give worst cases
under changed bits (Neyman, Pearson), and votes of views or shards a number of
changes. All in integers and fractions.
See docs/theory/proofs.rst.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from scipy.special import betaincinv

from .intervals import up

Number = Fraction | float
# Additions and deletions of a kind of bits, and the probabilities that a 0
# becomes 1 and that a 1 becomes 0.
Change = tuple[int, int, Number, Number]

BITS = 160
# Bounds in floats are off by less.
SURE = Fraction(1, 2**38)


# Counts to bounds ###########################################################


def power_up(x: Fraction, e: int) -> tuple[int, int]:
    r"""Return ``m, s`` with :math:`x^e \le m 2^s`, ``x`` not negative."""
    m, s = 1, 0
    digits = BITS + x.denominator.bit_length()
    base, shift = up(x.numerator << digits, x.denominator), -digits
    while e:
        if e & 1:
            m, s = m * base, s + shift
            cut = max(0, m.bit_length() - 2 * BITS)
            m, s = up(m, 1 << cut), s + cut
        base, shift, e = base * base, 2 * shift, e >> 1
        cut = max(0, base.bit_length() - 2 * BITS)
        base, shift = up(base, 1 << cut), shift + cut
    return m, s


def tail_up(n: int, k: int, p: Fraction) -> Fraction:
    r"""Compute :math:`P[\mathrm{Bin}(n, p) \ge k]`, rounded up.

    Terms :math:`t_j = \binom{n}{j} p^j (1-p)^{n-j}` from :math:`j = k` on;
    :math:`t_{j+1} = t_j f_j` with :math:`f_j = (n - j) p / (j + 1) (1 - p)`,
    which falls: once it is below 1 the rest is at most :math:`t_j f_j / (1 -
    f_j)`. (Far below the mean roundings grow with the terms: useless there,
    but no less true.)
    """
    if k <= 0 or p >= 1:
        return Fraction(1)
    (a, s), (b, t) = power_up(p, k), power_up(1 - p, n - k)
    w = BITS + 64
    term, shift = math.comb(n, k) * a * b, s + t + w
    term = term << shift if shift >= 0 else up(term, 1 << -shift)
    odds = p / (1 - p)
    digits = BITS + odds.denominator.bit_length()
    odds_up = up(odds.numerator << digits, odds.denominator)
    total, j = 0, k
    while True:
        total += term
        num, den = (n - j) * odds_up, (j + 1) << digits
        # At j = n there is no rest.
        if term * num <= den - num:
            return Fraction(total + 1, 1 << w)
        term, j = up(term * num, den), j + 1


def proves(n: int, k: int, p: Number, level: Number) -> bool:
    """Return whether ``p`` is a lower bound at a level, for k of n samples."""
    return tail_up(n, k, Fraction(p)) <= Fraction(level)


def lower_bound(n: int, k: int, level: Number) -> Fraction:
    """Return a proved lower bound for k of n, close to the largest."""
    if k == 0:
        return Fraction(0)
    proposed = float(betaincinv(k, n - k + 1, float(level)))
    less = 2.0**-44
    while less < 1:
        p = Fraction(proposed * (1 - less))
        if proves(n, k, p, level):
            return p
        less *= 16
    return Fraction(0)


def bounds(
    top: int,
    runner_up: int,
    num_samples: int,
    num_classes: int,
    alpha: Number,
    classes: str,
) -> tuple[Fraction, Fraction]:
    r"""Bound the class's probability from below, any other's from above.

    With bounds of all classes the first is wrong with probability
    :math:`\alpha / 2` and each of the :math:`C` others, outputs that are not
    finite among them, with :math:`\alpha / 2 C`; else the first with
    :math:`\alpha`.
    """
    alpha = Fraction(alpha)
    if classes == 'one':
        return lower_bound(num_samples, top, alpha), Fraction(1)
    level = alpha / (2 * num_classes)
    other = lower_bound(num_samples, num_samples - runner_up, level)
    return lower_bound(num_samples, top, alpha / 2), 1 - other


def level(confidence: Number, targets: int, per: str) -> Fraction:
    r"""Return the significance level per target, rounded down."""
    return (1 - Fraction(confidence)) / (targets if per == 'all' else 1)


# Bounds to worst cases ######################################################


def chance(count: int, k: int, p: Fraction) -> Fraction:
    """Return the probability that k of count bits are set."""
    return math.comb(count, k) * p**k * (1 - p) ** (count - k)


def patterns(changes: Sequence[Change]) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield clean and changed probabilities by numbers of flipped bits."""
    parts = [(Fraction(1), Fraction(1))]
    for added, deleted, plus, minus in changes:
        p, m = Fraction(plus), Fraction(minus)
        if not (p >= 0 and m >= 0 and p + m < 1):
            raise ValueError(f'no noise has probabilities {plus} and {minus}')
        # A bit that was added is 1: p clean, 1 - m changed. One that was
        # deleted is 0: m clean, 1 - p changed.
        for count, clean, changed in ((added, p, 1 - m), (deleted, m, 1 - p)):
            parts = [
                (
                    one * chance(count, k, clean),
                    two * chance(count, k, changed),
                )
                for one, two in parts
                for k in range(count + 1)
            ]
    yield from parts


def regions(changes: Sequence[Change]) -> list[tuple[Fraction, Fraction]]:
    """Join patterns of the same ratio, and sort by falling ratio."""
    parts: dict[Fraction | None, tuple[Fraction, Fraction]] = {}
    for clean, changed in patterns(changes):
        if clean or changed:
            ratio = clean / changed if changed else None
            one, two = parts.get(ratio, (Fraction(0), Fraction(0)))
            parts[ratio] = one + clean, two + changed
    # None stands for infinity.
    order = sorted(parts, key=lambda r: (r is not None, -(r or 0)))
    return [parts[ratio] for ratio in order]


def least(p: Fraction, parts: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """Return the least probability after a change, if it was ``p``."""
    total = Fraction(0)
    for clean, changed in parts:
        if p <= clean:
            return total + changed * p / clean
        p, total = p - clean, total + changed
    return total


def stays(
    bound: tuple[Number, Number],
    parts: Sequence[tuple[Fraction, Fraction]],
    tolerance: Number = 0,
) -> bool:
    """Return whether the class wins in every case that the bounds allow."""
    off = Fraction(tolerance)
    kept = least(Fraction(bound[0]) - off, parts)
    left = 1 - Fraction(bound[1]) - off
    return 2 * kept > 1 or kept > 1 - least(left, parts)


def needed(n: int, level: Number, tolerance: Number) -> int:
    """Return the least count of n votes that proves a majority, or n + 1."""
    half = Fraction(1, 2) + Fraction(tolerance) + SURE
    low, high = 0, n + 1
    while low < high:
        middle = (low + high) // 2
        if proves(n, middle, half, level):
            high = middle
        else:
            low = middle + 1
    return low


def answers(p: Fraction, n: int, k: int, m: int, failure: Number) -> bool:
    """Return whether a class of probability p lacks an answer rarely enough.

    Args:
        p (Fraction): a lower bound of the probability of the class.
        n (int): the number of samples that bound its probability.
        k (int): the count that is needed, of :func:`needed`.
        m (int): the number of samples that choose the class.
        failure (float): the probability with which it may have no answer.
    """
    missed = tail_up(n, n - k + 1, 1 - p) + tail_up(m, m - m // 2, 1 - p)
    return missed <= Fraction(failure)


class Answers:
    """Test of which bounds a later run answers, except with probability alpha.

    Args:
        samples (int): the number that bound the probability of the class.
        selection (int): the number that choose it.
        alpha (float): the level of all bounds of a target together.
        classes (str): ``'all'`` or ``'one'``.
        tolerance (float): the sampler's tolerance.
    """

    def __init__(
        self,
        samples: int,
        selection: int,
        alpha: Number,
        classes: str,
        tolerance: Number,
    ) -> None:
        self.tolerance, self.alpha = Fraction(tolerance), Fraction(alpha)
        share = self.alpha / (2 if classes == 'all' else 1)
        count = needed(samples, share, tolerance)
        self.run = samples, count, selection, self.alpha
        # More has an answer, less has none: one half is missed too often.
        self.enough, self.few = Fraction(2), Fraction(1, 2)

    def holds(
        self, bound: Fraction, parts: Sequence[tuple[Fraction, Fraction]]
    ) -> bool:
        """Return whether a later run answers under every admissible change."""
        left = least(bound - self.tolerance, parts) - self.tolerance
        if self.few < left < self.enough:
            if answers(left, *self.run):
                self.enough = left
            else:
                self.few = left
        return left >= self.enough


# Views and shards ###########################################################


def radius(top: int, earlier: int, later: int, ties: str) -> int:
    """Count the votes that may change without changing the class.

    Args:
        top (int): the votes for the class.
        earlier (int): the most of a class before it, -1 if there is none.
        later (int): the most of one after it, -1 if there is none. One of
            them has to be there.
        ties (str): ``'first'`` if the first of several classes wins, or
            ``'any'`` if any may.

    Returns:
        int: -1 if the class may not win even without a change.
    """
    # Wins if top - k > earlier + k, and > (or = if it wins ties) later + k.
    gap = top - later - (ties != 'first')
    return max(min((top - earlier - 1) // 2, gap // 2), -1)


def table(tallies: object, width: int, least: int = 0) -> list[list[int]]:
    """Read rows of counts, each led by the number of targets that have it."""
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
