"""Train any PyG model privately
=============================

The weights of a model can reveal the features of a person it was trained
on. Here an ordinary training loop becomes differentially private: its weights
depend on any one person's row by no more than a stated amount.
"""

# %%
# The loop
# --------
# Pass model, optimizer and loader to the engine, and train with the three
# objects that it returns. The training loop stays as it was. The
# loader cuts the training graph into node-disjoint random walks, so that a
# row is in one subgraph only.
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from network import accuracy, social_network
from torch_geometric.nn import SAGEConv

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine

DELTA = 1e-4
data = social_network(seed=0)
model = SAGEConv(data.num_features, 10)
engine = PrivacyEngine()
private, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.05),
    data_loader=DisjointWalkLoader(
        data.subgraph(data.train_mask),
        batch_size=100,
        walk_length=1,
        num_steps=10,
    ),
    target_epsilon=4.0,
    target_delta=DELTA,
    steps=100,
    max_grad_norm=1.0,
)

spent, scores = [], []
while not engine.exhausted:
    private.train()
    for batch in loader:
        optimizer.zero_grad()
        out = private(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    private.eval()
    with torch.no_grad():
        out = private(data.x, data.edge_index)
    spent.append(engine.get_epsilon(DELTA))
    scores.append(accuracy(out, data))

# %%
# What is guaranteed
# ------------------
# The report says what holds, for whom, and under which assumptions. Read the
# part that is not covered.
report = engine.report()
print(report.explain())

# %%
# What it costs
# -------------
# Accuracy grows with every step, and so does epsilon.
figure, axis = plt.subplots(figsize=(5, 3), layout='constrained')
axis.plot(spent, scores, marker='o')
axis.set(xlabel='epsilon spent', ylabel='accuracy', xlim=0, ylim=(0, 1))
axis.set_title(f'Accuracy {scores[-1]:.0%} at epsilon {spent[-1]:.1f}')
plt.show()
