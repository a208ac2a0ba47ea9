"""Builds pyg_trust and its one C++ extension.

Environment variables: ``FORCE_CUDA=1`` builds the CUDA sources without a GPU
in the machine (a toolkit is needed), ``FORCE_CUDA=0`` leaves them out,
``TORCH_CUDA_ARCH_LIST`` names the architectures, ``MAX_JOBS`` the number of
compilers that run side by side, ``PYG_TRUST_O=0`` compiles the C++ sources
without optimisation, to see whether they link.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from setuptools import setup

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / 'csrc'
DEFINES = ['-DTORCH_TARGET_VERSION=0x020a000000000000']
CUDA_ARCHS = '8.0;9.0+PTX'
NEWER_ARCHS = '8.0;9.0;10.0;12.0+PTX'  # what nvcc knows from 12.8 on


def version() -> str:
    """Reads the version, whose one home is ``pyg_trust/__init__.py``."""
    text = (ROOT / 'pyg_trust' / '__init__.py').read_text()
    found = re.search(r"^__version__ = '(.+)'$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError('no __version__ in pyg_trust/__init__.py')
    return found.group(1)


def cuda_home(sources: list[str]) -> str | None:
    """The CUDA toolkit to build with, or None to build for the CPU alone."""
    import torch
    from torch.utils import cpp_extension

    force = os.environ.get('FORCE_CUDA')
    wanted = torch.cuda.is_available() if force is None else force == '1'
    if not wanted or not sources:
        return None
    # A CPU build of torch looks for no toolkit.
    home = cpp_extension.CUDA_HOME or os.environ.get('CUDA_HOME')
    if home is None:
        default = Path('/usr/local/cuda')
        home = str(default) if default.exists() else None
    if home is None and force == '1':
        raise RuntimeError(
            'FORCE_CUDA=1, but no CUDA toolkit was found: set CUDA_HOME'
        )
    cpp_extension.CUDA_HOME = home
    return home


def cuda_archs(home: str) -> str:
    """The architectures to build for: Blackwell where nvcc knows it."""
    command = [str(Path(home) / 'bin' / 'nvcc'), '--version']
    try:
        said = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        said = ''
    found = re.search(r'release (\d+)\.(\d+)', said)
    new = found is not None and tuple(map(int, found.groups())) >= (12, 8)
    return NEWER_ARCHS if new else CUDA_ARCHS


def prefix_maps() -> list[str]:
    """Keeps the folders of this machine out of what checks print."""
    import torch

    if os.name == 'nt':
        return []
    folders = {ROOT: '.', Path(torch.__file__).parent: 'torch'}
    return [f'-fmacro-prefix-map={old}={new}' for old, new in folders.items()]


def build() -> dict[str, Any]:
    """The extension and the command that builds it."""
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    def relative(pattern: str) -> list[str]:
        found = sorted(CSRC.glob(pattern))
        return [str(path.relative_to(ROOT)) for path in found]

    sources = [*relative('*.cpp'), *relative('cpu/*.cpp')]
    # Fused multiply-adds would make the last bit depend on the processor and
    # on how many columns go through a kernel together.
    exact = '-ffp-contract=off'
    maps = prefix_maps()
    level = os.environ.get('PYG_TRUST_O', '3')
    cxx = [*DEFINES, '-std=c++20', f'-O{level}', '-g0', '-Wall', '-Wno-psabi']
    cxx += [exact, *maps]
    flags = {'cxx': cxx}
    options: dict[str, Any] = {'include_dirs': [str(CSRC)]}
    cuda_sources = relative('cuda/*.cu')
    home = cuda_home(cuda_sources)
    if home is not None:
        os.environ.setdefault('TORCH_CUDA_ARCH_LIST', cuda_archs(home))
        sources += cuda_sources
        flags['nvcc'] = [
            *DEFINES,
            '-std=c++20',
            '-O3',
            '--expt-relaxed-constexpr',
            *(part for flag in maps for part in ('-Xcompiler', flag)),
            '--extended-lambda',
            # The arithmetic of the CPU, operation by operation, so that both
            # sample the same.
            '--fmad=false',
            '-Xcompiler=-Wall',
            # The statics of CUB and of the runtime stay this library's own.
            '-Xcompiler=-fvisibility=hidden,-fno-gnu-unique',
        ]
        options['include_dirs'].append(str(Path(home) / 'include'))
        options['library_dirs'] = [str(Path(home) / 'lib64')]
        # Static: the library loads without a CUDA runtime, and with any.
        options['libraries'] = ['cudart_static', 'rt', 'dl', 'pthread']
    extension = CppExtension(
        'pyg_trust._C',
        sources,
        py_limited_api=True,
        extra_compile_args=flags,
        depends=relative('**/*.h'),
        **options,
    )
    return {
        'ext_modules': [extension],
        'cmdclass': {'build_ext': BuildExtension},
        'options': {'bdist_wheel': {'py_limited_api': 'cp310'}},
    }


setup(version=version(), **build())
