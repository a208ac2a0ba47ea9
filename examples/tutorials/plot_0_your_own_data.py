"""Your own data in 15 minutes
===========================

You have a graph of people as a ``Data`` object. This page makes of it a model
that was trained privately and whose predictions are certified, a model that
forgets people on request, and one page that says what was promised. Replace
the first block by your graph. The rest runs as it is.
"""

# %%
# Your graph (2 minutes)
# ----------------------
# Four fields are needed:
#
# - ``x``: numbers about each person, a row for everybody,
# - ``edge_index``: who knows whom, as pairs of rows,
# - ``y``: the class of each person, 0, 1, 2, ... (any number where it is not
#   known),
# - ``train_mask``: true where the class is known.
#
# Here 900 people are made up. For two CSV files see the end of this page.
import torch
from torch_geometric.data import Data

generator = torch.Generator().manual_seed(0)
group = torch.arange(900) % 3
numbers = torch.randn(900, 4, generator=generator)
numbers[:, :3] += 2.0 * torch.eye(3)[group]
one = torch.arange(1800) % 900
alike = torch.randint(300, (1800,), generator=generator) * 3 + group[one]
anyone = torch.randint(900, (1800,), generator=generator)
other = anyone.where(torch.rand(1800, generator=generator) < 0.3, alike)
mine = Data(
    x=numbers,
    edge_index=torch.stack([one, other]),
    y=group,
    train_mask=torch.arange(900) < 750,
)

# %%
# Bring it into form (1 minute)
# -----------------------------
# Certificates and removal are defined on simple, undirected graphs. So loops
# and repeated pairs go, every edge is stored in both directions, and weights
# of edges are left out. Each row of ``x`` is scaled by itself. Means of all
# people would mix them, and nothing would be private any more.
import torch.nn.functional as F
from torch_geometric.utils import remove_self_loops, to_undirected

edge_index = remove_self_loops(mine.edge_index)[0]
data = Data(
    x=F.normalize(mine.x.float()),
    edge_index=to_undirected(edge_index, num_nodes=mine.num_nodes),
    y=mine.y.clamp(min=0),  # unknown classes may be -1
    train_mask=mine.train_mask,
)
num_classes = int(data.y.max()) + 1
unknown = ~data.train_mask

# %%
# Private (4 minutes)
# -------------------
# An ordinary loop over an ordinary model. Three things are new:
#
# - The *loader* cuts the graph of the known people into short walks. Nobody is
#   in two of them.
# - The *engine* clips what each walk contributes to a step, and adds noise.
# - The *ledger* is a file that knows what was spent, also after a crash.
#
# Epsilon bounds what anybody can learn about one person's numbers: 1 is
# strong, 8 is weak. Delta is the chance that this fails: take less than one
# over the number of people. If epsilon stays and accuracy is low, take larger
# batches or more data (:doc:`/faq`).
from pathlib import Path
from tempfile import mkdtemp

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivacyEngine

folder = Path(mkdtemp())  # take one that stays
known = data.subgraph(data.train_mask)
model = PPNP(torch.nn.Linear(data.num_features, num_classes), alpha=0.2, K=10)
engine = PrivacyEngine(ledger=folder / 'private.ledger')
private, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
    data_loader=DisjointWalkLoader(
        known,
        batch_size=known.num_nodes // 6,
        walk_length=1,
        num_steps=40,
    ),
    target_epsilon=4.0,
    target_delta=0.1 / data.num_nodes,
    steps=40,
    max_grad_norm=1.0,
)
for batch in loader:
    optimizer.zero_grad()
    out = private(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()
training = engine.report()
print(training.explain())

# %%
# The weights may be published now. Predictions may not: a prediction for one
# person reads the numbers of others (:doc:`/which`).

# %%
# Certified (2 minutes)
# ---------------------
# Everybody may lose one friend, all at the same time. Which predictions stay?
# The answer is exact for models such as this one, which average what a network
# says about each person over the graph. :doc:`plot_7_certify_any_model` is for
# any other model.
from pyg_trust.certificates import ThreatModel, certify

model.eval()
threat = ThreatModel(data, 'removals', fixed='none', local_budget=1)
certificate = certify(model, data, threat)
right = certificate.predicted[unknown] == data.y[unknown]
print(f'accuracy {right.float().mean():.2f}')
print(f'{certificate.certified_ratio:.0%} of the predictions are certain')

# %%
# Forgettable (3 minutes)
# -----------------------
# Private is not forgotten: the weights above still depend on everybody, a
# little. When people ask to be deleted, they need a model that can follow.
# It is trained on the same graph. Name people by their rows. The noise is
# secret, so there is no seed.
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier

forgetful = NodeClassifier('sgc', levels=2).fit(data)
before = forgetful.score(unknown.nonzero().view(-1), data.y)
removal = forgetful.remove(RemovalRequest(nodes=[17, 230]))
print(f'accuracy before {before:.2f}')
print(removal.guarantee().promise)

# %%
# Do not believe it. ``verify`` computes everything again from the people who
# remain.
assert forgetful.verify().ok

# %%
# Delete them from your own files too, and from ``data``. The private model
# was not told: train it again without them, with a new ledger, or retire it.

# %%
# One page, and a check (3 minutes)
# ---------------------------------
# ``trust.html`` is for the people who have to answer for the models: open it
# in a browser. ``trust.json`` says the same to programs.
from pyg_trust.check import check_report
from pyg_trust.report import TrustReport

report = TrustReport.of(training, certificate, removal)
report.save(folder / 'trust.html')
report.save(folder / 'trust.json')
for finding in check_report(
    folder / 'trust.json', ledger=folder / 'private.ledger'
):
    print(finding)

# %%
# Whoever trusts nobody does the same on the command line. It ends with status
# 1 if anything fails:
#
# .. code-block:: bash
#
#    python -m pyg_trust check trust.json --ledger private.ledger
#
# With ``--model`` and ``--data`` it compares weights and data as well. Give
# each model a report of its own for that. And one picture: what was spent, and
# what is certain.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(15, 3.4), layout='constrained')
training.plot(axes[0])
certificate.plot(axes[1])
removal.plot(axes[2])
plt.show()

# %%
# If you have two CSV files
# -------------------------
# One of people, one of who knows whom. People become nodes in the order of
# the file. Keep ``row``: requests to be forgotten come with ids.
import csv
import io

people = 'id,class,age,visits\nann,1,31,4\nbob,,45,0\ncem,0,28,9\n'
knows = 'from,to\nann,bob\ncem,ann\n'

listed = list(csv.DictReader(io.StringIO(people)))  # or of open('people.csv')
pairs = list(csv.DictReader(io.StringIO(knows)))
row = {person['id']: i for i, person in enumerate(listed)}
from_files = Data(
    # Divide by constants that you know, so that all columns count alike.
    x=torch.tensor(
        [[float(p['age']) / 100, float(p['visits']) / 10] for p in listed]
    ),
    edge_index=torch.tensor(
        [[row[p['from']], row[p['to']]] for p in pairs]
    ).t(),
    y=torch.tensor([int(p['class'] or -1) for p in listed]),
    train_mask=torch.tensor([p['class'] != '' for p in listed]),
)
print(from_files)

# %%
# Next: :doc:`/which` says which guarantee answers which worry,
# :doc:`/glossary` explains every word, and :doc:`/errors` what to do when
# something is refused.
