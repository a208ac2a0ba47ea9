"""Each row of the table against a definition that shares no code with it."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
from torch_geometric.nn import APPNP

from pyg_trust import agp as F
from pyg_trust.agp.measures import MEASURES, Measure
from pyg_trust.testing import make_graph

TIGHT = {'tol': 1e-14}


def adjacency(graph):
    edge_index, _ = graph.to_edge_index()
    adj = np.zeros((graph.num_nodes, graph.num_nodes))
    adj[tuple(edge_index.numpy())] = 1
    return adj


def walk(graph):
    """Row-stochastic transition matrix; zero rows at sinks."""
    adj = adjacency(graph)
    degree = adj.sum(1, keepdims=True)
    return np.divide(adj, degree, where=degree > 0, out=np.zeros_like(adj))


def symmetric(graph):
    adj = adjacency(graph)
    adj = adj + np.eye(len(adj))
    scale = np.diag(adj.sum(1) ** -0.5)
    return scale @ adj @ scale


def run(graph, measure, x):
    return F.propagate(graph, torch.as_tensor(x), measure).numpy()


GRAPHS = pytest.mark.parametrize(
    'name', ['random', 'directed', 'star', 'path']
)


def inverse(matrix):
    return np.linalg.inv(np.eye(len(matrix)) - matrix)


def exponential(t, matrix):
    return scipy.linalg.expm(-t * (np.eye(len(matrix)) - matrix))


# A measure, and its operator by dense algebra.
OPERATORS = {
    'transition': (
        F.transition(3),
        lambda graph: np.linalg.matrix_power(walk(graph).T, 3),
    ),
    'ppr': (
        F.ppr(0.3, **TIGHT),
        lambda graph: 0.3 * inverse(0.7 * walk(graph).T),
    ),
    'single_target': (
        F.single_target(0.3, **TIGHT),
        lambda graph: 0.3 * inverse(0.7 * walk(graph)),
    ),
    'hkpr': (
        F.hkpr(0.5, **TIGHT),
        lambda graph: exponential(0.5, walk(graph).T),
    ),
    'hkpr, far': (
        F.hkpr(5.0, **TIGHT),
        lambda graph: exponential(5.0, walk(graph).T),
    ),
    'sgc': (
        F.sgc(4),
        lambda graph: np.linalg.matrix_power(symmetric(graph), 4),
    ),
    'heat': (
        F.heat(3.0, **TIGHT),
        lambda graph: exponential(3.0, symmetric(graph)),
    ),
}


@GRAPHS
@pytest.mark.parametrize('measure', OPERATORS)
def test_measures_are_their_operators(name, measure):
    graph = make_graph(name)
    made, dense = OPERATORS[measure]
    if made.undirected and not graph.is_undirected:
        return
    z = run(graph, made, np.eye(graph.num_nodes))
    np.testing.assert_allclose(z, dense(graph), atol=1e-12)


@GRAPHS
def test_katz_is_an_inverse(name):
    graph = make_graph(name)
    adj = adjacency(graph)
    beta = 0.6 / max(np.abs(np.linalg.eigvals(adj)).max(), 1.5)
    z = run(graph, F.katz(beta, graph, tol=1e-15), np.eye(len(adj)))
    np.testing.assert_allclose(z, inverse(beta * adj.T), atol=1e-12)


def test_appnp_is_that_of_pyg():
    graph = make_graph('random')
    x = torch.rand(40, 3, dtype=torch.float64)
    wanted = APPNP(7, 0.15)(x, graph.to_edge_index()[0])
    z = F.propagate(graph, x, F.appnp(0.15, K=7))
    torch.testing.assert_close(z, wanted, rtol=0, atol=1e-12)


@GRAPHS
def test_pagerank_is_that_of_networkx(name):
    graph = make_graph(name)
    n = graph.num_nodes
    theirs = nx.DiGraph()
    theirs.add_nodes_from(range(n))
    theirs.add_edges_from(graph.to_edge_index()[0].t().tolist())
    wanted = nx.pagerank(theirs, alpha=0.8, tol=1e-14, max_iter=1000)
    z = run(graph, F.pagerank(0.2, **TIGHT), np.full(n, 1 / n))
    # networkx restarts the walks that end at a node without out-edges.
    np.testing.assert_allclose(
        z / z.sum(), [wanted[i] for i in range(n)], atol=1e-11
    )


# Weights and levels ##########################################################


def series(alpha):
    return lambda k: alpha * (1 - alpha) ** k


def poisson(t):
    return lambda k: math.exp(k * math.log(t) - t - math.lgamma(k + 1))


@pytest.mark.parametrize('tol', [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize(
    ('make', 'weight'),
    [
        (lambda tol: F.ppr(0.2, tol=tol), series(0.2)),
        (lambda tol: F.appnp(0.05, tol=tol), series(0.05)),
        (lambda tol: F.single_target(0.7, tol=tol), series(0.7)),
        (lambda tol: F.hkpr(5.0, tol=tol), poisson(5.0)),
        (lambda tol: F.heat(0.5, tol=tol), poisson(0.5)),
        (lambda tol: F.hkpr(30.0, tol=tol), poisson(30.0)),
    ],
)
def test_levels_are_the_fewest_for_the_tolerance(make, weight, tol):
    measure = make(tol)
    levels = measure.K
    exact = [weight(k) for k in range(levels + 500)]
    assert math.fsum(exact[levels + 1 :]) <= tol
    assert math.fsum(exact[levels:]) > tol
    np.testing.assert_allclose(
        measure.weights[:-1], exact[:levels], rtol=1e-12
    )
    tail = math.fsum(exact[levels:])
    assert measure.weights[-1] == pytest.approx(tail, rel=1e-9)
    assert sum(measure.weights) == pytest.approx(1, abs=1e-12)


def test_large_heat_constants_do_not_underflow():
    measure = F.hkpr(1000.0, tol=1e-6)
    assert sum(measure.weights) == pytest.approx(1, abs=1e-9)
    mean = sum(i * w for i, w in enumerate(measure.weights))
    assert mean == pytest.approx(1000, rel=1e-4)


@pytest.mark.parametrize('name', ['star', 'random', 'directed', 'no_edges'])
@pytest.mark.parametrize('tol', [0.5, 1e-3, 1e-9])
def test_katz_cuts_off_less_than_the_tolerance(name, tol):
    graph = make_graph(name)
    beta = 0.9 / max(graph.spectral_radius, 1)
    measure = F.katz(beta, graph, tol=tol)
    n = graph.num_nodes
    wanted = np.linalg.inv(np.eye(n) - beta * adjacency(graph).T)
    cut = np.abs(wanted - run(graph, measure, np.eye(n))).sum(0).max()
    assert cut <= tol
    # And not much more is kept than needed.
    if measure.K > 3:
        fewer = F.katz(beta, graph, K=measure.K // 2)
        cut = np.abs(wanted - run(graph, fewer, np.eye(n))).sum(0).max()
        assert cut > tol


def test_shrink_is_a_factor_of_the_operator():
    graph = make_graph('directed')
    plain = Measure(0.3, 0.4, (1, 2, 3))
    scaled = Measure(0.3, 0.4, (1, 4, 12), shrink=0.5)
    for one, two in ((plain, scaled), (plain.adjoint(), scaled.adjoint())):
        x = torch.rand(5, 2, dtype=torch.float64)
        torch.testing.assert_close(
            F.propagate(graph, x, one), F.propagate(graph, x, two)
        )
        pushed = F.propagate(graph, x, two, eps=1e-300, force_push=True)
        torch.testing.assert_close(F.propagate(graph, x, one), pushed)


def test_katz_weights():
    # Relative to the spectral radius, that of a star: the root of 5.
    measure = F.katz(0.1, make_graph('star'), K=3)
    assert measure.shrink == pytest.approx(5**-0.5)
    weights = [w * measure.shrink**i for i, w in enumerate(measure.weights)]
    assert weights == pytest.approx((1, 0.1, 0.01, 0.001))


def test_adjoint_is_the_transposed_operator():
    graph = make_graph('directed')
    x = torch.eye(5, dtype=torch.float64)
    for measure in (F.ppr(0.2), F.single_target(0.2), F.katz(0.3, graph)):
        forward = F.propagate(graph, x, measure)
        back = F.propagate(graph, x, measure.adjoint())
        torch.testing.assert_close(back, forward.t())
        assert measure.adjoint().adjoint() == measure


# By name #####################################################################


def test_every_name_is_made_with_its_arguments():
    graph = make_graph('path')
    arguments = {
        'transition': {'K': 2},
        'katz': {'beta': 0.1},
        'hkpr': {'t': 2.0},
        'heat': {'t': 2.0},
        'sgc': {},
    }
    for name in MEASURES:
        given = arguments.get(name, {'alpha': 0.3})
        measure = F.make_measure(name, graph, **given, tol=None)
        assert measure.name == name
    assert F.make_measure('sgc', graph, K=3) == F.sgc(3)
    assert F.make_measure('katz', graph, beta=0.1) == F.katz(0.1, graph)
    own = Measure(0.2, 0.7, (1, 2))
    assert F.make_measure(own, graph, alpha=None) is own


# Bad input ###################################################################


@pytest.mark.parametrize('beta', [0.0, -0.1, 0.5, 0.6, math.nan, math.inf])
def test_katz_refuses_to_diverge(beta):
    # The spectral radius of a cycle is 2.
    with pytest.raises(ValueError, match=r"'beta'.*\(0, 0.5\).*diverges"):
        F.katz(beta, make_graph('cycle'))


def test_katz_refuses_another_graph():
    measure = F.katz(0.4, make_graph('path'))
    star = make_graph('star')
    with pytest.raises(ValueError, match=r'radius 1\.618.*2\.236'):
        F.propagate(star, torch.ones(6), measure)


def test_a_tolerance_below_every_tail_is_met():
    # Further than the weights were computed; it gave no level at all.
    measure = F.hkpr(5.0, tol=1e-300)
    assert measure.K > 100
    assert measure.weights[0] == pytest.approx(math.exp(-5))
