"""Attacks on exact propagation: what vanishes, and what reads memory."""

import contextlib

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from pyg_trust.agp.halo import HaloGraph, propagate_halo
from pyg_trust.agp.measures import (
    Measure,
    appnp,
    chebyshev,
    heat,
    katz,
    ppr,
    transition,
)
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.agp.propagation import propagate
from pyg_trust.certificates.diffusion import diffuse
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.testing import dense_operator
from pyg_trust.transforms import AGP

CLIQUE = CSRGraph.from_edge_index((1 - torch.eye(101)).nonzero().t(), 101)
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 3], [1, 0, 2, 1, 4, 3, 3]])
GRAPH = CSRGraph.from_edge_index(EDGES, 6)


def signal(n, columns=2):
    generator = torch.Generator().manual_seed(n + columns)
    return torch.rand(n, columns, generator=generator)


# Weights that vanish where the powers of the operator grow ###################


@pytest.mark.parametrize(
    ('beta', 'levels', 'half'),
    [
        (0.009, 41, False),
        (0.0099, 100, False),
        (0.009, 41, True),
        (0.009, 15, True),
        (0.009, 2, True),
        (0.009, 2, False),
        (0.009, 15, False),
        (0.5, 3, True),
    ],
)
@pytest.mark.parametrize('b', [0.0, 0.1])
def test_a_series_of_vanishing_weights_is_right_or_refused(
    beta, levels, half, b
):
    # Powers grow like 100^i (or less), and beta^i falls below all numbers.
    measure = Measure(0.0, b, tuple(beta**i for i in range(levels + 1)))
    x = signal(101)
    exact = propagate(CLIQUE, x.double(), measure)
    z = None
    with contextlib.suppress(ValueError):
        z = propagate(CLIQUE, x, measure, half=half)
    if z is None:
        assert levels > 3
        with pytest.raises(ValueError, match="'shrink'"):
            propagate(CLIQUE, x, measure, half=half)
        return
    off = (z - exact).norm() / exact.norm()
    assert off < (2e-3 if half else 1e-5)


@pytest.mark.parametrize('half', [False, True])
def test_the_same_series_with_a_shrink_is_right(half):
    shrink = 2.0**-7
    weights = tuple((0.009 / shrink) ** i for i in range(42))
    measure = Measure(0, 0, weights, shrink=shrink)
    plain = Measure(0, 0, tuple(0.009**i for i in range(42)))
    x = signal(101)
    exact = dense_operator(CLIQUE, plain) @ x.double()
    z = propagate(CLIQUE, x, measure, half=half)
    assert (z - exact).norm() < (2e-3 if half else 1e-5) * exact.norm()


@pytest.mark.parametrize('half', [False, True])
def test_long_series_that_end_in_nothing_are_not_refused(half):
    # Weights below 1e-38, of operators whose powers do not grow.
    hub = torch.stack([torch.arange(1, 200), torch.zeros(199).long()])
    in_star = CSRGraph.from_edge_index(hub, 200)
    star = CSRGraph.from_edge_index(torch.cat([hub, hub.flip(0)], 1), 200)
    x = signal(200)
    for graph, measure in (
        (star, heat(2.0, K=60)),
        (star, ppr(0.5, K=200)),
        (in_star, ppr(0.5, K=200)),
        (star, katz(0.03, star, K=200)),
        (star, transition(1)),
    ):
        exact = dense_operator(graph, measure) @ x.double()
        z = propagate(graph, x, measure, half=half)
        assert (z - exact).norm() < (2e-3 if half else 1e-5) * exact.norm()


@pytest.mark.parametrize(
    'measure',
    [
        Measure(0.5, 0.5, (1e-50, 1e-50)),
        Measure(0.5, 0.5, (0.0, 1e-42)),
        Measure(0, 0, (1.0, 1.0), shrink=1e-50),
        Measure(0, 0, (1.0, 1.0), shrink=1e39),
    ],
)
@pytest.mark.parametrize('half', [False, True])
def test_numbers_beyond_float32_are_refused_by_name(measure, half):
    x = signal(6)
    with pytest.raises(ValueError, match=r"'measure'.*float32"):
        propagate(GRAPH, 1e30 * x, measure, half=half)
    exact = dense_operator(GRAPH, measure) @ x.double()
    z = propagate(GRAPH, x.double(), measure)
    assert torch.allclose(z / exact.max(), exact / exact.max())


@pytest.mark.parametrize(
    'measure',
    [
        Measure(0, 0, tuple(0.009**i for i in range(42))),
        Measure(0, 0, (1.0, 1.0), shrink=1e-50),
        Measure(0.5, 0.5, (1e-50, 1e-50)),
    ],
)
def test_parts_of_a_graph_refuse_what_the_whole_refuses(measure):
    part = HaloGraph(CLIQUE.rowptr, CLIQUE.col, 0, 101)
    with pytest.raises(ValueError, match="'measure'"):
        propagate_halo(part, signal(101), measure)


def test_parts_of_a_graph_take_series_that_end_in_nothing():
    part = HaloGraph(CLIQUE.rowptr, CLIQUE.col, 0, 101)
    x = signal(101)
    for measure in (heat(2.0, K=60, self_loops=False), ppr(0.5)):
        exact = dense_operator(CLIQUE, measure) @ x.double()
        z = propagate_halo(part, x, measure)
        assert (z - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize('alpha', [0.1, 0.01, 0.001])
@pytest.mark.parametrize('sign', [1.0, -1.0])
def test_half_of_fewer_levels_rounds_no_more_than_the_bound(alpha, sign):
    # Nothing averages out: all nodes of a cycle have the same number, and the
    # levels of a slow series are many times larger than the result.
    node = torch.arange(64)
    ahead = torch.stack([node, (node + 1) % 64])
    cycle = CSRGraph.from_edge_index(torch.cat([ahead, ahead.flip(0)], 1), 64)
    measure = appnp(alpha, self_loops=False)
    fewer = chebyshev(measure, 1e-3)
    bound = sum(i * (i + 1) / 2 * c for i, c in enumerate(fewer.coefficients))
    worst = 0.0
    for size in torch.linspace(1, 2, 12).tolist():
        x = torch.full((64, 1), size)
        x[::2] *= sign
        exact = propagate(cycle, x.double(), measure, tol=1e-3)
        z = propagate(cycle, x, measure, half=True, tol=1e-3)
        worst = max(worst, float((z - exact).norm() / x.norm()))
    assert worst <= 2.0**-11 * bound + 1e-5
    if alpha == 0.001 and sign == 1:
        assert worst > 2e-3  # far above what half says of other series


# Signals #####################################################################


@pytest.mark.parametrize('sign', [1.0, -1.0])
@pytest.mark.parametrize('measure', [appnp(0.1, K=3), transition(1)])
@pytest.mark.parametrize('tol', [0.0, 1e-3])
def test_entries_that_are_there_often_do_not_overflow_half(measure, sign, tol):
    # 20,000 times the same entry: each fits float16, their sum does not.
    count = 20000
    ptr = torch.tensor([0, *[count] * 6])
    value = torch.ones(count)
    value[::4] = sign
    x = sparse_rows(ptr, torch.zeros(count).long(), value, (6, 2))
    dense = torch.zeros(6, 2, dtype=torch.float64)
    dense[0, 0] = value.double().sum()
    exact = propagate(GRAPH, dense, measure, tol=tol)
    z = propagate(GRAPH, x, measure, half=True, tol=tol)
    assert (z - exact).norm() < 2e-3 * exact.norm()


@pytest.mark.parametrize('loops', [False, True])
def test_a_view_of_the_other_sign_is_read_with_its_sign(tmp_path, loops):
    base = signal(6, 3)
    measure = appnp(0.1, K=3, self_loops=loops)
    view = torch._neg_view(base)
    assert view.is_neg()
    z = propagate(GRAPH, view, measure)
    assert torch.equal(z, propagate(GRAPH, -base, measure))
    file = propagate_to(tmp_path / 'z.npy', GRAPH, view, measure)
    assert torch.equal(z, file)


@pytest.mark.parametrize(
    ('ptr', 'index'),
    [
        ([0, 1, 2, 2, 2, 2, 2], [0, 2]),
        ([0, 1, 2, 2, 2, 2, 2], [-1, 0]),
        ([0, 1, 2, 2, 2, 2, 2], [10**9, 0]),
        ([0, 9, 2, 2, 2, 2, 2], [0, 1]),
        ([0, 1, 2, 2, 2, 2, 9], [0, 1]),
        ([1, 1, 2, 2, 2, 2, 2], [0, 1]),
    ],
)
@pytest.mark.parametrize('half', [False, True])
def test_a_sparse_signal_that_torch_did_not_check_reads_no_memory(
    tmp_path, ptr, index, half
):
    x = torch.sparse_csr_tensor(
        *(torch.tensor(ptr), torch.tensor(index), torch.ones(2), (6, 2)),
        check_invariants=False,
    )
    measure = appnp(0.1, K=3)
    with pytest.raises(ValueError, match="'x'"):
        propagate(GRAPH, x, measure, half=half)
    with pytest.raises(ValueError, match="'x'"):
        propagate(GRAPH, x, measure, eps=0.1)
    with pytest.raises(ValueError, match="'x'"):
        propagate_to(tmp_path / 'z.npy', GRAPH, x, measure, half=half)
    matrix = scipy.sparse.csr_array((6, 2), dtype=np.float32)
    matrix.indptr = np.array(ptr)
    matrix.indices, matrix.data = np.array(index), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="'x'"):
        propagate_to(tmp_path / 'z.npy', GRAPH, matrix, measure, half=half)
    data = Data(x=x, edge_index=EDGES)
    with pytest.raises(ValueError, match="'x'"):
        AGP(measure, eps=0.1).guarantee(data)


# Diffusion ###################################################################


def test_no_columns_diffuse_to_none():
    x = torch.ones(6, 0, requires_grad=True)
    z = diffuse(GRAPH, x, 0.1)
    assert z.shape == (6, 0)
    z.sum().backward()
    assert x.grad.shape == (6, 0)


@pytest.mark.parametrize('weight', [-1.0, 1e308])
def test_weights_that_make_no_probabilities_are_refused(weight):
    # A sum of 1e308 overflows, and every neighbour would count for nothing.
    weights = torch.ones(EDGES.size(1), dtype=torch.float64)
    weights[:4] = weight
    graph = CSRGraph.from_edge_index(EDGES, 6, weights)
    with pytest.raises(ValueError, match=r"'graph'.*weights"):
        diffuse(graph, signal(6), 0.1)


# Words that are no flags, and promises #######################################


@pytest.mark.parametrize(
    ('transform', 'edge_index', 'extra', 'match'),
    [
        (AGP('ppr', alpha=0.1, level_tol=1e-3), 'one way', {}, "'tol'"),
        (AGP('appnp', alpha=0.1), 'one way', {}, "'graph'"),
        (AGP('ppr', alpha=0.1), 'both', {'edge_weight': 1}, "'graph'"),
        (AGP('ppr', alpha=0.1, half=True), 'both', {'x': 1}, "'half'"),
    ],
)
def test_what_is_refused_has_no_guarantee(transform, edge_index, extra, match):
    edges = {'one way': EDGES[:, [0, 2, 4]], 'both': EDGES}[edge_index]
    data = Data(x=signal(6), edge_index=edges)
    if 'edge_weight' in extra:
        data.edge_weight = torch.rand(edges.size(1))
    if 'x' in extra:
        data.x = data.x.double()
    with pytest.raises(ValueError, match=match):
        transform(data.clone())
    with pytest.raises(ValueError, match=match):
        transform.guarantee(data)


def test_compiling_half_needs_what_half_checks():
    # That float32 went through says nothing of the range of float16.
    measure = Measure(0, 0, tuple(0.009**i for i in range(16)))
    x = signal(101)
    graph = CSRGraph(CLIQUE.rowptr, CLIQUE.col)
    propagate(graph, x, measure)

    @torch.compile(backend='eager')
    def run(x):
        return propagate(graph, x, measure, half=True)

    with pytest.raises(ValueError, match="'half'"):
        run(x)


def test_a_heat_constant_at_the_limit_keeps_to_it():
    # The limit of 10^6 levels is checked before the tail is known.
    with pytest.raises(ValueError, match="'t'"):
        heat(1e6)
