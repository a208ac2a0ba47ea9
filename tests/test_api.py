"""What is imported, exported and said: one process for all that imports."""

import importlib
import inspect
import json
import re
import subprocess
import sys
import warnings

import pytest
import torch
from package import modules
from procedures import PROCEDURES
from tqdm import tqdm

import pyg_trust
from pyg_trust import _moved
from pyg_trust._progress import Bar


def test_public_classes_print_one_line():
    # Audits' subjects are handed to functions.
    plain = {'Subject', 'ShardedSubject', 'Runs'}
    for package in pyg_trust._MODULES:
        module = importlib.import_module(f'pyg_trust.{package}')
        for name in getattr(module, '__all__', []):
            cls = getattr(module, name)
            if not inspect.isclass(cls) or issubclass(cls, BaseException):
                continue
            if inspect.isabstract(cls) or {k.__name__ for k in cls.__mro__} & (
                {*plain, '_NoisySubject'}
            ):
                continue
            assert cls.__repr__ is not object.__repr__, name


def test_public_names_exist_and_are_documented():
    for name in modules():
        module = importlib.import_module(name)
        assert module.__doc__, name
        names = getattr(module, '__all__', [])
        assert len(names) == len(set(names)), name
        for public in names:
            assert getattr(module, public).__doc__, f'{name}.{public}'


def test_version():
    assert re.match(r'\d+\.\d+\.\d+', pyg_trust.__version__)


SLOW = (
    *('cvxpy', 'dp_accounting', 'highspy', 'matplotlib', 'scipy.fft'),
    *('scipy.optimize', 'scipy.signal', 'scipy.sparse.linalg'),
    *('scipy.special', 'scipy.stats', 'sklearn', 'opacus'),
)
IMPORTS = f"""
import json, os, random, sys, time, warnings
import numpy, scipy.sparse, torch, torch_geometric
slow = {SLOW}
known = set(sys.modules)  # PyG's own differ from version to version

def surroundings():
    return [
        dict(os.environ), list(warnings.filters), random.getstate(),
        torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),
        torch.get_num_threads(),
    ]

warnings.simplefilter('error')
found, before = {{}}, surroundings()
import pyg_trust
found['lazy'] = 'pyg_trust.transforms' not in sys.modules
found['listed'] = 'agp' in dir(pyg_trust)
found['nothing'] = not hasattr(pyg_trust, 'nothing')
start = time.process_time()
import pyg_trust.transforms, pyg_trust.nn, pyg_trust.agp
import pyg_trust.loader, pyg_trust.sampler, pyg_trust.report
import pyg_trust.certificates, pyg_trust.unlearning
found['quick'] = time.process_time() - start < 5
found['alone'] = not [m for m in slow if m in set(sys.modules) - known]
found['unchanged'] = before == surroundings()
found['there'] = bool(pyg_trust.transforms.AGP and pyg_trust.nn.APPNP)
import opacus.accountants
there = set(vars(opacus.accountants))
import pyg_trust.privacy
found['opacus'] = there == set(vars(opacus.accountants))
print(json.dumps(found))
"""


def test_importing_is_quick_lazy_quiet_and_changes_nothing():
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', IMPORTS],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ''), done.stderr
    found = json.loads(done.stdout)
    assert not [name for name, holds in found.items() if not holds]


def test_names_of_the_last_release_work_and_warn():
    for package, names in _moved._MOVED.items():
        module = importlib.import_module(f'pyg_trust.{package}')
        for name, place in names.items():
            home, _, new = place.partition(':')
            assert name not in getattr(module, '__all__', ())
            said = f'pyg_trust.{home}$'
            with pytest.warns(DeprecationWarning, match=said) as warned:
                found = getattr(module, name)
            # Whoever imports it is told, and not this package.
            assert warned[0].filename == __file__
            home = importlib.import_module(f'pyg_trust.{home}')
            assert found is getattr(home, new or name)
    for package, gone in _moved._GONE.items():
        module = importlib.import_module(f'pyg_trust.{package}')
        for name in gone:
            with pytest.raises(AttributeError, match=f'{name} is gone: use'):
                getattr(module, name)


@pytest.mark.parametrize('name', PROCEDURES)
def test_procedures_say_nothing_and_show_progress_on_request(
    name, tmp_path, capfd, monkeypatch
):
    procedure = PROCEDURES[name]
    quiet, shown = tmp_path / 'quiet', tmp_path / 'shown'
    quiet.mkdir()
    shown.mkdir()
    objects = procedure.prepare(quiet)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            procedure.run(objects)
    finally:
        torch.set_warn_always(always)
    assert capfd.readouterr() == ('', '')

    objects = procedure.prepare(shown)
    shown, made = [], tqdm.__init__

    def noted(bar, *args, **kwargs):
        made(bar, *args, **kwargs)
        if not bar.disable:
            shown.append(kwargs['desc'])

    monkeypatch.setattr(tqdm, '__init__', noted)
    with pyg_trust.progress():
        procedure.run(objects)
    out, err = capfd.readouterr()
    assert out == ''
    assert bool(err) == (procedure.shows > 0)
    assert len(shown) == max(procedure.shows, 0)
    assert all(shown)  # each is named


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
