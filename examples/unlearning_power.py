"""Poisoned, unlearned, recovered: the unlearning power of sharded training.

The experiment of Zhang et al. 2024 (https://arxiv.org/abs/2403.07353, A.2.1):
inject 100 nodes with wrong labels and 10 random edges each, train, forget
them, and see how much of the F1 comes back. For every model and method three
numbers: trained without the injected nodes ever ("never"), with them
("poisoned"), and after they were unlearned.

    python examples/unlearning_power.py --dataset Planetoid:CiteSeer --root D

With the partition by hash the unlearned model does not come close to the one
that never saw them: it *is* that model, bit for bit, which is checked. Other
partitions have seen the injected nodes, and the unlearned model differs from
the one that starts over.

The injected nodes touch nearly all shards, so this is about F1 and not about
time. "AUC" is a membership inference on the injected nodes, against as many
others that are made in the same way and that no model was trained on. It is a
smoke test: it should be high before, and its interval hold one half after.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.utils import (
    remove_self_loops,
    stochastic_blockmodel_graph,
    to_undirected,
)

from pyg_trust import rng
from pyg_trust.audit import MembershipReport, membership_inference
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner

matplotlib.use('Agg')
from matplotlib import pyplot

SHARED = Path(__file__).resolve().parents[2] / 'shared/data/Planetoid'
MODELS: dict[str, Any] = {'GCN': GCN, 'SAGE': GraphSAGE, 'GAT': GAT}
# Partition and aggregator.
METHODS = {
    'SISA': ('random', 'mean'),
    'GraphEraser': ('blpa', 'lbaggr'),
    'GraphRevoker': ('learned', 'contrastive'),
    'hash + attention': ('hash', 'attentive'),
}
STAGES = ('never', 'poisoned', 'unlearned')


def generated(seed: int) -> Data:
    """Five communities of 200 nodes, whose features say little each."""
    size, classes = 200, 5
    link = torch.full((classes, classes), 0.001)
    link.fill_diagonal_(0.02)
    y = torch.arange(classes).repeat_interleave(size)
    with rng.forked(rng.derive(seed, 0)):
        edge_index = stochastic_blockmodel_graph([size] * classes, link)
        x = torch.randn(y.numel(), 32)
    x[:, :classes] += torch.eye(classes)[y]
    return Data(x=x, y=y, edge_index=edge_index)


def load(dataset: str | None, root: Path | None, seed: int) -> Data:
    """A graph by ``class:name`` in ``torch_geometric.datasets``."""
    if dataset is None:
        dataset = 'Planetoid:Cora'
        if root is None and not (SHARED / 'Cora').is_dir():
            dataset = 'generated'
    if dataset == 'generated':
        return generated(seed)
    kind, _, name = dataset.partition(':')
    make = getattr(torch_geometric.datasets, kind)
    with tempfile.TemporaryDirectory() as scratch:
        root = SHARED if root is None else root
        if root.is_dir() and not os.access(root, os.W_OK):
            # PyG writes beside the raw files.
            shutil.copytree(root / name, Path(scratch) / name)
            root = Path(scratch)
        data = (make(root, name) if name else make(root))[0]
    edge_index, _ = remove_self_loops(data.edge_index)
    edge_index = to_undirected(edge_index, num_nodes=data.num_nodes)
    # Features as they come: from words normalised by row, whose numbers are
    # small, shards of a hundred nodes learn little in 100 epochs.
    return Data(x=data.x, y=data.y, edge_index=edge_index)


def split(data: Data, seed: int) -> Data:
    """At random: 70% for training, 10% for test."""
    num_nodes = int(data.num_nodes)
    order = torch.randperm(num_nodes, generator=rng.generator(seed))
    for name, part in (
        ('train_mask', order[: int(0.7 * num_nodes)]),
        ('test_mask', order[int(0.9 * num_nodes) :]),
    ):
        data[name] = torch.zeros(num_nodes, dtype=torch.bool)
        data[name][part] = True
    return data


def inject(
    data: Data, num: int, edges: int, among: int, train: bool, seed: int
) -> Data:
    """The graph with new nodes at its end, under wrong labels.

    Args:
        data (Data): the graph.
        num (int): how many nodes to add. Each has the features of a random
            node, and not its label.
        edges (int): how many neighbours each gets.
        among (int): features and neighbours come from the first so many.
        train (bool): whether the new nodes are for training.
        seed (int): the seed.
    """
    old, classes = int(data.num_nodes), int(data.y.max()) + 1
    source = rng.generator(seed)
    twin = torch.randint(among, (num,), generator=source)
    shift = torch.randint(1, classes, (num,), generator=source)
    # A random subset for each.
    friends = torch.rand(num, among, generator=source).topk(edges).indices
    new = torch.arange(old, old + num).repeat_interleave(edges)
    added = torch.stack([new, friends.flatten()])
    none = torch.zeros(num, dtype=torch.bool)
    return Data(
        x=torch.cat([data.x, data.x[twin]]),
        y=torch.cat([data.y, (data.y[twin] + shift) % classes]),
        edge_index=torch.cat([data.edge_index, added, added.flip(0)], 1),
        train_mask=torch.cat([data.train_mask, none | train]),
        test_mask=torch.cat([data.test_mask, none]),
    )


class Experiment:
    """One graph, one poisoning, one split."""

    def __init__(self, args: argparse.Namespace, seed: int) -> None:
        self.args, self.seed = args, seed
        self.clean = split(load(args.dataset, args.root, seed), seed)
        num = int(self.clean.num_nodes)
        self.injected = torch.arange(num, num + args.num)
        self.controls = self.injected + args.num
        more = (args.num, args.edges, num)
        self.poisoned = inject(self.clean, *more, True, rng.derive(seed, 1))
        # To ask about nodes that are gone takes a graph that has them.
        self.asked = inject(self.poisoned, *more, False, rng.derive(seed, 2))

    def factory(self, model: str) -> Callable[[], torch.nn.Module]:
        """Makes untrained models."""
        channels = self.clean.num_features, 64, 2, int(self.clean.y.max()) + 1
        return lambda: MODELS[model](*channels, dropout=0.5)

    def unlearner(self, model: str, method: str) -> ShardedUnlearner:
        """An untrained one."""
        partition, aggregator = METHODS[method]
        return ShardedUnlearner(
            self.factory(model),
            self.args.num_shards,
            partition=partition,
            aggregator=aggregator,
            epochs=self.args.epochs,
            seed=self.seed,
        )

    def f1(self, label: Tensor) -> float:
        """Micro F1 (accuracy) on the test nodes, in percent."""
        test = self.clean.test_mask.nonzero().view(-1)
        return 100 * float((label[test] == self.clean.y[test]).double().mean())

    def attack(self, unlearner: ShardedUnlearner) -> MembershipReport:
        """Who of the injected nodes and the controls was in the training?"""
        return membership_inference(
            unlearner.predict_proba(self.asked),
            self.asked.y,
            self.injected,
            self.controls,
        )

    def alone(self, model: str) -> dict[str, float]:
        """One model on the whole training graph, trained from scratch."""
        scores = {}
        for stage, data in (
            ('never', self.clean),
            ('poisoned', self.poisoned),
        ):
            one = ShardedUnlearner(
                self.factory(model),
                1,
                aggregator='mean',
                epochs=self.args.epochs,
                seed=self.seed,
            ).fit(data)
            scores[stage] = self.f1(one.predict())
        return {**scores, 'unlearned': scores['never']}

    def run(self, model: str, method: str) -> dict[str, Any]:
        """The three stages of one method."""
        never = self.unlearner(model, method).fit(self.clean)
        unlearner = self.unlearner(model, method).fit(self.poisoned)
        found: dict[str, Any] = {
            'never': self.f1(never.predict()),
            'poisoned': self.f1(unlearner.predict()),
            'before': self.attack(unlearner),
        }
        report = unlearner.remove(RemovalRequest(nodes=self.injected))
        same = all(
            torch.equal(value, unlearner.shard_state(i)[name])
            for i in range(self.args.num_shards)
            for name, value in never.shard_state(i).items()
        ) and torch.equal(
            never.predict_proba(), unlearner.predict_proba(nodes=never.n_id)
        )
        if report.exact and not same:
            raise RuntimeError('the unlearned model is not the exact one')
        return {
            **found,
            'unlearned': self.f1(unlearner.predict()),
            'after': self.attack(unlearner),
            'touched': len(report.shards),
            'same': same,
        }


def mean(values: list[float]) -> str:
    """Mean and, of several, the standard deviation."""
    spread = f'±{statistics.stdev(values):.1f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.1f}{spread}'


def draw(scores: dict[str, dict[str, list]], path: Path) -> None:
    """Bars of the three stages, a panel per model."""
    figure, axes = pyplot.subplots(
        1, len(scores), figsize=(4.5 * len(scores), 3.5), squeeze=False
    )
    for axis, (model, rows) in zip(axes[0], scores.items(), strict=True):
        for k, stage in enumerate(STAGES):
            values = [[run[stage] for run in runs] for runs in rows.values()]
            axis.bar(
                [i + 0.27 * (k - 1) for i in range(len(rows))],
                [statistics.mean(v) for v in values],
                0.25,
                yerr=[
                    statistics.stdev(v) if len(v) > 1 else 0 for v in values
                ],
                label=stage,
            )
        axis.set_xticks(range(len(rows)), list(rows), rotation=20)
        axis.set_title(model)
        axis.set_ylabel('test F1 in %')
    axes[0][0].legend(fontsize=8, loc='lower right')
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f'wrote {path}')


def main() -> None:
    """Runs the experiment."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--dataset',
        help="class[:name] in torch_geometric.datasets, or 'generated'; by "
        'default Cora, if it lies beside this repository, else generated',
    )
    parser.add_argument('--root', type=Path)
    parser.add_argument('--models', nargs='+', default=['GCN', 'SAGE'])
    parser.add_argument('--methods', nargs='+', default=list(METHODS))
    parser.add_argument('--num', type=int, default=100)
    parser.add_argument('--edges', type=int, default=10)
    parser.add_argument('--num-shards', type=int, default=20)
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--out', type=Path, default=Path())
    args = parser.parse_args()
    scores: dict[str, dict[str, list]] = {}
    print(
        f'{"model":6}{"method":18}{"never":>11}{"poisoned":>11}'
        f'{"unlearned":>11}{"touched":>9}{"same":>6}  AUC before and after'
    )
    for model in args.models:
        rows: dict[str, list] = {'one model': []}
        rows.update({method: [] for method in args.methods})
        for seed in range(args.seeds):
            experiment = Experiment(args, seed)
            rows['one model'].append(experiment.alone(model))
            for method in args.methods:
                rows[method].append(experiment.run(model, method))
        for method, runs in rows.items():
            line = f'{model:6}{method:18}'
            for stage in STAGES:
                line += f'{mean([run[stage] for run in runs]):>11}'
            if method in METHODS:
                last = runs[-1]
                attacks = ' -> '.join(
                    f'{a.auc:.2f} [{a.low:.2f}, {a.high:.2f}]'
                    for a in (last['before'], last['after'])
                )
                same = 'yes' if all(run['same'] for run in runs) else 'no'
                line += f'{last["touched"]:>9}{same:>6}  {attacks}'
            print(line, flush=True)
        scores[model] = rows
    args.out.mkdir(parents=True, exist_ok=True)
    draw(scores, args.out / 'unlearning_power.png')


if __name__ == '__main__':
    main()
