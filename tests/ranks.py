"""Ranks as forked processes of one group, and what they work on."""

import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pyg_trust.agp.halo import HaloGraph
from pyg_trust.agp.measures import appnp
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.graph import CSRGraph

MEASURE = appnp(0.1)


def start(size, folder, work, name='group'):
    """Forks processes of one group; their ids."""
    children = []
    sys.stdout.flush()
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            torch.set_num_threads(1)
            dist.init_process_group(
                'gloo',
                init_method=f'file://{folder / name}',
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=40),
            )
            work(rank)
            code = 0
        except BaseException as error:
            (folder / f'error-{name}-{rank}').write_text(repr(error))
        finally:
            os._exit(code)
    return children


def codes(children):
    return [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]


def together(size, folder, work, name='group'):
    ended = codes(start(size, folder, work, name))
    errors = [path.read_text() for path in folder.glob('error-*')]
    assert ended == [0] * size, errors


@pytest.fixture(scope='module')
def graph():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(300, (2, 900), generator=generator)
    pairs = torch.cat([pairs, pairs.flip(0)], 1)
    return CSRGraph.from_edge_index(pairs, 300, duplicates='merge')


def part_of(whole, borders, rank):
    """The rows from one border to the next, as a rank holds them."""
    begin, end = borders[rank : rank + 2]
    first, last = whole.rowptr[[begin, end]].tolist()
    return HaloGraph(
        whole.rowptr[begin : end + 1] - first,
        whole.col[first:last],
        begin,
        whole.num_nodes,
    )


def propagate_there(folder):
    """Propagates the graph and the features in a folder, over the ranks."""
    return propagate_to(
        folder / 'z.npy',
        CSRGraph.load(folder / 'graph', mmap=True),
        folder / 'x.npy',
        MEASURE,
        columns=2,
        over_ranks=True,
    )


def features(columns=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(300, columns, generator=generator)
