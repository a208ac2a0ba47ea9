"""Forget nodes, edges, features and labels from a node classifier.

Three experiments on one graph, with figures:

- *a sequence of removals*: CPU seconds of a request and test accuracy, beside
  propagating and retraining exactly from scratch;
- *how often others would retrain*: with the same requests and the noise of
  the literature, the account of CGU (Chien et al. 2022), which adds up a bound
  over classes, that of ScaleGUN (Yi and Wei 2025), which does so at features
  by push and adds a term for these (the norm of *signed* sums of residues, an
  error of which it is no bound), one that adds up the tight bound, and ours,
  which measures the residual after a step with the full gradient;
- *poisoned edges*: edges between classes are added before training, and
  removed afterwards.

    python examples/node_unlearning.py --root data/Planetoid --dataset Cora
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid

from pyg_trust.agp.measures import sgc
from pyg_trust.agp.propagation import propagate
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.unlearning.heads import (
    Objective,
    refine,
    spectral_norm,
    targets,
)
from pyg_trust.unlearning.published import removal_budget, tight_bound

LAM, SIGMA = 1e-4, 0.1


def load(args: argparse.Namespace) -> Data:
    """The graph, with features of a random projection, half of it train."""
    data = Planetoid(args.root, args.dataset)[0]
    random = torch.Generator().manual_seed(args.seed)
    x = data.x.double()
    x /= x.norm(dim=1, keepdim=True).clamp(min=1e-9)
    shape = (x.size(1), args.columns)
    projection = torch.randn(shape, generator=random, dtype=torch.float64)
    n = x.size(0)
    train = torch.zeros(n, dtype=torch.bool)
    train[torch.randperm(n, generator=random)[: n // 2]] = True
    return Data(
        x=x @ projection / args.columns**0.5,
        edge_index=data.edge_index,
        y=data.y,
        train_mask=train,
        test_mask=~train,
    )


def draw(
    model: NodeClassifier, train: Tensor, random: torch.Generator
) -> RemovalRequest:
    """A random node, edge, feature row or label that is there."""
    while True:
        u = int(torch.randint(10, (), generator=random))
        nodes = model.nodes
        node = int(nodes[torch.randint(len(nodes), (), generator=random)])
        if u < 4:
            request = RemovalRequest(nodes=[node])
        elif u < 7:
            edges = model.graph.to_edge_index()[0]
            at = int(torch.randint(edges.size(1), (), generator=random))
            request = RemovalRequest(edges=edges[:, [at]])
        elif u < 9:
            request = RemovalRequest(features=[node])
        else:
            at = int(torch.randint(len(train), (), generator=random))
            request = RemovalRequest(labels=[int(train[at])])
        try:
            model.plan(request)
        except ValueError:
            continue  # removed before
        return request


def remaining(model: NodeClassifier) -> tuple[Tensor, Objective]:
    """Features from scratch, and the objective of what remains."""
    assert model._model is not None
    x = model._model.data.levels.x
    z = propagate(model.graph, x, model.measure)
    return z, objective(model, z)


def objective(model: NodeClassifier, z: Tensor) -> Objective:
    """The objective of what remains, at some features."""
    assert model._model is not None
    state = model._model.data
    there = state.names[state.names >= 0]
    Y = targets(state.y[state.names >= 0], len(model.classes))
    return Objective(z[there], Y, LAM * there.numel())


def pushed(model: NodeClassifier, threshold: float) -> tuple[Objective, float]:
    """The same at features by push, and ScaleGUN's term for a class.

    What is below the threshold, times the root of the degree, stays where it
    is; the term is twice the norm of the signed sums of what stayed.
    """
    assert model._model is not None
    graph, y = model.graph, model._model.data.levels.x
    limit = threshold * (graph.degree + 1.0).sqrt().unsqueeze(1)
    left = torch.zeros(y.size(1), dtype=y.dtype)
    for _ in range(model.measure.K):
        sent = torch.where(y.abs() > limit, y, 0.0)
        left += (y - sent).sum(0)
        y = propagate(graph, sent, sgc(1))
    return objective(model, y), 2 * float(left.norm())


def accuracy(z: Tensor, W: Tensor, data: Data, nodes: Tensor) -> float:
    """The share of test nodes that are classified right."""
    some = nodes[data.test_mask[nodes]]
    return float(((z[some] @ W).argmax(1) == data.y[some]).double().mean())


class Account:
    """One that adds up a bound, and retrains when the budget is spent."""

    def __init__(self, W: Tensor, budget: float, per_class: bool) -> None:
        self.W, self.per_class = W, per_class
        self.budget = budget * (W.size(1) if per_class else 1)
        self.spent, self.retrained = 0.0, 0

    def step(
        self, before: Objective, after: Objective, more: float = 0.0
    ) -> None:
        """Solves for the change of the gradient, as the papers do."""
        change = before.gradient(self.W).value - after.gradient(self.W).value
        P = after.factor(self.W).solve(change)
        if self.per_class:
            radius = float(after.Z.norm(dim=1).max())
            parts = P.norm(dim=0) * (after.Z @ P).norm(dim=0)
            size = spectral_norm(after.Z)
            self.spent += float(parts.sum()) * radius * size / 4
            self.spent += more * P.size(1)
        else:
            self.spent += tight_bound(after.Z, P)
        self.W = self.W + P
        if self.spent > self.budget:
            self.W = refine(after, self.W, 1e-9, 50).W
            self.spent, self.retrained = 0.0, self.retrained + 1


def sequence(args: argparse.Namespace, data: Data) -> dict[str, list[float]]:
    """Cost, accuracy and retrainings over a sequence of requests."""
    model = NodeClassifier(
        'sgc', weight_decay=LAM, release_std=args.release_std
    )
    model.fit(data)
    random = torch.Generator().manual_seed(args.seed)
    train = data.train_mask.nonzero().view(-1)
    _, before = remaining(model)
    rough, _ = pushed(model, args.threshold)
    budget = removal_budget(1.0, 1e-4, SIGMA)
    W = refine(before, torch.zeros_like(model.weight), 1e-9, 50).W
    cgu, tight = Account(W, budget, True), Account(W, budget, False)
    start_at = refine(rough, torch.zeros_like(W), 1e-9, 50).W
    scalegun = Account(start_at, budget, True)
    rows: dict[str, list[float]] = {
        name: [] for name in ('ours', 'again', 'accuracy', 'exact')
    }
    rows |= {'CGU': [], 'ScaleGUN': [], 'tight': [], 'residual': []}
    for _ in range(args.requests):
        request = draw(model, train, random)
        start = time.process_time()
        report = model.remove(request)
        rows['ours'].append(time.process_time() - start)
        model.graph.is_undirected  # noqa: B018
        start = time.process_time()
        z, after = remaining(model)
        exact = refine(after, torch.zeros_like(W), 1e-8, 50).W
        rows['again'].append(time.process_time() - start)
        rows['accuracy'].append(accuracy(z, model.weight, data, model.nodes))
        rows['exact'].append(accuracy(z, exact, data, model.nodes))
        cgu.step(before, after)
        tight.step(before, after)
        near, more = pushed(model, args.threshold)
        scalegun.step(rough, near, more)
        rough = near
        rows['CGU'].append(cgu.retrained)
        rows['ScaleGUN'].append(scalegun.retrained)
        rows['tight'].append(tight.retrained)
        rows['residual'].append(report.action == 'retrain')
        before = after
    found = model.verify()
    print(report)
    print(f'verified: {found.ok}')
    times = torch.tensor([rows['ours'], rows['again']]).median(dim=1).values
    print(
        f'a request takes {1e3 * times[0]:.1f} ms, propagating and '
        f'retraining {1e3 * times[1]:.1f} ms: ratio {times[1] / times[0]:.1f}'
    )
    gap = 100 * (rows['accuracy'][-1] - rows['exact'][-1])
    print(f'accuracy {rows["accuracy"][-1]:.4f}, from retraining {gap:+.2f}')
    print(
        f'of {args.requests} requests CGU would retrain {cgu.retrained}, '
        f'ScaleGUN {scalegun.retrained}, the tight bound {tight.retrained}, '
        f'the measured residual {int(sum(rows["residual"]))}'
    )
    return rows


def poisoned(args: argparse.Namespace, data: Data) -> list[float]:
    """Accuracy on the clean graph, with poisoned edges, and without again."""
    random = torch.Generator().manual_seed(args.seed + 1)
    n, known = (
        int(data.num_nodes),
        set(map(tuple, data.edge_index.t().tolist())),
    )
    added: set[tuple[int, int]] = set()
    while len(added) < args.poison:
        u, v = torch.randint(n, (2,), generator=random).tolist()
        if data.y[u] != data.y[v] and (u, v) not in known:
            added.add((min(u, v), max(u, v)))
    wrong = torch.tensor(sorted(added)).t()
    edges = torch.cat([data.edge_index, wrong, wrong.flip(0)], dim=1)
    dirty = Data(**{**data.to_dict(), 'edge_index': edges})
    scores = []
    test = data.test_mask
    for graph in (data, dirty):
        model = NodeClassifier(
            'sgc', weight_decay=LAM, release_std=args.release_std
        )
        scores.append(model.fit(graph).score(test, data.y))
    report = model.remove(RemovalRequest(edges=wrong))
    scores.append(model.score(test, data.y))
    print(
        f'{args.poison} poisoned edges: clean {scores[0]:.4f}, poisoned '
        f'{scores[1]:.4f}, unlearned {scores[2]:.4f} (epsilon '
        f'{report.epsilon:.3g}, verified: {model.verify().ok})'
    )
    return scores


def draw_figures(
    rows: dict[str, list[float]], scores: list[float], out: Path
) -> None:
    """Three panels in one PNG."""
    _, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4))
    left.semilogy([1e3 * s for s in rows['again']], label='from scratch')
    left.semilogy([1e3 * s for s in rows['ours']], label='remove()')
    left.set(xlabel='request', ylabel='CPU milliseconds')
    twin = left.twinx()
    twin.plot(rows['exact'], 'k', lw=3, alpha=0.3, label='exact retraining')
    twin.plot(rows['accuracy'], 'k', lw=1, label='released')
    twin.set(ylabel='test accuracy', ylim=(0, 1))
    left.legend(loc='center left')
    twin.legend(loc='lower right')
    for name, label in (
        ('CGU', "CGU's account"),
        ('ScaleGUN', "ScaleGUN's account"),
        ('tight', 'tight bound, added up'),
        ('residual', 'measured residual'),
    ):
        counts = torch.tensor(rows[name])
        middle.plot(
            counts if name != 'residual' else counts.cumsum(0), label=label
        )
    middle.set(xlabel='request', ylabel='retrainings')
    middle.legend()
    right.bar(['clean', 'poisoned', 'unlearned'], scores)
    right.set(ylabel='test accuracy', ylim=(min(scores) - 0.05, 1))
    plt.tight_layout()
    plt.savefig(out / 'node_unlearning.png', dpi=120)


def main() -> None:
    """Runs all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', default='data/Planetoid')
    parser.add_argument('--dataset', default='Cora')
    parser.add_argument('--columns', type=int, default=96)
    parser.add_argument('--requests', type=int, default=120)
    parser.add_argument('--poison', type=int, default=2000)
    parser.add_argument('--threshold', type=float, default=1e-7)
    parser.add_argument('--release-std', type=float, default=1e-3)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=Path())
    args = parser.parse_args()
    data = load(args)
    rows = sequence(args, data)
    scores = poisoned(args, data)
    draw_figures(rows, scores, args.out)


if __name__ == '__main__':
    main()
