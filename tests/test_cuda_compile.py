"""The CUDA sources, and all sources with the oldest and the newest torch.

Headers are looked for in ~/.cache/pyg_trust/headers, and nothing is fetched.
Of torch 2.10.0, say, from a small wheel (which platform runs it is no matter):

    pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform macosx_11_0_arm64 -d /tmp torch==2.10.0
    unzip -q /tmp/torch-2.10.0*.whl 'torch/include/*' \\
        -d ~/.cache/pyg_trust/headers/2.10.0
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyg_trust import ops

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / 'csrc'
TARGET = '0x020a000000000000'
SOURCES = [path.name for path in sorted((CSRC / 'cuda').glob('*.cu'))]
RELEASES = ('oldest', 'newest')
# Compilers take minutes: where these files have changed, or all is run.
compiles = pytest.mark.sources('csrc/', 'setup.py')


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
        pytest.skip(f'no headers of the {release} torch')
    inside = found[-1] / 'torch' / 'include'
    return inside if inside.exists() else found[-1]


def test_setup_promises_the_torch_that_is_tested():
    assert (
        f'-DTORCH_TARGET_VERSION={TARGET}' in (ROOT / 'setup.py').read_text()
    )
    assert '"torch>=2.10",' in (ROOT / 'pyproject.toml').read_text()


def toolkit():
    # An nvcc on the path may be a script that calls another one.
    found = Path(shutil.which('nvcc') or '/').resolve().parent.parent
    homes = [os.environ.get('CUDA_HOME'), found, '/usr/local/cuda']
    for home in map(Path, filter(None, homes)):
        if (home / 'include' / 'cuda_runtime.h').exists():
            return home
    pytest.skip('needs a CUDA toolkit')


@compiles
@pytest.mark.parametrize('release', RELEASES)
def test_cuda_sources_compile(release, tmp_path):
    # All as one: headers, which are most of it, are read once.
    whole = tmp_path / 'whole.cu'
    whole.write_text(''.join(f'#include "cuda/{s}"\n' for s in SOURCES))
    compile_cuda(whole, release, tmp_path)


OPS = ('push', 'disjoint_walks')
LOAD = f"""
import sys, torch
torch.ops.load_library(sys.argv[1])
has = torch._C._dispatch_has_kernel_for_dispatch_key
print(*[op for op in {OPS} if not has(f'pyg_trust::{{op}}', 'CUDA')])
"""


@compiles
def test_the_library_with_cuda_builds_and_loads_without_a_gpu(tmp_path):
    home = toolkit()
    variables = {
        'TORCH_CUDA_ARCH_LIST': '9.0',  # one is enough to see errors
        'MAX_JOBS': str(os.cpu_count() or 2),
        'PYG_TRUST_O': '0',
        **os.environ,
        'FORCE_CUDA': '1',
        'CUDA_HOME': str(home),
    }
    build = [sys.executable, 'setup.py', '-q', 'build_ext', '--force']
    build += ['--build-lib', f'{tmp_path}/lib', '--build-temp', str(tmp_path)]
    done = subprocess.run(
        build, cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Compilers name the file; the other lines are the commands.
    warned = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if 'warning' in line and 'csrc' in line and ' -c ' not in line
    ]
    assert not warned
    (library,) = tmp_path.glob('lib/pyg_trust/_C*')
    command = [sys.executable, '-c', LOAD, str(library)]
    missing = subprocess.run(command, capture_output=True, text=True)
    assert (missing.returncode, missing.stdout) == (0, '\n'), missing.stderr


def compile_cuda(path, release, tmp_path):
    nvcc = toolkit() / 'bin' / 'nvcc'
    compile_(
        *(nvcc, '--cuda', '-std=c++20', f'-DTORCH_TARGET_VERSION={TARGET}'),
        *('-Xcicc', '-O0', '--expt-relaxed-constexpr', '--extended-lambda'),
        *('--fmad=false', '-Werror', 'all-warnings'),
        '-gencode=arch=compute_90,code=compute_90',
        *(f'-I{find_headers(release)}', f'-I{CSRC}'),
        *(path, '-o', tmp_path / 'out.ii'),
    )


@compiles
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
