r"""Private edges, private nodes: accuracy against epsilon.

Draws a PNG for each graph. Left, one **edge** is private (features and labels
are known); in the middle one **node's record** is (features, label, own list;
against a blank); right, one node's **features** and label are, against any
others, and edges are public. All numbers are of this package's exact accounts,
an undirected edge counted twice; the methods of others are written anew in
their sizes.

no graph      a model of single rows: an MLP (left), a linear model trained by
              private full-batch descent (else)
MLP-DP        an MLP with 16 hidden units, trained the same way (middle)
GAP-like      sums of 16 hidden units, an MLP on top (Sajadmanesh et al. 2023)
ProGAP-like   GAP-like in stages, with released rows in the next model's input
              (Sajadmanesh and Gatica-Perez 2024; left)
ours          pyg_trust.privacy.PrivateNodeClassifier
walks         a GCN by PrivacyEngine on disjoint walks. *Another promise*: as
              right, but in the weights alone; its predictions read neighbours
              and are not private

    python examples/private_graph.py                       # generated graph
    python examples/private_graph.py --root DATA --seeds 3 \
        --graphs facebook cora_ml lastfm twitch_de

DATA holds MUSAE/*.npz and CitationFull/cora_ml. Accuracies are for the reader
of an experiment, and no epsilon covers them.
"""

import argparse
import math
import warnings
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from statistics import mean, pstdev

import matplotlib
import numpy as np
import torch
from dp_gcn import GCN, generate, load, train_private
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_trust import rng
from pyg_trust.account import PaidNoise, ReleaseAccount
from pyg_trust.graph import CSRGraph
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.noise import SecureNoise
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.privacy.descent import descent_noise, unit_rows
from pyg_trust.privacy.gaussian import gaussian_mu_for
from pyg_trust.privacy.mechanisms import clip_factors
from pyg_trust.privacy.propagation import hop_sensitivity, private_propagate
from pyg_trust.transforms import BoundedDegree

matplotlib.use('Agg')
from matplotlib import pyplot

LEVELS = ('edge', 'node', 'feature')
HIDDEN, STEPS, EPOCHS = 16, 60, 120
# A method has one colour on both sides.
COLORS = {
    'no graph': 'C0',
    'MLP-DP': 'C1',
    'GAP-like': 'C2',
    'ProGAP-like': 'C4',
    'ours': 'C3',
    'walks': 'C7',
}
ADVICE = """
Which relation to take
  links are the secret, features are known           'edge'
  what a person tells: features, label, own list     'node'
  that a node was there, with all its edges          'node_incident'
  edges are public, predictions read neighbours      'feature'
"""


def graph_of(name: str, root: str) -> Data:
    """A graph: undirected, simple, without loops."""
    if name == 'generated':
        data = generate()
    elif name == 'cora_ml':
        data = load('CitationFull:Cora_ML', str(Path(root) / 'CitationFull'))
    else:
        stored = np.load(Path(root) / 'MUSAE' / f'{name}.npz')
        y = torch.from_numpy(stored['y'].astype(np.int64))
        x = torch.ones(len(y), 1)
        if 'x_indptr' in stored:
            ptr = torch.from_numpy(stored['x_indptr'].astype(np.int64))
            column = torch.from_numpy(stored['x_indices'].astype(np.int64))
            row = torch.arange(len(y)).repeat_interleave(ptr.diff())
            x = torch.zeros(len(y), int(stored['num_features']))
            x[row, column] = 1
        edges = torch.from_numpy(stored['edges'].astype(np.int64)).t()
        data = Data(x=x, y=y, edge_index=edges)
    edges, _ = remove_self_loops(data.edge_index)
    data.edge_index = to_undirected(edges, num_nodes=data.num_nodes)
    return data


def divide(data: Data, seed: int) -> None:
    """Masks of 75, 10 and 15 percent."""
    n = int(data.num_nodes or 0)
    order = torch.randperm(n, generator=rng.generator(seed))
    ends = [0, int(0.75 * n), int(0.85 * n), n]
    for i, name in enumerate(('train_mask', 'val_mask', 'test_mask')):
        mask = torch.zeros(n, dtype=torch.bool)
        mask[order[ends[i] : ends[i + 1]]] = True
        data[name] = mask


class MLP:
    """Two layers on single rows; private, if it is given noise."""

    def __init__(self, x: Tensor, classes: int) -> None:
        # In rows of norm one, sparse where they are.
        rows = unit_rows(x)
        if hasattr(rows, 'tocoo'):
            coo = rows.tocoo()
            at = torch.from_numpy(np.stack([coo.row, coo.col]).astype('int64'))
            self.x = torch.sparse_coo_tensor(
                at,
                torch.from_numpy(coo.data).float(),
                coo.shape,
                check_invariants=True,
            ).coalesce()
        else:
            self.x = torch.from_numpy(rows).float()
        sizes = [(x.size(1), HIDDEN), (HIDDEN, classes)]
        self.weights = [
            torch.randn(a + 1, b) / math.sqrt(a + 1) for a, b in sizes
        ]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden units and logits."""
        first, second = self.weights
        hidden = (x @ first[:-1] + first[-1]).relu()
        return hidden, hidden @ second[:-1] + second[-1]

    def train(
        self, data: Data, noise: tuple[SecureNoise, float] | None
    ) -> tuple[Tensor, Tensor]:
        """Full-batch steps of Adam; hidden units and logits of all rows."""
        index = data.train_mask.nonzero().view(-1)
        x = self.x.index_select(0, index)
        target = F.one_hot(data.y[index], self.weights[1].size(1)).float()
        squares = (x * x).sum(1)
        if squares.is_sparse:
            squares = squares.to_dense()
        optimizer = torch.optim.Adam(self.weights, lr=0.05 if noise else 0.02)
        for _ in range(STEPS if noise else EPOCHS):
            hidden, logits = self.forward(x)
            upper = logits.softmax(1) - target
            lower = (upper @ self.weights[1][:-1].t()) * (hidden > 0)
            if noise:
                # The norm of a row's gradient, which is never written out.
                norms = (1 + squares) * lower.square().sum(1)
                norms += (1 + hidden.square().sum(1)) * upper.square().sum(1)
                factors = clip_factors(norms.sqrt(), 1.0)[:, None] * 0.999
                lower, upper = lower * factors, upper * factors
            sums = [
                torch.cat([x.t() @ lower, lower.sum(0, keepdim=True)]),
                torch.cat([hidden.t() @ upper, upper.sum(0, keepdim=True)]),
            ]
            for weight, total in zip(self.weights, sums, strict=True):
                if noise:
                    drawn = noise[0].normal(tuple(total.shape))
                    total = total + noise[1] * drawn.float()
                weight.grad = total / len(index)
            optimizer.step()
        return self.forward(self.x)


def gap(
    data: Data, relation: str, mu: float, hops: int, stages: bool
) -> Tensor:
    """Logits of GAP, or in stages of ProGAP, with an account of our own."""
    classes = int(data.y.max()) + 1
    graph = CSRGraph.from_data(data)
    account = ReleaseAccount({'relation': relation}, limit=mu * (1 + 1e-9))
    private = relation == 'node'
    # One noise for encoder, sums and head, as the authors have it.
    parts = hops + (2 if private and not stages else 0)
    each = mu / math.sqrt(parts)

    def fit(x: Tensor) -> tuple[Tensor, Tensor]:
        paid = None
        if private:
            account.spend(each)
            paid = SecureNoise(), descent_noise(each, STEPS)
        return MLP(x, classes).train(data, paid)

    weights, limit = None, None
    if private:
        # The authors' default: 100 of the own list at random.
        graph = CSRGraph.from_data(BoundedDegree(100)(data.clone()))
        weights, limit = torch.ones(graph.num_nodes).double(), 100

    def sums(rows: Tensor, count: int) -> list[Tensor]:
        std = hop_sensitivity(relation, max_degree=limit) / each
        noise = PaidNoise(SecureNoise(), account.spend, [each] * count)
        made = private_propagate(
            graph, rows, [std] * count, noise, relation, weights
        )
        return [row.float() for row in made]

    hidden, logits = fit(data.x)
    if not stages:
        rows = [F.normalize(row) for row in sums(hidden, hops)]
        return fit(torch.cat([F.normalize(hidden), *rows], 1))[1]
    kept = [F.normalize(hidden)]
    for _ in range(hops):
        kept += [F.normalize(row) for row in sums(hidden, 1)]
        hidden, logits = fit(torch.cat(kept, 1))
    return logits


def walks(data: Data, epsilon: float, delta: float, seed: int) -> Tensor:
    """Classes by a GCN on disjoint walks; its predictions read the graph."""
    inner = data.subgraph(data.train_mask)
    model = GCN(data.num_features, 0, int(data.y.max()) + 1)
    batch = max(1, inner.num_nodes // 5)
    loader = DisjointWalkLoader(inner, batch, 1, 1, seed=seed)
    args = Namespace(
        lr=0.05,
        repeatable=False,
        lam=4.0,
        max_grad_norm=1.0,
        epsilon=epsilon,
        delta=delta,
        max_physical_batch_size=None,
        max_steps=200,
    )
    train_private(model, loader, data, data.test_mask, 'pld_wor', seed, args)
    with torch.no_grad():
        return model(data.x, data.edge_index)


def methods(level: str, args: Namespace) -> list[str]:
    """What is drawn on one side of a figure."""
    names = {
        'edge': ['no graph', 'GAP-like', 'ProGAP-like', 'ours'],
        'node': ['no graph', 'MLP-DP', 'GAP-like', 'ours', 'walks'],
        'feature': ['no graph', 'ours', 'walks'],
    }[level]
    return [name for name in names if not args.only or name in args.only]


def logits_of(
    name: str, level: str, data: Data, epsilon: float, seed: int
) -> tuple[Tensor, str]:
    """The logits of a method, and a report if it has one."""
    # A public power of ten below one over ten times the edges, or the nodes.
    count = (
        data.num_edges // 2 if level == 'edge' else int(data.num_nodes or 1)
    )
    delta = 10.0 ** -math.ceil(math.log10(10 * count))
    mu, classes = gaussian_mu_for(epsilon, delta), int(data.y.max()) + 1
    if name == 'ours':
        model = PrivateNodeClassifier(level, epsilon, delta).fit(data)
        return model.logits(), model.report().explain()
    if name == 'walks':
        return walks(data, epsilon, delta, seed), ''
    if name in ('GAP-like', 'ProGAP-like'):
        return gap(data, level, mu, 1, name == 'ProGAP-like'), ''
    if level == 'edge':
        return MLP(data.x, classes).train(data, None)[1], ''
    if name == 'MLP-DP':
        noise = SecureNoise(), descent_noise(mu, STEPS)
        return MLP(data.x, classes).train(data, noise)[1], ''
    # All of the budget goes to the encoder: it is ours without a graph.
    alone = data.clone()
    alone.edge_index = data.edge_index[:, :0]
    shares = (0.998, 0.001, 0.001)
    model = PrivateNodeClassifier(level, epsilon, delta, shares=shares)
    model.fit(alone)
    assert model._encoder is not None
    return model._encoder(data.x), ''


def draw(found: dict, name: str, args: Namespace, path: Path) -> None:
    """Draw accuracy against epsilon, with a panel for each guarantee."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    for axis, level in zip(axes, LEVELS, strict=True):
        epsilons = getattr(args, f'{level}_epsilons')
        for method in methods(level, args):
            runs = [found[level, method, epsilon] for epsilon in epsilons]
            axis.errorbar(
                epsilons,
                [mean(run) for run in runs],
                [pstdev(run) for run in runs],
                marker='.',
                capsize=2,
                color=COLORS[method],
                linestyle=':' if method == 'walks' else '-',
                label=method + (' (another promise)' * (method == 'walks')),
            )
        axis.set(xscale='log', xlabel='epsilon', title=f'{name}: {level}')
        axis.set_xticks(epsilons, [f'{epsilon:g}' for epsilon in epsilons])
        axis.minorticks_off()
        axis.legend(fontsize=7)
    axes[0].set_ylabel('test accuracy')
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Runs all methods on all graphs; prints tables, draws figures."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--graphs', nargs='*', default=['generated'])
    parser.add_argument('--root', default='data')
    parser.add_argument('--out', default='figures')
    parser.add_argument('--seeds', type=int, default=1)
    for level, default in zip(
        LEVELS, ([1.0, 2.0, 4.0], [4, 8, 16], [4, 8, 16]), strict=True
    ):
        parser.add_argument(
            f'--{level}-epsilons', type=float, nargs='*', default=default
        )
    parser.add_argument('--only', nargs='*', help='methods')
    args = parser.parse_args()
    # A curve releases the same data many times. All of it together costs more
    # than any point says, which is fine for data that are public anyway.
    warnings.filterwarnings('ignore', 'these data were released before')
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in args.graphs:
        data = graph_of(name, args.root)
        print(f'{name}: {data.num_nodes} nodes, {data.num_edges // 2} edges')
        found, said = defaultdict(list), ''
        for level in LEVELS:
            for epsilon in getattr(args, f'{level}_epsilons'):
                for method in methods(level, args):
                    for seed in range(args.seeds):
                        divide(data, seed)
                        seed_everything(seed)
                        logits, text = logits_of(
                            method, level, data, epsilon, seed
                        )
                        said = text or said
                        right = logits.argmax(1) == data.y
                        share = float(right[data.test_mask].float().mean())
                        found[level, method, epsilon].append(share)
                    run = found[level, method, epsilon]
                    print(
                        f'  {level} epsilon {epsilon:g} {method:<12} '
                        f'{mean(run):.4f} +- {pstdev(run):.4f} '
                        f'(seeds: {len(run)})',
                        flush=True,
                    )
        draw(found, name, args, out / f'private_{name}.png')
        print(said)
    print(ADVICE)


if __name__ == '__main__':
    main()
