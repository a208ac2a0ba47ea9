"""Random graphs and arguments through converters and ops, checked densely.

    python fuzzing.py SECONDS SEED

With a library built under sanitizers (``CXXFLAGS='-fsanitize=address,undefined
-fno-omit-frame-pointer' LDFLAGS='-fsanitize=address,undefined' python setup.py
build_ext --inplace --force``, run with ``LD_PRELOAD=$(gcc
-print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0``) it looks for what
no result shows. test_fuzzing.py runs it for a few seconds.
"""

import random
import sys
import time
import warnings

import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, to_undirected

from pyg_trust import agp as F
from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.graph import CSRGraph
from pyg_trust.sampler.walks import disjoint_walks
from pyg_trust.testing import dense_operator


def random_graph(source):
    """Empty, tiny or skewed; with isolated nodes and self-loops."""
    n = source.choice([1, 2, 3, 17, 64, 200, 700])
    m = source.choice([0, 1, n, 4 * n, 12 * n])
    generator = torch.Generator().manual_seed(source.getrandbits(40))
    power = source.choice([1, 1, 3, 8])  # of hubs
    ends = torch.rand(2, m, generator=generator).pow(power)
    edge_index = (ends * n).long()
    if source.random() < 0.5:
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    if source.random() < 0.7:
        edge_index = to_undirected(edge_index, num_nodes=n)
    edge_index = coalesce(edge_index, num_nodes=n)
    order = torch.randperm(edge_index.size(1), generator=generator)
    return edge_index[:, order], n


def converters(source, edge_index, n):
    graph = CSRGraph.from_edge_index(edge_index, n)
    dense = torch.zeros(n, n).index_put_(
        tuple(edge_index.flip(0)), torch.ones(())
    )
    forms = [
        Data(edge_index=edge_index, num_nodes=n),
        dense.to_sparse_coo(),
        dense.to_sparse_csr(),
    ]
    for form in forms:
        other = CSRGraph.convert(form)
        assert torch.equal(other.rowptr, graph.rowptr)
        assert torch.equal(other.col, graph.col)
    back = graph.to_edge_index()[0]
    assert torch.equal(
        coalesce(back, num_nodes=n), coalesce(edge_index, num_nodes=n)
    )
    return graph


def propagation(source, graph):
    n = graph.num_nodes
    levels = source.choice([1, 2, 5])
    measure = source.choice(
        [
            F.transition(levels),
            F.hkpr(2.0, K=levels),
            F.single_target(0.2, K=levels),
            F.Measure(0.0, 1.0, (0.5,) * (levels + 1)),
        ]
    )
    if graph.is_undirected and source.random() < 0.5:
        measure = F.appnp(0.15, K=levels)
    dtype = source.choice([torch.float32, torch.float64])
    columns = source.choice([0, 1, 3, 8, 16, 33])
    x = torch.randn(n, columns, dtype=dtype)
    x[torch.rand(n) < source.random()] = 0
    exact = F.propagate(graph, x, measure)
    z = dense_operator(graph, measure) @ x.double()
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        exact.double(), z, rtol=tolerance, atol=tolerance
    )
    eps = 10.0 ** source.uniform(-7, 0)
    sampled = F.propagate(
        graph, x, measure, eps=eps, seed=1, force_push=source.random() < 0.7
    )
    assert sampled.shape == x.shape
    assert bool(sampled.isfinite().all())
    node = torch.randint(n, (source.choice([1, 2, 5]),))
    found = F.query(
        graph,
        node,
        measure,
        eps=eps,
        method=source.choice(['sample', 'prune']),
        seed=1,
        top_k=source.choice([None, 0, 1, 7]),
    )
    assert found.shape == (node.numel(), n)


def walks(source, graph):
    length, restarts = source.randrange(1, 5), source.randrange(1, 4)
    found = disjoint_walks(graph, length, restarts, seed=source.randrange(9))
    assert found.node.unique().numel() == found.node.numel()
    assert int(found.ptr.diff().max()) <= 1 + restarts * length


def certificates(source, edge_index, n):
    keep = edge_index[0] != edge_index[1]
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    edge_index = to_undirected(
        torch.cat([edge_index[:, keep], ring], 1), num_nodes=n
    )
    threat = ThreatModel(
        coalesce(edge_index, num_nodes=n),
        source.choice(['removals', 'both']),
        local_budget=torch.randint(0, 4, (n,)),
        num_nodes=n,
    )
    logits = torch.randn(n, 3, dtype=torch.float64)
    report = certify(logits, threat)
    assert bool((report.lower <= report.upper).all())


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    warnings.filterwarnings('ignore', 'Sparse CSR tensor support')
    source = random.Random(seed)
    torch.manual_seed(seed)
    end, cases = time.monotonic() + seconds, 0
    while cases == 0 or time.monotonic() < end:
        torch.set_num_threads(source.choice([1, 2]))
        edge_index, n = random_graph(source)
        graph = converters(source, edge_index, n)
        propagation(source, graph)
        walks(source, graph)
        if 3 < n < 100:
            certificates(source, edge_index, n)
        cases += 1
    sys.stdout.write(f'{cases} cases\n')


if __name__ == '__main__':
    main()
