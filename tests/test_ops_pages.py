"""Working memory that calls leave to the calls after them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pyg_trust import ops
from pyg_trust.agp.measures import appnp
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph

MEASURE = appnp(0.1, K=4)


@pytest.fixture(scope='module')
def graph():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(200_000, (2, 200_000), generator=generator)
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    return CSRGraph.from_edge_index(edge_index, 200_000, duplicates='keep')


def test_what_is_left_in_memory_is_in_no_result(graph):
    # Wide, narrow, wide; levels of four bytes and of two; a bigger graph.
    path = torch.arange(400_000)
    edge_index = torch.stack([path, path.roll(1)])
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    longer = CSRGraph.from_edge_index(edge_index, 400_000)
    calls = []
    for some, columns, half in [
        *((graph, 16, False), (graph, 7, False), (graph, 16, True)),
        *((longer, 16, False), (graph, 64, False), (graph, 1, False)),
    ]:
        calls.append((some, torch.rand(some.num_nodes, columns), half))
    calls.append((graph, torch.full((graph.num_nodes, 16), 1e30), False))
    calls.append(calls[0])
    wanted = [propagate(a, x, MEASURE, half=half) for a, x, half in calls]
    with ops.kept_pages(), ops.kept_pages():
        for (a, x, half), z in zip(calls, wanted, strict=True):
            assert torch.equal(propagate(a, x, MEASURE, half=half), z)


def test_threads_do_not_share_a_piece(graph):
    xs = [torch.rand(graph.num_nodes, 16) for _ in range(8)]
    wanted = [propagate(graph, x, MEASURE) for x in xs]
    with ops.kept_pages(), ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda x: propagate(graph, x, MEASURE), xs * 4)
        for z, right in zip(made, wanted * 4, strict=True):
            assert torch.equal(z, right)


GROWTH = """
import sys
import torch
torch.set_num_threads(1)
from pyg_trust import ops
from pyg_trust.agp import appnp, propagate
from pyg_trust.graph import CSRGraph

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * 4096 / 1e6

n = 400_000
graph = CSRGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), n)
x = torch.rand(n, 16)
measure = appnp(0.1, K=4)
narrow = x[:, :8].contiguous()
for _ in range(2):
    propagate(graph, x, measure)
    propagate(graph, narrow, measure)
start = resident()
with ops.kept_pages():
    for _ in range(3):
        # Narrower pieces are cut from what is there: none is added.
        propagate(graph, x, measure)
        propagate(graph, narrow, measure)
    print(resident() - start)
    try:
        with ops.kept_pages():
            raise KeyError
    except KeyError:
        pass
    print(resident() - start)
for _ in range(2):
    with ops.kept_pages():
        # What is too small goes.
        propagate(graph, narrow, measure)
        propagate(graph, x, measure)
print(resident() - start)
propagate(graph, x, measure)
print(resident() - start)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_no_more_is_kept_than_a_call_needs_and_none_at_the_end():
    done = subprocess.run(
        [sys.executable, '-c', GROWTH],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            'OMP_NUM_THREADS': '1',
            # Else the C library keeps what was given back.
            'MALLOC_MMAP_THRESHOLD_': '100000',
        },
    )
    assert done.returncode == 0, done.stderr
    kept, inside, after, later = map(float, done.stdout.split())
    # A level is 25.6 MB; the other lies in z.
    assert 20 < kept < 38
    assert 20 < inside < 38
    assert max(after, later) < 13
