"""The checker by itself: no torch, no PyG, no library that was compiled.

It runs where its files alone are, as an auditor installs them.
"""

import ast
import dataclasses
import io
import itertools
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checker_wheel import checker_wheel
from guarantees import MADE

import pyg_trust
from pyg_trust.check import check_report, prints, tensors
from pyg_trust.report import (
    DATA_FIELDS,
    TrustReport,
    fingerprint,
    fingerprint_data,
    fingerprint_model,
)

ROOT = Path(pyg_trust.__file__).parent
NAMES = (
    'AGP, exact',
    'PrivacyReport',
    'Certificate',
    'ShardRemovalReport',
    'NodeUnlearnReport',
)
# Nothing of these may be imported, whether it is there or not.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked}:
            raise ImportError(name + ' is not to be imported')
sys.meta_path.insert(0, Blocked())
import runpy
sys.argv = {arguments}
try:
    runpy.run_module({module!r}, run_name='__main__')
finally:
    names = {{name.split('.')[0] for name in sys.modules}}
    assert not names & set({blocked}), names
    compiled = [
        m.__file__ for m in sys.modules.values()
        if (getattr(m, '__file__', None) or '').startswith({home!r})
        and m.__file__.endswith('.so')
    ]
    assert not compiled, compiled
"""
OTHERS = (
    *('torch', 'torch_geometric', 'torch_sparse', 'opacus', 'cvxpy'),
    *('highspy', 'dp_accounting', 'tqdm', 'pandas'),
)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A report of five promises, and what belongs to each."""
    folder = tmp_path_factory.mktemp('files')
    reports, handed = [], {}
    for name in NAMES:
        report, content = MADE[name](folder)
        reports.append(report)
        handed[name] = {}
        for kind, value in content.items():
            path = folder / f'{kind} of {name}'
            if isinstance(value, Path):
                path = value
            elif kind == 'ledger':
                path.write_text(json.dumps(value))
            else:
                torch.save(value, path)
            handed[name][kind] = path
    TrustReport.of(*reports).save(folder / 'trust.json')
    return folder / 'trust.json', handed


def run(module, path, blocked=OTHERS, home=str(ROOT), **handed):
    arguments = ['pyg_trust', 'check', str(path)]
    for kind, file in handed.items():
        arguments += [f'--{kind}', str(file)]
    code = BLOCKED.format(
        blocked=tuple(blocked), arguments=arguments, module=module, home=home
    )
    return subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        cwd=Path(path).parent,
        env={'PYTHONPATH': str(Path(home).parent), 'PATH': ''},
    )


@pytest.mark.parametrize('name', ['PrivacyReport', 'NodeUnlearnReport'])
def test_nothing_is_loaded_to_check(files, name):
    path, handed = files
    done = run('pyg_trust', path, **handed[name])
    # Tests are seeded: nothing is private then.
    assert done.returncode == 1, done.stderr
    wanted = [str(each) for each in check_report(path, **handed[name])]
    assert done.stdout.splitlines() == wanted


def test_the_wheel_of_the_checker_works_alone(files, tmp_path):
    path, handed = files
    wheel = checker_wheel(tmp_path / 'dist')
    assert (
        wheel.name == f'pyg_trust_check-{pyg_trust.__version__}-py3-none-'
        'any.whl'
    )
    target = tmp_path / 'site'
    subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            'install',
            '--quiet',
            '--no-deps',
            '--no-index',
            '--target',
            str(target),
            str(wheel),
        ],
        check=True,
    )
    home = target / 'pyg_trust_check'
    assert not list(home.rglob('*.so'))
    done = run(
        *('pyg_trust_check', path, (*OTHERS, 'pyg_trust')),
        home=str(home),
        **handed['Certificate'],
    )
    assert done.returncode == 1, done.stderr
    wanted = [
        str(each) for each in check_report(path, **handed['Certificate'])
    ]
    assert done.stdout.splitlines() == wanted


def test_the_checker_imports_by_relative_names_alone():
    allowed = {'numpy', 'scipy', 'mpmath', *sys.stdlib_module_names}
    for file in (ROOT / 'check').rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    continue
                names = [node.module]
            else:
                continue
            for name in names:
                assert name.split('.')[0] in allowed, (file.name, name)


# Files of torch ##############################################################

KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    torch.bool,
)


def test_tensors_are_read_as_they_were_written(tmp_path):
    base = torch.arange(-5, 19).view(4, 6)
    state = {str(kind): base.to(kind) for kind in KINDS}
    state['view'] = base.double()[1:3, ::2].t()
    state['empty'] = torch.zeros(0, 3)
    state['scalar'] = torch.tensor(2.5)
    state['parameter'] = torch.nn.Parameter(torch.ones(2))
    state['inner'] = {'a': torch.ones(1), 'text': 'x', 'none': None}
    torch.save(state, tmp_path / 'a')
    read = tensors.load(tmp_path / 'a')
    assert prints.fingerprint_model(read) == fingerprint_model(state)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert prints.fingerprint(read[name]) == fingerprint(value), name


@pytest.mark.parametrize('name', ['x', 'adj', 'only edges', 'ids'])
def test_fingerprints_of_data_are_the_same(tmp_path, name):
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = Data(edge_index=edges)
    if name == 'x':
        data.x = torch.rand(4, 2)
        data.y = torch.arange(4)
    elif name == 'adj':
        data.x = torch.eye(3).to_sparse_csr()
        data.adj_t = torch.eye(3).to_sparse_csr()
    elif name == 'ids':
        data.n_id = torch.arange(7)
    torch.save(data.to_dict(), tmp_path / 'a')
    read = tensors.load(tmp_path / 'a')
    data.num_nodes = data.num_nodes if name != 'only edges' else 3
    assert prints.fingerprint_data([read], DATA_FIELDS) == fingerprint_data(
        data
    )


class Evil:
    def __reduce__(self):
        import os

        return os.system, ('true',)


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({'a': Evil()}, tmp_path / 'a')
    with pytest.raises(ValueError, match='which is no tensor'):
        tensors.load(tmp_path / 'a')


def test_a_small_file_takes_small_memory(tmp_path):
    torch.save({'a': torch.zeros(1).expand(10**9)}, tmp_path / 'a')
    assert (tmp_path / 'a').stat().st_size < 5000
    with pytest.raises(ValueError, match='more elements than its storage'):
        tensors.load(tmp_path / 'a')


@pytest.mark.parametrize('size', [(), (0,), (1,), (2,), (3,), (2, 2), (1, 3)])
def test_a_view_is_read_as_torch_reads_it_or_not_at_all(size):
    flat = torch.arange(4.0, dtype=torch.float64)
    storage = 'torch.float64', flat.numpy()
    read = 0
    for offset in range(-1, 6):
        for stride in itertools.product(range(-1, 4), repeat=len(size)):
            try:
                wanted = torch.as_strided(flat, size, stride, offset)
            except RuntimeError:
                wanted = None
            try:
                made = tensors._dense(storage, offset, size, stride)
            except ValueError:
                # Torch has empty views beyond the end, and repeats numbers.
                assert wanted is None or wanted.numel() > 4
                continue
            read += 1
            assert made.array.shape == size
            if made.array.size:
                assert made.array.tolist() == wanted.tolist()
    assert read
    for wrong in ((0, (2,), (1, 1)), (0, (2.0,), (1,)), (0, (True,), (1,))):
        with pytest.raises(ValueError, match='no proper shape'):
            tensors._dense(storage, *wrong)
    with pytest.raises(ValueError, match='more elements than'):
        tensors._dense(storage, 0, (5,), (0,))


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        *(('none', ''), ('old', '')),
        ('big', 'begin with the largest byte'),
        ('twice', 'is there twice'),
        ('packed', 'is compressed'),
        ('short', 'is not of 3 elements'),
        ('long', 'is not of 3 elements'),
        ('class', 'which is no tensor'),
    ],
)
def test_a_file_that_torch_would_not_write_is_refused(tmp_path, change, said):
    torch.save({'a': torch.ones(3)}, tmp_path / 'a')
    with zipfile.ZipFile(tmp_path / 'a') as archive:
        content = {e.filename: archive.read(e) for e in archive.infolist()}
    (order,) = (name for name in content if name.endswith('/byteorder'))
    (numbers,) = (name for name in content if name.endswith('/data/0'))
    (code,) = (name for name in content if name.endswith('/data.pkl'))
    if change == 'old':
        del content[order]
    elif change == 'big':
        content[order] = b'big'
    elif change == 'twice':
        content['other/data/0'] = content[numbers]
    elif change in ('short', 'long'):
        size = 8 if change == 'short' else 16
        content[numbers] = content[numbers].ljust(16)[:size]
    elif change == 'class':
        content[code] = content[code].replace(b'FloatStorage', b'FloatTensor')
    how = zipfile.ZIP_DEFLATED if change == 'packed' else zipfile.ZIP_STORED
    with zipfile.ZipFile(tmp_path / 'b', 'w', how) as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    if not said:
        assert tensors.load(tmp_path / 'b')['a'].array.tolist() == [1, 1, 1]
        return
    with pytest.raises(ValueError, match=said):
        tensors.load(tmp_path / 'b')


@pytest.mark.parametrize(
    'pid',
    [
        ('module', 'FloatStorage', '0', 'cpu', 3),
        ('storage', 'FloatStorage', '0', 'cpu', 3.0),
    ],
)
def test_what_is_no_storage_is_none(pid):
    reader = tensors._Unpickler(io.BytesIO(), None, {})
    with pytest.raises(ValueError, match='what is no storage'):
        reader.persistent_load(pid)


@pytest.mark.parametrize('layout', ['coo', 'csr', 'csc'])
def test_sparse_matrices_are_read_with_their_shape(tmp_path, layout):
    matrix = torch.zeros(3, 5)
    matrix[0, 4] = matrix[2, 1] = 2.0
    matrix = matrix.to_sparse(layout=getattr(torch, f'sparse_{layout}'))
    torch.save({'a': matrix}, tmp_path / 'a')
    read = tensors.load(tmp_path / 'a')['a']
    assert (read.layout, read.shape) == (f'torch.sparse_{layout}', (3, 5))
    assert read.parts[-1].array.tolist() == [2, 2]
    assert len(read.parts) == (2 if layout == 'coo' else 3)
    if layout == 'coo':
        assert read.parts[0].array.tolist() == [[0, 2], [4, 1]]
        twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (2,))
        torch.save({'a': twice}, tmp_path / 'a')
        with pytest.raises(ValueError, match='coalesced'):
            tensors.load(tmp_path / 'a')


def test_a_file_that_is_not_there_is_no_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        tensors.load(tmp_path / 'a')


@pytest.mark.parametrize(
    ('graph', 'count'),
    [
        ({'num_nodes': 7, 'x': (3, 2)}, 7),
        ({'my_node_map': (4,), 'x': (3, 2)}, 3),
        ({'my_node_map': (4,), 'edge_index': (2, 0)}, 4),
        ({'node_kind': 'a', 'edge_index': (2, 3)}, 1),
        ({'adj_t': (3, 5)}, 5),
        ({'edge_index': (2, 0)}, 0),
        ({'edge_index': (2, 3)}, 1),
    ],
)
def test_nodes_are_counted_as_pyg_does(graph, count):
    from torch_geometric.data import Data

    made = {
        name: tensors.Tensor('torch.int64', np.zeros(value, int))
        if isinstance(value, tuple)
        else value
        for name, value in graph.items()
    }
    assert prints.num_nodes(made) == count
    if 'adj_t' not in graph:
        held = {
            name: torch.zeros(value, dtype=torch.int64)
            if isinstance(value, tuple)
            else value
            for name, value in graph.items()
        }
        assert Data.from_dict(held).num_nodes == count


def test_features_of_a_row_are_those_of_its_entries():
    # Rows 0 and 2 have entries, and that of row 2 is a zero.
    parts = [np.array(n) for n in ([0, 1, 1, 2], [4, 1], [3.0, 0.0])]
    x = tensors.Sparse(
        *('torch.sparse_csr', (3, 5)),
        tuple(tensors.Tensor('torch.float64', part) for part in parts),
    )
    graph = {'x': x, 'num_nodes': 3}
    for node, there in ((0, True), (1, False), (2, False), (3, False)):
        found = list(prints.left_over(graph, {'features': [node]}, ''))
        assert bool(found) == there
    graph['x'] = dataclasses.replace(x, layout='torch.sparse_csc')
    with pytest.raises(ValueError, match='no tensor with rows'):
        list(prints.left_over(graph, {'features': [0]}, ''))


@pytest.mark.parametrize('seed', range(3))
def test_damaged_files_give_one_kind_of_error(tmp_path, seed):
    import random

    path, draw = tmp_path / 'a', random.Random(seed)
    torch.save({'a': torch.rand(30), 'b': {'c': torch.arange(9)}}, path)
    good = path.read_bytes()
    for _ in range(100):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 3, 30))):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        if draw.random() < 0.2:
            del bad[draw.randrange(len(bad)) :]
        path.write_bytes(bytes(bad))
        try:
            prints.fingerprint_model(tensors.load(path))
        except ValueError:
            continue
