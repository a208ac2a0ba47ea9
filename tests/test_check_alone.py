"""The checker by itself: no torch, no PyG, no library that was compiled.

It runs where its files alone are, as an auditor installs them.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
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
sys.path.insert(0, str(ROOT.parent))

from dev import checker_wheel  # noqa: E402

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
