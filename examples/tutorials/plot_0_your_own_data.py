"""From two CSV files to a trust report
====================================

Start here with your own data. Two files are all it takes: one of people, one
of who knows whom. At the end there is a model that was trained privately, with
certified predictions, a second one that forgets people, and one page that says
what was promised.
"""

# %%
# Two files
# ---------
# ``people.csv`` has a row for everybody: an id, a label (empty where it is not
# known) and numbers. ``knows.csv`` has a pair of ids in each row. Here both
# are made up; put yours in their place.
import csv
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

folder = Path(mkdtemp())
generator = torch.Generator().manual_seed(0)
group = torch.arange(900) % 3
numbers = torch.randn(900, 4, generator=generator)
numbers[:, 0] += 1.5 * (group == 0)
numbers[:, 1] += 1.5 * (group == 1)
friend = (torch.randint(300, (1800,), generator=generator)) * 3
with open(folder / 'people.csv', 'w') as file:
    rows = csv.writer(file)
    rows.writerow(['id', 'label', 'age', 'income', 'visits', 'distance'])
    for i in range(900):
        label = int(group[i]) if i < 750 else ''
        rows.writerow([f'p{i}', label, *numbers[i].tolist()])
with open(folder / 'knows.csv', 'w') as file:
    rows = csv.writer(file)
    rows.writerow(['from', 'to'])
    for i in range(1800):
        rows.writerow([f'p{i % 900}', f'p{int(friend[i] + group[i % 900])}'])

# %%
# One graph
# ---------
# Each person becomes a node, in the order of the file. Keep the ids: requests
# to be forgotten come with them. Certificates and unlearning want a simple,
# undirected graph, so loops and repeated pairs go.
with open(folder / 'people.csv') as file:
    people = list(csv.DictReader(file))
with open(folder / 'knows.csv') as file:
    knows = list(csv.DictReader(file))
node = {person['id']: row for row, person in enumerate(people)}
columns = ('age', 'income', 'visits', 'distance')
pairs = [[node[row['from']], node[row['to']]] for row in knows]
edge_index = remove_self_loops(torch.tensor(pairs).t().contiguous())[0]
data = Data(
    x=torch.tensor([[float(p[c]) for c in columns] for p in people]),
    edge_index=coalesce(to_undirected(edge_index, num_nodes=len(people))),
    # A class for everybody; that of unknown ones is never read.
    y=torch.tensor([int(p['label'] or 0) for p in people]),
    train_mask=torch.tensor([p['label'] != '' for p in people]),
)
print(data)

# %%
# Private
# -------
# Scale by constants that you know, not by means of the data: those would mix
# people. Here the numbers are of size one already. Epsilon 4 is the budget.
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivacyEngine

model = PPNP(torch.nn.Linear(4, 3), alpha=0.2, K=10)
engine = PrivacyEngine()
private, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
    data_loader=DisjointWalkLoader(
        data.subgraph(data.train_mask),
        batch_size=100,
        walk_length=1,
        num_steps=40,
    ),
    target_epsilon=4.0,
    target_delta=1e-4,
    steps=40,
    max_grad_norm=1.0,
)
for batch in loader:
    optimizer.zero_grad()
    out = private(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()
training = engine.report()

# %%
# Certified
# ---------
# Which predictions stay, whatever one friendship anybody loses?
from pyg_trust.certificates import ThreatModel, certify

model.eval()
threat = ThreatModel(data, 'removals', local_budget=1)
certificate = certify(model, data, threat)
unknown = ~data.train_mask
right = certificate.predicted[unknown] == group[unknown]
print(f'accuracy {right.float().mean():.2f}')
print(f'{certificate.certified_ratio:.0%} of the predictions are certain')

# %%
# Forgettable
# -----------
# Private training does not make a person's record disappear. For requests to
# be forgotten, train a model that can follow them. Name people by their rows.
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier

forgetful = NodeClassifier('sgc', levels=2).fit(data)
asked = [node[name] for name in ('p17', 'p230')]
removal = forgetful.remove(RemovalRequest(nodes=asked))
assert forgetful.verify().ok

# %%
# One page
# --------
# ``trust.html`` is for the people who have to answer for the model. Anybody
# can check the file for programs: ``python -m pyg_trust check trust.json``.
from pyg_trust.check import check_report
from pyg_trust.report import TrustReport

report = TrustReport.of(training, certificate, removal)
report.save(folder / 'trust.html')
report.save(folder / 'trust.json')
for finding in check_report(folder / 'trust.json'):
    print(finding)

# %%
# And one picture: how much of each budget was spent.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(15, 3.4), layout='constrained')
training.plot(axes[0])
certificate.plot(axes[1])
removal.plot(axes[2])
plt.show()
