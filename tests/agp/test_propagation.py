import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.agp import propagation
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import push_levels
from pyg_trust.agp.queries import prune_bound
from pyg_trust.graph import CSRGraph
from pyg_trust.testing import UNDIRECTED, dense_operator, make_graph

RUNS = 600


def measures(graph):
    beta = 0.7 / graph.spectral_radius
    return {
        'transition': F.transition(3),
        'pagerank': F.pagerank(0.2, tol=1e-2),
        'ppr': F.ppr(0.3, tol=1e-2),
        'single_target': F.single_target(0.3, tol=1e-2),
        'hkpr': F.hkpr(2.0, tol=1e-2),
        'katz': F.katz(beta, graph, tol=1e-1),
        'sgc': F.sgc(3),
        'appnp': F.appnp(0.2, K=6),
        'heat': F.heat(2.0, tol=1e-2),
        'between': Measure(0.3, 0.9, (0.5, 0.3, 0.0, 0.2)),
    }


NAMES = list(measures(make_graph('random')))


def signals(n, kind):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    if kind == 'signed':
        x -= 0.5
    x[:, 1] = 0
    x[5, 1] = 1  # a single node
    x[:, 2] *= 1000  # another scale
    return x


def largest_z(count, alarm=1e-5):
    """The deviation that `count` normal numbers exceed with this chance."""
    return norm.isf(alarm / 2 / count)


# Exact #######################################################################


@pytest.mark.parametrize('columns', [0, 1, 3, 4, 7, 8, 16, 17, 33, 64, 81])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_exact_path_equals_dense_powers(columns, dtype):
    graph = make_graph('random')
    torch.manual_seed(0)
    x = torch.randn(40, columns, dtype=dtype)
    for measure in measures(graph).values():
        z = F.propagate(graph, x, measure)
        wanted = dense_operator(graph, measure) @ x.double()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-4
        assert z.dtype == dtype
        assert z.shape == x.shape
        torch.testing.assert_close(
            z.double(), wanted, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    'name', [*UNDIRECTED, 'random', 'duplicate', 'directed']
)
def test_exact_path_on_tiny_graphs(name):
    graph = make_graph(name)
    x = torch.randn(graph.num_nodes, 2, dtype=torch.float64)
    for measure in (
        F.ppr(0.2),
        F.single_target(0.2),
        F.hkpr(1.0),
        F.transition(2),
        Measure(0.3, 0.4, (0.2, 0.3, 0.5)),
        Measure(0.3, 0.4, (0.2, 0.3, 0.5), along=False),
        F.katz(0.1, graph, K=5),
    ):
        z = F.propagate(graph, x, measure)
        wanted = dense_operator(graph, measure) @ x
        torch.testing.assert_close(z, wanted, rtol=1e-12, atol=1e-12)
        # All-deterministic pushes are the exact algorithm too.
        tiny = F.propagate(graph, x, measure, eps=1e-300, seed=0)
        torch.testing.assert_close(tiny, wanted, rtol=1e-12, atol=1e-12)
        rows = F.query(
            graph,
            torch.arange(graph.num_nodes),
            measure,
            eps=0,
            dtype=torch.float64,
        )
        torch.testing.assert_close(
            rows.to_dense().t() @ x, wanted, rtol=1e-12, atol=1e-12
        )


def test_input_is_left_alone_in_any_layout():
    graph = make_graph('random')
    x = torch.rand(5, 40).t()
    before = x.clone()
    for eps in (0.0, 1e-3):
        z = F.propagate(graph, x, F.sgc(2), eps=eps, seed=1)
        assert torch.equal(x, before)
        again = F.propagate(graph, x.contiguous(), F.sgc(2), eps=eps, seed=1)
        assert torch.equal(z, again)
        assert z.is_contiguous()


# Randomized: the mean and the variance #######################################


def check_runs(runs, exact, bound, events):
    """Tests the mean of many estimates, and their variance, entry by entry.

    Entries with few random events are left out, as their mean is not normal.
    Chance of a false alarm, over the choice of the seeds: 1e-5 for the mean
    and as much for the variance (both in the normal approximation).
    """
    count = len(runs)
    error = runs - exact
    still = runs.var(0) == 0
    close = 1e-10 * exact.abs().amax(0).expand_as(exact)
    assert (error.mean(0).abs() <= close)[still & (events > 150)].all()
    busy = ~still & (events > 150)
    assert busy.sum() > 20  # there is something to test
    limit = largest_z(int(busy.sum()))
    z = error.mean(0) / runs.std(0) * count**0.5
    assert z[busy].abs().max() < limit
    square = error.square()
    excess = (square.mean(0) - bound) / square.std(0) * count**0.5
    assert excess[busy].max() < limit


def check_unbiased(runs, graph, measure, x, eps):
    """Tests estimates against the dense operator and the variance bound."""
    operator = dense_operator(graph, measure)
    bound = F.variance_bound(graph, x, measure, eps)
    quantum = eps * x.abs().sum(0) * sum(measure.weights)
    events = RUNS * (operator @ x.abs()) / quantum
    check_runs(runs, operator @ x, bound, events)


@pytest.mark.parametrize('kind', ['positive', 'signed'])
@pytest.mark.parametrize('name', NAMES)
def test_estimate_is_unbiased_within_the_variance_bound(
    name, kind, always_push
):
    graph = make_graph('random')
    measure = measures(graph)[name]
    x = signals(40, kind)
    eps = 0.02 if name != 'katz' else 0.05
    runs = torch.stack(
        [F.propagate(graph, x, measure, eps=eps, seed=s) for s in range(RUNS)]
    )
    check_unbiased(runs, graph, measure, x, eps)


def test_mixed_levels_are_unbiased_within_the_variance_bound(monkeypatch):
    # Level 0 is exact, the last ones, where little is left, are pushed.
    graph = make_graph('random')
    measure = F.ppr(0.6, K=5)
    x = signals(40, 'signed')
    eps = 0.02
    _, ratio, keep = push_levels(measure)
    for limit in torch.logspace(-2, 2, 100).tolist():
        _, pushed = ops.push(
            graph.push_graph(0, x.dtype),
            graph.receivers(),
            graph.degree_power(0, x.dtype),
            graph.degree_power(-1, x.dtype),
            x,
            eps * x.abs().sum(0),
            ratio,
            keep,
            0,
            pull_above=limit,
        )
        if 0 < pushed < 4:
            break
    assert 0 < pushed < 4
    monkeypatch.setattr(propagation, 'PULL_ABOVE', limit)
    runs = torch.stack(
        [F.propagate(graph, x, measure, eps=eps, seed=s) for s in range(RUNS)]
    )
    check_unbiased(runs, graph, measure, x, eps)


@pytest.mark.parametrize('name', NAMES)
def test_queries_are_unbiased_within_the_variance_bound(name):
    graph = make_graph('random')
    measure = measures(graph)[name]
    eps = 0.02 if name != 'katz' else 0.05
    x = torch.zeros(40, 3, dtype=torch.float64)
    x[5, 0], x[11, 1], x[20, 1] = 1, 2, -0.5
    x[::3, 2] = torch.linspace(-1, 3, 14, dtype=torch.float64)
    rows = x.t().to_sparse_csr()
    runs = torch.stack(
        [
            F.query(graph, rows, measure, eps=eps, seed=s).to_dense().t()
            for s in range(RUNS)
        ]
    )
    check_unbiased(runs, graph, measure, x, eps)


@pytest.mark.parametrize('name', ['ppr', 'hkpr', 'appnp', 'single_target'])
@pytest.mark.parametrize('kind', ['positive', 'signed'])
def test_every_level_is_unbiased_within_its_variance_bound(name, kind):
    # The residue of level i is what the op returns when it keeps level i
    # alone. By the argument of the module its variance is at most
    # eps * i * (Y_i P^i |x|)(v), for an x of L1 norm one.
    graph = make_graph('random')
    measure = {
        'ppr': F.ppr(0.3, K=4),
        'hkpr': F.hkpr(2.0, K=4),
        'appnp': F.appnp(0.2, K=4),
        'single_target': F.single_target(0.3, K=4),
    }[name]
    x = signals(40, kind)[:, :2]
    x /= x.abs().sum(0)
    eps = 0.01
    prepared = graph.with_self_loops() if measure.self_loops else graph
    _, ratio, keep = push_levels(measure)
    tails = torch.cat([torch.ones(1, dtype=torch.float64), ratio]).cumprod(0)
    for level in range(1, 5):
        only = torch.zeros_like(keep)
        only[level] = 1
        runs = torch.stack(
            [
                ops.push(
                    prepared.push_graph(measure.a, x.dtype, measure.along),
                    prepared.receivers(measure.along),
                    prepared.degree_power(-measure.a, x.dtype),
                    prepared.degree_power(-measure.b, x.dtype),
                    x,
                    torch.full((2,), eps, dtype=x.dtype),
                    ratio,
                    only,
                    seed,
                )[0]
                for seed in range(RUNS)
            ]
        )
        weights = (0.0,) * level + (tails[level].item(),)
        step = dense_operator(graph, replace(measure, weights=weights))
        size = step @ x.abs()
        check_runs(runs, step @ x, eps * level * size, RUNS * size / eps)


def test_one_push_against_its_distribution(always_push):
    # The centre of a star sends 1/5 to each of 5 leaves: with eps = 0.5 each
    # leaf gets 0.5 with probability 0.4.
    graph = make_graph('star')
    x = torch.zeros(6, dtype=torch.float64)
    x[5] = 1
    runs = torch.stack(
        [
            F.propagate(graph, x, F.transition(1), eps=0.5, seed=seed)
            for seed in range(4000)
        ]
    )[:, :5]
    hits = runs / 0.5
    assert set(hits.unique().tolist()) <= {0.0, 1.0, 2.0}
    # Mean 0.4 each: 5 standard deviations of at most 0.5.
    assert (hits.mean(0) - 0.4).abs().max() < 5 * 0.5 / 4000**0.5
    # The number of hits is the mass 2, up to what one piece may add.
    assert set(hits.sum(1).unique().tolist()) == {2.0}
    # No two leaves are positively correlated, within 4 standard deviations.
    covariance = torch.cov(hits.t())
    off = covariance[~torch.eye(5, dtype=torch.bool)]
    assert off.max() < 4 * 0.25 / 4000**0.5


def test_zero_and_opposite_signals(always_push):
    graph = make_graph('random')
    x = torch.zeros(40, 2)
    z = F.propagate(graph, x, F.ppr(0.1), eps=1e-3, seed=1)
    assert torch.equal(z, x)
    x[3], x[7] = 1, -1
    for seed in range(20):
        z = F.propagate(graph, x, F.ppr(0.1), eps=0.3, seed=seed)
        assert z.isfinite().all()


# Seeds and threads ###########################################################


@pytest.mark.parametrize('eps', [0.0, 1e-2, 1e-5])
def test_threads_do_not_matter(eps, threads):
    graph = crowd()
    x = torch.randn(3000, 37, generator=torch.Generator().manual_seed(0))
    results = []
    for count in (1, 2, 8):
        threads(count)
        z = F.propagate(graph, x, F.appnp(0.1), eps=eps, seed=9)
        q = F.query(graph, torch.arange(50), F.hkpr(4.0), eps=eps, seed=9)
        results.append((z, q.crow_indices(), q.col_indices(), q.values()))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_threads_do_not_matter_for_long_columns(threads):
    # Long enough that torch would add up a column on several threads.
    graph, results = crowd(200_000, 1), []
    x = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    how = {'eps': 1e-4, 'seed': 1, 'force_push': True}
    for count in (1, 2, 3):
        threads(count)
        results.append(F.propagate(graph, x.double(), F.ppr(0.2, K=2), **how))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_exact_propagation_draws_nothing():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    F.propagate(make_graph('path'), torch.rand(4), F.ppr(0.1))
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.rand(4)
    assert torch.equal(torch.get_rng_state(), drawn)


# Queries #####################################################################


def test_query_is_a_propagation(always_push):
    graph = make_graph('random')
    for measure in measures(graph).values():
        for node in (7, 39):
            row = F.query(
                graph, torch.tensor([node]), measure, eps=1e-2, seed=6
            )
            x = torch.eye(40)[node]
            z = F.propagate(graph, x, measure, eps=1e-2, seed=6)
            torch.testing.assert_close(row.to_dense()[0], z)


def crowd(n=3000, degree=10):
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(n, (2, n * degree // 2), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return CSRGraph.from_edge_index(
        torch.cat([pairs, pairs.flip(0)], 1), n, duplicates='merge'
    )


def test_queries_leave_nothing_behind(threads):
    # Work vectors are kept from call to call, for graphs of any size.
    graphs = [make_graph('random'), crowd(), crowd(500)]
    calls = [
        (graph, torch.arange(8) * 3, measure, method, dtype, eps, top_k)
        for graph in graphs
        for measure, dtype in (
            (F.ppr(0.2), torch.float32),
            (F.sgc(2), torch.float64),
        )
        for method, eps, top_k in (
            ('sample', 1e-5, None),
            ('sample', 1e-2, 20),
            ('prune', 1e-4, None),
        )
    ]

    def run(call):
        graph, nodes, measure, method, dtype, eps, top_k = call
        return F.query(
            *(graph, nodes, measure),
            eps=eps,
            method=method,
            seed=4,
            dtype=dtype,
            top_k=top_k,
        )

    first = [run(call) for call in calls]
    order = torch.randperm(len(calls), generator=torch.Generator())
    for count in (1, 2, 8):
        threads(count)
        for i in order.tolist():
            again = run(calls[i])
            assert torch.equal(again.crow_indices(), first[i].crow_indices())
            assert torch.equal(again.col_indices(), first[i].col_indices())
            assert torch.equal(again.values(), first[i].values())


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_query_takes_sparse_signals(dtype, always_push):
    graph = make_graph('random')
    x = torch.zeros(3, 40, dtype=dtype)
    x[0, 4], x[0, 9], x[2, 1] = 2, -1, 0.5
    rows = F.query(graph, x.to_sparse_csr(), F.ppr(0.2), eps=1e-2, seed=6)
    assert rows.dtype == dtype
    z = F.propagate(graph, x[0], F.ppr(0.2), eps=1e-2, seed=6)
    torch.testing.assert_close(rows.to_dense()[0], z)
    assert rows.to_dense()[1].eq(0).all()
    exact = F.query(graph, x.to_sparse_csr(), F.ppr(0.2), eps=0)
    wanted = F.propagate(graph, x.t(), F.ppr(0.2))
    torch.testing.assert_close(exact.to_dense().t(), wanted)


@pytest.mark.parametrize('name', ['ppr', 'hkpr', 'single_target', 'appnp'])
@pytest.mark.parametrize('eps', [1e-1, 1e-2, 1e-3])
def test_pruned_queries_are_within_their_bound(name, eps):
    graph = make_graph('random')
    measure = measures(graph)[name]
    nodes = torch.arange(40)
    exact = F.query(graph, nodes, measure, eps=0, dtype=torch.float64)
    pruned, again = (
        F.query(
            graph,
            nodes,
            measure,
            eps=eps,
            method='prune',
            dtype=torch.float64,
            seed=seed,
        ).to_dense()
        for seed in (1, 2)
    )
    assert torch.equal(pruned, again)  # nothing is random
    lost = exact.to_dense() - pruned
    assert lost.min() >= -1e-15
    assert lost.max() > 0
    bound = prune_bound(graph, measure, eps)
    assert (lost <= bound + 1e-15).all()


def test_query_top_k_and_threshold():
    graph = make_graph('random')
    nodes = torch.arange(40)
    full = F.query(graph, nodes, F.ppr(0.2), eps=1e-4, seed=6)
    dense = full.to_dense()
    some = F.query(graph, nodes, F.ppr(0.2), eps=1e-4, seed=6, top_k=5)
    assert some.crow_indices().diff().max() == 5
    largest = dense.topk(5, 1).values.sum(1)
    torch.testing.assert_close(some.to_dense().sum(1), largest)
    above = F.query(graph, nodes, F.ppr(0.2), eps=1e-4, seed=6, threshold=0.02)
    assert torch.equal(above.to_dense(), torch.where(dense > 0.02, dense, 0))
    none = F.query(graph, nodes, F.ppr(0.2), eps=1e-4, seed=6, top_k=0)
    assert none.values().numel() == 0
    ordered = all(
        (row.diff() > 0).all()
        for row in some.col_indices().split(
            some.crow_indices().diff().tolist()
        )
    )
    assert ordered


def test_query_threshold_is_in_units_of_the_result():
    # Katz weights do not sum to one, and eps refers to their sum.
    graph = make_graph('star')
    measure = F.katz(0.4, graph)
    nodes = torch.arange(6)
    full = F.query(graph, nodes, measure, eps=0).to_dense()
    cut = F.query(graph, nodes, measure, eps=0, threshold=0.5).to_dense()
    assert torch.equal(cut, torch.where(full > 0.5, full, 0))


# Bounds ######################################################################


def test_variance_bound_of_katz_counts_its_growth():
    graph = make_graph('random')
    x = signals(40, 'positive')
    beta, radius = 0.5 / graph.spectral_radius, graph.spectral_radius
    measure = F.katz(beta, graph, K=4)
    bound = F.variance_bound(graph, x, measure, 1e-3)
    spread = torch.zeros_like(x)
    for level in range(1, 5):
        weights = (0.0,) * level + (beta**level,)
        step = dense_operator(graph, Measure(0, 0, weights))
        spread += level * step @ x
    total = sum((beta * radius) ** j for j in range(5))
    wanted = 1e-3 * total * x.sum(0) * spread
    torch.testing.assert_close(bound, wanted)
    # The same series, its growth in the weights: the bound of the text.
    plain = Measure(0, 0, tuple(beta**i for i in range(5)))
    growth = max(
        sum((beta * radius) ** j for j in range(5 - k))
        / sum(beta**j for j in range(5 - k))
        for k in range(1, 5)
    )
    wanted = growth * 1e-3 * sum(plain.weights) * x.sum(0) * spread
    torch.testing.assert_close(F.variance_bound(graph, x, plain, 1e-3), wanted)


def test_no_variance_bound_without_a_proof():
    x = torch.rand(5)
    graph = make_graph('directed')
    for measure in (Measure(0.5, 0.5, (0, 1)), F.katz(0.2, graph)):
        with pytest.raises(ValueError, match='no variance bound is known'):
            F.variance_bound(graph, x, measure, 1e-3)
    F.variance_bound(graph, x, F.ppr(0.2), 1e-3)
    F.variance_bound(graph, x, F.single_target(0.2), 1e-3)
    path = make_graph('path')
    with pytest.raises(ValueError, match='no variance bound is known'):
        F.variance_bound(path, x[:4], Measure(0.3, 0.4, (0, 1)), 1e-3)
    larger = replace(F.ppr(0.2), shrink=1.5)
    with pytest.raises(ValueError, match='no variance bound is known'):
        F.variance_bound(path, x[:4], larger, 1e-3)
    with pytest.raises(ValueError, match='no bound is known'):
        prune_bound(path, larger, 1e-3)


# Gradients ###################################################################


def test_randomized_gradient_is_unbiased(always_push):
    graph = make_graph('random')
    measure = F.ppr(0.3, K=4)
    x = signals(40, 'signed').requires_grad_()
    upstream = torch.randn(40, 4, dtype=torch.float64)
    runs = torch.stack(
        [
            torch.autograd.grad(
                F.propagate(graph, x, measure, eps=0.02, seed=seed),
                x,
                upstream,
            )[0]
            for seed in range(RUNS)
        ]
    )
    wanted = dense_operator(graph, measure).t() @ upstream
    spread = runs.std(0)
    noisy = spread > 1e-12
    z = (runs.mean(0) - wanted)[noisy] / spread[noisy] * RUNS**0.5
    assert noisy.sum() > 60
    assert z.abs().max() < largest_z(int(noisy.sum()))


# Bad input ###################################################################


@pytest.mark.parametrize('value', [math.inf, math.nan])
def test_gradients_that_are_not_finite_show(value):
    # Sampling sends nothing for an infinite quantum: a scaler of gradients
    # would not see the overflow.
    x = torch.ones(40, 1, requires_grad=True)
    F.propagate(make_graph('random'), x, F.sgc(2), eps=0.1).backward(
        torch.full((40, 1), value)
    )
    assert not x.grad.isfinite().any()


def test_norms_that_overflow_lose_nothing():
    graph, measure = make_graph('random'), F.sgc(2)
    x = torch.full((40, 1), 1e37)
    wanted = F.propagate(graph, x, measure)
    got = F.propagate(graph, x, measure, eps=10.0)
    assert wanted.isfinite().all()
    assert torch.equal(got, wanted)


@pytest.mark.parametrize('method', ['sample', 'prune'])
def test_queries_are_exact_where_the_norm_overflows(method):
    graph, measure = make_graph('random'), F.sgc(2)
    x = torch.zeros(1, 40, dtype=torch.float64)
    x[0, 1:4] = 1e308
    got = F.query(graph, x.to_sparse_csr(), measure, eps=0.0, method=method)
    wanted = dense_operator(graph, measure) @ x[0]
    torch.testing.assert_close(got.to_dense()[0], wanted)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('eps', [0.0, 1e-300])
def test_katz_survives_powers_that_overflow(dtype, eps):
    # The complete graph: A 1 = 100 1, so z = sum_i 0.999^i. In float32 100^20
    # overflows and beta^20 underflows, in float64 both do so at level 154.
    n, levels = 101, 300
    edges = (1 - torch.eye(n)).nonzero().t()
    graph = CSRGraph.from_edge_index(edges, n)
    measure = F.katz(0.999 / 100, graph, K=levels)
    x = torch.ones(n, 2, dtype=dtype, requires_grad=True)
    if dtype == torch.float32:
        eps = eps and 1e-30
    z = F.propagate(graph, x, measure, eps=eps, seed=0, force_push=True)
    z.sum().backward()
    wanted = (1 - 0.999 ** (levels + 1)) / (1 - 0.999)
    wanted = torch.full((n, 2), wanted, dtype=dtype)
    # 300 levels, each rounded alike in every entry.
    tolerance = 300 * 2**-23 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(z, wanted, rtol=tolerance, atol=0)
    torch.testing.assert_close(x.grad, wanted, rtol=tolerance, atol=0)


def test_katz_near_its_limit_is_the_inverse():
    graph = make_graph('random')
    beta = 0.999 / graph.spectral_radius
    adj = dense_operator(graph, Measure(0, 0, (0, 1)))
    eye = torch.eye(40, dtype=torch.float64)
    wanted = torch.linalg.inv(eye - beta * adj)
    measure = F.katz(beta, graph, tol=1e-6)
    assert measure.K > 10_000
    z = F.propagate(graph, eye, measure)
    torch.testing.assert_close(z, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('force_push', [False, True])
@pytest.mark.parametrize('eps', [1e-6, 1e-2])
def test_blocks_depend_on_no_other_block(eps, force_push, threads):
    # Sparse and dense columns side by side: some blocks are pushed while
    # others are done exactly.
    n = 3000
    graph = crowd(n)
    torch.manual_seed(0)
    x = torch.zeros(n, 150)
    x[:, :16] = torch.randn(n, 16)
    x[:, 40:80] = torch.randn(n, 40)
    x[torch.randint(n, (70,)), torch.arange(80, 150)] = 1
    measure = F.ppr(0.3, K=5)

    def run(x):
        return F.propagate(
            graph, x, measure, eps=eps, seed=3, force_push=force_push
        )

    z = run(x)
    error = z - F.propagate(graph, x, measure)
    assert error[:, 112:].norm() > 0
    for width in (16, 48, 96):
        assert torch.equal(run(x[:, :width]), z[:, :width])
    for count in (1, 3, 16):
        threads(count)
        assert torch.equal(run(x), z)
