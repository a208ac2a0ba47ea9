"""Forget people exactly
=====================

A person asks to be deleted. A model that was trained on shards of the data
trains again only those shards that knew the person. The result equals, bit for
bit, a model that never saw them.
"""

# %%
# Train in shards
# ---------------
# Give a factory instead of a model. Each shard trains one of its own, and an
# aggregator puts their answers together.
import matplotlib.pyplot as plt
from network import accuracy, social_network
from torch_geometric.nn import GCN

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner

data = social_network(seed=0)
unlearner = ShardedUnlearner(
    lambda: GCN(data.num_features, 32, 2, 10),
    num_shards=8,
    epochs=60,
)
unlearner.fit(data)
before = accuracy(unlearner.predict_proba(), data)

# %%
# A dry run, and the removal
# --------------------------
people = data.train_mask.nonzero().view(-1)[:2]
request = RemovalRequest(nodes=people)
print(unlearner.plan(request))
report = unlearner.remove(request)
print(report.guarantee().promise)

# %%
# Do not believe it: check
# ------------------------
# ``verify`` trains the touched shards from scratch and compares all bits.
assert unlearner.verify(shards=report.shards).ok
left = unlearner.data
after = accuracy(unlearner.predict_proba(nodes=unlearner.n_id), left)

figure, axis = plt.subplots(figsize=(4, 3), layout='constrained')
bars = axis.bar(['before', 'after'], [before, after])
axis.bar_label(bars, fmt='{:.1%}')
axis.set(ylabel='accuracy', ylim=(0, 1.15))
axis.set_title('What two people fewer cost')
plt.show()
