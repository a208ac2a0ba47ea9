"""Blocks of an estimate that are computed exactly as a whole."""

from dataclasses import replace

import pytest
import torch

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.agp._exact_blocks import exact_blocks
from pyg_trust.agp.propagation import PULL_ABOVE, column_norms, push_levels
from pyg_trust.graph import CSRGraph

N = 6000
MEASURES = [F.appnp(0.1, K=6), F.sgc(3), F.ppr(0.2, K=5)]


@pytest.fixture(scope='module')
def graph():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(N, (2, 10 * N), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    both = torch.cat([edges, edges.flip(0)], 1)
    return CSRGraph.from_edge_index(both, N, duplicates='merge')


def block(kind, dtype=torch.float32, columns=16):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, columns, generator=generator).to(dtype)
    if kind == 'few':
        x[torch.rand(N, generator=generator) > 0.001] = 0
    return x


def found(graph, x, measure, eps, above=PULL_ABOVE):
    prepared = graph.with_self_loops() if measure.self_loops else graph
    ratio = push_levels(measure)[1]
    return exact_blocks(prepared, x, measure, eps, ratio, above)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('measure', MEASURES, ids=lambda m: m.name)
def test_dense_signals_have_the_bits_of_the_exact_sum(graph, measure, dtype):
    x = block('all', dtype, 37)
    exact = F.propagate(graph, x, measure)
    for eps in (1e-7, 1e-2):
        z = F.propagate(graph, x, measure, eps=eps, seed=0)
        assert torch.equal(z, exact)
    pushed = F.propagate(graph, x, measure, eps=1e-2, seed=0, force_push=True)
    assert not torch.equal(pushed, exact)


def test_a_block_does_not_know_what_stands_beside_it(graph, threads):
    # Streams are those of the number of a block, whoever goes before it.
    measure, eps, seed = F.appnp(0.1, K=6), 1e-3, 5
    many, few = block('all'), block('few')
    x = torch.cat([few, many, many, few, few[:, :5]], 1)
    assert found(graph, x, measure, eps) == [False, True, True, False, False]
    z = F.propagate(graph, x, measure, eps=eps, seed=seed)
    assert torch.equal(z[:, 16:32], F.propagate(graph, many, measure))
    assert torch.equal(z[:, 32:48], z[:, 16:32])
    alone = F.propagate(graph, few, measure, eps=eps, seed=seed)
    assert torch.equal(z[:, :16], alone)

    prepared = graph.with_self_loops()
    total, ratio, keep = push_levels(measure)
    ends = prepared.degree_power(-0.5, x.dtype)
    for first, part in ((3, slice(48, 64)), (4, slice(64, 69))):
        wanted, pushed = ops.push(
            prepared.push_graph(0.5, x.dtype),
            prepared.receivers(),
            *(ends, ends, x[:, part].contiguous()),
            (eps * column_norms(x[:, part])).to(x.dtype),
            *(ratio, keep, seed, first),
            pull_above=PULL_ABOVE,
        )
        assert pushed.sum() > 0
        assert torch.equal(z[:, part], wanted.mul_(total))
    assert not torch.equal(z[:, 48:64], alone)
    threads(2)
    again = F.propagate(graph, x, measure, eps=eps, seed=seed)
    assert torch.equal(again, z)


def test_gradients_of_mixed_blocks(graph):
    # Exact where the gradient that comes in is dense, whatever x is.
    measure = F.sgc(3)
    x = torch.cat([block('few'), block('all')], 1).requires_grad_()
    z = F.propagate(graph, x, measure, eps=1e-3, seed=0)
    incoming = block('all', columns=32)
    z.backward(incoming)
    assert torch.equal(x.grad, F.propagate(graph, incoming, measure))


def test_one_level_is_pushed_where_that_is_cheap(graph):
    # What is reached is visited on a next level alone.
    x = torch.zeros(N, 16)
    x[::49] = 1
    one, two = (replace(F.sgc(1), weights=w) for w in ((0, 1), (0, 0, 1)))
    assert found(graph, x, one, 1e-9) == [False]
    assert found(graph, x, two, 1e-9) == [True]
    assert found(graph, x, two, 1e-1) == [False]  # next to nothing is sent


def test_numbers_that_are_not_finite_show(graph):
    measure = F.sgc(2)
    x = block('all').requires_grad_()
    z = F.propagate(graph, x, measure, eps=1e-3, seed=0)
    incoming = torch.zeros_like(z)
    incoming[3, 4] = float('nan')
    z.backward(incoming)
    assert x.grad[:, 4].isnan().any()
    huge = torch.full((N, 16), 3e38)
    with pytest.raises(ValueError, match='overflows'):
        F.propagate(graph, huge, F.transition(2), eps=1e-3, seed=0)
