"""Certify any model by smoothing
==============================

Exact certificates need a model that is linear in PageRank. For any other one,
take a vote over many noisy copies of the graph. If the majority is large, no
small change of the graph can flip it.
"""

# %%
# Train with the noise
# --------------------
# The noise deletes 60 % of the friendships. A model that is to be smoothed
# has to know such graphs, so the transform that certifies is used in training
# as well.
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from network import accuracy, social_network
from torch_geometric.nn import SAGEConv

from pyg_trust.certificates import BitFlips, SmoothedClassifier
from pyg_trust.transforms import FlipBits

torch.manual_seed(0)
data = social_network(seed=0)
noise, flip = BitFlips(edges=(0.0, 0.6)), FlipBits(edges=(0.0, 0.6))
model = SAGEConv(data.num_features, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(60):
    noisy = flip(data)
    optimizer.zero_grad()
    out = model(noisy.x, noisy.edge_index)[data.train_mask]
    F.cross_entropy(out, data.y[data.train_mask]).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(f'accuracy {accuracy(model(data.x, data.edge_index), data):.3f}')

# %%
# Certify
# -------
# The certificate is about the *smoothed* model: deploy that one.
test = (~data.train_mask).nonzero().view(-1)[:100]
options = {'num_samples': 500, 'num_selection': 100, 'targets': test}
deployed = SmoothedClassifier(model, noise, **options)
report = deployed.certify(data)
print(report)

# %%
# The share that stays
# --------------------
# The dashed line is the share of people whose vote is right without any
# attack. Nobody can certify more.
changes = range(11)
curves = {
    'added': [
        report.certified_accuracy(data.y, edges=(k, 0)) for k in changes
    ],
    'deleted': [
        report.certified_accuracy(data.y, edges=(0, k)) for k in changes
    ],
}
clean = report.certified_accuracy(data.y)
figure, axes = plt.subplots(2, 1, figsize=(7, 7), layout='constrained')
for name, shares in curves.items():
    axes[0].step(changes, shares, where='post', label=f'{name} friendships')
axes[0].axhline(clean, color='C7', linestyle='--', label='no attack')
axes[0].set(xlabel='changes', ylabel='certified accuracy', ylim=(0, 1.1))
axes[0].set_title(f'{curves["deleted"][3]:.0%} withstand 3 deletions')
axes[0].legend(frameon=False, loc=(0.28, 0.12))
report.plot(axes[1])
plt.show()

# %%
# Put it on a page
# ----------------
# The guarantee states its confidence, and the SHA-256 of its model.
print(report.guarantee().promise)
