"""Checks of certificates by recounting the votes in the report."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from ..verify import collective, ranks
from ..verify.claims import amount, count
from ..verify.proofs import BROKEN, MOST, ROBUST, differences, prove
from ..verify.votes import (
    Answers,
    bounds,
    level,
    radius,
    regions,
    stays,
    table,
)
from .answers import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    Checks,
    Stated,
    is_digest,
)

# Seconds of sums over votes (squares of samples, and as much for each), of
# rows for each number of changes, and of patterns of flipped bits.
_SUMS, _SUM, _ROWS, _PATTERNS = 10**12, 2 * 10**8, 10**6, 2 * 10**6
_COUNT = '(0|[1-9][0-9]{0,2})'
_BUDGET = re.compile(f'(edges|features)_added_{_COUNT}_deleted_{_COUNT}')


# Additions and deletions of a kind of bits, and the probabilities that a 0
# becomes 1 and that a 1 becomes 0.
Change = tuple[int, int, float, float]


def check_certificate(each: Stated) -> Checks:
    """Check that a certificate follows from its votes.

    Returns:
        iterator: a status and a text for every check.
    """
    yield from _CHECKS[each.procedure](each)


# By smoothing ################################################################


def _smoothed(each: Stated) -> Checks:
    values = each.values
    total = count('targets', values['targets'], 1)
    look = count('look', values['look'], 0)
    limit = level(values['confidence'], total, values['per'], look)
    alpha = float(values['alpha'])
    sound = 0 < alpha <= limit
    yield (
        HOLDS if sound else FAILS,
        f"each target's bounds are of level {alpha:.4g}; {float(limit):.4g} "
        f'is what confidence {values["confidence"]:g} leaves for it',
    )
    if values.get('tallies') is None:
        yield UNPROVED, 'how many stay: the report has no votes'
        return
    noise = values['flips']
    yield from _noise(values)
    rows = table(values['tallies'], 4 + 2 * len(noise))
    counted = sum(row[0] for row in rows)
    counted += count('num_abstained', values['num_abstained'])
    samples = count('num_samples', values['num_samples'], 1)
    wrong = [row for row in rows if sum(row[1:4]) != samples]
    if counted != total:
        yield FAILS, f'there are votes of {counted} targets, not of {total}'
    yield (
        FAILS if wrong else HOLDS,
        f'{sum(wrong[0][1:4])} samples have voted where {samples} are claimed'
        if wrong
        else f'all of {samples} samples have voted for every target',
    )
    classes = count('num_classes', values['num_classes'], 1)
    # Votes for others are at most those for the runner-up, each.
    if any(row[3] > row[2] * (classes - 1) for row in rows):
        yield FAILS, f'more than {classes} other classes have votes'
    yield from _cells(values, rows)
    if not values['certified']:
        yield FAILS, 'nothing is said of any number of changes'
    yield from _smoothed_counts(values, rows, samples, classes)
    yield (
        UNKNOWN,
        'that the model votes so: certify again with the seed that the report '
        'has; nor that it was not chosen among several runs',
    )


def _noise(values: dict[str, Any]) -> Checks:
    # The printed noise has to be that of the probabilities in 'flips'.
    flips = values['flips']
    if not flips or not set(flips) <= {'edges', 'features'}:
        raise ValueError(f"'flips' needs to hold noise (got {flips})")
    noise = [f'{kind}={tuple(pair)}' for kind, pair in flips.items()]
    noise.append(f'directed={not values["undirected"]}')
    if not all(text in values['noise'] for text in noise):
        yield FAILS, f'flips: {", ".join(noise)} is not {values["noise"]}'


def _cells(values: dict[str, Any], rows: list[list[int]]) -> Checks:
    # Targets that are nodes share one graph, so they share its counts.
    cells = {tuple(row[4:]) for row in rows}
    if values['task'] != 'graphs' and len(cells) > 1:
        yield FAILS, 'targets of one graph have different numbers of cells'
    kinds = range(0, 2 * len(values['flips']), 2)
    if any(not any(each[k : k + 2]) for each in cells for k in kinds):
        yield FAILS, 'nothing is there that could change: 0 zeros and 0 ones'


def _smoothed_counts(
    values: dict[str, Any], rows: list[list[int]], samples: int, classes: int
) -> Checks:
    tolerance = amount('tolerance', values['tolerance'])
    alpha = float(values['alpha'])
    for name in set(values['answered']) - set(values['certified']):
        yield FAILS, f'{name}: they are answered, and nothing is certified'
    if values['answered'] and values['look']:
        yield FAILS, 'a run that ended early has no answers to promise'
    known: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    pairs, patterns = {(row[1], row[2]) for row in rows}, 0
    if (
        len(pairs) * (samples**2 + _SUM) > _SUMS
        or len(rows) * len(values['certified']) > _ROWS
    ):
        yield UNPROVED, f'how many stay: {samples} votes are too many to sum'
        return
    for _, top, runner_up, *_ in rows:
        if (top, runner_up) not in known:
            known[top, runner_up] = bounds(
                *(top, runner_up, samples, classes, alpha, values['classes'])
            )
    chosen = count('num_selection', values['num_selection'], 1)
    answered = Answers(samples, chosen, alpha, values['classes'], tolerance)
    for name, claimed in values['certified'].items():
        match = _BUDGET.fullmatch(name)
        if match is None:
            yield FAILS, f'{name!r} is no number of changes'
            continue
        kind, budget = match[1], (int(match[2]), int(match[3]))
        again = answer = 0
        groups: dict[tuple[Change, ...], list[list[int]]] = {}
        for row in rows:
            groups.setdefault(_changes(values, row, kind, budget), []).append(
                row
            )
        for changes in groups:
            flipped = [n for change in changes for n in change[:2]]
            patterns += math.prod(n + 1 for n in flipped) * (1 + sum(flipped))
        if patterns > _PATTERNS:
            yield UNPROVED, f'{name}: there are too many patterns of changes'
            return
        for changes, part in groups.items():
            likelihoods = regions(changes)
            stay = {
                pair: stays(known[pair], likelihoods, tolerance)
                for pair in {(row[1], row[2]) for row in part}
            }
            again += sum(row[0] for row in part if stay[row[1], row[2]])
            answer += sum(
                row[0]
                for row in part
                if stay[pair := (row[1], row[2])]
                and answered.holds(known[pair][0], likelihoods)
            )
        limit = f'for up to {budget[0]} added and {budget[1]} deleted of the '
        limit += kind
        yield (
            HOLDS if count(name, claimed) <= again else FAILS,
            f'{claimed} stay {limit}, {again} by the recorded votes',
        )
        if name in values['answered']:
            stated = count(name, values['answered'][name])
            yield (
                HOLDS if stated <= answer else FAILS,
                f'{stated} have an answer {limit}, {answer} by the recorded '
                'votes',
            )


def _changes(
    values: dict[str, Any],
    row: list[int],
    kind: str,
    budget: tuple[int, int],
) -> tuple[Change, ...]:
    # Additions are limited by the zeros, deletions by the ones.
    parts = []
    for number, (name, (plus, minus)) in enumerate(
        sorted(values['flips'].items())
    ):
        zeros, ones = row[4 + 2 * number : 6 + 2 * number]
        added, deleted = budget if name == kind else (0, 0)
        cells = min(added, zeros), min(deleted, ones)
        parts.append((*cells, float(plus), float(minus)))
    if kind not in values['flips']:
        raise ValueError(f'there is no noise on the {kind}')
    return tuple(parts)


def _collective(each: Stated) -> Checks:
    values = each.values
    names = ('guaranteed', 'counted', 'one_by_one', 'num_targets')
    guaranteed, counted, alone, total = (
        count(name, values[name], 0) for name in names
    )
    bound = amount('bound', values['bound'])
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


# By votes ####################################################################


def _voted(each: Stated) -> Checks:
    values = each.values
    views = count('views', values['views'], 1)
    side = count('num_groups', values['num_groups'], 1)
    wanted = side * side if values['by'] == 'grid' else side
    if views != wanted:
        yield FAILS, f'{side} groups make {wanted} views, {views} are claimed'
    yield from _radii(each, values['vote'], views, 'first')
    yield (
        UNKNOWN,
        'that the model votes so, and that a change reaches one view: divide '
        'and vote again with the seed that the report has',
    )


def _poisoned(each: Stated) -> Checks:
    values = each.values
    shards = count('num_shards', values['num_shards'], 1)
    yield from _radii(each, values['aggregator'], shards, 'any')
    yield (
        UNKNOWN,
        'that the shards vote so, and that each was trained on its own nodes '
        'alone: train and certify again',
    )


def _kept(values: dict[str, Any]) -> list[tuple[int, int]]:
    counts = []
    for k, stay in values['certified'].items():
        if not re.fullmatch('0|[1-9][0-9]{0,9}', k):
            raise ValueError(f"'certified' has {k!r}, which is no count")
        counts.append((int(k), count('certified', stay)))
    return counts


def _radii(each: Stated, vote: str, views: int, ties: str) -> Checks:
    values = each.values
    if vote != 'majority':
        yield (
            UNKNOWN,
            'how many stay: means of probabilities, of which the report has '
            'no table',
        )
        return
    if values.get('tallies') is None:
        yield UNPROVED, 'how many stay: the report has no votes'
        return
    rows = table(values['tallies'], 5, -1)
    total = count('targets', values['targets'], 1)
    counted = sum(row[0] for row in rows)
    # Targets without votes count as certified for no change.
    if counted > total:
        yield FAILS, f'there are votes of {counted} targets, not of {total}'
    for _, top, earlier, later, rest in rows:
        voted = top + max(earlier, 0) + max(later, 0) + rest
        other = max(earlier, later)
        if min(top, rest, other) < 0 or (rest and not other):
            yield FAILS, f'no votes make {top, earlier, later, rest}'
            return
        if voted != views:
            yield FAILS, f'{voted} votes were counted, {views} are claimed'
            return
    yield (
        HOLDS,
        f'all of {views} have voted, for each of {counted} of {total} targets',
    )
    # The number of targets that stay, by the number of changes, descending.
    radii = sorted(
        (-radius(top, earlier, later, ties), alike)
        for alike, top, earlier, later, _ in rows
    )
    stay = [0, *accumulate(alike for _, alike in radii)]
    for k, claimed in _kept(values):
        again = stay[bisect_right(radii, -k, key=lambda pair: pair[0])]
        yield (
            HOLDS if claimed <= again else FAILS,
            f'{claimed} stay if {k} say anything else, {again} by the '
            'recorded votes',
        )


# Exactly #####################################################################


def _exact(each: Stated) -> Checks:
    values = each.values
    names = ('num_robust', 'num_broken', 'num_unknown')
    parts = [count(name, values[name], 0) for name in names]
    total = count('targets', values['targets'], 0)
    yield (
        HOLDS if sum(parts) == total else FAILS,
        f'robust, broken and unknown are {sum(parts)} together, of {total}',
    )
    yield from _unproved(each)


def _unproved(each: Stated) -> Checks:
    digest = each.values.get('witness_digest', 'none')
    if not is_digest(digest):
        yield UNPROVED, f'that no graph breaks it: the witness is {digest}'


def check_witness(each: Stated, arrays: dict[str, np.ndarray]) -> Checks:
    """Prove a sampling-free certificate from its witness."""
    values = each.values
    if each.procedure.startswith('collective'):
        most = collective.prove(arrays)
        yield (
            HOLDS if most <= amount('bound', values['bound']) else UNPROVED,
            f'witness: at most {float(most):.6g} break together, '
            f'{values["bound"]:.6g} is claimed, if its targets see and bear '
            'what it has of them',
        )
        for text in collective.differences(arrays, values):
            yield FAILS, f'witness: {text}'
        return
    try:
        if each.procedure.endswith('ranks'):
            yield from ranks.judge(arrays, values, MOST)
            return
        status, total = prove(arrays, MOST), len(arrays['targets'])
    except OverflowError as error:
        yield UNPROVED, f'witness: {error}'
        return
    for text in differences(arrays, values):
        yield FAILS, f'witness: {text}'
    for name, is_, other, text in (
        ('num_robust', ROBUST, BROKEN, 'stay'),
        ('num_broken', BROKEN, ROBUST, 'be broken'),
    ):
        claimed, proved = count(name, values[name]), status.count(is_)
        wrong = claimed > total - status.count(other)
        yield (
            FAILS if wrong else HOLDS if claimed <= proved else UNPROVED,
            f'witness: {proved} of {total} are proved to {text}, {claimed} '
            'are claimed',
        )
    if values['model'] != 'logits' or each.model:
        yield (
            UNKNOWN,
            'witness: that its logits and edges are those of model and data: '
            'certify again',
        )


_CHECKS: dict[str, Callable[[Stated], Checks]] = {
    'certificate by smoothing': _smoothed,
    'collective certificate by smoothing': _collective,
    'certificate of ranks': _unproved,
    'certificate by division and voting': _voted,
    'certificate against poisoning, by shards': _poisoned,
    'robustness certificate': _exact,
}
