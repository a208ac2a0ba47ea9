"""The exact laws of disjoint walks on small graphs, by enumeration."""

from collections import defaultdict
from functools import cache
from itertools import permutations
from math import factorial


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
