"""Ranks that hold something else: refused by all, before anything is written.

Whatever two processes can disagree about, one of them is given another one
of it. A test fails if any of them goes on, or waits for the others' timeout.
"""

import needs
import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import MEASURE, features, part_of, together
from ranks import graph as graph

from pyg_trust import distributed
from pyg_trust.agp import out_of_core
from pyg_trust.agp.halo import propagate_halo
from pyg_trust.agp.measures import appnp, ppr
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.agp.propagation import propagate
from pyg_trust.distributed import check_same, run_over_ranks
from pyg_trust.graph import CSRGraph

pytestmark = needs.ranks

# One's own, and what is told of the other's.
FAILURES = (OSError, RuntimeError, TypeError, ValueError)


def test_files_of_ranks_that_disagree(tmp_path, graph):
    x = features(8)
    rows, cols = graph.to_edge_index()[0]
    keep = (rows != rows[0]) & (cols != rows[0])
    other = CSRGraph.from_edge_index(torch.stack([rows, cols])[:, keep], 300)
    # As many edges and the same degrees: only what they are is another.
    turned = CSRGraph(
        graph.rowptr, graph.col, perm=torch.zeros(graph.num_edges).long()
    )
    name = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    moved = CSRGraph.from_edge_index(name[torch.stack([rows, cols])], 300)
    bad = x.clone()
    bad[7, 3] += 1e-6
    nan = x.clone()
    nan[7, 3] = torch.nan
    (tmp_path / 'own').mkdir()
    np.save(tmp_path / 'x.npy', x.numpy())
    np.save(tmp_path / 'own' / 'x.npy', x.numpy())
    np.save(tmp_path / 'bad.npy', bad.numpy())
    out = tmp_path / 'z.npy'
    wanted = propagate(graph, x, MEASURE)

    def work(rank):
        def run(given=graph, signal=x, measure=MEASURE, to=out, **more):
            return propagate_to(
                to, given, signal, measure, **{'over_ranks': True, **more}
            )

        def one(good, wrong):
            return wrong if rank else good

        def refused(match, *arguments, **more):
            with pytest.raises(FAILURES, match=match):
                run(*arguments, **more)
            assert not list(tmp_path.glob('z.npy*')), match

        refused("'graph'.*rank 1", one(graph, other))
        refused("'graph'.*rank 1", one(graph, moved))
        refused("'x'.*rank 1", graph, one(x, bad))
        refused("'x'.*rank 1", graph, one(x, x.double()))
        refused("'x'.*rank 1", graph, one(x, x[:, :7]))
        refused("'x'.*rank 1", graph, one(tmp_path / 'x.npy', bad))
        refused(
            "'x'.*rank 1", graph, one(tmp_path / 'x.npy', tmp_path / 'bad.npy')
        )
        refused("'measure'", measure=one(MEASURE, appnp(0.1 + 1e-9)))
        refused("'measure'", measure=one(MEASURE, ppr(0.1)))
        refused("'half'", half=bool(rank))
        refused("'tol'", tol=one(0.0, 1e-3))
        refused("'columns'", columns=one(4, 3))
        # What one alone finds out is told to the other.
        refused('no file', graph, one(x, tmp_path / 'gone.npy'))
        refused('no folder', to=one(out, tmp_path / 'gone' / 'z.npy'))
        refused("'memory'", memory=one('1GB', 1000))
        refused('needs to be a CSRGraph', one(graph, 'graph'))
        # Of another folder, or of one that somebody left there.
        with pytest.raises(FAILURES, match='share'):
            run(to=one(out, tmp_path / 'own' / 'z.npy'))
        if rank:
            compute = out_of_core._compute
            out_of_core._compute = lambda *_: 1 / 0
            with pytest.raises(ZeroDivisionError):
                run(to=tmp_path / 'own' / 'z.npy', over_ranks=False)
            out_of_core._compute = compute
        with pytest.raises(FAILURES, match='share'):
            run(to=one(out, tmp_path / 'own' / 'z.npy'))
        # What shows while they compute.
        with pytest.raises(FAILURES, match='finite'):
            run(graph, nan, columns=4)
        assert not out.exists()
        # The same in other words is the same.
        dist.barrier()
        for signal in (
            tmp_path / 'x.npy',
            one(x, tmp_path / 'x.npy'),
            one(tmp_path / 'own' / 'x.npy', tmp_path / 'x.npy'),
            one(np.load(tmp_path / 'x.npy', mmap_mode='r'), x.numpy()),
        ):
            z = run(one(graph, turned), signal, memory=one('1GB', 60_000))
            assert torch.equal(z, wanted)
            dist.barrier()

    together(2, tmp_path, work)


def test_parts_of_graphs_that_are_not_one(tmp_path, graph):
    whole = graph.with_self_loops()
    x = features(3)
    borders = [0, 130, 300]
    wanted = propagate(graph, x, MEASURE)

    def work(rank):
        begin, end = borders[rank : rank + 2]
        part = part_of(whole, borders, rank)

        def refused(match, graph=part, signal=x, measure=MEASURE):
            with pytest.raises(FAILURES, match=match):
                propagate_halo(graph, signal[begin:end], measure)

        def one(good, wrong):
            return wrong if rank else good

        # Rank 1 has another graph: an edge more, less, or elsewhere.
        cut = (part.col < begin) | (part.col >= end)
        at = int(cut.nonzero()[0])
        row = int(torch.searchsorted(part.rowptr, at, right=True)) - 1
        fewer = part._replace(
            rowptr=part.rowptr - (torch.arange(end - begin + 1) > row).long(),
            col=torch.cat([part.col[:at], part.col[at + 1 :]]),
        )
        refused('undirected', one(part, fewer))
        swapped = part.col.clone()
        free = next(
            node
            for node in range(300)
            if node
            not in part.col[part.rowptr[row] : part.rowptr[row + 1]].tolist()
        )
        swapped[at] = free
        for k in range(end - begin):
            first, last = part.rowptr[k : k + 2].tolist()
            swapped[first:last] = swapped[first:last].sort().values
        refused('undirected', one(part, part._replace(col=swapped)))
        bare = graph if rank else whole
        refused('self-loop', part_of(bare, borders, rank))
        # Rows that are none.
        refused('ascends', one(part, part._replace(rowptr=part.rowptr + 1)))
        wild = part.rowptr.clone()
        wild[3] = 10**12
        refused('ascends', one(part, part._replace(rowptr=wild)))
        for value in (-1, 300, 2**40):
            far = part.col.clone()
            far[at] = value
            refused("'col'", one(part, part._replace(col=far)))
        falling = part.col.flip(0)
        refused('ascending', one(part, part._replace(col=falling)))
        refused("'num_nodes'", one(part, part._replace(num_nodes=301)))
        # Another way to compute.
        refused("'measure'", measure=one(MEASURE, appnp(0.2)))
        refused("'x'", signal=one(x, x[:, :2]))
        refused("'x'", signal=one(x, x.double()))
        refused('finite', signal=one(x, x / 0))
        z = propagate_halo(part, x[begin:end], MEASURE)
        assert torch.equal(z, wanted[begin:end])

    together(2, tmp_path, work)


def test_other_versions_and_items_are_refused(tmp_path):
    def work(rank):
        with pytest.raises(ValueError, match=r"'items'.*rank"):
            run_over_ranks(range(7 + rank), str)
        with pytest.raises(ValueError, match=r"'items'.*rank"):
            run_over_ranks(range(8 - rank), str)
        check_same({'seed': 3})
        # Who can't take part says so; the others do not wait.
        failed = OSError('no disk') if rank else None
        with pytest.raises(FAILURES, match='no disk'):
            check_same({'seed': 3}, failed)
        if rank:
            distributed.__version__ = '0.0.1'
        with pytest.raises(ValueError, match=r"'version'.*0\.0\.1"):
            check_same({'seed': 3})
        with pytest.raises(ValueError, match=r"'version'.*0\.0\.1"):
            check_same({})

    together(2, tmp_path, work)
    with pytest.raises(OSError, match='disk'):
        distributed.check_same({}, OSError('disk'))
