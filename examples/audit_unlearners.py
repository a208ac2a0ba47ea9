"""Audits four ways to forget: two that hold, two that only claim to.

Each is an object with four methods (fit, remove, predict_proba, released), as
``pyg_trust.audit.Subject`` asks for. Two are of this package: exact
shards, and a certified node classifier. Two follow published ideas, written
anew here in their shortest form:

- *gradient ascent* (as in Golatkar et al. 2020, "NegGrad"): a few steps that
  raise the loss of what is removed;
- *an influence update without a certificate* (as in Wu et al. 2023, "GIF"):
  one step for the nodes that go, by conjugate gradients on a damped Hessian of
  a graph network, which is not convex.

    python examples/audit_unlearners.py --out audit.png
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_trust.audit import (
    NodeSubject,
    RemovalAudit,
    ShardedSubject,
    Subject,
    audit_removal,
)
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning import (
    NodeClassifier,
    ShardedUnlearner,
)

CLASSES, CHANNELS, EPOCHS = 3, 8, 40
TESTS = ('twins', 'worlds', 'poison')


def make_data(nodes: int = 120) -> Data:
    """A block model with noisy features; three nodes of four train."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sizes = [nodes // CLASSES] * CLASSES
    inside, across = 0.12, 0.01
    p = torch.full((CLASSES, CLASSES), across).fill_diagonal_(inside)
    y = torch.arange(CLASSES).repeat_interleave(nodes // CLASSES)
    x = torch.randn(nodes, CHANNELS, generator=generator)
    x[torch.arange(nodes), y] += 1.5
    train = torch.rand(nodes, generator=generator) < 0.75
    return Data(
        x=x,
        edge_index=stochastic_blockmodel_graph(sizes, p),
        y=y,
        train_mask=train,
        test_mask=~train,
    )


class Network:
    """A graph network that is trained once; what forgets is up to others."""

    def fit(self, data: Data, seed: int) -> None:
        """Full-batch training, with initial weights from the seed."""
        torch.manual_seed(seed % 2**63)
        self.data = data
        if data.get('n_id') is None:
            data.n_id = torch.arange(int(data.num_nodes))
        self.model = GCN(CHANNELS, 16, 2, CLASSES)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            self.loss(data, data.train_mask).backward()
            optimizer.step()

    def loss(self, data: Data, mask: Tensor) -> Tensor:
        """The mean cross entropy of some nodes."""
        out = self.model(data.x, data.edge_index)
        return F.cross_entropy(out[mask], data.y[mask])

    def split(self, request: RemovalRequest) -> tuple[Data, Tensor]:
        """The graph that remains, and the training nodes that go."""
        gone = torch.isin(self.data.n_id, torch.tensor(request.parts[0].nodes))
        left = remove_from_data(self.data, request.parts[0])
        return left, gone & self.data.train_mask

    @torch.no_grad()
    def predict_proba(self, data: Data) -> Tensor:
        """The probabilities of classes."""
        return self.model(data.x, data.edge_index).softmax(1)

    def released(self) -> dict[str, Tensor | bytes]:
        """The weights, and what is predicted for the present graph."""
        weights = self.model.state_dict()
        found: dict[str, Tensor | bytes] = {
            f'weights: {name}': value for name, value in weights.items()
        }
        return {**found, 'probabilities': self.predict_proba(self.data)}


class GradientAscent(Network):
    """Forgets by raising the loss of what is removed."""

    def remove(self, request: RemovalRequest) -> None:
        """Five steps upwards."""
        left, gone = self.split(request)
        parameters = list(self.model.parameters())
        for _ in range(5):
            loss = self.loss(self.data, gone)
            grads = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, grad in zip(parameters, grads, strict=True):
                    parameter += 0.05 * grad
        self.data = left


class Influence(Network):
    """Forgets by one damped Newton step, and certifies nothing."""

    def remove(self, request: RemovalRequest) -> None:
        """A step with the Hessian of what remains."""
        left, _ = self.split(request)
        parameters = list(self.model.parameters())

        def flat(values: tuple[Tensor, ...]) -> Tensor:
            return torch.cat([value.reshape(-1) for value in values])

        loss = self.loss(left, left.train_mask)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        slope = flat(grads)

        def times(v: Tensor) -> Tensor:
            found = torch.autograd.grad(
                slope, parameters, v, retain_graph=True
            )
            return flat(found) + 0.1 * v

        step = solve(times, slope.detach())
        with torch.no_grad():
            start = 0
            for parameter in parameters:
                end = start + parameter.numel()
                parameter -= step[start:end].view_as(parameter)
                start = end
        self.data = left


def solve(times: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Conjugate gradients, 15 steps at most."""
    x, left = torch.zeros_like(right), right.clone()
    direction = left.clone()
    for _ in range(15):
        product = times(direction)
        curvature = float(direction @ product)
        if curvature <= 0:
            break
        size = float(left @ left)
        x = x + size / curvature * direction
        left = left - size / curvature * product
        direction = left + float(left @ left) / size * direction
    return x


def shards() -> Subject:
    """Exact removal by shards."""
    return ShardedSubject(
        lambda **given: ShardedUnlearner(
            lambda: GCN(CHANNELS, 16, 2, CLASSES),
            3,
            aggregator='mean',
            num_classes=CLASSES,
            epochs=EPOCHS // 2,
            **given,
        )
    )


def certified() -> Subject:
    """Certified removal from a node classifier."""
    return NodeSubject(
        lambda seed: NodeClassifier(
            K=2, weight_decay=0.05, release_std=1e-4, seed=seed
        )
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {
    'exact shards': shards,
    'certified classifier': certified,
    'gradient ascent': GradientAscent,
    'influence update': Influence,
}


def audit(name: str, worlds: int, seed: int) -> RemovalAudit:
    """The audit of one way to forget ten training nodes."""
    data = make_data()
    gone = data.train_mask.nonzero().view(-1)[::9][:10]
    return audit_removal(
        SUBJECTS[name],
        data,
        RemovalRequest(nodes=gone),
        tests=TESTS,
        worlds=worlds,
        seed=seed,
    )


def main() -> None:
    """Audits all of them, and draws what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--worlds', type=int, default=12)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--subjects', nargs='*', default=list(SUBJECTS))
    parser.add_argument('--out', type=Path)
    args = parser.parse_args()
    reports = {}
    for name in args.subjects:
        reports[name] = audit(name, args.worlds, args.seed)
        print(f'# {name}')
        for row in reports[name].rows:
            print(
                f'{row.test}: {row.verdict}, {row.statistic} {row.value:.3g}'
            )
    if args.out is not None:
        figure, axes = plt.subplots(
            len(reports), 1, figsize=(8, 2.2 * len(reports)), squeeze=False
        )
        for ax, (name, report) in zip(
            axes[:, 0], reports.items(), strict=True
        ):
            report.plot(ax).set_title(name)
        figure.tight_layout()
        figure.savefig(args.out)


if __name__ == '__main__':
    main()
