"""Forget nodes in milliseconds, with a certificate
================================================

Training shards again takes seconds. A linear classifier on propagated features
is faster: a request takes one Newton step, and a little noise hides the rest
of the difference. The report bounds how well anybody can see it.
"""

# %%
# Fit
# ---
# :class:`~pyg_trust.unlearning.NodeClassifier` propagates the features, and
# trains one linear classifier per class. There is no seed: the noise on the
# released weights is a secret.
import time

import matplotlib.pyplot as plt
from network import social_network

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier

data = social_network(seed=0)
test = (~data.train_mask).nonzero().view(-1)
model = NodeClassifier('sgc', K=2, weight_decay=1e-3, epsilon=1.0, delta=1e-4)
start = time.perf_counter()
model.fit(data)
seconds = {'fit': time.perf_counter() - start}
before = model.score(test, data.y)
print(f'accuracy {before:.3f} after {seconds["fit"]:.2f} seconds')

# %%
# Forget
# ------
# A request names nodes, edges, features or labels, and makes one release.
people = data.train_mask.nonzero().view(-1)[:10].tolist()
reports, took = [], []
for person in people:
    start = time.perf_counter()
    reports.append(model.remove(RemovalRequest(nodes=[person])))
    took.append(time.perf_counter() - start)
print(reports[-1].guarantee().promise)

# %%
# Check
# -----
# ``verify`` computes everything again from what remains: the features, the
# residual, and how far exact retraining is away.
found = model.verify()
print(found)
assert found.ok
after = model.score(test, data.y)

figure, axes = plt.subplots(3, 1, figsize=(6, 9), layout='constrained')
bars = axes[0].bar(
    ['first fit', 'one removal'], [seconds['fit'], sum(took) / 10]
)
axes[0].bar_label(bars, fmt='{:.2f} s')
axes[0].set(ylabel='seconds')
axes[0].margins(y=0.15)
axes[0].set_title('A removal is one step, not a training')
bars = axes[1].bar(['before', 'after 10'], [before, after])
axes[1].bar_label(bars, fmt='{:.1%}')
axes[1].set(ylim=(0, 1.15), ylabel='accuracy')
axes[1].set_title('What ten people fewer cost')
single = [report.epsilon for report in reports]
together = [report.epsilon_transcript for report in reports]
axes[2].semilogy(range(1, 11), single, 'o-', label='each release')
axes[2].semilogy(range(1, 11), together, '.-', label='all together')
axes[2].axhline(1.0, color='C3', linestyle='--', label='what was allowed')
axes[2].set(xlabel='removals', ylabel='epsilon')
axes[2].legend(frameon=False)
axes[2].set_title(f'Ten removals: epsilon {together[-1]:.2f} of 1')
plt.show()

# %%
# The certificate does not cover a pair of releases: somebody who has the one
# before *and* the one after can compare them.
