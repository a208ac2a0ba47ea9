"""Disjoint walks against plain Python, as ratios of one interleaved run.

Peers, both with adjacency lists that are built beforehand: `python` lists the
unclaimed neighbours of a node and chooses one; `python, tries` tries a few
neighbours first, as we do. A ratio above one means that we are faster. Then
the growth of our time with the graph: nanoseconds per edge and per node that
is claimed (the ratio to the smallest graph is what to look at), with the
checks of the result in it. `loader` is a batch of 1,000 subgraphs, drawn and
filtered, as a multiple of one partition. `star` is the walks of one hub that
claims half of its neighbours, one walk each; on CUDA, where one root's walks
come one after the other, 10,000 at most. Last, ego graphs drawn by coins.

A walk reads where a row starts, then a neighbour in it, then whether that is
claimed: each address comes from the read before. The floor of the growth on
the CPU is that of such reads alone: `chase` follows one random cycle through
as many bytes as the graph and the claims have, three reads for each node
(compiled by numba; without it there is no floor). Their growth is the target
where it is above 1.5, as a walk can't start before its root is known to be
free; the work beside the reads grows less.

With --device cuda, ours run on the GPU and are compared with ours on the CPU
as well. The floor is the time to move four sectors of 32 bytes for every node,
at the speed of a copy: where its row starts, a neighbour, whether that is
claimed, and the claim.
"""

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import bandwidth, interleaved, power_law, result
from torch_geometric.data import Data

from pyg_trust.graph import CSRGraph
from pyg_trust.loader import DisjointWalkLoader, EgoLoader
from pyg_trust.sampler import walks as F
from pyg_trust.transforms import BoundedDegree

CASES = [(1, 1), (2, 1), (1, 2), (2, 2), (5, 1)]


def python_walks(
    neighbours: list[list[int]], walk_length: int, restarts: int, tries: int
) -> list[list[int]]:
    """Algorithms 2 and 3 in plain Python."""
    order = list(range(len(neighbours)))
    random.shuffle(order)
    claimed = [False] * len(neighbours)
    subgraphs = []
    for root in order:
        if claimed[root]:
            continue
        claimed[root] = True
        subgraph = [root]
        for _ in range(restarts):
            v = root
            for _ in range(walk_length):
                row = neighbours[v]
                for _ in range(tries if row else 0):
                    v = row[int(random.random() * len(row))]
                    if not claimed[v]:
                        break
                else:
                    free = [w for w in row if not claimed[w]]
                    if not free:
                        break
                    v = random.choice(free)
                claimed[v] = True
                subgraph.append(v)
        subgraphs.append(subgraph)
    return subgraphs


def against_python(
    num_nodes: int, num_edges: int, repeats: int, device: str
) -> None:
    """The ratios to both peers, and, on a GPU, to our own on the CPU."""
    edge_index = power_law(num_nodes, num_edges)
    graph = CSRGraph.from_edge_index(edge_index, num_nodes)
    neighbours = [[] for _ in range(num_nodes)]  # type: list[list[int]]
    for u, v in zip(*edge_index.tolist(), strict=True):
        neighbours[u].append(v)
    print(
        f'{num_nodes} nodes, {graph.num_edges} directed edges, largest '
        f'degree {int(graph.degree.max())}'
    )
    there = graph.to(device)
    floor = 4 * 32 * num_nodes / bandwidth(device)
    print(f'{"L":>3}{"R":>3}{"M":>8}{"python":>10}{"python, tries":>16}')
    for length, restarts in CASES:
        seconds, results = interleaved(
            {
                'ours': partial(F.disjoint_walks, there, length, restarts),
                'cpu': partial(F.disjoint_walks, graph, length, restarts),
                'python': partial(
                    python_walks, neighbours, length, restarts, 0
                ),
                'tries': partial(
                    python_walks, neighbours, length, restarts, 4
                ),
            },
            repeats,
        )
        python, tries = (
            seconds[name] / seconds['ours'] for name in ('python', 'tries')
        )
        count = results['ours'].num_subgraphs
        print(
            f'{length:>3}{restarts:>3}{count:>8}{python:>10.1f}{tries:>16.1f}'
            f'    ours {1e3 * seconds["ours"]:.2f} ms, floor '
            f'{1e3 * floor:.2f} ms, x CPU '
            f'{seconds["cpu"] / seconds["ours"]:.1f}',
            flush=True,
        )
        if (length, restarts) == (2, 1):
            result('walks of two steps, plain Python over ours', python, 15)


def chase(num_bytes: int, num_reads: int) -> Callable[[], Any] | None:
    """Reads that wait for each other, in so many bytes; None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    order = torch.randperm(num_bytes // 4, dtype=torch.int32)
    after = torch.empty_like(order)
    after[order.long()] = order.roll(-1)

    def follow(after: Any, num_reads: int) -> int:
        at = 0
        for _ in range(num_reads):
            at = after[at]
        return at

    return partial(njit(follow), after.numpy(), num_reads)


def growth(sizes: list[int], repeats: int, device: str) -> None:
    """The time per edge as the graph grows."""
    print(f'{"edges":>10}{"L":>3}{"R":>3}{"ns/edge":>10}{"ratio":>8}', end='')
    print(f'{"star: ns/edge":>16}{"loader":>9}')
    first: dict[tuple[int, int], float] = {}
    bare: dict[tuple[int, int], float] = {}
    for num_edges in sizes:
        n = num_edges // 10
        edge_index = power_law(n, num_edges).to(device)
        graph = CSRGraph.from_edge_index(edge_index, n)
        spokes = torch.arange(1, num_edges // 2 + 1, device=device)
        spokes = torch.stack([torch.zeros_like(spokes), spokes])
        # A second at most, at a microsecond or so for each load that waits.
        walks = num_edges // 4
        walks = walks if device == 'cpu' else min(walks, 10_000)
        star = CSRGraph.from_edge_index(
            torch.cat([spokes, spokes.flip(0)], 1), num_edges // 2 + 1
        )
        data = Data(edge_index=edge_index, num_nodes=n)
        data.x = torch.zeros(n, 16, device=device)
        loader = DisjointWalkLoader(data, 1000, 2, num_steps=1, seed=0)
        held = graph.rowptr.nbytes + graph.col.nbytes + n
        reads = chase(held, 3 * n) if device == 'cpu' else None
        for length, restarts in ((2, 1), (2, 2)):
            seconds, _ = interleaved(
                {
                    **({'chase': reads} if reads else {}),
                    'ours': partial(F.disjoint_walks, graph, length, restarts),
                    'star': partial(
                        F.disjoint_walks,
                        star,
                        length,
                        walks,
                        roots=torch.tensor([0], device=device),
                    ),
                    'loader': partial(list, loader),
                },
                repeats,
                time.process_time if device == 'cpu' else time.perf_counter,
            )
            per_edge = 1e9 * seconds['ours'] / graph.num_edges
            base = first.setdefault((length, restarts), per_edge)
            floor = seconds.get('chase', 0.0) / graph.num_edges
            floor /= bare.setdefault((length, restarts), floor) or 1.0
            if num_edges == sizes[-1]:
                result(
                    f'ns per edge, {num_edges} over {sizes[0]} edges, '
                    f'L={length}, R={restarts}; bare reads that wait '
                    f'{floor:.2f}',
                    per_edge / base,
                    max(1.5, round(floor, 2)),
                    at_most=True,
                )
            print(
                f'{graph.num_edges:>10}{length:>3}{restarts:>3}'
                f'{per_edge:>10.1f}{per_edge / base:>8.2f}'
                f'{1e9 * seconds["star"] / star.num_edges:>16.1f}'
                f'{seconds["loader"] / seconds["ours"]:>9.2f}',
                flush=True,
            )


def coins(num_nodes: int, repeats: int) -> None:
    """Ego graphs drawn by coins over those of a fixed number."""
    data = Data(edge_index=power_law(num_nodes, 10 * num_nodes))
    data.x = torch.zeros(num_nodes, 64)
    data = BoundedDegree(4)(data)
    cases: dict[str, Callable[[], Any]] = {
        name: partial(
            list,
            EgoLoader(
                *(data, num_nodes // 20, 1, 4),
                num_steps=100,
                sampling=name,
                seed=0,
            ),
        )
        for name in ('without_replacement', 'poisson')
    }
    seconds, _ = interleaved(cases, repeats)
    ratio = seconds['poisson'] / seconds['without_replacement']
    result('ego graphs by coins over without', ratio, 1.05, at_most=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--num_nodes', type=int, default=100_000)
    parser.add_argument('--num_edges', type=int, default=2_200_000)
    parser.add_argument(
        '--growth',
        type=int,
        nargs='*',
        default=[300_000, 1_000_000, 3_000_000, 10_000_000],
    )
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    against_python(args.num_nodes, args.num_edges, args.repeats, args.device)
    growth(args.growth, args.repeats, args.device)
    if args.device == 'cpu':
        coins(13_482, args.repeats)


if __name__ == '__main__':
    main()
