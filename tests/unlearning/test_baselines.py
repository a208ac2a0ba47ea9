import pytest
import torch
from graphs import random_graphs, without

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import GINClassifier


def test_gin_learns_and_forgets_exactly():
    graphs = random_graphs(40, with_x=False)
    settings = {'max_degree': 8, 'lr': 1e-2, 'epochs': 40, 'seed': 0}
    model = GINClassifier(**settings).fit(graphs)
    assert model.score(graphs) > 0.8
    request = RemovalRequest(nodes={0: [1], 2: [0, 3]}, graphs=[4])
    model.remove(request)
    again = GINClassifier(**settings).fit(without(graphs, request))
    states = [m._fitted[1].state_dict() for m in (model, again)]
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key])
    with pytest.raises(ValueError, match='graph 4 is not there'):
        model.remove(RemovalRequest(graphs=[4]))
    with pytest.raises(ValueError, match='fitted'):
        GINClassifier().predict(graphs)


def test_gin_leaves_the_generator_alone():
    graphs = random_graphs(8)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    GINClassifier(epochs=1, seed=0).fit(graphs)
    assert torch.equal(torch.rand(1), expected)
