import pytest
import torch
import torch_geometric.nn as pyg
from exhaustive import csr, pagerank, random_problem
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import (
    PPNP,
    FeaturePropagation,
    LabelPropagation,
    PageRankDiffusion,
)
from pyg_trust.testing import make_graph


def dense(adj, normalization):
    degree = adj.sum(1).double()
    if normalization == 'rw':
        return adj / degree[:, None]
    return adj / (degree[:, None] * degree).sqrt()


@pytest.mark.parametrize('normalization', ['rw', 'sym'])
@pytest.mark.parametrize('K', [0, 1, 7])
def test_steps_are_those_of_the_recursion(normalization, K):
    adj, h = random_problem(0, 8)
    step = dense(adj, normalization)
    z = h
    for _ in range(K):
        z = 0.8 * step @ z + 0.2 * h
    layer = PageRankDiffusion(0.2, K, normalization=normalization)
    assert torch.allclose(layer.diffuse(h, adj.nonzero().t()), z)


@pytest.mark.parametrize('normalization', ['rw', 'sym'])
def test_many_steps_end_at_the_exact_solution(normalization):
    adj, h = random_problem(1, 8)
    edge_index = adj.nonzero().t()
    exact = PageRankDiffusion(0.2, normalization=normalization)
    steps = PageRankDiffusion(0.2, 200, normalization=normalization)
    inverse = torch.linalg.inv(
        torch.eye(8, dtype=torch.float64) - 0.8 * dense(adj, normalization)
    )
    z = exact.diffuse(h, edge_index)
    assert torch.allclose(z, 0.2 * inverse @ h, atol=1e-10)
    assert torch.allclose(z, steps.diffuse(h, edge_index), atol=1e-10)


def test_a_few_steps_are_those_of_appnp():
    adj, h = random_problem(2, 8)
    edge_index = adj.nonzero().t()
    layer = PageRankDiffusion(0.1, 4, normalization='sym', add_self_loops=True)
    appnp = pyg.APPNP(4, 0.1)
    assert torch.allclose(
        layer.diffuse(h, edge_index), appnp(h, edge_index), atol=1e-6
    )


@pytest.mark.parametrize('K', [None, 2])
@pytest.mark.parametrize('normalization', ['rw', 'sym'])
def test_gradients_reach_the_encoder(K, normalization):
    adj, x = random_problem(6, 6)
    edge_index = adj.nonzero().t()
    layer = PageRankDiffusion(0.15, K, normalization=normalization)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(
            lambda h: layer.diffuse(h, edge_index), x.requires_grad_()
        )
    model = PPNP(torch.nn.Linear(3, 2), K=K, normalization=normalization)
    model(x.float(), edge_index).sum().backward()
    assert float(model.encoder.weight.grad.abs().sum()) > 0


def test_feature_propagation_is_regression_on_diffused_features():
    adj, x = random_problem(8, 9)
    model = FeaturePropagation(3, 2).double()
    diffused = pagerank(adj, 0.15) @ x
    z = diffused @ model.encoder.weight.t() + model.encoder.bias
    assert torch.allclose(model(x, adj.nonzero().t()), z, atol=1e-10)


def test_label_propagation_reads_labelled_nodes_alone():
    adj, _ = random_problem(9, 6)
    y = torch.tensor([0, 2, -1, -1, -1, 1])
    mask = y >= 0
    model = LabelPropagation(num_classes=3)
    h = model.logits(y, mask)
    expected = torch.tensor(
        [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0.0]]
    )
    assert torch.equal(h, expected)
    assert torch.equal(model.logits(y, mask.nonzero().view(-1)), expected)
    z = pagerank(adj, 0.15).float() @ expected
    assert torch.allclose(model(y, adj.nonzero().t(), mask), z, atol=1e-5)


def test_resetting_changes_the_weights():
    model = PPNP(torch.nn.Linear(3, 2))
    before = model.encoder.weight.clone()
    model.reset_parameters()
    assert not torch.equal(before, model.encoder.weight)


def test_it_says_what_it_is():
    assert str(PPNP(torch.nn.Linear(3, 2), alpha=0.2, K=10)) == (
        "PPNP(alpha=0.2, K=10, normalization='rw')"
    )


def test_bad_input_is_refused():
    layer = PageRankDiffusion(normalization='sym')
    with pytest.raises(ValueError, match='undirected'):
        layer.diffuse(torch.ones(2, 1), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match='num_nodes'):
        layer.diffuse(torch.ones(2, 1), csr(torch.ones(3, 3) > 0))
    edge_index, _ = add_self_loops(torch.tensor([[0], [1]]))
    assert CSRGraph.from_edge_index(edge_index, 2).has_self_loops


# Layers of labels ############################################################

GRAPH = make_graph('random')
EDGES = GRAPH.to_edge_index()[0]
SEEDED = torch.Generator().manual_seed(0)
Y = torch.randint(3, (40,), generator=SEEDED)
MASK = torch.rand(40, generator=SEEDED) < 0.5
WEIGHT = torch.rand(EDGES.size(1), generator=SEEDED)


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
            LabelPropagation(2, 0.5), data, ThreatModel(data, local_budget=1)
        )
