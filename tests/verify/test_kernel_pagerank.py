"""Certificates from a vector: brute force, oracles, and broken vectors."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from pyg_trust.certificates.policy import Horizon, policy_iteration
from pyg_trust.certificates.threat import Perturbations
from pyg_trust.verify import pagerank as kernel
from tests.exhaustive import admissible, csr, random_problem

SHARED = Path(__file__).parents[2].parent / 'shared' / 'oracles'
NONE = np.zeros((2, 0), np.int64)


def graphs_of(made):
    """The graphs of the fast code in the kernel's form."""
    return kernel.Graphs(
        made.graph.rowptr.numpy(),
        made.graph.col.numpy(),
        made.removable.numpy(),
        made.budget.numpy(),
        made.pairs.numpy(),
        made.all_pairs,
    )


def problem(seed, additions):
    """A small graph, fragile pairs, and all admissible graphs."""
    adj, logits = random_problem(seed, 5, directed=True)
    generator = torch.Generator().manual_seed(seed)
    fragile = torch.rand(5, 5, generator=generator) < 0.5
    if not additions:
        fragile &= adj
    fragile.fill_diagonal_(False)
    budget = torch.randint(0, 3, (5,), generator=generator)
    made = Perturbations(
        csr(adj),
        fragile[adj],
        budget,
        (fragile & ~adj).nonzero().t().contiguous(),
    )
    return made, logits, admissible(adj, fragile, budget)


def scores(adj, r, model):
    """The scores in a batch of graphs, by dense matrices."""
    adj = adj.double()
    degree = adj.sum(-1)
    signal = r.expand(degree.shape)
    if model.normalization == 'sym':
        signal = signal / degree.clamp(min=1).sqrt()
    step = (1 - model.alpha) * adj / degree.clamp(min=1)[..., None]
    if model.K is None:
        eye = torch.eye(adj.size(-1), dtype=torch.float64)
        return torch.linalg.solve(eye - step, model.alpha * signal[..., None])[
            ..., 0
        ]
    z = signal
    for _ in range(model.K):
        z = (step @ z[..., None])[..., 0] + model.alpha * signal
    return z


MODELS = [
    kernel.Model(0.15),
    kernel.Model(0.5, None, 'sym'),
    kernel.Model(0.2, 3),
    kernel.Model(0.2, 2, 'sym'),
]


@pytest.mark.parametrize('model', MODELS)
@pytest.mark.parametrize('additions', [False, True])
@pytest.mark.parametrize('seed', range(4))
def test_no_graph_is_above_the_bound(seed, additions, model):
    made, logits, every = problem(seed, additions)
    graphs = graphs_of(made)
    kernel.check(graphs)
    r = logits[:, 1] - logits[:, 0]
    worst = scores(every, r, model).amax(0)
    found = Horizon(*model).maximize(made, r[None])
    exact = model.alpha * found.value[0].numpy()
    for witness in (exact, exact - 1e-3, 0 * exact, -exact, exact * 1e3):
        bound, p = kernel.bound(graphs, model, r.numpy(), 0 * exact, witness)
        top = np.array([float(Fraction(v) / Fraction(2) ** p) for v in bound])
        assert (top >= worst.numpy() - 1e-13).all()
        if witness is exact:
            # The fast code's own bound is not below the kernel's, nor far.
            assert np.abs(top - exact).max() < 1e-11
            if model.K is None:
                assert np.abs(top - worst.numpy()).max() < 1e-9


@pytest.mark.parametrize('seed', range(3))
def test_additions_among_all_pairs_are_listed_pairs(seed):
    adj, logits = random_problem(seed, 6, directed=True, loops=True)
    fragile = ~torch.eye(6, dtype=torch.bool)
    budget = torch.tensor([0, 1, 2, 3, 1, 2])
    edge = csr(adj)
    removable = (fragile & adj)[adj]
    pairs = (fragile & ~adj).nonzero().t().contiguous()
    listed = graphs_of(Perturbations(edge, removable, budget, pairs))
    every = graphs_of(Perturbations(edge, removable, budget, all_pairs=True))
    z = logits[:, 2].numpy()
    for model in MODELS:
        one = kernel.bound(listed, model, z, 0 * z, z)
        two = kernel.bound(every, model, z, 0 * z, z)
        assert one == two
    assert np.array_equal(kernel.sizes(listed), kernel.sizes(every))


@pytest.mark.skipif(not SHARED.exists(), reason='oracles are not here')
def test_six_graphs_by_brute_force():
    for case in json.loads(
        (SHARED / 'exact_arithmetic' / 'pagerank.json').read_text()
    ):
        graphs = kernel.Graphs(
            np.array(case['rowptr']),
            np.array(case['col']),
            np.array(case['removable']),
            np.array(case['budget']),
            NONE,
            False,
        )
        kernel.check(graphs)
        alpha, r = case['alpha'], np.array(case['reward'])
        worst = alpha * np.array(case['worst'])
        bound, p = kernel.bound(graphs, kernel.Model(alpha), r, 0 * r, worst)
        top = np.ldexp(np.array(bound, dtype=float), -p)
        assert (top >= worst).all()
        assert np.abs(top - worst).max() < 1e-10


@pytest.mark.skipif(not SHARED.exists(), reason='oracles are not here')
def test_citeseer_is_proved_again():
    with np.load(SHARED / 'certificates' / 'local_citeseer.npz') as file:
        case = {name: file[name] for name in file.files}
    graphs = kernel.Graphs(
        case['adj_indptr'].astype(np.int64),
        case['adj_indices'].astype(np.int64),
        fragile_mask(case),
        case['budget_s6'].astype(np.int64),
        NONE,
        False,
    )
    want = case['margins_all_rem_s6']
    k = want.shape[0]
    classes = np.array(
        [(c, d) for c in range(k) for d in range(k) if c != d]
    ).T
    logits = case['logits'].astype(np.float64)
    exact = -want[classes[0], classes[1]]
    kernel.check(graphs)
    lost, best = [], {}
    for (y, c), witness in zip(classes.T.tolist(), exact, strict=True):
        bound, p = kernel.bound(
            *(graphs, kernel.Model(1 - 0.85), logits[:, c], logits[:, y]),
            witness,
        )
        found = -np.ldexp(np.array(bound, dtype=float), -p)
        lost.append(np.abs(found + witness).max())
        best[y] = np.minimum(best.get(y, np.inf), found)
    assert max(lost) < 1e-9
    nodes, held = np.arange(len(logits)), case['pred']
    robust = np.array([best[y][u] > 1e-9 for u, y in enumerate(held)])
    assert (robust == (want[held, :, nodes].min(1) > 1e-9)).all()


def fragile_mask(case):
    n = len(case['adj_indptr']) - 1
    row = np.repeat(np.arange(n), np.diff(case['adj_indptr']))
    edge = row * n + case['adj_indices']
    pairs = case['fragile_rem'].astype(np.int64).T
    return np.isin(edge, pairs[0] * n + pairs[1])


def test_the_global_bound_is_above_every_graph_of_its_budget():
    made, logits, _ = problem(1, True)
    graphs = graphs_of(made)
    dense = torch.zeros(5, 5, dtype=torch.bool)
    dense[made.graph.row, made.graph.col] = True
    fragile = torch.zeros_like(dense)
    fragile[made.graph.row[made.removable], made.graph.col[made.removable]] = (
        True
    )
    fragile[made.pairs[0], made.pairs[1]] = True
    every = admissible(dense, fragile, made.budget, 1)
    model = kernel.Model(0.15)
    r = logits[:, 1] - logits[:, 0]
    worst = scores(every, r, model).amax(0)
    eye = torch.eye(5, dtype=torch.float64)
    local = 0.15 * Horizon(0.15).maximize(made, r[None]).value[0].numpy()
    for visits in (False, True):
        reached = np.full((5, 5), np.inf)
        for i in range(5):
            unit = eye[i : i + 1]
            vector = policy_iteration(
                made,
                0 * unit if visits else unit,
                0.15,
                bonus=unit if visits else None,
            )
            bound, p = kernel.reach(
                graphs, 0.15, i, 0.15 * vector.value[0].numpy(), visits
            )
            reached[:, i] = np.ldexp(np.array(bound, dtype=float), -p)
            # Of no vector at all there is a bound, too.
            bound, p = kernel.reach(graphs, 0.15, i, np.zeros(5), visits)
            weak = np.ldexp(np.array(bound, dtype=float), -p)
            assert (weak >= reached[:, i]).all()
            # All of the signal, at once and everywhere.
            most = every[:, i].sum(-1).clamp(min=1).min() if visits else 1
            assert weak == pytest.approx(1 / float(most), rel=1e-9)
        for u in range(5):
            for i in range(5):
                seen = scores(every, eye[i], model)[:, u]
                if visits:
                    seen = seen / every[:, i].sum(-1).clamp(min=1)
                assert reached[u, i] >= float(seen.max()) - 1e-13
            for price in (0.0, 0.05, 0.3, 5.0):
                found = kernel.bound_within(
                    *(graphs, model, r.numpy(), 0 * local, local),
                    *(u, price, reached[u], 1, visits),
                )
                assert float(found) >= float(worst[u]) - 1e-13
    assert float(found) > 4


def test_products_are_rounded_up():
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**46), 2**46, 2000)
    for factor in (Fraction(0.85), Fraction(1, 3), Fraction(0), Fraction(1)):
        found = kernel.scaled(x, *kernel.limbs(factor))
        for value, made in zip(x.tolist(), found.tolist(), strict=True):
            assert 0 <= made - value * factor <= (5 if 0 < factor < 1 else 0)
    # A unit below zero, a low limb that alone is more than a whole unit, and
    # the least product there is.
    for value, factor in (
        (-1, 1 - Fraction(1, 2**60)),
        (2**45, Fraction(129, 2**52)),
        (1, Fraction(1, 2**52)),
    ):
        made = kernel.scaled(np.array([value]), *kernel.limbs(factor))
        assert made[0] >= value * factor
    down, above = kernel.roots(400)
    for s in range(1, 401):
        assert int(down[s]) ** 2 * s <= 2**104 <= int(above[s]) ** 2 * s
        assert above[s] - down[s] <= 1


# The operator, by all sets of neighbours ####################################


def rows_of(seed, loose):
    """Rows of a graph, some of which can lose all of their edges."""
    draw = np.random.default_rng(seed)
    adj = draw.random((6, 6)) < 0.4
    adj[5] = False
    free = (draw.random((6, 6)) < 0.6) & ~adj
    if loose:
        free = ~adj & ~np.eye(6, dtype=bool)
    col = np.concatenate([np.flatnonzero(row) for row in adj])
    return kernel.Graphs(
        np.concatenate([[0], np.cumsum(adj.sum(1))]),
        col,
        draw.random(len(col)) < 0.7,
        draw.integers(0, 4, 6),
        NONE if loose else np.stack(np.nonzero(free)),
        loose,
    ), np.stack(np.nonzero(free))


def largest(graphs, free, model, signal, z, price, i):
    """(T z)_i by trying all flips, in rationals but for the root."""
    best = None
    at = range(graphs.rowptr[i], graphs.rowptr[i + 1])
    gone = [(e, int(graphs.col[e])) for e in at if graphs.removable[e]]
    come = [(e, int(j)) for e, (k, j) in enumerate(free.T) if k == i]
    kept = sum(int(z[graphs.col[e]]) for e in at)
    a = 1 - Fraction(model.alpha)
    for out in powerset(gone):
        for new in powerset(come):
            k = len(out) + len(new)
            if k > graphs.budget[i]:
                continue
            size = len(at) - len(out) + len(new)
            full = max(size, 1)
            total = kept - sum(int(z[j]) for _, j in out)
            total += sum(int(z[j]) for _, j in new)
            value = a * total / full if size else Fraction(0)
            if model.normalization == 'sym':
                value += Fraction(int(signal[i])) / Fraction(full**0.5)
            else:
                visits = model.normalization == 'visits'
                value += Fraction(int(signal[i]), full if visits else 1)
            if price.edge is not None:
                value -= sum(int(price.edge[e]) for e, _ in out)
                value -= sum(int(price.pair[e]) for e, _ in new)
            else:
                paid = Fraction(int(price.row[i]) * k)
                value -= paid / full if price.visits else paid
            best = value if best is None else max(best, value)
    return best


def powerset(items):
    return itertools.chain.from_iterable(
        itertools.combinations(items, k) for k in range(len(items) + 1)
    )


@pytest.mark.parametrize('kind', kernel.NORMALIZATIONS)
@pytest.mark.parametrize('priced', ['none', 'row', 'visits', 'edge'])
@pytest.mark.parametrize('loose', [False, True])
def test_the_operator_is_the_maximum_over_all_flips(kind, priced, loose):
    for seed in range(8 if priced == 'edge' else 3):
        graphs, free = rows_of(seed, loose)
        kernel.check(graphs)
        draw = np.random.default_rng(seed)
        z, signal = draw.integers(-(2**44), 2**44, (2, 6))
        dear = draw.integers(0, 2**43, 6 + len(graphs.col) + free.shape[1])
        if seed % 2:
            # So cheap that many flip at once.
            dear >>= 20
        price = kernel.Prices(0 * dear[:6])
        if priced in ('row', 'visits'):
            price = kernel.Prices(dear[:6], *[True] * (priced == 'visits'))
        elif priced == 'edge':
            if loose:
                continue
            many = 6 + len(graphs.col)
            price = kernel.Prices(dear[:6], False, dear[6:many], dear[many:])
        model = kernel.Model(0.3, None, kind)
        found = kernel.operator(graphs, model, signal, z, price)
        for i in range(6):
            exact = largest(graphs, free, model, signal, z, price, i)
            # Roundings of a few units, and of the root of doubles here.
            room = 2**-50 * 2**46 if kind == 'sym' else 0
            assert -room <= found[i] - exact <= 20 + room


def test_prices_are_rounded_down_and_never_dearer():
    price = np.array([0.0, 0.3, 1e-3, 1e300, 7.0])
    for p in (10, 45):
        held = kernel.down(price, p)
        most = np.minimum(price, 2.0 ** (44 - p))
        for unit, exact in zip(held.tolist(), most.tolist(), strict=True):
            assert 0 <= Fraction(exact) * 2**p - unit < 1
    for wrong in (-1e-9, np.nan):
        with pytest.raises(ValueError, match='price'):
            kernel.down(np.array([0.1, wrong]), 10)


@pytest.mark.parametrize('priced', ['row', 'visits', 'each'])
@pytest.mark.parametrize('seed', [0, 1])
def test_with_prices_the_bound_is_the_score_of_the_best_that_pays(
    seed, priced
):
    # Of every graph: what its flips cost is taken off at each of their rows.
    made, logits, every = problem(seed, True)
    graphs = graphs_of(made)
    clean = torch.zeros(5, 5, dtype=torch.bool)
    clean[made.graph.row, made.graph.col] = True
    draw = np.random.default_rng(seed)
    cost = draw.random((5, 5 if priced == 'each' else 1)) * [[0.2]] * [[1] * 5]
    paid = ((every ^ clean) * torch.from_numpy(cost)).sum(-1)
    if priced == 'visits':
        paid /= every.sum(-1).clamp(min=1)
    r, model = logits[:, 1] - logits[:, 0], kernel.Model(0.15)
    best = scores(every, r - paid / 0.15, model).amax(0).numpy()
    row = np.repeat(np.arange(5), np.diff(graphs.rowptr))
    price = kernel.Prices(cost[:, 0], priced == 'visits')
    if priced == 'each':
        price = kernel.Prices(
            cost[:, 0] * 0,
            False,
            cost[row, graphs.col],
            cost[tuple(graphs.pairs)],
        )
    zero = np.zeros(5)
    bound, p = kernel.bound(graphs, model, r.numpy(), zero, best, price)
    top = np.array([float(Fraction(v) / Fraction(2) ** p) for v in bound])
    assert (top >= best - 1e-13).all()
    assert top == pytest.approx(best, abs=1e-9)
    free, _ = kernel.bound(graphs, model, r.numpy(), zero, best)
    assert min(a - b for a, b in zip(free, bound, strict=True)) > 2.0**p / 99


@pytest.mark.parametrize('kind', ['float32', 'float64'])
@pytest.mark.parametrize('K', [None, 3, 64, 200])
def test_the_slack_is_that_of_its_statement(kind, K):
    d, h, model = 5, 3.0, kernel.Model(0.25, K)
    unit = kernel.KINDS[kind][0]
    gamma = (d + 8) * unit / (1 - (d + 8) * unit)
    if K is None:
        double = (d + 8) * Fraction(1, 2**53)
        part = 8 * double / (1 - double) * 4
        exact = Fraction({'float32': 1e-8, 'float64': 1e-12}[kind])
        exact += part + 2 * unit
    else:
        exact = gamma * sum((Fraction(3, 4) + gamma) ** k for k in range(K))
    found = kernel.slack(kind, model, d, h)
    assert exact * 3 <= found <= exact * 3 * (1 + Fraction(2, 10**6))
    # What underflows, in every operation of every step.
    lost = kernel.KINDS[kind][1] * (d + 8) * 4
    assert kernel.slack(kind, model, d, 0.0) == lost
    assert found == found - lost + lost > found - lost
    assert kernel.slack('exact arithmetic', model, d, h) == 0


def test_the_slack_of_many_roundings_and_steps_is_that_of_its_statement():
    # gamma is more than m u: by .1 % in the limit of 2^43 neighbours.
    m, rate = 2**43 + 8, Fraction(1, 4)
    gamma = Fraction(m, 2**53) / (1 - Fraction(m, 2**53))
    found = kernel.slack('float64', kernel.Model(0.25), 2**43, 1.0)
    exact = Fraction(1e-12) + 8 * gamma / rate + Fraction(1, 2**52)
    assert exact <= found <= exact * (1 + Fraction(2, 10**6))
    # Of a million steps nothing is left: a geometric series without an end.
    gamma = Fraction(13, 2**24 - 13)
    kept = 1 - Fraction(0.01) + gamma
    found = kernel.slack('float32', kernel.Model(0.01, 10**6), 5, 1.0)
    exact = gamma / (1 - kept)
    assert exact <= found <= exact * (1 + Fraction(2, 10**6))
    # Sums of many numbers in bfloat16 are none.
    assert kernel.slack('bfloat16', kernel.Model(0.5, 2), 17, 1.0) > 0
    with pytest.raises(OverflowError, match='a tenth'):
        kernel.slack('bfloat16', kernel.Model(0.5, 2), 18, 1.0)
    with pytest.raises(OverflowError, match='every step'):
        kernel.slack('float32', kernel.Model(1e-9, 100), 5, 1.0)


def test_shares_are_checked_edge_by_edge():
    draw = np.random.default_rng(0)
    most, sound = 1 - Fraction(1, 2**51), 0
    for _ in range(400):
        graphs, _ = rows_of(int(draw.integers(2**31)), False)
        row = np.concatenate([kernel.rows(graphs), graphs.pairs[0]])
        col = np.concatenate([graphs.col, graphs.pairs[1]])
        there = np.append(graphs.removable, graphs.pairs[0] >= 0)
        edges = list(zip(row.tolist(), col.tolist(), strict=True))
        held = dict.fromkeys(edges, 0.0)
        for u, v in edges:
            held[u, v] = 1 - 2.0**-51
            if (v, u) in edges and u < v:
                held[u, v] = float(draw.choice([0.0, 0.5, 0.75]))
            elif u != v and (v, u) in edges:
                held[u, v] = 1 - 2.0**-51 - held[v, u]
        u, v = edges[draw.integers(len(edges))]
        held[u, v] += float(draw.choice([0, 2.0**-52, 0.5, -0.3, np.nan]))
        shares = np.array([held[e] for e in edges])
        kept = {
            e: Fraction(held[e]) if free and held[e] == held[e] else 0
            for e, free in zip(edges, there, strict=True)
        }
        fine = all(
            kept[u, v] >= 0
            and kept[u, v] + (kept.get((v, u), 0) if u != v else 0) <= most
            for u, v in edges
        ) and bool(np.isfinite(shares).all())
        sound += fine
        if fine:
            part = kernel.split(graphs, shares)
            assert part.tolist() == [float(kept[e]) for e in edges]
            for other in (shares[:-1], shares[None]):
                with pytest.raises(ValueError, match='other edges'):
                    kernel.split(graphs, other)
            with pytest.raises(ValueError, match='other edges'):
                kernel.split(graphs._replace(all_pairs=True), shares)
        else:
            with pytest.raises(ValueError, match='more than a price'):
                kernel.split(graphs, shares)
    assert 50 < sound < 350


def test_a_row_that_can_reach_two_to_the_15_neighbours_is_refused():
    n = 2**15 + 1
    for degree in (2**15 - 2, 2**15 - 1):
        rowptr = np.full(n + 1, degree)
        rowptr[0] = 0
        budget = np.zeros(n, dtype=np.int64)
        budget[0] = 1
        graphs = kernel.Graphs(
            *(rowptr, np.arange(1, degree + 1), np.zeros(degree, dtype=bool)),
            *(budget, np.zeros((2, 0), dtype=np.int64), True),
        )
        if degree == 2**15 - 2:
            assert kernel.check(graphs) == n
            continue
        with pytest.raises(ValueError, match='not exact'):
            kernel.check(graphs)


def test_more_nodes_than_pairs_of_them_have_numbers_are_refused(monkeypatch):
    asked = []
    monkeypatch.setattr(kernel, 'divides', lambda *args: asked.append(args[1]))
    none = np.zeros(0, dtype=np.int64)
    for n in (2**31 - 1, 2**31):
        many = kernel.Graphs(
            np.broadcast_to(np.int64(0), n + 1),
            *(none, none.astype(bool), none, NONE, True),
        )
        with pytest.raises(ValueError, match='no rows'):
            kernel.check(many)
    assert asked == [2**31 - 1]


def test_a_graph_is_one_to_the_last_index():
    one = kernel.Graphs(
        np.array([0, 1, 2]),
        np.array([1, 0]),
        np.array([True, False]),
        np.array([2**31 - 1, 0]),
        np.array([[1], [1]]),
        False,
    )
    assert kernel.check(one) == 2
    assert [x.tolist() for x in kernel.sizes(one)] == [[0, 1], [1, 1]]
    for changes in (
        {'budget': np.array([2**31, 0])},
        {'budget': np.array([-1, 0])},
        {'budget': np.array([1])},
        {'col': np.array([2, 0])},
        {'col': np.array([-1, 0])},
        {'col': np.array([1, 0, 0])},
        {'rowptr': np.array([0, 2, 2]), 'col': np.array([1, 1])},
        {'rowptr': np.array([0, 3, 2])},
        {'rowptr': np.array([1, 1, 2])},
        {'rowptr': np.array([0])},
        {'pairs': np.array([[1, 1], [1, 1]])},
        {'pairs': np.array([[1], [0]])},
        {'pairs': np.array([[2], [0]])},
        {'pairs': np.array([[0], [-1]])},
        {'pairs': np.array([[0]])},
    ):
        with pytest.raises(ValueError, match='witness'):
            kernel.check(one._replace(**changes))
    for many, sound in ((1, True), (2**15, True), (2**15 + 1, False)):
        star = kernel.Graphs(
            np.concatenate([[0], np.full(many, many - 1)]),
            np.arange(1, many),
            np.zeros(many - 1, dtype=bool),
            np.zeros(many, dtype=np.int64),
            NONE,
            False,
        )
        if sound:
            assert kernel.check(star) == many
        else:
            with pytest.raises(ValueError, match='neighbours'):
                kernel.check(star)


@pytest.mark.parametrize(
    'model',
    [
        kernel.Model(0.0),
        kernel.Model(1.0),
        kernel.Model(np.nan),
        kernel.Model(0.5, None, 'col'),
        kernel.Model(0.5),
    ],
)
def test_what_is_no_model_or_has_no_vector_is_refused(model):
    graphs, _ = rows_of(0, False)
    r = np.zeros(6)
    vector = None if model == kernel.Model(0.5) else r
    with pytest.raises(ValueError, match='witness'):
        kernel.bound(graphs, model, r, r, vector)


def test_bounds_hold_for_numbers_of_every_size():
    # From 2^-1022 to 2^400, the largest of them in vector or signal.
    made, logits, every = problem(0, True)
    graphs, model = graphs_of(made), kernel.Model(0.15)
    r = logits[:, 1] - logits[:, 0]
    worst = scores(every, r, model).amax(0).numpy()
    for scale in (2.0**-1022, 2.0**-400, 1.0, 2.0**400):
        for vector in (0 * worst, worst, 40 * worst):
            bound, p = kernel.bound(
                *(graphs, model, r.numpy() * scale, 0 * worst, vector * scale)
            )
            for value, least in zip(bound, worst.tolist(), strict=True):
                exact = Fraction(value) / Fraction(2) ** p / Fraction(scale)
                assert exact >= Fraction(least) - Fraction(1, 10**12)


@pytest.mark.parametrize('shared', [False, True])
def test_a_flip_pays_no_more_than_its_share(monkeypatch, shared):
    made, logits, _ = problem(1, True)
    graphs = graphs_of(made)
    r, kept = logits[:, 0].numpy(), []

    def bound(*args):
        kept.append(args[-1])
        return [7] * 5, 3

    monkeypatch.setattr(kernel, 'bound', bound)
    reached = np.array([0.3, 1e-5, np.inf, 1 / 3, 2.0**-899])
    part = None
    if shared:
        part = np.full(len(graphs.col) + graphs.pairs.shape[1], 0.3)
    for price in (0.0, 0.7, 1e3):
        found = kernel.bound_within(
            *(graphs, kernel.Model(0.15), r, r, r, 2, price, reached, 4),
            **({'shares': part} if shared else {'visits': True}),
        )
        assert found == Fraction(7, 8) + 4 * Fraction(price)
        each = kept.pop()
        assert each.visits == (not shared)
        exact = [
            Fraction(0)
            if x == np.inf
            else Fraction(0.15) * Fraction(price) / Fraction(x)
            for x in reached.tolist()
        ]
        for paid, most in zip(each.row.tolist(), exact, strict=True):
            assert paid <= most
            assert paid >= most * (1 - Fraction(1, 10**12))
        if not shared:
            assert each.edge is None
            continue
        row = np.concatenate([kernel.rows(graphs), graphs.pairs[0]])
        on = np.concatenate([graphs.removable, row[len(graphs.col) :] >= 0])
        paid = np.concatenate([each.edge, each.pair])
        assert len(each.edge) == len(graphs.col)
        for i, x, there in zip(row, paid.tolist(), on, strict=True):
            assert x <= exact[i] * Fraction(0.3)
            if there:
                least = exact[i] * Fraction(0.3)
                assert x >= least * (1 - Fraction(1, 10**12))
    model = kernel.Model(0.15)
    kernel.bound_within(
        graphs, model, r, r, r, 2, math.nextafter(2.0**100, 0), reached, 4
    )
    assert not kept.pop().visits
    for price, bad in (
        *((-1.0, reached), (np.inf, reached), (2.0**100, reached)),
        (np.nan, reached),
        *((1.0, np.append(reached[1:], x)) for x in (2.0**-900, 0, np.nan)),
    ):
        with pytest.raises(ValueError, match='price'):
            kernel.bound_within(graphs, model, r, r, r, 2, price, bad, 4)
