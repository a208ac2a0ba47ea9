"""The CUDA kernels without a GPU: their bodies, run by threads of the host.

``csrc/device`` holds all of the kernels but how they are launched. Here they
run on the machine of ``emulation.cpp``, with threads one after the other in
several orders, and together; every result is compared with the CPU's op, with
brute force or with an exact law.
"""

import ctypes
import math
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import needs
import pytest
import torch
from laws import distance, law_of, oracle_cases, outcome, p_value, rows_of
from pushes import close, power_law, push_arguments
from scipy import stats
from torch import Tensor

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.agp.propagation import push_levels
from pyg_trust.graph import CSRGraph
from pyg_trust.testing import UNDIRECTED, dense_operator, make_graph

# All of it compiles the emulation first: where sources have changed.
pytestmark = pytest.mark.sources('csrc/', 'tests/emulation')

HERE = Path(__file__).resolve().parent
UP, DOWN, SHUFFLED, THREADS = range(4)
ORDERS = (UP, DOWN, SHUFFLED, THREADS)
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(scope='module')
def host(tmp_path_factory):
    """The emulation, compiled."""
    cxx = needs.compiler()
    if cxx is None:
        pytest.skip('needs a C++ compiler')
    library = tmp_path_factory.mktemp('emulation') / 'emulation.so'
    command = [
        *(cxx, '-std=c++20', '-O1', '-g0', '-Wall', '-Wextra', '-Werror'),
        *('-Wno-psabi', '-ffp-contract=off', '-fPIC', '-shared', '-pthread'),
        f'-I{HERE.parent / "csrc"}',
        str(HERE / 'emulation.cpp'),
        *('-o', str(library)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Emulation(ctypes.CDLL(str(library)))


@pytest.mark.sources('csrc/device/')
@pytest.mark.parametrize('sanitizer', ['thread', 'address,undefined'])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    cxx = needs.compiler()
    if cxx is None:
        pytest.skip('needs a C++ compiler')
    program = tmp_path / 'emulation'
    command = [
        *(cxx, '-std=c++20', '-O1', '-g', '-Wno-psabi', '-pthread'),
        *(f'-fsanitize={sanitizer}', '-fno-sanitize-recover=all'),
        *(f'-I{HERE.parent / "csrc"}', str(HERE / 'emulation_main.cpp')),
        *('-o', str(program)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and 'cannot find -l' in done.stderr:
        pytest.skip(f'the compiler has no -fsanitize={sanitizer}')
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def pointer(tensor):
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def layout(graph):
    """The graph of a push, in the order of its C++ fields."""
    rowptr, col, group_ptr, group_end, scale = graph
    return rowptr, col, scale, group_ptr, group_end


def name_of(dtype):
    return {torch.float32: 'float', torch.float64: 'double'}[dtype]


class Emulation:
    """The ops of :mod:`pyg_trust.ops`, on the host's machine."""

    def __init__(self, library):
        self.library = library

    def call(self, name, order, tensors, numbers, real):
        """Call with a graph and tensors, numbers and a real number."""
        at = (ctypes.c_void_p * len(tensors))(*map(pointer, tensors))
        whole = (ctypes.c_int64 * len(numbers))(*numbers)
        function = getattr(self.library, name)
        return function(ctypes.c_int(order), at, whole, ctypes.c_double(real))

    def push(
        self,
        order,
        graph,
        receivers,
        recv,
        send,
        x,
        eps,
        ratio,
        keep,
        seed,
        first=0,
        pull_above=math.inf,
    ):
        z = torch.full_like(x, math.nan)
        size = ops.block_size(x.dtype)
        pushed = torch.zeros((x.size(1) + size - 1) // size).long()
        tensors = (*layout(graph), *receivers, recv, send, x, eps, z)
        self.call(
            *(f'push_{name_of(x.dtype)}', order),
            (*tensors, ratio, keep, pushed),
            (*x.shape, len(ratio), seed, first),
            pull_above,
        )
        return z, pushed

    def disjoint_walks(
        self, order, rowptr, col, roots, walk_length, restarts, seed
    ):
        ptr = torch.full((len(roots) + 1,), -1)
        node = torch.full((len(rowptr) - 1,), -1)
        counts = torch.zeros(3, dtype=torch.int64)
        given = [
            pointer(a) if isinstance(a, Tensor) else ctypes.c_int64(a)
            for a in (
                *(rowptr, col, len(rowptr) - 1, roots, len(roots)),
                *(walk_length, restarts, seed, ptr, node, counts),
            )
        ]
        self.library.disjoint_walks(ctypes.c_int(order), *given)
        count, size, rounds = counts.tolist()
        return ptr[: count + 1], node[:size], rounds


GRAPHS = (*UNDIRECTED, 'random', 'directed')
BIG = power_law(3000, 9000)  # its hub has more entries than kLongest


def graph_of(name):
    return BIG if name == 'big' else make_graph(name)


def arguments(name, measure, dtype=torch.float64, columns=3, density=1.0):
    graph = graph_of(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(
        2, graph.num_nodes, columns, generator=generator, dtype=torch.float64
    )
    x = torch.where(x[1] < density, x[0] - 0.3, 0.0)
    return push_arguments(graph, measure, x.to(dtype))


# No round numbers: with alpha = 0.3, ten residues of one quantum each make a
# mass of 10 * 0.7, which a neighbour of degree 7 divides to 1 +- rounding:
# sent as it is, or sampled.
MEASURES = {
    'ppr': F.ppr(0.2937, K=3),
    'appnp': F.appnp(0.2937, K=3),
    'target': F.single_target(0.2937, K=3),
    'katz': F.Measure(0.0, 0.0, (1.0, 0.1, 0.01)),
    'odd': F.Measure(0.2, 0.9, (1, 0, 2)),
}


# Pushes ######################################################################


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('mass', [1e-3, 0.4, 1.0, 3.7, 900.0, math.inf])
@pytest.mark.parametrize('name', ['big', 'directed', 'star'])
def test_parts_of_a_push_are_the_push(host, name, mass, dtype):
    for a in (0.0, 0.5, 1.0):
        graph = graph_of(name).push_graph(a, dtype)
        nodes = graph.rowptr.numel() - 1
        for seed in range(3):
            for at_once in (1, 7, 128):
                numbers = (nodes, seed, at_once)
                assert host.call(
                    f'parts_{name_of(dtype)}', 0, layout(graph), numbers, mass
                )


@pytest.mark.parametrize('columns', [1, 3, 8, 13, 40])
@pytest.mark.parametrize('eps', [1e-3, 0.03, 1.0])
@pytest.mark.parametrize('measure', list(MEASURES))
@pytest.mark.parametrize('name', ['random', 'directed', 'star', 'big'])
def test_push_samples_what_the_cpu_samples(host, name, measure, eps, columns):
    args = arguments(name, MEASURES[measure], columns=columns)
    args['eps'] = torch.linspace(eps, 2 * eps, columns, dtype=torch.float64)
    numbers = {'seed': 11, 'first': 5}
    wanted, pushed = ops.push(**args, **numbers)
    results = {
        order: host.push(order, **args, **numbers)
        for order in (DOWN, SHUFFLED)
    }
    for got, count in results.values():
        # One point more or less would be an error of about eps.
        assert close(got, wanted, 1e-11)
        assert torch.equal(count, pushed)
    assert torch.equal(results[DOWN][0], results[SHUFFLED][0])


@pytest.mark.parametrize('name', ['random', 'big'])
@pytest.mark.parametrize('columns', [1, 4, 21])
def test_push_is_repeatable_in_float32(host, name, columns):
    args = arguments(name, F.appnp(0.2, K=5), torch.float32, columns)
    args['eps'] = torch.full((columns,), 0.05)
    one, _ = host.push(UP, **args, seed=3)
    for order in (DOWN, SHUFFLED, THREADS):
        again, _ = host.push(order, **args, seed=3)
        assert torch.equal(again, one)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('columns', [1, 3, 5, 37])
@pytest.mark.parametrize('name', ['random', 'directed', 'big'])
def test_pulled_levels_are_exact(host, name, columns, dtype):
    measure = F.Measure(0.3, 0.8, (1, 2, 3, 4))
    args = arguments(name, measure, dtype, columns)
    args['eps'] = torch.full((columns,), 1e-9, dtype=dtype)
    got, pushed = host.push(SHUFFLED, **args, seed=1, pull_above=0.0)
    assert (pushed == 0).all()
    got = got.double() * sum(measure.weights)
    if name == 'big':
        wanted = ops.propagate(
            *args['receivers'],
            *(args[part].double() for part in ('x', 'recv', 'send')),
            torch.tensor(measure.weights, dtype=torch.float64),
        )
    else:
        wanted = dense_operator(graph_of(name), measure)
        wanted = wanted @ args['x'].double()
    assert close(got, wanted, 2e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize('columns', [1, 3, 20])
@pytest.mark.parametrize('measure', ['ppr', 'appnp', 'target', 'katz', 'odd'])
def test_the_same_levels_are_pulled_as_on_the_cpu(host, measure, columns):
    counts = set()
    for density in (0.001, 0.1, 1.0):
        args = arguments('big', MEASURES[measure], DTYPES[1], columns, density)
        norms = args['x'].abs().sum(0)
        for eps, above in ((1e-6, 1.0), (1e-4, 0.1), (1e-3, 1.0), (1e-2, 1.0)):
            args['eps'] = eps * norms
            numbers = {'seed': len(counts), 'first': 3, 'pull_above': above}
            wanted, pushed = ops.push(**args, **numbers)
            got, count = host.push(SHUFFLED, **args, **numbers)
            assert torch.equal(count, pushed)
            assert close(got, wanted, 1e-11)
            counts.update(pushed.tolist())
    assert len(counts) >= 2  # the decision is not always the same


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('leaves', [11, 12])
def test_few_nodes_are_never_pulled(host, leaves, dtype):
    # From the hub to its leaves and back. Of 160 nodes, 11 are few.
    edges = torch.stack([torch.zeros(leaves).long(), torch.arange(leaves) + 1])
    edges = torch.cat([edges, edges.flip(0)], 1)
    graph = CSRGraph.from_edge_index(edges, 160)
    _, ratio, keep = push_levels(F.Measure(0.0, 0.0, (1.0, 1.0, 1.0)))
    ones = torch.ones(160, dtype=dtype)
    # The hub costs 16 + 8 * leaves, and all leaves 24 * leaves.
    above = 20 * leaves / (2 * leaves)
    assert (16 + 8 * leaves) < above * (2 * leaves) < 24 * leaves
    for columns in (1, 3):
        args = {
            'graph': graph.push_graph(0.0, dtype),
            'receivers': graph.receivers(),
            'recv': ones,
            'send': ones,
            'x': torch.zeros(160, columns, dtype=dtype),
            'eps': torch.zeros(columns, dtype=dtype),
            'ratio': ratio,
            'keep': keep,
            'seed': 0,
            'pull_above': above,
        }
        args['x'][0] = 1
        for push in (ops.push, lambda **rest: host.push(SHUFFLED, **rest)):
            z, pushed = push(**args)
            assert pushed.tolist() == [2 if leaves == 11 else 1]
            assert close(3 * z[0], torch.full((columns,), 1.0 + leaves), 1e-6)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('residues', ['first', 'pulled'])
def test_masses_are_rounded_as_on_the_cpu(host, residues, dtype):
    # A quantum is chosen such that the last bit of a centre's mass decides
    # whether its leaves are sent to as they are; then other points fall on its
    # other neighbours. All sums are of equal numbers, so in any order alike.
    centres = torch.arange(20)
    leaves = torch.stack([centres.repeat(3), torch.arange(20, 80)])
    others = torch.stack([centres.repeat(3), 80 + torch.arange(60) % 15])
    edges = torch.cat([leaves, others], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    graph = CSRGraph.from_edge_index(edges, 95)
    start, level = (leaves[1], 1) if residues != 'first' else (centres, 0)
    _, ratio, keep = push_levels(F.Measure(0.5, 0.5, (1.0, 0.7, 0.41)))
    args = {
        'graph': graph.push_graph(0.5, dtype),
        'receivers': graph.receivers(),
        'recv': graph.degree_power(-0.5, dtype),
        'send': graph.degree_power(-0.5, dtype),
        'ratio': ratio[: level + 1],
        'keep': keep[: level + 2],
        # More than the cost of all centres, less than that of all leaves.
        'pull_above': 60 * 20 / 240 if residues == 'pulled' else math.inf,
        'seed': 1,
    }
    patterns = set()
    for i, value in enumerate(torch.linspace(0.3, 0.9, 60).tolist()):
        x = torch.zeros(95, 1, dtype=dtype)
        x[start] = value
        # What a centre sends.
        sent = x[start[0]].double() * float(ratio[0]) * 6**-0.5
        if level == 1:
            sent *= 3 * float(ratio[1]) * 6**-0.5
        sent *= 1 + (i % 3 - 1) * torch.finfo(dtype).eps
        args |= {'x': x, 'eps': sent.to(dtype)}
        wanted, pushed = ops.push(**args)
        assert pushed.tolist() == [1]
        got, count = host.push(SHUFFLED, **args)
        assert torch.equal(count, pushed)
        assert close(got, wanted, 1e-14 if dtype == DTYPES[1] else 1e-6)
        patterns.add(tuple((wanted[80:, 0] != 0).tolist()))
    assert len(patterns) == 2


@pytest.mark.parametrize('power', [-200, 0, 200])
def test_fixed_point_has_the_range_of_its_numbers(host, power):
    args = arguments('random', F.appnp(0.3, K=3))
    scale = 2.0**power
    args['x'] = args['x'] * scale
    args['eps'] = torch.full((3,), 0.05 * scale, dtype=torch.float64)
    wanted, _ = ops.push(**args, seed=1)
    got, _ = host.push(SHUFFLED, **args, seed=1)
    assert close(got / scale, wanted / scale, 1e-12)


def test_fixed_point_says_when_numbers_overflow(host):
    args = arguments('random', F.Measure(0.0, 0.0, (1.0, 1.0, 1.0)))
    args['x'] = torch.full_like(args['x'], 1e308)
    args['eps'] = torch.full((3,), 1e307, dtype=torch.float64)
    got, _ = host.push(UP, **args, seed=1)
    assert not got.isfinite().all()


# Walks #######################################################################


def check_invariants(ptr, node, rowptr, col, roots, length, restarts):
    bounds, nodes = ptr.tolist(), node.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(nodes)
    assert len(set(nodes)) == len(nodes)  # disjoint
    assert set(roots.tolist()) <= set(nodes)  # every root is in one
    starts = set(roots.tolist())
    rows = [set(col[a:b].tolist()) for a, b in pairwise(rowptr.tolist())]
    for a, b in pairwise(bounds):
        assert 1 <= b - a <= 1 + length * restarts
        assert nodes[a] in starts
        # Every node follows the one before it, or the root.
        for i in range(a + 1, b):
            before = {nodes[i - 1], nodes[a]}
            assert any(nodes[i] in rows[u] for u in before)


@pytest.mark.parametrize('seed', [0, 5, 2**63 - 1])
@pytest.mark.parametrize(
    ('length', 'restarts'),
    [(0, 1), (1, 1), (2, 1), (1, 2), (2, 3), (7, 1), (1, 50), (2**31, 2**31)],
)
@pytest.mark.parametrize('name', [*GRAPHS, 'big'])
def test_walks_are_disjoint_and_bounded(host, name, length, restarts, seed):
    if name == 'big' and length > 2:
        length, restarts = 3, 4
    graph = graph_of(name)
    rowptr, col = graph.receivers()
    for roots in (
        torch.arange(graph.num_nodes).flip(0),
        torch.arange(graph.num_nodes)[::3].contiguous(),
    ):
        args = (rowptr, col, roots, length, restarts, seed)
        ptr, node, _ = host.disjoint_walks(UP, *args)
        check_invariants(ptr, node, rowptr, col, roots, length, restarts)
        for order in (DOWN, SHUFFLED, THREADS):
            again = host.disjoint_walks(order, *args)
            assert torch.equal(again[0], ptr)
            assert torch.equal(again[1], node)


RING = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 4))  # a 5-ring, a chord


def test_without_nodes_or_roots_there_are_no_walks(host):
    # A division by the number of nodes killed the process.
    none = torch.zeros(0, dtype=torch.int64)
    empty = torch.zeros(1, dtype=torch.int64), none.int()
    for rowptr, col in (empty, make_graph('random').receivers()):
        for order in ORDERS:
            found, node, rounds = host.disjoint_walks(
                order, rowptr, col, none, 3, 2, 0
            )
            assert found.tolist() == [0]
            assert node.numel() == rounds == 0


def sample_walks(host, rows, length, restarts, trials):
    """How often each set of subgraphs came."""
    col = torch.tensor([v for row in rows for v in row], dtype=torch.int32)
    sizes = torch.tensor([0, *map(len, rows)])
    roots = torch.arange(len(rows))
    count = Counter()
    for seed in range(trials):
        walks = host.disjoint_walks(
            SHUFFLED, sizes.cumsum(0), col, roots, length, restarts, seed
        )
        count[outcome(*walks[:2])] += 1
    return count


@pytest.mark.parametrize(
    ('edges', 'length', 'restarts', 'far'),
    [
        # How far the law in rounds is from that of one root after another:
        # docs/cuda.rst has these numbers.
        (RING, 1, 1, 0.0345),
        (RING, 2, 1, 0.0),
        (RING, 1, 2, 0.0),
        (RING, 2, 2, 0.0),
        (tuple((i, (i + 1) % 6) for i in range(6)), 1, 1, 0.1073),
        (tuple((i, (i + 1) % 6) for i in range(6)), 2, 1, 0.0),
        (((0, 1), (0, 2), (0, 3), (0, 4)), 1, 2, None),
    ],
)
def test_walks_in_rounds_have_the_law_that_is_claimed(
    host, edges, length, restarts, far
):
    rows = rows_of(edges)
    roots = tuple(range(len(rows)))
    law = law_of(rows, roots, length, restarts, rounds=True)
    sequential = law_of(rows, roots, length, restarts, rounds=False)
    if far is not None:
        assert abs(distance(law, sequential) - far) < 1e-4
    count = sample_walks(host, rows, length, restarts, 4000)
    # One false alarm in 10,000 runs of each.
    assert p_value(count, law) > 1e-4


def test_the_sequential_law_is_that_of_the_oracle(shared):
    for edges, roots, length, restarts, wanted in oracle_cases(shared):
        law = law_of(rows_of(edges), roots, length, restarts, False)
        assert distance(law, wanted) < 1e-12


@pytest.mark.parametrize('n', [20, 33, 34, 60, 200])
def test_a_walk_through_all_nodes_is_a_random_order(host, n):
    # In a complete graph every step is uniform among the nodes that are left.
    # Rows of more than 32 entries are tried, and read where the tries fail:
    # at the end nearly always.
    col = torch.tensor([v for u in range(n) for v in range(n) if v != u])
    rowptr = torch.arange(n + 1) * (n - 1)
    trials = 40 * n
    place = torch.zeros(5, n)  # who comes at the last five places
    after = torch.zeros(2)  # whether 1 comes before 2
    for seed in range(trials):
        ptr, node, _ = host.disjoint_walks(
            *(SHUFFLED, rowptr, col.int(), torch.tensor([0]), n - 1, 1, seed)
        )
        assert ptr.tolist() == [0, n]
        place[torch.arange(5), node[-5:]] += 1
        order = node.argsort()
        after[int(order[1] < order[2])] += 1
    wanted = trials / (n - 1)
    for count in place:
        chi2 = float(((count[1:] - wanted) ** 2 / wanted).sum())
        assert chi2 < stats.chi2.isf(1e-5, n - 2)
    assert abs(float(after[0]) - trials / 2) < 4.5 * math.sqrt(trials / 4)


def test_rows_that_are_read_give_every_open_entry_alike(host):
    # 60 to 10 of 599 entries are open: the tries often fail, and a thread of
    # the team then finds more than one. The rank of the one that is chosen
    # among those left is uniform.
    n, tail, trials = 600, 60, 600
    col = torch.arange(n).repeat(n, 1)
    col = col[~torch.eye(n, dtype=torch.bool)].int()
    rowptr = torch.arange(n + 1) * (n - 1)
    left = tail - torch.arange(tail - 10)
    later = torch.ones(tail, tail, dtype=torch.bool).triu(1)
    ranks = []
    for seed in range(trials):
        _, node, _ = host.disjoint_walks(
            *(SHUFFLED, rowptr, col, torch.tensor([0]), n - 1, 1, seed)
        )
        last = node[-tail:]
        below = ((last < last[:, None]) & later).sum(1)[: tail - 10]
        ranks.append((below + 0.5) / left)
    ranks = torch.stack(ranks).double()
    error = abs(ranks.mean().item() - 0.5)
    assert error < 4.5 / math.sqrt(12 * ranks.numel())
