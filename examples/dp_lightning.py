"""Private training in Lightning.

Lightning runs the loop and the private engine decides what leaves it: the
model is made private before it goes into the LightningModule, and its three
parts are used by manual optimisation.

    pip install lightning
    python examples/dp_lightning.py
    python examples/dp_lightning.py --ledger training.ledger

What the trainer logs of the data (losses, accuracies) is not covered by
epsilon: here it logs nothing but epsilon itself.
"""

import argparse
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine, PrivateTraining


class PrivateClassifier(lightning.LightningModule):
    """Classifies nodes by a model that an engine has made private."""

    def __init__(
        self, engine: PrivacyEngine, training: PrivateTraining
    ) -> None:
        super().__init__()
        # Noisy gradients come in the optimizer's step, not in backward.
        self.automatic_optimization = False
        self.engine = engine
        self.model = training.model
        self.optimizer = training.optimizer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The logits."""
        return self.model(x, edge_index)

    def training_step(self, batch: Data, number: int) -> None:
        """One private step."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        size = batch.batch_size
        out = self(batch.x, batch.edge_index)[:size]
        self.manual_backward(F.cross_entropy(out, batch.y[:size]))
        optimizer.step()

    def on_train_epoch_end(self) -> None:
        """Says what was spent, and stops before the budget is exceeded."""
        spent = self.engine.report().epsilon
        print(f'after {self.engine.steps} steps: epsilon {spent:.3f}')
        self.trainer.should_stop = self.engine.exhausted

    def configure_optimizers(self) -> Any:
        """The private optimizer."""
        return self.optimizer


def generate(num_nodes: int = 1200, classes: int = 3, words: int = 30) -> Data:
    """Communities whose nodes use words of their own more often."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (num_nodes,), generator=generator)
    odds = torch.full((classes, words), 0.1)
    for c in range(classes):
        odds[c, c * words // classes :][: words // classes] = 0.25
    x = torch.bernoulli(odds[y], generator=generator)
    pairs = torch.randint(num_nodes, (2, 8 * num_nodes), generator=generator)
    pairs = pairs[:, (y[pairs[0]] == y[pairs[1]]) & (pairs[0] < pairs[1])]
    edge_index = torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)
    return Data(x=F.normalize(x), y=y, edge_index=edge_index)


def main() -> None:
    """Trains, and prints the accuracy and the report."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--epsilon', type=float, default=8.0)
    parser.add_argument('--delta', type=float, default=1e-4)
    parser.add_argument('--steps', type=int, default=40)
    parser.add_argument('--ledger')
    args = parser.parse_args()

    data = generate()
    generator = torch.Generator().manual_seed(1)
    train = torch.rand(data.num_nodes, generator=generator) < 0.7
    inner = data.subgraph(train)
    model = GCNConv(data.num_features, int(data.y.max()) + 1)
    engine = PrivacyEngine(ledger=args.ledger)
    training = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(inner, 200, 1, num_steps=10),
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        steps=args.steps,
        max_grad_norm=0.5,
    )
    planned = engine.get_epsilon(args.delta, steps=args.steps)
    print(f'{args.steps} steps will spend epsilon {planned:.3f}')
    trainer = lightning.Trainer(
        max_epochs=args.steps // 10,
        accelerator='cpu',
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PrivateClassifier(engine, training), training.loader)
    model.eval()
    with torch.no_grad():
        found = model(data.x, data.edge_index).argmax(1) == data.y
    print(f'test accuracy: {found[~train].float().mean():.3f}')
    print(engine.report().explain())


if __name__ == '__main__':
    main()
