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

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.verify import collective, pagerank, proofs
from tests.exhaustive import admissible

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
