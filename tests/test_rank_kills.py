"""Ranks that are killed at random moments: 20 times each way.

The moment is so many finished pieces of work, whichever rank finished them,
and a random time after it, so that a slow machine sees as many of them as a
fast one. A message says which kill it was: all are drawn from one seed.
"""

import os
import random
import select
import signal
import time

import needs
import numpy as np
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

from pyg_trust.agp.halo import propagate_halo
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph._columns import ColumnFile

pytestmark = needs.ranks
KILLS = 20
SIZE = 2


def killed(folder, work, number, source):
    """Kills one of two ranks after some pieces; who, and how all ended."""
    end, other = os.pipe()

    def told(rank):
        os.close(end)
        os.write(other, b'1')  # a member of the group
        work(rank, lambda: os.write(other, b'1'))

    children = start(SIZE, folder, told, f'group-{number}')
    os.close(other)
    for _ in range(SIZE + source.choice([0, 0, 1, 2, 3, 5, 8, 11])):
        if not select.select([end], [], [], 60)[0] or not os.read(end, 1):
            break
    time.sleep(source.random() * 0.02)
    rank = source.randrange(SIZE)
    os.kill(children[rank], signal.SIGKILL)
    return rank, children, end


def test_columns_that_are_finished_stay(tmp_path, graph, monkeypatch):
    seed = 19
    source = random.Random(seed)
    graph.save(tmp_path / 'graph')
    x = features(24)
    np.save(tmp_path / 'x.npy', x.numpy())
    wanted = propagate(graph, x, MEASURE)
    write = ColumnFile.write

    def work(rank, acknowledge):
        def told(file, first, block):
            write(file, first, block)
            acknowledge()

        monkeypatch.setattr(ColumnFile, 'write', told)
        propagate_there(tmp_path)

    def finished():
        return {path.name for path in tmp_path.glob('z.npy.part.done-*')}

    there, ends, done = set(), [], 0
    for number in range(KILLS):
        where = f'kill {number} of seed {seed}'
        rank, children, end = killed(tmp_path, work, number, source)
        ended = codes(children)
        os.close(end)
        assert ended[rank] in (0, -signal.SIGKILL), where
        if (tmp_path / 'z.npy').exists():
            # The whole of it, whenever there is any.
            assert np.array_equal(np.load(tmp_path / 'z.npy'), wanted), where
            for left in tmp_path.glob('z.npy*'):
                left.unlink()
            there, done = set(), done + 1
            continue
        assert ended[1 - rank] == 1, f'{where}: a rank went on alone'
        error = tmp_path / f'error-group-{number}-{1 - rank}'
        ends.append(error.read_text())
        assert there <= finished(), f'{where}: a finished column is lost'
        there = finished()
    assert ends, 'no kill was in time'
    # Whoever is left says that it was the group.
    assert not [text for text in ends if 'Error' not in text], ends
    assert not [text for text in ends if 'Assertion' in text], ends

    def last(rank):
        monkeypatch.setattr(ColumnFile, 'write', write)
        z = propagate_there(tmp_path)
        assert torch.equal(z, wanted)

    for left in tmp_path.glob('error-*'):
        left.unlink()
    together(SIZE, tmp_path, last, 'last')


def test_rows_with_halo_are_right_or_an_error(tmp_path, graph):
    seed = 20
    source = random.Random(seed)
    whole = graph.with_self_loops()
    signals = [features(3) * (1 + k) for k in range(4)]
    wanted = [propagate(graph, x, MEASURE) for x in signals]
    borders = [0, 130, 300]

    def work(rank, acknowledge):
        begin, end = borders[rank : rank + 2]
        part = part_of(whole, borders, rank)
        while True:
            for x, z in zip(signals, wanted, strict=True):
                made = propagate_halo(part, x[begin:end], MEASURE)
                if not torch.equal(made, z[begin:end]):
                    os._exit(7)
                acknowledge()

    for number in range(KILLS):
        rank, children, end = killed(tmp_path, work, number, source)
        ended = codes(children)
        os.close(end)
        where = f'kill {number} of seed {seed}'
        assert ended[rank] == -signal.SIGKILL, where
        assert ended[1 - rank] == 1, f'{where}: {ended}'
        error = tmp_path / f'error-group-{number}-{1 - rank}'
        assert 'Error' in error.read_text(), where
        assert 'Assertion' not in error.read_text(), where
