"""Checks of certificates by recounting the votes in the report."""

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from ..verify import collective, proofs, ranks
from ..verify.votes import (
    Answers,
    bounds,
    level,
    radius,
    regions,
    stays,
    table,
)
from .answers import FAILS, HOLDS, UNKNOWN, UNPROVED, Checks, Stated, is_digest

__all__ = ['check_certificate', 'check_witness']

# Seconds of sums over votes (squares of samples, and as much for each), of
# rows for each number of changes, and of patterns of flipped bits.
_SUMS, _SUM, _ROWS, _PATTERNS = 10**12, 2 * 10**8, 10**6, 2 * 10**6


# What no report can show, by procedure.
_OPEN = {
    'certificate by smoothing': 'that the model votes so: certify again with '
    'the seed that the report has; nor that it was not chosen among several '
    'runs',
    'collective certificate by smoothing': 'how many break together: the '
    'report has neither the graph nor the votes; certify again, and check the '
    'certificate by smoothing that it is made of',
    'certificate by division and voting': 'that the model votes so, and that '
    'a change reaches one view: divide and vote again with the seed that the '
    'report has',
    'certificate against poisoning, by shards': 'that the shards vote so, and '
    'that each was trained on its own nodes alone: train and certify again',
}


# Additions and deletions of a kind of bits, and the probabilities that a 0
# becomes 1 and that a 1 becomes 0.
Change = tuple[int, int, float, float]


def check_certificate(c: Any) -> Checks:
    """Check that a certificate follows from its votes."""
    if c.procedure == 'certificate by smoothing':
        yield from _smoothed(c)
        return
    if c.procedure == 'certificate by division and voting':
        yield from _radii(c, c.vote, c.views, 'first')
    elif c.procedure == 'certificate against poisoning, by shards':
        yield from _radii(c, c.aggregator, c.num_shards, 'any')
    elif c.procedure not in _OPEN and not is_digest(c.witness_digest):
        text = f'the witness is {c.witness_digest}'
        yield UNPROVED, f'that no graph breaks it: {text}'
    if c.procedure in _OPEN:
        yield UNKNOWN, _OPEN[c.procedure]


# By smoothing ################################################################


def _smoothed(c: Any) -> Checks:
    limit = level(c.confidence, c.targets, c.per)
    sound = c.alpha <= limit
    yield (
        HOLDS if sound else FAILS,
        f"each target's bounds are of level {c.alpha:.4g}; {float(limit):.4g} "
        f'is what confidence {c.confidence:g} leaves for it',
    )
    if c.tallies is None:
        yield UNPROVED, 'how many stay: the report has no votes'
        return
    if not c.flips:
        yield FAILS, 'flips: there is no noise'
        return
    rows = table(c.tallies, 4 + 2 * len(c.flips))
    counted = sum(row[0] for row in rows) + c.num_abstained
    samples = c.num_samples
    wrong = [row for row in rows if sum(row[1:4]) != samples]
    if counted != c.targets:
        yield (
            FAILS,
            f'there are votes of {counted} targets, not of {c.targets}',
        )
    yield (
        FAILS if wrong else HOLDS,
        f'{sum(wrong[0][1:4])} samples have voted where {samples} are claimed'
        if wrong
        else f'all of {samples} samples have voted for every target',
    )
    # Votes for others are at most those for the runner-up, each.
    if any(row[3] > row[2] * (c.num_classes - 1) for row in rows):
        yield FAILS, f'more than {c.num_classes} other classes have votes'
    yield from _cells(c, rows)
    if not c.certified:
        yield FAILS, 'no number of changes is certified'
    yield from _smoothed_counts(c, rows)
    yield UNKNOWN, _OPEN[c.procedure]


def _cells(c: Any, rows: list[list[int]]) -> Checks:
    # Targets that are nodes share one graph, so they share its counts.
    cells = {tuple(row[4:]) for row in rows}
    if c.task != 'graphs' and len(cells) > 1:
        yield FAILS, 'targets of one graph have different numbers of cells'
    kinds = range(0, 2 * len(c.flips), 2)
    if any(not any(each[k : k + 2]) for each in cells for k in kinds):
        yield FAILS, 'nothing is there that could change: 0 zeros and 0 ones'


def _smoothed_counts(c: Any, rows: list[list[int]]) -> Checks:
    samples = c.num_samples
    for name in set(c.answered) - set(c.certified):
        yield FAILS, f'{name}: they are answered, and nothing is certified'
    known: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    pairs, patterns = {(row[1], row[2]) for row in rows}, 0
    if (
        len(pairs) * (samples**2 + _SUM) > _SUMS
        or len(rows) * len(c.certified) > _ROWS
    ):
        yield UNPROVED, f'how many stay: {samples} votes are too many to sum'
        return
    for _, top, runner_up, *_ in rows:
        if (top, runner_up) not in known:
            known[top, runner_up] = bounds(
                *(top, runner_up, samples, c.num_classes, c.alpha, c.classes)
            )
    answered = Answers(
        samples, c.num_selection, c.alpha, c.classes, c.tolerance
    )
    for name, claimed in c.certified.items():
        kind, _, plus, _, minus = name.split('_')
        budget = int(plus), int(minus)
        again = answer = 0
        groups: dict[tuple[Change, ...], list[list[int]]] = {}
        for row in rows:
            groups.setdefault(_changes(c, row, kind, budget), []).append(row)
        for changes in groups:
            flipped = [n for change in changes for n in change[:2]]
            patterns += math.prod(n + 1 for n in flipped) * (1 + sum(flipped))
        if patterns > _PATTERNS:
            yield UNPROVED, f'{name}: there are too many patterns of changes'
            return
        for changes, part in groups.items():
            likelihoods = regions(changes)
            stay = {
                pair: stays(known[pair], likelihoods, c.tolerance)
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
            HOLDS if claimed <= again else FAILS,
            f'{claimed} stay {limit}, {again} by the recorded votes',
        )
        if name in c.answered:
            stated = c.answered[name]
            yield (
                HOLDS if stated <= answer else FAILS,
                f'{stated} have an answer {limit}, {answer} by the recorded '
                'votes',
            )


def _changes(
    c: Any, row: list[int], kind: str, budget: tuple[int, int]
) -> tuple[Change, ...]:
    # Additions are limited by the zeros, deletions by the ones.
    parts = []
    for number, (name, (plus, minus)) in enumerate(sorted(c.flips.items())):
        zeros, ones = row[4 + 2 * number : 6 + 2 * number]
        added, deleted = budget if name == kind else (0, 0)
        cells = min(added, zeros), min(deleted, ones)
        parts.append((*cells, float(plus), float(minus)))
    if kind not in c.flips:
        raise ValueError(f'there is no noise on the {kind}')
    return tuple(parts)


# By votes ####################################################################


def _radii(c: Any, vote: str, views: int, ties: str) -> Checks:
    if vote != 'majority':
        yield (
            UNKNOWN,
            'how many stay: means of probabilities, of which the report has '
            'no table',
        )
        return
    if c.tallies is None:
        yield UNPROVED, 'how many stay: the report has no votes'
        return
    rows, total = table(c.tallies, 5, -1), c.targets
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
    for text, claimed in c.certified.items():
        k = int(text)
        again = stay[bisect_right(radii, -k, key=lambda pair: pair[0])]
        yield (
            HOLDS if claimed <= again else FAILS,
            f'{claimed} stay if {k} say anything else, {again} by the '
            'recorded votes',
        )


# Exactly #####################################################################


def check_witness(
    c: Any, each: Stated, arrays: dict[str, np.ndarray]
) -> Checks:
    """Prove a sampling-free certificate from its witness."""
    kernel: Any = proofs
    if c.procedure.startswith('collective'):
        kernel = collective
    elif c.procedure.endswith('ranks'):
        kernel = ranks
    try:
        yield from kernel.judge(arrays, c.to_dict(), proofs.MOST)
    except OverflowError as error:
        yield UNPROVED, f'witness: {error}'
        return
    if kernel is proofs and (c.model != 'logits' or each.weights_sha256):
        yield (
            UNKNOWN,
            'witness: that its logits and edges are those of model and data: '
            'certify again',
        )
