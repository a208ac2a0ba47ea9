"""Put the guarantees on one page
==============================

Every procedure returns a report, and every report states a guarantee, its
assumptions, what it does not cover, and what was spent.
:class:`~pyg_trust.report.TrustReport` collects them for the people who have to
answer for the model.
"""

# %%
# Collect
# -------
# The certified model is not trained here, to be brief.
import matplotlib.pyplot as plt
import torch
from network import social_network

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.nn import PPNP
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import NodeClassifier

torch.manual_seed(0)
data = social_network(seed=0)
model = PPNP(torch.nn.Linear(data.num_features, 10), alpha=0.15)
threat = ThreatModel(data, 'removals', fixed='none', local_budget=1)
forgetful = NodeClassifier('sgc', K=2).fit(data)
report = TrustReport.of(
    certify(model, data, threat),
    forgetful.remove(RemovalRequest(nodes=[7])),
    title='A social network',
    owner='the data team',
    people='one node is one person',
)
print(report)

# %%
# What was spent, as a picture.
report.plot()
plt.show()

# %%
# Save
# ----
# The ending decides: a page for people, a section for a model card, or JSON
# for programs.
report.save('trust.json')
report.save('trust.html')
print(TrustReport.load('trust.json') == report)
print(report.to_markdown()[:300])
