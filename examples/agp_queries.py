"""Asks AGP for heat kernel PageRank and Katz: error and cuts against time.

Draws, for "Approximate Graph Propagation" (Wang et al. 2021,
https://arxiv.org/abs/2106.03058), as PNGs:

hkpr   the error of heat kernel PageRank from single nodes against the time of
       a query, as it is and divided by the degrees (Figures 2 and 7), and the
       conductance of the cluster that a sweep finds in it (Figure 3);
katz   the error of Katz (Figure 8), and the share of the true best 50 nodes
       that are found (Figure 9).

    python examples/agp_queries.py --dataset generated
    python examples/agp_queries.py --dataset Planetoid:Cora --root data

Points are medians over nodes drawn at random. The peer is the same series by
repeated sparse products of all nodes, cut off after more and more levels.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import matplotlib
import torch
from agp_graphs import HELP, load
from torch import Tensor

from pyg_trust.agp.clustering import sweep_cut
from pyg_trust.agp.measures import Measure, hkpr, katz
from pyg_trust.agp.propagation import propagate
from pyg_trust.agp.queries import query
from pyg_trust.graph import CSRGraph, sparse_rows

matplotlib.use('Agg')
from matplotlib import pyplot

STYLES = {
    'AGP (sampled)': 'o-',
    'AGP (pruned)': 's-',
    'power iteration': '^--',
}
TOP = 50
REPEATS = 3  # the fastest counts


def adjacency(graph: CSRGraph, measure: Measure) -> Tensor:
    """The matrix that power iteration multiplies with."""
    rowptr, col = graph.receivers(measure.along)
    value = graph.degree_power(-measure.b, torch.float32)[col.long()]
    size = (graph.num_nodes, graph.num_nodes)
    return sparse_rows(rowptr.int(), col, measure.shrink * value, size)


def power_iteration(
    node: Tensor, matrix: Tensor, measure: Measure, levels: int
) -> tuple[Tensor, Tensor]:
    """The series after so many levels: its nodes and values."""
    x = torch.zeros(matrix.size(0), 1)
    x[node] = 1
    z = measure.weights[0] * x
    for weight in measure.weights[1 : levels + 1]:
        x = matrix @ x
        z += weight * x
    nodes = z[:, 0].nonzero().view(-1)
    return nodes, z[nodes, 0]


def ask(
    node: Tensor, graph: CSRGraph, measure: Measure, eps: float, method: str
) -> tuple[Tensor, Tensor]:
    """An AGP query: its nodes and values."""
    row = query(graph, node.view(1), measure, eps=eps, method=method, seed=0)
    return row.col_indices(), row.values()


def measure_all(
    graph: CSRGraph,
    measure: Measure,
    nodes: Tensor,
    epsilons: list[float],
    levels: list[int],
    cuts: bool,
) -> dict[str, list[dict[str, float]]]:
    """Time and quality of every method at every setting."""
    matrix = adjacency(graph, measure)
    methods: dict[str, list[Callable]] = {
        'AGP (sampled)': [
            partial(ask, graph=graph, measure=measure, eps=e, method='sample')
            for e in epsilons
        ],
        'AGP (pruned)': [
            partial(ask, graph=graph, measure=measure, eps=e, method='prune')
            for e in epsilons
        ],
        'power iteration': [
            partial(
                power_iteration, matrix=matrix, measure=measure, levels=level
            )
            for level in levels
        ],
    }
    exact = [propagate(graph, unit(node, graph), measure) for node in nodes]
    inverse = graph.degree_power(-1.0, torch.float64)
    found: dict[str, list[dict[str, float]]] = {}
    for name, runs in methods.items():
        found[name] = []
        for run in runs:
            rows = []
            for node, truth in zip(nodes, exact, strict=True):
                seconds = float('inf')
                for _ in range(REPEATS):
                    start = time.perf_counter()
                    index, value = run(node)
                    seconds = min(seconds, time.perf_counter() - start)
                z = torch.zeros(graph.num_nodes, dtype=torch.float64)
                z[index] = value.double()
                error = (z - truth).abs()
                row = {
                    'time': 1000 * seconds,
                    'error': float(error.max()),
                    'scaled': float((error * inverse).max()),
                    'found': recall(z, truth),
                }
                if cuts:
                    score = value.double() * inverse[index]
                    row['conductance'] = conductance(graph, index, score)
                rows.append(row)
            found[name].append(
                {key: median(row[key] for row in rows) for key in rows[0]}
            )
    return found


def unit(node: Tensor, graph: CSRGraph) -> Tensor:
    """The signal of one node, float64."""
    x = torch.zeros(graph.num_nodes, dtype=torch.float64)
    x[node] = 1
    return x


def recall(z: Tensor, truth: Tensor) -> float:
    """The share of the true best nodes among the best that were found."""
    top = min(TOP, z.numel())
    best = truth.topk(top).indices
    return float(torch.isin(best, z.topk(top).indices).double().mean())


def conductance(graph: CSRGraph, index: Tensor, score: Tensor) -> float:
    """Of the best cut; 1 where there is none."""
    try:
        return sweep_cut(graph, index, score).conductance
    except ValueError:  # the seed alone, isolated, or everything
        return 1.0


def draw(
    found: dict[str, list[dict[str, float]]],
    panels: dict[str, str],
    title: str,
    path: Path,
) -> None:
    """One panel for each quality, against time."""
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.6)
    )
    for axis, (key, label) in zip(axes, panels.items(), strict=True):
        for name, rows in found.items():
            values = [row[key] for row in rows]
            # What is exact to the last digit has no place on a log scale.
            if key in ('error', 'scaled'):
                values = [value or float('nan') for value in values]
                axis.set_yscale('log')
            axis.plot(
                [row['time'] for row in rows],
                values,
                STYLES[name],
                label=name,
                markersize=4,
            )
        axis.set_xscale('log')
        axis.set_xlabel('milliseconds per query')
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def show(name: str, found: dict[str, list[dict[str, float]]]) -> None:
    """The figures behind the figure."""
    for method, rows in found.items():
        for row in rows:
            text = ''.join(f'{k} {v:<10.3g}' for k, v in row.items())
            print(f'{name:<6}{method:<18}{text}')


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--dataset', default='generated', help=HELP)
    parser.add_argument('--root', default='data')
    parser.add_argument('--nodes', type=int, default=200_000)
    parser.add_argument('--queries', type=int, default=10)
    parser.add_argument('--t', type=float, default=5.0)
    parser.add_argument(
        '--beta', type=float, default=0.5, help='in units of 1 / lambda_max'
    )
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', default='.', help='where the PNGs go')
    args = parser.parse_args()
    data = load(args.dataset, args.root, args.nodes, args.seed)
    graph = CSRGraph.from_data(data)
    print(f'{args.dataset}: {graph}')
    torch.manual_seed(args.seed)
    choice = graph.degree.nonzero().view(-1)
    nodes = choice[torch.randint(len(choice), (args.queries,))]
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    stem = args.dataset.replace(':', '_')

    heat = hkpr(args.t, tol=1e-6)
    levels = [2, 3, 4, 6, 8, 10, 12, 15]
    epsilons = [10 ** (-2 - step / 2) for step in range(9)]
    found = measure_all(graph, heat, nodes, epsilons, levels, cuts=True)
    show('hkpr', found)
    draw(
        found,
        {
            'scaled': 'largest error / degree',
            'error': 'largest error',
            'conductance': 'conductance',
        },
        f'Heat kernel PageRank, t = {args.t:g}, {args.dataset}',
        out / f'{stem}_hkpr.png',
    )

    series = katz(args.beta / graph.spectral_radius, graph, tol=1e-4)
    levels = sorted({min(level, series.K) for level in levels})
    found = measure_all(graph, series, nodes, epsilons, levels, cuts=False)
    show('katz', found)
    draw(
        found,
        {'error': 'largest error', 'found': f'precision at {TOP}'},
        f'Katz, {args.beta:g} of the largest beta, {args.dataset}',
        out / f'{stem}_katz.png',
    )


if __name__ == '__main__':
    main()
