"""Some rows of a propagation, their loops, and magnitudes of columns."""

import pytest
import torch

from pyg_trust import agp as F
from pyg_trust.graph import CSRGraph


def with_some_loops(n: int, count: int, seed: int) -> CSRGraph:
    """A random undirected graph; every third node has an own loop."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, n, (2, count), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    own = torch.arange(0, n, 3).expand(2, -1)
    edges = torch.cat([edges, edges.flip(0), own], 1)
    return CSRGraph.from_edge_index(edges, n, duplicates='merge')


@pytest.mark.parametrize('half', [False, True])
@pytest.mark.parametrize('tol', [0.0, 1e-2])
def test_rows_of_a_looped_graph_are_those_of_the_whole(half, tol):
    # Large enough for several tasks, sparse enough that all levels are cut.
    n = 24_000
    graph = with_some_loops(n, 30_000, seed=1)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 70, generator=generator)
    shuffled = torch.randperm(n, generator=generator)
    threads = torch.get_num_threads()
    try:
        for measure in (F.sgc(2), F.heat(2.0, levels=6)):
            z = F.propagate(graph, x, measure, half=half, tol=tol)
            for rows in (
                shuffled[:6000],  # in no order
                torch.cat([shuffled[:40], shuffled[:40]]),  # twice
                torch.tensor([n - 1]),
                shuffled[:0],
            ):
                for count in (1, 2):
                    torch.set_num_threads(count)
                    some = F.propagate(
                        *(graph, x, measure),
                        half=half,
                        tol=tol,
                        rows=rows,
                    )
                    assert torch.equal(some, z[rows])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize('levels', [0, 1, 2])
def test_no_rows_and_more_rows_than_nodes(levels):
    graph = with_some_loops(30, 60, seed=3)
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(4))
    measure = F.sgc(levels) if levels else F.appnp(0.1, levels=0)
    z = F.propagate(graph, x, measure)
    many = torch.arange(30).repeat(40)
    assert torch.equal(F.propagate(graph, x, measure, rows=many), z[many])
    none = F.propagate(graph, x, measure, rows=many[:0])
    assert none.shape == (0, 5)


@pytest.mark.parametrize('columns', [1, 3, 4, 16, 19, 64, 85, 130])
@pytest.mark.parametrize('n', [1, 300, 5000])
def test_magnitudes_of_columns(n, columns):
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(n, columns, generator=generator)
    x *= 10.0 ** torch.randint(-44, 38, (columns,), generator=generator)
    x[:, -1] = -x[:, -1].abs()
    found = torch.ops.pyg_trust.column_magnitudes(x)
    assert torch.equal(found, x.abs().amax(0))
    assert not x.any() or found.signbit().sum() == 0
    odd = x.clone()
    odd[n // 2, 0] = -torch.inf
    found = torch.ops.pyg_trust.column_magnitudes(odd)
    assert found[0] == torch.inf
    # A NaN shows, whatever its sign, beside infinity.
    odd[n - 1, 0] = torch.tensor([-4194303], dtype=torch.int32).view(
        torch.float32
    )[0]
    assert odd[n - 1, 0].isnan()
    assert odd[n - 1, 0].signbit()
    found = torch.ops.pyg_trust.column_magnitudes(odd)
    assert found[0].isnan()
    assert torch.equal(found[1:], x.abs().amax(0)[1:])
