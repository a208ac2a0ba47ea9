#!/usr/bin/env python3
"""Sets up pyg_trust from a fresh clone, and runs something in it.

    python3 dev.py quickstart    train on AGP-propagated features
    python3 dev.py test          check the code and run the whole test suite
    python3 dev.py bench NAME    run benchmarks/NAME.py
    python3 dev.py docs          make the site: docs/build/index.html
    python3 dev.py package       build dist/, and test what it installs
    python3 dev.py headers       fetch the headers of two versions of torch

Needs Python 3.10 or later, with venv, and a C++ compiler. Everything else goes
into the environment ``.venv`` (or the one named by ``--env``), which is used
again as long as it fits. What follows ``--`` goes to what is run.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TORCH = 'torch==2.13.0'  # what the tests run with; any torch >= 2.10 will do
OLDEST = 'torch==2.10.0'
NEWEST = 'torch>=2.10'
TORCH_CPU_INDEX = 'https://download.pytorch.org/whl/cpu'
SPARSE = ('torch-scatter', 'torch-sparse')
NO_TESTS = 5  # pytest's exit status
EXTRAS = {
    'quickstart': ['examples'],
    'bench': ['bench', 'examples'],
    'docs': ['docs', 'examples'],
    'headers': ['test'],
    'package': ['examples', 'test'],
    'test': ['docs', 'examples', 'test'],
}


def say(text: str) -> None:
    """Tells what happens next."""
    print(f'==> {text}', flush=True)


def stop(text: str) -> None:
    """Ends with a message."""
    sys.exit(f'dev.py: {text}')


class Environment:
    """A virtual environment, and what is known to be installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        scripts = 'Scripts' if os.name == 'nt' else 'bin'
        self.python = folder / scripts / 'python'
        self.stamp = folder / 'pyg_trust.json'

    def ask(self, code: str) -> str | None:
        """What `code` prints, or None if it fails."""
        if not self.python.exists():
            return None
        run = subprocess.run(
            [self.python, '-c', code],
            capture_output=True,
            text=True,
            cwd=tempfile.gettempdir(),
        )
        return run.stdout.strip() if run.returncode == 0 else None

    def run(self, *command: str | Path, cwd: Path = ROOT) -> None:
        """Runs Python in the environment, and stops if it fails."""
        done = subprocess.run([self.python, *command], cwd=cwd)
        if done.returncode != 0:
            sys.exit(done.returncode)

    def pip(self, *arguments: str | Path) -> None:
        """Runs pip, which says what it does."""
        self.run('-m', 'pip', *arguments, '--progress-bar', 'off')

    def create(self) -> None:
        """Makes the environment, unless it is there and works."""
        version = self.ask('import sys; print(sys.version_info >= (3, 10))')
        if version == 'True':
            say(f'using the environment {self.folder}')
            return
        say(f'creating the environment {self.folder}')
        done = subprocess.run(
            [sys.executable, '-m', 'venv', '--clear', self.folder]
        )
        if done.returncode != 0:
            stop(
                "'python3 -m venv' failed; on Debian and Ubuntu it needs "
                "'apt-get install python3-venv'"
            )
        self.pip('install', '--upgrade', 'pip')
        self.pip('install', 'setuptools>=77', 'wheel', 'ninja')

    def torch(self) -> str:
        """Installs torch unless it is there; returns its version."""
        ask = 'import torch; print(torch.__version__)'
        found = self.ask(ask)
        if found is not None:
            if tuple(map(int, found.split('.')[:2])) < (2, 10):
                stop(f'torch 2.10 or later is needed (got {found})')
            return found
        cuda = not has_gpu() and self.torch_needs_cuda()
        if not (cuda and self.torch_without_cuda()):
            say(
                f'installing {TORCH} from the default index'
                + cuda * ', with CUDA: several GB to download and to keep'
            )
            self.pip('install', TORCH)
        found = self.ask(ask)
        if found is None:
            stop(f'{TORCH} was installed but cannot be imported')
        return str(found)

    def torch_without_cuda(self) -> bool:
        """Installs torch from the index that has it for CPUs, if it can."""
        say(f'installing {TORCH} from {TORCH_CPU_INDEX}')
        options = ['--index-url', TORCH_CPU_INDEX, '--progress-bar', 'off']
        command: list[str | Path] = [self.python, '-m', 'pip', 'install']
        command += [TORCH, *options, '--retries', '1', '--timeout', '20']
        done = subprocess.run(command)
        if done.returncode != 0:
            say(f'{TORCH_CPU_INDEX} does not give it')
        return done.returncode == 0

    def torch_needs_cuda(self) -> bool:
        """Whether the torch that pip would choose needs CUDA packages."""
        options = '--dry-run --ignore-installed --no-deps --quiet --report -'
        run = subprocess.run(
            [self.python, '-m', 'pip', 'install', *options.split(), TORCH],
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            return True  # it has none to offer: ask the CPU index
        chosen = json.loads(run.stdout)['install'][0]['metadata']
        needs = chosen.get('requires_dist', [])
        return any(need.startswith(('nvidia', 'cuda')) for need in needs)

    def install(self, extras: list[str], torch: str) -> None:
        """Builds and installs the package, unless nothing has changed."""
        old = json.loads(self.stamp.read_text()) if self.stamp.exists() else {}
        extras = sorted({*extras, *old.get('extras', [])})
        new = {'source': digest(), 'torch': torch, 'extras': extras}
        if new == old and list((ROOT / 'pyg_trust').glob('_C*')):
            say('pyg_trust is installed and up to date')
            return
        say('building and installing pyg_trust')
        self.stamp.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            constraint = Path(folder) / 'constraint.txt'
            constraint.write_text(f'torch=={torch}\n')
            self.pip(
                *('install', '--no-build-isolation', '--editable'),
                f'.[{",".join(extras)}]',
                *('--constraint', constraint),
            )
        self.stamp.write_text(json.dumps(new))

    def has_sparse(self) -> bool:
        """Whether torch-scatter and torch-sparse are there and work."""
        return self.ask('import torch_scatter, torch_sparse') is not None


class Wheels:
    """Builds torch-scatter and torch-sparse side by side, in the background.

    Wheels that pip kept are taken. One of them may be of another torch: then
    both are built again. The headers of torch are compiled first, as reading
    them is half of the work. A compiler that can't, or that wants other
    options, reads them as ever.
    """

    # Python's own flags ask for debug symbols: 40 % of the time.
    FLAGS = ('-DNDEBUG', '-g0')
    # What both setup.py and torch add to them.
    MORE = (
        *('-O3', '-std=c++20', '-fPIC', '-fopenmp', '-DAT_PARALLEL_OPENMP'),
        *('-DTORCH_API_INCLUDE_EXTENSION_H', '-DWITH_PYTHON'),
    )
    INCLUDES = """
import sysconfig
from torch.utils.cpp_extension import include_paths
for path in (*include_paths(), sysconfig.get_path('include')):
    print('-I' + path)
"""

    def __init__(self, env: Environment) -> None:
        say(
            'building torch-scatter and torch-sparse in the background, '
            'unless pip has them (11 minutes of processor time)'
        )
        self.env = env
        self.folder = tempfile.TemporaryDirectory()
        self.header = Path(self.folder.name) / 'once.h'
        self.began, self.told = time.monotonic(), False
        self.builds: list[subprocess.Popen[bytes]] = []
        self.first = threading.Thread(target=self.begin, daemon=True)
        self.first.start()

    def begin(self) -> None:
        """Compiles the headers of torch, and starts the builds."""
        self.header.write_text(
            '#include <torch/extension.h>\n#include <torch/script.h>\n'
        )
        compiler = shutil.which(os.environ.get('CXX', 'c++'))
        includes = (self.env.ask(self.INCLUDES) or '').splitlines()
        if compiler and includes:
            subprocess.run(
                [
                    *(compiler, *self.FLAGS, *self.MORE, *includes),
                    *('-x', 'c++-header', self.header),
                    *('-o', f'{self.header}.gch'),
                ],
                capture_output=True,
            )
        self.builds = self.start()

    def start(self, *options: str) -> list[subprocess.Popen[bytes]]:
        """Starts a build of each."""
        flags = ' '.join(self.FLAGS)
        # C compilers read CFLAGS too, but there is no C.
        if Path(f'{self.header}.gch').exists():
            flags += f' -include {self.header}'
        given = {
            'MAX_JOBS': str(max(1, (os.cpu_count() or 2) // 2)),
            'CFLAGS': flags,
            'CXXFLAGS': flags,
        }
        return [
            subprocess.Popen(
                [
                    self.env.python,
                    *('-m', 'pip', 'wheel', '-qq', '--no-deps'),
                    *('--no-build-isolation', '-w', self.folder.name),
                    *options,
                    name,
                ],
                env={**given, **os.environ},
            )
            for name in SPARSE
        ]

    def install(self) -> None:
        """Waits for the builds, and installs what they made."""
        self.first.join()
        for last in (False, True):
            codes = [
                self.wait(name, build)
                for name, build in zip(SPARSE, self.builds, strict=True)
            ]
            if any(codes):
                stop('torch-scatter or torch-sparse does not build')
            found = sorted(Path(self.folder.name).glob('*.whl'))
            self.env.pip('install', '--force-reinstall', '--no-deps', *found)
            self.env.pip('install', *found)  # and what they import
            if self.env.has_sparse():
                return
            if not last:
                say('the wheels that pip kept are of another torch: again')
                self.builds = self.start('--no-cache-dir')
        stop('torch-sparse was built but cannot be imported')

    def wait(self, name: str, build: subprocess.Popen[bytes]) -> int:
        """Waits for a build, and says every minute that it goes on."""
        while True:
            try:
                return build.wait(60 if self.told else 0)
            except subprocess.TimeoutExpired:
                minutes = (time.monotonic() - self.began) / 60
                say(f'{name} compiles, {minutes:.0f} minutes so far')
                self.told = True

    def cancel(self) -> None:
        """Ends builds that are not wanted any more."""
        for build in self.builds:
            build.terminate()


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers."""
    smi = shutil.which('nvidia-smi')
    return smi is not None and (
        subprocess.run([smi], capture_output=True).returncode == 0
    )


def digest() -> str:
    """A fingerprint of what an installation depends on."""
    files = [ROOT / 'setup.py', ROOT / 'pyproject.toml']
    files += sorted((ROOT / 'csrc').rglob('*.*'))
    together = hashlib.sha256()
    for file in files:
        together.update(file.read_bytes())
    return together.hexdigest()


def package(env: Environment, arguments: list[str]) -> None:
    """Builds sdist and wheel; installs that, and tests it from elsewhere."""
    say('building dist/')
    env.pip('install', 'build')
    shutil.rmtree(ROOT / 'dist', ignore_errors=True)
    env.run('-m', 'build', '--no-isolation', '--outdir', 'dist')
    (wheel,) = (ROOT / 'dist').glob('*.whl')
    say(f'building {checker_wheel(ROOT / "dist").name}')
    (sdist,) = (ROOT / 'dist').glob('*.tar.gz')
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            for path in (f'{ROOT}/', f'{Path.home()}/'):
                if path.encode() in archive.read(name):
                    stop(f'{name} in {wheel.name} holds the path {path}')
    with tempfile.TemporaryDirectory() as folder:
        clean = Environment(Path(folder) / 'env')
        clean.create()
        clean.torch()
        say(f'installing {wheel.name}')
        clean.pip('install', f'{wheel}[examples,test]')
        with tarfile.open(sdist) as archive:
            archive.extractall(folder)
        (source,) = Path(folder).glob('pyg_trust-*')
        shutil.rmtree(source / 'pyg_trust')
        say('pytest, without the source of the package')
        clean.run('-m', 'pytest', 'tests', *arguments, cwd=source)


CHECKER = """\
Metadata-Version: 2.1
Name: pyg_trust_check
Version: {version}
Summary: Checks trust reports of pyg_trust, without torch and without a build
Requires-Python: >=3.10
Requires-Dist: numpy>=1.26
Requires-Dist: scipy>=1.13
Requires-Dist: mpmath>=1.3
"""


def checker_wheel(folder: Path) -> Path:
    """Builds the wheel of the checker alone: its files and the kernel's."""
    text = (ROOT / 'pyg_trust' / '__init__.py').read_text()
    version = text.split("__version__ = '")[1].split("'")[0]
    name = f'pyg_trust_check-{version}'
    about = f'{name}.dist-info'
    files = {
        'pyg_trust_check/__init__.py': '"""Checks trust reports."""\n\n'
        'from .check import check_report  # noqa: F401\n\n'
        f'__version__ = {version!r}\n',
        'pyg_trust_check/__main__.py': '"""The command line."""\n\n'
        'import sys\n\nfrom .check.__main__ import main\n\n'
        'sys.exit(main())\n',
        f'{about}/METADATA': CHECKER.format(version=version),
        f'{about}/WHEEL': 'Wheel-Version: 1.0\nGenerator: dev.py\n'
        'Root-Is-Purelib: true\nTag: py3-none-any\n',
    }
    for part in ('check', 'kernel'):
        for file in sorted((ROOT / 'pyg_trust' / part).glob('*.py')):
            if file.name != 'step.py':  # needs torch
                files[f'pyg_trust_check/{part}/{file.name}'] = file.read_text()
    record = [
        f'{path},sha256={_record_hash(content)},{len(content.encode())}'
        for path, content in files.items()
    ]
    files[f'{about}/RECORD'] = '\n'.join([*record, f'{about}/RECORD,,', ''])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f'{name}-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            # No times: the same source gives the same file.
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel


def _record_hash(content: str) -> str:
    found = hashlib.sha256(content.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b'=').decode()


def docs(env: Environment, tutorials: bool = False) -> None:
    """The pages; a warning is an error, and so is a page that does not fit."""
    say('sphinx' + ', tutorials included (minutes)' * tutorials)
    os.environ['PYG_TRUST_TUTORIALS'] = str(int(tutorials))
    shutil.rmtree(ROOT / 'docs' / 'build', ignore_errors=True)
    options = ['-q', '-E', '-W', '--keep-going', '-b', 'html']
    env.run('-m', 'sphinx', *options, 'docs', 'docs/build')
    if tutorials:
        say('looking at the pages')
        env.run('docs/check_pages.py', 'docs/build')


def find_cuda() -> Path | None:
    """The CUDA toolkit with a compiler, if there is one."""
    nvcc = shutil.which('nvcc')
    homes = [
        os.environ.get('CUDA_HOME'),
        '/usr/local/cuda',
        Path(nvcc).resolve().parents[1] if nvcc else None,
    ]
    for home in homes:
        parts = ('bin/nvcc', 'include/cuda_runtime.h')
        if home and all((Path(home) / part).exists() for part in parts):
            return Path(home)
    return None


# The smallest wheels that have headers; which platform runs them is no matter.
WHEELS = [
    *('--no-deps', '--only-binary=:all:', '--python-version', '3.12'),
    *('--platform', 'macosx_14_0_arm64', '--platform', 'macosx_11_0_arm64'),
]
HEADERS = ('csrc/stable/', 'headeronly/', 'csrc/inductor/aoti_torch/')


def headers(env: Environment) -> None:
    """Fetches the headers of the oldest and of the newest torch.

    A wheel of about 100 MB each, of which the megabyte that the package
    includes is kept, in the user's cache (tests/test_cuda_compile.py reads
    it). What cannot be had is said, and is no error.
    """
    home = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    cache = Path(home) / 'pyg_trust' / 'headers'
    for wanted in (OLDEST, NEWEST):
        version = find_version(env, wanted)
        if version is None:
            say(f'no wheel of {wanted} can be had: no headers of it')
        elif not (cache / version).exists():
            say(f'fetching the headers of torch {version}')
            if not fetch_headers(env, version, cache):
                say(f'no wheel of torch {version} can be had')


def find_version(env: Environment, wanted: str) -> str | None:
    """The version that pip would choose, without its build number."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(env.python), '-m', 'pip', 'install', '--dry-run']
        command += ['--quiet']
        command += ['--ignore-installed', '--target', folder, '--report', '-']
        run = subprocess.run(
            [*command, *WHEELS, wanted], capture_output=True, text=True
        )
    if run.returncode != 0:
        return None
    return str(json.loads(run.stdout)['install'][0]['metadata']['version'])


def fetch_headers(env: Environment, version: str, cache: Path) -> bool:
    """Keeps the headers of one version as cache/version/torch/..."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(env.python), '-m', 'pip', 'download', '--quiet', '-d']
        done = subprocess.run(
            [*command, folder, *WHEELS, f'torch=={version}'],
            capture_output=True,
        )
        if done.returncode != 0:
            return False
        (wheel,) = Path(folder).glob('*.whl')
        kept = Path(folder) / 'kept'
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                inside = name.removeprefix('torch/include/torch/')
                if inside.startswith(HEADERS) and inside.endswith('.h'):
                    target = kept / 'torch' / inside
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        cache.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, also where two of these run.
        with tempfile.TemporaryDirectory(dir=cache) as beside:
            shutil.copytree(kept, Path(beside) / 'kept')
            try:
                (Path(beside) / 'kept').rename(cache / version)
            except OSError:
                return (cache / version).exists()
    return True


LOAD = """
import sys, torch
torch.ops.load_library(sys.argv[1])
for op in (
    'propagate',
    'propagate_entries',
    'push',
    'push_sparse',
    'disjoint_walks',
    'flip_bits',
):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(
        f'pyg_trust::{op}', 'CUDA'
    ):
        sys.exit(f'{op} has no CUDA kernel')
"""


def compile_cuda(env: Environment) -> None:
    """Compiles, links and loads the CUDA sources; no GPU is needed."""
    home = find_cuda()
    if home is None:
        say('no nvcc: the CUDA sources are not compiled')
        return
    say(f'compiling the CUDA sources with {home} (minutes)')
    variables = {
        'TORCH_CUDA_ARCH_LIST': '9.0',  # one is enough to see errors
        'MAX_JOBS': str(os.cpu_count() or 2),
        'PYG_TRUST_O': '0',  # of C++, which was compiled with all before
        **os.environ,
        'FORCE_CUDA': '1',
        'CUDA_HOME': str(home),
    }
    with tempfile.TemporaryDirectory() as folder:
        build: list[str | Path] = [
            *(env.python, 'setup.py', '-q', 'build_ext', '--force'),
            *('--build-lib', f'{folder}/lib', '--build-temp', folder),
        ]
        done = subprocess.run(
            build,
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            print(done.stdout)
            stop('the CUDA sources do not compile')
        for line in done.stdout.splitlines():
            # Compilers name the file; the other lines are the commands.
            if 'warning' in line and 'csrc' in line and ' -c ' not in line:
                print(line)
        (library,) = Path(folder).glob('lib/pyg_trust/_C*')
        env.run('-c', LOAD, library)
    headers(env)  # tests compile against them


# Minutes of one quiet core.
BUILD, SPARSE_BUILD, CHECKS, TESTS, SLOW_TESTS = 6, 11, 7, 26, 14


def estimate(env: Environment) -> str:
    """How long `test` takes, roughly, before anything of it is done."""
    cores = os.cpu_count() or 2
    work = CHECKS + TESTS + SLOW_TESTS * bool(os.environ.get('CI'))
    text = f'about {work / cores:.0f} minutes of checks and tests'
    if not env.stamp.exists():
        text += f', after {BUILD / cores:.0f} or more of installing'
    if not env.has_sparse():
        text += (
            f'; torch-sparse may add {SPARSE_BUILD / cores:.0f}, as it is '
            'compiled beside them'
        )
    return f'{text} ({cores} cores, if they are quiet)'


def test(env: Environment, arguments: list[str]) -> None:
    """Lint, format, types, API pages, CUDA sources, tests.

    Types and pages take one core each, and run side by side. What needs
    torch-scatter and torch-sparse comes last: they are built beside the rest.
    """
    wheels = None if env.has_sparse() else Wheels(env)
    try:
        say('ruff check')
        env.run('-m', 'ruff', 'check', '.')
        say('ruff format --check')
        env.run('-m', 'ruff', 'format', '--check', '.')
        with ThreadPoolExecutor(2) as pool:
            checks = (types, docs, compile_cuda)
            for ended in [pool.submit(check, env) for check in checks]:
                ended.result()
        # In order, so that few of what a module makes once are made twice.
        workers = ['-n', str(os.cpu_count() or 2), '--dist', 'worksteal']
        if wheels is None:
            say('pytest')
            env.run('-m', 'pytest', *workers, *arguments)
            return
        say('pytest: what needs neither torch-scatter nor torch-sparse')
        pytest(env, '-m', 'not sparse', *workers, *arguments)
        wheels.install()
        say('pytest: the rest')
        # All files take half a minute to read; these have such tests.
        files = [
            file
            for file in sorted((ROOT / 'tests').rglob('test_*.py'))
            if 'mark.sparse' in file.read_text()
        ]
        pytest(env, '-m', 'sparse', *workers, *(arguments or files))
    except BaseException:
        if wheels is not None:
            wheels.cancel()
        raise


def types(env: Environment) -> None:
    """Static types."""
    say('mypy')
    env.run('-m', 'mypy')
    # By itself: a benchmark has its name.
    env.run('-m', 'mypy', 'examples/node_unlearning.py')


def pytest(env: Environment, *arguments: str | Path) -> None:
    """Runs some of the tests; there may be none of a kind in a selection."""
    run = subprocess.run([env.python, '-m', 'pytest', *arguments], cwd=ROOT)
    if run.returncode not in (0, NO_TESTS):
        sys.exit(run.returncode)


def main() -> None:
    """The command line."""
    arguments, rest = sys.argv[1:], []
    if '--' in arguments:
        at = arguments.index('--')
        arguments, rest = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('command', choices=list(EXTRAS))
    parser.add_argument('name', nargs='?', help='of the benchmark')
    parser.add_argument('--env', type=Path, default=ROOT / '.venv')
    args = parser.parse_args(arguments)
    if args.command == 'bench' and args.name is None:
        names = [f.stem for f in sorted((ROOT / 'benchmarks').glob('*.py'))]
        stop(f'bench needs a name, one of {", ".join(names)}')

    if sys.version_info < (3, 10):  # noqa: UP036 (that is what it asks)
        stop(f'needs Python 3.10 or later (got {platform.python_version()})')
    compilers = [os.environ.get('CXX'), 'c++', 'g++', 'clang++', 'cl']
    if not any(shutil.which(name) for name in compilers if name):
        stop('needs a C++ compiler (g++ or clang++), and found none')

    env = Environment(args.env.absolute())
    if args.command == 'test':
        say(estimate(env))
    env.create()
    version = env.torch()
    env.install(EXTRAS[args.command], version)

    if args.command == 'test':
        test(env, rest)
    elif args.command == 'headers':
        headers(env)
    elif args.command == 'package':
        package(env, rest)
    elif args.command == 'docs':
        docs(env, tutorials=True)
    else:
        script = (
            ROOT / 'examples' / 'quickstart.py'
            if args.command == 'quickstart'
            else ROOT / 'benchmarks' / f'{args.name}.py'
        )
        say(f'running {script.relative_to(ROOT)}')
        env.run(script, *rest)


if __name__ == '__main__':
    main()
