"""The exact laws of disjoint walks on small graphs, by enumeration."""

import json
from collections import defaultdict
from fractions import Fraction
from functools import cache
from itertools import pairwise, permutations
from math import factorial

from scipy.stats import chi2


def walks_from(root, rows, claimed, length, restarts):
    """The law of one root's nodes, given what is claimed: node tuples."""
    law = defaultdict(float)

    def go(nodes, at, step, walk, p):
        if walk == restarts or length == 0:
            law[nodes] += p
            return
        found = [v for v in rows[at] if v not in claimed and v not in nodes]
        if not found:
            # A walk that cannot go on ends; from the root, all end.
            if step == 0:
                law[nodes] += p
            else:
                go(nodes, nodes[0], 0, walk + 1, p)
            return
        for v in found:
            if step + 1 == length:
                go((*nodes, v), nodes[0], 0, walk + 1, p / len(found))
            else:
                go((*nodes, v), v, step + 1, walk, p / len(found))

    go((root,), root, 0, 0, 1.0)
    return dict(law)


def law_of(rows, roots, length, restarts, rounds):
    """The law of all subgraphs: one root after another, or in rounds.

    In a round, every root that is left and not claimed walks past what was
    claimed before; it keeps its nodes if no earlier root's walk has any.
    """

    @cache
    def walk(root, claimed):
        return walks_from(root, rows, claimed, length, restarts)

    @cache
    def rest(claimed, pending):
        pending = tuple(r for r in pending if r not in claimed)
        if not pending:
            return {frozenset(): 1.0}
        states = {(frozenset(), frozenset(), ()): 1.0}  # bids, kept, left
        for root in pending if rounds else pending[:1]:
            after = defaultdict(float)
            for (bids, kept, left), p in states.items():
                for nodes, q in walk(root, claimed).items():
                    meets = not bids.isdisjoint(nodes)
                    state = (
                        bids.union(nodes),
                        kept if meets else kept | {nodes},
                        (*left, root) if meets else left,
                    )
                    after[state] += p * q
            states = after
        law = defaultdict(float)
        for (_, kept, left), p in states.items():
            now = claimed.union(*kept)
            later = left if rounds else pending[1:]
            for others, q in rest(now, later).items():
                law[kept | others] += p * q
        return dict(law)

    total = defaultdict(float)
    for order in permutations(roots):
        for outcome, p in rest(frozenset(), order).items():
            total[outcome] += p / factorial(len(roots))
    return dict(total)


def distance(one, two):
    """Total variation."""
    return sum(abs(one.get(k, 0) - two.get(k, 0)) for k in {*one, *two}) / 2


def as_lists(ptr, node):
    """The nodes of every subgraph."""
    return [node[a:b].tolist() for a, b in pairwise(ptr.tolist())]


def outcome(ptr, node):
    """All subgraphs, in any order."""
    return frozenset(map(tuple, as_lists(ptr, node)))


def p_value(counts, law):
    """Pearson's test of counts against probabilities, by outcome."""
    assert set(counts) <= set(law)
    draws = sum(counts.values())
    statistic = sum(
        (counts[k] - draws * p) ** 2 / (draws * p) for k, p in law.items()
    )
    return chi2.sf(float(statistic), len(law) - 1)


def oracle_cases(shared):
    """Cases of the oracle: roots, length, restarts, and the law."""
    path = shared / 'oracles' / 'dp' / 'sampler_exact.json'
    oracle = json.loads(path.read_text())
    for case in oracle['cases']:
        law = {
            frozenset(map(tuple, one['subgraphs'])): Fraction(*one['p'])
            for one in case['outcomes']
        }
        yield oracle['edges'], tuple(case['roots']), case['L'], case['R'], law


def rows_of(edges):
    """The neighbours of every node of an undirected graph."""
    rows = [[] for _ in range(1 + max(map(max, edges)))]
    for u, v in edges:
        rows[u].append(v)
        rows[v].append(u)
    return rows
