"""Score links, and keep every link private
========================================

A model that predicts who will know whom was trained on who knows whom. Here
every friendship is protected by differential privacy, both as an edge that
messages pass and as an example, and you may show any number of scores
afterwards.
"""

# %%
# Split
# -----
# PyG's own split. The predictor draws the negative pairs itself: negatives
# that are checked against the edges would reveal edges a second time.
import matplotlib.pyplot as plt
import torch
from network import social_network
from sklearn.metrics import roc_auc_score
from torch_geometric.transforms import RandomLinkSplit

from pyg_trust.privacy import PrivateLinkPredictor

torch.manual_seed(0)
data = social_network(seed=0, friends=16, alike=0.9)
split = RandomLinkSplit(is_undirected=True, add_negative_train_samples=False)
train, _, test = split(data)

# %%
# Fit
# ---
# Noisy sums over neighbours, a noisy number of edges and thirty noisy
# gradients are released once. Scores read no edge and cost nothing.
model = PrivateLinkPredictor(epsilon=4.0, delta=1e-6).fit(train)
area = model.score(test.edge_label_index, test.edge_label)
print(f'AUC {area:.3f}')
print(model.report().explain())

# %%
# What does privacy cost?
# -----------------------
# Each of these is a release of the same edges. Together they would cost more:
# try budgets on a graph that is public.
budgets, areas = [1.0, 2.0, 4.0, 8.0, 16.0], []
for epsilon in budgets:
    tried = PrivateLinkPredictor(epsilon=epsilon, delta=1e-6, insecure_seed=0)
    tried.fit(train)
    areas.append(tried.score(test.edge_label_index, test.edge_label))
figure, axis = plt.subplots(layout='constrained')
axis.plot(budgets, areas, 'o-')
axis.set(xscale='log', xlabel='epsilon of an edge', ylabel='AUC')
plt.show()

# %%
# A trap
# ------
# The graph of the test split holds the links that were held out for
# validation: it is another graph, and its release would cost again.
print(train.num_edges // 2, 'edges;', test.num_edges // 2, 'in the test split')

# %%
# Forget a customer
# -----------------
# The recommender counts, and does not train. A removal subtracts counts, so
# the result is bit-identical to one that never counted the customer.
from pyg_trust.unlearning import Recommender

likes = (torch.rand(300, 80) < 0.1).nonzero().t()
recommender = Recommender('paths').fit(likes, num_users=300, num_items=80)
removed = recommender.remove(users=[7], interactions=likes[:, :1])
print(recommender.verify().summary())

# %%
# PyG's metrics take the recommended items as they are.
best = recommender.recommend([1, 2, 3], k=5)
rest = likes[:, 1:][:, likes[0, 1:] != 7]
fresh = Recommender('paths').fit(rest, num_users=300, num_items=80)
print(torch.equal(best, fresh.recommend([1, 2, 3], k=5)), best.tolist())

# %%
# Forget a friend
# ---------------
# A link classifier removes a person or a friendship from the features and from
# the training pairs. Its weights can then hardly be distinguished from those
# of a fit without them, because of the noise of their release.
import torch.nn.functional as F

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import LinkClassifier

network = train.clone()
network.x = F.normalize(network.x)  # each row by itself
friends = LinkClassifier('sgc', K=2).fit(network)
scores = friends.decision_function(test.edge_label_index)
print(f'AUC {roc_auc_score(test.edge_label, scores):.3f}')
u, v = network.edge_index[:, 0].tolist()
gone = friends.remove(RemovalRequest(nodes=[12], edges=[(u, v)]))
print(gone.epsilon, friends.verify().ok)

# %%
# Hide who likes what
# -------------------
# A recommender that forgets is not private. ``PrivateItemCounts`` releases a
# noisy table of items once, so that recommendations for others reveal little
# about one customer. It needs many customers, because the noise is the same
# for a thousand as for a million.
from pyg_trust.privacy import PrivateItemCounts

private = PrivateItemCounts(epsilon=8.0, delta=1e-4).fit(likes, 300, 80)
print(private.recommend(likes, k=5)[:3].tolist())
print(private.report().promise())

# %%
# What can one like of others change?
# -----------------------------------
# Items are ranked by PageRank, and an attacker removes one like of anybody
# else. The certificate shows how far the best ten items of three customers can
# fall, and which like makes the first one fall.
from pyg_trust.certificates import ThreatModel, certify_ranks

graph = recommender.edge_index + torch.tensor([[0], [300]])
graph = torch.cat([graph, graph.flip(0)], 1)
threat = ThreatModel(
    graph, fixed='none', global_budget=1, undirected=True, num_nodes=380
)
customers, items = torch.tensor([1, 2, 3]), torch.arange(300, 380)
ranks = certify_ranks(graph, customers, threat, k=10, items=items)
print(ranks.worst_rank.tolist(), ranks.verify())
print('the like of', ranks.flips[0, 0].tolist())

# %%
# All on one page
# ---------------
from pyg_trust.report import TrustReport

page = TrustReport.of(model.report(), private.report(), removed, gone, ranks)
print('\n'.join(each.promise for each in page.guarantees))
