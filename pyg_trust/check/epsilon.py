"""Proofs of a report's epsilon from its recorded steps."""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ..verify.accounting import judge, judge_mu
from ..verify.claims_privacy import AWAY, PROTECTS
from ..verify.groups import judge_group
from .answers import HOLDS, UNKNOWN, UNPROVED, Checks, Stated

__all__ = ['account', 'check_epsilon', 'fewer', 'proved', 'together']

Lines = list[tuple[float, float, int]]

#: Different steps that are composed one by one; numbers of persons, too.
MOST = 8
# The distribution of losses that an accountant bounds.
LAWS = {'pld_wor': 'wor', 'rdp_wor': 'wor', 'pld_poisson': 'coins'}
# Mechanisms in which a row is in several units, with their sampling.
GROUPS = {'pld_group_wor': 'wor', 'pld_group': 'coins'}
KNOWN = {**LAWS, **GROUPS}
SUMS = ('private aggregation', 'private link prediction')


def check_epsilon(c: Any, each: Stated) -> Checks:
    """Prove or refute an epsilon from recorded steps."""
    if c.procedure in SUMS:
        yield from _of_releases(c, each)
        return
    lines, pure = account(c), Fraction(c.pure_epsilon)
    searched = c.procedure != 'private training'
    status, unproved = UNPROVED, searched or c.mechanism not in KNOWN
    if c.mechanism in KNOWN:
        status = proved(c, lines, Fraction(c.epsilon) - pure)
    if searched and status == HOLDS:
        # The epsilon of one run is at most that of the whole search.
        status = UNPROVED
    yield (
        status,
        f'epsilon: {c.epsilon:.6g} at delta {c.delta:g} is claimed of '
        f'{sum(n for *_, n in lines)} recorded steps'
        + (', and of a secret number of runs' if searched else '')
        + ': the kernel has no proof for this accountant' * unproved,
    )
    if getattr(c, 'unit', None) not in (None, *PROTECTS):
        yield UNKNOWN, 'what a step protects: a loader of the user decides it'
    for i, (k, epsilon) in enumerate(getattr(c, 'together', ())):
        part = Fraction(epsilon) - k * pure
        yield (
            proved(c, lines, part, k) if i < MOST else UNPROVED,
            f'together: epsilon {epsilon:.6g} is claimed of {k} persons',
        )


def account(c: Any) -> Lines:
    """Return the recorded noise multipliers, rates and step counts."""
    return [(z, q, n) for z, q, n in c.account]


def proved(c: Any, lines: Lines, claimed: Fraction, units: int = 1) -> str:
    """Let the kernel prove an epsilon of steps."""
    law = KNOWN[c.mechanism]
    few = fewer(lines, MOST)
    exact = tuple(_exact(c, few, law))
    if c.mechanism in GROUPS or units > 1:
        units *= c.units_per_row
        drawn = None if law == 'coins' else c.batch_size
        if drawn and len({q for _, q, _ in lines if q < 1}) > 1:
            return UNPROVED  # of that size are the steps of one rate alone
        status = _judged_group(exact, claimed, c.delta, units, drawn)
    else:
        if law == 'coins':
            law = 'withdraw' if c.neighboring in AWAY else 'replace'
        status = _judged(law, exact, claimed, c.delta)
    # Merged, they are more than what was spent: nothing is refuted.
    return status if few == lines or status == HOLDS else UNPROVED


# The steps of a report and those of its ledger are the same, as a rule.
_judged = lru_cache(maxsize=8)(judge)
_judged_group = lru_cache(maxsize=8)(judge_group)


def fewer(
    lines: list[tuple[float, float, int]], most: int
) -> list[tuple[float, float, int]]:
    """Merge similar steps: the least noise, the largest rate.

    This never lowers epsilon.
    """
    width, merged = 1e-5, lines
    while len(merged) > most:
        cells: dict[tuple[float, float], list] = {}
        for z, q, n in lines:
            cell = (math.log(z) // width, math.log(q) // width)
            cells.setdefault(cell, []).append((z, q, n))
        merged = [
            (
                min(z for z, _, _ in part),
                max(q for _, q, _ in part),
                sum(n for *_, n in part),
            )
            for part in cells.values()
        ]
        width *= 2
    return merged


def _exact(
    c: Any, lines: Lines, law: str
) -> list[tuple[Fraction, Fraction, int]]:
    parts, size = [], c.batch_size
    for z, q, n in lines:
        rate = Fraction(q)
        if law == 'wor' and size is not None:
            # A share of whole numbers, which no double is.
            share = Fraction(size, max(size, round(size / q)))
            if math.isclose(share, q, rel_tol=1e-12):
                rate = share
        parts.append((Fraction(z), rate, n))
    return parts


def _of_releases(c: Any, each: Stated) -> Checks:
    # Gaussian releases compose to one, of which there is a closed form.
    status = judge_mu(Fraction(c.mu) ** 2, c.epsilon, c.delta)
    run = each.origin.get('arguments')
    if status == HOLDS and isinstance(run, dict) and run.get('engine'):
        # Other steps of the engine are in the engine's own report.
        status = UNPROVED
    yield (
        status,
        f'epsilon: {c.epsilon:.6g} at delta {c.delta:g} is claimed of '
        f'releases with mu {c.mu:.6g}',
    )


def together(parts: Iterable[float]) -> Fraction:
    r"""Add the squares of :math:`\mu` of several releases, exactly."""
    return sum((Fraction(mu) ** 2 for mu in parts), Fraction(0))
