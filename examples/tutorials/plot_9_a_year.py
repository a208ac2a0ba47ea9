"""A year of a graph
=================

People join, friendships come and fade, and some people ask to be erased by a
date. One classifier follows all of it. New people wait for the next release,
a removal makes one, and a desk keeps the dates.
"""

# %%
# The first day
# -------------
# 1,500 people are there. Their friendships are kept for as long as they write
# to each other: half a year after the last message a friendship ends.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from network import social_network
from torch_geometric.data import TemporalData

from pyg_trust import rng
from pyg_trust.erasure import ErasureDesk
from pyg_trust.loader import EdgeStream
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.update import NewNodes, Update

everybody, FIRST, WEEKS, DAY = social_network(seed=0), 1_500, 52, 86_400
data = everybody.subgraph(torch.arange(FIRST))
model = NodeClassifier('sgc', K=2, weight_decay=1e-3, max_pending=200)
model.fit(data, classes=range(10))
later = (~data.train_mask).nonzero().view(-1)
print(f'accuracy {model.score(later, data.y):.3f}')

# %%
# Events
# ------
# Each week has 300 messages, as PyG's ``TemporalData``. ``EdgeStream`` turns
# them into updates: an edge is added with its first message, and removed half
# a year after its last. Five or six people join each week.
generator = rng.generator(1)
joins = torch.linspace(FIRST, everybody.num_nodes, WEEKS + 1).long().tolist()
pairs = everybody.edge_index
one_way = pairs[:, pairs[0] < pairs[1]]


def messages(week: int) -> TemporalData:
    """Messages between people who are there."""
    there = one_way[:, one_way[1] < joins[week + 1]]
    new = there[:, there[1] >= joins[week]]
    some = torch.randint(there.size(1), (300,), generator=generator)
    src, dst = torch.cat([new, there[:, some]], dim=1)
    times = 7 * DAY * week + torch.arange(src.numel())
    return TemporalData(src=src, dst=dst, t=times)


known = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
stream = EdgeStream(
    (messages(week) for week in range(WEEKS)),
    window=182 * DAY,
    start=known[:, ::2],
    on_removed='skip',
)
# Half of the old friendships end if nobody writes.
model.update(RemovalRequest(edges=known[:, 1::2]))

# %%
# A year
# ------
# The desk works through the requests once a week. The model's ledger has a
# reference of each of them, and the desk erases the ids of nodes when a
# request is complete. ``python -m pyg_trust erasure run`` does the same. A
# private model is registered in the same way if its ``remove`` takes a
# ``reference``. Any other model is a recipient: its owner calls ``done``.
folder = Path(tempfile.mkdtemp())
now = [1_767_225_600.0]  # 2026, in seconds
desk = ErasureDesk(folder / 'erasure.db', clock=lambda: now[0])
model.save(folder / 'scores.pt')
desk.register('scores', model, save=folder / 'scores.pt')
desk.recipient('partner export')
people = torch.randperm(FIRST, generator=generator)[:10].tolist()
asked = {3 + 5 * k: person for k, person in enumerate(people)}
size, waits, finished = [], [], []
for week, update in enumerate(stream):
    now[0] += 7 * DAY
    come = slice(joins[week], joins[week + 1])
    y = torch.where(everybody.train_mask[come], everybody.y[come], -1)
    model.update([Update(nodes=NewNodes(everybody.x[come], y)), update])
    model.save(folder / 'scores.pt')
    if week in asked:
        person = asked[week]
        request = desk.add(RemovalRequest(nodes=[person]))
        stream.forget(torch.tensor([person]))
        desk.run()
        number = request.subject_request_id
        finished.append(desk.done(number, 'partner export'))
    size.append((model.nodes.numel(), model.graph.num_edges // 2))
    waits.append(model.pending)
print(desk.status())
print(f'{stream.num_skipped} messages of people who went were skipped')

# %%
# What is left
# ------------
# Everything is computed again from what is there: the features have the bits
# of a fresh start, and nobody who asked is in the model, or in its file.
report = model.update(Update(), release=True)
found = model.verify()
assert found.ok, found
assert found.feature_error == 0
assert not model.graph.degree[people].any()
print(report.verified(found).guarantee().promise)
TrustReport.of(report.verified(found)).save(folder / 'year.html')
# The evidence for those who asked contains no ids of people.
for each in finished[:3]:
    print(each.completed_time, 'was due', each.expected_completion_time)

figure, axes = plt.subplots(2, 1, figsize=(6, 6), layout='constrained')
nodes, edges = zip(*size, strict=True)
axes[0].plot([count / nodes[0] for count in nodes], label='people')
axes[0].plot([count / edges[0] for count in edges], label='friendships')
axes[0].set(xlabel='week', ylabel='of the first week')
axes[0].legend(frameon=False)
axes[0].set_title('People join, friendships fade after half a year')
days = [7 * (week + 1) for week in asked]
axes[1].stem(days, [1] * len(days), basefmt=' ')
axes[1].step(range(7, 7 * WEEKS + 7, 7), waits, label='waiting additions')
axes[1].set(xlabel='day', ylabel='additions')
axes[1].legend(frameon=False)
axes[1].set_title('Ten requests, each with a release')
plt.show()

# %%
# The evidence does not cover releases from before a request, which somebody
# who kept them can compare with later ones, nor copies outside of the desk.
