"""Your own data in 15 minutes
===========================

Two CSV files of people become a private and certified model, a model that
forgets, and a page that says what was promised. Copy the blocks one after the
other. Change the first, and the ids of those who leave.
"""

# %%
# Your graph
# ----------
# ``people.csv`` has a line for everybody: an ``id``, a ``class`` (empty where
# it is not known) and numbers. ``knows.csv`` has a line for each pair:
# ``from`` and ``to``. Name your columns, and constants to divide them by.

# sphinx_gallery_start_ignore
# Example files, where there are none of your own.
import random
from pathlib import Path

_draw = random.Random(0)
_lines = ['id,class,age,visits,posts,likes']
for _i in range(900):
    _means = [12.0 if j == _i % 3 else 5.0 for j in range(3)]
    _counts = ','.join(f'{max(0, _draw.gauss(m, 3)):.0f}' for m in _means)
    _class = 'abc'[_i % 3] if _i < 750 else ''
    _lines.append(f'p{_i},{_class},{_draw.randint(18, 80)},{_counts}')
_pairs = ['from,to']
for _i in range(1800):
    _alike = 3 * _draw.randrange(300) + _i % 3
    _other = _alike if _draw.random() < 0.7 else _draw.randrange(900)
    _pairs.append(f'p{_i % 900},p{_other}')
if not Path('people.csv').exists():
    Path('people.csv').write_text('\n'.join(_lines))
    Path('knows.csv').write_text('\n'.join(_pairs))
# sphinx_gallery_end_ignore
import csv

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

columns = {'age': 100, 'visits': 20, 'posts': 20, 'likes': 20}
people = list(csv.DictReader(open('people.csv')))
row = {person['id']: i for i, person in enumerate(people)}
x = [[float(p[c]) / most for c, most in columns.items()] for p in people]
classes = sorted({p['class'] for p in people} - {''})
y = [classes.index(p['class']) if p['class'] else -1 for p in people]
knows = csv.DictReader(open('knows.csv'))
pairs = torch.tensor([[row[p['from']], row[p['to']]] for p in knows]).t()
edges = to_undirected(remove_self_loops(pairs)[0], num_nodes=len(people))
data = Data(
    x=F.normalize(torch.tensor(x)),
    edge_index=edges,
    y=torch.tensor(y).clamp(min=0),
    train_mask=torch.tensor(y) >= 0,
)

# %%
# Each row of ``x`` is scaled by itself. Means over people would mix them, and
# nobody would be protected.

# %%
# Private
# -------
# An ordinary loop over an ordinary model, with three new things. The *loader*
# cuts the graph of the known people into short walks; nobody is in two. The
# *engine* clips what a walk contributes to a step, and adds noise. The
# *ledger* is a file of what was spent.
#
# Epsilon bounds what anybody can learn about one person's numbers: 1 is
# strong, 8 is weak. Delta is what may come on top: whatever is seen is at most
# exp(epsilon) times as likely as without the person, plus delta.
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivacyEngine

known = data.subgraph(data.train_mask)
size = known.num_nodes // 6
model = PPNP(torch.nn.Linear(len(columns), len(classes)), alpha=0.2, K=10)
engine = PrivacyEngine(ledger='private.ledger')
private, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
    data_loader=DisjointWalkLoader(known, size, walk_length=1, num_steps=40),
    target_epsilon=4.0,
    target_delta=0.1 / len(people),
    steps=40,
    max_grad_norm=1.0,
)
for batch in loader:
    optimizer.zero_grad()
    out = private(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()
training = engine.report()
print(training.guarantee().promise)

# %%
# The weights may be published now. Predictions may not: a prediction for one
# person reads the numbers of others. The ledger remembers: a second run finds
# the budget spent, and trains nothing.

# %%
# Certified
# ---------
# Everybody may lose one friend, all at the same time. Which predictions stay?
from pyg_trust.certificates import ThreatModel, certify

threat = ThreatModel(data, 'removals', fixed='none', local_budget=1)
certificate = certify(model.eval(), data, threat)
print(f'{certificate.certified_ratio():.0%} of the predictions are certain')

# %%
# ``certificate.predicted`` has the predictions.

# %%
# Forgettable
# -----------
# The private weights still depend on everybody, a little. When people ask to
# be deleted, they need a model that can follow. Its noise is secret, so there
# is no seed. ``verify`` computes everything again from those who remain.
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier

forgetful = NodeClassifier('sgc', K=2).fit(data)
removal = forgetful.remove(RemovalRequest(nodes=[row['p17'], row['p230']]))
removal = removal.verified(forgetful.verify())
print(removal.guarantee().promise)

# %%
# Delete them from your files too. The private model was not told: train it
# again without them, with a new ledger, or retire it.

# %%
# One page, and a check
# ---------------------
# ``trust.html`` is for the people who have to answer for the models: open it.
# ``trust.json`` says the same to programs.
from pyg_trust.check import check_report
from pyg_trust.report import TrustReport

report = TrustReport.of(training, certificate, removal)
report.save('trust.html')
report.save('trust.json')
print(*check_report('trust.json', ledger='private.ledger'), sep='\n')

# %%
# An auditor does the same with ``python -m pyg_trust check trust.json
# --ledger private.ledger``, without torch. What was not handed in is ``not
# checked``.

# %%
# That is all. And a picture
# --------------------------
# What was spent, what is certain, and how little of the removal can be told.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 1, figsize=(7, 9), layout='constrained')
for axis, each in zip(axes, (training, certificate, removal), strict=True):
    each.plot(axis)
plt.show()

# %%
# Next: :doc:`/which` for other worries, :doc:`plot_7_certify_any_model` for
# other models, :doc:`/glossary` for every word, :doc:`/errors` when something
# is refused.
