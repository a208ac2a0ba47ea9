"""Removals that noise covers: lists, units and shifts written out by hand."""

import hmac
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from references import digest

from pyg_trust.verify import removal

RELATIONS = ('node', 'node_incident', 'feature', 'edge', 'arc')


def lists_of(rng, n, directed):
    """Who each of n nodes names, in order; nobody themselves."""
    some = rng.random((n, n)) < rng.choice([0.1, 0.4])
    np.fill_diagonal(some, False)
    if not directed:
        some |= some.T
    return [np.flatnonzero(row).tolist() for row in some]


def arrays_of(lists, receivers, grid=0.0, **more):
    ends = np.cumsum([0, *map(len, lists)])
    return {
        'rowptr': ends,
        'col': np.array(list(itertools.chain(*lists)), dtype=np.int64),
        'receivers': np.array(receivers),
        'grid': np.array(grid),
        **{name: np.array(value) for name, value in more.items()},
    }


def asked(relation, rng, lists):
    """A request, and the names of nodes and of arcs that go."""
    n = len(lists)
    if relation in ('edge', 'arc'):
        there = [(u, v) for u in range(n) for v in lists[u]]
        some = rng.permutation(len(there))[: rng.integers(1, 5)]
        some = [there[i] for i in some]
        if relation == 'arc':
            return {'directed_edges': some}, (), {*some}
        return {'edges': some}, (), {*some, *((v, u) for u, v in some)}
    who = sorted(rng.permutation(n)[: rng.integers(1, 4)].tolist())
    if relation == 'feature':
        return {'features': who[:1], 'labels': who}, who, ()
    return {'nodes': who}, who, ()


def by_hand(relation, lists, receivers, most, grid, who, arcs):
    """Units, their shift, and what is left of every list."""
    units, gone = len(who), who if relation.startswith('node') else ()
    left = [
        [v for v in row if u not in gone and v not in gone]
        for u, row in enumerate(lists)
    ]
    left = [[v for v in r if (u, v) not in arcs] for u, r in enumerate(left)]
    if relation == 'feature':
        return units, units + 2 * mpmath.mpf(grid), left
    if relation in ('edge', 'arc'):
        # Each adds a message of norm 1 to a row; they may be the same.
        rows = [sum((u, v) in arcs for u in range(9)) for v in range(9)]
        pairs = len({frozenset(arc) for arc in arcs})
        units = len(arcs) if relation == 'arc' else pairs
        return units, mpmath.norm(rows), left
    if relation == 'node_incident':
        sizes = [max(len(lists[v]), most) for v in who]
        return units, sum(map(mpmath.sqrt, sizes)), left

    def column(size):
        return min(mpmath.mpf(1), mpmath.sqrt(mpmath.mpf(most) / size))

    shift = units * mpmath.sqrt(most)
    for u, row in enumerate(lists):
        d = sum(receivers[v] for v in row)
        k = sum(receivers[v] for v in row if v not in who)
        if u not in who and 0 < k < d:
            shift += mpmath.sqrt(k) * (column(k) - column(d) + grid)
    return units, shift, left


@pytest.mark.parametrize('most', [None, 1, 3])
@pytest.mark.parametrize('relation', RELATIONS)
@mpmath.workdps(40)
def test_lists_units_and_shift_are_those_that_are_written_out(relation, most):
    rng = np.random.default_rng(0)
    for grid in (0.0, 0.0, 0.25, 1e-9) * 3:
        lists = lists_of(rng, 9, directed=relation in ('node', 'arc'))
        receivers = (rng.random(9) < 0.7).tolist()
        part, *gone = asked(relation, rng, lists)
        about = {'request': {'0': part}, 'max_degree': most}
        about |= {'adjacency': relation.replace('arc', 'edge')}
        about['directed'] = relation == 'arc'
        arrays = arrays_of(lists, receivers, grid)
        units, moved, made = removal.covered(arrays, about)
        wanted, exact, left = by_hand(
            relation, lists, receivers, most or 1, grid, *gone
        )
        assert units == wanted
        moved = Fraction(moved)
        above = mpmath.mpf(moved.numerator) / moved.denominator - exact
        assert 0 <= above < mpmath.mpf(10) ** -20
        after = arrays_of(left, receivers)
        for array, name in zip(made, ('rowptr', 'col'), strict=True):
            assert array.dtype == np.int64
            assert array.tolist() == after[name].tolist()


def test_one_direction_of_an_undirected_edge_is_a_unit():
    # And both are no more than one; a loop is one, too.
    lists = [[0, 1], [0, 2], [1]]
    for arcs, units, row in (
        ([(0, 1)], 1, 1),
        ([(0, 1), (1, 0)], 1, math.sqrt(2)),
        ([(0, 1), (2, 1)], 2, 2),
        ([(0, 0)], 1, 1),
    ):
        about = {'request': {'0': {'directed_edges': arcs}}}
        about |= {'adjacency': 'edge', 'directed': False, 'max_degree': None}
        found = removal.covered(arrays_of(lists, [True] * 3), about)
        assert found[0] == units
        assert float(found[1]) == pytest.approx(row)


@pytest.mark.parametrize(
    ('relation', 'part'),
    [
        ('node', {'features': [0]}),
        ('node', {'nodes': [0], 'edges': [(0, 1)]}),
        ('node_incident', {'directed_edges': [(0, 1)]}),
        ('feature', {'nodes': [0]}),
        ('edge', {'nodes': [0]}),
        ('edge', {}),
    ],
)
def test_what_another_relation_covers_is_refused(relation, part):
    about = {'request': {'0': part}, 'adjacency': relation}
    about |= {'directed': False, 'max_degree': None}
    with pytest.raises(ValueError, match='of another relation'):
        removal.covered(arrays_of([[1], [0]], [True] * 2), about)


@pytest.mark.parametrize(
    ('relation', 'part'),
    [
        # Beside the numbers of a graph, 0 -> 3 would be taken for 1 -> 0.
        ('edge', {'edges': [(0, 3)]}),
        ('edge', {'directed_edges': [(2, -3)]}),
        ('node', {'nodes': [3]}),
        ('feature', {'labels': [-1]}),
    ],
)
def test_names_beyond_the_graph_are_refused(relation, part):
    about = {'request': {'0': part}, 'adjacency': relation}
    about |= {'directed': False, 'max_degree': None}
    with pytest.raises(ValueError, match='not there'):
        removal.covered(arrays_of([[1], [0], [0]], [True] * 3), about)


def sealed(salt, *parts):
    """A seal, from the digests that arrays and numbers have."""
    return hmac.digest(salt, digest(*parts).encode(), 'sha256').hex()


def claim():
    """A removal of node 1 after one of 2 units, and the lists before it."""
    salts = np.arange(64, dtype=np.uint8).reshape(2, 32)
    more = {'salts': salts, 'units': 2, 'shift': 2.5, 'after': 4.25}
    arrays = arrays_of([[1, 2], [0], [0, 1]], [True] * 3, 0.0, **more)
    left = np.array([0, 1, 1, 2]), np.array([2, 0])
    # Two lists of two lose one: 1 + 2 (1 - 1 / sqrt 2) is 1.59.
    lists, after = (arrays['rowptr'], arrays['col']), (3, 4.25)
    return arrays, {
        **{'request': {'0': {'nodes': [1]}}, 'adjacency': 'node'},
        **{'max_degree': None, 'directed': True, 'units': 3, 'shift': 4.25},
        'before': sealed(bytes(range(32)), *lists, 2, 2.5),
        'data': sealed(bytes(range(32, 64)), *left, *after),
    }


def statuses(arrays, claimed):
    found = list(removal.compare_covered(arrays, claimed))
    for status, text in found:
        name = text.partition(':')[0]
        assert name in ('before', 'data', 'shift')
        assert ('are not those' in text) == (
            status == 'FAILS' and name != 'shift'
        )
    return [status for status, _ in found]


def test_a_covered_removal_is_compared_with_its_lists():
    arrays, claimed = claim()
    assert statuses(arrays, claimed) == ['holds'] * 3
    for name in ('before', 'data'):
        wrong = {**claimed, name: claimed[name][::-1]}
        assert statuses(arrays, wrong).count('FAILS') == 1
    for change in (
        {'salts': arrays['salts'][::-1]},
        {'units': np.array(1)},
        {'shift': np.array(2.25)},
        {'col': np.array([1, 2, 2, 0, 1])},
    ):
        assert statuses({**arrays, **change}, claimed)[0] == 'FAILS'
    # What is sealed after the removal are its own numbers.
    for change in ({'units': 4}, {'shift': 4.5}):
        after = {'after': np.array(change.get('shift', 4.25))}
        found = statuses({**arrays, **after}, {**claimed, **change})
        assert found == ['holds', 'FAILS', 'holds']
    # What is claimed is rounded up, and never below what is sealed.
    for shift, last in ((4.5, 'holds'), (4.0, 'FAILS')):
        found = statuses(arrays, {**claimed, 'shift': shift})
        assert found == ['holds', 'holds', last]
    found = statuses(arrays, {**claimed, 'units': 2})
    assert found == ['holds', 'FAILS', 'FAILS']


def test_a_covered_shift_holds_to_its_last_bit():
    arrays, claimed = claim()
    # Whole numbers: a node of no list is one record and nothing else.
    arrays |= arrays_of([[2], [], [0]], [True] * 3, 0.0)
    for shift in (3.5, math.nextafter(3.5, 0), math.nextafter(3.5, 9)):
        arrays['after'] = np.array(shift)
        *_, last = statuses(arrays, {**claimed, 'shift': shift})
        # One is a root that was rounded up, by 2^-80.
        assert (last == 'holds') == (shift > 3.5)


@pytest.mark.parametrize(
    'change',
    [
        {'rowptr': np.array([0, 2, 3, 4])},
        {'rowptr': np.array([0, 3, 2, 5])},
        {'rowptr': np.array([1, 2, 3, 5])},
        {'rowptr': np.array([0, 2, 5])},
        {'col': np.array([1, 2, 0, 0, 3])},
        {'col': np.array([1, 2, 0, 0, -1])},
        {'salts': np.zeros((1, 32), np.uint8)},
        {'salts': np.zeros((2, 31), np.uint8)},
        {'salts': np.zeros((3, 32), np.uint8)},
        {'shift': np.array(-0.5)},
        {'grid': np.array(-1e-9)},
        {'grid': np.array(np.nan)},
        {'units': np.array(2.0)},
        {'shift': np.array([2.5])},
        {'receivers': np.ones(3)},
        {'receivers': np.ones((3, 1), bool)},
        {'rowptr': np.array([0, 2, 3, 5], np.int32)},
        {'col': np.array([1, 2, 0, 0, 1], np.int32)},
        {'salts': np.zeros((2, 32), np.int64)},
        {'salts': np.zeros(64, np.uint8)},
        {'grid': np.array(0)},
        {'shift': np.array(2)},
        {'units': np.array([2])},
        {'grid': np.array([0.0])},
        {'col': np.array([[1, 2, 0, 0, 1]])},
        {'rowptr': np.array([[0, 2, 3, 5]])},
    ],
)
def test_lists_that_are_none_are_refused(change):
    arrays, claimed = claim()
    with pytest.raises(ValueError, match=r'array|numbers'):
        statuses({**arrays, **change}, claimed)


def test_names_of_arrays_are_those_of_the_proof():
    arrays, claimed = claim()
    for wrong in (
        {k: v for k, v in arrays.items() if k != 'grid'},
        {**arrays, 'more': np.zeros(1)},
    ):
        with pytest.raises(ValueError, match='missing, or no part'):
            statuses(wrong, claimed)
