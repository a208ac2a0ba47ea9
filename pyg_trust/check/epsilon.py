"""The epsilon of a report, recomputed: by this package and by another."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pyg_trust._checks import (
    check_integer,
    check_non_negative,
    check_positive,
)
from pyg_trust.check.recount import (
    gaussian_again,
    poisson_again,
    rdp_wor_again,
    wor_again,
)
from pyg_trust.check.recount_renyi import fdp_again, select_again
from pyg_trust.functional import (
    gaussian_epsilon,
    poisson_epsilon,
    rdp_epsilon,
    rdp_fdp,
    wor_epsilon,
)
from pyg_trust.functional.accounting import ORDERS
from pyg_trust.functional.mechanisms import lam_from_opacus
from pyg_trust.report import Guarantee

HOLDS, FAILS, UNKNOWN = 'holds', 'FAILS', 'not checked'
Said = Iterator[tuple[str, str]]
Lines = list[tuple[float, float, int]]

# Different steps that are composed one by one.
MOST = 128

# Epsilons are computed in floating point, by sums of many terms, and by each
# package on a grid of its own: on what reports have they agree to 1e-4.
ROUNDING = 1e-3


def close(one: float, two: float) -> bool:
    """Whether two numbers are the same, up to rounding.

    Args:
        one (float): of a field.
        two (float): of another.
    """
    return math.isclose(one, two, rel_tol=ROUNDING, abs_tol=1e-12)


def account(each: Guarantee) -> Lines | None:
    """Noise multipliers, rates and numbers of steps, as they were recorded.

    Args:
        each (Guarantee): of private training.

    Returns:
        list: None if it has none.
    """
    lines = each.values.get('account')
    if lines:
        return [(float(z), float(q), int(count)) for z, q, count in lines]
    lam, rates = each.values.get('lam'), each.values.get('sample_rates')
    if lam is None or rates is None:
        return None
    # Reports from before there was 'account'.
    if _halved(each):
        noise = 2 * float(lam)
    else:
        noise = float(each.values['noise_multiplier'])
    return [(noise, float(q), int(count)) for q, count in rates]


def _halved(each: Guarantee) -> bool:
    return str(each.values.get('mechanism')).endswith('_wor')


# Accountants of the package.
_OWN = ('pld_wor', 'rdp_wor', 'pld_poisson', 'rdp_fdp')


def check_epsilon(each: Guarantee) -> Said:
    """Whether an epsilon is at least that of what was recorded.

    Args:
        each (Guarantee): of the kind ``'privacy'``.

    Returns:
        iterator: a status and a text for everything that was looked at.
    """
    mechanism = each.values.get('mechanism')
    if mechanism is None and 'mu' in each.values:
        yield from _check_gaussian(each, each.values['mu'])
        return
    if mechanism is not None and mechanism not in _OWN:
        yield (
            UNKNOWN,
            f'epsilon: {mechanism!r} is no accountant of pyg_trust: whoever '
            'wrote it vouches for it',
        )
        return
    lines = account(each)
    if lines is None or mechanism is None:
        yield UNKNOWN, 'epsilon: the report has no steps to recompute it from'
        return
    if 'mean_runs' in each.values:
        yield from _check_search(each, lines)
        return
    claimed = float(each.values['epsilon'])
    delta = float(each.values['delta'])
    pure = check_non_negative(
        'pure_epsilon', each.values.get('pure_epsilon', 0.0)
    )
    most = pure + recomputed(each, fewer(lines, up=True), delta)
    least = most
    if len(lines) > MOST:
        least = pure + recomputed(each, fewer(lines, up=False), delta)
    status = HOLDS if claimed >= most * (1 - ROUNDING) else UNKNOWN
    yield (
        FAILS if claimed < least * (1 - ROUNDING) else status,
        f'epsilon: {claimed:.6g} is claimed at delta {delta:g}, {most:.6g} '
        f"recomputed from the recorded steps by pyg_trust's {mechanism}"
        + (f' (at least {least:.6g})' if least < most else ''),
    )
    if len(lines) <= MOST // 10:
        yield _compared(each, lambda: pure + _independent(each, lines, delta))
    yield from _check_steps(each, lines)


def _check_search(each: Guarantee, lines: Lines) -> Said:
    values = each.values
    mean = check_positive('mean_runs', values['mean_runs'])
    shape = check_non_negative('shape', values['shape'])

    def again() -> float:
        return select_again(
            values['mechanism'],
            lines,
            check_non_negative('pure_epsilon', values['pure_epsilon']),
            (mean, shape),
            float(values['delta']),
            form=_form(each),
            **_egos(each, lines),
        )

    yield _compared(each, again)
    yield (
        UNKNOWN,
        f'that a secret number of runs, {mean:g} in the mean, was drawn, and '
        'that none spent more than the recorded steps',
    )


def _egos(each: Guarantee, lines: Lines) -> dict[str, int]:
    # What the account of ego graphs takes beside noise and rate.
    if each.values['mechanism'] != 'rdp_fdp':
        return {}
    size = check_integer('batch_size', each.values['batch_size'], 1)
    if not all(_is_share(size, q) for _, q, _ in lines):
        raise ValueError(f'a rate is not that of {size} units out of some')
    terms = check_integer('units_per_row', each.values['units_per_row'], 1)
    return {'batch_size': size, 'terms': terms}


def _compared(each: Guarantee, again: Callable[[], float]) -> tuple[str, str]:
    claimed = float(each.values['epsilon'])
    try:
        other = again()
    except ImportError:
        return (
            UNKNOWN,
            "epsilon: recomputed by this package's own code alone; 'pip "
            "install dp-accounting' for an independent accountant",
        )
    return (
        HOLDS if claimed >= other * (1 - ROUNDING) else FAILS,
        f'epsilon: dp-accounting, independent of this package, gives '
        f'{other:.6g}',
    )


def _check_steps(each: Guarantee, lines: Lines) -> Said:
    # The fields that tell of the steps are of the same steps.
    values = each.values
    steps, recorded = values['steps'], sum(count for _, _, count in lines)
    if steps != recorded:
        yield FAILS, f'{steps} steps are claimed, {recorded} are recorded'
    rates: dict[float, int] = {}
    for _, rate, count in lines:
        rates[rate] = rates.get(rate, 0) + count
    if rates != {float(q): int(n) for q, n in values['sample_rates']}:
        yield FAILS, 'the rates are not those of the recorded steps'
    size = check_integer('batch_size', values['batch_size'], 1)
    if _halved(each) and not all(_is_share(size, q) for _, q, _ in lines):
        yield FAILS, f'a rate is not that of {size} units out of some'
    noise = float(values['noise_multiplier'])
    lam = lam_from_opacus(noise) if _halved(each) else None
    egos = _egos(each, lines)
    if egos:
        lam = lam_from_opacus(noise / egos['terms'])
    if lam is not None and not close(values['lam'], lam):
        yield (
            FAILS,
            f'lam: {values["lam"]:.6g} is not what noise {noise:.6g} makes',
        )
    # A release beside the training is at rate 1, with noise of its own.
    other = [z for z, q, _ in lines if q < 1 and not close(z, noise)]
    if other:
        yield (
            FAILS,
            f'noise {noise:.6g} is claimed, {other[0]:.6g} is recorded',
        )


def _is_share(size: int, rate: float) -> bool:
    units = size / rate
    return math.isclose(units, round(units), rel_tol=1e-6)


def fewer(lines: Lines, *, up: bool) -> Lines:
    """Merge steps that are almost alike, so that few different ones are left.

    Args:
        lines (list): as of :func:`account`.
        up (bool): whether steps count as those with the least noise and the
            largest rate of their cell, so that epsilon is no less; or as
            those with the most noise, so that it is no more.
    """
    width, merged = 0.0, _merged(lines, 0.0, up)
    while len(merged) > MOST:
        width = 2 * width or 1e-5
        merged = _merged(lines, width, up)
    return merged


def _merged(lines: Lines, width: float, up: bool) -> Lines:
    cells: dict[Any, Lines] = {}
    for z, q, count in lines:
        cell: Any = (z, q)
        if width:
            cell = (math.log(z) // width, math.log(q) // width)
        cells.setdefault(cell, []).append((z, q, count))
    first, other = (min, max) if up else (max, min)
    return [
        (
            first(z for z, _, _ in part),
            other(q for _, q, _ in part),
            sum(count for *_, count in part),
        )
        for part in cells.values()
    ]


def recomputed(each: Guarantee, lines: Lines, delta: float) -> float:
    """The epsilon of steps, by the report's accountant.

    Args:
        each (Guarantee): names the accountant.
        lines (list): as of :func:`account`.
        delta (float): of the report.
    """
    if each.values['mechanism'] == 'rdp_fdp':
        return _fdp_epsilon(each, lines, delta)
    if not _halved(each):
        return poisson_epsilon(lines, delta, _form(each))
    halved = [(lam_from_opacus(z), q, count) for z, q, count in lines]
    return wor_epsilon(halved, delta, each.values['mechanism'])


def _fdp_epsilon(each: Guarantee, lines: Lines, delta: float) -> float:
    egos = _egos(each, lines)
    size, terms = egos['batch_size'], egos['terms']
    rdp = [
        count
        * rdp_fdp(
            ORDERS,
            round(size / rate),
            size,
            terms,
            lam_from_opacus(noise / terms),
        )
        for noise, rate, count in lines
    ]
    return rdp_epsilon(ORDERS, np.sum(rdp, 0), delta) if rdp else 0.0


def _independent(each: Guarantee, lines: Lines, delta: float) -> float:
    lines = [line for line in lines if line[2]]
    if not lines:
        return 0.0
    if each.values['mechanism'] == 'rdp_fdp':
        return fdp_again(lines, delta=delta, **_egos(each, lines))
    if not _halved(each):
        return poisson_again(lines, delta, _form(each))
    halved = [(z / 2, q, count) for z, q, count in lines]
    if each.values['mechanism'] == 'pld_wor':
        return wor_again(halved, delta)
    batch_size = check_integer('batch_size', each.values['batch_size'], 1)
    return rdp_wor_again(halved, batch_size, delta)


def _form(each: Guarantee) -> str:
    relation = str(each.values.get('relation'))
    return 'withdraw' if relation.startswith('add-or-remove') else 'replace'


def _check_gaussian(each: Guarantee, mu: Any) -> Said:
    # Gaussian releases compose to one, of which there is a closed form.
    claimed, delta = float(each.values['epsilon']), float(each.values['delta'])
    mu = check_non_negative('mu', mu)
    parts = [
        float(value)
        for name in ('mu_encoder', 'mu_aggregation', 'mu_head')
        if (value := each.values.get(name)) is not None
    ]
    if parts and not mu >= math.hypot(*parts) * (1 - ROUNDING):
        yield FAILS, f'mu: {mu:.6g} is less than its parts make together'
    yield (
        HOLDS
        if claimed >= gaussian_epsilon(mu, delta) * (1 - ROUNDING)
        else FAILS,
        f'epsilon: {claimed:.6g} is claimed at delta {delta:g}, '
        f'{gaussian_epsilon(mu, delta):.6g} recomputed from mu {mu:.6g} by '
        'pyg_trust',
    )
    yield _compared(each, lambda: gaussian_again(mu, delta))
