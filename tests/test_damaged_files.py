"""Files that somebody has damaged, or forged: refused by name, never read."""

import gzip
import io
import json
import random
import re
import shutil
import sys
import types
import zipfile
import zlib

import numpy as np
import pytest
import torch

from pyg_trust.agp.measures import appnp
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.files import DamagedFileError
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._storage import _header_sum


@pytest.fixture
def folder(tmp_path):
    """A graph with everything that can be saved, and what it is made of."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(90, (2, 400), generator=generator)
    pairs = torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)
    weight = torch.rand(pairs.size(1), generator=generator)
    made = CSRGraph.from_edge_index(pairs, 90, weight, perm=True)
    made.save(tmp_path / 'graph')
    return tmp_path / 'graph'


def header_of(folder):
    return json.loads((folder / 'graph.json').read_text())


def forge(folder, name, array, **entry):
    """Replaces an array, with a size and checksums that are right."""
    header = header_of(folder)
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    known = header['arrays'].setdefault(
        name, {'file': f'{name}-{"0" * 16}.npy'}
    )
    (folder / known['file']).write_bytes(content)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    known |= {'bytes': len(content), 'crc32': zlib.crc32(flat.data), **entry}
    rewrite(folder, header)
    return known['file']


def rewrite(folder, header):
    header['crc32'] = _header_sum(header)
    (folder / 'graph.json').write_text(json.dumps(header))


def array_of(folder, name):
    return np.load(folder / header_of(folder)['arrays'][name]['file'])


def refused(folder, file, **how):
    with pytest.raises(DamagedFileError, match=file):
        CSRGraph.load(folder, **how)


@pytest.mark.parametrize('mmap', [False, True])
@pytest.mark.parametrize('name', ['rowptr', 'col', 'weight', 'perm'])
def test_forged_arrays_are_refused(folder, name, mmap):
    whole = array_of(folder, name)

    def changed(*places):
        made = whole.copy()
        for place, value in places:
            made[place] = value
        return made

    wrong = [
        whole.astype(whole.dtype.newbyteorder('>')),
        whole.astype('f2'),
        whole.astype('i2'),
        whole.reshape(1, -1),
        whole[:-1],
        np.append(whole, whole[-1:]),
        np.array(3),
    ]
    places = {
        'rowptr': [(0, 1), (-1, 0), (5, 10**9)],
        'col': [(9, -1), (9, 90), (9, 2**31 - 1)],
        'weight': [(3, np.nan), (3, np.inf)],
        'perm': [(3, -2)],
    }
    wrong += [changed(place) for place in places[name]]
    for array in wrong:
        file = forge(folder, name, array)
        refused(folder, file, mmap=mmap)
    # Without reading the edges: whatever decides where the others are read.
    if name == 'rowptr':
        for array in wrong:
            file = forge(folder, name, array)
            refused(folder, file, mmap=mmap, verify=False)
    forge(folder, name, whole)
    CSRGraph.load(folder, mmap=mmap)


@pytest.mark.parametrize('verify', [False, True])
def test_headers_of_arrays_that_lie(folder, verify):
    entry = header_of(folder)['arrays']['col']
    path = folder / entry['file']
    whole = path.read_bytes()
    start = whole.index(b'\n') + 1
    count = array_of(folder, 'col').size
    kinds = [('<i4', f'({10**15},)'), ('<i4', f'({10**30},)')]
    kinds += [('<i4', '(-5,)'), ('<i4', "'x'"), ('<i4', '(1.5,)')]
    kinds += [('|O', f'({count},)'), ('>i4', f'({count},)')]
    for text in (
        *(
            f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}"
            for kind, shape in kinds
        ),
        '(' * 100,
        '{',
        '',
    ):
        path.write_bytes(
            whole[:10]
            + text.encode().ljust(start - 11)
            + b'\n'
            + whole[start:]
        )
        assert path.stat().st_size == len(whole)
        refused(folder, path.name, verify=verify)
        refused(folder, path.name, verify=verify, mmap=True)


def test_files_that_change_places_are_refused(folder):
    arrays = header_of(folder)['arrays']
    one, two = (folder / arrays[name]['file'] for name in ('perm', 'rowptr'))
    other = folder.with_name('other')
    shutil.copytree(folder, other)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    refused(folder, 'npy')
    refused(folder, 'npy', verify=False)
    # In the header, whose sum is right.
    header = header_of(other)
    header['arrays']['weight'], header['arrays']['col'] = (
        header['arrays'][name] for name in ('col', 'weight')
    )
    rewrite(other, header)
    refused(other, 'npy')
    refused(other, 'npy', verify=False)


def test_any_change_of_the_header_is_refused(folder):
    path = folder / 'graph.json'
    whole = path.read_bytes()
    source = random.Random(0)
    told = json.loads(whole)
    for _ in range(60):
        bad = bytearray(whole)
        bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
        path.write_bytes(bad)
        try:
            if json.loads(bad) == told:
                continue  # a blank
        except ValueError:
            pass
        # Its name, or that of a file that it says is there.
        refused(folder, 'graph', verify=False)
    outside = folder.with_name('outside.npy')
    shutil.copy(folder / told['arrays']['col']['file'], outside)
    col = told['arrays']['col']
    for change in (
        {'num_nodes': 0},
        {'num_nodes': True},
        {'num_nodes': 2**31},
        {'num_edges': -1},
        {'num_edges': 1.5},
        {'is_undirected': 'yes'},
        {'has_duplicates': 1},
        {'arrays': []},
        {'arrays': {**told['arrays'], 'col': 'col.npy'}},
        {'arrays': {**told['arrays'], 'extra': col}},
        {'arrays': {**told['arrays'], 'col': {**col, 'file': 3}}},
        {'arrays': {**told['arrays'], 'col': {**col, 'file': '..'}}},
        {
            'arrays': {
                **told['arrays'],
                'col': {**col, 'file': '../outside.npy'},
            }
        },
        {
            'arrays': {
                **told['arrays'],
                'col': {**col, 'file': str(outside)},
            }
        },
    ):
        rewrite(folder, {**told, **change})
        refused(folder, r'graph\.json', verify=False)
    path.write_text('[' * 100_000)
    refused(folder, r'graph\.json')
    # Without a sum, as it was written before there was one.
    told.pop('crc32')
    path.write_text(json.dumps(told))
    CSRGraph.load(folder)


def test_a_graph_without_edges_goes_to_disk_and_back(tmp_path):
    made = CSRGraph.from_edge_index(torch.empty(2, 0, dtype=torch.long), 4)
    made.save(tmp_path)
    for mmap in (False, True):
        again = CSRGraph.load(tmp_path, mmap=mmap)
        assert (again.num_nodes, again.num_edges) == (4, 0)


# What edges and features are read from #######################################


def test_sources_that_are_no_edges(tmp_path):
    pairs = np.arange(2000).reshape(2, 1000) % 50

    def no(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=re.escape(name)):
            CSRGraph.from_edges(path, 50, duplicates='keep')

    buffer = io.BytesIO()
    np.savez(buffer, edge_index=pairs)
    npz = buffer.getvalue()
    no('short.npz', npz[: len(npz) // 2])
    no('empty.npz', b'')
    no('flipped.npz', npz[:900] + b'\x00\xff' + npz[902:])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, edge_index=pairs)
    packed = buffer.getvalue()
    no('packed.npz', packed[:200] + b'\x00\xff\x00' + packed[203:])
    buffer = io.BytesIO()
    np.savez(buffer, other=pairs)
    no('other.npz', buffer.getvalue())
    # A header that promises more than there is.
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as archive:
        entry = io.BytesIO()
        np.save(entry, pairs)
        lie = entry.getvalue().replace(b'(2, 1000)', b'(2, 9000)')
        archive.writestr('edge_index.npy', lie)
    no('lie.npz', buffer.getvalue())
    buffer = io.BytesIO()
    np.save(buffer, pairs)
    npy = buffer.getvalue()
    no('short.npy', npy[:-1])
    no('lie.npy', npy.replace(b'(2, 1000), }', b'(2, 10**9)} '))
    no('huge.npy', npy.replace(b'(2, 1000), }', b'(2, 10000)} '))
    no('minus.npy', npy.replace(b'(2, 1000)', b'(2, -100)'))
    no('objects.npy', npy.replace(b"'<i8'", b"'|O' "))
    zipped = gzip.compress(b'1,2\n' * 500)
    no('short.csv.gz', zipped[:-20])
    no('flipped.txt.gz', zipped[:15] + b'\xff\xff' + zipped[17:])
    no('binary.csv', bytes(range(128, 256)))
    no('one.csv', b'1\n2\n')
    no('ragged.csv', b'1,2\n3\n')
    no('large.csv', b'1,99999999999999999999999\n')
    no('float.txt', b'1 2.5\n')
    (tmp_path / 'e.xyz').write_bytes(b'')
    with pytest.raises(ValueError, match=r'parquet.*e\.xyz'):
        CSRGraph.from_edges(tmp_path / 'e.xyz', 50)


def test_foreign_bytes_are_edges_all_the_same(tmp_path):
    pairs = torch.tensor([[0, 1, 2], [1, 2, 0]])
    wanted = CSRGraph.from_edge_index(pairs, 3)
    for dtype in ('>i8', '>i4', '<u2', '>u8', 'i1'):
        np.save(tmp_path / 'e.npy', pairs.numpy().astype(dtype))
        np.savez(tmp_path / 'e.npz', edge_index=pairs.numpy().astype(dtype))
        for name in ('e.npy', 'e.npz'):
            made = CSRGraph.from_edges(tmp_path / name, 3)
            assert torch.equal(made.col32, wanted.col32)
    np.save(tmp_path / 'e.npy', pairs.numpy().astype('u8') - 1)
    with pytest.raises(ValueError, match=r'\[0, 3\)'):
        CSRGraph.from_edges(tmp_path / 'e.npy', 3)


@pytest.mark.parametrize('name', ['x.npy', 'x.npz', 'x.pt'])
def test_features_that_are_none(tmp_path, name):
    graph = CSRGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    x = np.random.rand(2, 3).astype('f4')
    np.savez(tmp_path / 'x.npz', x=x)
    torch.save(torch.from_numpy(x), tmp_path / 'x.pt')
    buffer = io.BytesIO()
    np.save(buffer, x)
    (tmp_path / 'x.npy').write_bytes(
        buffer.getvalue().replace(b'(2, 3)', b'(-2,3)')
    )
    with pytest.raises(DamagedFileError, match=name):
        propagate_to(tmp_path / 'z.npy', graph, tmp_path / name, appnp(0.1))
    assert not list(tmp_path.glob('z.npy*'))


# Parquet #####################################################################


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / 'e.parquet').write_bytes(b'PAR1')
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    monkeypatch.setitem(sys.modules, 'pyarrow.parquet', None)
    with pytest.raises(ImportError, match=r"'pyarrow'.*install"):
        CSRGraph.from_edges(tmp_path / 'e.parquet', 3, folder=tmp_path / 'g')
    assert not list((tmp_path / 'g').glob('*'))


def test_parquet_is_read_in_batches(tmp_path):
    pyarrow = pytest.importorskip('pyarrow')
    import pyarrow.parquet as parquet

    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(50, (2, 3000), generator=generator)
    wanted = CSRGraph.from_edge_index(pairs, 50, duplicates='merge')
    path = tmp_path / 'e.parquet'
    for kind in (pyarrow.int64(), pyarrow.int32(), pyarrow.uint16()):
        columns = [pyarrow.array(part.tolist(), kind) for part in pairs]
        more = pyarrow.array([0.5] * 3000)
        table = pyarrow.table(
            [*columns, more], names=['source', 'target', 'when']
        )
        parquet.write_table(table, path, row_group_size=700)
        made = CSRGraph.from_edges(path, 50, duplicates='merge')
        assert torch.equal(made.rowptr, wanted.rowptr)
        assert torch.equal(made.col32, wanted.col32)
    whole = path.read_bytes()
    for wrong in (whole[:-1], whole[:100], b'', b'PAR1', whole[4:]):
        path.write_bytes(wrong)
        with pytest.raises(DamagedFileError, match=r'e\.parquet'):
            CSRGraph.from_edges(path, 50, duplicates='merge')
    for columns in (
        {'source': [1, 2]},
        {'source': [1, None], 'target': [1, 2]},
    ):
        parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(DamagedFileError, match=r'e\.parquet'):
            CSRGraph.from_edges(path, 50)
    parquet.write_table(
        pyarrow.table({'source': ['a'], 'target': ['b']}), path
    )
    with pytest.raises(TypeError, match='integers'):
        CSRGraph.from_edges(path, 50)


def test_parquet_goes_through_the_first_two_columns(tmp_path, monkeypatch):
    # Without the library: what is asked of it, and what is done with it.
    class Column(list):
        null_count = 0

        def to_numpy(self, zero_copy_only):
            assert not zero_copy_only
            return np.array(self)

    class File:
        def __init__(self, path):
            assert path.name == 'e.parquet'
            self.schema_arrow = types.SimpleNamespace(names=['a', 'b', 'c'])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def iter_batches(self, batch_size):
            assert batch_size >= 1
            for part in ([[0, 1], [1, 2]], [[2], [0]]):
                columns = [Column(index) for index in part]
                yield types.SimpleNamespace(column=columns.__getitem__)

    parquet = types.ModuleType('pyarrow.parquet')
    parquet.ParquetFile = File
    package = types.ModuleType('pyarrow')
    package.parquet = parquet
    monkeypatch.setitem(sys.modules, 'pyarrow', package)
    monkeypatch.setitem(sys.modules, 'pyarrow.parquet', parquet)
    (tmp_path / 'e.parquet').write_bytes(b'PAR1')
    made = CSRGraph.from_edges(tmp_path / 'e.parquet', 3)
    assert made.col32.tolist() == [1, 2, 0]
