#!/usr/bin/env python3
"""Sets up pyg_trust from a fresh clone, and runs something in it.

    python3 dev.py quickstart          the examples' quickstart
    python3 dev.py test [ARGUMENTS]    lint, types, and pytest ARGUMENTS

Without it: ``pip install --no-build-isolation -e '.[dev]'`` and ``pytest``.

It needs Python 3.10 or later, with venv, and a C++ compiler. Everything else
goes into the environment ``.venv`` (or the one that PYG_TRUST_ENV names),
which is used again as long as it fits. Tests run in tiers (tests/tiers.py):
``--tier=ci`` is what a change has to pass, ``--tier=deep`` is all.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TORCH = 'torch==2.13.0'  # what the tests run with; any torch >= 2.10 will do
TORCH_CPU_INDEX = 'https://download.pytorch.org/whl/cpu'
# Minutes of two quiet cores: to install, to check the code, and of each tier.
INSTALL, CHECKS, TIERS = 4, 2, {'local': 4, 'ci': 9, 'deep': 24}


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

    def run(self, *command: str | Path) -> None:
        """Runs Python in the environment, and stops if it fails."""
        done = subprocess.run([self.python, *command], cwd=ROOT)
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

    def sparse(self) -> None:
        """Installs torch-scatter and torch-sparse, if they build."""
        if self.ask('import torch_scatter, torch_sparse') is not None:
            return
        say('building torch-scatter and torch-sparse (11 minutes of a core)')
        options = ['install', '--no-build-isolation', '--progress-bar', 'off']
        command: list[str | Path] = [self.python, '-m', 'pip', *options]
        flags = {'CFLAGS': '-g0', 'CXXFLAGS': '-g0', **os.environ}
        wanted = ['torch-scatter>=2.1.2', 'torch-sparse>=0.6.18']
        if subprocess.run([*command, *wanted], env=flags).returncode != 0:
            say('they do not build: tests that need them are skipped')


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


def tier_of(arguments: list[str]) -> str:
    """The tier that pytest is asked for."""
    found = [a for a in arguments if a.startswith('--tier=')]
    return found[-1].removeprefix('--tier=') if found else 'local'


def estimate(env: Environment, tier: str) -> str:
    """How long `test` takes, roughly, before anything of it is done."""
    cores = os.cpu_count() or 2
    minutes = (CHECKS + TIERS.get(tier, 0)) * 2 / cores
    text = f'tier {tier}: about {minutes:.0f} minutes of checks and tests'
    if not env.stamp.exists():
        text += f', after {INSTALL * 2 / cores:.0f} or more of installing'
    return f'{text} ({cores} cores, if they are quiet)'


def test(env: Environment, arguments: list[str]) -> None:
    """Lint, format, types; then pytest, in as many processes as cores."""
    say('ruff check')
    env.run('-m', 'ruff', 'check', '.')
    say('ruff format --check')
    env.run('-m', 'ruff', 'format', '--check', '.')
    say('mypy')
    env.run('-m', 'mypy')
    say('pytest')
    # In order, so that few of what a module makes once are made twice.
    workers = ['-n', str(os.cpu_count() or 2), '--dist', 'worksteal']
    env.run('-m', 'pytest', *workers, *arguments)


def main() -> None:
    """The command line."""
    command, *arguments = sys.argv[1:] or ['']
    if command not in ('quickstart', 'test'):
        stop(str(__doc__))
    if sys.version_info < (3, 10):  # noqa: UP036 (that is what it asks)
        stop(f'needs Python 3.10 or later (got {platform.python_version()})')
    compilers = [os.environ.get('CXX'), 'c++', 'g++', 'clang++', 'cl']
    if not any(shutil.which(name) for name in compilers if name):
        stop('needs a C++ compiler (g++ or clang++), and found none')
    folder = os.environ.get('PYG_TRUST_ENV') or ROOT / '.venv'
    env = Environment(Path(folder).absolute())
    if command == 'test':
        say(estimate(env, tier_of(arguments)))
    env.create()
    version = env.torch()
    if command == 'quickstart':
        env.install(['examples'], version)
        say('running examples/quickstart.py')
        env.run(ROOT / 'examples' / 'quickstart.py', *arguments)
        return
    env.install(['dev'], version)
    if tier_of(arguments) == 'deep':
        env.sparse()
    test(env, arguments)


if __name__ == '__main__':
    main()
