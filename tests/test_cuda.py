"""What only a GPU can show.

tests/test_cuda_emulation.py has the kernels, tests/test_devices.py what moves.
"""

import math
from itertools import pairwise

import pytest
import torch
from pushes import close, power_law, push_arguments

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.sampler.walks import disjoint_walks
from pyg_trust.testing import UNDIRECTED, make_graph

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason='needs a CUDA GPU'
    ),
    pytest.mark.skipif(
        torch.cuda.is_available() and not ops.has_kernel('cuda'),
        reason='needs pyg_trust built with CUDA (FORCE_CUDA=1)',
    ),
]
GPU = 'cuda:0'
DTYPES = [torch.float32, torch.float64]


def graph_of(name):
    return power_law(30_000, 200_000) if name == 'big' else make_graph(name)


def arguments(name, measure, dtype, columns, eps):
    graph = graph_of(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(graph.num_nodes, columns, generator=generator).double()
    return {
        **push_arguments(graph, measure, (x - 0.3).to(dtype)),
        'eps': torch.full((columns,), eps, dtype=dtype),
    }


def to_gpu(args):
    moved = {}
    for name, value in args.items():
        if isinstance(value, torch.Tensor):
            stays = name in ('ratio', 'keep')
            moved[name] = value if stays else value.to(GPU)
        elif isinstance(value, ops.PushGraph):
            parts = [None if t is None else t.to(GPU) for t in value]
            moved[name] = ops.PushGraph(*parts)
        else:
            moved[name] = tuple(t.to(GPU) for t in value)
    return moved


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


# Ops #########################################################################


@pytest.mark.parametrize('half', [False, True])
@pytest.mark.parametrize('columns', [1, 5, 64, 200])
@pytest.mark.parametrize('name', ['random', 'directed', 'big'])
def test_propagate_some_rows_and_sparse_features(name, columns, half):
    measure = F.appnp(0.3, K=3)
    graph = graph_of(name)
    n = graph.num_nodes
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, columns, generator=generator)
    x = torch.where(x > 0.8, x, 0.0)
    rows = torch.randint(0, n, (n // 3,), generator=generator)
    rows[::5] = 0
    wanted = F.propagate(graph, x, measure, half=half)
    on = graph.to(GPU)
    whole = F.propagate(on, x.to(GPU), measure, half=half)
    assert close(whole, wanted, 1e-2 if half else 1e-5)
    for given in (x, x.to_sparse_csr()):
        given = given.to(GPU)
        for some in (None, rows.to(GPU), rows[:0].to(GPU)):
            got = F.propagate(on, given, measure, half=half, rows=some)
            assert torch.equal(got, whole if some is None else whole[some])


def test_dense_propagation_can_be_captured():
    args = to_gpu(arguments('big', F.appnp(0.3, K=3), DTYPES[0], 20, 0.1))
    wanted, _ = ops.push(**args, seed=3)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        got, _ = ops.push(**args, seed=3)
    for _ in range(2):
        captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, wanted)


@pytest.mark.parametrize('above', [math.inf, 1.0, 0.0])
@pytest.mark.parametrize('columns', [1, 3, 40])
@pytest.mark.parametrize('eps', [1e-3, 0.03, 1.0])
@pytest.mark.parametrize('name', ['random', 'directed', 'big'])
def test_push(name, eps, columns, above):
    measure = F.Measure(0.4, 0.6, (0.2937, 0.2, 0.2, 0.1))
    args = arguments(name, measure, torch.float64, columns, eps)
    wanted, pushed = ops.push(**args, seed=3, pull_above=above)
    args = to_gpu(args)
    got = [ops.push(**args, seed=3, pull_above=above) for _ in range(3)]
    assert close(got[0][0], wanted, TOLERANCE[torch.float64])
    assert torch.equal(got[0][1].cpu(), pushed)
    assert torch.equal(got[0][0], got[1][0])
    assert torch.equal(got[0][0], got[2][0])


@pytest.mark.parametrize(
    ('length', 'restarts'), [(0, 1), (1, 1), (2, 1), (2, 3), (1, 50)]
)
@pytest.mark.parametrize('name', [*UNDIRECTED, 'random', 'directed', 'big'])
def test_walks(name, length, restarts):
    graph = graph_of(name).to(GPU)
    walks = disjoint_walks(graph, length, restarts, seed=5)  # checks them
    assert walks.ptr.device == walks.node.device == torch.device(GPU)
    again = disjoint_walks(graph, length, restarts, seed=5)
    assert torch.equal(walks.node, again.node)
    assert torch.equal(walks.ptr, again.ptr)
    bounds, nodes = walks.ptr.tolist(), walks.node.tolist()
    rowptr, col = (t.cpu() for t in graph.receivers())
    for a, b in list(pairwise(bounds))[:500]:
        for i in range(a + 1, b):
            assert any(
                nodes[i] in col[rowptr[u] : rowptr[u + 1]]
                for u in {nodes[i - 1], nodes[a]}
            )


def test_empty_inputs():
    graph = make_graph('no_edges').to(GPU)
    for columns in (0, 2):
        x = torch.ones(3, columns, device=GPU)
        z = F.propagate(graph, x, F.ppr(0.2))
        assert z.shape == x.shape
        z = F.propagate(graph, x, F.ppr(0.2), eps=0.1, seed=0)
        assert z.shape == x.shape


# Python ######################################################################


def test_another_stream_and_many_runs():
    # Memory that is handed out again too early would show.
    args = arguments('big', F.appnp(0.3, K=4), torch.float32, 40, 0.01)
    args = to_gpu(args)
    wanted, _ = ops.push(**args, seed=3)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results = [ops.push(**args, seed=3)[0] for _ in range(10)]
    stream.synchronize()
    assert all(torch.equal(result, wanted) for result in results)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
def test_the_device_of_the_tensors_counts():
    assert torch.cuda.current_device() == 0
    results = []
    for device in ('cuda:0', 'cuda:1'):
        graph = graph_of('big').to(device)
        x = torch.ones(graph.num_nodes, 20, device=device)
        z = F.propagate(graph, x, F.ppr(0.2), eps=1e-4, seed=1)
        walks = disjoint_walks(graph, 2, 1, seed=1)
        assert z.device == walks.node.device == torch.device(device)
        results.append((z.cpu(), walks.node.cpu()))
        assert torch.cuda.current_device() == 0
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    graph = graph_of('random').to('cuda:1')
    weights = torch.ones(2, dtype=torch.float64)
    recv = graph.degree_power(0, torch.float32)
    x = torch.ones(40, 2, device='cuda:0')
    with pytest.raises(ValueError, match='device of the other tensors'):
        ops.propagate(*graph.receivers(), x, recv, recv, weights)
