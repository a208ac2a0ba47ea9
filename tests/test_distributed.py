"""Work over ranks: 2 and 4 processes on this machine, some of them killed."""

import itertools
import json
import os
import random
import signal
import time
from functools import partial

import needs
import numpy as np
import pytest
import torch
from ranks import (
    MEASURE,
    codes,
    features,
    part_of,
    propagate_there,
    start,
    together,
)
from ranks import graph as graph

from pyg_trust.agp import out_of_core
from pyg_trust.agp.halo import propagate_halo
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.agp.propagation import propagate
from pyg_trust.distributed import from_first, own_items, run_over_ranks
from pyg_trust.graph import CSRGraph

pytestmark = needs.ranks
# Each kill is a moment of its own: more of them see more moments.
KILLS = 4


def items(rank, folder):
    made = run_over_ranks(range(7), lambda item: torch.full((2,), item))
    assert [int(each[0]) for each in made] == list(range(7))
    assert from_first(lambda: rank) == 0
    assert from_first(lambda: rank, after=True) == 0
    (folder / f'own-{rank}').write_text(str(list(own_items(7))))

    def fails(item):
        if item == 5:
            raise ValueError('five')
        return item

    with pytest.raises((ValueError, RuntimeError), match='five'):
        run_over_ranks(range(7), fails)

    def first_fails():
        raise ValueError('no')

    with pytest.raises((ValueError, RuntimeError), match='no'):
        from_first(first_fails)


@pytest.mark.parametrize('size', [2, 4])
def test_items_over_ranks(size, tmp_path):
    together(size, tmp_path, partial(items, folder=tmp_path))
    owned = [json.loads(p.read_text()) for p in tmp_path.glob('own-*')]
    assert sorted(itertools.chain(*owned)) == list(range(7))


@pytest.mark.parametrize('size', [2, 4])
def test_columns_over_ranks_have_the_bits_of_one_process(
    size, tmp_path, graph
):
    graph.save(tmp_path / 'graph')
    x = features()
    np.save(tmp_path / 'x.npy', x.numpy())

    def work(rank):
        mapped = CSRGraph.load(tmp_path / 'graph', mmap=True)
        for columns, half in ((8, False), ('auto', True)):
            z = propagate_to(
                tmp_path / 'z.npy',
                mapped,
                tmp_path / 'x.npy',
                MEASURE,
                columns=columns,
                half=half,
                over_ranks=True,
            )
            assert torch.equal(z, propagate(graph, x, MEASURE, half=half))

    together(size, tmp_path, work)
    assert not list(tmp_path.glob('*.part*'))


def test_every_rank_does_its_share(tmp_path, graph):
    compute = out_of_core._compute

    def work(rank):
        count = []

        def counted(block, job):
            count.append(block.shape[1])
            return compute(block, job)

        out_of_core._compute = counted
        propagate_to(
            *(tmp_path / 'z.npy', graph, features(64), MEASURE),
            over_ranks=True,
        )
        (tmp_path / f'count-{rank}').write_text(str(sum(count)))

    together(2, tmp_path, work)
    for path in tmp_path.glob('count-*'):
        assert path.read_text() == '32'


@pytest.mark.sentinel(rows=1)
@pytest.mark.parametrize('size', [2, 4])
def test_killed_ranks_end_the_others_and_lose_nothing(size, tmp_path, graph):
    source = random.Random(size)
    graph.save(tmp_path / 'graph')
    x = features(48)
    np.save(tmp_path / 'x.npy', x.numpy())
    compute = out_of_core._compute

    def work(rank):
        def slow(block, job):
            time.sleep(0.01)
            return compute(block, job)

        out_of_core._compute = slow
        propagate_there(tmp_path)

    finished = set()
    for number in range(KILLS):
        children = start(size, tmp_path, work, f'group-{number}')
        time.sleep(0.05 + source.random() * 0.3)
        os.kill(source.choice(children), signal.SIGKILL)
        ended = codes(children)
        if (tmp_path / 'z.npy').exists():
            # All was done before the kill, or the whole of it by then.
            z = torch.from_numpy(np.load(tmp_path / 'z.npy'))
            assert torch.equal(z, propagate(graph, x, MEASURE))
            (tmp_path / 'z.npy').unlink()
            for left in tmp_path.glob('z.npy.part*'):
                left.unlink()
            finished = set()
            continue
        assert 0 not in ended, 'a rank went on alone'
        there = {path.name for path in tmp_path.glob('z.npy.part.done-*')}
        assert finished <= there
        finished = there
    for left in tmp_path.glob('error-*'):
        left.unlink()
    together(size, tmp_path, work, 'last')
    z = torch.from_numpy(np.load(tmp_path / 'z.npy'))
    assert torch.equal(z, propagate(graph, x, MEASURE))


@pytest.mark.parametrize('size', [1, 2, 4])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rows_with_halo_have_the_bits_of_one_process(
    size, dtype, tmp_path, graph
):
    whole = graph.with_self_loops()
    x = features(11).to(dtype)
    wanted = propagate(graph, x, MEASURE)
    borders = [0, *sorted(random.Random(size).sample(range(300), size - 1))]
    borders.append(300)

    def work(rank):
        begin, end = borders[rank : rank + 2]
        part = part_of(whole, borders, rank)
        z = propagate_halo(part, x[begin:end], MEASURE)
        assert torch.equal(z, wanted[begin:end])
        if size > 1:
            wrong = part._replace(start=begin + 1)
            with pytest.raises(ValueError, match='follow each other'):
                propagate_halo(wrong, x[begin:end], MEASURE)

    together(size, tmp_path, work)
