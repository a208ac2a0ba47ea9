"""Proofs of a report's epsilon from its recorded steps."""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ..verify.accounting import judge, judge_mu
from ..verify.claims import amount, count, number
from ..verify.fields import AWAY
from ..verify.groups import judge_group
from .answers import HOLDS, UNPROVED, Checks, Stated, arguments

Lines = list[tuple[float, float, int]]

#: Different steps that are composed one by one; numbers of persons, too.
MOST = 8
# The distribution of losses that an accountant bounds.
LAWS = {'pld_wor': 'wor', 'rdp_wor': 'wor', 'pld_poisson': 'coins'}
# Mechanisms in which a row is in several units, with their sampling.
GROUPS = {'pld_group_wor': 'wor', 'pld_group': 'coins'}
_EGOS = 'rdp_fdp'
SUMS = ('private aggregation', 'private link prediction')


def check_epsilon(each: Stated) -> Checks:
    """Prove or refute an epsilon from recorded steps.

    Returns:
        iterator: a status and a text for every check.
    """
    mechanism = each.values.get('mechanism')
    if each.procedure in SUMS:
        yield from _of_releases(each)
        return
    lines = account(each)
    claimed = number('epsilon', each.values['epsilon'])
    delta = number('delta', each.values['delta'])
    pure = amount('pure_epsilon', each.values['pure_epsilon'])
    searched = each.procedure != 'private training'
    status, unproved = UNPROVED, searched or mechanism == _EGOS
    if mechanism != _EGOS:
        status = proved(each, lines, Fraction(claimed) - Fraction(pure), delta)
    if searched and status == HOLDS:
        # The epsilon of one run is at most that of the whole search.
        status = UNPROVED
    yield (
        status,
        f'epsilon: {claimed:.6g} at delta {delta:g} is claimed of '
        f'{sum(n for *_, n in lines)} recorded steps'
        + (', and of a secret number of runs' if searched else '')
        + ': the kernel has no proof for this accountant' * unproved,
    )
    for i, (k, epsilon) in enumerate(each.values.get('together', ())):
        part = Fraction(number('together', epsilon)) - k * Fraction(pure)
        many = count('together', k, 2)
        yield (
            proved(each, lines, part, delta, many) if i < MOST else UNPROVED,
            f'together: epsilon {epsilon:.6g} is claimed of {k} persons',
        )


def account(each: Stated) -> Lines:
    """Read the recorded noise multipliers, rates and step counts."""
    return [
        (number('account', z, above=0.0), _rate(q), count('account', n, 1))
        for z, q, n in each.values['account']
    ]


def _rate(value: Any) -> float:
    if number('sample_rates', value, above=0.0) > 1:
        raise ValueError(f'a rate is more than 1 (got {value!r})')
    return float(value)


def proved(
    each: Stated, lines: Lines, claimed: Fraction, delta: float, units: int = 1
) -> str:
    """Let the kernel prove an epsilon of steps.

    Args:
        each (Stated): the promise, which names the accountant.
        lines (list): the result of :func:`account`.
        claimed (Fraction): the claimed epsilon, without pure epsilon.
        delta (float): of the report.
        units (int): how many units change together.
    """
    mechanism = each.values['mechanism']
    law = LAWS.get(mechanism) or GROUPS[mechanism]
    few = fewer(lines, MOST)
    exact = tuple(_exact(each, few, law))
    if mechanism in GROUPS or units > 1:
        units *= count('units_per_row', each.values['units_per_row'], 1)
        size = count('batch_size', each.values['batch_size'], 1)
        drawn = None if law == 'coins' else size
        if drawn and len({q for _, q, _ in lines if q < 1}) > 1:
            return UNPROVED  # of that size are the steps of one rate alone
        status = _judged_group(exact, claimed, delta, units, drawn)
    else:
        if law == 'coins':
            away = each.values.get('relation') in AWAY
            law = 'withdraw' if away else 'replace'
        status = _judged(law, exact, claimed, delta)
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
    each: Stated, lines: Lines, law: str
) -> list[tuple[Fraction, Fraction, int]]:
    size = each.values.get('batch_size')
    parts = []
    for z, q, n in lines:
        rate = Fraction(q)
        if law == 'wor' and type(size) is int and size > 0:
            # A share of whole numbers, which no double is.
            share = Fraction(size, max(size, round(size / q)))
            if math.isclose(share, q, rel_tol=1e-12):
                rate = share
        parts.append((Fraction(z), rate, n))
    return parts


def _of_releases(each: Stated) -> Checks:
    # Gaussian releases compose to one, of which there is a closed form.
    values = each.values
    claimed = number('epsilon', values['epsilon'])
    delta = number('delta', values['delta'])
    mu = amount('mu', values['mu'])
    status = judge_mu(Fraction(mu) ** 2, claimed, delta)
    if status == HOLDS and arguments(each).get('engine'):
        # Other steps of the engine are in the engine's own report.
        status = UNPROVED
    yield (
        status,
        f'epsilon: {claimed:.6g} at delta {delta:g} is claimed of releases '
        f'with mu {mu:.6g}',
    )


def together(parts: Iterable[float]) -> Fraction:
    r"""Add the squares of :math:`\mu` of several releases, exactly."""
    return sum((Fraction(mu) ** 2 for mu in parts), Fraction(0))
