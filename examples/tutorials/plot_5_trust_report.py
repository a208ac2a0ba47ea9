"""Put the promises on one page
============================

Every procedure returns a report, and every report states a guarantee: what was
promised, under which assumptions, what it does not cover, and what was spent.
:class:`~pyg_trust.report.TrustReport` collects them for the people who have to
answer for the model.
"""

# %%
# Collect
# -------
import torch
from network import social_network

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.nn import PPNP
from pyg_trust.report import TrustReport
from pyg_trust.transforms import AGP

torch.manual_seed(0)
data = social_network(seed=0)
model = PPNP(torch.nn.Linear(data.num_features, 10), alpha=0.15)
threat = ThreatModel(data, 'removals', local_budget=1)
report = TrustReport.of(
    AGP('appnp', alpha=0.15, eps=0).guarantee(data),
    certify(model, data, threat),
)
print(report)

# %%
# Save
# ----
# The ending decides: a page for people, a section for a model card, or JSON
# for programs.
report.save('trust.json')
report.save('trust.html')
print(TrustReport.load('trust.json') == report)
print(report.to_markdown()[:300])
