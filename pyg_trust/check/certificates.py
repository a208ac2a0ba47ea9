"""The certificates of a report, recounted from the votes that it has."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from pyg_trust._checks import check_integer, check_non_negative
from pyg_trust.check.epsilon import FAILS, HOLDS, UNKNOWN, Said
from pyg_trust.check.recount_votes import (
    Change,
    bounds_again,
    level_again,
    radius_again,
    rows_again,
    stays_again,
)
from pyg_trust.report import Guarantee

_BUDGET = re.compile(r'(edges|features)_added_(\d{1,3})_deleted_(\d{1,3})')


def check_certificate(each: Guarantee, told: Sequence[float]) -> Said:
    """Whether a certificate is that of the votes that it has.

    Args:
        each (Guarantee): of the kind ``'robustness'``.
        told (list[float]): the numbers of its sentence, in their order.

    Returns:
        iterator: a status and a text for everything that was looked at.
    """
    if each.promise.startswith('as says '):
        yield (
            UNKNOWN,
            'the certificate is no one of pyg_trust: whoever wrote it '
            'vouches for it',
        )
        return
    check = _CHECKS.get(each.procedure)
    if check is None:
        yield UNKNOWN, 'no certificate of pyg_trust has this name'
        return
    found = list(check(each))
    wanted = _SENTENCES[each.procedure](each.values)
    same = len(told) == len(wanted) and all(
        math.isclose(one, two, rel_tol=1e-5)
        for one, two in zip(told, wanted, strict=True)
    )
    yield (
        HOLDS if same else FAILS,
        'its sentence has the numbers of its fields'
        if same
        else f'its sentence says {_list(told)}, its fields {_list(wanted)}',
    )
    yield from found


def _list(numbers: Sequence[float]) -> str:
    return ', '.join(f'{number:g}' for number in numbers)


# By smoothing ################################################################


def _smoothed(each: Guarantee) -> Said:
    values = each.values
    total = check_integer('targets', values['targets'], 1)
    together = values['per'] == 'all'
    if ('all together' in each.promise) != together:
        yield FAILS, 'its sentence says another confidence than its fields'
    limit = level_again(
        float(values['confidence']),
        total,
        values['per'],
        check_integer('look', values['look'], 0),
    )
    alpha = float(values['alpha'])
    sound = 0 < alpha <= limit * (1 + 1e-9)
    yield (
        HOLDS if sound else FAILS,
        f"each target's bounds are of level {alpha:.4g}, {limit:.4g} is what "
        f'confidence {values["confidence"]:g} leaves for it',
    )
    if values.get('tallies') is None:
        yield UNKNOWN, 'how many stay: the report has no votes'
        return
    noise = values['flips']
    rows = rows_again(values['tallies'], 4 + 2 * len(noise))
    counted = sum(row[0] for row in rows) + values['num_abstained']
    samples = check_integer('num_samples', values['num_samples'], 1)
    wrong = [row for row in rows if sum(row[1:4]) != samples]
    if counted != total:
        yield FAILS, f'there are votes of {counted} targets, not of {total}'
    yield (
        FAILS if wrong else HOLDS,
        f'{sum(wrong[0][1:4])} samples have voted where {samples} are claimed'
        if wrong
        else f'all of {samples} samples have voted for every target',
    )
    classes = check_integer('num_classes', values['num_classes'], 1)
    if any(row[3] > row[2] * (classes - 1) for row in rows):
        yield FAILS, f'more than {classes} other classes have votes'
    if not values['certified']:
        yield FAILS, 'nothing is said of any number of changes'
    yield from _smoothed_counts(values, rows, samples, classes)
    yield (
        UNKNOWN,
        'that the model votes so: certify again with the seed that the report '
        'has; nor that it was not chosen among several runs',
    )


def _smoothed_counts(
    values: dict[str, Any], rows: list[list[int]], samples: int, classes: int
) -> Said:
    tolerance = check_non_negative('tolerance', values['tolerance'])
    alpha = float(values['alpha'])
    known: dict[tuple[int, int], tuple[float, float]] = {}
    for _, top, runner_up, *_ in rows:
        if (top, runner_up) not in known:
            known[top, runner_up] = bounds_again(
                *(top, runner_up, samples, classes, alpha, values['classes'])
            )
    for name, claimed in values['certified'].items():
        match = _BUDGET.fullmatch(name)
        if match is None:
            yield FAILS, f'{name!r} is no number of changes'
            continue
        kind, budget = match[1], (int(match[2]), int(match[3]))
        again = 0
        groups: dict[tuple[Change, ...], list[list[int]]] = {}
        for row in rows:
            groups.setdefault(_changes(values, row, kind, budget), []).append(
                row
            )
        for changes, part in groups.items():
            pairs = sorted({(row[1], row[2]) for row in part})
            stays = dict(
                zip(
                    pairs,
                    stays_again(
                        [known[pair] for pair in pairs], changes, tolerance
                    ),
                    strict=True,
                )
            )
            again += sum(row[0] for row in part if stays[row[1], row[2]])
        yield (
            HOLDS if 0 <= claimed <= again else FAILS,
            f'{claimed} stay for up to {budget[0]} added and {budget[1]} '
            f'deleted of the {kind}, {again} by the recorded votes',
        )


def _changes(
    values: dict[str, Any],
    row: list[int],
    kind: str,
    budget: tuple[int, int],
) -> tuple[Change, ...]:
    # No more zeros can be set than there are, nor ones deleted.
    made = []
    for number, (name, (plus, minus)) in enumerate(
        sorted(values['flips'].items())
    ):
        zeros, ones = row[4 + 2 * number : 6 + 2 * number]
        added, deleted = budget if name == kind else (0, 0)
        p, m = float(plus), float(minus)
        if not (p >= 0 and m >= 0 and p + m < 1):
            raise ValueError(
                f"'flips' needs to hold noise (got {plus, minus})"
            )
        made.append((min(added, zeros), min(deleted, ones), p, m))
    if kind not in values['flips']:
        raise ValueError(f'there is no noise on the {kind}')
    return tuple(made)


def _smoothed_told(values: dict[str, Any]) -> list[float]:
    counts = []
    for name, count in values['certified'].items():
        match = _BUDGET.fullmatch(name)
        if match is not None:
            counts += [count, int(match[2]), int(match[3])]
    confidence = float(values['confidence'])
    return [values['targets'], *counts, confidence, values['num_abstained']]


def _collective(each: Guarantee) -> Said:
    values = each.values
    names = ('guaranteed', 'counted', 'one_by_one', 'num_targets')
    guaranteed, counted, alone, total = (
        check_integer(name, values[name], 0) for name in names
    )
    bound = check_non_negative('bound', values['bound'])
    most = max(counted - math.floor(bound + 1e-6), alone)
    yield (
        HOLDS if guaranteed <= most <= counted <= total else FAILS,
        f'{guaranteed} of {counted} are guaranteed, {most} follow from at '
        f'most {bound:.6g} that break together and {alone} that stay by '
        'themselves',
    )
    yield (
        UNKNOWN,
        'how many break together: the report has neither the graph nor the '
        'votes; certify again, and check the certificate by smoothing that '
        'it is made of',
    )


def _collective_told(values: dict[str, Any]) -> list[float]:
    limits = [values[name] for name in ('attackers', 'local_budget')]
    return [
        values['guaranteed'],
        values['num_targets'],
        *values['edges'],
        *values['features'],
        *(limit for limit in limits if limit is not None),
        float(values['confidence']),
    ]


# By votes ####################################################################


def _voted(each: Guarantee) -> Said:
    values = each.values
    views = check_integer('views', values['views'], 1)
    side = check_integer('num_groups', values['num_groups'], 1)
    made = side * side if values['by'] == 'grid' else side
    if views != made:
        yield FAILS, f'{side} groups make {made} views, {views} are claimed'
    yield from _radii(each, values['vote'], views, 'first')
    yield (
        UNKNOWN,
        'that the model votes so, and that a change reaches one view: divide '
        'and vote again with the seed that the report has',
    )


def _voted_told(values: dict[str, Any]) -> list[float]:
    counts = [n for k, count in _kept(values) for n in (count, k)]
    return [values['views'], values['targets'], *counts]


def _poisoned(each: Guarantee) -> Said:
    values = each.values
    shards = check_integer('num_shards', values['num_shards'], 1)
    yield from _radii(each, values['aggregator'], shards, 'any')
    yield (
        UNKNOWN,
        'that the shards vote so, and that each was trained on its own nodes '
        'alone: train and certify again',
    )


def _poisoned_told(values: dict[str, Any]) -> list[float]:
    return [
        values['targets'],
        *(n for k, count in _kept(values) for n in (count, k)),
    ]


def _kept(values: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (check_integer('certified', int(k), 0), count)
        for k, count in values['certified'].items()
    ]


def _radii(each: Guarantee, vote: str, views: int, ties: str) -> Said:
    values = each.values
    if vote != 'majority':
        yield (
            UNKNOWN,
            'how many stay: means of probabilities, of which the report has '
            'no table',
        )
        return
    if values.get('tallies') is None:
        yield UNKNOWN, 'how many stay: the report has no votes'
        return
    rows = rows_again(values['tallies'], 5, -1)
    total = check_integer('targets', values['targets'], 1)
    counted = sum(row[0] for row in rows)
    # What is left out stays for no change.
    if counted > total:
        yield FAILS, f'there are votes of {counted} targets, not of {total}'
    for _, top, earlier, later, rest in rows:
        voted = top + max(earlier, 0) + max(later, 0) + rest
        if voted != views:
            yield FAILS, f'{voted} votes were counted, {views} are claimed'
            return
    yield (
        HOLDS,
        f'all of {views} have voted, for each of {counted} of {total} targets',
    )
    radii = [
        (count, radius_again(top, earlier, later, views, ties))
        for count, top, earlier, later, _ in rows
    ]
    for k, claimed in _kept(values):
        again = sum(count for count, radius in radii if radius >= k)
        yield (
            HOLDS if 0 <= claimed <= again else FAILS,
            f'{claimed} stay if {k} say anything else, {again} by the '
            'recorded votes',
        )


# Exactly #####################################################################


def _exact(each: Guarantee) -> Said:
    values = each.values
    names = ('num_robust', 'num_broken', 'num_unknown')
    parts = [check_integer(name, values[name], 0) for name in names]
    total = check_integer('targets', values['targets'], 0)
    yield (
        HOLDS if sum(parts) == total else FAILS,
        f'robust, broken and unknown are {sum(parts)} together, of {total}',
    )
    yield (
        UNKNOWN,
        'that no graph breaks them: the report has neither the graph nor the '
        'logits; certify again with the arguments that it has',
    )


def _exact_told(values: dict[str, Any]) -> list[float]:
    budget = values['global_budget']
    return [
        values['num_robust'],
        values['targets'],
        *([] if budget is None else [budget]),
        values['max_local_budget'],
        values['num_broken'],
        values['num_unknown'],
    ]


_CHECKS: dict[str, Callable[[Guarantee], Said]] = {
    'certificate by smoothing': _smoothed,
    'collective certificate by smoothing': _collective,
    'certificate by division and voting': _voted,
    'certificate against poisoning, by shards': _poisoned,
    'robustness certificate': _exact,
}
_SENTENCES: dict[str, Callable[[dict[str, Any]], list[float]]] = {
    'certificate by smoothing': _smoothed_told,
    'collective certificate by smoothing': _collective_told,
    'certificate by division and voting': _voted_told,
    'certificate against poisoning, by shards': _poisoned_told,
    'robustness certificate': _exact_told,
}
