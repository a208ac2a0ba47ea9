"""Attacks on propagation by somebody who knows the code."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric import EdgeIndex

from pyg_trust.agp.measures import (
    appnp,
    heat,
    hkpr,
    katz,
    pagerank,
    ppr,
    sgc,
    single_target,
    transition,
)
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import APPNP, SGConv

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
OTHER = torch.tensor([[0, 3, 1, 2, 3, 4], [3, 0, 2, 1, 4, 3]])


def test_an_edge_index_that_changes_inside_is_another_graph():
    # The tensor that an EdgeIndex wraps counts its changes by itself.
    x = torch.rand(5, 3)
    conv = APPNP(3, 0.2)
    edge_index = EdgeIndex(EDGES.clone(), sparse_size=(5, 5))
    conv(x, edge_index)
    edge_index.as_tensor().copy_(OTHER)
    assert torch.equal(conv(x, edge_index), APPNP(3, 0.2)(x, OTHER))


@pytest.mark.parametrize(
    ('name', 'value'), [('K', 1), ('alpha', 0.9), ('add_self_loops', False)]
)
def test_layers_that_are_changed_later_are_those_of_pyg(name, value):
    x = torch.rand(5, 3)
    for ours, theirs in (
        (APPNP(3, 0.2), pyg.APPNP(3, 0.2)),
        (SGConv(3, 2, K=3), pyg.SGConv(3, 2, K=3)),
    ):
        theirs.load_state_dict(ours.state_dict())
        ours(x, EDGES)
        for conv in (ours, theirs):
            setattr(conv, name, value)
        torch.testing.assert_close(ours(x, EDGES), theirs(x, EDGES))


@pytest.mark.parametrize('measure', [transition(1), ppr(0.1, K=4)])
@pytest.mark.parametrize('power', [-30, -33, -38.5])
def test_what_float16_loses_adds_up_over_a_row(measure, power):
    # A hub sums 2^14 numbers that are next to nothing beside one elsewhere.
    n = 2**14
    leaf = torch.arange(1, n + 1)
    star = torch.stack([torch.zeros_like(leaf), leaf])
    pair = torch.tensor([[n + 1, n + 2], [n + 2, n + 1]])
    graph = CSRGraph.from_edge_index(
        torch.cat([star, star.flip(0), pair], 1), n + 3
    )
    x = torch.full((n + 3, 1), 1.49 * 2.0**power)
    x[n + 1] = 1
    exact = propagate(graph, x.double(), measure)
    half = propagate(graph, x, measure, half=True)
    off = (half - exact).abs()
    # The operator is A D^-1: the largest sum of a row is that of the hub.
    levels = measure.K
    allowed = levels * (2.0**-11 * exact + 2.0**-31 * n) + 1e-6 * exact
    assert bool((off <= allowed).all())
    if measure.K == 1:
        assert float(off[0]) > 2.0**-31  # without the factor it is false


@pytest.mark.parametrize('measure', [pagerank, ppr, single_target, appnp])
@pytest.mark.parametrize('alpha', [1e-9, 1e-17, 5e-324])
def test_a_tiny_alpha_is_refused_before_memory_runs_out(measure, alpha):
    with pytest.raises(ValueError, match=r"'alpha' = .* needs about .* level"):
        measure(alpha)
    assert measure(alpha, K=3).K == 3
    with pytest.raises(ValueError, match="'K'"):
        measure(alpha, K=10**12)


@pytest.mark.parametrize('measure', [heat, hkpr])
@pytest.mark.parametrize('t', [1e8, 1e15, 1e300])
def test_a_huge_t_is_refused_before_memory_runs_out(measure, t):
    for levels in (None, 3):
        with pytest.raises(ValueError, match=r"'t' = .* needs about .* level"):
            measure(t, K=levels)
    with pytest.raises(ValueError, match="'K'"):
        measure(1.0, K=10**12)


def test_a_beta_at_its_limit_does_not_run_for_ever():
    graph = CSRGraph.from_edge_index(EDGES, 5)
    beta = (1 - 1e-9) / graph.spectral_radius
    with pytest.raises(ValueError, match=r"'beta' = .* needs about .* level"):
        katz(beta, graph)
    with pytest.raises(ValueError, match="'K'"):
        katz(beta, graph, K=10**12)
    for measure in (transition, sgc):
        with pytest.raises(ValueError, match="'K'"):
            measure(10**12)
