r"""Private graph classification: whether a protein is there at all.

A GIN on PROTEINS (or on generated graphs) is trained so that its weights
hardly tell whether any one graph was in the collection: its nodes, edges,
features and label, all together. Every step draws each graph by a coin of its
own, the gradient of each is normalised ("automatic clipping", Bu et al. 2023,
https://arxiv.org/abs/2206.07136), so that no clipping norm is to be tuned, and
the account is that of Poisson sampling, added or removed. Beside it a linear
model of a graph's size and mean row: with few graphs fewer weights may serve
better, as every weight gets noise. Each model has a budget of its own here;
who publishes both spends twice.

    python examples/private_proteins.py                # generated graphs
    python examples/private_proteins.py --root data    # PROTEINS

Graphs fall into training or test by coins of their own, as how many there are
is private. The rate of a step and the number that sums are divided by are
public arguments. Test graphs count as public: no epsilon covers accuracies.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

from pyg_trust import rng
from pyg_trust.loader import GraphLoader
from pyg_trust.privacy import PoissonAccountant, PrivacyEngine

TYPES = 3


class Linear(nn.Module):
    """A linear model of a graph's size and of its mean row: no layer."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(1 + width, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """A row of logits per graph."""
        # About zero for a graph of twenty nodes, whatever the data are.
        size = global_add_pool(x.new_ones(x.size(0), 1), batch).log() - 3
        return self.out(torch.cat([size, global_mean_pool(x, batch)], 1))


class GIN(nn.Module):
    """Two layers without batch normalisation, and a mean over nodes."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = GINConv(self.mlp(width, hidden))
        self.second = GINConv(self.mlp(hidden, hidden))
        self.out = nn.Linear(hidden, classes)

    @staticmethod
    def mlp(width: int, hidden: int) -> nn.Module:
        """What a layer does with a sum."""
        return nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """A row of logits per graph."""
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.out(global_mean_pool(x, batch))


def generate(count: int = 1000) -> list[Data]:
    """Graphs of two classes: edges join nodes of one type, or of two."""
    generator = rng.generator(0)
    made = []
    for index in range(count):
        n = int(torch.randint(15, 40, (1,), generator=generator))
        kind = torch.randint(TYPES, (n,), generator=generator)
        pair = torch.randint(n, (2, 8 * n), generator=generator)
        y = index % 2
        pair = pair[:, (kind[pair[0]] == kind[pair[1]]) == bool(y)]
        pair = pair[:, pair[0] != pair[1]][:, : 2 * n]
        made.append(
            Data(
                x=F.one_hot(kind, TYPES).float(),
                edge_index=torch.cat([pair, pair.flip(0)], 1),
                y=torch.tensor([y]),
            )
        )
    return made


def accuracy(model: nn.Module, graphs: Sequence[Data]) -> float:
    """The share of graphs whose class is found."""
    batch = Batch.from_data_list(list(graphs))
    with torch.no_grad():
        out = model(batch.x, batch.edge_index, batch.batch)
    return float((out.argmax(1) == batch.y).float().mean())


def train_plain(
    graphs: list[Data], kind: type[nn.Module], args: argparse.Namespace
) -> nn.Module:
    """The same model without privacy, in as many epochs."""
    model = kind(graphs[0].num_features, args.hidden, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(graphs, args.batch_size, shuffle=True)
    for _ in range(int(args.steps * args.rate)):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch.batch)
            F.cross_entropy(out, batch.y).backward()
            optimizer.step()
    return model


def train_private(
    graphs: list[Data],
    kind: type[nn.Module],
    epsilon: float,
    args: argparse.Namespace,
) -> tuple[nn.Module, PrivacyEngine]:
    """A model, and the engine that paid for it."""
    loader = GraphLoader(
        graphs,
        args.batch_size,
        num_steps=args.steps,
        sampling='poisson',
        neighboring='add_remove',
        sample_rate=args.rate,
    )
    module = kind(graphs[0].num_features, args.hidden, 2)
    engine = PrivacyEngine()
    model, optimizer, batches = engine.make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=args.lr),
        data_loader=loader,
        noise_multiplier=PoissonAccountant('add_remove').noise_multiplier_for(
            epsilon, args.delta, sample_rate=args.rate, steps=args.steps
        ),
        max_grad_norm=1.0,
        clipping='automatic',
        target_epsilon=epsilon,
        target_delta=args.delta,
        forward=lambda m, b: m(b.x, b.edge_index, b.batch),
        criterion=F.cross_entropy,
    )
    for batch in batches:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index, batch.batch)
        F.cross_entropy(out, batch.y).backward()
        optimizer.step()
    return model, engine


def main() -> None:
    """Trains for every epsilon and prints a table and a report."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--root', help='the folder of PROTEINS')
    parser.add_argument('--epsilons', type=float, nargs='*', default=[2, 8])
    parser.add_argument('--delta', type=float, default=1e-4)
    parser.add_argument('--rate', type=float, default=0.1)
    parser.add_argument('--batch-size', type=int, default=80)
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--hidden', type=int, default=16)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    seed_everything(args.seed)
    graphs = list(
        TUDataset(args.root, 'PROTEINS') if args.root else generate()
    )
    coin = torch.rand(len(graphs), generator=rng.generator(args.seed)) < 0.8
    pairs = list(zip(graphs, coin.tolist(), strict=True))
    inside = [graph for graph, taken in pairs if taken]
    outside = [graph for graph, taken in pairs if not taken]
    counts = torch.cat([graph.y for graph in outside]).bincount()
    print(
        f'largest class             {float(counts.max() / counts.sum()):.4f}'
    )
    for kind in (GIN, Linear):
        found = accuracy(train_plain(inside, kind, args), outside)
        print(f'{kind.__name__:<8} no privacy       {found:.4f}')
        for epsilon in args.epsilons:
            model, engine = train_private(inside, kind, epsilon, args)
            spent = engine.get_epsilon(args.delta)
            found = accuracy(model, outside)
            print(f'{kind.__name__:<8} epsilon {spent:<8.4g} {found:.4f}')
    print(engine.report(args.delta).explain())


if __name__ == '__main__':
    main()
