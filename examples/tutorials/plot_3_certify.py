"""Certify predictions against changed edges
=========================================

Could somebody change a prediction by removing a few edges? For models that
are linear in personalized PageRank there is an exact answer for every node: a
proof that nobody can, or the edges that do it.
"""

# %%
# A model
# -------
# :class:`~pyg_trust.nn.PPNP` predicts from the features of a node alone, and
# propagates the logits by PageRank.
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from network import accuracy, social_network

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.nn import PPNP

torch.manual_seed(0)
data = social_network(seed=0)
model = PPNP(torch.nn.Linear(data.num_features, 10), alpha=0.15)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(60):
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)[data.train_mask]
    F.cross_entropy(out, data.y[data.train_mask]).backward()
    optimizer.step()
with torch.no_grad():
    print(f'accuracy {accuracy(model(data.x, data.edge_index), data):.3f}')

# %%
# What an attacker may do
# -----------------------
# A threat model says which edges are fragile and how many may change at each
# node. Here everybody may lose one, two or three friends, any of them. (By
# default the edges of a spanning tree stay, as in the literature.)
ratios = {}
for budget in (1, 2, 3):
    threat = ThreatModel(data, 'removals', fixed='none', local_budget=budget)
    report = certify(model, data, threat)
    ratios[budget] = report.certified_ratio()
    print(f'{budget} friends: {report.certified_ratio():.1%} robust')

# %%
# A counterexample
# ----------------
# For a node that is not robust the report has the edges that break it.
if report.num_broken:
    node = int(report.targets[report.broken][0])
    print(f'node {node} is broken by these flips:')
    print(report.witness(node))

# %%
# The figure shows for how many people the prediction is proven to stay.
figure, axis = plt.subplots(figsize=(5, 3), layout='constrained')
axis.plot(list(ratios), list(ratios.values()), marker='o')
axis.set(
    xlabel='friends that anyone may lose',
    xticks=list(ratios),
    ylabel='share of robust predictions',
    ylim=(0, 1),
)
axis.set_title(f'{ratios[1]:.0%} stay whoever loses one friend')
plt.show()
