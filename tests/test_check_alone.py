"""The checker by itself: no torch, no PyG, no library that was compiled.

It runs where its files alone are, as an auditor installs them.
"""

import ast
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checker_wheel import checker_wheel
from guarantees import MADE
from safetensors.torch import save_file
from torch_geometric.data import Data

import pyg_trust
from pyg_trust.check import check_report
from pyg_trust.check import files as files_of
from pyg_trust.report import (
    DATA_FIELDS,
    TrustReport,
    fingerprint_data,
    fingerprint_model,
    save_tensors,
)

ROOT = Path(pyg_trust.__file__).parent
NAMES = (
    'AGP, exact',
    'PrivacyReport',
    'Certificate',
    'ForgetReport, shards',
    'ForgetReport, nodes',
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
                save_tensors(path, value)
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


@pytest.mark.parametrize('name', ['PrivacyReport', 'ForgetReport, nodes'])
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
    allowed = {
        'numpy',
        'scipy',
        'mpmath',
        'safetensors',
        *sys.stdlib_module_names,
    }
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


# Files of tensors ############################################################

KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    torch.bool,
)


def test_weights_have_the_fingerprint_of_the_report(tmp_path):
    base = torch.arange(-5, 19).view(4, 6)
    state = {str(kind): base.to(kind) for kind in KINDS}
    state['view'] = base.double()[1:3, ::2].t()
    state['empty'] = torch.zeros(0, 3)
    state['scalar'] = torch.tensor(2.5)
    state['parameter'] = torch.nn.Parameter(torch.ones(2))
    state['inner'] = {'a': torch.ones(1), 'text': 'x', 'none': None}
    save_tensors(tmp_path / 'a', state)
    wanted = fingerprint_model(state)
    assert files_of.fingerprint_model(tmp_path / 'a') == wanted
    # Files of others have the same names.
    model = torch.nn.Linear(3, 2)
    save_file(model.state_dict(), tmp_path / 'a')
    wanted = fingerprint_model(model.state_dict())
    assert files_of.fingerprint_model(tmp_path / 'a') == wanted


def sparse(layout):
    matrix = torch.zeros(3, 3)
    matrix[0, 2] = matrix[2, 1] = 2.0
    return matrix.to_sparse(layout=getattr(torch, f'sparse_{layout}'))


@pytest.mark.parametrize(
    'fields',
    [
        {'x': torch.rand(4, 2), 'y': torch.arange(4)},
        *({'x': sparse(layout)} for layout in ('coo', 'csr', 'csc')),
        {'adj_t': sparse('csr'), 'x': sparse('csr'), 'edge_index': None},
        {'n_id': torch.arange(7), 'more': 'x', 'number': 3},
        {},
    ],
)
def test_graphs_have_the_fingerprint_of_the_report(tmp_path, fields):
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = Data(**{'edge_index': edges, **fields})
    for content in (data, [data, data], [data] * 11):
        save_tensors(tmp_path / 'a', content)
        read = files_of.read_graphs(tmp_path / 'a')
        assert files_of.fingerprint_data(
            read, DATA_FIELDS
        ) == fingerprint_data(content)
    assert files_of.num_nodes(read['3']) == data.num_nodes


def test_features_of_a_row_are_those_of_its_entries(tmp_path):
    # Rows 0 and 2 have entries, and that of row 2 is a zero.
    x = torch.sparse_csr_tensor([0, 1, 1, 2], [2, 1], [3.0, 0.0], (3, 3))
    for made, rows in ((x, [0]), (x.to_dense(), [0])):
        save_tensors(tmp_path / 'a', Data(x=made, num_nodes=3))
        graph = files_of.read_graphs(tmp_path / 'a')['0']
        for node in range(4):
            part = {'features': [node]}
            found = list(files_of.left_over(graph, part, ''))
            assert bool(found) == (node in rows)
    save_tensors(tmp_path / 'a', Data(x=sparse('csc'), num_nodes=3))
    graph = files_of.read_graphs(tmp_path / 'a')['0']
    with pytest.raises(ValueError, match='no tensor with rows'):
        list(files_of.left_over(graph, {'features': [0]}, ''))


@pytest.mark.parametrize('seed', range(3))
def test_damaged_files_give_one_kind_of_error(tmp_path, seed):
    import random

    path, draw = tmp_path / 'a', random.Random(seed)
    save_tensors(path, {'a': torch.rand(30), 'b': {'c': torch.arange(9)}})
    good = path.read_bytes()
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 3, 30))):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        if draw.random() < 0.2:
            del bad[draw.randrange(len(bad)) :]
        path.write_bytes(bytes(bad))
        for read in (files_of.fingerprint_model, files_of.read_graphs):
            with contextlib.suppress(ValueError):
                read(path)


def test_other_files_say_how_to_write_one(tmp_path):
    torch.save({'a': torch.ones(1)}, tmp_path / 'a')
    with pytest.raises(ValueError, match='save_tensors'):
        files_of.read_tensors(tmp_path / 'a')
    with pytest.raises(FileNotFoundError):
        files_of.read_tensors(tmp_path / 'b')
    with pytest.raises(TypeError, match="'content'"):
        save_tensors(
            tmp_path / 'a', {'a': Data(num_nodes=1), 'b': torch.ones(1)}
        )
