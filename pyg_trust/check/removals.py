"""Certified removals: the numbers of a report, made again from one another.

The residual itself is a function of the remaining data and of weights that
are in no report: that it is as small as claimed is said to be unchecked.
"""

import math
from typing import Any

from pyg_trust._checks import check_non_negative, check_positive
from pyg_trust.check.epsilon import FAILS, HOLDS, UNKNOWN, Said
from pyg_trust.functional.shifts import shift_epsilon
from pyg_trust.report import Guarantee

NODES = 'certified removal from a node classifier'
GRAPHS = 'certified removal'


def check_removal(each: Guarantee) -> Said:
    """Check the fields of a removal against one another.

    Args:
        each (Guarantee): of the kind ``'removal'``.

    Returns:
        iterator: a status and a text for everything that was looked at.
    """
    values = each.values
    if each.procedure not in (NODES, GRAPHS):
        return
    given = each.origin.get('arguments', {})
    yield from _settings(values, given)
    if values['noise'] == 'objective':
        yield (
            UNKNOWN,
            'epsilon: it assumes a theorem that does not hold in general',
        )
        return
    if values['noise'] != 'output':
        yield FAILS, f'no removal has noise of the kind {values["noise"]!r}'
        return
    std = check_positive('release_std', values['release_std'])
    shifts = _shifts(each, given, std)
    yield from shifts[1]
    yield from _epsilons(values, shifts[0], values['distance_bound'] / std)
    yield (
        UNKNOWN,
        'that the residual is within its bound: it is a function of the data '
        'that remain and of weights that no report has; verify() measures it',
    )


def _settings(values: dict[str, Any], given: dict[str, Any]) -> Said:
    # What the arguments of the run say of the same things.
    for name in ('noise', 'release_std', 'delta'):
        if name in given and given[name] != values[name]:
            yield (
                FAILS,
                f'{name}: the run had {given[name]!r}, {values[name]!r} is '
                'claimed',
            )
    secret = values.get('secure', not values['seeded'])
    if secret is values['seeded'] or (
        given.get('seed') is not None and not values['seeded']
    ):
        yield FAILS, 'seeded: the run had a seed, and secret noise is claimed'


def _shifts(
    each: Guarantee, given: dict[str, Any], std: float
) -> tuple[list[float], list[tuple[str, str]]]:
    # The shifts over noise of all releases, and what does not fit.
    values, found = each.values, []
    history = [check_non_negative('history', m) for m in values['history']]
    bound = check_non_negative('bound', values['bound'])
    limit = check_positive('budget', values['budget'])
    if each.procedure == NODES:
        count = values['num_train']
        scale = std * check_positive('lam', given['lam']) * count
        history = [share * limit / scale for share in history]
    else:
        count, scale = len(history), 1.0
        if values['releases'] != count:
            found.append(
                f'releases: {values["releases"]} are claimed, {count} are in '
                'the history'
            )
    pairs: tuple[tuple[str, Any, float], ...] = (
        ('distance_bound', values['distance_bound'], std * bound / scale),
        *(('spent', spent, bound) for spent in each.spent.values()),
        *(('budget', most, limit) for most in each.budget.values()),
    )
    for name, claimed, made in pairs:
        if not math.isclose(claimed, made, rel_tol=1e-9, abs_tol=0.0):
            found.append(
                f'{name}: {claimed:.6g} is claimed, the other fields make '
                f'{made:.6g}'
            )
    if not history or history[-1] * (1 + 1e-9) < bound / scale:
        found.append('history: its last release is less than the bound')
    if not each.spent:
        found.append('nothing is said to be spent')
    target, delta = given['epsilon'], float(values['delta'])
    if shift_epsilon(min(limit / scale, 20.0), delta) > target * (1 + 1e-9):
        found.append(
            f'budget: {limit:.6g} allows more than epsilon {target:g}, which '
            'the run was given'
        )
    return history, [(FAILS, text) for text in found]


def _epsilons(
    values: dict[str, Any], history: list[float], shift: float
) -> Said:
    delta = float(values['delta'])
    last = max(shift, history[-1] if history else 0.0)
    for name, what, m in (
        ('epsilon', 'this release', last),
        ('epsilon_transcript', 'all releases', math.hypot(*history, 0.0)),
    ):
        claimed, again = float(values[name]), shift_epsilon(m, delta)
        yield (
            HOLDS if claimed >= again * (1 - 1e-9) else FAILS,
            f'{name}: {claimed:.6g} is claimed at delta {delta:g}, '
            f'{again:.6g} follows from a shift of {m:.6g} of the noise of '
            f'{what}',
        )
