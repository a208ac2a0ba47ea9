"""Collective bounds from multipliers: rationals, programs, hostile arrays."""

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from pyg_trust.certificates.collective import broken_bound
from pyg_trust.verify import collective as kernel


def problem(seed, additions=False, attackers=None):
    """Points, fields, budgets and caps of ten targets and two kinds."""
    draw = np.random.default_rng(seed)
    targets, items = 10, 7
    owner = np.sort(draw.integers(0, targets, 20))
    points = draw.integers(0, 3, (20, 2 + additions))
    points[points.sum(1) == 0, 0] = 1
    seen = [
        scipy.sparse.csr_array(draw.random((targets, items)) < 0.4).astype(
            float
        )
        for _ in range(2)
    ]
    caps = [draw.integers(1, 4, items) for _ in range(2)]
    near = None
    if additions:
        near = scipy.sparse.csr_array(draw.random((targets, 9)) < 0.4).astype(
            float
        )
    rows = [0, 1] if attackers else []
    return kernel.Attack(
        *(owner, points, seen, [2, 1, 2][: 2 + additions]),
        *(caps, near, attackers, rows),
    )


def within(attack):
    return kernel.program(attack.within())


CASES = [(False, None), (True, None), (False, 2), (True, 3)]


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('seed', range(3))
def test_any_multipliers_bound_the_program_in_rationals(seed, case):
    made = within(problem(seed, *case))
    optimum = -linprog(
        -made.gain,
        A_ub=made.matrix,
        b_ub=made.right,
        bounds=np.stack([0 * made.upper, made.upper], 1),
    ).fun
    draw = np.random.default_rng(seed)
    for scale in (1e-3, 0.3, 1.0, 1e9, 1e300):
        held = draw.normal(size=made.right.size) * scale
        held[0], held[1] = np.nan, np.inf
        found = kernel.value(held, made)
        assert found >= optimum - 1e-9
        kept = [
            Fraction(x) if 0 < x < np.inf else Fraction(0)
            for x in held.tolist()
        ]
        dense = made.matrix.toarray()
        exact = sum(
            Fraction(h) * x for h, x in zip(made.right, kept, strict=True)
        )
        for j, most in enumerate(made.upper):
            left = Fraction(made.gain[j]) - sum(
                Fraction(a) * x
                for a, x in zip(dense[:, j], kept, strict=True)
                if a != 0
            )
            exact += Fraction(most) * max(left, Fraction(0))
        # Rounded down multipliers are others: their bound is as near.
        assert abs(found - exact) <= Fraction(1, 10**6) * max(1, exact)


def most_broken(attack):
    """The program's statement, by trying whole numbers."""
    spread = []
    for caps, most in zip(attack.caps, attack.budget, strict=False):
        ways = itertools.product(*(range(int(c) + 1) for c in caps))
        spread.append([np.array(b) for b in ways if sum(b) <= most])
    near, most = attack.additions, attack.budget[-1]
    added = [(0, ())]
    if near is not None:
        near = near.toarray()
        added = [
            (a, ends)
            for a in range(most + 1)
            for k in range(2 * a + 1)
            for ends in itertools.combinations(range(near.shape[1]), k)
        ]
    worst = 0
    for b in itertools.product(*spread):
        if attack.attackers is not None:
            nodes = attack.caps[attack.rows[0]].size
            changed = np.zeros(nodes, dtype=bool)
            for kind in attack.rows:
                changed |= b[kind] > 0
            if changed.sum() > attack.attackers:
                continue
        seen = [m.toarray() @ x for m, x in zip(attack.reach, b, strict=True)]
        for a, ends in added:
            broken = set()
            for v, point in zip(attack.owner, attack.points, strict=True):
                kinds = range(len(b))
                by = all(point[d] <= seen[d][v] for d in kinds)
                wide = near is not None and (
                    all(point[d] <= b[d].sum() for d in kinds)
                    and max(1, point[-1]) <= a
                    and near[v, list(ends)].any()
                )
                if wide or (by and (near is None or point[-1] == 0)):
                    broken.add(int(v))
            worst = max(worst, len(broken))
    return worst


BUDGETS = [2, 1, 1], [1, 2, 3], [2, 1, 0], [1, 0, 1]


def tiny(seed, additions, attackers):
    """Four targets, three items of two kinds, and small budgets."""
    draw = np.random.default_rng(seed)
    owner = np.array([0, 0, 2, 3, 1, 3])
    points = draw.integers(0, 3, (6, 2 + additions))
    points[points.sum(1) == 0, -1] = 1
    seen = [
        scipy.sparse.csr_array((draw.random((4, 3)) < 0.4).astype(float))
        for _ in range(2)
    ]
    near = scipy.sparse.csr_array((draw.random((4, 3)) < 0.4).astype(float))
    return kernel.Attack(
        *(
            owner,
            points,
            seen,
            BUDGETS[seed % 3 if seed < 6 else 3][: 2 + additions],
        ),
        [draw.integers(1, 3, 3) for _ in range(2)],
        near if additions else None,
        attackers,
        [] if attackers is None else [0, 1],
    )


@pytest.mark.parametrize('additions', [False, True])
@pytest.mark.parametrize('attackers', [None, 0, 1])
def test_the_program_is_what_it_says(additions, attackers):
    # With whole numbers its optimum is that of all ways to attack.
    found = []
    for seed in (*range(6), 27, 29):
        attack = tiny(seed, additions, attackers).within()
        if not len(attack.owner):
            continue
        made = kernel.program(attack)
        best = milp(
            -made.gain,
            integrality=np.ones(made.gain.size),
            bounds=Bounds(0, made.upper),
            constraints=LinearConstraint(made.matrix, -np.inf, made.right),
        )
        found.append(most_broken(attack))
        assert round(-best.fun) == found[-1]
        # No bound of a variable is left to the solver.
        assert kernel.value(np.zeros(made.right.size), made) == made.gain @ (
            made.upper
        )
    assert attackers == 0 or max(found) > 0


def test_the_solver_s_multipliers_lose_nothing():
    for seed in range(4):
        attack = problem(seed)
        bound, held = broken_bound(attack)
        made = within(attack)
        fun = linprog(
            -made.gain,
            A_ub=made.matrix,
            b_ub=made.right,
            bounds=np.stack([0 * made.upper, made.upper], 1),
        ).fun
        assert bound == pytest.approx(-fun, abs=1e-9)
        assert Fraction(bound) >= min(
            kernel.value(held, made), len(np.unique(attack.owner))
        )


def witness(seed, additions=False, attackers=None):
    owner, points, seen, budget, caps, near, most, rows = problem(
        seed, additions, attackers
    )
    _, held = broken_bound(problem(seed, additions, attackers))
    made = {
        'owner': owner,
        'points': points,
        'budget': budget,
        'num_targets': 10,
        'attackers': -1 if most is None else most,
        'rows': rows,
        **{f'caps{i}': caps[i] for i in range(2)},
        **{f'ptr{i}': seen[i].indptr for i in range(2)},
        **{f'items{i}': seen[i].indices for i in range(2)},
    }
    if additions:
        made.update(near_ptr=near.indptr, near=near.indices, num_nodes=9)
    made = {k: np.asarray(v).astype(np.int64) for k, v in made.items()}
    return {**made, 'multipliers': held}


@pytest.mark.parametrize('case', CASES)
def test_a_witness_proves_the_bound_of_the_program(case):
    for seed in range(3):
        bound, _ = broken_bound(problem(seed, *case))
        assert bound - 1e-9 <= kernel.prove(witness(seed, *case)) <= bound


@pytest.mark.parametrize(
    ('name', 'change'),
    [
        ('owner', lambda x: x[:-1]),
        ('owner', lambda x: np.append(x[:-1], 10)),
        ('owner', lambda x: x - 20),
        ('owner', lambda x: x + 20),
        ('points', lambda x: x[:, :1]),
        ('points', lambda x: x.astype(float)),
        ('budget', lambda x: x - 9),
        ('budget', lambda x: x + 2**40),
        ('ptr0', lambda x: x[:-1]),
        ('ptr1', lambda x: x[::-1].copy()),
        ('items0', lambda x: x + 7),
        ('caps1', lambda x: x[:-1]),
        ('multipliers', lambda x: x[:-1]),
        ('multipliers', lambda x: x.astype(np.float32)),
        ('rows', lambda x: x + 5),
        ('rows', lambda x: x[:0]),
        ('attackers', lambda x: x - 9),
        ('num_targets', lambda x: x + 1),
        ('num_nodes', lambda x: x + 2**50),
        ('near', lambda x: x + 9),
        # The first number that is one too many.
        ('rows', lambda x: x + 1),
        ('items0', lambda x: x - x.max() + 7),
        ('near', lambda x: np.maximum(x, 9)),
        # Rows that go back, and items that are in no row.
        ('ptr0', lambda x: x[[0, 2, 1, *range(3, len(x))]]),
        ('items1', lambda x: np.append(x, 0)),
        ('budget', lambda x: np.append(x, 1)),
    ],
)
def test_what_is_no_witness_is_refused_soon(name, change):
    made = witness(0, True, 3)
    made[name] = np.asarray(change(made[name]))
    start = time.process_time()
    with pytest.raises(ValueError, match=r'.'):
        kernel.prove(made)
    assert time.process_time() - start < 2
    del made[name]
    with pytest.raises(ValueError, match='witness'):
        kernel.prove(made)


def test_attackers_of_nothing_break_nothing_and_need_kinds_of_rows():
    made = {**witness(0, False, 1), 'attackers': np.array(0)}
    assert kernel.read(made).attackers == 0
    made['rows'] = made['rows'][:0]
    with pytest.raises(ValueError, match='no such kinds'):
        kernel.prove(made)


def test_a_witness_may_have_many_items():
    made = witness(0)
    made['caps0'] = np.append(made['caps0'], np.ones(1000, np.int64))
    attack = kernel.read(made)
    assert attack.reach[0].shape[1] == len(made['caps0']) > 1000


def one_row(matrix, gain=(1.0, 1.0)):
    """A program of one row, 'sum <= 0', and two numbers up to 1."""
    row = scipy.sparse.csr_array(np.array([matrix]))
    return kernel.Program(row, np.zeros(1), np.array(gain), np.ones(2))


def test_numbers_of_any_size_do_not_wrap_or_vanish():
    # Every column counts, not only the smallest.
    assert kernel.value(np.ones(1), one_row([1.0, 2.0**30])) == 0
    big = one_row([1.0, 1.0], (1.0, 2.0**30))
    assert kernel.value(np.zeros(1), big) == 1 + 2**30
    # What no multiplier holds keeps its gain beside a huge one.
    assert kernel.value(np.array([2.0**100]), one_row([1.0, 0.0])) >= 1
    for matrix in ([0.5, 1.0], [2.0**31, 1.0]):
        with pytest.raises(ValueError, match='whole numbers'):
            kernel.value(np.ones(1), one_row(matrix))


def test_all_items_share_a_budget():
    # Each of two targets has an item of its own, and one may change.
    attack = kernel.Attack(
        *(np.arange(2), np.ones((2, 1), int)),
        *([scipy.sparse.csr_array(np.eye(2))], [1], [np.ones(2, int)]),
    )
    assert broken_bound(attack)[0] == most_broken(attack) == 1


def test_multipliers_of_other_rows_are_refused():
    made = within(problem(0))
    for size in (1, made.right.size - 1, made.right.size + 1):
        with pytest.raises(ValueError, match='another program'):
            kernel.value(np.ones(size), made)
    # No row of multipliers is another one.
    column = scipy.sparse.csr_array(np.ones((2, 1)))
    two = kernel.Program(column, np.ones(2), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match='another program'):
        kernel.value(np.ones((2, 1)), two)


def test_many_rows_of_one_column_do_not_overflow():
    # max x with x <= 1: sixty multipliers of one leave 60 on the right alone.
    column = scipy.sparse.csr_array(np.ones((60, 1)))
    made = kernel.Program(column, np.ones(60), np.ones(1), np.ones(1))
    assert kernel.value(np.ones(60), made) == 60
    assert kernel.value(np.full(60, 1 / 64), made) == 1


def test_fields_of_another_certificate_differ():
    made = witness(0, True, 3)
    values = {
        'edges': (2, 0),
        'features': (2, 1),
        'num_targets': 10,
        'attackers': 3,
        'counted': 10,
    }
    reached = {
        int(who)
        for who, point in zip(made['owner'], made['points'], strict=True)
        if all(p <= r for p, r in zip(point, made['budget'], strict=True))
    }
    assert 0 < len(reached) < 10
    values['one_by_one'] = 10 - len(reached)
    assert not list(kernel.differences(made, values))
    for name, value in (
        ('one_by_one', values['one_by_one'] + 1),
        ('counted', 9),
        ('edges', (3, 0)),
        ('edges', (2, 1)),
        ('features', (2, 3)),
        ('num_targets', 11),
        ('attackers', None),
    ):
        found = list(kernel.differences(made, {**values, name: value}))
        assert len(found) == 1
    # Nobody attacks: that is a number, too, and no added edge no kind.
    none = {**made, 'attackers': np.array(0)}
    assert not list(kernel.differences(none, {**values, 'attackers': 0}))
    assert list(kernel.differences(none, {**values, 'attackers': None}))
    less = witness(0, False, 3)
    claimed = {**values, 'edges': (0, 0), 'one_by_one': 0}
    assert not list(kernel.differences(less, claimed))
    anyone = {**less, 'attackers': np.array(-1)}
    claimed['attackers'] = None
    assert not list(kernel.differences(anyone, claimed))
    one = {**made, 'budget': np.array([2, 1, 1])}
    claimed = {**values, 'edges': (1, 0), 'one_by_one': 0}
    assert not list(kernel.differences(one, claimed))
