r"""Private node classification: accuracy against epsilon.

Draws Figure 2 of "Training Differentially Private Graph Neural Networks with
Random Walk Sampling" (Ayle et al. 2023, https://arxiv.org/abs/2301.00738) as
a PNG: test accuracy against the epsilon spent while training, of

GCN      on node-disjoint random walks (DRW), under both accountants,
MLP      with the same clipping and noise per node, which reads no edges,
FDP      a GCN on the ego graphs of a graph of bounded degree (Daigavane et
         al. 2021), each of whose gradients needs more noise, under the
         package's account and the paper's,

and, as lines, the same GCN and MLP without privacy.

    python examples/dp_gcn.py                                # generated graph
    python examples/dp_gcn.py --dataset MUSAE:facebook.npz --root DATA
    python examples/dp_gcn.py --dataset Planetoid:Cora --root data

Training is inductive: it sees the graph of the training nodes alone. All that
is printed for a run beside its final report (accuracies while training) is
for the reader of an experiment, and is not covered by epsilon.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
import numpy as np
import torch
import torch_geometric.datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from pyg_trust import rng
from pyg_trust.loader import DisjointWalkLoader, EgoLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.transforms import BoundedDegree

matplotlib.use('Agg')
from matplotlib import pyplot

Curve = list[tuple[float, float]]
METHODS = (
    ('GCN, DRW', 'pld_wor'),
    ('GCN, DRW', 'rdp_wor'),
    ('MLP', 'pld_wor'),
    ('MLP', 'rdp_wor'),
    ('GCN, FDP', 'pld_group_wor'),
    ('GCN, FDP', 'rdp_fdp'),
)


class GCN(nn.Module):
    """One layer, or two."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        sizes = [inputs, hidden, classes] if hidden else [inputs, classes]
        self.layers = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The logits."""
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        return self.layers[-1](x, edge_index)


class MLP(nn.Module):
    """The same without edges."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        sizes = [inputs, hidden, classes] if hidden else [inputs, classes]
        self.layers = nn.ModuleList(
            nn.Linear(a, b) for a, b in pairwise(sizes)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The logits."""
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


def load(dataset: str, root: str) -> Data:
    """A graph with row-normalised features: undirected, simple, no loops."""
    kind, _, name = dataset.partition(':')
    if kind == 'generated':
        data = generate()
    elif kind == 'MUSAE':
        data = musae(Path(root) / 'MUSAE' / name)
    else:
        make = getattr(torch_geometric.datasets, kind)
        data = (make(root, name) if name else make(root))[0]
    edge_index, _ = remove_self_loops(data.edge_index)
    edge_index = to_undirected(edge_index, num_nodes=data.num_nodes)
    # Rows of length one, each by itself: gradients then are of a size that a
    # clipping norm of one fits.
    return Data(
        x=F.normalize(data.x), y=data.y.view(-1), edge_index=edge_index
    )


def musae(path: Path) -> Data:
    """A MUSAE graph with features, stored as NumPy arrays."""
    stored = np.load(path)
    ptr = torch.from_numpy(stored['x_indptr'].astype(np.int64))
    column = torch.from_numpy(stored['x_indices'].astype(np.int64))
    x = torch.zeros(ptr.numel() - 1, int(stored['num_features']))
    row = torch.arange(ptr.numel() - 1).repeat_interleave(ptr.diff())
    x[row, column] = 1
    return Data(
        x=x,
        y=torch.from_numpy(stored['y'].astype(np.int64)),
        edge_index=torch.from_numpy(stored['edges'].astype(np.int64)).t(),
    )


def generate(
    num_nodes: int = 4000, classes: int = 4, words: int = 200
) -> Data:
    """Communities whose nodes use words of their own a bit more often."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (num_nodes,), generator=generator)
    odds = torch.full((classes, words), 0.05)
    for c in range(classes):
        odds[c, c * words // classes :][: words // classes] = 0.08
    x = torch.bernoulli(odds[y], generator=generator)
    pairs = torch.randint(num_nodes, (2, 40 * num_nodes), generator=generator)
    keep = torch.rand(pairs.size(1), generator=generator)
    alike = y[pairs[0]] == y[pairs[1]]
    pairs = pairs[:, keep < torch.where(alike, 0.2, 0.02)]
    return Data(x=x, y=y, edge_index=coalesce(pairs))


def split(num_nodes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Masks of 60 percent for training and 20 for test."""
    order = torch.randperm(num_nodes, generator=rng.generator(seed))
    train = torch.zeros(num_nodes, dtype=torch.bool)
    test = train.clone()
    train[order[: int(0.6 * num_nodes)]] = True
    test[order[int(0.8 * num_nodes) :]] = True
    return train, test


def accuracy(model: Any, data: Data, mask: Tensor) -> float:
    """Of a model on the whole graph."""
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index)[mask]
    model.train()
    return (out.argmax(1) == data.y[mask]).float().mean().item()


def train_plain(
    model: nn.Module, inner: Data, data: Data, test: Tensor, epochs: int
) -> float:
    """Without privacy, all training nodes in every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(inner.x, inner.edge_index)
        F.cross_entropy(out, inner.y).backward()
        optimizer.step()
    return accuracy(model, data, test)


def train_private(
    model: nn.Module,
    loader: DisjointWalkLoader | EgoLoader,
    data: Data,
    test: Tensor,
    accountant: str,
    seed: int,
    args: argparse.Namespace,
) -> tuple[Curve, Any]:
    """Until the budget is spent; accuracies on the way and the report."""
    adam = torch.optim.Adam(model.parameters(), lr=args.lr)
    # With a seed it can be repeated, and is not private: the report says so.
    engine = PrivacyEngine(
        accountant, insecure_seed=seed if args.repeatable else None
    )
    private, optimizer, batches = engine.make_private(
        module=model,
        optimizer=adam,
        data_loader=loader,
        noise_multiplier=2 * args.lam * loader.terms,
        max_grad_norm=args.max_grad_norm,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        max_physical_batch_size=args.max_physical_batch_size,
        criterion=F.cross_entropy,
    )
    curve: Curve = []
    while not engine.exhausted and engine.steps < args.max_steps:
        for batch in batches:
            optimizer.zero_grad()
            out = private(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            before = engine.steps
            optimizer.step()
            if engine.steps > before and engine.steps in points():
                spent = engine.get_epsilon(args.delta)
                curve.append((spent, accuracy(private, data, test)))
            if engine.steps >= args.max_steps:
                break
    report = engine.report(args.delta)
    curve.append((report.epsilon, accuracy(private, data, test)))
    return curve, report


def points() -> set[int]:
    """The steps at which a curve has a point."""
    return {round(1.4**k) for k in range(40)}


def run(
    method: str,
    accountant: str,
    data: Data,
    seed: int,
    args: argparse.Namespace,
) -> tuple[Curve, Any]:
    """Trains by one method and seed."""
    train, test = split(data.num_nodes, seed)
    inner = data.subgraph(train)
    m = max(1, int(args.batch_share * inner.num_nodes))
    seed_everything(seed)
    sizes = data.num_features, args.hidden, int(data.y.max()) + 1
    model = MLP(*sizes) if method == 'MLP' else GCN(*sizes)
    loader: DisjointWalkLoader | EgoLoader
    if method == 'GCN, FDP':
        layers = len(model.layers)
        inner = BoundedDegree(args.max_degree, seed=seed)(inner)
        loader = EgoLoader(inner, m, layers, args.max_degree, seed=seed)
    else:
        length = 0 if method == 'MLP' else args.walk_length
        loader = DisjointWalkLoader(inner, m, length, args.restarts, seed=seed)
    return train_private(model, loader, data, test, accountant, seed, args)


def draw(
    curves: dict[tuple[str, str], list[Curve]],
    plain: dict[str, float],
    path: Path,
) -> None:
    """Accuracy against epsilon, a line per method, the mean of all seeds."""
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for (method, accountant), runs in curves.items():
        # The same noise and steps for all seeds, so the same epsilons, or
        # nearly: partitions differ in size.
        length = min(map(len, runs))
        x = [mean(run[i][0] for run in runs) for i in range(length)]
        y = [mean(run[i][1] for run in runs) for i in range(length)]
        axes.plot(x, y, marker='.', label=f'{method} ({accountant})')
    for i, (method, value) in enumerate(plain.items()):
        style = ('--', ':')[i % 2]
        axes.axhline(value, color='grey', ls=style, label=f'{method}, plain')
    axes.set(xscale='log', xlabel='epsilon', ylabel='test accuracy')
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Trains everything, prints the ends and draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--dataset', default='generated')
    parser.add_argument('--root', default='data')
    parser.add_argument('--out', default='figures')
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument('--epsilon', type=float, default=8.0)
    parser.add_argument('--delta', type=float, default=1e-5)
    parser.add_argument('--lam', type=float, default=4.0)
    parser.add_argument('--max-grad-norm', type=float, default=1.0)
    parser.add_argument('--batch-share', type=float, default=0.2)
    parser.add_argument('--max-physical-batch-size', type=int)
    parser.add_argument('--walk-length', type=int, default=1)
    parser.add_argument('--restarts', type=int, default=1)
    parser.add_argument('--max-degree', type=int, default=3)
    parser.add_argument('--hidden', type=int, default=0)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--max-steps', type=int, default=1000)
    parser.add_argument('--epochs', type=int, default=200)
    parser.add_argument('--repeatable', action='store_true')
    parser.add_argument('--only', nargs='*', help='DRW, MLP, pld_wor, ...')
    args = parser.parse_args()

    data = load(args.dataset, args.root)
    print(f'{data.num_nodes} nodes, {data.num_features} features')
    plain = {}
    for kind in (GCN, MLP):
        found = []
        for seed in range(args.seeds):
            train, test = split(data.num_nodes, seed)
            seed_everything(seed)
            sizes = data.num_features, args.hidden, int(data.y.max()) + 1
            inner = data.subgraph(train)
            found.append(
                train_plain(kind(*sizes), inner, data, test, args.epochs)
            )
        plain[kind.__name__] = mean(found)
        print(f'{kind.__name__}, without privacy: {mean(found):.4f}')

    curves: dict[tuple[str, str], list[Curve]] = {}
    for method, accountant in METHODS:
        label = f'{method} ({accountant})'
        if args.only and not any(word in label for word in args.only):
            continue
        runs = []
        for seed in range(args.seeds):
            curve, report = run(method, accountant, data, seed, args)
            runs.append(curve)
        ends = [curve[-1][1] for curve in runs]
        spread = f' +- {stdev(ends):.4f}' if len(ends) > 1 else ''
        print(
            f'{label}: accuracy {mean(ends):.4f}{spread} at '
            f'epsilon {max(c[-1][0] for c in runs):.3f}, '
            f'{report.steps} steps, noise multiplier '
            f'{report.noise_multiplier:g}'
        )
        curves[method, accountant] = runs
    print(report.explain())
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f'dp_gcn_{args.dataset.replace(":", "_")}.png'
    draw(curves, plain, path)
    print(f'wrote {path}')


if __name__ == '__main__':
    main()
