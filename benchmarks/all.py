"""Runs every benchmark and writes RESULTS.md: each target beside its figure.

    python benchmarks/all.py --data DATA

DATA holds the real graphs, as the options of the single benchmarks say; what
needs one that is not there is left out, and RESULTS.md says so. A long
benchmark is divided into runs, a section each. With --only, which takes
benchmarks ('push') or runs ('push --only wide --sizes 1m'), the other sections
stay as they are.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = (
    'torch',
    'torch-geometric',
    'opacus',
    'scipy',
    'cvxpy',
    'highspy',
    'numba',
)
NOT_RUN = ('all', 'common')
# What tells a benchmark where the real graphs are, and which folder it wants.
DATA = {
    'certificates': ('--data', '.'),
    'check': ('--data', '.'),
    'exact': ('--data', '.'),
    'facebook100': ('--data', 'facebook100'),
    'links': ('--data', '.'),
    'node_unlearning': ('--root', '.'),
    'scattering': ('--root', 'TU'),
    'sharding': ('--root', '.'),
    'smoothing': ('--data', '.'),
    'typed': ('--data', '.'),
    'unlearning': ('--root', 'TU'),
}
# The runs of long benchmarks.
RUNS = {
    'node_unlearning': ['speed', 'sound', 'accuracy', 'push', 'large'],
    'certificates': ['local', 'global', 'whole', 'training', 'scaling'],
    'living': ['', '--part large'],
    'typed': ['accuracy forget unit', 'steps batch'],
    'exact': [f'--graphs {name}' for name in ('facebook', 'sbm200k', 'pl200k')]
    + [
        '--only dense --columns 16 32 128',
        '--only threads --graphs facebook sbm200k --repeats 25',
    ],
    'scale': [
        f'--edges {edges} --nodes {nodes}'
        for edges, nodes in (
            (120_000_000, 8_000_000),
            (300_000_000, 20_000_000),
        )
    ],
    'smoothing': [
        'draw',
        'sample',
        'radii',
        'lp',
        'shares',
        'attacks',
        'shards',
        'large',
    ],
    'push': [
        f'--only {part} --sizes {size}'
        for part in ('single', 'topk', 'memory', 'threads')
        for size in ('200k', '1m')
    ]
    + [
        f'--only wide --graphs {graph} --sizes {size}'
        for graph in ('sbm', 'pl')
        for size in ('200k', '1m')
    ]
    + ['--only scale'],
    'sharding': ['--what accuracy --datasets Cora']
    + [f'--what cost --datasets {name}' for name in ('Cora', 'facebook')]
    + [
        f'--what removal --datasets {name}'
        for name in ('facebook', 'twitch_engb')
    ],
}
LARGE = ('1m', 'only scale')  # what --quick leaves out

HEAD = """# Results

Written by `python benchmarks/all.py --data DATA`. Every figure is a ratio
of interleaved runs or a count, taken in one run of its benchmark, beside its
target. Absolute times are not kept: they say little about another machine.
Only `living` has events a second and milliseconds, as its targets do. The
last cache of the machine, which decides much of exact propagation, is named
since 2026-11-29.
"""


def installed(peer: str) -> str:
    """The version of a peer, or that it is not there."""
    try:
        return version(peer)
    except PackageNotFoundError:
        return 'not installed'


def last_cache() -> str:
    """The size of the last cache before memory, where Linux tells it."""
    sizes = sorted(Path('/sys/devices/system/cpu/cpu0/cache').glob('*/size'))
    return sizes[-1].read_text().strip() if sizes else 'unknown'


SYSTEM = (
    f'Python {platform.python_version()}, {os.cpu_count()} cores, '
    f'last cache {last_cache()}, '
    + ', '.join(f'{peer} {installed(peer)}' for peer in PEERS)
)


def run(name: str, arguments: list[str]) -> tuple[int, list[list]]:
    """Runs one benchmark; its exit code and its results."""
    print(f'==> {name} {" ".join(arguments)}', flush=True)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / 'results.jsonl'
        lines.touch()
        done = subprocess.run(
            [sys.executable, HERE / f'{name}.py', *arguments],
            env={**os.environ, 'PYG_TRUST_RESULTS': str(lines)},
        )
        text = lines.read_text()
    return done.returncode, [json.loads(line) for line in text.splitlines()]


def read(path: Path) -> dict[str, str]:
    """The sections of an earlier run."""
    if not path.exists():
        return {}
    parts = path.read_text().split('\n## ')[1:]
    pairs = (part.split('\n', 1) for part in parts)
    return {name.strip(): text.strip() for name, text in pairs}


def write(path: Path, sections: dict[str, str]) -> None:
    """All sections, in the order of their names."""
    parts = [HEAD, *(f'## {k}\n\n{v}\n' for k, v in sorted(sections.items()))]
    path.write_text('\n'.join(parts))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--data', type=Path, help='the folder of CitationFull, MUSAE, TU, ...'
    )
    parser.add_argument('--quick', action='store_true', help='small graphs')
    parser.add_argument('--only', nargs='*', help='benchmarks or runs')
    parser.add_argument('--out', type=Path, default=HERE / 'RESULTS.md')
    args = parser.parse_args()

    found = sorted(file.stem for file in HERE.glob('*.py'))
    runs = [
        f'{name} {part}'.strip()
        for name in found
        if name not in NOT_RUN
        for part in RUNS.get(name, [''])
    ]
    if args.quick:
        runs = [which for which in runs if not which.endswith(LARGE)]
    sections = {}
    if args.only:
        sections = read(args.out)
        runs = [
            which for which in runs if {which, which.split()[0]} & {*args.only}
        ]
    failed = []
    for which in runs:
        name, *arguments = which.split()
        text = (HERE / f'{name}.py').read_text()
        if args.quick and "'--quick'" in text:
            arguments.append('--quick')
        shown = arguments.copy()
        if name in DATA:
            option, folder = DATA[name]
            if args.data is None:
                sections.setdefault(which, 'Not run: needs `--data`.')
                write(args.out, sections)
                continue
            if not (args.data / folder).is_dir():
                sections.setdefault(which, f'Not run: needs `DATA/{folder}`.')
                write(args.out, sections)
                continue
            arguments += [option, str(args.data / folder)]
            shown += [option, str(Path('DATA') / folder)]
        code, results = run(name, arguments)
        command = f'python benchmarks/{name}.py'
        if shown:
            command += f' {" ".join(shown)}'
        lines = [f'`{command}`, {date.today()}; {SYSTEM}.']
        if results:
            lines += [
                '',
                '| | reached | target | |',
                '| --- | --- | --- | --- |',
            ]
        for what, reached, target, met in results:
            mark = 'met' if met else '**missed**'
            lines.append(f'| {what} | {reached:.4g} | {target} | {mark} |')
        if code != 0:
            failed.append(which)
            lines += ['', f'It stopped early, with exit code {code}.']
        sections[which] = '\n'.join(lines)
        write(args.out, sections)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


if __name__ == '__main__':
    main()
