import pytest
import torch
from laws import as_lists
from pushes import Stream

from pyg_trust import ops
from pyg_trust.testing import UNDIRECTED, make_graph


def walk_reference(rowptr, col, roots, walk_length, restarts, seed):
    """DRW and DRW-R in plain Python, with the streams of the C++ kernel.

    Where four tries find no unclaimed neighbour, they are listed; the list of
    a root lasts until its last walk, and claimed nodes are struck off it.
    """
    rowptr, col = rowptr.tolist(), col.tolist()
    order, stream = roots.tolist(), Stream(seed, 0)
    for i in range(len(order) - 1):
        j = i + stream.below(len(order) - i)
        order[i], order[j] = order[j], order[i]
    claimed, subgraphs = set(), []

    def step(u, stream, lists):
        row = col[rowptr[u] : rowptr[u + 1]]
        if u not in lists and row:
            for _ in range(4):
                v = row[stream.below(len(row))]
                if v not in claimed:
                    return v
        open_ = lists.setdefault(u, [v for v in row if v not in claimed])
        while open_:
            i = stream.below(len(open_))
            v = open_[i]
            open_[i] = open_[-1]
            open_.pop()
            if v not in claimed:
                return v
        return None

    for root in order:
        if root in claimed:
            continue
        stream, lists = Stream(seed, 1, root), {}
        subgraph = [root]
        claimed.add(root)
        for _ in range(restarts):
            v = root
            for _ in range(walk_length):
                v = step(v, stream, lists)
                if v is None:
                    break
                claimed.add(v)
                subgraph.append(v)
        subgraphs.append(subgraph)
    return subgraphs


def arguments(name='random', length=2, restarts=1, seed=3):
    graph = make_graph(name)
    rowptr, col = graph.receivers()
    roots = torch.arange(graph.num_nodes).flip(0)
    return rowptr, col, roots, length, restarts, seed


@pytest.mark.parametrize('seed', [0, 5, 2**63 - 1])
@pytest.mark.parametrize(
    ('length', 'restarts'),
    [(0, 1), (1, 1), (2, 1), (1, 2), (2, 3), (7, 1), (1, 50)],
)
@pytest.mark.parametrize('name', [*UNDIRECTED, 'random', 'directed'])
def test_equals_the_reference(name, length, restarts, seed):
    args = arguments(name, length, restarts, seed)
    assert as_lists(*ops.disjoint_walks(*args)) == walk_reference(*args)


def test_restricted_roots_equal_the_reference():
    rowptr, col, _, *numbers = arguments(length=2, restarts=2)
    roots = torch.tensor([7, 3, 30, 12, 1, 0])
    args = (rowptr, col, roots, *numbers)
    assert as_lists(*ops.disjoint_walks(*args)) == walk_reference(*args)


@pytest.mark.parametrize('seed', range(3))
def test_the_list_of_a_root_outlives_what_later_walks_claim(seed):
    # In a complete graph the root's tries fail soon, and its list of free
    # neighbours is made once: the walks after it claim most of what it names.
    n = 40
    col = torch.arange(n).repeat(n).view(n, n)
    col = col[~torch.eye(n, dtype=torch.bool)].int()
    rowptr = torch.arange(0, n * n, n - 1)[: n + 1]
    args = (rowptr, col, torch.arange(n), 3, n, seed)
    subgraphs = as_lists(*ops.disjoint_walks(*args))
    assert sorted(v for part in subgraphs for v in part) == list(range(n))
    assert subgraphs == walk_reference(*args)


def test_no_roots():
    rowptr, col, roots, *numbers = arguments()
    ptr, node = ops.disjoint_walks(rowptr, col, roots[:0], *numbers)
    assert ptr.tolist() == [0]
    assert node.tolist() == []


def test_a_hub_does_not_scan_its_row_again_and_again():
    # Every walk from the hub but the first ones fails its tries at last; time
    # is that of the edges, or this would take hours.
    n = 1_000_000
    leaves = torch.arange(1, n)
    col = torch.cat([leaves, torch.zeros(n - 1, dtype=torch.int64)]).int()
    degree = torch.ones(n + 1, dtype=torch.int64)
    degree[0], degree[1] = 0, n - 1
    ptr, node = ops.disjoint_walks(
        degree.cumsum(0), col, torch.tensor([0]), 1, n, 0
    )
    assert ptr.tolist() == [0, n]
    assert node.sort().values.equal(torch.arange(n))


def test_threads_do_not_matter(threads):
    args = arguments()
    threads(1)
    one = ops.disjoint_walks(*args)
    threads(4)
    four = ops.disjoint_walks(*args)
    assert one[0].equal(four[0])
    assert one[1].equal(four[1])


@pytest.mark.parametrize('name', ['random', 'no_edges'])
def test_opcheck(name):
    op = torch.ops.pyg_trust.disjoint_walks.default
    torch.library.opcheck(op, arguments(name), test_utils='test_schema')
