"""Your own tables in 15 minutes
=============================

Three CSV files (people, friendships, purchases) become a private model with
its epsilon, a certificate for each prediction, a model that forgets people,
and a page that shows all of it. Copy the blocks one after the other into one
file. You change the names in the first block, and the ids of the people who
leave.
"""

# %%
# Your graph
# ----------
# ``people.csv`` has a row for each person: an ``id``, a ``label`` (empty where
# it is not known) and numbers. ``friendships.csv`` has a row for each pair:
# ``person`` and ``friend``. ``purchases.csv`` has a row for each purchase:
# ``person`` and ``item``. Write into ``columns`` which numbers you use and
# what they are divided by, and into ``items`` what people can buy.

# sphinx_gallery_start_ignore
# Example files, where there are none of your own.
import random
from pathlib import Path

_draw = random.Random(0)
_people, _bought = ['id,label,age,visits'], ['person,item']
for _i in range(900):
    _label = 'abc'[_i % 3] if _i < 750 else ''
    _people.append(
        f'p{_i},{_label},{_draw.randint(18, 80)},{_draw.randint(0, 20)}'
    )
    for _j, _item in enumerate(('book', 'game', 'song')):
        _count = _draw.gauss(9.0 if _j == _i % 3 else 3.0, 2.0)
        _bought += [f'p{_i},{_item}'] * max(0, round(_count))
_pairs = ['person,friend']
for _i in range(1800):
    _alike = 3 * _draw.randrange(300) + _i % 3
    _other = _alike if _draw.random() < 0.7 else _draw.randrange(900)
    _pairs.append(f'p{_i % 900},p{_other}')
if not Path('people.csv').exists():
    Path('people.csv').write_text('\n'.join(_people))
    Path('friendships.csv').write_text('\n'.join(_pairs))
    Path('purchases.csv').write_text('\n'.join(_bought))
# sphinx_gallery_end_ignore
import csv

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

columns = {'age': 100, 'visits': 20}
items = ['book', 'game', 'song']

people = list(csv.DictReader(open('people.csv')))
row = {person['id']: i for i, person in enumerate(people)}
numbers = [[float(p[c]) / most for c, most in columns.items()] for p in people]
bought = torch.zeros(len(people), len(items))
for purchase in csv.DictReader(open('purchases.csv')):
    bought[row[purchase['person']], items.index(purchase['item'])] += 0.1
labels = sorted({p['label'] for p in people} - {''})
y = [labels.index(p['label']) if p['label'] else -1 for p in people]
friends = csv.DictReader(open('friendships.csv'))
pairs = [[row[f['person']], row[f['friend']]] for f in friends]
edges = remove_self_loops(torch.tensor(pairs).t())[0]
data = Data(
    x=F.normalize(torch.cat([torch.tensor(numbers), bought], dim=1)),
    edge_index=to_undirected(edges, num_nodes=len(people)),
    y=torch.tensor(y),
    train_mask=torch.tensor(y) >= 0,
)
print(data)

# %%
# A person is one row of ``x``: their own numbers and their own purchases. Each
# row is scaled by itself, because means over all people would mix the rows,
# and then nobody would be protected.

# %%
# A private model
# ---------------
# This is an ordinary training loop of an ordinary model, with three additions.
# The *loader* cuts the graph of the people with a label into short walks; no
# person is in two of them. The *engine* clips what a walk contributes to a
# step, and adds noise. The *ledger* is a file that records what was spent.
#
# Epsilon bounds what anybody can learn from the weights about one person's
# row: 1 is strong, 8 is weak. Any result of the training is at most
# exp(epsilon) times as likely as with another row in its place, plus delta.
# Choose delta far below one over the number of people.
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivacyEngine

known = data.subgraph(data.train_mask)
size = known.num_nodes // 6
model = PPNP(torch.nn.Linear(data.num_features, len(labels)), alpha=0.2, K=10)
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
torch.save(model.state_dict(), 'private.pt')
print(f'epsilon {training.epsilon:.2f} at delta {training.delta:.1e}')
right = model(data.x, data.edge_index).argmax(dim=1) == data.y
print(f'{right[data.train_mask].float().mean():.0%} of the labels are right')

# %%
# The file ``private.pt`` may be published. Predictions and the share of right
# labels may not: a prediction for one person reads the rows of others. The
# loader drew its walks from the friendships, which are not protected
# (:doc:`/which` has models that protect them).
#
# If you run the file a second time, it ends with ``BudgetExceededError``,
# because the ledger remembers the first run. As long as nobody has seen the
# first weights, delete ``private.ledger`` before each run. Afterwards load
# ``private.pt`` instead of training again.

# %%
# A certificate for each prediction
# ---------------------------------
# Suppose that everybody may lose one friend, all at the same time. Which
# predictions stay the same?
from pyg_trust.certificates import ThreatModel, certify

threat = ThreatModel(data, 'removals', fixed='none', local_budget=1)
certificate = certify(model.eval(), data, threat)
print(f'{certificate.certified_ratio():.0%} of the predictions cannot change')

who = row['p17']
status = certificate.status_of(torch.tensor([who]), data)
words = {1: 'cannot change', 0: 'is unknown', -1: 'can be changed'}
print(labels[certificate.predicted[who]], words[int(status)])

# %%
# A model that forgets
# --------------------
# The private weights still depend on everybody a little. To delete people, you
# need a model that can forget them. Its noise is secret, so it takes no seed.
# ``verify`` computes everything again from the people who remain, and
# ``verified`` adds the outcome to the report.
from pyg_trust.unlearning import NodeClassifier

forgetful = NodeClassifier('sgc', K=2).fit(data)
removal = forgetful.remove(nodes=[row['p17'], row['p230']])
removal = removal.verified(forgetful.verify())
print(f'verified: {removal.verification.ok}, epsilon {removal.epsilon:.4f}')

# %%
# This epsilon bounds how well anybody can distinguish the released weights
# from those of a model that was trained without these two people. With 0
# nobody can.
#
# Delete their rows from your files, too. The private model has not forgotten
# them: train it again without them, with a new ledger, or retire it.

# %%
# One page, and a check
# ---------------------
# Open ``trust.html`` in a browser. ``trust.json`` is for programs. Keep it
# secret: it lists who was removed.
from pyg_trust.check import check_report
from pyg_trust.report import TrustReport

report = TrustReport.of(
    *(training, certificate, removal),
    title='Interests of our customers',
    owner='you@example.org',
    data_set='people.csv, friendships.csv, purchases.csv',
    people=f'{len(people)} customers',
)
report.save('trust.html')
report.save('trust.json')
print(*check_report('trust.json', ledger='private.ledger'), sep='\n')

# %%
# Each line begins with ``holds``, ``FAILS``, ``not proved`` or ``not checked``
# (:doc:`/checking` explains them, and how to write the files). A line is ``not
# checked`` where its file was not passed: here the removal's own ledger. An
# auditor runs the same check, without torch, by ``python -m
# pyg_trust check trust.json --ledger private.ledger``.

# %%
# A picture
# ---------
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 1, figsize=(7, 9), layout='constrained')
for axis, each in zip(axes, (training, certificate, removal), strict=True):
    each.plot(axis)
plt.show()

# %%
# Next: :doc:`/which` for other questions, :doc:`plot_7_certify_any_model` for
# other models, :doc:`plot_10_people_in_tables` where a purchase should stay a
# row of its own, :doc:`/glossary` for terms, and :doc:`/errors` for error
# messages.
