"""One unit in one number of a witness: what it proves stays true.

Truth is that of all graphs in rational arithmetic, so that no float decides.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from procedures import cycle
from test_kernel_collective import most_broken
from test_kernel_collective import problem as attack_of
from test_kernel_collective import witness as duals
from test_kernel_pagerank import graphs_of

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.certificates.perturbations import Perturbations
from pyg_trust.verify import collective, pagerank, proofs
from tests.exhaustive import admissible, csr, random_problem

LIMITS = [pagerank.Model(0.25), pagerank.Model(0.5, None, 'sym')]
STEPS = [pagerank.Model(0.25, 2), pagerank.Model(0.25, 3, 'sym')]


def root(size):
    """One over the root, within 2^-200."""
    return Fraction(math.isqrt((1 << 400) // max(size, 1)), 1 << 200)


def scores(adj, r, model):
    """The scores of one graph: elimination, or steps, in rationals."""
    alpha, n = Fraction(model.alpha), len(adj)
    size = [sum(row) for row in adj]
    signal = list(r)
    if model.normalization == 'sym':
        signal = [x * root(s) for x, s in zip(r, size, strict=True)]
    step = [
        [(1 - alpha) * x / max(s, 1) for x in row]
        for row, s in zip(adj, size, strict=True)
    ]
    if model.K is not None:
        z = signal
        for _ in range(model.K):
            z = [
                alpha * x + sum(p * y for p, y in zip(row, z, strict=True))
                for x, row in zip(signal, step, strict=True)
            ]
        return z
    rows = [
        [(i == j) - step[i][j] for j in range(n)] + [alpha * signal[i]]
        for i in range(n)
    ]
    for i in range(n):
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(n):
            if j != i and rows[j][i]:
                times = rows[j][i]
                rows[j] = [
                    x - times * y
                    for x, y in zip(rows[j], rows[i], strict=True)
                ]
    return [row[-1] for row in rows]


@pytest.fixture(scope='module')
def small():
    """Five nodes, each of which flips one edge at most, and all graphs."""
    adj, logits = random_problem(3, 5, directed=True)
    generator = torch.Generator().manual_seed(3)
    fragile = torch.rand(5, 5, generator=generator) < 0.5
    fragile.fill_diagonal_(False)
    budget = torch.tensor([1, 1, 0, 1, 1])
    made = Perturbations(
        *(csr(adj), fragile[adj], budget),
        (fragile & ~adj).nonzero().t().contiguous(),
    )
    every = admissible(adj, fragile, budget).int().tolist()
    return graphs_of(made), every, logits[:, 1].numpy(), logits[:, 0].numpy()


def above(bound, p, worst):
    return all(
        Fraction(x) / Fraction(2) ** p >= y - Fraction(1, 2**150)
        for x, y in zip(bound, worst, strict=True)
    )


@pytest.mark.parametrize('model', LIMITS)
def test_an_ulp_of_a_vector_is_paid_for(small, model):
    graphs, every, plus, minus = small
    r = [Fraction(x) - Fraction(y) for x, y in zip(plus, minus, strict=True)]
    worst = [
        max(z) for z in zip(*(scores(g, r, model) for g in every), strict=True)
    ]
    exact = np.array([float(x) for x in worst])
    bound, p = pagerank.bound(graphs, model, plus, minus, exact)
    assert above(bound, p, worst)
    most = max(
        Fraction(x) / Fraction(2) ** p - y
        for x, y in zip(bound, worst, strict=True)
    )
    assert most < Fraction(2) ** (6 - p) / Fraction(model.alpha)
    for i in range(5):
        for less in (np.nextafter(exact[i], -9), exact[i] - 2.0**-p):
            # By itself it is below a graph's score, and it is found out.
            wrong = exact.copy()
            wrong[i] = less
            assert Fraction(less) < worst[i] or less > exact[i] - 2.0**-p
            assert above(
                *pagerank.bound(graphs, model, plus, minus, wrong), worst
            )
        more = exact.copy()
        more[i] = np.nextafter(exact[i], 9) + 2.0**-p
        found, q = pagerank.bound(graphs, model, plus, minus, more)
        assert above(found, q, worst)
        assert found[i] > bound[i]


@pytest.mark.parametrize('model', STEPS)
def test_an_ulp_of_a_logit_moves_the_bound_of_steps_with_it(small, model):
    graphs, every, plus, minus = small
    for i in range(-1, 5):
        plus = small[2].copy()
        if i >= 0:
            plus[i] = np.nextafter(plus[i], 9)
        r = [
            Fraction(x) - Fraction(y) for x, y in zip(plus, minus, strict=True)
        ]
        every_score = [scores(g, r, model) for g in every]
        worst = [max(z) for z in zip(*every_score, strict=True)]
        assert above(*pagerank.bound(graphs, model, plus, minus, None), worst)


def held(undirected):
    """A witness of a global budget of one on six nodes, and the margins."""
    data = cycle(6, 1)
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    threat = ThreatModel(
        *(data, 'removals'),
        local_budget=1,
        global_budget=1 + undirected,
        fixed='none',
        undirected=undirected,
    )
    report = certify(logits, threat, alpha=0.25, method='dual')
    assert report.verify() == 'holds'
    arrays = report.proof.arrays
    assert arrays['columns'].size
    graphs, model = proofs.read(arrays)
    adj = torch.zeros(6, 6, dtype=torch.bool)
    fragile = adj.clone()
    row = pagerank.rows(graphs)
    adj[row, graphs.col] = True
    fragile[row[graphs.removable], graphs.col[graphs.removable]] = True
    most = int(arrays['global_budget'])
    every = admissible(
        *(adj, fragile, torch.from_numpy(graphs.budget)),
        most * (1 + undirected),
    )
    if undirected:
        flips = every ^ adj
        every = every[(flips == flips.mT).all(-1).all(-1)]
        assert len(every) > 3
    tables = [
        [
            scores(g, [Fraction(x) for x in column], model)
            for column in logits.t().tolist()
        ]
        for g in every.int().tolist()
    ]
    return report, tables


def margin(tables, u, y, c):
    return min(z[y][u] - z[c][u] for z in tables)


def is_sound(arrays, tables):
    """No proof is of more than is true; False if it is refused."""
    try:
        graphs, model = proofs.read(arrays)
        found = proofs.lower(arrays, graphs, model)
        need = Fraction(float(arrays['tolerance']))
        broken = list(proofs.attacked(arrays, graphs, model, need))
    except ValueError:
        return False
    targets = arrays['targets'].tolist()
    for k, margins in enumerate(found):
        y = int(arrays['reference'][k])
        for c, proved in margins.items():
            assert proved <= margin(tables, targets[k], y, c)
    for k in broken:
        y = int(arrays['reference'][k])
        least = min(
            margin(tables, targets[k], y, c) for c in range(2) if c != y
        )
        assert least < -need
    return True


PROVING = (
    *('scores', 'values', 'multipliers', 'reach', 'upper', 'shares'),
    *('flips', 'flips_of', 'flips_ptr', 'columns', 'classes', 'charged'),
    *('targets', 'reference'),
)


@pytest.mark.parametrize('undirected', [False, True])
def test_a_unit_of_any_array_proves_nothing_false(undirected):
    report, tables = held(undirected)
    arrays = report.proof.arrays
    assert is_sound(arrays, tables)
    draw = np.random.default_rng(0)
    refused = dict.fromkeys(PROVING, 0)
    for name in PROVING:
        value = arrays[name]
        places = [*draw.permutation(value.size)[:1]]
        if value.size:
            places += [value.argmin(), value.argmax()]
        for at in set(places):
            for side in (-1, 1):
                other = value.copy()
                one = other.reshape(-1)
                if value.dtype == np.float64:
                    one[at] = np.nextafter(one[at], side * np.inf)
                else:
                    one[at] += side
                refused[name] += not is_sound({**arrays, name: other}, tables)
    for name in ('flips', 'flips_ptr', 'columns', 'charged', 'targets'):
        assert refused[name], name
    assert bool(refused['shares']) <= undirected


def test_an_ulp_of_each_number_of_a_global_budget_matters():
    report, tables = held(False)
    arrays = report.proof.arrays
    graphs, model = proofs.read(arrays)
    k, c, _ = arrays['columns'][:, 0].tolist()
    honest = proofs.lower(arrays, graphs, model)[k][c]

    def proved(**changes):
        return proofs.lower({**arrays, **changes}, graphs, model)[k][c]

    # A multiplier pays for all of the budget.
    more = arrays['multipliers'].copy()
    more[0] = np.nextafter(more[0], np.inf)
    assert proved(multipliers=more) != honest
    # A vector that is lower at the target is not believed.
    values = arrays['values'].copy()
    u, y = int(arrays['targets'][k]), int(arrays['reference'][k])
    for less, above in ((2.0**-40, margin(tables, u, y, c)), (1e-3, honest)):
        values[0, u] -= less
        assert proved(values=values) < above
    # PageRank is bounded by what its vector proves, to the last unit.
    row, cost = arrays['charged'][:, 0].tolist()
    found, p = pagerank.reach(
        graphs, model.alpha, row, arrays['reach'][0], bool(cost)
    )
    upper = arrays['upper'].copy()
    upper[0, 0] = math.ldexp(found[u], -p)
    nodes = arrays['targets'][arrays['columns'][0]]

    def reached(**changes):
        changed = {**arrays, 'upper': upper, **changes}
        made = proofs.reached(changed, graphs, model, nodes)
        return made[cost, 0, row]

    assert reached() == upper[0, 0]
    less = upper.copy()
    less[0, 0] = np.nextafter(less[0, 0], 0)
    assert reached(upper=less) == np.inf
    raised = arrays['reach'].copy()
    raised[0, u] = np.nextafter(raised[0, u] + 2.0**-p, np.inf)
    assert reached(reach=raised) == np.inf


def test_shares_are_one_price_to_the_last_unit():
    report, _ = held(True)
    arrays = report.proof.arrays
    graphs, _ = proofs.read(arrays)
    row = pagerank.rows(graphs)
    at = int(np.flatnonzero(graphs.removable & (row < graphs.col))[0])
    back = int(
        np.flatnonzero((row == graphs.col[at]) & (graphs.col == row[at]))[0]
    )
    shares = arrays['shares'].copy()
    shares[0, at], shares[0, back] = 0.5, 0.5 - 2.0**-51
    pagerank.split(graphs, shares[0])
    shares[0, back] += 2.0**-53
    with pytest.raises(ValueError, match='more than a price'):
        pagerank.split(graphs, shares[0])
    shares[0, back] = -5e-324
    with pytest.raises(ValueError, match='more than a price'):
        pagerank.split(graphs, shares[0])


def test_flips_that_break_by_a_hair_break_no_more_without():
    report, tables = held(False)
    arrays = report.proof.arrays
    k = int(np.flatnonzero(report.status.numpy() == -1)[0])
    u, y = int(arrays['targets'][k]), int(arrays['reference'][k])
    worst = margin(tables, u, y, 1 - y)
    # A tolerance just above and below the margin of the worst graph.
    for off, broken in ((1e-9, True), (-1e-9, False)):
        tolerance = np.array(float(-worst) - off)
        changed = {**arrays, 'tolerance': tolerance}
        assert (proofs.prove(changed)[k] == -1) == broken
        assert is_sound(changed, tables)


@pytest.mark.parametrize('case', [(False, None), (True, None), (False, 2)])
def test_an_ulp_of_a_multiplier_bounds_what_breaks_together(case):
    arrays = duals(0, *case)
    least = most_broken(attack_of(0, *case))
    made = collective.program(collective.read(arrays).within())
    honest = collective.value(arrays['multipliers'], made)
    moved = 0
    for at in range(arrays['multipliers'].size):
        for side in (-np.inf, np.inf):
            held = arrays['multipliers'].copy()
            held[at] = np.nextafter(held[at], side)
            found = collective.value(held, made)
            assert found >= least
            moved += found > honest
    # A bound that was claimed to the last bit is not proved by some of them.
    assert moved
