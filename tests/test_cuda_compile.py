"""The sources against the headers of the oldest and of the newest torch.

``python3 dev.py headers`` fetches them, ``dev.py test`` where ``nvcc`` is
found; nothing is fetched here. No code is made for the device, or little.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyg_trust import ops

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / 'csrc'
TARGET = '0x020a000000000000'
SOURCES = [path.name for path in sorted((CSRC / 'cuda').glob('*.cu'))]
RELEASES = ('oldest', 'newest')


def find_headers(release):
    home = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    found = sorted(
        (Path(home) / 'pyg_trust' / 'headers').glob('[0-9]*'),
        key=lambda path: [int(n) for n in re.findall(r'\d+', path.name)],
    )
    if release == 'oldest':
        found = [path for path in found if path.name.startswith('2.10.')]
    else:
        found = [path for path in found if not path.name.startswith('2.10.')]
    if not found:
        pytest.skip(f"no headers of the {release} torch: 'dev.py headers'")
    return found[-1]


def test_setup_promises_the_torch_that_is_tested():
    assert (
        f'-DTORCH_TARGET_VERSION={TARGET}' in (ROOT / 'setup.py').read_text()
    )
    assert '"torch>=2.10",' in (ROOT / 'pyproject.toml').read_text()


@pytest.mark.slow
@pytest.mark.parametrize('release', RELEASES)
def test_cuda_sources_compile(release, tmp_path):
    # All as one: headers, which are most of it, are read once.
    whole = tmp_path / 'whole.cu'
    whole.write_text(''.join(f'#include "cuda/{s}"\n' for s in SOURCES))
    compile_cuda(whole, release, tmp_path)


@pytest.mark.skipif(
    not os.environ.get('FULL_TEST'), reason='minutes: set FULL_TEST=1'
)
@pytest.mark.parametrize('release', RELEASES)
@pytest.mark.parametrize('source', SOURCES)
def test_every_cuda_source_compiles_alone(source, release, tmp_path):
    # With the headers that it includes itself, as setup.py compiles it.
    compile_cuda(CSRC / 'cuda' / source, release, tmp_path)


def compile_cuda(path, release, tmp_path):
    nvcc = shutil.which('nvcc') or '/usr/local/cuda/bin/nvcc'
    if not Path(nvcc).exists():
        pytest.skip('needs nvcc')
    compile_(
        *(nvcc, '--cuda', '-std=c++20', f'-DTORCH_TARGET_VERSION={TARGET}'),
        *('-Xcicc', '-O0', '--expt-relaxed-constexpr', '--extended-lambda'),
        *('--fmad=false', '-Werror', 'all-warnings'),
        '-gencode=arch=compute_90,code=compute_90',
        *(f'-I{find_headers(release)}', f'-I{CSRC}'),
        *(path, '-o', tmp_path / 'out.ii'),
    )


@pytest.mark.skipif(
    not os.environ.get('FULL_TEST'), reason='a minute: set FULL_TEST=1'
)
@pytest.mark.parametrize('release', RELEASES)
def test_sources_of_the_cpu_compile(release, tmp_path):
    headers = find_headers(release)
    cxx = os.environ.get('CXX') or shutil.which('g++') or shutil.which('c++')
    if cxx is None:
        pytest.skip('needs a C++ compiler')
    options = [
        *('-std=c++20', '-Wno-psabi', f'-DTORCH_TARGET_VERSION={TARGET}'),
        *(f'-I{headers}', f'-I{CSRC}'),
    ]
    # Read once for all.
    common = tmp_path / 'common.h'
    common.write_text(
        ''.join(
            f'#include <torch/csrc/stable/{name}.h>\n'
            for name in ('library', 'ops', 'tensor')
        )
    )
    compile_(cxx, *options, '-x', 'c++-header', common)
    for path in sorted([*CSRC.glob('*.cpp'), *(CSRC / 'cpu').glob('*.cpp')]):
        if 'torch/' in path.read_text():
            compile_(cxx, *options, '-fsyntax-only', '-include', common, path)


def compile_(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_library_asks_of_torch_what_the_oldest_has():
    nm = shutil.which('nm')
    if nm is None:
        pytest.skip('needs nm')
    declared = set()
    for path in find_headers('oldest').rglob('*.h'):
        declared.update(re.findall(r'\b\w+\b', path.read_text()))
    (library,) = Path(ops.__file__).parent.glob('_C*.so')
    listed = subprocess.run(
        [nm, '-D', '--undefined-only', library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = set()
    for line in listed.splitlines():
        kind, name = line.split()[-2:]
        # Weak ones (w) may be missing.
        if kind == 'U' and re.match(r'(aoti_)?torch_', name):
            wanted.add(name.partition('@')[0])
    assert len(wanted) > 10
    assert wanted <= declared
