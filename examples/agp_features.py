"""Propagates features with AGP: accuracy against preprocessing time.

Draws Figures 4 and 10 of "Approximate Graph Propagation" (Wang et al. 2021,
https://arxiv.org/abs/2106.03058) as a PNG, a panel for each of SGC, APPNP and
GDC's heat kernel: features are propagated once, and a small classifier is
trained on the rows of the labelled nodes. Each curve is one way to propagate:

sampled     AGP, from large to small quanta, always pushing as in the paper;
automatic   AGP, which takes the exact product where that is cheaper;
levels      the exact series, cut off after more and more levels (its
            remaining weight on the last; for SGC, fewer hops);
float16     the exact series with levels in half precision;
sparse      repeated products with a sparse torch matrix.

    python examples/agp_features.py --dataset generated
    python examples/agp_features.py --dataset MUSAE:facebook --root data/MUSAE
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib
import torch
import torch_geometric.transforms as T
from agp_graphs import HELP, load
from torch import Tensor
from torch.nn import Dropout, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from pyg_trust.agp.measures import Measure, appnp, heat, sgc
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph, sparse_rows

matplotlib.use('Agg')
from matplotlib import pyplot

STYLES = {
    'sampled': 'o-',
    'automatic': 'D-',
    'levels': 's--',
    'float16': 'P',
    'sparse': '^',
}


def measures(name: str, levels: int | None = None) -> Measure:
    """The three models' propagations, cut off at an earlier level or not."""
    if name == 'SGC':
        return sgc(4 if levels is None else levels)
    if name == 'APPNP':
        return appnp(0.1, K=10 if levels is None else levels)
    return heat(4.0, K=levels)


def sparse_matrix(graph: CSRGraph, measure: Measure) -> Tensor:
    """The operator, as torch takes it."""
    graph = graph.with_self_loops() if measure.self_loops else graph
    rowptr, col = graph.receivers()
    root = graph.degree_power(-0.5, torch.float32)
    value = root.repeat_interleave(rowptr.diff()) * root[col.long()]
    size = (graph.num_nodes, graph.num_nodes)
    return sparse_rows(rowptr.int(), col, value, size)


def sparse_products(matrix: Tensor, x: Tensor, measure: Measure) -> Tensor:
    """The exact series by torch alone."""
    z = measure.weights[0] * x
    for weight in measure.weights[1:]:
        x = matrix @ x
        if weight:
            z = z + weight * x
    return z


def timed(run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What it returns, and the fastest seconds of three runs after one."""
    z, seconds = run(), float('inf')
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds = min(seconds, time.perf_counter() - start)
    return z, seconds


def accuracy(x: Tensor, data: Data, epochs: int, seed: int) -> float:
    """The test accuracy of a classifier at its best validation, percent."""
    torch.manual_seed(seed)
    model = Sequential(
        Linear(x.size(1), 64),
        ReLU(),
        Dropout(0.5),
        Linear(64, int(data.y.max()) + 1),
    )
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4
    )
    # The rows that are used, on the scale that the optimizer is made for.
    x = x / x[data.train_mask].std()
    parts = {
        part: (x[data[f'{part}_mask']], data.y[data[f'{part}_mask']])
        for part in ('train', 'val', 'test')
    }
    best, test = -1.0, 0.0
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        rows, y = parts['train']
        cross_entropy(model(rows), y).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = {
                part: (model(rows).argmax(1) == y).float().mean().item()
                for part, (rows, y) in parts.items()
            }
        if right['val'] > best:
            best, test = right['val'], right['test']
    return 100 * test


def ways(
    name: str, graph: CSRGraph, x: Tensor, seed: int
) -> dict[str, list[tuple[str, Callable[[], Tensor]]]]:
    """Every way to propagate, at every setting."""
    measure = measures(name)
    ours = partial(propagate, graph, x)
    matrix = sparse_matrix(graph, measure)
    epsilons = (1e-4, 1e-5, 1e-6, 1e-7)
    levels = [k for k in (1, 2, 3, 4, 6, 8) if k < measure.K]
    return {
        'sampled': [
            (
                f'{eps:g}',
                partial(ours, measure, eps=eps, seed=seed, force_push=True),
            )
            for eps in epsilons
        ],
        'automatic': [
            (f'{eps:g}', partial(ours, measure, eps=eps, seed=seed))
            for eps in epsilons
        ],
        'levels': [
            *((str(k), partial(ours, measures(name, k))) for k in levels),
            (str(measure.K), partial(ours, measure)),
        ],
        'float16': [('-', partial(ours, measure, half=True))],
        'sparse': [('-', partial(sparse_products, matrix, x, measure))],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--dataset', default='generated', help=HELP)
    parser.add_argument('--root', default='data')
    parser.add_argument('--nodes', type=int, default=100_000)
    parser.add_argument('--train-per-class', type=int, default=20)
    parser.add_argument(
        '--components', type=int, default=128, help='of wider features'
    )
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', default='.', help='where the PNG goes')
    args = parser.parse_args()
    data = load(args.dataset, args.root, args.nodes, args.seed)
    graph = CSRGraph.from_data(data)
    torch.manual_seed(args.seed)
    if 'train_mask' not in data:
        data = T.RandomNodeSplit(
            'random',
            num_train_per_class=args.train_per_class,
            num_val=min(500, graph.num_nodes // 4),
            num_test=graph.num_nodes // 2,
        )(data)
    x = data.x.float()
    if x.size(1) > args.components:
        x = x @ torch.pca_lowrank(x, args.components)[2]
    print(f'{args.dataset}: {graph}, {x.size(1)} features')

    def score(z: Tensor) -> float:
        runs = [
            accuracy(z, data, args.epochs, args.seed + run)
            for run in range(args.runs)
        ]
        return sum(runs) / len(runs)

    raw = score(x)
    print(f'features alone: {raw:.1f}%')
    figure, axes = pyplot.subplots(1, 3, figsize=(12.6, 3.6))
    for axis, name in zip(axes, ('SGC', 'APPNP', 'GDC'), strict=True):
        exact = propagate(graph, x, measures(name))
        found: dict[str, list[tuple[float, float]]] = {}
        for way, runs in ways(name, graph, x, args.seed).items():
            for setting, run in runs:
                z, seconds = timed(run)
                error = float((z - exact).norm() / exact.norm())
                found.setdefault(way, []).append((seconds, score(z)))
                print(
                    f'{name:<7}{way:<11}{setting:<8}{seconds:>8.3f} s  '
                    f'relF {error:<10.2g}{found[way][-1][1]:.1f}%',
                    flush=True,
                )
        for way, points in found.items():
            times, scores = zip(*points, strict=True)
            axis.plot(times, scores, STYLES[way], label=way, markersize=5)
        axis.axhline(raw, color='grey', linestyle=':', label='no graph')
        axis.set_xscale('log')
        axis.set_xlabel('seconds of preprocessing')
        axis.set_ylabel('test accuracy, %')
        axis.set_title(name)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(args.dataset)
    figure.tight_layout()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        out / f'{args.dataset.replace(":", "_")}_features.png', dpi=150
    )


if __name__ == '__main__':
    main()
