import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.nn import LabelPropagation
from pyg_trust.testing import make_graph

GRAPH = make_graph('random')
EDGES = GRAPH.to_edge_index()[0]
ONE_WAY = EDGES[:, EDGES[0] < EDGES[1]]
generator = torch.Generator().manual_seed(0)
Y = torch.randint(3, (40,), generator=generator)
MASK = torch.rand(40, generator=generator) < 0.5
WEIGHT = torch.rand(EDGES.size(1), generator=generator)
SOFT = torch.rand(40, 3, generator=generator).softmax(1)


def test_layers_of_a_sparse_tensor_are_those_of_pyg():
    pytest.importorskip('torch_sparse')
    adj = GRAPH.to_sparse_tensor()
    for given in (adj, adj.set_value(WEIGHT, layout='coo')):
        theirs = pyg.LabelPropagation(4, 0.7)(Y, given.t(), MASK)
        ours = LabelPropagation(4, 0.7)(Y, given.t(), MASK)
        torch.testing.assert_close(ours, theirs)


def test_the_two_kinds_say_which_they_are():
    assert str(LabelPropagation(2, 0.5)) == str(pyg.LabelPropagation(2, 0.5))
    assert 'K=None' in str(LabelPropagation(num_classes=3))
    for wrong in (
        {},
        {'num_layers': 3},
        {'num_layers': 3, 'num_classes': 3, 'alpha': 0.5},
        {'num_layers': 3, 'alpha': 0.5, 'K': 2},
        {'num_layers': 3, 'alpha': 1.5},
        {'num_layers': -1, 'alpha': 0.5},
    ):
        with pytest.raises(ValueError, match=r"'(num_layers|alpha|K)'"):
            LabelPropagation(**wrong)
    with pytest.raises(ValueError, match="'num_classes'"):
        LabelPropagation(2, 0.5).logits(Y)
    with pytest.raises(ValueError, match="'post_step'"):
        LabelPropagation(num_classes=3)(Y, EDGES, MASK, post_step=torch.relu)
    with pytest.raises(ValueError, match=r"'y'.*-1"):
        LabelPropagation(2, 0.5)(Y - 1, EDGES)


def test_layers_are_not_certified_as_pagerank():
    data = Data(edge_index=EDGES, y=Y, num_nodes=40)
    with pytest.raises(TypeError, match=r"'model'.*num_layers=2"):
        certify(
            LabelPropagation(2, 0.5),
            data,
            ThreatModel(data, local_budget=1),
        )
