"""Propagates features on a graph of ogbn-papers100M's size, on one machine.

Either the real one, from the raw files of OGB (``--root`` with
``raw/data.npz``), or a generated graph of its size: 111 million nodes, 1.6
billion stored entries, 128 float16 columns. ``--scale 0.01`` makes a
hundredth of it. Everything goes through the disk: the graph is built in
blocks, features are read and results written column by column, and a run that
was stopped goes on where it was when the same command is given again.

    python examples/papers100m.py --folder /data/papers --root ogbn_papers100M
    python examples/papers100m.py --folder /tmp/papers --scale 0.01
    torchrun --nproc-per-node 2 examples/papers100m.py --folder /tmp/papers
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from math import gcd
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from pyg_trust.agp.measures import appnp
from pyg_trust.agp.out_of_core import plan_memory, propagate_to
from pyg_trust.graph import CSRGraph

NODES, EDGES, COLUMNS = 111_059_956, 807_842_936, 128
CHUNK = 1 << 21


def generated_edges(
    num_nodes: int, num_edges: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Citations with a heavy tail: one end uniform, one often the same."""
    step = int(num_nodes * 0.618) | 1
    while gcd(step, num_nodes) > 1:
        step += 2
    for number, start in enumerate(range(0, num_edges, CHUNK)):
        generator = np.random.default_rng((seed, number))
        count = min(CHUNK, num_edges - start)
        row = generator.integers(num_nodes, size=count, dtype=np.int64)
        popular = generator.random(count, np.float32).astype(np.float64)
        col = (popular * popular * num_nodes).astype(np.int64)
        col *= step  # so that neighbouring numbers are not alike
        col %= num_nodes
        yield row, col


def write_features(path: Path, shape: tuple[int, int], seed: int) -> None:
    """A float16 matrix by rows, as preprocessing leaves it."""
    left = path.with_suffix('.tmp.npy')
    with left.open('wb') as file:
        np.lib.format.write_array_header_1_0(
            file, {'descr': '<f2', 'fortran_order': False, 'shape': shape}
        )
        rows = max(1, (1 << 23) // shape[1])
        for number, start in enumerate(range(0, shape[0], rows)):
            generator = np.random.default_rng((seed, 1, number))
            size = (min(rows, shape[0] - start), shape[1])
            values = generator.integers(-128, 128, size=size, dtype=np.int8)
            file.write((values.astype(np.float16) / 64).tobytes())
    left.replace(path)


def unpack_features(source: Path, path: Path) -> None:
    """The features in OGB's archive, as a file that can be mapped."""
    import shutil
    import zipfile

    left = path.with_suffix('.tmp.npy')
    with (
        zipfile.ZipFile(source) as archive,
        archive.open('node_feat.npy') as packed,
        left.open('wb') as file,
    ):
        shutil.copyfileobj(packed, file, 1 << 24)
    left.replace(path)


def peak() -> float:
    """The most gigabytes that this process has held, mapped files too."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmHWM'):
            return int(line.split()[1]) * 1024 / 1e9
    return float('nan')


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--folder', type=Path, required=True)
    parser.add_argument('--root', type=Path, help='of OGB, with raw/data.npz')
    parser.add_argument('--scale', type=float, default=1.0)
    parser.add_argument('--columns', type=int, default=COLUMNS)
    parser.add_argument('--levels', type=int, default=10)
    parser.add_argument('--alpha', type=float, default=0.1)
    parser.add_argument('--half', action='store_true')
    parser.add_argument('--memory', help='for graph and columns, as 8GB')
    parser.add_argument('--build-memory', default='4GB')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    over_ranks = int(os.environ.get('WORLD_SIZE', '1')) > 1
    if over_ranks:
        dist.init_process_group('gloo')
    first = not over_ranks or dist.get_rank() == 0
    args.folder.mkdir(parents=True, exist_ok=True)
    num_nodes = max(2, int(NODES * args.scale))
    num_edges = int(EDGES * args.scale)
    features = args.folder / 'x.npy'
    figures: dict[str, float | int | str] = {}

    if first and not (args.folder / 'graph.json').exists():
        start = time.perf_counter()
        raw = None if args.root is None else args.root / 'raw' / 'data.npz'
        graph = CSRGraph.from_edges(
            (lambda: generated_edges(num_nodes, num_edges, args.seed))
            if raw is None
            else raw,
            num_nodes if raw is None else NODES,
            folder=args.folder,
            memory=args.build_memory,
            duplicates='merge',
            undirected=True,
        )
        seconds = time.perf_counter() - start
        figures['build seconds'] = round(seconds, 1)
        figures['build ns per entry'] = round(
            seconds / graph.num_edges * 1e9, 1
        )
        figures['build peak GB'] = round(peak(), 2)
        print(f'built {graph}: {json.dumps(figures)}', flush=True)
    if first and not features.exists():
        if args.root is not None:
            unpack_features(args.root / 'raw' / 'data.npz', features)
        else:
            write_features(features, (num_nodes, args.columns), args.seed)
        print(f'features: {features.stat().st_size / 1e9:.1f} GB', flush=True)
    if over_ranks:
        dist.barrier()

    graph = CSRGraph.load(args.folder, mmap=True, verify=False)
    shape = np.load(features, mmap_mode='r').shape
    plan = plan_memory(
        graph.num_nodes,
        graph.num_edges,
        shape[1],
        memory=args.memory,
        half=args.half,
        mapped=True,
    )
    print(f'{graph}, {plan}', flush=True)
    resumed = (args.folder / 'z.npy.part').exists()
    start, used = time.perf_counter(), time.process_time()
    z = propagate_to(
        args.folder / 'z.npy',
        graph,
        features,
        appnp(args.alpha, K=args.levels),
        half=args.half,
        memory=args.memory,
        over_ranks=over_ranks,
    )
    seconds = time.perf_counter() - start
    used = time.process_time() - used
    steps = graph.num_edges * args.levels * shape[1] / 16
    figures.update(
        {
            'threads': torch.get_num_threads(),
            'wall seconds': round(seconds, 1),
            'CPU seconds': round(used, 1),
            'peak GB, mapped files too': round(peak(), 2),
        }
    )
    if not resumed:  # else some columns were there
        figures['CPU ns per entry, level and 16 columns'] = round(
            used / steps * 1e9, 2
        )
    if first:
        print(f'z: {list(z.shape)}; {json.dumps(figures, indent=1)}')
    if over_ranks:
        # A rank that ends while another still listens is aborted at times.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
