"""Nothing is said that was not asked for: no prints, no warnings, no bars."""

import ast
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from package import modules
from procedures import PROCEDURES
from tqdm import tqdm

import pyg_trust
from pyg_trust._progress import Bar

ROOT = Path(pyg_trust.__file__).parent

# Where the package speaks, and why.
SPEAKS = {
    # Asked for by insist=True, which gives away what no epsilon covers.
    ('privacy/norms.py', 'warnings.warn'),
    # What was asked to be exact takes tens of times as long.
    ('privacy/wrappers.py', 'warnings.warn'),
    # The command line.
    ('check/__main__.py', 'sys.stdout.write'),
    ('check/__main__.py', 'sys.stderr.write'),
    # An old name that means another now.
    ('unlearning/shards/training.py', 'warnings.warn'),
    ('unlearning/shards/waiting.py', 'warnings.warn'),
    # Sparse matrices are new to torch, and it says so once per process.
    ('graph/sparse.py', 'warnings.catch_warnings'),
    ('graph/sparse.py', 'warnings.filterwarnings'),
    # Whether there is a terminal to show a bar in.
    ('_progress.py', 'sys.stderr.isatty'),
    # A file that is mapped to be read is no tensor to write to.
    ('graph/_storage.py', 'warnings.catch_warnings'),
    ('graph/_storage.py', 'warnings.filterwarnings'),
    # An audit of what reads no canary has nothing to say.
    ('audit/training.py', 'warnings.warn'),
    # Names of the last release.
    ('_moved.py', 'warnings.warn'),
    # Asked for as well: noise that can be made again; edges with few names.
    ('transforms/private_agp.py', 'warnings.warn'),
    # A budget that is spent twice, and features that may be of edges.
    ('transforms/release_checks.py', 'warnings.warn'),
}
SPEECH = re.compile(r'(print|warn|warnings|logging|sys\.std(out|err))\b')


def called(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_the_package_speaks_in_known_places_alone():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in ROOT.rglob('*.py')
        for name in called(ast.parse(path.read_text()))
        if SPEECH.match(name)
    }
    assert found == SPEAKS


@pytest.fixture
def strict():
    """Everything that warns is an error, and what warns once warns again."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        yield
    torch.set_warn_always(always)


@pytest.mark.parametrize('name', PROCEDURES)
def test_procedures_are_quiet(name, tmp_path, capfd, strict):
    procedure = PROCEDURES[name]
    procedure.run(procedure.prepare(tmp_path), False)
    assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize('name', PROCEDURES)
def test_progress_is_shown_on_request(name, tmp_path, capfd, monkeypatch):
    procedure = PROCEDURES[name]
    objects = procedure.prepare(tmp_path)
    shown = []
    made = tqdm.__init__

    def noted(bar, *args, **kwargs):
        made(bar, *args, **kwargs)
        if not bar.disable:
            shown.append(kwargs['desc'])

    monkeypatch.setattr(tqdm, '__init__', noted)
    procedure.run(objects, True)
    out, err = capfd.readouterr()
    assert out == ''
    assert bool(err) == (procedure.shows > 0)
    assert len(shown) == max(procedure.shows, 0)
    # Each is named.
    assert all(shown)


def functions():
    for name in modules():
        module = __import__(name, fromlist=['_'])
        for member in vars(module).values():
            if getattr(member, '__module__', None) != name:
                continue
            if inspect.isfunction(member):
                yield member
            elif inspect.isclass(member):
                yield from filter(inspect.isfunction, vars(member).values())


def test_bars_are_for_terminals_by_default_last_and_documented():
    found = 0
    for function in functions():
        parameters = inspect.signature(function).parameters
        if (
            'progress_bar' not in parameters
            or function.__name__.startswith('_')
            or function.__qualname__.startswith('_')
            or function.__module__ == 'pyg_trust._progress'
        ):
            continue
        found += 1
        last = [p for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
        bar = parameters['progress_bar']
        assert last[-1] is bar, function
        # None shows one in a terminal, after two seconds.
        assert bar.default is None, function
        doc = inspect.getdoc(function)
        told = r'progress_bar \(bool, optional\): |arguments of :meth:'
        assert re.search(told, doc), function
    assert found > 30


def test_a_hidden_bar_takes_no_lock(monkeypatch):
    # A fork that was killed while it held tqdm's stopped its parent for good.
    def locked():
        raise AssertionError('the lock was taken')

    monkeypatch.setattr(tqdm, 'get_lock', locked)
    monkeypatch.setattr(tqdm, '_lock', None, raising=False)
    assert list(Bar(range(3), disable=True, desc='it')) == [0, 1, 2]
    with Bar(total=3, disable=True) as bar:
        bar.update(2)
        bar.set_postfix(left=1)
        bar.set_description('that')


def test_an_import_adds_a_second_to_that_of_pyg_at_most():
    code = (
        'import time, torch_geometric.transforms; t = time.process_time(); '
        'import pyg_trust.transforms; print(time.process_time() - t)'
    )
    # A machine that is busy may take longer, but not each time.
    assert any(
        float(subprocess.check_output([sys.executable, '-c', code])) < 1
        for _ in range(3)
    )
