"""Propagate features with a bound of the error
============================================

A graph neural network can be split in two: propagate the features over the
graph once, then train any model on single rows. This tutorial does the first
part in one line, and shows what an approximate propagation costs in error.
"""

# %%
# The data
# --------
# 1,797 people. Their features are the pixels of a digit they wrote. Most of
# their friends wrote the same digit.
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from network import accuracy, social_network

from pyg_trust.agp.measures import appnp
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.transforms import AGP

data = social_network(seed=0)
print(data)


# %%
# One line
# --------
# :class:`~pyg_trust.transforms.AGP` is a transform like any other of PyG. It
# replaces ``data.x`` by the propagated features. Its default is exact.
propagated = AGP('appnp', alpha=0.15, eps=0)(data)


def train(x: torch.Tensor) -> float:
    """Trains a linear model on rows; returns its accuracy."""
    torch.manual_seed(0)
    model = torch.nn.Linear(x.size(1), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        out = model(x)[data.train_mask]
        F.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
    return accuracy(model(x), data)


scores = {'raw': train(data.x), 'propagated': train(propagated.x)}
print(scores)

# %%
# What sampling costs
# -------------------
# With ``eps > 0`` small messages are sampled instead of sent. The estimate is
# unbiased.
graph = CSRGraph.from_data(data)
measure = appnp(0.15)
exact = propagate(graph, data.x, measure)
grid = [1e-3, 1e-4, 1e-5, 1e-6]
errors = []
for eps in grid:
    found = propagate(graph, data.x, measure, eps=eps, seed=0, force_push=True)
    errors.append(float((found - exact).norm() / exact.norm()))

figure, axes = plt.subplots(2, 1, figsize=(6, 6), layout='constrained')
bars = axes[0].bar(list(scores), list(scores.values()))
axes[0].bar_label(bars, fmt='{:.1%}')
axes[0].set(
    title='Propagated features help', ylabel='accuracy', ylim=(0, 1.15)
)
axes[1].loglog(grid, errors, marker='o')
axes[1].set(
    title='A smaller eps, a smaller error',
    xlabel='eps',
    ylabel='relative error',
)
plt.show()

# %%
# For wide features exact propagation is the fast one, so leave ``eps`` at 0
# here. Sampling pays for queries from single nodes
# (:func:`~pyg_trust.agp.query`).
