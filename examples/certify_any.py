r"""Certifies any classifier: GCN, GAT, SAGE on nodes, and GIN on graphs.

Draws, as PNGs, and saves all promises in trust.json:

smoothing   the share of nodes certified, additions by deletions of features
            and of edges (Bojchevski, Klicpera and Günnemann 2020, Figure 2);
collective  how many nodes stay at once, beside one by one, against the
            number of deleted feature entries (Schuchardt et al. 2021);
voting      certified accuracy of votes over divided inputs, beside a model
            that sees no edge (Xia et al. 2024; Li and Wang 2025), on nodes
            and on PROTEINS;
poisoning   certified accuracy of shards against nodes that are poisoned in
            training and at inference (Levine and Feizi 2021, on graphs).

    python examples/certify_any.py --root DATA --parts smoothing collective

Published, on Cora-ML with a GCN: features .01/.6 (authors' notebook, 100,000
samples, each node by itself at .99): one addition .78, one deletion .84, five
deletions .65. Collective, deletions 1, 5, 10, 20: .981 .909 .851 .774, one by
one .903 .745 .615 .432.
"""

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import CitationFull, TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, global_add_pool
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_trust.certificates import (
    BitFlips,
    Divided,
    certify,
    certify_collective,
    plot_certified_grid,
    plot_certified_votes,
)
from pyg_trust.report import Report, TrustReport
from pyg_trust.transforms import Division, FlipBits
from pyg_trust.unlearning import ShardedUnlearner

matplotlib.use('Agg')
from matplotlib import pyplot

PARTS = ('smoothing', 'collective', 'voting', 'poisoning')
MODELS = {'GCN': GCN, 'GAT': GAT, 'SAGE': GraphSAGE}
FEATURES = BitFlips(features=(0.01, 0.6))
EDGES = BitFlips(edges=(0.0, 0.6))


def load(name: str, root: str) -> Data:
    """A citation graph with binary features, and masks of 20 a class."""
    data = CitationFull(root, name)[0]
    data.edge_index = to_undirected(remove_self_loops(data.edge_index)[0])
    data.x = (data.x > 0).float()
    data = T.LargestConnectedComponents()(data)
    order = torch.randperm(data.num_nodes)
    rank = torch.zeros_like(data.y)
    for c in range(int(data.y.max()) + 1):
        members = order[data.y[order] == c]
        rank[members] = torch.arange(members.numel())
    data.train_mask, data.val_mask = rank < 20, (rank >= 20) & (rank < 40)
    data.test_mask = rank >= 40
    return data


def fit(model: Module, data: Data, view: Any, epochs: int) -> Module:
    """Trains on another view of the graph each epoch; early stopping."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=1e-3)
    best, kept = math.inf, copy.deepcopy(model.state_dict())
    for _ in range(epochs):
        model.train()
        seen = view(data)
        out = model(seen.x, seen.edge_index)
        optimizer.zero_grad()
        mask = data.train_mask
        F.cross_entropy(out[mask], data.y[mask]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen = view(data)
            out = model(seen.x, seen.edge_index)
            mask = data.val_mask
            now = float(F.cross_entropy(out[mask], data.y[mask]))
        if now < best:
            best, kept = now, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return model.eval()


def make(kind: str, data: Data) -> Module:
    """An untrained model."""
    classes = int(data.y.max()) + 1
    return MODELS[kind](data.x.size(1), 64, 2, classes, dropout=0.5)


def smoothing(data: Data, args: argparse.Namespace) -> list[Report]:
    """Grids of radii, for features and for edges."""
    reports: list[Report] = []
    for kind in args.models:
        for name, noise in (('features', FEATURES), ('edges', EDGES)):
            seed_everything(args.seed)
            flip = FlipBits(noise.edges, noise.features)
            model = fit(make(kind, data), data, flip, args.epochs)
            report = certify(
                model,
                data,
                noise,
                num_samples=args.samples,
                sparse_x=kind != 'GAT' or 'features' not in noise.noisy,
                sparse_adj=kind != 'GAT',
            )
            accuracy = (report.predicted == data.y).double().mean()
            one, five = (
                report.certified_ratio(**{name: radius})
                for radius in ((1, 0), (0, 5))
            )
            print(
                f'{kind}, noise on {name}: accuracy {accuracy:.3f}, certified '
                f'at one addition {one:.3f}, at five deletions {five:.3f}',
                flush=True,
            )
            axes = plot_certified_grid(report, name)
            axes.set_title(f'{kind}, {noise.edges}, {noise.features}')
            save(axes, args.out / f'smoothing_{kind}_{name}.png')
            reports.append(report)
    return reports


def collective(data: Data, args: argparse.Namespace) -> list[Report]:
    """Nodes at once against nodes one by one."""
    seed_everything(args.seed)
    flip = FlipBits(features=FEATURES.features)
    model = fit(make('GCN', data), data, flip, args.epochs)
    report = certify(
        model,
        data,
        FEATURES,
        num_samples=args.samples,
        sparse_x=True,
        sparse_adj=True,
    )
    budgets = (1, 2, 5, 10, 15, 20)
    made = [
        certify_collective(report, model, data, K=2, features=(0, r))
        for r in budgets
    ]
    axes = pyplot.subplots()[1]
    n = int(data.num_nodes or 1)
    together = [one.certified_ratio() for one in made]
    alone = [one.one_by_one / n for one in made]
    axes.plot(budgets, together, marker='.', label='at once')
    axes.plot(budgets, alone, marker='.', label='one by one')
    axes.set_xlabel('deleted entries of the features')
    axes.set_ylabel('share that stays')
    axes.legend()
    save(axes, args.out / 'collective.png')
    for r, one, two in zip(budgets, together, alone, strict=True):
        print(f'collective, {r} deletions: {one:.3f}, one by one {two:.3f}')
    return [made[2]]


class GraphGIN(Module):
    """GIN with a sum over nodes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.gnn = GIN(channels, 32, 3, 32)
        self.out = torch.nn.Linear(32, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """The logits of graphs."""
        return self.out(global_add_pool(self.gnn(x, edge_index), batch))


def fit_graphs(
    graphs: list[Data], view: Any, epochs: int, channels: int, classes: int
) -> Module:
    """Trains GIN, each graph through a view."""
    model = GraphGIN(channels, classes)
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(epochs):
        seen = [view(graph) for graph in graphs]
        for batch in DataLoader(seen, 128, shuffle=True):
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch.batch)
            F.cross_entropy(out, batch.y).backward()
            optimizer.step()
    return model.eval()


def edgeless(data: Data) -> Data:
    """The same without edges."""
    made = copy.copy(data)
    made.edge_index = data.edge_index[:, :0]
    return made


def voting(data: Data, args: argparse.Namespace) -> list[Report]:
    """Votes over views of nodes, and over divided graphs."""
    reports: list[Report] = []
    seed_everything(args.seed)
    blind = fit(make('GCN', data), data, edgeless, args.epochs)
    empty = edgeless(data)
    with torch.no_grad():
        right = blind(empty.x, empty.edge_index).argmax(1) == data.y
    baseline = float(right.double().mean())
    axes = None
    for groups in (10, 30):
        division = Division(groups, 'nodes', seed=args.seed)
        model = fit(make('GCN', data), data, division, args.epochs)
        divided = Divided(model, groups, 'nodes', seed=args.seed)
        report = divided.certify(data, baseline=baseline)
        shares = [report.certified_accuracy(data.y, k) for k in (0, 1, 3)]
        print(
            f'voting over {groups} groups of nodes: accuracy {shares[0]:.3f}, '
            f'at 1 and 3 nodes {shares[1]:.3f} {shares[2]:.3f}; without any '
            f'edge {baseline:.3f} at every number'
        )
        label = f'{groups} groups'
        axes = plot_certified_votes(report, data.y, label=label, ax=axes)
        reports.append(report)
    assert axes is not None
    axes.legend()
    save(axes, args.out / 'voting_nodes.png')
    if args.tu_root is None:
        return reports
    graphs = list(TUDataset(args.tu_root, 'PROTEINS').shuffle())
    train, test = graphs[223:], graphs[:223]
    labels = torch.cat([graph.y for graph in test])
    sizes = (train[0].x.size(1), 2)
    model = fit_graphs(train, edgeless, args.epochs // 4, *sizes)
    batch = Batch.from_data_list([edgeless(graph) for graph in test])
    with torch.no_grad():
        out = model(batch.x, batch.edge_index, batch.batch)
    baseline = float((out.argmax(1) == labels).double().mean())
    division = Division(30, 'edges', seed=args.seed)
    model = fit_graphs(train, division, args.epochs // 4, *sizes)
    divided = Divided(model, 30, 'edges', seed=args.seed)
    report = divided.certify(test, baseline=baseline)
    shares = [report.certified_accuracy(labels, k) for k in (0, 1, 5)]
    print(
        f'PROTEINS, 30 groups of edges: accuracy {shares[0]:.3f}, at 1 and 5 '
        f'edges {shares[1]:.3f} {shares[2]:.3f}; without any edge '
        f'{baseline:.3f} at every number'
    )
    axes = plot_certified_votes(report, labels)
    save(axes, args.out / 'voting_graphs.png')
    return [*reports, report]


def poisoning(data: Data, args: argparse.Namespace) -> list[Report]:
    """Shards against poisoned nodes."""
    seed_everything(args.seed)
    known = copy.copy(data)
    known.train_mask = torch.rand(int(data.num_nodes or 0)) < 0.6
    classes = int(data.y.max()) + 1
    unlearner = ShardedUnlearner(
        lambda: GCN(data.x.size(1), 32, 2, classes),
        10,
        aggregator='majority',
        num_classes=classes,
        epochs=args.epochs // 2,
        seed=args.seed,
    ).fit(known)
    axes = pyplot.subplots()[1]
    report = unlearner.certify(unlearner.n_id[~known.train_mask])
    shares = [report.certified_accuracy(unlearner.data.y, k) for k in range(6)]
    text = ' '.join(f'{share:.3f}' for share in shares)
    print(f'poisoning of training nodes, 0 to 5 of them: {text}')
    axes.step(range(6), shares, where='mid')
    axes.set_xlabel('poisoned nodes')
    axes.set_ylabel('certified accuracy')
    save(axes, args.out / 'poisoning.png')
    return [report]


def save(axes: Any, path: Path) -> None:
    """Writes a figure and closes it."""
    axes.figure.savefig(path, dpi=150, bbox_inches='tight')
    pyplot.close(axes.figure)


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--dataset', default='Cora_ML')
    parser.add_argument('--root', required=True, help='of CitationFull')
    parser.add_argument('--tu-root', help='of TUDataset, for PROTEINS')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
    parser.add_argument('--models', nargs='+', choices=MODELS, default=['GCN'])
    parser.add_argument('--samples', type=int, default=4000)
    parser.add_argument('--epochs', type=int, default=200)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=Path('figures'))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    seed_everything(args.seed)
    data = load(args.dataset, args.root)
    reports: list[Report] = []
    for part in args.parts:
        reports += globals()[part](data, args)
    trust = TrustReport.of(*reports)
    print(trust)
    trust.save(args.out / 'trust.json')


if __name__ == '__main__':
    main()
