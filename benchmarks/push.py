"""AGP against plain sparse products, as ratios of one interleaved run.

Two questions: propagating 64 feature columns (the exact path and several eps,
against torch's CSR @ dense and scipy's), and a query from a single node
(against power iteration by torch's CSR @ vector and scipy's). A ratio above
one means that we are faster than the peer. Errors stand beside every figure:
relF is |z - exact|_F / |exact|_F, max|e| the largest absolute error.

With --device cuda, ours and torch run on the GPU, scipy on the CPU. The floor
of the exact path is the time to move, at the speed of a copy, what it reads
and writes if no row is in a cache when it is gathered.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from common import bandwidth, interleaved, power_law
from torch import Tensor

from pyg_trust import functional as F
from pyg_trust.functional import Measure
from pyg_trust.graph import CSRGraph, sparse_rows

SIZES = {'200k': (200_000, 2_000_000), '1m': (1_000_000, 10_000_000)}


def operators(graph: CSRGraph, measure: Measure) -> tuple:
    """The matrix D^-a A D^-b, in float32, for torch and for scipy."""
    graph = graph.with_self_loops() if measure.self_loops else graph
    rowptr, col = graph.receivers(measure.along)
    recv = graph.degree_power(-measure.a, torch.float32)
    send = graph.degree_power(-measure.b, torch.float32)
    value = recv.repeat_interleave(rowptr.diff()) * send[col.long()]
    size = (graph.num_nodes, graph.num_nodes)
    ours = sparse_rows(rowptr, col.long(), value, size)
    theirs = scipy.sparse.csr_array(
        tuple(part.cpu().numpy() for part in (value, col, rowptr.int())),
        shape=size,
    )
    return ours, theirs


def power_iteration(matrix: Any, x: Any, measure: Measure) -> Any:
    """The exact sum by repeated products, whatever the library."""
    z = measure.weights[0] * x
    for weight in measure.weights[1:]:
        x = matrix @ x
        if weight:
            z += weight * x
    return z


def features(kind: str, n: int, columns: int) -> Tensor:
    """Dense normal columns, or sparse ones of power-law frequency."""
    torch.manual_seed(0)
    if kind == 'gauss':
        return torch.randn(n, columns)
    x = torch.zeros(n, columns)
    for c in range(columns):
        count = max(10, int(0.1 * n / (c + 1)))
        x[torch.randint(n, (count,)), c] = 1
    return x


def show(writer: Any, row: list) -> None:
    """A line for the eye and a line of CSV."""
    print(f'{row[0]:<6}{row[1]:<22}{row[2]:<26}', end='')
    print(''.join(f'{value:>12.4g}' for value in row[3:]), flush=True)
    if writer:
        writer.writerow(row)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', nargs='+', default=list(SIZES))
    parser.add_argument(
        '--only', nargs='+', default=list(PARTS), choices=list(PARTS)
    )
    parser.add_argument('--columns', type=int, default=64)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--csv', type=argparse.FileType('w'))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    writer = csv.writer(args.csv) if args.csv else None
    print(
        f'torch {torch.__version__}, scipy {scipy.__version__}, numpy '
        f'{np.__version__}, {args.threads} threads (scipy: 1), python '
        f'{sys.version.split()[0]}'
    )
    for size in args.sizes:
        edge_index = power_law(*SIZES[size])
        graph = CSRGraph.from_edge_index(edge_index, SIZES[size][0])
        graph = graph.to(args.device)
        print(f'\n{size}: {graph}, largest degree {int(graph.degree.max())}')
        print(
            f'{"graph":<6}{"measure":<22}{"method":<26}'
            + ''.join(
                f'{name:>12}'
                for name in ('seconds', 'x torch', 'x scipy', 'relF', 'max|e|')
            )
        )
        for part in args.only:
            PARTS[part](graph, size, args, writer)


def compare(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    methods: Mapping[str, Callable[[], Tensor]],
    names: tuple[str, str],
    repeats: int,
    writer: Any,
) -> None:
    """Runs our methods and the two peers, and prints the ratios."""
    matrix, sparse = operators(graph, measure)
    array = x.cpu().numpy()
    seconds, results = interleaved(
        {
            'torch CSR': lambda: power_iteration(matrix, x, measure),
            'scipy CSR': lambda: power_iteration(sparse, array, measure),
            **methods,
        },
        repeats,
    )
    exact = F.propagate(graph, x.double(), measure)
    for name, value in results.items():
        z = torch.as_tensor(value).to(x.device)
        z = z.to_dense() if z.layout != torch.strided else z
        error = z.double().view_as(exact) - exact
        show(
            writer,
            [
                *names,
                name,
                seconds[name],
                seconds['torch CSR'] / seconds[name],
                seconds['scipy CSR'] / seconds[name],
                (error.norm() / exact.norm()).item(),
                error.abs().max().item(),
            ],
        )


def floor(graph: CSRGraph, measure: Measure, columns: int) -> float:
    """The seconds that the exact path has to take, in float32."""
    graph = graph.with_self_loops() if measure.self_loops else graph
    n, m, row = graph.num_nodes, graph.num_edges, 4 * columns
    kept = sum(weight != 0 for weight in measure.weights[1:])
    # A level reads the entries, their rows, three numbers a node, and writes
    # a row; where it is kept, it reads and writes a row of the result.
    level = m * (4 + row) + n * (8 + 8 + row)
    start = 3 * n * row
    total = start + measure.levels * level + 2 * kept * n * row
    return total / bandwidth(graph.device)


def wide(
    graph: CSRGraph, size: str, args: argparse.Namespace, writer: Any
) -> None:
    """Many feature columns."""
    for measure in (F.appnp(0.1, levels=10), F.sgc(4)):
        seconds = floor(graph, measure, args.columns)
        print(f'{size:<6}{measure.name:<22}{"floor of eps=0":<26}', end='')
        print(f'{seconds:>12.4g}')
        for kind in ('gauss', 'bow'):
            x = features(kind, graph.num_nodes, args.columns)
            x = x.to(graph.device)
            methods = {
                f'AGP eps={eps:g}': partial(
                    F.propagate, graph, x, measure, eps=eps, seed=0
                )
                for eps in (0.0, 1e-8, 1e-7, 1e-6, 1e-5)
            }
            methods |= {
                f'always pushed eps={eps:g}': partial(
                    F.propagate,
                    *(graph, x, measure),
                    eps=eps,
                    seed=0,
                    force_push=True,
                )
                for eps in (1e-7, 1e-5)
            }
            methods['eps=0, bfloat16 levels'] = partial(
                F.propagate, graph, x, measure, half=True
            )
            compare(
                graph,
                x,
                measure,
                methods,
                (size, f'{measure.name} {kind}'),
                args.repeats,
                writer,
            )


def single(
    graph: CSRGraph, size: str, args: argparse.Namespace, writer: Any
) -> None:
    """One node, drawn at random among those with an edge."""
    torch.manual_seed(0)
    nodes = graph.degree.nonzero().view(-1)
    node = nodes[torch.randint(len(nodes), (1,)).to(graph.device)]
    x = torch.zeros(graph.num_nodes, device=graph.device)
    x[node] = 1
    for measure in (F.hkpr(5.0), F.ppr(0.2)):
        methods = {
            f'AGP eps={eps:g}': partial(
                F.query, graph, node, measure, eps=eps, seed=0
            )
            for eps in (1e-4, 1e-5, 1e-6, 1e-7)
        }
        methods |= {
            f'pruned eps={eps:g}': partial(
                F.query, graph, node, measure, eps=eps, method='prune'
            )
            for eps in (1e-5, 1e-6, 1e-7)
        }
        compare(
            graph,
            x,
            measure,
            methods,
            (size, f'{measure.name} single seed'),
            args.repeats + 2,
            writer,
        )


PARTS = {'wide': wide, 'single': single}

if __name__ == '__main__':
    main()
