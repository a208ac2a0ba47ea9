"""Rows, their files and their memory, against what 0.1.0 did with torch."""

import gzip
import itertools
import json
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from pyg_trust.agp.measures import pagerank
from pyg_trust.agp.propagation import propagate
from pyg_trust.files import DamagedFileError
from pyg_trust.graph import CSRGraph

# The graph as 0.1.0 made it ##################################################


def stable_rows(row, col, n):
    key, perm = (row * n + col).sort(stable=True)
    return key // n, key % n, perm


def starts(row, n):
    return torch.cat([row.new_zeros(1), row.bincount(minlength=n).cumsum(0)])


def transposed(row, col, n):
    other, perm = col.sort(stable=True)
    return starts(other, n), row[perm], perm


def undirected(row, col, weight, n):
    back, other, perm = transposed(row, col, n)
    return (
        torch.equal(back, starts(row, n))
        and torch.equal(other, col)
        and (weight is None or torch.equal(weight[perm], weight))
    )


def looped(row, col, n):
    missing = torch.ones(n, dtype=torch.bool)
    missing[row[row == col]] = False
    loops = missing.nonzero().view(-1)
    return stable_rows(torch.cat([row, loops]), torch.cat([col, loops]), n)


def edges(seed):
    """Directed or not, with duplicates, loops, hubs, or nothing."""
    source = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    n = source.choice([1, 2, 7, 60, 3000])
    m = source.choice([0, 1, 5, 200, 9000])
    pairs = torch.randint(n, (2, m), generator=generator)
    if source.random() < 0.4:  # a hub: rows that are sorted by digits
        pairs[0, : m // 2] = n // 2
    if source.random() < 0.5:
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
    pairs = pairs[:, torch.randperm(pairs.size(1), generator=generator)]
    weight = None
    if source.random() < 0.5:
        weight = torch.randint(3, (pairs.size(1),), generator=generator)
        weight = weight.float()
    return pairs, n, weight


@pytest.mark.parametrize('seed', range(40))
def test_rows_are_those_of_a_stable_sort(seed):
    pairs, n, weight = edges(seed)
    graph = CSRGraph.from_edge_index(
        pairs, n, weight, duplicates='keep', perm=True
    )
    row, col, perm = stable_rows(*pairs, n)
    assert torch.equal(graph.rowptr, starts(row, n))
    assert torch.equal(graph.col, col)
    assert torch.equal(graph.perm, perm)
    lean = CSRGraph.from_edge_index(pairs, n, duplicates='keep')
    assert lean.perm is None
    assert torch.equal(lean.col, col)
    ordered = None if weight is None else weight[perm]
    assert weight is None or torch.equal(graph.weight, ordered)
    assert graph.is_undirected == undirected(row, col, ordered, n)
    assert graph.has_self_loops == bool((row == col).any())

    same = (row.diff() == 0) & (col.diff() == 0)
    assert graph.has_duplicates == bool(same.any())
    if bool(same.any()):
        place = int(same.nonzero()[0]) + 1
        with pytest.raises(
            ValueError,
            match=f'{int(same.sum())} edges more than once .the first is '
            f'{int(row[place])} -> {int(col[place])}',
        ):
            CSRGraph.from_edge_index(pairs, n)
    first = torch.ones(len(row), dtype=torch.bool)
    first[1:] = ~same
    for kept in (None, weight):
        merged = CSRGraph.from_edge_index(
            pairs, n, kept, duplicates='merge', perm=True
        )
        assert torch.equal(merged.perm, perm[first])
        assert torch.equal(merged.rowptr, starts(row[first], n))
        assert torch.equal(merged.col, col[first])
        assert not merged.has_duplicates
    if weight is not None:
        group = first.cumsum(0) - 1
        total = torch.zeros(int(first.sum())).index_add_(0, group, ordered)
        assert torch.equal(merged.weight, total)

    back, other, _ = transposed(row, col, n)
    turned = lean.transpose()
    assert torch.equal(turned.rowptr, back)
    assert torch.equal(turned.col, other)
    assert torch.equal(graph.in_degree, back.diff())
    more, others, _ = looped(row, col, n)
    whole = lean.with_self_loops()
    assert torch.equal(whole.rowptr, starts(more, n))
    assert torch.equal(whole.col, others)
    assert whole.is_undirected == undirected(more, others, None, n)


@pytest.mark.parametrize('length', [2048, 2049, 2050, 6000])
def test_long_rows_are_sorted_by_all_of_their_digits(length):
    # Digits of 11 bits: targets differ in the third one too.
    n = 2**22 + 5000
    generator = torch.Generator().manual_seed(length)
    col = torch.randint(n, (length,), generator=generator)
    col[:600] = col[:600] % 5000 + 2**22
    col[600:900] = col[:300]
    row = torch.full_like(col, 7)
    graph = CSRGraph.from_edge_index(
        torch.stack([row, col]), n, duplicates='keep'
    )
    assert torch.equal(graph.col, col.sort().values)
    assert graph.rowptr[8] - graph.rowptr[7] == length


def test_rows_are_told_from_what_is_none():
    # Every array of three entries over two or three rows.
    def told(rowptr, col):
        n, m = len(rowptr) - 1, len(col)
        if (rowptr[0], rowptr[-1]) != (0, m) or sorted(rowptr) != rowptr:
            return 1
        if any(not 0 <= u < n for u in col):
            # The first entry that is wrong decides.
            bad = [not 0 <= u < n for u in col].index(True)
        else:
            bad = m
        for v in range(n):
            for e in range(rowptr[v] + 1, rowptr[v + 1]):
                if e < bad and col[e] < col[e - 1]:
                    return 3
        return 2 if bad < m else 0

    seen = set()
    for n in (2, 3):
        for inner in itertools.product(range(4), repeat=n - 1):
            rowptr = [0, *inner, 3]
            for col in itertools.product(range(-1, n + 1), repeat=3):
                found = torch.ops.pyg_trust.check_rows(
                    torch.tensor(rowptr), torch.tensor(col, dtype=torch.int32)
                )
                assert found == told(rowptr, list(col)), (rowptr, col)
                seen.add(found)
    assert seen == {0, 1, 2, 3}


# Files #######################################################################


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(500, (2, 4000), generator=generator)
    return CSRGraph.from_edge_index(pairs, 500, duplicates='merge')


def same(one, two):
    return (
        torch.equal(one.rowptr, two.rowptr)
        and torch.equal(one.col32, two.col32)
        and one.has_duplicates == two.has_duplicates
        and one.is_undirected == two.is_undirected
    )


def sources(folder, pairs):
    array = pairs.numpy()
    np.save(folder / 'wide.npy', array)
    yield folder / 'wide.npy'
    np.save(folder / 'tall.npy', np.ascontiguousarray(array.T).astype('i4'))
    yield str(folder / 'tall.npy')
    np.savez(folder / 'data.npz', edge_index=array, num_nodes_list=[500])
    yield folder / 'data.npz'
    np.savez_compressed(folder / 'small.npz', edge_index=array)
    yield folder / 'small.npz'
    text = ''.join(f'{u},{v}\n' for u, v in array.T)
    (folder / 'edges.csv').write_text(text)
    yield folder / 'edges.csv'
    with gzip.open(folder / 'edges.txt.gz', 'wt') as file:
        file.write('# comment\n\n' + text.replace(',', '\t'))
    yield folder / 'edges.txt.gz'
    np.save(folder / 'half.npy', array[:, :700])
    yield [folder / 'half.npy', pairs[:, 700:]]
    yield array
    yield lambda: iter([(array[0, :9], array[1, :9]), tuple(array[:, 9:])])


@pytest.mark.parametrize('undirected', [False, True])
@pytest.mark.parametrize('duplicates', ['merge', 'keep'])
@pytest.mark.parametrize('blocks', [False, True])
def test_every_source_makes_the_same_graph(
    tmp_path, duplicates, undirected, blocks
):
    generator = torch.Generator().manual_seed(1)
    pairs = torch.randint(500, (2, 9000), generator=generator)
    both = pairs
    if undirected:
        back = pairs[:, pairs[0] != pairs[1]].flip(0)
        both = torch.cat([pairs, back], 1)
    wanted = CSRGraph.from_edge_index(both, 500, duplicates=duplicates)
    # 36 (72) kB of rows; chunks take the rest of this.
    memory = 24 * 500 + 2**24 + 2**18 + (2**15 if blocks else 2**20)
    for number, source in enumerate(sources(tmp_path, pairs)):
        made = CSRGraph.from_edges(
            source,
            500,
            folder=tmp_path / str(number) if blocks else None,
            memory=memory,
            duplicates=duplicates,
            undirected=undirected,
        )
        assert same(made, wanted), source
        if blocks:
            again = CSRGraph.load(tmp_path / str(number), mmap=True)
            assert same(again, wanted)


def test_more_than_fits_needs_a_folder(tmp_path):
    pairs = torch.randint(500, (2, 300_000))
    with pytest.raises(ValueError, match=r"'memory'.*300000 edges.*'folder'"):
        CSRGraph.from_edges(pairs, 500, memory=17_500_000, duplicates='keep')
    CSRGraph.from_edges(
        pairs, 500, memory=17_500_000, duplicates='keep', folder=tmp_path
    )


def test_bad_edges_are_refused_and_leave_nothing(tmp_path):
    pairs = torch.tensor([[0, 1, 0], [1, 2, 1]])

    def refused(source, match, **more):
        with pytest.raises((TypeError, ValueError), match=match):
            CSRGraph.from_edges(source, 3, folder=tmp_path / 'g', **more)
        assert not any((tmp_path / 'g').glob('*')), source

    refused(pairs, '0 -> 1')
    refused(pairs + 1, r'\[0, 3\).*2 to 3', duplicates='keep')
    refused(pairs - 1, 'got -1 to', duplicates='keep')
    refused(pairs.float(), 'integers')
    refused(pairs.view(-1), 'shape')
    refused(7, "'source'.*int")
    refused(pairs, "'memory'.*bytes", memory='1kB')
    refused(pairs, "'memory'", memory='lots')
    calls = iter(range(9))
    refused(
        lambda: iter([tuple(pairs[:, : 3 - next(calls)])]),
        'same edges',
        duplicates='keep',
    )
    (tmp_path / 'bad.npy').write_bytes(b'\x93NUMPY nothing')
    refused(tmp_path / 'bad.npy', 'bad.npy')
    (tmp_path / 'bad.csv').write_text('1,2\n1,x\n')
    refused(tmp_path / 'bad.csv', 'bad.csv')
    with pytest.raises(FileNotFoundError, match=r'none\.npy'):
        CSRGraph.from_edges(tmp_path / 'none.npy', 3)


@pytest.mark.parametrize('mmap', [False, True])
def test_saved_and_loaded(tmp_path, graph, mmap):
    pairs, _ = graph.to_edge_index()
    weighted = CSRGraph.from_edge_index(
        pairs, 500, torch.rand(pairs.size(1)), perm=True
    )
    for made in (weighted, graph):
        made.save(tmp_path)
        again = CSRGraph.load(tmp_path, mmap=mmap)
        assert same(again, made)
        for name in ('weight', 'perm'):
            one, two = getattr(again, name), getattr(made, name)
            assert (one is None) == (two is None)
            assert one is None or torch.equal(one, two)
        # One header and what it names: nothing of before.
        names = json.loads((tmp_path / 'graph.json').read_text())['arrays']
        assert {path.name for path in tmp_path.iterdir()} == {
            'graph.json',
            *(entry['file'] for entry in names.values()),
        }
    x = torch.rand(500, 3)
    assert torch.equal(
        propagate(again, x, pagerank(0.2)), propagate(graph, x, pagerank(0.2))
    )


@pytest.mark.parametrize('mmap', [False, True])
def test_any_damaged_byte_is_refused_by_the_name_of_its_file(
    tmp_path, graph, mmap
):
    graph.save(tmp_path)
    source = random.Random(0)
    for path in sorted(tmp_path.glob('*.npy')):
        whole = path.read_bytes()
        for _ in range(12):
            bad = bytearray(whole)
            bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
            path.write_bytes(bad)
            with pytest.raises(DamagedFileError, match=path.name):
                CSRGraph.load(tmp_path, mmap=mmap)
        for wrong in (whole[:-1], whole + b'0', b''):
            path.write_bytes(wrong)
            with pytest.raises(DamagedFileError, match=path.name):
                CSRGraph.load(tmp_path, mmap=mmap, verify=False)
        path.unlink()
        with pytest.raises(DamagedFileError, match=path.name):
            CSRGraph.load(tmp_path, mmap=mmap)
        path.write_bytes(whole)
    CSRGraph.load(tmp_path, mmap=mmap)
    header = tmp_path / 'graph.json'
    whole = header.read_text()
    for wrong in ('', '{', whole.replace('"format": 1', '"format": 9'), '[]'):
        header.write_text(wrong)
        with pytest.raises(DamagedFileError, match=r'graph\.json'):
            CSRGraph.load(tmp_path, mmap=mmap)
    header.unlink()
    with pytest.raises(FileNotFoundError, match=r'graph\.json'):
        CSRGraph.load(tmp_path, mmap=mmap)


def test_rows_that_were_written_wrong_are_refused(tmp_path, graph):
    # With sizes and checksums that are right: by somebody who knows the form.
    wrong = graph.col32.clone()
    wrong[7] = 500
    CSRGraph._trusted(graph.rowptr, wrong).save(tmp_path)
    with pytest.raises(DamagedFileError, match='col-'):
        CSRGraph.load(tmp_path)
    down = graph.rowptr.clone()
    down[3] = down[2] - 1
    CSRGraph._trusted(down, graph.col32).save(tmp_path)
    with pytest.raises(DamagedFileError, match='rowptr-'):
        CSRGraph.load(tmp_path)


# Memory ######################################################################

MEASURED = """
import torch
from pyg_trust.agp import appnp, propagate
from pyg_trust.graph import CSRGraph
torch.set_num_threads(1)

def reset():
    with open('/proc/self/clear_refs', 'w') as file:
        file.write('5')  # forgets the peak

def peak():
    with open('/proc/self/status') as file:
        line = next(line for line in file if line.startswith('VmHWM'))
    return int(line.split()[1]) * 1024

def held():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * 4096

n, m = {n}, {m}
# Everything is loaded, and has run once.
small = CSRGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
propagate(small, torch.rand(2, 16), appnp(0.1, K=2))
{code}
"""


def measured(code, **numbers):
    program = MEASURED.format(code=textwrap.dedent(code), **numbers)
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_bytes_of_an_edge_while_it_is_built_and_after():
    n, m = 200_000, 8_000_000
    built, kept = measured(
        """
        pairs = torch.randint(n, (2, m // 2))
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
        reset()
        before = held()
        graph = CSRGraph.from_edge_index(pairs, n, duplicates='keep')
        assert graph.is_undirected
        print(peak() - before)
        print(held() - before)
        """,
        n=n,
        m=m,
    )
    assert kept <= 4.5 * m + 8 * n
    # 0.1.0 took 40 B/edge to build and 17 to keep.
    assert built <= 20 * m


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_files_take_no_more_than_the_stated_memory(tmp_path):
    n, m = 100_000, 24_000_000
    generator = np.random.default_rng(0)
    edges = generator.integers(n, size=(2, m), dtype=np.int32)
    np.save(tmp_path / 'e.npy', edges)
    (used,) = measured(
        f"""
        reset()
        before = held()
        graph = CSRGraph.from_edges(
            {str(tmp_path / 'e.npy')!r}, n, memory='80MB', duplicates='keep',
            folder={str(tmp_path / 'g')!r},
        )
        print(peak() - before)
        assert graph.num_edges == m
        """,
        n=n,
        m=m,
    )
    # Three blocks of rows, one at a time: all of them are 96 MB.
    assert used <= 80e6
