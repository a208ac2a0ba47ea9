import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from package import modules

import pyg_trust
from pyg_trust import _moved


@pytest.mark.parametrize('name', list(modules()))
def test_public_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    names = getattr(module, '__all__', [])
    assert len(names) == len(set(names))
    for public in names:
        assert getattr(module, public).__doc__, public


def test_version():
    assert re.fullmatch(r'\d+\.\d+\.\d+(\.dev\d+)?', pyg_trust.__version__)
    from importlib.metadata import version

    assert version('pyg_trust') == pyg_trust.__version__


def test_importing_has_no_side_effects():
    code = """
import os, random, sys, warnings
import numpy, torch, torch_geometric
import scipy.sparse.linalg, scipy.special
before = (
    dict(os.environ),
    list(warnings.filters),
    random.getstate(),
    torch.get_rng_state().tolist(),
    numpy.random.get_state()[1].tolist(),
    torch.get_num_threads(),
)
warnings.simplefilter('error')
import pyg_trust, pyg_trust.agp, pyg_trust.nn, pyg_trust.transforms
import pyg_trust.loader, pyg_trust.sampler
warnings.filters.pop(0)
after = (
    dict(os.environ),
    list(warnings.filters),
    random.getstate(),
    torch.get_rng_state().tolist(),
    numpy.random.get_state()[1].tolist(),
    torch.get_num_threads(),
)
assert before == after
"""
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ''
    assert done.stderr == ''


def test_packages_are_there_after_one_import():
    code = (
        'import sys, pyg_trust; '
        'assert "pyg_trust.transforms" not in sys.modules; '
        'pyg_trust.transforms.AGP; pyg_trust.nn.APPNP; '
        'assert "agp" in dir(pyg_trust); '
        'assert not hasattr(pyg_trust, "nothing")'
    )
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True)


SLOW = (
    'cvxpy',
    'dp_accounting',
    'highspy',
    'matplotlib',
    'scipy.fft',
    'scipy.optimize',
    'scipy.signal',
    'scipy.sparse.linalg',
    'scipy.special',
    'scipy.stats',
    'sklearn',
)


@pytest.mark.parametrize(
    ('imports', 'slow'),
    [
        ('pyg_trust', (*SLOW, 'opacus', 'scipy.sparse')),
        (
            'pyg_trust.certificates, pyg_trust.agp, pyg_trust.loader, '
            'pyg_trust.nn, pyg_trust.report, pyg_trust.sampler, '
            'pyg_trust.transforms, pyg_trust.unlearning',
            (*SLOW, 'opacus'),
        ),
    ],
)
def test_what_is_slow_is_imported_by_whoever_needs_it(imports, slow):
    # Beyond what PyG itself imports, which differs from version to version.
    code = (
        'import sys, torch_geometric; before = set(sys.modules); '
        f'import {imports}; '
        f'print(*[m for m in {slow} if m in set(sys.modules) - before])'
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == []


def names_of_the_last_release():
    for package, names in _moved._MOVED.items():
        for name, place in names.items():
            yield package, name, place


@pytest.mark.parametrize(
    ('package', 'name', 'place'), list(names_of_the_last_release())
)
def test_names_of_the_last_release_work_and_warn(package, name, place):
    module = importlib.import_module(f'pyg_trust.{package}')
    home, _, new = place.partition(':')
    assert name not in getattr(module, '__all__', ())
    with pytest.warns(DeprecationWarning, match=f'pyg_trust.{home}$') as said:
        found = getattr(module, name)
    # Whoever imports it is told, and not this package.
    assert said[0].filename == __file__
    home = importlib.import_module(f'pyg_trust.{home}')
    assert found is getattr(home, new or name)


def test_no_file_uses_a_name_of_the_last_release():
    root = Path(pyg_trust.__file__).parent.parent
    old = {f'{p}.{name}' for p, name, _ in names_of_the_last_release()}
    files = [
        *(root / 'docs').glob('*.*'),
        *(root / 'docs' / 'theory').glob('*.rst'),
    ]
    for folder in ('pyg_trust', 'examples', 'tests', 'benchmarks'):
        files += (root / folder).rglob('*.py')
    found = []
    for file in (root / 'README.md', root / 'CONTRIBUTING.md', *files):
        text = file.read_text()
        for package, names in re.findall(
            r'from pyg_trust\.(\w+) import (\([^)]*\)|[^(\n]*)', text
        ):
            for name in re.findall(r'\w+', names):
                if f'{package}.{name}' in old:
                    found.append((file.name, package, name))
        for package, name in re.findall(r'pyg_trust\.(\w+)\.(\w+)\b', text):
            if f'{package}.{name}' in old:
                found.append((file.name, package, name))
    assert not found
