"""Witnesses made by hand: what they prove is what all graphs show.

Four nodes, every admissible graph in rational arithmetic, and vectors that no
code of the package has found.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from test_kernel_ulps import scores

from pyg_trust.verify import pagerank, proofs

N, CLASSES = 4, 3
NONE = np.zeros((2, 0), dtype=np.int64)
EDGES = [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]
EDGES.append((3, 3))
GONE = {(0, 1), (1, 0), (2, 3), (3, 2)}
COME = [(0, 2), (2, 0), (1, 3)]
BUDGET = [1, 1, 2, 1]
TARGETS = [2, 0, 3, 1]
PAIRS = list(itertools.permutations(range(CLASSES), 2))

MODELS = [
    pagerank.Model(0.25),
    pagerank.Model(0.5, None, 'sym'),
    pagerank.Model(0.25, 2),
    pagerank.Model(0.25, 0),
    pagerank.Model(0.5, 1, 'sym'),
]


def subsets(items):
    sizes = range(len(items) + 1)
    return itertools.chain(*(itertools.combinations(items, k) for k in sizes))


def options(i):
    """The flips that a row can make, and the neighbours after them."""
    here = [j for u, j in EDGES if u == i]
    free = sorted((u, j) for u, j in [*GONE, *COME] if u == i)
    for flips in subsets(free):
        if len(flips) <= BUDGET[i]:
            yield flips, sorted({*here} ^ {j for _, j in flips})


ROWS = [list(options(i)) for i in range(N)]
# The flips of every admissible graph, and its matrix.
EVERY = [
    (
        sorted(flip for flips, _ in rows for flip in flips),
        [[int(j in there) for j in range(N)] for _, there in rows],
    )
    for rows in itertools.product(*ROWS)
]
assert len(EVERY) == 3 * 3 * 4 * 2


class Case:
    """A witness of a model, and the scores of all classes in all graphs."""

    def __init__(self, model, seed=0, **changes):
        self.model = model
        draw = np.random.default_rng(seed)
        self.logits = draw.normal(size=(N, CLASSES)).round(3)
        columns = [[Fraction(x) for x in c] for c in self.logits.T.tolist()]
        self.tables = [
            [scores(matrix, column, model) for column in columns]
            for _, matrix in EVERY
        ]
        clean = self.tables[[not flips for flips, _ in EVERY].index(True)]
        self.held = [
            max(range(CLASSES), key=lambda c, u=u: clean[c][u])
            for u in TARGETS
        ]
        self.arrays = self.made()
        self.arrays.update(changes)

    def margin(self, u, y, c):
        return min(z[y][u] - z[c][u] for z in self.tables)

    def made(self):
        limit = self.model.K is None
        flat = np.zeros((0, 0))
        above = [
            [-float(self.margin(u, y, c)) for u in range(N)] for y, c in PAIRS
        ]
        return {
            'rowptr': np.cumsum([0, *(len(ROWS[i][0][1]) for i in range(N))]),
            'col': np.array([j for _, j in EDGES]),
            'removable': np.array([edge in GONE for edge in EDGES]),
            'budget': np.array(BUDGET),
            'pairs': np.array(COME).T,
            'all_pairs': np.array(False),
            'logits': self.logits,
            'classes': np.array(PAIRS).T,
            'scores': np.array(above) if limit else np.zeros((0, N)),
            'columns': np.zeros((3, 0), dtype=np.int64),
            'multipliers': np.zeros(0),
            'values': np.zeros((0, N)),
            'shares': flat,
            'charged': NONE,
            'reach': np.zeros((0, N)),
            'upper': flat,
            'flips': NONE,
            'flips_ptr': np.zeros(1, dtype=np.int64),
            'flips_of': np.full(len(TARGETS), -1),
            'targets': np.array(TARGETS),
            'reference': np.array(self.held),
            'undirected': np.array(False),
            'global_budget': np.array(-1),
            'alpha': np.array(self.model.alpha),
            'K': np.array(-1 if limit else self.model.K),
            'self_loops': np.array(False),
            'tolerance': np.array(0.0),
            'normalization': np.array(self.model.normalization),
            'dtype': np.array('exact arithmetic'),
        }

    def broken(self, most):
        """Flips of the worst graph of every target that has one."""
        flips, of = [], np.full(len(TARGETS), -1)
        for place, (u, y) in enumerate(zip(TARGETS, self.held, strict=True)):
            least, which = min(
                (z[y][u] - max(z[c][u] for c in range(CLASSES) if c != y), i)
                for i, z in enumerate(self.tables)
            )
            if least < most:
                if EVERY[which][0] not in flips:
                    flips.append(EVERY[which][0])
                of[place] = flips.index(EVERY[which][0])
        every = [flip for each in flips for flip in each]
        return {
            'flips': np.array(every, dtype=np.int64).reshape(-1, 2).T,
            'flips_ptr': np.cumsum([0, *map(len, flips)]),
            'flips_of': of,
        }


def slack(case, y, c, kind):
    """What rounding hides of a margin, by the definition of a class's."""
    degree = max(sum(row) for _, matrix in EVERY for row in matrix)
    return sum(
        pagerank.slack(
            kind, case.model, degree, float(abs(case.logits[:, k]).max())
        )
        for k in (y, c)
    )


@pytest.mark.parametrize('model', MODELS)
@pytest.mark.parametrize('seed', range(3))
def test_statuses_are_those_of_all_graphs(model, seed):
    case = Case(model, seed)
    arrays = {**case.arrays, **case.broken(0)}
    worst = [
        min(case.margin(u, y, c) for c in range(CLASSES) if c != y)
        for u, y in zip(TARGETS, case.held, strict=True)
    ]
    seen = set()
    # The limit is of one graph that is the worst everywhere; steps are not.
    for need in (0.0, 0.05, 0.3, 9.0):
        found = proofs.prove({**arrays, 'tolerance': np.array(need)})
        seen.update(found)
        for status, least in zip(found, worst, strict=True):
            assert abs(abs(least) - need) > 1e-6
            assert (status == -1) == (least < -need)
            assert status != 1 or least > need
            if model.K is None:
                assert status == (least > need) - (least < -need)
    assert 0 in seen
    assert len(seen) > 1


@pytest.mark.parametrize('kind', ['float32', 'float64'])
@pytest.mark.parametrize('model', MODELS)
def test_what_rounding_hides_is_taken_off_both_classes(model, kind):
    case = Case(model, 1)
    graphs, _ = proofs.read(case.arrays)
    exact = proofs.lower(case.arrays, graphs, model)
    arrays = {**case.arrays, **case.broken(9), 'dtype': np.array(kind)}
    found = proofs.lower(arrays, graphs, model)
    for y, some, all_ in zip(case.held, found, exact, strict=True):
        assert set(some) == set(all_) == set(range(CLASSES)) - {y}
        for c in some:
            assert all_[c] - some[c] == slack(case, y, c, kind)
    # A target is broken by so much more than the tolerance, and no less.
    places = np.flatnonzero(arrays['flips_of'] >= 0).tolist()
    assert places
    for place in places:
        u, y = TARGETS[place], case.held[place]
        which = [flips for flips, _ in EVERY].index(
            flips_of(arrays, int(arrays['flips_of'][place]))
        )
        z = case.tables[which]
        c = max((c for c in range(CLASSES) if c != y), key=lambda c: z[c][u])
        hidden = slack(case, y, c, kind)
        for room in (Fraction(1, 10**11), -Fraction(1, 10**11)):
            need = z[c][u] - z[y][u] - hidden - room
            found = list(proofs.attacked(arrays, graphs, model, need))
            assert (place in found) == (room > 0)


@pytest.mark.parametrize(('need', 'status'), [(1.5, 1), (2.0, 0)])
def test_a_margin_that_is_the_tolerance_decides_nothing(need, status):
    # No step is taken, so that margins are 2 and -2 in every graph.
    case = Case(pagerank.Model(0.25, 0))
    arrays = {
        **case.arrays,
        'logits': np.array([[2.0, 0, 0]] * N),
        'tolerance': np.array(need),
        'flips_ptr': np.zeros(2, dtype=np.int64),
        'flips_of': np.zeros(N, dtype=np.int64),
    }
    for held, sign in ((0, 1), (1, -1)):
        arrays['reference'] = np.full(N, held)
        assert proofs.prove(arrays) == [sign * status] * N
    # Without a graph of its own no target is broken.
    arrays['flips_of'] = np.full(N, -1)
    assert proofs.prove(arrays) == [0] * N


def flips_of(arrays, which):
    ptr = arrays['flips_ptr']
    part = arrays['flips'][:, ptr[which] : ptr[which + 1]]
    return sorted(map(tuple, part.T.tolist()))


# A global budget #############################################################


def fixpoint(case, c, y, paid):
    """The largest scores with prices, by trying all flips of every row."""
    model, alpha = case.model, case.model.alpha
    r = case.logits[:, c] - case.logits[:, y]

    def own(i, size):
        return r[i] / size**0.5 if model.normalization == 'sym' else r[i]

    z = [
        max(own(i, max(1, len(there))) for _, there in ROWS[i])
        for i in range(N)
    ]
    for _ in range(200 if model.K is None else model.K):
        z = [
            max(
                alpha * own(i, max(1, len(there)))
                + (1 - alpha) * sum(z[j] for j in there) / max(1, len(there))
                - paid(i, flips, max(1, len(there)))
                for flips, there in ROWS[i]
            )
            for i in range(N)
        ]
    return z


def visited(model, i, visits):
    """The most that any node reaches another, over all graphs."""
    unit = [Fraction(int(i == j)) for j in range(N)]
    limit = pagerank.Model(model.alpha)
    most = [Fraction(0)] * N
    for _, matrix in EVERY:
        size = max(sum(matrix[i]), 1) if visits else 1
        most = [
            max(a, b / size)
            for a, b in zip(most, scores(matrix, unit, limit), strict=True)
        ]
    return [float(x) + 1e-12 for x in most]


GLOBAL = [
    (pagerank.Model(0.25), 0, 'directed'),
    (pagerank.Model(0.25), 1, 'directed'),
    (pagerank.Model(0.5, None, 'sym'), 0, 'undirected'),
    (pagerank.Model(0.25, 2), 1, 'undirected'),
    (pagerank.Model(0.25), 0, 'shares'),
    (pagerank.Model(0.25, 2), 0, 'shares'),
]


def within(model, visits, kind):
    """A witness of a budget of two, and the margins that it proves."""
    case = Case(model, 1)
    limit, most = model.K is None, 2
    # One row has a bound that is too low, so that its price is none.
    wrong = 1
    places = [(k, c) for k, y in enumerate(case.held) for c in range(CLASSES)]
    reach = [visited(model, i, visits) for i in range(N)]
    keys = [*EDGES, *COME]
    part = {
        edge: 0.625 if edge[0] < edge[1] else 0.25 for edge in [*GONE, *COME]
    }
    columns, upper, shares, values, wanted = [], [], [], [], {}
    for at, (k, c) in enumerate(places):
        u, y = TARGETS[k], case.held[k]
        multiplier = 0.02 * (1 + at)
        above = [row[u] + 1e-12 for row in reach]
        above[wrong] *= 0.9
        price = [model.alpha * multiplier / x for x in above]
        price[wrong] = 0.0

        def paid(i, flips, size, price=price):
            if kind == 'shares':
                return price[i] * sum(part[flip] for flip in flips)
            return price[i] * len(flips) / (size if visits else 1)

        z = fixpoint(case, c, y, paid)
        ways = 2 if kind == 'undirected' else 1
        columns.append((k, c, visits))
        upper.append(above)
        shares.append([part.get(edge, 0.0) for edge in keys])
        values.append(z)
        if c != y:
            by_price = -z[u] - multiplier * most * ways
            wanted[k, c] = by_price
    arrays = {
        **case.arrays,
        'columns': np.array(columns).T,
        'multipliers': 0.02 * (1 + np.arange(len(places))),
        'values': np.array(values) if limit else np.zeros((0, N)),
        'charged': np.array([range(N), [visits] * N]),
        'reach': np.array(reach),
        'upper': np.array(upper),
        'shares': np.array(shares) if kind == 'shares' else np.zeros((0, 0)),
        'undirected': np.array(kind != 'directed'),
        'global_budget': np.array(most),
    }
    return arrays, wanted


@pytest.mark.parametrize(('model', 'visits', 'kind'), GLOBAL)
def test_global_budgets_prove_what_prices_and_all_flips_do(
    model, visits, kind
):
    arrays, wanted = within(model, visits, kind)
    graphs, _ = proofs.read(arrays)
    alone = {**arrays, 'classes': NONE, 'scores': np.zeros((0, N))}
    found = proofs.lower(alone, graphs, model)
    assert {(k, c) for k, x in enumerate(found) for c in x} == set(wanted)
    for (k, c), exact in wanted.items():
        assert abs(float(found[k][c]) - exact) < 1e-8
    # With both, the better of them.
    both = proofs.lower(arrays, graphs, model)
    local = proofs.lower(Case(model, 1).arrays, graphs, model)
    for k, c in wanted:
        assert both[k][c] == max(found[k][c], local[k][c])
    better = {both[k][c] == local[k][c] for k, c in wanted}
    assert len(better) == 2 or kind != 'directed'


# What is no witness ##########################################################

# The nearest numbers that an array may not hold, by its row.
OUTSIDE = {
    **dict.fromkeys(('targets', 'col', 'flips', 'pairs'), ((-1, N),)),
    **dict.fromkeys(('reference', 'classes'), ((-1, CLASSES),)),
    'columns': [(-1, N), (-1, CLASSES), (-1, 2)],
    'charged': [(-1, N), (-1, 2)],
    **{'flips_of': [(-2, 1)], 'flips_ptr': [(1, 1)], 'rowptr': [(1, 99)]},
    **{'budget': [(-1, 2**31)], 'alpha': [(0.0, 1.0)], 'upper': [(0.0,)]},
    **{'global_budget': [(-1,)], 'tolerance': [(-1e-300,)]},
}


@pytest.fixture(scope='module')
def full():
    """A witness with something in every array but flips."""
    arrays, _ = within(pagerank.Model(0.25), 0, 'shares')
    arrays.update(
        flips_ptr=np.zeros(2, dtype=np.int64),
        flips_of=np.zeros(N, dtype=np.int64),
    )
    assert all(value.size for name, value in arrays.items() if name != 'flips')
    proofs.read(arrays)
    return arrays


def refused(full, **changes):
    with pytest.raises(ValueError, match='witness'):
        proofs.read({**full, **changes})


@pytest.mark.parametrize('name', sorted(proofs.ARRAYS))
def test_a_short_array_or_a_number_outside_is_refused(full, name):
    for axis in range(proofs.ARRAYS[name][0]):
        # A pair of classes or an addable edge less is another witness.
        if (name, axis) not in (('pairs', 1), ('charged', 1)):
            less = np.zeros((1, 0), dtype=np.int64)
            if full[name].size:
                less = np.delete(full[name], -1, axis)
            refused(full, **{name: less})
    if name == 'flips':
        full = {**full, 'flips_ptr': np.array([0, 1])}
        full['flips'] = np.zeros((2, 1), dtype=np.int64)
    for row, limits in enumerate(OUTSIDE.get(name, ())):
        for number, at in itertools.product(limits, (0, -1)):
            # Row pointers start at 0 and end with all.
            if (name, at, number) == ('rowptr', -1, 1):
                continue
            bad = full[name].copy()
            part = bad[row] if len(OUTSIDE[name]) > 1 else bad
            part.reshape(-1)[at] = number
            if not np.array_equal(bad, full[name]):
                refused(full, **{name: bad})


def test_columns_need_a_budget_which_may_be_none_at_all(full):
    proofs.read({**full, 'global_budget': np.array(0)})


def attack(graphs, all_pairs, undirected, most):
    """All graphs of three nodes that an attacker can make, as matrices."""
    adj = np.zeros((3, 3), dtype=bool)
    adj[pagerank.rows(graphs), graphs.col] = True
    free = np.zeros((3, 3), dtype=bool)
    if all_pairs:
        free = ~adj & ~np.eye(3, dtype=bool)
    free[tuple(graphs.pairs)] = True
    row = pagerank.rows(graphs)[graphs.removable]
    free[row, graphs.col[graphs.removable]] = True
    for bits in itertools.product((False, True), repeat=9):
        flips = np.reshape(bits, (3, 3))
        both = (flips == flips.T).all() or not undirected
        count = flips.sum()
        if undirected:
            count = np.triu(flips).sum()
        fine = both and (flips <= free).all() and (count <= most or most < 0)
        if fine and (flips.sum(1) <= graphs.budget).all():
            yield flips, adj ^ flips


@pytest.mark.parametrize('undirected', [False, True])
@pytest.mark.parametrize('all_pairs', [False, True])
def test_flips_are_taken_if_an_attacker_has_them(all_pairs, undirected):
    # 0 -> 1, 1 -> 0, 1 -> 2, 2 -> 2: but for 1 -> 2 they may go; 2 -> 1 may
    # come if all pairs may.
    listed = NONE if all_pairs else np.array([[0, 2, 1], [2, 0, 1]])
    graphs = pagerank.Graphs(
        *(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 2])),
        np.array([True, True, False, True]),
        *(np.array([2, 1, 2]), listed, all_pairs),
    )
    assert pagerank.check(graphs) == 3
    taken = 0
    for most in (-1, 0, 1, 2):
        known = {
            flips.tobytes(): made
            for flips, made in attack(graphs, all_pairs, undirected, most)
        }
        for bits in itertools.product((False, True), repeat=9):
            flips = np.reshape(bits, (3, 3))
            if flips.sum() > 4:
                continue
            pairs = np.stack(np.nonzero(flips))[:, ::-1]
            if flips.tobytes() not in known:
                with pytest.raises(ValueError, match='no attacker'):
                    proofs.flipped(graphs, pairs, most, undirected)
                continue
            made = proofs.flipped(graphs, pairs, most, undirected)
            taken += 1
            assert pagerank.check(made) == 3
            adj = np.zeros((3, 3), dtype=bool)
            adj[pagerank.rows(made), made.col] = True
            assert (adj == known[flips.tobytes()]).all()
            assert pagerank.sizes(made)[0].tolist() == adj.sum(1).tolist()
            assert pagerank.sizes(made)[1].tolist() == adj.sum(1).tolist()
    assert taken > 10
    # An edge that is named twice would be no flip.
    twice = np.array([[0, 0], [1, 1]])
    with pytest.raises(ValueError, match='no attacker'):
        proofs.flipped(graphs, twice, -1, False)


# Files, work and fields ######################################################


def test_bits_of_a_file_are_flips_of_the_fragile_edges(full, tmp_path):
    held = {**full, **Case(pagerank.Model(0.25), 1).broken(9)}
    edges = sorted([*GONE, *COME])
    rows = [
        [edge in flips_of(held, which) for edge in edges]
        for which in range(len(held['flips_ptr']) - 1)
    ]
    assert len(rows) > 1
    narrow = {
        name: x.astype(np.int32 if x.dtype.kind == 'i' else x.dtype)
        for name, x in held.items()
        if name not in ('flips', 'flips_ptr')
    }
    narrow['flips.bits'] = np.packbits(np.array(rows), axis=1)
    np.savez(tmp_path / 'w.npz', **narrow)
    assert proofs.digest(proofs.load(tmp_path / 'w.npz')) == proofs.digest(
        held
    )


def test_a_proof_is_begun_if_its_work_is_allowed(full):
    graphs, model = proofs.read(full)
    work = proofs.work(full, graphs, model)
    assert len(proofs.prove(full, work)) == N
    with pytest.raises(OverflowError, match='minutes'):
        proofs.prove(full, work - 1)


TRUE = {
    'targets': 4,
    'K': None,
    'global_budget': 2,
    'max_local_budget': 2,
    'sum_local_budget': 5,
    'num_nodes': 4,
    'fixed_edges': 5,
    'alpha': 0.25,
    'tolerance': 0.0,
    'normalization': 'rw',
    'dtype': 'exact arithmetic',
    'undirected': True,
    'self_loops': False,
    'scenario': 'removals',
}


def test_fields_of_a_certificate_are_those_of_its_witness(full):
    assert not list(proofs.differences(full, TRUE))
    for name in set(TRUE) - {'scenario'}:
        lie = {**TRUE, name: 3 if TRUE[name] is None else None}
        (text,) = proofs.differences(full, lie)
        assert text == f'{name} is {TRUE[name]!r}, {lie[name]!r} is claimed'
    steps = {**full, 'K': np.array(0), 'global_budget': np.array(-1)}
    fields = {**TRUE, 'K': 0, 'global_budget': None}
    assert not list(proofs.differences(steps, fields))
    zero = {**full, 'global_budget': np.array(0)}
    assert not list(proofs.differences(zero, {**TRUE, 'global_budget': 0}))
    twice = {**full, 'targets': np.array([0, 1, 2, 0])}
    assert [*proofs.differences(twice, TRUE)] == ['a target is there twice']


def test_additions_are_of_all_edges_that_are_absent(full):
    # Of twelve edges between nodes four are absent, and three can come.
    for scenario in ('additions', 'both'):
        fields = {**TRUE, 'scenario': scenario}
        (text,) = proofs.differences(full, fields)
        assert text == (
            f'3 of 4 absent edges can be added, {scenario!r} is claimed'
        )
        pairs = np.array([*COME, (3, 1), (1, 1)]).T
        # The self-loop that can come is not one of them.
        for many, fits in ((5, True), (3, False)):
            more = {**full, 'pairs': pairs[:, -many:]}
            assert (not [*proofs.differences(more, fields)]) == fits
        every = {**full, 'pairs': NONE, 'all_pairs': np.array(True)}
        assert not list(proofs.differences(every, fields))


def test_self_loops_are_claimed_where_every_row_has_one_that_stays(full):
    col = np.array([0, 1, 3, 0, 1, 2, 1, 2, 3, 0, 2, 3])
    row = np.repeat(range(N), 3)
    made = {
        **full,
        'rowptr': np.arange(0, 13, 3),
        'col': col,
        'removable': (row == 0) & (col == 1),
        'self_loops': np.array(True),
    }
    fields = {**TRUE, 'self_loops': True, 'fixed_edges': 11}
    assert not list(proofs.differences(made, fields))
    made['removable'] = (row == 0) & (col == 0)
    (text,) = proofs.differences(made, fields)
    assert text == 'self_loops is claimed, and there are rows without'


def test_a_digest_is_of_names_kinds_shapes_and_values():
    x = np.arange(4)
    same = {'b': x, 'a': x[::2]}, {'a': x[::2].copy(), 'b': x}
    assert len({proofs.digest(each) for each in same}) == 1
    others = (
        {'a': x},
        {'c': x},
        {'a': x[::-1]},
        {'a': x.reshape(2, 2)},
        {'a': x.astype(np.int32)},
        {'a': x.astype(np.float64)},
        {'a': x[:3]},
        {'a': x, 'b': x},
    )
    assert len({proofs.digest(each) for each in others}) == len(others)
